/* The KV cache: its tensors and buffers, and the page tables on the devices. */
#include "llm/memory/kv_cache.h"

#include "base/checked.h"
#include "llm/ranks/lead.h"

#include <string.h>

/* ---- Tensors ---- */

tn__layer_memory tn__layer_memory_of(const tn__hparams *h, int32_t il) {
    const tn__layer_hparams *l = &h->layers[il];
    tn__layer_memory m = {.from = il};
    if (tn__layer_attends(l)) {
        m.head_k = l->head_k;
        m.head_v = l->head_v;
        m.k = l->n_head_kv * l->head_k;
        m.v = l->n_head_kv * l->head_v;
        m.window = h->causal ? l->window : 0; /* a window to both sides needs all cells of its sequence */
        if (l->cells_of) m.from = l->cells_of - 1;
    }
    if (l->mixer && l->mixer->memory) l->mixer->memory(h, il, &m);
    return m;
}

/* Sizes the page tables. Layers with a window need pages for the window of every sequence and one micro-batch. They
 * get a group of their own only where that is less than the context. A model without cells has pages, too: they
 * record which tokens a sequence holds. */
static tn_status size_groups(const tn__kv_params *p, tn__kv *kv) {
    const tn__hparams *h = &p->model->h;
    int32_t window = 0;
    bool any_full = false, recurrent = false;
    for (int32_t i = 0; i < h->n_layer; i++) {
        const tn__layer_memory m = tn__layer_memory_of(h, i);
        window = TN__MAX(window, m.window);
        any_full = any_full || (m.k && m.window == 0);
        recurrent = recurrent || m.state[0] || m.state[1];
    }
    tn__page_table full, windows = {0};
    TN_TRY(tn__page_table_size(&full, p->n_ctx, p->page, 0, p->n_ubatch, p->n_seqs, p->n_kept, p->n_checkpoints,
                               h->causal));
    if (window)
        TN_TRY(tn__page_table_size(&windows, 0, p->page, window, p->n_ubatch, p->n_seqs, p->n_kept, p->n_checkpoints,
                                   h->causal));
    if (p->n_branches && !recurrent) {
        TN_TRY(tn__page_table_add_branches(&full, p->n_branches, p->n_guess));
        TN_TRY(tn__page_table_add_branches(&windows, p->n_branches, p->n_guess));
    }
    const bool use_windows = window > 0 && windows.n_pages < full.n_pages;
    if (!use_windows || any_full) kv->groups[TN__CACHE_FULL] = full;
    if (use_windows) kv->groups[TN__CACHE_WINDOW] = windows;
    if (recurrent) tn__recurrent_size(&kv->states, p->n_seqs, p->n_kept, p->n_checkpoints, p->n_guess);
    return TN_OK;
}

static tn_tensor *new_cells(tn__kv *kv, tn_type type, int32_t elements, int64_t cells, const char *what, int32_t il) {
    if (!elements) return NULL;
    return tn_name(kv->arena, tn_tensor_nd(kv->arena, type, elements, cells), "%s.%d", what, il);
}

static tn_status new_layer(const tn__kv_params *p, tn__kv *kv, int32_t i) {
    const tn__layer_memory m = tn__layer_memory_of(&p->model->h, i);
    tn__kv_layer *l = &kv->layers[i];
    l->from = m.from;
    l->device = p->device_of_layer[i];
    l->group = kv->groups[TN__CACHE_WINDOW].n_pages && m.window ? TN__CACHE_WINDOW : TN__CACHE_FULL;
    if (!tn__holds_layer(&p->model->division, i)) return TN_OK;
    for (int k = 0; k < TN__STATE_TENSORS; k++)
        if (m.state[k])
            l->state[k] = tn_name(kv->arena, tn_tensor_nd(kv->arena, TN_F32, m.state[k], kv->states.n_rows),
                                  "state_%d.%d", k, i);
    if (m.from != i) { /* an earlier layer's cells */
        const tn__kv_layer *owner = &kv->layers[m.from];
        l->k = owner->k, l->v = owner->v, l->x = owner->x;
        l->group = owner->group, l->device = owner->device;
        l->rotate_k = owner->rotate_k, l->rotate_v = owner->rotate_v;
    } else if (m.k) {
        const int64_t cells = tn__page_table_cells(&kv->groups[l->group]);
        tn__cache_format f;
        TN_TRY(tn__cache_format_of(p->session, m.head_k, m.head_v, m.window > 0, &f));
        l->rotate_k = f.rotate_k;
        l->rotate_v = f.rotate_v;
        l->k = new_cells(kv, f.k, m.k, cells, "cache_k", i);
        l->v = new_cells(kv, f.v, m.v, cells, "cache_v", i);
        l->x = new_cells(kv, TN_F32, m.x, cells, "cache_x", i);
    }
    tn_tensor **table = &kv->tables[(size_t)l->group * p->n_devices + (size_t)l->device];
    if (l->k && !*table)
        *table = tn_name(kv->arena,
                         tn_tensor_nd(kv->arena, TN_I32, 4, 1 + kv->groups[l->group].max_runs,
                                      p->n_seqs + kv->groups[l->group].n_branches),
                         "pages.%d", l->group);
    tn_tensor **factors = &kv->factors[p->device_of_layer[i]];
    if (p->factors && p->device_of_layer[i] != p->factors_device && !*factors)
        *factors = tn_name(kv->arena, tn_tensor_new(kv->arena, p->factors->type, p->factors->n_dims, p->factors->ne),
                           "rope_factors");
    return TN_OK;
}

tn_status tn__kv_new(const tn__kv_params *p, tn__kv *kv) {
    const tn__hparams *h = &p->model->h;
    memset(kv, 0, sizeof *kv);
    kv->n_layer = h->n_layer;
    kv->n_seqs = p->n_seqs;
    kv->n_devices = p->n_devices;
    kv->layers = tn_calloc((size_t)h->n_layer, sizeof *kv->layers);
    kv->tables = tn_calloc(TN__CACHE_GROUPS * p->n_devices, sizeof(tn_tensor *));
    kv->factors = tn_calloc(p->n_devices, sizeof(tn_tensor *));
    kv->factors_from = p->factors;
    if (!kv->layers || !kv->tables || !kv->factors) return TN_E_NOMEM;
    TN_TRY(size_groups(p, kv));
    size_t n_tensors = TN__LAYER_TENSORS_MOST * (size_t)h->n_layer + (TN__CACHE_GROUPS + 1) * p->n_devices + 2;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(n_tensors, 0), .no_alloc = true}, &kv->arena));
    for (int32_t i = 0; i < h->n_layer; i++) TN_TRY(new_layer(p, kv, i));
    kv->argmax = tn_name(kv->arena, tn_tensor_nd(kv->arena, TN_I32, 2), "argmax");
    kv->argmax_device = p->output_device;
    kv->candidates_part = tn__align_up((size_t)p->n_candidates * (size_t)p->session->n_outputs, 64);
    if (p->n_candidates)
        kv->candidates = tn_name(kv->arena, tn_tensor_nd(kv->arena, TN_I32, 3 * kv->candidates_part), "candidates");
    return tn_arena_status(kv->arena);
}

tn_tensor *tn__kv_layer_tensor(const tn__kv *kv, int32_t layer, int i) {
    const tn__kv_layer *l = &kv->layers[layer];
    if (i >= TN__CELL_TENSORS) return l->state[i - TN__CELL_TENSORS];
    return l->from != layer ? NULL : i == 0 ? l->k : i == 1 ? l->v : l->x;
}

size_t tn__kv_tensor_count(const tn__kv *kv) {
    return TN__LAYER_TENSORS_MOST * (size_t)kv->n_layer + TN__CACHE_GROUPS + 3;
}
tn_tensor *tn__kv_tensor(const tn__kv *kv, size_t device, size_t i) {
    const size_t in_layers = TN__LAYER_TENSORS_MOST * (size_t)kv->n_layer;
    if (i < in_layers) {
        const int32_t layer = (int32_t)(i / TN__LAYER_TENSORS_MOST);
        return (size_t)kv->layers[layer].device != device
                   ? NULL
                   : tn__kv_layer_tensor(kv, layer, (int)(i % TN__LAYER_TENSORS_MOST));
    }
    size_t group = i - in_layers;
    if (group < TN__CACHE_GROUPS) return kv->tables[group * kv->n_devices + device];
    if (group == TN__CACHE_GROUPS) return kv->factors[device];
    if ((size_t)kv->argmax_device != device) return NULL;
    return group == TN__CACHE_GROUPS + 1 ? kv->argmax : kv->candidates;
}

/* Bytes of the tensors from number `begin` on that one allocation can hold, and the number of the next. */
static tn_status measure_allocation(const tn__kv *kv, size_t device, tn_buffer_type *type, size_t begin, size_t *end,
                                    size_t *total) {
    const size_t align = tn_buffer_type_alignment(type), most = tn_buffer_type_max_size(type);
    *total = 0;
    for (*end = begin; *end < tn__kv_tensor_count(kv); ++*end) {
        const tn_tensor *t = tn__kv_tensor(kv, device, *end);
        size_t size, sum;
        if (!t) continue;
        if (!tn__align_up_checked(tn_buffer_type_tensor_size(type, t), align, &size) ||
            !tn__add_size(*total, size, &sum))
            return tn_fail(TN_E_OVERFLOW, "the KV cache's size overflows");
        if (sum > most && *total) break; /* a tensor that is too large for any allocation has one of its own */
        *total = sum;
    }
    return TN_OK;
}

tn_status tn__kv_host_bytes(const tn__kv *kv, size_t *bytes) {
    TN_TRY(tn__recurrent_bytes(&kv->states, bytes));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        size_t table;
        TN_TRY(tn__page_table_bytes(&kv->groups[g], &table));
        if (!tn__add_size(*bytes, table, bytes)) return tn_fail(TN_E_OVERFLOW, "page tables overflow");
    }
    return TN_OK;
}

tn_status tn__kv_check(const tn__kv *kv, tn_buffer_type *const *types) {
    for (size_t i = 0; i < kv->n_devices * tn__kv_tensor_count(kv); i++) {
        tn_buffer_type *type = types[i % kv->n_devices];
        const tn_tensor *t = tn__kv_tensor(kv, i % kv->n_devices, i / kv->n_devices);
        if (!t || tn_buffer_type_tensor_size(type, t) <= tn_buffer_type_max_size(type)) continue;
        return tn_fail(
            TN_E_TOO_BIG,
            "'%s' needs %zu bytes, the largest allocation in %s has %zu; to make it fit: a shorter context "
            "(--ctx), a smaller cache type (--cache-type-k q8_0), or no layers there (--gpu-layers 0)",
            t->name, tn_buffer_type_tensor_size(type, t), tn_buffer_type_name(type), tn_buffer_type_max_size(type));
    }
    return TN_OK;
}

tn_status tn__kv_sizes(const tn__kv *kv, tn_buffer_type *const *types, size_t *sizes) {
    for (size_t d = 0; d < kv->n_devices; d++) {
        sizes[d] = 0;
        for (size_t at = 0, size; at < tn__kv_tensor_count(kv);) {
            TN_TRY(measure_allocation(kv, d, types[d], at, &at, &size));
            if (!tn__add_size(sizes[d], size, &sizes[d]))
                return tn_fail(TN_E_OVERFLOW, "the KV cache's size overflows");
        }
    }
    return TN_OK;
}

static tn_status allocate_tensors(tn__kv *kv, size_t device, tn_buffer_type *type, size_t begin, size_t end,
                                  size_t size) {
    tn__kv_buffer *buffers = tn_realloc(kv->buffers, (kv->n_buffers + 1) * sizeof *buffers);
    if (!buffers) return TN_E_NOMEM;
    kv->buffers = buffers;
    tn_buffer *buffer;
    TN_TRY(tn_buffer_new(type, size, &buffer));
    kv->buffers[kv->n_buffers++] = (tn__kv_buffer){buffer, device};
    TN_TRY(tn_buffer_clear(buffer, 0)); /* unwritten cells are multiplied by 0, so they must not contain NaN */
    size_t offset = 0;
    for (size_t i = begin; i < end; i++) {
        tn_tensor *t = tn__kv_tensor(kv, device, i);
        if (!t) continue;
        TN_TRY(tn_buffer_bind(buffer, t, offset));
        offset += tn__align_up(tn_buffer_type_tensor_size(type, t), tn_buffer_type_alignment(type));
    }
    return TN_OK;
}

tn_status tn__kv_allocate(tn__kv *kv, tn_buffer_type *const *types) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) TN_TRY(tn__page_table_allocate(&kv->groups[g]));
    TN_TRY(tn__recurrent_allocate(&kv->states));
    for (size_t d = 0; d < kv->n_devices; d++) {
        for (size_t begin = 0, end, size; begin < tn__kv_tensor_count(kv); begin = end) {
            TN_TRY(measure_allocation(kv, d, types[d], begin, &end, &size));
            if (size) TN_TRY(allocate_tensors(kv, d, types[d], begin, end, size));
        }
        if (kv->factors[d]) TN_TRY(tn_tensor_copy(kv->factors_from, kv->factors[d]));
    }
    return TN_OK;
}

void tn__kv_free(tn__kv *kv) {
    for (size_t i = 0; i < kv->n_buffers; i++) tn_buffer_free(kv->buffers[i].buffer);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) tn__page_table_free(&kv->groups[g]);
    tn__recurrent_free(&kv->states);
    tn_arena_free(kv->arena);
    tn_free(kv->buffers);
    tn_free(kv->tables);
    tn_free(kv->factors);
    tn_free(kv->layers);
    memset(kv, 0, sizeof *kv);
}

/* ---- Page tables ---- */

static void give_back_cells(tn__page_table *t, int32_t n, const int32_t *positions, const int32_t *seqs) {
    for (int32_t i = 0; t->n_pages && i < n; i++) (void)tn__pages_remove(t, seqs[i], positions[i], positions[i] + 1);
}

tn_status tn__kv_take(tn__kv *kv, int32_t n, const int32_t *positions, const int32_t *seqs, int32_t *const *rows,
                      tn__step *steps) {
    tn__page_table *full = &kv->groups[TN__CACHE_FULL], *windows = &kv->groups[TN__CACHE_WINDOW];
    if (windows->n_pages) tn__pages_leave_window(windows, n, positions, seqs);
    if (full->n_pages) TN_TRY(tn__pages_take(full, n, positions, seqs, rows[TN__CACHE_FULL]));
    tn_status status = TN_OK;
    if (windows->n_pages) status = tn__pages_take(windows, n, positions, seqs, rows[TN__CACHE_WINDOW]);
    if (status == TN_OK) {
        status = tn__recurrent_take(&kv->states, n, positions, seqs, steps);
        if (status != TN_OK) give_back_cells(windows, n, positions, seqs);
    }
    if (status != TN_OK) give_back_cells(full, n, positions, seqs);
    return status;
}

tn_status tn__kv_send_tables(tn__kv *kv, tn__notes *notes) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &kv->groups[g];
        for (int32_t i = 0; t->n_pages && i < t->n_seqs + t->n_branches; i++) {
            const int32_t list = i < t->n_seqs ? i : t->n_lists + i - t->n_seqs;
            tn__sequence_runs *s = &t->sequences[list];
            if (s->dirty_first >= s->dirty_end) continue;
            const tn_page_run *first = tn__page_entries(t, list) + s->dirty_first;
            const size_t offset = ((size_t)i * (size_t)(1 + t->max_runs) + (size_t)s->dirty_first) * sizeof *first;
            TN_TRY(tn__lead_table(notes, g, offset, first, (size_t)(s->dirty_end - s->dirty_first) * sizeof *first));
            for (size_t d = 0; d < kv->n_devices; d++) {
                tn_tensor *to = kv->tables[(size_t)g * kv->n_devices + d];
                if (to)
                    TN_TRY(
                        tn_tensor_set_at(to, first, offset, (size_t)(s->dirty_end - s->dirty_first) * sizeof *first));
            }
            s->dirty_first = s->dirty_end = 0;
        }
    }
    return TN_OK;
}

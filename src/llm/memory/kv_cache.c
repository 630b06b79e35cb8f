/* The KV cache: its tensors, and which cell each token gets. */
#include "llm/memory/kv_cache.h"

#include "base/checked.h"

#include <string.h>

/* ---- Tensors ---- */

static void size_cells(tn__cells *c, int32_t n, int32_t window, int32_t n_seqs) {
    c->n = n;
    c->window = window;
    c->words = (n_seqs + 31) / 32;
}

/* Metadata takes host memory in proportion to the context: only a session that fits takes it. */
static tn_status allocate_cells(tn__cells *c, int32_t n_seqs) {
    size_t ints;
    if (!tn__mul_size((size_t)c->n, (size_t)(1 + c->words), &ints))
        return tn_fail(TN_E_OVERFLOW, "a cache of %d cells overflows", c->n);
    c->meta = tn_calloc(ints, sizeof *c->meta);
    c->last = tn_malloc((size_t)n_seqs * sizeof *c->last);
    if (!c->meta || !c->last) return TN_E_NOMEM;
    for (int32_t i = 0; i < c->n; i++) tn__cell_meta(c, i)[0] = -1;
    for (int32_t i = 0; i < n_seqs; i++) c->last[i] = -1;
    c->dirty_end = c->n;
    c->n_dirty = TN__COUNT(c->dirty) + 1;
    return TN_OK;
}

tn_status tn__kv_new(const tn__kv_params *p, tn__kv *kv) {
    const tn__hparams *h = &p->model->h;
    memset(kv, 0, sizeof *kv);
    kv->n_layer = h->n_layer;
    kv->n_seqs = p->n_seqs;
    kv->n_devices = p->n_devices;
    kv->layers = tn_calloc((size_t)h->n_layer, sizeof *kv->layers);
    kv->meta = tn_calloc(TN__CACHE_GROUPS * p->n_devices, sizeof(tn_tensor *));
    kv->factors = tn_calloc(p->n_devices, sizeof(tn_tensor *));
    kv->factors_from = p->factors;
    if (!kv->layers || !kv->meta || !kv->factors) return TN_E_NOMEM;

    /* Layers with a window need cells for the window of every sequence and one micro-batch. They get a group of their
     * own only where that is less than the context. */
    int32_t window = 0;
    bool any_full = false;
    for (int32_t i = 0; i < h->n_layer; i++) {
        if (h->layers[i].window > window) window = h->layers[i].window;
        any_full = any_full || h->layers[i].window == 0;
    }
    int64_t ring = (int64_t)window * p->n_seqs + p->n_ubatch;
    ring = (ring + 31) / 32 * 32;
    bool use_ring = window > 0 && ring < p->n_ctx;
    if (!use_ring || any_full) size_cells(&kv->groups[TN__CACHE_FULL], p->n_ctx, 0, p->n_seqs);
    if (use_ring) size_cells(&kv->groups[TN__CACHE_WINDOW], (int32_t)ring, window, p->n_seqs);

    size_t n_tensors = 2 * (size_t)h->n_layer + (TN__CACHE_GROUPS + 1) * p->n_devices + 1;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(n_tensors, 0), .no_alloc = true}, &kv->arena));
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__kv_layer *l = &kv->layers[i];
        l->group = use_ring && h->layers[i].window ? TN__CACHE_WINDOW : TN__CACHE_FULL;
        l->device = p->device_of_layer[i];
        int64_t cells = kv->groups[l->group].n, heads = h->layers[i].n_head_kv;
        if (h->head_k % tn_type_block(p->type_k) || h->head_v % tn_type_block(p->type_v))
            return tn_fail(
                TN_E_UNSUPPORTED,
                "heads of %d and %d elements do not divide into blocks of %s and %s: use f16 for the cache",
                h->head_k, h->head_v, tn_type_name(p->type_k), tn_type_name(p->type_v));
        l->k = tn_name(kv->arena, tn_tensor_nd(kv->arena, p->type_k, heads * h->head_k, cells), "cache_k.%d", i);
        l->v = tn_name(kv->arena, tn_tensor_nd(kv->arena, p->type_v, heads * h->head_v, cells), "cache_v.%d", i);
        tn_tensor **meta = &kv->meta[(size_t)l->group * p->n_devices + (size_t)l->device];
        if (!*meta)
            *meta = tn_name(kv->arena, tn_tensor_nd(kv->arena, TN_I32, 1 + kv->groups[l->group].words, cells),
                            "cells.%d", l->group);
        tn_tensor **factors = &kv->factors[l->device];
        if (p->factors && l->device != p->factors_device && !*factors)
            *factors =
                tn_name(kv->arena, tn_tensor_new(kv->arena, p->factors->type, p->factors->n_dims, p->factors->ne),
                        "rope_factors");
    }
    kv->argmax = tn_name(kv->arena, tn_tensor_nd(kv->arena, TN_I32, 2), "argmax");
    kv->argmax_device = p->output_device;
    return tn_arena_status(kv->arena);
}

size_t tn__kv_tensor_count(const tn__kv *kv) { return 2 * (size_t)kv->n_layer + TN__CACHE_GROUPS + 2; }
tn_tensor *tn__kv_tensor(const tn__kv *kv, size_t device, size_t i) {
    if (i < 2 * (size_t)kv->n_layer) {
        const tn__kv_layer *l = &kv->layers[i / 2];
        return (size_t)l->device != device ? NULL : i % 2 ? l->v : l->k;
    }
    size_t group = i - 2 * (size_t)kv->n_layer;
    if (group < TN__CACHE_GROUPS) return kv->meta[group * kv->n_devices + device];
    if (group == TN__CACHE_GROUPS) return kv->factors[device];
    return (size_t)kv->argmax_device == device ? kv->argmax : NULL;
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
    *bytes = 0;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__cells *c = &kv->groups[g];
        size_t ints;
        if (!c->n) continue;
        if (!tn__mul_size((size_t)c->n, (size_t)(1 + c->words), &ints) ||
            !tn__add_size(ints, (size_t)kv->n_seqs, &ints) || !tn__mul_size(ints, sizeof(int32_t), &ints) ||
            !tn__add_size(*bytes, ints, bytes))
            return tn_fail(TN_E_OVERFLOW, "a cache of %d cells overflows", c->n);
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
    TN_TRY(tn_buffer_clear(buffer, 0)); /* empty cells are multiplied by 0: they must not hold NaN */
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
    for (int g = 0; g < TN__CACHE_GROUPS; g++)
        if (kv->groups[g].n) TN_TRY(allocate_cells(&kv->groups[g], kv->n_seqs));
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
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn_free(kv->groups[g].meta);
        tn_free(kv->groups[g].last);
    }
    tn_arena_free(kv->arena);
    tn_free(kv->buffers);
    tn_free(kv->meta);
    tn_free(kv->factors);
    tn_free(kv->layers);
    memset(kv, 0, sizeof *kv);
}

/* ---- Cells ---- */

void tn__cells_touch(tn__cells *c, int32_t cell) {
    c->changes++;
    if (c->n_dirty < (int32_t)TN__COUNT(c->dirty)) c->dirty[c->n_dirty] = cell;
    if (c->n_dirty <= (int32_t)TN__COUNT(c->dirty)) c->n_dirty++;
    if (c->dirty_first >= c->dirty_end) {
        c->dirty_first = cell;
        c->dirty_end = cell + 1;
        return;
    }
    if (cell < c->dirty_first) c->dirty_first = cell;
    if (cell >= c->dirty_end) c->dirty_end = cell + 1;
}

void tn__cell_empty(tn__cells *c, int32_t cell) {
    memset(tn__cell_meta(c, cell), 0, (size_t)(1 + c->words) * sizeof(int32_t));
    tn__cell_meta(c, cell)[0] = -1;
    c->used--;
    while (c->end > 0 && tn__cell_meta(c, c->end - 1)[0] < 0) c->end--;
    tn__cells_touch(c, cell);
}

/* Frees cells of a window group that no later query of their sequence can see. */
static void free_cells_behind_window(tn__cells *c, int32_t n, const int32_t *positions, const int32_t *seqs) {
    if (!c->window) return;
    for (int32_t i = 0; i < c->end; i++) {
        int32_t *meta = tn__cell_meta(c, i);
        if (meta[0] < 0) continue;
        for (int32_t t = 0; t < n; t++) {
            /* The first token of each sequence in the batch has its lowest position. */
            if (t > 0 && seqs[t] == seqs[t - 1]) continue;
            if (tn__cell_has_seq(c, i, seqs[t]) && positions[t] - meta[0] >= c->window)
                meta[1 + seqs[t] / 32] &= ~(1u << (seqs[t] % 32));
        }
        bool owned = false;
        for (int32_t w = 0; w < c->words; w++) owned = owned || meta[1 + w];
        if (!owned) tn__cell_empty(c, i);
    }
}

/* Cells of a sequence are taken in contiguous runs, so that attention can skip whole blocks of cells that a query
 * does not see: with many sequences nearly all of them. A run is as long as attention's blocks. */
enum { RUN_CELLS = 64 };

/* A free cell for the next token of a sequence; the caller has made sure that there is one. No cell below `lowest` is
 * free. */
static int32_t find_free_cell(const tn__cells *c, int32_t seq, int32_t position, int32_t *lowest) {
    int32_t last = c->last[seq];
    for (int32_t i = 0; last < 0 && position > 0 && i < c->end; i++)
        if (tn__cell_meta(c, i)[0] == position - 1 && tn__cell_has_seq(c, i, seq)) last = i;
    if (last >= 0 && last + 1 < c->n && (last + 1) % RUN_CELLS && tn__cell_meta(c, last + 1)[0] < 0) return last + 1;
    for (int32_t run = 0; run + RUN_CELLS <= c->n; run += RUN_CELLS) {
        int32_t free = 0;
        while (free < RUN_CELLS && tn__cell_meta(c, run + free)[0] < 0) free++;
        if (free == RUN_CELLS) return run;
    }
    while (tn__cell_meta(c, *lowest)[0] >= 0) ++*lowest;
    return *lowest;
}

tn_status tn__cells_fail_full(const tn__cells *c, int32_t n) {
    return tn_fail(TN_E_FULL,
                   "the KV cache is full: %d tokens need a cell, %d of %d are free; shift, remove a sequence, or use "
                   "a larger context",
                   n, c->n - c->used, c->n);
}

tn_status tn__kv_take(tn__kv *kv, int32_t n, const int32_t *positions, const int32_t *seqs, int32_t *const *rows) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &kv->groups[g];
        if (!c->n) continue;
        free_cells_behind_window(c, n, positions, seqs);
        if (c->n - c->used < n) return tn__cells_fail_full(c, n);
    }
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &kv->groups[g];
        if (!c->n) continue;
        int32_t lowest = c->used == c->end ? c->end : 0; /* without holes the next free cell is at the end */
        for (int32_t t = 0; t < n; t++) {
            int32_t cell = find_free_cell(c, seqs[t], positions[t], &lowest);
            int32_t *meta = tn__cell_meta(c, cell);
            c->last[seqs[t]] = cell;
            meta[0] = positions[t];
            meta[1 + seqs[t] / 32] |= (int32_t)(1u << (seqs[t] % 32));
            rows[g][t] = cell;
            c->used++;
            if (cell >= c->end) c->end = cell + 1;
            tn__cells_touch(c, cell);
        }
        if (g == TN__CACHE_FULL || !kv->groups[TN__CACHE_FULL].n) kv->peak = TN__MAX(kv->peak, c->used);
    }
    return TN_OK;
}

void tn__kv_untake(tn__kv *kv, int32_t seq, int32_t cell, int32_t last, int32_t peak) {
    tn__cells *c = &kv->groups[TN__CACHE_FULL];
    tn__cell_empty(c, cell);
    c->last[seq] = last;
    kv->peak = peak;
}

/* A device gets one range. In host memory single cells are written, so that the others stay in the CPU caches of the
 * threads that read them. */
static tn_status send_cells(const tn__cells *c, tn_tensor *t) {
    const size_t row = (size_t)(1 + c->words) * sizeof(int32_t);
    if (c->n_dirty > (int32_t)TN__COUNT(c->dirty) || !tn_buffer_type_is_host(tn_buffer_get_type(t->buffer)))
        return tn_tensor_set_at(t, tn__cell_meta(c, c->dirty_first), (size_t)c->dirty_first * row,
                                (size_t)(c->dirty_end - c->dirty_first) * row);
    for (int32_t i = 0; i < c->n_dirty; i++)
        TN_TRY(tn_tensor_set_at(t, tn__cell_meta(c, c->dirty[i]), (size_t)c->dirty[i] * row, row));
    return TN_OK;
}

tn_status tn__kv_send_meta(tn__kv *kv) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &kv->groups[g];
        if (!c->n || c->dirty_first >= c->dirty_end) continue;
        for (size_t d = 0; d < kv->n_devices; d++) {
            tn_tensor *t = kv->meta[(size_t)g * kv->n_devices + d];
            if (t) TN_TRY(send_cells(c, t));
        }
        c->dirty_first = c->dirty_end = c->n_dirty = 0;
    }
    return TN_OK;
}

void tn__kv_range(const tn__kv *kv, int group, int32_t range[2]) {
    range[0] = 0;
    range[1] = kv->groups[group].end;
}

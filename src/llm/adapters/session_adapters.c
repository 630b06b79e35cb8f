/* The adapters of a session: tensors, variants of graphs, memory, loading. */
#include "llm/adapters/session_adapters.h"

#include "base/checked.h"
#include "llm/plan/session_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tensors ---- */

static int64_t padded_rank(const tn__low_rank *p) {
    return (int64_t)tn__align_up((size_t)p->rank, (size_t)TN__RANK_STEP);
}
/* Values in other types are kept as f16. */
static tn_type stored_type(tn_type type) { return type == TN_F32 || type == TN_BF16 ? type : TN_F16; }

static tn_status add_adapted(tn_session_plan *plan, uint32_t adapter, const tn__low_rank *p) {
    tn__session_adapters *x = &plan->adapters;
    const tn_adapter *from = x->uses[adapter].adapter;
    const int64_t rank = padded_rank(p);
    int64_t a[4], b[4];
    memcpy(a, p->a->ne, sizeof a);
    memcpy(b, p->b->ne, sizeof b);
    a[p->lookup ? 0 : 1] = b[0] = rank;
    tn__adapted_weight *w = &x->list[x->n_list++];
    *w = (tn__adapted_weight){.weight = plan->model->all[p->weight].tensor,
                              .pair = p,
                              .a = tn_tensor_new(x->arena, stored_type(p->a->type), 3, a),
                              .b = tn_tensor_new(x->arena, stored_type(p->b->type), 3, b),
                              .adapter = adapter,
                              .factor = from->alpha != 0 ? (float)from->pairs[0].rank / (float)p->rank : 1};
    tn_name(x->arena, w->a, "%.48s.a%u", w->weight->name, adapter);
    tn_name(x->arena, w->b, "%.48s.b%u", w->weight->name, adapter);
    return tn_arena_status(x->arena);
}

static int compare_adapted(const void *a, const void *b) {
    const tn__adapted_weight *x = a, *y = b;
    if (x->weight != y->weight) return (uintptr_t)x->weight < (uintptr_t)y->weight ? -1 : 1;
    return (x->adapter > y->adapter) - (x->adapter < y->adapter);
}

static bool adds_direction(const tn_session_plan *plan, int32_t layer) {
    const tn_session_params *p = &plan->params;
    const bool all = !p->control_first && !p->control_last;
    if (!all && (layer < p->control_first || layer > p->control_last)) return false;
    for (size_t i = 0; i < plan->adapters.n_controls; i++)
        if (plan->adapters.controls[i].scale != 0 && plan->adapters.controls[i].vector->directions[layer])
            return true;
    return false;
}

static tn_status add_directions(tn_session_plan *plan) {
    tn__session_adapters *x = &plan->adapters;
    x->n_layer = plan->model->h.n_layer;
    x->directions = tn_calloc((size_t)x->n_layer, sizeof(tn_tensor *));
    if (!x->directions) return TN_E_NOMEM;
    for (int32_t i = 1; i < x->n_layer; i++) {
        if (!adds_direction(plan, i)) continue;
        x->directions[i] = tn_tensor_new(x->arena, TN_F32, 1, (const int64_t[]){plan->model->h.n_embd});
        tn_name(x->arena, x->directions[i], "direction.%d", i);
    }
    return tn_arena_status(x->arena);
}

static tn_status check_uses(const tn_session_plan *plan) {
    const tn_session_params *p = &plan->params;
    if (p->n_adapters > TN_ADAPTERS_MOST)
        return tn_fail(TN_E_INVALID, "%zu adapters; a session has at most %d", p->n_adapters, TN_ADAPTERS_MOST);
    if ((p->n_adapters && !p->adapters) || (p->n_controls && !p->controls))
        return tn_fail(TN_E_INVALID, "the list of adapters or control vectors is NULL");
    for (size_t i = 0; i < p->n_adapters; i++) {
        if (!p->adapters[i].adapter || !isfinite(p->adapters[i].scale))
            return tn_fail(TN_E_INVALID, "adapter %zu is NULL, or its scale is not finite", i);
        if (p->adapters[i].adapter->model != plan->model)
            return tn_fail(TN_E_INVALID, "adapter %zu was opened for another model", i);
    }
    for (size_t i = 0; i < p->n_controls; i++)
        if (!p->controls[i].vector || !isfinite(p->controls[i].scale) || p->controls[i].vector->model != plan->model)
            return tn_fail(TN_E_INVALID, "control vector %zu is NULL or of another model, or its scale is not finite",
                           i);
    if (p->control_first < 0 || p->control_last < p->control_first)
        return tn_fail(TN_E_INVALID, "control vectors for the layers %d to %d", p->control_first, p->control_last);
    return TN_OK;
}

tn_status tn__session_adapters_new(tn_session_plan *plan) {
    tn__session_adapters *x = &plan->adapters;
    tn_session_params *p = &plan->params;
    if (!p->n_adapters && !p->n_controls) return TN_OK;
    TN_TRY(check_uses(plan));
    size_t n_pairs = 0;
    for (size_t i = 0; i < p->n_adapters; i++) n_pairs += p->adapters[i].adapter->n_pairs;
    x->uses = tn_calloc(p->n_adapters + 1, sizeof *x->uses);
    x->controls = tn_calloc(p->n_controls + 1, sizeof *x->controls);
    x->list = tn_calloc(n_pairs + 1, sizeof *x->list);
    if (!x->uses || !x->controls || !x->list) return TN_E_NOMEM;
    if (p->n_adapters) memcpy(x->uses, p->adapters, p->n_adapters * sizeof *x->uses);
    if (p->n_controls) memcpy(x->controls, p->controls, p->n_controls * sizeof *x->controls);
    x->n = p->n_adapters;
    x->n_controls = p->n_controls;
    p->adapters = x->uses;
    p->controls = x->controls;
    const size_t n_tensors = 2 * n_pairs + (size_t)plan->model->h.n_layer;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(n_tensors, 0), .no_alloc = true}, &x->arena));
    for (uint32_t i = 0; i < x->n; i++) {
        x->factors[i] = tn__low_rank_factor(x->uses[i].adapter, &x->uses[i].adapter->pairs[0]);
        for (size_t k = 0; k < x->uses[i].adapter->n_pairs; k++)
            TN_TRY(add_adapted(plan, i, &x->uses[i].adapter->pairs[k]));
    }
    qsort(x->list, x->n_list, sizeof *x->list, compare_adapted);
    return x->n_controls ? add_directions(plan) : TN_OK;
}

void tn__session_adapters_end(tn__session_adapters *x) {
    for (size_t i = 0; i < x->n_buffers; i++) tn_buffer_free(x->buffers[i].buffer);
    tn_free(x->buffers);
    tn_free(x->list);
    tn_free(x->directions);
    tn_arena_free(x->arena);
    *x = (tn__session_adapters){
        .n = x->n, .uses = x->uses, .controls = x->controls, .n_controls = x->n_controls, .n_layer = x->n_layer};
}

void tn__session_adapters_free(tn__session_adapters *x) {
    tn__session_adapters_end(x);
    tn_free(x->uses);
    tn_free(x->controls);
    *x = (tn__session_adapters){0};
}

/* ---- Variants of graphs ---- */

uint32_t tn__adapters_all(size_t n) { return n >= 32 ? UINT32_MAX : ((uint32_t)1 << n) - 1; }

uint32_t tn__adapters_variant(size_t n, uint32_t used) {
    return (used & (used - 1)) == 0 ? used : tn__adapters_all(n);
}

size_t tn__adapters_variants(size_t n, uint32_t sets[TN__ADAPTER_VARIANTS_MOST]) {
    size_t count = 0;
    if (n > 1) sets[count++] = tn__adapters_all(n);
    for (size_t i = 0; i < n; i++) sets[count++] = (uint32_t)1 << i;
    sets[count++] = 0;
    return count;
}

uint32_t tn__adapters_default(const tn__session_adapters *x) {
    uint32_t used = 0;
    for (size_t i = 0; i < x->n; i++)
        if (x->uses[i].scale != 0) used |= (uint32_t)1 << i;
    return tn__adapters_variant(x->n, used);
}

tn__adapted_weight *tn__adapters_of(const tn__session_adapters *x, const tn_tensor *weight, size_t *n) {
    size_t low = 0, high = x->n_list;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)x->list[middle].weight < (uintptr_t)weight)
            low = middle + 1;
        else
            high = middle;
    }
    for (*n = 0; low + *n < x->n_list && x->list[low + *n].weight == weight;) ++*n;
    return *n ? &x->list[low] : NULL;
}

/* ---- Memory ---- */

tn_tensor *tn__adapter_tensor(const tn_session_plan *plan, size_t i, size_t *device) {
    const tn__session_adapters *x = &plan->adapters;
    if (i < 2 * x->n_list) {
        const tn__adapted_weight *w = &x->list[i / 2];
        *device = (size_t)tn__placement_of_weight(plan, &plan->model->all[w->pair->weight]);
        return i % 2 ? w->b : w->a;
    }
    for (int32_t layer = 0, k = (int32_t)(i - 2 * x->n_list); x->directions && layer < x->n_layer; layer++) {
        if (!x->directions[layer] || k--) continue;
        *device = (size_t)plan->placement.device_of_layer[layer + 1];
        return x->directions[layer];
    }
    return NULL;
}

static size_t adapter_bytes(tn_buffer_type *type, const tn_tensor *t) {
    return tn__align_up(tn_buffer_type_tensor_size(type, t), tn_buffer_type_alignment(type));
}

void tn__adapters_add_layers(const tn_session_plan *plan, size_t device, size_t *bytes, size_t stride) {
    const tn__session_adapters *x = &plan->adapters;
    tn_buffer_type *type = plan->placement.types[device];
    for (size_t i = 0; i < x->n_list; i++) {
        const tn__weight *w = &plan->model->all[x->list[i].pair->weight];
        if (w->layer < 0 || plan->placement.weights[x->list[i].pair->weight].override >= 0) continue;
        bytes[(size_t)w->layer * stride] += adapter_bytes(type, x->list[i].a) + adapter_bytes(type, x->list[i].b);
    }
    for (int32_t i = 0; x->directions && i < x->n_layer; i++)
        if (x->directions[i]) bytes[(size_t)i * stride] += adapter_bytes(type, x->directions[i]);
}

tn_status tn__adapters_sizes(const tn_session_plan *plan, size_t *sizes) {
    size_t device = 0;
    memset(sizes, 0, plan->placement.n_devices * sizeof *sizes);
    for (size_t i = 0;; i++) {
        const tn_tensor *t = tn__adapter_tensor(plan, i, &device);
        if (!t) return TN_OK;
        tn_buffer_type *type = plan->placement.types[device];
        const size_t size = adapter_bytes(type, t);
        if (size > tn_buffer_type_max_size(type))
            return tn_fail(TN_E_TOO_BIG, "'%s' needs %zu bytes, the largest allocation in %s has %zu", t->name, size,
                           tn_buffer_type_name(type), tn_buffer_type_max_size(type));
        if (!tn__add_size(sizes[device], size, &sizes[device]))
            return tn_fail(TN_E_OVERFLOW, "the size of the adapters overflows");
    }
}

/* Takes a buffer for the device's tensors from *next on: for all, or as many as one allocation holds. */
static tn_status take_adapter_buffer(tn_session_plan *plan, size_t device, size_t *next) {
    tn__session_adapters *x = &plan->adapters;
    tn_buffer_type *type = plan->placement.types[device];
    const size_t begin = *next, most = tn_buffer_type_max_size(type);
    size_t size = 0, on = 0, i = begin, offset = 0;
    for (tn_tensor *t; (t = tn__adapter_tensor(plan, i, &on)); i++) {
        if (on != device) continue;
        if (size && adapter_bytes(type, t) > most - size) break;
        size += adapter_bytes(type, t);
    }
    *next = i;
    if (!size) return TN_OK;
    tn__adapter_buffer *grown = tn_realloc(x->buffers, (x->n_buffers + 1) * sizeof *grown);
    if (!grown) return TN_E_NOMEM;
    x->buffers = grown;
    TN_TRY(tn_buffer_new(type, size, &grown[x->n_buffers].buffer));
    grown[x->n_buffers].device = device;
    tn_buffer_set_usage(grown[x->n_buffers++].buffer, TN_USAGE_WEIGHTS);
    for (size_t k = begin; k < i; k++) {
        tn_tensor *t = tn__adapter_tensor(plan, k, &on);
        if (on != device) continue;
        TN_TRY(tn_buffer_bind(x->buffers[x->n_buffers - 1].buffer, t, offset));
        offset += adapter_bytes(type, t);
    }
    return TN_OK;
}

/* ---- Loading ---- */

static bool stores_data(const tn_tensor *t) {
    return !tn_device_get_caps(tn_buffer_type_device(tn_buffer_get_type(t->buffer))).described;
}

/* Sends the values of a file's tensor to one whose rows are longer, or which has more of them: zeros follow. */
static tn_status send_padded(tn_tensor *t, const tn_gguf_tensor *from, const float *values) {
    const int64_t n = tn_nelements(t);
    float *padded = tn_calloc((size_t)n, sizeof *padded);
    void *bytes = tn_malloc(tn_nbytes(t));
    tn_status status = padded && bytes ? TN_OK : TN_E_NOMEM;
    for (int64_t i = 0; status == TN_OK && i < from->ne[1] * from->ne[2]; i++) {
        const int64_t outer = i / from->ne[1], row = i % from->ne[1];
        memcpy(padded + (outer * t->ne[1] + row) * t->ne[0], values + i * from->ne[0],
               (size_t)from->ne[0] * sizeof *values);
    }
    if (status == TN_OK) status = tn_type_from_f32(t->type, padded, bytes, n, NULL);
    if (status == TN_OK) status = tn_tensor_set(t, bytes);
    tn_free(padded);
    tn_free(bytes);
    return status;
}

static tn_status load_matrix(const tn_adapter *adapter, const tn_gguf_tensor *from, tn_tensor *t) {
    if (!stores_data(t)) return TN_OK;
    float *values;
    TN_TRY(tn__adapter_values(adapter->file, from, &values));
    const tn_status status = send_padded(t, from, values);
    tn_free(values);
    return status;
}

/* The sum of all control vectors' directions for a layer, each times its scale. */
static tn_status load_direction(const tn__session_adapters *x, int32_t layer, tn_tensor *t) {
    if (!stores_data(t)) return TN_OK;
    float *sum = tn_calloc((size_t)t->ne[0], sizeof *sum);
    tn_status status = sum ? TN_OK : TN_E_NOMEM;
    for (size_t i = 0; i < x->n_controls && status == TN_OK; i++) {
        const tn_control_vector *v = x->controls[i].vector;
        float *values = NULL;
        if (!v->directions[layer]) continue;
        status = tn__adapter_values(v->file, v->directions[layer], &values);
        for (int64_t k = 0; status == TN_OK && k < t->ne[0]; k++) sum[k] += x->controls[i].scale * values[k];
        tn_free(values);
    }
    if (status == TN_OK) status = tn_tensor_set(t, sum);
    tn_free(sum);
    return status;
}

tn_status tn__adapters_take(tn_session_plan *plan) {
    tn__session_adapters *x = &plan->adapters;
    size_t on = 0, n = 0;
    while (tn__adapter_tensor(plan, n, &on)) n++;
    for (size_t d = 0; d < plan->placement.n_devices; d++)
        for (size_t next = 0; next < n;) TN_TRY(take_adapter_buffer(plan, d, &next));
    for (size_t i = 0; i < x->n_list; i++) {
        const tn_adapter *adapter = x->uses[x->list[i].adapter].adapter;
        TN_TRY(load_matrix(adapter, x->list[i].pair->a, x->list[i].a));
        TN_TRY(load_matrix(adapter, x->list[i].pair->b, x->list[i].b));
    }
    for (int32_t i = 0; x->directions && i < x->n_layer; i++)
        if (x->directions[i]) TN_TRY(load_direction(x, i, x->directions[i]));
    return TN_OK;
}

tn_status tn__adapters_check_applied(tn_session_plan *plan) {
    tn__session_adapters *x = &plan->adapters;
    if (!x->n) return TN_OK;
    const tn__shape shape = {tn__token_graph_kind(&plan->params), 1, 1, tn__adapters_all(x->n)};
    tn__graph_set *set;
    for (size_t i = 0; i < x->n_list; i++) x->list[i].applied = false;
    TN_TRY(tn__graph_new(plan, shape, &set));
    tn__graph_free(plan, set);
    for (size_t i = 0; i < x->n_list; i++) {
        const tn__adapted_weight *w = &x->list[i];
        const bool output = plan->model->all[w->pair->weight].layer == plan->model->h.n_layer;
        if (w->applied || (output && plan->params.embeddings)) continue; /* embeddings need no output matrix */
        return tn_fail(TN_E_UNSUPPORTED, "%s adapts '%s', which is not supported for this weight of %s models",
                       tn_gguf_path(x->uses[w->adapter].adapter->file), w->weight->name,
                       plan->model->arch->info.name);
    }
    return TN_OK;
}

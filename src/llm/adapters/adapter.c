/* LoRA adapters: opening a file, checking every tensor against the model, merging. */
#include "llm/adapters/adapter.h"

#include "base/checked.h"
#include "base/hash.h"

#include <math.h>
#include <string.h>

float tn__low_rank_factor(const tn_adapter *x, const tn__low_rank *pair) {
    return x->alpha != 0 ? x->alpha / (float)pair->rank : 1;
}

/* Rows first … first+n-1 of a tensor, counted through all its matrices, as floats. The caller frees them. */
static tn_status read_low_rank_rows(const tn_gguf *file, const tn_gguf_tensor *t, int64_t first, int64_t n,
                                    float **out) {
    const int64_t count = t->ne[0] * n;
    *out = NULL;
    if (!tn_type_can_read(t->type))
        return tn_fail(TN_E_TYPE, "%s: tensor '%s' has the type %s, which cannot be read", tn_gguf_path(file),
                       t->name, tn_type_name(t->type));
    const size_t row = (size_t)(t->ne[0] / tn_type_block(t->type)) * tn_type_bytes(t->type);
    size_t bytes;
    if (!tn__mul_size((size_t)count, sizeof(float), &bytes))
        return tn_fail(TN_E_OVERFLOW, "tensor '%s' is too large", t->name);
    void *raw = tn_malloc((size_t)n * row + 1);
    float *values = tn_malloc(bytes + 1);
    tn_status status = raw && values ? tn_gguf_read(file, t, (size_t)first * row, raw, (size_t)n * row) : TN_E_NOMEM;
    if (status == TN_OK) status = tn_type_to_f32(t->type, raw, values, count);
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        if (!isfinite(values[i]))
            status =
                tn_fail(TN_E_FORMAT, "%s: tensor '%s' is damaged: element %lld is %s", tn_gguf_path(file), t->name,
                        (long long)(first * t->ne[0] + i), isnan(values[i]) ? "not a number" : "infinite");
    tn_free(raw);
    if (status == TN_OK)
        *out = values;
    else
        tn_free(values);
    return status;
}

tn_status tn__adapter_values(const tn_gguf *file, const tn_gguf_tensor *t, float **values) {
    return read_low_rank_rows(file, t, 0, t->ne[1] * t->ne[2] * t->ne[3], values);
}

/* ---- Opening ---- */

static tn_status check_adapter_keys(tn_adapter *x) {
    const char *path = tn_gguf_path(x->file);
    const char *type = tn_gguf_get_cstr(x->file, "general.type", ""),
               *kind = tn_gguf_get_cstr(x->file, "adapter.type", ""),
               *arch = tn_gguf_get_cstr(x->file, "general.architecture", "");
    if (strcmp(type, "adapter") != 0)
        return tn_fail(TN_E_FORMAT, "%s is not an adapter: its general.type is '%.40s'", path, type);
    if (strcmp(kind, "lora") != 0)
        return tn_fail(TN_E_UNSUPPORTED, "%s: adapters of the type '%.40s' are not supported, only lora", path, kind);
    if (strcmp(arch, x->model->arch->info.name) != 0)
        return tn_fail(TN_E_FORMAT, "%s adapts models of the architecture '%.40s'; the model is %s", path, arch,
                       x->model->arch->info.name);
    if (tn_gguf_find(x->file, "adapter.alora.invocation_tokens"))
        return tn_fail(TN_E_UNSUPPORTED, "%s: activated LoRA (adapter.alora.invocation_tokens) is not supported",
                       path);
    x->alpha = tn_gguf_get_f32(x->file, "adapter.lora.alpha", 0);
    if (!isfinite(x->alpha)) return tn_fail(TN_E_FORMAT, "%s: adapter.lora.alpha is %g", path, (double)x->alpha);
    return TN_OK;
}

/* The length of the weight's name in "NAME.lora_a" or "NAME.lora_b", and which; 0 for other names. */
static size_t split_matrix_name(const char *name, char *which) {
    enum { ENDING = sizeof ".lora_a" - 1 };
    const size_t length = strlen(name);
    if (length <= ENDING || strncmp(name + length - ENDING, ".lora_", ENDING - 1) != 0) return 0;
    *which = name[length - 1];
    return *which == 'a' || *which == 'b' ? length - ENDING : 0;
}

static tn_status find_adapted_weight(const tn_adapter *x, const char *name, size_t length, size_t *number) {
    const tn_model *m = x->model;
    for (size_t i = 0; i < m->n_all; i++) {
        const char *weight = m->all[i].info->name;
        if (strncmp(weight, name, length) != 0 || weight[length]) continue;
        *number = i;
        return m->all[i].ignored
                   ? tn_fail(TN_E_UNSUPPORTED, "%s: tensor '%s' adapts a weight that no graph of %s uses",
                             tn_gguf_path(x->file), name, m->arch->info.name)
                   : TN_OK;
    }
    return tn_fail(TN_E_FORMAT, "%s: tensor '%s' adapts a weight that the model does not have", tn_gguf_path(x->file),
                   name);
}

/* The file's tensors by weight, in the order of the first of each. */
static tn_status pair_matrices(tn_adapter *x) {
    const uint64_t n = tn_gguf_tensor_count(x->file);
    x->pairs = tn_calloc((size_t)n + 1, sizeof *x->pairs);
    size_t *pair_of = tn_calloc(x->model->n_all + 1, sizeof *pair_of); /* counted from 1 */
    tn_status status = x->pairs && pair_of ? TN_OK : TN_E_NOMEM;
    for (uint64_t i = 0; i < n && status == TN_OK; i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(x->file, i);
        char which;
        size_t weight = 0;
        const size_t length = split_matrix_name(t->name, &which);
        if (!length) {
            status = tn_fail(TN_E_UNSUPPORTED,
                             "%s: tensor '%s' is neither NAME.lora_a nor NAME.lora_b: adapters that replace or add "
                             "other tensors are not supported",
                             tn_gguf_path(x->file), t->name);
            continue;
        }
        status = find_adapted_weight(x, t->name, length, &weight);
        if (status != TN_OK) continue;
        if (!pair_of[weight]) {
            x->pairs[x->n_pairs] = (tn__low_rank){.weight = weight};
            pair_of[weight] = ++x->n_pairs;
        }
        tn__low_rank *pair = &x->pairs[pair_of[weight] - 1];
        const tn_gguf_tensor **matrix = which == 'a' ? &pair->a : &pair->b;
        if (*matrix) status = tn_fail(TN_E_FORMAT, "%s has two tensors '%s'", tn_gguf_path(x->file), t->name);
        *matrix = t;
    }
    tn_free(pair_of);
    if (status == TN_OK && !x->n_pairs) status = tn_fail(TN_E_FORMAT, "%s adapts no weights", tn_gguf_path(x->file));
    return status;
}

/* One matrix for all experts or heads of a weight, or one for each. */
static bool suits_outer(const tn_gguf_tensor *matrix, const tn_gguf_tensor *weight) {
    return (matrix->ne[2] == 1 || matrix->ne[2] == weight->ne[2]) && matrix->ne[3] == 1 && weight->ne[3] == 1;
}

static tn_status check_pair(const tn_adapter *x, tn__low_rank *p) {
    const tn__weight *weight = &x->model->all[p->weight];
    const tn_gguf_tensor *w = weight->info;
    if (!p->a || !p->b)
        return tn_fail(TN_E_FORMAT, "%s: tensor '%s.lora_%c' is missing", tn_gguf_path(x->file), w->name,
                       p->a ? 'b' : 'a');
    p->lookup = weight->tensor == x->model->w.tok_embd;
    const tn_gguf_tensor *a = p->a, *b = p->b;
    const int64_t rank = b->ne[0], in = p->lookup ? rank : w->ne[0], rows = p->lookup ? w->ne[1] : rank,
                  out = p->lookup ? w->ne[0] : w->ne[1];
    const bool suits = rank > 0 && rank <= INT32_MAX / 2 && a->ne[0] == in && a->ne[1] == rows && b->ne[1] == out &&
                       suits_outer(a, w) && suits_outer(b, w);
    if (!suits)
        return tn_fail(TN_E_SHAPE,
                       "%s: lora_a [%lld,%lld,%lld] and lora_b [%lld,%lld,%lld] do not suit the weight '%s' "
                       "[%lld,%lld,%lld]",
                       tn_gguf_path(x->file), (long long)a->ne[0], (long long)a->ne[1], (long long)a->ne[2],
                       (long long)b->ne[0], (long long)b->ne[1], (long long)b->ne[2], w->name, (long long)w->ne[0],
                       (long long)w->ne[1], (long long)w->ne[2]);
    p->rank = (int32_t)rank;
    return TN_OK;
}

/* Reads every value: for the hash, and so that a damaged file is an error now. */
static tn_status hash_matrix(tn_adapter *x, const tn_gguf_tensor *t) {
    float *values;
    TN_TRY(tn__adapter_values(x->file, t, &values));
    x->hash = tn__hash_bytes(t->name, strlen(t->name), x->hash);
    x->hash = tn__hash_bytes(t->ne, sizeof t->ne, x->hash);
    x->hash = tn__hash_bytes(values, (size_t)(t->ne[0] * t->ne[1] * t->ne[2]) * sizeof *values, x->hash);
    tn_free(values);
    return TN_OK;
}

static tn_status open_adapter(tn_adapter *x, const char *path) {
    TN_TRY(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &x->file));
    TN_TRY(check_adapter_keys(x));
    TN_TRY(pair_matrices(x));
    x->hash = tn__hash_bytes(&x->alpha, sizeof x->alpha, 0);
    for (size_t i = 0; i < x->n_pairs; i++) {
        TN_TRY(check_pair(x, &x->pairs[i]));
        TN_TRY(hash_matrix(x, x->pairs[i].a));
        TN_TRY(hash_matrix(x, x->pairs[i].b));
    }
    return TN_OK;
}

tn_status tn_adapter_open(const tn_model *model, const char *path, tn_adapter **out) {
    if (!model || !path || !out) return tn_fail(TN_E_INVALID, "tn_adapter_open: NULL argument");
    *out = NULL;
    if (model->params.vocab_only) return tn_fail(TN_E_STATE, "the model was opened for its vocabulary only");
    tn_adapter *x = tn_calloc(1, sizeof *x);
    if (!x) return TN_E_NOMEM;
    x->model = model;
    const tn_status status = open_adapter(x, path);
    if (status != TN_OK)
        tn_adapter_close(x);
    else
        *out = x;
    return status;
}

void tn_adapter_close(tn_adapter *x) {
    if (!x) return;
    tn_gguf_close(x->file);
    tn_free(x->pairs);
    tn_free(x);
}

tn_adapter_info tn_adapter_get_info(const tn_adapter *x) {
    tn_adapter_info info = {.path = tn_gguf_path(x->file),
                            .name = tn_gguf_get_cstr(x->file, "general.name", ""),
                            .alpha = x->alpha,
                            .n_weights = x->n_pairs,
                            .hash = x->hash};
    for (size_t i = 0; i < x->n_pairs; i++) {
        info.rank = TN__MAX(info.rank, x->pairs[i].rank);
        info.bytes += x->pairs[i].a->size + x->pairs[i].b->size;
    }
    return info;
}

const char *tn_adapter_weight(const tn_adapter *x, size_t i) {
    return x && i < x->n_pairs ? x->model->all[x->pairs[i].weight].info->name : NULL;
}

/* ---- Merging ---- */

/* Adds to rows first … first+n-1 of one matrix of a weight. */
static tn_status merge_rows(const tn_adapter *x, const tn__low_rank *p, float scale, int64_t matrix, int64_t first,
                            int64_t n, float *values) {
    const tn_gguf_tensor *w = x->model->all[p->weight].info;
    const int64_t columns = w->ne[0], rank = p->rank;
    const int64_t of_a = (p->a->ne[2] > 1 ? matrix : 0) * p->a->ne[1],
                  of_b = (p->b->ne[2] > 1 ? matrix : 0) * p->b->ne[1];
    float *a = NULL, *b = NULL;
    tn_status status = read_low_rank_rows(x->file, p->a, of_a + (p->lookup ? first : 0), p->lookup ? n : rank, &a);
    if (status == TN_OK)
        status = read_low_rank_rows(x->file, p->b, of_b + (p->lookup ? 0 : first), p->lookup ? columns : n, &b);
    for (int64_t i = 0; status == TN_OK && i < n; i++)
        for (int64_t k = 0; k < rank; k++) {
            float *row = values + i * columns;
            const float factor = scale * (p->lookup ? a : b)[i * rank + k];
            if (p->lookup)
                for (int64_t e = 0; e < columns; e++) row[e] += factor * b[e * rank + k];
            else
                for (int64_t e = 0; e < columns; e++) row[e] += factor * a[k * columns + e];
        }
    tn_free(a);
    tn_free(b);
    return status;
}

tn_status tn_adapter_merge(const tn_adapter *x, const char *weight, float scale, int64_t begin, int64_t n,
                           float *values) {
    if (!x || !weight || !values) return tn_fail(TN_E_INVALID, "tn_adapter_merge: NULL argument");
    const tn__low_rank *p = NULL;
    for (size_t i = 0; i < x->n_pairs && !p; i++)
        if (strcmp(tn_adapter_weight(x, i), weight) == 0) p = &x->pairs[i];
    if (!p) return TN_OK;
    const tn_gguf_tensor *w = x->model->all[p->weight].info;
    if (begin < 0 || n < 0 || begin % w->ne[0] || n % w->ne[0] || n > w->ne[0] * w->ne[1] * w->ne[2] - begin)
        return tn_fail(TN_E_INVALID, "elements %lld to %lld are not whole rows of '%s'", (long long)begin,
                       (long long)(begin + n), weight);
    const int64_t end = (begin + n) / w->ne[0];
    for (int64_t row = begin / w->ne[0], count; row < end; row += count, values += count * w->ne[0]) {
        const int64_t matrix = row / w->ne[1], first = row % w->ne[1];
        count = TN__MIN(end - row, w->ne[1] - first);
        TN_TRY(merge_rows(x, p, scale * tn__low_rank_factor(x, p), matrix, first, count, values));
    }
    return TN_OK;
}

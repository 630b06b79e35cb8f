/* Adapters in graphs: what low-rank matrices add to a matmul, each row with the scale of its sequence. */
#include "llm/build/builder.h"

/* The column of an adapter in the input of scales: adapters of the graph count from the lowest on. */
static size_t scale_column(const tn__builder *b, uint32_t adapter) {
    return (size_t)__builtin_popcount(b->set->shape.adapters & (((uint32_t)1 << adapter) - 1));
}

/* The scales of an adapter for the rows of x, of which there are n: [1, n]. NULL: these are not rows of tokens. */
static tn_tensor *build_row_scales(const tn__builder *b, uint32_t adapter, int64_t n) {
    const tn__shape shape = b->set->shape;
    const int64_t whole = b->chunk_of ? b->chunk_of : n, begin = b->chunk_of ? b->chunk_begin : 0;
    tn_tensor *all = tn__builder_input(b, TN__INPUT_ADAPTER_SCALES), *rows;
    const size_t column = scale_column(b, adapter);
    if (!all || (whole != shape.n_tokens && whole != shape.n_outputs)) return NULL;
    rows = tn_view(b->a, all, 2, (const int64_t[]){1, shape.n_tokens}, (const size_t[]){4, 4},
                   column * (size_t)shape.n_tokens * 4);
    if (whole != shape.n_tokens) {
        tn_tensor **wanted = &b->wanted_scales[column];
        if (!*wanted) *wanted = tn_get_rows(b->a, rows, tn__builder_input(b, TN__INPUT_OUTPUT_ROWS));
        rows = *wanted;
    }
    if (n == whole || !rows) return rows;
    return tn_view(b->a, rows, 2, (const int64_t[]){1, n}, (const size_t[]){4, 4}, (size_t)begin * 4);
}

/* Calls for what the graph's adapters change in a weight, in the order of the adapters. */
typedef tn_tensor *(*delta_fn)(const tn__builder *b, const tn__adapted_weight *w, tn_tensor *scales, tn_tensor *x,
                               tn_tensor *ids, const char *what);

static tn_tensor *add_deltas(const tn__builder *b, const tn_tensor *weight, tn_tensor *x, tn_tensor *ids,
                             int64_t rows, tn_tensor *y, const char *what, delta_fn delta) {
    size_t n = 0;
    if (!b->set->shape.adapters || !x || !y) return y;
    tn__adapted_weight *list = tn__adapters_of(&b->plan->adapters, weight, &n);
    for (size_t i = 0; i < n; i++) {
        if (!(b->set->shape.adapters >> list[i].adapter & 1)) continue;
        tn_tensor *scales = build_row_scales(b, list[i].adapter, rows);
        tn_tensor *added = scales ? delta(b, &list[i], scales, x, ids, what) : NULL;
        if (!added) continue; /* tn__adapters_check_applied reports it */
        list[i].applied = true;
        y = tn_name(b->a, tn_add(b->a, y, added), "%s_adapted%u%s", what, list[i].adapter, b->suffix);
    }
    return y;
}

static tn_tensor *scale_low(const tn__builder *b, const tn__adapted_weight *w, tn_tensor *low, tn_tensor *scales,
                            const char *what) {
    low = tn_mul(b->a, tn_name(b->a, low, "%s_low%u%s", what, w->adapter, b->suffix), scales);
    if (w->factor != 1) low = tn_scale(b->a, low, w->factor, 0);
    return low ? tn_name(b->a, low, "%s_low_scaled%u%s", what, w->adapter, b->suffix) : NULL;
}
static tn_tensor *name_delta(const tn__builder *b, const tn__adapted_weight *w, tn_tensor *delta, const char *what) {
    return delta ? tn_name(b->a, delta, "%s_delta%u%s", what, w->adapter, b->suffix) : NULL;
}

static tn_tensor *linear_delta(const tn__builder *b, const tn__adapted_weight *w, tn_tensor *scales, tn_tensor *x,
                               tn_tensor *ids, const char *what) {
    (void)ids;
    tn_tensor *low = scale_low(b, w, tn_mul_mat(b->a, w->a, x), scales, what);
    return name_delta(b, w, tn_mul_mat(b->a, w->b, low), what);
}
static tn_tensor *expert_delta(const tn__builder *b, const tn__adapted_weight *w, tn_tensor *scales, tn_tensor *x,
                               tn_tensor *ids, const char *what) {
    if (w->a->ne[2] != w->weight->ne[2] || w->b->ne[2] != w->weight->ne[2]) return NULL;
    tn_tensor *low = tn_mul_mat_id(b->a, w->a, x, ids);
    low = scale_low(b, w, low, tn_reshape(b->a, scales, 1, 1, scales->ne[1]), what);
    return name_delta(b, w, tn_mul_mat_id(b->a, w->b, low, ids), what);
}
static tn_tensor *lookup_delta(const tn__builder *b, const tn__adapted_weight *w, tn_tensor *scales, tn_tensor *x,
                               tn_tensor *ids, const char *what) {
    (void)ids;
    tn_tensor *low = scale_low(b, w, tn_get_rows(b->a, w->a, x), scales, what);
    return name_delta(b, w, tn_mul_mat(b->a, w->b, low), what);
}

bool tn__is_adapted(const tn__builder *b, const tn_tensor *weight) {
    size_t n = 0;
    const tn__adapted_weight *list = b->set->shape.adapters ? tn__adapters_of(&b->plan->adapters, weight, &n) : NULL;
    for (size_t i = 0; i < n; i++)
        if (b->set->shape.adapters >> list[i].adapter & 1 && !list[i].pair->lookup) return true;
    return false;
}

tn_tensor *tn__adapt_linear(const tn__builder *b, const tn_tensor *w, tn_tensor *x, tn_tensor *y, const char *what) {
    return tn__is_adapted(b, w) ? add_deltas(b, w, x, NULL, x ? x->ne[1] : 0, y, what, linear_delta) : y;
}
tn_tensor *tn__adapt_experts(const tn__builder *b, const tn_tensor *w, tn_tensor *x, tn_tensor *ids, tn_tensor *y,
                             const char *what) {
    return tn__is_adapted(b, w) ? add_deltas(b, w, x, ids, x ? x->ne[2] : 0, y, what, expert_delta) : y;
}
tn_tensor *tn__adapt_lookup(const tn__builder *b, const tn_tensor *w, tn_tensor *tokens, tn_tensor *y,
                            const char *what) {
    return add_deltas(b, w, tokens, NULL, tokens ? tokens->ne[0] : 0, y, what, lookup_delta);
}

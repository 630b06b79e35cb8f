/* What the parts of a graph are made of: inputs, names, norms, linear layers. */
#include "llm/build/builder.h"

tn_tensor *tn__builder_input(const tn__builder *b, tn__input source) {
    return tn__input_tensor(&b->set->inputs, source);
}

tn_tensor *tn__name_node(const tn__builder *b, tn_tensor *t, const char *what) {
    return t && !t->name[0] ? tn_name(b->a, t, "%s%s", what, b->suffix) : t;
}

void tn__append_now(tn__builder *b, tn_tensor *t) {
    if (t && b->status == TN_OK) b->status = tn_graph_add(b->graph, t);
}

tn_tensor *tn__build_norm(const tn__builder *b, tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return !b->h->layer_norm ? tn_rms_norm(b->a, x, weight, b->h->norm_eps)
                             : tn_norm(b->a, x, weight, bias, b->h->norm_eps);
}

tn_tensor *tn__build_post_norm(const tn__builder *b, tn_tensor *x, tn_tensor *weight) {
    const float eps = b->h->post_norm_eps;
    return eps > 0 && !b->h->layer_norm ? tn_rms_norm(b->a, x, weight, eps) : tn__build_norm(b, x, weight, NULL);
}

tn_tensor *tn__finish_linear(const tn__builder *b, tn_tensor *w, tn_tensor *x, tn_tensor *y, tn_tensor *scale,
                             tn_tensor *bias, const char *what) {
    const bool adapted = tn__is_adapted(b, w);
    if (!scale && !bias && !adapted) return tn__name_node(b, y, what);
    if (y) tn_name(b->a, y, "%s_matmul%s", what, b->suffix);
    if (scale) y = tn_mul(b->a, y, scale);
    if (scale && (bias || adapted) && y) tn_name(b->a, y, "%s_scaled%s", what, b->suffix);
    if (adapted) y = tn__adapt_linear(b, w, x, y, what);
    return tn__name_node(b, bias ? tn_add(b->a, y, bias) : y, what);
}
tn_tensor *tn__build_linear(const tn__builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias, tn_tensor *x,
                            const char *what) {
    return tn__finish_linear(b, w, x, tn_mul_mat(b->a, w, x), scale, bias, what);
}
tn_tensor *tn__build_scaled(const tn__builder *b, tn_tensor *x, float scale) {
    return scale != 0 && scale != 1 ? tn_scale(b->a, x, scale, 0) : x;
}

tn_tensor *tn__build_columns(const tn__builder *b, tn_tensor *x, int64_t begin, int64_t n) {
    if (!x) return NULL;
    return tn_view(b->a, x, 2, (const int64_t[]){n, x->ne[1]}, (const size_t[]){4, x->nb[1]}, (size_t)begin * 4);
}

tn_tensor *tn__layer_state(const tn__builder *b, int32_t il, int number) {
    return b->plan->kv.layers[il].state[number];
}

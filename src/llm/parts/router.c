/* The MoE router: which experts a token uses, and with which weights. */
#include "llm/build/builder.h"

/* Experts are ranked within the highest groups only. A group ranks by the sum of its two highest experts. */
static tn_tensor *build_group_choice(const tn__builder *b, tn_tensor *ranked) {
    const tn__hparams *h = b->h;
    tn_arena *a = b->a;
    const int64_t tokens = ranked->ne[1], groups = h->n_expert_groups, size = h->n_expert / groups;
    const int top = size > 1 ? 2 : 1;
    tn_tensor *in_groups = tn_reshape(a, ranked, size, groups, tokens);
    tn_tensor *ids = tn_reshape(a, tn_top_k(a, in_groups, top), top, groups * tokens);
    tn_tensor *sums = tn_get_rows(a, tn_reshape(a, ranked, 1, size, groups * tokens), ids);
    sums = tn_reshape(a, tn_sum_rows(a, tn_reshape(a, sums, top, groups, tokens)), groups, tokens);
    /* The sum of the last group in use is the least that a group needs. */
    tn_tensor *used = tn_top_k(a, sums, h->n_groups_used);
    tn_tensor *last = tn__build_columns(b, used, h->n_groups_used - 1, 1);
    tn_tensor *least = tn_get_rows(a, tn_reshape(a, sums, 1, groups, tokens), tn_cont(a, last));
    tn_tensor *worse = tn_step(a, tn_neg(a, tn_sub(a, sums, tn_reshape(a, least, 1, tokens))));
    tn_tensor *penalty = tn_reshape(a, tn_scale(a, worse, -1e30f, 0), 1, groups, tokens);
    return tn__name_node(b, tn_reshape(a, tn_add(a, in_groups, penalty), h->n_expert, tokens), "grouped_probs");
}

/* Elements of rows of x by their numbers, i32[n, tokens] → [n, tokens]. */
static tn_tensor *build_elements(const tn__builder *b, tn_tensor *x, tn_tensor *ids) {
    if (!x || !ids) return NULL;
    return tn_reshape(b->a, tn_get_rows(b->a, tn_reshape(b->a, x, 1, x->ne[0], x->ne[1]), ids), ids->ne[0], x->ne[1]);
}

/* The weight of the highest of `candidates`, number `id`: the softmax over those that are close to it. Others are
 * less by more than a share of the larger of both. */
static tn_tensor *build_mixed_weight(const tn__builder *b, tn_tensor *logits, tn_tensor *candidates, tn_tensor *id) {
    enum { JITTER_PERCENT = 1 };
    tn_arena *a = b->a;
    tn_tensor *top = build_elements(b, logits, id);
    tn_tensor *above = tn_relu(a, tn_sub(a, tn_abs(a, logits), top)); /* max(|x|, top) − top */
    tn_tensor *distance = tn_neg(a, tn_div(a, tn_sub(a, logits, top), tn_add(a, above, top)));
    tn_tensor *far = tn_step(a, tn_scale(a, distance, 1, -2 * JITTER_PERCENT / 100.0f));
    tn_tensor *close = tn_add(a, candidates, tn_scale(a, far, -1e30f, 0));
    return build_elements(b, tn_soft_max(a, close, NULL, NULL, 1, 0), id);
}

/* SparseMixer: two experts. Each has the weight that a softmax gives it over the experts close to it, for the second
 * without the first. */
static tn__expert_choice build_sparse_mixer(const tn__builder *b, tn_tensor *logits) {
    tn_arena *a = b->a;
    tn__expert_choice c = {.ids = tn__name_node(b, tn_top_k(a, logits, 2), "experts")};
    tn_tensor *first = tn_cont(a, tn__build_columns(b, c.ids, 0, 1));
    tn_tensor *second = tn_cont(a, tn__build_columns(b, c.ids, 1, 1));
    tn_tensor *least = build_elements(b, logits, first);
    tn_tensor *below = tn_step(a, tn_neg(a, tn_sub(a, logits, least)));
    tn_tensor *others = tn_add(a, logits, tn_scale(a, below, 1e30f, -1e30f));
    c.weights =
        tn_concat(a, build_mixed_weight(b, logits, logits, first), build_mixed_weight(b, logits, others, second), 0);
    c.weights = tn__name_node(b, c.weights, "expert_weights");
    return c;
}

tn__expert_choice tn__build_choice(const tn__builder *b, const tn__layer *l, tn_tensor *logits) {
    const tn__hparams *h = b->h;
    tn_arena *a = b->a;
    tn__expert_choice c = {NULL, NULL, NULL};
    if (!logits) return c;
    if (h->gating == TN__GATING_SPARSE_MIXER) return build_sparse_mixer(b, logits);
    tn_tensor *probs = logits;
    if (h->gating == TN__GATING_SOFTMAX) probs = tn_soft_max(a, logits, NULL, NULL, 1, 0);
    if (h->gating == TN__GATING_SIGMOID) probs = tn_sigmoid(a, logits);
    c.probs = probs = tn__name_node(b, probs, "router_probs");
    tn_tensor *ranked = l->router_bias ? tn_add(a, probs, l->router_bias) : probs;
    if (h->n_expert_groups > 1 && ranked) ranked = build_group_choice(b, ranked);
    c.ids = tn__name_node(b, tn_top_k(a, ranked, h->n_expert_used), "experts");
    c.weights = build_elements(b, probs, c.ids);
    if (h->gating == TN__GATING_SOFTMAX_OF_CHOSEN) c.weights = tn_soft_max(a, c.weights, NULL, NULL, 1, 0);
    c.weights = tn__build_expert_weights(b, c.weights);
    return c;
}

tn_tensor *tn__build_expert_weights(const tn__builder *b, tn_tensor *weights) {
    if (b->h->norm_expert_weights) weights = tn_div(b->a, weights, tn_sum_rows(b->a, weights));
    return tn__name_node(b, tn__build_scaled(b, weights, b->h->expert_scale), "expert_weights");
}

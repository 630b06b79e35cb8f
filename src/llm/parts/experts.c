/* A mixture of experts as the feed-forward part of a layer. */
#include "llm/build/builder.h"

/* The matmul of the chosen experts, with the scale and bias of each. */
static tn_tensor *build_expert_linear(const tn__builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias,
                                      tn_tensor *x, tn_tensor *ids, const char *what) {
    tn_tensor *y = tn_mul_mat_id(b->a, w, x, ids);
    if (!b->arch->ffn_scales) scale = NULL;
    if (scale || bias) tn_name(b->a, y, "%s_matmul%s", what, b->suffix);
    if (scale && y) {
        int64_t used = ids->ne[0], tokens = ids->ne[1];
        tn_tensor *s = tn_get_rows(b->a, tn_reshape(b->a, scale, 1, scale->ne[0]),
                                   tn_reshape(b->a, tn_cont(b->a, ids), used * tokens));
        y = tn_mul(b->a, y, tn_reshape(b->a, s, 1, used, tokens));
        if (bias) tn_name(b->a, y, "%s_scaled%s", what, b->suffix);
    }
    if (bias) y = tn_add_id(b->a, y, bias, ids);
    return tn__name_node(b, y, what);
}

tn_tensor *tn__build_experts(const tn__builder *b, const tn__layer *l, tn_tensor *x) {
    const tn__hparams *h = b->h;
    tn_arena *a = b->a;
    if (!x) return NULL;
    int64_t tokens = x->ne[1], used = h->n_expert_used;
    tn_tensor *logits = tn__build_linear(b, l->router, NULL, l->router_b, x, "router"), *probs = logits;
    if (h->gating == TN__GATING_SOFTMAX) probs = tn_soft_max(a, logits, NULL, NULL, 1, 0);
    if (h->gating == TN__GATING_SIGMOID) probs = tn_sigmoid(a, logits);
    probs = tn__name_node(b, probs, "router_probs");
    tn_tensor *ranked = l->router_bias ? tn_add(a, probs, l->router_bias) : probs;
    tn_tensor *ids = tn__name_node(b, tn_top_k(a, ranked, h->n_expert_used), "experts");
    tn_tensor *weights =
        tn_reshape(a, tn_get_rows(a, tn_reshape(a, probs, 1, h->n_expert, tokens), ids), used, tokens);
    if (h->gating == TN__GATING_SOFTMAX_OF_CHOSEN) weights = tn_soft_max(a, weights, NULL, NULL, 1, 0);
    if (h->norm_expert_weights) weights = tn_div(a, weights, tn_sum_rows(a, weights));
    weights = tn__name_node(b, tn__build_scaled(b, weights, h->expert_scale), "expert_weights");

    tn_tensor *row = tn_reshape(a, x, h->n_embd, 1, tokens);
    tn_tensor *up = build_expert_linear(b, l->up_exps, l->up_exps_s, l->up_exps_b, row, ids, "ffn_up");
    tn_tensor *y =
        l->gate_exps
            ? tn__build_gated(
                  b, build_expert_linear(b, l->gate_exps, l->gate_exps_s, l->gate_exps_b, row, ids, "ffn_gate"), up)
            : tn__build_activation(b, l, up);
    y = build_expert_linear(b, l->down_exps, l->down_exps_s, l->down_exps_b, y, ids, "ffn_down");
    y = tn__name_node(b, tn_mix(a, y, weights), l->up_shexp ? "ffn_mix" : "ffn_out");
    if (l->up_shexp) {
        tn_tensor *inner =
            tn__build_gated(b, tn__build_ffn_linear(b, l->gate_shexp, l->gate_shexp_s, NULL, x, "shared_gate"),
                            tn__build_ffn_linear(b, l->up_shexp, l->up_shexp_s, NULL, x, "shared_up"));
        tn_tensor *shared = tn__build_ffn_linear(b, l->down_shexp, l->down_shexp_s, NULL, inner, "shared_out");
        if (l->shared_router) {
            tn_tensor *router = tn_reshape(a, l->shared_router, h->n_embd, 1);
            tn_tensor *gate = tn_sigmoid(a, tn__name_node(b, tn_mul_mat(a, router, x), "shared_router"));
            shared = tn_mul(a, shared, gate);
        }
        y = tn__name_node(b, tn_add(a, y, shared), "ffn_out");
    }
    return y;
}

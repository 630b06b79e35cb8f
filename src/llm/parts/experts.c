/* A mixture of experts as the feed-forward part of a layer. parts/router.c chooses them. */
#include "llm/build/builder.h"

#include "base/checked.h"

/* The matmul of the chosen experts, with the scale and bias of each. `ids` counts this rank's experts, whose matrices
 * and biases it has; scales are those of all. */
static tn_tensor *build_expert_linear(const tn__builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias,
                                      tn_tensor *x, tn_tensor *all_ids, tn_tensor *ids, const char *what) {
    tn_tensor *y = tn_mul_mat_id(b->a, w, x, ids);
    const bool adapted = tn__is_adapted(b, w);
    if (!b->arch->ffn_scales) scale = NULL;
    if (scale || bias || adapted) tn_name(b->a, y, "%s_matmul%s", what, b->suffix);
    if (scale && y) {
        int64_t used = ids->ne[0], tokens = ids->ne[1];
        tn_tensor *s = tn_get_rows(b->a, tn_reshape(b->a, scale, 1, scale->ne[0]),
                                   tn_reshape(b->a, tn_cont(b->a, all_ids), used * tokens));
        y = tn_mul(b->a, y, tn_reshape(b->a, s, 1, used, tokens));
        if (bias || adapted) tn_name(b->a, y, "%s_scaled%s", what, b->suffix);
    }
    if (adapted) y = tn__adapt_experts(b, w, x, ids, y, what);
    if (bias) y = tn_add_id(b->a, y, bias, ids);
    return tn__name_node(b, y, what);
}

/* The activation between the matrices of the chosen experts. */
static tn_tensor *build_expert_activation(const tn__builder *b, int32_t il, tn_tensor *x, tn_tensor *all_ids,
                                          tn_tensor *ids) {
    const tn__layer *l = &b->m->w.layers[il];
    if (l->gate_up_exps)
        return tn__build_gated(
            b, build_expert_linear(b, l->gate_up_exps, l->up_exps_s, NULL, x, all_ids, ids, "ffn_gate_up"), NULL, 0);
    tn_tensor *up = build_expert_linear(b, l->up_exps, l->up_exps_s, l->up_exps_b, x, all_ids, ids, "ffn_up");
    if (!l->gate_exps) return tn__build_activation(b, l, up);
    return tn__build_gated(
        b, build_expert_linear(b, l->gate_exps, l->gate_exps_s, l->gate_exps_b, x, all_ids, ids, "ffn_gate"), up,
        b->h->layers[il].swiglu_limit);
}

/* The expert that every token uses. */
static tn_tensor *build_shared_expert(const tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    tn_tensor *up = tn__build_ffn_linear(b, l->up_shexp, l->up_shexp_s, NULL, x, "shared_up");
    tn_tensor *inner =
        l->gate_shexp
            ? tn__build_gated(b, tn__build_ffn_linear(b, l->gate_shexp, l->gate_shexp_s, NULL, x, "shared_gate"), up,
                              b->h->layers[il].swiglu_limit_shared)
            : tn__build_activation(b, l, up);
    tn_tensor *y = tn__build_ffn_linear(b, l->down_shexp, l->down_shexp_s, NULL, inner, "shared_out");
    if (!l->shared_router) return y;
    tn_tensor *router = tn_reshape(a, l->shared_router, b->h->n_embd, 1);
    tn_tensor *gate = tn_sigmoid(a, tn__name_node(b, tn_mul_mat(a, router, x), "shared_router"));
    return tn_mul(a, y, gate);
}

/* Small experts, one for each group of the others, which read the sum of those. A group is in use where one of its
 * experts is; its weight is that of the expert with its number, as other programs have it. */
static tn_tensor *build_chunk_experts(const tn__builder *b, const tn__layer *l, tn_tensor *x,
                                      const tn__expert_choice *choice) {
    const tn__hparams *h = b->h;
    tn_arena *a = b->a;
    if (!x || !choice->ids) return NULL;
    const int64_t tokens = x->ne[1], used = TN__MIN(h->n_expert_used, h->n_expert / h->experts_per_group);
    tn_tensor *ids =
        used == choice->ids->ne[0] ? choice->ids : tn_cont(a, tn__build_columns(b, choice->ids, 0, used));
    if (h->experts_per_group > 1) { /* ⌊id / size⌋ */
        const float share = 1.0f / (float)h->experts_per_group;
        ids = tn_cast(a, tn_scale(a, tn_cast(a, ids, TN_F32), share, 0.5f * share), TN_I32);
    }
    ids = tn__name_node(b, ids, "expert_chunks");
    tn_tensor *weights = tn_reshape(a, choice->probs, 1, h->n_expert, tokens);
    weights = tn__build_expert_weights(b, tn_reshape(a, tn_get_rows(a, weights, ids), used, tokens));
    tn_tensor *row = tn_reshape(a, x, h->n_embd, 1, tokens);
    tn_tensor *up = build_expert_linear(b, l->up_chexps, NULL, NULL, row, ids, ids, "chunk_up");
    tn_tensor *y =
        tn__build_gated(b, build_expert_linear(b, l->gate_chexps, NULL, NULL, row, ids, ids, "chunk_gate"), up, 0);
    y = tn_mix(a, build_expert_linear(b, l->down_chexps, NULL, NULL, y, ids, ids, "chunk_down"), weights);
    return tn__name_node(b, tn_add(a, x, tn__build_scaled(b, y, h->expert_group_scale)), "ffn_chunks");
}

tn__part_result tn__build_experts_part(const tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__part_result none = {NULL, false};
    const tn__hparams *h = b->h;
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    if (!x) return none;
    const int64_t tokens = x->ne[1];
    tn_tensor *logits =
        tn__build_linear(b, l->router, NULL, l->router_b, b->router_input ? b->router_input : x, "router");
    const tn__expert_choice c = tn__build_choice(b, l, logits);
    tn_tensor *in = l->latent_down ? tn__build_linear(b, l->latent_down, NULL, NULL, x, "experts_latent") : x;
    if (!in) return none;
    const int64_t width = in->ne[0];
    tn_tensor *row = tn_reshape(a, in, width, 1, tokens), *weights = c.weights;
    if (b->arch->weights_before) {
        const int64_t each[] = {width, h->n_expert_used, tokens, 1};
        row = tn_mul(a, tn_repeat(a, row, each), tn_reshape(a, weights, 1, h->n_expert_used, tokens));
        row = tn__name_node(b, row, "experts_in");
        weights = tn_scale(a, weights, 0, 1);
    }
    const tn__layer_division *division = tn__division_of(b, il);
    /* What follows the sum needs all of it. */
    const bool sum_now = l->up_chexps || l->latent_norm || l->latent_up || (l->up_shexp && !division->shared);
    tn_tensor *ids = tn__own_experts(b, il, c.ids);
    tn_tensor *y = build_expert_activation(b, il, row, c.ids, ids);
    y = build_expert_linear(b, l->down_exps, l->down_exps_s, l->down_exps_b, y, c.ids, ids, "ffn_down");
    y = tn__name_node(b, tn_mix(a, y, weights), l->up_shexp || l->latent_up ? "ffn_mix" : "ffn_out");
    y = tn__sum_ranks(b, division->experts && sum_now, y, "ffn_mix");
    if (l->up_chexps) y = build_chunk_experts(b, l, y, &c);
    if (l->latent_norm) y = tn__name_node(b, tn__build_norm(b, y, l->latent_norm, NULL), "experts_norm");
    if (l->latent_up) y = tn__build_linear(b, l->latent_up, NULL, NULL, y, "experts_up");
    if (l->up_shexp) y = tn__name_node(b, tn_add(a, y, build_shared_expert(b, il, x)), "ffn_out");
    return (tn__part_result){y, division->experts && !sum_now};
}

tn_tensor *tn__build_experts(const tn__builder *b, int32_t il, tn_tensor *x) {
    return tn__sum_result(b, tn__build_experts_part(b, il, x), "ffn_out");
}

/* Attention residuals: a part of a layer reads a mixture of the current state and of states kept from earlier layers.
 *
 * Layer 0 and every residual_block-th after it keep the state before them, and the state starts again from what their
 * mixer gives. The weights of the mixture are the soft-max over scores of the normalised states. b->shared holds the
 * kept states, [width, kept, tokens]. */
#include "llm/parts/mixers.h"

static tn_tensor *with_kept_states(const tn__builder *b, tn_tensor *x) {
    if (!x) return NULL;
    tn_tensor *own = tn_reshape(b->a, x, x->ne[0], 1, x->ne[1]);
    return b->shared ? tn_concat(b->a, b->shared, own, 1) : own;
}

tn_tensor *tn__build_residual_mix(const tn__builder *b, tn_tensor *x, tn_tensor *weight, const char *what) {
    if (!b->shared || !weight || !x) return x;
    tn_arena *a = b->a;
    tn_tensor *all = with_kept_states(b, x);
    tn_tensor *scores = tn_sum_rows(a, tn_rms_norm(a, all, weight, b->h->norm_eps));
    if (!all || !scores) return NULL;
    scores = tn_reshape(a, scores, all->ne[1], all->ne[2]);
    return tn__name_node(b, tn_mix(a, all, tn_soft_max(a, scores, NULL, NULL, 1, 0)), what);
}

/* The rows of the kept states that are computed further after the last layer's mixer. */
static tn_tensor *wanted_states(const tn__builder *b, int32_t il, tn_tensor *x) {
    if (!x) return NULL;
    const int64_t width = x->ne[0], kept = x->ne[1];
    tn_tensor *rows = tn_reshape(b->a, x, width * kept, x->ne[2]), *y = tn__build_wanted(b, il, rows, "kept_wanted");
    return y && y != rows ? tn_reshape(b->a, y, width, kept, y->ne[1]) : x;
}

tn_tensor *tn__build_residual_layer(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    tn_tensor *in = tn__build_residual_mix(b, x, l->attn_res_score, "attn_mix");
    const bool keeps = b->h->residual_block > 0 && il % b->h->residual_block == 0;
    if (keeps) b->shared = with_kept_states(b, x);
    in = tn__name_node(b, tn__build_norm(b, in, l->attn_norm, NULL), "attn_norm");
    tn_tensor *y = tn__build_wanted(b, il, tn__build_mixer(b, il, in), "attn_wanted");
    b->shared = wanted_states(b, il, b->shared);
    if (!keeps) y = tn__name_node(b, tn_add(a, y, tn__build_wanted(b, il, x, "x_wanted")), "attn_sum");
    tn_tensor *mixed = tn__build_residual_mix(b, y, l->ffn_res_score, "ffn_mix_in");
    mixed = tn__name_node(b, tn__build_norm(b, mixed, l->ffn_norm, NULL), "ffn_norm");
    return tn_add(a, tn__build_feed_forward(b, il, mixed), y);
}

tn_tensor *tn__build_residual_end(tn__builder *b, tn_tensor *x) {
    return tn__build_residual_mix(b, x, b->m->w.output_res_score, "output_mix");
}

/* The gradient of attention. The forward op does not store the matrix of scores, so it is recomputed from q and k.
 * This needs memory for cells × tokens × heads scores. */
#include "tensor/backward.h"

/* [size, heads, positions] ↔ [size, positions, heads] */
static tn_tensor *swap_heads_and_positions(tn_arena *a, tn_tensor *x) {
    return tn_cont(a, tn_permute(a, x, 0, 2, 1, 3));
}

/* Distance of cells from queries, [cells, tokens]: 0 for the query's own cell, negative for earlier ones. */
static tn_tensor *distances(tn_arena *a, int64_t cells, int64_t tokens) {
    const int64_t ne[TN_MAX_DIMS] = {cells, tokens, 1, 1};
    tn_tensor *row = tn_arange(a, (float)(cells - tokens), (float)cells, 1);
    return tn_sub(a, tn_repeat(a, tn_arange(a, 0, (float)cells, 1), ne), tn_reshape(a, row, 1, tokens));
}
/* The mask added to the scores: the caller's mask, a very negative value outside the window, and for ALiBi the
 * distances, which soft_max multiplies by the heads' slopes. */
static tn_tensor *mask_of(tn_arena *a, const tn_tensor *t, int64_t cells, int64_t tokens) {
    const tn_attention_params *p = &t->params.attention;
    tn_tensor *mask = tn__back_f32(a, t->src[TN_ATTN_MASK]);
    if (!p->window && !p->window_after && p->max_bias <= 0) return mask;
    tn_tensor *away = distances(a, cells, tokens), *own = p->max_bias > 0 ? tn_neg(a, tn_abs(a, away)) : NULL;
    if (p->window) {
        tn_tensor *hidden = tn_scale(a, tn_step(a, tn_scale(a, away, -1, 0.5f - (float)p->window)), -1e30f, 0);
        own = own ? tn_add(a, hidden, own) : hidden;
    }
    if (p->window_after) {
        tn_tensor *hidden = tn_scale(a, tn_step(a, tn_scale(a, away, 1, 0.5f - (float)p->window_after)), -1e30f, 0);
        own = own ? tn_add(a, hidden, own) : hidden;
    }
    return mask ? tn_add(a, mask, own) : own;
}

tn_status tn__backward_attention(tn__tape *tape, tn_tensor *t, tn_tensor *g) {
    tn_arena *a = tape->arena;
    const tn_attention_params *p = &t->params.attention;
    tn_tensor *const *src = t->src;
    if (src[TN_ATTN_Q_POS]) return tn__back_refuse(t, "over a KV cache");
    if (p->chunk) return tn__back_refuse(t, "in chunks");
    if (src[TN_ATTN_SELECTED]) return tn__back_refuse(t, "over selected positions");
    if (src[TN_ATTN_BIAS_TABLE]) return tn__back_refuse(t, "with a table of biases");
    if (p->max_bias > 0 && src[TN_ATTN_MASK]) return tn__back_refuse(t, "with ALiBi and a mask");
    if (tn__back_needs(tape, src[TN_ATTN_MASK]) || tn__back_needs(tape, src[TN_ATTN_SINKS]))
        return tn__back_refuse(t, "with respect to mask or sinks");
    const int64_t cells = src[TN_ATTN_K]->ne[2], tokens = src[TN_ATTN_Q]->ne[2];
    if ((p->causal || p->window || p->window_after || p->max_bias > 0) && cells < tokens)
        return tn__back_refuse(t, "with fewer cells than tokens");

    tn_tensor *q = swap_heads_and_positions(a, src[TN_ATTN_Q]),
              *k = swap_heads_and_positions(a, tn__back_f32(a, src[TN_ATTN_K])),
              *v = swap_heads_and_positions(a, tn__back_f32(a, src[TN_ATTN_V])),
              *out = swap_heads_and_positions(a, g), *capped = NULL;
    tn_tensor *scores = tn_scale(a, tn_mul_mat_precise(a, k, q), p->scale, 0);
    if (p->soft_cap > 0) {
        capped = tn_tanh(a, tn_scale(a, scores, 1 / p->soft_cap, 0));
        scores = tn_scale(a, capped, p->soft_cap, 0);
    }
    if (p->causal) scores = tn_diag_mask_inf(a, scores, (int)(cells - tokens));
    tn_tensor *weights = tn_soft_max(a, scores, mask_of(a, t, cells, tokens), src[TN_ATTN_SINKS], 1, p->max_bias);

    if (tn__back_needs(tape, src[TN_ATTN_V])) {
        tn_tensor *d = tn_out_prod(a, out, weights);
        tn__back_give(tape, src[TN_ATTN_V], v ? swap_heads_and_positions(a, tn__back_ungroup(a, d, v->ne)) : NULL);
    }
    if (!tn__back_needs(tape, src[TN_ATTN_Q]) && !tn__back_needs(tape, src[TN_ATTN_K])) return TN_OK;
    tn_tensor *d_weights = tn_mul_mat_precise(a, v, out);
    tn_tensor *d = tn_mul(a, tn_sub(a, d_weights, tn_sum_rows(a, tn_mul(a, d_weights, weights))), weights);
    if (capped) d = tn_mul(a, d, tn_scale(a, tn_sqr(a, capped), -1, 1));
    d = tn_scale(a, d, p->scale, 0);
    if (tn__back_needs(tape, src[TN_ATTN_Q])) {
        tn_tensor *turned = tn_cont(a, tn_transpose(a, k));
        tn__back_give(tape, src[TN_ATTN_Q], swap_heads_and_positions(a, tn_mul_mat_precise(a, turned, d)));
    }
    if (tn__back_needs(tape, src[TN_ATTN_K]) && k)
        tn__back_give(tape, src[TN_ATTN_K],
                      swap_heads_and_positions(a, tn__back_ungroup(a, tn_out_prod(a, q, d), k->ne)));
    return TN_OK;
}

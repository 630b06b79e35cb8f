/* The gradient of attention. The forward op keeps no matrix of scores; here it is computed again from q and k, which
 * costs memory of cells × tokens × heads while the gradient is made. */
#include "tensor/backward.h"

/* Heads outside, positions inside: [size, heads, positions] ↔ [size, positions, heads]. */
static tn_tensor *turn(tn_arena *a, tn_tensor *x) { return tn_cont(a, tn_permute(a, x, 0, 2, 1, 3)); }

tn_status tn__backward_attention(tn__tape *tape, tn_tensor *t, tn_tensor *g) {
    tn_arena *a = tape->arena;
    const tn_attention_params *p = &t->params.attention;
    tn_tensor *const *src = t->src;
    if (src[TN_ATTN_Q_POS]) return tn__back_refuse(t, "over a KV cache");
    if (p->window || p->chunk || p->max_bias > 0) return tn__back_refuse(t, "with windows, chunks or ALiBi");
    if (tn__back_wants(tape, src[TN_ATTN_MASK]) || tn__back_wants(tape, src[TN_ATTN_SINKS]))
        return tn__back_refuse(t, "with respect to mask or sinks");
    const int64_t cells = src[TN_ATTN_K]->ne[2], tokens = src[TN_ATTN_Q]->ne[2];
    if (p->causal && cells < tokens) return tn__back_refuse(t, "with fewer cells than tokens");

    tn_tensor *q = turn(a, src[TN_ATTN_Q]), *k = turn(a, tn__back_f32(a, src[TN_ATTN_K])),
              *v = turn(a, tn__back_f32(a, src[TN_ATTN_V])), *out = turn(a, g), *capped = NULL;
    tn_tensor *scores = tn_scale(a, tn_mul_mat_precise(a, k, q), p->scale, 0);
    if (p->soft_cap > 0) {
        capped = tn_tanh(a, tn_scale(a, scores, 1 / p->soft_cap, 0));
        scores = tn_scale(a, capped, p->soft_cap, 0);
    }
    if (p->causal) scores = tn_diag_mask_inf(a, scores, (int)(cells - tokens));
    tn_tensor *weights = tn_soft_max(a, scores, src[TN_ATTN_MASK], src[TN_ATTN_SINKS], 1, 0);

    if (tn__back_wants(tape, src[TN_ATTN_V])) {
        tn_tensor *d = tn_out_prod(a, out, weights);
        tn__back_give(tape, src[TN_ATTN_V], v ? turn(a, tn__back_ungroup(a, d, v->ne)) : NULL);
    }
    if (!tn__back_wants(tape, src[TN_ATTN_Q]) && !tn__back_wants(tape, src[TN_ATTN_K])) return TN_OK;
    tn_tensor *d_weights = tn_mul_mat_precise(a, v, out);
    tn_tensor *d = tn_mul(a, tn_sub(a, d_weights, tn_sum_rows(a, tn_mul(a, d_weights, weights))), weights);
    if (capped) d = tn_mul(a, d, tn_scale(a, tn_sqr(a, capped), -1, 1));
    d = tn_scale(a, d, p->scale, 0);
    if (tn__back_wants(tape, src[TN_ATTN_Q])) {
        tn_tensor *turned = tn_cont(a, tn_transpose(a, k));
        tn__back_give(tape, src[TN_ATTN_Q], turn(a, tn_mul_mat_precise(a, turned, d)));
    }
    if (tn__back_wants(tape, src[TN_ATTN_K]) && k)
        tn__back_give(tape, src[TN_ATTN_K], turn(a, tn__back_ungroup(a, tn_out_prod(a, q, d), k->ne)));
    return TN_OK;
}

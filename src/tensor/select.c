/* Selecting positions for sparse attention: constructor and shape rule. */
#include "tensor/shape_rules.h"

tn_tensor *tn_select_positions(tn_arena *a, tn_tensor *q, tn_tensor *keys, tn_tensor *q_pos, tn_tensor *pages,
                               tn_tensor *weights, const tn_select_params *p) {
    tn_op_params params = {0};
    if (p) params.select = *p;
    tn_tensor *const sources[] = {q, keys, q_pos, pages, weights};
    return tn__op_new(a, TN_OP_SELECT_POSITIONS, sources, 5, &params, NULL);
}

tn_status tn__rule_select_positions(tn_tensor *t) {
    const tn_tensor *q = t->src[TN_SELECT_Q], *keys = t->src[TN_SELECT_KEYS], *q_pos = t->src[TN_SELECT_Q_POS],
                    *pages = t->src[TN_SELECT_PAGES], *weights = t->src[TN_SELECT_WEIGHTS];
    const tn_select_params *p = &t->params.select;
    const int64_t tokens = q->ne[2];
    REQUIRE(q->type == TN_F32 && keys->type == TN_F32, TN_E_TYPE, "q and keys must be f32");
    REQUIRE(tn_is_contiguous_rows(q) && tn_is_contiguous_rows(keys), TN_E_SHAPE, "rows must be contiguous");
    REQUIRE(q->ne[3] == 1 && tn_is_matrix(keys), TN_E_SHAPE, "q must be [size,heads,tokens] and keys [size,cells]");
    REQUIRE(q->ne[0] == keys->ne[0], TN_E_SHAPE, "the sizes of q and keys differ");
    REQUIRE(keys->ne[1] <= INT32_MAX && tokens <= INT32_MAX, TN_E_SHAPE, "there are more than %d cells or tokens",
            INT32_MAX);
    REQUIRE(is_index(q_pos) && is_index(pages), TN_E_TYPE, "q_pos and pages must be i32");
    REQUIRE(q_pos->ne[0] == 2 && q_pos->ne[1] == tokens && tn_is_matrix(q_pos) && tn_is_contiguous(q_pos), TN_E_SHAPE,
            "q_pos must be [2,%lld]", (long long)tokens);
    REQUIRE(pages->ne[0] == 4 && pages->ne[1] >= 1 && pages->ne[3] == 1 && tn_is_contiguous(pages), TN_E_SHAPE,
            "pages must be [4,1+runs,sequences]");
    if (weights) {
        REQUIRE(weights->type == TN_F32, TN_E_TYPE, "weights must be f32");
        REQUIRE(weights->ne[0] == q->ne[1] && weights->ne[1] == tokens && tn_is_matrix(weights) &&
                    tn_is_contiguous_rows(weights),
                TN_E_SHAPE, "weights must be [%lld,%lld]", (long long)q->ne[1], (long long)tokens);
    }
    REQUIRE(p->k > 0 && p->k <= INT32_MAX / 4, TN_E_INVALID, "k must be positive and at most %d, not %d",
            INT32_MAX / 4, (int)p->k);
    REQUIRE(p->block >= 0 && p->local >= 0 && p->window >= 0, TN_E_INVALID,
            "block, local and window must not be negative");
    REQUIRE(p->page > 0, TN_E_INVALID, "page must be positive, not %d", (int)p->page);
    t->type = TN_I32;
    has_shape(t, p->k, tokens, weights ? 1 : q->ne[1], 1);
    return TN_OK;
}

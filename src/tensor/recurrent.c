/* Recurrent ops: constructors and shape rules. */
#include "tenon/recurrent.h"
#include "base/checked.h"
#include "tensor/shape_rules.h"

#define SOURCES(...)                                                                                                 \
    (tn_tensor *const[]){__VA_ARGS__}, (int)(sizeof((tn_tensor *const[]){__VA_ARGS__}) / sizeof(tn_tensor *))

/* ---- Constructors ---- */

tn_tensor *tn_causal_conv(tn_arena *a, tn_tensor *x, tn_tensor *w, tn_tensor *bias, tn_tensor *state,
                          tn_tensor *steps, bool silu) {
    return tn__op_new(a, TN_OP_CAUSAL_CONV, SOURCES(state, steps, x, w, bias), &(tn_op_params){.causal_conv = {silu}},
                      NULL);
}

tn_tensor *tn_linear_attention(tn_arena *a, const tn_linear_attention_sources *s,
                               const tn_linear_attention_params *p) {
    static const tn_linear_attention_sources none;
    tn_op_params params = {0};
    if (!s) s = &none;
    if (p) params.linear_attention = *p;
    return tn__op_new(a, TN_OP_LINEAR_ATTENTION, SOURCES(s->state, s->steps, s->q, s->k, s->v, s->g, s->beta, s->u),
                      &params, NULL);
}

tn_tensor *tn_selective_scan(tn_arena *a, const tn_selective_scan_sources *s) {
    static const tn_selective_scan_sources none;
    if (!s) s = &none;
    return tn__op_new(a, TN_OP_SELECTIVE_SCAN, SOURCES(s->state, s->steps, s->x, s->dt, s->A, s->B, s->C), NULL,
                      NULL);
}

tn_tensor *tn_rwkv7(tn_arena *a, const tn_rwkv7_sources *s) {
    static const tn_rwkv7_sources none;
    if (!s) s = &none;
    return tn__op_new(a, TN_OP_RWKV7, SOURCES(s->state, s->steps, s->r, s->w, s->k, s->v, s->a, s->b), NULL, NULL);
}

/* ---- Shape rules ---- */

/* Sources are f32 with adjacent elements in rows; token counts fit in i32. */
static tn_status check_recurrent(tn_tensor *t, int64_t row, int64_t tokens) {
    const tn_tensor *state = t->src[TN_RECURRENT_STATE], *steps = t->src[TN_RECURRENT_STEPS];
    for (int i = 0; i < TN_MAX_SRC; i++) {
        const tn_tensor *x = t->src[i];
        if (!x || i == TN_RECURRENT_STEPS) continue;
        REQUIRE(x->type == TN_F32, TN_E_TYPE, "f32 is needed");
        REQUIRE(tn_is_contiguous_rows(x), TN_E_SHAPE, "rows must be contiguous");
    }
    REQUIRE(state->ne[0] == row && tn_is_matrix(state), TN_E_SHAPE, "the state must be f32[%lld, rows]",
            (long long)row);
    REQUIRE(state->ne[1] <= INT32_MAX, TN_E_SHAPE, "the state has more than %d rows", INT32_MAX);
    REQUIRE(is_index(steps), TN_E_TYPE, "steps must be i32");
    REQUIRE(steps->ne[0] == 4 && steps->ne[1] == tokens && tn_is_matrix(steps) && tn_is_contiguous(steps), TN_E_SHAPE,
            "steps must be i32[4,%lld]", (long long)tokens);
    REQUIRE(tokens <= INT32_MAX, TN_E_SHAPE, "there are more than %d tokens", INT32_MAX);
    return TN_OK;
}

static bool has_dims(const tn_tensor *x, int64_t n0, int64_t n1, int64_t n2) {
    return x->ne[0] == n0 && x->ne[1] == n1 && x->ne[2] == n2 && x->ne[3] == 1;
}
#define REQUIRE_DIMS(x, name, n0, n1, n2)                                                                            \
    REQUIRE(has_dims(x, n0, n1, n2), TN_E_SHAPE, name " must be f32[%lld,%lld,%lld]", (long long)(n0),               \
            (long long)(n1), (long long)(n2))

tn_status tn__rule_causal_conv(tn_tensor *t) {
    const tn_tensor *x = t->src[TN_CONV_X], *w = t->src[TN_CONV_W], *bias = t->src[TN_CONV_BIAS];
    const int64_t channels = x->ne[0], tokens = x->ne[1], width = w->ne[0];
    int64_t row;
    REQUIRE(tn_is_matrix(x), TN_E_SHAPE, "x must be f32[channels, tokens]");
    REQUIRE(width >= 2 && width <= 8, TN_E_SHAPE, "the width is %lld, not between 2 and 8", (long long)width);
    REQUIRE_DIMS(w, "w", width, channels, (int64_t)1);
    REQUIRE(tn_is_contiguous(w), TN_E_SHAPE, "w must be contiguous");
    if (bias) REQUIRE_DIMS(bias, "the bias", channels, (int64_t)1, (int64_t)1);
    REQUIRE(tn__mul_i64(width - 1, channels, &row), TN_E_OVERFLOW, "the size of a row overflows");
    TN_TRY(check_recurrent(t, row, tokens));
    t->type = TN_F32;
    has_shape(t, channels, tokens, 1, 1);
    return TN_OK;
}

tn_status tn__rule_linear_attention(tn_tensor *t) {
    const tn_tensor *q = t->src[TN_LINEAR_Q], *k = t->src[TN_LINEAR_K], *v = t->src[TN_LINEAR_V];
    const tn_tensor *g = t->src[TN_LINEAR_G], *beta = t->src[TN_LINEAR_BETA], *u = t->src[TN_LINEAR_U];
    const int64_t dk = q->ne[0], dv = v->ne[0], heads_k = q->ne[1], heads_v = v->ne[1], tokens = v->ne[2];
    int64_t row;
    REQUIRE_DIMS(q, "q", dk, heads_k, tokens);
    REQUIRE_DIMS(k, "k", dk, heads_k, tokens);
    REQUIRE_DIMS(v, "v", dv, heads_v, tokens);
    REQUIRE(heads_k > 0 && heads_v % heads_k == 0, TN_E_SHAPE,
            "%lld value heads are not a multiple of %lld key heads", (long long)heads_v, (long long)heads_k);
    REQUIRE(dk > 0 && dv > 0, TN_E_SHAPE, "heads are empty");
    if (g)
        REQUIRE(has_dims(g, g->ne[0], heads_v, tokens) && (g->ne[0] == 1 || g->ne[0] == dk), TN_E_SHAPE,
                "g must be f32[1 or %lld,%lld,%lld]", (long long)dk, (long long)heads_v, (long long)tokens);
    if (beta) REQUIRE_DIMS(beta, "beta", (int64_t)1, heads_v, tokens);
    if (u) {
        REQUIRE_DIMS(u, "u", dk, heads_v, (int64_t)1);
        REQUIRE(!t->params.linear_attention.delta, TN_E_INVALID, "u and the delta rule exclude each other");
    }
    REQUIRE(tn__mul_i64(dk, dv, &row) && tn__mul_i64(row, heads_v, &row), TN_E_OVERFLOW,
            "the size of a row overflows");
    TN_TRY(check_recurrent(t, row, tokens));
    t->type = TN_F32;
    has_shape(t, dv, heads_v, tokens, 1);
    return TN_OK;
}

tn_status tn__rule_selective_scan(tn_tensor *t) {
    const tn_tensor *x = t->src[TN_SCAN_X], *A = t->src[TN_SCAN_A];
    const int64_t inner = x->ne[0], tokens = x->ne[1], n = A->ne[0];
    int64_t row;
    REQUIRE(tn_is_matrix(x), TN_E_SHAPE, "x must be f32[inner, tokens]");
    REQUIRE(n > 0, TN_E_SHAPE, "the state is empty");
    REQUIRE_DIMS(t->src[TN_SCAN_DT], "dt", inner, tokens, (int64_t)1);
    REQUIRE_DIMS(A, "A", n, inner, (int64_t)1);
    REQUIRE_DIMS(t->src[TN_SCAN_B], "B", n, tokens, (int64_t)1);
    REQUIRE_DIMS(t->src[TN_SCAN_C], "C", n, tokens, (int64_t)1);
    REQUIRE(tn_is_contiguous(A), TN_E_SHAPE, "A must be contiguous");
    REQUIRE(tn__mul_i64(n, inner, &row), TN_E_OVERFLOW, "the size of a row overflows");
    TN_TRY(check_recurrent(t, row, tokens));
    t->type = TN_F32;
    has_shape(t, inner, tokens, 1, 1);
    return TN_OK;
}

tn_status tn__rule_rwkv7(tn_tensor *t) {
    const tn_tensor *r = t->src[TN_RWKV7_R];
    const int64_t d = r->ne[0], heads = r->ne[1], tokens = r->ne[2];
    int64_t row;
    REQUIRE(d > 0, TN_E_SHAPE, "heads are empty");
    REQUIRE_DIMS(r, "r", d, heads, tokens);
    REQUIRE_DIMS(t->src[TN_RWKV7_W], "w", d, heads, tokens);
    REQUIRE_DIMS(t->src[TN_RWKV7_K], "k", d, heads, tokens);
    REQUIRE_DIMS(t->src[TN_RWKV7_V], "v", d, heads, tokens);
    REQUIRE_DIMS(t->src[TN_RWKV7_A], "a", d, heads, tokens);
    REQUIRE_DIMS(t->src[TN_RWKV7_B], "b", d, heads, tokens);
    REQUIRE(tn__mul_i64(d, d, &row) && tn__mul_i64(row, heads, &row), TN_E_OVERFLOW, "the size of a row overflows");
    TN_TRY(check_recurrent(t, row, tokens));
    t->type = TN_F32;
    has_shape(t, d, heads, tokens, 1);
    return TN_OK;
}

/* Random cases of recurrent ops. */
#include "random_tensor.h"

#include "tenon/recurrent.h"

#include <math.h>
#include <string.h>

void random_steps(int32_t (*steps)[4], int64_t tokens, int64_t rows, bool hostile, rng *r) {
    enum { MOST = 8 };
    int64_t last[MOST]; /* the last token of each sequence in this batch, or -1 */
    const int64_t sequences = pick_int(r, 1, MOST);
    const int stores = chance(r, 50) ? 5 : 40;
    for (int i = 0; i < MOST; i++) last[i] = -1;
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t s = pick_int(r, 0, sequences - 1);
        int32_t *step = steps[t];
        step[0] = step[1] = step[2] = step[3] = -1;
        if (chance(r, 5)) { /* padding; what else it holds does not matter */
            step[2] = -2;
            step[3] = (int32_t)pick_int(r, -1, rows - 1);
            continue;
        }
        if (rows && chance(r, stores)) step[3] = (int32_t)pick_int(r, 0, rows - 1);
        if (last[s] >= 0 && !chance(r, 3)) { /* now and then a sequence goes on from a row instead */
            step[0] = (int32_t)last[s];
            step[2] = (int32_t)pick_int(r, -5, 5);
            steps[last[s]][1] = (int32_t)t;
        } else if (rows && chance(r, 70)) {
            step[2] = (int32_t)pick_int(r, 0, rows - 1);
        }
        last[s] = t;
    }
    for (int i = 0; i < MOST; i++) /* usually the last state of a sequence is stored */
        if (last[i] >= 0 && rows && chance(r, 80)) steps[last[i]][3] = (int32_t)pick_int(r, 0, rows - 1);
    for (int64_t i = 0; hostile && i < 1 + tokens / 8; i++) {
        static const int32_t odd[] = {INT32_MIN, INT32_MAX, -3, 1 << 20};
        const int64_t t = pick_int(r, 0, tokens - 1);
        steps[t][rng_below(r, 4)] =
            chance(r, 50) ? odd[rng_below(r, 4)] : (int32_t)pick_int(r, -2, tokens > rows ? tokens : rows);
    }
}

static tn_tensor *steps_tensor(tn_arena *a, int64_t tokens, int64_t rows, rng *r) {
    tn_tensor *t = tn_tensor_nd(a, TN_I32, 4, tokens);
    if (t && tokens) random_steps(t->data, tokens, rows, chance(r, 20), r);
    return t;
}
static int64_t pick_tokens(rng *r) {
    return chance(r, 3)    ? 0
           : chance(r, 30) ? pick_int(r, 1, 3)
           : chance(r, 20) ? pick_int(r, 60, 200)
                           : pick_int(r, 1, 40);
}
static int64_t pick_rows(rng *r) { return chance(r, 5) ? 0 : pick_int(r, 1, 12); }

static tn_tensor *rows_of(tn_arena *a, int64_t n0, int64_t n1, int64_t n2, float spread, rng *r) {
    return tensor_of_rows(a, TN_F32, (int64_t[]){n0, n1, n2, 1}, spread, r);
}
static tn_tensor *state_of(tn_arena *a, int64_t row, int64_t rows, rng *r) {
    return random_tensor(a, TN_F32, (int64_t[]){row, rows, 1, 1}, chance(r, 30), 1, r);
}
/* All elements of the tensor's root become low … high. */
static tn_tensor *uniform(tn_tensor *t, float low, float high, rng *r) {
    tn_tensor *root = t->view_src ? t->view_src : t;
    for (int64_t i = 0; i < tn_nelements(root); i++) ((float *)root->data)[i] = pick_real(r, low, high);
    return t;
}

static tn_tensor *causal_conv_case(tn_arena *a, int64_t tokens, int64_t rows, rng *r) {
    const int64_t channels = chance(r, 20) ? pick_int(r, 250, 600) : pick_length(r) % 300 + 1,
                  width = pick_int(r, 2, 8);
    return tn_causal_conv(
        a, rows_of(a, channels, tokens, 1, 1, r), dense_tensor(a, TN_F32, (int64_t[]){width, channels, 1, 1}, 1, r),
        chance(r, 50) ? dense_tensor(a, TN_F32, (int64_t[]){channels, 1, 1, 1}, 1, r) : NULL,
        state_of(a, (width - 1) * channels, rows, r), steps_tensor(a, tokens, rows, r), chance(r, 50));
}

static tn_tensor *linear_case(tn_arena *a, int64_t tokens, int64_t rows, rng *r) {
    static const int64_t sizes[] = {64, 128, 16, 32, 1, 7, 24, 40, 80, 256};
    const int64_t dk = sizes[rng_below(r, chance(r, 90) ? 9 : 10)], dv = sizes[rng_below(r, 9)];
    const int64_t heads_k = pick_int(r, 1, 3), heads_v = heads_k * pick_int(r, 1, 3);
    const tn_linear_attention_params p = {
        .scale = pick_real(r, 0.1f, 1), .delta = chance(r, 50), .tiled = chance(r, 50)};
    const float spread = 1 / sqrtf((float)dk); /* |k| near 1: the delta rule must not diverge */
    tn_linear_attention_sources s = {.q = rows_of(a, dk, heads_k, tokens, 1, r),
                                     .k = uniform(rows_of(a, dk, heads_k, tokens, 1, r), -spread, spread, r),
                                     .v = rows_of(a, dv, heads_v, tokens, 1, r),
                                     .state = state_of(a, dk * dv * heads_v, rows, r),
                                     .steps = steps_tensor(a, tokens, rows, r)};
    if (chance(r, 75)) s.g = uniform(rows_of(a, chance(r, 50) ? 1 : dk, heads_v, tokens, 1, r), -2, 0, r);
    if (chance(r, 70)) s.beta = uniform(rows_of(a, 1, heads_v, tokens, 1, r), 0, 1, r);
    if (!p.delta && chance(r, 30)) s.u = rows_of(a, dk, heads_v, 1, 1, r);
    return tn_linear_attention(a, &s, &p);
}

static tn_tensor *selective_scan_case(tn_arena *a, int64_t tokens, int64_t rows, rng *r) {
    static const int64_t sizes[] = {16, 16, 8, 32, 1, 5, 64, 20};
    const int64_t n = sizes[rng_below(r, 8)], inner = pick_int(r, 1, 150);
    const tn_selective_scan_sources s = {
        .x = rows_of(a, inner, tokens, 1, 1, r),
        .dt = uniform(rows_of(a, inner, tokens, 1, 1, r), 0, 1, r),
        .A = uniform(dense_tensor(a, TN_F32, (int64_t[]){n, inner, 1, 1}, 1, r), -3, 0, r),
        .B = rows_of(a, n, tokens, 1, 1, r),
        .C = rows_of(a, n, tokens, 1, 1, r),
        .state = state_of(a, n * inner, rows, r),
        .steps = steps_tensor(a, tokens, rows, r)};
    return tn_selective_scan(a, &s);
}

static tn_tensor *rwkv7_case(tn_arena *a, int64_t tokens, int64_t rows, rng *r) {
    static const int64_t sizes[] = {64, 64, 32, 128, 1, 7, 24, 80};
    const int64_t d = sizes[rng_below(r, 8)], heads = pick_int(r, 1, 3);
    const float spread = 1 / sqrtf((float)d);
    const tn_rwkv7_sources s = {.r = rows_of(a, d, heads, tokens, 1, r),
                                .w = uniform(rows_of(a, d, heads, tokens, 1, r), 0.5f, 1, r),
                                .k = rows_of(a, d, heads, tokens, 1, r),
                                .v = rows_of(a, d, heads, tokens, 1, r),
                                .a = uniform(rows_of(a, d, heads, tokens, 1, r), -spread, spread, r),
                                .b = uniform(rows_of(a, d, heads, tokens, 1, r), -spread, spread, r),
                                .state = state_of(a, d * d * heads, rows, r),
                                .steps = steps_tensor(a, tokens, rows, r)};
    return tn_rwkv7(a, &s);
}

tn_tensor *recurrent_case_of(tn_arena *a, tn_op op, int64_t tokens, int64_t rows, rng *r) {
    switch (op) {
    case TN_OP_CAUSAL_CONV: return causal_conv_case(a, tokens, rows, r);
    case TN_OP_LINEAR_ATTENTION: return linear_case(a, tokens, rows, r);
    case TN_OP_SELECTIVE_SCAN: return selective_scan_case(a, tokens, rows, r);
    default: return rwkv7_case(a, tokens, rows, r);
    }
}
tn_tensor *recurrent_case(tn_arena *a, tn_op op, rng *r) {
    const int64_t tokens = pick_tokens(r);
    return recurrent_case_of(a, op, tokens, pick_rows(r), r);
}

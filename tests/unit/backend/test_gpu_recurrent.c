/* Recurrent layers on a GPU: several layers in one program that share a table of steps, which changes between two
 * runs; branches from rows that the same batch writes. Results and states are compared with the CPU. Skipped without
 * a GPU. */
#include "device_graph.h"
#include "random_tensor.h"

#include "tenon/recurrent.h"

#include <stdio.h>

static uint64_t seed;

/* q, k and v are parts of one projection; k is short, so that the delta rule does not diverge. */
static tn_tensor *delta_layer(device_graph *w, tn_tensor *x, tn_tensor *steps, tn_tensor *state, int64_t tokens,
                              bool channels) {
    enum { SIZE = 32, HEADS = 2 };
    const size_t row = 3 * SIZE * HEADS * 4;
    tn_tensor *all = tn_mul_mat(
        w->a, spread_tensor(w, TN_F32, TN_USAGE_WEIGHTS, (int64_t[]){x->ne[0], 3 * SIZE * HEADS, 1, 1}, 0.05f), x);
    tn_tensor *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = tn_view(w->a, all, 3, (int64_t[]){SIZE, HEADS, tokens}, (size_t[]){4, SIZE * 4, row},
                          (size_t)i * SIZE * HEADS * 4);
    tn_tensor *g =
        tn_scale(w->a, tn_sigmoid(w->a, input_of(w, TN_F32, channels ? SIZE : 1, HEADS, tokens, NULL)), -1, 0);
    tn_linear_attention_sources s = {.q = part[0],
                                     .k = tn_l2_norm(w->a, tn_cont(w->a, part[1]), 1e-6f),
                                     .v = part[2],
                                     .g = g,
                                     .beta = tn_sigmoid(w->a, input_of(w, TN_F32, 1, HEADS, tokens, NULL)),
                                     .state = state,
                                     .steps = steps};
    tn_tensor *y = tn_linear_attention(w->a, &s, &(tn_linear_attention_params){.scale = 0.5f, .delta = 1});
    return tn_reshape(w->a, y, SIZE * HEADS, tokens);
}
static tn_tensor *scan_layer(device_graph *w, tn_tensor *x, tn_tensor *steps, tn_tensor *state, int64_t tokens) {
    enum { D = 16 };
    tn_tensor *A = tn_scale(w->a, tn_sigmoid(w->a, device_tensor(w, TN_F32, TN_USAGE_ANY, D, x->ne[0], 1)), -1, 0);
    const tn_selective_scan_sources s = {.x = x,
                                         .dt = tn_sigmoid(w->a, input_of(w, TN_F32, x->ne[0], tokens, 1, NULL)),
                                         .A = A,
                                         .B = input_of(w, TN_F32, D, tokens, 1, NULL),
                                         .C = input_of(w, TN_F32, D, tokens, 1, NULL),
                                         .state = state,
                                         .steps = steps};
    return tn_selective_scan(w->a, &s);
}

static tn_tensor *state_of(device_graph *w, int64_t row, int64_t rows) {
    tn_tensor *t = device_tensor(w, TN_F32, TN_USAGE_ANY, row, rows, 1);
    w->changed[w->n_changed++] = t;
    return t;
}

static int build_recurrent(device_graph *w, tn_tensor **wanted) {
    enum { WIDE = 64, ROWS = 9, MOST = 160 };
    static int32_t tables[2][MOST][4];
    rng r = {seed};
    const int64_t tokens = chance(&r, 40) ? pick_int(&r, 1, 6) : pick_int(&r, 7, MOST);
    for (int i = 0; i < 2; i++) random_steps(tables[i], tokens, ROWS, chance(&r, 10), &r);
    w->r = (rng){seed + 1};
    tn_tensor *steps = input_of(w, TN_I32, 4, tokens, 1, tables[1]);
    w->earlier[w->n_inputs - 1] = tables[0];
    tn_tensor *x = input_of(w, TN_F32, WIDE, tokens, 1, NULL);
    int n = 0;
    /* The second convolution's state has fewer rows: entries of the table beyond them are out of range. */
    x = wanted[n++] = tn_causal_conv(w->a, x, device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, 4, WIDE, 1),
                                     device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, WIDE, 1, 1),
                                     state_of(w, 3 * WIDE, ROWS), steps, true);
    x = wanted[n++] = delta_layer(w, x, steps, state_of(w, 32 * 32 * 2, ROWS), tokens, chance(&r, 50));
    x = wanted[n++] = tn_causal_conv(w->a, x, device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, 2, WIDE, 1), NULL,
                                     state_of(w, WIDE, ROWS - 4), steps, false);
    x = wanted[n++] = scan_layer(w, x, steps, state_of(w, 16 * WIDE, ROWS), tokens);
    tn_tensor *heads = tn_reshape(w->a, x, 32, 2, tokens), *short_heads = tn_l2_norm(w->a, heads, 1e-6f);
    const tn_rwkv7_sources s = {.r = heads,
                                .w = tn_sigmoid(w->a, heads),
                                .k = short_heads,
                                .v = heads,
                                .a = tn_scale(w->a, short_heads, -1, 0),
                                .b = tn_scale(w->a, short_heads, 0.5f, 0),
                                .state = state_of(w, 32 * 32 * 2, ROWS),
                                .steps = steps};
    wanted[n++] = tn_rwkv7(w->a, &s);
    return n;
}

static void recurrent_layers_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    const int rounds = getenv("TENON_LONG") ? 300 : 20;
    tolerance = 2e-3f;
    for (int i = 0; i < rounds; i++) {
        char what[32];
        seed = 1 + (uint64_t)i * 1000;
        snprintf(what, sizeof what, "layers %d", i);
        check_on_both(build_recurrent, what);
    }
}

/* ---- Gated delta nets ---- */

/* Usually one token, whose layer a GPU computes in one launch. */
static tn_tensor *gated_delta_net(device_graph *w, tn_tensor *x, tn_tensor *steps, rng *r) {
    enum { ROWS = 3 };
    static const int64_t key_sizes[] = {16, 32, 60, 64, 128};
    const int64_t tokens = x->ne[1], dk = key_sizes[rng_below(r, 5)], dv = 32 * pick_int(r, 1, 5),
                  groups = pick_int(r, 1, 3), heads = groups * pick_int(r, 1, 3), keys = dk * groups,
                  values = dv * heads, channels = 2 * keys + values, width = chance(r, 85) ? 4 : 3;
    const size_t row = (size_t)channels * 4, at_v = chance(r, 50) ? 0 : 2 * (size_t)keys * 4,
                 at_k = at_v ? 0 : (size_t)values * 4, at_q = at_k + (size_t)keys * 4;
    const bool gates_first = chance(r, 70);
    tn_tensor *of_x[4], *all[4];
    const int64_t n[] = {channels, values, heads, heads};
    for (int i = 0; i < 4; i++)
        of_x[i] = spread_tensor(w, TN_F16, TN_USAGE_WEIGHTS, (int64_t[]){x->ne[0], n[i], 1, 1}, 0.1f);
    for (int i = 0; i < 4; i++) {
        all[i] = tn_mul_mat(w->a, of_x[i], x);
        if (i < 2 || gates_first) w->in_order[w->n_in_order++] = all[i];
    }
    tn_tensor *bias = device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, heads, 1, 1),
              *decay = spread_tensor(w, TN_F32, TN_USAGE_WEIGHTS, (int64_t[]){heads, 1, 1, 1}, 0.3f),
              *alpha = tn_mul(w->a, tn_softplus(w->a, tn_add(w->a, all[2], bias)), decay);
    tn_tensor *conv = tn_causal_conv(
        w->a, all[0], spread_tensor(w, TN_F32, TN_USAGE_WEIGHTS, (int64_t[]){width, channels, 1, 1}, 1),
        chance(r, 30) ? device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, channels, 1, 1) : NULL,
        state_of(w, (width - 1) * channels, ROWS), steps, chance(r, 80));
    const size_t nb_k[] = {4, (size_t)dk * 4, row}, nb_v[] = {4, (size_t)dv * 4, row};
    const int64_t ne_k[] = {dk, groups, tokens}, ne_v[] = {dv, heads, tokens};
    const tn_linear_attention_sources s = {
        .q = tn_l2_norm(w->a, tn_view(w->a, conv, 3, ne_k, nb_k, at_q), 1e-6f),
        .k = tn_l2_norm(w->a, tn_view(w->a, conv, 3, ne_k, nb_k, at_k), chance(r, 20) ? 2.0f : 1e-6f),
        .v = tn_view(w->a, conv, 3, ne_v, nb_v, at_v),
        .g = tn_reshape(w->a, alpha, 1, heads, tokens),
        .beta = tn_sigmoid(w->a, tn_reshape(w->a, all[3], 1, heads, tokens)),
        .state = state_of(w, dk * values, ROWS),
        .steps = steps};
    const tn_linear_attention_params p = {.scale = 0.5f, .delta = true, .tiled = chance(r, 50)};
    tn_tensor *y = tn_rms_norm(w->a, tn_linear_attention(w->a, &s, &p),
                               device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, dv, 1, 1), 1e-5f);
    y = tn_reshape(w->a, y, values, tokens);
    y = chance(r, 80) ? tn_swiglu(w->a, all[1], y) : tn_glu(w->a, TN_OP_SWIGLU, y, all[1], chance(r, 50));
    return tn_mul_mat(w->a, spread_tensor(w, TN_F16, TN_USAGE_WEIGHTS, (int64_t[]){values, x->ne[0], 1, 1}, 0.1f), y);
}
static int build_delta_nets(device_graph *w, tn_tensor **wanted) {
    enum { WIDE = 64, ROWS = 3, MOST = 4 };
    static int32_t tables[2][MOST][4];
    rng r = {seed};
    const int64_t tokens = chance(&r, 85) ? 1 : pick_int(&r, 2, MOST);
    tolerance = tokens == 1 ? 2e-3f : 0.1f; /* several tokens: activations are rounded to f16 */
    for (int i = 0; i < 2; i++) random_steps(tables[i], tokens, ROWS, chance(&r, 10), &r);
    w->r = (rng){seed + 1};
    tn_tensor *steps = input_of(w, TN_I32, 4, tokens, 1, tables[1]);
    w->earlier[w->n_inputs - 1] = tables[0];
    tn_tensor *x = input_of(w, TN_F32, WIDE, tokens, 1, NULL);
    for (int layer = 0; layer < 2; layer++) x = wanted[layer] = gated_delta_net(w, x, steps, &r);
    return 2;
}
static void delta_nets_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    const int rounds = gpu_rounds(15, 60, 600);
    for (int i = 0; i < rounds; i++) {
        char what[32];
        seed = 5 + (uint64_t)i * 1000;
        snprintf(what, sizeof what, "delta nets %d", i);
        check_on_both(build_delta_nets, what);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recurrent_layers_agree_with_the_cpu),
        cmocka_unit_test(delta_nets_agree_with_the_cpu),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recurrent_layers_agree_with_the_cpu),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}

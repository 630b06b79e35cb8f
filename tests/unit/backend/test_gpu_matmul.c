/* Matmuls of a GPU on tensor cores: all types and odd shapes against the reference, and repeatable ones have the same
 * bits for any number of columns. Skipped without a GPU. */
#include "device_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn_type weight_types[] = {TN_Q4_K,   TN_Q6_K,   TN_F16,   TN_Q4_0, TN_Q8_0, TN_Q5_K, TN_BF16,
                                       TN_IQ4_NL, TN_IQ4_XS, TN_MXFP4, TN_Q5_0, TN_Q3_K, TN_F32};
enum { TYPES = sizeof weight_types / sizeof *weight_types };

static tn_tensor *matrix(tn_arena *a, tn_type type, int64_t n0, int64_t n1, int64_t n2, rng *r) {
    return random_tensor(a, type, (int64_t[]){n0, n1, n2, 1}, 0, 1, r);
}
static void *run_matmul(tn_stream *stream, tn_tensor *node, bool as_weights) {
    void *bytes =
        as_weights ? run_case_with_weights(stream, node, tn_device_buffer_type(gpu)) : run_case(stream, node, -1);
    if (!bytes) fail_msg("not supported: %s", describe_case(node));
    return bytes;
}
static void check_shape(tn_stream *stream, tn_type type, int64_t k, int64_t rows, int64_t columns, bool as_weights) {
    tn_arena *a;
    rng r = {(uint64_t)(k + 7 * rows + 13 * columns)};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &a));
    tn_tensor *node = tn_mul_mat(a, matrix(a, type, k, rows, 1, &r), matrix(a, TN_F32, k, columns, 1, &r));
    assert_ok(tn_arena_status(a));
    void *bytes = run_matmul(stream, node, as_weights);
    check_case(node, bytes, tn_device_name(gpu));
    free(bytes);
    tn_arena_free(a);
}

/* Rows that are no multiple of a tile, one block and several segments of a row, every width of a tile. */
static void many_columns_agree_with_the_reference(void **state) {
    (void)state;
    NEED_GPU();
    static const int64_t shapes[][3] = {{256, 40, 9},   {512, 130, 17}, {1280, 100, 33},
                                        {2304, 72, 13}, {768, 24, 100}, {256, 16, 300}};
    tn_stream *stream;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    case_slack = 8;
    for (int t = 0; t < TYPES; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_shape(stream, weight_types[t], shapes[i][0], shapes[i][1], shapes[i][2], true);
    for (int t = 0; t < TYPES; t++) {
        const tn_type type = weight_types[t];
        const int64_t block = tn_type_block(type), odd = block == 1 ? 8 : block;
        check_shape(stream, type, odd, 20, 20, true);
        check_shape(stream, type, block == 256 ? 768 : 1056, 50, 40, true);
        if (block == 1) check_shape(stream, type, 1000, 50, 12, true);
        check_shape(stream, type, 3 * odd, 30, 12, false); /* not repacked */
    }
    tn_stream_free(stream);
}

/* A column of a repeatable matmul has the same bits whatever other columns there are. */
static void check_columns(tn_stream *stream, tn_type type, int64_t k, int64_t rows, const int64_t *counts, int most) {
    tn_arena *a;
    rng r = {3};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20, .repeatable = true}, &a));
    tn_tensor *w = matrix(a, type, k, rows, 1, &r), *y = matrix(a, TN_F32, k, most, 1, &r);
    float *all = run_matmul(stream, tn_mul_mat(a, w, y), true);
    for (; *counts; counts++) {
        tn_tensor *part = tn_tensor_nd(a, TN_F32, k, *counts);
        memcpy(part->data, y->data, (size_t)(k * *counts) * 4);
        float *some = run_matmul(stream, tn_mul_mat(a, w, part), true);
        if (memcmp(some, all, (size_t)(rows * *counts) * 4) != 0)
            fail_msg("%s %d x %d: other bits with %d columns than with %d", tn_type_name(type), (int)k, (int)rows,
                     (int)*counts, most);
        free(some);
    }
    free(all);
    tn_arena_free(a);
}
static void repeatable_results_do_not_depend_on_the_number_of_columns(void **state) {
    (void)state;
    NEED_GPU();
    tn_stream *stream;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    for (int t = 0; t < TYPES; t++)
        check_columns(stream, weight_types[t], 1280, 40, (const int64_t[]){1, 3, 9, 16, 30, 64, 65, 0}, 140);
    /* Segments from one to eight; fewer than 16 rows, and last groups of 16 that overlap those before them. */
    static const int64_t shapes[][2] = {{256, 16}, {768, 8}, {2560, 23}, {3584, 17}, {4352, 33}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 2; t++) /* q4_K and q6_K, which have kernels for few columns */
            check_columns(stream, weight_types[t], shapes[i][0], shapes[i][1], (const int64_t[]){1, 2, 5, 8, 0}, 9);
    tn_stream_free(stream);
}

/* A norm, gate and up with their activation, and down with the residual, whose launches are joined with few columns.
 */
static void repeatable_layers_do_not_depend_on_the_number_of_columns(void **state) {
    (void)state;
    NEED_GPU();
    enum { MOST = 12 };
    static const int64_t counts[] = {MOST, 1, 2, 7, 8};
    /* One segment and two; rows that fill no group of 64. */
    static const int64_t sizes[][2] = {{512, 512}, {1024, 768}, {512, 200}};
    rng r = {8};
    tn_arena *a;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20}, &a));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t width = sizes[i][0], wide = sizes[i][1];
        const void *x = matrix(a, TN_F32, width, MOST, 1, &r)->data;
        float *all = NULL;
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const tn_type down_type = wide % 256 ? TN_F16 : TN_Q6_K;
            device_graph w;
            int64_t n;
            device_graph_begin(&w, tn_device_name(gpu));
            device_graph_repeatable(&w);
            tn_tensor *in = input_of(&w, TN_F32, width, counts[c], 1, x),
                      *norm = device_tensor(&w, TN_F32, TN_USAGE_WEIGHTS, width, 1, 1),
                      *gate = device_tensor(&w, TN_Q4_K, TN_USAGE_WEIGHTS, width, wide, 1),
                      *up = device_tensor(&w, TN_Q4_K, TN_USAGE_WEIGHTS, width, wide, 1),
                      *down = device_tensor(&w, down_type, TN_USAGE_WEIGHTS, wide, width, 1),
                      *normed = tn_rms_norm(w.a, in, norm, 1e-5f),
                      *opened = tn_swiglu(w.a, tn_mul_mat(w.a, gate, normed), tn_mul_mat(w.a, up, normed)),
                      *out = tn_add(w.a, tn_mul_mat(w.a, down, opened), in);
            float *some = run_device_graph(&w, &out, 1, &n);
            device_graph_end(&w);
            assert_int_equal(n, width * counts[c]);
            for (int64_t e = 0; e < n; e++) assert_true(isfinite(some[e]));
            if (!all)
                all = some;
            else if (memcmp(some, all, (size_t)n * 4) != 0)
                fail_msg("%d wide: other bits with %d columns than with %d", (int)wide, (int)counts[c], MOST);
            if (some != all) free(some);
        }
        free(all);
    }
    tn_arena_free(a);
}

/* ---- Experts ---- */

enum { EXPERTS = 8, USED = 3 };
/* Tokens with USED different experts each. */
static tn_tensor *expert_ids(tn_arena *a, int64_t tokens) {
    tn_tensor *ids = tn_tensor_nd(a, TN_I32, USED, tokens);
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t u = 0; u < USED; u++)
            ((int32_t *)ids->data)[i * USED + u] = (int32_t)((i * i + 3 * u + i / 5) % EXPERTS);
    return ids;
}
static void experts_agree_with_the_reference(void **state) {
    (void)state;
    NEED_GPU();
    static const int64_t shapes[][3] = {{256, 40, 9}, {1280, 140, 12}, {512, 72, 60}};
    tn_stream *stream;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    case_slack = 8;
    for (int t = 0; t < TYPES; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int64_t each = 1; each <= USED; each += USED - 1) { /* columns of a token: one, or one per expert */
                if (gpu_rounds(1, 0, 0) && (each > 1) != ((size_t)t + i) % 2) continue;
                tn_arena *a;
                rng r = {(uint64_t)i};
                assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &a));
                tn_tensor *w = matrix(a, weight_types[t], shapes[i][0], shapes[i][1], EXPERTS, &r),
                          *y = matrix(a, TN_F32, shapes[i][0], each, shapes[i][2], &r),
                          *node = tn_mul_mat_id(a, w, y, expert_ids(a, shapes[i][2]));
                assert_ok(tn_arena_status(a));
                void *bytes = run_matmul(stream, node, true);
                check_case(node, bytes, tn_device_name(gpu));
                free(bytes);
                tn_arena_free(a);
            }
    tn_stream_free(stream);
}
/* The results of a token are the same whichever tokens share its experts. */
static void repeatable_experts_do_not_depend_on_other_tokens(void **state) {
    (void)state;
    NEED_GPU();
    enum { K = 1280, ROWS = 40 };
    static const int64_t counts[] = {1, 9, 3, 40};
    const int64_t most = gpu_rounds(60, 150, 150);
    tn_stream *stream;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    for (int t = 0; t < TYPES; t++) {
        tn_arena *a;
        rng r = {4};
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20, .repeatable = true}, &a));
        tn_tensor *w = matrix(a, weight_types[t], K, ROWS, EXPERTS, &r), *y = matrix(a, TN_F32, K, 1, most, &r);
        float *all = run_matmul(stream, tn_mul_mat_id(a, w, y, expert_ids(a, most)), true);
        for (int i = 0; i < gpu_rounds(2, 4, 4); i++) {
            tn_tensor *part = tn_tensor_nd(a, TN_F32, K, 1, counts[i]);
            memcpy(part->data, y->data, (size_t)(K * counts[i]) * 4);
            float *some = run_matmul(stream, tn_mul_mat_id(a, w, part, expert_ids(a, counts[i])), true);
            if (memcmp(some, all, (size_t)(ROWS * USED * counts[i]) * 4) != 0)
                fail_msg("%s: other bits with %d tokens than with %d", tn_type_name(weight_types[t]), (int)counts[i],
                         (int)most);
            free(some);
        }
        free(all);
        tn_arena_free(a);
    }
    tn_stream_free(stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_columns_agree_with_the_reference),
        cmocka_unit_test(repeatable_results_do_not_depend_on_the_number_of_columns),
        cmocka_unit_test(repeatable_layers_do_not_depend_on_the_number_of_columns),
        cmocka_unit_test(experts_agree_with_the_reference),
        cmocka_unit_test(repeatable_experts_do_not_depend_on_other_tokens),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}

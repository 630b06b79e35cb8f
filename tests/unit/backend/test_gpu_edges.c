/* Edge cases of a GPU's kernels and copies: empty tensors, dimensions beyond a grid's, views of recent results,
 * several devices and threads. Each is compared with the CPU. Skipped without a GPU. */
#include "device_graph.h"
#include "gpu.h"
#include "run_case.h"

#include "tenon/sched.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Single ops ---- */

static void check_node(tn_stream *stream, tn_tensor *node) {
    void *bytes = run_case(stream, node, -1);
    if (bytes) check_case(node, bytes, tn_device_name(gpu));
    free(bytes);
}
static tn_tensor *dense(tn_arena *a, tn_type type, int64_t n0, int64_t n1, int64_t n2, rng *r) {
    return random_tensor(a, type, (int64_t[]){n0, n1, n2, 1}, 0, 1, r);
}
static tn_tensor *numbers(tn_arena *a, int64_t n0, int64_t n1, int32_t below) {
    tn_tensor *t = tn_tensor_nd(a, TN_I32, n0, n1);
    for (int64_t i = 0; i < n0 * n1; i++) ((int32_t *)t->data)[i] = (int32_t)(i % below);
    return t;
}

/* Few heads and a long cache: the cache is split into as many shares as there are multiprocessors, and one block must
 * combine all of them. TENON_EMULATED_PROCESSORS=132 emulates as many as a large GPU has. */
static void long_caches_of_few_heads_agree_with_the_reference(void **state) {
    (void)state;
    NEED_GPU();
    static const int64_t shapes[][4] = {{64, 1, 1, 9000}, {256, 4, 1, 9100}, {64, 7, 2, 10000}, {128, 2, 1, 16384}};
    tn_stream *stream;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    case_slack = 0.05; /* each share is a small part of the sum */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int64_t size = shapes[i][0], group = shapes[i][1], kv = shapes[i][2], cells = shapes[i][3];
        rng r = {i};
        tn_arena *a;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &a));
        tn_attention_sources s = {.q = dense(a, TN_F32, size, kv * group, 1, &r),
                                  .k = dense(a, TN_F16, size, kv, cells, &r),
                                  .v = dense(a, TN_F16, size, kv, cells, &r)};
        check_node(stream, tn_attention(a, &s, &(tn_attention_params){.scale = 0.3f, .causal = true}));
        tn_arena_free(a);
    }
    tn_stream_free(stream);
}

/* Rows without elements, batches without tokens. */
static void empty_tensors_are_supported(void **state) {
    (void)state;
    NEED_GPU();
    static const tn_type types[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0, TN_Q4_K};
    tn_stream *stream;
    tn_arena *a;
    rng r = {5};
    case_slack = 8;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 16 << 20}, &a));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int64_t columns = 1; columns < 30; columns += 19) {
            check_node(stream, tn_mul_mat(a, dense(a, types[i], 0, 40, 1, &r), dense(a, TN_F32, 0, columns, 1, &r)));
            check_node(stream,
                       tn_mul_mat(a, dense(a, types[i], 256, 0, 1, &r), dense(a, TN_F32, 256, columns, 1, &r)));
            check_node(stream, tn_mul_mat_id(a, dense(a, types[i], 0, 40, 4, &r), dense(a, TN_F32, 0, 1, columns, &r),
                                             numbers(a, 2, columns, 4)));
        }
    for (int64_t tokens = 0; tokens < 20; tokens += 19)
        for (int64_t cells = 0; cells < 20; cells += 19) {
            tn_attention_sources s = {.q = dense(a, TN_F32, 64, 4, tokens, &r),
                                      .k = dense(a, TN_F16, 64, 2, cells, &r),
                                      .v = dense(a, TN_F16, 64, 2, cells, &r)};
            check_node(stream, tn_attention(a, &s, &(tn_attention_params){.scale = 1}));
        }
    check_node(stream, tn_sum_rows(a, dense(a, TN_F32, 0, 3, 1, &r)));
    check_node(stream, tn_soft_max(a, dense(a, TN_F32, 8, 0, 1, &r), NULL, NULL, 1, 0));
    check_node(stream, tn_top_k(a, dense(a, TN_F32, 8, 0, 1, &r), 2));
    check_node(stream, tn_mix(a, dense(a, TN_F32, 8, 3, 0, &r), dense(a, TN_F32, 3, 0, 1, &r)));
    check_node(stream, tn_mix(a, dense(a, TN_F32, 8, 0, 4, &r), dense(a, TN_F32, 0, 4, 1, &r)));
    assert_ok(tn_arena_status(a));
    tn_arena_free(a);
    tn_stream_free(stream);
}

/* The largest values of long rows: smooth, with ties, all equal, and with NaN. */
static void largest_of_long_rows(void **state) {
    (void)state;
    NEED_GPU();
    tn_stream *stream;
    tn_arena *a;
    rng r = {5};
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 16 << 20}, &a));
    for (int kind = 0; kind < 5; kind++) {
        const int64_t n = 4096 + (int64_t)rng_below(&r, 9000);
        tn_tensor *x = dense(a, TN_F32, n, 3, 1, &r);
        float *v = x->data;
        for (int64_t i = 0; i < 3 * n; i++) {
            if (kind == 1) v[i] = roundf(4 * v[i]);
            if (kind == 2) v[i] = 1;
            if (kind == 3 && i % 3) v[i] = NAN;
            if (kind == 4) v[i] = (float)(i % n); /* ascending */
        }
        const int counts[] = {1, 40, 256, 1024};
        for (int k = 0; k < 4; k++) check_node(stream, tn_top_k(a, x, counts[k]));
    }
    assert_ok(tn_arena_status(a));
    tn_arena_free(a);
    tn_stream_free(stream);
}

/* Dimensions beyond the limits of a grid run, or the device says that it does not support them. */
static void large_dimensions_are_refused_or_run(void **state) {
    (void)state;
    NEED_GPU();
    enum { MANY = 65536 };
    tn_stream *stream;
    tn_arena *a;
    rng r = {5};
    case_slack = 8;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &a));
    check_node(stream, tn_get_rows(a, dense(a, TN_F32, 1, 4, MANY, &r), numbers(a, 1, MANY, 4)));
    check_node(stream,
               tn_add_id(a, dense(a, TN_F32, 1, 1, MANY, &r), dense(a, TN_F32, 1, 4, 1, &r), numbers(a, 1, MANY, 4)));
    check_node(stream, tn_mix(a, dense(a, TN_F32, 1, 1, MANY, &r), dense(a, TN_F32, 1, MANY, 1, &r)));
    check_node(stream, tn_set_rows(a, dense(a, TN_F32, 1, 1, MANY, &r), dense(a, TN_F32, 1, 1, MANY, &r),
                                   numbers(a, 1, 1, 1)));
    tn_attention_sources s = {.q = dense(a, TN_F32, 8, 1, MANY, &r),
                              .k = dense(a, TN_F32, 8, 1, 1, &r),
                              .v = dense(a, TN_F32, 4, 1, 1, &r)};
    check_node(stream, tn_attention(a, &s, &(tn_attention_params){.scale = 1}));
    /* Up to all shared memory that a kernel may use without opting in, and a little more. */
    for (int64_t size = 6000; size <= 6136; size += 8) {
        s = (tn_attention_sources){.q = dense(a, TN_F32, size, 1, 1, &r),
                                   .k = dense(a, TN_F32, size, 1, 1, &r),
                                   .v = dense(a, TN_F32, size, 1, 1, &r)};
        check_node(stream, tn_attention(a, &s, &(tn_attention_params){.scale = 1e-4f}));
    }
    assert_ok(tn_arena_status(a));
    tn_arena_free(a);
    tn_stream_free(stream);
}

/* ---- Several nodes ---- */

static tn_tensor *part_of(device_graph *w, tn_tensor *x, int64_t n0, int64_t n1) {
    return tn_view(w->a, x, 2, (int64_t[]){n0, n1}, x->nb, 0);
}
/* Matrix multiplications of a tensor and of views that begin at the same address. */
static int build_views(device_graph *w, tn_tensor **wanted) {
    tn_tensor *narrow = device_tensor(w, TN_F16, TN_USAGE_ANY, 64, 24, 1),
              *wide = device_tensor(w, TN_F16, TN_USAGE_ANY, 128, 24, 1),
              *y = tn_scale(w->a, device_tensor(w, TN_F32, TN_USAGE_ANY, 128, 20, 1), 0.5f, 0);
    wanted[0] = tn_mul_mat(w->a, narrow, part_of(w, y, 64, 20));
    wanted[1] = tn_mul_mat(w->a, wide, part_of(w, y, 128, 10));
    wanted[2] = tn_mul_mat(w->a, wide, y);
    wanted[3] = tn_mul_mat(w->a, narrow, tn_reshape(w->a, y, 64, 40));
    return 4;
}
static void matmuls_of_different_views_are_not_confused(void **state) {
    (void)state;
    NEED_GPU();
    check_on_both(build_views, "views");
}

/* A batch without tokens through nodes that devices fuse. */
static int build_empty_batch(device_graph *w, tn_tensor **wanted) {
    enum { WIDTH = 256, EXPERTS = 8, USED = 2, TOKENS = 0 };
    tn_tensor *up = device_tensor(w, TN_F16, TN_USAGE_WEIGHTS, WIDTH, WIDTH, EXPERTS),
              *gate = device_tensor(w, TN_F16, TN_USAGE_WEIGHTS, WIDTH, EXPERTS, 1),
              *x = device_tensor(w, TN_F32, TN_USAGE_ANY, WIDTH, TOKENS, 1),
              *row = tn_reshape(w->a, x, WIDTH, 1, TOKENS);
    tn_tensor *probs = tn_soft_max(w->a, tn_mul_mat(w->a, gate, x), NULL, NULL, 1, 0),
              *ids = tn_top_k(w->a, probs, USED);
    tn_tensor *weights =
        tn_reshape(w->a, tn_get_rows(w->a, tn_reshape(w->a, probs, 1, EXPERTS, TOKENS), ids), USED, TOKENS);
    weights = tn_div(w->a, weights, tn_sum_rows(w->a, weights));
    wanted[0] = tn_add(w->a, tn_mix(w->a, tn_mul_mat_id(w->a, up, row, ids), weights), x);
    return 1;
}
static void empty_batches_run(void **state) {
    (void)state;
    NEED_GPU();
    check_on_both(build_empty_batch, "an empty batch");
}

/* Permuted views with as many rows as columns: only their strides tell them apart from the tensor. */
static int build_permuted(device_graph *w, tn_tensor **wanted) {
    enum { WIDTH = 256, N = 8, EXPERTS = 16, SIZE = 64, CELLS = 40 };
    tn_tensor *x = tn_scale(w->a, device_tensor(w, TN_F32, TN_USAGE_ANY, WIDTH, N, 1), 0.1f, 0),
              *square = device_tensor(w, TN_F16, TN_USAGE_WEIGHTS, WIDTH, N, 1),
              *residual = device_tensor(w, TN_F32, TN_USAGE_ANY, N, N, 1);
    wanted[0] = tn_add(w->a, residual, tn_transpose(w->a, tn_mul_mat(w->a, square, x)));

    tn_tensor *router = device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, WIDTH, EXPERTS, 1),
              *rows = device_tensor(w, TN_F32, TN_USAGE_ANY, WIDTH, N, N);
    tn_tensor *probs = tn_soft_max(w->a, tn_mul_mat(w->a, router, x), NULL, NULL, 1, 0),
              *ids = tn_top_k(w->a, probs, N);
    tn_tensor *chosen = tn_get_rows(w->a, tn_reshape(w->a, probs, 1, EXPERTS, N), ids);
    wanted[1] = tn_mix(w->a, rows, tn_transpose(w->a, tn_reshape(w->a, chosen, N, N)));

    /* Heads and tokens are swapped between rotation and attention. */
    tn_tensor *k = device_tensor(w, TN_F16, TN_USAGE_ANY, SIZE * N, CELLS, 1),
              *v = device_tensor(w, TN_F16, TN_USAGE_ANY, SIZE * N, CELLS, 1);
    static const int32_t numbers[N] = {3, 1, 4, 15, 9, 2, 6, 5};
    tn_rope_params p = tn_rope_params_default(SIZE, TN_ROPE_NEOX);
    tn_tensor *positions_in = input_of(w, TN_I32, N, 1, 1, numbers);
    tn_tensor *q = tn_rope(w->a, device_tensor(w, TN_F32, TN_USAGE_ANY, SIZE, N, N), positions_in, NULL, &p),
              *new_k = tn_rope(w->a, device_tensor(w, TN_F32, TN_USAGE_ANY, SIZE, N, N), positions_in, NULL, &p);
    tn_tensor *new_v = tn_scale(w->a, device_tensor(w, TN_F32, TN_USAGE_ANY, SIZE * N, N, 1), 0.5f, 0);
    tn_attention_sources s = {
        .q = tn_permute(w->a, q, 0, 2, 1, 3),
        .k = heads_of(w, tn_set_rows(w->a, k, tn_reshape(w->a, new_k, SIZE * N, N), positions_in), SIZE, N, SIZE),
        .v = heads_of(w, tn_set_rows(w->a, v, new_v, positions_in), SIZE, N, SIZE)};
    tn_tensor *after = device_tensor(w, TN_F16, TN_USAGE_WEIGHTS, SIZE * N, WIDTH, 1);
    wanted[2] = tn_mul_mat(
        w->a, after, tn_reshape(w->a, tn_attention(w->a, &s, &(tn_attention_params){.scale = 0.2f}), SIZE * N, N));
    return 3;
}
static void permuted_views_are_not_taken_for_their_tensor(void **state) {
    (void)state;
    NEED_GPU();
    check_on_both(build_permuted, "permuted views");
}

/* ---- Repacked weights ---- */

static void check_bytes(const void *want, const void *got, size_t size, const tn_tensor *t, const char *what) {
    if (memcmp(want, got, size) != 0)
        fail_msg("%s, rows of %lld: %s", tn_type_name(t->type), (long long)t->ne[0], what);
}
static void check_weights_read_back(tn_type type, int64_t width, int64_t rows) {
    device_graph w;
    device_graph_begin(&w, tn_device_name(gpu));
    tn_tensor *weights = device_tensor(&w, type, TN_USAGE_WEIGHTS, width, rows, 1),
              *plain = device_tensor(&w, type, TN_USAGE_ANY, width, rows, 1),
              *others = device_tensor(&w, type, TN_USAGE_WEIGHTS, width, rows, 1);
    size_t size = tn_nbytes(weights), row = weights->nb[1];
    unsigned char *want = malloc(size), *got = malloc(size);
    assert_ok(tn_tensor_get(weights, want));
    assert_ok(tn_tensor_copy(weights, plain));
    assert_ok(tn_tensor_get(plain, got));
    check_bytes(want, got, size, weights, "copied from weights");
    tn_tensor *part = tn_view(w.a, weights, 2, (int64_t[]){width, 4}, weights->nb, 4 * row);
    assert_ok(tn_view_bind(part));
    assert_ok(tn_tensor_get(part, got));
    check_bytes(want + 4 * row, got, tn_nbytes(part), weights, "rows of weights");
    assert_ok(tn_tensor_copy(plain, others));
    assert_ok(tn_tensor_get(others, got));
    check_bytes(want, got, size, weights, "copied to weights");
    assert_ok(tn_tensor_copy(weights, others));
    assert_ok(tn_tensor_get(others, got));
    check_bytes(want, got, size, weights, "from weights to weights");
    assert_ok(tn_tensor_fill(weights, 7, size / 4, size / 2));
    memset(want + size / 4, 7, size / 2);
    assert_ok(tn_tensor_get(weights, got));
    check_bytes(want, got, size, weights, "filled in part");
    /* A few bytes over the end of a row; then from within a row to within another, into a view. */
    for (size_t i = 0; i < size; i++) got[i] = (unsigned char)(i * 31);
    assert_ok(tn_tensor_set_at(weights, got, row - 20, 40));
    memcpy(want + row - 20, got, 40);
    assert_ok(tn_tensor_set_at(part, got, 10, 3 * row));
    memcpy(want + 4 * row + 10, got, 3 * row);
    assert_ok(tn_tensor_fill(part, 9, row - 2, 4));
    memset(want + 5 * row - 2, 9, 4);
    assert_ok(tn_tensor_get(weights, got));
    check_bytes(want, got, size, weights, "set in part");
    assert_ok(tn_tensor_get_at(weights, got, 3 * row - 6, 12));
    check_bytes(want + 3 * row - 6, got, 12, weights, "read in part");
    free(want);
    free(got);
    device_graph_end(&w);
}
/* Weights read back, copied, filled and used on another device have the values they were set to. Rows that are no
 * multiple of 16 bytes are padded on the device; the largest case is uploaded in several pieces that end within rows.
 */
static void weights_are_read_back_as_they_were_set(void **state) {
    (void)state;
    NEED_GPU();
    static const tn_type types[] = {TN_Q4_0, TN_Q8_0, TN_Q6_K, TN_Q4_K, TN_F16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_weights_read_back(types[i], 512, 16);
        check_weights_read_back(types[i], tn_type_block(types[i]) == 256 ? 768 : 1056, 120);
    }
    check_weights_read_back(TN_Q6_K, 256, 9); /* too short for padding */
    check_weights_read_back(TN_Q6_K, 3072, 900);
}
static tn_type weight_type;
static int build_precise(device_graph *w, tn_tensor **wanted) {
    tn_tensor *weights = device_tensor(w, weight_type, TN_USAGE_WEIGHTS, 512, 16, 1);
    wanted[0] = tn_mul_mat_precise(w->a, weights, input_of(w, TN_F32, 512, 20, 1, NULL));
    return 1;
}
/* Weights copied by an op, or read through views that begin or end within rows or have another row length. */
static int build_odd_weights(device_graph *w, tn_tensor **wanted) {
    static const int32_t numbers[] = {5, 0, 7};
    tn_tensor *weights = device_tensor(w, weight_type, TN_USAGE_WEIGHTS, 512, 16, 1),
              *half = tn_view(w->a, weights, 2, (int64_t[]){256, 16}, weights->nb, 0),
              *second = tn_view(w->a, weights, 2, (int64_t[]){256, 15}, weights->nb, weights->nb[1] / 2),
              *longer = tn_reshape(w->a, weights, 1024, 8),
              *rows = tn_view(w->a, weights, 2, (int64_t[]){512, 5}, weights->nb, 3 * weights->nb[1]);
    tn_tensor *y = device_tensor(w, TN_F32, TN_USAGE_ANY, 1024, 20, 1);
    wanted[0] = tn_dup(w->a, weights);
    wanted[1] = tn_mul_mat(w->a, half, part_of(w, y, 256, 20));
    wanted[2] = tn_mul_mat(w->a, second, part_of(w, y, 256, 3));
    wanted[3] = tn_mul_mat(w->a, longer, y);
    wanted[4] = tn_mul_mat(w->a, rows, part_of(w, y, 512, 20));
    wanted[5] = tn_mul_mat(w->a, rows, part_of(w, y, 512, 1));
    wanted[6] = tn_get_rows(w->a, half, input_of(w, TN_I32, 3, 1, 1, numbers));
    return 7;
}
static void unsupported_reads_of_weights_run_elsewhere(void **state) {
    (void)state;
    NEED_GPU();
    static const tn_type types[] = {TN_Q4_0, TN_Q8_0, TN_Q6_K, TN_F16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        weight_type = types[i];
        check_on_both(build_precise, tn_type_name(types[i]));
        tolerance = 0.6f;
        check_on_both(build_odd_weights, tn_type_name(types[i]));
        tolerance = 2e-2f;
    }
}

/* Weights whose rows are padded, with one column, a few and many; and rows of them. */
static int64_t weight_width;
static int build_padded_weights(device_graph *w, tn_tensor **wanted) {
    static const int32_t numbers[] = {5, 0, 38};
    tn_tensor *weights = device_tensor(w, weight_type, TN_USAGE_WEIGHTS, weight_width, 40, 2),
              *first = tn_view(w->a, weights, 2, (int64_t[]){weight_width, 40}, weights->nb, 0),
              *rows = tn_view(w->a, weights, 2, (int64_t[]){weight_width, 35}, weights->nb, 43 * weights->nb[1]),
              *y = device_tensor(w, TN_F32, TN_USAGE_ANY, weight_width, 20, 1);
    wanted[0] = tn_mul_mat(w->a, rows, part_of(w, y, weight_width, 1));
    wanted[1] = tn_mul_mat(w->a, rows, part_of(w, y, weight_width, 3));
    wanted[2] = tn_mul_mat(w->a, rows, y);
    wanted[3] = tn_get_rows(w->a, first, input_of(w, TN_I32, 3, 1, 1, numbers));
    wanted[4] = tn_mul_mat(w->a, first, part_of(w, y, weight_width, 1));
    return 5;
}
static void rows_of_any_length_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    static const struct {
        tn_type type;
        int64_t width;
    } cases[] = {{TN_Q6_K, 256},  {TN_Q6_K, 768},  {TN_Q6_K, 2304}, {TN_Q6_K, 2560},
                 {TN_Q6_K, 3072}, {TN_Q6_K, 5888}, {TN_Q8_0, 1056}, {TN_Q8_0, 2880},
                 {TN_Q4_0, 1056}, {TN_Q4_0, 2880}, {TN_Q4_K, 2560}, {TN_Q6_K, 28672}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weight_type = cases[i].type;
        weight_width = cases[i].width;
        tolerance = 0.03f * sqrtf((float)weight_width); /* errors of rounded activations add up like random steps */
        check_on_both(build_padded_weights, tn_type_name(weight_type));
        tolerance = 2e-2f;
    }
}

/* ---- Several devices and threads ---- */

/* Each device keeps its own small inputs until its stream runs, even if another device was used in between. */
static void devices_take_turns(void **state) {
    (void)state;
    NEED_GPU();
    tn_device *other = NULL;
    for (size_t i = 0; i < tn_device_count() && !other; i++) {
        tn_device *device = tn_device_get(i);
        if (device != gpu && strncmp(tn_device_name(device), tn_device_name(gpu), 4) == 0) other = device;
    }
    if (!other) {
        print_message("skipped: only one GPU here\n");
        skip();
    }
    tn_device *devices[2] = {gpu, other};
    tn_stream *streams[2];
    tn_buffer *buffers[2];
    tn_tensor *x[2];
    tn_arena *a;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 4096, .no_alloc = true}, &a));
    for (int i = 0; i < 2; i++) {
        tn_buffer_type *type = tn_device_buffer_type(devices[i]);
        x[i] = tn_tensor_nd(a, TN_F32, 8);
        assert_ok(tn_stream_new(devices[i], NULL, &streams[i]));
        assert_ok(tn_buffer_new(type, tn_buffer_type_tensor_size(type, x[i]), &buffers[i]));
        assert_ok(tn_buffer_bind(buffers[i], x[i], 0));
    }
    for (int round = 0; round < 6; round++) {
        float want[8], got[8];
        int from = round % 2, to = 1 - from;
        for (int i = 0; i < 8; i++) want[i] = (float)(round * 10 + i);
        if (round < 2) {
            assert_ok(tn_tensor_set(x[from], want));
            assert_ok(tn_tensor_copy(x[from], x[to]));
        } else if (round < 4) {
            assert_ok(tn_tensor_set(x[to], (float[8]){0}));
            assert_ok(tn_tensor_set(x[from], want));
            assert_ok(tn_stream_copy_async(streams[from], streams[to], x[from], x[to]));
        } else {
            assert_ok(tn_stream_set_async(streams[from], x[from], want, 0, sizeof want));
            assert_ok(tn_tensor_set(x[to], (float[8]){0}));
            assert_ok(tn_stream_copy_async(streams[from], streams[to], x[from], x[to]));
        }
        assert_ok(tn_stream_synchronize(streams[from]));
        assert_ok(tn_stream_synchronize(streams[to]));
        assert_ok(tn_tensor_get(x[to], got));
        for (int i = 0; i < 8; i++)
            if (got[i] != want[i]) fail_msg("round %d: %g came, not %g", round, got[i], want[i]);
    }
    for (int i = 0; i < 2; i++) {
        tn_buffer_free(buffers[i]);
        tn_stream_free(streams[i]);
    }
    tn_arena_free(a);
}

/* While one thread waits for a slow file, other threads continue. */
typedef struct {
    atomic_bool asked, served;
} slow_file;
static tn_status read_slowly(void *user, size_t offset, void *to, size_t size) {
    (void)offset;
    slow_file *file = user;
    atomic_store(&file->asked, true);
    for (int i = 0; i < 2000 && !atomic_load(&file->served); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    if (!atomic_load(&file->served)) return tn_fail(TN_E_IO, "no other thread could run");
    memset(to, 7, size);
    return TN_OK;
}
typedef struct {
    tn_tensor *to;
    slow_file *file;
    tn_status status;
} loading;
static void *load_slowly(void *user) {
    loading *l = user;
    l->status = tn_tensor_load(l->to, read_slowly, l->file);
    return NULL;
}
static int build_sum(device_graph *w, tn_tensor **wanted) {
    wanted[0] =
        tn_add(w->a, device_tensor(w, TN_F32, TN_USAGE_ANY, 2000, 1, 1), input_of(w, TN_F32, 2000, 1, 1, NULL));
    return 1;
}
static void a_slow_file_does_not_block_other_threads(void **state) {
    (void)state;
    NEED_GPU();
    device_graph w;
    pthread_t thread;
    slow_file file = {0};
    device_graph_begin(&w, tn_device_name(gpu));
    tn_tensor *large = device_tensor(&w, TN_Q8_0, TN_USAGE_WEIGHTS, 2048, 1000, 1);
    loading l = {large, &file, TN_OK};
    assert_int_equal(pthread_create(&thread, NULL, load_slowly, &l), 0);
    while (!atomic_load(&file.asked)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    check_on_both(build_sum, "beside a load");
    atomic_store(&file.served, true);
    pthread_join(thread, NULL);
    assert_int_equal(l.status, TN_OK);
    size_t size = tn_nbytes(large);
    unsigned char *got = malloc(size);
    assert_ok(tn_tensor_get(large, got));
    for (size_t i = 0; i < size; i++)
        if (got[i] != 7) fail_msg("byte %zu is %d", i, got[i]);
    free(got);
    device_graph_end(&w);
}

/* One thread reads weights repeatedly while another multiplies with them. */
typedef struct {
    const tn_tensor *weights;
    atomic_bool enough;
    atomic_int looks, wrong;
} weight_reader;
static void *read_repeatedly(void *user) {
    weight_reader *o = user;
    const size_t size = tn_nbytes(o->weights);
    unsigned char *first = malloc(size), *again = malloc(size);
    if (tn_tensor_get(o->weights, first) != TN_OK) atomic_fetch_add(&o->wrong, 1);
    while (!atomic_load(&o->enough)) {
        if (tn_tensor_get(o->weights, again) != TN_OK || memcmp(first, again, size) != 0)
            atomic_fetch_add(&o->wrong, 1);
        atomic_fetch_add(&o->looks, 1);
    }
    free(first);
    free(again);
    return NULL;
}
static void weights_can_be_read_while_they_are_used(void **state) {
    (void)state;
    NEED_GPU();
    device_graph w;
    pthread_t thread;
    tn_graph *graph;
    device_graph_begin(&w, tn_device_name(gpu));
    tn_tensor *weights = device_tensor(&w, TN_Q8_0, TN_USAGE_WEIGHTS, 1024, 64, 1);
    tn_tensor *result_of_matmul =
        tn_output(tn_mul_mat(w.a, weights, device_tensor(&w, TN_F32, TN_USAGE_ANY, 1024, 1, 1)));
    weight_reader o = {.weights = weights};
    assert_ok(tn_arena_status(w.a));
    assert_ok(tn_graph_of(w.a, result_of_matmul, &graph));
    assert_ok(tn_sched_reserve(w.sched, graph));
    assert_int_equal(pthread_create(&thread, NULL, read_repeatedly, &o), 0);
    float first[64], again[64];
    int different = 0;
    for (int i = 0; i < 10000 && (i < 200 || atomic_load(&o.looks) < 50); i++) {
        if (tn_sched_run(w.sched, graph) != TN_OK || tn_tensor_get(result_of_matmul, i ? again : first) != TN_OK)
            different++;
        different += i && memcmp(first, again, sizeof first) != 0;
    }
    atomic_store(&o.enough, true);
    pthread_join(thread, NULL);
    assert_int_equal(different, 0);
    assert_int_equal(atomic_load(&o.wrong), 0);
    device_graph_end(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_caches_of_few_heads_agree_with_the_reference),
        cmocka_unit_test(empty_tensors_are_supported),
        cmocka_unit_test(largest_of_long_rows),
        cmocka_unit_test(large_dimensions_are_refused_or_run),
        cmocka_unit_test(matmuls_of_different_views_are_not_confused),
        cmocka_unit_test(empty_batches_run),
        cmocka_unit_test(permuted_views_are_not_taken_for_their_tensor),
        cmocka_unit_test(weights_are_read_back_as_they_were_set),
        cmocka_unit_test(weights_can_be_read_while_they_are_used),
        cmocka_unit_test(unsupported_reads_of_weights_run_elsewhere),
        cmocka_unit_test(rows_of_any_length_agree_with_the_cpu),
        cmocka_unit_test(devices_take_turns),
        cmocka_unit_test(a_slow_file_does_not_block_other_threads),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}

/* Programs of many nodes: the bits are those of running one node after the other, however nodes share steps or are
 * reordered, also when several tensors have the same planned memory. */
#include "support.h"

#include "backend/cpu/program.h"
#include "base/half.h"
#include "runtime/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 64, MAX_TENSORS = 400 };

typedef struct build {
    tn_arena *arena;
    tn_graph *graph;
    tn_tensor *leaves[64];
    int n_leaves;
    tn_tensor *outputs[16];
    int n_outputs;
} build;

static tn_tensor *leaf(build *b, tn_type type, int64_t n0, int64_t n1) {
    tn_tensor *t = tn_input(b->arena, type, n0, n1);
    b->leaves[b->n_leaves++] = t;
    return t;
}

/* A random network over rows of WIDTH, with a state that is written and read back. */
static void make(build *b, bool no_alloc, uint64_t seed, int n_ops) {
    rng r = {seed};
    memset(b, 0, sizeof *b);
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 16 << 20, .no_alloc = no_alloc}, &b->arena));
    tn_arena *a = b->arena;
    /* Few rows, or enough for row-local steps. */
    int64_t rows = rng_below(&r, 3) ? 1 + (int64_t)rng_below(&r, 12) : 48 + (int64_t)rng_below(&r, 20);
    tn_tensor *pool[MAX_TENSORS], *weights[4];
    int n = 0;
    for (int i = 0; i < 4; i++) weights[i] = leaf(b, i % 2 ? TN_Q8_0 : TN_F32, WIDTH, WIDTH);
    for (int i = 0; i < 3; i++) pool[n++] = leaf(b, TN_F32, WIDTH, rows);
    tn_tensor *gain = leaf(b, TN_F32, WIDTH, 1), *state = leaf(b, TN_F16, WIDTH, 2 * rows),
              *index = leaf(b, TN_I32, rows, 1);
    for (int i = 0; i < n_ops; i++) {
        int recent = n > 6 && rng_below(&r, 2) ? n - 6 : 0; /* long and short lifetimes */
        tn_tensor *x = pool[recent + (int)rng_below(&r, (uint64_t)(n - recent))];
        tn_tensor *y = pool[recent + (int)rng_below(&r, (uint64_t)(n - recent))];
        tn_tensor *z;
        switch (rng_below(&r, 12)) {
        case 0:
        case 1:
        case 2: z = tn_mul_mat(a, weights[rng_below(&r, 4)], x); break;
        case 3: z = tn_add(a, x, y); break;
        case 4: z = tn_mul(a, x, gain); break;
        case 5: z = tn_rms_norm(a, x, gain, 1e-5f); break;
        case 6: z = tn_swiglu(a, x, y); break;
        case 7: z = tn_scale(a, x, 0.5f, 0.1f); break;
        case 8: z = tn_soft_max(a, x, NULL, NULL, 1, 0); break;
        case 9: /* remember x, then look it up; both through the same memory */
            z = tn_get_rows(a, tn_set_rows(a, state, x, index), index);
            break;
        case 10:
            z = tn_cont(a, tn_reshape(a, tn_reshape(a, tn_cont(a, tn_transpose(a, x)), WIDTH * rows), WIDTH, rows));
            break;
        default: z = tn_add(a, x, tn_sum_rows(a, y)); break;
        }
        pool[n++] = z;
    }
    assert_ok(tn_graph_new(a, 2048, &b->graph));
    for (int i = 0; i < 5; i++) {
        tn_tensor *out = tn_output(pool[i == 0 ? n - 1 : (int)rng_below(&r, (uint64_t)n)]);
        if (out->op == TN_OP_NONE) continue;
        assert_ok(tn_graph_add(b->graph, out));
        b->outputs[b->n_outputs++] = out;
    }
    assert_ok(tn_arena_status(a));
}

static void fill(build *b, uint64_t seed) {
    rng r = {seed};
    for (int i = 0; i < b->n_leaves; i++) {
        tn_tensor *t = b->leaves[i];
        int64_t n = tn_nelements(t);
        float *values = malloc((size_t)n * sizeof *values);
        void *bytes = malloc(tn_nbytes(t));
        for (int64_t k = 0; k < n; k++) values[k] = t->type == TN_I32 ? (float)k : rng_normal(&r) * 0.2f;
        assert_ok(tn_type_from_f32(t->type, values, bytes, n, NULL));
        if (t->data) assert_ok(tn_tensor_set(t, bytes));
        free(bytes);
        free(values);
    }
}

static void run(tn_stream *stream, tn_tensor *const *nodes, size_t n) {
    tn_program *program;
    tn_buffer *scratch = NULL;
    assert_ok(tn_program_new(stream, nodes, n, &program));
    if (tn_program_scratch(program))
        assert_ok(
            tn_buffer_new(tn_device_buffer_type(tn_stream_device(stream)), tn_program_scratch(program), &scratch));
    assert_ok(tn_program_run(program, scratch));
    tn_program_free(program);
    tn_buffer_free(scratch);
}

static tn_stream *backend_of(int n_threads, double tiny_ns) {
    tn_device *cpu;
    tn_stream *stream;
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_stream_new(cpu, &(tn_stream_params){.n_threads = n_threads}, &stream));
    ((tn__cpu_stream *)stream->impl)->tiny_ns = tiny_ns;
    return stream;
}

static void steps_keep_the_bits_of_one_after_the_other(void **state) {
    (void)state;
    int n_graphs = getenv("TENON_LONG") ? 2000 : 60;
    tn_stream *one = backend_of(1, 0);
    tn_stream *several[] = {backend_of(1, 1e9), backend_of(3, 0), backend_of(2, 3000), backend_of(3, 1500)};
    size_t shared_steps = 0;
    for (int g = 0; g < n_graphs; g++) {
        uint64_t seed = (uint64_t)g + 1;
        int n_ops = 10 + g % 80;
        build plain;
        make(&plain, false, seed, n_ops);
        fill(&plain, seed);
        for (size_t i = 0; i < tn_graph_node_count(plain.graph); i++) {
            tn_tensor *node = tn_graph_node(plain.graph, i);
            run(one, &node, 1);
        }
        for (size_t s = 0; s < sizeof several / sizeof *several; s++) {
            build planned;
            make(&planned, true, seed, n_ops);
            tn_buffer_type *type = tn_device_buffer_type(tn_stream_device(one));
            tn__alloc *alloc;
            assert_ok(tn__alloc_new(&type, 1, &alloc));
            assert_ok(tn__alloc_reserve(alloc, &planned.graph, NULL, 1));
            assert_ok(tn__alloc_bind(alloc, planned.graph, NULL, false));
            fill(&planned, seed);
            tn_tensor *const *nodes = tn_graph_nodes(planned.graph);
            size_t n = tn_graph_node_count(planned.graph);
            tn_program *program;
            tn_buffer *scratch;
            assert_ok(tn_program_new(several[s], nodes, n, &program));
            assert_ok(tn_buffer_new(type, tn_program_scratch(program), &scratch));
            assert_ok(tn_program_run(program, scratch));
            if (tn__cpu_program_steps(program) < n) shared_steps++;
            for (int o = 0; o < planned.n_outputs; o++) {
                size_t size = tn_nbytes(planned.outputs[o]);
                if (memcmp(planned.outputs[o]->data, plain.outputs[o]->data, size) != 0)
                    fail_msg("graph %d, setting %zu: output %d differs", g, s, o);
            }
            tn_program_free(program);
            tn_buffer_free(scratch);
            tn__alloc_free(alloc);
            tn_arena_free(planned.arena);
        }
        tn_arena_free(plain.arena);
    }
    assert_true(shared_steps > 0); /* the test is meaningful only with shared steps */
    tn_stream_free(one);
    for (size_t s = 0; s < sizeof several / sizeof *several; s++) tn_stream_free(several[s]);
}

static void independent_products_share_a_step_and_tiny_nodes_too(void **state) {
    (void)state;
    tn_arena *a;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 16 << 20}, &a));
    tn_tensor *x = tn_tensor_nd(a, TN_F32, 512), *w[3], *p[3];
    for (int i = 0; i < 3; i++) {
        w[i] = tn_tensor_nd(a, TN_F32, 512, 512);
        p[i] = tn_mul_mat(a, w[i], x);
        memset(w[i]->data, 0, tn_nbytes(w[i]));
    }
    memset(x->data, 0, tn_nbytes(x));
    /* q and k are scaled, each by a tiny node, before the next mat-mul in the list */
    tn_tensor *q = tn_scale(a, p[0], 2, 0), *k = tn_scale(a, p[1], 2, 0), *sum = tn_add(a, tn_add(a, q, k), p[2]);
    tn_tensor *nodes[] = {p[0], q, p[1], k, p[2], sum->src[0], sum};
    assert_ok(tn_arena_status(a));
    tn_stream *stream = backend_of(2, 3000);
    tn_program *program;
    tn_buffer *scratch;
    assert_ok(tn_program_new(stream, nodes, 7, &program));
    assert_ok(tn_buffer_new(tn_device_buffer_type(tn_stream_device(stream)), tn_program_scratch(program), &scratch));
    assert_ok(tn_program_run(program, scratch));
    assert_int_equal(tn__cpu_program_steps(program), 2); /* the mat-muls, then all tiny nodes */
    assert_int_equal(tn__cpu_program_threads(program), 2);
    tn_program_free(program);
    tn_buffer_free(scratch);
    tn_stream_free(stream);
    tn_arena_free(a);
}

/* Rows pass through several ops and are finally stored in rows of a cache, not in order and some of them twice. */
enum { LOCAL_WIDTH = 96, LOCAL_ROWS = 96, LOCAL_CELLS = 200 };
static tn_tensor *row_local_graph(tn_arena *a, tn_tensor **nodes, int *n) {
    tn_tensor *x = tn_tensor_nd(a, TN_F32, LOCAL_WIDTH, LOCAL_ROWS),
              *w = tn_tensor_nd(a, TN_F32, LOCAL_WIDTH, LOCAL_WIDTH);
    tn_tensor *cache = tn_tensor_nd(a, TN_F16, LOCAL_WIDTH, LOCAL_CELLS), *rows = tn_tensor_nd(a, TN_I32, LOCAL_ROWS);
    assert_ok(tn_arena_status(a));
    for (int64_t i = 0; i < tn_nelements(x); i++) ((float *)x->data)[i] = (float)(i * 7 % 31) / 16 - 1;
    for (int64_t i = 0; i < tn_nelements(w); i++) ((float *)w->data)[i] = (float)(i * 11 % 29) / 64 - 0.2f;
    for (int32_t i = 0; i < LOCAL_ROWS; i++) ((int32_t *)rows->data)[i] = i % 9 == 8 ? -1 : i * 37 % LOCAL_CELLS / 2;
    memset(cache->data, 0, tn_nbytes(cache));
    tn_tensor *norm = tn_rms_norm(a, x, NULL, 1e-5f), *p = tn_mul_mat(a, w, norm), *sum = tn_add(a, p, x);
    tn_tensor *again = tn_rms_norm(a, sum, NULL, 1e-5f), *gate = tn_mul_mat(a, w, again), *up = tn_mul_mat(a, w, sum);
    tn_tensor *glu = tn_glu(a, TN_OP_SWIGLU, gate, up, false), *set = tn_set_rows(a, cache, glu, rows);
    assert_ok(tn_arena_status(a));
    tn_tensor *all[] = {norm, p, sum, again, gate, up, glu, set};
    *n = (int)(sizeof all / sizeof *all);
    memcpy(nodes, all, sizeof all);
    return cache;
}

static void threads_go_on_with_their_own_rows_and_the_last_row_named_wins(void **state) {
    (void)state;
    static uint16_t expected[LOCAL_WIDTH * LOCAL_CELLS];
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        tn_arena *a;
        tn_tensor *nodes[16];
        int n;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20}, &a));
        const tn_tensor *cache = row_local_graph(a, nodes, &n);
        tn_stream *stream = backend_of(n_threads, 0);
        if (n_threads == 1) {
            for (int i = 0; i < n; i++) run(stream, &nodes[i], 1);
            memcpy(expected, cache->data, sizeof expected);
            const tn_tensor *glu = nodes[n - 1]->src[1], *rows = nodes[n - 1]->src[2];
            for (int32_t cell = 0; cell < LOCAL_CELLS; cell++) {
                int32_t last = -1;
                for (int32_t r = 0; r < LOCAL_ROWS; r++)
                    if (((const int32_t *)rows->data)[r] == cell) last = r;
                const float value = last < 0 ? 0 : ((const float *)glu->data)[last * LOCAL_WIDTH];
                assert_int_equal(expected[cell * LOCAL_WIDTH], tn__f32_to_f16(value));
            }
        } else {
            tn_program *program;
            tn_buffer *scratch;
            assert_ok(tn_program_new(stream, nodes, (size_t)n, &program));
            assert_ok(tn_buffer_new(tn_device_buffer_type(tn_stream_device(stream)), tn_program_scratch(program),
                                    &scratch));
            assert_ok(tn_program_run(program, scratch));
            /* With AMX all threads share the rows of a matmul, so that only the ops between matmuls are row-local. */
            assert_int_equal(tn__cpu_program_steps(program), strcmp(tn_cpu_level(), "amx") == 0 ? 6 : 1);
            assert_memory_equal(cache->data, expected, sizeof expected);
            tn_program_free(program);
            tn_buffer_free(scratch);
        }
        tn_stream_free(stream);
        tn_arena_free(a);
    }
}

static void single_rows_have_threads_of_their_own_number(void **state) {
    (void)state;
    tn_arena *a;
    tn_threadpool *pool;
    tn_stream *stream;
    tn_device *cpu;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 16 << 20}, &a));
    tn_threadpool_params params = tn_threadpool_params_default(3);
    params.n_decode = 2;
    assert_ok(tn_threadpool_new(&params, &pool));
    assert_int_equal(tn_threadpool_size(pool), 3);
    assert_int_equal(tn_threadpool_decode_size(pool), 2);
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_stream_new(cpu, &(tn_stream_params){.threads = pool}, &stream));
    tn_tensor *weights = tn_tensor_nd(a, TN_F32, 512, 1024);
    tn_tensor *one = tn_mul_mat(a, weights, tn_tensor_nd(a, TN_F32, 512)),
              *many = tn_mul_mat(a, weights, tn_tensor_nd(a, TN_F32, 512, 8));
    tn_program *program;
    assert_ok(tn_program_new(stream, &one, 1, &program));
    assert_int_equal(tn__cpu_program_threads(program), 2);
    tn_program_free(program);
    assert_ok(tn_program_new(stream, &many, 1, &program));
    assert_int_equal(tn__cpu_program_threads(program), 3);
    tn_program_free(program);
    tn_stream_free(stream);
    tn_threadpool_free(pool);
    tn_arena_free(a);
}

static void threads_are_no_more_than_the_widest_node_can_use(void **state) {
    (void)state;
    tn_arena *a;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 4 << 20}, &a));
    tn_tensor *x = tn_tensor_nd(a, TN_F32, 100000, 3), *y = tn_cumsum(a, x),
              *tiny = tn_scale(a, tn_tensor_nd(a, TN_F32, 8), 1, 0);
    tn_stream *stream = backend_of(5, 3000);
    tn_program *program;
    assert_ok(tn_program_new(stream, &y, 1, &program));
    assert_int_equal(tn__cpu_program_threads(program), 3);
    tn_program_free(program);
    assert_ok(tn_program_new(stream, &tiny, 1, &program));
    assert_int_equal(tn__cpu_program_threads(program), 1);
    tn_program_free(program);
    assert_ok(tn_program_new(stream, NULL, 0, &program)); /* an empty program is valid */
    assert_ok(tn_program_run(program, NULL));
    tn_program_free(program);
    tn_stream_free(stream);
    tn_arena_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_keep_the_bits_of_one_after_the_other),
        cmocka_unit_test(independent_products_share_a_step_and_tiny_nodes_too),
        cmocka_unit_test(threads_go_on_with_their_own_rows_and_the_last_row_named_wins),
        cmocka_unit_test(threads_are_no_more_than_the_widest_node_can_use),
        cmocka_unit_test(single_rows_have_threads_of_their_own_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Predictions: the formula on given rates, the registry of peaks, and measuring small devices. */
#include "support.h"

#include "speed/speed_internal.h"
#include "tenon/cpu.h"
#include "tenon/recurrent.h"
#include "tenon/speed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define assert_near(expected, actual)                                                                                \
    do {                                                                                                             \
        const double near_expected_ = (expected), near_actual_ = (actual);                                           \
        if (!(fabs(near_actual_ - near_expected_) <= 1e-9 * fabs(near_expected_)))                                   \
            fail_msg("%s is %.12g, not %.12g", #actual, near_actual_, near_expected_);                               \
    } while (0)

/* 1 TB/s, 100 TFLOP/s, a link of 10 GB/s, 5 µs per node. */
#define CARD "sim:1G,read=1000000000000,f16=100000000000000,i8=200000000000000,link=10000000000,launch=5us"

typedef struct predict_case {
    tn_arena *arena;
    tn_sched *sched;
    tn_buffer *buffers[32];
    size_t n_buffers;
} predict_case;

static void begin_case(predict_case *c, const char *device) {
    *c = (predict_case){0};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &c->arena));
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {device}}, &c->sched));
}
static void end_case(predict_case *c) {
    tn_sched_free(c->sched);
    for (size_t i = 0; i < c->n_buffers; i++) tn_buffer_free(c->buffers[i]);
    tn_arena_free(c->arena);
}
/* A tensor in memory for weights of a stream's device. */
static tn_tensor *weights_on(predict_case *c, size_t stream, tn_tensor *t) {
    tn_buffer_type *type = tn_device_buffer_type(tn_stream_device(tn_sched_stream(c->sched, stream)));
    tn_buffer **buffer = &c->buffers[c->n_buffers++];
    assert_ok(tn_buffer_new(type, tn_buffer_type_tensor_size(type, t), buffer));
    tn_buffer_set_usage(*buffer, TN_USAGE_WEIGHTS);
    assert_ok(tn_buffer_bind(*buffer, t, 0));
    return t;
}
static tn_prediction predict(predict_case *c, tn_tensor *node, int64_t n_past) {
    tn_graph *graph;
    tn_prediction p;
    assert_ok(tn_graph_of(c->arena, node, &graph));
    assert_ok(tn_predict_graph(c->sched, graph, &(tn_predict_params){.n_past = n_past}, &p));
    return p;
}

static void test_matmul(void **state) {
    predict_case c;
    begin_case(&c, CARD);
    tn_tensor *w = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_Q8_0, 4096, 4096));
    const double bytes = (double)tn_nbytes(w);
    for (int64_t rows = 1; rows <= 512; rows *= 512) {
        tn_tensor *x = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F32, 4096, rows));
        tn_prediction p = predict(&c, tn_mul_mat(c.arena, w, x), 0);
        const double operations = 2.0 * 4096 * 4096 * (double)rows;
        assert_near(operations, p.operations);
        assert_near(fmax(bytes / 1e12, operations / 1e14), p.multiply);
        assert_near(p.multiply + p.launch, p.seconds);
        assert_true(p.launch >= 5e-6);
        assert_int_equal(1, p.nodes);
        if (rows > 1) assert_int_equal(TN_LIMIT_ARITHMETIC, p.limit);
    }
    end_case(&c);
}

/* Of tables only the rows that are named count, of results in place only what is written. */
static void test_costs(void **state) {
    predict_case c;
    begin_case(&c, CARD);
    tn_arena *a = c.arena;
    enum { WIDE = 96, ROWS = 40, NAMED = 5 };
    const double row = WIDE * sizeof(float);
    tn_tensor *table = tn_tensor_nd(a, TN_F32, WIDE, ROWS), *some = tn_input(a, TN_F32, WIDE, NAMED);
    tn_tensor *halves = tn_tensor_nd(a, TN_F16, WIDE, NAMED), *ids = tn_input(a, TN_I32, NAMED);
    const struct {
        tn_tensor *node;
        double bytes;
    } cases[] = {
        {tn_get_rows(a, table, ids), 2 * NAMED * row},
        {tn_set_rows(a, table, some, tn_input(a, TN_I64, NAMED)), 2 * NAMED * row},
        {tn_cpy(a, some, halves), NAMED * row * 1.5},
        {tn_add(a, some, some), 3 * NAMED * row},
        {tn_silu(a, some), 2 * NAMED * row},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!cases[i].node) fail_msg("case %zu: %s", i, tn_error());
        const tn__cost cost = tn__node_cost(cases[i].node, &(tn_predict_params){0});
        assert_int_equal(cost.kind, TN__COST_OTHER);
        assert_near(cases[i].bytes, cost.bytes);
    }
    /* Of a matmul both factors and the result are moved. Matrices of a batch have rows of their own. */
    tn_tensor *w = tn_tensor_nd(a, TN_F32, WIDE, ROWS), *batch = tn_tensor_nd(a, TN_F32, WIDE, ROWS, 3);
    tn__cost cost = tn__node_cost(tn_mul_mat(a, w, tn_input(a, TN_F32, WIDE, NAMED, 3)), &(tn_predict_params){0});
    assert_near(ROWS * row + 3 * NAMED * (row + ROWS * sizeof(float)), cost.bytes);
    assert_near(3 * NAMED, cost.rows);
    assert_near(2.0 * WIDE * ROWS * NAMED * 3, cost.operations);
    cost = tn__node_cost(tn_mul_mat(a, batch, tn_input(a, TN_F32, WIDE, NAMED, 3)), &(tn_predict_params){0});
    assert_near(NAMED, cost.rows);
    end_case(&c);
}

/* A copy from one GPU to another goes over both links; outputs are copied to the host. */
static void test_copies(void **state) {
    predict_case c = {0};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &c.arena));
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {CARD ",name=left", CARD ",link=5000000000,name=right"}},
                           &c.sched));
    enum { SIDE = 256, ROWS = 4 };
    tn_tensor *first = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F16, SIDE, SIDE)),
              *second = weights_on(&c, 1, tn_tensor_nd(c.arena, TN_F16, SIDE, SIDE)),
              *x = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F32, SIDE, ROWS));
    const double bytes = (double)tn_nbytes(x);
    tn_tensor *between = tn_mul_mat(c.arena, first, x);
    tn_prediction p = predict(&c, tn_mul_mat(c.arena, second, between), 0);
    assert_near(bytes, p.copy_bytes);
    assert_near(bytes / 1e10 + bytes / 5e9, p.copies);
    assert_near(2, p.nodes);
    tn_device_speed speed;
    assert_ok(tn_device_get_speed(tn_stream_device(tn_sched_stream(c.sched, 1)), 0, &speed));
    assert_near(2 * (5e-6 + speed.run), p.launch); /* a node and a run on each */
    assert_true(p.streams[0] > 0 && p.streams[1] > 0);
    assert_near(p.copies + p.streams[0] + p.streams[1], p.seconds);
    assert_int_equal(TN_LIMIT_LAUNCH, p.limit);
    p = predict(&c, tn_output(tn_mul_mat(c.arena, first, x)), 0);
    assert_near(0, p.copy_bytes);
    assert_near(bytes / 1e10, p.copies);
    end_case(&c);
}

/* Launches have a cost of their own for prefill, decode and experts. */
static void test_launches(void **state) {
    predict_case c;
    begin_case(&c, CARD);
    tn_device *device = tn_stream_device(tn_sched_stream(c.sched, 0));
    tn_device_speed speed;
    assert_ok(tn_device_get_speed(device, 0, &speed));
    speed.run = 1e-3;
    speed.launch[TN_LAUNCH_DECODE] = 1e-6;
    speed.launch[TN_LAUNCH_EXPERTS] = 2e-6;
    speed.launch[TN_LAUNCH_PREFILL] = 3e-6;
    assert_ok(tn_device_set_speed(device, 0, &speed));
    tn_tensor *w = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F16, 64, 64)),
              *experts = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F16, 64, 64, 4));
    for (int64_t rows = 1; rows <= 9; rows += 4) { /* up to 8 rows are few */
        tn_tensor *x = tn_input(c.arena, TN_F32, 64, rows);
        assert_near(1e-3 + (rows > 8 ? 3e-6 : 1e-6), predict(&c, tn_mul_mat(c.arena, w, x), 0).launch);
    }
    tn_tensor *x = tn_input(c.arena, TN_F32, 64, 8), *one = tn_input(c.arena, TN_F32, 64, 1, 1);
    assert_near(1e-3 + 1e-6, predict(&c, tn_mul_mat(c.arena, w, x), 0).launch);
    tn_tensor *chosen = tn_mul_mat_id(c.arena, experts, one, tn_input(c.arena, TN_I32, 2, 1));
    assert_near(1e-3 + 2e-6, predict(&c, chosen, 0).launch);
    assert_string_equal("launches", tn_speed_limit_name(TN_LIMIT_LAUNCH));
    assert_string_equal("?", tn_speed_limit_name((tn_speed_limit)4));
    assert_ok(tn_device_set_speed(device, 0, NULL));
    end_case(&c);
}

/* An expert's matrix is read once however many tokens chose it, and not at all if none did. */
static void test_experts(void **state) {
    predict_case c;
    begin_case(&c, CARD);
    enum { EXPERTS = 64, USED = 4, SIDE = 512 };
    tn_tensor *w = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F16, SIDE, SIDE, EXPERTS));
    const double each = (double)tn_nbytes(w) / EXPERTS;
    const double tokens[] = {1, 16, 4096};
    double before = 0;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const int64_t n = (int64_t)tokens[i];
        tn_tensor *ids = tn_input(c.arena, TN_I32, USED, n), *x = tn_input(c.arena, TN_F32, SIDE, 1, n);
        tn_tensor *node = tn_mul_mat_id(c.arena, w, x, ids);
        assert_non_null(node);
        const tn__cost cost = tn__node_cost(node, &(tn_predict_params){0});
        const double in_use = EXPERTS * (1 - pow(1 - (double)USED / EXPERTS, tokens[i]));
        assert_near(in_use * each, cost.weights);
        assert_near(cost.weights + (double)(tn_nbytes(x) + tn_nbytes(node)), cost.bytes);
        assert_near(USED * tokens[i] / in_use, cost.rows);
        assert_true(cost.weights > before);
        before = cost.weights;
    }
    assert_true(before <= (double)tn_nbytes(w) && before > 0.99 * (double)tn_nbytes(w));
    end_case(&c);
}

static void test_attention(void **state) {
    predict_case c;
    begin_case(&c, CARD);
    enum { HEAD = 128, HEADS = 32, KV = 8, CELLS = 4096 };
    tn_arena *a = c.arena;
    tn_attention_sources s = {.q = tn_input(a, TN_F32, HEAD, HEADS, 1),
                              .k = weights_on(&c, 0, tn_tensor_nd(a, TN_F16, HEAD, KV, CELLS)),
                              .v = weights_on(&c, 0, tn_tensor_nd(a, TN_F16, HEAD, KV, CELLS)),
                              .q_pos = tn_input(a, TN_I32, 2, 1),
                              .pages = tn_input(a, TN_I32, 4, 1 + CELLS / 64)};
    tn_attention_params p = {.scale = 1, .causal = 1, .page = 64};
    tn_tensor *full = tn_attention(a, &s, &p);
    p.window = 512;
    tn_tensor *window = tn_attention(a, &s, &p);
    tn_prediction empty = predict(&c, full, 0), half = predict(&c, full, 1023), deep = predict(&c, full, 2047);
    assert_near(1024 * empty.attention, half.attention);
    assert_near(2048 * empty.attention, deep.attention);
    const double bytes = 2048.0 * KV * HEAD * 2 * 2;
    assert_near(bytes / 1e12, deep.attention);
    tn_prediction near = predict(&c, window, 2047);
    assert_near(deep.attention * 513 / 2048, near.attention); /* the window and the row itself */
    /* Several rows see half of each other if attention is causal; sequences do not see each other. */
    enum { ROWS = 12 };
    s.q = tn_input(a, TN_F32, HEAD, HEADS, ROWS);
    s.q_pos = tn_input(a, TN_I32, 2, ROWS);
    const tn_predict_params past = {.n_past = 100}, apart = {.n_past = 100, .n_seqs = 3};
    tn_tensor *causal = tn_attention(a, &s, &(tn_attention_params){.scale = 1, .causal = 1, .page = 64}),
              *whole = tn_attention(a, &s, &(tn_attention_params){.scale = 1, .page = 64}),
              *chunked =
                  tn_attention(a, &s, &(tn_attention_params){.scale = 1, .causal = 1, .chunk = 50, .page = 64});
    tn__cost cost = tn__node_cost(causal, &past);
    assert_near((100 + 6.5) * ROWS * HEADS, cost.scores);
    assert_near((100 + ROWS) * KV, cost.keys);
    assert_near(4 * HEAD * cost.scores, cost.operations);
    assert_near((100 + ROWS) * KV * HEAD * 2 * 2, cost.weights);
    assert_near(cost.weights + (double)(tn_nbytes(s.q) + tn_nbytes(causal)), cost.bytes);
    assert_near((100 + ROWS) * ROWS * HEADS, tn__node_cost(whole, &past).scores);
    assert_near(50 * ROWS * HEADS, tn__node_cost(chunked, &past).scores);
    cost = tn__node_cost(causal, &apart);
    assert_near(ROWS / 3, cost.rows);
    assert_near((100 + 2.5) * ROWS * HEADS, cost.scores);
    assert_near(3 * (100 + 4) * KV, cost.keys);
    end_case(&c);
}

/* One row over 1,024 cells of a cache. */
/* Every sequence reads and writes one row of the state; operations follow tokens. */
static void test_recurrent(void **state) {
    predict_case c;
    begin_case(&c, CARD);
    enum { SIZE = 128, HEADS = 16, TOKENS = 12, ROWS = 50 };
    tn_arena *a = c.arena;
    tn_linear_attention_sources s = {.q = tn_input(a, TN_F32, SIZE, HEADS, TOKENS),
                                     .k = tn_input(a, TN_F32, SIZE, HEADS, TOKENS),
                                     .v = tn_input(a, TN_F32, SIZE, HEADS, TOKENS),
                                     .state = weights_on(&c, 0, tn_tensor_nd(a, TN_F32, SIZE * SIZE * HEADS, ROWS)),
                                     .steps = tn_input(a, TN_I32, 4, TOKENS)};
    tn_tensor *node = tn_linear_attention(a, &s, &(tn_linear_attention_params){.scale = 1, .delta = 1});
    const double row = SIZE * SIZE * HEADS * 4.0, rows = 4.0 * (double)tn_nbytes(node) + TOKENS * 16;
    for (int seqs = 1; seqs <= 3; seqs++) {
        tn__cost cost = tn__node_cost(node, &(tn_predict_params){.n_seqs = seqs});
        assert_near(2 * row * seqs, cost.weights);
        assert_near(2 * row * seqs + rows, cost.bytes);
        assert_near(7.0 * SIZE * SIZE * HEADS * TOKENS, cost.operations);
    }
    assert_near((2 * row + rows) / 1e12, predict(&c, node, 0).attention);
    end_case(&c);
}

static double attention_time(predict_case *c, int64_t heads, int64_t kv_heads, int64_t head) {
    tn_arena *a = c->arena;
    enum { CELLS = 1024 };
    tn_attention_sources s = {.q = tn_input(a, TN_F32, head, heads, 1),
                              .k = weights_on(c, 0, tn_tensor_nd(a, TN_F16, head, kv_heads, CELLS)),
                              .v = weights_on(c, 0, tn_tensor_nd(a, TN_F16, head, kv_heads, CELLS)),
                              .q_pos = tn_input(a, TN_I32, 2, 1),
                              .pages = tn_input(a, TN_I32, 4, 1 + CELLS / 64)};
    const tn_attention_params p = {.scale = 1, .causal = 1, .page = 64};
    return predict(c, tn_attention(a, &s, &p), CELLS - 1).attention;
}

/* Costs that do not grow with bytes and operations: the ends of matmuls, and keys. */
static void test_fixed_costs(void **state) {
    predict_case c;
    begin_case(&c, CARD);
    tn_device *device = tn_stream_device(tn_sched_stream(c.sched, 0));
    tn_device_speed speed;
    assert_ok(tn_device_get_speed(device, 0, &speed));
    tn_tensor *w = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F16, 256, 256));
    tn_tensor *one = tn_input(c.arena, TN_F32, 256, 1), *many = tn_input(c.arena, TN_F32, 256, 512);
    const double before[] = {predict(&c, tn_mul_mat(c.arena, w, one), 0).multiply,
                             predict(&c, tn_mul_mat(c.arena, w, many), 0).multiply};
    speed.ramp = 1e-3;
    const double keys[TN_SPEED_GROUPS] = {8e9, 4e9, 1e9};
    memcpy(speed.attention_keys, keys, sizeof keys);
    assert_ok(tn_device_set_speed(device, 0, &speed));
    assert_near(before[0], predict(&c, tn_mul_mat(c.arena, w, one), 0).multiply);
    assert_near(before[1] + 1e-3, predict(&c, tn_mul_mat(c.arena, w, many), 0).multiply);
    /* By heads per key: the points, between them, and beyond. */
    assert_near(8 * 1024 / 8e9, attention_time(&c, 8, 8, 128));
    assert_near(8 * 1024 / 4e9, attention_time(&c, 32, 8, 128));
    assert_near(2 * 1024 * (0.5 / 4e9 + 0.5 / 1e9), attention_time(&c, 12, 2, 128));
    assert_near(1024 / 1e9 * 2, attention_time(&c, 16, 1, 128));
    assert_near(4 * 1024 / 4e9, attention_time(&c, 32, 8, 64)); /* half the bytes */
    speed.attention_fixed = 0.6;
    assert_ok(tn_device_set_speed(device, 0, &speed));
    assert_near(8 * 1024 / 4e9 * 0.8, attention_time(&c, 32, 8, 64));
    assert_ok(tn_device_set_speed(device, 0, NULL));
    end_case(&c);
}

/* Weights in plain host memory are taken to be mapped. Those in a device's memory and other operands are not. */
static void test_mapped(void **state) {
    tn_device_speed speed = {.read = 4e9, .read_mapped = 1e9};
    for (int i = 0; i < TN_SPEED_POINTS; i++) speed.multiply[TN_F32][i] = 1e15;
    for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
        predict_case c;
        begin_case(&c, on_cpu ? "cpu" : CARD);
        tn_device *device = tn_stream_device(tn_sched_stream(c.sched, 0));
        assert_ok(tn_device_set_speed(device, 0, &speed));
        tn_tensor *w = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F32, 256, 256)),
                  *x = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F32, 256, 1));
        assert_near((double)tn_nbytes(w) / (on_cpu ? 1e9 : 4e9), predict(&c, tn_mul_mat(c.arena, w, x), 0).multiply);
        tn_buffer_set_usage(c.buffers[0], TN_USAGE_ANY);
        assert_near((double)tn_nbytes(w) / 4e9, predict(&c, tn_mul_mat(c.arena, w, x), 0).multiply);
        assert_ok(tn_device_set_speed(device, 0, NULL));
        end_case(&c);
    }
}

/* Host weights that are copied over for a large batch count on the link. */
static void test_offload(void **state) {
    predict_case c;
    begin_case(&c, CARD ",offload=1");
    tn_tensor *w = weights_on(&c, 1, tn_tensor_nd(c.arena, TN_F16, 1024, 1024));
    tn_tensor *x = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F32, 1024, 64));
    tn_prediction p = predict(&c, tn_mul_mat(c.arena, w, x), 0);
    assert_true(p.copy_bytes >= (double)tn_nbytes(w));
    assert_true(p.copies >= (double)tn_nbytes(w) / 1e10);
    assert_int_equal(TN_LIMIT_LINK, p.limit);
    assert_true(p.seconds >= p.copies);
    end_case(&c);
}

static void test_registry(void **state) {
    tn_device *cpu;
    tn_device_speed speed = {.read = 5e9, .move = 5e9}, found;
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_device_set_speed(cpu, 3, NULL)); /* nothing to forget */
    assert_fails(TN_E_STATE, tn_device_get_speed(cpu, 3, &found));
    assert_non_null(strstr(tn_error(), "--measure"));
    predict_case c;
    begin_case(&c, "cpu");
    tn_tensor *w = weights_on(&c, 0, tn_tensor_nd(c.arena, TN_F32, 64, 64));
    tn_graph *graph;
    tn_prediction p;
    assert_ok(tn_graph_of(c.arena, tn_mul_mat(c.arena, w, tn_input(c.arena, TN_F32, 64, 1)), &graph));
    const tn_predict_params params = {.n_threads = 3};
    assert_fails(TN_E_STATE, tn_predict_graph(c.sched, graph, &params, &p));
    speed.multiply[TN_F32][0] = 1e9;
    assert_ok(tn_device_set_speed(cpu, 3, &speed));
    assert_ok(tn_device_get_speed(cpu, 3, &found));
    assert_near(5e9, found.read);
    assert_fails(TN_E_STATE, tn_device_get_speed(cpu, 4, &found));
    assert_ok(tn_predict_graph(c.sched, graph, &params, &p));
    assert_near(2.0 * 64 * 64 / 1e9, p.seconds);
    assert_fails(TN_E_INVALID, tn_predict_graph(c.sched, graph, &(tn_predict_params){.n_past = -1}, &p));
    assert_ok(tn_device_set_speed(cpu, 3, NULL));
    assert_fails(TN_E_STATE, tn_device_get_speed(cpu, 3, &found));
    end_case(&c);
    for (int i = 0; i < 200; i++) { /* no more than there is room for */
        tn_status status = tn_device_set_speed(cpu, 100 + i, &speed);
        if (status != TN_OK) assert_int_equal(TN_E_FULL, status);
    }
    for (int i = 0; i < 200; i++) assert_ok(tn_device_set_speed(cpu, 100 + i, NULL));
}

/* Between two points the time of a matmul is a straight line, so it never shrinks while rows are added. */
static void test_points(void **state) {
    tn_device_speed s = {.read = 1e9};
    const double rates[TN_SPEED_POINTS] = {1e9, 6e9, 10e9, 20e9, 25e9};
    memcpy(s.multiply[TN_Q4_K], rates, sizeof rates);
    for (int i = 0; i < TN_SPEED_POINTS; i++)
        assert_near(rates[i], tn_speed_multiply(&s, TN_Q4_K, (double)tn_speed_rows(i)));
    double before = 0;
    for (int rows = 1; rows < 2000; rows++) {
        const double time = rows / tn_speed_multiply(&s, TN_Q4_K, rows);
        assert_true(time > before);
        before = time;
    }
    assert_near(20.0 / tn_speed_multiply(&s, TN_Q4_K, 20), (8 / 6e9 + 32 / 10e9) / 2);
    /* The only measured type stands for the others. */
    assert_near(6e9, tn_speed_multiply(&s, TN_Q4_0, 8));
    assert_near(0, tn_speed_multiply(&(tn_device_speed){0}, TN_F16, 1));
    assert_int_equal(0, tn_speed_rows(TN_SPEED_POINTS));
    assert_int_equal(0, tn_speed_group(TN_SPEED_GROUPS));
}

static bool cancel_at_two(void *user, size_t done, size_t total) {
    assert_true(done >= 1 && done <= total);
    return ++*(int *)user < 2;
}

static void test_measure(void **state) {
    static const tn_type types[] = {TN_Q8_0};
    const tn_measure_params params = {.n_threads = 1, .types = types, .n_types = 1};
    tn_device *device;
    tn_device_speed s;
    assert_ok(tn_device_find("sim:64M", &device));
    assert_ok(tn_device_measure(device, &params, &s));
    assert_true(s.read > 0 && s.move > 0 && s.link > 0 && s.launch[TN_LAUNCH_DECODE] > 0);
    for (int i = 0; i < TN_SPEED_GROUPS; i++) assert_true(s.attention_keys[i] > 0);
    assert_true(s.attention_many > 0 && s.attention_fixed >= 0 && s.attention_fixed <= 1 && s.ramp >= 0);
    assert_false(s.given);
    for (int i = 0; i < TN_SPEED_POINTS; i++) assert_true(s.multiply[TN_Q8_0][i] > 0);
    /* The peak is an upper bound of what matmuls read. */
    assert_true(s.read >= s.multiply[TN_Q8_0][0] / 2 * 34 / 32 * 0.999);
    size_t available, total;
    assert_ok(tn_device_memory(device, &available, &total));
    assert_int_equal(total, available); /* everything was given back */

    int calls = 0;
    tn_measure_params cancel = params;
    cancel.progress = cancel_at_two;
    cancel.user = &calls;
    assert_fails(TN_E_ABORTED, tn_device_measure(device, &cancel, &s));
    /* Too small, or unable: a status, or zeros. */
    static const char *const odd[] = {"sim:1M", "sim:24M,ops=mul_mat+add", "sim:24M,max-alloc=1M"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        assert_ok(tn_device_find(odd[i], &device));
        tn_status status = tn_device_measure(device, &params, &s);
        if (status != TN_OK) assert_int_equal(TN_E_UNSUPPORTED, status);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),    cmocka_unit_test(test_costs),     cmocka_unit_test(test_experts),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_recurrent), cmocka_unit_test(test_fixed_costs),
        cmocka_unit_test(test_mapped),    cmocka_unit_test(test_offload),   cmocka_unit_test(test_copies),
        cmocka_unit_test(test_launches),  cmocka_unit_test(test_registry),  cmocka_unit_test(test_points),
        cmocka_unit_test(test_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

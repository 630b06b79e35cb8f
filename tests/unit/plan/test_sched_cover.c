/* Reservation in steps: cover, needs, take, seal; strict schedulers; growth that is logged. */
#include "sched_case.h"

#include "runtime/sched_internal.h"
#include "tenon/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGEST = 64 };

/* Weights on the device, so that the nodes run there. */
static tn_arena *gain_arena;
static tn_tensor *gain;
static tn_buffer *gain_buffer;
static const size_t gain_bytes = 256;

static void open_case(const char *spec, const char *name, tn_sched_params params, tn_sched **s) {
    tn_device *device;
    params.devices[0] = spec;
    params.n_threads = 1;
    assert_ok(tn_sched_new(&params, s));
    assert_ok(tn_device_find(name, &device));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 4096, .no_alloc = true}, &gain_arena));
    gain = tn_tensor_nd(gain_arena, TN_F32, WIDTH);
    assert_ok(tn_buffer_new(tn_device_buffer_type(device), gain_bytes, &gain_buffer));
    tn_buffer_set_usage(gain_buffer, TN_USAGE_WEIGHTS);
    assert_ok(tn_buffer_bind(gain_buffer, gain, 0));
    float ones[WIDTH];
    for (int i = 0; i < WIDTH; i++) ones[i] = 1;
    assert_ok(tn_tensor_set(gain, ones));
}
static void close_case(tn_sched *s) {
    tn_sched_free(s);
    tn_buffer_free(gain_buffer);
    tn_arena_free(gain_arena);
}

/* One structure for all numbers of rows; with `wide` another one. */
static tn_graph *rows_graph(tn_arena *arena, int64_t rows, bool wide, tn_tensor **in, tn_tensor **out) {
    tn_graph *graph;
    tn_arena_reset(arena);
    tn_tensor *x = *in = tn_input(arena, TN_F32, WIDTH, rows), *y = x;
    for (int i = 0; i < 6; i++) {
        tn_tensor *z = wide && i == 3 ? tn_concat(arena, y, x, 0) : tn_add(arena, y, x);
        y = tn_silu(arena, z);
        if (wide && i == 3) y = tn_sum_rows(arena, y);
        y = tn_rms_norm(arena, tn_add(arena, x, y), gain, 1e-5f);
    }
    tn_name(arena, y, "result %d", (int)rows);
    *out = tn_output(y);
    assert_ok(tn_graph_of(arena, y, &graph));
    return graph;
}

static tn_arena *graph_arena(void) {
    tn_arena *arena;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 17, .no_alloc = true}, &arena));
    return arena;
}

static tn_status run_rows(tn_sched *s, tn_arena *arena, int64_t rows, bool wide, float *got) {
    tn_tensor *in, *out;
    tn_graph *graph = rows_graph(arena, rows, wide, &in, &out);
    TN_TRY(tn_sched_alloc(s, graph));
    float data[WIDTH * 2 * LARGEST];
    for (size_t i = 0; i < WIDTH * 2 * LARGEST; i++) data[i] = (float)(i % 17) - 8;
    TN_TRY(tn_tensor_set(in, data));
    TN_TRY(tn_sched_run(s, graph));
    return got ? tn_tensor_get(out, got) : TN_OK;
}

static void cover_rows(tn_sched *s, int64_t rows, bool wide) {
    tn_arena *arena = graph_arena();
    tn_tensor *in, *out;
    assert_ok(tn_sched_cover(s, rows_graph(arena, rows, wide, &in, &out)));
    tn_arena_free(arena); /* the graph is not kept */
}

/* Every graph covered by a sealed reservation runs on a device of exactly the planned size, in any order of covering,
 * and gives the same bits as with ample memory. */
static void a_device_of_the_planned_size_runs_every_covered_graph(void **state) {
    (void)state;
    const char *limits[] = {"", ",max-alloc=20K", ",max-alloc=17K"};
    size_t needed = 0;
    static float want[2][LARGEST + 1][WIDTH * LARGEST], got[WIDTH * LARGEST];
    tn_arena *arena = graph_arena();
    for (size_t limit = 0; limit < 3; limit++) {
        for (int turn = 0; turn < 4; turn++) { /* 0: ample; then exact, in three orders of covering */
            char device[96], name[16];
            snprintf(name, sizeof name, "exact%zu%d", limit, turn);
            snprintf(device, sizeof device, "sim:%zu%s,name=%s", turn ? needed + gain_bytes : 1 << 24, limits[limit],
                     name);
            tn_sched *s;
            tn_sched_memory memory[2], taken;
            open_case(device, name, (tn_sched_params){0}, &s);
            if (turn == 2) cover_rows(s, 3, false);
            cover_rows(s, LARGEST, turn == 3);
            cover_rows(s, LARGEST, turn != 3);
            for (int64_t n = 1; n < LARGEST; n++) cover_rows(s, n, n % 2);
            assert_int_equal(tn_sched_memory_of(s, 0).compute, 0);
            assert_ok(tn_sched_needs(s, memory));
            if (turn < 2) needed = memory[0].compute + memory[0].scratch;
            if (memory[0].compute + memory[0].scratch <= needed) {
                assert_true(memory[0].in_order >= memory[0].lower_bound && memory[0].lower_bound);
                assert_ok(tn_sched_take(s));
                taken = tn_sched_memory_of(s, 0);
                assert_int_equal(taken.compute, memory[0].compute);
                assert_int_equal(taken.scratch, memory[0].scratch);
                assert_ok(tn_sched_seal(s));
                for (int64_t n = LARGEST; n >= 1; n--)
                    for (int wide = 0; wide < 2; wide++) {
                        assert_ok(run_rows(s, arena, n, wide, turn || limit ? got : want[wide][n]));
                        if (turn || limit) assert_memory_equal(want[wide][n], got, (size_t)n * WIDTH * sizeof(float));
                    }
                assert_int_equal(tn_sched_memory_of(s, 0).compute, taken.compute);
                assert_int_equal(tn_sched_get_stats(s).buffers_grown, 0);
            } else {
                assert_true(turn > 1); /* another order may need more, not less than is said */
            }
            close_case(s);
        }
    }
    tn_arena_free(arena);
}

static void a_sealed_reservation_does_not_grow(void **state) {
    (void)state;
    tn_sched *s;
    tn_sched_memory memory[2];
    tn_arena *arena = graph_arena();
    tn_tensor *in, *out;
    open_case("sim:16M,name=sealed", "sealed", (tn_sched_params){0}, &s);
    cover_rows(s, 8, false);
    assert_ok(tn_sched_take(s));
    assert_ok(tn_sched_seal(s));
    size_t used = used_on("sealed");
    assert_ok(run_rows(s, arena, 8, false, NULL));
    assert_fails(TN_E_INTERNAL, run_rows(s, arena, 9, false, NULL));
    assert_non_null(strstr(tn_error(), "result 9"));
    assert_non_null(strstr(tn_error(), "bytes"));
    assert_non_null(strstr(tn_error(), "bug in the session's plan"));
    assert_fails(TN_E_INTERNAL, run_rows(s, arena, 2, true, NULL)); /* would fit, but was not covered */
    assert_non_null(strstr(tn_error(), "structure"));
    assert_fails(TN_E_INTERNAL, tn_sched_cover(s, rows_graph(arena, 9, false, &in, &out)));
    assert_fails(TN_E_INTERNAL, tn_sched_reserve(s, rows_graph(arena, 9, false, &in, &out)));
    assert_ok(tn_sched_cover(s, rows_graph(arena, 5, false, &in, &out)));
    assert_ok(tn_sched_reserve(s, rows_graph(arena, 5, false, &in, &out)));
    assert_int_equal(used_on("sealed"), used);
    tn_sched_reset(s); /* what is reserved stays */
    assert_ok(run_rows(s, arena, 7, false, NULL));
    assert_fails(TN_E_INTERNAL, run_rows(s, arena, 9, false, NULL));
    assert_ok(tn_sched_needs(s, memory));
    assert_int_equal(used_on("sealed"), used);
    assert_int_equal(memory[0].missing, 0);
    /* Another scheduler may still enlarge the memory; the sealed one then binds again. */
    tn_sched *other;
    float first[WIDTH * 8], again[WIDTH * 8];
    assert_ok(run_rows(s, arena, 8, false, first));
    assert_ok(tn_sched_new(&(tn_sched_params){.share = s}, &other));
    cover_rows(other, LARGEST, true);
    assert_ok(tn_sched_take(other));
    assert_true(used_on("sealed") > used);
    assert_ok(run_rows(other, arena, LARGEST, true, NULL));
    assert_ok(run_rows(s, arena, 8, false, again));
    assert_memory_equal(first, again, sizeof first);
    assert_fails(TN_E_INTERNAL, run_rows(s, arena, 9, false, NULL));
    tn_sched_free(other);
    close_case(s);
    tn_arena_free(arena);
}

static char logged[4096];
static void keep_log(void *user, tn_log_level level, const char *text) {
    (void)user;
    if (level == TN_LOG_WARN) strncat(logged, text, sizeof logged - strlen(logged) - 1);
}

static void growth_is_logged_and_strict_schedulers_refuse_it(void **state) {
    (void)state;
    tn_sched *s, *strict;
    tn_arena *arena = graph_arena();
    tn_log_set(keep_log, NULL, TN_LOG_WARN);
    open_case("sim:16M,name=grows", "grows", (tn_sched_params){0}, &s);
    cover_rows(s, 8, false);
    assert_ok(tn_sched_take(s));
    logged[0] = '\0';
    assert_ok(run_rows(s, arena, 8, false, NULL));
    assert_ok(run_rows(s, arena, 3, false, NULL));
    assert_string_equal(logged, "");
    size_t from = tn_sched_memory_of(s, 0).compute;
    assert_ok(run_rows(s, arena, 20, false, NULL));
    char expected[64];
    snprintf(expected, sizeof expected, "from %zu to %zu", from, tn_sched_memory_of(s, 0).compute);
    assert_non_null(strstr(logged, "grows:"));
    assert_non_null(strstr(logged, expected));
    assert_non_null(strstr(logged, "result 20"));
    close_case(s);

    open_case("sim:16M,name=strict", "strict", (tn_sched_params){.strict = true}, &strict);
    assert_fails(TN_E_STATE, run_rows(strict, arena, 8, false, NULL)); /* nothing is reserved yet */
    cover_rows(strict, 8, false);
    assert_ok(tn_sched_take(strict));
    size_t used = used_on("strict");
    assert_ok(run_rows(strict, arena, 8, false, NULL));
    assert_fails(TN_E_STATE, run_rows(strict, arena, 20, false, NULL));
    assert_non_null(strstr(tn_error(), "reserve"));
    assert_ok(run_rows(strict, arena, 4, true, NULL)); /* not covered, but it fits */
    assert_int_equal(used_on("strict"), used);
    assert_ok(run_rows(strict, arena, 5, false, NULL));
    close_case(strict);
    tn_log_set(NULL, NULL, TN_LOG_WARN);
    tn_arena_free(arena);
}

static void a_take_that_fails_changes_nothing(void **state) {
    (void)state;
    tn_sched *s;
    tn_arena *arena = graph_arena();
    tn_tensor *in, *out;
    float first[WIDTH * 8], again[WIDTH * 8];
    tn_graph *graph;
    open_case("sim:12K,name=small", "small", (tn_sched_params){0}, &s);
    cover_rows(s, 8, false);
    assert_ok(tn_sched_take(s));
    assert_ok(run_rows(s, arena, 8, false, first));
    size_t used = used_on("small");
    cover_rows(s, LARGEST, false); /* the same class, too large for the device */
    assert_fails(TN_E_DEVICE_MEMORY, tn_sched_take(s));
    assert_int_equal(used_on("small"), used);
    assert_ok(run_rows(s, arena, 8, false, again));
    assert_memory_equal(first, again, sizeof first);
    assert_ok(run_rows(s, arena, 6, false, again));
    graph = rows_graph(arena, LARGEST, false, &in, &out);
    assert_fails(TN_E_DEVICE_MEMORY, tn_sched_reserve(s, graph));
    assert_int_equal(used_on("small"), used);
    assert_ok(run_rows(s, arena, 8, false, again));
    assert_memory_equal(first, again, sizeof first);
    close_case(s);
    tn_arena_free(arena);
}

static void saved_plans_are_verified_and_adopted(void **state) {
    (void)state;
    tn_sched *s, *again;
    tn_arena *arena = graph_arena();
    tn_tensor *in, *out;
    const tn_plan *plan, *adopted;
    tn_sched_memory memory[2], needs[2];
    open_case("sim:16M,name=saved", "saved", (tn_sched_params){0}, &s);
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,name=saved"}, .n_threads = 1}, &again));
    tn_graph *graph = rows_graph(arena, LARGEST, false, &in, &out);
    assert_ok(tn_sched_cover(s, graph));
    assert_ok(tn_sched_plan(s, graph, &plan, NULL));
    assert_ok(tn_sched_needs(s, memory));
    assert_ok(tn_sched_adopt(again, graph, plan));
    assert_ok(tn_sched_needs(again, needs));
    assert_memory_equal(memory, needs, sizeof memory);
    assert_ok(tn_sched_plan(again, graph, &adopted, NULL));
    assert_true(tn_plan_equal(plan, adopted));
    assert_ok(tn_sched_take(again));
    assert_ok(tn_sched_seal(again));
    assert_fails(TN_E_STATE, tn_sched_adopt(again, graph, plan));
    /* Through a file. */
    char path[] = "/tmp/tenon_plan_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    tn_sched *from_file;
    assert_ok(tn_sched_save_plan(s, graph, path));
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,name=saved"}, .n_threads = 1}, &from_file));
    assert_ok(tn_sched_load_plan(from_file, graph, path));
    assert_ok(tn_sched_plan(from_file, graph, &adopted, NULL));
    assert_true(tn_plan_equal(plan, adopted));
    assert_ok(tn_sched_needs(from_file, needs));
    assert_memory_equal(memory, needs, sizeof memory);
    graph = rows_graph(arena, LARGEST - 1, false, &in, &out);
    assert_fails(TN_E_STATE, tn_sched_load_plan(from_file, graph, path));
    tn_sched_reset(from_file); /* what was covered is forgotten */
    assert_ok(tn_sched_needs(from_file, needs));
    assert_int_equal(needs[0].compute + needs[0].scratch, 0);
    tn_sched_free(from_file);
    unlink(path);
    float got[WIDTH * LARGEST], want[WIDTH * LARGEST];
    for (int64_t n = 1; n <= LARGEST; n += 9) {
        assert_ok(run_rows(again, arena, n, false, got));
        assert_ok(run_rows(s, arena, n, false, want));
        assert_memory_equal(got, want, (size_t)n * WIDTH * 4);
    }
    tn_sched_free(again);
    /* A plan of a smaller graph, or of another structure. */
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,name=saved"}, .n_threads = 1}, &again));
    graph = rows_graph(arena, LARGEST + 1, false, &in, &out);
    assert_fails(TN_E_STATE, tn_sched_adopt(again, graph, plan));
    assert_non_null(strstr(tn_error(), "too few bytes"));
    graph = rows_graph(arena, 8, true, &in, &out);
    assert_fails(TN_E_STATE, tn_sched_adopt(again, graph, plan));
    graph = rows_graph(arena, 8, false, &in, &out);
    assert_ok(tn_sched_adopt(again, graph, plan)); /* it serves smaller graphs */
    tn_sched_free(again);
    close_case(s);
    tn_arena_free(arena);
}

/* ---- Order ---- */

/* Wide results that are all computed before the first is read, and rows of a cache that are written in between. */
static tn_graph *wasteful_graph(tn_arena *arena, tn_tensor *cache, int64_t rows, tn_tensor **in, tn_tensor **out) {
    enum { WIDE = 6 };
    tn_graph *graph;
    tn_arena_reset(arena);
    tn_tensor *x = *in = tn_input(arena, TN_F32, WIDTH, rows), *wide[WIDE], *sum = NULL;
    assert_ok(tn_graph_new(arena, 128, &graph));
    tn_tensor *first = tn_view(arena, cache, 2, (int64_t[]){WIDTH, rows}, cache->nb, 0);
    for (int i = 0; i < WIDE; i++) {
        tn_tensor *y = tn_rms_norm(arena, tn_scale(arena, x, (float)(i + 1), 0.5f), gain, 1e-5f);
        if (i == 2) assert_ok(tn_graph_add(graph, tn_cpy(arena, y, first)));
        wide[i] = tn_concat(arena, tn_concat(arena, y, x, 0), tn_concat(arena, x, i % 2 ? first : y, 0), 0);
        assert_ok(tn_graph_add(graph, wide[i]));
        if (i == 4) assert_ok(tn_graph_add(graph, tn_cpy(arena, tn_neg(arena, y), first)));
    }
    for (int i = 0; i < WIDE; i++) {
        tn_tensor *s = tn_sum_rows(arena, wide[i]);
        sum = sum ? tn_add(arena, sum, s) : s;
    }
    *out = tn_output(tn_add(arena, x, sum));
    assert_ok(tn_graph_add(graph, *out));
    return graph;
}

static void reordered_classes_need_less_and_give_the_same_bits(void **state) {
    (void)state;
    static float want[LARGEST + 1][WIDTH * LARGEST], got[WIDTH * LARGEST], data[WIDTH * LARGEST];
    for (int i = 0; i < WIDTH * LARGEST; i++) data[i] = (float)(i % 29) - 14;
    size_t compute[2];
    for (int reorder = 0; reorder < 2; reorder++) {
        tn_sched *s;
        tn_sched_memory memory[2];
        tn_device *device;
        tn_buffer *buffer;
        tn_tensor *in, *out;
        tn_arena *arena = graph_arena(), *outer = graph_arena();
        open_case("sim:16M,name=order", "order", (tn_sched_params){.reorder = reorder}, &s);
        assert_ok(tn_device_find("order", &device));
        tn_tensor *cache = tn_tensor_nd(outer, TN_F32, WIDTH, LARGEST);
        assert_ok(tn_buffer_new(tn_device_buffer_type(device), tn_nbytes(cache), &buffer));
        assert_ok(tn_buffer_bind(buffer, cache, 0));
        for (int64_t n = LARGEST; n > 0; n--)
            assert_ok(tn_sched_cover(s, wasteful_graph(arena, cache, n, &in, &out)));
        assert_ok(tn_sched_needs(s, memory));
        compute[reorder] = memory[0].compute;
        assert_ok(tn_sched_take(s));
        assert_ok(tn_sched_seal(s));
        for (int64_t n = 1; n <= LARGEST; n++) {
            tn_graph *graph = wasteful_graph(arena, cache, n, &in, &out);
            assert_ok(tn_buffer_clear(buffer, 0));
            assert_ok(tn_sched_alloc(s, graph));
            assert_ok(tn_tensor_set(in, data));
            assert_ok(tn_sched_run(s, graph));
            assert_ok(tn_tensor_get(out, reorder ? got : want[n]));
            if (reorder) assert_memory_equal(want[n], got, tn_nbytes(out));
        }
        assert_int_equal(tn_sched_get_stats(s).plans_made, 1); /* one class */
        assert_int_equal(tn_sched_get_stats(s).schedules_reordered > 0, reorder);
        tn_sched_reset(s);
        assert_ok(tn_sched_alloc(s, wasteful_graph(arena, cache, 7, &in, &out))); /* in the same order */
        close_case(s);
        tn_buffer_free(buffer);
        tn_arena_free(outer);
        tn_arena_free(arena);
    }
    assert_true(compute[1] < compute[0] / 2);
}

/* ---- Eval ---- */

static int evaluated;
static bool want_every(void *user, tn_tensor *node, bool ask) {
    const int *every = user;
    (void)node;
    evaluated += ask;
    return !ask || evaluated % *every == 0;
}

/* Nodes that need scratch: matrices of another type than the activations. */
static tn_graph *scratch_graph(tn_arena *arena, tn_tensor *matrix, int64_t rows, tn_tensor **in, tn_tensor **out) {
    tn_graph *graph;
    tn_tensor *x = *in = tn_input(arena, TN_F32, WIDTH, rows);
    for (int i = 0; i < 4; i++) x = tn_rms_norm(arena, tn_silu(arena, tn_mul_mat(arena, matrix, x)), gain, 1e-5f);
    *out = tn_output(x);
    assert_ok(tn_graph_of(arena, x, &graph));
    return graph;
}

/* The device has exactly the bytes of the plan: eval runs in the reserved scratch. */
static void eval_takes_no_memory(void **state) {
    (void)state;
    const char *names[] = {"ample", "full"};
    size_t needed = 0;
    float want[WIDTH * 8], got[WIDTH * 8], data[WIDTH * 8];
    for (int i = 0; i < WIDTH * 8; i++) data[i] = (float)(i % 23) - 11;
    for (int exact = 0; exact < 2; exact++) {
        char device[64];
        tn_sched *s;
        tn_sched_memory memory[2];
        tn_tensor *in, *out;
        tn_arena *arena = graph_arena();
        tn_buffer *buffer;
        tn_device *d;
        snprintf(device, sizeof device, "sim:%zu,name=%s", exact ? needed : 1 << 24, names[exact]);
        open_case(device, names[exact], (tn_sched_params){0}, &s);
        assert_ok(tn_device_find(names[exact], &d));
        tn_tensor *matrix = tn_tensor_nd(arena, TN_Q8_0, WIDTH, WIDTH);
        assert_ok(tn_buffer_new(tn_device_buffer_type(d), 2048, &buffer));
        tn_buffer_set_usage(buffer, TN_USAGE_WEIGHTS);
        assert_ok(tn_buffer_bind(buffer, matrix, 0));
        unsigned char bytes[34 * WIDTH];
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = i % 34 == 0 ? 0 : i % 34 == 1 ? 0x20 : (unsigned char)i;
        assert_ok(tn_tensor_set(matrix, bytes));
        tn_graph *graph = scratch_graph(arena, matrix, 8, &in, &out);
        assert_ok(tn_sched_measure(s, &graph, 1, memory));
        assert_true(memory[0].scratch > 0);
        needed = memory[0].compute + memory[0].scratch + gain_bytes + 2048;
        assert_ok(tn_sched_reserve(s, graph));
        if (exact) assert_int_equal(used_on("full"), needed);
        if (exact) assert_ok(tn_sched_seal(s));
        for (int every = 0; every <= 5; every++) {
            evaluated = 0;
            tn_sched_set_eval(s, every ? want_every : NULL, &every);
            assert_ok(tn_tensor_set(in, data));
            assert_ok(tn_sched_run(s, graph));
            assert_ok(tn_tensor_get(out, every || exact ? got : want));
            if (every || exact) assert_memory_equal(want, got, sizeof got);
            if (every) assert_true(evaluated >= 12);
        }
        if (exact) assert_int_equal(used_on("full"), needed);
        close_case(s);
        tn_buffer_free(buffer);
        tn_arena_free(arena);
    }
}

/* ---- Abort ---- */

typedef struct stopper {
    int asked, stop_at; /* 0: never */
} stopper;
static bool stops(void *user) {
    stopper *stop = user;
    return ++stop->asked == stop->stop_at;
}

/* The streams know nothing of the callback: the scheduler asks it, before every run and between splits. */
static void abort_is_asked_between_splits(void **state) {
    (void)state;
    enum { SPLITS = 6 };
    tn_stream *streams[3];
    const char *names[] = {"sim:1M,name=one", "sim:1M,name=two", "cpu"};
    for (int i = 0; i < 3; i++) {
        tn_device *device;
        assert_ok(tn_device_find(names[i], &device));
        assert_ok(tn_stream_new(device, &(tn_stream_params){.n_threads = 1}, &streams[i]));
    }
    stopper stop = {0};
    tn_sched *s, *shares;
    tn_sched_params p = {.streams = streams, .n_streams = 3, .abort = stops, .abort_user = &stop};
    assert_ok(tn_sched_new(&p, &s));
    assert_ok(tn_sched_new(&(tn_sched_params){.share = s}, &shares));
    tn_arena *arena = graph_arena();
    tn_tensor *x = tn_input(arena, TN_F32, WIDTH, 4), *y = x;
    float data[WIDTH * 4], want[WIDTH * 4], got[WIDTH * 4];
    for (int i = 0; i < WIDTH * 4; i++) data[i] = (float)i;
    for (int i = 0; i < SPLITS; i++) {
        y = tn_scale(arena, y, 0.5f, 1);
        assert_ok(tn_sched_pin(s, y, i % 2));
        assert_ok(tn_sched_pin(shares, y, i % 2));
    }
    tn_graph *graph;
    tn_sched_info info;
    assert_ok(tn_graph_of(arena, tn_output(y), &graph));
    assert_ok(tn_sched_describe(s, graph, &info));
    assert_int_equal(info.splits, SPLITS);
    for (int by = 0; by < 2; by++) {
        tn_sched *who = by ? shares : s;
        for (int stop_at = 0; stop_at <= SPLITS; stop_at++) {
            stop = (stopper){.stop_at = stop_at};
            assert_ok(tn_sched_alloc(who, graph));
            assert_ok(tn_tensor_set(x, data));
            if (stop_at) {
                assert_fails(TN_E_ABORTED, stop_at % 2 ? tn_sched_run(who, graph) : tn_sched_run_async(who, graph));
                assert_int_equal(stop.asked, stop_at);
                assert_non_null(strstr(tn_error(), "abort callback"));
                assert_ok(tn_sched_synchronize(who)); /* nothing is left of it */
                assert_ok(tn_tensor_set(x, data));
            }
            assert_ok(tn_sched_run(who, graph));
            assert_ok(tn_tensor_get(y, stop_at || by ? got : want));
            if (stop_at || by) assert_memory_equal(want, got, sizeof got);
        }
    }
    tn_sched_free(shares);
    tn_sched_free(s);
    for (int i = 0; i < 3; i++) tn_stream_free(streams[i]);
    tn_arena_free(arena);
}

/* ---- Failed allocations ---- */

static tn_status cover_and_run(void *user) {
    (void)user;
    tn_sched *s = NULL;
    tn_arena *arena = NULL;
    tn_sched_memory memory[2];
    const tn_plan *plan;
    tn_status status;
    tn_sched_params params = {.devices = {"sim:16M,max-alloc=20K,name=fails"}, .n_threads = 1, .reorder = true};
    TN_TRY_GOTO(tn_arena_new(&(tn_arena_params){.size = 1 << 17, .no_alloc = true}, &arena), status, out);
    TN_TRY_GOTO(tn_sched_new(&params, &s), status, out);
    for (int i = 0; i < 3; i++) {
        tn_arena_reset(arena);
        tn_tensor *x = tn_input(arena, TN_F32, WIDTH, 4 + 9 * (i % 2)), *wide[3], *sum = x;
        tn_graph *graph;
        TN_TRY_GOTO(tn_graph_new(arena, 64, &graph), status, out);
        for (int k = 0; k < 3; k++) {
            wide[k] = tn_concat(arena, tn_scale(arena, x, 2, (float)k), x, 0);
            TN_TRY_GOTO(tn_graph_add(graph, wide[k]), status, out);
        }
        for (int k = 0; k < 3; k++) sum = tn_add(arena, sum, tn_sum_rows(arena, wide[k]));
        TN_TRY_GOTO(tn_graph_add(graph, tn_output(sum)), status, out);
        if (i < 2) {
            TN_TRY_GOTO(tn_sched_cover(s, graph), status, out);
            TN_TRY_GOTO(tn_sched_plan(s, graph, &plan, NULL), status, out);
            TN_TRY_GOTO(tn_sched_adopt(s, graph, plan), status, out);
            continue;
        }
        TN_TRY_GOTO(tn_sched_needs(s, memory), status, out);
        TN_TRY_GOTO(tn_sched_take(s), status, out);
        TN_TRY_GOTO(tn_sched_seal(s), status, out);
        TN_TRY_GOTO(tn_sched_run(s, graph), status, out);
    }
out:
    tn_sched_free(s);
    tn_arena_free(arena);
    return status;
}

static void every_failed_allocation_leaves_nothing(void **state) {
    (void)state;
    tn_device *device;
    assert_ok(tn_device_find("sim:16M,max-alloc=20K,name=fails", &device));
    check_no_leak(cover_and_run, NULL);
    check_every_allocation_failure(cover_and_run, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_of_the_planned_size_runs_every_covered_graph),
        cmocka_unit_test(a_sealed_reservation_does_not_grow),
        cmocka_unit_test(growth_is_logged_and_strict_schedulers_refuse_it),
        cmocka_unit_test(a_take_that_fails_changes_nothing),
        cmocka_unit_test(saved_plans_are_verified_and_adopted),
        cmocka_unit_test(reordered_classes_need_less_and_give_the_same_bits),
        cmocka_unit_test(eval_takes_no_memory),
        cmocka_unit_test(abort_is_asked_between_splits),
        cmocka_unit_test(every_failed_allocation_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The scheduler's memory: bindings, the caller's memory, memory that is declared before it exists, reservations.
 */
#include "sched_case.h"

#include "runtime/sched_internal.h"
#include "tenon/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor that a run bound may carry the address of a buffer that has been freed. */
static void stale_bindings_are_never_followed(void **state) {
    (void)state;
    tn_arena *arena;
    tn_tensor *in[2], *out[2];
    tn_graph *graph[2], *again;
    float data[WIDTH * 60], want[WIDTH * 4], got[WIDTH * 4];
    rng r = {3};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) data[i] = rng_normal(&r);
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &arena));
    chain(arena, 10, 4, &in[0], &out[0], &graph[0]);
    chain(arena, 25, 60, &in[1], &out[1], &graph[1]);
    for (int turn = 0; turn < 3; turn++) { /* in later turns the first scheduler and its buffers no longer exist */
        tn_sched *s;
        assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,ops=-silu,name=stale"}, .n_threads = 1}, &s));
        assert_ok(tn_sched_alloc(s, graph[0]));
        assert_ok(tn_tensor_set(in[0], data));
        assert_ok(tn_sched_run(s, graph[0]));
        assert_ok(tn_tensor_get(out[0], turn ? got : want));
        if (turn) assert_memory_equal(want, got, sizeof want);
        uint64_t grown = tn_sched_get_stats(s).buffers_grown;
        assert_ok(tn_sched_reserve(s, graph[1]));
        assert_true(tn_sched_get_stats(s).buffers_grown > grown);
        /* The first graph, and a copy of it with the same tensors and fingerprint. */
        assert_ok(tn_graph_copy(arena, graph[0], &again));
        for (int g = 0; g < 2; g++) {
            assert_ok(tn_sched_alloc(s, g ? again : graph[0]));
            assert_ok(tn_tensor_set(in[0], data));
            assert_ok(tn_sched_run(s, g ? again : graph[0]));
            assert_ok(tn_tensor_get(out[0], got));
            assert_memory_equal(want, got, sizeof want);
        }
        assert_int_equal(tn_sched_get_stats(s).schedules_made, 2);
        tn_sched_free(s);
    }
    /* Binding by the caller clears the flag. */
    tn_buffer *buffer;
    tn_device *device;
    assert_ok(tn_device_find("cpu", &device));
    assert_ok(tn_buffer_new(tn_device_buffer_type(device), tn_nbytes(in[0]), &buffer));
    assert_true(in[0]->flags & TN_FLAG_PLANNED);
    assert_ok(tn_buffer_bind(buffer, in[0], 0));
    assert_false(in[0]->flags & TN_FLAG_PLANNED);
    tn_graph_reset(graph[1]);
    assert_null(out[1]->buffer);
    assert_false(out[1]->flags & TN_FLAG_PLANNED);
    tn_buffer_free(buffer);
    tn_arena_free(arena);
}

/* Graphs that share tensors: each run uses its own addresses, though the other graph was bound in between. */
static void graphs_may_share_tensors(void **state) {
    (void)state;
    tn_sched *s;
    tn_arena *arena;
    tn_graph *graph[2];
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,name=a"}, .n_threads = 1}, &s));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &arena));
    tn_tensor *pad = tn_input(arena, TN_F32, WIDTH, 8), *x = tn_input(arena, TN_F32, WIDTH, 4);
    tn_tensor *y = tn_output(tn_silu(arena, x)), *z = tn_output(tn_add(arena, pad, tn_concat(arena, y, y, 1)));
    assert_ok(tn_graph_of(arena, y, &graph[0]));
    assert_ok(tn_graph_of(arena, z, &graph[1]));
    float data[WIDTH * 8], first[WIDTH * 4], again[WIDTH * 4];
    rng r = {3};
    for (size_t i = 0; i < WIDTH * 8; i++) data[i] = rng_normal(&r);
    assert_ok(tn_sched_pin(s, y, 0));
    for (int turn = 0; turn < 6; turn++) {
        assert_ok(tn_sched_alloc(s, graph[turn % 2]));
        assert_ok(tn_tensor_set(x, data));
        if (turn % 2) assert_ok(tn_tensor_set(pad, data));
        assert_ok(tn_sched_run(s, graph[turn % 2]));
        assert_ok(tn_tensor_get(y, turn ? again : first));
        if (turn) assert_memory_equal(first, again, sizeof first);
    }
    /* A later pin takes effect. */
    assert_int_equal(tn_sched_stream_of(s, graph[0], y), 0);
    assert_ok(tn_sched_pin(s, y, 1));
    assert_ok(tn_sched_alloc(s, graph[0]));
    assert_int_equal(tn_sched_stream_of(s, graph[0], y), 1);
    /* So does unpinning; pins of tensors outside the graph do not. */
    uint64_t made = tn_sched_get_stats(s).schedules_made;
    assert_ok(tn_sched_pin(s, y, 0));
    assert_ok(tn_sched_pin(s, z, 1));
    assert_ok(tn_sched_alloc(s, graph[0]));
    assert_int_equal(tn_sched_stream_of(s, graph[0], y), 0);
    assert_int_equal(tn_sched_get_stats(s).schedules_made, made);
    for (size_t i = 0; i < 1000; i++) assert_ok(tn_sched_pin(s, (const tn_tensor *)&data[i % 256], (int)(i % 2)));
    assert_ok(tn_sched_pin(s, y, -1));
    assert_ok(tn_sched_alloc(s, graph[0]));
    assert_int_equal(tn_sched_stream_of(s, graph[0], y), 1); /* with its input */
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_ok(tn_sched_dump(s, graph[1], out));
    fclose(out);
    assert_non_null(strstr(text, "pinned by the caller\n"));
    free(text);
    tn_sched_free(s);
    tn_arena_free(arena);
}

/* Tensors in the caller's memory are read and written there, inputs or not. */
static void memory_of_the_caller_is_used(void **state) {
    (void)state;
    tn_sched *s;
    tn_arena *arena;
    tn_graph *graph;
    tn_device *device;
    tn_buffer *buffer;
    float data[WIDTH], got[WIDTH];
    for (int i = 0; i < WIDTH; i++) data[i] = (float)i;
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,name=a"}, .n_threads = 1}, &s));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &arena));
    assert_ok(tn_device_find("a", &device));
    assert_ok(tn_buffer_new(tn_device_buffer_type(device), 4096, &buffer));
    tn_tensor *x = tn_input(arena, TN_F32, WIDTH), *kept = tn_tensor_nd(arena, TN_F32, WIDTH);
    tn_tensor *here = tn_scale(arena, x, 2, 0), *there = tn_scale(arena, x, 3, 0), *sum = tn_add(arena, here, there);
    assert_ok(tn_graph_of(arena, tn_output(sum), &graph));
    assert_ok(tn_buffer_bind(buffer, x, 0));
    assert_ok(tn_buffer_bind(buffer, kept, 1024));
    assert_ok(tn_sched_pin(s, here, 0));
    assert_ok(tn_sched_pin(s, there, 1));
    assert_ok(tn_tensor_set(x, data));
    assert_ok(tn_sched_run(s, graph));
    assert_ok(tn_tensor_get(sum, got));
    for (int i = 0; i < WIDTH; i++) assert_true(got[i] == 5 * data[i]);
    assert_int_equal(tn_sched_stream_of(s, graph, x), 0);
    /* Only the device can write into its memory. */
    tn_tensor *write = tn_cpy(arena, tn_silu(arena, x), kept);
    assert_ok(tn_graph_of(arena, write, &graph));
    assert_ok(tn_sched_pin(s, write, 1));
    assert_fails(TN_E_UNSUPPORTED, tn_sched_reserve(s, graph));
    assert_ok(tn_sched_pin(s, write, -1));
    assert_ok(tn_sched_reserve(s, graph));
    assert_int_equal(tn_sched_stream_of(s, graph, write), 0);
    tn_sched_free(s);
    tn_buffer_free(buffer);
    tn_arena_free(arena);
}

/* The caller may move tensors between two runs of one graph: within a buffer, to another one, to another device, or
 * back to the scheduler. */
static void moved_tensors_are_read_where_they_are(void **state) {
    (void)state;
    tn_sched *s;
    tn_arena *arena;
    tn_graph *graph;
    tn_device *device;
    tn_buffer *there, *here;
    float ones[WIDTH], w[WIDTH], got[WIDTH];
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,name=moves"}, .n_threads = 1}, &s));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &arena));
    assert_ok(tn_device_find("moves", &device));
    assert_ok(tn_buffer_new(tn_device_buffer_type(device), 4096, &there));
    assert_ok(tn_device_find("cpu", &device));
    assert_ok(tn_buffer_new(tn_device_buffer_type(device), 4096, &here));
    tn_tensor *x = tn_input(arena, TN_F32, WIDTH), *weights = tn_tensor_nd(arena, TN_F32, WIDTH);
    tn_tensor *part = tn_view(arena, weights, 1, (int64_t[]){WIDTH}, NULL, 0);
    tn_tensor *product = tn_output(tn_add(arena, tn_mul(arena, x, weights), part));
    assert_ok(tn_graph_of(arena, product, &graph));
    for (int i = 0; i < WIDTH; i++) ones[i] = 1;
    struct {
        tn_buffer *buffer; /* NULL: the scheduler's */
        size_t offset;
        int stream;
    } places[] = {{there, 0, 0}, {there, 2048, 0}, {here, 0, 1}, {here, 1024, 1}, {NULL, 0, 1},
                  {there, 0, 0}, {there, 0, 0},    {NULL, 0, 1}, {here, 0, 1}};
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        for (int i = 0; i < WIDTH; i++) w[i] = (float)(p * 100) + (float)i;
        if (weights->buffer && !(weights->flags & TN_FLAG_PLANNED))
            assert_ok(tn_buffer_reset(weights->buffer, arena));
        if (places[p].buffer) {
            tn_buffer_set_usage(places[p].buffer, TN_USAGE_WEIGHTS);
            assert_ok(tn_buffer_bind(places[p].buffer, weights, places[p].offset));
        }
        assert_ok(tn_sched_alloc(s, graph));
        assert_ok(tn_tensor_set(weights, w));
        assert_ok(tn_tensor_set(x, ones));
        assert_ok(tn_sched_run(s, graph));
        assert_int_equal(tn_sched_stream_of(s, graph, weights), places[p].stream);
        assert_ok(tn_tensor_get(product, got));
        for (int i = 0; i < WIDTH; i++) assert_true(got[i] == 2 * w[i]);
    }
    assert_int_equal(tn_sched_get_stats(s).schedules_made, 3); /* there, here, and left to the scheduler */
    tn_sched_free(s);
    tn_buffer_free(there);
    tn_buffer_free(here);
    tn_arena_free(arena);
}

static void only_so_many_schedules_are_remembered(void **state) {
    (void)state;
    enum { GRAPHS = 9 };
    tn_sched *s;
    tn_arena *arena;
    tn_tensor *in[GRAPHS], *out[GRAPHS];
    tn_graph *graph[GRAPHS];
    tn_sched_params p = {.devices = {"sim:16M,name=a"}, .n_threads = 1, .max_schedules = 3};
    assert_ok(tn_sched_new(&p, &s));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &arena));
    for (int g = 0; g < GRAPHS; g++) chain(arena, 3 + g, 4, &in[g], &out[g], &graph[g]);
    assert_ok(tn_sched_reserve(s, graph[0]));
    float data[WIDTH * 4], want[GRAPHS][WIDTH * 4], got[WIDTH * 4];
    rng r = {3};
    for (size_t i = 0; i < WIDTH * 4; i++) data[i] = rng_normal(&r);
    for (int turn = 0; turn < 3 * GRAPHS; turn++) {
        int g = turn % GRAPHS;
        assert_ok(tn_sched_alloc(s, graph[g]));
        assert_ok(tn_tensor_set(in[g], data));
        assert_ok(tn_sched_run(s, graph[g]));
        assert_ok(tn_tensor_get(out[g], turn < GRAPHS ? want[g] : got));
        if (turn >= GRAPHS) assert_memory_equal(want[g], got, sizeof got);
        assert_true(s->n_schedules <= 4);
    }
    tn_sched_stats stats = tn_sched_get_stats(s);
    /* Run in turns, each of the others is evicted before its next run; the reserved one is not. */
    assert_int_equal(stats.schedules_made, 1 + 3 * (GRAPHS - 1));
    assert_int_equal(stats.schedules_forgotten, stats.schedules_made - 4);
    assert_int_equal(stats.plans_made, GRAPHS); /* classes outlive schedules */
    /* The last three are still remembered. */
    for (int g = GRAPHS - 3; g < GRAPHS; g++) assert_ok(tn_sched_run(s, graph[g]));
    assert_int_equal(tn_sched_get_stats(s).schedules_made, stats.schedules_made);
    tn_sched_free(s);
    tn_arena_free(arena);
}

/* On a device with just the measured bytes, reserving a small and a large graph must not need both at a time. */
static void measured_bytes_suffice_to_reserve_several_graphs(void **state) {
    (void)state;
    enum { GRAPHS = 3 };
    tn_arena *arena;
    tn_tensor *in[GRAPHS], *out[GRAPHS];
    tn_graph *graph[GRAPHS];
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &arena));
    for (int g = 0; g < GRAPHS; g++) chain(arena, 4, 4 + 12 * g, &in[g], &out[g], &graph[g]);
    size_t needed = 0;
    for (int exact = 0; exact < 2; exact++) {
        char device[64];
        snprintf(device, sizeof device, exact ? "sim:%zu,name=exact" : "sim:16M,name=ample", needed);
        tn_sched *s;
        assert_ok(tn_sched_new(&(tn_sched_params){.devices = {device}, .n_threads = 1}, &s));
        tn_sched_memory memory[2];
        assert_ok(tn_sched_measure(s, graph, GRAPHS, memory));
        needed = memory[0].compute + memory[0].scratch;
        assert_ok(tn_sched_reserve_many(s, graph, GRAPHS));
        assert_int_equal(tn_sched_memory_of(s, 0).compute + tn_sched_memory_of(s, 0).scratch, needed);
        assert_int_equal(tn_sched_get_stats(s).buffers_grown, 0);
        tn_sched_free(s);
        for (int g = 0; g < GRAPHS; g++) tn_graph_reset(graph[g]);
    }
    tn_arena_free(arena);
}

/* ---- Declared memory ---- */

typedef struct declared {
    const tn_tensor *tensor;
    tn_location location;
} declared;
static bool declared_location(void *user, const tn_tensor *tensor, tn_location *location) {
    const declared *d = user;
    if (tensor != d->tensor) return false;
    *location = d->location;
    return true;
}

/* A graph is planned before its weights exist. Planning does not change the weight tensors, and the schedule is used
 * once they have the declared memory. */
static void declared_memory_is_planned_as_memory(void **state) {
    (void)state;
    tn_sched *s;
    tn_arena *arena;
    tn_graph *graph;
    tn_device *device;
    tn_buffer *buffer;
    tn_sched_info before, after;
    tn_sched_memory planned[2], bound[2];
    float weights[WIDTH * WIDTH], data[WIDTH * 4], got[WIDTH * 4];
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,name=declared"}, .n_threads = 1}, &s));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &arena));
    assert_ok(tn_device_find("declared", &device));
    tn_tensor *w = tn_name(arena, tn_tensor_nd(arena, TN_F32, WIDTH, WIDTH), "w");
    tn_tensor *x = tn_input(arena, TN_F32, WIDTH, 4);
    tn_tensor *part = tn_view(arena, w, 2, (const int64_t[]){WIDTH, WIDTH}, NULL, 0);
    tn_tensor *y = tn_output(tn_mul_mat(arena, part, tn_mul_mat(arena, w, x)));
    assert_ok(tn_graph_of(arena, y, &graph));
    const tn_tensor untouched = *w;
    declared d = {w, {tn_device_buffer_type(device), TN_USAGE_WEIGHTS}};
    tn_sched_set_locations(s, declared_location, &d);
    assert_ok(tn_sched_measure(s, &graph, 1, planned));
    assert_ok(tn_sched_describe(s, graph, &before));
    assert_int_equal(tn_sched_stream_of(s, graph, y), 0);
    assert_int_equal(tn_sched_stream_of(s, graph, w), 0);
    assert_memory_equal(&untouched, w, sizeof *w);
    assert_fails(TN_E_STATE, tn_sched_alloc(s, graph));
    assert_non_null(strstr(tn_error(), "'w' has no memory yet"));
    assert_memory_equal(&untouched, w, sizeof *w);

    assert_ok(tn_buffer_new(d.location.type, tn_nbytes(w), &buffer));
    tn_buffer_set_usage(buffer, TN_USAGE_WEIGHTS);
    assert_ok(tn_buffer_bind(buffer, w, 0));
    tn_sched_set_locations(s, NULL, NULL);
    assert_ok(tn_sched_reserve(s, graph));
    assert_int_equal(tn_sched_get_stats(s).schedules_made, 1);
    assert_int_equal(tn_sched_get_stats(s).plans_made, 1);
    assert_ok(tn_sched_describe(s, graph, &after));
    assert_int_equal(before.splits, after.splits);
    for (int b = 0; b < 2; b++) {
        bound[b] = tn_sched_memory_of(s, (size_t)b);
        assert_int_equal(planned[b].compute, bound[b].compute);
        assert_int_equal(planned[b].scratch, bound[b].scratch);
    }
    for (int i = 0; i < WIDTH * WIDTH; i++) weights[i] = i / WIDTH == i % WIDTH ? 2 : 0;
    for (int i = 0; i < WIDTH * 4; i++) data[i] = (float)i;
    assert_ok(tn_tensor_set(w, weights));
    assert_ok(tn_tensor_set(x, data));
    assert_ok(tn_sched_run(s, graph));
    assert_ok(tn_tensor_get(y, got));
    for (int i = 0; i < WIDTH * 4; i++) assert_true(got[i] == 4 * data[i]);
    tn_sched_free(s);
    tn_buffer_free(buffer);
    tn_arena_free(arena);
}

/* Devices see the declared memory: an op that cannot read repacked weights is refused while planning. */
static void devices_see_declared_memory(void **state) {
    (void)state;
    tn_sched *s;
    tn_arena *arena;
    tn_graph *graph[2];
    tn_device *cpu;
    assert_ok(tn_device_find("cpu", &cpu));
    tn_buffer_type *repacked = tn_device_extra_buffer_type(cpu, 0);
    assert_non_null(repacked);
    assert_ok(tn_sched_new(&(tn_sched_params){.n_threads = 1}, &s));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &arena));
    tn_tensor *w = tn_tensor_nd(arena, TN_Q4_0, 256, 64), *x = tn_input(arena, TN_F32, 256, 4);
    assert_ok(tn_graph_of(arena, tn_output(tn_mul_mat(arena, w, x)), &graph[0]));
    assert_ok(tn_graph_of(arena, tn_output(tn_cast(arena, w, TN_F32)), &graph[1]));
    for (int i = 0; i < 2; i++) {
        declared d = {w, {i ? repacked : tn_device_buffer_type(cpu), TN_USAGE_WEIGHTS}};
        tn_sched_memory memory;
        tn_sched_set_locations(s, declared_location, &d);
        assert_ok(tn_sched_measure(s, &graph[0], 1, &memory));
        tn_status status = tn_sched_measure(s, &graph[1], 1, &memory);
        assert_int_equal(status, i ? TN_E_UNSUPPORTED : TN_OK);
    }
    tn_sched_free(s);
    tn_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stale_bindings_are_never_followed),
        cmocka_unit_test(graphs_may_share_tensors),
        cmocka_unit_test(memory_of_the_caller_is_used),
        cmocka_unit_test(moved_tensors_are_read_where_they_are),
        cmocka_unit_test(only_so_many_schedules_are_remembered),
        cmocka_unit_test(measured_bytes_suffice_to_reserve_several_graphs),
        cmocka_unit_test(declared_memory_is_planned_as_memory),
        cmocka_unit_test(devices_see_declared_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

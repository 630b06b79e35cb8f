/* Schedulers that share devices and memory: each computes what it would compute alone, in the memory of the larger
 * one. */
#include "sched_case.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Bytes that reserving a graph takes on both devices, one of which has a small largest allocation: exactly the
 * measured ones, and the missing bytes suffice. */
static void reserve_as_measured(tn_sched *s, tn_graph *graph) {
    tn_sched_memory memory[2];
    assert_ok(tn_sched_measure(s, &graph, 1, memory));
    assert_ok(tn_sched_reserve(s, graph));
    for (size_t b = 0; b < 2; b++) {
        tn_sched_memory now = tn_sched_memory_of(s, b);
        assert_int_equal(now.compute, memory[b].compute);
        assert_int_equal(now.scratch, memory[b].scratch);
        if (b == 0) assert_int_equal(used_on("both"), now.compute + now.scratch);
    }
    assert_ok(tn_sched_measure(s, &graph, 1, memory));
    assert_int_equal(memory[0].missing + memory[1].missing, 0);
}

/* Two models on one set of devices: each has the results it has alone, in the memory of the larger, in either order,
 * and taking turns plans nothing again. */
static void schedulers_that_share_take_turns_in_the_memory_of_the_larger(void **state) {
    (void)state;
    enum { TURNS = 6 };
    float data[WIDTH * 60], want[2][WIDTH * 60], got[WIDTH * 60];
    size_t alone[2];
    rng r = {3};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) data[i] = rng_normal(&r);
    for (int larger_first = -1; larger_first < 2; larger_first++) { /* -1: each alone */
        tn_sched *root = NULL, *s[2];
        tn_arena *arena;
        tn_tensor *in[2], *out[2];
        tn_graph *graph[2];
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &arena));
        chain(arena, 10, 4, &in[0], &out[0], &graph[0]);
        chain(arena, 5, 60, &in[1], &out[1], &graph[1]);
        const tn_sched_params params = {.devices = {"sim:16M,max-alloc=8K,name=both"}, .n_threads = 1};
        if (larger_first >= 0) assert_ok(tn_sched_new(&params, &root));
        for (int i = 0; i < 2; i++) {
            int g = larger_first > 0 ? !i : i;
            assert_ok(tn_sched_new(root ? &(tn_sched_params){.share = root} : &params, &s[g]));
            for (size_t n = 0; n < tn_graph_node_count(graph[g]); n++) /* all but the last, with its input */
                if (tn_graph_node(graph[g], n) != out[g])
                    assert_ok(tn_sched_pin(s[g], tn_graph_node(graph[g], n), 0));
            assert_ok(tn_sched_pin(s[g], out[g], 1));
            reserve_as_measured(s[g], graph[g]);
            if (root) continue;
            alone[g] = used_on("both");
            assert_ok(tn_tensor_set(in[g], data));
            assert_ok(tn_sched_run(s[g], graph[g]));
            assert_ok(tn_tensor_get(out[g], want[g]));
            tn_sched_free(s[g]);
            s[g] = NULL;
        }
        if (!root) {
            tn_arena_free(arena);
            continue;
        }
        assert_true(alone[1] > alone[0]);
        assert_int_equal(used_on("both"), alone[1]);
        tn_sched_free(root); /* what it made stays with the others */
        for (int turn = 0; turn < TURNS; turn++) {
            int g = turn % 2;
            assert_ok(tn_sched_alloc(s[g], graph[g]));
            assert_ok(tn_tensor_set(in[g], data));
            assert_ok(tn_sched_run(s[g], graph[g]));
            assert_ok(tn_tensor_get(out[g], got));
            assert_memory_equal(want[g], got, tn_nbytes(out[g]));
        }
        for (int g = 0; g < 2; g++) {
            assert_int_equal(tn_sched_get_stats(s[g]).schedules_made, 1);
            assert_int_equal(tn_sched_get_stats(s[g]).plans_made, 1);
        }
        assert_int_equal(used_on("both"), alone[1]);
        /* A graph with fewer but larger tensors: some buffers grow and some stay. */
        tn_tensor *wide = tn_input(arena, TN_F32, WIDTH, 62), *result = tn_output(tn_silu(arena, wide));
        tn_graph *another;
        assert_ok(tn_graph_of(arena, result, &another));
        assert_ok(tn_sched_pin(s[0], result, 0));
        reserve_as_measured(s[0], another);
        assert_true(used_on("both") > alone[1]);
        /* Resetting and freeing one does not affect the other. */
        tn_sched_reset(s[0]);
        for (int gone = 0; gone < 2; gone++) {
            assert_ok(tn_sched_alloc(s[1], graph[1]));
            assert_ok(tn_tensor_set(in[1], data));
            assert_ok(tn_sched_run(s[1], graph[1]));
            assert_ok(tn_tensor_get(out[1], got));
            assert_memory_equal(want[1], got, tn_nbytes(out[1]));
            if (!gone) tn_sched_free(s[0]);
        }
        assert_int_equal(tn_sched_get_stats(s[1]).schedules_made, 1);
        assert_int_equal(tn_sched_get_stats(s[1]).plans_made, 1);
        tn_sched_free(s[1]);
        assert_int_equal(used_on("both"), 0);
        tn_arena_free(arena);
    }
}

/* Queued work of one ends before another uses the common memory; if it fails, only the first reports that. */
static void work_in_flight_is_nobody_elses(void **state) {
    (void)state;
    tn_sched *s[2];
    tn_arena *arena;
    tn_tensor *in[2], *out[2];
    tn_graph *graph[2];
    float data[WIDTH * 4], want[WIDTH * 4], got[WIDTH * 4];
    rng r = {3};
    for (size_t i = 0; i < WIDTH * 4; i++) data[i] = rng_normal(&r);
    tn_sched_params params = {.devices = {"sim:16M,latency=2ms,name=slow"}, .n_threads = 1};
    assert_ok(tn_sched_new(&params, &s[0]));
    assert_ok(tn_sched_new(&(tn_sched_params){.share = s[0]}, &s[1]));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &arena));
    tn_device *device;
    tn_buffer *kept;
    assert_ok(tn_device_find("slow", &device));
    assert_ok(tn_buffer_new(tn_device_buffer_type(device), sizeof data, &kept));
    for (int g = 0; g < 2; g++) {
        in[g] = tn_input(arena, TN_F32, WIDTH, 4);
        tn_tensor *x = tn_silu(arena, in[g]);
        assert_ok(tn_sched_pin(s[g], in[g], 0));
        if (g == 0) { /* the result stays in memory of its own */
            tn_tensor *to = tn_tensor_nd(arena, TN_F32, WIDTH, 4);
            assert_ok(tn_buffer_bind(kept, to, 0));
            x = tn_cpy(arena, x, to);
        }
        out[g] = tn_output(x);
        assert_ok(tn_graph_of(arena, out[g], &graph[g]));
        assert_ok(tn_sched_reserve(s[g], graph[g]));
    }
    for (int fails = 0; fails < 2; fails++) {
        assert_ok(tn_sched_alloc(s[0], graph[0]));
        assert_ok(tn_tensor_set(in[0], data));
        if (fails) atomic_store(&sim_of("slow")->fail_run, 1);
        assert_ok(tn_sched_run_async(s[0], graph[0]));
        assert_ok(tn_sched_alloc(s[1], graph[1]));
        assert_ptr_equal(in[0]->data, in[1]->data); /* the same memory */
        atomic_store(&sim_of("slow")->lost, false);
        memset(got, 0, sizeof got);
        assert_ok(tn_tensor_set(in[1], got));
        assert_ok(tn_sched_run(s[1], graph[1]));
        assert_ok(tn_tensor_get(out[1], got));
        assert_true(got[0] == 0);
        if (fails) {
            assert_fails(TN_E_DEVICE_LOST, tn_sched_synchronize(s[0]));
            assert_non_null(strstr(tn_error(), "slow"));
        }
        assert_ok(tn_sched_synchronize(s[0])); /* told once */
        assert_ok(tn_tensor_get(out[0], fails ? got : want));
        for (int i = 0; i < WIDTH * 4; i++) assert_true(fabsf(want[i] - data[i] / (1 + expf(-data[i]))) < 1e-5f);
    }
    tn_sched *none;
    assert_fails(TN_E_INVALID, tn_sched_new(&(tn_sched_params){.share = s[0], .n_threads = 1}, &none));
    for (int g = 0; g < 2; g++) tn_sched_free(s[g]);
    tn_buffer_free(kept);
    tn_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedulers_that_share_take_turns_in_the_memory_of_the_larger),
        cmocka_unit_test(work_in_flight_is_nobody_elses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Experts in host memory: the matrices of the next matmul are copied while one computes, only those in use, and the
 * results are those of the host. */
#include "sched_case.h"

#include "runtime/sched_internal.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 16, USED = 2, TOKENS = 6, LAYERS = 2, MATRICES = 3 * LAYERS };
static int64_t n_experts = EXPERTS;
enum { EXPERT_BYTES = WIDTH * WIDTH * (int)sizeof(float) };

typedef struct layers {
    tn_sched *sched;
    tn_arena *arena;
    tn_graph *graph;
    tn_buffer *buffers[MATRICES];
    tn_tensor *x, *routers[LAYERS], *matrices[MATRICES], *out;
    tn_buffer *router_buffers[LAYERS];
} layers;

static tn_tensor *host_weight(layers *l, tn_buffer **buffer, int64_t experts, rng *r) {
    tn_device *cpu;
    tn_tensor *w = experts > 0 ? tn_tensor_nd(l->arena, TN_F32, WIDTH, WIDTH, experts)
                               : tn_tensor_nd(l->arena, TN_F32, WIDTH, n_experts);
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_buffer_new(tn_device_buffer_type(cpu), tn_nbytes(w), buffer));
    tn_buffer_set_usage(*buffer, TN_USAGE_WEIGHTS);
    assert_ok(tn_buffer_bind(*buffer, w, 0));
    float *values = malloc(tn_nbytes(w));
    for (int64_t i = 0; i < tn_nelements(w); i++) values[i] = 0.3f * rng_normal(r);
    assert_ok(tn_tensor_set(w, values));
    free(values);
    return w;
}

static void reserve_layers(layers *l, bool on_device) {
    for (size_t i = 0; i < tn_graph_node_count(l->graph); i++)
        assert_ok(tn_sched_pin(l->sched, tn_graph_node(l->graph, i), on_device ? 0 : 1));
    assert_ok(tn_sched_reserve(l->sched, l->graph));
}

/* Two layers of gated experts; on the device, except for the routers' weights. */
static void build_layers(layers *l, const char *spec, bool on_device, int in_flight, uint64_t seed) {
    rng r = {seed};
    *l = (layers){0};
    assert_ok(
        tn_sched_new(&(tn_sched_params){.devices = {spec}, .n_threads = 1, .n_in_flight = in_flight}, &l->sched));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &l->arena));
    tn_arena *a = l->arena;
    l->x = tn_input(a, TN_F32, WIDTH, TOKENS);
    tn_tensor *x = tn_silu(a, l->x); /* so that the input is copied once */
    for (int i = 0; i < LAYERS; i++) {
        tn_tensor **m = l->matrices + 3 * i;
        for (int k = 0; k < 3; k++) m[k] = host_weight(l, &l->buffers[3 * i + k], n_experts, &r);
        l->routers[i] = host_weight(l, &l->router_buffers[i], 0, &r);
        tn_tensor *ids = tn_top_k(a, tn_mul_mat(a, l->routers[i], x), USED);
        tn_tensor *row = tn_reshape(a, x, WIDTH, 1, TOKENS);
        tn_tensor *gate = tn_name(a, tn_mul_mat_id(a, m[0], row, ids), "gate.%d", i);
        tn_tensor *up = tn_name(a, tn_mul_mat_id(a, m[1], row, ids), "up.%d", i);
        tn_tensor *y = tn_name(a, tn_mul_mat_id(a, m[2], tn_mul(a, tn_silu(a, gate), up), ids), "down.%d", i);
        const int64_t ne[] = {WIDTH, TOKENS};
        for (int k = 0; k < USED; k++)
            x = tn_add(a, x, tn_cont(a, tn_view(a, y, 2, ne, (const size_t[]){4, y->nb[2]}, (size_t)k * y->nb[1])));
        x = tn_rms_norm(a, x, NULL, 1e-5f);
    }
    l->out = tn_output(x);
    assert_ok(tn_graph_of(a, l->out, &l->graph));
    reserve_layers(l, on_device);
}

static void free_layers(layers *l) {
    tn_sched_free(l->sched);
    for (int i = 0; i < MATRICES; i++) tn_buffer_free(l->buffers[i]);
    for (int i = 0; i < LAYERS; i++) tn_buffer_free(l->router_buffers[i]);
    tn_arena_free(l->arena);
}

static tn_status run_layers(layers *l, uint64_t seed, float *out) {
    float values[WIDTH * TOKENS];
    rng r = {seed};
    for (int i = 0; i < WIDTH * TOKENS; i++) values[i] = rng_normal(&r);
    TN_TRY(tn_tensor_set(l->x, values));
    TN_TRY(tn_sched_run(l->sched, l->graph));
    return tn_tensor_get(l->out, out);
}

/* How many copies of the dump are filled while the split before computes. */
static int count_prefetches(layers *l) {
    char *text;
    size_t size;
    int count = 0;
    FILE *out = open_memstream(&text, &size);
    assert_ok(tn_sched_dump(l->sched, l->graph, out));
    fclose(out);
    for (const char *at = text; (at = strstr(at, "for the next split")) != NULL; at++) count++;
    free(text);
    return count;
}

static bool note_nothing(void *user, tn_tensor *node, bool ask) {
    (void)node;
    ++*(int *)user;
    return !ask;
}
static bool note_everything(void *user, tn_tensor *node, bool ask) {
    (void)node, (void)ask;
    ++*(int *)user;
    return true;
}

static void results_are_those_of_the_host(void **state) {
    (void)state;
    float want[WIDTH * TOKENS], got[WIDTH * TOKENS];
    for (uint64_t seed = 1; seed <= 5; seed++) {
        layers host, device;
        build_layers(&host, "sim:16M,name=a", false, 1, seed);
        build_layers(&device, seed % 2 ? "sim:16M,name=a" : "sim:16M,latency=2ms,name=b", true, 1, seed);
        assert_int_equal(count_prefetches(&host), 0);
        assert_int_equal(count_prefetches(&device), 2 * LAYERS); /* up and down: the first one waits for the ids */
        for (uint64_t run = 0; run < 4; run++) {
            int seen = 0;
            if (run == 2) tn_sched_set_eval(device.sched, note_everything, &seen);
            if (run == 3) tn_sched_set_eval(device.sched, note_nothing, &seen);
            assert_ok(run_layers(&host, 10 * seed + run, want));
            const uint64_t before = tn_sched_get_stats(device.sched).bytes_copied;
            assert_ok(run_layers(&device, 10 * seed + run, got));
            assert_memory_equal(want, got, sizeof want);
            assert_int_equal(seen > 0, run >= 2);
            /* All three matmuls of a layer use the same experts, of which there are at most 12. */
            const uint64_t copied = tn_sched_get_stats(device.sched).bytes_copied - before;
            const uint64_t rest = WIDTH * TOKENS * 4 + LAYERS * WIDTH * EXPERTS * 4;
            assert_true(copied > rest && (copied - rest) % (3 * EXPERT_BYTES) == 0);
            assert_true(copied - rest <= (uint64_t)LAYERS * 3 * USED * TOKENS * EXPERT_BYTES);
        }
        free_layers(&host);
        free_layers(&device);
    }
}

/* The memory that is reserved is what runs take, with the targets of two matmuls at a time. */
static void targets_are_planned(void **state) {
    (void)state;
    float out[WIDTH * TOKENS];
    layers l;
    build_layers(&l, "sim:16M,name=planned", true, 1, 3);
    const size_t reserved = used_on("planned");
    assert_true(reserved >= 2 * (size_t)EXPERTS * EXPERT_BYTES && reserved < 3 * (size_t)EXPERTS * EXPERT_BYTES);
    for (uint64_t run = 0; run < 3; run++) assert_ok(run_layers(&l, run, out));
    assert_int_equal(used_on("planned"), reserved);
    free_layers(&l);
    assert_int_equal(used_on("planned"), 0);
}

static void faults_of_prefetches_surface(void **state) {
    (void)state;
    float want[WIDTH * TOKENS], got[WIDTH * TOKENS];
    layers l;
    build_layers(&l, "sim:16M,name=fragile", true, 1, 8);
    tn__sim *sim = sim_of("fragile");
    assert_ok(run_layers(&l, 1, want));
    int failed = 0;
    for (long n = 1; n < 400; n++) {
        atomic_store(&sim->fail_copy, n);
        const tn_status status = run_layers(&l, 1, got);
        const bool reached = atomic_exchange(&sim->fail_copy, 0) <= 0; /* two streams count */
        if (!reached) break;
        failed++;
        assert_int_equal(status, TN_E_DEVICE);
        tn_sched_reset(l.sched); /* which unpins all nodes */
        reserve_layers(&l, true);
        assert_ok(run_layers(&l, 1, got));
        assert_memory_equal(want, got, sizeof want);
    }
    assert_true(failed > 6);
    free_layers(&l);
}

/* With 10 ms for every copy and every program, and all experts in one copy, copying while computing saves a quarter.
 * Several runs in flight do not prefetch. A busy machine can only make a run slower, so the fastest of several
 * counts. */
static void copies_and_programs_overlap(void **state) {
    (void)state;
    float out[WIDTH * TOKENS];
    uint64_t fastest[2] = {UINT64_MAX, UINT64_MAX};
    layers l[2];
    n_experts = USED;
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        build_layers(&l[prefetch], prefetch ? "sim:16M,latency=10ms,name=c" : "sim:16M,latency=10ms,name=d", true,
                     prefetch ? 1 : 2, 4);
        assert_int_equal(count_prefetches(&l[prefetch]), prefetch ? 2 * LAYERS : 0);
    }
    for (int attempt = 0; attempt < 20; attempt++) {
        for (int prefetch = 0; prefetch < 2; prefetch++) {
            const uint64_t begin = tn_time_ns();
            assert_ok(run_layers(&l[prefetch], 2, out));
            const uint64_t time = tn_time_ns() - begin;
            if (time < fastest[prefetch]) fastest[prefetch] = time;
        }
        if (attempt > 0 && fastest[1] * 10 < fastest[0] * 9) break;
    }
    print_message("%.0f ms, without prefetching %.0f ms\n", 1e-6 * (double)fastest[1], 1e-6 * (double)fastest[0]);
    assert_true(fastest[1] * 10 < fastest[0] * 9);
    n_experts = EXPERTS;
    free_layers(&l[0]);
    free_layers(&l[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_those_of_the_host),
        cmocka_unit_test(targets_are_planned),
        cmocka_unit_test(faults_of_prefetches_surface),
        cmocka_unit_test(copies_and_programs_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

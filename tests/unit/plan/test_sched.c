/* The scheduler: the same bits on any set of devices, consistent splits, reported faults, reused plans. */
#include "sched_case.h"

#include "backend/registry.h"
#include "runtime/sched_internal.h"
#include "tenon/sched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Random graphs ---- */

enum { MAX_NODES = 40 };

typedef struct world {
    tn_arena *arena;
    tn_graph *graph;
    tn_tensor *inputs[4], *rows, *weights[6], *output;
    tn_buffer *weight_buffers[6];
    tn_tensor *nodes[MAX_NODES];
    size_t n_nodes;
} world;

/* A graph of matmuls, element-wise ops, norms, views and row writes over WIDTH-wide rows. The same seed gives
 * the same graph and data. */
static void build_world(world *w, uint64_t seed) {
    rng r = {seed};
    memset(w, 0, sizeof *w);
    assert_ok(tn_arena_new(
        &(tn_arena_params){.size = tn_arena_size_for(4 * MAX_NODES + 16, 4 * MAX_NODES + 16), .no_alloc = true},
        &w->arena));
    tn_arena *a = w->arena;
    int64_t rows = 1 + (int64_t)rng_below(&r, 5);
    for (int i = 0; i < 4; i++) w->inputs[i] = tn_name(a, tn_input(a, TN_F32, WIDTH, rows), "in%d", i);
    w->rows = tn_input(a, TN_I32, rows);
    for (int i = 0; i < 6; i++) w->weights[i] = tn_name(a, tn_tensor_nd(a, TN_F32, WIDTH, WIDTH), "w%d", i);
    tn_tensor *pool[MAX_NODES + 4];
    size_t n = 0;
    for (int i = 0; i < 4; i++) pool[n++] = w->inputs[i];
    size_t count = 5 + rng_below(&r, MAX_NODES - 6);
    for (size_t i = 0; i < count; i++) {
        tn_tensor *x = pool[n - 1 - rng_below(&r, n < 6 ? n : 6)], *y = pool[rng_below(&r, n)], *t = NULL;
        switch (rng_below(&r, 12)) {
        case 0:
        case 1:
        case 2: t = tn_mul_mat(a, w->weights[rng_below(&r, 6)], x); break;
        case 3: t = tn_add(a, x, y); break;
        case 4: t = tn_mul(a, x, y); break;
        case 5: t = tn_silu(a, x); break;
        case 6: t = tn_rms_norm(a, x, NULL, 1e-5f); break;
        case 7: t = tn_reshape(a, tn_cont(a, x), WIDTH, x->ne[1]); break;
        case 8: { /* half of each row, put together again */
            tn_tensor *half =
                tn_view(a, x, 2, (const int64_t[]){WIDTH / 2, x->ne[1]}, (const size_t[]){4, x->nb[1]}, 64);
            t = tn_concat(a, half,
                          tn_view(a, y, 2, (const int64_t[]){WIDTH / 2, y->ne[1]}, (const size_t[]){4, y->nb[1]}, 0),
                          0);
            break;
        }
        case 9: /* writes all rows but the first, then reads the written tensor */
            t = tn_set_rows(a, tn_cont(a, x), y, w->rows);
            t = tn_add(a, t, y);
            break;
        case 10: t = tn_cpy(a, tn_silu(a, x), tn_cont(a, y)); break;
        default: t = tn_soft_max(a, x, NULL, NULL, 0.5f, 0);
        }
        w->nodes[w->n_nodes++] = t;
        pool[n++] = t;
    }
    w->output = tn_output(tn_add(a, pool[n - 1], pool[n - 2]));
    assert_ok(tn_graph_new(a, 4 * MAX_NODES + 16, &w->graph));
    assert_ok(tn_graph_add(w->graph, w->output));
}

static void fill(tn_tensor *t, uint64_t seed) {
    rng r = {seed};
    float data[WIDTH * WIDTH];
    for (int64_t i = 0; i < tn_nelements(t); i++) data[i] = rng_normal(&r) * 0.3f;
    assert_ok(tn_tensor_set(t, data));
}

/* Puts weights into the memory of random streams. */
static void bind_weights(world *w, tn_sched *s, rng *r) {
    for (int i = 0; i < 6; i++) {
        tn_device *device = tn_stream_device(tn_sched_stream(s, rng_below(r, tn_sched_stream_count(s))));
        tn_buffer_type *type = tn_device_buffer_type(device);
        assert_ok(tn_buffer_new(type, tn_buffer_type_tensor_size(type, w->weights[i]), &w->weight_buffers[i]));
        tn_buffer_set_usage(w->weight_buffers[i], TN_USAGE_WEIGHTS);
        assert_ok(tn_buffer_bind(w->weight_buffers[i], w->weights[i], 0));
        fill(w->weights[i], 100 + (uint64_t)i);
    }
}

static void fill_rows(tn_tensor *t) {
    int32_t rows[8] = {-1, 4, 3, 2, 1, 0, 0, 0}; /* distinct, and one that is not written */
    for (int64_t i = 1; i < t->ne[0]; i++) rows[i] = (int32_t)(t->ne[0] - i);
    if (t->data) assert_ok(tn_tensor_set(t, rows));
}

static tn_status run_world(world *w, tn_sched *s, float *result) {
    TN_TRY(tn_sched_alloc(s, w->graph));
    fill_rows(w->rows);
    for (int i = 0; i < 4; i++)
        if (w->inputs[i]->data) fill(w->inputs[i], 200 + (uint64_t)i);
    TN_TRY(tn_sched_run(s, w->graph));
    return tn_tensor_get(w->output, result);
}

/* Queues several runs with different inputs; fetches the results of each. */
enum { IN_FLIGHT = 6 };
static void run_in_flight(world *w, tn_sched *s, float results[IN_FLIGHT][WIDTH * 8]) {
    assert_ok(tn_sched_alloc(s, w->graph));
    int stream = tn_sched_stream_of(s, w->graph, w->output);
    for (uint64_t run = 0; run < IN_FLIGHT; run++) {
        fill_rows(w->rows);
        for (int i = 0; i < 4; i++)
            if (w->inputs[i]->data) fill(w->inputs[i], 300 + 10 * run + (uint64_t)i);
        assert_ok(tn_sched_run_async(s, w->graph));
        assert_ok(tn_stream_get_async(tn_sched_stream(s, (size_t)stream), w->output, results[run], 0,
                                      tn_nbytes(w->output)));
    }
    assert_ok(tn_sched_synchronize(s));
}

static void free_world(world *w) {
    for (int i = 0; i < 6; i++) tn_buffer_free(w->weight_buffers[i]);
    tn_arena_free(w->arena);
}

/* Devices are kept for the whole program: specifications with names find the same ones again. */
static const char *const devices[] = {
    "sim:16M,name=a",
    "sim:16M,ops=mul_mat+add+silu,name=b",
    "sim:16M,ops=-soft_max-concat,align=256,name=c",
    "sim:16M,ops=rms_norm,offload=1,name=d",
};

/* An independent check of the scheduled graph: every source is readable where its node runs, no copy is made twice in
 * a split, every node runs once and after its sources. */
static void check_splits(const tn_sched *s) {
    for (size_t k = 0; k < s->n_schedules; k++) {
        const tn__schedule *c = s->schedules[k];
        size_t work = 0;
        for (size_t i = 0; i < c->n_splits; i++) {
            const tn__split *split = &c->splits[i];
            tn_device *device = tn_stream_device(s->core->streams[split->stream]);
            if (i) assert_int_not_equal(split->stream, c->splits[i - 1].stream);
            for (size_t a = 0; a < split->n_copies; a++)
                for (size_t b = 0; b < a; b++)
                    assert_ptr_not_equal(c->copies[split->first_copy + a].source,
                                         c->copies[split->first_copy + b].source);
            assert_int_equal(split->first_node, work);
            work += split->n_nodes;
            for (size_t n = 0; n < split->n_nodes * split->n_in_flight; n++) {
                size_t run = n / split->n_nodes, at = split->first_node + n % split->n_nodes;
                const tn_tensor *t = c->work[run * c->n_nodes + at], *first = c->work[at];
                assert_true(tn_device_supports_op(device, t, NULL, 0));
                assert_ptr_equal(t->data,
                                 first->data); /* programs of other runs in flight share all memory but the copies */
                for (int x = 0; x < TN_MAX_SRC; x++) {
                    if (!t->src[x]) continue;
                    const tn_tensor *root = t->src[x]->view_src ? t->src[x]->view_src : t->src[x];
                    tn_buffer_type *type =
                        root->buffer ? tn_buffer_get_type(root->buffer) : s->core->types[s->core->n_streams - 1];
                    assert_true(tn_device_supports_buffer_type(device, type));
                    if (run) continue;
                    assert_true(tn_graph_index(c->graph, t->src[x]) < tn_graph_index(c->graph, t) ||
                                t->src[x]->op == TN_OP_NONE);
                }
            }
        }
    }
}

static void any_set_of_devices_gives_the_same_bits(void **state) {
    (void)state;
    size_t rounds = getenv("TENON_LONG") ? 10000 : 400, reordered = 0;
    tn_sched *one;
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"cpu"}, .n_threads = 1}, &one));
    for (size_t round = 0; round < rounds; round++) {
        rng r = {round * 77 + 5};
        world w;
        float want[WIDTH * 8] = {0}, got[WIDTH * 8] = {0};
        float want_ahead[IN_FLIGHT][WIDTH * 8] = {{0}}, got_ahead[IN_FLIGHT][WIDTH * 8] = {{0}};
        build_world(&w, round);
        bind_weights(&w, one, &r);
        assert_ok(run_world(&w, one, want));
        run_in_flight(&w, one, want_ahead);
        tn_sched_reset(one);
        free_world(&w);

        tn_sched *many;
        tn_sched_params p = {
            .n_threads = 1, .n_in_flight = round % 2 ? 0 : 2 + (int)(round / 2 % 3), .reorder = round % 3 != 0};
        size_t n = rng_below(&r, 5); /* and the CPU */
        for (size_t i = 0; i < n; i++) p.devices[i] = devices[(round + i) % 4];
        assert_ok(tn_sched_new(&p, &many));
        build_world(&w, round);
        bind_weights(&w, many, &r);
        for (size_t i = 0; i < 3; i++) {
            tn_tensor *t = w.nodes[rng_below(&r, w.n_nodes)];
            int stream = (int)rng_below(&r, n + 1);
            if (tn_device_supports_op(tn_stream_device(tn_sched_stream(many, (size_t)stream)), t, NULL, 0))
                assert_ok(tn_sched_pin(many, t, stream));
        }
        assert_ok(run_world(&w, many, got));
        assert_memory_equal(want, got, (size_t)tn_nbytes(w.output));
        check_splits(many);
        assert_ok(run_world(&w, many, got)); /* again, from what it remembers */
        assert_memory_equal(want, got, (size_t)tn_nbytes(w.output));
        assert_int_equal(tn_sched_get_stats(many).schedules_made, 1);
        if (p.n_in_flight) {
            run_in_flight(&w, many, got_ahead);
            assert_memory_equal(want_ahead, got_ahead, sizeof want_ahead);
        }
        reordered += tn_sched_get_stats(many).schedules_reordered;
        tn_sched_free(many);
        free_world(&w);
    }
    assert_true(reordered > rounds / 10); /* or this tests little */
    tn_sched_free(one);
}

/* ---- Two graphs in turns ---- */

static void two_graphs_keep_their_plans(void **state) {
    (void)state;
    tn_sched *s;
    tn_arena *arena;
    tn_tensor *in[2], *out[2];
    tn_graph *graph[2];
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,name=a"}, .n_threads = 1}, &s));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &arena));
    chain(arena, 10, 4, &in[0], &out[0], &graph[0]);  /* language */
    chain(arena, 25, 60, &in[1], &out[1], &graph[1]); /* vision: more nodes, larger */
    assert_ok(tn_sched_reserve(s, graph[0]));
    float data[WIDTH * 60], first[2][WIDTH * 60], again[WIDTH * 60];
    rng r = {3};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) data[i] = rng_normal(&r);
    for (int turn = 0; turn < 1000; turn++) {
        int g = turn % 2;
        assert_ok(tn_sched_alloc(s, graph[g]));
        assert_ok(tn_tensor_set(in[g], data));
        assert_ok(tn_sched_run(s, graph[g]));
        assert_ok(tn_tensor_get(out[g], turn < 2 ? first[g] : again));
        if (turn >= 2) assert_memory_equal(first[g], again, tn_nbytes(out[g]));
    }
    /* The plans that are handed out are the objects in use. */
    for (int g = 0; g < 2; g++) {
        const tn_plan *plan;
        size_t memory_of[2];
        char *svg;
        assert_ok(tn_sched_plan(s, graph[g], &plan, memory_of));
        assert_int_equal(memory_of[0], 0);
        assert_int_equal(memory_of[1], 1);
        assert_true(tn_plan_size(plan, 0) + tn_plan_size(plan, 1) > 0);
        assert_ok(tn_plan_export(plan, TN_PLAN_SVG, tn_plan_size(plan, 0) ? 0 : 1, &svg));
        assert_non_null(strstr(svg, "</svg>"));
        tn_free(svg);
    }
    tn_sched_stats stats = tn_sched_get_stats(s);
    assert_int_equal(stats.plans_made, 2);
    assert_int_equal(stats.schedules_made, 2);
    assert_int_equal(stats.buffers_grown, 1);
    tn_sched_reset(s);
    const tn_plan *fresh; /* made on demand */
    assert_ok(tn_sched_plan(s, graph[0], &fresh, NULL));
    assert_int_equal(tn_sched_get_stats(s).plans_made, 3);
    tn_sched_free(s);
    tn_arena_free(arena);
}

/* Records the nodes that the eval callback sees. */
typedef struct {
    int asked, wanted, every, stop; /* wants every `every`-th node; stops at the `stop`-th of these */
    float seen[2 * MAX_NODES];      /* their first elements */
} watcher;
static bool watch(void *user, tn_tensor *node, bool ask) {
    watcher *w = user;
    if (ask) return w->asked++ % w->every == 0;
    float first[WIDTH * 8] = {0};
    if (tn_nbytes(node) <= sizeof first) assert_ok(tn_tensor_get(node, first));
    w->seen[w->wanted++] = first[0];
    return w->wanted != w->stop;
}
static void whoever_watches_sees_every_node_and_may_stop(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed < 6; seed++) {
        watcher on_cpu = {.every = 1}, on_both = {.every = 1}, some = {.every = 3}, stops = {.every = 2, .stop = 2};
        watcher *watchers[] = {&on_cpu, &on_both, &some, &stops};
        float plain[WIDTH * 8] = {0}, watched[WIDTH * 8] = {0};
        for (int i = 0; i < 4; i++) {
            world w;
            tn_sched *s;
            rng r = {seed};
            build_world(&w, seed);
            assert_ok(tn_sched_new(
                &(tn_sched_params){.devices = {i ? "sim:16M,name=watched" : "cpu"}, .n_threads = 1}, &s));
            bind_weights(&w, s, &r);
            assert_ok(run_world(&w, s, plain));
            tn_sched_set_eval(s, watch, watchers[i]);
            if (watchers[i]->stop) {
                assert_fails(TN_E_ABORTED, run_world(&w, s, watched));
                assert_int_equal(watchers[i]->wanted, watchers[i]->stop);
            } else {
                assert_ok(run_world(&w, s, watched));
                assert_memory_equal(plain, watched, sizeof plain);
            }
            tn_sched_set_eval(s, NULL, NULL);
            assert_ok(run_world(&w, s, watched));
            assert_memory_equal(plain, watched, sizeof plain);
            tn_sched_free(s);
            free_world(&w);
        }
        assert_true(on_cpu.asked >= 5 && on_cpu.wanted == on_cpu.asked && on_both.wanted == on_cpu.wanted);
        assert_memory_equal(on_cpu.seen, on_both.seen, (size_t)on_cpu.wanted * sizeof(float));
        assert_int_equal(some.wanted, (some.asked + 2) / 3);
    }
}

/* The number of runs in flight is what the caller sets; by default it is 4 with a pipeline and 1 without. */
static void a_pipeline_has_four_runs_in_flight_by_default(void **state) {
    (void)state;
    static const struct {
        bool pipeline;
        int copies;
        size_t in_flight;
    } cases[] = {{false, 0, 1}, {true, 0, 4}, {false, 1, 1}, {true, 1, 1}, {false, 3, 3}, {true, 2, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_sched *s;
        tn_arena *arena;
        tn_sched_info info;
        tn_graph *graph[2];
        tn_sched_params p = {.devices = {"sim:16M,name=a"},
                             .n_threads = 1,
                             .pipeline = cases[i].pipeline,
                             .n_in_flight = cases[i].copies};
        assert_ok(tn_sched_new(&p, &s));
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &arena));
        for (int g = 0; g < 2; g++) {
            tn_tensor *y = tn_output(tn_silu(arena, tn_input(arena, TN_F32, WIDTH, 4 + g)));
            assert_ok(tn_graph_of(arena, y, &graph[g]));
            assert_ok(tn_sched_pin(s, y, 0));
            assert_ok(tn_sched_describe(s, graph[g], &info));
            assert_int_equal(info.in_flight, g ? 4 : cases[i].in_flight);
            assert_fails(TN_E_INVALID, tn_sched_set_in_flight(s, 65));
            assert_ok(tn_sched_set_in_flight(s, 0)); /* for the next; what is scheduled stays */
        }
        assert_ok(tn_sched_describe(s, graph[0], &info));
        assert_int_equal(info.in_flight, cases[i].in_flight);
        tn_sched_free(s);
        tn_arena_free(arena);
    }
}

/* ---- Experts ---- */

/* Weights on the host, the matmul on a device: only the matrices that the ids name are copied. */
static void only_experts_in_use_are_copied(void **state) {
    (void)state;
    enum { EXPERTS = 16, USED = 2, TOKENS = 3 };
    static const int32_t picks[][USED * TOKENS] = {{3, 4, 3, 4, 4, 3}, {0, 15, 7, 0, 15, 7}, {9, 9, 9, 9, 9, 9}};
    static const int32_t others[USED * TOKENS] = {5, 5, 5, 6, 7, 5};
    static const size_t distinct[] = {2, 3, 1};
    for (int copies = 1; copies <= 4; copies += 3) {
        float want[3][WIDTH * USED * TOKENS], got[WIDTH * USED * TOKENS];
        for (int on_device = 0; on_device < 2; on_device++) {
            tn_sched *s;
            tn_arena *arena;
            tn_graph *graph;
            tn_buffer *buffer;
            tn_device *cpu;
            tn_sched_params p = {.devices = {"sim:16M,name=a"}, .n_threads = 1, .n_in_flight = copies};
            assert_ok(tn_device_find("cpu", &cpu));
            assert_ok(tn_sched_new(&p, &s));
            assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &arena));
            tn_tensor *w = tn_tensor_nd(arena, TN_F32, WIDTH, WIDTH, EXPERTS);
            tn_tensor *x = tn_input(arena, TN_F32, WIDTH, 1, TOKENS), *ids = tn_input(arena, TN_I32, USED, TOKENS);
            tn_tensor *other_ids = tn_input(arena, TN_I32, USED, TOKENS);
            tn_tensor *chosen = tn_cont(arena, ids), *other = tn_cont(arena, other_ids); /* computed on the device */
            tn_tensor *y = tn_mul_mat_id(arena, w, tn_silu(arena, x), chosen);
            tn_tensor *z = tn_mul_mat_id(arena, w, tn_mul_mat_id(arena, w, y, chosen), other);
            tn_output(z);
            assert_ok(tn_graph_of(arena, z, &graph));
            for (size_t i = 0; i < tn_graph_node_count(graph); i++)
                assert_ok(tn_sched_pin(s, tn_graph_node(graph, i), on_device ? 0 : 1));
            tn_buffer_type *type = tn_device_buffer_type(cpu);
            assert_ok(tn_buffer_new(type, tn_nbytes(w), &buffer));
            tn_buffer_set_usage(buffer, TN_USAGE_WEIGHTS);
            assert_ok(tn_buffer_bind(buffer, w, 0));
            float *weights = malloc(tn_nbytes(w));
            rng r = {4};
            for (int64_t i = 0; i < tn_nelements(w); i++) weights[i] = 0.2f * rng_normal(&r);
            assert_ok(tn_tensor_set(w, weights));
            free(weights);
            assert_ok(tn_sched_reserve(s, graph));
            for (int pick = 0; pick < 3; pick++) {
                fill(x, 7);
                assert_ok(tn_tensor_set(ids, picks[pick]));
                assert_ok(tn_tensor_set(other_ids, others));
                uint64_t before = tn_sched_get_stats(s).bytes_copied;
                assert_ok(tn_sched_run(s, graph));
                uint64_t copied = tn_sched_get_stats(s).bytes_copied - before;
                assert_ok(tn_tensor_get(z, on_device ? got : want[pick]));
                if (!on_device) continue;
                assert_memory_equal(want[pick], got, sizeof got);
                /* The second matmul reads the first one's experts; the third, with other ids, copies three. */
                size_t expert = WIDTH * WIDTH * sizeof(float);
                assert_int_equal(copied, tn_nbytes(x) + 2 * tn_nbytes(ids) + (distinct[pick] + 3) * expert);
            }
            tn_sched_free(s);
            tn_buffer_free(buffer);
            tn_arena_free(arena);
        }
    }
}

/* ---- Faults ---- */

static void every_fault_surfaces_and_can_be_left_behind(void **state) {
    (void)state;
    static const struct {
        const char *what;
        size_t offset;
        tn_status status;
    } kinds[] = {{"alloc", offsetof(tn__sim, fail_alloc), TN_E_DEVICE_MEMORY},
                 {"copy", offsetof(tn__sim, fail_copy), TN_E_DEVICE},
                 {"lost", offsetof(tn__sim, fail_run), TN_E_DEVICE_LOST}};
    const char *spec = "sim:16M,ops=-soft_max,name=fragile";
    tn_device *device;
    assert_ok(tn_device_find(spec, &device));
    tn__sim *sim = sim_of("fragile");
    for (size_t kind = 0; kind < 6; kind++) {
        int copies = kind < 3 ? 1 : 3;
        for (long n = 1; n < 200; n++) {
            world w;
            tn_sched *s;
            rng r = {9};
            float want[WIDTH * 8], got[WIDTH * 8];
            build_world(&w, 12);
            assert_ok(tn_sched_new(&(tn_sched_params){.devices = {spec}, .n_threads = 1, .n_in_flight = copies}, &s));
            bind_weights(&w, s, &r);
            assert_ok(run_world(&w, s, want));
            tn_sched_reset(s); /* so that everything is scheduled and planned again, in the old buffers */
            world larger;
            build_world(&larger, 13);
            rng r2 = {9};
            bind_weights(&larger, s, &r2);
            atomic_long *counter = (atomic_long *)((char *)sim + kinds[kind % 3].offset);
            atomic_store(counter, n);
            tn_status status = run_world(&larger, s, got);
            bool fired = atomic_load(counter) <= 0;
            atomic_store(counter, 0);
            atomic_store(&sim->lost, false);
            if (fired) {
                assert_int_equal(status, kinds[kind % 3].status);
                assert_non_null(strstr(tn_error(), "fragile"));
                if (kind % 3 < 2) assert_non_null(strstr(tn_error(), "bytes"));
            } else {
                assert_int_equal(status, TN_OK);
            }
            tn_sched_reset(s);
            assert_ok(run_world(&w, s, got)); /* the scheduler is as good as before */
            assert_memory_equal(want, got, tn_nbytes(w.output));
            tn_sched_free(s);
            free_world(&w);
            free_world(&larger);
            if (!fired) break;
        }
        assert_int_equal(atomic_load(&sim->used), 0);
    }
}

/* ---- Limits ---- */

static void many_devices_and_nodes_work(void **state) {
    (void)state;
    enum { DEVICES = 20, NODES = 100000, INPUTS = 500 };
    tn_stream *streams[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "sim:64M,name=many%d", i);
        tn_device *device;
        assert_ok(tn_device_find(i == DEVICES - 1 ? "cpu" : spec, &device));
        assert_ok(tn_stream_new(device, &(tn_stream_params){.n_threads = 1}, &streams[i]));
    }
    tn_sched *s;
    tn_arena *arena;
    tn_graph *graph;
    assert_ok(tn_sched_new(&(tn_sched_params){.streams = streams, .n_streams = DEVICES}, &s));
    assert_ok(tn_arena_new(
        &(tn_arena_params){.size = tn_arena_size_for(NODES + 4 * INPUTS, NODES + 4 * INPUTS), .no_alloc = true},
        &arena));
    /* 500 inputs are summed on one device; then a long series of nodes alternates between devices. */
    tn_tensor *inputs[INPUTS], *x = NULL, *first;
    for (int i = 0; i < INPUTS; i++) {
        inputs[i] = tn_input(arena, TN_F32, 4);
        x = x ? tn_add(arena, x, inputs[i]) : inputs[i];
        if (i) assert_ok(tn_sched_pin(s, x, 0));
    }
    first = x;
    for (int i = INPUTS; i < NODES; i++) {
        x = tn_scale(arena, x, 1, i % 2 ? 1 : -1);
        if (i % 10000 == 0) assert_ok(tn_sched_pin(s, x, i / 10000 % DEVICES));
    }
    tn_output(x);
    assert_ok(tn_graph_new(arena, NODES + 4 * INPUTS, &graph));
    assert_ok(tn_graph_add(graph, x));
    assert_ok(tn_sched_reserve(s, graph));
    for (int i = 0; i < INPUTS; i++) assert_ok(tn_tensor_set(inputs[i], (float[]){1, 2, 3, (float)i}));
    assert_ok(tn_sched_run(s, graph));
    float got[4];
    assert_ok(tn_tensor_get(x, got));
    assert_true(got[0] == INPUTS && got[1] == 2 * INPUTS && got[2] == 3 * INPUTS &&
                got[3] == INPUTS * (INPUTS - 1) / 2);
    tn_sched_info info;
    assert_ok(tn_sched_describe(s, graph, &info));
    assert_true(info.copies >= INPUTS && info.splits >= 9);
    assert_int_equal(tn_sched_stream_of(s, graph, first), 0);
    tn_sched_free(s);
    for (int i = 0; i < DEVICES; i++) tn_stream_free(streams[i]);
    tn_arena_free(arena);
}

static void an_op_nobody_supports_names_everyone(void **state) {
    (void)state;
    tn_sched *s;
    tn_arena *arena;
    tn_graph *graph;
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,ops=add,name=adder"}, .n_threads = 1}, &s));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    tn_tensor *x = tn_input(arena, TN_F32, 4), *y = tn_output(tn_silu(arena, x));
    assert_ok(tn_graph_of(arena, y, &graph));
    assert_ok(tn_sched_pin(s, y, 0));
    assert_fails(TN_E_UNSUPPORTED, tn_sched_reserve(s, graph));
    assert_non_null(strstr(tn_error(), "(silu) is pinned to adder, which does not support it"));
    tn_sched_reset(s);
    assert_ok(tn_sched_reserve(s, graph)); /* unpinned it goes to the CPU */
    assert_fails(TN_E_INVALID, tn_sched_pin(s, y, 7));
    tn_sched_free(s);
    tn_arena_free(arena);
    assert_fails(TN_E_INVALID, tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,align=3"}}, &s));
    assert_fails(TN_E_NOT_FOUND, tn_sched_new(&(tn_sched_params){.devices = {"cuda77"}}, &s));
}

/* ---- Out of host memory ---- */

static tn_status schedule_small_graph(void *user) {
    (void)user;
    tn_arena *arena = NULL;
    tn_graph *graph;
    tn_sched *s = NULL;
    tn_status status;
    float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(8, 16), .no_alloc = true}, &arena));
    tn_tensor *x = tn_input(arena, TN_F32, 4, 2), *y = tn_output(tn_add(arena, tn_silu(arena, x), x));
    TN_TRY_GOTO(tn_graph_of(arena, y, &graph), status, out);
    TN_TRY_GOTO(tn_sched_new(&(tn_sched_params){.devices = {"sim:16M,ops=add,name=adder"}, .n_threads = 1}, &s),
                status, out);
    TN_TRY_GOTO(tn_sched_reserve(s, graph), status, out);
    TN_TRY_GOTO(tn_tensor_set(x, data), status, out);
    TN_TRY_GOTO(tn_sched_run(s, graph), status, out);
    TN_TRY_GOTO(tn_tensor_get(y, data), status, out);
out:
    tn_sched_free(s);
    tn_arena_free(arena);
    return status;
}
static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    tn_device *device;
    assert_ok(tn_device_find("sim:16M,ops=add,name=adder", &device));
    check_every_allocation_failure(schedule_small_graph, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_set_of_devices_gives_the_same_bits),
        cmocka_unit_test(two_graphs_keep_their_plans),
        cmocka_unit_test(whoever_watches_sees_every_node_and_may_stop),
        cmocka_unit_test(a_pipeline_has_four_runs_in_flight_by_default),
        cmocka_unit_test(only_experts_in_use_are_copied),
        cmocka_unit_test(every_fault_surfaces_and_can_be_left_behind),
        cmocka_unit_test(many_devices_and_nodes_work),
        cmocka_unit_test(an_op_nobody_supports_names_everyone),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

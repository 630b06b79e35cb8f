/* The graph allocator: shared buffers, remembered plans, and reservations that survive every failure. */
#include "random_graph.h"

#include "base/checked.h"
#include "plan/plan_internal.h"
#include "runtime/alloc.h"
#include "tenon/backend_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool long_run(void) { return getenv("TENON_LONG") != NULL; }

/* ---- A device's memory, with limits and faults ---- */

typedef struct fake {
    tn_buffer_type type;
    long fail_in; /* the n-th buffer from now is refused, and all after it; 0: none */
    size_t live;  /* buffers */
} fake;

static void buffer_free(tn_buffer *b) {
    ((fake *)b->type->impl)->live--;
    free(b->base);
    free(b);
}
static tn_status buffer_set(tn_buffer *b, tn_tensor *t, const void *data, size_t offset, size_t size) {
    (void)b;
    memcpy((char *)t->data + offset, data, size);
    return TN_OK;
}
static tn_status buffer_get(tn_buffer *b, const tn_tensor *t, void *data, size_t offset, size_t size) {
    (void)b;
    memcpy(data, (const char *)t->data + offset, size);
    return TN_OK;
}
static tn_status buffer_clear(tn_buffer *b, uint8_t value) {
    memset(b->base, value, b->size);
    return TN_OK;
}
static const tn_buffer_ops buffer_ops = {
    .free = buffer_free, .set = buffer_set, .get = buffer_get, .clear = buffer_clear};

static tn_status buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    fake *f = type->impl;
    if (f->fail_in && --f->fail_in == 0) {
        f->fail_in = 1;
        return tn_fail(TN_E_DEVICE_MEMORY, "%s: no more memory", type->name);
    }
    tn_buffer *b = calloc(1, sizeof *b);
    *b = (tn_buffer){.ops = &buffer_ops, .type = type, .size = size};
    b->base = aligned_alloc(256, tn__align_up(size + 1, 256)); /* its own block, so that a sanitizer sees its edges */
    memset(b->base, 0xff, size);
    f->live++;
    *out = b;
    return TN_OK;
}
static const tn_buffer_type_ops type_ops = {.buffer_new = buffer_new};

static void make_fake(fake *f, const char *name, size_t alignment, size_t max_size) {
    tn_device *cpu;
    assert_ok(tn_device_find("cpu", &cpu));
    *f = (fake){.type = {.ops = &type_ops,
                         .device = cpu,
                         .alignment = alignment,
                         .max_size = max_size ? max_size : SIZE_MAX,
                         .is_host = true,
                         .impl = f}};
    snprintf(f->type.name, sizeof f->type.name, "%s", name);
}

/* ---- Running ---- */

static tn_status reserve_one(tn__alloc *a, tn_graph *g, const uint16_t *type_of) {
    return tn__alloc_reserve(a, &g, &type_of, 1);
}
static const tn_plan *plan_of(tn__alloc *a, tn_graph *g, const uint16_t *type_of) {
    const tn_plan *plan;
    assert_ok(tn__alloc_plan(a, g, type_of, false, &plan));
    return plan;
}

/* Runs a bound graph. Memory that the plan says is free is overwritten after every node, and before the first. */
static uint64_t run_bound(tn__alloc *a, tn_graph *g, const uint16_t *type_of) {
    const tn_plan *plan = plan_of(a, g, type_of);
    assert_non_null(plan);
    fill_leaves(g, 7);
    for (size_t i = 0; i < tn_graph_node_count(g); i++) {
        run_node(tn_graph_node(g, i));
        for (size_t k = 0; k < count_of(g); k++)
            if (tn__plan_owns(&plan->entries[k]) && plan->entries[k].size && plan->until[k] == i)
                memset(tensor_of(g, k)->data, 0xff, plan->entries[k].size);
    }
    return hash_outputs(g);
}

static uint64_t bind_and_run(tn__alloc *a, tn_graph *g, const uint16_t *type_of) {
    assert_ok(tn__alloc_bind(a, g, type_of, false));
    return run_bound(a, g, type_of);
}

static void assign(rng *r, const tn_graph *g, size_t n_types, uint16_t *type_of) {
    for (size_t i = 0; i < count_of(g); i++) type_of[i] = (uint16_t)rng_below(r, n_types);
}

/* One allocator is used for several graphs in turn. Two of its four buffer types are the same, and one has tiny
 * chunks. */
static void random_graphs_share_buffers_and_run_with_the_same_bits(void **state) {
    (void)state;
    int rounds = long_run() ? 10000 : 150;
    size_t several_chunks = 0, grown = 0;
    for (int round = 0; round < rounds; round++) {
        enum { GRAPHS = 4 };
        rng r = {(uint64_t)round + 1};
        fake shared, tiny, other;
        world w[GRAPHS];
        uint16_t type_of[GRAPHS][8 * MOST];
        uint64_t expected[GRAPHS];
        size_t largest = 256;
        tn__alloc *a;
        for (int g = 0; g < GRAPHS; g++) {
            make_world(&w[g], &r, 3 + (int)rng_below(&r, 25));
            expected[g] = run_privately(w[g].graph, w[g].graph);
            assign(&r, w[g].graph, 4, type_of[g]);
            for (size_t i = 0; i < count_of(w[g].graph); i++)
                largest = TN__MAX(largest, tn_nbytes(tensor_of(w[g].graph, i)));
        }
        make_fake(&shared, "shared", 64, 0);
        make_fake(&tiny, "tiny", 128, tn__align_up(largest, 128));
        make_fake(&other, "other", 32, 0);
        tn_buffer_type *types[] = {&shared.type, &tiny.type, &shared.type, &other.type};
        assert_ok(tn__alloc_new(types, 4, &a));
        for (int turn = 0; turn < 3 * GRAPHS; turn++) {
            int g = turn < GRAPHS ? turn : (int)rng_below(&r, GRAPHS);
            if (turn < GRAPHS && turn % 2) assert_ok(reserve_one(a, w[g].graph, type_of[g]));
            assert_ok(tn__alloc_bind(a, w[g].graph, type_of[g], true));
            if (run_bound(a, w[g].graph, type_of[g]) != expected[g])
                fail_msg("round %d turn %d: graph %d gives other bits", round, turn, g);
        }
        assert_int_equal(tn__alloc_get_stats(a).plans_made, GRAPHS);
        assert_int_equal(shared.live, tn__alloc_chunk_count(a, 0)); /* one set for both */
        assert_ptr_equal(tn__alloc_buffer(a, 0, 0), tn__alloc_buffer(a, 2, 0));
        several_chunks += tn__alloc_chunk_count(a, 1) > 1;
        grown += tn__alloc_get_stats(a).buffers_grown > 0;
        tn__alloc_free(a);
        assert_int_equal(shared.live + tiny.live + other.live, 0);
        for (int g = 0; g < GRAPHS; g++) tn_arena_free(w[g].arena);
    }
    assert_true(several_chunks > (size_t)rounds / 4); /* or this tests little */
    assert_true(grown > (size_t)rounds / 2);
}

/* ---- Failures ---- */

typedef struct pair {
    fake a, b;
    world small, large;
    uint16_t small_of[8 * MOST], large_of[8 * MOST];
    uint64_t expected_small, expected_large;
} pair;

static pair *make_pair(uint64_t seed) {
    pair *p = calloc(1, sizeof *p);
    rng r = {seed};
    make_fake(&p->a, "first", 64, 0);
    make_fake(&p->b, "second", 64, 1024); /* the larger graph needs several chunks of it */
    do {
        if (p->small.arena) tn_arena_free(p->small.arena);
        if (p->large.arena) tn_arena_free(p->large.arena);
        make_world(&p->small, &r, 4);
        make_world(&p->large, &r, 60);
    } while (tn_nelements(p->small.pool[0]) == 0 || tn_nelements(p->large.pool[0]) == 0);
    assign(&r, p->small.graph, 3, p->small_of);
    assign(&r, p->large.graph, 3, p->large_of);
    p->expected_small = run_privately(p->small.graph, p->small.graph);
    p->expected_large = run_privately(p->large.graph, p->large.graph);
    return p;
}
static void free_pair(pair *p) {
    tn_arena_free(p->small.arena);
    tn_arena_free(p->large.arena);
    free(p);
}
/* The first and the last type are the same. */
static tn_status new_alloc(pair *p, tn__alloc **a) {
    return tn__alloc_new((tn_buffer_type *[]){&p->a.type, &p->b.type, &p->a.type}, 3, a);
}

/* After a failed reservation for the larger graph: everything is as before, and another attempt can succeed. */
static void check_old_reservation(const pair *p, tn__alloc *a, uint64_t generation, size_t live) {
    assert_int_equal(tn__alloc_generation(a), generation);
    assert_int_equal(p->a.live + p->b.live, live);
    assert_fails(TN_E_NEED_RESERVE, tn__alloc_bind(a, p->large.graph, p->large_of, false));
    assert_true(run_bound(a, p->small.graph, p->small_of) == p->expected_small); /* as it was bound before */
    assert_true(bind_and_run(a, p->small.graph, p->small_of) == p->expected_small);
}
static void check_both_run(const pair *p, tn__alloc *a) {
    assert_ok(reserve_one(a, p->large.graph, p->large_of));
    assert_true(bind_and_run(a, p->large.graph, p->large_of) == p->expected_large);
    assert_true(bind_and_run(a, p->small.graph, p->small_of) == p->expected_small);
}

static void refused_buffers_leave_the_old_reservation_working(void **state) {
    (void)state;
    int failures = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        pair *p = make_pair(seed);
        fake *refusing = seed % 2 ? &p->a : &p->b;
        bool failed = true;
        for (long n = 1; failed; n++) {
            tn__alloc *a;
            assert_ok(new_alloc(p, &a));
            assert_ok(reserve_one(a, p->small.graph, p->small_of));
            assert_true(bind_and_run(a, p->small.graph, p->small_of) == p->expected_small);
            uint64_t generation = tn__alloc_generation(a);
            size_t live = p->a.live + p->b.live;
            refusing->fail_in = n;
            tn_status status = reserve_one(a, p->large.graph, p->large_of);
            failed = status != TN_OK;
            if (failed) {
                assert_int_equal(status, TN_E_DEVICE_MEMORY);
                assert_fails(TN_E_DEVICE_MEMORY, tn__alloc_bind(a, p->large.graph, p->large_of, true));
            }
            refusing->fail_in = 0;
            if (failed) check_old_reservation(p, a, generation, live);
            failures += failed;
            check_both_run(p, a);
            tn__alloc_free(a);
            unbind(p->small.graph);
            unbind(p->large.graph);
        }
        assert_int_equal(p->a.live + p->b.live, 0);
        free_pair(p);
    }
    assert_true(failures > 20);
}

/* Host memory that fails on demand: the n-th allocation from now on. */
static long fails_in;
static void *host_alloc(void *user, size_t size, size_t align) {
    (void)user;
    if (fails_in && --fails_in == 0) return NULL;
    return aligned_alloc(TN__MAX(align, 16), tn__align_up(TN__MAX(size, 1), TN__MAX(align, 16)));
}
static void host_free(void *user, void *pointer, size_t size) {
    (void)user;
    (void)size;
    free(pointer);
}

static void failed_host_allocations_leave_the_old_reservation_working(void **state) {
    (void)state;
    tn_allocator hooks = {host_alloc, host_free, NULL};
    pair *p = make_pair(5);
    bool failed = true;
    for (long n = 1; failed; n++) {
        tn__alloc *a;
        tn_set_allocator(&hooks);
        assert_ok(new_alloc(p, &a));
        assert_ok(reserve_one(a, p->small.graph, p->small_of));
        assert_true(bind_and_run(a, p->small.graph, p->small_of) == p->expected_small);
        uint64_t generation = tn__alloc_generation(a);
        size_t live = p->a.live + p->b.live;
        fails_in = n;
        tn_status status = reserve_one(a, p->large.graph, p->large_of);
        failed = status != TN_OK;
        fails_in = 0;
        if (failed) {
            assert_int_equal(status, TN_E_NOMEM);
            check_old_reservation(p, a, generation, live);
        } else {
            assert_true(n > 10); /* or this tests little */
        }
        check_both_run(p, a);
        tn__alloc_free(a);
        tn_set_allocator(NULL);
        unbind(p->small.graph);
        unbind(p->large.graph);
    }
    free_pair(p);
}

static tn_status reserve_and_bind(void *user) {
    pair *p = user;
    tn__alloc *a = NULL;
    tn_status status;
    unbind(p->small.graph);
    unbind(p->large.graph);
    TN_TRY_GOTO(new_alloc(p, &a), status, out);
    TN_TRY_GOTO(reserve_one(a, p->small.graph, p->small_of), status, out);
    TN_TRY_GOTO(tn__alloc_bind(a, p->large.graph, p->large_of, true), status, out);
    TN_TRY_GOTO(tn__alloc_bind(a, p->small.graph, p->small_of, false), status, out);
out:
    tn__alloc_free(a);
    return status;
}
static void every_allocation_may_fail_without_a_leak(void **state) {
    (void)state;
    pair *p = make_pair(6);
    check_no_leak(reserve_and_bind, p);
    check_every_allocation_failure(reserve_and_bind, p);
    assert_int_equal(p->a.live + p->b.live, 0);
    unbind(p->small.graph);
    unbind(p->large.graph);
    free_pair(p);
}

/* ---- Remembered plans ---- */

static tn_arena *new_arena(size_t n) {
    tn_arena *a;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(n, 8 * n), .no_alloc = true}, &a));
    return a;
}

/* As many nodes and leaves of the same sizes, but other edges: x is read late in one, y in the other. */
static tn_graph *crossed(tn_arena *a, bool swap) {
    tn_tensor *x = tn_input(a, TN_F32, WIDTH, 4), *y = tn_input(a, TN_F32, WIDTH, 4), *z = x;
    for (int i = 0; i < 6; i++) z = tn_add(a, z, i == 4 ? (swap ? z : y) : i == 1 ? (swap ? y : z) : x);
    tn_graph *g;
    assert_ok(tn_graph_new(a, 32, &g));
    assert_ok(tn_graph_add(g, tn_output(z)));
    return g;
}

static void other_edges_are_never_served_by_a_stale_plan(void **state) {
    (void)state;
    fake f;
    tn__alloc *a;
    tn_arena *arena = new_arena(64);
    tn_graph *g[2] = {crossed(arena, false), crossed(arena, true)};
    uint64_t expected[2] = {run_privately(g[0], g[0]), run_privately(g[1], g[1])};
    assert_int_equal(tn_graph_node_count(g[0]), tn_graph_node_count(g[1]));
    assert_int_equal(tn_graph_leaf_count(g[0]), tn_graph_leaf_count(g[1]));
    make_fake(&f, "f", 64, 0);
    assert_ok(tn__alloc_new((tn_buffer_type *[]){&f.type}, 1, &a));
    for (int turn = 0; turn < 10; turn++) {
        assert_ok(tn__alloc_bind(a, g[turn % 2], NULL, true));
        assert_true(run_bound(a, g[turn % 2], NULL) == expected[turn % 2]);
    }
    tn__alloc_stats stats = tn__alloc_get_stats(a);
    assert_int_equal(stats.plans_made, 2);
    assert_int_equal(stats.plans_reused, 8);
    /* Another graph with the same fingerprint needs no plan of its own; another assignment does. */
    tn_graph *same = crossed(arena, true);
    assert_ok(tn__alloc_bind(a, same, NULL, true));
    assert_true(run_bound(a, same, NULL) == expected[1]);
    assert_int_equal(tn__alloc_get_stats(a).plans_made, 2);
    uint16_t zero[64] = {0}, wrong[64] = {1};
    assert_ok(tn__alloc_bind(a, same, zero, true));
    assert_fails(TN_E_INVALID, tn__alloc_bind(a, same, wrong, true));
    tn__alloc_forget(a);
    assert_null(plan_of(a, same, NULL));
    assert_ok(tn__alloc_bind(a, same, NULL, false)); /* the buffers stayed */
    assert_true(run_bound(a, same, NULL) == expected[1]);
    tn__alloc_free(a);
    tn_arena_free(arena);
}

static void an_input_with_memory_of_its_own_keeps_it(void **state) {
    (void)state;
    fake f;
    tn__alloc *a;
    tn_arena *arena = new_arena(64);
    make_fake(&f, "f", 64, 0);
    assert_ok(tn__alloc_new((tn_buffer_type *[]){&f.type}, 1, &a));
    static float own[WIDTH * 4];
    tn_graph *g[2];
    tn_tensor *x[2];
    for (int i = 0; i < 2; i++) {
        x[i] = tn_input(arena, TN_F32, WIDTH, 4);
        if (i) x[i]->data = own;
        assert_ok(tn_graph_of(arena, tn_output(tn_silu(arena, tn_silu(arena, x[i]))), &g[i]));
        assert_ok(tn__alloc_bind(a, g[i], NULL, true));
    }
    assert_ptr_equal(x[1]->data, own);
    assert_ptr_not_equal(x[0]->data, own);
    assert_int_equal(tn__alloc_get_stats(a).plans_made, 2);
    for (int turn = 0; turn < 4; turn++) {
        assert_ok(tn__alloc_bind(a, g[turn % 2], NULL, false));
        assert_ptr_equal(x[1]->data, own);
    }
    assert_int_equal(tn__alloc_get_stats(a).plans_made, 2);
    tn__alloc_free(a);
    tn_arena_free(arena);
}

static void measuring_takes_no_memory_and_reserving_takes_what_was_measured(void **state) {
    (void)state;
    pair *p = make_pair(3);
    tn__alloc *a;
    tn__alloc_need need[3], again[3];
    assert_ok(new_alloc(p, &a));
    assert_ok(tn__alloc_measure(a, &p->large.graph, (const uint16_t *[]){p->large_of}, 1, need));
    assert_int_equal(p->a.live + p->b.live, 0);
    assert_int_equal(need[2].size, 0); /* counted with the first */
    for (size_t t = 0; t < 2; t++)
        assert_true(need[t].size == need[t].missing && need[t].size >= need[t].lower_bound && need[t].lower_bound);
    assert_ok(tn__alloc_needs(a, again));
    assert_int_equal(again[0].size, 0); /* measured, not covered */
    tn_error_clear();
    assert_fails(TN_E_NEED_RESERVE, tn__alloc_bind(a, p->large.graph, p->large_of, false));
    char needed[32];
    snprintf(needed, sizeof needed, "%zu", tn_plan_chunk_size(plan_of(a, p->large.graph, p->large_of), 0, 0));
    assert_non_null(strstr(tn_error(), "no room for '"));
    assert_non_null(strstr(tn_error(), "first"));
    assert_non_null(strstr(tn_error(), needed));
    assert_ok(reserve_one(a, p->large.graph, p->large_of));
    for (size_t t = 0; t < 2; t++) assert_int_equal(tn__alloc_size(a, t), need[t].size);
    uint64_t generation = tn__alloc_generation(a);
    assert_ok(reserve_one(a, p->large.graph, p->large_of));
    assert_ok(tn__alloc_take(a));
    assert_int_equal(tn__alloc_generation(a), generation); /* nothing moved */
    assert_int_equal(tn__alloc_plan_memory(a, 0), tn__alloc_plan_memory(a, 2));
    tn__alloc_free(a);
    unbind(p->large.graph);
    free_pair(p);
}

/* ---- Sizes ---- */

/* One structure per number: bit k says whether node k adds or multiplies. */
static tn_graph *numbered_graph(tn_arena *arena, int64_t n, unsigned number) {
    tn_graph *g;
    tn_arena_reset(arena);
    tn_tensor *x = tn_input(arena, TN_F32, n), *y = x;
    for (int k = 0; k < 14; k++) y = number >> k & 1 ? tn_add(arena, y, x) : tn_mul(arena, y, x);
    assert_ok(tn_graph_of(arena, tn_output(y), &g));
    return g;
}

static void plans_of_ever_new_structures_do_not_pile_up(void **state) {
    (void)state;
    fake f;
    make_fake(&f, "fake", 64, 0);
    tn_buffer_type *types[] = {&f.type};
    tn__alloc *a;
    tn_arena *arena;
    assert_ok(tn__alloc_new(types, 1, &a));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 17, .no_alloc = true}, &arena));
    enum { RESERVED = 9000, ASKED = 9001, EVICTED = 9002, N = 500 };
    assert_ok(reserve_one(a, numbered_graph(arena, N, RESERVED), NULL));
    assert_ok(tn__alloc_bind(a, numbered_graph(arena, N, ASKED), NULL, false));
    const tn_plan *plan = plan_of(a, numbered_graph(arena, N, ASKED), NULL); /* in the caller's hands: it must stay */
    tn_graph *g = numbered_graph(arena, N, EVICTED);
    assert_ok(tn__alloc_bind(a, g, NULL, false));
    const void *first_address = tn_graph_node(g, 1)->data;

    uint64_t live = 0, blocks = 0, made = 0;
    for (unsigned number = 0; number < 2000; number++) {
        assert_ok(tn__alloc_bind(a, numbered_graph(arena, N, number), NULL, false));
        if (number != 500) continue;
        live = tn_memory_get_stats().live_bytes;
        blocks = tn_memory_get_stats().live_blocks;
    }
    assert_int_equal(tn_memory_get_stats().live_blocks, blocks);
    assert_true(tn_memory_get_stats().live_bytes <= live + 1024);
    assert_int_equal(tn__alloc_get_stats(a).buffers_grown, 0);
    assert_int_equal(tn__alloc_get_stats(a).plans_forgotten, 2001 - TN__ALLOC_CLASSES);
    assert_int_equal(tn__alloc_get_stats(a).classes, 2 + TN__ALLOC_CLASSES);

    made = tn__alloc_get_stats(a).plans_made;
    assert_ok(tn__alloc_bind(a, numbered_graph(arena, N, RESERVED), NULL, false));
    for (unsigned number = 1999; number >= 2000 - TN__ALLOC_CLASSES; number--)
        assert_ok(tn__alloc_bind(a, numbered_graph(arena, N, number), NULL, false));
    assert_ptr_equal(plan_of(a, numbered_graph(arena, N, ASKED), NULL), plan);
    assert_int_equal(tn__alloc_get_stats(a).plans_made, made); /* none of these was forgotten */

    g = numbered_graph(arena, N, EVICTED); /* planned again, it is the same */
    assert_null(plan_of(a, g, NULL));
    assert_ok(tn__alloc_bind(a, g, NULL, false));
    assert_int_equal(tn__alloc_get_stats(a).plans_made, made + 1);
    assert_ptr_equal(tn_graph_node(g, 1)->data, first_address);
    tn_arena_free(arena);
    tn__alloc_free(a);
    assert_int_equal(f.live, 0);
}

static void a_graph_over_a_hundred_chunks_runs(void **state) {
    (void)state;
    enum { N = 120 };
    tn_arena *arena = new_arena(8 * N);
    tn_tensor *x = tn_input(arena, TN_F32, WIDTH, 8), *kept[N], *sum = NULL;
    tn_graph *g;
    fake f;
    tn__alloc *a;
    assert_ok(tn_graph_new(arena, 4 * N, &g));
    for (int i = 0; i < N; i++) {
        kept[i] = tn_scale(arena, x, (float)i, 1);
        assert_ok(tn_graph_add(g, kept[i]));
    }
    for (int i = 0; i < N; i++) sum = sum ? tn_add(arena, sum, kept[i]) : tn_mul(arena, kept[0], kept[N - 1]);
    assert_ok(tn_graph_add(g, tn_output(sum)));
    uint64_t expected = run_privately(g, g);
    make_fake(&f, "f", 64, tn_nbytes(x)); /* one tensor each */
    assert_ok(tn__alloc_new((tn_buffer_type *[]){&f.type}, 1, &a));
    assert_ok(reserve_one(a, g, NULL));
    assert_true(tn__alloc_chunk_count(a, 0) >= N);
    assert_true(bind_and_run(a, g, NULL) == expected);
    tn__alloc_free(a);
    tn_arena_free(arena);
}

/* Every second of 2,400 results is read and freed before the rest: 1,200 holes with a live tensor between any two.
 * Then come tensors that fit into them. */
static void a_graph_with_over_a_thousand_free_holes_runs(void **state) {
    (void)state;
    enum { N = 2400 };
    tn_arena *arena = new_arena(4 * N);
    tn_tensor *x = tn_input(arena, TN_F32, WIDTH, 4), **made = calloc(N, sizeof(tn_tensor *)), *sum[2] = {0};
    tn_graph *g;
    fake f;
    tn__alloc *a;
    assert_ok(tn_graph_new(arena, 6 * N, &g));
    for (int i = 0; i < N; i++) {
        made[i] = tn_repeat(arena, x, (int64_t[]){WIDTH, 4 * (1 + i % 7), 1, 1});
        assert_ok(tn_graph_add(g, made[i]));
    }
    for (int i = 0; i < N; i += 2) {
        tn_tensor *s = tn_sum(arena, made[i]);
        sum[0] = sum[0] ? tn_add(arena, sum[0], s) : s;
    }
    assert_ok(tn_graph_add(g, sum[0]));
    size_t holes_at = tn_graph_node_count(g);
    for (int i = 0; i < N; i += 2) {
        made[i] = tn_repeat(arena, x, (int64_t[]){WIDTH, 4 * (1 + i % 5), 1, 1});
        assert_ok(tn_graph_add(g, made[i]));
    }
    for (int i = 0; i < N; i++) {
        tn_tensor *s = tn_sum(arena, made[i]);
        sum[1] = sum[1] ? tn_add(arena, sum[1], s) : s;
    }
    assert_ok(tn_graph_add(g, tn_output(tn_add(arena, sum[0], sum[1]))));
    uint64_t expected = run_privately(g, g);
    make_fake(&f, "f", 64, 0);
    assert_ok(tn__alloc_new((tn_buffer_type *[]){&f.type}, 1, &a));
    assert_ok(reserve_one(a, g, NULL));
    const tn_plan *plan = plan_of(a, g, NULL);
    assert_true(tn_plan_ratio(plan) <= 1.01);

    /* Counts the holes when the first sum exists: runs of bytes below the top that no live tensor has. */
    size_t top = tn_plan_size(plan, 0), holes = 0;
    char *held = calloc(top / 64 + 1, 1);
    for (size_t i = 0; i < count_of(g); i++) {
        const tn_plan_entry *s = &plan->entries[i];
        bool live = tn__plan_owns(s) && s->first < holes_at && plan->until[i] >= holes_at;
        for (size_t at = s->offset / 64; live && at < (s->offset + s->size) / 64; at++) held[at] = 1;
    }
    for (size_t at = 1; at < top / 64; at++) holes += held[at - 1] && !held[at];
    assert_true(holes > 1000);
    free(held);
    assert_true(bind_and_run(a, g, NULL) == expected);
    tn__alloc_free(a);
    free(made);
    tn_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs_share_buffers_and_run_with_the_same_bits),
        cmocka_unit_test(refused_buffers_leave_the_old_reservation_working),
        cmocka_unit_test(failed_host_allocations_leave_the_old_reservation_working),
        cmocka_unit_test(every_allocation_may_fail_without_a_leak),
        cmocka_unit_test(other_edges_are_never_served_by_a_stale_plan),
        cmocka_unit_test(an_input_with_memory_of_its_own_keeps_it),
        cmocka_unit_test(measuring_takes_no_memory_and_reserving_takes_what_was_measured),
        cmocka_unit_test(plans_of_ever_new_structures_do_not_pile_up),
        cmocka_unit_test(a_graph_over_a_hundred_chunks_runs),
        cmocka_unit_test(a_graph_with_over_a_thousand_free_holes_runs),
    };
    tn_log_set(NULL, NULL, TN_LOG_ERROR); /* growth is part of most tests here */
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}

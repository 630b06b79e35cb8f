/* Classes of graphs: graphs of one structure share one plan, made for the largest sizes of all of them. */
#include "random_graph.h"

#include "base/checked.h"
#include "plan/plan_internal.h"
#include "runtime/alloc.h"
#include "tenon/backend_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 64 };
static bool long_run(void) { return getenv("TENON_LONG") != NULL; }

/* ---- Graphs of one structure for every n ---- */

/* Weights have memory of their own. */
static tn_tensor *weights(tn_arena *a, int64_t in, int64_t out) {
    static float data[1024 * 1024];
    tn_tensor *t = tn_tensor_nd(a, TN_F32, in, out);
    t->data = data;
    return t;
}

/* Tensors have `n` rows of different widths. The structure depends on the seed alone. */
static tn_tensor *random_op(tn_arena *a, rng *r, tn_tensor *const *pool, int count) {
    tn_tensor *x = pool[rng_below(r, (uint64_t)count)], *y = NULL;
    for (int k = 0; k < count && !y; k++) {
        tn_tensor *other = pool[((uint64_t)k * 7 + rng_below(r, 64)) % (uint64_t)count];
        if (tn_same_shape(other, x)) y = other;
    }
    int64_t widths[] = {16, 48, 64, 160, 256, 512, 1000}, width = widths[rng_below(r, TN__COUNT(widths))];
    switch (rng_below(r, 9)) {
    case 0: return tn_mul_mat(a, weights(a, x->ne[0], width), x);
    case 1: return y ? tn_add(a, x, y) : tn_neg(a, x);
    case 2: return tn_silu(a, x);
    case 3: return y ? tn_mul(a, x, y) : tn_scale(a, x, 0.5f, 1);
    case 4: return tn_silu(a, tn_reshape(a, x, x->ne[0] * x->ne[1]));
    case 5: return tn_add(a, x, tn_sum_rows(a, x));
    case 6: return tn_mul_mat(a, weights(a, x->ne[0], width), tn_cont(a, x));
    case 7: return tn_cpy(a, x, tn_dup(a, x));
    default: return tn_soft_max(a, x, NULL, NULL, 1, 0);
    }
}

static void make_sized(world *w, uint64_t seed, int64_t n, int ops) {
    rng r = {seed};
    memset(w, 0, sizeof *w);
    assert_ok(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(8 * MOST, 8 * MOST), .no_alloc = true}, &w->arena));
    w->pool[w->n++] = tn_input(w->arena, TN_F32, 256, n);
    w->pool[w->n++] = tn_input(w->arena, TN_F32, 64, n);
    for (int i = 0; i < ops; i++) {
        tn_tensor *z = random_op(w->arena, &r, w->pool, w->n);
        if (z->ne[1] == 1 && n != 1) z = tn_reshape(w->arena, z, z->ne[0] / n, n);
        if (z->ne[1] != n || z->ne[0] % 16) z = tn_reshape(w->arena, z, tn_nelements(z) / n, n);
        w->pool[w->n++] = z;
    }
    assert_ok(tn_graph_new(w->arena, 4 * MOST, &w->graph));
    for (int i = 0; i < 3; i++)
        assert_ok(tn_graph_add(w->graph, tn_output(w->pool[w->n - 1 - 5 * i > 2 ? w->n - 1 - 5 * i : 2])));
    assert_ok(tn_arena_status(w->arena));
}

/* ---- No growth ---- */

static size_t count_refusals(const char *device_name, uint64_t seeds) {
    tn_device *device;
    size_t refused = 0, tried = 0;
    assert_ok(tn_device_find(device_name, &device));
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        world large;
        tn__alloc *a;
        make_sized(&large, seed, LARGEST, 8 + (int)(seed % 30));
        assert_ok(tn__alloc_new((tn_buffer_type *[]){tn_device_buffer_type(device)}, 1, &a));
        assert_ok(tn__alloc_reserve(a, &large.graph, NULL, 1));
        for (int64_t n = 1; n < LARGEST; n++, tried++) {
            world w;
            make_sized(&w, seed, n, 8 + (int)(seed % 30));
            tn_status status = tn__alloc_bind(a, w.graph, NULL, false);
            refused += status == TN_E_NEED_RESERVE;
            assert_true(status == TN_OK || status == TN_E_NEED_RESERVE);
            tn_arena_free(w.arena);
        }
        tn__alloc_free(a);
        tn_arena_free(large.arena);
    }
    if (getenv("TENON_VERBOSE")) print_message("%s: %zu of %zu refused\n", device_name, refused, tried);
    return refused;
}

static void a_smaller_graph_never_needs_more_than_the_reserved_one(void **state) {
    (void)state;
    const char *devices[] = {"sim:1G,max-alloc=300K,memory-only=1,name=c300",
                             "sim:1G,max-alloc=500K,memory-only=1,name=c500", "sim:1G,memory-only=1,name=c0"};
    for (size_t d = 0; d < TN__COUNT(devices); d++)
        assert_int_equal(count_refusals(devices[d], long_run() ? 2000 : 200), 0);
}

/* ---- The same bits ---- */

/* Rows of 16 numbers; nodes write through views and into inputs, and some sources have fewer rows than others. */
static tn_tensor *narrow_op(tn_arena *a, rng *r, tn_tensor *const *pool, int count, tn_tensor *state,
                            tn_tensor *index) {
    tn_tensor *x =
        pool[count > 6 && rng_below(r, 3) ? count - 1 - (int)rng_below(r, 5) : (int)rng_below(r, (uint64_t)count)];
    tn_tensor *y = pool[rng_below(r, (uint64_t)count)];
    int64_t n = x->ne[1];
    switch (rng_below(r, 14)) {
    case 0: return tn_add(a, x, y);
    case 1: return tn_add(a, x, tn_view(a, y, 2, (int64_t[]){WIDTH, 1}, y->nb, 0)); /* a broadcast, unless n = 1 */
    case 2: return tn_mul(a, x, x);
    case 3: return tn_silu(a, tn_reshape(a, x, WIDTH, n));
    case 4: return tn_get_rows(a, tn_set_rows(a, state, x, index), index);
    case 5: return tn_cpy(a, x, tn_dup(a, y));
    case 6: return tn_swiglu(a, x, y);
    case 7: return tn_set(a, x, y, x->nb[1], x->nb[2], x->nb[3], 0);
    case 8: return tn_add(a, x, tn_sum_rows(a, y));
    case 9: return tn_add(a, x, tn_view(a, y, 2, (int64_t[]){WIDTH, 1}, y->nb, (size_t)(n - 1) * WIDTH * 4));
    case 10: return tn_scale(a, x, 0.5f, 0.25f);
    case 11:
        return tn_cont(a, tn_view(a, tn_concat(a, x, y, 0), 2, (int64_t[]){WIDTH, n}, (size_t[]){4, 8 * WIDTH}, 0));
    case 12: return tn_rms_norm(a, x, NULL, 1e-5f);
    default: return tn_neg(a, x);
    }
}

static void make_narrow(world *w, uint64_t seed, int64_t n) {
    rng r = {seed};
    memset(w, 0, sizeof *w);
    assert_ok(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(4 * MOST, 4 * MOST), .no_alloc = true}, &w->arena));
    tn_tensor *state = tn_input(w->arena, TN_F32, WIDTH, 2 * n), *index = tn_input(w->arena, TN_I32, n);
    for (int i = 0; i < 3; i++) w->pool[w->n++] = tn_input(w->arena, TN_F32, WIDTH, n);
    for (int i = 0, ops = 5 + (int)(seed % 40); i < ops; i++, w->n++)
        w->pool[w->n] = narrow_op(w->arena, &r, w->pool, w->n, state, index);
    assert_ok(tn_graph_new(w->arena, 4 * MOST, &w->graph));
    for (int i = 0; i < 3; i++)
        assert_ok(tn_graph_add(w->graph, tn_output(w->pool[i ? (int)rng_below(&r, (uint64_t)w->n) : w->n - 1])));
    assert_ok(tn_arena_status(w->arena));
}

/* Runs a bound graph; memory that the plan says is free is overwritten after every node. */
static uint64_t run_and_overwrite(tn__alloc *a, tn_graph *g) {
    const tn_plan *plan;
    assert_ok(tn__alloc_plan(a, g, NULL, false, &plan));
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

/* Covered in any order, in chunks of any size: every graph up to the largest runs with the same bits, in memory that
 * does not grow, and no plan is made for it. */
static void graphs_of_a_class_run_with_the_same_bits_in_its_plan(void **state) {
    (void)state;
    enum { MOST_ROWS = 9 };
    tn_device *device;
    assert_ok(tn_device_find("cpu", &device));
    size_t joined = 0;
    for (uint64_t seed = 1, seeds = long_run() ? 4000 : 250; seed <= seeds; seed++) {
        rng r = {seed + 1000};
        tn__alloc *a;
        assert_ok(tn__alloc_new((tn_buffer_type *[]){tn_device_buffer_type(device)}, 1, &a));
        int64_t order[MOST_ROWS];
        for (int64_t n = 0; n < MOST_ROWS; n++) order[n] = n + 1;
        for (size_t i = MOST_ROWS; i-- > 1 && seed % 3;) {
            size_t other = rng_below(&r, i + 1);
            int64_t was = order[i];
            order[i] = order[other];
            order[other] = was;
        }
        for (size_t i = 0; i < MOST_ROWS; i++) {
            world w;
            make_narrow(&w, seed, order[i]);
            assert_ok(tn__alloc_cover(a, w.graph, NULL));
            tn_arena_free(w.arena);
        }
        tn__alloc_need need;
        assert_ok(tn__alloc_needs(a, &need));
        assert_ok(tn__alloc_take(a));
        tn__alloc_seal(a);
        assert_int_equal(tn__alloc_size(a, 0), need.size);
        uint64_t made = tn__alloc_get_stats(a).plans_made;
        joined += tn__alloc_get_stats(a).classes == 1;
        for (int64_t n = 1; n <= MOST_ROWS; n++) {
            world w;
            make_narrow(&w, seed, n);
            uint64_t expected = run_privately(w.graph, w.graph);
            assert_ok(tn__alloc_bind(a, w.graph, NULL, true));
            if (run_and_overwrite(a, w.graph) != expected) fail_msg("seed %d, n = %d: other bits", (int)seed, (int)n);
            tn_arena_free(w.arena);
        }
        assert_int_equal(tn__alloc_size(a, 0), need.size);
        assert_int_equal(tn__alloc_get_stats(a).plans_made, made);
        tn__alloc_free(a);
    }
    assert_true(joined > (long_run() ? 3900u : 240u)); /* or this tests little */
}

/* ---- Results in place ---- */

/* y has as many rows as x, or one: then the sum must not be computed in place of it. x is needed later. */
static tn_graph *in_place_graph(tn_arena *arena, int64_t rows, int64_t y_rows) {
    tn_graph *g;
    tn_arena_reset(arena);
    tn_tensor *x = tn_input(arena, TN_F32, WIDTH, rows), *y = tn_input(arena, TN_F32, WIDTH, y_rows);
    tn_tensor *sum = tn_add(arena, x, tn_neg(arena, y));
    tn_name(arena, sum, "sum");
    tn_tensor *large =
        tn_sum(arena, tn_input(arena, TN_F32, 10000)); /* beside it one more row of bytes is no waste */
    assert_ok(tn_graph_of(arena, tn_output(tn_add(arena, tn_mul(arena, sum, x), large)), &g));
    return g;
}

static void results_are_in_place_only_where_all_graphs_allow_it(void **state) {
    (void)state;
    tn_device *device;
    tn_arena *arena;
    tn__alloc *a;
    assert_ok(tn_device_find("cpu", &device));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    for (int first = 0; first < 2; first++) {
        assert_ok(tn__alloc_new((tn_buffer_type *[]){tn_device_buffer_type(device)}, 1, &a));
        for (int i = 0; i < 2; i++) {
            bool small = i == first;
            assert_ok(tn__alloc_cover(a, in_place_graph(arena, small ? 3 : 8, small ? 1 : 8), NULL));
        }
        assert_ok(tn__alloc_take(a));
        assert_int_equal(tn__alloc_get_stats(a).classes, 1);
        tn__alloc_seal(a);
        for (int64_t rows = 1; rows <= 8; rows++)
            for (int whole = 0; whole < 2; whole++) {
                tn_graph *g = in_place_graph(arena, rows, whole ? rows : 1);
                uint64_t expected = run_privately(g, g);
                assert_ok(tn__alloc_bind(a, g, NULL, false));
                assert_true(run_and_overwrite(a, g) == expected);
            }
        tn__alloc_free(a);
    }
    /* Covered without the small one, the plan computes the sum in place of y. */
    assert_ok(tn__alloc_new((tn_buffer_type *[]){tn_device_buffer_type(device)}, 1, &a));
    assert_ok(tn__alloc_cover(a, in_place_graph(arena, 8, 8), NULL));
    assert_ok(tn__alloc_take(a));
    tn__alloc_seal(a);
    assert_ok(tn__alloc_bind(a, in_place_graph(arena, 3, 3), NULL, false));
    assert_fails(TN_E_INTERNAL, tn__alloc_bind(a, in_place_graph(arena, 3, 1), NULL, true));
    assert_non_null(strstr(tn_error(), "'sum'"));
    assert_non_null(strstr(tn_error(), "in place"));
    tn__alloc_free(a);
    tn_arena_free(arena);
}

/* ---- One structure, very different sizes ---- */

static tn_graph *two_wide_graph(tn_arena *arena, int64_t left, int64_t right) {
    tn_graph *g;
    tn_arena_reset(arena);
    tn_tensor *x = tn_input(arena, TN_F32, left), *y = tn_input(arena, TN_F32, right);
    tn_tensor *a = tn_sum(arena, tn_silu(arena, x)), *b = tn_sum(arena, tn_silu(arena, y));
    assert_ok(tn_graph_of(arena, tn_output(tn_add(arena, a, b)), &g));
    return g;
}

/* Joined they would need the sum of both. */
static void graphs_that_would_waste_memory_together_are_planned_apart(void **state) {
    (void)state;
    tn_device *device;
    tn_arena *arena;
    tn__alloc *a;
    tn__alloc_need one, both;
    assert_ok(tn_device_find("cpu", &device));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    assert_ok(tn__alloc_new((tn_buffer_type *[]){tn_device_buffer_type(device)}, 1, &a));
    assert_ok(tn__alloc_cover(a, two_wide_graph(arena, 100000, 10), NULL));
    assert_ok(tn__alloc_needs(a, &one));
    assert_ok(tn__alloc_cover(a, two_wide_graph(arena, 10, 100000), NULL));
    assert_ok(tn__alloc_needs(a, &both));
    assert_true(both.size <= one.size + one.size / 5);
    assert_int_equal(tn__alloc_get_stats(a).classes, 2);
    assert_ok(tn__alloc_take(a));
    tn__alloc_seal(a);
    assert_ok(tn__alloc_bind(a, two_wide_graph(arena, 99999, 9), NULL, false));
    assert_ok(tn__alloc_bind(a, two_wide_graph(arena, 9, 99999), NULL, false));
    assert_fails(TN_E_INTERNAL, tn__alloc_bind(a, two_wide_graph(arena, 50000, 50000), NULL, false));
    tn__alloc_free(a);
    tn_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_smaller_graph_never_needs_more_than_the_reserved_one),
        cmocka_unit_test(graphs_of_a_class_run_with_the_same_bits_in_its_plan),
        cmocka_unit_test(results_are_in_place_only_where_all_graphs_allow_it),
        cmocka_unit_test(graphs_that_would_waste_memory_together_are_planned_apart),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}

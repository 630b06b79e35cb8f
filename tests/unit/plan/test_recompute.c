/* Recomputation: the same bits in less memory, on random graphs, chains and trainers; budgets are met or refused. */
#include "random_graph.h"

#include "base/hash.h"
#include "plan/plan_internal.h"
#include "tenon/recompute.h"
#include "tenon/train.h"

#include <stdlib.h>
#include <string.h>

static const tn_plan_memory one_memory = {"memory", 32, 0};
static const tn_plan_params plain_params = {.memories = &one_memory, .n_memories = 1};

static uint64_t hash_given_tensors(const tn_graph *g) {
    uint64_t h = 0;
    for (size_t i = 0; i < count_of(g); i++) h = tn__hash_bytes(tensor_of(g, i), sizeof(tn_tensor), h);
    return h;
}

/* Runs a graph in the memory of its plan. What is dead is overwritten, so that reading it changes the result. Returns
 * the hash of the outputs of `given`, which are found in `r` where it is given. */
static uint64_t run_in_plan(const tn_graph *g, const tn_graph *given, const tn_recomputation *r, size_t *size) {
    tn_plan *plan;
    assert_ok(tn_plan_make(g, &plain_params, &plan));
    assert_ok(tn_plan_verify(plan, g, &plain_params));
    *size = tn_plan_total(plan);
    char *memory = NULL;
    assert_int_equal(posix_memalign((void **)&memory, 64, *size + 64), 0);
    memset(memory, 0xff, *size + 64);
    const tn_plan_entry *entries = tn_plan_entries(plan);
    for (size_t i = 0; i < count_of(g); i++)
        if (entries[i].memory >= 0) tensor_of(g, i)->data = memory + entries[i].offset;
    bind_views(g);
    fill_leaves(given, 7);
    for (size_t i = 0; i < tn_graph_node_count(g); i++) {
        run_node(tn_graph_node(g, i));
        for (size_t k = 0; k < count_of(g); k++)
            if (tn__plan_owns(&entries[k]) && entries[k].size && plan->until[k] == i)
                memset(memory + entries[k].offset, 0xff, entries[k].size);
    }
    uint64_t h = 0;
    for (size_t i = 0; i < count_of(given); i++) {
        const tn_tensor *t = tensor_of(given, i);
        if (!(t->flags & TN_FLAG_OUTPUT)) continue;
        if (r && i < tn_graph_node_count(given)) t = tn_recomputed(r, given, t);
        assert_non_null(t);
        if (tn_is_contiguous(t) && tn_nbytes(t)) h = tn__hash_bytes(t->data, tn_nbytes(t), h + i);
    }
    unbind(g);
    tn_plan_free(plan);
    free(memory);
    return h;
}

static void random_graphs_give_the_same_bits_in_less_memory(void **state) {
    (void)state;
    const int graphs = getenv("TENON_LONG") ? 5000 : 250;
    size_t met = 0, refused = 0, recomputed = 0;
    for (int g = 0; g < graphs; g++) {
        rng r = {(uint64_t)g + 1};
        world w;
        make_world(&w, &r, 5 + (int)rng_below(&r, 70));
        size_t before, after;
        const uint64_t expected = run_in_plan(w.graph, w.graph, NULL, &before), tensors = hash_given_tensors(w.graph);
        for (int share = 100; share >= 20; share -= 10) {
            size_t budget = before * (size_t)share / 100;
            tn_recomputation made;
            tn_status status =
                tn_graph_recompute(w.graph, &(tn_recompute_params){.plan = &plain_params, .budgets = &budget}, &made);
            assert_true(hash_given_tensors(w.graph) == tensors);
            if (status == TN_E_TOO_BIG) {
                assert_true(made.smallest > budget && made.smallest <= before);
                budget = made.smallest;
                refused++;
                assert_ok(tn_graph_recompute(
                    w.graph, &(tn_recompute_params){.plan = &plain_params, .budgets = &budget}, &made));
            } else {
                assert_ok(status);
                met++;
            }
            recomputed += made.n_recomputed;
            assert_true(made.n_recomputed == 0 || made.added_seconds > 0);
            assert_true(made.before == before && made.after <= budget && made.after <= before);
            if (run_in_plan(made.graph, w.graph, &made, &after) != expected)
                fail_msg("graph %d gives other bits within %zu of %zu bytes", g, budget, before);
            assert_int_equal(after, made.after);
            tn_recomputation_free(&made);
            if (status != TN_OK) break;
        }
        tn_arena_free(w.arena);
    }
    print_message("%zu budgets met, %zu refused, %zu nodes computed again\n", met, refused, recomputed);
    assert_true(met > (size_t)graphs && recomputed > (size_t)graphs / 2);
}

/* Of two memories one has a budget; the other one may grow. */
static void each_memory_has_its_own_budget(void **state) {
    (void)state;
    const tn_plan_memory memories[] = {{"small", 32, 0}, {"large", 64, 0}};
    size_t met = 0;
    for (int g = 0; g < 100; g++) {
        rng r = {(uint64_t)g + 1};
        world w;
        uint16_t memory_of[8 * MOST];
        make_world(&w, &r, 30 + (int)rng_below(&r, 40));
        assert_true(count_of(w.graph) <= 8 * MOST);
        for (size_t i = 0; i < count_of(w.graph); i++) memory_of[i] = (uint16_t)rng_below(&r, 2);
        const tn_plan_params params = {.memories = memories, .n_memories = 2, .memory_of = memory_of};
        tn_plan *plan;
        assert_ok(tn_plan_make(w.graph, &params, &plan));
        const size_t budgets[] = {tn_plan_size(plan, 0) * 9 / 10, SIZE_MAX};
        tn_plan_free(plan);
        tn_recomputation made;
        tn_status status =
            tn_graph_recompute(w.graph, &(tn_recompute_params){.plan = &params, .budgets = budgets}, &made);
        if (status == TN_OK) {
            const size_t n = tn_graph_node_count(made.graph), given = tn_graph_node_count(w.graph);
            uint16_t *of = malloc((n + tn_graph_leaf_count(w.graph)) * sizeof *of);
            for (size_t i = 0; i < n + tn_graph_leaf_count(w.graph); i++)
                of[i] = memory_of[i < n ? made.origin[i] : given + i - n];
            const tn_plan_params again = {.memories = memories, .n_memories = 2, .memory_of = of};
            assert_ok(tn_plan_make(made.graph, &again, &plan));
            assert_ok(tn_plan_verify(plan, made.graph, &again));
            assert_true(tn_plan_size(plan, 0) <= budgets[0] && tn_plan_total(plan) == made.after);
            tn_plan_free(plan);
            free(of);
            tn_recomputation_free(&made);
            met++;
        } else {
            assert_int_equal(status, TN_E_TOO_BIG);
        }
        tn_arena_free(w.arena);
    }
    assert_true(met > 10);
}

static tn_status recompute_a_little(void *user) {
    const world *w = user;
    tn_recomputation made;
    size_t budget = 1600;
    tn_status status =
        tn_graph_recompute(w->graph, &(tn_recompute_params){.plan = &plain_params, .budgets = &budget}, &made);
    if (status == TN_OK) tn_recomputation_free(&made);
    return status == TN_E_TOO_BIG ? TN_OK : status;
}
static void every_allocation_may_fail(void **state) {
    (void)state;
    rng r = {5};
    world w;
    make_world(&w, &r, 24);
    check_every_allocation_failure(recompute_a_little, &w);
    tn_arena_free(w.arena);
}

/* ---- Training ---- */

enum { LAYERS = 8, WIDE = 32, INNER = 64, ROWS = 48, LABELS = 10 };
typedef struct net {
    tn_arena *arena;
    tn_tensor *params[2 * LAYERS + 1];
    int n_params;
    tn_tensor *x, *labels, *loss;
} net;

static tn_tensor *learned_matrix(net *m, int64_t in, int64_t out) {
    tn_tensor *w = tn_name(m->arena, tn_param(m->arena, TN_F32, in, out), "w%d", m->n_params);
    return m->params[m->n_params++] = w;
}
static void make_net(net *m) {
    memset(m, 0, sizeof *m);
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &m->arena));
    tn_arena *a = m->arena;
    tn_tensor *x = m->x = tn_input(a, TN_F32, WIDE, ROWS);
    for (int i = 0; i < LAYERS; i++) {
        tn_tensor *up = tn_mul_mat(a, learned_matrix(m, WIDE, INNER), tn_rms_norm(a, x, NULL, 1e-5f));
        x = tn_add(a, x, tn_mul_mat(a, learned_matrix(m, INNER, WIDE), tn_silu(a, up)));
    }
    m->labels = tn_input(a, TN_F32, LABELS, ROWS);
    m->loss = tn_cross_entropy_loss(a, tn_mul_mat(a, learned_matrix(m, WIDE, LABELS), x), m->labels);
    assert_ok(tn_arena_status(a));
}

/* Trains some steps; the losses and all weights are the result. */
static tn_status train_net(const char *device, size_t budget, tn_trainer_memory *memory, uint64_t *result) {
    net m;
    tn_trainer *t;
    static float data[WIDE * INNER], x[WIDE * ROWS];
    float labels[LABELS * ROWS] = {0}, loss;
    rng r = {11};
    tn_trainer_params o = tn_trainer_params_default();
    o.n_threads = 2;
    o.rate = 0.01f;
    o.devices[0] = device;
    o.budget = budget;
    make_net(&m);
    tn_status status = tn_trainer_new(m.loss, &o, &t);
    *result = 0;
    if (status == TN_OK) {
        for (int i = 0; i < m.n_params; i++) {
            for (int64_t k = 0; k < tn_nelements(m.params[i]); k++) data[k] = 0.2f * rng_normal(&r);
            assert_ok(tn_tensor_set(m.params[i], data));
        }
        for (int i = 0; i < WIDE * ROWS; i++) x[i] = rng_normal(&r);
        for (int i = 0; i < ROWS; i++) labels[i * LABELS + i % LABELS] = 1;
        for (int step = 0; step < 5; step++) {
            assert_ok(tn_tensor_set(m.x, x));
            assert_ok(tn_tensor_set(m.labels, labels));
            assert_ok(tn_trainer_step(t, &loss));
            *result = tn__hash_bytes(&loss, sizeof loss, *result);
        }
        assert_ok(tn_trainer_evaluate(t, &loss));
        *result = tn__hash_bytes(&loss, sizeof loss, *result);
        for (int i = 0; i < m.n_params; i++) {
            assert_ok(tn_tensor_get(m.params[i], data));
            *result = tn__hash_bytes(data, tn_nbytes(m.params[i]), *result);
        }
        *memory = tn_trainer_get_memory(t);
        tn_trainer_free(t);
    }
    tn_arena_free(m.arena);
    return status;
}

static void trainers_keep_a_budget_with_the_same_bits(void **state) {
    (void)state;
    tn_trainer_memory free_memory, memory;
    uint64_t expected, result;
    assert_ok(train_net("cpu", 0, &free_memory, &expected));
    assert_int_equal(free_memory.n_recomputed, 0);
    double last = 0;
    for (int share = 100; share >= 40; share -= 10) {
        const size_t budget = free_memory.state + free_memory.scratch + free_memory.compute * (size_t)share / 100;
        assert_ok(train_net("cpu", budget, &memory, &result));
        assert_true(result == expected);
        assert_true(memory.state + memory.compute + memory.scratch <= budget);
        assert_int_equal(memory.compute + memory.saved, free_memory.compute);
        assert_true(share == 100 ? memory.n_recomputed == 0 : memory.n_recomputed > 0 && memory.added_time > 0);
        print_message("%3d%%: %zu bytes of compute, %zu nodes again, %.1f%% longer\n", share, memory.compute,
                      memory.n_recomputed, 100 * memory.added_time);
        last = memory.added_time;
    }
    assert_true(last < 1); /* the forward pass once more would be a third */
}

/* On a device that has just the budget. */
static void trainers_run_in_a_device_of_the_budget(void **state) {
    (void)state;
    tn_trainer_memory all, less;
    uint64_t expected, result;
    char name[64];
    assert_ok(train_net("sim:64M,name=roomy", 0, &all, &expected));
    const size_t budget = all.state + all.scratch + all.compute * 6 / 10;
    snprintf(name, sizeof name, "sim:%zu,name=tight", budget);
    assert_int_equal(train_net(name, 0, &less, &result), TN_E_DEVICE_MEMORY);
    assert_ok(train_net(name, budget, &less, &result));
    assert_true(result == expected && less.n_recomputed > 0);
}

static void budgets_that_cannot_be_met_are_refused_with_the_smallest(void **state) {
    (void)state;
    tn_trainer_memory memory;
    uint64_t result;
    size_t needs, least, given;
    assert_int_equal(train_net("cpu", 200000, &memory, &result), TN_E_TOO_BIG);
    assert_int_equal(sscanf(tn_error(),
                            "training needs %zu bytes on the first device, at least %zu with recomputation, and the "
                            "budget has %zu",
                            &needs, &least, &given),
                     3);
    assert_true(given == 200000 && least > given && least < needs);
    assert_ok(train_net("cpu", least + least / 50, &memory, &result));
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    tn_recomputation r;
    const size_t budget = 1;
    rng random = {3};
    world w;
    make_world(&w, &random, 5);
    assert_int_equal(tn_graph_recompute(NULL, &(tn_recompute_params){0}, &r), TN_E_INVALID);
    assert_int_equal(tn_graph_recompute(w.graph, &(tn_recompute_params){.plan = &plain_params}, &r), TN_E_INVALID);
    assert_int_equal(
        tn_graph_recompute(w.graph, &(tn_recompute_params){.plan = &(tn_plan_params){0}, .budgets = &budget}, &r),
        TN_E_INVALID);
    tn_recomputation_free(NULL);
    tn_arena_free(w.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs_give_the_same_bits_in_less_memory),
        cmocka_unit_test(each_memory_has_its_own_budget),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(trainers_keep_a_budget_with_the_same_bits),
        cmocka_unit_test(trainers_run_in_a_device_of_the_budget),
        cmocka_unit_test(budgets_that_cannot_be_met_are_refused_with_the_smallest),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}

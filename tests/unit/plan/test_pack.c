/* The packer: every packing passes the verifier, small cases are optimal, results are deterministic. */
#include "random_items.h"

#include "base/checked.h"
#include "tenon/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 400 };

static bool long_run(void) { return getenv("TENON_LONG") != NULL; }

static size_t live_peak(const tn_pack_item *items, size_t count) {
    size_t most = 0;
    for (size_t i = 0; i < count; i++) {
        size_t live = 0;
        for (size_t k = 0; k < count; k++)
            if (items[i].end > items[i].start && items[k].start <= items[i].start && items[i].start < items[k].end)
                live += items[k].size;
        most = TN__MAX(most, live);
    }
    return most;
}

static void check_result(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                         const tn_pack_result *r) {
    assert_ok(tn_pack_verify(items, count, params, r));
    assert_true(r->lower_bound >= r->live_peak);
    assert_true(r->size >= r->lower_bound);
    assert_int_equal(r->optimal, r->size == r->lower_bound);
}

static void random_instances_pass_the_verifier(void **state) {
    (void)state;
    rng r = {1};
    tn_pack_item items[MOST];
    int rounds = long_run() ? 20000 : 400;
    for (int round = 0; round < rounds; round++) {
        item_shape s = {.count = rng_below(&r, round % 8 ? 60 : MOST),
                        .horizon = 1 + (int64_t)rng_below(&r, 200),
                        .longest = 1 + (int64_t)rng_below(&r, 50),
                        .largest = 1 + rng_below(&r, 5000),
                        .aligned = round % 2,
                        .zeros = round % 3 == 0};
        random_items(&r, s, items);
        for (int effort = TN_PACK_FAST; effort <= TN_PACK_EXACT; effort++) {
            tn_pack_params params = {.effort = (tn_pack_effort)effort,
                                     .max_steps = effort == TN_PACK_FAST ? 0 : 300000};
            tn_pack_result result;
            assert_ok(tn_pack(items, s.count, &params, &result));
            check_result(items, s.count, &params, &result);
            assert_int_equal(result.live_peak, live_peak(items, s.count));
            assert_int_equal(result.chunk_count, s.count > 0);
            tn_pack_result_free(&result);
        }
    }
}

/* The smallest possible height: tries every order, with each item at its lowest address above the earlier items that
 * are live with it. */
static size_t brute_force(const tn_pack_item *items, size_t count, size_t *at, unsigned done, size_t best,
                          size_t height) {
    if (height >= best) return best;
    if (done == (1u << count) - 1) return height;
    for (size_t i = 0; i < count; i++) {
        if (done >> i & 1) continue;
        size_t low = 0, mask = items[i].alignment ? items[i].alignment - 1 : 0;
        for (size_t k = 0; k < count; k++)
            if (done >> k & 1 && items[k].start < items[i].end && items[i].start < items[k].end)
                low = TN__MAX(low, at[k] + items[k].size);
        at[i] = (low + mask) & ~mask;
        best = brute_force(items, count, at, done | 1u << i, best, TN__MAX(height, at[i] + items[i].size));
    }
    return best;
}

static void exact_effort_is_optimal_on_tiny_instances(void **state) {
    (void)state;
    rng r = {2};
    tn_pack_item items[8];
    int rounds = long_run() ? 20000 : 1000, harder = 0;
    for (int round = 0; round < rounds; round++) {
        item_shape s = {
            .count = 4 + rng_below(&r, 4), .horizon = 8, .longest = 6, .largest = 12, .aligned = round % 3 == 0};
        random_items(&r, s, items);
        if (s.aligned)
            for (size_t i = 0; i < s.count; i++) items[i].alignment = (size_t)1 << rng_below(&r, 4);
        size_t at[8], best = brute_force(items, s.count, at, 0, SIZE_MAX, 0);
        tn_pack_params params = {.effort = TN_PACK_EXACT};
        tn_pack_result result;
        assert_ok(tn_pack(items, s.count, &params, &result));
        check_result(items, s.count, &params, &result);
        assert_int_equal(result.size, best);
        assert_int_equal(result.lower_bound, best);
        harder += result.live_peak < best;
        tn_pack_result_free(&result);

        params.capacity = best;
        assert_ok(tn_pack(items, s.count, &params, &result));
        check_result(items, s.count, &params, &result);
        tn_pack_result_free(&result);
        if (best == 1) continue;
        params.capacity = best - 1;
        assert_fails(TN_E_INFEASIBLE, tn_pack(items, s.count, &params, &result));
        /* The conflict alone cannot be packed either. */
        tn_pack_item few[8];
        assert_in_range(result.conflict_count, 1, s.count);
        for (size_t i = 0; i < result.conflict_count; i++) few[i] = items[result.conflict[i]];
        assert_true(brute_force(few, result.conflict_count, at, 0, SIZE_MAX, 0) >= best);
        tn_pack_result_free(&result);
    }
    assert_true(harder > 5); /* the test is meaningful only if some cases need more than the live bytes */
}

static void answers_are_the_same_every_time(void **state) {
    (void)state;
    rng r = {3};
    tn_pack_item items[120];
    random_items(&r, (item_shape){.count = 120, .horizon = 60, .longest = 20, .largest = 1000}, items);
    for (int effort = TN_PACK_FAST; effort <= TN_PACK_EXACT; effort++) {
        tn_pack_params params = {.effort = (tn_pack_effort)effort, .max_steps = 5000000};
        tn_pack_result a, b;
        assert_ok(tn_pack(items, 120, &params, &a));
        assert_ok(tn_pack(items, 120, &params, &b));
        assert_memory_equal(a.offsets, b.offsets, 120 * sizeof *a.offsets);
        assert_int_equal(a.steps, b.steps);
        tn_pack_result_free(&a);
        tn_pack_result_free(&b);
    }
}

static void more_effort_is_never_worse(void **state) {
    (void)state;
    rng r = {4};
    tn_pack_item items[80];
    for (int round = 0; round < 30; round++) {
        random_items(&r, (item_shape){.count = 80, .horizon = 60, .longest = 30, .largest = 1000}, items);
        size_t before = SIZE_MAX;
        for (int effort = TN_PACK_FAST; effort <= TN_PACK_EXACT; effort++) {
            tn_pack_params params = {.effort = (tn_pack_effort)effort,
                                     .max_steps = effort == TN_PACK_FAST ? 0 : 2000000};
            tn_pack_result result;
            assert_ok(tn_pack(items, 80, &params, &result));
            assert_true(result.size <= before);
            before = result.size;
            tn_pack_result_free(&result);
        }
    }
}

static void fixed_items_are_worked_around(void **state) {
    (void)state;
    rng r = {5};
    tn_pack_item items[60];
    for (int round = 0; round < 300; round++) {
        item_shape s = {.count = 60, .horizon = 60, .longest = 20, .largest = 1000, .aligned = round % 2};
        random_items(&r, s, items);
        /* Some items of a packing are a valid set of fixed items. */
        tn_pack_result first;
        assert_ok(tn_pack(items, s.count, NULL, &first));
        for (size_t i = 0; i < s.count; i += 3) {
            items[i].fixed = true;
            items[i].offset = 3 * first.offsets[i];
        }
        tn_pack_result_free(&first);
        for (int effort = TN_PACK_FAST; effort <= TN_PACK_EXACT; effort++) {
            tn_pack_params params = {.effort = (tn_pack_effort)effort,
                                     .max_steps = effort == TN_PACK_FAST ? 0 : 200000};
            tn_pack_result result;
            assert_ok(tn_pack(items, s.count, &params, &result));
            check_result(items, s.count, &params, &result);
            tn_pack_result_free(&result);
        }
    }
}

static void overlapping_fixed_items_are_refused(void **state) {
    (void)state;
    tn_pack_item items[] = {{.start = 0, .end = 5, .size = 100, .fixed = true, .offset = 0},
                            {.start = 4, .end = 9, .size = 100, .fixed = true, .offset = 99}};
    tn_pack_result result;
    assert_fails(TN_E_INVALID, tn_pack(items, 2, NULL, &result));
    items[1].offset = 100;
    assert_ok(tn_pack(items, 2, NULL, &result));
    assert_int_equal(result.size, 200);
    tn_pack_result_free(&result);
    tn_pack_params params = {.capacity = 150};
    assert_fails(TN_E_INFEASIBLE, tn_pack(items, 2, &params, &result));
    assert_int_equal(result.conflict_count, 1);
    assert_int_equal(result.conflict[0], 1);
    tn_pack_result_free(&result);
}

static void chunks_are_never_straddled(void **state) {
    (void)state;
    rng r = {6};
    tn_pack_item items[MOST];
    for (int round = 0; round < 200; round++) {
        item_shape s = {.count = 1 + rng_below(&r, 200),
                        .horizon = 60,
                        .longest = 40,
                        .largest = 1000,
                        .aligned = round % 2,
                        .zeros = round % 5 == 0};
        random_items(&r, s, items);
        for (int effort = TN_PACK_FAST; effort <= TN_PACK_EXACT; effort++) {
            tn_pack_params params = {
                .effort = (tn_pack_effort)effort, .max_chunk = 1000 + rng_below(&r, 3000), .max_steps = 500000};
            tn_pack_result result;
            assert_ok(tn_pack(items, s.count, &params, &result));
            check_result(items, s.count, &params, &result);
            for (size_t c = 0; c < result.chunk_count; c++) assert_true(result.chunk_sizes[c] <= params.max_chunk);
            tn_pack_result_free(&result);
        }
    }
}

static void a_hundred_chunks_and_a_thousand_holes_work(void **state) {
    (void)state;
    enum { N = 4000 };
    tn_pack_item *items = calloc(N, sizeof *items);
    /* All live together, one per chunk. */
    for (int i = 0; i < 100; i++) items[i] = (tn_pack_item){.start = 0, .end = 1, .size = 600 + (size_t)i};
    tn_pack_params params = {.max_chunk = 1000};
    tn_pack_result result;
    assert_ok(tn_pack(items, 100, &params, &result));
    check_result(items, 100, &params, &result);
    assert_int_equal(result.chunk_count, 100);
    tn_pack_result_free(&result);
    /* Every second of 2,000 items ends early and leaves a hole of its size, which is filled later. */
    for (int i = 0; i < N; i++) {
        bool late = i >= N / 2;
        items[i] = (tn_pack_item){.start = late ? 20000 + i : i,
                                  .end = late || i % 2 ? 50000 : 10000,
                                  .size = 64 + (size_t)(i % (N / 2)) * 8};
    }
    for (int i = N / 2; i < N; i++)
        if (i % 2) items[i].size = 0;
    assert_ok(tn_pack(items, N, NULL, &result));
    check_result(items, N, NULL, &result);
    assert_true(result.ratio < 1.01);
    tn_pack_result_free(&result);
    free(items);
}

/* Inputs of later layers, results that later layers read, and short lifetimes in between. */
static void long_lives_do_not_stand_in_the_way(void **state) {
    (void)state;
    enum { LAYERS = 60, STEPS = 20, MOST_OF_ONE = 8 };
    static tn_pack_item items[LAYERS * (STEPS + MOST_OF_ONE)];
    double sum = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        rng r = {seed};
        size_t count = 0;
        for (int l = 0; l < LAYERS; l++) {
            int64_t begin = (int64_t)l * STEPS;
            for (int k = 0; k < MOST_OF_ONE; k++)
                items[count++] = (tn_pack_item){.start = 0,
                                                .end = begin + (int64_t)rng_below(&r, STEPS) + 1,
                                                .size = 64 * (1 + rng_below(&r, 20))};
            for (int k = 0; k < STEPS; k++)
                items[count++] = (tn_pack_item){.start = begin + k,
                                                .end = begin + k + 2 + (int64_t)rng_below(&r, 4),
                                                .size = 64 * (1 + rng_below(&r, 3000))};
        }
        tn_pack_result result;
        assert_ok(tn_pack(items, count, NULL, &result));
        check_result(items, count, &(tn_pack_params){0}, &result);
        sum += result.ratio;
        tn_pack_result_free(&result);
    }
    assert_true(sum / 20 < 1.03); /* in order of size or start: 1.17 */
}

/* Thousands of items live together, as in training: results kept for the backward pass, and short-lived ones. */
static void crowded_items(rng *r, size_t count, tn_pack_item *items) {
    for (size_t i = 0; i < count; i++) {
        int64_t start = (int64_t)i, back = 2 * (int64_t)count - start;
        bool kept = rng_below(r, 3) == 0;
        items[i] = (tn_pack_item){.start = i % 2 ? start : back,
                                  .end = kept && i % 2 ? back : (i % 2 ? start : back) + 1 + (int64_t)rng_below(r, 4),
                                  .size = rng_below(r, 2) ? 1 + rng_below(r, 50) : 1000 * (1 + rng_below(r, 64))};
    }
}

static void crowds_are_packed_tightly(void **state) {
    (void)state;
    enum { N = 9000 };
    tn_pack_item *items = calloc(N, sizeof *items);
    rng r = {12};
    for (int round = 0; round < 6; round++) {
        crowded_items(&r, N, items);
        tn_pack_params params = {.effort = round % 2 ? TN_PACK_BALANCED : TN_PACK_FAST,
                                 .max_chunk = round >= 4 ? 2000000 : 0};
        for (size_t i = 0; i < N; i += 900) {
            items[i].fixed = round >= 2 && round < 4;
            items[i].offset = 3000 * i;
        }
        tn_pack_result result;
        assert_ok(tn_pack(items, N, &params, &result));
        check_result(items, N, &params, &result);
        if (round < 2) assert_true(result.ratio < 1.005);
        tn_pack_result_free(&result);
    }
    free(items);
}

static void nonsense_is_refused_with_the_item_named(void **state) {
    (void)state;
    tn_pack_result result;
    tn_pack_item backwards = {.start = 5, .end = 4, .size = 1}, odd = {.end = 1, .size = 1, .alignment = 3},
                 huge[2] = {{.end = 1, .size = SIZE_MAX}, {.end = 1, .size = SIZE_MAX}},
                 fine = {.end = 1, .size = 100},
                 crooked = {.end = 1, .size = 1, .alignment = 8, .fixed = true, .offset = 4};
    assert_fails(TN_E_INVALID, tn_pack(&backwards, 1, NULL, &result));
    assert_non_null(strstr(tn_error(), "item 0"));
    assert_fails(TN_E_INVALID, tn_pack(&odd, 1, NULL, &result));
    assert_fails(TN_E_INVALID, tn_pack(&crooked, 1, NULL, &result));
    assert_fails(TN_E_OVERFLOW, tn_pack(huge, 2, NULL, &result));
    assert_fails(TN_E_INVALID, tn_pack(NULL, 1, NULL, &result));
    assert_fails(TN_E_INVALID, tn_pack(&fine, 1, &(tn_pack_params){.effort = (tn_pack_effort)7}, &result));
    assert_fails(TN_E_INVALID, tn_pack(&fine, 1, &(tn_pack_params){.time_limit = -1}, &result));
    assert_fails(TN_E_INVALID, tn_pack(&fine, 1, &(tn_pack_params){.max_chunk = 99}, &result));
    assert_ok(tn_pack(NULL, 0, NULL, &result));
    assert_int_equal(result.size, 0);
    assert_int_equal(result.chunk_count, 0);
    assert_true(result.optimal);
    tn_pack_result_free(&result);
    tn_pack_result_free(NULL);
}

static void the_verifier_finds_what_is_wrong(void **state) {
    (void)state;
    rng r = {7};
    tn_pack_item items[50];
    int caught = 0, rounds = 300;
    for (int round = 0; round < rounds; round++) {
        random_items(&r, (item_shape){.count = 50, .horizon = 40, .longest = 20, .largest = 100}, items);
        tn_pack_result result;
        assert_ok(tn_pack(items, 50, NULL, &result));
        /* Move one item onto another that is live with it. */
        size_t a = rng_below(&r, 50), b = rng_below(&r, 50);
        if (a != b && items[a].start < items[b].end && items[b].start < items[a].end) {
            result.offsets[a] = result.offsets[b] + rng_below(&r, items[b].size);
            assert_fails(TN_E_INTERNAL, tn_pack_verify(items, 50, NULL, &result));
            caught++;
        }
        tn_pack_result_free(&result);
    }
    assert_true(caught > rounds / 10);

    tn_pack_item two[] = {{.end = 1, .size = 8, .alignment = 8}, {.end = 1, .size = 8, .fixed = true, .offset = 16}};
    tn_pack_result result;
    assert_ok(tn_pack(two, 2, NULL, &result));
    result.offsets[0] = 4;
    assert_fails(TN_E_INTERNAL, tn_pack_verify(two, 2, NULL, &result));
    result.offsets[0] = 24;
    assert_fails(TN_E_INTERNAL, tn_pack_verify(two, 2, NULL, &result));
    result.offsets[0] = 0;
    result.offsets[1] = 8;
    assert_fails(TN_E_INTERNAL, tn_pack_verify(two, 2, NULL, &result));
    result.offsets[1] = 16;
    assert_ok(tn_pack_verify(two, 2, NULL, &result));
    result.size++;
    assert_fails(TN_E_INTERNAL, tn_pack_verify(two, 2, NULL, &result));
    result.size--;
    assert_fails(TN_E_INTERNAL, tn_pack_verify(two, 2, &(tn_pack_params){.max_chunk = 20}, &result));
    tn_pack_result_free(&result);
}

static bool always(void *user) {
    ++*(int *)user;
    return true;
}

static void cancelling_stops_with_its_own_status(void **state) {
    (void)state;
    rng r = {8};
    tn_pack_item *items = calloc(20000, sizeof *items);
    random_items(&r, (item_shape){.count = 20000, .horizon = 2000, .longest = 100, .largest = 1000}, items);
    int calls = 0;
    tn_pack_params params = {.effort = TN_PACK_EXACT, .cancel = always, .user = &calls};
    tn_pack_result result;
    assert_fails(TN_E_ABORTED, tn_pack(items, 20000, &params, &result));
    assert_int_equal(calls, 1);
    assert_null(result.offsets);
    free(items);
}

static void a_time_limit_returns_what_there_is(void **state) {
    (void)state;
    rng r = {9};
    tn_pack_item items[200];
    random_items(&r, (item_shape){.count = 200, .horizon = 60, .longest = 40, .largest = 100000}, items);
    tn_pack_params params = {.effort = TN_PACK_EXACT, .time_limit = 0.05};
    tn_pack_result result;
    uint64_t begun = tn_time_ns();
    assert_ok(tn_pack(items, 200, &params, &result));
    assert_true(tn_time_ns() - begun < 5000000000u);
    check_result(items, 200, &params, &result);
    tn_pack_result_free(&result);
    /* With a time limit the effort's own steps are not the limit. */
    uint64_t steps = 0;
    for (double seconds = 0.1; steps <= 10000000 && seconds < 20; seconds *= 4) {
        params = (tn_pack_params){.effort = TN_PACK_FAST, .time_limit = seconds};
        assert_ok(tn_pack(items, 200, &params, &result));
        steps = result.optimal ? UINT64_MAX : result.steps;
        tn_pack_result_free(&result);
    }
    assert_true(steps > 10000000);
    /* Even the smallest time limit gives a packing, also with chunks. */
    params = (tn_pack_params){.time_limit = 1e-9, .max_chunk = 200000};
    assert_ok(tn_pack(items, 200, &params, &result));
    check_result(items, 200, &params, &result);
    tn_pack_result_free(&result);
}

typedef struct scenario {
    tn_pack_item items[700];
    size_t count;
    tn_pack_params params;
} scenario;

static tn_status pack_scenario(void *user) {
    const scenario *s = user;
    tn_pack_result result;
    tn_status status = tn_pack(s->items, s->count, &s->params, &result);
    if (status == TN_E_INFEASIBLE) status = TN_OK;
    if (status == TN_OK && result.offsets) status = tn_pack_verify(s->items, s->count, &s->params, &result);
    tn_pack_result_free(&result);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    rng r = {10};
    static scenario s;
    s = (scenario){.count = 24};
    random_items(&r, (item_shape){.count = 24, .horizon = 16, .longest = 8, .largest = 50}, s.items);
    s.params.effort = TN_PACK_EXACT;
    s.params.max_steps = 100000;
    check_every_allocation_failure(pack_scenario, &s);
    check_no_leak(pack_scenario, &s);
    s.params.capacity = live_peak(s.items, 24) - 1;
    check_every_allocation_failure(pack_scenario, &s);
    s.params = (tn_pack_params){.max_chunk = 60};
    s.items[0].fixed = true;
    check_every_allocation_failure(pack_scenario, &s);
    s.items[0].fixed = false;
    s.params = (tn_pack_params){.max_chunk = 60, .bins = (size_t[]){20, 40, 30}, .n_bins = 3};
    check_every_allocation_failure(pack_scenario, &s);
    check_no_leak(pack_scenario, &s);
    /* Enough items for lists of occupied addresses. */
    s.params = (tn_pack_params){.max_steps = 1000000};
    s.count = TN__COUNT(s.items);
    for (size_t i = 0; i < s.count; i++)
        s.items[i] = (tn_pack_item){.start = (int64_t)(i % 350), .end = 700, .size = 1 + rng_below(&r, 100)};
    check_every_allocation_failure(pack_scenario, &s);
    check_no_leak(pack_scenario, &s);
}

/* ---- Golden instances ---- */

static tn_pack_table load(const char *path) {
    size_t length;
    char *text = read_file(path, &length);
    tn_pack_table table;
    assert_non_null(text);
    assert_ok(tn_pack_table_parse(text, length, &table));
    free(text);
    return table;
}

/* Rectangles cut from one of TIME by `capacity` bytes: the whole is a packing without gaps. */
static size_t cut_rectangle(rng *r, tn_pack_item whole, int depth, tn_pack_item *items) {
    const int64_t time = whole.end - whole.start;
    const int way = depth == 0 ? 2 : (int)rng_below(r, 2);
    if (way == 2 || time < 2 || whole.size < 2) {
        items[0] = whole;
        return 1;
    }
    tn_pack_item a = whole, b = whole;
    if (way == 0)
        a.end = b.start = whole.start + 1 + (int64_t)rng_below(r, (uint64_t)time - 1);
    else
        a.size = 1 + rng_below(r, whole.size - 1), b.size = whole.size - a.size;
    const size_t n = cut_rectangle(r, a, depth - 1, items);
    return n + cut_rectangle(r, b, depth - 1, items + n);
}
static void cut_rectangles_fit_their_capacity(void **state) {
    (void)state;
    enum { DEPTH = 5, CAPACITY = 1 << 20 };
    tn_pack_item items[1 << DEPTH];
    for (uint64_t seed = 0; seed < 40; seed++) {
        rng r = {seed};
        const size_t n = cut_rectangle(&r, (tn_pack_item){.start = -3, .end = 400, .size = CAPACITY}, DEPTH, items);
        tn_pack_params params = {.effort = TN_PACK_EXACT, .capacity = CAPACITY};
        tn_pack_result result;
        assert_ok(tn_pack(items, n, &params, &result));
        check_result(items, n, &params, &result);
        assert_true(result.size == CAPACITY && result.optimal && result.live_peak == CAPACITY);
        tn_pack_result_free(&result);
        params = (tn_pack_params){.effort = TN_PACK_BALANCED, .capacity = CAPACITY - 1};
        assert_fails(TN_E_INFEASIBLE, tn_pack(items, n, &params, &result));
        size_t sum = 0;
        for (size_t k = 0; k < result.conflict_count; k++) sum += items[result.conflict[k]].size;
        assert_true(sum >= CAPACITY);
        tn_pack_result_free(&result);
    }
}

static void golden_instances_fit_their_capacity(void **state) {
    (void)state;
    static const char *const names[] = {"A", "C", "D", "F", "H", "J"};
    for (size_t i = 0; i < TN__COUNT(names); i++) {
        char name[64];
        snprintf(name, sizeof name, "packing/minimalloc-%s.csv", names[i]);
        const char *path = golden_path(name);
        if (!path) return;
        tn_pack_table t = load(path);
        tn_pack_params params = {.effort = TN_PACK_EXACT, .capacity = 1048576};
        tn_pack_result result;
        assert_ok(tn_pack(t.items, t.count, &params, &result));
        check_result(t.items, t.count, &params, &result);
        assert_true(result.size <= 1048576);
        tn_pack_result_free(&result);
        if (strcmp(names[i], "C") == 0) {
            assert_ok(tn_pack(t.items, t.count, &(tn_pack_params){.effort = TN_PACK_EXACT}, &result));
            assert_true(result.optimal);
            assert_int_equal(result.size, result.live_peak);
            tn_pack_result_free(&result);
        }
        params = (tn_pack_params){.effort = TN_PACK_BALANCED, .capacity = 900000};
        assert_fails(TN_E_INFEASIBLE, tn_pack(t.items, t.count, &params, &result));
        size_t sum = 0;
        for (size_t k = 0; k < result.conflict_count; k++) sum += t.items[result.conflict[k]].size;
        assert_true(sum > 900000);
        tn_pack_result_free(&result);
        tn_pack_table_free(&t);
    }
}

static void check_trace(const tn_pack_item *items, size_t count) {
    tn_pack_params params = {.effort = TN_PACK_BALANCED};
    tn_pack_result result;
    assert_ok(tn_pack(items, count, &params, &result));
    check_result(items, count, &params, &result);
    assert_true(result.ratio <= 1.01);
    tn_pack_result_free(&result);
}
static void traces_are_within_a_hundredth_of_the_bound(void **state) {
    (void)state;
    static const char *const names[] = {"packing/resnet50.csv", "packing/pangu_2.6B.csv"};
    for (size_t i = 0; i < TN__COUNT(names) && golden_path(names[i]); i++) {
        tn_pack_table t = load(golden_path(names[i]));
        check_trace(t.items, t.count);
        tn_pack_table_free(&t);
    }
    /* A residual network: each block's input lives to its sum, and channels double while pictures shrink. */
    tn_pack_item items[MOST];
    for (int64_t blocks = 4; blocks <= 64; blocks *= 2) {
        size_t n = 0;
        for (int64_t i = 0; i < blocks; i++) {
            const size_t bytes = (size_t)(802816 >> (4 * i / blocks)), narrow = bytes / 4;
            items[n++] = (tn_pack_item){.start = 4 * i, .end = 4 * i + 4, .size = bytes};
            items[n++] = (tn_pack_item){.start = 4 * i + 1, .end = 4 * i + 3, .size = narrow};
            items[n++] = (tn_pack_item){.start = 4 * i + 2, .end = 4 * i + 4, .size = narrow};
            items[n++] = (tn_pack_item){.start = 4 * i + 3, .end = 4 * i + 5, .size = bytes};
        }
        check_trace(items, n);
    }
}

/* ---- Files and pictures ---- */

static tn_status parse(const char *text, tn_pack_table *table) {
    return tn_pack_table_parse(text, strlen(text), table);
}

static void tables_are_read_by_their_header(void **state) {
    (void)state;
    tn_pack_table t;
    assert_ok(parse("size, id ,upper,extra,lower,alignment\r\n4096,x,7,ignored,-3,64\r\n\r\n1,\"y,z\",2,,1,\n", &t));
    assert_int_equal(t.count, 2);
    assert_int_equal(t.items[0].start, -3);
    assert_int_equal(t.items[0].end, 7);
    assert_int_equal(t.items[0].size, 4096);
    assert_int_equal(t.items[0].alignment, 64);
    assert_string_equal(t.ids[0], "x");
    assert_string_equal(t.ids[1], "y,z");
    assert_int_equal(t.items[1].alignment, 0);
    tn_pack_table_free(&t);
    assert_ok(parse("id,lower,upper,size", &t));
    assert_int_equal(t.count, 0);
    tn_pack_table_free(&t);
}

static void bad_tables_name_line_and_reason(void **state) {
    (void)state;
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"", "line 1"},
        {"id,lower,upper\n", "'size'"},
        {"id,lower,lower,upper,size\n", "'lower'"},
        {"id,lower,upper,size\n1,2\n", "line 2"},
        {"id,lower,upper,size\n1,2,3,4\n1,2,x,4\n", "line 3"},
        {"id,lower,upper,size\n1,2,3,-4\n", "size"},
        {"id,lower,upper,size\n1,5,3,4\n", "before"},
        {"id,lower,upper,size\n1,2,3,99999999999999999999\n", "line 2"},
        {"id,lower,upper,size,alignment\n1,2,3,4,3\n", "power of two"},
        {"id,lower,upper,size\n1,2,3,4,5\n", "line 2"},
        {"id,lower,upper,size\n\"1,2,3,4\n", "quote"},
    };
    for (size_t i = 0; i < TN__COUNT(cases); i++) {
        tn_pack_table t;
        assert_fails(TN_E_FORMAT, parse(cases[i].text, &t));
        if (!strstr(tn_error(), cases[i].reason)) fail_msg("'%s' gives '%s'", cases[i].text, tn_error());
    }
}

static tn_status files_scenario(void *user) {
    (void)user;
    tn_pack_table t;
    TN_TRY(parse("id,lower,upper,size\n<a>,0,3,100\nb,2,4,50\n", &t));
    tn_pack_result result;
    char *csv = NULL, *svg = NULL;
    tn_status status = tn_pack(t.items, t.count, NULL, &result);
    if (status == TN_OK) status = tn_pack_print_csv(t.items, t.ids, &result, &csv);
    if (status == TN_OK) status = tn_pack_svg(t.items, t.ids, &result, "two & more", &svg);
    if (status == TN_OK) {
        assert_string_equal(csv, "id,lower,upper,size,offset\n<a>,0,3,100,0\nb,2,4,50,100\n");
        assert_non_null(strstr(svg, "two &amp; more"));
        assert_non_null(strstr(svg, "&lt;a&gt;"));
        assert_non_null(strstr(svg, "</svg>"));
    }
    tn_free(csv);
    tn_free(svg);
    tn_pack_result_free(&result);
    tn_pack_table_free(&t);
    return status;
}

static void files_and_pictures_survive_lack_of_memory(void **state) {
    (void)state;
    check_no_leak(files_scenario, NULL);
    check_every_allocation_failure(files_scenario, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_instances_pass_the_verifier),
        cmocka_unit_test(exact_effort_is_optimal_on_tiny_instances),
        cmocka_unit_test(answers_are_the_same_every_time),
        cmocka_unit_test(more_effort_is_never_worse),
        cmocka_unit_test(fixed_items_are_worked_around),
        cmocka_unit_test(overlapping_fixed_items_are_refused),
        cmocka_unit_test(chunks_are_never_straddled),
        cmocka_unit_test(a_hundred_chunks_and_a_thousand_holes_work),
        cmocka_unit_test(long_lives_do_not_stand_in_the_way),
        cmocka_unit_test(crowds_are_packed_tightly),
        cmocka_unit_test(nonsense_is_refused_with_the_item_named),
        cmocka_unit_test(the_verifier_finds_what_is_wrong),
        cmocka_unit_test(cancelling_stops_with_its_own_status),
        cmocka_unit_test(a_time_limit_returns_what_there_is),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(cut_rectangles_fit_their_capacity),
        cmocka_unit_test(golden_instances_fit_their_capacity),
        cmocka_unit_test(traces_are_within_a_hundredth_of_the_bound),
        cmocka_unit_test(tables_are_read_by_their_header),
        cmocka_unit_test(bad_tables_name_line_and_reason),
        cmocka_unit_test(files_and_pictures_survive_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Packing into chunks that exist already: bins are filled first, and nothing grows without need. */
#include "random_items.h"

#include "base/checked.h"
#include "tenon/pack.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BIN_ITEMS = 400 };

static void bins_are_filled_before_anything_grows(void **state) {
    (void)state;
    rng r = {21};
    tn_pack_item items[MOST_BIN_ITEMS];
    for (int round = 0; round < (getenv("TENON_LONG") ? 5000 : 300); round++) {
        item_shape s = {.count = 1 + rng_below(&r, 120),
                        .horizon = 40,
                        .longest = 30,
                        .largest = 1000,
                        .aligned = round % 2,
                        .zeros = round % 5 == 0};
        random_items(&r, s, items);
        size_t bins[6], n_bins = 1 + rng_below(&r, 6), total = 0;
        tn_pack_params params = {.effort = (tn_pack_effort)(round % 3),
                                 .max_chunk = round % 4 ? 1000 + rng_below(&r, 4000) : 0,
                                 .max_steps = 200000,
                                 .bins = bins,
                                 .n_bins = n_bins};
        for (size_t b = 0; b < n_bins; b++) {
            bins[b] = rng_below(&r, params.max_chunk ? params.max_chunk + 1 : 8000);
            total += bins[b];
        }
        tn_pack_result result;
        assert_ok(tn_pack(items, s.count, &params, &result));
        assert_ok(tn_pack_verify(items, s.count, &params, &result));
        assert_true(result.reserved >= total && result.reserved >= result.lower_bound);
        assert_true(result.lower_bound >= result.live_peak);
        assert_int_equal(result.optimal, result.reserved == TN__MAX(total, result.lower_bound));
        if (!params.max_chunk) assert_true(result.chunk_count <= n_bins);
        tn_pack_result_free(&result);
    }
}

static void what_fits_the_bins_exceeds_none(void **state) {
    (void)state;
    rng r = {22};
    tn_pack_item items[200];
    for (int round = 0; round < 200; round++) {
        item_shape s = {.count = 1 + rng_below(&r, 200), .horizon = 60, .longest = 40, .largest = 1000};
        random_items(&r, s, items);
        tn_pack_params params = {.max_chunk = round % 3 ? 1000 + rng_below(&r, 3000) : 0};
        tn_pack_result first, again;
        assert_ok(tn_pack(items, s.count, &params, &first));
        /* The chunks of another packing, some enlarged, in another order, then fewer items. */
        size_t bins[512], n = first.chunk_count;
        assert_true(n <= TN__COUNT(bins));
        for (size_t c = 0; c < n; c++) {
            bins[c] = first.chunk_sizes[n - 1 - c] + rng_below(&r, 2) * rng_below(&r, 500);
            if (params.max_chunk) bins[c] = TN__MIN(bins[c], params.max_chunk);
        }
        params.bins = bins;
        params.n_bins = n;
        assert_ok(tn_pack(items, s.count, &params, &again));
        assert_ok(tn_pack_verify(items, s.count, &params, &again));
        assert_true(again.chunk_count <= n);
        for (size_t c = 0; c < again.chunk_count; c++) assert_true(again.chunk_sizes[c] <= bins[c]);
        tn_pack_result_free(&again);
        tn_pack_result_free(&first);
    }
}

static void one_bin_that_suffices_is_found(void **state) {
    (void)state;
    rng r = {23};
    tn_pack_item items[8];
    for (int round = 0; round < 400; round++) {
        item_shape s = {.count = 4 + rng_below(&r, 4), .horizon = 8, .longest = 6, .largest = 12};
        random_items(&r, s, items);
        tn_pack_result result;
        tn_pack_params params = {.effort = TN_PACK_EXACT};
        assert_ok(tn_pack(items, s.count, &params, &result));
        assert_true(result.optimal); /* compared with all packings in test_pack.c */
        size_t best = result.size;
        tn_pack_result_free(&result);
        size_t bins[3] = {best / 3, best + rng_below(&r, 2), best / 2};
        bool several = round % 2;
        params = (tn_pack_params){.bins = several ? bins : bins + 1,
                                  .n_bins = several ? 3 : 1,
                                  .max_chunk = several && round % 4 == 1 ? 2 * best : 0};
        assert_ok(tn_pack(items, s.count, &params, &result));
        assert_ok(tn_pack_verify(items, s.count, &params, &result));
        assert_true(result.chunk_count <= params.n_bins);
        for (size_t c = 0; c < result.chunk_count; c++) assert_true(result.chunk_sizes[c] <= params.bins[c]);
        assert_true(result.optimal);
        tn_pack_result_free(&result);
        /* A bin that is too small grows by no more than is needed. */
        params = (tn_pack_params){.effort = TN_PACK_EXACT, .bins = &bins[2], .n_bins = 1};
        assert_ok(tn_pack(items, s.count, &params, &result));
        assert_int_equal(result.reserved, best);
        assert_true(result.optimal);
        tn_pack_result_free(&result);
    }
    /* Two bins hold what one cannot, and a third is not touched. */
    tn_pack_item pair[] = {{.end = 1, .size = 70}, {.end = 1, .size = 50}};
    size_t bins[] = {50, 10, 70};
    tn_pack_params params = {.bins = bins, .n_bins = 3};
    tn_pack_result result;
    assert_ok(tn_pack(pair, 2, &params, &result));
    assert_int_equal(result.reserved, 130);
    assert_int_equal(result.chunks[0], 2);
    assert_int_equal(result.chunks[1], 0);
    assert_true(result.optimal);
    tn_pack_result_free(&result);
}

static void fixed_items_keep_their_bin(void **state) {
    (void)state;
    rng r = {24};
    tn_pack_item items[60];
    for (int round = 0; round < 200; round++) {
        random_items(&r, (item_shape){.count = 60, .horizon = 60, .longest = 20, .largest = 1000}, items);
        for (size_t i = 0; i < 60; i += 12) {
            items[i].fixed = true;
            items[i].chunk = (uint32_t)(i / 12);
            items[i].offset = 100 * rng_below(&r, 20);
        }
        size_t bins[5] = {3000, 500, 0, 3000, 1000};
        tn_pack_params params = {.bins = bins, .n_bins = 5, .max_chunk = round % 2 ? 3000 : 0};
        tn_pack_result result;
        assert_ok(tn_pack(items, 60, &params, &result));
        assert_ok(tn_pack_verify(items, 60, &params, &result));
        tn_pack_result_free(&result);
    }
}

static void capacity_counts_bins(void **state) {
    (void)state;
    tn_pack_item items[] = {{.end = 1, .size = 70}, {.end = 1, .size = 50}};
    size_t bins[] = {100, 10};
    tn_pack_result result;
    tn_pack_params params = {.bins = bins, .n_bins = 2, .capacity = 105};
    assert_fails(TN_E_INVALID, tn_pack(items, 2, &params, &result));
    params.capacity = 115;
    assert_fails(TN_E_INFEASIBLE, tn_pack(items, 2, &params, &result));
    assert_int_equal(result.conflict_count, 2);
    tn_pack_result_free(&result);
    params.capacity = 130;
    assert_ok(tn_pack(items, 2, &params, &result));
    assert_int_equal(result.reserved, 130); /* 120 in the first, or 70 and 50 */
    tn_pack_result_free(&result);
    params.capacity = 0;
    params.max_chunk = 99;
    assert_fails(TN_E_INVALID, tn_pack(items, 2, &params, &result));
    assert_non_null(strstr(tn_error(), "bin 0"));
    params.bins = NULL;
    assert_fails(TN_E_INVALID, tn_pack(items, 2, &params, &result));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bins_are_filled_before_anything_grows),
        cmocka_unit_test(what_fits_the_bins_exceeds_none),
        cmocka_unit_test(one_bin_that_suffices_is_found),
        cmocka_unit_test(fixed_items_keep_their_bin),
        cmocka_unit_test(capacity_counts_bins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

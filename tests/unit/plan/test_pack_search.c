/* The exact search on hard instances: rectangles cut into boxes, so that a packing without a gap exists. */
#include "support.h"

#include "base/checked.h"
#include "tenon/pack.h"

#include <stdlib.h>

enum { WIDTH = 4096, HEIGHT = 4096 };

typedef struct cut_box {
    int64_t start, end;
    size_t low, high;
} cut_box;

/* Cuts the rectangle into `count` boxes, along time or address, a large one first. Forgets the addresses. */
static void cut_rectangle(rng *r, size_t count, tn_pack_item *items) {
    static cut_box boxes[512];
    assert_true(count <= TN__COUNT(boxes));
    size_t n = 1;
    boxes[0] = (cut_box){0, WIDTH, 0, HEIGHT};
    while (n < count) {
        size_t chosen = 0;
        for (int k = 0; k < 4; k++) {
            size_t other = rng_below(r, n);
            const cut_box *a = &boxes[chosen], *b = &boxes[other];
            if ((double)(b->end - b->start) * (double)(b->high - b->low) >
                (double)(a->end - a->start) * (double)(a->high - a->low))
                chosen = other;
        }
        cut_box *box = &boxes[chosen], rest = *box;
        int64_t life = box->end - box->start;
        size_t size = box->high - box->low;
        if (rng_below(r, 2) ? life > 1 : size < 2) {
            if (life < 2) continue;
            rest.start = box->end = box->start + 1 + (int64_t)rng_below(r, (uint64_t)life - 1);
        } else {
            rest.low = box->high = box->low + 1 + rng_below(r, size - 1);
        }
        boxes[n++] = rest;
    }
    for (size_t i = 0; i < n; i++)
        items[i] = (tn_pack_item){.start = boxes[i].start, .end = boxes[i].end, .size = boxes[i].high - boxes[i].low};
}

static void what_is_possible_is_never_refuted(void **state) {
    (void)state;
    rng r = {31};
    tn_pack_item items[240];
    int found = 0, rounds = getenv("TENON_LONG") ? 400 : 40;
    for (int round = 0; round < rounds; round++) {
        size_t count = 20 + rng_below(&r, round % 4 ? 60 : 220);
        cut_rectangle(&r, count, items);
        tn_pack_params params = {.effort = TN_PACK_EXACT, .capacity = HEIGHT, .max_steps = 60000000};
        tn_pack_result result;
        tn_status status = tn_pack(items, count, &params, &result);
        if (status != TN_OK && status != TN_E_UNDECIDED) fail_msg("round %d: %s", round, tn_error());
        assert_int_equal(result.live_peak, HEIGHT);
        assert_int_equal(result.lower_bound, HEIGHT);
        assert_ok(tn_pack_verify(items, count, &params, &result));
        found += status == TN_OK;
        tn_pack_result_free(&result);
    }
    assert_true(found > rounds / 2);
}

static void hard_searches_are_the_same_every_time(void **state) {
    (void)state;
    rng r = {32};
    tn_pack_item items[200];
    cut_rectangle(&r, 200, items);
    tn_pack_params params = {.effort = TN_PACK_EXACT, .max_steps = 100000000};
    tn_pack_result a, b;
    assert_ok(tn_pack(items, 200, &params, &a));
    assert_ok(tn_pack(items, 200, &params, &b));
    assert_memory_equal(a.offsets, b.offsets, 200 * sizeof *a.offsets);
    assert_int_equal(a.steps, b.steps);
    tn_pack_result_free(&a);
    tn_pack_result_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_possible_is_never_refuted),
        cmocka_unit_test(hard_searches_are_the_same_every_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

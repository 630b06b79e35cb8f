/* The packer against greedy orders: its packing is never larger than that of any common order, with first fit or best
 * fit, on lifetimes of many forms. The greedy packings here share no code with the packer. */
#include "support.h"

#include "base/checked.h"
#include "tenon/pack.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ITEMS = 160 };

/* ---- Instances ---- */

typedef enum life_form {
    EQUAL_LIVES, /* many items with the same few lifetimes */
    NESTED,      /* the later the start, the earlier the end */
    STAIRCASE,   /* each starts and ends a little later than the one before */
    LONG_SHORT,  /* few long lives, many short ones */
    LAYERS,      /* a forward pass whose results are kept for a backward pass */
    ANY_LIVES,
    LIFE_FORMS
} life_form;
typedef enum size_form { ONE_BYTE, HUGE_SIZES, FEW_SIZES, ALIGNED_SIZES, ANY_SIZES, SIZE_FORMS } size_form;

static void form_life(rng *r, life_form form, size_t i, size_t count, tn_pack_item *item) {
    int64_t k = (int64_t)i, n = (int64_t)count, step;
    switch (form) {
    case EQUAL_LIVES:
        step = (int64_t)rng_below(r, 4);
        *item = (tn_pack_item){.start = 10 * step, .end = 10 * step + 5 + (int64_t)rng_below(r, 2) * 10};
        break;
    case NESTED: *item = (tn_pack_item){.start = k, .end = 2 * n - k - (int64_t)rng_below(r, 2)}; break;
    case STAIRCASE: *item = (tn_pack_item){.start = k, .end = k + 3 + (int64_t)rng_below(r, 4)}; break;
    case LONG_SHORT:
        step = (int64_t)rng_below(r, (uint64_t)n);
        *item = (tn_pack_item){.start = step, .end = step + 1 + (int64_t)rng_below(r, i % 8 ? 4 : (uint64_t)n)};
        break;
    case LAYERS:
        *item = i % 2 ? (tn_pack_item){.start = 2 * n - k, .end = 2 * n - k + 1 + (int64_t)rng_below(r, 3)}
                      : (tn_pack_item){.start = k, .end = rng_below(r, 2) ? 2 * n - k : k + 2};
        break;
    default:
        step = (int64_t)rng_below(r, (uint64_t)n);
        *item = (tn_pack_item){.start = step - n / 2, .end = step - n / 2 + (int64_t)rng_below(r, 20)};
    }
}

static size_t form_instance(rng *r, life_form lives, size_form sizes, tn_pack_item *items) {
    size_t count = 2 + rng_below(r, MOST_ITEMS - 1);
    for (size_t i = 0; i < count; i++) {
        form_life(r, lives, i, count, &items[i]);
        switch (sizes) {
        case ONE_BYTE: items[i].size = 1; break;
        case HUGE_SIZES: items[i].size = ((size_t)1 << 45) + rng_below(r, (uint64_t)1 << 46); break;
        case FEW_SIZES: items[i].size = (size_t)64 << rng_below(r, 4); break;
        case ALIGNED_SIZES:
            items[i].size = 1 + rng_below(r, 1000);
            items[i].alignment = (size_t)1 << rng_below(r, 8);
            break;
        default: items[i].size = rng_below(r, 5000);
        }
    }
    /* Orders differ in ties only if the given order is not that of the starts. */
    for (size_t i = count; i-- > 1 && rng_below(r, 1000);) {
        size_t k = rng_below(r, i + 1);
        tn_pack_item x = items[i];
        items[i] = items[k];
        items[k] = x;
    }
    return count;
}

/* ---- Greedy packings ---- */

typedef enum sort_key {
    KEY_SIZE,
    KEY_AREA,
    KEY_LIFE,
    KEY_START,
    KEY_LATE_START,
    KEY_END,
    KEY_LATE_END,
    KEY_CROWD,
    KEY_RIVALS,
    KEY_NONE,
    SORT_KEYS
} sort_key;
static const sort_key judge_orders[][2] = {
    {KEY_SIZE, KEY_NONE},  {KEY_SIZE, KEY_LIFE},     {KEY_SIZE, KEY_START},  {KEY_AREA, KEY_NONE},
    {KEY_AREA, KEY_START}, {KEY_LIFE, KEY_NONE},     {KEY_LIFE, KEY_SIZE},   {KEY_LIFE, KEY_START},
    {KEY_START, KEY_NONE}, {KEY_START, KEY_SIZE},    {KEY_START, KEY_LIFE},  {KEY_LATE_START, KEY_NONE},
    {KEY_END, KEY_NONE},   {KEY_LATE_END, KEY_NONE}, {KEY_CROWD, KEY_NONE},  {KEY_CROWD, KEY_SIZE},
    {KEY_CROWD, KEY_LIFE}, {KEY_RIVALS, KEY_NONE},   {KEY_RIVALS, KEY_SIZE},
};

static bool lives_together(const tn_pack_item *a, const tn_pack_item *b) {
    return a->size && b->size && a->start < b->end && b->start < a->end && a->start < a->end && b->start < b->end;
}

static void sort_values(const tn_pack_item *items, size_t count, double values[SORT_KEYS][MOST_ITEMS]) {
    for (size_t i = 0; i < count; i++) {
        double life = (double)(items[i].end - items[i].start), crowd = 0, rivals = 0;
        for (size_t k = 0; k < count; k++) {
            rivals += lives_together(&items[i], &items[k]);
            /* The live sum is largest at the start of some item. */
            int64_t time = TN__MAX(items[k].start, items[i].start);
            double live = 0;
            for (size_t j = 0; j < count && time < items[i].end; j++)
                if (items[j].start <= time && time < items[j].end) live += (double)items[j].size;
            crowd = TN__MAX(crowd, live);
        }
        values[KEY_SIZE][i] = (double)items[i].size;
        values[KEY_AREA][i] = (double)items[i].size * life;
        values[KEY_LIFE][i] = life;
        values[KEY_START][i] = -(double)items[i].start;
        values[KEY_LATE_START][i] = (double)items[i].start;
        values[KEY_END][i] = -(double)items[i].end;
        values[KEY_LATE_END][i] = (double)items[i].end;
        values[KEY_CROWD][i] = crowd;
        values[KEY_RIVALS][i] = rivals;
        values[KEY_NONE][i] = 0;
    }
}

/* The lowest gap that fits, or the smallest one, between the items live at the same time. */
static size_t judge_place(const tn_pack_item *items, const size_t *placed, size_t n_placed, const size_t *at,
                          size_t item, bool best_fit) {
    size_t conflicts[MOST_ITEMS], n = 0, end = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
    size_t align = TN__MAX(items[item].alignment, 1);
    for (size_t k = 0; k < n_placed; k++) {
        if (!lives_together(&items[placed[k]], &items[item])) continue;
        size_t j = n++;
        for (; j && at[conflicts[j - 1]] > at[placed[k]]; j--) conflicts[j] = conflicts[j - 1];
        conflicts[j] = placed[k];
    }
    for (size_t k = 0; k < n; k++) {
        size_t low = at[conflicts[k]], from = tn__align_up(end, align);
        if (low >= from && low - from >= items[item].size && low - end < best_gap) {
            if (!best_fit) return from;
            best = from;
            best_gap = low - end;
        }
        end = TN__MAX(end, low + items[conflicts[k]].size);
    }
    return best != SIZE_MAX ? best : tn__align_up(end, align);
}

static size_t judge_height(const tn_pack_item *items, size_t count, const double *first, const double *second,
                           bool best_fit) {
    size_t order[MOST_ITEMS], at[MOST_ITEMS], height = 0;
    for (size_t i = 0; i < count; i++) {
        size_t j = i;
        for (; j && (first[i] > first[order[j - 1]] ||
                     (first[i] >= first[order[j - 1]] && second[i] > second[order[j - 1]]));
             j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
    for (size_t k = 0; k < count; k++) {
        const tn_pack_item *item = &items[order[k]];
        if (item->size == 0 || item->start == item->end) continue;
        at[order[k]] = judge_place(items, order, k, at, order[k], best_fit);
        height = TN__MAX(height, at[order[k]] + item->size);
    }
    return height;
}

/* ---- Tests ---- */

static void no_greedy_order_is_smaller(void **state) {
    (void)state;
    rng r = {41};
    static double values[SORT_KEYS][MOST_ITEMS];
    tn_pack_item items[MOST_ITEMS];
    int rounds = getenv("TENON_LONG") ? 200 : 6, smaller = 0;
    for (int round = 0; round < rounds * LIFE_FORMS * SIZE_FORMS; round++) {
        life_form lives = (life_form)(round % LIFE_FORMS);
        size_form sizes = (size_form)(round / LIFE_FORMS % SIZE_FORMS);
        size_t count = form_instance(&r, lives, sizes, items);
        tn_pack_params params = {.effort = TN_PACK_BALANCED, .max_steps = 5000000};
        tn_pack_result result;
        assert_ok(tn_pack(items, count, &params, &result));
        assert_ok(tn_pack_verify(items, count, &params, &result));
        sort_values(items, count, values);
        size_t least = SIZE_MAX;
        for (size_t o = 0; o < 2 * TN__COUNT(judge_orders); o++) {
            const sort_key *keys = judge_orders[o / 2];
            size_t height = judge_height(items, count, values[keys[0]], values[keys[1]], o % 2);
            if (height < result.size)
                fail_msg("round %d, lives %d, sizes %d, %zu items: %zu bytes; %zu in order %zu", round, (int)lives,
                         (int)sizes, count, result.size, height, o);
            least = TN__MIN(least, height);
        }
        smaller += result.size < least;
        tn_pack_result_free(&result);
    }
    assert_true(smaller > rounds); /* and sometimes the packer is better than all of them */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_greedy_order_is_smaller)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

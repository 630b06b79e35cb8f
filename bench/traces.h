/* Generated packing traces, and ten greedy packings of them to compare with. Shares no code with the packer. */
#ifndef BENCH_TRACES_H
#define BENCH_TRACES_H

#include "tenon/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 1;
static uint64_t below(uint64_t bound) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % bound;
}

/* ---- Generators ---- */

/* Resembles a deep network: mostly short lifetimes, some long ones, a few common sizes and some others. */
static void random_trace(tn_pack_item *items, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t kind = below(20);
        int64_t life = 1 + (int64_t)below(kind == 0 ? 200 : kind < 5 ? 20 : 4);
        size_t size = below(4) ? (size_t)4096 << below(8) : 64 * (1 + below(100000));
        items[i] = (tn_pack_item){.start = (int64_t)i, .end = (int64_t)i + life, .size = size, .alignment = 64};
    }
}

/* One layer's kinds of tensors, chosen per trace: some are kept for the backward pass or for a later layer. */
enum { MAX_KINDS = 40 };
typedef struct layer_kind {
    size_t size;
    int life;         /* steps, if it is not kept */
    bool kept, small; /* small: does not scale with the layer */
} layer_kind;

static size_t layer_kinds(layer_kind *kinds, unsigned percent_kept) {
    size_t n = 12 + below(MAX_KINDS - 12), unit = (size_t)64 << below(8);
    for (size_t k = 0; k < n; k++) {
        uint64_t class = below(8);
        kinds[k].small = class < 3;
        kinds[k].size = class < 3 ? 4 * (1 + below(4096)) : unit * ((size_t)1 << below(6)) * (1 + below(4));
        kinds[k].life = 1 + (int)below(class == 7 ? 12 : 4);
        kinds[k].kept = below(100) < percent_kept;
    }
    return n;
}

/* A forward pass whose kept tensors live until the backward pass of their layer, which needs short-lived gradients;
 * gradients of weights are partly kept to the end. Widths change from stage to stage. */
static void training_trace(tn_pack_item *items, size_t count) {
    layer_kind kinds[MAX_KINDS];
    size_t n = layer_kinds(kinds, 30 + (unsigned)below(40)), i = 0, per_layer = 2 * n + 2;
    size_t layers = count / per_layer + 1, stages = 1 + below(5);
    int64_t end = (int64_t)(layers * per_layer);
    for (size_t l = 0; l < layers; l++) {
        size_t scale = 1 + (l * stages / layers) * (1 + below(2));
        int64_t begin = (int64_t)(l * n), back = end - (int64_t)((l + 1) * (n + 2));
        for (size_t k = 0; k < n && i < count; k++) {
            size_t size = kinds[k].size * (kinds[k].small ? 1 : scale);
            int64_t start = begin + (int64_t)k;
            items[i++] = (tn_pack_item){.start = start,
                                        .end = kinds[k].kept ? back + (int64_t)(n - k) + (int64_t)below(3)
                                                             : start + kinds[k].life,
                                        .size = size};
            /* Its gradient. */
            start = back + (int64_t)(n - k);
            if (i < count)
                items[i++] = (tn_pack_item){.start = start, .end = start + 1 + (int64_t)below(4), .size = size};
        }
        for (int w = 0; w < 2 && i < count; w++)
            items[i++] = (tn_pack_item){.start = back + (int64_t)below(n),
                                        .end = below(2) ? end : back + (int64_t)n + 2,
                                        .size = kinds[below(n)].size * (1 + below(3))};
    }
}

/* Layers one after another: short-lived results, the residual stream, skips to later layers as in a U-net. */
static void inference_trace(tn_pack_item *items, size_t count) {
    layer_kind kinds[MAX_KINDS];
    size_t n = layer_kinds(kinds, 0), i = 0, layers = count / (n + 2) + 1, width = kinds[below(n)].size + 64;
    bool skips = below(2);
    for (size_t l = 0; l < layers; l++) {
        int64_t begin = (int64_t)(l * n);
        size_t scale = 1 + below(3);
        for (size_t k = 0; k < n && i < count; k++)
            items[i++] = (tn_pack_item){.start = begin + (int64_t)k,
                                        .end = begin + (int64_t)k + kinds[k].life,
                                        .size = kinds[k].size * (kinds[k].small ? 1 : scale)};
        if (i < count) items[i++] = (tn_pack_item){.start = begin, .end = begin + (int64_t)n + 1, .size = width};
        if (!skips || i == count) continue;
        size_t within = l % 64;
        int64_t to = within < 32 ? (int64_t)((l - within + 64 - within) * n) : begin + 1;
        items[i++] = (tn_pack_item){.start = begin, .end = to + 1, .size = width / (1 + within / 8)};
    }
}

/* ---- Greedy packing ---- */

/* Occupied addresses per slice of time: sorted spans, joined where they touch. */
typedef struct slice {
    size_t count, capacity;
    struct slice_span {
        size_t low, high;
    } * spans;
} slice;

/* The slices: occupied throughout, and at any time, the latter also for groups of slices; and the items that start or
 * end within. */
enum { SLICES = 400, GROUP = 20 };
typedef struct slices {
    int64_t width;
    size_t n;
    slice *whole, *any, *groups;
    struct slice_part {
        size_t count, capacity;
        uint32_t *items;
    } * parts;
} slices;

static void join_span(slice *s, size_t low, size_t high) {
    size_t a = 0, b = s->count;
    while (a < b) {
        size_t middle = (a + b) / 2;
        if (s->spans[middle].high < low)
            a = middle + 1;
        else
            b = middle;
    }
    while (b < s->count && s->spans[b].low <= high) {
        if (s->spans[b].low < low) low = s->spans[b].low;
        if (s->spans[b].high > high) high = s->spans[b].high;
        b++;
    }
    if (s->count + 1 > s->capacity)
        s->spans = realloc(s->spans, (s->capacity = 2 * s->capacity + 8) * sizeof *s->spans);
    memmove(s->spans + a + 1, s->spans + b, (s->count - b) * sizeof *s->spans);
    s->spans[a].low = low;
    s->spans[a].high = high;
    s->count += 1 + a - b;
}

static int by_low(const void *a, const void *b) {
    const struct slice_span *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

/* Moves past everything occupied at `end`, and returns the start of the next span; SIZE_MAX if there is none. */
static size_t next_span(const slice **lists, size_t *cursors, size_t n, size_t *end) {
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t k = 0; k < n; k++) {
            const slice *list = lists[k];
            while (cursors[k] < list->count && list->spans[cursors[k]].low <= *end) {
                size_t high = list->spans[cursors[k]++].high;
                if (high > *end) *end = high, moved = true;
            }
        }
    }
    size_t low = SIZE_MAX;
    for (size_t k = 0; k < n; k++)
        if (cursors[k] < lists[k]->count && lists[k]->spans[cursors[k]].low < low)
            low = lists[k]->spans[cursors[k]].low;
    return low;
}

/* The lowest gap between the spans of all lists, or the smallest one that is large enough. */
static size_t find_gap(const slice **lists, size_t *cursors, size_t n, const tn_pack_item *item, bool tightest) {
    size_t align = item->alignment ? item->alignment : 1, end = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
    memset(cursors, 0, n * sizeof *cursors);
    for (;;) {
        size_t low = next_span(lists, cursors, n, &end), at = (end + align - 1) / align * align;
        if (low == SIZE_MAX) return best != SIZE_MAX ? best : at;
        if (low >= at && low - at >= item->size && low - end < best_gap) {
            if (!tightest) return at;
            best = at;
            best_gap = low - end;
        }
        end = low;
    }
}

static bool slice_inside(const slices *s, const tn_pack_item *item, size_t x) {
    return item->start <= (int64_t)x * s->width && (int64_t)(x + 1) * s->width <= item->end;
}

/* Packs in the given order. Lifetimes start at 0 or later. Returns the height. */
static size_t greedy_height(const tn_pack_item *items, size_t count, const uint32_t *order, bool tightest) {
    int64_t end = 1;
    for (size_t i = 0; i < count; i++) end = items[i].end > end ? items[i].end : end;
    slices s = {.width = end / SLICES + 1};
    s.n = (size_t)(end / s.width + 1);
    s.whole = calloc(s.n, sizeof *s.whole);
    s.any = calloc(s.n, sizeof *s.any);
    s.groups = calloc(s.n / GROUP + 1, sizeof *s.groups);
    s.parts = calloc(s.n, sizeof *s.parts);
    size_t *at = calloc(count, sizeof *at), height = 0, *cursors = malloc((s.n + 3) * sizeof *cursors);
    const slice **lists = malloc((s.n + 3) * sizeof *lists);
    slice near = {0}; /* items that start or end in the first or last slice */
    for (size_t k = 0; k < count; k++) {
        const tn_pack_item *item = &items[order[k]];
        if (item->size == 0 || item->start >= item->end) continue;
        size_t from = (size_t)(item->start / s.width), to = (size_t)((item->end - 1) / s.width), n = 0;
        near.count = 0;
        for (size_t x = from; x <= to; x++) {
            bool inside = slice_inside(&s, item, x);
            bool group = x > from && x % GROUP == 0 && x + GROUP <= to;
            const slice *list = group ? &s.groups[x / GROUP] : inside ? &s.any[x] : &s.whole[x];
            if (list->count) lists[n++] = list;
            if (group) x += GROUP - 1;
            for (size_t q = 0; !inside && q < s.parts[x].count; q++) {
                uint32_t other = s.parts[x].items[q];
                if (items[other].start >= item->end || item->start >= items[other].end) continue;
                if (near.count == near.capacity)
                    near.spans = realloc(near.spans, (near.capacity = 2 * near.capacity + 8) * sizeof *near.spans);
                near.spans[near.count++] = (struct slice_span){at[other], at[other] + items[other].size};
            }
        }
        if (near.count) qsort(near.spans, near.count, sizeof *near.spans, by_low);
        lists[n++] = &near;
        size_t low = at[order[k]] = find_gap(lists, cursors, n, item, tightest);
        if (low + item->size > height) height = low + item->size;
        for (size_t x = from / GROUP; x <= to / GROUP; x++) join_span(&s.groups[x], low, low + item->size);
        for (size_t x = from; x <= to; x++) {
            join_span(&s.any[x], low, low + item->size);
            struct slice_part *p = &s.parts[x];
            if (slice_inside(&s, item, x)) {
                join_span(&s.whole[x], low, low + item->size);
                continue;
            }
            if (p->count == p->capacity)
                p->items = realloc(p->items, (p->capacity = 2 * p->capacity + 8) * sizeof *p->items);
            p->items[p->count++] = order[k];
        }
    }
    for (size_t x = 0; x < s.n; x++) {
        free(s.any[x].spans);
        free(s.whole[x].spans);
        free(s.parts[x].items);
    }
    for (size_t x = 0; x < s.n / GROUP + 1; x++) free(s.groups[x].spans);
    free(s.groups);
    free(s.any);
    free(s.whole);
    free(s.parts);
    free(at);
    free(near.spans);
    free(cursors);
    free(lists);
    return height;
}

/* ---- Ten orders ---- */

static const tn_pack_item *sorted_items;
static const double *sorted_crowd; /* live bytes at the fullest moment of each item */
static int sorted_by;
static const char *const order_names[] = {"start",       "start, best fit", "end, reversed", "size",
                                          "size, life",  "size × life",     "life",          "life, size",
                                          "crowd, size", "crowd, life"};
enum { ORDERS = 10 };

static int by_chosen(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    const tn_pack_item *x = &sorted_items[i], *y = &sorted_items[k];
    double lx = (double)(x->end - x->start), ly = (double)(y->end - y->start), sx = (double)x->size,
           sy = (double)y->size;
    double cx = sorted_crowd[i], cy = sorted_crowd[k];
    double keys[2][2] = {{0, 0}, {0, 0}};
    switch (sorted_by) {
    case 0:
    case 1: keys[0][0] = -(double)x->start, keys[0][1] = -(double)y->start; break;
    case 2: keys[0][0] = (double)x->end, keys[0][1] = (double)y->end; break;
    case 3: keys[0][0] = sx, keys[0][1] = sy; break;
    case 4: keys[0][0] = sx, keys[0][1] = sy, keys[1][0] = lx, keys[1][1] = ly; break;
    case 5: keys[0][0] = sx * lx, keys[0][1] = sy * ly; break;
    case 6: keys[0][0] = lx, keys[0][1] = ly; break;
    case 7: keys[0][0] = lx, keys[0][1] = ly, keys[1][0] = sx, keys[1][1] = sy; break;
    case 8: keys[0][0] = cx, keys[0][1] = cy, keys[1][0] = sx, keys[1][1] = sy; break;
    default: keys[0][0] = cx, keys[0][1] = cy, keys[1][0] = lx, keys[1][1] = ly; break;
    }
    for (int d = 0; d < 2; d++)
        if (keys[d][0] != keys[d][1]) return keys[d][0] > keys[d][1] ? -1 : 1;
    return i < k ? -1 : i > k;
}

/* Writes the height of each of the ten packings. */
static void greedy_heights(const tn_pack_item *items, size_t count, size_t heights[ORDERS]) {
    int64_t end = 1;
    for (size_t i = 0; i < count; i++) end = items[i].end > end ? items[i].end : end;
    double *live = calloc((size_t)end + 1, sizeof *live), *crowd = calloc(count, sizeof *crowd);
    uint32_t *order = malloc(count * sizeof *order);
    for (size_t i = 0; i < count; i++) {
        live[items[i].start] += (double)items[i].size;
        live[items[i].end] -= (double)items[i].size;
    }
    for (int64_t t = 1; t <= end; t++) live[t] += live[t - 1];
    enum { PER_BLOCK = 256 };
    double *blocks = calloc((size_t)end / PER_BLOCK + 1, sizeof *blocks);
    for (int64_t t = 0; t <= end; t++) blocks[t / PER_BLOCK] = fmax(blocks[t / PER_BLOCK], live[t]);
    for (size_t i = 0; i < count; i++)
        for (int64_t t = items[i].start; t < items[i].end;) {
            bool all = t % PER_BLOCK == 0 && t + PER_BLOCK <= items[i].end;
            double most = all ? blocks[t / PER_BLOCK] : live[t];
            crowd[i] = most > crowd[i] ? most : crowd[i];
            t += all ? PER_BLOCK : 1;
        }
    sorted_items = items;
    sorted_crowd = crowd;
    for (sorted_by = 0; sorted_by < ORDERS; sorted_by++) {
        for (uint32_t i = 0; i < count; i++) order[i] = i;
        qsort(order, count, sizeof *order, by_chosen);
        heights[sorted_by] = greedy_height(items, count, order, sorted_by == 1);
    }
    free(live);
    free(blocks);
    free(crowd);
    free(order);
}

#endif

/* Occupied addresses by time, for packing one item after another where thousands of items are live together.
 *
 * Time is cut into blocks of moments. Per block there are the addresses occupied throughout (`whole`), the items that
 * start or end inside (`edges`), and the addresses occupied at any moment; the latter also per group of 2, 4, 8 …
 * blocks (`any`). Address lists are sorted and joined where they touch: in a dense packing a few spans stand for
 * thousands of items. The addresses that an item conflicts with are those of O(log) groups inside its lifetime, and
 * of the two blocks in which it starts and ends. */
#include "plan/pack_internal.h"

enum {
    MAX_BLOCKS = 512,
    MIN_MOMENTS = 16, /* per block */
};

typedef struct span_list {
    tn__pack_span *spans;
    uint32_t count, capacity;
} span_list;

typedef struct edge_item {
    tn__pack_span span;
    uint32_t first, last;
} edge_item;

typedef struct edge_list {
    edge_item *items;
    uint32_t count, capacity;
} edge_list;

struct tn__pack_occupied {
    uint32_t moments, per_block, blocks; /* blocks: a power of two */
    span_list *any;                      /* binary tree, root at 1, leaves from `blocks` */
    span_list *whole;
    edge_list *edges;
    bool no_memory; /* the lists are incomplete */
};

tn_status tn__pack_occupied_new(uint32_t moments, tn__pack_occupied **out) {
    tn__pack_occupied *o = *out = tn_calloc(1, sizeof *o);
    if (!o) return TN_E_NOMEM;
    o->moments = moments;
    o->per_block = TN__MAX(MIN_MOMENTS, (moments + MAX_BLOCKS - 1) / MAX_BLOCKS);
    o->blocks = 1;
    while ((uint64_t)o->blocks * o->per_block < moments) o->blocks *= 2;
    o->any = tn_calloc(2 * (size_t)o->blocks, sizeof *o->any);
    o->whole = tn_calloc(o->blocks, sizeof *o->whole);
    o->edges = tn_calloc(o->blocks, sizeof *o->edges);
    if (o->any && o->whole && o->edges) return TN_OK;
    tn__pack_occupied_free(o);
    *out = NULL;
    return TN_E_NOMEM;
}

void tn__pack_occupied_free(tn__pack_occupied *o) {
    if (!o) return;
    for (uint32_t k = 0; o->any && k < 2 * o->blocks; k++) tn_free(o->any[k].spans);
    for (uint32_t b = 0; o->whole && b < o->blocks; b++) tn_free(o->whole[b].spans);
    for (uint32_t b = 0; o->edges && b < o->blocks; b++) tn_free(o->edges[b].items);
    tn_free(o->any);
    tn_free(o->whole);
    tn_free(o->edges);
    tn_free(o);
}

void tn__pack_occupied_clear(tn__pack_occupied *o) {
    for (uint32_t k = 0; k < 2 * o->blocks; k++) o->any[k].count = 0;
    for (uint32_t b = 0; b < o->blocks; b++) o->whole[b].count = o->edges[b].count = 0;
    o->no_memory = false;
}

/* Adds a span to the union. Returns the work in steps. */
static uint64_t add_span(tn__pack_occupied *o, span_list *list, tn__pack_span x) {
    /* Spans from `from` up to `to` touch x. */
    uint32_t from = 0, high = list->count;
    while (from < high) {
        uint32_t middle = (from + high) / 2;
        if (list->spans[middle].high < x.low)
            from = middle + 1;
        else
            high = middle;
    }
    uint32_t to = from;
    while (to < list->count && list->spans[to].low <= x.high) to++;
    if (from == to) {
        if (list->count == list->capacity) {
            uint32_t capacity = 2 * list->capacity + 8;
            tn__pack_span *grown = tn_realloc(list->spans, capacity * sizeof *grown);
            if (!grown) {
                o->no_memory = true;
                return 1;
            }
            list->spans = grown;
            list->capacity = capacity;
        }
        memmove(list->spans + from + 1, list->spans + from, (list->count - from) * sizeof x);
        list->spans[from] = x;
        list->count++;
        return 4 + (list->count - from) / 16;
    }
    list->spans[from].low = TN__MIN(list->spans[from].low, x.low);
    list->spans[from].high = TN__MAX(list->spans[to - 1].high, x.high);
    if (to > from + 1) {
        memmove(list->spans + from + 1, list->spans + to, (list->count - to) * sizeof x);
        list->count -= to - from - 1;
    }
    return 3 + (to - from) / 4;
}

static void add_edge_item(tn__pack_occupied *o, edge_list *list, edge_item x) {
    if (list->count == list->capacity) {
        uint32_t capacity = 2 * list->capacity + 8;
        edge_item *grown = tn_realloc(list->items, capacity * sizeof *grown);
        if (!grown) {
            o->no_memory = true;
            return;
        }
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = x;
}

/* Whether a lifetime includes all moments of a block. */
static bool covers_block(const tn__pack_occupied *o, uint32_t first, uint32_t last, uint32_t block) {
    uint32_t begin = block * o->per_block, end = TN__MIN(begin + o->per_block, o->moments);
    return first <= begin && end <= last;
}

uint64_t tn__pack_occupied_add(tn__pack_occupied *o, uint32_t first, uint32_t last, tn__pack_span x) {
    uint32_t from = first / o->per_block, to = (last - 1) / o->per_block;
    uint64_t steps = 4;
    for (uint32_t b = from; b <= to; b++) {
        if (covers_block(o, first, last, b))
            steps += add_span(o, &o->whole[b], x);
        else
            add_edge_item(o, &o->edges[b], (edge_item){x, first, last});
    }
    for (uint32_t a = from + o->blocks, b = to + o->blocks; a; a /= 2, b /= 2)
        for (uint32_t node = a; node <= b; node++) steps += add_span(o, &o->any[node], x);
    return steps;
}

/* The part of a list that ends above an address. */
static span_list list_above(const span_list *list, uint64_t above) {
    uint32_t from = 0, to = list->count;
    while (from < to) {
        uint32_t middle = (from + to) / 2;
        if (list->spans[middle].high <= above)
            from = middle + 1;
        else
            to = middle;
    }
    return from < list->count ? (span_list){.spans = list->spans + from, .count = list->count - from}
                              : (span_list){0};
}

static uint32_t copy_edges(const edge_list *list, uint32_t first, uint32_t last, uint64_t above, tn__pack_span *out) {
    uint32_t count = 0;
    for (uint32_t k = 0; k < list->count; k++) {
        const edge_item *x = &list->items[k];
        out[count] = x->span;
        count += x->first < last && first < x->last && x->span.high > above;
    }
    return count;
}

bool tn__pack_occupied_collect(const tn__pack_occupied *o, uint32_t first, uint32_t last, uint64_t above,
                               uint32_t capacity, tn__pack_spans *out, uint64_t *steps) {
    if (o->no_memory) return false;
    span_list lists[2 + 2 * 32]; /* the ends, and two groups of each level */
    uint32_t from = first / o->per_block, to = (last - 1) / o->per_block, n_lists = 0, count = 0, read = 0;
    uint32_t inner = from, end = to + 1; /* blocks inside the lifetime */
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t block = k ? to : from;
        if (covers_block(o, first, last, block) || (k && to == from)) continue;
        if (o->edges[block].count >= capacity - count) return false;
        lists[n_lists++] = list_above(&o->whole[block], above);
        count += copy_edges(&o->edges[block], first, last, above, out->few + count);
        read += o->edges[block].count;
        if (block == to) end = to;
        if (block == from) inner = from + 1;
    }
    for (uint32_t a = inner + o->blocks, b = end + o->blocks; a < b; a /= 2, b /= 2) {
        if (a & 1) lists[n_lists++] = list_above(&o->any[a++], above);
        if (b & 1) lists[n_lists++] = list_above(&o->any[--b], above);
    }
    uint32_t longest = 0;
    for (uint32_t k = 1; k < n_lists; k++)
        if (lists[k].count > lists[longest].count) longest = k;
    for (uint32_t k = 0; k < n_lists; k++) {
        if (k == longest || lists[k].count == 0) continue;
        if (lists[k].count >= capacity - count) return false;
        memcpy(out->few + count, lists[k].spans, lists[k].count * sizeof *out->few);
        count += lists[k].count;
    }
    out->n_few = count;
    out->many = n_lists ? lists[longest].spans : NULL;
    out->n_many = n_lists ? lists[longest].count : 0;
    *steps += 8 + read / 16 + count / 4;
    return true;
}

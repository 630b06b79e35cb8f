/* Best fit in order of start, like an allocator that sees one request after another. It takes n log n, gives an upper
 * bound for the result of the planner, and is often good. */
#include "plan/pack_internal.h"

#include "base/hash.h"

/* Memory is a list of blocks in order of address. Free blocks are also in a treap ordered by size, then address. The
 * priorities are hashes of block numbers, so that the shape of the tree is the same in every run. */
enum { NONE = 0 }; /* block 0 stands for "no block" */
typedef struct block {
    uint64_t address, size;
    uint32_t below, above; /* neighbours by address */
    uint32_t left, right;  /* treap */
    bool free;
} block;

typedef struct heap {
    block *blocks;
    uint32_t used, spare; /* blocks in use so far; free list of block numbers, linked through `above` */
    uint32_t root;
    uint32_t highest; /* by address */
    uint64_t end;     /* of the highest block */
} heap;

static uint64_t priority(uint32_t b) { return tn__mix64(b); }
static bool block_before(const block *a, const block *b) {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
}

/* Splits the tree t into the blocks before b and the others. */
static void tree_split(heap *h, uint32_t t, uint32_t b, uint32_t *low, uint32_t *high) {
    while (t) {
        if (block_before(&h->blocks[t], &h->blocks[b])) {
            *low = t;
            low = &h->blocks[t].right;
            t = *low;
        } else {
            *high = t;
            high = &h->blocks[t].left;
            t = *high;
        }
    }
    *low = *high = NONE;
}

static void tree_add(heap *h, uint32_t b) {
    uint32_t *link = &h->root;
    uint64_t rank = priority(b);
    while (*link && priority(*link) > rank)
        link = block_before(&h->blocks[b], &h->blocks[*link]) ? &h->blocks[*link].left : &h->blocks[*link].right;
    uint32_t rest = *link;
    *link = b;
    tree_split(h, rest, b, &h->blocks[b].left, &h->blocks[b].right);
    h->blocks[b].free = true;
}

static void tree_remove(heap *h, uint32_t b) {
    uint32_t *link = &h->root;
    while (*link != b)
        link = block_before(&h->blocks[b], &h->blocks[*link]) ? &h->blocks[*link].left : &h->blocks[*link].right;
    uint32_t low = h->blocks[b].left, high = h->blocks[b].right;
    while (low && high) {
        if (priority(low) > priority(high)) {
            *link = low;
            link = &h->blocks[low].right;
            low = *link;
        } else {
            *link = high;
            link = &h->blocks[high].left;
            high = *link;
        }
    }
    *link = low ? low : high;
    h->blocks[b].free = false;
}

/* The first free block of at least `size` bytes, or NONE. */
static uint32_t tree_find(const heap *h, uint64_t size) {
    uint32_t found = NONE;
    for (uint32_t t = h->root; t;) {
        if (h->blocks[t].size >= size) {
            found = t;
            t = h->blocks[t].left;
        } else {
            t = h->blocks[t].right;
        }
    }
    return found;
}

static uint32_t block_new(heap *h, uint64_t address, uint64_t size, uint32_t below, uint32_t above) {
    uint32_t b = h->spare;
    if (b)
        h->spare = h->blocks[b].above;
    else
        b = ++h->used;
    h->blocks[b] = (block){.address = address, .size = size, .below = below, .above = above};
    if (below) h->blocks[below].above = b;
    if (above) h->blocks[above].below = b;
    return b;
}

static void block_drop(heap *h, uint32_t b) {
    block *x = &h->blocks[b];
    if (x->below) h->blocks[x->below].above = x->above;
    if (x->above) h->blocks[x->above].below = x->below;
    if (h->highest == b) h->highest = x->below;
    x->above = h->spare;
    h->spare = b;
}

/* Splits [address, address+size) off block b, with free blocks on both sides. Returns the block in the middle. */
static uint32_t carve(heap *h, uint32_t b, uint64_t address, uint64_t size) {
    block *x = &h->blocks[b];
    uint64_t front = address - x->address, back = x->size - front - size;
    if (front) tree_add(h, block_new(h, x->address, front, x->below, b));
    if (back) {
        uint32_t rest = block_new(h, address + size, back, b, x->above);
        if (h->highest == b) h->highest = rest;
        tree_add(h, rest);
    }
    x->address = address;
    x->size = size;
    return b;
}

static uint64_t aligned(uint64_t at, uint64_t mask) { return (at + mask) & ~mask; }

static uint32_t allocate_block(heap *h, uint64_t size, uint64_t mask) {
    /* The smallest block that fits may be too small after alignment; then one with room for any alignment is used. */
    uint32_t b = tree_find(h, size);
    if (b && aligned(h->blocks[b].address, mask) + size > h->blocks[b].address + h->blocks[b].size)
        b = tree_find(h, size + mask);
    if (b) {
        tree_remove(h, b);
        return carve(h, b, aligned(h->blocks[b].address, mask), size);
    }
    /* Otherwise memory grows, starting with the free block at its end, if there is one. */
    b = h->highest;
    if (b && h->blocks[b].free)
        tree_remove(h, b);
    else
        b = h->highest = block_new(h, h->end, 0, h->highest, NONE);
    block *x = &h->blocks[b];
    uint64_t at = aligned(x->address, mask);
    h->end = at + size;
    x->size = h->end - x->address;
    return carve(h, b, at, size);
}

static void give_back(heap *h, uint32_t b) {
    block *x = &h->blocks[b];
    uint32_t below = x->below, above = x->above;
    if (below && h->blocks[below].free) {
        tree_remove(h, below);
        x->address = h->blocks[below].address;
        x->size += h->blocks[below].size;
        block_drop(h, below);
    }
    if (above && h->blocks[above].free) {
        tree_remove(h, above);
        x->size += h->blocks[above].size;
        if (h->highest == above) h->highest = b;
        block_drop(h, above);
    }
    tree_add(h, b);
}

/* The start of an item, in mirrored time if requested. */
static uint64_t life_begin(const tn__pack_problem *p, uint32_t i, bool mirrored) {
    return mirrored ? p->moments - p->last[i] : p->first[i];
}
static uint64_t life_end(const tn__pack_problem *p, uint32_t i, bool mirrored) {
    return mirrored ? p->moments - p->first[i] : p->last[i];
}

tn_status tn__pack_online(const tn__pack_problem *p, const uint32_t *items, uint32_t n, bool mirrored,
                          tn__pack_ties ties, uint64_t *at) {
    heap h = {.blocks = tn_malloc((2 * (size_t)n + 3) * sizeof(block))};
    uint64_t *key = tn_malloc(p->n * sizeof *key), *scratch = tn_malloc(4 * (size_t)n * sizeof *scratch);
    uint32_t *starts = tn_malloc(n * sizeof *starts), *ends = tn_malloc(n * sizeof *ends);
    uint32_t *held = tn_malloc(p->n * sizeof *held);
    tn_status status = TN_E_NOMEM;
    if (!h.blocks || !key || !scratch || !starts || !ends || !held) goto out;

    for (uint32_t k = 0; k < n; k++) starts[k] = ends[k] = items[k];
    if (ties != TN__TIES_AS_GIVEN) {
        for (uint32_t k = 0; k < n; k++)
            key[items[k]] = ~(ties == TN__TIES_LARGEST ? p->size[items[k]] : life_end(p, items[k], mirrored));
        tn__pack_sort(starts, n, key, scratch);
    }
    for (uint32_t k = 0; k < n; k++) key[items[k]] = life_begin(p, items[k], mirrored);
    if (ties != TN__TIES_AS_GIVEN || mirrored) tn__pack_sort(starts, n, key, scratch);
    for (uint32_t k = 0; k < n; k++) key[items[k]] = life_end(p, items[k], mirrored);
    tn__pack_sort(ends, n, key, scratch);
    for (uint32_t s = 0, e = 0; s < n; s++) {
        uint32_t i = starts[s];
        for (uint64_t now = life_begin(p, i, mirrored); key[ends[e]] <= now; e++) give_back(&h, held[ends[e]]);
        held[i] = allocate_block(&h, p->size[i], p->align[i]);
        at[i] = h.blocks[held[i]].address;
    }
    status = TN_OK;
out:
    tn_free(h.blocks);
    tn_free(key);
    tn_free(scratch);
    tn_free(starts);
    tn_free(ends);
    tn_free(held);
    return status;
}

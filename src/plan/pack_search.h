/* The state of an exact search, shared by its set-up (pack_exact_setup.c) and the search itself (pack_exact.c). */
#ifndef TN_PLAN_PACK_SEARCH_H
#define TN_PLAN_PACK_SEARCH_H

#include "plan/pack_internal.h"

enum {
    MAX_CONFLICTS = 1 << 23, /* pairs; with more, a search makes no progress */
    ORDERINGS = 5,
    FIRST_RUN = 500, /* search nodes until the first restart */
    NO_ITEM = -1,
};

/* An entry of the undo stack. */
typedef struct change {
    int64_t top, low; /* old values; for a moment: its two earliest ends */
    int32_t what;     /* item, or ~moment */
    int32_t which;    /* for a moment: the item with the earliest end */
} change;

/* An item with one of its addresses. */
typedef struct item_end {
    int64_t end;
    int32_t item;
} item_end;

struct tn__pack_search {
    tn__pack_problem *problem;
    int32_t n, moments;
    uint32_t origin;       /* the problem's moment 0 of the search */
    uint32_t *item;        /* indices in the problem */
    int32_t *first, *last; /* moments, from 0 */
    int64_t *size, *padded;
    int32_t *twin;                        /* an earlier item with equal properties, or NO_ITEM */
    int32_t *conflicts_begin, *conflicts; /* items in conflict with an item, in CSR form */
    int32_t *at_begin, *at_moment;        /* items live at a moment, in CSR form */
    int32_t *wall_begin;                  /* fixed items in conflict with an item, by address */
    int64_t *wall_low, *wall_high;
    int32_t *rank[ORDERINGS]; /* lower is preferred */
    bool complete;            /* no walls, no chunks: an exhausted search is a proof */

    /* State. */
    int64_t height, limit; /* `limit` is for sums of padded sizes */
    int64_t *top;          /* lowest address above all placed items in conflict */
    int64_t *low;          /* proven lower bound; above top: postponed */
    int64_t *at;
    bool *placed;
    int64_t *soonest, *second; /* per moment: earliest and second earliest end of unplaced items */
    int32_t *soonest_item;     /* per moment: the item with the earliest end */
    int32_t *queue;            /* moments to update: a ring */
    bool *queued;
    int32_t queue_head, queue_length;
    int32_t *items; /* postponed items to update: a stack */
    bool *item_queued;
    int32_t n_items;
    int32_t *cause;  /* per queued item: the moment that changed */
    change *changes; /* undo stack */
    size_t n_changes, cap_changes;
    int32_t *done; /* items in the order of their placement */
    int32_t n_done;
    int32_t *lists; /* stack of item lists */
    size_t n_lists, cap_lists;
    int32_t *live;      /* scratch: items of one moment */
    item_end *lows;     /* scratch: the same with their lowest addresses, highest first */
    item_end *endings;  /* scratch: the same by end, latest first */
    int64_t *sums;      /* scratch: sums of their sizes */
    int32_t *rank_late; /* scratch: per item, its index in `endings` */
    const int32_t *preference;
    int64_t *guide;         /* preferred addresses; -1: none for this item */
    bool has_guide, guided; /* in general, and in this run */
    bool no_memory;

    /* Knowledge kept across restarts. */
    uint64_t *weight;       /* per moment: weighted count of failures */
    uint64_t blame;         /* weight of a failure now */
    uint64_t (*refuted)[2]; /* states without a solution, by hash */
    unsigned refuted_bits;
    int64_t refuted_height;
    uint64_t restarts;
    uint64_t nodes, node_limit;
};

#endif

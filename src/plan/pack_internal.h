/* The internal form of the packing problem, and the interfaces of the packing algorithms. */
#ifndef TN_PLAN_PACK_INTERNAL_H
#define TN_PLAN_PACK_INTERNAL_H

#include "tenon/pack.h"

#include "base/checked.h"

#include <string.h>

#define TN__NOWHERE UINT64_MAX /* an offset that is not known yet */

/* Steps, time and cancellation. One step is a few nanoseconds of work. Algorithms count their steps and check
 * tn__pack_stopped() regularly. */
typedef struct tn__pack_clock {
    uint64_t steps, limit; /* used and allowed */
    uint64_t next_poll;
    uint64_t deadline; /* tn_time_ns, 0: none */
    bool (*cancel)(void *user);
    void *user;
    bool cancelled, late;
} tn__pack_clock;

/* True if work must end: cancelled, past the deadline, or out of steps. */
bool tn__pack_stopped(tn__pack_clock *clock);

/* A maximal series of items with overlapping lifetimes. Ranges share no moment, so each is packed separately. */
typedef struct tn__pack_range {
    uint32_t begin, end;  /* items */
    uint32_t first, last; /* moments [first, last) */
    uint64_t lower_bound; /* largest padded sum of live sizes */
    uint64_t best;        /* highest end of its items in the best packing; TN__NOWHERE before there is one */
} tn__pack_range;

/* First by one measure, then by others; largest first, except for TN__BY_START and TN__BY_EARLY_END. Ties are in
 * order of start, or as the caller gave them (…_GIVEN). Spans count moments, lives the caller's time. A crowd is the
 * live sum of an item's most crowded moment, exactly or in sixteenths, so that items live at the peak are placed
 * first and without gaps; it needs tn__pack_find_peaks. Rivals are the items live at some time together with one. */
typedef enum tn__pack_order_by {
    TN__BY_START,
    TN__BY_START_SIZE,
    TN__BY_START_LIFE,
    TN__BY_LATE_START,
    TN__BY_END,
    TN__BY_END_GIVEN,
    TN__BY_EARLY_END,
    TN__BY_SIZE,
    TN__BY_SIZE_GIVEN,
    TN__BY_SIZE_SPAN,
    TN__BY_SIZE_LIFE,
    TN__BY_SIZE_LIFE_GIVEN,
    TN__BY_AREA,
    TN__BY_LIFE_AREA,
    TN__BY_LIFE_AREA_GIVEN,
    TN__BY_SPAN,
    TN__BY_LIFE,
    TN__BY_LIFE_GIVEN,
    TN__BY_LIFE_SIZE,
    TN__BY_LIFE_SIZE_GIVEN,
    TN__BY_CROWD_GIVEN,
    TN__BY_CROWD_SPAN,
    TN__BY_CROWD_LIFE,
    TN__BY_CROWD_LIFE_GIVEN,
    TN__BY_CROWD_AREA,
    TN__BY_CROWD_SIZE,
    TN__BY_CROWD_SIZE_GIVEN,
    TN__BY_ROUGH_CROWD_SPAN,
    TN__BY_RIVALS_GIVEN,
    TN__BY_RIVALS_SIZE,
    TN__PACK_ORDERS
} tn__pack_order_by;
typedef enum tn__gap_rule { TN__GAP_LOWEST, TN__GAP_TIGHTEST, TN__GAP_RULES } tn__gap_rule;
typedef struct tn__pack_attempt {
    tn__pack_order_by by;
    tn__gap_rule rule;
} tn__pack_attempt;

/* An order of the existing chunks on the line of addresses, and how far each may be filled. */
typedef struct tn__pack_layout {
    uint32_t count;     /* bins */
    bool single;        /* all items go into the chunk at position 0; the others stay empty */
    uint32_t *chunk;    /* by position: number of the chunk */
    uint32_t *position; /* by chunk */
    uint64_t *limit;    /* by position: largest size, UINT64_MAX: as for later positions */
    uint64_t *bin;      /* by position: bytes that exist */
    uint64_t total;     /* of all bins */
} tn__pack_layout;

/* Items with a non-empty size and lifetime, sorted by start, then by the caller's order. Times are numbered as
 * moments. A moment is a maximal set of items live together: a new moment begins only where a start follows an end.
 * Two items conflict exactly if their moments [first, last) overlap. */
typedef struct tn__pack_problem {
    const tn_pack_item *items; /* the caller's */
    uint32_t n;
    uint32_t *id;           /* the caller's index */
    uint32_t *first, *last; /* moments */
    uint64_t *size, *align; /* align is a mask: alignment - 1 */
    uint64_t *fixed;        /* address, or TN__NOWHERE */
    uint32_t moments;
    bool any_fixed, any_align;
    bool window;                   /* part of a larger problem that is being repaired */
    bool crowded;                  /* hundreds of conflicts per item; known once there is a tn__pack_greedy */
    uint64_t chunk, stride;        /* position c covers addresses [c*stride, c*stride + chunk); 0: no limit */
    const tn__pack_layout *layout; /* of bins, or NULL: position c is chunk c */
    uint64_t granule;              /* every possible address is a multiple of this */
    uint64_t pad_mask;             /* every item starts at a multiple of pad_mask + 1 */
    uint64_t max_pad;              /* largest padding that rounding a size up by pad_mask adds */
    uint64_t live_peak;
    uint64_t lower_bound; /* over all ranges; proven by live sums, alignment and search */
    tn__pack_range *ranges;
    uint32_t n_ranges;
    uint64_t *best;   /* address of every item in the best packing so far */
    uint64_t *peak;   /* per item: largest sum of live sizes while it lives; NULL before tn__pack_find_peaks */
    uint32_t *rivals; /* per item: items that are live at some time together with it, with itself; likewise */
    uint64_t reached[TN__PACK_ORDERS]
                    [TN__GAP_RULES]; /* height of a greedy packing; TN__NOWHERE: not tried, one less: given up */
    tn__pack_clock clock;
} tn__pack_problem;

static inline uint64_t tn__pack_padded(const tn__pack_problem *p, uint64_t size) {
    return (size + p->pad_mask) & ~p->pad_mask;
}
static inline uint64_t tn__pack_limit(const tn__pack_problem *p, uint64_t position) {
    return p->layout && position < p->layout->count ? TN__MIN(p->layout->limit[position], p->chunk) : p->chunk;
}
/* The lowest address at or above `at` where item i may start: aligned, and not across the end of a chunk. */
static inline uint64_t tn__pack_settle(const tn__pack_problem *p, uint32_t i, uint64_t at) {
    at = (at + p->align[i]) & ~p->align[i];
    if (!p->chunk) return at;
    uint64_t c = at / p->stride, offset = at % p->stride;
    for (; offset + p->size[i] > tn__pack_limit(p, c); c++) offset = 0;
    return c * p->stride + offset;
}
/* The position and offset of an address. */
static inline uint64_t tn__pack_position(const tn__pack_problem *p, uint64_t at) {
    return p->chunk ? at / p->stride : 0;
}
static inline uint64_t tn__pack_offset(const tn__pack_problem *p, uint64_t at) {
    return p->chunk ? at % p->stride : at;
}
/* The number of the chunk at a position. */
static inline uint32_t tn__pack_chunk(const tn__pack_problem *p, uint64_t position) {
    return p->layout && position < p->layout->count ? p->layout->chunk[position] : (uint32_t)position;
}

/* ---- pack_problem.c: from the caller's items to the problem, with lower bounds ---- */
/* `layout` (may be NULL) must outlive the problem. */
tn_status tn__pack_problem_make(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                                const tn__pack_layout *layout, tn__pack_problem *problem);
void tn__pack_problem_free(tn__pack_problem *problem);
tn_status tn__pack_find_peaks(tn__pack_problem *problem);
/* Stable sort of `order` (a permutation of some items) by ascending key. `scratch` has room for 4*count words. */
void tn__pack_sort(uint32_t *order, uint32_t count, const uint64_t *key, uint64_t *scratch);
/* Adopts the ranges in which a packing is better than the best so far. Ignores ranges with items without an address.
 */
void tn__pack_keep(tn__pack_problem *problem, const uint64_t *at);
/* Highest end over all ranges of the best packing; TN__NOWHERE before there is one. */
uint64_t tn__pack_height(const tn__pack_problem *problem);

/* ---- pack_online.c: best fit in order of start, like an allocator at run time ---- */
typedef enum tn__pack_ties { TN__TIES_AS_GIVEN, TN__TIES_LARGEST, TN__TIES_LONGEST } tn__pack_ties;
/* Writes an address for each of the given items (ascending numbers), ignoring all others. Only for problems without
 * fixed items and chunks. `mirrored` runs time backwards; `ties` orders items that start together. */
tn_status tn__pack_online(const tn__pack_problem *problem, const uint32_t *items, uint32_t count, bool mirrored,
                          tn__pack_ties ties, uint64_t *at);

/* ---- pack_occupied.c: occupied addresses by time ---- */
typedef struct tn__pack_span {
    uint64_t low, high;
} tn__pack_span;
typedef struct tn__pack_occupied tn__pack_occupied;
tn_status tn__pack_occupied_new(uint32_t moments, tn__pack_occupied **occupied);
void tn__pack_occupied_free(tn__pack_occupied *occupied);
void tn__pack_occupied_clear(tn__pack_occupied *occupied);
/* Marks a span as occupied during moments [first, last). Returns the steps. */
uint64_t tn__pack_occupied_add(tn__pack_occupied *occupied, uint32_t first, uint32_t last, tn__pack_span span);
/* Spans whose union is occupied: a few in no order, and many sorted ones that do not touch, which stay where they
 * are. */
typedef struct tn__pack_spans {
    tn__pack_span *few;
    const tn__pack_span *many;
    uint32_t n_few, n_many;
} tn__pack_spans;
/* Finds what is occupied at some of the moments [first, last), except what ends at or below `above`. False, without a
 * result, if `few` would be more than `capacity` or if memory was short before. */
bool tn__pack_occupied_collect(const tn__pack_occupied *occupied, uint32_t first, uint32_t last, uint64_t above,
                               uint32_t capacity, tn__pack_spans *spans, uint64_t *steps);

/* ---- pack_greedy.c: items one after another, each into a gap between those placed before ---- */
typedef struct tn__pack_greedy tn__pack_greedy;
tn_status tn__pack_greedy_new(tn__pack_problem *problem, tn__pack_greedy **greedy);
void tn__pack_greedy_free(tn__pack_greedy *greedy);
/* How high a range may become before its packing is given up: to any height, below the best so far, or close above
 * it, so that a repair may make it better. */
typedef enum tn__pack_ceiling { TN__ANY_HEIGHT, TN__BELOW_BEST, TN__NEAR_BEST } tn__pack_ceiling;
/* Assigns addresses to the given items in the given order; fixed items of all ranges are obstacles. Items from `core`
 * on are small: gaps far below the top are tried only if they would raise it. The run ends when the clock stops it.
 * Items that are not listed, not reached, or in a range that was given up hold TN__NOWHERE; false if the clock or the
 * ceiling led to such items. */
bool tn__pack_greedy_run(tn__pack_greedy *greedy, const uint32_t *order, uint32_t core, uint32_t count,
                         tn__gap_rule rule, tn__pack_ceiling ceiling, uint64_t *at);
/* Assigns addresses to all long-lived items in advance; later runs put the others only above them, which takes n log
 * n however many long-lived items there are. *of_use is false, and nothing changes, if that wastes too much to come
 * close to the goal. */
tn_status tn__pack_greedy_set_base(tn__pack_greedy *greedy, uint64_t goal, bool *of_use);
void tn__pack_greedy_clear_base(tn__pack_greedy *greedy); /* ends this mode */

/* ---- pack_improve.c: orders, and local improvement ---- */
/* Sorts items, given in ascending order, largest first by the chosen measure. `key` has room for all of the problem's
 * items, `scratch` for 4*count words. */
void tn__pack_order(const tn__pack_problem *problem, tn__pack_order_by by, uint32_t *order, uint32_t count,
                    uint64_t *key, uint64_t *scratch);
/* The items, except fixed ones, of ranges higher than the goal. Returns their number. */
uint32_t tn__pack_open_items(const tn__pack_problem *problem, uint64_t goal, uint32_t *items);
/* Divides items into those that matter, at the front, and small ones; returns the number of the former. */
uint32_t tn__pack_core(const tn__pack_problem *problem, uint32_t *items, uint32_t count, uint64_t *key,
                       uint64_t *scratch);
/* Tries to lower every range to the goal within a number of steps; better packings are stored in the problem. */
tn_status tn__pack_improve(tn__pack_problem *problem, tn__pack_greedy *greedy, uint64_t goal, uint64_t steps);

/* Lowers the ranges that are completely packed to the goal, or as far as it goes within a number of steps: where an
 * item ends too high, the items of a window of time around it are packed again between all others. `patience` 0 or 1:
 * few or many steps for each window. Only for problems without chunks. */
tn_status tn__pack_repair(tn__pack_problem *problem, uint64_t goal, uint64_t steps, unsigned patience, uint64_t *at);

/* ---- pack.c ---- */
/* Runs the algorithms of an effort; the packing is problem->best. TN_E_INFEASIBLE or TN_E_UNDECIDED if there is a
 * capacity, and the packing exceeds it. */
tn_status tn__pack_solve(tn__pack_problem *problem, const tn_pack_params *params);

/* ---- pack_exact.c: branch and bound over one range ---- */
enum { TN__PACK_MAX_SEARCHED = 4096 }; /* items; with more, a search makes no progress */
typedef struct tn__pack_search tn__pack_search;
typedef enum tn__search_answer { TN__SEARCH_FOUND, TN__SEARCH_NONE, TN__SEARCH_UNDECIDED } tn__search_answer;
/* `items` lists the items of the search, ascending: all of one range, or fewer to find a small conflict. Sets *search
 * to NULL and returns TN_OK if there are too many for a search. */
tn_status tn__pack_search_new(tn__pack_problem *problem, const uint32_t *items, uint32_t count,
                              tn__pack_search **search);
void tn__pack_search_free(tn__pack_search *search);
/* Searches for a packing of all items that ends at or below `height`, within a number of steps. Writes the addresses
 * to `at` (indexed by the problem's items). Keeps failure counts and refuted states for the next call. With fixed
 * items or chunks the search is not exhaustive and never returns TN__SEARCH_NONE. */
tn__search_answer tn__pack_search_run(tn__pack_search *search, uint64_t height, uint64_t steps, uint64_t *at);

/* Addresses of an earlier packing of some of the items (TN__NOWHERE: the others); every second run prefers them, the
 * first one with order of preference number `order`. NULL ends this. */
void tn__pack_search_guide(tn__pack_search *search, const uint64_t *guide, unsigned order);
/* The moments [from, to) between which four fifths of the failures so far are. */
void tn__pack_search_failures(const tn__pack_search *search, uint32_t *from, uint32_t *to);

/* ---- pack_windows.c: search through windows of time ---- */
typedef struct tn__pack_windows tn__pack_windows;
/* `search` is that of all items of the range, and was undecided so far. */
tn_status tn__pack_windows_new(tn__pack_problem *problem, const tn__pack_range *range, tn__pack_search *search,
                               tn__pack_windows **windows);
void tn__pack_windows_free(tn__pack_windows *windows);
/* Searches like tn__pack_search_run. Keeps its window and the packing of it for the next call. */
tn_status tn__pack_windows_run(tn__pack_windows *windows, uint64_t height, uint64_t steps, uint64_t *at,
                               tn__search_answer *answer);

/* ---- pack_heights.c: heights for the exact search ---- */

/* Searches for packings at or below `goal`, or otherwise as low as possible, within `steps`. Raises the problem's
 * lower bound where it proves one. */
tn_status tn__pack_lower(tn__pack_problem *problem, uint64_t goal, bool only_goal, uint64_t steps);
/* A small set of items (the caller's indices) that cannot be packed below `height`, for a problem proven infeasible
 * there. */
tn_status tn__pack_conflict(tn__pack_problem *problem, uint64_t height, size_t **items, size_t *count);

/* ---- pack.c, pack_bins.c ---- */
/* One packing with all algorithms of the effort. With a layout the total includes the bins. `begun` is the time from
 * which the time limit counts. */
tn_status tn__pack_run(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                       const tn__pack_layout *layout, uint64_t begun, tn_pack_result *result);
/* The best of several packings into the bins of `params`. */
tn_status tn__pack_into_bins(const tn_pack_item *items, size_t count, const tn_pack_params *params, uint64_t begun,
                             tn_pack_result *result);

/* ---- pack_verify.c ---- */
/* TN_E_INVALID if two fixed items are live together and overlap. */
tn_status tn__pack_check_fixed(const tn_pack_item *items, size_t count);

#endif

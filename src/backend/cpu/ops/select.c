/* Selecting positions for sparse attention: scores of the visible cells, then the entries with the highest.
 *
 * Few tokens, as in decoding, are computed in two phases: all threads share the cells, then every list is selected by
 * one thread. With many tokens a thread computes one token at a time. */
#include "backend/cpu/ops/ops.h"

#include "tenon/tensor.h"

#include <string.h>

enum {
    SELECT_FEW = 8,     /* tokens whose cells are shared by threads */
    SELECT_PIECE = 256, /* visible cells of a unit of work */
    SELECT_STEP = 64,   /* cells of a call of the kernel */
    SELECT_DIGIT = 11   /* bits that a pass over candidates distinguishes */
};

/* An entry and a number that orders scores. */
typedef struct select_candidate {
    int32_t entry;
    uint32_t rank;
} select_candidate;

typedef struct select_view {
    const tn_tensor *node, *q, *keys, *weights;
    const tn_page_run *pages;
    const int32_t *q_pos;
    tn_select_params p;
    int64_t block, tokens, lists, runs, sequences;
    int64_t capacity; /* cells that a sequence names, at most */
} select_view;

static select_view select_view_of(const tn_tensor *node) {
    const tn_tensor *pages = node->src[TN_SELECT_PAGES];
    select_view v = {.node = node,
                     .q = node->src[TN_SELECT_Q],
                     .keys = node->src[TN_SELECT_KEYS],
                     .weights = node->src[TN_SELECT_WEIGHTS],
                     .pages = pages->data,
                     .q_pos = node->src[TN_SELECT_Q_POS]->data,
                     .p = node->params.select,
                     .runs = pages->ne[1] - 1,
                     .sequences = pages->ne[2]};
    v.block = TN__MAX(v.p.block, 1);
    v.tokens = v.q->ne[2];
    v.lists = node->ne[2];
    v.capacity = v.runs * TN__MIN((int64_t)v.p.page, v.keys->ne[1]);
    return v;
}
static int64_t select_pieces(const select_view *v) { return (v->capacity + SELECT_PIECE - 1) / SELECT_PIECE; }

/* ---- Scratch: for every thread a list to sort and scores of a step, then lists of candidates ---- */

static size_t thread_bytes(const select_view *v) {
    return tn__scratch_size((size_t)v->capacity * sizeof(select_candidate)) +
           tn__scratch_size((size_t)(SELECT_STEP * v->lists) * sizeof(float));
}
static size_t list_bytes(const select_view *v) {
    return tn__scratch_size((size_t)v->capacity * sizeof(select_candidate));
}
size_t tn__scratch_select_positions(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    (void)kernels;
    const select_view v = select_view_of(node);
    const size_t few = (size_t)TN__MIN(v.tokens, (int64_t)SELECT_FEW), slots = TN__MAX(few, (size_t)n_threads);
    return (size_t)n_threads * thread_bytes(&v) + slots * (size_t)v.lists * list_bytes(&v);
}
static select_candidate *candidates_of(const tn__task *task, const select_view *v, int64_t slot, int64_t list) {
    return (select_candidate *)(void *)(task->scratch + (size_t)task->nth * thread_bytes(v) +
                                        (size_t)(slot * v->lists + list) * list_bytes(v));
}

int tn__phases_select_positions(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    (void)kernels, (void)n_threads;
    return node->src[TN_SELECT_Q]->ne[2] <= SELECT_FEW ? 2 : 1;
}
int64_t tn__units_select_positions(const tn_tensor *node) {
    const select_view v = select_view_of(node);
    return v.tokens <= SELECT_FEW ? v.tokens * TN__MAX(select_pieces(&v), v.lists) : v.tokens;
}
double tn__cost_select_positions(const tn_tensor *node) {
    const select_view v = select_view_of(node);
    const double cells = (double)TN__MIN(v.capacity, v.keys->ne[1]), each = (double)(v.q->ne[0] * v.q->ne[1]);
    return (double)v.tokens * cells * (0.05 * each + 4);
}

/* ---- Visible cells ---- */

typedef struct select_query {
    const tn_page_run *runs;
    int64_t n_runs;
    int64_t position, low, high; /* the visible positions */
    const float *q, *weights;
} select_query;

static select_query select_query_of(const select_view *v, int64_t token) {
    const int64_t position = v->q_pos[2 * token], sequence = v->q_pos[2 * token + 1];
    select_query s = {.position = position,
                      .high = v->p.causal ? position : INT32_MAX,
                      .q = (const float *)(const void *)tn__at(v->q, 0, token, 0)};
    if (v->weights) s.weights = (const float *)(const void *)tn__at(v->weights, token, 0, 0);
    if (v->p.window > 0) s.low = TN__MAX(position - v->p.window + 1, 0);
    if (sequence < 0 || sequence >= v->sequences) return s;
    const tn_page_run *row = v->pages + sequence * (1 + v->runs);
    s.runs = row + 1;
    s.n_runs = TN__MIN((int64_t)row->cell, v->runs);
    return s;
}
/* The visible part of a run: cells from `cell` on, the first of which is number `first` before division. */
typedef struct select_part {
    int64_t cell, count, first, divisor;
} select_part;
static select_part visible_part(const select_view *v, const select_query *s, const tn_page_run *r) {
    const int64_t divisor = TN__MAX(r->divisor, 1);
    const bool valid = r->count >= 1 && r->count <= v->p.page && r->cell >= 0 &&
                       r->cell <= v->keys->ne[1] - r->count && r->first >= 0 &&
                       (int64_t)r->first + r->count - 1 <= INT32_MAX;
    if (!valid) return (select_part){0, 0, 0, 1};
    const int64_t from = TN__MAX(s->low * divisor - r->first, 0),
                  to = TN__MIN((s->high + 1) * divisor - r->first, (int64_t)r->count);
    return (select_part){r->cell + from, TN__MAX(to - from, 0), r->first + from, divisor};
}
static int64_t visible_count(const select_view *v, const select_query *s) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_runs; i++) n += visible_part(v, s, &s->runs[i]).count;
    return n;
}

/* ---- Scores ---- */

/* NaN is the lowest, and -0 equals 0. Below UINT32_MAX, which is for entries that are always selected. */
static uint32_t rank_of_score(float score) {
    uint32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return score != score ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Cells of a part with their candidates, number `at` and following of every list. */
static void score_cells(const tn__task *task, const select_view *v, const select_query *s, select_part part,
                        int64_t slot, int64_t at) {
    float *scores = (float *)(void *)(task->scratch + (size_t)task->ith * thread_bytes(v) + list_bytes(v));
    const int64_t own = s->position / v->block;
    for (int64_t done = 0; done < part.count; done += SELECT_STEP) {
        const int64_t n = TN__MIN(part.count - done, (int64_t)SELECT_STEP);
        task->kernels->index_scores(&(tn__index_job){.size = v->q->ne[0],
                                                     .heads = v->q->ne[1],
                                                     .q = s->q,
                                                     .q_head = v->q->nb[1],
                                                     .weights = s->weights,
                                                     .keys = tn__at(v->keys, part.cell + done, 0, 0),
                                                     .key_cell = v->keys->nb[1],
                                                     .n = n,
                                                     .out = scores,
                                                     .out_list = SELECT_STEP});
        for (int64_t list = 0; list < v->lists; list++) {
            select_candidate *to = candidates_of(task, v, slot, list) + at + done;
            for (int64_t i = 0; i < n; i++) {
                const int64_t entry = (part.first + done + i) / part.divisor / v->block;
                const bool local = entry <= own && entry > own - v->p.local;
                to[i] = (select_candidate){(int32_t)entry,
                                           local ? UINT32_MAX : rank_of_score(scores[list * SELECT_STEP + i])};
            }
        }
    }
}
/* The visible cells number begin … end-1 of a query. */
static void score_query(const tn__task *task, const select_view *v, const select_query *s, int64_t slot,
                        int64_t begin, int64_t end) {
    int64_t at = 0;
    for (int64_t i = 0; i < s->n_runs && at < end; i++) {
        select_part part = visible_part(v, s, &s->runs[i]);
        const int64_t skip = TN__MAX(begin - at, 0), next = at + part.count;
        if (skip < part.count) {
            part.cell += skip;
            part.first += skip;
            part.count = TN__MIN(part.count - skip, end - at - skip);
            score_cells(task, v, s, part, slot, at + skip);
        }
        at = next;
    }
}

/* ---- Selecting ---- */

/* One pass of a radix sort by entry. */
static void sort_candidates(const select_candidate *from, select_candidate *to, int64_t n, int shift) {
    int64_t begin[1 << SELECT_DIGIT] = {0}, at = 0;
    for (int64_t i = 0; i < n; i++) begin[((uint32_t)from[i].entry >> shift) & ((1 << SELECT_DIGIT) - 1)]++;
    for (int i = 0; i < 1 << SELECT_DIGIT; i++) {
        const int64_t count = begin[i];
        begin[i] = at;
        at += count;
    }
    for (int64_t i = 0; i < n; i++)
        to[begin[((uint32_t)from[i].entry >> shift) & ((1 << SELECT_DIGIT) - 1)]++] = from[i];
}
/* Sorts candidates by entry and leaves one for each, with its highest rank. Returns their number; the result is in
 * *list, one of the two arrays. Runs are nearly always in order. */
static int64_t merge_candidates(select_candidate **list, select_candidate *other, int64_t n) {
    select_candidate *from = *list;
    bool is_sorted = true;
    int64_t kept = 0;
    for (int64_t i = 1; i < n; i++) is_sorted = is_sorted && from[i].entry >= from[i - 1].entry;
    for (int shift = 0; !is_sorted && shift < 31; shift += SELECT_DIGIT) {
        sort_candidates(from, other, n, shift);
        select_candidate *swap = from;
        from = other;
        other = swap;
    }
    for (int64_t i = 0; i < n; i++) {
        if (kept > 0 && from[kept - 1].entry == from[i].entry)
            from[kept - 1].rank = TN__MAX(from[kept - 1].rank, from[i].rank);
        else
            from[kept++] = from[i];
    }
    *list = from;
    return kept;
}
/* The rank of the candidate with the k-th highest, k < n; *equal: how many with just this rank belong to the k. */
static uint32_t rank_limit(const select_candidate *list, int64_t n, int64_t k, int64_t *equal) {
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t counts[256] = {0};
        int digit = 255;
        for (int64_t i = 0; i < n; i++)
            if ((list[i].rank & mask) == prefix) counts[(list[i].rank >> shift) & 255]++;
        for (; counts[digit] < k; digit--) k -= counts[digit];
        prefix |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    *equal = k;
    return prefix;
}
static void select_entries(const tn__task *task, const select_view *v, int64_t token, int64_t list, int64_t slot,
                           int64_t n) {
    int32_t *out = (int32_t *)(void *)tn__at(v->node, token, list, 0);
    select_candidate *from = candidates_of(task, v, slot, list),
                     *other = (select_candidate *)(void *)(task->scratch + (size_t)task->ith * thread_bytes(v));
    int64_t selected = 0, equal = 0;
    uint32_t limit = 0;
    n = merge_candidates(&from, other, n);
    const bool all = n <= v->p.k;
    if (!all) limit = rank_limit(from, n, v->p.k, &equal);
    for (int64_t i = 0; i < n; i++) {
        const bool is_equal = !all && from[i].rank == limit;
        if (!all && (is_equal ? equal == 0 : from[i].rank < limit)) continue;
        equal -= is_equal;
        out[selected++] = from[i].entry;
    }
    while (selected < v->p.k) out[selected++] = -1;
}

static void run_few(const tn__task *task, const select_view *v) {
    const int64_t pieces = select_pieces(v), units = v->tokens * (task->phase == 0 ? pieces : v->lists);
    for (int64_t unit; (unit = tn__take(task)) < units;) {
        if (task->phase == 0) {
            const int64_t token = unit / pieces, begin = unit % pieces * SELECT_PIECE;
            const select_query s = select_query_of(v, token);
            score_query(task, v, &s, token, begin, begin + SELECT_PIECE);
        } else {
            const int64_t token = unit / v->lists;
            const select_query s = select_query_of(v, token);
            select_entries(task, v, token, unit % v->lists, token, visible_count(v, &s));
        }
    }
}
void tn__run_select_positions(const tn__task *task) {
    const select_view v = select_view_of(task->node);
    if (v.tokens <= SELECT_FEW) {
        run_few(task, &v);
        return;
    }
    for (int64_t token; (token = tn__take(task)) < v.tokens;) {
        const select_query s = select_query_of(&v, token);
        const int64_t n = visible_count(&v, &s);
        score_query(task, &v, &s, task->ith, 0, n);
        for (int64_t list = 0; list < v.lists; list++) select_entries(task, &v, token, list, task->ith, n);
    }
}

/* Positions with equal scores: of these an indexer selects the lowest, the references whichever their sort leaves in
 * front. Scores of zero are frequent, because an indexer's heads end in a ReLU.
 *
 *   heap   the peer keeps the k best in a binary heap; a better score replaces the one on top
 *   quick  transformers partitions the scores of all columns, the masked ones too, around the k-th: its choice
 * depends on the number of tokens after the query
 *
 * Both orders are repeated here, so that everything else about a model can be compared with them. Only the choice
 * among equal scores is the reference's: the scores that it selects must be those that the library has selected. */
#include "ties.h"

#include "tenon/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SELECTED = 512 };

typedef struct scored {
    float score;
    int32_t position;
} scored;

static bool before(scored a, scored b) { return a.score > b.score; }
static void swap(scored *a, scored *b) {
    const scored c = *a;
    *a = *b;
    *b = c;
}

/* ---- Heap: the lowest of the first k on top ---- */

static void sift_up(scored *heap, int32_t hole, int32_t top, scored value) {
    for (int32_t parent = (hole - 1) / 2; hole > top && before(heap[parent], value); parent = (hole - 1) / 2) {
        heap[hole] = heap[parent];
        hole = parent;
    }
    heap[hole] = value;
}
/* The hole moves down to a leaf, then the value up from there. */
static void place_in_heap(scored *heap, int32_t n, int32_t hole, scored value) {
    const int32_t top = hole;
    int32_t child = 2 * hole + 2;
    for (; child < n; child = 2 * hole + 2) {
        if (before(heap[child], heap[child - 1])) child--;
        heap[hole] = heap[child];
        hole = child;
    }
    if (child == n) {
        heap[hole] = heap[child - 1];
        hole = child - 1;
    }
    sift_up(heap, hole, top, value);
}
static void select_by_heap(scored *all, int32_t n, int32_t k) {
    for (int32_t i = k / 2 - 1; i >= 0; i--) place_in_heap(all, k, i, all[i]);
    for (int32_t i = k; i < n; i++) {
        if (!before(all[i], all[0])) continue;
        const scored value = all[i];
        all[i] = all[0];
        place_in_heap(all, k, 0, value);
    }
}

/* ---- Quick: partitions around the median of three until the k-th is in place ---- */

static void move_median(scored *to, scored *a, scored *b, scored *c) {
    if (before(*a, *b))
        swap(to, before(*b, *c) ? b : before(*a, *c) ? c : a);
    else
        swap(to, before(*a, *c) ? a : before(*b, *c) ? c : b);
}
static scored *partition(scored *first, scored *last) {
    move_median(first, first + 1, first + (last - first) / 2, last - 1);
    const scored pivot = *first;
    for (first++;; first++) {
        while (before(*first, pivot)) first++;
        last--;
        while (before(pivot, *last)) last--;
        if (first >= last) return first;
        swap(first, last);
    }
}
static void select_by_quick(scored *all, int32_t n, int32_t k) {
    scored *first = all, *last = all + n, *nth = all + k - 1;
    while (last - first > 3) {
        scored *cut = partition(first, last);
        if (cut <= nth)
            first = cut;
        else
            last = cut;
    }
    for (scored *i = first + 1; i < last; i++)
        for (scored *j = i; j > first && before(*j, j[-1]); j--) swap(j, j - 1);
}

/* ---- Selections ---- */

static int by_position(const void *a, const void *b) {
    const scored *x = a, *y = b;
    return (x->position > y->position) - (x->position < y->position);
}
static void *data_of(const tn_tensor *t) {
    void *data = malloc(tn_nbytes(t) + 1);
    if (data && tn_tensor_get(t, data) != TN_OK) {
        free(data);
        data = NULL;
    }
    return data;
}

static int by_score(const void *a, const void *b) {
    const scored *x = a, *y = b;
    return (x->score < y->score) - (x->score > y->score);
}
/* The scores of n different positions in falling order. */
static bool scores_at(const scored *all, int32_t count, const int32_t *positions, int32_t n, scored *out) {
    for (int32_t i = 0; i < n; i++) {
        int32_t at = 0;
        while (at < count && all[at].position != positions[i]) at++;
        for (int32_t j = 0; j < i; j++)
            if (positions[j] == positions[i]) return false;
        if (at == count) return false;
        out[i] = all[at];
    }
    qsort(out, (size_t)n, sizeof *out, by_score);
    return true;
}
/* Whether two selections of n positions differ in nothing but the choice among equal scores. The library adds in
 * another order, so that scores count as equal that differ by rounding. */
static bool same_scores(const scored *all, int32_t count, const int32_t *a, const int32_t *b, int32_t n) {
    scored of_a[MOST_SELECTED], of_b[MOST_SELECTED];
    float largest = 0, worst = 0;
    if (!scores_at(all, count, a, n, of_a) || !scores_at(all, count, b, n, of_b)) return false;
    for (int32_t i = 0; i < n; i++) {
        largest = fmaxf(largest, fabsf(of_a[i].score));
        worst = fmaxf(worst, fabsf(of_a[i].score - of_b[i].score));
    }
    return worst <= 1e-5F * largest;
}

typedef struct sources {
    float *q, *keys, *weights;
    int32_t *q_pos, *pages;
} sources;

static float score_of(const tn_tensor *node, const sources *s, int64_t token, int64_t cell) {
    const int64_t size = node->src[TN_SELECT_Q]->ne[0], heads = node->src[TN_SELECT_Q]->ne[1];
    float sum = 0;
    for (int64_t h = 0; h < heads; h++) {
        double dot = 0;
        for (int64_t i = 0; i < size; i++)
            dot += (double)s->q[(token * heads + h) * size + i] * s->keys[cell * size + i];
        sum += s->weights[token * heads + h] * (dot > 0 ? (float)dot : 0);
    }
    return sum;
}
/* `out` holds the library's selection, and then the reference's. */
static bool select_for(const tn_tensor *node, const sources *s, const zoo_ties *ties, int64_t token, scored *all,
                       int32_t *out) {
    const tn_tensor *pages = node->src[TN_SELECT_PAGES];
    const int32_t sequence = s->q_pos[2 * token + 1];
    const int32_t *row = s->pages + 4 * (int64_t)(sequence < 0 ? 0 : sequence) * pages->ne[1];
    int32_t own[MOST_SELECTED], n = 0, k = node->params.select.k, kept = 0, had = 0;
    if (k > MOST_SELECTED) return false;
    for (; had < k && out[had] >= 0; had++) own[had] = out[had];
    for (int32_t i = 0; sequence >= 0 && i < row[0]; i++)
        for (int32_t o = 0; o < row[4 + 4 * i + 1]; o++) {
            const int32_t position = row[4 + 4 * i + 2] + o;
            if (position <= s->q_pos[2 * token])
                all[n++] = (scored){score_of(node, s, token, row[4 + 4 * i] + o), position};
        }
    qsort(all, (size_t)n, sizeof *all, by_position);
    for (; ties->order == TIES_QUICK && n < ties->columns; n++) all[n] = (scored){-INFINITY, INT32_MAX};
    if (k > n) k = n;
    if (ties->order == TIES_HEAP)
        select_by_heap(all, n, k);
    else
        select_by_quick(all, n, k);
    for (int32_t i = 0; i < k; i++)
        if (all[i].position < INT32_MAX) out[kept++] = all[i].position;
    for (int32_t i = kept; i < node->params.select.k; i++) out[i] = -1;
    const bool same = kept == had && same_scores(all, n, own, out, kept);
    if (!same) fprintf(stderr, "the library does not select the highest scores\n");
    return same;
}

bool zoo_replace_ties(void *user, tn_tensor *node, bool ask) {
    const zoo_ties *ties = user;
    if (node->op != TN_OP_SELECT_POSITIONS || !node->src[TN_SELECT_WEIGHTS] || node->params.select.block > 1)
        return !ask;
    if (ask) return true;
    const int64_t cells = node->src[TN_SELECT_KEYS]->ne[1];
    sources s = {.q = data_of(node->src[TN_SELECT_Q]),
                 .keys = data_of(node->src[TN_SELECT_KEYS]),
                 .weights = data_of(node->src[TN_SELECT_WEIGHTS]),
                 .q_pos = data_of(node->src[TN_SELECT_Q_POS]),
                 .pages = data_of(node->src[TN_SELECT_PAGES])};
    scored *all = malloc(((size_t)cells + (size_t)ties->columns + 1) * sizeof *all);
    int32_t *out = data_of(node);
    bool done = s.q && s.keys && s.weights && s.q_pos && s.pages && all && out;
    for (int64_t token = 0; token < node->ne[1] && done; token++)
        done = select_for(node, &s, ties, token, all, out + token * node->ne[0]);
    done = done && tn_tensor_set(node, out) == TN_OK;
    free(s.q), free(s.keys), free(s.weights), free(s.q_pos), free(s.pages), free(all), free(out);
    return done;
}

zoo_ties zoo_ties_of(const char *text, int32_t columns) {
    zoo_ties ties = {.order = TIES_OWN, .columns = columns};
    if (text && strcmp(text, "heap") == 0) ties.order = TIES_HEAP;
    if (text && strcmp(text, "quick") == 0) ties.order = TIES_QUICK;
    return ties;
}

/* Selecting positions: random cases, and a reference that sorts all entries of a query. */
#include "random_tensor.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>

/* ---- Cases ---- */

static tn_tensor *whole_numbers(tn_arena *a, const int64_t ne[4], int most, rng *r) {
    tn_tensor *t = dense_tensor(a, TN_F32, ne, 1, r);
    for (int64_t i = 0; i < tn_nelements(t); i++) ((float *)t->data)[i] = (float)pick_int(r, -most, most);
    return t;
}

tn_tensor *select_case(tn_arena *a, rng *r) {
    static const int64_t sizes[] = {64, 128, 1, 7, 24, 33, 100};
    const int64_t size = sizes[rng_below(r, 7)], heads = chance(r, 70) ? pick_int(r, 1, 5) : pick_int(r, 6, 70);
    int64_t tokens = chance(r, 40) ? 1 : pick_int(r, 1, 40);
    const int64_t cells = chance(r, 20) ? pick_int(r, 300, 1500) : pick_int(r, 1, 150);
    if (cells > 200 && tokens > 3) tokens = 3;
    const int most = chance(r, 50) ? 1 : 3; /* with 1, nearly all scores have equals */
    tn_attention_sources pages = {0};
    tn_select_params p = {.k = (int32_t)(chance(r, 70) ? pick_int(r, 1, 40) : pick_int(r, 1, cells + 10)),
                          .causal = chance(r, 80)};
    if (chance(r, 40)) p.block = (int32_t)pick_int(r, 0, 20);
    if (chance(r, 40)) p.local = (int32_t)pick_int(r, 0, 3);
    if (chance(r, 25)) p.window = (int32_t)pick_int(r, 1, cells);
    p.page = random_pages(a, &pages, tokens, cells, r);
    tn_tensor *q = whole_numbers(a, (int64_t[]){size, heads, tokens, 1}, most, r),
              *keys = whole_numbers(a, (int64_t[]){size, cells, 1, 1}, most, r), *weights = NULL;
    if (chance(r, 60)) weights = whole_numbers(a, (int64_t[]){heads, tokens, 1, 1}, most, r);
    return tn_select_positions(a, q, keys, pages.q_pos, pages.pages, weights, &p);
}

/* ---- Reference ---- */

typedef struct scored_entry {
    int64_t entry;
    double score;
} scored_entry;

static int higher_first(const void *a, const void *b) {
    const scored_entry *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->entry > y->entry) - (x->entry < y->entry);
}
static int lower_entry_first(const void *a, const void *b) {
    const scored_entry *x = a, *y = b;
    return (x->entry > y->entry) - (x->entry < y->entry);
}

static double dot_of(const tn_tensor *node, int64_t head, int64_t token, int64_t cell) {
    const tn_tensor *q = node->src[TN_SELECT_Q], *keys = node->src[TN_SELECT_KEYS];
    const float *x = (const float *)q->data + (token * q->ne[1] + head) * q->ne[0],
                *y = (const float *)keys->data + cell * keys->ne[0];
    double sum = 0;
    for (int64_t i = 0; i < q->ne[0]; i++) sum += (double)x[i] * y[i];
    return sum;
}
static double score_of(const tn_tensor *node, int64_t list, int64_t token, int64_t cell) {
    const tn_tensor *weights = node->src[TN_SELECT_WEIGHTS];
    double sum = 0;
    if (!weights) return dot_of(node, list, token, cell);
    for (int64_t h = 0; h < weights->ne[0]; h++)
        sum += (double)((const float *)weights->data)[token * weights->ne[0] + h] *
               fmax(0, dot_of(node, h, token, cell));
    return sum;
}
static void raise_entry(scored_entry *all, int64_t *n, int64_t entry, double score) {
    int64_t i = 0;
    while (i < *n && all[i].entry != entry) i++;
    if (i == *n) all[(*n)++] = (scored_entry){entry, score};
    if (score > all[i].score) all[i].score = score;
}

static void select_list(const tn_tensor *node, int64_t list, int64_t token, scored_entry *all, double *out) {
    const tn_tensor *pages = node->src[TN_SELECT_PAGES];
    const tn_select_params *p = &node->params.select;
    const int32_t *query = (const int32_t *)node->src[TN_SELECT_Q_POS]->data + 2 * token;
    const int64_t cells = node->src[TN_SELECT_KEYS]->ne[1], own = query[0], block = p->block > 1 ? p->block : 1;
    int64_t n = 0;
    if (query[1] >= 0 && query[1] < pages->ne[2]) {
        const int32_t *row = (const int32_t *)pages->data + query[1] * pages->ne[1] * 4;
        for (int64_t i = 0; i < row[0] && i + 1 < pages->ne[1]; i++) {
            const int32_t *run = row + 4 + 4 * i;
            const int64_t cell = run[0], count = run[1], first = run[2], divisor = run[3] < 1 ? 1 : run[3];
            if (count < 1 || count > p->page || cell < 0 || cell + count > cells) continue;
            if (first < 0 || first + count - 1 > INT32_MAX) continue;
            for (int64_t o = 0; o < count; o++) {
                const int64_t position = (first + o) / divisor, entry = position / block;
                if (p->causal && position > own) continue;
                if (p->window && own - position >= p->window) continue;
                const bool local = entry <= own / block && entry > own / block - p->local;
                raise_entry(all, &n, entry, local ? INFINITY : score_of(node, list, token, cell + o));
            }
        }
    }
    qsort(all, (size_t)n, sizeof *all, higher_first);
    if (n > p->k) n = p->k;
    qsort(all, (size_t)n, sizeof *all, lower_entry_first);
    for (int64_t i = 0; i < p->k; i++) out[i] = i < n ? (double)all[i].entry : -1;
}

void reference_select(const tn_tensor *node, double *out) {
    const tn_tensor *pages = node->src[TN_SELECT_PAGES];
    const int64_t cells = node->src[TN_SELECT_KEYS]->ne[1], page = node->params.select.page;
    scored_entry *all = malloc(((size_t)((pages->ne[1] - 1) * (page < cells ? page : cells)) + 1) * sizeof *all);
    for (int64_t list = 0; list < node->ne[2]; list++)
        for (int64_t token = 0; token < node->ne[1]; token++)
            select_list(node, list, token, all, out + (list * node->ne[1] + token) * node->ne[0]);
    free(all);
}

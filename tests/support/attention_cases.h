/* Random cases of attention kernels, compared with float64; random rows of every type. */
#ifndef TN_TESTS_ATTENTION_CASES_H
#define TN_TESTS_ATTENTION_CASES_H

#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/shared.h"
#include "base/half.h"
#include "quant/quant.h"

static inline const char *type_name(tn_type type) {
    switch (type) {
#define TN_X(NAME, name, id, block, bytes)                                                                           \
    case TN_##NAME: return #name;
        TN_TYPE_TABLE(TN_X)
#undef TN_X
    default: return "?";
    }
}
static inline size_t row_bytes(tn_type type, int64_t k) {
    return (size_t)(k / tn__block_of(type)) * (size_t)tn__bytes_of(type);
}

/* A row of random weights. Types without a quantizer get random codes and a moderate scale. */
static inline void random_weights(rng *r, tn_type type, int64_t k, unsigned char *row) {
    const tn__cpu_kernels *generic = tn__cpu_kernels_at(TN__CPU_GENERIC);
    if (generic->from_f32[type]) {
        float *x = malloc((size_t)k * sizeof *x);
        for (int64_t i = 0; i < k; i++) x[i] = rng_normal(r) * (i % 97 == 3 ? 4 : 1);
        generic->from_f32[type](x, row, k);
        free(x);
        return;
    }
    size_t bytes = (size_t)tn__bytes_of(type);
    for (size_t i = 0; i < row_bytes(type, k); i++) row[i] = (unsigned char)rng_next(r);
    for (int64_t b = 0; b < k / tn__block_of(type); b++) {
        uint16_t d = tn__f32_to_f16(0.01f + 0.02f * (float)rng_unit(r));
        unsigned char *block = row + (size_t)b * bytes;
        if (type == TN_IQ1_M) {
            for (int i = 0; i < 4; i++) /* nibble i of d is the top nibble of word i */
                block[48 + 2 * i + 1] = (unsigned char)((block[48 + 2 * i + 1] & 15) | (d >> 4 * i & 15) << 4);
        } else {
            memcpy(block, &d, 2);
        }
    }
}

/* For emulated processors: fewer and smaller cases, and no tests of the plain C kernels. */
static inline bool in_short(void) { return getenv("TENON_SHORT") != NULL; }
/* Rounds of a random test. */
static inline int effort(int rounds) {
    return getenv("TENON_LONG") ? 6 * rounds : in_short() ? (rounds + 3) / 4 : rounds;
}

static inline void *aligned(size_t bytes) {
    void *pointer = NULL;
    assert_int_equal(posix_memalign(&pointer, 64, bytes + 64), 0);
    memset(pointer, 0xff, bytes + 64); /* NaN everywhere: shows elements that are not written */
    return pointer;
}

/* Relative to the largest value. Tiles round to bf16, and to 16 bits where scores are large. */
#define ATTENTION_TOLERANCE(table) ((table)->level == TN__CPU_AMX ? 6e-3 : 1e-5)

typedef struct attention_case {
    int head_k, head_v, heads, kv_heads, tokens, cells;
    tn_type k_type, v_type;
    tn_attention_params params;
    float stretch; /* factor of the queries: a large one gives scores of several tens */
    int sequences; /* 0: no page tables */
    int runs;      /* room of a page table */
    bool tidy;     /* whole pages in order of position, of which the last is open */
    bool mask, mask_f16, mask_per_head, sinks;
    bool latent;    /* values are the first part of the keys */
    int n_selected; /* 0: all positions */
    int buckets;    /* 0: no table of biases */
} attention_case;

/* The operands of a case, and its keys and values as floats. */
typedef struct attention_data {
    float *q, *k32, *v32, *mask, *sinks, *biases;
    unsigned char *k, *v;
    int32_t *selected;
    uint16_t *mask16;
    int32_t *q_pos;
    tn_page_run *pages;
    size_t k_row, v_row; /* bytes */
} attention_data;

static bool is_valid_run(const attention_case *c, const tn_page_run *r) {
    return r->count >= 1 && r->count <= c->params.page && r->cell >= 0 && (int64_t)r->cell + r->count <= c->cells &&
           r->first >= 0 && (int64_t)r->first + r->count - 1 <= INT32_MAX;
}
/* The cells of a sequence, visible or not, in the order of its runs; the same one may appear more than once. */
typedef struct listed_cell {
    int cell, position;
} listed_cell;
static int list_cells(const attention_case *c, const attention_data *d, int sequence, listed_cell *list) {
    int n = 0;
    for (; !c->sequences && n < c->cells; n++) list[n] = (listed_cell){n, n};
    if (!c->sequences || sequence < 0 || sequence >= c->sequences) return n;
    const tn_page_run *row = d->pages + (size_t)sequence * (size_t)(1 + c->runs);
    for (int i = 0; i < row->cell && i < c->runs; i++) {
        const tn_page_run *r = &row[1 + i];
        for (int o = 0; is_valid_run(c, r) && o < r->count; o++)
            list[n++] = (listed_cell){r->cell + o, (r->first + o) / (r->divisor < 1 ? 1 : r->divisor)};
    }
    return n;
}
static size_t list_room(const attention_case *c) {
    return (size_t)c->cells + (size_t)c->runs * (size_t)(c->params.page < c->cells ? c->params.page : c->cells) + 1;
}

/* A run anywhere in a page: its positions may be anywhere, divided, and other sequences may have its cells, too. Some
 * runs are not valid. */
static tn_page_run wild_run(rng *r, const attention_case *c) {
    const int page = c->params.page, pages = (c->cells + page - 1) / page,
              from = (int)rng_below(r, (uint32_t)pages) * page;
    const int room = c->cells - from < page ? c->cells - from : page, skip = (int)rng_below(r, (uint32_t)room);
    tn_page_run run = {from + skip, 1 + (int32_t)rng_below(r, (uint32_t)(room - skip)),
                       (int32_t)rng_below(r, (uint32_t)c->cells), (int32_t)rng_below(r, 4)};
    switch (rng_below(r, 40)) {
    case 0: run.cell = c->cells; break;
    case 1: run.cell = -1; break;
    case 2: run.count = rng_below(r, 2) ? 0 : -5; break;
    case 3: run.count = page + 1; break;
    case 4: run.cell = INT32_MAX, run.count = INT32_MAX; break;
    case 5: run.first = INT32_MIN; break;
    case 6: run.first = INT32_MAX, run.count = 2; break;
    case 7: run.divisor = INT32_MIN; break;
    case 8: run.divisor = INT32_MAX; break;
    default: break;
    }
    return run;
}

static void random_pages(rng *r, const attention_case *c, attention_data *d) {
    const int page = c->params.page, pages = (c->cells + page - 1) / page;
    d->q_pos = malloc((size_t)c->tokens * 8);
    d->pages = calloc((size_t)c->sequences * (size_t)(1 + c->runs), sizeof *d->pages);
    for (int t = 0; t < c->tokens; t++) {
        /* One token each of the sequences and padding; an even number of tokens ends with a long group of one
         * sequence. */
        const int last = c->sequences - 1;
        int sequence = t % 7 == 6 ? -1 : t % c->sequences;
        if (t % 11 == 5 || (c->tokens % 5 == 0 && t >= 10)) sequence = c->sequences; /* which has no cells */
        if (c->tokens % 2 == 0 && t >= 10) sequence = t < c->tokens - 2 ? last : -1;
        d->q_pos[2 * t] = c->cells / 2 + t;
        d->q_pos[2 * t + 1] = sequence;
    }
    for (int s = 0; s < c->sequences; s++) {
        tn_page_run *row = d->pages + (size_t)s * (size_t)(1 + c->runs);
        const int shift = (int)rng_below(r, (uint32_t)pages);
        row->cell = c->tidy ? (c->runs < pages ? c->runs : pages) : (int32_t)rng_below(r, (uint32_t)c->runs + 3) - 1;
        if (c->tidy && s > 0) row->cell = (int32_t)rng_below(r, (uint32_t)row->cell + 1) / 2; /* the first is long */
        if (!c->tidy && rng_below(r, 20) == 0) row->cell = rng_below(r, 2) ? INT32_MAX : INT32_MIN;
        for (int i = 0; i < c->runs; i++) {
            const int cell = (i + shift) % pages * page, count = c->cells - cell < page ? c->cells - cell : page;
            row[1 + i] = c->tidy ? (tn_page_run){cell, count, i * page, 1} : wild_run(r, c);
        }
    }
}

static attention_data random_attention_data(rng *r, const attention_case *c) {
    const tn__cpu_kernels *generic = tn__cpu_kernels_at(TN__CPU_GENERIC);
    const size_t nq = (size_t)(c->heads * c->tokens * c->head_k), masks = (size_t)(c->cells * c->tokens * c->heads);
    const size_t rows = (size_t)(c->kv_heads * c->cells);
    attention_data d = {.k_row = row_bytes(c->k_type, c->head_k), .v_row = row_bytes(c->v_type, c->head_v)};
    d.q = malloc(nq * sizeof *d.q);
    d.k = malloc(d.k_row * rows);
    d.v = malloc(d.v_row * rows);
    d.k32 = malloc(rows * (size_t)c->head_k * sizeof *d.k32);
    d.v32 = malloc(rows * (size_t)c->head_v * sizeof *d.v32);
    d.mask = malloc(masks * sizeof *d.mask);
    d.mask16 = malloc(masks * sizeof *d.mask16);
    d.sinks = malloc((size_t)c->heads * sizeof *d.sinks);
    for (size_t i = 0; i < nq; i++) d.q[i] = c->stretch * rng_normal(r);
    for (size_t i = 0; i < rows; i++) {
        random_weights(r, c->k_type, c->head_k, d.k + i * d.k_row);
        random_weights(r, c->v_type, c->head_v, d.v + i * d.v_row);
        if (c->latent) memcpy(d.v + i * d.v_row, d.k + i * d.k_row, d.v_row); /* one kv head */
        generic->to_f32[c->k_type](d.k + i * d.k_row, d.k32 + i * (size_t)c->head_k, c->head_k);
        generic->to_f32[c->v_type](d.v + i * d.v_row, d.v32 + i * (size_t)c->head_v, c->head_v);
    }
    d.selected = malloc((size_t)(c->n_selected * c->tokens) * sizeof *d.selected);
    const int block = c->params.select_block > 1 ? c->params.select_block : 1, entries = c->cells / block + 2;
    for (int i = 0; i < c->n_selected * c->tokens; i++) d.selected[i] = (int)rng_below(r, (uint32_t)entries + 1) - 1;
    if (c->n_selected > 2) d.selected[0] = INT32_MAX, d.selected[1] = INT32_MIN;
    d.biases = malloc((size_t)(c->buckets * c->heads) * sizeof *d.biases);
    for (int i = 0; i < c->buckets * c->heads; i++) d.biases[i] = rng_normal(r);
    for (size_t i = 0; i < masks; i++) {
        d.mask[i] = rng_below(r, 5) == 0 ? -INFINITY : (float)rng_unit(r);
        d.mask16[i] = tn__f32_to_f16(d.mask[i]);
        if (c->mask_f16) d.mask[i] = tn__f16_to_f32(d.mask16[i]);
    }
    for (int h = 0; h < c->heads; h++) d.sinks[h] = rng_normal(r);
    if (c->sequences) random_pages(r, c, &d);
    return d;
}

static void free_attention_data(attention_data *d) {
    free(d->q), free(d->k), free(d->v), free(d->k32), free(d->v32), free(d->mask), free(d->mask16), free(d->sinks);
    free(d->q_pos), free(d->pages), free(d->selected), free(d->biases);
}

static tn__attention_job attention_job(const attention_case *c, const attention_data *d, float *out) {
    tn__attention_job job = {.head_k = c->head_k,
                             .head_v = c->head_v,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .tokens = c->tokens,
                             .cells = c->cells,
                             .k_type = c->k_type,
                             .v_type = c->v_type,
                             .q = d->q,
                             .k = d->k,
                             .v = d->v,
                             .q_head = (size_t)c->head_k * 4,
                             .q_token = (size_t)(c->head_k * c->heads) * 4,
                             .k_head = d->k_row,
                             .k_cell = d->k_row * (size_t)c->kv_heads,
                             .v_head = d->v_row * (size_t)c->cells,
                             .v_cell = d->v_row,
                             .out = out,
                             .out_head = (size_t)c->head_v * 4,
                             .out_token = (size_t)(c->head_v * c->heads) * 4,
                             .params = c->params};
    if (c->sequences) {
        job.paged = true;
        job.q_pos = d->q_pos;
        job.pages = d->pages;
        job.runs = c->runs;
        job.sequences = c->sequences;
    }
    if (c->mask) {
        job.mask = c->mask_f16 ? (const void *)d->mask16 : d->mask;
        job.mask_f16 = c->mask_f16;
        job.mask_token = (size_t)c->cells * (c->mask_f16 ? 2 : 4);
        job.mask_head = c->mask_per_head ? job.mask_token * (size_t)c->tokens : 0;
    }
    if (c->sinks) job.sinks = d->sinks;
    if (c->latent) {
        job.v = d->k;
        job.v_head = job.k_head;
        job.v_cell = job.k_cell;
    }
    if (c->n_selected) {
        job.selects = true;
        job.selected = d->selected;
        job.n_selected = c->n_selected;
    }
    if (c->buckets) {
        tn_tensor table = {.ne = {c->heads, c->buckets, 1, 1}}, node = {.params.attention = c->params};
        node.src[TN_ATTN_BIAS_TABLE] = &table;
        job.biased = true;
        job.biases = d->biases;
        job.buckets = tn__bias_buckets_of(&node);
    }
    return job;
}

/* As in T5. */
static int reference_bucket(const attention_case *c, int distance) {
    const int n = c->params.bias_bidirectional ? c->buckets / 2 : c->buckets, exact = n / 2;
    const int first = c->params.bias_bidirectional && distance > 0 ? n : 0;
    const int away = distance < 0 ? -distance : c->params.bias_bidirectional ? distance : 0;
    if (away < exact) return first + away;
    const double reach = log((double)away / exact) / log((double)c->params.bias_distance / exact);
    const int bucket = exact + (int)(reach * (n - exact) + 1e-9);
    return first + (bucket < n ? bucket : n - 1);
}
/* The score of a listed cell in float64; -infinity if it is not visible. */
static double reference_score(const attention_case *c, const attention_data *d, int t, int h, listed_cell of) {
    const int kv = h / (c->heads / c->kv_heads), i = of.cell, kp = of.position;
    const int position = c->sequences ? d->q_pos[2 * t] : c->cells - c->tokens + t;
    bool sees = true;
    if (c->params.causal) sees = sees && kp <= position;
    if (c->params.window) sees = sees && position - kp < c->params.window;
    if (c->params.window_after) sees = sees && kp - position < c->params.window_after;
    if (c->params.chunk) sees = sees && kp / c->params.chunk == position / c->params.chunk;
    if (c->n_selected) {
        const int64_t block = c->params.select_block > 1 ? c->params.select_block : 1;
        bool found = false;
        for (int e = 0; e < c->n_selected; e++) {
            const int64_t first = d->selected[t * c->n_selected + e] * block;
            found = found || (first >= 0 && kp >= first && kp < first + block);
        }
        sees = sees && found;
    }
    double s = 0;
    const float *kr = d->k32 + (size_t)(i * c->kv_heads + kv) * (size_t)c->head_k;
    for (int e = 0; e < c->head_k; e++) s += (double)d->q[(t * c->heads + h) * c->head_k + e] * kr[e];
    s *= c->params.scale;
    if (c->params.soft_cap > 0) s = c->params.soft_cap * tanh(s / c->params.soft_cap);
    if (c->params.max_bias > 0) {
        int power = 1;
        while (power * 2 <= c->heads) power *= 2;
        double slope = h < power ? exp2(-c->params.max_bias / power * (h + 1))
                                 : exp2(-c->params.max_bias / 2 / power * (2 * (h - power) + 1));
        s -= slope * abs(position - kp);
    }
    if (c->buckets) s += d->biases[reference_bucket(c, kp - position) * c->heads + h];
    if (c->mask) s += d->mask[((c->mask_per_head ? h * c->tokens : 0) + t) * c->cells + i];
    return sees ? s : -INFINITY;
}

static void check_head(const tn__cpu_kernels *table, const attention_case *c, const attention_data *d,
                       const float *results, int t, int h, listed_cell *list, double *p, double *acc) {
    const int kv = h / (c->heads / c->kv_heads), n = list_cells(c, d, c->sequences ? d->q_pos[2 * t + 1] : 0, list);
    double most = -INFINITY, total = 0, vmax = 0;
    for (int i = 0; i < n; i++) {
        p[i] = reference_score(c, d, t, h, list[i]);
        most = fmax(most, p[i]);
    }
    if (c->sinks) most = fmax(most, d->sinks[h]);
    memset(acc, 0, (size_t)c->head_v * sizeof *acc);
    for (int i = 0; i < n; i++) {
        double w = p[i] == -INFINITY ? 0 : exp(p[i] - most);
        const float *vr = d->v32 + (size_t)(kv * c->cells + list[i].cell) * (size_t)c->head_v;
        total += w;
        for (int e = 0; e < c->head_v; e++) {
            acc[e] += w * vr[e];
            vmax = fmax(vmax, fabs(vr[e]));
        }
    }
    bool empty = total == 0;
    if (c->sinks) total += exp(d->sinks[h] - most);
    for (int e = 0; e < c->head_v; e++) {
        double want = empty ? 0 : acc[e] / total, got = results[(t * c->heads + h) * c->head_v + e];
        if (!(fabs(got - want) <= ATTENTION_TOLERANCE(table) * vmax + 1e-6))
            fail_msg("%s attention token %d head %d [%d]: %g, expected %g (k %s v %s cells %d tokens %d)",
                     table->name, t, h, e, got, want, type_name(c->k_type), type_name(c->v_type), c->cells,
                     c->tokens);
    }
}

/* Computes a job with shares one after the other. Nothing is written behind its scratch. */
static void run_attention(const tn__cpu_kernels *table, tn__attention_job job, int nth, size_t nout) {
    enum { GUARD = 65536 };
    const size_t size = table->attention_scratch(&job, nth);
    memset(job.out, 0xff, nout * sizeof *job.out);
    job.scratch = aligned(size + GUARD);
    memset((char *)job.scratch + size, 0x5a, GUARD);
    for (int i = 0; i < nth; i++) table->attention(&job, i, nth);
    for (int i = 0; i < nth && table->attention_splits(&job) > 1; i++) table->attention_combine(&job, i, nth);
    for (size_t i = size; i < size + GUARD; i++)
        if (((const char *)job.scratch)[i] != 0x5a) fail_msg("%s attention: writes behind its scratch", table->name);
    free(job.scratch);
}
static void check_bits(const tn__cpu_kernels *table, const attention_case *c, const float *expected, const float *got,
                       size_t nout, const char *what) {
    if (memcmp(expected, got, nout * sizeof *got) != 0)
        fail_msg("%s attention: %s gives other bits (k %s v %s cells %d tokens %d sequences %d page %d)", table->name,
                 what, type_name(c->k_type), type_name(c->v_type), c->cells, c->tokens, c->sequences,
                 (int)c->params.page);
}

/* The whole pages of a cache change places, and the valid runs of its tables with them. */
static attention_data shuffled_pages(rng *r, const attention_case *c, const attention_data *d) {
    const int page = c->params.page, whole = c->cells / page;
    attention_data to = *d;
    const size_t rows = (size_t)(c->kv_heads * c->cells), runs = (size_t)c->sequences * (size_t)(1 + c->runs);
    int *place = malloc((size_t)c->cells * sizeof *place);
    for (int i = 0; i < c->cells; i++) place[i] = i;
    for (int i = whole - 1; i > 0; i--) {
        const int j = (int)rng_below(r, (uint32_t)i + 1);
        for (int o = 0; o < page; o++) {
            const int was = place[i * page + o];
            place[i * page + o] = place[j * page + o], place[j * page + o] = was;
        }
    }
    to.k = malloc(to.k_row * rows), to.v = malloc(to.v_row * rows), to.pages = malloc(runs * sizeof *to.pages);
    for (int i = 0; i < c->cells; i++) {
        memcpy(to.k + (size_t)(place[i] * c->kv_heads) * d->k_row, d->k + (size_t)(i * c->kv_heads) * d->k_row,
               (size_t)c->kv_heads * d->k_row);
        for (int h = 0; h < c->kv_heads; h++)
            memcpy(to.v + (size_t)(h * c->cells + place[i]) * d->v_row, d->v + (size_t)(h * c->cells + i) * d->v_row,
                   d->v_row);
    }
    for (size_t i = 0; i < runs; i++) {
        to.pages[i] = d->pages[i];
        if (i % (size_t)(1 + c->runs) && is_valid_run(c, &d->pages[i])) to.pages[i].cell = place[d->pages[i].cell];
    }
    free(place);
    return to;
}
/* Every valid run is cut in two, and invalid ones are gone. */
static tn_page_run *halved_runs(const attention_case *c, const attention_data *d) {
    tn_page_run *to = calloc((size_t)c->sequences * (size_t)(1 + 2 * c->runs), sizeof *to);
    for (int s = 0; s < c->sequences; s++) {
        const tn_page_run *row = d->pages + (size_t)s * (size_t)(1 + c->runs);
        tn_page_run *half = to + (size_t)s * (size_t)(1 + 2 * c->runs);
        int n = 0;
        for (int i = 0; i < row->cell && i < c->runs; i++) {
            tn_page_run r = row[1 + i];
            if (!is_valid_run(c, &r)) continue;
            const int32_t first = r.count / 2;
            if (first) half[1 + n++] = (tn_page_run){r.cell, first, r.first, r.divisor};
            half[1 + n++] = (tn_page_run){r.cell + first, r.count - first, r.first + first, r.divisor};
        }
        half->cell = n;
    }
    return to;
}
/* Results depend on the list of a sequence's cells, not on where they are and how they are divided into runs. */
static void check_layouts(const tn__cpu_kernels *table, rng *r, const attention_case *c, const attention_data *d,
                          const float *expected, float *out, size_t nout) {
    attention_data moved = shuffled_pages(r, c, d);
    run_attention(table, attention_job(c, &moved, out), 3, nout);
    check_bits(table, c, expected, out, nout, "another order of pages");
    free(moved.k), free(moved.v), free(moved.pages);
    tn__attention_job job = attention_job(c, d, out);
    tn_page_run *halves = halved_runs(c, d);
    job.pages = halves;
    job.runs = 2 * c->runs;
    run_attention(table, job, 2, nout);
    check_bits(table, c, expected, out, nout, "halving the runs");
    free(halves);
}
/* A job without page tables equals one sequence in pages. */
static void check_as_pages(const tn__cpu_kernels *table, const attention_case *c, const attention_data *d,
                           const float *expected, float *out, size_t nout) {
    enum { PAGE = 24 };
    const int runs = (c->cells + PAGE - 1) / PAGE;
    tn_page_run *pages = calloc((size_t)runs + 1, sizeof *pages);
    int32_t *q_pos = calloc((size_t)c->tokens, 2 * sizeof *q_pos);
    pages->cell = runs;
    for (int i = 0; i < runs; i++)
        pages[1 + i] = (tn_page_run){i * PAGE, c->cells - i * PAGE < PAGE ? c->cells - i * PAGE : PAGE, i * PAGE, 1};
    for (int t = 0; t < c->tokens; t++) q_pos[2 * t] = c->cells - c->tokens + t;
    tn__attention_job job = attention_job(c, d, out);
    job.paged = true, job.q_pos = q_pos, job.pages = pages, job.runs = runs, job.sequences = 1,
    job.params.page = PAGE;
    run_attention(table, job, 2, nout);
    check_bits(table, c, expected, out, nout, "one sequence in pages");
    free(pages), free(q_pos);
}

/* In repeatable jobs a token has the same bits alone and among others, on any number of threads. Runs in any order
 * and number do no harm. */
static void check_repeatable_attention(const tn__cpu_kernels *table, rng *r, const attention_case *c,
                                       const attention_data *d, float *out, size_t nout) {
    const size_t row = (size_t)(c->heads * c->head_v);
    tn__attention_job job = attention_job(c, d, out);
    float *whole = malloc(nout * sizeof *whole);
    job.repeatable = true;
    run_attention(table, job, 1 + (int)rng_below(r, 4), nout);
    memcpy(whole, out, nout * sizeof *whole);
    for (int t = 0; t < c->tokens && c->tidy && c->params.causal; t += 1 + c->tokens / 6) {
        tn__attention_job part = job;
        part.tokens = 1;
        part.q = (const char *)job.q + (size_t)t * job.q_token;
        part.q_pos = job.q_pos + 2 * t;
        if (job.selects) part.selected = job.selected + t * job.n_selected;
        run_attention(table, part, 1 + (int)rng_below(r, 4), row);
        check_bits(table, c, whole + (size_t)t * row, out, row, "a token of a repeatable job alone");
    }
    free(whole);
}

/* A table that names the same cells again and again: more than a repeatable job plans for. */
static void check_duplicate_runs(const tn__cpu_kernels *table, rng *r) {
    attention_case c = {.head_k = 32, .head_v = 32, .heads = 4, .kv_heads = 2, .cells = 1100, .tokens = 3};
    c.k_type = c.v_type = TN_F16;
    c.stretch = 1;
    c.params = (tn_attention_params){.scale = 0.2f, .page = 64, .causal = true};
    c.sequences = 1;
    c.runs = 400;
    c.tidy = true;
    for (int round = 0; round < 4; round++) {
        c.params.window = round & 1 ? 4000 : 0;
        attention_data d = random_attention_data(r, &c);
        const size_t nout = (size_t)(c.heads * c.tokens * c.head_v);
        float *out = aligned(nout * sizeof *out);
        d.pages[0].cell = c.runs;
        for (int i = 0; i < c.runs; i++)
            d.pages[1 + i] = (tn_page_run){64 * (i % 2), 64, round & 2 ? 1000 + 64 * i : 1000, 1};
        for (int t = 0; t < c.tokens; t++) d.q_pos[2 * t] = 5000 + t, d.q_pos[2 * t + 1] = 0;
        tn__attention_job job = attention_job(&c, &d, out);
        job.repeatable = true;
        for (int nth = 1; nth <= 5; nth++) run_attention(table, job, nth, nout);
        for (size_t i = 0; i < nout; i++) assert_true(isfinite(out[i]));
        free(out);
        free_attention_data(&d);
    }
}

/* Runs a case on 1 to 5 threads, which must give the same bits, and compares the result with float64. */
static void check_attention(const tn__cpu_kernels *table, rng *r, const attention_case *c) {
    attention_data d = random_attention_data(r, c);
    const size_t nout = (size_t)(c->heads * c->tokens * c->head_v);
    float *out = aligned(nout * sizeof *out), *first = malloc(nout * sizeof *out);
    for (int nth = 1; nth <= 5; nth++) {
        run_attention(table, attention_job(c, &d, out), nth, nout);
        if (nth == 1) memcpy(first, out, nout * sizeof *out);
        check_bits(table, c, first, out, nout, "another number of threads");
    }
    if (c->sequences) check_layouts(table, r, c, &d, first, out, nout);
    if (c->sequences) check_repeatable_attention(table, r, c, &d, out, nout);
    if (!c->sequences && !c->mask) check_as_pages(table, c, &d, first, out, nout);
    double *p = malloc(list_room(c) * sizeof *p), *acc = malloc((size_t)c->head_v * sizeof *acc);
    listed_cell *list = malloc(list_room(c) * sizeof *list);
    for (int t = 0; t < c->tokens; t++)
        for (int h = 0; h < c->heads; h++) check_head(table, c, &d, first, t, h, list, p, acc);
    free(p), free(acc), free(list), free(first), free(out);
    free_attention_data(&d);
}

/* Windows to both sides, selected positions, biases. */
static void random_extras(rng *r, attention_case *c) {
    if (rng_below(r, 5) == 0) c->params.window_after = 1 + (int32_t)rng_below(r, 60);
    if (rng_below(r, 4) == 0) {
        c->n_selected = 1 + (int)rng_below(r, (uint32_t)c->cells);
        c->params.select_block = (int32_t)(rng_below(r, 2) ? rng_below(r, 2) : 2 + rng_below(r, 30));
    }
    if (rng_below(r, 5) == 0) {
        c->buckets = 4 + (int)rng_below(r, 60);
        c->params.bias_distance = c->buckets / 2 + 1 + (int32_t)rng_below(r, 120);
        c->params.bias_bidirectional = (int32_t)rng_below(r, 2);
    }
}
/* Head sizes of models with large or unequal heads; latent attention with values inside the keys. */
static void check_large_heads(const tn__cpu_kernels *table, rng *r) {
    static const int sizes[][2] = {{576, 512}, {320, 256}, {192, 160}, {96, 64},   {512, 512},
                                   {256, 256}, {192, 128}, {80, 80},   {112, 112}, {96, 96}};
    static const tn_type types[] = {TN_F16, TN_Q8_0, TN_F32, TN_BF16, TN_Q4_0};
    enum { SIZES = sizeof sizes / sizeof *sizes, LATENT = 4 };
    for (int round = 0; round < effort(2 * SIZES); round++) {
        const int at = round % SIZES;
        attention_case c = {.head_k = sizes[at][0], .head_v = sizes[at][1], .kv_heads = 1, .stretch = 1};
        c.k_type = c.v_type = types[rng_below(r, sizes[at][0] % 32 || sizes[at][1] % 32 ? 1 : 5)];
        c.latent = at < LATENT;
        if (!c.latent) c.kv_heads = 1 + (int)rng_below(r, 2);
        c.heads = c.kv_heads * (c.latent ? (round % 2 ? 16 : 40) : 1 + (int)rng_below(r, 4));
        c.tokens = rng_below(r, 2) ? 1 : 1 + (int)rng_below(r, 12);
        c.cells = c.tokens + (int)rng_below(r, 300) + (round % 7 == 0 ? 600 : 0);
        c.params.scale = 1 / sqrtf((float)c.head_k);
        c.params.causal = (int32_t)rng_below(r, 2);
        if (rng_below(r, 4) == 0) c.params.chunk = 1 + (int32_t)rng_below(r, 60);
        if (rng_below(r, 3)) {
            c.sequences = 1 + (int)rng_below(r, 3);
            c.params.page = 64;
            c.tidy = rng_below(r, 2);
            c.runs = (c.cells + c.params.page - 1) / c.params.page;
        }
        c.sinks = rng_below(r, 2);
        random_extras(r, &c);
        check_attention(table, r, &c);
    }
}

static inline void check_attentions(const tn__cpu_kernels *table) {
    rng r = {50};
    static const tn_type kv_types[] = {TN_F16, TN_F32, TN_BF16, TN_Q8_0, TN_Q4_0};
    for (int round = 0; round < effort(60); round++) {
        attention_case c = {.k_type = kv_types[rng_below(&r, 5)], .v_type = kv_types[rng_below(&r, 5)]};
        c.head_k = 32 * (1 + (int)rng_below(&r, 4));
        c.head_v = rng_below(&r, 3) ? c.head_k : 32 * (1 + (int)rng_below(&r, 4));
        if (c.k_type <= TN_F16 && c.v_type <= TN_F16 && rng_below(&r, 3) == 0)
            c.head_k = c.head_v = 10 + (int)rng_below(&r, 90);
        c.kv_heads = 1 + (int)rng_below(&r, 3);
        c.heads = c.kv_heads * (1 + (int)rng_below(&r, 5));
        c.tokens = round % 3 == 0 ? 1 : 1 + (int)rng_below(&r, round % 20 == 7 ? 200 : 40);
        c.cells = c.tokens + (int)rng_below(&r, round % 5 == 0 ? 1500 : 90);
        c.params.scale = 1 / sqrtf((float)c.head_k);
        c.stretch = rng_below(&r, 4) == 0 ? 12 : 1;
        c.params.causal = (int32_t)rng_below(&r, 2);
        if (rng_below(&r, 4) == 0) c.params.window = 1 + (int32_t)rng_below(&r, 60);
        if (rng_below(&r, 6) == 0) c.params.chunk = 1 + (int32_t)rng_below(&r, 60);
        if (rng_below(&r, 4) == 0) c.params.soft_cap = 5;
        if (rng_below(&r, 4) == 0) c.params.max_bias = 8;
        if (rng_below(&r, 3)) {
            static const int32_t pages[] = {1, 7, 16, 32, 64, 64, 128, 256};
            c.sequences = 1 + (int)rng_below(&r, round % 7 == 0 ? 30 : 3);
            c.params.page = pages[rng_below(&r, 8)];
            c.tidy = rng_below(&r, 2);
            c.runs = (c.cells + c.params.page - 1) / c.params.page;
            if (rng_below(&r, 3) == 0) c.runs = (int)rng_below(&r, (uint32_t)(2 * c.runs) + 2);
        }
        c.mask = !c.sequences && rng_below(&r, 3) == 0;
        c.mask_f16 = rng_below(&r, 2);
        c.mask_per_head = rng_below(&r, 2);
        c.sinks = rng_below(&r, 4) == 0;
        random_extras(&r, &c);
        check_attention(table, &r, &c);
    }
    check_large_heads(table, &r);
    check_duplicate_runs(table, &r);
    /* More cells than the splits of usual length hold, in one sequence of several. */
    for (int round = 0; round < effort(3); round++) {
        attention_case c = {.head_k = 32, .head_v = 32, .heads = 4, .kv_heads = 2, .cells = 16500 + 200 * round};
        c.k_type = c.v_type = TN_F16;
        c.stretch = 1;
        c.tokens = round == 1 ? 1 : 5;
        c.params = (tn_attention_params){.scale = 0.2f, .page = 64};
        c.sequences = round == 2 ? 1 : 4;
        c.runs = (c.cells + 63) / 64;
        c.tidy = true;
        check_attention(table, &r, &c);
    }
}

#endif

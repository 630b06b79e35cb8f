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
    int words;     /* of sequence bits; the three sequences are the first, the middle and the last of them */
    bool positions, runs, mask, mask_f16, mask_per_head, sinks;
} attention_case;

static int sequence_of(const attention_case *c, int s) { return s * (32 * c->words - 1) / 2; }

/* Data that a thread keeps from one job must not change the results of the next. */
static void check_kept(const tn__cpu_kernels *table, tn__attention_job job, int nth, size_t nout) {
    const size_t bytes = table->attention_kept ? table->attention_kept(&job) : 0;
    if (!bytes || table->attention_splits(&job) > 1) return;
    float *expected = job.out;
    job.out = aligned(nout * sizeof *job.out);
    unsigned char *kept = aligned(bytes * (size_t)nth);
    for (int i = 0; i < nth; i++) memset(kept + bytes * (size_t)i, 0, TN__KEPT_HEAD);
    for (int again = 0; again < 3; again++) {
        memset(job.out, 0xff, nout * sizeof *job.out);
        for (int i = 0; i < nth; i++) {
            job.kept = kept + bytes * (size_t)i;
            table->attention(&job, i, nth);
        }
        if (memcmp(expected, job.out, nout * sizeof *job.out) != 0)
            fail_msg("%s attention: job %d with what %d threads kept gives other bits", table->name, again + 1, nth);
    }
    free(kept);
    free(job.out);
}

/* The operands of a case, and its keys and values as floats. */
typedef struct attention_data {
    float *q, *k32, *v32, *mask, *sinks;
    unsigned char *k, *v;
    uint16_t *mask16;
    int32_t *q_pos, *k_pos, range[2];
    size_t k_row, v_row; /* bytes */
} attention_data;

static void random_positions(rng *r, const attention_case *c, attention_data *d) {
    d->q_pos = malloc((size_t)c->tokens * 8);
    d->k_pos = calloc((size_t)c->cells, (size_t)(1 + c->words) * 4);
    for (int t = 0; t < c->tokens; t++) {
        d->q_pos[2 * t] = c->cells / 2 + t;
        /* One token each of three sequences and padding; an even number of tokens ends with a long run of one
         * sequence. */
        d->q_pos[2 * t + 1] = t % 7 == 6 ? -1 : sequence_of(c, t % 3);
        if (t % 11 == 5 || (c->tokens % 5 == 0 && t >= 10))
            d->q_pos[2 * t + 1] = 32 * c->words; /* a sequence without cells */
        if (c->tokens % 2 == 0 && t >= 10) d->q_pos[2 * t + 1] = t < c->tokens - 2 ? sequence_of(c, 1) : -1;
    }
    for (int i = 0; i < c->cells;
         i++) { /* positions not in order, some cells empty, three sequences, mixed or in runs */
        int32_t *entry = d->k_pos + i * (1 + c->words);
        int sequence = sequence_of(c, c->runs ? i / 70 % 3 : (int)rng_below(r, 3));
        entry[0] = rng_below(r, 9) == 0 ? -1 : (i * 5) % c->cells;
        entry[1 + sequence / 32] = (int32_t)(1u << sequence % 32);
    }
    d->range[0] = 0;
    d->range[1] = c->cells;
    if (c->positions && c->cells > 3) {
        d->range[0] = 1;
        d->range[1] = c->cells - 1;
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
        generic->to_f32[c->k_type](d.k + i * d.k_row, d.k32 + i * (size_t)c->head_k, c->head_k);
        generic->to_f32[c->v_type](d.v + i * d.v_row, d.v32 + i * (size_t)c->head_v, c->head_v);
    }
    for (size_t i = 0; i < masks; i++) {
        d.mask[i] = rng_below(r, 5) == 0 ? -INFINITY : (float)rng_unit(r);
        d.mask16[i] = tn__f32_to_f16(d.mask[i]);
        if (c->mask_f16) d.mask[i] = tn__f16_to_f32(d.mask16[i]);
    }
    for (int h = 0; h < c->heads; h++) d.sinks[h] = rng_normal(r);
    random_positions(r, c, &d);
    return d;
}

static void free_attention_data(attention_data *d) {
    free(d->q), free(d->k), free(d->v), free(d->k32), free(d->v32), free(d->mask), free(d->mask16), free(d->sinks);
    free(d->q_pos), free(d->k_pos);
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
    if (c->positions) {
        job.q_pos = d->q_pos;
        job.k_pos = d->k_pos;
        job.k_words = c->words;
        job.range = d->range;
    }
    if (c->mask) {
        job.mask = c->mask_f16 ? (const void *)d->mask16 : d->mask;
        job.mask_f16 = c->mask_f16;
        job.mask_token = (size_t)c->cells * (c->mask_f16 ? 2 : 4);
        job.mask_head = c->mask_per_head ? job.mask_token * (size_t)c->tokens : 0;
    }
    if (c->sinks) job.sinks = d->sinks;
    return job;
}

/* The score of cell i in float64; -infinity if it is not visible. */
static double reference_score(const attention_case *c, const attention_data *d, int t, int h, int i) {
    const int32_t *entry = d->k_pos + i * (1 + c->words);
    const int kv = h / (c->heads / c->kv_heads), kp = c->positions ? entry[0] : i;
    const int position = c->positions ? d->q_pos[2 * t] : c->cells - c->tokens + t,
              sequence = c->positions ? d->q_pos[2 * t + 1] : 0;
    bool sees = kp >= 0 && sequence >= 0 && i >= d->range[0] && i < d->range[1];
    if (sees && c->positions)
        sees = sequence < 32 * c->words && (uint32_t)entry[1 + sequence / 32] >> sequence % 32 & 1;
    if (c->params.causal) sees = sees && kp <= position;
    if (c->params.window) sees = sees && position - kp < c->params.window;
    if (c->params.chunk) sees = sees && kp / c->params.chunk == position / c->params.chunk;
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
    if (c->mask) s += d->mask[((c->mask_per_head ? h * c->tokens : 0) + t) * c->cells + i];
    return sees ? s : -INFINITY;
}

static void check_head(const tn__cpu_kernels *table, const attention_case *c, const attention_data *d,
                       const float *results, int t, int h, double *p, double *acc) {
    const int kv = h / (c->heads / c->kv_heads);
    double most = -INFINITY, total = 0, vmax = 0;
    for (int i = 0; i < c->cells; i++) {
        p[i] = reference_score(c, d, t, h, i);
        most = fmax(most, p[i]);
    }
    if (c->sinks) most = fmax(most, d->sinks[h]);
    memset(acc, 0, (size_t)c->head_v * sizeof *acc);
    for (int i = 0; i < c->cells; i++) {
        double w = p[i] == -INFINITY ? 0 : exp(p[i] - most);
        const float *vr = d->v32 + (size_t)(kv * c->cells + i) * (size_t)c->head_v;
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

/* Runs a case on 1, 2 and 5 threads, which must give the same bits, and compares the result with float64. */
static void check_attention(const tn__cpu_kernels *table, rng *r, const attention_case *c) {
    attention_data d = random_attention_data(r, c);
    const size_t nout = (size_t)(c->heads * c->tokens * c->head_v);
    float *out = aligned(nout * sizeof *out), *first = NULL;
    tn__attention_job job = attention_job(c, &d, out);
    static const int counts[] = {1, 2, 5};
    for (int n = 0; n < 3; n++) {
        int nth = counts[n];
        memset(out, 0xff, nout * sizeof *out);
        job.scratch = aligned(table->attention_scratch(&job, nth));
        for (int i = 0; i < nth; i++) table->attention(&job, i, nth);
        if (table->attention_splits(&job) > 1) {
            for (int i = 0; i < nth; i++) table->attention_combine(&job, i, nth);
        }
        check_kept(table, job, nth, nout);
        free(job.scratch);
        if (!first) {
            first = malloc(nout * sizeof *out);
            memcpy(first, out, nout * sizeof *out);
        } else if (memcmp(first, out, nout * sizeof *out) != 0) {
            fail_msg("%s attention: %d threads give other bits than 1", table->name, nth);
        }
    }
    double *p = malloc((size_t)c->cells * sizeof *p), *acc = malloc((size_t)c->head_v * sizeof *acc);
    for (int t = 0; t < c->tokens; t++)
        for (int h = 0; h < c->heads; h++) check_head(table, c, &d, first, t, h, p, acc);
    free(p), free(acc), free(first), free(out);
    free_attention_data(&d);
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
        c.positions = rng_below(&r, 2);
        c.words = 1 + (int)rng_below(&r, 9); /* also more than kernels summarise */
        c.runs = rng_below(&r, 2);
        c.mask = rng_below(&r, 4) == 0;
        c.mask_f16 = rng_below(&r, 2);
        c.mask_per_head = rng_below(&r, 2);
        c.sinks = rng_below(&r, 4) == 0;
        check_attention(table, &r, &c);
    }
}

#endif

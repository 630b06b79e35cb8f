/* Attention kernels against float64 on random cases; random rows of every type. */
#ifndef TN_TESTS_ATTENTION_CASES_H
#define TN_TESTS_ATTENTION_CASES_H

#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/generic/internal.h"
#include "backend/cpu/kernels/kernels.h"
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

/* Rows of random weights; types that cannot be quantized to get random codes and a sane scale. */
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

/* Where every instruction is emulated: fewer and smaller cases, and plain C is left to the machine it was built on.
 */
static inline bool in_short(void) { return getenv("TENON_SHORT") != NULL; }
/* Rounds of a random test. */
static inline int effort(int rounds) {
    return getenv("TENON_LONG") ? 6 * rounds : in_short() ? (rounds + 3) / 4 : rounds;
}

static inline void *aligned(size_t bytes) {
    void *pointer = NULL;
    assert_int_equal(posix_memalign(&pointer, 64, bytes + 64), 0);
    memset(pointer, 0xff, bytes + 64); /* NaN everywhere: what is not written shows */
    return pointer;
}

/* Relative to the largest value. Tiles round to bf16; large scores are kept to 16 bits. */
#define ATTENTION_TOLERANCE(table) ((table)->level == TN__CPU_AMX ? 6e-3 : 1e-5)

typedef struct attention_case {
    int head_k, head_v, heads, kv_heads, tokens, cells;
    tn_type k_type, v_type;
    tn_attention_params params;
    float stretch; /* of the queries: scores of some tens where it is large */
    int words;     /* of sequence bits; the three sequences lie as far apart as they allow */
    bool positions, runs, mask, mask_f16, mask_per_head, sinks;
} attention_case;

static int sequence_of(const attention_case *c, int s) { return s * (32 * c->words - 1) / 2; }

/* What a thread keeps of one job changes nothing in the results of the next. */
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

static void check_attention(const tn__cpu_kernels *table, rng *r, const attention_case *c) {
    const tn__cpu_kernels *generic = tn__cpu_kernels_at(TN__CPU_GENERIC);
    size_t k_row = row_bytes(c->k_type, c->head_k), v_row = row_bytes(c->v_type, c->head_v);
    size_t nq = (size_t)(c->heads * c->tokens * c->head_k), nout = (size_t)(c->heads * c->tokens * c->head_v);
    float *q = malloc(nq * sizeof *q), *out = aligned(nout * sizeof *out);
    unsigned char *k = malloc(k_row * (size_t)(c->kv_heads * c->cells)),
                  *v = malloc(v_row * (size_t)(c->kv_heads * c->cells));
    float *k32 = malloc((size_t)(c->kv_heads * c->cells * c->head_k) * sizeof *k32);
    float *v32 = malloc((size_t)(c->kv_heads * c->cells * c->head_v) * sizeof *v32);
    float *mask = malloc((size_t)(c->cells * c->tokens * c->heads) * sizeof *mask),
          *sinks = malloc((size_t)c->heads * sizeof *sinks);
    uint16_t *mask16 = malloc((size_t)(c->cells * c->tokens * c->heads) * sizeof *mask16);
    int32_t *q_pos = malloc((size_t)c->tokens * 8), *k_pos = calloc((size_t)c->cells, (size_t)(1 + c->words) * 4),
            range[2] = {0, c->cells};
    for (size_t i = 0; i < nq; i++) q[i] = c->stretch * rng_normal(r);
    for (int i = 0; i < c->kv_heads * c->cells; i++) {
        random_weights(r, c->k_type, c->head_k, k + (size_t)i * k_row);
        random_weights(r, c->v_type, c->head_v, v + (size_t)i * v_row);
        generic->to_f32[c->k_type](k + (size_t)i * k_row, k32 + (size_t)i * (size_t)c->head_k, c->head_k);
        generic->to_f32[c->v_type](v + (size_t)i * v_row, v32 + (size_t)i * (size_t)c->head_v, c->head_v);
    }
    for (int i = 0; i < c->cells * c->tokens * c->heads; i++) {
        mask[i] = rng_below(r, 5) == 0 ? -INFINITY : (float)rng_unit(r);
        mask16[i] = tn__f32_to_f16(mask[i]);
        if (c->mask_f16) mask[i] = tn__f16_to_f32(mask16[i]);
    }
    for (int h = 0; h < c->heads; h++) sinks[h] = rng_normal(r);
    for (int t = 0; t < c->tokens; t++) {
        q_pos[2 * t] = c->cells / 2 + t;
        /* A token each of three sequences and padding; where the count is even, a long run of one follows them. */
        q_pos[2 * t + 1] = t % 7 == 6 ? -1 : sequence_of(c, t % 3);
        if (t % 11 == 5 || (c->tokens % 5 == 0 && t >= 10))
            q_pos[2 * t + 1] = 32 * c->words; /* no cell can have it */
        if (c->tokens % 2 == 0 && t >= 10) q_pos[2 * t + 1] = t < c->tokens - 2 ? sequence_of(c, 1) : -1;
    }
    for (int i = 0; i < c->cells; i++) { /* cells in disorder, some empty, of three sequences, mixed or in runs */
        int32_t *entry = k_pos + i * (1 + c->words);
        int sequence = sequence_of(c, c->runs ? i / 70 % 3 : (int)rng_below(r, 3));
        entry[0] = rng_below(r, 9) == 0 ? -1 : (i * 5) % c->cells;
        entry[1 + sequence / 32] = (int32_t)(1u << sequence % 32);
    }
    if (c->positions && c->cells > 3) {
        range[0] = 1;
        range[1] = c->cells - 1;
    }
    tn__attention_job job = {.head_k = c->head_k,
                             .head_v = c->head_v,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .tokens = c->tokens,
                             .cells = c->cells,
                             .k_type = c->k_type,
                             .v_type = c->v_type,
                             .q = q,
                             .k = k,
                             .v = v,
                             .q_head = (size_t)c->head_k * 4,
                             .q_token = (size_t)(c->head_k * c->heads) * 4,
                             .k_head = k_row,
                             .k_cell = k_row * (size_t)c->kv_heads,
                             .v_head = v_row * (size_t)c->cells,
                             .v_cell = v_row,
                             .out = out,
                             .out_head = (size_t)c->head_v * 4,
                             .out_token = (size_t)(c->head_v * c->heads) * 4,
                             .params = c->params};
    if (c->positions) {
        job.q_pos = q_pos;
        job.k_pos = k_pos;
        job.k_words = c->words;
        job.range = range;
    }
    if (c->mask) {
        job.mask = c->mask_f16 ? (void *)mask16 : mask;
        job.mask_f16 = c->mask_f16;
        job.mask_token = (size_t)c->cells * (c->mask_f16 ? 2 : 4);
        job.mask_head = c->mask_per_head ? job.mask_token * (size_t)c->tokens : 0;
    }
    if (c->sinks) job.sinks = sinks;
    float *first = NULL;
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
    for (int t = 0; t < c->tokens; t++) {
        for (int h = 0; h < c->heads; h++) {
            int kv = h / (c->heads / c->kv_heads);
            int position = c->positions ? q_pos[2 * t] : c->cells - c->tokens + t,
                sequence = c->positions ? q_pos[2 * t + 1] : 0;
            double most = -INFINITY, total = 0, vmax = 0;
            for (int i = 0; i < c->cells; i++) {
                const int32_t *entry = k_pos + i * (1 + c->words);
                int kp = c->positions ? entry[0] : i;
                bool sees = kp >= 0 && sequence >= 0 && i >= range[0] && i < range[1];
                if (sees && c->positions)
                    sees = sequence < 32 * c->words && (uint32_t)entry[1 + sequence / 32] >> sequence % 32 & 1;
                if (c->params.causal) sees = sees && kp <= position;
                if (c->params.window) sees = sees && position - kp < c->params.window;
                if (c->params.chunk) sees = sees && kp / c->params.chunk == position / c->params.chunk;
                double s = 0;
                const float *kr = k32 + (size_t)(i * c->kv_heads + kv) * (size_t)c->head_k;
                for (int d = 0; d < c->head_k; d++) s += (double)q[(t * c->heads + h) * c->head_k + d] * kr[d];
                s *= c->params.scale;
                if (c->params.soft_cap > 0) s = c->params.soft_cap * tanh(s / c->params.soft_cap);
                if (c->params.max_bias > 0) {
                    int power = 1;
                    while (power * 2 <= c->heads) power *= 2;
                    double slope = h < power ? exp2(-c->params.max_bias / power * (h + 1))
                                             : exp2(-c->params.max_bias / 2 / power * (2 * (h - power) + 1));
                    s -= slope * abs(position - kp);
                }
                if (c->mask) s += mask[((c->mask_per_head ? h * c->tokens : 0) + t) * c->cells + i];
                p[i] = sees ? s : -INFINITY;
                most = fmax(most, p[i]);
            }
            if (c->sinks) most = fmax(most, sinks[h]);
            memset(acc, 0, (size_t)c->head_v * sizeof *acc);
            for (int i = 0; i < c->cells; i++) {
                double w = p[i] == -INFINITY ? 0 : exp(p[i] - most);
                const float *vr = v32 + (size_t)(kv * c->cells + i) * (size_t)c->head_v;
                total += w;
                for (int d = 0; d < c->head_v; d++) {
                    acc[d] += w * vr[d];
                    vmax = fmax(vmax, fabs(vr[d]));
                }
            }
            bool empty = total == 0;
            if (c->sinks) total += exp(sinks[h] - most);
            for (int d = 0; d < c->head_v; d++) {
                double want = empty ? 0 : acc[d] / total, got = first[(t * c->heads + h) * c->head_v + d];
                if (!(fabs(got - want) <= ATTENTION_TOLERANCE(table) * vmax + 1e-6))
                    fail_msg("%s attention token %d head %d [%d]: %g, expected %g (k %s v %s cells %d tokens %d)",
                             table->name, t, h, d, got, want, type_name(c->k_type), type_name(c->v_type), c->cells,
                             c->tokens);
            }
        }
    }
    free(p), free(acc), free(first), free(q), free(out), free(k), free(v), free(k32), free(v32), free(mask),
        free(mask16);
    free(sinks), free(q_pos), free(k_pos);
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
        c.words = 1 + (int)rng_below(&r, 9); /* more than kernels make summaries of, too */
        c.runs = rng_below(&r, 2);
        c.mask = rng_below(&r, 4) == 0;
        c.mask_f16 = rng_below(&r, 2);
        c.mask_per_head = rng_below(&r, 2);
        c.sinks = rng_below(&r, 4) == 0;
        check_attention(table, &r, &c);
    }
}

#endif

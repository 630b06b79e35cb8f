/* CPU kernels at every level of this machine: against float64 references, for any number of threads, at incomplete
 * blocks. */
#include "attention_cases.h"
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/shared.h"
#include "base/half.h"
#include "quant/quant.h"

/* ---- Tolerances ---- */
/* Mat-mul errors are relative to |w|·|x| of the row and column (the dot product's natural scale).
 * `exact`: against the prepared activations as they are; f32 sums only. `rounded`: against the original activations,
 * what the form costs: eight bits about 0.7% of noise per value, bf16 about 0.2%, averaged over k. */
static double exact_tolerance(tn_type type, tn__act_form form) {
    /* Tiles and bf16 dot products also round weights to bf16. */
    if (form == TN__ACT_BF16 || form == TN__ACT_TILES) return type == TN_BF16 ? 1e-5 : 1.5e-3;
    return 2e-6;
}
static double rounded_tolerance(tn__act_form form) {
    return form == TN__ACT_Q8 ? 6e-3 : form == TN__ACT_BF16 || form == TN__ACT_TILES ? 3e-3 : 2e-6;
}
enum { ROW_ULPS = 8 };

/* ---- Weights of any type ---- */

static const tn_type types[] = {TN_F32,    TN_F16,     TN_BF16,  TN_Q4_0,  TN_Q4_1,  TN_Q5_0,    TN_Q5_1,
                                TN_Q8_0,   TN_Q2_K,    TN_Q3_K,  TN_Q4_K,  TN_Q5_K,  TN_Q6_K,    TN_IQ4_NL,
                                TN_IQ4_XS, TN_MXFP4,   TN_NVFP4, TN_TQ1_0, TN_TQ2_0, TN_IQ2_XXS, TN_IQ2_XS,
                                TN_IQ2_S,  TN_IQ3_XXS, TN_IQ3_S, TN_IQ1_S, TN_IQ1_M};
enum { TYPES = sizeof types / sizeof types[0] };

typedef struct problem {
    tn_type type;
    int64_t m, n, k;
    size_t stride;
    unsigned char *w;
    float *x, *w_f32;
} problem;

static problem make_problem(rng *r, tn_type type, int64_t m, int64_t n, int64_t k) {
    const tn__cpu_kernels *generic = tn__cpu_kernels_at(TN__CPU_GENERIC);
    problem p = {type, m, n, k, row_bytes(type, k), NULL, NULL, NULL};
    p.w = malloc(p.stride * (size_t)m + 1);
    p.x = malloc((size_t)(n * k) * sizeof(float));
    p.w_f32 = malloc((size_t)(m * k) * sizeof(float));
    for (int64_t i = 0; i < m; i++) {
        random_weights(r, type, k, p.w + (size_t)i * p.stride);
        generic->to_f32[type](p.w + (size_t)i * p.stride, p.w_f32 + i * k, k);
    }
    for (int64_t i = 0; i < n * k; i++) p.x[i] = rng_normal(r) * (i % 53 == 7 ? 3 : 1);
    return p;
}
static void free_problem(problem *p) {
    free(p->w);
    free(p->x);
    free(p->w_f32);
}

/* Prepared activations read back as floats. */
static float prepared_value(tn__act_form form, const void *data, int64_t rows, int64_t row, int64_t i) {
    const char *chunk = (const char *)data + (size_t)(i / TN__CHUNK * rows + row) * tn__act_chunk_bytes(form);
    int64_t j = i % TN__CHUNK;
    if (form == TN__ACT_TILES)
        return tn__bf16_to_f32(
            ((const uint16_t *)
                 data)[tn__act_tile(rows, row / 16, i / TN__CHUNK, j / 32) * 512 + row % 16 * 32 + j % 32]);
    if (form == TN__ACT_F32) return ((const float *)chunk)[j];
    if (form == TN__ACT_BF16) return tn__bf16_to_f32(((const uint16_t *)chunk)[j]);
    const tn__q8_chunk *q = (const tn__q8_chunk *)chunk;
    return q->d[j / 32] * (float)q->qs[j];
}

/* Runs a problem at one level with `nth` shares, one after the other. */
static float *run_matmul(const tn__cpu_kernels *table, const problem *p, const void *repacked, int how, int nth,
                         tn__act_form *form_out, void **prepared_out) {
    tn__act_form form = table->matmul_form(p->type, repacked != NULL, p->m, p->n, p->k, how);
    void *prepared = aligned(table->act_bytes(form, p->n, p->k));
    for (int t = 0; t < nth; t++)
        table->act_prepare(form, p->x, (size_t)p->k * sizeof(float), NULL, p->n, p->k, prepared, t, nth);
    float *out = aligned((size_t)(p->m * p->n) * sizeof(float));
    tn__matmul_job job = {.type = p->type,
                          .repacked = repacked != NULL,
                          .form = form,
                          .repeatable = (how & TN__MATMUL_REPEATABLE) != 0,
                          .m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .w = repacked ? repacked : p->w,
                          .w_stride = p->stride,
                          .x = form == TN__ACT_PLAIN ? (const void *)p->x : prepared,
                          .x_stride = (size_t)p->k * sizeof(float),
                          .x_rows = p->n,
                          .out = out,
                          .out_stride = (size_t)p->m * sizeof(float),
                          .scratch = aligned(table->matmul_scratch(form, p->n, p->k))};
    for (int t = 0; t < nth; t++) table->matmul(&job, t, nth);
    free(job.scratch);
    *form_out = form;
    *prepared_out = prepared;
    return out;
}

static void check_matmul(const tn__cpu_kernels *table, const problem *p, const void *repacked, int how) {
    const bool precise = (how & TN__MATMUL_PRECISE) != 0;
    tn__act_form form;
    void *prepared;
    float *out = run_matmul(table, p, repacked, how, 1, &form, &prepared);
    if (precise) assert_true(form == TN__ACT_PLAIN || form == TN__ACT_F32);
    for (int64_t j = 0; j < p->n; j++) {
        for (int64_t i = 0; i < p->m; i++) {
            double exact = 0, original = 0, ww = 0, xx = 0;
            for (int64_t l = 0; l < p->k; l++) {
                double w = p->w_f32[i * p->k + l], x = p->x[j * p->k + l];
                double seen = form == TN__ACT_PLAIN ? x : prepared_value(form, prepared, p->n, j, l);
                exact += w * seen;
                original += w * x;
                ww += w * w;
                xx += x * x;
            }
            double scale = sqrt(ww * xx) + 1e-30, got = out[j * p->m + i];
            if (!(fabs(got - exact) <= exact_tolerance(p->type, form) * scale) ||
                !(fabs(got - original) <= rounded_tolerance(form) * scale))
                fail_msg("%s %s%s m=%d n=%d k=%d at %d,%d: got %g, expected %g (original %g), scale %g", table->name,
                         type_name(p->type), repacked ? " repacked" : "", (int)p->m, (int)p->n, (int)p->k, (int)i,
                         (int)j, got, exact, original, scale);
        }
    }
    for (int nth = 2; nth <= 5; nth += 3) {
        tn__act_form form2;
        void *prepared2;
        float *again = run_matmul(table, p, repacked, how, nth, &form2, &prepared2);
        if (memcmp(out, again, (size_t)(p->m * p->n) * sizeof(float)) != 0)
            fail_msg("%s %s%s m=%d n=%d k=%d: %d threads give other bits than 1", table->name, type_name(p->type),
                     repacked ? " repacked" : "", (int)p->m, (int)p->n, (int)p->k, nth);
        free(again);
        free(prepared2);
    }
    free(out);
    free(prepared);
}

static void for_each_level(void (*check)(const tn__cpu_kernels *table)) {
    for (int level = in_short() ? TN__CPU_GENERIC + 1 : 0; level < TN__CPU_LEVELS; level++) {
        const tn__cpu_kernels *table = tn__cpu_kernels_at((tn__cpu_level)level);
        if (table) check(table);
    }
}

static void matmul_shapes(const tn__cpu_kernels *table) {
    rng r = {42};
    static const int64_t ns[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 64, 65};
    for (int t = 0; t < TYPES; t++) {
        tn_type type = types[t];
        int64_t block = tn__block_of(type);
        for (int round = 0; round < effort(8); round++) {
            int64_t m = 1 + (int64_t)rng_below(&r, round % 4 == 3 ? 150 : 40);
            int64_t n = ns[rng_below(&r, sizeof ns / sizeof ns[0])];
            int64_t k = block * (1 + (int64_t)rng_below(&r, block == 256 ? 4 : block > 1 ? 37 : 1100));
            if (round == 0) n = 1;
            if (round == 1) n = in_short() ? 17 : 65;
            problem p = make_problem(&r, type, m, n, k);
            const int how = (round % 3 == 2 ? TN__MATMUL_PRECISE : 0) | (round % 2 ? TN__MATMUL_REPEATABLE : 0);
            check_matmul(table, &p, NULL, how);
            if (tn__can_repack(type, m, k)) {
                void *repacked = aligned(table->repacked_bytes(type, m, k));
                table->repack(type, m, k, p.w, p.stride, repacked, 0, (m + 15) / 16);
                check_matmul(table, &p, repacked, how);
                free(repacked);
            }
            free_problem(&p);
        }
    }
}
static void test_matmul_agrees_with_float64_for_every_type(void **state) {
    (void)state;
    for_each_level(matmul_shapes);
}

/* The first columns of a problem alone give the bits that they have among the others. */
static void check_repeatable(const tn__cpu_kernels *table, const problem *p, const void *repacked, int how) {
    static const int64_t ns[] = {1, 2, 3, 5, 8, 9, 16, 33};
    tn__act_form form;
    void *prepared;
    float *whole = run_matmul(table, p, repacked, how, 1, &form, &prepared);
    free(prepared);
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
        problem few = *p;
        few.n = ns[i];
        float *out = run_matmul(table, &few, repacked, how, 2, &form, &prepared);
        if (memcmp(out, whole, (size_t)(few.n * p->m) * sizeof(float)) != 0)
            fail_msg("%s %s%s m=%d k=%d: %d rows give other bits than %d", table->name, type_name(p->type),
                     repacked ? " repacked" : "", (int)p->m, (int)p->k, (int)few.n, (int)p->n);
        free(out);
        free(prepared);
    }
    free(whole);
}
static void matmul_repeatable(const tn__cpu_kernels *table) {
    rng r = {45};
    for (int t = 0; t < TYPES; t++) {
        /* Repacked weights are computed in blocks of 128 rows. */
        const int64_t block = tn__block_of(types[t]), m = tn__can_repack(types[t], 1, 256) ? 149 : 45,
                      k = block * (block == 256 ? 3
                                   : block > 1  ? 23
                                                : 700);
        problem p = make_problem(&r, types[t], m, 70, k);
        check_repeatable(table, &p, NULL, TN__MATMUL_REPEATABLE);
        check_repeatable(table, &p, NULL, TN__MATMUL_REPEATABLE | TN__MATMUL_PRECISE);
        if (tn__can_repack(types[t], m, k)) {
            void *repacked = aligned(table->repacked_bytes(types[t], m, k));
            table->repack(types[t], m, k, p.w, p.stride, repacked, 0, (m + 15) / 16);
            check_repeatable(table, &p, repacked, TN__MATMUL_REPEATABLE);
            free(repacked);
        }
        free_problem(&p);
    }
}
static void test_repeatable_matmul_does_not_depend_on_the_number_of_rows(void **state) {
    (void)state;
    for_each_level(matmul_repeatable);
}

static void matmul_parts(const tn__cpu_kernels *table) {
    /* Rows of experts: activations gathered and prepared together, computed in parts, results scattered. */
    rng r = {43};
    static const tn_type some[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0, TN_Q4_K, TN_Q6_K, TN_MXFP4};
    for (size_t t = 0; t < sizeof some / sizeof some[0]; t++) {
        enum { N = 40, M = 50, K = 512 };
        problem p = make_problem(&r, some[t], M, N, K);
        int32_t gather[N], scatter[N];
        for (int j = 0; j < N; j++) {
            gather[j] = (j * 7) % N;
            scatter[j] = N - 1 - j;
        }
        tn__act_form form = table->matmul_form(p.type, false, M, N, K, false);
        if (form == TN__ACT_PLAIN) {
            free_problem(&p);
            continue;
        }
        void *prepared = aligned(table->act_bytes(form, N, K)), *scratch = aligned(table->matmul_scratch(form, N, K));
        for (int i = 0; i < 3; i++) table->act_prepare(form, p.x, K * sizeof(float), gather, N, K, prepared, i, 3);
        float *whole = aligned(M * N * sizeof(float)), *parts = aligned(M * N * sizeof(float));
        tn__matmul_job job = {.type = p.type,
                              .form = form,
                              .m = M,
                              .n = N,
                              .k = K,
                              .w = p.w,
                              .w_stride = p.stride,
                              .x = prepared,
                              .x_rows = N,
                              .out = whole,
                              .out_stride = M * sizeof(float),
                              .scratch = scratch};
        table->matmul(&job, 0, 1);
        static const int any[] = {0, 1, 5, 21, N}, at_tiles[] = {0, 0, 16, 32, N};
        const int *cuts = form == TN__ACT_TILES ? at_tiles : any;
        for (int c = 0; c < 4; c++) {
            job.x_first = cuts[c];
            job.n = cuts[c + 1] - cuts[c];
            job.out = parts;
            job.scatter = scatter + cuts[c];
            table->matmul(&job, 0, 1);
        }
        for (int j = 0; j < N; j++) {
            for (int i = 0; i < M; i++) {
                double want = whole[j * M + i], got = parts[scatter[j] * M + i], scale = 0;
                for (int l = 0; l < K; l++) scale += fabs((double)p.w_f32[i * K + l] * p.x[gather[j] * K + l]);
                if (!(fabs(want - got) <= 1e-6 * scale))
                    fail_msg("%s %s part: %g, whole: %g", table->name, type_name(p.type), got, want);
            }
        }
        free(prepared);
        free(scratch);
        free(whole);
        free(parts);
        free_problem(&p);
    }
}
static void test_matmul_in_parts_with_gather_and_scatter(void **state) {
    (void)state;
    for_each_level(matmul_parts);
}

static void matmul_nan(const tn__cpu_kernels *table) {
    rng r = {44};
    static const tn_type some[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0, TN_Q4_K, TN_Q4_0};
    for (size_t t = 0; t < sizeof some / sizeof some[0]; t++) {
        for (int bad = 0; bad < 2; bad++) {
            for (int64_t n = 3; n < 40; n += 30) {
                problem p = make_problem(&r, some[t], 20, n, 512);
                p.x[512 + 300] = bad ? INFINITY : NAN;
                tn__act_form form;
                void *prepared;
                float *out = run_matmul(table, &p, NULL, false, 1, &form, &prepared);
                for (int j = 0; j < n; j++) {
                    for (int i = 0; i < 20; i++) {
                        if (!isfinite(out[j * 20 + i]) != (j == 1))
                            fail_msg("%s %s: %s in row 1 gives %g in row %d", table->name, type_name(p.type),
                                     bad ? "inf" : "NaN", out[j * 20 + i], j);
                    }
                }
                free(out);
                free(prepared);
                free_problem(&p);
            }
        }
    }
}
static void test_matmul_lets_nan_and_infinity_through(void **state) {
    (void)state;
    for_each_level(matmul_nan);
}

static void repacking(const tn__cpu_kernels *table) {
    rng r = {45};
    for (int t = 0; t < TYPES; t++) {
        for (int64_t m = 1; m < 50; m += 12) {
            int64_t k = 768;
            if (!tn__can_repack(types[t], m, k)) continue;
            problem p = make_problem(&r, types[t], m, 1, k);
            size_t bytes = table->repacked_bytes(types[t], m, k);
            unsigned char *repacked = aligned(bytes), *row = malloc(p.stride);
            int64_t groups = (m + 15) / 16, half = groups / 2;
            table->repack(types[t], m, k, p.w, p.stride, repacked, 0, half);
            table->repack(types[t], m, k, p.w, p.stride, repacked, half, groups - half);
            for (int64_t i = 0; i < m; i++) {
                table->repacked_read_row(types[t], m, k, repacked, i, row);
                assert_memory_equal(row, p.w + (size_t)i * p.stride, p.stride);
            }
            assert_int_equal(repacked[bytes], 0xff); /* nothing written past the end */
            free(repacked);
            free(row);
            free_problem(&p);
        }
    }
}
static void test_packing_keeps_every_bit(void **state) {
    (void)state;
    for_each_level(repacking);
}

static void preparing(const tn__cpu_kernels *table) {
    rng r = {46};
    const tn__cpu_kernels *generic = tn__cpu_kernels_at(TN__CPU_GENERIC);
    for (int form = TN__ACT_F32; form <= TN__ACT_TILES; form++) {
        for (int64_t k = 1; k < 1200; k = k * 3 + 5) {
            int64_t rows = 1 + (int64_t)rng_below(&r, 9);
            float *x = malloc((size_t)(rows * k) * sizeof *x);
            for (int64_t i = 0; i < rows * k; i++) x[i] = rng_normal(&r) * powf(10, (float)rng_below(&r, 5) - 2);
            x[rng_below(&r, (uint64_t)(rows * k))] = 0;
            size_t bytes = table->act_bytes((tn__act_form)form, rows, k);
            size_t places = form == TN__ACT_TILES ? (size_t)(rows + 15) / 16 * 16 : (size_t)rows;
            size_t used = (size_t)((k + 255) / 256) * places * tn__act_chunk_bytes((tn__act_form)form);
            assert_true(bytes >= used);
            void *a = aligned(bytes), *b = aligned(bytes);
            for (int i = 0; i < 3; i++)
                table->act_prepare((tn__act_form)form, x, (size_t)k * sizeof *x, NULL, rows, k, a, i, 3);
            generic->act_prepare((tn__act_form)form, x, (size_t)k * sizeof *x, NULL, rows, k, b, 0, 1);
            if (memcmp(a, b, used) != 0) fail_msg("%s: form %d, k = %d differs", table->name, form, (int)k);
            free(a);
            free(b);
            free(x);
        }
    }
}
static void test_every_level_prepares_the_same_activations(void **state) {
    (void)state;
    for_each_level(preparing);
}

/* ---- Rows ---- */

static double ref_exp(double x) { return exp(x); }
static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_silu(double x) { return x / (1 + exp(-x)); }
static double ref_gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * x * (1 + 0.044715 * x * x))); }
static double ref_gelu_quick(double x) { return x / (1 + exp(-1.702 * x)); }
static double ref_softplus(double x) { return x > 40 ? x : log1p(exp(x)); }
static double ref_gelu_erf(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }

/* Checks the relative error, but not relative to less than `floor`: near zero and in their tails, activation
 * functions lose precision to cancellation. */
static void check_value(const tn__cpu_kernels *table, const char *what, double x, double got, double want,
                        double floor) {
    if (isnan(want)   ? isnan(got)
        : isinf(want) ? got == want
                      : fabs(got - want) <= ROW_ULPS * 0x1p-24 * fmax(fabs(want), floor))
        return;
    fail_msg("%s %s(%.9g) = %.9g, expected %.9g", table->name, what, x, got, want);
}

static void unary_rows(const tn__cpu_kernels *table) {
    struct {
        const char *name;
        void (*row)(int64_t, const float *, float *);
        double (*reference)(double);
        double floor; /* relative to |x| when negative */
    } functions[] = {{"exp", table->exp, ref_exp, 1e-37},
                     {"tanh", table->tanh, tanh, 1e-37},
                     {"sigmoid", table->sigmoid, ref_sigmoid, 1e-30},
                     {"silu", table->silu, ref_silu, 1e-30},
                     {"gelu", table->gelu, ref_gelu, -1},
                     {"gelu_quick", table->gelu_quick, ref_gelu_quick, -1},
                     {"gelu_erf", table->gelu_erf, ref_gelu_erf, -1},
                     {"softplus", table->softplus, ref_softplus, 1e-30}};
    enum { N = 5003 };
    float *x = malloc(N * sizeof *x), *y = malloc((N + 1) * sizeof *y);
    rng r = {47};
    for (int i = 0; i < N; i++) x[i] = rng_normal(&r) * powf(10, (float)(i % 5) - 2);
    static const float special[] = {0,    -0.0f, 1,      -1,      88,       -87,       100,
                                    -104, -200,  1e-20f, -1e-20f, INFINITY, -INFINITY, NAN};
    memcpy(x, special, sizeof special);
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
        for (int64_t n = 0; n <= N; n = n < 40 ? n + 1 : n * 5 + 3) {
            y[n] = 123;
            functions[f].row(n, x, y);
            assert_true(y[n] == 123);
            for (int64_t i = 0; i < n; i++) {
                double want = functions[f].reference(x[i]), floor = functions[f].floor;
                if (isinf(x[i]) && f >= 3 && x[i] < 0) continue;                /* x·0: NaN and 0 are both correct */
                if (fabs(want) < 0x1p-120 && fabsf(y[i]) < 0x1p-119f) continue; /* may be flushed */
                if (fabs(want) >= 3.4028234e38) want = copysign(INFINITY, want);
                check_value(table, functions[f].name, x[i], y[i], want, floor < 0 ? fabs(x[i]) : floor);
            }
        }
        /* In place. */
        memcpy(y, x, N * sizeof *x);
        functions[f].row(N, y, y);
        float *z = malloc(N * sizeof *z);
        functions[f].row(N, x, z);
        assert_memory_equal(y, z, N * sizeof *x);
        free(z);
    }
    free(x);
    free(y);
}
static void test_unary_rows_agree_with_libm(void **state) {
    (void)state;
    for_each_level(unary_rows);
}

static void plain_rows(const tn__cpu_kernels *table) {
    enum { N = 1100 };
    float x[N], y[N], z[N + 1], w[N];
    rng r = {48};
    for (int i = 0; i < N; i++) {
        x[i] = rng_normal(&r);
        y[i] = rng_normal(&r) + 3;
        w[i] = rng_normal(&r);
    }
    for (int64_t n = 0; n <= N; n = n < 70 ? n + 1 : n + 343) {
        double dot = 0, sum = 0, most = -INFINITY, squares = 0, exps = 0, magnitude = 0;
        for (int64_t i = 0; i < n; i++) {
            dot += (double)x[i] * y[i];
            magnitude += fabs((double)x[i] * y[i]);
            sum += y[i];
            squares += (double)x[i] * x[i];
            most = fmax(most, x[i]);
            exps += exp((double)x[i] - 1.5);
        }
        assert_true(fabs(table->dot(n, x, y) - dot) <= 1e-6 * magnitude);
        assert_true(fabs(table->sum(n, y) - sum) <= 1e-6 * fabs(sum));
        assert_true(table->max(n, x) == (float)most);
        z[n] = 123;
        assert_true(fabs(table->exp_sum(n, 1.5f, x, z) - exps) <= 2e-6 * exps);
        for (int64_t i = 0; i < n; i++) check_value(table, "exp_sum", x[i], z[i], exp((double)x[i] - 1.5), 0);
        assert_true(z[n] == 123);
#define CHECK_EACH(call, expression)                                                                                 \
    call;                                                                                                            \
    assert_true(z[n] == 123);                                                                                        \
    for (int64_t i = 0; i < n; i++) check_value(table, #call, x[i], z[i], expression, 1)
        CHECK_EACH(table->add(n, x, y, z), (double)x[i] + y[i]);
        CHECK_EACH(table->sub(n, x, y, z), (double)x[i] - y[i]);
        CHECK_EACH(table->mul(n, x, y, z), (double)x[i] * y[i]);
        CHECK_EACH(table->div(n, x, y, z), (double)x[i] / y[i]);
        CHECK_EACH(table->scale(n, 0.7f, 0.25f, x, z), 0.7f * (double)x[i] + 0.25);
        CHECK_EACH(table->swiglu(n, x, y, z), ref_silu(x[i]) * y[i]);
        CHECK_EACH(table->geglu(n, x, y, z), ref_gelu(x[i]) * y[i]);
        memcpy(z, y, (size_t)n * sizeof *z);
        CHECK_EACH(table->mad(n, 0.3f, x, z), 0.3f * (double)x[i] + y[i]);
        double rms = 1 / sqrt(squares / (double)n + 1e-5);
        CHECK_EACH(table->rms_norm(n, x, w, 1e-5f, z), x[i] * rms * w[i]);
        CHECK_EACH(table->rms_norm(n, x, NULL, 1e-5f, z), x[i] * rms);
        double mean = sum / (double)n, variance = 0;
        for (int64_t i = 0; i < n; i++) variance += (y[i] - mean) * (y[i] - mean);
        double inverse = 1 / sqrt(variance / (double)n + 1e-5);
        if (n > 1) {
            table->norm(n, y, w, x, 1e-5f, z);
            for (int64_t i = 0; i < n; i++)
                assert_true(fabs(z[i] - ((y[i] - mean) * inverse * w[i] + x[i])) < 2e-6 * (5 + fabs(w[i]) * inverse));
        }
        if (n % 2 == 0) {
            table->rope_normal(n, x, w, y, z);
            for (int64_t i = 0; i < n / 2; i++) {
                check_value(table, "rope_normal", x[i], z[2 * i],
                            (double)x[2 * i] * w[i] - (double)x[2 * i + 1] * y[i], 3);
                check_value(table, "rope_normal", x[i], z[2 * i + 1],
                            (double)x[2 * i] * y[i] + (double)x[2 * i + 1] * w[i], 3);
            }
            table->rope_neox(n, x, w, y, z);
            for (int64_t i = 0; i < n / 2; i++) {
                check_value(table, "rope_neox", x[i], z[i], (double)x[i] * w[i] - (double)x[i + n / 2] * y[i], 3);
                check_value(table, "rope_neox", x[i], z[i + n / 2], (double)x[i] * y[i] + (double)x[i + n / 2] * w[i],
                            3);
            }
            assert_true(z[n] == 123);
        }
    }
    x[5] = NAN;
    assert_true(isnan(table->max(40, x)));
    assert_true(isnan(table->sum(40, x)));
    assert_true(isnan(table->dot(40, x, y)));
}
static void test_plain_rows_agree_with_float64(void **state) {
    (void)state;
    for_each_level(plain_rows);
}

static void conversions(const tn__cpu_kernels *table) {
    const tn__cpu_kernels *generic = tn__cpu_kernels_at(TN__CPU_GENERIC);
    rng r = {49};
    for (int t = 0; t <= TYPES; t++) {
        tn_type type = t < TYPES ? types[t] : TN_FP8;
        for (int64_t blocks = 1; blocks < 20; blocks += 3) {
            int64_t n = blocks * tn__block_of(type);
            size_t bytes = row_bytes(type, n);
            unsigned char *row = aligned(bytes), *again = aligned(bytes);
            float *a = aligned((size_t)n * sizeof *a), *b = aligned((size_t)n * sizeof *b);
            random_weights(&r, type, n, row);
            table->to_f32[type](row, a, n);
            generic->to_f32[type](row, b, n);
            for (int64_t i = 0; i < n; i++) {
                if (!(fabsf(a[i] - b[i]) <= 3e-7f * fabsf(b[i]) + 1e-7f))
                    fail_msg("%s %s to_f32: %g, expected %g", table->name, type_name(type), a[i], b[i]);
            }
            assert_int_equal(((unsigned char *)a)[(size_t)n * sizeof *a], 0xff);
            if (table->from_f32[type]) {
                if (n > 2 && (type == TN_F16 || type == TN_BF16)) {
                    b[0] = NAN;
                    b[1] = 1e30f;
                    b[2] = 1e-7f;
                }
                table->from_f32[type](b, row, n);
                generic->from_f32[type](b, again, n);
                /* The bits of a NaN may differ. */
                if ((type == TN_F16 || type == TN_BF16) && n > 2) ((uint16_t *)row)[0] = ((uint16_t *)again)[0];
                if (memcmp(row, again, bytes) != 0) fail_msg("%s %s from_f32 differs", table->name, type_name(type));
            }
            free(row);
            free(again);
            free(a);
            free(b);
        }
    }
}
/* The same bits as in plain C, and its own inverse. */
static void hadamards(const tn__cpu_kernels *table) {
    rng r = {50};
    float x[1024], y[1024], z[1024];
    for (int64_t block = 1; block <= 512; block *= 2) {
        for (int i = 0; i < 1024; i++) x[i] = rng_normal(&r);
        table->hadamard(1024, block, x, y);
        tn__hadamard(1024, block, x, z);
        assert_memory_equal(y, z, sizeof y);
        table->hadamard(1024, block, y, y); /* in place */
        for (int i = 0; i < 1024; i++) assert_true(fabsf(y[i] - x[i]) < 1e-5f);
    }
}
static void test_hadamard_is_its_own_inverse(void **state) {
    (void)state;
    for_each_level(hadamards);
}

/* Every code, NaN included, at every place of a vector. */
static void fp8_codes(const tn__cpu_kernels *table) {
    uint8_t codes[256 + 37];
    float values[256 + 37];
    for (int i = 0; i < 256 + 37; i++) codes[i] = (uint8_t)i;
    for (int first = 0; first < 37; first++) {
        table->to_f32[TN_FP8](codes + first, values, 256);
        for (int i = 0; i < 256; i++) {
            const float want = tn__fp8_to_f32(codes[first + i]);
            if (isnan(want) ? !isnan(values[i]) : values[i] != want)
                fail_msg("%s: fp8 code %d is %g, expected %g", table->name, codes[first + i], values[i], want);
        }
    }
}
static void test_every_fp8_code_is_read(void **state) {
    (void)state;
    for_each_level(fp8_codes);
}
static void test_conversions_agree_with_the_block_formats(void **state) {
    (void)state;
    for_each_level(conversions);
}

/* ---- Attention ---- */

static void test_attention_agrees_with_float64(void **state) {
    (void)state;
    for_each_level(check_attentions);
}

static void test_levels_have_names_and_complete_tables(void **state) {
    (void)state;
    const tn__cpu_kernels *best = tn__cpu_kernels_get();
    print_message("levels here:");
    for (int level = 0; level < TN__CPU_LEVELS; level++) {
        const tn__cpu_kernels *table = tn__cpu_kernels_at((tn__cpu_level)level);
        if (!table) continue;
        print_message(" %s", table->name);
        assert_int_equal(table->level, level);
        for (int t = 0; t < TYPES; t++) assert_non_null(table->to_f32[types[t]]);
    }
    print_message("; chosen %s\n", best->name);
    assert_null(tn__cpu_kernels_at(TN__CPU_LEVELS));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_have_names_and_complete_tables),
        cmocka_unit_test(test_matmul_agrees_with_float64_for_every_type),
        cmocka_unit_test(test_repeatable_matmul_does_not_depend_on_the_number_of_rows),
        cmocka_unit_test(test_matmul_in_parts_with_gather_and_scatter),
        cmocka_unit_test(test_matmul_lets_nan_and_infinity_through),
        cmocka_unit_test(test_packing_keeps_every_bit),
        cmocka_unit_test(test_every_level_prepares_the_same_activations),
        cmocka_unit_test(test_unary_rows_agree_with_libm),
        cmocka_unit_test(test_plain_rows_agree_with_float64),
        cmocka_unit_test(test_conversions_agree_with_the_block_formats),
        cmocka_unit_test(test_every_fp8_code_is_read),
        cmocka_unit_test(test_hadamard_is_its_own_inverse),
        cmocka_unit_test(test_attention_agrees_with_float64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

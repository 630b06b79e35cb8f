/* Benchmark of the CPU kernels: the machine's read bandwidth and instruction peaks, and the share of them that decode
 * (one activation row), prefill (512 rows) and attention reach.
 *
 *   build/bench/matmul [threads=N] [type=q4_K] [only=gemv|small|gemm|attention] [rows=512] [seconds=0.3] [clock=cpu]
 *   TENON_CPU=avx512 build/bench/matmul ...    the same at a lower level */
#include "machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/shared.h"
#include "base/half.h"
#include "tenon/base.h"

/* ---- Problems ---- */

static const tn__cpu_kernels *table;
static double patience = 0.3;

typedef struct problem {
    tn__matmul_job job;
    const float *x;
    void *prepared;
    char *scratch; /* of each thread */
    size_t scratch_bytes;
} problem;

static void matmul_task(void *arg, int ith, int nth) {
    problem *p = arg;
    tn__matmul_job job = p->job;
    job.scratch = p->scratch + (size_t)ith * p->scratch_bytes;
    table->matmul(&job, ith, nth);
}
static void prepare_task(void *arg, int ith, int nth) {
    problem *p = arg;
    table->act_prepare(p->job.form, p->x, (size_t)p->job.k * 4, NULL, p->job.n, p->job.k, p->prepared, ith, nth);
}

static const struct {
    tn_type type;
    const char *name;
} types[] = {{TN_F32, "f32"},     {TN_F16, "f16"},         {TN_BF16, "bf16"},     {TN_Q8_0, "q8_0"},
             {TN_Q4_0, "q4_0"},   {TN_Q4_1, "q4_1"},       {TN_Q5_0, "q5_0"},     {TN_Q5_1, "q5_1"},
             {TN_Q2_K, "q2_K"},   {TN_Q3_K, "q3_K"},       {TN_Q4_K, "q4_K"},     {TN_Q5_K, "q5_K"},
             {TN_Q6_K, "q6_K"},   {TN_IQ4_NL, "iq4_nl"},   {TN_IQ4_XS, "iq4_xs"}, {TN_MXFP4, "mxfp4"},
             {TN_TQ2_0, "tq2_0"}, {TN_IQ2_XXS, "iq2_xxs"}, {TN_IQ3_S, "iq3_s"},   {TN_IQ1_S, "iq1_s"}};
enum { TYPES = sizeof types / sizeof types[0] };

/* m rows of realistic weights: a few rows are quantized or random, then repeated. */
static unsigned char *weights_of(tn_type type, int64_t m, int64_t k, size_t *stride) {
    *stride = (size_t)(k / tn__block_of(type)) * (size_t)tn__bytes_of(type);
    unsigned char *w = pages(*stride * (size_t)m + 64);
    const tn__cpu_kernels *generic = tn__cpu_kernels_at(TN__CPU_GENERIC);
    float *row = malloc((size_t)k * sizeof *row);
    unsigned seed = 1;
    for (int64_t i = 0; i < m; i++) {
        if (i >= 16) {
            memcpy(w + (size_t)i * *stride, w + (size_t)(i % 16) * *stride, *stride);
        } else if (generic->from_f32[type]) {
            for (int64_t l = 0; l < k; l++) row[l] = (float)(int)(seed = seed * 1664525 + 1013904223) * 0x1p-31f;
            generic->from_f32[type](row, w + (size_t)i * *stride, k);
        } else {
            for (size_t l = 0; l < *stride; l++)
                w[(size_t)i * *stride + l] = (unsigned char)((seed = seed * 1664525 + 1013904223) >> 24);
            for (int64_t b = 0; b < k / 256; b++)
                memcpy(w + (size_t)i * *stride + (size_t)b * (size_t)tn__bytes_of(type), "\x00\x20", 2);
        }
    }
    free(row);
    return w;
}

/* Measures one mat-mul; returns seconds without the preparation of activations, which is in *prepare. */
static double measure(tn_type type, const void *w, size_t stride, bool repacked, int64_t m, int64_t n, int64_t k,
                      double *prepare) {
    problem p = {0};
    float *x = pages((size_t)(n * k) * 4), *out = pages((size_t)(m * n) * 4);
    for (int64_t i = 0; i < n * k; i++) x[i] = sinf((float)i);
    tn__act_form form = table->matmul_form(type, repacked, m, n, k, false);
    size_t bytes = table->act_bytes(form, n, k);
    p.x = x;
    p.prepared = pages(bytes + 64);
    p.scratch_bytes = (table->matmul_scratch(form, n, k) + 63) / 64 * 64;
    p.scratch = pages(p.scratch_bytes * (size_t)threads + 64);
    p.job = (tn__matmul_job){.type = type,
                             .repacked = repacked,
                             .form = form,
                             .m = m,
                             .n = n,
                             .k = k,
                             .w = w,
                             .w_stride = stride,
                             .x = form == TN__ACT_PLAIN ? (const void *)x : p.prepared,
                             .x_stride = (size_t)k * 4,
                             .x_rows = n,
                             .out = out,
                             .out_stride = (size_t)m * 4};
    *prepare = form == TN__ACT_PLAIN ? 0 : seconds_of(prepare_task, &p, patience / 10);
    double t = seconds_of(matmul_task, &p, patience);
    munmap(x, (size_t)(n * k) * 4);
    munmap(out, (size_t)(m * n) * 4);
    munmap(p.prepared, bytes + 64);
    munmap(p.scratch, p.scratch_bytes * (size_t)threads + 64);
    return t;
}

typedef struct repack_arg {
    tn_type type;
    int64_t m, k;
    const void *rows;
    size_t stride;
    void *repacked;
} repack_arg;
static void repack_task(void *arg, int ith, int nth) {
    repack_arg *a = arg;
    int64_t from, to;
    tn__share((a->m + 15) / 16, 1, ith, nth, &from, &to);
    table->repack(a->type, a->m, a->k, a->rows, a->stride, a->repacked, from, to - from);
}

static void bench_few(const peaks *peak, const char *only, int64_t n) {
    printf("\nweights read once, %d activation row%s, matrix of %d MB: GB/s (share of read bandwidth)\n", (int)n,
           n > 1 ? "s" : "", (int)(beyond_caches() >> 20));
    for (int t = 0; t < TYPES; t++) {
        if (only && strcmp(only, types[t].name) != 0) continue;
        int64_t k = 4096;
        size_t stride = (size_t)(k / tn__block_of(types[t].type)) * (size_t)tn__bytes_of(types[t].type);
        int64_t m = (int64_t)(beyond_caches() / stride) / 64 * 64;
        unsigned char *w = weights_of(types[t].type, m, k, &stride);
        double prepare, s = measure(types[t].type, w, stride, false, m, n, k, &prepare),
                        gb = (double)stride * (double)m * 1e-9;
        printf("  %-8s rows %6.1f GB/s %4.0f%%  (prepare %.1f us)", types[t].name, gb / s,
               100 * gb / s / peak->bandwidth, prepare * 1e6);
        if (table->can_repack(types[t].type, m, k)) {
            size_t bytes = table->repacked_bytes(types[t].type, m, k);
            void *repacked = pages(bytes + 64);
            repack_arg a = {types[t].type, m, k, w, stride, repacked};
            uint64_t start = tn_time_ns();
            run_team(repack_task, &a);
            double repack_seconds = (double)(tn_time_ns() - start) * 1e-9;
            s = measure(types[t].type, repacked, stride, true, m, n, k, &prepare);
            printf("   repacked %6.1f GB/s %4.0f%%  (repacking %.2f GB/s)", gb / s, 100 * gb / s / peak->bandwidth,
                   gb / repack_seconds);
            munmap(repacked, bytes + 64);
        }
        printf("\n");
        fflush(stdout);
        munmap(w, stride * (size_t)m + 64);
    }
}

static void bench_gemm(const peaks *peak, const char *only, int64_t n) {
    int64_t m = 4096, k = 4096;
    printf("\nGEMM %d x %d, %d activation rows: Tops (share of the peak of the instruction used), preparation "
           "included\n",
           (int)m, (int)k, (int)n);
    for (int t = 0; t < TYPES; t++) {
        if (only && strcmp(only, types[t].name) != 0) continue;
        size_t stride;
        unsigned char *w = weights_of(types[t].type, m, k, &stride);
        tn__act_form form = table->matmul_form(types[t].type, false, m, n, k, false);
        double top = form == TN__ACT_Q8                              ? peak->vnni
                     : form == TN__ACT_BF16 || form == TN__ACT_TILES ? peak->bf16
                                                                     : peak->fma;
        const char *name = form == TN__ACT_Q8                              ? "int8"
                           : form == TN__ACT_BF16 || form == TN__ACT_TILES ? "bf16"
                                                                           : "f32";
        double prepare, s = measure(types[t].type, w, stride, false, m, n, k, &prepare) + prepare,
                        ops = 2e-12 * (double)m * (double)n * (double)k;
        printf("  %-8s rows %6.3f Tops %4.0f%% of %s", types[t].name, ops / s, 100 * ops / s / top, name);
        if (table->can_repack(types[t].type, m, k)) {
            void *repacked = pages(table->repacked_bytes(types[t].type, m, k) + 64);
            repack_arg a = {types[t].type, m, k, w, stride, repacked};
            run_team(repack_task, &a);
            form = table->matmul_form(types[t].type, true, m, n, k, false);
            top = form == TN__ACT_Q8                              ? peak->vnni
                  : form == TN__ACT_BF16 || form == TN__ACT_TILES ? peak->bf16
                                                                  : peak->fma;
            s = measure(types[t].type, repacked, stride, true, m, n, k, &prepare) + prepare;
            printf("   repacked %6.3f Tops %4.0f%%", ops / s, 100 * ops / s / top);
            munmap(repacked, table->repacked_bytes(types[t].type, m, k) + 64);
        }
        printf("   (prepare %.1f%%)\n", 100 * prepare / s);
        fflush(stdout);
        munmap(w, stride * (size_t)m + 64);
    }
}

static void attention_task(void *arg, int ith, int nth) { table->attention(arg, ith, nth); }
static void combine_task(void *arg, int ith, int nth) { table->attention_combine(arg, ith, nth); }

static void bench_attention(const peaks *peak) {
    static const struct {
        const char *name;
        int tokens, cells, heads, kv_heads, head;
        bool causal;
        tn_type type;
    } cases[] = {{"prefill 2048x2048, 32 heads of 64, f16", 2048, 2048, 32, 32, 64, false, TN_F16},
                 {"the same, causal, 8 kv heads", 2048, 2048, 32, 8, 64, true, TN_F16},
                 {"the same, heads of 128", 2048, 2048, 32, 8, 128, true, TN_F16},
                 {"512 tokens on 4096 cells, causal", 512, 4096, 32, 8, 128, true, TN_F16},
                 {"decode, 8192 cells, 32 heads of 128, 8 kv heads, f16", 1, 8192, 32, 8, 128, true, TN_F16},
                 {"decode, 32768 cells, f16", 1, 32768, 32, 8, 128, true, TN_F16},
                 {"decode, 32768 cells, q8_0", 1, 32768, 32, 8, 128, true, TN_Q8_0}};
    printf("\nattention\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t head = cases[i].head, tokens = cases[i].tokens, cells = cases[i].cells, heads = cases[i].heads,
                kv = cases[i].kv_heads;
        size_t stride;
        void *k = weights_of(cases[i].type, cells * kv, head, &stride),
             *v = weights_of(cases[i].type, cells * kv, head, &stride);
        float *q = pages((size_t)(tokens * heads * head) * 4), *out = pages((size_t)(tokens * heads * head) * 4);
        for (int64_t j = 0; j < tokens * heads * head; j++) q[j] = sinf((float)j);
        tn__attention_job job = {.head_k = head,
                                 .head_v = head,
                                 .heads = heads,
                                 .kv_heads = kv,
                                 .tokens = tokens,
                                 .cells = cells,
                                 .k_type = cases[i].type,
                                 .v_type = cases[i].type,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .q_head = (size_t)head * 4,
                                 .q_token = (size_t)(head * heads) * 4,
                                 .k_head = stride,
                                 .k_cell = stride * (size_t)kv,
                                 .v_head = stride,
                                 .v_cell = stride * (size_t)kv,
                                 .out = out,
                                 .out_head = (size_t)head * 4,
                                 .out_token = (size_t)(head * heads) * 4,
                                 .params = {.scale = 0.125f, .causal = cases[i].causal}};
        size_t scratch = table->attention_scratch(&job, threads) + 64;
        job.scratch = pages(scratch);
        double s = seconds_of(attention_task, &job, patience);
        if (table->attention_splits(&job) > 1) s += seconds_of(combine_task, &job, patience / 10);
        double seen = cases[i].causal ? (double)tokens * ((double)cells - (double)tokens / 2 + 0.5)
                                      : (double)tokens * (double)cells;
        double ops = 4e-12 * seen * (double)(heads * head), gb = 2e-9 * (double)stride * (double)(kv * cells);
        printf("  %-55s %8.3f ms", cases[i].name, s * 1e3);
        if (tokens > 1 && peak->tiles_int8 > 0) /* computed in tiles */
            printf("  %6.3f Tflops, %3.0f%% of the bf16 peak, %3.0f%% of the f32 peak\n", ops / s,
                   100 * ops / s / peak->bf16, 100 * ops / s / peak->fma);
        else if (tokens > 1)
            printf("  %6.3f Tflops, %3.0f%% of the f32 peak\n", ops / s, 100 * ops / s / peak->fma);
        else
            printf("  %6.1f GB/s, %3.0f%% of read bandwidth\n", gb / s, 100 * gb / s / peak->bandwidth);
        fflush(stdout);
        munmap(k, stride * (size_t)(cells * kv) + 64);
        munmap(v, stride * (size_t)(cells * kv) + 64);
        munmap(q, (size_t)(tokens * heads * head) * 4);
        munmap(out, (size_t)(tokens * heads * head) * 4);
        munmap(job.scratch, scratch);
    }
}

int main(int argc, char **argv) {
    const char *only_type = NULL, *only = NULL;
    int64_t rows = 512;
    threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "threads=", 8) == 0)
            threads = atoi(argv[i] + 8);
        else if (strncmp(argv[i], "type=", 5) == 0)
            only_type = argv[i] + 5;
        else if (strncmp(argv[i], "only=", 5) == 0)
            only = argv[i] + 5;
        else if (strncmp(argv[i], "rows=", 5) == 0)
            rows = atoi(argv[i] + 5);
        else if (strncmp(argv[i], "seconds=", 8) == 0)
            patience = atof(argv[i] + 8);
        else if (strcmp(argv[i], "clock=cpu") == 0)
            cpu_clock = true;
        else {
            fprintf(stderr,
                    "usage: %s [threads=N] [type=NAME] [only=gemv|small|gemm|attention] [rows=512] [seconds=0.3] "
                    "[clock=cpu]\n",
                    argv[0]);
            return 2;
        }
    }
    if (threads < 1 || rows < 1) return 2;
    table = tn__cpu_kernels_get();
    if (!start_team()) return 1;
    peaks peak = measure_peaks(table);
    print_peaks(table, &peak);
    if (!only || strcmp(only, "gemv") == 0) bench_few(&peak, only_type, 1);
    if (only && strcmp(only, "small") == 0) bench_few(&peak, only_type, rows < 64 ? rows : 4);
    if (!only || strcmp(only, "gemm") == 0) bench_gemm(&peak, only_type, rows);
    if (!only || strcmp(only, "attention") == 0) bench_attention(&peak);
    return 0;
}

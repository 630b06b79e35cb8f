/* Attention over page tables: decode and prompts of one sequence, decode of many.
 *
 *   build/bench/attention [threads=2] [head=64] [heads=32] [kv=8] [page=64] [type=q8_0] [layers=8] [repeats=15]
 *                         [case=N] [order=shuffled] [latent=N]
 *
 * latent=N: values are the first N elements of the keys. "head=576 latent=512 heads=16 kv=1" is latent attention.
 *
 * The parts of all threads run one after the other, and CPU time is measured, so that other processes disturb less.
 * The figures are the part that takes longest and the sum of all parts, per layer, the least of the repeats. Together
 * the caches of the layers are larger than any CPU cache. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/shared.h"

static int64_t option(int argc, char **argv, const char *name, int64_t otherwise) {
    const size_t n = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') return atoll(argv[i] + n + 1);
    return otherwise;
}
static bool flag(int argc, char **argv, const char *text) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], text) == 0) return true;
    return false;
}
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void *filled(size_t bytes) {
    void *p = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);
    if (p) memset(p, 0, bytes);
    return p;
}

/* `tokens` queries of each of `many` sequences that then have `cells` cells each; one more sequence with `extra`. */
typedef struct bench_case {
    const char *name;
    int64_t tokens, many, cells, extra;
} bench_case;

enum { MOST_THREADS = 256, MEMORY_MIB = 768 };
typedef struct bench_options {
    int64_t head, value, heads, kv_heads, page, layers, repeats, threads;
    tn_type type;
    bool shuffled;
} bench_options;

typedef struct bench_problem {
    int64_t seqs, runs, n_pages, cells, rows, layers;
    size_t row, layer; /* bytes of a row of one head, and of the keys of a layer */
    char *k, *v;
    float *q, *out;
    int32_t *q_pos;
    tn_page_run *pages;
} bench_problem;

static uint32_t next_random(uint32_t *seed) { return *seed = *seed * 1664525 + 1013904223; }

/* A few rows of random values, repeated. */
static bool fill_rows(const bench_options *o, bench_problem *p) {
    uint32_t seed = 1;
    float *values = filled((size_t)o->head * 4);
    if (!values) return false;
    for (int64_t i = 0; i < p->rows * o->heads * o->head; i++)
        p->q[i] = (float)(int32_t)next_random(&seed) * 0x1p-31f;
    for (size_t i = 0; i < 16; i++) {
        for (int64_t d = 0; d < o->head; d++) values[d] = (float)(int32_t)next_random(&seed) * 0x1p-31f;
        tn__cpu_kernels_at(TN__CPU_GENERIC)->from_f32[o->type](values, p->k + i * p->row, o->head);
    }
    const size_t bytes = p->layer * (size_t)p->layers, repeated = 16 * p->row;
    for (size_t at = repeated; at < bytes; at += p->row) memcpy(p->k + at, p->k + at % repeated, p->row);
    memcpy(p->v, p->k, bytes);
    free(values);
    return true;
}

static bool fill_tables(const bench_options *o, const bench_case *c, bench_problem *p) {
    int32_t *order = filled((size_t)p->n_pages * sizeof *order);
    uint32_t seed = 2;
    if (!order) return false;
    for (int64_t i = 0; i < p->n_pages; i++) order[i] = (int32_t)i;
    for (int64_t i = p->n_pages - 1; o->shuffled && i > 0; i--) {
        const int64_t j = (next_random(&seed) >> 8) % (i + 1);
        const int32_t was = order[i];
        order[i] = order[j], order[j] = was;
    }
    for (int64_t s = 0, next = 0; s < p->seqs; s++) {
        const int64_t length = s < c->many ? c->cells : c->extra, n = (length + o->page - 1) / o->page;
        tn_page_run *table = p->pages + s * (1 + p->runs);
        for (int64_t t = 0; t < c->tokens; t++) {
            p->q_pos[2 * (s * c->tokens + t)] = (int32_t)(length - c->tokens + t);
            p->q_pos[2 * (s * c->tokens + t) + 1] = (int32_t)s;
        }
        table->cell = (int32_t)n;
        for (int64_t i = 0; i < n; i++, next++) {
            const int64_t left = length - i * o->page, count = left < o->page ? left : o->page;
            table[1 + i] = (tn_page_run){(int32_t)(order[next] * o->page), (int32_t)count, (int32_t)(i * o->page), 1};
        }
    }
    free(order);
    return true;
}

static bool make_problem(const bench_options *o, const bench_case *c, bench_problem *p) {
    const int64_t longest = c->extra > c->cells ? c->extra : c->cells, each = (c->cells + o->page - 1) / o->page;
    *p = (bench_problem){.seqs = c->many + (c->extra > 0), .runs = (longest + o->page - 1) / o->page};
    p->n_pages = each * c->many + (c->extra + o->page - 1) / o->page;
    p->cells = p->n_pages * o->page;
    p->rows = c->tokens * p->seqs;
    p->row = (size_t)(o->head / tn__block_of(o->type)) * (size_t)tn__bytes_of(o->type);
    p->layer = p->row * (size_t)(o->kv_heads * p->cells);
    p->layers = 2 * p->layer * (size_t)o->layers > (size_t)MEMORY_MIB << 20 ? 1 : o->layers;
    p->k = filled(p->layer * (size_t)p->layers);
    p->v = filled(p->layer * (size_t)p->layers);
    p->q = filled((size_t)(p->rows * o->heads * o->head) * 4);
    p->out = filled((size_t)(p->rows * o->heads * o->head) * 4);
    p->q_pos = filled((size_t)p->rows * 8);
    p->pages = filled((size_t)(p->seqs * (1 + p->runs)) * sizeof *p->pages);
    return p->k && p->v && p->q && p->out && p->q_pos && p->pages && fill_rows(o, p) && fill_tables(o, c, p);
}
static void free_problem(bench_problem *p) {
    free(p->k), free(p->v), free(p->q), free(p->out), free(p->q_pos), free(p->pages);
}

static tn__attention_job bench_job(const bench_options *o, const bench_problem *p) {
    const size_t head = (size_t)o->head * 4, token = head * (size_t)o->heads;
    return (tn__attention_job){.head_k = o->head,
                               .head_v = o->value,
                               .heads = o->heads,
                               .kv_heads = o->kv_heads,
                               .tokens = p->rows,
                               .cells = p->cells,
                               .k_type = o->type,
                               .v_type = o->type,
                               .q = p->q,
                               .q_head = head,
                               .q_token = token,
                               .k_head = p->row,
                               .k_cell = p->row * (size_t)o->kv_heads,
                               .v_head = p->row,
                               .v_cell = p->row * (size_t)o->kv_heads,
                               .out = p->out,
                               .out_head = head,
                               .out_token = token,
                               .paged = true,
                               .q_pos = p->q_pos,
                               .pages = p->pages,
                               .runs = p->runs,
                               .sequences = p->seqs,
                               .params = {.scale = 0.125f, .causal = 1, .page = (int32_t)o->page}};
}

/* Seconds of every thread's part, of all layers. */
static void time_parts(const tn__cpu_kernels *table, const bench_problem *p, tn__attention_job job, int nth,
                       double *seconds) {
    memset(seconds, 0, (size_t)nth * sizeof *seconds);
    for (int64_t l = 0; l < p->layers; l++) {
        job.k = p->k + p->layer * (size_t)l;
        job.v = (job.head_v < job.head_k ? p->k : p->v) + p->layer * (size_t)l;
        for (int i = 0; i < nth; i++) {
            const double begin = cpu_seconds();
            table->attention(&job, i, nth);
            seconds[i] += cpu_seconds() - begin;
        }
        for (int i = 0; i < nth && table->attention_splits(&job) > 1; i++) {
            const double begin = cpu_seconds();
            table->attention_combine(&job, i, nth);
            seconds[i] += cpu_seconds() - begin;
        }
    }
}

static bool run_case(const tn__cpu_kernels *table, const bench_options *o, const bench_case *c) {
    const int nth = (int)o->threads;
    bench_problem p;
    bool ok = make_problem(o, c, &p);
    tn__attention_job job = bench_job(o, &p);
    ok = ok && (job.scratch = filled(table->attention_scratch(&job, nth)));
    double parts[MOST_THREADS], slowest = INFINITY, all = INFINITY;
    for (int64_t i = 0; ok && i < o->repeats; i++) {
        double most = 0, sum = 0;
        time_parts(table, &p, job, nth, parts);
        for (int t = 0; t < nth; t++) most = fmax(most, parts[t]), sum += parts[t];
        slowest = fmin(slowest, most / (double)p.layers);
        all = fmin(all, sum / (double)p.layers);
    }
    if (ok)
        printf("%-26s slowest %9.1f us  sum %9.1f us\n", c->name, slowest * 1e6, all * 1e6);
    else
        fprintf(stderr, "%s: out of memory\n", c->name);
    fflush(stdout);
    free(job.scratch);
    free_problem(&p);
    return ok;
}

int main(int argc, char **argv) {
    const bench_options o = {.head = option(argc, argv, "head", 64),
                             .value = option(argc, argv, "latent", option(argc, argv, "head", 64)),
                             .heads = option(argc, argv, "heads", 32),
                             .kv_heads = option(argc, argv, "kv", 8),
                             .page = option(argc, argv, "page", 64),
                             .layers = option(argc, argv, "layers", 8),
                             .repeats = option(argc, argv, "repeats", 15),
                             .threads = option(argc, argv, "threads", 2),
                             .type = flag(argc, argv, "type=q8_0") ? TN_Q8_0 : TN_F16,
                             .shuffled = flag(argc, argv, "order=shuffled")};
    static const bench_case cases[] = {{"decode at 0", 1, 1, 1, 0},
                                       {"decode at 256", 1, 1, 256, 0},
                                       {"decode at 4096", 1, 1, 4096, 0},
                                       {"decode of 4 at 4096", 4, 1, 4096, 0},
                                       {"prompt of 512", 512, 1, 512, 0},
                                       {"prompt of 512 at 4096", 512, 1, 4608, 0},
                                       {"16 sequences of 256", 1, 16, 256, 0},
                                       {"64 sequences of 256", 1, 64, 256, 0},
                                       {"16 sequences of 4096", 1, 16, 4096, 0},
                                       {"32768 and 15 of 256", 1, 15, 256, 32768}};
    if (o.threads < 1 || o.threads > MOST_THREADS || o.page < 1 || o.head < 1 || o.kv_heads < 1 || o.value < 1 ||
        o.value > o.head || o.heads < o.kv_heads || o.heads % o.kv_heads)
        return 2;
    const int64_t only = option(argc, argv, "case", -1);
    bool ok = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && ok; i++)
        if (only < 0 || only == (int64_t)i) ok = run_case(tn__cpu_kernels_get(), &o, &cases[i]);
    return ok ? 0 : 1;
}

/* Cost of the sampler per token: bench/sampler [n_vocab [tokens]]. Prints microseconds of processor time per token
 * for several settings; other work on the machine does not count. */
#include "tenon/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t state = 1;
static double unit(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}
static float normal(void) { return (float)(sqrt(-2 * log(unit() + 0x1p-60)) * cos(6.283185307179586 * unit())); }

static double cpu_microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Rows that resemble a model's logits: a broad distribution and a few high values. Several rows, so that branch
 * predictors cannot memorise one. */
enum { ROWS = 8 };

static void measure(const char *name, tn_sampler_params p, float *rows[ROWS], size_t n, int tokens) {
    tn_sampler *s;
    p.seed = 1;
    if (tn_sampler_new(&p, n, &s) != TN_OK) {
        fprintf(stderr, "%s\n", tn_error());
        exit(1);
    }
    double *times = malloc((size_t)tokens * sizeof *times);
    for (int i = 0; times && i < tokens; i++) {
        tn_token token;
        double start = cpu_microseconds();
        if (tn_sampler_sample(s, rows[i % ROWS], n, &token) != TN_OK || tn_sampler_accept(s, token) != TN_OK) {
            fprintf(stderr, "%s\n", tn_error());
            exit(1);
        }
        times[i] = cpu_microseconds() - start;
    }
    if (times) {
        qsort(times, (size_t)tokens, sizeof *times, compare);
        printf("%-34s %8.1f median %8.1f p90 %8.1f min  us/token\n", name, times[tokens / 2], times[tokens * 9 / 10],
               times[0]);
    }
    free(times);
    tn_sampler_free(s);
}

int main(int argc, char **argv) {
    size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 128000;
    int tokens = argc > 2 ? atoi(argv[2]) : 2000;
    float *rows[ROWS];
    if (n == 0 || tokens < 1) return 2;
    for (int r = 0; r < ROWS; r++) {
        rows[r] = malloc(n * sizeof *rows[r]);
        if (!rows[r]) return 1;
        for (size_t i = 0; i < n; i++) rows[r][i] = 2.5f * normal() - 3;
        for (int k = 0; k < 20; k++) rows[r][(size_t)(unit() * (double)n)] = 8 + 5 * normal();
    }
    printf("vocabulary of %zu, %d tokens each\n", n, tokens);
    tn_sampler_params usual = tn_sampler_params_default();
    measure("default chain", usual, rows, n, tokens);
    tn_sampler_params p = usual;
    p.repeat_penalty = 1.1f;
    p.frequency_penalty = 0.1f;
    measure("default + penalties", p, rows, n, tokens);
    p.dry_multiplier = 0.8f;
    p.n_dry_breakers = 0;
    p.xtc_probability = 0.3f;
    measure("default + penalties, DRY, XTC", p, rows, n, tokens);
    p = usual;
    p.temperature = 0;
    measure("greedy", p, rows, n, tokens);
    p = usual;
    p.top_k = 0;
    measure("no top-k: top-p 0.95, min-p 0.05", p, rows, n, tokens);
    p = usual;
    p.n_chain = 0;
    p.chain[p.n_chain++] = TN_SAMPLER_MIN_P;
    p.chain[p.n_chain++] = TN_SAMPLER_TEMPERATURE;
    measure("min-p and temperature only", p, rows, n, tokens);
    p.n_chain = 0;
    p.chain[p.n_chain++] = TN_SAMPLER_TEMPERATURE;
    measure("temperature only", p, rows, n, tokens);
    p = usual;
    p.top_k = 0;
    p.typical_p = 0.9f;
    measure("typical over everything", p, rows, n, tokens);
    p = usual;
    p.mirostat = 2;
    measure("mirostat 2", p, rows, n, tokens);
    p.mirostat = 1;
    measure("mirostat 1", p, rows, n, tokens);
    for (int r = 0; r < ROWS; r++) free(rows[r]);
    return 0;
}

/* Accuracy of the KV cache's types: how far logits are from those of an f32 cache.
 *
 *   build/bench/cache_types [pairs] [seed=1] models/tales.gguf …
 *   build/bench/cache_types rows
 *
 * The model continues its first token with a fixed seed and an f32 cache; the same tokens are then scored with every
 * type, with and without rotation. `pairs`: every pair of types instead, rotated where the program does so by itself.
 * NMSE is the squared error of the logits relative to their variance, KL the mean divergence in nats of the predicted
 * tokens, top the share of positions with the same most likely token. Several models: their geometric means (top: the
 * mean). `rows`: CPU time of converting rows to and from floats, at every level of this CPU. */
#include "backend/cpu/kernels/kernels.h"
#include "tenon/llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 256, N_TYPES = 9 };
static const tn_type types[N_TYPES] = {TN_F32, TN_F16, TN_BF16, TN_FP8, TN_Q8_0, TN_Q5_1, TN_Q5_0, TN_Q4_1, TN_Q4_0};

typedef struct accuracy {
    double error, variance, divergence;
    int same, n;
} accuracy;
typedef struct figures {
    double nmse, kl, top;
    int models;
} figures;

typedef struct cache_bench {
    tn_model *model;
    int32_t n_vocab, n_tokens;
    uint64_t seed; /* of the sampled text; not 0 */
    tn_token tokens[TOKENS];
    float *expected; /* [TOKENS][n_vocab] */
    accuracy sum;
} cache_bench;

static double log_sum(const float *x, int32_t n, int32_t *at) {
    double most = x[0], sum = 0;
    *at = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > most) most = x[ *at = i];
    for (int32_t i = 0; i < n; i++) sum += exp(x[i] - most);
    return most + log(sum);
}

static bool compare_row(void *user, int32_t position, const float *logits, int32_t n) {
    cache_bench *b = user;
    const float *want = b->expected + (size_t)position * (size_t)n;
    int32_t top, wanted_top;
    const double total = log_sum(logits, n, &top), wanted = log_sum(want, n, &wanted_top);
    double mean = 0;
    for (int32_t i = 0; i < n; i++) mean += want[i] / (double)n;
    for (int32_t i = 0; i < n; i++) {
        const double p = want[i] - wanted, q = logits[i] - total;
        b->sum.error += ((double)logits[i] - want[i]) * ((double)logits[i] - want[i]);
        b->sum.variance += (want[i] - mean) * (want[i] - mean);
        b->sum.divergence += exp(p) * (p - q);
    }
    b->sum.same += top == wanted_top;
    b->sum.n++;
    return true;
}

static tn_session_params bench_params(const cache_bench *b) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = p.n_batch = p.n_ubatch = p.n_outputs = b->n_tokens;
    p.cache_k = p.cache_v = TN_F32;
    return p;
}

static bool keep_row(void *user, int32_t position, const float *logits, int32_t n) {
    const cache_bench *b = user;
    memcpy(b->expected + (size_t)position * (size_t)n, logits, (size_t)n * sizeof *logits);
    return true;
}
/* Samples the tokens, then scores them in the way that all types are scored. */
static tn_status continue_text(cache_bench *b) {
    const tn_session_params p = bench_params(b);
    tn_session *session;
    uint64_t state = 88172645463325252u * b->seed;
    TN_TRY(tn_session_open(b->model, &p, &session));
    tn_status status = TN_OK;
    b->tokens[0] = 1;
    for (int32_t i = 0; i + 1 < b->n_tokens && status == TN_OK; i++) {
        int32_t top, next = 0;
        const tn_batch batch = {.n_tokens = 1, .tokens = &b->tokens[i]};
        if ((status = tn_session_decode(session, &batch)) != TN_OK) break;
        const float *row = tn_session_logits(session, -1);
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        double left = (double)(state >> 11) / 9007199254740992.0;
        const double total = log_sum(row, b->n_vocab, &top);
        while (next < b->n_vocab - 1 && (left -= exp(row[next] - total)) > 0) next++;
        b->tokens[i + 1] = next;
    }
    tn_session_clear(session);
    if (status == TN_OK) status = tn_session_score(session, 0, b->tokens, b->n_tokens, keep_row, b);
    tn_session_free(session);
    return status;
}

/* Adds a model's figures; a type that its heads do not divide into adds nothing. */
static tn_status measure_types(cache_bench *b, tn_type k, tn_type v, tn_cache_rotation rotation, figures *f) {
    tn_session_params p = bench_params(b);
    tn_session *session;
    p.cache_k = k;
    p.cache_v = v;
    p.cache_rotation = rotation;
    tn_status status = tn_session_open(b->model, &p, &session);
    if (status == TN_E_UNSUPPORTED) return TN_OK;
    TN_TRY(status);
    b->sum = (accuracy){0};
    status = tn_session_score(session, 0, b->tokens, b->n_tokens, compare_row, b);
    tn_session_free(session);
    TN_TRY(status);
    f->nmse += log(fmax(b->sum.error / b->sum.variance, 1e-15));
    f->kl += log(fmax(b->sum.divergence / b->sum.n, 1e-15));
    f->top += 100.0 * b->sum.same / b->sum.n;
    f->models++;
    return TN_OK;
}

static tn_status open_bench(const char *path, cache_bench *b) {
    TN_TRY(tn_model_open(path, NULL, &b->model));
    const tn_model_info info = tn_model_get_info(b->model);
    b->n_vocab = info.n_vocab;
    b->n_tokens = info.n_ctx_train < TOKENS ? info.n_ctx_train : TOKENS;
    b->expected = malloc((size_t)b->n_tokens * (size_t)b->n_vocab * sizeof *b->expected);
    return b->expected ? continue_text(b) : TN_E_NOMEM;
}

/* ---- Tables ---- */

static double bits_of(tn_type type) { return 8.0 * (double)tn_type_bytes(type) / (double)tn_type_block(type); }
static double mean_of(double sum, int n) { return n ? exp(sum / n) : NAN; }

static void print_types(figures all[N_TYPES][3][2]) {
    static const char *const where[3] = {"K and V", "K", "V"};
    printf("| type | bits | of | NMSE | rotated | KL | rotated | top %% | rotated "
           "|\n|---|---|---|---|---|---|---|---|---|\n");
    for (int w = 0; w < 3; w++)
        for (int t = 1; t < N_TYPES; t++) {
            const figures *off = &all[t][w][0], *on = &all[t][w][1];
            printf("| %s | %.1f | %s | %.1e | %.1e | %.1e | %.1e | %.1f | %.1f |\n", tn_type_name(types[t]),
                   bits_of(types[t]), where[w], mean_of(off->nmse, off->models), mean_of(on->nmse, on->models),
                   mean_of(off->kl, off->models), mean_of(on->kl, on->models), off->top / off->models,
                   on->top / on->models);
        }
}
static void print_pairs(figures all[N_TYPES][N_TYPES]) {
    printf("| KL, K ↓ V → |");
    for (int v = 0; v < N_TYPES; v++) printf(" %s |", tn_type_name(types[v]));
    printf("\n|---|");
    for (int v = 0; v < N_TYPES; v++) printf("---|");
    for (int k = 0; k < N_TYPES; k++) {
        printf("\n| %s |", tn_type_name(types[k]));
        for (int v = 0; v < N_TYPES; v++) printf(" %.1e |", mean_of(all[k][v].kl, all[k][v].models));
    }
    printf("\n");
}

/* ---- Rows ---- */

enum { ROW = 4096 };
typedef struct row_bench {
    const tn__cpu_kernels *kernels;
    tn_type type;
    float x[ROW], y[ROW];
    unsigned char row[4 * ROW];
} row_bench;
/* Nanoseconds of CPU time per element, the best of seven: other work on the machine counts little. */
static double time_rows(row_bench *b, bool write, int rounds) {
    double best = INFINITY;
    for (int run = 0; run < 7; run++) {
        const clock_t began = clock();
        for (int i = 0; i < rounds; i++) {
            if (write)
                b->kernels->from_f32[b->type](b->x, b->row, ROW);
            else
                b->kernels->to_f32[b->type](b->row, b->y, ROW);
        }
        best = fmin(best, (double)(clock() - began) / CLOCKS_PER_SEC / rounds / ROW * 1e9);
    }
    return best;
}
static int measure_rows(void) {
    static row_bench b;
    for (int i = 0; i < ROW; i++) b.x[i] = (float)(i * 7919 % 1000) / 500 - 1;
    printf("| level | type | read, ns | write, ns |\n|---|---|---|---|\n");
    for (int level = 0; level < TN__CPU_LEVELS; level++) {
        if (!(b.kernels = tn__cpu_kernels_at((tn__cpu_level)level))) continue;
        for (int t = 1; t < N_TYPES; t++) {
            b.type = types[t];
            const double write = time_rows(&b, true, 300), read = time_rows(&b, false, 3000);
            printf("| %s | %s | %.3f | %.3f |\n", b.kernels->name, tn_type_name(b.type), read, write);
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    static figures by_type[N_TYPES][3][2], by_pair[N_TYPES][N_TYPES];
    const bool pairs = argc > 1 && strcmp(argv[1], "pairs") == 0;
    int first = pairs ? 2 : 1;
    uint64_t seed = 1;
    tn_status status = TN_OK;
    if (argc > 1 && strcmp(argv[1], "rows") == 0) return measure_rows();
    if (first < argc && strncmp(argv[first], "seed=", 5) == 0) seed = strtoull(argv[first++] + 5, NULL, 10);
    if (!seed) seed = 1; /* the generator's state must not be 0 */
    for (int i = first; i < argc && status == TN_OK; i++) {
        cache_bench b = {.seed = seed};
        status = open_bench(argv[i], &b);
        for (int k = 0; k < N_TYPES; k++) {
            for (int v = 0; pairs && v < N_TYPES && status == TN_OK; v++)
                status = measure_types(&b, types[k], types[v], TN_ROTATION_AUTO, &by_pair[k][v]);
            for (int w = 0; !pairs && k > 0 && w < 6 && status == TN_OK; w++)
                status = measure_types(&b, w / 2 == 2 ? TN_F32 : types[k], w / 2 == 1 ? TN_F32 : types[k],
                                       w % 2 ? TN_ROTATION_ON : TN_ROTATION_OFF, &by_type[k][w / 2][w % 2]);
        }
        free(b.expected);
        tn_model_close(b.model);
        if (status != TN_OK) fprintf(stderr, "cache_types: %s: %s\n", argv[i], tn_error());
    }
    if (status != TN_OK) return 1;
    if (pairs)
        print_pairs(by_pair);
    else
        print_types(by_type);
    return 0;
}

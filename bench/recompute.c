/* Benchmark of recomputation: bytes and time of a training step within a share of the memory that it would take.
 *
 *   build/bench/recompute [layers=8] [width=512] [tokens=256] [steps=5] [100 75 50 35]
 *
 * A llama with random weights is trained on random tokens. Fails where the losses of two budgets differ in a bit.
 * Then the same layers without gradients, as an encoder computes them: how far recomputation lowers their peak. */
#include "tenon/tenon.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VOCAB = 512, HEAD = 64, MAX_STEPS = 64 };

typedef struct recompute_bench {
    int64_t layers, width, tokens;
    int steps;
    tn_arena *arena;
    tn_tensor *ids, *positions, *labels, *hidden, *loss;
} recompute_bench;

static int complain(const char *what) {
    fprintf(stderr, "recompute: %s: %s\n", what, tn_error());
    return 1;
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static tn_tensor *bench_layer(const recompute_bench *b, tn_tensor *x) {
    tn_arena *a = b->arena;
    const int64_t w = b->width, heads = w / HEAD, ffn = w * 8 / 3 / 32 * 32;
    const tn_rope_params rope = tn_rope_params_default(HEAD, TN_ROPE_NORMAL);
    tn_tensor *n = tn_rms_norm(a, x, tn_param(a, TN_F32, w), 1e-5f);
    tn_tensor *q = tn_reshape(a, tn_mul_mat(a, tn_param(a, TN_F32, w, w), n), HEAD, heads, b->tokens);
    tn_tensor *k = tn_reshape(a, tn_mul_mat(a, tn_param(a, TN_F32, w, w), n), HEAD, heads, b->tokens);
    tn_tensor *v = tn_reshape(a, tn_mul_mat(a, tn_param(a, TN_F32, w, w), n), HEAD, heads, b->tokens);
    tn_attention_sources src = {
        .q = tn_rope(a, q, b->positions, NULL, &rope), .k = tn_rope(a, k, b->positions, NULL, &rope), .v = v};
    tn_tensor *y = tn_attention(a, &src, &(tn_attention_params){.scale = 1 / sqrtf(HEAD), .causal = 1});
    x = tn_add(a, x, tn_mul_mat(a, tn_param(a, TN_F32, w, w), tn_reshape(a, y, w, b->tokens)));
    n = tn_rms_norm(a, x, tn_param(a, TN_F32, w), 1e-5f);
    tn_tensor *gate = tn_mul_mat(a, tn_param(a, TN_F32, w, ffn), n),
              *up = tn_mul_mat(a, tn_param(a, TN_F32, w, ffn), n);
    return tn_add(a, x, tn_mul_mat(a, tn_param(a, TN_F32, ffn, w), tn_swiglu(a, gate, up)));
}

static tn_status build_llama(recompute_bench *b) {
    TN_TRY(tn_arena_new(
        &(tn_arena_params){.size = tn_arena_size_for(64 + 48 * (size_t)b->layers, 16), .no_alloc = true}, &b->arena));
    tn_arena *a = b->arena;
    b->ids = tn_input(a, TN_I32, b->tokens);
    b->positions = tn_input(a, TN_I32, b->tokens);
    b->labels = tn_input(a, TN_F32, VOCAB, b->tokens);
    tn_tensor *x = tn_get_rows(a, tn_param(a, TN_F32, b->width, VOCAB), b->ids);
    for (int64_t i = 0; i < b->layers; i++) x = bench_layer(b, x);
    b->hidden = tn_rms_norm(a, x, tn_param(a, TN_F32, b->width), 1e-5f);
    b->loss = tn_cross_entropy_loss(a, tn_mul_mat(a, tn_param(a, TN_F32, b->width, VOCAB), b->hidden), b->labels);
    return tn_arena_status(a);
}

static tn_status set_weights_and_data(const recompute_bench *b) {
    uint64_t state = 1;
    for (tn_tensor *t = tn_arena_next_tensor(b->arena, NULL); t; t = tn_arena_next_tensor(b->arena, t)) {
        if (!(t->flags & (TN_FLAG_PARAM | TN_FLAG_INPUT))) continue;
        const int64_t n = tn_nelements(t);
        float *values = tn_calloc((size_t)n, sizeof *values);
        if (!values) return TN_E_NOMEM;
        for (int64_t i = 0; i < n && t->flags & TN_FLAG_PARAM; i++)
            values[i] =
                tn_is_vector(t) ? 1 : ((float)(next_random(&state) % 2001) - 1000) / 1000 / sqrtf((float)t->ne[0]);
        for (int64_t i = 0; i < n && t->type == TN_I32; i++)
            ((int32_t *)(void *)values)[i] = t == b->ids ? (int32_t)(next_random(&state) % VOCAB) : (int32_t)i;
        for (int64_t i = 0; i < b->tokens && t == b->labels; i++)
            values[i * VOCAB + (int64_t)(next_random(&state) % VOCAB)] = 1;
        const tn_status status = tn_tensor_set(t, values);
        tn_free(values);
        TN_TRY(status);
    }
    return TN_OK;
}

/* Of this process on one thread: other work on the machine changes it little. */
static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Trains some steps on one thread; the median of their CPU seconds. */
static tn_status train_some(recompute_bench *b, size_t budget, tn_trainer_memory *memory, float *losses,
                            double *planned, double *seconds) {
    tn_trainer *trainer;
    tn_trainer_params p = tn_trainer_params_default();
    double each[MAX_STEPS];
    p.budget = budget;
    p.n_threads = 1;
    TN_TRY(build_llama(b));
    double began = cpu_seconds();
    tn_status status = tn_trainer_new(b->loss, &p, &trainer);
    *planned = cpu_seconds() - began;
    if (status == TN_OK) {
        *memory = tn_trainer_get_memory(trainer);
        status = set_weights_and_data(b);
        for (int i = 0; i < b->steps && status == TN_OK; i++) {
            began = cpu_seconds();
            status = tn_trainer_step(trainer, &losses[i]);
            each[i] = cpu_seconds() - began;
        }
        tn_trainer_free(trainer);
    }
    qsort(each, (size_t)b->steps, sizeof *each, by_size);
    *seconds = each[b->steps / 2];
    tn_arena_free(b->arena);
    return status;
}

static int bench_shares(recompute_bench *b, const int *shares, size_t n) {
    tn_trainer_memory all = {0}, memory;
    float expected[MAX_STEPS], losses[MAX_STEPS];
    double first = 0, seconds, planned;
    int wrong = 0;
    printf("| budget | bytes of the graphs | computed again | predicted | measured | planning |\n"
           "|--:|--:|--:|--:|--:|--:|\n");
    for (size_t i = 0; i <= n; i++) {
        const size_t budget = i ? all.state + all.scratch + all.compute * (size_t)shares[i - 1] / 100 : 0;
        if (i && shares[i - 1] == 100) continue;
        const tn_status status = train_some(b, budget, &memory, losses, &planned, &seconds);
        if (status == TN_E_TOO_BIG && i) {
            printf("| %d%% | %s |\n", shares[i - 1], tn_error());
            continue;
        }
        if (status != TN_OK) return complain("training");
        if (!i) {
            all = memory;
            first = seconds;
            memcpy(expected, losses, sizeof expected);
        }
        const bool same = memcmp(expected, losses, (size_t)b->steps * sizeof *losses) == 0;
        wrong |= !same;
        printf("| %d%% | %.1f MB | %zu nodes | +%.1f%% | %.3f s (%+.1f%%) | %.2f s |%s\n", i ? shares[i - 1] : 100,
               (double)memory.compute / 1e6, memory.n_recomputed, 100 * memory.added_time, seconds,
               100 * (seconds / first - 1), planned, same ? "" : " OTHER LOSSES");
        fflush(stdout);
    }
    return wrong;
}

/* The same layers without gradients. */
static int bench_encoder(recompute_bench *b) {
    static const tn_plan_memory memory = {"memory", 64, 0};
    const tn_plan_params plan = {.memories = &memory, .n_memories = 1};
    const size_t nothing = 0;
    tn_recomputation r;
    tn_graph *graph;
    tn_arena *aside = NULL;
    tn_status status = build_llama(b);
    if (status == TN_OK)
        status = tn_arena_new(
            &(tn_arena_params){.size = tn_arena_size_for(0, 64 + 48 * (size_t)b->layers), .no_alloc = true}, &aside);
    if (status == TN_OK) status = tn_graph_new(aside, 64 + 48 * (size_t)b->layers, &graph);
    if (status == TN_OK) {
        static char weight; /* weights are not planned */
        for (tn_tensor *t = tn_arena_next_tensor(b->arena, NULL); t; t = tn_arena_next_tensor(b->arena, t))
            if (t->flags & TN_FLAG_PARAM) t->data = &weight;
        status = tn_graph_add(graph, tn_output(b->hidden));
    }
    if (status == TN_OK)
        status = tn_graph_recompute(graph, &(tn_recompute_params){.plan = &plan, .budgets = &nothing}, &r);
    const bool told = status == TN_E_TOO_BIG;
    if (told)
        printf("encoder: %zu nodes, %.1f MB, at least %.1f MB with recomputation\n", tn_graph_node_count(graph),
               (double)r.before / 1e6, (double)r.smallest / 1e6);
    tn_arena_free(aside);
    tn_arena_free(b->arena);
    return told ? 0 : complain("encoder");
}

int main(int argc, char **argv) {
    recompute_bench b = {.layers = 8, .width = 512, .tokens = 256, .steps = 5};
    int shares[16] = {75, 50, 35};
    size_t n = 0;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "layers=", 7) == 0)
            b.layers = atoi(argv[i] + 7);
        else if (strncmp(argv[i], "width=", 6) == 0)
            b.width = atoi(argv[i] + 6);
        else if (strncmp(argv[i], "tokens=", 7) == 0)
            b.tokens = atoi(argv[i] + 7);
        else if (strncmp(argv[i], "steps=", 6) == 0)
            b.steps = atoi(argv[i] + 6);
        else if (n < 16)
            shares[n++] = atoi(argv[i]);
    if (!n) n = 3;
    if (b.layers < 1 || b.width < HEAD || b.width % HEAD || b.tokens < 2 || b.steps < 1 || b.steps > MAX_STEPS) {
        fprintf(stderr, "usage: recompute [layers=8] [width=512] [tokens=256] [steps=5] [75 50 35]\n");
        return 2;
    }
    const int wrong = bench_shares(&b, shares, n);
    return bench_encoder(&b) | wrong;
}

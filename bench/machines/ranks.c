/* machines/ranks MODEL [RANKS] [DEVICE] [row|layer] [TRANSPORT] [f32] [repeatable]: logits of several ranks against
 * those of one, on a device that they share. Transports are shm (default) and nccl:shm; f32 is the type of the cache
 * (default f16). Repeatable sessions compute single tokens with the kernels of prompts, alike in one rank and in
 * several. Prints the normalized mean square error of a prompt's and of single tokens' logits, and the times.
 * Processes are started for every rank, as tenon does with --ranks. */
#include "tenon/llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 64, STEPS = 8, OUTPUTS = PROMPT + STEPS, VOCAB_MOST = 300000 };

typedef struct shared_run {
    tn_status status;
    char error[512];
    int32_t n_vocab;
    double prompt, step, load; /* seconds */
    float logits[];            /* OUTPUTS rows */
} shared_run;

typedef struct rank_options {
    const char *path, *device;
    int n_ranks;
    bool by_layers;
    bool f32_cache, repeatable;
    const char *transport; /* "shm" or "nccl:shm" */
} rank_options;

static double seconds_since(uint64_t begin) { return (double)(tn_time_ns() - begin) * 1e-9; }

static tn_status lead(tn_session *s, shared_run *out) {
    tn_token tokens[PROMPT];
    bool wanted[PROMPT];
    const int32_t n = out->n_vocab;
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = (i * 7919 + 101) % n;
        wanted[i] = true;
    }
    uint64_t begin = tn_time_ns();
    TN_TRY(tn_session_decode(s, &(tn_batch){.n_tokens = PROMPT, .tokens = tokens, .outputs = wanted}));
    for (int i = 0; i < PROMPT; i++)
        memcpy(out->logits + (size_t)i * (size_t)n, tn_session_logits(s, i), (size_t)n * sizeof(float));
    out->prompt = seconds_since(begin);
    begin = tn_time_ns();
    for (int i = 0; i < STEPS; i++) {
        const tn_token token = (i * 104729 + 17) % n;
        TN_TRY(tn_session_decode(s, &(tn_batch){.n_tokens = 1, .tokens = &token}));
        memcpy(out->logits + (size_t)(PROMPT + i) * (size_t)n, tn_session_logits(s, 0), (size_t)n * sizeof(float));
    }
    out->step = seconds_since(begin) / STEPS;
    return TN_OK;
}

static tn_status run_rank(const rank_options *o, int fd, int rank, shared_run *out) {
    tn_net *net = NULL;
    tn_model *model = NULL;
    tn_session *session = NULL;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 256;
    p.n_batch = p.n_ubatch = PROMPT;
    p.n_outputs = PROMPT;
    p.n_seqs = 1;
    if (o->f32_cache) p.cache_k = p.cache_v = TN_F32;
    p.repeatable = o->repeatable;
    p.n_gpu_layers = INT32_MAX;
    p.devices[0] = o->device;
    if (strcmp(o->device, "cpu") != 0) p.devices[1] = "cpu";
    char spec[64];
    snprintf(spec, sizeof spec, "%s:%d", o->transport, fd);
    const tn_net_params params = {
        .rank = rank, .n_ranks = o->n_ranks, .timeout_ms = 120000, .message_bytes = 1 << 22};
    const uint64_t begin = tn_time_ns();
    tn_status status = o->n_ranks > 1 ? tn_net_open(spec, &params, &net) : TN_OK;
    if (status == TN_OK)
        status = tn_model_open(o->path, &(tn_model_params){.net = net, .by_layers = o->by_layers}, &model);
    if (status == TN_OK) status = tn_session_open(model, &p, &session);
    if (status == TN_OK) {
        out->load = seconds_since(begin);
        out->n_vocab = tn_model_get_info(model).n_vocab;
        if (out->n_vocab > VOCAB_MOST) status = tn_fail(TN_E_LIMIT, "the vocabulary has %d entries", out->n_vocab);
    }
    if (status == TN_OK) status = rank == 0 ? lead(session, out) : tn_session_follow(session);
    if (status != TN_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, tn_error());
        snprintf(out->error, sizeof out->error, "%s", tn_error());
        if (net) tn_net_abort(net, status, out->error);
    }
    tn_session_free(session);
    tn_model_close(model);
    tn_net_free(net);
    return status;
}

/* Runs all ranks in children; the results of rank 0 are in `out`. */
static bool run_ranks(const rank_options *o, shared_run *out) {
    int fd = -1, code;
    bool good = true;
    if (o->n_ranks > 1 &&
        tn_net_shm_new(&(tn_net_params){.n_ranks = o->n_ranks, .message_bytes = 1 << 22}, &fd) != TN_OK) {
        fprintf(stderr, "%s\n", tn_error());
        return false;
    }
    for (int r = 0; r < o->n_ranks; r++)
        if (fork() == 0) {
            shared_run *own = r ? calloc(1, sizeof *own) : out;
            exit(own && run_rank(o, fd, r, own) == TN_OK ? 0 : 1);
        }
    while (wait(&code) > 0) good = good && WIFEXITED(code) && WEXITSTATUS(code) == 0;
    if (fd >= 0) close(fd);
    return good;
}

static double nmse_of(const float *got, const float *want, size_t n) {
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        power += (double)want[i] * want[i];
    }
    return error / power;
}

static int count_same_argmax(const float *a, const float *b, int rows, size_t n) {
    int same = 0;
    for (int r = 0; r < rows; r++, a += n, b += n) {
        size_t x = 0, y = 0;
        for (size_t i = 1; i < n; i++) {
            if (a[i] > a[x]) x = i;
            if (b[i] > b[y]) y = i;
        }
        same += x == y;
    }
    return same;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: ranks MODEL [RANKS] [DEVICE] [row|layer] [shm|nccl:shm] [f32] [repeatable]\n");
        return 2;
    }
    rank_options o = {.path = argv[1],
                      .n_ranks = 1,
                      .device = argc > 3 ? argv[3] : "cpu",
                      .by_layers = argc > 4 && strcmp(argv[4], "layer") == 0,
                      .transport = argc > 5 ? argv[5] : "shm"};
    for (int i = 6; i < argc; i++) {
        o.f32_cache = o.f32_cache || strcmp(argv[i], "f32") == 0;
        o.repeatable = o.repeatable || strcmp(argv[i], "repeatable") == 0;
    }
    const size_t bytes = sizeof(shared_run) + (size_t)OUTPUTS * VOCAB_MOST * sizeof(float);
    shared_run *one = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_run *many = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (one == MAP_FAILED || many == MAP_FAILED || !run_ranks(&o, one)) return 1;
    o.n_ranks = argc > 2 ? atoi(argv[2]) : 2;
    if (!run_ranks(&o, many)) return 1;
    const size_t n = (size_t)one->n_vocab, prompt = PROMPT * n;
    printf("%s, %s, %s: 1 and %d ranks\n", o.device, o.transport, o.by_layers ? "layers" : "rows", o.n_ranks);
    printf("load %.1f and %.1f s, prompt of %d tokens %.1f and %.1f ms, a token %.2f and %.2f ms\n", one->load,
           many->load, PROMPT, one->prompt * 1e3, many->prompt * 1e3, one->step * 1e3, many->step * 1e3);
    printf("NMSE of the prompt %.3g, of single tokens %.3g; same argmax in %d of %d rows\n",
           nmse_of(many->logits, one->logits, prompt),
           nmse_of(many->logits + prompt, one->logits + prompt, STEPS * n),
           count_same_argmax(many->logits, one->logits, OUTPUTS, n), OUTPUTS);
    return 0;
}

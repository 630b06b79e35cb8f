/* What repeatable sessions cost on the CPU: decode with 1 and 32 sequences and prefill, with and without, in turns so
 * that other work on the machine disturbs both alike. Prints medians and their ratio.
 *
 *   build/bin/tenon synth /tmp/1b.gguf --shape 1b --type Q4_K_M
 *   build/bench/repeatable /tmp/1b.gguf [threads=2] [prompt=512] [depth=128] [steps=8] [repeat=9] [seqs=32] */
#include "tenon/llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODES = 2, MOST_REPEATS = 99, MOST_SEQS = 256 };

typedef struct repeatable_bench {
    int threads, prompt, depth, steps, repeat, seqs;
    tn_model *model[MODES]; /* each with weights in the layout that it prefers */
    tn_session *session[MODES];
    int n_vocab;
} repeatable_bench;

static tn_token token_at(const repeatable_bench *b, int i) {
    return (tn_token)((unsigned)i * 7919u % (unsigned)b->n_vocab);
}

static tn_status open_mode(repeatable_bench *b, const char *path, int mode) {
    tn_session_params p = tn_session_params_default();
    p.devices[0] = "cpu";
    p.n_threads = b->threads;
    p.n_seqs = b->seqs;
    p.n_ctx = b->prompt + b->seqs * (b->depth + (1 + b->repeat) * b->steps + 64);
    p.n_batch = p.n_ubatch = 512;
    p.repeatable = mode == 1;
    TN_TRY(tn_model_open(path, NULL, &b->model[mode]));
    b->n_vocab = tn_model_get_info(b->model[mode]).n_vocab;
    return tn_session_open(b->model[mode], &p, &b->session[mode]);
}

static tn_status feed(const repeatable_bench *b, tn_session *s, int32_t seq, int n) {
    tn_token tokens[512];
    int32_t seqs[512];
    for (int done = 0; done < n;) {
        const int part = n - done < 512 ? n - done : 512;
        for (int i = 0; i < part; i++) tokens[i] = token_at(b, done + i + 31 * seq), seqs[i] = seq;
        TN_TRY(tn_session_decode(s, &(tn_batch){.n_tokens = part, .tokens = tokens, .seqs = seqs}));
        done += part;
    }
    return TN_OK;
}
static tn_status prefill(const repeatable_bench *b, tn_session *s, int seqs) {
    (void)seqs;
    TN_TRY(tn_session_seq_remove(s, 0, 0, -1));
    return feed(b, s, 0, b->prompt);
}
/* A token of each sequence, several times. */
static tn_status decode(const repeatable_bench *b, tn_session *s, int n) {
    tn_token tokens[MOST_SEQS];
    int32_t seqs[MOST_SEQS];
    for (int step = 0; step < b->steps; step++) {
        for (int i = 0; i < n; i++) tokens[i] = token_at(b, 101 * i + step), seqs[i] = i;
        TN_TRY(tn_session_decode(s, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs}));
    }
    return TN_OK;
}
static tn_status begin_decode(const repeatable_bench *b, tn_session *s, int n) {
    tn_session_clear(s);
    for (int32_t seq = 0; seq < n; seq++) TN_TRY(feed(b, s, seq, b->depth));
    return decode(b, s, n);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static tn_status compare(const repeatable_bench *b, const char *what, int seqs, int tokens,
                         tn_status (*run)(const repeatable_bench *b, tn_session *s, int seqs)) {
    double times[MODES][MOST_REPEATS], ratios[MOST_REPEATS];
    for (int mode = 0; mode < MODES; mode++) TN_TRY(begin_decode(b, b->session[mode], seqs));
    for (int i = 0; i < b->repeat; i++) {
        for (int k = 0; k < MODES; k++) {
            const int mode = (i + k) % MODES; /* each is first every other time */
            const uint64_t begin = tn_time_ns();
            TN_TRY(run(b, b->session[mode], seqs));
            times[mode][i] = (double)(tn_time_ns() - begin) / 1e9;
        }
        ratios[i] = times[1][i] / times[0][i];
    }
    qsort(times[0], (size_t)b->repeat, sizeof(double), ascending);
    qsort(times[1], (size_t)b->repeat, sizeof(double), ascending);
    qsort(ratios, (size_t)b->repeat, sizeof(double), ascending);
    printf("%-14s %8.1f t/s   repeatable %8.1f t/s   time ×%.3f (ratios %.3f … %.3f; fastest ×%.3f)\n", what,
           tokens / times[0][b->repeat / 2], tokens / times[1][b->repeat / 2], ratios[b->repeat / 2], ratios[0],
           ratios[b->repeat - 1], times[1][0] / times[0][0]);
    fflush(stdout);
    return TN_OK;
}

static tn_status measure_all(repeatable_bench *b, const char *path) {
    char many[32];
    snprintf(many, sizeof many, "decode %d", b->seqs);
    for (int mode = 0; mode < MODES; mode++) TN_TRY(open_mode(b, path, mode));
    TN_TRY(compare(b, "decode 1", 1, b->steps, decode));
    TN_TRY(compare(b, many, b->seqs, b->seqs * b->steps, decode));
    return compare(b, "prefill", 1, b->prompt, prefill);
}

int main(int argc, char **argv) {
    repeatable_bench b = {.threads = 2, .prompt = 512, .depth = 128, .steps = 8, .repeat = 9, .seqs = 32};
    const struct {
        const char *name;
        int *to, least, most;
    } settings[] = {{"threads=", &b.threads, 1, 1024},       {"prompt=", &b.prompt, 1, 1 << 20},
                    {"depth=", &b.depth, 1, 1 << 20},        {"steps=", &b.steps, 1, 1000},
                    {"repeat=", &b.repeat, 1, MOST_REPEATS}, {"seqs=", &b.seqs, 1, MOST_SEQS}};
    if (argc < 2) {
        fprintf(stderr, "usage: repeatable MODEL [threads=N] [prompt=N] [depth=N] [steps=N] [repeat=N] [seqs=N]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
            const size_t length = strlen(settings[k].name);
            if (strncmp(argv[i], settings[k].name, length) != 0) continue;
            const int value = atoi(argv[i] + length);
            *settings[k].to = value < settings[k].least  ? settings[k].least
                              : value > settings[k].most ? settings[k].most
                                                         : value;
        }
    }
    const tn_status status = measure_all(&b, argv[1]);
    if (status != TN_OK) fprintf(stderr, "repeatable: %s\n", tn_error());
    for (int mode = 0; mode < MODES; mode++) {
        tn_session_free(b.session[mode]);
        tn_model_close(b.model[mode]);
    }
    return status != TN_OK;
}

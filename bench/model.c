/* Benchmark of whole models on the CPU: tokens per second of prefill and decode, and their share of the machine's
 * measured read bandwidth and arithmetic peak.
 *
 *   build/bin/tenon synth /tmp/1b.gguf --shape 1b --type q4_0
 *   build/bench/model /tmp/1b.gguf [threads=N] [prompt=512] [depth=0] [generate=64] [repeat=3] [pack=1] [map=1] */
#include "machine.h"

#include "tenon/cpu.h"
#include "tenon/llm.h"

#include <string.h>
#include <unistd.h>

typedef struct settings {
    const char *path;
    int prompt, depth, generate, repeat, pack, map;
} settings;

static int complain(const char *what) {
    fprintf(stderr, "model: %s: %s\n", what, tn_error());
    return 1;
}

/* Random tokens: their values do not affect the speed. */
static tn_token token_at(const tn_model_info *info, int i) {
    return (tn_token)((unsigned)i * 7919u % (unsigned)info->n_vocab);
}

static tn_status feed(tn_session *session, const tn_model_info *info, int n) {
    enum { MOST = 2048 };
    tn_token tokens[MOST];
    for (int done = 0; done < n;) {
        int part = n - done < MOST ? n - done : MOST;
        for (int i = 0; i < part; i++) tokens[i] = token_at(info, done + i);
        TN_TRY(tn_session_decode(session, &(tn_batch){.n_tokens = part, .tokens = tokens}));
        done += part;
    }
    return TN_OK;
}

/* Bytes of weights read per token: all matrices but the embedding table, of which one row is read, and only the
 * experts in use. */
static double weights_per_token(const tn_model *model, const tn_model_info *info) {
    const tn_gguf *file = tn_model_file(model);
    double bytes = 0, table = 0;
    bool output = false;
    for (size_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        if (strcmp(t->name, "token_embd.weight") == 0) {
            table = (double)t->size;
            continue;
        }
        output = output || strcmp(t->name, "output.weight") == 0;
        double share = strstr(t->name, "_exps.") && info->n_expert ? (double)info->n_expert_used / info->n_expert : 1;
        bytes += (double)t->size * share;
    }
    return output ? bytes : bytes + table; /* a tied table is also the output matrix */
}

static int measure(const settings *s, const peaks *peak) {
    tn_model *model;
    tn_session *session;
    if (tn_model_open(s->path, &(tn_model_params){.no_mmap = !s->map}, &model) != TN_OK) return complain(s->path);
    tn_model_info info = tn_model_get_info(model);
    tn_session_params p = tn_session_params_default();
    p.n_threads = threads;
    p.n_ctx = s->depth + s->prompt + s->generate + 8;
    p.devices[0] = "cpu";
    p.no_repack = !s->pack;
    uint64_t start = tn_time_ns();
    if (tn_session_open(model, &p, &session) != TN_OK) return complain("session");
    double load = (double)(tn_time_ns() - start) * 1e-9, reads = weights_per_token(model, &info);
    printf("%s: %s, %.2f G parameters, %.2f GB; %.2f GB of weights per token; loaded in %.2f s\n", s->path,
           info.architecture, (double)info.n_params * 1e-9, (double)info.bytes * 1e-9, reads * 1e-9, load);
    double best_prompt = 0, best_generate = 0;
    for (int r = 0; r < s->repeat; r++) {
        tn_session_clear(session);
        if (feed(session, &info, s->depth) != TN_OK) return complain("depth");
        start = tn_time_ns();
        if (feed(session, &info, s->prompt) != TN_OK) return complain("prompt");
        double t = (double)(tn_time_ns() - start) * 1e-9;
        if (s->prompt && s->prompt / t > best_prompt) best_prompt = s->prompt / t;
        start = tn_time_ns();
        for (int i = 0; i < s->generate; i++)
            if (feed(session, &info, 1) != TN_OK) return complain("generate");
        t = (double)(tn_time_ns() - start) * 1e-9;
        if (s->generate && s->generate / t > best_generate) best_generate = s->generate / t;
    }
    /* Two operations per weight and token, without attention. */
    double weights = (double)info.n_params * reads / (double)info.bytes, tops = 2e-12 * weights * best_prompt;
    printf("prompt   %5d tokens: %9.2f tokens/s  %7.3f Tops in the weights, %3.0f%% of int8, %3.0f%% of f32\n",
           s->prompt, best_prompt, tops, peak->vnni > 0 ? 100 * tops / peak->vnni : 0,
           peak->fma > 0 ? 100 * tops / peak->fma : 0);
    printf("generate %5d tokens: %9.2f tokens/s  %7.1f GB/s of weights, %3.0f%% of read bandwidth\n", s->generate,
           best_generate, reads * best_generate * 1e-9, 100 * reads * best_generate * 1e-9 / peak->bandwidth);
    tn_session_free(session);
    tn_model_close(model);
    return 0;
}

int main(int argc, char **argv) {
    settings s = {.prompt = 512, .generate = 64, .repeat = 3, .pack = 1, .map = 1};
    threads = tn_cpu_count();
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "threads=%d", &threads) == 1 || sscanf(argv[i], "prompt=%d", &s.prompt) == 1 ||
            sscanf(argv[i], "depth=%d", &s.depth) == 1 || sscanf(argv[i], "generate=%d", &s.generate) == 1 ||
            sscanf(argv[i], "repeat=%d", &s.repeat) == 1 || sscanf(argv[i], "pack=%d", &s.pack) == 1 ||
            sscanf(argv[i], "map=%d", &s.map) == 1)
            continue;
        if (s.path || strchr(argv[i], '=')) threads = 0;
        s.path = argv[i];
    }
    if (!s.path || threads < 1 || s.prompt < 0 || s.depth < 0 || s.generate < 0 || s.repeat < 1) {
        fprintf(stderr,
                "usage: %s MODEL [threads=N] [prompt=512] [depth=0] [generate=64] [repeat=3] [pack=1] [map=1]\n",
                argv[0]);
        return 2;
    }
    if (!start_team()) return 1;
    const tn__cpu_kernels *table = tn__cpu_kernels_get();
    peaks peak = measure_peaks(table);
    print_peaks(table, &peak);
    return measure(&s, &peak);
}

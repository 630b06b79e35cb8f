/* peer_logits FOLDER MODEL.gguf OUT.logits SEED: logits of llama.cpp, whose shared objects are in FOLDER, for 24
 * tokens at once and then eight single ones, drawn from SEED: one thread, a KV cache of f32, no flash attention. The
 * parameter structures change between versions: they are taken as numbers, and those that this program changes must
 * have known defaults. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings { /* larger than any parameter structure; also passed and returned in memory */
    union {
        uint32_t number[128];
        void *align;
    };
} settings;
typedef struct batch {
    int32_t n_tokens;
    int32_t *tokens;
    float *embeddings;
    int32_t *positions, *n_sequences, **sequences;
    int8_t *logits;
} batch;

/* Places of settings in the context's parameters. */
enum { CONTEXT, BATCH, UBATCH, SEQUENCES, THREADS = 7, FLASH = 13, CACHE_K = 26, CACHE_V };
enum { TOKENS = 32, FIRST = 24 };

static struct peer {
    void (*log_set)(void (*sink)(int level, const char *text, void *user), void *user);
    void (*backend_init)(void);
    settings (*model_default_params)(void);
    void *(*model_load_from_file)(const char *path, settings params);
    const void *(*model_get_vocab)(const void *model);
    int32_t (*vocab_n_tokens)(const void *vocab);
    settings (*context_default_params)(void);
    void *(*init_from_model)(void *model, settings params);
    int32_t (*decode)(void *context, batch b);
    float *(*get_logits_ith)(void *context, int32_t i);
} peer;

static void show_errors(int level, const char *text, void *user) {
    (void)user;
    if (level == 4) fputs(text, stderr);
}

static void *open_object(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

static int open_peer(const char *folder) {
    static const char *const names[] = {"libggml-base.so", "libggml.v0.5.0.so", "libllama.v0.5.0.so"};
    void *object = NULL;
    for (int i = 0; i < 3; i++) {
        object = open_object(folder, names[i]);
        if (!object) return fprintf(stderr, "%s\n", dlerror()), 2;
        void (*load)(const char *) =
            i == 1 ? (void (*)(const char *))dlsym(object, "ggml_backend_load_all_from_path") : NULL;
        if (load) load(folder);
    }
#define FIND(name)                                                                                                   \
    *(void **)&peer.name = dlsym(object, "llama_" #name);                                                            \
    if (!peer.name) return fprintf(stderr, "no llama_" #name "\n"), 2
    FIND(log_set);
    FIND(backend_init);
    FIND(model_default_params);
    FIND(model_load_from_file);
    FIND(model_get_vocab);
    FIND(vocab_n_tokens);
    FIND(context_default_params);
    FIND(init_from_model);
    FIND(decode);
    FIND(get_logits_ith);
    return 0;
}

static int write_logits(void *model, const char *path, uint32_t seed) {
    settings s = peer.context_default_params();
    if (s.number[THREADS] != s.number[THREADS + 1] || s.number[FLASH] != UINT32_MAX || s.number[CACHE_K] != 1 ||
        s.number[CACHE_V] != 1)
        return fprintf(stderr, "the parameters of this version are not known\n"), 2;
    s.number[CONTEXT] = 256, s.number[BATCH] = s.number[UBATCH] = 64, s.number[SEQUENCES] = 1;
    s.number[THREADS] = s.number[THREADS + 1] = 1;
    s.number[FLASH] = s.number[CACHE_K] = s.number[CACHE_V] = 0;
    void *context = peer.init_from_model(model, s);
    if (!context) return fprintf(stderr, "no context\n"), 3;
    const int32_t n_vocab = peer.vocab_n_tokens(peer.model_get_vocab(model));
    int32_t tokens[TOKENS], positions[TOKENS], counts[TOKENS], zero = 0, *sequences[TOKENS];
    int8_t outputs[TOKENS];
    uint32_t r = seed * 2654435761u + 12345;
    for (int i = 0; i < TOKENS; i++) {
        r = r * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((r >> 8) % (uint32_t)n_vocab);
        positions[i] = i, counts[i] = 1, sequences[i] = &zero, outputs[i] = 1;
    }
    FILE *out = fopen(path, "wb");
    if (!out) return perror(path), 2;
    const int32_t head[2] = {TOKENS, n_vocab};
    fwrite(head, sizeof head, 1, out);
    fwrite(tokens, sizeof tokens, 1, out);
    for (int begin = 0, n; begin < TOKENS; begin += n) {
        n = begin ? 1 : FIRST;
        const batch b = {
            n, tokens + begin, NULL, positions + begin, counts + begin, sequences + begin, outputs + begin};
        if (peer.decode(context, b) != 0) return fprintf(stderr, "decode failed\n"), 3;
        for (int i = 0; i < n; i++) fwrite(peer.get_logits_ith(context, i), sizeof(float), (size_t)n_vocab, out);
    }
    return fclose(out) == 0 ? 0 : 2;
}

int main(int count, char **arguments) {
    if (count != 5) return fprintf(stderr, "usage: peer_logits FOLDER MODEL.gguf OUT.logits SEED\n"), 2;
    const int status = open_peer(arguments[1]);
    if (status) return status;
    peer.log_set(show_errors, NULL);
    peer.backend_init();
    void *model = peer.model_load_from_file(arguments[2], peer.model_default_params());
    if (!model) return fprintf(stderr, "the model was not loaded\n"), 3;
    return write_logits(model, arguments[3], (uint32_t)strtoul(arguments[4], NULL, 10));
}

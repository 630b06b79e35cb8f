/* The engine llama.cpp of the npm package node-llama-cpp: its shared objects are loaded from a folder and used
 * through their C interface, with default settings. Only the parts of the interface that this file needs are declared
 * here. The parameter structures change between versions: they are opaque blocks that the library fills with its
 * defaults. Only the leading numbers are changed, and the values that the library reports are compared with the
 * requested ones. */
#include "engine.h"

#include <dlfcn.h>

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

static struct api {
    void (*log_set)(void (*sink)(int level, const char *text, void *user), void *user);
    void (*backend_init)(void);
    const char *(*version)(void);
    settings (*model_default_params)(void);
    void *(*model_load_from_file)(const char *path, settings params);
    void (*model_free)(void *model);
    const void *(*model_get_vocab)(const void *model);
    int32_t (*vocab_n_tokens)(const void *vocab);
    settings (*context_default_params)(void);
    void *(*init_from_model)(void *model, settings params);
    void (*free)(void *context);
    void (*set_n_threads)(void *context, int32_t decode, int32_t batch);
    uint32_t (*n_ctx)(const void *context);
    uint32_t (*n_batch)(const void *context);
    uint32_t (*n_ubatch)(const void *context);
    uint32_t (*n_seq_max)(const void *context);
    void *(*get_memory)(const void *context);
    int32_t (*memory_seq_pos_max)(void *memory, int32_t seq);
    bool (*memory_seq_rm)(void *memory, int32_t seq, int32_t from, int32_t to);
    void (*memory_seq_cp)(void *memory, int32_t from, int32_t to, int32_t first, int32_t end);
    batch (*batch_get_one)(int32_t *tokens, int32_t n);
    int32_t (*decode)(void *context, batch b);
    float *(*get_logits_ith)(void *context, int32_t i);
    int32_t (*tokenize)(const void *vocab, const char *text, int32_t size, int32_t *tokens, int32_t most,
                        bool add_special, bool parse_special);
    settings (*model_quantize_default_params)(void);
    uint32_t (*model_quantize)(const char *from, const char *to, const settings *params);
} llama;

static const struct symbol {
    const char *name;
    size_t offset;
} symbols[] = {
#define SYMBOL(name)                                                                                                 \
    { "llama_" #name, offsetof(struct api, name) }
    SYMBOL(log_set),
    SYMBOL(backend_init),
    SYMBOL(version),
    SYMBOL(model_default_params),
    SYMBOL(model_load_from_file),
    SYMBOL(model_free),
    SYMBOL(model_get_vocab),
    SYMBOL(vocab_n_tokens),
    SYMBOL(context_default_params),
    SYMBOL(init_from_model),
    SYMBOL(free),
    SYMBOL(set_n_threads),
    SYMBOL(n_ctx),
    SYMBOL(n_batch),
    SYMBOL(n_ubatch),
    SYMBOL(n_seq_max),
    SYMBOL(get_memory),
    SYMBOL(memory_seq_pos_max),
    SYMBOL(memory_seq_rm),
    SYMBOL(memory_seq_cp),
    SYMBOL(batch_get_one),
    SYMBOL(decode),
    SYMBOL(get_logits_ith),
    SYMBOL(tokenize),
    SYMBOL(model_quantize_default_params),
    SYMBOL(model_quantize),
};

static void *model, *context;
static double compute_bytes, cache_bytes;
static char cpu_variant[64] = "unknown";
static FILE *log_file;

/* Sizes and the choice of kernels are reported in the log only. */
static void listen(int level, const char *text, void *user) {
    (void)level, (void)user;
    const char *at, *sign = strchr(text, '=');
    if (log_file) fputs(text, log_file);
    if ((at = strstr(text, "libggml-cpu-")) && strstr(text, "loaded")) sscanf(at + 12, "%63[a-z0-9_]", cpu_variant);
    if (!sign) return;
    if (strstr(text, "compute buffer size")) compute_bytes += strtod(sign + 1, NULL) * 1048576;
    if (strstr(text, "KV buffer size")) cache_bytes += strtod(sign + 1, NULL) * 1048576;
}

/* The file in the folder whose name starts with `stem` and ends in .so; versions are part of the names. */
static void *open_library(const char *folder, const char *stem) {
    char command[1200], path[1024] = "";
    snprintf(command, sizeof command, "ls '%s'/%s.so '%s'/%s.v*.so 2>/dev/null", folder, stem, folder, stem);
    FILE *list = popen(command, "r");
    if (list && fscanf(list, "%1023s", path) != 1) path[0] = '\0';
    if (list) pclose(list);
    return path[0] ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
}

const char *engine_start(const char *folder, char *name, char *version, char *variant, size_t room) {
    if (!folder) return "the folder of the shared objects is missing";
    if (getenv("PEER_LOG")) log_file = fopen(getenv("PEER_LOG"), "a");
    void *ggml = open_library(folder, "libggml"), *library = open_library(folder, "libllama");
    if (!ggml || !library) return dlerror();
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *address = dlsym(library, symbols[i].name);
        if (!address) return symbols[i].name;
        memcpy((char *)&llama + symbols[i].offset, &address, sizeof address);
    }
    void (*load_all)(const char *) = NULL;
    *(void **)&load_all = dlsym(ggml, "ggml_backend_load_all_from_path");
    if (!load_all) return "no ggml_backend_load_all_from_path";
    llama.log_set(listen, NULL);
    load_all(folder);
    llama.backend_init();
    snprintf(name, room, "llama.cpp");
    snprintf(version, room, "%s", llama.version());
    snprintf(variant, room, "%s", cpu_variant);
    return NULL;
}

const char *engine_load(const char *path, int cells, int threads, int sequences, double seconds[2]) {
    double start = now();
    if (context) llama.free(context);
    if (model) llama.model_free(model);
    context = NULL;
    compute_bytes = cache_bytes = 0;
    if (!(model = llama.model_load_from_file(path, llama.model_default_params()))) return "cannot load the model";
    seconds[0] = now() - start;
    settings p = llama.context_default_params();
    p.number[0] = (uint32_t)cells;
    p.number[1] = BATCH;
    p.number[2] = MICRO_BATCH;
    p.number[3] = (uint32_t)sequences;
    if (!(context = llama.init_from_model(model, p))) return "cannot make a context";
    llama.set_n_threads(context, threads, threads);
    seconds[1] = now() - start;
    if (llama.n_ctx(context) < (uint32_t)cells || llama.n_ctx(context) > (uint32_t)cells + 255 ||
        llama.n_batch(context) != BATCH || llama.n_ubatch(context) != MICRO_BATCH ||
        llama.n_seq_max(context) != (uint32_t)sequences)
        return "this version has a different layout of parameters";
    return NULL;
}

int engine_vocabulary(void) { return model ? llama.vocab_n_tokens(llama.model_get_vocab(model)) : 1; }

const char *engine_decode(int32_t *tokens, int n) {
    if (!context) return "nothing is loaded";
    if (llama.decode(context, llama.batch_get_one(tokens, n)) != 0) return "decode failed";
    return llama.get_logits_ith(context, -1) ? NULL : "no logits";
}

const char *engine_step(int32_t *tokens, int position, int n) {
    static int32_t positions[MOST_SEQUENCES], ones[MOST_SEQUENCES], ids[MOST_SEQUENCES], *id_lists[MOST_SEQUENCES];
    static int8_t logits[MOST_SEQUENCES];
    for (int i = 0; i < n; i++) {
        positions[i] = position;
        ones[i] = logits[i] = 1;
        ids[i] = i;
        id_lists[i] = &ids[i];
    }
    if (!context) return "nothing is loaded";
    if (llama.decode(context, (batch){n, tokens, NULL, positions, ones, id_lists, logits}) != 0)
        return "decode failed";
    return llama.get_logits_ith(context, n - 1) ? NULL : "no logits";
}

/* By default every sequence has a buffer of its own; a copy between them is carried out with the next decode. */
const char *engine_copy(int n) {
    if (!context) return "nothing is loaded";
    void *memory = llama.get_memory(context);
    int last = llama.memory_seq_pos_max(memory, 0);
    for (int i = 1; i < n; i++) llama.memory_seq_cp(memory, 0, i, -1, -1);
    for (int i = 1; i < n; i++)
        if (llama.memory_seq_pos_max(memory, i) != last) return "a sequence was not copied";
    const char *wrong = take_steps(last + 1, 1, n);
    engine_keep(last + 1);
    return wrong;
}

void engine_keep(int n) {
    for (uint32_t i = 0; context && i < llama.n_seq_max(context); i++)
        llama.memory_seq_rm(llama.get_memory(context), (int32_t)i, n, -1);
}

const char *engine_read(double *rate, double *weights) {
    (void)rate, (void)weights;
    return "not supported: the other engine measures it";
}

const char *engine_memory(double bytes[3]) {
    bytes[0] = compute_bytes;
    bytes[1] = cache_bytes;
    return compute_bytes > 0 ? NULL : "no sizes in the log";
}

const char *engine_tokenize(const char *text, size_t size, int *n_tokens) {
    if (!model) return "no tokenizer";
    int32_t *tokens = malloc((size + 16) * sizeof *tokens);
    int n =
        llama.tokenize(llama.model_get_vocab(model), text, (int32_t)size, tokens, (int32_t)size + 16, false, false);
    free(tokens);
    *n_tokens = n;
    return n < 0 ? "tokenize failed" : NULL;
}

const char *engine_quantize(const char *from, const char *to, const char *type, int threads) {
    static const struct {
        const char *name;
        uint32_t number;
    } types[] = {{"Q4_0", 2}, {"Q8_0", 7}, {"Q4_K_M", 15}, {"Q5_K_M", 17}, {"Q6_K", 18}};
    settings p = llama.model_quantize_default_params();
    p.number[0] = (uint32_t)threads;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, type) != 0) continue;
        p.number[1] = types[i].number;
        return llama.model_quantize(from, to, &p) == 0 ? NULL : "quantize failed";
    }
    return "unknown type";
}

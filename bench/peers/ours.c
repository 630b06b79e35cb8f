/* The engine of this project. */
#include "engine.h"

#include "tenon/cpu.h"
#include "tenon/llm.h"
#include "tenon/speed.h"

static tn_model *model;
static tn_session *session;
static int n_threads;

const char *engine_start(const char *folder, char *name, char *version, char *variant, size_t room) {
    (void)folder;
    snprintf(name, room, "tenon");
    snprintf(version, room, "%s", tn_version());
    snprintf(variant, room, "%s", tn_cpu_level());
    return NULL;
}

const char *engine_load(const char *path, int cells, int threads, int sequences, double seconds[2]) {
    double start = now();
    if (session) tn_session_free(session);
    if (model) tn_model_close(model);
    session = NULL, model = NULL;
    if (tn_model_open(path, NULL, &model) != TN_OK) return tn_error();
    seconds[0] = now() - start;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = cells;
    p.n_batch = BATCH;
    p.n_ubatch = MICRO_BATCH;
    p.n_threads = n_threads = threads;
    p.n_seqs = sequences;
    p.devices[0] = "cpu";
    if (tn_session_open(model, &p, &session) != TN_OK) return tn_error();
    seconds[1] = now() - start;
    return NULL;
}

int engine_vocabulary(void) { return model ? tn_model_get_info(model).n_vocab : 1; }

const char *engine_decode(int32_t *tokens, int n) {
    if (!session) return "nothing is loaded";
    if (tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens}) != TN_OK) return tn_error();
    return tn_session_logits(session, -1) ? NULL : "no logits";
}

const char *engine_step(int32_t *tokens, int position, int n) {
    static int32_t seqs[MOST_SEQUENCES];
    (void)position; /* follows from what the sequences hold */
    for (int i = 0; i < n; i++) seqs[i] = i;
    if (!session) return "nothing is loaded";
    if (tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs}) != TN_OK)
        return tn_error();
    return tn_session_logits(session, n - 1) ? NULL : "no logits";
}

/* tn_session_seq_copy would share the cells; a loaded state has its own. */
const char *engine_copy(int n) {
    size_t size = 0;
    if (!session) return "nothing is loaded";
    if (tn_session_state_size(session, 0, &size) != TN_OK) return tn_error();
    void *state = malloc(size);
    if (!state) return "not enough memory for a state";
    tn_status status = tn_session_state_get(session, 0, state, size);
    for (int i = 1; i < n && status == TN_OK; i++) status = tn_session_state_set(session, i, state, size);
    free(state);
    if (status != TN_OK) return tn_error();
    return tn_session_cache_usage(session).used < n * (tn_session_seq_last(session, 0) + 1) ? "cells are shared"
                                                                                            : NULL;
}

void engine_keep(int n) {
    if (session) (void)tn_session_seq_remove(session, -1, n, -1);
}

/* The table of embeddings, of which a token reads one row, counts only where it is the output matrix as well. */
const char *engine_read(double *rate, double *weights) {
    if (!model) return "nothing is loaded";
    const tn_gguf *file = tn_model_file(model);
    bool output = tn_gguf_find_tensor(file, "output.weight") != NULL;
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        if (!output || strcmp(t->name, "token_embd.weight") != 0) *weights += (double)t->size;
    }
    tn_device *cpu = NULL;
    if (tn_device_find("cpu", &cpu) != TN_OK) return tn_error();
    tn_measure_params p = {.n_threads = n_threads};
    return tn_device_measure_read(cpu, &p, rate) == TN_OK ? NULL : tn_error();
}

const char *engine_memory(double bytes[3]) {
    tn_fit fit;
    if (!session) return "nothing is loaded";
    if (tn_session_memory(session, &fit) != TN_OK) return tn_error();
    for (size_t i = 0; i < fit.n_devices; i++) {
        bytes[0] += (double)fit.devices[i].compute;
        bytes[1] += (double)fit.devices[i].cache;
        bytes[2] += (double)fit.devices[i].scratch;
    }
    tn_fit_free(&fit);
    return NULL;
}

const char *engine_tokenize(const char *text, size_t size, int *n_tokens) {
    tn_tokens tokens = {0};
    if (!model || !tn_model_tokenizer(model)) return "no tokenizer";
    if (tn_tokenizer_encode(tn_model_tokenizer(model), text, size, 0, &tokens) != TN_OK) return tn_error();
    *n_tokens = (int)tokens.count;
    tn_tokens_free(&tokens);
    return NULL;
}

const char *engine_quantize(const char *from, const char *to, const char *type, int threads) {
    (void)from, (void)to, (void)type, (void)threads;
    return "not supported: quantize is a command of the program"; /* compare.c runs it */
}

/* The engine of this project. */
#include "engine.h"

#include "tenon/cpu.h"
#include "tenon/llm.h"

static tn_model *model;
static tn_session *session;

const char *engine_start(const char *folder, char *name, char *version, char *variant, size_t room) {
    (void)folder;
    snprintf(name, room, "tenon");
    snprintf(version, room, "%s", tn_version());
    snprintf(variant, room, "%s", tn_cpu_level());
    return NULL;
}

const char *engine_load(const char *path, int cells, int threads, double seconds[2]) {
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
    p.n_threads = threads;
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

void engine_keep(int n) {
    if (session) (void)tn_session_seq_remove(session, 0, n, -1);
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

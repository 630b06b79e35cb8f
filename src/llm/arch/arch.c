/* The table of architectures. */
#include "llm/arch/arch.h"

#include <string.h>

static const tn__arch *const archs[] = {
#define TN_X(name) &tn__arch_##name,
    TN__ARCH_TABLE(TN_X)
#undef TN_X
};

const char *tn_architecture_name(size_t index) {
    return index < sizeof archs / sizeof *archs ? archs[index]->name : NULL;
}

const tn__arch *tn__arch_find(const char *name) {
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i]->name, name) == 0) return archs[i];
    return NULL;
}

static int32_t window_of(const tn_gguf *file, int32_t missing) {
    int32_t window = tn_gguf_get_i32(file, tn__arch_key(file, "attention.sliding_window"), missing);
    return window > 0 ? window : 0;
}

/* A file may say for each layer whether it has the window; else the architecture's own pattern holds. */
static int32_t window_in(const tn_gguf *file, int32_t layer, int32_t window, bool usual) {
    const char *key = tn__arch_key(file, "attention.sliding_window_pattern");
    return tn_gguf_get_bool_at(file, key, (uint64_t)layer, usual) ? window : 0;
}

void tn__window_pattern(const tn_gguf *file, tn__hparams *h, int32_t missing, int32_t period) {
    int32_t window = window_of(file, missing);
    for (int32_t i = 0; i < h->n_layer; i++)
        h->layers[i].window = window_in(file, i, window, i % period < period - 1);
}

void tn__window_all(const tn_gguf *file, tn__hparams *h) {
    int32_t window = window_of(file, 0);
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].window = window_in(file, i, window, true);
}

/* Reading golden logits: int32 n_tokens, int32 n_vocab, tokens, f32 logits. */
#include "llm_golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const golden_archs[] = {
    "falcon-dense",   "gemma-dense",     "gemma2-dense",     "gpt-oss-moe",  "gpt2-dense",
    "granite-dense",  "granitemoe-moe",  "llama-dense",      "llama-moe",    "mistral3-dense",
    "phi3-dense",     "qwen2-dense",     "qwen3-dense",      "qwen3moe-moe", "smollm3-dense",
    "stablelm-dense", "starcoder-dense", "starcoder2-dense", NULL,
};

bool golden_load(const char *relative, golden_model *g) {
    char name[256];
    memset(g, 0, sizeof *g);
    snprintf(name, sizeof name, "%s.gguf", relative);
    const char *path = golden_path(name);
    if (!path) return false;
    snprintf(g->path, sizeof g->path, "%s", path);
    snprintf(name, sizeof name, "%s.logits", relative);
    path = golden_path(name);
    size_t size;
    if (!path || !(g->memory = read_file(path, &size))) return false;
    const int32_t *head = g->memory;
    g->n_tokens = head[0];
    g->n_vocab = head[1];
    g->tokens = (tn_token *)g->memory + 2;
    g->logits = (float *)g->memory + 2 + g->n_tokens;
    return size == 4 * (2 + (size_t)g->n_tokens * (1 + (size_t)g->n_vocab));
}

void golden_free(golden_model *g) { free(g->memory); }

void nmse_add(nmse *n, const float *got, const float *want, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        double d = (double)got[i] - want[i];
        n->error += d * d;
        n->scale += (double)want[i] * want[i];
    }
}

double nmse_value(const nmse *n) { return isfinite(n->error) && n->scale > 0 ? n->error / n->scale : INFINITY; }

/* Reading golden logits: int32 n_tokens, int32 n_vocab, tokens, f32 logits. */
#include "llm_golden.h"

#include <dirent.h>
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

enum { MOST = 64 };
static char names[MOST][512];
static const char *list[MOST + 1];

static void list_name(const char *folder, const char *name, int length) {
    static size_t used;
    if (used == MOST) return;
    snprintf(names[used], sizeof names[used], "%s/%.*s", folder, length, name);
    list[used] = names[used];
    used++;
}

const char *const *golden_models(void) {
    const char *folder = getenv("TENON_LLM_FOLDER");
    if (list[0]) return list;
    if (!folder) {
        for (const char *const *name = golden_archs; *name; name++) list_name("archs", *name, 255);
        return list;
    }
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        size_t length = strlen(entries[i]->d_name);
        if (length > 5 && strcmp(entries[i]->d_name + length - 5, ".gguf") == 0)
            list_name(folder, entries[i]->d_name, (int)length - 5);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return list;
}

static const char *file_of(const char *name) { return name[0] == '/' ? name : golden_path(name); }

bool golden_load(const char *relative, golden_model *g) {
    char name[512];
    memset(g, 0, sizeof *g);
    snprintf(name, sizeof name, "%s.gguf", relative);
    const char *path = file_of(name);
    if (!path) return false;
    snprintf(g->path, sizeof g->path, "%s", path);
    snprintf(name, sizeof name, "%s.logits", relative);
    path = file_of(name);
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

/* The layers that graphs are built from: all, or a few representative ones while planning. */
#include "llm/plan/layers.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/plan/session_plan.h"

#include <string.h>

/* The part of a weight's name that is the same in all layers. */
static const char *name_in_layer(const char *name) {
    if (strncmp(name, "enc.blk.", 8) == 0) name += 4;
    const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    return dot ? dot : name;
}

/* Hashes the inputs of a layer's graph: devices, weights with type, shape and memory, and hyperparameters. The
 * order of the weights in the file does not matter. */
static void hash_layers(const tn_session_plan *p, uint64_t *hashes) {
    const tn_model *m = p->model;
    const tn__load load = tn__session_plan_load(p);
    for (int32_t i = 0; i < m->h.n_layer; i++) {
        const tn__layer_hparams *h = &m->h.layers[i];
        uint64_t x = tn__hash_combine(0, (uint64_t)p->placement.device_of_layer[i + 1]);
        x = tn__hash_combine(x, (uint64_t)p->kv.layers[i].group);
        x = tn__hash_combine(x, (uint64_t)h->n_head << 32 | (uint32_t)h->n_head_kv);
        x = tn__hash_combine(x, (uint64_t)h->head_k << 32 | (uint32_t)h->head_v);
        x = tn__hash_combine(x, (uint64_t)h->n_rot << 32 | (uint32_t)(i - p->kv.layers[i].from));
        x = tn__hash_combine(x, (uintptr_t)h->mixer ^ (uint64_t)h->moe ^ (uint64_t)h->indexer << 1 ^
                                    (uint64_t)h->sparse_gate << 3);
        x = tn__hash_combine(x, (uint64_t)h->n_ff << 32 | (uint32_t)h->window);
        /* With attention residuals a layer also reads the states that were kept before it. */
        const int32_t block = m->h.residual_block;
        if (block > 0) x = tn__hash_combine(x, (uint64_t)(i / block) << 1 | (i % block == 0));
        const bool ends_loop = (i + 1) % m->h.n_stored_layers == 0;
        for (int32_t k = 0; k < p->params.n_state_layers; k++)
            if (p->params.state_layers[k] == i) x = tn__hash_combine(x, 1 + (uint64_t)k); /* its input is returned */
        hashes[i] = tn__hash_combine(x, (uint64_t)h->no_rope << 1 | ends_loop);
    }
    for (size_t i = 0; i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (w->ignored || w->layer < 0 || w->layer >= m->h.n_layer) continue;
        const char *name = name_in_layer(w->info->name);
        uint64_t x = tn__hash_bytes(name, strlen(name), (uint64_t)w->tensor->type);
        x = tn__hash_bytes(w->tensor->ne, sizeof w->tensor->ne, x);
        tn_buffer_type *memory = m->loaded ? tn_buffer_get_type(w->tensor->buffer) : tn__weight_memory(&load, w);
        hashes[w->layer] += tn__hash_combine(x, (uintptr_t)memory);
    }
    for (size_t i = 0; i < p->adapters.n_list; i++) {
        const tn__adapted_weight *a = &p->adapters.list[i];
        const tn__weight *w = &m->all[a->pair->weight];
        if (w->layer < 0 || w->layer >= m->h.n_layer) continue;
        const char *name = name_in_layer(w->info->name);
        uint64_t x = tn__hash_bytes(name, strlen(name), a->adapter);
        x = tn__hash_bytes(a->a->ne, sizeof a->a->ne, tn__hash_bytes(a->b->ne, sizeof a->b->ne, x));
        x = tn__hash_combine(x, (uint64_t)a->a->type << 32 | (uint64_t)a->b->type << 1 | (a->factor != 1));
        hashes[w->layer] += tn__hash_combine(x, (uint64_t)tn__placement_of_weight(p, w));
    }
    for (int32_t i = 0; p->adapters.directions && i < m->h.n_layer; i++)
        hashes[i] += p->adapters.directions[i] != NULL;
}

/* Whether a layer is a further repetition: `times` earlier layers in the list have the same hash and the same
 * predecessor in the model. */
static bool repeats(const uint64_t *hashes, const tn__layer_list *list, int32_t layer, int32_t times) {
    int32_t found = 0;
    for (int32_t k = 0; k < list->n; k++) {
        int32_t other = list->list[k];
        found += hashes[other] == hashes[layer] &&
                 (layer > 0 ? other > 0 && hashes[other - 1] == hashes[layer - 1] : other == 0);
    }
    return found >= times;
}

tn_status tn__layers_reduce(const tn_session_plan *p, int32_t times, tn__layer_list *out) {
    const int32_t n = p->model->h.n_layer;
    tn__layers_free(out);
    uint64_t *hashes = tn_calloc((size_t)n + 1, sizeof *hashes);
    out->list = tn_calloc((size_t)n + 1, sizeof *out->list);
    tn_status status = hashes && out->list ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) hash_layers(p, hashes);
    for (int32_t i = 0; status == TN_OK && i < n; i++)
        if (i == n - 1 || !repeats(hashes, out, i, times)) out->list[out->n++] = i;
    tn_free(hashes);
    return status;
}

void tn__layers_free(tn__layer_list *list) {
    tn_free(list->list);
    *list = (tn__layer_list){0};
}

int32_t tn__built_count(const tn_session_plan *p) { return p->built ? p->built->n : p->model->h.n_layer; }
int32_t tn__built_layer(const tn_session_plan *p, int32_t i) { return p->built ? p->built->list[i] : i; }

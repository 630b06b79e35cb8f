/* Weights: every tensor of the file finds its slot, and its shape is what the architecture says. */
#include "llm/model_internal.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    const char *name;
    size_t offset; /* of the pointer in tn__layer or tn__weights */
    tn__dim dims[3];
} slot;

static const slot layer_slots[] = {
#define TN_X(member, name, d0, d1, d2)                                                                               \
    {name, offsetof(tn__layer, member), {TN__DIM_##d0, TN__DIM_##d1, TN__DIM_##d2}},
    TN__LAYER_SLOTS(TN_X)
#undef TN_X
};
static const slot model_slots[] = {
#define TN_X(member, name, d0, d1, d2)                                                                               \
    {name, offsetof(tn__weights, member), {TN__DIM_##d0, TN__DIM_##d1, TN__DIM_##d2}},
    TN__MODEL_SLOTS(TN_X)
#undef TN_X
};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* What a dimension must be; -1: anything. `other` is a second accepted value or 0. */
static int64_t expected(const tn__hparams *h, int32_t layer, tn__dim dim, int64_t *other) {
    static const tn__layer_hparams none;
    const tn__layer_hparams *l = layer >= 0 && layer < h->n_layer ? &h->layers[layer] : &none;
    int64_t q = (int64_t)l->n_head * h->head_k, k = (int64_t)l->n_head_kv * h->head_k,
            v = (int64_t)l->n_head_kv * h->head_v;
    *other = 0;
    switch (dim) {
    case TN__DIM_NONE:
    case TN__DIM_ONE: return 1;
    case TN__DIM_ANY: return -1;
    case TN__DIM_EMBD: return h->n_embd;
    case TN__DIM_VOCAB: return h->n_vocab;
    case TN__DIM_Q: return q;
    case TN__DIM_K: return k;
    case TN__DIM_V: return v;
    case TN__DIM_QKV: return q + k + v;
    case TN__DIM_ATTN_OUT: return (int64_t)l->n_head * h->head_v;
    case TN__DIM_FF: return l->n_ff;
    case TN__DIM_UP: *other = 2 * (int64_t)l->n_ff; return l->n_ff; /* gate and up in one */
    case TN__DIM_EXPERT: return h->n_expert;
    case TN__DIM_FF_EXPERT: return h->n_ff_expert;
    case TN__DIM_FF_SHARED: return h->n_ff_shared ? h->n_ff_shared : -1;
    case TN__DIM_HEADS: return l->n_head;
    case TN__DIM_CTX: return h->n_ctx_train;
    case TN__DIM_TYPES: return h->n_token_types ? h->n_token_types : -1;
    }
    return -1;
}

static tn_status check_shape(const tn_model *m, const tn_gguf_tensor *info, const slot *s, int32_t layer) {
    for (int i = 0; i < 4; i++) {
        int64_t other = 0, want = i < 3 ? expected(&m->h, layer, s->dims[i], &other) : 1;
        if (want < 0 || info->ne[i] == want || (other && info->ne[i] == other)) continue;
        char text[128];
        size_t used = 0;
        for (int d = 0; d < 3 && (d == 0 || s->dims[d] != TN__DIM_NONE); d++) {
            int64_t value = expected(&m->h, layer, s->dims[d], &other);
            used += (size_t)snprintf(text + used, sizeof text - used, value < 0 ? "%s?" : "%s%lld", d ? "," : "",
                                     (long long)value);
        }
        return tn_fail(TN_E_SHAPE, "%s: tensor '%s' is [%lld,%lld,%lld,%lld], the %s architecture needs [%s]",
                       tn_gguf_path(m->file), info->name, (long long)info->ne[0], (long long)info->ne[1],
                       (long long)info->ne[2], (long long)info->ne[3], m->arch->name, text);
    }
    return TN_OK;
}

/* "blk.12.rest" → 12 and "rest"; false for any other name. */
static bool split_name(const char *name, int32_t *layer, const char **rest) {
    if (strncmp(name, "blk.", 4) != 0) return false;
    char *end;
    long value = strtol(name + 4, &end, 10);
    if (end == name + 4 || *end != '.' || value < 0 || value > INT32_MAX) return false;
    *layer = (int32_t)value;
    *rest = end + 1;
    return true;
}

/* Tensors some files carry that nothing here uses. */
static bool is_ignored(const char *name) {
    static const char *const endings[] = {".input_scale", ".attn_rot_embd", ".rotary_emb.inv_freq",
                                          ".attn.masked_bias"};
    size_t length = strlen(name);
    if (strncmp(name, "cls.", 4) == 0) return true; /* other classifier heads than the known one */
    for (size_t i = 0; i < COUNT(endings); i++) {
        size_t n = strlen(endings[i]);
        if (length >= n && strcmp(name + length - n, endings[i]) == 0) return true;
    }
    return false;
}

static bool after_layers(const char *name) { return strncmp(name, "output", 6) == 0 || strncmp(name, "cls", 3) == 0; }

static tn_status find_one(tn_model *m, tn__weight *w) {
    const char *rest = w->info->name;
    int32_t layer = -1;
    bool in_layer = split_name(w->info->name, &layer, &rest);
    const slot *slots = in_layer ? layer_slots : model_slots, *found = NULL;
    size_t count = in_layer ? COUNT(layer_slots) : COUNT(model_slots);
    for (size_t i = 0; i < count && !found; i++)
        if (strcmp(slots[i].name, rest) == 0) found = &slots[i];
    if (!found && is_ignored(w->info->name)) {
        w->ignored = true;
        return TN_OK;
    }
    if (!found)
        return tn_fail(TN_E_UNSUPPORTED, "%s: tensor '%s' is not known to the %s architecture", tn_gguf_path(m->file),
                       w->info->name, m->arch->name);
    if (in_layer && layer >= m->h.n_layer)
        return tn_fail(TN_E_FORMAT, "%s: tensor '%s' belongs to layer %d of %d", tn_gguf_path(m->file), w->info->name,
                       layer, m->h.n_layer);
    TN_TRY(check_shape(m, w->info, found, layer));

    w->tensor = tn_tensor_new(m->arena, w->info->type, w->info->n_dims ? w->info->n_dims : 1, w->info->ne);
    if (!w->tensor) return tn_arena_status(m->arena);
    if (!tn_name(m->arena, w->tensor, "%s", w->info->name)) return tn_arena_status(m->arena);
    w->layer = in_layer ? layer : after_layers(rest) ? m->h.n_layer : -1;
    char *base = in_layer ? (char *)&m->w.layers[layer] : (char *)&m->w;
    memcpy(base + found->offset, &w->tensor, sizeof w->tensor);
    return TN_OK;
}

static bool layer_has(const tn__layer *layer, const char *name, size_t length) {
    for (size_t i = 0; i < COUNT(layer_slots); i++) {
        if (strncmp(layer_slots[i].name, name, length) != 0 || strcmp(layer_slots[i].name + length, ".weight") != 0)
            continue;
        tn_tensor *t;
        memcpy(&t, (const char *)layer + layer_slots[i].offset, sizeof t);
        return t != NULL;
    }
    return false;
}

static tn_status missing(const tn_model *m, int32_t layer, const char *name) {
    char prefix[32] = "";
    if (layer >= 0) snprintf(prefix, sizeof prefix, "blk.%d.", layer);
    return tn_fail(TN_E_FORMAT, "%s: tensor '%s%s.weight' is missing", tn_gguf_path(m->file), prefix, name);
}

/* Tensors that others in the same layer call for. */
static tn_status check_layer(const tn_model *m, int32_t i) {
    const tn__layer *l = &m->w.layers[i];
    bool gated = !m->arch->ungated;
    if (l->wq && !l->wqkv && !l->wk) return missing(m, i, "attn_k");
    if (l->wq && !l->wqkv && !l->wv) return missing(m, i, "attn_v");
    if (l->router) {
        if (!l->up_exps) return missing(m, i, "ffn_up_exps");
        if (!l->down_exps) return missing(m, i, "ffn_down_exps");
        if (gated && !l->gate_exps) return missing(m, i, "ffn_gate_exps");
        if (l->up_shexp && !l->gate_shexp) return missing(m, i, "ffn_gate_shexp");
        if (l->up_shexp && !l->down_shexp) return missing(m, i, "ffn_down_shexp");
        return TN_OK;
    }
    if (!l->ffn_up) return missing(m, i, "ffn_up");
    if (!l->ffn_down) return missing(m, i, "ffn_down");
    /* Without a gate one matrix must hold both. */
    return gated && !l->ffn_gate && l->ffn_up->ne[1] == m->h.layers[i].n_ff ? missing(m, i, "ffn_gate") : TN_OK;
}

static tn_status check_required(const tn_model *m) {
    if (!m->w.tok_embd) return missing(m, -1, "token_embd");
    if (!m->w.out_norm && !m->arch->bare_norms && m->arch->residual != TN__RESIDUAL_POST_NORM)
        return missing(m, -1, "output_norm");
    for (int32_t l = 0; l < m->h.n_layer; l++) {
        for (const char *const *r = m->arch->required; *r; r++) {
            bool found = false;
            for (const char *name = *r; name && !found; name = strchr(name, '|') ? strchr(name, '|') + 1 : NULL)
                found = layer_has(&m->w.layers[l], name, strcspn(name, "|"));
            if (!found)
                return tn_fail(TN_E_FORMAT, "%s: tensor 'blk.%d.%.*s.weight' is missing", tn_gguf_path(m->file), l,
                               (int)strcspn(*r, "|"), *r);
        }
        TN_TRY(check_layer(m, l));
    }
    return TN_OK;
}

tn_status tn__weights_find(tn_model *m) {
    m->n_all = (size_t)tn_gguf_tensor_count(m->file);
    m->all = tn_calloc(m->n_all, sizeof *m->all);
    m->w.layers = tn_calloc((size_t)m->h.n_layer, sizeof *m->w.layers);
    if (!m->all || !m->w.layers) return TN_E_NOMEM;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(m->n_all, 0), .no_alloc = true}, &m->arena));
    for (size_t i = 0; i < m->n_all; i++) {
        m->all[i].info = tn_gguf_tensor_at(m->file, i);
        TN_TRY(find_one(m, &m->all[i]));
        m->n_params += tn_nelements(&(tn_tensor){
            .ne = {m->all[i].info->ne[0], m->all[i].info->ne[1], m->all[i].info->ne[2], m->all[i].info->ne[3]}});
    }
    if (m->arch->adjust) m->arch->adjust(&m->h, &m->w);
    return check_required(m);
}

/* Opening a model: metadata, architecture, tensors, tokenizer. */
#include "llm/memory/kv_cache.h"
#include "llm/ranks/lead.h"

#include <string.h>

static uint64_t mix_identity(uint64_t h, uint64_t value) { return (h ^ value) * 0x9e3779b97f4a7c15u + (h >> 31); }

/* Two files with the same identity can use each other's saved sequence memory. The identity covers architecture,
 * sizes, and type and size of every tensor. */
static uint64_t identity_of(const tn_model *m) {
    uint64_t h = 0;
    for (const char *p = m->arch->info.name; *p; p++) h = mix_identity(h, (unsigned char)*p);
    const int32_t sizes[] = {m->h.n_vocab, m->h.n_embd, m->h.n_layer, m->h.head_k, m->h.head_v, m->h.n_rot};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) h = mix_identity(h, (uint64_t)sizes[i]);
    for (size_t i = 0; i < m->n_all; i++) {
        h = mix_identity(h, m->all[i].info->size);
        h = mix_identity(h, (uint64_t)m->all[i].info->type);
    }
    return h;
}

tn_status tn__check_target(const tn_model *head, const tn_model *target) {
    const tn__hparams *h = &head->h, *t = &target->h;
    const char *path = tn_gguf_path(head->file), *other = tn_gguf_path(target->file);
    if (!t->layers) return tn_fail(TN_E_INVALID, "%s was opened for its vocabulary only", other);
    if (h->n_target_embd != t->n_embd)
        return tn_fail(TN_E_INVALID, "%s is a head for a model of width %d; %s has a width of %d", path,
                       h->n_target_embd, other, t->n_embd);
    if (tn__n_text_vocab(h) != t->n_vocab)
        return tn_fail(TN_E_INVALID, "%s is a head for a vocabulary of %d tokens; %s has %d", path,
                       tn__n_text_vocab(h), other, t->n_vocab);
    for (int32_t i = 0; i < h->n_target_layers; i++)
        if (h->target_layers[i] > t->n_layer)
            return tn_fail(TN_E_INVALID, "%s reads the state before layer %d; %s has %d layers", path,
                           h->target_layers[i], other, t->n_layer);
    return TN_OK;
}

/* The first multi-token prediction layer becomes the only layer. */
static tn_status make_head(const char *path, tn__hparams *h) {
    if (h->n_nextn < 1) return tn_fail(TN_E_UNSUPPORTED, "%s has no multi-token prediction layers", path);
    h->head_layer = h->n_layer;
    h->layers[0] = h->layers[h->n_layer];
    h->n_layer = h->n_stored_layers = 1;
    h->n_nextn = 0;
    return TN_OK;
}

static tn_status open_model(const char *path, tn_model *m) {
    TN_TRY(tn__ranks_meet(&m->params));
    TN_TRY(tn__share_open(m, path));
    tn_gguf_str name;
    TN_TRY(tn_gguf_need_str(m->file, "general.architecture", &name));
    const char *tokenizer = tn_gguf_get_cstr(m->file, "tokenizer.ggml.model", NULL);
    if (tokenizer && strcmp(tokenizer, "no_vocab") != 0 && strcmp(tokenizer, "none") != 0)
        TN_TRY(tn_tokenizer_new(m->file, NULL, &m->tokenizer));
    tn_gguf_str template = tn_gguf_get_str(m->file, "tokenizer.chat_template");
    if (template.data) {
        m->chat_template = tn_malloc(template.size + 1);
        if (!m->chat_template) return TN_E_NOMEM;
        memcpy(m->chat_template, template.data, template.size);
        m->chat_template[template.size] = '\0';
    }
    m->arch = tn__arch_find(name.data);
    if (m->params.vocab_only) return TN_OK;
    if (!m->arch) {
        tn_fail(TN_E_UNSUPPORTED, "%s: the architecture '%.60s' is not supported; these are:", path, name.data);
        for (size_t i = 0; tn_arch_at(i); i++) tn_fail_more(TN_E_UNSUPPORTED, " %s", tn_arch_at(i)->name);
        return TN_E_UNSUPPORTED;
    }
    TN_TRY(tn__hparams_read(m->file, m->arch, &m->h));
    if (m->params.head && !tn__feature_width(&m->h)) TN_TRY(make_head(path, &m->h));
    if (m->params.target && tn__feature_width(&m->h)) TN_TRY(tn__check_target(m, m->params.target));
    m->division.net = m->params.net;
    m->division.by_layers = m->params.by_layers;
    m->division.stage_ranks = m->params.stage_ranks;
    memcpy(m->division.shares, m->params.shares, sizeof m->division.shares);
    m->division.rank = m->params.net ? tn_net_rank(m->params.net) : m->params.rank;
    m->division.n_ranks = m->params.net ? tn_net_size(m->params.net) : m->params.n_ranks;
    if (m->division.n_ranks > 1 && (m->params.nextn || m->params.head || tn__feature_width(&m->h)))
        return tn_fail(TN_E_UNSUPPORTED,
                       "heads that guess tokens are not supported with several ranks: use one rank");
    TN_TRY(tn__weights_find(m));
    m->identity = identity_of(m);
    return TN_OK;
}

tn_status tn_model_open(const char *path, const tn_model_params *params, tn_model **out) {
    if (!path || !out) return tn_fail(TN_E_INVALID, "tn_model_open: NULL argument");
    *out = NULL;
    tn_model *m = tn_calloc(1, sizeof *m);
    if (!m) return TN_E_NOMEM;
    if (params) m->params = *params;
    tn_status status = open_model(path, m);
    if (status != TN_OK) {
        if (m->params.net) status = tn__ranks_break(m->params.net, status);
        tn_model_close(m);
        return status;
    }
    *out = m;
    return TN_OK;
}

void tn_model_close(tn_model *m) {
    if (!m) return;
    for (size_t i = 0; i < m->n_buffers; i++) tn_buffer_free(m->buffers[i].buffer);
    tn_free(m->buffers);
    tn_tokenizer_free(m->tokenizer);
    tn_free(m->chat_template);
    tn_arena_free(m->arena);
    tn_free(m->all);
    tn_free(m->w.layers);
    tn__division_free(&m->division);
    tn__hparams_free(&m->h);
    tn__share_end(&m->share);
    tn_gguf_close(m->file);
    tn_free(m);
}

tn_model_info tn_model_get_info(const tn_model *m) {
    tn_model_info info = {0};
    if (!m) return info;
    info.architecture = tn_gguf_get_cstr(m->file, "general.architecture", "");
    info.name = tn_gguf_get_cstr(m->file, "general.name", "");
    info.chat_template = m->chat_template;
    for (size_t i = 0; i < m->n_all; i++) info.bytes += m->all[i].info->size;
    if (!m->h.layers) return info;
    const tn__hparams *h = &m->h;
    info.n_params = m->n_params;
    info.n_vocab = h->n_vocab;
    info.n_ctx_train = h->n_ctx_train;
    info.n_embd = h->n_embd;
    info.n_layer = h->n_layer;
    info.n_nextn = h->n_nextn;
    info.n_head = h->layers[0].n_head;
    info.n_head_kv = h->layers[0].n_head_kv;
    info.n_ff = h->layers[0].n_ff;
    info.n_expert = h->n_expert;
    info.n_expert_used = h->n_expert_used;
    for (int32_t i = 0; i < h->n_layer; i++)
        if (h->layers[i].window > info.n_window) info.n_window = h->layers[i].window;
    info.is_encoder = !h->causal && !tn__arch_has(m->arch, TN_ARCH_DIFFUSION);
    info.is_causal = h->causal;
    for (int32_t i = 0; i < h->n_layer; i++) {
        const tn__layer_memory memory = tn__layer_memory_of(h, i);
        info.is_recurrent = info.is_recurrent || memory.state[0] || memory.state[1];
    }
    info.pooling = h->pooling;
    if (m->w.cls_out) info.n_labels = (int32_t)m->w.cls_out->ne[1];
    return info;
}

int32_t tn_model_target_layers(const tn_model *m, int32_t layers[TN_STATE_LAYERS_MOST]) {
    if (!m || !layers) return 0;
    memcpy(layers, m->h.target_layers, (size_t)m->h.n_target_layers * sizeof *layers);
    return m->h.n_target_layers;
}

int tn_model_ranks(const tn_model *m) { return m && m->division.n_ranks > 1 ? m->division.n_ranks : 1; }
const tn_tokenizer *tn_model_tokenizer(const tn_model *m) { return m ? m->tokenizer : NULL; }
const tn_gguf *tn_model_file(const tn_model *m) { return m ? m->file : NULL; }

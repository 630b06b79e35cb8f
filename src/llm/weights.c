/* Weights: matches every tensor of the file with a row of the tensor table and checks its shape. */
#include "llm/model_internal.h"

#include "base/checked.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn__tensor_context context_of(const tn_model *m, int32_t layer) {
    return (tn__tensor_context){.f = m->arch->info.traits,
                                .h = &m->h,
                                .l = &m->h.layers[layer >= 0 && layer < m->h.n_layer + m->h.n_nextn ? layer : 0],
                                .file = true};
}

static tn_status check_weight_shape(const tn_model *m, const tn__weight *w, const tn__tensor_row *row,
                                    int32_t layer) {
    const tn_gguf_tensor *info = w->info;
    const tn__tensor_context context = context_of(m, layer);
    int64_t ne[4] = {1, 1, 1, 1};
    row->dims(&context, ne);
    for (int i = 0; i < 4; i++) {
        if (ne[i] == TN__ANY || info->ne[i] == TN__MAX(ne[i], 1)) continue;
        char text[128];
        size_t used = 0;
        for (int d = 0; d < row->n_dims; d++)
            used += (size_t)snprintf(text + used, sizeof text - used, ne[d] < 0 ? "%s?" : "%s%lld", d ? "," : "",
                                     (long long)ne[d]);
        return tn_fail(TN_E_SHAPE, "%s: tensor '%s' is [%lld,%lld,%lld,%lld], the %s architecture needs [%s]",
                       tn_gguf_path(w->file), info->name, (long long)info->ne[0], (long long)info->ne[1],
                       (long long)info->ne[2], (long long)info->ne[3], m->arch->info.name, text);
    }
    return TN_OK;
}

/* "blk.12.rest" → 12 and "rest"; false for any other name. */
static bool split_name(const tn__arch *arch, const char *name, int32_t *layer, const char **rest) {
    const size_t prefix = strlen(tn__layer_prefix(arch));
    if (strncmp(name, tn__layer_prefix(arch), prefix) != 0 || strncmp(name + prefix, "blk.", 4) != 0) return false;
    name += prefix;
    char *end;
    long value = strtol(name + 4, &end, 10);
    if (end == name + 4 || *end != '.' || value < 0 || value > INT32_MAX) return false;
    *layer = (int32_t)value;
    *rest = end + 1;
    return true;
}

/* Tensors of some files that no graph uses. */
static bool is_ignored(const char *name) {
    static const char *const endings[] = {".input_scale", ".attn_rot_embd", ".rotary_emb.inv_freq",
                                          ".attn.masked_bias", ".attn_gate.scale"};
    size_t length = strlen(name);
    if (strncmp(name, "cls.", 4) == 0) return true;   /* classifier heads other than the one in the table */
    if (strncmp(name, "dense_", 6) == 0) return true; /* projections of pooled embeddings */
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i]);
        if (length >= n && strcmp(name + length - n, endings[i]) == 0) return true;
    }
    return false;
}

/* Whether graphs of the architecture do not use the tensor. */
static bool is_unused(const tn__arch *arch, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = arch->unused; at && (at = strstr(at, name)); at += length)
        if ((at == arch->unused || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

/* Some files leave out the ending of a norm's name. */
static bool names_row(const char *name, const char *row) {
    const size_t length = strlen(name);
    return strncmp(name, row, length) == 0 && (!row[length] || strcmp(row + length, ".weight") == 0);
}

static tn_status find_weight(tn_model *m, tn__weight *w) {
    const char *rest = w->info->name;
    int32_t layer = -1;
    bool in_layer = split_name(m->arch, w->info->name, &layer, &rest);
    const tn__tensor_row *rows = in_layer ? tn__layer_rows : tn__model_rows, *row = NULL;
    size_t count = in_layer ? tn__n_layer_rows : tn__n_model_rows;
    for (size_t i = 0; i < count && !row; i++)
        if (names_row(rest, rows[i].name)) row = &rows[i];
    if ((!row && is_ignored(w->info->name)) || is_unused(m->arch, rest)) {
        w->ignored = true;
        return TN_OK;
    }
    if (tn__feature_width(&m->h) && (strcmp(rest, "d2t") == 0 || strcmp(rest, "t2d") == 0)) {
        w->ignored = true; /* the proposer reads them (speculate/head.c) */
        return TN_OK;
    }
    if (in_layer && m->h.head_layer) {
        w->ignored = layer != m->h.head_layer;
        if (w->ignored) return TN_OK;
        layer = 0;
    }
    const bool nextn = in_layer && layer >= m->h.n_layer && layer - m->h.n_layer < m->h.n_nextn;
    if (nextn && !m->params.nextn) {
        w->ignored = true;
        return TN_OK;
    }
    if (!row)
        return tn_fail(TN_E_UNSUPPORTED, "%s: unknown tensor '%s' for the %s architecture", tn_gguf_path(m->file),
                       w->info->name, m->arch->info.name);
    if (in_layer && layer >= m->h.n_stored_layers && !nextn)
        return tn_fail(TN_E_FORMAT, "%s: tensor '%s' belongs to layer %d of %d", tn_gguf_path(m->file), w->info->name,
                       layer, m->h.n_stored_layers);
    TN_TRY(check_weight_shape(m, w, row, layer));

    w->data = m->share.receives ? NULL : w->info->data; /* NULL, too, if it was not mapped */
    w->size = w->info->size;
    w->tensor = tn_tensor_new(m->arena, w->info->type, w->info->n_dims ? w->info->n_dims : 1, w->info->ne);
    if (!w->tensor) return tn_arena_status(m->arena);
    if (!tn_name(m->arena, w->tensor, "%s", w->info->name)) return tn_arena_status(m->arena);
    w->layer = nextn                    ? m->h.n_layer
               : in_layer               ? layer
               : tn__after_layers(rest) ? m->h.n_layer
               : tn__in_head(rest)      ? 0
                                        : -1;
    w->multiplied = row->kind == TN_ARCH_MATRIX && w->tensor->ne[1] > 1;
    char *base = in_layer ? (char *)&m->w.layers[layer] : (char *)&m->w;
    memcpy(base + row->offset, &w->tensor, sizeof w->tensor);
    return TN_OK;
}

static tn_status missing_tensor(const tn_model *m, int32_t layer, const char *name) {
    char prefix[32] = "";
    if (layer >= 0) snprintf(prefix, sizeof prefix, "%sblk.%d.", tn__layer_prefix(m->arch), layer);
    return tn_fail(TN_E_FORMAT, "%s: tensor '%s%s' is missing", tn_gguf_path(m->file), prefix, name);
}
static tn_status missing_weight(const tn_model *m, int32_t layer, const char *name) {
    char whole[64];
    snprintf(whole, sizeof whole, "%.50s.weight", name);
    return missing_tensor(m, layer, whole);
}

/* Tensors of attention besides norms that are checked by their rows. */
static bool has_no_variants(const tn__tensor_row *row) {
    return row->offset == offsetof(tn__layer, wo) || row->offset == offsetof(tn__layer, sinks) ||
           row->offset == offsetof(tn__layer, attn_gate) || row->offset == offsetof(tn__layer, layer_scale);
}

/* The norms that the layer must have, sinks, gates, and the tensors of its mixer. */
static tn_status check_rows(const tn_model *m, int32_t i) {
    const tn__tensor_context context = context_of(m, i);
    const tn__layer *l = &m->w.layers[i];
    for (size_t r = 0; r < tn__n_layer_rows; r++) {
        const tn__tensor_row *row = &tn__layer_rows[r];
        tn_tensor *tensor;
        memcpy(&tensor, (const char *)l + row->offset, sizeof tensor);
        if (tensor || row->present(&context) != true) continue;
        const bool variants = r < tn__n_common_layer_rows && row->kind != TN_ARCH_NORM;
        if (variants && !has_no_variants(row)) continue; /* see check_attention and check_feed_forward */
        return missing_tensor(m, i, row->name);
    }
    return TN_OK;
}

/* The matrices of attention. Every family may have q, k and v in one matrix or in three. */
static tn_status check_attention(const tn_model *m, int32_t i) {
    const tn__layer *l = &m->w.layers[i];
    const tn__layer_hparams *h = &m->h.layers[i];
    if (!tn__layer_attends(h)) return TN_OK;
    if (!l->wq && !l->wqkv)
        return missing_weight(m, i, tn__arch_has(m->arch, TN_ARCH_FUSED_QKV) ? "attn_qkv" : "attn_q");
    const bool own = !m->h.layers[i].cells_of;
    if (own && l->wq && !l->wqkv && !l->wk) return missing_weight(m, i, "attn_k");
    if (own && l->wq && !l->wqkv && !l->wv && !m->arch->keys_as_values) return missing_weight(m, i, "attn_v");
    if (l->attn_gate && l->attn_gate->ne[1] != h->n_head && l->attn_gate->ne[1] != (int64_t)h->n_head * h->head_v)
        return tn_fail(TN_E_SHAPE,
                       "%s: tensor '%s' has %lld rows; it needs one for each of %d heads, or for each of "
                       "their %d elements",
                       tn_gguf_path(m->file), l->attn_gate->name, (long long)l->attn_gate->ne[1], h->n_head,
                       h->head_v);
    return TN_OK;
}

static tn_status check_feed_forward(const tn_model *m, int32_t i) {
    const tn__layer *l = &m->w.layers[i];
    const int64_t n_ff = m->h.layers[i].n_ff;
    bool gated = !tn__arch_has(m->arch, TN_ARCH_NO_GATE) && !m->h.plain_ffn;
    if (!tn__layer_feeds(&m->h.layers[i])) return TN_OK;
    const bool moe = tn__arch_has(m->arch, TN_ARCH_EXPERTS);
    if (l->router && !moe && !m->arch->either_ffn) return missing_weight(m, i, "ffn_up");
    if (!l->router && moe && !m->arch->either_ffn) return missing_weight(m, i, "ffn_gate_inp");
    if (l->router) {
        if (!l->gate_up_exps && !l->up_exps) return missing_weight(m, i, "ffn_up_exps");
        if (!l->down_exps) return missing_weight(m, i, "ffn_down_exps");
        if (gated && !l->gate_up_exps && !l->gate_exps) return missing_weight(m, i, "ffn_gate_exps");
        if (gated && l->up_shexp && !l->gate_shexp) return missing_weight(m, i, "ffn_gate_shexp");
        if (l->up_shexp && !l->down_shexp) return missing_weight(m, i, "ffn_down_shexp");
        return TN_OK;
    }
    if (!l->ffn_up && m->arch->ffn_without_matrices) return TN_OK;
    if (!l->ffn_up) return missing_weight(m, i, l->up_exps || l->down_exps ? "ffn_gate_inp" : "ffn_up");
    if (!l->ffn_down) return missing_weight(m, i, "ffn_down");
    if (l->ffn_up->ne[1] != n_ff && l->ffn_up->ne[1] != 2 * n_ff)
        return tn_fail(TN_E_SHAPE,
                       "%s: tensor '%s' has %lld rows; the %s architecture needs %lld, or %lld with gate and up",
                       tn_gguf_path(m->file), l->ffn_up->name, (long long)l->ffn_up->ne[1], m->arch->info.name,
                       (long long)n_ff, (long long)(2 * n_ff));
    /* Without ffn_gate, ffn_up must hold gate and up. */
    return gated && !l->ffn_gate && l->ffn_up->ne[1] == n_ff ? missing_weight(m, i, "ffn_gate") : TN_OK;
}

static tn_status check_model_norms(const tn_model *m) {
    const tn__tensor_context context = context_of(m, -1);
    for (size_t r = 0; r < tn__n_model_rows; r++) {
        const tn__tensor_row *row = &tn__model_rows[r];
        tn_tensor *tensor;
        memcpy(&tensor, (const char *)&m->w + row->offset, sizeof tensor);
        if (tensor || row->kind != TN_ARCH_NORM || row->present(&context) != true) continue;
        return missing_tensor(m, -1, row->name);
    }
    return TN_OK;
}

/* A head has its own tensor if the file has one, otherwise the model's. */
static void use_head_weights(tn_model *m) {
    const tn__layer *l = m->w.layers;
    if (!m->h.head_layer) return;
    if (l->nextn_embd) m->w.tok_embd = l->nextn_embd;
    if (l->nextn_head) m->w.output = l->nextn_head;
    if (l->nextn_head_norm) m->w.out_norm = l->nextn_head_norm;
}

/* A tensor that the file of an EAGLE-3 head lacks, from the file of the model that it guesses for. */
static tn_status borrow_weight(tn_model *m, const char *name, const char *instead) {
    const tn_model *target = m->params.target;
    if (!target)
        return tn_fail(TN_E_FORMAT, "%s: tensor '%s' is missing: such a head can only be opened with its model",
                       tn_gguf_path(m->file), name);
    tn__weight *w = &m->all[m->n_all];
    w->file = target->file;
    w->info = tn_gguf_find_tensor(target->file, name);
    if (!w->info && instead) w->info = tn_gguf_find_tensor(target->file, instead);
    if (!w->info) return tn_fail(TN_E_FORMAT, "%s: tensor '%s' is missing", tn_gguf_path(target->file), name);
    m->n_all++;
    TN_TRY(find_weight(m, w));
    if (strcmp(w->info->name, name) == 0) return TN_OK;
    /* The embedding of a model whose embedding is its output matrix. */
    m->w.output = w->tensor;
    w->layer = m->h.n_layer;
    w->multiplied = true;
    return TN_OK;
}

/* Without an output matrix of its own a head guesses every token of the model. */
static tn_status borrow_weights(tn_model *m) {
    if (!tn__feature_width(&m->h)) return TN_OK;
    tn_tensor *own = m->w.tok_embd;
    if (!m->w.output) TN_TRY(borrow_weight(m, "output.weight", "token_embd.weight"));
    m->w.tok_embd = own;
    return m->w.tok_embd ? TN_OK : borrow_weight(m, "token_embd.weight", NULL);
}

/* An embedding that is the output matrix, too, is multiplied; rows are looked up in any layout. */
static void mark_tied_output(tn_model *m) {
    for (size_t i = 0; !m->w.output && i < m->n_all; i++)
        if (m->all[i].tensor && m->all[i].tensor == m->w.tok_embd) m->all[i].multiplied = true;
}

static tn_status check_complete(const tn_model *m) {
    if (!m->w.tok_embd) return missing_weight(m, -1, "token_embd");
    TN_TRY(check_model_norms(m));
    for (int32_t i = 0; i < m->h.n_layer + (m->params.nextn ? m->h.n_nextn : 0); i++) {
        if (i >= m->h.n_stored_layers && i < m->h.n_layer) continue;
        TN_TRY(check_rows(m, i));
        TN_TRY(check_attention(m, i));
        TN_TRY(check_feed_forward(m, i));
    }
    return TN_OK;
}

/* Norms whose names have another meaning in most families. */
static void rename_norms(tn_model *m) {
    for (int32_t i = 0; tn__arch_has(m->arch, TN_ARCH_RENAMED_FFN_NORM) && i < m->h.n_layer + m->h.n_nextn; i++) {
        m->w.layers[i].ffn_norm = m->w.layers[i].attn_post_norm;
        m->w.layers[i].attn_post_norm = NULL;
    }
    if (!tn__arch_has(m->arch, TN_ARCH_RENAMED_LAST_NORM)) return;
    m->w.out_norm = m->w.tok_norm;
    m->w.tok_norm = NULL;
}

tn_status tn__weights_find(tn_model *m) {
    enum { BORROWED = 2 };
    const size_t n = (size_t)tn_gguf_tensor_count(m->file);
    m->all = tn_calloc(n + BORROWED, sizeof *m->all);
    m->w.layers = tn_calloc((size_t)m->h.n_layer + (size_t)m->h.n_nextn, sizeof *m->w.layers);
    if (!m->all || !m->w.layers) return TN_E_NOMEM;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(n + BORROWED, 0), .no_alloc = true}, &m->arena));
    for (size_t i = 0; i < n; i++) {
        m->all[i].info = tn_gguf_tensor_at(m->file, i);
        m->all[i].file = m->file;
        m->n_all++;
        TN_TRY(find_weight(m, &m->all[i]));
        m->n_params += tn_nelements(&(tn_tensor){
            .ne = {m->all[i].info->ne[0], m->all[i].info->ne[1], m->all[i].info->ne[2], m->all[i].info->ne[3]}});
    }
    use_head_weights(m);
    TN_TRY(borrow_weights(m));
    mark_tied_output(m);
    TN_TRY(check_complete(m));
    rename_norms(m);
    if (m->arch->adjust) m->arch->adjust(&m->h, &m->w);
    if (m->w.type_embd) m->h.n_token_types = (int32_t)m->w.type_embd->ne[1];
    TN_TRY(tn__divide(m));
    for (int32_t i = m->h.n_stored_layers; i < m->h.n_layer; i++)
        m->w.layers[i] = m->w.layers[i - m->h.n_stored_layers];
    return TN_OK;
}

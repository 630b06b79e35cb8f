/* Hyperparameters: reads and checks the keys that all architectures share. */
#include "llm/model_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *tn__arch_key(const tn_gguf *file, const char *key) {
    static _Thread_local char text[192];
    snprintf(text, sizeof text, "%.64s.%.100s", tn_gguf_get_cstr(file, "general.architecture", "?"), key);
    return text;
}
#define KEY(name) tn__arch_key(file, name)

static int32_t get_int(const tn_gguf *file, const char *key, int32_t missing) {
    return tn_gguf_get_i32(file, KEY(key), missing);
}
static float get_float(const tn_gguf *file, const char *key, float missing) {
    return tn_gguf_get_f32(file, KEY(key), missing);
}

bool tn__flag_at(const tn_gguf *file, const char *key, int32_t i, bool missing) {
    const tn_gguf_arr *listed = tn_gguf_get_arr(file, KEY(key));
    return listed && listed->type != TN_GGUF_BOOL ? tn_gguf_get_u32_at(file, KEY(key), (uint64_t)i, missing) != 0
                                                  : tn_gguf_get_bool_at(file, KEY(key), (uint64_t)i, missing);
}

static tn_status need_positive(const tn_gguf *file, const char *key, int32_t limit, int32_t *out) {
    uint32_t value;
    TN_TRY(tn_gguf_need_u32(file, KEY(key), &value));
    if (value == 0 || value > (uint32_t)limit)
        return tn_fail(TN_E_FORMAT, "%s: %s is %u; it must be from 1 to %d", tn_gguf_path(file), KEY(key), value,
                       limit);
    *out = (int32_t)value;
    return TN_OK;
}

void tn__hparams_free(tn__hparams *h) {
    tn_free(h->layers);
    h->layers = NULL;
}

static tn_status read_layers(const tn_gguf *file, const tn__arch *arch, tn__hparams *h) {
    h->layers = tn_calloc((size_t)h->n_layer + (size_t)h->n_nextn, sizeof *h->layers);
    if (!h->layers) return TN_E_NOMEM;
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        l->n_head = (int32_t)tn_gguf_get_u32_at(file, KEY("attention.head_count"), (uint64_t)i, 0);
        l->n_head_kv =
            (int32_t)tn_gguf_get_u32_at(file, KEY("attention.head_count_kv"), (uint64_t)i, (uint32_t)l->n_head);
        l->n_ff = (int32_t)tn_gguf_get_u32_at(file, KEY("feed_forward_length"), (uint64_t)i, 0);
        /* In a hybrid model a layer without heads has no attention. */
        const bool attends = !tn__arch_has(arch, TN_ARCH_HYBRID) || (l->n_head > 0 && l->n_head_kv > 0);
        if (!attends) l->n_head_kv = 0;
        if (attends && (l->n_head <= 0 || l->n_head > 65536 || l->n_head_kv <= 0 || l->n_head % l->n_head_kv))
            return tn_fail(TN_E_FORMAT, "%s: layer %d has %d heads and %d key/value heads", tn_gguf_path(file), i,
                           l->n_head, l->n_head_kv);
        if (l->n_ff < 0 || l->n_ff > 1 << 24)
            return tn_fail(TN_E_FORMAT, "%s: layer %d has a feed-forward width of %d", tn_gguf_path(file), i,
                           l->n_ff);
        l->rope_base = get_float(file, "rope.freq_base", 10000);
        if (!(l->rope_base > 0)) l->rope_base = 10000;
        l->rope_scale = 1;
        l->swiglu_limit = tn_gguf_get_f32_at(file, KEY("swiglu_clamp_exp"), (uint64_t)i, 0);
        l->swiglu_limit_shared = tn_gguf_get_f32_at(file, KEY("swiglu_clamp_shexp"), (uint64_t)i, 0);
    }
    return TN_OK;
}

static void read_rope(const tn_gguf *file, tn__hparams *h) {
    const char *type = tn_gguf_get_cstr(file, KEY("rope.scaling.type"), "");
    h->rope_factor = get_float(file, "rope.scaling.factor", get_float(file, "rope.scale_linear", 0));
    h->rope_orig_ctx = get_int(file, "rope.scaling.original_context_length", h->n_ctx_train);
    h->rope_attn_factor = get_float(file, "rope.scaling.attn_factor", 1);
    if (h->rope_attn_factor == 0) h->rope_attn_factor = 1;
    h->yarn_ext = get_float(file, "rope.scaling.yarn_ext_factor", -1);
    h->yarn_attn = get_float(file, "rope.scaling.yarn_attn_factor", 1);
    h->yarn_beta_fast = get_float(file, "rope.scaling.yarn_beta_fast", 32);
    h->yarn_beta_slow = get_float(file, "rope.scaling.yarn_beta_slow", 1);
    h->yarn_exact = !tn_gguf_get_bool(file, KEY("rope.scaling.yarn_truncate"), true);
    if (strcmp(type, "yarn") == 0)
        h->rope_scaling = TN__ROPE_SCALING_YARN;
    else if (strcmp(type, "longrope") == 0)
        h->rope_scaling = TN__ROPE_SCALING_LONGROPE;
    else if ((strcmp(type, "linear") == 0 || !*type) && h->rope_factor > 0)
        h->rope_scaling = TN__ROPE_SCALING_LINEAR;
    if (h->rope_factor > 0 && h->rope_scaling != TN__ROPE_SCALING_LONGROPE)
        for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].rope_scale = 1 / h->rope_factor;
    for (int i = 0; i < 4; i++) {
        const uint32_t section = tn_gguf_get_u32_at(file, KEY("rope.dimension_sections"), (uint64_t)i, 0);
        h->rope_sections[i] = section <= 65536 ? (int32_t)section : 0;
    }
}

static tn_status read_expert_groups(const tn_gguf *file, tn__hparams *h) {
    h->n_expert_groups = get_int(file, "expert_group_count", 0);
    h->n_groups_used = get_int(file, "expert_group_used_count", 0);
    if (h->n_expert_groups > 1 &&
        (h->n_expert % h->n_expert_groups || h->n_groups_used <= 0 || h->n_groups_used > h->n_expert_groups ||
         h->n_expert_used > h->n_expert / h->n_expert_groups * h->n_groups_used))
        return tn_fail(TN_E_FORMAT, "%s: cannot choose %d of %d experts from %d of %d groups", tn_gguf_path(file),
                       h->n_expert_used, h->n_expert, h->n_groups_used, h->n_expert_groups);
    return TN_OK;
}

static tn_status read_experts(const tn_gguf *file, const tn__arch *arch, tn__hparams *h) {
    h->n_expert = get_int(file, "expert_count", 0);
    h->n_expert_used = get_int(file, "expert_used_count", 0);
    if (h->n_expert == 0) return TN_OK;
    if (h->n_expert < 0 || h->n_expert > 65536 || h->n_expert_used <= 0 || h->n_expert_used > h->n_expert)
        return tn_fail(TN_E_FORMAT, "%s: %d of %d experts are used; it must be at least 1 and at most all",
                       tn_gguf_path(file), h->n_expert_used, h->n_expert);
    h->n_ff_expert = get_int(file, "expert_feed_forward_length", 0);
    if (h->n_ff_expert <= 0) h->n_ff_expert = h->layers[0].n_ff;
    h->n_ff_shared = get_int(file, "expert_shared_feed_forward_length", 0);
    const int64_t n_shared = get_int(file, "expert_shared_count", 0);
    if (h->n_ff_shared <= 0 && n_shared > 0 && n_shared * h->n_ff_expert <= 1 << 24)
        h->n_ff_shared = (int32_t)n_shared * h->n_ff_expert;
    const int32_t gating = get_int(file, "expert_gating_func", 0);
    h->gating = arch->gating ? arch->gating : TN__GATING_SOFTMAX;
    if (gating >= TN__GATING_SOFTMAX && gating <= TN__GATING_SOFTMAX_OF_CHOSEN) h->gating = (tn__gating)gating;
    /* Some converters write that weights are not normalised for families that always normalise them. */
    h->norm_expert_weights = arch->info.experts_sum_to_one
                                 ? !tn_gguf_get_bool(file, KEY("expert_weights_raw"), false)
                                 : tn_gguf_get_bool(file, KEY("expert_weights_norm"), false);
    h->expert_scale = get_float(file, "expert_weights_scale", 0);
    const int32_t n_dense = get_int(file, "leading_dense_block_count", 0);
    const int32_t step = get_int(file, "interleave_moe_layer_step", 1);
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].moe = i >= n_dense && (step <= 1 || (i + 1) % step == 0);
    return read_expert_groups(file, h);
}

/* A file may list the layers that have the window, or give a period of its own; otherwise the architecture's period
 * decides. */
static void read_windows(const tn_gguf *file, const tn__arch *arch, tn__hparams *h) {
    if (!tn__arch_has(arch, TN_ARCH_WINDOW)) return;
    const int32_t window = get_int(file, "attention.sliding_window", (int32_t)arch->info.default_window);
    const tn_gguf_arr *listed = tn_gguf_get_arr(file, KEY("attention.sliding_window_pattern"));
    const int32_t period = get_int(file, "attention.sliding_window_pattern", arch->info.window_period);
    for (int32_t i = 0; i < h->n_layer && window > 0; i++) {
        tn__layer_hparams *l = &h->layers[i];
        const bool windowed = period <= 0 || (arch->info.full_first ? i % period > 0 : i % period < period - 1);
        if (listed ? tn__flag_at(file, "attention.sliding_window_pattern", i, windowed) : windowed)
            l->window = window;
        if (l->window)
            l->rope_base = get_float(file, "rope.freq_base_swa", l->rope_base);
        else
            l->no_rope = arch->rope_in_windows;
        if (!(l->rope_base > 0)) l->rope_base = 10000;
    }
}

/* A multi-token prediction layer is like the last ordinary layer with attention. It need not have experts. */
static void describe_nextn_layers(const tn_gguf *file, tn__hparams *h) {
    const uint32_t latent = TN__MIXES_LATENT | TN__MIXES_EXPANDED_LATENT;
    int32_t like = h->n_layer - 1;
    for (; like > 0; like--) {
        const tn__layer_hparams *l = &h->layers[like];
        if (tn__layer_attends(l) || (l->mixer && (l->mixer->kinds & latent))) break;
    }
    for (int32_t i = h->n_layer; i < h->n_layer + h->n_nextn; i++) {
        char name[64];
        h->layers[i] = h->layers[like];
        h->layers[i].cells_of = 0;
        snprintf(name, sizeof name, "blk.%d.ffn_up.weight", i);
        const tn_gguf_tensor *up = tn_gguf_find_tensor(file, name);
        if (!up || !h->layers[i].moe || up->ne[1] > 1 << 24) continue;
        h->layers[i].moe = false;
        h->layers[i].n_ff = (int32_t)up->ne[1];
    }
}

tn_status tn__hparams_read(const tn_gguf *file, const tn__arch *arch, tn__hparams *h) {
    memset(h, 0, sizeof *h);
    TN_TRY(need_positive(file, "block_count", 65536, &h->n_layer));
    /* Every layer has tensors, so the number of layers is limited by the number of tensors. */
    if (tn_gguf_tensor_count(file) && (uint64_t)h->n_layer > tn_gguf_tensor_count(file))
        return tn_fail(TN_E_FORMAT, "%s: %s is %d, but the file has only %llu tensors", tn_gguf_path(file),
                       KEY("block_count"), h->n_layer, (unsigned long long)tn_gguf_tensor_count(file));
    h->n_nextn = get_int(file, "nextn_predict_layers", 0);
    if (h->n_nextn < 0 || h->n_nextn >= h->n_layer)
        return tn_fail(TN_E_FORMAT, "%s: %s is %d of %d layers", tn_gguf_path(file), KEY("nextn_predict_layers"),
                       h->n_nextn, h->n_layer);
    h->n_layer -= h->n_nextn;
    TN_TRY(need_positive(file, "embedding_length", 1 << 24, &h->n_embd));
    TN_TRY(need_positive(file, "context_length", INT32_MAX, &h->n_ctx_train));
    TN_TRY(read_layers(file, arch, h));
    h->n_stored_layers = h->n_layer;

    const tn_gguf_tensor *embd = tn_gguf_find_tensor(file, "token_embd.weight");
    const tn_gguf_arr *tokens = tn_gguf_get_arr(file, "tokenizer.ggml.tokens");
    h->n_vocab = get_int(file, "vocab_size", 0);
    if (tokens) h->n_vocab = tokens->count <= INT32_MAX ? (int32_t)tokens->count : 0;
    if (h->n_vocab <= 0 && embd && embd->ne[1] <= INT32_MAX) h->n_vocab = (int32_t)embd->ne[1];
    if (h->n_vocab <= 0)
        return tn_fail(TN_E_FORMAT,
                       "%s: the size of the vocabulary is unknown: no tokens, no vocab_size, no token_embd.weight",
                       tn_gguf_path(file));

    int32_t n_head = 1; /* of the first layer with attention */
    for (int32_t i = 0; i < h->n_layer && n_head == 1; i++)
        if (h->layers[i].n_head > 0) n_head = h->layers[i].n_head;
    if (h->n_embd % n_head && !tn_gguf_find(file, KEY("attention.key_length")))
        return tn_fail(TN_E_FORMAT, "%s: a width of %d is not a multiple of %d heads", tn_gguf_path(file), h->n_embd,
                       n_head);
    h->head_k = get_int(file, "attention.key_length", h->n_embd / n_head);
    h->head_v = get_int(file, "attention.value_length", h->n_embd / n_head);
    h->n_rot = get_int(file, "rope.dimension_count", h->head_k);
    if (h->head_k <= 0 || h->head_k > 65536 || h->head_v <= 0 || h->head_v > 65536 || h->n_rot < 0 ||
        h->n_rot > h->head_k || h->n_rot % 2)
        return tn_fail(TN_E_FORMAT, "%s: heads of %d (k) and %d (v) elements with %d rotated are not valid",
                       tn_gguf_path(file), h->head_k, h->head_v, h->n_rot);
    if (h->n_rot == 0) h->n_rot = h->head_k;
    for (int32_t i = 0; i < h->n_layer; i++) {
        h->layers[i].head_k = h->head_k;
        h->layers[i].head_v = h->head_v;
        h->layers[i].n_rot = h->n_rot;
    }

    h->layer_norm = tn__arch_has(arch, TN_ARCH_LAYER_NORM);
    h->norm_eps =
        get_float(file, h->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-5f);
    if (!(h->norm_eps >= 0) || !isfinite(h->norm_eps)) h->norm_eps = 1e-5f;
    read_rope(file, h);
    TN_TRY(read_experts(file, arch, h));
    read_windows(file, arch, h);
    h->rope = arch->rope;
    h->activation = arch->activation;
    h->squared_relu = arch->squared_relu;
    h->ssm.width = get_int(file, "ssm.conv_kernel", 0);
    h->ssm.inner = get_int(file, "ssm.inner_size", 0);
    h->ssm.state = get_int(file, "ssm.state_size", 0);
    h->ssm.heads = get_int(file, "ssm.time_step_rank", 0);
    h->ssm.groups = get_int(file, "ssm.group_count", 0);
    h->ssm.bare_norms = tn_gguf_get_bool(file, KEY("ssm.dt_b_c_rms"), false);
    h->short_conv = get_int(file, "shortconv.l_cache", 0);
    h->causal =
        tn_gguf_get_bool(file, KEY("attention.causal"), !tn__arch_has(arch, TN_ARCH_DIFFUSION | TN_ARCH_ENCODER));
    h->n_token_types =
        get_int(file, "token_type_count", (int32_t)tn_gguf_get_u32(file, "tokenizer.ggml.token_type_count", 0));
    h->separator = (int32_t)tn_gguf_get_u32(
        file, "tokenizer.ggml.seperator_token_id",
        tn_gguf_get_u32(file, "tokenizer.ggml.separator_token_id",
                        strcmp(tn_gguf_get_cstr(file, "tokenizer.ggml.model", ""), "bert") == 0 ? 102 : UINT32_MAX));
    /* GGUF numbers the kinds as the enum does. */
    int32_t pooling = get_int(file, "pooling_type", TN_POOLING_MODEL);
    h->pooling = pooling >= TN_POOLING_NONE && pooling <= TN_POOLING_RANK ? (tn_pooling)pooling : TN_POOLING_MODEL;
    if (arch->read) TN_TRY(arch->read(file, h));
    describe_nextn_layers(file, h);
    return TN_OK;
}

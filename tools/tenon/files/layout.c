/* Metadata keys and tensors of a model to be written. */
#include "files/layout.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void layout_use_constants(struct layout *l, const tn_arch *arch) {
    const tn_arch_constants *typical = &arch->typical;
    l->softcap_attention = typical->softcap_attention, l->softcap_output = typical->softcap_output;
    l->scale_output = typical->scale_output, l->scale_residual = typical->scale_residual;
    l->scale_embedding = typical->scale_embedding;
    l->scale_attention = typical->scale_attention < 0 ? 1 / sqrtf((float)l->head) : typical->scale_attention;
    l->alibi = typical->alibi;
    l->parallel_residual = arch->parallel_key;
}

tn_status layout_check(const struct layout *l) {
    if (!l->layers || !l->width || !l->heads || !l->kv_heads || !l->head || !l->vocab || !l->context)
        return tn_fail(TN_E_INVALID, "layers, width, heads, head size, vocabulary and context must not be 0");
    if (l->layers > 10000) return tn_fail(TN_E_INVALID, "%" PRIu32 " layers: at most 10000 are possible", l->layers);
    if (l->heads % l->kv_heads != 0)
        return tn_fail(TN_E_INVALID, "%" PRIu32 " heads cannot share %" PRIu32 " KV heads evenly", l->heads,
                       l->kv_heads);
    if (!l->experts && !l->ffn) return tn_fail(TN_E_INVALID, "the size of the feed-forward layer must not be 0");
    if (l->experts && (!l->experts_used || l->experts_used > l->experts || !l->expert_ffn))
        return tn_fail(TN_E_INVALID, "%" PRIu32 " of %" PRIu32 " experts of size %" PRIu32 " are not possible",
                       l->experts_used, l->experts, l->expert_ffn);
    if ((l->traits & TN_ARCH_EXPERTS) && !l->experts)
        return tn_fail(TN_E_INVALID, "the architecture %s needs experts", l->arch->name);
    return TN_OK;
}

tn_status layout_tensors(const tn_gguf_writer *writer, tn_arch_tensor_fn fn, void *user) {
    tn_gguf *metadata;
    TN_TRY(tn_gguf_writer_metadata(writer, &metadata));
    tn_status status = tn_arch_tensors(metadata, fn, user);
    tn_gguf_close(metadata);
    return status;
}

/* ---- Keys ---- */

struct keys {
    tn_gguf_writer *writer;
    const char *arch;
    tn_status status;
};

static void key_u32(struct keys *k, const char *name, uint32_t value, bool present) {
    char key[160];
    if (!present || k->status != TN_OK) return;
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    k->status = tn_gguf_writer_set_u32(k->writer, key, value);
}
static void key_f32(struct keys *k, const char *name, float value, bool present) {
    char key[160];
    if (!present || k->status != TN_OK) return;
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    k->status = tn_gguf_writer_set_f32(k->writer, key, value);
}
static void key_flag(struct keys *k, const char *name, bool value, bool present) {
    char key[160];
    if (!present || k->status != TN_OK) return;
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    k->status = tn_gguf_writer_set_bool(k->writer, key, value);
}

tn_status layout_keys(const struct layout *l, tn_gguf_writer *writer) {
    const uint64_t f = l->traits;
    struct keys k = {.writer = writer, .arch = l->arch->name};
    k.status = tn_gguf_writer_set_cstr(writer, "general.architecture", l->arch->name);
    key_u32(&k, "block_count", l->layers + l->nextn, true);
    key_u32(&k, "nextn_predict_layers", l->nextn, l->nextn);
    key_u32(&k, "context_length", l->context, true);
    key_u32(&k, "embedding_length", l->width, true);
    key_u32(&k, "feed_forward_length", l->ffn && !(l->experts && l->arch->one_ffn_key) ? l->ffn : l->expert_ffn,
            true);
    key_u32(&k, "attention.head_count", l->heads, true);
    key_u32(&k, "attention.head_count_kv", l->kv_heads, true);
    key_u32(&k, "attention.key_length", l->head, true);
    key_u32(&k, "attention.value_length", l->head, true);
    key_f32(&k, f & TN_ARCH_LAYER_NORM ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", l->eps,
            true);
    key_u32(&k, "vocab_size", l->vocab, true);
    key_u32(&k, "rope.dimension_count", l->rotated, !(f & TN_ARCH_NO_ROPE));
    key_f32(&k, "rope.freq_base", l->rope_base, !(f & TN_ARCH_NO_ROPE) && l->rope_base > 0);
    key_f32(&k, "rope.freq_base_swa", l->rope_base_local, l->rope_base_local > 0);
    key_u32(&k, "expert_count", l->experts, l->experts);
    key_u32(&k, "expert_used_count", l->experts_used, l->experts);
    key_u32(&k, "expert_feed_forward_length", l->expert_ffn, l->experts);
    key_u32(&k, "expert_shared_feed_forward_length", l->shared_ffn, l->shared_ffn);
    key_flag(&k, "expert_weights_norm", true, l->experts_normalized);
    key_flag(&k, "expert_weights_raw", true, l->experts_as_weighted);
    key_u32(&k, "attention.sliding_window", l->window, l->window);
    /* Families that usually have a cap say 0 if they have none. */
    const tn_arch_constants *typical = &l->arch->typical;
    key_f32(&k, "attn_logit_softcapping", l->softcap_attention,
            l->softcap_attention > 0 || typical->softcap_attention > 0);
    key_f32(&k, "final_logit_softcapping", l->softcap_output, l->softcap_output > 0 || typical->softcap_output > 0);
    key_f32(&k, "logit_scale", l->scale_output, l->scale_output > 0);
    key_f32(&k, "residual_scale", l->scale_residual, l->scale_residual > 0);
    key_f32(&k, "embedding_scale", l->scale_embedding, l->scale_embedding > 0);
    key_f32(&k, "attention.scale", l->scale_attention, l->scale_attention > 0);
    key_f32(&k, "attention.clamp_kqv", l->clamp_qkv, l->clamp_qkv > 0);
    key_f32(&k, "attention.max_alibi_bias", l->alibi, l->alibi > 0);
    key_flag(&k, "use_parallel_residual", l->parallel_residual, l->arch->parallel_key);
    key_flag(&k, "attention.causal", false, f & (TN_ARCH_ENCODER | TN_ARCH_DIFFUSION));
    key_u32(&k, "pooling_type", 1, f & TN_ARCH_ENCODER); /* mean */
    if (k.status == TN_OK && l->token_types)
        k.status = tn_gguf_writer_set_u32(writer, "tokenizer.ggml.token_type_count", l->token_types);
    return k.status;
}

static double unit_value(const struct layout *l, tn_arch_unit unit) {
    switch (unit) {
    case TN_ARCH_WIDTH: return l->width;
    case TN_ARCH_HEADS: return l->heads;
    case TN_ARCH_KV_HEADS: return l->kv_heads;
    case TN_ARCH_HEAD: return l->head;
    case TN_ARCH_FFN: return l->ffn;
    case TN_ARCH_COUNT:
    case TN_ARCH_REAL:
    case TN_ARCH_TRUTH: break;
    }
    return 1;
}

/* A list with one number per layer. */
static tn_status set_pattern(const struct layout *l, const tn_arch_key *row, const char *key, double value,
                             tn_gguf_writer *writer) {
    const size_t period = strlen(row->pattern);
    const bool truth = row->unit == TN_ARCH_TRUTH;
    uint32_t *numbers = tn_calloc(l->layers, sizeof *numbers);
    bool *truths = (bool *)numbers;
    if (!numbers) return TN_E_NOMEM;
    for (uint32_t i = 0; i < l->layers; i++) {
        const double number = value * (row->pattern[i % period] - '0');
        if (truth)
            truths[i] = number != 0;
        else
            numbers[i] = (uint32_t)number;
    }
    tn_status status = tn_gguf_writer_set_array(writer, key, truth ? TN_GGUF_BOOL : TN_GGUF_U32, numbers, l->layers);
    tn_free(numbers);
    return status;
}

tn_status layout_synthetic_keys(const struct layout *l, tn_gguf_writer *writer) {
    char key[160];
    for (const tn_arch_key *row = l->arch->keys; row && row->name; row++) {
        const double value = row->value * unit_value(l, row->unit);
        snprintf(key, sizeof key, "%s.%s", l->arch->name, row->name);
        if (row->pattern)
            TN_TRY(set_pattern(l, row, key, value, writer));
        else if (row->unit == TN_ARCH_REAL)
            TN_TRY(tn_gguf_writer_set_f32(writer, key, (float)value));
        else if (row->unit == TN_ARCH_TRUTH)
            TN_TRY(tn_gguf_writer_set_bool(writer, key, value != 0));
        else
            TN_TRY(tn_gguf_writer_set_u32(writer, key, (uint32_t)value));
    }
    return TN_OK;
}

/* What a GGUF model of each architecture consists of: its metadata keys, and its tensors with their shapes. */
#include "files/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define L_CLASSIC (L_LAYER_NORM | L_NORM_BIAS | L_NO_GATE | L_FFN_BIAS | L_OUT_BIAS | L_QKV_BIAS)

const struct layout_arch layout_table[] = {
    {"llama", 0, 0, 1},
    {"mistral3", 0, 0, 1},
    {"qwen2", L_QKV_BIAS, 0, 1},
    {"qwen2moe", L_QKV_BIAS | L_EXPERTS | L_SHARED_EXPERT | L_SHARED_GATE, 0, 1},
    {"qwen3", L_QK_NORM, 0, 1},
    {"qwen3moe", L_QK_NORM | L_EXPERTS, 0, 1},
    {"gemma", L_TIED, 0, 1},
    {"gemma2", L_TIED | L_POST_NORMS, 0, 1},
    {"gemma3", L_TIED | L_POST_NORMS | L_QK_NORM, 0, 1},
    {"phi2", L_CLASSIC | L_NO_FFN_NORM | L_OUTPUT_BIAS, 0, 0.4f},
    {"phi3", L_FUSED_QKV | L_FUSED_UP, 0, 1},
    {"gpt2", L_CLASSIC | L_FUSED_QKV | L_POSITIONS | L_NO_ROPE, 0, 1},
    {"gptneox", L_CLASSIC | L_FUSED_QKV, 0, 0.25f},
    {"falcon", L_LAYER_NORM | L_NORM_BIAS | L_NO_GATE | L_FUSED_QKV | L_NO_FFN_NORM, 0, 1},
    {"mpt", L_LAYER_NORM | L_NO_GATE | L_FUSED_QKV | L_TIED | L_NO_ROPE, 0, 1},
    {"starcoder", L_CLASSIC | L_FUSED_QKV | L_POSITIONS | L_NO_ROPE, 0, 1},
    {"starcoder2", L_CLASSIC, 0, 1},
    {"stablelm", L_LAYER_NORM | L_NORM_BIAS, 0, 0.25f},
    {"smollm3", L_TIED, 0, 1},
    {"olmo", L_LAYER_NORM | L_BARE_NORMS, 0, 1},
    {"olmo2", L_NO_PRE_NORMS | L_POST_NORMS | L_QK_NORM_WIDE, 0, 1},
    {"olmoe", L_QK_NORM_WIDE | L_EXPERTS, 0, 1},
    {"granite", 0, 0, 1},
    {"granitemoe", L_EXPERTS, 0, 1},
    {"gpt-oss", L_QKV_BIAS | L_OUT_BIAS | L_SINKS | L_EXPERTS | L_EXPERT_BIAS, 64, 1},
    {"internlm2", 0, 0, 1},
    {"command-r", L_LAYER_NORM | L_NO_FFN_NORM | L_TIED, 0, 1},
    {"bert", L_CLASSIC | L_ENCODER | L_POSITIONS | L_NO_ROPE, 0, 1},
    {"nomic-bert", L_LAYER_NORM | L_NORM_BIAS | L_FUSED_QKV | L_ENCODER, 0, 1},
    {NULL, 0, 0, 0},
};

const struct layout_arch *layout_find(const char *name) {
    for (const struct layout_arch *arch = layout_table; arch->name; arch++)
        if (strcmp(arch->name, name) == 0) return arch;
    return NULL;
}

tn_status layout_check(const struct layout *l) {
    if (!l->layers || !l->width || !l->heads || !l->kv_heads || !l->head || !l->vocab || !l->context)
        return tn_fail(TN_E_INVALID, "layers, width, heads, head size, vocabulary and context must not be 0");
    if (l->layers > 10000) return tn_fail(TN_E_INVALID, "%" PRIu32 " layers", l->layers);
    if (l->heads % l->kv_heads != 0)
        return tn_fail(TN_E_INVALID, "%" PRIu32 " heads cannot share %" PRIu32 " KV heads evenly", l->heads,
                       l->kv_heads);
    if (!l->experts && !l->ffn) return tn_fail(TN_E_INVALID, "the size of the feed-forward layer must not be 0");
    if (l->experts && (!l->experts_used || l->experts_used > l->experts || !l->expert_ffn))
        return tn_fail(TN_E_INVALID, "%" PRIu32 " of %" PRIu32 " experts of size %" PRIu32 " make no sense",
                       l->experts_used, l->experts, l->expert_ffn);
    if ((l->features & L_EXPERTS) && !l->experts)
        return tn_fail(TN_E_INVALID, "the architecture %s needs experts", l->arch->name);
    return TN_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------
 */

struct walk {
    layout_visitor visit;
    void *user;
    int layer; /* -1 outside the blocks */
    tn_status status;
};

/* Adds "blk.N.NAME.ENDING" (or "NAME.ENDING"); dimensions that are 0 are absent. Does nothing after a failure. */
static void add(struct walk *w, const char *name, const char *ending, enum layout_kind kind, int64_t a, int64_t b,
                int64_t c) {
    char full[128];
    int64_t ne[3] = {a, b, c};
    int n_dims = c ? 3 : b ? 2 : 1;
    if (w->status != TN_OK) return;
    if (w->layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s.%s", w->layer, name, ending);
    else
        snprintf(full, sizeof full, "%s.%s", name, ending);
    w->status = w->visit(w->user, full, kind, n_dims, ne);
}
static void matrix(struct walk *w, const char *name, int64_t in, int64_t out) {
    add(w, name, "weight", LAYOUT_MATRIX, in, out, 0);
}
static void bias(struct walk *w, const char *name, int64_t size, bool wanted) {
    if (wanted) add(w, name, "bias", LAYOUT_BIAS, size, 0, 0);
}
static void norm(struct walk *w, const struct layout *l, const char *name, int64_t size) {
    if (l->features & L_BARE_NORMS) return;
    add(w, name, "weight", LAYOUT_NORM, size, 0, 0);
    bias(w, name, size, l->features & L_NORM_BIAS);
}

static void attention(struct walk *w, const struct layout *l) {
    uint32_t f = l->features;
    int64_t width = l->width, head = l->head, q = head * l->heads, kv = head * l->kv_heads;
    if (f & L_FUSED_QKV) {
        matrix(w, "attn_qkv", width, q + 2 * kv);
        bias(w, "attn_qkv", q + 2 * kv, f & L_QKV_BIAS);
    } else {
        matrix(w, "attn_q", width, q);
        bias(w, "attn_q", q, f & L_QKV_BIAS);
        matrix(w, "attn_k", width, kv);
        bias(w, "attn_k", kv, f & L_QKV_BIAS);
        matrix(w, "attn_v", width, kv);
        bias(w, "attn_v", kv, f & L_QKV_BIAS);
    }
    if (f & L_QK_NORM) {
        add(w, "attn_q_norm", "weight", LAYOUT_NORM, head, 0, 0);
        add(w, "attn_k_norm", "weight", LAYOUT_NORM, head, 0, 0);
    }
    if (f & L_QK_NORM_WIDE) {
        add(w, "attn_q_norm", "weight", LAYOUT_NORM, q, 0, 0);
        add(w, "attn_k_norm", "weight", LAYOUT_NORM, kv, 0, 0);
    }
    if (f & L_QK_NORM_HEADS) {
        add(w, "attn_q_norm", "weight", LAYOUT_NORM, head, l->heads, 0);
        add(w, "attn_k_norm", "weight", LAYOUT_NORM, head, l->kv_heads, 0);
    }
    matrix(w, "attn_output", q, width);
    bias(w, "attn_output", width, f & L_OUT_BIAS);
    if (f & L_SINKS) add(w, "attn_sinks", "weight", LAYOUT_BIAS, l->heads, 0, 0);
}

static void experts(struct walk *w, const struct layout *l) {
    uint32_t f = l->features;
    int64_t width = l->width, ffn = l->expert_ffn, n = l->experts;
    matrix(w, "ffn_gate_inp", width, n);
    bias(w, "ffn_gate_inp", n, f & L_EXPERT_BIAS);
    add(w, "ffn_gate_exps", "weight", LAYOUT_MATRIX, width, ffn, n);
    add(w, "ffn_up_exps", "weight", LAYOUT_MATRIX, width, ffn, n);
    add(w, "ffn_down_exps", "weight", LAYOUT_MATRIX, ffn, width, n);
    if (f & L_EXPERT_BIAS) {
        add(w, "ffn_gate_exps", "bias", LAYOUT_BIAS, ffn, n, 0);
        add(w, "ffn_up_exps", "bias", LAYOUT_BIAS, ffn, n, 0);
        add(w, "ffn_down_exps", "bias", LAYOUT_BIAS, width, n, 0);
    }
    if (!(f & L_SHARED_EXPERT) || !l->shared_ffn) return;
    if (f & L_SHARED_GATE) add(w, "ffn_gate_inp_shexp", "weight", LAYOUT_MATRIX, width, 0, 0);
    matrix(w, "ffn_gate_shexp", width, l->shared_ffn);
    matrix(w, "ffn_up_shexp", width, l->shared_ffn);
    matrix(w, "ffn_down_shexp", l->shared_ffn, width);
}

static void feed_forward(struct walk *w, const struct layout *l) {
    uint32_t f = l->features;
    int64_t width = l->width, ffn = l->ffn, up = f & L_FUSED_UP ? 2 * ffn : ffn;
    if (!(f & (L_NO_GATE | L_FUSED_UP))) {
        matrix(w, "ffn_gate", width, ffn);
        bias(w, "ffn_gate", ffn, f & L_FFN_BIAS);
    }
    matrix(w, "ffn_up", width, up);
    bias(w, "ffn_up", up, f & L_FFN_BIAS);
    matrix(w, "ffn_down", ffn, width);
    bias(w, "ffn_down", width, f & L_FFN_BIAS);
}

static void block(struct walk *w, const struct layout *l) {
    uint32_t f = l->features;
    bool encoder = f & L_ENCODER;
    if (!encoder && !(f & L_NO_PRE_NORMS)) norm(w, l, "attn_norm", l->width);
    if (f & L_ATTN_NORM_2) norm(w, l, "attn_norm_2", l->width);
    attention(w, l);
    if (encoder) norm(w, l, "attn_output_norm", l->width);
    if (f & (L_POST_NORMS | L_SINKS)) norm(w, l, "post_attention_norm", l->width);
    if (!encoder && !(f & (L_NO_PRE_NORMS | L_NO_FFN_NORM | L_SINKS | L_ATTN_NORM_2)))
        norm(w, l, "ffn_norm", l->width);
    if (l->experts)
        experts(w, l);
    else
        feed_forward(w, l);
    if (f & L_POST_NORMS) norm(w, l, "post_ffw_norm", l->width);
    if (encoder) norm(w, l, "layer_output_norm", l->width);
}

tn_status layout_tensors(const struct layout *l, layout_visitor visit, void *user) {
    struct walk w = {.visit = visit, .user = user, .layer = -1};
    uint32_t f = l->features;
    add(&w, "token_embd", "weight", LAYOUT_TABLE, l->width, l->vocab, 0);
    if (l->token_types) add(&w, "token_types", "weight", LAYOUT_TABLE, l->width, l->token_types, 0);
    if (f & L_POSITIONS) add(&w, "position_embd", "weight", LAYOUT_TABLE, l->width, l->context, 0);
    if (f & L_ENCODER) norm(&w, l, "token_embd_norm", l->width);
    if (f & L_ROPE_FACTORS) {
        const char *const names[] = {"rope_freqs", "rope_factors_long", "rope_factors_short"};
        bool pair = f & L_LONG_SHORT;
        for (int i = pair; i <= 2 * pair; i++) add(&w, names[i], "weight", LAYOUT_FACTORS, l->rotated / 2, 0, 0);
    }
    for (uint32_t i = 0; i < l->layers && w.status == TN_OK; i++) {
        w.layer = (int)i;
        block(&w, l);
    }
    w.layer = -1;
    if (f & L_ENCODER) return w.status;
    norm(&w, l, "output_norm", l->width);
    if (!(f & L_TIED)) matrix(&w, "output", l->width, l->vocab);
    bias(&w, "output", l->vocab, f & L_OUTPUT_BIAS);
    return w.status;
}

/* ---- Keys -------------------------------------------------------------------------------------------------------
 */

struct keys {
    tn_gguf_writer *writer;
    const char *arch;
    tn_status status;
};

static void u32(struct keys *k, const char *name, uint32_t value, bool wanted) {
    char key[160];
    if (!wanted || k->status != TN_OK) return;
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    k->status = tn_gguf_writer_set_u32(k->writer, key, value);
}
static void f32(struct keys *k, const char *name, float value, bool wanted) {
    char key[160];
    if (!wanted || k->status != TN_OK) return;
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    k->status = tn_gguf_writer_set_f32(k->writer, key, value);
}
static void flag(struct keys *k, const char *name, bool value, bool wanted) {
    char key[160];
    if (!wanted || k->status != TN_OK) return;
    snprintf(key, sizeof key, "%s.%s", k->arch, name);
    k->status = tn_gguf_writer_set_bool(k->writer, key, value);
}

/* These architectures have one key for the size of a feed-forward layer, which is then that of an expert. */
static bool same_ffn(const struct layout *l) {
    const char *const names[] = {"llama", "mistral3", "olmoe", "granitemoe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(l->arch->name, names[i]) == 0) return true;
    return false;
}

tn_status layout_keys(const struct layout *l, tn_gguf_writer *writer) {
    uint32_t f = l->features;
    struct keys k = {.writer = writer, .arch = l->arch->name};
    k.status = tn_gguf_writer_set_cstr(writer, "general.architecture", l->arch->name);
    u32(&k, "block_count", l->layers, true);
    u32(&k, "context_length", l->context, true);
    u32(&k, "embedding_length", l->width, true);
    u32(&k, "feed_forward_length", l->ffn && !(l->experts && same_ffn(l)) ? l->ffn : l->expert_ffn, true);
    u32(&k, "attention.head_count", l->heads, true);
    u32(&k, "attention.head_count_kv", l->kv_heads, true);
    u32(&k, "attention.key_length", l->head, true);
    u32(&k, "attention.value_length", l->head, true);
    f32(&k, f & L_LAYER_NORM ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", l->eps, true);
    u32(&k, "vocab_size", l->vocab, true);
    u32(&k, "rope.dimension_count", l->rotated, !(f & L_NO_ROPE));
    f32(&k, "rope.freq_base", l->rope_base, !(f & L_NO_ROPE) && l->rope_base > 0);
    f32(&k, "rope.freq_base_swa", l->rope_base_local, l->rope_base_local > 0);
    u32(&k, "expert_count", l->experts, l->experts);
    u32(&k, "expert_used_count", l->experts_used, l->experts);
    u32(&k, "expert_feed_forward_length", l->expert_ffn, l->experts);
    u32(&k, "expert_shared_feed_forward_length", l->shared_ffn, l->shared_ffn);
    flag(&k, "expert_weights_norm", true, l->experts_normalized);
    u32(&k, "attention.sliding_window", l->window, l->window);
    f32(&k, "attn_logit_softcapping", l->softcap_attention, l->softcap_attention > 0);
    f32(&k, "final_logit_softcapping", l->softcap_output, l->softcap_output > 0);
    f32(&k, "logit_scale", l->scale_output, l->scale_output > 0);
    f32(&k, "residual_scale", l->scale_residual, l->scale_residual > 0);
    f32(&k, "embedding_scale", l->scale_embedding, l->scale_embedding > 0);
    f32(&k, "attention.scale", l->scale_attention, l->scale_attention > 0);
    f32(&k, "attention.clamp_kqv", l->clamp_qkv, l->clamp_qkv > 0);
    f32(&k, "attention.max_alibi_bias", l->alibi, l->alibi > 0);
    flag(&k, "use_parallel_residual", l->parallel_residual, strcmp(l->arch->name, "gptneox") == 0);
    flag(&k, "attention.causal", false, f & L_ENCODER);
    u32(&k, "pooling_type", 1, f & L_ENCODER); /* mean */
    if (k.status == TN_OK && l->token_types)
        k.status = tn_gguf_writer_set_u32(writer, "tokenizer.ggml.token_type_count", l->token_types);
    return k.status;
}

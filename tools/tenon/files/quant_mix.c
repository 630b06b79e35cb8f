/* Quantization mixes: the type of each tensor under names such as Q4_K_M.
 *
 * Names and rules are the ones in common use for GGUF files: tensors that affect quality most (attention values, the
 * second feed-forward matrix of the first, last and every third layer, the output) get more bits. */
#include "files/quant_mix.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

const struct mix mix_table[] = {
    {"F32", TN_F32, 0},        {"F16", TN_F16, 1},          {"BF16", TN_BF16, 32},       {"Q4_0", TN_Q4_0, 2},
    {"Q4_1", TN_Q4_1, 3},      {"Q5_0", TN_Q5_0, 8},        {"Q5_1", TN_Q5_1, 9},        {"Q8_0", TN_Q8_0, 7},
    {"Q2_K", TN_Q2_K, 10},     {"Q3_K_S", TN_Q3_K, 11},     {"Q3_K_M", TN_Q3_K, 12},     {"Q3_K_L", TN_Q3_K, 13},
    {"Q4_K_S", TN_Q4_K, 14},   {"Q4_K_M", TN_Q4_K, 15},     {"Q5_K_S", TN_Q5_K, 16},     {"Q5_K_M", TN_Q5_K, 17},
    {"Q6_K", TN_Q6_K, 18},     {"IQ4_NL", TN_IQ4_NL, 25},   {"IQ4_XS", TN_IQ4_XS, 30},   {"MXFP4", TN_MXFP4, 38},
    {"TQ1_0", TN_TQ1_0, 36},   {"TQ2_0", TN_TQ2_0, 37},     {"Q2_K_S", TN_Q2_K, 21},     {"IQ3_M", TN_IQ3_S, 27},
    {"IQ3_S", TN_IQ3_S, 26},   {"IQ3_XS", TN_IQ3_S, 22},    {"IQ3_XXS", TN_IQ3_XXS, 23}, {"IQ2_M", TN_IQ2_S, 29},
    {"IQ2_S", TN_IQ2_XS, 28}, /* as everywhere: its type is iq2_xs, with more bits for some tensors */
    {"IQ2_XS", TN_IQ2_XS, 20}, {"IQ2_XXS", TN_IQ2_XXS, 19}, {"IQ1_M", TN_IQ1_M, 31},     {"IQ1_S", TN_IQ1_S, 24},
    {NULL, TN_F32, 0},
};

const struct mix *mix_find(const char *name) {
    /* Common short names of the medium mixes. */
    static const char *const short_names[][2] = {{"Q3_K", "Q3_K_M"}, {"Q4_K", "Q4_K_M"}, {"Q5_K", "Q5_K_M"}};
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++)
        if (strcasecmp(name, short_names[i][0]) == 0) name = short_names[i][1];
    char number[16];
    for (const struct mix *mix = mix_table; mix->name; mix++) {
        snprintf(number, sizeof number, "%u", mix->file_type);
        if (strcasecmp(mix->name, name) == 0 || strcmp(number, name) == 0) return mix;
    }
    return NULL;
}

/* ---- Rules ---- */

enum mix_role {
    ROLE_OTHER,
    ROLE_ATTN_V,
    ROLE_ATTN_Q,
    ROLE_ATTN_K,
    ROLE_ATTN_OUT,
    ROLE_ATTN_QKV,
    ROLE_FFN_DOWN,
    ROLE_FFN_IN,     /* gate and up */
    ROLE_MIXER_OUT,  /* of recurrent layers */
    ROLE_MIXER_GATES /* of recurrent layers: a row per head */
};

enum mix_layers {
    ALWAYS,
    FIRST_2,         /* layers */
    FIRST_4,         /* layers */
    FIRST_16TH,      /* of the layers */
    FIRST_8TH,       /* of the layers */
    FIRST_8TH_BLIND, /* … without an importance file */
    FIRST_8TH_SEEN,  /* … with one */
    MIDDLE,          /* all but the first and the last eighth of the layers */
    BLIND,           /* without an importance file */
    MORE_BITS,       /* the first and the last eighth, and every third layer between */
    EIGHT_EXPERTS_MORE_BITS,
    FOUR_EXPERTS, /* or more */
    SHARED_HEADS  /* at least four query heads share a value head: a small matrix with a large effect */
};

static const struct mix_rule {
    const char *mix;
    enum mix_role role;
    enum mix_layers when;
    tn_type type;
} rules[] = {
    /* The first matching rule decides. */
    {"Q2_K", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"Q2_K", ROLE_ATTN_V, ALWAYS, TN_Q3_K},
    {"Q2_K", ROLE_FFN_DOWN, ALWAYS, TN_Q3_K},
    {"Q2_K", ROLE_ATTN_OUT, ALWAYS, TN_Q3_K},
    {"Q3_K_M", ROLE_ATTN_V, FIRST_2, TN_Q5_K},
    {"Q3_K_M", ROLE_ATTN_V, ALWAYS, TN_Q4_K},
    {"Q3_K_M", ROLE_FFN_DOWN, FIRST_16TH, TN_Q5_K},
    {"Q3_K_M", ROLE_FFN_DOWN, ALWAYS, TN_Q4_K},
    {"Q3_K_M", ROLE_ATTN_OUT, ALWAYS, TN_Q4_K},
    {"Q3_K_M", ROLE_ATTN_QKV, ALWAYS, TN_Q4_K},
    {"Q3_K_L", ROLE_ATTN_V, ALWAYS, TN_Q5_K},
    {"Q3_K_L", ROLE_FFN_DOWN, ALWAYS, TN_Q5_K},
    {"Q3_K_L", ROLE_ATTN_OUT, ALWAYS, TN_Q5_K},
    {"Q3_K_L", ROLE_ATTN_QKV, ALWAYS, TN_Q4_K},
    {"Q4_K_S", ROLE_ATTN_V, FIRST_4, TN_Q5_K},
    {"Q4_K_S", ROLE_FFN_DOWN, FIRST_8TH, TN_Q5_K},
    {"Q4_K_M", ROLE_ATTN_V, MORE_BITS, TN_Q6_K},
    {"Q4_K_M", ROLE_FFN_DOWN, MORE_BITS, TN_Q6_K},
    {"Q4_K_M", ROLE_ATTN_QKV, ALWAYS, TN_Q5_K},
    {"Q5_K_M", ROLE_ATTN_V, MORE_BITS, TN_Q6_K},
    {"Q5_K_M", ROLE_FFN_DOWN, MORE_BITS, TN_Q6_K},
    {"Q5_K_M", ROLE_ATTN_QKV, ALWAYS, TN_Q6_K},
    {"IQ4_NL", ROLE_ATTN_V, SHARED_HEADS, TN_Q5_K},
    {"IQ4_XS", ROLE_ATTN_V, SHARED_HEADS, TN_Q5_K},
    {"IQ4_NL", ROLE_FFN_DOWN, FIRST_8TH_BLIND, TN_Q5_K},
    {"IQ4_XS", ROLE_FFN_DOWN, FIRST_8TH_BLIND, TN_Q5_K},
    {"IQ1_S", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ1_S", ROLE_ATTN_V, FOUR_EXPERTS, TN_Q4_K},
    {"IQ1_S", ROLE_ATTN_V, ALWAYS, TN_Q2_K},
    {"IQ1_S", ROLE_ATTN_QKV, SHARED_HEADS, TN_Q4_K},
    {"IQ1_S", ROLE_ATTN_QKV, FOUR_EXPERTS, TN_Q4_K},
    {"IQ1_S", ROLE_ATTN_QKV, ALWAYS, TN_Q2_K},
    {"IQ1_S", ROLE_FFN_DOWN, FIRST_8TH, TN_Q2_K},
    {"IQ1_S", ROLE_ATTN_OUT, ALWAYS, TN_IQ2_XXS},
    {"IQ1_M", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ1_M", ROLE_ATTN_V, FOUR_EXPERTS, TN_Q4_K},
    {"IQ1_M", ROLE_ATTN_V, ALWAYS, TN_Q2_K},
    {"IQ1_M", ROLE_ATTN_QKV, SHARED_HEADS, TN_Q4_K},
    {"IQ1_M", ROLE_ATTN_QKV, FOUR_EXPERTS, TN_Q4_K},
    {"IQ1_M", ROLE_ATTN_QKV, ALWAYS, TN_Q2_K},
    {"IQ1_M", ROLE_FFN_DOWN, FIRST_8TH, TN_Q2_K},
    {"IQ1_M", ROLE_ATTN_OUT, ALWAYS, TN_IQ2_XXS},
    {"IQ2_XXS", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ2_XXS", ROLE_ATTN_V, FOUR_EXPERTS, TN_Q4_K},
    {"IQ2_XXS", ROLE_ATTN_V, ALWAYS, TN_Q2_K},
    {"IQ2_XXS", ROLE_ATTN_QKV, SHARED_HEADS, TN_Q4_K},
    {"IQ2_XXS", ROLE_ATTN_QKV, FOUR_EXPERTS, TN_Q4_K},
    {"IQ2_XXS", ROLE_ATTN_QKV, ALWAYS, TN_Q2_K},
    {"IQ2_XXS", ROLE_FFN_DOWN, FIRST_8TH, TN_Q2_K},
    {"IQ2_XS", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ2_XS", ROLE_ATTN_V, FOUR_EXPERTS, TN_Q4_K},
    {"IQ2_XS", ROLE_ATTN_V, ALWAYS, TN_Q2_K},
    {"IQ2_XS", ROLE_ATTN_QKV, SHARED_HEADS, TN_Q4_K},
    {"IQ2_XS", ROLE_ATTN_QKV, FOUR_EXPERTS, TN_Q4_K},
    {"IQ2_XS", ROLE_ATTN_QKV, ALWAYS, TN_Q2_K},
    {"IQ2_XS", ROLE_FFN_DOWN, FIRST_8TH, TN_Q2_K},
    {"IQ2_S", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ2_S", ROLE_ATTN_V, FOUR_EXPERTS, TN_Q4_K},
    {"IQ2_S", ROLE_ATTN_V, ALWAYS, TN_IQ3_S},
    {"IQ2_S", ROLE_ATTN_QKV, SHARED_HEADS, TN_Q4_K},
    {"IQ2_S", ROLE_ATTN_QKV, FOUR_EXPERTS, TN_Q4_K},
    {"IQ2_S", ROLE_ATTN_QKV, ALWAYS, TN_IQ3_S},
    {"IQ2_S", ROLE_FFN_DOWN, FIRST_8TH, TN_IQ3_S},
    {"IQ2_S", ROLE_ATTN_OUT, ALWAYS, TN_IQ3_S},
    {"IQ2_M", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ2_M", ROLE_ATTN_V, FOUR_EXPERTS, TN_Q4_K},
    {"IQ2_M", ROLE_ATTN_V, ALWAYS, TN_IQ3_S},
    {"IQ2_M", ROLE_ATTN_QKV, SHARED_HEADS, TN_Q4_K},
    {"IQ2_M", ROLE_ATTN_QKV, FOUR_EXPERTS, TN_Q4_K},
    {"IQ2_M", ROLE_ATTN_QKV, ALWAYS, TN_IQ3_S},
    {"IQ2_M", ROLE_FFN_DOWN, FIRST_8TH, TN_IQ3_S},
    {"IQ2_M", ROLE_ATTN_OUT, ALWAYS, TN_IQ3_S},
    {"IQ3_XXS", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ3_XXS", ROLE_ATTN_V, BLIND, TN_IQ3_S},
    {"IQ3_XXS", ROLE_ATTN_Q, ALWAYS, TN_IQ2_S},
    {"IQ3_XXS", ROLE_ATTN_K, ALWAYS, TN_IQ2_S},
    {"IQ3_XXS", ROLE_FFN_DOWN, FIRST_8TH_BLIND, TN_Q4_K},
    {"IQ3_XXS", ROLE_FFN_DOWN, BLIND, TN_Q3_K},
    {"IQ3_XXS", ROLE_ATTN_OUT, ALWAYS, TN_IQ3_S},
    {"IQ3_XS", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ3_XS", ROLE_ATTN_Q, ALWAYS, TN_IQ3_XXS},
    {"IQ3_XS", ROLE_ATTN_K, ALWAYS, TN_IQ3_XXS},
    {"IQ3_XS", ROLE_FFN_IN, MIDDLE, TN_IQ3_XXS},
    {"IQ3_S", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"IQ3_M", ROLE_ATTN_V, ALWAYS, TN_Q4_K},
    {"IQ3_M", ROLE_ATTN_QKV, ALWAYS, TN_Q4_K},
    {"IQ3_M", ROLE_ATTN_OUT, ALWAYS, TN_Q4_K},
    {"IQ3_M", ROLE_FFN_DOWN, FIRST_8TH, TN_Q4_K},
    {"IQ3_M", ROLE_FFN_DOWN, EIGHT_EXPERTS_MORE_BITS, TN_Q4_K},
    {"Q2_K_S", ROLE_ATTN_V, SHARED_HEADS, TN_Q4_K},
    {"Q2_K_S", ROLE_FFN_DOWN, FIRST_8TH, TN_Q4_K},
    {"Q4_0", ROLE_FFN_DOWN, FIRST_8TH_SEEN, TN_Q4_1},
    {"Q5_0", ROLE_FFN_DOWN, FIRST_8TH_SEEN, TN_Q5_1},
};

static bool rule_applies(enum mix_layers when, const struct mix_model *m, uint32_t layer) {
    uint32_t n = m->layers, eighth = n / 8;
    switch (when) {
    case ALWAYS: return true;
    case FIRST_2: return layer < 2;
    case FIRST_4: return layer < 4;
    case FIRST_16TH: return layer < n / 16;
    case FIRST_8TH: return layer < eighth;
    case FIRST_8TH_BLIND: return layer < eighth && !m->importance;
    case FIRST_8TH_SEEN: return layer < eighth && m->importance;
    case MIDDLE: return layer >= eighth && layer < 7 * n / 8;
    case BLIND: return !m->importance;
    case MORE_BITS: return layer < eighth || layer >= 7 * n / 8 || (layer - eighth) % 3 == 2;
    case EIGHT_EXPERTS_MORE_BITS: return m->experts == 8 && rule_applies(MORE_BITS, m, layer);
    case FOUR_EXPERTS: return m->experts >= 4;
    case SHARED_HEADS: return m->kv_heads > 0 && m->heads / m->kv_heads >= 4;
    }
    return false;
}

static enum mix_role tensor_role(const char *name) {
    if (strstr(name, "attn_v.weight")) return ROLE_ATTN_V;
    if (strstr(name, "attn_q.weight")) return ROLE_ATTN_Q;
    if (strstr(name, "attn_k.weight")) return ROLE_ATTN_K;
    if (strstr(name, "attn_output.weight")) return ROLE_ATTN_OUT;
    if (strstr(name, "attn_qkv.weight")) return ROLE_ATTN_QKV;
    if (strstr(name, "ffn_down")) return ROLE_FFN_DOWN;
    if (strstr(name, "ffn_up") || strstr(name, "ffn_gate")) return ROLE_FFN_IN;
    if (strstr(name, "ssm_out") || strstr(name, "shortconv.out_proj")) return ROLE_MIXER_OUT;
    if (strstr(name, "ssm_alpha") || strstr(name, "ssm_beta") || strstr(name, "ssm_ba")) return ROLE_MIXER_GATES;
    return ROLE_OTHER;
}

static double mix_bits(tn_type type) { return 8.0 * (double)tn_type_bytes(type) / (double)tn_type_block(type); }

/* Mixes whose own type has less than 3.1 bits, but for ternary models. */
static bool has_few_bits(const struct mix *mix) {
    return mix_bits(mix->type) < 3.1 && mix->type != TN_TQ1_0 && mix->type != TN_TQ2_0 && mix->type != TN_Q2_K;
}
bool mix_wants_importance(const struct mix *mix) { return has_few_bits(mix) || mix->type == TN_IQ3_S; }
static bool named(const struct mix *mix, const char *name) { return strcmp(mix->name, name) == 0; }

static tn_type output_type(const struct mix *mix, const struct mix_model *m, int64_t columns) {
    if (mix->type == TN_MXFP4 || mix->type == TN_Q8_0) return TN_Q8_0;
    if (m->output_q8_0 || columns % tn_type_block(mix->type) != 0) return TN_Q8_0;
    return has_few_bits(mix) ? TN_Q5_K : TN_Q6_K;
}

/* With eight experts, attention is a small part of the model, and every token uses it. */
static bool eight_expert_type(const struct mix *mix, enum mix_role role, tn_type *type) {
    const bool few = has_few_bits(mix) && mix->type != TN_IQ3_XXS;
    if (role == ROLE_ATTN_V || role == ROLE_ATTN_K) {
        *type = few ? TN_Q4_K : TN_Q8_0;
        return true;
    }
    if (role != ROLE_ATTN_OUT || mix_bits(mix->type) >= 5) return false;
    *type = TN_Q5_K;
    return true;
}

static tn_type type_by_rules(const struct mix *mix, const struct mix_model *m, const char *name,
                             const int64_t ne[4]) {
    bool embedding = strcmp(name, "token_embd.weight") == 0;
    if (strcmp(name, "output.weight") == 0 || (embedding && !m->has_output)) return output_type(mix, m, ne[0]);
    if (mix->type == TN_MXFP4) return ne[2] > 1 ? TN_MXFP4 : TN_Q8_0; /* only the experts get MXFP4 */
    if (embedding) {
        if (named(mix, "IQ2_S") || named(mix, "IQ2_M") || named(mix, "IQ3_XXS")) return TN_IQ3_S;
        if (has_few_bits(mix)) return TN_Q2_K;
        return mix->type == TN_TQ1_0 || mix->type == TN_TQ2_0 ? TN_Q4_K : mix->type;
    }
    enum mix_role role = tensor_role(name);
    unsigned layer = 0;
    sscanf(name, "blk.%u.", &layer);
    tn_type type = mix->type;
    if (m->experts == 8 && eight_expert_type(mix, role, &type)) return type;
    /* Recurrent layers: errors of the gates and of the output add up over all later tokens. */
    if (role == ROLE_MIXER_GATES) return TN_Q8_0;
    if (role == ROLE_MIXER_OUT && mix_bits(type) < 5.5) return mix_bits(type) < 4 ? TN_Q5_K : TN_Q6_K;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].role == role && strcmp(rules[i].mix, mix->name) == 0 && rule_applies(rules[i].when, m, layer)) {
            type = rules[i].type;
            break;
        }
    /* In models with 80 layers eight heads share one value matrix, so that more bits for it cost very little. */
    if (role == ROLE_ATTN_V && m->layers == 80 && (type == TN_Q3_K || type == TN_Q4_K)) type = TN_Q5_K;
    return type;
}

tn_type mix_fitting(tn_type type, int64_t columns) {
    while (columns % tn_type_block(type) != 0) {
        switch (type) {
        case TN_TQ1_0:
        case TN_TQ2_0: type = TN_Q4_0; break;
        case TN_Q4_K: type = TN_Q5_0; break;
        case TN_Q5_K: type = TN_Q5_1; break;
        case TN_Q6_K: type = TN_Q8_0; break;
        default: type = tn_type_block(type) > 32 ? TN_IQ4_NL : TN_F16; break;
        }
    }
    return type;
}

tn_type mix_type(const struct mix *mix, const struct mix_model *model, const char *name, const int64_t ne[4]) {
    if (!tn_type_is_quantized(mix->type)) return mix->type;
    return mix_fitting(type_by_rules(mix, model, name, ne), ne[0]);
}

/* ---- Properties of a model ---- */

static uint32_t arch_u32(const tn_gguf *file, const char *arch, const char *name) {
    char key[256];
    snprintf(key, sizeof key, "%.100s.%s", arch, name);
    return tn_gguf_get_u32_at(file, key, 0, 0);
}

struct mix_model mix_model_of(const tn_gguf *file, bool importance) {
    const char *arch = tn_gguf_get_cstr(file, "general.architecture", "");
    const tn_arch *family = tn_arch_find(arch);
    return (struct mix_model){
        .layers = arch_u32(file, arch, "block_count"),
        .experts = arch_u32(file, arch, "expert_count"),
        .heads = arch_u32(file, arch, "attention.head_count"),
        .kv_heads = arch_u32(file, arch, "attention.head_count_kv"),
        .has_output = tn_gguf_find_tensor(file, "output.weight") != NULL,
        .output_q8_0 = family && family->output_q8_0,
        .importance = importance,
    };
}

bool mix_quantizes(const char *name, int n_dims) {
    static const char *const kept[] = {"_norm.weight",
                                       "ffn_gate_inp",
                                       "position_embd.weight",
                                       "token_types.weight",
                                       "attn_rel_b",
                                       "rope_freqs.weight",
                                       "ssm_conv1d",
                                       "shortconv.conv.weight",
                                       "altup",
                                       "laurel",
                                       "per_layer_model_proj",
                                       "indexer.k_proj",
                                       "indexer.q_proj",
                                       "time_mix_first",
                                       "time_mix_w0",
                                       "time_mix_w1",
                                       "time_mix_w2",
                                       "time_mix_v0",
                                       "time_mix_v1",
                                       "time_mix_v2",
                                       "time_mix_a0",
                                       "time_mix_a1",
                                       "time_mix_a2",
                                       "time_mix_g1",
                                       "time_mix_g2",
                                       "time_mix_decay_w1",
                                       "time_mix_decay_w2",
                                       "time_mix_lerp_fused"};
    size_t length = strlen(name);
    if (n_dims < 2 || length < 6 || strcmp(name + length - 6, "weight") != 0) return false;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strstr(name, kept[i])) return false;
    return true;
}

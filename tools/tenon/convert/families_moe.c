/* Entries of config.json that architectures with a mixture of experts have. */
#include "convert/convert.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

tn_status config_key_u32(const struct hf_model *m, tn_gguf_writer *w, const char *name, uint32_t value) {
    char key[128];
    if (!value) return TN_OK;
    snprintf(key, sizeof key, "%s.%s", m->layout.arch->name, name);
    return tn_gguf_writer_set_u32(w, key, value);
}
tn_status config_key_f32(const struct hf_model *m, tn_gguf_writer *w, const char *name, double value) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->layout.arch->name, name);
    return tn_gguf_writer_set_f32(w, key, (float)value);
}

/* Leading layers without experts. */
static uint32_t leading_dense(const struct hf_model *m) {
    json_t *types = json_object_get(m->config, "mlp_layer_types");
    uint32_t n = 0;
    while (n < json_array_size(types) && strcmp(json_string_value(json_array_get(types, n)), "dense") == 0) n++;
    return types ? n : config_whole(m->config, "first_k_dense_replace num_dense_layers moe_layer_start_index", 0);
}

/* All layers after the leading ones must have experts. */
static tn_status check_sparse_layers(const struct hf_model *m) {
    json_t *types = json_object_get(m->config, "mlp_layer_types");
    for (uint32_t i = leading_dense(m); i < json_array_size(types); i++)
        if (strcmp(json_string_value(json_array_get(types, i)), "sparse") != 0)
            return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: layer %" PRIu32 " without experts after others with",
                           m->folder, i);
    if (config_whole(m->config, "moe_layer_end_index", m->layout.layers - 1) < m->layout.layers - 1)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: last layers without experts are not converted", m->folder);
    return TN_OK;
}

/* Shared experts are one as large as all of them. */
tn_status config_read_moe(struct hf_model *m) {
    struct layout *l = &m->layout;
    const uint32_t n =
        config_whole(m->config, "n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert", 0);
    l->shared_ffn = n * l->expert_ffn;
    return check_sparse_layers(m);
}

tn_status config_moe_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    const double scale = config_number(m->config, "routed_scaling_factor route_scale", 1);
    TN_TRY(config_key_u32(m, w, "leading_dense_block_count", leading_dense(m)));
    TN_TRY(config_key_u32(m, w, "interleave_moe_layer_step", config_whole(m->config, "moe_layer_interval", 0)));
    if (config_whole(m->config, "n_group num_expert_group", 1) > 1) {
        TN_TRY(config_key_u32(m, w, "expert_group_count", config_whole(m->config, "n_group num_expert_group", 1)));
        TN_TRY(config_key_u32(m, w, "expert_group_used_count", config_whole(m->config, "topk_group", 1)));
    }
    return scale != 1 ? config_key_f32(m, w, "expert_weights_scale", scale) : TN_OK;
}

/* Weights are always normalised. Without μP embeddings are not scaled. RoPE follows the list of windows. */
static tn_status config_read_afmoe(struct hf_model *m) {
    m->layout.experts_normalized = true;
    m->lists_windows = true;
    if (!config_truth(m->config, "mup_enabled", false)) m->layout.scale_embedding = 1;
    return config_read_moe(m);
}

static tn_status config_read_cohere2moe(struct hf_model *m) {
    struct layout *l = &m->layout;
    const char *strategy = json_string_value(json_object_get(m->config, "shared_expert_combination_strategy"));
    l->scale_output = (float)config_number(m->config, "logit_scale", 0.0625);
    l->ffn = config_whole(m->config, "prefix_dense_intermediate_size", l->ffn);
    m->lists_windows = true;
    TN_TRY(config_read_moe(m));
    if (config_first_of(m->config, "rms_norm_eps") || (l->shared_ffn && strategy && strcmp(strategy, "average") != 0))
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/config.json: RMS norms and shared experts that are not averaged are not converted",
                       m->folder);
    return TN_OK;
}
/* The softmax runs over the chosen experts. */
static tn_status config_cohere2moe_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    const char *function = json_string_value(json_object_get(m->config, "expert_selection_fn"));
    TN_TRY(config_key_u32(m, w, "expert_gating_func", function && strcmp(function, "softmax") == 0 ? 3 : 2));
    return config_moe_keys(m, weights, w);
}

/* All experts, the shared one too, have the size of the dense part. */
static tn_status config_read_hunyuan_moe(struct hf_model *m) {
    struct layout *l = &m->layout;
    l->expert_ffn = l->ffn;
    l->shared_ffn = config_whole(m->config, "num_shared_expert", 1) * l->ffn;
    return TN_OK;
}

/* intermediate_size is that of the experts. */
static tn_status config_read_llama4(struct hf_model *m) {
    struct layout *l = &m->layout;
    json_t *rotated = json_object_get(m->config, "no_rope_layers"),
           *types = json_object_get(m->config, "layer_types");
    l->expert_ffn = l->shared_ffn = l->ffn;
    l->ffn = config_whole(m->config, "intermediate_size_mlp", l->ffn);
    for (uint32_t i = 0; i < l->layers; i++) {
        const bool last = i % 4 == 3;
        const char *type = json_string_value(json_array_get(types, i));
        json_t *rope = json_array_get(rotated, i);
        if ((rope && (json_integer_value(rope) == 0) != last) ||
            (type && (strcmp(type, "full_attention") == 0) != last))
            return tn_fail(TN_E_UNSUPPORTED,
                           "%s/config.json: layer %" PRIu32 " differs from a model in which every fourth layer sees "
                           "all positions and has no RoPE",
                           m->folder, i);
    }
    return TN_OK;
}
static tn_status config_llama4_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    char key[128];
    json_t *tuning = json_object_get(m->config, "attn_temperature_tuning"); /* a bool, or a number */
    const bool tuned = !tuning || json_is_true(tuning) || json_integer_value(tuning) != 0;
    TN_TRY(
        config_key_u32(m, w, "interleave_moe_layer_step", config_whole(m->config, "interleave_moe_layer_step", 1)));
    TN_TRY(config_key_u32(m, w, "attention.chunk_size", config_whole(m->config, "attention_chunk_size", 8192)));
    TN_TRY(config_key_u32(m, w, "attention.temperature_length", config_whole(m->config, "floor_scale", 8192)));
    TN_TRY(
        config_key_f32(m, w, "attention.temperature_scale", tuned ? config_number(m->config, "attn_scale", 0.1) : 0));
    snprintf(key, sizeof key, "%s.attention.qk_norm", m->layout.arch->name);
    return tn_gguf_writer_set_bool(w, key, config_truth(m->config, "use_qk_norm", true));
}

const struct config_family moe_config_families[] = {
    {"afmoe", config_read_afmoe, config_moe_keys, NULL},
    {"cohere2moe", config_read_cohere2moe, config_cohere2moe_keys, NULL},
    {"dots1", config_read_moe, config_moe_keys, NULL},
    {"ernie4_5-moe", config_read_moe, config_moe_keys, NULL},
    {"exaone-moe", config_read_moe, config_moe_keys, NULL},
    {"glm4moe", config_read_moe, config_moe_keys, NULL},
    {"hunyuan-moe", config_read_hunyuan_moe, NULL, NULL},
    {"llama4", config_read_llama4, config_llama4_keys, NULL},
    {0},
};

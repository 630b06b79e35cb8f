/* Entries of config.json that only single architectures with a dense feed-forward part have. */
#include "convert/convert.h"

#include <math.h>
#include <string.h>

/* Each layer has its own parameters of xIELU, which are weights. */
static tn_status config_apertus_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *writer) {
    static const char *const parameters[] = {"alpha_n", "alpha_p", "beta", "eps"};
    const uint32_t n = m->layout.layers;
    if (!weights)
        return tn_fail(TN_E_UNSUPPORTED, "apertus has numbers in its weights: its config.json is not enough");
    float *values = tn_calloc(n, sizeof *values);
    tn_status status = values ? TN_OK : TN_E_NOMEM;
    for (size_t p = 0; p < sizeof parameters / sizeof *parameters && status == TN_OK; p++) {
        char pattern[64], key[32];
        snprintf(pattern, sizeof pattern, "layers.L.mlp.act_fn.%s", parameters[p]);
        snprintf(key, sizeof key, "xielu.%s", parameters[p]);
        for (uint32_t i = 0; i < n && status == TN_OK; i++)
            status = hf_weights_scalar(weights, pattern, (int)i, &values[i]);
        if (status == TN_OK) status = tn_gguf_writer_set_array(writer, key, TN_GGUF_F32, values, n);
    }
    tn_free(values);
    return status;
}

/* SiLU, or a squared ReLU. */
static tn_status config_read_bitnet(struct hf_model *m) {
    const char *activation = json_string_value(config_first_of(m->config, "hidden_act hidden_activation"));
    if (!activation || strcmp(activation, "silu") == 0) return TN_OK;
    if (strcmp(activation, "relu2") != 0)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: BitNet with the activation \"%s\" is not converted",
                       m->folder, activation);
    m->activation = "relu2";
    return TN_OK;
}

static tn_status config_read_bloom(struct hf_model *m) {
    if (config_truth(m->config, "apply_residual_connection_post_layernorm", false))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: BLOOM with sums after its norms is not converted",
                       m->folder);
    m->layout.alibi = 8;
    return TN_OK;
}

static tn_status config_read_cohere2(struct hf_model *m) {
    m->layout.scale_output = (float)config_number(m->config, "logit_scale", 0.0625);
    return TN_OK;
}

/* Files without the list have windows in the largest model only. */
static tn_status config_read_exaone4(struct hf_model *m) {
    m->lists_windows = json_array_size(json_object_get(m->config, "layer_types")) > 0;
    return TN_OK;
}

/* Configurations of older versions give a period and two bases instead of lists. */
static tn_status config_read_modern_bert(struct hf_model *m) {
    m->activation = json_string_value(config_first_of(m->config, "hidden_activation hidden_act"));
    m->lists_windows = json_array_size(json_object_get(m->config, "layer_types")) > 0;
    const uint32_t period = config_whole(m->config, "global_attn_every_n_layers", 3);
    if (!m->lists_windows && period != (uint32_t)m->layout.arch->window_period)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: global_attn_every_n_layers without layer_types must be %d",
                       m->folder, m->layout.arch->window_period);
    if (config_truth(m->config, "attention_bias mlp_bias norm_bias", false))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: ModernBERT with biases is not converted", m->folder);
    return TN_OK;
}

/* A file without the list has no windows: other programs leave them out. */
static tn_status config_read_phi3(struct hf_model *m) {
    m->lists_windows = true;
    return TN_OK;
}

static tn_status config_read_minicpm(struct hf_model *m) {
    struct layout *l = &m->layout;
    l->scale_embedding = (float)config_number(m->config, "scale_emb", 1);
    l->scale_residual = (float)(config_number(m->config, "scale_depth", 1) / sqrt(l->layers));
    l->scale_output = (float)(l->width / config_number(m->config, "dim_model_base", l->width));
    return TN_OK;
}

static tn_status config_refuse_biases(struct hf_model *m) {
    if (config_truth(m->config, "attention_bias use_bias", false))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: %s with biases is not converted: GGUF files have none",
                       m->folder, m->layout.arch->name);
    return TN_OK;
}

/* Layers without a window have larger heads. */
static tn_status config_read_gemma4(struct hf_model *m) {
    struct layout *l = &m->layout;
    if (config_truth(m->config, "enable_moe_block", false) || config_truth(m->config, "attention_bias", false))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: Gemma 4 with experts or biases is not converted",
                       m->folder);
    l->head = config_whole(m->config, "global_head_dim", l->head);
    l->softcap_output = (float)config_number(m->config, "final_logit_softcapping", 0);
    m->lists_windows = true;
    return TN_OK;
}
static tn_status config_gemma4_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    const struct layout *l = &m->layout;
    const uint32_t head = config_whole(m->config, "head_dim", l->head);
    const uint32_t shared = config_whole(m->config, "num_kv_shared_layers", 0);
    const bool wide = shared && config_truth(m->config, "use_double_wide_mlp", false);
    const uint32_t full = config_truth(m->config, "attention_k_eq_v", false)
                              ? config_whole(m->config, "num_global_key_value_heads", l->kv_heads)
                              : l->kv_heads;
    (void)weights;
    TN_TRY(config_key_u32(m, w, "attention.key_length_swa", head));
    TN_TRY(config_key_u32(m, w, "attention.value_length_swa", head));
    TN_TRY(config_key_u32(m, w, "rope.dimension_count_swa", head));
    TN_TRY(config_key_u32(m, w, "attention.shared_kv_layers", shared));
    TN_TRY(config_key_u32(m, w, "embedding_length_per_layer_input",
                          config_whole(m->config, "hidden_size_per_layer_input", 0)));
    uint32_t *numbers = tn_calloc((size_t)l->layers * 2, sizeof *numbers), *ffn = numbers + l->layers;
    if (!numbers) return TN_E_NOMEM;
    for (uint32_t i = 0; i < l->layers; i++) {
        numbers[i] = m->window_layers && m->window_layers[i] ? l->kv_heads : full;
        ffn[i] = wide && i + shared >= l->layers ? 2 * l->ffn : l->ffn;
    }
    tn_status status = TN_OK;
    if (full != l->kv_heads)
        status = tn_gguf_writer_set_array(w, "gemma4.attention.head_count_kv", TN_GGUF_U32, numbers, l->layers);
    if (wide && status == TN_OK)
        status = tn_gguf_writer_set_array(w, "gemma4.feed_forward_length", TN_GGUF_U32, ffn, l->layers);
    tn_free(numbers);
    return status;
}

/* ---- Gemma 3n ---- */

/* The feed-forward part of all layers has the same size. */
static tn_status config_read_gemma3n(struct hf_model *m) {
    struct layout *l = &m->layout;
    json_t *sizes = json_object_get(m->config, "intermediate_size");
    for (size_t i = 0; i < json_array_size(sizes); i++)
        if (json_integer_value(json_array_get(sizes, i)) != json_integer_value(json_array_get(sizes, 0)))
            return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: intermediate_size differs between layers", m->folder);
    const json_int_t ffn = json_integer_value(json_array_get(sizes, 0));
    if (ffn > 0 && ffn <= 1 << 24) l->ffn = (uint32_t)ffn;
    if (config_whole(m->config, "altup_active_idx", 0) != 0 || !config_truth(m->config, "altup_correct_scale", true))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: altup_active_idx must be 0 and altup_correct_scale true",
                       m->folder);
    l->softcap_output = (float)config_number(m->config, "final_logit_softcapping", 0);
    m->lists_windows = true;
    return TN_OK;
}

/* The point below which a normal distribution has this share. */
static double normal_quantile(double share) {
    double low = -40, high = 40;
    if (share <= 0) return -INFINITY;
    if (share >= 1) return INFINITY;
    for (int i = 0; i < 200; i++) {
        const double middle = (low + high) / 2;
        if (erfc(-middle / sqrt(2)) / 2 < share)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

static tn_status config_gemma3n_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    const struct layout *l = &m->layout;
    json_t *shares = json_object_get(m->config, "activation_sparsity_pattern");
    (void)weights;
    TN_TRY(config_key_u32(m, w, "embedding_length_per_layer_input",
                          config_whole(m->config, "hidden_size_per_layer_input", 256)));
    TN_TRY(config_key_u32(m, w, "altup.num_inputs", config_whole(m->config, "altup_num_inputs", 4)));
    TN_TRY(config_key_u32(m, w, "laurel.rank", config_whole(m->config, "laurel_rank", 64)));
    TN_TRY(config_key_u32(m, w, "attention.shared_kv_layers", config_whole(m->config, "num_kv_shared_layers", 0)));
    float *points = tn_calloc(l->layers, sizeof *points);
    if (!points) return TN_E_NOMEM;
    for (uint32_t i = 0; i < l->layers; i++) {
        json_t *own = json_is_array(shares) ? json_array_get(shares, i) : shares;
        points[i] = (float)normal_quantile(json_number_value(own));
    }
    tn_status status =
        tn_gguf_writer_set_array(w, "gemma3n.activation_sparsity_scale", TN_GGUF_F32, points, l->layers);
    tn_free(points);
    return status;
}

const struct config_family dense_config_families[] = {
    {"apertus", NULL, config_apertus_keys, NULL},
    {"bitnet", config_read_bitnet, NULL, NULL},
    {"bloom", config_read_bloom, NULL, NULL},
    {"cohere2", config_read_cohere2, NULL, NULL},
    {"ernie4_5", config_refuse_biases, NULL, NULL},
    {"exaone4", config_read_exaone4, NULL, NULL},
    {"gemma3n", config_read_gemma3n, config_gemma3n_keys, NULL},
    {"gemma4", config_read_gemma4, config_gemma4_keys, NULL},
    {"minicpm", config_read_minicpm, NULL, NULL},
    {"modern-bert", config_read_modern_bert, NULL, NULL},
    {"olmo2", config_refuse_biases, NULL, NULL},
    {"phi3", config_read_phi3, NULL, NULL},
    {0},
};

/* Latent attention: entries of config.json, and the matrices that files hold in parts. */
#include "convert/convert.h"
#include "convert/recipe.h"

#include <stdio.h>
#include <string.h>

static uint32_t latent_size(const struct hf_model *m, const char *name) { return config_whole(m->config, name, 0); }

static tn_status config_read_latent(struct hf_model *m) {
    struct layout *l = &m->layout;
    if (!latent_size(m, "kv_lora_rank") || !latent_size(m, "qk_nope_head_dim") ||
        !latent_size(m, "qk_rope_head_dim") || !latent_size(m, "v_head_dim"))
        return tn_fail(TN_E_FORMAT,
                       "%s/config.json: kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim and v_head_dim must be "
                       "positive whole numbers",
                       m->folder);
    if (config_truth(m->config, "attention_bias", false))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: latent attention with biases is not converted", m->folder);
    if (config_whole(m->config, "moe_layer_freq", 1) != 1)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: moe_layer_freq must be 1", m->folder);
    l->kv_heads = 1;
    l->head = latent_size(m, "qk_rope_head_dim"); /* what RoPE rotates; the keys follow below */
    return config_read_moe(m);
}

static tn_status config_latent_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    const uint32_t rank = latent_size(m, "kv_lora_rank"), rope = latent_size(m, "qk_rope_head_dim");
    const bool softmax = strcmp(m->class->name, "DeepseekV2ForCausalLM") == 0;
    TN_TRY(config_key_u32(m, w, "attention.kv_lora_rank", rank));
    TN_TRY(config_key_u32(m, w, "attention.q_lora_rank", latent_size(m, "q_lora_rank")));
    TN_TRY(config_key_u32(m, w, "attention.key_length", rank + rope));
    TN_TRY(config_key_u32(m, w, "attention.value_length", rank));
    TN_TRY(config_key_u32(m, w, "attention.key_length_mla", latent_size(m, "qk_nope_head_dim") + rope));
    TN_TRY(config_key_u32(m, w, "attention.value_length_mla", latent_size(m, "v_head_dim")));
    TN_TRY(config_key_u32(m, w, "expert_shared_count",
                          config_whole(m->config, "n_shared_experts num_shared_experts", 0)));
    TN_TRY(config_key_u32(m, w, "expert_gating_func", softmax ? 1 : 2));
    /* Files of these architectures hold a tenth. */
    if (m->yarn_log_multiplier > 0)
        TN_TRY(config_key_f32(m, w, "rope.scaling.yarn_log_multiplier", 0.1 * (double)m->yarn_log_multiplier));
    return config_moe_keys(m, weights, w);
}

/* RoPE of files rotates neighbours: pairs of rows, where the class rotates halves. */
static tn_status pair_latent_rows(const struct hf_model *m, struct recipe *p, int64_t head, int64_t rope) {
    const int64_t plain = head - rope, half = rope / 2;
    if (config_truth(m->config, "rope_interleave", true)) return TN_OK;
    p->map = tn_calloc((size_t)p->rows, sizeof *p->map);
    if (!p->map) return TN_E_NOMEM;
    for (int64_t r = 0; r < p->rows; r++) {
        const int64_t d = r % head - plain;
        p->map[r] = d < 0 ? r : r - d + (d % 2) * half + d / 2;
    }
    return TN_OK;
}

static tn_status order_latent(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    const int64_t rank = latent_size(m, "kv_lora_rank"), rope = latent_size(m, "qk_rope_head_dim");
    const int64_t nope = latent_size(m, "qk_nope_head_dim"), v = latent_size(m, "v_head_dim");
    (void)hf;
    if (strcmp(base, "ssm_a") == 0) p->decay = true;
    if (strcmp(base, "attn_k_b") == 0) { /* the first rows of every head, transposed */
        p->transposed = p->any_shape = true;
        p->source_rows = rank;
        p->stride = nope + v;
    } else if (strcmp(base, "attn_v_b") == 0) {
        p->any_shape = true;
        p->source_rows = nope + v;
        p->offset = nope;
    } else if (strcmp(base, "attn_q_b") == 0) {
        return pair_latent_rows(m, p, nope + rope, rope);
    } else if (strcmp(base, "attn_q") == 0 && p->rows == (int64_t)m->layout.heads * (nope + rope)) {
        return pair_latent_rows(m, p, nope + rope, rope);
    } else if (strcmp(base, "attn_kv_a_mqa") == 0) {
        return pair_latent_rows(m, p, rank + rope, rope);
    }
    return TN_OK;
}

/* ---- Kimi Linear ---- */

static json_t *kimi_layers(const struct hf_model *m) { return json_object_get(m->config, "linear_attn_config"); }

/* Layers of Kimi delta attention; older configurations count them from 1. */
static bool kimi_layer_attends(const struct hf_model *m, uint32_t layer) {
    json_t *list = json_object_get(kimi_layers(m), "full_attn_layers");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == (json_int_t)layer + 1) return true;
    return config_attends(m, layer, false);
}

static tn_status config_read_kimi(struct hf_model *m) {
    const uint32_t heads =
        config_whole(m->config, "linear_num_heads", config_whole(kimi_layers(m), "num_heads", m->layout.heads));
    if (heads != m->layout.heads)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: both kinds of attention must have equally many heads",
                       m->folder);
    const bool normalized = config_truth(m->config, "moe_renormalize", true);
    m->layout.experts_normalized = false;
    m->layout.experts_as_weighted = !normalized;
    return config_read_latent(m);
}

static tn_status config_kimi_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    uint32_t *kv = tn_calloc(m->layout.layers, sizeof *kv);
    if (!kv) return TN_E_NOMEM;
    for (uint32_t i = 0; i < m->layout.layers; i++) kv[i] = kimi_layer_attends(m, i);
    tn_status status =
        tn_gguf_writer_set_array(w, "kimi-linear.attention.head_count_kv", TN_GGUF_U32, kv, m->layout.layers);
    tn_free(kv);
    TN_TRY(status);
    TN_TRY(config_key_u32(m, w, "ssm.conv_kernel",
                          config_whole(m->config, "linear_conv_kernel_dim",
                                       config_whole(kimi_layers(m), "short_conv_kernel_size", 4))));
    TN_TRY(config_key_u32(m, w, "kda.head_dim",
                          config_whole(m->config, "linear_head_dim", config_whole(kimi_layers(m), "head_dim", 128))));
    return config_latent_keys(m, weights, w);
}

/* ---- Indexers ---- */

/* Layers that use the selection of an earlier one are listed. */
static tn_status indexer_types_key(const struct hf_model *m, tn_gguf_writer *w) {
    json_t *types = json_object_get(m->config, "indexer_types");
    char key[96];
    if (json_array_size(types) != m->layout.layers) return TN_OK;
    uint32_t *own = tn_calloc(m->layout.layers, sizeof *own);
    if (!own) return TN_E_NOMEM;
    for (uint32_t i = 0; i < m->layout.layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        own[i] = !type || strcmp(type, "shared") != 0;
    }
    snprintf(key, sizeof key, "%s.attention.indexer.types", m->layout.arch->name);
    tn_status status = tn_gguf_writer_set_array(w, key, TN_GGUF_U32, own, m->layout.layers);
    tn_free(own);
    return status;
}
static tn_status config_indexer_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    TN_TRY(config_key_u32(m, w, "attention.indexer.head_count", latent_size(m, "index_n_heads")));
    TN_TRY(config_key_u32(m, w, "attention.indexer.key_length", latent_size(m, "index_head_dim")));
    TN_TRY(config_key_u32(m, w, "attention.indexer.top_k", latent_size(m, "index_topk")));
    TN_TRY(indexer_types_key(m, w));
    return config_latent_keys(m, weights, w);
}

const struct config_family latent_config_families[] = {
    {"deepseek2", config_read_latent, config_latent_keys, order_latent},
    {"deepseek32", config_read_latent, config_indexer_keys, order_latent},
    {"glm-dsa", config_read_latent, config_indexer_keys, order_latent},
    {"kimi-linear", config_read_kimi, config_kimi_keys, order_latent},
    {0},
};

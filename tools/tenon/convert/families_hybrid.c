/* Recurrent layers: entries of config.json, and the order of their rows. */
#include "convert/convert.h"
#include "convert/recipe.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Layers ---- */

bool config_attends(const struct hf_model *m, uint32_t layer, bool missing) {
    json_t *types = config_first_of(m->config, "layer_types layers_block_type");
    const char *type = json_string_value(json_array_get(types, layer));
    return type ? strcmp(type, "full_attention") == 0 || strcmp(type, "attention") == 0 : missing;
}

static bool index_listed(const json_t *list, uint32_t layer) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == (json_int_t)layer) return true;
    return false;
}

static bool hybrid_attends(const struct hf_model *m, uint32_t layer) {
    const uint32_t period = config_whole(m->config, "attn_layer_period", 0);
    if (period) return layer % period == config_whole(m->config, "attn_layer_offset", 0);
    json_t *list = config_first_of(m->config, "attn_layer_indices full_attn_idxs");
    return config_attends(m, layer, index_listed(list, layer));
}

static tn_status layer_numbers(const struct hf_model *m, tn_gguf_writer *w, const char *name,
                               const uint32_t *numbers) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->layout.arch->name, name);
    return tn_gguf_writer_set_array(w, key, TN_GGUF_U32, numbers, m->layout.layers);
}

/* Layers without heads of keys are recurrent. */
static tn_status attending_keys(const struct hf_model *m, tn_gguf_writer *w) {
    uint32_t *kv = tn_calloc(m->layout.layers, sizeof *kv);
    if (!kv) return TN_E_NOMEM;
    for (uint32_t i = 0; i < m->layout.layers; i++) kv[i] = hybrid_attends(m, i) ? m->layout.kv_heads : 0;
    tn_status status = layer_numbers(m, w, "attention.head_count_kv", kv);
    tn_free(kv);
    return status;
}

/* Every so many layers attend, or a list of those that do not. */
static tn_status interval_keys(const struct hf_model *m, tn_gguf_writer *w, uint32_t usual) {
    const struct layout *l = &m->layout;
    char key[128];
    uint32_t interval = config_whole(m->config, "full_attention_interval", usual);
    json_t *types = json_object_get(m->config, "layer_types"), *list = json_object_get(m->config, "attn_type_list");
    bool regular = interval > 0, *recurrent = tn_calloc(l->layers, sizeof *recurrent);
    if (!recurrent) return TN_E_NOMEM;
    for (uint32_t i = 0; i < l->layers; i++)
        recurrent[i] = types  ? !config_attends(m, i, false)
                       : list ? json_integer_value(json_array_get(list, i)) == 0
                              : (i + 1) % (interval ? interval : 1) != 0;
    for (uint32_t i = 0; (types || list) && i < l->layers; i++)
        if (!recurrent[i]) {
            interval = i + 1;
            break;
        }
    for (uint32_t i = 0; i < l->layers; i++) regular = regular && recurrent[i] == ((i + 1) % interval != 0);
    tn_status status = config_key_u32(m, w, "full_attention_interval", interval);
    snprintf(key, sizeof key, "%s.attention.recurrent_layers", l->arch->name);
    if (status == TN_OK && !regular) status = tn_gguf_writer_set_array(w, key, TN_GGUF_BOOL, recurrent, l->layers);
    tn_free(recurrent);
    return status;
}

/* ---- Mamba ---- */

/* Time steps are not limited in files, and the matrices of a mixer have no biases. */
static tn_status check_mixer(const struct hf_model *m) {
    json_t *limit = json_object_get(m->config, "time_step_limit");
    json_t *most = json_array_get(limit, 1);
    if (json_number_value(json_array_get(limit, 0)) > 0 || (json_is_number(most) && json_number_value(most) < 1e30))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: models with a time_step_limit are not converted",
                       m->folder);
    if (config_truth(m->config, "use_bias", false) || config_truth(m->config, "mamba_proj_bias", false) ||
        config_truth(m->config, "projectors_bias", false))
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/config.json: recurrent layers with biases of their matrices are not converted", m->folder);
    const char *activation = json_string_value(config_first_of(m->config, "mamba_hidden_act hidden_act"));
    if (activation && strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0)
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/config.json: recurrent layers with the activation \"%s\" are not converted", m->folder,
                       activation);
    return TN_OK;
}

static tn_status mamba_keys(const struct hf_model *m, tn_gguf_writer *w, uint32_t inner) {
    const uint32_t rank = config_whole(m->config, "time_step_rank mamba_dt_rank", (m->layout.width + 15) / 16);
    TN_TRY(config_key_u32(m, w, "ssm.conv_kernel", config_whole(m->config, "conv_kernel mamba_d_conv", 4)));
    TN_TRY(config_key_u32(m, w, "ssm.inner_size", inner));
    TN_TRY(config_key_u32(m, w, "ssm.state_size", config_whole(m->config, "state_size mamba_d_state", 16)));
    return config_key_u32(m, w, "ssm.time_step_rank", rank);
}

static tn_status mamba2_keys(const struct hf_model *m, tn_gguf_writer *w) {
    const uint32_t heads = config_whole(m->config, "mamba_num_heads mamba_n_heads num_heads", 0);
    const uint32_t head = config_whole(m->config, "mamba_head_dim mamba_d_head head_dim", 64);
    const char *state = "ssm_state_size state_size mamba_d_state";
    TN_TRY(config_key_u32(m, w, "ssm.conv_kernel", config_whole(m->config, "conv_kernel mamba_d_conv", 4)));
    TN_TRY(config_key_u32(m, w, "ssm.inner_size", heads * head));
    TN_TRY(config_key_u32(m, w, "ssm.state_size", config_whole(m->config, state, 128)));
    TN_TRY(config_key_u32(m, w, "ssm.time_step_rank", heads));
    return config_key_u32(m, w, "ssm.group_count", config_whole(m->config, "n_groups mamba_n_groups", 1));
}

static tn_status mamba2_check(const struct hf_model *m) {
    const uint32_t heads = config_whole(m->config, "mamba_num_heads mamba_n_heads num_heads", 0);
    const char *head = "mamba_head_dim mamba_d_head head_dim";
    json_t *size = config_first_of(m->config, head); /* or "auto" */
    if (heads < 1 || heads > 1 << 16 || !json_is_integer(size) || config_whole(m->config, head, 0) > 1 << 12)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: the heads of the recurrent layers are not numbers in range",
                       m->folder);
    return check_mixer(m);
}

/* Models without attention have no limit of their own. */
static tn_status config_read_mamba(struct hf_model *m) {
    m->layout.context = 1 << 20;
    if (strcmp(m->class->name, "FalconMambaForCausalLM") == 0 &&
        config_number(m->config, "mixer_rms_eps", 1e-6) != (double)m->layout.eps &&
        fabs(config_number(m->config, "mixer_rms_eps", 1e-6) - (double)m->layout.eps) > 1e-9)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: mixer_rms_eps must be the epsilon of the other norms",
                       m->folder);
    return check_mixer(m);
}

static tn_status no_attention_keys(const struct hf_model *m, tn_gguf_writer *w) {
    static const char *const names[] = {"attention.head_count", "attention.head_count_kv", "feed_forward_length"};
    char key[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(key, sizeof key, "%s.%s", m->layout.arch->name, names[i]);
        TN_TRY(tn_gguf_writer_set_u32(w, key, 0));
    }
    return TN_OK;
}

static tn_status config_mamba_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    const uint32_t inner = (uint32_t)(config_number(m->config, "expand", 2) * m->layout.width);
    if (strcmp(m->class->name, "FalconMambaForCausalLM") == 0)
        TN_TRY(tn_gguf_writer_set_bool(w, "mamba.ssm.dt_b_c_rms", true));
    TN_TRY(no_attention_keys(m, w));
    return mamba_keys(m, w, config_whole(m->config, "intermediate_size d_inner", inner));
}

static tn_status config_read_mamba2(struct hf_model *m) {
    m->layout.context = 1 << 20;
    return mamba2_check(m);
}
static tn_status config_mamba2_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    TN_TRY(no_attention_keys(m, w));
    return mamba2_keys(m, w);
}

static tn_status order_mamba(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    (void)m, (void)hf;
    p->decay = strcmp(base, "ssm_a") == 0;
    return TN_OK;
}

/* ---- Mamba and attention ---- */

static tn_status config_read_jamba(struct hf_model *m) {
    struct layout *l = &m->layout;
    if (l->experts == 1) l->experts = 0;
    return check_mixer(m);
}
static tn_status config_jamba_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    TN_TRY(attending_keys(m, w));
    return mamba_keys(m, w, (uint32_t)(config_number(m->config, "mamba_expand", 2) * m->layout.width));
}

static tn_status config_read_granite_hybrid(struct hf_model *m) {
    struct layout *l = &m->layout;
    TN_TRY(config_read_granitemoe(m));
    if (!l->experts && l->shared_ffn) {
        l->ffn = l->shared_ffn;
        l->shared_ffn = 0;
    }
    return mamba2_check(m);
}
static tn_status config_granite_hybrid_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    const char *positions = json_string_value(json_object_get(m->config, "position_embedding_type"));
    const bool rope =
        strcmp(m->class->name, "BambaForCausalLM") == 0 || (positions && strcmp(positions, "rope") == 0);
    TN_TRY(tn_gguf_writer_set_bool(w, "granitehybrid.rope.scaling.finetuned", rope));
    TN_TRY(attending_keys(m, w));
    return mamba2_keys(m, w);
}

/* Characters of hybrid_override_pattern: M, *, - and E. */
static char nemotron_layer(const struct hf_model *m, uint32_t layer) {
    const char *pattern = json_string_value(json_object_get(m->config, "hybrid_override_pattern"));
    json_t *types = json_object_get(m->config, "layers_block_type");
    const char *type = json_string_value(json_array_get(types, layer));
    if (!type) return pattern && strlen(pattern) == m->layout.layers ? pattern[layer] : '?';
    if (strcmp(type, "mamba") == 0 || strcmp(type, "linear_attention") == 0) return 'M';
    if (strcmp(type, "attention") == 0 || strcmp(type, "full_attention") == 0) return '*';
    return strcmp(type, "moe") == 0 ? 'E' : strcmp(type, "mlp") == 0 ? '-' : '?';
}

/* Models with experts have an architecture of their own. */
static tn_status config_read_nemotron_h(struct hf_model *m) {
    struct layout *l = &m->layout;
    bool experts = false;
    for (uint32_t i = 0; i < l->layers; i++) {
        const char type = nemotron_layer(m, i);
        experts = experts || type == 'E';
        if (!strchr("M*-E", type))
            return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: unknown type of layer %" PRIu32, m->folder, i);
    }
    const char *activation = json_string_value(json_object_get(m->config, "mlp_hidden_act"));
    if ((activation && strcmp(activation, "relu2") != 0) || config_truth(m->config, "mlp_bias", false) ||
        config_first_of(m->config, "moe_latent_size"))
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/config.json: mlp_bias, moe_latent_size and activations other than relu2 are not converted",
                       m->folder);
    if (!experts) l->experts = 0;
    if (experts) {
        l->arch = tn_arch_find("nemotron_h_moe");
        l->shared_ffn = config_whole(m->config, "n_shared_experts", 0) *
                        config_whole(m->config, "moe_shared_expert_intermediate_size", l->expert_ffn);
        l->experts_normalized = config_truth(m->config, "norm_topk_prob", true);
    }
    return mamba2_check(m);
}
static tn_status config_nemotron_h_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    const struct layout *l = &m->layout;
    uint32_t *numbers = tn_calloc((size_t)l->layers * 2, sizeof *numbers), *ffn = numbers + l->layers;
    if (!numbers) return TN_E_NOMEM;
    for (uint32_t i = 0; i < l->layers; i++) {
        const char type = nemotron_layer(m, i);
        numbers[i] = type == '*' ? l->kv_heads : 0;
        ffn[i] = type == '-' ? l->ffn : type == 'E' ? l->expert_ffn : 0;
    }
    tn_status status = layer_numbers(m, w, "attention.head_count_kv", numbers);
    if (status == TN_OK) status = layer_numbers(m, w, "feed_forward_length", ffn);
    tn_free(numbers);
    TN_TRY(status);
    TN_TRY(mamba2_keys(m, w));
    if (!l->experts) return TN_OK;
    TN_TRY(config_key_u32(m, w, "expert_shared_count", config_whole(m->config, "n_shared_experts", 0)));
    TN_TRY(config_key_u32(m, w, "expert_gating_func", 2));
    return config_moe_keys(m, weights, w);
}

/* ---- Falcon-H1 ---- */

static double list_number(const struct hf_model *m, const char *name, size_t at) {
    json_t *value = json_array_get(json_object_get(m->config, name), at);
    return json_is_number(value) ? json_number_value(value) : 1;
}

static tn_status config_read_falcon_h1(struct hf_model *m) {
    if (config_truth(m->config, "attention_bias", false) || config_truth(m->config, "mlp_bias", false))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: Falcon-H1 with biases is not converted", m->folder);
    if (config_truth(m->config, "tie_word_embeddings", false) &&
        config_number(m->config, "embedding_multiplier", 1) != config_number(m->config, "lm_head_multiplier", 1))
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/config.json: tied embeddings with different multipliers are not converted", m->folder);
    if (config_truth(m->config, "mamba_rms_norm", false) && config_truth(m->config, "mamba_norm_before_gate", true))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: mamba_norm_before_gate must be false", m->folder);
    return mamba2_check(m);
}
static tn_status config_falcon_h1_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    return mamba2_keys(m, w);
}

/* The configuration's multipliers become part of the weights. */
static tn_status order_falcon_h1(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    static const struct {
        const char *base, *names[2];
    } rows[] = {
        {"token_embd", {"embedding_multiplier", NULL}}, {"output", {"lm_head_multiplier", NULL}},
        {"attn_q", {"attention_in_multiplier", NULL}},  {"attn_k", {"attention_in_multiplier", "key_multiplier"}},
        {"attn_v", {"attention_in_multiplier", NULL}},  {"attn_output", {"attention_out_multiplier", NULL}},
        {"ssm_in", {"ssm_in_multiplier", NULL}},        {"ssm_out", {"ssm_out_multiplier", NULL}},
    };
    double scale = 1;
    TN_TRY(order_mamba(m, base, hf, p));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 2 && strcmp(rows[i].base, base) == 0; k++)
            if (rows[i].names[k]) scale *= config_number(m->config, rows[i].names[k], 1);
    if (strcmp(base, "ffn_gate") == 0) scale = list_number(m, "mlp_multipliers", 0);
    if (strcmp(base, "ffn_down") == 0) scale = list_number(m, "mlp_multipliers", 1);
    p->scale = (float)scale;
    if (strcmp(base, "ssm_in") != 0) return TN_OK;
    const int64_t inner =
        (int64_t)config_whole(m->config, "mamba_n_heads", 0) * config_whole(m->config, "mamba_d_head", 64);
    const int64_t states =
        (int64_t)config_whole(m->config, "mamba_n_groups", 1) * config_whole(m->config, "mamba_d_state", 128);
    const int64_t ends[] = {inner, 2 * inner, 2 * inner + states, 2 * inner + 2 * states, INT64_MAX}; /* z x B C dt */
    p->row_scale = tn_calloc((size_t)p->rows, sizeof *p->row_scale);
    if (!p->row_scale) return TN_E_NOMEM;
    size_t part = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        while (r >= ends[part]) part++;
        p->row_scale[r] = (float)list_number(m, "ssm_multipliers", part);
    }
    return TN_OK;
}

/* ---- LFM 2 ---- */

static tn_status config_read_lfm2(struct hf_model *m) {
    struct layout *l = &m->layout;
    l->ffn = config_whole(m->config, "block_ff_dim intermediate_size", l->ffn);
    if (config_truth(m->config, "block_auto_adjust_ff_dim", false)) {
        const uint32_t multiple = config_whole(m->config, "block_multiple_of", 256);
        const double width = floor(config_number(m->config, "block_ffn_dim_multiplier", 1) * (2 * l->ffn / 3));
        if (!multiple || !(width >= 1 && width < 1 << 30))
            return tn_fail(TN_E_FORMAT, "%s/config.json: the size of the feed-forward part is out of range",
                           m->folder);
        l->ffn = ((uint32_t)width + multiple - 1) / multiple * multiple;
    }
    return TN_OK;
}
static tn_status config_lfm2_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    TN_TRY(attending_keys(m, w));
    TN_TRY(config_key_u32(m, w, "shortconv.l_cache", config_whole(m->config, "conv_L_cache", 3)));
    if (!m->layout.experts) return TN_OK;
    TN_TRY(config_key_u32(m, w, "expert_gating_func", 2));
    return config_moe_keys(m, weights, w);
}

/* ---- Qwen 3 Next and 3.5 ---- */

struct delta_net {
    int64_t key_heads, value_heads, key, value, share;
};
static struct delta_net delta_net_of(const struct hf_model *m) {
    struct delta_net d = {.key_heads = config_whole(m->config, "linear_num_key_heads", 16),
                          .value_heads = config_whole(m->config, "linear_num_value_heads", 32),
                          .key = config_whole(m->config, "linear_key_head_dim", 128),
                          .value = config_whole(m->config, "linear_value_head_dim", 128)};
    d.share = d.key_heads ? d.value_heads / d.key_heads : 0;
    return d;
}

static tn_status config_read_qwen_hybrid(struct hf_model *m) {
    const struct delta_net d = delta_net_of(m);
    if (!d.share || d.value_heads % d.key_heads || d.value_heads > 1 << 12 || !d.key || !d.value || d.key > 1 << 12 ||
        d.value > 1 << 12)
        return tn_fail(TN_E_FORMAT, "%s/config.json: the heads of linear attention are out of range", m->folder);
    m->layout.shared_ffn = config_whole(m->config, "shared_expert_intermediate_size", 0);
    return TN_OK;
}
static tn_status config_qwen_hybrid_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    const struct delta_net d = delta_net_of(m);
    TN_TRY(config_key_u32(m, w, "ssm.conv_kernel", config_whole(m->config, "linear_conv_kernel_dim", 4)));
    TN_TRY(config_key_u32(m, w, "ssm.inner_size", (uint32_t)(d.value_heads * d.value)));
    TN_TRY(config_key_u32(m, w, "ssm.state_size", (uint32_t)d.key));
    TN_TRY(config_key_u32(m, w, "ssm.time_step_rank", (uint32_t)d.value_heads));
    TN_TRY(config_key_u32(m, w, "ssm.group_count", (uint32_t)d.key_heads));
    return interval_keys(m, w, 4);
}

static int64_t *new_map(int64_t n) {
    int64_t *map = tn_calloc((size_t)n, sizeof *map);
    for (int64_t i = 0; map && i < n; i++) map[i] = i;
    return map;
}

/* Rows of q, k and v, or of z, from a matrix that holds those of one key head after another. */
static tn_status order_qwen3next(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    const struct delta_net d = delta_net_of(m);
    const int64_t keys = d.key_heads * d.key, values = d.share * d.value, group = 2 * d.key + 2 * values;
    const bool gate = strcmp(base, "attn_gate") == 0;
    p->decay = strcmp(base, "ssm_a") == 0;
    if (strcmp(base, "ssm_norm") == 0) p->plus_one = false;
    if (!strstr(hf, "in_proj_qkvz")) return TN_OK;
    p->source_rows = d.key_heads * group;
    p->map = new_map(p->rows);
    if (!p->map) return TN_E_NOMEM;
    for (int64_t i = 0; i < p->rows; i++) {
        const int64_t r = i - 2 * keys; /* among v's */
        if (gate)
            p->map[i] = i / values * group + 2 * d.key + values + i % values;
        else if (r >= 0)
            p->map[i] = r / values * group + 2 * d.key + r % values;
        else
            p->map[i] = i % keys / d.key * group + i / keys * d.key + i % d.key;
    }
    return TN_OK;
}

/* Value heads are stored tiled: head h belongs to key head h % key_heads, in the folder to h / share. `first` rows
 * before them stay; a head has `size` rows. */
static void tile_heads(const struct delta_net *d, int64_t *map, int64_t n, int64_t first, int64_t size) {
    for (int64_t i = first; i < n; i++) {
        const int64_t h = (i - first) / size;
        map[i] = first + (h % d->key_heads * d->share + h / d->key_heads) * size + (i - first) % size;
    }
}

static tn_status order_qwen35(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    const struct delta_net d = delta_net_of(m);
    p->decay = strcmp(base, "ssm_a") == 0;
    if (strcmp(base, "ssm_norm") == 0) p->plus_one = false;
    if (!strstr(hf, "linear_attn.") || strcmp(base, "ssm_norm") == 0) return TN_OK;
    const bool out = strcmp(base, "ssm_out") == 0;
    const bool mixed = strcmp(base, "attn_qkv") == 0 || strcmp(base, "ssm_conv1d") == 0;
    const int64_t n = out ? p->columns : p->rows, first = mixed ? 2 * d.key_heads * d.key : 0;
    int64_t *map = new_map(n);
    if (!map) return TN_E_NOMEM;
    tile_heads(&d, map, n, first, out || mixed || strcmp(base, "attn_gate") == 0 ? d.value : 1);
    *(out ? &p->column_map : &p->map) = map;
    return TN_OK;
}

/* ---- MiniMax ---- */

/* One multiplier for all residuals, and none for what is added to them. */
static tn_status config_read_minimax(struct hf_model *m) {
    const double alpha = config_number(m->config, "full_attn_alpha_factor layernorm_full_attention_alpha", 1);
    if (config_number(m->config, "linear_attn_alpha_factor layernorm_linear_attention_alpha", alpha) != alpha ||
        config_number(m->config, "mlp_alpha_factor layernorm_mlp_alpha", alpha) != alpha ||
        config_number(m->config, "full_attn_beta_factor layernorm_full_attention_beta", 1) != 1 ||
        config_number(m->config, "linear_attn_beta_factor layernorm_linear_attention_beta", 1) != 1 ||
        config_number(m->config, "mlp_beta_factor layernorm_mlp_beta", 1) != 1)
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/config.json: different alpha factors, and beta factors other than 1, are not converted",
                       m->folder);
    m->layout.scale_residual = (float)alpha;
    return TN_OK;
}
static tn_status config_minimax_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    TN_TRY(config_key_u32(m, w, "attention.sliding_window", config_whole(m->config, "sliding_window", 0)));
    return interval_keys(m, w, 8);
}

const struct config_family hybrid_config_families[] = {
    {"mamba", config_read_mamba, config_mamba_keys, order_mamba},
    {"mamba2", config_read_mamba2, config_mamba2_keys, order_mamba},
    {"jamba", config_read_jamba, config_jamba_keys, order_mamba},
    {"granitehybrid", config_read_granite_hybrid, config_granite_hybrid_keys, order_mamba},
    {"falcon-h1", config_read_falcon_h1, config_falcon_h1_keys, order_falcon_h1},
    {"nemotron_h", config_read_nemotron_h, config_nemotron_h_keys, order_mamba},
    {"nemotron_h_moe", NULL, config_nemotron_h_keys, order_mamba},
    {"lfm2", config_read_lfm2, config_lfm2_keys, NULL},
    {"lfm2moe", config_read_lfm2, config_lfm2_keys, NULL},
    {"qwen3next", config_read_qwen_hybrid, config_qwen_hybrid_keys, order_qwen3next},
    {"qwen35", config_read_qwen_hybrid, config_qwen_hybrid_keys, order_qwen35},
    {"qwen35moe", config_read_qwen_hybrid, config_qwen_hybrid_keys, order_qwen35},
    {"minimax-01", config_read_minimax, config_minimax_keys, NULL},
    {0},
};

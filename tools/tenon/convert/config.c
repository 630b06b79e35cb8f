/* The configuration of a Hugging Face model: from config.json to a layout and metadata keys. */
#include "cli/cli.h"
#include "convert/convert.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Files ---- */

tn_status hf_load_bytes(const char *folder, const char *name, char **out, size_t *size) {
    char path[PATH_MAX];
    *out = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *in = fopen(path, "rb");
    if (!in) return access(path, F_OK) == 0 ? tn_fail(TN_E_IO, "%s: %m", path) : TN_OK;
    tn_status status = TN_OK;
    long length = fseek(in, 0, SEEK_END) == 0 ? ftell(in) : -1;
    if (length < 0 || length > 1 << 30) status = tn_fail(TN_E_LIMIT, "%s: not a file of less than 1 GiB", path);
    char *bytes = status == TN_OK ? tn_malloc((size_t)length + 1) : NULL;
    if (status == TN_OK && !bytes) status = TN_E_NOMEM;
    rewind(in);
    if (status == TN_OK && fread(bytes, 1, (size_t)length, in) != (size_t)length)
        status = tn_fail(TN_E_IO, "%s: cannot be read", path);
    fclose(in);
    if (status != TN_OK) {
        tn_free(bytes);
        return status;
    }
    bytes[length] = '\0';
    *size = (size_t)length;
    *out = bytes;
    return TN_OK;
}

/* jansson cannot hold a NUL in the key of an object, but vocabularies have a token of that single byte. Replaces
 * every \u0000 in a string before a colon by HF_NUL_IN_KEY, which has as many bytes. */
static void hide_nul_in_keys(char *bytes) {
    for (char *start = strchr(bytes, '"'); start; start = strchr(start, '"')) {
        bool found = false;
        char *end = start + 1;
        for (; *end && *end != '"'; end += *end == '\\' && end[1] ? 2 : 1)
            found = found || strncmp(end, "\\u0000", 6) == 0;
        if (!*end) return;
        const char *next = end + 1 + strspn(end + 1, " \t\r\n");
        for (char *at = start + 1; found && *next == ':' && at < end; at += *at == '\\' ? 2 : 1)
            if (strncmp(at, "\\u0000", 6) == 0) memcpy(at, HF_NUL_IN_KEY, 6);
        start = end + 1;
    }
}

/* Python writes infinities, which JSON does not have. Replaces "Infinity" outside strings by a number as long. */
static void replace_infinities(char *bytes) {
    bool quoted = false;
    for (char *p = bytes; *p; p++) {
        if (quoted && *p == '\\' && p[1])
            p++;
        else if (*p == '"')
            quoted = !quoted;
        else if (!quoted && strncmp(p, "Infinity", 8) == 0)
            memcpy(p, "1.0e+300", 8);
    }
}

tn_status hf_load_json(const char *folder, const char *name, json_t **out) {
    char *bytes;
    size_t size;
    *out = NULL;
    TN_TRY(hf_load_bytes(folder, name, &bytes, &size));
    if (!bytes) return TN_OK;
    json_error_t error;
    *out = json_loadb(bytes, size, JSON_ALLOW_NUL, &error);
    /* tokenizer_config.json writes "no limit" as an integer of 31 digits. */
    if (!*out && json_error_code(&error) == json_error_numeric_overflow)
        *out = json_loadb(bytes, size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!*out && json_error_code(&error) == json_error_null_byte_in_key) {
        hide_nul_in_keys(bytes);
        *out = json_loadb(bytes, size, JSON_ALLOW_NUL, &error);
    }
    if (!*out && json_error_code(&error) == json_error_invalid_syntax && strstr(bytes, "Infinity")) {
        replace_infinities(bytes);
        *out = json_loadb(bytes, size, JSON_ALLOW_NUL, &error);
    }
    tn_free(bytes);
    if (*out) return TN_OK;
    return tn_fail(TN_E_FORMAT, "%s/%s: line %d: %s", folder, name, error.line, error.text);
}

/* ---- Numbers ---- */

json_t *config_first_of(const json_t *object, const char *names) {
    char name[64];
    while (*names) {
        size_t length = strcspn(names, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, names);
        json_t *value = json_object_get(object, name);
        if (value && !json_is_null(value)) return value;
        names += length + (names[length] == ' ');
    }
    return NULL;
}
double config_number(const json_t *object, const char *names, double missing) {
    json_t *value = config_first_of(object, names);
    return json_is_number(value) ? json_number_value(value) : missing;
}
bool config_truth(const json_t *object, const char *names, bool missing) {
    json_t *value = config_first_of(object, names);
    return json_is_boolean(value) ? json_is_true(value) : missing;
}
uint32_t config_whole(const json_t *object, const char *names, uint32_t missing) {
    double value = config_number(object, names, missing);
    return value >= 0 && value <= 1u << 30 && value == floor(value) ? (uint32_t)value : 0;
}

static tn_status config_need(const struct hf_model *m, const char *names, uint32_t *out) {
    *out = config_whole(m->config, names, 0);
    if (*out) return TN_OK;
    return tn_fail(TN_E_FORMAT, "%s/config.json: none of \"%s\" is a positive whole number", m->folder, names);
}

/* ---- RoPE ---- */

/* Frequency factors of Llama 3: the factor for wavelengths above a limit, 1 below another, interpolated between them.
 */
static tn_status llama3_factors(struct hf_model *m, const json_t *rope) {
    const struct layout *l = &m->layout;
    double factor = config_number(rope, "factor", 8), low = config_number(rope, "low_freq_factor", 1);
    double high = config_number(rope, "high_freq_factor", 4),
           context = config_number(rope, "original_max_position_embeddings", 8192);
    uint32_t n = l->rotated / 2;
    if (!(factor > 0 && low > 0 && high > low && context > 0))
        return tn_fail(TN_E_FORMAT, "%s/config.json: the parameters of the RoPE scaling are out of range", m->folder);
    m->rope_factors = tn_calloc(n, sizeof(float));
    if (!m->rope_factors) return TN_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        double wave = 2 * M_PI * pow(l->rope_base, 2.0 * i / l->rotated);
        double smooth = (context / wave - low) / (high - low);
        m->rope_factors[i] = wave < context / high  ? 1
                             : wave > context / low ? (float)factor
                                                    : (float)(1 / ((1 - smooth) / factor + smooth));
    }
    return TN_OK;
}

/* Frequencies are those of a head that is rotated as a whole; the last pairs, however, are not rotated. */
static tn_status proportional_factors(struct hf_model *m, double share) {
    const uint32_t head = m->layout.head, rotated = (uint32_t)(head / 2 * share);
    m->layout.rotated = head;
    m->rope_factors = tn_calloc(head / 2, sizeof(float));
    if (!m->rope_factors) return TN_E_NOMEM;
    for (uint32_t i = 0; i < head / 2; i++) m->rope_factors[i] = i < rotated ? 1 : 1e30f;
    return TN_OK;
}

static tn_status long_short_factors(struct hf_model *m, const json_t *rope) {
    uint32_t n = m->layout.rotated / 2;
    const char *const names[] = {"long_factor", "short_factor"};
    m->rope_factors = tn_calloc((size_t)n * 2, sizeof(float));
    if (!m->rope_factors) return TN_E_NOMEM;
    for (int k = 0; k < 2; k++) {
        json_t *list = json_object_get(rope, names[k]);
        if (json_array_size(list) != n)
            return tn_fail(TN_E_FORMAT, "%s/config.json: %s has %zu numbers, %" PRIu32 " are needed", m->folder,
                           names[k], json_array_size(list), n);
        for (uint32_t i = 0; i < n; i++)
            m->rope_factors[(uint32_t)k * n + i] = (float)json_number_value(json_array_get(list, i));
    }
    m->rope_long_short = true;
    double original = config_number(m->config, "original_max_position_embeddings",
                                    config_number(rope, "original_max_position_embeddings", m->layout.context));
    double scale = m->layout.context / original;
    m->rope_original = (uint32_t)original;
    if (scale > 1) m->rope_attention = (float)sqrt(1 + log(scale) / log(original));
    return TN_OK;
}

/* YaRN multiplies attention by 1 + 0.1 ln(factor); some configurations give another value. The key holds the
 * quotient, which is left to multiply. */
static void yarn_attention(struct hf_model *m, const json_t *rope) {
    double log_factor = m->rope_factor > 1 ? log((double)m->rope_factor) : 0, target = 0;
    double scale = config_number(rope, "mscale", 0), all = config_number(rope, "mscale_all_dim", 0);
    if (scale > 0 && all > 0) target = (1 + 0.1 * scale * log_factor) / (1 + 0.1 * all * log_factor);
    target = config_number(rope, "attention_factor", target);
    if (target > 0) m->yarn_attention = (float)(target / (1 + 0.1 * log_factor));
    m->yarn_log_multiplier = (float)all;
}

static tn_status config_read_rope(struct hf_model *m) {
    struct layout *l = &m->layout;
    json_t *rope = config_first_of(m->config, "rope_parameters rope_scaling");
    /* Models with full and sliding layers have parameters for each kind. */
    json_t *full = json_object_get(rope, "full_attention"), *local = json_object_get(rope, "sliding_attention");
    if (local) l->rope_base_local = (float)config_number(local, "rope_theta", 10000);
    if (full) rope = full;
    l->rope_base = (float)config_number(
        rope, "rope_theta", config_number(m->config, "global_rope_theta rope_theta rotary_emb_base", 10000));
    if (!local) l->rope_base_local = (float)config_number(m->config, "local_rope_theta rope_local_base_freq", 0);
    double share = config_number(rope, "partial_rotary_factor",
                                 config_number(m->config, "partial_rotary_factor rotary_pct rope_pct",
                                               l->arch->rotated > 0 ? l->arch->rotated : 1));
    const uint32_t rotary = config_whole(m->config, "rotary_dim", 0);
    if (rotary && rotary <= l->head) share = (double)rotary / l->head;
    l->rotated = (uint32_t)(l->head * share) & ~1u;
    if (!rope || l->traits & TN_ARCH_NO_ROPE) return TN_OK;
    m->rope_temperature = (float)config_number(rope, "llama_4_scaling_beta", 0);
    m->rope_original = config_whole(rope, "original_max_position_embeddings", 0);
    json_t *sections = json_object_get(rope, "mrope_section");
    for (size_t i = 0; i < 4 && i < json_array_size(sections); i++)
        m->rope_sections[i] = (int32_t)json_integer_value(json_array_get(sections, i));
    const char *type = json_string_value(config_first_of(rope, "rope_type type"));
    if (!type || strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0) return TN_OK;
    m->rope_factor = (float)config_number(rope, "factor", 1);
    if (strcmp(type, "llama3") == 0) return llama3_factors(m, rope);
    if (strcmp(type, "proportional") == 0) return proportional_factors(m, share);
    if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) return long_short_factors(m, rope);
    if (strcmp(type, "linear") == 0) {
        m->rope_type = "linear";
    } else if (strcmp(type, "yarn") == 0) {
        m->rope_type = "yarn";
        if (!m->rope_original) m->rope_original = (uint32_t)(l->context / m->rope_factor);
        m->rope_beta_fast = (float)config_number(rope, "beta_fast", 0);
        m->rope_beta_slow = (float)config_number(rope, "beta_slow", 0);
        m->yarn_exact = !config_truth(rope, "truncate", true);
        yarn_attention(m, rope);
    } else if (strcmp(type, "dynamic") == 0 && config_number(rope, "alpha", 0) > 0) { /* a larger base, always */
        l->rope_base *= (float)pow(config_number(rope, "alpha", 1), l->head / (l->head - 2.0));
    } else if (strcmp(type, "dynamic") == 0) {
        warn("dynamic RoPE scaling is not converted: the model is correct up to its original context length only");
    } else {
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: unknown RoPE scaling \"%s\"", m->folder, type);
    }
    return TN_OK;
}

/* ---- Single architectures ---- */

static tn_status config_read_experts(struct hf_model *m) {
    struct layout *l = &m->layout;
    l->experts = config_whole(m->config, "n_routed_experts num_local_experts num_experts moe_num_experts", 0);
    if (!config_truth(m->config, "enable_moe_block", true)) l->experts = 0;
    if (!l->experts) return TN_OK;
    TN_TRY(config_need(m, "num_experts_per_tok num_experts_per_token moe_topk moe_k moe_top_k", &l->experts_used));
    l->expert_ffn = config_whole(m->config, "moe_intermediate_size", l->ffn);
    if (config_whole(m->config, "decoder_sparse_step", 1) != 1 ||
        json_array_size(json_object_get(m->config, "mlp_only_layers")))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: models with experts in some layers only are not converted",
                       m->folder);
    const bool usual = l->arch->experts_sum_to_one, normalized = config_truth(m->config, "norm_topk_prob", usual);
    l->experts_normalized = normalized && !usual;
    l->experts_as_weighted = !normalized && usual;
    return TN_OK;
}

static tn_status config_read_qwen2moe(struct hf_model *m) {
    m->layout.shared_ffn = config_whole(m->config, "shared_expert_intermediate_size", 0);
    return TN_OK;
}

static tn_status config_read_falcon(struct hf_model *m) {
    struct layout *l = &m->layout;
    bool grouped = config_truth(m->config, "new_decoder_architecture", false);
    if (grouped)
        l->kv_heads = config_whole(m->config, "num_kv_heads n_head_kv", l->heads);
    else
        l->kv_heads = config_truth(m->config, "multi_query", true) ? 1 : l->heads;
    if (config_truth(m->config, "alibi", false) || !config_truth(m->config, "parallel_attn", true) ||
        config_truth(m->config, "bias", false))
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/config.json: Falcon with ALiBi, biases or sequential layers is not converted", m->folder);
    return TN_OK;
}

static tn_status config_read_mpt(struct hf_model *m) {
    struct layout *l = &m->layout;
    json_t *attention = json_object_get(m->config, "attn_config");
    l->ffn = config_whole(m->config, "intermediate_size n_inner ffn_hidden_size",
                          (uint32_t)(config_number(m->config, "expansion_ratio", 4) * l->width));
    l->kv_heads = config_whole(attention, "kv_n_heads", l->heads);
    l->clamp_qkv = (float)config_number(attention, "clip_qkv", 0);
    if (config_truth(attention, "alibi", true)) l->alibi = (float)config_number(attention, "alibi_bias_max", 8);
    if (config_truth(attention, "qk_ln", false) || !config_truth(m->config, "no_bias", true))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: MPT with biases or norms of q and k is not converted",
                       m->folder);
    return TN_OK;
}

static tn_status config_read_gemma(struct hf_model *m) {
    double scalar = config_number(m->config, "query_pre_attn_scalar", m->layout.head);
    if (scalar != m->layout.head) m->layout.scale_attention = (float)(1 / sqrt(scalar));
    return TN_OK;
}

static tn_status config_read_gemma2(struct hf_model *m) {
    m->layout.softcap_attention = (float)config_number(m->config, "attn_logit_softcapping", 0);
    m->layout.softcap_output = (float)config_number(m->config, "final_logit_softcapping", 0);
    return config_read_gemma(m);
}

static tn_status config_read_granite(struct hf_model *m) {
    struct layout *l = &m->layout;
    l->scale_output = (float)config_number(m->config, "logits_scaling", 1);
    l->scale_residual = (float)config_number(m->config, "residual_multiplier", 1);
    l->scale_embedding = (float)config_number(m->config, "embedding_multiplier", 1);
    l->scale_attention = (float)config_number(m->config, "attention_multiplier", 1 / sqrt(l->head));
    return TN_OK;
}

tn_status config_read_granitemoe(struct hf_model *m) {
    m->layout.shared_ffn = config_whole(m->config, "shared_intermediate_size", 0);
    return config_read_granite(m);
}

static tn_status config_read_command_r(struct hf_model *m) {
    m->layout.scale_output = (float)config_number(m->config, "logit_scale", 0.0625);
    return TN_OK;
}

static tn_status config_read_stablelm(struct hf_model *m) {
    if (config_truth(m->config, "qk_layernorm", false))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: StableLM with norms of q and k is not converted",
                       m->folder);
    return TN_OK;
}

static tn_status config_read_olmo(struct hf_model *m) {
    m->layout.clamp_qkv = (float)config_number(m->config, "clip_qkv", 0);
    return TN_OK;
}

static tn_status config_read_gptneox(struct hf_model *m) {
    m->layout.parallel_residual = config_truth(m->config, "use_parallel_residual", true);
    return TN_OK;
}

static tn_status config_read_starcoder(struct hf_model *m) {
    if (!config_truth(m->config, "multi_query", true))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: StarCoder without multi_query is not converted", m->folder);
    m->layout.kv_heads = 1;
    return TN_OK;
}

/* Architectures whose configuration has entries of its own. */
static const struct config_family config_families[] = {
    {"qwen2moe", config_read_qwen2moe, NULL, NULL},
    {"falcon", config_read_falcon, NULL, NULL},
    {"mpt", config_read_mpt, NULL, NULL},
    {"gemma2", config_read_gemma2, NULL, NULL},
    {"gemma3", config_read_gemma, NULL, NULL},
    {"gemma-embedding", config_read_gemma, NULL, NULL},
    {"granite", config_read_granite, NULL, NULL},
    {"granitemoe", config_read_granitemoe, NULL, NULL},
    {"command-r", config_read_command_r, NULL, NULL},
    {"stablelm", config_read_stablelm, NULL, NULL},
    {"olmo", config_read_olmo, NULL, NULL},
    {"gptneox", config_read_gptneox, NULL, NULL},
    {"starcoder", config_read_starcoder, NULL, NULL},
    {0},
};

static const struct config_family *find_family(const char *arch) {
    static const struct config_family *const lists[] = {
        config_families,        dense_config_families,   moe_config_families, hybrid_config_families,
        latent_config_families, encoder_config_families, head_config_families};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const struct config_family *f = lists[i]; f->arch; f++)
            if (strcmp(f->arch, arch) == 0) return f;
    return NULL;
}

/* Which layers attend to a window only; written out where the architecture's period does not give them. */
static tn_status config_read_window(struct hf_model *m) {
    struct layout *l = &m->layout;
    const uint32_t period = (uint32_t)l->arch->window_period;
    json_t *types = json_object_get(m->config, "layer_types");
    bool on = config_truth(m->config, "use_sliding_window", true);
    l->window = on ? config_whole(m->config, "local_attention sliding_window", 0) : 0;
    if (l->traits & TN_ARCH_HYBRID && !types) l->window = 0;
    if (!l->window || (json_array_size(types) != l->layers && !m->lists_windows)) return TN_OK;
    uint32_t sliding = 0, unusual = 0;
    m->window_layers = tn_calloc(l->layers, sizeof *m->window_layers);
    if (!m->window_layers) return TN_E_NOMEM;
    for (uint32_t i = 0; i < l->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        m->window_layers[i] = type ? strcmp(type, "sliding_attention") == 0 : !types;
        sliding += m->window_layers[i];
        unusual +=
            m->window_layers[i] != (period == 0 || (l->arch->full_first ? i % period > 0 : i % period < period - 1));
    }
    if (sliding == 0) l->window = 0;
    if (unusual == 0 && !m->lists_windows) {
        tn_free(m->window_layers);
        m->window_layers = NULL;
    }
    return TN_OK;
}

static tn_status config_read_family(struct hf_model *m) {
    struct layout *l = &m->layout;
    const json_t *c = m->config;
    if (l->traits & TN_ARCH_BERT) l->token_types = config_whole(c, "type_vocab_size", 2);
    TN_TRY(config_read_experts(m));
    const struct config_family *family = find_family(l->arch->name);
    return family && family->read ? family->read(m) : TN_OK;
}

/* ---- The configuration ---- */

/* Whether config.json has an entry that says something. */
static bool config_says(const json_t *config, const char *name) {
    const json_t *value = json_object_get(config, name);
    return json_is_true(value) || json_number_value(value) != 0 || json_string_length(value) > 0 ||
           json_array_size(value) > 0 || json_object_size(value) > 0;
}

/* The architecture of a class, which entries may decide. */
static const tn_arch *find_variant(const json_t *config, const char *name, const tn_arch_class **found) {
    for (size_t i = 0; tn_arch_at(i); i++)
        for (const tn_arch_class *c = tn_arch_at(i)->classes; c->name; c++)
            if (c->entry && strcmp(c->name, name) == 0 && config_says(config, c->entry)) {
                *found = c;
                return tn_arch_at(i);
            }
    return tn_arch_find_class(name, found);
}

static tn_status find_class(struct hf_model *m) {
    const char *name = json_string_value(json_array_get(json_object_get(m->root, "architectures"), 0));
    if (!name) return tn_fail(TN_E_FORMAT, "%s/config.json: \"architectures\" is missing", m->folder);
    m->layout.arch = find_variant(m->root, name, &m->class);
    if (!m->layout.arch)
        return tn_fail(
            TN_E_UNSUPPORTED,
            "%s: models of the class %s cannot be converted (tenon help --architectures lists those that can)",
            m->folder, name);
    m->config = m->root;
    if (json_object_get(m->root, "draft_vocab_size")) { /* some heads have the class of a model */
        m->layout.arch = tn_arch_find("eagle3");
        json_t *layer = json_object_get(m->root, "transformer_layer_config");
        if (layer) m->config = layer;
        return TN_OK;
    }
    if (m->class->traits & TN_ARCH_HF_NESTED) {
        json_t *text = json_object_get(m->root, "text_config");
        if (text) m->config = text;
    }
    return TN_OK;
}

static tn_status config_read(struct hf_model *m) {
    struct layout *l = &m->layout;
    TN_TRY(find_class(m));
    l->traits = l->arch->traits & ~TN_ARCH_TIED;
    TN_TRY(config_need(m, "hidden_size n_embd d_model", &l->width));
    l->layers = (uint32_t)json_array_size(json_object_get(m->config, "layers_block_type"));
    if (!l->layers) TN_TRY(config_need(m, "num_hidden_layers n_layer n_layers num_layers", &l->layers));
    if (l->layers > 10000) return tn_fail(TN_E_INVALID, "%s/config.json: %u layers", m->folder, l->layers);
    const char *heads = "num_attention_heads n_head n_heads num_heads";
    l->heads = l->traits & TN_ARCH_HYBRID ? config_whole(m->config, heads, 1) : 0; /* maybe nothing attends */
    if (!l->heads) TN_TRY(config_need(m, heads, &l->heads));
    TN_TRY(config_need(m, "vocab_size", &l->vocab));
    l->kv_heads = config_whole(m->config, "num_key_value_heads", l->heads);
    l->head = config_whole(m->config, "head_dim", l->width / l->heads);
    l->ffn = config_whole(m->config, "intermediate_size n_inner ffn_hidden_size", 4 * l->width);
    /* Without positions of its own a model has no limit; this one serves as the default context. */
    if (l->traits & TN_ARCH_NO_ROPE && !(l->traits & TN_ARCH_POSITIONS)) l->context = 2048;
    /* max_length is that of generated texts, except for encoders. */
    const char *context = l->traits & TN_ARCH_ENCODER
                              ? "max_position_embeddings n_positions n_ctx max_seq_len model_max_length max_length"
                              : "max_position_embeddings n_positions n_ctx max_seq_len seq_length model_max_length";
    l->context = config_whole(m->config, context, l->context);
    if (!l->context) TN_TRY(config_need(m, context, &l->context));
    bool mean = l->traits & TN_ARCH_LAYER_NORM;
    l->eps = (float)config_number(m->config,
                                  mean ? "layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps rms_norm_eps"
                                       : "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps",
                                  1e-5);
    TN_TRY(config_read_family(m));
    TN_TRY(config_read_rope(m));
    TN_TRY(config_read_window(m));
    tn_status status = layout_check(l);
    return status == TN_OK ? TN_OK : tn_fail_more(status, " (%s/config.json)", m->folder);
}

tn_status hf_model_open(const char *folder, struct hf_model *m) {
    *m = (struct hf_model){.folder = folder};
    tn_status status = hf_load_json(folder, "config.json", &m->root);
    if (status == TN_OK && !m->root)
        status = tn_fail(TN_E_NOT_FOUND, "%s: no config.json: not a model folder", folder);
    if (status == TN_OK) status = config_read(m);
    if (status != TN_OK) hf_model_close(m);
    return status;
}

tn_status hf_model_parse(const char *config, struct hf_model *m) {
    json_error_t problem;
    *m = (struct hf_model){.folder = ".", .root = json_loads(config, 0, &problem)};
    tn_status status =
        m->root ? config_read(m) : tn_fail(TN_E_SYNTAX, "config.json: line %d: %s", problem.line, problem.text);
    if (status != TN_OK) hf_model_close(m);
    return status;
}

void hf_model_close(struct hf_model *m) {
    json_decref(m->root);
    tn_free(m->rope_factors);
    tn_free(m->window_layers);
    *m = (struct hf_model){0};
}

/* ---- Keys ---- */

static tn_status set_f32(const struct hf_model *m, tn_gguf_writer *w, const char *name, float value) {
    char key[128];
    if (value == 0) return TN_OK;
    snprintf(key, sizeof key, "%s.%s", m->layout.arch->name, name);
    return tn_gguf_writer_set_f32(w, key, value);
}

tn_status hf_model_keys(const struct hf_model *m, tn_gguf_writer *w) {
    char key[128];
    TN_TRY(layout_keys(&m->layout, w));
    TN_TRY(tn_gguf_writer_set_cstr(w, "general.type", "model"));
    const char *name = json_string_value(json_object_get(m->root, "_name_or_path"));
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", m->folder);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = '\0';
    const char *slash = strrchr(folder, '/');
    TN_TRY(tn_gguf_writer_set_cstr(w, "general.name", name && *name ? name : slash ? slash + 1 : folder));
    if (m->rope_type) {
        snprintf(key, sizeof key, "%s.rope.scaling.type", m->layout.arch->name);
        TN_TRY(tn_gguf_writer_set_cstr(w, key, m->rope_type));
        TN_TRY(set_f32(m, w, "rope.scaling.factor", m->rope_factor));
        snprintf(key, sizeof key, "%s.rope.scaling.yarn_truncate", m->layout.arch->name);
        if (strcmp(m->rope_type, "yarn") == 0) TN_TRY(tn_gguf_writer_set_bool(w, key, !m->yarn_exact));
        TN_TRY(set_f32(m, w, "rope.scaling.yarn_beta_fast", m->rope_beta_fast));
        TN_TRY(set_f32(m, w, "rope.scaling.yarn_beta_slow", m->rope_beta_slow));
        TN_TRY(set_f32(m, w, "rope.scaling.yarn_attn_factor", m->yarn_attention));
        TN_TRY(set_f32(m, w, "rope.scaling.yarn_log_multiplier", m->yarn_log_multiplier));
    }
    if (m->activation) {
        snprintf(key, sizeof key, "%s.hidden_activation", m->layout.arch->name);
        TN_TRY(tn_gguf_writer_set_cstr(w, key, m->activation));
    }
    TN_TRY(set_f32(m, w, "attention.temperature_scale", m->rope_temperature));
    if (m->rope_sections[0] > 0) {
        snprintf(key, sizeof key, "%s.rope.dimension_sections", m->layout.arch->name);
        TN_TRY(tn_gguf_writer_set_array(w, key, TN_GGUF_I32, m->rope_sections, 4));
    }
    if (m->rope_original && (m->rope_type || m->rope_attention != 0 || m->rope_temperature != 0)) {
        snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", m->layout.arch->name);
        TN_TRY(tn_gguf_writer_set_u32(w, key, m->rope_original));
    }
    TN_TRY(set_f32(m, w, "rope.scaling.attn_factor", m->rope_attention));
    TN_TRY(hf_embedding_keys(m, w));
    if (!m->window_layers || !m->layout.window) return TN_OK;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", m->layout.arch->name);
    return tn_gguf_writer_set_array(w, key, TN_GGUF_BOOL, m->window_layers, m->layout.layers);
}

tn_status hf_model_weight_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    const struct config_family *family = find_family(m->layout.arch->name);
    return family && family->keys ? family->keys(m, weights, w) : TN_OK;
}

tn_status hf_model_order(const struct hf_model *m, const char *base, const char *hf, struct recipe *recipe) {
    const struct config_family *family = find_family(m->layout.arch->name);
    return family && family->order ? family->order(m, base, hf, recipe) : TN_OK;
}

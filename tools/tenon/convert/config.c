/* The configuration of a Hugging Face model: config.json to a GGUF layout and metadata. */
#include "cli/cli.h"
#include "convert/convert.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct hf_class hf_classes[] = {
    {"LlamaForCausalLM", "llama", HF_PAIRED_ROPE},
    {"LLaMAForCausalLM", "llama", HF_PAIRED_ROPE},
    {"MistralForCausalLM", "llama", HF_PAIRED_ROPE},
    {"MixtralForCausalLM", "llama", HF_PAIRED_ROPE},
    {"Ministral3ForCausalLM", "mistral3", HF_PAIRED_ROPE},
    {"Mistral3ForConditionalGeneration", "mistral3", HF_PAIRED_ROPE | HF_NESTED},
    {"Qwen2ForCausalLM", "qwen2", 0},
    {"Qwen2MoeForCausalLM", "qwen2moe", 0},
    {"Qwen3ForCausalLM", "qwen3", 0},
    {"Qwen3MoeForCausalLM", "qwen3moe", 0},
    {"GemmaForCausalLM", "gemma", HF_NORM_PLUS_ONE},
    {"Gemma2ForCausalLM", "gemma2", HF_NORM_PLUS_ONE},
    {"Gemma3ForCausalLM", "gemma3", HF_NORM_PLUS_ONE},
    {"Gemma3ForConditionalGeneration", "gemma3", HF_NORM_PLUS_ONE | HF_NESTED},
    {"PhiForCausalLM", "phi2", 0},
    {"Phi3ForCausalLM", "phi3", 0},
    {"GPT2LMHeadModel", "gpt2", HF_TRANSPOSED},
    {"GPTNeoXForCausalLM", "gptneox", HF_GROUPED_QKV},
    {"FalconForCausalLM", "falcon", HF_GROUPED_QKV},
    {"RWForCausalLM", "falcon", HF_GROUPED_QKV},
    {"MptForCausalLM", "mpt", 0},
    {"MPTForCausalLM", "mpt", 0},
    {"GPTBigCodeForCausalLM", "starcoder", 0},
    {"Starcoder2ForCausalLM", "starcoder2", 0},
    {"StableLmForCausalLM", "stablelm", 0},
    {"StableLMEpochForCausalLM", "stablelm", 0},
    {"SmolLM3ForCausalLM", "smollm3", HF_PAIRED_ROPE},
    {"OlmoForCausalLM", "olmo", HF_PAIRED_ROPE},
    {"Olmo2ForCausalLM", "olmo2", 0},
    {"OlmoeForCausalLM", "olmoe", 0},
    {"GraniteForCausalLM", "granite", HF_PAIRED_ROPE},
    {"GraniteMoeForCausalLM", "granitemoe", HF_PAIRED_ROPE},
    {"GraniteMoeSharedForCausalLM", "granitemoe", HF_PAIRED_ROPE},
    {"GptOssForCausalLM", "gpt-oss", 0},
    {"InternLM2ForCausalLM", "internlm2", HF_PAIRED_ROPE | HF_GROUPED_QKV},
    {"CohereForCausalLM", "command-r", 0},
    {"BertModel", "bert", 0},
    {"BertForMaskedLM", "bert", 0},
    {"BertForSequenceClassification", "bert", 0},
    {"NomicBertModel", "nomic-bert", 0},
    {NULL, NULL, 0},
};

const struct hf_class *hf_class_find(const char *name) {
    for (const struct hf_class *c = hf_classes; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

/* ---- Files ------------------------------------------------------------------------------------------------------
 */

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

/* jansson holds no NUL in an object's key, but vocabularies have a token of just that byte. Writes the stand-in of
 * the same length over every \u0000 in a string that a colon follows. */
static void hide_nul_in_keys(char *bytes) {
    for (char *start = strchr(bytes, '"'); start; start = strchr(start, '"')) {
        bool found = false;
        char *end = start + 1;
        for (; *end && *end != '"'; end += *end == '\\' && end[1] ? 2 : 1)
            found = found || strncmp(end, "\\u0000", 6) == 0;
        if (!*end) return;
        const char *next = end + 1 + strspn(end + 1, " \t\r\n");
        for (char *at = start + 1; found && *next == ':' && at < end; at += *at == '\\' ? 2 : 1)
            if (strncmp(at, "\\u0000", 6) == 0) memcpy(at, "\\ufdd0", 6);
        start = end + 1;
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
    tn_free(bytes);
    if (*out) return TN_OK;
    return tn_fail(TN_E_FORMAT, "%s/%s: line %d: %s", folder, name, error.line, error.text);
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------
 */

/* The first of several names (separated by spaces) that has a value other than null. */
static json_t *first_of(const json_t *object, const char *names) {
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
static double number(const json_t *object, const char *names, double missing) {
    json_t *value = first_of(object, names);
    return json_is_number(value) ? json_number_value(value) : missing;
}
static bool truth(const json_t *object, const char *names, bool missing) {
    json_t *value = first_of(object, names);
    return json_is_boolean(value) ? json_is_true(value) : missing;
}
static uint32_t whole(const json_t *object, const char *names, uint32_t missing) {
    double value = number(object, names, missing);
    return value >= 0 && value <= 1u << 30 && value == floor(value) ? (uint32_t)value : 0;
}

static tn_status need(const struct hf_model *m, const char *names, uint32_t *out) {
    *out = whole(m->config, names, 0);
    if (*out) return TN_OK;
    return tn_fail(TN_E_FORMAT, "%s/config.json: none of \"%s\" is a positive whole number", m->folder, names);
}

static bool arch_is(const struct hf_model *m, const char *arch) { return strcmp(m->class->arch, arch) == 0; }

/* ---- RoPE -------------------------------------------------------------------------------------------------------
 */

/* Frequency factors of Llama 3: long waves are stretched by the factor, short ones not, those between partly. */
static tn_status llama3_factors(struct hf_model *m, const json_t *rope) {
    const struct layout *l = &m->layout;
    double factor = number(rope, "factor", 8), low = number(rope, "low_freq_factor", 1);
    double high = number(rope, "high_freq_factor", 4),
           context = number(rope, "original_max_position_embeddings", 8192);
    uint32_t n = l->rotated / 2;
    if (!(factor > 0 && low > 0 && high > low && context > 0))
        return tn_fail(TN_E_FORMAT, "%s/config.json: the numbers of the RoPE scaling make no sense", m->folder);
    m->rope_factors = tn_calloc(n, sizeof(float));
    if (!m->rope_factors) return TN_E_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        double wave = 2 * M_PI * pow(l->rope_base, 2.0 * i / l->rotated);
        double smooth = (context / wave - low) / (high - low);
        m->rope_factors[i] = wave < context / high  ? 1
                             : wave > context / low ? (float)factor
                                                    : (float)(1 / ((1 - smooth) / factor + smooth));
    }
    m->layout.features |= L_ROPE_FACTORS;
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
    m->layout.features |= L_ROPE_FACTORS | L_LONG_SHORT;
    double original = number(m->config, "original_max_position_embeddings",
                             number(rope, "original_max_position_embeddings", m->layout.context));
    double scale = m->layout.context / original;
    m->rope_original = (uint32_t)original;
    if (scale > 1) m->rope_attention = (float)sqrt(1 + log(scale) / log(original));
    return TN_OK;
}

/* YaRN raises attention with the factor, log-wise; some models say otherwise. The key holds what is left to multiply.
 */
static void yarn_attention(struct hf_model *m, const json_t *rope) {
    double log_factor = m->rope_factor > 1 ? log((double)m->rope_factor) : 0, wanted = 0;
    double scale = number(rope, "mscale", 0), all = number(rope, "mscale_all_dim", 0);
    if (scale > 0 && all > 0) wanted = (1 + 0.1 * scale * log_factor) / (1 + 0.1 * all * log_factor);
    wanted = number(rope, "attention_factor", wanted);
    if (wanted > 0) m->yarn_attention = (float)(wanted / (1 + 0.1 * log_factor));
    m->yarn_log_multiplier = (float)all;
}

static tn_status read_rope(struct hf_model *m) {
    struct layout *l = &m->layout;
    json_t *rope = first_of(m->config, "rope_parameters rope_scaling");
    /* Models with two kinds of layers give each kind its own. */
    json_t *full = json_object_get(rope, "full_attention"), *local = json_object_get(rope, "sliding_attention");
    if (local) l->rope_base_local = (float)number(local, "rope_theta", 10000);
    if (full) rope = full;
    l->rope_base = (float)number(rope, "rope_theta", number(m->config, "rope_theta rotary_emb_base", 10000));
    if (!local) l->rope_base_local = (float)number(m->config, "rope_local_base_freq", 0);
    double share = number(rope, "partial_rotary_factor",
                          number(m->config, "partial_rotary_factor rotary_pct rope_pct", l->arch->rotated));
    l->rotated = (uint32_t)(l->head * share) & ~1u;
    if (!rope || l->features & L_NO_ROPE) return TN_OK;
    m->rope_temperature = (float)number(rope, "llama_4_scaling_beta", 0);
    m->rope_original = whole(rope, "original_max_position_embeddings", 0);
    const char *type = json_string_value(first_of(rope, "rope_type type"));
    if (!type || strcmp(type, "default") == 0) return TN_OK;
    m->rope_factor = (float)number(rope, "factor", 1);
    if (strcmp(type, "llama3") == 0) return llama3_factors(m, rope);
    if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) return long_short_factors(m, rope);
    if (strcmp(type, "linear") == 0) {
        m->rope_type = "linear";
    } else if (strcmp(type, "yarn") == 0) {
        m->rope_type = "yarn";
        if (!m->rope_original) m->rope_original = (uint32_t)(l->context / m->rope_factor);
        m->rope_beta_fast = (float)number(rope, "beta_fast", 0);
        m->rope_beta_slow = (float)number(rope, "beta_slow", 0);
        yarn_attention(m, rope);
    } else if (strcmp(type, "dynamic") == 0) {
        warn("dynamic RoPE scaling is left out: the model is right up to its original context length only");
    } else {
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: RoPE scaling \"%s\" is not known", m->folder, type);
    }
    return TN_OK;
}

/* ---- What single architectures add -------------------------------------------------------------------------------
 */

static tn_status read_experts(struct hf_model *m) {
    struct layout *l = &m->layout;
    l->experts = whole(m->config, "num_local_experts num_experts", 0);
    if (!l->experts) return TN_OK;
    TN_TRY(need(m, "num_experts_per_tok num_experts_per_token", &l->experts_used));
    l->expert_ffn = whole(m->config, "moe_intermediate_size", l->ffn);
    if (arch_is(m, "qwen2moe")) l->shared_ffn = whole(m->config, "shared_expert_intermediate_size", 0);
    if (arch_is(m, "granitemoe") && (l->shared_ffn = whole(m->config, "shared_intermediate_size", 0)))
        l->features |= L_SHARED_EXPERT;
    if (whole(m->config, "decoder_sparse_step", 1) != 1 ||
        json_array_size(json_object_get(m->config, "mlp_only_layers")))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: models with experts in some layers only are not converted",
                       m->folder);
    bool normalized = truth(m->config, "norm_topk_prob", !arch_is(m, "qwen2moe") && !arch_is(m, "olmoe"));
    bool fixed = !arch_is(m, "qwen2moe") && !arch_is(m, "olmoe");
    if (normalized != fixed)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: norm_topk_prob is %s, but GGUF's %s means %s", m->folder,
                       normalized ? "true" : "false", m->class->arch, fixed ? "true" : "false");
    return TN_OK;
}

static tn_status read_falcon(struct hf_model *m) {
    struct layout *l = &m->layout;
    bool grouped = truth(m->config, "new_decoder_architecture", false);
    if (grouped)
        l->kv_heads = whole(m->config, "num_kv_heads n_head_kv", l->heads);
    else
        l->kv_heads = truth(m->config, "multi_query", true) ? 1 : l->heads;
    if (grouped && whole(m->config, "num_ln_in_parallel_attn", 2) == 2) l->features |= L_ATTN_NORM_2;
    if (truth(m->config, "alibi", false) || !truth(m->config, "parallel_attn", true) ||
        truth(m->config, "bias", false))
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/config.json: Falcon with ALiBi, biases or sequential layers is not "
                       "converted",
                       m->folder);
    return TN_OK;
}

static tn_status read_mpt(struct hf_model *m) {
    struct layout *l = &m->layout;
    json_t *attention = json_object_get(m->config, "attn_config");
    l->kv_heads = whole(attention, "kv_n_heads", l->heads);
    l->clamp_qkv = (float)number(attention, "clip_qkv", 0);
    if (truth(attention, "alibi", true))
        l->alibi = (float)number(attention, "alibi_bias_max", 8);
    else
        l->features |= L_POSITIONS;
    if (truth(attention, "qk_ln", false) || !truth(m->config, "no_bias", true))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: MPT with biases or norms of q and k is not converted",
                       m->folder);
    return TN_OK;
}

/* What the architecture means when a file gives a window and nothing else. */
static bool usual_window(const struct hf_model *m, uint32_t layer) {
    if (arch_is(m, "gemma2") || arch_is(m, "gpt-oss")) return layer % 2 == 0;
    if (arch_is(m, "gemma3")) return layer % 6 != 5;
    return true;
}

/* Which layers attend to a window only; written out where that is not the usual. */
static tn_status read_window(struct hf_model *m) {
    struct layout *l = &m->layout;
    json_t *types = json_object_get(m->config, "layer_types");
    bool on = truth(m->config, "use_sliding_window", true);
    l->window = on ? whole(m->config, "sliding_window", 0) : 0;
    if (!l->window || json_array_size(types) != l->layers) return TN_OK;
    uint32_t sliding = 0, unusual = 0;
    m->window_layers = tn_calloc(l->layers, sizeof *m->window_layers);
    if (!m->window_layers) return TN_E_NOMEM;
    for (uint32_t i = 0; i < l->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        m->window_layers[i] = type && strcmp(type, "sliding_attention") == 0;
        sliding += m->window_layers[i];
        unusual += m->window_layers[i] != usual_window(m, i);
    }
    if (sliding == 0) l->window = 0;
    if (unusual == 0) {
        tn_free(m->window_layers);
        m->window_layers = NULL;
    }
    return TN_OK;
}

static tn_status read_special(struct hf_model *m) {
    struct layout *l = &m->layout;
    const json_t *c = m->config;
    if (truth(c, "attention_bias", false) && !(l->features & L_QKV_BIAS)) l->features |= L_QKV_BIAS | L_OUT_BIAS;
    if (truth(c, "mlp_bias", false)) l->features |= L_FFN_BIAS;
    if (arch_is(m, "gemma2")) {
        l->softcap_attention = (float)number(c, "attn_logit_softcapping", 0);
        l->softcap_output = (float)number(c, "final_logit_softcapping", 0);
    }
    if (arch_is(m, "gemma2") || arch_is(m, "gemma3")) {
        double scalar = number(c, "query_pre_attn_scalar", l->head);
        if (scalar != l->head) l->scale_attention = (float)(1 / sqrt(scalar));
    }
    if (arch_is(m, "granite") || arch_is(m, "granitemoe")) {
        l->scale_output = (float)number(c, "logits_scaling", 1);
        l->scale_residual = (float)number(c, "residual_multiplier", 1);
        l->scale_embedding = (float)number(c, "embedding_multiplier", 1);
        l->scale_attention = (float)number(c, "attention_multiplier", 1 / sqrt(l->head));
    }
    if (arch_is(m, "command-r")) {
        l->scale_output = (float)number(c, "logit_scale", 0.0625);
        if (truth(c, "use_qk_norm", false)) l->features |= L_QK_NORM_HEADS;
    }
    if (arch_is(m, "stablelm")) {
        if (truth(c, "use_qkv_bias", false)) l->features |= L_QKV_BIAS;
        if (truth(c, "use_parallel_residual", false)) l->features |= L_NO_FFN_NORM;
        if (truth(c, "qk_layernorm", false))
            return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: StableLM with norms of q and k is not converted",
                           m->folder);
    }
    if (arch_is(m, "olmo")) l->clamp_qkv = (float)number(c, "clip_qkv", 0);
    if (arch_is(m, "gptneox")) l->parallel_residual = truth(c, "use_parallel_residual", true);
    if (arch_is(m, "starcoder2") && !truth(c, "use_bias", true))
        l->features &= ~(uint32_t)(L_QKV_BIAS | L_OUT_BIAS | L_FFN_BIAS);
    if (arch_is(m, "starcoder")) {
        if (!truth(c, "multi_query", true))
            return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: StarCoder without multi_query is not converted",
                           m->folder);
        l->kv_heads = 1;
    }
    if (l->features & L_ENCODER) l->token_types = whole(c, "type_vocab_size", 2);
    if (arch_is(m, "falcon")) TN_TRY(read_falcon(m));
    if (arch_is(m, "mpt")) TN_TRY(read_mpt(m));
    return read_experts(m);
}

/* ---- All together -----------------------------------------------------------------------------------------------
 */

static tn_status find_class(struct hf_model *m) {
    const char *name = json_string_value(json_array_get(json_object_get(m->root, "architectures"), 0));
    if (!name) return tn_fail(TN_E_FORMAT, "%s/config.json: no \"architectures\" in it", m->folder);
    m->class = hf_class_find(name);
    if (!m->class)
        return tn_fail(TN_E_UNSUPPORTED, "%s: models of the class %s are not converted (see tenon convert --help)",
                       m->folder, name);
    m->config = m->root;
    if (m->class->traits & HF_NESTED) {
        json_t *text = json_object_get(m->root, "text_config");
        if (text) m->config = text;
    }
    return TN_OK;
}

static tn_status read_config(struct hf_model *m) {
    struct layout *l = &m->layout;
    TN_TRY(hf_load_json(m->folder, "config.json", &m->root));
    if (!m->root) return tn_fail(TN_E_NOT_FOUND, "%s: no config.json; is this a model folder?", m->folder);
    TN_TRY(find_class(m));
    *l = (struct layout){.arch = layout_find(m->class->arch)};
    if (!l->arch) return tn_fail(TN_E_INTERNAL, "no layout for %s", m->class->arch);
    l->features = l->arch->features & ~(uint32_t)L_TIED;
    TN_TRY(need(m, "hidden_size n_embd d_model", &l->width));
    TN_TRY(need(m, "num_hidden_layers n_layer n_layers num_layers", &l->layers));
    TN_TRY(need(m, "num_attention_heads n_head n_heads", &l->heads));
    TN_TRY(need(m, "vocab_size", &l->vocab));
    l->kv_heads = whole(m->config, "num_key_value_heads", l->heads);
    l->head = whole(m->config, "head_dim", l->width / l->heads);
    uint32_t fourfold = 4 * l->width;
    if (arch_is(m, "mpt")) fourfold = (uint32_t)(number(m->config, "expansion_ratio", 4) * l->width);
    l->ffn = whole(m->config, "intermediate_size n_inner ffn_hidden_size", fourfold);
    TN_TRY(need(m, "max_position_embeddings n_positions n_ctx max_seq_len", &l->context));
    bool mean = l->features & L_LAYER_NORM;
    l->eps = (float)number(m->config,
                           mean ? "layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps"
                                : "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps",
                           1e-5);
    TN_TRY(read_special(m));
    TN_TRY(read_rope(m));
    TN_TRY(read_window(m));
    tn_status status = layout_check(l);
    return status == TN_OK ? TN_OK : tn_fail_more(status, " (%s/config.json)", m->folder);
}

tn_status hf_model_open(const char *folder, struct hf_model *m) {
    *m = (struct hf_model){.folder = folder};
    tn_status status = read_config(m);
    if (status != TN_OK) hf_model_close(m);
    return status;
}

void hf_model_close(struct hf_model *m) {
    json_decref(m->root);
    tn_free(m->rope_factors);
    tn_free(m->window_layers);
    *m = (struct hf_model){0};
}

/* ---- Keys -------------------------------------------------------------------------------------------------------
 */

static tn_status set_f32(const struct hf_model *m, tn_gguf_writer *w, const char *name, float value) {
    char key[128];
    if (value == 0) return TN_OK;
    snprintf(key, sizeof key, "%s.%s", m->class->arch, name);
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
        snprintf(key, sizeof key, "%s.rope.scaling.type", m->class->arch);
        TN_TRY(tn_gguf_writer_set_cstr(w, key, m->rope_type));
        TN_TRY(set_f32(m, w, "rope.scaling.factor", m->rope_factor));
        TN_TRY(set_f32(m, w, "rope.scaling.yarn_beta_fast", m->rope_beta_fast));
        TN_TRY(set_f32(m, w, "rope.scaling.yarn_beta_slow", m->rope_beta_slow));
        TN_TRY(set_f32(m, w, "rope.scaling.yarn_attn_factor", m->yarn_attention));
        TN_TRY(set_f32(m, w, "rope.scaling.yarn_log_multiplier", m->yarn_log_multiplier));
    }
    TN_TRY(set_f32(m, w, "attention.temperature_scale", m->rope_temperature));
    if (m->rope_original && (m->rope_type || m->rope_attention != 0 || m->rope_temperature != 0)) {
        snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", m->class->arch);
        TN_TRY(tn_gguf_writer_set_u32(w, key, m->rope_original));
    }
    TN_TRY(set_f32(m, w, "rope.scaling.attn_factor", m->rope_attention));
    if (!m->window_layers || !m->layout.window) return TN_OK;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", m->class->arch);
    return tn_gguf_writer_set_array(w, key, TN_GGUF_BOOL, m->window_layers, m->layout.layers);
}

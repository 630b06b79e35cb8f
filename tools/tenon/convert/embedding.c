/* What models that embed and rank texts have beside their weights: pooling, classifiers, the matrices after pooling
 * and the prompts of sentence-transformers. */
#include "convert/convert.h"
#include "convert/recipe.h"

#include "tenon/llm.h"

#include <stdlib.h>
#include <string.h>

/* ---- Kinds of models ---- */

static bool class_contains(const struct hf_model *m, const char *part) {
    return strstr(m->class->name, part) != NULL;
}

static bool classifies(const struct hf_model *m) { return class_contains(m, "ForSequenceClassification"); }

static bool mentions_reranker(const char *text) {
    static const char word[] = "qwen3-reranker";
    for (; text && *text; text++) {
        size_t i = 0;
        while (word[i] && (text[i] | (text[i] >= 'A' && text[i] <= 'Z' ? 0x20 : 0)) == word[i]) i++;
        if (!word[i]) return true;
    }
    return false;
}

/* Qwen3-Reranker is a language model that answers "yes" or "no". Only its name says so. */
static tn_status config_read_qwen3(struct hf_model *m) {
    if (!class_contains(m, "ForCausalLM")) return TN_OK;
    char *readme;
    size_t size;
    TN_TRY(hf_load_bytes(m->folder, "README.md", &readme, &size));
    const char *slash = strrchr(m->folder, '/');
    char heading[64] = "";
    const char *title = readme ? strstr(readme, "# Qwen3") : NULL;
    if (title) snprintf(heading, sizeof heading, "%.*s", (int)strcspn(title, "\n"), title);
    tn_free(readme);
    m->answers_yes = mentions_reranker(json_string_value(json_object_get(m->root, "_name_or_path"))) ||
                     mentions_reranker(slash && slash[1] ? slash + 1 : m->folder) || mentions_reranker(heading);
    if (!m->answers_yes) return TN_OK;
    json_t *tokenizer;
    TN_TRY(hf_load_json(m->folder, "tokenizer.json", &tokenizer));
    json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    static const char *const words[] = {"yes", "no"};
    for (int i = 0; i < 2; i++) {
        json_t *id = json_object_get(vocab, words[i]);
        m->answers[i] = json_is_integer(id) ? json_integer_value(id) : -1;
    }
    json_decref(tokenizer);
    if (m->answers[0] < 0 || m->answers[1] < 0)
        return tn_fail(TN_E_FORMAT, "%s/tokenizer.json: a reranker without the tokens \"yes\" and \"no\"", m->folder);
    return TN_OK;
}

/* The positions of RoBERTa begin behind the padding token. */
static tn_status config_read_bert(struct hf_model *m) {
    if (!class_contains(m, "Roberta") && !class_contains(m, "Camembert")) return TN_OK;
    m->first_position = 1 + config_whole(m->config, "pad_token_id", 1);
    if (m->layout.context <= m->first_position)
        return tn_fail(TN_E_FORMAT, "%s/config.json: max_position_embeddings is too small", m->folder);
    m->layout.context -= m->first_position;
    return TN_OK;
}

static tn_status order_bert(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    (void)hf;
    if (m->first_position && strcmp(base, "position_embd") == 0) {
        p->offset = m->first_position;
        p->source_rows = p->rows + m->first_position;
    }
    return TN_OK;
}

static tn_status order_qwen3(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    (void)hf;
    if (!m->answers_yes || strcmp(base, "cls.output") != 0) return TN_OK;
    p->map = tn_malloc(2 * sizeof *p->map);
    if (!p->map) return TN_E_NOMEM;
    memcpy(p->map, m->answers, sizeof m->answers);
    p->source_rows = m->layout.vocab;
    return TN_OK;
}

static tn_status config_read_t5(struct hf_model *m) {
    struct layout *l = &m->layout;
    const char *ffn = json_string_value(json_object_get(m->config, "feed_forward_proj"));
    l->kv_heads = l->heads;
    l->head = config_whole(m->config, "d_kv", l->width / l->heads);
    l->ffn = config_whole(m->config, "d_ff", 4 * l->width);
    if (config_whole(m->config, "relative_attention_max_distance", 128) != 128)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: relative_attention_max_distance is not 128", m->folder);
    if (!ffn || strcmp(ffn, "relu") == 0)
        m->activation = "relu";
    else if (strcmp(ffn, "gated-gelu") == 0)
        m->activation = "gelu_new";
    else
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: feed_forward_proj \"%s\" is not supported", m->folder, ffn);
    return TN_OK;
}
static tn_status t5_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    return config_key_u32(m, w, "attention.relative_buckets_count",
                          config_whole(m->config, "relative_attention_num_buckets", 32));
}

/* ---- Encoders of Jina, Nomic and NeoBERT ---- */

static tn_status config_read_jina_v2(struct hf_model *m) {
    const char *feed = json_string_value(json_object_get(m->config, "feed_forward_type"));
    if (feed && strcmp(feed, "geglu") != 0)
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: feed_forward_type \"%s\" is not converted, only \"geglu\"",
                       m->folder, feed);
    m->layout.alibi = 8;
    return TN_OK;
}

/* Gate and up in one matrix: the gate first, except in the models that know code. */
static tn_status order_jina_v2(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    (void)m;
    const bool gate_first = strstr(hf, ".gated_layers") != NULL, gate_last = strstr(hf, ".up_gated_layer") != NULL;
    if (!gate_first && !gate_last) return TN_OK;
    p->source_rows = 2 * p->rows;
    p->offset = (strcmp(base, "ffn_gate") == 0) == gate_first ? 0 : p->rows;
    return TN_OK;
}

/* Matrices of all experts below each other, those of the second layer transposed. */
static tn_status order_nomic_moe(const struct hf_model *m, const char *base, const char *hf, struct recipe *p) {
    (void)m, (void)base;
    p->any_shape = p->any_shape || strstr(hf, ".experts.mlp.") != NULL;
    p->transposed = p->transposed || strstr(hf, ".experts.mlp.w2") != NULL;
    return TN_OK;
}
static tn_status nomic_moe_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    (void)weights;
    return config_key_u32(m, w, "moe_every_n_layers", config_whole(m->config, "moe_every_n_layers", 2));
}

/* The inner width follows from intermediate_size, as in SwiGLU layers with as many weights as without a gate. */
static tn_status config_read_neo_bert(struct hf_model *m) {
    struct layout *l = &m->layout;
    l->ffn = ((2 * config_whole(m->config, "intermediate_size", 4 * l->width) / 3) + 7) / 8 * 8;
    l->eps = (float)config_number(m->config, "norm_eps", 1e-6);
    if (config_truth(m->config, "ngpt", false) || !config_truth(m->config, "rope", true))
        return tn_fail(TN_E_UNSUPPORTED, "%s/config.json: NeoBERT without RoPE or with ngpt is not converted",
                       m->folder);
    return TN_OK;
}

const struct config_family encoder_config_families[] = {
    {"jina-bert-v2", config_read_jina_v2, NULL, order_jina_v2},
    {"jina-bert-v3", config_read_bert, NULL, NULL},
    {"neo-bert", config_read_neo_bert, NULL, NULL},
    {"nomic-bert-moe", NULL, nomic_moe_keys, order_nomic_moe},
    {.arch = "t5encoder", .read = config_read_t5, .keys = t5_keys},
    {"bert", config_read_bert, NULL, order_bert},
    {"qwen3", config_read_qwen3, NULL, order_qwen3},
    {0},
};

bool hf_model_has_classifier(const struct hf_model *m, const char *hf, tn_arch_tensor *tensor) {
    bool words = strcmp(hf, "lm_head") == 0 || strcmp(hf, "embed_tokens") == 0;
    if (m->answers_yes && words) {
        tensor->n_dims = 2;
        tensor->ne[0] = m->layout.width;
        tensor->ne[1] = 2;
        return true;
    }
    return !words && (classifies(m) || strncmp(hf, "head.", 5) == 0);
}

/* ---- Pooling and labels ---- */

static tn_status key_str_array(const struct hf_model *m, tn_gguf_writer *w, const char *name, const tn_gguf_str *list,
                               size_t count) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->layout.arch->name, name);
    return tn_gguf_writer_set_array(w, key, TN_GGUF_STR, list, count);
}

/* The labels by number, unless they are the names that the library invents. */
static tn_status set_labels(const struct hf_model *m, tn_gguf_writer *w) {
    enum { MOST = 1024 };
    json_t *labels = json_object_get(m->config, "id2label");
    size_t count = json_object_size(labels);
    tn_gguf_str list[MOST];
    if (!count || count > MOST) return TN_OK;
    for (size_t i = 0; i < count; i++) {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        json_t *label = json_object_get(labels, number);
        if (!json_is_string(label) || strncmp(json_string_value(label), "LABEL_", 6) == 0) return TN_OK;
        list[i] = (tn_gguf_str){json_string_value(label), json_string_length(label)};
    }
    return key_str_array(m, w, "classifier.output_labels", list, count);
}

static const char rerank_template[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a "
    "web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: "
    "{document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

static tn_status set_ranking(const struct hf_model *m, tn_gguf_writer *w) {
    TN_TRY(config_key_u32(m, w, "pooling_type", TN_POOLING_RANK));
    if (m->answers_yes) {
        static const tn_gguf_str labels[] = {{"yes", 3}, {"no", 2}};
        TN_TRY(tn_gguf_writer_set_cstr(w, "tokenizer.chat_template.rerank", rerank_template));
        return key_str_array(m, w, "classifier.output_labels", labels, 2);
    }
    const char *pooling = json_string_value(json_object_get(m->config, "classifier_pooling"));
    if (pooling && strcmp(pooling, "cls") == 0)
        TN_TRY(config_key_u32(m, w, "classifier.pooling_type", TN_POOLING_CLS));
    return set_labels(m, w);
}

/* ---- sentence-transformers ---- */

static tn_status read_pooling(const struct hf_model *m, const char *path, uint32_t *pooling) {
    static const struct {
        const char *flag, *name;
        tn_pooling pooling;
    } modes[] = {{"pooling_mode_mean_tokens", "mean", TN_POOLING_MEAN},
                 {"pooling_mode_cls_token", "cls", TN_POOLING_CLS},
                 {"pooling_mode_lasttoken", "lasttoken", TN_POOLING_LAST}};
    char file[256];
    json_t *config;
    snprintf(file, sizeof file, "%.200s/config.json", path);
    TN_TRY(hf_load_json(m->folder, file, &config));
    const char *mode = json_string_value(json_object_get(config, "pooling_mode"));
    bool found = false;
    for (size_t i = 0; i < sizeof modes / sizeof *modes && !found; i++) {
        found = json_is_true(json_object_get(config, modes[i].flag)) || (mode && strcmp(mode, modes[i].name) == 0);
        if (found) *pooling = (uint32_t)modes[i].pooling;
    }
    json_decref(config);
    return found ? TN_OK
                 : tn_fail(TN_E_UNSUPPORTED, "%s/%s: unknown pooling; known are mean, cls and lasttoken", m->folder,
                           file);
}

/* A matrix after the pooling: linear and without a bias, or the results would be others. */
static tn_status check_dense(const struct hf_model *m, tn_gguf_writer *w, const char *path, int number) {
    char file[256], key[64];
    json_t *config;
    snprintf(file, sizeof file, "%.200s/config.json", path);
    TN_TRY(hf_load_json(m->folder, file, &config));
    const char *activation = json_string_value(json_object_get(config, "activation_function"));
    bool linear = (!activation || strstr(activation, "Identity")) && !json_is_true(json_object_get(config, "bias"));
    uint32_t in = config_whole(config, "in_features", 0), out = config_whole(config, "out_features", 0);
    json_decref(config);
    if (!linear || strtol(path, NULL, 10) != number || (number != 2 && number != 3))
        return tn_fail(TN_E_UNSUPPORTED, "%s/%s: only 2_Dense and 3_Dense without bias and activation are converted",
                       m->folder, file);
    snprintf(key, sizeof key, "dense_%d_feat_in", number);
    TN_TRY(config_key_u32(m, w, key, in));
    snprintf(key, sizeof key, "dense_%d_feat_out", number);
    return config_key_u32(m, w, key, out);
}

static tn_status set_prompts(const struct hf_model *m, tn_gguf_writer *w) {
    json_t *config, *prompt;
    const char *name;
    TN_TRY(hf_load_json(m->folder, "config_sentence_transformers.json", &config));
    tn_status status = TN_OK;
    json_object_foreach(json_object_get(config, "prompts"), name, prompt) {
        char key[128];
        snprintf(key, sizeof key, "sentence_transformers.prompt.%.80s", name);
        if (status == TN_OK && json_string_length(prompt))
            status =
                tn_gguf_writer_set(w, key,
                                   &(tn_gguf_value){.type = TN_GGUF_STR,
                                                    .str = {json_string_value(prompt), json_string_length(prompt)}});
    }
    json_decref(config);
    return status;
}

tn_status hf_embedding_keys(const struct hf_model *m, tn_gguf_writer *w) {
    if (classifies(m) || m->answers_yes) return set_ranking(m, w);
    json_t *modules, *module;
    size_t i;
    uint32_t pooling = UINT32_MAX;
    TN_TRY(hf_load_json(m->folder, "modules.json", &modules));
    tn_status status = TN_OK;
    int number = 0;
    json_array_foreach(modules, i, module) {
        const char *type = json_string_value(json_object_get(module, "type"));
        const char *path = json_string_value(json_object_get(module, "path"));
        const char *last = type ? strrchr(type, '.') : NULL;
        if (!last || !path || status != TN_OK) continue;
        if (strcmp(last, ".Pooling") == 0) status = read_pooling(m, path, &pooling);
        if (strcmp(last, ".Dense") == 0) status = check_dense(m, w, path, number = number ? number + 1 : 2);
    }
    bool any = json_array_size(modules) > 0;
    json_decref(modules);
    if (status == TN_OK && pooling != UINT32_MAX) status = config_key_u32(m, w, "pooling_type", pooling);
    return status == TN_OK && any ? set_prompts(m, w) : status;
}

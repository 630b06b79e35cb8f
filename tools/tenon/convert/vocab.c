/* The tokenizer of a Hugging Face folder, converted to tokenizer.* metadata. */
#include "convert/vocab.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char space[] = "▁";

/* ---- Token table ---- */

static tn_gguf_str text_of(const json_t *string) {
    return (tn_gguf_str){json_string_value(string), json_string_length(string)};
}

tn_gguf_str vocab_keep(struct hf_vocab *v, const char *first, tn_gguf_str rest) {
    size_t length = strlen(first) + rest.size;
    char *joined = tn_malloc(length + 1);
    if (!joined) return (tn_gguf_str){0};
    memcpy(joined, first, strlen(first));
    memcpy(joined + strlen(first), rest.data, rest.size);
    json_t *string = json_stringn_nocheck(joined, length);
    tn_free(joined);
    json_array_append_new(v->keep, string);
    return text_of(string);
}

tn_status vocab_put(struct hf_vocab *v, int64_t id, tn_gguf_str text, int type, float score) {
    if (id < 0 || id >= v->size)
        return tn_fail(TN_E_FORMAT,
                       "%s: token %" PRId64 " of the tokenizer is beyond the model's vocabulary of %" PRIu32,
                       v->model->folder, id, v->size);
    if (!text.data) return tn_fail(TN_E_NOMEM, "out of memory in the vocabulary");
    v->tokens[id] = text;
    v->types[id] = type;
    v->scores[id] = score;
    return TN_OK;
}

static bool is_byte(tn_gguf_str text) {
    return text.size == 6 && strncmp(text.data, "<0x", 3) == 0 && text.data[5] == '>';
}

static tn_status put_added_tokens(struct hf_vocab *v) {
    size_t i;
    json_t *token;
    json_array_foreach(json_object_get(v->tokenizer, "added_tokens"), i, token) {
        json_int_t id = json_integer_value(json_object_get(token, "id"));
        json_t *content = json_object_get(token, "content");
        if (!json_is_string(content)) continue;
        bool special = json_is_true(json_object_get(token, "special"));
        int type = special ? CONTROL : USER_DEFINED;
        if (id >= 0 && id < v->size && v->types[id] == UNKNOWN) type = UNKNOWN;
        TN_TRY(
            vocab_put(v, id, text_of(content), type, v->has_scores && id >= 0 && id < v->size ? v->scores[id] : 0));
    }
    return TN_OK;
}

static tn_status fill_unused_ids(struct hf_vocab *v) {
    for (uint32_t id = 0; id < v->size; id++) {
        char text[32];
        if (v->tokens[id].data) continue;
        snprintf(text, sizeof text, "[PAD%" PRIu32 "]", id);
        TN_TRY(vocab_put(v, id, vocab_keep(v, text, (tn_gguf_str){"", 0}), UNUSED, 0));
    }
    return TN_OK;
}

int64_t vocab_find(const struct hf_vocab *v, const char *text) {
    size_t length = strlen(text);
    for (uint32_t id = 0; id < v->size; id++)
        if (v->tokens[id].size == length && memcmp(v->tokens[id].data, text, length) == 0) return id;
    return -1;
}

/* ---- Kinds of tokenizer ---- */

/* The step of this type in a normalizer, pre-tokenizer, decoder or post-processor, which may be sequences. */
static const json_t *find_step(const json_t *step, const char *type) {
    const char *name = json_string_value(json_object_get(step, "type"));
    if (name && strcmp(name, type) == 0) return step;
    static const char *const lists[] = {"normalizers", "pretokenizers", "decoders", "processors"};
    for (int k = 0; k < 4; k++) {
        size_t i;
        json_t *inner;
        json_array_foreach(json_object_get(step, lists[k]), i, inner) {
            const json_t *found = find_step(inner, type);
            if (found) return found;
        }
    }
    return NULL;
}

static bool has_step(const json_t *step, const char *type) { return find_step(step, type) != NULL; }

/* Merges are written "a b" or ["a", "b"]; GGUF uses the first form. */
static tn_status set_merges(struct hf_vocab *v, const json_t *merges) {
    size_t count = json_array_size(merges), i;
    tn_gguf_str *list = tn_calloc(count, sizeof *list);
    json_t *merge;
    if (!list) return TN_E_NOMEM;
    tn_status status = TN_OK;
    json_array_foreach(merges, i, merge) {
        if (json_is_string(merge)) {
            list[i] = text_of(merge);
        } else {
            tn_gguf_str a = text_of(json_array_get(merge, 0)), b = text_of(json_array_get(merge, 1));
            char *joined = a.data && b.data ? tn_malloc(a.size + 2) : NULL;
            if (!joined) {
                status =
                    tn_fail(TN_E_FORMAT, "%s/tokenizer.json: merge %zu is not a pair of texts", v->model->folder, i);
                break;
            }
            memcpy(joined, a.data, a.size);
            memcpy(joined + a.size, " ", 2);
            list[i] = vocab_keep(v, joined, b);
            tn_free(joined);
        }
    }
    if (status == TN_OK)
        status = tn_gguf_writer_set_array(v->writer, "tokenizer.ggml.merges", TN_GGUF_STR, list, count);
    tn_free(list);
    return status;
}

/* The text of a vocabulary key, with HF_NUL_IN_KEY replaced by NUL. */
static tn_gguf_str text_of_key(struct hf_vocab *v, const char *key, size_t length) {
    if (!strstr(key, HF_NUL_IN_KEY)) return (tn_gguf_str){key, length};
    tn_gguf_str made = vocab_keep(v, "", (tn_gguf_str){key, length});
    char *to = (char *)(uintptr_t)made.data; /* made above, so it may be changed */
    for (const char *from = key; to && *from; to++) {
        bool hidden = strncmp(from, HF_NUL_IN_KEY, sizeof HF_NUL_IN_KEY - 1) == 0;
        *to = hidden ? '\0' : *from;
        from += hidden ? sizeof HF_NUL_IN_KEY - 1 : 1;
    }
    if (to) made.size = (size_t)(to - made.data);
    return made;
}

static tn_status put_vocab_object(struct hf_vocab *v, const json_t *vocab) {
    const char *text;
    json_t *id;
    void *at;
    for (at = json_object_iter((json_t *)(uintptr_t)vocab); at;
         at = json_object_iter_next((json_t *)(uintptr_t)vocab, at)) {
        text = json_object_iter_key(at);
        id = json_object_iter_value(at);
        if (!json_is_integer(id))
            return tn_fail(TN_E_FORMAT, "%s/tokenizer.json: token \"%s\" has no id", v->model->folder, text);
        tn_gguf_str str = text_of_key(v, text, json_object_iter_key_len(at));
        if (!str.data) return tn_fail(TN_E_NOMEM, "out of memory in the vocabulary");
        TN_TRY(vocab_put(v, json_integer_value(id), str, is_byte(str) ? BYTE : NORMAL, 0));
    }
    return TN_OK;
}

static tn_status read_byte_level_bpe(struct hf_vocab *v, const char *pre) {
    const json_t *model = json_object_get(v->tokenizer, "model");
    char what[4096];
    if (!pre) pre = hf_pre_name(v->tokenizer, v->model->layout.arch->name, what, sizeof what);
    if (!pre)
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/tokenizer.json: unknown pre-tokenizer; give its name with --pre if you know it. Its "
                       "steps are:\n%s",
                       v->model->folder, what);
    v->has_scores = false;
    TN_TRY(put_vocab_object(v, json_object_get(model, "vocab")));
    for (uint32_t id = 0; id < v->size; id++)
        if (v->types[id] == BYTE) v->types[id] = NORMAL; /* "<0x0A>" is an ordinary text in byte-level BPE */
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.model", "gpt2"));
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.pre", pre));
    return set_merges(v, json_object_get(model, "merges"));
}

static bool prepends_space(const struct hf_vocab *v) {
    const json_t *meta = find_step(json_object_get(v->tokenizer, "pre_tokenizer"), "Metaspace");
    const char *scheme = json_string_value(json_object_get(meta, "prepend_scheme"));
    if (scheme) return strcmp(scheme, "never") != 0;
    if (meta) return !json_is_false(json_object_get(meta, "add_prefix_space"));
    return has_step(json_object_get(v->tokenizer, "normalizer"), "Prepend");
}

static int by_token_text(const void *a, const void *b) {
    const tn_gguf_str *x = a, *y = b;
    size_t n = x->size < y->size ? x->size : y->size;
    int order = memcmp(x->data, y->data, n);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

struct ranked {
    tn_gguf_str text;
    float score;
};

/* SentencePiece merges by score. A tokenizer.json has ranked merges instead: a piece gets the negative rank of the
 * first merge that produces it. */
static tn_status scores_from_merges(struct hf_vocab *v, const json_t *merges) {
    size_t count = json_array_size(merges), i;
    struct ranked *ranked = tn_calloc(v->size, sizeof *ranked);
    json_t *merge;
    if (!ranked) return TN_E_NOMEM;
    for (uint32_t id = 0; id < v->size; id++) ranked[id] = (struct ranked){v->tokens[id], (float)id};
    /* Sorted by text, to find the id of a piece, which `score` holds here. Absent tokens sort first. */
    for (uint32_t id = 0; id < v->size; id++)
        if (!ranked[id].text.data) ranked[id].text.data = "";
    qsort(ranked, v->size, sizeof *ranked, by_token_text);
    char *joined = NULL;
    size_t capacity = 0;
    tn_status status = TN_OK;
    for (uint32_t id = 0; id < v->size; id++) v->scores[id] = v->types[id] == NORMAL ? -(float)count - 1 : 0;
    json_array_foreach(merges, i, merge) {
        tn_gguf_str a = text_of(json_array_get(merge, 0)), b = text_of(json_array_get(merge, 1));
        if (json_is_string(merge)) {
            a = text_of(merge);
            const char *gap = memchr(a.data, ' ', a.size);
            if (!gap) continue;
            b = (tn_gguf_str){gap + 1, (size_t)(a.data + a.size - gap - 1)};
            a.size = (size_t)(gap - a.data);
        }
        if (!a.data || !b.data) continue;
        if (a.size + b.size > capacity) {
            char *grown = tn_realloc(joined, (a.size + b.size) * 2);
            if (!grown) {
                status = TN_E_NOMEM;
                break;
            }
            joined = grown;
            capacity = (a.size + b.size) * 2;
        }
        memcpy(joined, a.data, a.size);
        memcpy(joined + a.size, b.data, b.size);
        struct ranked key = {{joined, a.size + b.size}, 0};
        const struct ranked *found = bsearch(&key, ranked, v->size, sizeof *ranked, by_token_text);
        if (!found) continue;
        uint32_t id = (uint32_t)found->score;
        if (v->scores[id] < -(float)i) v->scores[id] = -(float)i;
    }
    tn_free(joined);
    tn_free(ranked);
    return status;
}

static tn_status set_sentencepiece_switches(struct hf_vocab *v, bool prefix, bool remove_extra) {
    TN_TRY(tn_gguf_writer_set_bool(v->writer, "tokenizer.ggml.add_space_prefix", prefix));
    return remove_extra ? tn_gguf_writer_set_bool(v->writer, "tokenizer.ggml.remove_extra_whitespaces", true) : TN_OK;
}

static tn_status put_sentencepieces(struct hf_vocab *v) {
    for (size_t i = 0; i < v->sp.count; i++) {
        int type = v->sp.pieces[i].type;
        TN_TRY(vocab_put(v, (int64_t)i, v->sp.pieces[i].text, type, v->sp.pieces[i].score));
    }
    v->has_scores = true;
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.model", v->sp.unigram ? "t5" : "llama"));
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.pre", "default"));
    if (v->sp.unigram && v->sp.charsmap.size)
        TN_TRY(tn_gguf_writer_set_array(v->writer, "tokenizer.ggml.precompiled_charsmap", TN_GGUF_U8,
                                        v->sp.charsmap.data, v->sp.charsmap.size));
    return set_sentencepiece_switches(v, v->sp.add_dummy_prefix, v->sp.unigram && v->sp.remove_extra_whitespaces);
}

/* BPE on characters, with "▁" for spaces and byte fallback: the SentencePiece of Llama 2, Mistral and Gemma. */
static tn_status read_character_bpe(struct hf_vocab *v) {
    const json_t *model = json_object_get(v->tokenizer, "model");
    v->has_scores = true;
    TN_TRY(put_vocab_object(v, json_object_get(model, "vocab")));
    TN_TRY(scores_from_merges(v, json_object_get(model, "merges")));
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    int64_t id = unknown ? vocab_find(v, unknown) : -1;
    if (id >= 0) v->types[id] = UNKNOWN;
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.model", "llama"));
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.pre", "default"));
    return set_sentencepiece_switches(v, prepends_space(v), false);
}

unsigned char *vocab_base64(const char *text, size_t size, size_t *made) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char *out = tn_malloc(size + 1);
    unsigned bits = 0, count = 0;
    *made = 0;
    for (size_t i = 0; out && i < size && text[i] && text[i] != '='; i++) {
        const char *digit = strchr(digits, text[i]);
        if (!digit) continue;
        bits = bits << 6 | (unsigned)(digit - digits);
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[(*made)++] = (unsigned char)(bits >> count);
        }
    }
    return out;
}

static tn_status read_unigram(struct hf_vocab *v) {
    const json_t *model = json_object_get(v->tokenizer, "model"), *pair;
    json_int_t unknown =
        json_is_integer(json_object_get(model, "unk_id")) ? json_integer_value(json_object_get(model, "unk_id")) : -1;
    size_t i;
    v->has_scores = true;
    json_array_foreach(json_object_get(model, "vocab"), i, pair) {
        json_t *text = json_array_get(pair, 0);
        int type = (json_int_t)i == unknown ? UNKNOWN : is_byte(text_of(text)) ? BYTE : NORMAL;
        TN_TRY(vocab_put(v, (int64_t)i, text_of(text), type, (float)json_number_value(json_array_get(pair, 1))));
    }
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.model", "t5"));
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.pre", "default"));
    const json_t *normalizer = json_object_get(v->tokenizer, "normalizer");
    const char *map =
        json_string_value(json_object_get(find_step(normalizer, "Precompiled"), "precompiled_charsmap"));
    if (map && *map) {
        size_t size;
        unsigned char *bytes = vocab_base64(map, strlen(map), &size);
        tn_status status = bytes ? tn_gguf_writer_set_array(v->writer, "tokenizer.ggml.precompiled_charsmap",
                                                            TN_GGUF_U8, bytes, size)
                                 : TN_E_NOMEM;
        tn_free(bytes);
        TN_TRY(status);
    }
    return set_sentencepiece_switches(v, prepends_space(v),
                                      has_step(normalizer, "Replace") || has_step(normalizer, "Strip"));
}

/* WordPiece: GGUF marks the start of words ("▁word"), Hugging Face the continuations ("##word"). */
static tn_status read_word_piece(struct hf_vocab *v) {
    const json_t *model = json_object_get(v->tokenizer, "model");
    const json_t *normalizer = find_step(json_object_get(v->tokenizer, "normalizer"), "BertNormalizer");
    const char *prefix = json_string_value(json_object_get(model, "continuing_subword_prefix"));
    size_t length = strlen(prefix ? prefix : (prefix = "##"));
    TN_TRY(put_vocab_object(v, json_object_get(model, "vocab")));
    for (uint32_t id = 0; id < v->size; id++) {
        tn_gguf_str text = v->tokens[id];
        v->types[id] = NORMAL;
        if (!text.data || (text.data[0] == '[' && text.data[text.size - 1] == ']')) continue;
        if (text.size > length && memcmp(text.data, prefix, length) == 0)
            text = (tn_gguf_str){text.data + length, text.size - length};
        else
            text = vocab_keep(v, space, text);
        TN_TRY(vocab_put(v, id, text, NORMAL, 0));
    }
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    int64_t id = unknown ? vocab_find(v, unknown) : -1;
    if (id >= 0) v->types[id] = UNKNOWN;
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.model", "bert"));
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.pre", "default"));
    bool lower = normalizer && !json_is_false(json_object_get(normalizer, "lowercase"));
    json_t *accents = json_object_get(normalizer, "strip_accents");
    TN_TRY(tn_gguf_writer_set_bool(v->writer, "tokenizer.ggml.normalizer.lowercase", lower));
    return tn_gguf_writer_set_bool(v->writer, "tokenizer.ggml.normalizer.strip_accents",
                                   json_is_boolean(accents) ? json_is_true(accents) : lower);
}

/* ---- Special tokens ---- */

static const struct special_token {
    const char *name, *key;
} roles[] = {
    {"bos_token", "tokenizer.ggml.bos_token_id"},       {"eos_token", "tokenizer.ggml.eos_token_id"},
    {"unk_token", "tokenizer.ggml.unknown_token_id"},   {"pad_token", "tokenizer.ggml.padding_token_id"},
    {"sep_token", "tokenizer.ggml.seperator_token_id"}, {"cls_token", "tokenizer.ggml.cls_token_id"},
    {"mask_token", "tokenizer.ggml.mask_token_id"},
};

/* A token of tokenizer_config.json: a string, or an object with its content. */
static const char *named_token(const struct hf_vocab *v, const char *name) {
    json_t *token = json_object_get(v->config, name);
    if (json_is_object(token)) token = json_object_get(token, "content");
    return json_string_value(token);
}

static int64_t role_id(const struct hf_vocab *v, const char *name) {
    char key[64];
    const char *text = named_token(v, name);
    int64_t id = text ? vocab_find(v, text) : -1;
    snprintf(key, sizeof key, "%s_id", name);
    json_t *number = json_object_get(v->model->config, key);
    if (!number || json_is_null(number)) number = json_object_get(v->generation, key);
    if (json_is_array(number)) number = json_array_get(number, 0);
    if (id < 0 && json_is_number(number)) id = (int64_t)json_number_value(number);
    if (id < 0 && strcmp(name, "unk_token") == 0)
        for (uint32_t i = 0; i < v->size && id < 0; i++)
            if (v->types[i] == UNKNOWN) id = i;
    return id >= 0 && id < v->size ? id : -1;
}

/* Whether the post-processor's template puts this token first or, with `last`, last. */
static bool template_adds(const struct hf_vocab *v, int64_t id, bool last, bool *known) {
    const json_t *post = find_step(json_object_get(v->tokenizer, "post_processor"), "TemplateProcessing");
    const json_t *single = json_object_get(post, "single");
    size_t count = json_array_size(single);
    *known = count > 0;
    if (!count) return false;
    json_t *step = json_object_get(json_array_get(single, last ? count - 1 : 0), "SpecialToken");
    const char *text = json_string_value(json_object_get(step, "id"));
    return text && vocab_find(v, text) == id && id >= 0;
}

static tn_status set_adds_token(const struct hf_vocab *v, const char *name, const char *key, int64_t id, bool last) {
    json_t *set = json_object_get(v->config, name);
    bool known, adds = template_adds(v, id, last, &known);
    const char *kind = json_string_value(json_object_get(v->config, "tokenizer_class"));
    if (json_is_boolean(set))
        adds = json_is_true(set);
    else if (!known && !last && v->sp.count && kind && (strstr(kind, "Llama") || strstr(kind, "Gemma")))
        adds = true;
    else if (!known && v->model->layout.traits & TN_ARCH_ENCODER)
        adds = true;
    return tn_gguf_writer_set_bool(v->writer, key, adds);
}

/* Whether two tokens stand between the texts of a pair, as in RoBERTa. */
static bool pairs_have_two_separators(const struct hf_vocab *v) {
    const json_t *post = json_object_get(v->tokenizer, "post_processor");
    if (has_step(post, "RobertaProcessing")) return true;
    const json_t *pair = json_object_get(find_step(post, "TemplateProcessing"), "pair");
    size_t texts = 0, between = 0, i;
    json_t *step;
    json_array_foreach(pair, i, step) {
        texts += json_object_get(step, "Sequence") != NULL;
        between += texts == 1 && json_object_get(step, "SpecialToken");
    }
    return between == 2;
}

/* generation_config.json may list several end tokens; the further ones get their keys by name. */
static tn_status set_more_ends(const struct hf_vocab *v) {
    static const struct special_token ends[] = {{"<|eot_id|>", "tokenizer.ggml.eot_token_id"},
                                                {"<|im_end|>", "tokenizer.ggml.eot_token_id"},
                                                {"<end_of_turn>", "tokenizer.ggml.eot_token_id"},
                                                {"<|end|>", "tokenizer.ggml.eot_token_id"},
                                                {"<|eom_id|>", "tokenizer.ggml.eom_token_id"}};
    json_t *list = json_object_get(v->generation, "eos_token_id"), *number;
    size_t i;
    json_array_foreach(list, i, number) {
        int64_t id = json_is_number(number) ? (int64_t)json_number_value(number) : -1;
        if (id < 0 || id >= v->size) continue;
        for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
            if (v->tokens[id].size == strlen(ends[k].name) &&
                memcmp(v->tokens[id].data, ends[k].name, v->tokens[id].size) == 0)
                TN_TRY(tn_gguf_writer_set_u32(v->writer, ends[k].key, (uint32_t)id));
    }
    return TN_OK;
}

static tn_status set_special_tokens(struct hf_vocab *v) {
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        int64_t id = role_id(v, roles[i].name);
        if (id < 0) continue;
        TN_TRY(tn_gguf_writer_set_u32(v->writer, roles[i].key, (uint32_t)id));
    }
    TN_TRY(set_more_ends(v));
    bool encoder = v->model->layout.traits & TN_ARCH_ENCODER;
    /* The tokens around a text are the first and the last one, by whatever name. */
    if (encoder && role_id(v, "bos_token") < 0 && role_id(v, "cls_token") >= 0)
        TN_TRY(tn_gguf_writer_set_u32(v->writer, "tokenizer.ggml.bos_token_id", (uint32_t)role_id(v, "cls_token")));
    if (encoder && role_id(v, "eos_token") < 0 && role_id(v, "sep_token") >= 0)
        TN_TRY(tn_gguf_writer_set_u32(v->writer, "tokenizer.ggml.eos_token_id", (uint32_t)role_id(v, "sep_token")));
    if (encoder && pairs_have_two_separators(v))
        TN_TRY(tn_gguf_writer_set_bool(v->writer, "tokenizer.ggml.add_sep_token", true));
    TN_TRY(set_adds_token(v, "add_bos_token", "tokenizer.ggml.add_bos_token",
                          role_id(v, encoder ? "cls_token" : "bos_token"), false));
    return set_adds_token(v, "add_eos_token", "tokenizer.ggml.add_eos_token",
                          role_id(v, encoder ? "sep_token" : "eos_token"), true);
}

/* ---- Chat template ---- */

static tn_status set_template(const struct hf_vocab *v, const char *name, tn_gguf_str text) {
    char key[128];
    if (!text.data) return TN_OK;
    if (!name || strcmp(name, "default") == 0)
        snprintf(key, sizeof key, "tokenizer.chat_template");
    else
        snprintf(key, sizeof key, "tokenizer.chat_template.%.64s", name);
    return tn_gguf_writer_set(v->writer, key, &(tn_gguf_value){.type = TN_GGUF_STR, .str = text});
}

static tn_status set_templates(const struct hf_vocab *v) {
    char *file;
    size_t size;
    TN_TRY(hf_load_bytes(v->model->folder, "chat_template.jinja", &file, &size));
    if (file) {
        tn_status status = set_template(v, NULL, (tn_gguf_str){file, size});
        tn_free(file);
        return status;
    }
    json_t *from = json_object_get(v->config, "chat_template"), *json = NULL;
    if (!from) {
        TN_TRY(hf_load_json(v->model->folder, "chat_template.json", &json));
        from = json_object_get(json, "chat_template");
    }
    tn_status status = json_is_string(from) ? set_template(v, NULL, text_of(from)) : TN_OK;
    size_t i;
    json_t *one;
    json_array_foreach(from, i, one) {
        if (status != TN_OK) break;
        status = set_template(v, json_string_value(json_object_get(one, "name")),
                              text_of(json_object_get(one, "template")));
    }
    json_decref(json);
    return status;
}

/* ---- Whole tokenizer ---- */

static tn_status read_tokenizer(struct hf_vocab *v, const char *pre) {
    const char *folder = v->model->folder;
    if (!v->tokenizer && !v->sp.count) {
        bool found;
        TN_TRY(vocab_read_plain(v, pre, &found));
        if (found) return fill_unused_ids(v);
        return tn_fail(
            TN_E_NOT_FOUND,
            "%s: has no vocabulary: no tokenizer.json, tokenizer.model, tiktoken.model, tokenizer.jsonl or "
            "rwkv_vocab_v20230424.txt",
            folder);
    }
    const json_t *model = json_object_get(v->tokenizer, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    if (v->tokenizer && !type)
        type = json_is_object(json_object_get(model, "merges")) || json_object_get(model, "merges") ? "BPE" : "";
    bool bytes = has_step(json_object_get(v->tokenizer, "pre_tokenizer"), "ByteLevel") ||
                 has_step(json_object_get(v->tokenizer, "decoder"), "ByteLevel");
    /* tokenizer.model is preferred for SentencePiece: it has the real scores. */
    if (v->sp.count && !(type && bytes))
        TN_TRY(put_sentencepieces(v));
    else if (strcmp(type, "BPE") == 0)
        TN_TRY(bytes ? read_byte_level_bpe(v, pre) : read_character_bpe(v));
    else if (strcmp(type, "Unigram") == 0)
        TN_TRY(read_unigram(v));
    else if (strcmp(type, "WordPiece") == 0)
        TN_TRY(read_word_piece(v));
    else
        return tn_fail(TN_E_UNSUPPORTED, "%s/tokenizer.json: unsupported tokenizer type \"%s\"", folder, type);
    TN_TRY(put_added_tokens(v));
    return fill_unused_ids(v);
}

static tn_status load_vocab_files(struct hf_vocab *v) {
    const char *folder = v->model->folder;
    TN_TRY(hf_load_json(folder, "tokenizer.json", &v->tokenizer));
    TN_TRY(hf_load_json(folder, "tokenizer_config.json", &v->config));
    TN_TRY(hf_load_json(folder, "generation_config.json", &v->generation));
    TN_TRY(hf_load_bytes(folder, "tokenizer.model", &v->sp_bytes, &v->sp_size));
    if (v->sp_bytes) {
        tn_status status = sp_model_parse("tokenizer.model", v->sp_bytes, v->sp_size, &v->sp);
        /* Other formats have this name too: Mistral's, for which tokenizer.json is enough, and lists of ranks. */
        if (status != TN_OK && status != TN_E_FORMAT) return status;
    }
    v->tokens = tn_calloc(v->size, sizeof *v->tokens);
    v->scores = tn_calloc(v->size, sizeof *v->scores);
    v->types = tn_calloc(v->size, sizeof *v->types);
    v->keep = json_array();
    return v->tokens && v->scores && v->types && v->keep ? TN_OK
                                                         : tn_fail(TN_E_NOMEM, "out of memory in the vocabulary");
}

static tn_status set_vocab_keys(struct hf_vocab *v, const char *pre) {
    TN_TRY(load_vocab_files(v));
    TN_TRY(read_tokenizer(v, pre));
    TN_TRY(tn_gguf_writer_set_array(v->writer, "tokenizer.ggml.tokens", TN_GGUF_STR, v->tokens, v->size));
    if (v->has_scores)
        TN_TRY(tn_gguf_writer_set_array(v->writer, "tokenizer.ggml.scores", TN_GGUF_F32, v->scores, v->size));
    TN_TRY(tn_gguf_writer_set_array(v->writer, "tokenizer.ggml.token_type", TN_GGUF_I32, v->types, v->size));
    TN_TRY(set_special_tokens(v));
    return set_templates(v);
}

tn_status hf_vocab_keys(const struct hf_model *model, const char *pre, tn_gguf_writer *writer) {
    struct hf_vocab v = {.model = model, .writer = writer, .size = model->layout.vocab};
    tn_status status = set_vocab_keys(&v, pre);
    json_decref(v.tokenizer);
    json_decref(v.config);
    json_decref(v.generation);
    json_decref(v.keep);
    sp_model_free(&v.sp);
    tn_free(v.sp_bytes);
    tn_free(v.tokens);
    tn_free(v.scores);
    tn_free(v.types);
    return status;
}

/* Reads the vocabulary of a GGUF file. */
#include "text/tokenizer/internal.h"

#include <stdio.h>

#define PREFIX "tokenizer.ggml."

static int get_bool_setting(const tn_gguf *file, const char *key) {
    const tn_gguf_value *value = tn_gguf_find(file, key);
    return value && value->type == TN_GGUF_BOOL ? value->b : TN__UNSET;
}

static tn_status get_vocab_array(const tn_gguf *file, const char *key, tn_gguf_type type, size_t need,
                                 const void **data, size_t *count) {
    const tn_gguf_arr *array = tn_gguf_get_arr(file, key);
    *data = NULL;
    if (count) *count = 0;
    if (!array) return TN_OK;
    /* The type of an empty array does not matter. Some files have unsigned token types. */
    bool fits = array->type == type || (type == TN_GGUF_I32 && array->type == TN_GGUF_U32);
    if (array->count && !fits)
        return tn_fail(TN_E_FORMAT, "%s: %s is an array of %s, not of %s", tn_gguf_path(file), key,
                       tn_gguf_type_name(array->type), tn_gguf_type_name(type));
    if (!array->count) return TN_OK;
    if (array->count < need)
        return tn_fail(TN_E_FORMAT, "%s: %s has %llu elements for %zu tokens", tn_gguf_path(file), key,
                       (unsigned long long)array->count, need);
    *data = array->data;
    if (count) *count = (size_t)array->count;
    return TN_OK;
}

tn_status tn_tokenizer_new(const tn_gguf *file, const tn_tokenizer_params *params, tn_tokenizer **out) {
    if (!file || !out) return tn_fail(TN_E_INVALID, "tn_tokenizer_new: file or out is NULL");
    *out = NULL;
    tn__vocab_source s;
    tn__vocab_source_init(&s);
    s.model = tn_gguf_get_str(file, PREFIX "model");
    s.pre = tn_gguf_get_str(file, PREFIX "pre");
    s.name = tn_gguf_get_str(file, "general.name");
    s.arch = tn_gguf_get_str(file, "general.architecture");
    const void *data;
    TN_TRY(get_vocab_array(file, PREFIX "tokens", TN_GGUF_STR, 0, &data, &s.n_tokens));
    s.tokens = data;
    TN_TRY(get_vocab_array(file, PREFIX "merges", TN_GGUF_STR, 0, &data, &s.n_merges));
    s.merges = data;
    TN_TRY(get_vocab_array(file, PREFIX "scores", TN_GGUF_F32, s.n_tokens, &data, NULL));
    s.scores = data;
    TN_TRY(get_vocab_array(file, PREFIX "token_type", TN_GGUF_I32, s.n_tokens, &data, NULL));
    s.types = data;
    const tn_gguf_arr *charsmap = tn_gguf_get_arr(file, PREFIX "precompiled_charsmap");
    if (charsmap && (charsmap->type == TN_GGUF_U8 || charsmap->type == TN_GGUF_I8)) {
        s.charsmap = charsmap->data;
        s.charsmap_size = (size_t)charsmap->count;
    }
    static const char *const keys[] = {
#define TN_X(name, key, text) key,
        TN_SPECIAL_TABLE(TN_X)
#undef TN_X
    };
    for (int i = 0; i < TN_SPECIAL_COUNT; i++) {
        char key[80];
        snprintf(key, sizeof key, PREFIX "%s", keys[i]);
        if (keys[i][0]) s.special[i] = tn_gguf_get_u32(file, key, UINT32_MAX);
        if (s.special[i] == UINT32_MAX) s.special[i] = -1;
    }
    /* Older names of these keys. */
    static const struct {
        const char *key;
        tn_special role;
    } older[] = {{PREFIX "prefix_token_id", TN_SPECIAL_FIM_PRE},
                 {PREFIX "suffix_token_id", TN_SPECIAL_FIM_SUF},
                 {PREFIX "middle_token_id", TN_SPECIAL_FIM_MID},
                 {PREFIX "separator_token_id", TN_SPECIAL_SEP}};
    for (size_t i = 0; i < TN__COUNT(older); i++) {
        uint32_t id = tn_gguf_get_u32(file, older[i].key, UINT32_MAX);
        if (s.special[older[i].role] < 0 && id != UINT32_MAX) s.special[older[i].role] = id;
    }
    s.add_bos = get_bool_setting(file, PREFIX "add_bos_token");
    s.add_eos = get_bool_setting(file, PREFIX "add_eos_token");
    s.add_sep = get_bool_setting(file, PREFIX "add_sep_token");
    s.add_space_prefix = get_bool_setting(file, PREFIX "add_space_prefix");
    s.remove_extra_whitespaces = get_bool_setting(file, PREFIX "remove_extra_whitespaces");
    s.lowercase = get_bool_setting(file, PREFIX "normalizer.lowercase");
    s.strip_accents = get_bool_setting(file, PREFIX "normalizer.strip_accents");
    tn_status status = tn__tokenizer_from_source(&s, params, out);
    return status == TN_OK ? TN_OK : tn_fail_more(status, " (%s)", tn_gguf_path(file));
}

/* A vocabulary being converted: the table of its tokens, and the files it can come from. */
#ifndef TENON_TOOL_CONVERT_VOCAB_H
#define TENON_TOOL_CONVERT_VOCAB_H

#include "convert/convert.h"

enum {
    NORMAL = 1,
    UNKNOWN = 2,
    CONTROL = 3,
    USER_DEFINED = 4,
    UNUSED = 5,
    BYTE = 6
}; /* types, as GGUF numbers them */

struct hf_vocab {
    const struct hf_model *model;
    tn_gguf_writer *writer;
    json_t *tokenizer, *config, *generation; /* tokenizer.json, tokenizer_config.json, generation_config.json */
    json_t *keep;                            /* owns the texts made during conversion */
    char *sp_bytes;                          /* tokenizer.model */
    size_t sp_size;
    struct sp_model sp;
    uint32_t size;
    tn_gguf_str *tokens;
    float *scores;
    int32_t *types;
    bool has_scores;
};

/* Sets a token; the text is not copied. TN_E_FORMAT if the id is beyond the vocabulary. */
tn_status vocab_put(struct hf_vocab *v, int64_t id, tn_gguf_str text, int type, float score);
/* Joins two texts; the result lives as long as the table. */
tn_gguf_str vocab_keep(struct hf_vocab *v, const char *first, tn_gguf_str rest);
int64_t vocab_find(const struct hf_vocab *v, const char *text); /* -1: absent */
/* The bytes that base64 digits stand for, at most `size` / 4 * 3; freed with tn_free(). */
unsigned char *vocab_base64(const char *text, size_t size, size_t *made);

/* Vocabularies in files of their own (vocab_plain.c): ranks of byte strings as tiktoken has them, PLaMo's
 * tokenizer.jsonl and RWKV's list. *found is false when the folder has none of them. `pre` as in hf_vocab_keys(). */
tn_status vocab_read_plain(struct hf_vocab *v, const char *pre, bool *found);

#endif

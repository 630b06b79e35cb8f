/* Tokenizers: text to token ids and back, according to the metadata of the model's GGUF file.
 *
 * A tn_tokenizer copies what it needs, so the file may be closed afterwards. It is immutable: threads may encode and
 * decode with it at the same time. One thread at a time may use a tn_detokenizer.
 *
 * Text is UTF-8 with a length. It may contain NUL and invalid UTF-8: invalid bytes become byte tokens if the
 * vocabulary has them; byte-level vocabularies decode them unchanged.
 *
 * Statuses: TN_E_NOT_FOUND (the file has no vocabulary), TN_E_FORMAT (the vocabulary is malformed), TN_E_UNSUPPORTED
 * (unknown kind of tokenizer or unknown pre-tokenizer), TN_E_LIMIT, TN_E_NOMEM, TN_E_INVALID. */
#ifndef TENON_TOKENIZER_H
#define TENON_TOKENIZER_H

#include "tenon/base.h"
#include "tenon/gguf.h"
#include "tenon/token.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum bytes of text per call, and maximum tokens of a vocabulary. */
#define TN_TOKENIZER_MAX_TEXT 0x7fff0000u
#define TN_TOKENIZER_MAX_TOKENS (1 << 24)

typedef struct tn_tokenizer tn_tokenizer;

/* ---- Creation ---- */

typedef struct tn_tokenizer_params {
    /* An unknown pre-tokenizer is an error, because another one splits text differently and gives wrong ids. If this
     * is set, the default pre-tokenizer is used, with a warning in the log. */
    bool allow_unknown_pre;
} tn_tokenizer_params;

/* Uses the tokenizer.ggml.* metadata of an open file. `params` may be NULL. */
TN_API tn_status tn_tokenizer_new(const tn_gguf *file, const tn_tokenizer_params *params, tn_tokenizer **out);
TN_API void tn_tokenizer_free(tn_tokenizer *tokenizer); /* accepts NULL */

/* ---- The vocabulary ---- */

/* The tokenization algorithms: X(NAME, "tokenizer.ggml.model", "description") */
#define TN_TOKENIZER_KIND_TABLE(X)                                                                                   \
    X(SPM, "llama", "SentencePiece BPE: merges by score, byte fallback")                                             \
    X(BPE, "gpt2", "byte-level BPE: merges by rank within pre-tokenized words")                                      \
    X(RAW_BPE, "gemma4", "BPE by rank on characters, spaces as U+2581, byte fallback")                               \
    X(WORDPIECE, "bert", "WordPiece: longest match within words")                                                    \
    X(UNIGRAM, "t5", "Unigram: most probable segmentation")                                                          \
    X(WORLD, "rwkv", "longest matching byte string")                                                                 \
    X(PLAMO, "plamo2", "PLaMo 2: segmentation of lowest cost, byte fallback")                                        \
    X(WHITESPACE, "whitespace", "BPE by rank on the characters of words between white space")

typedef enum tn_tokenizer_kind {
#define TN_X(name, model, text) TN_TOKENIZER_##name,
    TN_TOKENIZER_KIND_TABLE(TN_X)
#undef TN_X
} tn_tokenizer_kind;

TN_API tn_tokenizer_kind tn_tokenizer_get_kind(const tn_tokenizer *tokenizer);
/* The name of the pre-tokenizer; "" if there is none. */
TN_API const char *tn_tokenizer_pre(const tn_tokenizer *tokenizer);
/* The number of tokens. */
TN_API int32_t tn_tokenizer_size(const tn_tokenizer *tokenizer);

/* Types of tokens with GGUF's numbers. 0 and unknown numbers are read as NORMAL. */
typedef enum tn_token_type {
    TN_TOKEN_NORMAL = 1,
    TN_TOKEN_UNKNOWN = 2,      /* for text that the vocabulary lacks */
    TN_TOKEN_CONTROL = 3,      /* not text; recognized in text only with TN_ENCODE_PARSE_SPECIAL */
    TN_TOKEN_USER_DEFINED = 4, /* always recognized in text, before other tokens */
    TN_TOKEN_UNUSED = 5,
    TN_TOKEN_BYTE = 6 /* one byte, "<0x0A>" */
} tn_token_type;

/* For ids outside the vocabulary these return TN_TOKEN_UNKNOWN, 0, NULL and false. */
TN_API tn_token_type tn_token_get_type(const tn_tokenizer *tokenizer, tn_token token);
TN_API float tn_token_score(const tn_tokenizer *tokenizer, tn_token token);
/* The token as written in the file ("Ġthe", "▁the", "<0x0A>"), and as text (" the", " the", "\n"). A NUL follows that
 * *length does not count. A piece may be part of a character or empty. `length` may be NULL. */
TN_API const char *tn_token_text(const tn_tokenizer *tokenizer, tn_token token, size_t *length);
TN_API const char *tn_token_piece(const tn_tokenizer *tokenizer, tn_token token, size_t *length);
/* The first token that the file writes like this, or TN_TOKEN_NONE. */
TN_API tn_token tn_tokenizer_find(const tn_tokenizer *tokenizer, const char *text, size_t length);

/* Roles of tokens: X(NAME, "metadata key after tokenizer.ggml.", "name") */
#define TN_SPECIAL_TABLE(X)                                                                                          \
    X(BOS, "bos_token_id", "beginning of text")                                                                      \
    X(EOS, "eos_token_id", "end of text")                                                                            \
    X(EOT, "eot_token_id", "end of turn")                                                                            \
    X(EOM, "eom_token_id", "end of message")                                                                         \
    X(UNK, "unknown_token_id", "unknown")                                                                            \
    X(SEP, "seperator_token_id", "separator")                                                                        \
    X(PAD, "padding_token_id", "padding")                                                                            \
    X(CLS, "cls_token_id", "classification")                                                                         \
    X(MASK, "mask_token_id", "mask")                                                                                 \
    X(FIM_PRE, "fim_pre_token_id", "fill-in-the-middle prefix")                                                      \
    X(FIM_SUF, "fim_suf_token_id", "fill-in-the-middle suffix")                                                      \
    X(FIM_MID, "fim_mid_token_id", "fill-in-the-middle middle")                                                      \
    X(FIM_PAD, "fim_pad_token_id", "fill-in-the-middle padding")                                                     \
    X(FIM_REP, "fim_rep_token_id", "fill-in-the-middle repository")                                                  \
    X(FIM_SEP, "fim_sep_token_id", "fill-in-the-middle file separator")                                              \
    X(NEWLINE, "", "line feed")

typedef enum tn_special {
#define TN_X(name, key, text) TN_SPECIAL_##name,
    TN_SPECIAL_TABLE(TN_X)
#undef TN_X
        TN_SPECIAL_COUNT
} tn_special;

/* The token with a role, by metadata or by its usual names ("<|eot_id|>", "<|fim_prefix|>"); TN_TOKEN_NONE if there
 * is none. */
TN_API tn_token tn_tokenizer_special(const tn_tokenizer *tokenizer, tn_special role);
TN_API const char *tn_special_name(tn_special role);
/* Whether a token ends a generation: end of text, of turn, of message, and equivalents that models use. */
TN_API bool tn_token_is_end(const tn_tokenizer *tokenizer, tn_token token);

/* What TN_ENCODE_ADD_SPECIAL adds, and whether encoding inserts a space before the text (SPM, Unigram). */
TN_API bool tn_tokenizer_adds_bos(const tn_tokenizer *tokenizer);
TN_API bool tn_tokenizer_adds_eos(const tn_tokenizer *tokenizer);
TN_API bool tn_tokenizer_adds_sep(const tn_tokenizer *tokenizer); /* between two texts as well */
TN_API bool tn_tokenizer_adds_space_prefix(const tn_tokenizer *tokenizer);

/* ---- Text to tokens ---- */

/* A growing array; initialize it with {0} and free it with tn_tokens_free(). */
typedef struct tn_tokens {
    tn_token *ids;
    size_t count, capacity;
} tn_tokens;
TN_API void tn_tokens_free(tn_tokens *tokens);

/* Flags of encoding. */
enum {
    TN_ENCODE_ADD_SPECIAL = 1,   /* add the tokens that the model expects at the beginning and end */
    TN_ENCODE_PARSE_SPECIAL = 2, /* recognize control tokens in the text: for templates, not for user input */
    TN_ENCODE_CONTINUE = 4       /* the text continues another: no space before it */
};

/* Appends the tokens of a text; nothing on an error. */
TN_API tn_status tn_tokenizer_encode(const tn_tokenizer *tokenizer, const char *text, size_t length, unsigned flags,
                                     tn_tokens *out);
/* Writes the tokens of a text to a buffer. *count is their number; if it exceeds `capacity`, the result is TN_E_FULL
 * and the buffer holds the first ones. */
TN_API tn_status tn_tokenizer_encode_into(const tn_tokenizer *tokenizer, const char *text, size_t length,
                                          unsigned flags, tn_token *ids, size_t capacity, size_t *count);

/* ---- Tokens to text ---- */

/* A growing string; initialize it with {0} and free it with tn_text_free(). Once something has been appended, a NUL
 * follows that `length` does not count. */
typedef struct tn_text {
    char *bytes;
    size_t length, capacity;
} tn_text;
TN_API void tn_text_free(tn_text *text);

/* Flags of decoding. */
enum {
    TN_DECODE_SPECIAL = 1, /* include control and unknown tokens, which are omitted otherwise */
    TN_DECODE_CONTINUE = 2 /* the tokens continue others: keep a space before the first word */
};

/* Appends the bytes of tokens. The text ends in the middle of a character if the tokens do. TN_E_INVALID: an id is
 * outside the vocabulary; nothing is appended. */
TN_API tn_status tn_tokenizer_decode(const tn_tokenizer *tokenizer, const tn_token *ids, size_t count, unsigned flags,
                                     tn_text *out);

/* Decodes tokens one by one to text that is always valid UTF-8: a character split over several tokens is returned
 * with its last byte, and invalid bytes become U+FFFD. It allocates only when created. The tokenizer must outlive it.
 */
typedef struct tn_detokenizer tn_detokenizer;
TN_API tn_status tn_detokenizer_new(const tn_tokenizer *tokenizer, unsigned flags, tn_detokenizer **out);
TN_API void tn_detokenizer_free(tn_detokenizer *detokenizer); /* accepts NULL */
TN_API void tn_detokenizer_reset(tn_detokenizer *detokenizer);
/* The text that a token completes, followed by a NUL and valid until the next call. It is empty for ids outside the
 * vocabulary. */
TN_API const char *tn_detokenizer_push(tn_detokenizer *detokenizer, tn_token token, size_t *length);
/* The rest at the end: U+FFFD if a character is incomplete, else nothing. Also resets the detokenizer. */
TN_API const char *tn_detokenizer_finish(tn_detokenizer *detokenizer, size_t *length);

#ifdef __cplusplus
}
#endif
#endif

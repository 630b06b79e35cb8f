/* Tokenizers: text to token ids and back, as the model's GGUF metadata says.
 *
 * A tn_tokenizer copies what it needs, so the file may be closed after it is made. It is immutable: any number of
 * threads may encode and decode with one at the same time. A tn_detokenizer belongs to one thread at a time.
 *
 * Text is UTF-8, given with its length; it may hold NUL and it may be broken: bytes that are no UTF-8 become byte
 * tokens where the vocabulary has them, and come back unchanged from byte-level vocabularies.
 *
 * Statuses: TN_E_NOT_FOUND (the file has no vocabulary), TN_E_FORMAT (its vocabulary is malformed), TN_E_UNSUPPORTED
 * (a kind of tokenizer, or a pre-tokenizer, that is not known), TN_E_LIMIT, TN_E_NOMEM, TN_E_INVALID. */
#ifndef TENON_TOKENIZER_H
#define TENON_TOKENIZER_H

#include "tenon/base.h"
#include "tenon/gguf.h"
#include "tenon/token.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Longest text one call encodes, and most tokens a vocabulary may have. */
#define TN_TOKENIZER_MAX_TEXT 0x7fff0000u
#define TN_TOKENIZER_MAX_TOKENS (1 << 24)

typedef struct tn_tokenizer tn_tokenizer;

/* ---- Making one ---- */

typedef struct tn_tokenizer_params {
    /* A pre-tokenizer whose name is not known splits text in some unknown way, so that ids would be quietly wrong:
     * that is an error unless this is set; then the default one is used, with a warning in the log. */
    bool allow_unknown_pre;
} tn_tokenizer_params;

/* From the tokenizer.ggml.* metadata of an open file; `params` may be NULL. */
TN_API tn_status tn_tokenizer_new(const tn_gguf *file, const tn_tokenizer_params *params, tn_tokenizer **out);
TN_API void tn_tokenizer_free(tn_tokenizer *tokenizer); /* accepts NULL */

/* ---- The vocabulary ---- */

/* How text becomes tokens. X(NAME, "tokenizer.ggml.model", "description") */
#define TN_TOKENIZER_KIND_TABLE(X)                                                                                   \
    X(SPM, "llama", "SentencePiece BPE: merges by score, byte fallback")                                             \
    X(BPE, "gpt2", "byte-level BPE: merges by rank within pre-tokenized words")                                      \
    X(RAW_BPE, "gemma4", "BPE by rank on characters, spaces as U+2581, byte fallback")                               \
    X(WORDPIECE, "bert", "WordPiece: longest match within words")                                                    \
    X(UNIGRAM, "t5", "Unigram: most probable segmentation")

typedef enum tn_tokenizer_kind {
#define TN_X(name, model, text) TN_TOKENIZER_##name,
    TN_TOKENIZER_KIND_TABLE(TN_X)
#undef TN_X
} tn_tokenizer_kind;

TN_API tn_tokenizer_kind tn_tokenizer_get_kind(const tn_tokenizer *tokenizer);
TN_API const char *tn_tokenizer_pre(const tn_tokenizer *tokenizer); /* name of the pre-tokenizer in use; "" if none */
TN_API int32_t tn_tokenizer_size(const tn_tokenizer *tokenizer);    /* number of tokens */

/* As GGUF numbers them; 0 and unknown numbers read as NORMAL. */
typedef enum tn_token_type {
    TN_TOKEN_NORMAL = 1,
    TN_TOKEN_UNKNOWN = 2,      /* stands for what the vocabulary lacks */
    TN_TOKEN_CONTROL = 3,      /* steers the model; matched in text only with TN_ENCODE_PARSE_SPECIAL */
    TN_TOKEN_USER_DEFINED = 4, /* added whole: always matched in text, before anything else */
    TN_TOKEN_UNUSED = 5,
    TN_TOKEN_BYTE = 6 /* one byte, "<0x0A>" */
} tn_token_type;

/* For ids outside the vocabulary: TN_TOKEN_UNKNOWN, 0, NULL and false. */
TN_API tn_token_type tn_token_get_type(const tn_tokenizer *tokenizer, tn_token token);
TN_API float tn_token_score(const tn_tokenizer *tokenizer, tn_token token);
/* The token as the file writes it ("Ġthe", "▁the", "<0x0A>"), and as text (" the", " the", "\n"). Followed by a NUL
 * that *length does not count; a piece may be part of a character, or empty. `length` may be NULL. */
TN_API const char *tn_token_text(const tn_tokenizer *tokenizer, tn_token token, size_t *length);
TN_API const char *tn_token_piece(const tn_tokenizer *tokenizer, tn_token token, size_t *length);
/* The token that the file writes so, or TN_TOKEN_NONE. Of several the first. */
TN_API tn_token tn_tokenizer_find(const tn_tokenizer *tokenizer, const char *text, size_t length);

/* Tokens with a role. X(NAME, "metadata key after tokenizer.ggml.", "name") */
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

/* From the metadata, or found by the usual names ("<|eot_id|>", "<|fim_prefix|>"); TN_TOKEN_NONE where there is none.
 */
TN_API tn_token tn_tokenizer_special(const tn_tokenizer *tokenizer, tn_special role);
TN_API const char *tn_special_name(tn_special role);
/* Whether a token ends generation: end of text, of turn, of message, and what models use for these. */
TN_API bool tn_token_is_end(const tn_tokenizer *tokenizer, tn_token token);

/* What TN_ENCODE_ADD_SPECIAL adds, and whether a space is put before text (SPM, Unigram). */
TN_API bool tn_tokenizer_adds_bos(const tn_tokenizer *tokenizer);
TN_API bool tn_tokenizer_adds_eos(const tn_tokenizer *tokenizer);
TN_API bool tn_tokenizer_adds_space_prefix(const tn_tokenizer *tokenizer);

/* ---- Text to tokens ---- */

/* Growable; start with {0}. The owner releases it with tn_tokens_free(). */
typedef struct tn_tokens {
    tn_token *ids;
    size_t count, capacity;
} tn_tokens;
TN_API void tn_tokens_free(tn_tokens *tokens);

#define TN_ENCODE_ADD_SPECIAL 1u   /* beginning and end tokens as the model wants them */
#define TN_ENCODE_PARSE_SPECIAL 2u /* control tokens written out in the text count: for templates, not for users */
#define TN_ENCODE_CONTINUE 4u      /* the text goes on from another: no space is put in front */

/* Appends the tokens of a text. On an error nothing is appended. */
TN_API tn_status tn_tokenizer_encode(const tn_tokenizer *tokenizer, const char *text, size_t length, unsigned flags,
                                     tn_tokens *out);
/* The same into a caller's buffer. *count is the number of tokens of the text; when it exceeds `capacity` that is
 * TN_E_FULL and the buffer holds the first ones. */
TN_API tn_status tn_tokenizer_encode_into(const tn_tokenizer *tokenizer, const char *text, size_t length,
                                          unsigned flags, tn_token *ids, size_t capacity, size_t *count);

/* ---- Tokens to text ---- */

/* Growable bytes; start with {0}. Followed by a NUL that `length` does not count once something was appended. */
typedef struct tn_text {
    char *bytes;
    size_t length, capacity;
} tn_text;
TN_API void tn_text_free(tn_text *text);

#define TN_DECODE_SPECIAL 1u  /* write control and unknown tokens out instead of leaving them away */
#define TN_DECODE_CONTINUE 2u /* the tokens go on from others: a space in front of the first word stays */

/* Appends the text of tokens, bytes as they are: a sequence that ends in the middle of a character ends so here.
 * TN_E_INVALID for an id outside the vocabulary, with nothing appended. */
TN_API tn_status tn_tokenizer_decode(const tn_tokenizer *tokenizer, const tn_token *ids, size_t count, unsigned flags,
                                     tn_text *out);

/* A stream of tokens as text that is valid UTF-8 at every step: a character split over tokens waits for its last
 * byte, and bytes that cannot become a character are U+FFFD. Allocates only when made. The tokenizer must outlive
 * it. */
typedef struct tn_detokenizer tn_detokenizer;
TN_API tn_status tn_detokenizer_new(const tn_tokenizer *tokenizer, unsigned flags, tn_detokenizer **out);
TN_API void tn_detokenizer_free(tn_detokenizer *detokenizer); /* accepts NULL */
TN_API void tn_detokenizer_reset(tn_detokenizer *detokenizer);
/* The text that a token completes, followed by a NUL; valid until the next call. Ids outside the vocabulary add
 * nothing. */
TN_API const char *tn_detokenizer_push(tn_detokenizer *detokenizer, tn_token token, size_t *length);
/* What is left at the end of the stream: U+FFFD when a character was cut, else nothing. Also resets. */
TN_API const char *tn_detokenizer_finish(tn_detokenizer *detokenizer, size_t *length);

#ifdef __cplusplus
}
#endif
#endif

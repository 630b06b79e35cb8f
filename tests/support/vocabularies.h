/* Vocabularies for tests of tokenizers: the golden ones, and small ones written in C. */
#ifndef TN_TESTS_VOCABULARIES_H
#define TN_TESTS_VOCABULARIES_H

#include "support.h"

#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reference vocabularies ---- */

static const char *const vocabularies[] = {"bert-bge",  "deepseek-llm", "falcon",   "gpt-2",
                                           "llama-spm", "phi-3",        "starcoder"};

static inline tn_tokenizer *open_vocabulary(const char *path) {
    tn_gguf *file;
    tn_tokenizer *t;
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_ok(tn_tokenizer_new(file, NULL, &t));
    tn_gguf_close(file); /* the tokenizer does not refer to it */
    return t;
}
static inline tn_tokenizer *open_golden(const char *name) {
    char relative[100];
    snprintf(relative, sizeof relative, "vocab/ggml-vocab-%s.gguf", name);
    const char *path = golden_path(relative);
    return path ? open_vocabulary(path) : NULL;
}
/* That of the model that comes with the program: 4,096 tokens, merges of bytes, split as GPT-2 does. */
static inline tn_tokenizer *open_tales(void) { return open_vocabulary(TENON_SOURCE_DIR "/models/tales.gguf"); }

#define OPEN_OR_SKIP(variable, name)                                                                                 \
    tn_tokenizer *variable = open_golden(name);                                                                      \
    if (!variable) {                                                                                                 \
        print_message("skipped: no golden vocabulary %s (set TENON_GOLDEN)\n", name);                                \
        skip();                                                                                                      \
    }

/* ---- Small vocabularies of our own ---- */

enum { MOST = 4096 };
typedef struct small {
    tn__vocab_source source;
    tn_gguf_str tokens[MOST], merges[MOST];
    float scores[MOST];
    int32_t types[MOST];
    char bytes[256][4];
} small;

static inline tn_gguf_str str(const char *text) { return (tn_gguf_str){text, strlen(text)}; }

static inline small *small_new(const char *model, const char *pre) {
    small *v = calloc(1, sizeof *v);
    assert_non_null(v);
    tn__vocab_source_init(&v->source);
    v->source.model = str(model);
    v->source.pre = str(pre);
    v->source.tokens = v->tokens;
    v->source.merges = v->merges;
    v->source.scores = v->scores;
    v->source.types = v->types;
    return v;
}

static inline tn_token add_token(small *v, const char *text, tn_token_type type, float score) {
    size_t i = v->source.n_tokens++;
    assert_true(i < MOST);
    v->tokens[i] = str(text);
    v->types[i] = type;
    v->scores[i] = score;
    return (tn_token)i;
}

static inline void add_merge(small *v, const char *pair) {
    assert_true(v->source.n_merges < MOST);
    v->merges[v->source.n_merges++] = str(pair);
}

/* All bytes, in the form of byte-level vocabularies. */
static inline void add_bytes(small *v) {
    for (unsigned b = 0; b < 256; b++) {
        unsigned n = tn__utf8_encode(tn__char_of_byte(b), v->bytes[b]);
        v->tokens[v->source.n_tokens] = (tn_gguf_str){v->bytes[b], n};
        v->types[v->source.n_tokens++] = TN_TOKEN_NORMAL;
    }
}

static inline tn_tokenizer *make(const small *v) {
    tn_tokenizer *t;
    assert_ok(tn__tokenizer_from_source(&v->source, NULL, &t));
    return t;
}

/* Compares ids with a list such as "0 5 3". */
static inline void assert_tokens(const tn_tokenizer *t, const char *text, unsigned flags, const char *expected) {
    tn_tokens got = {0};
    char shown[4000] = "";
    assert_ok(tn_tokenizer_encode(t, text, strlen(text), flags, &got));
    size_t at = 0;
    for (size_t i = 0; i < got.count && at < sizeof shown - 20; i++)
        at += (size_t)snprintf(shown + at, sizeof shown - at, i ? " %d" : "%d", got.ids[i]);
    assert_string_equal(shown, expected);
    tn_tokens_free(&got);
}

static inline void assert_decodes(const tn_tokenizer *t, const tn_token *ids, size_t count, unsigned flags,
                                  const char *expected) {
    tn_text text = {0};
    assert_ok(tn_tokenizer_decode(t, ids, count, flags, &text));
    assert_string_equal(text.bytes, expected);
    tn_text_free(&text);
}

static inline small *chat_vocabulary(void) {
    small *v = small_new("gpt2", "gpt-2");
    add_bytes(v);
    add_token(v, "<|endoftext|>", TN_TOKEN_CONTROL, 0);     /* 256 */
    add_token(v, "<|im_end|>", TN_TOKEN_CONTROL, 0);        /* 257 */
    add_token(v, "<tool>", TN_TOKEN_USER_DEFINED, 0);       /* 258 */
    add_token(v, "<tool><tool>", TN_TOKEN_USER_DEFINED, 0); /* 259 */
    add_token(v, "<|fim_prefix|>", TN_TOKEN_CONTROL, 0);    /* 260 */
    v->source.special[TN_SPECIAL_BOS] = 256;
    v->source.special[TN_SPECIAL_EOS] = 256;
    v->source.special[TN_SPECIAL_PAD] = 99999; /* no such token */
    v->source.add_bos = 1;
    v->source.add_eos = 1;
    return v;
}

static inline small *raw_vocabulary(const char *model, const char *pre) {
    small *v = small_new(model, pre);
    static const char *const texts[] = {"<unk>",
                                        "<bos>",
                                        "a",
                                        "b",
                                        "\xe2\x96\x81",
                                        "\xe2\x96\x81"
                                        "a",
                                        "ab",
                                        "\n",
                                        "\n\n"};
    for (size_t i = 0; i < TN__COUNT(texts); i++)
        add_token(v, texts[i], i == 0 ? TN_TOKEN_UNKNOWN : i == 1 ? TN_TOKEN_CONTROL : TN_TOKEN_NORMAL, 0);
    v->source.special[TN_SPECIAL_UNK] = 0;
    v->source.special[TN_SPECIAL_BOS] = 1;
    static char bytes[256][7];
    for (int b = 0; b < 256; b++) {
        snprintf(bytes[b], sizeof bytes[b], "<0x%02X>", b);
        add_token(v, bytes[b], TN_TOKEN_BYTE, 0);
    }
    add_merge(v, "a b");
    add_merge(v, "\xe2\x96\x81 a");
    add_merge(v, "\n \n");
    return v;
}

/* A double-array trie with one entry, "A" -> "bb": the root's offset gives unit 1 ^ 'A' = 0x40, whose offset gives
 * the value. */
static inline size_t make_charsmap(unsigned char *out) {
    uint32_t units[0x80] = {0};
    units[0] = 1u << 10;                          /* offset 1 */
    units[1 ^ 'A'] = 'A' | 1u << 8 | 0x20u << 10; /* label, has a value at (1 ^ 'A') ^ 0x20 */
    units[1 ^ 'A' ^ 0x20] = 1u << 31 | 1;         /* replacement text at 1 */
    uint32_t size = sizeof units;
    memcpy(out, &size, 4);
    memcpy(out + 4, units, sizeof units);
    memcpy(out + 4 + sizeof units, "\0bb\0", 4);
    return 4 + sizeof units + 4;
}

#endif

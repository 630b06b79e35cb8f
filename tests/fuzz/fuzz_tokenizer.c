/* Fuzzes tokenizers: any vocabulary loads or gives an error, encoding a text twice gives the same tokens of the
 * vocabulary, and decoding returns the text where it must.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_tokenizer
 *   build-fuzz/fuzz/fuzz_tokenizer -max_len=4096 -timeout=5 CORPUS tests/fuzz/corpus/tokenizer
 *
 * Input: kind, pre-tokenizer, three bytes of settings, then counted tokens (length, type, score, text), counted
 * merges (length, text), a counted normalization table, and text to the end. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

typedef struct reader {
    const uint8_t *at;
    size_t left;
} reader;

static uint8_t next_byte(reader *r) {
    if (r->left == 0) return 0;
    r->left--;
    return *r->at++;
}

static tn_gguf_str next_text(reader *r, size_t length) {
    length = TN__MIN(length, r->left);
    tn_gguf_str text = {(const char *)r->at, length};
    r->at += length;
    r->left -= length;
    return text;
}

#define CHECK(condition)                                                                                             \
    do {                                                                                                             \
        if (!(condition)) __builtin_trap();                                                                          \
    } while (0)

static void check_text(const tn_tokenizer *t, const char *text, size_t size, unsigned flags, bool comes_back) {
    tn_tokens ids = {0}, again = {0};
    tn_text back = {0};
    CHECK(tn_tokenizer_encode(t, text, size, flags, &ids) == TN_OK);
    CHECK(tn_tokenizer_encode(t, text, size, flags, &again) == TN_OK); /* now from the cache */
    CHECK(ids.count == again.count && (!ids.count || !memcmp(ids.ids, again.ids, ids.count * sizeof *ids.ids)));
    for (size_t i = 0; i < ids.count; i++) CHECK(ids.ids[i] >= 0 && ids.ids[i] < tn_tokenizer_size(t));
    CHECK(tn_tokenizer_decode(t, ids.ids, ids.count, TN_DECODE_SPECIAL, &back) == TN_OK);
    if (comes_back) CHECK(back.length == size && !memcmp(back.bytes, text, size));
    tn_detokenizer *d;
    CHECK(tn_detokenizer_new(t, TN_DECODE_SPECIAL, &d) == TN_OK);
    size_t at = 0, length;
    bool valid = tn__utf8_valid_prefix(back.bytes, back.length) == back.length;
    for (size_t i = 0; i <= ids.count; i++) {
        const char *step =
            i < ids.count ? tn_detokenizer_push(d, ids.ids[i], &length) : tn_detokenizer_finish(d, &length);
        CHECK(tn__utf8_valid_prefix(step, length) == length && step[length] == 0);
        if (valid) CHECK(length <= back.length - at && !memcmp(back.bytes + at, step, length));
        at += length;
    }
    if (valid) CHECK(at == back.length);
    tn_detokenizer_free(d);
    tn_text_free(&back);
    tn_tokens_free(&ids);
    tn_tokens_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    enum { MOST_TOKENS = 255 + 256, MOST_MERGES = 255 };
    static const char *const models[] = {"gpt2", "llama", "gemma4", "bert",      "t5",
                                         "gpt2", "rwkv",  "plamo2", "whitespace"};
    static tn_gguf_str tokens[MOST_TOKENS], merges[MOST_MERGES];
    static float scores[MOST_TOKENS];
    static int32_t types[MOST_TOKENS];
    reader r = {bytes, size};
    tn_log_set(NULL, NULL, TN_LOG_OFF);
    tn__vocab_source s;
    tn__vocab_source_init(&s);
    const char *model = models[next_byte(&r) % TN__COUNT(models)];
    size_t pre = next_byte(&r);
    s.model = (tn_gguf_str){model, strlen(model)};
    const char *name = pre < tn__pre_count ? tn__pre_table[pre].name : pre % 2 ? "gemma4" : "unknown";
    s.pre = (tn_gguf_str){name, strlen(name)};
    uint8_t a = next_byte(&r), b = next_byte(&r), c = next_byte(&r);
    s.add_bos = a & 1;
    s.add_eos = a >> 1 & 1;
    s.add_space_prefix = a >> 2 & 1;
    s.remove_extra_whitespaces = a >> 3 & 1;
    s.lowercase = a >> 4 & 1;
    if (a & 32) s.name = (tn_gguf_str){"phi-3", 5};
    s.special[TN_SPECIAL_UNK] = b;
    s.special[TN_SPECIAL_BOS] = c;
    char byte_texts[256][4];
    bool all_bytes = a & 64;
    for (unsigned i = 0; i < 256 && all_bytes; i++) {
        tokens[s.n_tokens] = (tn_gguf_str){byte_texts[i], tn__utf8_encode(tn__char_of_byte(i), byte_texts[i])};
        types[s.n_tokens] = TN_TOKEN_NORMAL;
        scores[s.n_tokens++] = 0;
    }
    bool added = false;
    for (size_t n = next_byte(&r), i = 0; i < n; i++) {
        uint8_t length = next_byte(&r);
        types[s.n_tokens] = next_byte(&r) % 8;
        added = added || (types[s.n_tokens] > TN_TOKEN_NORMAL && types[s.n_tokens] <= TN_TOKEN_BYTE);
        scores[s.n_tokens] = (float)(int8_t)next_byte(&r);
        tokens[s.n_tokens++] = next_text(&r, length);
    }
    for (size_t n = next_byte(&r), i = 0; i < n; i++) merges[s.n_merges++] = next_text(&r, next_byte(&r));
    tn_gguf_str charsmap = next_text(&r, 4 * (size_t)next_byte(&r));
    s.charsmap = (const unsigned char *)charsmap.data;
    s.charsmap_size = charsmap.size;
    s.tokens = tokens;
    s.scores = scores;
    s.types = types;
    s.merges = merges;
    tn_tokenizer *t;
    if (tn__tokenizer_from_source(&s, &(tn_tokenizer_params){.allow_unknown_pre = a & 128}, &t) != TN_OK) {
        CHECK(*tn_error() && !t);
        return 0;
    }
    /* Byte-level vocabularies that hold every byte give back what they are given, unless tokens of other types claim
     * the same spelling. */
    bool comes_back =
        tn_tokenizer_get_kind(t) == TN_TOKENIZER_BPE && all_bytes && !added && !t->nfc && !t->add_space_prefix;
    check_text(t, (const char *)r.at, r.left, 0, comes_back);
    check_text(t, (const char *)r.at, r.left, TN_ENCODE_ADD_SPECIAL | TN_ENCODE_PARSE_SPECIAL, false);
    tn_tokenizer_free(t);
    return 0;
}

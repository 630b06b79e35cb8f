/* Tokenizers of single families: RWKV's longest match, PLaMo 2's lowest cost, words between white space. */
#include "vocabularies.h"

#include <math.h>

static const char *const letters[] = {"a", "b", " ", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "\xff", "\n"};

static size_t random_text(rng *r, char *text, size_t n, size_t kinds) {
    text[0] = 0;
    for (size_t i = 0; i < n; i++) strcat(text, letters[rng_below(r, kinds)]);
    return strlen(text);
}

static bool has_text(const small *v, const char *text) {
    for (size_t k = 0; k < v->source.n_tokens; k++)
        if (v->tokens[k].size == strlen(text) && memcmp(v->tokens[k].data, text, strlen(text)) == 0) return true;
    return false;
}

static void assert_round_trip(const tn_tokenizer *t, const char *text, size_t size, const tn_tokens *ids) {
    tn_text back = {0};
    assert_ok(tn_tokenizer_decode(t, ids->ids, ids->count, 0, &back));
    assert_int_equal(back.length, size);
    assert_memory_equal(back.bytes, text, size);
    tn_text_free(&back);
}

/* ---- RWKV ---- */

static void world_takes_the_longest_token(void **state) {
    (void)state;
    small *v = small_new("rwkv", "");
    static const char *const tokens[] = {"<s>",    "\\x00", "a",     "b",     "ab",    "abba",      "\\n",
                                         "\\n\\n", "\\\\",  "\\'\"", "\\xc3", "\\xa9", "\\xc3\\xa9"};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        add_token(v, tokens[i], i ? TN_TOKEN_NORMAL : TN_TOKEN_CONTROL, 0);
    v->source.special[TN_SPECIAL_EOS] = 0;
    tn_tokenizer *t = make(v);
    assert_int_equal(tn_tokenizer_get_kind(t), TN_TOKENIZER_WORLD);
    assert_tokens(t, "ab", 0, "4");
    assert_tokens(t, "abb", 0, "4 3"); /* "abba" does not match: back to the longest that did */
    assert_tokens(t, "abbaab", 0, "5 4");
    assert_tokens(t, "\n\n\n", 0, "7 6");
    assert_tokens(t, "\\'\"", 0, "8 9");
    assert_tokens(t, "\xc3\xa9\xa9\xc3", 0, "12 11 10"); /* not UTF-8 */
    assert_tokens(t, "<s>", TN_ENCODE_PARSE_SPECIAL, "0");
    assert_tokens(t, "z", 0, ""); /* a byte that the vocabulary lacks */
    assert_decodes(t, (tn_token[]){4, 7, 8, 9, 12}, 5, 0, "ab\n\n\\'\"\xc3\xa9");
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_NEWLINE), 6);
    tn_tokenizer_free(t);
    free(v);
}

/* Escapes at the end of a text, and ones that are none, do not read past it. */
static void world_escapes_may_be_broken(void **state) {
    (void)state;
    small *v = small_new("rwkv", "");
    static const char *const tokens[] = {"\\", "a\\", "\\x", "\\x4", "\\xg1", "\\q", "\\x41"};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) add_token(v, tokens[i], TN_TOKEN_NORMAL, 0);
    tn_tokenizer *t = make(v);
    static const char *const pieces[] = {"\\", "a\\", "x", "x4", "xg1", "q", "A"};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        assert_string_equal(tn_token_piece(t, (tn_token)i, NULL), pieces[i]);
    tn_tokenizer_free(t);
    free(v);
}

/* ---- PLaMo 2 ---- */

/* By the definition: from the end, all tokens at each character, longest first; the first of lowest cost counts. */
static size_t plamo_slowly(const small *v, const char *text, size_t size, tn_token *out) {
    static int64_t cost[2000];
    static size_t length[2000];
    static tn_token token[2000];
    cost[size] = 0;
    for (size_t at = size; at-- > 0;) {
        uint32_t cp;
        unsigned step = tn__utf8_decode(text + at, size - at, &cp);
        bool inner = false;
        for (size_t back = 1; back < 4 && back <= at; back++)
            inner = inner || tn__utf8_decode(text + at - back, size - at + back, &cp) > back;
        if (inner) continue;
        if (!step) step = 1;
        cost[at] = INT64_MAX;
        for (size_t n = size - at; n > 0; n--)
            for (size_t k = 0; k < v->source.n_tokens; k++) {
                if (v->types[k] != TN_TOKEN_NORMAL || v->tokens[k].size != n ||
                    memcmp(v->tokens[k].data, text + at, n))
                    continue;
                int64_t c = cost[at + n] - (int64_t)round((double)v->scores[k] * 1e4);
                if (c < cost[at]) cost[at] = c, length[at] = n, token[at] = (tn_token)k;
            }
        if (cost[at + step] + 10000000 < cost[at])
            cost[at] = cost[at + step] + 10000000, length[at] = step, token[at] = TN_TOKEN_NONE;
    }
    size_t made = 0;
    for (size_t at = 0; at < size; at += length[at]) {
        if (token[at] != TN_TOKEN_NONE)
            out[made++] = token[at];
        else
            for (size_t i = 0; i < length[at]; i++) out[made++] = 4 + (uint8_t)text[at + i];
    }
    return made;
}

static void plamo_finds_the_lowest_cost(void **state) {
    (void)state;
    rng r = {23};
    static char byte_texts[256][8], texts[60][64];
    for (int round = 0; round < 60; round++) {
        small *v = small_new("plamo2", "default");
        static const char *const marks[] = {"<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"};
        for (int i = 0; i < 4; i++) add_token(v, marks[i], i ? TN_TOKEN_CONTROL : TN_TOKEN_UNKNOWN, 0);
        for (int b = 0; b < 256; b++) {
            snprintf(byte_texts[b], sizeof byte_texts[b], "<0x%02X>", (unsigned)b);
            add_token(v, byte_texts[b], TN_TOKEN_BYTE, 0);
        }
        for (size_t i = 0; i < 60; i++) {
            random_text(&r, texts[i], 1 + rng_below(&r, 4), 6);
            /* Few different scores, so that ties occur; one token without a finite score cannot be used. */
            float score = i == 7 ? NAN : -(float)rng_below(&r, round % 2 ? 3 : 1000) / (round % 3 ? 1.0F : 7.0F);
            if (!has_text(v, texts[i])) add_token(v, texts[i], TN_TOKEN_NORMAL, i == 7 ? -1e9F : score);
        }
        tn_tokenizer *t = make(v);
        assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_BOS), 1);
        for (size_t i = 0; i < v->source.n_tokens; i++)
            if (v->scores[i] < -1e8F) v->types[i] = TN_TOKEN_UNUSED; /* for the slow version */
        for (int k = 0; k < 20; k++) {
            char text[1200];
            size_t size = random_text(&r, text, rng_below(&r, 200), 8);
            static tn_token expected[1300];
            size_t count = plamo_slowly(v, text, size, expected);
            tn_tokens got = {0};
            assert_ok(tn_tokenizer_encode(t, text, size, 0, &got));
            if (got.count != count || (count && memcmp(got.ids, expected, count * sizeof *expected) != 0))
                fail_msg("round %d: \"%s\" has other tokens", round, text);
            assert_round_trip(t, text, size, &got);
            tn_tokens_free(&got);
        }
        tn_tokenizer_free(t);
        free(v);
    }
}

/* A run of characters without tokens costs more than 32 bits hold; its time is that of its length. */
static void plamo_takes_long_unknown_text(void **state) {
    (void)state;
    small *v = small_new("plamo2", "default");
    add_token(v, "<|plamo:unk|>", TN_TOKEN_UNKNOWN, 0);
    add_token(v, "a", TN_TOKEN_NORMAL, -1);
    tn_tokenizer *t = make(v);
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    assert_non_null(text);
    for (int i = 0; i < LONG; i++) text[i] = i % 3 ? (char)0xe4 : 'a'; /* invalid UTF-8 */
    tn_tokens got = {0};
    assert_ok(tn_tokenizer_encode(t, text, LONG, 0, &got));
    assert_int_equal(got.count, LONG);
    assert_int_equal(got.ids[0], 1);
    assert_int_equal(got.ids[1], 0);
    tn_tokens_free(&got);
    free(text);
    tn_tokenizer_free(t);
    free(v);
}

/* ---- White space ---- */

static void white_space_separates_words(void **state) {
    (void)state;
    small *v = small_new("whitespace", "whitespace");
    add_token(v, "<unk>", TN_TOKEN_UNKNOWN, 0);
    static const char *const tokens[] = {"a", "b", "ab", "\xe4\xb8\xad", "A"};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) add_token(v, tokens[i], TN_TOKEN_NORMAL, 0);
    add_merge(v, "a b");
    v->source.special[TN_SPECIAL_UNK] = 0;
    tn_tokenizer *t = make(v);
    assert_tokens(t,
                  " ab\xe3\x80\x80"
                  "a\tb\n",
                  0, "3 1 2"); /* U+3000 too */
    assert_tokens(t, "abA\xe4\xb8\xad", 0, "3 5 4");
    assert_tokens(t, "a?b", 0, "1 0 2");
    assert_tokens(t, " \n", 0, "");
    tn_tokenizer_free(t);
    v->source.lowercase = 1;
    t = make(v);
    assert_tokens(t, "AB", 0, "3");
    tn_tokenizer_free(t);
    free(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(world_takes_the_longest_token), cmocka_unit_test(world_escapes_may_be_broken),
        cmocka_unit_test(plamo_finds_the_lowest_cost),   cmocka_unit_test(plamo_takes_long_unknown_text),
        cmocka_unit_test(white_space_separates_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tokenizers of small vocabularies, which need no files, against the obvious way: WordPiece's longest match and its
 * borders of words, SentencePiece's scores, spaces and bytes, streams of text. */
#include "vocabularies.h"

#define SPACE "\xe2\x96\x81"

/* ---- WordPiece ---- */

static bool token_at(const small *v, size_t k, const char *text, size_t size) {
    return v->types[k] == TN_TOKEN_NORMAL && v->tokens[k].size <= size &&
           memcmp(v->tokens[k].data, text, v->tokens[k].size) == 0;
}

/* The longest token again and again; one unknown token where none matches. */
static size_t longest_match(const small *v, const char *word, size_t size, tn_token *out) {
    size_t made = 0;
    for (size_t at = 0; at < size;) {
        size_t best = SIZE_MAX;
        for (size_t k = 0; k < v->source.n_tokens; k++)
            if (token_at(v, k, word + at, size - at) &&
                (best == SIZE_MAX || v->tokens[k].size > v->tokens[best].size))
                best = k;
        if (best == SIZE_MAX) {
            out[0] = 0;
            return 1;
        }
        out[made++] = (tn_token)best;
        at += v->tokens[best].size;
    }
    return made;
}

static small *wordpiece_vocabulary(void) {
    small *v = small_new("bert", "");
    add_token(v, "[UNK]", TN_TOKEN_UNKNOWN, 0);
    v->source.special[TN_SPECIAL_UNK] = 0;
    return v;
}

static void wordpiece_equals_the_longest_match(void **state) {
    (void)state;
    rng r = {5};
    static char texts[40][16];
    for (int round = 0; round < 200; round++) {
        small *v = wordpiece_vocabulary();
        for (size_t i = 0; i < 20; i++) {
            char *to = texts[i];
            if (rng_below(&r, 2)) to += sprintf(to, SPACE);
            for (size_t n = 1 + rng_below(&r, 4); n > 0; n--) *to++ = "abc"[rng_below(&r, 3)];
            *to = 0;
            bool known = false;
            for (size_t k = 0; k < v->source.n_tokens; k++)
                known =
                    known || (v->tokens[k].size == strlen(texts[i]) && token_at(v, k, texts[i], strlen(texts[i])));
            if (!known) add_token(v, texts[i], TN_TOKEN_NORMAL, 0);
        }
        tn_tokenizer *t = make(v);
        for (int k = 0; k < 20; k++) {
            char text[64] = "", word[32];
            tn_token expected[64];
            size_t n = 0;
            for (size_t words = 1 + rng_below(&r, 3); words > 0; words--) {
                size_t size = (size_t)sprintf(word, SPACE);
                for (size_t i = 1 + rng_below(&r, 8); i > 0; i--) word[size++] = "abc"[rng_below(&r, 3)];
                word[size] = 0;
                sprintf(text + strlen(text), "%s%s", words % 2 ? "  " : "\t", word + 3);
                n += longest_match(v, word, size, expected + n);
            }
            tn_tokens got = {0};
            assert_ok(tn_tokenizer_encode(t, text, strlen(text), 0, &got));
            assert_int_equal(got.count, n);
            assert_memory_equal(got.ids, expected, n * sizeof *expected);
            tn_tokens_free(&got);
        }
        tn_tokenizer_free(t);
        free(v);
    }
}

/* What a character between two letters does: it belongs to the word, is a word, ends it, or is dropped. */
static void characters_join_divide_or_vanish(void **state) {
    (void)state;
    static const struct {
        uint32_t first, last;
        const char *effect; /* in, alone, space, dropped: for the first, the last and those between */
    } ranges[] = {
        {1, 8, "dropped"},
        {9, 13, "space"},
        {14, 31, "dropped"},
        {32, 32, "space"},
        {33, 47, "alone"},
        {48, 57, "in"},
        {58, 64, "alone"},
        {91, 96, "alone"},
        {97, 122, "in"},
        {123, 126, "alone"},
        {127, 132, "dropped"},
        {0x85, 0x85, "space"},
        {0x86, 0x9f, "dropped"},
        {0xa0, 0xa0, "space"},
        {0xa1, 0xa1, "alone"},
        {0x2028, 0x2029, "space"},
        {0x200b, 0x200f, "dropped"},
        {0x2010, 0x2010, "alone"},
        {0x3000, 0x3000, "space"},
        {0x33ff, 0x33ff, "in"},
        {0x3400, 0x3410, "alone"},
        {0x4db0, 0x4dbf, "alone"},
        {0x4dc0, 0x4dff, "in"},
        {0x4e00, 0x4e10, "alone"},
        {0x9ff0, 0x9fff, "alone"},
        {0xa000, 0xa001, "in"},
        {0xe000, 0xe001, "dropped"},
        {0xfffd, 0xfffd, "dropped"},
        {0x1ffff, 0x1ffff, "in"},
        {0x20000, 0x20002, "alone"},
        {0x2a6de, 0x2a6df, "alone"},
        {0x2a700, 0x2a701, "alone"},
        {0x2ceae, 0x2ceaf, "alone"},
    };
    for (size_t i = 0; i < TN__COUNT(ranges); i++)
        for (uint32_t cp = ranges[i].first; cp <= ranges[i].last; cp++) {
            char bytes[8] = "", marked[16], text[16];
            bytes[tn__utf8_encode(cp, bytes)] = 0;
            if (cp == 'x') continue;
            sprintf(marked, SPACE "%s", bytes);
            sprintf(text, "x%sx", bytes);
            small *v = wordpiece_vocabulary();
            static const char *const letters[] = {SPACE "x", "x"};
            for (int k = 0; k < 2; k++) add_token(v, letters[k], TN_TOKEN_NORMAL, 0); /* 1, 2 */
            add_token(v, marked, TN_TOKEN_NORMAL, 0);                                 /* 3 */
            add_token(v, bytes, TN_TOKEN_NORMAL, 0);                                  /* 4 */
            tn_tokenizer *t = make(v);
            const char effect = ranges[i].effect[0];
            assert_tokens(t, text, 0,
                          effect == 'i'   ? "1 4 2"
                          : effect == 'a' ? "1 3 1"
                          : effect == 's' ? "1 1"
                                          : "1 2");
            tn_tokenizer_free(t);
            free(v);
        }
}

static void words_of_more_than_a_hundred_characters_are_unknown(void **state) {
    (void)state;
    for (size_t letter = 0; letter < 2; letter++) {
        const char *const text = letter ? "\xd0\xb6" : "a";
        char marked[8], words[600];
        sprintf(marked, SPACE "%s", text);
        small *v = wordpiece_vocabulary();
        add_token(v, marked, TN_TOKEN_NORMAL, 0);
        add_token(v, text, TN_TOKEN_NORMAL, 0);
        tn_tokenizer *t = make(v);
        for (size_t n = 98; n <= 104; n++) {
            tn_tokens got = {0};
            words[0] = 0;
            for (size_t i = 0; i < n; i++) strcat(words, text);
            strcat(words, " ");
            strcat(words, text);
            assert_ok(tn_tokenizer_encode(t, words, strlen(words), 0, &got));
            assert_int_equal(got.count, (n <= 100 ? n : 1) + 1);
            assert_int_equal(got.ids[0], n <= 100 ? 1 : 0);
            assert_int_equal(got.ids[got.count - 1], 1);
            if (n <= 100)
                for (size_t i = 1; i < n; i++) assert_int_equal(got.ids[i], 2);
            tn_tokens_free(&got);
        }
        tn_tokenizer_free(t);
        free(v);
    }
}

/* ---- SentencePiece ---- */

/* Scores decide where they differ; a list of merges counts only where they are all the same. */
static void scores_come_before_merges(void **state) {
    (void)state;
    for (int differ = 0; differ < 2; differ++) {
        small *v = small_new("llama", "default");
        v->source.add_space_prefix = 0;
        static const char *const texts[] = {"<unk>", "a", "b", "c", "ab", "bc"};
        for (size_t i = 0; i < TN__COUNT(texts); i++)
            add_token(v, texts[i], i ? TN_TOKEN_NORMAL : TN_TOKEN_UNKNOWN, differ && i == 4 ? 2 : 0);
        add_merge(v, "b c");
        add_merge(v, "a b");
        tn_tokenizer *t = make(v);
        assert_tokens(t, "abc", 0, differ ? "4 3" : "1 5");
        tn_tokenizer_free(t);
        free(v);
    }
}

static small *spm_vocabulary(void) {
    static char bytes[256][8];
    small *v = small_new("llama", "default");
    static const char *const texts[] = {"<unk>", "<s>", "</s>", "a", SPACE, SPACE "a", "b"};
    for (size_t i = 0; i < TN__COUNT(texts); i++)
        add_token(v, texts[i], i == 0 ? TN_TOKEN_UNKNOWN : i < 3 ? TN_TOKEN_CONTROL : TN_TOKEN_NORMAL, -(float)i);
    for (unsigned b = 0; b < 256; b++) {
        sprintf(bytes[b], "<0x%02X>", b);
        add_token(v, bytes[b], TN_TOKEN_BYTE, 0); /* 7 + b */
    }
    v->source.special[TN_SPECIAL_BOS] = 1;
    v->source.special[TN_SPECIAL_EOS] = 2;
    v->source.add_bos = 1;
    return v;
}

static void spaces_are_escaped_and_bytes_fall_back(void **state) {
    (void)state;
    small *v = spm_vocabulary();
    v->source.add_space_prefix = 1;
    tn_tokenizer *t = make(v);
    assert_true(tn_tokenizer_adds_space_prefix(t));
    assert_tokens(t, "a", 0, "5");
    assert_tokens(t, "a", TN_ENCODE_ADD_SPECIAL, "1 5");
    assert_tokens(t, "a", TN_ENCODE_CONTINUE, "3");
    assert_tokens(t, "a  a ", 0, "5 4 5 4");
    assert_tokens(t, " a", 0, "4 5");
    assert_tokens(t, "b", 0, "4 6");
    assert_tokens(t, "", 0, "");
    assert_tokens(t, "<s>a", TN_ENCODE_PARSE_SPECIAL | TN_ENCODE_CONTINUE, "1 5"); /* a word begins after it */
    assert_tokens(t, "\n\xff", 0, "4 17 262");                                     /* 7 + 10, 7 + 255 */
    assert_tokens(t, "\xc3\xa9", TN_ENCODE_CONTINUE, "202 176");
    assert_decodes(t, (tn_token[]){5, 4, 5}, 3, 0, "a  a");
    assert_decodes(t, (tn_token[]){5, 4, 5}, 3, TN_DECODE_CONTINUE, " a  a");
    assert_decodes(t, (tn_token[]){1, 5, 2}, 3, 0, "a");
    assert_decodes(t, (tn_token[]){1, 3, 2}, 3, TN_DECODE_SPECIAL, "<s>a</s>");
    assert_decodes(t, (tn_token[]){202, 176}, 2, 0, "\xc3\xa9");
    tn_tokenizer_free(t);
    v->source.add_space_prefix = 0;
    t = make(v);
    assert_false(tn_tokenizer_adds_space_prefix(t));
    assert_tokens(t, "a a", 0, "3 5");
    assert_decodes(t, (tn_token[]){5, 5}, 2, 0, " a a");
    tn_tokenizer_free(t);
    free(v);
}

/* Every prefix of a stream is valid UTF-8, and valid text comes through as it is, at the character's last byte. */
static void streams_hold_back_incomplete_characters(void **state) {
    (void)state;
    small *v = spm_vocabulary();
    v->source.add_space_prefix = 0;
    tn_tokenizer *t = make(v);
    tn_detokenizer *d;
    static const char text[] = "a\xc3\xa9 \xe2\x82\xac\xf0\x9f\x98\x80.";
    static const size_t complete[] = {1, 0, 2, 1, 0, 0, 3, 0, 0, 0, 4, 1}; /* bytes that come with each */
    assert_ok(tn_detokenizer_new(t, 0, &d));
    for (size_t i = 0, at = 0; text[i]; i++) {
        size_t length;
        const char *piece = tn_detokenizer_push(d, 7 + (uint8_t)text[i], &length);
        assert_int_equal(length, complete[i]);
        assert_memory_equal(piece, text + at, length);
        assert_int_equal(piece[length], 0);
        at += length;
    }
    assert_string_equal(tn_detokenizer_finish(d, NULL), "");
    /* A character that is never completed, by a letter, by another one's first byte, or at the end. */
    assert_string_equal(tn_detokenizer_push(d, 7 + 0xe2, NULL), "");
    assert_string_equal(tn_detokenizer_push(d, 7 + 0x82, NULL), "");
    assert_string_equal(tn_detokenizer_push(d, 3, NULL), "\xef\xbf\xbd"
                                                         "a"); /* one for both bytes */
    assert_string_equal(tn_detokenizer_push(d, 7 + 0xf0, NULL), "");
    assert_string_equal(tn_detokenizer_push(d, 7 + 0xc3, NULL), "\xef\xbf\xbd");
    assert_string_equal(tn_detokenizer_push(d, 7 + 0xa9, NULL), "\xc3\xa9");
    assert_string_equal(tn_detokenizer_push(d, 7 + 0xff, NULL), "\xef\xbf\xbd");
    assert_string_equal(tn_detokenizer_push(d, 7 + 0xc3, NULL), "");
    assert_string_equal(tn_detokenizer_finish(d, NULL), "\xef\xbf\xbd");
    assert_string_equal(tn_detokenizer_push(d, -1, NULL), "");
    assert_string_equal(tn_detokenizer_push(d, 100000, NULL), "");
    tn_detokenizer_free(d);
    tn_tokenizer_free(t);
    free(v);
}

/* ---- Files that say little, or something wrong ---- */

/* Roles that a file does not name are those of the original models. */
static void roles_have_usual_tokens(void **state) {
    (void)state;
    static const struct {
        const char *model, *pre;
        tn_token roles[TN_SPECIAL_COUNT]; /* plus 1; 0: none */
    } cases[] = {
        {"llama", "default", {[TN_SPECIAL_BOS] = 2, [TN_SPECIAL_EOS] = 3, [TN_SPECIAL_UNK] = 1}},
        {"t5", "", {[TN_SPECIAL_EOS] = 2, [TN_SPECIAL_UNK] = 3, [TN_SPECIAL_PAD] = 1}},
        {"bert",
         "",
         {[TN_SPECIAL_BOS] = 102,
          [TN_SPECIAL_CLS] = 102,
          [TN_SPECIAL_SEP] = 103,
          [TN_SPECIAL_UNK] = 101,
          [TN_SPECIAL_MASK] = 104,
          [TN_SPECIAL_PAD] = 1}},
    };
    static char texts[110][8];
    for (size_t i = 0; i < TN__COUNT(cases); i++) {
        small *v = small_new(cases[i].model, cases[i].pre);
        for (int k = 0; k < 110; k++) {
            sprintf(texts[k], "%c%d", 'a' + k % 26, k);
            add_token(v, texts[k], TN_TOKEN_NORMAL, -(float)k);
        }
        tn_tokenizer *t = make(v);
        for (tn_special role = 0; role < TN_SPECIAL_NEWLINE; role++)
            if (tn_tokenizer_special(t, role) != cases[i].roles[role] - 1)
                fail_msg("%s: %s is %d", cases[i].model, tn_special_name(role), tn_tokenizer_special(t, role));
        tn_tokenizer_free(t);
        free(v);
    }
}

static void wrong_tables_of_characters_are_described(void **state) {
    (void)state;
    static const struct {
        unsigned char bytes[16];
        size_t size;
        const char *says;
    } cases[] = {{{0}, 3, "has 3 bytes, but its trie has 0"},
                 {{6}, 16, "has 16 bytes, but its trie has 6"},
                 {{12}, 16, "has 16 bytes, but its trie has 12"},
                 {{0, 1}, 16, "its trie has 256"},
                 {{0, 0, 1}, 16, "its trie has 65536"},
                 {{0, 0, 0, 1}, 16, "its trie has 16777216"},
                 {{8}, 16, NULL},
                 {{4}, 9, NULL},
                 {{4}, 8, "has 8 bytes, but its trie has 4"}};
    for (size_t i = 0; i < TN__COUNT(cases); i++) {
        small *v = small_new("t5", "");
        tn_tokenizer *t = NULL;
        add_token(v, "<pad>", TN_TOKEN_CONTROL, 0);
        add_token(v, "a", TN_TOKEN_NORMAL, 0);
        v->source.charsmap = cases[i].bytes;
        v->source.charsmap_size = cases[i].size;
        const tn_status status = tn__tokenizer_from_source(&v->source, NULL, &t);
        assert_int_equal(status, cases[i].says ? TN_E_FORMAT : TN_OK);
        if (cases[i].says && !strstr(tn_error(), cases[i].says)) fail_msg("%s", tn_error());
        tn_tokenizer_free(t);
        free(v);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wordpiece_equals_the_longest_match),
        cmocka_unit_test(characters_join_divide_or_vanish),
        cmocka_unit_test(words_of_more_than_a_hundred_characters_are_unknown),
        cmocka_unit_test(scores_come_before_merges),
        cmocka_unit_test(spaces_are_escaped_and_bytes_fall_back),
        cmocka_unit_test(streams_hold_back_incomplete_characters),
        cmocka_unit_test(roles_have_usual_tokens),
        cmocka_unit_test(wrong_tables_of_characters_are_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

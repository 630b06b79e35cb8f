/* Tokenizers: reference ids, special tokens, every kind of vocabulary, decoding token by token. */
#include "vocabularies.h"

/* ---- Reference ids ---- */

static char *golden_text(const char *name, const char *ending, size_t *size) {
    char relative[100];
    snprintf(relative, sizeof relative, "vocab/ggml-vocab-%s.gguf.%s", name, ending);
    const char *path = golden_path(relative);
    return path ? read_file(path, size) : NULL;
}

/* Calls `check` for each reference case of a vocabulary and returns their number. */
typedef void (*case_fn)(const char *name, const tn_tokenizer *t, const char *text, size_t size, const tn_token *ids,
                        size_t count);

static size_t each_case(const char *name, const tn_tokenizer *t, case_fn check) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    size_t in_size, out_size, cases = 0;
    char *in = golden_text(name, "inp", &in_size), *out = golden_text(name, "out", &out_size);
    assert_non_null(in);
    assert_non_null(out);
    char *line = out;
    for (size_t at = 0; at < in_size;) {
        char *end = memmem(in + at, in_size - at, separator, sizeof separator - 1);
        size_t size = end ? (size_t)(end - (in + at)) : in_size - at;
        if (!end && size > 0 && in[in_size - 1] == '\n') size--;
        tn_token ids[1000];
        size_t count = 0;
        char *line_end = strchr(line, '\n');
        assert_non_null(line_end);
        *line_end = 0;
        for (char *p = line, *next; count < 1000; p = next) {
            long id = strtol(p, &next, 10);
            if (next == p) break;
            ids[count++] = (tn_token)id;
        }
        line = line_end + 1;
        check(name, t, in + at, size, ids, count);
        cases++;
        at += size + (end ? sizeof separator - 1 : in_size);
    }
    assert_int_equal(*line, 0); /* as many results as texts */
    free(in);
    free(out);
    return cases;
}

static void check_ids(const char *name, const tn_tokenizer *t, const char *text, size_t size, const tn_token *ids,
                      size_t count) {
    tn_tokens got = {0};
    assert_ok(tn_tokenizer_encode(t, text, size, 0, &got));
    bool same = got.count == count && (count == 0 || memcmp(got.ids, ids, count * sizeof *ids) == 0);
    if (!same) {
        print_message("%s: \"%.*s\"\n  expected", name, (int)size, text);
        for (size_t i = 0; i < count; i++) print_message(" %d", ids[i]);
        print_message("\n  got     ");
        for (size_t i = 0; i < got.count; i++) print_message(" %d", got.ids[i]);
        print_message("\n");
        fail_msg("%s: ids differ", name);
    }
    tn_tokens_free(&got);
}

static void ids_are_those_of_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < TN__COUNT(vocabularies); i++) {
        OPEN_OR_SKIP(t, vocabularies[i]);
        assert_true(each_case(vocabularies[i], t, check_ids) >= 40);
        tn_tokenizer_free(t);
    }
}

static void check_round_trip(const char *name, const tn_tokenizer *t, const char *text, size_t size,
                             const tn_token *ids, size_t count) {
    tn_text got = {0};
    assert_ok(tn_tokenizer_decode(t, ids, count, 0, &got));
    if (got.length != size || (size && memcmp(got.bytes, text, size) != 0))
        fail_msg("%s: \"%.*s\" comes back as \"%s\"", name, (int)size, text, got.bytes);
    tn_text_free(&got);
}

static void text_comes_back_from_merging_vocabularies(void **state) {
    (void)state;
    static const char *const pages[] = {"/docs/tokenizers.md", "/docs/chat.md", "/tests/data/jinja_cases.txt"};
    tn_tokenizer *tales = open_tales();
    for (size_t i = 0; i < TN__COUNT(pages); i++) {
        char path[512];
        size_t size;
        tn_tokens ids = {0};
        snprintf(path, sizeof path, "%s%s", TENON_SOURCE_DIR, pages[i]);
        char *text = read_file(path, &size);
        assert_non_null(text);
        assert_ok(tn_tokenizer_encode(tales, text, size, 0, &ids));
        check_round_trip(pages[i], tales, text, size, ids.ids, ids.count);
        tn_tokens_free(&ids);
        free(text);
    }
    tn_tokenizer_free(tales);
    for (size_t i = 1; i < TN__COUNT(vocabularies); i++) { /* all but BERT, which drops case and spaces */
        tn_tokenizer *t = open_golden(vocabularies[i]);
        if (!t) break; /* no golden data */
        each_case(vocabularies[i], t, check_round_trip);
        tn_tokenizer_free(t);
    }
}

/* ---- Special tokens and roles ---- */

static void control_tokens_count_only_where_they_are_asked_for(void **state) {
    (void)state;
    small *v = chat_vocabulary();
    tn_tokenizer *t = make(v);
    assert_tokens(t, "a<tool>b", 0, "97 258 98");
    assert_tokens(t, "<tool><tool><tool>", 0, "259 258"); /* the longest match */
    assert_tokens(t, "a<|im_end|>", TN_ENCODE_PARSE_SPECIAL, "97 257");
    assert_tokens(t, "a<|im_end|>", 0, "97 60 124 105 109 95 101 110 100 124 62");
    assert_tokens(t, "a", TN_ENCODE_ADD_SPECIAL, "256 97 256");
    assert_tokens(t, "", TN_ENCODE_ADD_SPECIAL, "256 256");
    assert_tokens(t, "<|im_end|", TN_ENCODE_PARSE_SPECIAL, "60 124 105 109 95 101 110 100 124");
    const tn_token ids[] = {256, 97, 258, 257};
    assert_decodes(t, ids, 4, 0, "a<tool>");
    assert_decodes(t, ids, 4, TN_DECODE_SPECIAL, "<|endoftext|>a<tool><|im_end|>");
    tn_tokenizer_free(t);
    free(v);
}

static void roles_come_from_the_file_or_from_names(void **state) {
    (void)state;
    small *v = chat_vocabulary();
    tn_tokenizer *t = make(v);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_BOS), 256);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOT), 257);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_FIM_PRE), 260);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_FIM_MID), TN_TOKEN_NONE);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_PAD), TN_TOKEN_NONE);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_NEWLINE), 10);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_COUNT), TN_TOKEN_NONE);
    assert_true(tn_token_is_end(t, 256) && tn_token_is_end(t, 257));
    assert_false(tn_token_is_end(t, 258) || tn_token_is_end(t, 97) || tn_token_is_end(t, -1) ||
                 tn_token_is_end(t, 261));
    assert_int_equal(tn_tokenizer_size(t), 261);
    assert_int_equal(tn_tokenizer_find(t, "<tool>", 6), 258);
    assert_int_equal(tn_tokenizer_find(t, "nothing", 7), TN_TOKEN_NONE);
    assert_int_equal(tn_token_get_type(t, 258), TN_TOKEN_USER_DEFINED);
    assert_string_equal(tn_token_piece(t, 32, NULL), " ");
    assert_string_equal(tn_token_text(t, 32, NULL), "\xc4\xa0");
    assert_null(tn_token_piece(t, 261, NULL));
    assert_true(tn_tokenizer_adds_bos(t) && tn_tokenizer_adds_eos(t));
    assert_string_equal(tn_special_name(TN_SPECIAL_EOT), "end of turn");
    tn_tokenizer_free(t);
    free(v);

    v = small_new("gpt2", "gpt-4o"); /* a message within a turn does not end it */
    add_bytes(v);
    add_token(v, "<|end|>", TN_TOKEN_CONTROL, 0);
    add_token(v, "<|return|>", TN_TOKEN_CONTROL, 0);
    add_token(v, "<|call|>", TN_TOKEN_CONTROL, 0);
    t = make(v);
    assert_false(tn_token_is_end(t, 256));
    assert_true(tn_token_is_end(t, 257) && tn_token_is_end(t, 258));
    tn_tokenizer_free(t);
    free(v);
}

static void whitespace_beside_special_tokens_goes_where_models_want_it(void **state) {
    (void)state;
    OPEN_OR_SKIP(t, "phi-3");
    assert_tokens(t, "<|user|>\n Hi<|end|>\n", TN_ENCODE_PARSE_SPECIAL, "32010 6324 32007");
    assert_tokens(t, "<s> Hi", TN_ENCODE_PARSE_SPECIAL, "1 29871 6324");
    tn_tokenizer_free(t);
}

static void buffers_too_small_say_how_many_tokens_there_are(void **state) {
    (void)state;
    small *v = chat_vocabulary();
    tn_tokenizer *t = make(v);
    tn_token ids[3];
    size_t count;
    assert_ok(tn_tokenizer_encode_into(t, "abc", 3, 0, ids, 3, &count));
    assert_int_equal(count, 3);
    assert_fails(TN_E_FULL, tn_tokenizer_encode_into(t, "abcd", 4, 0, ids, 3, &count));
    assert_int_equal(count, 4);
    assert_int_equal(ids[2], 'c');
    assert_fails(TN_E_FULL, tn_tokenizer_encode_into(t, "abcd", 4, 0, NULL, 0, &count));
    assert_fails(TN_E_INVALID, tn_tokenizer_encode(t, NULL, 4, 0, &(tn_tokens){0}));
    assert_fails(TN_E_LIMIT, tn_tokenizer_encode(t, "", SIZE_MAX, 0, &(tn_tokens){0}));
    tn_text text = {0};
    assert_fails(TN_E_INVALID, tn_tokenizer_decode(t, (tn_token[]){97, 261}, 2, 0, &text));
    assert_int_equal(text.length, 0);
    assert_fails(TN_E_INVALID, tn_tokenizer_decode(t, (tn_token[]){-1}, 1, 0, &text));
    tn_text_free(&text);
    tn_tokenizer_free(t);
    free(v);
}

/* ---- Kinds ---- */

static void spm_falls_back_to_bytes_and_escapes_spaces(void **state) {
    (void)state;
    OPEN_OR_SKIP(t, "llama-spm");
    assert_tokens(t, "\xff", 0, "29871 258");
    assert_tokens(t, "</s>", 0, "1533 29879 29958"); /* not the control token */
    assert_tokens(t, "Hi", TN_ENCODE_ADD_SPECIAL, "1 6324");
    assert_decodes(t, (tn_token[]){1, 6324, 29871, 6324}, 4, 0, "Hi  Hi");
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_NEWLINE), 13);
    assert_true(tn_tokenizer_adds_space_prefix(t));
    /* A text that continues another gets no space. */
    assert_tokens(t, " Hi", TN_ENCODE_CONTINUE, "6324");
    assert_decodes(t, (tn_token[]){6324}, 1, TN_DECODE_CONTINUE, " Hi");
    tn_detokenizer *d;
    assert_ok(tn_detokenizer_new(t, TN_DECODE_CONTINUE, &d));
    assert_string_equal(tn_detokenizer_push(d, 6324, NULL), " Hi");
    tn_detokenizer_free(d);
    assert_ok(tn_detokenizer_new(t, 0, &d));
    assert_string_equal(tn_detokenizer_push(d, 1, NULL), "");
    assert_string_equal(tn_detokenizer_push(d, 6324, NULL), "Hi");
    assert_string_equal(tn_detokenizer_push(d, 6324, NULL), " Hi");
    tn_detokenizer_free(d);
    tn_tokenizer_free(t);
}

static void bpe_on_characters_merges_by_rank(void **state) {
    (void)state;
    static const char *const names[][2] = {{"gemma4", ""}, {"gpt2", "gemma4"}, {"llama", "default"}};
    for (size_t i = 0; i < TN__COUNT(names); i++) {
        small *v = raw_vocabulary(names[i][0], names[i][1]);
        v->source.add_space_prefix = 0;
        tn_tokenizer *t = make(v);
        assert_tokens(t, "a a ab", 0, "2 5 4 6"); /* "ab" ranks before " a" */
        assert_tokens(t, "\n\n\n", 0, "8 7");
        assert_tokens(t, "\xc3\xa9", 0, "204 178");
        assert_tokens(t, "b\xff", 0, "3 264");
        assert_decodes(t, (tn_token[]){2, 5, 4, 6, 204, 178}, 6, 0, "a a ab\xc3\xa9");
        if (i == 0) assert_true(tn_tokenizer_adds_bos(t));
        tn_tokenizer_free(t);
        free(v);
    }
}

static void merges_may_pass_through_strings_that_are_no_tokens(void **state) {
    (void)state;
    small *v = small_new("gpt2", "gpt-2");
    add_bytes(v);
    add_token(v, "abcd", TN_TOKEN_NORMAL, 0); /* 256; "ab" and "cd" are not in the vocabulary */
    add_merge(v, "a b");
    add_merge(v, "c d");
    add_merge(v, "ab cd");
    add_merge(v, "x y");
    tn_tokenizer *t = make(v);
    assert_tokens(t, "abcd", 0, "256");
    assert_tokens(t, "abxy", 0, "97 98 120 121"); /* back to bytes */
    tn_tokenizer_free(t);
    free(v);
}

static void words_that_are_tokens_ignore_the_merges(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        small *v = small_new("gpt2", i ? "llama-bpe" : "dbrx");
        add_bytes(v);
        add_token(v,
                  "\xc4\xa0"
                  "abc",
                  TN_TOKEN_NORMAL, 0); /* 256: no merge leads to it */
        tn_tokenizer *t = make(v);
        assert_tokens(t, " abc", 0, i ? "256" : "32 97 98 99");
        assert_int_equal(tn_tokenizer_adds_bos(t), i);
        tn_tokenizer_free(t);
        free(v);
    }
}

static void wordpiece_cleans_cuts_and_matches_greedily(void **state) {
    (void)state;
    small *v = small_new("bert", "");
    static const char *const texts[] = {"[PAD]",
                                        "[UNK]",
                                        "[CLS]",
                                        "[SEP]",
                                        "\xe2\x96\x81un",
                                        "aff",
                                        "able",
                                        "\xe2\x96\x81"
                                        "affe",
                                        "\xe2\x96\x81!",
                                        "\xe2\x96\x81\xe4\xb8\xad"};
    for (size_t i = 0; i < TN__COUNT(texts); i++)
        add_token(v, texts[i], i < 4 ? TN_TOKEN_CONTROL : TN_TOKEN_NORMAL, 0);
    v->source.special[TN_SPECIAL_UNK] = 1;
    v->source.special[TN_SPECIAL_CLS] = 2;
    v->source.special[TN_SPECIAL_SEP] = 3;
    tn_tokenizer *t = make(v);
    assert_tokens(t, "UNaffable!", 0, "4 5 6 8");
    assert_tokens(t,
                  "\xc3\x84"
                  "ffe affe\xcc\x81",
                  0, "7 7"); /* accents, composed or not */
    assert_tokens(t, "un\xe4\xb8\xad!", TN_ENCODE_ADD_SPECIAL, "2 4 9 8 3");
    assert_tokens(t, "unx \t\n!", 0, "1 8");
    assert_tokens(t, "un\xff\xe2\x80\x8d", 0, "4"); /* invalid bytes are dropped */
    char longest[102];
    memset(longest, 'x', 101);
    longest[101] = 0;
    assert_tokens(t, longest, 0, "1");
    assert_decodes(t, (tn_token[]){4, 5, 6, 8}, 4, 0, "unaffable !");
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_NEWLINE), TN_TOKEN_NONE);
    tn_tokenizer_free(t);
    v->source.lowercase = 0;
    t = make(v);
    assert_tokens(t, "UN un", 0, "1 4");
    tn_tokenizer_free(t);
    free(v);
}

static void unigram_normalizes_first(void **state) {
    (void)state;
    small *v = small_new("t5", "");
    static const char *const texts[] = {"<pad>",
                                        "</s>",
                                        "<unk>",
                                        "\xe2\x96\x81",
                                        "\xe2\x96\x81"
                                        "bb",
                                        "b",
                                        "bb",
                                        "<x>"};
    for (size_t i = 0; i < TN__COUNT(texts); i++)
        add_token(v, texts[i],
                  i < 2    ? TN_TOKEN_CONTROL
                  : i == 2 ? TN_TOKEN_UNKNOWN
                  : i == 7 ? TN_TOKEN_USER_DEFINED
                           : TN_TOKEN_NORMAL,
                  i == 5 ? -5 : -2);
    unsigned char charsmap[1000];
    v->source.charsmap = charsmap;
    v->source.charsmap_size = make_charsmap(charsmap);
    v->source.add_space_prefix = 1;
    v->source.remove_extra_whitespaces = 1;
    tn_tokenizer *t = make(v);
    assert_tokens(t, "A", 0, "4");
    assert_tokens(t, "  A   bb  ", TN_ENCODE_ADD_SPECIAL, "4 4 1");
    assert_tokens(t, "bb?\xff?", 0, "4 2"); /* adjacent unknown characters share one token */
    assert_tokens(t, "bb<x>bb", 0, "4 7 4");
    assert_tokens(t, "   ", 0, "");
    assert_decodes(t, (tn_token[]){4, 4, 1}, 3, 0, "bb bb");
    tn_tokenizer_free(t);
    v->source.remove_extra_whitespaces = 0;
    t = make(v);
    assert_tokens(t, "bb  bb ", 0, "4 3 4 3");
    tn_tokenizer_free(t);
    static const size_t sizes[] = {1, 3, 4, 5, 0x200, 0x204};
    for (size_t i = 0; i < TN__COUNT(sizes); i++) {
        v->source.charsmap_size = sizes[i];
        assert_fails(TN_E_FORMAT, tn__tokenizer_from_source(&v->source, NULL, &t));
    }
    free(v);
}

/* ---- Normalization ---- */

static void text_is_composed_for_models_that_want_it(void **state) {
    (void)state;
    tn__text out = {0};
    bool changed;
    assert_ok(tn__normalize_nfc("plain \xc3\xa9", 8, &out, &changed));
    assert_false(changed);
    assert_ok(tn__normalize_nfc("e\xcc\x81", 3, &out, &changed));
    assert_true(changed);
    assert_string_equal(out.data, "\xc3\xa9");
    assert_ok(tn__normalize_nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", 9, &out, &changed)); /* Hangul */
    assert_string_equal(out.data, "\xea\xb0\x81");
    /* The division into blocks does not change the result, at any length. */
    rng r = {5};
    for (int round = 0; round < 20; round++) {
        char text[9000], expected[9000];
        size_t size = 0, length = 0;
        static const char *const from[] = {"e\xcc\x81", "\xe4\xb8\xad", "\xe1\x84\x80\xe1\x85\xa1", "x",
                                           "a\xcc\xa3\xcc\x81"};
        static const char *const to[] = {"\xc3\xa9", "\xe4\xb8\xad", "\xea\xb0\x80", "x", "\xe1\xba\xa1\xcc\x81"};
        while (size < 8000) {
            size_t k = round < 10 ? rng_below(&r, 3) : rng_below(&r, 5);
            memcpy(text + size, from[k], strlen(from[k]));
            memcpy(expected + length, to[k], strlen(to[k]));
            size += strlen(from[k]);
            length += strlen(to[k]);
        }
        assert_ok(tn__normalize_nfc(text, size, &out, &changed));
        assert_int_equal(out.length, length);
        assert_memory_equal(out.data, expected, length);
    }
    /* Any number of marks is sorted by class. */
    char marks[2000], ordered[2000];
    for (int i = 0; i < 500; i++) {
        memcpy(marks + 4 * i, "\xcc\x81\xcc\x96", 4); /* above (230), below (220) */
        memcpy(ordered + 2 * i, "\xcc\x96", 2);
        memcpy(ordered + 1000 + 2 * i, "\xcc\x81", 2);
    }
    assert_ok(tn__normalize_nfc(marks, 2000, &out, &changed));
    assert_int_equal(out.length, 2000);
    assert_memory_equal(out.data, ordered, 2000);
    tn__text_free(&out);
    small *v = small_new("gpt2", "qwen2");
    add_bytes(v);
    tn_tokenizer *t = make(v);
    assert_tokens(t, "e\xcc\x81\xff", 0, "195 169 255");
    tn_tokenizer_free(t);
    free(v);
}

/* ---- Token by token ---- */

/* Valid UTF-8 as Unicode recommends: U+FFFD for each maximal invalid part. */
static size_t sanitize(const char *in, size_t size, char *out) {
    size_t made = 0;
    for (size_t i = 0; i < size;) {
        uint32_t cp;
        unsigned n = tn__utf8_decode(in + i, size - i, &cp);
        if (n) {
            memcpy(out + made, in + i, n);
            made += n;
            i += n;
            continue;
        }
        /* The longest prefix of some valid character: try all ways to complete it. */
        size_t part = 1;
        for (size_t k = 2; k <= 3 && i + k <= size; k++) {
            bool possible = false;
            for (unsigned last = 0x80; last <= 0xbf && !possible; last++) {
                char whole[4] = {in[i], in[i + 1], k > 2 ? in[i + 2] : (char)last, (char)last};
                for (unsigned total = (unsigned)k + 1; total <= 4; total++)
                    possible = possible || tn__utf8_decode(whole, total, &cp) == total;
            }
            if (!possible) break;
            part = k;
        }
        memcpy(out + made, "\xef\xbf\xbd", 3);
        made += 3;
        i += part;
    }
    return made;
}

static void streams_are_valid_text_at_every_step(void **state) {
    (void)state;
    tn_tokenizer *t = open_tales();
    tn_detokenizer *d;
    assert_ok(tn_detokenizer_new(t, 0, &d));
    rng r = {9};
    for (int round = 0; round < 2000; round++) {
        char raw[4000], streamed[12000], expected[12000];
        size_t raw_size = 0, streamed_size = 0, length;
        for (int i = 0; i < 12; i++) {
            /* Mostly single bytes, so that all ways to break a character occur. */
            char bytes[4];
            tn_token id = rng_below(&r, 4)
                              ? tn_tokenizer_find(
                                    t, bytes, tn__utf8_encode(tn__char_of_byte(0x80 | rng_next(&r) % 0x80), bytes))
                              : (tn_token)rng_below(&r, (uint64_t)tn_tokenizer_size(t));
            if (tn_token_get_type(t, id) != TN_TOKEN_NORMAL) id = tn_tokenizer_find(t, "a", 1);
            const char *piece = tn_token_piece(t, id, &length);
            memcpy(raw + raw_size, piece, length);
            raw_size += length;
            const char *text = tn_detokenizer_push(d, id, &length);
            assert_int_equal(tn__utf8_valid_prefix(text, length), length);
            assert_int_equal(text[length], 0);
            memcpy(streamed + streamed_size, text, length);
            streamed_size += length;
        }
        const char *text = tn_detokenizer_finish(d, &length);
        memcpy(streamed + streamed_size, text, length);
        streamed_size += length;
        size_t expected_size = sanitize(raw, raw_size, expected);
        assert_int_equal(streamed_size, expected_size);
        assert_memory_equal(streamed, expected, expected_size);
    }
    tn_detokenizer_free(d);
    tn_tokenizer_free(t);
}

static void streams_wait_for_whole_characters(void **state) {
    (void)state;
    small *v = chat_vocabulary();
    tn_tokenizer *t = make(v);
    tn_detokenizer *d;
    assert_ok(tn_detokenizer_new(t, 0, &d));
    static const struct {
        tn_token id;
        const char *text;
    } steps[] = {{0xf0, ""},
                 {0x9f, ""},
                 {256, ""},
                 {0x98, ""},
                 {0x80, "\xf0\x9f\x98\x80"},
                 {'a', "a"},
                 {-5, ""},
                 {0xe4, ""},
                 {'b', "\xef\xbf\xbd"
                       "b"},
                 {0xff, "\xef\xbf\xbd"},
                 {0xc3, ""}};
    for (size_t i = 0; i < TN__COUNT(steps); i++)
        assert_string_equal(tn_detokenizer_push(d, steps[i].id, NULL), steps[i].text);
    assert_string_equal(tn_detokenizer_finish(d, NULL), "\xef\xbf\xbd");
    assert_string_equal(tn_detokenizer_finish(d, NULL), "");
    tn_detokenizer_push(d, 0xc3, NULL);
    tn_detokenizer_reset(d);
    assert_string_equal(tn_detokenizer_push(d, 'x', NULL), "x");
    tn_detokenizer_free(d);
    tn_tokenizer_free(t);
    free(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_reference),
        cmocka_unit_test(text_comes_back_from_merging_vocabularies),
        cmocka_unit_test(control_tokens_count_only_where_they_are_asked_for),
        cmocka_unit_test(roles_come_from_the_file_or_from_names),
        cmocka_unit_test(whitespace_beside_special_tokens_goes_where_models_want_it),
        cmocka_unit_test(buffers_too_small_say_how_many_tokens_there_are),
        cmocka_unit_test(spm_falls_back_to_bytes_and_escapes_spaces),
        cmocka_unit_test(bpe_on_characters_merges_by_rank),
        cmocka_unit_test(merges_may_pass_through_strings_that_are_no_tokens),
        cmocka_unit_test(words_that_are_tokens_ignore_the_merges),
        cmocka_unit_test(wordpiece_cleans_cuts_and_matches_greedily),
        cmocka_unit_test(unigram_normalizes_first),
        cmocka_unit_test(text_is_composed_for_models_that_want_it),
        cmocka_unit_test(streams_are_valid_text_at_every_step),
        cmocka_unit_test(streams_wait_for_whole_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

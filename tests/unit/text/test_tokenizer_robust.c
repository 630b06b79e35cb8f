/* Tokenizers: comparison with simple versions, hostile text, broken files, lack of memory, threads. */
#include "corpus.h"
#include "vocabularies.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#define LLVMFuzzerTestOneInput fuzz_tokenizer
#include "../fuzz/fuzz_tokenizer.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_vocab
#include "../fuzz/fuzz_vocab.c"

/* Processor time of this process, so that other processes do not count. */
static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- Merging against the obvious way ---- */

/* Merges the pair of lowest rank until there is none. */
static size_t merge_slowly(const tn__merges *merges, uint32_t *symbols, uint32_t *starts, size_t count) {
    for (size_t i = 0; i < count; i++) starts[i] = (uint32_t)i;
    for (;;) {
        uint32_t best_rank = TN__NIL, best_result = 0;
        size_t best = 0;
        for (size_t i = 0; i + 1 < count; i++)
            for (size_t k = 0; k <= merges->mask; k++) {
                const tn__merge_slot *slot = &merges->slots[k];
                if (slot->pair != ((uint64_t)symbols[i] << 32 | symbols[i + 1]) || slot->rank >= best_rank) continue;
                best_rank = slot->rank;
                best_result = slot->result;
                best = i;
            }
        if (best_rank == TN__NIL) return count;
        symbols[best] = best_result;
        count--;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 1) * sizeof *symbols);
        memmove(starts + best + 1, starts + best + 2, (count - best - 1) * sizeof *starts);
    }
}

static void merging_equals_the_obvious_way(void **state) {
    (void)state;
    rng r = {42};
    tn__merge_work work = {0};
    for (int round = 0; round < 300; round++) {
        /* Any table at all: results unrelated to their parts, ranks shared by many pairs, cycles broken by making
         * results larger than their parts. */
        uint32_t letters = 1 + (uint32_t)rng_below(&r, 4), symbols = letters;
        uint32_t ranks = 1 + (uint32_t)rng_below(&r, 12);
        tn__merges merges = {0};
        assert_ok(tn__merges_init(&merges, 4, rng_next(&r)));
        merges.n_ranks = ranks;
        for (int i = 0; i < 24; i++) {
            uint32_t a = (uint32_t)rng_below(&r, symbols), b = (uint32_t)rng_below(&r, symbols);
            assert_ok(tn__merges_add(&merges, a, b, (uint32_t)rng_below(&r, ranks), symbols));
            symbols++;
        }
        size_t n = 2 + rng_below(&r, round % 3 ? 150 : 12), count = n;
        uint32_t expected[200], starts[200];
        assert_ok(tn__merge_reserve(&work, n));
        for (size_t i = 0; i < n; i++) {
            expected[i] = work.symbols[i] = (uint32_t)rng_below(&r, letters);
            if (rng_below(&r, 20) == 0) expected[i] = work.symbols[i] = TN__NIL;
        }
        size_t left = merge_slowly(&merges, expected, starts, n);
        assert_ok(tn__merge_run(&merges, &work, &count));
        assert_int_equal(count, left);
        assert_memory_equal(work.symbols, expected, left * sizeof *expected);
        assert_memory_equal(work.starts, starts, left * sizeof *starts);
        tn__merges_free(&merges);
    }
    tn__merge_work_free(&work);
}

/* SentencePiece's rule on strings: join the adjacent parts whose text is the token of highest score, leftmost first.
 */
static size_t spm_slowly(const small *v, const char *text, size_t size, tn_token *out) {
    size_t starts[300], count = 0, made = 0;
    for (size_t i = 0; i < size; count++) {
        uint32_t cp;
        starts[count] = i;
        i += tn__utf8_decode(text + i, size - i, &cp);
    }
    starts[count] = size;
    for (;;) {
        float best_score = -INFINITY;
        size_t best = SIZE_MAX;
        for (size_t i = 0; i + 1 < count; i++)
            for (size_t k = 0; k < v->source.n_tokens; k++) {
                size_t length = starts[i + 2] - starts[i];
                if (v->types[k] != TN_TOKEN_NORMAL || v->tokens[k].size != length ||
                    memcmp(v->tokens[k].data, text + starts[i], length) || v->scores[k] <= best_score)
                    continue;
                best_score = v->scores[k];
                best = i;
            }
        if (best == SIZE_MAX) break;
        memmove(starts + best + 1, starts + best + 2, (count - best) * sizeof *starts);
        count--;
    }
    for (size_t i = 0; i < count; i++) {
        size_t length = starts[i + 1] - starts[i];
        tn_token id = TN_TOKEN_NONE;
        for (size_t k = v->source.n_tokens; k-- > 0;)
            if (v->types[k] == TN_TOKEN_NORMAL && v->tokens[k].size == length &&
                memcmp(v->tokens[k].data, text + starts[i], length) == 0)
                id = (tn_token)k;
        if (id == TN_TOKEN_NONE) {
            id = 0;
            if (made && out[made - 1] == 0) continue;
        }
        out[made++] = id;
    }
    return made;
}

static void spm_equals_the_obvious_way(void **state) {
    (void)state;
    rng r = {7};
    static const char *const letters[] = {"a", "b", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80"};
    for (int round = 0; round < 60; round++) {
        small *v = small_new("llama", "");
        static char texts[200][64];
        v->source.add_space_prefix = 0;
        add_token(v, "<unk>", TN_TOKEN_UNKNOWN, 0);
        size_t kinds = 2 + rng_below(&r, 4);
        for (size_t i = 0; i < 60; i++) {
            /* Either a few letters or two older tokens joined, so that long tokens can be reached. */
            texts[i][0] = 0;
            if (i < 8 || rng_below(&r, 3) == 0)
                for (size_t k = 0, n = 1 + rng_below(&r, 3); k < n; k++)
                    strcat(texts[i], letters[rng_below(&r, kinds)]);
            else
                for (int k = 0; k < 2; k++) {
                    const char *older = texts[rng_below(&r, i)];
                    if (strlen(texts[i]) + strlen(older) < 30) strcat(texts[i], older);
                }
            /* Few different scores: ties go to the left. */
            bool again = false;
            for (size_t k = 0; k < v->source.n_tokens; k++)
                again = again || (v->tokens[k].size == strlen(texts[i]) && !strcmp(v->tokens[k].data, texts[i]));
            if (!again) add_token(v, texts[i], TN_TOKEN_NORMAL, -(float)rng_below(&r, round % 2 ? 4 : 1000));
        }
        tn_tokenizer *t = make(v);
        for (int k = 0; k < 10; k++) {
            char text[1200] = "";
            for (size_t i = 0, n = 1 + rng_below(&r, 120); i < n; i++) strcat(text, letters[rng_below(&r, 5)]);
            tn_token expected[300];
            size_t count = spm_slowly(v, text, strlen(text), expected);
            tn_tokens got = {0};
            assert_ok(tn_tokenizer_encode(t, text, strlen(text), 0, &got));
            if (got.count != count || (count && memcmp(got.ids, expected, count * sizeof *expected) != 0))
                fail_msg("round %d: \"%s\" has other tokens", round, text);
            tn_tokens_free(&got);
        }
        tn_tokenizer_free(t);
        free(v);
    }
}

/* Highest sum of scores, by trying every token at every offset. */
static double unigram_slowly(const small *v, const char *text, size_t size, double unknown) {
    double best[200];
    for (size_t i = 0; i <= size; i++) best[i] = -INFINITY;
    best[0] = 0;
    for (size_t i = 0; i < size; i++) {
        uint32_t cp;
        unsigned step = tn__utf8_decode(text + i, size - i, &cp);
        if (!step || best[i] == -INFINITY) continue;
        bool covered = false;
        for (size_t k = 0; k < v->source.n_tokens; k++) {
            size_t length = v->tokens[k].size;
            if (v->types[k] != TN_TOKEN_NORMAL || length > size - i || memcmp(v->tokens[k].data, text + i, length))
                continue;
            best[i + length] = fmax(best[i + length], best[i] + v->scores[k]);
            covered = covered || length == step;
        }
        if (!covered) best[i + step] = fmax(best[i + step], best[i] + unknown);
    }
    return best[size];
}

static void unigram_finds_the_best_segmentation(void **state) {
    (void)state;
    rng r = {11};
    for (int round = 0; round < 100; round++) {
        small *v = small_new("t5", "");
        static char texts[60][32];
        v->source.special[TN_SPECIAL_UNK] = add_token(v, "<unk>", TN_TOKEN_UNKNOWN, 0);
        double lowest = 0;
        for (size_t i = 0; i < 40; i++) {
            size_t n = i < 4 ? 1 : 2 + rng_below(&r, 3);
            for (size_t k = 0; k < n; k++) texts[i][k] = (char)('a' + (i < 4 ? i : rng_below(&r, 4)));
            texts[i][n] = 0;
            bool again = false;
            for (size_t k = 0; k < i; k++) again = again || !strcmp(texts[k], texts[i]);
            if (again) continue;
            float score = -(float)(1 + rng_unit(&r) * 10);
            lowest = fmin(lowest, score);
            add_token(v, texts[i], TN_TOKEN_NORMAL, score);
        }
        tn_tokenizer *t = make(v);
        char text[100];
        size_t size = 1 + rng_below(&r, 90);
        for (size_t i = 0; i < size; i++) text[i] = (char)('a' + rng_below(&r, 5)); /* 'e' is in no token */
        text[size] = 0;
        tn_tokens got = {0};
        assert_ok(tn_tokenizer_encode(t, text, size, 0, &got));
        /* Adds up the chosen tokens; the unknown token is a run of 'e'. */
        double sum = 0;
        size_t at = 0;
        for (size_t i = 0; i < got.count; i++) {
            size_t length;
            const char *piece = tn_token_text(t, got.ids[i], &length);
            if (got.ids[i] != 0) {
                assert_memory_equal(text + at, piece, length);
                sum += tn_token_score(t, got.ids[i]);
                at += length;
                continue;
            }
            for (; at < size && text[at] == 'e'; at++) sum += lowest - 10;
        }
        assert_int_equal(at, size);
        double best = unigram_slowly(v, text, size, lowest - 10);
        if (fabs(sum - best) > 1e-3) fail_msg("\"%s\": %f, could be %f", text, sum, best);
        tn_tokens_free(&got);
        tn_tokenizer_free(t);
        free(v);
    }
}

/* ---- Pre-tokenizers ---- */

typedef struct joined {
    char text[4000];
    size_t size, total;
} joined;

static tn_status join_word(void *user, const char *word, size_t size) {
    joined *j = user;
    if (j->size && j->size < sizeof j->text) j->text[j->size++] = '|';
    for (size_t i = 0; i < size && j->size < sizeof j->text; i++) j->text[j->size++] = word[i];
    j->total += size;
    return TN_OK;
}

static void assert_split(const char *name, const char *text, const char *expected) {
    const tn__pre_row *row = tn__pre_find(name, strlen(name));
    assert_non_null(row);
    tn__pre *pre;
    tn__pre_match *match;
    joined j = {.size = 0};
    assert_ok(tn__pre_new(row, &pre));
    assert_ok(tn__pre_match_new(pre, &match));
    assert_ok(tn__pre_split(pre, match, text, strlen(text), join_word, &j));
    j.text[j.size] = 0;
    if (strcmp(j.text, expected) != 0)
        fail_msg("%s: \"%s\" is cut as \"%s\", not \"%s\"", name, text, j.text, expected);
    tn__pre_match_free(match);
    tn__pre_free(pre);
}

static void pre_tokenizers_cut_words_as_their_models_do(void **state) {
    (void)state;
    assert_split("gpt-2", "Hello  world's 123456!!\n\n x", "Hello| | world|'s| 123456|!!|\n\n| x");
    assert_split("llama-bpe", "I'LL say\t12345 \n\n  word", "I|'LL| say|\t|123|45| \n\n| | word");
    assert_split("qwen2", "a12 b(c)\n", "a|1|2| b|(c|)\n");
    assert_split("qwen35", "e\xcc\x81t\xcc\x81", "e\xcc\x81t\xcc\x81");
    assert_split("qwen2", "e\xcc\x81t\xcc\x81", "e|\xcc\x81t|\xcc\x81");
    assert_split("starcoder", "x 42 y", "x| |4|2| y");
    assert_split("falcon", "1234 a--b", "123|4| a|--|b");
    assert_split("default", "1234 a--b", "123|4| a|--|b");
    assert_split("deepseek-v3", "abc12345\xe4\xb8\xad\xe6\x96\x87 .foo",
                 "abc|123|45|\xe4\xb8\xad\xe6\x96\x87| .|foo");
    assert_split("deepseek-coder", "a 12\n\nb", "a| |1|2|\n|\n|b");
    assert_split("gpt-4o", "camelCaseWORD it's", "camel|Case|WORD| it's");
    assert_split("tekken", "camelCase 12 it's", "camel|Case| |1|2| it|'s");
    assert_split("kimi-k2", "abc\xe4\xb8\xad\xe6\x96\x87xyz 1234", "abc|\xe4\xb8\xad\xe6\x96\x87|xyz| |123|4");
    assert_split("superbpe", "by 1234567 and", "by |1|234|567| and");
    assert_split("tiny_aya", "1234567 12345ab 12", "1|234|567| |123|45|ab| |12");
    assert_split("afmoe", "a1234", "a|1|234");
    assert_split("viking", "ab, cd 12", "ab|,| cd| |1|2");
    assert_split("bloom", "ab, cd 12", "ab|,| cd| 12");
    assert_split("exaone-moe", "ab cd  ef", "ab cd| | ef");
    assert_split("jais-2", "a     b", "a|    | b");
    assert_split("minicpm5", "ab1234", "ab|123|4");
    assert_split("chameleon", "aIMGIMGABZ<sentinel:1> a", "a|IMGIMGABZ|<|sentinel|:|1|>| a");
    assert_split("laguna", "ab \n\n 1", "ab| |\n\n| |1");
    assert_split("bailingmoe", "a \n\n b\n", "a| \n\n| b|\n");
    assert_split("seed-coder", "a!!\nb", "a|!!|\n|b");
}

/* Texts that are slow to match: runs, changes of class, bad cases of lookahead and backtracking. */
static void every_pre_tokenizer_keeps_all_bytes(void **state) {
    (void)state;
    static const char *const units[] = {
        "a",
        "A",
        " ",
        "\n",
        "\t ",
        "7",
        "!",
        "'",
        "aA",
        "a ",
        "\xe4\xb8\xad",
        "\xf0\x9f\x98\x80",
        "s'",
        "\xcc\x81",
        "1a",
        "a\xcc\x81 ",
        " \n ",
        "\r\n",
        "<|x|>",
        "$",
        "\xe1\x9a\x80",
        "\xc2\xbd",
    };
    enum { SIZE = 100000 };
    char *text = malloc(SIZE);
    double start = cpu_seconds();
    for (size_t i = 0; i < tn__pre_count; i++) {
        tn__pre *pre;
        tn__pre_match *match;
        for (size_t k = 0; k < i; k++) assert_string_not_equal(tn__pre_table[i].name, tn__pre_table[k].name);
        assert_ok(tn__pre_new(&tn__pre_table[i], &pre));
        assert_ok(tn__pre_match_new(pre, &match));
        for (size_t u = 0; u < TN__COUNT(units); u++) {
            size_t length = strlen(units[u]), size = SIZE / length * length;
            for (size_t k = 0; k < size; k++) text[k] = units[u][k % length];
            joined j = {.size = 0};
            assert_ok(tn__pre_split(pre, match, text, size, join_word, &j));
            assert_int_equal(j.total, size);
        }
        tn__pre_match_free(match);
        tn__pre_free(pre);
    }
    free(text);
    /* About 200 MB in total: seconds if every pattern is linear, hours otherwise. */
    assert_true(cpu_seconds() - start < 120);
}

static void unknown_pre_tokenizers_are_refused_unless_allowed(void **state) {
    (void)state;
    small *v = small_new("gpt2", "no-such-thing");
    add_bytes(v);
    tn_tokenizer *t;
    assert_fails(TN_E_UNSUPPORTED, tn__tokenizer_from_source(&v->source, NULL, &t));
    assert_non_null(strstr(tn_error(), "no-such-thing"));
    tn_log_set(NULL, NULL, TN_LOG_OFF);
    assert_ok(tn__tokenizer_from_source(&v->source, &(tn_tokenizer_params){.allow_unknown_pre = true}, &t));
    tn_log_set(NULL, NULL, TN_LOG_WARN);
    assert_string_equal(tn_tokenizer_pre(t), "default");
    tn_tokenizer_free(t);
    free(v);
}

/* ---- Hostile text and files ---- */

static void any_bytes_come_back_from_byte_level_vocabularies(void **state) {
    (void)state;
    tn_tokenizer *t = open_tales();
    rng r = {1};
    for (int round = 0; round < 2000; round++) {
        char text[200];
        size_t size = rng_below(&r, sizeof text);
        for (size_t i = 0; i < size; i++)
            text[i] = round % 3 == 0   ? (char)rng_next(&r)
                      : round % 3 == 1 ? (char)(rng_next(&r) | 0x80)
                                       : "aB 1\n\t'.\xc3\xa9"[rng_below(&r, 10)];
        tn_tokens ids = {0};
        tn_text back = {0};
        assert_ok(tn_tokenizer_encode(t, text, size, 0, &ids));
        assert_ok(tn_tokenizer_decode(t, ids.ids, ids.count, 0, &back));
        assert_int_equal(back.length, size);
        assert_memory_equal(back.bytes, text, size);
        tn_tokens_free(&ids);
        tn_text_free(&back);
    }
    tn_tokenizer_free(t);
}

static void hostile_text_takes_linear_time(void **state) {
    (void)state;
    static const char *const units[] = {
        "a", " ", "\n", "7", "!", "A", "\xf0\x9f\x98\x80", "\xcc\x96\xcc\x81", "\xff", "\xe4\xb8", "ab", "\t ", "<|"};
    size_t size = getenv("TENON_LONG") ? 10000000 : 500000;
    char *text = malloc(size);
    for (size_t v = 0; v <= TN__COUNT(vocabularies); v++) {
        tn_tokenizer *t = v ? open_golden(vocabularies[v - 1]) : open_tales();
        if (!t) break; /* no golden data */
        for (size_t u = 0; u < TN__COUNT(units); u++) {
            size_t length = strlen(units[u]);
            for (size_t i = 0; i < size; i++) text[i] = units[u][i % length];
            tn_tokens ids = {0};
            double start = cpu_seconds();
            assert_ok(tn_tokenizer_encode(t, text, size, 0, &ids));
            /* 2.5 µs per byte is 25 s for 10 MB; quadratic time takes far longer. */
            assert_true(cpu_seconds() - start < (double)size * 2.5e-6 + 1);
            tn_tokens_free(&ids);
        }
        tn_tokenizer_free(t);
    }
    free(text);
}

static void malformed_vocabularies_are_refused_or_made_sense_of(void **state) {
    (void)state;
    tn_tokenizer *t;
    small *v = small_new("gpt2", "gpt-2");
    assert_fails(TN_E_NOT_FOUND, tn__tokenizer_from_source(&v->source, NULL, &t));
    assert_null(t);
    add_bytes(v);
    static const char *const none[] = {"", "no_vocab", "none"};
    for (size_t i = 0; i < TN__COUNT(none); i++) {
        v->source.model = str(none[i]);
        assert_fails(TN_E_NOT_FOUND, tn__tokenizer_from_source(&v->source, NULL, &t));
    }
    static const char *const unsupported[] = {"hybriddna", "plamo", "GPT2", "gpt2 "};
    for (size_t i = 0; i < TN__COUNT(unsupported); i++) {
        v->source.model = str(unsupported[i]);
        assert_fails(TN_E_UNSUPPORTED, tn__tokenizer_from_source(&v->source, NULL, &t));
        assert_non_null(strstr(tn_error(), unsupported[i]));
    }
    v->source.model = str("gemma4");
    assert_fails(TN_E_FORMAT, tn__tokenizer_from_source(&v->source, NULL, &t));

    v->source.model = str("gpt2");
    static const char *const merges[] = {
        "", " ", "  ", "ab", "a ", " a", "a b", "a b", "a b c", "a \xff", "\xff\xfe \xfd", "zz yy"};
    for (size_t i = 0; i < TN__COUNT(merges); i++) add_merge(v, merges[i]);
    add_token(v, "ab", TN_TOKEN_NORMAL, NAN); /* 256 */
    add_token(v, "ab", TN_TOKEN_NORMAL, 0);   /* the same again */
    add_token(v, "", TN_TOKEN_CONTROL, 0);
    add_token(v, "\xff\xfe", TN_TOKEN_USER_DEFINED, INFINITY);
    add_token(v, "\xff", (tn_token_type)77, 0);
    for (int i = 0; i < TN_SPECIAL_COUNT; i++) v->source.special[i] = i % 2 ? INT64_MAX : -7;
    tn_log_set(NULL, NULL, TN_LOG_OFF);
    t = make(v);
    tn_log_set(NULL, NULL, TN_LOG_WARN);
    assert_tokens(t, "ab", TN_ENCODE_ADD_SPECIAL, "256");
    assert_tokens(t, "\xff\xfe", 0, "259");
    assert_int_equal(tn_token_get_type(t, 260), TN_TOKEN_NORMAL);
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_EOS), TN_TOKEN_NONE);
    tn_tokenizer_free(t);

    /* The same tokens for every other kind. */
    static const char *const models[] = {"llama", "bert", "t5", "gemma4"};
    for (size_t i = 0; i < TN__COUNT(models); i++) {
        v->source.model = str(models[i]);
        tn_log_set(NULL, NULL, TN_LOG_OFF);
        t = make(v);
        tn_log_set(NULL, NULL, TN_LOG_WARN);
        tn_tokens ids = {0};
        tn_text text = {0};
        assert_ok(tn_tokenizer_encode(t, "ab \xff\xfe\x00 \xe4\xb8", 9, 3, &ids));
        assert_ok(tn_tokenizer_decode(t, ids.ids, ids.count, 1, &text));
        tn_tokens_free(&ids);
        tn_text_free(&text);
        tn_tokenizer_free(t);
    }
    free(v);
}

static void a_missing_byte_never_ends_the_text(void **state) {
    (void)state;
    small *v = small_new("gpt2", "gpt-2");
    add_token(v, "<|endoftext|>", TN_TOKEN_CONTROL, 0);
    add_token(v, "a", TN_TOKEN_NORMAL, 0);
    v->source.special[TN_SPECIAL_UNK] = 0; /* as in StarCoder's files */
    tn_tokenizer *t = make(v);
    assert_tokens(t, "aba", 0, "1 1");
    tn_tokenizer_free(t);
    v->types[0] = TN_TOKEN_UNKNOWN;
    v->tokens[0] = str("<unk>");
    t = make(v);
    assert_tokens(t, "abba", 0, "1 0 1");
    tn_tokenizer_free(t);
    free(v);
}

static void fuzz_corpus_is_survived(void **state) {
    (void)state;
    assert_true(replay_corpus("tokenizer", fuzz_tokenizer) > 10);
    assert_true(replay_corpus("vocab", fuzz_vocab) >= 9);
    tn_log_set(NULL, NULL, TN_LOG_WARN);
}

static void hostile_charsmaps_stay_within_bounds(void **state) {
    (void)state;
    rng r = {3};
    unsigned char charsmap[1000];
    size_t size = make_charsmap(charsmap);
    small *v = small_new("t5", "");
    add_token(v, "a", TN_TOKEN_NORMAL, -1);
    add_token(v, "b", TN_TOKEN_NORMAL, -1);
    for (int round = 0; round < 3000; round++) {
        unsigned char broken[1000];
        memcpy(broken, charsmap, size);
        for (int i = 0; i < 40; i++) broken[4 + rng_below(&r, size - 4)] = (unsigned char)rng_next(&r);
        v->source.charsmap = broken;
        v->source.charsmap_size = size;
        tn_tokenizer *t = make(v);
        tn_tokens got = {0};
        char text[64];
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = (char)(round % 2 ? "AaB"[rng_below(&r, 3)] : (char)rng_next(&r));
        assert_ok(tn_tokenizer_encode(t, text, sizeof text, 0, &got));
        tn_tokens_free(&got);
        tn_tokenizer_free(t);
    }
    free(v);
}

/* ---- Memory and threads ---- */

static tn_status make_and_use(void *user) {
    const small *v = user;
    tn_tokenizer *t;
    TN_TRY(tn__tokenizer_from_source(&v->source, NULL, &t));
    tn_tokens ids = {0};
    tn_text text = {0};
    tn_detokenizer *d = NULL;
    char words[400];
    memset(words, 'a', sizeof words); /* long enough for both merging algorithms */
    memcpy(words, "e\xcc\x81 \xff<tool> aaa bb", 17);
    tn_status status = tn_tokenizer_encode(t, words, sizeof words, 3, &ids);
    if (status == TN_OK) status = tn_tokenizer_decode(t, ids.ids, ids.count, 1, &text);
    if (status == TN_OK) status = tn_detokenizer_new(t, 0, &d);
    tn_detokenizer_free(d);
    tn_text_free(&text);
    tn_tokens_free(&ids);
    tn_tokenizer_free(t);
    return status;
}

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    small *v = chat_vocabulary();
    v->source.pre = str("qwen2");
    add_token(v, "aa", TN_TOKEN_NORMAL, 0);
    add_merge(v, "a a");
    add_merge(v, "aa x");
    add_merge(v, "yy aa");
    check_every_allocation_failure(make_and_use, v);
    check_no_leak(make_and_use, v);
    free(v);
    static const char *const models[] = {"llama", "gemma4", "bert", "t5"};
    for (size_t i = 0; i < TN__COUNT(models); i++) {
        v = raw_vocabulary(models[i], "");
        unsigned char charsmap[1000];
        v->source.charsmap = charsmap;
        v->source.charsmap_size = make_charsmap(charsmap);
        v->source.name = str("Phi-3");
        v->scores[2] = -1; /* scores that differ make "llama" use them */
        check_every_allocation_failure(make_and_use, v);
        check_no_leak(make_and_use, v);
        free(v);
    }
}

typedef struct shared {
    const tn_tokenizer *t;
    const char *text;
    size_t size;
    tn_tokens expected;
    bool same;
} shared;

static void *encode_often(void *user) {
    shared *s = user;
    s->same = true;
    for (int i = 0; i < 20; i++) {
        tn_tokens ids = {0};
        if (tn_tokenizer_encode(s->t, s->text, s->size, 0, &ids) != TN_OK || ids.count != s->expected.count ||
            memcmp(ids.ids, s->expected.ids, ids.count * sizeof *ids.ids) != 0)
            s->same = false;
        tn_tokens_free(&ids);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    tn_tokenizer *t = open_tales();
    enum { THREADS = 4, SIZE = 20000 };
    char *text = malloc(SIZE);
    rng r = {2};
    for (size_t i = 0; i < SIZE; i++) text[i] = "etaoin shrdlu"[rng_below(&r, 13)];
    tn_tokens expected = {0};
    assert_ok(tn_tokenizer_encode(t, text, SIZE, 0, &expected));
    pthread_t threads[THREADS];
    shared work[THREADS];
    for (int i = 0; i < THREADS; i++) {
        work[i] = (shared){t, text, SIZE, expected, false};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &work[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(work[i].same);
    }
    tn_tokens_free(&expected);
    free(text);
    tn_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_equals_the_obvious_way),
        cmocka_unit_test(spm_equals_the_obvious_way),
        cmocka_unit_test(unigram_finds_the_best_segmentation),
        cmocka_unit_test(pre_tokenizers_cut_words_as_their_models_do),
        cmocka_unit_test(every_pre_tokenizer_keeps_all_bytes),
        cmocka_unit_test(unknown_pre_tokenizers_are_refused_unless_allowed),
        cmocka_unit_test(any_bytes_come_back_from_byte_level_vocabularies),
        cmocka_unit_test(hostile_text_takes_linear_time),
        cmocka_unit_test(malformed_vocabularies_are_refused_or_made_sense_of),
        cmocka_unit_test(a_missing_byte_never_ends_the_text),
        cmocka_unit_test(fuzz_corpus_is_survived),
        cmocka_unit_test(hostile_charsmaps_stay_within_bounds),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tokenizers against reference ids, against slow and obvious versions of themselves, and against broken files. */
#include "support.h"

#include "base/hash.h"
#include "llm/tokenizer_internal.h"
#include "llm/utf8.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fuzz/fuzz_tokenizer.c"

/* ---- Reference vocabularies ---------------------------------------------------------------------------------- */

static const char *const vocabularies[] = {"bert-bge",  "deepseek-llm", "falcon",   "gpt-2",
                                           "llama-spm", "phi-3",        "starcoder"};

static tn_tokenizer *open_golden(const char *name) {
    char relative[100];
    snprintf(relative, sizeof relative, "vocab/ggml-vocab-%s.gguf", name);
    const char *path = golden_path(relative);
    if (!path) return NULL;
    tn_gguf *file;
    tn_tokenizer *t;
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_ok(tn_tokenizer_new(file, NULL, &t));
    tn_gguf_close(file); /* the tokenizer keeps nothing of it */
    return t;
}

#define OPEN_OR_SKIP(variable, name)                                                                                 \
    tn_tokenizer *variable = open_golden(name);                                                                      \
    if (!variable) {                                                                                                 \
        print_message("skipped: no golden vocabulary %s (set TENON_GOLDEN)\n", name);                                \
        skip();                                                                                                      \
    }

static char *golden_text(const char *name, const char *ending, size_t *size) {
    char relative[100];
    snprintf(relative, sizeof relative, "vocab/ggml-vocab-%s.gguf.%s", name, ending);
    const char *path = golden_path(relative);
    return path ? read_file(path, size) : NULL;
}

/* Calls `check` for each reference case of a vocabulary; returns how many there are. */
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
    assert_int_equal(*line, 0); /* as many answers as questions */
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
    for (size_t i = 1; i < TN__COUNT(vocabularies); i++) { /* all but BERT, which forgets case and spaces */
        OPEN_OR_SKIP(t, vocabularies[i]);
        each_case(vocabularies[i], t, check_round_trip);
        tn_tokenizer_free(t);
    }
}

/* ---- Small vocabularies of our own --------------------------------------------------------------------------- */

enum { MOST = 4096 };
typedef struct small {
    tn__vocab_source source;
    tn_gguf_str tokens[MOST], merges[MOST];
    float scores[MOST];
    int32_t types[MOST];
    char bytes[256][4];
} small;

static tn_gguf_str str(const char *text) { return (tn_gguf_str){text, strlen(text)}; }

static small *small_new(const char *model, const char *pre) {
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

static tn_token add_token(small *v, const char *text, tn_token_type type, float score) {
    size_t i = v->source.n_tokens++;
    assert_true(i < MOST);
    v->tokens[i] = str(text);
    v->types[i] = type;
    v->scores[i] = score;
    return (tn_token)i;
}

static void add_merge(small *v, const char *pair) {
    assert_true(v->source.n_merges < MOST);
    v->merges[v->source.n_merges++] = str(pair);
}

/* All bytes, as byte-level vocabularies write them. */
static void add_bytes(small *v) {
    for (unsigned b = 0; b < 256; b++) {
        unsigned n = tn__utf8_encode(tn__char_of_byte(b), v->bytes[b]);
        v->tokens[v->source.n_tokens] = (tn_gguf_str){v->bytes[b], n};
        v->types[v->source.n_tokens++] = TN_TOKEN_NORMAL;
    }
}

static tn_tokenizer *make(const small *v) {
    tn_tokenizer *t;
    assert_ok(tn__tokenizer_from_source(&v->source, NULL, &t));
    return t;
}

/* Compares ids with a list such as "0 5 3". */
static void assert_tokens(const tn_tokenizer *t, const char *text, unsigned flags, const char *expected) {
    tn_tokens got = {0};
    char shown[4000] = "";
    assert_ok(tn_tokenizer_encode(t, text, strlen(text), flags, &got));
    size_t at = 0;
    for (size_t i = 0; i < got.count && at < sizeof shown - 20; i++)
        at += (size_t)snprintf(shown + at, sizeof shown - at, i ? " %d" : "%d", got.ids[i]);
    assert_string_equal(shown, expected);
    tn_tokens_free(&got);
}

static void assert_decodes(const tn_tokenizer *t, const tn_token *ids, size_t count, unsigned flags,
                           const char *expected) {
    tn_text text = {0};
    assert_ok(tn_tokenizer_decode(t, ids, count, flags, &text));
    assert_string_equal(text.bytes, expected);
    tn_text_free(&text);
}

/* ---- Merging against the obvious way ------------------------------------------------------------------------- */

/* Scans for the best pair until there is none. */
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

/* SentencePiece's rule on strings: join the neighbours whose text is the best token, leftmost first. */
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

/* Best sum of scores, by trying every token at every place. */
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
        /* Add up what was chosen; the unknown token stands for a run of 'e'. */
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

/* ---- Pre-tokenizers ------------------------------------------------------------------------------------------ */

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

/* Texts that make matching work: runs, changes of class, everything that lookaheads and backtracking dislike. */
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
    uint64_t start = tn_time_ns();
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
    /* About 200 MB in all: seconds when every pattern is linear, hours when one is not. */
    assert_true(tn_time_ns() - start < 120000000000u);
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

/* ---- Special tokens and roles -------------------------------------------------------------------------------- */

static small *chat_vocabulary(void) {
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

static void control_tokens_count_only_where_they_are_asked_for(void **state) {
    (void)state;
    small *v = chat_vocabulary();
    tn_tokenizer *t = make(v);
    assert_tokens(t, "a<tool>b", 0, "97 258 98");
    assert_tokens(t, "<tool><tool><tool>", 0, "259 258"); /* the longest at each place */
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

/* ---- Kinds --------------------------------------------------------------------------------------------------- */

static void spm_falls_back_to_bytes_and_escapes_spaces(void **state) {
    (void)state;
    OPEN_OR_SKIP(t, "llama-spm");
    assert_tokens(t, "\xff", 0, "29871 258");
    assert_tokens(t, "</s>", 0, "1533 29879 29958"); /* not the control token */
    assert_tokens(t, "Hi", TN_ENCODE_ADD_SPECIAL, "1 6324");
    assert_decodes(t, (tn_token[]){1, 6324, 29871, 6324}, 4, 0, "Hi  Hi");
    assert_int_equal(tn_tokenizer_special(t, TN_SPECIAL_NEWLINE), 13);
    assert_true(tn_tokenizer_adds_space_prefix(t));
    tn_tokenizer_free(t);
}

static small *raw_vocabulary(const char *model, const char *pre) {
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
    assert_tokens(t, "un\xff\xe2\x80\x8d", 0, "4"); /* what is no text is dropped */
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

/* A double-array trie with one entry, "A" -> "bb": the root's offset leads to 1 ^ 'A' = 0x40, the leaf to its value.
 */
static size_t make_charsmap(unsigned char *out) {
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
    assert_tokens(t, "bb?\xff?", 0, "4 2"); /* neighbours share one unknown token */
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

/* ---- Normalization ------------------------------------------------------------------------------------------- */

static void text_is_composed_for_models_that_want_it(void **state) {
    (void)state;
    tn_text out = {0};
    bool changed;
    assert_ok(tn__normalize_nfc("plain \xc3\xa9", 8, &out, &changed));
    assert_false(changed);
    assert_ok(tn__normalize_nfc("e\xcc\x81", 3, &out, &changed));
    assert_true(changed);
    assert_string_equal(out.bytes, "\xc3\xa9");
    assert_ok(tn__normalize_nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", 9, &out, &changed)); /* Hangul */
    assert_string_equal(out.bytes, "\xea\xb0\x81");
    /* Whatever the length, blocks are cut where it makes no difference. */
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
        assert_memory_equal(out.bytes, expected, length);
    }
    tn_text_free(&out);
    small *v = small_new("gpt2", "qwen2");
    add_bytes(v);
    tn_tokenizer *t = make(v);
    assert_tokens(t, "e\xcc\x81\xff", 0, "195 169 255");
    tn_tokenizer_free(t);
    free(v);
}

/* ---- Streams ------------------------------------------------------------------------------------------------- */

/* Valid UTF-8 as the standard recommends: U+FFFD for each maximal part that cannot go on. */
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
    OPEN_OR_SKIP(t, "gpt-2");
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
                              : (tn_token)rng_below(&r, 50256);
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

/* ---- Hostile text and files ---------------------------------------------------------------------------------- */

static void any_bytes_come_back_from_byte_level_vocabularies(void **state) {
    (void)state;
    OPEN_OR_SKIP(t, "gpt-2");
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
    for (size_t v = 0; v < TN__COUNT(vocabularies); v++) {
        OPEN_OR_SKIP(t, vocabularies[v]);
        for (size_t u = 0; u < TN__COUNT(units); u++) {
            size_t length = strlen(units[u]);
            for (size_t i = 0; i < size; i++) text[i] = units[u][i % length];
            tn_tokens ids = {0};
            uint64_t start = tn_time_ns();
            assert_ok(tn_tokenizer_encode(t, text, size, 0, &ids));
            /* 2.5 µs per byte is 25 s for 10 MB; what takes quadratic time takes far longer. */
            assert_true(tn_time_ns() - start < size * 2500 + 1000000000u);
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
    static const char *const unsupported[] = {"rwkv", "plamo2", "GPT2", "gpt2 "};
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

    /* The same tokens as every other kind. */
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
    v->source.special[TN_SPECIAL_UNK] = 0; /* as StarCoder's files say */
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
    DIR *dir = opendir(TENON_SOURCE_DIR "/tests/fuzz/corpus/tokenizer");
    assert_non_null(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[1024];
        size_t size;
        snprintf(path, sizeof path, TENON_SOURCE_DIR "/tests/fuzz/corpus/tokenizer/%s", entry->d_name);
        void *bytes = entry->d_name[0] == '.' ? NULL : read_file(path, &size);
        if (!bytes) continue;
        LLVMFuzzerTestOneInput(bytes, size);
        free(bytes);
        count++;
    }
    closedir(dir);
    tn_log_set(NULL, NULL, TN_LOG_WARN);
    assert_true(count > 10);
}

/* ---- Memory and threads -------------------------------------------------------------------------------------- */

static tn_status make_and_use(void *user) {
    const small *v = user;
    tn_tokenizer *t;
    TN_TRY(tn__tokenizer_from_source(&v->source, NULL, &t));
    tn_tokens ids = {0};
    tn_text text = {0};
    tn_detokenizer *d = NULL;
    char words[400];
    memset(words, 'a', sizeof words); /* long enough for both ways of merging */
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
    OPEN_OR_SKIP(t, "gpt-2");
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
        cmocka_unit_test(ids_are_those_of_the_reference),
        cmocka_unit_test(text_comes_back_from_merging_vocabularies),
        cmocka_unit_test(merging_equals_the_obvious_way),
        cmocka_unit_test(spm_equals_the_obvious_way),
        cmocka_unit_test(unigram_finds_the_best_segmentation),
        cmocka_unit_test(pre_tokenizers_cut_words_as_their_models_do),
        cmocka_unit_test(every_pre_tokenizer_keeps_all_bytes),
        cmocka_unit_test(unknown_pre_tokenizers_are_refused_unless_allowed),
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
        cmocka_unit_test(hostile_charsmaps_stay_within_bounds),
        cmocka_unit_test(text_is_composed_for_models_that_want_it),
        cmocka_unit_test(streams_are_valid_text_at_every_step),
        cmocka_unit_test(streams_wait_for_whole_characters),
        cmocka_unit_test(any_bytes_come_back_from_byte_level_vocabularies),
        cmocka_unit_test(hostile_text_takes_linear_time),
        cmocka_unit_test(malformed_vocabularies_are_refused_or_made_sense_of),
        cmocka_unit_test(a_missing_byte_never_ends_the_text),
        cmocka_unit_test(fuzz_corpus_is_survived),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

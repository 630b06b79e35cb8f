/* Tokenizers against reference ids, against slow and obvious versions of themselves, and against broken files. */
#include "support.h"

#include "base/hash.h"
#include "llm/tokenizer_internal.h"
#include "llm/utf8.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    bool same = got.count == count && memcmp(got.ids, ids, count * sizeof *ids) == 0;
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
    if (got.length != size || memcmp(got.bytes, text, size) != 0)
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_reference),
        cmocka_unit_test(text_comes_back_from_merging_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

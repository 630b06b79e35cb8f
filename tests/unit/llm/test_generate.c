/* Text generation: generators, stop strings, several sequences in one batch, tn_session_next, and the table of
 * architectures. */
#include "support.h"

#include "models/tiny_models.h"
#include "tenon/arch.h"
#include "tenon/generate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQUENCES = 3, TOKENS = 60 };
static const char prompt[] = "Once upon a time";

typedef struct fixture {
    tn_model *model;
    tn_session *session;
    size_t n_vocab;
} fixture;

static fixture open_tales(void) {
    fixture f;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 512;
    p.n_seqs = SEQUENCES;
    p.n_threads = 2;
    p.devices[0] = "cpu";
    assert_ok(tn_model_open(TENON_SOURCE_DIR "/models/tales.gguf", NULL, &f.model));
    assert_ok(tn_session_open(f.model, &p, &f.session));
    f.n_vocab = (size_t)tn_model_get_info(f.model).n_vocab;
    return f;
}

static void close_tales(fixture *f) {
    tn_session_free(f->session);
    tn_model_close(f->model);
}

static tn_sampler *new_sampler(const fixture *f, uint64_t seed) {
    tn_sampler_params p = tn_sampler_params_default();
    tn_sampler *sampler;
    p.seed = seed;
    assert_ok(tn_sampler_new(&p, f->n_vocab, &sampler));
    return sampler;
}

static void append(char *text, const char *piece) {
    assert_true(strlen(text) + strlen(piece) < 4096);
    strcat(text, piece);
}

/* The reference: one sequence with tn_session_next. */
static void write_with_session(fixture *f, uint64_t seed, int tokens, char *text) {
    tn_sampler *sampler = new_sampler(f, seed);
    tn_status status = TN_OK;
    text[0] = '\0';
    tn_session_clear(f->session);
    assert_ok(tn_session_prompt(f->session, 0, prompt, -1));
    for (int i = 0; i < tokens && status == TN_OK; i++) {
        tn_token token = -5;
        status = tn_session_next(f->session, 0, sampler, &token);
        assert_true(status == TN_OK ? token >= 0 : token == TN_TOKEN_NONE);
        append(text, tn_session_text(f->session, 0));
    }
    assert_true(status == TN_OK || status == TN_END);
    tn_sampler_free(sampler);
}

/* Up to `tokens` tokens of one generator on sequence 0. Returns the last status. */
static tn_status write_with_generator(fixture *f, tn_generator *g, int tokens, char *text) {
    tn_status status = TN_OK;
    text[0] = '\0';
    tn_session_clear(f->session);
    assert_ok(tn_session_prompt(f->session, 0, prompt, -1));
    for (int i = 0; i < tokens && status == TN_OK; i++) {
        size_t length;
        status = tn_generator_sample(g, f->session, -1);
        const char *piece = tn_generator_text(g, &length);
        assert_int_equal(strlen(piece), length);
        append(text, piece);
        const tn_token token = tn_generator_token(g);
        if (status == TN_OK) assert_ok(tn_session_decode(f->session, &(tn_batch){.n_tokens = 1, .tokens = &token}));
    }
    return status;
}

static void a_generator_writes_what_a_session_writes(void **state) {
    (void)state;
    fixture f = open_tales();
    for (uint64_t seed = 1; seed < 4; seed++) {
        char expected[4096], text[4096];
        write_with_session(&f, seed, TOKENS, expected);
        tn_sampler *sampler = new_sampler(&f, seed);
        tn_generator *g;
        assert_ok(tn_generator_new(tn_model_tokenizer(f.model),
                                   &(tn_generator_params){.sampler = sampler, .decode_flags = TN_DECODE_CONTINUE},
                                   &g));
        write_with_generator(&f, g, TOKENS, text);
        assert_string_equal(text, expected);
        assert_int_equal(tn_generator_stop(g), -1);
        tn_generator_free(g);
        tn_sampler_free(sampler);
    }
    close_tales(&f);
}

/* Any part of a text is a stop string that ends it right there, wherever tokens begin and end. */
static void a_stop_string_ends_the_text(void **state) {
    (void)state;
    fixture f = open_tales();
    char expected[4096], text[4096];
    write_with_session(&f, 7, TOKENS, expected);
    assert_true(strlen(expected) > 120);
    for (size_t at = 20; at < 100; at += 9) {
        char word[8], never[] = "\x01\x02", *stops[] = {never, word};
        snprintf(word, sizeof word, "%.*s", 7, expected + at);
        tn_sampler *sampler = new_sampler(&f, 7);
        tn_generator *g;
        tn_generator_params p = {.sampler = sampler,
                                 .decode_flags = TN_DECODE_CONTINUE,
                                 .stops = (const char *const *)stops,
                                 .n_stops = 2};
        assert_ok(tn_generator_new(tn_model_tokenizer(f.model), &p, &g));
        assert_int_equal(write_with_generator(&f, g, TOKENS, text), TN_END);
        const char *first = strstr(expected, word);
        assert_int_equal(strlen(text), first - expected);
        assert_memory_equal(text, expected, strlen(text));
        assert_int_equal(tn_generator_stop(g), 1);
        /* Once ended it stays ended, and samples nothing. */
        const int64_t count = tn_generator_count(g);
        assert_int_equal(tn_generator_sample(g, f.session, -1), TN_END);
        assert_string_equal(tn_generator_text(g, NULL), "");
        assert_string_equal(tn_generator_finish(g, NULL), "");
        assert_int_equal(tn_generator_count(g), count);
        tn_generator_free(g);
        tn_sampler_free(sampler);
    }
    close_tales(&f);
}

/* Text that could begin a stop string is held back, and comes out when the text is ended by a limit. */
static void finishing_releases_held_text(void **state) {
    (void)state;
    fixture f = open_tales();
    char expected[4096], text[4096];
    for (int tokens = 1; tokens < 30; tokens++) {
        write_with_session(&f, 3, tokens, expected);
        if (strlen(expected) < 3) continue;
        char word[16];
        snprintf(word, sizeof word, "%s~", expected + strlen(expected) - 3);
        const char *stop = word;
        tn_sampler *sampler = new_sampler(&f, 3);
        tn_generator *g;
        tn_generator_params p = {
            .sampler = sampler, .decode_flags = TN_DECODE_CONTINUE, .stops = &stop, .n_stops = 1};
        assert_ok(tn_generator_new(tn_model_tokenizer(f.model), &p, &g));
        assert_ok(write_with_generator(&f, g, tokens, text));
        assert_int_equal(strlen(text), strlen(expected) - 3);
        assert_int_equal(tn_generator_count(g), tokens);
        append(text, tn_generator_finish(g, NULL));
        assert_string_equal(text, expected);
        tn_generator_free(g);
        tn_sampler_free(sampler);
    }
    close_tales(&f);
}

/* Several sequences in one batch, each with its own generator, give the texts that each gives alone. */
static void generators_share_batches(void **state) {
    (void)state;
    fixture f = open_tales();
    char expected[SEQUENCES][4096], text[SEQUENCES][4096] = {{0}};
    tn_sampler *samplers[SEQUENCES];
    tn_generator *generators[SEQUENCES];
    tn_token tokens[SEQUENCES];
    int32_t seqs[SEQUENCES];
    bool ended[SEQUENCES] = {0};
    for (int i = 0; i < SEQUENCES; i++) write_with_session(&f, 11 + (uint64_t)i, TOKENS, expected[i]);
    tn_session_clear(f.session);
    for (int i = 0; i < SEQUENCES; i++) {
        samplers[i] = new_sampler(&f, 11 + (uint64_t)i);
        tn_generator_params p = {.sampler = samplers[i], .decode_flags = TN_DECODE_CONTINUE};
        assert_ok(tn_generator_new(tn_model_tokenizer(f.model), &p, &generators[i]));
        assert_ok(tn_session_prompt(f.session, i, prompt, -1));
        ended[i] = tn_generator_sample(generators[i], f.session, -1) != TN_OK;
        append(text[i], tn_generator_text(generators[i], NULL));
    }
    for (int step = 1; step < TOKENS; step++) {
        int32_t n = 0;
        for (int32_t i = 0; i < SEQUENCES; i++) {
            if (ended[i]) continue;
            tokens[n] = tn_generator_token(generators[i]);
            seqs[n++] = i;
        }
        if (n == 0) break;
        assert_ok(tn_session_decode(f.session, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs}));
        for (int32_t row = 0; row < n; row++) {
            ended[seqs[row]] = tn_generator_sample(generators[seqs[row]], f.session, row) != TN_OK;
            append(text[seqs[row]], tn_generator_text(generators[seqs[row]], NULL));
        }
    }
    for (int i = 0; i < SEQUENCES; i++) {
        assert_string_equal(text[i], expected[i]);
        tn_generator_free(generators[i]);
        tn_sampler_free(samplers[i]);
    }
    close_tales(&f);
}

/* A decode that fails leaves the token to be decoded by the next call. */
static void a_failed_decode_is_repeated(void **state) {
    (void)state;
    fixture f = open_tales();
    char expected[4096];
    tn_token token;
    write_with_session(&f, 5, 8, expected);
    tn_sampler *sampler = new_sampler(&f, 5);
    char text[4096] = "";
    tn_session_clear(f.session);
    assert_ok(tn_session_prompt(f.session, 0, prompt, -1));
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_session_next(f.session, 0, sampler, &token));
        append(text, tn_session_text(f.session, 0));
    }
    /* Another sequence fills the cache. */
    const int32_t cells = tn_session_get_params(f.session).n_ctx - tn_session_cache_usage(f.session).used;
    tn_token *filler = tn_calloc((size_t)cells, sizeof *filler);
    int32_t *seqs = tn_calloc((size_t)cells, sizeof *seqs);
    assert_non_null(filler);
    assert_non_null(seqs);
    for (int32_t i = 0; i < cells; i++) filler[i] = 300, seqs[i] = 1;
    assert_ok(tn_session_decode(f.session, &(tn_batch){.n_tokens = cells, .tokens = filler, .seqs = seqs}));
    assert_int_equal(tn_session_next(f.session, 0, sampler, &token), TN_E_FULL);
    assert_int_equal(tn_session_next(f.session, 0, sampler, &token), TN_E_FULL);
    assert_ok(tn_session_seq_remove(f.session, 1, 0, -1));
    for (int i = 4; i < 8; i++) {
        assert_ok(tn_session_next(f.session, 0, sampler, &token));
        append(text, tn_session_text(f.session, 0));
    }
    assert_string_equal(text, expected);
    tn_free(filler);
    tn_free(seqs);
    tn_sampler_free(sampler);
    close_tales(&f);
}

static void wrong_arguments_are_errors(void **state) {
    (void)state;
    fixture f = open_tales();
    tn_generator *g;
    const char *empty = "";
    const tn_tokenizer *tokenizer = tn_model_tokenizer(f.model);
    assert_int_equal(tn_generator_new(NULL, &(tn_generator_params){0}, &g), TN_E_INVALID);
    assert_int_equal(tn_generator_new(tokenizer, &(tn_generator_params){.stops = &empty, .n_stops = 1}, &g),
                     TN_E_INVALID);
    assert_null(g);
    tn_generator_free(NULL);
    assert_ok(tn_generator_new(tokenizer, &(tn_generator_params){0}, &g));
    assert_int_equal(tn_generator_token(g), TN_TOKEN_NONE);
    assert_int_equal(tn_generator_sample(g, f.session, 0), TN_E_INVALID); /* nothing was decoded */
    tn_generator_free(g);
    assert_int_equal(tn_session_next(f.session, SEQUENCES, NULL, NULL), TN_E_INVALID);
    assert_string_equal(tn_status_name(TN_END), "TN_END");
    close_tales(&f);
}

/* ---- Architectures ---- */

static tn_status count_tensor(void *user, const tn_arch_tensor *t) {
    assert_true(t->n_dims >= 1 && t->n_dims <= 4 && strlen(t->name) > 7);
    if (t->need == TN_ARCH_OPTIONAL) return TN_OK;
    for (int i = 0; i < t->n_dims; i++) assert_true(t->ne[i] > 0);
    ++*(size_t *)user;
    return TN_OK;
}

static void architectures_are_found_by_name_and_class(void **state) {
    (void)state;
    char path[] = "/tmp/tenon-arch-XXXXXX";
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    size_t n = 0;
    for (; tn_arch_at(n); n++) {
        const tn_arch *arch = tn_arch_at(n);
        assert_ptr_equal(tn_arch_find(arch->name), arch);
        for (const tn_arch_class *c = arch->classes; c->name; c++) {
            const tn_arch_class *found = NULL;
            const tn_arch *owner = tn_arch_find_class(c->name, &found);
            assert_non_null(owner);
            if (c->entry) continue; /* one of several architectures with this class */
            assert_ptr_equal(owner, arch);
            assert_ptr_equal(found, c);
        }
        /* The tensors of a file are those that follow from its metadata. */
        tn_gguf *file;
        size_t count = 0;
        assert_ok(tiny_model_write(path, &(tiny_options){.arch = arch->name}));
        assert_ok(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &file));
        assert_ok(tn_arch_tensors(file, count_tensor, &count));
        assert_int_equal(count, tn_gguf_tensor_count(file));
        tn_gguf_close(file);
    }
    unlink(path);
    assert_true(n >= 29);
    assert_null(tn_arch_find("no such architecture"));
    assert_null(tn_arch_find(NULL));
    assert_null(tn_arch_find_class("NoSuchClass", NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_generator_writes_what_a_session_writes),
        cmocka_unit_test(a_stop_string_ends_the_text),
        cmocka_unit_test(finishing_releases_held_text),
        cmocka_unit_test(generators_share_batches),
        cmocka_unit_test(a_failed_decode_is_repeated),
        cmocka_unit_test(wrong_arguments_are_errors),
        cmocka_unit_test(architectures_are_found_by_name_and_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

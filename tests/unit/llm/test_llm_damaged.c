/* Damaged models: every one is refused with a status and a text that names what is wrong. */
#include "models/reference_models.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static int set_up(void **state) {
    (void)state;
    strcpy(path, "/tmp/tenon-damaged-XXXXXX");
    int file = mkstemp(path);
    if (file >= 0) close(file);
    return file < 0;
}
static int tear_down(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

/* The model with changes, at `path`. */
static void change(const tn_gguf_copy_params *changes) {
    tn_gguf *file;
    assert_ok(tn_gguf_open(reference_path("llama-dense"), NULL, &file));
    assert_ok(tn_gguf_copy(file, path, changes));
    tn_gguf_close(file);
}

static void refused(tn_status expected, const char *says) {
    tn_model *model;
    tn_error_clear();
    tn_status status = tn_model_open(path, NULL, &model);
    if (status != expected || !strstr(tn_error(), says))
        fail_msg("expected %s with \"%s\", got %s: %s", tn_status_name(expected), says, tn_status_name(status),
                 tn_error());
    assert_null(model);
}

static void hostile_metadata(void **state) {
    (void)state;
    static const struct {
        const char *key;
        double value;
        tn_status status;
        const char *says;
    } cases[] = {
        {"llama.attention.head_count", 0, TN_E_FORMAT, "layer 0 has 0 heads"},
        {"llama.attention.head_count", 4294967295.0, TN_E_FORMAT, "heads"},
        {"llama.attention.head_count", 3, TN_E_FORMAT, "heads"},
        {"llama.attention.head_count_kv", 0, TN_E_FORMAT, "0 key/value heads"},
        {"llama.attention.head_count_kv", 1000000, TN_E_FORMAT, "key/value heads"},
        {"llama.block_count", 0, TN_E_FORMAT, "llama.block_count is 0"},
        {"llama.block_count", 2147483648.0, TN_E_FORMAT, "llama.block_count is 2147483648"},
        {"llama.block_count", 4294967295.0, TN_E_FORMAT, "llama.block_count"},
        {"llama.block_count", 60000, TN_E_FORMAT, "llama.block_count"},
        {"llama.block_count", 4, TN_E_FORMAT, "tensor 'blk.3.attn_norm.weight' is missing"},
        {"llama.block_count", 2, TN_E_FORMAT, "belongs to layer 2 of 2"},
        {"llama.embedding_length", 0, TN_E_FORMAT, "llama.embedding_length is 0"},
        {"llama.embedding_length", 4294967295.0, TN_E_FORMAT, "llama.embedding_length"},
        {"llama.embedding_length", 64, TN_E_SHAPE, "needs [64"},
        {"llama.context_length", 0, TN_E_FORMAT, "llama.context_length is 0"},
        {"llama.feed_forward_length", 100, TN_E_SHAPE, "blk.0.ffn_"},
        {"llama.feed_forward_length", 4294967295.0, TN_E_FORMAT, "feed-forward width"},
        {"llama.rope.dimension_count", 7, TN_E_FORMAT, "with 7 rotated"},
        {"llama.rope.dimension_count", 100000, TN_E_FORMAT, "with 100000 rotated"},
        {"llama.attention.key_length", 1000000, TN_E_FORMAT, "heads of 1000000"},
        {"llama.attention.key_length", 128, TN_E_SHAPE, "attn_q.weight"},
        {"llama.expert_count", 8, TN_E_FORMAT, "0 of 8 experts"},
        {"llama.expert_count", 2147483647.0, TN_E_FORMAT, "experts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_gguf_kv set = {.key = {cases[i].key, strlen(cases[i].key)},
                          .value = {.type = TN_GGUF_U32, .u = (uint64_t)cases[i].value}};
        change(&(tn_gguf_copy_params){.set = &set, .set_count = 1});
        refused(cases[i].status, cases[i].says);
    }
}

static void keys_of_the_wrong_kind_or_missing(void **state) {
    (void)state;
    static const char *const needed[] = {"general.architecture", "llama.block_count", "llama.embedding_length",
                                         "llama.context_length"};
    for (size_t i = 0; i < 4; i++) {
        change(&(tn_gguf_copy_params){.remove = &needed[i], .remove_count = 1});
        refused(TN_E_NOT_FOUND, needed[i]);
        tn_gguf_kv set = {.key = {needed[i], strlen(needed[i])}, .value = {.type = TN_GGUF_BOOL, .b = true}};
        change(&(tn_gguf_copy_params){.set = &set, .set_count = 1});
        refused(TN_E_FORMAT, needed[i]);
    }
    tn_gguf_kv set = {.key = {needed[0], strlen(needed[0])}, .value = {.type = TN_GGUF_STR, .str = {"elk", 3}}};
    change(&(tn_gguf_copy_params){.set = &set, .set_count = 1});
    refused(TN_E_UNSUPPORTED, "the architecture 'elk' is not supported; these are: llama");
}

static void missing_and_unknown_tensors(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
        tn_status status;
    } cases[] = {
        /* Renaming a tensor to one that is known and not used removes it. */
        {"blk.1.attn_k.weight", "x.input_scale", "tensor 'blk.1.attn_k.weight' is missing", TN_E_FORMAT},
        {"blk.2.ffn_down.weight", "x.input_scale", "tensor 'blk.2.ffn_down.weight' is missing", TN_E_FORMAT},
        {"blk.0.attn_norm.weight", "x.input_scale", "tensor 'blk.0.attn_norm.weight' is missing", TN_E_FORMAT},
        {"token_embd.weight", "x.input_scale", "tensor 'token_embd.weight' is missing", TN_E_FORMAT},
        {"output_norm.weight", "x.input_scale", "tensor 'output_norm.weight' is missing", TN_E_FORMAT},
        {"blk.1.ffn_gate.weight", "x.input_scale", "tensor 'blk.1.ffn_gate.weight' is missing", TN_E_FORMAT},
        {"blk.1.attn_v.weight", "x.input_scale", "tensor 'blk.1.attn_v.weight' is missing", TN_E_FORMAT},
        {"blk.1.attn_q.weight", "blk.1.attn_w.weight", "unknown tensor 'blk.1.attn_w.weight'", TN_E_UNSUPPORTED},
        {"blk.1.attn_q.weight", "blk.9.attn_q.weight", "belongs to layer 9 of 3", TN_E_FORMAT},
        {"blk.1.attn_q.weight", "blk.99999999999999999999.attn_q.weight", "unknown tensor", TN_E_UNSUPPORTED},
        {"blk.1.attn_norm.weight", "blk.1.attn_sinks.weight", "'blk.1.attn_sinks.weight' is [128", TN_E_SHAPE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_gguf_rename rename = {cases[i].from, cases[i].to};
        change(&(tn_gguf_copy_params){.rename = &rename, .rename_count = 1});
        refused(cases[i].status, cases[i].says);
    }
    /* Two tensors that swap names: both exist, neither has the right shape. */
    tn_gguf_rename swap[] = {{"blk.0.ffn_down.weight", "blk.0.ffn_up.weight"},
                             {"blk.0.ffn_up.weight", "blk.0.ffn_down.weight"}};
    change(&(tn_gguf_copy_params){.rename = swap, .rename_count = 2});
    refused(TN_E_SHAPE, "the llama architecture needs [");
}

static void a_vocabulary_of_the_wrong_size(void **state) {
    (void)state;
    char *texts[100];
    tn_gguf_str tokens[100];
    for (int i = 0; i < 100; i++) {
        texts[i] = malloc(16);
        tokens[i] = (tn_gguf_str){texts[i], (size_t)snprintf(texts[i], 16, "t%d", i)};
    }
    float scores[100] = {0};
    tn_gguf_kv set[] = {
        {.key = {"tokenizer.ggml.model", 20}, .value = {.type = TN_GGUF_STR, .str = {"llama", 5}}},
        {.key = {"tokenizer.ggml.tokens", 21}, .value = {.type = TN_GGUF_ARR, .arr = {tokens, 100, TN_GGUF_STR}}},
        {.key = {"tokenizer.ggml.scores", 21}, .value = {.type = TN_GGUF_ARR, .arr = {scores, 100, TN_GGUF_F32}}},
    };
    change(&(tn_gguf_copy_params){.set = set, .set_count = 3});
    refused(TN_E_SHAPE, "tensor 'token_embd.weight' is [128,128,1,1], the llama architecture needs [128,100]");
    for (int i = 0; i < 100; i++) free(texts[i]);
}

/* Writes four bytes into a tensor's data in the file. */
static void poke(const char *tensor, size_t element, float value) {
    tn_gguf *file;
    assert_ok(tn_gguf_open(path, NULL, &file));
    const tn_gguf_tensor *t = tn_gguf_find_tensor(file, tensor);
    assert_non_null(t);
    size_t offset = (size_t)t->file_offset + element * sizeof value;
    tn_gguf_close(file);
    int out = open(path, O_WRONLY);
    assert_true(out >= 0);
    assert_int_equal(pwrite(out, &value, sizeof value, (off_t)offset), sizeof value);
    close(out);
}

static void weights_that_are_no_numbers(void **state) {
    (void)state;
    static const struct {
        const char *tensor;
        size_t element;
        float value;
        const char *says;
    } cases[] = {
        {"blk.1.ffn_up.weight", 8193, NAN, "tensor 'blk.1.ffn_up.weight' is damaged: element 8193 is not a number"},
        {"output_norm.weight", 127, INFINITY, "tensor 'output_norm.weight' is damaged: element 127 is infinite"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        change(NULL);
        poke(cases[i].tensor, cases[i].element, cases[i].value);
        for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
            tn_model *model;
            tn_session *session;
            tn_session_params p = tn_session_params_default();
            p.n_ctx = 32;
            /* With check_weights: detected while loading. */
            assert_ok(tn_model_open(path, &(tn_model_params){.check_weights = true, .no_mmap = no_mmap}, &model));
            assert_fails(TN_E_FORMAT, tn_session_open(model, &p, &session));
            assert_non_null(strstr(tn_error(), cases[i].says));
            tn_model_close(model);
            /* Without: detected in the first result. */
            assert_ok(tn_model_open(path, &(tn_model_params){.no_mmap = no_mmap}, &model));
            assert_ok(tn_session_open(model, &p, &session));
            assert_fails(TN_E_NOT_FINITE,
                         tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = (tn_token[]){1, 2, 3}}));
            assert_non_null(strstr(tn_error(), "check"));
            tn_batch best = {.n_tokens = 3, .tokens = (tn_token[]){1, 2, 3}, .argmax = true};
            assert_fails(TN_E_NOT_FINITE, tn_session_decode(session, &best));
            assert_int_equal(tn_session_argmax(session, -1), -1);
            tn_session_free(session);
            tn_model_close(model);
        }
    }
    /* An undamaged model passes. */
    const char *healthy = golden_path("models/stories15M-f16.gguf");
    if (!healthy) return;
    tn_model *model;
    tn_session *session;
    assert_ok(tn_model_open(healthy, &(tn_model_params){.check_weights = true}, &model));
    assert_ok(tn_session_open(model, NULL, &session));
    tn_session_free(session);
    tn_model_close(model);
}

/* A file that is truncated after it was opened: loading reads it, mapped or not, so that is an error. */
static void a_file_cut_short_before_it_is_loaded(void **state) {
    (void)state;
    static const struct {
        bool no_mmap;
        const char *device;
    } cases[] = {{false, "sim:64M,name=cut"}, {true, "sim:64M,name=cut"}, {true, "cpu"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        change(NULL);
        tn_model *model;
        tn_session *session;
        tn_session_params p = tn_session_params_default();
        p.n_ctx = 32;
        p.devices[0] = cases[i].device;
        p.no_repack = true;
        assert_ok(tn_model_open(path, &(tn_model_params){.no_mmap = cases[i].no_mmap}, &model));
        const tn_gguf_tensor *tensor = tn_gguf_find_tensor(tn_model_file(model), "blk.2.ffn_down.weight");
        const size_t cut = (size_t)tensor->file_offset + tensor->size / 2;
        size_t size;
        char *whole = read_file(path, &size), byte[32];
        assert_int_equal(truncate(path, (off_t)cut), 0);
        assert_fails(TN_E_IO, tn_session_open(model, &p, &session));
        const uint64_t live = tn_memory_get_stats().live_bytes; /* a table of the model's stays */
        assert_fails(TN_E_IO, tn_session_open(model, &p, &session));
        assert_null(session);
        assert_int_equal(tn_memory_get_stats().live_bytes, live);
        snprintf(byte, sizeof byte, "byte %zu:", cut);
        if (!strstr(tn_error(), path) || !strstr(tn_error(), byte) || !strstr(tn_error(), "cut short"))
            fail_msg("%s, but byte %zu of %s was missing", tn_error(), cut, path);
        /* The restored file loads. */
        int out = open(path, O_WRONLY);
        assert_int_equal(pwrite(out, whole + cut, size - cut, (off_t)cut), size - cut);
        close(out);
        free(whole);
        assert_ok(tn_session_open(model, &p, &session));
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = (tn_token[]){1, 2, 3}}));
        tn_session_free(session);
        tn_model_close(model);
    }
}

static bool stop_halfway(void *user, size_t done, size_t total) {
    (*(int *)user)++;
    return done < total / 2;
}
static void loading_can_be_cancelled(void **state) {
    (void)state;
    change(NULL);
    static const char *const devices[] = {"sim:64M,name=cut", "cpu"};
    for (int i = 0; i < 2; i++) {
        tn_model *model;
        tn_session *session;
        int calls = 0;
        tn_session_params p = tn_session_params_default();
        p.n_ctx = 32;
        p.devices[0] = devices[i];
        p.progress = stop_halfway;
        p.user = &calls;
        assert_ok(tn_model_open(path, &(tn_model_params){.no_mmap = true}, &model));
        assert_fails(TN_E_ABORTED, tn_session_open(model, &p, &session));
        assert_in_range(calls, 2, (int)tn_gguf_tensor_count(tn_model_file(model)) / 2);
        p.progress = NULL;
        assert_ok(tn_session_open(model, &p, &session));
        tn_session_free(session);
        tn_model_close(model);
    }
}

static void senseless_sessions(void **state) {
    (void)state;
    change(NULL);
    tn_model *model;
    tn_session *session;
    assert_ok(tn_model_open(path, NULL, &model));
    for (int i = 0; i < 8; i++) {
        tn_session_params p = tn_session_params_default();
        if (i == 0) p.n_ctx = -1;
        if (i == 1) p.n_batch = -5;
        if (i == 2) p.n_ubatch = -1;
        if (i == 3) p.n_seqs = -1;
        if (i == 4) p.n_outputs = -1;
        if (i == 5) p.cache_k = TN_Q4_K;
        if (i == 7) p.n_seqs = INT32_MAX;
        if (i == 6) p.devices[0] = "cuda99";
        tn_status status = tn_session_open(model, &p, &session);
        assert_true(status == TN_E_INVALID || status == TN_E_TYPE || status == TN_E_NOT_FOUND);
        assert_null(session);
        assert_true(strlen(tn_error()) > 10);
    }
    tn_session_params p = tn_session_params_default();
    p.n_ctx = p.n_batch = p.n_ubatch = INT32_MAX; /* 2^31 cells: too big everywhere, before anything is taken */
    uint64_t live = tn_memory_get_stats().live_bytes;
    uint64_t peak = tn_memory_get_stats().peak_bytes;
    assert_fails(TN_E_TOO_BIG, tn_session_open(model, &p, &session));
    assert_true(tn_memory_get_stats().live_bytes <= live + 65536);
    if (peak < live + (64 << 20)) peak = live + (64 << 20); /* planning needs little memory, whatever the size */
    assert_true(tn_memory_get_stats().peak_bytes <= peak);
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_metadata),
        cmocka_unit_test(keys_of_the_wrong_kind_or_missing),
        cmocka_unit_test(missing_and_unknown_tensors),
        cmocka_unit_test(a_vocabulary_of_the_wrong_size),
        cmocka_unit_test(weights_that_are_no_numbers),
        cmocka_unit_test(a_file_cut_short_before_it_is_loaded),
        cmocka_unit_test(loading_can_be_cancelled),
        cmocka_unit_test(senseless_sessions),
    };
    return RUN_ON_TINY_MODELS(tests, set_up, tear_down);
}

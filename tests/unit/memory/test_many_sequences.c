/* Many sequences of odd lengths in one session: each row of logits has the bits of a session that holds that sequence
 * alone, through decodes, copies, removals and states. */
#include "support.h"

#include "models/tiny_models.h"
#include "tenon/llm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 64, PAGE = 8, MOST = 257, STEPS = 3 };

static char path[] = "/tmp/tenon-sequences-XXXXXX";
/* Numbers around the sizes of words and of pages. */
static const int32_t counts[] = {1, 2, 31, 32, 33, 64, 65, MOST};
static const int32_t lengths[] = {1, PAGE - 1, PAGE, PAGE + 1, 2, 2 * PAGE, 2 * PAGE + 1};

static int make_path(void **state) {
    (void)state;
    const int file = mkstemp(path);
    return file < 0 || close(file) != 0 ? -1 : 0;
}
static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static int32_t length_of(int32_t seq) { return lengths[(size_t)seq % (sizeof lengths / sizeof *lengths)]; }
static tn_token token_at(int32_t seq, int32_t position) { return (seq * 7 + position * 13 + seq * position) % VOCAB; }

static tn_session *open_session(tn_model *model, int32_t n_seqs) {
    tn_session_params p = tn_session_params_default();
    tn_session *session;
    p.devices[0] = "cpu";
    p.n_ctx = n_seqs * (2 * PAGE + 1 + STEPS);
    p.n_batch = p.n_ctx;
    p.n_ubatch = 64;
    p.n_seqs = n_seqs;
    p.n_outputs = n_seqs;
    p.page = PAGE;
    p.n_threads = 1;
    p.cache_k = p.cache_v = TN_F32;
    p.repeatable = true; /* how tokens are divided into batches makes no difference */
    assert_ok(tn_session_open(model, &p, &session));
    return session;
}

/* The last row of a sequence that is alone, after so many tokens. */
static const float *row_alone(tn_session *alone, int32_t seq, int32_t n) {
    tn_token tokens[64];
    for (int32_t i = 0; i < n; i++) tokens[i] = token_at(seq, i);
    tn_session_clear(alone);
    assert_ok(tn_session_decode(alone, &(tn_batch){.n_tokens = n, .tokens = tokens}));
    return tn_session_logits(alone, -1);
}

static void assert_row(tn_session *session, int32_t row, tn_session *alone, int32_t seq, int32_t n,
                       const char *what) {
    const float *here = tn_session_logits(session, row);
    assert_non_null(here);
    if (memcmp(here, row_alone(alone, seq, n), VOCAB * sizeof(float)) != 0)
        fail_msg("%s: sequence %d of %d tokens has other logits", what, seq, n);
}

/* Decodes one more token of each sequence that `wanted` has, in one batch; rows are in the order of sequences. */
static void step_all(tn_session *session, const int32_t *held, int32_t n_seqs, const bool *wanted) {
    static tn_token tokens[MOST];
    static int32_t seqs[MOST];
    int32_t n = 0;
    for (int32_t seq = 0; seq < n_seqs; seq++)
        if (wanted[seq]) {
            tokens[n] = token_at(seq, held[seq]);
            seqs[n++] = seq;
        }
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs}));
    assert_int_equal(tn_session_output_count(session), n);
}

/* Prompts of all sequences in one batch, interleaved: position by position. */
static void prompt_all(tn_session *session, int32_t n_seqs, tn_session *alone, const char *what) {
    static tn_token tokens[MOST * (2 * PAGE + 1)];
    static int32_t seqs[MOST * (2 * PAGE + 1)];
    int32_t n = 0, row = 0;
    static bool outputs[MOST * (2 * PAGE + 1)];
    static int32_t owners[MOST];
    for (int32_t position = 0; position <= 2 * PAGE; position++)
        for (int32_t seq = 0; seq < n_seqs; seq++)
            if (position < length_of(seq)) {
                tokens[n] = token_at(seq, position);
                outputs[n] = position == length_of(seq) - 1;
                if (outputs[n]) owners[row++] = seq;
                seqs[n++] = seq;
            }
    assert_ok(
        tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs, .outputs = outputs}));
    assert_int_equal(tn_session_output_count(session), n_seqs);
    for (int32_t i = 0; i < n_seqs; i += 1 + n_seqs / 16)
        assert_row(session, i, alone, owners[i], length_of(owners[i]), what);
    for (int32_t seq = 0; seq < n_seqs; seq++) {
        assert_int_equal(tn_session_seq_first(session, seq), 0);
        assert_int_equal(tn_session_seq_last(session, seq), length_of(seq) - 1);
    }
}

static void check_rows(tn_session *session, tn_session *alone, const int32_t *held, int32_t n_seqs,
                       const bool *wanted, const char *what) {
    int32_t row = 0;
    for (int32_t seq = 0; seq < n_seqs; seq++) {
        if (!wanted[seq]) continue;
        if (seq % (1 + n_seqs / 16) == 0 || seq + 1 == n_seqs) assert_row(session, row, alone, seq, held[seq], what);
        row++;
    }
}

/* The last sequence becomes another one's copy, and back from a saved state. */
static void copy_and_restore(tn_session *session, tn_session *alone, int32_t *held, int32_t n_seqs,
                             const char *what) {
    const int32_t last = n_seqs - 1;
    size_t size;
    bool only[MOST] = {0};
    if (n_seqs < 2) return;
    assert_ok(tn_session_state_size(session, last, &size));
    void *state = malloc(size);
    assert_ok(tn_session_state_get(session, last, state, size));
    assert_ok(tn_session_seq_remove(session, last, 0, -1));
    assert_int_equal(tn_session_seq_last(session, last), -1);
    assert_ok(tn_session_seq_copy(session, 0, last, 0, -1));
    assert_int_equal(tn_session_seq_last(session, last), held[0] - 1);
    const tn_token next = token_at(0, held[0]);
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &next, .seqs = &last}));
    assert_row(session, 0, alone, 0, held[0] + 1, what);
    assert_ok(tn_session_seq_remove(session, last, 0, -1));
    assert_ok(tn_session_state_set(session, last, state, size));
    free(state);
    only[last] = true;
    step_all(session, held, n_seqs, only);
    held[last]++;
    assert_row(session, 0, alone, last, held[last], what);
}

static void serve_many(const char *arch) {
    const tiny_options options = {.arch = arch, .layers = 2, .vocab = VOCAB, .context = 8192};
    tn_model *model;
    assert_ok(tiny_model_write(path, &options));
    assert_ok(tn_model_open(path, NULL, &model));
    tn_session *alone = open_session(model, 1);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        const int32_t n_seqs = counts[k];
        char what[64];
        static int32_t held[MOST];
        static bool wanted[MOST];
        snprintf(what, sizeof what, "%s, %d sequences", arch, n_seqs);
        tn_session *session = open_session(model, n_seqs);
        prompt_all(session, n_seqs, alone, what);
        for (int32_t seq = 0; seq < n_seqs; seq++) held[seq] = length_of(seq), wanted[seq] = true;
        step_all(session, held, n_seqs, wanted);
        for (int32_t seq = 0; seq < n_seqs; seq++) held[seq]++;
        check_rows(session, alone, held, n_seqs, wanted, what);
        copy_and_restore(session, alone, held, n_seqs, what);
        for (int32_t seq = 0; seq < n_seqs; seq++) { /* every third goes; the others go on */
            wanted[seq] = seq % 3 != 1;
            if (!wanted[seq]) assert_ok(tn_session_seq_remove(session, seq, 0, -1));
        }
        for (int32_t seq = 0; seq < n_seqs; seq++)
            assert_int_equal(tn_session_seq_last(session, seq), wanted[seq] ? held[seq] - 1 : -1);
        step_all(session, held, n_seqs, wanted);
        for (int32_t seq = 0; seq < n_seqs; seq++) held[seq] += wanted[seq];
        check_rows(session, alone, held, n_seqs, wanted, what);
        tn_session_free(session);
    }
    tn_session_free(alone);
    tn_model_close(model);
}

static void many_sequences_compute_what_each_does_alone(void **state) {
    (void)state;
    serve_many("llama");
}
static void many_windows_too(void **state) {
    (void)state;
    serve_many("gemma2");
}
static void many_recurrent_states_too(void **state) {
    (void)state;
    serve_many("mamba");
}

/* There is a free row for the state: kept prefixes stay. */
static void restoring_a_state_evicts_nothing(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "mamba"};
    for (int i = 0; i < 2; i++) {
        const tiny_options options = {.arch = archs[i], .layers = 2, .vocab = VOCAB};
        tn_session_params p = tn_session_params_default();
        tn_model *model;
        tn_session *session;
        tn_token tokens[PAGE];
        int32_t taken;
        size_t size;
        assert_ok(tiny_model_write(path, &options));
        assert_ok(tn_model_open(path, NULL, &model));
        p.devices[0] = "cpu";
        p.n_ctx = p.n_batch = 8 * PAGE;
        p.n_ubatch = 16;
        p.n_seqs = 2;
        p.n_prefixes = 4;
        p.page = PAGE;
        p.n_threads = 1;
        assert_ok(tn_session_open(model, &p, &session));
        for (int32_t seq = 0; seq < 2; seq++) {
            for (int32_t k = 0; k < PAGE; k++) tokens[k] = token_at(seq + 3, k);
            assert_ok(tn_session_prefix_take(session, seq, 1, tokens, 0, &taken));
            const int32_t seqs[PAGE] = {seq, seq, seq, seq, seq, seq, seq, seq};
            assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = PAGE, .tokens = tokens, .seqs = seqs}));
        }
        assert_ok(tn_session_state_size(session, 0, &size));
        void *saved = malloc(size);
        assert_ok(tn_session_state_get(session, 0, saved, size));
        assert_ok(tn_session_prefix_keep(session, 1));
        for (int32_t seq = 0; seq < 2; seq++) assert_ok(tn_session_seq_remove(session, seq, 0, -1));
        assert_int_equal(tn_session_prefix_usage(session).kept, 1);
        assert_ok(tn_session_state_set(session, 0, saved, size));
        assert_int_equal(tn_session_prefix_usage(session).kept, 1);
        assert_ok(tn_session_prefix_take(session, 1, 1, tokens, PAGE, &taken));
        assert_int_equal(taken, PAGE);
        char file[64]; /* the same through a file */
        snprintf(file, sizeof file, "%s.state", path);
        assert_ok(tn_session_save(session, 0, file));
        assert_ok(tn_session_seq_remove(session, 0, 0, -1));
        assert_ok(tn_session_load(session, 0, file));
        assert_int_equal(tn_session_seq_last(session, 0), PAGE - 1);
        assert_int_equal(unlink(file), 0);
        free(saved);
        tn_session_free(session);
        tn_model_close(model);
    }
}

static void sequences_that_do_not_exist_are_refused(void **state) {
    (void)state;
    tn_model *model;
    assert_ok(tiny_model_write(path, &(tiny_options){.vocab = VOCAB}));
    assert_ok(tn_model_open(path, NULL, &model));
    tn_session *session = open_session(model, 3);
    static const int32_t none[] = {-2, -1, 3, INT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char text[80];
        snprintf(text, sizeof text, "there is no sequence %d; the session has 0 to 2", none[i]);
        assert_fails(TN_E_INVALID, tn_session_seq_shift(session, none[i], 0, -1, 1));
        assert_string_equal(tn_error(), text);
        if (none[i] < 0) continue; /* removes from all */
        assert_fails(TN_E_INVALID, tn_session_seq_remove(session, none[i], 0, -1));
        assert_string_equal(tn_error(), text);
    }
    tn_session_free(session);
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_that_do_not_exist_are_refused),
        cmocka_unit_test(many_sequences_compute_what_each_does_alone),
        cmocka_unit_test(many_windows_too),
        cmocka_unit_test(many_recurrent_states_too),
        cmocka_unit_test(restoring_a_state_evicts_nothing),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}

/* A session that keeps prefixes beside a cold one that keeps none: what a sequence takes, and that it computes what
 * the cold one computes. prefix_cases.h and tier_cases.h make the sessions. */
#ifndef TN_TESTS_KEPT_CASES_H
#define TN_TESTS_KEPT_CASES_H

#include "support.h"

#include "models/reference_models.h"
#include "tenon/arch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Texts are shorter than the pool, so that layers with windows have pages of their own. */
enum { CONTEXT = 256, POOL = 2048, PAGE = 16, UBATCH = 32, VOCAB = 64 };

typedef struct kept_case {
    tn_model *model;
    tn_session *warm, *cold; /* with kept prefixes; without */
    tn_session_params params;
    bool windows;
    const char *name;
    bool exact; /* recurrent state: prefixes serve at their own length only */
} kept_case;

static inline tn_session_params kept_params(int32_t n_ctx, int32_t n_seqs, int32_t n_prefixes) {
    tn_session_params p = tn_session_params_default();
    p.devices[0] = "cpu";
    p.n_ctx = p.n_batch = n_ctx;
    p.n_ubatch = UBATCH;
    p.n_seqs = n_seqs;
    p.n_prefixes = n_prefixes;
    p.page = PAGE;
    p.n_threads = 1;
    p.cache_k = p.cache_v = TN_F32;
    p.repeatable = true; /* how tokens are divided into batches makes no difference */
    return p;
}

/* Writes the model to `path` and opens both sessions. */
static inline void open_kept(kept_case *c, const char *path, const tiny_options *options,
                             const tn_session_params *warm) {
    const tn_session_params cold = kept_params(POOL, warm->n_seqs, 0);
    assert_ok(tiny_model_write(path, options));
    *c = (kept_case){.name = options->arch, .params = *warm};
    assert_ok(tn_model_open(path, NULL, &c->model));
    assert_ok(tn_session_open(c->model, &c->params, &c->warm));
    assert_ok(tn_session_open(c->model, &cold, &c->cold));
    const int32_t window = tn_model_get_info(c->model).n_window;
    c->windows = window > 0 && window < POOL;
    c->exact = tn_model_get_info(c->model).is_recurrent;
}
static inline void close_kept(kept_case *c) {
    tn_session_free(c->warm);
    tn_session_free(c->cold);
    tn_model_close(c->model);
}

/* Text number `text`: the same tokens every time. */
static inline void make_text(tn_token *tokens, int32_t n, uint32_t text) {
    for (int32_t i = 0; i < n; i++) tokens[i] = (tn_token)((text * 2654435761u + (uint32_t)i * 40503u) >> 9) % 60 + 3;
}

/* With checkpoints after the lengths that `checkpoints` lists, up to a 0; NULL: none. */
static inline tn_status decode_with(tn_session *s, int32_t seq, const tn_token *tokens, int32_t from, int32_t to,
                                    const int32_t *checkpoints) {
    int32_t seqs[CONTEXT], positions[CONTEXT];
    bool flags[CONTEXT] = {0};
    for (int32_t i = from; i < to; i++) {
        seqs[i - from] = seq;
        positions[i - from] = i;
        for (const int32_t *c = checkpoints; c && *c; c++) flags[i - from] = flags[i - from] || *c == i + 1;
    }
    const tn_batch batch = {.n_tokens = to - from,
                            .tokens = tokens + from,
                            .seqs = seqs,
                            .positions = positions,
                            .checkpoints = checkpoints ? flags : NULL};
    return tn_session_decode(s, &batch);
}
static inline tn_status decode_from(tn_session *s, int32_t seq, const tn_token *tokens, int32_t from, int32_t to) {
    return decode_with(s, seq, tokens, from, to, NULL);
}

/* The last row of the warm session has the bits of a cold one that decodes all tokens: sessions are repeatable. */
static inline void compare_cold(kept_case *c, const tn_token *tokens, int32_t n, const char *what) {
    nmse error = {0};
    assert_ok(tn_session_seq_remove(c->cold, 0, 0, -1));
    assert_ok(decode_from(c->cold, 0, tokens, 0, n));
    nmse_add(&error, tn_session_logits(c->warm, -1), tn_session_logits(c->cold, -1), VOCAB);
    if (memcmp(tn_session_logits(c->warm, -1), tn_session_logits(c->cold, -1), VOCAB * sizeof(float)) != 0)
        fail_msg("%s, %s: other bits, NMSE %g", c->name, what, nmse_value(&error));
}

/* Begins the empty sequence with these tokens, as a cold one would. Returns how many were taken. */
static inline int32_t begin_sequence(kept_case *c, int32_t seq, uint64_t key, const tn_token *tokens, int32_t n,
                                     const char *what) {
    int32_t taken = -1;
    assert_ok(tn_session_prefix_take(c->warm, seq, key, tokens, n - 1, &taken));
    assert_true(taken >= 0 && taken < n);
    assert_int_equal(tn_session_seq_last(c->warm, seq), taken - 1);
    assert_ok(decode_from(c->warm, seq, tokens, taken, n));
    compare_cold(c, tokens, n, what);
    return taken;
}
static inline void end_sequence(kept_case *c, int32_t seq) {
    assert_ok(tn_session_prefix_keep(c->warm, seq));
    assert_ok(tn_session_seq_remove(c->warm, seq, 0, -1));
}

#endif

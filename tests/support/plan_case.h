/* Small models and sessions for the tests of session plans. */
#ifndef TENON_TESTS_PLAN_CASE_H
#define TENON_TESTS_PLAN_CASE_H

#include "models/tiny_models.h"
#include "support.h"

#include "tenon/llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UBATCH = 64 };

static char model_path[64], plan_path[80];

static inline tn_session_params small_params(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 2 * UBATCH;
    p.n_batch = p.n_ubatch = UBATCH;
    p.n_seqs = 2;
    p.n_threads = 1;
    p.devices[0] = device;
    return p;
}

static inline tn_model *open_tiny(const tiny_options *options) {
    tn_model *model;
    assert_ok(tiny_model_write(model_path, options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    return model;
}

static inline void decode_n(tn_session *session, int32_t n, bool argmax, bool all) {
    tn_token tokens[UBATCH];
    bool outputs[UBATCH];
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = (5 * i + n) % 60;
        outputs[i] = all || i + 1 == n;
    }
    tn_session_clear(session);
    assert_ok(tn_session_decode(session,
                                &(tn_batch){.n_tokens = n, .tokens = tokens, .outputs = outputs, .argmax = argmax}));
}

static inline int make_path(void **state) {
    (void)state;
    strcpy(model_path, "/tmp/tenon-plan-XXXXXX");
    int file = mkstemp(model_path);
    if (file >= 0) close(file);
    snprintf(plan_path, sizeof plan_path, "%s.plan", model_path);
    return file < 0;
}
static inline int remove_path(void **state) {
    (void)state;
    unlink(plan_path);
    return unlink(model_path);
}

#endif

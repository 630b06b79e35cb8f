/* Models with reference logits, for tests of sessions.
 *
 * Tests run on two sources of models, one after the other. Tiny models of every architecture are made by the test
 * itself; their reference is computed token by token on one thread with the generic kernels, in a process of its own.
 * Golden models come with logits of another program; where the golden folder is absent, that run is left out. */
#ifndef TN_TESTS_REFERENCE_MODELS_H
#define TN_TESTS_REFERENCE_MODELS_H

#include "support.h"

#include "models/tiny_models.h"
#include "tenon/llm.h"

typedef struct reference_model {
    char path[512];
    int32_t n_tokens, n_vocab;
    tn_token *tokens;
    float *logits; /* [n_tokens][n_vocab] */
    void *memory;
} reference_model;

/* ---- The source of the current run ---- */

/* Runs the tests on tiny models, then on golden ones if they are there. A program that uses a model below calls this
 * instead of cmocka_run_group_tests. With $TENON_LLM_FOLDER only the models of that folder are tested. */
#define RUN_ON_MODELS(tests, set_up, tear_down)                                                                      \
    run_on_models(true, tests, sizeof(tests) / sizeof *(tests), set_up, tear_down)
/* The same for tests that compare with no logits of others, to which golden models add little: they run on these only
 * with $TENON_LONG. */
#define RUN_ON_TINY_MODELS(tests, set_up, tear_down)                                                                 \
    run_on_models(getenv("TENON_LONG") != NULL, tests, sizeof(tests) / sizeof *(tests), set_up, tear_down)
int run_on_models(bool with_golden, const struct CMUnitTest *tests, size_t n_tests, CMFixtureFunction set_up,
                  CMFixtureFunction tear_down);

/* Names of all causal models of the source, NULL at the end. */
const char *const *reference_names(void);
/* By one of these names or by the name of a golden architecture ("llama-dense", "qwen3moe-moe"), which both sources
 * have. Tiny models have the golden ones' sizes: 3 layers or more, width 128, 2 heads, 128 tokens. */
void reference_load(const char *name, reference_model *m);
void reference_free(reference_model *m);
/* The file alone. Valid until the next call. */
const char *reference_path(const char *name);
bool reference_is_golden(void); /* of the current run */

/* ---- Golden models alone ---- */

extern const char *const golden_archs[]; /* NULL at the end */
/* By the path within the golden folder without its suffix; false if it is absent. */
bool golden_load(const char *relative, reference_model *m);

/* ---- Comparison ---- */

/* Sums of squared differences and of squared reference values over rows. */
typedef struct nmse {
    double error, scale;
} nmse;
void nmse_add(nmse *n, const float *got, const float *want, int32_t count);
double nmse_value(const nmse *n); /* NaN in `got` gives infinity */

#endif

/* Golden models: their reference logits and the comparison with a session's. */
#ifndef TN_TESTS_LLM_GOLDEN_H
#define TN_TESTS_LLM_GOLDEN_H

#include "support.h"

#include "tenon/llm.h"

typedef struct golden_model {
    char path[512];
    int32_t n_tokens, n_vocab;
    tn_token *tokens;
    float *logits; /* [n_tokens][n_vocab] */
    void *memory;
} golden_model;

/* The golden architectures, NULL at the end. */
extern const char *const golden_archs[];
/* What to test with, NULL at the end: the golden architectures ("archs/NAME"), or the models NAME.gguf with
 * NAME.logits beside them in the folder $TENON_LLM_FOLDER, as "/folder/NAME". */
const char *const *golden_models(void);

/* Loads one of them, by its name without the ending; false when the golden folder is absent. */
bool golden_load(const char *relative, golden_model *g);
void golden_free(golden_model *g);

/* Sums of squared differences and of squared reference values over rows. */
typedef struct nmse {
    double error, scale;
} nmse;
void nmse_add(nmse *n, const float *got, const float *want, int32_t count);
double nmse_value(const nmse *n); /* NaN in `got` gives infinity */

#endif

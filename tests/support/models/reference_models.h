/* Golden models: reference logits, and comparison with the logits of a session. */
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
/* The models to test, NULL at the end: the golden architectures ("archs/NAME"), or, as "/folder/NAME", the models
 * NAME.gguf with NAME.logits in the folder $TENON_LLM_FOLDER. */
const char *const *golden_models(void);

/* Loads one of them by its name without the suffix; false if the golden folder is absent. */
bool golden_load(const char *relative, golden_model *g);
void golden_free(golden_model *g);

/* Sums of squared differences and of squared reference values over rows. */
typedef struct nmse {
    double error, scale;
} nmse;
void nmse_add(nmse *n, const float *got, const float *want, int32_t count);
double nmse_value(const nmse *n); /* NaN in `got` gives infinity */

#endif

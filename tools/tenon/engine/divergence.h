/* How far the predictions of a model are from those of another: KL divergence, probabilities of the text's own
 * tokens, and agreement on the most likely token. */
#ifndef TENON_TOOL_DIVERGENCE_H
#define TENON_TOOL_DIVERGENCE_H

#include "tenon/base.h"

#include <stdio.h>

struct divergence {
    size_t count, capacity;
    float *kl;      /* of every scored token */
    float *p_delta; /* its probability minus that in the base */
    size_t same_top;
    double nll, nll2, base, base2, both; /* sums of -log p, squares, and of products with the base's */
};

tn_status divergence_new(size_t tokens, struct divergence *out); /* takes memory for this many */
void divergence_free(struct divergence *divergence);
/* One token: the model's logits, the base's log-probabilities, and the token that followed. */
void divergence_add(struct divergence *divergence, const float *logits, const float *base, int32_t n_vocab,
                    int32_t next);
/* Statistics; sorts the values. */
void divergence_print(struct divergence *divergence, FILE *out);
void divergence_print_json(struct divergence *divergence, FILE *out); /* members of an object, without braces */

#endif

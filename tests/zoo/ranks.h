/* Logits of several ranks against those of one. */
#ifndef TN_TESTS_ZOO_RANKS_H
#define TN_TESTS_ZOO_RANKS_H

#include "tenon/llm.h"

/* Divides the model among 2, 3 and 4 ranks, threads of this process, and prints the NMSE of each to the logits, or
 * the states of an encoder, of one rank: for `tokens` at once but the last quarter, then one by one. 0: all within
 * the bar, or the model is refused, which is printed; 1: one is above it; 2: an error. */
int zoo_run_ranks(const char *path, const tn_session_params *params, const tn_token *tokens, int32_t n_tokens,
                  bool by_layers, double bar);

#endif

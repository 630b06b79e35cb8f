/* Files of log-probabilities: what a model predicts for every scored token of a text, to compare another model with.
 *
 * The format is that of llama.cpp's --kl-divergence-base: "_logits_", three 32-bit numbers (tokens per chunk,
 * vocabulary, chunks), the tokens of all chunks, then a row for every token of the second half of a chunk that has a
 * successor. A row is two floats (step and minimum) and a 16-bit number for every token of the vocabulary, padded to
 * an even count: log p = step·number + minimum. Tokens more than e^16 times less likely than the first have number 0.
 */
#ifndef TENON_TOOL_LOG_PROBS_H
#define TENON_TOOL_LOG_PROBS_H

#include "tenon/base.h"
#include "tenon/token.h"

struct log_probs {
    int32_t n_ctx, n_vocab, n_chunks;
    tn_token *tokens; /* n_ctx of each chunk */
    struct log_probs_file *file;
};

/* Begins a file; it appears under its name when it is finished. `tokens` are written and not kept. */
tn_status log_probs_create(const char *path, int32_t n_ctx, int32_t n_vocab, int32_t n_chunks, const tn_token *tokens,
                           struct log_probs *out);
tn_status log_probs_append(struct log_probs *file, const float *logits);
tn_status log_probs_finish(struct log_probs *file);

/* Opens a file and reads its tokens; its size is checked against the numbers in it. */
tn_status log_probs_open(const char *path, struct log_probs *out);
tn_status log_probs_next(struct log_probs *file, float *row); /* n_vocab values */

void log_probs_close(struct log_probs *file); /* removes one that was not finished; an empty one is fine */

#endif

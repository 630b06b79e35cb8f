/* Collecting importance: sums of the squared inputs of every weight matrix while a model runs, and the file made of
 * them.
 *
 * The rows of all matrices are taken before anything runs. Sums are doubles: those of long texts lose nothing. */
#ifndef TENON_TOOL_IMPORTANCE_SUMS_H
#define TENON_TOOL_IMPORTANCE_SUMS_H

#include "tenon/gguf.h"
#include "tenon/tensor.h"

struct importance_sums;

/* Rows for the matrices in layers of a model file and, with `output`, for the one that gives the logits. */
tn_status importance_sums_new(const tn_gguf *model, bool output, struct importance_sums **out);
void importance_sums_free(struct importance_sums *sums);
size_t importance_sums_bytes(const struct importance_sums *sums); /* taken for all rows */

/* An eval callback of a session (tn_session_params.eval), with the sums as its user: adds the inputs of every
 * multiplication. A failure stops the run; importance_sums_status() has the cause. */
bool importance_sums_observe(void *sums, tn_tensor *node, bool ask);
tn_status importance_sums_status(const struct importance_sums *sums);

/* Adds the content of an importance file of the same model. */
tn_status importance_sums_add_file(struct importance_sums *sums, const char *path);

struct importance_note {
    const char *const *datasets; /* names of the texts */
    size_t dataset_count;
    uint32_t chunk_size; /* tokens that were processed together */
};
/* Writes the GGUF form. Matrices without any input are left out; `missing` receives their number, and `partial` that
 * of tensors some of whose experts had no input. */
tn_status importance_sums_write(const struct importance_sums *sums, const char *path,
                                const struct importance_note *note, size_t *missing, size_t *partial);

#endif

/* Runs one node on a stream, with its sources moved into that backend's memory, and checks it against the reference.
 */
#ifndef TN_TESTS_RUN_CASE_H
#define TN_TESTS_RUN_CASE_H

#include "reference.h"

#include "tenon/backend.h"

/* Runs `node` (sources in host memory, as random_case makes them) and returns the bytes of the result, which the
 * caller frees with free(). With in_place >= 0 the result takes the place of that source. The node and its sources
 * are as before afterwards. NULL when the device does not support the op. */
void *run_case(tn_stream *stream, tn_tensor *node, int in_place);
/* The same with source 0, which must be a whole leaf, as weights in memory of this type, where the device may arrange
 * them as it likes. NULL also when the device does not support that. */
void *run_case_with_weights(tn_stream *stream, tn_tensor *node, tn_buffer_type *weights);

/* Whether the result may take the place of source i: the device says so, and the source is a whole leaf of the same
 * layout that is used once. */
bool can_run_in_place(tn_stream *stream, const tn_tensor *node, int source);

/* Fails the test when `bytes` is too far from the reference. */
void check_case(const tn_tensor *node, const void *bytes, const char *where);

/* Multiplies every tolerance: a GPU multiplies block types as f16, and has its own exponentials. 1 unless set. */
extern double case_slack;

/* A line that describes a case: op, types, shapes. */
const char *describe_case(const tn_tensor *node);

#endif

/* Execution of one node on a stream, with its sources in the device's memory, and comparison with the reference. */
#ifndef TN_TESTS_RUN_CASE_H
#define TN_TESTS_RUN_CASE_H

#include "reference.h"

#include "tenon/backend.h"

/* Bytes of the result, and of the state after it that a recurrent op updates. */
size_t case_bytes(const tn_tensor *node);
/* Runs a node of random_case (sources in host memory) and returns these case_bytes(), which the caller frees with
 * free(). With in_place >= 0 the result is computed in place of that source. The node and its sources are
 * unchanged afterwards. NULL if the device does not support the op. */
void *run_case(tn_stream *stream, tn_tensor *node, int in_place);
/* The same with source 0, which must be a whole leaf, as weights in a buffer of this type, where the device may
 * repack them. NULL also if the device does not support that. */
void *run_case_with_weights(tn_stream *stream, tn_tensor *node, tn_buffer_type *weights);

/* Whether the node can be computed in place of source i: the device supports it, and the source is a whole leaf of
 * the same layout that is used once. */
bool can_run_in_place(tn_stream *stream, const tn_tensor *node, int source);

/* Fails the test if `bytes` is too far from the reference. */
void check_case(const tn_tensor *node, const void *bytes, const char *where);

/* Factor of all tolerances, 1 by default: a GPU multiplies block types as f16 and has less exact exponentials. */
extern double case_slack;

/* A line that describes a case: op, types, shapes. */
const char *describe_case(const tn_tensor *node);

#endif

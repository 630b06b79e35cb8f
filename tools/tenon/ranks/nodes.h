/* tenon plan --nodes: what ranks on machines that are described would take and reach. */
#ifndef TENON_TOOL_NODES_H
#define TENON_TOOL_NODES_H

#include "cli/cli.h"

#include "tenon/llm.h"

/* Prints memory per rank and predicted speed of both splits for 1, 2, 4 … all devices, and the best. Ranks of CPUs
 * with whole layers have micro-batches of RANKS_PIPELINED_UBATCH if `small_batches`. Returns an exit code, 3 where
 * nothing fits. */
int print_nodes_plan(const char *path, const char *nodes, const tn_model_params *model_params,
                     const tn_session_params *params, bool small_batches, FILE *out);

#endif

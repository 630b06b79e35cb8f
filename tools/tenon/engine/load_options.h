/* Options of how a model is loaded and on which threads it runs: mapping and locking of weights, processors,
 * priority, polling, memory nodes. */
#ifndef TENON_TOOL_LOAD_OPTIONS_H
#define TENON_TOOL_LOAD_OPTIONS_H

#include "cli/cli.h"

#include "tenon/cpu.h"
#include "tenon/llm.h"

extern const struct option_group load_options;

tn_model_params model_params_from(const struct args *args);
/* Parameters of the thread pool, which are checked. Returns an exit code. */
int thread_params_from(const struct args *args, tn_threadpool_params *params);
/* --numa: the memory policy of this thread and of those that it starts from now on. */
void apply_memory_policy(const struct args *args);
/* --mlock: keeps everything that is mapped now in memory, with a warning where that is not allowed. */
void lock_memory(const struct args *args);

#endif

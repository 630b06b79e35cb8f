/* LoRA adapters and control vectors: the options, and the opened files. */
#ifndef TENON_TOOL_ADAPTER_OPTIONS_H
#define TENON_TOOL_ADAPTER_OPTIONS_H

#include "cli/cli.h"

#include "tenon/llm.h"

extern const struct option_group adapter_options;

/* Adapters and control vectors that the options name, opened for one model. Adapters are numbered in the order of
 * --lora, then --lora-scaled. */
struct opened_adapters {
    tn_adapter_use adapters[TN_ADAPTERS_MOST];
    tn_control_use controls[TN_ADAPTERS_MOST];
    size_t n_adapters, n_controls;
};

/* Opens them and enters them into the parameters, which then point to `opened`. On failure nothing stays open. The
 * first works without a terminal: its message is tn_error(). */
tn_status adapters_open(const struct args *args, const tn_model *model, tn_session_params *params,
                        struct opened_adapters *opened);
void adapters_close(struct opened_adapters *opened); /* sessions first */

/* "FILE:SCALE": the length of the path and the scale; false without a scale that is a number. */
bool split_scaled_path(const char *text, size_t length, size_t *path_length, float *scale);

#endif

/* What commands that run a model share: their options, opening model and session, the sampler, the closing line. */
#ifndef TENON_TOOL_ENGINE_H
#define TENON_TOOL_ENGINE_H

#include "cli.h"

#include "tenon/llm.h"
#include "tenon/sampler.h"

extern const struct option_group engine_options;   /* context, batch, threads, cache types, devices */
extern const struct option_group sampling_options; /* seed, temperature, … */

/* Path of the model: the first positional argument, -m, or the default model's (next to the program, in the source
 * tree, or installed). NULL after a message when there is none. The result lives in `buffer`. */
const char *engine_model_path(const struct args *args, char *buffer, size_t size);

/* Session parameters from the options. Returns an exit code. */
int engine_session_params(const struct args *args, tn_session_params *params);
/* Opens the model and makes a session, with progress. On failure both are NULL and the message is printed. */
int engine_open(const struct args *args, const char *path, const tn_session_params *params, tn_model **model,
                tn_session **session);
/* A sampler as the options say; grammar and schema included. */
int engine_sampler(const struct args *args, const tn_model *model, tn_sampler **sampler);
/* "128 tokens, prompt 812.3 t/s, generation 44.1 t/s, memory planned 1.2 GiB = used 1.2 GiB" on standard error. */
void engine_closing_line(tn_session *session);

#endif

/* Sampling: the options that steer it, and samplers made from them. */
#ifndef TENON_TOOL_SAMPLING_H
#define TENON_TOOL_SAMPLING_H

#include "cli/cli.h"

#include "tenon/llm.h"
#include "tenon/sampler.h"

extern const struct option_group sampling_options; /* seed, temperature, …, grammar */

/* The parameters that the options say. */
void sampling_params(const struct args *args, tn_sampler_params *params);
/* Sets one parameter by its option's name, for people who change their mind. On failure `why` says what is wrong. */
bool sampling_set(tn_sampler_params *params, const char *name, const char *text, char *why, size_t size);
/* Prints every parameter that sampling_set knows, with its value. */
void sampling_print(FILE *out, const tn_sampler_params *params);

/* A sampler for the model, without a grammar. Returns an exit code, like the next. */
int sampling_new(const tn_sampler_params *params, const tn_model *model, tn_sampler **sampler);
/* Binds the sampler to the grammar or schema that the options name, if any. What is accepted from now on must obey
 * it, so the prompt is accepted before. */
int sampling_grammar(const struct args *args, const tn_model *model, tn_sampler *sampler);

#endif

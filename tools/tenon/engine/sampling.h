/* Sampling options, and the samplers made from them. */
#ifndef TENON_TOOL_SAMPLING_H
#define TENON_TOOL_SAMPLING_H

#include "cli/cli.h"

#include "tenon/llm.h"
#include "tenon/sampler.h"

extern const struct option_group sampling_options; /* seed, temperature, …, grammar */

/* Sampler parameters from the options, valid as long as these. Returns an exit code. */
int sampling_params(const struct args *args, tn_sampler_params *params);
/* Changes one parameter, named as its option is. On failure `why` says what is wrong. */
bool sampling_set(tn_sampler_params *params, const char *name, const char *text, char *why, size_t size);
/* Prints every parameter that sampling_set() accepts, with its value. */
void sampling_print(FILE *out, const tn_sampler_params *params);

/* A sampler for the model, without a grammar; --ignore-eos bans the tokens that end a text. Both return an exit code.
 */
int sampling_new(const struct args *args, const tn_sampler_params *params, const tn_model *model,
                 tn_sampler **sampler);
/* Binds the sampler to the grammar or schema that the options give, if any. Tokens accepted from then on must match
 * it, so accept the prompt first. */
int sampling_grammar(const struct args *args, const tn_model *model, tn_sampler *sampler);

#endif

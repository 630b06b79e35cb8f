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
/* Prints every parameter that sampling_set() accepts, with its value, or only one. False: there is no such. */
bool sampling_print(FILE *out, const tn_sampler_params *params, const char *only);

/* A sampler for the model, without a grammar; --ignore-eos bans the tokens that end a text. Both return an exit code.
 */
int sampling_new(const struct args *args, const tn_sampler_params *params, const tn_model *model,
                 tn_sampler **sampler);
/* The grammar or schema that the options give, as GBNF to be freed with tn_free(); NULL when they give none. Returns
 * an exit code. */
int sampling_grammar_text(const struct args *args, char **gbnf);
/* Binds the sampler to the grammar or schema that the options give, if any. Tokens accepted from then on must match
 * it, so accept the prompt first. */
int sampling_grammar(const struct args *args, const tn_model *model, tn_sampler *sampler);

#endif

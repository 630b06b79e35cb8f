/* Options of commands that run a model, and the session parameters made from them. */
#ifndef TENON_TOOL_MODEL_OPTIONS_H
#define TENON_TOOL_MODEL_OPTIONS_H

#include "cli/cli.h"

#include "tenon/llm.h"

#include <jansson.h>

extern const struct option_group model_options;    /* model, context, batch, threads, cache types, devices */
extern const struct option_group template_options; /* --chat-template, its variables, reasoning, --chat-format */

/* Variables that the options give to the template, as a JSON object. Returns an exit code. */
int template_variables(const struct args *args, json_t **variables);

/* Path of the model: --model, the first positional argument, or the default model beside the program, in the source
 * tree or installed. NULL after a message when there is none. The result may point into `buffer`. */
const char *find_model(const struct args *args, char *buffer, size_t size);
/* The same where another argument may follow: *question is NULL without one. */
const char *find_model_and_question(const struct args *args, const char **question, char *buffer, size_t size);

/* The format that --chat-format names, or NULL. Returns an exit code. */
/* --chat-template, a template or the name of one, or --chat-template-file; *text is NULL without either. */
int read_chat_template(const struct args *args, char **text);
int chat_format_from(const struct args *args, const char **format);
/* Largest logits that a GPU gives for sampling: enough for top-k 40, some penalties, and grammars that allow common
 * tokens. */
enum { SAMPLED_CANDIDATES = 256 };

/* Session parameters from the options; they are valid as long as `args`. Returns an exit code. */
int session_params_from(const struct args *args, tn_session_params *params);

/* "q8_0/q4_0", and "f16/f16 (windows q8_0/q8_0)" where layers with a window have other types. Returns `text`. */
enum { CACHE_TYPES_TEXT = 64 };
const char *cache_types_text(const tn_session_params *params, char text[CACHE_TYPES_TEXT]);

#endif

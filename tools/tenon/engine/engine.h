/* What commands that run a model share: their options, opening model and session, the closing line. */
#ifndef TENON_TOOL_ENGINE_H
#define TENON_TOOL_ENGINE_H

#include "cli/cli.h"

#include "engine/sampling.h"

extern const struct option_group engine_options;   /* context, batch, threads, cache types, devices */
extern const struct option_group template_options; /* --chat-template, --chat-template-file */

/* Path of the model: the first positional argument, -m, or the default model's (next to the program, in the source
 * tree, or installed). NULL after a message when there is none. The result lives in `buffer`. */
const char *engine_model_path(const struct args *args, char *buffer, size_t size);

/* The text that an option gives, or the file that its companion names; NULL where neither is given. The caller frees
 * it with free(). Returns an exit code. */
int engine_text(const struct args *args, const char *name, const char *file_name, char **text);

/* Session parameters from the options. Returns an exit code. */
int engine_session_params(const struct args *args, tn_session_params *params);
/* Makes the context no longer than what the model was trained for, unless the options or the caller asked for it. */
void engine_context(const struct args *args, const tn_model *model, tn_session_params *params);
/* Opens the model, plans its memory and makes a session with such a context, with progress. On failure both are NULL
 * and the message is printed. */
int engine_open(const struct args *args, const char *path, const tn_session_params *params, tn_model **model,
                tn_session **session);
/* For -v: what was loaded, where it lies and how long that took. */
void engine_log(const char *path, const tn_model *model, const tn_session *session, uint64_t began_ns);
/* How many tokens of a long prompt to read next, so that progress can be shown every few seconds: few at first
 * (last is 0), then as many as the last piece's time allows, at most a micro-batch, which is fastest. */
size_t engine_piece(const tn_session *session, size_t last, uint64_t last_ns);
/* Bytes on all devices: what was planned before engine_open made the session, what it takes, and how much of the
 * weights stays in the file's map, which is no memory of its own. False after a message. */
struct engine_memory {
    size_t planned, used, mapped;
};
bool engine_memory(tn_session *session, struct engine_memory *memory);
/* One line on standard error: "105 tokens, prompt 812.3 tokens/s, generation 44.1 tokens/s, memory planned 1.20 GiB =
 * used 1.20 GiB". */
void engine_closing_line(tn_session *session);

#endif

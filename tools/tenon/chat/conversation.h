/* A conversation at the terminal: tenon chat, and tenon run --conversation. */
#ifndef TENON_TOOL_CONVERSATION_H
#define TENON_TOOL_CONVERSATION_H

#include "cli/cli.h"

/* Rows of an option table. The command also has prompt, file, predict, and the options of models, templates, sampling
 * and context shift. */
#define OPTIONS_CONVERSATION                                                                                         \
    {.name = "system",                                                                                               \
     .letter = "sys",                                                                                                \
     .aliases = "--system-prompt",                                                                                   \
     .value = "TEXT",                                                                                                \
     .kind = OPTION_TEXT,                                                                                            \
     .help = "the system message"},                                                                                  \
        {.name = "system-file",                                                                                      \
         .letter = "sysf",                                                                                           \
         .aliases = "--system-prompt-file",                                                                          \
         .value = "FILE",                                                                                            \
         .kind = OPTION_TEXT,                                                                                        \
         .help = "read the system message from FILE"},                                                               \
        {.name = "single-turn",                                                                                      \
         .letter = "st",                                                                                             \
         .kind = OPTION_FLAG,                                                                                        \
         .help = "leave the conversation after the first reply"},                                                    \
        {.name = "reverse-prompt",                                                                                   \
         .letter = "r",                                                                                              \
         .value = "TEXT",                                                                                            \
         .kind = OPTION_TEXT,                                                                                        \
         .repeats = true,                                                                                            \
         .help = "end the text or the reply when the model writes this"},                                            \
        {.name = "escape",                                                                                           \
         .letter = "e",                                                                                              \
         .kind = OPTION_FLAG,                                                                                        \
         .fallback = "on",                                                                                           \
         .help = "replace \\n, \\t, \\\" and the like in -p, -sys and -r"},                                          \
        {.name = "show-timings",                                                                                     \
         .aliases = "--perf",                                                                                        \
         .kind = OPTION_FLAG,                                                                                        \
         .fallback = "on",                                                                                           \
         .help = "print tokens per second and memory at the end",                                                    \
         .env = "LLAMA_ARG_SHOW_TIMINGS LLAMA_ARG_PERF"},                                                            \
        {.name = "stats",                                                                                            \
         .kind = OPTION_FLAG,                                                                                        \
         .help =                                                                                                     \
             "print at the end how often guessed tokens were right, by their position, and the time they saved"},    \
    {                                                                                                                \
        .name = "simple-io", .kind = OPTION_FLAG, .help = "plain lines of input without editing, for other programs" \
    }

/* Returns an exit code. */
int converse_with(const struct args *args);

#endif

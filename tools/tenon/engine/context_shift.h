/* The options --context-shift and --keep: what happens when a text fills the context. */
#ifndef TENON_TOOL_CONTEXT_SHIFT_H
#define TENON_TOOL_CONTEXT_SHIFT_H

#include "cli/cli.h"

#include "tenon/llm.h"

/* Rows of an option table; `on` is "on" or NULL, `kept` the default of --keep. */
#define OPTIONS_CONTEXT_SHIFT(on, kept)                                                                              \
    {.name = "context-shift",                                                                                        \
     .kind = OPTION_FLAG,                                                                                            \
     .fallback = on,                                                                                                 \
     .help = "when the context is full, remove its older half and continue; otherwise the text ends there",          \
     .env = "LLAMA_ARG_CONTEXT_SHIFT"},                                                                              \
    {                                                                                                                \
        .name = "keep", .value = "N", .kind = OPTION_INT, .min = -1, .max = INT32_MAX, .fallback = kept,             \
        .help = "tokens at the beginning that --context-shift keeps, -1 for the prompt; at most three quarters of "  \
                "the context"                                                                                        \
    }

/* Whether texts go on when the context is full: as asked, with a note where the model cannot. */
bool context_shift_wanted(const struct args *args, const tn_session *session);
/* How many tokens a shift keeps: `keep`, or the prompt where that is negative; so few that the text can go on. */
int32_t context_shift_keep(int32_t keep, int32_t n_prompt, int32_t n_ctx);

#endif

/* Session parameters of tenon serve, which tenon plan --serve plans for as well. */
#ifndef TENON_TOOL_SERVING_PARAMS_H
#define TENON_TOOL_SERVING_PARAMS_H

#include "cli/cli.h"

#include "tenon/llm.h"

#define OPTION_CACHE_PREFIXES                                                                                        \
    {                                                                                                                \
        .name = "cache-prefixes", .value = "N", .kind = OPTION_INT, .min = 0, .max = 65536, .fallback = "256",       \
        .help =                                                                                                      \
            "max conversations kept in the KV cache for later requests, 0 for none; evicted when memory is needed"   \
    }

#define OPTIONS_CHECKPOINTS                                                                                          \
    {.name = "checkpoints",                                                                                          \
     .value = "N",                                                                                                   \
     .kind = OPTION_INT,                                                                                             \
     .min = 1,                                                                                                       \
     .max = 65536,                                                                                                   \
     .help = "max checkpoints of models with sliding windows or recurrent layers, where a later request can "        \
             "continue; four per slot without this option"},                                                         \
    {                                                                                                                \
        .name = "checkpoint-every", .value = "N", .kind = OPTION_INT, .min = -1, .max = INT32_MAX, .fallback = "0",  \
        .help = "tokens between checkpoints, besides those at the ends of messages; 0 for what --checkpoints "       \
                "allow, -1 for none"                                                                                 \
    }

/* Slots whose guesses a batch checks in full. */
#define GUESSING_SLOTS(n_slots) ((n_slots) < 8 ? (n_slots) : 8)

/* Makes session parameters those of a server with so many slots and the options above. */
void serving_params(tn_session_params *params, int32_t n_slots, const struct args *args);

#endif

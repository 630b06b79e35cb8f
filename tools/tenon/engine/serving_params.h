/* Session parameters of tenon serve, which tenon plan --serve plans for as well. */
#ifndef TENON_TOOL_SERVING_PARAMS_H
#define TENON_TOOL_SERVING_PARAMS_H

#include "cli/cli.h"

#include "tenon/llm.h"

#define OPTION_CACHE_PREFIXES                                                                                        \
    {                                                                                                                \
        .name = "cache-prefixes", .value = "N", .kind = OPTION_INT, .min = 0, .max = 65536, .fallback = "256",       \
        .help = "max conversations kept in the KV cache for later requests, 0 for none; unused ones make room"       \
    }

/* Makes session parameters those of a server with so many slots and kept prefixes. */
void serving_params(tn_session_params *params, int32_t n_slots, int32_t n_prefixes);

#endif

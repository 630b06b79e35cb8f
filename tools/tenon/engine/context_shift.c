/* The options --context-shift and --keep. */
#include "engine/context_shift.h"

bool context_shift_wanted(const struct args *args, const tn_session *session) {
    if (!args_flag(args, "context-shift")) return false;
    if (tn_session_can_shift(session)) return true;
    if (args_given(args, "context-shift"))
        warn("--context-shift is off: this model's cached tokens cannot move to other positions");
    return false;
}

int32_t context_shift_keep(int32_t keep, int32_t n_prompt, int32_t n_ctx) {
    const int32_t most = n_ctx - n_ctx / 4, wanted = keep < 0 ? n_prompt : keep;
    return wanted < most ? wanted : most;
}

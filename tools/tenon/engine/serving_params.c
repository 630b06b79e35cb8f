/* Session parameters of tenon serve. */
#include "engine/serving_params.h"

void serving_params(tn_session_params *p, int32_t n_slots, const struct args *args) {
    /* Rows of logits for prompts whose tokens are scored, beside one per slot. */
    enum { SCORED_ROWS = 64 };
    /* Those of a prompt and of the reply, of two conversations per slot. */
    enum { CHECKPOINTS = 4, BRANCHES_MOST = 1024 };
    const int32_t n_prefixes = (int32_t)args_int(args, "cache-prefixes");
    const int32_t wanted =
        args_given(args, "checkpoints") ? (int32_t)args_int(args, "checkpoints") : CHECKPOINTS * n_slots;
    p->n_seqs = n_slots;
    p->n_branches = p->n_branches * n_slots < BRANCHES_MOST ? p->n_branches * n_slots : BRANCHES_MOST;
    if (p->n_batch < n_slots) p->n_batch = n_slots;
    p->n_outputs = n_slots + SCORED_ROWS + p->n_guess * GUESSING_SLOTS(n_slots);
    p->n_prefixes = n_prefixes;
    p->n_checkpoints = n_prefixes < wanted ? n_prefixes : wanted;
    p->checkpoint_every = (int32_t)args_int(args, "checkpoint-every");
}

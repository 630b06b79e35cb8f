/* Session parameters of tenon serve. */
#include "engine/serving_params.h"

void serving_params(tn_session_params *p, int32_t n_slots, int32_t n_prefixes) {
    /* Rows of logits for prompts whose tokens are scored, beside one per slot. */
    enum { SCORED_ROWS = 64 };
    /* Kept prefixes of models with windows: those of a prompt and of the reply, of two conversations per slot. */
    enum { CHECKPOINTS = 4 };
    p->n_seqs = n_slots;
    if (p->n_batch < n_slots) p->n_batch = n_slots;
    p->n_outputs = n_slots + SCORED_ROWS;
    p->n_prefixes = n_prefixes;
    p->n_checkpoints = n_prefixes < CHECKPOINTS * n_slots ? n_prefixes : CHECKPOINTS * n_slots;
}

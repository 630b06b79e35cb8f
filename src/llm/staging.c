/* Staging: the host's arrays for a batch and for the inputs of one micro-batch. */
#include "llm/session_internal.h"

#include "base/checked.h"

tn_status tn__staging_new(const tn_session_params *p, bool pipelined, tn__staging *s) {
    const size_t n = (size_t)p->n_ubatch, b = (size_t)p->n_batch;
    const tn__shape largest = {TN__GRAPH_LOGITS, TN__MAX(p->n_ubatch, (int32_t)TN__MOVE_CELLS), p->n_ubatch};
    s->positions = tn_calloc(b, sizeof *s->positions);
    s->seqs = tn_calloc(b, sizeof *s->seqs);
    s->wanted = tn_calloc(b, sizeof *s->wanted);
    s->prompt_seqs = tn_calloc(b, sizeof *s->prompt_seqs);
    s->score_wanted = tn_calloc(b, sizeof *s->score_wanted);
    s->out_rows = tn_calloc(n, sizeof *s->out_rows);
    if (!s->positions || !s->seqs || !s->wanted || !s->prompt_seqs || !s->score_wanted || !s->out_rows)
        return TN_E_NOMEM;
    for (int g = 0; g < TN__CACHE_GROUPS; g++)
        if (!(s->rows[g] = tn_calloc(pipelined ? b : n, sizeof *s->rows[g]))) return TN_E_NOMEM;
    for (int i = 0; i < TN__INPUT_COUNT; i++)
        if (!(s->values[i] = tn_calloc(1, tn__input_bytes((tn__input)i, largest)))) return TN_E_NOMEM;
    return TN_OK;
}

void tn__staging_free(tn__staging *s) {
    tn_free(s->positions);
    tn_free(s->seqs);
    tn_free(s->wanted);
    tn_free(s->prompt_seqs);
    tn_free(s->score_wanted);
    tn_free(s->out_rows);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) tn_free(s->rows[g]);
    for (int i = 0; i < TN__INPUT_COUNT; i++) tn_free(s->values[i]);
}

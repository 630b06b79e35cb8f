/* Staging: the host's arrays for a batch and for the inputs of one micro-batch, in one block. */
#include "llm/session_internal.h"

#include "base/checked.h"

enum { STAGING_ALIGN = 64 };

/* Assigns the next part of the block to an array. Without a block only its size is counted. */
static void *take_part(char *block, size_t *used, size_t bytes) {
    void *part = block ? block + *used : NULL;
    *used += tn__align_up(bytes, STAGING_ALIGN);
    return part;
}

static size_t lay_out_staging(const tn_session_params *p, bool pipelined, int32_t width, char *block,
                              tn__staging *s) {
    const size_t n = (size_t)p->n_ubatch, b = (size_t)p->n_batch;
    const tn__shape largest = {TN__GRAPH_LOGITS, TN__MAX(p->n_ubatch, (int32_t)TN__MOVE_CELLS), p->n_ubatch,
                               tn__adapters_all(p->n_adapters)};
    size_t used = 0;
    s->positions = take_part(block, &used, b * sizeof *s->positions);
    s->seqs = take_part(block, &used, b * sizeof *s->seqs);
    s->lists = take_part(block, &used, (p->n_branches ? n : 0) * sizeof *s->lists);
    s->wanted = take_part(block, &used, b * sizeof *s->wanted);
    s->prompt_seqs = take_part(block, &used, b * sizeof *s->prompt_seqs);
    s->score_wanted = take_part(block, &used, b * sizeof *s->score_wanted);
    s->out_rows = take_part(block, &used, n * sizeof *s->out_rows);
    for (int g = 0; g < TN__CACHE_GROUPS; g++)
        s->rows[g] = take_part(block, &used, (pipelined ? b : n) * sizeof *s->rows[g]);
    s->steps = take_part(block, &used, (pipelined ? b : n) * sizeof *s->steps);
    s->scales = take_part(block, &used, (size_t)p->n_seqs * p->n_adapters * sizeof *s->scales);
    for (int i = 0; i < TN__INPUT_COUNT; i++)
        s->values[i] = take_part(block, &used, tn__input_bytes((tn__input)i, largest, width));
    return used;
}

size_t tn__staging_bytes(const tn_session_params *p, bool pipelined, int32_t width) {
    tn__staging ignored;
    return lay_out_staging(p, pipelined, width, NULL, &ignored);
}

tn_status tn__staging_new(const tn_session_params *p, bool pipelined, int32_t width, tn__staging *s) {
    s->bytes = tn__staging_bytes(p, pipelined, width);
    s->block = tn_calloc(1, s->bytes);
    if (!s->block) return TN_E_NOMEM;
    lay_out_staging(p, pipelined, width, s->block, s);
    return TN_OK;
}

void tn__staging_free(tn__staging *s) { tn_free(s->block); }

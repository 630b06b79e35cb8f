/* Embeddings: which rows a batch needs, and how the hidden states of a sequence become one. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

tn_status tn__pool_params(const tn_model *m, tn_session_params *p) {
    const tn__hparams *h = &m->h;
    if (!h->causal) p->embeddings = true;
    if (!p->embeddings) return TN_OK;
    if (p->pooling == TN_POOLING_MODEL) p->pooling = h->pooling;
    if (p->pooling == TN_POOLING_MODEL) p->pooling = h->causal ? TN_POOLING_LAST : TN_POOLING_MEAN;
    if (p->pooling < TN_POOLING_NONE || p->pooling > TN_POOLING_RANK)
        return tn_fail(TN_E_INVALID, "%d is no kind of pooling", (int)p->pooling);
    if (p->pooling == TN_POOLING_RANK && !m->w.cls_out)
        return tn_fail(TN_E_UNSUPPORTED, "%s has no classifier (cls.output.weight) to rank with",
                       tn_gguf_path(m->file));
    return TN_OK;
}

/* Every token's state is needed. */
static bool all_rows(const tn_session *s) {
    return s->params.embeddings && (s->params.pooling == TN_POOLING_NONE || s->params.pooling == TN_POOLING_MEAN);
}

tn__graph_kind tn__session_kind(const tn_session *s) {
    if (!s->params.embeddings) return TN__GRAPH_LOGITS;
    return s->params.pooling == TN_POOLING_RANK ? TN__GRAPH_RANK : TN__GRAPH_HIDDEN;
}
int32_t tn__rows_out(const tn_session *s, int32_t n_tokens) {
    return all_rows(s) ? n_tokens : TN__MIN(n_tokens, s->params.n_outputs);
}
int32_t tn__outputs_for(const tn_session *s, int32_t n_wanted, int32_t n_tokens) {
    return all_rows(s) ? n_tokens : tn__round_outputs(n_wanted, tn__rows_out(s, n_tokens));
}

tn_status tn__pool_new(tn_session *s) {
    tn__pool *p = &s->pool;
    size_t rows = (size_t)(s->params.pooling == TN_POOLING_NONE ? s->params.n_outputs : s->params.n_seqs), count,
           hidden;
    p->size = s->params.pooling == TN_POOLING_RANK ? (int32_t)s->model->w.cls_out->ne[1] : s->model->h.n_embd;
    if (!tn__mul_size(rows, (size_t)p->size, &count) ||
        !tn__mul_size((size_t)s->params.n_ubatch, (size_t)p->size, &hidden))
        return tn_fail(TN_E_OVERFLOW, "the embeddings' size overflows");
    p->rows = tn_calloc(count, sizeof *p->rows);
    p->hidden = tn_calloc(hidden, sizeof *p->hidden);
    p->row_of = tn_calloc((size_t)s->params.n_seqs, sizeof *p->row_of);
    p->counts = tn_calloc((size_t)s->params.n_seqs, sizeof *p->counts);
    return p->rows && p->hidden && p->row_of && p->counts ? TN_OK : TN_E_NOMEM;
}

void tn__pool_free(tn_session *s) {
    tn_free(s->pool.rows);
    tn_free(s->pool.hidden);
    tn_free(s->pool.row_of);
    tn_free(s->pool.counts);
}

void tn__pool_start(tn_session *s) {
    for (int32_t i = 0; i < s->params.n_seqs; i++) s->pool.row_of[i] = -1;
}

bool tn__pool_wants(const tn_session *s, const tn_batch *b, int32_t i) {
    int32_t seq = s->seqs[i];
    bool first = s->params.pooling == TN_POOLING_CLS || (s->params.pooling == TN_POOLING_RANK && !s->model->h.causal);
    if (all_rows(s) && s->params.pooling == TN_POOLING_MEAN) return true;
    if (!s->params.embeddings || s->params.pooling == TN_POOLING_NONE) {
        if (b->outputs) return b->outputs[i];
        if (s->params.embeddings) return true;
    } else if (first) {
        for (int32_t k = i - 1; k >= 0; k--)
            if (s->seqs[k] == seq) return false;
        return true;
    }
    for (int32_t k = i + 1; k < b->n_tokens; k++)
        if ((b->seqs ? b->seqs[k] : 0) == seq) return false;
    return true;
}

tn_status tn__pool_take(tn_session *s, const tn__graph_set *set, int32_t begin, int32_t n, int32_t kept) {
    tn__pool *p = &s->pool;
    size_t size = (size_t)p->size;
    if (!kept) return TN_OK;
    int32_t count = set->out_rows ? kept : n;
    TN_TRY(tn_tensor_get_at(set->result, p->hidden, 0, (size_t)count * size * sizeof(float)));
    for (int32_t i = 0; i < kept; i++) {
        const float *state = p->hidden + (size_t)(set->out_rows ? i : s->out_rows[i]) * size;
        int32_t seq = s->seqs[begin + s->out_rows[i]];
        int32_t row = s->params.pooling == TN_POOLING_NONE ? -1 : p->row_of[seq];
        if (row < 0) {
            row = s->n_results++;
            memcpy(p->rows + (size_t)row * size, state, size * sizeof(float));
            if (s->params.pooling == TN_POOLING_NONE) continue;
            p->row_of[seq] = row;
            p->counts[row] = 1;
            continue;
        }
        float *sum = p->rows + (size_t)row * size;
        for (size_t k = 0; k < size; k++) sum[k] += state[k];
        p->counts[row]++;
    }
    return TN_OK;
}

void tn__pool_finish(tn_session *s) {
    tn__pool *p = &s->pool;
    if (s->params.pooling != TN_POOLING_MEAN) return;
    for (int32_t row = 0; row < s->n_results; row++)
        for (int32_t k = 0; k < p->size; k++)
            p->rows[(size_t)row * (size_t)p->size + (size_t)k] /= (float)p->counts[row];
}

float *tn_session_embedding(tn_session *s, int32_t i) {
    if (!s || !s->params.embeddings) return NULL;
    if (i < 0) i += s->n_results;
    return i >= 0 && i < s->n_results ? s->pool.rows + (size_t)i * (size_t)s->pool.size : NULL;
}
int32_t tn_session_embedding_size(const tn_session *s) { return s ? s->pool.size : 0; }

void tn_embedding_normalize(float *row, int32_t n, int32_t norm) {
    double sum = 0;
    if (!row || norm < 0) return;
    for (int32_t i = 0; i < n; i++) {
        double x = fabs((double)row[i]);
        if (norm == 0)
            sum = x > sum ? x : sum;
        else
            sum += norm == 1 ? x : norm == 2 ? x * x : pow(x, norm);
    }
    if (norm == 0) sum /= 32760;
    if (norm == 2) sum = sqrt(sum);
    if (norm > 2) sum = pow(sum, 1.0 / norm);
    if (!(sum > 0)) return;
    for (int32_t i = 0; i < n; i++) row[i] = (float)((double)row[i] / sum);
}

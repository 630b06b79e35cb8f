/* Embeddings: which rows a batch needs, and how the hidden states of a sequence become one vector. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

/* ---- What graphs compute ---- */

tn_status tn__pooling_params(const tn_model *m, tn_session_params *p) {
    const tn__hparams *h = &m->h;
    if (!h->causal && !tn__arch_has(m->arch, TN_ARCH_DIFFUSION)) p->embeddings = true;
    if (!p->embeddings) return TN_OK;
    if (p->pooling == TN_POOLING_MODEL) p->pooling = h->pooling;
    if (p->pooling == TN_POOLING_MODEL) p->pooling = h->causal ? TN_POOLING_LAST : TN_POOLING_MEAN;
    if (p->pooling < TN_POOLING_NONE || p->pooling > TN_POOLING_RANK)
        return tn_fail(TN_E_INVALID, "unknown pooling %d", (int)p->pooling);
    if (p->pooling == TN_POOLING_RANK && !m->w.cls_out)
        return tn_fail(TN_E_UNSUPPORTED, "%s has no classifier (cls.output.weight) to rank with",
                       tn_gguf_path(m->file));
    if (p->pooling == TN_POOLING_RANK && h->classifies_mean)
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s: classifiers of the mean of all states are not supported; only those of the first one are",
                       tn_gguf_path(m->file));
    return TN_OK;
}

/* Whether the states of all tokens are needed. */
static bool needs_all_rows(const tn_session_params *p) {
    return p->embeddings && (p->pooling == TN_POOLING_NONE || p->pooling == TN_POOLING_MEAN);
}

tn__graph_kind tn__token_graph_kind(const tn_session_params *p) {
    if (!p->embeddings) return TN__GRAPH_LOGITS;
    return p->pooling == TN_POOLING_RANK ? TN__GRAPH_RANK : TN__GRAPH_HIDDEN;
}
int32_t tn__max_outputs(const tn_session_params *p, int32_t n_tokens) {
    return needs_all_rows(p) ? n_tokens : TN__MIN(n_tokens, p->n_outputs);
}
int32_t tn__outputs_for(const tn_session_params *p, int32_t n_wanted, int32_t n_tokens) {
    return needs_all_rows(p) ? n_tokens : tn__round_outputs(n_wanted, tn__max_outputs(p, n_tokens));
}

bool tn__wants_row(const tn_session *s, const tn_batch *b, int32_t i) {
    const tn_session_params *p = &s->plan->params;
    const int32_t *seqs = s->staging.seqs, seq = seqs[i];
    bool first = p->pooling == TN_POOLING_CLS || (p->pooling == TN_POOLING_RANK && !s->plan->model->h.causal);
    if (p->embeddings && p->pooling == TN_POOLING_MEAN) return true;
    if (!p->embeddings || p->pooling == TN_POOLING_NONE) {
        if (b->outputs) return b->outputs[i];
        if (p->embeddings) return true;
    } else if (first) {
        for (int32_t k = i - 1; k >= 0; k--)
            if (seqs[k] == seq) return false;
        return true;
    }
    for (int32_t k = i + 1; k < b->n_tokens; k++)
        if ((b->seqs ? b->seqs[k] : 0) == seq) return false;
    return true;
}

/* ---- Pooling ---- */

static int32_t embedding_size(const tn_session_plan *p) {
    return p->params.pooling == TN_POOLING_RANK ? (int32_t)p->model->w.cls_out->ne[1] : p->model->h.n_embd;
}

/* Floats of the results and of one micro-batch. */
static tn_status count_embeddings(const tn_session_plan *p, size_t *results, size_t *hidden) {
    const tn_session_params *params = &p->params;
    const size_t rows = (size_t)(params->pooling == TN_POOLING_NONE ? params->n_outputs : params->n_seqs);
    const size_t size = (size_t)embedding_size(p), most = SIZE_MAX / sizeof(float) / 4;
    if (!tn__mul_size(rows, size, results) || !tn__mul_size((size_t)params->n_ubatch, size, hidden) ||
        *results > most || *hidden > most)
        return tn_fail(TN_E_OVERFLOW, "the embeddings' size overflows");
    return TN_OK;
}

tn_status tn__embeddings_bytes(const tn_session_plan *p, size_t *bytes) {
    size_t results = 0, hidden = 0;
    *bytes = 0;
    if (!p->params.embeddings) return TN_OK;
    TN_TRY(count_embeddings(p, &results, &hidden));
    *bytes = (results + hidden) * sizeof(float) + 2 * (size_t)p->params.n_seqs * sizeof(int32_t);
    return TN_OK;
}

tn_status tn__embeddings_new(const tn_session_plan *p, tn__embeddings *e) {
    const tn_session_params *params = &p->params;
    size_t count = 0, hidden = 0;
    TN_TRY(count_embeddings(p, &count, &hidden));
    TN_TRY(tn__embeddings_bytes(p, &e->bytes));
    e->size = embedding_size(p);
    e->rows = tn_calloc(count, sizeof *e->rows);
    e->hidden = tn_calloc(hidden, sizeof *e->hidden);
    e->row_of = tn_calloc((size_t)params->n_seqs, sizeof *e->row_of);
    e->counts = tn_calloc((size_t)params->n_seqs, sizeof *e->counts);
    return e->rows && e->hidden && e->row_of && e->counts ? TN_OK : TN_E_NOMEM;
}

void tn__embeddings_free(tn__embeddings *e) {
    tn_free(e->rows);
    tn_free(e->hidden);
    tn_free(e->row_of);
    tn_free(e->counts);
}

void tn__embeddings_begin(tn_session *s) {
    for (int32_t i = 0; i < s->plan->params.n_seqs; i++) s->embeddings.row_of[i] = -1;
}

tn_status tn__embeddings_take(tn_session *s, const tn__graph_set *set, int32_t begin, int32_t n, int32_t kept) {
    tn__embeddings *e = &s->embeddings;
    const int32_t *out_rows = s->staging.out_rows;
    const bool pools = s->plan->params.pooling != TN_POOLING_NONE,
               gathered = tn__input_tensor(&set->inputs, TN__INPUT_OUTPUT_ROWS) != NULL;
    size_t size = (size_t)e->size;
    if (!kept) return TN_OK;
    TN_TRY(tn_tensor_get_at(set->result, e->hidden, 0, (size_t)(gathered ? kept : n) * size * sizeof(float)));
    for (int32_t i = 0; i < kept; i++) {
        const float *state = e->hidden + (size_t)(gathered ? i : out_rows[i]) * size;
        int32_t seq = s->staging.seqs[begin + out_rows[i]];
        int32_t row = pools ? e->row_of[seq] : -1;
        if (row < 0) {
            row = s->results.n++;
            memcpy(e->rows + (size_t)row * size, state, size * sizeof(float));
            if (!pools) continue;
            e->row_of[seq] = row;
            e->counts[row] = 1;
            continue;
        }
        float *sum = e->rows + (size_t)row * size;
        for (size_t k = 0; k < size; k++) sum[k] += state[k];
        e->counts[row]++;
    }
    return TN_OK;
}

void tn__embeddings_finish(tn_session *s) {
    tn__embeddings *e = &s->embeddings;
    if (s->plan->params.pooling != TN_POOLING_MEAN) return;
    for (int32_t row = 0; row < s->results.n; row++)
        for (int32_t k = 0; k < e->size; k++)
            e->rows[(size_t)row * (size_t)e->size + (size_t)k] /= (float)e->counts[row];
}

float *tn_session_embedding(tn_session *s, int32_t i) {
    if (!s || !s->plan->params.embeddings) return NULL;
    if (i < 0) i += s->results.n;
    return i >= 0 && i < s->results.n ? s->embeddings.rows + (size_t)i * (size_t)s->embeddings.size : NULL;
}
int32_t tn_session_embedding_size(const tn_session *s) { return s ? s->embeddings.size : 0; }

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

/* Decoding batches: micro-batches through the graph of their size, results row by row. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include "tenon/cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Fills positions, sequences and wanted rows of the whole batch, and refuses what makes no sense. */
static tn_status read_batch(tn_session *s, const tn_batch *b, int32_t *n_wanted) {
    if (b->n_tokens < 1 || b->n_tokens > s->params.n_batch || !b->tokens)
        return tn_fail(TN_E_INVALID, "a batch has 1 to %d tokens, not %d", s->params.n_batch, b->n_tokens);
    *n_wanted = 0;
    for (int32_t i = 0; i < b->n_tokens; i++) {
        int32_t seq = b->seqs ? b->seqs[i] : 0;
        if (seq < 0 || seq >= s->params.n_seqs)
            return tn_fail(TN_E_INVALID, "token %d belongs to sequence %d of %d", i, seq, s->params.n_seqs);
        if (b->tokens[i] < 0 || b->tokens[i] >= s->model->h.n_vocab)
            return tn_fail(TN_E_INVALID, "token %d is %d; the vocabulary has %d", i, b->tokens[i],
                           s->model->h.n_vocab);
        s->seqs[i] = seq;
        if (b->positions) {
            if (b->positions[i] < 0) return tn_fail(TN_E_INVALID, "token %d has position %d", i, b->positions[i]);
            s->positions[i] = b->positions[i];
        } else {
            int32_t last = -1;
            for (int32_t k = i - 1; k >= 0 && last < 0; k--)
                if (s->seqs[k] == seq) last = s->positions[k];
            s->positions[i] = (last >= 0 ? last : tn_session_seq_last(s, seq)) + 1;
        }
        const tn_tensor *learned = s->model->w.pos_embd;
        if (learned && s->positions[i] >= learned->ne[1])
            return tn_fail(TN_E_INVALID, "token %d has position %d; the model has learned %lld positions", i,
                           s->positions[i], (long long)learned->ne[1]);
        s->wanted[i] = tn__pool_wants(s, b, i);
        *n_wanted += s->wanted[i];
    }
    bool pooled = s->params.embeddings && s->params.pooling != TN_POOLING_NONE;
    if (!pooled && *n_wanted > s->params.n_outputs)
        return tn_fail(TN_E_INVALID,
                       "%d rows of logits are wanted, the session keeps %d: raise n_outputs, or use tn_session_score",
                       *n_wanted, s->params.n_outputs);
    return TN_OK;
}

/* An input that this architecture's graph does not use has no memory. */
static tn_status set_if_planned(tn_tensor *t, const void *data) { return t->data ? tn_tensor_set(t, data) : TN_OK; }

float tn__query_scale(const tn__hparams *h, int32_t position) {
    if (h->temperature_scale == 0) return 1;
    return 1 + h->temperature_scale * logf(1 + (float)(position / h->temperature_length));
}

/* Sampling from NaN would quietly give nonsense. */
typedef struct finite_check {
    const float *x;
    size_t n;
    _Atomic uint32_t found;
} finite_check;
static void check_share(void *user, int index, int count) {
    finite_check *c = user;
    const size_t end = c->n * ((size_t)index + 1) / (size_t)count;
    uint32_t found = 0;
    for (size_t i = c->n * (size_t)index / (size_t)count; i < end; i++) {
        uint32_t bits;
        memcpy(&bits, &c->x[i], sizeof bits);
        found |= (bits & 0x7f800000u) + 0x00800000u; /* all ones in the exponent carry into the sign */
    }
    if (found & 0x80000000u) atomic_store_explicit(&c->found, 1, memory_order_relaxed);
}
static tn_status check_finite(const tn_session *s, const float *x, size_t n) {
    enum { WORTH_SHARING = 1 << 17 };
    finite_check c = {.x = x, .n = n};
    if (s->params.threads && n >= WORTH_SHARING)
        tn_threadpool_run(s->params.threads, 0, check_share, &c);
    else
        check_share(&c, 0, 1);
    if (!c.found) return TN_OK;
    return tn_fail(
        TN_E_NOT_FINITE,
        "%s gives results that are NaN or infinite: its weights may be damaged; open it with check_weights "
        "(--check-tensors) to find out",
        tn_gguf_path(s->model->file));
}

/* The results of a run: queued behind it where the device can, then waited for. */
static tn_status fetch(tn_session *s, const tn_tensor *result, void *to, size_t size) {
    tn_buffer_type *type = tn_buffer_get_type(result->buffer);
    for (size_t i = 0; i < s->n_devices && s->pinned_logits; i++) {
        tn_stream *stream = tn_sched_stream(s->sched, i);
        if (type != tn_device_buffer_type(tn_stream_device(stream))) continue;
        return tn_stream_get_async(stream, result, to, 0, size);
    }
    TN_TRY(tn_sched_synchronize(s->sched));
    return tn_tensor_get_at(result, to, 0, size);
}
/* One token's best next, as a graph left it. */
static tn_status take_found(tn_session *s, const int32_t found[2]) {
    float sum;
    memcpy(&sum, &found[1], sizeof sum);
    s->best[s->n_results++] = found[0];
    return check_finite(s, &sum, 1);
}
static tn_status fetch_best(tn_session *s, const tn__graph_set *set, int32_t kept, bool in_order) {
    tn_token *best = s->best + s->n_results;
    float *sums = (float *)(void *)(s->best + s->params.n_outputs) + s->n_results;
    s->results = NULL;
    if (kept && set->shape.n_outputs == 1) {
        int32_t *found = s->best + 2 * s->params.n_outputs;
        TN_TRY(fetch(s, s->kv.found, found, 2 * sizeof *found));
        TN_TRY(tn_sched_synchronize(s->sched));
        return take_found(s, found);
    }
    s->n_results += kept;
    if (kept && in_order) {
        TN_TRY(fetch(s, set->result, best, (size_t)kept * sizeof *best));
        TN_TRY(fetch(s, set->sums, sums, (size_t)kept * sizeof *sums));
    }
    TN_TRY(tn_sched_synchronize(s->sched));
    for (int32_t i = 0; i < kept && !in_order; i++) {
        const size_t at = (size_t)s->out_rows[i] * sizeof *best;
        TN_TRY(tn_tensor_get_at(set->result, best + i, at, sizeof *best));
        TN_TRY(tn_tensor_get_at(set->sums, sums + i, at, sizeof *sums));
    }
    return check_finite(s, sums, (size_t)kept);
}

/* After a micro-batch was started: waits for it and takes its results, `kept` rows. */
static tn_status take_results(tn_session *s, const tn_batch *b, const tn__graph_set *set, int32_t begin, int32_t n,
                              int32_t kept) {
    bool in_order = set->out_rows || kept == n;
    if (set->sums) return fetch_best(s, set, kept, in_order);
    size_t row = (size_t)s->model->h.n_vocab;
    float *to = s->logits + (size_t)s->n_results * row;
    bool on_host = tn_buffer_type_is_host(tn_buffer_get_type(set->result->buffer));
    if (kept && in_order && !on_host && !s->params.embeddings) {
        TN_TRY(fetch(s, set->result, to, (size_t)kept * row * sizeof(float)));
        TN_TRY(tn_sched_synchronize(s->sched));
        s->n_results += kept;
        return check_finite(s, to, (size_t)kept * row);
    }
    TN_TRY(tn_sched_synchronize(s->sched));
    if (s->params.embeddings) return tn__pool_take(s, set, begin, n, kept);
    s->n_results += kept;
    /* All results in the host's memory, one row after the other: they need not be moved, if nobody else computes
     * there. */
    if (n == b->n_tokens && in_order && on_host && !s->params.sched) {
        s->results = set->result->data;
        return check_finite(s, s->results, (size_t)kept * row);
    }
    if (kept && in_order) {
        TN_TRY(tn_tensor_get_at(set->result, to, 0, (size_t)kept * row * sizeof(float)));
        return check_finite(s, to, (size_t)kept * row);
    }
    /* Nearly all rows were wanted: the graph gave all of them, in the tokens' order. */
    for (int32_t i = 0; i < kept; i++)
        TN_TRY(tn_tensor_get_at(set->result, to + (size_t)i * row, (size_t)s->out_rows[i] * row * sizeof(float),
                                row * sizeof(float)));
    return check_finite(s, to, (size_t)kept * row);
}

/* A micro-batch: tokens begin…begin+n-1 of the batch. */
typedef struct part {
    int32_t begin, n;
    int32_t *rows[TN__CACHE_GROUPS]; /* its cells */
    int32_t range[TN__CACHE_GROUPS][2];
} part;

static tn_status take_cells(tn_session *s, part *p) {
    TN_TRY(tn__kv_take(&s->kv, p->n, s->positions + p->begin, s->seqs + p->begin, p->rows));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) tn__kv_range(&s->kv, g, p->range[g]);
    return TN_OK;
}

/* After a failure: whatever was queued ends before the caller hears of it. */
static tn_status end_of(tn_session *s, tn_status status) {
    char text[512] = "";
    strncpy(text, tn_error(), sizeof text - 1);
    (void)tn_sched_synchronize(s->sched);
    return tn_fail(status, "%s", text);
}

/* Starts it, and with `wait`, or where rows of it are wanted, takes its results. */
static tn_status run_part(tn_session *s, const tn_batch *b, const part *p, bool wait) {
    const int32_t begin = p->begin, n = p->n;
    int32_t padded = tn__round_tokens(n, s->params.n_ubatch), n_out = 0;
    for (int32_t i = 0; i < n; i++)
        if (s->wanted[begin + i]) s->out_rows[n_out++] = i;
    int32_t kept = n_out;
    /* A row of results is always computed: a graph without output has no end. */
    int32_t outputs = tn__outputs_for(s, TN__MAX(n_out, 1), padded);
    for (; n_out < outputs; n_out++) s->out_rows[n_out] = n - 1;

    for (int32_t i = 0; i < padded; i++) {
        bool real = i < n;
        s->tokens[i] = real ? b->tokens[begin + i] : 0;
        s->padded_positions[i] = s->q_pos[2 * i] = real ? s->positions[begin + i] : 0;
        s->q_pos[2 * i + 1] = real ? s->seqs[begin + i] : -1;
        s->q_scale[i] = tn__query_scale(&s->model->h, s->padded_positions[i]);
        for (int g = 0; !real && g < TN__CACHE_GROUPS; g++) p->rows[g][i] = -1;
    }
    tn__graph_set *set;
    tn__graph_kind kind = tn__session_kind(s);
    if (kind == TN__GRAPH_LOGITS && b->best) kind = TN__GRAPH_BEST;
    TN_TRY(tn__graph_for(s, (tn__shape){kind, padded, outputs}, &set));
    bool several;
    TN_TRY(tn__schedule_set(s, set, &several));
    TN_TRY(tn_sched_alloc(s->sched, set->graph));
    TN_TRY(tn_tensor_set(set->tokens, s->tokens));
    TN_TRY(tn_tensor_set(set->q_pos, s->q_pos));
    TN_TRY(set_if_planned(set->positions, s->padded_positions));
    if (set->q_scale) TN_TRY(tn_tensor_set(set->q_scale, s->q_scale));
    if (set->out_rows) TN_TRY(tn_tensor_set(set->out_rows, s->out_rows));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        if (!set->rows[g]) continue;
        TN_TRY(tn_tensor_set(set->rows[g], p->rows[g]));
        TN_TRY(tn_tensor_set(set->range[g], p->range[g]));
    }
    tn_status status = tn_sched_run_async(s->sched, set->graph);
    if (status == TN_OK && (wait || !several || kept || s->params.embeddings))
        status = take_results(s, b, set, begin, n, kept);
    if (status == TN_OK) return TN_OK;
    return end_of(s, status);
}

/* The end of the micro-batch that begins here. An encoder's sequences are not cut. */
static tn_status micro_batch_end(const tn_session *s, int32_t begin, int32_t n_tokens, int32_t *end) {
    int32_t limit = s->params.n_ubatch;
    *end = TN__MIN(begin + limit, n_tokens);
    if (s->model->h.causal || *end == n_tokens) return TN_OK;
    while (*end > begin && s->seqs[*end - 1] == s->seqs[*end]) --*end;
    if (*end > begin) return TN_OK;
    return tn_fail(TN_E_TOO_BIG,
                   "sequence %d has more than %d tokens, and this model reads a sequence as a whole: raise n_ubatch "
                   "(--ubatch), or shorten the text",
                   s->seqs[begin], limit);
}

/* Encoders: every sequence in one piece, and short enough. */
static tn_status check_whole(const tn_session *s, int32_t n_tokens) {
    for (int32_t begin = 0, end; begin < n_tokens; begin = end) {
        TN_TRY(micro_batch_end(s, begin, n_tokens, &end));
        for (int32_t i = begin + 1; i < end; i++) {
            bool torn = false;
            for (int32_t k = 0; k < i - 1 && s->seqs[i] != s->seqs[i - 1]; k++)
                torn = torn || s->seqs[k] == s->seqs[i];
            if (torn)
                return tn_fail(TN_E_INVALID, "the tokens of sequence %d do not stand together in the batch",
                               s->seqs[i]);
        }
    }
    return TN_OK;
}

/* Whether every token comes after those of its sequence in front of it: then none sees a later one that has a cell
 * already. */
static bool ascends(const tn_session *s, int32_t n_tokens) {
    for (int32_t i = 1; i < n_tokens; i++)
        for (int32_t k = i - 1; k >= 0; k--) {
            if (s->seqs[k] != s->seqs[i]) continue;
            if (s->positions[k] >= s->positions[i]) return false;
            break;
        }
    return true;
}

/* Several micro-batches under way. Devices at work read where the cells are, so all of them are taken first. */
static tn_status run_in_flight(tn_session *s, const tn_batch *b) {
    const int32_t step = s->params.n_ubatch;
    part p = {0};
    int32_t end = s->kv.groups[TN__CACHE_FULL].end;
    for (p.begin = 0; p.begin < b->n_tokens; p.begin += step) {
        p.n = TN__MIN(step, b->n_tokens - p.begin);
        for (int g = 0; g < TN__CACHE_GROUPS; g++) p.rows[g] = s->rows[g] + p.begin;
        TN_TRY(take_cells(s, &p));
    }
    TN_TRY(tn__kv_send_meta(&s->kv));
    for (p.begin = 0; p.begin < b->n_tokens; p.begin += step) {
        p.n = TN__MIN(step, b->n_tokens - p.begin);
        for (int g = 0; g < TN__CACHE_GROUPS; g++) p.rows[g] = s->rows[g] + p.begin;
        for (int32_t i = 0; i < p.n; i++) end = TN__MAX(end, p.rows[TN__CACHE_FULL][i] + 1);
        p.range[TN__CACHE_FULL][1] = end; /* as if the later ones had no cells yet */
        TN_TRY(run_part(s, b, &p, p.begin + p.n == b->n_tokens));
    }
    return TN_OK;
}

static tn_status run_in_turn(tn_session *s, const tn_batch *b) {
    for (int32_t i = 0, end; i < b->n_tokens; i = end) {
        TN_TRY(micro_batch_end(s, i, b->n_tokens, &end));
        part p = {.begin = i, .n = end - i};
        memcpy(p.rows, s->rows, sizeof p.rows);
        TN_TRY(take_cells(s, &p));
        TN_TRY(tn__kv_send_meta(&s->kv));
        TN_TRY(run_part(s, b, &p, true));
        if (!s->model->h.causal) tn_session_clear(s);
    }
    return TN_OK;
}

static tn_status run_batch(tn_session *s, const tn_batch *b) {
    const bool in_flight = s->pipelined && b->n_tokens > s->params.n_ubatch && ascends(s, b->n_tokens);
    tn_status status = in_flight ? run_in_flight(s, b) : run_in_turn(s, b);
    if (status != TN_OK) return in_flight ? end_of(s, status) : status;
    if (!s->params.embeddings) return TN_OK;
    tn__pool_finish(s);
    return check_finite(s, s->pool.rows, (size_t)s->n_results * (size_t)s->pool.size);
}

/* After a failure: half a batch in the cache would be taken for a whole one. */
static void take_back(tn_session *s, int32_t n_tokens) {
    s->n_results = 0;
    for (int32_t i = 0, end; i < n_tokens; i = end) {
        for (end = i + 1;
             end < n_tokens && s->seqs[end] == s->seqs[i] && s->positions[end] == s->positions[end - 1] + 1;)
            end++;
        (void)tn_session_seq_remove(s, s->seqs[i], s->positions[i], s->positions[end - 1] + 1);
    }
}

tn_status tn_session_decode(tn_session *s, const tn_batch *b) {
    if (!s || !b) return tn_fail(TN_E_INVALID, "tn_session_decode: NULL argument");
    uint64_t begin = tn_time_ns();
    int32_t n_wanted = 0;
    TN_TRY(read_batch(s, b, &n_wanted));
    if (!s->model->h.causal) TN_TRY(check_whole(s, b->n_tokens));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__cells *c = &s->kv.groups[g];
        if (s->model->h.causal && c->n && !c->window && c->n - c->used < b->n_tokens)
            return tn_fail(TN_E_FULL,
                           "the KV cache is full: %d tokens need a cell, %d of %d are free; shift, remove a "
                           "sequence, or use a larger context",
                           b->n_tokens, c->n - c->used, c->n);
    }
    s->n_results = 0;
    s->results = s->logits;
    if (s->params.embeddings) tn__pool_start(s);
    const bool alone = b->best && b->n_tokens == 1 && n_wanted == 1 && !s->params.embeddings;
    tn_status status;
    if (alone && tn__ahead_serves(s, b->tokens[0])) {
        int32_t found[2];
        s->results = NULL;
        status = tn__ahead_take(s, found);
        if (status == TN_OK) status = take_found(s, found);
    } else {
        tn__ahead_stop(s);
        s->ahead.looping = s->ahead.looping && alone;
        status = run_batch(s, b);
        if (status == TN_OK && alone) tn__ahead_go_on(s, b->tokens[0]);
    }
    if (status != TN_OK) {
        tn__ahead_stop(s);
        s->ahead.looping = false;
        take_back(s, b->n_tokens);
        return status;
    }
    uint64_t ns = tn_time_ns() - begin;
    if (b->n_tokens > s->params.n_seqs) {
        s->stats.prompt_tokens += (uint64_t)b->n_tokens;
        s->stats.prompt_ns += ns;
    } else {
        s->stats.generated_tokens += (uint64_t)b->n_tokens;
        s->stats.generated_ns += ns;
    }
    return TN_OK;
}

int32_t tn_session_output_count(const tn_session *s) { return s->n_results; }
float *tn_session_logits(tn_session *s, int32_t i) {
    if (!s || s->params.embeddings) return NULL;
    if (i < 0) i += s->n_results;
    return i >= 0 && i < s->n_results && s->results ? s->results + (size_t)i * (size_t)s->model->h.n_vocab : NULL;
}
tn_token tn_session_argmax(const tn_session *s, int32_t i) {
    if (!s || s->params.embeddings) return -1;
    if (i < 0) i += s->n_results;
    if (i < 0 || i >= s->n_results) return -1;
    if (!s->results) return s->best[i];
    const float *row = s->results + (size_t)i * (size_t)s->model->h.n_vocab;
    tn_token best = 0;
    for (tn_token t = 1; t < s->model->h.n_vocab; t++)
        if (row[t] > row[best]) best = t;
    return best;
}
/* Before another graph computes where the results lie. */
void tn__keep_results(tn_session *s) {
    if (!s->results) return;
    if (s->n_results && s->results != s->logits)
        memcpy(s->logits, s->results, (size_t)s->n_results * (size_t)s->model->h.n_vocab * sizeof(float));
    s->results = s->logits;
}

tn_session_stats tn_session_get_stats(const tn_session *s) {
    tn_session_stats stats = s->stats;
    stats.load_ns = s->model->load_ns;
    stats.sched = tn_sched_get_stats(s->sched);
    return stats;
}
void tn_session_reset_stats(tn_session *s) { memset(&s->stats, 0, sizeof s->stats); }

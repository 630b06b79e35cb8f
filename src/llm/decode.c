/* Decoding batches: micro-batches through the graphs of their size. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <string.h>

/* ---- Batches ---- */

/* The position after the sequence's previous token in the batch; if there is none, after its last token in the cache.
 */
static int32_t next_position(const tn_session *s, int32_t i) {
    const tn__staging *g = &s->staging;
    for (int32_t k = i - 1; k >= 0; k--)
        if (g->seqs[k] == g->seqs[i]) return g->positions[k] + 1;
    return tn_session_seq_last(s, g->seqs[i]) + 1;
}

static tn_status stage_batch_token(tn_session *s, const tn_batch *b, int32_t i) {
    const tn_model *m = s->plan->model;
    tn__staging *g = &s->staging;
    g->seqs[i] = b->seqs ? b->seqs[i] : 0;
    if (g->seqs[i] < 0 || g->seqs[i] >= s->plan->params.n_seqs)
        return tn_fail(TN_E_INVALID, "token %d belongs to sequence %d of %d", i, g->seqs[i], s->plan->params.n_seqs);
    if (b->tokens[i] < 0 || b->tokens[i] >= tn__n_text_vocab(&m->h))
        return tn_fail(TN_E_INVALID, "token %d is %d; the vocabulary has %d", i, b->tokens[i],
                       tn__n_text_vocab(&m->h));
    if (b->positions && b->positions[i] < 0)
        return tn_fail(TN_E_INVALID, "token %d has position %d", i, b->positions[i]);
    if (i == 0 || g->seqs[i] != g->seqs[i - 1]) tn__branches_drop(s, g->seqs[i]);
    g->positions[i] = b->positions                       ? b->positions[i]
                      : b->parents && b->parents[i] >= 0 ? g->positions[TN__MIN(b->parents[i], i)] + 1
                                                         : next_position(s, i);
    const tn_tensor *learned = m->w.pos_embd;
    if (learned && g->positions[i] >= learned->ne[1])
        return tn_fail(TN_E_INVALID, "token %d has position %d; the model has learned %lld positions", i,
                       g->positions[i], (long long)learned->ne[1]);
    return TN_OK;
}

/* Fills positions, sequences and wanted rows of the whole batch, and rejects invalid ones. */
static tn_status stage_batch(tn_session *s, const tn_batch *b, int32_t *n_wanted) {
    const tn_session_params *p = &s->plan->params;
    if (b->n_tokens < 1 || b->n_tokens > p->n_batch || !b->tokens)
        return tn_fail(TN_E_INVALID, "a batch has 1 to %d tokens, not %d", p->n_batch, b->n_tokens);
    if (tn__states_width(&s->plan->model->h) && !b->states)
        return tn_fail(TN_E_INVALID, "a head needs the hidden states of the model: set `states` of the batch");
    *n_wanted = 0;
    for (int32_t i = 0; b->parents && i < b->n_tokens; i++)
        if (b->parents[i] < -1 || b->parents[i] >= i)
            return tn_fail(TN_E_INVALID, "token %d has parent %d, which is not an earlier token", i, b->parents[i]);
    for (int32_t i = 0; i < b->n_tokens; i++) {
        TN_TRY(stage_batch_token(s, b, i));
        s->staging.wanted[i] = tn__wants_row(s, b, i);
        *n_wanted += s->staging.wanted[i];
    }
    bool pooled = p->embeddings && p->pooling != TN_POOLING_NONE;
    if (!pooled && *n_wanted > p->n_outputs)
        return tn_fail(TN_E_INVALID,
                       "%d rows of logits are wanted, the session keeps %d: raise n_outputs, or use tn_session_score",
                       *n_wanted, p->n_outputs);
    return b->parents ? tn__branches_stage(s, b) : TN_OK;
}

/* ---- Micro-batches ---- */

/* Tokens begin … begin+n-1 of the batch. */
typedef struct micro_batch {
    int32_t begin, n;
    int32_t *rows[TN__CACHE_GROUPS]; /* their cells */
    tn__step *steps;
} micro_batch;

static tn_status take_lists(tn_session *s, const tn_batch *b, const micro_batch *m) {
    if (b->parents) return tn__branches_take_cells(s, b);
    return tn__kv_take(&s->plan->kv, m->n, s->staging.positions + m->begin, s->staging.seqs + m->begin, m->rows,
                       m->steps);
}

/* A sequence whose cells are in too many runs: those of other sequences are between them. */
static bool is_fragmented(const tn_session *s) {
    const tn__page_table *groups = s->plan->kv.groups;
    return groups[TN__CACHE_FULL].fragmented || groups[TN__CACHE_WINDOW].fragmented;
}

/* When pages run out, kept prefixes are evicted, then partly filled pages are compacted. When there are cells, but a
 * sequence has too many runs, moving the cells is enough. */
static tn_status take_cells(tn_session *s, const tn_batch *b, const micro_batch *m) {
    const int32_t *positions = s->staging.positions + m->begin, *seqs = s->staging.seqs + m->begin;
    tn__tiers_leave_window(s, m->n, positions, seqs);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) s->plan->kv.groups[g].fragmented = false;
    tn_status status = take_lists(s, b, m);
    if (status == TN_E_FULL && is_fragmented(s)) {
        TN_TRY(tn_session_defragment(s));
        status = take_lists(s, b, m);
    }
    while (status == TN_E_FULL && tn__prefixes_make_room(s)) status = take_lists(s, b, m);
    if (status == TN_E_FULL) {
        TN_TRY(tn_session_defragment(s));
        status = take_lists(s, b, m);
    }
    if (status == TN_OK)
        status = tn__recurrent_hold(&s->plan->kv.states, m->n, positions, seqs,
                                    b->guesses ? b->guesses + m->begin : NULL, m->steps);
    if (status != TN_OK || !s->prefixes.n) return status;
    const int32_t *rows = m->rows[s->prefixes.group];
    tn__prefixes_write(s, m->n, b->tokens + m->begin, positions, seqs, b->parents, rows);
    tn__checkpoints_stage(s, b, m->begin, m->n, rows, m->steps);
    return TN_OK;
}

/* After a failure: waits for queued work before the error is returned. */
static tn_status synchronize_after(tn_session *s, tn_status status) {
    char text[512] = "";
    strncpy(text, tn_error(), sizeof text - 1);
    (void)tn_sched_synchronize(s->plan->sched);
    return tn_fail(status, "%s", text);
}

/* Lists the graph's output rows: those requested, then the last token's row as padding up to n_outputs. There is at
 * least one, because a graph without outputs computes nothing. Returns the number requested. */
static int32_t list_output_rows(tn_session *s, const micro_batch *m, int32_t padded, int32_t *n_outputs) {
    tn__staging *g = &s->staging;
    int32_t kept = 0;
    for (int32_t i = 0; i < m->n; i++)
        if (g->wanted[m->begin + i]) g->out_rows[kept++] = i;
    *n_outputs = tn__outputs_for(&s->plan->params, TN__MAX(kept, 1), padded);
    for (int32_t i = kept; i < *n_outputs; i++) g->out_rows[i] = m->n - 1;
    return kept;
}

/* Starts a micro-batch. Waits for its results if `wait` is set or if rows of it are requested. */
static tn_status run_micro_batch(tn_session *s, const tn_batch *b, const micro_batch *m, bool wait) {
    tn_session_plan *p = s->plan;
    tn__staging *g = &s->staging;
    const size_t state_width = (size_t)tn__states_width(&p->model->h);
    tn__micro_batch inputs = {.n = m->n,
                              .padded = tn__round_tokens(m->n, p->params.n_ubatch),
                              .h = &p->model->h,
                              .tokens = b->tokens + m->begin,
                              .positions = g->positions + m->begin,
                              .seqs = g->seqs + m->begin,
                              .lists = b->parents ? g->lists : NULL,
                              .steps = m->steps,
                              .states = b->states ? b->states + (size_t)m->begin * state_width : NULL,
                              .out_rows = g->out_rows,
                              .adapters = tn__batch_adapters(s, g->seqs + m->begin, m->n),
                              .n_adapters = p->adapters.n,
                              .scales = g->scales,
                              .factors = p->adapters.factors};
    for (int i = 0; i < TN__CACHE_GROUPS; i++) inputs.rows[i] = m->rows[i];
    int32_t kept = list_output_rows(s, m, inputs.padded, &inputs.n_outputs);
    tn__graph_kind kind = tn__token_graph_kind(&p->params);
    if (kind == TN__GRAPH_LOGITS && b->argmax) kind = TN__GRAPH_ARGMAX;
    /* Rows that stay on the device must be those of the last micro-batch. */
    if (kind == TN__GRAPH_LOGITS && b->candidates && kept && b->n_tokens == m->n && tn__plan_candidates(p))
        kind = TN__GRAPH_CANDIDATES;
    const bool passes = p->model->division.by_layers && !kept; /* nothing returns from the last rank */
    if (passes) kind = TN__GRAPH_PASS, inputs.n_outputs = 1;
    tn__graph_set *set;
    bool in_flight;
    TN_TRY(tn__graph_for(p, (tn__shape){kind, inputs.padded, inputs.n_outputs, inputs.adapters}, &set));
    TN_TRY(tn__graph_schedule(p, set, &in_flight));
    TN_TRY(tn_sched_alloc(p->sched, set->graph));
    tn__inputs_stage(&set->inputs, &inputs, g->values);
    TN_TRY(tn__inputs_set(&set->inputs, g->values));
    TN_TRY(tn__lead_run(s, set, g->values));
    tn_status status = tn__lead_check(s, tn_sched_run_async(p->sched, set->graph));
    if (status == TN_OK && passes) status = tn__lead_check(s, tn_sched_synchronize(p->sched));
    if (status == TN_OK && !passes && (wait || !in_flight || kept || p->params.embeddings))
        status = tn__results_take(s, b, set, m->begin, m->n, kept);
    return status == TN_OK ? TN_OK : synchronize_after(s, status);
}

/* The end of the micro-batch that begins here. An encoder's sequences are not cut. */
static tn_status micro_batch_end(const tn_session *s, int32_t begin, int32_t n_tokens, int32_t *end) {
    const int32_t *seqs = s->staging.seqs, limit = tn_session_plan_micro_batch(s->plan, n_tokens);
    *end = TN__MIN(begin + limit, n_tokens);
    if (s->plan->model->h.causal || *end == n_tokens) return TN_OK;
    while (*end > begin && seqs[*end - 1] == seqs[*end]) --*end;
    if (*end > begin) return TN_OK;
    return tn_fail(TN_E_TOO_BIG,
                   "sequence %d has more than %d tokens, and this model reads a sequence as a whole: raise n_ubatch "
                   "(--ubatch), or shorten the text",
                   seqs[begin], limit);
}

/* Encoders: the tokens of a sequence must be contiguous and fit a micro-batch. */
static tn_status check_whole_sequences(const tn_session *s, int32_t n_tokens) {
    const int32_t *seqs = s->staging.seqs;
    for (int32_t begin = 0, end; begin < n_tokens; begin = end) {
        TN_TRY(micro_batch_end(s, begin, n_tokens, &end));
        for (int32_t i = begin + 1; i < end; i++) {
            bool torn = false;
            for (int32_t k = 0; k < i - 1 && seqs[i] != seqs[i - 1]; k++) torn = torn || seqs[k] == seqs[i];
            if (torn)
                return tn_fail(TN_E_INVALID, "the tokens of sequence %d are not contiguous in the batch", seqs[i]);
        }
    }
    return TN_OK;
}

/* Whether positions ascend within every sequence: then no token sees a later one whose cell is already allocated. */
static bool positions_ascend(const tn_session *s, int32_t n_tokens) {
    const tn__staging *g = &s->staging;
    for (int32_t i = 1; i < n_tokens; i++)
        for (int32_t k = i - 1; k >= 0; k--) {
            if (g->seqs[k] != g->seqs[i]) continue;
            if (g->positions[k] >= g->positions[i]) return false;
            break;
        }
    return true;
}

/* Several micro-batches in flight. Devices in flight read the page tables, so all cells are allocated first. */
static tn_status run_in_flight(tn_session *s, const tn_batch *b) {
    const int32_t step = s->plan->params.n_ubatch;
    micro_batch m = {0};
    for (m.begin = 0; m.begin < b->n_tokens; m.begin += step) {
        m.n = TN__MIN(step, b->n_tokens - m.begin);
        for (int g = 0; g < TN__CACHE_GROUPS; g++) m.rows[g] = s->staging.rows[g] + m.begin;
        m.steps = s->staging.steps + m.begin;
        TN_TRY(take_cells(s, b, &m));
    }
    TN_TRY(tn__kv_send_tables(&s->plan->kv, &s->notes));
    for (m.begin = 0; m.begin < b->n_tokens; m.begin += step) {
        m.n = TN__MIN(step, b->n_tokens - m.begin);
        for (int g = 0; g < TN__CACHE_GROUPS; g++) m.rows[g] = s->staging.rows[g] + m.begin;
        m.steps = s->staging.steps + m.begin;
        TN_TRY(run_micro_batch(s, b, &m, m.begin + m.n == b->n_tokens));
    }
    tn__checkpoints_finish(s);
    return TN_OK;
}

static tn_status run_one_by_one(tn_session *s, const tn_batch *b) {
    for (int32_t i = 0, end; i < b->n_tokens; i = end) {
        TN_TRY(micro_batch_end(s, i, b->n_tokens, &end));
        micro_batch m = {.begin = i, .n = end - i, .steps = s->staging.steps};
        memcpy(m.rows, s->staging.rows, sizeof m.rows);
        TN_TRY(take_cells(s, b, &m));
        TN_TRY(tn__kv_send_tables(&s->plan->kv, &s->notes));
        TN_TRY(run_micro_batch(s, b, &m, true));
        tn__checkpoints_finish(s);
        if (!s->plan->model->h.causal) tn_session_clear(s);
    }
    return TN_OK;
}

static tn_status run_batch(tn_session *s, const tn_batch *b) {
    const bool in_flight =
        s->plan->pipelined && b->n_tokens > s->plan->params.n_ubatch && positions_ascend(s, b->n_tokens);
    tn_status status = in_flight ? run_in_flight(s, b) : run_one_by_one(s, b);
    if (status != TN_OK) return in_flight ? synchronize_after(s, status) : status;
    if (!s->plan->params.embeddings) return TN_OK;
    tn__embeddings_finish(s);
    return tn__check_finite(s, s->embeddings.rows, (size_t)s->results.n * (size_t)s->embeddings.size);
}

/* After a failure: removes all tokens of the batch from the cache. */
static void remove_batch(tn_session *s, int32_t n_tokens) {
    const int32_t *seqs = s->staging.seqs, *positions = s->staging.positions;
    s->results.n = 0;
    tn__checkpoints_drop(s);
    s->results.waiting = NULL;
    tn__recurrent_roll_back(&s->plan->kv.states);
    for (int32_t i = 0; i < n_tokens; i++)
        if (tn__recurrent_lost(&s->plan->kv.states, seqs[i])) (void)tn_session_seq_remove(s, seqs[i], 0, -1);
    for (int32_t i = 0, end; i < n_tokens; i = end) {
        for (end = i + 1; end < n_tokens && seqs[end] == seqs[i] && positions[end] == positions[end - 1] + 1;) end++;
        (void)tn_session_seq_remove(s, seqs[i], positions[i], positions[end - 1] + 1);
        tn__branches_drop(s, seqs[i]);
    }
}

/* A batch of at most this many rows, all with logits, counts as a step of generation. */
static bool is_step(const tn_session *s, int32_t n_tokens, int32_t n_wanted) {
    return n_wanted == n_tokens && n_tokens < TN__STEP_ROWS && !s->plan->params.embeddings;
}

/* Guessed tokens count as generated once they are accepted (tn__count_accepted). */
static void count_tokens(tn_session *s, const tn_batch *b, int32_t n_wanted, uint64_t ns) {
    int32_t n_guessed = 0;
    for (int32_t i = 0; b->guesses && i < b->n_tokens; i++) n_guessed += b->guesses[i];
    bool prompt = b->n_tokens - n_guessed > s->plan->params.n_seqs;
    *(prompt ? &s->stats.prompt_tokens : &s->stats.generated_tokens) += (uint64_t)(b->n_tokens - n_guessed);
    *(prompt ? &s->stats.prompt_ns : &s->stats.generated_ns) += ns;
    if (is_step(s, b->n_tokens, n_wanted)) {
        s->step_ns = (double)ns;
        tn__step_time_add(&s->steps[b->n_tokens], s->step_ns);
        s->steps[b->n_tokens].seen = ++s->n_steps;
    }
}

void tn__count_accepted(tn_session *s, int32_t n) { s->stats.generated_tokens += (uint64_t)n; }

tn_status tn_session_decode(tn_session *s, const tn_batch *b) {
    if (!s || !b) return tn_fail(TN_E_INVALID, "tn_session_decode: NULL argument");
    if (s->notes.bytes && tn_net_rank(s->notes.net) != 0)
        return tn_fail(TN_E_STATE, "rank %d follows rank 0: call tn_session_follow", tn_net_rank(s->notes.net));
    uint64_t begin = tn_time_ns();
    const bool causal = s->plan->model->h.causal, embeddings = s->plan->params.embeddings;
    int32_t n_wanted = 0;
    TN_TRY(stage_batch(s, b, &n_wanted));
    if (!causal) TN_TRY(check_whole_sequences(s, b->n_tokens));
    if (causal) TN_TRY(tn__gather_sparse_pages(s));
    const tn__page_table *pages = &s->plan->kv.groups[TN__CACHE_FULL];
    while (causal && pages->n_pages && pages->limit - pages->used < b->n_tokens && tn__prefixes_evict(s)) {}
    if (causal && pages->n_pages && pages->limit - pages->used < b->n_tokens) {
        TN_TRY(tn_session_defragment(s));
        if (pages->limit - pages->used < b->n_tokens) return tn__pages_fail_full(pages, b->n_tokens);
    }
    s->results.n = s->results.n_states = 0;
    s->results.rows = s->results.logits;
    s->results.waiting = NULL;
    if (embeddings) tn__embeddings_begin(s);
    const bool single_argmax = b->argmax && b->n_tokens == 1 && n_wanted == 1 && !embeddings;
    tn_status status;
    if (single_argmax && tn__queued_step_matches(s, b->tokens[0])) {
        int32_t step[2];
        s->results.rows = NULL;
        status = tn__queued_step_take(s, step);
        if (status == TN_OK) status = tn__results_take_step(s, step);
    } else {
        tn__queued_step_cancel(s);
        s->queued.looping = s->queued.looping && single_argmax;
        status = run_batch(s, b);
        if (status == TN_OK && single_argmax) tn__queued_step_continue(s, b->tokens[0]);
    }
    if (status != TN_OK) {
        tn__queued_step_cancel(s);
        s->queued.looping = false;
        remove_batch(s, b->n_tokens);
        return status;
    }
    tn__recurrent_commit(&s->plan->kv.states);
    count_tokens(s, b, n_wanted, tn_time_ns() - begin);
    if (s->observer) s->observer(s->observer_user, b);
    return TN_OK;
}

/* Results of a decode: fetched from the device, checked, and kept until the next. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include "tenon/cpu.h"

#include <stdatomic.h>
#include <string.h>

/* Two values of 4 bytes for each of two queued steps: argmax and sum. */
enum { STEP_VALUES = 4 };

tn_status tn__results_bytes(const tn_session_plan *p, size_t *bytes) {
    size_t count, rows = (size_t)p->params.n_outputs;
    size_t row = p->params.embeddings ? 2 : (size_t)p->model->h.n_vocab + 2;
    size_t states = 0;
    if (p->params.states && !tn__mul_size((size_t)p->params.n_batch, (size_t)tn__state_row(p), &states))
        return tn_fail(TN_E_OVERFLOW, "the states' size overflows");
    if (tn__plan_candidates(p)) row += 2 * (size_t)tn__plan_candidates(p) + 1;
    if (!tn__mul_size(rows, row, &count) || !tn__add_size(count, STEP_VALUES, &count) ||
        !tn__add_size(count, states, &count) || !tn__mul_size(count, sizeof(float), bytes))
        return tn_fail(TN_E_OVERFLOW, "the logits' size overflows");
    return TN_OK;
}

tn_buffer_type *tn__results_type(const tn_session_plan *p) {
    return tn_device_host_buffer_type(tn__plan_device(p, 0));
}

/* One block: logits, candidates and flags of fetched rows, argmax, sums, steps, hidden states. */
tn_status tn__results_new(const tn_session_plan *p, tn__results *r) {
    const size_t rows = (size_t)p->params.n_outputs, k = (size_t)tn__plan_candidates(p);
    if (pthread_mutex_init(&r->fetching, NULL) != 0)
        return tn_fail(TN_E_NOMEM, "cannot create the mutex of the results");
    r->has_lock = true;
    TN_TRY(tn__results_bytes(p, &r->bytes));
    size_t count = r->bytes / sizeof *r->logits;
    tn_buffer_type *pinned = tn__results_type(p);
    if (pinned) {
        TN_TRY(tn_buffer_new(pinned, r->bytes, &r->pinned));
        TN_TRY(tn_buffer_clear(r->pinned, 0));
        r->logits = tn_buffer_base(r->pinned);
    } else {
        r->logits = tn_calloc(count, sizeof *r->logits);
    }
    if (!r->logits) return TN_E_NOMEM;
    if (p->params.states) { /* at the end of the block */
        r->width = tn__state_row(p);
        count -= (size_t)p->params.n_batch * (size_t)r->width;
        r->states = r->logits + count;
    }
    r->argmax = (tn_token *)(void *)(r->logits + count - STEP_VALUES - 2 * rows);
    if (k) {
        r->fetched = r->argmax - rows;
        r->largest = r->fetched - k * rows;
        r->largest_logits = (float *)(void *)(r->largest - k * rows);
    }
    r->sums = (float *)(void *)(r->argmax + rows);
    r->steps = (int32_t *)(void *)(r->sums + rows);
    return TN_OK;
}

void tn__results_free(tn__results *r) {
    if (r->has_lock) pthread_mutex_destroy(&r->fetching);
    if (!r->pinned) tn_free(r->logits);
    tn_buffer_free(r->pinned);
}

/* ---- Finite numbers ---- */

typedef struct finite_check {
    const float *x;
    size_t n;
    _Atomic uint32_t not_finite;
} finite_check;

static void check_finite_part(void *user, int index, int count) {
    finite_check *c = user;
    const size_t end = c->n * ((size_t)index + 1) / (size_t)count;
    uint32_t carries = 0;
    for (size_t i = c->n * (size_t)index / (size_t)count; i < end; i++) {
        uint32_t bits;
        memcpy(&bits, &c->x[i], sizeof bits);
        carries |= (bits & 0x7f800000u) + 0x00800000u; /* an exponent of all ones carries into the sign bit */
    }
    if (carries & 0x80000000u) atomic_store_explicit(&c->not_finite, 1, memory_order_relaxed);
}

tn_status tn__check_finite(const tn_session *s, const float *x, size_t n) {
    enum { WORTH_SHARING = 1 << 17 };
    finite_check c = {.x = x, .n = n};
    if (s->plan->params.threads && n >= WORTH_SHARING)
        tn_threadpool_run(s->plan->params.threads, 0, check_finite_part, &c);
    else
        check_finite_part(&c, 0, 1);
    if (!c.not_finite) return TN_OK;
    return tn_fail(TN_E_NOT_FINITE,
                   "%s computed NaN or infinity: its weights may be damaged; open it with check_weights "
                   "(--check-tensors) to find out",
                   tn_gguf_path(s->plan->model->file));
}

/* ---- Taking results ---- */

/* Reads a result: queued behind its run where the results are in pinned memory, else after waiting for it. */
static tn_status fetch_result(tn_session *s, const tn_tensor *result, void *to, size_t size) {
    tn_buffer_type *type = tn_buffer_get_type(result->buffer);
    for (size_t i = 0; i < s->plan->placement.n_devices && s->results.pinned; i++) {
        tn_stream *stream = tn_sched_stream(s->plan->sched, i);
        if (type != tn_device_buffer_type(tn_stream_device(stream))) continue;
        return tn_stream_get_async(stream, result, to, 0, size);
    }
    TN_TRY(tn_sched_synchronize(s->plan->sched));
    return tn_tensor_get_at(result, to, 0, size);
}

tn_status tn__results_take_step(tn_session *s, const int32_t step[2]) {
    float sum;
    memcpy(&sum, &step[1], sizeof sum);
    s->results.argmax[s->results.n++] = step[0];
    return tn__check_finite(s, &sum, 1);
}

static tn_status take_argmax(tn_session *s, const tn__graph_set *set, int32_t kept, bool in_order) {
    tn__results *r = &s->results;
    tn_token *argmax = r->argmax + r->n;
    float *sums = r->sums + r->n;
    r->rows = NULL;
    if (kept && set->shape.n_outputs == 1) {
        TN_TRY(fetch_result(s, s->plan->kv.argmax, r->steps, 2 * sizeof *r->steps));
        TN_TRY(tn_sched_synchronize(s->plan->sched));
        return tn__results_take_step(s, r->steps);
    }
    r->n += kept;
    if (kept && in_order) {
        TN_TRY(fetch_result(s, set->result, argmax, (size_t)kept * sizeof *argmax));
        TN_TRY(fetch_result(s, set->sums, sums, (size_t)kept * sizeof *sums));
    }
    TN_TRY(tn_sched_synchronize(s->plan->sched));
    for (int32_t i = 0; i < kept && !in_order; i++) {
        const size_t at = (size_t)s->staging.out_rows[i] * sizeof *argmax;
        TN_TRY(tn_tensor_get_at(set->result, argmax + i, at, sizeof *argmax));
        TN_TRY(tn_tensor_get_at(set->sums, sums + i, at, sizeof *sums));
    }
    return tn__check_finite(s, sums, (size_t)kept);
}

/* Takes the largest logits of every row; the rows stay on the device. The batch has one micro-batch. */
static tn_status take_candidates(tn_session *s, const tn__graph_set *set, int32_t kept, bool in_order) {
    tn__results *r = &s->results;
    const size_t k = (size_t)tn__plan_candidates(s->plan), row = k * sizeof(float);
    r->rows = NULL;
    r->waiting = set->result;
    r->in_order = in_order;
    memset(r->fetched, 0, (size_t)kept * sizeof *r->fetched);
    if (in_order) {
        TN_TRY(fetch_result(s, set->largest, r->largest, (size_t)kept * row));
        TN_TRY(fetch_result(s, set->largest_logits, r->largest_logits, (size_t)kept * row));
        TN_TRY(fetch_result(s, set->sums, r->sums, (size_t)kept * sizeof *r->sums));
    }
    TN_TRY(tn_sched_synchronize(s->plan->sched));
    for (int32_t i = 0; i < kept && !in_order; i++) {
        const size_t from = (size_t)s->staging.out_rows[i], to = (size_t)i * k;
        TN_TRY(tn_tensor_get_at(set->largest, r->largest + to, from * row, row));
        TN_TRY(tn_tensor_get_at(set->largest_logits, r->largest_logits + to, from * row, row));
        TN_TRY(tn_tensor_get_at(set->sums, r->sums + i, from * sizeof *r->sums, sizeof *r->sums));
    }
    r->n = kept;
    return tn__check_finite(s, r->sums, (size_t)kept);
}

/* The hidden states of a micro-batch. */
static tn_status take_states(tn_session *s, const tn__graph_set *set, int32_t begin, int32_t n) {
    tn__results *r = &s->results;
    if (!set->states) return TN_OK;
    const size_t row = (size_t)r->width * sizeof *r->states;
    TN_TRY(tn_sched_synchronize(s->plan->sched));
    TN_TRY(tn_tensor_get_at(set->states, r->states + (size_t)begin * (size_t)r->width, 0, (size_t)n * row));
    r->n_states = begin + n;
    return TN_OK;
}

const float *tn_session_state(const tn_session *s, int32_t i) {
    if (!s || !s->results.states || i < 0 || i >= s->results.n_states) return NULL;
    return s->results.states + (size_t)i * (size_t)s->results.width;
}

tn_status tn__results_take(tn_session *s, const tn_batch *b, const tn__graph_set *set, int32_t begin, int32_t n,
                           int32_t kept) {
    tn__results *r = &s->results;
    /* A graph that does not gather its output rows gives the rows of all tokens. */
    bool in_order = tn__input_tensor(&set->inputs, TN__INPUT_OUTPUT_ROWS) || kept == n;
    TN_TRY(take_states(s, set, begin, n));
    if (set->largest) return take_candidates(s, set, kept, in_order);
    if (set->sums) return take_argmax(s, set, kept, in_order);
    size_t row = (size_t)s->plan->model->h.n_vocab;
    float *to = r->logits + (size_t)r->n * row;
    bool on_host = tn_buffer_type_is_host(tn_buffer_get_type(set->result->buffer));
    if (kept && in_order && !on_host && !s->plan->params.embeddings) {
        TN_TRY(fetch_result(s, set->result, to, (size_t)kept * row * sizeof(float)));
        TN_TRY(tn_sched_synchronize(s->plan->sched));
        r->n += kept;
        return tn__check_finite(s, to, (size_t)kept * row);
    }
    TN_TRY(tn_sched_synchronize(s->plan->sched));
    if (s->plan->params.embeddings) return tn__embeddings_take(s, set, begin, n, kept);
    r->n += kept;
    /* All results are already in host memory, in order: use them there, unless other sessions share that memory. */
    if (n == b->n_tokens && in_order && on_host && !s->plan->params.sched) {
        r->rows = set->result->data;
        return tn__check_finite(s, r->rows, (size_t)kept * row);
    }
    if (kept && in_order) {
        TN_TRY(tn_tensor_get_at(set->result, to, 0, (size_t)kept * row * sizeof(float)));
        return tn__check_finite(s, to, (size_t)kept * row);
    }
    for (int32_t i = 0; i < kept; i++)
        TN_TRY(tn_tensor_get_at(set->result, to + (size_t)i * row,
                                (size_t)s->staging.out_rows[i] * row * sizeof(float), row * sizeof(float)));
    return tn__check_finite(s, to, (size_t)kept * row);
}

/* Fetches a row that is still on the device, once. */
static float *fetch_row(tn_session *s, int32_t i) {
    tn__results *r = &s->results;
    const size_t n = (size_t)s->plan->model->h.n_vocab;
    float *to = r->logits + (size_t)i * n;
    tn_status status = TN_OK;
    pthread_mutex_lock(&r->fetching);
    if (!r->fetched[i]) {
        const size_t from = (size_t)(r->in_order ? i : s->staging.out_rows[i]);
        status = tn_tensor_get_at(r->waiting, to, from * n * sizeof *to, n * sizeof *to);
        r->fetched[i] = status == TN_OK;
    }
    pthread_mutex_unlock(&r->fetching);
    return status == TN_OK ? to : NULL;
}

void tn__results_keep(tn_session *s) {
    tn__results *r = &s->results;
    if (r->waiting) {
        /* Rows that cannot be fetched are lost; the device's next run reports why. */
        for (int32_t i = 0; i < r->n; i++)
            if (!fetch_row(s, i)) r->n = i;
        r->waiting = NULL;
        r->rows = r->logits;
        return;
    }
    if (!r->rows) return;
    if (r->n && r->rows != r->logits)
        memcpy(r->logits, r->rows, (size_t)r->n * (size_t)s->plan->model->h.n_vocab * sizeof(float));
    r->rows = r->logits;
}

/* ---- Reading them ---- */

int32_t tn_session_output_count(const tn_session *s) { return s->results.n; }

float *tn_session_logits(tn_session *s, int32_t i) {
    if (!s || s->plan->params.embeddings) return NULL;
    const tn__results *r = &s->results;
    if (i < 0) i += r->n;
    if (i < 0 || i >= r->n) return NULL;
    if (r->waiting) return fetch_row(s, i);
    return r->rows ? r->rows + (size_t)i * (size_t)s->plan->model->h.n_vocab : NULL;
}

int32_t tn_session_candidates(const tn_session *s, int32_t i, const tn_token **tokens, const float **logits) {
    if (!s || !tokens || !logits || !s->results.waiting) return 0;
    const tn__results *r = &s->results;
    const int32_t k = tn__plan_candidates(s->plan);
    if (i < 0) i += r->n;
    if (i < 0 || i >= r->n) return 0;
    *tokens = r->largest + (size_t)i * (size_t)k;
    *logits = r->largest_logits + (size_t)i * (size_t)k;
    return k;
}

tn_token tn_session_argmax(const tn_session *s, int32_t i) {
    if (!s || s->plan->params.embeddings) return -1;
    const tn__results *r = &s->results;
    if (i < 0) i += r->n;
    if (i < 0 || i >= r->n) return -1;
    if (r->waiting) return r->largest[(size_t)i * (size_t)tn__plan_candidates(s->plan)];
    if (!r->rows) return r->argmax[i];
    const float *row = r->rows + (size_t)i * (size_t)s->plan->model->h.n_vocab;
    tn_token argmax = 0;
    for (tn_token t = 1; t < s->plan->model->h.n_vocab; t++)
        if (row[t] > row[argmax]) argmax = t;
    return argmax;
}

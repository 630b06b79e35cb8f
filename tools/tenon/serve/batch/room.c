/* Admission to the KV cache: which jobs run now, which wait, and what happens when one fills its context.
 *
 * A job starts when its prompt and a part of its answer (--admit-tokens) fit next to the cells that the running jobs
 * hold and have reserved. If answers grow beyond that and the cache is full, the youngest job is preempted (moved
 * aside): its cells become a kept prefix, which can be evicted, and it resumes when it fits again. Jobs start in
 * order of arrival: a later job never overtakes a waiting one, unless that requests a busy slot. */
#include "engine/context_shift.h"
#include "serve/batch/batch.h"

#include <string.h>

/* ---- Admission ---- */

/* Tokens of a job's answer that must fit before it runs. */
static int32_t promised_answer(const struct engine *e, const struct job *job, int32_t count, int32_t n_predicted) {
    const struct served *served = e->served;
    int32_t n = job->n_predict < served->server->admit_tokens ? job->n_predict : served->server->admit_tokens;
    n -= n_predicted;
    if (n > served->n_ctx - count) n = served->n_ctx - count;
    return n > 0 ? n : 0;
}

/* Whether tokens and the reserved part of their answer fit next to the running jobs, or no other job runs. Tokens
 * that a running job holds need no cells. */
static bool has_room(struct engine *e, const struct job *job, const tn_token *tokens, int32_t count,
                     int32_t n_predicted) {
    int64_t needed = count + (int64_t)promised_answer(e, job, count, n_predicted);
    bool runs = false;
    for (int i = 0; i < e->n_slots; i++) {
        const struct slot *slot = &e->slots[i];
        if (!slot->job || slot->stalled) continue;
        needed += slot->count - slot->n_kv + promised_answer(e, slot->job, slot->count, slot->n_predicted);
        runs = true;
    }
    if (!runs) return true;
    const bool shares = e->keeps_prefixes && !job->no_cache && !job->score_prompt;
    const uint64_t key = tn_session_adapters_key(e->session, job->key, job->scales);
    if (shares) needed -= tn_session_prefix_shared(e->session, key, tokens, count - 1);
    return needed <= e->served->n_pool && needed + tn_session_cells_held(e->session) <= e->served->n_pool;
}

static bool any_stalled(const struct engine *e) {
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].job && e->slots[i].stalled) return true;
    return false;
}

static int slots_of(const struct engine *e, const struct request *request) {
    int n = 0;
    for (int i = 0; i < e->n_slots; i++) n += e->slots[i].job && e->slots[i].job->request == request;
    return n;
}

/* The job that gets a slot next: the oldest job of the request with the fewest slots. Requests with more jobs than
 * slots leave one slot to others. Jobs that wait for a specific slot are overtaken. */
static struct job **next_for_slot(struct engine *e, struct job **at) {
    struct job **best = NULL;
    int fewest = INT32_MAX;
    for (; *at; at = &(*at)->next) {
        const struct job *job = *at;
        if (job->embed || (job->slot >= 0 && !slot_choose(e, job))) continue;
        const int n = slots_of(e, job->request);
        if (n >= fewest || (e->n_slots > 1 && n >= e->n_slots - 1 && job->request->n_jobs > (size_t)e->n_slots))
            continue;
        best = at;
        fewest = n;
        if (n == 0) break;
    }
    return best ? best : at;
}

void admit_jobs(struct engine *e) {
    for (;;) {
        struct served *served = e->served;
        pthread_mutex_lock(&served->lock);
        struct job **at = &served->queue, *job = NULL;
        while (*at && !atomic_load(&(*at)->cancelled) && !(*at)->action) at = &(*at)->next;
        const bool needs_slot = !*at;
        if (needs_slot) at = next_for_slot(e, &served->queue);
        struct slot *slot = needs_slot && *at && !any_stalled(e) ? slot_choose(e, *at) : NULL;
        if (slot && !has_room(e, *at, (*at)->prompt.ids, (int32_t)(*at)->prompt.count, 0)) slot = NULL;
        if (*at && (!needs_slot || slot)) {
            job = *at;
            *at = job->next;
            if (!*at && served->queue_end == &job->next) served->queue_end = at;
            *(job->embed ? &served->n_embed_queued : &served->n_queued) -= 1;
            served->view.n_busy_slots += slot != NULL;
            if (slot) served->view.slots[slot - e->slots].busy = true;
        }
        pthread_mutex_unlock(&served->lock);
        if (!job) return;
        if (!slot && job->action && !atomic_load(&job->cancelled))
            slot_act(e, job);
        else if (!slot)
            output_end_job(served, job, FINISH_CANCELLED, NULL, "", 0, "", NULL, 0);
        else
            slot_assign(e, slot, job);
    }
}

void resume_stalled_job(struct engine *e) {
    struct slot *oldest = NULL;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (slot->job && slot->stalled && (!oldest || slot->task < oldest->task)) oldest = slot;
    }
    if (!oldest || !has_room(e, oldest->job, oldest->tokens, oldest->count, oldest->n_predicted)) return;
    oldest->stalled = false;
    atomic_store(&oldest->job->preempted, false);
    slot_take_prefix(e, oldest);
}

bool stall_youngest_job(struct engine *e) {
    struct slot *youngest = NULL;
    int n_running = 0;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (!slot->job || slot->stalled) continue;
        if (!youngest || slot->task > youngest->task) youngest = slot;
        n_running++;
    }
    if (n_running < 2) return false;
    slot_keep_prefix(e, youngest);
    slot_clear(e, youngest);
    youngest->stalled = true;
    atomic_store(&youngest->job->preempted, true);
    pthread_mutex_lock(&e->served->lock);
    e->served->view.n_stalls++;
    pthread_mutex_unlock(&e->served->lock);
    return true;
}

/* ---- Context shift ---- */

/* Removes tokens from the slot's list, as the session has removed them from its sequence. */
static void forget_tokens(struct slot *slot, int32_t keep, int32_t n) {
    const int32_t rest = slot->count - keep - n;
    memmove(slot->tokens + keep, slot->tokens + keep + n, (size_t)rest * sizeof *slot->tokens);
    slot->count -= n;
    slot->shifted = true;
}

static tn_status shift_slot(struct engine *e, struct slot *slot) {
    const int32_t seq = (int32_t)(slot - e->slots);
    const int32_t keep = context_shift_keep(slot->job->n_keep, slot->n_prompt, e->served->n_ctx);
    int32_t removed = (slot->count - keep) / 2;
    if (slot->n_kv < slot->count - 1) { /* it was preempted: most of its tokens have to be decoded anyway */
        if (slot->n_kv > keep) TN_TRY(tn_session_seq_remove(e->session, seq, keep, -1));
        slot->n_kv = slot->n_kv < keep ? slot->n_kv : keep;
    } else {
        tn_status status = tn_session_context_shift(e->session, seq, keep, &removed);
        if (status != TN_OK && status != TN_E_FULL) return status;
        slot->n_kv = status == TN_OK ? slot->n_kv - removed : keep; /* TN_E_FULL: the rest is decoded again */
    }
    forget_tokens(slot, keep, removed);
    tn_speculator_forget(e->speculation.speculator, seq);
    return TN_OK;
}

void shift_full_slots(struct engine *e) {
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (!slot->job || slot->stalled || slot->count < e->served->n_ctx) continue;
        if (shift_slot(e, slot) != TN_OK) {
            output_end_slot(e, slot, FINISH_ERROR, "", 0, tn_error(), false);
            continue;
        }
        pthread_mutex_lock(&e->served->lock);
        e->served->view.n_shifts++;
        pthread_mutex_unlock(&e->served->lock);
    }
}

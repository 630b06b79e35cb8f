/* The engine thread: continuous batching of jobs over slots.
 *
 * A slot is a sequence of the session with the tokens that belong in it. Every round decodes one batch: the sampled
 * token of each slot that generates, and a part of the prompts, so that a long prompt does not stall the others. When
 * the KV cache is full, the session evicts kept prefixes first; then the youngest job is preempted
 * (room.c). */
#include "serve/batch/batch.h"

#include <stdlib.h>
#include <string.h>

static void end_cancelled_jobs(struct engine *e) {
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].job && atomic_load(&e->slots[i].job->cancelled))
            output_end_slot(e, &e->slots[i], FINISH_CANCELLED, "", 0, "", false);
}

/* ---- The batch of a round ---- */

/* Whether to keep a checkpoint after this token of a prompt: where other texts have branched, where a message ends,
 * and before the last token, because the same prompt must decode that token again for its logits and states
 * cannot be rolled back. Templates put control tokens between messages, often several with the name of a role between
 * them. */
static bool is_checkpoint(const struct engine *e, struct slot *slot, int32_t position) {
    enum { LEAST_DISTANCE = 16 };
    const int32_t n = position + 1;
    if (n >= slot->n_prompt) return false;
    const bool border = n - slot->checkpoint >= LEAST_DISTANCE &&
                        tn_token_get_type(e->served->tokenizer, slot->tokens[position]) == TN_TOKEN_CONTROL;
    const bool last = n == slot->n_prompt - 1 && e->served->info.is_recurrent;
    if (!border && n != slot->branch && !last) return false;
    slot->checkpoint = n;
    return true;
}

static void add_tokens(struct engine *e, struct slot *slot, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        int32_t position = slot->n_kv + i, n = e->n_tokens++;
        e->tokens[n] = slot->tokens[position];
        e->positions[n] = position;
        e->seqs[n] = (int32_t)(slot - e->slots);
        e->guessed[n] = false;
        e->parents[n] = -1;
        e->checkpoints[n] = e->keeps_prefixes && !slot->job->no_cache && is_checkpoint(e, slot, position);
        e->outputs[n] = position == slot->count - 1 ||
                        (slot->job->score_prompt && position < slot->n_prompt - 1 && position + 1 >= slot->n_scored);
    }
    slot->in_batch = true;
}

static void add_guess(struct engine *e, const struct slot *slot) {
    const int32_t first = e->n_tokens; /* after the sampled token */
    for (int32_t i = 0; slot->guess && i < slot->guess->n; i++) {
        const int32_t n = e->n_tokens++, parent = first + (slot->guess->tree ? slot->guess->parents[i] : i - 1);
        e->tokens[n] = slot->guess->guess[i];
        e->parents[n] = parent;
        e->positions[n] = e->positions[parent] + 1;
        e->has_trees = e->has_trees || slot->guess->tree;
        e->seqs[n] = slot->guess->seq;
        e->checkpoints[n] = false;
        e->outputs[n] = e->guessed[n] = true;
    }
}

static int32_t tokens_left(const struct slot *slot) {
    return slot->job && !slot->stalled ? slot->count - slot->n_kv : 0;
}

static bool can_generate(const struct slot *slot) {
    return tokens_left(slot) == 1 && !atomic_load(&slot->job->paused);
}

/* A grammar may take many times as long as a decode, and all slots of a round wait for it. While others can run, such
 * a slot therefore rests for some rounds after each of its own, so that others have at least half of the time. */
static void choose_resting(struct engine *e) {
    bool others = false;
    for (int i = 0; i < e->n_slots; i++) {
        const struct slot *slot = &e->slots[i];
        others = others || tokens_left(slot) > 1 || (can_generate(slot) && slot->rest == 0);
    }
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        slot->resting = others && slot->rest > 0 && can_generate(slot);
        if (slot->resting) slot->rest--;
    }
}

/* The slot rests for as many rounds as take about the time of its sampling, at most 64; for none if sampling took
 * less than 0.2 ms. */
static void note_sampling(const struct engine *e, struct slot *slot) {
    enum { COSTLY_NS = 200000, MOST_ROUNDS = 64 };
    const uint64_t rounds = slot->sample_ns / (e->decode_ns + 1);
    slot->rest = slot->sample_ns < COSTLY_NS ? 0 : rounds < MOST_ROUNDS ? (int32_t)rounds : MOST_ROUNDS;
}

/* Prompt tokens for this round. Batches with prompts are a multiple of BATCH_STEP tokens if possible, and the rest
 * waits for the next round: every new batch size needs a graph, whose memory is never freed. */
static int32_t prompt_budget(const struct engine *e) {
    enum { BATCH_STEP = 64 };
    int32_t budget = e->n_piece < e->n_batch - e->n_tokens ? e->n_piece : e->n_batch - e->n_tokens, waiting = 0;
    for (int i = 0; i < e->n_slots && waiting < budget; i++)
        if (tokens_left(&e->slots[i]) > 1) waiting += tokens_left(&e->slots[i]);
    int32_t total = e->n_tokens + (waiting < budget ? waiting : budget), whole = total / BATCH_STEP * BATCH_STEP;
    return whole - e->n_tokens >= BATCH_STEP / 2 ? whole - e->n_tokens : budget;
}

static void build_batch(struct engine *e) {
    e->n_tokens = 0;
    e->has_trees = false;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        slot->in_batch = false;
        if (!can_generate(slot) || slot->resting) continue;
        add_tokens(e, slot, 1);
        add_guess(e, slot);
    }
    int32_t budget = prompt_budget(e), score_budget = e->n_score;
    e->turn++; /* every round begins with another slot */
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[(i + e->turn) % e->n_slots];
        int32_t n = tokens_left(slot);
        if (n < 2) continue;
        if (n > budget) n = budget;
        if (slot->job->score_prompt && n > score_budget) n = score_budget;
        if (n < 1) continue;
        if (slot->job->score_prompt) score_budget -= n;
        budget -= n;
        add_tokens(e, slot, n);
    }
}

/* ---- The results of a round ---- */

/* All threads sample. Each begins with the rows that it has computed, which are in its core's cache, and continues
 * with rows that other threads have not reached. */
static void sample_rows(void *user, int index, int count) {
    struct engine *e = user;
    for (int i = 0; i < count; i++) {
        const int share = (index + i) % count, end = e->n_rows * (share + 1) / count;
        for (int n; (n = e->n_rows * share / count + atomic_fetch_add(&e->next_row[share], 1)) < end;) {
            struct slot *slot = e->rows[n].slot;
            const uint64_t began = tn_time_ns();
            slot->sampled = tn_generator_sample(slot->job->generator, e->session, e->rows[n].row);
            slot->sample_ns = tn_time_ns() - began;
            if (slot->sampled != TN_OK && slot->sampled != TN_END)
                snprintf(slot->error, sizeof slot->error, "%s", tn_error());
        }
    }
}

/* Sends the token that a slot's generator has sampled, and ends the job if the text has ended or a limit is reached.
 */
static void report_sample(struct engine *e, struct slot *slot, int32_t row) {
    struct job *job = slot->job;
    struct served *served = e->served;
    const tn_token token = tn_generator_token(job->generator);
    const int stop = tn_generator_stop(job->generator);
    size_t length;
    const char *text = tn_generator_text(job->generator, &length);
    if (slot->sampled != TN_OK && slot->sampled != TN_END) {
        output_end_slot(e, slot, FINISH_ERROR, "", 0, slot->error, false);
        return;
    }
    slot->n_predicted = (int32_t)tn_generator_count(job->generator);
    if (slot->sampled == TN_END && stop < 0) {
        output_end_slot(e, slot, FINISH_EOS, text, length, "", false);
        return;
    }
    output_token(e, slot, token, job->n_top >= 0 ? tn_session_logits(e->session, row) : NULL, text, length, false);
    if (slot->sampled == TN_END) {
        bool user = (size_t)stop < job->n_user_stops;
        output_end_slot(e, slot, user ? FINISH_WORD : FINISH_EOS, "", 0, job->stops[stop], false);
        return;
    }
    const bool full = slot->count + 1 >= served->n_ctx && !served->shifts;
    if (full && slot->n_predicted < job->n_predict)
        tn_log(TN_LOG_INFO,
               "slot %d: the context of %d tokens is full, the answer ends; use --context-shift to continue",
               (int)(slot - e->slots), served->n_ctx);
    if (slot->n_predicted >= job->n_predict || full) {
        text = tn_generator_finish(job->generator, &length);
        output_end_slot(e, slot, FINISH_LIMIT, text, length, "",
                        full && (slot->n_predicted < job->n_predict || job->until_full));
        return;
    }
    slot->tokens[slot->count++] = token;
}

/* Samples and reports the rows. Where a slot's token was guessed, the row after the guess is the next. */
static void sample_and_report(struct engine *e) {
    const int n_threads = tn_threadpool_size(e->threads), n = e->n_rows;
    for (int i = 0; i < n_threads; i++) atomic_store(&e->next_row[i], 0);
    if (n > 1)
        tn_threadpool_run(e->threads, 0, sample_rows, e);
    else
        sample_rows(e, 0, 1);
    e->n_rows = 0;
    for (int i = 0; i < n; i++) {
        struct slot *slot = e->rows[i].slot;
        note_sampling(e, slot);
        report_sample(e, slot, e->rows[i].row);
        if (slot->job && guess_matches(slot, slot->tokens[slot->count - 1]))
            e->rows[e->n_rows++] = (struct sample_row){slot, slot->row + 1 + slot->at};
    }
}

static void take_results(struct engine *e) {
    int32_t row = 0;
    e->n_rows = 0;
    for (int32_t i = 0; i < e->n_tokens; i++) {
        struct slot *slot = &e->slots[e->seqs[i]];
        if (!e->guessed[i]) slot->n_kv = e->positions[i] + 1;
        if (!e->outputs[i]) continue;
        const int32_t at = row++;
        if (e->guessed[i]) continue; /* sampled only if all tokens before it were */
        if (!slot->job) continue;
        if (slot->job->score_prompt && slot->n_kv < slot->n_prompt) {
            output_token(e, slot, slot->tokens[slot->n_kv], tn_session_logits(e->session, at), "", 0, true);
            slot->n_scored = slot->n_kv + 1;
        } else if (slot->n_kv == slot->count) {
            if (!slot->prompted) {
                slot->prompted = tn_time_ns();
                /* With recurrent models, the same prompt can also continue at the checkpoint before its last token.
                 */
                if (!e->served->info.is_recurrent) slot_keep_prefix(e, slot);
            }
            if (slot->job->n_predict == 0)
                output_end_slot(e, slot, FINISH_LIMIT, "", 0, "", false);
            else
                e->rows[e->n_rows++] = (struct sample_row){slot, slot->row = at};
        }
    }
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].in_batch && e->slots[i].job && e->slots[i].n_predicted == 0) output_progress(e, &e->slots[i]);
    while (e->n_rows) sample_and_report(e);
    for (int i = 0; i < e->n_slots; i++) guess_settle(e, &e->slots[i]);
}

/* After a failed decode: removes its tokens from the cache. Its jobs fail, unless the decode was aborted. */
static void undo_decode(struct engine *e, tn_status status) {
    char why[200];
    snprintf(why, sizeof why, "%s", tn_error());
    guesses_drop(e);
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (!slot->in_batch) continue;
        if (slot->n_kv == 0 || tn_session_seq_remove(e->session, i, slot->n_kv, -1) != TN_OK) slot_clear(e, slot);
        if (status != TN_E_ABORTED && slot->job) output_end_slot(e, slot, FINISH_ERROR, "", 0, why, false);
    }
}

/* A decode is aborted when all of its jobs are cancelled, or when the program must end. */
bool engine_should_abort(void *user) {
    struct engine *e = user;
    if (atomic_load(&e->served->phase) == PHASE_FAILED) return true;
    if (e->embedding) return false;
    bool any = false;
    for (int i = 0; e->slots && i < e->n_slots; i++) {
        if (!e->slots[i].in_batch || !e->slots[i].job) continue;
        if (!atomic_load(&e->slots[i].job->cancelled)) return false;
        any = true;
    }
    return any;
}

/* ---- The thread ---- */

/* Publishes the owners of pages and, while a client views it, the tree of prefixes. */
static void publish_pages(struct engine *e, tn_session *session) {
    struct engine_view *view = &e->served->view;
    tn_session_page_map(session, view->page_map);
    view->n_shared_pages = view->n_kept_pages = view->n_free_pages = 0;
    for (int i = 0; i < e->n_slots; i++) view->slots[i].n_pages = 0;
    for (int32_t i = 0; i < view->cache.pages; i++) {
        const int32_t owner = view->page_map[i];
        if (owner == TN_PAGE_FREE)
            view->n_free_pages++;
        else if (owner == TN_PAGE_SHARED)
            view->n_shared_pages++;
        else if (owner >= e->n_slots)
            view->n_kept_pages++;
        else
            view->slots[owner].n_pages++;
    }
    if (!e->served->tree_wanted) return;
    e->served->tree_wanted = false;
    view->n_tree = tn_session_prefix_tree(session, view->tree, TREE_ENTRIES);
}

void engine_publish_state(struct engine *e, bool now) {
    struct engine_view *view = &e->served->view;
    uint64_t time = tn_time_ns();
    tn_session *session = e->session ? e->session : e->served->embedder;
    pthread_mutex_lock(&e->served->lock);
    view->stats = tn_session_get_stats(session);
    view->cache = tn_session_cache_usage(session);
    view->n_busy_slots = 0;
    for (int i = 0; i < e->n_slots; i++) {
        const struct slot *s = &e->slots[i];
        view->slots[i] = (struct slot_view){.busy = s->job != NULL,
                                            .stalled = s->job && s->stalled,
                                            .n_pages = view->slots[i].n_pages,
                                            .n_prompt = s->n_prompt,
                                            .n_done = s->n_kv,
                                            .n_cached = s->n_cached,
                                            .n_predicted = s->n_predicted,
                                            .n_remaining = s->job ? s->job->n_predict - s->n_predicted : 0,
                                            .task = s->task};
        if (s->job) {
            view->slots[i].sampling = s->job->sampling;
            view->slots[i].n_predict = s->job->n_predict;
            if (s->job->sampler) view->slots[i].sampling.seed = tn_sampler_seed(s->job->sampler);
        }
        view->n_busy_slots += s->job != NULL;
    }
    /* The map walks all cells, so it is updated five times a second, and fifty times while a client views
     * it. */
    if (now || time - e->map_time > (e->served->state_wanted ? 20000000u : 200000000u)) {
        e->map_time = time;
        e->served->state_wanted = false;
        tn_session_cache_map(session, view->map);
        publish_pages(e, session);
        view->prefixes = tn_session_prefix_usage(session);
        view->guesses = tn_speculator_stats(e->speculation.speculator);
        view->tiers = tn_session_tier_usage(session);
        tn_fit fit;
        if (tn_session_memory(session, &fit) == TN_OK) {
            tn_fit_free(&view->used);
            view->used = fit;
        }
    }
    pthread_mutex_unlock(&e->served->lock);
}

static bool is_busy(const struct engine *e) {
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].job) return true;
    return false;
}

/* Passes posted pieces to the HTTP thread. The published state shows that a job has ended before its client has the
 * answer.
 */
static void hand_over(struct engine *e, bool now) {
    if (e->served->ended_some) engine_publish_state(e, true);
    output_wake(e->served, now);
}

/* Whether a job of the batch needs whole rows of logits. */
static bool needs_logits(const struct engine *e) {
    for (int i = 0; i < e->n_slots; i++) {
        const struct slot *slot = &e->slots[i];
        if (slot->in_batch && slot->job && (slot->job->n_top >= 0 || slot->job->score_prompt)) return true;
    }
    return false;
}

/* One decode; false if there was nothing to decode. */
static bool run_round(struct engine *e) {
    tn_status status;
    resume_stalled_job(e);
    shift_full_slots(e);
    choose_resting(e);
    guesses_make(e);
    do {
        build_batch(e);
        if (e->n_tokens == 0) return false;
        tn_batch batch = {.n_tokens = e->n_tokens,
                          .tokens = e->tokens,
                          .positions = e->positions,
                          .seqs = e->seqs,
                          .outputs = e->outputs,
                          .checkpoints = e->checkpoints,
                          .guesses = e->n_guesses ? e->guessed : NULL,
                          .parents = e->has_trees ? e->parents : NULL,
                          .candidates = !needs_logits(e)};
        hand_over(e, e->n_tokens > e->n_slots); /* a prompt may take long */
        const uint64_t began = tn_time_ns();
        status = tn_session_decode(e->session, &batch);
        e->decode_ns = tn_time_ns() - began;
        if (status == TN_OK && file_is_lost()) status = tn_fail(TN_E_IO, LOST_FILE);
        if (status == TN_E_FULL) guesses_drop(e); /* they do not fit */
    } while (status == TN_E_FULL && stall_youngest_job(e));
    if (status == TN_OK)
        take_results(e);
    else
        undo_decode(e, status);
    pthread_mutex_lock(&e->served->lock);
    e->served->view.n_decodes++;
    for (int i = 0; i < e->n_slots; i++) e->served->view.n_busy_sum += e->slots[i].in_batch;
    pthread_mutex_unlock(&e->served->lock);
    return true;
}

/* All jobs are paused until their clients have read. A signal usually ends the wait; the timeout covers missed ones.
 */
static void wait_while_paused(struct served *served) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&served->lock);
    pthread_cond_timedwait(&served->wake, &served->lock, &until);
    pthread_mutex_unlock(&served->lock);
}

/* Nothing can be computed without the other ranks: the server exits and can be restarted. */
static bool ranks_are_lost(struct served *served) {
    if (tn_net_status(served->server->net) == TN_OK) return false;
    snprintf(served->error, sizeof served->error, "%s", tn_error());
    served->exit_code = fail("%s", served->error);
    atomic_store(&served->phase, PHASE_FAILED);
    return true;
}

/* The model's file was truncated: remaining requests get an error, and the model is unloaded. */
static bool end_without_file(struct engine *e) {
    struct served *served = e->served;
    if (!file_is_lost()) return false;
    snprintf(served->error, sizeof served->error, "%s", LOST_FILE);
    served->exit_code = fail("%s: %s", served->path, LOST_FILE);
    atomic_store(&served->phase, PHASE_FAILED);
    fail_all_jobs(e, LOST_FILE);
    return true;
}

void engine_run(struct engine *e) {
    struct served *served = e->served;
    engine_publish_state(e, true);
    for (;;) {
        pthread_mutex_lock(&served->lock);
        while (atomic_load(&served->phase) == PHASE_READY && !is_busy(e) && !served->queue && !served->tree_wanted)
            pthread_cond_wait(&served->wake, &served->lock);
        bool waiting = served->queue != NULL;
        pthread_mutex_unlock(&served->lock);
        int phase = atomic_load(&served->phase);
        if (phase != PHASE_READY && !is_busy(e) && !waiting) break;
        end_cancelled_jobs(e);
        admit_jobs(e);
        hand_over(e, !is_busy(e));
        bool worked = run_round(e);
        if (ranks_are_lost(served) || end_without_file(e)) break;
        hand_over(e, !is_busy(e));
        worked = embed_round(e) || worked;
        hand_over(e, !worked || !is_busy(e));
        engine_publish_state(e, !is_busy(e));
        if (!worked && is_busy(e)) wait_while_paused(served);
    }
    output_wake(served, true);
}

/* The engine thread: continuous batching of jobs over slots.
 *
 * A slot is a sequence of the session with the tokens that belong in it. Every round feeds what the slots still lack:
 * one token of each that writes, and a piece of the prompts that wait, so that a long prompt stalls nobody. When the
 * cache is full, what idle slots remember goes first; then the youngest job gives its cells back and is computed
 * again when there is room. */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

static struct piece *piece_new(struct job *job, size_t n_top, const char *text, size_t length) {
    struct piece *p = tn_calloc(1, sizeof *p + n_top * sizeof *p->top);
    if (!p) return NULL;
    p->text = tn_malloc(length + 1);
    if (!p->text) {
        tn_free(p);
        return NULL;
    }
    memcpy(p->text, text, length);
    p->text[length] = '\0';
    p->length = length;
    p->job = job;
    p->token = TN_TOKEN_NONE;
    p->n_top = n_top;
    return p;
}

/* The HTTP thread is woken once for all pieces of a round, or of a few. */
static void post(struct served *served, struct piece *p) {
    if (p->finish) served->ended_some = true; /* not later, when it is no longer ours */
    pthread_mutex_lock(&served->lock);
    *served->outbox_end = p;
    served->outbox_end = &p->next;
    pthread_mutex_unlock(&served->lock);
    served->posted = true;
}
/* An end is told at once: its slot is free for the client's next request. */
static void announce(struct served *served, bool now) {
    now = now || served->ended_some;
    if (!served->posted || (!now && tn_time_ns() < atomic_load(&served->call_after))) return;
    event_active(served->outbox_ready, EV_READ, 0);
    served->posted = served->ended_some = false;
}

static struct job_stats stats_of(const struct slot *slot) {
    uint64_t now = tn_time_ns(), prompted = slot->prompted ? slot->prompted : now;
    return (struct job_stats){
        .n_cached = slot->n_cached,
        .n_prompt = slot->n_prompt,
        .n_predicted = slot->n_predicted,
        .prompt_ms = (double)(prompted - slot->began) / 1e6,
        .predicted_ms = (double)(now - prompted) / 1e6,
    };
}

/* The last piece of a job. There must be one even without memory, or the request would never end. */
void engine_end_job(struct served *served, struct job *job, enum finish finish, const struct job_stats *stats,
                    const char *text, size_t length, const char *detail, float *vector, size_t n_vector) {
    struct piece *p;
    while (!(p = piece_new(job, 0, text, length))) {
        struct timespec pause = {.tv_nsec = 10000000};
        nanosleep(&pause, NULL);
    }
    p->finish = finish;
    if (stats) p->stats = *stats;
    if (job->sampler) p->stats.seed = tn_sampler_seed(job->sampler);
    if (finish == FINISH_WORD) snprintf(p->stop_word, sizeof p->stop_word, "%s", detail);
    if (finish == FINISH_ERROR) snprintf(p->error, sizeof p->error, "%s", detail);
    p->vector = vector;
    p->n_vector = n_vector;
    post(served, p);
}

static void post_end(struct served *served, struct job *job, enum finish finish, const struct job_stats *stats,
                     const char *text, size_t length, const char *detail) {
    engine_end_job(served, job, finish, stats, text, length, detail, NULL, 0);
}

static void finish_slot(struct engine *e, struct slot *slot, enum finish finish, const char *text, size_t length,
                        const char *detail, bool truncated) {
    struct job_stats stats = stats_of(slot);
    stats.truncated = truncated;
    struct job *job = slot->job;
    slot->job = NULL;
    slot->count = slot->n_kv; /* a token that was drawn but not fed is not in the cache */
    slot->used = tn_time_ns();
    pthread_mutex_lock(&e->served->lock);
    e->served->view.n_prompt += (uint64_t)(stats.n_prompt - stats.n_cached);
    e->served->view.n_predicted += (uint64_t)stats.n_predicted;
    e->served->view.prompt_seconds += stats.prompt_ms / 1e3;
    e->served->view.predicted_seconds += stats.predicted_ms / 1e3;
    pthread_mutex_unlock(&e->served->lock);
    post_end(e->served, job, finish, &stats, text, length, detail);
}

/* ---- Slots ----------------------------------------------------------------------------------------------------- */

static int32_t common_prefix(const struct slot *slot, const tn_tokens *prompt) {
    int32_t n = 0, most = slot->n_kv < (int32_t)prompt->count - 1 ? slot->n_kv : (int32_t)prompt->count - 1;
    while (n < most && slot->tokens[n] == prompt->ids[n]) n++;
    return n;
}

static void forget(struct engine *e, struct slot *slot) {
    if (tn_session_seq_remove(e->session, (int32_t)(slot - e->slots), 0, -1) != TN_OK)
        tn_log(TN_LOG_WARN, "slot %d: %s", (int)(slot - e->slots), tn_error());
    slot->n_kv = 0;
    if (!slot->job) slot->count = 0;
}

static void assign(struct engine *e, struct slot *slot, struct job *job) {
    int32_t id = (int32_t)(slot - e->slots), keep = 0;
    bool windowed = e->served->info.n_window > 0;
    if (!job->no_cache && !job->score_prompt) {
        keep = common_prefix(slot, &job->prompt);
        /* A sliding window has dropped what lies before its end: only a whole sequence can go on. */
        if (windowed && keep < slot->n_kv) keep = 0;
        struct slot *source = NULL;
        int32_t best = keep;
        for (int i = 0; !windowed && i < e->n_slots; i++) {
            int32_t n = &e->slots[i] == slot ? 0 : common_prefix(&e->slots[i], &job->prompt);
            if (n > best + 16) {
                best = n;
                source = &e->slots[i];
            }
        }
        if (source) {
            forget(e, slot);
            keep = tn_session_seq_copy(e->session, (int32_t)(source - e->slots), id, 0, best) == TN_OK ? best : 0;
        }
    }
    if (keep == 0)
        forget(e, slot);
    else if (tn_session_seq_remove(e->session, id, keep, -1) != TN_OK)
        keep = 0;
    memcpy(slot->tokens, job->prompt.ids, job->prompt.count * sizeof *slot->tokens);
    slot->job = job;
    slot->stalled = false;
    slot->count = slot->n_prompt = (int32_t)job->prompt.count;
    slot->n_kv = slot->n_cached = keep;
    slot->n_predicted = 0;
    slot->n_scored = 1;
    slot->prompted = 0;
    slot->began = tn_time_ns();
    slot->task = ++e->n_tasks;
}

/* The idle slot that already knows most of the prompt; of equals the one longest unused. */
static struct slot *choose_slot(struct engine *e, const tn_tokens *prompt) {
    struct slot *best = NULL;
    int32_t best_n = -1;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (slot->job) continue;
        int32_t n = common_prefix(slot, prompt);
        if (n > best_n || (n == best_n && slot->used < best->used)) {
            best = slot;
            best_n = n;
        }
    }
    return best;
}

/* Whether a prompt can be computed beside those at work. */
static bool has_room(const struct engine *e, const struct job *job) {
    int64_t used = 0;
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].job) used += e->slots[i].count;
    return used == 0 || used + (int64_t)job->prompt.count + 1 <= e->served->n_ctx;
}

/* ---- Keeping slots ----------------------------------------------------------------------------------------------
 */

/* A slot's state is two files: the session's, and beside it the tokens, without which no prefix could be recognised.
 */
static bool tokens_path(const struct job *job, char *path, size_t size) {
    return (size_t)snprintf(path, size, "%s.tokens", job->path) < size;
}

static tn_status save_slot(struct engine *e, struct slot *slot, const struct job *job) {
    char path[4200];
    if (!tokens_path(job, path, sizeof path)) return tn_fail(TN_E_INVALID, "the file's name is too long");
    if (slot->n_kv == 0) return tn_fail(TN_E_STATE, "slot %d is empty", job->slot);
    TN_TRY(tn_session_save(e->session, job->slot, job->path));
    FILE *file = fopen(path, "wb");
    bool fine = file && fwrite(slot->tokens, sizeof *slot->tokens, (size_t)slot->n_kv, file) == (size_t)slot->n_kv;
    if (file && fclose(file) != 0) fine = false;
    return fine ? TN_OK : tn_fail(TN_E_IO, "the slot's tokens could not be written");
}

static tn_status restore_slot(struct engine *e, struct slot *slot, const struct job *job) {
    char path[4200];
    if (!tokens_path(job, path, sizeof path)) return tn_fail(TN_E_INVALID, "the file's name is too long");
    FILE *file = fopen(path, "rb");
    if (!file) return tn_fail(TN_E_NOT_FOUND, "there is no such saved slot");
    forget(e, slot);
    size_t n = fread(slot->tokens, sizeof *slot->tokens, (size_t)e->served->n_ctx, file);
    fclose(file);
    tn_status status = tn_session_load(e->session, job->slot, job->path);
    for (size_t i = 0; status == TN_OK && i < n; i++)
        if (slot->tokens[i] < 0 || slot->tokens[i] >= e->served->info.n_vocab)
            status = tn_fail(TN_E_FORMAT, "the saved tokens are no tokens of this model");
    if (status == TN_OK && (n == 0 || tn_session_seq_last(e->session, job->slot) != (int32_t)n - 1))
        status = tn_fail(TN_E_FORMAT, "the saved tokens and the saved cache do not belong together");
    if (status != TN_OK) {
        forget(e, slot);
        return status;
    }
    slot->n_kv = slot->count = slot->n_prompt = (int32_t)n;
    return TN_OK;
}

static void act(struct engine *e, struct job *job) {
    struct slot *slot = &e->slots[job->slot];
    struct job_stats stats = {.n_prompt = slot->n_kv};
    tn_status status = TN_OK;
    if (slot->job) {
        status = tn_fail(TN_E_STATE, "slot %d is at work", job->slot);
    } else if (job->action == SLOT_ERASE) {
        forget(e, slot);
    } else if (job->action == SLOT_SAVE) {
        status = save_slot(e, slot, job);
    } else {
        status = restore_slot(e, slot, job);
        stats.n_prompt = slot->n_kv;
    }
    slot->used = tn_time_ns();
    post_end(e->served, job, status == TN_OK ? FINISH_EOS : FINISH_ERROR, &stats, "", 0,
             status == TN_OK ? "" : tn_error());
}

/* ---- Admission --------------------------------------------------------------------------------------------------
 */

static void admit(struct engine *e) {
    for (;;) {
        struct served *served = e->served;
        pthread_mutex_lock(&served->lock);
        struct job **at = &served->queue, *job = NULL;
        while (*at && !atomic_load(&(*at)->cancelled) && !(*at)->action) at = &(*at)->next;
        if (!*at)
            for (at = &served->queue; *at && (*at)->embed;) at = &(*at)->next;
        struct slot *slot = NULL;
        if (*at && (atomic_load(&(*at)->cancelled) || (*at)->action ||
                    ((slot = choose_slot(e, &(*at)->prompt)) != NULL && has_room(e, *at)))) {
            job = *at;
            *at = job->next;
            if (!*at && served->queue_end == &job->next) served->queue_end = at;
            *(job->embed ? &served->n_embed_queued : &served->n_queued) -= 1;
            served->view.n_busy_slots += slot != NULL;
        }
        pthread_mutex_unlock(&served->lock);
        if (!job) return;
        if (!slot && job->action && !atomic_load(&job->cancelled))
            act(e, job);
        else if (!slot)
            post_end(served, job, FINISH_CANCELLED, NULL, "", 0, "");
        else
            assign(e, slot, job);
    }
}

static void drop_cancelled(struct engine *e) {
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].job && atomic_load(&e->slots[i].job->cancelled))
            finish_slot(e, &e->slots[i], FINISH_CANCELLED, "", 0, "", false);
}

/* Frees cells. False when nobody is left to give any. */
static bool make_room(struct engine *e) {
    struct slot *oldest = NULL, *youngest = NULL;
    int n_busy = 0;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (!slot->job && slot->n_kv && (!oldest || slot->used < oldest->used)) oldest = slot;
        if (slot->job && slot->n_kv && (!youngest || slot->task > youngest->task)) youngest = slot;
        n_busy += slot->job && slot->n_kv;
    }
    struct slot *victim = oldest ? oldest : n_busy > 1 ? youngest : NULL;
    if (!victim) return false;
    forget(e, victim);
    victim->stalled = victim->job != NULL;
    return true;
}

/* ---- Text ------------------------------------------------------------------------------------------------------ */

static void post_token(struct engine *e, struct slot *slot, tn_token token, const float *row, const char *text,
                       size_t length, bool of_prompt) {
    struct job *job = slot->job;
    size_t n_top = job->n_top > 0 ? (size_t)job->n_top : 0;
    float logprob = 0;
    bool known = row && job->n_top >= 0 &&
                 tn_top_logprobs(row, (size_t)e->served->info.n_vocab, e->top, n_top, token, &logprob) == TN_OK;
    struct piece *p = piece_new(job, known ? n_top : 0, text, length);
    if (!p) return; /* a lost piece of text; the end is still reported */
    p->token = token;
    p->of_prompt = of_prompt;
    p->has_logprob = known;
    p->logprob = logprob;
    if (known) memcpy(p->top, e->top, n_top * sizeof *p->top);
    post(e->served, p);
}

/* All threads sample. Each begins with the rows that it has computed, which its core's cache still holds, and goes on
 * with those that other threads have not reached. */
static void sample_rows(void *user, int index, int count) {
    struct engine *e = user;
    for (int i = 0; i < count; i++) {
        const int share = (index + i) % count, end = e->n_rows * (share + 1) / count;
        for (int n; (n = e->n_rows * share / count + atomic_fetch_add(&e->next_row[share], 1)) < end;) {
            struct slot *slot = e->rows[n].slot;
            slot->sampled =
                tn_generator_sample_logits(slot->job->generator, e->rows[n].logits, (size_t)e->served->info.n_vocab);
            if (slot->sampled != TN_OK && slot->sampled != TN_END)
                snprintf(slot->error, sizeof slot->error, "%s", tn_error());
        }
    }
}

/* Reports what a slot's generator has sampled, and ends the job if the text has ended or a limit is reached. */
static void advance(struct engine *e, struct slot *slot, const float *logits) {
    struct job *job = slot->job;
    struct served *served = e->served;
    const tn_token token = tn_generator_token(job->generator);
    const int stop = tn_generator_stop(job->generator);
    size_t length;
    const char *text = tn_generator_text(job->generator, &length);
    if (slot->sampled != TN_OK && slot->sampled != TN_END) {
        finish_slot(e, slot, FINISH_ERROR, "", 0, slot->error, false);
        return;
    }
    slot->n_predicted = (int32_t)tn_generator_count(job->generator);
    if (slot->sampled == TN_END && stop < 0) {
        finish_slot(e, slot, FINISH_EOS, text, length, "", false);
        return;
    }
    post_token(e, slot, token, logits, text, length, false);
    if (slot->sampled == TN_END) {
        bool user = (size_t)stop < job->n_user_stops;
        finish_slot(e, slot, user ? FINISH_WORD : FINISH_EOS, "", 0, job->stops[stop], false);
        return;
    }
    bool full = slot->count + 1 >= served->n_ctx;
    if (slot->n_predicted >= job->n_predict || full) {
        text = tn_generator_finish(job->generator, &length);
        finish_slot(e, slot, FINISH_LIMIT, text, length, "", full && slot->n_predicted < job->n_predict);
        return;
    }
    slot->tokens[slot->count++] = token;
}

enum { BATCH_STEP = 64 };

/* ---- Rounds ---------------------------------------------------------------------------------------------------- */

static void feed(struct engine *e, struct slot *slot, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        int32_t position = slot->n_kv + i, n = e->n_tokens++;
        e->tokens[n] = slot->tokens[position];
        e->positions[n] = position;
        e->seqs[n] = (int32_t)(slot - e->slots);
        e->outputs[n] = position == slot->count - 1 ||
                        (slot->job->score_prompt && position < slot->n_prompt - 1 && position + 1 >= slot->n_scored);
    }
    slot->fed = true;
}

/* Lets the oldest of those that gave way go on, when there is room for it beside the others and for a few tokens
 * more, or nobody else is left. */
static void resume(struct engine *e) {
    struct slot *oldest = NULL;
    int64_t used = 0;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (!slot->job) continue;
        if (!slot->stalled)
            used += slot->count + 16;
        else if (!oldest || slot->task < oldest->task)
            oldest = slot;
    }
    if (oldest && (used == 0 || used + oldest->count + 16 <= e->served->n_ctx)) oldest->stalled = false;
}

static void build(struct engine *e) {
    e->n_tokens = 0;
    int32_t score = e->n_score, left;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        slot->fed = false;
        if (slot->job && slot->count - slot->n_kv == 1 && !slot->stalled && !atomic_load(&slot->job->paused))
            feed(e, slot, 1);
    }
    left = e->n_piece < e->n_batch - e->n_tokens ? e->n_piece : e->n_batch - e->n_tokens;
    /* Large batches come in a few sizes: each size met for the first time costs a plan, and its memory for good. What
     * is over waits for the next round. */
    int32_t waiting = 0;
    for (int i = 0; i < e->n_slots && waiting < left; i++)
        if (e->slots[i].job && !e->slots[i].stalled && e->slots[i].count - e->slots[i].n_kv > 1)
            waiting += e->slots[i].count - e->slots[i].n_kv;
    int32_t total = e->n_tokens + (waiting < left ? waiting : left), whole = total / BATCH_STEP * BATCH_STEP;
    if (whole - e->n_tokens >= BATCH_STEP / 2) left = whole - e->n_tokens;
    e->turn++;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[(i + e->turn) % e->n_slots];
        if (!slot->job || slot->stalled || slot->count - slot->n_kv < 2) continue;
        int32_t n = slot->count - slot->n_kv;
        if (n > left) n = left;
        if (slot->job->score_prompt && n > score) n = score;
        if (n < 1) continue;
        if (slot->job->score_prompt) score -= n;
        left -= n;
        feed(e, slot, n);
    }
}

static void harvest(struct engine *e) {
    int32_t row = 0;
    e->n_rows = 0;
    for (int32_t i = 0; i < e->n_tokens; i++) {
        struct slot *slot = &e->slots[e->seqs[i]];
        slot->n_kv = e->positions[i] + 1;
        if (!e->outputs[i]) continue;
        const float *logits = tn_session_logits(e->session, row++);
        if (!slot->job || !logits) continue;
        if (slot->job->score_prompt && slot->n_kv < slot->n_prompt) {
            post_token(e, slot, slot->tokens[slot->n_kv], logits, "", 0, true);
            slot->n_scored = slot->n_kv + 1;
        } else if (slot->n_kv == slot->count) {
            if (!slot->prompted) slot->prompted = tn_time_ns();
            if (slot->job->n_predict == 0)
                finish_slot(e, slot, FINISH_LIMIT, "", 0, "", false);
            else
                e->rows[e->n_rows++] = (struct sample_row){slot, logits};
        }
    }
    const int n_threads = tn_threadpool_size(e->threads);
    for (int i = 0; i < n_threads; i++) atomic_store(&e->next_row[i], 0);
    if (e->n_rows > 1)
        tn_threadpool_run(e->threads, 0, sample_rows, e);
    else
        sample_rows(e, 0, 1);
    for (int i = 0; i < e->n_rows; i++) advance(e, e->rows[i].slot, e->rows[i].logits);
}

/* A decode is given up when everybody in it has gone, or when the program must end. */
bool engine_abandon(void *user) {
    struct engine *e = user;
    if (atomic_load(&e->served->phase) == PHASE_FAILED) return true;
    if (e->embedding) return false;
    bool fed = false;
    for (int i = 0; e->slots && i < e->n_slots; i++) {
        if (!e->slots[i].fed || !e->slots[i].job) continue;
        if (!atomic_load(&e->slots[i].job->cancelled)) return false;
        fed = true;
    }
    return fed;
}

static void repair(struct engine *e, tn_status status) {
    char why[200];
    snprintf(why, sizeof why, "%s", tn_error());
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (!slot->fed) continue;
        if (tn_session_seq_remove(e->session, i, slot->n_kv, -1) != TN_OK) forget(e, slot);
        if (status != TN_E_ABORTED && slot->job) finish_slot(e, slot, FINISH_ERROR, "", 0, why, false);
    }
}

void engine_publish(struct engine *e, bool now) {
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
    /* The map costs a walk over all cells; five times a second is as often as anybody looks. */
    if (now || time - e->map_time > 200000000u) {
        e->map_time = time;
        tn_session_cache_map(session, view->map);
        tn_fit fit;
        if (tn_session_memory(session, &fit) == TN_OK) {
            tn_fit_free(&view->used);
            view->used = fit;
        }
    }
    pthread_mutex_unlock(&e->served->lock);
}

/* One decode; false when nothing could be fed. */
static bool round_of(struct engine *e) {
    tn_status status;
    resume(e);
    do {
        build(e);
        if (e->n_tokens == 0) return false;
        tn_batch batch = {.n_tokens = e->n_tokens,
                          .tokens = e->tokens,
                          .positions = e->positions,
                          .seqs = e->seqs,
                          .outputs = e->outputs};
        announce(e->served, e->n_tokens > e->n_slots); /* a prompt may take long */
        status = tn_session_decode(e->session, &batch);
    } while (status == TN_E_FULL && make_room(e));
    if (status == TN_OK)
        harvest(e);
    else
        repair(e, status);
    pthread_mutex_lock(&e->served->lock);
    e->served->view.n_decodes++;
    pthread_mutex_unlock(&e->served->lock);
    return true;
}

static bool is_busy(const struct engine *e) {
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].job) return true;
    return false;
}

/* Paused jobs wait for their readers; a look every now and then is enough, for the wake-up comes by signal. */
static void wait_a_little(struct served *served) {
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

void engine_work(struct engine *e) {
    struct served *served = e->served;
    engine_publish(e, true);
    for (;;) {
        pthread_mutex_lock(&served->lock);
        while (atomic_load(&served->phase) == PHASE_READY && !is_busy(e) && !served->queue)
            pthread_cond_wait(&served->wake, &served->lock);
        bool waiting = served->queue != NULL;
        pthread_mutex_unlock(&served->lock);
        int phase = atomic_load(&served->phase);
        if (phase != PHASE_READY && !is_busy(e) && !waiting) break;
        drop_cancelled(e);
        admit(e);
        announce(served, !is_busy(e));
        bool fed = round_of(e);
        announce(served, !is_busy(e));
        fed = embed_round(e) || fed;
        announce(served, !fed || !is_busy(e));
        engine_publish(e, !is_busy(e));
        if (!fed && is_busy(e)) wait_a_little(served);
    }
}

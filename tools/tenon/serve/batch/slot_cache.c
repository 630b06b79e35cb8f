/* Slots and the KV cache: a job begins with the longest prefix of its prompt that the session holds, and its own
 * cells are kept for later jobs. An idle slot holds no cells, only the tokens of its last conversation, for saving
 * the slot. */
#include "serve/batch/batch.h"

#include <stdlib.h>
#include <string.h>

static int32_t slot_id(const struct engine *e, const struct slot *slot) { return (int32_t)(slot - e->slots); }

void slot_clear(struct engine *e, struct slot *slot) {
    if (tn_session_seq_remove(e->session, slot_id(e, slot), 0, -1) != TN_OK)
        tn_log(TN_LOG_WARN, "slot %d: %s", (int)slot_id(e, slot), tn_error());
    slot->n_kv = 0;
}

void slot_take_prefix(struct engine *e, struct slot *slot) {
    const struct job *job = slot->job;
    /* At least one token must be decoded, for its logits; with log-probabilities of the prompt, all of them. */
    const int32_t most = job->score_prompt ? 0 : slot->count - 1;
    int32_t taken = 0;
    slot->n_kv = slot->branch = slot->checkpoint = 0;
    if (!e->keeps_prefixes || job->no_cache) return;
    if (tn_session_prefix_take(e->session, slot_id(e, slot), job->key, slot->tokens, most, &taken) != TN_OK)
        tn_log(TN_LOG_WARN, "slot %d: %s", (int)slot_id(e, slot), tn_error());
    slot->n_kv = slot->checkpoint = taken;
    slot->branch = tn_session_prefix_missed(e->session);
}

void slot_keep_prefix(struct engine *e, struct slot *slot) {
    if (!e->keeps_prefixes || slot->job->no_cache) return;
    if (tn_session_prefix_keep(e->session, slot_id(e, slot)) != TN_OK)
        tn_log(TN_LOG_WARN, "slot %d: %s", (int)slot_id(e, slot), tn_error());
}

/* The slot holds no tokens, so all of them will be computed with these scales. */
static void slot_set_adapters(struct engine *e, struct slot *slot, const struct job *job) {
    if (tn_session_seq_adapters(e->session, slot_id(e, slot), job->scales) != TN_OK)
        tn_log(TN_LOG_WARN, "slot %d: %s", (int)slot_id(e, slot), tn_error());
}

void slot_assign(struct engine *e, struct slot *slot, struct job *job) {
    memcpy(slot->tokens, job->prompt.ids, job->prompt.count * sizeof *slot->tokens);
    slot->job = job;
    slot->stalled = slot->shifted = false;
    slot->count = slot->n_prompt = (int32_t)job->prompt.count;
    slot_set_adapters(e, slot, job);
    slot_take_prefix(e, slot);
    slot->n_cached = slot->n_kv;
    slot->n_predicted = slot->n_drafted = slot->n_accepted = 0;
    slot->guess = NULL;
    slot->n_scored = 1;
    slot->prompted = 0;
    slot->rest = 0;
    slot->resting = false;
    slot->began = tn_time_ns();
    slot->task = ++e->n_tasks;
    output_progress(e, slot);
}

void slot_release(struct engine *e, struct slot *slot) {
    guess_settle(e, slot);
    tn_speculator_forget(e->speculation.speculator, slot_id(e, slot));
    slot_keep_prefix(e, slot);
    slot->key = slot->job->key;
    /* A token that was sampled but not decoded is not kept; of a shifted context only the beginning is. */
    slot->count = slot->job->no_cache || slot->shifted ? 0 : slot->n_kv;
    slot_clear(e, slot);
    slot->job = NULL;
    slot->used = tn_time_ns();
}

struct slot *slot_choose(struct engine *e, const struct job *job) {
    struct slot *chosen = NULL;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (slot->job || (job->slot >= 0 && job->slot != i)) continue;
        if (!chosen || slot->used < chosen->used) chosen = slot;
    }
    return chosen;
}

/* ---- Saving ---- */

/* The state of a slot is two files: that of the session, and the tokens, by which a prefix is recognised. */
static bool tokens_path(const struct job *job, char *path, size_t size) {
    return (size_t)snprintf(path, size, "%s.tokens", job->path) < size;
}

/* Saves the remaining *n tokens of the slot's last conversation. */
static tn_status slot_save(struct engine *e, struct slot *slot, const struct job *job, int32_t *n) {
    char path[4200];
    if (!tokens_path(job, path, sizeof path)) return tn_fail(TN_E_INVALID, "the file's name is too long");
    if (slot->count == 0) return tn_fail(TN_E_STATE, "slot %d is empty", job->slot);
    TN_TRY(tn_session_prefix_take(e->session, job->slot, slot->key, slot->tokens, slot->count, n));
    if (*n == 0) return tn_fail(TN_E_STATE, "the tokens of slot %d have been evicted", job->slot);
    tn_status status = tn_session_save(e->session, job->slot, job->path);
    slot_clear(e, slot);
    TN_TRY(status);
    FILE *file = fopen(path, "wb");
    bool fine = file && fwrite(slot->tokens, sizeof *slot->tokens, (size_t)*n, file) == (size_t)*n;
    if (file && fclose(file) != 0) fine = false;
    return fine ? TN_OK : tn_fail(TN_E_IO, "cannot write the slot's tokens");
}

static tn_status slot_restore(struct engine *e, struct slot *slot, const struct job *job) {
    char path[4200];
    if (!tokens_path(job, path, sizeof path)) return tn_fail(TN_E_INVALID, "the file's name is too long");
    FILE *file = fopen(path, "rb");
    if (!file) return tn_fail(TN_E_NOT_FOUND, "there is no such saved slot");
    slot->count = 0;
    slot_set_adapters(e, slot, job);
    size_t n = fread(slot->tokens, sizeof *slot->tokens, (size_t)e->served->n_ctx, file);
    fclose(file);
    tn_status status = tn_session_load(e->session, job->slot, job->path);
    for (size_t i = 0; status == TN_OK && i < n; i++)
        if (slot->tokens[i] < 0 || slot->tokens[i] >= e->served->info.n_vocab)
            status = tn_fail(TN_E_FORMAT, "the saved tokens are not in the vocabulary of this model");
    if (status == TN_OK && (n == 0 || tn_session_seq_last(e->session, job->slot) != (int32_t)n - 1))
        status = tn_fail(TN_E_FORMAT, "the saved tokens and the saved cache do not match");
    if (status == TN_OK) status = tn_session_prefix_note(e->session, job->slot, job->key, slot->tokens, (int32_t)n);
    if (status == TN_OK) status = tn_session_prefix_keep(e->session, job->slot);
    slot_clear(e, slot);
    TN_TRY(status);
    slot->key = job->key;
    slot->count = (int32_t)n;
    return TN_OK;
}

/* The key of the slot's last conversation, with its adapters. */
static uint64_t slot_prefix_key(const struct engine *e, const struct slot *slot) {
    float scales[TN_ADAPTERS_MOST];
    for (size_t i = 0; i < TN_ADAPTERS_MOST; i++)
        scales[i] = tn_session_seq_adapter_scale(e->session, slot_id(e, slot), i);
    return tn_session_adapters_key(e->session, slot->key, scales);
}

void slot_act(struct engine *e, struct job *job) {
    struct slot *slot = &e->slots[job->slot];
    struct job_stats stats = {.n_prompt = slot->count};
    tn_status status = TN_OK;
    if (slot->job) {
        status = tn_fail(TN_E_STATE, "slot %d is busy", job->slot);
    } else if (job->action == SLOT_RESTORE) {
        status = slot_restore(e, slot, job);
        stats.n_prompt = slot->count;
    } else if (slot->count && slot->key != job->key) {
        status = tn_fail(TN_E_STATE, "the last conversation of slot %d belongs to another API key", job->slot);
    } else if (job->action == SLOT_SAVE) {
        status = slot_save(e, slot, job, &stats.n_prompt);
    } else {
        if (slot->count)
            status = tn_session_prefix_forget(e->session, slot_prefix_key(e, slot), slot->tokens, slot->count);
        slot->count = 0;
    }
    slot->used = tn_time_ns();
    const bool of_client = status == TN_E_STATE || status == TN_E_NOT_FOUND || status == TN_E_FORMAT;
    if (of_client || status == TN_E_INVALID) stats.error_code = 400;
    char why[512];
    snprintf(why, sizeof why, "%s", status == TN_OK ? "" : tn_error());
    if (job->path) hide_folder(why, job->path);
    output_end_job(e->served, job, status == TN_OK ? FINISH_EOS : FINISH_ERROR, &stats, "", 0, why, NULL, 0);
}

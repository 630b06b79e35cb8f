/* Slots and their cells of the KV cache: assigning jobs, reusing prefixes, saving, and freeing cells. */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

static int32_t slot_id(const struct engine *e, const struct slot *slot) { return (int32_t)(slot - e->slots); }

/* Tokens of the prompt that a slot has cached; at least one is left to decode, for its logits. */
static int32_t common_prefix(const struct slot *slot, const tn_tokens *prompt) {
    int32_t n = 0, most = slot->n_kv < (int32_t)prompt->count - 1 ? slot->n_kv : (int32_t)prompt->count - 1;
    while (n < most && slot->tokens[n] == prompt->ids[n]) n++;
    return n;
}

void slot_clear(struct engine *e, struct slot *slot) {
    if (tn_session_seq_remove(e->session, slot_id(e, slot), 0, -1) != TN_OK)
        tn_log(TN_LOG_WARN, "slot %d: %s", (int)slot_id(e, slot), tn_error());
    slot->n_kv = 0;
    if (!slot->job) slot->count = 0;
}

/* Makes a slot hold the longest cached prefix of the prompt, its own or copied from another slot; returns its length.
 */
static int32_t reuse_prefix(struct engine *e, struct slot *slot, const tn_tokens *prompt) {
    /* A copy must save more tokens than this over the slot's own prefix. */
    enum { WORTH_COPYING = 16 };
    int32_t keep = common_prefix(slot, prompt);
    if (e->served->info.n_window > 0) {
        /* A sliding window has overwritten the cells before it: only a whole sequence can be continued. */
        return keep < slot->n_kv ? 0 : keep;
    }
    struct slot *source = NULL;
    int32_t longest = keep;
    for (int i = 0; i < e->n_slots; i++) {
        int32_t n = &e->slots[i] == slot ? 0 : common_prefix(&e->slots[i], prompt);
        if (n <= longest + WORTH_COPYING) continue;
        longest = n;
        source = &e->slots[i];
    }
    if (!source) return keep;
    slot_clear(e, slot);
    tn_status status = tn_session_seq_copy(e->session, slot_id(e, source), slot_id(e, slot), 0, longest);
    return status == TN_OK ? longest : 0;
}

void slot_assign(struct engine *e, struct slot *slot, struct job *job) {
    int32_t keep = job->no_cache || job->score_prompt ? 0 : reuse_prefix(e, slot, &job->prompt);
    if (keep == 0)
        slot_clear(e, slot);
    else if (tn_session_seq_remove(e->session, slot_id(e, slot), keep, -1) != TN_OK)
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

struct slot *slot_choose(struct engine *e, const tn_tokens *prompt) {
    struct slot *chosen = NULL;
    int32_t longest = -1;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        if (slot->job) continue;
        int32_t n = common_prefix(slot, prompt);
        if (n > longest || (n == longest && slot->used < chosen->used)) {
            chosen = slot;
            longest = n;
        }
    }
    return chosen;
}

bool slot_free_cells(struct engine *e) {
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
    slot_clear(e, victim);
    victim->stalled = victim->job != NULL;
    return true;
}

/* ---- Saving ---- */

/* The state of a slot is two files: that of the session, and the tokens, by which a prefix is recognised. */
static bool tokens_path(const struct job *job, char *path, size_t size) {
    return (size_t)snprintf(path, size, "%s.tokens", job->path) < size;
}

static tn_status slot_save(struct engine *e, struct slot *slot, const struct job *job) {
    char path[4200];
    if (!tokens_path(job, path, sizeof path)) return tn_fail(TN_E_INVALID, "the file's name is too long");
    if (slot->n_kv == 0) return tn_fail(TN_E_STATE, "slot %d is empty", job->slot);
    TN_TRY(tn_session_save(e->session, job->slot, job->path));
    FILE *file = fopen(path, "wb");
    bool fine = file && fwrite(slot->tokens, sizeof *slot->tokens, (size_t)slot->n_kv, file) == (size_t)slot->n_kv;
    if (file && fclose(file) != 0) fine = false;
    return fine ? TN_OK : tn_fail(TN_E_IO, "the slot's tokens could not be written");
}

static tn_status slot_restore(struct engine *e, struct slot *slot, const struct job *job) {
    char path[4200];
    if (!tokens_path(job, path, sizeof path)) return tn_fail(TN_E_INVALID, "the file's name is too long");
    FILE *file = fopen(path, "rb");
    if (!file) return tn_fail(TN_E_NOT_FOUND, "there is no such saved slot");
    slot_clear(e, slot);
    size_t n = fread(slot->tokens, sizeof *slot->tokens, (size_t)e->served->n_ctx, file);
    fclose(file);
    tn_status status = tn_session_load(e->session, job->slot, job->path);
    for (size_t i = 0; status == TN_OK && i < n; i++)
        if (slot->tokens[i] < 0 || slot->tokens[i] >= e->served->info.n_vocab)
            status = tn_fail(TN_E_FORMAT, "the saved tokens are not tokens of this model");
    if (status == TN_OK && (n == 0 || tn_session_seq_last(e->session, job->slot) != (int32_t)n - 1))
        status = tn_fail(TN_E_FORMAT, "the saved tokens and the saved cache do not match");
    if (status != TN_OK) {
        slot_clear(e, slot);
        return status;
    }
    slot->n_kv = slot->count = slot->n_prompt = (int32_t)n;
    return TN_OK;
}

void slot_act(struct engine *e, struct job *job) {
    struct slot *slot = &e->slots[job->slot];
    struct job_stats stats = {.n_prompt = slot->n_kv};
    tn_status status = TN_OK;
    if (slot->job) {
        status = tn_fail(TN_E_STATE, "slot %d is busy", job->slot);
    } else if (job->action == SLOT_ERASE) {
        slot_clear(e, slot);
    } else if (job->action == SLOT_SAVE) {
        status = slot_save(e, slot, job);
    } else {
        status = slot_restore(e, slot, job);
        stats.n_prompt = slot->n_kv;
    }
    slot->used = tn_time_ns();
    output_end_job(e->served, job, status == TN_OK ? FINISH_EOS : FINISH_ERROR, &stats, "", 0,
                   status == TN_OK ? "" : tn_error(), NULL, 0);
}

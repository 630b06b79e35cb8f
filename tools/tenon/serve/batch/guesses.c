/* Guessed tokens of slots: they are added to the batch after the sampled token of a slot. Those that the
 * slot's generator then samples are accepted; the rest is rolled back at the end of the round. */
#include "serve/batch/batch.h"

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* Max guessed tokens of a slot: within its limits, and none before its prompt is complete. */
static int32_t guess_room(const struct engine *e, const struct slot *slot) {
    const struct job *job = slot->job;
    if (!slot->prompted || job->guess_max == 0) return 0;
    int32_t room = smaller(TN_GUESS_MOST, e->served->n_ctx - 1 - slot->count);
    room = smaller(room, job->n_predict - slot->n_predicted - 1);
    if (job->guess_max > 0) room = smaller(room, job->guess_max);
    return room > 0 ? room : 0;
}

/* Leaves only the first path of a tree. */
static void keep_path(tn_guess *g) {
    int32_t n = 0;
    for (int32_t i = 0; g->tree && i < g->n; i++) {
        if (tn_guess_branch(g, i)) continue;
        g->guess[n] = g->guess[i];
        g->probs[n++] = g->probs[i];
    }
    if (g->tree) g->n = n;
    g->tree = false;
}

void guesses_make(struct engine *e) {
    int32_t n = 0;
    bool prompts = false; /* a batch with trees has no prompts: it is computed at once */
    e->n_guesses = 0;
    if (!e->speculation.speculator) return;
    for (int i = 0; i < e->n_slots; i++) {
        struct slot *slot = &e->slots[i];
        prompts = prompts || (slot->job && !slot->stalled && slot->count - slot->n_kv > 1);
        if (slot->job && slot->job->score_prompt) return; /* its rows of logits are those of guesses */
        if (!slot->job || slot->stalled || slot->count - slot->n_kv != 1 || atomic_load(&slot->job->paused)) continue;
        if (slot->resting) continue;
        e->guesses[n++] = (tn_guess){.seq = i,
                                     .tokens = slot->tokens,
                                     .n_tokens = slot->count,
                                     .room = guess_room(e, slot),
                                     .sampler = slot->job->sampler};
    }
    if (!n) return;
    if (tn_speculator_propose(e->speculation.speculator, e->guesses, n) != TN_OK) {
        tn_log(TN_LOG_WARN, "guessing: %s", tn_error());
        return;
    }
    e->n_guesses = n;
    for (int32_t i = 0; i < n; i++) {
        struct slot *slot = &e->slots[e->guesses[i].seq];
        tn_guess *g = &e->guesses[i];
        int32_t kept = 0;
        if (prompts) keep_path(g);
        while (kept < g->n && g->probs[kept] >= slot->job->guess_p_min) kept++;
        e->guesses[i].n = kept < slot->job->guess_min ? 0 : kept;
        slot->guess = &e->guesses[i];
        slot->n_right = 0;
        slot->at = -1;
    }
}

bool guess_matches(struct slot *slot, tn_token token) {
    const int32_t found = slot->guess ? tn_guess_find(slot->guess, slot->at, token) : -1;
    if (found < 0) return false;
    slot->at = found;
    slot->n_right++;
    slot->n_kv++;
    return true;
}

void guess_settle(struct engine *e, struct slot *slot) {
    tn_guess *g = slot->guess;
    if (!g) return;
    slot->guess = NULL;
    g->at = slot->at;
    tn_speculator_checked(e->speculation.speculator, g, slot->n_right);
    slot->n_drafted += g->n;
    slot->n_accepted += slot->n_right;
    if (slot->n_right == g->n) return;
    if (tn_session_seq_take_branch(e->session, g->seq, tn_guess_branch(g, g->at), slot->n_kv) != TN_OK) {
        tn_log(TN_LOG_WARN, "slot %d: %s", (int)g->seq, tn_error());
        slot_clear(e, slot); /* its tokens are decoded again */
    }
}

void guesses_drop(struct engine *e) {
    for (int i = 0; i < e->n_slots; i++) e->slots[i].guess = NULL;
    e->n_guesses = 0;
}

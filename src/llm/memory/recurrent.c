/* The table of recurrent states: which list has which row. */
#include "llm/memory/recurrent.h"

#include "base/checked.h"

#include <string.h>

enum { SPARE_ROWS = 1 };
/* In `last`, while a micro-batch is taken: the sequence has its rows and no token yet. */
enum { CHOSEN = -2 };

void tn__recurrent_size(tn__recurrent *s, int32_t n_seqs, int32_t n_kept, int32_t n_checkpoints, int32_t n_guess) {
    const int32_t held = n_guess ? n_guess + 1 : 0;
    *s = (tn__recurrent){.n_rows = n_seqs * (1 + held) + n_checkpoints + SPARE_ROWS,
                         .n_guess = n_guess,
                         .n_seqs = n_seqs,
                         .n_lists = n_seqs + n_kept};
}

tn_status tn__recurrent_bytes(const tn__recurrent *s, size_t *bytes) {
    *bytes = s->n_rows ? (size_t)s->n_rows * sizeof *s->refs + (size_t)s->n_lists * sizeof *s->owners : 0;
    if (s->n_rows && s->n_guess)
        *bytes += (size_t)s->n_seqs * ((size_t)s->n_guess * sizeof *s->held + sizeof *s->n_held);
    return TN_OK;
}

tn_status tn__recurrent_allocate(tn__recurrent *s) {
    if (!s->n_rows) return TN_OK;
    s->refs = tn_calloc((size_t)s->n_rows, sizeof *s->refs);
    s->owners = tn_calloc((size_t)s->n_lists, sizeof *s->owners);
    if (!s->refs || !s->owners) return TN_E_NOMEM;
    if (s->n_guess) {
        s->held = tn_calloc((size_t)s->n_seqs * (size_t)s->n_guess, sizeof *s->held);
        s->n_held = tn_calloc((size_t)s->n_seqs, sizeof *s->n_held);
        if (!s->held || !s->n_held) return TN_E_NOMEM;
    }
    for (int32_t i = 0; i < s->n_lists; i++)
        s->owners[i] = (tn__state_owner){.row = TN__STATE_NONE, .before = TN__STATE_SAME, .last = -1};
    return TN_OK;
}

void tn__recurrent_free(tn__recurrent *s) {
    tn_free(s->refs);
    tn_free(s->owners);
    tn_free(s->held);
    tn_free(s->n_held);
    *s = (tn__recurrent){0};
}

/* ---- Rows ---- */

static int32_t free_row(const tn__recurrent *s) {
    for (int32_t i = 0; i < s->n_rows; i++)
        if (!s->refs[i]) return i;
    return -1;
}

static void release_row(tn__recurrent *s, int32_t row) {
    if (row >= 0) s->refs[row]--;
}

/* Drops the states that a sequence holds, from the i-th on. */
static void release_held(tn__recurrent *s, int32_t seq, int32_t i) {
    if (!s->n_guess || seq >= s->n_seqs) return;
    for (int32_t k = i; k < s->n_held[seq]; k++) release_row(s, s->held[seq * s->n_guess + k].row);
    if (s->n_held[seq] > i) s->n_held[seq] = i;
}

/* ---- Batches ---- */

/* The sequence's first token in the batch: chooses the row that its state is written to. */
static bool begin_sequence(tn__recurrent *s, tn__state_owner *o) {
    const int32_t row = free_row(s);
    const bool shared = o->row >= 0 && s->refs[o->row] > 1;
    if (row < 0 && (o->row < 0 || shared)) return false;
    o->read = o->n ? o->row : -1;
    o->n_before = o->n;
    o->before = row < 0 ? TN__STATE_LOST : o->row;
    if (row < 0) return true;
    s->refs[row] = 1;
    o->row = row;
    return true;
}

/* A later micro-batch of the batch. A row that became a checkpoint is not written to again. */
static bool continue_sequence(tn__recurrent *s, tn__state_owner *o) {
    o->read = o->row;
    if (s->refs[o->row] == 1) return true;
    const int32_t row = free_row(s);
    if (row < 0) return false;
    s->refs[o->row]--;
    s->refs[row] = 1;
    o->row = row;
    return true;
}

/* Undoes the effects of the two functions above for this micro-batch. */
static void undo_choice(tn__recurrent *s, tn__state_owner *o) {
    const bool began = o->n == o->n_before;
    if (began && o->before != TN__STATE_LOST) {
        release_row(s, o->row);
        o->row = o->before;
    } else if (!began && o->row != o->read) {
        release_row(s, o->row);
        o->row = o->read;
        s->refs[o->row]++;
    }
    if (began) o->before = TN__STATE_SAME;
    o->last = -1;
}

static tn_status check_positions(const tn__recurrent *s, int32_t n, const int32_t *positions, const int32_t *seqs) {
    for (int32_t i = 0; i < n; i++) {
        int32_t next = tn__recurrent_tokens(s, seqs[i]);
        for (int32_t k = i - 1; k >= 0; k--)
            if (seqs[k] == seqs[i]) {
                next = positions[k] + 1;
                break;
            }
        if (positions[i] != next)
            return tn_fail(
                TN_E_UNSUPPORTED,
                "token %d has position %d, sequence %d continues at %d: recurrent layers need every token in order",
                i, positions[i], seqs[i], next);
    }
    return TN_OK;
}

tn_status tn__recurrent_take(tn__recurrent *s, int32_t n, const int32_t *positions, const int32_t *seqs,
                             tn__step *steps) {
    if (!s->n_rows) return TN_OK;
    TN_TRY(check_positions(s, n, positions, seqs));
    for (int32_t i = 0; i < n; i++) {
        tn__state_owner *o = &s->owners[seqs[i]];
        if (o->last == CHOSEN) continue;
        if (o->before == TN__STATE_SAME ? begin_sequence(s, o) : continue_sequence(s, o)) {
            o->last = CHOSEN;
            continue;
        }
        while (--i >= 0)
            if (s->owners[seqs[i]].last == CHOSEN) undo_choice(s, &s->owners[seqs[i]]);
        return tn_fail(TN_E_FULL, "all %d recurrent states are in use: remove a sequence or a kept prefix",
                       s->n_rows);
    }
    for (int32_t i = 0; i < n; i++) {
        tn__state_owner *o = &s->owners[seqs[i]];
        steps[i] =
            (tn__step){.previous = TN__MAX(o->last, -1), .next = -1, .read = o->last < 0 ? o->read : -1, .write = -1};
        if (o->last >= 0) steps[o->last].next = i;
        o->last = i;
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        tn__state_owner *o = &s->owners[seqs[i]];
        if (o->last != i) continue;
        steps[i].write = o->row;
        o->n = positions[i] + 1;
        o->last = -1;
    }
    s->changes++;
    return TN_OK;
}

int32_t tn__recurrent_checkpoint(tn__recurrent *s, int32_t i, tn__step *steps) {
    if (steps[i].write >= 0) { /* its sequence's last token: the sequence continues in another row */
        s->refs[steps[i].write]++;
        return steps[i].write;
    }
    const int32_t row = free_row(s);
    if (row < 0) return -1;
    s->refs[row] = 1;
    return steps[i].write = row;
}

void tn__recurrent_release(tn__recurrent *s, int32_t row) { release_row(s, row); }

/* ---- Guesses ---- */

/* The state before token i: after the token before it, or the one that the micro-batch begins with. */
static bool hold_before(tn__recurrent *s, int32_t seq, int32_t i, int32_t position, tn__step *steps) {
    if (s->n_held[seq] == s->n_guess) return false;
    int32_t row = steps[i].read;
    if (steps[i].previous < 0 && row == s->owners[seq].row) return false; /* this micro-batch writes to it */
    if (steps[i].previous >= 0)
        row = tn__recurrent_checkpoint(s, steps[i].previous, steps);
    else if (row >= 0)
        s->refs[row]++;
    if (row < 0) return false;
    s->held[seq * s->n_guess + s->n_held[seq]++] = (tn__held_state){row, position};
    return true;
}

tn_status tn__recurrent_hold(tn__recurrent *s, int32_t n, const int32_t *positions, const int32_t *seqs,
                             const bool *guesses, tn__step *steps) {
    if (!s->n_rows || !s->n_guess) return TN_OK;
    for (int32_t i = 0; i < n; i++) {
        if (!guesses || !guesses[i])
            release_held(s, seqs[i], 0);
        else if (!hold_before(s, seqs[i], i, positions[i], steps))
            return tn_fail(TN_E_FULL, "sequence %d has more than %d guessed tokens", seqs[i], s->n_guess);
    }
    return TN_OK;
}

tn_status tn__recurrent_rewind(tn__recurrent *s, int32_t seq, int32_t n) {
    if (!s->n_rows) return TN_OK;
    tn__state_owner *o = &s->owners[seq];
    int32_t at = 0;
    if (tn__recurrent_tokens(s, seq) == n) return TN_OK;
    const tn__held_state *held = s->n_guess ? s->held + seq * s->n_guess : NULL;
    while (held && at < s->n_held[seq] && held[at].n != n) at++;
    if (!held || at == s->n_held[seq])
        return tn_fail(TN_E_UNSUPPORTED,
                       "sequence %d has recurrent state of %d tokens and none of %d: only guessed tokens can be "
                       "taken back",
                       seq, tn__recurrent_tokens(s, seq), n);
    release_row(s, o->row);
    o->row = held[at].row;
    o->n = n;
    s->refs[o->row]++;
    release_held(s, seq, at);
    s->changes++;
    return TN_OK;
}

void tn__recurrent_adopt(tn__recurrent *s, int32_t list, int32_t row, int32_t n) {
    tn__recurrent_remove(s, list);
    s->owners[list].row = row;
    s->owners[list].n = n;
}

bool tn__recurrent_full(const tn__recurrent *s) { return s->n_rows && free_row(s) < 0; }

void tn__recurrent_commit(tn__recurrent *s) {
    for (int32_t i = 0; s->n_rows && i < s->n_seqs; i++) {
        release_row(s, s->owners[i].before);
        s->owners[i].before = TN__STATE_SAME;
    }
}

void tn__recurrent_roll_back(tn__recurrent *s) {
    for (int32_t i = 0; s->n_rows && i < s->n_seqs; i++) {
        tn__state_owner *o = &s->owners[i];
        if (o->before == TN__STATE_SAME) continue;
        const bool lost = o->before == TN__STATE_LOST;
        release_held(s, i, 0);
        release_row(s, o->row);
        o->row = lost ? TN__STATE_NONE : o->before;
        o->n = lost ? -1 : o->n_before;
        o->before = TN__STATE_SAME;
        s->changes++;
    }
}

bool tn__recurrent_lost(const tn__recurrent *s, int32_t seq) { return s->n_rows && s->owners[seq].n < 0; }

/* ---- Lists ---- */

void tn__recurrent_copy(tn__recurrent *s, int32_t source, int32_t target) {
    if (!s->n_rows || source == target) return;
    tn__recurrent_remove(s, target);
    const tn__state_owner *from = &s->owners[source];
    if (from->row < 0) return;
    s->refs[from->row]++;
    s->owners[target].row = from->row;
    s->owners[target].n = from->n;
}

void tn__recurrent_remove(tn__recurrent *s, int32_t list) {
    if (!s->n_rows) return;
    tn__state_owner *o = &s->owners[list];
    release_held(s, list, 0);
    release_row(s, o->row);
    release_row(s, o->before); /* of a batch that fails */
    *o = (tn__state_owner){.row = TN__STATE_NONE, .before = TN__STATE_SAME, .last = -1};
    s->changes++;
}

int32_t tn__recurrent_set(tn__recurrent *s, int32_t list, int32_t n) {
    tn__recurrent_remove(s, list);
    const int32_t row = free_row(s);
    if (row < 0) return -1;
    s->refs[row] = 1;
    s->owners[list].row = row;
    s->owners[list].n = n;
    return row;
}

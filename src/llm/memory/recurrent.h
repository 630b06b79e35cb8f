/* Recurrent state: the memory of layers other than attention, in rows of fixed size.
 *
 * Every list (a sequence, or a kept prefix) has at most one row, which holds the state after its first `n` tokens.
 * Lists may share a row; a sequence whose row is shared writes to another one. While a batch is decoded the previous
 * row is kept if there is a free row to write to, so that a failed batch leaves the sequence unchanged; without a
 * free row, a failed batch loses the state. A checkpoint is the state after any token of a micro-batch: the op writes
 * it to a separate row, which a kept prefix gets after the micro-batch. The state before each guessed token is kept
 * in a separate row until the guess was verified, so that the sequence can be rolled back.
 *
 * This module has only the table. The rows themselves are tensors of kv_cache.c, one or two per layer. */
#ifndef TN_LLM_MEMORY_RECURRENT_H
#define TN_LLM_MEMORY_RECURRENT_H

#include <tenon/tensor.h>

/* What a recurrent op reads of a token: the previous and the next token of its sequence in the micro-batch (-1:
 * none), the row it begins with (-1: zeros, TN__STEP_PADDING: the row of the batch is padding), and the row that
 * receives the state after it (-1: none). */
typedef struct tn__step {
    int32_t previous, next, read, write;
} tn__step;
enum { TN__STEP_PADDING = -2 };

typedef struct tn__state_owner {
    int32_t row;    /* -1: none */
    int32_t n;      /* tokens that it covers */
    int32_t before; /* the row from before the batch, TN__STATE_SAME, or TN__STATE_LOST */
    int32_t n_before;
    int32_t read; /* the row that the micro-batch begins with; meaningless between micro-batches */
    int32_t last; /* index of its last token in the micro-batch, -1 between micro-batches */
} tn__state_owner;
enum { TN__STATE_NONE = -1, TN__STATE_SAME = -2, TN__STATE_LOST = -3 };

/* The state that a sequence had before a guessed token. */
typedef struct tn__held_state {
    int32_t row, n; /* tokens that it covers */
} tn__held_state;

typedef struct tn__recurrent {
    int32_t n_rows;  /* 0: the model has no recurrent layers */
    int32_t n_guess; /* states that a sequence can hold */
    int32_t n_seqs, n_lists;
    int32_t *refs; /* lists that use the row, batches that keep it, and checkpoints without a list yet */
    tn__state_owner *owners;
    tn__held_state *held; /* [sequence][n_guess] */
    int32_t *n_held;      /* per sequence */
    uint32_t changes;
} tn__recurrent;

/* Rows for every sequence, `n_checkpoints` prefixes, and one more, so that a sequence can keep a state while it
 * continues. With guesses every sequence has rows for the states before `n_guess` tokens and for the one before its
 * batch. Allocates no memory. */
void tn__recurrent_size(tn__recurrent *states, int32_t n_seqs, int32_t n_kept, int32_t n_checkpoints,
                        int32_t n_guess);
tn_status tn__recurrent_bytes(const tn__recurrent *states, size_t *bytes);
tn_status tn__recurrent_allocate(tn__recurrent *states);
void tn__recurrent_free(tn__recurrent *states);

/* Assigns rows to the sequences of a micro-batch and lists its steps. Positions must continue each sequence:
 * TN_E_UNSUPPORTED. TN_E_FULL: every row is in use; nothing has changed. */
tn_status tn__recurrent_take(tn__recurrent *states, int32_t n, const int32_t *positions, const int32_t *seqs,
                             tn__step *steps);
/* An additional row that receives the state after token i of the last micro-batch. The caller owns it, and gives it
 * to a list or releases it. -1: none is free. */
int32_t tn__recurrent_checkpoint(tn__recurrent *states, int32_t i, tn__step *steps);
void tn__recurrent_release(tn__recurrent *states, int32_t row);
/* For the last micro-batch: keeps the state before every guessed token, and releases the states kept by
 * sequences without guesses. TN_E_FULL: a sequence has more guesses than it can keep states. */
tn_status tn__recurrent_hold(tn__recurrent *states, int32_t n, const int32_t *positions, const int32_t *seqs,
                             const bool *guesses, tn__step *steps);
/* Restores the state after the sequence's first n tokens, if it is kept or current. Otherwise TN_E_UNSUPPORTED. */
tn_status tn__recurrent_rewind(tn__recurrent *states, int32_t seq, int32_t n);
/* Gives an empty list a checkpoint's row, with the state after n tokens. */
void tn__recurrent_adopt(tn__recurrent *states, int32_t list, int32_t row, int32_t n);
/* Whether no row is free. */
bool tn__recurrent_full(const tn__recurrent *states);
/* After the last micro-batch of a batch. */
void tn__recurrent_commit(tn__recurrent *states);
/* After a failure: sequences are as before the batch. Returns whether `seq` has lost its state and must be emptied.
 */
void tn__recurrent_roll_back(tn__recurrent *states);
bool tn__recurrent_lost(const tn__recurrent *states, int32_t seq);

/* The target has the source's state. */
void tn__recurrent_copy(tn__recurrent *states, int32_t source, int32_t target);
void tn__recurrent_remove(tn__recurrent *states, int32_t list);
/* Tokens that the list's state covers; 0: none. */
static inline int32_t tn__recurrent_tokens(const tn__recurrent *s, int32_t list) {
    return s->n_rows && s->owners[list].row >= 0 ? s->owners[list].n : 0;
}
/* Gives an empty list a row for n tokens whose contents the caller writes. -1: none is free. */
int32_t tn__recurrent_set(tn__recurrent *states, int32_t list, int32_t n);

#endif

/* Text generation: one object per sequence being generated, from a row of logits to a piece of text.
 *
 * A generator samples the next token, recognises the end of the text and stop strings, and turns tokens into text
 * that is valid UTF-8 at every step. It does not decode: the caller puts the sampled token of each generator into
 * one batch, so that any number of sequences share a decode.
 *
 *     status = tn_generator_sample(generator, session, row);         // row of the last decode
 *     fputs(tn_generator_text(generator, NULL), stdout);
 *     if (status == TN_OK) token = tn_generator_token(generator);    // goes into the next batch
 *
 * A generator belongs to one thread at a time; different generators may sample on different threads at once. For a
 * single sequence tn_session_next (llm.h) does all of this in one call. */
#ifndef TENON_GENERATE_H
#define TENON_GENERATE_H

#include "tenon/base.h"
#include "tenon/llm.h"
#include "tenon/sampler.h"
#include "tenon/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_generator tn_generator;

typedef struct tn_generator_params {
    tn_sampler *sampler;      /* not owned; may be set later with tn_generator_set_sampler */
    unsigned decode_flags;    /* TN_DECODE_… of the text */
    bool ignore_end;          /* treat tokens that end a text as ordinary tokens */
    const char *const *stops; /* strings that end the text and are not part of it; copied */
    size_t n_stops;
} tn_generator_params;

/* The tokenizer must outlive the generator. */
TN_API tn_status tn_generator_new(const tn_tokenizer *tokenizer, const tn_generator_params *params,
                                  tn_generator **generator) TN_MUST_CHECK;
TN_API void tn_generator_free(tn_generator *generator); /* accepts NULL */
/* Begins a new text: clears pending text, the end flag and the count. The sampler keeps its history. */
TN_API void tn_generator_restart(tn_generator *generator);
TN_API void tn_generator_set_sampler(tn_generator *generator, tn_sampler *sampler);

/* Samples the next token from output `row` of the session's last decode (negative: from the end); after a batch with
 * `argmax` the token is the argmax of the row. The sampler has then accepted the token.
 * TN_END: the text has ended, and there is no token to decode. It ended with a token that ends a text, or with a stop
 * string (tn_generator_stop). Once a text has ended, further calls sample nothing and return TN_END.
 * Errors are those of the sampler; after an error there is no new text. */
TN_API tn_status tn_generator_sample(tn_generator *generator, tn_session *session, int32_t row) TN_MUST_CHECK;
/* The same from logits that the caller holds. */
TN_API tn_status tn_generator_sample_logits(tn_generator *generator, const float *logits,
                                            size_t n_vocab) TN_MUST_CHECK;

/* The token sampled last, the one to decode next; TN_TOKEN_NONE before the first. */
TN_API tn_token tn_generator_token(const tn_generator *generator);
/* The text completed by the last sample: whole characters only, without a suffix that may be the beginning of a stop
 * string; at the end of the text everything that was held back. Followed by a NUL; may be empty. Valid
 * until the next call that changes the generator. `length` may be NULL. */
TN_API const char *tn_generator_text(const tn_generator *generator, size_t *length);
/* Ends the text at the current token, as a limit does, and returns the text that was held back; "" if it has ended
 * already. */
TN_API const char *tn_generator_finish(tn_generator *generator, size_t *length);
/* Index of the stop string that ended the text; -1 if none did. */
TN_API int tn_generator_stop(const tn_generator *generator);
/* Tokens of the text so far; one that ended it does not count. */
TN_API int64_t tn_generator_count(const tn_generator *generator);

/* ---- Speculative decoding ---- */

/* Speculative decoding: tokens are guessed, and one decode checks several of them.
 *
 * Decode is limited by memory bandwidth, so a few more rows in a batch cost little. A speculator guesses the next
 * tokens of sequences. The caller appends the guesses to the sampled token of each sequence, decodes all in one
 * batch, and samples row after row with the sequence's own sampler until a sampled token differs from the guess. That
 * token continues the sequence, and later guesses are rolled back. Every token is therefore drawn from the model's
 * own distribution, with the same random numbers as without guesses: greedy and seeded text are the same.
 *
 *     tn_guess guess = {.seq = 0, .tokens = tokens, .n_tokens = n, .room = room, .sampler = sampler};
 *     TN_TRY(tn_speculator_propose(speculator, &guess, 1));
 *     // decode tokens[n - 1], guess.guess[0], …, guess.guess[guess.n - 1] with tn_batch.guesses and outputs; sample
 *     tn_speculator_checked(speculator, &guess, n_accepted);
 *     TN_TRY(tn_session_seq_rewind(session, 0, n + n_accepted));
 *
 * tn_session_next does all of this for a session with a speculator. A speculator belongs to the session's thread. It
 * allocates all its memory when it is created. */

typedef struct tn_speculator tn_speculator;

/* Proposers: X(KIND, "name", "description"). */
#define TN_SPEC_TABLE(X)                                                                                             \
    X(NONE, "none", "no guesses")                                                                                    \
    X(NGRAM, "ngram", "the continuation of an earlier occurrence of the last tokens")                                \
    X(DRAFT, "draft", "a smaller model")                                                                             \
    X(MTP, "mtp", "the model's own multi-token prediction layers")                                                   \
    X(EAGLE3, "eagle3", "an EAGLE-3 head, which reads states of several layers of the model")                        \
    X(CALLBACK, "callback", "a function of the caller")

typedef enum tn_spec_kind {
#define TN_X(KIND, name, text) TN_SPEC_##KIND,
    TN_SPEC_TABLE(TN_X)
#undef TN_X
        TN_SPEC_KINDS
} tn_spec_kind;
TN_API const char *tn_spec_kind_name(tn_spec_kind kind); /* NULL for a kind that is not in the table */
/* TN_E_NOT_FOUND: the message lists all names. */
TN_API tn_status tn_spec_kind_from_name(const char *name, tn_spec_kind *out);

/* A guess for one sequence. */
typedef struct tn_guess {
    int32_t seq;
    /* All tokens of the sequence. The last one was sampled but not decoded: it enters the next batch together
     * with the guess. The sequence has positions 0 … n_tokens - 2. */
    const tn_token *tokens;
    int32_t n_tokens;
    int32_t room; /* max tokens to guess; 0: none are */
    /* The sequence's sampler: draft models draw with a copy of its random numbers. NULL: they take the argmax. */
    const tn_sampler *sampler;
    /* The result. `probs`: the proposer's confidence in each token, given that the tokens before it are right. */
    int32_t n;
    tn_token guess[TN_GUESS_MOST];
    float probs[TN_GUESS_MOST];
    /* Whether the guess is a tree instead of a single path. Then parents[i] is the index in `guess` of the token
     * before token i, -1: the sampled one. Parents come before their children, more probable tokens first. Only in
     * sessions with n_branches. */
    bool tree;
    int32_t parents[TN_GUESS_MOST];
    /* Of a tree, after verification: the last accepted token, -1: none. */
    int32_t at;
} tn_guess;

/* The index of the child of guessed token `at` (-1: the sampled one) that equals `token`, or -1. */
TN_API int32_t tn_guess_find(const tn_guess *guess, int32_t at, tn_token token);
/* The branch of the session's sequence that the guess's token `at` is in (tn_session_seq_take_branch), where the
 * parents of the batch are those of the guess. */
TN_API int32_t tn_guess_branch(const tn_guess *guess, int32_t at);

/* Guesses for TN_SPEC_CALLBACK: fills guess->guess, probs and n, up to `room`. An error disables guessing. */
typedef tn_status (*tn_propose_fn)(void *user, tn_guess *guess);

typedef struct tn_spec_params {
    tn_spec_kind kind;
    int32_t n_max; /* longest guess; 0: 8; at most the session's n_guess */
    int32_t n_min; /* shorter guesses are not verified */
    float p_min;   /* a guess ends before a token with a lower confidence */
    /* Always guess, as many tokens as possible. Otherwise the length of guesses depends on acceptance rates and on
     * the measured time of batches, and no guesses are made where they would cost time. */
    bool fixed;
    /* NGRAM: length of the match with earlier text in tokens, 2 to 8; 0: 3. Bytes of the table for all sequences; 0:
     2 MiB */
    int32_t ngram;
    size_t ngram_bytes;
    /* MTP: a session of the head (tn_model_params.head), as for DRAFT; the session that verifies has `states`.
     * EAGLE3: a session of the head; the session that verifies has `states` of its layers (tn_model_target_layers).
     * DRAFT: a session of the smaller model, with as many sequences and the same n_guess or more. It belongs to the
     * speculator, which uses it alone, until both are freed by the caller. */
    tn_session *draft;
    /* CALLBACK */
    tn_propose_fn propose;
    void *user;
} tn_spec_params;

/* TN_E_INVALID: the parameters do not suit the session; the vocabularies have too little in common. */
TN_API tn_status tn_speculator_new(tn_session *session, const tn_spec_params *params,
                                   tn_speculator **out) TN_MUST_CHECK;
TN_API void tn_speculator_free(tn_speculator *speculator); /* accepts NULL; before the sessions */
/* Bytes that it has allocated, without those of a draft's session. */
TN_API size_t tn_speculator_bytes(const tn_speculator *speculator);
TN_API size_t tn_spec_params_bytes(const tn_session_params *session, const tn_spec_params *params);

/* Makes guesses for n sequences that will be in one batch, at most `room` tokens each; tn_guess.n is 0 where no guess
 * is worth its row. A proposer that fails is logged once and disabled; the call then succeeds without guesses. */
TN_API tn_status tn_speculator_propose(tn_speculator *speculator, tn_guess *guesses, int32_t n) TN_MUST_CHECK;
/* Reports, after the rows were sampled, how many of the guessed tokens were right. Call it for every guess of
 * the last tn_speculator_propose that was decoded, including empty ones. */
TN_API void tn_speculator_checked(tn_speculator *speculator, const tn_guess *guess, int32_t n_accepted);
/* The sequence begins another text, or its tokens before the last have changed. */
TN_API void tn_speculator_forget(tn_speculator *speculator, int32_t seq);

typedef struct tn_spec_stats {
    uint64_t steps;                                      /* of sequences: one sampled token and its guess */
    uint64_t guessed_steps;                              /* those with a guess */
    uint64_t guessed, accepted;                          /* tokens */
    uint64_t tried[TN_GUESS_MOST], right[TN_GUESS_MOST]; /* by index in the guess: verified; accepted */
    uint64_t propose_ns;                                 /* time of guessing */
    int64_t saved_ns; /* estimate: time of as many plain steps minus the time taken */
    bool failed;      /* an error has disabled guessing */
} tn_spec_stats;
TN_API tn_spec_stats tn_speculator_stats(const tn_speculator *speculator);
TN_API void tn_speculator_reset_stats(tn_speculator *speculator);

/* Makes tn_session_next guess with this speculator; NULL: without. It must have been created for this
 * session and may serve all of its sequences. Between two calls of tn_session_next a sequence may then hold guessed
 * tokens that are not yet verified; tn_session_prompt and tn_session_settle roll them back. */
TN_API void tn_session_set_speculator(tn_session *session, tn_speculator *speculator);
/* Rolls back the guessed tokens of a sequence that were not verified. */
TN_API tn_status tn_session_settle(tn_session *session, int32_t seq);

#ifdef __cplusplus
}
#endif
#endif

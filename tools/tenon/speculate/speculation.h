/* Speculative decoding from the command line: its options, and the draft model. */
#ifndef TENON_TOOL_SPECULATION_H
#define TENON_TOOL_SPECULATION_H

#include "cli/cli.h"

#include "tenon/cpu.h"
#include "tenon/generate.h"

#include <jansson.h>

extern const struct option_group speculation_options;

/* The proposer of a command's sessions. All members are zero without speculative decoding. */
struct speculation {
    tn_spec_params params;
    tn_model *model; /* the draft's */
    tn_session *draft;
    tn_speculator *speculator;
    size_t planned_bytes; /* of the draft's session and the speculator */
};

/* Whether tokens are guessed by a model with a session of its own. */
bool speculation_has_draft(tn_spec_kind kind);
/* Reads the options: who guesses, and how much (kind NONE: nobody). Returns an exit code. */
int speculation_read(const struct args *args, tn_spec_params *params);
/* The same, and the number of guesses that the session checks, the branches of one sequence, and the states that it
 * returns. */
int speculation_prepare(const struct args *args, tn_session_params *session);
/* Parameters of the draft's session beside a session with these. */
void speculation_draft_params(const struct args *args, const tn_session_params *session, tn_session_params *draft);
/* Opens the draft model, plans its session, and makes the speculator. Returns an exit code after a message. */
int speculation_open(const struct args *args, tn_session *session, tn_threadpool *threads,
                     struct speculation *speculation);
/* The same without a message. */
tn_status speculation_start(const struct args *args, tn_session *session, tn_threadpool *threads,
                            struct speculation *speculation);
/* What came of the guesses, on standard error. */
void speculation_print_stats(const tn_speculator *speculator);
double speculation_tokens_per_step(const tn_spec_stats *stats);
/* Per position in a guess the share of the verified tokens that was right. */
json_t *speculation_acceptance(const tn_spec_stats *stats);
void speculation_close(struct speculation *speculation); /* before its session ends; an empty one is fine */

/* For tenon plan: the bytes beside those of the model, and the predicted speed. Returns an exit code. */
int speculation_print_plan(const struct args *args, tn_model *model, const tn_session_params *params, FILE *out);

#endif

/* Grammars that generated text must obey: GBNF, JSON schema turned into GBNF, and masks over a vocabulary.
 *
 * Three objects. A tn_grammar is a compiled grammar and a tn_pieces a vocabulary's texts; both are constant once made
 * and may be shared between threads. A tn_grammar_state is one sequence's position in a grammar; one thread at a
 * time. A state keeps what it was made from alive, so the three may be freed in any order. */
#ifndef TENON_GRAMMAR_H
#define TENON_GRAMMAR_H

#include "tenon/base.h"
#include "tenon/token.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Compiled grammars ---- */

typedef struct tn_grammar tn_grammar;

/* Compiles GBNF text; `root` names the rule to start from (NULL: "root"). The text is not kept.
 * TN_E_SYNTAX, with line and column: text that is not GBNF, a rule that is undefined, defined twice, left-recursive,
 * or that can never finish. TN_E_LIMIT: repetitions, nesting or ambiguity beyond what the matcher bounds. */
TN_API tn_status tn_grammar_new(const char *gbnf, const char *root, tn_grammar **out);
TN_API void tn_grammar_free(tn_grammar *grammar); /* accepts NULL */

/* GBNF text of all JSON: rule "root" is any object, rule "value" any value. Static. */
TN_API const char *tn_grammar_json(void);

/* Turns a JSON schema into GBNF text (rule "root") that generates only documents valid against it, with properties in
 * the schema's order. The caller frees *gbnf with tn_free. TN_E_SYNTAX: not JSON. TN_E_UNSUPPORTED: a keyword that
 * cannot be honoured, named with its path; nothing is silently ignored that would change the meaning.
 * TN_E_INFEASIBLE: nothing can match. TN_E_LIMIT: nested or expanded too far. */
TN_API tn_status tn_schema_to_grammar(const char *schema_json, char **gbnf);

/* ---- Vocabulary texts ---- */

/* The bytes a token stands for. They need not be whole UTF-8 characters. A length of 0 (control tokens) means that
 * the token never matches a grammar. */
typedef struct tn_piece {
    const char *bytes;
    size_t length;
} tn_piece;

typedef struct tn_pieces tn_pieces;

/* Copies and organises pieces[token] for token = 0 … count-1. `ends` lists the tokens that end a generation: a
 * grammar allows them exactly where the text is complete, whatever their piece. */
TN_API tn_status tn_pieces_new(const tn_piece *pieces, size_t count, const tn_token *ends, size_t n_ends,
                               tn_pieces **out);
/* The same from a tokenizer: control and unused tokens have no text, the tokens that end a text are the ends. */
typedef struct tn_tokenizer tn_tokenizer;
TN_API tn_status tn_pieces_from_tokenizer(const tn_tokenizer *tokenizer, tn_pieces **out);
TN_API void tn_pieces_free(tn_pieces *pieces); /* accepts NULL */
TN_API size_t tn_pieces_count(const tn_pieces *pieces);
TN_API tn_piece tn_pieces_get(const tn_pieces *pieces, tn_token token); /* empty when out of range */

/* ---- Matching ---- */

typedef struct tn_grammar_state tn_grammar_state;

/* Where a lazy grammar wakes up: after `text` was generated (it may span tokens), or after `token` (used when text is
 * NULL). With `included` the grammar describes the trigger's own text too. */
typedef struct tn_grammar_trigger {
    const char *text;
    tn_token token;
    bool included;
} tn_grammar_trigger;

typedef struct tn_grammar_state_params {
    const tn_grammar *grammar;
    const tn_pieces *pieces;            /* may be NULL: bytes can be accepted, tokens cannot and there are no masks */
    const tn_grammar_trigger *triggers; /* copied; with any, all text is free until one is met */
    size_t n_triggers;
    size_t memory; /* bytes to reserve for the matcher's tables, 0: 4 MiB */
    size_t masks;  /* masks to remember, 0: 64 */
} tn_grammar_state_params;

/* All memory is taken here; the calls below allocate nothing. TN_E_LIMIT: the grammar is too ambiguous to start.
 * TN_E_INVALID: an included trigger that the grammar does not begin with. */
TN_API tn_status tn_grammar_state_new(const tn_grammar_state_params *params, tn_grammar_state **out);
TN_API tn_status tn_grammar_state_clone(const tn_grammar_state *state, tn_grammar_state **out);
TN_API void tn_grammar_state_reset(tn_grammar_state *state);
TN_API void tn_grammar_state_free(tn_grammar_state *state); /* accepts NULL */

/* Advances over text. TN_E_INVALID: the grammar refuses it at the byte named in the message; TN_E_LIMIT: nesting or
 * ambiguity ran out of the reserved memory. Either way the state stays where it was. */
TN_API tn_status tn_grammar_accept_bytes(tn_grammar_state *state, const void *bytes, size_t count);
TN_API tn_status tn_grammar_accept_char(tn_grammar_state *state, uint32_t code_point);
TN_API tn_status tn_grammar_accept_token(tn_grammar_state *state, tn_token token);

TN_API bool tn_grammar_is_accepting(const tn_grammar_state *state); /* the text so far is complete */
TN_API bool tn_grammar_is_waiting(const tn_grammar_state *state);   /* a lazy grammar that no trigger woke yet */

/* The tokens that may come next: bit token%64 of word token/64, valid until the next call on this state. */
TN_API tn_status tn_grammar_mask(tn_grammar_state *state, const uint64_t **mask);

#ifdef __cplusplus
}
#endif
#endif

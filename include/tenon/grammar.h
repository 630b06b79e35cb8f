/* Grammars that generated text must follow: GBNF, JSON schema converted to GBNF, and masks over a vocabulary.
 *
 * There are three objects. A tn_grammar is a compiled grammar and a tn_pieces the texts of a vocabulary; both are
 * immutable and may be shared between threads. A tn_grammar_state is the position of one sequence in a grammar; one
 * thread at a time may use it. A state keeps the objects it was created from alive, so the three may be freed in any
 * order. */
#ifndef TENON_GRAMMAR_H
#define TENON_GRAMMAR_H

#include "tenon/base.h"
#include "tenon/token.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Compiled grammars ---- */

typedef struct tn_grammar tn_grammar;

/* Compiles GBNF text. `root` is the name of the start rule (NULL: "root"). The text is not kept.
 * TN_E_SYNTAX: the text is not GBNF, or a rule is undefined, defined twice, left-recursive or can never finish; the
 * message has line and column. TN_E_LIMIT: too many repetitions, too deep nesting or too much ambiguity. */
TN_API tn_status tn_grammar_new(const char *gbnf, const char *root, tn_grammar **out);
TN_API void tn_grammar_free(tn_grammar *grammar); /* accepts NULL */

/* The GBNF text of JSON: rule "root" is any object, rule "value" any value. The string is static. */
TN_API const char *tn_grammar_json(void);

/* Converts a JSON schema to GBNF text (start rule "root") that generates only documents valid against the schema,
 * with properties in the schema's order. The caller frees *gbnf with tn_free. TN_E_SYNTAX: not JSON.
 * TN_E_UNSUPPORTED: a keyword that cannot be converted; the message has its path. No keyword that restricts documents
 * is ignored. TN_E_INFEASIBLE: no document matches the schema. TN_E_LIMIT: nested too deeply or expanded too far. */
TN_API tn_status tn_schema_to_grammar(const char *schema_json, char **gbnf);
/* The same, but keywords that cannot be converted are ignored where they are, and the rest of the schema holds.
 * *notes has a line for each of them, NULL if there are none; the caller frees it with tn_free. `notes` may be NULL.
 */
TN_API tn_status tn_schema_to_grammar_relaxed(const char *schema_json, char **gbnf, char **notes);

/* ---- The texts of a vocabulary ---- */

/* The bytes of a token, which need not be whole UTF-8 characters. A token of length 0 (a control token) never matches
 * a grammar. */
typedef struct tn_piece {
    const char *bytes;
    size_t length;
} tn_piece;

typedef struct tn_pieces tn_pieces;

/* Copies and indexes pieces[token] for token = 0 … count-1. `ends` lists the tokens that end a generation: a grammar
 * allows them exactly where the text is complete, whatever their piece. */
TN_API tn_status tn_pieces_new(const tn_piece *pieces, size_t count, const tn_token *ends, size_t n_ends,
                               tn_pieces **out);
/* The pieces of a tokenizer. Control and unused tokens have no text; the tokens that end a text are the ends. */
typedef struct tn_tokenizer tn_tokenizer;
TN_API tn_status tn_pieces_from_tokenizer(const tn_tokenizer *tokenizer, tn_pieces **out);
/* Adds a reference and returns it. The pieces are freed with their last reference. */
TN_API tn_pieces *tn_pieces_retain(const tn_pieces *pieces);
TN_API void tn_pieces_free(tn_pieces *pieces); /* releases a reference; accepts NULL */
TN_API size_t tn_pieces_count(const tn_pieces *pieces);
/* The piece of a token; empty if the token is out of range. */
TN_API tn_piece tn_pieces_get(const tn_pieces *pieces, tn_token token);

/* ---- Matching ---- */

typedef struct tn_grammar_state tn_grammar_state;

/* Where a lazy grammar starts: after `text` has been generated (it may span tokens) or, if text is NULL, after
 * `token`. With `included` the grammar describes the trigger's own text too. */
typedef struct tn_grammar_trigger {
    const char *text;
    tn_token token;
    bool included;
} tn_grammar_trigger;

typedef struct tn_grammar_state_params {
    const tn_grammar *grammar;
    /* May be NULL. Then the state accepts bytes, but no tokens, and computes no masks. */
    const tn_pieces *pieces;
    /* Copied. With triggers, all text is allowed until one of them has been generated. */
    const tn_grammar_trigger *triggers;
    size_t n_triggers;
    size_t memory; /* bytes to reserve for the matcher's tables; 0: 4 MiB */
    size_t masks;  /* how many masks to cache; 0: 64 */
} tn_grammar_state_params;

/* Reserves all memory; the functions below allocate nothing. TN_E_LIMIT: the start of the grammar is too ambiguous.
 * TN_E_INVALID: the grammar does not begin with a trigger that it should include. */
TN_API tn_status tn_grammar_state_new(const tn_grammar_state_params *params, tn_grammar_state **out);
TN_API tn_status tn_grammar_state_clone(const tn_grammar_state *state, tn_grammar_state **out);
TN_API void tn_grammar_state_reset(tn_grammar_state *state);
TN_API void tn_grammar_state_free(tn_grammar_state *state); /* accepts NULL */
/* The pieces it was created with, which live as long as the state; NULL if there are none. */
TN_API const tn_pieces *tn_grammar_state_pieces(const tn_grammar_state *state);

/* Advance over text. TN_E_INVALID: the grammar does not allow the text; the message has the byte. TN_E_LIMIT: nesting
 * or ambiguity exceeds the reserved memory. On an error the state does not change. */
TN_API tn_status tn_grammar_accept_bytes(tn_grammar_state *state, const void *bytes, size_t count);
TN_API tn_status tn_grammar_accept_char(tn_grammar_state *state, uint32_t code_point);
TN_API tn_status tn_grammar_accept_token(tn_grammar_state *state, tn_token token);

/* Whether the text so far is complete. */
TN_API bool tn_grammar_is_accepting(const tn_grammar_state *state);
/* Whether the grammar is lazy and no trigger has been generated yet. */
TN_API bool tn_grammar_is_waiting(const tn_grammar_state *state);

/* The tokens that may come next: bit token%64 of word token/64. The mask is valid until the next call on this state.
 */
TN_API tn_status tn_grammar_mask(tn_grammar_state *state, const uint64_t **mask);

#ifdef __cplusplus
}
#endif
#endif

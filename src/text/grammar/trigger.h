/* Lazy grammars: finding the text that wakes one up, byte by byte (an Aho-Corasick automaton). */
#ifndef TN_LLM_GRAMMAR_TRIGGER_H
#define TN_LLM_GRAMMAR_TRIGGER_H

#include "tenon/grammar.h"

typedef struct tn__trigger_node {
    uint16_t next[256];
    uint16_t found; /* trigger that ends here + 1 */
} tn__trigger_node;

typedef struct tn__triggers {
    tn_grammar_trigger *list; /* own copies of the texts */
    size_t count;
    tn__trigger_node *nodes; /* node 0: nothing of any trigger seen */
    size_t n_nodes;
} tn__triggers;

/* TN_E_INVALID: an empty text. TN_E_LIMIT: more than 1,000 bytes of triggers. */
tn_status tn__triggers_new(const tn_grammar_trigger *list, size_t count, tn__triggers *out);
void tn__triggers_free(tn__triggers *triggers);

/* The trigger that a token is, or NULL. */
const tn_grammar_trigger *tn__triggers_by_token(const tn__triggers *triggers, tn_token token);

#endif

/* Triggers of lazy grammars: recognized byte by byte with an Aho-Corasick automaton. */
#ifndef TN_TEXT_GRAMMAR_TRIGGER_H
#define TN_TEXT_GRAMMAR_TRIGGER_H

#include "tenon/grammar.h"

typedef struct tn__trigger_node {
    uint16_t next[256];
    uint16_t trigger; /* index of the trigger that ends here, plus 1; 0: none */
} tn__trigger_node;

typedef struct tn__triggers {
    tn_grammar_trigger *list; /* own copies of the texts */
    size_t count;
    tn__trigger_node *nodes; /* node 0: no part of a trigger seen */
    size_t n_nodes;
} tn__triggers;

/* TN_E_INVALID: an empty text. TN_E_LIMIT: more than 1,000 bytes of triggers. */
tn_status tn__triggers_new(const tn_grammar_trigger *list, size_t count, tn__triggers *out);
void tn__triggers_free(tn__triggers *triggers);

/* The trigger with this token, or NULL. */
const tn_grammar_trigger *tn__triggers_by_token(const tn__triggers *triggers, tn_token token);

#endif

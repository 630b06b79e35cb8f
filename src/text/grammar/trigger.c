/* Triggers of lazy grammars: building the automaton that recognizes their texts. */
#include "text/grammar/trigger.h"

#include "base/checked.h"

#include <string.h>

enum { TRIGGER_BYTES_MAX = 1000, TRIGGERS_MAX = 1000 };

static size_t trigger_length(const tn_grammar_trigger *t) { return t->text ? strlen(t->text) : 0; }

/* Builds the trie of the texts. Until link_nodes() runs, 0 means "no child". */
static void build_trigger_trie(tn__triggers *t) {
    t->n_nodes = 1;
    for (size_t i = 0; i < t->count; i++) {
        uint16_t at = 0;
        for (const char *c = t->list[i].text; c && *c; c++) {
            uint16_t *next = &t->nodes[at].next[(uint8_t)*c];
            if (!*next) *next = (uint16_t)t->n_nodes++;
            at = *next;
        }
        if (at && !t->nodes[at].trigger) t->nodes[at].trigger = (uint16_t)(i + 1);
    }
}

/* Fills in, breadth first, the transitions without a child: they lead to where the byte leads from the longest proper
 * suffix of the node's text that is itself a node. */
static tn_status link_trigger_nodes(tn__triggers *t) {
    uint16_t *queue = tn_malloc(t->n_nodes * sizeof *queue), *suffix = tn_calloc(t->n_nodes, sizeof *suffix);
    if (!queue || !suffix) {
        tn_free(queue);
        tn_free(suffix);
        return TN_E_NOMEM;
    }
    size_t head = 0, tail = 0;
    for (int byte = 0; byte < 256; byte++)
        if (t->nodes[0].next[byte]) queue[tail++] = t->nodes[0].next[byte];
    while (head < tail) {
        uint16_t at = queue[head++];
        const tn__trigger_node *from = &t->nodes[suffix[at]];
        if (!t->nodes[at].trigger) t->nodes[at].trigger = from->trigger;
        for (int byte = 0; byte < 256; byte++) {
            uint16_t child = t->nodes[at].next[byte];
            if (child) {
                suffix[child] = from->next[byte];
                queue[tail++] = child;
            } else {
                t->nodes[at].next[byte] = from->next[byte];
            }
        }
    }
    tn_free(queue);
    tn_free(suffix);
    return TN_OK;
}

tn_status tn__triggers_new(const tn_grammar_trigger *list, size_t count, tn__triggers *out) {
    *out = (tn__triggers){0};
    if (count == 0) return TN_OK;
    if (!list) return tn_fail(TN_E_INVALID, "n_triggers is set, but triggers is NULL");
    if (count > TRIGGERS_MAX) return tn_fail(TN_E_LIMIT, "%zu triggers; at most %d", count, TRIGGERS_MAX);
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].text && !*list[i].text) return tn_fail(TN_E_INVALID, "trigger %zu is empty", i);
        total += trigger_length(&list[i]);
        if (total > TRIGGER_BYTES_MAX)
            return tn_fail(TN_E_LIMIT, "the triggers have more than %d bytes", TRIGGER_BYTES_MAX);
    }
    tn__triggers t = {.count = 0};
    tn_status status = TN_E_NOMEM;
    t.list = tn_calloc(count, sizeof *t.list);
    if (!t.list) goto out;
    for (; t.count < count; t.count++) {
        t.list[t.count] = list[t.count];
        if (!list[t.count].text) continue;
        t.list[t.count].text = tn_strdup(list[t.count].text);
        if (!t.list[t.count].text) goto out;
    }
    t.nodes = tn_calloc(total + 1, sizeof *t.nodes);
    if (!t.nodes) goto out;
    build_trigger_trie(&t);
    status = link_trigger_nodes(&t);
out:
    if (status == TN_OK)
        *out = t;
    else
        tn__triggers_free(&t);
    return status;
}

void tn__triggers_free(tn__triggers *t) {
    for (size_t i = 0; i < t->count; i++) tn_free((char *)t->list[i].text);
    tn_free(t->list);
    tn_free(t->nodes);
    *t = (tn__triggers){0};
}

const tn_grammar_trigger *tn__triggers_by_token(const tn__triggers *t, tn_token token) {
    for (size_t i = 0; i < t->count; i++)
        if (!t->list[i].text && t->list[i].token == token) return &t->list[i];
    return NULL;
}

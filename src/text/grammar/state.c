/* One sequence's position in a grammar: accepting text and tokens, waiting for a trigger, masks over the vocabulary.
 */
#include "base/checked.h"
#include "base/hash.h"
#include "text/grammar/internal.h"
#include "text/grammar/trigger.h"
#include "text/utf8.h"

#include <string.h>

enum { MASKS_DEFAULT = 64, MASKS_MAX = 1 << 16 };

/* A position in the text: a set of the matcher or, with the bit WAITING, a node of the triggers' automaton. */
typedef uint32_t text_position;
#define WAITING 0x80000000u

typedef struct mask_slot {
    text_position key;
    uint32_t used; /* clock of the last use; 0: empty slot */
} mask_slot;

struct tn_grammar_state {
    tn_grammar *grammar;
    tn_pieces *pieces;
    tn__triggers triggers;
    tn__matcher matcher;
    text_position at;
    text_position *path; /* while a mask is computed: the position at each depth of the trie */
    mask_slot *slots;
    uint64_t *masks;
    size_t n_masks, mask_words;
    uint32_t clock;
};

const tn_pieces *tn_grammar_state_pieces(const tn_grammar_state *s) { return s->pieces; }

/* ---- Steps ---- */

static tn_status step_position(tn_grammar_state *s, text_position from, uint8_t byte, text_position *out);

static tn_status step_over_text(tn_grammar_state *s, text_position from, const char *text, size_t length,
                                text_position *out) {
    for (size_t i = 0; i < length && from != TN__SET_DEAD; i++)
        TN_TRY(step_position(s, from, (uint8_t)text[i], &from));
    *out = from;
    return TN_OK;
}

/* The position after a trigger: the grammar's start, or after the trigger's own text if the grammar includes it. */
static tn_status start_at_trigger(tn_grammar_state *s, const tn_grammar_trigger *trigger, text_position *out) {
    tn__set start;
    TN_TRY(tn__matcher_start(&s->matcher, &start));
    *out = start;
    if (!trigger->included) return TN_OK;
    tn_piece piece = trigger->text ? (tn_piece){trigger->text, strlen(trigger->text)}
                     : s->pieces   ? tn_pieces_get(s->pieces, trigger->token)
                                   : (tn_piece){"", 0};
    return step_over_text(s, start, piece.bytes, piece.length, out);
}

static tn_status step_position(tn_grammar_state *s, text_position from, uint8_t byte, text_position *out) {
    if (!(from & WAITING)) return tn__matcher_step(&s->matcher, from, byte, out);
    uint16_t node = s->triggers.nodes[from & ~WAITING].next[byte];
    uint16_t trigger = s->triggers.nodes[node].trigger;
    if (trigger) return start_at_trigger(s, &s->triggers.list[trigger - 1], out);
    *out = WAITING | node;
    return TN_OK;
}

/* Empties the matcher except for the current position and another one. Masks are stored by set, so they are dropped
 * too. */
static void empty_matcher(tn_grammar_state *s, text_position *other) {
    tn__set *keep[2];
    size_t n = 0;
    if (!(s->at & WAITING)) keep[n++] = &s->at;
    if (other && !(*other & WAITING)) keep[n++] = other;
    tn__matcher_forget(&s->matcher, keep, n);
    for (size_t i = 0; i < s->n_masks; i++)
        if (!(s->slots[i].key & WAITING)) s->slots[i].used = 0;
}

/* Like step_position(), but empties the tables if they are full. */
static tn_status step_or_empty(tn_grammar_state *s, text_position *from, uint8_t byte, text_position *out) {
    tn_status status = step_position(s, *from, byte, out);
    if (status != TN_E_LIMIT) return status;
    empty_matcher(s, from);
    return step_position(s, *from, byte, out);
}

static text_position start_position(const tn_grammar_state *s) {
    return s->triggers.count ? WAITING : TN__SET_UNKNOWN;
}

/* ---- Life cycle ---- */

static tn_status check_triggers(tn_grammar_state *s) {
    for (size_t i = 0; i < s->triggers.count; i++) {
        const tn_grammar_trigger *t = &s->triggers.list[i];
        if (!t->text && !s->pieces)
            return tn_fail(TN_E_INVALID, "trigger %zu is a token, but the state has no pieces", i);
        if (!t->text && (t->token < 0 || (size_t)t->token >= s->pieces->count))
            return tn_fail(TN_E_INVALID, "trigger %zu is token %d, which is outside the vocabulary of %zu", i,
                           t->token, s->pieces->count);
        text_position after;
        TN_TRY(start_at_trigger(s, t, &after));
        if (after == TN__SET_DEAD)
            return tn_fail(TN_E_INVALID, "the grammar does not begin with its trigger %zu%s%.64s", i,
                           t->text ? ", " : "", t->text ? t->text : "");
    }
    return TN_OK;
}

static tn_status reserve_state(tn_grammar_state *s, size_t memory, size_t masks) {
    TN_TRY(tn__matcher_new(&s->grammar->program, memory, &s->matcher));
    if (!s->pieces) return TN_OK;
    s->n_masks = masks == 0 ? MASKS_DEFAULT : masks;
    if (s->n_masks > MASKS_MAX) return tn_fail(TN_E_INVALID, "masks is %zu; the maximum is %d", masks, MASKS_MAX);
    s->mask_words = tn__bits_words(s->pieces->count);
    s->slots = tn_calloc(s->n_masks, sizeof *s->slots);
    s->masks = tn_malloc(s->n_masks * s->mask_words * sizeof *s->masks);
    s->path = tn_malloc((s->pieces->max_depth + 1) * sizeof *s->path);
    return s->slots && s->masks && s->path ? TN_OK : TN_E_NOMEM;
}

static tn_status begin_state(tn_grammar_state *s) {
    s->at = start_position(s);
    if (s->at & WAITING) return TN_OK;
    return tn__matcher_start(&s->matcher, &s->at);
}

tn_status tn_grammar_state_new(const tn_grammar_state_params *params, tn_grammar_state **out) {
    if (!params || !params->grammar || !out)
        return tn_fail(TN_E_INVALID, "tn_grammar_state_new: params, grammar or out is NULL");
    *out = NULL;
    tn_grammar_state *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->grammar = tn__grammar_retain(params->grammar);
    s->pieces = params->pieces ? tn_pieces_retain(params->pieces) : NULL;
    tn_status status;
    TN_TRY_GOTO(tn__triggers_new(params->triggers, params->n_triggers, &s->triggers), status, out);
    TN_TRY_GOTO(reserve_state(s, params->memory, params->masks), status, out);
    TN_TRY_GOTO(check_triggers(s), status, out);
    TN_TRY_GOTO(begin_state(s), status, out);
out:
    if (status == TN_OK)
        *out = s;
    else
        tn_grammar_state_free(s);
    return status;
}

void tn_grammar_state_free(tn_grammar_state *s) {
    if (!s) return;
    tn__matcher_free(&s->matcher);
    tn__triggers_free(&s->triggers);
    tn_grammar_free(s->grammar);
    tn_pieces_free(s->pieces);
    tn_free(s->slots);
    tn_free(s->masks);
    tn_free(s->path);
    tn_free(s);
}

tn_status tn_grammar_state_clone(const tn_grammar_state *from, tn_grammar_state **out) {
    if (!from || !out) return tn_fail(TN_E_INVALID, "tn_grammar_state_clone: state or out is NULL");
    *out = NULL;
    tn_grammar_state *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->grammar = tn__grammar_retain(from->grammar);
    s->pieces = from->pieces ? tn_pieces_retain(from->pieces) : NULL;
    s->at = from->at;
    tn_status status;
    TN_TRY_GOTO(tn__triggers_new(from->triggers.list, from->triggers.count, &s->triggers), status, out);
    TN_TRY_GOTO(reserve_state(s, from->matcher.memory_size, from->n_masks), status, out);
    tn__matcher_free(&s->matcher);
    TN_TRY_GOTO(tn__matcher_copy(&from->matcher, &s->matcher), status, out);
    for (size_t i = 0; i < s->n_masks; i++) {
        if (!from->slots[i].used) continue;
        s->slots[i] = from->slots[i];
        memcpy(s->masks + i * s->mask_words, from->masks + i * s->mask_words, s->mask_words * sizeof *s->masks);
    }
    s->clock = from->clock;
out:
    if (status == TN_OK)
        *out = s;
    else
        tn_grammar_state_free(s);
    return status;
}

void tn_grammar_state_reset(tn_grammar_state *s) {
    if (begin_state(s) == TN_OK) return;
    /* The tables are full. The start fits into empty ones, because it did when the state was created. */
    s->at = WAITING;
    empty_matcher(s, NULL);
    (void)begin_state(s);
}

/* ---- Accepting ---- */

tn_status tn_grammar_accept_bytes(tn_grammar_state *s, const void *bytes, size_t count) {
    if (!s || (!bytes && count)) return tn_fail(TN_E_INVALID, "tn_grammar_accept_bytes: state or bytes is NULL");
    text_position at = s->at;
    for (size_t i = 0; i < count; i++) {
        uint8_t byte = ((const uint8_t *)bytes)[i];
        text_position next;
        TN_TRY(step_or_empty(s, &at, byte, &next));
        at = next;
        if (at == TN__SET_DEAD)
            return tn_fail(TN_E_INVALID, "the grammar does not allow byte 0x%02x%s%.1s%s at offset %zu of the text",
                           byte, byte > 0x20 && byte < 0x7f ? " '" : "",
                           byte > 0x20 && byte < 0x7f ? (const char *)&byte : "",
                           byte > 0x20 && byte < 0x7f ? "'" : "", i);
    }
    s->at = at;
    return TN_OK;
}

tn_status tn_grammar_accept_char(tn_grammar_state *s, uint32_t code) {
    char bytes[4];
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return tn_fail(TN_E_INVALID, "U+%04X is not a character", code);
    return tn_grammar_accept_bytes(s, bytes, tn__utf8_encode(code, bytes));
}

tn_status tn_grammar_accept_token(tn_grammar_state *s, tn_token token) {
    if (!s || !s->pieces) return tn_fail(TN_E_INVALID, "the grammar state has no vocabulary");
    if (token < 0 || (size_t)token >= s->pieces->count)
        return tn_fail(TN_E_INVALID, "token %d is outside the vocabulary of %zu", token, s->pieces->count);
    bool waiting = s->at & WAITING;
    if (waiting) {
        const tn_grammar_trigger *trigger = tn__triggers_by_token(&s->triggers, token);
        if (trigger) {
            text_position next;
            tn_status status = start_at_trigger(s, trigger, &next);
            if (status == TN_E_LIMIT) {
                empty_matcher(s, NULL);
                status = start_at_trigger(s, trigger, &next);
            }
            if (status == TN_OK) s->at = next;
            return status;
        }
    }
    if (tn__bits_get(s->pieces->is_end, (size_t)token)) {
        if (waiting || tn_grammar_is_accepting(s)) return TN_OK;
        return tn_fail(TN_E_INVALID, "token %d ends the text where the grammar does not", token);
    }
    tn_piece piece = tn_pieces_get(s->pieces, token);
    if (piece.length == 0 && !waiting)
        return tn_fail(TN_E_INVALID, "token %d has no text; the grammar does not allow it", token);
    return tn_grammar_accept_bytes(s, piece.bytes, piece.length);
}

bool tn_grammar_is_accepting(const tn_grammar_state *s) {
    return s->at & WAITING ? true : tn__matcher_accepting(&s->matcher, s->at);
}
bool tn_grammar_is_waiting(const tn_grammar_state *s) { return s->at & WAITING; }

/* ---- Masks ---- */

/* Walks the trie from a position inside the grammar and skips the subtree of a byte that the grammar rejects. */
static tn_status mask_in_grammar(tn_grammar_state *s, uint64_t *mask) {
    const tn_pieces *p = s->pieces;
    memset(mask, 0, s->mask_words * sizeof *mask);
    s->path[0] = s->at;
    for (size_t i = 1; i < p->n_nodes;) {
        const tn__piece_node *node = &p->nodes[i];
        text_position from = s->path[node->depth], to = tn__matcher_known(&s->matcher, from, node->byte);
        if (to == TN__SET_UNKNOWN) TN_TRY(tn__matcher_step(&s->matcher, from, node->byte, &to));
        if (to == TN__SET_DEAD) {
            i = node->skip;
            continue;
        }
        s->path[node->depth + 1] = to;
        for (uint32_t t = node[-1].token_end; t < node->token_end; t++) tn__bits_set(mask, (size_t)p->tokens[t]);
        i++;
    }
    if (tn_grammar_is_accepting(s))
        for (size_t i = 0; i < p->n_ends; i++) tn__bits_set(mask, (size_t)p->ends[i]);
    return TN_OK;
}

/* Before the trigger every token is allowed, except one that contains a trigger followed by text that the grammar
 * rejects. */
static tn_status mask_while_waiting(tn_grammar_state *s, uint64_t *mask) {
    const tn_pieces *p = s->pieces;
    memset(mask, 0xff, s->mask_words * sizeof *mask);
    if (p->count % 64) mask[s->mask_words - 1] = ((uint64_t)1 << (p->count % 64)) - 1;
    s->path[0] = s->at;
    for (size_t i = 1; i < p->n_nodes;) {
        const tn__piece_node *node = &p->nodes[i];
        text_position to;
        TN_TRY(step_position(s, s->path[node->depth], node->byte, &to));
        if (to != TN__SET_DEAD) {
            s->path[node->depth + 1] = to;
            i++;
            continue;
        }
        for (uint32_t t = node[-1].token_end; t < p->nodes[node->skip - 1].token_end; t++)
            if (!tn__triggers_by_token(&s->triggers, p->tokens[t])) tn__bits_clear(mask, (size_t)p->tokens[t]);
        i = node->skip;
    }
    return TN_OK;
}

static tn_status compute_mask(tn_grammar_state *s, uint64_t *mask) {
    return s->at & WAITING ? mask_while_waiting(s, mask) : mask_in_grammar(s, mask);
}

tn_status tn_grammar_mask(tn_grammar_state *s, const uint64_t **out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_grammar_mask: state or mask is NULL");
    if (!s->pieces) return tn_fail(TN_E_INVALID, "the grammar state has no vocabulary");
    if (++s->clock == 0) { /* the clock wrapped: restart the order of use */
        for (size_t i = 0; i < s->n_masks; i++) s->slots[i].used = 0;
        s->clock = 1;
    }
    size_t oldest = 0;
    for (size_t i = 0; i < s->n_masks; i++) {
        if (s->slots[i].used && s->slots[i].key == s->at) {
            s->slots[i].used = s->clock;
            *out = s->masks + i * s->mask_words;
            return TN_OK;
        }
        if (s->slots[i].used < s->slots[oldest].used) oldest = i;
    }
    uint64_t *mask = s->masks + oldest * s->mask_words;
    s->slots[oldest].used = 0;
    tn_status status = compute_mask(s, mask);
    if (status == TN_E_LIMIT) {
        empty_matcher(s, NULL);
        status = compute_mask(s, mask);
    }
    if (status != TN_OK) return status;
    s->slots[oldest] = (mask_slot){s->at, s->clock};
    *out = mask;
    return TN_OK;
}

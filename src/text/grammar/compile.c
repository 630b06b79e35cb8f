/* Compiles a parsed grammar to a program over bytes, and groups the bytes that the program does not distinguish. */
#include "base/checked.h"
#include "text/grammar/internal.h"

#include <string.h>

typedef struct grammar_compiler {
    const tn__gbnf *g;
    tn__program *p;
    uint32_t *class_of_node; /* by tree node: class number + 1; 0: not added yet */
    uint32_t *queue;         /* tree nodes that became rules of their own, compiled after the named ones */
    size_t n_queue, queue_capacity;
} grammar_compiler;

static tn_status emit_instruction(grammar_compiler *c, tn__instruction instruction) {
    if (c->p->n_code >= TN__GRAMMAR_PROGRAM_MAX)
        return tn_fail(TN_E_LIMIT, "the grammar has more than %d instructions; use fewer repetitions or nested rules",
                       TN__GRAMMAR_PROGRAM_MAX);
    TN_TRY(tn__grammar_grow(&c->p->code, &c->p->code_capacity, c->p->n_code + 1, sizeof *c->p->code));
    c->p->code[c->p->n_code++] = instruction;
    return TN_OK;
}
static uint32_t next_pc(const grammar_compiler *c) { return (uint32_t)c->p->n_code; }

static tn_status emit_node(grammar_compiler *c, uint32_t node);

static tn_status emit_choice(grammar_compiler *c, uint32_t first) {
    /* SPLIT L1 L2; L1: …; JUMP end; L2: SPLIT …  The jumps form a linked list through their targets until the end is
     * known. */
    uint32_t jumps = TN__NONE;
    for (uint32_t child = first; child != TN__NONE; child = c->g->nodes[child].next) {
        bool last = c->g->nodes[child].next == TN__NONE;
        uint32_t split = next_pc(c);
        if (!last) TN_TRY(emit_instruction(c, (tn__instruction){.op = TN__OP_SPLIT, .a = split + 1}));
        TN_TRY(emit_node(c, child));
        if (last) break;
        TN_TRY(emit_instruction(c, (tn__instruction){.op = TN__OP_JUMP, .a = jumps}));
        jumps = next_pc(c) - 1;
        c->p->code[split].b = next_pc(c);
    }
    while (jumps != TN__NONE) {
        uint32_t next = c->p->code[jumps].a;
        c->p->code[jumps].a = next_pc(c);
        jumps = next;
    }
    return TN_OK;
}

/* Whether a node is a single instruction, so that copies of it are as short as calls. */
static bool is_single(const grammar_compiler *c, uint32_t node) {
    for (;;) {
        const tn__gbnf_node *n = &c->g->nodes[node];
        switch (n->kind) {
        case TN__GBNF_CLASS:
        case TN__GBNF_RULE: return true;
        case TN__GBNF_LITERAL: return n->count <= 1;
        case TN__GBNF_REPEAT: return false;
        case TN__GBNF_SEQUENCE:
        case TN__GBNF_CHOICE:
            if (n->first == TN__NONE) return true;
            if (c->g->nodes[n->first].next != TN__NONE) return false;
            node = n->first;
        }
    }
}

/* Emits one copy of a repeated node: the node itself, or a call of a rule made for it. */
static tn_status emit_repeated(grammar_compiler *c, uint32_t node, uint32_t *rule) {
    if (is_single(c, node)) return emit_node(c, node);
    if (*rule == TN__NONE) {
        if (c->p->n_rules >= TN__GRAMMAR_RULES_MAX)
            return tn_fail(TN_E_LIMIT, "more than %d rules and repeated groups", TN__GRAMMAR_RULES_MAX);
        TN_TRY(tn__grammar_grow(&c->p->entries, &c->p->entry_capacity, c->p->n_rules + 1, sizeof *c->p->entries));
        TN_TRY(tn__grammar_grow(&c->queue, &c->queue_capacity, c->n_queue + 1, sizeof *c->queue));
        c->queue[c->n_queue++] = node;
        *rule = (uint32_t)c->p->n_rules++;
    }
    return emit_instruction(c, (tn__instruction){.op = TN__OP_CALL, .a = *rule});
}

static tn_status emit_repeat(grammar_compiler *c, const tn__gbnf_node *n) {
    uint32_t min = n->count, max = n->max, rule = TN__NONE, start;
    if (max == TN__REPEAT_FOREVER && min <= 1) {
        start = next_pc(c);
        if (min == 0) {
            TN_TRY(emit_instruction(c, (tn__instruction){.op = TN__OP_SPLIT, .a = start + 1}));
            TN_TRY(emit_node(c, n->first));
            TN_TRY(emit_instruction(c, (tn__instruction){.op = TN__OP_JUMP, .a = start}));
            c->p->code[start].b = next_pc(c);
            return TN_OK;
        }
        TN_TRY(emit_node(c, n->first));
        return emit_instruction(c, (tn__instruction){.op = TN__OP_SPLIT, .a = start, .b = next_pc(c) + 1});
    }
    if (max == 1 && min <= 1) {
        start = next_pc(c);
        if (min == 0) TN_TRY(emit_instruction(c, (tn__instruction){.op = TN__OP_SPLIT, .a = start + 1}));
        TN_TRY(emit_node(c, n->first));
        if (min == 0) c->p->code[start].b = next_pc(c);
        return TN_OK;
    }
    start = next_pc(c);
    for (uint32_t i = 0; i < min; i++) {
        start = next_pc(c);
        TN_TRY(emit_repeated(c, n->first, &rule));
    }
    if (max == TN__REPEAT_FOREVER) /* the last copy loops */
        return emit_instruction(c, (tn__instruction){.op = TN__OP_SPLIT, .a = start, .b = next_pc(c) + 1});
    /* Before each further copy the rest can be skipped. The exits form a linked list until the end is known. */
    uint32_t exits = TN__NONE;
    for (uint32_t i = min; i < max; i++) {
        TN_TRY(emit_instruction(c, (tn__instruction){.op = TN__OP_SPLIT, .a = next_pc(c) + 1, .b = exits}));
        exits = next_pc(c) - 1;
        TN_TRY(emit_repeated(c, n->first, &rule));
    }
    while (exits != TN__NONE) {
        uint32_t next = c->p->code[exits].b;
        c->p->code[exits].b = next_pc(c);
        exits = next;
    }
    return TN_OK;
}

static tn_status emit_class(grammar_compiler *c, uint32_t node) {
    const tn__gbnf_node *n = &c->g->nodes[node];
    const tn__code_range *ranges = c->g->ranges + n->first;
    if (n->count == 1 && ranges[0].high < 0x80)
        return emit_instruction(
            c, (tn__instruction){.op = TN__OP_BYTE, .low = (uint8_t)ranges[0].low, .high = (uint8_t)ranges[0].high});
    if (!c->class_of_node[node]) {
        uint32_t number;
        TN_TRY(tn__program_add_class(c->p, ranges, n->count, &number));
        c->class_of_node[node] = number + 1;
    }
    return emit_instruction(c, (tn__instruction){.op = TN__OP_CLASS, .a = c->class_of_node[node] - 1});
}

/* The parser's limit on nesting bounds the recursion. */
static tn_status emit_node(grammar_compiler *c, uint32_t node) {
    const tn__gbnf_node *n = &c->g->nodes[node];
    switch (n->kind) {
    case TN__GBNF_LITERAL:
        for (uint32_t i = 0; i < n->count; i++) {
            uint8_t byte = c->g->bytes[n->first + i];
            TN_TRY(emit_instruction(c, (tn__instruction){.op = TN__OP_BYTE, .low = byte, .high = byte}));
        }
        return TN_OK;
    case TN__GBNF_CLASS: return emit_class(c, node);
    case TN__GBNF_RULE: return emit_instruction(c, (tn__instruction){.op = TN__OP_CALL, .a = n->first});
    case TN__GBNF_SEQUENCE:
        for (uint32_t child = n->first; child != TN__NONE; child = c->g->nodes[child].next)
            TN_TRY(emit_node(c, child));
        return TN_OK;
    case TN__GBNF_CHOICE: return emit_choice(c, n->first);
    case TN__GBNF_REPEAT: return emit_repeat(c, n);
    }
    return TN_OK;
}

static tn_status emit_rules(grammar_compiler *c) {
    tn__program *p = c->p;
    size_t named = c->g->n_rules;
    TN_TRY(tn__grammar_grow(&p->entries, &p->entry_capacity, named, sizeof *p->entries));
    p->n_rules = named;
    for (size_t r = 0; r < named + c->n_queue; r++) {
        p->entries[r] = next_pc(c);
        TN_TRY(emit_node(c, r < named ? c->g->rules[r].body : c->queue[r - named]));
        TN_TRY(emit_instruction(c, (tn__instruction){.op = TN__OP_RETURN}));
    }
    /* A call at the end of a rule needs no return address, so right recursion uses no memory. */
    for (size_t pc = 0; pc < p->n_code; pc++) {
        if (p->code[pc].op != TN__OP_CALL) continue;
        size_t next = pc + 1;
        for (int hops = 0; p->code[next].op == TN__OP_JUMP && hops < 64; hops++) next = p->code[next].a;
        if (p->code[next].op == TN__OP_RETURN) p->code[pc].op = TN__OP_TAIL_CALL;
    }
    return TN_OK;
}

static void group_bytes(tn__program *p) {
    bool starts[257] = {true}; /* a group starts at this byte */
    for (size_t pc = 0; pc < p->n_code; pc++)
        if (p->code[pc].op == TN__OP_BYTE) starts[p->code[pc].low] = starts[p->code[pc].high + 1] = true;
    for (size_t e = 0; e < p->n_class_edges; e++)
        starts[p->class_edges[e].low] = starts[p->class_edges[e].high + 1] = true;
    size_t n = 0;
    for (int byte = 0; byte < 256; byte++) {
        if (starts[byte]) p->group_byte[n++] = (uint8_t)byte;
        p->byte_group[byte] = (uint8_t)(n - 1);
    }
    p->n_groups = n;
}

tn_status tn__program_compile(const tn__gbnf *g, uint32_t root, tn__program *out) {
    *out = (tn__program){.root = root};
    grammar_compiler c = {.g = g, .p = out};
    tn_status status = TN_E_NOMEM;
    c.class_of_node = tn_calloc(g->n_nodes, sizeof *c.class_of_node);
    if (c.class_of_node) status = emit_rules(&c);
    tn_free(c.class_of_node);
    tn_free(c.queue);
    if (status == TN_OK)
        group_bytes(out);
    else
        tn__program_free(out);
    return status;
}

void tn__program_free(tn__program *p) {
    tn_free(p->code);
    tn_free(p->entries);
    tn_free(p->class_nodes);
    tn_free(p->class_edges);
    tn_free(p->class_roots);
    *p = (tn__program){0};
}

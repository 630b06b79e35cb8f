/* Checks a program for left recursion and for rules that can never finish. */
#include "base/checked.h"
#include "text/grammar/internal.h"

#include <string.h>

/* Walks all rules at once, each from its entry over its instructions. The walk continues after a call once the called
 * rule is known to reach its end, and waits at the call until then. Every instruction is visited at most once. */
typedef struct rule_walk {
    const tn__program *p;
    bool *visited;     /* by instruction */
    bool *reaches;     /* by rule: its RETURN is reached */
    uint32_t *waiting; /* by rule: the first call that waits for it */
    uint32_t *also;    /* by call: the next call that waits for the same rule */
    uint32_t *stack;
    uint32_t *rule_of; /* by instruction */
    size_t n_stack;
} rule_walk;

static tn_status walk_new(const tn__program *p, rule_walk *w) {
    *w = (rule_walk){.p = p};
    w->visited = tn_calloc(p->n_code, sizeof *w->visited);
    w->reaches = tn_calloc(p->n_rules, sizeof *w->reaches);
    w->waiting = tn_malloc(p->n_rules * sizeof *w->waiting);
    w->also = tn_malloc(p->n_code * sizeof *w->also);
    w->stack = tn_malloc(p->n_code * sizeof *w->stack);
    w->rule_of = tn_malloc(p->n_code * sizeof *w->rule_of);
    if (!w->visited || !w->reaches || !w->waiting || !w->also || !w->stack || !w->rule_of) return TN_E_NOMEM;
    for (size_t r = 0; r < p->n_rules; r++) {
        size_t end = r + 1 < p->n_rules ? p->entries[r + 1] : p->n_code;
        for (size_t pc = p->entries[r]; pc < end; pc++) w->rule_of[pc] = (uint32_t)r;
    }
    return TN_OK;
}
static void walk_free(rule_walk *w) {
    tn_free(w->visited);
    tn_free(w->reaches);
    tn_free(w->waiting);
    tn_free(w->also);
    tn_free(w->stack);
    tn_free(w->rule_of);
}

static void visit_instruction(rule_walk *w, size_t pc) {
    if (w->visited[pc]) return;
    w->visited[pc] = true;
    w->stack[w->n_stack++] = (uint32_t)pc;
}

static void rule_reaches_end(rule_walk *w, uint32_t rule) {
    if (w->reaches[rule]) return;
    w->reaches[rule] = true;
    for (uint32_t pc = w->waiting[rule]; pc != TN__NONE; pc = w->also[pc]) visit_instruction(w, pc + 1);
}

static void walk_all(rule_walk *w, bool passes_bytes) {
    const tn__program *p = w->p;
    memset(w->visited, 0, p->n_code * sizeof *w->visited);
    memset(w->reaches, 0, p->n_rules * sizeof *w->reaches);
    memset(w->waiting, 0xff, p->n_rules * sizeof *w->waiting);
    for (size_t r = 0; r < p->n_rules; r++) visit_instruction(w, p->entries[r]);
    while (w->n_stack) {
        uint32_t pc = w->stack[--w->n_stack];
        const tn__instruction *i = &p->code[pc];
        switch ((tn__op)i->op) {
        case TN__OP_BYTE:
        case TN__OP_CLASS:
            if (passes_bytes) visit_instruction(w, pc + 1);
            break;
        case TN__OP_SPLIT:
            visit_instruction(w, i->a);
            visit_instruction(w, i->b);
            break;
        case TN__OP_JUMP: visit_instruction(w, i->a); break;
        case TN__OP_CALL:
        case TN__OP_TAIL_CALL:
            if (w->reaches[i->a]) {
                visit_instruction(w, pc + 1);
            } else {
                w->also[pc] = w->waiting[i->a];
                w->waiting[i->a] = pc;
            }
            break;
        case TN__OP_RETURN: rule_reaches_end(w, w->rule_of[pc]); break;
        }
    }
}

static tn_status fail_rule(const tn__gbnf *g, size_t rule, const char *what) {
    if (rule >= g->n_rules) return tn_fail(TN_E_SYNTAX, "a repeated group of the grammar %s", what);
    const tn__gbnf_rule *r = &g->rules[rule];
    unsigned line, column;
    tn__gbnf_line_of(g->text, r->name, &line, &column);
    return tn_fail(TN_E_SYNTAX, "grammar line %u: rule \"%.*s\" %s", line, (int)TN__MIN(r->name_length, 64u),
                   g->text + r->name, what);
}

/* After a walk that stops at bytes, the visited calls are those that a rule can make before it reads a byte. A cycle
 * of them is left recursion. The search is depth-first with an explicit stack; a rule is open while it is on the
 * path. */
static tn_status find_left_recursion(rule_walk *w, const tn__gbnf *g) {
    const tn__program *p = w->p;
    enum { NEW, OPEN, DONE };
    uint8_t *state = tn_calloc(p->n_rules, 1);
    uint32_t *path = tn_malloc(p->n_rules * sizeof *path), *at = tn_malloc(p->n_rules * sizeof *at);
    tn_status status = state && path && at ? TN_OK : TN_E_NOMEM;
    for (size_t start = 0; start < p->n_rules && status == TN_OK; start++) {
        if (state[start] != NEW) continue;
        size_t depth = 1;
        path[0] = (uint32_t)start;
        at[0] = p->entries[start];
        state[start] = OPEN;
        while (depth && status == TN_OK) {
            uint32_t rule = path[depth - 1], pc = at[depth - 1];
            size_t end = rule + 1 < p->n_rules ? p->entries[rule + 1] : p->n_code;
            if (pc == end) {
                state[rule] = DONE;
                depth--;
                continue;
            }
            at[depth - 1]++;
            bool calls = p->code[pc].op == TN__OP_CALL || p->code[pc].op == TN__OP_TAIL_CALL;
            if (!calls || !w->visited[pc]) continue;
            uint32_t callee = p->code[pc].a;
            if (state[callee] == OPEN) {
                status = fail_rule(g, TN__MIN(callee, rule),
                                   "is left-recursive: it can reach itself without reading "
                                   "a character; write the recursion on the right");
            } else if (state[callee] == NEW) {
                state[callee] = OPEN;
                path[depth] = callee;
                at[depth++] = p->entries[callee];
            }
        }
    }
    tn_free(state);
    tn_free(path);
    tn_free(at);
    return status;
}

tn_status tn__program_check(const tn__program *p, const tn__gbnf *g) {
    rule_walk w;
    tn_status status = walk_new(p, &w);
    if (status == TN_OK) {
        walk_all(&w, false);
        status = find_left_recursion(&w, g);
    }
    if (status == TN_OK) {
        walk_all(&w, true);
        for (size_t r = 0; r < p->n_rules && status == TN_OK; r++)
            if (!w.reaches[r]) status = fail_rule(g, r, "can never finish: every alternative leads back to it");
    }
    walk_free(&w);
    return status;
}

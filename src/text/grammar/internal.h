/* Grammars, shared by the module's files: the parsed form, the compiled program, the matcher and the vocabulary's
 * trie.
 *
 * GBNF text is parsed to a tree. The tree is compiled to a program over bytes: characters become UTF-8 sequences,
 * because a token can end in the middle of a character. A matcher runs the program. It numbers the sets of positions
 * it reaches and stores every step, so that a step taken before is a table lookup. */
#ifndef TN_TEXT_GRAMMAR_INTERNAL_H
#define TN_TEXT_GRAMMAR_INTERNAL_H

#include "tenon/grammar.h"

#include <stdatomic.h>

enum {
    TN__GBNF_DEPTH_MAX = 200,         /* nested groups and repetitions */
    TN__GBNF_REPEAT_MAX = 100000,     /* the m and n of {m,n} */
    TN__GRAMMAR_PROGRAM_MAX = 400000, /* instructions */
    TN__GRAMMAR_RULES_MAX = 100000,
    TN__GRAMMAR_TEXT_MAX = 16 << 20,
};
#define TN__REPEAT_FOREVER UINT32_MAX
#define TN__NONE UINT32_MAX

/* Grows an array, if necessary, to at least `need` items of `size` bytes. */
tn_status tn__grammar_grow(void *array_pointer, size_t *capacity, size_t need, size_t size);

/* ---- The parsed form (parse.c) ---- */

typedef enum tn__gbnf_kind {
    TN__GBNF_LITERAL,
    TN__GBNF_CLASS,
    TN__GBNF_RULE,
    TN__GBNF_SEQUENCE,
    TN__GBNF_CHOICE,
    TN__GBNF_REPEAT
} tn__gbnf_kind;

typedef struct tn__code_range {
    uint32_t low, high;
} tn__code_range;

typedef struct tn__gbnf_node {
    tn__gbnf_kind kind;
    uint32_t next;  /* sibling, or TN__NONE */
    uint32_t first; /* sequence, choice, repeat: first child. Literal: first byte. Class: first range. Rule: number */
    uint32_t count; /* literal: bytes; class: ranges; repeat: minimum */
    uint32_t max;   /* repeat: maximum or TN__REPEAT_FOREVER */
} tn__gbnf_node;

typedef struct tn__gbnf_rule {
    uint32_t name, name_length; /* offset and length in the text */
    uint32_t body;              /* node, or TN__NONE while undefined */
} tn__gbnf_rule;

typedef struct tn__gbnf {
    const char *text;
    tn__gbnf_node *nodes;
    tn__gbnf_rule *rules;
    uint8_t *bytes;
    tn__code_range *ranges; /* of each class: sorted, disjoint, without surrogates */
    uint32_t *names;        /* hash table of rule numbers + 1 */
    size_t n_nodes, node_capacity, n_rules, rule_capacity, n_bytes, byte_capacity, n_ranges, range_capacity;
    size_t name_slots;
} tn__gbnf;

/* On failure there is nothing to free. */
tn_status tn__gbnf_parse(const char *text, tn__gbnf *out);
void tn__gbnf_free(tn__gbnf *gbnf);
/* TN__NONE: no such rule. */
uint32_t tn__gbnf_find_rule(const tn__gbnf *gbnf, const char *name, size_t length);
/* Line and column of a byte of the text, for messages. */
void tn__gbnf_line_of(const char *text, size_t at, unsigned *line, unsigned *column);

/* ---- The program (compile.c) ---- */

typedef enum tn__op {
    TN__OP_BYTE,      /* a byte in low … high, then the next instruction */
    TN__OP_CLASS,     /* the UTF-8 bytes of one character of class a */
    TN__OP_SPLIT,     /* continues at a and at b */
    TN__OP_JUMP,      /* continues at a */
    TN__OP_CALL,      /* rule a, then the next instruction */
    TN__OP_TAIL_CALL, /* rule a instead of the rest of this rule */
    TN__OP_RETURN,
} tn__op;

typedef struct tn__instruction {
    uint8_t op, low, high;
    uint32_t a, b;
} tn__instruction;

/* A class is a tree of byte ranges. `to` is a node of the tree, 0 if the character ends here. */
typedef struct tn__class_edge {
    uint8_t low, high;
    uint32_t to;
} tn__class_edge;
typedef struct tn__class_node {
    uint32_t first_edge, n_edges;
} tn__class_node;

typedef struct tn__program {
    tn__instruction *code;
    uint32_t *entries;           /* by rule */
    tn__class_node *class_nodes; /* node 0 is never used */
    tn__class_edge *class_edges;
    uint32_t *class_roots; /* by class */
    size_t n_code, code_capacity, n_rules, entry_capacity, n_class_nodes, class_node_capacity, n_class_edges,
        class_edge_capacity, n_classes, class_capacity;
    uint32_t root;           /* rule */
    uint8_t byte_group[256]; /* bytes that no instruction distinguishes share a group */
    uint8_t group_byte[256]; /* one byte of each group */
    size_t n_groups;
} tn__program;

tn_status tn__program_compile(const tn__gbnf *gbnf, uint32_t root, tn__program *out);
void tn__program_free(tn__program *program);
/* Rejects left recursion and rules that can never finish (check.c). `gbnf` has their names for messages. */
tn_status tn__program_check(const tn__program *program, const tn__gbnf *gbnf);
/* Adds a class to the program (utf8.c). */
tn_status tn__program_add_class(tn__program *program, const tn__code_range *ranges, size_t n, uint32_t *out);

struct tn_grammar {
    tn__program program;
    atomic_uint references;
};
tn_grammar *tn__grammar_retain(const tn_grammar *grammar);

/* ---- The matcher (match.c) ---- */

/* Number of a set of positions. Numbers below TN__SET_FIRST have special meanings. */
typedef uint32_t tn__set;
enum { TN__SET_DEAD = 0, TN__SET_UNKNOWN = 1, TN__SET_FIRST = 2 };

/* A position: an instruction, the progress within its character, and the return stack. */
typedef struct tn__position {
    uint32_t pc, class_node, stack;
} tn__position;

/* A return address. A stack is identified by the number of its top frame; 0 is the empty stack. Equal stacks have
 * equal numbers, and a frame's parent has a smaller number. */
typedef struct tn__frame {
    uint32_t pc, parent;
} tn__frame;

typedef struct tn__set_info {
    uint32_t first, count; /* positions */
    uint32_t hash;
    bool accepting; /* the text can end here */
} tn__set_info;

typedef struct tn__matcher {
    const tn__program *program;
    tn__frame *frames;
    uint32_t *frame_slots;
    tn__position *positions;
    tn__set_info *sets;
    uint32_t *steps; /* by set and byte group */
    uint32_t *set_slots;
    uint64_t *seen; /* (pc, stack) visited by the current closure */
    uint32_t *seen_stamp;
    uint64_t *work;
    size_t n_frames, frame_capacity, n_positions, position_capacity, n_sets, set_capacity;
    size_t frame_slot_count, set_slot_count, seen_slot_count, work_capacity;
    uint32_t stamp;
    void *memory;
    size_t memory_size;
} tn__matcher;

/* TN_E_LIMIT: the matcher's tables are full. tn__matcher_forget() makes room. */
tn_status tn__matcher_new(const tn__program *program, size_t memory, tn__matcher *out);
void tn__matcher_free(tn__matcher *matcher);
/* Initializes `to` as a copy, in which sets keep their numbers. */
tn_status tn__matcher_copy(const tn__matcher *from, tn__matcher *to);
tn_status tn__matcher_start(tn__matcher *matcher, tn__set *out);
/* Computes the step over one byte and stores it for tn__matcher_known(). */
tn_status tn__matcher_step(tn__matcher *matcher, tn__set from, uint8_t byte, tn__set *out);
static inline tn__set tn__matcher_known(const tn__matcher *m, tn__set from, uint8_t byte) {
    return m->steps[(from - TN__SET_FIRST) * m->program->n_groups + m->program->byte_group[byte]];
}
static inline bool tn__matcher_accepting(const tn__matcher *m, tn__set set) {
    return set >= TN__SET_FIRST && m->sets[set - TN__SET_FIRST].accepting;
}
/* Empties the tables except for the given sets, at most 4, whose numbers it updates. */
void tn__matcher_forget(tn__matcher *matcher, tn__set *keep[], size_t n_keep);

/* ---- The vocabulary (pieces.c) ---- */

/* Node of a trie stored in depth-first order. The tokens that end at node i are tokens[node[i-1].token_end …
 * node[i].token_end); `skip` is the first node after its subtree. */
typedef struct tn__piece_node {
    uint32_t skip, token_end;
    uint16_t depth; /* of the parent; 0 for first bytes */
    uint8_t byte;
} tn__piece_node;

struct tn_pieces {
    size_t count;
    uint32_t *offsets; /* count + 1 */
    char *bytes;
    tn__piece_node *nodes; /* node 0 is the root and matches nothing */
    size_t n_nodes, max_depth;
    tn_token *tokens;
    tn_token *ends;
    size_t n_ends;
    uint64_t *is_end; /* bitset */
    atomic_uint references;
};

#endif

/* The template engine, a Jinja interpreter, shared by its files: memory, errors, values, syntax tree, and operations.
 *
 * Types and inline functions have the prefix jj_, functions shared between files tn__jj_.
 *
 * One `jj` is one parse or one render. All its memory comes from its arena and is freed at once, so no function has
 * to free anything. An error is therefore a jump to the entry point: tn__jj_fail does not return, and callers do not
 * check for errors. */
#ifndef TN_TEXT_TEMPLATE_ENGINE_H
#define TN_TEXT_TEMPLATE_ENGINE_H

#include <setjmp.h>
#include <string.h>

#include "text/template/jinja.h"

/* ---- Memory, limits and errors (memory.c) ---- */

typedef struct jj_block jj_block;
typedef struct jj jj;
typedef struct jj_node jj_node;
typedef struct jj_value jj_value;
typedef struct jj_dict jj_dict;
typedef struct jj_scope jj_scope;

/* A growing text. It is not a tn__text, because its memory comes from the arena, counts against max_memory, and
 * failures go through tn__jj_fail. */
typedef struct jj_buffer {
    char *data;
    size_t length, capacity;
} jj_buffer;

struct jj {
    jj_block *blocks,
        *large;    /* small objects share blocks; a large one has its own block, which can be freed early */
    size_t memory; /* bytes allocated */
    tn__jinja_limits limits;
    uint64_t steps;
    uint32_t depth;
    uint32_t line; /* of the current node, for messages */
    tn_status status;
    jmp_buf landing;

    /* Rendering only. */
    bool allow_mutation;
    struct tm now;
    jj_dict *variables; /* the caller's */
    jj_scope *scope;
    jj_buffer *out;      /* current output: the text, or a captured block */
    json_t *json_loaded; /* the document that from_json is copying; freed with the render */
    uint64_t random;     /* state of the `random` filter */
};

void tn__jj_open(jj *j, const tn__jinja_limits *limits);
void tn__jj_close(jj *j);
void *tn__jj_alloc(jj *j, size_t size); /* zeroed, aligned for any object */
void *tn__jj_array(jj *j, size_t count, size_t size);
/* Moves an array to larger memory. The old memory must not be used afterwards. */
void *tn__jj_grow(jj *j, void *old, size_t old_size, size_t new_size);

_Noreturn void tn__jj_fail(jj *j, tn_status status, const char *format, ...) TN_PRINTF(3, 4);
void tn__jj_charge(jj *j, uint64_t steps); /* counts work against max_steps */
static inline void jj_charge_bytes(jj *j, size_t bytes) { tn__jj_charge(j, 1 + bytes / 64); }
void tn__jj_enter(jj *j); /* one level deeper; after a failure the depth does not matter */
static inline void jj_leave(jj *j) { j->depth--; }

void tn__jj_put(jj *j, jj_buffer *buffer, const char *data, size_t length);
void tn__jj_put_char(jj *j, jj_buffer *buffer, char c);
void tn__jj_put_code(jj *j, jj_buffer *buffer, uint32_t code); /* as UTF-8 */
static inline void jj_puts(jj *j, jj_buffer *buffer, const char *text) { tn__jj_put(j, buffer, text, strlen(text)); }

/* ---- Values ---- */

typedef enum jj_type {
    JJ_UNDEFINED,
    JJ_NONE,
    JJ_BOOL,
    JJ_INT,
    JJ_FLOAT,
    JJ_STRING,
    JJ_LIST,
    JJ_TUPLE,
    JJ_DICT,
    JJ_RANGE,
    JJ_GENERATOR, /* result of map, select …: can be iterated once, has no length */
    JJ_VIEW,      /* dict.keys(), .values(), .items() */
    JJ_FUNCTION,
    JJ_MACRO,
    JJ_NAMESPACE,
    JJ_LOOP,
    JJ_CYCLER,
    JJ_JOINER,
} jj_type;

/* UTF-8 text, which may share its bytes with another string. The filters safe and escape set `safe`: text that is
 * added to a safe string is escaped. */
typedef struct jj_string {
    const char *data;
    size_t length; /* bytes */
    size_t chars;  /* code points, or SIZE_MAX while not counted */
    bool safe;
} jj_string;

typedef struct jj_list jj_list;
typedef struct jj_range {
    int64_t start, step, count, stop;
} jj_range;
typedef struct jj_view jj_view;
typedef struct jj_function jj_function;
typedef struct jj_macro jj_macro;
typedef struct jj_loop jj_loop;
typedef struct jj_cycler jj_cycler;
typedef struct jj_joiner jj_joiner;

struct jj_value {
    jj_type type;
    union {
        bool boolean;
        int64_t integer;
        double real;
        jj_string *string; /* of an undefined value: the reason; NULL: an argument that was not given */
        jj_list *list;     /* list, tuple, generator */
        jj_dict *dict;     /* dict, namespace */
        jj_range *range;
        jj_view *view;
        jj_function *function;
        jj_macro *macro;
        jj_loop *loop;
        jj_cycler *cycler;
        jj_joiner *joiner;
    } as;
};

struct jj_list {
    jj_value *items;
    size_t count, capacity;
    size_t position; /* of a generator: the next item */
    bool group;      /* a tuple from groupby, with attributes grouper and list */
};

typedef struct jj_entry {
    jj_value key, value;
    uint64_t hash;
} jj_entry;

/* Keeps insertion order. `slots` (a power of two, entry index + 1, 0 free) exists from 9 entries on. */
struct jj_dict {
    jj_entry *entries;
    size_t count, capacity;
    uint32_t *slots;
    size_t slot_count;
};

struct jj_view {
    jj_dict *dict;
    char kind; /* 'k' keys, 'v' values, 'i' items */
};

typedef struct jj_args {
    size_t count, keyword_count;
    jj_value *values;
    jj_string **keywords;
    jj_value *keyword_values;
} jj_args;

/* The signature of filters, tests, methods and global functions: `self` is the value they are applied to. */
typedef jj_value (*jj_native)(jj *j, jj_value self, const jj_args *args);

struct jj_function {
    const char *name;
    jj_native call;
    jj_value self;
};
typedef struct jj_named {
    const char *name;
    jj_native call;
    bool mutates;
} jj_named;

struct jj_macro {
    const jj_node *node; /* the macro or call block: name, parameters, body */
    jj_scope *scope;     /* where it was defined */
};

struct jj_cycler {
    jj_list *items;
    size_t position;
};
struct jj_joiner {
    jj_value separator;
    bool used;
};

/* Iterates over a value without copying it: a list that grows meanwhile is iterated to its new end. */
typedef struct jj_cursor {
    jj_value source;
    size_t index;
} jj_cursor;

struct jj_loop {
    const jj_node *node;
    jj_scope *scope; /* outside the loop */
    jj_cursor cursor;
    jj_value after; /* the next item, if loop.last or loop.nextitem has fetched it */
    bool has_after, has_previous, has_current;
    jj_value previous, current;
    int64_t index0, depth0;
    jj_list *rest;     /* all remaining items, if loop.length has fetched them */
    int64_t length;    /* valid with rest */
    jj_value *changed; /* the arguments of the last loop.changed() */
    size_t changed_count;
};

/* value.c */
static inline jj_value jj_none(void) { return (jj_value){.type = JJ_NONE}; }
static inline jj_value jj_bool(bool b) { return (jj_value){.type = JJ_BOOL, .as.boolean = b}; }
static inline jj_value jj_int(int64_t i) { return (jj_value){.type = JJ_INT, .as.integer = i}; }
static inline jj_value jj_real(double d) { return (jj_value){.type = JJ_FLOAT, .as.real = d}; }
static inline jj_value jj_absent(void) { return (jj_value){.type = JJ_UNDEFINED}; }
static inline bool jj_is_absent(jj_value v) { return v.type == JJ_UNDEFINED && !v.as.string; }
static inline jj_value jj_str(jj_string *s) { return (jj_value){.type = JJ_STRING, .as.string = s}; }
static inline jj_value jj_listed(jj_type type, jj_list *l) { return (jj_value){.type = type, .as.list = l}; }
static inline jj_value jj_dicted(jj_dict *d) { return (jj_value){.type = JJ_DICT, .as.dict = d}; }

jj_string *tn__jj_string(jj *j, const char *data, size_t length); /* shares the bytes */
jj_string *tn__jj_copy_string(jj *j, const char *data, size_t length);
jj_value tn__jj_text(jj *j, const char *data, size_t length); /* tn__jj_string as a value */
jj_value tn__jj_literal(jj *j, const char *text);
jj_value tn__jj_from_buffer(jj *j, const jj_buffer *buffer);
jj_value tn__jj_undefined(jj *j, const char *format, ...) TN_PRINTF(2, 3);
jj_list *tn__jj_new_list(jj *j, size_t capacity);
void tn__jj_append(jj *j, jj_list *list, jj_value value);
jj_value tn__jj_pair(jj *j, jj_value first, jj_value second); /* a tuple */

const char *tn__jj_type_name(jj_value v); /* as Python names it */
bool tn__jj_truth(jj *j, jj_value v);
bool tn__jj_equal(jj *j, jj_value a, jj_value b);
int tn__jj_compare(jj *j, jj_value a, jj_value b, const char *op); /* fails where there is no order */
bool tn__jj_same_text(const jj_string *s, const char *text);
bool tn__jj_same_string(const jj_string *a, const jj_string *b);
bool tn__jj_as_int(jj_value v, int64_t *out); /* int or bool */
bool tn__jj_is_number(jj_value v);            /* int, bool or float */
double tn__jj_number(jj_value v);
int64_t tn__jj_need_int(jj *j, jj_value v, const char *what);
jj_string *tn__jj_need_string(jj *j, jj_value v, const char *what);
int64_t tn__jj_length(jj *j, jj_value v); /* fails like Python's len() */
bool tn__jj_has_length(jj_value v);

void tn__jj_cursor(jj *j, jj_value v, jj_cursor *cursor); /* fails when not iterable */
bool tn__jj_next(jj *j, jj_cursor *cursor, jj_value *out);
bool tn__jj_iterable(jj_value v);
jj_list *tn__jj_collect(jj *j, jj_value v); /* a fresh list of all items */

/* dict.c */
jj_dict *tn__jj_new_dict(jj *j);
jj_entry *tn__jj_dict_find(jj *j, const jj_dict *dict, jj_value key); /* NULL: not there; fails on unhashable */
jj_entry *tn__jj_dict_text(jj *j, const jj_dict *dict, const jj_string *key);
void tn__jj_dict_set(jj *j, jj_dict *dict, jj_value key, jj_value value);
void tn__jj_dict_remove(jj *j, jj_dict *dict, jj_entry *entry);
uint64_t tn__jj_hash(jj *j, jj_value v);

/* strings.c: UTF-8, Unicode classes, Python's str() and repr(). */
size_t tn__jj_decode(const char *p, const char *end, uint32_t *code); /* bytes read, 1 for an invalid one */
size_t tn__jj_chars(jj *j, jj_string *s);
const char *tn__jj_seek(jj *j, jj_string *s, size_t char_index); /* the first byte of that character */
jj_value tn__jj_slice_chars(jj *j, jj_string *s, size_t from, size_t to);
bool tn__jj_space(uint32_t code);
/* NULL chars: white space. */
jj_string *tn__jj_trim(jj *j, jj_string *s, const jj_string *chars, bool left, bool right);
/* Modes: u upper, l lower, c capitalize, t title, s swap, f fold. */
jj_value tn__jj_change_case(jj *j, jj_string *s, char mode);
void tn__jj_put_value(jj *j, jj_buffer *buffer, jj_value v); /* str() */
void tn__jj_put_repr(jj *j, jj_buffer *buffer, jj_value v);
jj_string *tn__jj_to_string(jj *j, jj_value v); /* str(); a string is returned as it is */
size_t tn__jj_print_real(double d, char out[64]);
bool tn__jj_read_real(const char *text, size_t length, double *out); /* the whole text, C spelling */
void tn__jj_put_printf_real(jj *j, jj_buffer *b, char type, int precision, bool alternate, double d);
jj_string *tn__jj_escape(jj *j, jj_value v); /* HTML; safe text passes */
jj_value tn__jj_join(jj *j, const jj_string *separator, jj_value items);

/* json.c */
jj_value tn__jj_from_json(jj *j, const json_t *json);
jj_value tn__jj_parse_json(jj *j, const jj_string *text);
typedef struct jj_json_style {
    bool ascii, sort_keys;
    jj_string *indent; /* NULL: on one line */
    jj_string *item_separator, *key_separator;
} jj_json_style;
void tn__jj_put_json(jj *j, jj_buffer *buffer, jj_value v, const jj_json_style *style, size_t level);

/* ---- Syntax tree: made by parser.c, run by statements.c and expressions.c ---- */

typedef enum jj_kind {
    /* Expressions. */
    JJ_N_CONST,     /* value */
    JJ_N_NAME,      /* name */
    JJ_N_TUPLE,     /* list */
    JJ_N_LIST,      /* list */
    JJ_N_DICT,      /* list of JJ_N_PAIR */
    JJ_N_PAIR,      /* a: key, b: value */
    JJ_N_UNARY,     /* op '-', '+', '!'; a */
    JJ_N_BINARY,    /* op '+', '-', '*', '/', 'f' (//), '%', '^' (**); a, b */
    JJ_N_AND,       /* a, b */
    JJ_N_OR,        /* a, b */
    JJ_N_COMPARE,   /* a; list of JJ_N_OPERAND */
    JJ_N_OPERAND,   /* op '=', '!', '<', '>', 'l' (<=), 'g' (>=), 'i' (in), 'n' (not in); a */
    JJ_N_CONCAT,    /* list */
    JJ_N_CONDITION, /* a if b else c (c may be NULL) */
    JJ_N_ATTRIBUTE, /* a.name */
    JJ_N_ITEM,      /* a[b] */
    JJ_N_SLICE,     /* a:b:c, each may be NULL */
    JJ_N_CALL,      /* a(list) */
    JJ_N_KEYWORD,   /* in call arguments: name = a */
    JJ_N_SPREAD,    /* in call arguments: op '*' or '^' (**); a */
    JJ_N_FILTER,    /* a|name(list); a NULL: the captured block */
    JJ_N_TEST,      /* a is name(list) */
    JJ_N_NS_REF,    /* assignment target name.text */
    /* Statements. */
    JJ_N_TEXT,         /* value */
    JJ_N_OUTPUT,       /* a */
    JJ_N_FOR,          /* target a, iterable b, condition c; body, other; name: loop; flag: recursive */
    JJ_N_IF,           /* list of JJ_N_BRANCH; other */
    JJ_N_BRANCH,       /* condition a; body */
    JJ_N_SET,          /* target a, value b */
    JJ_N_SET_BLOCK,    /* target a, filter b or NULL; body */
    JJ_N_MACRO,        /* name; list of JJ_N_PARAMETER; body; other: the names caller, varargs, kwargs; flags below */
    JJ_N_PARAMETER,    /* name; default a or NULL */
    JJ_N_CALL_BLOCK,   /* call a; the rest as a macro */
    JJ_N_FILTER_BLOCK, /* filter b; body */
    JJ_N_WITH,         /* list of JJ_N_SET; body */
    JJ_N_SCOPE,        /* body in a scope of its own: generation, block, autoescape false */
    JJ_N_DO,           /* a */
    JJ_N_BREAK,
    JJ_N_CONTINUE,
} jj_kind;

enum { JJ_USES_CALLER = 1, JJ_USES_VARARGS = 2, JJ_USES_KWARGS = 4, JJ_RECURSIVE = 8 };

struct jj_node {
    uint8_t kind, op, flags;
    uint32_t line;
    jj_node *next; /* in the list that contains the node */
    jj_node *a, *b, *c;
    jj_node *list, *body, *other;
    jj_string *name; /* one object per distinct name of a template: names are compared by address */
    jj_string *text;
    jj_value value;
};

jj_node *tn__jj_parse(jj *j, const char *text, size_t length);

/* lexer.c */
typedef enum jj_token_kind {
    JJ_T_END,
    JJ_T_DATA,
    JJ_T_BLOCK_BEGIN,
    JJ_T_BLOCK_END,
    JJ_T_VARIABLE_BEGIN,
    JJ_T_VARIABLE_END,
    JJ_T_NAME,
    JJ_T_STRING,
    JJ_T_INT,
    JJ_T_FLOAT,
    JJ_T_OPERATOR, /* op */
} jj_token_kind;

/* Operators of one character are that character; the others have these letters. */
enum { JJ_OP_EQ = 'E', JJ_OP_NE = 'N', JJ_OP_LE = 'L', JJ_OP_GE = 'G', JJ_OP_POW = 'P', JJ_OP_FLOORDIV = 'F' };

typedef struct jj_token {
    jj_token_kind kind;
    int op;
    uint32_t line;
    jj_value value; /* of strings, numbers and data; the spelling of names */
} jj_token;
typedef struct jj_tokens {
    jj_token *items;
    size_t count, capacity;
} jj_tokens;
void tn__jj_tokenize(jj *j, const char *text, size_t length, jj_tokens *tokens);

/* ---- Evaluation ---- */

typedef struct jj_variable {
    const jj_string *name;
    jj_value value;
} jj_variable;
struct jj_scope {
    jj_scope *parent;
    jj_variable *variables;
    size_t count, capacity;
};
jj_scope *tn__jj_new_scope(jj *j, jj_scope *parent);
void tn__jj_define(jj *j, jj_scope *scope, const jj_string *name, jj_value value);

/* expressions.c */
jj_value tn__jj_eval(jj *j, const jj_node *node);
jj_value tn__jj_call(jj *j, jj_value callee, const jj_args *args);
void tn__jj_eval_args(jj *j, const jj_node *list, jj_args *args);
jj_value tn__jj_apply_filter(jj *j, const jj_node *filter, jj_value input);
/* statements.c */
void tn__jj_run(jj *j, const jj_node *statements); /* the whole template */
jj_value tn__jj_call_macro(jj *j, jj_macro *macro, const jj_args *args);
void tn__jj_assign(jj *j, const jj_node *target, jj_value value);
/* loop.c */
bool tn__jj_loop_next(jj *j, jj_loop *loop); /* sets loop->current */
jj_value tn__jj_loop_attribute(jj *j, jj_value loop, const jj_string *name);
jj_value tn__jj_call_loop(jj *j, jj_loop *loop, const jj_args *args); /* recursion; in statements.c */

/* ops.c */
jj_value tn__jj_binary(jj *j, int op, jj_value a, jj_value b);
jj_value tn__jj_negate(jj *j, jj_value v);
bool tn__jj_contains(jj *j, jj_value container, jj_value item);
jj_value tn__jj_attribute(jj *j, jj_value object, const jj_string *name); /* object.name */
jj_value tn__jj_item(jj *j, jj_value object, jj_value key);               /* object[key] */
jj_value tn__jj_slice(jj *j, jj_value object, jj_value start, jj_value stop, jj_value step);
jj_value tn__jj_method(jj *j, jj_value object, const jj_string *name); /* absent if there is none */

/* format.c: "…" % values and "…".format(…). */
jj_value tn__jj_percent(jj *j, jj_string *format, jj_value values);
jj_value tn__jj_format(jj *j, jj_string *format, const jj_args *args);
jj_value tn__jj_format_spec(jj *j, jj_value v, const jj_string *spec);

/* Binds positional and keyword arguments to the names in `names` (separated by spaces). Missing ones are absent. The
 * first `required` must be given, and there must be no others; `who` is the function's name for messages. */
void tn__jj_bind(jj *j, const jj_args *args, const char *who, const char *names, size_t required, jj_value *out);

/* The tables of functions. Lookups return NULL if there is no such name. */
const jj_named *tn__jj_find_filter(const jj_string *name);
const jj_named *tn__jj_find_test(const jj_string *name);
const jj_named *tn__jj_find_global(const jj_string *name);
const jj_named *tn__jj_search(const jj_named *table, const jj_string *name);
extern const jj_named tn__jj_string_methods[], tn__jj_list_methods[], tn__jj_tuple_methods[], tn__jj_dict_methods[];
extern const jj_named tn__jj_text_filters[], tn__jj_list_filters[], tn__jj_value_filters[];

/* Whether a value passes the test `name` with these arguments, for select, reject and similar filters. */
bool tn__jj_test(jj *j, const jj_string *name, jj_value v, const jj_args *args);
/* The value at a path such as "a.b.0", as in the attribute arguments of filters. */
jj_value tn__jj_follow(jj *j, jj_value v, jj_value path);
void tn__jj_sort(jj *j, jj_value *items, jj_value *keys, size_t count, bool reverse); /* stable, items by keys */

#endif

/* The template parser, shared by its files. Functions of the parser have the prefix tn__jjp_. */
#ifndef TN_TEXT_TEMPLATE_PARSER_H
#define TN_TEXT_TEMPLATE_PARSER_H

#include "text/template/engine.h"

typedef struct jj_parser {
    jj *j;
    jj_tokens tokens;
    size_t at;
    jj_dict *names; /* one string per distinct name */
    uint8_t *macro; /* flags of the enclosing macro: whether it uses caller, varargs, kwargs; NULL outside */
    unsigned loops; /* enclosing loops, for break and continue */
} jj_parser;

/* ---- Tokens and nodes (parser.c) ---- */

jj_token *tn__jjp_token(jj_parser *p); /* the current one */
bool tn__jjp_at_op(jj_parser *p, int op);
bool tn__jjp_skip_op(jj_parser *p, int op);
bool tn__jjp_token_is(const jj_token *token, const char *name);
bool tn__jjp_at_name(jj_parser *p, const char *name);
bool tn__jjp_skip_name(jj_parser *p, const char *name);
/* Fail with TN_E_SYNTAX unless the current token is the expected one. */
_Noreturn void tn__jjp_unexpected(jj_parser *p, const char *expected);
void tn__jjp_need_op(jj_parser *p, int op);
jj_string *tn__jjp_need_name(jj_parser *p, const char *expected);
void tn__jjp_need_end(jj_parser *p, jj_token_kind kind);
/* The string object that stands for all equal names of the template. */
jj_string *tn__jjp_intern(jj_parser *p, jj_string *name);
jj_node *tn__jjp_node(jj_parser *p, jj_kind kind);
jj_node *tn__jjp_node_of(jj_parser *p, jj_kind kind, int op, jj_node *a, jj_node *b);

/* ---- Expressions (parse_expressions.c) ---- */

jj_node *tn__jjp_expression(jj_parser *p);
jj_node *tn__jjp_or(jj_parser *p); /* an expression without inline if */
jj_node *tn__jjp_primary(jj_parser *p);
/* One expression, or a tuple of several separated by commas. `item` parses one of them. The list also ends before the
 * name `extra_end`, unless that is NULL. With `parentheses` it may be empty. */
jj_node *tn__jjp_tuple(jj_parser *p, jj_node *(*item)(jj_parser *), const char *extra_end, bool parentheses);
/* A filter's name and arguments, applied to `input`. */
jj_node *tn__jjp_filter(jj_parser *p, jj_node *input);

/* ---- Statements (parse_statements.c) ---- */

/* Text and statements up to a tag with one of the names `ends` (a list that NULL ends), which is consumed up to its
 * name; *end is that name. NULL ends: up to the end of the template. */
jj_node *tn__jjp_body(jj_parser *p, const char *const ends[], const char **end);

#endif

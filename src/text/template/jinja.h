/* Interface of the template engine, a Jinja interpreter: parse a template once, render it many times.
 *
 * The language is that of jinja2 3.1 with trim_blocks, lstrip_blocks, loop controls and `do`, in its immutable
 * sandbox: templates cannot use attributes that begin with an underscore, and can change lists and dicts only if that
 * is allowed. A template is untrusted code from a model file, so every parse and render has the limits below;
 * exceeding one is TN_E_LIMIT. Error messages have the template's line. include, import and extends are
 * TN_E_UNSUPPORTED. */
#ifndef TN_TEXT_TEMPLATE_JINJA_H
#define TN_TEXT_TEMPLATE_JINJA_H

#include <jansson.h>
#include <time.h>

#include "tenon/base.h"

typedef struct tn__jinja tn__jinja; /* a parsed template; immutable: threads may render it at the same time */

typedef struct tn__jinja_limits {
    uint64_t max_steps; /* nodes evaluated, items visited, and one per 64 bytes copied */
    uint32_t max_depth; /* nesting of expressions, statements, calls and values; each level uses C stack */
    size_t max_output;  /* bytes of the rendered text */
    size_t max_memory;  /* bytes held at the same time */
} tn__jinja_limits;
tn__jinja_limits tn__jinja_limits_default(void);

typedef struct tn__jinja_params {
    tn__jinja_limits limits; /* 0 selects the default */
    bool allow_mutation;     /* allow list.append and similar methods; some released templates need them */
    const struct tm *now;    /* time for strftime_now; NULL: TENON_NOW (2026-11-15T12:00:00), else the clock */
} tn__jinja_params;

/* `limits` may be NULL. The text is copied. TN_E_SYNTAX: the template does not parse. */
tn_status tn__jinja_parse(const char *text, size_t length, const tn__jinja_limits *limits, tn__jinja **out);
void tn__jinja_free(tn__jinja *template);

/* `variables` is a JSON object or NULL; `params` and `length` may be NULL. The result is NUL-terminated; the caller
 * frees it with tn_free. raise_exception() and type errors are TN_E_INVALID. */
tn_status tn__jinja_render(const tn__jinja *template, const json_t *variables, const tn__jinja_params *params,
                           char **text, size_t *length);

#endif

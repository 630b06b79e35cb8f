/* The Jinja engine as the rest of the library sees it: parse a template once, render it many times.
 *
 * The language is that of jinja2 3.1 with trim_blocks, lstrip_blocks, loop controls and `do`, in its immutable
 * sandbox: no attribute beginning with an underscore, no change to lists and dicts unless allowed. A template is
 * untrusted code that came with a model, so every parse and render runs under the limits below; exceeding one is
 * TN_E_LIMIT. Errors name the template's line. include, import and extends are TN_E_UNSUPPORTED. */
#ifndef TN_LLM_JINJA_JINJA_H
#define TN_LLM_JINJA_JINJA_H

#include <jansson.h>
#include <time.h>

#include "tenon/base.h"

typedef struct tn__jinja tn__jinja; /* a parsed template; immutable, so any number of threads may render it */

typedef struct tn__jinja_limits {
    uint64_t max_steps; /* nodes evaluated, items visited, and one per 64 bytes moved */
    uint32_t max_depth; /* nesting of expressions, statements, calls and values; each level costs C stack */
    size_t max_output;  /* bytes of the rendered text */
    size_t max_memory;  /* bytes of values alive at any moment */
} tn__jinja_limits;
tn__jinja_limits tn__jinja_limits_default(void);

typedef struct tn__jinja_params {
    tn__jinja_limits limits; /* zero fields take the default */
    bool allow_mutation;     /* let a template call list.append and its like; some released templates need it */
    const struct tm *now;    /* what strftime_now sees; NULL: TENON_NOW=2026-11-15T12:00:00, else the clock */
} tn__jinja_params;

/* `limits` may be NULL. The text is copied. TN_E_SYNTAX for a template that does not parse. */
tn_status tn__jinja_parse(const char *text, size_t length, const tn__jinja_limits *limits, tn__jinja **out);
void tn__jinja_free(tn__jinja *template);

/* `variables` is a JSON object, or NULL for none; `params` may be NULL. The result is NUL-terminated (`length` may
 * be NULL) and the caller's to tn_free. raise_exception() and type errors are TN_E_INVALID. */
tn_status tn__jinja_render(const tn__jinja *template, const json_t *variables, const tn__jinja_params *params,
                           char **text, size_t *length);

#endif

/* The entry points of the template engine: parse and render. */
#include <stdlib.h>

#include "text/template/engine.h"

struct tn__jinja {
    jj memory; /* owns the tree */
    jj_node *statements;
};

tn_status tn__jinja_parse(const char *text, size_t length, const tn__jinja_limits *limits, tn__jinja **out) {
    *out = NULL;
    tn__jinja *template = tn_malloc(sizeof *template);
    if (!template) return TN_E_NOMEM;
    jj *j = &template->memory;
    tn__jj_open(j, limits);
    if (setjmp(j->landing) == 0) {
        template->statements = tn__jj_parse(j, text, length);
        *out = template;
        return TN_OK;
    }
    tn_status status = j->status;
    tn__jinja_free(template);
    return status;
}

void tn__jinja_free(tn__jinja *template) {
    if (!template) return;
    tn__jj_close(&template->memory);
    tn_free(template);
}

static tn_status current_time(const struct tm *given, struct tm *now) {
    const char *fixed = getenv("TENON_NOW");
    if (given) {
        *now = *given;
    } else if (fixed && *fixed) {
        memset(now, 0, sizeof *now);
        const char *end = strptime(fixed, "%Y-%m-%dT%H:%M:%S", now);
        if (!end || *end)
            return tn_fail(TN_E_INVALID, "TENON_NOW is '%s'; it must have the form 2026-11-15T12:00:00", fixed);
    } else {
        time_t seconds = time(NULL);
        if (!localtime_r(&seconds, now)) return tn_fail(TN_E_INTERNAL, "cannot read the clock");
    }
    return TN_OK;
}

static void render_into(jj *j, const tn__jinja *template, const json_t *variables, jj_buffer *buffer) {
    j->out = buffer;
    if (variables) {
        jj_value v = tn__jj_from_json(j, variables);
        if (v.type != JJ_DICT) tn__jj_fail(j, TN_E_INVALID, "the variables are not a JSON object");
        j->variables = v.as.dict;
    } else
        j->variables = tn__jj_new_dict(j);
    tn__jj_run(j, template->statements);
}

tn_status tn__jinja_render(const tn__jinja *template, const json_t *variables, const tn__jinja_params *params,
                           char **text, size_t *length) {
    *text = NULL;
    struct tm now;
    TN_TRY(current_time(params ? params->now : NULL, &now));
    jj *j = tn_malloc(sizeof *j);
    jj_buffer *buffer = tn_calloc(1, sizeof *buffer); /* not a local variable, because it must survive longjmp */
    tn_status status = TN_E_NOMEM;
    if (!j || !buffer) goto out;
    tn__jj_open(j, params ? &params->limits : NULL);
    j->allow_mutation = params && params->allow_mutation;
    j->now = now;
    if (setjmp(j->landing) == 0) render_into(j, template, variables, buffer);
    status = j->status;
    if (status == TN_OK) {
        *text = tn_malloc(buffer->length + 1);
        if (*text) {
            if (buffer->length) memcpy(*text, buffer->data, buffer->length);
            (*text)[buffer->length] = '\0';
            if (length) *length = buffer->length;
        } else
            status = TN_E_NOMEM;
    }
    tn__jj_close(j);
out:
    tn_free(j);
    tn_free(buffer);
    return status;
}

/* States of the parser for calls that are parsed when complete: Python and Gemma notation. */
#include "text/chat/parser.h"

static tn_status send_whole_call(tn_chat_parser *p, const char *name, size_t length, const json_t *arguments) {
    tn__text out = {0};
    tn__chat_append_json(&out, arguments);
    tn_status status = out.status != TN_OK ? tn__parser_nomem() : tn__parser_begin_call(p, name, length, NULL, 0);
    if (status == TN_OK) status = tn__parser_send(p, TN_CHAT_ARGUMENTS, out.data, out.length);
    if (status == TN_OK) status = tn__parser_end_call(p);
    tn__text_free(&out);
    return status;
}

/* Sends a list of Python calls. *good is false if the text is not one. */
static tn_status send_python_calls(tn_chat_parser *p, const char *text, size_t length, bool *good) {
    json_t *calls = json_array();
    tn_status status = calls ? TN_OK : tn__chat_nomem();
    *good = calls && tn__chat_parse_python(text, length, calls);
    for (size_t i = 0; *good && status == TN_OK && i < json_array_size(calls); i++) {
        const json_t *one = json_array_get(calls, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        status = send_whole_call(p, name, strlen(name), json_object_get(one, "arguments"));
    }
    json_decref(calls);
    return status;
}

tn_status tn__parser_step_text(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    bool python = s->kind == TN__CHAT_PYTHONIC, good = false;
    const char *const ends[] = {python ? s->section_end : s->call_end};
    int which;
    size_t n = tn__parser_find(p, 0, ends, 1, &which);
    *more = which >= 0 || p->final;
    if (!*more) return TN_OK;
    if (which < 0) n = p->pending.length;
    const char *text = tn__parser_text(p);
    if (python) {
        TN_TRY(send_python_calls(p, text, n, &good));
    } else {
        const char *brace = n ? memchr(text, '{', n) : NULL;
        json_t *arguments = brace ? tn__chat_parse_gemma(brace, n - (size_t)(brace - text)) : NULL;
        size_t from, to;
        good = arguments && tn__parser_find_name(p, text, (size_t)(brace - text), &from, &to);
        tn_status status = good ? send_whole_call(p, text + from, to - from, arguments) : TN_OK;
        json_decref(arguments);
        TN_TRY(status);
    }
    if (good)
        tn__parser_consume(p, n + (which >= 0 ? strlen(ends[0]) : 0), false);
    else
        return tn__parser_abandon_call(p);
    p->state = TN__PARSER_CONTENT;
    return TN_OK;
}

/* After <|python_tag|>: JSON, a call of a built-in tool, or code. */
tn_status tn__parser_step_python(tn_chat_parser *p, bool *more) {
    size_t space = tn__parser_leading_space(p);
    *more = p->final;
    if (space < p->pending.length && p->pending.data[space] == '{') {
        tn__parser_consume(p, space, true);
        *more = p->bare = true;
        p->state = TN__PARSER_BETWEEN;
        return TN_OK;
    }
    if (!p->final) return TN_OK;
    bool good;
    const char *text = tn__parser_text(p);
    TN_TRY(send_python_calls(p, text, p->pending.length, &good));
    static const char *const interpreters[] = {"python", "ipython", "code_interpreter"};
    for (size_t i = 0; !good && i < 3; i++) {
        if (!tn__parser_is_tool(p, interpreters[i], strlen(interpreters[i]))) continue;
        json_t *arguments = json_pack("{s:s%}", "code", text, p->pending.length);
        if (!arguments) break; /* not UTF-8 */
        tn_status status = send_whole_call(p, interpreters[i], strlen(interpreters[i]), arguments);
        json_decref(arguments);
        TN_TRY(status);
        good = true;
    }
    if (!good) return tn__parser_abandon_call(p);
    tn__parser_consume(p, p->pending.length, false);
    p->state = TN__PARSER_CONTENT;
    return TN_OK;
}

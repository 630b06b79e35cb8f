/* States of the parser for calls that are parsed when complete: Python and Gemma notation. */
#include "text/chat/parser.h"

#include <ctype.h>

static tn_status send_whole_call(tn_chat_parser *p, const char *name, size_t length, const json_t *arguments) {
    tn__text out = {0};
    tn__chat_append_json(&out, arguments);
    tn_status status = out.status != TN_OK ? tn__parser_nomem() : tn__parser_begin_call(p, name, length, NULL, 0);
    if (status == TN_OK) status = tn__parser_send(p, TN_CHAT_ARGUMENTS, out.data, out.length);
    if (status == TN_OK) status = tn__parser_end_call(p);
    tn__text_free(&out);
    return status;
}

/* "[name(" with the name of a tool, from `from` on. */
tn__parser_match tn__parser_begins_python(const tn_chat_parser *p, size_t from) {
    const char *text = tn__parser_text(p);
    size_t length = p->pending.length;
    if (from < length && text[from] != '[') return TN__MATCH_NO;
    for (from++; from < length && isspace((unsigned char)text[from]);) from++;
    size_t name = from;
    while (from < length && tn__chat_is_name_char(text[from])) from++;
    if (from < length)
        return text[from] == '(' && tn__parser_is_tool(p, text + name, from - name) ? TN__MATCH_YES : TN__MATCH_NO;
    return p->final || from - name > 1000 ? TN__MATCH_NO : TN__MATCH_MAYBE;
}

/* Calls as JSON between the markers of Python calls, which some models write too: one object or a list. */
static bool parse_json_calls(const char *text, size_t length, json_t *calls) {
    json_t *json = json_loadb(text, length, 0, NULL), *one;
    size_t i;
    bool good = json != NULL;
    json_t *list = json_is_array(json) ? json_incref(json) : json_pack("[O]", json);
    json_array_foreach(list, i, one) {
        json_t *arguments = json_object_get(one, "arguments");
        if (!arguments) arguments = json_object_get(one, "parameters");
        json_t *call = json_pack("{s:O, s:O}", "name", json_object_get(one, "name"), "arguments", arguments);
        good = good && json_is_string(json_object_get(one, "name")) && json_is_object(arguments) &&
               json_array_append(calls, call) == 0;
        json_decref(call);
    }
    json_decref(list);
    json_decref(json);
    return good;
}

/* Sends a list of Python calls. *good is false if the text is not one. */
static tn_status send_python_calls(tn_chat_parser *p, const char *text, size_t length, bool *good) {
    json_t *calls = json_array();
    tn_status status = calls ? TN_OK : tn__chat_nomem();
    *good = calls && (tn__chat_parse_python(text, length, calls) ||
                      (json_array_clear(calls) == 0 && parse_json_calls(text, length, calls)));
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
        json_t *arguments = brace ? tn__chat_parse_gemma(brace, n - (size_t)(brace - text), s->quote) : NULL;
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

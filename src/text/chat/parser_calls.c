/* States of the parser inside tool calls: JSON objects, and names followed by JSON arguments. */
#include "text/chat/parser.h"

void tn__parser_enter_call(tn_chat_parser *p) {
    p->announced = false;
    p->sent = 0;
    p->first_argument = true;
    memset(&p->scanner, 0, sizeof p->scanner);
    p->scanner.keyed = p->syntax.name_is_key;
    switch (p->syntax.kind) {
    case TN__CHAT_NAMED:
    case TN__CHAT_TAGGED: p->state = TN__PARSER_CALL_NAME; break;
    case TN__CHAT_PYTHONIC:
    case TN__CHAT_GEMMA: p->state = TN__PARSER_CALL_TEXT; break;
    default: p->state = TN__PARSER_CALL_JSON; break;
    }
}

tn_status tn__parser_step_between(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    const char *const ends[] = {s->section_end, s->call_end};
    tn__parser_consume(p, tn__parser_leading_space(p), !p->call_count);
    *more = false;
    if (!p->pending.length) return TN_OK;
    bool wait = false;
    for (size_t i = 0; i < 2; i++) {
        tn__parser_match m = tn__chat_present(ends[i]) ? tn__parser_begins_with(p, ends[i]) : TN__MATCH_NO;
        wait |= m == TN__MATCH_MAYBE;
        if (m != TN__MATCH_YES) continue;
        tn__parser_consume(p, strlen(ends[i]), false);
        p->list = false;
        if (i == 0 || !tn__chat_present(s->section_begin)) p->state = TN__PARSER_CONTENT;
        *more = true;
        return p->lead.length ? tn__parser_abandon_call(p) : TN_OK;
    }
    tn__parser_match begin =
        tn__chat_present(s->call_begin) ? tn__parser_begins_with(p, s->call_begin) : TN__MATCH_NO;
    if (begin == TN__MATCH_YES) {
        tn__parser_consume(p, strlen(s->call_begin), true);
        tn__parser_enter_call(p);
        *more = true;
        return TN_OK;
    }
    if (wait || begin == TN__MATCH_MAYBE) return TN_OK;
    *more = true;
    char c = p->pending.data[0];
    if (s->kind == TN__CHAT_JSON && c == '{') {
        tn__parser_enter_call(p);
    } else if (c == ',' || (s->kind == TN__CHAT_JSON && (c == '[' || c == ']' || c == ';'))) {
        tn__parser_consume(p, 1, !p->call_count);
    } else if ((s->kind == TN__CHAT_NAMED || s->kind == TN__CHAT_TAGGED) && !tn__chat_present(s->call_begin) &&
               tn__chat_is_name_char(c)) {
        tn__parser_enter_call(p);
    } else
        return tn__parser_abandon_call(p);
    return TN_OK;
}

static tn_status send_json_name(tn_chat_parser *p) {
    const tn__chat_scanner *s = &p->scanner;
    const char *text = p->pending.data;
    return tn__parser_begin_call(p, text + s->name_from, s->name_to - s->name_from, text + s->id_from,
                                 s->id_to ? s->id_to - s->id_from : 0);
}

/* A string as the arguments contains JSON. */
static tn_status send_quoted_arguments(tn_chat_parser *p, const char *text, size_t length) {
    json_t *string = json_loadb(text, length, JSON_DECODE_ANY, NULL);
    tn_status status =
        json_is_string(string) && json_string_length(string)
            ? tn__parser_send(p, TN_CHAT_ARGUMENTS, json_string_value(string), json_string_length(string))
            : tn__parser_send(p, TN_CHAT_ARGUMENTS, "{}", 2);
    json_decref(string);
    return status;
}

/* Sends what has arrived of the arguments. Anything but an object is sent when complete. */
static tn_status send_json_arguments(tn_chat_parser *p) {
    const tn__chat_scanner *s = &p->scanner;
    const char *text = p->pending.data + s->arguments_from;
    if (!s->arguments_from) return s->done ? tn__parser_send(p, TN_CHAT_ARGUMENTS, "{}", 2) : TN_OK;
    if (*text == '{') {
        size_t have = (s->arguments_to ? s->arguments_to : s->at) - s->arguments_from, from = p->sent;
        p->sent = have;
        return tn__parser_send(p, TN_CHAT_ARGUMENTS, text + from, have - from);
    }
    if (!s->arguments_to || p->sent) return TN_OK;
    p->sent = 1;
    size_t length = s->arguments_to - s->arguments_from;
    if (*text == '"') return send_quoted_arguments(p, text, length);
    return *text == '[' ? tn__parser_send(p, TN_CHAT_ARGUMENTS, text, length)
                        : tn__parser_send(p, TN_CHAT_ARGUMENTS, "{}", 2);
}

/* Whether the JSON so far cannot be a call. Without markers around it, it is a call only if it names a tool. */
static bool is_no_call(const tn_chat_parser *p) {
    const tn__chat_scanner *s = &p->scanner;
    if (s->bad || (s->done && !s->name_to) || (s->name_to && s->name_to == s->name_from)) return true;
    if (!p->bare) return false;
    return (s->name_to && !tn__parser_is_tool(p, p->pending.data + s->name_from, s->name_to - s->name_from)) ||
           (s->keys > 2 && !s->name_to) || (s->done && !s->arguments_to);
}

tn_status tn__parser_step_json(tn_chat_parser *p, bool *more) {
    tn__chat_scanner *s = &p->scanner;
    *more = true;
    if (!s->at) {
        tn__parser_consume(p, tn__parser_leading_space(p), true);
        if (!p->pending.length) {
            *more = false;
            return TN_OK;
        }
        if (p->pending.data[0] == '[') { /* a list of calls instead of one */
            tn__parser_consume(p, 1, true);
            p->list = true;
            p->state = TN__PARSER_BETWEEN;
            return TN_OK;
        }
    }
    /* Scans byte by byte, so that the result does not depend on how the text is divided into pieces. */
    while (s->at < p->pending.length && !s->done && !s->bad) {
        tn__chat_scan(s, p->pending.data, s->at + 1);
        if (p->announced) continue;
        if (is_no_call(p)) return tn__parser_abandon_call(p);
        if (s->name_to && (s->arguments_from || s->done)) TN_TRY(send_json_name(p));
    }
    if (p->announced) TN_TRY(send_json_arguments(p));
    *more = s->done || s->bad;
    if (!*more) return TN_OK;
    tn__parser_consume(p, s->at, false);
    return tn__parser_end_call(p);
}

enum { NAME_LENGTH_MAX = 1000 }; /* bytes between a call's marker and its arguments */

tn_status tn__parser_step_name(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    bool named = s->kind == TN__CHAT_NAMED;
    int which;
    size_t from, to;
    *more = true;
    if (s->recipient_all) { /* the first line is the recipient */
        const char *const line[] = {"\n"};
        size_t n = tn__parser_find(p, 0, line, 1, &which);
        if (which == 0 && n == 3 && memcmp(p->pending.data, "all", 3) == 0) {
            tn__parser_consume(p, 4, false);
            tn__text_clear(&p->lead);
            p->state = TN__PARSER_CONTENT;
            return TN_OK;
        }
    }
    const char *const ends[] = {named ? "{" : s->key_begin, s->call_end};
    size_t n = tn__parser_find(p, 0, ends, 2, &which), longest = 0;
    for (int i = 0; i < 2; i++)
        if (ends[i] && strlen(ends[i]) > longest) longest = strlen(ends[i]);
    if (which < 0) { /* past this length an end marker that begins in time would be complete */
        *more = p->final || p->pending.length > NAME_LENGTH_MAX + longest;
        return *more ? tn__parser_abandon_call(p) : TN_OK;
    }
    if (n > NAME_LENGTH_MAX) return tn__parser_abandon_call(p);
    if (!tn__parser_find_name(p, p->pending.data, n, &from, &to)) return tn__parser_abandon_call(p);
    TN_TRY(tn__parser_begin_call(p, p->pending.data + from, to - from, NULL, 0));
    tn__parser_consume(p, n, false);
    if (which == 0)
        p->state = named ? TN__PARSER_CALL_ARGS : TN__PARSER_CALL_TAGS;
    else {
        TN_TRY(tn__parser_send(p, TN_CHAT_ARGUMENTS, "{}", 2));
        return tn__parser_end_call(p);
    }
    return TN_OK;
}

tn_status tn__parser_step_args(tn_chat_parser *p, bool *more) {
    tn__chat_scanner *s = &p->scanner;
    size_t before = s->at;
    tn__chat_scan(s, p->pending.data, p->pending.length);
    *more = s->done || s->bad;
    TN_TRY(tn__parser_send(p, TN_CHAT_ARGUMENTS, p->pending.data + before, s->at - before));
    if (!*more) return TN_OK;
    tn__parser_consume(p, s->at, false);
    return tn__parser_end_call(p);
}

tn_status tn__parser_step_call_end(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    *more = true;
    tn__parser_consume(p, tn__parser_leading_space(p), false);
    if (!p->pending.length) {
        *more = false;
        return TN_OK;
    }
    if (tn__chat_present(s->call_end) && !p->list) {
        tn__parser_match m = tn__parser_begins_with(p, s->call_end);
        if (m == TN__MATCH_MAYBE) {
            *more = false;
            return TN_OK;
        }
        if (m == TN__MATCH_YES) tn__parser_consume(p, strlen(s->call_end), false);
    }
    p->state = p->bare || p->list || tn__chat_present(s->section_begin) ? TN__PARSER_BETWEEN : TN__PARSER_CONTENT;
    return TN_OK;
}

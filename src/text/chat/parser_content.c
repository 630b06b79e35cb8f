/* States of the parser outside calls: the start of an answer, content, reasoning. */
#include "text/chat/parser.h"

#include <ctype.h>

tn_status tn__parser_step_start(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    if (p->reasoning_ended) tn__parser_consume(p, tn__parser_leading_space(p), false);
    size_t space = tn__parser_leading_space(p);
    *more = true;
    if (space == p->pending.length && !p->final) {
        *more = false;
        return TN_OK;
    }
    if (tn__chat_present(s->reasoning_begin) && !p->keep_reasoning) {
        tn__parser_match m = tn__parser_begins_after_space(p, s->reasoning_begin);
        if (m == TN__MATCH_MAYBE) *more = false;
        if (m == TN__MATCH_YES) {
            tn__parser_consume(p, space + strlen(s->reasoning_begin), false);
            p->state = TN__PARSER_REASONING;
            p->fresh = true;
        }
        if (m != TN__MATCH_NO) return TN_OK;
        /* A model that does not reason may close what it has not opened. */
        m = p->reasoning_ended || !tn__chat_present(s->reasoning_end)
                ? TN__MATCH_NO
                : tn__parser_begins_after_space(p, s->reasoning_end);
        if (m == TN__MATCH_MAYBE) *more = false;
        if (m == TN__MATCH_YES) {
            tn__parser_consume(p, space + strlen(s->reasoning_end), false);
            p->reasoning_ended = true;
        }
        if (m != TN__MATCH_NO) return TN_OK;
    }
    bool plain = p->tools && !tn__chat_present(s->section_begin) && !tn__chat_present(s->call_begin);
    if (plain && s->kind == TN__CHAT_PYTHONIC) {
        tn__parser_match m = tn__parser_begins_python(p, space);
        if (m == TN__MATCH_MAYBE) *more = false;
        p->state = m == TN__MATCH_MAYBE ? TN__PARSER_START
                   : m == TN__MATCH_YES ? TN__PARSER_CALL_TEXT
                                        : TN__PARSER_CONTENT;
        p->bare = m == TN__MATCH_YES;
        return TN_OK;
    }
    bool unmarked = plain && s->kind == TN__CHAT_JSON;
    if (unmarked && p->tools && space < p->pending.length &&
        (p->pending.data[space] == '{' || p->pending.data[space] == '[')) {
        p->bare = true;
        tn__parser_consume(p, space, true);
        p->state = TN__PARSER_BETWEEN;
        return TN_OK;
    }
    p->state = TN__PARSER_CONTENT;
    return TN_OK;
}

tn_status tn__parser_step_content(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    bool tools = p->tools && s->kind != TN__CHAT_NONE;
    const char *const markers[] = {tools ? s->section_begin : NULL, tools ? s->call_begin : NULL,
                                   tools && s->python_tag ? "<|python_tag|>" : NULL, s->content_begin,
                                   s->content_end};
    int which;
    size_t n = tn__parser_find(p, 0, markers, 5, &which);
    TN_TRY(tn__parser_send_content(p, tn__parser_text(p), n));
    tn__parser_consume(p, n, false);
    *more = which >= 0;
    if (which < 0) return TN_OK;
    tn__parser_consume(p, strlen(markers[which]), which < 3);
    if (which == 3) { /* like the end of the reasoning: white space after it is not content */
        p->reasoning_ended = true;
        p->state = TN__PARSER_START;
    }
    if (which >= 3) return TN_OK;
    if (which == 2)
        p->state = TN__PARSER_PYTHON;
    else if (which == 1)
        tn__parser_enter_call(p);
    else if (s->kind == TN__CHAT_PYTHONIC)
        p->state = TN__PARSER_CALL_TEXT;
    else
        p->state = TN__PARSER_BETWEEN;
    return TN_OK;
}

tn_status tn__parser_step_reasoning(tn_chat_parser *p, bool *more) {
    const char *const markers[] = {p->syntax.reasoning_end};
    int which;
    if (p->fresh) { /* a call may come without any reasoning */
        tn__parser_consume(p, tn__parser_leading_space(p), false);
        const char *const calls[] = {p->syntax.section_begin, p->syntax.call_begin};
        for (size_t i = 0; p->tools && i < 2; i++) {
            tn__parser_match m = tn__chat_present(calls[i]) ? tn__parser_begins_with(p, calls[i]) : TN__MATCH_NO;
            if (m == TN__MATCH_NO) continue;
            if (m == TN__MATCH_YES) p->state = TN__PARSER_START;
            *more = m == TN__MATCH_YES;
            return TN_OK;
        }
    }
    size_t n = tn__parser_find(p, 0, markers, 1, &which), solid = n;
    /* White space before the end marker is not part of the reasoning. */
    while (solid && isspace((unsigned char)p->pending.data[solid - 1])) solid--;
    TN_TRY(tn__parser_send_reasoning(p, tn__parser_text(p), solid));
    *more = which >= 0;
    tn__parser_consume(p, which >= 0 ? n + strlen(markers[0]) : solid, false);
    if (which < 0) return TN_OK;
    p->state = TN__PARSER_START; /* a call or content follows */
    p->reasoning_ended = true;
    return TN_OK;
}

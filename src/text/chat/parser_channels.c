/* States of the parser for gpt-oss: every message names its channel and its recipient. */
#include "text/chat/parser.h"

#include <stdio.h>

tn_status tn__parser_step_channel_head(tn_chat_parser *p, bool *more) {
    static const char *const message[] = {"<|message|>"};
    int which;
    /* Text that does not begin like a header is an answer without one. */
    tn__parser_match tag = tn__parser_begins_after_space(p, "<|"), to_name = tn__parser_begins_after_space(p, "to=");
    if (tag == TN__MATCH_NO && to_name == TN__MATCH_NO &&
        (tn__parser_leading_space(p) < p->pending.length || p->final)) {
        *more = true;
        p->state = TN__PARSER_CHANNEL_BODY;
        p->channel = TN_CHAT_CONTENT;
        p->channel_call = false;
        return TN_OK;
    }
    size_t n = tn__parser_find(p, 0, message, 1, &which);
    *more = which >= 0;
    if (which < 0) {
        if (!p->final) return TN_OK;
        TN_TRY(tn__parser_send_content(p, p->pending.data, p->pending.length));
        tn__parser_consume(p, p->pending.length, false);
        return TN_OK;
    }
    char head[256];
    snprintf(head, sizeof head, "%.*s", n < sizeof head ? (int)n : (int)sizeof head - 1, p->pending.data);
    const char *to = strstr(head, "to=functions.");
    p->channel = strstr(head, "<|channel|>analysis") && !p->keep_reasoning ? TN_CHAT_REASONING : TN_CHAT_CONTENT;
    p->channel_call = to != NULL;
    p->fresh = true;
    if (to) {
        to += strlen("to=functions.");
        size_t length = 0;
        while (tn__chat_is_name_char(to[length])) length++;
        if (length)
            TN_TRY(tn__parser_begin_call(p, to, length, NULL, 0));
        else
            p->channel_call = false;
    }
    tn__parser_consume(p, n + strlen(message[0]), false);
    p->state = TN__PARSER_CHANNEL_BODY;
    return TN_OK;
}

tn_status tn__parser_step_channel_body(tn_chat_parser *p, bool *more) {
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
    int which;
    size_t n = tn__parser_find(p, 0, ends, 5, &which);
    const char *text = tn__parser_text(p);
    if (p->channel_call)
        TN_TRY(tn__parser_send(p, TN_CHAT_ARGUMENTS, text, n));
    else if (p->channel == TN_CHAT_REASONING)
        TN_TRY(tn__parser_send_reasoning(p, text, n));
    else
        TN_TRY(tn__parser_send_content(p, text, n));
    tn__parser_consume(p, n, false);
    *more = which >= 0;
    if (which < 0) return TN_OK;
    if (which < 3) tn__parser_consume(p, strlen(ends[which]), false);
    if (p->channel_call) {
        if (!p->calls[p->call_count - 1].arguments.length) TN_TRY(tn__parser_send(p, TN_CHAT_ARGUMENTS, "{}", 2));
        TN_TRY(tn__parser_end_call(p));
    }
    p->channel_call = false;
    p->state = TN__PARSER_CHANNEL_HEAD;
    return TN_OK;
}

/* Parses an answer while it arrives: the loop over the parser's states, and the message it adds up to. */
#include "text/chat/parser.h"

#include <ctype.h>

static tn_status run_step(tn_chat_parser *p, bool *more) {
    switch (p->state) {
    case TN__PARSER_START: return tn__parser_step_start(p, more);
    case TN__PARSER_CONTENT: return tn__parser_step_content(p, more);
    case TN__PARSER_REASONING: return tn__parser_step_reasoning(p, more);
    case TN__PARSER_BETWEEN: return tn__parser_step_between(p, more);
    case TN__PARSER_CALL_JSON: return tn__parser_step_json(p, more);
    case TN__PARSER_CALL_NAME: return tn__parser_step_name(p, more);
    case TN__PARSER_CALL_ARGS: return tn__parser_step_args(p, more);
    case TN__PARSER_CALL_TAGS: return tn__parser_step_tags(p, more);
    case TN__PARSER_CALL_TEXT: return tn__parser_step_text(p, more);
    case TN__PARSER_CALL_END: return tn__parser_step_call_end(p, more);
    case TN__PARSER_PYTHON: return tn__parser_step_python(p, more);
    case TN__PARSER_CHANNEL_HEAD: return tn__parser_step_channel_head(p, more);
    case TN__PARSER_CHANNEL_BODY: return tn__parser_step_channel_body(p, more);
    }
    return tn_fail(TN_E_INTERNAL, "the chat parser is in the unknown state %d", (int)p->state);
}

static tn_status parse_pending(tn_chat_parser *p, tn_chat_event_fn on_event, void *user) {
    tn_status status = TN_OK;
    p->on_event = on_event;
    p->user = user;
    for (bool more = true; more && status == TN_OK && p->pending.length;) status = run_step(p, &more);
    if (status == TN_OK && (p->pending.status != TN_OK || p->lead.status != TN_OK)) status = tn__parser_nomem();
    return status;
}

/* The brackets of a list are skipped between calls, so that white space before them does not matter. */
static void drop_brackets(tn__chat_syntax *s) {
    size_t n = s->section_begin ? strlen(s->section_begin) : 0;
    if (n < 2 || s->section_begin[n - 1] != '[') return;
    for (n--; n && isspace((unsigned char)s->section_begin[n - 1]);) n--;
    s->section_begin[n] = '\0';
    if (s->section_end && *s->section_end == ']') memmove(s->section_end, s->section_end + 1, strlen(s->section_end));
}

tn_status tn_chat_parser_new(const tn_chat_prompt *prompt, tn_chat_parser **out) {
    if (!prompt || !out) return tn_fail(TN_E_INVALID, "tn_chat_parser_new: prompt or out is NULL");
    *out = NULL;
    tn_chat_parser *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    tn_status status = tn__chat_syntax_copy(&prompt->syntax, &p->syntax);
    if (status != TN_OK) {
        tn_chat_parser_free(p);
        return status;
    }
    /* This marker contains an id: the parser searches for the part before it and skips the rest with the name. */
    char *id = p->syntax.call_begin ? strstr(p->syntax.call_begin, TN__PROBE_ID) : NULL;
    if (id && id > p->syntax.call_begin) *id = '\0';
    if (p->syntax.kind == TN__CHAT_JSON) drop_brackets(&p->syntax);
    p->tools =
        prompt->tools ? json_deep_copy(prompt->tools) : NULL; /* reference counts of jansson are not thread-safe */
    p->keep_reasoning = prompt->keep_reasoning;
    p->fresh = true;
    p->id_seed = tn_time_ns() ^ (uint64_t)(uintptr_t)p;
    p->state = p->syntax.kind == TN__CHAT_CHANNELS               ? TN__PARSER_CHANNEL_HEAD
               : prompt->in_reasoning && !prompt->keep_reasoning ? TN__PARSER_REASONING
                                                                 : TN__PARSER_START;
    if (p->syntax.recipient_all && p->tools && prompt->in_call) tn__parser_enter_call(p);
    *out = p;
    return TN_OK;
}

void tn_chat_parser_free(tn_chat_parser *p) {
    if (!p) return;
    for (size_t i = 0; i < p->call_count; i++) {
        tn__text_free(&p->calls[i].name);
        tn__text_free(&p->calls[i].arguments);
    }
    tn_free(p->calls);
    tn__text_free(&p->pending);
    tn__text_free(&p->lead);
    tn__text_free(&p->content);
    tn__text_free(&p->reasoning);
    tn__text_free(&p->space);
    tn__chat_syntax_clear(&p->syntax);
    json_decref(p->tools);
    tn_free(p);
}

tn_status tn_chat_parser_feed(tn_chat_parser *p, const char *text, size_t length, tn_chat_event_fn on_event,
                              void *user) {
    if (p->final) return tn_fail(TN_E_STATE, "tn_chat_parser_feed: the answer is already finished");
    tn__text_append(&p->pending, text, length);
    if (p->pending.status != TN_OK) return tn__parser_nomem();
    return parse_pending(p, on_event, user);
}

tn_status tn_chat_parser_finish(tn_chat_parser *p, tn_chat_event_fn on_event, void *user) {
    if (p->final) return TN_OK;
    p->final = true;
    TN_TRY(parse_pending(p, on_event, user));
    if (p->announced || p->channel_call) { /* the answer ends inside a call */
        p->channel_call = false;
        TN_TRY(tn__parser_end_call(p));
    } else if (p->call_count && (p->state == TN__PARSER_BETWEEN || p->state == TN__PARSER_CALL_END)) {
        tn__text_clear(&p->pending); /* the start of an end marker */
    } else if (p->lead.length || p->pending.length) {
        TN_TRY(tn__parser_abandon_call(p));
        TN_TRY(tn__parser_send_content(p, tn__parser_text(p), p->pending.length));
    }
    tn__text_clear(&p->pending);
    /* White space at the end is content unless a call followed it. */
    if (!p->call_count) TN_TRY(tn__parser_send(p, TN_CHAT_CONTENT, p->space.data, p->space.length));
    tn__text_clear(&p->space);
    return TN_OK;
}

size_t tn_chat_parser_calls(const tn_chat_parser *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->call_count; i++) n += !p->calls[i].malformed;
    return n;
}

const char *tn_chat_parser_note(const tn_chat_parser *p) { return p->note[0] ? p->note : NULL; }

/* The content of the message: with the text of calls that are none. */
static void append_message_content(const tn_chat_parser *p, tn__text *out) {
    tn__text text = {0};
    tn__text_append(&text, p->content.data ? p->content.data : "", p->content.length);
    for (size_t i = 0; i < p->call_count; i++) {
        const tn__parsed_call *c = &p->calls[i];
        if (!c->malformed) continue;
        if (text.length) tn__text_puts(&text, "\n");
        tn__text_append(&text, c->name.data ? c->name.data : "", c->name.length);
        tn__text_puts(&text, " ");
        tn__text_append(&text, c->arguments.data ? c->arguments.data : "", c->arguments.length);
    }
    if (text.status != TN_OK)
        out->status = text.status;
    else
        tn__chat_append_json_string(out, text.data ? text.data : "", text.length);
    tn__text_free(&text);
}

tn_status tn_chat_parser_message(const tn_chat_parser *p, char **json) {
    tn__text out = {0};
    size_t calls = tn_chat_parser_calls(p);
    tn__text_puts(&out, "{\"role\": \"assistant\", \"content\": ");
    if (p->content.length || calls < p->call_count || !calls)
        append_message_content(p, &out);
    else
        tn__text_puts(&out, "null");
    if (p->reasoning.length) {
        tn__text_puts(&out, ", \"reasoning_content\": ");
        tn__chat_append_json_string(&out, p->reasoning.data, p->reasoning.length);
    }
    bool any = false;
    for (size_t i = 0; i < p->call_count; i++) {
        const tn__parsed_call *c = &p->calls[i];
        if (c->malformed) continue;
        tn__text_puts(&out, any ? ", " : ", \"tool_calls\": [");
        any = true;
        tn__text_puts(&out, "{\"id\": ");
        tn__chat_append_json_string(&out, c->id, strlen(c->id));
        tn__text_puts(&out, ", \"type\": \"function\", \"function\": {\"name\": ");
        tn__chat_append_json_string(&out, c->name.data ? c->name.data : "", c->name.length);
        tn__text_puts(&out, ", \"arguments\": ");
        tn__chat_append_json_string(&out, c->arguments.data ? c->arguments.data : "", c->arguments.length);
        tn__text_puts(&out, "}}");
    }
    if (any) tn__text_puts(&out, "]");
    if (p->note[0]) {
        tn__text_puts(&out, ", \"note\": ");
        tn__chat_append_json_string(&out, p->note, strlen(p->note));
    }
    tn__text_puts(&out, "}");
    return tn__text_take(&out, json);
}

/* What the parser of answers reports: content, reasoning and tool calls. */
#include "text/chat/parser.h"

#include "base/hash.h"
#include "text/utf8.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

tn_status tn__parser_nomem(void) { return tn_fail(TN_E_NOMEM, "out of memory for the answer"); }

tn_status tn__parser_send(tn_chat_parser *p, tn_chat_event_kind kind, const char *text, size_t length) {
    tn_chat_event event = {
        .kind = kind, .call = p->call_count ? p->call_count - 1 : 0, .text = text, .length = length};
    tn__parsed_call *c = p->call_count ? &p->calls[p->call_count - 1] : NULL;
    tn__text *into = kind == TN_CHAT_CONTENT     ? &p->content
                     : kind == TN_CHAT_REASONING ? &p->reasoning
                     : kind == TN_CHAT_CALL      ? &c->name
                     : kind == TN_CHAT_ARGUMENTS ? &c->arguments
                                                 : NULL;
    if (!length && kind != TN_CHAT_CALL_END) return TN_OK;
    if (into) {
        tn__text_append(into, text, length);
        if (into->status != TN_OK) return tn__parser_nomem();
    }
    if (kind == TN_CHAT_CALL) event.id = c->id;
    return p->on_event ? p->on_event(p->user, &event) : TN_OK;
}

tn_status tn__parser_send_content(tn_chat_parser *p, const char *text, size_t length) {
    size_t solid = length;
    while (solid && isspace((unsigned char)text[solid - 1])) solid--;
    if (solid) {
        TN_TRY(tn__parser_send(p, TN_CHAT_CONTENT, p->space.data, p->space.length));
        tn__text_clear(&p->space);
        TN_TRY(tn__parser_send(p, TN_CHAT_CONTENT, text, solid));
    }
    tn__text_append(&p->space, text + solid, length - solid);
    return p->space.status != TN_OK ? tn__parser_nomem() : TN_OK;
}

tn_status tn__parser_send_reasoning(tn_chat_parser *p, const char *text, size_t length) {
    while (p->fresh && length && isspace((unsigned char)*text)) text++, length--;
    if (!length) return TN_OK;
    p->fresh = false;
    return tn__parser_send(p, TN_CHAT_REASONING, text, length);
}

static void make_call_id(tn_chat_parser *p, char id[24]) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t bits = p->id_seed = tn__mix64(p->id_seed + 0x9e3779b97f4a7c15u);
    for (size_t i = 0; i < 9; i++, bits /= 62) id[i] = letters[bits % 62];
    id[9] = '\0';
}

tn_status tn__parser_begin_call(tn_chat_parser *p, const char *name, size_t length, const char *id,
                                size_t id_length) {
    tn__parsed_call *grown = tn_realloc(p->calls, (p->call_count + 1) * sizeof *grown);
    if (!grown) return TN_E_NOMEM;
    p->calls = grown;
    tn__parsed_call *c = &grown[p->call_count++];
    memset(c, 0, sizeof *c);
    if (id_length && id_length < sizeof c->id)
        memcpy(c->id, id, id_length);
    else
        make_call_id(p, c->id);
    p->announced = true;
    tn__text_clear(&p->lead);
    tn__text_clear(&p->space);
    return tn__parser_send(p, TN_CHAT_CALL, name, length);
}

void tn__parser_note(tn_chat_parser *p, const char *format, ...) {
    if (p->note[0]) return;
    va_list args;
    va_start(args, format);
    vsnprintf(p->note, sizeof p->note, format, args);
    va_end(args);
    /* A name may be cut within a character. */
    p->note[tn__utf8_valid_prefix(p->note, strlen(p->note))] = '\0';
}

tn_status tn__parser_end_call(tn_chat_parser *p) {
    tn__parsed_call *c = &p->calls[p->call_count - 1];
    json_t *arguments = json_loadb(c->arguments.data ? c->arguments.data : "", c->arguments.length, 0, NULL);
    c->malformed = !json_is_object(arguments) && !json_is_array(arguments);
    json_decref(arguments);
    if (c->malformed)
        tn__parser_note(p, "the arguments of a call of %.60s are %s", c->name.data ? c->name.data : "?",
                        p->final ? "incomplete" : "malformed");
    p->announced = false;
    p->state = TN__PARSER_CALL_END;
    return tn__parser_send(p, TN_CHAT_CALL_END, "", 0);
}

tn_status tn__parser_abandon_call(tn_chat_parser *p) {
    p->state = TN__PARSER_CONTENT;
    /* JSON or a list that begins an answer is often meant as such. */
    if (p->lead.length && !p->bare) tn__parser_note(p, "text after %.40s is not a call", p->lead.data);
    p->bare = p->list = false;
    tn_status status = p->lead.status != TN_OK
                           ? tn__parser_nomem()
                           : tn__parser_send_content(p, p->lead.data ? p->lead.data : "", p->lead.length);
    tn__text_clear(&p->lead);
    return status;
}

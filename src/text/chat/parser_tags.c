/* State of the parser inside a tool call whose arguments are between tags. */
#include "text/chat/parser.h"

#include <ctype.h>
#include <stdio.h>

/* Sends a value as JSON: as a string if the tool's schema says so or if it is not JSON. */
static tn_status send_value(tn_chat_parser *p, const char *key, size_t key_length, const char *value, size_t length) {
    const tn__parsed_call *c = &p->calls[p->call_count - 1];
    const json_t *schema = tn__chat_tool_parameters(p->tools, c->name.data, c->name.length);
    const json_t *property = json_object_getn(json_object_get(schema, "properties"), key, key_length);
    const char *type = json_string_value(json_object_get(property, "type"));
    tn__text out = {0};
    tn__text_puts(&out, p->first_argument ? "{" : ", ");
    tn__chat_append_json_string(&out, key, key_length);
    tn__text_puts(&out, ": ");
    json_t *json = type && strcmp(type, "string") == 0 ? NULL : json_loadb(value, length, JSON_DECODE_ANY, NULL);
    if (json)
        tn__chat_append_json(&out, json);
    else
        tn__chat_append_json_string(&out, value, length);
    json_decref(json);
    tn_status status =
        out.status != TN_OK ? tn__parser_nomem() : tn__parser_send(p, TN_CHAT_ARGUMENTS, out.data, out.length);
    tn__text_free(&out);
    p->first_argument = false;
    return status;
}

/* A marker with the probe's key replaced by the current key. */
static void fill_key(tn__text *out, const char *marker, const char *key, size_t length) {
    const char *hole = strstr(marker, TN__PROBE_KEY);
    if (!hole) {
        tn__text_puts(out, marker);
        return;
    }
    tn__text_append(out, marker, (size_t)(hole - marker));
    tn__text_append(out, key, length);
    tn__text_puts(out, hole + sizeof TN__PROBE_KEY - 1);
}

static tn_status end_tags(tn_chat_parser *p) {
    TN_TRY(tn__parser_send(p, TN_CHAT_ARGUMENTS, p->first_argument ? "{}" : "}", p->first_argument ? 2 : 1));
    return tn__parser_end_call(p);
}

tn_status tn__parser_step_tags(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    const char *const next[] = {s->key_begin, tn__chat_present(s->call_end) ? s->call_end : s->section_end};
    int which;
    size_t n = tn__parser_find(p, 0, next, 2, &which);
    *more = which == 1;
    if (which == 1 || (which < 0 && p->final)) {
        tn__parser_consume(p, n, false);
        return end_tags(p);
    }
    if (which < 0) return TN_OK;
    /* Waits for all of "key_begin KEY key_end VALUE value_end". A quoted key may be followed by attributes. */
    size_t key = n + strlen(s->key_begin), key_to, value;
    bool quoted = s->key_end[0] == '"';
    const char *head_text = quoted ? "\"" : s->key_end, *head_stop = strpbrk(s->key_end, " \n");
    char head[64];
    snprintf(head, sizeof head, "%.*s",
             quoted      ? 1
             : head_stop ? (int)(head_stop - s->key_end)
                         : (int)strlen(s->key_end),
             head_text);
    const char *tail = quoted ? strrchr(s->key_end, '"') + 1 : head_stop ? head_stop : "";
    while (isspace((unsigned char)*tail)) tail++;
    const char *const head_marker[] = {head}, *const tail_marker[] = {tail};
    key_to = tn__parser_find(p, key, head_marker, 1, &which);
    if (which < 0) return p->final ? end_tags(p) : TN_OK;
    value = key_to + strlen(head);
    if (*tail) {
        value = tn__parser_find(p, value, tail_marker, 1, &which);
        if (which < 0) return p->final ? end_tags(p) : TN_OK;
        value += strlen(tail);
    }
    tn__text end = {0};
    fill_key(&end, s->value_end, p->pending.data + key, key_to - key);
    const char *const end_marker[] = {end.data};
    size_t stop = end.status != TN_OK ? 0 : tn__parser_find(p, value, end_marker, 1, &which), end_length = end.length;
    bool failed = end.status != TN_OK;
    tn__text_free(&end);
    if (failed) return tn__parser_nomem();
    if (which < 0) return p->final ? end_tags(p) : TN_OK;
    size_t value_to = stop;
    const char *text = p->pending.data;
    if (s->padded_values && value < value_to && text[value] == '\n') value++;
    if (s->padded_values && value < value_to && text[value_to - 1] == '\n') value_to--;
    TN_TRY(send_value(p, text + key, key_to - key, text + value, value_to - value));
    tn__parser_consume(p, stop + end_length, false);
    *more = true;
    return TN_OK;
}

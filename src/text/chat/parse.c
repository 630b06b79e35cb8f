/* Takes an answer apart while it arrives: content, reasoning, tool calls.
 *
 * Text waits in `pending` until it is certain what it is; a step looks at its beginning, in the present state, and
 * either consumes something or asks for more. What led into a call that has not been announced yet is kept in `lead`,
 * so that it can become content after all. */
#include "text/chat/internal.h"

#include <ctype.h>
#include <stdio.h>

#include "base/hash.h"

typedef enum state {
    START, /* only white space so far */
    CONTENT,
    REASONING,
    BETWEEN,      /* inside a section, before a call or its end */
    CALL_JSON,    /* {"name": …, "arguments": …} */
    CALL_HEAD,    /* a name */
    CALL_ARGS,    /* a JSON object of arguments */
    CALL_TAGS,    /* arguments between tags */
    CALL_TEXT,    /* a call in Python or Gemma notation, up to its end marker */
    CALL_CLOSE,   /* the call's end marker */
    PYTHON,       /* behind <|python_tag|>, up to the end */
    CHANNEL_HEAD, /* gpt-oss: up to <|message|> */
    CHANNEL_BODY,
} state;

typedef struct call {
    char id[24];
    tn__text name, arguments;
    bool ended;
} call;

struct tn_chat_parser {
    tn__chat_syntax syntax;
    json_t *tools;
    bool keep_reasoning, final;
    bool thought; /* reasoning has ended; white space behind it is not content */
    state state;
    tn__text pending, lead, content, reasoning;
    tn__text space; /* white space at the end of the content so far, not sent yet */
    call *calls;
    size_t call_count;
    tn__chat_scanner scanner;
    size_t sent;         /* CALL_JSON: bytes of the arguments already sent */
    bool announced;      /* the present call's name is sent */
    bool bare;           /* calls without markers around them */
    bool list;           /* in a list between the markers of one call */
    bool fresh;          /* nothing but white space since the state began */
    bool first_argument; /* CALL_TAGS: none sent yet */
    tn_chat_event_kind channel;
    bool channel_call;
    tn_chat_event_fn on_event;
    void *user;
    uint64_t id_seed;
};

/* ---- Events ----------------------------------------------------------------------------------------------- */

static tn_status send(tn_chat_parser *p, tn_chat_event_kind kind, const char *text, size_t length) {
    tn_chat_event event = {
        .kind = kind, .call = p->call_count ? p->call_count - 1 : 0, .text = text, .length = length};
    call *c = p->call_count ? &p->calls[p->call_count - 1] : NULL;
    tn__text *into = kind == TN_CHAT_CONTENT     ? &p->content
                     : kind == TN_CHAT_REASONING ? &p->reasoning
                     : kind == TN_CHAT_CALL      ? &c->name
                     : kind == TN_CHAT_ARGUMENTS ? &c->arguments
                                                 : NULL;
    if (!length && kind != TN_CHAT_CALL_END) return TN_OK;
    if (into) {
        tn__text_append(into, text, length);
        if (into->status != TN_OK) return tn_fail(TN_E_NOMEM, "out of memory for the answer");
    }
    if (kind == TN_CHAT_CALL) event.id = c->id;
    if (kind == TN_CHAT_CALL_END) c->ended = true;
    return p->on_event ? p->on_event(p->user, &event) : TN_OK;
}

/* Content goes out without the white space at its end, which may turn out to stand before a call. */
static tn_status send_content(tn_chat_parser *p, const char *text, size_t length) {
    size_t solid = length;
    while (solid && isspace((unsigned char)text[solid - 1])) solid--;
    if (solid) {
        TN_TRY(send(p, TN_CHAT_CONTENT, p->space.data, p->space.length));
        tn__text_clear(&p->space);
        TN_TRY(send(p, TN_CHAT_CONTENT, text, solid));
    }
    tn__text_append(&p->space, text + solid, length - solid);
    return p->space.status != TN_OK ? tn_fail(TN_E_NOMEM, "out of memory for the answer") : TN_OK;
}

static tn_status send_reasoning(tn_chat_parser *p, const char *text, size_t length) {
    while (p->fresh && length && isspace((unsigned char)*text)) text++, length--;
    if (!length) return TN_OK;
    p->fresh = false;
    return send(p, TN_CHAT_REASONING, text, length);
}

static void make_id(tn_chat_parser *p, char id[24]) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t bits = p->id_seed = tn__mix64(p->id_seed + 0x9e3779b97f4a7c15u);
    for (size_t i = 0; i < 9; i++, bits /= 62) id[i] = letters[bits % 62];
    id[9] = '\0';
}

static tn_status begin_call(tn_chat_parser *p, const char *name, size_t length, const char *id, size_t id_length) {
    call *grown = tn_realloc(p->calls, (p->call_count + 1) * sizeof *grown);
    if (!grown) return TN_E_NOMEM;
    p->calls = grown;
    call *c = &grown[p->call_count++];
    memset(c, 0, sizeof *c);
    if (id_length && id_length < sizeof c->id)
        memcpy(c->id, id, id_length);
    else
        make_id(p, c->id);
    p->announced = true;
    tn__text_clear(&p->lead);
    tn__text_clear(&p->space);
    return send(p, TN_CHAT_CALL, name, length);
}

static tn_status end_call(tn_chat_parser *p) {
    p->announced = false;
    p->state = CALL_CLOSE;
    return send(p, TN_CHAT_CALL_END, "", 0);
}

/* ---- Looking ahead ---------------------------------------------------------------------------------------- */

static bool present(const char *marker) { return marker && *marker; }

/* Where the first of the markers stands, or where one may be beginning, or the length. *which is its index, or -1. */
static size_t find(const tn_chat_parser *p, size_t from, const char *const markers[], int count, int *which) {
    const char *text = p->pending.data ? p->pending.data : "";
    size_t length = p->pending.length, best = length;
    *which = -1;
    for (int i = 0; i < count; i++) {
        size_t n = present(markers[i]) ? strlen(markers[i]) : 0;
        if (!n || from > length) continue;
        const char *hit = memmem(text + from, length - from, markers[i], n);
        if (hit && (size_t)(hit - text) < best) {
            best = (size_t)(hit - text);
            *which = i;
        }
        if (p->final) continue;
        size_t longest = length - from < n - 1 ? length - from : n - 1;
        for (size_t k = longest; k > 0; k--)
            if (memcmp(text + length - k, markers[i], k) == 0) {
                if (length - k < best) {
                    best = length - k;
                    *which = -1;
                }
                break;
            }
    }
    return best;
}

typedef enum match { NO, MAYBE, YES } match;
static match begins_with(const tn_chat_parser *p, const char *marker) {
    size_t n = strlen(marker), have = p->pending.length < n ? p->pending.length : n;
    if (have && memcmp(p->pending.data, marker, have) != 0) return NO;
    return have == n ? YES : p->final ? NO : MAYBE;
}

static void consume(tn_chat_parser *p, size_t n, bool keep) {
    if (keep) tn__text_append(&p->lead, p->pending.data, n);
    tn__text_remove_front(&p->pending, n);
}

static size_t leading_space(const tn_chat_parser *p) {
    size_t n = 0;
    while (n < p->pending.length && isspace((unsigned char)p->pending.data[n])) n++;
    return n;
}

/* Whether the text, white space aside, begins with a marker. */
static match begins_after_space(tn_chat_parser *p, const char *marker) {
    tn__text whole = p->pending;
    size_t space = leading_space(p);
    p->pending.data += space;
    p->pending.length -= space;
    match m = begins_with(p, marker);
    p->pending = whole;
    return m;
}

/* What looked like a call is content: what led here, and the rest is looked at again. */
static tn_status give_up(tn_chat_parser *p) {
    tn__text lead = p->lead;
    p->lead = (tn__text){0};
    p->state = CONTENT;
    p->bare = p->list = false;
    tn_status status = lead.status != TN_OK ? tn_fail(TN_E_NOMEM, "out of memory for the answer")
                                            : send_content(p, lead.data ? lead.data : "", lead.length);
    tn__text_free(&lead);
    return status;
}

static bool known_tool(const tn_chat_parser *p, const char *name, size_t length) {
    for (size_t i = 0; i < json_array_size(p->tools); i++) {
        const char *known = tn__chat_tool_name(p->tools, i);
        if (known && strlen(known) == length && memcmp(known, name, length) == 0) return true;
    }
    return false;
}

static bool name_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.'; }

/* The function's name in a header such as "functions.f:0", "f[CALL_ID]x[ARGS]" or "id<|name|>f": the first known tool
 * in it, else its first word. */
static bool name_in(const tn_chat_parser *p, const char *text, size_t length, size_t *from, size_t *to) {
    *to = 0;
    for (size_t i = 0; i < length; i++) {
        size_t end = i;
        while (end < length && name_char(text[end])) end++;
        if (end == i) continue;
        size_t start = end - i > 10 && memcmp(text + i, "functions.", 10) == 0 ? i + 10 : i;
        if (!*to) *from = start, *to = end;
        if (known_tool(p, text + start, end - start)) {
            *from = start;
            *to = end;
            return true;
        }
        i = end;
    }
    return *to > 0;
}

/* ---- States: text ----------------------------------------------------------------------------------------- */

static void enter_call(tn_chat_parser *p) {
    p->announced = false;
    p->sent = 0;
    p->first_argument = true;
    memset(&p->scanner, 0, sizeof p->scanner);
    switch (p->syntax.kind) {
    case TN__CHAT_NAMED:
    case TN__CHAT_TAGGED: p->state = CALL_HEAD; break;
    case TN__CHAT_PYTHONIC:
    case TN__CHAT_GEMMA: p->state = CALL_TEXT; break;
    default: p->state = CALL_JSON; break;
    }
}

static tn_status step_start(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    if (p->thought) consume(p, leading_space(p), false);
    size_t space = leading_space(p);
    *more = true;
    if (space == p->pending.length && !p->final) {
        *more = false;
        return TN_OK;
    }
    if (present(s->reasoning_begin) && !p->keep_reasoning) {
        match m = begins_after_space(p, s->reasoning_begin);
        if (m == MAYBE) *more = false;
        if (m == YES) {
            consume(p, space + strlen(s->reasoning_begin), false);
            p->state = REASONING;
            p->fresh = true;
        }
        if (m != NO) return TN_OK;
    }
    bool unmarked = s->kind == TN__CHAT_JSON && !present(s->section_begin) && !present(s->call_begin);
    if (unmarked && p->tools && space < p->pending.length &&
        (p->pending.data[space] == '{' || p->pending.data[space] == '[')) {
        p->bare = true;
        consume(p, space, true);
        p->state = BETWEEN;
        return TN_OK;
    }
    p->state = CONTENT;
    return TN_OK;
}

static tn_status step_content(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    bool tools = p->tools && s->kind != TN__CHAT_NONE;
    const char *const markers[] = {tools ? s->section_begin : NULL, tools ? s->call_begin : NULL,
                                   tools && s->python_tag ? "<|python_tag|>" : NULL};
    int which;
    size_t n = find(p, 0, markers, 3, &which);
    TN_TRY(send_content(p, p->pending.data ? p->pending.data : "", n));
    consume(p, n, false);
    *more = which >= 0;
    if (which < 0) return TN_OK;
    consume(p, strlen(markers[which]), true);
    if (which == 2)
        p->state = PYTHON;
    else if (which == 1)
        enter_call(p);
    else if (s->kind == TN__CHAT_PYTHONIC)
        p->state = CALL_TEXT;
    else
        p->state = BETWEEN;
    return TN_OK;
}

static tn_status step_reasoning(tn_chat_parser *p, bool *more) {
    const char *const markers[] = {p->syntax.reasoning_end};
    int which;
    if (p->fresh) { /* no thought at all: a call comes first */
        consume(p, leading_space(p), false);
        const char *const calls[] = {p->syntax.section_begin, p->syntax.call_begin};
        for (size_t i = 0; p->tools && i < 2; i++) {
            match m = present(calls[i]) ? begins_with(p, calls[i]) : NO;
            if (m == NO) continue;
            if (m == YES) p->state = START;
            *more = m == YES;
            return TN_OK;
        }
    }
    size_t n = find(p, 0, markers, 1, &which), solid = n;
    /* White space before the end marker is not part of the thought. */
    while (solid && isspace((unsigned char)p->pending.data[solid - 1])) solid--;
    TN_TRY(send_reasoning(p, p->pending.data ? p->pending.data : "", solid));
    *more = which >= 0;
    consume(p, which >= 0 ? n + strlen(markers[0]) : solid, false);
    if (which < 0) return TN_OK;
    p->state = START; /* a call or an answer follows */
    p->thought = true;
    return TN_OK;
}

/* ---- States: calls ---------------------------------------------------------------------------------------- */

static tn_status step_between(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    const char *const ends[] = {s->section_end, s->call_end};
    consume(p, leading_space(p), !p->call_count);
    *more = false;
    if (!p->pending.length) return TN_OK;
    bool wait = false;
    for (size_t i = 0; i < 2; i++) {
        match m = present(ends[i]) ? begins_with(p, ends[i]) : NO;
        wait |= m == MAYBE;
        if (m != YES) continue;
        consume(p, strlen(ends[i]), false);
        p->list = false;
        if (i == 0 || !present(s->section_begin)) p->state = CONTENT;
        *more = true;
        return p->lead.length ? give_up(p) : TN_OK;
    }
    match begin = present(s->call_begin) ? begins_with(p, s->call_begin) : NO;
    if (begin == YES) {
        consume(p, strlen(s->call_begin), true);
        enter_call(p);
        *more = true;
        return TN_OK;
    }
    if (wait || begin == MAYBE) return TN_OK;
    *more = true;
    char c = p->pending.data[0];
    if (s->kind == TN__CHAT_JSON && c == '{') {
        enter_call(p);
    } else if (c == ',' || (s->kind == TN__CHAT_JSON && (c == '[' || c == ']' || c == ';'))) {
        consume(p, 1, !p->call_count);
    } else if ((s->kind == TN__CHAT_NAMED || s->kind == TN__CHAT_TAGGED) && !present(s->call_begin) && name_char(c)) {
        enter_call(p);
    } else
        return give_up(p);
    return TN_OK;
}

static tn_status send_json_name(tn_chat_parser *p) {
    const tn__chat_scanner *s = &p->scanner;
    const char *text = p->pending.data;
    return begin_call(p, text + s->name_from, s->name_to - s->name_from, text + s->id_from,
                      s->id_to ? s->id_to - s->id_from : 0);
}

/* Arguments given as a string hold JSON in it. */
static tn_status send_quoted_arguments(tn_chat_parser *p, const char *text, size_t length) {
    json_t *string = json_loadb(text, length, JSON_DECODE_ANY, NULL);
    tn_status status = json_is_string(string) && json_string_length(string)
                           ? send(p, TN_CHAT_ARGUMENTS, json_string_value(string), json_string_length(string))
                           : send(p, TN_CHAT_ARGUMENTS, "{}", 2);
    json_decref(string);
    return status;
}

/* The arguments as far as they have come. Whatever is no object is held back until it is complete. */
static tn_status send_json_arguments(tn_chat_parser *p) {
    const tn__chat_scanner *s = &p->scanner;
    const char *text = p->pending.data + s->arguments_from;
    if (!s->arguments_from) return s->done ? send(p, TN_CHAT_ARGUMENTS, "{}", 2) : TN_OK;
    if (*text == '{') {
        size_t have = (s->arguments_to ? s->arguments_to : s->at) - s->arguments_from, from = p->sent;
        p->sent = have;
        return send(p, TN_CHAT_ARGUMENTS, text + from, have - from);
    }
    if (!s->arguments_to || p->sent) return TN_OK;
    p->sent = 1;
    size_t length = s->arguments_to - s->arguments_from;
    if (*text == '"') return send_quoted_arguments(p, text, length);
    return *text == '[' ? send(p, TN_CHAT_ARGUMENTS, text, length) : send(p, TN_CHAT_ARGUMENTS, "{}", 2);
}

/* Without markers around it, JSON is a call only if it names a tool. */
static bool is_no_call(const tn_chat_parser *p) {
    const tn__chat_scanner *s = &p->scanner;
    if (s->bad || (s->done && !s->name_to) || (s->name_to && s->name_to == s->name_from)) return true;
    if (!p->bare) return false;
    return (s->name_to && !known_tool(p, p->pending.data + s->name_from, s->name_to - s->name_from)) ||
           (s->keys > 2 && !s->name_to) || (s->done && !s->arguments_to);
}

static tn_status step_json(tn_chat_parser *p, bool *more) {
    tn__chat_scanner *s = &p->scanner;
    *more = true;
    if (!s->at) {
        consume(p, leading_space(p), true);
        if (!p->pending.length) {
            *more = false;
            return TN_OK;
        }
        if (p->pending.data[0] == '[') { /* a list where one was expected: its calls come one by one */
            consume(p, 1, true);
            p->list = true;
            p->state = BETWEEN;
            return TN_OK;
        }
    }
    /* Byte by byte, so that decisions do not depend on the pieces in which the text arrives. */
    while (s->at < p->pending.length && !s->done && !s->bad) {
        tn__chat_scan(s, p->pending.data, s->at + 1);
        if (p->announced) continue;
        if (is_no_call(p)) return give_up(p);
        if (s->name_to && (s->arguments_from || s->done)) TN_TRY(send_json_name(p));
    }
    if (p->announced) TN_TRY(send_json_arguments(p));
    *more = s->done || s->bad;
    if (!*more) return TN_OK;
    consume(p, s->at, false);
    return end_call(p);
}

/* The name, up to what ends it. */
enum { LONGEST_HEAD = 1000 };
static tn_status step_head(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    bool named = s->kind == TN__CHAT_NAMED;
    int which;
    size_t from, to;
    *more = true;
    if (s->recipient_all) { /* one line: the recipient */
        const char *const line[] = {"\n"};
        size_t n = find(p, 0, line, 1, &which);
        if (which == 0 && n == 3 && memcmp(p->pending.data, "all", 3) == 0) {
            consume(p, 4, false);
            tn__text_clear(&p->lead);
            p->state = CONTENT;
            return TN_OK;
        }
    }
    const char *const ends[] = {named ? "{" : s->key_begin, s->call_end};
    size_t n = find(p, 0, ends, 2, &which), longest = 0;
    for (int i = 0; i < 2; i++)
        if (ends[i] && strlen(ends[i]) > longest) longest = strlen(ends[i]);
    if (which < 0) { /* by now an end that begins in time would be here whole */
        *more = p->final || p->pending.length > LONGEST_HEAD + longest;
        return *more ? give_up(p) : TN_OK;
    }
    if (n > LONGEST_HEAD) return give_up(p);
    if (!name_in(p, p->pending.data, n, &from, &to)) return give_up(p);
    TN_TRY(begin_call(p, p->pending.data + from, to - from, NULL, 0));
    consume(p, n, false);
    if (which == 0)
        p->state = named ? CALL_ARGS : CALL_TAGS;
    else {
        TN_TRY(send(p, TN_CHAT_ARGUMENTS, "{}", 2));
        return end_call(p);
    }
    return TN_OK;
}

static tn_status step_args(tn_chat_parser *p, bool *more) {
    tn__chat_scanner *s = &p->scanner;
    size_t before = s->at;
    tn__chat_scan(s, p->pending.data, p->pending.length);
    *more = s->done || s->bad;
    TN_TRY(send(p, TN_CHAT_ARGUMENTS, p->pending.data + before, s->at - before));
    if (!*more) return TN_OK;
    consume(p, s->at, false);
    return end_call(p);
}

/* A value as JSON: text stays text where the tool's schema says so or where it is nothing else. */
static tn_status send_value(tn_chat_parser *p, const char *key, size_t key_length, const char *value, size_t length) {
    const call *c = &p->calls[p->call_count - 1];
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
    tn_status status = out.status != TN_OK ? tn_fail(TN_E_NOMEM, "out of memory for an argument")
                                           : send(p, TN_CHAT_ARGUMENTS, out.data, out.length);
    tn__text_free(&out);
    p->first_argument = false;
    return status;
}

/* A marker with the probe's key in it, for the key at hand. */
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
    TN_TRY(send(p, TN_CHAT_ARGUMENTS, p->first_argument ? "{}" : "}", p->first_argument ? 2 : 1));
    return end_call(p);
}

static tn_status step_tags(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    const char *const next[] = {s->key_begin, present(s->call_end) ? s->call_end : s->section_end};
    int which;
    size_t n = find(p, 0, next, 2, &which);
    *more = which == 1;
    if (which == 1 || (which < 0 && p->final)) {
        consume(p, n, false);
        return end_tags(p);
    }
    if (which < 0) return TN_OK;
    /* key_begin KEY key_end VALUE value_end; all of it must be here. A key in quotes may have attributes behind it.
     */
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
    key_to = find(p, key, head_marker, 1, &which);
    if (which < 0) return p->final ? end_tags(p) : TN_OK;
    value = key_to + strlen(head);
    if (*tail) {
        value = find(p, value, tail_marker, 1, &which);
        if (which < 0) return p->final ? end_tags(p) : TN_OK;
        value += strlen(tail);
    }
    tn__text end = {0};
    fill_key(&end, s->value_end, p->pending.data + key, key_to - key);
    const char *const end_marker[] = {end.data};
    size_t stop = end.status != TN_OK ? 0 : find(p, value, end_marker, 1, &which), end_length = end.length;
    bool failed = end.status != TN_OK;
    tn__text_free(&end);
    if (failed) return tn_fail(TN_E_NOMEM, "out of memory for the answer");
    if (which < 0) return p->final ? end_tags(p) : TN_OK;
    size_t value_to = stop;
    const char *text = p->pending.data;
    if (s->padded_values && value < value_to && text[value] == '\n') value++;
    if (s->padded_values && value < value_to && text[value_to - 1] == '\n') value_to--;
    TN_TRY(send_value(p, text + key, key_to - key, text + value, value_to - value));
    consume(p, stop + end_length, false);
    *more = true;
    return TN_OK;
}

static tn_status send_whole_call(tn_chat_parser *p, const char *name, size_t length, const json_t *arguments) {
    tn__text out = {0};
    tn__chat_append_json(&out, arguments);
    tn_status status = out.status != TN_OK ? tn_fail(TN_E_NOMEM, "out of memory for the arguments")
                                           : begin_call(p, name, length, NULL, 0);
    if (status == TN_OK) status = send(p, TN_CHAT_ARGUMENTS, out.data, out.length);
    if (status == TN_OK) status = end_call(p);
    tn__text_free(&out);
    return status;
}

/* A list of calls that was parsed at once. *good is false when the text is none. */
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

static tn_status step_text(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    bool python = s->kind == TN__CHAT_PYTHONIC, good = false;
    const char *const ends[] = {python ? s->section_end : s->call_end};
    int which;
    size_t n = find(p, 0, ends, 1, &which);
    *more = which >= 0 || p->final;
    if (!*more) return TN_OK;
    if (which < 0) n = p->pending.length;
    const char *text = p->pending.data ? p->pending.data : "";
    if (python) {
        TN_TRY(send_python_calls(p, text, n, &good));
    } else {
        const char *brace = n ? memchr(text, '{', n) : NULL;
        json_t *arguments = brace ? tn__chat_parse_gemma(brace, n - (size_t)(brace - text)) : NULL;
        size_t from, to;
        good = arguments && name_in(p, text, (size_t)(brace - text), &from, &to);
        tn_status status = good ? send_whole_call(p, text + from, to - from, arguments) : TN_OK;
        json_decref(arguments);
        TN_TRY(status);
    }
    if (good)
        consume(p, n + (which >= 0 ? strlen(ends[0]) : 0), false);
    else
        return give_up(p);
    p->state = CONTENT;
    return TN_OK;
}

static tn_status step_close(tn_chat_parser *p, bool *more) {
    const tn__chat_syntax *s = &p->syntax;
    *more = true;
    consume(p, leading_space(p), false);
    if (!p->pending.length) {
        *more = false;
        return TN_OK;
    }
    if (present(s->call_end) && !p->list) {
        match m = begins_with(p, s->call_end);
        if (m == MAYBE) {
            *more = false;
            return TN_OK;
        }
        if (m == YES) consume(p, strlen(s->call_end), false);
    }
    p->state = p->bare || p->list || present(s->section_begin) ? BETWEEN : CONTENT;
    return TN_OK;
}

/* Behind <|python_tag|>: JSON, a call of a built-in tool, or code. */
static tn_status step_python(tn_chat_parser *p, bool *more) {
    size_t space = leading_space(p);
    *more = p->final;
    if (space < p->pending.length && p->pending.data[space] == '{') {
        consume(p, space, true);
        *more = p->bare = true;
        p->state = BETWEEN;
        return TN_OK;
    }
    if (!p->final) return TN_OK;
    bool good;
    const char *text = p->pending.data ? p->pending.data : "";
    TN_TRY(send_python_calls(p, text, p->pending.length, &good));
    static const char *const interpreters[] = {"python", "ipython", "code_interpreter"};
    for (size_t i = 0; !good && i < 3; i++) {
        if (!known_tool(p, interpreters[i], strlen(interpreters[i]))) continue;
        json_t *arguments = json_pack("{s:s%}", "code", text, p->pending.length);
        if (!arguments) break; /* not UTF-8 */
        tn_status status = send_whole_call(p, interpreters[i], strlen(interpreters[i]), arguments);
        json_decref(arguments);
        TN_TRY(status);
        good = true;
    }
    if (!good) return give_up(p);
    consume(p, p->pending.length, false);
    p->state = CONTENT;
    return TN_OK;
}

/* ---- States: channels ------------------------------------------------------------------------------------- */

static tn_status step_channel_head(tn_chat_parser *p, bool *more) {
    static const char *const message[] = {"<|message|>"};
    int which;
    /* Anything that does not look like a header is an answer without one. */
    match tag = begins_after_space(p, "<|"), to_name = begins_after_space(p, "to=");
    if (tag == NO && to_name == NO && (leading_space(p) < p->pending.length || p->final)) {
        *more = true;
        p->state = CHANNEL_BODY;
        p->channel = TN_CHAT_CONTENT;
        p->channel_call = false;
        return TN_OK;
    }
    size_t n = find(p, 0, message, 1, &which);
    *more = which >= 0;
    if (which < 0) {
        if (!p->final) return TN_OK;
        TN_TRY(send_content(p, p->pending.data, p->pending.length));
        consume(p, p->pending.length, false);
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
        while (name_char(to[length])) length++;
        if (length)
            TN_TRY(begin_call(p, to, length, NULL, 0));
        else
            p->channel_call = false;
    }
    consume(p, n + strlen(message[0]), false);
    p->state = CHANNEL_BODY;
    return TN_OK;
}

static tn_status step_channel_body(tn_chat_parser *p, bool *more) {
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
    int which;
    size_t n = find(p, 0, ends, 5, &which);
    const char *text = p->pending.data ? p->pending.data : "";
    if (p->channel_call)
        TN_TRY(send(p, TN_CHAT_ARGUMENTS, text, n));
    else if (p->channel == TN_CHAT_REASONING)
        TN_TRY(send_reasoning(p, text, n));
    else
        TN_TRY(send_content(p, text, n));
    consume(p, n, false);
    *more = which >= 0;
    if (which < 0) return TN_OK;
    if (which < 3) consume(p, strlen(ends[which]), false);
    if (p->channel_call) {
        if (!p->calls[p->call_count - 1].arguments.length) TN_TRY(send(p, TN_CHAT_ARGUMENTS, "{}", 2));
        TN_TRY(end_call(p));
    }
    p->channel_call = false;
    p->state = CHANNEL_HEAD;
    return TN_OK;
}

/* ---- The machine ------------------------------------------------------------------------------------------ */

static tn_status step(tn_chat_parser *p, bool *more) {
    switch (p->state) {
    case START: return step_start(p, more);
    case CONTENT: return step_content(p, more);
    case REASONING: return step_reasoning(p, more);
    case BETWEEN: return step_between(p, more);
    case CALL_JSON: return step_json(p, more);
    case CALL_HEAD: return step_head(p, more);
    case CALL_ARGS: return step_args(p, more);
    case CALL_TAGS: return step_tags(p, more);
    case CALL_TEXT: return step_text(p, more);
    case CALL_CLOSE: return step_close(p, more);
    case PYTHON: return step_python(p, more);
    case CHANNEL_HEAD: return step_channel_head(p, more);
    case CHANNEL_BODY: return step_channel_body(p, more);
    }
    return tn_fail(TN_E_INTERNAL, "chat parser in state %d", (int)p->state);
}

static tn_status work(tn_chat_parser *p, tn_chat_event_fn on_event, void *user) {
    tn_status status = TN_OK;
    p->on_event = on_event;
    p->user = user;
    for (bool more = true; more && status == TN_OK && p->pending.length;) status = step(p, &more);
    if (status == TN_OK && (p->pending.status != TN_OK || p->lead.status != TN_OK))
        status = tn_fail(TN_E_NOMEM, "out of memory for the answer");
    return status;
}

tn_status tn_chat_parser_new(const tn_chat_prompt *prompt, tn_chat_parser **out) {
    if (!prompt || !out) return tn_fail(TN_E_INVALID, "tn_chat_parser_new: no prompt");
    *out = NULL;
    tn_chat_parser *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    tn_status status = tn__chat_syntax_copy(&prompt->syntax, &p->syntax);
    if (status != TN_OK) {
        tn_chat_parser_free(p);
        return status;
    }
    /* An id stands in the middle of this marker: what follows it is read with the name. */
    char *id = p->syntax.call_begin ? strstr(p->syntax.call_begin, TN__PROBE_ID) : NULL;
    if (id && id > p->syntax.call_begin) *id = '\0';
    p->tools = prompt->tools ? json_deep_copy(prompt->tools) : NULL; /* reference counts are not thread-safe */
    p->keep_reasoning = prompt->keep_reasoning;
    p->fresh = true;
    p->id_seed = tn_time_ns() ^ (uint64_t)(uintptr_t)p;
    p->state = p->syntax.kind == TN__CHAT_CHANNELS               ? CHANNEL_HEAD
               : prompt->in_reasoning && !prompt->keep_reasoning ? REASONING
                                                                 : START;
    if (p->syntax.recipient_all && p->tools && prompt->in_call) enter_call(p);
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
    if (p->pending.status != TN_OK) return tn_fail(TN_E_NOMEM, "out of memory for the answer");
    return work(p, on_event, user);
}

tn_status tn_chat_parser_finish(tn_chat_parser *p, tn_chat_event_fn on_event, void *user) {
    if (p->final) return TN_OK;
    p->final = true;
    TN_TRY(work(p, on_event, user));
    if (p->announced || p->channel_call) { /* cut off in the middle of a call */
        p->channel_call = false;
        TN_TRY(end_call(p));
    } else if (p->call_count && (p->state == BETWEEN || p->state == CALL_CLOSE)) {
        tn__text_clear(&p->pending); /* the beginning of an end marker */
    } else if (p->lead.length || p->pending.length) {
        TN_TRY(give_up(p));
        TN_TRY(send_content(p, p->pending.data ? p->pending.data : "", p->pending.length));
    }
    tn__text_clear(&p->pending);
    /* White space at the end belongs to the content unless calls followed it. */
    if (!p->call_count) TN_TRY(send(p, TN_CHAT_CONTENT, p->space.data, p->space.length));
    tn__text_clear(&p->space);
    return TN_OK;
}

size_t tn_chat_parser_calls(const tn_chat_parser *p) { return p->call_count; }

tn_status tn_chat_parser_message(const tn_chat_parser *p, char **json) {
    tn__text out = {0};
    tn__text_puts(&out, "{\"role\": \"assistant\", \"content\": ");
    if (p->content.length || !p->call_count)
        tn__chat_append_json_string(&out, p->content.data ? p->content.data : "", p->content.length);
    else
        tn__text_puts(&out, "null");
    if (p->reasoning.length) {
        tn__text_puts(&out, ", \"reasoning_content\": ");
        tn__chat_append_json_string(&out, p->reasoning.data, p->reasoning.length);
    }
    for (size_t i = 0; i < p->call_count; i++) {
        const call *c = &p->calls[i];
        tn__text_puts(&out, i ? ", " : ", \"tool_calls\": [");
        tn__text_puts(&out, "{\"id\": ");
        tn__chat_append_json_string(&out, c->id, strlen(c->id));
        tn__text_puts(&out, ", \"type\": \"function\", \"function\": {\"name\": ");
        tn__chat_append_json_string(&out, c->name.data ? c->name.data : "", c->name.length);
        tn__text_puts(&out, ", \"arguments\": ");
        tn__chat_append_json_string(&out, c->arguments.data ? c->arguments.data : "", c->arguments.length);
        tn__text_puts(&out, "}}");
    }
    tn__text_puts(&out, p->call_count ? "]}" : "}");
    return tn__text_take(&out, json);
}

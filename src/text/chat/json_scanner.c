/* JSON that models write: where a value ends, and where a growing call object has its name, arguments and id. */
#include "text/chat/internal.h"

size_t tn__chat_json_end(const char *text, size_t length) {
    size_t depth = 0;
    bool string = false;
    if (!length) return 0;
    if (text[0] != '{' && text[0] != '[') return SIZE_MAX;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                string = false;
        } else if (c == '"')
            string = true;
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0)
            return i + 1;
    }
    return 0;
}

static bool key_is(const tn__chat_scanner *s, size_t depth, const char *text, const char *const names[]) {
    size_t from = s->level[depth].key_from, n = s->level[depth].key_to - from;
    for (size_t i = 0; names[i]; i++)
        if (strlen(names[i]) == n && memcmp(text + from, names[i], n) == 0) return true;
    return false;
}

static const char *const name_keys[] = {"name", "tool_name", "function", NULL};
static const char *const argument_keys[] = {"arguments", "parameters", "args", "input", NULL};
static const char *const id_keys[] = {"id", "tool_call_id", NULL};
static const char *const function_key[] = {"function", NULL};

/* Whether the members at this depth belong to the call. */
static bool in_call_members(const tn__chat_scanner *s, const char *text) {
    return s->depth == 1 || (s->depth == 2 && s->level[1].object && key_is(s, 1, text, function_key));
}

static void value_begins(tn__chat_scanner *s, const char *text) {
    if (s->depth < 1 || s->depth > 2 || !s->level[s->depth].object || s->level[s->depth].key_next ||
        s->level[s->depth].in_value)
        return;
    s->level[s->depth].in_value = true;
    s->level[s->depth].value_from = s->at;
    if (s->keyed && s->depth == 1 && !s->arguments_from) {
        s->name_from = s->level[1].key_from;
        s->name_to = s->level[1].key_to;
        s->arguments_from = s->at;
    }
    if (!s->keyed && !s->arguments_from && in_call_members(s, text) && key_is(s, s->depth, text, argument_keys))
        s->arguments_from = s->at;
}

static void value_ends(tn__chat_scanner *s, const char *text, size_t end) {
    if (s->depth < 1 || s->depth > 2 || !s->level[s->depth].in_value) return;
    size_t from = s->level[s->depth].value_from;
    s->level[s->depth].in_value = false;
    if (!in_call_members(s, text)) return;
    bool string = text[from] == '"';
    /* Of repeated keys the first counts. */
    if (from == s->arguments_from)
        s->arguments_to = end;
    else if (s->keyed)
        return;
    else if (string && !s->name_to && key_is(s, s->depth, text, name_keys))
        s->name_from = from + 1, s->name_to = end - 1;
    else if (string && !s->id_to && key_is(s, s->depth, text, id_keys))
        s->id_from = from + 1, s->id_to = end - 1;
}

static void string_ends(tn__chat_scanner *s, const char *text) {
    if (s->depth < 1 || s->depth > 2 || !s->level[s->depth].object) return;
    if (s->level[s->depth].key_next)
        s->level[s->depth].key_to = s->at;
    else
        value_ends(s, text, s->at + 1);
}

static void container_begins(tn__chat_scanner *s, const char *text, bool object) {
    if (s->depth) value_begins(s, text);
    s->depth++;
    if (s->depth > 2) return;
    memset(&s->level[s->depth], 0, sizeof s->level[0]);
    s->level[s->depth].object = s->level[s->depth].key_next = object;
}

static void container_ends(tn__chat_scanner *s, const char *text) {
    value_ends(s, text, s->at); /* a number, true, false or null ends at the bracket */
    s->depth--;
    if (s->depth)
        value_ends(s, text, s->at + 1);
    else
        s->done = true;
}

void tn__chat_scan(tn__chat_scanner *s, const char *text, size_t length) {
    for (; s->at < length && !s->done && !s->bad; s->at++) {
        char c = text[s->at];
        size_t d = s->depth;
        if (s->string) {
            if (s->escape)
                s->escape = false;
            else if (c == '\\')
                s->escape = true;
            else if (c == '"') {
                s->string = false;
                string_ends(s, text);
            }
            continue;
        }
        switch (c) {
        case ' ':
        case '\n':
        case '\r':
        case '\t': break;
        case '"':
            if (!d) s->bad = true;
            s->string = true;
            if (d <= 2 && s->level[d].object && s->level[d].key_next)
                s->level[d].key_from = s->at + 1;
            else
                value_begins(s, text);
            break;
        case '{':
        case '[':
            if (!d && c == '[')
                s->bad = true;
            else
                container_begins(s, text, c == '{');
            break;
        case '}':
        case ']':
            if (!d)
                s->bad = true;
            else
                container_ends(s, text);
            break;
        case ':':
            if (d == 1) s->keys++;
            if (d <= 2) s->level[d].key_next = false;
            break;
        case ',':
            value_ends(s, text, s->at);
            if (d <= 2) s->level[d].key_next = s->level[d].object;
            break;
        default:
            if (!d || (d <= 2 && s->level[d].object && s->level[d].key_next))
                s->bad = true;
            else
                value_begins(s, text);
        }
    }
}

/* Small readers for what models write: the end of a JSON value, Python calls, Gemma's own notation. */
#include "text/chat/internal.h"

#include <ctype.h>
#include <stdlib.h>

enum { DEPTH_MAX = 100 };

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

/* ---- A growing JSON object -------------------------------------------------------------------------------- */

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

/* Whether the members at this depth are those of the call. */
static bool counts(const tn__chat_scanner *s, const char *text) {
    return s->depth == 1 || (s->depth == 2 && s->level[1].object && key_is(s, 1, text, function_key));
}

static void value_begins(tn__chat_scanner *s, const char *text) {
    if (s->depth < 1 || s->depth > 2 || !s->level[s->depth].object || s->level[s->depth].key_next ||
        s->level[s->depth].in_value)
        return;
    s->level[s->depth].in_value = true;
    s->level[s->depth].value_from = s->at;
    if (!s->arguments_from && counts(s, text) && key_is(s, s->depth, text, argument_keys)) s->arguments_from = s->at;
}

static void value_ends(tn__chat_scanner *s, const char *text, size_t end) {
    if (s->depth < 1 || s->depth > 2 || !s->level[s->depth].in_value) return;
    size_t from = s->level[s->depth].value_from;
    s->level[s->depth].in_value = false;
    if (!counts(s, text)) return;
    bool string = text[from] == '"';
    /* The first of each counts. */
    if (from == s->arguments_from)
        s->arguments_to = end;
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
    value_ends(s, text, s->at); /* a number or word right before the bracket */
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

/* ---- Python literals and calls ---------------------------------------------------------------------------- */

typedef struct reader {
    const char *at, *end;
    int depth;
} reader;

static void skip_space(reader *r) {
    while (r->at < r->end && isspace((unsigned char)*r->at)) r->at++;
}
static bool skip(reader *r, char c) {
    skip_space(r);
    if (r->at >= r->end || *r->at != c) return false;
    r->at++;
    return true;
}
static bool skip_word(reader *r, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}
static bool name_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.'; }

static json_t *read_value(reader *r);

static json_t *read_quoted(reader *r) {
    char quote = *r->at++;
    tn__text text = {0};
    while (r->at < r->end && *r->at != quote) {
        char c = *r->at++;
        if (c == '\\' && r->at < r->end) {
            char e = *r->at++;
            c = e == 'n' ? '\n' : e == 't' ? '\t' : e == 'r' ? '\r' : e;
        }
        tn__text_append(&text, &c, 1);
    }
    bool closed = r->at < r->end;
    r->at += closed;
    json_t *value = closed && text.status == TN_OK ? json_stringn(text.data ? text.data : "", text.length) : NULL;
    tn__text_free(&text);
    return value;
}

static json_t *read_number(reader *r) {
    char copy[64];
    size_t n = 0;
    bool real = false;
    while (r->at < r->end && n + 1 < sizeof copy &&
           (isdigit((unsigned char)*r->at) || (*r->at && strchr("+-.eE", *r->at)))) {
        real |= *r->at == '.' || *r->at == 'e' || *r->at == 'E';
        copy[n++] = *r->at++;
    }
    copy[n] = '\0';
    if (!n) return NULL;
    /* jansson reads numbers without regard to the locale. */
    return json_loads(copy, JSON_DECODE_ANY | (real ? JSON_DECODE_INT_AS_REAL : 0), NULL);
}

static json_t *read_sequence(reader *r, char close) {
    json_t *list = json_array();
    r->at++;
    while (list && !skip(r, close)) {
        json_t *item = read_value(r);
        if (!item || json_array_append_new(list, item) != 0) goto bad;
        if (!skip(r, ',') && !(skip_space(r), r->at < r->end && *r->at == close)) goto bad;
    }
    return list;
bad:
    json_decref(list);
    return NULL;
}

static json_t *read_dict(reader *r) {
    json_t *dict = json_object();
    r->at++;
    while (dict && !skip(r, '}')) {
        json_t *key = read_value(r), *value = NULL;
        bool good = json_is_string(key) && skip(r, ':') && (value = read_value(r)) &&
                    json_object_set(dict, json_string_value(key), value) == 0;
        json_decref(key);
        json_decref(value);
        if (!good || (!skip(r, ',') && !(r->at < r->end && *r->at == '}'))) {
            json_decref(dict);
            return NULL;
        }
    }
    return dict;
}

static json_t *read_value(reader *r) {
    json_t *value = NULL;
    skip_space(r);
    if (r->at >= r->end || r->depth >= DEPTH_MAX) return NULL;
    r->depth++;
    if (*r->at == '\'' || *r->at == '"')
        value = read_quoted(r);
    else if (*r->at == '[')
        value = read_sequence(r, ']');
    else if (*r->at == '(')
        value = read_sequence(r, ')');
    else if (*r->at == '{')
        value = read_dict(r);
    else if (skip_word(r, "True") || skip_word(r, "true"))
        value = json_true();
    else if (skip_word(r, "False") || skip_word(r, "false"))
        value = json_false();
    else if (skip_word(r, "None") || skip_word(r, "null"))
        value = json_null();
    else
        value = read_number(r);
    r->depth--;
    return value;
}

/* name(key=value, …) */
static json_t *read_call(reader *r) {
    skip_space(r);
    const char *from = r->at;
    while (r->at < r->end && name_char(*r->at)) r->at++;
    size_t length = (size_t)(r->at - from);
    if (length > 5 && memcmp(from + length - 5, ".call", 5) == 0) length -= 5;
    if (!length || !skip(r, '(')) return NULL;
    json_t *arguments = json_object();
    while (arguments && !skip(r, ')')) {
        skip_space(r);
        const char *key = r->at;
        while (r->at < r->end && name_char(*r->at)) r->at++;
        size_t n = (size_t)(r->at - key);
        json_t *value = n && skip(r, '=') ? read_value(r) : NULL;
        if (!value || json_object_setn_new(arguments, key, n, value) != 0 ||
            (!skip(r, ',') && !(skip_space(r), r->at < r->end && *r->at == ')'))) {
            json_decref(arguments);
            return NULL;
        }
    }
    return arguments ? json_pack("{s:s%, s:o}", "name", from, length, "arguments", arguments) : NULL;
}

bool tn__chat_parse_python(const char *text, size_t length, json_t *calls) {
    reader r = {.at = text, .end = text + length};
    bool list = skip(&r, '[');
    do {
        json_t *call = read_call(&r);
        if (!call || json_array_append_new(calls, call) != 0) return false;
    } while (skip(&r, ','));
    if (list && !skip(&r, ']')) return false;
    skip_space(&r);
    return r.at == r.end;
}

/* ---- Gemma ------------------------------------------------------------------------------------------------ */

static const char gemma_quote[] = "<|\"|>";

static json_t *gemma_value(reader *r);

static json_t *gemma_object(reader *r) {
    json_t *object = json_object();
    r->at++;
    while (object && !skip(r, '}')) {
        skip_space(r);
        const char *key = r->at;
        if (skip_word(r, gemma_quote)) {
            key = r->at;
            while (r->at < r->end && *r->at != '<') r->at++;
        } else
            while (r->at < r->end && *r->at != ':') r->at++;
        size_t n = (size_t)(r->at - key);
        skip_word(r, gemma_quote);
        json_t *value = n && skip(r, ':') ? gemma_value(r) : NULL;
        if (!value || json_object_setn_new(object, key, n, value) != 0 ||
            (!skip(r, ',') && !(r->at < r->end && *r->at == '}'))) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *gemma_array(reader *r) {
    json_t *list = json_array();
    r->at++;
    while (list && !skip(r, ']')) {
        json_t *value = gemma_value(r);
        if (!value || json_array_append_new(list, value) != 0 ||
            (!skip(r, ',') && !(r->at < r->end && *r->at == ']'))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *gemma_value(reader *r) {
    json_t *value = NULL;
    skip_space(r);
    if (r->at >= r->end || r->depth >= DEPTH_MAX) return NULL;
    r->depth++;
    if (skip_word(r, gemma_quote)) {
        const char *close = memmem(r->at, (size_t)(r->end - r->at), gemma_quote, sizeof gemma_quote - 1);
        if (close) {
            value = json_stringn(r->at, (size_t)(close - r->at));
            r->at = close + sizeof gemma_quote - 1;
        }
    } else if (*r->at == '{')
        value = gemma_object(r);
    else if (*r->at == '[')
        value = gemma_array(r);
    else
        value = read_value(r);
    r->depth--;
    return value;
}

json_t *tn__chat_parse_gemma(const char *text, size_t length) {
    reader r = {.at = text, .end = text + length};
    skip_space(&r);
    if (r.at >= r.end || *r.at != '{') return NULL;
    json_t *value = gemma_value(&r);
    skip_space(&r);
    if (value && r.at != r.end) {
        json_decref(value);
        return NULL;
    }
    return value;
}

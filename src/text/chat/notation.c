/* Call notations that are not JSON, turned into JSON: Python calls and Gemma's own form. */
#include "text/chat/internal.h"

#include <ctype.h>

enum { LITERAL_DEPTH_MAX = 100 };

bool tn__chat_is_name_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.'; }

/* ---- Python ---- */

typedef struct literal_reader {
    const char *at, *end;
    int depth;
    const char *quote; /* Gemma */
} literal_reader;

static void skip_blanks(literal_reader *r) {
    while (r->at < r->end && isspace((unsigned char)*r->at)) r->at++;
}
static bool skip_char(literal_reader *r, char c) {
    skip_blanks(r);
    if (r->at >= r->end || *r->at != c) return false;
    r->at++;
    return true;
}
static bool skip_keyword(literal_reader *r, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

static json_t *read_python_value(literal_reader *r);

static json_t *read_python_string(literal_reader *r) {
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

static json_t *read_python_number(literal_reader *r) {
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
    /* jansson parses numbers independently of the locale. */
    return json_loads(copy, JSON_DECODE_ANY | (real ? JSON_DECODE_INT_AS_REAL : 0), NULL);
}

static json_t *read_python_sequence(literal_reader *r, char close) {
    json_t *list = json_array();
    r->at++;
    while (list && !skip_char(r, close)) {
        json_t *item = read_python_value(r);
        if (!item || json_array_append_new(list, item) != 0) goto bad;
        if (!skip_char(r, ',') && !(skip_blanks(r), r->at < r->end && *r->at == close)) goto bad;
    }
    return list;
bad:
    json_decref(list);
    return NULL;
}

static json_t *read_python_dict(literal_reader *r) {
    json_t *dict = json_object();
    r->at++;
    while (dict && !skip_char(r, '}')) {
        json_t *key = read_python_value(r), *value = NULL;
        bool good = json_is_string(key) && skip_char(r, ':') && (value = read_python_value(r)) &&
                    json_object_set(dict, json_string_value(key), value) == 0;
        json_decref(key);
        json_decref(value);
        if (!good || (!skip_char(r, ',') && !(r->at < r->end && *r->at == '}'))) {
            json_decref(dict);
            return NULL;
        }
    }
    return dict;
}

static json_t *read_python_value(literal_reader *r) {
    json_t *value = NULL;
    skip_blanks(r);
    if (r->at >= r->end || r->depth >= LITERAL_DEPTH_MAX) return NULL;
    r->depth++;
    if (*r->at == '\'' || *r->at == '"')
        value = read_python_string(r);
    else if (*r->at == '[')
        value = read_python_sequence(r, ']');
    else if (*r->at == '(')
        value = read_python_sequence(r, ')');
    else if (*r->at == '{')
        value = read_python_dict(r);
    else if (skip_keyword(r, "True") || skip_keyword(r, "true"))
        value = json_true();
    else if (skip_keyword(r, "False") || skip_keyword(r, "false"))
        value = json_false();
    else if (skip_keyword(r, "None") || skip_keyword(r, "null"))
        value = json_null();
    else
        value = read_python_number(r);
    r->depth--;
    return value;
}

/* name(key=value, …) */
static json_t *read_python_call(literal_reader *r) {
    skip_blanks(r);
    const char *from = r->at;
    while (r->at < r->end && tn__chat_is_name_char(*r->at)) r->at++;
    size_t length = (size_t)(r->at - from);
    if (length > 5 && memcmp(from + length - 5, ".call", 5) == 0) length -= 5;
    if (!length || !skip_char(r, '(')) return NULL;
    json_t *arguments = json_object();
    while (arguments && !skip_char(r, ')')) {
        skip_blanks(r);
        const char *key = r->at;
        while (r->at < r->end && tn__chat_is_name_char(*r->at)) r->at++;
        size_t n = (size_t)(r->at - key);
        json_t *value = n && skip_char(r, '=') ? read_python_value(r) : NULL;
        if (!value || json_object_setn_new(arguments, key, n, value) != 0 ||
            (!skip_char(r, ',') && !(skip_blanks(r), r->at < r->end && *r->at == ')'))) {
            json_decref(arguments);
            return NULL;
        }
    }
    return arguments ? json_pack("{s:s%, s:o}", "name", from, length, "arguments", arguments) : NULL;
}

bool tn__chat_parse_python(const char *text, size_t length, json_t *calls) {
    literal_reader r = {.at = text, .end = text + length};
    bool list = skip_char(&r, '[');
    do {
        json_t *call = read_python_call(&r);
        if (!call || json_array_append_new(calls, call) != 0) return false;
    } while (skip_char(&r, ','));
    if (list && !skip_char(&r, ']')) return false;
    skip_blanks(&r);
    return r.at == r.end;
}

/* ---- Gemma ---- */

static json_t *read_gemma_value(literal_reader *r);

static json_t *read_gemma_object(literal_reader *r) {
    json_t *object = json_object();
    r->at++;
    while (object && !skip_char(r, '}')) {
        skip_blanks(r);
        const char *key = r->at;
        if (skip_keyword(r, r->quote)) {
            key = r->at;
            while (r->at < r->end && *r->at != *r->quote) r->at++;
        } else
            while (r->at < r->end && *r->at != ':') r->at++;
        size_t n = (size_t)(r->at - key);
        skip_keyword(r, r->quote);
        json_t *value = n && skip_char(r, ':') ? read_gemma_value(r) : NULL;
        if (!value || json_object_setn_new(object, key, n, value) != 0 ||
            (!skip_char(r, ',') && !(r->at < r->end && *r->at == '}'))) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *read_gemma_array(literal_reader *r) {
    json_t *list = json_array();
    r->at++;
    while (list && !skip_char(r, ']')) {
        json_t *value = read_gemma_value(r);
        if (!value || json_array_append_new(list, value) != 0 ||
            (!skip_char(r, ',') && !(r->at < r->end && *r->at == ']'))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *read_gemma_value(literal_reader *r) {
    json_t *value = NULL;
    skip_blanks(r);
    if (r->at >= r->end || r->depth >= LITERAL_DEPTH_MAX) return NULL;
    r->depth++;
    if (skip_keyword(r, r->quote)) {
        const char *close = memmem(r->at, (size_t)(r->end - r->at), r->quote, strlen(r->quote));
        if (close) {
            value = json_stringn(r->at, (size_t)(close - r->at));
            r->at = close + strlen(r->quote);
        }
    } else if (*r->at == '{')
        value = read_gemma_object(r);
    else if (*r->at == '[')
        value = read_gemma_array(r);
    else
        value = read_python_value(r);
    r->depth--;
    return value;
}

json_t *tn__chat_parse_gemma(const char *text, size_t length, const char *quote) {
    literal_reader r = {.at = text, .end = text + length, .quote = tn__chat_present(quote) ? quote : "<|\"|>"};
    skip_blanks(&r);
    if (r.at >= r.end || *r.at != '{') return NULL;
    json_t *value = read_gemma_value(&r);
    skip_blanks(&r);
    if (value && r.at != r.end) {
        json_decref(value);
        return NULL;
    }
    return value;
}

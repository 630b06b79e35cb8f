/* Derives the syntax of tool calls from calls that a template rendered: the text around the name, around the
 * arguments and around the whole call. */
#include "text/chat/internal.h"
#include "text/utf8.h"

typedef struct text_span {
    const char *from, *to;
} text_span;

static text_span make_span(const char *from, const char *to) { return (text_span){from, to < from ? from : to}; }
static size_t span_size(text_span s) { return (size_t)(s.to - s.from); }

static text_span trim_span(text_span s) {
    while (s.from < s.to && strchr(" \n\t", *s.from)) s.from++;
    while (s.to > s.from && strchr(" \n\t", s.to[-1])) s.to--;
    return s;
}

static tn_status set_marker(char **marker, text_span s) {
    s = trim_span(s);
    tn_free(*marker);
    *marker = tn_malloc(span_size(s) + 1);
    if (!*marker) return TN_E_NOMEM;
    memcpy(*marker, s.from, span_size(s));
    (*marker)[span_size(s)] = '\0';
    return TN_OK;
}

/* Length of the common start of two spans, cut after its last complete tag if it has one: "</a><b" gives "</a>". */
static size_t common_start(text_span a, text_span b) {
    size_t n = 0, tag = 0;
    while (n < span_size(a) && n < span_size(b) && a.from[n] == b.from[n]) {
        n++;
        if (a.from[n - 1] == '>') tag = n;
    }
    return tag ? tag : n;
}

/* Length of the common end of two spans, cut before its first complete tag if it has one: "><b>" gives "<b>". */
static size_t common_end(text_span a, text_span b) {
    size_t n = 0, tag = 0;
    while (n < span_size(a) && n < span_size(b) && a.to[-1 - (ptrdiff_t)n] == b.to[-1 - (ptrdiff_t)n]) {
        n++;
        if (a.to[-(ptrdiff_t)n] == '<') tag = n;
    }
    return tag ? tag : n;
}

/* ---- Finding the call ---- */

typedef struct rendered_call {
    text_span name;      /* of the function, quotes not included */
    text_span arguments; /* a JSON object; empty when the arguments are not JSON */
    text_span object;    /* the JSON object around both; empty when there is none */
    json_t *json;        /* that object, parsed */
} rendered_call;

static bool object_has_name(const json_t *object, const char *name) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        if (json_is_string(value) && strcmp(json_string_value(value), name) == 0) return true;
        if (strcmp(key, "function") == 0 && json_is_object(value) && object_has_name(value, name)) return true;
    }
    return false;
}

/* The JSON object at `at`, or NULL. */
static json_t *load_object_at(const char *at, text_span *where) {
    size_t n = tn__chat_json_end(at, strlen(at));
    json_t *json = n && n != SIZE_MAX ? json_loadb(at, n, 0, NULL) : NULL;
    if (json && where) *where = make_span(at, at + n);
    return json;
}

static bool find_call(const char *name, const char *after, rendered_call *f) {
    memset(f, 0, sizeof *f);
    size_t n = strlen(name);
    const char *key = strstr(after, TN__PROBE_KEY), *at = NULL;
    for (const char *p = after; key && (p = strstr(p, name)) && p < key; p += n)
        if (p[n] != '2') at = p; /* the second probe's name is the first one's and a 2 */
    if (!at) return false;
    f->name = make_span(at, at + n);
    for (const char *open = strchr(after, '{'); open && open < at; open = strchr(open + 1, '{')) {
        f->json = load_object_at(open, &f->object);
        if (f->json && object_has_name(f->json, name)) return true;
        json_decref(f->json);
        f->json = NULL;
        f->object = (text_span){0};
    }
    for (const char *open = strchr(f->name.to, '{'); open && open < key; open = strchr(open + 1, '{')) {
        json_t *json = load_object_at(open, &f->arguments);
        bool right = json_object_get(json, TN__PROBE_KEY) != NULL;
        json_decref(json);
        if (right) return true;
        f->arguments = (text_span){0};
    }
    return true;
}

/* Splits the texts before the first call, after the last and between two calls into the markers of the section and
 * the markers of each call. */
static tn_status set_frame(text_span before, text_span behind, const text_span *between, tn__chat_syntax *syntax) {
    size_t begin = 0, end = 0;
    text_span middle = between ? trim_span(*between) : (text_span){0};
    while (between && middle.from < middle.to && strchr(", \n", *middle.from)) middle.from++;
    /* A header that contains the name differs from call to call and cannot be a marker. */
    for (const char *p = before.from; (p = strstr(p, TN__PROBE_NAME)) && p < before.to;)
        before.from = p += sizeof TN__PROBE_NAME - 1;
    before = trim_span(before);
    behind = trim_span(behind);
    if (!between) {
        bool list = span_size(before) && before.to[-1] == '[' && span_size(behind) && *behind.from == ']';
        begin = list ? 0 : span_size(before);
        end = list ? 0 : span_size(behind);
    } else if (span_size(middle)) {
        begin = common_end(before, middle);
        end = common_start(behind, trim_span(*between));
    }
    TN_TRY(set_marker(&syntax->section_begin, make_span(before.from, before.to - begin)));
    TN_TRY(set_marker(&syntax->call_begin, make_span(before.to - begin, before.to)));
    TN_TRY(set_marker(&syntax->call_end, make_span(behind.from, behind.from + end)));
    return set_marker(&syntax->section_end, make_span(behind.from + end, behind.to));
}

/* ---- By kind ---- */

static tn_status derive_json(const char *text, const char *two_calls, const rendered_call *f,
                             tn__chat_syntax *syntax) {
    rendered_call first = {0}, second = {0};
    text_span between = {0};
    const char *key;
    json_t *value;
    if (two_calls && find_call(TN__PROBE_NAME, two_calls, &first) && first.json &&
        find_call(TN__PROBE_NAME "2", first.object.to, &second) && second.json)
        between = make_span(first.object.to, second.object.from);
    json_decref(first.json);
    json_decref(second.json);
    json_object_foreach(f->json, key, value) {
        text_span name = make_span(key, key + strlen(key));
        const char *string = json_string_value(value);
        if (string && strcmp(string, TN__PROBE_NAME) == 0)
            TN_TRY(set_marker(&syntax->name_key, name));
        else if (string && strcmp(string, TN__PROBE_ID) == 0)
            TN_TRY(set_marker(&syntax->id_key, name));
        else if ((string && strstr(string, TN__PROBE_KEY)) || json_object_get(value, TN__PROBE_KEY))
            TN_TRY(set_marker(&syntax->arguments_key, name));
    }
    syntax->kind = TN__CHAT_JSON;
    return set_frame(make_span(text, f->object.from), make_span(f->object.to, text + strlen(text)),
                     between.from ? &between : NULL, syntax);
}

static tn_status derive_named(const char *text, const char *two_calls, const rendered_call *f,
                              tn__chat_syntax *syntax) {
    rendered_call first = {0}, second = {0};
    text_span between = {0};
    if (two_calls && find_call(TN__PROBE_NAME, two_calls, &first) && first.arguments.from &&
        find_call(TN__PROBE_NAME "2", first.arguments.to, &second) && second.arguments.from)
        between = make_span(first.arguments.to, second.name.from);
    json_decref(first.json);
    json_decref(second.json);
    syntax->kind = TN__CHAT_NAMED;
    TN_TRY(set_marker(&syntax->name_end, make_span(f->name.to, f->arguments.from)));
    return set_frame(make_span(text, f->name.from), make_span(f->arguments.to, text + strlen(text)),
                     between.from ? &between : NULL, syntax);
}

static tn_status derive_python(const char *text, const rendered_call *f, tn__chat_syntax *syntax) {
    text_span before = trim_span(make_span(text, f->name.from));
    if (span_size(before) && before.to[-1] == '[') before.to--;
    const char *close = strstr(f->name.to, ")]");
    syntax->kind = TN__CHAT_PYTHONIC;
    TN_TRY(set_marker(&syntax->section_begin, before));
    return close ? set_marker(&syntax->section_end, make_span(close + 2, text + strlen(text))) : TN_OK;
}

static tn_status derive_gemma(const char *text, const rendered_call *f, const char *value, tn__chat_syntax *syntax) {
    const char *close = strchr(value, '}');
    syntax->kind = TN__CHAT_GEMMA;
    TN_TRY(set_marker(&syntax->call_begin, make_span(text, f->name.from)));
    /* The quote stands between the colon after the key and the value. */
    const char *colon = value;
    while (colon > f->name.to && colon[-1] != ':') colon--;
    TN_TRY(set_marker(&syntax->quote, make_span(colon, value)));
    const char *end = close ? strchr(close, '>') : NULL; /* one tag: later ones are the template's, not the model's */
    return end ? set_marker(&syntax->call_end, make_span(close + 1, end + 1)) : TN_OK;
}

static const char value_text[] = "tn_probe_value";

/* The name, then each key and value between tags. */
static tn_status derive_tagged(const char *text, const char *two_calls, const char *two_arguments,
                               const rendered_call *f, tn__chat_syntax *syntax) {
    const char *key = strstr(f->name.to, TN__PROBE_KEY), *value = key ? strstr(key, value_text) : NULL;
    if (!value) return TN_OK;
    text_span to_key = make_span(f->name.to, key), to_value = make_span(key + sizeof TN__PROBE_KEY - 1, value);
    text_span behind = make_span(value + sizeof value_text - 1, text + strlen(text));
    if (span_size(to_key) == 1 && *to_key.from == '(') return derive_python(text, f, syntax);
    if (span_size(to_key) == 1 && *to_key.from == '{') return derive_gemma(text, f, value, syntax);
    const char *wide_value = two_arguments ? strstr(two_arguments, value_text) : NULL;
    const char *wide_key = wide_value ? strstr(wide_value, TN__PROBE_KEY "2") : NULL;
    if (!wide_key) return TN_OK;
    text_span next = make_span(wide_value + sizeof value_text - 1, wide_key);
    size_t key_begin = common_end(to_key, next);
    text_span value_end = make_span(next.from, next.to - key_begin);
    if (!key_begin || !span_size(trim_span(value_end))) return TN_OK;
    syntax->kind = TN__CHAT_TAGGED;
    syntax->padded_values =
        span_size(to_value) && to_value.to[-1] == '\n' && span_size(behind) && *behind.from == '\n';
    TN_TRY(set_marker(&syntax->name_end, make_span(to_key.from, to_key.to - key_begin)));
    TN_TRY(set_marker(&syntax->key_begin, make_span(to_key.to - key_begin, to_key.to)));
    TN_TRY(set_marker(&syntax->key_end, to_value));
    TN_TRY(set_marker(&syntax->value_end, value_end));
    value_end = trim_span(value_end);
    behind = trim_span(behind);
    size_t skip = span_size(value_end);
    if (span_size(behind) >= skip && memcmp(behind.from, value_end.from, skip) == 0) behind.from += skip;
    /* Between two calls: from the end of the first call's last value to the name of the second. */
    const char *first = two_calls ? strstr(two_calls, value_text) : NULL;
    const char *second = first ? strstr(first, TN__PROBE_NAME "2") : NULL;
    for (const char *p = second, *stop = second ? strstr(second, TN__PROBE_KEY) : NULL;
         p && stop && (p = strstr(p + 1, TN__PROBE_NAME "2")) && p < stop;)
        second = p;
    text_span between = second ? trim_span(make_span(first + sizeof value_text - 1, second)) : (text_span){0};
    if (second && span_size(between) >= skip && memcmp(between.from, value_end.from, skip) == 0) between.from += skip;
    return set_frame(make_span(text, f->name.from), behind, second ? &between : NULL, syntax);
}

bool tn__chat_plausible(const char *marker, size_t length) {
    return length <= TN__CHAT_MARKER_MAX && (!length || tn__utf8_valid_prefix(marker, length) == length);
}

/* Clears everything but the reasoning markers if any marker is not plausible. */
static void check_markers(tn__chat_syntax *syntax) {
    bool good = true;
#define TN_X(marker) good = good && (!syntax->marker || tn__chat_plausible(syntax->marker, strlen(syntax->marker)));
    TN__CHAT_MARKERS(TN_X)
#undef TN_X
    if (good) return;
    char *begin = syntax->reasoning_begin, *end = syntax->reasoning_end;
    syntax->reasoning_begin = syntax->reasoning_end = NULL;
    tn__chat_syntax_clear(syntax);
    syntax->reasoning_begin = begin;
    syntax->reasoning_end = end;
}

tn_status tn__chat_derive(const char *rendered, const char *two_calls, const char *two_arguments,
                          tn__chat_syntax *syntax) {
    rendered_call f;
    if (!find_call(TN__PROBE_NAME, rendered, &f)) return TN_OK;
    tn_status status = f.json             ? derive_json(rendered, two_calls, &f, syntax)
                       : f.arguments.from ? derive_named(rendered, two_calls, &f, syntax)
                                          : derive_tagged(rendered, two_calls, two_arguments, &f, syntax);
    json_decref(f.json);
    if (status == TN_OK) check_markers(syntax);
    return status;
}

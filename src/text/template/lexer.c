/* Template text to tokens: where tags begin and end, white space around them, and what stands inside. */
#include <utf8proc.h>

#include "text/template/engine.h"

typedef struct lexer {
    jj *j;
    const char *at, *start, *end;
    const char *counted; /* lines are counted up to here */
    jj_tokens *tokens;
} lexer;

/* Line ends become \n, and one at the very end of the template is dropped. */
static jj_string *normalize(jj *j, const char *text, size_t length) {
    jj_buffer b = {0};
    for (size_t i = 0; i < length; i++) {
        if (text[i] != '\r')
            tn__jj_put_char(j, &b, text[i]);
        else if (i + 1 == length || text[i + 1] != '\n')
            tn__jj_put_char(j, &b, '\n');
    }
    if (b.length && b.data[b.length - 1] == '\n') b.length--;
    return tn__jj_string(j, b.data ? b.data : "", b.length);
}

static uint32_t line_at(lexer *x, const char *p) {
    for (; x->counted < p; x->counted++)
        if (*x->counted == '\n') x->j->line++;
    return x->j->line;
}

static bool looking_at(const lexer *x, const char *text) {
    size_t n = strlen(text);
    return (size_t)(x->end - x->at) >= n && memcmp(x->at, text, n) == 0;
}

static size_t space_at(const lexer *x, const char *p) {
    uint32_t code;
    if (p >= x->end) return 0;
    size_t n = tn__jj_decode(p, x->end, &code);
    return tn__jj_space(code) ? n : 0;
}

static void skip_space(lexer *x) {
    for (size_t n; (n = space_at(x, x->at));) x->at += n;
}

static jj_token *push(lexer *x, jj_token_kind kind, jj_value value) {
    jj_tokens *t = x->tokens;
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? t->capacity * 2 : 256;
        t->items = tn__jj_grow(x->j, t->items, t->capacity * sizeof *t->items, capacity * sizeof *t->items);
        t->capacity = capacity;
    }
    tn__jj_charge(x->j, 1);
    if (value.type == JJ_STRING) tn__jj_chars(x->j, value.as.string); /* counted now: a template is shared */
    t->items[t->count] = (jj_token){.kind = kind, .line = line_at(x, x->at), .value = value};
    return &t->items[t->count++];
}

static void push_data(lexer *x, const char *from, const char *to) {
    if (to > from) push(x, JJ_T_DATA, tn__jj_text(x->j, from, (size_t)(to - from)));
}

/* The end of the text before a tag, as the tag's sign and lstrip_blocks leave it. */
static const char *text_end(const lexer *x, const char *from, const char *tag, char sign, bool variable) {
    const char *end = tag;
    if (sign == '-') {
        jj_string whole = {.data = from, .length = (size_t)(tag - from), .chars = SIZE_MAX};
        const jj_string *trimmed = tn__jj_trim(x->j, &whole, NULL, false, true);
        return from + trimmed->length;
    }
    if (sign == '+' || variable) return tag;
    const char *line = from;
    for (const char *p = tag; p > from; p--)
        if (p[-1] == '\n') {
            line = p;
            break;
        }
    bool starts_line = line > from || from == x->start || from[-1] == '\n';
    for (const char *p = line; starts_line && p < tag;) {
        size_t n = space_at(x, p);
        if (!n) return tag;
        p += n;
    }
    return starts_line ? line : end;
}

/* Past the end of a block or comment: `-` swallows white space, `+` nothing, otherwise one line end goes. */
static void after_tag(lexer *x, char sign) {
    if (sign == '-')
        skip_space(x);
    else if (sign != '+' && x->at < x->end && *x->at == '\n')
        x->at++;
}

static char take_sign(lexer *x) {
    if (x->at < x->end && (*x->at == '-' || *x->at == '+')) return *x->at++;
    return 0;
}

/* {% raw %}: true when the tag at hand was one; everything up to {% endraw %} becomes data. */
static bool lex_raw(lexer *x) {
    const char *begin = x->at;
    take_sign(x);
    skip_space(x);
    if (!looking_at(x, "raw")) goto no;
    x->at += 3;
    skip_space(x);
    if (looking_at(x, "-%}")) {
        x->at += 3;
        skip_space(x);
    } else if (looking_at(x, "%}"))
        x->at += 2;
    else
        goto no;
    const char *from = x->at;
    for (const char *p = from; p + 1 < x->end; p++) {
        if (p[0] != '{' || p[1] != '%') continue;
        x->at = p + 2;
        char sign = take_sign(x);
        skip_space(x);
        if (!looking_at(x, "endraw")) continue;
        x->at += 6;
        skip_space(x);
        char close = take_sign(x);
        if (!looking_at(x, "%}")) continue;
        x->at += 2;
        after_tag(x, close);
        const char *resume = x->at;
        x->at = from;
        push_data(x, from, text_end(x, from, p, sign, false));
        x->at = resume;
        return true;
    }
    x->at = x->end;
    tn__jj_fail(x->j, TN_E_SYNTAX, "missing end of raw block");
no:
    x->at = begin;
    return false;
}

static void lex_comment(lexer *x) {
    const char *from = x->at;
    for (const char *p = from; p + 1 < x->end; p++)
        if (p[0] == '#' && p[1] == '}') {
            x->at = p + 2;
            after_tag(x, p > from ? p[-1] : 0);
            return;
        }
    tn__jj_fail(x->j, TN_E_SYNTAX, "missing end of comment");
}

/* ---- Inside a tag ---- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static const char *put_hex(lexer *x, jj_buffer *b, const char *p, const char *end, int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; i++, p++) {
        int digit = p < end ? hex_digit(*p) : -1;
        if (digit < 0) tn__jj_fail(x->j, TN_E_SYNTAX, "truncated \\x, \\u or \\U escape in a string");
        code = code << 4 | (uint32_t)digit;
    }
    if (code > 0x10ffff) tn__jj_fail(x->j, TN_E_SYNTAX, "\\U escape beyond U+10FFFF in a string");
    tn__jj_put_code(x->j, b, code);
    return p;
}

/* Python's escapes; an unknown one keeps its backslash. */
static jj_value unescape(lexer *x, const char *p, const char *end) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    jj_buffer b = {0};
    jj *j = x->j;
    if (!memchr(p, '\\', (size_t)(end - p))) return tn__jj_text(j, p, (size_t)(end - p));
    while (p < end) {
        if (*p != '\\' || p + 1 == end) {
            tn__jj_put_char(j, &b, *p++);
            continue;
        }
        char c = *++p;
        p++;
        const char *known = c ? strchr(from, c) : NULL;
        if (known)
            tn__jj_put_char(j, &b, to[known - from]);
        else if (c == '\n')
            continue;
        else if (c == 'x')
            p = put_hex(x, &b, p, end, 2);
        else if (c == 'u') {
            /* A surrogate pair spelled as two escapes stays two lone surrogates in Python, which cannot be
             * printed; joining them is what the author meant. */
            uint32_t high = 0;
            for (int i = 0; i < 4 && p + i < end && hex_digit(p[i]) >= 0; i++)
                high = high << 4 | (uint32_t)hex_digit(p[i]);
            uint32_t low = 0;
            if (high >= 0xd800 && high < 0xdc00 && end - p >= 10 && p[4] == '\\' && p[5] == 'u')
                for (int i = 6; i < 10 && hex_digit(p[i]) >= 0; i++) low = low << 4 | (uint32_t)hex_digit(p[i]);
            if (low >= 0xdc00 && low < 0xe000) {
                tn__jj_put_code(j, &b, 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
                p += 10;
            } else
                p = put_hex(x, &b, p, end, 4);
        } else if (c == 'U')
            p = put_hex(x, &b, p, end, 8);
        else if (c >= '0' && c <= '7') {
            uint32_t code = (uint32_t)(c - '0');
            for (int i = 0; i < 2 && p < end && *p >= '0' && *p <= '7'; i++) code = code * 8 + (uint32_t)(*p++ - '0');
            tn__jj_put_code(j, &b, code);
        } else {
            tn__jj_put_char(j, &b, '\\');
            tn__jj_put_char(j, &b, c);
        }
    }
    return tn__jj_text(j, b.data ? b.data : "", b.length);
}

static void lex_string(lexer *x) {
    char quote = *x->at;
    const char *from = x->at + 1, *p = from;
    while (p < x->end && *p != quote) p += *p == '\\' && p + 1 < x->end ? 2 : 1;
    if (p >= x->end) tn__jj_fail(x->j, TN_E_SYNTAX, "a string is not closed");
    push(x, JJ_T_STRING, unescape(x, from, p));
    x->at = p + 1;
}

static bool is_digit(const lexer *x, const char *p) { return p < x->end && *p >= '0' && *p <= '9'; }

/* Digits with single underscores between them; returns where they end. */
static const char *digits_end(const lexer *x, const char *p) {
    while (is_digit(x, p) || (p < x->end && *p == '_' && is_digit(x, p - 1) && is_digit(x, p + 1))) p++;
    return p;
}

static void lex_number(lexer *x) {
    const char *from = x->at, *p = digits_end(x, from);
    bool real = false;
    char copy[128];
    size_t n = 0;
    int base = 10;
    if (*from == '0' && p == from + 1 && p < x->end && strchr("xXoObB", *p)) {
        base = *p == 'x' || *p == 'X' ? 16 : *p == 'o' || *p == 'O' ? 8 : 2;
        for (p++; p < x->end && (*p == '_' || (hex_digit(*p) >= 0 && hex_digit(*p) < base)); p++) {}
        from += 2;
    } else if (from == x->start || from[-1] != '.') {
        if (p < x->end && *p == '.' && is_digit(x, p + 1)) {
            real = true;
            p = digits_end(x, p + 1);
        }
        if (p < x->end && (*p == 'e' || *p == 'E')) {
            const char *e = p + 1;
            if (e < x->end && (*e == '+' || *e == '-')) e++;
            if (is_digit(x, e)) {
                real = true;
                p = digits_end(x, e);
            }
        }
    }
    for (const char *q = from; q < p; q++) {
        if (*q == '_') continue;
        if (n + 1 >= sizeof copy) tn__jj_fail(x->j, TN_E_SYNTAX, "a number of more than %zu digits", sizeof copy - 1);
        copy[n++] = *q;
    }
    if (real) {
        double d;
        if (!tn__jj_read_real(copy, n, &d)) tn__jj_fail(x->j, TN_E_SYNTAX, "a malformed number");
        push(x, JJ_T_FLOAT, jj_real(d));
    } else {
        int64_t i = 0;
        for (size_t k = 0; k < n; k++)
            if (__builtin_mul_overflow(i, (int64_t)base, &i) ||
                __builtin_add_overflow(i, (int64_t)hex_digit(copy[k]), &i))
                tn__jj_fail(x->j, TN_E_UNSUPPORTED, "an integer beyond 64 bits");
        if (n == 0) tn__jj_fail(x->j, TN_E_SYNTAX, "a malformed number");
        push(x, JJ_T_INT, jj_int(i));
    }
    x->at = p;
}

static bool name_char(uint32_t code, bool first) {
    if (code < 0x80) {
        bool letter = (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || code == '_';
        return letter || (!first && code >= '0' && code <= '9');
    }
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL: return true;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return !first;
    default: return false;
    }
}

static bool lex_name(lexer *x) {
    const char *p = x->at;
    while (p < x->end) {
        uint32_t code;
        size_t n = tn__jj_decode(p, x->end, &code);
        if (!name_char(code, p == x->at)) break;
        p += n;
    }
    if (p == x->at) return false;
    push(x, JJ_T_NAME, tn__jj_text(x->j, x->at, (size_t)(p - x->at)));
    x->at = p;
    return true;
}

static int lex_operator(lexer *x) {
    static const struct {
        char text[3];
        int op;
    } twos[] = {{"//", JJ_OP_FLOORDIV}, {"**", JJ_OP_POW}, {"==", JJ_OP_EQ},
                {"!=", JJ_OP_NE},       {">=", JJ_OP_GE},  {"<=", JJ_OP_LE}};
    for (size_t i = 0; i < sizeof twos / sizeof twos[0]; i++)
        if (looking_at(x, twos[i].text)) {
            push(x, JJ_T_OPERATOR, jj_none())->op = twos[i].op;
            x->at += 2;
            return twos[i].op;
        }
    char c = *x->at;
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c)) {
        uint32_t code;
        tn__jj_decode(x->at, x->end, &code);
        tn__jj_fail(x->j, TN_E_SYNTAX, "unexpected character U+%04X", code);
    }
    push(x, JJ_T_OPERATOR, jj_none())->op = c;
    x->at++;
    return c;
}

/* From behind {% or {{ to behind the matching end. */
static void lex_inside(lexer *x, bool variable) {
    char brackets[256]; /* what is open, so that }} inside a dict does not end the tag */
    size_t depth = 0;
    const char *close = variable ? "}}" : "%}";
    uint32_t opened = line_at(x, x->at);
    for (;;) {
        skip_space(x);
        if (x->at >= x->end) {
            x->j->line = opened;
            tn__jj_fail(x->j, TN_E_SYNTAX, "the tag is not closed by '%s'", close);
        }
        line_at(x, x->at);
        char c = *x->at;
        if (depth == 0) {
            char sign = x->at + 1 < x->end && (c == '-' || (c == '+' && !variable)) ? c : 0;
            x->at += sign != 0;
            if (looking_at(x, close)) {
                push(x, variable ? JJ_T_VARIABLE_END : JJ_T_BLOCK_END, jj_none());
                x->at += 2;
                if (variable && sign != '-') return;
                after_tag(x, sign);
                return;
            }
            x->at -= sign != 0;
        }
        if (c == '"' || c == '\'')
            lex_string(x);
        else if (c >= '0' && c <= '9')
            lex_number(x);
        else if (!lex_name(x)) {
            int op = lex_operator(x);
            if (op == '(' || op == '[' || op == '{') {
                if (depth == sizeof brackets) tn__jj_fail(x->j, TN_E_LIMIT, "more than %zu open brackets", depth);
                brackets[depth++] = op == '(' ? ')' : op == '[' ? ']' : '}';
            } else if (op == ')' || op == ']' || op == '}') {
                if (depth == 0 || brackets[depth - 1] != op) tn__jj_fail(x->j, TN_E_SYNTAX, "unexpected '%c'", op);
                depth--;
            }
        }
    }
}

void tn__jj_tokenize(jj *j, const char *text, size_t length, jj_tokens *tokens) {
    j->line = 1;
    jj_string *source = normalize(j, text, length);
    lexer x = {.j = j,
               .at = source->data,
               .start = source->data,
               .end = source->data + source->length,
               .counted = source->data,
               .tokens = tokens};
    while (x.at < x.end) {
        const char *from = x.at, *tag = from;
        while (tag + 1 < x.end && !(tag[0] == '{' && (tag[1] == '%' || tag[1] == '{' || tag[1] == '#'))) tag++;
        jj_charge_bytes(j, (size_t)(tag - from));
        if (tag + 1 >= x.end) {
            push_data(&x, from, x.end);
            break;
        }
        char kind = tag[1], sign = tag + 2 < x.end && (tag[2] == '-' || tag[2] == '+') ? tag[2] : 0;
        push_data(&x, from, text_end(&x, from, tag, sign, kind == '{'));
        x.at = tag + 2;
        line_at(&x, x.at);
        if (kind == '#') {
            take_sign(&x);
            lex_comment(&x);
        } else if (kind == '%' && lex_raw(&x)) {
            continue;
        } else {
            push(&x, kind == '%' ? JJ_T_BLOCK_BEGIN : JJ_T_VARIABLE_BEGIN, jj_none());
            take_sign(&x);
            lex_inside(&x, kind == '{');
        }
    }
    x.at = x.end;
    push(&x, JJ_T_END, jj_none());
}

/* Splits a template into tokens: text, tags, white space control, and the tokens inside tags. */
#include <utf8proc.h>

#include "text/template/engine.h"

typedef struct template_lexer {
    jj *j;
    const char *at, *start, *end;
    const char *counted; /* end of the text whose lines are counted */
    jj_tokens *tokens;
} template_lexer;

/* Replaces line ends by \n and removes one at the end of the template. */
static jj_string *normalize_line_ends(jj *j, const char *text, size_t length) {
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

static uint32_t line_at(template_lexer *x, const char *p) {
    for (; x->counted < p; x->counted++)
        if (*x->counted == '\n') x->j->line++;
    return x->j->line;
}

static bool looking_at(const template_lexer *x, const char *text) {
    size_t n = strlen(text);
    return (size_t)(x->end - x->at) >= n && memcmp(x->at, text, n) == 0;
}

static size_t white_space_at(const template_lexer *x, const char *p) {
    uint32_t code;
    if (p >= x->end) return 0;
    size_t n = tn__jj_decode(p, x->end, &code);
    return tn__jj_space(code) ? n : 0;
}

static void skip_white_space(template_lexer *x) {
    for (size_t n; (n = white_space_at(x, x->at));) x->at += n;
}

static jj_token *push_token(template_lexer *x, jj_token_kind kind, jj_value value) {
    jj_tokens *t = x->tokens;
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? t->capacity * 2 : 256;
        t->items = tn__jj_grow(x->j, t->items, t->capacity * sizeof *t->items, capacity * sizeof *t->items);
        t->capacity = capacity;
    }
    tn__jj_charge(x->j, 1);
    if (value.type == JJ_STRING)
        tn__jj_chars(x->j, value.as.string); /* counted while parsing, because threads share the tree */
    t->items[t->count] = (jj_token){.kind = kind, .line = line_at(x, x->at), .value = value};
    return &t->items[t->count++];
}

static void push_data(template_lexer *x, const char *from, const char *to) {
    if (to > from) push_token(x, JJ_T_DATA, tn__jj_text(x->j, from, (size_t)(to - from)));
}

/* The end of the text before a tag after the tag's sign and lstrip_blocks are applied. */
static const char *text_end(const template_lexer *x, const char *from, const char *tag, char sign, bool variable) {
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
        size_t n = white_space_at(x, p);
        if (!n) return tag;
        p += n;
    }
    return starts_line ? line : end;
}

/* After a block or comment `-` removes white space, `+` nothing, and no sign one line end. */
static void after_tag(template_lexer *x, char sign) {
    if (sign == '-')
        skip_white_space(x);
    else if (sign != '+' && x->at < x->end && *x->at == '\n')
        x->at++;
}

static char take_sign(template_lexer *x) {
    if (x->at < x->end && (*x->at == '-' || *x->at == '+')) return *x->at++;
    return 0;
}

/* {% raw %}: returns whether the current tag is one; then the text up to {% endraw %} is data. */
static bool lex_raw(template_lexer *x) {
    const char *begin = x->at;
    take_sign(x);
    skip_white_space(x);
    if (!looking_at(x, "raw")) goto no;
    x->at += 3;
    skip_white_space(x);
    if (looking_at(x, "-%}")) {
        x->at += 3;
        skip_white_space(x);
    } else if (looking_at(x, "%}"))
        x->at += 2;
    else
        goto no;
    const char *from = x->at;
    for (const char *p = from; p + 1 < x->end; p++) {
        if (p[0] != '{' || p[1] != '%') continue;
        x->at = p + 2;
        char sign = take_sign(x);
        skip_white_space(x);
        if (!looking_at(x, "endraw")) continue;
        x->at += 6;
        skip_white_space(x);
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

static void lex_comment(template_lexer *x) {
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

static const char *put_hex(template_lexer *x, jj_buffer *b, const char *p, const char *end, int digits) {
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
static jj_value unescape(template_lexer *x, const char *p, const char *end) {
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
            /* A surrogate pair written as two escapes is two lone surrogates in Python, which cannot be printed. The
             * author means the character. */
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

static void lex_string(template_lexer *x) {
    char quote = *x->at;
    const char *from = x->at + 1, *p = from;
    while (p < x->end && *p != quote) p += *p == '\\' && p + 1 < x->end ? 2 : 1;
    if (p >= x->end) tn__jj_fail(x->j, TN_E_SYNTAX, "a string is not closed");
    push_token(x, JJ_T_STRING, unescape(x, from, p));
    x->at = p + 1;
}

static bool is_digit_at(const template_lexer *x, const char *p) { return p < x->end && *p >= '0' && *p <= '9'; }

/* The end of digits with single underscores between them. */
static const char *digits_end(const template_lexer *x, const char *p) {
    while (is_digit_at(x, p) || (p < x->end && *p == '_' && is_digit_at(x, p - 1) && is_digit_at(x, p + 1))) p++;
    return p;
}

static void lex_number(template_lexer *x) {
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
        if (p < x->end && *p == '.' && is_digit_at(x, p + 1)) {
            real = true;
            p = digits_end(x, p + 1);
        }
        if (p < x->end && (*p == 'e' || *p == 'E')) {
            const char *e = p + 1;
            if (e < x->end && (*e == '+' || *e == '-')) e++;
            if (is_digit_at(x, e)) {
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
        push_token(x, JJ_T_FLOAT, jj_real(d));
    } else {
        int64_t i = 0;
        for (size_t k = 0; k < n; k++)
            if (__builtin_mul_overflow(i, (int64_t)base, &i) ||
                __builtin_add_overflow(i, (int64_t)hex_digit(copy[k]), &i))
                tn__jj_fail(x->j, TN_E_UNSUPPORTED, "an integer beyond 64 bits");
        if (n == 0) tn__jj_fail(x->j, TN_E_SYNTAX, "a malformed number");
        push_token(x, JJ_T_INT, jj_int(i));
    }
    x->at = p;
}

static bool is_template_name_char(uint32_t code, bool first) {
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

static bool lex_name(template_lexer *x) {
    const char *p = x->at;
    while (p < x->end) {
        uint32_t code;
        size_t n = tn__jj_decode(p, x->end, &code);
        if (!is_template_name_char(code, p == x->at)) break;
        p += n;
    }
    if (p == x->at) return false;
    push_token(x, JJ_T_NAME, tn__jj_text(x->j, x->at, (size_t)(p - x->at)));
    x->at = p;
    return true;
}

static int lex_operator(template_lexer *x) {
    static const struct {
        char text[3];
        int op;
    } twos[] = {{"//", JJ_OP_FLOORDIV}, {"**", JJ_OP_POW}, {"==", JJ_OP_EQ},
                {"!=", JJ_OP_NE},       {">=", JJ_OP_GE},  {"<=", JJ_OP_LE}};
    for (size_t i = 0; i < sizeof twos / sizeof twos[0]; i++)
        if (looking_at(x, twos[i].text)) {
            push_token(x, JJ_T_OPERATOR, jj_none())->op = twos[i].op;
            x->at += 2;
            return twos[i].op;
        }
    char c = *x->at;
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c)) {
        uint32_t code;
        tn__jj_decode(x->at, x->end, &code);
        tn__jj_fail(x->j, TN_E_SYNTAX, "unexpected character U+%04X", code);
    }
    push_token(x, JJ_T_OPERATOR, jj_none())->op = c;
    x->at++;
    return c;
}

/* The tokens after {% or {{ up to the matching end, which is consumed. */
static void lex_inside(template_lexer *x, bool variable) {
    char brackets[256]; /* open brackets, so that }} inside a dict does not end the tag */
    size_t depth = 0;
    const char *close = variable ? "}}" : "%}";
    uint32_t opened = line_at(x, x->at);
    for (;;) {
        skip_white_space(x);
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
                push_token(x, variable ? JJ_T_VARIABLE_END : JJ_T_BLOCK_END, jj_none());
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
    jj_string *source = normalize_line_ends(j, text, length);
    template_lexer x = {.j = j,
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
            push_token(&x, kind == '%' ? JJ_T_BLOCK_BEGIN : JJ_T_VARIABLE_BEGIN, jj_none());
            take_sign(&x);
            lex_inside(&x, kind == '{');
        }
    }
    x.at = x.end;
    push_token(&x, JJ_T_END, jj_none());
}

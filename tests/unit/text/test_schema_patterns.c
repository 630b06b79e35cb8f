/* JSON schema patterns against PCRE2: random regular expressions, with texts that they match and texts next to those,
 * and every escape and class against all characters at the edges of Unicode's ranges. */
#include "support.h"
#include "tenon/grammar.h"

#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 6, CHARACTERS = 120, TEXT = 6000 };

/* ECMA-262: white space and line terminators. */
#define SPACES                                                                                                       \
    "\\x09-\\x0d\\x20\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{feff}"
#define NO_LINE_END "[^\\n\\r\\x{2028}\\x{2029}]"

/* An expression as a schema has it and as PCRE2 has it, and texts that it matches. */
typedef struct expression {
    char ecma[TEXT], pcre[TEXT];
    uint32_t samples[SAMPLES][CHARACTERS];
    int lengths[SAMPLES];
} expression;

static void append(expression *e, const char *ecma, const char *pcre) {
    assert_true(strlen(e->ecma) + strlen(ecma) < TEXT && strlen(e->pcre) + strlen(pcre) < TEXT);
    strcat(e->ecma, ecma);
    strcat(e->pcre, pcre);
}

/* Atoms that match one character, with some that they match. */
static const struct {
    const char *ecma, *pcre;
    uint32_t matches[4];
} atoms[] = {
    {"a", "a", {'a'}},
    {"é", "\\x{e9}", {0xe9}},
    {"\xf0\x9f\x98\x80", "\\x{1f600}", {0x1f600}},
    {"\"", "\"", {'"'}},
    {"\\\\", "\\\\", {'\\'}},
    {"\\/", "/", {'/'}},
    {"\\.", "\\.", {'.'}},
    {"\\-", "-", {'-'}},
    {"\\n", "\\n", {'\n'}},
    {"\\r", "\\r", {'\r'}},
    {"\\t", "\\t", {'\t'}},
    {"\\f", "\\f", {'\f'}},
    {"\\v", "\\x0b", {0x0b}},
    {"\\x41", "A", {'A'}},
    {"\\x7a", "z", {'z'}},
    {"\\xaF", "\\x{af}", {0xaf}},
    {"\\xFa", "\\x{fa}", {0xfa}},
    {"\\u09f0", "\\x{9f0}", {0x9f0}},
    {"\\uABCD", "\\x{abcd}", {0xabcd}},
    {"\\ud7ff", "\\x{d7ff}", {0xd7ff}},
    {"\\ue000", "\\x{e000}", {0xe000}},
    {".", NO_LINE_END, {'a', '"', 0x2027, 0x10ffff}},
    {"\\d", "[0-9]", {'0', '9', '5'}},
    {"\\D", "[^0-9]", {'a', '/', ':', 0x660}},
    {"\\w", "[0-9A-Za-z_]", {'_', 'A', 'z', '9'}},
    {"\\W", "[^0-9A-Za-z_]", {'@', '[', 0xe9, '"'}},
    {"\\s", "[" SPACES "]", {' ', '\t', 0x3000, 0xfeff}},
    {"\\S", "[^" SPACES "]", {'a', 0x200b, '\\', 0x10ffff}},
    {"[abc]", "[abc]", {'a', 'b', 'c'}},
    {"[^abc]", "[^abc]", {'d', '`', 'A', 0x10000}},
    {"[a-]", "[a\\-]", {'a', '-'}},
    {"[-a]", "[a\\-]", {'a', '-'}},
    {"[a\\-z]", "[az\\-]", {'a', '-', 'z'}},
    {"[\\]\\[\\^]", "[\\]\\[\\^]", {']', '[', '^'}},
    {"[\\x30-\\u0039é-\xf0\x9f\x98\x80]", "[0-9\\x{e9}-\\x{1f600}]", {'0', '9', 0xe9, 0x1f600}},
    {"[\\d_x]", "[0-9_x]", {'7', '_', 'x'}},
    {"[^\\w\\s]", "[^0-9A-Za-z_" SPACES "]", {'+', 0xe9, '"', '\\'}},
    {"[\\D]", "[^0-9]", {'a', 0x10ffff}},
    {"[\\W5]", "[^0-46-9A-Za-z_]", {'5', '!'}},
    {"[!-~]", "[!-~]", {'!', '"', '\\', '~'}},
    {"[\\b]", "[\\x08]", {'\b'}},
    {"[\\t-\\r]",
     "[\\t\\n\\f\\r]",
     {'\t', '\n', '\r', '\f'}}, /* other control characters are not generated in classes */
    {"[\\u0080-\\ud7ff]", "[\\x{80}-\\x{d7ff}]", {0x80, 0xd7ff, 0x7ff, 0x800}},
    {"[\\ue000-\xf4\x8f\xbf\xbf]", "[\\x{e000}-\\x{10ffff}]", {0xe000, 0xffff, 0x10000, 0x10ffff}},
};
static const uint32_t edges[] = {'\b',   '\t',   '\n',   0x0b,   '\f',   '\r',    ' ',     '!',     '"',     '#',
                                 '$',    '+',    '-',    '.',    '/',    '0',     '1',     '9',     ':',     '@',
                                 'A',    'Z',    '[',    '\\',   ']',    '^',     '_',     '`',     'a',     'b',
                                 'c',    'd',    'z',    '{',    '~',    0x80,    0x9f,    0xa0,    0xa1,    0xe8,
                                 0xe9,   0xea,   0xaf,   0xfa,   0x660,  0x7ff,   0x800,   0x9f0,   0xabcd,  0x167f,
                                 0x1680, 0x1681, 0x1fff, 0x2000, 0x200a, 0x200b,  0x2027,  0x2028,  0x2029,  0x202a,
                                 0x202e, 0x202f, 0x2030, 0x205e, 0x205f, 0x2060,  0x2fff,  0x3000,  0x3001,  0xd7ff,
                                 0xe000, 0xfefe, 0xfeff, 0xff00, 0xffff, 0x10000, 0x1f600, 0x1f601, 0x10ffff};
enum { N_ATOMS = sizeof atoms / sizeof *atoms, N_EDGES = sizeof edges / sizeof *edges };

static void append_atom(expression *e, rng *r) {
    size_t i = rng_below(r, N_ATOMS);
    while (atoms[i].matches[0] == 0x0b)
        i = rng_below(r, N_ATOMS); /* classes generate no \\v, which has no short escape in JSON */
    append(e, atoms[i].ecma, atoms[i].pcre);
    size_t known = 1;
    while (known < 4 && atoms[i].matches[known]) known++;
    for (int s = 0; s < SAMPLES; s++)
        if (e->lengths[s] < CHARACTERS) e->samples[s][e->lengths[s]++] = atoms[i].matches[rng_below(r, known)];
}

static void random_alternatives(expression *out, rng *r, int depth, bool whole);

/* An atom or a group, perhaps repeated. */
static void append_piece(expression *e, rng *r, int depth) {
    expression *part = calloc(1, sizeof *part);
    if (depth < 3 && rng_below(r, 4) == 0) {
        static const char *opens[] = {"(", "(?:", "(?<name>"};
        append(part, opens[rng_below(r, 3)], "(?:");
        random_alternatives(part, r, depth + 1, false);
        append(part, ")", ")");
    } else {
        append_atom(part, r);
    }
    int least = 1, most = 1;
    char repeat[32] = "";
    switch (rng_below(r, 9)) {
    case 0: least = 0, most = 3, strcpy(repeat, "*"); break;
    case 1: least = 1, most = 3, strcpy(repeat, "+"); break;
    case 2: least = 0, most = 1, strcpy(repeat, "?"); break;
    case 3: least = most = (int)rng_below(r, 4), snprintf(repeat, sizeof repeat, "{%d}", least); break;
    case 4:
        least = (int)rng_below(r, 3), most = least + (int)rng_below(r, 3),
        snprintf(repeat, sizeof repeat, "{%d,%d}", least, most);
        break;
    case 5: least = (int)rng_below(r, 3), most = least + 2, snprintf(repeat, sizeof repeat, "{%d,}", least); break;
    default: break;
    }
    if (*repeat && rng_below(r, 4) == 0) strcat(repeat, "?"); /* lazy */
    append(e, part->ecma, part->pcre);
    append(e, repeat, repeat);
    for (int s = 0; s < SAMPLES; s++)
        for (int times = least + (int)rng_below(r, (uint64_t)(most - least + 1)); times > 0; times--)
            for (int i = 0; i < part->lengths[s] && e->lengths[s] < CHARACTERS; i++)
                e->samples[s][e->lengths[s]++] = part->samples[s][i];
    free(part);
}

static void random_alternatives(expression *out, rng *r, int depth, bool whole) {
    const int n = 1 + (rng_below(r, 3) == 0) + (rng_below(r, 6) == 0);
    expression *each = calloc((size_t)n, sizeof *each);
    for (int a = 0; a < n; a++) {
        if (a) append(out, "|", "|");
        const bool begin = whole && rng_below(r, 2), end = whole && rng_below(r, 2);
        for (int i = (int)rng_below(r, 4); i > 0; i--) append_piece(&each[a], r, depth);
        append(out, begin ? "^" : "", begin ? "^" : "");
        append(out, each[a].ecma, each[a].pcre);
        append(out, end ? "$" : "", end ? "$" : "");
    }
    for (int s = 0; s < SAMPLES; s++) {
        const expression *from = &each[rng_below(r, (uint64_t)n)];
        for (int i = 0; i < from->lengths[s] && out->lengths[s] < CHARACTERS; i++)
            out->samples[s][out->lengths[s]++] = from->samples[s][i];
    }
    free(each);
}

static size_t put_utf8(char *to, uint32_t c) {
    if (c < 0x80) return to[0] = (char)c, 1;
    if (c < 0x800) return to[0] = (char)(0xc0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return to[0] = (char)(0xe0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)), to[2] = (char)(0x80 | (c & 63)),
               3;
    return to[0] = (char)(0xf0 | c >> 18), to[1] = (char)(0x80 | (c >> 12 & 63)),
           to[2] = (char)(0x80 | (c >> 6 & 63)), to[3] = (char)(0x80 | (c & 63)), 4;
}

typedef struct pair {
    const char *pattern;
    pcre2_code *code;
    pcre2_match_data *match;
    tn_grammar *grammar;
} pair;

static bool open_pair(pair *p, const char *ecma, const char *pcre) {
    int error;
    size_t at;
    *p = (pair){.pattern = ecma,
                .code = pcre2_compile((PCRE2_SPTR)pcre, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY,
                                      &error, &at, NULL)};
    if (!p->code) fail_msg("PCRE2 does not take %s: error %d at %zu", pcre, error, at);
    p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
    json_t *schema = json_pack("{s:s, s:s}", "type", "string", "pattern", ecma);
    char *text = json_dumps(schema, 0), *gbnf = NULL;
    tn_status status = tn_schema_to_grammar(text, &gbnf);
    if (status != TN_OK) fail_msg("%s: %s", ecma, tn_error());
    status = tn_grammar_new(gbnf, NULL, &p->grammar);
    if (status != TN_OK && status != TN_E_LIMIT) fail_msg("%s: %s", ecma, tn_error());
    tn_free(gbnf);
    free(text);
    json_decref(schema);
    return status == TN_OK;
}

static void close_pair(pair *p) {
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    tn_grammar_free(p->grammar);
}

/* Whether the text matches, after both have said so. */
static bool check_text(const pair *p, const uint32_t *characters, int n) {
    char text[4 * CHARACTERS + 8];
    size_t size = 0;
    for (int i = 0; i < n; i++) size += put_utf8(text + size, characters[i]);
    const bool expected = pcre2_match(p->code, (PCRE2_SPTR)text, size, 0, 0, p->match, NULL) >= 0;
    json_t *string = json_stringn(text, size);
    char *line = json_dumps(string, JSON_ENCODE_ANY);
    for (char *tab = line; (tab = strstr(tab, "\\u000B"));) tab[5] = 'b'; /* the grammar writes small digits */
    tn_grammar_state *s;
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = p->grammar}, &s));
    const bool accepted = tn_grammar_accept_bytes(s, line, strlen(line)) == TN_OK && tn_grammar_is_accepting(s);
    if (accepted != expected)
        fail_msg("%s should be %s by /%s/", line, expected ? "accepted" : "refused", p->pattern);
    tn_grammar_state_free(s);
    free(line);
    json_decref(string);
    return expected;
}

static void every_class_has_its_characters(void **state) {
    (void)state;
    for (size_t i = 0; i < N_ATOMS; i++) {
        pair p;
        char ecma[200], pcre[400];
        snprintf(ecma, sizeof ecma, "^%s$", atoms[i].ecma);
        snprintf(pcre, sizeof pcre, "^%s$", atoms[i].pcre);
        assert_true(open_pair(&p, ecma, pcre));
        for (size_t k = 0; k < 4 && atoms[i].matches[k]; k++) assert_true(check_text(&p, &atoms[i].matches[k], 1));
        for (size_t k = 0; k < N_EDGES; k++)
            if (edges[k] != 0x0b || strcmp(atoms[i].ecma, "\\v") == 0) (void)check_text(&p, &edges[k], 1);
        close_pair(&p);
    }
}

static void random_patterns_match_the_same_texts(void **state) {
    (void)state;
    rng r = {20261};
    const int rounds = getenv("TENON_LONG") ? 5000 : 250;
    int matched = 0, refused = 0;
    expression *e = malloc(sizeof *e);
    for (int round = 0; round < rounds; round++) {
        memset(e, 0, sizeof *e);
        random_alternatives(e, &r, 0, true);
        pair p;
        if (!open_pair(&p, e->ecma, e->pcre)) {
            close_pair(&p);
            continue;
        }
        for (int s = 0; s < SAMPLES; s++) {
            uint32_t text[CHARACTERS + 2];
            const int n = e->lengths[s] < 40 ? e->lengths[s] : 40; /* what is cut may match or not */
            memcpy(text, e->samples[s], (size_t)n * sizeof *text);
            bool fits = check_text(&p, text, n);
            if (!fits && n == e->lengths[s]) fail_msg("PCRE2 refuses a sample of /%s/", e->pcre);
            for (int change = 0; change < 5; change++) {
                uint32_t other[CHARACTERS + 2];
                int m = n, at = (int)rng_below(&r, (uint64_t)n + 1);
                uint32_t c = edges[rng_below(&r, N_EDGES)];
                if (c == 0x0b) c = 'a';
                memcpy(other, text, (size_t)n * sizeof *other);
                if (change % 3 == 0 && n > 0) {
                    at %= n;
                    memmove(other + at, other + at + 1, (size_t)(--m - at) * sizeof *other);
                } else if (change % 3 == 1 || n == 0) {
                    memmove(other + at + 1, other + at, (size_t)(m++ - at) * sizeof *other);
                    other[at] = c;
                } else {
                    other[at % n] = c;
                }
                fits = check_text(&p, other, m);
                matched += fits;
                refused += !fits;
            }
        }
        close_pair(&p);
    }
    free(e);
    assert_true(matched > rounds && refused > rounds); /* both happen often */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class_has_its_characters),
        cmocka_unit_test(random_patterns_match_the_same_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

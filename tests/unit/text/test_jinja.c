/* The template engine: output compared with jinja2's, limits, hostile templates, lack of memory. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support.h"
#include "text/template/jinja.h"

/* 2026-11-15 12:00:00, a Sunday. */
static const struct tm noon = {.tm_year = 126, .tm_mon = 10, .tm_mday = 15, .tm_hour = 12, .tm_yday = 318};

static tn_status render_text(const char *text, size_t length, const json_t *variables, const tn__jinja_params *params,
                             char **out, size_t *out_length) {
    tn__jinja *template;
    *out = NULL;
    TN_TRY(tn__jinja_parse(text, length, params ? &params->limits : NULL, &template));
    tn_status status = tn__jinja_render(template, variables, params, out, out_length);
    tn__jinja_free(template);
    return status;
}

static tn_status render(const char *text, const char *variables, const tn__jinja_params *params, char **out) {
    json_error_t error;
    json_t *json = variables ? json_loads(variables, 0, &error) : NULL;
    if (variables && !json) fail_msg("bad variables: %s", error.text);
    tn_status status = render_text(text, strlen(text), json, params, out, NULL);
    json_decref(json);
    return status;
}

static void check(const char *text, const char *variables, const char *expected) {
    char *out;
    tn_status status = render(text, variables, NULL, &out);
    if (status != TN_OK) fail_msg("%s: %s", text, tn_error());
    assert_string_equal(out, expected);
    tn_free(out);
}

/* ---- The language ---- */

/* The next part of tests/data/jinja_cases.txt: the second word of its marker, and its bytes. */
static bool next_part(char **at, char **name, char **text, size_t *length) {
    char *line = *at;
    if (strncmp(line, "=== ", 4) != 0 && strncmp(line, "--- ", 4) != 0) return false;
    *name = line + 4;
    *text = strchr(line, '\n') + 1;
    (*text)[-1] = '\0';
    char *end = *text;
    if (strncmp(end, "=== ", 4) == 0 || strncmp(end, "--- ", 4) == 0 || !*end) {
        *length = 0;
        *at = end;
        return true;
    }
    while (!(end[0] == '\n' && (strncmp(end + 1, "=== ", 4) == 0 || strncmp(end + 1, "--- ", 4) == 0))) end++;
    *length = (size_t)(end - *text);
    *at = end + 1;
    return true;
}

static void templates_render_as_in_jinja2(void **state) {
    (void)state;
    char *file = read_file(TENON_SOURCE_DIR "/tests/data/jinja_cases.txt", NULL), *name, *text;
    size_t length;
    assert_non_null(file);
    char *at = strstr(file, "=== variables");
    assert_true(next_part(&at, &name, &text, &length));
    json_error_t error;
    json_t *variables = json_loadb(text, length, 0, &error);
    assert_non_null(variables);
    tn__jinja_params params = {.now = &noon};
    int cases = 0, wrong = 0;
    while (next_part(&at, &name, &text, &length) && strcmp(name, "template") == 0) {
        char *expected, *out;
        size_t expected_length, out_length = 0;
        assert_true(next_part(&at, &name, &expected, &expected_length));
        bool refused = strcmp(name, "refused") == 0;
        tn_error_clear();
        tn_status status = render_text(text, length, variables, &params, &out, &out_length);
        bool right = refused
                         ? status != TN_OK && strstr(tn_error(), "template line ")
                         : status == TN_OK && out_length == expected_length && memcmp(out, expected, out_length) == 0;
        if (!right) {
            print_error("%.*s\n  expected: %.*s\n  got: %s\n", (int)length, text, refused ? 7 : (int)expected_length,
                        refused ? "refusal" : expected, status == TN_OK ? out : tn_error());
            wrong++;
        }
        tn_free(out);
        cases++;
    }
    json_decref(variables);
    free(file);
    assert_true(cases > 150);
    assert_int_equal(wrong, 0);
}

static void extensions_beyond_jinja2(void **state) {
    (void)state;
    check("{% generation %}{% set a = 1 %}{{ a }}{% endgeneration %}{{ a is defined }}", NULL, "1False");
    check("{{ ('{\"a\": [1, 2.0, null, \"x\"]}'|from_json).a }}", NULL, "[1, 2.0, None, 'x']");
    check("{{ '\\ud83d\\ude00' }}", NULL, "\xf0\x9f\x98\x80");
    check("{{ [1, 2, 3]|random in [1, 2, 3] }}", NULL, "True");
}

static void errors_name_the_line(void **state) {
    (void)state;
    char *out;
    const struct {
        const char *text, *message;
        tn_status status;
    } cases[] = {
        {"a\nb\n{{ missing.x }}", "template line 3: 'missing' is undefined", TN_E_INVALID},
        {"{% if x %}\n\n{{ raise_exception('no ' ~ 1) }}{% endif %}", "template line 3: no 1", TN_E_INVALID},
        {"\n{% include 'x' %}", "template line 2: 'include' is not supported", TN_E_UNSUPPORTED},
        {"\n{{ 'a' + }}", "template line 2: expected an expression", TN_E_SYNTAX},
        {"{% if a %}\nx", "template line 2: expected 'elif', got the end of the template", TN_E_SYNTAX},
        {"\n\n{{ 'x'|nope }}", "template line 3: no filter named 'nope'", TN_E_UNSUPPORTED},
        {"\n\n{{ 9223372036854775807 + 1 }}", "template line 3: an integer result beyond 64 bits", TN_E_UNSUPPORTED},
        {"{{ l.append(2) }}", "template line 1: access to attribute 'append'", TN_E_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_fails(cases[i].status, render(cases[i].text, "{\"x\": 1, \"l\": []}", NULL, &out));
        assert_null(out);
        if (!strstr(tn_error(), cases[i].message)) fail_msg("%s: %s", cases[i].text, tn_error());
    }
}

static void mutation_needs_permission(void **state) {
    (void)state;
    const char *text =
        "{% set _ = l.append(4) %}{% set _ = l.insert(0, 9) %}{{ l.pop() }}{% set _ = d.update({'b': 2}, c=3) %}"
        "{{ d.pop('a') }}{{ d.setdefault('z', 7) }}{% set _ = l.extend([1, 2]) %}{% set _ = l.sort() %}"
        "{% set _ = l.reverse() %}{% set _ = l.remove(2) %}{{ l }}{{ d }}{{ d.popitem() }}";
    char *out;
    tn__jinja_params params = {.allow_mutation = true};
    assert_ok(render(text, "{\"l\": [1], \"d\": {\"a\": 0}}", &params, &out));
    assert_string_equal(out, "407[9, 1, 1]{'b': 2, 'c': 3, 'z': 7}('z', 7)");
    tn_free(out);
    assert_fails(TN_E_INVALID, render(text, "{\"l\": [1], \"d\": {\"a\": 0}}", NULL, &out));
    /* A list that grows during its iteration ends at the limit of steps, a list that contains itself at the depth. */
    assert_fails(TN_E_LIMIT,
                 render("{% for x in l %}{% do l.append(1) %}{% endfor %}", "{\"l\": [1]}", &params, &out));
    assert_fails(TN_E_LIMIT, render("{% do l.append(l) %}{{ l }}", "{\"l\": [1]}", &params, &out));
    assert_fails(TN_E_LIMIT, render("{% do l.append(l) %}{{ l|tojson }}", "{\"l\": [1]}", &params, &out));
}

/* As jinja2 3.1.6 renders them in its mutable sandbox. Dicts of up to 8 entries are searched in turn, larger ones by
 * hash. */
static void mutation_works_as_in_jinja2(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"{% set l = [3, 1, 2, 1] %}{{ l.append(5) }}{{ l }}", "None[3, 1, 2, 1, 5]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.insert(1, 9) }}{{ l }}", "None[3, 9, 1, 2, 1]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.insert(-1, 9) }}{{ l }}", "None[3, 1, 2, 9, 1]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.insert(99, 9) }}{{ l }}", "None[3, 1, 2, 1, 9]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.insert(-99, 9) }}{{ l }}", "None[9, 3, 1, 2, 1]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.pop() }}{{ l }}", "1[3, 1, 2]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.pop(0) }}{{ l }}", "3[1, 2, 1]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.pop(-2) }}{{ l }}", "2[3, 1, 1]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.remove(1) }}{{ l }}", "None[3, 2, 1]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.extend((7, 8)) }}{{ l }}", "None[3, 1, 2, 1, 7, 8]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.extend('ab') }}{{ l }}", "None[3, 1, 2, 1, 'a', 'b']"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.sort() }}{{ l }}", "None[1, 1, 2, 3]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.sort(reverse=true) }}{{ l }}", "None[3, 2, 1, 1]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.reverse() }}{{ l }}", "None[1, 2, 1, 3]"},
        {"{% set l = [3, 1, 2, 1] %}{{ l.clear() }}{{ l }}", "None[]"},
        {"{% set l = [3, 1, 2, 1] %}{% set m = l.copy() %}{% do m.append(0) %}{{ l }}{{ m }}",
         "[3, 1, 2, 1][3, 1, 2, 1, 0]"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.pop('a') }}{{ d }}", "1{'b': 2}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.pop('z', 7) }}{{ d }}", "7{'a': 1, 'b': 2}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.popitem() }}{{ d }}", "('b', 2){'a': 1}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.setdefault('a', 9) }}{{ d }}", "1{'a': 1, 'b': 2}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.setdefault('z', 9) }}{{ d }}", "9{'a': 1, 'b': 2, 'z': 9}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.setdefault('z') }}{{ d }}", "None{'a': 1, 'b': 2, 'z': None}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.update({'a': 5, 'c': 6}) }}{{ d }}", "None{'a': 5, 'b': 2, 'c': 6}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.update(a=7, e=8) }}{{ d }}", "None{'a': 7, 'b': 2, 'e': 8}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.update([['x', 1]]) }}{{ d }}", "None{'a': 1, 'b': 2, 'x': 1}"},
        {"{% set d = {'a': 1, 'b': 2} %}{{ d.clear() }}{{ d }}{{ d.update({'q': 1}) }}{{ d }}", "None{}None{'q': 1}"},
        {"{% set d = {'a': 1, 'b': 2} %}{% set c = d.copy() %}{% do c.update({'z': 0}) %}{{ d }}{{ c }}",
         "{'a': 1, 'b': 2}{'a': 1, 'b': 2, 'z': 0}"},
        {"{% set w = {} %}{% for i in range(40) %}{% do w.update({i: i * i}) %}{% endfor %}{{ w.pop(3) }}{{ "
         "w.pop(30) }}{{ w[29] }}{{ w[31] }}{{ 3 in w }}{{ w|length }}{{ w.keys()|list|last }}",
         "9900841961False3839"},
        {"{% set w = {} %}{% for i in range(40) %}{% do w.update({i: i * i}) %}{% endfor %}{% for i in range(35) "
         "%}{% do w.pop(i) %}{% endfor %}{{ w }}{{ w.get(2) }}{{ w[39] }}",
         "{35: 1225, 36: 1296, 37: 1369, 38: 1444, 39: 1521}None1521"},
        {"{% set w = {} %}{% for i in range(40) %}{% do w.update({i: i * i}) %}{% endfor %}{% for i in range(0, 40, "
         "2) %}{% do w.pop(i) %}{% endfor %}{% for i in range(40) %}{{ w.get(i, '-') }} {% endfor %}{% do "
         "w.update({4: 'x'}) %}{{ w[4] }}{{ w|length }}",
         "- 1 - 9 - 25 - 49 - 81 - 121 - 169 - 225 - 289 - 361 - 441 - 529 - 625 - 729 - 841 - 961 - 1089 - 1225 - "
         "1369 - 1521 x21"},
        {"{% set w = {} %}{% for i in range(40) %}{% do w.update({i: i * i}) %}{% endfor %}{% for i in range(12) "
         "%}{% do w.popitem() %}{% endfor %}{{ w.keys()|list|last }}{{ w.get(30) }}{{ w[27] }}{{ w|length }}",
         "27None72928"},
    };
    static const char *const refused[] = {
        "{{ [].pop() }}", "{{ [1].pop(3) }}", "{{ [1].remove(2) }}", "{{ {}.popitem() }}", "{{ {}.pop('a') }}",
    };
    tn__jinja_params params = {.allow_mutation = true};
    char *out;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tn_status status = render(rows[i][0], NULL, &params, &out);
        if (status != TN_OK) fail_msg("%s: %s", rows[i][0], tn_error());
        if (strcmp(out, rows[i][1]) != 0) fail_msg("%s: %s instead of %s", rows[i][0], out, rows[i][1]);
        tn_free(out);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_fails(TN_E_INVALID, render(refused[i], NULL, &params, &out));
}

static void clock_is_given_or_from_the_environment(void **state) {
    (void)state;
    char *out;
    setenv("TENON_NOW", "2026-11-15T12:34:56", 1);
    check("{{ strftime_now('%Y-%m-%d %H:%M:%S %a') }}", NULL, "2026-11-15 12:34:56 Sun");
    struct tm other = noon;
    other.tm_hour = 7;
    assert_ok(render("{{ strftime_now('%H') }}", NULL, &(tn__jinja_params){.now = &other}, &out));
    assert_string_equal(out, "07");
    tn_free(out);
    setenv("TENON_NOW", "yesterday", 1);
    assert_fails(TN_E_INVALID, render("x", NULL, NULL, &out));
    unsetenv("TENON_NOW");
    assert_ok(render("{{ strftime_now('%Y')|int > 2000 }}", NULL, NULL, &out));
    assert_string_equal(out, "True");
    tn_free(out);
}

/* ---- Hostile templates ---- */

static char *repeated(const char *before, const char *part, size_t count, const char *after) {
    size_t a = strlen(before), b = strlen(part), c = strlen(after);
    char *text = malloc(a + b * count + c + 1);
    memcpy(text, before, a);
    for (size_t i = 0; i < count; i++) memcpy(text + a + i * b, part, b);
    memcpy(text + a + b * count, after, c + 1);
    return text;
}

static void check_refused_quickly(const char *text, tn_status expected) {
    char *out;
    clock_t start = clock(); /* processor time: other processes may be busy */
    tn_error_clear();
    tn_status status = render(text, "{\"l\": [1, 2, 3], \"s\": \"abc\"}", NULL, &out);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    tn_free(out);
    if (status == TN_OK || (expected != TN_OK && status != expected))
        fail_msg("%.80s…: %s %s", text, tn_status_name(status), tn_error());
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    double bar = 30;
#else
    double bar = 1;
#endif
    if (seconds > bar) fail_msg("%.80s…: took %.2f s", text, seconds);
}

static const struct {
    const char *text;
    tn_status expected;
} hostile_templates[] = {
    {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", TN_E_LIMIT},
    {"{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", TN_E_LIMIT},
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", TN_E_LIMIT},
    {"{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}", TN_E_LIMIT},
    {"{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", TN_E_LIMIT},
    {"{% for n in [[1]] recursive %}{{ loop([n]) }}{% endfor %}", TN_E_LIMIT},
    {"{{ 'x' * 1000000000000 }}", TN_E_LIMIT},
    {"{{ 'abc' * 9223372036854775807 }}", TN_E_LIMIT},
    {"{{ [1] * 1000000000000 }}", TN_E_LIMIT},
    {"{{ ('x' * 60000000) * 2 }}", TN_E_LIMIT},
    {"{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", TN_E_LIMIT},
    {"{% set ns = namespace(s='x') %}{% for i in range(100000) %}{% set ns.s = ns.s + 'xxxxxxxxxxxxxxxx' %}{% "
     "endfor %}",
     TN_E_LIMIT},
    {"{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}", TN_E_LIMIT},
    {"{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
     TN_E_LIMIT},
    {"{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l == "
     "[ns.l] }}",
     TN_E_LIMIT},
    {"{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
     "ns.l|tojson }}",
     TN_E_LIMIT},
    {"{% set ns = namespace(l=['x']) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l "
     "}}",
     TN_E_LIMIT},
    {"{% set ns = namespace(l=()) %}{% for i in range(40) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ {ns.l: "
     "1} }}",
     TN_E_LIMIT},
    {"{{ range(1000000000) }}", TN_E_LIMIT},
    {"{{ range(-9223372036854775807, 9223372036854775807) }}", TN_E_LIMIT},
    {"{{ '%99999999999d' % 1 }}", TN_E_LIMIT},
    {"{{ '%2000000000d' % 1 }}", TN_E_LIMIT},
    {"{{ '%.2000000000f' % 1.5 }}", TN_E_LIMIT},
    {"{{ '{:>2000000000}'.format(1) }}", TN_E_LIMIT},
    {"{{ 'x'.center(9000000000) }}", TN_E_LIMIT},
    {"{{ 'x'.zfill(9000000000) }}", TN_E_LIMIT},
    {"{{ '\\t'.expandtabs(9000000000) }}", TN_E_LIMIT},
    {"{{ 'x'|indent(9000000000, true) }}", TN_E_LIMIT},
    {"{{ [1]|tojson(indent=9000000000) }}", TN_E_LIMIT},
    {"{{ [1]|batch(9000000000, 1)|list }}", TN_E_LIMIT},
    {"{{ [1]|slice(9000000000)|list }}", TN_E_LIMIT},
    {"{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}", TN_E_LIMIT},
    {"{{ ('a' * 1000000).replace('', 'a' * 1000) }}", TN_E_LIMIT},
    {"{% set a = 'a' * 8000000 %}{% for i in range(100000) %}{{ a.rfind('a' * 400000 ~ 'b') }}{% endfor %}",
     TN_E_LIMIT},
    {"{% set a = 'a' * 8000000 %}{% for i in range(100000) %}{{ 'b' in a }}{% endfor %}", TN_E_LIMIT},
    {"{% set a = 'é' * 4000000 %}{% for i in range(100000) %}{{ a[3000000] }}{% endfor %}", TN_E_LIMIT},
    {"{% set a = ' ' * 8000000 %}{% for i in range(100000) %}{% set b = a.strip() %}{% endfor %}", TN_E_LIMIT},
    {"{% set a = 'a' * 8000000 %}{% for i in range(100000) %}{% set b = a == ('a' * 8000000) %}{% endfor %}",
     TN_E_LIMIT},
    {"{% set a = 'a' * 8000000 %}{% for i in range(100000) %}{% set b = {a: 1} %}{% endfor %}", TN_E_LIMIT},
    {"{{ strftime_now('%Y' * 100000) }}", TN_E_LIMIT},
    {"{{ 2 ** 64 }}", TN_E_UNSUPPORTED},
    {"{{ 9999999999999999999 }}", TN_E_UNSUPPORTED},
    {"{{ 10.0 ** 400 }}", TN_E_INVALID},
    {"{{ 1 // 0 }}", TN_E_INVALID},
    {"{{ -9223372036854775808 // -1 }}", TN_OK},
    {"{{ 'x'[::0] }}", TN_E_INVALID},
    {"{% for", TN_E_SYNTAX},
    {"{{", TN_E_SYNTAX},
    {"{%", TN_E_SYNTAX},
    {"{#", TN_E_SYNTAX},
    {"{% raw %}", TN_E_SYNTAX},
    {"{{ '", TN_E_SYNTAX},
    {"{{ \"\\", TN_E_SYNTAX},
    {"{{ '\\x' }}", TN_E_SYNTAX},
    {"{{ ) }}", TN_E_SYNTAX},
    {"{{ ] }}", TN_E_SYNTAX},
    {"{{ x! }}", TN_E_SYNTAX},
    {"{{ a.b. }}", TN_E_SYNTAX},
    {"{% set 1 = 2 %}", TN_E_SYNTAX},
    {"{% set (a, 'b') = 2 %}", TN_E_SYNTAX},
    {"{% macro m(a=1, b) %}{% endmacro %}", TN_E_SYNTAX},
    {"{% call 5 %}{% endcall %}", TN_E_SYNTAX},
    {"{{ f(a=1, 2) }}", TN_E_SYNTAX},
    {"{{ f(**a, *b) }}", TN_E_SYNTAX},
    {"{% endfor %}", TN_E_SYNTAX},
    {"{% else %}", TN_E_SYNTAX},
    {"{% unknown %}", TN_E_SYNTAX},
    {"{% autoescape true %}{% endautoescape %}", TN_E_UNSUPPORTED},
};

static void hostile_templates_end_in_an_error(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof hostile_templates / sizeof hostile_templates[0]; i++)
        check_refused_quickly(hostile_templates[i].text, hostile_templates[i].expected);

    const char *const nested[][3] = {
        {"{{ ", "(", ""},
        {"{{ ", "[", ""},
        {"{{ ", "{1:", ""},
        {"{{ ", "not ", "1 }}"},
        {"{{ ", "-", "1 }}"},
        {"", "{% if 1 %}", ""},
        {"", "{% for x in l %}", ""},
        {"{{ l", "[0]", " }}"},
        {"{{ s", "|upper", " }}"},
        {"{{ 1", " + 1", " }}"},
        {"{{ 1", " if 1 else 1", " }}"},
        {"{{ s", ".x", " }}"},
        {"{{ s", "()", " }}"},
        {"", "{% macro m() %}", ""},
        {"{% set ", "(", ""},
        {"{{ 1", " and 1", " }}"},
    };
    for (size_t i = 0; i < sizeof nested / sizeof nested[0]; i++) {
        char *text = repeated(nested[i][0], nested[i][1], 100000, nested[i][2]);
        check_refused_quickly(text, TN_OK);
        free(text);
    }
}

static void limits_are_parameters(void **state) {
    (void)state;
    char *out;
    const char *loop = "{% for i in range(100) %}{{ i }}{% endfor %}";
    assert_fails(TN_E_LIMIT, render(loop, NULL, &(tn__jinja_params){.limits.max_steps = 100}, &out));
    assert_fails(TN_E_LIMIT, render(loop, NULL, &(tn__jinja_params){.limits.max_output = 100}, &out));
    assert_fails(TN_E_LIMIT, render(loop, NULL, &(tn__jinja_params){.limits.max_memory = 1000}, &out));
    assert_fails(TN_E_LIMIT, render("{{ ((((1)))) }}", NULL, &(tn__jinja_params){.limits.max_depth = 4}, &out));
    assert_ok(render(loop, NULL, &(tn__jinja_params){.limits = {5000, 20, 200, 200000}}, &out));
    assert_int_equal(strlen(out), 190);
    tn_free(out);
    /* Output of exactly the limit is allowed. */
    assert_ok(render("abc", NULL, &(tn__jinja_params){.limits.max_output = 3}, &out));
    tn_free(out);
    assert_fails(TN_E_LIMIT, render("abcd", NULL, &(tn__jinja_params){.limits.max_output = 3}, &out));
}

/* The maximum depth must fit into the stack of a thread, also with sanitizers. This scenario is as deep as the
 * default limit of 600 levels. */
static void values_as_deep_as_the_limit_work(void **state) {
    (void)state;
    char *out;
    assert_ok(render("{% macro m(n) %}{% if n %}[{{ m(n - 1) }}]{% endif %}{% endmacro %}{{ m(80)|length }}", NULL,
                     NULL, &out));
    assert_string_equal(out, "160");
    tn_free(out);
    check("{% set ns = namespace(l=[]) %}{% for i in range(300) %}{% set ns.l = [ns.l] %}{% endfor %}{{ "
          "ns.l|string|length }}",
          NULL, "602");
}

/* ---- Memory ---- */

static tn_status everything_once(void *user) {
    static const char text[] =
        "{% macro m(a, b=[1, 2]) %}{{ a }}{{ b }}{{ caller() if caller }}{{ kwargs }}{% endmacro %}"
        "{% set ns = namespace(x=1) %}{% for k, v in d|dictsort %}{% set ns.x = ns.x + loop.length %}{{ k ~ v }}{% "
        "endfor %}"
        "{% call m('q', z=1) %}{{ u|upper|replace('A', 'bb') }}{% endcall %}{{ d|tojson(indent=2) }}"
        "{{ [3, 1, 2]|sort|map('string')|join(', ') }}{{ '{:>8}{}'.format('a', 1.5) }}{{ '%5d' % 3 }}{{ u.split('c') "
        "}}"
        "{% filter indent %}a\nb{% endfilter %}{% set s %}{{ range(20)|list }}{% endset %}{{ s }}{{ [1, 2][::-1] }}"
        "{{ '[1, {\"a\": 2}]'|from_json }}{{ users|groupby('n')|list }}{{ strftime_now('%Y') }}"
        "{% for i in range(300) %}{{ 'some text to fill blocks with' ~ i }}{% endfor %}";
    char *out;
    tn_status status = render_text(text, sizeof text - 1, user, NULL, &out, NULL);
    tn_free(out);
    return status;
}

static void lack_of_memory_is_survived(void **state) {
    (void)state;
    json_t *variables = json_loads("{\"u\": \"abcabc\", \"d\": {\"b\": [1, 2.5, null], \"a\": {\"x\": \"y\"}}, "
                                   "\"users\": [{\"n\": 1}, {\"n\": 2}]}",
                                   0, NULL);
    assert_non_null(variables);
    check_no_leak(everything_once, variables);
    check_every_allocation_failure(everything_once, variables);
    json_decref(variables);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_render_as_in_jinja2),
        cmocka_unit_test(extensions_beyond_jinja2),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(mutation_needs_permission),
        cmocka_unit_test(mutation_works_as_in_jinja2),
        cmocka_unit_test(clock_is_given_or_from_the_environment),
        cmocka_unit_test(hostile_templates_end_in_an_error),
        cmocka_unit_test(limits_are_parameters),
        cmocka_unit_test(values_as_deep_as_the_limit_work),
        cmocka_unit_test(lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

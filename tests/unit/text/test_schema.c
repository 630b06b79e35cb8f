/* JSON schema to grammar: tables, errors, and random schemas whose generated documents an independent validator
 * checks. */
#include "../fuzz/fuzz_schema.c" /* its target replays the corpus below */
#include "../support/support.h"

#include "tenon/grammar.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- An independent validator ---- */

static json_t *schema_root;

static bool same(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}
static bool has_type(const json_t *v, const char *type) {
    double n = json_number_value(v);
    if (!strcmp(type, "integer")) return json_is_number(v) && n == floor(n);
    if (!strcmp(type, "number")) return json_is_number(v);
    if (!strcmp(type, "string")) return json_is_string(v);
    if (!strcmp(type, "boolean")) return json_is_boolean(v);
    if (!strcmp(type, "null")) return json_is_null(v);
    if (!strcmp(type, "array")) return json_is_array(v);
    return json_is_object(v);
}
static size_t characters(const char *s) {
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}
static bool digits_at(const char *s, const char *shape) { /* d: digit, h: hex, else itself */
    for (; *shape; s++, shape++) {
        bool digit = *s >= '0' && *s <= '9', hex = digit || (*s >= 'a' && *s <= 'f') || (*s >= 'A' && *s <= 'F');
        if (*shape == 'd' ? !digit : *shape == 'h' ? !hex : *s != *shape) return false;
    }
    return true;
}
static bool is_date(const char *s) {
    static const int days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y, m, d;
    if (!digits_at(s, "dddd-dd-dd") || sscanf(s, "%4d-%2d-%2d", &y, &m, &d) != 3 || m < 1 || m > 12) return false;
    bool leap = y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    return d >= 1 && d <= days[m - 1] && (m != 2 || d <= 28 || leap);
}
static bool is_time(const char *s) {
    int h, m, sec, zh, zm;
    if (!digits_at(s, "dd:dd:dd") || sscanf(s, "%d:%d:%d", &h, &m, &sec) != 3 || h > 23 || m > 59 || sec > 60)
        return false;
    s += 8;
    if (*s == '.') {
        s++;
        if (*s < '0' || *s > '9') return false;
        while (*s >= '0' && *s <= '9') s++;
    }
    if (!strcmp(s, "Z")) return true;
    if ((*s != '+' && *s != '-') || strlen(s) != 6 || !digits_at(s + 1, "dd:dd")) return false;
    return sscanf(s + 1, "%d:%d", &zh, &zm) == 2 && zh < 24 && zm < 60;
}
static bool fits_format(const char *s, const char *format) {
    if (!strcmp(format, "date")) return strlen(s) == 10 && is_date(s);
    if (!strcmp(format, "time")) return is_time(s);
    if (!strcmp(format, "date-time")) return strlen(s) > 11 && is_date(s) && s[10] == 'T' && is_time(s + 11);
    if (!strcmp(format, "uuid")) return strlen(s) == 36 && digits_at(s, "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh");
    return true;
}
static bool fits_pattern(const char *s, const char *pattern) {
    int error;
    size_t at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY,
                                     &error, &at, NULL);
    assert_non_null(code);
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);
    bool fits = pcre2_match(code, (PCRE2_SPTR)s, strlen(s), 0, 0, match, NULL) >= 0;
    pcre2_match_data_free(match);
    pcre2_code_free(code);
    return fits;
}

static bool valid(json_t *schema, json_t *v);

static bool valid_object(json_t *schema, json_t *v) {
    json_t *properties = json_object_get(schema, "properties"),
           *rest = json_object_get(schema, "additionalProperties");
    json_t *item, *k;
    const char *name;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i,
                       k) if (!json_object_get(v, json_string_value(k))) return false;
    json_object_foreach(v, name, item) {
        json_t *of = json_object_get(properties, name);
        if (!of) of = rest;
        if (of && !valid(of, item)) return false;
    }
    if ((k = json_object_get(schema, "minProperties")) && json_object_size(v) < (size_t)json_integer_value(k))
        return false;
    if ((k = json_object_get(schema, "maxProperties")) && json_object_size(v) > (size_t)json_integer_value(k))
        return false;
    return true;
}

static bool valid(json_t *schema, json_t *v) {
    json_t *k, *item;
    size_t i;
    if (json_is_boolean(schema)) return json_is_true(schema);
    if ((k = json_object_get(schema, "$ref"))) {
        json_t *at = schema_root;
        char copy[200], *step;
        snprintf(copy, sizeof copy, "%s", json_string_value(k));
        for (step = strtok(copy, "/"); (step = strtok(NULL, "/"));) at = json_object_get(at, step);
        if (!valid(at, v)) return false;
    }
    if ((k = json_object_get(schema, "type"))) {
        bool any = json_is_string(k) && has_type(v, json_string_value(k));
        json_array_foreach(k, i, item) any |= has_type(v, json_string_value(item));
        if (!any) return false;
    }
    if ((k = json_object_get(schema, "const")) && !same(k, v)) return false;
    if ((k = json_object_get(schema, "enum"))) {
        bool any = false;
        json_array_foreach(k, i, item) any |= same(item, v);
        if (!any) return false;
    }
    json_array_foreach(json_object_get(schema, "allOf"), i, item) if (!valid(item, v)) return false;
    if ((k = json_object_get(schema, "anyOf"))) {
        bool any = false;
        json_array_foreach(k, i, item) any |= valid(item, v);
        if (!any) return false;
    }
    if ((k = json_object_get(schema, "oneOf"))) {
        int n = 0;
        json_array_foreach(k, i, item) n += valid(item, v);
        if (n != 1) return false;
    }
    if (json_is_number(v)) {
        double x = json_number_value(v);
        if ((k = json_object_get(schema, "minimum")) && x < json_number_value(k)) return false;
        if ((k = json_object_get(schema, "maximum")) && x > json_number_value(k)) return false;
        if ((k = json_object_get(schema, "exclusiveMinimum")) && x <= json_number_value(k)) return false;
        if ((k = json_object_get(schema, "exclusiveMaximum")) && x >= json_number_value(k)) return false;
    }
    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        if ((k = json_object_get(schema, "minLength")) && characters(s) < (size_t)json_integer_value(k)) return false;
        if ((k = json_object_get(schema, "maxLength")) && characters(s) > (size_t)json_integer_value(k)) return false;
        if ((k = json_object_get(schema, "pattern")) && !fits_pattern(s, json_string_value(k))) return false;
        if ((k = json_object_get(schema, "format")) && !fits_format(s, json_string_value(k))) return false;
    }
    if (json_is_array(v)) {
        json_t *prefix = json_object_get(schema, "prefixItems"), *rest = json_object_get(schema, "items");
        json_array_foreach(v, i, item) {
            json_t *of = i < json_array_size(prefix) ? json_array_get(prefix, i) : rest;
            if (of && !valid(of, item)) return false;
        }
        if ((k = json_object_get(schema, "minItems")) && json_array_size(v) < (size_t)json_integer_value(k))
            return false;
        if ((k = json_object_get(schema, "maxItems")) && json_array_size(v) > (size_t)json_integer_value(k))
            return false;
    }
    return !json_is_object(v) || valid_object(schema, v);
}

/* ---- Generating under a grammar ---- */

/* A vocabulary of all bytes, some longer tokens, and an end. */
enum { N_BYTES = 256, END = N_BYTES };
static const char *longer[] = {"true",
                               "false",
                               "null",
                               "\": ",
                               "\", \"",
                               "{\"",
                               "\"}",
                               "[]",
                               "{}",
                               "\\u00",
                               "\\\"",
                               "\xc3\xa9",
                               "\xf0\x9f\x98\x80",
                               "\xe4\xb8\xad",
                               "12",
                               "-1",
                               "0.5",
                               "]]",
                               "}}",
                               "],",
                               "},"};
enum { N_LONGER = sizeof longer / sizeof *longer, N_TOKENS = END + 1 + N_LONGER };

static tn_pieces *make_pieces(void) {
    static char bytes[N_BYTES];
    tn_piece pieces[N_TOKENS];
    tn_token end = END;
    for (int i = 0; i < N_BYTES; i++) {
        bytes[i] = (char)i;
        pieces[i] = (tn_piece){&bytes[i], 1};
    }
    pieces[END] = (tn_piece){"</s>", 4};
    for (int i = 0; i < N_LONGER; i++) pieces[END + 1 + i] = (tn_piece){longer[i], strlen(longer[i])};
    tn_pieces *out;
    assert_ok(tn_pieces_new(pieces, N_TOKENS, &end, 1, &out));
    return out;
}

/* Random tokens among those allowed; after a while whatever closes something. Returns the length, or 0 when the text
 * did not come to an end. */
static size_t generate(tn_grammar_state *s, const tn_pieces *pieces, rng *r, char *text, size_t capacity) {
    static const char closers[] = "\"}]";
    size_t length = 0;
    tn_grammar_state_reset(s);
    for (int step = 0; step < 4000; step++) {
        const uint64_t *mask;
        assert_ok(tn_grammar_mask(s, &mask));
        tn_token options[N_TOKENS], token = -1;
        size_t n = 0;
        for (tn_token t = 0; t < N_TOKENS; t++)
            if (mask[t / 64] >> (t % 64) & 1) options[n++] = t;
        if (n == 0) fail_msg("nothing can follow \"%.*s\"", (int)length, text);
        token = options[rng_below(r, n)];
        bool hurry = step > 60 || rng_below(r, 4) == 0;
        if (hurry && mask[END / 64] >> (END % 64) & 1) token = END;
        if (hurry && token != END)
            for (int c = 2; c >= 0; c--)
                if (mask[closers[c] / 64] >> (closers[c] % 64) & 1 && rng_below(r, 8)) token = closers[c];
        if (token == END) {
            text[length] = '\0';
            assert_true(tn_grammar_is_accepting(s));
            return length;
        }
        tn_piece piece = tn_pieces_get(pieces, token);
        if (length + piece.length + 1 > capacity) return 0;
        memcpy(text + length, piece.bytes, piece.length);
        length += piece.length;
        assert_ok(tn_grammar_accept_token(s, token));
    }
    return 0;
}

/* ---- Random schemas ---- */

static json_t *random_schema(rng *r, int depth);

static json_t *random_value(rng *r, int depth) {
    switch (rng_below(r, depth > 0 ? 7 : 5)) {
    case 0: return json_integer((json_int_t)rng_below(r, 200) - 100);
    case 1: return json_real((double)((int)rng_below(r, 2000) - 1000) / 64);
    case 2:
        return json_string((const char *[]){"", "a", "\"q\"", "x\\y\n", "\xc3\xa9t\xc3\xa9", "red"}[rng_below(r, 6)]);
    case 3: return json_boolean(rng_below(r, 2));
    case 4: return json_null();
    case 5: return json_pack("[o,o]", random_value(r, depth - 1), random_value(r, depth - 1));
    default: return json_pack("{s:o}", "k", random_value(r, depth - 1));
    }
}

static const char *random_name(rng *r) {
    static const char *names[] = {"a",   "ab", "abc", "b", "name",   "n\"q", "\xc3\xa9",
                                  "x-y", "x]", "x",   "",  "na\\me", "id"};
    return names[rng_below(r, sizeof names / sizeof *names)];
}

static json_t *random_number(rng *r, const char *type) {
    json_t *s = json_pack("{s:s}", "type", type);
    double scale = (double[]){1, 10, 1000, 1e6, 0.01}[rng_below(r, 5)];
    double a = floor((rng_unit(r) - 0.4) * 1000) / 1000 * 100 * scale,
           b = a + floor(rng_unit(r) * 1000) / 1000 * 50 * scale;
    if (rng_below(r, 2)) {
        a = floor(a);
        b = floor(b) + (double)rng_below(r, 3);
    }
    json_t *low = a == floor(a) && fabs(a) < 1e15 ? json_integer((json_int_t)a) : json_real(a);
    json_t *high = b == floor(b) && fabs(b) < 1e15 ? json_integer((json_int_t)b) : json_real(b);
    if (rng_below(r, 3)) json_object_set(s, rng_below(r, 3) ? "minimum" : "exclusiveMinimum", low);
    if (rng_below(r, 3)) json_object_set(s, rng_below(r, 3) ? "maximum" : "exclusiveMaximum", high);
    json_decref(low);
    json_decref(high);
    return s;
}

static json_t *random_string(rng *r) {
    json_t *s = json_pack("{s:s}", "type", "string");
    static const char *patterns[] = {"^[a-z]{2,4}$",
                                     "^(ab|cd)+x?$",
                                     "^[^a-z\"]+$",
                                     "b",
                                     "^\\(?[0-9]{3}\\)?-[0-9]{4}$",
                                     "^a.c$|^x",
                                     "^[A-Z][a-z]*( [A-Z][a-z]*)*$",
                                     "[0-9]$",
                                     "^$",
                                     "^\"\\\\$",
                                     "^[\xc3\xa0-\xc3\xbf]{1,3}$"};
    static const char *formats[] = {"date", "time", "date-time", "uuid", "something-else"};
    switch (rng_below(r, 5)) {
    case 0: json_object_set_new(s, "pattern", json_string(patterns[rng_below(r, 11)])); break;
    case 1: json_object_set_new(s, "format", json_string(formats[rng_below(r, 5)])); break;
    case 2: json_object_set_new(s, "maxLength", json_integer((json_int_t)rng_below(r, 12))); /* fall through */
    case 3: json_object_set_new(s, "minLength", json_integer((json_int_t)rng_below(r, 4))); break;
    default: break;
    }
    return s;
}

static json_t *random_array(rng *r, int depth) {
    json_t *s = json_pack("{s:s}", "type", "array");
    if (rng_below(r, 3) == 0) {
        json_t *prefix = json_array();
        for (size_t n = 1 + rng_below(r, 3); n > 0; n--) json_array_append_new(prefix, random_schema(r, depth - 1));
        json_object_set_new(s, "prefixItems", prefix);
    }
    if (rng_below(r, 4))
        json_object_set_new(s, "items", rng_below(r, 8) ? random_schema(r, depth - 1) : json_false());
    size_t min = rng_below(r, 4);
    if (rng_below(r, 2)) json_object_set_new(s, "minItems", json_integer((json_int_t)min));
    if (rng_below(r, 2)) json_object_set_new(s, "maxItems", json_integer((json_int_t)(min + rng_below(r, 4))));
    return s;
}

static json_t *random_object(rng *r, int depth) {
    json_t *s = json_pack("{s:s}", "type", "object"), *properties = json_object(), *required = json_array();
    for (size_t n = rng_below(r, 6); n > 0; n--) {
        const char *name = random_name(r);
        json_object_set_new(properties, name, random_schema(r, depth - 1));
        if (rng_below(r, 2)) json_array_append_new(required, json_string(name));
    }
    if (rng_below(r, 10) == 0) json_array_append_new(required, json_string("unnamed"));
    if (json_object_size(properties)) json_object_set(s, "properties", properties);
    if (json_array_size(required)) json_object_set(s, "required", required);
    json_decref(properties);
    json_decref(required);
    switch (rng_below(r, 5)) {
    case 0: json_object_set_new(s, "additionalProperties", json_true()); break;
    case 1: json_object_set_new(s, "additionalProperties", random_schema(r, depth - 1)); break;
    case 2: json_object_set_new(s, "additionalProperties", json_false()); break;
    default: break;
    }
    if (rng_below(r, 12) == 0) json_object_set_new(s, "maxProperties", json_integer((json_int_t)rng_below(r, 8)));
    if (rng_below(r, 12) == 0) json_object_set_new(s, "minProperties", json_integer(1));
    return s;
}

static json_t *random_choice(rng *r, int depth, const char *key) {
    json_t *list = json_array();
    for (size_t n = 1 + rng_below(r, 3); n > 0; n--) json_array_append_new(list, random_schema(r, depth - 1));
    return json_pack("{s:o}", key, list);
}

static json_t *random_schema(rng *r, int depth) {
    static const char *simple[] = {"null", "boolean", "integer", "number", "string", "object", "array"};
    json_t *s;
    switch (rng_below(r, depth > 0 ? 16 : 7)) {
    case 0: return random_number(r, "integer");
    case 1: return random_number(r, "number");
    case 2: return random_string(r);
    case 3: return json_pack("{s:s}", "type", simple[rng_below(r, depth > 0 ? 7 : 5)]);
    case 4: {
        json_t *values = json_array();
        for (size_t n = 1 + rng_below(r, 4); n > 0; n--) json_array_append_new(values, random_value(r, 2));
        return json_pack("{s:o}", "enum", values);
    }
    case 5: return json_pack("{s:o}", "const", random_value(r, 1));
    case 6: return json_pack("{s:[s,s],s:i}", "type", "string", "integer", "minimum", 3);
    case 7:
    case 8: return random_array(r, depth);
    case 9:
    case 10: return random_object(r, depth);
    case 11: return random_choice(r, depth, "anyOf");
    case 12: return random_choice(r, depth, "oneOf");
    case 13: return json_pack("{s:[o,o]}", "allOf", random_object(r, depth), random_object(r, depth - 1));
    case 14: /* a reference, alone or with company */
        s = json_pack("{s:s}", "$ref",
                      (const char *[]){"#/$defs/list", "#/$defs/tree", "#/$defs/small"}[rng_below(r, 3)]);
        if (rng_below(r, 4) == 0) json_object_set_new(s, "minProperties", json_integer(0));
        return s;
    default: /* a choice with company */
        s = random_object(r, depth);
        json_object_set_new(s, "anyOf",
                            json_pack("[{s:[s]},{s:[s]}]", "required", random_name(r), "required", random_name(r)));
        return s;
    }
}

static const char *definitions =
    "{\"list\": {\"type\": \"object\", \"properties\": {\"head\": {\"$ref\": \"#/$defs/small\"},"
    "    \"tail\": {\"anyOf\": [{\"$ref\": \"#/$defs/list\"}, {\"type\": \"null\"}]}}, \"required\": [\"tail\"]},"
    " \"tree\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/tree\"}, \"maxItems\": 3},"
    " \"small\": {\"type\": \"integer\", \"minimum\": -9, \"maximum\": 99}}";

/* For another validator (tests/schema_peer.sh): a schema and a document made for it, a line each. */
static void show_to_peer(FILE *out, const char *schema, const char *document) {
    json_t *string = json_string(document);
    char *line = json_dumps(string, JSON_ENCODE_ANY);
    fprintf(out, "%s\n%s\n", schema, line);
    free(line);
    json_decref(string);
}

static void documents_from_random_schemas_are_valid(void **state) {
    (void)state;
    static char text[100000];
    const char *peer_path = getenv("TENON_SCHEMA_PEER");
    FILE *peer = peer_path ? fopen(peer_path, "w") : NULL;
    rng random = {2024};
    tn_pieces *pieces = make_pieces();
    int wanted = getenv("TENON_LONG") ? 30000
                 : peer               ? 2000
                                      : 1000,
        made = 0, tried = 0, documents = 0, unfinished = 0;
    for (; made < wanted && tried < 3 * wanted; tried++) {
        json_t *schema = random_schema(&random, 3);
        json_object_set_new(schema, "$defs", json_loads(definitions, 0, NULL));
        char *dump = json_dumps(schema, 0), *gbnf = NULL;
        tn_status status = tn_schema_to_grammar(dump, &gbnf);
        if (status == TN_OK) {
            tn_grammar *g;
            tn_grammar_state *s;
            assert_ok(tn_grammar_new(gbnf, NULL, &g));
            assert_ok(tn_grammar_state_new(
                &(tn_grammar_state_params){.grammar = g, .pieces = pieces, .memory = 1 << 20}, &s));
            schema_root = schema;
            for (int i = 0; i < 4; i++) {
                if (generate(s, pieces, &random, text, sizeof text) == 0) {
                    unfinished++;
                    continue;
                }
                json_error_t error;
                json_t *document = json_loads(text, JSON_DECODE_ANY, &error);
                if (!document) fail_msg("%s\nis not JSON (%s), for\n%s\n%s", text, error.text, dump, gbnf);
                if (!valid(schema, document)) fail_msg("%s\nis not valid for\n%s\n%s", text, dump, gbnf);
                json_decref(document);
                if (peer) show_to_peer(peer, dump, text);
                documents++;
            }
            tn_grammar_state_free(s);
            tn_grammar_free(g);
            made++;
        } else if (status != TN_E_UNSUPPORTED && status != TN_E_INFEASIBLE && status != TN_E_LIMIT) {
            fail_msg("%s: %s for %s", tn_status_name(status), tn_error(), dump);
        }
        tn_free(gbnf);
        free(dump);
        json_decref(schema);
    }
    print_message("%d of %d schemas, %d documents, %d unfinished\n", made, tried, documents, unfinished);
    assert_int_equal(made, wanted);
    assert_true(documents > wanted * 7 / 2);
    if (peer) assert_int_equal(fclose(peer), 0);
    tn_pieces_free(pieces);
}

/* ---- Tables ---- */

static bool accepts(const char *gbnf, const char *text) {
    tn_grammar *g;
    tn_grammar_state *s;
    assert_ok(tn_grammar_new(gbnf, NULL, &g));
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = g}, &s));
    bool accepted = tn_grammar_accept_bytes(s, text, strlen(text)) == TN_OK && tn_grammar_is_accepting(s);
    tn_grammar_state_free(s);
    tn_grammar_free(g);
    return accepted;
}

static void known_schemas_accept_and_refuse(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        const char *accepted[8], *refused[8];
    } table[] = {
        {"{}", {"1", "{\"a\": [null]}", "\"x\""}, {"", "x", "{1}"}},
        {"true", {"1", "[]"}, {"nope"}},
        {"{\"type\": \"integer\"}", {"0", "-7", "123456789"}, {"1.5", "01", "\"1\"", "-"}},
        {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 125}",
         {"3", "9", "10", "99", "100", "119", "125"},
         {"2", "126", "200", "-5", "03", "1000"}},
        {"{\"type\": \"integer\", \"minimum\": -20, \"exclusiveMaximum\": 5}",
         {"-20", "-19", "-1", "0", "4"},
         {"5", "-21", "-99", "10"}},
        {"{\"type\": \"integer\", \"minimum\": 987}", {"987", "1000", "99999"}, {"986", "99", "-1000"}},
        {"{\"type\": \"integer\", \"maximum\": -5.5}", {"-6", "-10", "-123"}, {"-5", "0", "5"}},
        {"{\"type\": \"integer\", \"minimum\": 0, \"exclusiveMinimum\": true}", {"1"}, {"0"}},
        {"{\"type\": \"number\", \"minimum\": 0.25, \"maximum\": 1.5}",
         {"0.25", "0.3", "0.2500", "1", "1.0", "1.5", "1.49", "0.99"},
         {"0", "0.2", "0.249", "1.51", "2", "1.6", "-0.3"}},
        {"{\"type\": \"number\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 1}",
         {"0.1", "0.001", "0.999"},
         {"0", "0.0", "1", "1.0", "-0.5"}},
        {"{\"type\": \"number\", \"minimum\": -2.5, \"maximum\": 10}",
         {"-2.5", "-2.4", "-0", "0", "3.75", "10", "10.0"},
         {"-2.51", "-3", "10.1", "11"}},
        {"{\"type\": \"number\", \"minimum\": 3.14, \"maximum\": 3.15}",
         {"3.14", "3.141", "3.15"},
         {"3.1", "3.151", "3"}},
        {"{\"type\": \"number\", \"minimum\": 0}", {"0", "0.5", "1.5", "123.75", "1000000000000"}, {"-1", "-0.5"}},
        {"{\"type\": [\"boolean\", \"null\"]}", {"true", "false", "null"}, {"0"}},
        {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
         {"\"ab\"", "\"abc\"", "\"\\u00e9\xc3\xa9\"", "\"\\ud83d\\ude00x\""},
         {"\"a\"", "\"abcd\"", "ab"}},
        {"{\"type\": \"string\", \"pattern\": \"^\\\\d{3}-[a-f]+$\"}",
         {"\"123-abc\""},
         {"\"12-abc\"", "\"123-xyz\""}},
        {"{\"type\": \"string\", \"pattern\": \"\\\\w\\\\s\"}", {"\"..a ..\"", "\"a\\t\""}, {"\"ab\"", "\" \""}},
        {"{\"type\": \"string\", \"pattern\": \"^(?:a|(?<n>bc))*?\\\\/$\"}",
         {"\"abca/\"", "\"/\""},
         {"\"b/\"", "\"a\""}},
        {"{\"type\": \"string\", \"pattern\": \"^[^\\\\s]$\"}",
         {"\"a\"", "\"\\\"\"", "\"\\\\\""},
         {"\" \"", "\"\\n\""}},
        {"{\"type\": \"string\", \"format\": \"date\"}",
         {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"2024-00-10\""}},
        {"{\"type\": \"string\", \"format\": \"date-time\"}",
         {"\"2024-05-06T07:08:09Z\"", "\"2024-05-06T23:59:59.123+02:00\""},
         {"\"2024-05-06 07:08:09Z\"", "\"2024-05-06T24:00:00Z\"", "\"2024-05-06T07:08:09\""}},
        {"{\"type\": \"string\", \"format\": \"uuid\"}",
         {"\"123e4567-e89b-12d3-a456-426614174000\""},
         {"\"123e4567e89b12d3a456426614174000\""}},
        {"{\"enum\": [\"a\\\"b\", 2, {\"x\": [1]}, null]}",
         {"\"a\\\"b\"", "2", "{\"x\":[1]}", "null"},
         {"\"a\"", "3"}},
        {"{\"enum\": [\"a\", \"bb\", 5], \"type\": \"string\", \"maxLength\": 1}", {"\"a\""}, {"\"bb\"", "5"}},
        {"{\"const\": 1.5}", {"1.5"}, {"1", "2"}},
        {"{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 1, \"maxItems\": 3}",
         {"[null]", "[null, null]", "[null,null,null]"},
         {"[]", "[1]", "[null,null,null,null]", "[null,]"}},
        {"{\"prefixItems\": [{\"type\": \"integer\"}, {\"type\": \"string\"}], \"minItems\": 1}",
         {"[1]", "[1, \"a\"]"},
         {"[]", "[\"a\"]", "[1, \"a\", 2]"}},
        {"{\"items\": [{\"const\": 1}], \"additionalItems\": {\"const\": 2}}",
         {"[]", "[1]", "[1,2,2]"},
         {"[2]", "[1,1]"}},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}, \"b\": {\"const\": 2}, \"c\": {\"const\": "
         "3}}, "
         "\"required\": [\"b\"]}",
         {"{\"b\": 2}", "{\"a\": 1, \"b\": 2}", "{\"b\": 2, \"c\": 3}", "{\n  \"a\": 1,\n  \"b\": 2,\n  \"c\": 3\n}"},
         {"{}", "{\"a\": 1}", "{\"b\": 2,}", "{\"b\": 2, \"a\": 1}", "{\"b\": 2, \"d\": 4}"}},
        {"{\"properties\": {\"a\": {\"const\": 1}, \"b\": {\"const\": 2}}}",
         {"{}", "{\"a\": 1}", "{\"b\": 2}", "{\"a\": 1, \"b\": 2}"},
         {"{,}", "{\"a\": 1 \"b\": 2}"}},
        {"{\"properties\": {\"ab\": {\"const\": 1}, \"a\\\"\": {\"const\": 2}}, \"additionalProperties\": "
         "{\"const\": 3}}",
         {"{\"ab\": 1, \"x\": 3}", "{\"abc\": 3}", "{\"a\": 3}", "{\"\": 3}", "{\"ac\\n\": 3, \"ad\": 3}",
          "{\"a\\\"\": 2}"},
         {"{\"ab\": 3}", "{\"\\u0061b\": 3}", "{\"x\": 1}", "{\"a\\u0062\": 3}", "{\"a\\\"\": 3}"}},
        {"{\"type\": \"object\", \"additionalProperties\": false}", {"{}"}, {"{\"a\": 1}"}},
        {"{\"type\": \"object\", \"properties\": {}}", {"{}"}, {"{\"a\": 1}"}}, /* a call without arguments */
        {"{\"type\": \"object\"}", {"{}", "{\"a\": 1}"}, {"[]"}},
        {"{\"type\": \"object\", \"additionalProperties\": {\"type\": \"null\"}, \"minProperties\": 1, "
         "\"maxProperties\": 2}",
         {"{\"a\": null}", "{\"a\": null, \"b\": null}"},
         {"{}", "{\"a\": null, \"b\": null, \"c\": null}"}},
        {"{\"anyOf\": [{\"type\": \"null\"}, {\"const\": \"x\"}]}", {"null", "\"x\""}, {"\"y\""}},
        {"{\"oneOf\": [{\"type\": \"string\"}, {\"type\": \"integer\", \"maximum\": 3}, {\"type\": \"number\", "
         "\"minimum\": "
         "4}]}",
         {"\"x\"", "2", "4.5"},
         {"3.5"}},
        {"{\"allOf\": [{\"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}, {\"properties\": "
         "{\"a\": "
         "{\"minimum\": 5}, \"b\": {\"const\": 1}}}]}",
         {"{\"a\": 5}", "{\"a\": 7, \"b\": 1}"},
         {"{}", "{\"a\": 4}", "{\"b\": 1}"}},
        {"{\"properties\": {\"a\": true}, \"additionalProperties\": false, \"allOf\": [{\"properties\": {\"b\": "
         "true}}]}",
         {"{}", "{\"a\": 1}"},
         {"{\"b\": 1}"}},
        {"{\"$ref\": \"#/$defs/node\", \"$defs\": {\"node\": {\"properties\": {\"v\": {\"type\": \"integer\"}, "
         "\"next\": "
         "{\"$ref\": \"#/$defs/node\"}}, \"required\": [\"v\"]}}}",
         {"{\"v\": 1}", "{\"v\": 1, \"next\": {\"v\": 2, \"next\": {\"v\": 3}}}"},
         {"{\"next\": {\"v\": 1}}"}},
        {"{\"definitions\": {\"a/b~c\": {\"const\": 7}}, \"$ref\": \"#/definitions/a~1b~0c\"}", {"7"}, {"8"}},
        {"{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}", {"[]", "[[],[[]]]"}, {"[1]", "[["}},
        {"{\"type\": \"string\", \"format\": \"email\", \"title\": \"t\", \"x-y\": 1, \"default\": 5}",
         {"\"anything\""},
         {"5"}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char *gbnf;
        assert_ok(tn_schema_to_grammar(table[i].schema, &gbnf));
        for (int k = 0; k < 8 && table[i].accepted[k]; k++)
            if (!accepts(gbnf, table[i].accepted[k]))
                fail_msg("%s should be accepted by %s\n%s", table[i].accepted[k], table[i].schema, gbnf);
        for (int k = 0; k < 8 && table[i].refused[k]; k++)
            if (accepts(gbnf, table[i].refused[k]))
                fail_msg("%s should be refused by %s\n%s", table[i].refused[k], table[i].schema, gbnf);
        tn_free(gbnf);
    }
}

static void every_integer_of_a_range_and_no_other(void **state) {
    (void)state;
    rng random = {6};
    for (int round = 0; round < 60; round++) {
        int low = (int)rng_below(&random, 2500) - 1200, high = low + (int)rng_below(&random, round % 2 ? 30 : 1500);
        char schema[100], text[20], *gbnf;
        snprintf(schema, sizeof schema, "{\"type\": \"integer\", \"minimum\": %d, \"maximum\": %d}", low, high);
        assert_ok(tn_schema_to_grammar(schema, &gbnf));
        tn_grammar *g;
        tn_grammar_state *s;
        assert_ok(tn_grammar_new(gbnf, NULL, &g));
        assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = g}, &s));
        for (int i = -3000; i <= 3000; i++) {
            tn_grammar_state_reset(s);
            int n = snprintf(text, sizeof text, "%d", i);
            bool accepted = tn_grammar_accept_bytes(s, text, (size_t)n) == TN_OK && tn_grammar_is_accepting(s);
            if (accepted != (i >= low && i <= high)) fail_msg("%d in %s\n%s", i, schema, gbnf);
        }
        tn_grammar_state_free(s);
        tn_grammar_free(g);
        tn_free(gbnf);
    }
}

/* Decimals with up to three places against ranges with up to two. */
static void every_decimal_of_a_range_and_no_other(void **state) {
    (void)state;
    rng random = {12};
    for (int round = 0; round < 60; round++) {
        int low = (int)rng_below(&random, 1200) - 500, high = low + (int)rng_below(&random, round % 3 ? 300 : 20);
        bool above = rng_below(&random, 2), below = rng_below(&random, 2);
        char schema[120], text[20], *gbnf;
        snprintf(schema, sizeof schema, "{\"type\": \"number\", \"%s\": %.2f, \"%s\": %.2f}",
                 above ? "exclusiveMinimum" : "minimum", low / 100.0, below ? "exclusiveMaximum" : "maximum",
                 high / 100.0);
        tn_status status = tn_schema_to_grammar(schema, &gbnf);
        if (low == high && (above || below)) {
            assert_int_equal(status, TN_E_INFEASIBLE);
            continue;
        }
        if (status != TN_OK) fail_msg("%s: %s", schema, tn_error());
        tn_grammar *g;
        tn_grammar_state *s;
        assert_ok(tn_grammar_new(gbnf, NULL, &g));
        assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = g}, &s));
        for (int i = -9000; i <= 11000; i++) {
            tn_grammar_state_reset(s);
            int n = snprintf(text, sizeof text, "%s%d.%03d", i < 0 ? "-" : "", abs(i) / 1000, abs(i) % 1000);
            if (i % 1000 == 0 && i % 2000) n -= 4; /* as a whole number */
            bool accepted = tn_grammar_accept_bytes(s, text, (size_t)n) == TN_OK && tn_grammar_is_accepting(s);
            bool expected =
                i >= low * 10 && i <= high * 10 && !(above && i == low * 10) && !(below && i == high * 10);
            if (accepted != expected) fail_msg("%.*s in %s\n%s", n, text, schema, gbnf);
        }
        tn_grammar_state_free(s);
        tn_grammar_free(g);
        tn_free(gbnf);
    }
}

static void bad_schemas_are_refused_with_path_and_reason(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        tn_status status;
        const char *message;
    } table[] = {
        {"{", TN_E_SYNTAX, "not JSON"},
        {"5", TN_E_SYNTAX, "object or a boolean"},
        {"{\"type\": \"text\"}", TN_E_SYNTAX, "\"type\" must be"},
        {"{\"properties\": []}", TN_E_SYNTAX, "\"properties\" must be an object"},
        {"{\"properties\": {\"a\": {\"anyOf\": {}}}}", TN_E_SYNTAX, "#/properties/a/anyOf"},
        {"{\"minLength\": -1}", TN_E_SYNTAX, "minLength"},
        {"{\"minimum\": \"1\"}", TN_E_SYNTAX, "minimum"},
        {"false", TN_E_INFEASIBLE, "no JSON document"},
        {"{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}", TN_E_INFEASIBLE, "no JSON document"},
        {"{\"allOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}", TN_E_INFEASIBLE, "no JSON document"},
        {"{\"properties\": {\"a\": false}, \"required\": [\"a\"]}", TN_E_INFEASIBLE, "no JSON document"},
        {"{\"required\": [\"a\"], \"additionalProperties\": false}", TN_E_INFEASIBLE, "no JSON document"},
        {"{\"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", TN_E_INFEASIBLE, "finite"},
        {"{\"$ref\": \"#\"}", TN_E_INFEASIBLE, "finite"},
        {"{\"properties\": {\"a\": {\"not\": {}}}}", TN_E_UNSUPPORTED, "#/properties/a: the keyword \"not\""},
        {"{\"items\": {\"if\": {}}}", TN_E_UNSUPPORTED, "#/items"},
        {"{\"patternProperties\": {}}", TN_E_UNSUPPORTED, "patternProperties"},
        {"{\"type\": \"array\", \"uniqueItems\": true}", TN_E_UNSUPPORTED, "uniqueItems"},
        {"{\"type\": \"integer\", \"multipleOf\": 3}", TN_E_UNSUPPORTED, "multipleOf"},
        {"{\"minProperties\": 2, \"additionalProperties\": true}", TN_E_UNSUPPORTED, "minProperties"},
        {"{\"properties\": {\"a\": {}, \"b\": {}}, \"maxProperties\": 1}", TN_E_UNSUPPORTED, "maxProperties"},
        {"{\"$ref\": \"http://x/y\"}", TN_E_UNSUPPORTED, "only references into this document"},
        {"{\"$ref\": \"#/nowhere\"}", TN_E_NOT_FOUND, "does not exist"},
        {"{\"oneOf\": [{\"type\": \"string\"}, {\"minLength\": 3}]}", TN_E_UNSUPPORTED, "exactly one"},
        {"{\"pattern\": \"(?=a)\"}", TN_E_UNSUPPORTED, "#/pattern: at character 3"},
        {"{\"pattern\": \"\\\\bx\"}", TN_E_UNSUPPORTED, "escape"},
        {"{\"pattern\": \"a^\"}", TN_E_UNSUPPORTED, "ends"},
        {"{\"pattern\": \"(a\"}", TN_E_SYNTAX, "')'"},
        {"{\"pattern\": \"a)\"}", TN_E_SYNTAX, "unexpected character"},
        {"{\"pattern\": \"[a\"}", TN_E_SYNTAX, "does not end"},
        {"{\"pattern\": \"*\"}", TN_E_SYNTAX, "nothing to repeat"},
        {"{\"pattern\": \"a\", \"minLength\": 3}", TN_E_UNSUPPORTED, "together"},
        {"{\"allOf\": [{\"pattern\": \"a\"}, {\"pattern\": \"b\"}]}", TN_E_UNSUPPORTED,
         "\"pattern\" cannot be combined"},
        {"{\"enum\": [\"a\"], \"pattern\": \"a\"}", TN_E_UNSUPPORTED, "\"enum\""},
        {"{\"minLength\": 1000000}", TN_E_LIMIT, "at least 1000000"},
        {"{\"minItems\": 1000000}", TN_E_LIMIT, "at least 1000000"},
        {"{\"allOf\": [{\"$ref\": \"#\"}, {}]}", TN_E_LIMIT, "defined by itself"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char *gbnf = NULL;
        tn_error_clear();
        tn_status status = tn_schema_to_grammar(table[i].schema, &gbnf);
        if (status != table[i].status || !strstr(tn_error(), table[i].message))
            fail_msg("%s: %s, %s", table[i].schema, tn_status_name(status), tn_error());
        assert_null(gbnf);
    }
}

static void hostile_schemas_end_soon(void **state) {
    (void)state;
    char *text = malloc(1000000), *at = text, *gbnf;
    /* Nesting. */
    for (int i = 0; i < 1500; i++) at += sprintf(at, "{\"items\":");
    at += sprintf(at, "{}");
    for (int i = 0; i < 1500; i++) *at++ = '}';
    *at = '\0';
    assert_fails(TN_E_LIMIT, tn_schema_to_grammar(text, &gbnf));
    /* 3^20 combinations. */
    at = text + sprintf(text, "{\"allOf\":[");
    for (int i = 0; i < 20; i++)
        at += sprintf(at, "%s{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%d},{\"title\":\"x\"}]}", i ? "," : "", i,
                      90 + i);
    strcpy(at, "]}");
    assert_fails(TN_E_LIMIT, tn_schema_to_grammar(text, &gbnf));
    /* A chain of a thousand references. */
    at = text + sprintf(text, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 1000; i++) at += sprintf(at, "\"d%d\":{\"$ref\":\"#/$defs/d%d\"},", i, i + 1);
    strcpy(at, "\"d1000\":{\"const\":1}}}");
    assert_fails(TN_E_LIMIT, tn_schema_to_grammar(text, &gbnf));
    /* Nested oneOf, each level compared with each. */
    at = text;
    for (int i = 0; i < 40; i++) at += sprintf(at, "{\"oneOf\":[{\"const\":%d},", i);
    at += sprintf(at, "{\"const\":\"x\"}");
    for (int i = 0; i < 40; i++) at += sprintf(at, "]}");
    uint64_t start = tn_time_ns();
    tn_status status = tn_schema_to_grammar(text, &gbnf);
    assert_true(status == TN_OK || status == TN_E_LIMIT || status == TN_E_UNSUPPORTED);
    if (status == TN_OK) tn_free(gbnf);
    assert_true(tn_time_ns() - start < 5000000000u);
    /* Two thousand optional properties. */
    at = text + sprintf(text, "{\"properties\":{");
    for (int i = 0; i < 2000; i++) at += sprintf(at, "%s\"property%d\":{\"type\":\"integer\"}", i ? "," : "", i);
    strcpy(at, "},\"additionalProperties\":true}");
    assert_ok(tn_schema_to_grammar(text, &gbnf));
    assert_true(accepts(gbnf, "{\"property3\": 1, \"property1999\": 2, \"property\": null}"));
    tn_free(gbnf);
    free(text);
}

static tn_status convert(void *user) {
    char *gbnf;
    TN_TRY(tn_schema_to_grammar(user, &gbnf));
    tn_free(gbnf);
    return TN_OK;
}
static void running_out_of_memory_is_survived(void **state) {
    (void)state;
    char *schema =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"prefixItems\": [{\"type\": \"integer\", \"minimum\": 3}]},"
        "\"b\": {\"anyOf\": [{\"pattern\": \"^a+$\"}, {\"$ref\": \"#\"}]}, \"c\": {\"type\": \"number\", "
        "\"minimum\": "
        "0.5}}, \"additionalProperties\": {\"enum\": [1, \"x\"]}, \"allOf\": [{\"required\": [\"a\"]}]}";
    check_every_allocation_failure(convert, schema);
    check_no_leak(convert, schema);
}

static void fuzz_corpus_is_survived(void **state) {
    (void)state;
    DIR *dir = opendir(TENON_SOURCE_DIR "/tests/fuzz/corpus/schema");
    assert_non_null(dir);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[2048];
        size_t size;
        snprintf(path, sizeof path, TENON_SOURCE_DIR "/tests/fuzz/corpus/schema/%s", entry->d_name);
        if (entry->d_name[0] == '.') continue;
        void *bytes = read_file(path, &size);
        assert_non_null(bytes);
        LLVMFuzzerTestOneInput(bytes, size);
        free(bytes);
        count++;
    }
    closedir(dir);
    assert_true(count > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_schemas_accept_and_refuse),
        cmocka_unit_test(every_integer_of_a_range_and_no_other),
        cmocka_unit_test(every_decimal_of_a_range_and_no_other),
        cmocka_unit_test(bad_schemas_are_refused_with_path_and_reason),
        cmocka_unit_test(hostile_schemas_end_soon),
        cmocka_unit_test(documents_from_random_schemas_are_valid),
        cmocka_unit_test(fuzz_corpus_is_survived),
        cmocka_unit_test(running_out_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* JSON schema to GBNF: documents generated from random schemas are valid. The test has its own validator. */
#include "../support/support.h"

#include "tenon/grammar.h"

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
        json_t *of = json_object_get(properties, name), *by_pattern;
        const char *pattern;
        bool matches = false;
        json_object_foreach(json_object_get(schema, "patternProperties"), pattern, by_pattern) {
            if (!fits_pattern(name, pattern)) continue;
            matches = true;
            if (!valid(by_pattern, item)) return false;
        }
        if (!of && !matches) of = rest;
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
        for (i = 1; json_is_true(json_object_get(schema, "uniqueItems")) && i < json_array_size(v); i++)
            for (size_t j = 0; j < i; j++)
                if (same(json_array_get(v, i), json_array_get(v, j))) return false;
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

/* Generates random allowed tokens, after a while those that close something. Returns the length, or 0 if the text did
 * not end. */
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
    case 0:
        json_object_set_new(s, "pattern", json_string(patterns[rng_below(r, 11)]));
        if (rng_below(r, 3) == 0) json_object_set_new(s, "minLength", json_integer((json_int_t)rng_below(r, 5)));
        if (rng_below(r, 3) == 0) json_object_set_new(s, "maxLength", json_integer((json_int_t)rng_below(r, 8)));
        break;
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
    if (rng_below(r, 4) == 0) {
        json_object_set_new(s, "items",
                            rng_below(r, 3) ? json_pack("{s:[s,i,i,n,b,[i],f]}", "enum", "a", 2, 1, 1, 2, 1.0)
                                            : json_pack("{s:[{s:s},{s:i}]}", "anyOf", "type", "boolean", "const", 3));
        json_object_set_new(s, "uniqueItems", json_true());
        json_object_del(s, "prefixItems");
    }
    size_t min = rng_below(r, 4);
    if (rng_below(r, 2)) json_object_set_new(s, "minItems", json_integer((json_int_t)min));
    if (rng_below(r, 2)) json_object_set_new(s, "maxItems", json_integer((json_int_t)(min + rng_below(r, 4))));
    return s;
}

static json_t *random_object(rng *r, int depth) {
    json_t *s = json_pack("{s:s}", "type", "object"), *properties = json_object(), *required = json_array();
    const bool by_pattern = rng_below(r, 6) == 0;
    if (by_pattern)
        json_object_set_new(s, "patternProperties",
                            json_pack("{s:o}", rng_below(r, 2) ? "^[a-c]x?$" : "n", random_schema(r, depth - 1)));
    for (size_t n = by_pattern ? rng_below(r, 12) / 11 : rng_below(r, 6); n > 0; n--) {
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
    case 14: /* a reference, alone or beside other keywords */
        s = json_pack("{s:s}", "$ref",
                      (const char *[]){"#/$defs/list", "#/$defs/tree", "#/$defs/small"}[rng_below(r, 3)]);
        if (rng_below(r, 4) == 0) json_object_set_new(s, "minProperties", json_integer(0));
        return s;
    default: /* a choice beside other keywords */
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

/* Writes a schema and a generated document, one line each, for another validator (tests/peer/schema_peer.sh). */
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

/* ---- Both directions ---- */

/* Schemas whose grammars allow every valid document that is written without spaces, with properties in order. */
static json_t *plain_schema(rng *r, int depth) {
    json_t *s, *list;
    const json_int_t low = (json_int_t)rng_below(r, 30) - 15;
    switch (rng_below(r, depth > 0 ? 8 : 4)) {
    case 0:
        s = json_pack("{s:s}", "type", "integer");
        if (rng_below(r, 4)) json_object_set_new(s, "minimum", json_integer(low));
        if (rng_below(r, 4)) json_object_set_new(s, "maximum", json_integer(low + (json_int_t)rng_below(r, 120)));
        return s;
    case 1:
        s = json_pack("{s:s}", "type", "string");
        if (rng_below(r, 3)) json_object_set_new(s, "minLength", json_integer((json_int_t)rng_below(r, 4)));
        if (rng_below(r, 3)) json_object_set_new(s, "maxLength", json_integer(3 + (json_int_t)rng_below(r, 4)));
        return s;
    case 2: return json_pack("{s:s}", "type", rng_below(r, 2) ? "null" : "boolean");
    case 3: return json_pack("{s:[i,s,b,n]}", "enum", (int)low, "ab", 1);
    case 4:
    case 5:
        s = json_pack("{s:s,s:o}", "type", "array", "items", plain_schema(r, depth - 1));
        if (rng_below(r, 2)) json_object_set_new(s, "minItems", json_integer((json_int_t)rng_below(r, 3)));
        if (rng_below(r, 2)) json_object_set_new(s, "maxItems", json_integer(2 + (json_int_t)rng_below(r, 3)));
        if (rng_below(r, 3) == 0)
            json_object_set_new(s, "prefixItems",
                                json_pack("[o,o]", plain_schema(r, depth - 1), plain_schema(r, depth - 1)));
        return s;
    case 6:
        s = json_pack("{s:s,s:b,s:{},s:[]}", "type", "object", "additionalProperties", 0, "properties", "required");
        for (const char *name = "abcde"; *name; name++) {
            const char key[2] = {*name, 0};
            json_object_set_new(json_object_get(s, "properties"), key, plain_schema(r, depth - 1));
            if (rng_below(r, 2)) json_array_append_new(json_object_get(s, "required"), json_string(key));
        }
        return s;
    default:
        list = json_array();
        for (size_t n = 1 + rng_below(r, 3); n > 0; n--) json_array_append_new(list, plain_schema(r, depth - 1));
        return json_pack("{s:o}", "anyOf", list);
    }
}

/* A document that is valid, or nearly. */
static json_t *document_near(const json_t *schema, rng *r, int depth) {
    static const char *const types[] = {"integer", "string", "null", "boolean"};
    const json_t *list = json_object_get(schema, "anyOf"), *values = json_object_get(schema, "enum");
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (list) return document_near(json_array_get(list, rng_below(r, json_array_size(list))), r, depth);
    if (values && rng_below(r, 8))
        return json_deep_copy(json_array_get(values, rng_below(r, json_array_size(values))));
    if (!type || depth <= 0 || rng_below(r, 25) == 0) type = types[rng_below(r, 4)];
    if (strcmp(type, "null") == 0) return json_null();
    if (strcmp(type, "boolean") == 0) return json_boolean(rng_below(r, 2));
    if (strcmp(type, "integer") == 0) { /* often just inside or outside the bounds */
        const json_t *bound = json_object_get(schema, rng_below(r, 2) ? "minimum" : "maximum");
        if (bound && rng_below(r, 4))
            return json_integer(json_integer_value(bound) + (json_int_t)rng_below(r, 3) - 1);
        return json_integer((json_int_t)rng_below(r, 400) - 150);
    }
    if (strcmp(type, "string") == 0) {
        static const char letters[] = "abcdefghij";
        const size_t n = rng_below(r, 9);
        return json_stringn(letters + rng_below(r, 2), n);
    }
    if (strcmp(type, "array") == 0) {
        json_t *out = json_array(), *prefix = json_object_get(schema, "prefixItems");
        for (size_t i = 0, n = rng_below(r, 6); i < n; i++)
            json_array_append_new(out, document_near(i < json_array_size(prefix) ? json_array_get(prefix, i)
                                                                                 : json_object_get(schema, "items"),
                                                     r, depth - 1));
        return out;
    }
    json_t *out = json_object(), *item;
    const char *name;
    json_object_foreach(json_object_get(schema, "properties"), name, item) {
        bool needed = false;
        size_t i;
        json_t *other;
        json_array_foreach(json_object_get(schema, "required"), i, other) needed =
            needed || strcmp(json_string_value(other), name) == 0;
        if (rng_below(r, 20) ? needed || rng_below(r, 2) : !needed)
            json_object_set_new(out, name, document_near(item, r, depth - 1));
    }
    if (rng_below(r, 30) == 0) json_object_set_new(out, "z", json_null());
    return out;
}

static void documents_are_accepted_just_where_they_are_valid(void **state) {
    (void)state;
    rng random = {77};
    int accepted = 0, refused = 0;
    for (int round = 0; round < (getenv("TENON_LONG") ? 20000 : 400); round++) {
        json_t *schema = schema_root = plain_schema(&random, 3);
        char *dump = json_dumps(schema, 0), *gbnf = NULL;
        tn_grammar *g;
        const tn_status status = tn_schema_to_grammar(dump, &gbnf);
        if (status != TN_OK) fail_msg("%s: %s", dump, tn_error());
        assert_ok(tn_grammar_new(gbnf, NULL, &g));
        for (int i = 0; i < 40; i++) {
            tn_grammar_state *s;
            json_t *document = document_near(schema, &random, 5);
            char *text = json_dumps(document, JSON_ENCODE_ANY | JSON_COMPACT);
            assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = g, .memory = 1 << 19}, &s));
            const bool expected = valid(schema, document),
                       got = tn_grammar_accept_bytes(s, text, strlen(text)) == TN_OK && tn_grammar_is_accepting(s);
            if (got != expected) fail_msg("%s\nis %s, for\n%s\n%s", text, got ? "accepted" : "refused", dump, gbnf);
            accepted += got;
            refused += !got;
            tn_grammar_state_free(s);
            free(text);
            json_decref(document);
        }
        tn_grammar_free(g);
        tn_free(gbnf);
        free(dump);
        json_decref(schema);
    }
    assert_true(accepted > refused / 4 && refused > accepted / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_accepted_just_where_they_are_valid),
        cmocka_unit_test(documents_from_random_schemas_are_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

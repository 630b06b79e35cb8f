/* JSON schema to GBNF: schemas with documents they accept and refuse, errors, hostile schemas. */
#include "../fuzz/fuzz_schema.c" /* its target replays the corpus below */
#include "../support/corpus.h"
#include "../support/support.h"

#include "tenon/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static const struct {
    const char *schema;
    const char *accepted[8], *refused[8];
} known_schemas[] = {
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
    {"{\"type\": \"string\", \"pattern\": \"^\\\\d{3}-[a-f]+$\"}", {"\"123-abc\""}, {"\"12-abc\"", "\"123-xyz\""}},
    {"{\"type\": \"string\", \"pattern\": \"\\\\w\\\\s\"}", {"\"..a ..\"", "\"a\\t\""}, {"\"ab\"", "\" \""}},
    {"{\"type\": \"string\", \"pattern\": \"^(?:a|(?<n>bc))*?\\\\/$\"}", {"\"abca/\"", "\"/\""}, {"\"b/\"", "\"a\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[^\\\\s]$\"}", {"\"a\"", "\"\\\"\"", "\"\\\\\""}, {"\" \"", "\"\\n\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[ab]+$\", \"maxLength\": 3}",
     {"\"a\"", "\"bab\""},
     {"\"\"", "\"abab\"", "\"c\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[a-z][a-z0-9]*$\", \"minLength\": 2, \"maxLength\": 3}",
     {"\"a1\"", "\"abc\""},
     {"\"a\"", "\"abcd\"", "\"1a\""}},
    {"{\"type\": \"string\", \"pattern\": \"^x(ab){2,}y$|^z|^[cd]{2}$\", \"minLength\": 3, \"maxLength\": 8}",
     {"\"xababy\"", "\"xabababy\"", "\"zab\"", "\"z1234567\""},
     {"\"xabababaaby\"", "\"xababababy\"", "\"z1\"", "\"z12345678\"", "\"cd\""}},
    {"{\"type\": \"string\", \"pattern\": \"^\\\\d{3}$\", \"minLength\": 2}", {"\"123\""}, {"\"12\""}},
    {"{\"type\": \"array\", \"items\": {\"enum\": [1, \"b\", null]}, \"uniqueItems\": true, \"maxItems\": 2}",
     {"[]", "[1]", "[null]", "[1, \"b\"]", "[\"b\",1]", "[null,\"b\"]"},
     {"[1,1]", "[\"b\",\"b\"]", "[1,\"b\",null]", "[2]", "[1,]"}},
    {"{\"items\": {\"anyOf\": [{\"const\": 1}, {\"enum\": [1.0, 2]}, {\"type\": \"boolean\"}]}, \"uniqueItems\": "
     "true, "
     "\"minItems\": 3}",
     {"[2,1,true]", "[false,true,1,2]"},
     {"[]", "[1]", "[1,2]", "[1,2,1]", "[1,1.0,2]", "[true,true,1]"}},
    {"{\"items\": {\"type\": \"integer\"}, \"uniqueItems\": true, \"maxItems\": 1}", {"[]", "[5]"}, {"[5,6]"}},
    {"{\"type\": \"object\", \"patternProperties\": {\"^x[0-9]$\": {\"type\": \"integer\"}}, "
     "\"additionalProperties\": "
     "false}",
     {"{}", "{\"x1\":2}", "{\"x1\": 2, \"x2\": 3}"},
     {"[]", "{\"x\":1}", "{\"y1\":1}", "{\"x1\":\"a\"}"}},
    {"{\"patternProperties\": {\"a\": {\"const\": 1}}, \"minProperties\": 1, \"maxProperties\": 2}",
     {"{\"bab\":1}", "{\"a\":1,\"ca\":1}"},
     {"{}", "{\"b\":1}", "{\"a\":1,\"ab\":1,\"ac\":1}"}},
    {"{\"type\": \"string\", \"format\": \"date\"}",
     {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"2024-00-10\""}},
    {"{\"type\": \"string\", \"format\": \"date-time\"}",
     {"\"2024-05-06T07:08:09Z\"", "\"2024-05-06T23:59:59.123+02:00\""},
     {"\"2024-05-06 07:08:09Z\"", "\"2024-05-06T24:00:00Z\"", "\"2024-05-06T07:08:09\""}},
    {"{\"type\": \"string\", \"format\": \"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\""}},
    {"{\"enum\": [\"a\\\"b\", 2, {\"x\": [1]}, null]}", {"\"a\\\"b\"", "2", "{\"x\":[1]}", "null"}, {"\"a\"", "3"}},
    {"{\"enum\": [\"a\", \"bb\", 5], \"type\": \"string\", \"maxLength\": 1}", {"\"a\""}, {"\"bb\"", "5"}},
    {"{\"const\": 1.5}", {"1.5"}, {"1", "2"}},
    {"{\"enum\": [0.30000000000000004, 1e-7, 123456789.25]}",
     {"0.30000000000000004", "123456789.25"},
     {"0.3", "0.30000000000000005", "123456789.2"}},
    /* What is the same: numbers by value, lists in order, objects in any order, nothing of different types. */
    {"{\"allOf\": [{\"enum\": [[], 1, \"1\", true, 0]}, {\"enum\": [{}, \"1\", 1.0, null, false]}]}",
     {"1", "\"1\""},
     {"[]", "{}", "true", "0", "false"}},
    {"{\"allOf\": [{\"enum\": [{}, [], [1], {\"a\": 1}]}, {\"enum\": [[], {\"b\": 1}, [2], {\"a\": 2}]}]}",
     {"[]"},
     {"{}", "[1]", "[2]"}},
    {"{\"allOf\": [{\"enum\": [{\"a\": 1, \"b\": [2]}, [1, 2], [3]]}, {\"enum\": [{\"b\": [2.0], \"a\": 1}, [2, 1], "
     "[3, 3]]}]}",
     {"{\"a\":1,\"b\":[2]}"},
     {"[1,2]", "[2,1]", "[3]", "{\"a\":1}"}},
    {"{\"allOf\": [{\"enum\": [{\"a\": 1}, {\"a\": 1, \"c\": 2}, 5]}, {\"enum\": [{\"a\": 1, \"b\": 2}, {\"a\": 2}, "
     "5]}]}",
     {"5"},
     {"{\"a\":1}"}},
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
    {"{\"type\": \"integer\", \"multipleOf\": 10}", {"0", "10", "-1200"}, {"5", "00", "1", "-0", "010", "101"}},
    {"{\"type\": \"integer\", \"multipleOf\": 2}", {"0", "2", "-14", "120"}, {"1", "02", "-0", "13"}},
    {"{\"type\": \"number\", \"multipleOf\": 5}", {"0", "5", "-15", "120"}, {"1", "05", "51", "5.0"}},
    {"{\"type\": \"number\", \"multipleOf\": 0.01}", {"1", "1.25", "-0.5", "0"}, {"1.255", "01", ".5", "1e2"}},
    {"{\"type\": \"string\", \"format\": \"email\", \"title\": \"t\", \"x-y\": 1, \"default\": 5}",
     {"\"anything\""},
     {"5"}},
};

static void known_schemas_accept_and_refuse(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof known_schemas / sizeof *known_schemas; i++) {
        char *gbnf;
        assert_ok(tn_schema_to_grammar(known_schemas[i].schema, &gbnf));
        for (int k = 0; k < 8 && known_schemas[i].accepted[k]; k++)
            if (!accepts(gbnf, known_schemas[i].accepted[k]))
                fail_msg("%s should be accepted by %s\n%s", known_schemas[i].accepted[k], known_schemas[i].schema,
                         gbnf);
        for (int k = 0; k < 8 && known_schemas[i].refused[k]; k++)
            if (accepts(gbnf, known_schemas[i].refused[k]))
                fail_msg("%s should be refused by %s\n%s", known_schemas[i].refused[k], known_schemas[i].schema,
                         gbnf);
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

/* Numbers with up to three decimals, ranges with up to two. */
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
        {"{\"type\": \"string\", \"oneOf\": [{\"minLength\": 1}, {\"minLength\": 3}]}", TN_E_UNSUPPORTED,
         "exactly one"},
        {"{\"allOf\": [{\"oneOf\": [{\"type\": \"string\"}, {\"minLength\": 3}]}]}", TN_E_UNSUPPORTED, "exactly one"},
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
        /* What is only unsupported can be ignored, and is named. */
        char *notes = NULL;
        status = tn_schema_to_grammar_relaxed(table[i].schema, &gbnf, &notes);
        if (table[i].status != TN_E_UNSUPPORTED) {
            assert_int_equal(status, table[i].status);
            assert_true(!gbnf && !notes);
            continue;
        }
        if (status != TN_OK || !notes || !strstr(notes, table[i].message))
            fail_msg("%s, relaxed: %s, %s", table[i].schema, tn_status_name(status), notes ? notes : tn_error());
        assert_true(accepts(gbnf, "{}") || accepts(gbnf, "[]") || accepts(gbnf, "1") || accepts(gbnf, "\"a\"") ||
                    accepts(gbnf, "\"abc\"") || accepts(gbnf, "\"xxx\""));
        tn_free(gbnf);
        tn_free(notes);
    }
}

/* Only the keyword that cannot be converted is ignored, not the rest of its schema. */
static void an_ignored_keyword_leaves_the_rest(void **state) {
    (void)state;
    static const struct {
        const char *schema, *note, *accepted[4], *refused[5];
    } table[] = {
        {"{\"properties\": {\"n\": {\"type\": \"integer\", \"multipleOf\": 3}, \"t\": {\"type\": \"string\", "
         "\"not\": {\"const\": "
         "\"x\"}, \"maxLength\": 2}}, \"required\": [\"n\", \"t\"], \"additionalProperties\": false}",
         "#/properties/t: the keyword \"not\"",
         {"{\"n\":4,\"t\":\"x\"}", "{\"n\":-3,\"t\":\"ab\"}"},
         {"{\"n\":1.5,\"t\":\"x\"}", "{\"n\":4,\"t\":\"abc\"}", "{\"n\":4}", "{\"n\":4,\"t\":\"x\",\"u\":1}", "4"}},
        {"{\"type\": \"array\", \"items\": {\"enum\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}, \"uniqueItems\": true, "
         "\"maxItems\": 3}",
         "uniqueItems",
         {"[]", "[1,2]", "[1,1]"},
         {"[10]", "[1,1,1,1]"}},
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"uniqueItems\": true}",
         "uniqueItems",
         {"[1,1]"},
         {"[true]"}},
        {"{\"type\": \"object\", \"patternProperties\": {\"^x\": {\"type\": \"integer\"}, \"y$\": {\"minimum\": 3}}, "
         "\"additionalProperties\": false}",
         "patternProperties",
         {"{}", "{\"x1\":2}"},
         {"[]", "1"}},
        {"{\"patternProperties\": {\"(?=x)\": {\"type\": \"integer\"}}}",
         "#/patternProperties: at character",
         {"{}", "{\"x1\":2}"},
         {"[]", "1"}},
        {"{\"type\": \"string\", \"pattern\": \"^[ab]+c*$\", \"maxLength\": 3}",
         "together",
         {"\"ab\""},
         {"\"c\"", "\"\""}},
        {"{\"type\": \"string\", \"pattern\": \"(?=a)\", \"maxLength\": 3}",
         "at character",
         {"\"abc\""},
         {"\"abcd\""}},
        {"{\"type\": \"string\", \"format\": \"time\", \"minLength\": 3}",
         "minLength",
         {"\"10:20:30Z\""},
         {"\"abc\""}},
        {"{\"properties\": {\"a\": {\"$ref\": \"other.json\"}, \"b\": {\"type\": \"null\"}}}",
         "only references",
         {"{\"a\":[1],\"b\":null}"},
         {"{\"a\":1,\"b\":2}"}},
        {"{\"oneOf\": [{\"type\": \"string\"}, {\"type\": \"string\", \"minLength\": 3}, {\"type\": \"null\"}]}",
         "exactly one",
         {"\"a\"", "null"},
         {"1"}},
        {"{\"enum\": [\"a\", \"b\"], \"pattern\": \"a\"}", "\"enum\"", {"\"a\"", "\"b\""}, {"\"c\""}},
        {"{\"type\": \"integer\", \"minimum\": 1e17}", "digits", {"5"}, {"1.5"}},
        {"{\"properties\": {\"a\": {\"type\": \"null\"}, \"b\": {\"type\": \"null\"}}, \"maxProperties\": 1}",
         "maxProperties",
         {"{\"a\":null}", "{\"a\":null,\"b\":null}"},
         {"{\"a\":1}"}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char *gbnf, *notes;
        assert_ok(tn_schema_to_grammar_relaxed(table[i].schema, &gbnf, &notes));
        if (!notes || !strstr(notes, table[i].note)) fail_msg("%s: %s", table[i].schema, notes ? notes : "no note");
        for (int k = 0; k < 4 && table[i].accepted[k]; k++)
            if (!accepts(gbnf, table[i].accepted[k]))
                fail_msg("%s refuses %s", table[i].schema, table[i].accepted[k]);
        for (int k = 0; k < 5 && table[i].refused[k]; k++)
            if (accepts(gbnf, table[i].refused[k])) fail_msg("%s accepts %s", table[i].schema, table[i].refused[k]);
        tn_free(gbnf);
        tn_free(notes);
    }
    char *gbnf, *notes = (char *)1;
    assert_ok(tn_schema_to_grammar_relaxed("{\"type\": \"null\"}", &gbnf, &notes));
    assert_null(notes);
    tn_free(gbnf);
    assert_ok(tn_schema_to_grammar_relaxed("{\"not\": {}}", &gbnf, NULL));
    tn_free(gbnf);
    assert_fails(TN_E_INVALID, tn_schema_to_grammar_relaxed(NULL, &gbnf, &notes));
}

/* Each of these arrays needs a rule for every set of its values: later ones give up uniqueItems, not the schema. */
static void many_arrays_of_unique_items_leave_rules(void **state) {
    (void)state;
    enum { ARRAYS = 100, ROOM = 160 };
    char *schema = malloc((ARRAYS + 1) * ROOM), *at = schema, *gbnf, *notes;
    assert_non_null(schema);
    at += snprintf(at, ROOM, "{\"prefixItems\": [");
    for (int i = 0; i < ARRAYS; i++)
        at += snprintf(at, ROOM,
                       "%s{\"type\": \"array\", \"items\": {\"enum\": [%d,1,2,3,4,5,6,7]}, \"uniqueItems\": true}",
                       i ? "," : "", 10 + i);
    snprintf(at, ROOM, "]}");
    assert_fails(TN_E_UNSUPPORTED, tn_schema_to_grammar(schema, &gbnf));
    assert_ok(tn_schema_to_grammar_relaxed(schema, &gbnf, &notes));
    assert_true(notes && strstr(notes, "uniqueItems"));
    assert_true(accepts(gbnf, "[[1,10,7]]") && !accepts(gbnf, "[[1,1]]"));
    tn_free(gbnf);
    tn_free(notes);
    free(schema);
}

/* Lengths and counts are non-negative integers wherever they are read. */
static void wrong_counts_are_refused_everywhere(void **state) {
    (void)state;
    static const char *const values[] = {"-1", "1.5", "\"1\"", "true", "[]", "null"};
    static const char *const places[][2] = {
        {"Length", "{\"type\": \"string\", \"%s\": %s}"},
        {"Length", "{\"type\": \"string\", \"format\": \"date\", \"%s\": %s}"},
        {"Length", "{\"type\": \"string\", \"pattern\": \"a\", \"%s\": %s}"},
        {"Length", "{\"allOf\": [{\"%s\": %s}, {\"type\": \"string\"}]}"},
        {"Length", "{\"allOf\": [{\"type\": \"string\"}, {\"%s\": %s}]}"},
        {"Length", "{\"enum\": [\"a\"], \"%s\": %s}"},
        {"Items", "{\"type\": \"array\", \"%s\": %s}"},
        {"Items", "{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"%s\": %s}"},
        {"Items", "{\"allOf\": [{\"%s\": %s}, {\"type\": \"array\"}]}"},
        {"Items", "{\"allOf\": [{\"type\": \"array\"}, {\"%s\": %s}]}"},
        {"Properties", "{\"type\": \"object\", \"%s\": %s}"},
        {"Properties", "{\"type\": \"object\", \"properties\": {\"a\": {}}, \"%s\": %s}"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (size_t k = 0; k < 2 * sizeof values / sizeof *values; k++) {
            char key[32], schema[200], *gbnf = NULL;
            snprintf(key, sizeof key, "%s%s", k % 2 ? "max" : "min", places[i][0]);
            snprintf(schema, sizeof schema, places[i][1], key, values[k / 2]);
            const tn_status status = tn_schema_to_grammar(schema, &gbnf);
            if (status != TN_E_SYNTAX || !strstr(tn_error(), key))
                fail_msg("%s: %s, %s", schema, tn_status_name(status), tn_error());
        }
}

/* Beside "enum" keywords are refused that would have to be checked for one of the values, and only these. */
static void keywords_beside_a_list_of_values(void **state) {
    (void)state;
    static const struct {
        const char *keyword, *kinds; /* of values that it concerns: string, number, array, object */
    } keywords[] = {
        {"\"pattern\": \"a\"", "s"},     {"\"format\": \"date\"", "s"},
        {"\"multipleOf\": 1", "n"},      {"\"properties\": {\"a\": {}}", "ao"},
        {"\"required\": [\"a\"]", "ao"}, {"\"additionalProperties\": true", "ao"},
        {"\"items\": {}", "ao"},         {"\"prefixItems\": [{}]", "ao"},
        {"\"minProperties\": 1", "ao"},  {"\"maxProperties\": 9", "ao"},
        {"\"minItems\": 1", "ao"},       {"\"maxItems\": 9", "ao"},
        {"\"minLength\": 1", ""},        {"\"maximum\": 99", ""},
        {"\"title\": \"t\"", ""},
    };
    static const char *const values[] = {"_null", "_true", "n3", "n2.5", "s\"a\"", "a[1]", "o{\"a\": 1}"};
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            char schema[200], *gbnf = NULL;
            snprintf(schema, sizeof schema, "{\"enum\": [%s], %s}", values[k] + 1, keywords[i].keyword);
            const tn_status status = tn_schema_to_grammar(schema, &gbnf);
            const bool concerns = strchr(keywords[i].kinds, values[k][0]) != NULL;
            if (status != (concerns ? TN_E_UNSUPPORTED : TN_OK))
                fail_msg("%s: %s, %s", schema, tn_status_name(status), tn_error());
            tn_free(gbnf);
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
static tn_status convert_relaxed(void *user) {
    char *gbnf, *notes;
    TN_TRY(tn_schema_to_grammar_relaxed(user, &gbnf, &notes));
    tn_free(gbnf);
    tn_free(notes);
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
    schema = "{\"properties\": {\"a\": {\"not\": {}, \"pattern\": \"(?=a)\"}, \"b\": {\"uniqueItems\": true}}}";
    check_every_allocation_failure(convert_relaxed, schema);
    check_no_leak(convert_relaxed, schema);
}

static void fuzz_corpus_is_survived(void **state) {
    (void)state;
    assert_true(replay_corpus("schema", LLVMFuzzerTestOneInput) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_schemas_accept_and_refuse),
        cmocka_unit_test(every_integer_of_a_range_and_no_other),
        cmocka_unit_test(every_decimal_of_a_range_and_no_other),
        cmocka_unit_test(bad_schemas_are_refused_with_path_and_reason),
        cmocka_unit_test(an_ignored_keyword_leaves_the_rest),
        cmocka_unit_test(many_arrays_of_unique_items_leave_rules),
        cmocka_unit_test(wrong_counts_are_refused_everywhere),
        cmocka_unit_test(keywords_beside_a_list_of_values),
        cmocka_unit_test(hostile_schemas_end_soon),
        cmocka_unit_test(fuzz_corpus_is_survived),
        cmocka_unit_test(running_out_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

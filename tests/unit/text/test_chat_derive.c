/* Chat: the markers of calls, read off rendered turns, without golden templates. */
#include "support.h"
#include "text/chat/internal.h"

#include <stdlib.h>
#include <string.h>

#define FN TN__PROBE_NAME
#define KEY TN__PROBE_KEY
#define VALUE "tn_probe_value"

typedef struct derive_case {
    const char *name, *rendered, *two_calls, *two_arguments;
    tn__chat_syntax expected; /* with NULL for absent markers */
} derive_case;

#define JSON_CALL(name) "{\"name\": \"" name "\", \"arguments\": {\"" KEY "\": \"" VALUE "\"}}"
#define GEMMA_CALL(name) "<call>call:" name "{" KEY ":<q>" VALUE "<q>}<end>"
#define TAG_CALL(name, more) "<call>" name "\n<key>" KEY "</key>\n<value>" VALUE "</value>\n" more "</call>"
#define PADDED_CALL(name, more) "<f=" name ">\n<p=" KEY ">\n" VALUE "\n</p>\n" more "</f>"

static const derive_case cases[] = {
    {"json, each call in tags",
     "<c>" JSON_CALL(FN) "</c>\n",
     "<c>" JSON_CALL(FN) "</c>\n<c>" JSON_CALL(FN "2") "</c>\n",
     NULL,
     {.kind = TN__CHAT_JSON,
      .section_begin = "",
      .section_end = "",
      .call_begin = "<c>",
      .call_end = "</c>",
      .name_key = "name",
      .arguments_key = "arguments"}},
    {"json with an id, in a section",
     "<s><c>{\"id\": \"" TN__PROBE_ID "\", \"fn\": \"" FN "\", \"args\": {\"" KEY "\": 1}}</c></s>",
     "<s><c>{\"id\": \"" TN__PROBE_ID "\", \"fn\": \"" FN "\", \"args\": {\"" KEY
     "\": 1}}</c><c>{\"id\": \"x\", \"fn\": \"" FN "2\", \"args\": {\"" KEY "\": 1}}</c></s>",
     NULL,
     {.kind = TN__CHAT_JSON,
      .section_begin = "<s>",
      .section_end = "</s>",
      .call_begin = "<c>",
      .call_end = "</c>",
      .name_key = "fn",
      .arguments_key = "args",
      .id_key = "id"}},
    {"a list of json",
     "[CALLS] [" JSON_CALL(FN) "]",
     "[CALLS] [" JSON_CALL(FN) ", " JSON_CALL(FN "2") "]",
     NULL,
     {.kind = TN__CHAT_JSON,
      .section_begin = "[CALLS] [",
      .section_end = "]",
      .call_begin = "",
      .call_end = "",
      .name_key = "name",
      .arguments_key = "arguments"}},
    {"json, one call at most",
     "<c>" JSON_CALL(FN) "</c>",
     NULL,
     NULL,
     {.kind = TN__CHAT_JSON,
      .section_begin = "",
      .section_end = "",
      .call_begin = "<c>",
      .call_end = "</c>",
      .name_key = "name",
      .arguments_key = "arguments"}},
    {"a name before json",
     "<s><c>" FN "<a>{\"" KEY "\": 1}</c></s>",
     "<s><c>" FN "<a>{\"" KEY "\": 1}</c><c>" FN "2<a>{\"" KEY "\": 1}</c></s>",
     NULL,
     {.kind = TN__CHAT_NAMED,
      .section_begin = "<s>",
      .section_end = "</s>",
      .call_begin = "<c>",
      .call_end = "</c>",
      .name_end = "<a>"}},
    {"functions of Python",
     "<s>[" FN "(" KEY "='" VALUE "')]</s>",
     NULL,
     NULL,
     {.kind = TN__CHAT_PYTHONIC, .section_begin = "<s>", .section_end = "</s>"}},
    {"gemma",
     GEMMA_CALL(FN),
     GEMMA_CALL(FN) GEMMA_CALL(FN "2"),
     NULL,
     {.kind = TN__CHAT_GEMMA, .call_begin = "<call>call:", .call_end = "<end>", .quote = "<q>"}},
    {"tags",
     TAG_CALL(FN, ""),
     TAG_CALL(FN, "") "\n" TAG_CALL(FN "2", ""),
     TAG_CALL(FN, "<key>" KEY "2</key>\n<value>" VALUE "2</value>\n"),
     {.kind = TN__CHAT_TAGGED,
      .section_begin = "",
      .section_end = "",
      .call_begin = "<call>",
      .call_end = "</call>",
      .name_end = "",
      .key_begin = "<key>",
      .key_end = "</key>\n<value>",
      .value_end = "</value>"}},
    {"tags with lines of their own",
     PADDED_CALL(FN, ""),
     PADDED_CALL(FN, "") "\n" PADDED_CALL(FN "2", ""),
     PADDED_CALL(FN, "<p=" KEY "2>\n" VALUE "2\n</p>\n"),
     {.kind = TN__CHAT_TAGGED,
      .padded_values = true,
      .section_begin = "",
      .section_end = "",
      .call_begin = "<f=",
      .call_end = "</f>",
      .name_end = ">",
      .key_begin = "<p=",
      .key_end = ">",
      .value_end = "</p>"}},
    {"no call", "Hello", NULL, NULL, {.kind = TN__CHAT_NONE}},
    {"a name without a key", "<c>" FN "</c>", NULL, NULL, {.kind = TN__CHAT_NONE}},
    {"tags, but no turn with two arguments", TAG_CALL(FN, ""), NULL, NULL, {.kind = TN__CHAT_NONE}},
};

static void compare_marker(const char *name, const char *marker, const char *expected, const char *got) {
    if ((expected == NULL) != (got == NULL) || (expected && strcmp(expected, got) != 0))
        fail_msg("%s: %s is %s instead of %s", name, marker, got ? got : "absent", expected ? expected : "absent");
}

static void markers_are_read_off_rendered_calls(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const derive_case *c = &cases[i];
        tn__chat_syntax got = {0};
        assert_ok(tn__chat_derive(c->rendered, c->two_calls, c->two_arguments, &got));
        if (got.kind != c->expected.kind) fail_msg("%s: kind %d instead of %d", c->name, got.kind, c->expected.kind);
        if (got.padded_values != c->expected.padded_values) fail_msg("%s: padded values", c->name);
#define TN_X(marker) compare_marker(c->name, #marker, c->expected.marker, got.marker);
        TN__CHAT_MARKERS(TN_X)
#undef TN_X
        tn__chat_syntax_clear(&got);
    }
}

static char *owned(const char *text) {
    char *copy = tn_malloc(strlen(text) + 1);
    assert_non_null(copy);
    return strcpy(copy, text);
}

/* Markers that no grammar could hold are dropped, all together; those of reasoning stay. */
static void implausible_markers_are_dropped(void **state) {
    (void)state;
    for (size_t length = TN__CHAT_MARKER_MAX - 1; length <= TN__CHAT_MARKER_MAX + 1; length++) {
        char text[1024], marker[TN__CHAT_MARKER_MAX + 2];
        tn__chat_syntax got = {.reasoning_begin = owned("<think>"), .reasoning_end = owned("</think>")};
        memset(marker, 'x', length);
        marker[length] = '\0';
        snprintf(text, sizeof text, "%s" JSON_CALL(FN) "</c>", marker);
        assert_ok(tn__chat_derive(text, NULL, NULL, &got));
        assert_int_equal(got.kind, length <= TN__CHAT_MARKER_MAX ? TN__CHAT_JSON : TN__CHAT_NONE);
        compare_marker("long", "call_begin", length <= TN__CHAT_MARKER_MAX ? marker : NULL, got.call_begin);
        compare_marker("long", "reasoning_begin", "<think>", got.reasoning_begin);
        compare_marker("long", "reasoning_end", "</think>", got.reasoning_end);
        tn__chat_syntax_clear(&got);
    }
    assert_true(tn__chat_plausible("", 0));
    assert_true(tn__chat_plausible("\xc3\xa4", 2));
    assert_false(tn__chat_plausible("\xc3", 1)); /* half a character */
}

static tn_status derive_all(void *user) {
    (void)user;
    tn_status status = TN_OK;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && status == TN_OK; i++) {
        tn__chat_syntax got = {0};
        status = tn__chat_derive(cases[i].rendered, cases[i].two_calls, cases[i].two_arguments, &got);
        tn__chat_syntax_clear(&got);
    }
    return status;
}
static void every_allocation_may_fail(void **state) {
    (void)state;
    check_every_allocation_failure(derive_all, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(markers_are_read_off_rendered_calls),
        cmocka_unit_test(implausible_markers_are_dropped),
        cmocka_unit_test(every_allocation_may_fail),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

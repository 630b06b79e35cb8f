/* Chat: golden renders, what templates support, adapted messages. */
#include <glob.h>
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "chat_cases.h"
#include "tenon/grammar.h"

/* ---- Rendering ---- */

static void every_golden_render_is_identical(void **state) {
    (void)state;
    GOLDEN_OR_SKIP(folder, "chat");
    char pattern[1100];
    glob_t templates;
    int same = 0, refused = 0, wrong = 0;
    setenv("TENON_NOW", "2026-11-15T12:00:00", 1);
    snprintf(pattern, sizeof pattern, "%s/*.jinja", folder);
    assert_int_equal(glob(pattern, 0, NULL, &templates), 0);
    for (size_t i = 0; i < templates.gl_pathc; i++) {
        size_t size;
        char *source = read_file(templates.gl_pathv[i], &size);
        tn_chat_template *chat;
        assert_ok(tn_chat_template_new(source, &chat));
        free(source);
        const char *const cases[] = {"user", "dialog", "tools"};
        for (size_t k = 0; k < 3; k++) {
            char path[1200], *text;
            size_t length = 0, expected_length = 0;
            int stem = (int)strlen(templates.gl_pathv[i]) - 6;
            snprintf(path, sizeof path, "%.*s/%s.json", (int)strlen(pattern) - 8, pattern, cases[k]);
            char *variables = read_file(path, &size);
            assert_non_null(variables);
            snprintf(path, sizeof path, "%.*s.%s.txt", stem, templates.gl_pathv[i], cases[k]);
            char *expected = read_file(path, &expected_length);
            tn_status status = tn_chat_render(chat, variables, 0, &text, &length);
            bool right = expected
                             ? status == TN_OK && length == expected_length && memcmp(text, expected, length) == 0
                             : status == TN_E_INVALID;
            if (!right) print_error("%s: %s\n", path, status == TN_OK ? "differs" : tn_error());
            wrong += !right;
            same += right && expected;
            refused += right && !expected;
            free(variables);
            free(expected);
            tn_free(text);
        }
        tn_chat_template_free(chat);
    }
    globfree(&templates);
    unsetenv("TENON_NOW");
    print_message("%d renders identical, %d refused as expected\n", same, refused);
    assert_int_equal(wrong, 0);
    assert_int_equal(same, 131);
}

static void default_template_is_chatml(void **state) {
    (void)state;
    tn_chat_template *chat;
    assert_ok(tn_chat_template_new(NULL, &chat));
    tn_chat_prompt *prompt = prompt_of(
        chat, "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"Hi\"}]", NULL);
    assert_string_equal(tn_chat_prompt_text(prompt, NULL),
                        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_string_equal(tn_chat_template_turn_end(chat), "<|im_end|>");
    assert_null(tn_chat_prompt_grammar(prompt));
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

static void bad_input_is_refused_with_reason(void **state) {
    (void)state;
    tn_chat_template *chat;
    tn_chat_prompt *prompt;
    char *text;
    assert_fails(TN_E_SYNTAX, tn_chat_template_new("{% if %}", &chat));
    assert_fails(TN_E_UNSUPPORTED, tn_chat_template_new("{% include 'x' %}", &chat));
    assert_ok(tn_chat_template_new(NULL, &chat));
    assert_fails(TN_E_INVALID, tn_chat_render(chat, "{", 0, &text, NULL));
    assert_fails(TN_E_INVALID, tn_chat_render(chat, "[]", 0, &text, NULL));
    const char *const messages[] = {
        "", "{}", "[1]", "[{}]", "[{\"role\": 1}]", "[{\"role\": \"user\", \"content\": \"x\"}"};
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        tn_chat_params params = tn_chat_params_default();
        params.messages = messages[i];
        assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, &params, &prompt));
    }
    tn_chat_params params = tn_chat_params_default();
    params.messages = "[]";
    params.tools = "[{\"type\": \"function\"}]";
    assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, &params, &prompt));
    params.tools = NULL;
    params.variables = "[1]";
    assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, &params, &prompt));
    params.variables = NULL;
    params.tools = tools_text;
    params.tool_choice = TN_TOOLS_REQUIRED;
    params.tool_name = "nothing";
    assert_fails(TN_E_NOT_FOUND, tn_chat_prompt_new(chat, &params, &prompt));
    tn_chat_template_free(chat);
}

static void hostile_templates_load_quickly(void **state) {
    (void)state;
    const char *const texts[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'tn_probe_text' * 60000 }}",
        "{{ messages }}{{ tools }}{{ messages|tojson * 1000 }}",
        "{% for m in messages %}{{ 'tn_probe_fn{tn_probe_key' * 1000 }}{{ m }}{% endfor %}",
        /* Calls rendered as long texts that look like a syntax. */
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '{' * 90000 }}{{ c.function.name "
        "}}"
        "{{ c.function.arguments|tojson }}{{ '}' * 90000 }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ ('[{\"name\":\"' ~ "
        "c.function.name) * 5000 }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}",
        "{{ (messages|tojson) * 2000 }}{{ tools|tojson }}",
        "{% for m in messages %}{{ m.role }}<\xff>{{ m.reasoning_content }}</\xff>{{ m.content }}{% for c in "
        "m.tool_calls or [] %}\xff{{ c.function|tojson }}\xff{% endfor %}{% endfor %}{% if add_generation_prompt "
        "%}assistant<\xff>{% endif %}",
        "{% for m in messages %}{{ m.role }}{{ '<' * 50000 }}{{ m.reasoning_content }}{{ '>' * 50000 }}{{ m.content "
        "}}{{ 'end' * 50000 }}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        tn_chat_template *chat;
        char *text;
        clock_t start = clock(); /* processor time: other processes may be busy */
        assert_ok(tn_chat_template_new(texts[i], &chat));
        if (i < 2) assert_fails(TN_E_LIMIT, tn_chat_render(chat, "{}", 0, &text, NULL));
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        double bar = 30;
#else
        double bar = 1;
#endif
        if (seconds > bar) fail_msg("%s: took %.2f s", texts[i], seconds);
        /* The grammar for calls compiles, whatever was derived from the template. */
        tn_chat_params params = tn_chat_params_default();
        params.messages = "[{\"role\": \"user\", \"content\": \"u\"}]";
        params.tools = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";
        params.tool_choice = TN_TOOLS_REQUIRED;
        tn_chat_prompt *prompt;
        tn_grammar *grammar;
        if (tn_chat_prompt_new(chat, &params, &prompt) == TN_OK) {
            if (tn_chat_prompt_grammar(prompt)) {
                assert_ok(tn_grammar_new(tn_chat_prompt_grammar(prompt), NULL, &grammar));
                tn_grammar_free(grammar);
            }
            tn_chat_prompt_free(prompt);
        }
        tn_chat_template_free(chat);
    }
}

/* ---- Adapting ---- */

static void missing_system_role_goes_to_the_user(void **state) {
    (void)state;
    tn_chat_template *chat;
    assert_ok(tn_chat_template_new(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}",
        &chat));
    assert_false(tn_chat_template_caps(chat)->system_role);
    tn_chat_prompt *prompt = prompt_of(
        chat, "[{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"Hi\"}]",
        NULL);
    assert_string_equal(tn_chat_prompt_text(prompt, NULL), "[user]Be brief.\n\nHi");
    tn_chat_prompt_free(prompt);
    prompt = prompt_of(chat, "[{\"role\": \"system\", \"content\": \"Alone\"}]", NULL);
    assert_string_equal(tn_chat_prompt_text(prompt, NULL), "[user]Alone");
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

static void content_takes_the_form_the_template_wants(void **state) {
    (void)state;
    tn_chat_template *text_only, *parts_only;
    assert_ok(tn_chat_template_new("{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}", &text_only));
    assert_ok(tn_chat_template_new(
        "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}", &parts_only));
    assert_false(tn_chat_template_caps(text_only)->part_content);
    assert_false(tn_chat_template_caps(parts_only)->text_content);
    const char *parts = "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
                        "\"text\", \"text\": \"b\"}]}]";
    tn_chat_prompt *prompt = prompt_of(text_only, parts, NULL);
    assert_string_equal(tn_chat_prompt_text(prompt, NULL), "user:a\nb");
    tn_chat_prompt_free(prompt);
    prompt = prompt_of(parts_only, "[{\"role\": \"user\", \"content\": \"x\"}]", NULL);
    assert_string_equal(tn_chat_prompt_text(prompt, NULL), "<x>");
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(text_only);
    tn_chat_template_free(parts_only);
}

static void tools_without_support_are_described(void **state) {
    (void)state;
    tn_chat_template *chat;
    assert_ok(tn_chat_template_new(NULL, &chat));
    assert_false(tn_chat_template_caps(chat)->tools);
    tn_chat_prompt *prompt = prompt_of(
        chat,
        "[{\"role\": \"user\", \"content\": \"Go\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
        "[{\"id\": \"1\", "
        "\"type\": \"function\", \"function\": {\"name\": \"test\", \"arguments\": \"{\\\"arg\\\": 1}\"}}]}, "
        "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"42\"}]",
        tools_text);
    const char *text = tn_chat_prompt_text(prompt, NULL);
    assert_non_null(strstr(text, "<|im_start|>system\nYou can call these tools:"));
    assert_non_null(strstr(text, "\"name\": \"other\""));
    assert_non_null(
        strstr(text, "<tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": 1}}\n</tool_call><|im_end|>"));
    assert_non_null(strstr(text, "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>"));
    assert_string_equal(tn_chat_prompt_trigger(prompt), "<tool_call>");
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

static void call_arguments_take_the_form_the_template_wants(void **state) {
    (void)state;
    LOAD_OR_SKIP(objects, "Qwen-Qwen2.5-7B-Instruct");
    LOAD_OR_SKIP(texts, "meetkai-functionary-medium-v3.2");
    const char *as_text = "[{\"role\": \"user\", \"content\": \"Go\"}, {\"role\": \"assistant\", \"content\": null, "
                          "\"tool_calls\": [{\"id\": "
                          "\"call00001\", \"type\": \"function\", \"function\": {\"name\": \"test\", \"arguments\": "
                          "\"{\\\"arg\\\": \\\"é\\\"}\"}}]}]";
    const char *as_object = "[{\"role\": \"user\", \"content\": \"Go\"}, {\"role\": \"assistant\", \"content\": "
                            "null, \"tool_calls\": [{\"id\": "
                            "\"call00001\", \"type\": \"function\", \"function\": {\"name\": \"test\", "
                            "\"arguments\": {\"arg\": \"é\"}}}]}]";
    assert_true(tn_chat_template_caps(objects)->object_arguments);
    assert_false(tn_chat_template_caps(texts)->object_arguments);
    for (int i = 0; i < 2; i++) {
        tn_chat_prompt *prompt = prompt_of(objects, i ? as_text : as_object, tools_text);
        assert_non_null(
            strstr(tn_chat_prompt_text(prompt, NULL), "{\"name\": \"test\", \"arguments\": {\"arg\": \"é\"}}"));
        tn_chat_prompt_free(prompt);
        prompt = prompt_of(texts, i ? as_text : as_object, tools_text);
        assert_non_null(strstr(tn_chat_prompt_text(prompt, NULL), ">>>test\n{\"arg\": \"é\"}"));
        tn_chat_prompt_free(prompt);
    }
    tn_chat_template_free(objects);
    tn_chat_template_free(texts);
}

/* ---- Memory ---- */

static tn_status whole_turn(void *user) {
    tn_chat_template *chat = NULL;
    tn_chat_prompt *prompt = NULL;
    tn_chat_parser *parser = NULL;
    char *json = NULL;
    const char *answer =
        "<think>a</think>Text\n<tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": \"x\"}}\n</tool_call>";
    tn_chat_params params = tn_chat_params_default();
    params.messages = "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": [{\"type\": "
                      "\"text\", \"text\": \"Go\"}]}]";
    params.tools = tools_text;
    tn_status status = tn_chat_template_new(user, &chat);
    if (status == TN_OK) status = tn_chat_prompt_new(chat, &params, &prompt);
    if (status == TN_OK) status = tn_chat_parser_new(prompt, &parser);
    for (size_t i = 0; status == TN_OK && i < strlen(answer); i += 5)
        status = tn_chat_parser_feed(parser, answer + i, strlen(answer + i) < 5 ? strlen(answer + i) : 5, NULL, NULL);
    if (status == TN_OK) status = tn_chat_parser_finish(parser, NULL, NULL);
    if (status == TN_OK) status = tn_chat_parser_message(parser, &json);
    tn_free(json);
    tn_chat_parser_free(parser);
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
    return status;
}

static void lack_of_memory_is_survived(void **state) {
    (void)state;
    check_no_leak(whole_turn, NULL);
    check_every_allocation_failure(whole_turn, NULL);
    GOLDEN_OR_SKIP(path, "chat/Kimi-K3.jinja");
    size_t size;
    char *text = read_file(path, &size);
    check_no_leak(whole_turn, text);
    if (getenv("TENON_LONG")) check_every_allocation_failure(whole_turn, text);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_render_is_identical),
        cmocka_unit_test(default_template_is_chatml),
        cmocka_unit_test(bad_input_is_refused_with_reason),
        cmocka_unit_test(hostile_templates_load_quickly),
        cmocka_unit_test(missing_system_role_goes_to_the_user),
        cmocka_unit_test(content_takes_the_form_the_template_wants),
        cmocka_unit_test(tools_without_support_are_described),
        cmocka_unit_test(call_arguments_take_the_form_the_template_wants),
        cmocka_unit_test(lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Prompts of conversations: begun answers that are continued, reasoning that is switched off, and the variables that
 * templates expect. */
#include "chat_cases.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

#define TURNS                                                                                                        \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"                                                              \
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content "           \
    "}}<|im_end|>\n{% endfor %}"
#define BEGIN "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define BEGIN_THINKING "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"

static const char plain[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" BEGIN;
static const char reasoning[] = TURNS BEGIN;
static const char thinking[] = TURNS BEGIN_THINKING;
static const char blank[] = TURNS "{% if add_generation_prompt %}<|im_start|>assistant\n<think> {% endif %}";
static const char switched[] =
    TURNS "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not "
          "enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

#define USER "{\"role\": \"user\", \"content\": \"Hi\"}"
#define ASKED "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"

typedef struct prompt_case {
    const char *source, *messages, *variables;
    bool continue_final, no_generation_prompt;
    const char *text; /* as it begins; markers are followed by what the template puts there */
    bool in_reasoning;
} prompt_case;

static const prompt_case cases[] = {
    {plain, "[" USER ", {\"role\": \"assistant\", \"content\": \"Once\"}]", NULL, true, false, ASKED "Once", false},
    {plain, "[" USER ", {\"role\": \"assistant\", \"content\": \"\"}]", NULL, true, false, ASKED, false},
    {plain, "[" USER ", {\"role\": \"assistant\", \"content\": null}]", NULL, true, false, ASKED, false},
    /* The turn is begun even if no generation prompt was asked for. */
    {plain, "[" USER ", {\"role\": \"assistant\", \"content\": \"Once\"}]", NULL, true, true, ASKED "Once", false},
    {plain,
     "[" USER ", {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", "
     "\"text\": \"b\"}]}]",
     NULL, true, false, ASKED "a\n\nb", false},
    {plain, "[" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"hm\", \"content\": \"Once\"}]", NULL, true,
     false, ASKED "<think>hm</think>Once", false},
    {plain, "[{\"role\": \"assistant\", \"content\": \"Once\"}]", NULL, true, false, "<|im_start|>assistant\nOnce",
     false},
    {plain, "[" USER "]", NULL, false, true, "<|im_start|>user\nHi<|im_end|>\n", false},
    {plain, "[" USER "]", "{\"enable_thinking\": false}", false, false, ASKED "<think></think>",
     false}, /* the usual markers */
    {reasoning, "[" USER ", {\"role\": \"assistant\", \"content\": \"Once\"}]", NULL, true, false, ASKED "Once",
     false},
    {reasoning, "[" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"hm\", \"content\": \"Once\"}]", NULL,
     true, false, ASKED "<think>hm</think>Once", false},
    {reasoning, "[" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"hm\"}]", NULL, true, false,
     ASKED "<think>hm", false},
    {reasoning, "[" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"\", \"content\": \"\"}]", NULL, true,
     false, ASKED "<think>", true},
    {reasoning, "[" USER "]", "{\"enable_thinking\": false}", false, false, ASKED "<think></think>", false},
    {reasoning, "[" USER "]", "{\"enable_thinking\": true}", false, false, ASKED, false},
    {reasoning, "[" USER "]", "{\"enable_thinking\": false}", false, true, "<|im_start|>user\nHi<|im_end|>\n", false},
    {reasoning, "[" USER ", {\"role\": \"assistant\", \"content\": \"Once\"}]", "{\"enable_thinking\": false}", true,
     false, ASKED "<think></think>Once", false},
    {thinking, "[" USER "]", NULL, false, false, ASKED "<think>\n", true},
    {thinking, "[" USER "]", "{\"enable_thinking\": false}", false, false, ASKED "<think>\n</think>", false},
    {thinking, "[" USER ", {\"role\": \"assistant\", \"content\": \"Once\"}]", NULL, true, false,
     ASKED "<think>\n</think>Once", false},
    {thinking, "[" USER ", {\"role\": \"assistant\", \"content\": \"\"}]", NULL, true, false, ASKED "<think>\n",
     true},
    {thinking, "[" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"hm\", \"content\": \"Once\"}]", NULL,
     true, false, ASKED "<think>\nhm</think>Once", false},
    {thinking, "[" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"hm\"}]", NULL, true, false,
     ASKED "<think>\nhm", false},
    {blank, "[" USER "]", NULL, false, false, ASKED "<think> ", true},
    {blank, "[" USER "]", "{\"enable_thinking\": false}", false, false, ASKED "<think> </think>", false},
    {switched, "[" USER "]", "{\"enable_thinking\": false}", false, false, ASKED "<think>\n\n</think>\n\n", false},
    {switched, "[" USER "]", NULL, false, false, ASKED, false},
};

static void prompts_end_as_the_answer_begins(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const prompt_case *c = &cases[i];
        tn_chat_template *chat;
        tn_chat_prompt *prompt;
        assert_ok(tn_chat_template_new(c->source, &chat));
        tn_chat_params params = tn_chat_params_default();
        params.messages = c->messages;
        params.variables = c->variables;
        params.continue_final = c->continue_final;
        params.generation_prompt = !c->no_generation_prompt;
        assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
        size_t length;
        const char *text = tn_chat_prompt_text(prompt, &length);
        assert_int_equal(strlen(text), length);
        if (strcmp(text, c->text) != 0) fail_msg("case %zu: \"%s\" instead of \"%s\"", i, text, c->text);
        assert_int_equal(tn_chat_prompt_in_reasoning(prompt), c->in_reasoning);
        tn_chat_prompt_free(prompt);
        tn_chat_template_free(chat);
    }
}

static void only_one_answer_can_be_continued(void **state) {
    (void)state;
    tn_chat_template *chat;
    tn_chat_prompt *prompt;
    assert_ok(tn_chat_template_new(plain, &chat));
    tn_chat_params params = tn_chat_params_default();
    params.continue_final = true;
    params.messages = "[" USER "]";
    assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, &params, &prompt));
    assert_non_null(strstr(tn_error(), "only an assistant's"));
    params.messages = "[]";
    assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, &params, &prompt));
    params.messages =
        "[" USER ", {\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]";
    assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, &params, &prompt));
    assert_non_null(strstr(tn_error(), "two messages"));
    params.messages =
        "[{\"role\": \"assistant\", \"content\": \"a\"}, " USER ", {\"role\": \"assistant\", \"content\": \"b\"}]";
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    assert_string_equal(tn_chat_prompt_text(prompt, NULL), "<|im_start|>assistant\na<|im_end|>\n" ASKED "b");
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

static void variables_of_old_templates_are_there(void **state) {
    (void)state;
    static const struct {
        const char *source, *variables, *tools, *format; /* the format is of strftime */
        bool given;
    } rows[] = {
        {"{{ date_string }}", NULL, NULL, "%d %b %Y", false},
        {"{{ date_string }}", "{\"date_string\": \"today\"}", NULL, "today", true},
        {"{% if false %}{{ strftime_now('') }}{% endif %}[{{ date_string }}]", NULL, NULL, "[]", true},
        {"{{ functions }}|{{ datetime }}", NULL, NULL, "[]|%b %d %Y", false},
        {"{{ functions }}|{{ datetime }}", "{\"datetime\": \"now\"}", NULL, "[]|now", true},
        {"{{ datetime }}", NULL, NULL, "", true}, /* without functions it is no such template */
        {"{{ functions }}{# datetime #}", NULL, "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
         "[\n    {\n        \"type\": \"function\",\n        \"function\": {\n            \"name\": \"f\"\n        "
         "}\n    }\n]",
         true},
        {"{{ functions is defined }}{{ date_string is defined and false }}", NULL, NULL, "FalseFalse", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int64_t now = 1; now < 3; now++) {
            const time_t seconds = now == 1 ? 86400 * 45 + 3600 : 1794744000;
            struct tm local;
            char expected[400], environment[40];
            localtime_r(&seconds, &local);
            assert_true(rows[i].given || strftime(expected, sizeof expected, rows[i].format, &local) > 0);
            for (int from_environment = 0; from_environment < 2; from_environment++) {
                tn_chat_template *chat;
                tn_chat_prompt *prompt;
                assert_ok(tn_chat_template_new(rows[i].source, &chat));
                tn_chat_params params = tn_chat_params_default();
                params.messages = "[" USER "]";
                params.variables = rows[i].variables;
                params.tools = rows[i].tools;
                params.now = from_environment ? 0 : seconds;
                strftime(environment, sizeof environment, "%Y-%m-%dT%H:%M:%S", &local);
                assert_int_equal(setenv("TENON_NOW", from_environment ? environment : "2001-01-01T00:00:00", 1), 0);
                assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
                const char *text = tn_chat_prompt_text(prompt, NULL),
                           *wanted = rows[i].given ? rows[i].format : expected;
                /* Tools that a template does not render are described in its system message, before or after. */
                if (!rows[i].tools) assert_string_equal(text, wanted);
                if (!strstr(text, wanted)) fail_msg("row %zu: %s instead of %s", i, text, wanted);
                tn_chat_prompt_free(prompt);
                tn_chat_template_free(chat);
            }
        }
    unsetenv("TENON_NOW");
}

static void special_tokens_are_variables(void **state) {
    (void)state;
    tn_chat_template *chat;
    tn_chat_prompt *prompt;
    assert_ok(tn_chat_template_new("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", &chat));
    tn_chat_params params = tn_chat_params_default();
    params.messages = "[" USER "]";
    static const struct {
        const char *bos, *eos, *text;
        bool has_bos;
    } rows[] = {{"<s>", "</s>", "<s>Hi</s>", true}, {NULL, NULL, "Hi", false}, {"", "</s>", "Hi</s>", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        params.bos_token = rows[i].bos;
        params.eos_token = rows[i].eos;
        assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
        assert_string_equal(tn_chat_prompt_text(prompt, NULL), rows[i].text);
        assert_int_equal(tn_chat_prompt_has_bos(prompt), rows[i].has_bos);
        tn_chat_prompt_free(prompt);
    }
    params.bos_token = "\xff";
    assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, &params, &prompt));
    params.bos_token = "<s>";
    params.messages = NULL;
    assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, &params, &prompt));
    assert_fails(TN_E_INVALID, tn_chat_prompt_new(chat, NULL, &prompt));
    tn_chat_template_free(chat);
    /* A text that only begins like the token. */
    assert_ok(tn_chat_template_new("<s", &chat));
    params.messages = "[]";
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    assert_false(tn_chat_prompt_has_bos(prompt));
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

static void templates_have_names(void **state) {
    (void)state;
    size_t n = 0;
    for (const char *name; (name = tn_chat_template_name(n)); n++) {
        const char *source = tn_chat_template_by_name(name);
        assert_non_null(source);
        for (size_t other = 0; other < n; other++) assert_string_not_equal(name, tn_chat_template_name(other));
        tn_chat_template *chat;
        assert_ok(tn_chat_template_new(source, &chat));
        tn_chat_prompt *prompt = prompt_of(chat, "[" USER "]", NULL);
        assert_non_null(strstr(tn_chat_prompt_text(prompt, NULL), "Hi"));
        tn_chat_prompt_free(prompt);
        tn_chat_template_free(chat);
    }
    assert_true(n > 10);
    assert_null(tn_chat_template_name(n + 1));
    assert_null(tn_chat_template_by_name("no such format"));
    assert_null(tn_chat_template_by_name(NULL));
    assert_non_null(strstr(tn_chat_template_by_name("chatml"), "<|im_start|>"));
}

static tn_status continue_answer(void *user) {
    tn_chat_template *chat = user;
    tn_chat_prompt *prompt;
    tn_chat_params params = tn_chat_params_default();
    params.messages = "[" USER ", {\"role\": \"assistant\", \"reasoning_content\": \"hm\", \"content\": [{\"type\": "
                      "\"text\", \"text\": \"a\"}]}]";
    params.continue_final = true;
    TN_TRY(tn_chat_prompt_new(chat, &params, &prompt));
    tn_chat_prompt_free(prompt);
    return TN_OK;
}

static void lack_of_memory_is_survived(void **state) {
    (void)state;
    tn_chat_template *chat;
    assert_ok(tn_chat_template_new(reasoning, &chat));
    check_every_allocation_failure(continue_answer, chat);
    tn_chat_template_free(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_end_as_the_answer_begins),
        cmocka_unit_test(only_one_answer_can_be_continued),
        cmocka_unit_test(variables_of_old_templates_are_there),
        cmocka_unit_test(special_tokens_are_variables),
        cmocka_unit_test(templates_have_names),
        cmocka_unit_test(lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

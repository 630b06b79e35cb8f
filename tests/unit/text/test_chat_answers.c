/* Chat: answers parsed to messages, and grammars of tool calls. */
#include <glob.h>
#include <jansson.h>
#include <string.h>

#include "chat_cases.h"
#include "tenon/grammar.h"

/* ---- Answers ---- */

typedef struct log {
    char text[8192];
    int last;
} log;

/* Records events as text; consecutive pieces of the same kind are joined. */
static tn_status note(void *user, const tn_chat_event *event) {
    static const char *const names[] = {"content", "reasoning", "call", "arguments", "end"};
    log *l = user;
    size_t n = strlen(l->text);
    bool more = l->last == (int)event->kind && event->kind != TN_CHAT_CALL && event->kind != TN_CHAT_CALL_END;
    if (event->kind == TN_CHAT_CALL && (!event->id || !*event->id))
        return tn_fail(TN_E_INTERNAL, "a call without id");
    if (more)
        snprintf(l->text + n, sizeof l->text - n, "%.*s", (int)event->length, event->text);
    else
        snprintf(l->text + n, sizeof l->text - n, "%s%s:%.*s", n ? "|" : "", names[event->kind], (int)event->length,
                 event->text);
    l->last = (int)event->kind;
    return TN_OK;
}

static void parse(const tn_chat_prompt *prompt, const char *answer, size_t piece, log *l) {
    tn_chat_parser *parser;
    assert_ok(tn_chat_parser_new(prompt, &parser));
    *l = (log){.last = -1};
    size_t length = strlen(answer);
    for (size_t i = 0; i < length; i += piece)
        assert_ok(tn_chat_parser_feed(parser, answer + i, length - i < piece ? length - i : piece, note, l));
    assert_ok(tn_chat_parser_finish(parser, note, l));
    tn_chat_parser_free(parser);
}

/* The result does not depend on the pieces in which an answer arrives. */
static void check_answer(const tn_chat_prompt *prompt, const char *answer, const char *expected) {
    static log l;
    for (size_t piece = 1; piece < 8; piece++) {
        parse(prompt, answer, piece, &l);
        if (strcmp(l.text, expected) != 0)
            fail_msg("in pieces of %zu: %s\n  expected %s\n  got      %s", piece, answer, expected, l.text);
    }
    parse(prompt, answer, strlen(answer) + 1, &l);
    if (strcmp(l.text, expected) != 0)
        fail_msg("at once: %s\n  expected %s\n  got      %s", answer, expected, l.text);
}

static const char *const call_test = "call:test|arguments:{\"arg\": \"hello\"}|end:";

static void check_format(const char *name, const char *const cases[][2], size_t count) {
    LOAD_OR_SKIP(chat, name);
    tn_chat_prompt *prompt = prompt_of(chat, "[{\"role\": \"user\", \"content\": \"Go\"}]", tools_text);
    for (size_t i = 0; i < count; i++) check_answer(prompt, cases[i][0], cases[i][1] ? cases[i][1] : call_test);
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}
#define CHECK_FORMAT(name, ...)                                                                                      \
    do {                                                                                                             \
        static const char *const format_cases_[][2] = __VA_ARGS__;                                                   \
        check_format(name, format_cases_, sizeof format_cases_ / sizeof format_cases_[0]);                           \
    } while (0)

static void hermes_answers_are_parsed(void **state) {
    (void)state;
    CHECK_FORMAT(
        "Qwen-Qwen2.5-7B-Instruct",
        {{"Hello <b> there\n", "content:Hello <b> there\n"},
         {"<tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": \"hello\"}}\n</tool_call>", NULL},
         {"<tool_call>{\"arguments\": {\"arg\": \"hello\"}, \"name\": \"test\"}</tool_call>", NULL},
         {"<tool_call>\n{\"name\": \"test\", \"arguments\": \"{\\\"arg\\\": \\\"hello\\\"}\"}\n</tool_call>", NULL},
         {"Sure.\n\n<tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": "
          "\"a\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"other\", "
          "\"arguments\": {}}\n</tool_call>\n",
          "content:Sure.|call:test|arguments:{\"arg\": \"a\"}|end:|call:other|arguments:{}|end:"},
         {"<tool_call>\n[{\"name\": \"test\", \"arguments\": {\"arg\": \"hello\"}}]\n</tool_call>", NULL},
         {"<tool_call>\n{\"function\": {\"name\": \"test\", \"arguments\": {\"arg\": \"hello\"}}}\n</tool_call>",
          NULL},
         {"<tool_call>\n{\"name\": \"other\"}\n</tool_call>", "call:other|arguments:{}|end:"},
         {"<tool_call>\nnot json</tool_call>", "content:<tool_call>\nnot json</tool_call>"},
         {"<tool_call>\n{\"x\": 1}</tool_call>", "content:<tool_call>\n{\"x\": 1}</tool_call>"},
         {"<tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": \"hel",
          "call:test|arguments:{\"arg\": \"hel|end:"},
         {"<tool_call>\n{\"name\": \"te", "content:<tool_call>\n{\"name\": \"te"},
         {"a <tool_cal", "content:a <tool_cal"},
         {"<tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": \"}\\\"]{[</tool_call>\"}}\n</tool_call>",
          "call:test|arguments:{\"arg\": \"}\\\"]{[</tool_call>\"}|end:"},
         {"<think>\nhmm\n</think>\n\nHi", "reasoning:hmm|content:Hi"},
         {"<think>a</think><tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": \"hello\"}}\n</tool_call>",
          "reasoning:a|call:test|arguments:{\"arg\": \"hello\"}|end:"},
         {"I <think> so", "content:I <think> so"},
         {"", ""}});
}

static void llama_answers_are_parsed(void **state) {
    (void)state;
    CHECK_FORMAT(
        "meta-llama-Llama-3.1-8B-Instruct",
        {{"{\"name\": \"test\", \"parameters\": {\"arg\": \"hello\"}}", NULL},
         {" {\"type\": \"function\", \"name\": \"test\", \"parameters\": {\"arg\": \"hello\"}}", NULL},
         {"<|python_tag|>{\"name\": \"test\", \"parameters\": {\"arg\": \"hello\"}}", NULL},
         {"<|python_tag|>test.call(arg=\"hello\")", NULL},
         {"<|python_tag|>print(1)", "content:<|python_tag|>print(1)"},
         {"{\"name\": \"test\", \"parameters\": {\"arg\": \"a\"}}; {\"name\": \"other\", \"parameters\": {}}",
          "call:test|arguments:{\"arg\": \"a\"}|end:|call:other|arguments:{}|end:"},
         {"{\"answer\": 42}", "content:{\"answer\": 42}"},
         {"{\"name\": \"Bob\", \"age\": 3}", "content:{\"name\": \"Bob\", \"age\": 3}"},
         {"[1, 2]", "content:[1, 2]"},
         {"The answer is {\"name\": \"test\"}", "content:The answer is {\"name\": \"test\"}"}});
}

static void mistral_answers_are_parsed(void **state) {
    (void)state;
    CHECK_FORMAT(
        "mistralai-Mistral-Nemo-Instruct-2407",
        {{"[TOOL_CALLS][{\"name\": \"test\", \"arguments\": {\"arg\": \"hello\"}, \"id\": \"abcdefghi\"}]", NULL},
         {"[TOOL_CALLS] [{\"name\": \"test\", \"arguments\": {\"arg\": \"hello\"}}]", NULL},
         {"ok [TOOL_CALLS][{\"name\": \"other\", \"arguments\": {}}, {\"name\": \"test\", \"arguments\": {\"arg\": "
          "\"x\"}}]",
          "content:ok|call:other|arguments:{}|end:|call:test|arguments:{\"arg\": \"x\"}|end:"}});
    CHECK_FORMAT("Mistral-Small-3.2-24B-Instruct-2506",
                 {{"[TOOL_CALLS]test[CALL_ID]abcdefghi[ARGS]{\"arg\": \"hello\"}", NULL},
                  {"[TOOL_CALLS]test[ARGS]{\"arg\": \"hello\"}", NULL},
                  {"[TOOL_CALLS]test[ARGS]{\"arg\": \"a\"}[TOOL_CALLS]other[ARGS]{}",
                   "call:test|arguments:{\"arg\": \"a\"}|end:|call:other|arguments:{}|end:"},
                  {"plain [TOOL", "content:plain [TOOL"}});
}

static void functionary_answers_are_parsed(void **state) {
    (void)state;
    CHECK_FORMAT("meetkai-functionary-medium-v3.1",
                 {{"<function=test>{\"arg\": \"hello\"}</function>", NULL},
                  {"a <function=test>{\"arg\": \"x\"}</function><function=other>{}</function>",
                   "content:a|call:test|arguments:{\"arg\": \"x\"}|end:|call:other|arguments:{}|end:"}});
    CHECK_FORMAT("meetkai-functionary-medium-v3.2",
                 {{"test\n{\"arg\": \"hello\"}", NULL},
                  {"all\nHello there", "content:Hello there"},
                  {"all\nHi\n>>>test\n{\"arg\": \"x\"}>>>other\n{}",
                   "content:Hi|call:test|arguments:{\"arg\": \"x\"}|end:|call:other|arguments:{}|end:"}});
}

static void deepseek_answers_are_parsed(void **state) {
    (void)state;
    CHECK_FORMAT(
        "deepseek-ai-DeepSeek-V3.2",
        {{"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"test\">\n<｜DSML｜parameter name=\"arg\" "
          "string=\"true\">hello</｜DSML｜parameter>\n"
          "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
          NULL},
         {"Hm.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"test\">\n<｜DSML｜parameter name=\"arg\" "
          "string=\"true\">5</｜DSML｜parameter>\n"
          "<｜DSML｜parameter name=\"count\" "
          "string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"other\">\n"
          "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
          "content:Hm.|call:test|arguments:{\"arg\": \"5\", \"count\": 5}|end:|call:other|arguments:{}|end:"}});
    /* The format of R1 and V3, in a template that lists its tools. */
    tn_chat_template *chat;
    assert_ok(tn_chat_template_new(
        "{{ tools }}{% for m in messages %}<｜User｜>{{ m.content }}{% endfor %}{# <｜tool▁calls▁begin｜> #}",
        &chat));
    tn_chat_prompt *prompt = prompt_of(chat, "[{\"role\": \"user\", \"content\": \"Go\"}]", tools_text);
    check_answer(prompt,
                 "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>test\n```json\n{\"arg\": "
                 "\"hello\"}\n```<｜tool▁call▁end｜>"
                 "<｜tool▁calls▁end｜>",
                 call_test);
    check_answer(
        prompt,
        "x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>test\n```json\n{\"arg\": "
        "\"hello\"}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "content:x|call:test|arguments:{\"arg\": \"hello\"}|end:|call:other|arguments:{}|end:");
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

static void channels_are_parsed(void **state) {
    (void)state;
    tn_chat_template *chat;
    assert_ok(tn_chat_template_new(
        "{{ tools }}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
        "{% if false %}<|constrain|>{% endif %}<|start|>assistant",
        &chat));
    assert_string_equal(tn_chat_template_syntax(chat), "channels");
    tn_chat_prompt *prompt = prompt_of(chat, "[{\"role\": \"user\", \"content\": \"Go\"}]", tools_text);
    check_answer(prompt,
                 "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
                 "reasoning:Think.|content:Hi!");
    check_answer(prompt,
                 "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>commentary to=functions.test "
                 "<|constrain|>json<|message|>"
                 "{\"arg\": \"hello\"}<|call|>",
                 "reasoning:T|call:test|arguments:{\"arg\": \"hello\"}|end:");
    check_answer(prompt, "<|channel|>commentary to=functions.test<|message|>{\"arg\": \"hello\"}", call_test);
    check_answer(prompt, " to=functions.test<|channel|>commentary json<|message|>{\"arg\": \"hello\"}<|call|>",
                 call_test);
    check_answer(prompt, "No header", "content:No header");
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

static void other_syntaxes_are_read_off_the_template(void **state) {
    (void)state;
    CHECK_FORMAT("Kimi-K2-Instruct", {{"<|tool_calls_section_begin|><|tool_call_begin|>functions.test:0<|tool_call_"
                                       "argument_begin|>{\"arg\": \"hello\"}"
                                       "<|tool_call_end|><|tool_calls_section_end|>",
                                       NULL}});
    CHECK_FORMAT("GLM-4.7-Flash", /* its prompt ends with the opening marker of the reasoning */
                 {{"hm</think><tool_call>test<arg_key>arg</arg_key><arg_value>hello</arg_value><arg_key>count</"
                   "arg_key><arg_value>3</arg_value></tool_call>",
                   "reasoning:hm|call:test|arguments:{\"arg\": \"hello\", \"count\": 3}|end:"}});
    CHECK_FORMAT("StepFun3.5-Flash",
                 {{"x</think><tool_call>\n<function=test>\n<parameter=arg>\nline 1\nline "
                   "\"2\"\n</parameter>\n</function>\n</tool_call>",
                   "reasoning:x|call:test|arguments:{\"arg\": \"line 1\\nline \\\"2\\\"\"}|end:"}});
    CHECK_FORMAT("MiniMax-M2", {{"t\n</think>\n\n<minimax:tool_call>\n<invoke name=\"test\">\n<parameter "
                                 "name=\"arg\">hello</parameter>\n</invoke>\n</minimax:tool_call>",
                                 "reasoning:t|call:test|arguments:{\"arg\": \"hello\"}|end:"}});
    CHECK_FORMAT(
        "LFM2.5-8B-A1B",
        {{"<|tool_call_start|>[test(arg='hello')]<|tool_call_end|>", NULL},
         {"<|tool_call_start|>[test(arg=\"a\", count=-2), other()]<|tool_call_end|>ok",
          "call:test|arguments:{\"arg\": \"a\", \"count\": -2}|end:|call:other|arguments:{}|end:|content:ok"},
         {"<|tool_call_start|>[test(]<|tool_call_end|>", "content:<|tool_call_start|>[test(]<|tool_call_end|>"}});
    CHECK_FORMAT("google-gemma-4-31B-it",
                 {{"<|tool_call>call:test{arg:<|\"|>hello<|\"|>}<tool_call|>", NULL},
                  {"<|tool_call>call:test{arg:<|\"|>a<|\"|>,count:3,list:[1,{x:true}]}<tool_call|>",
                   "call:test|arguments:{\"arg\": \"a\", \"count\": 3, \"list\": [1, {\"x\": true}]}|end:"}});
    CHECK_FORMAT("ibm-granite-granite-3.3-2B-Instruct",
                 {{"<|tool_call|>[{\"name\": \"test\", \"arguments\": {\"arg\": \"hello\"}}]", NULL}});
    CHECK_FORMAT("Apriel-1.6-15b-Thinker-fixed",
                 {{"<tool_calls>[{\"name\": \"test\", \"arguments\": {\"arg\": \"hello\"}}]</tool_calls>", NULL}});
    CHECK_FORMAT("upstage-Solar-Open-100B", {{"<|tool_calls|><|tool_call:begin|>a1b2c3d4e<|tool_call:name|>test<|"
                                              "tool_call:args|>{\"arg\": \"hello\"}<|tool_call:end|><|calls|>",
                                              NULL}});
}

/* The parser reads the calls that the template renders. */
static void rendered_calls_are_read_back(void **state) {
    (void)state;
    GOLDEN_OR_SKIP(folder, "chat");
    char pattern[1100];
    glob_t templates;
    int read = 0;
    snprintf(pattern, sizeof pattern, "%s/*.jinja", folder);
    assert_int_equal(glob(pattern, 0, NULL, &templates), 0);
    for (size_t i = 0; i < templates.gl_pathc; i++) {
        size_t size;
        char *source = read_file(templates.gl_pathv[i], &size);
        tn_chat_template *chat;
        assert_ok(tn_chat_template_new(source, &chat));
        free(source);
        const tn_chat_caps *caps = tn_chat_template_caps(chat);
        if (!caps->tools || !caps->tool_calls) {
            tn_chat_template_free(chat);
            continue;
        }
        tn_chat_params params = tn_chat_params_default();
        params.tools = tools_text;
        params.messages = "[{\"role\": \"user\", \"content\": \"Go\"}]";
        tn_chat_prompt *before, *after;
        assert_ok(tn_chat_prompt_new(chat, &params, &before));
        params.generation_prompt = false;
        params.messages = "[{\"role\": \"user\", \"content\": \"Go\"}, {\"role\": \"assistant\", \"content\": \"\", "
                          "\"tool_calls\": [{\"id\": "
                          "\"call00001\", \"type\": \"function\", \"function\": {\"name\": \"test\", \"arguments\": "
                          "{\"arg\": \"hello\"}}}]}]";
        assert_ok(tn_chat_prompt_new(chat, &params, &after));
        const char *a = tn_chat_prompt_text(before, NULL), *b = tn_chat_prompt_text(after, NULL);
        while (*a && *a == *b) a++, b++;
        while (*a && b[0] != '<' && b[-1] != '\n' && b[-1] != '>') b--;
        static log l;
        parse(before, b, 3, &l);
        if (!strstr(l.text, call_test)) print_error("%s: %s\n  from: %s\n", templates.gl_pathv[i], l.text, b);
        read += strstr(l.text, call_test) != NULL;
        tn_chat_prompt_free(before);
        tn_chat_prompt_free(after);
        tn_chat_template_free(chat);
    }
    globfree(&templates);
    print_message("%d templates' calls read back\n", read);
    assert_true(read >= 38);
}

static void messages_round_trip_as_json(void **state) {
    (void)state;
    LOAD_OR_SKIP(chat, "Qwen-Qwen3-0.6B");
    tn_chat_prompt *prompt = prompt_of(chat, "[{\"role\": \"user\", \"content\": \"Go\"}]", tools_text);
    tn_chat_parser *parser;
    char *json;
    const char *answer = "<think>\nq\n</think>\n\nOk \"x\"\n<tool_call>\n{\"name\": \"test\", \"arguments\": "
                         "{\"arg\": \"\\n\"}}\n</tool_call>";
    assert_ok(tn_chat_parser_new(prompt, &parser));
    assert_ok(tn_chat_parser_feed(parser, answer, strlen(answer), NULL, NULL));
    assert_ok(tn_chat_parser_finish(parser, NULL, NULL));
    assert_fails(TN_E_STATE, tn_chat_parser_feed(parser, "x", 1, NULL, NULL));
    assert_int_equal(tn_chat_parser_calls(parser), 1);
    assert_ok(tn_chat_parser_message(parser, &json));
    json_t *message = json_loads(json, 0, NULL);
    assert_non_null(message);
    assert_string_equal(json_string_value(json_object_get(message, "content")), "Ok \"x\"");
    assert_string_equal(json_string_value(json_object_get(message, "reasoning_content")), "q");
    const json_t *function = json_object_get(json_array_get(json_object_get(message, "tool_calls"), 0), "function");
    assert_string_equal(json_string_value(json_object_get(function, "name")), "test");
    assert_string_equal(json_string_value(json_object_get(function, "arguments")), "{\"arg\": \"\\n\"}");
    json_decref(message);
    tn_free(json);
    tn_chat_parser_free(parser);
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

static void reasoning_is_kept_on_request(void **state) {
    (void)state;
    LOAD_OR_SKIP(chat, "Qwen-Qwen3-0.6B");
    tn_chat_params params = tn_chat_params_default();
    tn_chat_prompt *prompt;
    params.messages = "[{\"role\": \"user\", \"content\": \"Go\"}]";
    params.keep_reasoning = true;
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    check_answer(prompt, "<think>\nq\n</think>\n\nOk", "content:<think>\nq\n</think>\n\nOk");
    tn_chat_prompt_free(prompt);
    params.variables = "{\"enable_thinking\": false}";
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    assert_non_null(strstr(tn_chat_prompt_text(prompt, NULL), "<think>\n\n</think>"));
    assert_false(tn_chat_prompt_in_reasoning(prompt));
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

/* ---- Grammars ---- */

static bool grammar_takes(const tn_chat_prompt *prompt, const char *text) {
    tn_grammar *grammar;
    tn_grammar_state *gs;
    assert_ok(tn_grammar_new(tn_chat_prompt_grammar(prompt), NULL, &grammar));
    tn_grammar_trigger trigger = {.text = tn_chat_prompt_trigger(prompt), .included = true};
    assert_ok(tn_grammar_state_new(
        &(tn_grammar_state_params){.grammar = grammar, .triggers = &trigger, .n_triggers = trigger.text ? 1 : 0},
        &gs));
    bool taken = tn_grammar_accept_bytes(gs, text, strlen(text)) == TN_OK && tn_grammar_is_accepting(gs);
    tn_grammar_state_free(gs);
    tn_grammar_free(grammar);
    return taken;
}

static void grammars_hold_calls_to_their_schema(void **state) {
    (void)state;
    static const struct {
        const char *name, *good, *bad;
    } cases[] = {
        {"Qwen-Qwen2.5-7B-Instruct",
         "Well, <tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": \"x\", \"count\": 3}}\n</tool_call>",
         "<tool_call>\n{\"name\": \"test\", \"arguments\": {\"count\": 3}}\n</tool_call>"},
        {"Qwen-Qwen2.5-7B-Instruct", "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
         "<tool_call>\n{\"name\": \"nope\", \"arguments\": {}}\n</tool_call>"},
        {"meta-llama-Llama-3.1-8B-Instruct", "{\"name\": \"test\", \"parameters\": {\"arg\": \"x\"}}",
         "{\"name\": \"test\", \"parameters\": {\"arg\": 1}}"},
        {"mistralai-Mistral-Nemo-Instruct-2407",
         "[TOOL_CALLS][{\"name\": \"test\", \"arguments\": {\"arg\": \"x\"}, \"id\": \"abcdefghi\"}]",
         "[TOOL_CALLS][{\"name\": \"test\", \"arguments\": {}, \"id\": \"abcdefghi\"}]"},
        {"Mistral-Small-3.2-24B-Instruct-2506", "[TOOL_CALLS]test[CALL_ID]abc123def[ARGS]{\"arg\": \"x\"}",
         "[TOOL_CALLS]best[CALL_ID]abc123def[ARGS]{}"},
        {"Kimi-K2-Instruct",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.test:0<|tool_call_argument_begin|>{\"arg\": "
         "\"x\"}<|tool_call_end|>"
         "<|tool_call_begin|>functions.other:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_"
         "end|>",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.test<|tool_call_end|>"},
        {"StepFun3.5-Flash",
         "<tool_call>\n<function=test>\n<parameter=arg>\na < b\n</parameter>\n</function>\n</tool_call>",
         "<tool_call>\n<function=test>\n<parameter=count>\nx\n</parameter>\n</function>\n</tool_call>"},
        {"meetkai-functionary-medium-v3.1", "<function=test>{\"arg\": \"x\"}</function>",
         "<function=test>{}</function>"},
        {"Apriel-1.6-15b-Thinker-fixed",
         "<tool_calls>[{\"name\": \"test\", \"arguments\": {\"arg\": \"x\"}}, {\"name\": \"other\", \"arguments\": "
         "{}}]</tool_calls>",
         "<tool_calls>[]</tool_calls>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        LOAD_OR_SKIP(chat, cases[i].name);
        tn_chat_prompt *prompt = prompt_of(chat, "[{\"role\": \"user\", \"content\": \"Go\"}]", tools_text);
        if (!tn_chat_prompt_grammar(prompt)) fail_msg("%s: no grammar", cases[i].name);
        if (!grammar_takes(prompt, cases[i].good))
            fail_msg("%s refuses %s\n%s", cases[i].name, cases[i].good, tn_error());
        if (grammar_takes(prompt, cases[i].bad)) fail_msg("%s accepts %s", cases[i].name, cases[i].bad);
        tn_chat_prompt_free(prompt);
        tn_chat_template_free(chat);
    }
}

static void required_calls_are_governed_from_the_start(void **state) {
    (void)state;
    LOAD_OR_SKIP(chat, "Qwen-Qwen2.5-7B-Instruct");
    tn_chat_params params = tn_chat_params_default();
    tn_chat_prompt *prompt;
    params.messages = "[{\"role\": \"user\", \"content\": \"Go\"}]";
    params.tools = tools_text;
    params.tool_choice = TN_TOOLS_REQUIRED;
    params.tool_name = "other";
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    assert_null(tn_chat_prompt_trigger(prompt));
    assert_true(grammar_takes(prompt, "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"));
    assert_false(grammar_takes(prompt, "Hello"));
    assert_false(
        grammar_takes(prompt, "<tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": \"x\"}}\n</tool_call>"));
    tn_chat_prompt_free(prompt);
    params.tool_choice = TN_TOOLS_NONE;
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    assert_null(tn_chat_prompt_grammar(prompt));
    assert_null(strstr(tn_chat_prompt_text(prompt, NULL), "other"));
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hermes_answers_are_parsed),
        cmocka_unit_test(llama_answers_are_parsed),
        cmocka_unit_test(mistral_answers_are_parsed),
        cmocka_unit_test(functionary_answers_are_parsed),
        cmocka_unit_test(deepseek_answers_are_parsed),
        cmocka_unit_test(channels_are_parsed),
        cmocka_unit_test(other_syntaxes_are_read_off_the_template),
        cmocka_unit_test(rendered_calls_are_read_back),
        cmocka_unit_test(messages_round_trip_as_json),
        cmocka_unit_test(reasoning_is_kept_on_request),
        cmocka_unit_test(grammars_hold_calls_to_their_schema),
        cmocka_unit_test(required_calls_are_governed_from_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

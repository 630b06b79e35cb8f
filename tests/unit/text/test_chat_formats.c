/* Chat: every format of the table, as the models of its family write it. Each answer has reasoning, text and two
 * calls, one of them with arguments in many scripts. It gives the same events in one piece, byte by byte and divided
 * anywhere, and an answer that is cut anywhere gives what the same bytes give in one piece. */
#include <jansson.h>
#include <string.h>

#include "chat_cases.h"
#include "tenon/grammar.h"

#define DSML "｜DSML｜"
#define M3 "]<]minimax[>["
#define TEXT "h\xc3\xa9 \xe2\x80\x9c\xe4\xb8\xad\xe2\x80\x9d \xf0\x9f\x8e\x89 <b>" /* hé “中” 🎉 <b> */
#define ARGUMENTS "{\"arg\": \"" TEXT "\", \"count\": -3}"
#define THINK(open, close) open "\nBecause.\n" close "\n\n"

enum { REASONING = 1, CONTENT = 2, SECOND = 4 };

typedef struct format_case {
    const char *format;
    const char *answer;
    unsigned without; /* REASONING, CONTENT, SECOND */
} format_case;

static const format_case cases[] = {
    {"hermes",
     THINK("<think>", "</think>") "Hello.\n<tool_call>\n{\"name\": \"test\", \"arguments\": " ARGUMENTS
                                  "}\n</tool_call>\n<tool_call>\n{\"name\": \"other\", \"arguments\": "
                                  "{}}\n</tool_call>",
     0},
    {"qwen3-coder",
     THINK("<think>", "</think>") "Hello.\n\n<tool_call>\n<function=test>\n<parameter=arg>\n" TEXT
                                  "\n</parameter>\n<parameter=count>\n-3\n</parameter>\n</function>\n</tool_call>\n"
                                  "<tool_call>\n<function=other>\n</function>\n</tool_call>",
     0},
    {"seed-oss",
     THINK("<seed:think>", "</seed:think>") "Hello.\n<seed:tool_call>\n<function=test>\n<parameter=arg>" TEXT
                                            "</parameter>\n<parameter=count>-3</parameter>\n</function>\n"
                                            "<function=other>\n</function>\n</seed:tool_call>",
     0},
    {"deepseek-r1",
     THINK("<think>", "</think>") "Hello.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>test\n"
                                  "```json\n" ARGUMENTS
                                  "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n"
                                  "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     0},
    {"deepseek-v3.1",
     THINK("<think>", "</think>") "Hello.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>test<｜tool▁sep｜>" ARGUMENTS
                                  "<｜tool▁call▁end｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>{}"
                                  "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     0},
    {"deepseek-v3.2",
     THINK("<think>", "</think>") "Hello.\n\n<" DSML "function_calls>\n<" DSML "invoke name=\"test\">\n<" DSML
                                  "parameter name=\"arg\" string=\"true\">" TEXT "</" DSML "parameter>\n<" DSML
                                  "parameter name=\"count\" string=\"false\">-3</" DSML "parameter>\n</" DSML
                                  "invoke>\n<" DSML "invoke name=\"other\">\n</" DSML "invoke>\n</" DSML
                                  "function_calls>",
     0},
    {"glm4.5",
     THINK("<think>", "</think>") "Hello.\n<tool_call>test\n<arg_key>arg</arg_key>\n<arg_value>" TEXT
                                  "</arg_value>\n<arg_key>count</arg_key>\n<arg_value>-3</arg_value>\n</tool_call>\n"
                                  "<tool_call>other\n</tool_call>",
     0},
    {"glm4.5", /* 4.7 writes no line ends */
     THINK("<think>", "</think>") "Hello.<tool_call>test<arg_key>arg</arg_key><arg_value>" TEXT
                                  "</arg_value><arg_key>count</arg_key><arg_value>-3</arg_value></tool_call>"
                                  "<tool_call>other</tool_call>",
     0},
    {"harmony",
     "<|channel|>analysis<|message|>Because.<|end|><|start|>assistant<|channel|>commentary<|message|>Hello.<|end|>"
     "<|start|>assistant<|channel|>commentary to=functions.test <|constrain|>json<|message|>" ARGUMENTS
     "<|call|><|start|>assistant<|channel|>commentary to=functions.other <|constrain|>json<|message|>{}<|call|>",
     0},
    {"kimi-k2",
     THINK("<think>",
           "</think>") "Hello.<|tool_calls_section_begin|><|tool_call_begin|>functions.test:0"
                       "<|tool_call_argument_begin|>" ARGUMENTS
                       "<|tool_call_end|><|tool_call_begin|>functions.other:1<|tool_call_argument_begin|>{}"
                       "<|tool_call_end|><|tool_calls_section_end|>",
     0},
    {"kimi-k3",
     "<|open|>think<|sep|>Because.<|close|>think<|sep|><|open|>response<|sep|>Hello.<|close|>response<|sep|>"
     "<|open|>tools<|sep|><|open|>call tool=\"test\" index=\"1\"<|sep|><|open|>argument key=\"arg\" type=\"string\""
     "<|sep|>" TEXT "<|close|>argument<|sep|><|open|>argument key=\"count\" type=\"number\"<|sep|>-3<|close|>argument"
     "<|sep|><|close|>call<|sep|><|open|>call tool=\"other\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools"
     "<|sep|>",
     0},
    {"minimax-m1",
     THINK("<think>", "</think>") "Hello.\n<tool_calls>\n{\"name\": \"test\", \"arguments\": " ARGUMENTS
                                  "}\n{\"name\": \"other\", \"arguments\": {}}\n</tool_calls>",
     0},
    {"minimax-m2",
     THINK("<think>", "</think>") "Hello.\n<minimax:tool_call>\n<invoke name=\"test\">\n<parameter name=\"arg\">" TEXT
                                  "</parameter>\n<parameter name=\"count\">-3</parameter>\n</invoke>\n"
                                  "<invoke name=\"other\">\n</invoke>\n</minimax:tool_call>",
     0},
    {"minimax-m3",
     THINK("<mm:think>", "</mm:think>") "Hello." M3 "<tool_call>\n" M3 "<invoke name=\"test\">" M3 "<arg>" TEXT M3
                                        "</arg>" M3 "<count>-3" M3 "</count>" M3 "</invoke>\n" M3
                                        "<invoke name=\"other\">" M3 "</invoke>\n" M3 "</tool_call>",
     0},
    {"llama3", "{\"name\": \"test\", \"parameters\": " ARGUMENTS "}; {\"name\": \"other\", \"parameters\": {}}",
     REASONING | CONTENT},
    {"llama3", "<|python_tag|>{\"name\": \"test\", \"parameters\": " ARGUMENTS "}", REASONING | CONTENT | SECOND},
    {"json", "[{\"name\": \"test\", \"arguments\": " ARGUMENTS "}, {\"name\": \"other\", \"arguments\": {}}]",
     REASONING | CONTENT},
    {"pythonic", "[test(arg='" TEXT "', count=-3), other()]", REASONING | CONTENT},
    {"llama4", "Hello.<|python_start|>[test(arg=\"" TEXT "\", count=-3), other()]<|python_end|>", REASONING},
    {"lfm2",
     THINK("<think>", "</think>") "Hello.<|tool_call_start|>[test(arg=\"" TEXT "\", count=-3), other()]"
                                  "<|tool_call_end|>",
     0},
    {"lfm2",
     "Hello.<|tool_call_start|>[{\"name\": \"test\", \"arguments\": " ARGUMENTS
     "}, {\"name\": \"other\", \"arguments\": {}}]<|tool_call_end|>",
     REASONING},
    {"mistral",
     THINK("[THINK]", "[/THINK]") "Hello.[TOOL_CALLS] [{\"name\": \"test\", \"arguments\": " ARGUMENTS
                                  ", \"id\": \"abcdefghi\"}, {\"name\": \"other\", \"arguments\": {}}]",
     0},
    {"mistral-v11", THINK("[THINK]", "[/THINK]") "Hello.[TOOL_CALLS]test[ARGS]" ARGUMENTS "[TOOL_CALLS]other[ARGS]{}",
     0},
    {"command-r",
     "Hello.\nAction:\n```json\n[\n    {\n        \"tool_name\": \"test\",\n        \"parameters\": " ARGUMENTS
     "\n    },\n    {\"tool_name\": \"other\", \"parameters\": {}}\n]```",
     REASONING},
    {"command-a",
     "<|START_THINKING|>Because.<|END_THINKING|><|START_RESPONSE|>Hello.<|END_RESPONSE|><|START_ACTION|>[\n"
     "    {\"tool_call_id\": \"0\", \"tool_name\": \"test\", \"parameters\": " ARGUMENTS
     "},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"other\", \"parameters\": {}}\n]<|END_ACTION|>",
     0},
    {"granite",
     "Hello.<|tool_call|>[{\"name\": \"test\", \"arguments\": " ARGUMENTS
     "}, {\"name\": \"other\", \"arguments\": {}}]",
     REASONING},
    {"phi4-mini",
     "Hello.<|tool_call|>[{\"name\": \"test\", \"arguments\": " ARGUMENTS
     "}, {\"name\": \"other\", \"arguments\": {}}]<|/tool_call|>",
     REASONING},
    {"hunyuan",
     THINK("<think>",
           "</think>") "<answer>\nHello.\n</answer><tool_calls>[{\"name\": \"test\", \"arguments\": " ARGUMENTS
                       "}, {\"name\": \"other\", \"arguments\": {}}]</tool_calls>",
     0},
    {"hunyuan-dense",
     THINK("<think>", "</think>") "<answer>\nHello.\n</answer><tool_calls>\n<tool_call>test\n```json\n" ARGUMENTS
                                  "\n```\n</tool_call>\n<tool_call>other\n```json\n{}\n```\n</tool_call>\n"
                                  "</tool_calls>",
     0},
    {"nemotron",
     THINK("<think>", "</think>") "Hello.<TOOLCALL>[{\"name\": \"test\", \"arguments\": " ARGUMENTS
                                  "}, {\"name\": \"other\", \"arguments\": {}}]</TOOLCALL>",
     0},
    {"gemma3",
     "Hello.<start_function_call>call:test{arg:<escape>" TEXT "<escape>,count:-3}<end_function_call>"
     "<start_function_call>call:other{}<end_function_call>",
     REASONING},
    {"gemma4",
     "<|channel>thought\nBecause.<channel|>Hello.<|tool_call>call:test{arg:<|\"|>" TEXT
     "<|\"|>,count:-3}<tool_call|><|tool_call>call:other{}<tool_call|>",
     0},
    {"apertus",
     "<|inner_prefix|>Because.<|inner_suffix|>Hello.<|tools_prefix|>[{\"test\": " ARGUMENTS
     "}, {\"other\": {}}]<|tools_suffix|>",
     0},
    {"functionary-v3.1", "Hello.<function=test>" ARGUMENTS "</function><function=other>{}</function>", REASONING},
    {"functionary-v3.2", ">>>all\nHello.>>>test\n" ARGUMENTS ">>>other\n{}", REASONING},
    {"functools",
     "Hello. functools[{\"name\": \"test\", \"arguments\": " ARGUMENTS "}, {\"name\": \"other\", \"arguments\": {}}]",
     REASONING},
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct record {
    char text[16384];
    int last;
} record;

static tn_status note_event(void *user, const tn_chat_event *event) {
    static const char *const names[] = {"content", "reasoning", "call", "arguments", "end"};
    record *r = user;
    size_t n = strlen(r->text);
    bool more = r->last == (int)event->kind && event->kind != TN_CHAT_CALL && event->kind != TN_CHAT_CALL_END;
    snprintf(r->text + n, sizeof r->text - n, "%s%s%s%.*s", more || !n ? "" : "|", more ? "" : names[event->kind],
             more ? "" : ":", (int)event->length, event->text);
    r->last = (int)event->kind;
    return TN_OK;
}

/* Feeds the first `length` bytes in pieces, with a division at `cut` too, and adds the note and the message. */
static void parse(const tn_chat_prompt *prompt, const char *answer, size_t length, size_t piece, size_t cut,
                  record *r) {
    tn_chat_parser *parser;
    char *json;
    *r = (record){.last = -1};
    assert_ok(tn_chat_parser_new(prompt, &parser));
    for (size_t at = 0; at < length;) {
        size_t n = at < cut && at + piece > cut ? cut - at : piece;
        if (n > length - at) n = length - at;
        assert_ok(tn_chat_parser_feed(parser, answer + at, n, note_event, r));
        at += n;
    }
    assert_ok(tn_chat_parser_finish(parser, note_event, r));
    assert_ok(tn_chat_parser_message(parser, &json));
    json_t *message = json_loads(json, 0, NULL);
    if (!message) fail_msg("not a message: %s", json);
    tn_free(json);
    /* Arguments in the message are JSON, whatever the model wrote. */
    size_t i, n = strlen(r->text);
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        json_t *arguments =
            json_loads(json_string_value(json_object_get(json_object_get(call, "function"), "arguments")), 0, NULL);
        if (!arguments) fail_msg("%.*s: not JSON: %s", (int)length, answer, r->text);
        json_decref(arguments);
    }
    assert_int_equal(i, tn_chat_parser_calls(parser));
    const char *note = tn_chat_parser_note(parser), *said = json_string_value(json_object_get(message, "note"));
    assert_string_equal(note ? note : "", said ? said : "");
    snprintf(r->text + n, sizeof r->text - n, "#%zu#%s", i, note ? note : "");
    json_decref(message);
    tn_chat_parser_free(parser);
}

static tn_chat_prompt *prompt_in(const char *format) {
    tn_chat_template *chat;
    tn_chat_prompt *prompt;
    tn_chat_params params = tn_chat_params_default();
    params.messages = "[{\"role\": \"user\", \"content\": \"Go\"}]";
    params.tools = tools_text;
    params.format = format;
    assert_ok(tn_chat_template_new(NULL, &chat));
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    tn_chat_template_free(chat);
    return prompt;
}

static void every_format_is_parsed(void **state) {
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        const format_case *c = &cases[i];
        tn_chat_prompt *prompt = prompt_in(c->format);
        static record r;
        char expected[1024];
        snprintf(expected, sizeof expected, "%s%scall:test|arguments:" ARGUMENTS "|end:%s#%d#",
                 c->without & REASONING ? "" : "reasoning:Because.|", c->without & CONTENT ? "" : "content:Hello.|",
                 c->without & SECOND ? "" : "|call:other|arguments:{}|end:", c->without & SECOND ? 1 : 2);
        size_t length = strlen(c->answer);
        for (size_t piece = 1; piece <= length; piece = piece < 4 ? piece + 1 : piece == 4 ? length : length + 1) {
            parse(prompt, c->answer, length, piece, 0, &r);
            if (strcmp(r.text, expected) != 0)
                fail_msg("%s, in pieces of %zu: %s\n  expected %s\n  got      %s", c->format, piece, c->answer,
                         expected, r.text);
        }
        tn_chat_prompt_free(prompt);
    }
}

/* The longest beginning of the text that the grammar accepts as a whole; 0: none. */
static size_t accepted_length(const tn_grammar *grammar, const char *text, size_t length) {
    tn_grammar_state *s;
    size_t longest = 0;
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = grammar}, &s));
    for (size_t i = 0; i < length && tn_grammar_accept_bytes(s, text + i, 1) == TN_OK; i++)
        if (tn_grammar_is_accepting(s)) longest = i + 1;
    tn_grammar_state_free(s);
    return longest;
}

/* From its trigger on, an answer with well-formed calls is in the grammar of its format; an answer from which a byte
 * of a call's frame or arguments is missing is in the grammar only if the parser still finds calls with valid
 * arguments in it. */
static void grammars_and_parsers_agree(void **state) {
    (void)state;
    int compared = 0, shorter = 0, refused = 0;
    for (size_t i = 0; i < CASES; i++) {
        const format_case *c = &cases[i];
        /* Which the parser takes too, and the grammar does not write. */
        static const char *const otherwise[] = {"kimi-k2", "kimi-k3", "llama3", "command-r", "command-a"};
        bool other_spelling = false;
        for (size_t k = 0; k < sizeof otherwise / sizeof *otherwise; k++)
            other_spelling = other_spelling || strcmp(otherwise[k], c->format) == 0;
        for (size_t k = 0; k < i; k++) other_spelling = other_spelling || strcmp(cases[k].format, c->format) == 0;
        if (other_spelling) continue;
        tn_chat_prompt *prompt = prompt_in(c->format);
        const char *gbnf = tn_chat_prompt_grammar(prompt), *trigger = tn_chat_prompt_trigger(prompt);
        char answer[2048];
        snprintf(answer, sizeof answer, "%s", c->answer);
        for (char *tag; (tag = strstr(answer, " <b>"));)
            memcpy(tag, "more", 4); /* the grammar ends texts without quotes at what may be a marker */
        const char *at = gbnf && trigger ? strstr(answer, trigger) : NULL;
        if (at) {
            tn_grammar *grammar;
            assert_ok(tn_grammar_new(gbnf, NULL, &grammar));
            /* At least the first call, which ends after its number. */
            const size_t length = accepted_length(grammar, at, strlen(at));
            if (at + length < strstr(at, "-3")) print_error("%s: the grammar refuses %s\n", c->format, at), refused++;
            compared++;
            char *text = malloc(length + 1);
            for (size_t gap = 0; gap < length; gap++) {
                static record r;
                memcpy(text, at, gap);
                memcpy(text + gap, at + gap + 1, length - gap);
                if (accepted_length(grammar, text, length - 1) < length - 1) continue;
                parse(prompt, text, length - 1, length, 0, &r);
                if (!strstr(r.text, "call:"))
                    fail_msg("%s: in the grammar, but no call: %s\n%s", c->format, text, r.text);
                shorter++;
            }
            free(text);
            tn_grammar_free(grammar);
        }
        tn_chat_prompt_free(prompt);
    }
    assert_int_equal(refused, 0);
    assert_true(compared > 10 && shorter > compared); /* texts may be shorter */
}

static tn_status fail_at_event(void *user, const tn_chat_event *event) {
    (void)event;
    int *left = user;
    return --*left == 0 ? tn_fail(TN_E_ABORTED, "no more") : TN_OK;
}

/* Whichever event its receiver refuses, parsing ends with the receiver's status. */
static void refused_events_end_parsing(void **state) {
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        tn_chat_prompt *prompt = prompt_in(cases[i].format);
        const char *answer = cases[i].answer;
        const size_t length = strlen(answer);
        for (size_t piece = 1; piece <= length; piece += length - 1) {
            int refused = 0, left = -1;
            for (int k = 1; left < 0 || refused == k - 1; k++) {
                tn_chat_parser *parser;
                tn_status status = TN_OK;
                left = k;
                assert_ok(tn_chat_parser_new(prompt, &parser));
                for (size_t at = 0; at < length && status == TN_OK; at += piece)
                    status = tn_chat_parser_feed(parser, answer + at, piece, fail_at_event, &left);
                if (status == TN_OK) status = tn_chat_parser_finish(parser, fail_at_event, &left);
                tn_chat_parser_free(parser);
                if (status != (left <= 0 ? TN_E_ABORTED : TN_OK))
                    fail_msg("%s, event %d in pieces of %zu: status %d", cases[i].format, k, piece, status);
                refused += left <= 0;
            }
            if (refused < 3) fail_msg("%s: only %d events", cases[i].format, refused);
        }
        tn_chat_prompt_free(prompt);
    }
}

static void divisions_do_not_matter(void **state) {
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        const format_case *c = &cases[i];
        tn_chat_prompt *prompt = prompt_in(c->format);
        static record whole, divided;
        size_t length = strlen(c->answer);
        parse(prompt, c->answer, length, length, 0, &whole);
        for (size_t cut = 1; cut < length; cut++) {
            parse(prompt, c->answer, length, length, cut, &divided);
            if (strcmp(whole.text, divided.text) != 0)
                fail_msg("%s, divided after %zu bytes:\n  at once %s\n  divided %s", c->format, cut, whole.text,
                         divided.text);
        }
        tn_chat_prompt_free(prompt);
    }
}

/* Cut answers are not errors, and nothing that the model wrote of a call is lost silently: text, or a note. */
static void cut_answers_are_parsed(void **state) {
    (void)state;
    size_t notes = 0;
    for (size_t i = 0; i < CASES; i++) {
        const format_case *c = &cases[i];
        tn_chat_prompt *prompt = prompt_in(c->format);
        static record whole, bytes;
        size_t length = strlen(c->answer);
        for (size_t cut = 0; cut < length; cut++) {
            parse(prompt, c->answer, cut, length, 0, &whole);
            parse(prompt, c->answer, cut, 1, 0, &bytes);
            if (strcmp(whole.text, bytes.text) != 0)
                fail_msg("%s, cut after %zu bytes:\n  at once      %s\n  byte by byte %s", c->format, cut, whole.text,
                         bytes.text);
            notes += whole.text[strlen(whole.text) - 1] != '#';
        }
        tn_chat_prompt_free(prompt);
    }
    assert_true(notes > 1000); /* the bytes of arguments, in the formats that stream them */
}

/* Parts of answers deleted, repeated and exchanged at random. */
static void garbled_answers_are_parsed(void **state) {
    (void)state;
    rng r = {97};
    for (size_t i = 0; i < CASES; i++) {
        tn_chat_prompt *prompt = prompt_in(cases[i].format);
        for (int round = 0; round < 200; round++) {
            char text[4096];
            size_t length = 0;
            for (size_t parts = 1 + rng_below(&r, 5); parts > 0; parts--) {
                const char *from = rng_below(&r, 8) ? cases[i].answer : cases[rng_below(&r, CASES)].answer;
                size_t whole = strlen(from), at = rng_below(&r, (uint32_t)whole);
                size_t n = rng_below(&r, (uint32_t)(whole - at) + 1);
                if (length + n > sizeof text) break;
                memcpy(text + length, from + at, n);
                length += n;
            }
            static record whole, bytes;
            parse(prompt, text, length, length + 1, 0, &whole);
            parse(prompt, text, length, 1 + rng_below(&r, 7), 0, &bytes);
            if (strcmp(whole.text, bytes.text) != 0)
                fail_msg("%s: %.*s\n  at once   %s\n  in pieces %s", cases[i].format, (int)length, text, whole.text,
                         bytes.text);
        }
        tn_chat_prompt_free(prompt);
    }
}

static void malformed_calls_become_text_with_a_note(void **state) {
    (void)state;
    static const char *const broken[][3] = {
        /* format, answer, message */
        {"hermes", "<tool_call>\n{\"name\": \"test\", \"arguments\": {\"arg\": tru}}\n</tool_call>",
         "{\"role\": \"assistant\", \"content\": \"test {\\\"arg\\\": tru}\", \"note\": \"the arguments of a call of "
         "test are malformed\"}"},
        {"hermes", "<tool_call>\nhello</tool_call> you",
         "{\"role\": \"assistant\", \"content\": \"<tool_call>\\nhello</tool_call> you\", \"note\": \"text after "
         "<tool_call>\\n is not a call\"}"},
        {"kimi-k2",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.test:0<|tool_call_argument_begin|>{\"arg\": \"x",
         "{\"role\": \"assistant\", \"content\": \"test {\\\"arg\\\": \\\"x\", \"note\": \"the arguments of a call "
         "of "
         "test are incomplete\"}"},
        {"gemma4", "<|tool_call>call:test{arg:<|\"|>x",
         "{\"role\": \"assistant\", \"content\": \"<|tool_call>call:test{arg:<|\\\"|>x\", \"note\": \"text after "
         "<|tool_call>call: is not a call\"}"},
        {"json", "[1, 2, 3]", "{\"role\": \"assistant\", \"content\": \"[1, 2, 3]\"}"},
        {"pythonic", "[test](x)", "{\"role\": \"assistant\", \"content\": \"[test](x)\"}"},
        {"pythonic", "[nothing(a=1)]", "{\"role\": \"assistant\", \"content\": \"[nothing(a=1)]\"}"},
        {"hermes", "</think>\n\nHi", "{\"role\": \"assistant\", \"content\": \"Hi\"}"},
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        tn_chat_prompt *prompt = prompt_in(broken[i][0]);
        tn_chat_parser *parser;
        char *json;
        assert_ok(tn_chat_parser_new(prompt, &parser));
        assert_ok(tn_chat_parser_feed(parser, broken[i][1], strlen(broken[i][1]), NULL, NULL));
        assert_ok(tn_chat_parser_finish(parser, NULL, NULL));
        assert_ok(tn_chat_parser_message(parser, &json));
        assert_int_equal(tn_chat_parser_calls(parser), 0);
        assert_string_equal(json, broken[i][2]);
        tn_free(json);
        tn_chat_parser_free(parser);
        tn_chat_prompt_free(prompt);
    }
}

static void formats_are_selected_by_name(void **state) {
    (void)state;
    size_t count = 0;
    for (const char *name; (name = tn_chat_format_name(count)); count++) {
        bool tested = false;
        for (size_t i = 0; i < CASES; i++) tested = tested || strcmp(cases[i].format, name) == 0;
        if (!tested) fail_msg("format %s has no test", name);
        for (size_t k = 0; k < count; k++) assert_string_not_equal(name, tn_chat_format_name(k));
    }
    assert_true(count >= 30);
    tn_chat_template *chat;
    tn_chat_prompt *prompt;
    tn_chat_params params = tn_chat_params_default();
    params.messages = "[]";
    params.format = "nonsense";
    assert_ok(tn_chat_template_new(NULL, &chat));
    assert_fails(TN_E_NOT_FOUND, tn_chat_prompt_new(chat, &params, &prompt));
    assert_non_null(strstr(tn_error(), "hermes"));
    tn_chat_template_free(chat);
}

/* A history that a template cannot render as it is: several calls in one message, arguments that are not JSON. */
static void histories_are_adapted(void **state) {
    (void)state;
    tn_chat_template *chat;
    tn_chat_prompt *prompt;
    tn_chat_params params = tn_chat_params_default();
    params.tools = tools_text;
    params.messages =
        "[{\"role\": \"user\", \"content\": \"Go\"}, {\"role\": \"assistant\", \"content\": \"Hm\", \"tool_calls\": ["
        "{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": \"test\", \"arguments\": \"{\\\"arg\\\": "
        "\\\"x\"}},"
        "{\"id\": \"b\", \"type\": \"function\", \"function\": {\"name\": \"other\", \"arguments\": \"{}\"}}]},"
        "{\"role\": \"tool\", \"tool_call_id\": \"b\", \"content\": \"2\"}, {\"role\": \"tool\", \"tool_call_id\": "
        "\"a\", \"content\": \"1\"}]";
    assert_ok(tn_chat_template_new(
        "{{ tools | tojson | length > 0 }}{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length > "
        "1 "
        "%}{{ raise_exception('one call') }}{% endif %}[{{ m.content }} {{ m.tool_calls[0].function.name }}{% for k, "
        "v in m.tool_calls[0].function.arguments.items() %} {{ k }}={{ v }}{% endfor %}]{% else %}({{ m.role }} {{ "
        "m.content }}){% endif %}{% endfor %}{{ tools[0].function.name if tools }}",
        &chat));
    assert_true(tn_chat_template_caps(chat)->tool_calls && !tn_chat_template_caps(chat)->parallel_calls);
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    assert_string_equal(tn_chat_prompt_text(prompt, NULL),
                        "True(user Go)[Hm test malformed={\"arg\": \"x](tool 1)[ other](tool 2)test");
    tn_chat_prompt_free(prompt);
    tn_chat_template_free(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_parsed),
        cmocka_unit_test(grammars_and_parsers_agree),
        cmocka_unit_test(refused_events_end_parsing),
        cmocka_unit_test(divisions_do_not_matter),
        cmocka_unit_test(cut_answers_are_parsed),
        cmocka_unit_test(garbled_answers_are_parsed),
        cmocka_unit_test(malformed_calls_become_text_with_a_note),
        cmocka_unit_test(formats_are_selected_by_name),
        cmocka_unit_test(histories_are_adapted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

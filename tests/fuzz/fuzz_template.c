/* Fuzzes untrusted chat templates: any bytes load or give an error. A loaded template renders a conversation with
 * tools or gives an error, and the grammar and parser derived from it work.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_template
 *   build-fuzz/fuzz/fuzz_template -max_len=4000 -timeout=10 -dict=tests/fuzz/jinja.dict CORPUS
 * tests/fuzz/corpus/jinja */
#include "tenon/chat.h"
#include "tenon/grammar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define HOLDS(condition)                                                                                             \
    do {                                                                                                             \
        if (!(condition)) __builtin_trap();                                                                          \
    } while (0)

/* The answer is the template's own rendering of a conversation, the text most likely to contain its calls. */
static void read_back(const tn_chat_prompt *prompt) {
    size_t length;
    const char *text = tn_chat_prompt_text(prompt, &length);
    tn_chat_parser *parser;
    char *json;
    if (length > 4000) length = 4000;
    HOLDS(tn_chat_parser_new(prompt, &parser) == TN_OK);
    for (size_t at = 0; at < length; at += 7)
        HOLDS(tn_chat_parser_feed(parser, text + at, length - at < 7 ? length - at : 7, NULL, NULL) == TN_OK);
    HOLDS(tn_chat_parser_finish(parser, NULL, NULL) == TN_OK);
    HOLDS(tn_chat_parser_message(parser, &json) == TN_OK);
    tn_free(json);
    tn_chat_parser_free(parser);
}

static void render(const tn_chat_template *chat, tn_tool_choice choice) {
    tn_chat_params params = tn_chat_params_default();
    params.messages =
        "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}, {\"role\": "
        "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": "
        "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"x\\\", \\\"n\\\": 3}\"}}]}, {\"role\": \"tool\", "
        "\"tool_call_id\": \"1\", \"content\": \"r\"}]";
    params.tools =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": "
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"n\": {\"type\": "
        "\"integer\"}}, \"required\": [\"a\"]}}}]";
    params.tool_choice = choice;
    params.bos_token = "<s>";
    params.eos_token = "</s>";
    params.now = 1000000000;
    tn_chat_prompt *prompt;
    tn_error_clear();
    if (tn_chat_prompt_new(chat, &params, &prompt) != TN_OK) {
        HOLDS(*tn_error());
        return;
    }
    read_back(prompt);
    const char *gbnf = tn_chat_prompt_grammar(prompt);
    if (gbnf) {
        tn_grammar *grammar;
        HOLDS(tn_grammar_new(gbnf, NULL, &grammar) == TN_OK);
        tn_grammar_free(grammar);
    }
    tn_chat_prompt_free(prompt);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *text = malloc(size + 1);
    if (!text) return 0;
    if (size) memcpy(text, bytes, size);
    text[size] = '\0';
    uint64_t live = tn_memory_get_stats().live_blocks;
    tn_chat_template *chat;
    tn_error_clear();
    if (tn_chat_template_new(text, &chat) == TN_OK) {
        render(chat, TN_TOOLS_AUTO);
        render(chat, TN_TOOLS_REQUIRED);
        tn_chat_template_free(chat);
    } else
        HOLDS(*tn_error());
    HOLDS(tn_memory_get_stats().live_blocks == live);
    free(text);
    return 0;
}

/* Helpers of the tests of chat: golden templates, tools and prompts. */
#ifndef TN_TESTS_CHAT_CASES_H
#define TN_TESTS_CHAT_CASES_H

#include "support.h"
#include "tenon/chat.h"

#include <stdio.h>
#include <stdlib.h>

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"test\", \"description\": \"Test\", \"parameters\": "
    "{\"type\": \"object\", "
    "\"description\": \"Arguments\", \"properties\": {\"arg\": {\"type\": \"string\", \"description\": \"A text\"}, "
    "\"count\": {\"type\": \"integer\", \"description\": \"A number\"}}, \"required\": [\"arg\"]}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"other\", \"description\": \"Other\", \"parameters\": "
    "{\"type\": \"object\", "
    "\"description\": \"Arguments\", \"properties\": {}}}}]";

static inline tn_chat_template *load_template(const char *name) {
    char relative[256];
    size_t size;
    snprintf(relative, sizeof relative, "chat/%s.jinja", name);
    const char *path = golden_path(relative);
    if (!path) return NULL;
    char *text = read_file(path, &size);
    tn_chat_template *chat;
    assert_ok(tn_chat_template_new(text, &chat));
    free(text);
    return chat;
}
#define LOAD_OR_SKIP(variable, name)                                                                                 \
    tn_chat_template *variable = load_template(name);                                                                \
    if (!variable) {                                                                                                 \
        print_message("skipped: no golden templates (set TENON_GOLDEN)\n");                                          \
        skip();                                                                                                      \
    }

static inline tn_chat_prompt *prompt_of(const tn_chat_template *chat, const char *messages, const char *tools) {
    tn_chat_params params = tn_chat_params_default();
    tn_chat_prompt *prompt;
    params.messages = messages;
    params.tools = tools;
    assert_ok(tn_chat_prompt_new(chat, &params, &prompt));
    return prompt;
}

#endif

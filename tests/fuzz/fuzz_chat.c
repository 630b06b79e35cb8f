/* Fuzzes the parser of answers: the message does not depend on the pieces in which an answer arrives.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_chat
 *   build-fuzz/fuzz/fuzz_chat -max_len=2000 -timeout=2 -dict=tests/fuzz/chat.dict CORPUS tests/fuzz/corpus/chat */
#include "tenon/chat.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* One template per syntax; the first byte of the input selects it, or from 128 on one of the formats by name. */
static const char *const sources[] = {
    NULL, /* tools described in words, <tool_call> */
    "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ {'name': c.function.name, 'parameters': c.function.arguments}|tojson }}{% endfor %}{% endfor %}{# "
    "<|python_tag|> #}",
    "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[CALL]{{ c.function.name }}[ARGS]{{ c.function.arguments|tojson }}[/CALL]{% endfor %}{% endfor %}",
    "{{ tools }}{% for m in messages %}{{ m.content }}{% if m.tool_calls %}<calls>{% for c in m.tool_calls %}"
    "<f name=\"{{ c.function.name }}\">{% for k, v in c.function.arguments.items() %}<p name=\"{{ k }}\">{{ v "
    "}}</p>{% endfor %}</f>"
    "{% endfor %}</calls>{% endif %}{% endfor %}",
    "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{# List of tools:  #}",
    "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<|tool_call>call:{{ "
    "c.function.name + '{' }}"
    "{% for k, v in c.function.arguments.items() %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}{{ '}' }}<tool_call|>{% "
    "endfor "
    "%}{% endfor %}",
    "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{# <|constrain|> #}",
    "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}>>>{# >>>all #}",
    "{{ tools }}{% for m in messages %}{{ m.content }}{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{{ c.function|tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}{% endfor %}<think>\n",
};
enum { COUNT = sizeof sources / sizeof sources[0] };
enum { MOST_FORMATS = 100 };
static tn_chat_prompt *prompts[COUNT + MOST_FORMATS];
static size_t formats;

static void prepare(void) {
    while (formats < MOST_FORMATS && tn_chat_format_name(formats)) formats++;
    for (size_t i = 0; i < COUNT + formats; i++) {
        tn_chat_template *chat;
        tn_chat_params params = tn_chat_params_default();
        params.messages = "[{\"role\": \"user\", \"content\": \"x\"}]";
        params.tools = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"\", "
                       "\"parameters\": {\"type\": \"object\", "
                       "\"properties\": {\"a\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}}}}, "
                       "{\"type\": \"function\", \"function\": {\"name\": \"python\"}}]";
        if (i >= COUNT) params.format = tn_chat_format_name(i - COUNT);
        if (tn_chat_template_new(i < COUNT ? sources[i] : NULL, &chat) != TN_OK ||
            tn_chat_prompt_new(chat, &params, &prompts[i]) != TN_OK)
            abort();
        tn_chat_template_free(chat);
    }
}

__attribute__((destructor)) static void free_prompts(void) {
    for (size_t i = 0; i < COUNT + formats; i++) tn_chat_prompt_free(prompts[i]);
}

/* The message without the ids, which are random. */
static char *read_answer(const tn_chat_prompt *prompt, const char *text, size_t length, size_t piece) {
    tn_chat_parser *parser;
    char *json;
    if (tn_chat_parser_new(prompt, &parser) != TN_OK) abort();
    for (size_t i = 0; i < length; i += piece)
        if (tn_chat_parser_feed(parser, text + i, length - i < piece ? length - i : piece, NULL, NULL) != TN_OK)
            abort();
    if (tn_chat_parser_finish(parser, NULL, NULL) != TN_OK || tn_chat_parser_message(parser, &json) != TN_OK) abort();
    tn_chat_parser_free(parser);
    for (char *id = json; (id = strstr(id, "{\"id\": \""));) {
        id += 8;
        for (; *id && *id != '"'; id++) *id = '0';
    }
    return json;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (!prompts[0]) prepare();
    if (size < 2) return 0;
    uint64_t live = tn_memory_get_stats().live_blocks;
    const tn_chat_prompt *prompt = prompts[bytes[0] < 128 ? bytes[0] % COUNT : COUNT + (bytes[0] - 128u) % formats];
    const char *text = (const char *)bytes + 2;
    char *whole = read_answer(prompt, text, size - 2, size),
         *pieces = read_answer(prompt, text, size - 2, 1 + bytes[1] % 16);
    if (strcmp(whole, pieces) != 0) __builtin_trap();
    tn_free(whole);
    tn_free(pieces);
    if (tn_memory_get_stats().live_blocks != live) __builtin_trap();
    return 0;
}

/* Fuzzes the template engine: any bytes render or give an error, within the limits and without leaks.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_jinja
 *   build-fuzz/fuzz/fuzz_jinja -max_len=4000 -timeout=2 -dict=tests/fuzz/jinja.dict CORPUS tests/fuzz/corpus/jinja */
#include "tenon/chat.h"
#include "text/template/jinja.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static json_t *variables(void) {
    static json_t *json;
    if (!json)
        json = json_loads(
            "{\"messages\": [{\"role\": \"user\", \"content\": \"hi \\u00e9\\n\"}, {\"role\": \"assistant\", "
            "\"content\": null, \"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": "
            "{\"a\": 1.5}}}]}],"
            " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"n\": 3, \"s\": \"text\", "
            "\"l\": [3, 1, 2],"
            " \"d\": {\"b\": 1, \"a\": [true, null]}, \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}",
            0, NULL);
    return json;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const struct tm noon = {.tm_year = 126, .tm_mon = 10, .tm_mday = 15, .tm_hour = 12};
    uint64_t live = tn_memory_get_stats().live_blocks;
    tn__jinja *template;
    tn__jinja_params params = {.limits = {200000, 150, 1 << 20, 16 << 20}, .allow_mutation = size & 1, .now = &noon};
    if (tn__jinja_parse((const char *)bytes, size, &params.limits, &template) == TN_OK) {
        char *text;
        size_t length = 0;
        if (tn__jinja_render(template, variables(), &params, &text, &length) == TN_OK) {
            if (strlen(text) > length || length > params.limits.max_output) __builtin_trap();
            tn_free(text);
        } else if (text || !*tn_error())
            __builtin_trap();
        tn__jinja_free(template);
    } else if (!*tn_error())
        __builtin_trap();
    if (tn_memory_get_stats().live_blocks != live) __builtin_trap();
    return 0;
}

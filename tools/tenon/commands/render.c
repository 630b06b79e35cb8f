/* tenon render: the prompt that a chat template makes from messages. */
#include "cli/text_input.h"
#include "files/metadata_text.h"
#include "tenon/chat.h"
#include "tenon/gguf.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Sets variable `name` to the text of the token whose id is stored under `key`. */
static void add_token_variable(const tn_gguf *gguf, const char *key, const char *name, json_t *variables) {
    uint64_t count = 0;
    const tn_gguf_str *tokens = tn_gguf_get_array(gguf, "tokenizer.ggml.tokens", TN_GGUF_STR, &count);
    uint32_t id = tn_gguf_get_u32(gguf, key, UINT32_MAX);
    if (tokens && id < count) json_object_set_new(variables, name, show_json_text(tokens[id]));
}

/* The text of the template: a file of its own, or the one in a model file, whose tokens then become variables. */
static int read_template(const char *path, char **text, json_t *variables) {
    size_t size;
    char magic[4] = "";
    FILE *file = fopen(path, "rb");
    bool model = file && fread(magic, 1, 4, file) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (file) fclose(file);
    if (!model) return read_text_file(path, text, &size);
    tn_gguf *gguf;
    tn_status status = tn_gguf_open(path, NULL, &gguf);
    if (status != TN_OK) return fail_status(status, "%s", path);
    tn_gguf_str stored = tn_gguf_get_str(gguf, "tokenizer.chat_template");
    int code = EXIT_OK;
    if (!stored.data)
        code = fail("%s: the model has no chat template", path);
    else if (!(*text = strndup(stored.data, stored.size)))
        code = fail("out of memory");
    add_token_variable(gguf, "tokenizer.ggml.bos_token_id", "bos_token", variables);
    add_token_variable(gguf, "tokenizer.ggml.eos_token_id", "eos_token", variables);
    tn_gguf_close(gguf);
    return code;
}

static void print_info(const tn_chat_template *chat) {
    const tn_chat_caps *c = tn_chat_template_caps(chat);
    const struct {
        const char *name;
        bool value;
    } rows[] = {{"system_role", c->system_role},
                {"text_content", c->text_content},
                {"part_content", c->part_content},
                {"null_content", c->null_content},
                {"tools", c->tools},
                {"tool_calls", c->tool_calls},
                {"tool_results", c->tool_results},
                {"parallel_calls", c->parallel_calls},
                {"object_arguments", c->object_arguments},
                {"reasoning", c->reasoning},
                {"mutation", c->mutation}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        printf("%-16s  %s\n", rows[i].name, rows[i].value ? "yes" : "no");
    printf("%-16s  %s\n", "call_syntax", tn_chat_template_syntax(chat));
    printf("%-16s  %s\n", "turn_end", tn_chat_template_turn_end(chat));
}

/* Adds variables that the input lacks. Input that is not an object stays as it is: the renderer reports it. */
static char *with_defaults(char *input, size_t size, json_t *defaults) {
    json_t *given = json_object_size(defaults) ? json_loadb(input, size, 0, NULL) : NULL;
    if (!json_is_object(given) || json_object_update_missing(given, defaults) != 0) {
        json_decref(given);
        return input;
    }
    char *merged = json_dumps(given, JSON_ENCODE_ANY);
    json_decref(given);
    free(input);
    return merged;
}

static int render_messages(const tn_chat_template *chat, const char *path, json_t *defaults) {
    char *variables = NULL, *text = NULL;
    size_t size, length;
    int code = strcmp(path, "-") ? read_text_file(path, &variables, &size) : read_input(&variables, &size);
    if (code) return code;
    if (!(variables = with_defaults(variables, size, defaults))) return fail("out of memory");
    tn_status status = tn_chat_render(chat, variables, 0, &text, &length);
    if (status != TN_OK)
        code = fail_status(status, "render");
    else
        fwrite(text, 1, length, stdout);
    free(variables);
    tn_free(text);
    return code;
}

static int run_render(const struct args *args) {
    char *text = NULL;
    tn_chat_template *chat;
    bool info = args_flag(args, "info");
    if (args_flag(args, "formats")) {
        const char *name;
        for (size_t i = 0; (name = tn_chat_format_name(i)); i++) puts(name);
        return EXIT_OK;
    }
    if (args->count < 1) return fail_usage(args, "missing argument TEMPLATE.jinja");
    if (!info && args->count < 2) return fail_usage(args, "missing argument INPUT.json");
    json_t *defaults = json_object();
    int code = read_template(args->values[0], &text, defaults);
    if (!code) {
        tn_status status = tn_chat_template_new(text, &chat);
        if (status != TN_OK)
            code = fail_status(status, "%s", args->values[0]);
        else if (info)
            print_info(chat);
        else
            code = render_messages(chat, args->values[1], defaults);
        if (status == TN_OK) tn_chat_template_free(chat);
    }
    free(text);
    json_decref(defaults);
    return code;
}

static const struct option options[] = {
    {.name = "info", .help = "print what the template supports instead of rendering", .kind = OPTION_FLAG},
    {.name = "formats",
     .help = "print the names of known formats of answers, for --chat-format",
     .kind = OPTION_FLAG},
    {0},
};

const struct command command_render = {
    .name = "render",
    .summary = "render messages with a chat template",
    .section = SECTION_TEXT,
    .arguments = "[TEMPLATE.jinja] [INPUT.json]",
    .min_arguments = 0,
    .max_arguments = 2,
    .details =
        "Renders the template with exactly the variables in INPUT.json: an object with messages, "
        "add_generation_prompt, "
        "bos_token and any others that the template uses; \"-\" reads it from standard input. TEMPLATE may also be a "
        "model file that contains a template; bos_token and eos_token then default to the model's. No line end is "
        "added "
        "to the text.\n\n"
        "The environment variable TENON_NOW=2026-11-15T12:00:00 sets the time that the template sees.",
    .options = options,
    .examples = "tenon render template.jinja messages.json\n"
                "tenon render model.gguf messages.json\n"
                "tenon render model.gguf --info\n",
    .run = run_render,
};

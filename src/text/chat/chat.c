/* Chat templates and prompts: loading, rendering, and the functions of chat.h that need no parser. */
#include "text/chat/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* The format that models without a template are most often trained on. */
static const char chatml[] = "{%- for message in messages -%}\n"
                             "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}\n"
                             "{%- endfor -%}\n"
                             "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n";

/* ---- Templates ---- */

void tn__chat_syntax_clear(tn__chat_syntax *syntax) {
#define TN_X(marker) tn_free(syntax->marker);
    TN__CHAT_MARKERS(TN_X)
#undef TN_X
    *syntax = (tn__chat_syntax){0};
}

tn_status tn__chat_syntax_copy(const tn__chat_syntax *from, tn__chat_syntax *to) {
    *to = *from;
#define TN_X(marker) to->marker = NULL;
    TN__CHAT_MARKERS(TN_X)
#undef TN_X
#define TN_X(marker)                                                                                                 \
    if (from->marker && !(to->marker = tn_strdup(from->marker))) return TN_E_NOMEM;
    TN__CHAT_MARKERS(TN_X)
#undef TN_X
    return TN_OK;
}

tn_status tn_chat_template_new(const char *text, tn_chat_template **out) {
    tn_status status;
    if (!out) return tn_fail(TN_E_INVALID, "tn_chat_template_new: out is NULL");
    *out = NULL;
    if (!text) text = chatml;
    tn_chat_template *chat = tn_calloc(1, sizeof *chat);
    if (!chat) return TN_E_NOMEM;
    chat->source = tn_strdup(text);
    status = chat->source ? tn__jinja_parse(text, strlen(text), NULL, &chat->jinja) : TN_E_NOMEM;
    if (status == TN_OK) status = tn__chat_probe(chat);
    if (status == TN_OK)
        *out = chat;
    else
        tn_chat_template_free(chat);
    return status;
}

void tn_chat_template_free(tn_chat_template *chat) {
    if (!chat) return;
    tn__jinja_free(chat->jinja);
    tn_free(chat->source);
    tn_free(chat->turn_end);
    tn_free(chat->turn_tail);
    tn__chat_syntax_clear(&chat->syntax);
    tn_free(chat);
}

const tn_chat_caps *tn_chat_template_caps(const tn_chat_template *chat) { return &chat->caps; }
const char *tn_chat_template_turn_end(const tn_chat_template *chat) { return chat->turn_end; }
const char *tn_chat_template_syntax(const tn_chat_template *chat) {
    static const char *const names[] = {
#define TN_X(kind, name) #name,
        TN__CHAT_SYNTAX_TABLE(TN_X)
#undef TN_X
    };
    return names[chat->syntax.kind];
}

/* ---- Rendering ---- */

tn_status tn__chat_run(const tn_chat_template *chat, const json_t *variables, int64_t now,
                       const tn__jinja_limits *limits, char **text, size_t *length) {
    struct tm local;
    time_t seconds = (time_t)now;
    tn__jinja_params params = {.allow_mutation = chat->caps.mutation};
    if (limits) params.limits = *limits;
    if (now) {
        if (!localtime_r(&seconds, &local))
            return tn_fail(TN_E_INVALID, "now is %lld, which is not a time", (long long)now);
        params.now = &local;
    }
    return tn__jinja_render(chat->jinja, variables, &params, text, length);
}

static tn_status load_json(const char *what, const char *text, int type, json_t **out) {
    json_error_t error;
    errno = 0; /* jansson reports most failed allocations as invalid tokens */
    *out = json_loads(text, 0, &error);
    if (!*out && (errno == ENOMEM || json_error_code(&error) == json_error_out_of_memory)) return tn__chat_nomem();
    if (!*out)
        return tn_fail(TN_E_INVALID, "%s: not JSON: %s (line %d, column %d)", what, error.text, error.line,
                       error.column);
    if ((int)json_typeof(*out) == type) return TN_OK;
    json_decref(*out);
    *out = NULL;
    return tn_fail(TN_E_INVALID, "%s: not a JSON %s", what, type == JSON_ARRAY ? "array" : "object");
}

tn_status tn_chat_render(const tn_chat_template *chat, const char *variables, int64_t now, char **text,
                         size_t *length) {
    json_t *json = NULL;
    if (!chat || !text) return tn_fail(TN_E_INVALID, "tn_chat_render: chat or text is NULL");
    *text = NULL;
    if (variables) TN_TRY(load_json("variables", variables, JSON_OBJECT, &json));
    /* Renders strictly: only tn_chat_prompt_new lets a template change its values. */
    tn_chat_template strict = *chat;
    strict.caps.mutation = false;
    tn_status status = tn__chat_run(&strict, json, now, NULL, text, length);
    json_decref(json);
    return status;
}

/* ---- Prompts ---- */

tn_chat_params tn_chat_params_default(void) {
    return (tn_chat_params){.parallel_calls = true, .generation_prompt = true};
}

const char *tn__chat_tool_name(const json_t *tools, size_t index) {
    const json_t *tool = json_array_get(tools, index), *function = json_object_get(tool, "function");
    return json_string_value(json_object_get(function ? function : tool, "name"));
}

const json_t *tn__chat_tool_parameters(const json_t *tools, const char *name, size_t length) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const char *known = tn__chat_tool_name(tools, i);
        if (!known || strlen(known) != length || memcmp(known, name, length) != 0) continue;
        const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
        return json_object_get(function ? function : tool, "parameters");
    }
    return NULL;
}

static tn_status check_prompt_messages(const json_t *messages) {
    size_t i;
    const json_t *message;
    json_array_foreach(messages, i, message) {
        if (!json_is_object(message)) return tn_fail(TN_E_INVALID, "message %zu is not a JSON object", i);
        if (!json_is_string(json_object_get(message, "role")))
            return tn_fail(TN_E_INVALID, "message %zu has no role", i);
    }
    return TN_OK;
}

static tn_status check_tool_names(const json_t *tools) {
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!tn__chat_tool_name(tools, i)) return tn_fail(TN_E_INVALID, "tool %zu has no function name", i);
    return TN_OK;
}

/* The date in a format of strftime: `now`, TENON_NOW or the clock, as for strftime_now. */
static json_t *date_json(const char *format, int64_t now) {
    time_t seconds = now ? (time_t)now : time(NULL);
    struct tm local = {0};
    char date[64] = "";
    const char *fixed = now ? NULL : getenv("TENON_NOW");
    bool known = fixed ? strptime(fixed, "%Y-%m-%dT%H:%M:%S", &local) != NULL : localtime_r(&seconds, &local) != NULL;
    if (known) strftime(date, sizeof date, format, &local);
    return json_string(date);
}

static int set_absent(json_t *variables, const char *name, json_t *value) {
    if (!json_object_get(variables, name)) return json_object_set_new(variables, name, value);
    json_decref(value);
    return 0;
}

int tn__chat_add_functions(const tn_chat_template *chat, json_t *variables, const json_t *tools, int64_t now) {
    int bad = 0;
    if (strstr(chat->source, "date_string") && !strstr(chat->source, "strftime_now"))
        bad = set_absent(variables, "date_string", date_json("%d %b %Y", now));
    if (!strstr(chat->source, "functions") || !strstr(chat->source, "datetime")) return bad;
    char *text = json_is_array(tools) ? json_dumps(tools, JSON_INDENT(4)) : NULL;
    bad |= json_object_set_new(variables, "functions", json_string(text ? text : "[]")) |
           set_absent(variables, "datetime", date_json("%b %d %Y", now));
    free(text);
    return bad;
}

/* The variables of a render. The caller's are set first, so that they cannot replace the messages. */
static tn_status collect_variables(const tn_chat_template *chat, const tn_chat_params *params, json_t *messages,
                                   json_t *tools, json_t **out) {
    json_t *variables = NULL;
    if (params->variables)
        TN_TRY(load_json("variables", params->variables, JSON_OBJECT, &variables));
    else if (!(variables = json_object()))
        return tn__chat_nomem();
    bool show_tools = tools && chat->caps.tools;
    int bad = json_object_set(variables, "messages", messages) |
              json_object_set_new(variables, "tools", show_tools ? json_incref(tools) : json_null()) |
              json_object_set_new(variables, "bos_token", json_string(params->bos_token ? params->bos_token : "")) |
              json_object_set_new(variables, "eos_token", json_string(params->eos_token ? params->eos_token : "")) |
              json_object_set_new(variables, "add_generation_prompt", json_boolean(params->generation_prompt));
    if (!show_tools && chat->omit_tools) json_object_del(variables, "tools");
    if (!bad) bad = tn__chat_add_functions(chat, variables, tools, params->now);
    if (bad) {
        json_decref(variables);
        return tn_fail(TN_E_INVALID, "bos_token or eos_token is not UTF-8, or out of memory");
    }
    *out = variables;
    return TN_OK;
}

static bool ends_with_marker(const char *text, size_t length, const char *end) {
    size_t n = end ? strlen(end) : 0;
    while (length && (text[length - 1] == '\n' || text[length - 1] == ' ')) length--;
    return n && length >= n && memcmp(text + length - n, end, n) == 0;
}

static tn_status syntax_in_words(const tn_chat_template *chat, tn__chat_syntax *syntax) {
    TN_TRY(tn__chat_known_syntax("", false, syntax));
    syntax->reasoning_begin = tn_strdup(chat->syntax.reasoning_begin);
    syntax->reasoning_end = tn_strdup(chat->syntax.reasoning_end);
    return syntax->reasoning_begin && syntax->reasoning_end ? TN_OK : TN_E_NOMEM;
}

static tn_status extend_prompt(tn_chat_prompt *prompt, const char *text, size_t length) {
    char *longer = tn_realloc(prompt->text, prompt->length + length + 1);
    if (!longer) return TN_E_NOMEM;
    memcpy(longer + prompt->length, text, length);
    prompt->text = longer;
    prompt->length += length;
    longer[prompt->length] = '\0';
    return TN_OK;
}

/* Takes the message that the answer continues off the list. */
static tn_status take_final(json_t *messages, json_t **final) {
    const size_t n = json_array_size(messages);
    const char *roles[2] = {"", ""};
    for (size_t i = 0; i < 2 && i < n; i++)
        roles[i] = json_string_value(json_object_get(json_array_get(messages, n - 1 - i), "role"));
    if (!roles[0] || strcmp(roles[0], "assistant") != 0)
        return tn_fail(TN_E_INVALID, "only an assistant's message can be continued, and the last one is not");
    if (n > 1 && roles[1] && strcmp(roles[1], "assistant") == 0)
        return tn_fail(TN_E_INVALID, "two messages of the assistant at the end: which one is to be continued?");
    *final = json_incref(json_array_get(messages, n - 1));
    if (json_array_remove(messages, n - 1) == 0) return TN_OK;
    return tn__chat_nomem();
}

/* Appends the begun answer: its reasoning, if it has any, between the template's markers, then its content. */
static tn_status append_final(tn_chat_prompt *prompt, const json_t *final) {
    const json_t *content = json_object_get(final, "content"), *part;
    const char *thought = json_string_value(json_object_get(final, "reasoning_content"));
    const tn__chat_syntax *syntax = &prompt->syntax;
    bool inside = ends_with_marker(prompt->text, prompt->length, syntax->reasoning_begin);
    tn__text text = {0};
    size_t i;
    if (thought && !inside && tn__chat_present(syntax->reasoning_begin))
        tn__text_puts(&text, syntax->reasoning_begin);
    if (thought && (inside || tn__chat_present(syntax->reasoning_begin))) tn__text_puts(&text, thought);
    inside = inside || (thought && tn__chat_present(syntax->reasoning_begin));
    const size_t before = text.length;
    if (json_is_string(content)) tn__text_append(&text, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part) {
        const json_t *piece = json_object_get(part, "text");
        if (i) tn__text_puts(&text, "\n\n");
        if (json_is_string(piece)) tn__text_append(&text, json_string_value(piece), json_string_length(piece));
    }
    tn_status status = text.status;
    /* Content ends the reasoning; without content the reasoning goes on. */
    const char *end = inside && text.length > before ? syntax->reasoning_end : NULL;
    if (status == TN_OK) status = extend_prompt(prompt, text.data ? text.data : "", before);
    if (status == TN_OK && tn__chat_present(end)) status = extend_prompt(prompt, end, strlen(end));
    if (status == TN_OK && text.length > before)
        status = extend_prompt(prompt, text.data + before, text.length - before);
    tn__text_free(&text);
    return status;
}

/* Without reasoning: what the template begins is ended; a template that does not know the switch gets an empty one.
 */
static tn_status end_reasoning(const tn_chat_template *chat, const json_t *variables, tn_chat_prompt *prompt) {
    const tn__chat_syntax *syntax = &prompt->syntax;
    if (!json_is_false(json_object_get(variables, "enable_thinking")) || !tn__chat_present(syntax->reasoning_end))
        return TN_OK;
    const bool inside = ends_with_marker(prompt->text, prompt->length, syntax->reasoning_begin);
    if (!inside && (strstr(chat->source, "enable_thinking") || !tn__chat_present(syntax->reasoning_begin) ||
                    ends_with_marker(prompt->text, prompt->length, syntax->reasoning_end)))
        return TN_OK;
    if (!inside) TN_TRY(extend_prompt(prompt, syntax->reasoning_begin, strlen(syntax->reasoning_begin)));
    return extend_prompt(prompt, syntax->reasoning_end, strlen(syntax->reasoning_end));
}

static tn_status finish_prompt(const tn_chat_template *chat, const tn_chat_params *params, const json_t *variables,
                               const json_t *final, tn_chat_prompt *prompt) {
    if (params->generation_prompt || final) TN_TRY(end_reasoning(chat, variables, prompt));
    return final ? append_final(prompt, final) : TN_OK;
}

static tn_status make_prompt(const tn_chat_template *chat, const tn_chat_params *given, tn_chat_prompt *prompt) {
    json_t *messages = NULL, *tools = NULL, *adapted = NULL, *variables = NULL, *final = NULL;
    tn_chat_params own = *given;
    const tn_chat_params *params = &own;
    own.generation_prompt = own.generation_prompt || own.continue_final;
    tn_status status = load_json("messages", params->messages, JSON_ARRAY, &messages);
    if (status == TN_OK && params->tools && params->tool_choice != TN_TOOLS_NONE)
        status = load_json("tools", params->tools, JSON_ARRAY, &tools);
    if (status == TN_OK) status = check_prompt_messages(messages);
    if (status == TN_OK) status = check_tool_names(tools);
    if (status == TN_OK && params->continue_final) status = take_final(messages, &final);
    if (tools && json_array_size(tools) == 0) {
        json_decref(tools);
        tools = NULL;
    }
    /* If tools are described in words, their calls and results are written in words too, also in earlier turns. */
    tn_chat_template view = *chat;
    bool in_words = tools && !chat->caps.tools;
    if (in_words) view.caps.tool_calls = view.caps.tool_results = false;
    if (status == TN_OK)
        status =
            in_words ? syntax_in_words(chat, &prompt->syntax) : tn__chat_syntax_copy(&chat->syntax, &prompt->syntax);
    if (status == TN_OK && params->format) {
        tn__chat_syntax_clear(&prompt->syntax);
        status = tn__chat_format_syntax(params->format, &prompt->syntax);
    }
    view.syntax = prompt->syntax;
    if (status == TN_OK) status = tn__chat_adapt(&view, messages, tools, &adapted);
    if (status == TN_OK) status = collect_variables(chat, params, adapted, tools, &variables);
    if (status == TN_OK) status = tn__chat_run(chat, variables, params->now, NULL, &prompt->text, &prompt->length);
    if (status == TN_OK) status = finish_prompt(chat, params, variables, final, prompt);
    prompt->tools = tools; /* the prompt owns them now */
    json_decref(final);
    json_decref(messages);
    json_decref(adapted);
    json_decref(variables);
    if (status != TN_OK) return status;
    size_t bos = params->bos_token ? strlen(params->bos_token) : 0;
    prompt->has_bos = bos && prompt->length >= bos && memcmp(prompt->text, params->bos_token, bos) == 0;
    prompt->in_reasoning = ends_with_marker(prompt->text, prompt->length, prompt->syntax.reasoning_begin);
    prompt->in_call = ends_with_marker(prompt->text, prompt->length, prompt->syntax.call_begin);
    prompt->keep_reasoning = params->keep_reasoning;
    return tools ? tn__chat_grammar(prompt, params) : TN_OK;
}

tn_status tn_chat_prompt_new(const tn_chat_template *chat, const tn_chat_params *params, tn_chat_prompt **out) {
    if (!chat || !params || !params->messages || !out)
        return tn_fail(TN_E_INVALID, "tn_chat_prompt_new: chat, params, messages or out is NULL");
    *out = NULL;
    tn_chat_prompt *prompt = tn_calloc(1, sizeof *prompt);
    if (!prompt) return TN_E_NOMEM;
    tn_status status = make_prompt(chat, params, prompt);
    if (status == TN_OK)
        *out = prompt;
    else
        tn_chat_prompt_free(prompt);
    return status;
}

void tn_chat_prompt_free(tn_chat_prompt *prompt) {
    if (!prompt) return;
    tn_free(prompt->text);
    tn_free(prompt->grammar);
    tn_free(prompt->trigger);
    tn__chat_syntax_clear(&prompt->syntax);
    json_decref(prompt->tools);
    tn_free(prompt);
}

const char *tn_chat_prompt_text(const tn_chat_prompt *prompt, size_t *length) {
    if (length) *length = prompt->length;
    return prompt->text;
}
bool tn_chat_prompt_has_bos(const tn_chat_prompt *prompt) { return prompt->has_bos; }
bool tn_chat_prompt_in_reasoning(const tn_chat_prompt *prompt) { return prompt->in_reasoning; }
const char *tn_chat_prompt_grammar(const tn_chat_prompt *prompt) { return prompt->grammar; }
const char *tn_chat_prompt_trigger(const tn_chat_prompt *prompt) { return prompt->trigger; }

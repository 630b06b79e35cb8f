/* Messages converted to what a template supports: tools, calls and system messages become plain text if necessary. */
#include "text/chat/internal.h"

#include <stdlib.h>

/* Appends the text of a content, which is a string, a list of parts, or null. */
static void append_content(tn__text *text, const json_t *content) {
    size_t i;
    const json_t *part;
    if (json_is_string(content))
        tn__text_append(text, json_string_value(content), json_string_length(content));
    else if (content && !json_is_null(content) && !json_is_array(content))
        tn__chat_append_json(text, content);
    json_array_foreach(content, i, part) {
        const json_t *piece = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(piece)) continue;
        if (text->length) tn__text_puts(text, "\n");
        tn__text_append(text, json_string_value(piece), json_string_length(piece));
    }
}

static json_t *take_json_string(tn__text *text) {
    json_t *value = text->status != TN_OK ? NULL : json_stringn(text->data ? text->data : "", text->length);
    tn__text_free(text);
    return value;
}

/* ---- Tools in words ---- */

static void append_marker_line(tn__text *text, const char *marker) {
    if (!marker || !*marker) return;
    tn__text_puts(text, marker);
    tn__text_puts(text, "\n");
}

static void append_call_object(tn__text *text, const tn__chat_syntax *syntax, const json_t *call) {
    const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    const char *name = json_string_value(json_object_get(function, "name"));
    bool own = syntax->kind == TN__CHAT_JSON;
    const char *name_key = own && tn__chat_present(syntax->name_key) ? syntax->name_key : "name";
    const char *arguments_key = own && tn__chat_present(syntax->arguments_key) ? syntax->arguments_key : "arguments";
    tn__text_puts(text, "{");
    tn__chat_append_json_string(text, name_key, strlen(name_key));
    tn__text_puts(text, ": ");
    tn__chat_append_json_string(text, name ? name : "", name ? strlen(name) : 0);
    tn__text_puts(text, ", ");
    tn__chat_append_json_string(text, arguments_key, strlen(arguments_key));
    tn__text_puts(text, ": ");
    if (json_is_string(arguments))
        tn__text_append(text, json_string_value(arguments), json_string_length(arguments));
    else if (arguments)
        tn__chat_append_json(text, arguments);
    else
        tn__text_puts(text, "{}");
    tn__text_puts(text, "}");
}

/* Calls in the prompt's syntax, for templates that do not render calls: between the markers of a section, of each
 * call, or of the form that tools described in words use. Models that write Python calls read JSON between the same
 * markers. */
static void append_calls_text(tn__text *text, const tn__chat_syntax *syntax, const json_t *calls) {
    bool json = syntax->kind == TN__CHAT_JSON && !syntax->name_is_key;
    bool section = (json || syntax->kind == TN__CHAT_PYTHONIC) && tn__chat_present(syntax->section_begin);
    bool list = section && syntax->section_begin[strlen(syntax->section_begin) - 1] == '[';
    bool marked = json && tn__chat_present(syntax->call_begin);
    size_t i;
    const json_t *call;
    if (text->length) tn__text_puts(text, "\n");
    if (section) tn__text_puts(text, syntax->section_begin);
    if (section && !list) tn__text_puts(text, "[");
    json_array_foreach(calls, i, call) {
        if (i) tn__text_puts(text, section ? ", " : "\n");
        if (!section) append_marker_line(text, marked ? syntax->call_begin : "<tool_call>");
        append_call_object(text, syntax, call);
        if (!section) tn__text_puts(text, "\n");
        if (!section) tn__text_puts(text, marked ? syntax->call_end : "</tool_call>");
    }
    if (section && !list) tn__text_puts(text, "]");
    if (section) tn__text_puts(text, syntax->section_end ? syntax->section_end : "");
}

static void append_tools(tn__text *text, const json_t *tools) {
    size_t i;
    const json_t *tool;
    tn__text_puts(text, "You can call these tools:\n<tools>\n");
    json_array_foreach(tools, i, tool) {
        tn__chat_append_json(text, tool);
        tn__text_puts(text, "\n");
    }
    tn__text_puts(
        text, "</tools>\n"
              "To call one, answer with its name and its arguments as JSON between <tool_call> and </tool_call>:\n"
              "<tool_call>\n{\"name\": \"the tool's name\", \"arguments\": {\"argument\": \"value\"}}\n</tool_call>");
}

/* ---- One message ---- */

/* Converts the arguments of each call to an object or to text, as the template needs them. */
static int adapt_arguments(const tn_chat_template *chat, json_t *calls) {
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call) {
        json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments"),
               *other = NULL;
        if (chat->caps.object_arguments && json_is_string(arguments)) {
            other = json_loadb(json_string_value(arguments), json_string_length(arguments), 0, NULL);
            /* Not JSON, as a cut call: templates that need an object get one with the text. */
            if (!other) other = json_pack("{s:O}", "malformed", arguments);
            if (!other) return -1;
        } else if (!chat->caps.object_arguments && arguments && !json_is_string(arguments)) {
            char *text = json_dumps(arguments, JSON_ENCODE_ANY);
            other = text ? json_string(text) : NULL;
            free(text);
            if (!other) return -1;
        } else
            continue;
        if (json_object_set_new(function, "arguments", other) != 0) return -1;
    }
    return 0;
}

static int adapt_content(const tn_chat_template *chat, json_t *message) {
    const json_t *content = json_object_get(message, "content"), *calls = json_object_get(message, "tool_calls");
    bool empty = !content || json_is_null(content);
    if (empty && (!calls || chat->caps.null_content)) return 0;
    if (!chat->caps.text_content && !json_is_array(content)) {
        tn__text text = {0};
        append_content(&text, content);
        return json_object_set_new(message, "content",
                                   json_pack("[{s:s, s:o}]", "type", "text", "text", take_json_string(&text)));
    }
    if (empty) return json_object_set_new(message, "content", json_string(""));
    if (!json_is_array(content) || chat->caps.part_content) return 0;
    tn__text text = {0};
    append_content(&text, content);
    return json_object_set_new(message, "content", take_json_string(&text));
}

static int adapt_tool_message(json_t *message) {
    tn__text text = {0};
    tn__text_puts(&text, "<tool_response>\n");
    tn__text content = {0};
    append_content(&content, json_object_get(message, "content"));
    tn__text_join(&text, &content);
    tn__text_free(&content);
    tn__text_puts(&text, "\n</tool_response>");
    json_object_del(message, "tool_call_id");
    return json_object_set_new(message, "role", json_string("user")) |
           json_object_set_new(message, "content", take_json_string(&text));
}

static int adapt_calls(const tn_chat_template *chat, json_t *message) {
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) return 0;
    if (!json_is_array(calls) || json_array_size(calls) == 0) return json_object_del(message, "tool_calls");
    if (chat->caps.tool_calls) return adapt_arguments(chat, calls);
    tn__text text = {0};
    append_content(&text, json_object_get(message, "content"));
    append_calls_text(&text, &chat->syntax, calls);
    json_object_del(message, "tool_calls");
    return json_object_set_new(message, "content", take_json_string(&text));
}

static int adapt_message(const tn_chat_template *chat, json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    if (strcmp(role, "tool") == 0 && !chat->caps.tool_results && adapt_tool_message(message) != 0) return -1;
    if (adapt_calls(chat, message) != 0) return -1;
    return adapt_content(chat, message);
}

/* ---- All messages ---- */

static bool message_has_role(const json_t *message, const char *role) {
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

/* Inserts `before` and an empty line before a message's content. */
static int prepend_content(json_t *message, const char *before, size_t length) {
    tn__text text = {0};
    tn__text_append(&text, before, length);
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content)) /* keeps images and other parts */
        return json_array_insert_new(content, 0,
                                     json_pack("{s:s, s:o}", "type", "text", "text", take_json_string(&text)));
    if (text.length) tn__text_puts(&text, "\n\n");
    tn__text own = {0};
    append_content(&own, content);
    tn__text_join(&text, &own);
    tn__text_free(&own);
    return json_object_set_new(message, "content", take_json_string(&text));
}

/* Describes the tools in the system message; adds one if there is none. */
static int describe_tools(json_t *messages, const json_t *tools) {
    tn__text text = {0};
    json_t *first = json_array_get(messages, 0);
    bool system = message_has_role(first, "system");
    if (system) {
        append_content(&text, json_object_get(first, "content"));
        if (text.length) tn__text_puts(&text, "\n\n");
    }
    append_tools(&text, tools);
    json_t *content = take_json_string(&text);
    if (system) return json_object_set_new(first, "content", content);
    return json_array_insert_new(messages, 0, json_pack("{s:s, s:o}", "role", "system", "content", content));
}

/* Moves system messages to the front of the next user message. */
static int merge_system(json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages);) {
        json_t *message = json_array_get(messages, i);
        if (!message_has_role(message, "system") && !message_has_role(message, "developer")) {
            i++;
            continue;
        }
        tn__text text = {0};
        append_content(&text, json_object_get(message, "content"));
        size_t k = i + 1;
        while (k < json_array_size(messages) && !message_has_role(json_array_get(messages, k), "user")) k++;
        int bad = text.status != TN_OK;
        if (!bad && k < json_array_size(messages)) {
            bad = prepend_content(json_array_get(messages, k), text.data ? text.data : "", text.length);
            bad |= json_array_remove(messages, i);
        } else if (!bad)
            bad = json_object_set_new(message, "role", json_string("user"));
        tn__text_free(&text);
        if (bad) return -1;
    }
    return 0;
}

/* Moves the results of a call behind `at`, where they follow the call directly. */
static int move_results(json_t *messages, size_t *at, size_t from, const char *id) {
    for (size_t i = from; i < json_array_size(messages) && message_has_role(json_array_get(messages, i), "tool");
         i++) {
        json_t *message = json_array_get(messages, i);
        const char *of = json_string_value(json_object_get(message, "tool_call_id"));
        if (!id || !of || strcmp(id, of) != 0) continue;
        json_incref(message);
        if (json_array_remove(messages, i) != 0 || json_array_insert_new(messages, ++*at, message) != 0) return -1;
    }
    return 0;
}

/* For templates that render one call per message: several calls become several messages, each followed by its
 * results. */
static int split_calls(json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *calls = json_object_get(message, "tool_calls");
        size_t count = json_array_size(calls);
        if (!message_has_role(message, "assistant") || count < 2) continue;
        json_t *all = json_incref(calls);
        int bad = 0;
        for (size_t k = 0; k < count && !bad; k++) {
            json_t *one = json_array_get(all, k),
                   *copy = k ? json_pack("{s:s, s:s}", "role", "assistant", "content", "") : NULL;
            bad = json_object_set_new(k ? copy : message, "tool_calls", json_pack("[O]", one));
            if (!bad && k) bad = json_array_insert_new(messages, ++i, copy);
            if (!bad) bad = move_results(messages, &i, i + 1, json_string_value(json_object_get(one, "id")));
        }
        json_decref(all);
        if (bad) return -1;
    }
    return 0;
}

/* Templates that do not know the role developer get it as the system's. */
static int rename_developer(const tn_chat_template *chat, json_t *messages) {
    if (strstr(chat->source, "developer")) return 0;
    int bad = 0;
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (message_has_role(json_array_get(messages, i), "developer"))
            bad |= json_object_set_new(json_array_get(messages, i), "role", json_string("system"));
    return bad;
}

tn_status tn__chat_adapt(const tn_chat_template *chat, const json_t *messages, const json_t *tools, json_t **out) {
    json_t *adapted = json_deep_copy(messages);
    int bad = !adapted || rename_developer(chat, adapted);
    if (!bad && tools && !chat->caps.tools) bad = describe_tools(adapted, tools);
    if (!bad && !chat->caps.system_role) bad = merge_system(adapted);
    if (!bad && chat->caps.tool_calls && !chat->caps.parallel_calls) bad = split_calls(adapted);
    for (size_t i = 0; !bad && i < json_array_size(adapted); i++)
        bad = adapt_message(chat, json_array_get(adapted, i));
    if (!bad) {
        *out = adapted;
        return TN_OK;
    }
    json_decref(adapted);
    return tn__chat_nomem();
}

/* GBNF for tool calls: well-formed syntax, arguments valid for the tool's schema, and the text that starts it. */
#include "text/chat/internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "tenon/grammar.h"

/* ---- GBNF pieces ---- */

static void append_literal(tn__text *out, const char *text, size_t length) {
    tn__text_puts(out, " \"");
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '\n')
            tn__text_puts(out, "\\n");
        else if (c == '\t')
            tn__text_puts(out, "\\t");
        else {
            if (c == '"' || c == '\\') tn__text_puts(out, "\\");
            tn__text_append(out, &c, 1);
        }
    }
    tn__text_puts(out, "\"");
}

static bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

/* A marker as a literal between white space. The parts that differ from call to call, an id or a number, become
 * character classes. */
static void append_marker(tn__text *out, const char *marker) {
    if (!tn__chat_present(marker)) return;
    tn__text_puts(out, " space");
    while (*marker) {
        bool id = strncmp(marker, TN__PROBE_ID, sizeof TN__PROBE_ID - 1) == 0;
        size_t n = 0;
        if (id)
            n = sizeof TN__PROBE_ID - 1;
        else if (is_ascii_digit(*marker))
            while (is_ascii_digit(marker[n])) n++;
        else
            while (marker[n] && !is_ascii_digit(marker[n]) &&
                   strncmp(marker + n, TN__PROBE_ID, sizeof TN__PROBE_ID - 1) != 0)
                n++;
        if (id)
            tn__text_puts(out, " [a-zA-Z0-9]{9}");
        else if (is_ascii_digit(*marker))
            tn__text_puts(out, " [0-9]+");
        else
            append_literal(out, marker, n);
        marker += n;
    }
    tn__text_puts(out, " space");
}

static bool is_rule_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Copies GBNF with `prefix` before every rule name, so that one text can hold several grammars. */
static void append_prefixed(tn__text *out, const char *gbnf, const char *prefix) {
    for (const char *p = gbnf; *p;) {
        const char *from = p;
        if (*p == '"' || *p == '[') {
            char close = *p == '"' ? '"' : ']';
            for (p++; *p && *p != close; p++)
                if (*p == '\\' && p[1]) p++;
            if (*p) p++;
        } else if (*p == '{') {
            while (*p && *p != '}') p++;
        } else if (*p == '#') {
            while (*p && *p != '\n') p++;
        } else if (is_rule_char(*p)) {
            while (is_rule_char(*p)) p++;
            tn__text_puts(out, prefix);
        } else
            p++;
        tn__text_append(out, from, (size_t)(p - from));
    }
    tn__text_puts(out, "\n");
}

/* The rules of a schema, with a prefix. A schema that cannot become a grammar is replaced by "any object". */
static tn_status append_schema(tn__text *out, const json_t *schema, const char *prefix) {
    char *gbnf = NULL, *text = schema ? json_dumps(schema, JSON_ENCODE_ANY) : NULL;
    tn_status status = text ? tn_schema_to_grammar_relaxed(text, &gbnf, NULL) : TN_E_UNSUPPORTED;
    free(text);
    if (status != TN_OK && status != TN_E_NOMEM) status = tn_schema_to_grammar("{\"type\": \"object\"}", &gbnf);
    if (status != TN_OK) return status;
    append_prefixed(out, gbnf, prefix);
    tn_free(gbnf);
    return TN_OK;
}

/* ---- One call, by kind ---- */

static bool tool_is_allowed(const tn_chat_params *params, const char *name) {
    return params->tool_choice != TN_TOOLS_REQUIRED || !params->tool_name || strcmp(params->tool_name, name) == 0;
}

static const json_t *parameters_of(const json_t *tools, size_t i) {
    const char *name = tn__chat_tool_name(tools, i);
    return tn__chat_tool_parameters(tools, name, strlen(name));
}

/* {"name": …, "arguments": …, "id": …} with the template's keys. */
static tn_status append_json_call(tn__text *out, const tn_chat_prompt *prompt, size_t i, const char *prefix) {
    const tn__chat_syntax *s = &prompt->syntax;
    const char *name = tn__chat_tool_name(prompt->tools, i);
    const char *name_key = tn__chat_present(s->name_key) ? s->name_key : "name";
    const char *arguments_key = tn__chat_present(s->arguments_key) ? s->arguments_key : "arguments";
    const json_t *parameters = parameters_of(prompt->tools, i);
    json_t *arguments = parameters ? json_deep_copy(parameters) : json_pack("{s:s}", "type", "object");
    json_t *schema =
        json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s, s], s:b}", "type", "object", "properties", name_key, "const", name,
                  arguments_key, arguments, "required", name_key, arguments_key, "additionalProperties", 0);
    if (s->name_is_key) {
        json_t *own =
            schema ? json_incref(json_object_get(json_object_get(schema, "properties"), arguments_key)) : NULL;
        json_decref(schema);
        schema = json_pack("{s:s, s:{s:o}, s:[s], s:b}", "type", "object", "properties", name, own, "required", name,
                           "additionalProperties", 0);
        arguments_key = name;
    }
    if (schema && tn__chat_present(s->id_key)) {
        json_t *properties = json_object_get(schema, "properties");
        json_object_set_new(properties, s->id_key,
                            json_pack("{s:s, s:i, s:i}", "type", "string", "minLength", 1, "maxLength", 40));
        json_array_append_new(json_object_get(schema, "required"), json_string(s->id_key));
    }
    if (!schema) return tn__chat_nomem();
    /* References of the parameters are from their own root. */
    json_t *own = json_object_get(json_object_get(schema, "properties"), arguments_key);
    static const char *const definitions[] = {"$defs", "definitions"};
    for (size_t k = 0; k < 2; k++)
        if (json_object_get(own, definitions[k]))
            json_object_set(schema, definitions[k], json_object_get(own, definitions[k]));
    char *gbnf = NULL, *text = json_dumps(schema, 0);
    tn_status status = text ? tn_schema_to_grammar_relaxed(text, &gbnf, NULL) : tn__chat_nomem();
    free(text);
    if (status != TN_OK && status != TN_E_NOMEM) { /* the tool's schema is not supported: any arguments */
        json_object_set_new(json_object_get(schema, "properties"), arguments_key,
                            json_pack("{s:s}", "type", "object"));
        text = json_dumps(schema, 0);
        status = text ? tn_schema_to_grammar(text, &gbnf) : tn__chat_nomem();
        free(text);
    }
    json_decref(schema);
    if (status != TN_OK) return status;
    append_prefixed(out, gbnf, prefix);
    tn_free(gbnf);
    return TN_OK;
}

static tn_status append_named_call(tn__text *out, const tn_chat_prompt *prompt, size_t i, const char *prefix) {
    const char *name = tn__chat_tool_name(prompt->tools, i);
    char rule[40];
    snprintf(rule, sizeof rule, "%sa-", prefix);
    TN_TRY(append_schema(out, parameters_of(prompt->tools, i), rule));
    tn__text_puts(out, prefix);
    tn__text_puts(out, "root ::=");
    append_literal(out, name, strlen(name));
    append_marker(out, prompt->syntax.name_end);
    tn__text_puts(out, " space ");
    tn__text_puts(out, rule);
    tn__text_puts(out, "root\n");
    return TN_OK;
}

/* DeepSeek V3.2 says behind each key whether its value is a text. */
static void append_key_end(tn__text *out, const char *marker, bool text) {
    static const char yes[] = "string=\"true\"", no[] = "string=\"false\"";
    const char *at = text || !marker ? NULL : strstr(marker, yes);
    if (!at) {
        append_marker(out, marker);
        return;
    }
    tn__text other = {0};
    tn__text_append(&other, marker, (size_t)(at - marker));
    tn__text_puts(&other, no);
    tn__text_puts(&other, at + sizeof yes - 1);
    append_marker(out, other.data ? other.data : "");
    if (other.status != TN_OK) out->status = other.status;
    tn__text_free(&other);
}

/* Text up to the end marker: the marker's first character is allowed only before a character other than its second.
 */
static void append_free_text(tn__text *out, const char *end) {
    char first[8], second[8];
    snprintf(first, sizeof first, "%s%c", strchr("]^\\-", end[0]) ? "\\" : "", end[0]);
    snprintf(second, sizeof second, "%s%c", strchr("]^\\-", end[1]) ? "\\" : "", end[1]);
    tn__text_puts(out, " ([^");
    tn__text_puts(out, first);
    tn__text_puts(out, "] |");
    append_literal(out, end, 1);
    tn__text_puts(out, " [^");
    tn__text_puts(out, second);
    tn__text_puts(out, first);
    tn__text_puts(out, "])*");
}

static tn_status append_tagged_call(tn__text *out, const tn_chat_prompt *prompt, size_t i, const char *prefix) {
    const tn__chat_syntax *s = &prompt->syntax;
    const char *name = tn__chat_tool_name(prompt->tools, i), *key;
    const json_t *parameters = parameters_of(prompt->tools, i), *required = json_object_get(parameters, "required");
    json_t *properties = json_object_get(parameters, "properties"), *schema;
    tn__text root = {0};
    tn__text_puts(&root, prefix);
    tn__text_puts(&root, "root ::=");
    append_literal(&root, name, strlen(name));
    append_marker(&root, s->name_end);
    size_t n = 0;
    tn_status status = TN_OK;
    json_object_foreach(properties, key, schema) {
        bool needed = false;
        for (size_t k = 0; k < json_array_size(required); k++) {
            const char *one = json_string_value(json_array_get(required, k));
            needed |= one && strcmp(one, key) == 0;
        }
        const char *type = json_string_value(json_object_get(schema, "type"));
        bool text = !type || strcmp(type, "string") == 0;
        char rule[48];
        snprintf(rule, sizeof rule, "%sp%zu-", prefix, n++);
        if (!text && status == TN_OK) status = append_schema(out, schema, rule);
        tn__text_puts(&root, " (");
        append_marker(&root, s->key_begin);
        append_literal(&root, key, strlen(key));
        append_key_end(&root, s->key_end, text);
        if (text)
            append_free_text(&root, s->value_end);
        else {
            tn__text_puts(&root, " ");
            tn__text_puts(&root, rule);
            tn__text_puts(&root, "root");
        }
        append_marker(&root, s->value_end);
        tn__text_puts(&root, needed ? ")" : ")?");
    }
    tn__text_puts(&root, "\n");
    tn__text_join(out, &root);
    tn__text_free(&root);
    return status;
}

/* ---- The whole grammar ---- */

static tn_status append_calls(tn__text *out, const tn_chat_prompt *prompt, const tn_chat_params *params,
                              size_t *count) {
    const tn__chat_syntax *s = &prompt->syntax;
    tn__text any = {0};
    tn_status status = TN_OK;
    *count = 0;
    for (size_t i = 0; i < json_array_size(prompt->tools) && status == TN_OK; i++) {
        char prefix[32];
        if (!tool_is_allowed(params, tn__chat_tool_name(prompt->tools, i))) continue;
        snprintf(prefix, sizeof prefix, "t%zu-", i);
        if (s->kind == TN__CHAT_NAMED)
            status = append_named_call(out, prompt, i, prefix);
        else if (s->kind == TN__CHAT_TAGGED)
            status = append_tagged_call(out, prompt, i, prefix);
        else
            status = append_json_call(out, prompt, i, prefix);
        tn__text_puts(&any, *count ? " | " : " ");
        tn__text_puts(&any, prefix);
        tn__text_puts(&any, "root");
        ++*count;
    }
    tn__text_puts(out, "any-call ::=");
    tn__text_join(out, &any);
    tn__text_puts(out, "\n");
    tn__text_free(&any);
    return status;
}

static void append_root(tn__text *out, const tn_chat_prompt *prompt, const tn_chat_params *params) {
    const tn__chat_syntax *s = &prompt->syntax;
    bool several = params->parallel_calls;
    tn__text_puts(out, "one-call ::=");
    append_marker(out, s->call_begin);
    tn__text_puts(out, " any-call");
    append_marker(out, s->call_end);
    tn__text_puts(out, "\n");
    if (s->recipient_all) { /* the prompt ends with the first call's marker */
        tn__text_puts(out, "calls ::= any-call");
        tn__text_puts(out, several ? " one-call*\n" : "\n");
    } else if (!tn__chat_present(s->section_begin)) {
        tn__text_puts(out,
                      several && tn__chat_present(s->call_begin) ? "calls ::= one-call+\n" : "calls ::= one-call\n");
    } else {
        tn__text_puts(out, "calls ::=");
        append_marker(out, s->section_begin);
        tn__text_puts(out, " one-call");
        /* In a list, calls are separated by commas. */
        bool list = s->section_begin[strlen(s->section_begin) - 1] == '[';
        if (several) tn__text_puts(out, list ? " (space \",\" space one-call)*" : " (space one-call)*");
        append_marker(out, s->section_end);
        tn__text_puts(out, "\n");
    }
    tn__text_puts(out, "space ::= [ \\n]{0,8}\n");
}

/* gpt-oss: the trigger ends inside the header, right before the name. */
static tn_status append_channel_calls(tn_chat_prompt *prompt, const tn_chat_params *params, tn__text *out) {
    tn__text_puts(out, "root ::= \" to=functions.\" (");
    bool any = false;
    for (size_t i = 0; i < json_array_size(prompt->tools); i++) {
        const char *name = tn__chat_tool_name(prompt->tools, i);
        char rule[64];
        if (!tool_is_allowed(params, name)) continue;
        tn__text_puts(out, any ? " |" : "");
        append_literal(out, name, strlen(name));
        snprintf(rule, sizeof rule, " channel-head t%zu-root", i);
        tn__text_puts(out, rule);
        any = true;
    }
    tn__text_puts(out, ")\nchannel-head ::= (\"<|channel|>commentary\")? (\" \"? \"<|constrain|>json\" | \" json\")? "
                       "\"<|message|>\"\n");
    for (size_t i = 0; i < json_array_size(prompt->tools); i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "t%zu-", i);
        if (tool_is_allowed(params, tn__chat_tool_name(prompt->tools, i)))
            TN_TRY(append_schema(out, parameters_of(prompt->tools, i), prefix));
    }
    prompt->trigger = tn_strdup(" to=functions.");
    return prompt->trigger ? TN_OK : TN_E_NOMEM;
}

tn_status tn__chat_grammar(tn_chat_prompt *prompt, const tn_chat_params *params) {
    const tn__chat_syntax *s = &prompt->syntax;
    tn__text out = {0};
    size_t count = 0;
    bool required = params->tool_choice == TN_TOOLS_REQUIRED;
    if (s->kind == TN__CHAT_NONE || s->kind == TN__CHAT_PYTHONIC || s->kind == TN__CHAT_GEMMA) return TN_OK;
    if (s->recipient_all && !required)
        return TN_OK; /* there is no trigger: the name is the first word of the answer */
    if (s->kind == TN__CHAT_TAGGED && strstr(s->value_end, TN__PROBE_KEY)) return TN_OK;
    if (params->tool_name && required &&
        !tn__chat_tool_parameters(prompt->tools, params->tool_name, strlen(params->tool_name))) {
        bool known = false;
        for (size_t i = 0; i < json_array_size(prompt->tools); i++)
            known |= tool_is_allowed(params, tn__chat_tool_name(prompt->tools, i));
        if (!known) return tn_fail(TN_E_NOT_FOUND, "there is no tool named '%s'", params->tool_name);
    }
    if (s->kind == TN__CHAT_CHANNELS) {
        tn_status status = append_channel_calls(prompt, params, &out);
        if (status == TN_OK) status = tn__text_take(&out, &prompt->grammar);
        tn__text_free(&out);
        return status;
    }
    tn_status status = append_calls(&out, prompt, params, &count);
    if (status == TN_OK) {
        append_root(&out, prompt, params);
        bool thinking = required && prompt->in_reasoning && !strncmp(s->reasoning_end, "</", 2);
        if (thinking) {
            tn__text_puts(&out, "root ::=");
            append_free_text(&out, s->reasoning_end);
            append_marker(&out, s->reasoning_end);
            tn__text_puts(&out, " calls\n");
        } else
            tn__text_puts(&out, "root ::= calls\n");
        status = tn__text_take(&out, &prompt->grammar);
    }
    tn__text_free(&out);
    if (status != TN_OK || required) return status;
    /* Without a marker, the start of a JSON object with a name is the trigger. */
    const char *trigger = tn__chat_present(s->section_begin) ? s->section_begin
                          : tn__chat_present(s->call_begin)  ? s->call_begin
                                                             : NULL;
    char bare[96];
    if (!trigger) {
        snprintf(bare, sizeof bare, "{\"%.60s\": \"", tn__chat_present(s->name_key) ? s->name_key : "name");
        trigger = bare;
    }
    prompt->trigger = tn_strdup(trigger);
    return prompt->trigger ? TN_OK : TN_E_NOMEM;
}

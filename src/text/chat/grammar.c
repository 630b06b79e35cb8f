/* The grammar that keeps tool calls well-formed and their arguments valid, and the text that wakes it. */
#include "text/chat/internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "tenon/grammar.h"

static bool present(const char *marker) { return marker && *marker; }

/* ---- GBNF pieces ------------------------------------------------------------------------------------------ */

static void add_literal(tn__text *out, const char *text, size_t length) {
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

static bool digit(char c) { return c >= '0' && c <= '9'; }

/* A marker as a literal, white space around it. What differs from call to call, an id or a count, is left open. */
static void add_marker(tn__text *out, const char *marker) {
    if (!present(marker)) return;
    tn__text_puts(out, " space");
    while (*marker) {
        bool id = strncmp(marker, TN__PROBE_ID, sizeof TN__PROBE_ID - 1) == 0;
        size_t n = 0;
        if (id)
            n = sizeof TN__PROBE_ID - 1;
        else if (digit(*marker))
            while (digit(marker[n])) n++;
        else
            while (marker[n] && !digit(marker[n]) && strncmp(marker + n, TN__PROBE_ID, sizeof TN__PROBE_ID - 1) != 0)
                n++;
        if (id)
            tn__text_puts(out, " [a-zA-Z0-9]{9}");
        else if (digit(*marker))
            tn__text_puts(out, " [0-9]+");
        else
            add_literal(out, marker, n);
        marker += n;
    }
    tn__text_puts(out, " space");
}

static bool rule_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Copies GBNF with `prefix` before every rule name, so that several grammars can stand in one text. */
static void add_prefixed(tn__text *out, const char *gbnf, const char *prefix) {
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
        } else if (rule_char(*p)) {
            while (rule_char(*p)) p++;
            tn__text_puts(out, prefix);
        } else
            p++;
        tn__text_append(out, from, (size_t)(p - from));
    }
    tn__text_puts(out, "\n");
}

/* The rules of a schema under a prefix; what the schema asks beyond our means is relaxed to any value of the kind. */
static tn_status add_schema(tn__text *out, const json_t *schema, const char *prefix) {
    char *gbnf = NULL, *text = schema ? json_dumps(schema, JSON_ENCODE_ANY) : NULL;
    tn_status status = text ? tn_schema_to_grammar(text, &gbnf) : TN_E_UNSUPPORTED;
    free(text);
    if (status != TN_OK && status != TN_E_NOMEM) status = tn_schema_to_grammar("{\"type\": \"object\"}", &gbnf);
    if (status != TN_OK) return status;
    add_prefixed(out, gbnf, prefix);
    tn_free(gbnf);
    return TN_OK;
}

/* ---- One call, by kind ------------------------------------------------------------------------------------ */

static bool wanted(const tn_chat_params *params, const char *name) {
    return params->tool_choice != TN_TOOLS_REQUIRED || !params->tool_name || strcmp(params->tool_name, name) == 0;
}

static const json_t *parameters_of(const json_t *tools, size_t i) {
    const char *name = tn__chat_tool_name(tools, i);
    return tn__chat_tool_parameters(tools, name, strlen(name));
}

/* {"name": …, "arguments": …, "id": …} with the keys the template uses. */
static tn_status add_json_call(tn__text *out, const tn_chat_prompt *prompt, size_t i, const char *prefix) {
    const tn__chat_syntax *s = &prompt->syntax;
    const char *name = tn__chat_tool_name(prompt->tools, i);
    const char *name_key = present(s->name_key) ? s->name_key : "name";
    const char *arguments_key = present(s->arguments_key) ? s->arguments_key : "arguments";
    const json_t *parameters = parameters_of(prompt->tools, i);
    json_t *arguments = parameters ? json_deep_copy(parameters) : json_pack("{s:s}", "type", "object");
    json_t *schema =
        json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s, s], s:b}", "type", "object", "properties", name_key, "const", name,
                  arguments_key, arguments, "required", name_key, arguments_key, "additionalProperties", 0);
    if (schema && present(s->id_key)) {
        json_t *properties = json_object_get(schema, "properties");
        json_object_set_new(properties, s->id_key,
                            json_pack("{s:s, s:i, s:i}", "type", "string", "minLength", 1, "maxLength", 40));
        json_array_append_new(json_object_get(schema, "required"), json_string(s->id_key));
    }
    if (!schema) return tn__chat_nomem();
    char *gbnf = NULL, *text = json_dumps(schema, 0);
    tn_status status = text ? tn_schema_to_grammar(text, &gbnf) : tn__chat_nomem();
    free(text);
    if (status != TN_OK && status != TN_E_NOMEM) { /* the tool's own schema is beyond us: any arguments */
        json_object_set_new(json_object_get(schema, "properties"), arguments_key,
                            json_pack("{s:s}", "type", "object"));
        text = json_dumps(schema, 0);
        status = text ? tn_schema_to_grammar(text, &gbnf) : tn__chat_nomem();
        free(text);
    }
    json_decref(schema);
    if (status != TN_OK) return status;
    add_prefixed(out, gbnf, prefix);
    tn_free(gbnf);
    return TN_OK;
}

static tn_status add_named_call(tn__text *out, const tn_chat_prompt *prompt, size_t i, const char *prefix) {
    const char *name = tn__chat_tool_name(prompt->tools, i);
    char rule[40];
    snprintf(rule, sizeof rule, "%sa-", prefix);
    TN_TRY(add_schema(out, parameters_of(prompt->tools, i), rule));
    tn__text_puts(out, prefix);
    tn__text_puts(out, "root ::=");
    add_literal(out, name, strlen(name));
    add_marker(out, prompt->syntax.name_end);
    tn__text_puts(out, " space ");
    tn__text_puts(out, rule);
    tn__text_puts(out, "root\n");
    return TN_OK;
}

/* Text up to the value's end marker, without its first character unless another follows than the marker's second. */
static void add_free_text(tn__text *out, const char *end) {
    char first[8], second[8];
    snprintf(first, sizeof first, "%s%c", strchr("]^\\-", end[0]) ? "\\" : "", end[0]);
    snprintf(second, sizeof second, "%s%c", strchr("]^\\-", end[1]) ? "\\" : "", end[1]);
    tn__text_puts(out, " ([^");
    tn__text_puts(out, first);
    tn__text_puts(out, "] |");
    add_literal(out, end, 1);
    tn__text_puts(out, " [^");
    tn__text_puts(out, second);
    tn__text_puts(out, first);
    tn__text_puts(out, "])*");
}

static tn_status add_tagged_call(tn__text *out, const tn_chat_prompt *prompt, size_t i, const char *prefix) {
    const tn__chat_syntax *s = &prompt->syntax;
    const char *name = tn__chat_tool_name(prompt->tools, i), *key;
    const json_t *parameters = parameters_of(prompt->tools, i), *required = json_object_get(parameters, "required");
    json_t *properties = json_object_get(parameters, "properties"), *schema;
    tn__text root = {0};
    tn__text_puts(&root, prefix);
    tn__text_puts(&root, "root ::=");
    add_literal(&root, name, strlen(name));
    add_marker(&root, s->name_end);
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
        if (!text && status == TN_OK) status = add_schema(out, schema, rule);
        tn__text_puts(&root, " (");
        add_marker(&root, s->key_begin);
        add_literal(&root, key, strlen(key));
        add_marker(&root, s->key_end);
        if (text)
            add_free_text(&root, s->value_end);
        else {
            tn__text_puts(&root, " ");
            tn__text_puts(&root, rule);
            tn__text_puts(&root, "root");
        }
        add_marker(&root, s->value_end);
        tn__text_puts(&root, needed ? ")" : ")?");
    }
    tn__text_puts(&root, "\n");
    tn__text_join(out, &root);
    tn__text_free(&root);
    return status;
}

/* ---- The whole -------------------------------------------------------------------------------------------- */

static tn_status add_calls(tn__text *out, const tn_chat_prompt *prompt, const tn_chat_params *params, size_t *count) {
    const tn__chat_syntax *s = &prompt->syntax;
    tn__text any = {0};
    tn_status status = TN_OK;
    *count = 0;
    for (size_t i = 0; i < json_array_size(prompt->tools) && status == TN_OK; i++) {
        char prefix[32];
        if (!wanted(params, tn__chat_tool_name(prompt->tools, i))) continue;
        snprintf(prefix, sizeof prefix, "t%zu-", i);
        if (s->kind == TN__CHAT_NAMED)
            status = add_named_call(out, prompt, i, prefix);
        else if (s->kind == TN__CHAT_TAGGED)
            status = add_tagged_call(out, prompt, i, prefix);
        else
            status = add_json_call(out, prompt, i, prefix);
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

static void add_root(tn__text *out, const tn_chat_prompt *prompt, const tn_chat_params *params) {
    const tn__chat_syntax *s = &prompt->syntax;
    bool several = params->parallel_calls;
    tn__text_puts(out, "one-call ::=");
    add_marker(out, s->call_begin);
    tn__text_puts(out, " any-call");
    add_marker(out, s->call_end);
    tn__text_puts(out, "\n");
    if (s->recipient_all) { /* the prompt has begun the first call already */
        tn__text_puts(out, "calls ::= any-call");
        tn__text_puts(out, several ? " one-call*\n" : "\n");
    } else if (!present(s->section_begin)) {
        tn__text_puts(out, several && present(s->call_begin) ? "calls ::= one-call+\n" : "calls ::= one-call\n");
    } else {
        tn__text_puts(out, "calls ::=");
        add_marker(out, s->section_begin);
        tn__text_puts(out, " one-call");
        /* In a list calls stand behind commas. */
        bool list = s->section_begin[strlen(s->section_begin) - 1] == '[';
        if (several) tn__text_puts(out, list ? " (space \",\" space one-call)*" : " (space one-call)*");
        add_marker(out, s->section_end);
        tn__text_puts(out, "\n");
    }
    tn__text_puts(out, "space ::= [ \\n]{0,8}\n");
}

/* gpt-oss: the name is part of the header, which the trigger ends. */
static tn_status channel_grammar(tn_chat_prompt *prompt, const tn_chat_params *params, tn__text *out) {
    tn__text_puts(out, "root ::= \" to=functions.\" (");
    bool any = false;
    for (size_t i = 0; i < json_array_size(prompt->tools); i++) {
        const char *name = tn__chat_tool_name(prompt->tools, i);
        char rule[64];
        if (!wanted(params, name)) continue;
        tn__text_puts(out, any ? " |" : "");
        add_literal(out, name, strlen(name));
        snprintf(rule, sizeof rule, " channel-head t%zu-root", i);
        tn__text_puts(out, rule);
        any = true;
    }
    tn__text_puts(out, ")\nchannel-head ::= (\"<|channel|>commentary\")? (\" \"? \"<|constrain|>json\" | \" json\")? "
                       "\"<|message|>\"\n");
    for (size_t i = 0; i < json_array_size(prompt->tools); i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "t%zu-", i);
        if (wanted(params, tn__chat_tool_name(prompt->tools, i)))
            TN_TRY(add_schema(out, parameters_of(prompt->tools, i), prefix));
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
        return TN_OK; /* nothing announces a call: its name is the answer's first word */
    if (s->kind == TN__CHAT_TAGGED && strstr(s->value_end, TN__PROBE_KEY)) return TN_OK;
    if (params->tool_name && required &&
        !tn__chat_tool_parameters(prompt->tools, params->tool_name, strlen(params->tool_name))) {
        bool known = false;
        for (size_t i = 0; i < json_array_size(prompt->tools); i++)
            known |= wanted(params, tn__chat_tool_name(prompt->tools, i));
        if (!known) return tn_fail(TN_E_NOT_FOUND, "there is no tool named '%s'", params->tool_name);
    }
    if (s->kind == TN__CHAT_CHANNELS) {
        tn_status status = channel_grammar(prompt, params, &out);
        if (status == TN_OK) status = tn__text_take(&out, &prompt->grammar);
        tn__text_free(&out);
        return status;
    }
    tn_status status = add_calls(&out, prompt, params, &count);
    if (status == TN_OK) {
        add_root(&out, prompt, params);
        bool thinking = required && prompt->in_reasoning && !strncmp(s->reasoning_end, "</", 2);
        if (thinking) {
            tn__text_puts(&out, "root ::=");
            add_free_text(&out, s->reasoning_end);
            add_marker(&out, s->reasoning_end);
            tn__text_puts(&out, " calls\n");
        } else
            tn__text_puts(&out, "root ::= calls\n");
        status = tn__text_take(&out, &prompt->grammar);
    }
    tn__text_free(&out);
    if (status != TN_OK || required) return status;
    /* Without a marker, an object that starts with its name is a call. */
    const char *trigger = present(s->section_begin) ? s->section_begin
                          : present(s->call_begin)  ? s->call_begin
                                                    : NULL;
    char bare[96];
    if (!trigger) {
        snprintf(bare, sizeof bare, "{\"%.60s\": \"", present(s->name_key) ? s->name_key : "name");
        trigger = bare;
    }
    prompt->trigger = tn_strdup(trigger);
    return prompt->trigger ? TN_OK : TN_E_NOMEM;
}

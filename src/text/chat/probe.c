/* What a chat template supports, determined by rendering small dialogs and searching the result for their texts. */
#include "text/chat/internal.h"

#include <stdlib.h>

#define NEEDLE "tn_probe_text"
#define VALUE "tn_probe_value"

/* Renders messages, whose reference it takes. NULL if the template fails; *memory is set if memory ran out. */
static char *render_probe(tn_chat_template *chat, json_t *messages, bool tools, bool generation_prompt,
                          bool *memory) {
    char *text = NULL;
    json_t *tool =
        tools ? json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}, s:{s:s, s:s}}, s:[s]}}}]", "type", "function",
                          "function", "name", TN__PROBE_NAME, "description", "A function", "parameters", "type",
                          "object", "properties", TN__PROBE_KEY, "type", "string", "description", "A text",
                          TN__PROBE_KEY "2", "type", "string", "description", "Another", "required", TN__PROBE_KEY)
              : json_null();
    json_t *variables = json_pack("{s:o, s:o, s:s, s:s, s:b}", "messages", messages, "tools", tool, "bos_token",
                                  "<s>", "eos_token", "</s>", "add_generation_prompt", generation_prompt);
    if (variables && !tools && chat->omit_tools) json_object_del(variables, "tools");
    if (variables && tn__chat_add_functions(chat, variables, tool, 1000000000) != 0) {
        json_decref(variables);
        variables = NULL;
    }
    if (!variables) {
        *memory = true;
        return NULL;
    }
    /* Released templates need a few thousand steps for such a dialog. The limits bound the loading of a hostile one.
     */
    static const tn__jinja_limits limits = {.max_steps = 500000, .max_output = 1 << 20, .max_memory = 32 << 20};
    tn_status status =
        chat->over_limit ? TN_E_LIMIT : tn__chat_run(chat, variables, 1000000000, &limits, &text, NULL);
    json_decref(variables);
    if (status == TN_E_LIMIT) chat->over_limit = true;
    if (status == TN_E_NOMEM) *memory = true;
    return text;
}

static bool contains_text(const char *text, const char *needle) { return text && strstr(text, needle); }

/* One call with its arguments as text or as an object, as the template needs them; `second` adds a second argument.
 */
static json_t *make_probe_call(const tn_chat_template *chat, const char *name, bool second) {
    json_t *arguments = json_pack("{s:s}", TN__PROBE_KEY, VALUE);
    if (second) json_object_set_new(arguments, TN__PROBE_KEY "2", json_string(VALUE "2"));
    if (!chat->caps.object_arguments) {
        char *text = json_dumps(arguments, 0);
        json_decref(arguments);
        arguments = json_string(text ? text : "");
        free(text);
    }
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", TN__PROBE_ID, "type", "function", "function", "name", name,
                     "arguments", arguments);
}

static json_t *user_message(const tn_chat_template *chat) {
    if (chat->caps.text_content) return json_pack("{s:s, s:s}", "role", "user", "content", "tn_probe_user");
    return json_pack("{s:s, s:[{s:s, s:s}]}", "role", "user", "content", "type", "text", "text", "tn_probe_user");
}

static json_t *calling_message(json_t *content, json_t *first, json_t *second) {
    json_t *calls = second ? json_pack("[o, o]", first, second) : json_pack("[o]", first);
    return json_pack("{s:s, s:o, s:o}", "role", "assistant", "content", content, "tool_calls", calls);
}

/* ---- Messages ---- */

static void probe_content(tn_chat_template *chat, bool *memory) {
    tn_chat_caps *caps = &chat->caps;
    char *text =
        render_probe(chat, json_pack("[{s:s, s:s}]", "role", "user", "content", NEEDLE), false, true, memory);
    if (!text) { /* most templates expect null if there are no tools, some an undefined variable */
        chat->omit_tools = true;
        text = render_probe(chat, json_pack("[{s:s, s:s}]", "role", "user", "content", NEEDLE), false, true, memory);
        chat->omit_tools = text != NULL;
    }
    caps->text_content = contains_text(text, NEEDLE);
    tn_free(text);
    text = render_probe(
        chat, json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type", "text", "text", NEEDLE), false,
        true, memory);
    /* A list printed in Python's notation does not count. */
    caps->part_content =
        contains_text(text, NEEDLE) && !contains_text(text, "'" NEEDLE "'") && !contains_text(text, "\"" NEEDLE "\"");
    tn_free(text);
    if (!caps->text_content && !caps->part_content)
        caps->text_content = true; /* the template failed for another reason */
    text = render_probe(chat, json_pack("[{s:s, s:s}, o]", "role", "system", "content", NEEDLE, user_message(chat)),
                        false, true, memory);
    caps->system_role = contains_text(text, NEEDLE);
    tn_free(text);
}

/* ---- Tools ---- */

static bool contains_call(const char *text) {
    return contains_text(text, TN__PROBE_NAME) && contains_text(text, VALUE) &&
           !contains_text(text, "{'" TN__PROBE_KEY "': '" VALUE);
}

static char *render_call(tn_chat_template *chat, bool object, json_t *content, bool *memory) {
    chat->caps.object_arguments = object;
    return render_probe(chat,
                        json_pack("[o, o]", user_message(chat),
                                  calling_message(content, make_probe_call(chat, TN__PROBE_NAME, false), NULL)),
                        true, false, memory);
}

static void probe_tools(tn_chat_template *chat, bool *memory) {
    tn_chat_caps *caps = &chat->caps;
    char *text = render_probe(chat, json_pack("[o]", user_message(chat)), true, true, memory);
    caps->tools = contains_text(text, TN__PROBE_NAME);
    tn_free(text);
    /* The first combination that renders the call is used. */
    const struct { bool mutation, object; } ways[] = {{false, true}, {false, false}, {true, true}, {true, false}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0] && !caps->tool_calls; i++) {
        caps->mutation = ways[i].mutation;
        text = render_call(chat, ways[i].object, json_string(""), memory);
        caps->tool_calls = contains_call(text);
        tn_free(text);
    }
    if (!caps->tool_calls) {
        caps->mutation = false;
        caps->object_arguments = true;
        return;
    }
    text = render_call(chat, caps->object_arguments, json_null(), memory);
    caps->null_content = contains_call(text) && !contains_text(text, "None");
    tn_free(text);
    text = render_probe(
        chat,
        json_pack("[o, o, {s:s, s:s, s:s, s:s}]", user_message(chat),
                  calling_message(json_string(""), make_probe_call(chat, TN__PROBE_NAME, false), NULL), "role",
                  "tool", "tool_call_id", TN__PROBE_ID, "name", TN__PROBE_NAME, "content", NEEDLE),
        true, true, memory);
    caps->tool_results = contains_text(text, NEEDLE);
    tn_free(text);
}

/* ---- The assistant's turn ---- */

/* The assistant's turn: what `whole` adds to a prompt that ends where the answer begins. If the two diverge in the
 * middle of a tag, the turn begins with that tag. */
static const char *find_turn(const char *whole, const char *prompt) {
    size_t i = 0;
    while (prompt && whole[i] && whole[i] == prompt[i]) i++;
    if (!prompt || !prompt[i]) return whole + i;
    for (size_t k = i; k > 0 && i - k < 40 && whole[k - 1] != '>' && whole[k - 1] != '\n'; k--)
        if (whole[k - 1] == '<') return whole + k - 1;
    return whole + i;
}

static void remove_suffix(char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    if (m && n >= m && strcmp(text + n - m, end) == 0) text[n - m] = '\0';
}

static char *copy_trimmed(const char *from, const char *to) {
    while (from < to && strchr(" \n\t", *from)) from++;
    while (to > from && strchr(" \n\t", to[-1])) to--;
    char *copy = tn_malloc((size_t)(to - from) + 1);
    if (!copy) return NULL;
    memcpy(copy, from, (size_t)(to - from));
    copy[to - from] = '\0';
    return copy;
}

static tn_status probe_turn_end(tn_chat_template *chat, bool *memory) {
    char *text =
        render_probe(chat, json_pack("[o, {s:s, s:s}]", user_message(chat), "role", "assistant", "content", NEEDLE),
                     false, false, memory);
    const char *at = text ? strstr(text, NEEDLE) : NULL;
    if (at) at += sizeof NEEDLE - 1;
    chat->turn_tail = tn_strdup(at ? at : "");
    if (at && strlen(at) > TN__CHAT_MARKER_MAX) at = NULL; /* longer than a marker, for example instructions */
    chat->turn_end = at ? copy_trimmed(at, at + strlen(at)) : tn_strdup("");
    tn_free(text);
    return chat->turn_tail && chat->turn_end ? TN_OK : TN_E_NOMEM;
}

static tn_status probe_reasoning(tn_chat_template *chat, const char *prompt, bool *memory) {
    static const struct {
        const char *begin, *end;
    } known[] = {{"<think>", "</think>"},
                 {"[THINK]", "[/THINK]"},
                 {"<|START_THINKING|>", "<|END_THINKING|>"},
                 {"<seed:think>", "</seed:think>"},
                 {"<|inner_prefix|>", "<|inner_suffix|>"},
                 {"<|channel>thought", "<channel|>"}};
    tn__chat_syntax *syntax = &chat->syntax;
    char *text = render_probe(chat,
                              json_pack("[o, {s:s, s:s, s:s}]", user_message(chat), "role", "assistant",
                                        "reasoning_content", NEEDLE, "content", VALUE),
                              false, false, memory);
    const char *at = text ? strstr(text, NEEDLE) : NULL, *after = at ? strstr(at, VALUE) : NULL;
    const char *from = at;
    if (after) {
        const char *turn = find_turn(text, prompt);
        if (turn <= at) from = turn;
        const char *foreign = strstr(from, "tn_probe_user"); /* diverged before the user's turn: no information */
        if (foreign && foreign < at) from = at;
        const char *behind = at + sizeof NEEDLE - 1;
        if (!tn__chat_plausible(from, (size_t)(at - from)) || !tn__chat_plausible(behind, (size_t)(after - behind)))
            after = NULL;
    }
    if (after) {
        /* If the opening marker is part of the prompt, the prompt ends with it. */
        syntax->reasoning_begin = copy_trimmed(from, at);
        syntax->reasoning_end = copy_trimmed(at + sizeof NEEDLE - 1, after);
        chat->caps.reasoning = true;
    }
    tn_free(text);
    if (after && (!syntax->reasoning_begin || !syntax->reasoning_end)) return TN_E_NOMEM;
    if (after && *syntax->reasoning_begin && *syntax->reasoning_end) return TN_OK;
    /* If the template renders no reasoning, assume the first pair: models distilled from others reason between
     * those tags although their template does not mention them. */
    size_t pick = 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (after ? strcmp(known[i].end, syntax->reasoning_end) == 0 : strstr(chat->source, known[i].end) != NULL)
            pick = i;
    bool unknown = after && strcmp(known[pick].end, syntax->reasoning_end) != 0;
    tn_free(syntax->reasoning_begin);
    if (unknown && prompt) {
        /* The prompt ends with the opening marker, the last two tags of its last line; or, if reasoning is off by
         * default, with the opening and the closing marker. */
        const char *end = prompt + strlen(prompt);
        while (end > prompt && strchr(" \n\t", end[-1])) end--;
        from = end;
        size_t n = strlen(syntax->reasoning_end);
        bool closed = (size_t)(end - prompt) > n && memcmp(end - n, syntax->reasoning_end, n) == 0;
        if (closed) from = end -= n;
        for (int tags = closed; from > prompt && from[-1] != '\n' && tags < 2 && end - from < TN__CHAT_MARKER_MAX;)
            tags += *--from == '<';
        syntax->reasoning_begin = copy_trimmed(from, end);
        return syntax->reasoning_begin ? TN_OK : TN_E_NOMEM;
    }
    tn_free(syntax->reasoning_end);
    syntax->reasoning_begin = tn_strdup(known[pick].begin);
    syntax->reasoning_end = tn_strdup(known[pick].end);
    return syntax->reasoning_begin && syntax->reasoning_end ? TN_OK : TN_E_NOMEM;
}

static tn_status probe_content_markers(tn_chat_template *chat, bool *memory) {
    char *text =
        render_probe(chat, json_pack("[o, {s:s, s:s}]", user_message(chat), "role", "assistant", "content", NEEDLE),
                     false, false, memory);
    const char *at = text ? strstr(text, NEEDLE) : NULL;
    tn_status status = at ? tn__chat_content_markers(text, at, &chat->syntax) : TN_OK;
    tn_free(text);
    return status;
}

/* The turn with a call, without the reasoning before it and the end of turn after it. */
static char *render_call_turn(tn_chat_template *chat, const char *prompt, json_t *message, bool *memory) {
    char *text = render_probe(chat, json_pack("[o, o]", user_message(chat), message), true, false, memory);
    if (!contains_text(text, TN__PROBE_NAME)) {
        tn_free(text);
        return NULL;
    }
    const char *turn = find_turn(text, prompt), *end = chat->syntax.reasoning_end;
    const char *first = strstr(turn, TN__PROBE_NAME);
    for (const char *at = turn; end && *end && first && (at = strstr(at, end)) && at < first; at++)
        turn = at + strlen(end);
    bool plausible = strlen(turn) <= TN__CHAT_TURN_MAX;
    char *copy = plausible ? tn_strdup(turn) : NULL;
    if (plausible && !copy) *memory = true;
    tn_free(text);
    if (copy) remove_suffix(copy, chat->turn_tail);
    return copy;
}

static tn_status probe_syntax(tn_chat_template *chat, bool *memory) {
    char *prompt = render_probe(chat, json_pack("[o]", user_message(chat)), true, true, memory), *one = NULL,
         *two = NULL, *wide = NULL;
    char *plain = render_probe(chat, json_pack("[o]", user_message(chat)), false, true, memory);
    tn_status status = probe_reasoning(chat, plain, memory);
    if (status == TN_OK) status = probe_content_markers(chat, memory);
    if (status == TN_OK) status = tn__chat_known_syntax(chat->source, true, &chat->syntax);
    if (status == TN_OK && chat->caps.tool_calls) {
        one = render_call_turn(chat, prompt,
                               calling_message(json_string(""), make_probe_call(chat, TN__PROBE_NAME, false), NULL),
                               memory);
        two = render_call_turn(chat, prompt,
                               calling_message(json_string(""), make_probe_call(chat, TN__PROBE_NAME, false),
                                               make_probe_call(chat, TN__PROBE_NAME "2", false)),
                               memory);
        wide = render_call_turn(chat, prompt,
                                calling_message(json_string(""), make_probe_call(chat, TN__PROBE_NAME, true), NULL),
                                memory);
        chat->caps.parallel_calls = contains_text(two, TN__PROBE_NAME "2");
        if (one && strstr(one, TN__PROBE_NAME) && chat->syntax.kind == TN__CHAT_NONE)
            status = tn__chat_derive(one, chat->caps.parallel_calls ? two : NULL, wide, &chat->syntax);
    }
    if (status == TN_OK && chat->syntax.kind == TN__CHAT_NONE)
        status = tn__chat_known_syntax(chat->source, false, &chat->syntax);
    chat->syntax.python_tag = strstr(chat->source, "<|python_tag|>") != NULL;
    tn_free(prompt);
    tn_free(plain);
    tn_free(one);
    tn_free(two);
    tn_free(wide);
    return status;
}

tn_status tn__chat_probe(tn_chat_template *chat) {
    bool memory = false;
    probe_content(chat, &memory);
    probe_tools(chat, &memory);
    tn_status status = probe_turn_end(chat, &memory);
    if (status == TN_OK) status = probe_syntax(chat, &memory);
    if (status == TN_OK && memory) status = tn_fail(TN_E_NOMEM, "out of memory while probing a chat template");
    if (status == TN_OK) tn_error_clear(); /* a template that fails a probe is not an error */
    return status;
}

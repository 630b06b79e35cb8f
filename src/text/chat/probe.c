/* What a chat template can do, found out by rendering small dialogs and looking for what was put in. */
#include "text/chat/internal.h"

#include <stdlib.h>

#define NEEDLE "tn_probe_text"
#define VALUE "tn_probe_value"

/* Renders messages (a reference that is taken). NULL when the template refuses or memory is short: `memory` then says
 * which. */
static char *attempt(tn_chat_template *chat, json_t *messages, bool tools, bool generation_prompt, bool *memory) {
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
    if (!variables) {
        *memory = true;
        return NULL;
    }
    /* Released templates take some thousand steps for such a dialog; a hostile one shall not take long to load. */
    static const tn__jinja_limits limits = {.max_steps = 500000, .max_output = 1 << 20, .max_memory = 32 << 20};
    tn_status status = chat->hopeless ? TN_E_LIMIT : tn__chat_run(chat, variables, 1000000000, &limits, &text, NULL);
    json_decref(variables);
    if (status == TN_E_LIMIT) chat->hopeless = true;
    if (status == TN_E_NOMEM) *memory = true;
    return text;
}

static bool shows(const char *text, const char *needle) { return text && strstr(text, needle); }

/* One call; `second` adds a second argument. As text or as an object, as the template wants it. */
static json_t *make_call(const tn_chat_template *chat, const char *name, bool second) {
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

static json_t *user(const tn_chat_template *chat) {
    if (chat->caps.text_content) return json_pack("{s:s, s:s}", "role", "user", "content", "tn_probe_user");
    return json_pack("{s:s, s:[{s:s, s:s}]}", "role", "user", "content", "type", "text", "text", "tn_probe_user");
}

static json_t *caller(json_t *content, json_t *first, json_t *second) {
    json_t *calls = second ? json_pack("[o, o]", first, second) : json_pack("[o]", first);
    return json_pack("{s:s, s:o, s:o}", "role", "assistant", "content", content, "tool_calls", calls);
}

/* ---- Messages --------------------------------------------------------------------------------------------- */

static void probe_content(tn_chat_template *chat, bool *memory) {
    tn_chat_caps *caps = &chat->caps;
    char *text = attempt(chat, json_pack("[{s:s, s:s}]", "role", "user", "content", NEEDLE), false, true, memory);
    if (!text) { /* most templates expect null where there are no tools; some must not see the variable at all */
        chat->omit_tools = true;
        text = attempt(chat, json_pack("[{s:s, s:s}]", "role", "user", "content", NEEDLE), false, true, memory);
        chat->omit_tools = text != NULL;
    }
    caps->text_content = shows(text, NEEDLE);
    tn_free(text);
    text =
        attempt(chat, json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type", "text", "text", NEEDLE),
                false, true, memory);
    /* A list printed as it is does not count. */
    caps->part_content = shows(text, NEEDLE) && !shows(text, "'" NEEDLE "'") && !shows(text, "\"" NEEDLE "\"");
    tn_free(text);
    if (!caps->text_content && !caps->part_content)
        caps->text_content = true; /* the template fails for another reason */
    text = attempt(chat, json_pack("[{s:s, s:s}, o]", "role", "system", "content", NEEDLE, user(chat)), false, true,
                   memory);
    caps->system_role = shows(text, NEEDLE);
    tn_free(text);
}

/* ---- Tools ------------------------------------------------------------------------------------------------ */

static bool shows_call(const char *text) {
    return shows(text, TN__PROBE_NAME) && shows(text, VALUE) && !shows(text, "{'" TN__PROBE_KEY "': '" VALUE);
}

static char *try_call(tn_chat_template *chat, bool object, json_t *content, bool *memory) {
    chat->caps.object_arguments = object;
    return attempt(chat,
                   json_pack("[o, o]", user(chat), caller(content, make_call(chat, TN__PROBE_NAME, false), NULL)),
                   true, false, memory);
}

static void probe_tools(tn_chat_template *chat, bool *memory) {
    tn_chat_caps *caps = &chat->caps;
    char *text = attempt(chat, json_pack("[o]", user(chat)), true, true, memory);
    caps->tools = shows(text, TN__PROBE_NAME);
    tn_free(text);
    /* The first combination that shows a call wins. */
    const struct { bool mutation, object; } ways[] = {{false, true}, {false, false}, {true, true}, {true, false}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0] && !caps->tool_calls; i++) {
        caps->mutation = ways[i].mutation;
        text = try_call(chat, ways[i].object, json_string(""), memory);
        caps->tool_calls = shows_call(text);
        tn_free(text);
    }
    if (!caps->tool_calls) {
        caps->mutation = false;
        caps->object_arguments = true;
        return;
    }
    text = try_call(chat, caps->object_arguments, json_null(), memory);
    caps->null_content = shows_call(text) && !shows(text, "None");
    tn_free(text);
    text = attempt(chat,
                   json_pack("[o, o, {s:s, s:s, s:s, s:s}]", user(chat),
                             caller(json_string(""), make_call(chat, TN__PROBE_NAME, false), NULL), "role", "tool",
                             "tool_call_id", TN__PROBE_ID, "name", TN__PROBE_NAME, "content", NEEDLE),
                   true, true, memory);
    caps->tool_results = shows(text, NEEDLE);
    tn_free(text);
}

/* ---- How the assistant writes ----------------------------------------------------------------------------- */

/* The assistant's turn alone: what `whole` adds to a prompt that ends where the answer begins. Where the two part in
 * the middle of a tag, the turn begins with that tag. */
static const char *turn_of(const char *whole, const char *prompt) {
    size_t i = 0;
    while (prompt && whole[i] && whole[i] == prompt[i]) i++;
    if (!prompt || !prompt[i]) return whole + i;
    for (size_t k = i; k > 0 && i - k < 40 && whole[k - 1] != '>' && whole[k - 1] != '\n'; k--)
        if (whole[k - 1] == '<') return whole + k - 1;
    return whole + i;
}

static void cut_end(char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    if (m && n >= m && strcmp(text + n - m, end) == 0) text[n - m] = '\0';
}

static char *trimmed(const char *from, const char *to) {
    while (from < to && strchr(" \n\t", *from)) from++;
    while (to > from && strchr(" \n\t", to[-1])) to--;
    char *copy = tn_malloc((size_t)(to - from) + 1);
    if (!copy) return NULL;
    memcpy(copy, from, (size_t)(to - from));
    copy[to - from] = '\0';
    return copy;
}

static tn_status probe_turn_end(tn_chat_template *chat, bool *memory) {
    char *text = attempt(chat, json_pack("[o, {s:s, s:s}]", user(chat), "role", "assistant", "content", NEEDLE),
                         false, false, memory);
    const char *at = text ? strstr(text, NEEDLE) : NULL;
    if (at) at += sizeof NEEDLE - 1;
    chat->turn_tail = tn_strdup(at ? at : "");
    if (at && strlen(at) > TN__CHAT_MARKER_MAX) at = NULL; /* more than a marker: instructions, say */
    chat->turn_end = at ? trimmed(at, at + strlen(at)) : tn_strdup("");
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
                 {"<|inner_prefix|>", "<|inner_suffix|>"}};
    tn__chat_syntax *syntax = &chat->syntax;
    char *text = attempt(chat,
                         json_pack("[o, {s:s, s:s, s:s}]", user(chat), "role", "assistant", "reasoning_content",
                                   NEEDLE, "content", VALUE),
                         false, false, memory);
    const char *at = text ? strstr(text, NEEDLE) : NULL, *after = at ? strstr(at, VALUE) : NULL;
    const char *from = at;
    if (after) {
        const char *turn = turn_of(text, prompt);
        if (turn <= at) from = turn;
        const char *foreign = strstr(from, "tn_probe_user"); /* the two part early: the prompt tells nothing */
        if (foreign && foreign < at) from = at;
        const char *behind = at + sizeof NEEDLE - 1;
        if (!tn__chat_plausible(from, (size_t)(at - from)) || !tn__chat_plausible(behind, (size_t)(after - behind)))
            after = NULL;
    }
    if (after) {
        /* The opening marker may already be part of the prompt: then it is what the prompt ends with. */
        syntax->reasoning_begin = trimmed(from, at);
        syntax->reasoning_end = trimmed(at + sizeof NEEDLE - 1, after);
        chat->caps.reasoning = true;
    }
    tn_free(text);
    if (after && (!syntax->reasoning_begin || !syntax->reasoning_end)) return TN_E_NOMEM;
    if (after && *syntax->reasoning_begin && *syntax->reasoning_end) return TN_OK;
    /* Without a word from the template it is the first pair: models distilled from others think between those tags
     * though their template does not know. */
    size_t pick = 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (after ? strcmp(known[i].end, syntax->reasoning_end) == 0 : strstr(chat->source, known[i].end) != NULL)
            pick = i;
    bool unknown = after && strcmp(known[pick].end, syntax->reasoning_end) != 0;
    tn_free(syntax->reasoning_begin);
    if (unknown && prompt) {
        /* The prompt opens it, with the last two tags of its last line; or opens and closes it, when thinking is off
         * by default. */
        const char *end = prompt + strlen(prompt);
        while (end > prompt && strchr(" \n\t", end[-1])) end--;
        from = end;
        size_t n = strlen(syntax->reasoning_end);
        bool closed = (size_t)(end - prompt) > n && memcmp(end - n, syntax->reasoning_end, n) == 0;
        if (closed) from = end -= n;
        for (int tags = closed; from > prompt && from[-1] != '\n' && tags < 2 && end - from < TN__CHAT_MARKER_MAX;)
            tags += *--from == '<';
        syntax->reasoning_begin = trimmed(from, end);
        return syntax->reasoning_begin ? TN_OK : TN_E_NOMEM;
    }
    tn_free(syntax->reasoning_end);
    syntax->reasoning_begin = tn_strdup(known[pick].begin);
    syntax->reasoning_end = tn_strdup(known[pick].end);
    return syntax->reasoning_begin && syntax->reasoning_end ? TN_OK : TN_E_NOMEM;
}

/* The turn with a call, without the thinking before it and the end behind it. */
static char *call_turn(tn_chat_template *chat, const char *prompt, json_t *message, bool *memory) {
    char *text = attempt(chat, json_pack("[o, o]", user(chat), message), true, false, memory);
    if (!shows(text, TN__PROBE_NAME)) {
        tn_free(text);
        return NULL;
    }
    const char *turn = turn_of(text, prompt), *end = chat->syntax.reasoning_end;
    const char *first = strstr(turn, TN__PROBE_NAME);
    for (const char *at = turn; end && *end && first && (at = strstr(at, end)) && at < first; at++)
        turn = at + strlen(end);
    bool believed = strlen(turn) <= TN__CHAT_TURN_MAX;
    char *copy = believed ? tn_strdup(turn) : NULL;
    if (believed && !copy) *memory = true;
    tn_free(text);
    if (copy) cut_end(copy, chat->turn_tail);
    return copy;
}

static tn_status probe_syntax(tn_chat_template *chat, bool *memory) {
    char *prompt = attempt(chat, json_pack("[o]", user(chat)), true, true, memory), *one = NULL, *two = NULL,
         *wide = NULL;
    char *plain = attempt(chat, json_pack("[o]", user(chat)), false, true, memory);
    tn_status status = probe_reasoning(chat, plain, memory);
    if (status == TN_OK) status = tn__chat_known_syntax(chat->source, true, &chat->syntax);
    if (status == TN_OK && chat->caps.tool_calls && chat->syntax.kind == TN__CHAT_NONE) {
        one = call_turn(chat, prompt, caller(json_string(""), make_call(chat, TN__PROBE_NAME, false), NULL), memory);
        two = call_turn(chat, prompt,
                        caller(json_string(""), make_call(chat, TN__PROBE_NAME, false),
                               make_call(chat, TN__PROBE_NAME "2", false)),
                        memory);
        wide = call_turn(chat, prompt, caller(json_string(""), make_call(chat, TN__PROBE_NAME, true), NULL), memory);
        chat->caps.parallel_calls = shows(two, TN__PROBE_NAME "2");
        if (one && strstr(one, TN__PROBE_NAME))
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
    if (status == TN_OK && memory) status = tn_fail(TN_E_NOMEM, "out of memory while trying out a chat template");
    if (status == TN_OK) tn_error_clear(); /* refusals of the template are no failures of ours */
    return status;
}

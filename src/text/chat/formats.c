/* The table of formats: how families of models write tool calls and reasoning. Most are read off the model's template
 * (derive.c); a row is used where the template does not show them, or when it is selected by its name. */
#include "text/chat/internal.h"

enum { SPECIAL = 1, RECIPIENT_ALL = 2, PADDED = 4, NAME_IS_KEY = 8, PYTHON_TAG = 16 };

typedef struct chat_format {
    const char *name;
    const char *mention; /* a template that contains this has the format; NULL: only when selected */
    tn__chat_kind kind;
    unsigned flags; /* SPECIAL: a rendered call does not show the format completely */
    const char *section_begin, *section_end, *call_begin, *call_end, *name_end;
    const char *key_begin, *key_end, *value_end, *quote;
    const char *name_key, *arguments_key, *id_key; /* json; NULL: "name", "arguments", none */
    const char *reasoning_begin, *reasoning_end, *content_begin, *content_end; /* NULL: <think> and </think>; none */
} chat_format;

#define DSML "｜DSML｜"
#define M3 "]<]minimax[>["
#define SECTION(begin, end) .section_begin = begin, .section_end = end
#define CALL(begin, end) .call_begin = begin, .call_end = end
#define NAME_END(text) .name_end = text
#define ARGUMENT(begin, middle, end) .key_begin = begin, .key_end = middle, .value_end = end
#define KEYS(name, arguments) .name_key = name, .arguments_key = arguments
#define REASONING(begin, end) .reasoning_begin = begin, .reasoning_end = end
#define CONTENT(begin, end) .content_begin = begin, .content_end = end
#define FUNCTIONS CALL("<function=", "</function>"), NAME_END(">"), ARGUMENT("<parameter=", ">", "</parameter>")

/* Rows with a mention are in the order in which they are tried; of the others the first is the form that tools
 * described in words use. A section_begin that ends with a bracket begins a list. */
static const chat_format formats[] = {
    {"harmony", "<|constrain|>", TN__CHAT_CHANNELS, SPECIAL, SECTION("", "")},
    {"apertus", "<|tools_prefix|>", TN__CHAT_JSON, SPECIAL | NAME_IS_KEY,
     SECTION("<|tools_prefix|>[", "]<|tools_suffix|>"), REASONING("<|inner_prefix|>", "<|inner_suffix|>")},
    {"kimi-k3", "<|open|>", TN__CHAT_TAGGED, SPECIAL, SECTION("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
     CALL("<|open|>call tool=\"", "<|close|>call<|sep|>"), NAME_END("\" index=\"1\"<|sep|>"),
     ARGUMENT("<|open|>argument key=\"", "\" type=\"string\"<|sep|>", "<|close|>argument<|sep|>"),
     REASONING("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
     CONTENT("<|open|>response<|sep|>", "<|close|>response<|sep|>")},
    {"minimax-m3", "]<]minimax[>[", TN__CHAT_TAGGED, SPECIAL, SECTION(M3 "<tool_call>", M3 "</tool_call>"),
     CALL(M3 "<invoke name=\"", M3 "</invoke>"), NAME_END("\">"), ARGUMENT(M3 "<", ">", M3 "</" TN__PROBE_KEY ">"),
     REASONING("<mm:think>", "</mm:think>")},
    {"command-r", "Action:\\n```json", TN__CHAT_JSON, SPECIAL, SECTION("Action:\n```json\n[", "]```"),
     KEYS("tool_name", "parameters")},
    {"mistral", "[TOOL_CALLS]", TN__CHAT_JSON, 0, SECTION("[TOOL_CALLS][", "]"), REASONING("[THINK]", "[/THINK]")},
    {"deepseek-r1", "<｜tool▁calls▁begin｜>", TN__CHAT_NAMED, 0,
     SECTION("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
     CALL("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "```<｜tool▁call▁end｜>"), NAME_END("```json")},
    {"kimi-k2", "<|tool_calls_section_begin|>", TN__CHAT_NAMED, 0,
     SECTION("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
     CALL("<|tool_call_begin|>", "<|tool_call_end|>"), NAME_END("<|tool_call_argument_begin|>")},
    {"lfm2", "<|tool_call_start|>", TN__CHAT_PYTHONIC, 0, SECTION("<|tool_call_start|>", "<|tool_call_end|>")},
    {"lfm2", "List of tools: ", TN__CHAT_PYTHONIC, 0, SECTION("<|tool_call_start|>", "<|tool_call_end|>")},
    {"llama4", "<|python_start|>", TN__CHAT_PYTHONIC, 0, SECTION("<|python_start|>", "<|python_end|>")},
    {"phi4-mini", "<|/tool_call|>", TN__CHAT_JSON, 0, SECTION("<|tool_call|>[", "]<|/tool_call|>")},
    {"granite", "<|tool_call|>", TN__CHAT_JSON, 0, SECTION("<|tool_call|>[", "]")},
    {"functools", "functools[", TN__CHAT_JSON, 0, SECTION("functools[", "]")},
    {"functionary-v3.2", ">>>all", TN__CHAT_NAMED, SPECIAL | RECIPIENT_ALL, CALL(">>>", "")},
    {"functionary-v3.1", "<function=", TN__CHAT_NAMED, 0, CALL("<function=", "</function>"), NAME_END(">")},
    {"llama3", "<|python_tag|>", TN__CHAT_JSON, PYTHON_TAG, SECTION("", "")},
    {"nemotron", "<TOOLCALL>", TN__CHAT_JSON, 0, SECTION("<TOOLCALL>[", "]</TOOLCALL>")},
    {"command-a", "<|START_ACTION|>", TN__CHAT_JSON, 0, SECTION("<|START_ACTION|>[", "]<|END_ACTION|>"),
     KEYS("tool_name", "parameters"), .id_key = "tool_call_id", REASONING("<|START_THINKING|>", "<|END_THINKING|>"),
     CONTENT("<|START_RESPONSE|>", "<|END_RESPONSE|>")},
    {"gemma4", "<|tool_call>", TN__CHAT_GEMMA, 0, CALL("<|tool_call>call:", "<tool_call|>"), .quote = "<|\"|>",
     REASONING("<|channel>thought", "<channel|>")},
    {"gemma3", "<start_function_call>", TN__CHAT_GEMMA, 0, CALL("<start_function_call>call:", "<end_function_call>"),
     .quote = "<escape>"},
    {"hunyuan", "<tool_calls>", TN__CHAT_JSON, 0, SECTION("<tool_calls>[", "]</tool_calls>"),
     CONTENT("<answer>", "</answer>")},
    {"hermes", NULL, TN__CHAT_JSON, 0, CALL("<tool_call>", "</tool_call>")},
    {"qwen3-coder", NULL, TN__CHAT_TAGGED, PADDED, SECTION("<tool_call>", "</tool_call>"), FUNCTIONS},
    {"seed-oss", NULL, TN__CHAT_TAGGED, PADDED, SECTION("<seed:tool_call>", "</seed:tool_call>"), FUNCTIONS,
     REASONING("<seed:think>", "</seed:think>")},
    {"deepseek-v3.1", NULL, TN__CHAT_NAMED, 0, SECTION("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
     CALL("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"), NAME_END("<｜tool▁sep｜>")},
    {"deepseek-v3.2", NULL, TN__CHAT_TAGGED, 0, SECTION("<" DSML "function_calls>", "</" DSML "function_calls>"),
     CALL("<" DSML "invoke name=\"", "</" DSML "invoke>"), NAME_END("\">"),
     ARGUMENT("<" DSML "parameter name=\"", "\" string=\"true\">", "</" DSML "parameter>")},
    {"glm4.5", NULL, TN__CHAT_TAGGED, 0, CALL("<tool_call>", "</tool_call>"),
     ARGUMENT("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")},
    {"minimax-m1", NULL, TN__CHAT_JSON, 0, SECTION("<tool_calls>", "</tool_calls>")},
    {"minimax-m2", NULL, TN__CHAT_TAGGED, 0, SECTION("<minimax:tool_call>", "</minimax:tool_call>"),
     CALL("<invoke name=\"", "</invoke>"), NAME_END("\">"), ARGUMENT("<parameter name=\"", "\">", "</parameter>")},
    {"mistral-v11", NULL, TN__CHAT_NAMED, 0, CALL("[TOOL_CALLS]", ""), NAME_END("[ARGS]"),
     REASONING("[THINK]", "[/THINK]")},
    {"hunyuan-dense", NULL, TN__CHAT_NAMED, 0, SECTION("<tool_calls>", "</tool_calls>"),
     CALL("<tool_call>", "```\n</tool_call>"), NAME_END("```json"), CONTENT("<answer>", "</answer>")},
    {"pythonic", NULL, TN__CHAT_PYTHONIC, 0, SECTION("", "")},
    {"json", NULL, TN__CHAT_JSON, 0, SECTION("", "")},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

tn_status tn__chat_set_marker(char **marker, const char *text) {
    char *copy = tn_strdup(text ? text : "");
    if (!copy) return TN_E_NOMEM;
    tn_free(*marker);
    *marker = copy;
    return TN_OK;
}

/* Sets the markers of calls. */
static tn_status use_format(const chat_format *f, tn__chat_syntax *s) {
    s->kind = f->kind;
    s->recipient_all = f->flags & RECIPIENT_ALL;
    s->padded_values = f->flags & PADDED;
    s->name_is_key = f->flags & NAME_IS_KEY;
    if (f->flags & PYTHON_TAG) s->python_tag = true;
    const struct {
        char **marker;
        const char *text;
    } markers[] = {{&s->section_begin, f->section_begin},
                   {&s->section_end, f->section_end},
                   {&s->call_begin, f->call_begin},
                   {&s->call_end, f->call_end},
                   {&s->name_end, f->name_end},
                   {&s->key_begin, f->key_begin},
                   {&s->key_end, f->key_end},
                   {&s->value_end, f->value_end},
                   {&s->quote, f->quote},
                   {&s->name_key, "name"},
                   {&s->arguments_key, "arguments"}};
    for (size_t k = 0; k < sizeof markers / sizeof markers[0]; k++)
        TN_TRY(tn__chat_set_marker(markers[k].marker, markers[k].text));
    return TN_OK;
}

tn_status tn__chat_known_syntax(const char *source, bool special, tn__chat_syntax *syntax) {
    const chat_format *fallback = NULL;
    for (size_t i = 0; i < FORMATS; i++) {
        const chat_format *f = &formats[i];
        if (!f->mention && !fallback) fallback = f; /* hermes */
        if (!f->mention || (special && !(f->flags & SPECIAL)) || !strstr(source, f->mention)) continue;
        return use_format(f, syntax);
    }
    return special ? TN_OK : use_format(fallback, syntax);
}

const char *tn_chat_format_name(size_t index) {
    for (size_t i = 0; i < FORMATS; i++) {
        bool again = i > 0 && strcmp(formats[i].name, formats[i - 1].name) == 0;
        if (!again && index-- == 0) return formats[i].name;
    }
    return NULL;
}

tn_status tn__chat_format_syntax(const char *name, tn__chat_syntax *syntax) {
    for (size_t i = 0; i < FORMATS; i++) {
        const chat_format *f = &formats[i];
        if (strcmp(f->name, name) != 0) continue;
        TN_TRY(use_format(f, syntax));
        TN_TRY(tn__chat_set_marker(&syntax->reasoning_begin, f->reasoning_begin ? f->reasoning_begin : "<think>"));
        TN_TRY(tn__chat_set_marker(&syntax->reasoning_end, f->reasoning_end ? f->reasoning_end : "</think>"));
        TN_TRY(tn__chat_set_marker(&syntax->content_begin, f->content_begin));
        return tn__chat_set_marker(&syntax->content_end, f->content_end);
    }
    tn__text names = {0};
    const char *known;
    for (size_t i = 0; (known = tn_chat_format_name(i)); i++) {
        tn__text_puts(&names, i ? ", " : "");
        tn__text_puts(&names, known);
    }
    tn_status status =
        names.status != TN_OK
            ? TN_E_NOMEM
            : tn_fail(TN_E_NOT_FOUND, "unknown format \"%.100s\"; the formats are %s", name, names.data);
    tn__text_free(&names);
    return status;
}

tn_status tn__chat_content_markers(const char *before, const char *end, tn__chat_syntax *syntax) {
    static const struct {
        const char *begin, *end;
    } known[] = {{"<|START_RESPONSE|>", "<|END_RESPONSE|>"},
                 {"<|START_TEXT|>", "<|END_TEXT|>"},
                 {"<|open|>response<|sep|>", "<|close|>response<|sep|>"},
                 {"<answer>", "</answer>"},
                 {"<|content|>", ""}};
    while (end > before && strchr(" \n", end[-1])) end--;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i].begin);
        if ((size_t)(end - before) < n || memcmp(end - n, known[i].begin, n) != 0) continue;
        TN_TRY(tn__chat_set_marker(&syntax->content_begin, known[i].begin));
        TN_TRY(tn__chat_set_marker(&syntax->content_end, known[i].end));
        char *reasoning = syntax->reasoning_end;
        size_t m = reasoning ? strlen(reasoning) : 0;
        if (m > n && strcmp(reasoning + m - n, known[i].begin) == 0) {
            for (m -= n; m && strchr(" \n", reasoning[m - 1]);) m--;
            reasoning[m] = '\0';
        }
        return TN_OK;
    }
    return TN_OK;
}

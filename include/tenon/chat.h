/* Chat: from messages to a prompt by the model's own template, and from the model's text back to a message.
 *
 * A template is a small program in Jinja that came with the model. It runs in a sandbox with bounded steps, depth,
 * output and memory, so that a hostile one ends in TN_E_LIMIT. What a template can do (tools, a system message, lists
 * of content parts) is found out by trying when it is loaded, and what it cannot is made up for in the messages. How
 * the model writes reasoning and tool calls is read off the template's own rendering of them.
 *
 * JSON goes in and out as text, in the form of the OpenAI chat API. Returned texts are the caller's, to tn_free. */
#ifndef TENON_CHAT_H
#define TENON_CHAT_H

#include "tenon/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Templates ---- */

typedef struct tn_chat_template tn_chat_template; /* immutable: any number of threads may use it at once */

/* `text` is Jinja source, copied; NULL means ChatML, which models without a template of their own often know.
 * TN_E_SYNTAX names the line. include, import and extends are TN_E_UNSUPPORTED. */
TN_API tn_status tn_chat_template_new(const char *text, tn_chat_template **out);
TN_API void tn_chat_template_free(tn_chat_template *chat); /* accepts NULL */

/* What a template does by itself. The rest is made up for: a missing system role by putting its text before the first
 * user message, missing tool support by describing the tools in the system message, and so on. */
typedef struct tn_chat_caps {
    bool system_role;
    bool text_content;     /* "content": "text" */
    bool part_content;     /* "content": [{"type": "text", "text": "…"}] */
    bool null_content;     /* "content": null beside tool calls */
    bool tools;            /* lists the tools that may be called */
    bool tool_calls;       /* shows calls of earlier turns */
    bool tool_results;     /* shows messages of the role tool */
    bool parallel_calls;   /* several calls in one message */
    bool object_arguments; /* wants a call's arguments as an object rather than as text */
    bool reasoning;        /* shows reasoning_content of earlier turns */
    bool mutation;         /* changes lists or dicts while it runs, which is then allowed */
} tn_chat_caps;
TN_API const tn_chat_caps *tn_chat_template_caps(const tn_chat_template *chat);

/* How the model writes tool calls: "none", "json", "named", "tagged", "pythonic", "gemma" or "channels". */
TN_API const char *tn_chat_template_syntax(const tn_chat_template *chat);
/* The text that ends the assistant's turn in this template ("<|im_end|>"), or "" when it could not be told. */
TN_API const char *tn_chat_template_turn_end(const tn_chat_template *chat);

/* Renders exactly the given variables (a JSON object), nothing made up for. strftime_now() sees `now` (seconds since
 * 1970, shown in local time); 0 means what TENON_NOW=2026-11-15T12:00:00 in the environment says, else the clock.
 * `length` may be NULL. TN_E_INVALID: the template refuses, with its words and line in tn_error(). */
TN_API tn_status tn_chat_render(const tn_chat_template *chat, const char *variables, int64_t now, char **text,
                                size_t *length);

/* ---- Prompts ---- */

typedef enum tn_tool_choice { TN_TOOLS_AUTO, TN_TOOLS_NONE, TN_TOOLS_REQUIRED } tn_tool_choice;

typedef struct tn_chat_params {
    const char *messages;       /* JSON array */
    const char *tools;          /* JSON array of {"type": "function", "function": {…}}, or NULL */
    const char *variables;      /* JSON object of further variables (enable_thinking …), or NULL */
    const char *bos_token;      /* texts of the tokens; NULL: "" */
    const char *eos_token;      /* … */
    const char *tool_name;      /* with TN_TOOLS_REQUIRED: the one tool to call; NULL: any */
    tn_tool_choice tool_choice; /* TN_TOOLS_NONE hides the tools */
    bool parallel_calls;        /* allow several calls in one message */
    bool generation_prompt;     /* end with the beginning of the assistant's turn */
    bool keep_reasoning;        /* leave reasoning in the content instead of taking it apart */
    int64_t now;                /* as for tn_chat_render */
} tn_chat_params;
TN_API tn_chat_params tn_chat_params_default(void); /* generation prompt and parallel calls on, tools automatic */

typedef struct tn_chat_prompt tn_chat_prompt;

TN_API tn_status tn_chat_prompt_new(const tn_chat_template *chat, const tn_chat_params *params, tn_chat_prompt **out);
TN_API void tn_chat_prompt_free(tn_chat_prompt *prompt);                              /* accepts NULL */
TN_API const char *tn_chat_prompt_text(const tn_chat_prompt *prompt, size_t *length); /* length may be NULL */
TN_API bool tn_chat_prompt_has_bos(const tn_chat_prompt *prompt);      /* the text begins with bos_token */
TN_API bool tn_chat_prompt_in_reasoning(const tn_chat_prompt *prompt); /* the answer begins inside reasoning */

/* GBNF that keeps tool calls valid, or NULL (no tools, or a syntax without a grammar: pythonic and gemma). With a
 * trigger the grammar starts where that text appears, and includes it; without, it governs the whole answer. */
TN_API const char *tn_chat_prompt_grammar(const tn_chat_prompt *prompt);
TN_API const char *tn_chat_prompt_trigger(const tn_chat_prompt *prompt);

/* ---- Answers ---- */

typedef enum tn_chat_event_kind {
    TN_CHAT_CONTENT,   /* text: more content */
    TN_CHAT_REASONING, /* text: more reasoning */
    TN_CHAT_CALL,      /* a tool call begins: text is its name, id its id */
    TN_CHAT_ARGUMENTS, /* text: more of that call's arguments, which together are one JSON object */
    TN_CHAT_CALL_END,  /* the call is complete */
} tn_chat_event_kind;

typedef struct tn_chat_event {
    tn_chat_event_kind kind;
    size_t call;      /* which call, from 0 */
    const char *text; /* not NUL-terminated; valid during the callback */
    size_t length;
    const char *id; /* of TN_CHAT_CALL; NUL-terminated */
} tn_chat_event;

/* Anything but TN_OK stops the parser and is returned from the call that fed it. */
typedef tn_status (*tn_chat_event_fn)(void *user, const tn_chat_event *event);

/* Takes an answer apart as it arrives, for one answer, one thread at a time. Feed it the text with the spellings of
 * special tokens ("<|python_tag|>"), up to but not including the token that ends the generation. Text that turns out
 * not to be a call is content. `on_event` may be NULL. */
typedef struct tn_chat_parser tn_chat_parser;
TN_API tn_status tn_chat_parser_new(const tn_chat_prompt *prompt, tn_chat_parser **out); /* keeps no pointer to it */
TN_API tn_status tn_chat_parser_feed(tn_chat_parser *parser, const char *text, size_t length,
                                     tn_chat_event_fn on_event, void *user);
TN_API tn_status tn_chat_parser_finish(tn_chat_parser *parser, tn_chat_event_fn on_event, void *user);
/* The message so far: {"role": "assistant", "content", "reasoning_content", "tool_calls"}, as JSON text. */
TN_API tn_status tn_chat_parser_message(const tn_chat_parser *parser, char **json);
TN_API size_t tn_chat_parser_calls(const tn_chat_parser *parser);
TN_API void tn_chat_parser_free(tn_chat_parser *parser); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif

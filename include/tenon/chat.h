/* Chat: messages to a prompt with the model's own template, and the model's text back to a message.
 *
 * A template is a Jinja program that is part of the model. It runs in a sandbox with limited steps, depth, output and
 * memory; a hostile template ends with TN_E_LIMIT. Loading a template determines by probing what it supports (tools,
 * a system message, lists of content parts). Messages are converted to that. The same probes show how the model
 * writes reasoning and tool calls.
 *
 * JSON goes in and out as text, in the form of the OpenAI chat API. The caller frees returned texts with tn_free. */
#ifndef TENON_CHAT_H
#define TENON_CHAT_H

#include "tenon/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Templates ---- */

typedef struct tn_chat_template tn_chat_template; /* immutable: threads may share it */

/* `text` is Jinja source and is copied. NULL selects ChatML, a format that many models without a template understand.
 * TN_E_SYNTAX: the message has the line. TN_E_UNSUPPORTED: the template uses include, import or extends. */
TN_API tn_status tn_chat_template_new(const char *text, tn_chat_template **out);
TN_API void tn_chat_template_free(tn_chat_template *chat); /* accepts NULL */
/* Jinja source by the customary name of a format ("chatml", "llama3", "command-r" …), for models whose file has no
 * template; NULL: there is none of this name. */
TN_API const char *tn_chat_template_by_name(const char *name);
TN_API const char *tn_chat_template_name(size_t index); /* NULL past the last */

/* What a template supports. tn_chat_prompt_new converts messages that need more: system messages move to the front of
 * the first user message, tools are described in the system message, and so on. */
typedef struct tn_chat_caps {
    bool system_role;
    bool text_content;     /* "content": "text" */
    bool part_content;     /* "content": [{"type": "text", "text": "…"}] */
    bool null_content;     /* "content": null beside tool calls */
    bool tools;            /* renders the list of tools */
    bool tool_calls;       /* renders calls of earlier turns */
    bool tool_results;     /* renders messages with the role tool */
    bool parallel_calls;   /* renders several calls in one message */
    bool object_arguments; /* needs the arguments of a call as an object rather than as text */
    bool reasoning;        /* renders reasoning_content of earlier turns */
    bool mutation;         /* changes lists or dicts while it runs; tn_chat_prompt_new allows it then */
} tn_chat_caps;
TN_API const tn_chat_caps *tn_chat_template_caps(const tn_chat_template *chat);

/* How the model writes tool calls: "none", "json", "named", "tagged", "pythonic", "gemma" or "channels". */
TN_API const char *tn_chat_template_syntax(const tn_chat_template *chat);
/* Names of known formats of answers, for tn_chat_params.format: "hermes", "qwen3-coder", "harmony" …; NULL past the
 * last. */
TN_API const char *tn_chat_format_name(size_t index);
/* The text that ends the assistant's turn ("<|im_end|>"), or "" if it could not be determined. */
TN_API const char *tn_chat_template_turn_end(const tn_chat_template *chat);

/* Renders the template with exactly the given variables (a JSON object). strftime_now() returns `now` (seconds since
 * 1970) in local time; 0 selects the time in TENON_NOW (2026-11-15T12:00:00) or, if that is not set, the clock.
 * `length` may be NULL. TN_E_INVALID: the template raised an error; the message has its text and line. */
TN_API tn_status tn_chat_render(const tn_chat_template *chat, const char *variables, int64_t now, char **text,
                                size_t *length);

/* ---- Prompts ---- */

typedef enum tn_tool_choice { TN_TOOLS_AUTO, TN_TOOLS_NONE, TN_TOOLS_REQUIRED } tn_tool_choice;

typedef struct tn_chat_params {
    const char *messages;       /* JSON array */
    const char *tools;          /* JSON array of {"type": "function", "function": {…}}, or NULL */
    const char *variables;      /* JSON object of further variables, or NULL. "enable_thinking": false also
                                   closes the reasoning that a template opens itself */
    const char *bos_token;      /* text of the token; NULL: "" */
    const char *eos_token;      /* text of the token; NULL: "" */
    const char *tool_name;      /* with TN_TOOLS_REQUIRED: the only tool to call; NULL: any */
    tn_tool_choice tool_choice; /* TN_TOOLS_NONE omits the tools */
    bool parallel_calls;        /* allow several calls in one message */
    bool generation_prompt;     /* end with the start of the assistant's turn */
    bool continue_final;        /* the last message, the assistant's, is the beginning of the answer */
    bool keep_reasoning;        /* leave reasoning in the content */
    const char *format;         /* name of the format of answers; NULL: detected from the template */
    int64_t now;                /* as for tn_chat_render */
} tn_chat_params;
/* Generation prompt and parallel calls on, tools automatic. */
TN_API tn_chat_params tn_chat_params_default(void);

typedef struct tn_chat_prompt tn_chat_prompt;

TN_API tn_status tn_chat_prompt_new(const tn_chat_template *chat, const tn_chat_params *params, tn_chat_prompt **out);
TN_API void tn_chat_prompt_free(tn_chat_prompt *prompt); /* accepts NULL */
/* `length` may be NULL. */
TN_API const char *tn_chat_prompt_text(const tn_chat_prompt *prompt, size_t *length);
/* Whether the text begins with bos_token. */
TN_API bool tn_chat_prompt_has_bos(const tn_chat_prompt *prompt);
/* Whether the answer begins inside reasoning. */
TN_API bool tn_chat_prompt_in_reasoning(const tn_chat_prompt *prompt);

/* GBNF that keeps tool calls valid, or NULL: there are no tools, or the syntax has no grammar (pythonic and gemma).
 * With a trigger, the grammar starts where that text appears and includes it; without one it covers the whole answer.
 */
TN_API const char *tn_chat_prompt_grammar(const tn_chat_prompt *prompt);
TN_API const char *tn_chat_prompt_trigger(const tn_chat_prompt *prompt);

/* ---- Answers ---- */

typedef enum tn_chat_event_kind {
    TN_CHAT_CONTENT,   /* text: more content */
    TN_CHAT_REASONING, /* text: more reasoning */
    TN_CHAT_CALL,      /* a tool call begins: text is its name, id its id */
    TN_CHAT_ARGUMENTS, /* text: more of the call's arguments, which together are one JSON object */
    TN_CHAT_CALL_END,  /* the call is complete */
} tn_chat_event_kind;

typedef struct tn_chat_event {
    tn_chat_event_kind kind;
    size_t call;      /* index of the call, from 0 */
    const char *text; /* not NUL-terminated; valid during the callback */
    size_t length;
    const char *id; /* of TN_CHAT_CALL; NUL-terminated */
} tn_chat_event;

/* A status other than TN_OK stops the parser; the function that was fed the text returns it. */
typedef tn_status (*tn_chat_event_fn)(void *user, const tn_chat_event *event);

/* Parses one answer while it arrives; one thread at a time may use it. Feed it the text including the spellings of
 * special tokens ("<|python_tag|>"), up to but not including the token that ends the generation. Text that turns out
 * not to be a call becomes content. `on_event` may be NULL. */
typedef struct tn_chat_parser tn_chat_parser;
TN_API tn_status tn_chat_parser_new(const tn_chat_prompt *prompt, tn_chat_parser **out); /* does not keep `prompt` */
TN_API tn_status tn_chat_parser_feed(tn_chat_parser *parser, const char *text, size_t length,
                                     tn_chat_event_fn on_event, void *user);
TN_API tn_status tn_chat_parser_finish(tn_chat_parser *parser, tn_chat_event_fn on_event, void *user);
/* The message so far: {"role": "assistant", "content", "reasoning_content", "tool_calls", "note"}, as JSON text. A
 * call whose arguments are not JSON is text at the end of the content, and "note" says so. */
TN_API tn_status tn_chat_parser_message(const tn_chat_parser *parser, char **json);
/* The number of calls so far, without those whose arguments are not JSON. */
TN_API size_t tn_chat_parser_calls(const tn_chat_parser *parser);
/* One sentence about the first text that resembled a call but was invalid or truncated, and became part of the
 * message's content. NULL if there was none. Valid until the next call for this parser. */
TN_API const char *tn_chat_parser_note(const tn_chat_parser *parser);
TN_API void tn_chat_parser_free(tn_chat_parser *parser); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif

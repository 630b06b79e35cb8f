/* The streaming parser of answers, shared by its files: parser.c runs the states, the parser_*.c files hold them.
 *
 * Text waits in `pending` until its meaning is certain. A step looks at the beginning of `pending` in the current
 * state and either consumes some of it or waits for more text. Text that led into a call whose name was not reported
 * yet is kept in `lead`, so that it can still become content. */
#ifndef TN_TEXT_CHAT_PARSER_H
#define TN_TEXT_CHAT_PARSER_H

#include "text/chat/internal.h"

typedef enum tn__parser_state {
    TN__PARSER_START, /* only white space so far */
    TN__PARSER_CONTENT,
    TN__PARSER_REASONING,
    TN__PARSER_BETWEEN,      /* inside a section, before a call or the section's end */
    TN__PARSER_CALL_JSON,    /* {"name": …, "arguments": …} */
    TN__PARSER_CALL_NAME,    /* the name that begins a call */
    TN__PARSER_CALL_ARGS,    /* a JSON object of arguments */
    TN__PARSER_CALL_TAGS,    /* arguments between tags */
    TN__PARSER_CALL_TEXT,    /* a call in Python or Gemma notation, up to its end marker */
    TN__PARSER_CALL_END,     /* the call's end marker */
    TN__PARSER_PYTHON,       /* after <|python_tag|>, up to the end of the answer */
    TN__PARSER_CHANNEL_HEAD, /* gpt-oss: up to <|message|> */
    TN__PARSER_CHANNEL_BODY,
} tn__parser_state;

typedef struct tn__parsed_call {
    char id[24];
    tn__text name, arguments;
    bool malformed; /* the arguments are not a JSON object */
} tn__parsed_call;

struct tn_chat_parser {
    tn__chat_syntax syntax;
    json_t *tools;
    bool keep_reasoning;
    bool final;           /* no more text follows */
    bool reasoning_ended; /* white space after it is not content */
    tn__parser_state state;
    tn__text pending, lead, content, reasoning;
    tn__text space; /* white space at the end of the content, not sent yet */
    tn__parsed_call *calls;
    size_t call_count;
    tn__chat_scanner scanner;
    size_t sent;         /* CALL_JSON: bytes of the arguments already sent */
    bool announced;      /* the current call's name is sent */
    bool bare;           /* calls without markers around them */
    bool list;           /* in a list between the markers of one call */
    bool fresh;          /* only white space since the state began */
    bool first_argument; /* CALL_TAGS: none sent yet */
    tn_chat_event_kind channel;
    bool channel_call;
    tn_chat_event_fn on_event;
    void *user;
    uint64_t id_seed;
    char note[160]; /* the first thing that looked like a call and was none; "": nothing */
};

/* ---- Events (parser_events.c): each is added to the message and passed to the callback ---- */

tn_status tn__parser_nomem(void);
tn_status tn__parser_send(tn_chat_parser *p, tn_chat_event_kind kind, const char *text, size_t length);
/* Content is sent without the white space at its end, because that white space is dropped when a call follows. */
tn_status tn__parser_send_content(tn_chat_parser *p, const char *text, size_t length);
tn_status tn__parser_send_reasoning(tn_chat_parser *p, const char *text, size_t length);
/* Reports a call by its name; without an id one is made. */
tn_status tn__parser_begin_call(tn_chat_parser *p, const char *name, size_t length, const char *id, size_t id_length);
tn_status tn__parser_end_call(tn_chat_parser *p);
/* Treats what looked like a call as content: sends `lead` and parses the rest again as content. */
tn_status tn__parser_abandon_call(tn_chat_parser *p);
void tn__parser_note(tn_chat_parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- The pending text (parser_lookahead.c) ---- */

static inline const char *tn__parser_text(const tn_chat_parser *p) { return p->pending.data ? p->pending.data : ""; }

/* Offset of the first of the markers at or after `from`. *which is its index, or -1: then the offset is where a
 * marker may be beginning, or the length of the text. Absent markers are NULL or empty. */
size_t tn__parser_find(const tn_chat_parser *p, size_t from, const char *const markers[], int count, int *which);

typedef enum tn__parser_match { TN__MATCH_NO, TN__MATCH_MAYBE, TN__MATCH_YES } tn__parser_match;
/* Whether the pending text begins with a marker. MAYBE: it is the beginning of one, and more text can follow. */
tn__parser_match tn__parser_begins_with(const tn_chat_parser *p, const char *marker);
tn__parser_match tn__parser_begins_after_space(const tn_chat_parser *p, const char *marker);

size_t tn__parser_leading_space(const tn_chat_parser *p);
/* Removes n bytes from the front; with `keep` they are added to `lead`. */
void tn__parser_consume(tn_chat_parser *p, size_t n, bool keep);

bool tn__parser_is_tool(const tn_chat_parser *p, const char *name, size_t length);
/* The function's name in a header such as "functions.f:0", "f[CALL_ID]x[ARGS]" or "id<|name|>f": the first name of a
 * tool in it, else its first word. */
bool tn__parser_find_name(const tn_chat_parser *p, const char *text, size_t length, size_t *from, size_t *to);

/* Whether the text from `from` on begins a list of Python calls of a tool (parser_notation.c). */
tn__parser_match tn__parser_begins_python(const tn_chat_parser *p, size_t from);

/* ---- States: each step consumes text, changes the state, or clears *more to wait for text ---- */

/* parser_content.c */
tn_status tn__parser_step_start(tn_chat_parser *p, bool *more);
tn_status tn__parser_step_content(tn_chat_parser *p, bool *more);
tn_status tn__parser_step_reasoning(tn_chat_parser *p, bool *more);

/* parser_calls.c */
void tn__parser_enter_call(tn_chat_parser *p);
tn_status tn__parser_step_between(tn_chat_parser *p, bool *more);
tn_status tn__parser_step_json(tn_chat_parser *p, bool *more);
tn_status tn__parser_step_name(tn_chat_parser *p, bool *more);
tn_status tn__parser_step_args(tn_chat_parser *p, bool *more);
tn_status tn__parser_step_call_end(tn_chat_parser *p, bool *more);

/* parser_tags.c */
tn_status tn__parser_step_tags(tn_chat_parser *p, bool *more);

/* parser_notation.c */
tn_status tn__parser_step_text(tn_chat_parser *p, bool *more);
tn_status tn__parser_step_python(tn_chat_parser *p, bool *more);

/* parser_channels.c */
tn_status tn__parser_step_channel_head(tn_chat_parser *p, bool *more);
tn_status tn__parser_step_channel_body(tn_chat_parser *p, bool *more);

#endif

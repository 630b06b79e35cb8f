/* What the files of the chat module share: templates, prompts, and the syntax in which a model writes answers. */
#ifndef TN_TEXT_CHAT_INTERNAL_H
#define TN_TEXT_CHAT_INTERNAL_H

#include <jansson.h>
#include <string.h>

#include "base/text.h"
#include "tenon/chat.h"
#include "text/template/jinja.h"

/* ---- JSON text (json_text.c) ---- */

/* Appends a value on one line, keys in order. */
void tn__chat_append_json(tn__text *text, const json_t *json);
/* Appends a string, quoted and escaped. */
void tn__chat_append_json_string(tn__text *text, const char *data, size_t length);
/* Fails with TN_E_NOMEM, for a NULL from jansson. */
tn_status tn__chat_nomem(void);

/* ---- The syntax of answers ---- */

/* How tool calls are written. X(KIND, name):
 *   json       {"name": …, "arguments": {…}} between markers, or without markers at the start of the answer
 *   named      the name, then the arguments as a JSON object
 *   tagged     the name, then each argument between tags
 *   pythonic   [name(key='value')]
 *   gemma      call:name{key:<|"|>value<|"|>}
 *   channels   gpt-oss: every message names its channel and its recipient */
#define TN__CHAT_SYNTAX_TABLE(X)                                                                                     \
    X(NONE, none)                                                                                                    \
    X(JSON, json)                                                                                                    \
    X(NAMED, named)                                                                                                  \
    X(TAGGED, tagged)                                                                                                \
    X(PYTHONIC, pythonic)                                                                                            \
    X(GEMMA, gemma)                                                                                                  \
    X(CHANNELS, channels)
typedef enum tn__chat_kind {
#define TN_X(kind, name) TN__CHAT_##kind,
    TN__CHAT_SYNTAX_TABLE(TN_X)
#undef TN_X
} tn__chat_kind;

/* The markers, each without surrounding white space; an absent one is NULL or empty. In order of appearance:
 *   section_begin ( call_begin CALL call_end )* section_end
 * CALL depends on the kind:
 *   json       a JSON object with the keys name_key, arguments_key and id_key
 *   named      name name_end {arguments}
 *   tagged     name name_end ( key_begin key key_end value value_end )*
 * content_begin and content_end may stand around the content and are not part of it. `quote` stands around the texts
 * in calls of the kind gemma. The probe's function name inside a marker stands for the name of the current call, the
 * probe's key for its key. */
#define TN__CHAT_MARKERS(X)                                                                                          \
    X(reasoning_begin)                                                                                               \
    X(reasoning_end)                                                                                                 \
    X(content_begin)                                                                                                 \
    X(content_end)                                                                                                   \
    X(section_begin)                                                                                                 \
    X(section_end)                                                                                                   \
    X(call_begin)                                                                                                    \
    X(call_end)                                                                                                      \
    X(name_end)                                                                                                      \
    X(key_begin)                                                                                                     \
    X(key_end)                                                                                                       \
    X(value_end)                                                                                                     \
    X(quote)                                                                                                         \
    X(name_key)                                                                                                      \
    X(arguments_key)                                                                                                 \
    X(id_key)
/* Markers of released templates have about ten bytes, a probe's turn a few hundred. Longer renderings are discarded,
 * so that grammars made from them and searches for them in answers stay small. */
enum { TN__CHAT_MARKER_MAX = 256, TN__CHAT_TURN_MAX = 8192 };
typedef struct tn__chat_syntax {
    tn__chat_kind kind;
    bool python_tag;    /* <|python_tag|> begins a call too */
    bool recipient_all; /* functionary 3.2: the name "all" begins content, and the prompt ends with call_begin */
    bool padded_values; /* a value has a line end before and after it */
    bool name_is_key;   /* json: a call is {"name": {arguments}} */
#define TN_X(marker) char *marker;
    TN__CHAT_MARKERS(TN_X)
#undef TN_X
} tn__chat_syntax;
static inline bool tn__chat_present(const char *marker) { return marker && *marker; }
void tn__chat_syntax_clear(tn__chat_syntax *syntax);
tn_status tn__chat_syntax_copy(const tn__chat_syntax *from, tn__chat_syntax *to);

/* Names that probes put into messages. No template contains them by itself. */
#define TN__PROBE_NAME "tn_probe_fn"
#define TN__PROBE_KEY "tn_probe_key"
#define TN__PROBE_ID "prb000001" /* nine letters or digits: some templates require that */

/* ---- Templates and prompts (chat.c) ---- */

struct tn_chat_template {
    tn__jinja *jinja;
    char *source;
    char *turn_end, *turn_tail; /* without and with the surrounding white space */
    bool over_limit;            /* a probe exceeded a limit: the remaining probes are skipped */
    bool omit_tools;            /* without tools the variable must be undefined rather than null */
    tn_chat_caps caps;
    tn__chat_syntax syntax;
};

struct tn_chat_prompt {
    char *text;
    size_t length;
    char *grammar, *trigger;
    bool has_bos, in_reasoning, keep_reasoning;
    bool in_call; /* the prompt ends with call_begin */
    tn__chat_syntax syntax;
    json_t *tools; /* array, or NULL */
};

/* Renders the template with the variables of a JSON object. NULL limits are the default ones. */
tn_status tn__chat_run(const tn_chat_template *chat, const json_t *variables, int64_t now,
                       const tn__jinja_limits *limits, char **text, size_t *length);

/* Adds the variables "functions" and "datetime" for templates of Firefunction, which know tools by these names, and
 * "date_string" where a template asks for it. Not 0: out of memory. */
int tn__chat_add_functions(const tn_chat_template *chat, json_t *variables, const json_t *tools, int64_t now);

/* The name of tool `index` of an OpenAI-style array; NULL past the end or without a name. */
const char *tn__chat_tool_name(const json_t *tools, size_t index);
/* The parameter schema of the tool with this name, or NULL. */
const json_t *tn__chat_tool_parameters(const json_t *tools, const char *name, size_t length);

/* Whether a character can be part of a function's name. */
bool tn__chat_is_name_char(char c);

/* ---- What a template supports and how it writes calls ---- */

/* Fills caps, turn_end and syntax by rendering probe dialogs (probe.c). Fails only with TN_E_NOMEM. */
tn_status tn__chat_probe(tn_chat_template *chat);
/* Derives the markers from a rendered call (derive.c). `rendered` is the assistant's turn with one call of
 * TN__PROBE_NAME, `two_calls` the turn with two calls, `two_arguments` the turn with a call of two arguments; the
 * last two may be NULL. */
tn_status tn__chat_derive(const char *rendered, const char *two_calls, const char *two_arguments,
                          tn__chat_syntax *syntax);
/* Whether a text can be a marker: not too long, and UTF-8, because a grammar is. */
bool tn__chat_plausible(const char *marker, size_t length);
/* Markers of known formats (formats.c), recognized by a text that the template's source contains. With `special` only
 * formats that a rendered call does not show completely; the kind stays "none" if the source mentions none of them.
 * Without `special` there is always a result, if need be the form that tools described in words use. */
tn_status tn__chat_known_syntax(const char *source, bool special, tn__chat_syntax *syntax);
/* The markers of a format by its name. TN_E_NOT_FOUND: the message lists the names. */
tn_status tn__chat_format_syntax(const char *name, tn__chat_syntax *syntax);
/* Sets the markers around the content, where the text that a template renders before it, up to `end`, ends with one
 * that is known; a reasoning_end that includes it is cut. */
tn_status tn__chat_content_markers(const char *before, const char *end, tn__chat_syntax *syntax);
/* Replaces a marker by a text. */
tn_status tn__chat_set_marker(char **marker, const char *text);

/* Converts messages to what the template supports (polyfill.c). The result is a new reference. */
tn_status tn__chat_adapt(const tn_chat_template *chat, const json_t *messages, const json_t *tools, json_t **out);

/* Sets the prompt's grammar and trigger (grammar.c). */
tn_status tn__chat_grammar(tn_chat_prompt *prompt, const tn_chat_params *params);

/* ---- Texts of calls ---- */

/* Follows one JSON object as it grows and records where its name, arguments and id are, also inside a member called
 * "function" (json_scanner.c). Offsets are into the text given, which must start with the object each time. */
typedef struct tn__chat_scanner {
    bool keyed; /* the first key is the name, its value the arguments */
    size_t at, depth;
    bool string, escape, done, bad;
    struct {
        bool object, key_next, in_value;
        size_t key_from, key_to, value_from;
    } level[3];
    size_t name_from, name_to, id_from, id_to; /* without the quotes; _to is 0 until complete */
    size_t arguments_from, arguments_to;       /* _from is 0 until they begin, _to until they are complete */
    size_t keys;                               /* members seen at the top level */
} tn__chat_scanner;
void tn__chat_scan(tn__chat_scanner *scanner, const char *text, size_t length);

/* Length of the JSON object or array at text[0]; 0 while it is incomplete, SIZE_MAX if the text is neither. */
size_t tn__chat_json_end(const char *text, size_t length);
/* Parses Python calls, "[f(a=1), g(b='x')]" or "f.call(a=1)" (notation.c), and appends {"name", "arguments"} objects
 * to `calls`. False if the text is something else. */
bool tn__chat_parse_python(const char *text, size_t length, json_t *calls);
/* The arguments of a Gemma call, "{key:<|\"|>text<|\"|>,n:5}" with the quote <|"|>, as JSON; NULL if malformed. */
json_t *tn__chat_parse_gemma(const char *text, size_t length, const char *quote);

#endif

/* What the parts of chat share: the template object, the syntax of answers, and growing text. */
#ifndef TN_LLM_CHAT_INTERNAL_H
#define TN_LLM_CHAT_INTERNAL_H

#include <jansson.h>
#include <string.h>

#include "base/text.h"
#include "tenon/chat.h"
#include "text/template/jinja.h"

/* ---- JSON text (json.c) -----------------------------------------------------------------------------------------
 */

void tn__chat_append_json(tn__text *text, const json_t *json);                     /* on one line, keys in order */
void tn__chat_append_json_string(tn__text *text, const char *data, size_t length); /* quoted and escaped */
tn_status tn__chat_nomem(void); /* the status for a NULL from jansson */

/* ---- How answers are written ------------------------------------------------------------------------------ */

/* X(KIND, name): json       {"name": …, "arguments": {…}} between markers, or bare at the start of the answer
 *                named      the name, then the arguments as a JSON object
 *                tagged     the name, then each argument between tags
 *                pythonic   [name(key='value')]
 *                gemma      call:name{key:<|"|>value<|"|>}
 *                channels   gpt-oss: every message names its channel and its recipient */
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

/* The markers, each without white space around it; an empty one is absent. In order of appearance:
 *   section_begin ( call_begin … call_end )* section_end
 * where … is, by kind: a JSON object; name name_end {arguments}; name name_end ( key_begin key key_end value
 * value_end )*. A probe's function name inside a marker stands for the name at hand, likewise its key. */
#define TN__CHAT_MARKERS(X)                                                                                          \
    X(reasoning_begin)                                                                                               \
    X(reasoning_end)                                                                                                 \
    X(section_begin)                                                                                                 \
    X(section_end)                                                                                                   \
    X(call_begin)                                                                                                    \
    X(call_end)                                                                                                      \
    X(name_end)                                                                                                      \
    X(key_begin)                                                                                                     \
    X(key_end)                                                                                                       \
    X(value_end)                                                                                                     \
    X(name_key)      /* of the JSON object */                                                                        \
    X(arguments_key) /* of the JSON object */                                                                        \
    X(id_key)        /* of the JSON object */
/* Released templates have markers of some ten bytes and write a probe's turn in some hundred. Beyond these lengths a
 * rendering is not believed, so that what follows from it (grammars, searches in answers) stays small. */
enum { TN__CHAT_MARKER_MAX = 256, TN__CHAT_TURN_MAX = 8192 };
typedef struct tn__chat_syntax {
    tn__chat_kind kind;
    bool python_tag;    /* <|python_tag|> begins a call too */
    bool recipient_all; /* functionary 3.2: the name "all" begins content, and the prompt ends in call_begin */
    bool padded_values; /* a line end stands on either side of a value */
#define TN_X(marker) char *marker;
    TN__CHAT_MARKERS(TN_X)
#undef TN_X
} tn__chat_syntax;
void tn__chat_syntax_clear(tn__chat_syntax *syntax);
tn_status tn__chat_syntax_copy(const tn__chat_syntax *from, tn__chat_syntax *to);

/* What probes call things, unlikely to be part of any template. */
#define TN__PROBE_NAME "tn_probe_fn"
#define TN__PROBE_KEY "tn_probe_key"
#define TN__PROBE_ID "prb000001" /* nine letters or digits, because some templates insist */

/* ---- Templates and prompts -------------------------------------------------------------------------------- */

struct tn_chat_template {
    bool hopeless; /* a probe ran into a limit: the others would, too */
    tn__jinja *jinja;
    char *source;
    char *turn_end, *turn_tail; /* without and with the white space around it */
    bool omit_tools;            /* without tools the variable must not exist, rather than be null */
    tn_chat_caps caps;
    tn__chat_syntax syntax;
};

struct tn_chat_prompt {
    char *text;
    size_t length;
    char *grammar, *trigger;
    bool has_bos, in_reasoning, keep_reasoning;
    bool in_call; /* the prompt ends in call_begin */
    tn__chat_syntax syntax;
    json_t *tools; /* array, or NULL */
};

/* Renders with the variables of a JSON object, under `limits` (NULL: the default ones). */
tn_status tn__chat_run(const tn_chat_template *chat, const json_t *variables, int64_t now,
                       const tn__jinja_limits *limits, char **text, size_t *length);

/* chat_probe.c: fills caps, turn_end and syntax by trying. Only lack of memory is an error. */
tn_status tn__chat_probe(tn_chat_template *chat);
/* chat_derive.c: reads the markers off a rendered call. `rendered` is the assistant's turn with one call of
 * TN__PROBE_NAME, `two_calls` and `two_arguments` the same with two of them, or NULL. */
tn_status tn__chat_derive(const char *rendered, const char *two_calls, const char *two_arguments,
                          tn__chat_syntax *syntax);
/* Whether a marker could be one: not longer than any real one, and text, because grammars are. */
bool tn__chat_plausible(const char *marker, size_t length);
/* Markers of formats known by what a template mentions. With `special` only those whose rendering does not tell the
 * whole story, and the kind stays "none" when it is none of them; without, there is always an answer, in the end the
 * form that tools described in words ask for. */
tn_status tn__chat_known_syntax(const char *source, bool special, tn__chat_syntax *syntax);

/* chat_polyfill.c: messages as the template can take them. Both results are new references. */
tn_status tn__chat_adapt(const tn_chat_template *chat, const json_t *messages, const json_t *tools, json_t **out);

/* chat_grammar.c */
tn_status tn__chat_grammar(tn_chat_prompt *prompt, const tn_chat_params *params);

/* Names of the tools in an OpenAI-style array; NULL past the end or where there is none. */
const char *tn__chat_tool_name(const json_t *tools, size_t index);
const json_t *tn__chat_tool_parameters(const json_t *tools, const char *name, size_t length); /* NULL: none */

/* chat_scan.c */
/* Follows one JSON object as it grows and notes where its name, arguments and id stand, also inside a member called
 * "function". Offsets are into the text given, which must start with the object each time. */
typedef struct tn__chat_scanner {
    size_t at, depth;
    bool string, escape, done, bad;
    struct {
        bool object, key_next, in_value;
        size_t key_from, key_to, value_from;
    } level[3];
    size_t name_from, name_to, id_from, id_to; /* without the quotes; _to is 0 until complete */
    size_t arguments_from, arguments_to;       /* _from is 0 until they begin, _to until they are complete */
    size_t keys;                               /* members seen at the top */
} tn__chat_scanner;
void tn__chat_scan(tn__chat_scanner *scanner, const char *text, size_t length);

/* Where the JSON value that starts at text[0] ends, 0 while it is not complete, SIZE_MAX when it is no JSON. */
size_t tn__chat_json_end(const char *text, size_t length);
/* A Python call list "[f(a=1), g(b='x')]" or "f.call(a=1)": appends {"name", "arguments"} objects to `calls`. False
 * when the text is something else. */
bool tn__chat_parse_python(const char *text, size_t length, json_t *calls);
/* The inside of a Gemma call, "{key:<|\"|>text<|\"|>,n:5}", as JSON; NULL when malformed. */
json_t *tn__chat_parse_gemma(const char *text, size_t length);

#endif

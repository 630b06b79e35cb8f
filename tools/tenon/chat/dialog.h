/* A conversation with a model: its messages, the tokens in the KV cache, and replies. */
#ifndef TENON_TOOL_DIALOG_H
#define TENON_TOOL_DIALOG_H

#include "engine/sampling.h"

#include "tenon/chat.h"
#include "tenon/generate.h"

#include <jansson.h>

struct dialog {
    const struct args *args;
    tn_model *model;
    tn_session *session;
    const tn_tokenizer *tokenizer;
    tn_chat_template *chat;
    json_t *variables;          /* more variables of the template; NULL or empty: none */
    const char *format;         /* of answers; NULL: as the template shows */
    bool no_template;           /* the model continues the text of the messages */
    json_t *messages;           /* [{"role", "content", …}, …], the system message first if there is one */
    tn_sampler_params sampling; /* from options and /set */
    tn_sampler *sampler;        /* made from them before a reply; NULL: not made yet */
    tn_generator *generator;    /* of the reply: samples, finds the stop string, makes text */
    tn_tokens cached;           /* the tokens in the KV cache */
    int64_t limit;              /* max tokens of a reply; negative: no limit */
    bool shifts;                /* a full context makes room: the oldest messages, then tokens are given up */
    int32_t keep;               /* tokens that then stay at least; negative: the prompt */
    int dropped;                /* messages removed because the context was full */
    tn_speculator *speculator;  /* who guesses, or NULL */
    tn_guess guess;      /* of the last decode: of its tokens `n_right` are in `cached`, the rest is unchecked */
    int32_t n_right, at; /* at: the last of them in the guess, -1: none */
    int32_t row;         /* of the logits after the last token in `cached` */
};

/* `template` is Jinja, "chatml", or NULL for the model's own. Returns an exit code. */
int dialog_open(struct dialog *dialog, const struct args *args, tn_model *model, tn_session *session,
                const char *template);
void dialog_close(struct dialog *dialog);

/* The first message of the role system, or NULL. Setting it to "" removes it. */
const char *dialog_system(const struct dialog *dialog);
bool dialog_set_system(struct dialog *dialog, const char *text);
bool dialog_add(struct dialog *dialog, const char *role, const char *text);
/* Removes all messages but the system message. */
void dialog_reset(struct dialog *dialog);
/* Removes the last reply, so that the last message is the user's. False if there is no reply. */
bool dialog_take_back(struct dialog *dialog);

/* Messages to and from a file: {"messages": […]}, or the list alone. A failed load changes nothing. Saving replaces
 * an existing file only where `replace` is set. */
int dialog_save(const struct dialog *dialog, const char *path, bool replace);
int dialog_load(struct dialog *dialog, const char *path);

enum reply_end { REPLY_DONE, REPLY_LIMIT, REPLY_INTERRUPTED, REPLY_FULL, REPLY_FAILED };

/* Generates the reply to the last message, prints it to standard output and adds it to the messages. When the context
 * is full, the oldest messages are removed, or without `shifts` the reply ends with REPLY_FULL. Ctrl-C ends the
 * reply; the text so far is kept. After REPLY_FAILED, whose error is printed, and after an interruption before any
 * text, the user's message is removed. */
enum reply_end dialog_reply(struct dialog *dialog);

#endif

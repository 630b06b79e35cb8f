/* A conversation with a model: its messages, what of them the KV cache holds, and replies. */
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
    const char *variables;      /* further variables of the template, as JSON; NULL: none */
    bool continues;             /* no template: the model goes on with the text */
    json_t *messages;           /* [{"role", "content", …}, …], the system message first if there is one */
    tn_sampler_params sampling; /* as options and /set say … */
    tn_sampler *sampler;        /* … made from them when needed; NULL: make it */
    tn_generator *generator;    /* of the reply: samples, finds the stop string, makes text */
    tn_tokens cached;           /* what the cache holds, token by token */
    int64_t limit;              /* tokens of a reply; negative: none */
    int forgotten;              /* messages that had to go since the beginning */
};

/* `template` is Jinja, "chatml", or NULL for the model's own. Returns an exit code. */
int dialog_open(struct dialog *dialog, const struct args *args, tn_model *model, tn_session *session,
                const char *template);
void dialog_close(struct dialog *dialog);

/* The first message of the role system, or NULL. Setting it to "" removes it. */
const char *dialog_system(const struct dialog *dialog);
bool dialog_set_system(struct dialog *dialog, const char *text);
bool dialog_add(struct dialog *dialog, const char *role, const char *text);
/* Forgets all messages but the system's. */
void dialog_reset(struct dialog *dialog);
/* Takes back the last reply, so that the last message is the user's. False where there is none. */
bool dialog_take_back(struct dialog *dialog);

/* Messages to and from a file: {"messages": […]}, or the list alone. A file that cannot be used changes nothing. */
int dialog_save(const struct dialog *dialog, const char *path);
int dialog_load(struct dialog *dialog, const char *path);

enum reply_end { REPLY_DONE, REPLY_LIMIT, REPLY_INTERRUPTED, REPLY_FULL, REPLY_FAILED };

/* Streams the answer to the last message to standard output and adds it to the messages. When the context is full the
 * oldest messages are forgotten. Ctrl-C ends the reply, and what was said remains. After REPLY_FAILED, with the
 * message printed, and after an interruption before the first word the user's message is gone. */
enum reply_end dialog_reply(struct dialog *dialog);

#endif

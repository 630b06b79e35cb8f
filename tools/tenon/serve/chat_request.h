/* What the interfaces that speak in messages share; they translate their requests to the chat completion's form. */
#ifndef TENON_SERVE_CHAT_H
#define TENON_SERVE_CHAT_H

#include "serve.h"

/* Renders body's messages (with tools, tool_choice …). */
bool chat_prompt(struct served *served, json_t *body, tn_chat_prompt **prompt, struct problem *problem);
/* Adds n jobs to a request, ready to submit. n_top as in struct job. */
bool chat_jobs(struct served *served, struct request *request, json_t *body, int64_t n, int64_t n_top,
               struct problem *problem);
/* Answers a body of another interface: `translate` makes a chat request of it, or says what is wrong. */
void serve_translated(struct served *served, struct evhttp_request *http, json_t *body,
                      json_t *(*translate)(json_t *body, struct problem *problem), const struct wording *wording,
                      const char *prefix);
/* Takes a piece apart; at the last one also what the parser still holds. */
bool chat_feed(struct job *job, const struct piece *piece, tn_chat_event_fn on_event, void *user);
json_t *chat_message(struct job *job); /* the whole message, OpenAI's form */

#endif

/* Shared by the chat APIs, which translate their requests to the form of chat completions. */
#ifndef TENON_SERVE_CHAT_H
#define TENON_SERVE_CHAT_H

#include "serve/serve.h"

/* Renders the messages of a body, with its tools, tool_choice and so on. */
bool chat_prompt(struct served *served, json_t *body, tn_chat_prompt **prompt, struct problem *problem);
bool chat_tokens(struct served *served, const tn_chat_prompt *prompt, tn_tokens *tokens, struct problem *problem);
/* Answers with the number of tokens of a body's prompt. `translate` NULL: the body is a chat completion's. */
void count_tokens(struct served *served, struct evhttp_request *http, json_t *body,
                  json_t *(*translate)(json_t *body, struct problem *problem), const char *object);
/* Adds n jobs to a request, ready to submit. n_top as in struct job. */
bool chat_jobs(struct served *served, struct request *request, json_t *body, int64_t n, int64_t n_top,
               struct problem *problem);
/* Serves a body of another API: `translate` turns it into a chat completion request, or sets the problem. */
void serve_translated(struct served *served, struct evhttp_request *http, json_t *body,
                      json_t *(*translate)(json_t *body, struct problem *problem),
                      const struct response_format *format, const char *prefix);
/* Parses a piece into events; after the last piece, this includes the text that the parser has held back. */
bool chat_feed(struct job *job, const struct piece *piece, tn_chat_event_fn on_event, void *user);
json_t *chat_message(struct job *job); /* the whole message in OpenAI's form */

#endif

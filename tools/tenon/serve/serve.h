/* tenon serve: what its files share. The HTTP thread owns requests, connections and JSON; every loaded model has an
 * engine thread that owns its session and slots. They meet in two queues under one lock: jobs go in, pieces come out.
 */
#ifndef TENON_SERVE_H
#define TENON_SERVE_H

#include "cli/cli.h"
#include "engine/sampling.h"

#include "tenon/chat.h"
#include "tenon/generate.h"

#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct server;
struct served;
struct request;

enum { MAX_TOP = 128, MAX_STOPS = 32, MAX_CHOICES = 64, MAX_INPUTS = 2048 };

/* ---- Jobs ---- */

enum finish { FINISH_NONE, FINISH_EOS, FINISH_WORD, FINISH_LIMIT, FINISH_CANCELLED, FINISH_ERROR };

enum slot_action { SLOT_NOTHING, SLOT_SAVE, SLOT_RESTORE, SLOT_ERASE };

struct job_stats {
    int32_t n_cached, n_prompt, n_predicted;
    double prompt_ms, predicted_ms;
    bool truncated; /* the context ended before the request did */
    uint64_t seed;
};

/* One text to continue. Made and freed by the HTTP thread; between submission and its last piece the engine thread
 * works on it, and the HTTP thread touches only the two flags and the part at the end. */
struct job {
    struct job *next; /* in the queue */
    struct request *request;
    size_t index; /* among the request's jobs */

    tn_tokens prompt;
    tn_sampler *sampler;
    tn_sampler_params sampling; /* what it was made of, to be shown */
    tn_generator *generator;    /* of the continuation; uses the sampler */
    int32_t n_predict;
    int32_t n_top;     /* alternatives to report per token; -1: no log-probabilities */
    bool score_prompt; /* report the prompt's tokens as well */
    bool ignore_end;   /* go on after the end of the text */
    bool no_cache;     /* do not reuse what a slot has computed */
    bool embed;        /* the prompt's embedding instead of its continuation */
    char *stops[MAX_STOPS];
    size_t n_stops, n_user_stops; /* the user's first, then the template's end of turn */

    /* Instead of a text: something to do with a slot. `path` is where its state is kept. */
    enum slot_action action;
    int slot;
    char *path;

    atomic_bool cancelled, paused;

    /* The HTTP thread's, filled from the pieces. */
    tn_text text;
    json_t *tokens;   /* ids written */
    json_t *logprobs; /* array in the form of the interface */
    float *vector;    /* the embedding */
    size_t n_vector;
    tn_chat_parser *parser;
    enum finish finish;
    char stop_word[128];
    struct job_stats stats;
    size_t text_offset; /* of the next token, for text_completion's logprobs */
    bool done, announced;
    size_t user;     /* for the interface */
    int block_kind;  /* of the part of a message that is being sent; 0: none */
    size_t n_blocks; /* parts begun */
};

/* What the engine says about a job. The last one has `finish` set; after it the job is the HTTP thread's again. */
struct piece {
    struct piece *next;
    struct job *job;
    enum finish finish;
    bool of_prompt, has_logprob;
    tn_token token; /* TN_TOKEN_NONE: text only */
    float logprob;
    char *text; /* valid UTF-8; may be empty while a stop word is possible */
    size_t length;
    char stop_word[128];
    char error[256];
    float *vector; /* of the last piece: the embedding, now the job's */
    size_t n_vector;
    struct job_stats stats;
    size_t n_top;
    tn_token_prob top[];
};

/* ---- Engines (load.c, batch.c, embedder.c) ---- */

/* What the HTTP thread may know about an engine, copied under the lock. */
struct slot_view {
    bool busy;
    int32_t n_prompt, n_done, n_cached, n_predicted, n_remaining;
    uint64_t task;
    tn_sampler_params sampling; /* of the job, if busy */
    int32_t n_predict;
};
struct engine_view {
    tn_session_stats stats;
    tn_cache_usage cache;
    int32_t *map; /* owner of every cell */
    tn_fit used;  /* what is taken; devices' array belongs to the view */
    uint64_t n_prompt, n_predicted, n_decodes, n_busy_slots;
    double prompt_seconds, predicted_seconds;
    struct slot_view *slots;
};

enum phase { PHASE_ABSENT, PHASE_LOADING, PHASE_READY, PHASE_STOPPING, PHASE_FAILED };
enum room { ROOM_NOT_ASKED, ROOM_WANTED, ROOM_MADE, ROOM_NONE };

struct engine;
struct parked;

/* A model that is offered, loaded or not. */
struct served {
    struct server *server;
    char path[4096], alias[256];
    atomic_int phase;
    atomic_bool ended; /* the thread has nothing more to do */

    /* The HTTP thread's. */
    struct event *outbox_ready;
    struct parked *parked; /* requests that wait for the model to be loaded */
    size_t n_alive;        /* requests that are answered by it */
    uint64_t last_used;
    struct served *makes_room_for;
    bool has_thread;
    pthread_t thread;

    /* Set by the engine thread before PHASE_READY, constant from then on; before PHASE_FAILED: why and how it failed.
     */
    tn_model *model;
    tn_session *session, *embedder; /* the engine thread's; NULL: not offered */
    const tn_tokenizer *tokenizer;
    tn_chat_template *chat;
    tn_pieces *pieces;
    tn_model_info info;
    int32_t n_ctx, n_embd, embed_limit; /* floats of an embedding; most tokens of a text to embed */
    tn_fit planned;
    atomic_size_t planned_bytes; /* over all devices, for the limit */
    char *plan_svg;              /* the plan as a picture, or NULL */
    size_t plan_svg_length;
    struct engine *engine;
    tn_status status;
    char error[512];
    int exit_code;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *queue, **queue_end;
    int n_queued, n_embed_queued;
    struct piece *outbox, **outbox_end;
    bool posted;                 /* the engine thread's: something since it last said so */
    bool ended_some;             /* and an end among it */
    _Atomic uint64_t call_after; /* the HTTP thread would rather not be called before this time */
    struct engine_view view;
    enum room room; /* asked by a thread that loads, answered by the HTTP thread */
};

/* Starts the thread, which loads the model first. */
int engine_start(struct served *served);
void engine_wake(struct served *served);
/* Waits for the thread and frees everything of the model's; it is PHASE_ABSENT then. */
void engine_join(struct served *served);
/* False when the queue is full; nothing is submitted then. */
bool engine_submit(struct served *served, struct job *const *jobs, size_t count);

/* ---- Server ---- */

struct server {
    const struct args *args;
    struct event_base *base;
    struct evhttp *http;
    char *keys[64];
    size_t n_keys;
    int n_slots, queue_limit;
    double timeout;
    bool show_metrics, show_slots, log_requests;
    bool embeddings; /* asked for; encoders make them anyway */
    const char *slot_path;
    char *chat_template; /* instead of the models' own; NULL: theirs */
    int32_t default_predict;
    tn_sampler_params sampling;
    tn_session_params params;
    time_t started;
    struct request *requests; /* alive, for pings and shutdown */
    uint64_t n_requests;
    bool stopping;
    bool collecting; /* streams: see send_chunk */

    struct served **models;
    size_t n_models;
    bool on_demand;         /* models come and go; otherwise there is one, and the program ends when it fails */
    size_t memory_limit;    /* planned bytes of all loaded models together; 0: what the devices have free */
    struct served *loading; /* one at a time, or they could not plan on what is free */
    struct served *current; /* the one used last, for requests that name none */
};

/* ---- Models (models.c) ---- */

typedef void handler(struct served *served, struct evhttp_request *http, json_t *body);

struct served *models_add(struct server *server, const char *path, const char *alias); /* NULL without memory */
int models_scan(struct server *server, const char *folder);
struct served *models_find(struct server *server, const char *name); /* NULL: there is none of this name */
/* Keeps a request until its model is loaded. Takes a reference to the body. */
void models_park(struct served *served, struct evhttp_request *http, handler *handle, bool writes, json_t *body);
/* What an engine thread has to say apart from pieces: loaded, failed, in need of room, at its end. */
void models_event(struct served *served);
void models_stop(struct server *server); /* asks all threads to end */
void models_free(struct server *server);

/* ---- Requests (http.c) ---- */

/* How an interface words its answers. */
struct wording {
    /* A piece of a job arrived (in a stream: send what it says). */
    void (*piece)(struct request *request, struct job *job, const struct piece *piece);
    /* Every job is done: send the answer, or the end of the stream. */
    void (*end)(struct request *request);
};

struct request {
    struct request *next, *previous;
    struct served *served;
    struct evhttp_request *http; /* NULL once the client is gone */
    const struct wording *wording;
    char id[48];
    time_t created;
    uint64_t begin, last_sent;
    bool stream, started, chunked, include_usage, echo, want_logprobs;
    struct job **jobs;
    size_t n_jobs, n_done;
    char failed[256]; /* an engine error, to be reported at the end */
    json_t *extra;    /* the interface's own notes */
    char *head;       /* and how all its events begin, from malloc */
    tn_chat_prompt *prompt;
    size_t n_unsent; /* bytes of a stream that are collected */
    char unsent[4096];
};

/* An answer's failure, filled by the readers of requests. */
struct problem {
    int code;
    const char *type;
    char text[512];
    json_t *more; /* further members of the error object */
};
/* Always returns false, so that readers can end with it. */
bool problem_set(struct problem *problem, int code, const char *format, ...) TN_PRINTF(3, 4);
bool problem_status(struct problem *problem, tn_status status, const char *what);
json_t *problem_json(const struct problem *problem);

void reply_json(struct server *server, struct evhttp_request *http, int code, json_t *json); /* takes the reference */
void reply_text(struct server *server, struct evhttp_request *http, int code, const char *type, const void *text,
                size_t length);
void reply_problem(struct server *server, struct evhttp_request *http, struct problem *problem);
/* The body as a JSON object, or NULL after an answer. */
json_t *read_body(struct server *server, struct evhttp_request *http);

/* A request and its jobs; jobs are added with prompt and sampler ready. request_submit() takes over: the request
 * answers by itself from then on, also when it fails. */
struct request *request_new(struct served *served, struct evhttp_request *http, const struct wording *wording,
                            const char *id_prefix);
struct job *request_add_job(struct request *request); /* NULL without memory */
void request_submit(struct request *request);
void request_free(struct request *request);

/* While an answer is made, the connection is only watched for its end, which `closed` hears about. */
void watch_close(struct server *server, struct evhttp_request *http,
                 void (*closed)(struct evhttp_connection *connection, void *user), void *user);
void unwatch_close(struct server *server, struct evhttp_request *http);

/* Detaches the connection for a final answer; NULL when the client has gone. */
struct evhttp_request *request_take(struct request *request);

/* One SSE event; takes the JSON's reference. `event` may be NULL. */
void stream_send(struct request *request, const char *event, json_t *json);
void stream_send_text(struct request *request, const char *event, const char *json, size_t length);
void stream_send_raw(struct request *request, const char *text);
void stream_end(struct request *request);

/* ---- Fields (fields.c) ---- */

/* null counts as absent. Each returns false with the problem set when a field is there but wrong. */
bool field_real(json_t *body, const char *name, double min, double max, double *out, struct problem *problem);
bool field_int(json_t *body, const char *name, int64_t min, int64_t max, int64_t *out, struct problem *problem);
bool field_bool(json_t *body, const char *name, bool *out, struct problem *problem);
bool field_text(json_t *body, const char *name, const char **out, struct problem *problem);

/* Sampling, stop words, limits and grammar of a job whose prompt is set. `gbnf` (with an optional trigger) comes from
 * the tools of a chat. */
bool job_read(struct served *served, struct job *job, json_t *body, const char *gbnf, const char *trigger,
              struct problem *problem);
/* The prompts of a completion: text, token list, or a list of these. Appends to lists[*count]. */
bool prompts_read(struct served *served, json_t *prompt, tn_tokens *lists, size_t *count, size_t capacity,
                  int32_t limit, struct problem *problem);
/* Whether a prompt has less than `limit` tokens, and any at all. */
bool prompt_check(const tn_tokens *prompt, int32_t limit, struct problem *problem);
json_t *token_text_json(struct served *served, tn_token token); /* U+FFFD for what is no UTF-8 */
json_t *token_bytes_json(struct served *served, tn_token token);
json_t *usage_json(const struct request *request);
json_t *timings_json(const struct job *job);
/* Sampling parameters under the names that requests use. */
json_t *sampling_json(const tn_sampler_params *params, uint64_t seed, int32_t n_predict);

/* ---- Interfaces ---- */

handler serve_completions, serve_native, serve_chat, serve_messages, serve_responses; /* generation */
handler serve_template, serve_tokenize, serve_detokenize, serve_embeddings;           /* text */
handler serve_health, serve_models, serve_props, serve_slots, serve_slot_action, serve_metrics, serve_memory,
    serve_plan, serve_tokenizer_info;

/* The page's files, embedded by CMake. */
struct web_file {
    const char *path, *type;
    const unsigned char *bytes;
    size_t length;
};
extern const struct web_file web_files[];
extern const size_t n_web_files;

#endif

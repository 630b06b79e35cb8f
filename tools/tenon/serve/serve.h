/* The HTTP server: types shared by its files. The HTTP thread owns requests and connections. Two threads prepare
 * requests for it (http/prepare.c): they own a request from its arrival until it is submitted or answered. Every
 * loaded model has an engine thread, which owns its sessions and slots. Engine and HTTP thread exchange data through
 * two queues under one lock: jobs go to the engine, pieces of output come back. */
#ifndef TENON_SERVE_H
#define TENON_SERVE_H

#include "cli/cli.h"
#include "engine/adapter_options.h"
#include "engine/sampling.h"

#include "tenon/budget.h"
#include "tenon/chat.h"
#include "tenon/cpu.h"
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

enum { MAX_TOP = 128, MAX_STOPS = 32, MAX_CHOICES = 64, MAX_INPUTS = 2048, TREE_ENTRIES = 128 };

/* ---- Jobs ---- */

enum finish { FINISH_NONE, FINISH_EOS, FINISH_WORD, FINISH_LIMIT, FINISH_CANCELLED, FINISH_ERROR };

enum slot_action { SLOT_NOTHING, SLOT_SAVE, SLOT_RESTORE, SLOT_ERASE };

struct job_stats {
    int32_t n_cached, n_prompt, n_predicted;
    int32_t n_done;                /* tokens of the prompt that are in the KV cache, with the cached ones */
    int32_t n_drafted, n_accepted; /* tokens that were guessed, and right */
    int id_slot;
    double prompt_ms, predicted_ms;
    int error_code; /* of FINISH_ERROR, as an HTTP status; 0: 500 */
    bool truncated; /* the context was full before the request was complete: it ended, or was shifted */
    uint64_t seed;
};

/* One text to continue. The HTTP thread makes and frees it. From submission to its last piece it belongs to the
 * engine thread; meanwhile the HTTP thread uses only the two flags and the members below them. */
struct job {
    struct job *next; /* in the queue */
    struct request *request;
    size_t index; /* among the request's jobs */

    tn_tokens prompt;
    tn_sampler *sampler;
    tn_sampler_params sampling; /* what the sampler was made from, for reports */
    tn_generator *generator;    /* of the continuation; uses the sampler */
    int32_t n_predict;
    int32_t n_keep;                 /* tokens that a context shift keeps; negative: the prompt */
    int32_t n_top;                  /* alternatives to report per token; -1: no log-probabilities */
    bool score_prompt;              /* report the prompt's tokens as well */
    bool ignore_end;                /* continue after an end-of-text token */
    int32_t guess_max;              /* max tokens that are guessed at a time; -1: as the server says, 0: none */
    int32_t guess_min;              /* shorter guesses are not used */
    float guess_p_min;              /* a guess ends before a token that is less sure */
    bool no_cache;                  /* neither begin with a kept prefix nor leave one */
    uint64_t key;                   /* of the prefixes that it may take */
    float scales[TN_ADAPTERS_MOST]; /* of the model's adapters */
    bool until_full;                /* it has no limit of its own: it ends with the context */
    bool progress, timings;         /* report every batch of the prompt; times with every token */
    bool sampled_probs;             /* alternatives are those that the samplers left, not the model's own */
    bool embed;                     /* compute the prompt's embedding instead of continuing it */
    char *stops[MAX_STOPS];
    size_t n_stops, n_user_stops; /* the user's first, then the template's end of turn */

    int slot; /* the one it asks for; -1: any */
    /* Instead of a text: an action on the slot. `path` is the file of its state. */
    enum slot_action action;
    char *path;

    atomic_bool cancelled, paused, preempted;

    tn_logit_bias *biases; /* of the sampler, for reports */
    size_t n_biases;

    /* For the HTTP thread, filled from the pieces. */
    tn_text text;
    bool has_new_line; /* in the generated text */
    json_t *tokens;    /* generated ids */
    json_t *logprobs;  /* array in the format of the API */
    float *vector;     /* the embedding */
    size_t n_vector;
    tn_chat_parser *parser;
    enum finish finish;
    char stop_word[128];
    struct job_stats stats;
    size_t text_offset; /* of the next token, for text_completion's logprobs */
    bool done, announced;
    size_t user;     /* for the API's own use */
    int block_kind;  /* of the message part being sent; 0: none */
    size_t n_blocks; /* parts started so far */
};

/* Output of the engine for a job. The last piece has `finish` set; after it the job belongs to the HTTP thread again.
 */
struct piece {
    struct piece *next;
    struct job *job;
    enum finish finish;
    bool of_prompt, has_logprob;
    bool progress;  /* progress of the prompt: only `stats` is valid */
    int error_code; /* of FINISH_ERROR, as an HTTP status */
    tn_token token; /* TN_TOKEN_NONE: text only */
    float logprob;
    char *text; /* valid UTF-8; may be empty while a stop word is possible */
    size_t length;
    char stop_word[128];
    char error[256];
    float *vector; /* in the last piece: the embedding; ownership passes to the job */
    size_t n_vector;
    struct job_stats stats;
    size_t n_top;
    tn_token_prob top[];
};

/* ---- Engines (load.c, batch.c, embedder.c) ---- */

/* A copy of an engine's state for the HTTP thread, made under the lock. */
struct slot_view {
    bool busy, stalled; /* stalled: preempted until it fits again */
    int32_t n_pages;    /* in which no other slot has cells */
    int32_t n_prompt, n_done, n_cached, n_predicted, n_remaining;
    uint64_t task;
    tn_sampler_params sampling; /* of the job, when busy */
    int32_t n_predict;
};
struct engine_view {
    tn_session_stats stats;
    tn_cache_usage cache;
    tn_spec_stats guesses;
    int32_t *map;                                       /* owner of every cell: a slot, or a kept prefix */
    int32_t *page_map;                                  /* owner of every page (tn_session_page_map) */
    int32_t n_shared_pages, n_kept_pages, n_free_pages; /* of several slots; only of kept prefixes */
    tn_prefix_info *tree;                               /* of slots and kept prefixes, when it was last asked for */
    int32_t n_tree;
    tn_prefix_usage prefixes;
    tn_tier_usage tiers;
    tn_fit used; /* memory in use; the view owns its array of devices */
    uint64_t n_prompt, n_prompt_cached, n_predicted, n_decodes, n_busy_slots;
    uint64_t n_busy_sum, n_tokens_max; /* busy slots of all batches; most tokens of a request */
    uint64_t n_stalls, n_shifts;       /* preempted jobs; context shifts */
    double prompt_seconds, predicted_seconds;
    struct slot_view *slots;
};

/* The counters when the metrics were last read. */
struct scraped_view {
    uint64_t n_prompt, n_predicted;
    double prompt_seconds, predicted_seconds;
};

enum phase { PHASE_ABSENT, PHASE_LOADING, PHASE_READY, PHASE_STOPPING, PHASE_FAILED };
/* A loading thread requests memory; the HTTP thread unloads an idle model, or answers that there is none. */
enum memory_request { MEMORY_NOT_REQUESTED, MEMORY_REQUESTED, MEMORY_FREED, MEMORY_UNAVAILABLE };

struct engine;
struct waiting_request;

/* A model that the server offers, loaded or not. */
struct served {
    struct server *server;
    char path[4096], alias[256];
    atomic_int phase;
    atomic_bool ended; /* the engine thread has finished */

    /* For the HTTP thread only. */
    struct event *outbox_ready;
    struct waiting_request *waiting; /* requests that wait until the model is loaded */
    size_t n_alive;                  /* requests that use it */
    int n_waiting_for_cells;         /* of them; see waits_for_cells */
    uint64_t last_used, asked;       /* when it was last used; since when requests wait for it */
    char repo[256];                  /* OWNER/NAME[:QUANT] that it came from, or "" */
    struct served *unloaded_for;     /* the model that needs its memory */
    bool wanted;                     /* to be loaded although no request waits for it */
    bool hidden;                     /* not listed, but served by name */
    bool from_cache;                 /* a download, found in the cache */
    bool missing;                    /* not found in the last scan: removed when it is unloaded */
    bool sleeping;                   /* unloaded because it was idle; the next request loads it */
    json_t *props;                   /* of /props, while it sleeps */
    char *last_metrics[2];           /* of /metrics, while it sleeps: first answer, further ones */
    struct scraped_view scraped;
    float scales[TN_ADAPTERS_MOST]; /* of its adapters, for requests that do not say; set before PHASE_READY */
    bool has_thread;
    pthread_t thread;

    /* Set by the engine thread before PHASE_READY and constant from then on; `status`, `error` and `exit_code` are
     * set before PHASE_FAILED. */
    tn_model *model;
    struct opened_adapters adapters;
    tn_session *session, *embedder; /* used by the engine thread only; NULL: not offered */
    const tn_tokenizer *tokenizer;
    tn_chat_template *chat;
    tn_pieces *pieces;
    tn_model_info info;
    int32_t n_pool, n_ctx;       /* tokens of the KV cache, which the slots share; that one request may use */
    char context_note[128];      /* if the context was chosen automatically: the reason for n_pool */
    bool shifts;                 /* a request whose context is full continues without its oldest tokens */
    int32_t n_embd, embed_limit; /* floats of an embedding; max tokens of a text to embed */
    bool per_token;              /* an embedding is a vector per token (--pooling none) */
    bool ranks;                  /* texts are ranked instead: the embedding is one relevance */
    tn_fit planned;
    atomic_size_t planned_bytes;   /* on all devices, for --models-memory */
    char *plan_svg, *plan_json;    /* the plan as a picture and as a list of tensors, or NULL */
    tn_session_params used_params; /* of the session that is drawn */
    struct engine *engine;
    tn_status status;
    char error[512];
    int exit_code;

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *queue, **queue_end;
    int n_queued, n_embed_queued;
    struct piece *outbox, **outbox_end;
    bool tree_wanted;            /* a client views the tree of prefixes: the engine publishes it once */
    bool state_wanted;           /* a client views slots or memory: the engine publishes them sooner */
    struct piece *posted;        /* engine thread: pieces since it last woke the HTTP thread, … */
    struct piece **posted_end;   /* … which become the end of the outbox then */
    bool ended_some;             /* engine thread: a last piece among them */
    _Atomic uint64_t call_after; /* the engine should not wake the HTTP thread before this time */
    struct engine_view view;
    enum memory_request memory;     /* set by the loading thread, answered by the HTTP thread */
    struct frontier_work *frontier; /* for the HTTP thread only; NULL: nobody has asked for the picture */
};

void lost_file_watch(void); /* once, before models are loaded: see batch/lost_file.c */
/* Starts the engine thread, which first loads the model. */
int engine_start(struct served *served);
void engine_wake(struct served *served);
/* Waits for the engine thread and unloads the model, which is PHASE_ABSENT then. */
void engine_join(struct served *served);
/* Submits all jobs, or none of them when the queue is full (false). */
bool engine_submit(struct served *served, struct job *const *jobs, size_t count);

/* ---- Server ---- */

/* All connections; see http/guard.c. */
struct guards {
    struct guard *first;
    size_t count, max_count;
    size_t max_head;         /* bytes of the headers of a request */
    uint64_t max_body;       /* bytes of a body */
    uint64_t held, max_held; /* bytes of bodies that have arrived and may still be in memory */
    uint64_t released;       /* bytes of finished bodies since memory was last returned to the system */
};

struct server {
    const struct args *args;
    tn_net *net; /* to the other ranks, or NULL; only the engine thread uses it */
    struct event_base *base;
    struct evhttp *http;
    struct evconnlistener *listener; /* NULL when the server is stopping */
    struct tls *tls;                 /* NULL: plain HTTP */
    struct guards guards;
    char *keys[64];
    size_t n_keys;
    int n_slots, queue_limit;
    int32_t admit_tokens; /* tokens of an answer that must fit before a request starts */
    bool unified;         /* a request may use the whole context, not only its slot's share */
    int32_t keep;         /* tokens that a context shift keeps, for requests that do not say */
    double timeout;
    bool show_metrics, show_slots, log_requests;
    bool embeddings; /* --embedding; encoders always make them */
    const char *slot_path;
    bool loopback; /* it listens at this machine's own address only */
    const char
        *origins; /* of web sites whose scripts may read answers: "*", or a list; "localhost" is this machine */
    const char *aliases, *tags;   /* of the only model, separated by commas; NULL: none */
    const char *prefix;           /* of all paths, "" or "/NAME" */
    int32_t n_prefixes;           /* that a session keeps */
    char *cache_disk;             /* folder of prefixes on disk, as in params; NULL: none */
    bool share_prefixes;          /* between API keys */
    char *chat_template;          /* replaces the models' own; NULL: not given */
    const char *reasoning_format; /* for requests that do not say; NULL: as deepseek */
    bool verbose;                 /* answers have a member __verbose */
    const char *chat_format;      /* of answers; NULL: as the template shows */
    tn_threadpool_params threads; /* of every engine */
    json_t *variables;            /* for chat templates, from the options */
    bool web_ui, ignore_end;
    char *grammar;           /* GBNF for requests that bring none, or NULL */
    bool continues_messages; /* a last message of the assistant is the beginning of the answer */
    bool suffix_first;       /* the order of /infill */
    int ping_seconds;        /* between comments in idle event streams; -1: none */
    int32_t default_predict;
    tn_sampler_params sampling;
    tn_session_params params;
    tn_budget_params budget; /* where params has budgets */
    time_t started;
    struct request *requests; /* unfinished, for pings and shutdown */
    uint64_t n_requests;
    bool stopping;
    bool collecting; /* text of event streams is collected, see event_stream.c */

    struct recording *recordings;      /* event streams that clients can come back to */
    struct preparer *preparers;        /* threads that prepare requests; NULL: the HTTP thread does */
    struct models_listener *listeners; /* of GET /models/sse */
    int n_downloads;                   /* under way */
    bool started_once;                 /* the list of models was read */
    struct served **models;
    size_t n_models;
    int models_max;     /* loaded at the same time; 0: no limit but memory */
    bool autoload;      /* a request loads the model that it names */
    bool use_cache;     /* downloaded models are offered */
    double sleep_after; /* seconds without requests after which the only model is unloaded; 0: never */
    bool on_demand; /* --models-dir; otherwise there is one model, and the program ends when it cannot be loaded */
    size_t memory_limit;    /* planned bytes of all loaded models together; 0: the devices' free memory */
    struct served *loading; /* one at a time, because a plan assumes that free memory does not change */
    struct served *current; /* the last one used, for requests that name none */
    struct fit_work *fit;   /* planning for POST /fit; NULL: none */
};

/* ---- Models (models.c) ---- */

typedef void handler(struct served *served, struct evhttp_request *http, json_t *body);

struct served *models_add(struct server *server, const char *path, const char *alias); /* NULL without memory */
int models_find_all(struct server *server); /* as the options say: folder, presets, cache; an exit code */
void models_load(struct served *served);    /* without a request that waits for it */
void models_unload(struct served *served);  /* when its requests have ended */
struct served *models_find(struct server *server, const char *name); /* NULL when there is none of this name */
/* Holds a request until its model is loaded. Takes a reference to the body. */
void models_wait(struct served *served, struct evhttp_request *http, handler *handle, bool generates, json_t *body);
/* Handles changes of an engine thread: loaded, failed, memory requested, finished. */
void models_event(struct served *served);
void models_reload(struct server *server);       /* reads folder, presets and cache again */
void models_tick(struct server *server);         /* ten times a second: sleep */
void models_request_done(struct served *served); /* a request has ended: another model may have waited for that */
struct problem;
bool models_download(struct server *server, const char *repo, struct problem *problem);
bool models_delete(struct served *served, struct problem *problem); /* the files of a download */
void models_forget_listeners(struct server *server);
void models_stop(struct server *server); /* tells all engine threads to finish */
void models_free(struct server *server);

/* ---- Requests (request.c, reply.c, event_stream.c) ---- */

/* How an API writes its responses. */
struct response_format {
    /* A piece of a job arrived; in an event stream its text is sent. */
    void (*piece)(struct request *request, struct job *job, const struct piece *piece);
    /* All jobs are done: sends the response or the end of the event stream. */
    void (*end)(struct request *request);
    /* In an event stream, where the request asks for it: how far the prompt is. NULL: not reported. */
    void (*progress)(struct request *request, struct job *job);
};

struct request {
    struct request *next, *previous;
    bool linked;                 /* it is in the server's list */
    bool waits_for_cells;        /* a job is preempted, although its client reads */
    struct recording *recording; /* of its event stream, which goes on without a client; NULL: none */
    struct served *served;
    struct evhttp_request *http; /* NULL once the client has disconnected */
    const struct response_format *format;
    char id[48];
    time_t created;
    uint64_t key; /* of the prefixes that its jobs may take */
    uint64_t begin, last_sent;
    bool stream, started, chunked, include_usage, echo, want_logprobs, verbose;
    bool lines; /* its stream is lines of JSON, not events */
    struct job **jobs;
    size_t n_jobs, n_done;
    char failed[256]; /* an engine error, to be reported at the end */
    int failed_code;  /* its HTTP status; 0: 500 */
    json_t *extra;    /* for the API's own use */
    char *head;       /* beginning of all its events, from malloc */
    tn_chat_prompt *prompt;
    tn_grammar_state *grammar; /* of its jobs, at the beginning; NULL: none */
    bool grammar_read;
    char *schema_notes; /* keywords of its schema that are ignored, or NULL */
    size_t n_unsent;    /* collected bytes of an event stream */
    char unsent[4096];
};

/* An error response, filled in by the functions that read a request. */
struct problem {
    int code;
    const char *type;
    char text[512];
    json_t *more; /* further members of the error object */
};
/* Return false, so that a reading function can end with them. */
bool problem_set(struct problem *problem, int code, const char *format, ...) TN_PRINTF(3, 4);
bool problem_status(struct problem *problem, tn_status status, const char *what);
/* Removes the folder of `path` wherever the text has it: clients learn the names of files, not where they are. */
void hide_folder(char *text, const char *path);
json_t *problem_json(const struct problem *problem);
json_t *problem_for(struct evhttp_request *http,
                    const struct problem *problem); /* in the form of the API it called */

void reply_json(struct server *server, struct evhttp_request *http, int code, json_t *json); /* takes the reference */
void reply_text(struct server *server, struct evhttp_request *http, int code, const char *type, const void *text,
                size_t length);
void reply_problem(struct server *server, struct evhttp_request *http, struct problem *problem);
/* The body as a JSON object, or as a list, or NULL after an error response. */
json_t *read_body(struct server *server, struct evhttp_request *http, bool is_list);

/* A request and its jobs. After request_submit() the request answers and frees itself, also on failure. */
struct request *request_new(struct served *served, struct evhttp_request *http, const struct response_format *format,
                            const char *id_prefix);
struct job *request_add_job(struct request *request); /* NULL without memory */
void request_submit(struct request *request);
/* Ends a handler: submits the request when `fine`, else frees it (NULL is allowed) and answers with the problem. */
void request_start(struct request *request, struct evhttp_request *http, struct served *served, bool fine,
                   struct problem *problem);
void request_free(struct request *request);

/* Until a response is sent, the connection is only watched for its end, which calls `closed`. */
void watch_close(struct server *server, struct evhttp_request *http,
                 void (*closed)(struct evhttp_connection *connection, void *user), void *user);
void unwatch_close(struct server *server, struct evhttp_request *http);

/* Detaches the connection for the final response; NULL when the client has disconnected. */
struct evhttp_request *request_take(struct request *request);

/* One SSE event; takes the JSON's reference. `event` may be NULL. */
void stream_send(struct request *request, const char *event, json_t *json);
void stream_send_text(struct request *request, const char *event, const char *json, size_t length);
void stream_send_raw(struct request *request, const char *text);
void stream_end(struct request *request);

/* ---- Fields (fields.c) ---- */

/* Fields of a request; null counts as absent. Each returns false, with the problem set, when the value is invalid. */
bool field_real(json_t *body, const char *name, double min, double max, double *out, struct problem *problem);
bool field_int(json_t *body, const char *name, int64_t min, int64_t max, int64_t *out, struct problem *problem);
bool field_bool(json_t *body, const char *name, bool *out, struct problem *problem);
bool field_text(json_t *body, const char *name, const char **out, struct problem *problem);
bool field_object(json_t *body, const char *name, json_t **out, struct problem *problem);
bool field_list(json_t *body, const char *name, json_t **out, struct problem *problem);

/* Reads sampling, stop words, limits and grammar of a job whose prompt is set. `gbnf`, with an optional trigger, is
 * the grammar of the chat's tools. */
bool job_read(struct served *served, struct job *job, json_t *body, const char *gbnf, const char *trigger,
              struct problem *problem);
/* Reads the prompts of a completion (text, list of tokens, or a list of these) into lists[*count] and up. */
bool prompts_read(struct served *served, json_t *prompt, tn_tokens *lists, size_t *count, size_t capacity,
                  int32_t limit, struct problem *problem);
/* Scales of adapters, [{id, scale}]: those that are not listed are 0. `list` NULL: they stay as they are. */
bool scales_read(const struct served *served, json_t *list, float *scales, struct problem *problem);
/* Checks that a prompt has at least one token and fewer than `limit`. */
bool prompt_check(const tn_tokens *prompt, int32_t limit, struct problem *problem);
json_t *token_text_json(struct served *served, tn_token token); /* U+FFFD for invalid UTF-8 */
json_t *token_bytes_json(struct served *served, tn_token token);
json_t *usage_json(const struct request *request);
json_t *timings_json(const struct job *job);
/* id_slot, where the request has asked for one, and a note on ignored keywords of its schema. */
void answer_slot(const struct request *request, json_t *answer);
void answer_note(const struct request *request, json_t *answer); /* the note alone */
/* Sampling parameters under their names in requests. */
json_t *sampling_json(const tn_sampler_params *params, uint64_t seed, int32_t n_predict);
/* Opaque, the same for all answers of this build. */
const char *system_fingerprint(void);
json_t *props_json(struct served *served);
char *metrics_text(struct server *server); /* from malloc; NULL without memory */
/* A finished job in the form of /completion (native.c). */
json_t *native_json(struct request *request, struct job *job);
json_t *progress_json(const struct job *job);
/* A mixed prompt of texts and token ids for filling in the text between two others; NULL with the problem set.
 * `extra` is a list of other files, `begun` the beginning of the text to fill in. */
json_t *infill_prompt(const struct served *served, json_t *extra, const char *prefix, const char *suffix,
                      const char *begun, struct problem *problem);
/* JSON has no minus infinity, the log-probability of a banned token. */
json_t *logprob_json(double value);

/* ---- Handlers ---- */

handler serve_completions, serve_native, serve_infill, serve_chat, serve_messages, serve_responses; /* generation */
handler serve_models_events, serve_models_load, serve_models_unload, serve_models_download, serve_models_delete;
handler serve_chat_count, serve_message_count, serve_response_count;
handler serve_template, serve_tokenize, serve_detokenize, serve_embeddings, serve_rerank; /* text */
handler serve_native_embeddings, serve_predict, serve_recording, serve_recording_stop;
handler serve_ollama_chat, serve_ollama_generate, serve_ollama_tags, serve_ollama_running, serve_ollama_version,
    serve_ollama_show, serve_ollama_embed, serve_ollama_embeddings;
handler serve_adapters, serve_adapter_scales;
handler serve_health, serve_models, serve_model, serve_props, serve_slots, serve_slot_action, serve_metrics,
    serve_memory, serve_plan, serve_plan_list, serve_frontier, serve_fit, serve_tokenizer_info;
/* Ends the planning for the picture of memory against speed, and discards it; call before the model is unloaded. */
void frontier_forget(struct served *served);
void fit_forget(struct server *server); /* the same for the planning of /fit; before the server ends */

/* Files of the web UI, embedded by CMake. */
struct web_file {
    const char *path, *type;
    const unsigned char *bytes;
    size_t length;
    const char *tag; /* the ETag header: a quoted hash */
    bool compressed; /* bytes are gzip */
};
extern const struct web_file web_files[];
extern const size_t n_web_files;

#endif

/* A session inside: the KV cache, the graphs it runs, and the shared builder's interface. */
#ifndef TN_LLM_SESSION_INTERNAL_H
#define TN_LLM_SESSION_INTERNAL_H

#include "llm/model_internal.h"
#include "llm/placement.h"

#include "tenon/backend_impl.h"

/* ---- KV cache ------------------------------------------------------------------------------------------------- */

enum { TN__CACHE_FULL, TN__CACHE_WINDOW, TN__CACHE_GROUPS };

/* Which position and which sequences a cell holds. One set of cells serves all layers of a group. */
typedef struct tn__cells {
    int32_t n; /* 0: the group is not used */
    int32_t window;
    int32_t words;     /* of sequence bits */
    int32_t *meta;     /* [n][1 + words]: position (-1: empty), then bits; the layout of attention's k_pos */
    int32_t used, end; /* cells in use; one past the highest in use */
    int32_t *last;     /* by sequence: the cell it took last, -1 when that may have changed */
    uint32_t changes;  /* of meta so far */
    int32_t dirty_first, dirty_end; /* rows of meta not yet sent to the devices… */
    int32_t n_dirty;                /* …and which, as long as they are few */
    int32_t dirty[256];
} tn__cells;

typedef struct tn__kv_layer {
    tn_tensor *k, *v; /* [heads*size, cells] */
    int group, device;
} tn__kv_layer;

/* A piece of the cache's memory. */
typedef struct tn__kv_buffer {
    tn_buffer *buffer;
    size_t device;
} tn__kv_buffer;

typedef struct tn__kv {
    tn__cells groups[TN__CACHE_GROUPS];
    tn__kv_layer *layers;
    int32_t n_layer, n_seqs;
    size_t n_devices;
    tn_tensor **meta;    /* [group][device] on the device, or NULL */
    tn_tensor **factors; /* per device: a copy of the model's rope factors, or NULL: those themselves are there */
    const tn_tensor *factors_from;
    tn_tensor *found; /* where the graphs of one token leave the best next one, and the sum of its logits */
    int found_device;
    tn_arena *arena;
    tn__kv_buffer *buffers; /* as few per device as its largest allocation allows */
    size_t n_buffers;
    int32_t peak;
} tn__kv;

typedef struct tn__kv_params {
    const tn_model *model;
    int32_t n_ctx, n_ubatch, n_seqs;
    tn_type type_k, type_v;
    tn_buffer_type *const *types; /* per device */
    const int *device_of_layer;
    size_t n_devices;
    const tn_tensor *factors; /* rope factors that all layers share, or NULL, and where they are */
    int factors_device;
    int found_device; /* the output's */
} tn__kv_params;

tn_status tn__kv_new(const tn__kv_params *params, tn__kv *kv); /* tensors and cells; no device memory yet */
tn_status tn__kv_sizes(const tn__kv *kv, tn_buffer_type *const *types, size_t *sizes);
/* TN_E_TOO_BIG when a part of it is larger than the largest allocation of its memory. */
tn_status tn__kv_check(const tn__kv *kv, tn_buffer_type *const *types);
tn_status tn__kv_allocate(tn__kv *kv, tn_buffer_type *const *types);
void tn__kv_free(tn__kv *kv);
/* Finds cells for tokens, writes their metadata and the rows to write to (one list per group). */
tn_status tn__kv_take(tn__kv *kv, int32_t n, const int32_t *positions, const int32_t *seqs, int32_t *const *rows);
/* Undoes taking a cell for one token, of the only group there is. `last`: what the sequence had before. */
void tn__kv_give_back(tn__kv *kv, int32_t seq, int32_t cell, int32_t last, int32_t peak);
void tn__cells_touch(tn__cells *cells, int32_t cell); /* its metadata changed */
tn_status tn__kv_send_meta(tn__kv *kv);
void tn__kv_range(const tn__kv *kv, int group, int32_t range[2]);

/* ---- Graphs --------------------------------------------------------------------------------------------------- */

typedef enum tn__graph_kind {
    TN__GRAPH_LOGITS, /* tokens → logits of the wanted rows */
    TN__GRAPH_BEST,   /* tokens → the most likely tokens of the wanted rows */
    TN__GRAPH_NEXT,   /* the token that the graph before found → the most likely after it */
    TN__GRAPH_HIDDEN, /* tokens → normalised hidden states of the wanted rows */
    TN__GRAPH_RANK,   /* tokens → the classifier's scores of the wanted rows */
    TN__GRAPH_SHIFT,  /* cells of a cache group → the same cells, K rotated on; n_outputs is the group */
    TN__GRAPH_MOVE    /* cells of a cache group → other cells */
} tn__graph_kind;

typedef struct tn__shape {
    tn__graph_kind kind;
    int32_t n_tokens, n_outputs;
} tn__shape;

enum { TN__MOVE_CELLS = 256 }; /* moved at once */

/* One graph the session can run, with the tensors it sets and reads. */
typedef struct tn__graph_set {
    tn__shape shape;
    tn_arena *arena;
    tn_graph *graph;
    tn_tensor *tokens, *positions, *q_pos, *q_scale, *out_rows; /* inputs; NULL where not used */
    tn_tensor *rows[TN__CACHE_GROUPS], *range[TN__CACHE_GROUPS];
    tn_tensor *result;
    tn_tensor *sums; /* TN__GRAPH_BEST: of the rows' logits: finite if those are */
    uint64_t last_used;
    size_t n_tensors, capacity; /* of arena and graph, where they are known; 0: at most */
} tn__graph_set;
/* Graphs, with their schedules and plans, that a session remembers beside the reserved ones: enough for every size of
 * batch that streams make by themselves. Making one again costs about a millisecond, keeping one half a megabyte for
 * a dozen layers. */
enum { TN__GRAPHS_KEPT = 48 };

/* A greedy loop's next step, which the device does before the host asks for it (ahead.c). */
enum { TN__AHEAD_META = 64 };
typedef struct tn__ahead {
    bool can;              /* all is on one device that queues */
    bool looping;          /* the last batch was one token of which only the best next one was wanted: */
    int32_t seq, position; /* where it stands, */
    tn_token found;        /* and which was best after it */
    bool runs;             /* a step is queued that nobody has asked for yet, with the token after it */
    uint32_t changes;      /* of the cache when it was queued */
    int turn;              /* which of the two places it uses: one is being computed while one is being read */
    struct {
        tn_event *done;
        int32_t *found; /* the token and the sum, in memory the device can write to */
        int32_t meta[TN__AHEAD_META], q_pos[2], position, row, range[2];
        float q_scale;
    } places[2];
} tn__ahead;

/* Bytes a session needs on one device. */
typedef struct tn__device_plan {
    size_t weights, mapped, cache, compute, scratch, lower_bound;
    size_t missing; /* of compute and scratch: all, unless the scheduler is shared */
    int32_t n_layers;
} tn__device_plan;

/* Embeddings in the making. */
typedef struct tn__pool {
    float *rows;     /* the results: [results][size] */
    float *hidden;   /* [n_ubatch][size], what comes off the device */
    int32_t size;    /* floats per row; 0: the session gives logits */
    int32_t *row_of; /* per sequence: its result in this decode, or -1 */
    int32_t *counts; /* per result: tokens in the mean */
} tn__pool;

struct tn_session {
    tn_model *model;
    tn_session_params params;
    tn_sched *sched;
    size_t n_devices;     /* = backends of the scheduler */
    int *device_of_layer; /* n_layer + 2: input side, layers, output side */
    tn__placement place;
    bool together;            /* the embedding lies with the output, if that is off the host */
    tn_buffer_type **types;   /* per device */
    tn_buffer *stand_ins;     /* per device: of the unallocated cache, of unloaded weights, plain and packed */
    bool in_turn;             /* micro-batches run one after the other, wherever the layers are */
    bool pipelined;           /* several full ones may be under way */
    bool pack;                /* weights go to the memory they gain from… */
    int32_t pack_rows;        /* …when so many rows are multiplied at once */
    tn__device_plan *planned; /* per device */
    bool fits;
    tn__graph_set
        *reserved[5 + 2 * TN__CACHE_GROUPS]; /* prefill, decode, best, fewer, next, then shift and move per group */
    size_t n_reserved;
    tn__kv kv;
    tn__graph_set **sets;
    size_t n_sets, cap_sets;
    uint64_t set_clock;
    /* Staging of one micro-batch. */
    int32_t *positions, *padded_positions, *q_pos, *seqs, *out_rows, *rows[TN__CACHE_GROUPS];
    tn_token *tokens;
    float *q_scale;
    bool *wanted;
    int32_t move_from[TN__MOVE_CELLS], move_to[TN__MOVE_CELLS], move_delta[TN__MOVE_CELLS];
    int32_t *prompt_seqs; /* n_batch, for batches made here */
    bool *score_wanted;
    /* Results of the last decode. */
    float *logits;
    float *results;           /* of the last decode: `logits`, or where the graph left them; NULL: only `best` */
    tn_token *best;           /* behind the logits: a token a row, then the rows' sums */
    tn_buffer *pinned_logits; /* what they lie in, or NULL: the heap */
    int32_t n_results;
    tn__ahead ahead;
    tn__pool pool;
    /* The comfortable interface. */
    struct tn__stream *streams; /* per sequence */
    tn_session_stats stats;
};

float tn__query_scale(const tn__hparams *h, int32_t position);

/* Embeddings (embed.c). */
tn_status tn__pool_params(const tn_model *model, tn_session_params *params); /* fills in what "as the model" means */
tn_status tn__pool_new(tn_session *session);
void tn__pool_free(tn_session *session);
void tn__pool_start(tn_session *session); /* of a decode */
bool tn__pool_wants(const tn_session *session, const tn_batch *batch, int32_t i);
tn_status tn__pool_take(tn_session *session, const tn__graph_set *set, int32_t begin, int32_t n, int32_t kept);
void tn__pool_finish(tn_session *session);
tn__graph_kind tn__session_kind(const tn_session *session);        /* of its graphs from tokens on */
int32_t tn__rows_out(const tn_session *session, int32_t n_tokens); /* most rows such a graph gives */
int32_t tn__outputs_for(const tn_session *session, int32_t n_wanted, int32_t n_tokens);

/* Greedy loops (ahead.c). */
bool tn__ahead_possible(const tn_session *session); /* by where things are placed */
tn_status tn__ahead_new(tn_session *session, int32_t *found);
void tn__ahead_free(tn_session *session);
/* A token was decoded of which only the best next one was wanted: queues the step after it if this is a loop. */
void tn__ahead_go_on(tn_session *session, tn_token token);
/* Whether the queued step is the one that is wanted now; its result, and the step after it is queued. */
bool tn__ahead_serves(const tn_session *session, tn_token token);
tn_status tn__ahead_take(tn_session *session, int32_t found[2]);
void tn__ahead_stop(tn_session *session); /* before anything else computes or writes to devices */

tn_tensor *tn__rope_factors(const tn_session *session); /* that all layers share, or NULL */
/* Graphs that move cells; a group in which nothing needs to be done gets no graph. */
tn_status tn__build_move(const tn_session *session, tn__shape shape, tn__graph_set *set);
tn_status tn__build_graph(const tn_session *session, tn__shape shape, tn__graph_set *set);
/* Whether several runs of graphs of this shape may be in flight. */
tn_status tn__schedule_set(tn_session *session, const tn__graph_set *set, bool *several);
/* The graph for a shape: remembered, or built and remembered. It lasts until others have been asked for. */
tn_status tn__graph_for(tn_session *session, tn__shape shape, tn__graph_set **set);
/* Graphs of one token leave what they find where the next graph can read it. */
void tn__place_found(const tn_session *session, tn__graph_set *set);
void tn__graph_set_free(tn__graph_set *set);
/* How this session's weights are loaded; needs llm/load.h. */
struct tn__load tn__session_load(const tn_session *session);
/* Sizes are rounded up so that a session meets a bounded number of graphs; the added rows are padding. */
int32_t tn__round_tokens(int32_t n, int32_t limit);
int32_t tn__round_outputs(int32_t n, int32_t limit);

/* Creation in steps: devices and scheduler; the plan for one placement; the choice of a placement that fits. */
tn_status tn__session_prepare(tn_session *session);
tn_status tn__session_devices(const tn_session *session, tn_sched_params *params);
tn_status tn__session_plan(tn_session *session);
tn_status tn__session_choose(tn_session *session);
void tn__remove_stand_ins(tn_model *model); /* as long as nothing is loaded */
/* Frees what a session holds, not the session itself, and undoes stand-ins in an unloaded model. */
void tn__session_drop(tn_session *session);
/* What would make a session fit that does not: every way was planned, and it does. */
void tn__advise(const tn_session *session, char *text, size_t size);
tn_status tn__session_too_big(const tn_session *session);

void tn__keep_results(tn_session *session); /* before a graph runs that is no decode */
void tn__streams_free(tn_session *session);
size_t tn__graph_tensor_limit(const tn_model *model, tn__shape shape);

#endif

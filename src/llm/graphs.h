/* The graphs of a session: built on demand by shape, and cached. */
#ifndef TN_LLM_GRAPHS_H
#define TN_LLM_GRAPHS_H

#include "llm/inputs.h"

struct tn_session_plan;

/* Cells moved by one run of a graph that moves cells. */
enum { TN__MOVE_CELLS = 256 };

/* One graph, with the tensors that are set before a run and read after it. */
typedef struct tn__graph_set {
    tn__shape shape;
    tn_arena *arena;
    tn_graph *graph;
    tn__graph_inputs inputs;
    tn_tensor *result;
    tn_tensor
        *sums; /* for graphs whose logits stay on the device: sums of the rows, which are finite if the logits are */
    tn_tensor *states;                   /* with params.states: hidden states of all tokens */
    tn_tensor *largest, *largest_logits; /* candidates: tokens and logits, [n_candidates] per row */
    uint64_t last_used;
    size_t n_tensors, capacity; /* of arena and graph, where they are known; 0: at most */
} tn__graph_set;

/* Graphs, with their schedules, that a session caches in addition to the pinned ones: enough for every batch size
 * of concurrent sequences. Rebuilding one takes about a millisecond; keeping one takes half a megabyte for a
 * dozen layers. */
enum { TN__GRAPHS_KEPT = 48 };

/* Graphs that are never evicted. Reports describe the first two; a session has the others as well: argmax of decode,
 * candidates, next, then shift and move per group. */
enum { TN__REPORTED_PREFILL, TN__REPORTED_DECODE, TN__REPORTED_GRAPHS };
enum { TN__KEPT_GRAPHS = TN__REPORTED_GRAPHS + 3 + 2 * TN__CACHE_GROUPS };

typedef struct tn__graphs {
    tn__graph_set **sets;
    size_t n, capacity;
    uint64_t clock, n_built; /* n_built: since the plan was made */
    tn__graph_set *kept[TN__KEPT_GRAPHS];
    size_t n_kept;
} tn__graphs;

void tn__graphs_clear(tn__graphs *graphs); /* frees every graph */
void tn__graphs_free(tn__graphs *graphs);
/* The graph of a shape, from the cache or built and cached. Valid until a graph of another shape is requested. */
tn_status tn__graph_for(struct tn_session_plan *plan, tn__shape shape, tn__graph_set **set);
/* A graph that is not cached. `*set` is NULL if nothing has to be done. */
tn_status tn__graph_new(struct tn_session_plan *plan, tn__shape shape, tn__graph_set **set);
void tn__graph_free(struct tn_session_plan *plan, tn__graph_set *set);
/* Whether several runs of a graph of this shape may be in flight, where its devices can do that. */
bool tn__shape_in_flight(const struct tn_session_plan *plan, tn__shape shape);
/* Schedules it. `in_flight`: whether several runs of it may be in flight. */
tn_status tn__graph_schedule(struct tn_session_plan *plan, const tn__graph_set *set, bool *in_flight);
/* Graphs of one token leave their argmax in the memory of kv.argmax, candidates in that of kv.candidates, once these
 * exist. */
void tn__graph_bind_results(const tn__kv *kv, tn__graph_set *set);

/* Sizes are rounded up so that a session runs a bounded number of graphs; the added rows are padding. */
int32_t tn__round_tokens(int32_t n, int32_t limit);
int32_t tn__round_outputs(int32_t n, int32_t limit);

/* ---- The builder (build/graph.c, build/move.c) ---- */

enum { TN__MIN_FFN_CHUNK = 32 }; /* of params.ffn_chunk: bounds the number of nodes */

tn_status tn__build_graph(const struct tn_session_plan *plan, tn__shape shape, tn__graph_set *set);
/* A graph that moves cells; none for a group without cells to move. */
tn_status tn__build_move(const struct tn_session_plan *plan, tn__shape shape, tn__graph_set *set);
/* RoPE factors that all layers share, or NULL. */
tn_tensor *tn__rope_factors(const struct tn_session_plan *plan);

#endif

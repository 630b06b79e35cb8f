/* Random graphs with everything that makes planning difficult, and a reference run with separate memory per tensor.
 */
#ifndef TN_TESTS_RANDOM_GRAPH_H
#define TN_TESTS_RANDOM_GRAPH_H

#include "support.h"

#include "tenon/backend.h"

enum { WIDTH = 16, MOST = 128 };

typedef struct world {
    tn_arena *arena;
    tn_graph *graph;
    tn_tensor *pool[MOST];
    int n;
} world;

/* Views of views, series of in-place nodes, writes through views, inputs that are written, several outputs, sometimes
 * only empty tensors. */
void make_world(world *w, rng *r, int ops);

/* Tensors in the numbering of plans: nodes, then leaves. */
size_t count_of(const tn_graph *g);
tn_tensor *tensor_of(const tn_graph *g, size_t i);
void unbind(const tn_graph *g);     /* all tensors, views too */
void bind_views(const tn_graph *g); /* to the memory of their roots */
/* The same numbers for the same seed in all leaves. */
void fill_leaves(const tn_graph *g, uint64_t seed);

/* Setup and teardown of a group of tests: a CPU stream. */
int open_backend(void **state);
int close_backend(void **state);
void run_node(tn_tensor *node);
/* Hash of all outputs, which does not depend on the order of computation. `numbering` is a graph of the same tensors.
 */
uint64_t hash_outputs(const tn_graph *numbering);
/* Runs with separate memory per tensor and returns the hash of the outputs; nothing is bound afterwards. */
uint64_t run_privately(const tn_graph *g, const tn_graph *numbering);

#endif

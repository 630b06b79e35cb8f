// Inside the compiler: which nodes read which, and the patterns of nodes that share a launch.
#ifndef TN_BACKEND_CUDA_COMPILER_CUH
#define TN_BACKEND_CUDA_COMPILER_CUH

#include "backend/cuda/compile.cuh"
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/many/attention_plan.cuh"
#include "backend/cuda/kernels/persistent/persistent.cuh"

enum {
    GROUP_WINDOW = 16, // nodes after a matrix multiplication among which others with the same input are looked for
    MAX_GROUP = 4,     // matrices with the same input, at most three of them in one launch or step
    MAX_FUSED = 32,    // nodes of one launch
};

struct compiler_node {
    int readers;         // nodes of this program that read it, directly or through views
    bool kept;           // read outside this program too
    bool done;           // compiled, or part of another node's launch
    bool runs_extras;    // an attention that rotates and stores
    bool runs_norms;     // and norms q and k before that
    bool runs_delta_net; // a linear attention with the nodes before it
};
struct node_address {
    const tn_tensor *tensor;
    int index;
};
struct compiler {
    tn_tensor *const *nodes;
    int n;
    const device_description *device;
    compiler_node *info;
    node_address *order; // nodes sorted by address, to look up their index
    // Activations that the last launch left in scratch in the form the next matrix multiplication reads, in place of
    // this node's result; NULL: none.
    const tn_tensor *pending;
    activations pending_form;
    gemv_family pending_family;
    persistent_steps *steps;  // NULL without a persistent decode kernel
    bool persistent;          // in this compilation
    char *activation_buffers; // two: one that a launch reads, and one that it fills
    int next_buffer;
    size_t activation_buffer_bytes;
    size_t subsequence_plan_bytes; // of recurrent layers; behind the buffers
    attention_plans plans;         // behind them; `memory` is set by compiler_run
    // Nodes that the launches being compiled compute, and the records and steps that already have theirs.
    int lead; // the node being compiled
    int fused[MAX_FUSED], n_fused;
    size_t records_with_nodes, steps_launched;
};

// ---- Nodes (compiler.cu) ----

bool is_matmul(const tn_tensor *t);
const tn_tensor *without_views(const tn_tensor *t);
int index_of(const compiler *f, const tn_tensor *t); // -1 when it is not of this program
// The same, but -1 as well for views that show only a part of the node or another order.
int index_of_whole(const compiler *f, const tn_tensor *t);
bool overlap(const tn_tensor *a, const tn_tensor *b);
bool only_read_by(const compiler *f, int i, int readers);
int next_node(const compiler *f, int i); // after i, that is not compiled yet
bool is_rows(const tn_tensor *t);        // f32 rows in at most two dimensions
// Whether no launch between nodes `from` and `to` writes over this memory.
bool survives_until(const compiler *f, const tn_tensor *t, int from, int to);
// Whether node k may run as early as node i: nothing in between reads or writes the memory of its result.
bool can_run_at(const compiler *f, int k, int i);

// ---- Launches (compiler.cu) ----

// Makes node i part of the launches being compiled.
void fuse_node(compiler *f, int i);
// Gives the collected nodes to the records added since the last call.
tn_status assign_nodes(compiler *f, const compilation &c);
tn_status assign_step(compiler *f, const compilation &c, const char *what);
// Launches the persistent decode kernel for the steps collected so far. Every other launch must come after it.
tn_status launch_steps(compiler *f, const compilation &c);

// ---- Matrix multiplications with the same input (fuse_matmul.cu) ----

struct matmul_group {
    int at[MAX_GROUP], n;
    gemv_family family;
};
// Matrix multiplications of node i's input, node i first.
matmul_group group_at(const compiler *f, int i);
bool is_plain_norm(const tn_tensor *t); // an RMS norm of few rows with one row of weights
// Whether the readers of node i are exactly one group, which comes next after node `after`.
bool feeds_group(const compiler *f, int i, int after, matmul_group *g);
// Whether a group is a step of the persistent decode kernel. Steps read and write f32, and do the norm themselves.
bool is_step(const compiler *f, const matmul_group &g);
// A buffer for what group g reads in place of a node's result. With `norm`: for the norm's source. A step does the
// norm itself; otherwise the producer multiplies by the norm's weight and the consumer divides by the root mean
// square.
activations new_activations(compiler *f, const matmul_group &g, int64_t k, int64_t columns, const tn_tensor *norm,
                            gemv_next *next);
void leave_pending(compiler *f, const tn_tensor *instead_of, gemv_family family, const activations &form);

// ---- Patterns ----

// Each compiles node i, with those that share its launch, if its pattern matches; `matched` says so.
bool norm_is_fused(const compiler *f, int i); // whether fuse_norm() takes the node
tn_status fuse_norm(compiler *f, const compilation &c, int i, bool *matched);
tn_status fuse_matmuls(compiler *f, const compilation &c, int i, bool *matched);
tn_status fuse_tile_matmuls(compiler *f, const compilation &c, int i, bool *matched);
tn_status fuse_blas_add(compiler *f, const compilation &c, int i, bool *matched);
// Compiles node i alone. If the next matmul reads it as f16 or bf16, the node stores it so where it can.
tn_status compile_narrowed(compiler *f, const compilation &c, int i);
bool is_narrowed(const compiler *f, const compilation &c, int i); // whether the next matmul reads it so
tn_status fuse_rotations(compiler *f, const compilation &c, int i, bool *matched);
tn_status fuse_attention(compiler *f, const compilation &c, int i, bool *matched);
tn_status fuse_sum_argmax(compiler *f, const compilation &c, int i, bool *matched);
tn_status fuse_moe_router(compiler *f, const compilation &c, int i, bool *matched);
tn_status fuse_normed_router(compiler *f, const compilation &c, int i, bool *matched);
bool has_normed_router(const compiler *f, int i); // whether that one takes the node
tn_status fuse_expert_sum(compiler *f, const compilation &c, int i, gemv_job *job, bool *matched);
tn_status fuse_mix(compiler *f, const compilation &c, int i, bool *matched);
// Marks nodes that run inside linear attentions.
void mark_delta_nets(compiler *f);
tn_status fuse_delta_net(compiler *f, const compilation &c, int i, bool *matched);
bool attention_is_step(const device_description &device, const tn_tensor *t);
// Marks nodes that run inside attentions.
void mark_attention_extras(compiler *f);

#endif

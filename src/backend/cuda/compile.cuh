// Compiling nodes to launches: the context of one compilation, and a function per op.
//
// Nothing here calls CUDA. What is decided depends on the nodes, their addresses and the device's description only,
// so the same list comes out on a machine without a GPU.
#ifndef TN_BACKEND_CUDA_COMPILE_CUH
#define TN_BACKEND_CUDA_COMPILE_CUH

#include "backend/cuda/cuda.cuh"
#include "backend/cuda/launch_list.cuh"
#include "backend/cuda/scratch.cuh"

// The order of activations as f16 or bf16: dense rows, or what the tile kernels or those for few columns
// (kernels/tiles) read.
enum narrow_order { ROW_ORDER, TILE_ORDER, FEW_ORDER };
// Activations that an earlier launch left in scratch as f16 or bf16; with experts, sorted by ids.
struct converted_activations {
    const void *data;
    int type;
    const tn_tensor *y, *ids; // ids: NULL without experts
    int64_t experts;
    narrow_order order;
    char *at; // where they are, unless dense
};
// The plan of a batch's subsequences that recurrent layers share (kernels/recurrent.cuh), and the steps it was made
// for.
struct subsequence_plan {
    void *memory;
    const tn_tensor *steps; // NULL: not made yet
    int64_t rows;
};
// A request to the op being compiled: to store its result as f16 or bf16, too, for the matmul that reads it next.
struct narrow_request {
    void *to; // NULL: none
    int type;
    narrow_order order;
    bool done; // set by ops that do it
};
struct attention_plans; // kernels/many/attention_plan.cuh
struct compilation {
    const device_description *device;
    launch_list *list;
    char *scratch;
    unsigned *tickets;
    converted_activations *converted; // cleared by every launch that is not a matrix multiplication
    const tn_tensor *converts;        // set while launches convert this operand rather than compute a node
    subsequence_plan *subsequences;
    attention_plans *plans; // of attention
    narrow_request *narrow;
};

// ---- Adding launches ----

// A kernel's name, then the kernel.
#define KERNEL(kernel) kernel_called(#kernel), kernel

template <typename... P, typename... A>
static inline tn_status add_kernel(const compilation &c, const kernel_name &name, void (*kernel)(P...),
                                   const launch_shape &shape, A... args) {
    return launch_list_add_kernel(c.list, name, kernel, shape, c.converts, args...);
}
// For kernels that start when everything before them has ended.
template <typename... P, typename... A>
static inline tn_status add_ordered(const compilation &c, const kernel_name &name, void (*kernel)(P...), dim3 grid,
                                    unsigned threads, size_t shared, A... args) {
    launch_shape shape = {grid, threads, shared};
    return launch_list_add_kernel(c.list, name, kernel, shape, c.converts, args...);
}
// For kernels that call grid_wait() before they touch memory that an earlier kernel writes.
template <typename... P, typename... A>
static inline tn_status add_early(const compilation &c, const kernel_name &name, void (*kernel)(P...), dim3 grid,
                                  unsigned threads, size_t shared, A... args) {
    launch_shape shape = {grid, threads, shared};
    shape.early = c.device->programmatic_launch;
    return launch_list_add_kernel(c.list, name, kernel, shape, c.converts, args...);
}
tn_status add_copy(const compilation &c, void *to, const void *from, size_t bytes);
tn_status add_matmul(const compilation &c, const blas_matmul &m);

// ---- Ops (op_table.cu) ----

bool node_supported(const tn_tensor *node, char *reason, size_t reason_size);
size_t node_scratch(const device_description &device, const tn_tensor *node); // bytes
bool node_is_idle(const tn_tensor *node); // computes nothing; CUDA rejects a grid without blocks
tn_status node_compile(const compilation &c, const tn_tensor *node);

tn_status compile_unary(const compilation &c, const tn_tensor *t);
tn_status compile_binary(const compilation &c, const tn_tensor *t);
tn_status compile_glu(const compilation &c, const tn_tensor *t);
tn_status compile_copy(const compilation &c, const tn_tensor *from, const tn_tensor *to); // any strides
tn_status compile_get_rows(const compilation &c, const tn_tensor *t);
tn_status compile_set_rows(const compilation &c, const tn_tensor *t);
tn_status compile_add_id(const compilation &c, const tn_tensor *t);
tn_status compile_region(const compilation &c, const tn_tensor *t); // acc, set
tn_status compile_concat(const compilation &c, const tn_tensor *t);
tn_status compile_repeat(const compilation &c, const tn_tensor *t);
tn_status compile_arange(const compilation &c, const tn_tensor *t);
tn_status compile_norm(const compilation &c, const tn_tensor *t);
tn_status compile_soft_max(const compilation &c, const tn_tensor *t);
tn_status compile_rope(const compilation &c, const tn_tensor *t);
tn_status compile_hadamard(const compilation &c, const tn_tensor *t);
void rope_blend(const tn_rope_params &p, float *low, float *high);      // YaRN: the pairs between which it blends
tn_status compile_row_reduce(const compilation &c, const tn_tensor *t); // sum_rows, mean, argmax
size_t argmax_scratch(const device_description &device, const tn_tensor *argmax);
tn_status compile_top_k(const compilation &c, const tn_tensor *t);
tn_status compile_mix(const compilation &c, const tn_tensor *t);
size_t mul_mat_scratch(const device_description &device, const tn_tensor *t);
tn_status compile_mul_mat(const compilation &c, const tn_tensor *t);
// Whether cuBLASLt multiplies these matrices; such a matmul can add a residual and store the sum instead.
bool blas_takes(const device_description &device, const tn_tensor *t);
tn_status compile_blas_add(const compilation &c, const tn_tensor *t, const float *residual, int64_t residual_row,
                           float *out, int64_t out_row);
// Where such a matmul expects its activations as f16 or bf16; NULL if it multiplies floats.
void *blas_activations(const compilation &c, const tn_tensor *t, int *type);
// Rows of f32 to dense f16 or bf16; f16 saturates instead of overflowing.
tn_status compile_narrow(const compilation &c, const tn_tensor *y, const char *data, int64_t row_bytes, int64_t k,
                         int64_t rows, int type, void *to);
size_t mul_mat_id_scratch(const device_description &device, const tn_tensor *t);
tn_status compile_mul_mat_id(const compilation &c, const tn_tensor *t);
size_t attention_scratch(const device_description &device, const tn_tensor *t);
tn_status compile_attention(const compilation &c, const tn_tensor *t);
bool attention_supported(const tn_tensor *t, char *reason, size_t reason_size);
bool select_supported(const tn_tensor *t, char *reason, size_t reason_size);
size_t select_scratch(const device_description &device, const tn_tensor *t);
tn_status compile_select_positions(const compilation &c, const tn_tensor *t);
enum { MOST_RECURRENT_HEAD = 256 };
bool recurrent_supported(const tn_tensor *t, char *reason, size_t reason_size);
size_t subsequence_plan_bytes(const tn_tensor *t); // of a recurrent op
tn_status compile_causal_conv(const compilation &c, const tn_tensor *t);
tn_status compile_linear_attention(const compilation &c, const tn_tensor *t);
tn_status compile_selective_scan(const compilation &c, const tn_tensor *t);
tn_status compile_rwkv7(const compilation &c, const tn_tensor *t);

// ---- Several nodes in one launch ----

// Sum and argmax of one long row.
bool sum_argmax_supports(const tn_tensor *sum, const tn_tensor *argmax);
tn_status compile_sum_argmax(const compilation &c, const tn_tensor *sum, const tn_tensor *argmax);
// A soft-max of whole rows without mask, sinks or scale.
bool is_plain_soft_max(const tn_tensor *t);
bool moe_router_supports(const tn_tensor *probs, const tn_tensor *ids);
tn_status compile_moe_router(const compilation &c, const tn_tensor *probs, const tn_tensor *ids);
// The sum of the experts' results, with the nodes that compute its weights and the residual added to it. All but
// rows, mix and out (the last node) may be NULL.
struct chosen_mix {
    const tn_tensor *rows, *soft_max, *sum, *div, *scale, *mix, *residual, *out;
};
bool mix_supports(const chosen_mix &m);
tn_status compile_chosen_mix(const compilation &c, const chosen_mix &m);

// ---- Programs (compiler.cu) ----

struct compiler; // a program's nodes, and which of them read which
tn_status compiler_new(tn_tensor *const *nodes, size_t n_nodes, const device_description *device, compiler **out);
void compiler_free(compiler *c);
scratch_needs compiler_scratch(const compiler *c); // of the whole program

struct compile_params {
    char *scratch;      // the buffer's beginning
    char *table;        // a slot for the program's table, if it has one
    bool no_persistent; // every node in launches of its own, so that each can be timed
};
tn_status compiler_run(compiler *c, const compile_params &params, launch_list *out);
// What must be in params.table before the list runs; without an id. `bytes` may be 0: nothing.
scratch_table compiler_table(const compiler *c);

// ---- Segments of a launch list (segments.cu) ----

// A part of a program that is queued as a whole.
struct launch_segment {
    size_t begin, end;     // records
    uint64_t ns;           // estimated, rather too long than too short
    cudaGraphExec_t graph; // NULL before it is captured
};
// Divides a list into segments that can be aborted in between: the longest that take at most most_ns, or one record.
// UINT64_MAX: one segment. The caller frees *out with tn_free.
tn_status segments_of(const launch_list &l, tn_tensor *const *nodes, const device_description &d, uint64_t most_ns,
                      launch_segment **out, size_t *n);

// ---- Shapes of launches ----

enum { MOST_ROWS = 65535 }; // blocks of a grid in its second and third dimension
static inline unsigned blocks_for(int64_t n, int threads) { return (unsigned)((n + threads - 1) / threads); }
static inline size_t round_up_256(size_t n) { return (n + 255) & ~(size_t)255; }

struct shape4 {
    int64_t ne[4];
    int64_t nb[4];
};
// Strides are those on the device, as device_layout_of() has them.
static inline shape4 shape4_of(const tn_tensor *t) {
    shape4 s;
    const device_layout l = device_layout_of(t);
    for (int i = 0; i < 4; i++) {
        s.ne[i] = t->ne[i];
        s.nb[i] = l.nb[i];
    }
    return s;
}

#endif

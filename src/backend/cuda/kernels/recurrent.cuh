// Recurrent layers: the strands of a batch (tenon/recurrent.h) as kernels walk them.
//
// A plan lists the tokens strand by strand. It is made once per program, by a kernel of one block, and stays in
// scratch for all layers. Kernels divide a state by heads, columns or channels over blocks, and the strands over the
// blocks in x. Strands that touch a row which another strand writes are processed in order by one block in x.
#ifndef TN_BACKEND_CUDA_KERNELS_RECURRENT_CUH
#define TN_BACKEND_CUDA_KERNELS_RECURRENT_CUH

#include "backend/cuda/kernels/common.cuh"

#include "tenon/recurrent.h"

// The beginning of a plan, followed by begin[tokens + 1], token[tokens] and memory for making it.
struct strand_plan_head {
    int n_strands;
    int in_order; // strands depend on each other
    int reserved[2];
};

struct strand_view {
    const int *steps; // [tokens][4]
    const int *plan;  // NULL for one token, which needs none
    int tokens, rows; // rows of the state
};

// The first of a strand's entries in the list of tokens; that of strand n_strands is the end.
__device__ static inline int strand_begin(const strand_view &v, int strand) {
    return v.plan ? v.plan[sizeof(strand_plan_head) / 4 + strand] : strand;
}
__device__ static inline int strand_token(const strand_view &v, int at) {
    return v.plan ? v.plan[sizeof(strand_plan_head) / 4 + v.tokens + 1 + at] : at;
}
__device__ static inline int strand_count(const strand_view &v) {
    return v.plan ? ((const strand_plan_head *)v.plan)->n_strands : 1;
}
// The strands of this block: all of them in order, or every gridDim.x-th.
__device__ static inline bool strands_in_order(const strand_view &v) {
    return v.plan && ((const strand_plan_head *)v.plan)->in_order;
}
__device__ static inline int strand_first_of_block(const strand_view &v) {
    return strands_in_order(v) && blockIdx.x ? strand_count(v) : (int)blockIdx.x;
}
__device__ static inline int strand_stride(const strand_view &v) { return strands_in_order(v) ? 1 : gridDim.x; }
// Whether the strand beginning with this token is not one of padding rows.
__device__ static inline bool strand_is_live(const strand_view &v, int token) {
    const int *step = v.steps + 4 * (int64_t)token;
    return step[TN_STEP_PREVIOUS] == -1 && step[TN_STEP_READ] >= -1 && step[TN_STEP_READ] < v.rows;
}
__device__ static inline int strand_written_row(const strand_view &v, int token) {
    const int row = v.steps[4 * (int64_t)token + TN_STEP_WRITE];
    return row < v.rows ? row : -1;
}

// A source of a recurrent op: strides in floats.
struct recurrent_rows {
    const float *data;
    int64_t head, token;
};
static inline recurrent_rows recurrent_rows_of(const tn_tensor *t, bool has_heads) {
    recurrent_rows r = {};
    if (!t) return r;
    r.data = (const float *)t->data;
    r.head = has_heads ? (int64_t)(t->nb[1] / 4) : 0;
    r.token = (int64_t)(t->nb[has_heads ? 2 : 1] / 4);
    return r;
}

// Adds the kernel that makes the plan, unless the program has it already, and returns a view of it.
tn_status compile_strands(const compilation &c, const tn_tensor *t, strand_view *view);
// Blocks in x for a kernel that divides the state among this many blocks.
unsigned strand_blocks(const tn_tensor *t, int64_t parts);

#endif

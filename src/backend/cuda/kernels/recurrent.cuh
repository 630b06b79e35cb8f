// Recurrent layers: the subsequences of a batch (tenon/recurrent.h) as kernels walk them.
//
// A plan lists the tokens subsequence by subsequence. It is made once per program, by a kernel of one block, and
// stays in scratch for all layers. Kernels divide a state by heads, columns or channels over blocks, and the
// subsequences over the blocks in x. Subsequences that touch a row which another subsequence writes are processed in
// order by one block in x.
#ifndef TN_BACKEND_CUDA_KERNELS_RECURRENT_CUH
#define TN_BACKEND_CUDA_KERNELS_RECURRENT_CUH

#include "backend/cuda/kernels/common.cuh"

#include "tenon/recurrent.h"

// The beginning of a plan, followed by begin[tokens + 1], token[tokens] and memory for making it.
struct subsequence_plan_head {
    int n_subsequences;
    int in_order; // subsequences depend on each other
    int reserved[2];
};

struct subsequence_view {
    const int *steps; // [tokens][4]
    const int *plan;  // NULL for one token, which needs none
    int tokens, rows; // rows of the state
};

// The first of a subsequence's entries in the list of tokens; that of subsequence n_subsequences is the end.
__device__ static inline int subsequence_begin(const subsequence_view &v, int subsequence) {
    return v.plan ? v.plan[sizeof(subsequence_plan_head) / 4 + subsequence] : subsequence;
}
__device__ static inline int subsequence_token(const subsequence_view &v, int at) {
    return v.plan ? v.plan[sizeof(subsequence_plan_head) / 4 + v.tokens + 1 + at] : at;
}
__device__ static inline int subsequence_count(const subsequence_view &v) {
    return v.plan ? ((const subsequence_plan_head *)v.plan)->n_subsequences : 1;
}
// The subsequences of this block: all of them in order, or every gridDim.x-th.
__device__ static inline bool subsequences_in_order(const subsequence_view &v) {
    return v.plan && ((const subsequence_plan_head *)v.plan)->in_order;
}
__device__ static inline int subsequence_first_of_block(const subsequence_view &v) {
    return subsequences_in_order(v) && blockIdx.x ? subsequence_count(v) : (int)blockIdx.x;
}
__device__ static inline int subsequence_stride(const subsequence_view &v) {
    return subsequences_in_order(v) ? 1 : gridDim.x;
}
// Whether the subsequence beginning with this token is not one of padding rows.
__device__ static inline bool subsequence_is_live(const subsequence_view &v, int token) {
    const int *step = v.steps + 4 * (int64_t)token;
    return step[TN_STEP_PREVIOUS] == -1 && step[TN_STEP_READ] >= -1 && step[TN_STEP_READ] < v.rows;
}
__device__ static inline int subsequence_written_row(const subsequence_view &v, int token) {
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
tn_status compile_subsequences(const compilation &c, const tn_tensor *t, subsequence_view *view);
// Blocks in x for a kernel that divides the state among this many blocks.
unsigned subsequence_blocks(const tn_tensor *t, int64_t parts);

#endif

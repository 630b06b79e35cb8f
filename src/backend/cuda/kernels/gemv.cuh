// Products with few columns: decoding. One launch multiplies up to three matrices with the same activations and may
// finish with what follows: a residual, a gate, and the activations of the next product. Each matrix may be a stack
// of experts, from which the device chooses.
#ifndef TN_BACKEND_CUDA_KERNELS_GEMV_CUH
#define TN_BACKEND_CUDA_KERNELS_GEMV_CUH

#include "backend/cuda/kernels/common.cuh"

enum {
    GEMV_MAX_COLUMNS = 8, // or tokens, with experts…
    GEMV_MAX_USED = 1024, // …of which a token uses so many
    GEMV_TILE = 32        // rows a block computes: one group of quantized activations
};

// How weights are multiplied.
enum gemv_family {
    GEMV_OTHER, // eight at a time as floats, one matrix per launch, nothing fused
    GEMV_INT8,  // int8 times int8: q4_0, q8_0, q4_K, q6_K
    GEMV_HALF,  // f16 and bf16 times f32
};

// A column of activations, in the form its family reads. With sums of squares, the true values are these divided by
// the root of their mean: an RMS norm whose division is left to the reader.
struct activations {
    int8_t *q;      // [columns][k], or NULL
    float *scale;   // [columns][k/32]
    short2 *sums;   // [columns][k/32]: of the first and second 16 values
    const float *y; // [columns][stride], when q is NULL
    int64_t stride;
    const float *squares; // [columns][k/32], or NULL
    const float *weight;  // of an RMS norm that the reader does, in a chain (chain.cuh); or NULL
    float eps;
};

// What a product with few columns leaves for the next.
struct gemv_next {
    activations to; // q or y NULL: nothing
    float *y, *squares;
    const float *weight; // of the norm, or NULL
};

struct gemv_matrix {
    const char *w;
    int64_t row_bytes;
    int kind, rows, first_block;
    float *out; // or NULL
    int64_t out_row;
    int64_t expert_bytes; // from an expert's rows to the next expert's
    bool lasting;         // no kernel writes it
};
// Which experts a few tokens want. What one of them gives one token is a column of the result, here called a pair:
// tokens one after the other, each with its `used` experts.
struct gemv_experts {
    const char *ids; // i32, a token's are `row_bytes` behind those of the one before; NULL: no experts
    int64_t row_bytes;
    int n, used, pairs;
    bool same_input; // all experts of a token multiply the same column
};
enum gemv_finish { GEMV_STORE, GEMV_ADD, GEMV_GLU };
struct gemv_job {
    gemv_matrix m[3];
    int n, k;
    int tiles, columns; // filled by gemv_run
    bool in_shared;     // activations come to shared memory
    activations in;
    gemv_experts experts;
    int finish;
    const float *residual; // GEMV_ADD
    int64_t residual_row;
    int glu; // op, GEMV_GLU: m[0] is the gate, m[1] what it multiplies
    tn_op_params glu_params;
    gemv_next next;
};

// One value of each of 32 lanes: the group `group` of column c, k long. `value` is before, `y` after the norm's
// weight.
__device__ static inline void gemv_store_next(const gemv_next &next, int64_t k, int c, int64_t group, float value,
                                              float y) {
    int lane = threadIdx.x % 32;
    const activations &a = next.to;
    if (next.squares) {
        float sum = warp_sum(value * value);
        if (lane == 0) next.squares[c * (k / 32) + group] = sum;
    }
    if (!a.q) {
        next.y[c * a.stride + 32 * group + lane] = y;
        return;
    }
    float scale = warp_max(fabsf(y)) / 127;
    int q = scale > 0 ? __float2int_rn(y / scale) : 0, sum = q;
    a.q[c * k + 32 * group + lane] = (int8_t)q;
    for (int offset = 8; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    int other = __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane == 0) {
        a.scale[c * (k / 32) + group] = scale;
        a.sums[c * (k / 32) + group] = make_short2((short)sum, (short)other);
    }
}

// For products, with experts or without.
bool gemv_supports(const tn_tensor *t);
gemv_family gemv_family_of(const tn_tensor *t);
int gemv_columns(const tn_tensor *t);          // of activations
int64_t gemv_column_bytes(const tn_tensor *t); // from one to the next
size_t gemv_scratch(const tn_tensor *t);
tn_status launch_gemv(const launch &l, const tn_tensor *t); // a product by itself; experts only where a family serves

size_t activation_bytes(int64_t k, int64_t columns);
// Memory for activations of a family at `at`; `next` is what a producer fills.
activations activations_at(char *at, gemv_family family, int64_t k, int64_t columns, bool squares, gemv_next *next);
gemv_matrix gemv_matrix_of(const tn_tensor *t);
gemv_experts gemv_experts_of(const tn_tensor *t); // none for a product without
// x (rows of k floats, row_bytes apart) times the norm's weight (or NULL) into `next`.
tn_status gemv_prepare(const launch &l, const float *x, int64_t row_bytes, int64_t k, int columns,
                       const gemv_next &next);
tn_status gemv_run(const launch &l, const gemv_job &job, int columns);

#endif

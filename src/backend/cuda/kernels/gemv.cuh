// GEMV: matmul with up to 8 columns, as in decode. One launch multiplies up to three matrices with the same
// activations. It may also add a residual or apply a gated activation, and store the result in the form that the next
// matmul reads. Each matrix may be a stack of experts, selected by ids in device memory.
#ifndef TN_BACKEND_CUDA_KERNELS_GEMV_CUH
#define TN_BACKEND_CUDA_KERNELS_GEMV_CUH

#include "backend/cuda/kernels/common.cuh"

enum {
    GEMV_MAX_COLUMNS = 8, // with experts: tokens
    GEMV_MAX_USED = 1024, // experts that a token uses
    GEMV_MAX_KINDS = 3,   // of weights in one launch
    GEMV_TILE = 32        // rows that a block computes: a group of activations that share a quantization scale
};

// How weights and activations are multiplied.
enum gemv_family {
    GEMV_OTHER, // as floats, one matrix per launch, nothing fused
    GEMV_INT8,  // int8 times int8: q4_0, q8_0, q4_K, q5_K, q6_K
    GEMV_HALF,  // f16 and bf16 times f32
};

// Columns of activations in the form that their family reads. An RMS norm divides a row by one number, which is known
// only when the whole row is. The kernel that computes the row therefore stores x · weight and sums of squares, and
// the kernel that reads it divides its results (`squares`).
struct activations {
    int8_t *q;      // [columns][k], or NULL
    float *scale;   // [columns][k/32]
    short2 *sums;   // [columns][k/32]: sums of the first and of the second 16 values
    const float *y; // [columns][stride]; used when q is NULL
    int64_t stride;
    const float *squares; // [columns][k/32]: sums of squares of 32 values before the norm's weight; or NULL
    const float *weight;  // of an RMS norm that the reader computes (persistent decode kernel only); or NULL
    float eps;
};

// Where a kernel stores activations for the next matmul.
struct gemv_next {
    activations to; // nothing is stored if both q and y are NULL
    float *y, *squares;
    const float *weight; // of the norm before the next matmul, or NULL
};

struct gemv_matrix {
    const char *w;
    int64_t row_bytes;
    int kind, rows, first_block;
    float *out; // or NULL
    int64_t out_row;
    int64_t expert_bytes; // from an expert's rows to the next expert's
    bool lasting;         // no kernel writes it, so it may be read before the previous kernel has ended
};
// The experts that a few tokens use. A pair is one token with one of its experts: a column of the result. Pairs are
// ordered by token, then by the token's `used` experts.
struct gemv_experts {
    const char *ids; // int32, row_bytes apart by token; NULL: no experts
    int64_t row_bytes;
    int n, used, pairs;
    bool same_input; // all experts of a token read the same column
};
enum gemv_finish { GEMV_STORE, GEMV_ADD, GEMV_GLU };
struct gemv_job {
    gemv_matrix m[3];
    int n, k;
    int tiles, columns; // set by gemv_compile
    bool in_shared;     // activations are copied to shared memory; set by gemv_compile
    activations in;
    gemv_experts experts;
    int finish;
    const float *residual; // GEMV_ADD
    int64_t residual_row;
    int glu; // GEMV_GLU: the op; m[0] is the gate, m[1] what it multiplies
    tn_op_params glu_params;
    gemv_next next;
};

// Stores one value of each of 32 lanes: group `group` of column c, which has k elements. `value` is before and `y`
// after multiplication with the norm's weight.
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

// The following are for matmuls, with experts or without.
bool gemv_takes_shape(const tn_tensor *t);
// The shape suits these kernels, and no others are faster on the device.
bool gemv_supports(const device_description &device, const tn_tensor *t);
gemv_family gemv_family_of(const device_description &device, const tn_tensor *t);
int gemv_columns(const tn_tensor *t);          // of activations
int64_t gemv_column_bytes(const tn_tensor *t); // from one to the next
size_t gemv_scratch(const tn_tensor *t);
// One matmul; experts only if the weights' family supports them.
tn_status compile_gemv(const compilation &c, const tn_tensor *t);

size_t activation_bytes(int64_t k, int64_t columns);
// Memory for activations of a family at `at`; `next` is what a producer fills.
activations activations_at(char *at, gemv_family family, int64_t k, int64_t columns, bool squares, gemv_next *next);
gemv_matrix gemv_matrix_of(const tn_tensor *t);
gemv_experts gemv_experts_of(const tn_tensor *t); // empty for a matmul without experts
// x (rows of k floats, row_bytes apart) times the norm's weight (or NULL) into `next`.
tn_status gemv_prepare(const compilation &c, const tn_tensor *x, int64_t row_bytes, int64_t k, int columns,
                       const gemv_next &next);
tn_status gemv_compile(const compilation &c, const gemv_job &job, int columns);
// Matrices of several kinds with the same column, a job for each kind.
bool gemv_can_mix(const device_description &device, const gemv_job *jobs, int n, int columns);
tn_status gemv_compile_mixed(const compilation &c, const gemv_job *jobs, int n);

#endif

// The persistent decode kernel: all matrix multiplications and attentions of a token in one launch, as a list of
// steps.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_CUH

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/gemv.cuh"

// Elements of a row. Beside the rings of 16 warps, shared memory holds an input of as many int8 with scales and sums,
// or of as many floats for f16 and bf16 weights.
enum { PERSISTENT_MAX_ROW = 32768, PERSISTENT_MAX_FLOAT_ROW = 16384 };

// Up to three matrices times the same column. The rows of a matrix are processed in groups, and a group in pieces
// along the row. One piece of one group is an item: the amount of weights that a stage in shared memory holds. With
// GEMV_GLU a group has two passes: the gate's rows, then the same rows of the second matrix.
struct persistent_matmul {
    // The input is floats (in.y), to be normalized first where in.weight is set. The result is floats (next.y).
    gemv_job job;
    // By matrix: the weight kind, the rows of a group, the number of groups.
    int kinds[3], rows[3], groups[3];
    // By matrix: the bytes of a piece of one row, of a row's last piece, and from there to the next group's first
    // piece.
    int piece_bytes[3], last_piece_bytes[3], next_group_bytes[3];
    int total_groups, pieces; // groups of all matrices; pieces of a row
    // Every block has groups_per_block groups, and the first blocks_with_extra_group blocks have one more.
    int groups_per_block, blocks_with_extra_group;
    unsigned inverse_items;     // 2³² / (items of a group), rounded up: __umulhi() with it divides
    float *published[3];        // by matrix: the buffer in which results are published to the next step, or NULL
    bool residual_is_published; // job.residual holds step tags, which must be removed
    bool same_input;            // as the previous step: its input is still in shared memory
};
struct alignas(16) persistent_step {
    bool is_attention;
    bool waits;     // starts with a barrier of all blocks
    bool arrives;   // ends by arriving at that barrier
    int arrivals;   // `waits`: how many steps of this launch arrive before this one
    int input_step; // the step of this launch whose published results this one polls, or -1
    union {
        persistent_matmul matmul;
        decode_job attention;
    };
};

// Collects the steps of one compilation. Owned by one program; not thread-safe.
struct persistent_steps;

bool persistent_supports(const device_description &device);
// `steps`: the most steps that a compilation may add.
tn_status persistent_new(const device_description &device, int steps, persistent_steps **out);
void persistent_free(persistent_steps *c);
size_t persistent_memory_bytes(const persistent_steps *c); // on the device; the steps come first
// From here to the end the memory must be zeros before the first launch: no result may carry a valid step tag.
size_t persistent_zeros_offset(const persistent_steps *c);
const persistent_step *persistent_all_steps(const persistent_steps *c, int *n);

bool persistent_takes_matmul(const gemv_job &job); // decided by the kinds and shapes of its matrices
bool persistent_takes_attention(const device_description &device, const tn_tensor *t);
// Starts a compilation; `memory`: persistent_memory_bytes() on the device.
void persistent_begin(persistent_steps *c, char *memory);
// Whether the steps so far must be launched before this attention is added: one launch has heads of one size.
bool persistent_must_launch(const persistent_steps *c, const decode_job &job);
void persistent_add_matmul(persistent_steps *c, const gemv_job &job);
void persistent_add_attention(persistent_steps *c, const decode_job &job);
// Adds a launch of the steps added since the last one, if any.
tn_status persistent_compile(persistent_steps *c, const compilation &to);

#endif

// The persistent decode kernel: block shape, shared memory, and the weight kinds it reads. Shared by host and device.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_LAYOUT_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_LAYOUT_CUH

#include "backend/cuda/kernels/gemv_units.cuh"
#include "backend/cuda/kernels/persistent/persistent.cuh"

enum {
    WARPS = 16,
    THREADS = WARPS * 32,
    // Attention: the fewest cells worth a block of their own, and the cells that a warp processes at a time.
    MIN_CELLS_PER_BLOCK = 128,
    TILE_CELLS = 8,
    // Attention: runs that a block keeps in shared memory. Further runs of its share are read when needed.
    VIEW_RUNS = 48,
    // A step tag occupies TAG_BITS bits of each of two neighbouring floats. 0 is no tag.
    TAG_BITS = 5,
    TAGS = (1 << 2 * TAG_BITS) - 1,
    // Weights: every warp has a ring of STAGES stages, each large enough for four rows of q4_0 or q4_K.
    STAGE_BYTES = 4608,
    STAGES = 2,
    // A block keeps the descriptions of STEP_WINDOW steps in shared memory. Weights are fetched for up to LOOKAHEAD
    // steps after the current one. The other three entries hold the current step, the previous one, which slower
    // warps may not have finished, and the one being loaded.
    STEP_WINDOW = 8,
    LOOKAHEAD = STEP_WINDOW - 3,
    FEW_STEPS = 6,                  // launches of at most so many let the next kernel start while they run
    STATIC_SHARED_BYTES = 11 << 10, // upper bound of the kernel's static shared memory
    MAX_GROUPS = 1 << 22,           // times the number of blocks it must fit 32 bits
};

enum persistent_weight {
    PERSISTENT_F16,
    PERSISTENT_BF16,
    PERSISTENT_Q4_0,
    PERSISTENT_Q8_0,
    PERSISTENT_Q4_K,
    PERSISTENT_Q5_K,
    PERSISTENT_Q6_K,
    PERSISTENT_NONE
};
// The kernel is instantiated for the sets of kinds that model files usually combine, and once for all of them: unused
// code would compete for the instruction cache. KINDS has a bit for each persistent_weight.
enum : int {
    HALF_KINDS = 1 << PERSISTENT_F16 | 1 << PERSISTENT_BF16,
    ALL_KINDS = (1 << PERSISTENT_NONE) - 1,
};
// With one kind in KINDS the test is a compile-time constant.
#define IS_WEIGHT_KIND(KINDS, kind, K) ((KINDS) >> K & 1 && (((KINDS) & ((KINDS)-1)) == 0 || kind == K))
// DO(unit) with the unit of gemv_units.cuh that reads weights of this kind.
#define FOR_WEIGHT_KIND(KINDS, kind, DO)                                                                             \
    if (IS_WEIGHT_KIND(KINDS, kind, PERSISTENT_Q4_K)) {                                                              \
        DO(unit_q4_K);                                                                                               \
    } else if (IS_WEIGHT_KIND(KINDS, kind, PERSISTENT_Q4_0)) {                                                       \
        DO(unit_q4_0_soa);                                                                                           \
    } else if (IS_WEIGHT_KIND(KINDS, kind, PERSISTENT_Q5_K)) {                                                       \
        DO(unit_q5_K);                                                                                               \
    } else if (IS_WEIGHT_KIND(KINDS, kind, PERSISTENT_Q6_K)) {                                                       \
        DO(unit_q6_K_soa);                                                                                           \
    } else if (IS_WEIGHT_KIND(KINDS, kind, PERSISTENT_Q8_0)) {                                                       \
        DO(unit_q8_0_soa);                                                                                           \
    } else if (IS_WEIGHT_KIND(KINDS, kind, PERSISTENT_F16)) {                                                        \
        DO(unit_half<false>);                                                                                        \
    } else if (IS_WEIGHT_KIND(KINDS, kind, PERSISTENT_BF16)) {                                                       \
        DO(unit_half<true>);                                                                                         \
    }
static persistent_weight persistent_weight_of(int kind) {
    switch (kind) {
    case TN_F16: return PERSISTENT_F16;
    case TN_BF16: return PERSISTENT_BF16;
    case TN_Q4_0 | SOA: return PERSISTENT_Q4_0;
    case TN_Q8_0 | SOA: return PERSISTENT_Q8_0;
    case TN_Q4_K: return PERSISTENT_Q4_K;
    case TN_Q5_K: return PERSISTENT_Q5_K;
    case TN_Q6_K | SOA: return PERSISTENT_Q6_K;
    default: return PERSISTENT_NONE;
    }
}

struct persistent_kernel {
    kernel_name name;
    void (*kernel)(const persistent_step *, int, unsigned *, unsigned *, int);
};
// The kernel for weights of these types (a bit for each), and attention heads of `size` elements, `group` of them for
// each key/value head.
persistent_kernel persistent_kernel_for(int kinds, int size, int group);

#endif

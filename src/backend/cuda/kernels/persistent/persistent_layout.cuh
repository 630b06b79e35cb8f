// The persistent decode kernel: the shape of a block, its shared memory, and the weight types it reads.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_LAYOUT_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_LAYOUT_CUH

#include "backend/cuda/kernels/gemv_units.cuh"
#include "backend/cuda/kernels/persistent/persistent.cuh"

enum {
    WARPS = 16,
    THREADS = WARPS * 32,
    LEAST_CELLS = 128, // of a block
    TURN = 8,          // cells of a warp at a time
    TAG_BITS = 5,      // of a float; two floats make a tag
    TAGS = (1 << 2 * TAG_BITS) - 1,
    STAGE = 4608,          // bytes: four rows of q4_0 or q4_K
    STAGES = 2,            // stages of a warp
    KNOWN = 8,             // steps of which a block has the description
    FIXED_ROOM = 11 << 10, // bytes of shared memory that all chains use
    MOST_GROUPS = 1 << 22, // their number times the blocks is counted in 32 bits
    LOOKAHEAD =
        KNOWN - 3, // how far fetching looks: a step, the one before it that slow warps end, and the one to come
};

enum persistent_weight {
    PERSISTENT_F16,
    PERSISTENT_BF16,
    PERSISTENT_Q4_0,
    PERSISTENT_Q8_0,
    PERSISTENT_Q4_K,
    PERSISTENT_Q6_K,
    PERSISTENT_NONE
};
// A kernel is made for the kinds that usual files have together, and one for all: code that nobody runs is in the way
// of that which is run. KINDS has a bit for each.
enum : int {
    HALF_KINDS = 1 << PERSISTENT_F16 | 1 << PERSISTENT_BF16,
    ALL_KINDS = (1 << PERSISTENT_NONE) - 1,
};
#define IS_KIND(KINDS, kind, K) ((KINDS) >> K & 1 && (((KINDS) & ((KINDS)-1)) == 0 || kind == K))
#define FOR_KIND(KINDS, kind, DO)                                                                                    \
    if (IS_KIND(KINDS, kind, PERSISTENT_Q4_K)) {                                                                     \
        DO(unit_q4_K);                                                                                               \
    } else if (IS_KIND(KINDS, kind, PERSISTENT_Q4_0)) {                                                              \
        DO(unit_q4_0_soa);                                                                                           \
    } else if (IS_KIND(KINDS, kind, PERSISTENT_Q6_K)) {                                                              \
        DO(unit_q6_K_soa);                                                                                           \
    } else if (IS_KIND(KINDS, kind, PERSISTENT_Q8_0)) {                                                              \
        DO(unit_q8_0_soa);                                                                                           \
    } else if (IS_KIND(KINDS, kind, PERSISTENT_F16)) {                                                               \
        DO(unit_half<false>);                                                                                        \
    } else if (IS_KIND(KINDS, kind, PERSISTENT_BF16)) {                                                              \
        DO(unit_half<true>);                                                                                         \
    }
static persistent_weight persistent_weight_of(int kind) {
    switch (kind) {
    case TN_F16: return PERSISTENT_F16;
    case TN_BF16: return PERSISTENT_BF16;
    case TN_Q4_0 | SOA: return PERSISTENT_Q4_0;
    case TN_Q8_0 | SOA: return PERSISTENT_Q8_0;
    case TN_Q4_K: return PERSISTENT_Q4_K;
    case TN_Q6_K | SOA: return PERSISTENT_Q6_K;
    default: return PERSISTENT_NONE;
    }
}

typedef void (*persistent_function)(const persistent_step *, int, unsigned *, unsigned *, int);
// The kernel for weights of these types (a bit for each), and attention heads of `size` elements, `group` of them for
// each key/value head.
persistent_function persistent_kernel_for(int kinds, int size, int group);

#endif

// One block per multiprocessor runs all steps.
//
// Results are told, not announced: two neighbouring floats are written at once, and their lowest bits hold the number
// of the step. Who needs them reads until the number is right, so a step costs one trip to the second cache and back
// where a barrier costs three. The bits are far below what the products keep of a float. Steps whose results cannot
// be told this way are waited for at a barrier of all blocks.
//
// Who has heard all of a step's results knows that all blocks have ended it, so memory may be told anew two steps
// later.
//
// Weights do not depend on what is computed, so their stream never stops: every warp has a ring of stages in shared
// memory and refills each stage soon after it has read it, over the ends of rows, matrices and steps. While the
// blocks wait for each other and prepare the next activations, the rings fill up with the weights of the next steps.
// Between telling and hearing nothing is fetched: that is the way everybody waits for.
//
// A product: its groups of rows are divided evenly among blocks. A block's are cut into pieces, and those divided
// evenly among its warps; who began a group finishes it (residual, gate), with what the warps after it had of it.
// Every block brings all activations to its shared memory by itself: normed, and quantized for block types.
//
// An attention: a block has a key/value head and a share of the cells, a warp every sixteenth eight of them. Warps
// meet in shared memory, blocks in scratch, where the last to come joins them.
//
// Everything runs once per step and soon again, so what counts beside the stream is that the code stays small: what
// does not fit the instruction cache costs more than what it computes.
#include "backend/cuda/kernels/persistent/persistent_attention.cuh"
#include "backend/cuda/kernels/persistent/persistent_layout.cuh"
#include "backend/cuda/kernels/persistent/persistent_matmul.cuh"
#include "backend/cuda/kernels/persistent/persistent_sync.cuh"
#include "backend/cuda/kernels/persistent/persistent_weights.cuh"

// All attentions of a chain have heads of one size and at most GROUP for each key/value head.
template <int SIZE, int GROUP, int KINDS>
__global__ static void __launch_bounds__(THREADS, 1)
    persistent_decode_kernel(const persistent_step *steps, int n, unsigned *counters, unsigned *epoch,
                             int norm_bytes) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char room[];
    __shared__ __align__(16) knowledge known;
    __shared__ __align__(8) uint64_t learned[KNOWN], full[WARPS][STAGES];
    __shared__ __align__(8) weighed norm;
    __shared__ view seen_from;
    __shared__ float2 turn[64];
    __shared__ float sums[32], rests[WARPS][2][4];
    __shared__ stream streams[WARPS];
    __shared__ progress kept[WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *ring = room + warp * STAGES * STAGE, *weights = room + WARPS * STAGES * STAGE,
         *shared = weights + norm_bytes;
    static_assert(sizeof(persistent_step) % 16 == 0, "steps are copied 16 bytes at a time");
    auto learn = [&](int step) { // by one thread; nobody waits
        if (step >= n) return;
        barrier_expect(&learned[step % KNOWN], sizeof(persistent_step));
        bulk((char *)&known.steps[step % KNOWN], (const char *)&steps[step], sizeof(persistent_step),
             &learned[step % KNOWN]);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < KNOWN; i++) barrier_init(&learned[i]);
        for (int i = 0; i < WARPS * STAGES; i++) barrier_init(&full[i / STAGES][i % STAGES]);
        barrier_init(&norm.there);
        norm.step = -1;
        norm.phase = 1;
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i <= LOOKAHEAD; i++) learn(i);
    }
    __syncthreads();
    // What lasts from step to step is in shared memory: in registers it would be in the way, and what does not fit
    // those is lost to the cache with every wait.
    if (lane == 0) {
        streams[warp] = {};
        streams[warp].step = -1;
        kept[warp] = {0, -1, -1, 0};
    }
    __syncwarp();
    // What does not depend on the step before: a step's share is computed long before it, its description has come
    // even earlier.
    auto prepare_step = [&](int step) {
        int far = step + LOOKAHEAD;
        if (far < n) {
            barrier_wait(&learned[far % KNOWN], (uint32_t)(far / KNOWN & 1));
            if (lane == 0 && !known.steps[far % KNOWN].is_attention)
                known.shares[far % KNOWN][warp] = share_of(known.steps[far % KNOWN].matmul, warp);
        }
        if (threadIdx.x == THREADS - 1 && step >= 0) learn(far + 1); // for the next step
        __syncwarp();
    };
#pragma unroll 1
    for (int step = -LOOKAHEAD; step < 0; step++) prepare_step(step);
    // Weights may come before the launch before has ended, nothing else.
    if (lane == 0) stream_fetch(streams[warp], 0, known, min(n, (int)LOOKAHEAD) - 1, ring, full[warp]);
    __syncwarp();
    grid_wait();
    const unsigned began = *(volatile unsigned *)epoch;
    for (;;) {
        int step = kept[warp].now;
        if (step >= n) break;
        int last_known = min(n - 1, step + LOOKAHEAD);
        const persistent_step &now = known.steps[step % KNOWN];
        unsigned tag = tag_of(began, step), input_tag = now.input_step < 0 ? 0 : tag_of(began, now.input_step);
        bool is_attention = now.is_attention;
        if (is_attention) {
            const decode_job &d = now.attention;
            if (d.dims && kept[warp].turned != d.rotation) angles(d, d.positions[0], turn);
            bool known_view = kept[warp].viewed == d.view;
            __syncwarp();
            if (lane == 0) {
                kept[warp].turned = d.rotation;
                kept[warp].viewed = d.view;
            }
            attend<SIZE, GROUP>(now, shared, turn, seen_from, known_view, counters, input_tag, tag);
            prepare_step(step); // while those who have cells are busy, and what they tell is on its way
            __syncthreads();    // others may still need what lies near
        } else {
            if (now.waits) wait_for_all(counters, (unsigned)now.arrivals * gridDim.x);
            first_tagged first;
            load_first_words(now.matmul, 8 * (int)threadIdx.x, first.h);
            prepare_step(step);
            run_matmul<KINDS>(now.matmul, known.shares[step % KNOWN][warp], shared, streams[warp], kept[warp], known,
                              step, last_known, ring, full[warp], rests, sums, norm, weights, norm_bytes, input_tag,
                              tag, first);
        }
        if (now.arrives) arrive(counters);
        if (lane == 0) kept[warp].now++;
        __syncwarp();
    }
    grid_next(); // not sooner: what waits for its turn takes room from those that run
    // Whoever ends last leaves the counters as they were.
    if (threadIdx.x == 0 && atomicInc(counters + 32, gridDim.x - 1) == gridDim.x - 1) {
        counters[0] = 0;
        *epoch = (began + (unsigned)n) % TAGS;
    }
#endif
}

template <int SIZE, int KINDS> static persistent_function kernel_for(int group) {
    return group <= 1   ? persistent_decode_kernel<SIZE, 1, KINDS>
           : group == 2 ? persistent_decode_kernel<SIZE, 2, KINDS>
           : group == 4 ? persistent_decode_kernel<SIZE, 4, KINDS>
                        : persistent_decode_kernel<64, 8, KINDS>; // the only size that takes eight
}
template <int KINDS> static persistent_function kernel_for(int size, int group) {
    return size == 64 ? kernel_for<64, KINDS>(group) : kernel_for<128, KINDS>(group);
}
persistent_function persistent_kernel_for(int kinds, int size, int group) {
    enum {
        F16 = 1 << PERSISTENT_F16,
        Q8 = 1 << PERSISTENT_Q8_0,
        Q6 = 1 << PERSISTENT_Q6_K,
        Q4 = 1 << PERSISTENT_Q4_0,
        Q4K = 1 << PERSISTENT_Q4_K
    };
    return kinds == F16             ? kernel_for<F16>(size, group)
           : kinds == Q8            ? kernel_for<Q8>(size, group)
           : !(kinds & ~(Q4 | Q6))  ? kernel_for<Q4 | Q6>(size, group)
           : !(kinds & ~(Q4K | Q6)) ? kernel_for<Q4K | Q6>(size, group)
                                    : kernel_for<ALL_KINDS>(size, group);
}

// The persistent decode kernel: one block per multiprocessor runs all steps of a launch.
//
// Exchanging results (persistent_sync.cuh): two neighbouring floats are published with one store, and their lowest
// bits hold the step tag. A reader polls until the tag matches, so a step costs one round trip to the L2 cache where
// a barrier of all blocks costs three. The bits that the tag replaces are later below the precision of the
// multiplications. Steps whose results cannot be published end with a barrier of all blocks.
//
// A block that has read every result of step n knows that all blocks have finished step n, so a result buffer can be
// reused at step n + 2. Two buffers used in turn are enough.
//
// Weights (persistent_weights.cuh) stream into shared memory without a pause. While blocks wait for each other and
// load the next input, the rings fill up with the weights of the next steps. Issue no weight fetches between
// publishing a step's results and polling for the next step's input: they would delay the critical path.
//
// Matmul: persistent_matmul.cuh. Attention: persistent_attention.cuh.
//
// Every instruction runs once per step and then again a few microseconds later, so besides the weight stream the size
// of the code counts: instruction cache misses cost more than the computation.
#include "backend/cuda/kernels/persistent/persistent_attention.cuh"
#include "backend/cuda/kernels/persistent/persistent_layout.cuh"
#include "backend/cuda/kernels/persistent/persistent_matmul.cuh"
#include "backend/cuda/kernels/persistent/persistent_sync.cuh"
#include "backend/cuda/kernels/persistent/persistent_weights.cuh"

// Runs steps[0] to steps[n - 1]. counters[0] counts arrivals at the barrier of all blocks, counters[32] blocks that
// have finished; both are 0 before and after. *epoch is the number of steps run so far, modulo TAGS. norm_bytes:
// shared memory for prefetched norm weights, or 0. All attentions have heads of SIZE elements and at most GROUP
// query heads for each key/value head.
template <int SIZE, int GROUP, int KINDS>
__global__ static void __launch_bounds__(THREADS, 1)
    persistent_decode_kernel(const persistent_step *steps, int n, unsigned *counters, unsigned *epoch,
                             int norm_bytes) {
#if __CUDA_ARCH__ >= 900
    // The rings of all warps, then norm weights, then a step's input or an attention_shared.
    extern __shared__ __align__(128) char dynamic_shared[];
    __shared__ __align__(16) step_window window;
    __shared__ __align__(8) uint64_t step_loaded[STEP_WINDOW], full[WARPS][STAGES];
    __shared__ __align__(8) norm_prefetch norm;
    __shared__ cell_view view;
    __shared__ float2 rotation[64];
    __shared__ float squares[32], partial_sums[WARPS][2][4];
    __shared__ weight_fetch fetches[WARPS];
    __shared__ warp_progress progress[WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *ring = dynamic_shared + warp * STAGES * STAGE_BYTES,
         *norm_weights = dynamic_shared + WARPS * STAGES * STAGE_BYTES, *shared = norm_weights + norm_bytes;
    static_assert(sizeof(persistent_step) % 16 == 0, "steps are copied 16 bytes at a time");
    auto load_step = [&](int step) { // starts the copy; called by one thread
        if (step >= n) return;
        barrier_expect(&step_loaded[step % STEP_WINDOW], sizeof(persistent_step));
        bulk((char *)&window.steps[step % STEP_WINDOW], (const char *)&steps[step], sizeof(persistent_step),
             &step_loaded[step % STEP_WINDOW]);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STEP_WINDOW; i++) barrier_init(&step_loaded[i]);
        for (int i = 0; i < WARPS * STAGES; i++) barrier_init(&full[i / STAGES][i % STAGES]);
        barrier_init(&norm.loaded);
        norm.step = -1;
        norm.phase = 1;
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i <= LOOKAHEAD; i++) load_step(i);
    }
    __syncthreads();
    // What a warp keeps from step to step is in shared memory. Registers are needed elsewhere, and spilled ones would
    // be evicted from the L1 cache while polling.
    if (lane == 0) {
        fetches[warp] = {};
        fetches[warp].step = -1;
        progress[warp] = {0, -1, -1, 0};
    }
    __syncwarp();
    // Computes the share of the step LOOKAHEAD steps after this one and starts loading the description of the one
    // after that. Neither depends on results of the previous step.
    auto prepare_step = [&](int step) {
        int later = step + LOOKAHEAD;
        if (later < n) {
            barrier_wait(&step_loaded[later % STEP_WINDOW], (uint32_t)(later / STEP_WINDOW & 1));
            if (lane == 0 && !window.steps[later % STEP_WINDOW].is_attention)
                window.shares[later % STEP_WINDOW][warp] =
                    warp_share_of(window.steps[later % STEP_WINDOW].matmul, warp);
        }
        if (threadIdx.x == THREADS - 1 && step >= 0) load_step(later + 1);
        __syncwarp();
    };
#pragma unroll 1
    for (int step = -LOOKAHEAD; step < 0; step++) prepare_step(step);
    // Only weights may be read before the previous kernel has ended.
    if (lane == 0) fetch_weights(fetches[warp], 0, window, min(n, (int)LOOKAHEAD) - 1, ring, full[warp]);
    __syncwarp();
    grid_wait();
    if (n <= FEW_STEPS) grid_next();
    const unsigned first_epoch = *(volatile unsigned *)epoch;
    for (;;) {
        int step = progress[warp].step;
        if (step >= n) break;
        int last_loaded = min(n - 1, step + LOOKAHEAD);
        const persistent_step &current = window.steps[step % STEP_WINDOW];
        unsigned tag = tag_of(first_epoch, step),
                 input_tag = current.input_step < 0 ? 0 : tag_of(first_epoch, current.input_step);
        bool is_attention = current.is_attention;
        if (is_attention) {
            const decode_job &d = current.attention;
            if (d.dims && progress[warp].rotation != d.rotation) rope_table(d, d.positions[0], rotation);
            bool view_is_loaded = progress[warp].view == d.view;
            __syncwarp();
            if (lane == 0) {
                progress[warp].rotation = d.rotation;
                progress[warp].view = d.view;
            }
            attend<SIZE, GROUP>(current, shared, rotation, view, view_is_loaded, counters, input_tag, tag);
            prepare_step(step); // overlaps with the blocks that still attend
            __syncthreads();    // other warps may still read the shared memory that the next step overwrites
        } else {
            if (current.waits) wait_for_arrivals(counters, (unsigned)current.arrivals * gridDim.x);
            early_input first;
            load_input(current.matmul, 8 * (int)threadIdx.x, first.words);
            prepare_step(step);
            run_matmul<KINDS>(current.matmul, window.shares[step % STEP_WINDOW][warp], shared, fetches[warp],
                              progress[warp], window, step, last_loaded, ring, full[warp], partial_sums, squares,
                              norm, norm_weights, norm_bytes, input_tag, tag, first);
        }
        if (current.arrives) arrive_at_barrier(counters);
        if (lane == 0) progress[warp].step++;
        __syncwarp();
    }
    if (n > FEW_STEPS) grid_next(); // not sooner: waiting blocks of the next kernel would occupy resources
    // The last block to finish resets the counters for the next launch.
    if (threadIdx.x == 0 && atomicInc(counters + 32, gridDim.x - 1) == gridDim.x - 1) {
        counters[0] = 0;
        *epoch = (first_epoch + (unsigned)n) % TAGS;
    }
#endif
}

template <int SIZE, int GROUP, int KINDS> static persistent_kernel chosen_kernel(const char *types) {
    return {kernel_called("persistent_decode_kernel", types, SIZE, GROUP),
            persistent_decode_kernel<SIZE, GROUP, KINDS>};
}
template <int SIZE, int KINDS> static persistent_kernel kernel_for_group(int group, const char *types) {
    return group <= 1   ? chosen_kernel<SIZE, 1, KINDS>(types)
           : group == 2 ? chosen_kernel<SIZE, 2, KINDS>(types)
           : group == 4 ? chosen_kernel<SIZE, 4, KINDS>(types)
                        : chosen_kernel<64, 8, KINDS>(types); // persistent_takes_attention() allows 8 only here
}
template <int KINDS> static persistent_kernel kernel_for_size(int size, int group, const char *types) {
    return size == 64 ? kernel_for_group<64, KINDS>(group, types) : kernel_for_group<128, KINDS>(group, types);
}
persistent_kernel persistent_kernel_for(int kinds, int size, int group) {
    enum {
        F16 = 1 << PERSISTENT_F16,
        Q8 = 1 << PERSISTENT_Q8_0,
        Q6 = 1 << PERSISTENT_Q6_K,
        Q4 = 1 << PERSISTENT_Q4_0,
        Q4K = 1 << PERSISTENT_Q4_K,
        Q5K = 1 << PERSISTENT_Q5_K,
        K_AND_Q8 = Q4K | Q5K | Q6 | Q8
    };
    return kinds == F16             ? kernel_for_size<F16>(size, group, "f16")
           : kinds == Q8            ? kernel_for_size<Q8>(size, group, "q8_0")
           : !(kinds & ~(Q4 | Q6))  ? kernel_for_size<Q4 | Q6>(size, group, "q4_0|q6_K")
           : !(kinds & ~(Q4K | Q6)) ? kernel_for_size<Q4K | Q6>(size, group, "q4_K|q6_K")
           : !(kinds & ~K_AND_Q8)   ? kernel_for_size<K_AND_Q8>(size, group, "q4_K|q5_K|q6_K|q8_0")
                                    : kernel_for_size<ALL_KINDS>(size, group, "any");
}

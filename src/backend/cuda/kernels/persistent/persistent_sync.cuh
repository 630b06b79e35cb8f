// The persistent decode kernel: how blocks exchange results. They publish floats that carry a step tag, and poll for
// the tag; where that is not possible, they meet at a barrier of all blocks.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_SYNC_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_SYNC_CUH

#include "backend/cuda/kernels/persistent/persistent_layout.cuh"

#if __CUDA_ARCH__ >= 900
// ---- Barrier of all blocks ----

// counters[0] counts the arrivals of this launch, one per block and arriving step. All threads of a block call this.
__device__ static inline void arrive_at_barrier(unsigned *counters) {
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counters) : "memory");
}
__device__ static inline void wait_for_arrivals(const unsigned *counters, unsigned arrivals) {
    if (threadIdx.x == 0) {
        unsigned seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counters) : "memory");
        while (seen < arrivals);
    }
    __syncthreads();
}

// ---- Publishing and polling ----

// A step's tag, 1 to TAGS. Memory that was never published holds zeros, and `epoch` continues over launches, so a tag
// left by an earlier launch does not match. Tag 0 stands for data that is not exchanged this way: its floats carry no
// tag, and polling returns at once.
__device__ static inline unsigned tag_of(unsigned epoch, int step) { return (epoch + (unsigned)step) % TAGS + 1; }
enum : uint32_t { TAG_MASK = (1 << TAG_BITS) - 1 };
__device__ static inline float without_tag(float x) { return __uint_as_float(__float_as_uint(x) & ~TAG_MASK); }
// Replaces the lowest bits by the tag: rounds to nearest, and keeps NaN a NaN.
__device__ static inline uint32_t with_tag(float x, unsigned tag) {
    uint32_t bits = x == x ? __float_as_uint(x) + TAG_MASK / 2 + 1 : 0x7fc00000u;
    return (bits & ~TAG_MASK) | tag;
}
// Publishes two floats with one 8-byte store, so that they become visible together. `to` is 8-byte aligned.
__device__ static inline void publish(float *to, float a, float b, unsigned tag) {
    uint64_t both = with_tag(a, tag & TAG_MASK) | (uint64_t)with_tag(b, tag >> TAG_BITS) << 32;
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}
// Four floats as loaded, which may not be published yet.
struct tagged_words {
    uint64_t a, b;
};
__device__ static inline tagged_words load_tagged(const float *from) {
    tagged_words h;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(h.a), "=l"(h.b) : "l"(from) : "memory");
    return h;
}
__device__ static inline bool has_tag(tagged_words h, unsigned tag) {
    const uint64_t expected = (tag & TAG_MASK) | (uint64_t)(tag >> TAG_BITS) << 32,
                   bits = TAG_MASK | (uint64_t)TAG_MASK << 32;
    return !tag || !(((h.a ^ expected) | (h.b ^ expected)) & bits);
}
__device__ static inline float4 floats_of(tagged_words h, unsigned tag) {
    uint32_t mask = tag ? ~TAG_MASK : ~0u;
    return make_float4(__uint_as_float((uint32_t)h.a & mask), __uint_as_float((uint32_t)(h.a >> 32) & mask),
                       __uint_as_float((uint32_t)h.b & mask), __uint_as_float((uint32_t)(h.b >> 32) & mask));
}
// Loads again until the tag is there. `h`: what was loaded before.
__device__ static inline float4 poll(tagged_words h, const float *from, unsigned tag) {
    while (!has_tag(h, tag)) h = load_tagged(from);
    return floats_of(h, tag);
}
// Polls for eight floats per lane, of which `h` was loaded before. The whole warp calls this; lanes without `needed`
// only take part. While something is missing, one lane polls for all: every warp of every block reads the same few
// cache lines, and the traffic of 32 polling lanes each slows the weight stream.
__device__ static inline void poll_warp(tagged_words (&h)[2], const float *from, bool needed, unsigned tag) {
    unsigned missing;
    while ((missing = __ballot_sync(0xffffffffu, needed && !(has_tag(h[0], tag) && has_tag(h[1], tag))))) {
        if ((int)threadIdx.x % 32 == __ffs((int)missing) - 1) {
            while (!has_tag(h[0], tag)) h[0] = load_tagged(from);
            while (!has_tag(h[1], tag)) h[1] = load_tagged(from + 4);
        }
        __syncwarp();
        if (missing >> threadIdx.x % 32 & 1) {
            h[0] = load_tagged(from);
            h[1] = load_tagged(from + 4);
        }
    }
}
#endif

#endif

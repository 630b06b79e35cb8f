// GEMV units: what one lane multiplies at a time, by weight kind; and bulk copies into shared memory.
#ifndef TN_BACKEND_CUDA_KERNELS_GEMV_UNITS_CUH
#define TN_BACKEND_CUDA_KERNELS_GEMV_UNITS_CUH

#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/weights.cuh"

// ---- Bulk copies into shared memory (from compute capability 9.0 on) ----

#if __CUDA_ARCH__ >= 900
__device__ static inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
// An mbarrier that one arrival and the bytes it announces complete.
__device__ static inline void barrier_init(uint64_t *b) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(b)));
}
// Arrives and announces the bytes that copies will deliver.
__device__ static inline void barrier_expect(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}
__device__ static inline void barrier_wait(uint64_t *b, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(shared_address(b)), "r"(parity)
            : "memory");
    } while (!done);
}
#endif
// Copies `bytes`, a multiple of 16, from global memory asynchronously and signals the barrier `full`. One thread
// calls this.
__device__ static inline void bulk(char *to, const char *from, uint32_t bytes, uint64_t *full) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full))
                 : "memory");
#endif
}

// The same for data that is read once: the L2 cache evicts it first.
__device__ static inline void bulk_once(char *to, const char *from, uint32_t bytes, uint64_t *full) {
#if __CUDA_ARCH__ >= 900
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(policy)
                 : "memory");
#endif
}

// sum + the dot product of four unsigned bytes with four signed bytes.
__device__ static inline int dot4(uint32_t a, int b, int sum) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}
// Adds the dot product of the low nibbles of 16 bytes with a, and 16 times that of the high nibbles with b.
__device__ static inline void dot_nibbles(uint4 q, int4 a, int4 b, int *low, int *high16) {
    *low = dot4(q.x & 0x0f0f0f0f, a.x, *low);
    *high16 = dot4(q.x & 0xf0f0f0f0, b.x, *high16);
    *low = dot4(q.y & 0x0f0f0f0f, a.y, *low);
    *high16 = dot4(q.y & 0xf0f0f0f0, b.y, *high16);
    *low = dot4(q.z & 0x0f0f0f0f, a.z, *low);
    *high16 = dot4(q.z & 0xf0f0f0f0, b.z, *high16);
    *low = dot4(q.w & 0x0f0f0f0f, a.w, *low);
    *high16 = dot4(q.w & 0xf0f0f0f0, b.w, *high16);
}

// ---- Units ----

// In each step a warp processes a piece of SPAN elements of a row: ROW contiguous bytes. A row's last piece may be
// shorter.
//   load()    reads the lane's share of a step from global memory into registers
//   take()    the same from a piece of `elements` elements in shared memory
//   dot()     multiplies the share with column c of the activations
//   covers()  whether the lane has a share in this step
// RING: stages of a warp's ring in gemv_ring_kernel. In the persistent decode kernel a stage holds GROUP rows, and
// rows must be a multiple of GRAIN elements.

// Two blocks of 32 per lane, so that enough loads are in flight.
struct unit_q4_0_soa {
    enum { SPAN = Q4_0_PIECE, ROW = SPAN / 32 * 18, RING = 2, GRAIN = 32, GROUP = 4 };
    uint4 q[2];
    float d[2];
    __device__ static bool covers(int step, int lane, int k) { return step * SPAN + 32 * lane < k; }
    __device__ void load(const char *row, int step, int lane, int k) {
        int elements = min((int)SPAN, k - step * SPAN);
        take(row + ROW * step, lane, elements, 32 * (lane + 32) < elements);
    }
    __device__ void take(const char *piece, int lane, int elements, bool more = true) {
        const uint4 *quants = (const uint4 *)piece + lane;
        const __half *scales = (const __half *)(piece + elements / 2) + lane;
        q[0] = quants[0];
        d[0] = __half2float(scales[0]);
        q[1] = more ? quants[32] : make_uint4(0, 0, 0, 0);
        d[1] = more ? __half2float(scales[32]) : 0;
    }
    __device__ float dot(const activations &in, int c, int k, int step, int lane) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int u = 64 * step + 32 * i + lane, here = min(u, k / 32 - 1); // no branch: loads of several rows overlap
            const int4 *v = (const int4 *)(in.q + (int64_t)c * k + 32 * here);
            int4 low = v[0], high = v[1];
            short2 sums = in.sums[c * (k / 32) + here];
            int dot = -8 * (sums.x + sums.y), high16 = 0;
            dot_nibbles(q[i], low, high, &dot, &high16);
            float part = d[i] * in.scale[c * (k / 32) + here] * (float)(dot + (high16 >> 4));
            sum += u == here ? part : 0;
        }
        return sum;
    }
};

struct unit_q8_0_soa {
    enum { SPAN = Q8_0_PIECE, ROW = SPAN / 32 * 34, RING = 2, GRAIN = 32, GROUP = 4 };
    int4 q[2];
    float d;
    __device__ static bool covers(int step, int lane, int k) { return step * SPAN + 32 * lane < k; }
    __device__ void load(const char *row, int step, int lane, int k) {
        take(row + ROW * step, lane, min((int)SPAN, k - step * SPAN));
    }
    __device__ void take(const char *piece, int lane, int elements) {
        q[0] = ((const int4 *)piece)[2 * lane];
        q[1] = ((const int4 *)piece)[2 * lane + 1];
        d = __half2float(((const __half *)(piece + elements))[lane]);
    }
    __device__ float dot(const activations &in, int c, int k, int step, int lane) const {
        int u = 32 * step + lane;
        const int4 *v = (const int4 *)(in.q + (int64_t)c * k + 32 * u);
        int4 x = v[0], y = v[1];
        int dot = __dp4a(q[0].x, x.x, 0);
        dot = __dp4a(q[0].y, x.y, dot);
        dot = __dp4a(q[0].z, x.z, dot);
        dot = __dp4a(q[0].w, x.w, dot);
        dot = __dp4a(q[1].x, y.x, dot);
        dot = __dp4a(q[1].y, y.y, dot);
        dot = __dp4a(q[1].z, y.z, dot);
        dot = __dp4a(q[1].w, y.w, dot);
        return d * in.scale[c * (k / 32) + u] * (float)dot;
    }
};

// 64 elements per lane: two neighbouring sub-blocks, which share 32 bytes. Blocks have 144 bytes, so they are 16-byte
// aligned.
struct unit_q4_K {
    enum { SPAN = 64 * 32, ROW = SPAN / 256 * 144, RING = 2, GRAIN = 256, GROUP = 4 };
    uint4 q[2];
    float s[2], m[2];
    __device__ static bool covers(int step, int lane, int k) { return step * SPAN + lane * (SPAN / 32) < k; }
    __device__ void load(const char *row, int step, int lane, int) { take(row + ROW * step, lane, SPAN); }
    __device__ void take(const char *piece, int lane, int) { take_from(piece + 144 * (lane / 4), lane % 4); }
    __device__ void take_from(const char *block, int pair) {
        q[0] = *(const uint4 *)(block + 16 + 32 * pair);
        q[1] = *(const uint4 *)(block + 32 + 32 * pair);
        take_head(block, pair);
    }
    __device__ void take_head(const char *block, int pair) {
        // head: d and dmin, then 12 bytes with 6 bits for each scale and minimum. Both sub-blocks are unpacked at
        // once. The first four sub-blocks have their scales in the low bits of y's bytes and their minima in those of
        // z. The last four have 4 bits in w's nibbles and 2 bits in the top of y and z.
        uint4 head = *(const uint4 *)block;
        float d = half_bits((uint16_t)head.x), dmin = half_bits((uint16_t)(head.x >> 16));
        int shift = pair % 2 * 16;
        uint32_t y = head.y >> shift, z = head.z >> shift, w = head.w >> shift;
        uint32_t scales = pair < 2 ? y & 0x3f3f : (w & 0x0f0f) | (y & 0xc0c0) >> 2,
                 mins = pair < 2 ? z & 0x3f3f : (w >> 4 & 0x0f0f) | (z & 0xc0c0) >> 2;
        s[0] = d * (float)(scales & 0xff);
        s[1] = d * (float)(scales >> 8);
        m[0] = dmin * (float)(mins & 0xff);
        m[1] = dmin * (float)(mins >> 8);
    }
    __device__ float dot(const activations &in, int c, int k, int step, int lane) const {
        const int8_t *a = in.q + (int64_t)c * k;
        const float *scale = in.scale + c * (k / 32);
        const short2 *sums = in.sums + c * (k / 32);
        int u = 32 * step + lane;
        const int4 *v = (const int4 *)(a + 64 * u);
        int4 v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3];
        int low = 0, high = 0;
        dot_nibbles(q[0], v0, v2, &low, &high);
        dot_nibbles(q[1], v1, v3, &low, &high);
        high >>= 4;
        short2 s0 = sums[2 * u], s1 = sums[2 * u + 1];
        return scale[2 * u] * (s[0] * (float)low - m[0] * (float)(s0.x + s0.y)) +
               scale[2 * u + 1] * (s[1] * (float)high - m[1] * (float)(s1.x + s1.y));
    }
};

// As q4_K, with a fifth bit of each weight: bits 2p and 2p + 1 of the 32 bytes before the nibbles belong to the two
// sub-blocks of pair p. Blocks have 176 bytes.
struct unit_q5_K {
    enum { SPAN = 64 * 32, ROW = SPAN / 256 * 176, RING = 2, GRAIN = 256, GROUP = 2 };
    unit_q4_K low;
    uint4 h[2];
    int pair;
    __device__ static bool covers(int step, int lane, int k) { return unit_q4_K::covers(step, lane, k); }
    __device__ void load(const char *row, int step, int lane, int) { take(row + ROW * step, lane, SPAN); }
    __device__ void take(const char *piece, int lane, int) {
        const char *block = piece + 176 * (lane / 4);
        pair = lane % 4;
        low.take_head(block, pair);
        low.q[0] = *(const uint4 *)(block + 48 + 32 * pair);
        low.q[1] = *(const uint4 *)(block + 64 + 32 * pair);
        h[0] = *(const uint4 *)(block + 16);
        h[1] = *(const uint4 *)(block + 32);
    }
    // Adds the dot products of four weights of each sub-block.
    __device__ static void dot_word(uint32_t q, uint32_t h, int a, int b, int *first, int *second) {
        *first = dot4((q & 0x0f0f0f0f) | (h & 0x01010101) << 4, a, *first);
        *second = dot4((q >> 4 & 0x0f0f0f0f) | (h & 0x02020202) << 3, b, *second);
    }
    __device__ float dot(const activations &in, int c, int k, int step, int lane) const {
        const float *scale = in.scale + c * (k / 32);
        const short2 *sums = in.sums + c * (k / 32);
        int u = 32 * step + lane, first = 0, second = 0;
        const int4 *v = (const int4 *)(in.q + (int64_t)c * k + 64 * u);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int4 a = v[i], b = v[2 + i];
            dot_word(low.q[i].x, h[i].x >> 2 * pair, a.x, b.x, &first, &second);
            dot_word(low.q[i].y, h[i].y >> 2 * pair, a.y, b.y, &first, &second);
            dot_word(low.q[i].z, h[i].z >> 2 * pair, a.z, b.z, &first, &second);
            dot_word(low.q[i].w, h[i].w >> 2 * pair, a.w, b.w, &first, &second);
        }
        short2 s0 = sums[2 * u], s1 = sums[2 * u + 1];
        return scale[2 * u] * (low.s[0] * (float)first - low.m[0] * (float)(s0.x + s0.y)) +
               scale[2 * u + 1] * (low.s[1] * (float)second - low.m[1] * (float)(s1.x + s1.y));
    }
};

// 64 elements per lane: the same 16 positions in each of the four quarters of a half block.
struct unit_q6_K_soa {
    enum { SPAN = Q6_K_PIECE, ROW = SPAN / 256 * 210, RING = 2, GRAIN = 256, GROUP = 2 };
    uint4 low0, low1, high;
    float d[4];
    __device__ static bool covers(int step, int lane, int k) { return step * SPAN + lane * (SPAN / 32) < k; }
    __device__ void load(const char *row, int step, int lane, int k) {
        take(row + ROW * step, lane, min((int)SPAN, k - step * SPAN));
    }
    __device__ void take(const char *piece, int lane, int elements) {
        int blocks = elements / 256, block = lane / 4;
        take_from(piece + 128 * block, piece + 128 * blocks + 64 * block,
                  (const int8_t *)piece + 192 * blocks + 16 * block, (const __half *)(piece + 208 * blocks) + block,
                  lane);
    }
    // Loads unit u of a block from the block's low bits, high bits, scales and factor.
    __device__ void take_from(const char *ql, const char *qh, const int8_t *scales, const __half *factor, int u) {
        int half = u / 2 % 2, group = u % 2;
        low0 = *(const uint4 *)(ql + 64 * half + 16 * group);
        low1 = *(const uint4 *)(ql + 64 * half + 16 * group + 32);
        high = *(const uint4 *)(qh + 32 * half + 16 * group);
        float scale = __half2float(*factor);
        for (int i = 0; i < 4; i++) d[i] = scale * (float)scales[8 * half + group + 2 * i];
    }
    __device__ static int quarter(uint4 low, uint4 high, int low_shift, int high_shift, const int8_t *a) {
        int4 v = *(const int4 *)a;
        uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
        int w[4] = {v.x, v.y, v.z, v.w}, sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum = __dp4a((int)((l[i] >> low_shift & 0x0f0f0f0f) | (h[i] >> high_shift & 0x03030303) << 4), w[i], sum);
        return sum;
    }
    __device__ float dot(const activations &in, int c, int k, int step, int lane) const {
        const int8_t *a = in.q + (int64_t)c * k;
        const float *scale = in.scale + c * (k / 32);
        const short2 *sums = in.sums + c * (k / 32);
        int u = 32 * step + lane;
        int half = u / 2, group = u % 2; // half blocks of 128 elements, counted from the row's start
        const int8_t *v = a + 128 * half + 16 * group;
        const float *sc = scale + 4 * half;
        const short2 *sm = sums + 4 * half;
        int q0 = quarter(low0, high, 0, 0, v), q1 = quarter(low1, high, 0, 2, v + 32),
            q2 = quarter(low0, high, 4, 4, v + 64), q3 = quarter(low1, high, 4, 6, v + 96);
        int s[4];
        for (int i = 0; i < 4; i++) s[i] = group ? sm[i].y : sm[i].x;
        return sc[0] * d[0] * (float)(q0 - 32 * s[0]) + sc[1] * d[1] * (float)(q1 - 32 * s[1]) +
               sc[2] * d[2] * (float)(q2 - 32 * s[2]) + sc[3] * d[3] * (float)(q3 - 32 * s[3]);
    }
};

// f16 and bf16: twice eight elements per lane, so that a warp reads whole cache lines.
template <bool BF16> struct unit_half {
    enum { SPAN = 512, ROW = 2 * SPAN, RING = 2, GRAIN = 8, GROUP = 4 };
    uint4 raw[2];
    __device__ static bool covers(int step, int lane, int k) { return step * SPAN + 8 * lane < k; }
    __device__ void load(const char *row, int step, int lane, int k) {
        const uint4 *p = (const uint4 *)row + step * 64 + lane;
        raw[0] = p[0];
        raw[1] = step * SPAN + 256 + 8 * lane < k ? p[32] : make_uint4(0, 0, 0, 0);
    }
    __device__ void take(const char *piece, int lane, int) {
        const uint4 *p = (const uint4 *)piece + lane;
        raw[0] = p[0];
        raw[1] = p[32];
    }
    __device__ float dot(const activations &in, int c, int k, int step, int lane) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int at = step * SPAN + 256 * i + 8 * lane, here = min(at, k - 8);
            const float4 *x = (const float4 *)(in.y + c * in.stride + here);
            float4 p = x[0], q = x[1];
            const uint32_t word[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
            float2 f[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                f[e] = BF16 ? make_float2(__uint_as_float(word[e] << 16), __uint_as_float(word[e] & 0xffff0000u))
                            : __half22float2(*(const __half2 *)&word[e]);
            float part = f[0].x * p.x + f[0].y * p.y + f[1].x * p.z + f[1].y * p.w + f[2].x * q.x + f[2].y * q.y +
                         f[3].x * q.z + f[3].y * q.w;
            sum += at == here ? part : 0;
        }
        return sum;
    }
};

#endif

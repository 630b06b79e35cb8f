// Attention for many tokens over an f16 cache, on tensor cores: a block takes 64 queries of one head and walks over
// the cache in tiles of 64 cells, the next tile on its way while one is computed. Scores never leave registers.
#include "backend/cuda/attention.cuh"

enum { QUERIES = 64, CELLS = 64, THREADS = 128, NEVER = 0x7fffffff };

template <int SIZE> struct prefill_memory {
    __half k[2][CELLS][SIZE + 8], v[2][CELLS][SIZE + 8]; // padded: eight rows lie in different banks
    int position[2][CELLS];                              // NEVER: nobody here sees it
    int low[QUERIES], high[QUERIES];                     // positions a query sees, if all are of one sequence
};

__device__ static inline uint32_t pack(float a, float b) {
    __half2 h = __floats2half2_rn(a, b);
    return *(uint32_t *)&h;
}

#if __CUDA_ARCH__ >= 800
__device__ static inline void copy16(void *to, const void *from, bool real) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(real ? 16 : 0));
}
__device__ static inline void load_four(uint32_t (&r)[4], const void *row, bool transposed) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
}
__device__ static inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// What all warps of a block know of its queries.
struct queries {
    bool one_sequence;
    int seq, least_low, most_low, least_high, most_high;
};

__device__ static int warp_least(int x) {
    for (int offset = 16; offset; offset >>= 1) x = min(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ static int warp_most(int x) {
    for (int offset = 16; offset; offset >>= 1) x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// A cell's position as queries of sequence `seq` see it.
__device__ static int position_of(const attention_job &j, int cell, int end, int seq) {
    if (cell >= end) return NEVER;
    if (!j.k_pos) return cell;
    const int32_t *meta = j.k_pos + (int64_t)cell * (1 + j.words);
    int p = meta[0];
    return p >= 0 && seq >= 0 && ((uint32_t)meta[1 + seq / 32] >> (seq % 32) & 1) ? p : NEVER;
}

// The next tile from `begin` on that somebody sees; its positions go to shared memory. `whole`: everybody sees all of
// it. The same for all threads.
__device__ static int next_tile(const attention_job &j, const queries &all, int begin, int end, int *positions,
                                bool *whole) {
    *whole = false;
    if (!all.one_sequence) return begin;
    int lane = threadIdx.x % 32;
    for (; begin < end; begin += CELLS) {
        int a = position_of(j, begin + lane, end, all.seq), b = position_of(j, begin + 32 + lane, end, all.seq);
        int least = warp_least(min(a, b)), most = warp_most(max(a, b)),
            most_real = warp_most(max(a == NEVER ? -1 : a, b == NEVER ? -1 : b));
        if (least > all.most_high || most_real < all.least_low) continue;
        *whole = most <= all.least_high && least >= all.most_low;
        if (threadIdx.x < 32) {
            positions[lane] = a;
            positions[32 + lane] = b;
        }
        return begin;
    }
    return end;
}

template <int SIZE> __global__ static void __launch_bounds__(THREADS) prefill_kernel(attention_job j) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(16) char raw_shared[];
    prefill_memory<SIZE> &m = *(prefill_memory<SIZE> *)raw_shared;
    int head = blockIdx.x, token0 = (int)(gridDim.y - 1 - blockIdx.y) * QUERIES; // the longest walks first
    int kv = head / (j.heads / j.kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4,
        col = lane % 4;
    float slope = slope_of(j, head);
    int first, end;
    bounds_of(j, &first, &end);

    queries all = {};
    all.seq = viewer_of(j, token0).seq;
    int differs = 0;
    if (threadIdx.x < QUERIES) {
        int t = token0 + threadIdx.x;
        viewer q = t < j.tokens ? viewer_of(j, t) : viewer{0, -1};
        bool lives = t < j.tokens && q.seq >= 0;
        int low = j.p.window ? q.position - j.p.window + 1 : -0x7fffffff, high = j.p.causal ? q.position : NEVER - 1;
        if (j.p.chunk) {
            low = max(low, q.position / j.p.chunk * j.p.chunk);
            high = min(high, q.position / j.p.chunk * j.p.chunk + j.p.chunk - 1);
        }
        m.low[threadIdx.x] = lives ? low : NEVER - 1;
        m.high[threadIdx.x] = lives ? high : -0x7fffffff;
        differs = lives && q.seq != all.seq;
    }
    all.one_sequence = !__syncthreads_or(differs);
    {
        int l0 = m.low[lane], l1 = m.low[lane + 32], h0 = m.high[lane], h1 = m.high[lane + 32];
        all.least_low = warp_least(min(l0, l1));
        all.most_low = warp_most(max(l0, l1));
        all.least_high = warp_least(min(h0, h1));
        all.most_high = warp_most(max(h0, h1));
    }
    int own = 16 * warp + row; // and own + 8
    viewer mine[2];
    for (int r = 0; r < 2; r++) {
        int t = token0 + own + 8 * r;
        mine[r] = t < j.tokens ? viewer_of(j, t) : viewer{-1, -1};
    }
    int low[2] = {m.low[own], m.low[own + 8]}, high[2] = {m.high[own], m.high[own + 8]};

    uint32_t q[SIZE / 16][4];
    for (int r = 0; r < 2; r++) {
        int t = token0 + own + 8 * r;
        const float *from = (const float *)(j.q + head * j.q1 + (int64_t)min(t, j.tokens - 1) * j.q2);
#pragma unroll
        for (int s = 0; s < SIZE / 16; s++) {
            float2 a = make_float2(from[16 * s + 2 * col], from[16 * s + 2 * col + 1]),
                   b = make_float2(from[16 * s + 8 + 2 * col], from[16 * s + 8 + 2 * col + 1]);
            q[s][r] = pack(a.x * j.p.scale, a.y * j.p.scale);
            q[s][2 + r] = pack(b.x * j.p.scale, b.y * j.p.scale);
        }
    }
    float o[SIZE / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};

    auto fetch = [&](int begin, int stage) {
        for (int i = threadIdx.x; i < CELLS * (SIZE / 8); i += THREADS) {
            int c = i / (SIZE / 8), at = i % (SIZE / 8) * 8, cell = min(begin + c, end - 1);
            copy16(&m.k[stage][c][at], j.k + kv * j.k1 + (int64_t)cell * j.k2 + 2 * at, begin + c < end);
            copy16(&m.v[stage][c][at], j.v + kv * j.v1 + (int64_t)cell * j.v2 + 2 * at, begin + c < end);
        }
        asm volatile("cp.async.commit_group;");
    };
    int stage = 0;
    bool whole, next_whole = false;
    int tile = next_tile(j, all, first, end, m.position[0], &whole);
    if (tile < end) fetch(tile, 0);
    while (tile < end) {
        int next = next_tile(j, all, tile + CELLS, end, m.position[stage ^ 1], &next_whole);
        if (next < end) {
            fetch(next, stage ^ 1);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
        // Scores of 16 queries and 64 cells.
        float s[CELLS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < SIZE / 16; step++) {
#pragma unroll
            for (int n = 0; n < CELLS / 16; n++) {
                uint32_t b[4];
                load_four(b, &m.k[stage][16 * n + (lane / 16) * 8 + lane % 8][16 * step + lane / 8 % 2 * 8], false);
                multiply(s[2 * n], q[step], b[0], b[1]);
                multiply(s[2 * n + 1], q[step], b[2], b[3]);
            }
        }
        if (!whole || j.p.soft_cap > 0 || slope > 0) {
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int r = e / 2, c = 8 * n + 2 * col + e % 2, position = 0;
                    bool visible;
                    if (all.one_sequence) {
                        position = m.position[stage][c];
                        visible = position >= low[r] && position <= high[r];
                    } else {
                        visible = tile + c < end && mine[r].seq >= 0 && sees(j, mine[r], tile + c, &position);
                    }
                    float x = s[n][e];
                    if (j.p.soft_cap > 0) x = j.p.soft_cap * tanhf(x / j.p.soft_cap);
                    if (slope > 0) x -= slope * (float)abs(mine[r].position - position);
                    s[n][e] = visible ? x : -INFINITY;
                }
        }
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = top[r];
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            keep[r] = top[r] == -INFINITY ? 0 : __expf(top[r] - most);
            float base = most == -INFINITY ? 0 : most, sum = 0;
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    s[n][e] = __expf(s[n][e] - base);
                    sum += s[n][e];
                }
            total[r] = total[r] * keep[r] + sum; // of this lane's cells; joined at the end
            top[r] = most;
        }
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            o[n][0] *= keep[0];
            o[n][1] *= keep[0];
            o[n][2] *= keep[1];
            o[n][3] *= keep[1];
        }
#pragma unroll
        for (int step = 0; step < CELLS / 16; step++) {
            uint32_t p[4] = {pack(s[2 * step][0], s[2 * step][1]), pack(s[2 * step][2], s[2 * step][3]),
                             pack(s[2 * step + 1][0], s[2 * step + 1][1]),
                             pack(s[2 * step + 1][2], s[2 * step + 1][3])};
#pragma unroll
            for (int n = 0; n < SIZE / 16; n++) {
                uint32_t b[4];
                load_four(b, &m.v[stage][16 * step + lane % 16][16 * n + lane / 16 * 8], true);
                multiply(o[2 * n], p, b[0], b[1]);
                multiply(o[2 * n + 1], p, b[2], b[3]);
            }
        }
        __syncthreads();
        stage ^= 1;
        tile = next;
        whole = next_whole;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = total[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float keep = 1;
        if (j.sinks) {
            float next = fmaxf(top[r], j.sinks[head]);
            keep = top[r] == -INFINITY ? 0 : __expf(top[r] - next);
            sum = sum * keep + __expf(j.sinks[head] - next);
        }
        float scale = sum > 0 ? keep / sum : 0;
        int t = token0 + own + 8 * r;
        if (t >= j.tokens) continue;
        float *out = (float *)(j.out + head * j.o1 + (int64_t)t * j.o2);
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++)
            *(float2 *)(out + 8 * n + 2 * col) = make_float2(o[n][2 * r] * scale, o[n][2 * r + 1] * scale);
    }
#endif
}

bool prefill_serves(const cuda_device *device, const tn_tensor *t) {
    return attention_is_fast(t) && device->properties.major >= 8 &&
           device->properties.sharedMemPerBlockOptin >= sizeof(prefill_memory<128>) && t->nb[1] % 8 == 0 &&
           t->nb[2] % 8 == 0 && (uintptr_t)t->data % 8 == 0;
}

template <int SIZE> static tn_status run_size(const launch &l, const attention_job &j) {
    size_t bytes = sizeof(prefill_memory<SIZE>);
    CUDA_TRY(cudaFuncSetAttribute(prefill_kernel<SIZE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    prefill_kernel<SIZE><<<dim3((unsigned)j.heads, blocks_for(j.tokens, QUERIES)), THREADS, bytes, l.stream>>>(j);
    return cuda_check(cudaGetLastError(), "attention");
}
tn_status launch_prefill(const launch &l, const tn_tensor *t) {
    attention_job j = job_of(t);
    return j.head_k == 64 ? run_size<64>(l, j) : run_size<128>(l, j);
}

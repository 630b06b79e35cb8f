// The k highest values of a row: experts of a token, candidates of a row of logits.
#include "backend/cuda/kernels/common.cuh"

// Short rows: the k highest values in descending order, equal values by index. k rounds, each of which finds the
// highest value below the previous one.
__global__ static void top_k_kernel(const char *x, int32_t *y, shape4 xs, int k) {
    __shared__ float shared[32];
    __shared__ int indices[32];
    int64_t row = blockIdx.x, i1 = row % xs.ne[1], i2 = row / xs.ne[1] % xs.ne[2], i3 = row / xs.ne[1] / xs.ne[2];
    const float *from = (const float *)(x + i1 * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3]);
    // NaN comes after every number. Among NaN, the lower index comes first.
    float last = INFINITY;
    int last_at = -1;
    bool nan_now = false;
    for (int round = 0; round < k; round++) {
        float highest = -INFINITY;
        int at = 0x7fffffff;
        for (int i = threadIdx.x; i < xs.ne[0]; i += blockDim.x) {
            float v = from[i];
            if (nan_now) {
                if (v == v || i <= last_at) continue;
                v = -INFINITY;
            } else if (!(v < last || (v == last && i > last_at))) {
                continue;
            }
            if (v > highest || (v == highest && i < at)) {
                highest = v;
                at = i;
            }
        }
        for (int offset = 16; offset; offset >>= 1) {
            float v = __shfl_xor_sync(0xffffffffu, highest, offset);
            int o = __shfl_xor_sync(0xffffffffu, at, offset);
            if (v > highest || (v == highest && o < at)) {
                highest = v;
                at = o;
            }
        }
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
        __syncthreads();
        if (lane == 0) {
            shared[warp] = highest;
            indices[warp] = at;
        }
        __syncthreads();
        for (int w = 0; w < warps; w++)
            if (shared[w] > highest || (shared[w] == highest && indices[w] < at)) {
                highest = shared[w];
                at = indices[w];
            }
        if (at == 0x7fffffff && !nan_now) { // no number is left
            nan_now = true;
            last_at = -1;
            round--;
            __syncthreads();
            continue;
        }
        last = highest;
        last_at = at;
        if (threadIdx.x == 0) y[row * k + round] = at == 0x7fffffff ? 0 : at;
    }
}
// Long rows. A block has a row; a thread has every 1,024th of its values.
enum { LONG_THREADS = 1024, LONG_ROOM = 2048, LONG_ROW = 4096 };

// Sorts `n` keys, a power of two, in descending order.
__device__ static void sort_block(uint64_t *keys, int n) {
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < n / 2; i += LONG_THREADS) {
                const int a = 2 * i - (i & (step - 1)), b = a + step;
                const bool descending = (a & size) == 0;
                if ((keys[a] < keys[b]) == descending) {
                    const uint64_t key = keys[a];
                    keys[a] = keys[b];
                    keys[b] = key;
                }
            }
        }
    __syncthreads();
}

// The highest key of each thread: the k-th of them is at most the k-th of all.
__device__ static uint64_t highest_of_thread(const float *x, int n) {
    uint64_t highest = 0;
    for (int i = threadIdx.x; i < n; i += LONG_THREADS) {
        const uint64_t key = rank_of(x[i], i);
        highest = key > highest ? key : highest;
    }
    return highest;
}

// Appends all keys from `least` on, in any order. Returns their number, which may exceed the room.
__device__ static int collect_from(const float *x, int n, uint64_t least, uint64_t *keys, int *count) {
    __syncthreads();
    if (threadIdx.x == 0) *count = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += LONG_THREADS) {
        const uint64_t key = rank_of(x[i], i);
        if (key < least) continue;
        const int at = atomicAdd(count, 1);
        if (at < LONG_ROOM) keys[at] = key;
    }
    __syncthreads();
    return *count;
}

// The k-th highest key, by halving: no two keys are equal. For rows in which many values are close to the k-th.
__device__ static uint64_t find_kth(const float *x, int n, int k, int *count) {
    uint64_t low = 0, high = ~(uint64_t)0; // at least k keys are >= low, fewer than k are > high
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2 + 1;
        int mine = 0;
        for (int i = threadIdx.x; i < n; i += LONG_THREADS) mine += rank_of(x[i], i) >= middle;
        __syncthreads();
        if (threadIdx.x == 0) *count = 0;
        __syncthreads();
        if (mine) atomicAdd(count, mine);
        __syncthreads();
        if (*count >= k)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

__global__ static void __launch_bounds__(LONG_THREADS)
    top_k_long_kernel(const char *x, int32_t *y, shape4 xs, int k) {
    __shared__ uint64_t keys[LONG_ROOM];
    __shared__ int count;
    const int64_t row = blockIdx.x, i1 = row % xs.ne[1], i2 = row / xs.ne[1] % xs.ne[2],
                  i3 = row / xs.ne[1] / xs.ne[2];
    const float *from = (const float *)(x + i1 * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3]);
    const int n = (int)xs.ne[0];
    keys[threadIdx.x] = highest_of_thread(from, n);
    sort_block(keys, LONG_THREADS);
    const uint64_t least = keys[k - 1];
    int n_collected = collect_from(from, n, least, keys, &count);
    if (n_collected > LONG_ROOM) n_collected = collect_from(from, n, find_kth(from, n, k, &count), keys, &count);
    for (int i = n_collected + threadIdx.x; i < LONG_ROOM; i += LONG_THREADS) keys[i] = 0;
    sort_block(keys, LONG_ROOM);
    for (int i = threadIdx.x; i < k; i += LONG_THREADS) y[row * k + i] = (int32_t)(0xffffffffu - (uint32_t)keys[i]);
}

tn_status compile_top_k(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    const unsigned rows = (unsigned)tn_nrows(x);
    if (x->ne[0] >= LONG_ROW && t->ne[0] <= LONG_THREADS)
        return add_ordered(c, KERNEL(top_k_long_kernel), dim3(rows), LONG_THREADS, 0, (const char *)x->data,
                           (int32_t *)t->data, shape4_of(x), (int)t->ne[0]);
    return add_ordered(c, KERNEL(top_k_kernel), dim3(rows), x->ne[0] >= 256 ? 256 : 32, 0, (const char *)x->data,
                       (int32_t *)t->data, shape4_of(x), (int)t->ne[0]);
}

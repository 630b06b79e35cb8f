// Selected positions (sparse attention): the entries of a query as a set in shared memory.
#ifndef TN_BACKEND_CUDA_KERNELS_SPARSE_ATTENTION_SELECTED_CUH
#define TN_BACKEND_CUDA_KERNELS_SPARSE_ATTENTION_SELECTED_CUH

#include "backend/cuda/kernels/attention.cuh"

#include <algorithm>

// The set has slots of -1, of which an entry takes the first free one from its hash on.
struct selected_job {
    bool on;                // otherwise all positions are selected
    const int32_t *entries; // [tokens][n]: blocks of positions, negative if unused
    int n, block;
    int slot_bits; // log2 of the slots
};

__device__ static unsigned slot_of(int entry, int bits) { return (unsigned)entry * 2654435769u >> (32 - bits); }
// Fills the set with the entries of a token. All threads of the block call this; the set is complete after a barrier.
template <int THREADS> __device__ static void fill_selected(const selected_job &s, int token, int *slots) {
    for (int i = threadIdx.x; i < 1 << s.slot_bits; i += THREADS) slots[i] = -1;
    __syncthreads();
    for (int i = threadIdx.x; i < s.n; i += THREADS) {
        int entry = s.entries[(int64_t)token * s.n + i];
        if (entry < 0) continue;
        for (unsigned at = slot_of(entry, s.slot_bits);; at = (at + 1) & ((1u << s.slot_bits) - 1)) {
            int before = atomicCAS(&slots[at], -1, entry);
            if (before == -1 || before == entry) break;
        }
    }
}
__device__ static bool is_selected(const selected_job &s, const int *slots, int position) {
    int entry = position / s.block;
    for (unsigned at = slot_of(entry, s.slot_bits);; at = (at + 1) & ((1u << s.slot_bits) - 1)) {
        if (slots[at] == entry) return true;
        if (slots[at] == -1) return false;
    }
}

// At most half of the slots are taken.
static inline selected_job selected_job_of(const tn_tensor *t) {
    const tn_tensor *selected = t->src[TN_ATTN_SELECTED];
    selected_job s = {};
    if (!selected) return s;
    s.on = true;
    s.entries = (const int32_t *)selected->data;
    s.n = (int)selected->ne[0];
    s.block = std::max(1, t->params.attention.select_block);
    s.slot_bits = 5;
    while (s.slot_bits < 30 && 1ll << s.slot_bits < 2ll * s.n) s.slot_bits++;
    return s;
}
// Bytes of the set.
static inline size_t selected_shared(const tn_tensor *t) {
    return t->src[TN_ATTN_SELECTED] ? sizeof(int) << selected_job_of(t).slot_bits : 0;
}

#endif

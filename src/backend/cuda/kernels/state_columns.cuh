// A block's part of a recurrent state: 32 columns of a head, in registers, 8 lanes per column, each with every eighth
// group of four values.
#ifndef TN_BACKEND_CUDA_KERNELS_STATE_COLUMNS_CUH
#define TN_BACKEND_CUDA_KERNELS_STATE_COLUMNS_CUH

#include "backend/cuda/kernels/recurrent.cuh"

enum { STATE_THREADS = 256, STATE_LANES = 8, STATE_COLUMNS = STATE_THREADS / STATE_LANES };

// Value e of group m: element (m·STATE_LANES + lane)·4 + e of the column.
template <int GROUPS> struct column_state { float at[GROUPS][4]; };
struct state_columns {
    float *data;         // of the block's first column in row 0
    int64_t row;         // floats
    int size, n_columns; // of a column; columns that exist
    bool wide;           // groups of four are aligned
};

template <int GROUPS>
__device__ static inline void load_columns(const state_columns &c, int row, column_state<GROUPS> *s) {
    const int column = threadIdx.x / STATE_LANES, lane = threadIdx.x % STATE_LANES;
    const float *from = c.data + row * c.row + (int64_t)column * c.size;
#pragma unroll
    for (int m = 0; m < GROUPS; m++) {
        const int i = (m * STATE_LANES + lane) * 4;
        const bool exists = row >= 0 && column < c.n_columns;
        if (c.wide && exists && i < c.size) {
            const float4 four = *(const float4 *)(from + i);
            s->at[m][0] = four.x, s->at[m][1] = four.y, s->at[m][2] = four.z, s->at[m][3] = four.w;
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) s->at[m][e] = exists && i + e < c.size ? from[i + e] : 0;
        }
    }
}
template <int GROUPS>
__device__ static inline void store_columns(const state_columns &c, int row, const column_state<GROUPS> &s) {
    const int column = threadIdx.x / STATE_LANES, lane = threadIdx.x % STATE_LANES;
    float *to = c.data + row * c.row + (int64_t)column * c.size;
    if (column >= c.n_columns) return;
#pragma unroll
    for (int m = 0; m < GROUPS; m++) {
        const int i = (m * STATE_LANES + lane) * 4;
        if (c.wide && i < c.size) {
            *(float4 *)(to + i) = make_float4(s.at[m][0], s.at[m][1], s.at[m][2], s.at[m][3]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (i + e < c.size) to[i + e] = s.at[m][e];
        }
    }
}
// Over the lanes of a column.
__device__ static inline float column_sum(float x) {
    for (int far = STATE_LANES / 2; far; far /= 2) x += __shfl_xor_sync(0xffffffffu, x, far);
    return x;
}
template <int GROUPS> __device__ static inline float4 four_of(const float *row, int m) {
    return ((const float4 *)row)[m * STATE_LANES + threadIdx.x % STATE_LANES];
}
static inline bool columns_are_wide(const tn_tensor *state, int64_t size) {
    return size % 4 == 0 && (uintptr_t)state->data % 16 == 0 && state->nb[1] % 16 == 0;
}

#endif

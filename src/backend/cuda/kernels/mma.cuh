// Tensor cores, from compute capability 7.5 on (bf16 from 8.0): asynchronous copies to shared memory, loading
// fragments, multiplying 16×16 with 16×8.
#ifndef TN_BACKEND_CUDA_KERNELS_MMA_CUH
#define TN_BACKEND_CUDA_KERNELS_MMA_CUH

#include "backend/cuda/kernels/common.cuh"

// Copies 16 bytes, or zeros if `real` is false. Asynchronous until copies_wait(); below capability 8.0 it is
// synchronous.
__device__ static inline void copy16(void *to, const void *from, bool real) {
#if __CUDA_ARCH__ >= 800
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(real ? 16 : 0));
#else
    *(uint4 *)to = real ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}
// Copies the first `real` of 16 bytes to an address in shared memory; the others become zeros. From capability 8.0
// on.
__device__ static inline void copy16_some(uint32_t to, const void *from, int real) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real));
#endif
}
// Copies 4, 8 or 16 bytes in the same way.
template <int N> __device__ static inline void copy_bytes(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(N));
#else
    for (int i = 0; i < N / 4; i++) ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
#endif
}
// The copies since the last call form a group.
__device__ static inline void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}
// Waits for all groups but the last N.
template <int N> __device__ static inline void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
#endif
}
// Loads four matrices of 8×8. Lanes 8i to 8i + 7 pass the rows of matrix i.
__device__ static inline void load_four(uint32_t (&r)[4], const void *row, bool transposed = false) {
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
// c += a · b.
template <bool BF16 = false>
__device__ static inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    if constexpr (BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

#endif

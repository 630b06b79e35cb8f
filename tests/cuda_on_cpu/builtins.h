// CUDA's built-in functions, those that the backend uses.
#ifndef TN_CUDA_ON_CPU_BUILTINS_H
#define TN_CUDA_ON_CPU_BUILTINS_H

// ---- Warps and blocks ----

static inline void __syncthreads() { emul::block_barrier(); }
static inline int __syncthreads_count(int x) { return emul::block_count(x); }
static inline int __syncthreads_or(int x) { return emul::block_count(x) != 0; }
static inline int __syncthreads_and(int x) { return emul::block_count(!x) == 0; }
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emul::meet(mask, "__syncwarp", NULL, [](void *const(&)[32]) {});
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) { emul::let_others_run(); }

namespace emul {
template <typename T> struct shuffled {
    T value, result;
    int from; // a lane
};
// The value of a lane that has ended is NaN (all bits set).
template <typename T> T shuffle(unsigned mask, const char *what, T value, int from) {
    shuffled<T> mine = {value, {}, from};
    meet(mask, what, &mine, [](void *const(&all)[32]) {
        for (void *one : all) {
            if (!one) continue;
            shuffled<T> &s = *(shuffled<T> *)one;
            if (all[s.from])
                s.result = ((shuffled<T> *)all[s.from])->value;
            else
                memset((void *)&s.result, 0xff, sizeof s.result);
        }
    });
    return mine.result;
}
struct vote {
    bool yes;
    unsigned ballot, voters;
};
static inline vote hold_vote(unsigned mask, const char *what, bool yes) {
    vote mine = {yes, 0, 0};
    meet(mask, what, &mine, [](void *const(&all)[32]) {
        unsigned ballot = 0, voters = 0;
        for (int i = 0; i < 32; i++)
            if (all[i]) {
                voters |= 1u << i;
                ballot |= (unsigned)((vote *)all[i])->yes << i;
            }
        for (void *one : all)
            if (one) {
                ((vote *)one)->ballot = ballot;
                ((vote *)one)->voters = voters;
            }
    });
    return mine;
}
static inline int lane() {
    return (int)((here->thread.x + here->threads.x * (here->thread.y + here->threads.y * here->thread.z)) % 32);
}
} // namespace emul

template <typename T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
    int lane = emul::lane();
    return emul::shuffle(mask, "__shfl_sync", x, lane / width * width + (from & (width - 1)));
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32) {
    int lane = emul::lane(), from = lane ^ with;
    return emul::shuffle(mask, "__shfl_xor_sync", x, from / width > lane / width ? lane : from);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32) {
    int lane = emul::lane(), from = lane - (int)by;
    return emul::shuffle(mask, "__shfl_up_sync", x, from < lane / width * width ? lane : from);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32) {
    int lane = emul::lane(), from = lane + (int)by;
    return emul::shuffle(mask, "__shfl_down_sync", x, from >= (lane / width + 1) * width ? lane : from);
}
static inline unsigned __ballot_sync(unsigned mask, int x) {
    return emul::hold_vote(mask, "__ballot_sync", x != 0).ballot;
}
static inline int __any_sync(unsigned mask, int x) { return emul::hold_vote(mask, "__any_sync", x != 0).ballot != 0; }
static inline int __all_sync(unsigned mask, int x) {
    emul::vote v = emul::hold_vote(mask, "__all_sync", x != 0);
    return v.ballot == v.voters;
}
template <typename T> static inline T emulated_reduce(unsigned mask, const char *what, T x, T (*join)(T, T)) {
    emul::needs(80);
    // Combines the lanes' values in order, starting with the lowest lane.
    T result = 0;
    bool first = true;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        T other = emul::shuffle(mask, what, x, i);
        result = first ? other : join(result, other);
        first = false;
    }
    return result;
}
static inline int __reduce_add_sync(unsigned mask, int x) {
    return emulated_reduce<int>(mask, "__reduce_add_sync", x, [](int a, int b) { return a + b; });
}
static inline int __reduce_max_sync(unsigned mask, int x) {
    return emulated_reduce<int>(mask, "__reduce_max_sync", x, [](int a, int b) { return a > b ? a : b; });
}
static inline int __reduce_min_sync(unsigned mask, int x) {
    return emulated_reduce<int>(mask, "__reduce_min_sync", x, [](int a, int b) { return a < b ? a : b; });
}

// ---- Memory ----

template <typename T> static inline T __ldcg(const T *p) { return *p; }
template <typename T> static inline T __ldca(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
template <typename T> static inline T __ldlu(const T *p) { return *p; }
template <typename T> static inline T __ldcv(const T *p) { return *p; }
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline void __stcg(T *p, T x) { *p = x; }
template <typename T> static inline void __stcs(T *p, T x) { *p = x; }
template <typename T> static inline void __stwt(T *p, T x) { *p = x; }
static inline size_t __cvta_generic_to_shared(const void *p) { return emul::shared_offset(p); }

// One thread runs at a time, so whatever does not wait is atomic.
template <typename T, typename F> static inline T emulated_atomic(T *p, F change) {
    T old = *p;
    *p = change(old);
    emul::something_changed();
    return old;
}
static inline unsigned atomicInc(unsigned *p, unsigned most) {
    return emulated_atomic(p, [=](unsigned x) { return x >= most ? 0 : x + 1; });
}
static inline unsigned atomicDec(unsigned *p, unsigned most) {
    return emulated_atomic(p, [=](unsigned x) { return x == 0 || x > most ? most : x - 1; });
}
template <typename T> static inline T atomicAdd(T *p, std::common_type_t<T> y) {
    return emulated_atomic(p, [=](T x) { return (T)(x + y); });
}
template <typename T> static inline T atomicSub(T *p, std::common_type_t<T> y) {
    return emulated_atomic(p, [=](T x) { return (T)(x - y); });
}
template <typename T> static inline T atomicMax(T *p, std::common_type_t<T> y) {
    return emulated_atomic(p, [=](T x) { return x > y ? x : y; });
}
template <typename T> static inline T atomicMin(T *p, std::common_type_t<T> y) {
    return emulated_atomic(p, [=](T x) { return x < y ? x : y; });
}
template <typename T> static inline T atomicOr(T *p, std::common_type_t<T> y) {
    return emulated_atomic(p, [=](T x) { return x | y; });
}
template <typename T> static inline T atomicAnd(T *p, std::common_type_t<T> y) {
    return emulated_atomic(p, [=](T x) { return x & y; });
}
template <typename T> static inline T atomicExch(T *p, std::common_type_t<T> y) {
    return emulated_atomic(p, [=](T) { return y; });
}
template <typename T> static inline T atomicCAS(T *p, std::common_type_t<T> expected, std::common_type_t<T> y) {
    T old = emulated_atomic(p, [=](T x) { return x == expected ? y : x; });
    if (old != expected) emul::let_others_run(); // it may be a lock
    return old;
}

// ---- Bits and integers ----

static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned choice) {
    uint64_t both = a | (uint64_t)b << 32;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned which = choice >> (4 * i) & 15, byte = (unsigned)(both >> (8 * (which & 7))) & 0xff;
        if (which & 8) byte = byte & 0x80 ? 0xff : 0;
        out |= byte << (8 * i);
    }
    return out;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)((low | (uint64_t)high << 32) >> (by & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)((low | (uint64_t)high << 32) << (by & 31) >> 32);
}
static inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 32; i += 8) sum += (int8_t)(a >> i) * (int8_t)(b >> i);
    return sum;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    for (int i = 0; i < 32; i += 8) sum += (a >> i & 0xff) * (b >> i & 0xff);
    return sum;
}
template <typename F> static inline unsigned emulated_bytes(unsigned a, unsigned b, F f) {
    unsigned out = 0;
    for (int i = 0; i < 32; i += 8) out |= (unsigned)(uint8_t)f((int)(a >> i & 0xff), (int)(b >> i & 0xff)) << i;
    return out;
}
static inline unsigned __vadd4(unsigned a, unsigned b) {
    return emulated_bytes(a, b, [](int x, int y) { return x + y; });
}
static inline unsigned __vsub4(unsigned a, unsigned b) {
    return emulated_bytes(a, b, [](int x, int y) { return x - y; });
}
static inline unsigned __vsubss4(unsigned a, unsigned b) {
    return emulated_bytes(a, b, [](int x, int y) {
        int d = (int8_t)x - (int8_t)y;
        return d < -128 ? -128 : d > 127 ? 127 : d;
    });
}

#define EMULATED_MIN_MAX(A, B, T)                                                                                    \
    static inline T min(A a, B b) { return (T)a < (T)b ? (T)a : (T)b; }                                              \
    static inline T max(A a, B b) { return (T)a > (T)b ? (T)a : (T)b; }
EMULATED_MIN_MAX(int, int, int)
EMULATED_MIN_MAX(unsigned, unsigned, unsigned)
EMULATED_MIN_MAX(int, unsigned, unsigned)
EMULATED_MIN_MAX(unsigned, int, unsigned)
EMULATED_MIN_MAX(long, long, long)
EMULATED_MIN_MAX(long, int, long)
EMULATED_MIN_MAX(int, long, long)
EMULATED_MIN_MAX(unsigned long, unsigned long, unsigned long)
EMULATED_MIN_MAX(long long, long long, long long)
EMULATED_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef EMULATED_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

// ---- Floats ----

template <typename To, typename From> static inline To emulated_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return emulated_bits<int>(x); }
static inline int __float2int_rn(float x) { return (int)lrintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline int __float2int_rd(float x) { return (int)floorf(x); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
// Macros, because the C library has functions with these names.
#define __expf expf
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __sinf sinf
#define __cosf cosf
#define __powf powf
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline float __frsqrt_rn(float x) { return rsqrtf(x); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline void sincospif(float x, float *s, float *c) {
    *s = (float)sin(M_PI * (double)x);
    *c = (float)cos(M_PI * (double)x);
}

#endif

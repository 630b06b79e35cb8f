// PTX instructions as functions, named by the opcode with underscores, with operands in their order. Using an
// instruction that is missing here is a compile error.
#ifndef TN_CUDA_ON_CPU_PTX_H
#define TN_CUDA_ON_CPU_PTX_H

namespace ptx {

static inline float half_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
static inline float bf16_value(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }

// ---- Order and waiting ----

static inline void griddepcontrol_wait() {
    emul::needs(90);
    emul::wait_for_grid();
}
static inline void griddepcontrol_launch_dependents() {
    emul::needs(90);
    emul::trigger_grid();
}
static inline void fence_mbarrier_init_release_cluster() {}
static inline void fence_proxy_async_shared_cta() {}
static inline void fence_proxy_async() {}
static inline void fence_acq_rel_gpu() {}
static inline void membar_gl() {}

template <typename T> static inline void emulated_load(T &to, uint64_t from) {
    emul::let_others_run();
    to = *(volatile const T *)from;
}
template <typename T> static inline void emulated_store(uint64_t to, T x) {
    *(volatile T *)to = x;
    emul::something_changed();
}
static inline void ld_acquire_gpu_global_u32(uint32_t &to, uint64_t from) { emulated_load(to, from); }
static inline void ld_relaxed_gpu_global_u32(uint32_t &to, uint64_t from) { emulated_load(to, from); }
static inline void ld_volatile_global_u32(uint32_t &to, uint64_t from) { emulated_load(to, from); }
static inline void ld_relaxed_gpu_global_b64(uint64_t &to, uint64_t from) { emulated_load(to, from); }
// Each half is a single access, the whole is not.
static inline void ld_relaxed_gpu_global_v2_b64(uint64_t &a, uint64_t &b, uint64_t from) {
    if (from % 16) emul::fail("ld.v2.b64 from %#llx", (unsigned long long)from);
    emulated_load(a, from);
    emulated_load(b, from + 8);
}
static inline void st_relaxed_gpu_global_b64(uint64_t to, uint64_t x) { emulated_store(to, x); }
static inline void st_relaxed_gpu_global_u32(uint64_t to, uint32_t x) { emulated_store(to, x); }
static inline void st_release_gpu_global_u32(uint64_t to, uint32_t x) { emulated_store(to, x); }
static inline void red_release_gpu_global_add_u32(uint64_t at, uint32_t x) { atomicAdd((uint32_t *)at, x); }
static inline void red_relaxed_gpu_global_add_u32(uint64_t at, uint32_t x) { atomicAdd((uint32_t *)at, x); }
static inline void atom_acq_rel_gpu_global_add_u32(uint32_t &old, uint64_t at, uint32_t x) {
    old = atomicAdd((uint32_t *)at, x);
}

// ---- Copies to shared memory ----

static inline void cp_async_cg_shared_global(uint32_t to, uint64_t from, int size, int real = 16) {
    emul::needs(80);
    emul::copy_later(emul::shared_at(to, (size_t)size, (size_t)size), (const void *)from, real, size - real);
}
static inline void cp_async_cg_shared_global_L2_128B(uint32_t to, uint64_t from, int size, int real = 16) {
    cp_async_cg_shared_global(to, from, size, real);
}
static inline void cp_async_ca_shared_global(uint32_t to, uint64_t from, int size) {
    cp_async_cg_shared_global(to, from, size, size);
}
static inline void cp_async_commit_group() { emul::commit_copies(); }
static inline void cp_async_wait_group(int left) { emul::wait_copies(left); }
static inline void cp_async_wait_all() {
    emul::commit_copies();
    emul::wait_copies(0);
}

static inline void mbarrier_init_shared_cta_b64(uint32_t at, uint32_t arrivals) {
    emul::needs(90);
    emul::barrier_init(at, arrivals);
}
static inline void mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t at, uint32_t bytes) {
    emul::barrier_arrive(at, 1, bytes);
}
static inline void mbarrier_arrive_shared_cta_b64(uint32_t at) { emul::barrier_arrive(at, 1, 0); }
static inline void mbarrier_try_wait_parity_shared_cta_b64(bool &done, uint32_t at, uint32_t parity) {
    done = emul::barrier_passed(at, parity);
    if (!done) emul::let_others_run();
}
static inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, uint64_t from,
                                                                                  uint32_t size, uint32_t barrier) {
    emul::bulk_copy(to, (const void *)from, size, barrier);
}
static inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    uint32_t to, uint64_t from, uint32_t size, uint32_t barrier, uint64_t) {
    emul::bulk_copy(to, (const void *)from, size, barrier);
}
static inline void createpolicy_fractional_L2_evict_first_b64(uint64_t &policy) { policy = 0; }
static inline void createpolicy_fractional_L2_evict_last_b64(uint64_t &policy) { policy = 0; }

// ---- Arithmetic ----

static inline void selp_u32(uint32_t &to, uint32_t yes, uint32_t no, bool which) { to = which ? yes : no; }
static inline void dp4a_u32_s32(int &to, uint32_t a, uint32_t b, int sum) {
    for (int i = 0; i < 32; i += 8) sum += (int)(a >> i & 0xff) * (int8_t)(b >> i);
    to = sum;
}
static inline void ex2_approx_ftz_f32(float &to, float x) { to = exp2f(x); }
static inline void lop3_b32(uint32_t &to, uint32_t a, uint32_t b, uint32_t c, int table) {
    to = 0;
    for (int i = 0; i < 32; i++)
        to |= (uint32_t)(table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i;
}
static inline void setp_ne_b32(bool &to, uint32_t a, uint32_t b) { to = a != b; }
// Two halves at a time. A sum of a product of halves has few enough bits for a double to be exact.
template <typename F> static inline uint32_t of_halves(F f, uint32_t a, uint32_t b, uint32_t c = 0) {
    uint32_t to = 0;
    for (int i = 0; i < 32; i += 16) {
        const double x = half_value((uint16_t)(a >> i)), y = half_value((uint16_t)(b >> i)),
                     z = half_value((uint16_t)(c >> i));
        to |= (uint32_t)__half_as_ushort(__double2half(f(x, y, z))) << i;
    }
    return to;
}
static inline void fma_rn_f16x2(uint32_t &to, uint32_t a, uint32_t b, uint32_t c) {
    to = of_halves([](double x, double y, double z) { return x * y + z; }, a, b, c);
}
static inline void add_rn_f16x2(uint32_t &to, uint32_t a, uint32_t b) {
    to = of_halves([](double x, double y, double) { return x + y; }, a, b);
}
static inline void mul_rn_f16x2(uint32_t &to, uint32_t a, uint32_t b) {
    to = of_halves([](double x, double y, double) { return x * y; }, a, b);
}
static inline void ex2_approx_f32(float &to, float x) { to = exp2f(x); }

// ---- Matrices ----

// Lane i passes the address of row i % 8 of matrix i / 8: eight halves. It gets two elements of row i / 4 of every
// matrix, or of column i / 4 if transposed.
struct loaded {
    uint32_t address, result[4];
};
template <int MATRICES, bool TRANSPOSED> static inline void load_matrices(uint32_t (&to)[MATRICES], uint32_t from) {
    loaded mine = {from, {}};
    emul::meet(0xffffffffu, "ldmatrix", &mine, [](void *const(&all)[32]) {
        uint16_t rows[MATRICES][8][8];
        for (int i = 0; i < 8 * MATRICES; i++) {
            if (!all[i]) emul::fail("ldmatrix without lane %d", i);
            memcpy(rows[i / 8][i % 8], emul::shared_at(((loaded *)all[i])->address, 16, 16), 16);
        }
        for (int i = 0; i < 32; i++)
            for (int m = 0; all[i] && m < MATRICES; m++) {
                int r = i / 4, c = i % 4 * 2;
                uint32_t first = TRANSPOSED ? rows[m][c][r] : rows[m][r][c],
                         second = TRANSPOSED ? rows[m][c + 1][r] : rows[m][r][c + 1];
                ((loaded *)all[i])->result[m] = first | second << 16;
            }
    });
    memcpy(to, mine.result, sizeof to);
}
#define EMULATED_LDMATRIX(suffix, transposed)                                                                        \
    static inline void ldmatrix_sync_aligned_m8n8_x4_##suffix(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d,    \
                                                              uint32_t from) {                                       \
        uint32_t to[4];                                                                                              \
        load_matrices<4, transposed>(to, from);                                                                      \
        a = to[0], b = to[1], c = to[2], d = to[3];                                                                  \
    }                                                                                                                \
    static inline void ldmatrix_sync_aligned_m8n8_x2_##suffix(uint32_t &a, uint32_t &b, uint32_t from) {             \
        uint32_t to[2];                                                                                              \
        load_matrices<2, transposed>(to, from);                                                                      \
        a = to[0], b = to[1];                                                                                        \
    }                                                                                                                \
    static inline void ldmatrix_sync_aligned_m8n8_x1_##suffix(uint32_t &a, uint32_t from) {                          \
        uint32_t to[1];                                                                                              \
        load_matrices<1, transposed>(to, from);                                                                      \
        a = to[0];                                                                                                   \
    }
EMULATED_LDMATRIX(shared_b16, false)
EMULATED_LDMATRIX(trans_shared_b16, true)
#undef EMULATED_LDMATRIX

// Multiplies 16 rows by 8 columns. Lane i holds in each register of A PER neighbouring columns of row i / 4 or i / 4
// + 8, in each register of B PER neighbouring rows of column i / 4, and of C columns 2 (i % 4) and 2 (i % 4) + 1.
template <typename T> struct fragments {
    uint32_t a[4], b[2];
    T c[4];
};
template <typename T, typename Value, int K, int PER, int CAPABILITY>
static inline void multiply_tiles(fragments<T> &mine, const char *what) {
    emul::needs(CAPABILITY);
    emul::meet(0xffffffffu, what, &mine, [](void *const(&all)[32]) {
        constexpr int HALVES = K / (4 * PER), BITS = 32 / PER; // registers along k of a row
        T a[16][K], b[8][K];
        for (int i = 0; i < 32; i++) {
            if (!all[i]) emul::fail("mma without lane %d", i);
            const fragments<T> &f = *(const fragments<T> *)all[i];
            for (int h = 0; h < HALVES; h++)
                for (int e = 0; e < PER; e++) {
                    int k = h * 4 * PER + i % 4 * PER + e;
                    a[i / 4][k] = Value::of(f.a[2 * h] >> (BITS * e));
                    a[i / 4 + 8][k] = Value::of(f.a[2 * h + 1] >> (BITS * e));
                    b[i / 4][k] = Value::of_b(f.b[h] >> (BITS * e));
                }
        }
        for (int i = 0; i < 32; i++)
            for (int e = 0; e < 4; e++) {
                const T *x = a[i / 4 + e / 2 * 8], *y = b[i % 4 * 2 + e % 2];
                T sum = ((fragments<T> *)all[i])->c[e];
                for (int k = 0; k < K; k++) sum += x[k] * y[k];
                ((fragments<T> *)all[i])->c[e] = sum;
            }
    });
}
struct as_half {
    static float of(uint32_t x) { return half_value((uint16_t)x); }
    static float of_b(uint32_t x) { return of(x); }
};
struct as_bf16 {
    static float of(uint32_t x) { return bf16_value((uint16_t)x); }
    static float of_b(uint32_t x) { return of(x); }
};
struct as_s8 {
    static int of(uint32_t x) { return (int8_t)x; }
    static int of_b(uint32_t x) { return of(x); }
};
struct as_u8_s8 {
    static int of(uint32_t x) { return (uint8_t)x; }
    static int of_b(uint32_t x) { return (int8_t)x; }
};
#define EMULATED_MMA_WIDE(name, T, value, K, PER, CAPABILITY)                                                        \
    static inline void name(T &d0, T &d1, T &d2, T &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,          \
                            uint32_t b0, uint32_t b1, T c0, T c1, T c2, T c3) {                                      \
        fragments<T> f = {{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};                                             \
        multiply_tiles<T, value, K, PER, CAPABILITY>(f, #name);                                                      \
        d0 = f.c[0], d1 = f.c[1], d2 = f.c[2], d3 = f.c[3];                                                          \
    }
#define EMULATED_MMA_NARROW(name, T, value, K, PER, CAPABILITY)                                                      \
    static inline void name(T &d0, T &d1, T &d2, T &d3, uint32_t a0, uint32_t a1, uint32_t b0, T c0, T c1, T c2,     \
                            T c3) {                                                                                  \
        fragments<T> f = {{a0, a1}, {b0}, {c0, c1, c2, c3}};                                                         \
        multiply_tiles<T, value, K, PER, CAPABILITY>(f, #name);                                                      \
        d0 = f.c[0], d1 = f.c[1], d2 = f.c[2], d3 = f.c[3];                                                          \
    }
EMULATED_MMA_NARROW(mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32, float, as_half, 8, 2, 75)
EMULATED_MMA_WIDE(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, float, as_half, 16, 2, 80)
EMULATED_MMA_WIDE(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, float, as_bf16, 16, 2, 80)
EMULATED_MMA_NARROW(mma_sync_aligned_m16n8k8_row_col_f32_bf16_bf16_f32, float, as_bf16, 8, 2, 80)
EMULATED_MMA_NARROW(mma_sync_aligned_m16n8k16_row_col_s32_s8_s8_s32, int, as_s8, 16, 4, 80)
EMULATED_MMA_WIDE(mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32, int, as_s8, 32, 4, 80)
EMULATED_MMA_WIDE(mma_sync_aligned_m16n8k32_row_col_s32_u8_s8_s32, int, as_u8_s8, 32, 4, 80)
#undef EMULATED_MMA_WIDE
#undef EMULATED_MMA_NARROW

// wgmma with A in registers: each warp multiplies its 16 rows by COLUMNS columns in shared memory. Computed at once,
// so a missing wait is not detected. Only columns of 64 elements with a swizzle of 128 bytes are known.
static inline void wgmma_fence_sync_aligned() { emul::needs(90); }
static inline void wgmma_commit_group_sync_aligned() {}
static inline void wgmma_wait_group_sync_aligned(int) {}
struct warp_fragments {
    uint32_t a[4];
    uint64_t columns;
    float *d[64];
};
template <typename Value, int COLUMNS> static inline void multiply_shared(warp_fragments &mine) {
    emul::needs(90);
    const uint64_t settings = mine.columns >> 14;
    if (settings != ((uint64_t)1 << 48 | (uint64_t)64 << 18 | 4)) emul::fail("wgmma with another layout of columns");
    emul::meet(0xffffffffu, "wgmma", &mine, [](void *const(&all)[32]) {
        float a[16][16];
        if (!all[0]) emul::fail("wgmma without lane 0");
        const uint64_t columns = ((const warp_fragments *)all[0])->columns;
        for (int i = 0; i < 32; i++) {
            if (!all[i]) emul::fail("wgmma without lane %d", i);
            const warp_fragments &f = *(const warp_fragments *)all[i];
            if (f.columns != columns) emul::fail("wgmma with different columns in lane %d", i);
            for (int r = 0; r < 4; r++)
                for (int e = 0; e < 2; e++)
                    a[i / 4 + r % 2 * 8][r / 2 * 8 + i % 4 * 2 + e] = Value::of(f.a[r] >> (16 * e));
        }
        const uint32_t start = (uint32_t)(columns & 0x3fff) << 4;
        for (int n = 0; n < COLUMNS; n++) {
            float b[16];
            for (int k = 0; k < 16; k++) {
                uint32_t at = start + (uint32_t)(n * 128 + k * 2); // bits 4 to 6 are combined with bits 7 to 9
                at ^= (at >> 7 & 7) << 4;
                b[k] = Value::of(*(const uint16_t *)emul::shared_at(at, 2, 2));
            }
            for (int m = 0; m < 16; m++) {
                const warp_fragments &f = *(const warp_fragments *)all[m % 8 * 4 + n % 8 / 2];
                float &d = *f.d[n / 8 * 4 + m / 8 * 2 + n % 2], sum = d;
                for (int k = 0; k < 16; k++) sum += a[m][k] * b[k];
                d = sum;
            }
        }
    });
}
template <typename Value, int COLUMNS, typename... Rest>
static inline void collect_fragments(warp_fragments &f, int n, float &first, Rest &&...rest) {
    f.d[n] = &first;
    collect_fragments<Value, COLUMNS>(f, n + 1, rest...);
}
template <typename Value, int COLUMNS>
static inline void collect_fragments(warp_fragments &f, int n, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                     uint64_t columns, bool adds, int, int, int) {
    if (n != COLUMNS / 2) emul::fail("wgmma with %d registers", n);
    f.a[0] = a0, f.a[1] = a1, f.a[2] = a2, f.a[3] = a3, f.columns = columns;
    if (!adds)
        for (int i = 0; i < n; i++) *f.d[i] = 0;
    multiply_shared<Value, COLUMNS>(f);
}
#define EMULATED_WGMMA(COLUMNS)                                                                                      \
    template <typename... T>                                                                                         \
    static inline void wgmma_mma_async_sync_aligned_m64n##COLUMNS##k16_f32_f16_f16(T &&...x) {                       \
        warp_fragments f;                                                                                            \
        collect_fragments<as_half, COLUMNS>(f, 0, x...);                                                             \
    }                                                                                                                \
    template <typename... T>                                                                                         \
    static inline void wgmma_mma_async_sync_aligned_m64n##COLUMNS##k16_f32_bf16_bf16(T &&...x) {                     \
        warp_fragments f;                                                                                            \
        collect_fragments<as_bf16, COLUMNS>(f, 0, x...);                                                             \
    }
EMULATED_WGMMA(8)
EMULATED_WGMMA(16)
EMULATED_WGMMA(32)
EMULATED_WGMMA(64)
EMULATED_WGMMA(128)
#undef EMULATED_WGMMA

} // namespace ptx

#endif

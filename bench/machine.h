/* Shared by CPU benchmarks: a team of threads, and the measured peaks of the machine (read bandwidth, multiplication
 * instructions). */
#ifndef TN_BENCH_MACHINE_H
#define TN_BENCH_MACHINE_H

#include "backend/cpu/kernels/kernels.h"
#include "tenon/base.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- A team of threads that all run one function ---- */

typedef void (*task_fn)(void *arg, int ith, int nth);
static int threads = 1;
static pthread_barrier_t start_line, finish_line;
static task_fn task;
static void *task_arg;

static void *worker(void *index) {
    for (;;) {
        pthread_barrier_wait(&start_line);
        task(task_arg, (int)(intptr_t)index, threads);
        pthread_barrier_wait(&finish_line);
    }
    return NULL;
}
static void run_team(task_fn fn, void *arg) {
    task = fn;
    task_arg = arg;
    pthread_barrier_wait(&start_line);
    fn(arg, 0, threads);
    pthread_barrier_wait(&finish_line);
}
/* clock=cpu counts this thread's processor time, for shared machines; meaningful with one thread only. */
static bool cpu_clock;
static double now(void) {
    struct timespec t;
    if (!cpu_clock) return (double)tn_time_ns() * 1e-9;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static double seconds_of(task_fn fn, void *arg, double at_least) {
    double best = 1e30, spent = 0;
    run_team(fn, arg);
    for (int round = 0; round < 3 || spent < at_least; round++) {
        double start = now();
        run_team(fn, arg);
        double t = now() - start;
        best = t < best ? t : best;
        spent += t;
    }
    return best;
}

static void *pages(size_t size) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(p, size, MADV_HUGEPAGE);
    return p;
}

/* ---- Measured peaks ---- */

/* A size that exceeds all caches: three times the last level, limited for small machines. */
static size_t beyond_caches(void) {
    const size_t least = (size_t)256 << 20, most = (size_t)1 << 30;
    unsigned kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (f && fscanf(f, "%uK", &kib) != 1) kib = 0;
    if (f) fclose(f);
    const size_t wanted = 3 * ((size_t)kib << 10);
    return wanted < least ? least : wanted > most ? most : wanted;
}

typedef struct span {
    const unsigned char *bytes;
    size_t size;
} span;
static atomic_uint sink;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static unsigned read_avx512(const unsigned char *p, size_t n) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= n; i += 256) {
        a = _mm512_add_epi32(a, _mm512_loadu_si512(p + i));
        b = _mm512_add_epi32(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_add_epi32(c, _mm512_loadu_si512(p + i + 128));
        d = _mm512_add_epi32(d, _mm512_loadu_si512(p + i + 192));
    }
    return (unsigned)_mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d)));
}
__attribute__((target("avx2"))) static unsigned read_avx2(const unsigned char *p, size_t n) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i + 128 <= n; i += 128) {
        a = _mm256_add_epi32(a, _mm256_loadu_si256((const void *)(p + i)));
        b = _mm256_add_epi32(b, _mm256_loadu_si256((const void *)(p + i + 32)));
        c = _mm256_add_epi32(c, _mm256_loadu_si256((const void *)(p + i + 64)));
        d = _mm256_add_epi32(d, _mm256_loadu_si256((const void *)(p + i + 96)));
    }
    a = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
    return (unsigned)_mm256_extract_epi32(a, 0) + (unsigned)_mm256_extract_epi32(a, 5);
}
#endif
static unsigned read_plain(const unsigned char *p, size_t n) {
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 64 <= n; i += 64) {
        for (int j = 0; j < 8; j++) {
            uint64_t v;
            memcpy(&v, p + i + 8 * j, 8);
            sum[j] += v;
        }
    }
    return (unsigned)(sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7]);
}
static void read_task(void *arg, int ith, int nth) {
    span *s = arg;
    size_t each = s->size / (size_t)nth / 256 * 256;
    const unsigned char *p = s->bytes + each * (size_t)ith;
    unsigned r;
#if defined(__x86_64__)
    if (tn__cpu_kernels_at(TN__CPU_AVX512))
        r = read_avx512(p, each);
    else if (tn__cpu_kernels_at(TN__CPU_AVX2))
        r = read_avx2(p, each);
    else
#endif
        r = read_plain(p, each);
    atomic_fetch_add(&sink, r);
}

/* Peaks: independent dependency chains of one instruction, STEPS × CHAINS instructions per call. */
enum { STEPS = 200000, CHAINS = 16 };
#define REPEAT16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#if defined(__x86_64__)
#define D_VNNI(i) __m512i a##i = _mm512_set1_epi32(i);
#define S_VNNI(i) a##i = _mm512_dpbusd_epi32(a##i, b, b);
#define U_VNNI(i) sum = _mm512_add_epi32(sum, a##i);
__attribute__((target("avx512f,avx512vnni"))) static void peak_vnni(void *arg, int ith, int nth) {
    (void)arg, (void)ith, (void)nth;
    __m512i b = _mm512_set1_epi32(3), sum = b;
    REPEAT16(D_VNNI)
    for (int i = 0; i < STEPS; i++) {
        __asm__ volatile("" : "+v"(b));
        REPEAT16(S_VNNI)
    }
    REPEAT16(U_VNNI)
    atomic_fetch_add(&sink, (unsigned)_mm512_reduce_add_epi32(sum));
}
#define D_FMA(i) __m512 a##i = _mm512_set1_ps(i);
#define S_FMA(i) a##i = _mm512_fmadd_ps(a##i, b, b);
#define U_FMA(i) sum = _mm512_add_ps(sum, a##i);
__attribute__((target("avx512f"))) static void peak_fma512(void *arg, int ith, int nth) {
    (void)arg, (void)ith, (void)nth;
    __m512 b = _mm512_set1_ps(0.3f), sum = b;
    REPEAT16(D_FMA)
    for (int i = 0; i < STEPS; i++) {
        __asm__ volatile("" : "+v"(b));
        REPEAT16(S_FMA)
    }
    REPEAT16(U_FMA)
    atomic_fetch_add(&sink, (unsigned)_mm512_reduce_add_ps(sum));
}
#define S_BF16(i) a##i = _mm512_dpbf16_ps(a##i, (__m512bh)b, (__m512bh)b);
__attribute__((target("avx512f,avx512bf16"))) static void peak_bf16(void *arg, int ith, int nth) {
    (void)arg, (void)ith, (void)nth;
    __m512 b = _mm512_set1_ps(0.3f), sum = b;
    REPEAT16(D_FMA)
    for (int i = 0; i < STEPS; i++) {
        __asm__ volatile("" : "+v"(b));
        REPEAT16(S_BF16)
    }
    REPEAT16(U_FMA)
    atomic_fetch_add(&sink, (unsigned)_mm512_reduce_add_ps(sum));
}
/* Sixteen registers hold twelve chains. */
#define REPEAT12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define D_FMA2(i) __m256 a##i = _mm256_set1_ps(i);
#define S_FMA2(i) a##i = _mm256_fmadd_ps(a##i, b, b);
#define U_FMA2(i) sum = _mm256_add_ps(sum, a##i);
__attribute__((target("avx2,fma"))) static void peak_fma256(void *arg, int ith, int nth) {
    (void)arg, (void)ith, (void)nth;
    __m256 b = _mm256_set1_ps(0.3f), sum = b;
    REPEAT12(D_FMA2)
    for (int i = 0; i < STEPS * 4 / 3; i++) {
        __asm__ volatile("" : "+x"(b));
        REPEAT12(S_FMA2)
    }
    REPEAT12(U_FMA2)
    atomic_fetch_add(&sink, (unsigned)_mm256_cvtss_f32(sum));
}

/* Tiles: four chains of 16×16 sums, 32 bfloat16 or 64 bytes deep. */
static const unsigned char tile_config[64] = {
    [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
    [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
#define PEAK_TILES(name, dot)                                                                                        \
    __attribute__((target("amx-tile,amx-bf16,amx-int8"))) static void name(void *arg, int ith, int nth) {            \
        (void)arg, (void)ith, (void)nth;                                                                             \
        _tile_loadconfig(tile_config);                                                                               \
        _tile_zero(0);                                                                                               \
        _tile_zero(1);                                                                                               \
        _tile_zero(2);                                                                                               \
        _tile_zero(3);                                                                                               \
        _tile_zero(4);                                                                                               \
        _tile_zero(5);                                                                                               \
        for (int i = 0; i < STEPS / 4; i++) {                                                                        \
            dot(0, 4, 5);                                                                                            \
            dot(1, 4, 5);                                                                                            \
            dot(2, 4, 5);                                                                                            \
            dot(3, 4, 5);                                                                                            \
        }                                                                                                            \
        _tile_release();                                                                                             \
    }
PEAK_TILES(peak_tiles_bf16, _tile_dpbf16ps)
PEAK_TILES(peak_tiles_int8, _tile_dpbssd)
/* The same with all eight tiles in use. A thread that shares its core has too few physical registers for that and
 * drops to half the rate, so this measurement shows whether cores are shared. */
__attribute__((target("amx-tile,amx-bf16"))) static void peak_tiles_full(void *arg, int ith, int nth) {
    static const char zeros[1024];
    (void)arg, (void)ith, (void)nth;
    _tile_loadconfig(tile_config);
    _tile_loadd(0, zeros, 64);
    _tile_loadd(1, zeros, 64);
    _tile_loadd(2, zeros, 64);
    _tile_loadd(3, zeros, 64);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    for (int i = 0; i < STEPS / 5; i++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
    }
    _tile_release();
}
#endif
static double peak_of(task_fn fn, double ops_per_instruction) {
    return ops_per_instruction * STEPS * CHAINS * threads / seconds_of(fn, NULL, 0.1) * 1e-12;
}

typedef struct peaks {
    double bandwidth, fma, vnni, bf16, tiles_int8; /* bf16: of tiles with AMX */
    double tiles_full;                             /* bf16 with all eight tiles in use */
} peaks;

static bool start_team(void) {
    pthread_barrier_init(&start_line, NULL, (unsigned)threads);
    pthread_barrier_init(&finish_line, NULL, (unsigned)threads);
    for (int i = 1; i < threads; i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, worker, (void *)(intptr_t)i) != 0) return false;
    }
    return true;
}

static peaks measure_peaks(const tn__cpu_kernels *table) {
    peaks peak = {0};
    span s = {pages(beyond_caches()), beyond_caches()};
    memset((void *)(uintptr_t)s.bytes, 1, s.size);
    peak.bandwidth = (double)s.size / seconds_of(read_task, &s, 0.5) * 1e-9;
    munmap((void *)(uintptr_t)s.bytes, s.size);
#if defined(__x86_64__)
    if (table->level >= TN__CPU_AVX512) {
        peak.fma = peak_of(peak_fma512, 32);
        peak.vnni = peak_of(peak_vnni, 128);
        if (__builtin_cpu_supports("avx512bf16")) peak.bf16 = peak_of(peak_bf16, 64);
        if (table->level == TN__CPU_AMX) { /* used by prefill; a call is STEPS tile instructions */
            peak.bf16 = peak_of(peak_tiles_bf16, 2.0 * 16 * 16 * 32 / CHAINS);
            peak.tiles_full = peak_of(peak_tiles_full, 2.0 * 16 * 16 * 32 / CHAINS);
            peak.tiles_int8 = peak_of(peak_tiles_int8, 2.0 * 16 * 16 * 64 / CHAINS);
        }
    } else if (table->level >= TN__CPU_AVX2) {
        peak.fma = peak_of(peak_fma256, 16);
        peak.vnni = peak.fma;
    }
#endif
    return peak;
}

static void print_peaks(const tn__cpu_kernels *table, const peaks *peak) {
    printf("level %s, %d threads: read %.1f GB/s, f32 %.3f Tflops, int8 %.3f Tops, bf16 %.3f Tflops", table->name,
           threads, peak->bandwidth, peak->fma, peak->vnni, peak->bf16);
    if (peak->tiles_int8 > 0)
        printf(", int8 tiles %.3f Tops\nall eight tiles in use: %.3f Tflops, cores %s", peak->tiles_int8,
               peak->tiles_full, peak->tiles_full < 0.8 * peak->bf16 ? "shared with another thread" : "not shared");
    printf("\n");
}

#endif

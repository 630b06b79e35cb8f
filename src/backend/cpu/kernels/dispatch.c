/* Chooses the kernel table: CPU features, permission to use AMX tiles, and TENON_CPU, which lowers the level. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backend/cpu/kernels/shared.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static tn__cpu_kernels tables[TN__CPU_LEVELS];
static bool present[TN__CPU_LEVELS];
static const tn__cpu_kernels *chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

const char *tn__cpu_level_name(tn__cpu_level level) {
    static const char *const names[TN__CPU_LEVELS] = {"generic", "avx2", "avx512", "amx", "neon"};
    return level >= 0 && level < TN__CPU_LEVELS ? names[level] : "?";
}

static tn__cpu_kernels *start_table(tn__cpu_level level, tn__cpu_level base) {
    tn__cpu_kernels *table = &tables[level];
    *table = tables[base];
    table->level = level;
    table->name = tn__cpu_level_name(level);
    present[level] = true;
    return table;
}

#if defined(__x86_64__)
typedef struct features {
    bool avx2, avx512, bf16, amx;
} features;

static features detect_features(void) {
    features f = {0};
    unsigned a, b, c, d, a1, b1, c1, d1;
    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c >> 27 & 1)) return f; /* OSXSAVE */
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    bool ymm = (low & 6) == 6, zmm = ymm && (low & 0xe0) == 0xe0, tiles = zmm && (low >> 17 & 3) == 3;
    bool fma = c >> 12 & 1, f16c = c >> 29 & 1, avx = c >> 28 & 1;
    if (!__get_cpuid_count(7, 0, &a1, &b1, &c1, &d1)) return f;
    f.avx2 = ymm && avx && fma && f16c && (b1 >> 5 & 1) && (b1 >> 8 & 1); /* AVX2, BMI2 */
    f.avx512 = f.avx2 && zmm && (b1 >> 16 & 1) && (b1 >> 17 & 1) && (b1 >> 30 & 1) && (b1 >> 31 & 1) &&
               (c1 >> 1 & 1) && (c1 >> 11 & 1); /* F DQ BW VL, VBMI VNNI */
    unsigned subleaves = a1;
    bool amx = tiles && (d1 >> 22 & 1) && (d1 >> 24 & 1) && (d1 >> 25 & 1); /* BF16, TILE, INT8 */
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.bf16 = f.avx512 && (a >> 5 & 1);
#if defined(TN__TILES_EMULATED) /* a test build that emulates tiles on CPUs without them */
    (void)amx;
    f.amx = f.bf16;
#else
    if (amx && f.bf16) {
        enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* arch_prctl(ARCH_REQ_XCOMP_PERM) */
        f.amx = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    }
#endif
    return f;
}
#endif

static void fill_tables(void) {
    tn__cpu_kernels *generic = &tables[TN__CPU_GENERIC];
    generic->level = TN__CPU_GENERIC;
    generic->name = tn__cpu_level_name(TN__CPU_GENERIC);
    present[TN__CPU_GENERIC] = true;
    tn__kernels_generic_rows(generic);
    tn__kernels_generic_matmul(generic);
    tn__kernels_generic_attention(generic);
    tn__kernels_generic_recurrent(generic);
    tn__kernels_generic_index(generic);
#if defined(__x86_64__)
    features f = detect_features();
    if (f.avx2) tn__kernels_avx2(start_table(TN__CPU_AVX2, TN__CPU_GENERIC));
    if (f.avx512) tn__kernels_avx512(start_table(TN__CPU_AVX512, TN__CPU_AVX2));
    if (f.bf16) tn__kernels_avx512bf16(&tables[TN__CPU_AVX512]);
    if (f.amx) tn__kernels_amx(start_table(TN__CPU_AMX, TN__CPU_AVX512));
#elif defined(__aarch64__)
    unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    if ((caps & HWCAP_ASIMDDP) && (caps & HWCAP_ASIMDHP)) {
        tn__kernels_neon(start_table(TN__CPU_NEON, TN__CPU_GENERIC));
        if (caps2 & HWCAP2_I8MM) tn__kernels_neon_i8mm(&tables[TN__CPU_NEON]);
    }
#else
    (void)start_table;
#endif
}

static void choose_level(void) {
    fill_tables();
    int highest = TN__CPU_GENERIC;
    for (int level = 0; level < TN__CPU_LEVELS; level++) {
        if (present[level]) highest = level;
    }
    const char *name = getenv("TENON_CPU");
    if (name && *name) {
        int requested = -1;
        for (int level = 0; level < TN__CPU_LEVELS; level++) {
            if (strcasecmp(name, tn__cpu_level_name((tn__cpu_level)level)) == 0) requested = level;
        }
        if (requested < 0) {
            tn_log(TN_LOG_WARN, "TENON_CPU: unknown level '%s' (one of generic, avx2, avx512, amx, neon); using %s",
                   name, tn__cpu_level_name((tn__cpu_level)highest));
        } else if (requested > highest || !present[requested]) {
            tn_log(TN_LOG_WARN, "TENON_CPU=%s: the highest level of this CPU is %s; using that", name,
                   tn__cpu_level_name((tn__cpu_level)highest));
        } else {
            highest = requested;
        }
    }
    chosen = &tables[highest];
}

const tn__cpu_kernels *tn__cpu_kernels_get(void) {
    pthread_once(&once, choose_level);
    return chosen;
}

const tn__cpu_kernels *tn__cpu_kernels_at(tn__cpu_level level) {
    pthread_once(&once, choose_level);
    return level >= 0 && level < TN__CPU_LEVELS && present[level] ? &tables[level] : NULL;
}

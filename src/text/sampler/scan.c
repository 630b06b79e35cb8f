/* Passes over a whole row of logits: one body in C with vector extensions, compiled for each vector width.
 *
 * Every sum has 16 lanes that are added in a fixed tree, and the build disables contraction. Therefore the result has
 * the same bits whether the compiler maps 16 lanes to one register or to four. */
#include "text/sampler/scan.h"

#include <math.h>
#include <string.h>

#define LANES 16

/* e^x = 2^n * e^r with n = round(x / ln 2) and |r| <= ln 2 / 2. ln 2 is split into two parts so that n * ln 2 is
 * exact. e^r is a polynomial of degree 7 fitted for floats. Adding 1.5 * 2^23 rounds to an integer and leaves it in
 * the low bits. */
#define EXP_LOWEST -87.0f
#define EXP_ROUND 12582912.0f
#define EXP_BODY(result, x, splat, int_type, float_type)                                                             \
    do {                                                                                                             \
        float_type shifted = (x)*splat(1.44269504088896341f) + splat(EXP_ROUND);                                     \
        float_type whole = shifted - splat(EXP_ROUND);                                                               \
        float_type r = (x)-whole * splat(0.693359375f);                                                              \
        r = r + whole * splat(2.12194440e-4f);                                                                       \
        float_type p = splat(1.9875691500e-4f);                                                                      \
        p = p * r + splat(1.3981999507e-3f);                                                                         \
        p = p * r + splat(8.3334519073e-3f);                                                                         \
        p = p * r + splat(4.1665795894e-2f);                                                                         \
        p = p * r + splat(1.6666665459e-1f);                                                                         \
        p = p * r + splat(5.0000001201e-1f);                                                                         \
        p = p * (r * r) + r + splat(1.0f);                                                                           \
        int_type bits, scaled;                                                                                       \
        memcpy(&bits, &shifted, sizeof bits);                                                                        \
        memcpy(&scaled, &p, sizeof scaled);                                                                          \
        scaled += (bits - 0x4b400000) * (1 << 23); /* 0x4b400000: the bits of EXP_ROUND itself */                    \
        memcpy(&(result), &scaled, sizeof scaled);                                                                   \
    } while (0)

#define SCALAR(x) (x)
float tn__scan_exp(float x) {
    float y;
    if (!(x >= EXP_LOWEST)) return 0;
    EXP_BODY(y, x, SCALAR, int32_t, float);
    return y;
}

#define NAME(x) x##_base
#define TARGET
#define VERSION_NAME "base"
#define WIDTH 4
#include "text/sampler/scan_body.h"

#if defined(__x86_64__)
#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2")))
#define VERSION_NAME "avx2"
#define WIDTH 8
#include "text/sampler/scan_body.h"

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define VERSION_NAME "avx512"
#define WIDTH 16
#include "text/sampler/scan_body.h"
#endif

const tn__scan *tn__scan_version(size_t i) {
    const tn__scan *versions[3] = {&scan_base};
    size_t n = 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) versions[n++] = &scan_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        versions[n++] = &scan_avx512;
#endif
    return i < n ? versions[i] : NULL;
}

const tn__scan *tn__scan_widest(void) {
    const tn__scan *widest = NULL;
    for (size_t i = 0; tn__scan_version(i); i++) widest = tn__scan_version(i);
    return widest;
}

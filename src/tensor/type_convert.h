/* Row conversions for the type table: tn__to_f32_T and tn__from_f32_T, 0 for types that cannot be read or written.
 * Plain types are implemented here, block types in src/quant. */
#ifndef TN_TENSOR_TYPE_CONVERT_H
#define TN_TENSOR_TYPE_CONVERT_H

#include "base/half.h"
#include "quant/quant.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef void (*tn__to_f32)(const void *from, float *to, int64_t n);
typedef void (*tn__from_f32)(const float *from, void *to, int64_t n, const float *importance);

static inline void tn__to_f32_f32(const void *from, float *to, int64_t n) { memcpy(to, from, (size_t)n * 4); }
static inline void tn__from_f32_f32(const float *from, void *to, int64_t n, const float *importance) {
    (void)importance;
    memcpy(to, from, (size_t)n * 4);
}

/* Saturating conversion of a float to an integer range; NaN becomes 0. */
static inline int64_t tn__f32_to_int(float value, int64_t low, int64_t high) {
    if (isnan(value)) return 0;
    if (value <= (float)low) return low;
    if (value >= (float)high) return high;
    return (int64_t)value;
}

#define TN__PLAIN(name, ctype, read, write)                                                                          \
    static inline void tn__to_f32_##name(const void *from, float *to, int64_t n) {                                   \
        const ctype *x = from;                                                                                       \
        for (int64_t i = 0; i < n; i++) to[i] = read;                                                                \
    }                                                                                                                \
    static inline void tn__from_f32_##name(const float *from, void *to, int64_t n, const float *importance) {        \
        (void)importance;                                                                                            \
        ctype *y = to;                                                                                               \
        for (int64_t i = 0; i < n; i++) y[i] = write;                                                                \
    }
TN__PLAIN(f16, uint16_t, tn__f16_to_f32(x[i]), tn__f32_to_f16(from[i]))
TN__PLAIN(bf16, uint16_t, tn__bf16_to_f32(x[i]), tn__f32_to_bf16(from[i]))
TN__PLAIN(fp8, uint8_t, tn__fp8_to_f32(x[i]), tn__f32_to_fp8(from[i]))
TN__PLAIN(f64, double, (float)x[i], from[i])
TN__PLAIN(i8, int8_t, x[i], (int8_t)tn__f32_to_int(from[i], INT8_MIN, INT8_MAX))
TN__PLAIN(i16, int16_t, x[i], (int16_t)tn__f32_to_int(from[i], INT16_MIN, INT16_MAX))
TN__PLAIN(i32, int32_t, (float)x[i], (int32_t)tn__f32_to_int(from[i], INT32_MIN, INT32_MAX))
TN__PLAIN(i64, int64_t, (float)x[i], tn__f32_to_int(from[i], INT64_MIN, INT64_MAX))
#undef TN__PLAIN

/* Block types use the careful quantization, because this table is used for files. Types that cannot be written have a
 * null constant. */
#define TN__WRITABLE_1(name)                                                                                         \
    static inline void tn__from_f32_##name(const float *from, void *to, int64_t n, const float *importance) {        \
        tn__quantize_##name(from, to, n, importance);                                                                \
    }
#define TN__WRITABLE_0(name) enum { tn__from_f32_##name = 0 };
#define TN_X(name, block, bytes, quantize)                                                                           \
    static inline void tn__to_f32_##name(const void *from, float *to, int64_t n) {                                   \
        tn__dequantize_row_##name(from, to, n);                                                                      \
    }                                                                                                                \
    TN__WRITABLE_##quantize(name)
TN__BLOCK_TYPES(TN_X)
#undef TN_X
#undef TN__WRITABLE_1
#undef TN__WRITABLE_0

#endif

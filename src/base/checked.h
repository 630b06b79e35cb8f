/* Size arithmetic that reports overflow instead of wrapping. Each function returns true if the result is exact. */
#ifndef TN_BASE_CHECKED_H
#define TN_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool tn__add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool tn__mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool tn__add_i64(int64_t a, int64_t b, int64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool tn__mul_i64(int64_t a, int64_t b, int64_t *out) { return !__builtin_mul_overflow(a, b, out); }

static inline bool tn__is_pow2(size_t x) { return x != 0 && (x & (x - 1)) == 0; }

/* Rounds up to a multiple of a power of two; false on overflow. */
static inline bool tn__align_up_checked(size_t x, size_t align, size_t *out) {
    size_t y;
    if (!tn__add_size(x, align - 1, &y)) return false;
    *out = y & ~(align - 1);
    return true;
}
/* For values already known to be small enough. */
static inline size_t tn__align_up(size_t x, size_t align) { return (x + align - 1) & ~(align - 1); }

#define TN__MIN(a, b) ((a) < (b) ? (a) : (b))
#define TN__MAX(a, b) ((a) > (b) ? (a) : (b))
#define TN__COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif

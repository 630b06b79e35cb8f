/* Types of the KV cache by layer, and where rows are rotated before they are stored. */
#include "llm/memory/cache_types.h"

#include "base/checked.h"

#include <strings.h>

static const tn_type cache_types[] = {TN_F32, TN_F16, TN_BF16, TN_FP8, TN_Q8_0, TN_Q5_1, TN_Q5_0, TN_Q4_1, TN_Q4_0};
#define CACHE_TYPE_NAMES "f32, f16, bf16, fp8, q8_0, q5_1, q5_0, q4_1 or q4_0"

static bool is_kv_cache_type(tn_type type) {
    for (size_t i = 0; i < TN__COUNT(cache_types); i++)
        if (cache_types[i] == type) return true;
    return false;
}

tn_status tn_cache_type_parse(const char *name, tn_type *type) {
    if (!name || !type) return tn_fail(TN_E_INVALID, "tn_cache_type_parse: NULL argument");
    for (size_t i = 0; i < TN__COUNT(cache_types); i++) {
        if (strcasecmp(tn_type_name(cache_types[i]), name) == 0) {
            *type = cache_types[i];
            return TN_OK;
        }
    }
    return tn_fail(TN_E_TYPE, "the KV cache can be " CACHE_TYPE_NAMES ", not '%.40s'", name);
}

tn_status tn__cache_types_check(tn_session_params *p) {
    if (p->cache_k_window == p->cache_k) p->cache_k_window = TN_TYPE_LIMIT;
    if (p->cache_v_window == p->cache_v) p->cache_v_window = TN_TYPE_LIMIT;
    const tn_type types[] = {p->cache_k, p->cache_v, p->cache_k_window, p->cache_v_window};
    for (size_t i = 0; i < TN__COUNT(types); i++)
        if (!is_kv_cache_type(types[i]) && (i < 2 || types[i] != TN_TYPE_LIMIT))
            return tn_fail(TN_E_TYPE, "the KV cache can be " CACHE_TYPE_NAMES ", not %s", tn_type_name(types[i]));
    if ((unsigned)p->cache_rotation > TN_ROTATION_OFF)
        return tn_fail(TN_E_INVALID, "unknown cache rotation %d", (int)p->cache_rotation);
    return TN_OK;
}

/* Keys have channels far larger than the rest: every type below 16 bits gains from the rotation of K. For V the
 * effect is small and, for half of the types, not of one sign, and it costs two more ops. docs/cache-types.md has the
 * measurements. */
static bool is_rotated(tn_type type, bool v, tn_cache_rotation rotation) {
    if (rotation == TN_ROTATION_OFF || type == TN_F32 || type == TN_F16 || type == TN_BF16) return false;
    return rotation == TN_ROTATION_ON || !v;
}

/* The largest power of two that divides the head, at least as long as a block of every cache type; 0: no rotation. */
static int32_t rotation_block(tn_type type, bool v, tn_cache_rotation rotation, int32_t head) {
    const int32_t block = head & -head;
    return is_rotated(type, v, rotation) && block >= 32 ? block : 0;
}

tn_status tn__cache_format_of(const tn_session_params *p, int32_t head_k, int32_t head_v, bool window,
                              tn__cache_format *format) {
    const tn_type k = window && p->cache_k_window != TN_TYPE_LIMIT ? p->cache_k_window : p->cache_k,
                  v = window && p->cache_v_window != TN_TYPE_LIMIT ? p->cache_v_window : p->cache_v;
    if (head_k % tn_type_block(k) || head_v % tn_type_block(v))
        return tn_fail(TN_E_UNSUPPORTED,
                       "heads of %d and %d elements do not divide into blocks of %s and %s: use f16 for the cache",
                       head_k, head_v, tn_type_name(k), tn_type_name(v));
    *format = (tn__cache_format){k, v, rotation_block(k, false, p->cache_rotation, head_k),
                                 rotation_block(v, true, p->cache_rotation, head_v)};
    return TN_OK;
}

uint32_t tn__cache_key(const tn_session_params *p) {
    _Static_assert(TN_TYPE_LIMIT < 128, "seven bits per type");
    return (uint32_t)p->cache_k | (uint32_t)p->cache_v << 7 | (uint32_t)p->cache_k_window << 14 |
           (uint32_t)p->cache_v_window << 21 | (uint32_t)p->cache_rotation << 28;
}

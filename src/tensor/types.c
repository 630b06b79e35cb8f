/* The type table: names, block sizes, conversions to and from f32. */
#include "tenon/tensor.h"

#include "base/checked.h"
#include "tensor/type_convert.h"

#include <strings.h>

typedef struct type_row {
    const char *name;
    int64_t block;
    size_t bytes;
    tn__to_f32 to_f32;     /* NULL: cannot be read */
    tn__from_f32 from_f32; /* NULL: cannot be written */
} type_row;

static const type_row types[TN_TYPE_LIMIT] = {
#define TN_X(name, text, id, block, bytes)                                                                           \
    [TN_##name] = {#text, block, bytes, tn__to_f32_##text, tn__from_f32_##text},
    TN_TYPE_TABLE(TN_X)
#undef TN_X
};

bool tn_type_valid(tn_type type) { return (unsigned)type < TN_TYPE_LIMIT && types[type].name; }
static const type_row *type_row_of(tn_type type) {
    static const type_row unknown = {"?", 0, 0, NULL, NULL};
    return tn_type_valid(type) ? &types[type] : &unknown;
}

const char *tn_type_name(tn_type type) { return type_row_of(type)->name; }
int64_t tn_type_block(tn_type type) { return type_row_of(type)->block; }
size_t tn_type_bytes(tn_type type) { return type_row_of(type)->bytes; }
bool tn_type_is_quantized(tn_type type) { return type_row_of(type)->block > 1; }
bool tn_type_is_float(tn_type type) {
    return type == TN_F32 || type == TN_F16 || type == TN_BF16 || type == TN_F64 || type == TN_FP8;
}
bool tn_type_can_read(tn_type type) { return type_row_of(type)->to_f32 != NULL; }
bool tn_type_can_write(tn_type type) { return type_row_of(type)->from_f32 != NULL; }

tn_status tn_type_parse(const char *name, tn_type *type) {
    if (!name || !type) return tn_fail(TN_E_INVALID, "tn_type_parse: NULL argument");
    for (int i = 0; i < TN_TYPE_LIMIT; i++) {
        if (types[i].name && strcasecmp(types[i].name, name) == 0) {
            *type = (tn_type)i;
            return TN_OK;
        }
    }
    return tn_fail(TN_E_NOT_FOUND, "unknown type '%.40s' (examples: f32, f16, bf16, q8_0, q4_0, q4_K)", name);
}

bool tn_type_row_bytes(tn_type type, int64_t n, size_t *bytes) {
    const type_row *r = type_row_of(type);
    return r->block > 0 && n >= 0 && n % r->block == 0 && tn__mul_size((size_t)(n / r->block), r->bytes, bytes);
}

static tn_status check_row(tn_type type, int64_t n, const char *what, bool possible) {
    if (!tn_type_valid(type)) return tn_fail(TN_E_TYPE, "unknown type id %d", (int)type);
    if (!possible) return tn_fail(TN_E_UNSUPPORTED, "%s %s is not supported", what, tn_type_name(type));
    if (n < 0 || n % tn_type_block(type))
        return tn_fail(TN_E_SHAPE, "%lld elements do not fill whole %s blocks of %lld", (long long)n,
                       tn_type_name(type), (long long)tn_type_block(type));
    return TN_OK;
}

tn_status tn_type_to_f32(tn_type type, const void *from, float *to, int64_t n) {
    TN_TRY(check_row(type, n, "reading", tn_type_can_read(type)));
    types[type].to_f32(from, to, n);
    return TN_OK;
}

tn_status tn_type_from_f32(tn_type type, const float *from, void *to, int64_t n, const float *importance) {
    TN_TRY(check_row(type, n, "writing", tn_type_can_write(type)));
    types[type].from_f32(from, to, n, importance);
    return TN_OK;
}

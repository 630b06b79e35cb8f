/* Metadata access: conversion of values to numbers, typed getters, and look-up by key. */
#include "gguf/internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Values ---- */

bool tn_gguf_arr_at(const tn_gguf_arr *arr, uint64_t index, tn_gguf_value *out) {
    if (index >= arr->count) return false;
    out->type = arr->type;
    switch (arr->type) {
    case TN_GGUF_U8: out->u = ((const uint8_t *)arr->data)[index]; break;
    case TN_GGUF_U16: out->u = ((const uint16_t *)arr->data)[index]; break;
    case TN_GGUF_U32: out->u = ((const uint32_t *)arr->data)[index]; break;
    case TN_GGUF_U64: out->u = ((const uint64_t *)arr->data)[index]; break;
    case TN_GGUF_I8: out->i = ((const int8_t *)arr->data)[index]; break;
    case TN_GGUF_I16: out->i = ((const int16_t *)arr->data)[index]; break;
    case TN_GGUF_I32: out->i = ((const int32_t *)arr->data)[index]; break;
    case TN_GGUF_I64: out->i = ((const int64_t *)arr->data)[index]; break;
    case TN_GGUF_F32: out->f = ((const float *)arr->data)[index]; break;
    case TN_GGUF_F64: out->f = ((const double *)arr->data)[index]; break;
    case TN_GGUF_BOOL: out->b = ((const uint8_t *)arr->data)[index] != 0; break;
    case TN_GGUF_STR: out->str = ((const tn_gguf_str *)arr->data)[index]; break;
    case TN_GGUF_ARR: out->arr = ((const tn_gguf_arr *)arr->data)[index]; break;
    default: return false;
    }
    return true;
}

bool tn_gguf_value_u64(const tn_gguf_value *value, uint64_t *out) {
    switch (value->type) {
    case TN_GGUF_U8:
    case TN_GGUF_U16:
    case TN_GGUF_U32:
    case TN_GGUF_U64: *out = value->u; return true;
    case TN_GGUF_I8:
    case TN_GGUF_I16:
    case TN_GGUF_I32:
    case TN_GGUF_I64:
        if (value->i < 0) return false;
        *out = (uint64_t)value->i;
        return true;
    default: return false;
    }
}

bool tn_gguf_value_i64(const tn_gguf_value *value, int64_t *out) {
    uint64_t u;
    if (tn_gguf_value_u64(value, &u)) {
        if (u > INT64_MAX) return false;
        *out = (int64_t)u;
        return true;
    }
    if (value->type != TN_GGUF_I8 && value->type != TN_GGUF_I16 && value->type != TN_GGUF_I32 &&
        value->type != TN_GGUF_I64)
        return false;
    *out = value->i;
    return true;
}

bool tn_gguf_value_f64(const tn_gguf_value *value, double *out) {
    int64_t i;
    uint64_t u;
    if (value->type == TN_GGUF_F32 || value->type == TN_GGUF_F64)
        *out = value->f;
    else if (tn_gguf_value_i64(value, &i))
        *out = (double)i;
    else if (tn_gguf_value_u64(value, &u))
        *out = (double)u;
    else
        return false;
    return true;
}

static bool in_u32(const tn_gguf_value *value, uint32_t *out) {
    uint64_t u;
    if (!tn_gguf_value_u64(value, &u) || u > UINT32_MAX) return false;
    *out = (uint32_t)u;
    return true;
}
static bool in_i32(const tn_gguf_value *value, int32_t *out) {
    int64_t i;
    if (!tn_gguf_value_i64(value, &i) || i < INT32_MIN || i > INT32_MAX) return false;
    *out = (int32_t)i;
    return true;
}
static bool in_f32(const tn_gguf_value *value, float *out) {
    double f;
    if (!tn_gguf_value_f64(value, &f)) return false;
    *out = (float)f;
    return !isinf(*out) || isinf(f);
}
static bool in_bool(const tn_gguf_value *value, bool *out) {
    if (value->type != TN_GGUF_BOOL) return false;
    *out = value->b;
    return true;
}

/* ---- By key ---- */

uint64_t tn_gguf_key_count(const tn_gguf *file) { return file->parts[0].head.key_count; }

const tn_gguf_kv *tn_gguf_key_at(const tn_gguf *file, uint64_t index) {
    const tn__gguf_head *head = &file->parts[0].head;
    return index < head->key_count ? &head->keys[index] : NULL;
}

const tn_gguf_value *tn_gguf_find(const tn_gguf *file, const char *key) {
    const tn__gguf_head *head = &file->parts[0].head;
    size_t i = tn__gguf_index_find(&head->key_index, head->keys, sizeof *head->keys, key);
    return i == SIZE_MAX ? NULL : &head->keys[i].value;
}

#define GETTER(name, type, convert)                                                                                  \
    type tn_gguf_get_##name(const tn_gguf *file, const char *key, type missing) {                                    \
        const tn_gguf_value *value = tn_gguf_find(file, key);                                                        \
        type out;                                                                                                    \
        return value && convert(value, &out) ? out : missing;                                                        \
    }
GETTER(u32, uint32_t, in_u32)
GETTER(i32, int32_t, in_i32)
GETTER(u64, uint64_t, tn_gguf_value_u64)
GETTER(i64, int64_t, tn_gguf_value_i64)
GETTER(f32, float, in_f32)
GETTER(f64, double, tn_gguf_value_f64)
GETTER(bool, bool, in_bool)

tn_gguf_str tn_gguf_get_str(const tn_gguf *file, const char *key) {
    const tn_gguf_value *value = tn_gguf_find(file, key);
    return value && value->type == TN_GGUF_STR ? value->str : (tn_gguf_str){0};
}

const char *tn_gguf_get_cstr(const tn_gguf *file, const char *key, const char *missing) {
    tn_gguf_str str = tn_gguf_get_str(file, key);
    return str.data ? str.data : missing;
}

const tn_gguf_arr *tn_gguf_get_arr(const tn_gguf *file, const char *key) {
    const tn_gguf_value *value = tn_gguf_find(file, key);
    return value && value->type == TN_GGUF_ARR ? &value->arr : NULL;
}

const void *tn_gguf_get_array(const tn_gguf *file, const char *key, tn_gguf_type type, uint64_t *count) {
    const tn_gguf_arr *arr = tn_gguf_get_arr(file, key);
    bool fits = arr && arr->type == type;
    *count = fits ? arr->count : 0;
    return fits ? arr->data : NULL;
}

/* The value for one layer, of a key that may hold one value for all layers. */
static bool value_at(const tn_gguf *file, const char *key, uint64_t index, tn_gguf_value *out) {
    const tn_gguf_value *value = tn_gguf_find(file, key);
    if (!value) return false;
    if (value->type == TN_GGUF_ARR) return tn_gguf_arr_at(&value->arr, index, out);
    *out = *value;
    return true;
}

#define GETTER_AT(name, type, convert)                                                                               \
    type tn_gguf_get_##name##_at(const tn_gguf *file, const char *key, uint64_t index, type missing) {               \
        tn_gguf_value value;                                                                                         \
        type out;                                                                                                    \
        return value_at(file, key, index, &value) && convert(&value, &out) ? out : missing;                          \
    }
GETTER_AT(u32, uint32_t, in_u32)
GETTER_AT(f32, float, in_f32)
GETTER_AT(bool, bool, in_bool)

static tn_status need_key(const tn_gguf *file, const char *key, const tn_gguf_value **value) {
    *value = tn_gguf_find(file, key);
    return *value ? TN_OK : tn_fail(TN_E_NOT_FOUND, "%s: no metadata key \"%s\"", tn_gguf_path(file), key);
}
static tn_status type_error(const tn_gguf *file, const char *key, const tn_gguf_value *value, const char *wanted) {
    int64_t i;
    if (tn_gguf_value_i64(value, &i))
        return tn_fail(TN_E_FORMAT, "%s: \"%s\" is %" PRId64 " (%s), not %s", tn_gguf_path(file), key, i,
                       tn_gguf_type_name(value->type), wanted);
    return tn_fail(TN_E_FORMAT, "%s: \"%s\" has type %s, not %s", tn_gguf_path(file), key,
                   tn_gguf_type_name(value->type), wanted);
}

tn_status tn_gguf_need_u32(const tn_gguf *file, const char *key, uint32_t *out) {
    const tn_gguf_value *value;
    TN_TRY(need_key(file, key, &value));
    return in_u32(value, out) ? TN_OK : type_error(file, key, value, "a 32-bit integer");
}

tn_status tn_gguf_need_f32(const tn_gguf *file, const char *key, float *out) {
    const tn_gguf_value *value;
    TN_TRY(need_key(file, key, &value));
    return in_f32(value, out) ? TN_OK : type_error(file, key, value, "a number");
}

tn_status tn_gguf_need_str(const tn_gguf *file, const char *key, tn_gguf_str *out) {
    const tn_gguf_value *value;
    TN_TRY(need_key(file, key, &value));
    if (value->type != TN_GGUF_STR) return type_error(file, key, value, "a string");
    *out = value->str;
    return TN_OK;
}

/* Access to the rows of tensors of any type and layout as f32. */
#include "backend/cpu/ops.h"
#include "quant/quant.h"

#include <stdio.h>

static float element(tn_type type, const char *at) {
    float value = 0;
    (void)tn_type_to_f32(type, at, &value, 1); /* plain types always can */
    return value;
}

const float *tn__load(const tn_tensor *t, const char *row, int64_t first, int64_t n, float *buffer) {
    if (tn__dense_row(t)) {
        if (t->type == TN_F32) return (const float *)(const void *)row + first;
        size_t block = (size_t)tn_type_block(t->type);
        (void)tn_type_to_f32(t->type, row + (size_t)first / block * t->nb[0], buffer, n);
        return buffer;
    }
    if (tn_type_is_quantized(t->type)) { /* blocks apart from each other: a permuted view */
        int64_t block = tn_type_block(t->type);
        for (int64_t i = 0; i < n; i += block)
            (void)tn_type_to_f32(t->type, row + (size_t)((first + i) / block) * t->nb[0], buffer + i, block);
        return buffer;
    }
    const char *at = row + (size_t)first * t->nb[0];
    switch (t->type) {
    case TN_F32:
        for (int64_t i = 0; i < n; i++) memcpy(buffer + i, at + (size_t)i * t->nb[0], 4);
        break;
    case TN_F16:
        for (int64_t i = 0; i < n; i++)
            buffer[i] = tn__f16_to_f32(*(const uint16_t *)(const void *)(at + (size_t)i * t->nb[0]));
        break;
    default:
        for (int64_t i = 0; i < n; i++) buffer[i] = element(t->type, at + (size_t)i * t->nb[0]);
    }
    return buffer;
}

/* The quantizers that search for the best block are for files; while a graph runs the direct ones serve. */
typedef void (*quantize_fn)(const float *x, void *blocks, int64_t n);
static const quantize_fn quantizers[TN_TYPE_LIMIT] = {
#define TN_X(NAME, name) [TN_##NAME] = tn__quantize_row_##name,
    TN_X(Q4_0, q4_0) TN_X(Q4_1, q4_1) TN_X(Q5_0, q5_0) TN_X(Q5_1, q5_1) TN_X(Q8_0, q8_0) TN_X(Q2_K, q2_K)
        TN_X(Q3_K, q3_K) TN_X(Q4_K, q4_K) TN_X(Q5_K, q5_K) TN_X(Q6_K, q6_K) TN_X(IQ4_NL, iq4_nl) TN_X(IQ4_XS, iq4_xs)
            TN_X(MXFP4, mxfp4) TN_X(NVFP4, nvfp4)
#undef TN_X
};

void tn__quantize(tn_type type, const float *values, void *to, int64_t n) {
    if (quantizers[type])
        quantizers[type](values, to, n);
    else
        (void)tn_type_from_f32(type, values, to, n, NULL);
}

void tn__store(const tn_tensor *t, char *row, int64_t first, int64_t n, const float *values) {
    if (tn__dense_row(t)) {
        if (t->type == TN_F32) {
            float *to = (float *)(void *)row + first;
            if (to != values) memmove(to, values, (size_t)n * 4);
            return;
        }
        size_t block = (size_t)tn_type_block(t->type);
        tn__quantize(t->type, values, row + (size_t)first / block * t->nb[0], n);
        return;
    }
    int64_t block = tn_type_block(t->type);
    for (int64_t i = 0; i < n; i += block)
        tn__quantize(t->type, values + i, row + (size_t)((first + i) / block) * t->nb[0], block);
}

int64_t tn__load_int(const tn_tensor *t, const char *row, int64_t i) {
    const void *at = row + (size_t)i * t->nb[0];
    switch (t->type) {
    case TN_I8: return *(const int8_t *)at;
    case TN_I16: return *(const int16_t *)at;
    case TN_I64: return *(const int64_t *)at;
    default: return *(const int32_t *)at;
    }
}

bool tn__refuse(char *reason, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(reason, size, format, args);
    va_end(args);
    return false;
}

bool tn__readable(const tn_tensor *node, char *reason, size_t size) {
    for (int i = 0; i < TN_MAX_SRC; i++)
        if (node->src[i] && !tn_type_can_read(node->src[i]->type))
            return tn__refuse(reason, size, "%s: %s cannot be read", tn_op_name(node->op),
                              tn_type_name(node->src[i]->type));
    if (!tn_type_can_write(node->type))
        return tn__refuse(reason, size, "%s: %s cannot be written", tn_op_name(node->op), tn_type_name(node->type));
    return true;
}

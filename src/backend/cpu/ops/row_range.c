/* Access to the rows of tensors of any type and layout as f32. */
#include "backend/cpu/ops/ops.h"

#include <stdio.h>

/* Floats and block types have kernels; integers and f64 use the type table. */
static void to_f32(const tn__cpu_kernels *kernels, tn_type type, const void *from, float *to, int64_t n) {
    if (kernels->to_f32[type])
        kernels->to_f32[type](from, to, n);
    else
        (void)tn_type_to_f32(type, from, to, n);
}

/* While a graph runs, block types are rounded directly; the search for the best scales is for files. */
void tn__quantize(const tn__cpu_kernels *kernels, tn_type type, const float *values, void *to, int64_t n) {
    if (kernels->from_f32[type])
        kernels->from_f32[type](values, to, n);
    else
        (void)tn_type_from_f32(type, values, to, n, NULL);
}

const float *tn__load(const tn__cpu_kernels *kernels, const tn_tensor *t, const char *row, int64_t first, int64_t n,
                      float *buffer) {
    const int64_t block = tn_type_block(t->type);
    if (tn__dense_row(t)) {
        if (t->type == TN_F32) return (const float *)(const void *)row + first;
        to_f32(kernels, t->type, row + (size_t)(first / block) * t->nb[0], buffer, n);
        return buffer;
    }
    const char *at = row + (size_t)(first / block) * t->nb[0];
    switch (t->type) {
    case TN_F32:
        for (int64_t i = 0; i < n; i++, at += t->nb[0]) memcpy(buffer + i, at, 4);
        break;
    case TN_F16:
        for (int64_t i = 0; i < n; i++, at += t->nb[0])
            buffer[i] = tn__f16_to_f32(*(const uint16_t *)(const void *)at);
        break;
    default: /* elements, or blocks, that are not adjacent */
        for (int64_t i = 0; i < n; i += block, at += t->nb[0]) to_f32(kernels, t->type, at, buffer + i, block);
    }
    return buffer;
}

void tn__store(const tn__cpu_kernels *kernels, const tn_tensor *t, char *row, int64_t first, int64_t n,
               const float *values) {
    const int64_t block = tn_type_block(t->type);
    char *at = row + (size_t)(first / block) * t->nb[0];
    if (!tn__dense_row(t)) {
        for (int64_t i = 0; i < n; i += block, at += t->nb[0]) tn__quantize(kernels, t->type, values + i, at, block);
    } else if (t->type != TN_F32) {
        tn__quantize(kernels, t->type, values, at, n);
    } else if ((const void *)at != values) {
        memmove(at, values, (size_t)n * 4);
    }
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

/* Copies and conversions: dup, cast, cont, cpy.
 *
 * Within a type, block types included, bytes are copied. Conversions between integers are exact or saturate; those
 * that involve f64 or an integer use f64; all others use f32. */
#include "backend/cpu/ops/ops.h"

/* Address of element e, counted in the order of the shape. */
static char *element_at(const tn_tensor *t, int64_t e) {
    int64_t block = tn_type_block(t->type), i0 = e % t->ne[0];
    return tn__row(t, e / t->ne[0]) + (size_t)(i0 / block) * t->nb[0];
}

static bool is_integer(tn_type type) { return type == TN_I8 || type == TN_I16 || type == TN_I32 || type == TN_I64; }
/* Pairs of plain types whose conversion through f32 would lose precision. */
static bool needs_more_than_f32(tn_type a, tn_type b) {
    if (tn_type_is_quantized(a) || tn_type_is_quantized(b)) return false;
    return a == TN_F64 || b == TN_F64 || is_integer(a) || is_integer(b);
}

static double load_f64(tn_type type, const char *at) {
    switch (type) {
    case TN_F64: return *(const double *)(const void *)at;
    case TN_I32: return *(const int32_t *)(const void *)at;
    case TN_I64: return (double)*(const int64_t *)(const void *)at;
    default: {
        float value = 0;
        (void)tn_type_to_f32(type, at, &value, 1);
        return value;
    }
    }
}

/* Rounds towards zero; NaN gives 0. The bounds are compared as f64, where INT64_MAX is 2^63. */
static int64_t to_integer(double value, int64_t low, int64_t high) {
    if (isnan(value)) return 0;
    if (value <= (double)low) return low;
    if (value >= (double)high) return high;
    return (int64_t)value;
}
static int64_t saturate(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}
static void limits(tn_type type, int64_t *low, int64_t *high) {
    int bits = (int)tn_type_bytes(type) * 8;
    *high = bits == 64 ? INT64_MAX : ((int64_t)1 << (bits - 1)) - 1;
    *low = -*high - 1;
}
static void store_integer(tn_type type, char *at, int64_t value) {
    switch (type) {
    case TN_I8: *(int8_t *)at = (int8_t)value; break;
    case TN_I16: *(int16_t *)(void *)at = (int16_t)value; break;
    case TN_I32: *(int32_t *)(void *)at = (int32_t)value; break;
    default: *(int64_t *)(void *)at = value;
    }
}

static void convert_element(tn_type from, const char *source, tn_type to, char *target) {
    int64_t low, high;
    if (is_integer(to)) {
        limits(to, &low, &high);
        if (is_integer(from)) {
            const tn_tensor t = {.type = from};
            store_integer(to, target, saturate(tn__load_int(&t, source, 0), low, high));
        } else {
            store_integer(to, target, to_integer(load_f64(from, source), low, high));
        }
        return;
    }
    double value = load_f64(from, source);
    if (to == TN_F64) {
        *(double *)(void *)target = value;
    } else {
        float narrow = (float)value;
        (void)tn_type_from_f32(to, &narrow, target, 1, NULL);
    }
}

/* Whole rows of equal shapes. */
static void copy_rows(const tn__task *task, const tn_tensor *x, tn_tensor *y) {
    int64_t begin, end, block = tn_type_block(x->type);
    tn__task_share(task, tn__pieces(y), &begin, &end);
    for (int64_t piece = begin; piece < end; piece++) {
        tn__piece at = tn__piece_at(y, piece);
        char *from = tn__row(x, at.row), *to = tn__row(y, at.row);
        if (x->type == y->type) {
            size_t bytes = tn_type_bytes(x->type);
            int64_t first = at.first / block, n = at.n / block;
            if (tn__dense_row(x) && tn__dense_row(y)) {
                memmove(to + (size_t)first * bytes, from + (size_t)first * bytes, (size_t)n * bytes);
            } else {
                for (int64_t i = first; i < first + n; i++)
                    memmove(to + (size_t)i * y->nb[0], from + (size_t)i * x->nb[0], bytes);
            }
        } else if (needs_more_than_f32(x->type, y->type)) {
            for (int64_t i = at.first; i < at.first + at.n; i++)
                convert_element(x->type, from + (size_t)i * x->nb[0], y->type, to + (size_t)i * y->nb[0]);
        } else {
            float buffer[TN__PIECE];
            tn__store(task->kernels, y, to, at.first, at.n, tn__load(task->kernels, x, from, at.first, at.n, buffer));
        }
    }
}

/* Different shapes: elements (or blocks) in order. */
static void copy_elements(const tn__task *task, const tn_tensor *x, tn_tensor *y) {
    int64_t unit = TN__MAX(tn_type_block(x->type), tn_type_block(y->type)), begin, end;
    tn__task_share(task, tn_nelements(y) / unit, &begin, &end);
    for (int64_t u = begin; u < end; u++) {
        int64_t e = u * unit;
        if (x->type == y->type) {
            memmove(element_at(y, e), element_at(x, e), tn_type_bytes(x->type));
        } else if (unit == 1) {
            convert_element(x->type, element_at(x, e), y->type, element_at(y, e));
        } else { /* a block on one side, plain floats on the other, possibly across row ends */
            float values[256];
            if (tn_type_is_quantized(x->type)) {
                (void)tn_type_to_f32(x->type, element_at(x, e), values, unit);
                for (int64_t i = 0; i < unit; i++)
                    convert_element(TN_F32, (const char *)(values + i), y->type, element_at(y, e + i));
            } else {
                for (int64_t i = 0; i < unit; i++) values[i] = (float)load_f64(x->type, element_at(x, e + i));
                tn__quantize(task->kernels, y->type, values, element_at(y, e), unit);
            }
        }
    }
}

void tn__run_copy(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    if (tn_same_shape(x, y))
        copy_rows(task, x, y);
    else
        copy_elements(task, x, y);
}

int64_t tn__units_elements(const tn_tensor *node) {
    return tn_same_shape(node, node->src[0]) ? tn__pieces(node) : tn_nelements(node) / 256 + 1;
}

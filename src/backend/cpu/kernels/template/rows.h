/* Operations on rows of floats: a template over the vector type, included once per level after its vec.h. */
#include "backend/cpu/kernels/shared.h"
#include "backend/cpu/kernels/template/convert.h"
#include "backend/cpu/kernels/template/math.h"
#include "base/half.h"

#define EACH(body_full, body_rest)                                                                                   \
    int64_t i = 0;                                                                                                   \
    for (; i + VL <= n; i += VL) {                                                                                   \
        body_full;                                                                                                   \
    }                                                                                                                \
    if (i < n) {                                                                                                     \
        body_rest;                                                                                                   \
    }

#define BINARY(name, expression)                                                                                     \
    static void name(int64_t n, const float *x, const float *y, float *z) {                                          \
        EACH(vf a = vf_load(x + i); vf b = vf_load(y + i);                                                           \
             vf_store(z + i, expression), vf a = vf_load_n(x + i, n - i); vf b = vf_load_n(y + i, n - i);            \
             vf_store_n(z + i, expression, n - i))                                                                   \
    }
BINARY(row_add, vf_add(a, b))
BINARY(row_sub, vf_sub(a, b))
BINARY(row_mul, vf_mul(a, b))
BINARY(row_div, vf_div(a, b))
BINARY(row_swiglu, vf_mul(vf_silu(a), b))
BINARY(row_geglu, vf_mul(vf_gelu(a), b))

#define UNARY(name, expression)                                                                                      \
    static void name(int64_t n, const float *x, float *y) {                                                          \
        EACH(vf a = vf_load(x + i); vf_store(y + i, expression), vf a = vf_load_n(x + i, n - i);                     \
             vf_store_n(y + i, expression, n - i))                                                                   \
    }
UNARY(row_exp, vf_exp(a))
UNARY(row_tanh, vf_tanh(a))
UNARY(row_sigmoid, vf_sigmoid(a))
UNARY(row_silu, vf_silu(a))
UNARY(row_gelu, vf_gelu(a))
UNARY(row_gelu_quick, vf_gelu_quick(a))
UNARY(row_gelu_erf, vf_gelu_erf(a))
UNARY(row_softplus, vf_softplus(a))

static void row_scale(int64_t n, float s, float b, const float *x, float *y) {
    vf vs = vf_set1(s), vb = vf_set1(b);
    EACH(vf_store(y + i, vf_fma(vf_load(x + i), vs, vb)),
         vf_store_n(y + i, vf_fma(vf_load_n(x + i, n - i), vs, vb), n - i))
}
static void row_mad(int64_t n, float s, const float *x, float *y) {
    vf vs = vf_set1(s);
    EACH(vf_store(y + i, vf_fma(vf_load(x + i), vs, vf_load(y + i))),
         vf_store_n(y + i, vf_fma(vf_load_n(x + i, n - i), vs, vf_load_n(y + i, n - i)), n - i))
}

static float row_dot(int64_t n, const float *x, const float *y) {
    vf a = vf_zero(), b = vf_zero(), c = vf_zero(), d = vf_zero();
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        a = vf_fma(vf_load(x + i), vf_load(y + i), a);
        b = vf_fma(vf_load(x + i + VL), vf_load(y + i + VL), b);
        c = vf_fma(vf_load(x + i + 2 * VL), vf_load(y + i + 2 * VL), c);
        d = vf_fma(vf_load(x + i + 3 * VL), vf_load(y + i + 3 * VL), d);
    }
    for (; i < n; i += VL) a = vf_fma(vf_load_n(x + i, n - i), vf_load_n(y + i, n - i), a);
    return vf_sum(vf_add(vf_add(a, b), vf_add(c, d)));
}
static float row_sum(int64_t n, const float *x) {
    vf a = vf_zero(), b = vf_zero();
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        a = vf_add(a, vf_load(x + i));
        b = vf_add(b, vf_load(x + i + VL));
    }
    for (; i < n; i += VL) a = vf_add(a, vf_load_n(x + i, n - i));
    return vf_sum(vf_add(a, b));
}
static float row_max(int64_t n, const float *x) {
    vf most = vf_set1(-__builtin_inff());
    vm nan = vm_none();
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf v = vf_load(x + i);
        nan = vm_or(nan, vm_nan(v));
        most = vf_max(most, v);
    }
    float result = vf_most(most);
    for (; i < n; i++) {
        if (x[i] != x[i]) return x[i];
        result = x[i] > result ? x[i] : result;
    }
    return vm_any(nan) ? __builtin_nanf("") : result;
}
static float row_exp_sum(int64_t n, float max, const float *x, float *y) {
    vf m = vf_set1(max), total = vf_zero();
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf e = vf_exp(vf_sub(vf_load(x + i), m));
        vf_store(y + i, e);
        total = vf_add(total, e);
    }
    float rest = 0;
    if (i < n) {
        float lanes[VL];
        vf_store(lanes, vf_exp(vf_sub(vf_load_n(x + i, n - i), m)));
        for (int64_t j = 0; i + j < n; j++) {
            y[i + j] = lanes[j];
            rest += lanes[j];
        }
    }
    return vf_sum(total) + rest;
}

static void row_rms_norm(int64_t n, const float *x, const float *weight, float eps, float *y) {
    vf factor = vf_set1(1 / __builtin_sqrtf(row_dot(n, x, x) / (float)n + eps));
    if (weight) {
        EACH(vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), factor), vf_load(weight + i))),
             vf_store_n(y + i, vf_mul(vf_mul(vf_load_n(x + i, n - i), factor), vf_load_n(weight + i, n - i)), n - i))
    } else {
        EACH(vf_store(y + i, vf_mul(vf_load(x + i), factor)),
             vf_store_n(y + i, vf_mul(vf_load_n(x + i, n - i), factor), n - i))
    }
}
static void row_norm(int64_t n, const float *x, const float *weight, const float *bias, float eps, float *y) {
    float mean = row_sum(n, x) / (float)n;
    vf m = vf_set1(mean), squares = vf_zero();
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf d = vf_sub(vf_load(x + i), m);
        squares = vf_fma(d, d, squares);
    }
    float rest = 0;
    for (; i < n; i++) rest += (x[i] - mean) * (x[i] - mean);
    vf factor = vf_set1(1 / __builtin_sqrtf((vf_sum(squares) + rest) / (float)n + eps));
    for (i = 0; i < n; i += VL) {
        vf v = vf_mul(vf_sub(vf_load_n(x + i, n - i), m), factor);
        if (weight) v = vf_mul(v, vf_load_n(weight + i, n - i));
        if (bias) v = vf_add(v, vf_load_n(bias + i, n - i));
        vf_store_n(y + i, v, n - i);
    }
}

/* Butterflies inside vectors, then between vectors. */
static void row_hadamard(int64_t n, int64_t block, const float *x, float *y) {
    static const float signs[4][16] = {{1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
                                       {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
                                       {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
                                       {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
    if (block < VL) {
        tn__hadamard(n, block, x, y);
        return;
    }
    const vf scale = vf_set1((float)(1 / __builtin_sqrt((double)block)));
    for (int64_t i = 0; i < n; i += VL) {
        vf v = vf_load(x + i);
#pragma GCC unroll 4
        for (int k = 0; 1 << k < VL; k++) v = vf_fma(v, vf_load(signs[k]), vf_swap(v, 1 << k));
        vf_store(y + i, block == VL ? vf_mul(scale, v) : v);
    }
    for (int64_t far = VL; far < block; far *= 2) {
        const vf by = 2 * far == block ? scale : vf_set1(1);
        for (int64_t i = 0; i < n; i += 2 * far) {
            for (int64_t j = i; j < i + far; j += VL) {
                const vf a = vf_load(y + j), b = vf_load(y + j + far);
                vf_store(y + j, vf_mul(by, vf_add(a, b)));
                vf_store(y + j + far, vf_mul(by, vf_sub(a, b)));
            }
        }
    }
}

/* With the two values of each pair swapped and the sign of the first sine negated, one multiply-add gives both
 * results. */
static void row_rope_normal(int64_t n, const float *x, const float *cos, const float *sin, float *y) {
    int64_t i = 0;
    const vf sign = vf_minus_plus();
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf c = vf_load(cos + i / 2), s = vf_load(sin + i / 2), a = vf_load(x + i), b = vf_load(x + i + VL);
        vf first = vf_mul(vf_mul(vf_swap_pairs(a), vf_twice_low(s)), sign);
        vf second = vf_mul(vf_mul(vf_swap_pairs(b), vf_twice_high(s)), sign);
        vf_store(y + i, vf_fma(a, vf_twice_low(c), first));
        vf_store(y + i + VL, vf_fma(b, vf_twice_high(c), second));
    }
    for (; i + 1 < n; i += 2) {
        float a = x[i], b = x[i + 1], c = cos[i / 2], s = sin[i / 2];
        y[i] = a * c - b * s;
        y[i + 1] = a * s + b * c;
    }
}
static void row_rope_neox(int64_t n, const float *x, const float *cos, const float *sin, float *y) {
    int64_t half = n / 2;
    for (int64_t i = 0; i < half; i += VL) {
        int64_t left = half - i;
        vf a = vf_load_n(x + i, left), b = vf_load_n(x + half + i, left);
        vf c = vf_load_n(cos + i, left), s = vf_load_n(sin + i, left);
        vf_store_n(y + i, vf_fnma(b, s, vf_mul(a, c)), left);
        vf_store_n(y + half + i, vf_fma(a, s, vf_mul(b, c)), left);
    }
}

static void row_f32_to_f16(const float *from, void *to, int64_t n) {
    uint16_t *h = to;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store_f16(h + i, vf_load(from + i));
    for (; i < n; i++) h[i] = tn__f32_to_f16(from[i]);
}
static void row_f32_to_bf16(const float *from, void *to, int64_t n) {
    uint16_t *h = to;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store_bf16(h + i, vf_load(from + i));
    for (; i < n; i++) h[i] = tn__f32_to_bf16(from[i]);
}

static void fill_rows(tn__cpu_kernels *table) {
    table->add = row_add;
    table->sub = row_sub;
    table->mul = row_mul;
    table->div = row_div;
    table->scale = row_scale;
    table->mad = row_mad;
    table->exp = row_exp;
    table->tanh = row_tanh;
    table->sigmoid = row_sigmoid;
    table->silu = row_silu;
    table->gelu = row_gelu;
    table->gelu_quick = row_gelu_quick;
    table->gelu_erf = row_gelu_erf;
    table->softplus = row_softplus;
    table->swiglu = row_swiglu;
    table->geglu = row_geglu;
    table->dot = row_dot;
    table->sum = row_sum;
    table->max = row_max;
    table->exp_sum = row_exp_sum;
    table->rms_norm = row_rms_norm;
    table->norm = row_norm;
    table->hadamard = row_hadamard;
    table->rope_normal = row_rope_normal;
    table->rope_neox = row_rope_neox;
    table->to_f32[TN_F16] = row_f16_to_f32;
    table->to_f32[TN_BF16] = row_bf16_to_f32;
    table->to_f32[TN_FP8] = row_fp8_to_f32;
    table->to_f32[TN_Q8_0] = row_q8_0_to_f32;
    table->to_f32[TN_Q5_1] = row_q5_1_to_f32;
    table->to_f32[TN_Q5_0] = row_q5_0_to_f32;
    table->to_f32[TN_Q4_1] = row_q4_1_to_f32;
    table->to_f32[TN_Q4_0] = row_q4_0_to_f32;
    table->from_f32[TN_F16] = row_f32_to_f16;
    table->from_f32[TN_BF16] = row_f32_to_bf16;
}

/* Rows of floats in plain C: arithmetic, activations, reductions, norms, rotations, conversions. */
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels/shared.h"
#include "base/half.h"
#include "quant/quant.h"

static void add(int64_t n, const float *x, const float *y, float *z) {
    for (int64_t i = 0; i < n; i++) z[i] = x[i] + y[i];
}
static void sub(int64_t n, const float *x, const float *y, float *z) {
    for (int64_t i = 0; i < n; i++) z[i] = x[i] - y[i];
}
static void mul(int64_t n, const float *x, const float *y, float *z) {
    for (int64_t i = 0; i < n; i++) z[i] = x[i] * y[i];
}
static void divide(int64_t n, const float *x, const float *y, float *z) {
    for (int64_t i = 0; i < n; i++) z[i] = x[i] / y[i];
}
static void scale(int64_t n, float s, float b, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = s * x[i] + b;
}
static void mad(int64_t n, float s, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] += s * x[i];
}

static float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }
static float gelu_of(float x) {
    return 0.5f * x * (1 + tanhf(0.79788456080286535588f * x * (1 + 0.044715f * x * x)));
}

static void exp_row(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = expf(x[i]);
}
static void tanh_row(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = tanhf(x[i]);
}
static void sigmoid(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = sigmoid_of(x[i]);
}
static void silu(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / (1 + expf(-x[i]));
}
static void gelu(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = gelu_of(x[i]);
}
static void gelu_quick(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * sigmoid_of(1.702f * x[i]);
}
static void gelu_erf(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678118654752440f));
}
/* Above 20 the difference to x is below half an ulp. */
static void softplus(int64_t n, const float *x, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] > 20 ? x[i] : log1pf(expf(x[i]));
}
static void swiglu(int64_t n, const float *gate, const float *up, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}
static void geglu(int64_t n, const float *gate, const float *up, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = gelu_of(gate[i]) * up[i];
}

/* Reductions use double: rows are long, and these are the reference for all other levels. */
static float dot(int64_t n, const float *x, const float *y) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * y[i];
    return (float)sum;
}
static double sum_of(int64_t n, const float *x) {
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += x[i];
    return total;
}
static float sum(int64_t n, const float *x) { return (float)sum_of(n, x); }
static float max(int64_t n, const float *x) {
    float most = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i])) return x[i];
        most = x[i] > most ? x[i] : most;
    }
    return most;
}
static float exp_sum(int64_t n, float most, const float *x, float *y) {
    double total = 0;
    for (int64_t i = 0; i < n; i++) {
        y[i] = expf(x[i] - most);
        total += y[i];
    }
    return (float)total;
}

static void rms_norm(int64_t n, const float *x, const float *weight, float eps, float *y) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    float factor = 1 / sqrtf((float)(squares / (double)n) + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * (weight ? weight[i] : 1);
}
static void norm(int64_t n, const float *x, const float *weight, const float *bias, float eps, float *y) {
    float mean = (float)(sum_of(n, x) / (double)n);
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)(x[i] - mean) * (x[i] - mean);
    float factor = 1 / sqrtf((float)(squares / (double)n) + eps);
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * factor * (weight ? weight[i] : 1) + (bias ? bias[i] : 0);
}

/* Sums and differences of elements 1, 2, 4, … apart. Every level adds in this order, so that all give the same bits.
 */
void tn__hadamard(int64_t n, int64_t block, const float *x, float *y) {
    const float scale = (float)(1 / sqrt((double)block));
    if (y != x) memcpy(y, x, (size_t)n * sizeof *y);
    for (int64_t far = 1; far < block; far *= 2) {
        for (int64_t i = 0; i < n; i += 2 * far) {
            for (int64_t j = i; j < i + far; j++) {
                const float a = y[j], b = y[j + far];
                y[j] = a + b;
                y[j + far] = a - b;
            }
        }
    }
    for (int64_t i = 0; i < n; i++) y[i] *= scale;
}

static void rope_normal(int64_t n, const float *x, const float *cos, const float *sin, float *y) {
    for (int64_t i = 0; i < n / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cos[i] - b * sin[i];
        y[2 * i + 1] = a * sin[i] + b * cos[i];
    }
}
static void rope_neox(int64_t n, const float *x, const float *cos, const float *sin, float *y) {
    for (int64_t i = 0; i < n / 2; i++) {
        float a = x[i], b = x[i + n / 2];
        y[i] = a * cos[i] - b * sin[i];
        y[i + n / 2] = a * sin[i] + b * cos[i];
    }
}

static void f32_from_f32(const float *from, void *to, int64_t n) { memcpy(to, from, (size_t)n * sizeof(float)); }
static void f16_from_f32(const float *from, void *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[i] = tn__f32_to_f16(from[i]);
}
static void bf16_from_f32(const float *from, void *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[i] = tn__f32_to_bf16(from[i]);
}
static void fp8_from_f32(const float *from, void *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = tn__f32_to_fp8(from[i]);
}

void tn__kernels_generic_rows(tn__cpu_kernels *table) {
    table->add = add;
    table->sub = sub;
    table->mul = mul;
    table->div = divide;
    table->scale = scale;
    table->mad = mad;
    table->exp = exp_row;
    table->tanh = tanh_row;
    table->sigmoid = sigmoid;
    table->silu = silu;
    table->gelu = gelu;
    table->gelu_quick = gelu_quick;
    table->gelu_erf = gelu_erf;
    table->softplus = softplus;
    table->swiglu = swiglu;
    table->geglu = geglu;
    table->dot = dot;
    table->sum = sum;
    table->max = max;
    table->exp_sum = exp_sum;
    table->rms_norm = rms_norm;
    table->norm = norm;
    table->hadamard = tn__hadamard;
    table->rope_normal = rope_normal;
    table->rope_neox = rope_neox;
    table->from_f32[TN_F32] = f32_from_f32;
    table->from_f32[TN_F16] = f16_from_f32;
    table->from_f32[TN_BF16] = bf16_from_f32;
    table->from_f32[TN_FP8] = fp8_from_f32;
#define TN_ROW(NAME, name) table->from_f32[TN_##NAME] = tn__quantize_row_##name;
    TN_ROW(Q4_0, q4_0)
    TN_ROW(Q4_1, q4_1)
    TN_ROW(Q5_0, q5_0)
    TN_ROW(Q5_1, q5_1)
    TN_ROW(Q8_0, q8_0)
    TN_ROW(Q8_1, q8_1)
    TN_ROW(Q2_K, q2_K)
    TN_ROW(Q3_K, q3_K)
    TN_ROW(Q4_K, q4_K)
    TN_ROW(Q5_K, q5_K)
    TN_ROW(Q6_K, q6_K)
    TN_ROW(Q8_K, q8_K)
    TN_ROW(IQ4_NL, iq4_nl)
    TN_ROW(IQ4_XS, iq4_xs)
    TN_ROW(MXFP4, mxfp4)
    TN_ROW(NVFP4, nvfp4)
    TN_ROW(TQ1_0, tq1_0)
    TN_ROW(TQ2_0, tq2_0)
#undef TN_ROW
}

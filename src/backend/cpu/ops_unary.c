/* Element-wise ops of one source. Arithmetic is f32 whatever the type; the result is rounded once, when stored.
 *
 * NaN goes in, NaN comes out, except for sgn and step, which compare: a NaN is neither above nor below zero. */
#include "backend/cpu/activations.h"
#include "backend/cpu/ops.h"

typedef void (*vector_fn)(float *y, const float *x, int64_t n, const tn_op_params *p);

#define VECTOR(name, expression)                                                                                     \
    static void name##_vector(float *y, const float *x, int64_t n, const tn_op_params *p) {                          \
        (void)p;                                                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                                            \
            const float v = x[i];                                                                                    \
            y[i] = (expression);                                                                                     \
        }                                                                                                            \
    }
VECTOR(scale, v * p->scale.scale + p->scale.bias)
VECTOR(sqr, v *v)
VECTOR(sqrt, sqrtf(v))
VECTOR(log, logf(v))
VECTOR(exp, expf(v))
VECTOR(sin, sinf(v))
VECTOR(cos, cosf(v))
VECTOR(clamp, v<p->clamp.min ? p->clamp.min : v> p->clamp.max ? p->clamp.max : v)
VECTOR(neg, -v)
VECTOR(abs, fabsf(v))
VECTOR(sgn, v > 0 ? 1.0f : v < 0 ? -1.0f : 0.0f)
VECTOR(step, v > 0 ? 1.0f : 0.0f)
VECTOR(tanh, tanhf(v))
VECTOR(elu, v > 0 ? v : expm1f(v))
VECTOR(relu, tn__relu(v))
VECTOR(leaky_relu, v > 0 ? v : v * p->leaky_relu.slope)
VECTOR(sigmoid, tn__sigmoid(v))
VECTOR(gelu, tn__gelu(v))
VECTOR(gelu_quick, tn__gelu_quick(v))
VECTOR(gelu_erf, tn__gelu_erf(v))
VECTOR(silu, tn__silu(v))
VECTOR(hardswish, v *tn__hard_sigmoid(v))
VECTOR(hardsigmoid, tn__hard_sigmoid(v))
VECTOR(softplus, v > 20 ? v : log1pf(expf(v))) /* past 20 the difference to v is below half an ulp */

static const vector_fn vectors[TN_OP_COUNT] = {
    [TN_OP_SCALE] = scale_vector,
    [TN_OP_SQR] = sqr_vector,
    [TN_OP_SQRT] = sqrt_vector,
    [TN_OP_LOG] = log_vector,
    [TN_OP_EXP] = exp_vector,
    [TN_OP_SIN] = sin_vector,
    [TN_OP_COS] = cos_vector,
    [TN_OP_CLAMP] = clamp_vector,
    [TN_OP_NEG] = neg_vector,
    [TN_OP_ABS] = abs_vector,
    [TN_OP_SGN] = sgn_vector,
    [TN_OP_STEP] = step_vector,
    [TN_OP_TANH] = tanh_vector,
    [TN_OP_ELU] = elu_vector,
    [TN_OP_RELU] = relu_vector,
    [TN_OP_LEAKY_RELU] = leaky_relu_vector,
    [TN_OP_SIGMOID] = sigmoid_vector,
    [TN_OP_GELU] = gelu_vector,
    [TN_OP_GELU_QUICK] = gelu_quick_vector,
    [TN_OP_GELU_ERF] = gelu_erf_vector,
    [TN_OP_SILU] = silu_vector,
    [TN_OP_HARDSWISH] = hardswish_vector,
    [TN_OP_HARDSIGMOID] = hardsigmoid_vector,
    [TN_OP_SOFTPLUS] = softplus_vector,
};

void tn__run_unary(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    vector_fn fn = vectors[y->op];
    int64_t begin, end;
    tn__task_share(task, tn__pieces(y), &begin, &end);
    for (int64_t piece = begin; piece < end; piece++) {
        float in[TN__PIECE], out[TN__PIECE];
        tn__piece at = tn__piece_at(y, piece);
        char *to = tn__row(y, at.row);
        float *target = tn__target(y, to, at.first, out);
        fn(target, tn__load(x, tn__row(x, at.row), at.first, at.n, in), at.n, &y->params);
        tn__store(y, to, at.first, at.n, target);
    }
}

/* Element j of row i stays when j <= n_past + i. */
void tn__run_diag_mask(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    const float masked = y->op == TN_OP_DIAG_MASK_INF ? -INFINITY : 0;
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        char *to = tn__row(y, r), *from = tn__row(x, r);
        int64_t keep = TN__MIN(y->params.diag_mask.n_past + r % y->ne[1] + 1, y->ne[0]);
        for (int64_t first = 0; first < y->ne[0]; first += TN__PIECE) {
            float buffer[TN__PIECE], out[TN__PIECE];
            int64_t n = TN__MIN(TN__PIECE, y->ne[0] - first);
            const float *in = tn__load(x, from, first, n, buffer);
            for (int64_t i = 0; i < n; i++) out[i] = first + i < keep ? in[i] : masked;
            tn__store(y, to, first, n, out);
        }
    }
}

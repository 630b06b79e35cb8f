/* Element-wise ops of one source. Arithmetic is f32 for every type; the result is rounded once, when stored.
 *
 * A NaN gives a NaN, except for sgn and step, which compare: a NaN is neither above nor below zero. */
#include "backend/cpu/ops/activations.h"
#include "backend/cpu/ops/ops.h"

/* Functions that matter for the speed of models are kernels. */
typedef void (*kernel_fn)(int64_t n, const float *x, float *y);
static kernel_fn kernel_of(const tn__cpu_kernels *k, tn_op op) {
    switch (op) {
    case TN_OP_EXP: return k->exp;
    case TN_OP_TANH: return k->tanh;
    case TN_OP_SIGMOID: return k->sigmoid;
    case TN_OP_SILU: return k->silu;
    case TN_OP_GELU: return k->gelu;
    case TN_OP_GELU_QUICK: return k->gelu_quick;
    case TN_OP_GELU_ERF: return k->gelu_erf;
    case TN_OP_SOFTPLUS: return k->softplus;
    default: return NULL;
    }
}

/* The rest are plain loops. */
typedef void (*vector_fn)(float *y, const float *x, int64_t n, const tn_op_params *p);
#define VECTOR(name, expression)                                                                                     \
    static void name##_vector(float *y, const float *x, int64_t n, const tn_op_params *p) {                          \
        (void)p;                                                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                                            \
            const float v = x[i];                                                                                    \
            y[i] = (expression);                                                                                     \
        }                                                                                                            \
    }
VECTOR(sqr, v *v)
VECTOR(sqrt, sqrtf(v))
VECTOR(log, logf(v))
VECTOR(sin, sinf(v))
VECTOR(cos, cosf(v))
VECTOR(clamp, v<p->clamp.min ? p->clamp.min : v> p->clamp.max ? p->clamp.max : v)
VECTOR(neg, -v)
VECTOR(abs, fabsf(v))
VECTOR(sgn, v > 0 ? 1.0f : v < 0 ? -1.0f : 0.0f)
VECTOR(step, v > 0 ? 1.0f : 0.0f)
VECTOR(elu, v > 0 ? v : expm1f(v))
VECTOR(relu, tn__relu(v))
VECTOR(leaky_relu, v > 0 ? v : v * p->leaky_relu.slope)
VECTOR(hardswish, v *tn__hard_sigmoid(v))
VECTOR(hardsigmoid, tn__hard_sigmoid(v))

static const vector_fn vectors[TN_OP_COUNT] = {
    [TN_OP_SQR] = sqr_vector,
    [TN_OP_SQRT] = sqrt_vector,
    [TN_OP_LOG] = log_vector,
    [TN_OP_SIN] = sin_vector,
    [TN_OP_COS] = cos_vector,
    [TN_OP_CLAMP] = clamp_vector,
    [TN_OP_NEG] = neg_vector,
    [TN_OP_ABS] = abs_vector,
    [TN_OP_SGN] = sgn_vector,
    [TN_OP_STEP] = step_vector,
    [TN_OP_ELU] = elu_vector,
    [TN_OP_RELU] = relu_vector,
    [TN_OP_LEAKY_RELU] = leaky_relu_vector,
    [TN_OP_HARDSWISH] = hardswish_vector,
    [TN_OP_HARDSIGMOID] = hardsigmoid_vector,
};

int tn__by_rows_one(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) { return 1; }

void tn__run_unary(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    const tn_op_params *p = &y->params;
    const kernel_fn kernel = kernel_of(task->kernels, y->op);
    const vector_fn vector = vectors[y->op];
    int64_t begin, end;
    tn__task_share(task, tn__pieces(y), &begin, &end);
    for (int64_t piece = begin; piece < end; piece++) {
        float in[TN__PIECE], out[TN__PIECE];
        tn__piece at = tn__piece_at(y, piece);
        char *to = tn__row(y, at.row);
        float *target = tn__target(y, to, at.first, out);
        const float *from = tn__load(task->kernels, x, tn__row(x, at.row), at.first, at.n, in);
        if (y->op == TN_OP_SCALE)
            task->kernels->scale(at.n, p->scale.scale, p->scale.bias, from, target);
        else if (kernel)
            kernel(at.n, from, target);
        else
            vector(target, from, at.n, p);
        tn__store(task->kernels, y, to, at.first, at.n, target);
    }
}

/* Element j of row i is kept when j <= n_past + i. */
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
            const float *in = tn__load(task->kernels, x, from, first, n, buffer);
            for (int64_t i = 0; i < n; i++) out[i] = first + i < keep ? in[i] : masked;
            tn__store(task->kernels, y, to, first, n, out);
        }
    }
}

// Activation functions of one value, and of a gate and the value it multiplies.
#ifndef TN_BACKEND_CUDA_KERNELS_UNARY_CUH
#define TN_BACKEND_CUDA_KERNELS_UNARY_CUH

#include "backend/cuda/kernels/common.cuh"

// The activation that a gated op applies to its gate.
__device__ static inline float gate_of(int op, float x) {
    switch (op) {
    case TN_OP_GEGLU: return 0.5f * x * (1 + tanhf(0.79788456080286535588f * x * (1 + 0.044715f * x * x)));
    case TN_OP_GEGLU_QUICK: return x / (1 + expf(-1.702f * x));
    case TN_OP_GEGLU_ERF: return 0.5f * x * (1 + erff(x * 0.70710678118654752440f));
    case TN_OP_REGLU: return x > 0 ? x : x != x ? x : 0.0f;
    default: return x / (1 + expf(-x)); // swiglu
    }
}

__device__ static float unary(int op, float x, tn_op_params p) {
    switch (op) {
    case TN_OP_SCALE: return p.scale.scale * x + p.scale.bias;
    case TN_OP_SQR: return x * x;
    case TN_OP_SQRT: return sqrtf(x);
    case TN_OP_LOG: return logf(x);
    case TN_OP_EXP: return expf(x);
    case TN_OP_SIN: return sinf(x);
    case TN_OP_COS: return cosf(x);
    case TN_OP_CLAMP: return x < p.clamp.min ? p.clamp.min : x > p.clamp.max ? p.clamp.max : x; // keeps NaN
    case TN_OP_NEG: return -x;
    case TN_OP_ABS: return fabsf(x);
    case TN_OP_SGN: return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : x;
    case TN_OP_STEP: return x > 0 ? 1.0f : 0.0f;
    case TN_OP_TANH: return tanhf(x);
    case TN_OP_ELU: return x > 0 ? x : expm1f(x);
    case TN_OP_RELU: return gate_of(TN_OP_REGLU, x);
    case TN_OP_LEAKY_RELU: return x > 0 ? x : x * p.leaky_relu.slope;
    case TN_OP_SIGMOID: return 1 / (1 + expf(-x));
    case TN_OP_GELU: return gate_of(TN_OP_GEGLU, x);
    case TN_OP_GELU_QUICK: return gate_of(TN_OP_GEGLU_QUICK, x);
    case TN_OP_GELU_ERF: return gate_of(TN_OP_GEGLU_ERF, x);
    case TN_OP_SILU: return gate_of(TN_OP_SWIGLU, x);
    case TN_OP_HARDSWISH: return x * fminf(1, fmaxf(0, (x + 3) / 6));
    case TN_OP_HARDSIGMOID: return fminf(1, fmaxf(0, (x + 3) / 6));
    case TN_OP_SOFTPLUS: return x > 20 ? x : log1pf(expf(x));
    default: return x;
    }
}

__device__ static float gated(int op, float gate, float up, const tn_op_params &p) {
    if (op != TN_OP_SWIGLU_OAI) return gate_of(op, gate) * up;
    gate = fminf(gate, p.glu.limit);
    up = fmaxf(fminf(up, p.glu.limit), -p.glu.limit);
    return gate / (1 + expf(-p.glu.alpha * gate)) * (up + 1);
}

#endif

/* Activation functions without a kernel, one element at a time. */
#ifndef TN_CPU_ACTIVATIONS_H
#define TN_CPU_ACTIVATIONS_H

#include <math.h>

static inline float tn__relu(float v) { return v < 0 ? 0 : v; }
static inline float tn__gelu_quick(float v) { return v / (1 + expf(-1.702f * v)); }
static inline float tn__gelu_erf(float v) { return 0.5f * v * (1 + erff(v * 0.70710678118654752440f)); }
static inline float tn__hard_sigmoid(float v) {
    float s = (v + 3) / 6;
    return s < 0 ? 0 : s > 1 ? 1 : s;
}

#endif

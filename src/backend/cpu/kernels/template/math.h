/* Exponential, hyperbolic tangent and the activations built from them: a template over the vector type. */
#ifndef TN_TEMPLATE_MATH_H
#define TN_TEMPLATE_MATH_H

/* e^x = 2^n·e^r with integer n and |r| ≤ ln2/2; the polynomial is the Taylor series economised to six terms, relative
 * error below 2^-24. NaN stays NaN; overflow gives infinity, underflow zero. */
TN__VEC vf vf_exp(vf x) {
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.5f), x));
    vf n = vf_round(vf_mul(x, vf_set1(1.44269504088896341f)));
    vf r = vf_fnma(n, vf_set1(0.693359375f), x); /* ln2 in two parts; the first has few bits, so that n·it is exact */
    r = vf_fnma(n, vf_set1(-2.12194440e-4f), r);
    vf p = vf_fma(vf_set1(1.9875691500e-4f), r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(vf_mul(p, r), r, vf_add(r, vf_set1(1)));
    return vf_scale2(p, n);
}

/* Near zero an odd polynomial, elsewhere 1 - 2/(e^2x + 1). */
TN__VEC vf vf_tanh(vf x) {
    vf a = vf_abs(x), z = vf_mul(x, x);
    vf p = vf_fma(vf_set1(-5.70498872745e-3f), z, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
    vf small = vf_fma(vf_mul(p, z), x, x);
    vf e = vf_exp(vf_add(a, a));
    vf large = vf_sub(vf_set1(1), vf_div(vf_set1(2), vf_add(e, vf_set1(1))));
    return vf_select(vm_less(a, vf_set1(0.625f)), small, vf_copysign(large, x));
}

TN__VEC vf vf_sigmoid(vf x) { return vf_div(vf_set1(1), vf_add(vf_set1(1), vf_exp(vf_sub(vf_zero(), x)))); }
TN__VEC vf vf_silu(vf x) { return vf_div(x, vf_add(vf_set1(1), vf_exp(vf_sub(vf_zero(), x)))); }
TN__VEC vf vf_gelu(vf x) {
    vf inner =
        vf_mul(vf_mul(vf_set1(0.79788456080286535588f), x), vf_fma(vf_mul(vf_set1(0.044715f), x), x, vf_set1(1)));
    return vf_mul(vf_mul(vf_set1(0.5f), x), vf_add(vf_set1(1), vf_tanh(inner)));
}
TN__VEC vf vf_gelu_quick(vf x) { return vf_div(x, vf_add(vf_set1(1), vf_exp(vf_mul(vf_set1(-1.702f), x)))); }
/* log(1 + e^x) = max(x, 0) + log(1 + y) with y = e^-|x|; log(1 + y) = 2·artanh(t), t = y/(2 + y) ≤ 1/3, whose series
 * has a relative error below 2^-28 after eight terms. */
TN__VEC vf vf_softplus(vf x) {
    vf y = vf_exp(vf_sub(vf_zero(), vf_abs(x))), t = vf_div(y, vf_add(y, vf_set1(2))), z = vf_mul(t, t);
    vf p = vf_fma(vf_set1(1.0f / 15), z, vf_set1(1.0f / 13));
    p = vf_fma(p, z, vf_set1(1.0f / 11));
    p = vf_fma(p, z, vf_set1(1.0f / 9));
    p = vf_fma(p, z, vf_set1(1.0f / 7));
    p = vf_fma(p, z, vf_set1(1.0f / 5));
    p = vf_fma(p, z, vf_set1(1.0f / 3));
    p = vf_fma(p, z, vf_set1(1));
    return vf_fma(vf_add(t, t), p, vf_max(x, vf_zero()));
}
/* erf by Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7. */
TN__VEC vf vf_gelu_erf(vf x) {
    vf a = vf_mul(vf_abs(x), vf_set1(0.70710678118654752440f));
    vf t = vf_div(vf_set1(1), vf_fma(vf_set1(0.3275911f), a, vf_set1(1)));
    vf p = vf_fma(vf_set1(1.061405429f), t, vf_set1(-1.453152027f));
    p = vf_fma(p, t, vf_set1(1.421413741f));
    p = vf_fma(p, t, vf_set1(-0.284496736f));
    p = vf_fma(p, t, vf_set1(0.254829592f));
    vf tail = vf_mul(vf_mul(p, t), vf_exp(vf_sub(vf_zero(), vf_mul(a, a)))); /* 1 - erf|.| */
    vf half = vf_mul(vf_set1(0.5f), x);
    return vf_fma(half, vf_copysign(vf_sub(vf_set1(1), tail), x), half);
}

#endif

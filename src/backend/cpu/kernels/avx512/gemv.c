/* Mat-mul of few activation rows with AVX-512, without software prefetch. */
#define TN__FETCH_FAR 0
#define TN__FETCH_NEAR 0
#include "backend/cpu/kernels/avx512/gemv.h"

const tn__gemv tn__avx512_gemv = {
    .q8 = gemv_q8, .q8_repacked = gemv_q8_repacked, .floats = gemv_float, .few_nibbles = 64};

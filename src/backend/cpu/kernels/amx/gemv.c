/* Few activation rows on processors with tiles: the AVX-512 loops. Those processors read a quarter to a half more per
 * second when weights are fetched ahead; others read less then. */
#define TN__FETCH_AHEAD 2048
#include "backend/cpu/kernels/avx512/gemv.h"

const tn__gemv tn__amx_gemv = {.q8 = gemv_q8, .q8_packed = gemv_q8_packed, .floats = gemv_float};

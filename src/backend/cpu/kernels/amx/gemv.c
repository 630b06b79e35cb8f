/* Few activation rows on processors with tiles: the AVX-512 loops. Those processors read a third to a half more per
 * second when weights are fetched ahead, most when two pages ahead into the second level; others read less then. */
#define TN__FETCH_FAR 8192
#define TN__FETCH_NEAR 1024
#include "backend/cpu/kernels/avx512/gemv.h"

const tn__gemv tn__amx_gemv = {.q8 = gemv_q8, .q8_packed = gemv_q8_packed, .floats = gemv_float};

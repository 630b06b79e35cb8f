/* What AVX2 puts into the table. */
#include "backend/cpu/kernels/generic/internal.h"

void tn__kernels_avx2(tn__cpu_kernels *table) { (void)table; }

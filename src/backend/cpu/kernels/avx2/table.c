/* What AVX2 puts into the table. */
#include "backend/cpu/kernels/avx2/internal.h"

void tn__kernels_avx2(tn__cpu_kernels *table) { tn__avx2_rows(table); }

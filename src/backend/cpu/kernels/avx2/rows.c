/* Rows of floats with AVX2: the templates with this level's vectors. */
#include "backend/cpu/kernels/avx2/vec.h"

#include "backend/cpu/kernels/avx2/internal.h"
#include "backend/cpu/kernels/template/rows.h"

void tn__avx2_rows(tn__cpu_kernels *table) { fill_rows(table); }

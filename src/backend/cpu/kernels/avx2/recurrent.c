/* Recurrent layers with AVX2: the templates with this level's vectors. */
#include "backend/cpu/kernels/avx2/vec.h"

#include "backend/cpu/kernels/avx2/internal.h"
#include "backend/cpu/kernels/template/recurrent.h"

void tn__avx2_recurrent(tn__cpu_kernels *table) { fill_recurrent(table); }

/* Recurrent layers with AVX-512: the templates with this level's vectors. */
#include "backend/cpu/kernels/avx512/vec.h"

#include "backend/cpu/kernels/avx512/internal.h"
#include "backend/cpu/kernels/template/recurrent.h"

void tn__avx512_recurrent(tn__cpu_kernels *table) { fill_recurrent(table); }

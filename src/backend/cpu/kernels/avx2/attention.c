/* Attention with AVX2: the template with this level's vectors. */
#include "backend/cpu/kernels/avx2/vec.h"

#include "backend/cpu/kernels/avx2/internal.h"
#include "backend/cpu/kernels/template/attention.h"

void tn__avx2_attention(tn__cpu_kernels *table) { fill_attention(table); }

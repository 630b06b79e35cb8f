/* Attention with AVX-512: the template with this level's vectors. */
#include "backend/cpu/kernels/avx512/vec.h"

#include "backend/cpu/kernels/avx512/internal.h"
#include "backend/cpu/kernels/template/attention.h"

void tn__avx512_attention(tn__cpu_kernels *table) { fill_attention(table); }

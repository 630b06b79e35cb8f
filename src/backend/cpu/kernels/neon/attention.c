/* Attention with NEON: the template with this level's vectors. */
#include "backend/cpu/kernels/neon/vec.h"

#include "backend/cpu/kernels/neon/internal.h"
#include "backend/cpu/kernels/template/attention.h"

void tn__neon_attention(tn__cpu_kernels *table) { fill_attention(table); }

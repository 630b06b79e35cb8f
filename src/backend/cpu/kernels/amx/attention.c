/* Attention with AMX: the template with AVX-512 vectors, and bfloat16 tiles for prompts. */
#include "backend/cpu/kernels/avx512/vec.h"

#include "backend/cpu/kernels/amx/internal.h"

#define ATT_TILED "backend/cpu/kernels/amx/attention_tiles.h"
#include "backend/cpu/kernels/template/attention.h"

void tn__amx_attention(tn__cpu_kernels *table) { fill_attention(table); }

/* Indexers of sparse attention with AVX-512: the template with this level's vectors. */
#include "backend/cpu/kernels/avx512/vec.h"

#include "backend/cpu/kernels/avx512/internal.h"
#include "backend/cpu/kernels/template/index.h"

void tn__avx512_index(tn__cpu_kernels *table) { table->index_scores = index_scores; }

/* Indexers of sparse attention with AVX2: the template with this level's vectors. */
#include "backend/cpu/kernels/avx2/vec.h"

#include "backend/cpu/kernels/avx2/internal.h"
#include "backend/cpu/kernels/template/index.h"

void tn__avx2_index(tn__cpu_kernels *table) { table->index_scores = index_scores; }

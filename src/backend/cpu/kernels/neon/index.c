/* Indexers of sparse attention with NEON: the template with this level's vectors. */
#include "backend/cpu/kernels/neon/vec.h"

#include "backend/cpu/kernels/neon/internal.h"
#include "backend/cpu/kernels/template/index.h"

void tn__neon_index(tn__cpu_kernels *table) { table->index_scores = index_scores; }

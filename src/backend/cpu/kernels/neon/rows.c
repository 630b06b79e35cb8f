/* Rows of floats with NEON: the templates with this level's vectors. */
#include "backend/cpu/kernels/neon/vec.h"

#include "backend/cpu/kernels/neon/internal.h"
#include "backend/cpu/kernels/template/rows.h"

void tn__neon_rows(tn__cpu_kernels *table) { fill_rows(table); }

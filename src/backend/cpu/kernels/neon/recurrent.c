/* Recurrent layers with NEON: the templates with this level's vectors. */
#include "backend/cpu/kernels/neon/vec.h"

#include "backend/cpu/kernels/neon/internal.h"
#include "backend/cpu/kernels/template/recurrent.h"

void tn__neon_recurrent(tn__cpu_kernels *table) { fill_recurrent(table); }

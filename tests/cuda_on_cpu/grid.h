// Running grids.
#ifndef TN_CUDA_ON_CPU_GRID_H
#define TN_CUDA_ON_CPU_GRID_H

#include "cuda_on_cpu.h"

namespace emul {

struct limits {
    size_t shared_fixed, shared_all; // shared memory of a block, in bytes: static variables; all
};
struct grid_job {
    grid g;
    limits most;
    std::function<void()> body;
};
struct run;
// A grid that may start early begins before the previous one has ended: its first blocks run until they wait. At most
// two grids are running at a time, and they alternate between two memory sets.
run *begin_grid(const grid_job &job, size_t memory_set, bool early);
void end_grid(run *r);
bool may_overlap(const grid_job &job, const grid_job &next);

} // namespace emul

#endif

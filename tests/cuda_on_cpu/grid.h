// Running grids.
#ifndef TN_CUDA_ON_CPU_GRID_H
#define TN_CUDA_ON_CPU_GRID_H

#include "cuda_on_cpu.h"

namespace emul {

struct limits {
    size_t shared_fixed, shared_all; // bytes of a block: of variables; of all
};
struct grid_job {
    grid g;
    limits most;
    std::function<void()> body;
};
struct run;
// A grid that may start early is begun before the one in front of it has ended: its first block runs to its wait.
// Two grids at most have begun at a time; they take turns with their slots.
run *begin_grid(const grid_job &job, size_t slot, bool early);
void end_grid(run *r);
bool may_overlap(const grid_job &job, const grid_job &next);

} // namespace emul

#endif

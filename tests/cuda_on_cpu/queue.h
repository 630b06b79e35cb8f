// What the pieces of the emulated runtime share: streams of work that runs as late as it may.
#ifndef TN_CUDA_ON_CPU_QUEUE_H
#define TN_CUDA_ON_CPU_QUEUE_H

#include "grid.h"

#include <mutex>

namespace emul {

extern std::recursive_mutex lock; // of everything here; one thread of the host is inside at a time

cudaError_t say(cudaError_t error);                                     // and keeps it for cudaGetLastError
cudaError_t queue_work(cudaStream_t stream, std::function<void()> job); // runs later, or is captured
cudaError_t queue_grid(cudaStream_t stream, const grid_job &job);
void finish_all();   // all streams
bool is_capturing(); // this thread

} // namespace emul

#endif

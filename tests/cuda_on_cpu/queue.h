// Streams of the emulated runtime: queued work runs as late as possible.
#ifndef TN_CUDA_ON_CPU_QUEUE_H
#define TN_CUDA_ON_CPU_QUEUE_H

#include "grid.h"

#include <mutex>

namespace emul {

extern std::recursive_mutex lock; // protects the whole emulated runtime

cudaError_t fail_with(cudaError_t error); // returns it, and keeps it for cudaGetLastError
cudaError_t queue_work(cudaStream_t stream, std::function<void()> job); // runs later, or is captured
cudaError_t queue_grid(cudaStream_t stream, const grid_job &job);
void finish_all();   // runs all queued work
bool is_capturing(); // whether this thread captures a stream

} // namespace emul

#endif

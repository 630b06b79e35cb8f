// What runs a grid (fibers.cpp) and what copies to shared memory (copies.cpp) know of threads and blocks.
#ifndef TN_CUDA_ON_CPU_BLOCK_H
#define TN_CUDA_ON_CPU_BLOCK_H

#include "cuda_on_cpu.h"

#include <vector>

namespace emul {

enum { WARP = 32, MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / WARP };

struct small_copy { // of one thread
    char *to;
    const char *from;
    int size, zeros, group;
};
struct large_copy { // of a block
    uint32_t to, size, barrier;
    const char *from;
};
struct block;
struct thread {
    void *stack; // where it goes on
    place at;
    block *of;
    int warp, lane;
    std::vector<small_copy> copies;
    int group; // of copies, not yet committed
};
struct warp {
    unsigned alive, ready, waiting; // lanes; waiting: at a meeting
    unsigned masks[WARP];           // of the meetings that lanes wait for
    const char *what[WARP];
    void *brought[WARP];
    void (*act[WARP])(void *const (&)[WARP]);
};
struct shared_place {
    const void *id;
    size_t offset, size;
};
struct block {
    thread *threads;
    int n_warps;
    unsigned ready; // warps with ready lanes
    warp warps[MOST_WARPS];
    int alive, arrived, counted, last_count; // threads; at the barrier; of those with a value
    unsigned at_barrier[MOST_WARPS];         // lanes
    char *memory;                            // shared
    size_t fixed;                            // bytes of variables in it
    std::vector<shared_place> variables;
    std::vector<large_copy> copies;
};

extern thread *self;
struct limits {
    size_t shared_fixed, shared_all; // bytes of a block: of variables; of all
};
enum : size_t { FIXED_ROOM = 64 << 10, DYNAMIC_ROOM = 256 << 10, GUARD = 4096 };

// Runs all blocks of a grid, those of a cooperative one at the same time. One grid at a time.
void run_grid(const grid &g, const limits &most, const std::function<void()> &body);

} // namespace emul

#endif

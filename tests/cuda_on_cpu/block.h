// What runs a grid (fibers.cpp) and what copies to shared memory (copies.cpp) know of threads and blocks.
#ifndef TN_CUDA_ON_CPU_BLOCK_H
#define TN_CUDA_ON_CPU_BLOCK_H

#include "grid.h"

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
    int group;      // of copies, not yet committed
    bool triggered; // the grid behind this one may start
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
    unsigned stopped[MOST_WARPS];            // lanes that wait for the grid in front
    char *memory;                            // shared
    size_t fixed;                            // bytes of variables in it
    std::vector<shared_place> variables;
    std::vector<large_copy> copies;
};

enum : size_t { FIXED_ROOM = 64 << 10, DYNAMIC_ROOM = 256 << 10, GUARD = 4096, STACK = 64 << 10 };

struct run { // of a grid
    const grid_job *job;
    const char *name; // of the kernel
    size_t slot;      // whose memory it uses
    size_t n, at_once, first, stride, begun;
    std::vector<block *> blocks; // that run
    size_t turn;                 // whose block runs
    int alive;                   // blocks
    bool stops;                  // at the wait for the grid in front
    void *stack;                 // of who began it
};

// ---- fibers.cpp

extern thread *self;
extern run *now;
extern volatile long switches;
extern unsigned random_state; // 0: in order
unsigned random_number();
int next_bit(unsigned bits, int last);
void prepare_stack(thread &t, char *stack);
void run_threads(run *r); // until they have ended, or stopped

// ---- messages.cpp

[[noreturn]] void deadlock();
void catch_signals(); // while a grid runs: a test program has handlers of its own
void leave_signals();
void watch(); // from now on

// ---- grid.cpp

// That kernel lets the next grid start before it waits for the one in front of it.
void remember_trigger();

} // namespace emul

#endif

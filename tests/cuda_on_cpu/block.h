// Threads and blocks of a running grid. Shared by fibers.cpp, grid.cpp, copies.cpp and messages.cpp.
#ifndef TN_CUDA_ON_CPU_BLOCK_H
#define TN_CUDA_ON_CPU_BLOCK_H

#include "grid.h"

#include <vector>

namespace emul {

enum { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP };

// cp.async, of one thread.
struct small_copy {
    char *to;
    const char *from;
    int size, zeros, group;
};
// cp.async.bulk, of a block.
struct large_copy {
    uint32_t to, size, barrier;
    const char *from;
};
struct block;
struct thread {
    void *stack; // stack pointer while it does not run
    thread_indices at;
    block *of;
    int warp, lane;
    std::vector<small_copy> copies;
    int group;      // of copies that are not committed yet
    bool triggered; // has let the next grid start
};
struct warp {
    unsigned alive, ready, waiting; // lanes; waiting: in meet()
    unsigned masks[WARP];           // by lane: what it passed to meet()
    const char *what[WARP];
    void *brought[WARP];
    void (*act[WARP])(void *const (&)[WARP]);
};
struct shared_entry {
    const void *id;
    size_t offset, size;
};
struct block {
    thread *threads;
    int n_warps;
    unsigned ready; // warps with ready lanes
    warp warps[MAX_WARPS];
    int alive, arrived;             // threads; threads at the barrier
    int counted, last_count;        // threads at the barrier with a value other than 0; at the last barrier
    unsigned at_barrier[MAX_WARPS]; // lanes
    unsigned stopped[MAX_WARPS];    // lanes that wait for the previous grid
    char *memory;                   // shared memory
    size_t fixed;                   // bytes of static variables in it
    std::vector<shared_entry> variables;
    std::vector<large_copy> copies;
};

// Together 256 KiB, the range of addresses in descriptors of wgmma. No block has more than 227.
enum : size_t { STATIC_BYTES = 28 << 10, DYNAMIC_BYTES = 228 << 10, GUARD = 4096, STACK = 64 << 10 };

// A grid that has begun.
struct run {
    const grid_job *job;
    const char *name;  // of the kernel
    size_t memory_set; // 0 or 1: which blocks and stacks it uses
    size_t n, at_once, first, stride, begun;
    std::vector<block *> blocks; // that have begun
    size_t turn;                 // index of the running block
    int alive;                   // blocks
    bool stops;                  // threads stop where they wait for the previous grid
    void *stack;                 // stack pointer of the host thread that runs the grid
};

// ---- fibers.cpp ----

extern thread *self;
extern run *now;
extern volatile long switches;
extern unsigned random_state; // 0: threads run in a fixed order
unsigned random_number();
int next_bit(unsigned bits, int last);
void prepare_stack(thread &t, char *stack);
void run_threads(run *r); // until all have ended or stopped

// ---- messages.cpp ----

[[noreturn]] void deadlock();
void catch_signals(); // while a grid runs; the test program has handlers of its own
void restore_signals();
void start_watchdog();

// ---- grid.cpp ----

// The running kernel lets the next grid start before it waits for the previous one.
void remember_trigger();

} // namespace emul

#endif

// What translated CUDA sources see in place of nvcc: a thread's place in its grid, shared memory, launches, and the
// built-in functions that the backend uses. Included before everything else.
#ifndef TN_CUDA_ON_CPU_H
#define TN_CUDA_ON_CPU_H

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <functional>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <tuple>

namespace emul {

// ---- Threads (fibers.cpp, grid.cpp)
// -----------------------------------------------------------------------------------------------------------

struct thread;
struct place { // of the thread that runs
    uint3 thread, block;
    dim3 threads, blocks;
};
extern const place *here;

// The end of the test: says where, in which kernel and thread.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

int capability(); // 75, 80, 90: what this module was compiled for
static inline void needs(int wanted) {
    if (capability() < wanted) fail("an instruction of compute capability %d.%d", wanted / 10, wanted % 10);
}

// First of all in a kernel.
void begin(const char *name, int most_threads);

// Shared memory of the running block. Addresses are offsets from its begin, as those of PTX.
void *shared_variable(const void *id, size_t size, size_t alignment);
char *dynamic_shared(size_t alignment);
uint32_t shared_offset(const void *at);
char *shared_at(uint32_t offset, size_t size, size_t alignment);

// `id` is of a type that no other declaration has, nor the same declaration for other template arguments.
template <typename T, size_t ALIGNMENT, typename Id> T &shared(Id) {
    static char id;
    return *(T *)shared_variable(&id, sizeof(T), alignof(T) > ALIGNMENT ? alignof(T) : ALIGNMENT);
}

// Waiting. A warp's threads of `mask` meet; the last calls `act` with what each brought (NULL for those that ended).
// Names what they do, so that threads that meet for different things are found.
void meet(unsigned mask, const char *what, void *brought, void (*act)(void *const (&all)[32]));
void block_barrier();
int block_count(int value); // how many threads brought something else than 0
void let_others_run();      // in a loop that waits for memory
void something_changed();   // others may go on: no deadlock
void wait_for_grid();       // in front of this one
void trigger_grid();        // behind it

// Asynchronous copies to shared memory (copies.cpp). They arrive as late as they may, and spoil the target at once.
void copy_later(void *to, const void *from, int size, int zeros);
void commit_copies();
void wait_copies(int groups_left);
void bulk_copy(uint32_t to, const void *from, uint32_t size, uint32_t barrier);
void barrier_init(uint32_t at, uint32_t arrivals);
void barrier_arrive(uint32_t at, uint32_t arrivals, uint32_t expected_bytes);
bool barrier_passed(uint32_t at, uint32_t parity);

// ---- Launches (device.cpp)
// -----------------------------------------------------------------------------------------------------------

struct grid {
    const void *function; // or NULL
    dim3 blocks, threads;
    size_t shared;
    cudaStream_t stream;
    bool cooperative, early; // early: may start before the grid in front of it has ended
};
cudaError_t launch(const grid &g, std::function<void()> body);

template <typename K> struct launcher;
template <typename... P> struct launcher<void (*)(P...)> {
    void (*kernel)(P...);
    grid g;
    template <typename... A> cudaError_t operator()(A &&...args) const {
        std::tuple<std::decay_t<P>...> all((P)args...);
        auto call = kernel;
        return launch(g, [call, all]() { std::apply(call, all); });
    }
};
// A template whose arguments the call says.
template <typename F> struct deduced {
    F call;
    grid g;
    template <typename... A> cudaError_t operator()(A... args) const {
        auto f = call;
        return launch(g, [f, args...]() { f(args...); });
    }
};
template <typename... P>
launcher<void (*)(P...)> kernel(void (*k)(P...), dim3 blocks, dim3 threads, size_t shared = 0,
                                cudaStream_t stream = NULL) {
    return {k, {(const void *)k, blocks, threads, shared, stream, false, false}};
}
template <typename F>
deduced<F> kernel(F f, dim3 blocks, dim3 threads, size_t shared = 0, cudaStream_t stream = NULL) {
    return {f, {NULL, blocks, threads, shared, stream, false, false}};
}
template <typename... P, typename... A>
cudaError_t launch_ex(const cudaLaunchConfig_t *config, void (*k)(P...), A &&...args) {
    grid g = {
        (const void *)k, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream, false, false};
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeCooperative)
            g.cooperative = config->attrs[i].val.cooperative;
        else if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            g.early = config->attrs[i].val.programmaticStreamSerializationAllowed;
    return launcher<void (*)(P...)>{k, g}(args...);
}

} // namespace emul

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
static const int warpSize __attribute__((unused)) = 32;

template <typename T> static inline cudaError_t cudaFuncSetAttribute(T *f, cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)f, attribute, value);
}

#include "builtins.h"
#include "ptx.h"

#endif

// What translated CUDA sources use instead of nvcc's language: the thread's indices, shared memory, launches, and the
// built-in functions that the backend calls. Included before everything else.
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

// ---- Threads (fibers.cpp, grid.cpp) ----

struct thread;
struct thread_indices {
    uint3 thread, block;
    dim3 threads, blocks;
};
extern const thread_indices *here; // of the running thread

// Ends the process with a message that names the kernel and the thread.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

int capability(); // that this module was compiled for: 75, 80, 90
static inline void needs(int required) {
    if (capability() < required) fail("an instruction of compute capability %d.%d", required / 10, required % 10);
}

// The first call in every kernel.
void begin(const char *name, int max_threads);

// Shared memory of the running block. As in PTX, addresses are offsets from its beginning.
void *shared_variable(const void *id, size_t size, size_t alignment);
char *dynamic_shared(size_t alignment);
uint32_t shared_offset(const void *at);
char *shared_at(uint32_t offset, size_t size, size_t alignment);

// The type of `id` is unique to the declaration and to its template arguments.
template <typename T, size_t ALIGNMENT, typename Id> T &shared(Id) {
    static char id;
    return *(T *)shared_variable(&id, sizeof(T), alignof(T) > ALIGNMENT ? alignof(T) : ALIGNMENT);
}

// Waits until all live lanes of `mask` have called this. The last one calls `act` with what each lane brought (NULL
// for lanes that have ended). `what` names the operation: lanes that meet for different operations are an error.
void meet(unsigned mask, const char *what, void *brought, void (*act)(void *const (&all)[32]));
void block_barrier();
int block_count(int value); // a barrier; how many threads passed a value other than 0
void let_others_run();      // called in loops that poll memory
void something_changed();   // called when memory changes that others may poll: there is no deadlock
void wait_for_grid();       // waits for the previous grid
void trigger_grid();        // lets the next grid start

// Asynchronous copies to shared memory (copies.cpp). They overwrite the target with NaN at once and deliver as late
// as they may.
void copy_later(void *to, const void *from, int size, int zeros);
void commit_copies();
void wait_copies(int groups_left);
void bulk_copy(uint32_t to, const void *from, uint32_t size, uint32_t barrier);
void barrier_init(uint32_t at, uint32_t arrivals);
void barrier_arrive(uint32_t at, uint32_t arrivals, uint32_t expected_bytes);
bool barrier_passed(uint32_t at, uint32_t parity);

// ---- Launches (device.cpp) ----

struct grid {
    const void *function; // or NULL
    dim3 blocks, threads;
    size_t shared;
    cudaStream_t stream;
    bool cooperative, early; // early: may start before the previous grid has ended
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
// For a kernel template whose arguments are deduced from the call.
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

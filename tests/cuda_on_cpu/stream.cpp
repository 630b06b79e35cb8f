// Streams, events and graphs. Queued work runs when the host or another stream waits for it, not before: code that
// forgets to wait finds no results.
#include "queue.h"

#include <deque>
#include <memory>
#include <vector>

using namespace emul;

namespace emul {

std::recursive_mutex lock;

// Either work or a grid.
struct job {
    std::function<void()> work;
    std::shared_ptr<grid_job> grid;
};
typedef std::vector<job> jobs;
struct stream {
    std::deque<job> waiting;
    uint64_t queued, done;
    bool capturing;
    jobs captured;
    int device; // -1: the current one
};
struct event {
    std::shared_ptr<stream> of; // NULL: never recorded
    uint64_t after;             // jobs of that stream
    int device;
};
// The handles of the API.
struct stream_handle {
    std::shared_ptr<stream> s;
};

static std::vector<std::weak_ptr<stream>> all_streams;
static thread_local int captures; // that this thread has begun
static thread_local cudaError_t last_error;

cudaError_t fail_with(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}
bool is_capturing() { return captures > 0; }

static int current_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
}
static std::shared_ptr<stream> new_stream(int device) {
    auto s = std::make_shared<stream>();
    s->device = device;
    all_streams.push_back(s);
    return s;
}
static std::shared_ptr<stream> of(cudaStream_t handle) {
    static std::shared_ptr<stream> first = new_stream(-1);
    return handle ? ((stream_handle *)handle)->s : first;
}
// Runs a job, and starts the next one if that is a grid that may start early; returns it then. `begun`: this job's
// grid, if it has started early.
static run *run_job(const job &one, const job *next, run *begun) {
    static size_t memory_set;
    run *after = NULL;
    if (!one.grid) {
        one.work();
        return NULL;
    }
    if (!begun) begun = begin_grid(*one.grid, memory_set ^= 1, false);
    if (next && next->grid && may_overlap(*one.grid, *next->grid))
        after = begin_grid(*next->grid, memory_set ^= 1, true);
    end_grid(begun);
    return after;
}
static void run_until(stream &s, uint64_t count) {
    run *begun = NULL;
    while (s.done < count) {
        job one = std::move(s.waiting.front());
        s.waiting.pop_front();
        s.done++; // a job may wait for other streams, but not for its own
        begun = run_job(one, s.done < count ? &s.waiting.front() : NULL, begun);
    }
}
void finish_all() {
    for (size_t i = 0; i < all_streams.size(); i++) {
        auto s = all_streams[i].lock();
        if (s)
            run_until(*s, s->queued);
        else
            all_streams.erase(all_streams.begin() + (long)i--);
    }
}
static cudaError_t queue_job(cudaStream_t handle, job one) {
    auto s = of(handle);
    if (s->capturing) {
        s->captured.push_back(std::move(one));
    } else {
        s->waiting.push_back(std::move(one));
        s->queued++;
    }
    return cudaSuccess;
}
cudaError_t queue_work(cudaStream_t handle, std::function<void()> work) {
    return queue_job(handle, {std::move(work), NULL});
}
// Copies may be queued on any stream, kernels only on streams of the current device.
cudaError_t queue_grid(cudaStream_t handle, const grid_job &grid) {
    int device = of(handle)->device;
    if (device >= 0 && device != current_device()) return fail_with(cudaErrorInvalidResourceHandle);
    return queue_job(handle, {NULL, std::make_shared<grid_job>(grid)});
}

} // namespace emul

struct CUgraph_st {
    jobs all;
};
struct CUgraphExec_st {
    std::shared_ptr<jobs> all;
};

extern "C" {

cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
    default: return "an error of the emulated runtime";
    }
}

// ---- Streams ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    *out = (cudaStream_t) new stream_handle{new_stream(current_device())};
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithFlags(out, 0); }
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto s = of(handle);
    if (s->capturing || is_capturing()) return fail_with(cudaErrorStreamCaptureUnsupported);
    run_until(*s, s->queued);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto s = of(handle);
    run_until(*s, s->queued);
    delete (stream_handle *)handle;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (is_capturing()) return fail_with(cudaErrorStreamCaptureUnsupported);
    finish_all();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t handle_of_event, unsigned) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    event e = *(event *)handle_of_event; // as recorded last
    if (!e.of || e.of == of(handle)) return cudaSuccess;
    return queue_work(handle, [e]() { run_until(*e.of, e.after); });
}

// ---- Events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
    *out = (cudaEvent_t) new event{NULL, 0, current_device()};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete (event *)e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto s = of(on);
    if (s->capturing) return fail_with(cudaErrorStreamCaptureUnsupported); // the backend does not do this
    event *e = (event *)handle;
    if (s->device >= 0 && s->device != e->device) return fail_with(cudaErrorInvalidResourceHandle);
    e->of = s;
    e->after = s->queued;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    event *e = (event *)handle;
    if (e->of) run_until(*e->of, e->after);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    event *e = (event *)handle;
    if (!e->of || e->of->done >= e->after) return cudaSuccess;
    run_until(*e->of, e->of->done + 1); // makes progress between two queries
    return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) {
    *ms = 0.001f;
    return cudaSuccess;
}

// ---- Graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto s = of(handle);
    if (s->capturing) return fail_with(cudaErrorInvalidValue);
    s->capturing = true;
    s->captured.clear();
    captures++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto s = of(handle);
    if (!s->capturing) return fail_with(cudaErrorInvalidValue);
    s->capturing = false;
    captures--;
    *out = new CUgraph_st{std::move(s->captured)};
    s->captured.clear();
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *out) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    *out = of(handle)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    *out = new CUgraphExec_st{std::make_shared<jobs>(graph->all)};
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t on) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    auto all = graph->all;
    return queue_work(on, [all]() {
        run *begun = NULL;
        for (size_t i = 0; i < all->size(); i++)
            begun = run_job((*all)[i], i + 1 < all->size() ? &(*all)[i + 1] : NULL, begun);
    });
}

} // extern "C"

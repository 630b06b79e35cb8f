// Streams of work: asynchronous transfers, events, and programs captured into CUDA graphs.
#include "backend/cuda/cuda.cuh"
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/profile.cuh"

enum { MANY = 4 << 20 }; // bytes that are worth several threads

static cuda_stream *stream_of(tn_stream *stream) { return (cuda_stream *)stream->impl; }

static void stream_free(tn_stream *stream) {
    cuda_stream *s = stream_of(stream);
    cudaSetDevice(s->device->ordinal);
    profile_free(s->profile);
    tn_free(s->mail);
    if (s->tickets) cudaFree(s->tickets);
    if (s->blas) cublasLtDestroy(s->blas);
    if (s->copied) cudaEventDestroy(s->copied);
    if (s->stream) cudaStreamDestroy(s->stream);
    tn_free(s);
}

// Uploads since this stream last looked come before what it does next.
static tn_status catch_up(cuda_stream *s) {
    CUDA_TRY(cudaSetDevice(s->device->ordinal));
    unsigned writes = s->device->writes.load();
    if (s->seen_writes != writes) {
        TN_TRY(upload_wait(s->device, s->stream, &s->seen_copies));
        s->seen_writes = writes;
    }
    return bring_notes(s->mail, s->stream);
}

static tn_status synchronize(tn_stream *stream) {
    cuda_stream *s = stream_of(stream);
    CUDA_TRY(cudaSetDevice(s->device->ordinal));
    TN_TRY(bring_notes(s->mail, s->stream));
    CUDA_TRY(cudaStreamSynchronize(s->stream));
    return TN_OK;
}
// What lies otherwise than the host knows it is set and read as a whole, by the device's own order.
static bool is_soa(const tn_tensor *t) { return kind_of(t) & SOA; }
static tn_status set_async(tn_stream *stream, tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    cuda_stream *s = stream_of(stream);
    CUDA_TRY(cudaSetDevice(s->device->ordinal));
    if (is_soa(tensor)) {
        TN_TRY(synchronize(stream));
        return tn_tensor_set_at(tensor, data, offset, size);
    }
    if (size <= NOTE) return queue_note(&s->mail, s->stream, (char *)tensor->data + offset, data, size);
    TN_TRY(catch_up(s));
    CUDA_TRY(cudaMemcpyAsync((char *)tensor->data + offset, data, size, cudaMemcpyHostToDevice, s->stream));
    return TN_OK;
}
static bool is_pinned(const void *p) {
    cudaPointerAttributes where;
    return cudaPointerGetAttributes(&where, p) == cudaSuccess && where.type == cudaMemoryTypeHost &&
           where.devicePointer == p;
}
// A few bytes to pinned memory: a launch is sooner there than the copy engine.
__global__ static void send_kernel(char *to, const char *from, int size) {
    grid_wait();
    if ((int)threadIdx.x < size) to[threadIdx.x] = from[threadIdx.x];
}
static tn_status get_async(tn_stream *stream, const tn_tensor *tensor, void *data, size_t offset, size_t size) {
    cuda_stream *s = stream_of(stream);
    if (is_soa(tensor)) {
        TN_TRY(synchronize(stream));
        return tn_tensor_get_at(tensor, data, offset, size);
    }
    TN_TRY(catch_up(s));
    if (size <= NOTE && is_pinned(data))
        return launch_early({s->device, s->stream}, "sending results", send_kernel, dim3(1), NOTE, 0, (char *)data,
                            (const char *)tensor->data + offset, (int)size);
    CUDA_TRY(cudaMemcpyAsync(data, (const char *)tensor->data + offset, size, cudaMemcpyDeviceToHost, s->stream));
    return TN_OK;
}
static bool on_cuda(const tn_tensor *t, cuda_device **device) {
    if (!t->buffer || t->buffer->type->is_host) return false;
    *device = (cuda_device *)t->buffer->type->device->impl;
    return strncmp(t->buffer->type->device->name, "cuda", 4) == 0;
}

// Host to device, device to host, and between devices; the streams wait for each other, the host for none but its own
// data: what it must read next is there when this returns.
static tn_status copy_async(tn_stream *from, tn_stream *to, const tn_tensor *source, tn_tensor *target) {
    cuda_device *a = NULL, *b = NULL;
    bool from_cuda = on_cuda(source, &a), to_cuda = on_cuda(target, &b);
    bool from_host = !source->buffer || source->buffer->type->is_host,
         to_host = !target->buffer || target->buffer->type->is_host;
    size_t size = tn_nbytes(source);
    if ((from_cuda && is_soa(source)) || (to_cuda && is_soa(target))) return TN_E_UNSUPPORTED;
    if (from_cuda) TN_TRY(catch_up(stream_of(from)));
    if (to_cuda) TN_TRY(catch_up(stream_of(to)));
    if (from_host && to_cuda) {
        // Weights that come over for a prompt: several threads bring them sooner than the driver, which uses one.
        if (size >= MANY && !is_pinned(source->data)) return TN_E_UNSUPPORTED;
        CUDA_TRY(cudaSetDevice(b->ordinal));
        CUDA_TRY(cudaMemcpyAsync(target->data, source->data, size, cudaMemcpyHostToDevice, stream_of(to)->stream));
        return TN_OK;
    }
    if (from_cuda && to_host) {
        CUDA_TRY(cudaSetDevice(a->ordinal));
        CUDA_TRY(cudaMemcpyAsync(target->data, source->data, size, cudaMemcpyDeviceToHost, stream_of(from)->stream));
        CUDA_TRY(cudaStreamSynchronize(stream_of(from)->stream));
        return TN_OK;
    }
    if (from_cuda && to_cuda) {
        cuda_stream *f = stream_of(from), *t = stream_of(to);
        CUDA_TRY(cudaSetDevice(a->ordinal));
        // The target's earlier readers, then the copy in the source's order, then the target's later work.
        if (f != t) {
            CUDA_TRY(cudaSetDevice(b->ordinal));
            CUDA_TRY(cudaEventRecord(t->copied, t->stream));
            CUDA_TRY(cudaSetDevice(a->ordinal));
            CUDA_TRY(cudaStreamWaitEvent(f->stream, t->copied, 0));
        }
        CUDA_TRY(cudaMemcpyPeerAsync(target->data, b->ordinal, source->data, a->ordinal, size, f->stream));
        if (f != t) {
            CUDA_TRY(cudaEventRecord(f->copied, f->stream));
            CUDA_TRY(cudaSetDevice(b->ordinal));
            CUDA_TRY(cudaStreamWaitEvent(t->stream, f->copied, 0));
        }
        return TN_OK;
    }
    return TN_E_UNSUPPORTED;
}

// ---- Programs ----

struct cuda_program {
    tn_program base;
    tn_tensor **nodes;
    fusion *nodes_together;
    cudaGraphExec_t graph; // captured at the second run with the same addresses; NULL before
    void *scratch;         // of the last run
    int runs;              // since the addresses last changed
};

static void forget_graph(cuda_program *p) {
    if (p->graph) cudaGraphExecDestroy(p->graph);
    p->graph = NULL;
    p->runs = 0;
}

static void program_free(tn_program *program) {
    cuda_program *p = (cuda_program *)program;
    cuda_stream *s = stream_of(program->stream);
    cudaSetDevice(s->device->ordinal);
    cudaStreamSynchronize(s->stream);
    forget_graph(p);
    fusion_free(p->nodes_together);
    tn_free(p->nodes);
    tn_free(p);
}
static void program_moved(tn_program *program) {
    cuda_program *p = (cuda_program *)program;
    cuda_stream *s = stream_of(program->stream);
    cudaSetDevice(s->device->ordinal);
    cudaStreamSynchronize(s->stream); // a running graph must not be destroyed
    forget_graph(p);
}

static tn_status program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes, tn_program **program) {
    cuda_program *p = (cuda_program *)tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->nodes = (tn_tensor **)tn_malloc(n_nodes * sizeof *p->nodes);
    if (!p->nodes) {
        tn_free(p);
        return TN_E_NOMEM;
    }
    memcpy(p->nodes, nodes, n_nodes * sizeof *p->nodes);
    tn_status status = fusion_new(p->nodes, n_nodes, stream_of(stream)->device, &p->nodes_together);
    if (status != TN_OK) {
        tn_free(p->nodes);
        tn_free(p);
        return status;
    }
    p->base.stream = stream;
    p->base.scratch = fusion_scratch(p->nodes_together, stream_of(stream)->device);
    *program = &p->base;
    return TN_OK;
}

static tn_status launch_nodes(cuda_program *p, cuda_stream *s, char *scratch, bool strict) {
    narrow narrowed = {};
    return fusion_launch(p->nodes_together,
                         launch{s->device, s->stream, s->blas, scratch, s->tickets, &narrowed, strict}, s->profile);
}

// The first run launches one by one, which also lets kernels and libraries load; the second is captured; all later
// ones replay. A graph begins when all before it has ended, inputs as well, which kernels in it rely on. Positions
// and lengths are read from device memory, so a token loop replays one graph.
static tn_status program_run(tn_program *program, tn_buffer *scratch) {
    cuda_program *p = (cuda_program *)program;
    cuda_stream *s = stream_of(program->stream);
    char *base = scratch ? (char *)scratch->base : NULL;
    if (p->base.scratch && (!scratch || scratch->size < p->base.scratch))
        return tn_fail(TN_E_STATE, "the program needs %zu bytes of scratch", p->base.scratch);
    TN_TRY(catch_up(s));
    if (p->runs && p->scratch != base) program_moved(program);
    if (!p->graph && p->runs >= 1 && !profile_is_single(s->profile)) {
        CUDA_TRY(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
        tn_status status = launch_nodes(p, s, base, false);
        cudaGraph_t graph = NULL;
        cudaError_t error = cudaStreamEndCapture(s->stream, &graph);
        if (status == TN_OK) status = cuda_check(error, "capturing the graph");
        if (status == TN_OK)
            status = cuda_check(cudaGraphInstantiate(&p->graph, graph, 0), "instantiating the graph");
        if (graph) cudaGraphDestroy(graph);
        if (status != TN_OK) {
            p->graph = NULL;
            return status;
        }
    }
    p->scratch = base;
    p->runs++;
    if (p->graph) {
        if (s->profile) profile_begin(s->profile, s->stream);
        CUDA_TRY(cudaGraphLaunch(p->graph, s->stream));
        if (s->profile) profile_end(s->profile, s->stream, p->nodes[0]);
        return TN_OK;
    }
    return launch_nodes(p, s, base, true);
}

static const tn_stream_ops cuda_stream_ops = {
    stream_free, set_async, get_async, copy_async, synchronize, program_new, program_free, program_moved, program_run,
};

tn_status cuda_stream_new(tn_device *device, const tn_stream_params *, tn_stream **stream) {
    cuda_stream *s = (cuda_stream *)tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->device = (cuda_device *)device->impl;
    s->base.ops = &cuda_stream_ops;
    s->base.device = device;
    s->base.impl = s;
    tn_status status = cuda_check(cudaSetDevice(s->device->ordinal), "cudaSetDevice");
    if (status == TN_OK)
        status = cuda_check(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "cudaStreamCreate");
    if (status == TN_OK)
        status = cuda_check(cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming), "cudaEventCreate");
    if (status == TN_OK && cublasLtCreate(&s->blas) != CUBLAS_STATUS_SUCCESS)
        status = tn_fail(TN_E_DEVICE, "%s: cuBLASLt cannot be started", device->name);
    if (status == TN_OK)
        status = cuda_check(cudaMalloc(&s->tickets, (N_TICKETS + N_PERSISTENT_COUNTERS) * sizeof *s->tickets),
                            "allocating tickets");
    if (status == TN_OK) status = clear_now(s->tickets, (N_TICKETS + N_PERSISTENT_COUNTERS) * sizeof *s->tickets);
    s->profile = profile_new();
    if (status != TN_OK) {
        stream_free(&s->base);
        return status;
    }
    *stream = &s->base;
    return TN_OK;
}

// ---- Events ----

tn_status cuda_event_synchronize(tn_event *event);

struct cuda_event {
    tn_event base;
    cudaEvent_t event;
};

tn_status cuda_event_new(tn_device *device, tn_event **event) {
    cuda_event *e = (cuda_event *)tn_calloc(1, sizeof *e);
    if (!e) return TN_E_NOMEM;
    e->base.device = device;
    cudaSetDevice(((cuda_device *)device->impl)->ordinal);
    tn_status status = cuda_check(cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming), "cudaEventCreate");
    if (status != TN_OK) {
        tn_free(e);
        return status;
    }
    *event = &e->base;
    return TN_OK;
}
void cuda_event_free(tn_event *event) {
    cudaEventDestroy(((cuda_event *)event)->event);
    tn_free(event);
}
tn_status cuda_event_record(tn_event *event, tn_stream *stream) {
    CUDA_TRY(cudaSetDevice(stream_of(stream)->device->ordinal));
    TN_TRY(bring_notes(stream_of(stream)->mail, stream_of(stream)->stream));
    CUDA_TRY(cudaEventRecord(((cuda_event *)event)->event, stream_of(stream)->stream));
    return TN_OK;
}
tn_status cuda_event_wait(tn_event *event, tn_stream *stream) {
    if (stream->ops != &cuda_stream_ops)
        return cuda_event_synchronize(event); // another kind of stream: the host waits
    CUDA_TRY(cudaSetDevice(stream_of(stream)->device->ordinal));
    CUDA_TRY(cudaStreamWaitEvent(stream_of(stream)->stream, ((cuda_event *)event)->event, 0));
    return TN_OK;
}
tn_status cuda_event_synchronize(tn_event *event) {
    CUDA_TRY(cudaEventSynchronize(((cuda_event *)event)->event));
    return TN_OK;
}

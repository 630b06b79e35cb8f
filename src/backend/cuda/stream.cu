// Streams of work: asynchronous transfers and events.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/profile.cuh"
#include "backend/cuda/scratch.cuh"

enum { LARGE_COPY = 4 << 20 }; // bytes from which several threads upload faster than one

static cuda_stream *cuda_stream_of(tn_stream *stream) { return (cuda_stream *)stream->impl; }

static void cuda_stream_free(tn_stream *stream) {
    cuda_stream *s = cuda_stream_of(stream);
    cudaSetDevice(s->device->ordinal);
    profile_free(s->profile);
    tn_free(s->small);
    for (cudaEvent_t mark : s->marks)
        if (mark) cudaEventDestroy(mark);
    if (s->blas) cublasLtDestroy(s->blas);
    if (s->copied) cudaEventDestroy(s->copied);
    if (s->stream) cudaStreamDestroy(s->stream);
    upload_count_stream(s->device, -1);
    tn_free(s);
}

tn_status cuda_stream_catch_up(cuda_stream *s) {
    CUDA_TRY(cudaSetDevice(s->device->ordinal));
    unsigned writes = s->device->writes.load();
    if (s->seen_writes != writes) {
        TN_TRY(upload_wait(s->device, s->stream, &s->seen_copies));
        s->seen_writes = writes;
    }
    return flush_small_uploads(s->small, s->stream);
}

static tn_status cuda_synchronize(tn_stream *stream) {
    cuda_stream *s = cuda_stream_of(stream);
    CUDA_TRY(cudaSetDevice(s->device->ordinal));
    TN_TRY(flush_small_uploads(s->small, s->stream));
    return segments_synchronize(s);
}
// For transfers: waits for earlier work without asking the abort callback.
static tn_status finish_earlier_work(cuda_stream *s) {
    CUDA_TRY(cudaSetDevice(s->device->ordinal));
    TN_TRY(flush_small_uploads(s->small, s->stream));
    CUDA_TRY(cudaStreamSynchronize(s->stream));
    return TN_OK;
}

// ---- Transfers ----

// Repacked tensors are set and read as a whole, in the device's order.
static bool is_soa(const tn_tensor *t) { return kind_of(t) & SOA; }
static tn_status cuda_set_async(tn_stream *stream, tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    cuda_stream *s = cuda_stream_of(stream);
    CUDA_TRY(cudaSetDevice(s->device->ordinal));
    if (is_soa(tensor)) {
        TN_TRY(finish_earlier_work(s));
        return tn_tensor_set_at(tensor, data, offset, size);
    }
    if (size <= SMALL_BYTES)
        return queue_small_upload(&s->small, s->stream, (char *)tensor->data + offset, data, size);
    TN_TRY(cuda_stream_catch_up(s));
    CUDA_TRY(cudaMemcpyAsync((char *)tensor->data + offset, data, size, cudaMemcpyHostToDevice, s->stream));
    return TN_OK;
}
static bool is_pinned(const void *p) {
    cudaPointerAttributes where;
    return cudaPointerGetAttributes(&where, p) == cudaSuccess && where.type == cudaMemoryTypeHost &&
           where.devicePointer == p;
}
// A few bytes to pinned memory: a kernel has less latency than the copy engine.
__global__ static void send_kernel(char *to, const char *from, int size) {
    grid_wait();
    if ((int)threadIdx.x < size) to[threadIdx.x] = from[threadIdx.x];
}
static tn_status send_bytes(cuda_stream *s, char *to, const char *from, int size) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(SMALL_BYTES);
    config.stream = s->stream;
    config.attrs = &attribute;
    config.numAttrs = s->device->description.programmatic_launch ? 1 : 0;
    return cuda_check(cudaLaunchKernelEx(&config, send_kernel, to, from, size), "sending results");
}
static tn_status cuda_get_async(tn_stream *stream, const tn_tensor *tensor, void *data, size_t offset, size_t size) {
    cuda_stream *s = cuda_stream_of(stream);
    if (is_soa(tensor)) {
        TN_TRY(finish_earlier_work(s));
        return tn_tensor_get_at(tensor, data, offset, size);
    }
    TN_TRY(cuda_stream_catch_up(s));
    if (size <= SMALL_BYTES && is_pinned(data))
        return send_bytes(s, (char *)data, (const char *)tensor->data + offset, (int)size);
    CUDA_TRY(cudaMemcpyAsync(data, (const char *)tensor->data + offset, size, cudaMemcpyDeviceToHost, s->stream));
    return TN_OK;
}

static bool on_cuda(const tn_tensor *t, cuda_device **device) {
    if (!t->buffer || t->buffer->type->ops != &cuda_buffer_type_ops) return false;
    *device = (cuda_device *)t->buffer->type->device->impl;
    return true;
}
// The copy waits for the target's earlier readers, follows the source's earlier work, and precedes the target's later
// work.
static tn_status copy_between_devices(cuda_stream *f, cuda_stream *t, cuda_device *a, cuda_device *b,
                                      const tn_tensor *source, tn_tensor *target) {
    CUDA_TRY(cudaSetDevice(a->ordinal));
    if (f != t) {
        CUDA_TRY(cudaSetDevice(b->ordinal));
        CUDA_TRY(cudaEventRecord(t->copied, t->stream));
        CUDA_TRY(cudaSetDevice(a->ordinal));
        CUDA_TRY(cudaStreamWaitEvent(f->stream, t->copied, 0));
    }
    CUDA_TRY(cudaMemcpyPeerAsync(target->data, b->ordinal, source->data, a->ordinal, tn_nbytes(source), f->stream));
    if (f != t) {
        CUDA_TRY(cudaEventRecord(f->copied, f->stream));
        CUDA_TRY(cudaSetDevice(b->ordinal));
        CUDA_TRY(cudaStreamWaitEvent(t->stream, f->copied, 0));
    }
    return TN_OK;
}
// Host to device, device to host, and between devices. Streams wait for each other; the host waits only for data that
// it reads itself.
static tn_status cuda_copy_async(tn_stream *from, tn_stream *to, const tn_tensor *source, tn_tensor *target) {
    cuda_device *a = NULL, *b = NULL;
    bool from_cuda = on_cuda(source, &a), to_cuda = on_cuda(target, &b);
    bool from_host = !source->buffer || source->buffer->type->is_host,
         to_host = !target->buffer || target->buffer->type->is_host;
    size_t size = tn_nbytes(source);
    if ((from_cuda && is_soa(source)) || (to_cuda && is_soa(target))) return TN_E_UNSUPPORTED;
    if (from_cuda) TN_TRY(cuda_stream_catch_up(cuda_stream_of(from)));
    if (to_cuda) TN_TRY(cuda_stream_catch_up(cuda_stream_of(to)));
    if (from_host && to_cuda) {
        // Host weights for a prompt: several threads upload them faster than the driver, which uses one.
        if (size >= LARGE_COPY && !is_pinned(source->data)) return TN_E_UNSUPPORTED;
        CUDA_TRY(cudaSetDevice(b->ordinal));
        CUDA_TRY(
            cudaMemcpyAsync(target->data, source->data, size, cudaMemcpyHostToDevice, cuda_stream_of(to)->stream));
        return TN_OK;
    }
    if (from_cuda && to_host) {
        CUDA_TRY(cudaSetDevice(a->ordinal));
        CUDA_TRY(
            cudaMemcpyAsync(target->data, source->data, size, cudaMemcpyDeviceToHost, cuda_stream_of(from)->stream));
        CUDA_TRY(cudaStreamSynchronize(cuda_stream_of(from)->stream));
        return TN_OK;
    }
    if (from_cuda && to_cuda)
        return copy_between_devices(cuda_stream_of(from), cuda_stream_of(to), a, b, source, target);
    return TN_E_UNSUPPORTED;
}

// ---- Streams ----

static const tn_stream_ops cuda_stream_ops = {
    cuda_stream_free, cuda_set_async,    cuda_get_async,     cuda_copy_async,  cuda_synchronize,
    cuda_program_new, cuda_program_free, cuda_program_moved, cuda_program_run, cuda_program_print,
};

static tn_status make_marks(cuda_stream *s) {
    for (cudaEvent_t &mark : s->marks)
        TN_TRY(cuda_check(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming), "cudaEventCreate"));
    return TN_OK;
}
// Takes no device memory: counters and tables are in the programs' scratch, and so are the workspaces of cuBLASLt.
tn_status cuda_stream_new(tn_device *device, const tn_stream_params *params, tn_stream **stream) {
    cuda_stream *s = (cuda_stream *)tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->device = (cuda_device *)device->impl;
    s->base.ops = &cuda_stream_ops;
    s->base.device = device;
    s->base.impl = s;
    upload_count_stream(s->device, 1);
    s->id = scratch_new_id();
    s->abort = params->abort;
    s->abort_user = params->abort_user;
    s->segment_ns = s->abort ? segment_max_ns() : UINT64_MAX;
    tn_status status = cuda_check(cudaSetDevice(s->device->ordinal), "cudaSetDevice");
    if (status == TN_OK)
        status = cuda_check(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "cudaStreamCreate");
    if (status == TN_OK)
        status = cuda_check(cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming), "cudaEventCreate");
    if (status == TN_OK && cublasLtCreate(&s->blas) != CUBLAS_STATUS_SUCCESS)
        status = tn_fail(TN_E_DEVICE, "%s: cuBLASLt cannot be started", device->name);
    if (status == TN_OK && s->abort) status = make_marks(s);
    s->profile = profile_new();
    if (status != TN_OK) {
        cuda_stream_free(&s->base);
        return status;
    }
    *stream = &s->base;
    return TN_OK;
}

// ---- Events ----

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
    CUDA_TRY(cudaSetDevice(cuda_stream_of(stream)->device->ordinal));
    TN_TRY(flush_small_uploads(cuda_stream_of(stream)->small, cuda_stream_of(stream)->stream));
    CUDA_TRY(cudaEventRecord(((cuda_event *)event)->event, cuda_stream_of(stream)->stream));
    return TN_OK;
}
tn_status cuda_event_wait(tn_event *event, tn_stream *stream) {
    // For another kind of stream the host waits.
    if (stream->ops != &cuda_stream_ops) return cuda_event_synchronize(event);
    CUDA_TRY(cudaSetDevice(cuda_stream_of(stream)->device->ordinal));
    CUDA_TRY(cudaStreamWaitEvent(cuda_stream_of(stream)->stream, ((cuda_event *)event)->event, 0));
    return TN_OK;
}
tn_status cuda_event_synchronize(tn_event *event) {
    CUDA_TRY(cudaEventSynchronize(((cuda_event *)event)->event));
    return TN_OK;
}

// Buffers of device memory and of pinned host memory.
#include "backend/cuda/cuda.cuh"

static cuda_device *cuda_device_of(const tn_buffer *buffer) { return (cuda_device *)buffer->type->device->impl; }

// ---- Device memory ----

static void device_buffer_free(tn_buffer *buffer) {
    cuda_device *d = cuda_device_of(buffer);
    cudaSetDevice(d->ordinal);
    // Uploads into the buffer must have ended.
    if (buffer->impl && upload_before(d) == TN_OK) cudaStreamSynchronize(d->copy_stream);
    if (buffer->impl) cudaFree(buffer->impl);
    tn_free(buffer);
}

tn_status cuda_init_tensor(tn_buffer *buffer, tn_tensor *tensor) {
    if (buffer->usage == TN_USAGE_WEIGHTS && !tensor->view_src && can_be_soa(tensor)) tensor->extra = &soa_mark;
    return TN_OK;
}
// The repacked tensor that this one is, or is a view of; or NULL.
static const tn_tensor *soa_root_of(const tn_tensor *t) {
    const tn_tensor *root = t->view_src ? t->view_src : t;
    return root->extra == &soa_mark ? root : NULL;
}
// Around writes in the file's layout: the tensor is unpacked before and repacked after, also when a write failed.
static tn_status begin_plain(cuda_device *d, const tn_tensor *soa) {
    TN_TRY(upload_before(d));
    return soa ? soa_repack(d, soa, false) : TN_OK;
}
static tn_status end_plain(cuda_device *d, const tn_tensor *soa, tn_status status) {
    tn_status back = soa ? soa_repack(d, soa, true) : TN_OK;
    return status != TN_OK ? status : back;
}
static tn_status device_buffer_set(tn_buffer *buffer, tn_tensor *tensor, const void *data, size_t offset,
                                   size_t size) {
    cuda_device *d = cuda_device_of(buffer);
    const tn_tensor *soa = soa_root_of(tensor);
    bool whole = tensor == soa && offset == 0 && size == tn_nbytes(tensor);
    if (soa && !whole) TN_TRY(begin_plain(d, soa));
    return end_plain(d, soa, upload(d, (char *)tensor->data + offset, (const char *)data, size));
}
static tn_status device_buffer_load(tn_buffer *buffer, const tn_tensor_source *sources, size_t n) {
    cuda_device *d = cuda_device_of(buffer);
    TN_TRY(upload_from(d, sources, n));
    for (size_t i = 0; i < n; i++)
        if (sources[i].tensor->extra == &soa_mark) TN_TRY(soa_repack(d, sources[i].tensor, true));
    return TN_OK;
}
// Waits for what was queued on the copy stream; `error` is the result of queuing it.
static tn_status finish_copy_stream(cuda_device *d, cudaError_t error, const char *what) {
    TN_TRY(cuda_check(error, what));
    return cuda_check(cudaStreamSynchronize(d->copy_stream), what);
}
static tn_status device_buffer_get(tn_buffer *buffer, const tn_tensor *tensor, void *data, size_t offset,
                                   size_t size) {
    cuda_device *d = cuda_device_of(buffer);
    const char *from = (const char *)tensor->data + offset;
    const tn_tensor *soa = soa_root_of(tensor);
    CUDA_TRY(cudaSetDevice(d->ordinal));
    TN_TRY(upload_before(d));
    if (soa) return soa_read(d, soa, (size_t)(from - (const char *)soa->data), (char *)data, size);
    cudaError_t error = cudaMemcpyAsync(data, from, size, cudaMemcpyDeviceToHost, d->copy_stream);
    return finish_copy_stream(d, error, "reading a tensor");
}
static tn_status device_buffer_fill(tn_buffer *buffer, tn_tensor *tensor, uint8_t value, size_t offset, size_t size) {
    cuda_device *d = cuda_device_of(buffer);
    CUDA_TRY(cudaSetDevice(d->ordinal));
    TN_TRY(begin_plain(d, soa_root_of(tensor)));
    cudaError_t error = cudaMemsetAsync((char *)tensor->data + offset, value, size, d->copy_stream);
    return end_plain(d, soa_root_of(tensor), finish_copy_stream(d, error, "filling a tensor"));
}
static tn_status device_buffer_clear(tn_buffer *buffer, uint8_t value) {
    cuda_device *d = cuda_device_of(buffer);
    CUDA_TRY(cudaSetDevice(d->ordinal));
    TN_TRY(upload_before(d));
    if (buffer->size) CUDA_TRY(cudaMemsetAsync(buffer->base, value, buffer->size, d->copy_stream));
    CUDA_TRY(cudaStreamSynchronize(d->copy_stream));
    return TN_OK;
}
static tn_status device_buffer_copy(tn_buffer *buffer, const tn_tensor *from, tn_tensor *to) {
    cuda_device *d = cuda_device_of(buffer);
    if (!from->buffer || from->buffer->ops != buffer->ops) return TN_E_UNSUPPORTED;
    cuda_device *source = cuda_device_of(from->buffer);
    const tn_tensor *repacked = soa_root_of(to);
    if (soa_root_of(from) == from && repacked == to)
        repacked = NULL; // of one layout: they may stay so
    else if (soa_root_of(from))
        return TN_E_UNSUPPORTED; // through the host, where they are put in order
    TN_TRY(upload_before(source));
    if (source != d) TN_TRY(finish_copy_stream(source, cudaSuccess, "copying a tensor"));
    TN_TRY(begin_plain(d, repacked));
    cudaError_t error =
        cudaMemcpyAsync(to->data, from->data, tn_nbytes(from), cudaMemcpyDeviceToDevice, d->copy_stream);
    return end_plain(d, repacked, finish_copy_stream(d, error, "copying a tensor"));
}

static const tn_buffer_ops device_buffer_ops = {device_buffer_free,  cuda_init_tensor,   device_buffer_set,
                                                device_buffer_get,   device_buffer_fill, device_buffer_copy,
                                                device_buffer_clear, device_buffer_load};

static tn_status device_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    cuda_device *d = (cuda_device *)type->device->impl;
    CUDA_TRY(cudaSetDevice(d->ordinal));
    void *base = NULL;
    if (size) {
        // Round up to whole 4-byte words: kernels read blocks of odd sizes in words.
        cudaError_t error = cudaMalloc(&base, (size + 3) & ~(size_t)3);
        if (error != cudaErrorMemoryAllocation) TN_TRY(cuda_check(error, "allocating memory"));
        if (error != cudaSuccess) {
            size_t free_bytes = 0, total = 0;
            cudaGetLastError();
            cudaMemGetInfo(&free_bytes, &total);
            return tn_fail(TN_E_DEVICE_MEMORY, "%s is out of memory: %zu bytes needed, %zu of %zu free",
                           d->device.name, size, free_bytes, total);
        }
    }
    tn_buffer *buffer = (tn_buffer *)tn_calloc(1, sizeof *buffer);
    if (!buffer) {
        cudaFree(base);
        return TN_E_NOMEM;
    }
    buffer->ops = &device_buffer_ops;
    buffer->type = type;
    buffer->base = base ? base : (void *)(uintptr_t)256; // an empty buffer still has an address to name
    buffer->size = size;
    buffer->impl = base;
    *out = buffer;
    return TN_OK;
}

const tn_buffer_type_ops cuda_buffer_type_ops = {device_buffer_new, NULL};

// ---- Pinned host memory ----

static void pinned_free(tn_buffer *buffer) {
    if (buffer->impl) cudaFreeHost(buffer->impl);
    tn_free(buffer);
}
static tn_status pinned_set(tn_buffer *, tn_tensor *t, const void *data, size_t offset, size_t size) {
    memcpy((char *)t->data + offset, data, size);
    return TN_OK;
}
static tn_status pinned_get(tn_buffer *, const tn_tensor *t, void *data, size_t offset, size_t size) {
    memcpy(data, (const char *)t->data + offset, size);
    return TN_OK;
}
static tn_status pinned_fill(tn_buffer *, tn_tensor *t, uint8_t value, size_t offset, size_t size) {
    memset((char *)t->data + offset, value, size);
    return TN_OK;
}
static tn_status pinned_clear(tn_buffer *buffer, uint8_t value) {
    memset(buffer->base, value, buffer->size);
    return TN_OK;
}
static const tn_buffer_ops pinned_ops = {pinned_free, NULL, pinned_set, pinned_get, pinned_fill, NULL, pinned_clear};

static tn_status pinned_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    void *base = NULL;
    CUDA_TRY(cudaSetDevice(((cuda_device *)type->device->impl)->ordinal));
    CUDA_TRY(cudaMallocHost(&base, size ? size : 1));
    tn_buffer *buffer = (tn_buffer *)tn_calloc(1, sizeof *buffer);
    if (!buffer) {
        cudaFreeHost(base);
        return TN_E_NOMEM;
    }
    buffer->ops = &pinned_ops;
    buffer->type = type;
    buffer->base = buffer->impl = base;
    buffer->size = size;
    *out = buffer;
    return TN_OK;
}
const tn_buffer_type_ops cuda_host_buffer_type_ops = {pinned_buffer_new, NULL};

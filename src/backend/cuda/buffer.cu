// Buffers of device memory and of pinned host memory.
#include "backend/cuda/cuda.cuh"

static cuda_device *cuda_device_of(const tn_buffer *buffer) { return (cuda_device *)buffer->type->device->impl; }

// ---- Device memory ----

// Writing to a buffer from outside ends its use as scratch: counters and tables are no longer what they were.
static void end_scratch_use(tn_buffer *buffer) {
    cuda_buffer *b = (cuda_buffer *)buffer;
    if (b->scratch_of) b->scratch_of = 0;
}
// Memory of the host.
static bool is_wrapped(const tn_buffer *buffer) { return buffer->size && !buffer->impl; }

static void device_buffer_free(tn_buffer *buffer) {
    cuda_device *d = cuda_device_of(buffer);
    cudaSetDevice(d->ordinal);
    // Uploads into the buffer must have ended.
    if (buffer->impl && upload_before(d) == TN_OK) cudaStreamSynchronize(d->copy_stream);
    if (buffer->impl) {
        cudaFree(buffer->impl);
        upload_give_back(d);
    }
    if (((cuda_buffer *)buffer)->registered) cudaHostUnregister(buffer->base);
    tn_free(buffer);
}

tn_status cuda_init_tensor(tn_buffer *buffer, tn_tensor *tensor) {
    if (buffer->usage == TN_USAGE_WEIGHTS && !tensor->view_src && can_be_soa(buffer->type, tensor))
        tensor->extra = &soa_mark;
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
    tn_status back = soa ? upload_before(d) : TN_OK; // small uploads may not be queued yet
    if (soa && back == TN_OK) back = soa_repack(d, soa, true);
    return status != TN_OK ? status : back;
}
static tn_status device_buffer_set(tn_buffer *buffer, tn_tensor *tensor, const void *data, size_t offset,
                                   size_t size) {
    cuda_device *d = cuda_device_of(buffer);
    const tn_tensor *soa = soa_root_of(tensor);
    end_scratch_use(buffer);
    if (is_wrapped(buffer)) {
        memcpy((char *)tensor->data + offset, data, size);
        return TN_OK;
    }
    bool whole = tensor == soa && offset == 0 && size == tn_nbytes(tensor);
    if (soa && !whole) TN_TRY(begin_plain(d, soa));
    const device_rows to = device_rows_of(soa ? soa : tensor);
    offset += (size_t)((const char *)tensor->data - to.data); // of a view
    return end_plain(d, soa, upload(d, to, offset, (const char *)data, size));
}
static tn_status device_buffer_load(tn_buffer *buffer, const tn_tensor_source *sources, size_t n) {
    cuda_device *d = cuda_device_of(buffer);
    end_scratch_use(buffer);
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
    if (is_wrapped(buffer)) {
        memcpy(data, from, size);
        return TN_OK;
    }
    if (soa) return soa_read(d, soa, (size_t)(from - (const char *)soa->data), (char *)data, size);
    cudaError_t error = cudaMemcpyAsync(data, from, size, cudaMemcpyDeviceToHost, d->copy_stream);
    return finish_copy_stream(d, error, "reading a tensor");
}
static tn_status device_buffer_fill(tn_buffer *buffer, tn_tensor *tensor, uint8_t value, size_t offset, size_t size) {
    cuda_device *d = cuda_device_of(buffer);
    end_scratch_use(buffer);
    CUDA_TRY(cudaSetDevice(d->ordinal));
    const tn_tensor *soa = soa_root_of(tensor);
    TN_TRY(begin_plain(d, soa));
    const device_rows to = device_rows_of(soa ? soa : tensor);
    offset += (size_t)((const char *)tensor->data - to.data); // of a view
    cudaError_t error = fill_rows(to, offset, value, size, d->copy_stream);
    return end_plain(d, soa, finish_copy_stream(d, error, "filling a tensor"));
}
static tn_status device_buffer_clear(tn_buffer *buffer, uint8_t value) {
    cuda_device *d = cuda_device_of(buffer);
    end_scratch_use(buffer);
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
    end_scratch_use(buffer);
    const tn_tensor *repacked = soa_root_of(to);
    device_rows target = device_rows_of(repacked ? repacked : to);
    size_t offset = (size_t)((const char *)to->data - target.data), size = tn_nbytes(from); // `to` may be a view
    if (soa_root_of(from) == from && repacked == to && padded_row_bytes(from) == target.stride) {
        repacked = NULL; // of one layout: they may stay so
        size = (size_t)tn_nrows(from) * target.stride;
        target.bytes = target.stride;
    } else if (soa_root_of(from)) {
        return TN_E_UNSUPPORTED; // through the host, where they are put in order
    }
    TN_TRY(upload_before(source));
    if (source != d) TN_TRY(finish_copy_stream(source, cudaSuccess, "copying a tensor"));
    TN_TRY(begin_plain(d, repacked));
    cudaError_t error =
        copy_to_rows(target, offset, (const char *)from->data, size, cudaMemcpyDeviceToDevice, d->copy_stream);
    return end_plain(d, repacked, finish_copy_stream(d, error, "copying a tensor"));
}

static const tn_buffer_ops device_buffer_ops = {device_buffer_free,  cuda_init_tensor,   device_buffer_set,
                                                device_buffer_get,   device_buffer_fill, device_buffer_copy,
                                                device_buffer_clear, device_buffer_load};

static tn_status new_cuda_buffer(tn_buffer_type *type, void *base, size_t size, tn_buffer **out) {
    cuda_buffer *b = (cuda_buffer *)tn_calloc(1, sizeof *b);
    if (!b) return TN_E_NOMEM;
    b->base.ops = &device_buffer_ops;
    b->base.type = type;
    b->base.base = base ? base : (void *)(uintptr_t)256; // an empty buffer still has an address to name
    b->base.size = size;
    *out = &b->base;
    return TN_OK;
}
static tn_status take_device_memory(cuda_device *d, size_t size, void **base) {
    TN_TRY(upload_take(d));
    // Round up to whole 4-byte words: kernels read blocks of odd sizes in words.
    cudaError_t error = cudaMalloc(base, (size + 3) & ~(size_t)3);
    if (error == cudaSuccess) return TN_OK;
    upload_give_back(d);
    if (error != cudaErrorMemoryAllocation) return cuda_check(error, "allocating memory");
    size_t free_bytes = 0, total = 0;
    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total);
    return tn_fail(TN_E_DEVICE_MEMORY, "%s is out of memory: %zu bytes needed, %zu of %zu free", d->device.name, size,
                   free_bytes, total);
}
static tn_status device_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    cuda_device *d = (cuda_device *)type->device->impl;
    CUDA_TRY(cudaSetDevice(d->ordinal));
    void *base = NULL;
    if (size) TN_TRY(take_device_memory(d, size, &base));
    tn_status status = new_cuda_buffer(type, base, size, out);
    if (status == TN_OK) (*out)->impl = base;
    if (status == TN_OK || !base) return status;
    cudaFree(base);
    upload_give_back(d);
    return status;
}
static size_t device_load_bytes(const tn_buffer_type *) { return upload_staging_bytes(); }
// Rows as weights have them, which may be padded. A tensor ends at a whole word: see take_device_memory(). With that,
// buffers of planned sizes are just as large.
size_t cuda_tensor_size(tn_buffer_type *type, const tn_tensor *tensor) {
    if (can_be_soa(type, tensor)) return (size_t)tn_nrows(tensor) * padded_row_bytes(tensor);
    return (tn_nbytes(tensor) + 3) & ~(size_t)3;
}

const tn_buffer_type_ops cuda_buffer_type_ops = {device_buffer_new, cuda_tensor_size, NULL, device_load_bytes};

// Weights that the host has mapped: the device reads them where they are. The driver may need to know the pages.
tn_status cuda_wrap_host(tn_device *device, void *memory, size_t size, tn_buffer **buffer) {
    cuda_device *d = (cuda_device *)device->impl;
    if (!device->caps.wrap_host)
        return tn_fail(TN_E_UNSUPPORTED, "%s has memory of its own: host memory must be copied", device->name);
    CUDA_TRY(cudaSetDevice(d->ordinal));
    bool registered = false;
    if (!d->pageable && size) {
        // Mapped files are read-only. Not all devices can register such pages.
        cudaError_t error = cudaHostRegister(memory, size, cudaHostRegisterMapped | cudaHostRegisterReadOnly);
        void *seen = NULL;
        registered = error == cudaSuccess;
        if (registered) error = cudaHostGetDevicePointer(&seen, memory, 0);
        if (error != cudaSuccess || seen != memory) {
            if (registered) cudaHostUnregister(memory);
            cudaGetLastError();
            return tn_fail(TN_E_UNSUPPORTED, "%s cannot use %zu bytes of host memory where they are: %s",
                           device->name, size, error != cudaSuccess ? cudaGetErrorString(error) : "another address");
        }
    }
    tn_status status = new_cuda_buffer(device->buffer_type, memory, size, buffer);
    if (status == TN_OK)
        ((cuda_buffer *)*buffer)->registered = registered;
    else if (registered)
        cudaHostUnregister(memory);
    return status;
}

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
    if (size) CUDA_TRY(cudaMallocHost(&base, size));
    tn_buffer *buffer = (tn_buffer *)tn_calloc(1, sizeof *buffer);
    if (!buffer) {
        if (base) cudaFreeHost(base);
        return TN_E_NOMEM;
    }
    buffer->ops = &pinned_ops;
    buffer->type = type;
    buffer->base = base ? base : (void *)(uintptr_t)256;
    buffer->impl = base;
    buffer->size = size;
    *out = buffer;
    return TN_OK;
}
const tn_buffer_type_ops cuda_host_buffer_type_ops = {pinned_buffer_new, NULL};

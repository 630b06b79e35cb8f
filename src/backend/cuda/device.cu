// Devices and their memory: what the driver offers, as tenon's devices, buffer types and buffers.
#include "backend/cuda/cuda.cuh"

tn_status cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return TN_OK;
    int ordinal = -1;
    cudaGetDevice(&ordinal);
    cudaGetLastError(); // not sticky errors are forgotten
    bool lost = false;  // after these nothing runs on the device any more
    for (cudaError_t e : {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorECCUncorrectable, cudaErrorAssert,
                          cudaErrorMisalignedAddress, cudaErrorIllegalInstruction, cudaErrorInvalidAddressSpace,
                          cudaErrorInvalidPc, cudaErrorHardwareStackError, cudaErrorLaunchTimeout})
        lost = lost || error == e;
    tn_status status = error == cudaErrorMemoryAllocation ? TN_E_DEVICE_MEMORY
                       : lost                             ? TN_E_DEVICE_LOST
                                                          : TN_E_DEVICE;
    return tn_fail(status, "cuda%d: %s: %s", ordinal, what, cudaGetErrorString(error));
}
tn_status clear_now(void *at, size_t size) {
    CUDA_TRY(cudaMemset(at, 0, size));
    CUDA_TRY(cudaStreamSynchronize(0));
    return TN_OK;
}

static cuda_device *device_of(const tn_buffer *buffer) { return (cuda_device *)buffer->type->device->impl; }

// ---- Device memory ----

static void buffer_free(tn_buffer *buffer) {
    cuda_device *d = device_of(buffer);
    cudaSetDevice(d->ordinal);
    if (buffer->impl && upload_before(d) == TN_OK) cudaStreamSynchronize(d->copy_stream); // nothing is still to come
    if (buffer->impl) cudaFree(buffer->impl);
    tn_free(buffer);
}

// Weights of some types are rearranged once they are complete.
static tn_status init_tensor(tn_buffer *buffer, tn_tensor *tensor) {
    if (buffer->usage == TN_USAGE_WEIGHTS && !tensor->view_src && can_be_soa(tensor)) tensor->extra = &soa_mark;
    return TN_OK;
}
// The rearranged tensor that this one is, or is a view of.
static const tn_tensor *soa_root_of(const tn_tensor *t) {
    const tn_tensor *root = t->view_src ? t->view_src : t;
    return root->extra == &soa_mark ? root : NULL;
}
// Around whatever writes to the plain form; the planar one comes back whether or not that went well.
static tn_status begin_plain(cuda_device *d, const tn_tensor *soa) {
    TN_TRY(upload_before(d));
    return soa ? soa_repack(d, soa, false) : TN_OK;
}
static tn_status end_plain(cuda_device *d, const tn_tensor *soa, tn_status status) {
    tn_status back = soa ? soa_repack(d, soa, true) : TN_OK;
    return status != TN_OK ? status : back;
}
static tn_status buffer_set(tn_buffer *buffer, tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    cuda_device *d = device_of(buffer);
    const tn_tensor *soa = soa_root_of(tensor);
    bool whole = tensor == soa && offset == 0 && size == tn_nbytes(tensor);
    if (soa && !whole) TN_TRY(begin_plain(d, soa));
    return end_plain(d, soa, upload(d, (char *)tensor->data + offset, (const char *)data, size));
}
static tn_status buffer_load(tn_buffer *buffer, const tn_tensor_source *sources, size_t n) {
    cuda_device *d = device_of(buffer);
    TN_TRY(upload_from(d, sources, n));
    for (size_t i = 0; i < n; i++)
        if (sources[i].tensor->extra == &soa_mark) TN_TRY(soa_repack(d, sources[i].tensor, true));
    return TN_OK;
}
// What the copy stream was status, and that it has been done.
static tn_status finish_copy(cuda_device *d, cudaError_t error, const char *what) {
    TN_TRY(cuda_check(error, what));
    return cuda_check(cudaStreamSynchronize(d->copy_stream), what);
}
static tn_status buffer_get(tn_buffer *buffer, const tn_tensor *tensor, void *data, size_t offset, size_t size) {
    cuda_device *d = device_of(buffer);
    const char *from = (const char *)tensor->data + offset;
    const tn_tensor *soa = soa_root_of(tensor);
    CUDA_TRY(cudaSetDevice(d->ordinal));
    TN_TRY(upload_before(d));
    if (soa) return soa_read(d, soa, (size_t)(from - (const char *)soa->data), (char *)data, size);
    cudaError_t error = cudaMemcpyAsync(data, from, size, cudaMemcpyDeviceToHost, d->copy_stream);
    return finish_copy(d, error, "reading a tensor");
}
static tn_status buffer_fill(tn_buffer *buffer, tn_tensor *tensor, uint8_t value, size_t offset, size_t size) {
    cuda_device *d = device_of(buffer);
    CUDA_TRY(cudaSetDevice(d->ordinal));
    TN_TRY(begin_plain(d, soa_root_of(tensor)));
    cudaError_t error = cudaMemsetAsync((char *)tensor->data + offset, value, size, d->copy_stream);
    return end_plain(d, soa_root_of(tensor), finish_copy(d, error, "filling a tensor"));
}
static tn_status buffer_clear(tn_buffer *buffer, uint8_t value) {
    cuda_device *d = device_of(buffer);
    CUDA_TRY(cudaSetDevice(d->ordinal));
    TN_TRY(upload_before(d));
    if (buffer->size) CUDA_TRY(cudaMemsetAsync(buffer->base, value, buffer->size, d->copy_stream));
    CUDA_TRY(cudaStreamSynchronize(d->copy_stream));
    return TN_OK;
}
static tn_status buffer_copy(tn_buffer *buffer, const tn_tensor *from, tn_tensor *to) {
    cuda_device *d = device_of(buffer);
    if (!from->buffer || from->buffer->ops != buffer->ops) return TN_E_UNSUPPORTED;
    cuda_device *source = device_of(from->buffer);
    const tn_tensor *repacked = soa_root_of(to);
    if (soa_root_of(from) == from && repacked == to)
        repacked = NULL; // of one layout: they may stay so
    else if (soa_root_of(from))
        return TN_E_UNSUPPORTED; // through the host, where they are put in order
    TN_TRY(upload_before(source));
    if (source != d) TN_TRY(finish_copy(source, cudaSuccess, "copying a tensor"));
    TN_TRY(begin_plain(d, repacked));
    cudaError_t error =
        cudaMemcpyAsync(to->data, from->data, tn_nbytes(from), cudaMemcpyDeviceToDevice, d->copy_stream);
    return end_plain(d, repacked, finish_copy(d, error, "copying a tensor"));
}

static const tn_buffer_ops buffer_ops = {buffer_free, init_tensor, buffer_set,   buffer_get,
                                         buffer_fill, buffer_copy, buffer_clear, buffer_load};

static tn_status buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    cuda_device *d = (cuda_device *)type->device->impl;
    CUDA_TRY(cudaSetDevice(d->ordinal));
    void *base = NULL;
    if (size) {
        // In whole words, which is how kernels read blocks of odd sizes.
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
    buffer->ops = &buffer_ops;
    buffer->type = type;
    buffer->base = base ? base : (void *)(uintptr_t)256; // an empty buffer still has an address to name
    buffer->size = size;
    buffer->impl = base;
    *out = buffer;
    return TN_OK;
}

static const tn_buffer_type_ops type_ops = {buffer_new, NULL};

// ---- Pinned host memory ----

static void host_free(tn_buffer *buffer) {
    if (buffer->impl) cudaFreeHost(buffer->impl);
    tn_free(buffer);
}
static tn_status host_set(tn_buffer *, tn_tensor *t, const void *data, size_t offset, size_t size) {
    memcpy((char *)t->data + offset, data, size);
    return TN_OK;
}
static tn_status host_get(tn_buffer *, const tn_tensor *t, void *data, size_t offset, size_t size) {
    memcpy(data, (const char *)t->data + offset, size);
    return TN_OK;
}
static tn_status host_fill(tn_buffer *, tn_tensor *t, uint8_t value, size_t offset, size_t size) {
    memset((char *)t->data + offset, value, size);
    return TN_OK;
}
static tn_status host_clear(tn_buffer *buffer, uint8_t value) {
    memset(buffer->base, value, buffer->size);
    return TN_OK;
}
static const tn_buffer_ops host_ops = {host_free, NULL, host_set, host_get, host_fill, NULL, host_clear};

static tn_status host_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    void *base = NULL;
    CUDA_TRY(cudaSetDevice(((cuda_device *)type->device->impl)->ordinal));
    CUDA_TRY(cudaMallocHost(&base, size ? size : 1));
    tn_buffer *buffer = (tn_buffer *)tn_calloc(1, sizeof *buffer);
    if (!buffer) {
        cudaFreeHost(base);
        return TN_E_NOMEM;
    }
    buffer->ops = &host_ops;
    buffer->type = type;
    buffer->base = buffer->impl = base;
    buffer->size = size;
    *out = buffer;
    return TN_OK;
}
static const tn_buffer_type_ops host_type_ops = {host_buffer_new, NULL};

// ---- Device ----

static tn_status memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    cuda_device *d = (cuda_device *)device->impl;
    CUDA_TRY(cudaSetDevice(d->ordinal));
    CUDA_TRY(cudaMemGetInfo(free_bytes, total_bytes));
    if (d->properties.integrated) {
        // Its memory is the host's: what the host can give counts, not what the driver holds.
        FILE *file = fopen("/proc/meminfo", "r");
        char line[128];
        unsigned long long kib;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) *free_bytes = (size_t)kib * 1024;
        if (file) fclose(file);
    }
    return TN_OK;
}
static bool supports_op(tn_device *, const tn_tensor *node, char *reason, size_t reason_size) {
    return node_supported(node, reason, reason_size);
}
static bool supports_buffer_type(tn_device *device, const tn_buffer_type *type) {
    return type == device->buffer_type;
}
// A product with many columns earns back the transfer of its weights; norms before it come along.
static bool wants_op(tn_device *, const tn_tensor *node) {
    return (tn_op_get_family(node->op) == TN_FAMILY_MATMUL || node->op == TN_OP_RMS_NORM || node->op == TN_OP_NORM) &&
           node->ne[1] * node->ne[2] >= 64 && node_supported(node, NULL, 0);
}

tn_status cuda_stream_new(tn_device *device, const tn_stream_params *params, tn_stream **stream);
tn_status cuda_event_new(tn_device *device, tn_event **event);
void cuda_event_free(tn_event *event);
tn_status cuda_event_record(tn_event *event, tn_stream *stream);
tn_status cuda_event_wait(tn_event *event, tn_stream *stream);
tn_status cuda_event_synchronize(tn_event *event);

static const tn_device_ops device_ops = {
    memory,
    supports_op,
    supports_buffer_type,
    wants_op,
    NULL,
    NULL,
    NULL,
    cuda_stream_new,
    cuda_event_new,
    cuda_event_free,
    cuda_event_record,
    cuda_event_wait,
    cuda_event_synchronize,
    NULL,
};

static bool open_device(cuda_device *d, int ordinal) {
    d->ordinal = ordinal;
    if (cudaGetDeviceProperties(&d->properties, ordinal) != cudaSuccess ||
        d->properties.major * 10 + d->properties.minor < 75)
        return false;
    if (cudaSetDevice(ordinal) != cudaSuccess ||
        cudaStreamCreateWithFlags(&d->copy_stream, cudaStreamNonBlocking) != cudaSuccess)
        return false;
    d->device.ops = &device_ops;
    snprintf(d->device.name, sizeof d->device.name, "cuda%d", ordinal);
    char chip[96];
    snprintf(chip, sizeof chip, "%.90s", d->properties.name);
    snprintf(d->device.description, sizeof d->device.description, "%s, compute %d.%d", chip, d->properties.major,
             d->properties.minor);
    d->device.kind = d->properties.integrated ? TN_DEVICE_IGPU : TN_DEVICE_GPU;
    d->device.caps.async = d->device.caps.events = d->device.caps.host_buffers = true;
    d->device.caps.shares_host = d->properties.integrated;
    d->device.buffer_type = &d->type;
    d->device.host_buffer_type = &d->host_type;
    d->device.impl = d;
    d->type.ops = &type_ops;
    memcpy(d->type.name, d->device.name, sizeof d->type.name);
    d->type.device = &d->device;
    d->type.alignment = 256;
    d->type.max_size = d->properties.totalGlobalMem;
    d->host_type.ops = &host_type_ops;
    snprintf(d->host_type.name, sizeof d->host_type.name, "cuda%d-pinned", ordinal);
    d->host_type.device = &d->device;
    d->host_type.alignment = 256;
    d->host_type.max_size = SIZE_MAX / 2;
    d->host_type.is_host = true;
    return true;
}

enum { MAX_DEVICES = 16 };
static cuda_device devices[MAX_DEVICES];
static tn_device *device_list[MAX_DEVICES];

extern "C" TN_API tn_status tn_backend_entry(tn_backend_module *module) {
    module->interface = TN_BACKEND_INTERFACE;
    module->name = "cuda";
    module->devices = device_list;
    module->n_devices = 0;
    int count = 0;
    // Without a driver or a GPU there is nothing to list, and that is no error.
    if (cudaGetDeviceCount(&count) != cudaSuccess) return TN_OK;
    for (int i = 0; i < count && i < MAX_DEVICES; i++)
        if (open_device(&devices[module->n_devices], i)) {
            device_list[module->n_devices] = &devices[module->n_devices].device;
            module->n_devices++;
        }
    cudaGetLastError();
    return TN_OK;
}

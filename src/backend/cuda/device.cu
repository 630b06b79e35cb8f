// Devices: what the driver lists, and the module's entry point.
#include "backend/cuda/compile.cuh"

tn_status cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return TN_OK;
    int ordinal = -1;
    cudaGetDevice(&ordinal);
    cudaGetLastError(); // clears errors that are not sticky
    bool lost = false;  // these errors are sticky: the process can no longer use the device
    for (cudaError_t e : {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorECCUncorrectable, cudaErrorAssert,
                          cudaErrorMisalignedAddress, cudaErrorIllegalInstruction, cudaErrorInvalidAddressSpace,
                          cudaErrorInvalidPc, cudaErrorHardwareStackError, cudaErrorLaunchTimeout})
        lost = lost || error == e;
    tn_status status = error == cudaErrorMemoryAllocation ? TN_E_DEVICE_MEMORY
                       : lost                             ? TN_E_DEVICE_LOST
                                                          : TN_E_DEVICE;
    return tn_fail(status, "cuda%d: %s: %s", ordinal, what, cudaGetErrorString(error));
}

// ---- Descriptions ----

bool description_of_device(int ordinal, device_description *d) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, ordinal) != cudaSuccess) return false;
    *d = device_description{};
    snprintf(d->chip, sizeof d->chip, "%.63s", p.name);
    d->major = p.major;
    d->minor = p.minor;
    d->multiprocessors = p.multiProcessorCount;
    d->shared_per_block = p.sharedMemPerBlockOptin;
    d->shared_per_multiprocessor = p.sharedMemPerMultiprocessor;
    d->threads_per_multiprocessor = p.maxThreadsPerMultiProcessor;
    d->blocks_per_multiprocessor = p.maxBlocksPerMultiProcessor;
    d->l2_bytes = (size_t)p.l2CacheSize;
    d->memory_bytes = p.totalGlobalMem;
    d->cooperative_launch = p.cooperativeLaunch != 0;
    description_set_features(d);
    d->integrated = p.integrated != 0;
    return true;
}

// ---- Devices ----

static tn_status cuda_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    cuda_device *d = (cuda_device *)device->impl;
    CUDA_TRY(cudaSetDevice(d->ordinal));
    CUDA_TRY(cudaMemGetInfo(free_bytes, total_bytes));
    if (d->description.integrated) {
        // Its memory is the host's: the host's available bytes count, not the driver's.
        FILE *file = fopen("/proc/meminfo", "r");
        char line[128];
        unsigned long long kib;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) *free_bytes = (size_t)kib * 1024;
        if (file) fclose(file);
    }
    return TN_OK;
}
static bool cuda_supports_op(tn_device *, const tn_tensor *node, char *reason, size_t reason_size) {
    return node_supported(node, reason, reason_size);
}
static bool cuda_supports_type(tn_device *device, const tn_buffer_type *type) { return type == device->buffer_type; }
bool cuda_wants_op(tn_device *, const tn_tensor *node) {
    return (tn_op_get_family(node->op) == TN_FAMILY_MATMUL || node->op == TN_OP_RMS_NORM || node->op == TN_OP_NORM) &&
           node->ne[1] * node->ne[2] >= 64 && node_supported(node, NULL, 0);
}

static const tn_device_ops cuda_device_ops = {
    cuda_memory,
    cuda_supports_op,
    cuda_supports_type,
    cuda_wants_op,
    NULL,
    NULL,
    cuda_wrap_host,
    cuda_stream_new,
    cuda_event_new,
    cuda_event_free,
    cuda_event_record,
    cuda_event_wait,
    cuda_event_synchronize,
    NULL,
};

void cuda_device_names(tn_device *device, tn_buffer_type *type, const device_description &d) {
    const device_description own = d; // GCC takes members of one device for overlapping memory
    snprintf(device->description, sizeof device->description, "%s, compute %d.%d", own.chip, own.major, own.minor);
    memcpy(type->name, device->name, sizeof type->name);
    type->device = device;
    type->alignment = 256;
    type->max_size = d.memory_bytes;
    device->buffer_type = type;
    // A discrete GPU could follow pointers to the host's memory, too, but only as fast as the bus.
    device->kind = d.integrated ? TN_DEVICE_IGPU : TN_DEVICE_GPU;
    device->caps.unified = device->caps.wrap_host = d.integrated;
    device->caps.repeatable = d.async_copies; // below, matmuls with many columns are left to cuBLASLt
}
static bool cuda_open_device(cuda_device *d, int ordinal) {
    enum { LOWEST_CAPABILITY = 75 };
    d->ordinal = ordinal;
    if (!description_of_device(ordinal, &d->description) ||
        d->description.major * 10 + d->description.minor < LOWEST_CAPABILITY)
        return false;
    if (cudaSetDevice(ordinal) != cudaSuccess ||
        cudaStreamCreateWithFlags(&d->copy_stream, cudaStreamNonBlocking) != cudaSuccess)
        return false;
    d->device.ops = &cuda_device_ops;
    snprintf(d->device.name, sizeof d->device.name, "cuda%d", ordinal);
    d->device.caps.async = d->device.caps.events = d->device.caps.host_buffers = true;
    // Instances of one card that the driver partitioned have the same id; a process sees one of them.
    if (cudaDeviceGetPCIBusId(d->device.card, sizeof d->device.card, ordinal) != cudaSuccess) *d->device.card = 0;
    int pageable = 0;
    if (cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, ordinal) == cudaSuccess)
        d->pageable = pageable != 0;
    d->device.host_buffer_type = &d->host_type;
    d->device.impl = d;
    d->type.ops = &cuda_buffer_type_ops;
    cuda_device_names(&d->device, &d->type, d->description);
    d->host_type.ops = &cuda_host_buffer_type_ops;
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
    module->describe = described_device_new;
    int count = 0;
    // Without a driver or a GPU there is no device to list. That is no error: devices can still be described.
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    for (int i = 0; i < count && i < MAX_DEVICES; i++)
        if (cuda_open_device(&devices[module->n_devices], i)) {
            device_list[module->n_devices] = &devices[module->n_devices].device;
            module->n_devices++;
        }
    cudaGetLastError();
    return TN_OK;
}

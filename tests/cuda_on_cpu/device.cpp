// The emulated device: its properties, its memory, and launching grids.
#include "block.h"
#include "queue.h"

#include <algorithm>
#include <map>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>

using namespace emul;

typedef std::lock_guard<std::recursive_mutex> holding;

enum { PAGE = 4096, ALIGNMENT = 256, NAN_BYTES = 1 << 20 };

static thread_local int current;

static int setting(const char *name, int otherwise) {
    const char *wanted = getenv(name);
    return wanted ? atoi(wanted) : otherwise;
}
static size_t device_bytes() { return (size_t)setting("TENON_EMULATED_MIB", 4096) << 20; }
static int device_count() { return setting("TENON_EMULATED_DEVICES", 1); }
static int processors() { return setting("TENON_EMULATED_PROCESSORS", 4); }
// Shared memory of a block, from the CUDA programming guide's table of capabilities.
static size_t max_shared() { return capability() >= 90 ? 227 << 10 : capability() >= 80 ? 163 << 10 : 64 << 10; }

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = device_count();
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count()) return fail_with(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    memset((void *)p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "CUDA on CPU");
    p->totalGlobalMem = device_bytes();
    p->major = capability() / 10;
    p->minor = capability() % 10;
    p->multiProcessorCount = processors();
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = max_shared();
    p->sharedMemPerMultiprocessor = max_shared() + 1024;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->maxThreadsPerMultiProcessor = 2 * MAX_THREADS;
    p->maxBlocksPerMultiProcessor = 16;
    p->warpSize = WARP;
    p->cooperativeLaunch = 1;
    p->l2CacheSize = 32 << 20;
    p->integrated = setting("TENON_EMULATED_INTEGRATED", 0);
    return cudaSuccess;
}

} // extern "C"

// ---- Memory ----
// An allocation ends at a page that faults. The bytes between its end and that page are checked for changes when it
// is freed. Memory is NaN at first, and unmapped when it is freed.

namespace {
struct allocation {
    char *mapped;
    size_t bytes, size;
    int device; // -1: pinned memory of the host
};
const unsigned char RED = 0xa5;
std::map<char *, allocation> allocations; // by address
size_t used[16];
std::map<void *, size_t> registered; // memory of the caller
} // namespace

// Appends a line for every allocation and release to the file that TENON_COUNT_GPU_BYTES names, in the form that
// count_gpu_bytes.c writes on a real GPU: "+ device 4096".
static void log_bytes(char sign, const char *kind, size_t size) {
    const char *path = getenv("TENON_COUNT_GPU_BYTES");
    FILE *file = path && *path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%c %s %zu\n", sign, kind, size);
    fclose(file);
}
static cudaError_t register_host(void *at, size_t size) {
    holding hold(lock);
    if (!registered.emplace(at, size).second) return fail_with(cudaErrorHostMemoryAlreadyRegistered);
    log_bytes('+', "registered", size);
    return cudaSuccess;
}
static cudaError_t unregister_host(void *at) {
    holding hold(lock);
    auto entry = registered.find(at);
    if (entry == registered.end()) return fail_with(cudaErrorHostMemoryNotRegistered);
    log_bytes('-', "registered", entry->second);
    registered.erase(entry);
    return cudaSuccess;
}

static cudaError_t allocate(void **out, size_t size, int device) {
    holding hold(lock);
    if (is_capturing()) return fail_with(cudaErrorStreamCaptureUnsupported);
    size_t room = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, pages = (room + PAGE - 1) / PAGE * PAGE;
    if (device >= 0 && (size > device_bytes() || used[device] + pages > device_bytes()))
        return fail_with(cudaErrorMemoryAllocation);
    char *mapped =
        (char *)mmap(NULL, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED || mprotect(mapped + PAGE, pages, PROT_READ | PROT_WRITE))
        return fail_with(cudaErrorMemoryAllocation);
    char *at = mapped + PAGE + pages - room;
    if (device >= 0) {
        memset(at, 0xff, size < NAN_BYTES ? size : (size_t)NAN_BYTES);
        used[device] += pages;
    }
    memset(at + size, RED, room - size);
    allocations[at] = {mapped, pages + 2 * PAGE, size, device};
    log_bytes('+', device >= 0 ? "device" : "pinned", size);
    *out = at;
    return cudaSuccess;
}
static cudaError_t release(void *at) {
    holding hold(lock);
    if (!at) return cudaSuccess;
    if (is_capturing()) return fail_with(cudaErrorStreamCaptureUnsupported);
    finish_all();
    auto entry = allocations.find((char *)at);
    if (entry == allocations.end()) return fail_with(cudaErrorInvalidValue);
    const allocation &a = entry->second;
    for (const char *p = (char *)at + a.size; p < a.mapped + a.bytes - PAGE; p++)
        if ((unsigned char)*p != RED) fail("write past the end of an allocation of %zu bytes", a.size);
    if (a.device >= 0) used[a.device] -= a.bytes - 2 * PAGE;
    log_bytes('-', a.device >= 0 ? "device" : "pinned", a.size);
    munmap(a.mapped, a.bytes);
    allocations.erase(entry);
    return cudaSuccess;
}
static const allocation *find(const void *at) {
    auto after = allocations.upper_bound((char *)at);
    if (after == allocations.begin()) return NULL;
    --after;
    return (const char *)at < after->first + std::max<size_t>(after->second.size, 1) ? &after->second : NULL;
}
static bool is_device(const void *at) {
    const allocation *a = find(at);
    return a && a->device >= 0;
}
// As in the driver: pinned memory is accessed when the copy runs, other host memory during this call.
static cudaError_t copy(void *to, const void *from, size_t size, cudaStream_t stream, bool now) {
    holding hold(lock);
    if (!size) return cudaSuccess;
    bool pageable_from = !find(from), pageable_to = !find(to);
    if ((pageable_from || pageable_to || now) && is_capturing()) return fail_with(cudaErrorStreamCaptureUnsupported);
    if (pageable_from) {
        std::string text((const char *)from, size);
        queue_work(stream, [=]() { memcpy(to, text.data(), size); });
    } else {
        queue_work(stream, [=]() { memmove(to, from, size); });
    }
    return pageable_to || now ? cudaStreamSynchronize(stream) : cudaSuccess;
}

extern "C" {

cudaError_t cudaMalloc(void **out, size_t size) { return allocate(out, size, current); }
cudaError_t cudaFree(void *at) { return release(at); }
cudaError_t cudaMallocHost(void **out, size_t size) { return allocate(out, size, -1); }
cudaError_t cudaHostAlloc(void **out, size_t size, unsigned) { return allocate(out, size, -1); }
cudaError_t cudaFreeHost(void *at) { return release(at); }
cudaError_t cudaHostRegister(void *at, size_t size, unsigned) { return register_host(at, size); }
cudaError_t cudaHostUnregister(void *at) { return unregister_host(at); }
cudaError_t cudaHostGetDevicePointer(void **out, void *at, unsigned) {
    *out = at;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *out, cudaDeviceAttr, int) {
    *out = 0;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *at) {
    holding hold(lock);
    const allocation *a = find(at);
    *out = {};
    out->type = !a ? cudaMemoryTypeUnregistered : a->device >= 0 ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    if (a) out->devicePointer = (void *)at;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    holding hold(lock);
    *total = device_bytes();
    *free_bytes = *total - used[current];
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
    {
        holding hold(lock);
        bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice,
             to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        if (size && kind != cudaMemcpyDefault && (from_device != is_device(from) || to_device != is_device(to)))
            return fail_with(cudaErrorInvalidValue);
    }
    return copy(to, from, size, stream, false);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind) {
    return copy(to, from, size, NULL, true);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size, cudaStream_t stream) {
    return copy(to, from, size, stream, false);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t i = 0; i < height; i++) {
        cudaError_t error =
            cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    holding hold(lock);
    if (!is_device(to)) return fail_with(cudaErrorInvalidValue);
    return queue_work(stream, [=]() { memset(to, value, size); });
}
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    for (size_t i = 0; i < height; i++) {
        cudaError_t error = cudaMemsetAsync((char *)to + i * pitch, value, width, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t size) {
    cudaError_t error = cudaMemsetAsync(to, value, size, NULL);
    return error == cudaSuccess ? cudaStreamSynchronize(NULL) : error;
}

} // extern "C"

// ---- Launches ----

static std::map<const void *, size_t> allowed_shared; // by kernel: more than 48 KiB must be requested

extern "C" cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
    holding hold(lock);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value > max_shared()) return fail_with(cudaErrorInvalidValue);
    allowed_shared[function] = (size_t)value;
    return cudaSuccess;
}
extern "C" cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t) {
    *blocks = 1;
    return cudaSuccess;
}

cudaError_t emul::launch(const grid &g, std::function<void()> body) {
    holding hold(lock);
    size_t threads = (size_t)g.threads.x * g.threads.y * g.threads.z;
    size_t most = std::max<size_t>(48 << 10, g.function ? allowed_shared[g.function] : 0);
    if (!threads || threads > MAX_THREADS || g.threads.z > 64 || !g.blocks.x || !g.blocks.y || !g.blocks.z ||
        g.blocks.x > 0x7fffffff || g.blocks.y > 65535 || g.blocks.z > 65535)
        return fail_with(cudaErrorInvalidConfiguration);
    if (g.shared > most) return fail_with(cudaErrorInvalidValue);
    if (g.cooperative && (size_t)g.blocks.x * g.blocks.y * g.blocks.z > (size_t)processors())
        return fail_with(cudaErrorCooperativeLaunchTooLarge);
    limits l = {48 << 10, max_shared()};
    return queue_grid(g.stream, {g, l, std::move(body)});
}

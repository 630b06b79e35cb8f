/* Counts what a process requests from the CUDA driver: device memory, pinned and registered host memory.
 *
 *   LD_PRELOAD=libcount_gpu_bytes.so TENON_COUNT_GPU_BYTES=FILE program
 *
 * appends a line to FILE for every allocation and release, such as "+ device 4096 libtenon-cuda.so" (the module whose
 * copy of the CUDA runtime made the call), and prints sums to stderr at exit. scripts/count_gpu_bytes.sh uses it.
 *
 * The CUDA runtime is linked statically into the backend and into cuBLASLt. It looks the driver's functions up with
 * dlsym() and cuGetProcAddress(), so both are replaced here. Memory that the driver takes by itself, such as its
 * context, code and graphs, is not requested by anyone and not seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int driver_result; /* CUresult; 0: success */
typedef unsigned long long device_address;

enum byte_kind { KIND_DEVICE, KIND_PINNED, KIND_REGISTERED, KIND_COUNT };
static const char *const kind_names[KIND_COUNT] = {"device", "pinned", "registered"};
enum { MAX_LIVE = 1 << 16 };
static struct {
    uint64_t at;
    size_t size;
    enum byte_kind kind;
} live[MAX_LIVE];
static size_t n_live;
static size_t held[KIND_COUNT], peak[KIND_COUNT], requested[KIND_COUNT], count[KIND_COUNT];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void log_line(char sign, enum byte_kind kind, size_t size, void *caller) {
    const char *path = getenv("TENON_COUNT_GPU_BYTES");
    FILE *file = path && *path ? fopen(path, "a") : NULL;
    if (!file) return;
    Dl_info info;
    const char *module = caller && dladdr(caller, &info) && info.dli_fname ? info.dli_fname : "?";
    const char *slash = strrchr(module, '/');
    fprintf(file, "%c %s %zu %s\n", sign, kind_names[kind], size, slash ? slash + 1 : module);
    fclose(file);
}
static void note_taken(enum byte_kind kind, uint64_t at, size_t size, void *caller) {
    pthread_mutex_lock(&log_lock);
    if (n_live < MAX_LIVE) {
        live[n_live].at = at;
        live[n_live].size = size;
        live[n_live++].kind = kind;
    }
    requested[kind] += size;
    count[kind]++;
    held[kind] += size;
    if (held[kind] > peak[kind]) peak[kind] = held[kind];
    log_line('+', kind, size, caller);
    pthread_mutex_unlock(&log_lock);
}
static void note_released(uint64_t at, void *caller) {
    pthread_mutex_lock(&log_lock);
    for (size_t i = n_live; i-- > 0;) {
        if (live[i].at != at) continue;
        held[live[i].kind] -= live[i].size;
        log_line('-', live[i].kind, live[i].size, caller);
        live[i] = live[--n_live];
        break;
    }
    pthread_mutex_unlock(&log_lock);
}
__attribute__((destructor)) static void print_sums(void) {
    if (!getenv("TENON_COUNT_GPU_BYTES")) return;
    for (int k = 0; k < KIND_COUNT; k++)
        fprintf(stderr, "%-10s %zu bytes in %zu allocations, peak %zu, held at exit %zu\n", kind_names[k],
                requested[k], count[k], peak[k], held[k]);
}

/* ---- The driver's functions ---- */

enum driver_function {
    MEM_ALLOC,
    MEM_ALLOC_PITCH,
    MEM_ALLOC_MANAGED,
    MEM_ALLOC_ASYNC,
    MEM_ALLOC_FROM_POOL,
    MEM_CREATE,
    MEM_HOST_ALLOC,
    MEM_ALLOC_HOST,
    MEM_HOST_REGISTER,
    MEM_FREE,
    MEM_FREE_ASYNC,
    MEM_RELEASE,
    MEM_FREE_HOST,
    MEM_HOST_UNREGISTER,
    GET_PROC_ADDRESS,
    GET_PROC_ADDRESS_2,
    FUNCTION_COUNT
};
static void *real_functions[FUNCTION_COUNT];
#define CALLER __builtin_return_address(0)
#define REAL(function, type) ((type)real_functions[function])

static driver_result count_alloc(device_address *to, size_t size) {
    driver_result r = REAL(MEM_ALLOC, driver_result(*)(device_address *, size_t))(to, size);
    if (r == 0) note_taken(KIND_DEVICE, *to, size, CALLER);
    return r;
}
static driver_result count_alloc_pitch(device_address *to, size_t *pitch, size_t width, size_t height,
                                       unsigned element) {
    driver_result r = REAL(MEM_ALLOC_PITCH, driver_result(*)(device_address *, size_t *, size_t, size_t, unsigned))(
        to, pitch, width, height, element);
    if (r == 0) note_taken(KIND_DEVICE, *to, *pitch * height, CALLER);
    return r;
}
static driver_result count_alloc_managed(device_address *to, size_t size, unsigned flags) {
    driver_result r = REAL(MEM_ALLOC_MANAGED, driver_result(*)(device_address *, size_t, unsigned))(to, size, flags);
    if (r == 0) note_taken(KIND_DEVICE, *to, size, CALLER);
    return r;
}
static driver_result count_alloc_async(device_address *to, size_t size, void *stream) {
    driver_result r = REAL(MEM_ALLOC_ASYNC, driver_result(*)(device_address *, size_t, void *))(to, size, stream);
    if (r == 0) note_taken(KIND_DEVICE, *to, size, CALLER);
    return r;
}
static driver_result count_alloc_from_pool(device_address *to, size_t size, void *pool, void *stream) {
    driver_result r =
        REAL(MEM_ALLOC_FROM_POOL, driver_result(*)(device_address *, size_t, void *, void *))(to, size, pool, stream);
    if (r == 0) note_taken(KIND_DEVICE, *to, size, CALLER);
    return r;
}
static driver_result count_create(uint64_t *to, size_t size, const void *properties, uint64_t flags) {
    driver_result r =
        REAL(MEM_CREATE, driver_result(*)(uint64_t *, size_t, const void *, uint64_t))(to, size, properties, flags);
    if (r == 0) note_taken(KIND_DEVICE, *to, size, CALLER);
    return r;
}
static driver_result count_host_alloc(void **to, size_t size, unsigned flags) {
    driver_result r = REAL(MEM_HOST_ALLOC, driver_result(*)(void **, size_t, unsigned))(to, size, flags);
    if (r == 0) note_taken(KIND_PINNED, (uintptr_t)*to, size, CALLER);
    return r;
}
static driver_result count_alloc_host(void **to, size_t size) {
    driver_result r = REAL(MEM_ALLOC_HOST, driver_result(*)(void **, size_t))(to, size);
    if (r == 0) note_taken(KIND_PINNED, (uintptr_t)*to, size, CALLER);
    return r;
}
static driver_result count_host_register(void *at, size_t size, unsigned flags) {
    driver_result r = REAL(MEM_HOST_REGISTER, driver_result(*)(void *, size_t, unsigned))(at, size, flags);
    if (r == 0) note_taken(KIND_REGISTERED, (uintptr_t)at, size, CALLER);
    return r;
}
/* Noted before the call: afterwards another thread may get the same address. */
static driver_result count_free(device_address at) {
    note_released(at, CALLER);
    return REAL(MEM_FREE, driver_result(*)(device_address))(at);
}
static driver_result count_free_async(device_address at, void *stream) {
    note_released(at, CALLER);
    return REAL(MEM_FREE_ASYNC, driver_result(*)(device_address, void *))(at, stream);
}
static driver_result count_release(uint64_t handle) {
    note_released(handle, CALLER);
    return REAL(MEM_RELEASE, driver_result(*)(uint64_t))(handle);
}
static driver_result count_free_host(void *at) {
    note_released((uintptr_t)at, CALLER);
    return REAL(MEM_FREE_HOST, driver_result(*)(void *))(at);
}
static driver_result count_host_unregister(void *at) {
    note_released((uintptr_t)at, CALLER);
    return REAL(MEM_HOST_UNREGISTER, driver_result(*)(void *))(at);
}

/* ---- Looking functions up ---- */

static driver_result count_get_proc_address(const char *name, void **found, int version, uint64_t flags);
static driver_result count_get_proc_address_2(const char *name, void **found, int version, uint64_t flags,
                                              int *status);

static const struct {
    const char *name; /* without the suffix of its version */
    void *replacement;
} driver_functions[FUNCTION_COUNT] = {
    [MEM_ALLOC] = {"cuMemAlloc", (void *)count_alloc},
    [MEM_ALLOC_PITCH] = {"cuMemAllocPitch", (void *)count_alloc_pitch},
    [MEM_ALLOC_MANAGED] = {"cuMemAllocManaged", (void *)count_alloc_managed},
    [MEM_ALLOC_ASYNC] = {"cuMemAllocAsync", (void *)count_alloc_async},
    [MEM_ALLOC_FROM_POOL] = {"cuMemAllocFromPoolAsync", (void *)count_alloc_from_pool},
    [MEM_CREATE] = {"cuMemCreate", (void *)count_create},
    [MEM_HOST_ALLOC] = {"cuMemHostAlloc", (void *)count_host_alloc},
    [MEM_ALLOC_HOST] = {"cuMemAllocHost", (void *)count_alloc_host},
    [MEM_HOST_REGISTER] = {"cuMemHostRegister", (void *)count_host_register},
    [MEM_FREE] = {"cuMemFree", (void *)count_free},
    [MEM_FREE_ASYNC] = {"cuMemFreeAsync", (void *)count_free_async},
    [MEM_RELEASE] = {"cuMemRelease", (void *)count_release},
    [MEM_FREE_HOST] = {"cuMemFreeHost", (void *)count_free_host},
    [MEM_HOST_UNREGISTER] = {"cuMemHostUnregister", (void *)count_host_unregister},
    [GET_PROC_ADDRESS] = {"cuGetProcAddress", (void *)count_get_proc_address},
    [GET_PROC_ADDRESS_2] = {"cuGetProcAddress_v2", (void *)count_get_proc_address_2},
};
/* What to return for a function that was looked up. `version` is the requested version of CUDA, or 0. */
static void *replaced(const char *name, void *found, int version) {
    if (!found || !name || strncmp(name, "cu", 2) != 0) return found;
    size_t length = strlen(name);
    if (strcmp(name, "cuGetProcAddress") == 0 && version >= 12000) {
        name = "cuGetProcAddress_v2";
    } else if (strncmp(name, "cuGetProcAddress", 16) != 0) {
        if (length > 5 && strcmp(name + length - 5, "_ptsz") == 0) length -= 5;
        if (length > 3 && strncmp(name + length - 3, "_v", 2) == 0) length -= 3;
    }
    if (strncmp(name, "cuGetProcAddress", 16) == 0) length = strlen(name);
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        if (strncmp(driver_functions[i].name, name, length) != 0 || driver_functions[i].name[length]) continue;
        if (found == driver_functions[i].replacement) return found;
        real_functions[i] = found;
        return driver_functions[i].replacement;
    }
    return found;
}
static driver_result count_get_proc_address(const char *name, void **found, int version, uint64_t flags) {
    driver_result r =
        REAL(GET_PROC_ADDRESS, driver_result(*)(const char *, void **, int, uint64_t))(name, found, version, flags);
    if (r == 0 && found) *found = replaced(name, *found, version);
    return r;
}
static driver_result count_get_proc_address_2(const char *name, void **found, int version, uint64_t flags,
                                              int *status) {
    driver_result r = REAL(GET_PROC_ADDRESS_2, driver_result(*)(const char *, void **, int, uint64_t, int *))(
        name, found, version, flags, status);
    if (r == 0 && found) *found = replaced(name, *found, version);
    return r;
}

__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*real)(void *, const char *);
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}; /* the last: 64-bit Arm */
    for (size_t i = 0; i < sizeof versions / sizeof *versions && !real; i++)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    return real ? replaced(name, real(handle, name), 0) : NULL;
}

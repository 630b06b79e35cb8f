/* Finding libnccl.so.2 and the CUDA driver. */
#include "nccl_library.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

typedef struct library_entry {
    const char *name;
    size_t at; /* of the pointer in nccl_library */
} library_entry;
#define ENTRY(name, field)                                                                                           \
    { name, offsetof(nccl_library, field) }

static tn_status open_library(const char *file, const library_entry *entries, size_t n, nccl_library *l,
                              void **handle) {
    *handle = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    if (!*handle) return tn_fail(TN_E_NOT_FOUND, "NCCL is not usable: %s", dlerror());
    for (size_t i = 0; i < n; i++) {
        void *symbol = dlsym(*handle, entries[i].name);
        if (!symbol) return tn_fail(TN_E_NOT_FOUND, "NCCL is not usable: %s has no %s", file, entries[i].name);
        memcpy((char *)l + entries[i].at, &symbol, sizeof symbol);
    }
    return TN_OK;
}

tn_status nccl_library_open(nccl_library *l) {
    static const library_entry nccl[] = {
        ENTRY("ncclGetUniqueId", get_unique_id), ENTRY("ncclCommInitRank", init_rank),
        ENTRY("ncclAllReduce", all_reduce),      ENTRY("ncclCommGetAsyncError", async_error),
        ENTRY("ncclCommAbort", abort),           ENTRY("ncclCommDestroy", destroy),
        ENTRY("ncclGetErrorString", error_text),
    };
    static const library_entry driver[] = {
        ENTRY("cuInit", init),
        ENTRY("cuDeviceGetCount", device_count),
        ENTRY("cuDeviceGet", device),
        ENTRY("cuDevicePrimaryCtxRetain", retain),
        ENTRY("cuDevicePrimaryCtxRelease_v2", release),
        ENTRY("cuCtxSetCurrent", set_context),
        ENTRY("cuStreamCreate", new_stream),
        ENTRY("cuStreamDestroy_v2", free_stream),
        ENTRY("cuStreamQuery", query_stream),
        ENTRY("cuMemAlloc_v2", allocate),
        ENTRY("cuMemFree_v2", free_memory),
        ENTRY("cuMemcpyHtoDAsync_v2", to_device),
        ENTRY("cuMemcpyDtoHAsync_v2", to_host),
        ENTRY("cuGetErrorString", cuda_error),
    };
    TN_TRY(open_library("libcuda.so.1", driver, sizeof driver / sizeof *driver, l, &l->driver));
    return open_library("libnccl.so.2", nccl, sizeof nccl / sizeof *nccl, l, &l->nccl);
}

tn_status nccl_check(const nccl_library *l, int result, const char *what) {
    if (result == NCCL_OK) return TN_OK;
    return tn_fail(TN_E_DEVICE_LOST, "%s: %s (%d)", what, l->error_text(result), result);
}
tn_status nccl_check_cuda(const nccl_library *l, int result, const char *what) {
    const char *text = NULL;
    if (result == CUDA_OK) return TN_OK;
    if (l->cuda_error(result, &text) != CUDA_OK || !text) text = "unknown error";
    return tn_fail(TN_E_DEVICE_LOST, "%s: %s (%d)", what, text, result);
}

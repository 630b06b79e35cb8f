/* What is used of libnccl.so.2 and of the CUDA driver, found at run time: there is no dependency at build time. */
#ifndef TN_NET_NCCL_LIBRARY_H
#define TN_NET_NCCL_LIBRARY_H

#include "tenon/base.h"

typedef struct nccl_id {
    char bytes[128];
} nccl_id;
typedef void *nccl_comm;
typedef void *cuda_stream;
typedef unsigned long long cuda_address;

/* Codes of both interfaces. */
enum { NCCL_OK = 0, NCCL_FLOAT32 = 7, NCCL_SUM = 0, CUDA_OK = 0, CUDA_NOT_READY = 600 };

typedef struct nccl_library {
    void *nccl, *driver; /* of dlopen */
    int (*get_unique_id)(nccl_id *);
    int (*init_rank)(nccl_comm *, int n_ranks, nccl_id, int rank);
    int (*all_reduce)(const void *in, void *out, size_t n, int type, int op, nccl_comm, cuda_stream);
    int (*async_error)(nccl_comm, int *result);
    int (*abort)(nccl_comm);
    int (*destroy)(nccl_comm);
    const char *(*error_text)(int result);

    int (*init)(unsigned flags);
    int (*device_count)(int *);
    int (*device)(int *, int index);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*set_context)(void *context);
    int (*new_stream)(cuda_stream *, unsigned flags);
    int (*free_stream)(cuda_stream);
    int (*query_stream)(cuda_stream);
    int (*allocate)(cuda_address *, size_t);
    int (*free_memory)(cuda_address);
    int (*to_device)(cuda_address to, const void *from, size_t, cuda_stream);
    int (*to_host)(void *to, cuda_address from, size_t, cuda_stream);
    int (*cuda_error)(int result, const char **text);
} nccl_library;

/* TN_E_NOT_FOUND: one of the libraries, or a function of it, is not there. They stay loaded. */
tn_status nccl_library_open(nccl_library *library);
tn_status nccl_check(const nccl_library *library, int result, const char *what);
tn_status nccl_check_cuda(const nccl_library *library, int result, const char *what);

#endif

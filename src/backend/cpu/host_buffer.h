/* Buffers in plain host memory, allocated or wrapped. */
#ifndef TN_CPU_HOST_BUFFER_H
#define TN_CPU_HOST_BUFFER_H

#include "tenon/backend_impl.h"

enum {
    TN__HOST_ALIGN = 64,  /* a cache line, and the widest vector */
    TN__WRAPPED_ALIGN = 8 /* the minimum alignment of tensors in a mapped GGUF file */
};

extern const tn_buffer_type_ops tn__host_buffer_type_ops;
void tn__host_buffer_free(tn_buffer *buffer); /* of buffers that own their memory */
tn_status tn__host_buffer_wrap(tn_device *device, void *memory, size_t size, tn_buffer **buffer);
void tn__host_buffer_init(tn_device *device); /* once, before any buffer is made */
tn_status tn__host_memory(size_t *free_bytes, size_t *total_bytes);

#endif

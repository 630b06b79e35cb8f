/* Buffers in plain host memory, allocated or wrapped. */
#include "backend/cpu/host_buffer.h"

#include "backend/registry.h"
#include "base/checked.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

static atomic_size_t allocated_bytes;
size_t tn__cpu_buffer_bytes(void) { return atomic_load(&allocated_bytes); }

static void free_wrapper(tn_buffer *buffer) { tn_free(buffer); }
void tn__host_buffer_free(tn_buffer *buffer) {
    atomic_fetch_sub(&allocated_bytes, buffer->size);
    tn_free(buffer->base);
    tn_free(buffer);
}
static tn_status cpu_buffer_set(tn_buffer *buffer, tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    memcpy((char *)tensor->data + offset, data, size);
    return TN_OK;
}
static tn_status cpu_buffer_get(tn_buffer *buffer, const tn_tensor *tensor, void *data, size_t offset, size_t size) {
    memcpy(data, (const char *)tensor->data + offset, size);
    return TN_OK;
}
static tn_status cpu_buffer_fill(tn_buffer *buffer, tn_tensor *tensor, uint8_t value, size_t offset, size_t size) {
    memset((char *)tensor->data + offset, value, size);
    return TN_OK;
}
static tn_status copy(tn_buffer *buffer, const tn_tensor *from, tn_tensor *to) {
    if (from->buffer && !from->buffer->type->is_host) return TN_E_UNSUPPORTED;
    memmove(to->data, from->data, tn_nbytes(from));
    return TN_OK;
}
static tn_status cpu_buffer_clear(tn_buffer *buffer, uint8_t value) {
    memset(buffer->base, value, buffer->size);
    return TN_OK;
}

#define DATA_OPS                                                                                                     \
    .set = cpu_buffer_set, .get = cpu_buffer_get, .fill = cpu_buffer_fill, .copy = copy, .clear = cpu_buffer_clear
static const tn_buffer_ops owner_ops = {.free = tn__host_buffer_free, DATA_OPS};
static const tn_buffer_ops wrapper_ops = {.free = free_wrapper, DATA_OPS};

/* Large buffers request huge pages. A request beyond the free memory fails here, instead of by the kernel's
 * out-of-memory killer halfway through a load. */
enum { LARGE = 2 << 20, WORTH_ASKING = 64 << 20 };

static tn_status cpu_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    size_t available, total;
    if (size >= WORTH_ASKING && tn__host_memory(&available, &total) == TN_OK && size > available)
        return tn_fail(TN_E_NOMEM, "%s: %zu bytes needed, %zu free of %zu", type->device->name, size, available,
                       total);
    tn_buffer *buffer = tn_calloc(1, sizeof *buffer);
    if (!buffer) return TN_E_NOMEM;
    *buffer = (tn_buffer){.ops = &owner_ops, .type = type, .size = size};
    buffer->base = tn_malloc_aligned(size, size >= LARGE ? LARGE : type->alignment);
    if (!buffer->base) {
        tn_free(buffer);
        return tn_fail_more(TN_E_NOMEM, " (buffer on %s)", type->device->name);
    }
#ifdef MADV_HUGEPAGE
    if (size >= LARGE) (void)madvise(buffer->base, size & ~(size_t)(LARGE - 1), MADV_HUGEPAGE);
#endif
    atomic_fetch_add(&allocated_bytes, size);
    *out = buffer;
    return TN_OK;
}

const tn_buffer_type_ops tn__host_buffer_type_ops = {.buffer_new = cpu_buffer_new};

/* A separate type, because the caller's memory has a smaller alignment. */
static tn_buffer_type wrapped_type = {
    .ops = &tn__host_buffer_type_ops,
    .name = "cpu-mapped",
    .alignment = TN__WRAPPED_ALIGN,
    .max_size = PTRDIFF_MAX - 4096,
    .is_host = true,
};

void tn__host_buffer_init(tn_device *device) { wrapped_type.device = device; }

tn_status tn__host_buffer_wrap(tn_device *device, void *memory, size_t size, tn_buffer **out) {
    tn_buffer *buffer = tn_calloc(1, sizeof *buffer);
    if (!buffer) return TN_E_NOMEM;
    *buffer = (tn_buffer){.ops = &wrapper_ops, .type = &wrapped_type, .base = memory, .size = size};
    *out = buffer;
    return TN_OK;
}

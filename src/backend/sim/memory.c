/* Memory of simulated devices: the same pages mapped twice, once without access (the address that the host sees) and
 * once with access for the device. */
#include "backend/sim/sim.h"

#include "backend/registry.h"
#include "base/checked.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Bytes ---- */

/* What is free of the whole memory. The process's buffers in host memory are part of unified memory. */
static size_t free_of_memory(const tn__sim_memory *memory, size_t used) {
    size_t host = memory->device.caps.unified ? tn__cpu_buffer_bytes() : 0;
    return used < memory->size && host < memory->size - used ? memory->size - used - host : 0;
}
size_t tn__sim_free_bytes(const tn__sim *sim) {
    size_t own = atomic_load(&sim->used), whole = free_of_memory(sim->memory, atomic_load(&sim->memory->used));
    return TN__MIN(own < sim->limit ? sim->limit - own : 0, whole);
}

static tn_status domain_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    const tn__sim_memory *memory = device->impl;
    *free_bytes = free_of_memory(memory, atomic_load(&memory->used));
    *total_bytes = memory->size;
    return TN_OK;
}
static const tn_device_ops domain_ops = {.memory = domain_memory};

tn_status tn__sim_memory_open(tn__sim *sim) {
    const tn_device *other = sim->device.card[0] ? tn__registry_first_of_card(sim->device.card) : NULL;
    if (other) {
        const tn__sim *shared = other->buffer_type->ops == &tn__sim_type_ops ? other->impl : NULL;
        if (!shared || shared->size != sim->size || shared->device.caps.unified != sim->device.caps.unified)
            return tn_fail(TN_E_INVALID, "card=%s: %s has that card, and another size or kind of memory",
                           sim->device.card, other->name);
        sim->memory = shared->memory;
    } else {
        sim->memory = tn_calloc(1, sizeof *sim->memory);
        if (!sim->memory) return TN_E_NOMEM;
        sim->memory->size = sim->size;
        sim->memory->device = (tn_device){.ops = &domain_ops,
                                          .name = "simulated host",
                                          .kind = TN_DEVICE_CPU,
                                          .caps = {.unified = sim->device.caps.unified},
                                          .impl = sim->memory};
    }
    atomic_fetch_add(&sim->memory->users, 1);
    if (sim->device.caps.unified && !sim->silent) sim->device.domain = &sim->memory->device;
    return TN_OK;
}
void tn__sim_memory_close(tn__sim *sim) {
    if (atomic_fetch_sub(&sim->memory->users, 1) == 1) tn_free(sim->memory);
}

void tn__sim_resize(tn__sim *sim, size_t size, size_t max_alloc) {
    sim->size = sim->limit = sim->memory->size = size;
    sim->type.max_size = max_alloc && max_alloc < size ? max_alloc : size;
}

static void release_sim_bytes(tn__sim *sim, size_t size) {
    atomic_fetch_sub(&sim->used, size);
    atomic_fetch_sub(&sim->memory->used, size);
}
static tn_status take_sim_bytes(tn__sim *sim, size_t size) {
    size_t own = atomic_fetch_add(&sim->used, size), all = atomic_fetch_add(&sim->memory->used, size);
    size_t whole = free_of_memory(sim->memory, all), free_bytes = own < sim->limit ? sim->limit - own : 0;
    if (whole < free_bytes) free_bytes = whole;
    if (size <= free_bytes && !tn__sim_fault(&sim->fail_alloc)) return TN_OK;
    release_sim_bytes(sim, size);
    return tn_fail(TN_E_DEVICE_MEMORY, "%s is out of memory: %zu bytes needed, %zu of %zu free", sim->device.name,
                   size, free_bytes, sim->limit);
}

/* ---- Buffers ---- */

char *tn__sim_inner(const tn_buffer *buffer, const void *address) {
    const tn__sim_buffer *b = buffer->impl;
    return b->inner + ((const char *)address - (const char *)buffer->base);
}

static tn__sim *sim_of(const tn_buffer *buffer) { return buffer->type->impl; }

static void sim_buffer_free(tn_buffer *buffer) {
    tn__sim_buffer *b = buffer->impl;
    if (b->mapped) {
        munmap(buffer->base, b->mapped);
        if (b->inner) munmap(b->inner, b->mapped);
    }
    if (!b->wrapped) release_sim_bytes(sim_of(buffer), buffer->size);
    tn_free(b);
}

/* The device's address of a range of the tensor, or NULL with an error message. */
static char *inner_range(tn_buffer *buffer, const tn_tensor *tensor, size_t offset) {
    tn__sim_buffer *b = buffer->impl;
    if (!b->inner) {
        tn_fail(TN_E_UNSUPPORTED, "%s has no storage: it is for planning only", buffer->type->name);
        return NULL;
    }
    return tn__sim_inner(buffer, (const char *)tensor->data + offset);
}

static tn_status before_copy(tn_buffer *buffer, size_t size) {
    tn__sim *sim = sim_of(buffer);
    TN_TRY(tn__sim_check(sim));
    if (tn__sim_fault(&sim->fail_copy))
        return tn_fail(TN_E_DEVICE, "%s: a copy of %zu bytes failed", sim->device.name, size);
    tn__sim_delay(sim, size);
    return TN_OK;
}

static tn_status sim_set(tn_buffer *buffer, tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    if (!size) return TN_OK;
    if (sim_of(buffer)->memory_only) return TN_OK; /* planning may "load" weights */
    TN_TRY(before_copy(buffer, size));
    char *to = inner_range(buffer, tensor, offset);
    if (!to) return TN_E_UNSUPPORTED;
    memcpy(to, data, size);
    return TN_OK;
}

static tn_status sim_get(tn_buffer *buffer, const tn_tensor *tensor, void *data, size_t offset, size_t size) {
    if (!size) return TN_OK;
    TN_TRY(before_copy(buffer, size));
    const char *from = inner_range(buffer, tensor, offset);
    if (!from) return TN_E_UNSUPPORTED;
    memcpy(data, from, size);
    return TN_OK;
}

static tn_status sim_fill(tn_buffer *buffer, tn_tensor *tensor, uint8_t value, size_t offset, size_t size) {
    if (!size) return TN_OK;
    if (sim_of(buffer)->memory_only) return TN_OK;
    TN_TRY(tn__sim_check(sim_of(buffer)));
    char *to = inner_range(buffer, tensor, offset);
    if (!to) return TN_E_UNSUPPORTED;
    memset(to, value, size);
    return TN_OK;
}

static tn_status sim_clear(tn_buffer *buffer, uint8_t value) {
    tn__sim_buffer *b = buffer->impl;
    TN_TRY(tn__sim_check(sim_of(buffer)));
    if (b->inner) memset(b->inner, value, buffer->size);
    return TN_OK;
}

/* Planning does not need the contents of weights, so they are not read. */
static tn_status load_nothing(tn_buffer *buffer, const tn_tensor_source *sources, size_t n) { return TN_OK; }

#define DATA_OPS .free = sim_buffer_free, .set = sim_set, .get = sim_get, .fill = sim_fill, .clear = sim_clear
static const tn_buffer_ops buffer_ops = {DATA_OPS};
static const tn_buffer_ops plan_ops = {DATA_OPS, .load = load_nothing};

/* Maps pages for `size` bytes twice: visible to the host, and accessible to the device. */
static tn_status map_pages(tn__sim_buffer *b, size_t size, bool memory_only) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes;
    if (!tn__align_up_checked(size ? size : 1, page, &bytes))
        return tn_fail(TN_E_OVERFLOW, "%zu bytes overflow", size);
    int file = -1;
    if (!memory_only) {
        file = memfd_create("tenon-sim", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)bytes) != 0) goto failed;
        b->inner = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (b->inner == MAP_FAILED) {
            b->inner = NULL;
            goto failed;
        }
    }
    void *visible =
        mmap(NULL, bytes, PROT_NONE, memory_only ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, file, 0);
    if (visible == MAP_FAILED) {
        if (b->inner) munmap(b->inner, bytes);
        goto failed;
    }
    if (file >= 0) close(file);
    b->base.base = visible;
    b->mapped = bytes;
    return TN_OK;
failed:
    if (file >= 0) close(file);
    return tn_fail(TN_E_NOMEM, "the host has no room for %zu bytes of simulated memory", size);
}

static tn_status sim_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **buffer) {
    tn__sim *sim = type->impl;
    TN_TRY(tn__sim_check(sim));
    if (size > type->max_size)
        return tn_fail(TN_E_DEVICE_MEMORY, "%s: %zu bytes requested, but a single allocation has at most %zu",
                       sim->device.name, size, type->max_size);
    tn__sim_buffer *b = tn_calloc(1, sizeof *b);
    if (!b) return TN_E_NOMEM;
    tn_status status = take_sim_bytes(sim, size);
    if (status == TN_OK && (status = map_pages(b, size, sim->memory_only)) != TN_OK) release_sim_bytes(sim, size);
    if (status != TN_OK) {
        tn_free(b);
        return status;
    }
    b->base = (tn_buffer){.ops = sim->memory_only ? &plan_ops : &buffer_ops,
                          .type = type,
                          .base = b->base.base,
                          .size = size,
                          .impl = b};
    *buffer = &b->base;
    return TN_OK;
}
const tn_buffer_type_ops tn__sim_type_ops = {.buffer_new = sim_buffer_new};

/* ---- The caller's memory ---- */

static tn_status wrapped_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **buffer) {
    return tn_fail(TN_E_UNSUPPORTED, "%s is memory that the caller provides; %zu bytes of it cannot be allocated",
                   type->name, size);
}
const tn_buffer_type_ops tn__sim_wrapped_type_ops = {.buffer_new = wrapped_buffer_new};

tn_status tn__sim_wrap_host(tn_device *device, void *memory, size_t size, tn_buffer **buffer) {
    tn__sim *sim = device->impl;
    if (!device->caps.wrap_host)
        return tn_fail(TN_E_UNSUPPORTED, "%s cannot compute on memory the caller mapped: it is not unified (uma=1)",
                       device->name);
    tn__sim_buffer *b = tn_calloc(1, sizeof *b);
    if (!b) return TN_E_NOMEM;
    b->base = (tn_buffer){.ops = &buffer_ops, .type = &sim->wrapped_type, .base = memory, .size = size, .impl = b};
    b->inner = memory;
    b->wrapped = true;
    *buffer = &b->base;
    return TN_OK;
}

// Described devices: a GPU without hardware, for which programs are planned and compiled but not run.
//
// Its buffers are ranges of addresses without memory. Writing to them succeeds and stores nothing, so that a session
// can be set up as on a GPU; reading from them and running programs fail with TN_E_UNSUPPORTED.
#include "backend/cuda/compile.cuh"

#include <stdlib.h>

struct described_device {
    tn_device device;
    tn_buffer_type type;
    device_description description;
    std::atomic<uintptr_t> next_address;
};
static described_device *described(const tn_device *device) { return (described_device *)device->impl; }

static tn_status refuse_described(const char *what, const tn_device *device) {
    return tn_fail(TN_E_UNSUPPORTED,
                   "%s is a description without hardware: it can be planned and compiled for, not %s", device->name,
                   what);
}

// ---- Buffers ----

// Allocations begin at multiples of this, as the driver's do.
enum : uintptr_t { FIRST_ADDRESS = (uintptr_t)1 << 44, ALLOCATION_STEP = 2 << 20 };

static void described_buffer_free(tn_buffer *buffer) { tn_free(buffer); }
static tn_status described_buffer_set(tn_buffer *, tn_tensor *, const void *, size_t, size_t) { return TN_OK; }
static tn_status described_buffer_get(tn_buffer *buffer, const tn_tensor *, void *, size_t, size_t) {
    return refuse_described("read from", buffer->type->device);
}
static tn_status described_buffer_fill(tn_buffer *, tn_tensor *, uint8_t, size_t, size_t) { return TN_OK; }
static tn_status described_buffer_copy(tn_buffer *, const tn_tensor *, tn_tensor *) { return TN_OK; }
static tn_status described_buffer_clear(tn_buffer *, uint8_t) { return TN_OK; }
static tn_status described_buffer_load(tn_buffer *, const tn_tensor_source *, size_t) { return TN_OK; }

static const tn_buffer_ops described_buffer_ops = {
    described_buffer_free, cuda_init_tensor,      described_buffer_set,   described_buffer_get,
    described_buffer_fill, described_buffer_copy, described_buffer_clear, described_buffer_load};

static tn_status described_buffer_at(tn_buffer_type *type, void *base, size_t size, tn_buffer **out) {
    tn_buffer *buffer = (tn_buffer *)tn_calloc(1, sizeof *buffer);
    if (!buffer) return TN_E_NOMEM;
    buffer->ops = &described_buffer_ops;
    buffer->type = type;
    buffer->base = base;
    buffer->size = size;
    *out = buffer;
    return TN_OK;
}
static tn_status described_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    uintptr_t step = (size / ALLOCATION_STEP + 1) * ALLOCATION_STEP;
    return described_buffer_at(type, (void *)described(type->device)->next_address.fetch_add(step), size, out);
}
static tn_status described_wrap_host(tn_device *device, void *memory, size_t size, tn_buffer **out) {
    if (!device->caps.wrap_host)
        return tn_fail(TN_E_UNSUPPORTED, "%s has memory of its own: host memory must be copied", device->name);
    return described_buffer_at(device->buffer_type, memory, size, out);
}
static size_t described_load_bytes(const tn_buffer_type *) { return upload_staging_bytes(); }
static const tn_buffer_type_ops described_type_ops = {described_buffer_new, cuda_tensor_size, NULL,
                                                      described_load_bytes};

// ---- Programs ----

struct described_program {
    tn_program base;
    tn_tensor **nodes;
    compiler *source;
};

static void described_program_free(tn_program *program) {
    described_program *p = (described_program *)program;
    compiler_free(p->source);
    tn_free(p->nodes);
    tn_free(p);
}
static tn_status described_program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes,
                                       tn_program **program) {
    described_program *p = (described_program *)tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->base.stream = stream;
    p->nodes = (tn_tensor **)tn_malloc(n_nodes * sizeof *p->nodes);
    if (p->nodes && n_nodes) memcpy(p->nodes, nodes, n_nodes * sizeof *p->nodes);
    tn_status status =
        p->nodes ? compiler_new(p->nodes, n_nodes, &described(stream->device)->description, &p->source) : TN_E_NOMEM;
    if (status != TN_OK) {
        described_program_free(&p->base);
        return status;
    }
    p->base.scratch = compiler_scratch(p->source).total;
    *program = &p->base;
    return TN_OK;
}
static tn_status described_program_run(tn_program *program, tn_buffer *) {
    return refuse_described("run", program->stream->device);
}
static tn_status described_program_print(tn_program *program, tn_buffer *scratch, FILE *out) {
    described_program *p = (described_program *)program;
    // Addresses that no buffer has: lists show tensors by name, and alignment is all that decisions depend on.
    char *unused = (char *)((uintptr_t)1 << 40);
    compile_params params = {scratch ? (char *)scratch->base : unused, unused, false};
    launch_list list = {};
    tn_status status = compiler_run(p->source, params, &list);
    if (status == TN_OK) status = launch_list_print(list, p->nodes, out);
    launch_list_free(&list);
    return status;
}

static void described_stream_free(tn_stream *stream) { tn_free(stream); }
static const tn_stream_ops described_stream_ops = {
    described_stream_free,
    NULL,
    NULL,
    NULL,
    NULL,
    described_program_new,
    described_program_free,
    NULL,
    described_program_run,
    described_program_print,
};
static tn_status described_stream_new(tn_device *device, const tn_stream_params *, tn_stream **stream) {
    tn_stream *s = (tn_stream *)tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->ops = &described_stream_ops;
    s->device = device;
    *stream = s;
    return TN_OK;
}

// ---- Devices ----

static tn_status described_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = *total_bytes = described(device)->description.memory_bytes;
    return TN_OK;
}
static bool described_supports_op(tn_device *, const tn_tensor *node, char *reason, size_t reason_size) {
    return node_supported(node, reason, reason_size);
}
static bool described_supports_type(tn_device *device, const tn_buffer_type *type) {
    return type == device->buffer_type;
}
static void described_device_free(tn_device *device) { tn_free(described(device)); }
static const tn_device_ops described_device_ops = {
    described_memory,
    described_supports_op,
    described_supports_type,
    cuda_wants_op,
    NULL,
    NULL,
    described_wrap_host,
    described_stream_new,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    described_device_free,
};

// A number names a real device, whose description is taken without using its memory.
static tn_status describe(const char *spec, device_description *d, char *name, size_t name_size) {
    char *end;
    long ordinal = strtol(spec, &end, 10);
    if (end == spec || *end || ordinal < 0) return description_parse(spec, d, name, name_size);
    if (!description_of_device((int)ordinal, d))
        return tn_fail(TN_E_INVALID, "cuda:%s: there is no CUDA device %ld", spec, ordinal);
    snprintf(name, name_size, "cuda:%ld", ordinal);
    return TN_OK;
}
tn_status described_device_new(const char *spec, tn_device **device) {
    described_device *d = (described_device *)tn_calloc(1, sizeof *d);
    if (!d) return TN_E_NOMEM;
    tn_status status = describe(spec, &d->description, d->device.name, sizeof d->device.name);
    if (status != TN_OK) {
        tn_free(d);
        return status;
    }
    d->next_address = FIRST_ADDRESS;
    d->device.ops = &described_device_ops;
    d->device.caps.described = true;
    d->device.impl = d;
    d->type.ops = &described_type_ops;
    cuda_device_names(&d->device, &d->type, d->description);
    size_t used = strlen(d->device.description);
    snprintf(d->device.description + used, sizeof d->device.description - used, ", described by %s", spec);
    *device = &d->device;
    return TN_OK;
}

/* The interface that a backend implements (backend.h is the interface for callers). The backend fills the structures
 * and the library reads them.
 *
 * Function pointers marked optional may be NULL; the library then uses a fallback (no events, synchronous copies…).
 */
#ifndef TENON_BACKEND_IMPL_H
#define TENON_BACKEND_IMPL_H

#include "tenon/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a structure below changes. A module with another number is not loaded. */
enum { TN_BACKEND_INTERFACE = 6 };

typedef struct tn_device_ops {
    tn_status (*memory)(tn_device *device, size_t *free_bytes, size_t *total_bytes);
    bool (*supports_op)(tn_device *device, const tn_tensor *node, char *reason, size_t reason_size);
    bool (*supports_buffer_type)(tn_device *device, const tn_buffer_type *type);
    bool (*wants_op)(tn_device *device, const tn_tensor *node);            /* optional: never */
    uint32_t (*inplace_mask)(tn_device *device, const tn_tensor *node);    /* optional: the op table's */
    tn_buffer_type *(*extra_buffer_type)(tn_device *device, size_t index); /* optional */
    tn_status (*wrap_host)(tn_device *device, void *memory, size_t size, tn_buffer **buffer); /* optional */
    tn_status (*stream_new)(tn_device *device, const tn_stream_params *params, tn_stream **stream);
    tn_status (*event_new)(tn_device *device, tn_event **event); /* optional, with the four below */
    void (*event_free)(tn_event *event);
    tn_status (*event_record)(tn_event *event, tn_stream *stream);
    tn_status (*event_wait)(tn_event *event, tn_stream *stream);
    tn_status (*event_synchronize)(tn_event *event);
    void (*free)(tn_device *device); /* optional: removed from the registry or process end */
} tn_device_ops;

struct tn_device {
    const tn_device_ops *ops;
    char name[32];
    char description[128];
    tn_device_kind kind;
    tn_device_caps caps;
    tn_buffer_type *buffer_type;
    tn_buffer_type *host_buffer_type; /* NULL if none */
    void *impl;
    /* Optional: the card that the memory is on, such as its PCI bus id. Devices with the same one share a domain. */
    char card[40];
    tn_device *domain;     /* optional: overrides `card` and caps.unified */
    tn_device_rates rates; /* optional: of a device that cannot be measured */
};

typedef struct tn_buffer_type_ops {
    tn_status (*buffer_new)(tn_buffer_type *type, size_t size, tn_buffer **buffer);
    size_t (*tensor_size)(tn_buffer_type *type, const tn_tensor *tensor);        /* optional: tn_nbytes */
    bool (*wants)(tn_buffer_type *type, const tn_tensor *weights, int64_t rows); /* optional: no preference, false */
    size_t (*load_bytes)(const tn_buffer_type *type);                            /* optional: 0 */
} tn_buffer_type_ops;

struct tn_buffer_type {
    const tn_buffer_type_ops *ops;
    char name[32];
    tn_device *device;
    size_t alignment; /* power of two */
    size_t max_size;
    bool is_host;
    void *impl;
};

typedef struct tn_buffer_ops {
    void (*free)(tn_buffer *buffer);
    tn_status (*init_tensor)(tn_buffer *buffer, tn_tensor *tensor); /* optional: after binding */
    tn_status (*set)(tn_buffer *buffer, tn_tensor *tensor, const void *data, size_t offset, size_t size);
    tn_status (*get)(tn_buffer *buffer, const tn_tensor *tensor, void *data, size_t offset, size_t size);
    tn_status (*fill)(tn_buffer *buffer, tn_tensor *tensor, uint8_t value, size_t offset, size_t size);
    /* optional: direct copy into `to` (which lives in this buffer); TN_E_UNSUPPORTED sends it through the host */
    tn_status (*copy)(tn_buffer *buffer, const tn_tensor *from, tn_tensor *to);
    tn_status (*clear)(tn_buffer *buffer, uint8_t value);
    /* optional: loads whole tensors of this buffer, none of them empty, as tn_tensors_load() describes, for memory
     * that the host cannot write to; without it the data comes in pieces through `set`. Error messages are per
     * thread: the backend copies a message that a reader left on another thread to the caller's. */
    tn_status (*load)(tn_buffer *buffer, const tn_tensor_source *sources, size_t n);
} tn_buffer_ops;

struct tn_buffer {
    const tn_buffer_ops *ops;
    tn_buffer_type *type;
    void *base;
    size_t size;
    tn_buffer_usage usage;
    void *impl;
};

typedef struct tn_stream_ops {
    void (*free)(tn_stream *stream);
    tn_status (*set_async)(tn_stream *stream, tn_tensor *tensor, const void *data, size_t offset,
                           size_t size); /* optional */
    tn_status (*get_async)(tn_stream *stream, const tn_tensor *tensor, void *data, size_t offset,
                           size_t size); /* optional */
    tn_status (*copy_async)(tn_stream *from, tn_stream *to, const tn_tensor *source,
                            tn_tensor *target);  /* optional; TN_E_UNSUPPORTED falls back */
    tn_status (*synchronize)(tn_stream *stream); /* optional: nothing is ever pending */
    tn_status (*program_new)(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes, tn_program **program);
    void (*program_free)(tn_program *program);
    void (*program_moved)(tn_program *program); /* optional */
    tn_status (*program_run)(tn_program *program, tn_buffer *scratch);
    tn_status (*program_print)(tn_program *program, tn_buffer *scratch, FILE *out); /* optional */
    size_t (*own_bytes)(const tn_stream *stream);                                   /* optional: 0 */
} tn_stream_ops;

struct tn_stream {
    const tn_stream_ops *ops;
    tn_device *device;
    void *impl;
};

/* Backends embed this as the first member of their own program and event structures. */
struct tn_program {
    tn_stream *stream;
    size_t scratch; /* bytes */
};
struct tn_event {
    tn_device *device;
};

/* Adds a device to the registry, or removes it. The registry does not own the memory of an added device. */
TN_API tn_status tn_registry_add(tn_device *device) TN_MUST_CHECK;
TN_API void tn_registry_remove(tn_device *device);

/* The entry point of a loadable backend. `devices` are complete when the function returns; a module without a usable
 * device returns TN_OK and zero devices. */
typedef struct tn_backend_module {
    uint32_t interface; /* TN_BACKEND_INTERFACE it was built with */
    const char *name;
    size_t n_devices;
    tn_device *const *devices;
    /* optional: makes a device from a specification "name:spec", given `spec`; tn_device_find adds it to the registry
     */
    tn_status (*describe)(const char *spec, tn_device **device);
} tn_backend_module;
typedef tn_status (*tn_backend_entry_fn)(tn_backend_module *module);
#define TN_BACKEND_ENTRY_NAME "tn_backend_entry"

#ifdef __cplusplus
}
#endif
#endif

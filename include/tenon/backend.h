/* Devices, the memory on them, and the streams of work that run there.
 *
 * A device computes; a buffer type is a kind of memory it can use; a buffer is one allocation of that kind; a stream
 * is a queue of work on a device; a program is a list of nodes prepared for a stream. backend_impl.h is for
 * implementing a backend. */
#ifndef TENON_BACKEND_H
#define TENON_BACKEND_H

#include "tenon/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_device tn_device;
typedef struct tn_buffer_type tn_buffer_type;
typedef struct tn_stream tn_stream;
typedef struct tn_event tn_event;
typedef struct tn_program tn_program;

/* ---- Devices ---- */

typedef enum tn_device_kind { TN_DEVICE_CPU, TN_DEVICE_GPU, TN_DEVICE_IGPU, TN_DEVICE_ACCEL } tn_device_kind;
TN_API const char *tn_device_kind_name(tn_device_kind kind);

typedef struct tn_device_caps {
    bool async;        /* work is queued; results need a synchronize */
    bool events;       /* streams can wait for each other without the host */
    bool host_buffers; /* offers pinned host memory for fast transfers */
    bool wrap_host;    /* can compute on memory the caller mapped */
    bool unified;      /* its memory is the host's: the CPU, integrated GPUs */
    bool repeatable;   /* computes ops with TN_FLAG_REPEATABLE so that a row's bits do not depend on the batch */
    bool described;    /* without hardware: planned and compiled for, never run; its memory keeps no data */
} tn_device_caps;

/* The registry: built-in devices first, then those of loadable backends in load order, then added ones. The CPU is
 * always there. Safe from any thread; devices live until the process ends (added ones: until removed). */
TN_API size_t tn_device_count(void);
TN_API tn_device *tn_device_get(size_t index);
/* By name ("cpu", "cuda0", "sim0") or by specification, which makes a device: "sim:8G,align=256" simulates one;
 * "cuda:h200" or "cuda:sm=90,sms=132" describes a GPU for which programs can be planned and compiled, but not run;
 * "cuda:0" describes the first real one. */
TN_API tn_status tn_device_find(const char *name, tn_device **device) TN_MUST_CHECK;
/* Loads a backend's shared object. The standard folders (next to the library, TENON_BACKEND_PATH) are searched once,
 * at the first use of the registry; files there that cannot be loaded are skipped with a log line. */
TN_API tn_status tn_registry_load(const char *path) TN_MUST_CHECK;

TN_API const char *tn_device_name(const tn_device *device);
TN_API const char *tn_device_description(const tn_device *device);
TN_API tn_device_kind tn_device_get_kind(const tn_device *device);
TN_API tn_device_caps tn_device_get_caps(const tn_device *device);
/* Free and total bytes of the device. A device that reports neither gets the figures of its domain. */
TN_API tn_status tn_device_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes);
/* The device whose memory this one uses: the first registered device of the same card; the host's CPU for
 * unified memory and for devices that do not report their memory; otherwise itself. The unified memory of a
 * simulated or described device is a domain of its own, because it stands for the host's memory as well. */
TN_API tn_device *tn_device_domain(tn_device *device);

/* What a device may take when it is used together with others: at most its own free bytes, and all devices of a
 * domain together at most the domain's. */
typedef struct tn_device_budget {
    size_t domain;      /* index of the first device of the list with the same domain */
    size_t free, total; /* of the device; see tn_device_memory */
    size_t domain_free, domain_total;
    bool reported; /* false: the device does not report its memory, the figures are its domain's */
} tn_device_budget;
/* The budgets of devices that are used together, at this moment. The host shares the domain of all unified devices in
 * the list. With a simulated or described one the domain has that one's size, and the host's figures are the
 * domain's.
 */
TN_API tn_status tn_device_budgets(tn_device *const *devices, size_t n, tn_device_budget *budgets) TN_MUST_CHECK;

/* Rates for predictions. 0: not given. */
typedef struct tn_device_rates {
    double read;         /* bytes per second from its memory */
    double f32, f16, i8; /* operations per second in matmuls of that type; a multiply-add is two */
    double link;         /* bytes per second to and from the host */
    double launch;       /* seconds per launch */
} tn_device_rates;
/* The rates in a device's description, as a simulated one has; false if there are none and they must be measured. */
TN_API bool tn_device_given_rates(tn_device *device, tn_device_rates *rates);
/* Cards that are simulated by name ("sim:rtx4090"), with the figures of their data sheets. */
typedef struct tn_device_preset {
    const char *name, *title;
    size_t memory, limit; /* bytes; limit: of them for the GPU, 0 for all */
    bool unified;
    tn_device_rates rates;
} tn_device_preset;
TN_API const tn_device_preset *tn_device_presets(size_t *n);
/* Whether the device can run this node; if not, `reason` (may be NULL) says why. */
TN_API bool tn_device_supports_op(tn_device *device, const tn_tensor *node, char *reason, size_t reason_size);
TN_API bool tn_device_supports_buffer_type(tn_device *device, const tn_buffer_type *type);
/* Whether it is faster to copy this node's weights from the host and run it on the device. */
TN_API bool tn_device_wants_op(tn_device *device, const tn_tensor *node);
/* Bit mask of the sources whose memory the result of this node may reuse: the op table's mask plus those of the
 * device. */
TN_API uint32_t tn_device_inplace_mask(tn_device *device, const tn_tensor *node);
TN_API tn_buffer_type *tn_device_buffer_type(tn_device *device);      /* its own memory */
TN_API tn_buffer_type *tn_device_host_buffer_type(tn_device *device); /* pinned host memory; NULL if none */
/* Additional memory types for weights, best first (e.g. a repacked layout); NULL past the end. */
TN_API tn_buffer_type *tn_device_extra_buffer_type(tn_device *device, size_t index);
TN_API tn_status tn_device_wrap_host(tn_device *device, void *memory, size_t size, tn_buffer **buffer) TN_MUST_CHECK;

/* ---- Buffers ---- */

typedef enum tn_buffer_usage { TN_USAGE_ANY, TN_USAGE_WEIGHTS, TN_USAGE_COMPUTE } tn_buffer_usage;

TN_API const char *tn_buffer_type_name(const tn_buffer_type *type);
TN_API tn_device *tn_buffer_type_device(const tn_buffer_type *type);
TN_API size_t tn_buffer_type_alignment(const tn_buffer_type *type);
TN_API size_t tn_buffer_type_max_size(const tn_buffer_type *type); /* largest single allocation */
TN_API size_t tn_buffer_type_tensor_size(tn_buffer_type *type, const tn_tensor *tensor);
/* For the extra types of a device: whether these weights, read by mul_mat and mul_mat_id only, are faster there;
 * `rows` is the typical number of activation rows that they are multiplied with, 0: any number, in ops flagged
 * TN_FLAG_REPEATABLE. */
TN_API bool tn_buffer_type_wants(tn_buffer_type *type, const tn_tensor *weights, int64_t rows);
TN_API bool tn_buffer_type_is_host(const tn_buffer_type *type); /* plain pointers the host may follow */
/* Pinned host bytes that uploads into this memory go through. The device allocates them with its first buffer of
 * this type, not at the first upload, and frees them when it has neither buffers nor streams. 0: uploads need none.
 */
TN_API size_t tn_buffer_type_load_bytes(const tn_buffer_type *type);

/* Zero bytes is legal. Fails with TN_E_DEVICE_MEMORY naming the device, needed and free bytes. */
TN_API tn_status tn_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **buffer) TN_MUST_CHECK;
TN_API void tn_buffer_free(tn_buffer *buffer);
TN_API size_t tn_buffer_size(const tn_buffer *buffer);
TN_API void *tn_buffer_base(const tn_buffer *buffer); /* an address on its device */
TN_API tn_buffer_type *tn_buffer_get_type(const tn_buffer *buffer);
TN_API tn_buffer_usage tn_buffer_get_usage(const tn_buffer *buffer);
TN_API void tn_buffer_set_usage(tn_buffer *buffer, tn_buffer_usage usage);

/* Where a tensor will live: known before its memory exists. */
struct tn_location {
    tn_buffer_type *type;
    tn_buffer_usage usage;
};
/* The memory that a tensor, or the root of a view, lives in or is declared to get. NULL: plain host memory, or none
 * is known. Devices ask this, not the tensor's buffer, so that graphs can be planned before weights are loaded. */
TN_API tn_buffer_type *tn_tensor_buffer_type(const tn_tensor *tensor);
TN_API tn_buffer_usage tn_tensor_usage(const tn_tensor *tensor); /* TN_USAGE_ANY where there is no buffer */
TN_API tn_status tn_buffer_clear(tn_buffer *buffer, uint8_t value);
/* Makes the buffer available for other tensors. Unbinds the tensors of `arena` (may be NULL) that are bound to
 * it, including views, and drops the device's data about them; call it once for each further arena. Resets the usage
 * to TN_USAGE_ANY. No memory is released and nothing is written: the contents of tensors bound later are undefined
 * until they are set. Work that uses the buffer must have ended. */
TN_API tn_status tn_buffer_reset(tn_buffer *buffer, tn_arena *arena);

/* Binds the tensor to an offset in the buffer (checked: bounds and alignment). Views: see tn_view_bind. */
TN_API tn_status tn_buffer_bind(tn_buffer *buffer, tn_tensor *tensor, size_t offset) TN_MUST_CHECK;
TN_API tn_status tn_view_bind(tn_tensor *view) TN_MUST_CHECK; /* from its root, which must be bound */

/* ---- Tensor data ---- */

/* Synchronous; bounds-checked against the tensor's storage. Plain host tensors work too. */
TN_API tn_status tn_tensor_set(tn_tensor *tensor, const void *data); /* all tn_nbytes() of it */
TN_API tn_status tn_tensor_get(const tn_tensor *tensor, void *data);
TN_API tn_status tn_tensor_set_at(tn_tensor *tensor, const void *data, size_t offset, size_t size);
TN_API tn_status tn_tensor_get_at(const tn_tensor *tensor, void *data, size_t offset, size_t size);
TN_API tn_status tn_tensor_fill(tn_tensor *tensor, uint8_t value, size_t offset, size_t size);
TN_API tn_status tn_tensor_copy(const tn_tensor *from, tn_tensor *to); /* same layout; across devices if need be */

/* Writes bytes [offset, offset + size) of a tensor's data to `to`. On failure it leaves a message and returns a
 * status. Called from any thread, several at a time, in any order, once for every byte; it must not use the tensor's
 * device. */
typedef tn_status (*tn_read_fn)(void *user, size_t offset, void *to, size_t size);
/* Like tn_tensor_set() with all data that `read` returns, but the data is never in host memory as a whole unless the
 * tensor itself is. If `read` fails, its status is returned and the contents of the tensor are undefined. */
TN_API tn_status tn_tensor_load(tn_tensor *tensor, tn_read_fn read, void *user);

typedef struct tn_tensor_source {
    tn_tensor *tensor;
    tn_read_fn read;
    void *user;
} tn_tensor_source;
/* The same for several tensors, faster than one by one: the threads that read for a device need not wait for each
 * other between tensors of one buffer. After a failure the contents of all of them are undefined. */
TN_API tn_status tn_tensors_load(const tn_tensor_source *sources, size_t n);

/* ---- Streams of work ---- */

typedef struct tn_threadpool tn_threadpool; /* cpu.h */
/* True: stop. Called between nodes or launches, from any thread of the pool. Runs and synchronize then return
 * TN_E_ABORTED; nothing is left queued, and the stream can be used again. */
typedef bool (*tn_abort_fn)(void *user);

typedef struct tn_stream_params {
    int n_threads;          /* CPU: 0 for one per core */
    tn_threadpool *threads; /* CPU: the caller's pool, or NULL for one of its own */
    tn_abort_fn abort;
    void *abort_user;
} tn_stream_params;

TN_API tn_status tn_stream_new(tn_device *device, const tn_stream_params *params, tn_stream **stream) TN_MUST_CHECK;
TN_API void tn_stream_free(tn_stream *stream); /* waits for its work */
TN_API tn_device *tn_stream_device(const tn_stream *stream);
/* Bytes of device memory that the stream allocated when it was created, in addition to all buffers. It allocates no
 * more later. */
TN_API size_t tn_stream_own_bytes(const tn_stream *stream);
TN_API tn_status tn_stream_set_async(tn_stream *stream, tn_tensor *tensor, const void *data, size_t offset,
                                     size_t size);
TN_API tn_status tn_stream_get_async(tn_stream *stream, const tn_tensor *tensor, void *data, size_t offset,
                                     size_t size);
/* Copies between tensors of two streams' devices, after the work queued on `from` and before what is queued later on
 * `to`. */
TN_API tn_status tn_stream_copy_async(tn_stream *from, tn_stream *to, const tn_tensor *source, tn_tensor *target);
TN_API tn_status tn_stream_synchronize(tn_stream *stream);

/* A program is a list of nodes prepared for one stream: thread shares, kernels, launches. It reports how much scratch
 * it needs, and running it allocates no further device memory. Between runs the scratch buffer may hold data that
 * the device needs at the next run, so a scratch buffer must be used for the programs of one stream only. Node
 * addresses are read at the first run, so a program may be made before memory is bound, to learn its scratch size.
 * The nodes must outlive the program. If addresses changed since the last run, call tn_program_moved. A result that
 * only nodes of the same program read need not be stored, unless it is flagged TN_FLAG_OUTPUT or TN_FLAG_KEPT. */
TN_API tn_status tn_program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes,
                                tn_program **program) TN_MUST_CHECK;
TN_API void tn_program_free(tn_program *program);
TN_API size_t tn_program_scratch(const tn_program *program);
TN_API void tn_program_moved(tn_program *program);
/* `scratch`: a buffer of the device's own type with at least tn_program_scratch() bytes (NULL when that is 0). On an
 * asynchronous device this returns once queued. */
TN_API tn_status tn_program_run(tn_program *program, tn_buffer *scratch);
/* Prints what a run would launch, one line each: kernel, grid, block, shared memory, the nodes it computes and their
 * operands by name. All nodes must be bound. TN_E_UNSUPPORTED on devices that run nodes one by one, as the CPU does.
 */
TN_API tn_status tn_program_print(tn_program *program, tn_buffer *scratch, FILE *out);

/* Events order streams of devices that support them. */
TN_API tn_status tn_event_new(tn_device *device, tn_event **event) TN_MUST_CHECK;
TN_API void tn_event_free(tn_event *event);
TN_API tn_status tn_event_record(tn_event *event, tn_stream *stream);
TN_API tn_status tn_event_wait(tn_event *event, tn_stream *stream); /* the stream waits */
TN_API tn_status tn_event_synchronize(tn_event *event);             /* the host waits */

#ifdef __cplusplus
}
#endif
#endif

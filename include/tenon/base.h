/* Status codes, error messages, logging, host-memory hooks, time and version. Included by every other header. */
#ifndef TENON_BASE_H
#define TENON_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && !defined(TN_NO_ATTRIBUTES) /* for generators of bindings that do not read attributes */
#define TN_API __attribute__((visibility("default")))
#define TN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TN_MUST_CHECK __attribute__((warn_unused_result))
#else
#define TN_API
#define TN_PRINTF(fmt, args)
#define TN_MUST_CHECK
#endif

/* ---- Status ---- */

/* The table of status codes: X(NAME, value, "short text"). Values are stable; new codes are added at the end. TN_END
 * is not an error and leaves no message: text generation returns it at the end of a text. */
#define TN_STATUS_TABLE(X)                                                                                           \
    X(OK, 0, "ok")                                                                                                   \
    X(E_INVALID, 1, "invalid argument")                                                                              \
    X(E_SHAPE, 2, "shapes do not match")                                                                             \
    X(E_TYPE, 3, "type not accepted here")                                                                           \
    X(E_NOMEM, 4, "out of host memory")                                                                              \
    X(E_FULL, 5, "capacity exhausted")                                                                               \
    X(E_OVERFLOW, 6, "size overflows")                                                                               \
    X(E_UNSUPPORTED, 7, "not supported")                                                                             \
    X(E_NOT_FOUND, 8, "not found")                                                                                   \
    X(E_EXISTS, 9, "already exists")                                                                                 \
    X(E_IO, 10, "input/output error")                                                                                \
    X(E_FORMAT, 11, "malformed file")                                                                                \
    X(E_SYNTAX, 12, "syntax error")                                                                                  \
    X(E_STATE, 13, "not possible in this state")                                                                     \
    X(E_ABORTED, 14, "aborted by the caller")                                                                        \
    X(E_INFEASIBLE, 15, "no solution exists")                                                                        \
    X(E_UNDECIDED, 16, "undecided within the budget")                                                                \
    X(E_DEVICE, 17, "device error")                                                                                  \
    X(E_DEVICE_MEMORY, 18, "out of device memory")                                                                   \
    X(E_DEVICE_LOST, 19, "device lost")                                                                              \
    X(E_TOO_BIG, 20, "does not fit")                                                                                 \
    X(E_NEED_RESERVE, 21, "a new reservation is needed")                                                             \
    X(E_LIMIT, 22, "a safety limit was reached")                                                                     \
    X(E_CHECKSUM, 23, "checksum mismatch")                                                                           \
    X(E_VERSION, 24, "version not accepted")                                                                         \
    X(E_INTERNAL, 25, "internal inconsistency")                                                                      \
    X(E_NOT_FINITE, 26, "result is not finite")                                                                      \
    X(END, 27, "end of the text")

typedef enum tn_status {
#define TN_X(name, value, text) TN_##name = value,
    TN_STATUS_TABLE(TN_X)
#undef TN_X
} tn_status;

TN_API const char *tn_status_name(tn_status status); /* "TN_E_SHAPE"; "TN_UNKNOWN" for a value outside the table */
TN_API const char *tn_status_text(tn_status status); /* "shapes do not match" */

/* Every call that fails leaves a message with the details (what, where, how many bytes) for the calling thread.
 * tn_error() returns it; it is never NULL and stays valid until the next failing call on this thread. */
TN_API const char *tn_error(void);
TN_API void tn_error_clear(void);

/* Records a message for the calling thread and returns `status`, for use as `return tn_fail(TN_E_SHAPE, "…")`.
 * tn_fail_more() appends to the existing message, to add context. */
TN_API tn_status tn_fail(tn_status status, const char *format, ...) TN_PRINTF(2, 3);
TN_API tn_status tn_fail_more(tn_status status, const char *format, ...) TN_PRINTF(2, 3);

/* Evaluates an expression of type tn_status; unless it is TN_OK, returns it from the enclosing function. */
#define TN_TRY(expr)                                                                                                 \
    do {                                                                                                             \
        tn_status tn_try_status_ = (expr);                                                                           \
        if (tn_try_status_ != TN_OK) return tn_try_status_;                                                          \
    } while (0)

/* The same for functions that clean up at a label: sets `status` and jumps there. */
#define TN_TRY_GOTO(expr, status, label)                                                                             \
    do {                                                                                                             \
        (status) = (expr);                                                                                           \
        if ((status) != TN_OK) goto label;                                                                           \
    } while (0)

/* ---- Log ---- */

typedef enum tn_log_level { TN_LOG_DEBUG, TN_LOG_INFO, TN_LOG_WARN, TN_LOG_ERROR, TN_LOG_OFF } tn_log_level;
typedef void (*tn_log_fn)(void *user, tn_log_level level, const char *text);

/* Sets the log sink (NULL: standard error) and the lowest level it receives. The default level is TN_LOG_WARN, or the
 * value of the environment variable TENON_LOG=debug|info|warn|error|off. Call it at start-up: concurrent logging sees
 * either the old or the new settings. */
TN_API void tn_log_set(tn_log_fn sink, void *user, tn_log_level lowest);
TN_API void tn_log(tn_log_level level, const char *format, ...) TN_PRINTF(2, 3);

/* ---- Host memory ---- */

/* All host allocations of the library use these hooks. `alloc` returns NULL on failure; `align` is a power of two, at
 * least 16. `free` receives a pointer returned by `alloc` and the size that was requested. Install hooks before any
 * other call, from one thread; NULL restores the default. Hooks must be thread-safe. */
typedef struct tn_allocator {
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*free)(void *user, void *pointer, size_t size);
    void *user;
} tn_allocator;
TN_API void tn_set_allocator(const tn_allocator *allocator);

/* Allocation through the hooks, for backends and programs whose memory should be counted with the library's. A size
 * of zero is legal and returns a unique pointer. tn_calloc zeroes the memory and checks count*size for overflow. On
 * failure these functions return NULL and leave a message with the size. */
TN_API void *tn_malloc(size_t size);
TN_API void *tn_calloc(size_t count, size_t size);
TN_API void *tn_realloc(void *pointer, size_t size); /* the old block stays valid on failure */
TN_API void *tn_malloc_aligned(size_t size, size_t align);
TN_API char *tn_strdup(const char *text);
TN_API void tn_free(void *pointer); /* accepts NULL and the results of the five functions above */

/* Counters of allocations through the hooks. Bytes are those requested by callers. */
typedef struct tn_memory_stats {
    uint64_t allocations; /* since start */
    uint64_t live_blocks;
    uint64_t live_bytes;
    uint64_t peak_bytes; /* largest live_bytes since start */
} tn_memory_stats;
TN_API tn_memory_stats tn_memory_get_stats(void);

/* ---- Time and version ---- */

TN_API uint64_t tn_time_ns(void); /* monotonic */

#define TN_VERSION_MAJOR 0
#define TN_VERSION_MINOR 2
#define TN_VERSION_PATCH 0
TN_API const char *tn_version(void); /* "0.2.0" */

#ifdef __cplusplus
}
#endif
#endif

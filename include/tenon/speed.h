/* Predicted speed: the measured peaks of devices, and the predicted time of scheduled graphs.
 *
 * Peaks are measured once by running small graphs of the library's own ops (tn_device_measure), stored by the
 * caller and passed to tn_device_set_speed at the next start; the peaks of a simulated device are part of its
 * description. A prediction walks the schedule of a graph, runs nothing and takes no device memory. docs/speed.md
 * explains the formula. */
#ifndef TENON_SPEED_H
#define TENON_SPEED_H

#include "tenon/sched.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Matmul rates are measured at these numbers of activation rows. */
enum { TN_SPEED_POINTS = 5 };
TN_API int64_t tn_speed_rows(int point); /* 1, 8, 32, 128, 512 */
/* Attention with few rows is measured with these numbers of query heads for each key/value head. */
enum { TN_SPEED_GROUPS = 3 };
TN_API int64_t tn_speed_group(int point); /* 1, 4, 8 */

/* Kinds of nodes by their fixed cost, in addition to bytes and operations. */
typedef enum tn_launch_kind {
    TN_LAUNCH_DECODE,  /* a node of a graph with up to 8 rows */
    TN_LAUNCH_EXPERTS, /* the same, in a graph with experts */
    TN_LAUNCH_PREFILL, /* a node of a graph with more rows */
    TN_LAUNCH_KINDS
} tn_launch_kind;

/* Peaks of a device. Rates are per second; 0: not measured. A multiply-add is two operations. */
typedef struct tn_device_speed {
    double read; /* bytes from its memory: the best of several patterns, an upper bound */
    /* CPU: bytes from plain pages, as those of a mapped file; buffers have large pages. 0: like `read`. */
    double read_mapped;
    /* Bytes that ops other than matmul and attention read and write, on tensors the size of a layer's activations. */
    double move;
    /* Operations in matmuls, by the type of the weights and the number of rows (tn_speed_rows). */
    double multiply[TN_TYPE_LIMIT][TN_SPEED_POINTS];
    double experts[TN_SPEED_POINTS]; /* the share of `multiply` that matmuls with experts reach, by rows per expert */
    double ramp; /* seconds at the beginning and end of a matmul with many rows in which it is below that rate */
    /* Attention with few rows: keys per second, by the query heads that read each (tn_speed_group). A key is a cell
     * of one key/value head, here 128 f16 numbers with as many of V. */
    double attention_keys[TN_SPEED_GROUPS];
    double attention_fixed;         /* the share of that time that does not depend on the size of keys, 0 to 1 */
    double attention_many;          /* attention with many rows: operations */
    double link;                    /* bytes between the host and the device */
    double launch[TN_LAUNCH_KINDS]; /* seconds per node */
    double run;                     /* seconds per run of a graph: inputs, outputs, waiting */
    bool given;                     /* not measured, but part of the device's specification */
} tn_device_speed;

/* ---- Peaks ---- */

typedef struct tn_measure_params {
    int n_threads;          /* CPU: 0 for one per core */
    tn_threadpool *threads; /* CPU: the caller's pool, or NULL */
    const tn_type *types;   /* weight types to measure; NULL: the common ones */
    size_t n_types;
    double seconds;                                          /* time to spend, about; 0: 15 */
    bool (*progress)(void *user, size_t done, size_t total); /* may be NULL; returning false cancels */
    void *user;
} tn_measure_params;

/* Measures a device, which should be idle otherwise. Takes up to some 900 MB of its memory during the call, less if
 * less is free. Fields that the device does not support stay 0. TN_E_UNSUPPORTED for devices without
 * hardware, TN_E_ABORTED when cancelled. */
TN_API tn_status tn_device_measure(tn_device *device, const tn_measure_params *params,
                                   tn_device_speed *speed) TN_MUST_CHECK;
/* The peak read rate alone, in about a second: the best of several patterns. */
TN_API tn_status tn_device_measure_read(tn_device *device, const tn_measure_params *params,
                                        double *bytes_per_second) TN_MUST_CHECK;
/* Declares a device's peaks for predictions of this process; NULL removes them. n_threads: CPU only, 0 for one per
 * core; else 0. Safe from any thread. */
TN_API tn_status tn_device_set_speed(tn_device *device, int n_threads, const tn_device_speed *speed);
/* The declared peaks, else the given ones. TN_E_STATE: neither exists, the device must be measured. */
TN_API tn_status tn_device_get_speed(tn_device *device, int n_threads, tn_device_speed *speed) TN_MUST_CHECK;
/* Peaks estimated from a few rates, such as those of a data sheet. `read` and one of f16 and f32 must be given;
 * typical values are used for the rest. */
TN_API tn_device_speed tn_speed_from_rates(const tn_device_rates *rates);
/* Operations per second of a matmul with weights of this type and this many rows, between the measured points. Types
 * that were not measured take the rate of the nearest type. */
TN_API double tn_speed_multiply(const tn_device_speed *speed, tn_type type, double rows);

/* ---- Predictions ---- */

typedef enum tn_speed_limit {
    TN_LIMIT_MEMORY,     /* reading weights and cache */
    TN_LIMIT_ARITHMETIC, /* operations */
    TN_LIMIT_LINK,       /* copies between devices */
    TN_LIMIT_LAUNCH      /* the number of nodes */
} tn_speed_limit;
TN_API const char *tn_speed_limit_name(tn_speed_limit limit); /* "memory bandwidth" */

typedef struct tn_predict_params {
    int64_t n_past; /* cells that every row's sequence has in the cache before this run */
    int64_t n_seqs; /* sequences among which the rows are divided; 0: 1 */
    int n_threads;  /* of the CPU stream; 0: one per core */
} tn_predict_params;

enum { TN_PREDICT_STREAMS = 17 };

typedef struct tn_prediction {
    double seconds;                            /* of one run, streams one after the other */
    double streams[TN_PREDICT_STREAMS];        /* of which computing on each */
    double copies;                             /* …copying between devices */
    double multiply, attention, other, launch; /* parts of what the streams compute */
    double bytes, operations, copy_bytes;
    size_t nodes;         /* that compute something */
    tn_speed_limit limit; /* the largest part of the time */
} tn_prediction;

/* Predicts one run of a graph, scheduled as the scheduler would run it. TN_E_STATE: a device that computes part of it
 * is not measured; the message names it. */
TN_API tn_status tn_predict_graph(tn_sched *sched, tn_graph *graph, const tn_predict_params *params,
                                  tn_prediction *prediction) TN_MUST_CHECK;
/* Predicted seconds of one node without a cache, on a device with these peaks. Reads no memory. */
TN_API double tn_predict_node(const tn_device_speed *speed, const tn_tensor *node);

#ifdef __cplusplus
}
#endif
#endif

/* Makes the tensors of a file piece by piece on several threads and writes them in order.
 *
 * Memory stays at a few pieces per thread however large the tensors are. A piece is a number of whole rows: a source
 * fills it as floats (which are then converted to the tensor's type) or, for `raw` tensors, directly as the bytes of
 * the type. */
#ifndef TENON_TOOL_STREAM_H
#define TENON_TOOL_STREAM_H

#include "cli/term.h"
#include "tenon/gguf.h"

struct stream_tensor {
    const char *name;
    tn_type type;            /* in the file to write */
    int64_t columns, rows;   /* ne[0], and all others multiplied */
    bool raw;                /* the source gives bytes of `type` */
    const float *importance; /* `columns` weights for each matrix, or NULL */
    int64_t matrix_rows;     /* rows that share one set of weights */
};

/* Fills rows [first, first + count) of a tensor. Called from several threads, for different pieces. */
typedef tn_status (*stream_source)(void *user, size_t tensor, int64_t first, int64_t count, void *out);

struct stream {
    const struct stream_tensor *tensors; /* in the order they were added to the writer */
    size_t tensor_count;
    stream_source source;
    void *user;
    int threads;            /* 0: one per core */
    const char *title;      /* of the progress bar, which counts bytes written */
    double *squared_error;  /* when not NULL: per tensor, Σ(x-q)² of converted values … */
    double *squared_values; /* … and Σx² */
};

/* The writer has begun; finishing it is left to the caller. Ctrl-C gives TN_E_ABORTED. */
tn_status stream_write(tn_gguf_writer *writer, const struct stream *stream);

int stream_threads(int asked); /* 0: the number of cores this process may use */

#endif

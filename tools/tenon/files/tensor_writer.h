/* Writes the tensors of a file in order, from chunks that several threads fill.
 *
 * A chunk is a number of whole rows, so that memory use is a few chunks per thread for tensors of any size. A source
 * fills a chunk with floats, which are then converted to the tensor's type, or, for `raw` tensors, with bytes of that
 * type. */
#ifndef TENON_TOOL_TENSOR_WRITER_H
#define TENON_TOOL_TENSOR_WRITER_H

#include "cli/term.h"
#include "tenon/gguf.h"

struct written_tensor {
    const char *name;
    tn_type type;            /* in the file to write */
    int64_t columns, rows;   /* ne[0], and all others multiplied */
    bool raw;                /* the source fills in bytes of `type` */
    const float *importance; /* `columns` weights for each matrix, or NULL */
    int64_t matrix_rows;     /* rows that share one set of weights */
};

/* Fills rows [first, first + count) of a tensor. Called from several threads for different chunks. */
typedef tn_status (*row_source)(void *user, size_t tensor, int64_t first, int64_t count, void *out);

struct tensor_writer {
    const struct written_tensor *tensors; /* in the order they were added to the writer */
    size_t tensor_count;
    row_source source;
    void *user;
    int threads;            /* 0: one per core */
    const char *title;      /* of the progress bar, which counts bytes written */
    double *squared_error;  /* when not NULL: per tensor, Σ(x-q)² of converted values … */
    double *squared_values; /* … and Σx² */
};

/* Between tn_gguf_writer_begin() and tn_gguf_writer_finish(), which the caller calls. Ctrl-C gives TN_E_ABORTED. */
tn_status write_tensors(tn_gguf_writer *writer, const struct tensor_writer *task);

#endif

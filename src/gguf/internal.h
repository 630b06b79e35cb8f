/* Internals of the GGUF reader and writer: the name index, the parsed head of one file, and an open set of files. */
#ifndef TN_GGUF_INTERNAL_H
#define TN_GGUF_INTERNAL_H

#include "tenon/gguf.h"

#include <stdatomic.h>
#include <time.h>

#define TN__GGUF_MAGIC "GGUF"

/* ---- Names ---- */

/* An index over an array of structures whose first member is a NUL-terminated name. */
typedef struct tn__gguf_index {
    uint32_t *slots; /* position + 1; 0 is free */
    size_t mask;
    uint64_t seed; /* different for every index, so that names cannot be crafted to collide */
} tn__gguf_index;

/* Builds the index; *duplicate is the position of the first repeated name, or `count`. */
tn_status tn__gguf_index_build(tn__gguf_index *index, const void *items, size_t stride, size_t count,
                               size_t *duplicate);
/* Adds the item at position count-1 and grows as needed; the name must be new. */
tn_status tn__gguf_index_add(tn__gguf_index *index, const void *items, size_t stride, size_t count);
/* Adds item `i`; the capacity must suffice. */
void tn__gguf_index_put(tn__gguf_index *index, const void *items, size_t stride, size_t i);
/* Position of a name, or SIZE_MAX. */
size_t tn__gguf_index_find(const tn__gguf_index *index, const void *items, size_t stride, const char *name);

/* ---- Head ---- */

/* Header, metadata and tensor table of one file. Strings and aligned numbers point into `bytes`; other array elements
 * are in `pool`. */
typedef struct tn__gguf_head {
    unsigned char *bytes;
    void *pool;
    uint32_t version, alignment;
    uint64_t data_offset; /* start of the data section */
    bool no_data;         /* plan-only: the file ends after the tensor table and has the key "tenon.no_data" */
    size_t key_count, tensor_count;
    tn_gguf_kv *keys;
    tn_gguf_tensor *tensors; /* file_offset set, part and data not */
    tn__gguf_index key_index;
} tn__gguf_head;

/* The source of a head's bytes. `read` copies a range inside `size`. */
typedef struct tn__gguf_source {
    const char *path; /* for messages */
    uint64_t size;
    tn_status (*read)(void *user, uint64_t offset, void *out, size_t size);
    void *user;
} tn__gguf_source;

tn_status tn__gguf_head_parse(const tn__gguf_source *source, tn__gguf_head *head);
void tn__gguf_head_free(tn__gguf_head *head);

/* Bytes of one element in memory; 0 for an id outside the table. */
size_t tn__gguf_type_bytes(uint32_t type);
/* The size of a tensor's data from its type id and shape. An error message starts with `where`. */
tn_status tn__gguf_tensor_bytes(const char *where, uint32_t type_id, const int64_t ne[4], size_t *size);

/* ---- Open files ---- */

typedef struct tn__gguf_part {
    char *path;
    int fd;                      /* -1 for memory */
    const unsigned char *memory; /* NULL for a file */
    uint64_t size;
    struct timespec modified;
    tn__gguf_head head;
    void *map; /* NULL when not mapped */
    size_t map_size;
    void *copy; /* data read into allocated memory */
} tn__gguf_part;

struct tn_gguf {
    atomic_uint owners;
    tn_gguf_mode mode;
    int part_count;
    tn__gguf_part *parts;
    size_t tensor_count;
    tn_gguf_tensor *tensors; /* of all parts */
    tn__gguf_index tensor_index;
};

/* Splits "NAME-00002-of-00005.gguf" into base "NAME.gguf", part 1, count 5; false for other names. */
bool tn__gguf_part_parse(const char *path, char *base, size_t size, int *part, int *count);

#endif

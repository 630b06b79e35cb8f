/* Reads safetensors files: a single one, or the shards listed in an index. Everything in a header is checked against
 * the file size before use. */
#ifndef TENON_TOOL_SAFETENSORS_H
#define TENON_TOOL_SAFETENSORS_H

#include "tenon/base.h"
#include "tenon/tensor.h"

enum { SAFETENSORS_MAX_DIMS = 6 };

enum safetensors_type {
    ST_F32,
    ST_F16,
    ST_BF16,
    ST_F64,
    ST_F8,
    ST_PACKED, /* computed from other tensors (packed.h); never in files */
    ST_U8,     /* from here on: not floats */
    ST_I8,
    ST_I16,
    ST_I32,
    ST_I64,
    ST_BOOL
};

struct safetensors_tensor {
    char *name;
    enum safetensors_type type;
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS]; /* outermost first, as in the file */
    int64_t count;                       /* elements */
    uint64_t offset, size;               /* bytes in its file */
    int file;
    bool used; /* for the caller */
    /* Of F8 (e4m3): the scale of every block of scale_rows × scale_columns elements, row by row; NULL: none. Reading
     * floats applies them. */
    float *scales;
    int64_t scale_rows, scale_columns;
    struct packed_weight *packed; /* of PACKED; owned */
};

struct safetensors;

/* Opens FOLDER/model.safetensors, or the shards of FOLDER/model.safetensors.index.json. */
tn_status safetensors_open(const char *folder, struct safetensors **out);
/* Opens FOLDER/NAME alone. */
tn_status safetensors_open_file(const char *folder, const char *name, struct safetensors **out);
void safetensors_close(struct safetensors *set);

size_t safetensors_count(const struct safetensors *set);
struct safetensors_tensor *safetensors_at(const struct safetensors *set, size_t index); /* sorted by name */
struct safetensors_tensor *safetensors_find(const struct safetensors *set, const char *name);

/* Adds a tensor, or replaces the one of that name. Those after the last of the folder are not found until
 * safetensors_sort() has put all in order. */
tn_status safetensors_put(struct safetensors *set, const char *name, const struct safetensors_tensor *tensor);
void safetensors_sort(struct safetensors *set); /* also after tensors were renamed */

size_t safetensors_type_bytes(enum safetensors_type type);
const char *safetensors_type_name(enum safetensors_type type);
/* "[512, 64]" */
char *safetensors_shape_text(const struct safetensors_tensor *tensor, char *out, size_t size);

/* Elements [first, first + count) as floats, or bytes as stored. Callable from any thread. */
tn_status safetensors_floats(const struct safetensors *set, const struct safetensors_tensor *tensor, int64_t first,
                             int64_t count, float *out);
tn_status safetensors_bytes(const struct safetensors *set, const struct safetensors_tensor *tensor, uint64_t offset,
                            size_t size, void *out);

#endif

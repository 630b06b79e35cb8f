/* Slices of tensors: where their bytes are in the file. */
#include "llm/ranks/division.h"

#include "base/checked.h"

/* A tensor in the file is a list of `outer` pieces of equal size, each with the whole axis; the slice has some of its
 * entries, each of `entry` bytes. For axis 0 an entry is a block. */
typedef struct slice_shape {
    size_t entry, whole, outer;
    int64_t block; /* elements of an entry along the axis */
} slice_shape;

static slice_shape slice_shape_of(const tn_gguf_tensor *info, const tn__slice *slice) {
    const int64_t block = tn_type_block(info->type);
    slice_shape s = {.entry = tn_type_bytes(info->type), .outer = 1, .block = slice->axis == 0 ? block : 1};
    if (slice->axis > 0) s.entry *= (size_t)(info->ne[0] / block);
    for (int i = 1; i < slice->axis; i++) s.entry *= (size_t)info->ne[i];
    for (int i = slice->axis + 1; i < 4; i++) s.outer *= (size_t)info->ne[i];
    s.whole = s.entry * (size_t)(info->ne[slice->axis] / s.block);
    return s;
}

static size_t range_bytes(const slice_shape *s, const tn__slice *slice, int i) {
    return (size_t)((slice->end[i] - slice->begin[i]) / s->block) * s->entry;
}

size_t tn__slice_start(const tn_gguf_tensor *info, const tn__slice *slice) {
    const slice_shape s = slice_shape_of(info, slice);
    if (slice->n == 0) return 0;
    return slice->n == 1 && s.outer == 1 ? (size_t)(slice->begin[0] / s.block) * s.entry : SIZE_MAX;
}

tn_status tn__slice_read(const tn_gguf *file, const tn_gguf_tensor *info, const tn__slice *slice, size_t offset,
                         void *to, size_t size) {
    if (slice->n == 0) return tn_gguf_read(file, info, offset, to, size);
    const slice_shape s = slice_shape_of(info, slice);
    size_t piece = 0; /* bytes of the slice in one outer piece */
    for (int i = 0; i < slice->n; i++) piece += range_bytes(&s, slice, i);
    char *out = to;
    while (size) {
        const size_t outer = offset / piece;
        size_t within = offset % piece;
        int i = 0;
        while (within >= range_bytes(&s, slice, i)) within -= range_bytes(&s, slice, i++);
        const size_t count = TN__MIN(size, range_bytes(&s, slice, i) - within);
        const size_t from = outer * s.whole + (size_t)(slice->begin[i] / s.block) * s.entry + within;
        TN_TRY(tn_gguf_read(file, info, from, out, count));
        out += count;
        offset += count;
        size -= count;
    }
    return TN_OK;
}

/* Reads safetensors files: a single one, or the shards listed in an index. */
#include "convert/safetensors.h"

#include "convert/packed.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HEADER = 100 << 20, MAX_SHARDS = 4096 };

struct shard_file {
    char *path;
    int fd;
    uint64_t size;
};

struct safetensors {
    struct shard_file *files;
    int file_count;
    struct safetensors_tensor *tensors;
    size_t count, capacity;
    size_t sorted; /* tensors that can be found; the others were added since */
};

static const struct {
    const char *name;
    size_t bytes;
} st_types[] = {
    [ST_F32] = {"F32", 4},       [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2}, [ST_F64] = {"F64", 8},
    [ST_F8] = {"F8_E4M3", 1},    [ST_U8] = {"U8", 1},   [ST_I8] = {"I8", 1},     [ST_I16] = {"I16", 2},
    [ST_PACKED] = {"packed", 0}, [ST_I32] = {"I32", 4}, [ST_I64] = {"I64", 8},   [ST_BOOL] = {"BOOL", 1},
};

size_t safetensors_type_bytes(enum safetensors_type type) { return st_types[type].bytes; }
const char *safetensors_type_name(enum safetensors_type type) { return st_types[type].name; }

char *safetensors_shape_text(const struct safetensors_tensor *t, char *out, size_t size) {
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < t->n_dims && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (used < size) snprintf(out + used, size - used, "]");
    return out;
}

/* ---- Reading ---- */

static tn_status read_at(const struct shard_file *file, uint64_t offset, void *out, size_t size) {
    char *to = out;
    while (size > 0) {
        ssize_t got = pread(file->fd, to, size < 1u << 30 ? size : 1u << 30, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return tn_fail(TN_E_IO, "%s: byte %" PRIu64 ": %m", file->path, offset);
        if (got == 0) return tn_fail(TN_E_IO, "%s: byte %" PRIu64 ": the file was truncated", file->path, offset);
        to += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return TN_OK;
}

tn_status safetensors_bytes(const struct safetensors *set, const struct safetensors_tensor *t, uint64_t offset,
                            size_t size, void *out) {
    if (offset > t->size || size > t->size - offset)
        return tn_fail(TN_E_INTERNAL, "tensor \"%s\": read past its end", t->name);
    return read_at(&set->files[t->file], t->offset + offset, out, size);
}

/* Dimension i of a tensor as matrices of rows and columns; absent ones are 1. */
static int64_t last_dim(const struct safetensors_tensor *t, int i) {
    return i < t->n_dims ? t->shape[t->n_dims - 1 - i] : 1;
}

static void apply_scales(const struct safetensors_tensor *t, int64_t first, int64_t count, float *out) {
    const int64_t columns = last_dim(t, 0), rows = last_dim(t, 1);
    const int64_t across = (columns + t->scale_columns - 1) / t->scale_columns;
    const int64_t down = (rows + t->scale_rows - 1) / t->scale_rows;
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = (first + i) / columns, column = (first + i) % columns;
        const int64_t block = row / rows * down + row % rows / t->scale_rows;
        out[i] *= t->scales[block * across + column / t->scale_columns];
    }
}

/* Elements that one of n scales covers, of `size`: 128, one or all. 0: none of these. */
static int64_t scale_block(int64_t size, int64_t n) {
    return n == (size + 127) / 128 ? 128 : n == size ? 1 : n == 1 ? size : 0;
}

/* Finds the scales of F8 weights: "…weight_scale_inv" (blocks of 128 × 128) or "…weight_scale", which multiply. */
static tn_status find_scales(struct safetensors *set, struct safetensors_tensor *t) {
    static const char *const endings[] = {"_scale_inv", "_scale"};
    char name[512];
    struct safetensors_tensor *s = NULL;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && !s; i++) {
        snprintf(name, sizeof name, "%s%s", t->name, endings[i]);
        s = safetensors_find(set, name);
    }
    if (!s) return TN_OK;
    s->used = true;
    const bool vector = s->n_dims == 1 && s->count > 1; /* one for each row */
    t->scale_columns = scale_block(last_dim(t, 0), vector ? 1 : last_dim(s, 0));
    t->scale_rows = scale_block(last_dim(t, 1), last_dim(s, vector ? 0 : 1));
    if (!t->scale_columns || !t->scale_rows || s->type >= ST_F8 || (!vector && last_dim(t, 2) != last_dim(s, 2)))
        return tn_fail(TN_E_UNSUPPORTED, "tensor \"%s\": scales of blocks other than 128 x 128, rows or all of it",
                       s->name);
    t->scales = tn_calloc((size_t)s->count, sizeof *t->scales);
    return t->scales ? safetensors_floats(set, s, 0, s->count, t->scales) : TN_E_NOMEM;
}

tn_status safetensors_floats(const struct safetensors *set, const struct safetensors_tensor *t, int64_t first,
                             int64_t count, float *out) {
    static const int tenon_type[] = {
        [ST_F32] = TN_F32, [ST_F16] = TN_F16, [ST_BF16] = TN_BF16, [ST_F64] = TN_F64, [ST_F8] = TN_FP8};
    size_t bytes = st_types[t->type].bytes;
    if (t->packed) return packed_floats(set, t->packed, first, count, out);
    if (t->type == ST_F32) return safetensors_bytes(set, t, (uint64_t)first * bytes, (size_t)count * bytes, out);
    if (t->type > ST_F8)
        return tn_fail(TN_E_TYPE, "tensor \"%s\" has type %s instead of floats", t->name, st_types[t->type].name);
    void *raw = tn_malloc((size_t)count * bytes);
    if (!raw) return TN_E_NOMEM;
    tn_status status = safetensors_bytes(set, t, (uint64_t)first * bytes, (size_t)count * bytes, raw);
    if (status == TN_OK) status = tn_type_to_f32((tn_type)tenon_type[t->type], raw, out, count);
    if (status == TN_OK && t->scales) apply_scales(t, first, count, out);
    tn_free(raw);
    return status;
}

/* ---- Headers ---- */

static bool parse_st_type(const char *name, enum safetensors_type *out) {
    if (strcmp(name, "F8_E8M0") == 0) name = "U8"; /* exponents of two, which are read as bytes */
    for (size_t i = 0; i < sizeof st_types / sizeof *st_types; i++)
        if (st_types[i].bytes && strcmp(st_types[i].name, name) == 0) {
            *out = (enum safetensors_type)i;
            return true;
        }
    return false;
}

static tn_status grow_tensors(struct safetensors *set) {
    if (set->count == set->capacity) {
        size_t capacity = set->capacity ? set->capacity * 2 : 256;
        struct safetensors_tensor *grown = tn_realloc(set->tensors, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        set->tensors = grown;
        set->capacity = capacity;
    }
    return TN_OK;
}

static tn_status parse_tensor(struct safetensors *set, int file, uint64_t data, const char *name, json_t *json) {
    const struct shard_file *f = &set->files[file];
    struct safetensors_tensor t = {.file = file};
    json_t *shape = json_object_get(json, "shape"), *range = json_object_get(json, "data_offsets");
    const char *type = json_string_value(json_object_get(json, "dtype"));
    if (!type || !json_is_array(shape) || json_array_size(range) != 2 || !json_is_integer(json_array_get(range, 0)) ||
        !json_is_integer(json_array_get(range, 1)))
        return tn_fail(TN_E_FORMAT, "%s: tensor \"%s\": dtype, shape or data_offsets are missing", f->path, name);
    if (!parse_st_type(type, &t.type))
        return tn_fail(TN_E_UNSUPPORTED, "%s: tensor \"%s\" has unsupported type %s", f->path, name, type);
    if (json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return tn_fail(TN_E_LIMIT, "%s: tensor \"%s\" has %zu dimensions", f->path, name, json_array_size(shape));
    t.n_dims = (int)json_array_size(shape);
    t.count = 1;
    for (int i = 0; i < t.n_dims; i++) {
        json_t *n = json_array_get(shape, (size_t)i);
        t.shape[i] = json_integer_value(n);
        if (!json_is_integer(n) || t.shape[i] < 0 || __builtin_mul_overflow(t.count, t.shape[i], &t.count) ||
            t.count > INT64_MAX / 8)
            return tn_fail(TN_E_FORMAT, "%s: tensor \"%s\" has an impossible shape", f->path, name);
    }
    json_int_t start = json_integer_value(json_array_get(range, 0)),
               end = json_integer_value(json_array_get(range, 1));
    t.size = (uint64_t)t.count * st_types[t.type].bytes;
    if (start < 0 || end < start || (uint64_t)(end - start) != t.size)
        return tn_fail(TN_E_FORMAT, "%s: tensor \"%s\" needs %" PRIu64 " bytes, its offsets give %lld", f->path, name,
                       t.size, (long long)(end - start));
    if ((uint64_t)end > f->size - data)
        return tn_fail(TN_E_FORMAT,
                       "%s: tensor \"%s\" ends at byte %" PRIu64 " of a file of %" PRIu64
                       ": the file is truncated or damaged",
                       f->path, name, data + (uint64_t)end, f->size);
    t.offset = data + (uint64_t)start;
    TN_TRY(grow_tensors(set));
    if (!(t.name = tn_strdup(name))) return TN_E_NOMEM;
    set->tensors[set->count++] = t;
    return TN_OK;
}

static tn_status parse_shard_header(struct safetensors *set, int file) {
    struct shard_file *f = &set->files[file];
    uint64_t length;
    if (f->size < 8) return tn_fail(TN_E_FORMAT, "%s: not a safetensors file (%" PRIu64 " bytes)", f->path, f->size);
    TN_TRY(read_at(f, 0, &length, 8));
    if (length > f->size - 8)
        return tn_fail(TN_E_FORMAT,
                       "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64 ": truncated, damaged, or not "
                       "a safetensors file",
                       f->path, length, f->size);
    if (length > MAX_HEADER)
        return tn_fail(TN_E_LIMIT, "%s: a header of %" PRIu64 " bytes; the limit is %d", f->path, length, MAX_HEADER);
    char *text = tn_malloc((size_t)length + 1);
    if (!text) return TN_E_NOMEM;
    tn_status status = read_at(f, 8, text, (size_t)length);
    if (status == TN_OK) {
        json_error_t error;
        json_t *header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
        if (!json_is_object(header))
            status =
                tn_fail(TN_E_FORMAT, "%s: the header is not a JSON object: %s", f->path, header ? "" : error.text);
        const char *name;
        json_t *value;
        if (status == TN_OK) json_object_foreach(header, name, value) {
                if (strcmp(name, "__metadata__") == 0) continue;
                status = parse_tensor(set, file, 8 + length, name, value);
                if (status != TN_OK) break;
            }
        json_decref(header);
    }
    tn_free(text);
    return status;
}

/* ---- Files ---- */

static tn_status add_shard(struct safetensors *set, const char *folder, const char *name) {
    char path[PATH_MAX];
    struct stat info;
    if (strchr(name, '/') || name[0] == '.' || !*name)
        return tn_fail(TN_E_FORMAT, "%s: the index names a shard \"%s\"", folder, name);
    if (set->file_count >= MAX_SHARDS) return tn_fail(TN_E_LIMIT, "%s: more than %d shards", folder, MAX_SHARDS);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (int i = 0; i < set->file_count; i++)
        if (strcmp(set->files[i].path, path) == 0) return TN_OK;
    struct shard_file *grown = tn_realloc(set->files, ((size_t)set->file_count + 1) * sizeof *grown);
    if (!grown) return TN_E_NOMEM;
    set->files = grown;
    struct shard_file *f = &grown[set->file_count];
    *f = (struct shard_file){.fd = -1, .path = tn_strdup(path)};
    if (!f->path) return TN_E_NOMEM;
    set->file_count++;
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &info) != 0) return tn_fail(TN_E_IO, "%s: %m", path);
    f->size = (uint64_t)info.st_size;
    return parse_shard_header(set, set->file_count - 1);
}

static int by_tensor_name(const void *a, const void *b) {
    return strcmp(((const struct safetensors_tensor *)a)->name, ((const struct safetensors_tensor *)b)->name);
}

static tn_status open_shards(struct safetensors *set, const char *folder, const char *index_path) {
    json_error_t error;
    json_t *index = json_load_file(index_path, 0, &error), *map = json_object_get(index, "weight_map");
    tn_status status = TN_OK;
    if (!json_is_object(map))
        status = tn_fail(TN_E_FORMAT, "%s: %s", index_path, index ? "has no weight_map" : error.text);
    const char *tensor;
    json_t *file;
    if (status == TN_OK) json_object_foreach(map, tensor, file) {
            const char *name = json_string_value(file);
            status = name ? add_shard(set, folder, name)
                          : tn_fail(TN_E_FORMAT, "%s: tensor \"%s\" has no file", index_path, tensor);
            if (status != TN_OK) break;
        }
    safetensors_sort(set);
    if (status == TN_OK) json_object_foreach(map, tensor, file) {
            const struct safetensors_tensor *t = safetensors_find(set, tensor);
            const char *name = json_string_value(file), *path = t ? set->files[t->file].path : "";
            size_t tail = strlen(name), length = strlen(path);
            if (t && length > tail && strcmp(path + length - tail, name) == 0) continue;
            status = tn_fail(TN_E_FORMAT, "%s: tensor \"%s\" is not in %s", index_path, tensor, name);
            break;
        }
    json_decref(index);
    return status;
}

/* The matrices that sentence-transformers apply after pooling are in folders of their own, all with the same names:
 * "2_Dense/…: linear.weight" becomes "2_Dense.linear.weight". */
static tn_status add_dense_shards(struct safetensors *set, const char *folder) {
    for (int number = 2; number <= 3; number++) {
        char path[PATH_MAX], file[PATH_MAX], name[320];
        if (snprintf(path, sizeof path, "%s/%d_Dense", folder, number) >= (int)sizeof path - 32) continue;
        snprintf(file, sizeof file, "%.*s/model.safetensors", (int)sizeof file - 32, path);
        if (access(file, R_OK) != 0) continue;
        size_t before = set->count;
        TN_TRY(add_shard(set, path, "model.safetensors"));
        for (size_t i = before; i < set->count; i++) {
            snprintf(name, sizeof name, "%d_Dense.%.256s", number, set->tensors[i].name);
            char *copy = tn_strdup(name);
            if (!copy) return TN_E_NOMEM;
            tn_free(set->tensors[i].name);
            set->tensors[i].name = copy;
        }
    }
    return TN_OK;
}

void safetensors_sort(struct safetensors *set) {
    set->sorted = set->count;
    if (set->count) qsort(set->tensors, set->count, sizeof *set->tensors, by_tensor_name);
}

tn_status safetensors_open_file(const char *folder, const char *name, struct safetensors **out) {
    struct safetensors *set = tn_calloc(1, sizeof *set);
    *out = NULL;
    if (!set) return TN_E_NOMEM;
    const tn_status status = add_shard(set, folder, name);
    safetensors_sort(set);
    if (status != TN_OK)
        safetensors_close(set);
    else
        *out = set;
    return status;
}

tn_status safetensors_open(const char *folder, struct safetensors **out) {
    char path[PATH_MAX];
    struct safetensors *set = tn_calloc(1, sizeof *set);
    *out = NULL;
    if (!set) return TN_E_NOMEM;
    tn_status status;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    if (access(path, R_OK) == 0) {
        status = open_shards(set, folder, path);
    } else {
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        status = access(path, F_OK) == 0 ? add_shard(set, folder, "model.safetensors")
                                         : tn_fail(TN_E_NOT_FOUND,
                                                   "%s: has neither model.safetensors nor "
                                                   "model.safetensors.index.json",
                                                   folder);
    }
    if (status == TN_OK) status = add_dense_shards(set, folder);
    safetensors_sort(set);
    for (size_t i = 1; i < set->count && status == TN_OK; i++)
        if (strcmp(set->tensors[i - 1].name, set->tensors[i].name) == 0)
            status = tn_fail(TN_E_FORMAT, "%s: tensor \"%s\" is in two shards", folder, set->tensors[i].name);
    for (size_t i = 0; i < set->count && status == TN_OK; i++)
        if (set->tensors[i].type == ST_F8) status = find_scales(set, &set->tensors[i]);
    if (status != TN_OK)
        safetensors_close(set);
    else
        *out = set;
    return status;
}

void safetensors_close(struct safetensors *set) {
    if (!set) return;
    for (int i = 0; i < set->file_count; i++) {
        if (set->files[i].fd >= 0) close(set->files[i].fd);
        tn_free(set->files[i].path);
    }
    for (size_t i = 0; i < set->count; i++) {
        tn_free(set->tensors[i].name);
        tn_free(set->tensors[i].scales);
        packed_free(set->tensors[i].packed);
    }
    tn_free(set->files);
    tn_free(set->tensors);
    tn_free(set);
}

tn_status safetensors_put(struct safetensors *set, const char *name, const struct safetensors_tensor *tensor) {
    struct safetensors_tensor *there = safetensors_find(set, name), t = *tensor;
    if (there) {
        t.name = there->name;
        tn_free(there->scales);
        *there = t;
        return TN_OK;
    }
    TN_TRY(grow_tensors(set));
    if (!(t.name = tn_strdup(name))) return TN_E_NOMEM;
    set->tensors[set->count++] = t;
    return TN_OK;
}

size_t safetensors_count(const struct safetensors *set) { return set->count; }
struct safetensors_tensor *safetensors_at(const struct safetensors *set, size_t index) {
    return &set->tensors[index];
}
struct safetensors_tensor *safetensors_find(const struct safetensors *set, const char *name) {
    struct safetensors_tensor key = {.name = (char *)(uintptr_t)name};
    return set->sorted ? bsearch(&key, set->tensors, set->sorted, sizeof key, by_tensor_name) : NULL;
}

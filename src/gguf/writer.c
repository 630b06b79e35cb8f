/* Writing of GGUF files: tables are kept in memory, data is written as it arrives, to one file or a split set that
 * appears only when complete. */
#include "base/checked.h"
#include "base/output_path.h"
#include "gguf/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A key and its value in the form of the file. */
typedef struct key_entry {
    char *key;
    unsigned char *bytes; /* type, then value */
    size_t size;
} key_entry;

typedef struct item {
    char *name;
    uint32_t type;
    uint32_t n_dims;
    int64_t ne[4];
    size_t size;     /* bytes of data */
    uint64_t offset; /* in the data section of its part; set by begin() */
} item;

typedef struct output_part {
    size_t first, end; /* tensors */
    uint64_t data_offset, size;
    char *path, *temporary;
    bool on_disk; /* the temporary file exists */
} output_part;

struct tn_gguf_writer {
    char *path;
    tn_gguf_writer_params params;
    key_entry *keys;
    size_t key_count, key_capacity;
    tn__gguf_index key_index;
    item *tensors;
    size_t tensor_count, tensor_capacity;
    tn__gguf_index tensor_index;
    uint32_t alignment;
    output_part *parts;
    int part_count;
    bool begun, finished;
    int part; /* now being written */
    int fd;
    size_t tensor;      /* now being written */
    size_t tensor_done; /* bytes of it */
    uint64_t position;  /* in the part's file */
};

/* ---- Tables ---- */

tn_status tn_gguf_writer_new(const char *path, const tn_gguf_writer_params *params, tn_gguf_writer **out) {
    *out = NULL;
    if (!path || !*path) return tn_fail(TN_E_INVALID, "no path was given for the GGUF file to write");
    tn_gguf_writer *w = tn_calloc(1, sizeof *w);
    if (!w) return TN_E_NOMEM;
    w->fd = -1;
    if (params) w->params = *params;
    /* Parts have names of their own. */
    tn_status status = w->params.part_bytes ? TN_OK : tn__output_path(path, &w->path);
    if (status == TN_OK && !w->path && !(w->path = tn_strdup(path))) status = TN_E_NOMEM;
    if (status != TN_OK) {
        tn_free(w);
        return status;
    }
    *out = w;
    return TN_OK;
}

void tn_gguf_writer_free(tn_gguf_writer *w) {
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    for (int i = 0; w->parts && i < w->part_count; i++) {
        if (w->parts[i].on_disk) unlink(w->parts[i].temporary);
        tn_free(w->parts[i].path);
        tn_free(w->parts[i].temporary);
    }
    for (size_t i = 0; i < w->key_count; i++) {
        tn_free(w->keys[i].key);
        tn_free(w->keys[i].bytes);
    }
    for (size_t i = 0; i < w->tensor_count; i++) tn_free(w->tensors[i].name);
    tn_free(w->parts);
    tn_free(w->keys);
    tn_free(w->tensors);
    tn_free(w->key_index.slots);
    tn_free(w->tensor_index.slots);
    tn_free(w->path);
    tn_free(w);
}

static tn_status grow_table(void **items, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity) return TN_OK;
    size_t next = *capacity ? *capacity * 2 : 64;
    void *grown = tn_realloc(*items, next * size);
    if (!grown) return TN_E_NOMEM;
    *items = grown;
    *capacity = next;
    return TN_OK;
}

/* ---- Values as bytes ---- */

/* Bytes of an array in the file, starting with its type; false on overflow or for an unknown type. */
static bool array_size(const tn_gguf_arr *arr, int depth, size_t *out) {
    size_t total = 12, bytes = tn__gguf_type_bytes(arr->type), body;
    if (bytes == 0 || depth > TN_GGUF_MAX_NESTING || (arr->count && !arr->data)) return false;
    if (arr->type != TN_GGUF_STR && arr->type != TN_GGUF_ARR)
        return tn__mul_size((size_t)arr->count, bytes, &body) && tn__add_size(total, body, out);
    for (uint64_t i = 0; i < arr->count; i++) {
        if (arr->type == TN_GGUF_STR) {
            if (!tn__add_size(((const tn_gguf_str *)arr->data)[i].size, 8, &body)) return false;
        } else if (!array_size(&((const tn_gguf_arr *)arr->data)[i], depth + 1, &body)) {
            return false;
        }
        if (!tn__add_size(total, body, &total)) return false;
    }
    *out = total;
    return true;
}

static unsigned char *write_bytes(unsigned char *to, const void *from, size_t size) {
    if (size) memcpy(to, from, size);
    return to + size;
}
static unsigned char *put_u32(unsigned char *to, uint32_t x) { return write_bytes(to, &x, 4); }
static unsigned char *put_u64(unsigned char *to, uint64_t x) { return write_bytes(to, &x, 8); }
static unsigned char *put_str(unsigned char *to, tn_gguf_str str) {
    return write_bytes(put_u64(to, str.size), str.data, str.size);
}
static unsigned char *put_array(unsigned char *to, const tn_gguf_arr *arr) {
    to = put_u64(put_u32(to, (uint32_t)arr->type), arr->count);
    if (arr->type != TN_GGUF_STR && arr->type != TN_GGUF_ARR)
        return write_bytes(to, arr->data, (size_t)arr->count * tn__gguf_type_bytes(arr->type));
    for (uint64_t i = 0; i < arr->count; i++)
        to = arr->type == TN_GGUF_STR ? put_str(to, ((const tn_gguf_str *)arr->data)[i])
                                      : put_array(to, &((const tn_gguf_arr *)arr->data)[i]);
    return to;
}

/* A scalar in the width of its type; false if it does not fit. */
static bool scalar_bytes(const tn_gguf_value *value, unsigned char out[8]) {
    size_t bytes = tn__gguf_type_bytes(value->type);
    switch (value->type) {
    case TN_GGUF_U8:
    case TN_GGUF_U16:
    case TN_GGUF_U32:
    case TN_GGUF_U64:
        if (bytes < 8 && value->u >> (8 * bytes) != 0) return false;
        put_u64(out, value->u);
        return true;
    case TN_GGUF_I8:
    case TN_GGUF_I16:
    case TN_GGUF_I32:
    case TN_GGUF_I64: {
        int64_t limit = bytes < 8 ? (int64_t)1 << (8 * bytes - 1) : 0;
        if (limit && (value->i < -limit || value->i >= limit)) return false;
        put_u64(out, (uint64_t)value->i);
        return true;
    }
    case TN_GGUF_BOOL: out[0] = value->b; return true;
    case TN_GGUF_F32: {
        float f = (float)value->f;
        write_bytes(out, &f, 4);
        return true;
    }
    case TN_GGUF_F64: write_bytes(out, &value->f, 8); return true;
    default: return false;
    }
}

static tn_status encode(const char *key, const tn_gguf_value *value, key_entry *out) {
    unsigned char scalar[8];
    size_t size = tn__gguf_type_bytes(value->type);
    bool good = true;
    if (value->type == TN_GGUF_STR)
        good = tn__add_size(value->str.size, 8, &size) && (value->str.data || !value->str.size);
    else if (value->type == TN_GGUF_ARR)
        good = array_size(&value->arr, 1, &size);
    else
        good = scalar_bytes(value, scalar);
    if (!good || !tn__add_size(size, 4, &size))
        return tn_fail(TN_E_INVALID, "key \"%s\": the value does not fit its type %s", key,
                       tn_gguf_type_name(value->type));
    unsigned char *to = tn_malloc(size);
    if (!to) return TN_E_NOMEM;
    out->bytes = to;
    out->size = size;
    to = put_u32(to, (uint32_t)value->type);
    if (value->type == TN_GGUF_STR)
        put_str(to, value->str);
    else if (value->type == TN_GGUF_ARR)
        put_array(to, &value->arr);
    else
        write_bytes(to, scalar, size - 4);
    return TN_OK;
}

/* ---- Keys ---- */

static tn_status set_key(tn_gguf_writer *w, const char *key, const tn_gguf_value *value) {
    key_entry made = {0};
    TN_TRY(encode(key, value, &made));
    size_t at = tn__gguf_index_find(&w->key_index, w->keys, sizeof *w->keys, key);
    if (at != SIZE_MAX) {
        tn_free(w->keys[at].bytes);
        w->keys[at].bytes = made.bytes;
        w->keys[at].size = made.size;
        return TN_OK;
    }
    tn_status status = TN_OK;
    if (w->key_count >= TN_GGUF_MAX_KEYS)
        status = tn_fail(TN_E_LIMIT, "more than %d metadata keys", TN_GGUF_MAX_KEYS);
    if (status == TN_OK) status = grow_table((void **)&w->keys, &w->key_capacity, w->key_count, sizeof *w->keys);
    if (status == TN_OK && !(made.key = tn_strdup(key))) status = TN_E_NOMEM;
    if (status == TN_OK) {
        w->keys[w->key_count] = made;
        status = tn__gguf_index_add(&w->key_index, w->keys, sizeof *w->keys, w->key_count + 1);
    }
    if (status == TN_OK) {
        w->key_count++;
    } else {
        tn_free(made.key);
        tn_free(made.bytes);
    }
    return status;
}

tn_status tn_gguf_writer_set(tn_gguf_writer *w, const char *key, const tn_gguf_value *value) {
    if (w->begun) return tn_fail(TN_E_STATE, "key \"%s\": keys must be set before begin()", key);
    size_t length = strlen(key);
    if (length == 0 || length > TN_GGUF_MAX_KEY)
        return tn_fail(TN_E_INVALID, "a key has %zu bytes; it must have 1 to %d", length, TN_GGUF_MAX_KEY);
    if (strncmp(key, "split.", 6) == 0 || strcmp(key, "tenon.no_data") == 0) return TN_OK;
    return set_key(w, key, value);
}

tn_status tn_gguf_writer_set_u32(tn_gguf_writer *w, const char *key, uint32_t value) {
    return tn_gguf_writer_set(w, key, &(tn_gguf_value){.type = TN_GGUF_U32, .u = value});
}
tn_status tn_gguf_writer_set_i32(tn_gguf_writer *w, const char *key, int32_t value) {
    return tn_gguf_writer_set(w, key, &(tn_gguf_value){.type = TN_GGUF_I32, .i = value});
}
tn_status tn_gguf_writer_set_f32(tn_gguf_writer *w, const char *key, float value) {
    return tn_gguf_writer_set(w, key, &(tn_gguf_value){.type = TN_GGUF_F32, .f = value});
}
tn_status tn_gguf_writer_set_bool(tn_gguf_writer *w, const char *key, bool value) {
    return tn_gguf_writer_set(w, key, &(tn_gguf_value){.type = TN_GGUF_BOOL, .b = value});
}
tn_status tn_gguf_writer_set_cstr(tn_gguf_writer *w, const char *key, const char *value) {
    return tn_gguf_writer_set(w, key, &(tn_gguf_value){.type = TN_GGUF_STR, .str = {value, strlen(value)}});
}
tn_status tn_gguf_writer_set_array(tn_gguf_writer *w, const char *key, tn_gguf_type type, const void *data,
                                   uint64_t count) {
    tn_gguf_value value = {.type = TN_GGUF_ARR, .arr = {.data = data, .count = count, .type = type}};
    return tn_gguf_writer_set(w, key, &value);
}

tn_status tn_gguf_writer_copy_keys(tn_gguf_writer *w, const tn_gguf *file) {
    for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
        const tn_gguf_kv *kv = tn_gguf_key_at(file, i);
        TN_TRY(tn_gguf_writer_set(w, kv->key.data, &kv->value));
    }
    return TN_OK;
}

bool tn_gguf_writer_remove(tn_gguf_writer *w, const char *key) {
    size_t at = tn__gguf_index_find(&w->key_index, w->keys, sizeof *w->keys, key);
    if (at == SIZE_MAX || w->begun) return false;
    tn_free(w->keys[at].key);
    tn_free(w->keys[at].bytes);
    memmove(w->keys + at, w->keys + at + 1, (w->key_count - at - 1) * sizeof *w->keys);
    w->key_count--;
    /* Positions have changed: refill the slots in place, which needs no memory and cannot fail. */
    memset(w->key_index.slots, 0, (w->key_index.mask + 1) * sizeof *w->key_index.slots);
    for (size_t i = 0; i < w->key_count; i++) tn__gguf_index_put(&w->key_index, w->keys, sizeof *w->keys, i);
    return true;
}

/* ---- Tensors ---- */

tn_status tn_gguf_writer_add(tn_gguf_writer *w, const char *name, tn_type type, int n_dims, const int64_t *ne) {
    if (w->begun) return tn_fail(TN_E_STATE, "tensor \"%s\": tensors must be added before begin()", name);
    size_t length = strlen(name);
    if (length == 0 || length > TN_GGUF_MAX_NAME)
        return tn_fail(TN_E_INVALID, "a tensor name has %zu bytes; it must have 1 to %d", length, TN_GGUF_MAX_NAME);
    if (n_dims < 0 || n_dims > 4)
        return tn_fail(TN_E_INVALID, "tensor \"%s\": %d dimensions; it must have 0 to 4", name, n_dims);
    item made = {.type = (uint32_t)type, .n_dims = (uint32_t)n_dims, .ne = {1, 1, 1, 1}};
    char where[TN_GGUF_MAX_NAME + 16];
    for (int i = 0; i < n_dims; i++) made.ne[i] = ne[i];
    snprintf(where, sizeof where, "tensor \"%s\"", name);
    if (tn__gguf_tensor_bytes(where, made.type, made.ne, &made.size) != TN_OK) return TN_E_INVALID;
    if (tn__gguf_index_find(&w->tensor_index, w->tensors, sizeof *w->tensors, name) != SIZE_MAX)
        return tn_fail(TN_E_EXISTS, "tensor \"%s\" already exists", name);
    if (w->tensor_count >= TN_GGUF_MAX_TENSORS)
        return tn_fail(TN_E_LIMIT, "more than %d tensors", TN_GGUF_MAX_TENSORS);
    TN_TRY(grow_table((void **)&w->tensors, &w->tensor_capacity, w->tensor_count, sizeof *w->tensors));
    if (!(made.name = tn_strdup(name))) return TN_E_NOMEM;
    w->tensors[w->tensor_count] = made;
    tn_status status = tn__gguf_index_add(&w->tensor_index, w->tensors, sizeof *w->tensors, w->tensor_count + 1);
    if (status != TN_OK)
        tn_free(made.name);
    else
        w->tensor_count++;
    return status;
}

/* ---- Layout: part and offset of every tensor ---- */

static uint64_t entry_bytes(const item *t) { return 8 + strlen(t->name) + 4 + 8 * t->n_dims + 4 + 8; }
static uint64_t padded(const tn_gguf_writer *w, uint64_t x) {
    return (x + w->alignment - 1) & ~(uint64_t)(w->alignment - 1);
}

/* The keys "split.no" (u16), "split.count" (u16), "split.tensors.count" (i32) in the file. */
static const uint64_t split_key_bytes = (8 + 8 + 4 + 2) + (8 + 11 + 4 + 2) + (8 + 19 + 4 + 4);

/* Only the first part has the metadata, but every part needs its alignment. */
static bool key_in_part(const tn_gguf_writer *w, size_t key, int no) {
    return no == 0 || strcmp(w->keys[key].key, "general.alignment") == 0;
}
static uint64_t key_bytes(const tn_gguf_writer *w, int no) {
    uint64_t total = 24 + (w->params.part_bytes ? split_key_bytes : 0);
    for (size_t i = 0; i < w->key_count; i++)
        if (key_in_part(w, i, no)) total += 8 + strlen(w->keys[i].key) + w->keys[i].size;
    return total;
}

static tn_status add_part(tn_gguf_writer *w, size_t first) {
    if (w->part_count >= TN_GGUF_MAX_PARTS)
        return tn_fail(TN_E_LIMIT, "more than %d parts of %" PRIu64 " bytes", TN_GGUF_MAX_PARTS,
                       w->params.part_bytes);
    output_part *grown = tn_realloc(w->parts, ((size_t)w->part_count + 1) * sizeof *grown);
    if (!grown) return TN_E_NOMEM;
    w->parts = grown;
    w->parts[w->part_count++] = (output_part){.first = first, .end = first};
    return TN_OK;
}

static tn_status lay_out_parts(tn_gguf_writer *w) {
    TN_TRY(add_part(w, 0));
    uint64_t head = key_bytes(w, 0), data = 0;
    for (size_t i = 0; i < w->tensor_count; i++) {
        item *t = &w->tensors[i];
        output_part *p = &w->parts[w->part_count - 1];
        uint64_t with = padded(w, head + entry_bytes(t)) + data + padded(w, t->size);
        if (w->params.part_bytes && with > w->params.part_bytes && p->end > p->first) {
            TN_TRY(add_part(w, i));
            p = &w->parts[w->part_count - 1];
            head = key_bytes(w, w->part_count - 1);
            data = 0;
        }
        head += entry_bytes(t);
        t->offset = data;
        data += padded(w, t->size);
        if (data > INT64_MAX / 2) return tn_fail(TN_E_OVERFLOW, "%s: the tensors' sizes overflow", w->path);
        p->end = i + 1;
        p->data_offset = padded(w, head);
        p->size = w->params.no_data ? head : p->data_offset + data;
    }
    if (w->tensor_count == 0) w->parts[0].data_offset = w->parts[0].size = head;
    return TN_OK;
}

/* ---- Files ---- */

static tn_status io_error(const tn_gguf_writer *w, const char *what) {
    return tn_fail(TN_E_IO, "%s: cannot %s: %s", w->parts[w->part].path, what, strerror(errno));
}

static tn_status write_to_part(tn_gguf_writer *w, const void *bytes, size_t size) {
    const char *from = bytes;
    while (size > 0) {
        ssize_t put_bytes = write(w->fd, from, TN__MIN(size, (size_t)1 << 30));
        if (put_bytes < 0 && errno == EINTR) continue;
        if (put_bytes < 0) return io_error(w, "write");
        from += put_bytes;
        size -= (size_t)put_bytes;
        w->position += (uint64_t)put_bytes;
    }
    return TN_OK;
}

static tn_status pad_to(tn_gguf_writer *w, uint64_t position) {
    static const char zeros[4096];
    while (w->position < position) {
        uint64_t gap = position - w->position;
        TN_TRY(write_to_part(w, zeros, gap < sizeof zeros ? (size_t)gap : sizeof zeros));
    }
    return TN_OK;
}

static tn_status name_parts(tn_gguf_writer *w) {
    static atomic_uint counter;
    char name[PATH_MAX];
    for (int i = 0; i < w->part_count; i++) {
        output_part *p = &w->parts[i];
        if (w->params.part_bytes) {
            TN_TRY(tn_gguf_part_name(w->path, i, w->part_count, name, sizeof name));
            TN_TRY(tn__output_path(name, &p->path));
        } else if (!(p->path = tn_strdup(w->path))) {
            return TN_E_NOMEM;
        }
        size_t room = strlen(p->path) + 48;
        if (!(p->temporary = tn_malloc(room))) return TN_E_NOMEM;
        snprintf(p->temporary, room, "%s.%ld-%u.partial", p->path, (long)getpid(), atomic_fetch_add(&counter, 1));
    }
    return TN_OK;
}

static unsigned char *put_key(unsigned char *to, const char *key) {
    return put_str(to, (tn_gguf_str){key, strlen(key)});
}

/* The head of a part in memory. */
static tn_status make_file_head(const tn_gguf_writer *w, const output_part *p, int no, unsigned char **out,
                                size_t *out_size) {
    uint64_t key_count = w->params.part_bytes ? 3 : 0, size = key_bytes(w, no);
    for (size_t i = 0; i < w->key_count; i++) key_count += key_in_part(w, i, no);
    for (size_t i = p->first; i < p->end; i++) size += entry_bytes(&w->tensors[i]);
    if (size > SIZE_MAX) return tn_fail(TN_E_OVERFLOW, "%s: the metadata is too large", w->path);
    unsigned char *head = tn_malloc((size_t)size), *to = head;
    if (!head) return TN_E_NOMEM;
    to = write_bytes(to, TN__GGUF_MAGIC, 4);
    to = put_u64(put_u64(put_u32(to, 3), p->end - p->first), key_count);
    for (size_t i = 0; i < w->key_count; i++) {
        if (!key_in_part(w, i, no)) continue;
        to = write_bytes(put_key(to, w->keys[i].key), w->keys[i].bytes, w->keys[i].size);
    }
    if (w->params.part_bytes) {
        uint16_t number = (uint16_t)no, count = (uint16_t)w->part_count;
        to = write_bytes(put_u32(put_key(to, "split.no"), TN_GGUF_U16), &number, 2);
        to = write_bytes(put_u32(put_key(to, "split.count"), TN_GGUF_U16), &count, 2);
        to = put_u32(put_u32(put_key(to, "split.tensors.count"), TN_GGUF_I32), (uint32_t)w->tensor_count);
    }
    for (size_t i = p->first; i < p->end; i++) {
        const item *t = &w->tensors[i];
        to = put_u32(put_key(to, t->name), t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) to = put_u64(to, (uint64_t)t->ne[d]);
        to = put_u64(put_u32(to, t->type), t->offset);
    }
    *out = head;
    *out_size = (size_t)(to - head);
    return TN_OK;
}

static tn_status write_head(tn_gguf_writer *w, const output_part *p, int no) {
    unsigned char *head;
    size_t size;
    TN_TRY(make_file_head(w, p, no, &head, &size));
    tn_status status = write_to_part(w, head, size);
    tn_free(head);
    return status;
}

tn_status tn_gguf_writer_metadata(const tn_gguf_writer *w, tn_gguf **out) {
    *out = NULL;
    size_t size = 24;
    for (size_t i = 0; i < w->key_count; i++) size += 8 + strlen(w->keys[i].key) + w->keys[i].size;
    unsigned char *head = tn_malloc(size), *to = head;
    if (!head) return TN_E_NOMEM;
    to = write_bytes(to, TN__GGUF_MAGIC, 4);
    to = put_u64(put_u64(put_u32(to, 3), 0), w->key_count);
    for (size_t i = 0; i < w->key_count; i++)
        to = write_bytes(put_key(to, w->keys[i].key), w->keys[i].bytes, w->keys[i].size);
    tn_status status = tn_gguf_open_memory(head, size, &(tn_gguf_params){.mode = TN_GGUF_META}, out);
    tn_free(head);
    return status;
}

static tn_status open_output_part(tn_gguf_writer *w) {
    output_part *p = &w->parts[w->part];
    w->position = 0;
    w->fd = open(p->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0) return io_error(w, "create the file");
    p->on_disk = true;
    /* Reserve disk space, so that a full disk is reported at the beginning. Ignores file systems that cannot reserve.
     */
    if (fallocate(w->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)p->size) != 0 && errno == ENOSPC)
        return tn_fail(TN_E_IO, "%s: not enough disk space for %" PRIu64 " bytes", p->path, p->size);
    TN_TRY(write_head(w, p, w->part));
    return w->params.no_data ? TN_OK : pad_to(w, p->data_offset);
}

static tn_status close_output_part(tn_gguf_writer *w) {
    if (fsync(w->fd) != 0) return io_error(w, "write to disk");
    int fd = w->fd;
    w->fd = -1;
    return close(fd) == 0 ? TN_OK : io_error(w, "close");
}

static tn_status writer_alignment(tn_gguf_writer *w) {
    w->alignment = TN_GGUF_DEFAULT_ALIGNMENT;
    size_t at = tn__gguf_index_find(&w->key_index, w->keys, sizeof *w->keys, "general.alignment");
    if (at == SIZE_MAX) return TN_OK;
    uint32_t type, alignment = 0;
    memcpy(&type, w->keys[at].bytes, 4);
    if (type == TN_GGUF_U32) memcpy(&alignment, w->keys[at].bytes + 4, 4);
    if (!tn__is_pow2(alignment) || alignment > TN_GGUF_MAX_ALIGNMENT)
        return tn_fail(TN_E_INVALID, "general.alignment must be a power of two up to %d, of type u32",
                       TN_GGUF_MAX_ALIGNMENT);
    w->alignment = alignment;
    return TN_OK;
}

/* After it no key or tensor is added. */
static tn_status close_tables(tn_gguf_writer *w) {
    if (w->begun) return tn_fail(TN_E_STATE, "%s: begun twice", w->path);
    if (w->params.no_data) TN_TRY(set_key(w, "tenon.no_data", &(tn_gguf_value){.type = TN_GGUF_BOOL, .b = true}));
    TN_TRY(writer_alignment(w));
    w->begun = true;
    return lay_out_parts(w);
}

tn_status tn_gguf_writer_begin(tn_gguf_writer *w) {
    TN_TRY(close_tables(w));
    TN_TRY(name_parts(w));
    return open_output_part(w);
}

static tn_status fill_head(tn_gguf_writer *w, const tn_gguf *file, unsigned char **bytes, size_t *size) {
    TN_TRY(tn_gguf_writer_copy_keys(w, file));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        TN_TRY(tn_gguf_writer_add(w, t->name, t->type, t->n_dims, t->ne));
    }
    TN_TRY(close_tables(w));
    return make_file_head(w, &w->parts[0], 0, bytes, size);
}

tn_status tn_gguf_head(const tn_gguf *file, void **bytes, size_t *size) {
    unsigned char *head = NULL;
    *bytes = NULL;
    tn_gguf_writer *w = tn_calloc(1, sizeof *w); /* never opens a file */
    if (!w) return TN_E_NOMEM;
    w->fd = -1;
    w->params.no_data = true;
    w->path = tn_strdup(tn_gguf_path(file));
    tn_status status = w->path ? fill_head(w, file, &head, size) : TN_E_NOMEM;
    tn_gguf_writer_free(w);
    if (status == TN_OK) *bytes = head;
    return status;
}

tn_status tn_gguf_writer_write(tn_gguf_writer *w, const void *bytes, size_t size) {
    if (!w->begun || w->finished || w->params.no_data)
        return tn_fail(TN_E_STATE, "%s: not open for tensor data", w->path);
    const char *from = bytes;
    while (size > 0) {
        if (w->tensor == w->tensor_count)
            return tn_fail(TN_E_INVALID, "%s: %zu bytes past the last tensor", w->path, size);
        if (w->tensor == w->parts[w->part].end) {
            TN_TRY(close_output_part(w));
            w->part++;
            TN_TRY(open_output_part(w));
        }
        const item *t = &w->tensors[w->tensor];
        size_t piece = TN__MIN(size, t->size - w->tensor_done);
        TN_TRY(write_to_part(w, from, piece));
        from += piece;
        size -= piece;
        w->tensor_done += piece;
        if (w->tensor_done == t->size) {
            TN_TRY(pad_to(w, padded(w, w->position)));
            w->tensor++;
            w->tensor_done = 0;
        }
    }
    return TN_OK;
}

/* Makes the renames durable. A failure to sync the directory does not affect the data and is ignored. */
static void sync_folder(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

tn_status tn_gguf_writer_finish(tn_gguf_writer *w) {
    if (!w->begun || w->finished) return tn_fail(TN_E_STATE, "%s: not being written", w->path);
    if (!w->params.no_data && w->tensor < w->tensor_count)
        return tn_fail(TN_E_STATE, "%s: tensor \"%s\" has %zu of its %zu bytes", w->path, w->tensors[w->tensor].name,
                       w->tensor_done, w->tensors[w->tensor].size);
    /* Write the remaining parts, which have no data. */
    for (;;) {
        TN_TRY(close_output_part(w));
        if (w->part + 1 >= w->part_count) break;
        w->part++;
        TN_TRY(open_output_part(w));
    }
    w->finished = true;
    for (w->part = w->part_count; w->part-- > 0;) { /* the first part last: if it exists, all do */
        output_part *p = &w->parts[w->part];
        if (rename(p->temporary, p->path) != 0) return io_error(w, "rename the finished file");
        p->on_disk = false;
    }
    sync_folder(w->path);
    return TN_OK;
}

uint64_t tn_gguf_writer_bytes(const tn_gguf_writer *w) {
    uint64_t total = 0;
    for (int i = 0; i < w->part_count; i++) total += w->parts[i].size;
    return total;
}
int tn_gguf_writer_part_count(const tn_gguf_writer *w) { return w->part_count; }

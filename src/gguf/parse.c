/* Parses the head of a GGUF file: header, metadata, tensor table.
 *
 * Two passes over the same bytes. The first pass checks, and reads more of the file as needed, so that nothing is
 * allocated for a count that exceeds the file. The second pass, over bytes known to be well-formed, fills tables
 * whose sizes the first has counted. */
#include "base/checked.h"
#include "gguf/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Smallest entries: key length 8 + key 1 + type 4 + value 1; name length 8 + name 1 + dims 4 + type 4 + offset 8. */
enum { MIN_KV_BYTES = 14, MIN_TENSOR_BYTES = 25, FIRST_READ = 1 << 18 };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF numbers are copied as they are");

size_t tn__gguf_type_bytes(uint32_t type) {
    switch (type) {
#define TN_X(name, id, text, bytes)                                                                                  \
    case id: return bytes;
        TN_GGUF_TYPE_TABLE(TN_X)
#undef TN_X
    }
    return 0;
}

const char *tn_gguf_type_name(tn_gguf_type type) {
    switch ((uint32_t)type) {
#define TN_X(name, id, text, bytes)                                                                                  \
    case id: return text;
        TN_GGUF_TYPE_TABLE(TN_X)
#undef TN_X
    }
    return "?";
}

_Static_assert(sizeof(tn_gguf_str) == 16 && sizeof(tn_gguf_arr) == 24, "the type table states these sizes");

typedef struct cursor {
    const tn__gguf_source *source;
    unsigned char *bytes;
    size_t have;       /* bytes of the file now in `bytes` */
    uint64_t position; /* in the file */
    size_t pool;       /* first pass: bytes needed; second pass: bytes used */
    unsigned char *pool_base;
} cursor;

/* ---- Reading and bounds ---- */

static tn_status parse_error(const cursor *c, uint64_t at, tn_status status, const char *text) {
    return tn_fail(status, "%s: byte %" PRIu64 ": %s", c->source->path, at, text);
}

/* Makes the next `size` bytes available, reading more of the file in doubling steps. */
static tn_status require_bytes(cursor *c, uint64_t size, const char *what) {
    uint64_t left = c->source->size - c->position;
    if (size > left)
        return tn_fail(TN_E_FORMAT,
                       "%s: byte %" PRIu64 ": the file ends inside %s (%" PRIu64 " bytes needed, %" PRIu64 " left)",
                       c->source->path, c->position, what, size, left);
    uint64_t end = c->position + size;
    if (end <= c->have) return TN_OK;
    uint64_t target = TN__MAX(end, TN__MAX((uint64_t)c->have * 2, (uint64_t)FIRST_READ));
    target = TN__MIN(target, c->source->size);
    if (target >= SIZE_MAX)
        return parse_error(c, c->position, TN_E_LIMIT, "metadata larger than this machine can address");
    unsigned char *grown = tn_realloc(c->bytes, (size_t)target + 1); /* room for the NUL of the last string */
    if (!grown) return TN_E_NOMEM;
    c->bytes = grown;
    TN_TRY(c->source->read(c->source->user, c->have, grown + c->have, (size_t)target - c->have));
    c->have = (size_t)target;
    return TN_OK;
}

static tn_status take_bytes(cursor *c, void *out, size_t size, const char *what) {
    TN_TRY(require_bytes(c, size, what));
    memcpy(out, c->bytes + c->position, size);
    c->position += size;
    return TN_OK;
}

static tn_status take_count(cursor *c, uint64_t *count, uint64_t limit, size_t min_bytes, const char *what) {
    uint64_t at = c->position;
    TN_TRY(take_bytes(c, count, 8, what));
    if (*count > (c->source->size - c->position) / min_bytes)
        return tn_fail(TN_E_FORMAT,
                       "%s: byte %" PRIu64 ": %s is %" PRIu64 ", more than the rest of the file can hold",
                       c->source->path, at, what, *count);
    if (*count > limit)
        return tn_fail(TN_E_LIMIT, "%s: byte %" PRIu64 ": %s is %" PRIu64 ", the limit is %" PRIu64, c->source->path,
                       at, what, *count, limit);
    return TN_OK;
}

/* Checks a string and skips it; `at` receives the position of its bytes. */
static tn_status take_string(cursor *c, uint64_t *at, uint64_t *size, uint64_t limit, const char *what) {
    TN_TRY(take_count(c, size, limit, 1, what));
    *at = c->position;
    TN_TRY(require_bytes(c, *size, what));
    c->position += *size;
    return TN_OK;
}

static tn_status take_name(cursor *c, uint64_t *at, uint64_t *size, uint64_t limit, const char *what) {
    uint64_t start = c->position;
    TN_TRY(take_string(c, at, size, limit, what));
    if (*size == 0) return tn_fail(TN_E_FORMAT, "%s: byte %" PRIu64 ": %s is 0", c->source->path, start, what);
    if (memchr(c->bytes + *at, 0, (size_t)*size))
        return tn_fail(TN_E_FORMAT, "%s: byte %" PRIu64 ": NUL byte in a name", c->source->path, *at);
    return TN_OK;
}

static tn_status take_type(cursor *c, uint32_t *type) {
    uint64_t at = c->position;
    TN_TRY(take_bytes(c, type, 4, "a value's type"));
    if (tn__gguf_type_bytes(*type) == 0)
        return tn_fail(TN_E_FORMAT, "%s: byte %" PRIu64 ": unknown metadata type %" PRIu32, c->source->path, at,
                       *type);
    return TN_OK;
}

static tn_status check_bools(const cursor *c, uint64_t at, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (c->bytes[at + i] > 1)
            return tn_fail(TN_E_FORMAT, "%s: byte %" PRIu64 ": a bool is %d", c->source->path, at + i,
                           c->bytes[at + i]);
    return TN_OK;
}

/* Bytes of an element in the file: 8 is the length of an empty string, 12 the type and count of an empty array. */
static size_t file_bytes(uint32_t type) {
    return type == TN_GGUF_STR ? 8 : type == TN_GGUF_ARR ? 12 : tn__gguf_type_bytes(type);
}

/* Whether elements are aligned in the file, given that `bytes` is aligned to 16. */
static bool lies_aligned(uint64_t at, uint32_t type) { return at % tn__gguf_type_bytes(type) == 0; }

/* ---- First pass: check ---- */

static tn_status walk_array(cursor *c, int depth) {
    uint32_t type;
    uint64_t at, size, count, start = c->position;
    if (depth > TN_GGUF_MAX_NESTING) return parse_error(c, start, TN_E_LIMIT, "arrays nested too deeply");
    TN_TRY(take_type(c, &type));
    TN_TRY(take_count(c, &count, UINT64_MAX, file_bytes(type), "an array's length"));
    at = c->position;
    if (type == TN_GGUF_STR || type == TN_GGUF_ARR) {
        c->pool += (size_t)count * tn__gguf_type_bytes(type); /* at most twice the bytes in the file: no overflow */
        for (uint64_t i = 0; i < count; i++)
            TN_TRY(type == TN_GGUF_STR ? take_string(c, &at, &size, UINT64_MAX, "a string's length")
                                       : walk_array(c, depth + 1));
        return TN_OK;
    }
    size = count * tn__gguf_type_bytes(type);
    TN_TRY(require_bytes(c, size, "an array"));
    if (type == TN_GGUF_BOOL) TN_TRY(check_bools(c, at, count));
    if (!lies_aligned(at, type)) c->pool += tn__align_up((size_t)size, 8);
    c->position += size;
    return TN_OK;
}

static tn_status walk_key(cursor *c) {
    uint32_t type;
    uint64_t at, size;
    TN_TRY(take_name(c, &at, &size, TN_GGUF_MAX_KEY, "a key's length"));
    TN_TRY(take_type(c, &type));
    if (type == TN_GGUF_ARR) return walk_array(c, 1);
    if (type == TN_GGUF_STR) return take_string(c, &at, &size, UINT64_MAX, "a string's length");
    at = c->position;
    size = tn__gguf_type_bytes(type);
    TN_TRY(require_bytes(c, size, "a value"));
    if (type == TN_GGUF_BOOL) TN_TRY(check_bools(c, at, 1));
    c->position += size;
    return TN_OK;
}

static tn_status walk_tensor(cursor *c) {
    uint32_t dims, type;
    uint64_t at, size, offset, start;
    TN_TRY(take_name(c, &at, &size, TN_GGUF_MAX_NAME, "a tensor name's length"));
    start = c->position;
    TN_TRY(take_bytes(c, &dims, 4, "a tensor's entry"));
    if (dims > 4)
        return tn_fail(TN_E_FORMAT, "%s: byte %" PRIu64 ": a tensor with %" PRIu32 " dimensions; the maximum is 4",
                       c->source->path, start, dims);
    TN_TRY(require_bytes(c, dims * 8 + 12, "a tensor's entry"));
    c->position += dims * 8;
    TN_TRY(take_bytes(c, &type, 4, "a tensor's type"));
    return take_bytes(c, &offset, 8, "a tensor's offset");
}

static tn_status walk_header(cursor *c, tn__gguf_head *head, uint64_t *n_keys, uint64_t *n_tensors) {
    unsigned char magic[4];
    TN_TRY(take_bytes(c, magic, 4, "the magic number"));
    if (memcmp(magic, TN__GGUF_MAGIC, 4) != 0)
        return tn_fail(TN_E_FORMAT, "%s: byte 0: not a GGUF file (it starts with %02x %02x %02x %02x)",
                       c->source->path, magic[0], magic[1], magic[2], magic[3]);
    TN_TRY(take_bytes(c, &head->version, 4, "the version"));
    if (head->version != 0 && (head->version & 0xffff) == 0)
        return parse_error(c, 4, TN_E_VERSION, "big-endian GGUF files are not supported");
    if (head->version != 2 && head->version != 3)
        return tn_fail(TN_E_VERSION, "%s: byte 4: GGUF version %" PRIu32 " is not supported (2 and 3 are)",
                       c->source->path, head->version);
    TN_TRY(take_count(c, n_tensors, TN_GGUF_MAX_TENSORS, MIN_TENSOR_BYTES, "the number of tensors"));
    return take_count(c, n_keys, TN_GGUF_MAX_KEYS, MIN_KV_BYTES, "the number of metadata keys");
}

/* ---- Second pass: fill ---- */

static uint64_t read_u64(cursor *c) {
    uint64_t x;
    memcpy(&x, c->bytes + c->position, 8);
    c->position += 8;
    return x;
}
static uint32_t read_u32(cursor *c) {
    uint32_t x;
    memcpy(&x, c->bytes + c->position, 4);
    c->position += 4;
    return x;
}
static tn_gguf_str read_str(cursor *c) {
    tn_gguf_str str = {.size = (size_t)read_u64(c)};
    str.data = (const char *)c->bytes + c->position;
    c->position += str.size;
    return str;
}

static tn_gguf_arr fill_array(cursor *c) {
    tn_gguf_arr arr = {.type = (tn_gguf_type)read_u32(c)};
    arr.count = read_u64(c);
    size_t size = (size_t)arr.count * tn__gguf_type_bytes(arr.type);
    void *target = c->pool_base + c->pool;
    if (arr.type == TN_GGUF_STR) {
        tn_gguf_str *strings = target;
        c->pool += size;
        for (uint64_t i = 0; i < arr.count; i++) strings[i] = read_str(c);
    } else if (arr.type == TN_GGUF_ARR) {
        tn_gguf_arr *arrays = target;
        c->pool += size;
        for (uint64_t i = 0; i < arr.count; i++) arrays[i] = fill_array(c);
    } else {
        if (lies_aligned(c->position, arr.type)) {
            target = c->bytes + c->position;
        } else {
            memcpy(target, c->bytes + c->position, size);
            c->pool += tn__align_up(size, 8);
        }
        c->position += size;
    }
    arr.data = target;
    return arr;
}

static void fill_value(cursor *c, tn_gguf_value *value) {
    unsigned char raw[8] = {0};
    value->type = (tn_gguf_type)read_u32(c);
    if (value->type == TN_GGUF_STR) {
        value->str = read_str(c);
        return;
    }
    if (value->type == TN_GGUF_ARR) {
        value->arr = fill_array(c);
        return;
    }
    size_t size = tn__gguf_type_bytes(value->type);
    memcpy(raw, c->bytes + c->position, size);
    c->position += size;
    tn_gguf_arr one = {.data = raw, .count = 1, .type = value->type};
    tn_gguf_arr_at(&one, 0, value);
}

tn_status tn__gguf_tensor_bytes(const char *where, uint32_t type_id, const int64_t ne[4], size_t *size) {
    if (type_id >= TN_TYPE_LIMIT || !tn_type_valid((tn_type)type_id) || type_id == TN_FP8)
        return tn_fail(TN_E_FORMAT, "%s: unknown tensor type %" PRIu32, where, type_id);
    tn_type type = (tn_type)type_id;
    int64_t block = tn_type_block(type), rows = 1, count;
    size_t row;
    for (int i = 0; i < 4; i++)
        if (ne[i] <= 0)
            return tn_fail(TN_E_FORMAT, "%s: dimension %d is %" PRId64 "; it must be at least 1", where, i, ne[i]);
    if (ne[0] % block != 0)
        return tn_fail(TN_E_FORMAT, "%s: rows of %" PRId64 " elements are not a multiple of the %s block of %" PRId64,
                       where, ne[0], tn_type_name(type), block);
    if (!tn__mul_i64(ne[1], ne[2], &rows) || !tn__mul_i64(rows, ne[3], &rows) || !tn__mul_i64(rows, ne[0], &count) ||
        !tn__mul_size((size_t)(ne[0] / block), tn_type_bytes(type), &row) || !tn__mul_size(row, (size_t)rows, size) ||
        *size > INT64_MAX)
        return tn_fail(TN_E_FORMAT, "%s: %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64 " elements overflow",
                       where, ne[0], ne[1], ne[2], ne[3]);
    return TN_OK;
}

static tn_status fill_tensor(cursor *c, tn_gguf_tensor *tensor) {
    uint64_t at = c->position;
    tn_gguf_str name = read_str(c);
    *tensor = (tn_gguf_tensor){.name = name.data, .ne = {1, 1, 1, 1}};
    tensor->n_dims = (int)read_u32(c);
    for (int i = 0; i < tensor->n_dims; i++) tensor->ne[i] = (int64_t)read_u64(c);
    uint32_t type = read_u32(c);
    tensor->file_offset = read_u64(c);
    char where[1024];
    snprintf(where, sizeof where, "%s: byte %" PRIu64 ": tensor \"%.*s\"", c->source->path, at, (int)name.size,
             name.data);
    TN_TRY(tn__gguf_tensor_bytes(where, type, tensor->ne, &tensor->size));
    tensor->type = (tn_type)type;
    return TN_OK;
}

/* Overwrites the byte after a string with a NUL. That byte is the first of a length, a type or a count that has
 * already been read, or the spare byte at the end. */
static void end_string(tn_gguf_str str) { ((char *)(uintptr_t)str.data)[str.size] = '\0'; }
static void end_strings(const tn_gguf_arr *arr) {
    if (arr->type == TN_GGUF_STR)
        for (uint64_t i = 0; i < arr->count; i++) end_string(((const tn_gguf_str *)arr->data)[i]);
    if (arr->type == TN_GGUF_ARR)
        for (uint64_t i = 0; i < arr->count; i++) end_strings(&((const tn_gguf_arr *)arr->data)[i]);
}

/* ---- Tensors and the data section ---- */

static const tn_gguf_value *find_key(const tn__gguf_head *head, const char *key) {
    size_t i = tn__gguf_index_find(&head->key_index, head->keys, sizeof *head->keys, key);
    return i == SIZE_MAX ? NULL : &head->keys[i].value;
}

static tn_status find_alignment(const cursor *c, tn__gguf_head *head) {
    const tn_gguf_value *value = find_key(head, "general.alignment");
    uint64_t alignment = TN_GGUF_DEFAULT_ALIGNMENT;
    if (value && !tn_gguf_value_u64(value, &alignment))
        return tn_fail(TN_E_FORMAT, "%s: general.alignment has type %s, not an unsigned integer", c->source->path,
                       tn_gguf_type_name(value->type));
    if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        return tn_fail(TN_E_FORMAT, "%s: general.alignment is %" PRIu64 ", not a power of two", c->source->path,
                       alignment);
    if (alignment > TN_GGUF_MAX_ALIGNMENT)
        return tn_fail(TN_E_LIMIT, "%s: general.alignment is %" PRIu64 ", the limit is %d", c->source->path,
                       alignment, TN_GGUF_MAX_ALIGNMENT);
    head->alignment = (uint32_t)alignment;
    return TN_OK;
}

static int by_offset(const void *a, const void *b) {
    const tn_gguf_tensor *x = *(const tn_gguf_tensor *const *)a, *y = *(const tn_gguf_tensor *const *)b;
    return x->file_offset < y->file_offset ? -1 : x->file_offset > y->file_offset;
}

/* Checks that every tensor is aligned, inside the data section and does not overlap others; converts offsets to file
 * offsets. */
static tn_status check_offsets(const cursor *c, tn__gguf_head *head) {
    const char *path = c->source->path;
    size_t n = head->tensor_count;
    head->data_offset = (c->position + head->alignment - 1) & ~(uint64_t)(head->alignment - 1);
    const tn_gguf_value *no_data = find_key(head, "tenon.no_data");
    head->no_data =
        no_data && no_data->type == TN_GGUF_BOOL && no_data->b && n > 0 && c->source->size <= head->data_offset;
    uint64_t room = c->source->size > head->data_offset ? c->source->size - head->data_offset : 0;
    if (head->no_data) room = INT64_MAX - head->data_offset;
    for (size_t i = 0; i < n; i++) {
        tn_gguf_tensor *t = &head->tensors[i];
        uint64_t at = (uint64_t)(t->name - (const char *)c->bytes);
        if (t->file_offset % head->alignment != 0)
            return tn_fail(TN_E_FORMAT,
                           "%s: byte %" PRIu64 ": tensor \"%s\" starts at offset %" PRIu64
                           ", not a multiple of the alignment %" PRIu32,
                           path, at, t->name, t->file_offset, head->alignment);
        if (t->file_offset > room || t->size > room - t->file_offset)
            return tn_fail(TN_E_FORMAT,
                           "%s: byte %" PRIu64 ": tensor \"%s\" takes %zu bytes from offset %" PRIu64
                           " of a data section of %" PRIu64 " bytes: the file is cut short or damaged",
                           path, at, t->name, t->size, t->file_offset, room);
    }
    const tn_gguf_tensor **order = tn_malloc(n * sizeof *order);
    if (!order) return TN_E_NOMEM;
    for (size_t i = 0; i < n; i++) order[i] = &head->tensors[i];
    qsort(order, n, sizeof *order, by_offset);
    tn_status status = TN_OK;
    for (size_t i = 1; i < n && status == TN_OK; i++)
        if (order[i - 1]->file_offset + order[i - 1]->size > order[i]->file_offset)
            status = tn_fail(TN_E_FORMAT,
                             "%s: byte %" PRIu64 ": tensor \"%s\" (%zu bytes from offset %" PRIu64
                             ") overlaps tensor \"%s\" (from offset %" PRIu64 ")",
                             path, (uint64_t)(order[i - 1]->name - (const char *)c->bytes), order[i - 1]->name,
                             order[i - 1]->size, order[i - 1]->file_offset, order[i]->name, order[i]->file_offset);
    tn_free(order);
    TN_TRY(status);
    for (size_t i = 0; i < n; i++) head->tensors[i].file_offset += head->data_offset;
    return TN_OK;
}

/* ---- Both passes ---- */

static tn_status fill_keys(cursor *c, tn__gguf_head *head) {
    head->keys = tn_calloc(head->key_count, sizeof *head->keys);
    head->tensors = tn_calloc(head->tensor_count, sizeof *head->tensors);
    head->pool = tn_malloc(c->pool);
    if (!head->keys || !head->tensors || !head->pool) return TN_E_NOMEM;
    c->pool = 0;
    c->pool_base = head->pool;
    c->position = 24;
    for (size_t i = 0; i < head->key_count; i++) {
        head->keys[i].key = read_str(c);
        fill_value(c, &head->keys[i].value);
    }
    for (size_t i = 0; i < head->tensor_count; i++) TN_TRY(fill_tensor(c, &head->tensors[i]));
    for (size_t i = 0; i < head->tensor_count; i++) {
        uint64_t size;
        const char *name = head->tensors[i].name;
        memcpy(&size, name - 8, 8); /* still intact: the metadata before it is terminated later */
        end_string((tn_gguf_str){name, (size_t)size});
    }
    for (size_t i = 0; i < head->key_count; i++) {
        const tn_gguf_value *value = &head->keys[i].value;
        end_string(head->keys[i].key);
        if (value->type == TN_GGUF_STR) end_string(value->str);
        if (value->type == TN_GGUF_ARR) end_strings(&value->arr);
    }
    size_t duplicate;
    TN_TRY(tn__gguf_index_build(&head->key_index, head->keys, sizeof *head->keys, head->key_count, &duplicate));
    if (duplicate < head->key_count)
        return tn_fail(TN_E_FORMAT, "%s: byte %" PRIu64 ": key \"%s\" appears twice", c->source->path,
                       (uint64_t)(head->keys[duplicate].key.data - (const char *)c->bytes),
                       head->keys[duplicate].key.data);
    TN_TRY(find_alignment(c, head));
    return check_offsets(c, head);
}

tn_status tn__gguf_head_parse(const tn__gguf_source *source, tn__gguf_head *head) {
    *head = (tn__gguf_head){0};
    cursor c = {.source = source};
    uint64_t n_keys, n_tensors;
    tn_status status;
    TN_TRY_GOTO(walk_header(&c, head, &n_keys, &n_tensors), status, out);
    for (uint64_t i = 0; i < n_keys; i++) TN_TRY_GOTO(walk_key(&c), status, out);
    for (uint64_t i = 0; i < n_tensors; i++) TN_TRY_GOTO(walk_tensor(&c), status, out);
    head->key_count = (size_t)n_keys;
    head->tensor_count = (size_t)n_tensors;
    status = fill_keys(&c, head);
out:
    head->bytes = c.bytes;
    if (status != TN_OK) tn__gguf_head_free(head);
    return status;
}

void tn__gguf_head_free(tn__gguf_head *head) {
    tn_free(head->bytes);
    tn_free(head->pool);
    tn_free(head->keys);
    tn_free(head->tensors);
    tn_free(head->key_index.slots);
    *head = (tn__gguf_head){0};
}

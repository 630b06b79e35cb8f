/* GGUF model files: reading, writing, editing and splitting of metadata and tensors.
 *
 * A tn_gguf is an open file, or a set of split files that appears as one. It is immutable, so any number of threads
 * may use it. It owns everything it returns, until the last tn_gguf_close(). Files are not trusted: every count,
 * length and offset is checked against the size of the file before use, and the error message of a malformed file
 * names the byte offset and the reason.
 *
 * Statuses: TN_E_IO (a system call failed), TN_E_FORMAT (malformed file), TN_E_VERSION (unsupported version or byte
 * order), TN_E_LIMIT (a limit below is exceeded), TN_E_NOMEM. */
#ifndef TENON_GGUF_H
#define TENON_GGUF_H

#include "tenon/base.h"
#include "tenon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits, far above any released model. They bound the cost of hostile files. */
#define TN_GGUF_MAX_KEYS 65536     /* metadata entries */
#define TN_GGUF_MAX_TENSORS 131072 /* tensors in all parts together */
#define TN_GGUF_MAX_KEY 65535      /* bytes in a key */
#define TN_GGUF_MAX_NAME 255       /* bytes in a tensor's name */
#define TN_GGUF_MAX_NESTING 8      /* arrays in arrays */
#define TN_GGUF_MAX_ALIGNMENT (1 << 26)
#define TN_GGUF_MAX_PARTS 10000 /* files of a split model */
#define TN_GGUF_DEFAULT_ALIGNMENT 32

/* ---- Values ---- */

/* X(NAME, id in the file, "name", bytes of one element in memory) */
#define TN_GGUF_TYPE_TABLE(X)                                                                                        \
    X(U8, 0, "u8", 1)                                                                                                \
    X(I8, 1, "i8", 1)                                                                                                \
    X(U16, 2, "u16", 2)                                                                                              \
    X(I16, 3, "i16", 2)                                                                                              \
    X(U32, 4, "u32", 4)                                                                                              \
    X(I32, 5, "i32", 4)                                                                                              \
    X(F32, 6, "f32", 4)                                                                                              \
    X(BOOL, 7, "bool", 1)                                                                                            \
    X(STR, 8, "str", 16)                                                                                             \
    X(ARR, 9, "arr", 24)                                                                                             \
    X(U64, 10, "u64", 8)                                                                                             \
    X(I64, 11, "i64", 8)                                                                                             \
    X(F64, 12, "f64", 8)

typedef enum tn_gguf_type {
#define TN_X(name, id, text, bytes) TN_GGUF_##name = id,
    TN_GGUF_TYPE_TABLE(TN_X)
#undef TN_X
} tn_gguf_type;
TN_API const char *tn_gguf_type_name(tn_gguf_type type); /* "u32"; "?" outside the table */

/* Bytes, not necessarily text. Strings returned by the reader end with a NUL that `size` does not count; strings
 * passed to the writer need no NUL. An absent string has data == NULL. */
typedef struct tn_gguf_str {
    const char *data;
    size_t size;
} tn_gguf_str;

/* `data` points to `count` elements: numbers of the given type in native alignment, bools as bytes 0 or 1,
 * tn_gguf_str for STR, tn_gguf_arr for ARR (each with its own type and count). */
typedef struct tn_gguf_arr {
    const void *data;
    uint64_t count;
    tn_gguf_type type;
} tn_gguf_arr;

/* One metadata value. Integers are widened into `u` or `i` by their signedness, floats into `f`. */
typedef struct tn_gguf_value {
    tn_gguf_type type;
    union {
        uint64_t u; /* U8 U16 U32 U64 */
        int64_t i;  /* I8 I16 I32 I64 */
        double f;   /* F32 F64 */
        bool b;
        tn_gguf_str str;
        tn_gguf_arr arr;
    };
} tn_gguf_value;

typedef struct tn_gguf_kv {
    tn_gguf_str key;
    tn_gguf_value value;
} tn_gguf_kv;

/* ---- Reading ---- */

typedef struct tn_gguf tn_gguf;

/* How tensor data is accessed. Metadata is read in every mode. If another program truncates a mapped file, an access
 * to the lost pages raises SIGBUS, as with every memory map: where that may happen, use READ, or META with
 * tn_gguf_read(). tn_gguf_check_unchanged() detects it cheaply. A file with an alignment below 32 is read instead of
 * mapped. */
typedef enum tn_gguf_mode {
    TN_GGUF_MAP,  /* data pointers into a read-only memory map */
    TN_GGUF_READ, /* data pointers into allocated memory, each aligned to 64 */
    TN_GGUF_META  /* no data pointers; tn_gguf_read() works */
} tn_gguf_mode;

typedef struct tn_gguf_params {
    tn_gguf_mode mode;
    bool one_part;    /* open only this file, even if it is part of a split set */
    const char *name; /* of a file in memory, for messages; NULL: "memory" */
} tn_gguf_params;

typedef struct tn_gguf_tensor {
    const char *name;
    tn_type type;
    int n_dims;           /* as in the file; the rest of ne is 1 */
    int64_t ne[4];        /* innermost first */
    size_t size;          /* bytes of data */
    uint64_t file_offset; /* of the data, from the start of the file of its part */
    int part;             /* which file of a split set, from 0 */
    const void *data;     /* NULL in META mode and for a file without data; otherwise aligned to at least 32 */
} tn_gguf_tensor;

/* Opens a file; `params` may be NULL (MAP). For any file of a split set ("NAME-00002-of-00005.gguf"), all files of
 * the set are opened and appear as one, with the metadata of the first and the tensors of all. */
TN_API tn_status tn_gguf_open(const char *path, const tn_gguf_params *params, tn_gguf **file);
/* Opens a file in memory, which must stay valid while data pointers are in use: they point into it if the alignment
 * permits. Never opens other files. */
TN_API tn_status tn_gguf_open_memory(const void *bytes, size_t size, const tn_gguf_params *params, tn_gguf **file);
/* Adds an owner; every owner calls tn_gguf_close() once. Returns `file`. */
TN_API tn_gguf *tn_gguf_share(tn_gguf *file);
TN_API void tn_gguf_close(tn_gguf *file); /* accepts NULL */

TN_API const char *tn_gguf_path(const tn_gguf *file); /* of the first part; its name for a file in memory */
TN_API const char *tn_gguf_part_path(const tn_gguf *file, int part);
TN_API int tn_gguf_part_count(const tn_gguf *file);
TN_API uint32_t tn_gguf_version(const tn_gguf *file);
TN_API uint32_t tn_gguf_alignment(const tn_gguf *file);
TN_API uint64_t tn_gguf_file_bytes(const tn_gguf *file); /* of all parts */
/* False for a plan-only file: "tenon.no_data" is true and nothing follows the tensor table. */
TN_API bool tn_gguf_has_data(const tn_gguf *file);
/* TN_E_STATE if the size or modification time of a file of the set has changed since it was opened. */
TN_API tn_status tn_gguf_check_unchanged(const tn_gguf *file);

/* Metadata by index and by key; NULL if it does not exist. */
TN_API uint64_t tn_gguf_key_count(const tn_gguf *file);
TN_API const tn_gguf_kv *tn_gguf_key_at(const tn_gguf *file, uint64_t index);
TN_API const tn_gguf_value *tn_gguf_find(const tn_gguf *file, const char *key);

/* Typed getters: the value if the key exists and its value is representable (any integer type for integers, any
 * number for floats), otherwise `missing`. tn_gguf_need_*() fail instead, with TN_E_NOT_FOUND or TN_E_FORMAT and a
 * message that names the key, its type and the file. */
TN_API uint32_t tn_gguf_get_u32(const tn_gguf *file, const char *key, uint32_t missing);
TN_API int32_t tn_gguf_get_i32(const tn_gguf *file, const char *key, int32_t missing);
TN_API uint64_t tn_gguf_get_u64(const tn_gguf *file, const char *key, uint64_t missing);
TN_API int64_t tn_gguf_get_i64(const tn_gguf *file, const char *key, int64_t missing);
TN_API float tn_gguf_get_f32(const tn_gguf *file, const char *key, float missing);
TN_API double tn_gguf_get_f64(const tn_gguf *file, const char *key, double missing);
TN_API bool tn_gguf_get_bool(const tn_gguf *file, const char *key, bool missing);
TN_API const char *tn_gguf_get_cstr(const tn_gguf *file, const char *key, const char *missing);
TN_API tn_gguf_str tn_gguf_get_str(const tn_gguf *file, const char *key);        /* data NULL when missing */
TN_API const tn_gguf_arr *tn_gguf_get_arr(const tn_gguf *file, const char *key); /* NULL when missing */
/* An array of exactly this element type; NULL and *count = 0 if it is missing or has another type. */
TN_API const void *tn_gguf_get_array(const tn_gguf *file, const char *key, tn_gguf_type type, uint64_t *count);

/* For keys that hold either one number for all layers or an array with one per layer: element `index` of the array,
 * or the number. */
TN_API uint32_t tn_gguf_get_u32_at(const tn_gguf *file, const char *key, uint64_t index, uint32_t missing);
TN_API float tn_gguf_get_f32_at(const tn_gguf *file, const char *key, uint64_t index, float missing);
TN_API bool tn_gguf_get_bool_at(const tn_gguf *file, const char *key, uint64_t index, bool missing);

TN_API tn_status tn_gguf_need_u32(const tn_gguf *file, const char *key, uint32_t *value);
TN_API tn_status tn_gguf_need_f32(const tn_gguf *file, const char *key, float *value);
TN_API tn_status tn_gguf_need_str(const tn_gguf *file, const char *key, tn_gguf_str *value);

/* Converts any value to a number; false if it is not a number, not an integer, or out of range. */
TN_API bool tn_gguf_value_i64(const tn_gguf_value *value, int64_t *out);
TN_API bool tn_gguf_value_u64(const tn_gguf_value *value, uint64_t *out);
TN_API bool tn_gguf_value_f64(const tn_gguf_value *value, double *out);
/* Element `index` of an array as a value (an inner array as ARR); false past the end. */
TN_API bool tn_gguf_arr_at(const tn_gguf_arr *arr, uint64_t index, tn_gguf_value *out);

/* Tensors by index in file order, and by name (hashed); NULL if it does not exist. */
TN_API uint64_t tn_gguf_tensor_count(const tn_gguf *file);
TN_API const tn_gguf_tensor *tn_gguf_tensor_at(const tn_gguf *file, uint64_t index);
TN_API const tn_gguf_tensor *tn_gguf_find_tensor(const tn_gguf *file, const char *name);

/* Copies bytes [offset, offset + size) of a tensor's data in any mode, by reading the file. A truncated file is
 * TN_E_IO, never a signal. */
TN_API tn_status tn_gguf_read(const tn_gguf *file, const tn_gguf_tensor *tensor, size_t offset, void *out,
                              size_t size);
/* Advises the system that a mapped range will be read soon, or not again. No effect in other modes. */
TN_API void tn_gguf_prefetch(const tn_gguf *file, const tn_gguf_tensor *tensor);
TN_API void tn_gguf_evict(const tn_gguf *file, const tn_gguf_tensor *tensor);

/* Writes the name of part `part` (from 0) of `count`: replaces the suffix ".gguf" of `base` by, for example,
 * "-00001-of-00005.gguf". TN_E_LIMIT if it does not fit into `size`. */
TN_API tn_status tn_gguf_part_name(const char *base, int part, int count, char *out, size_t size);

/* ---- Writing ---- */
/* Set keys and add tensors in any order; begin; write the bytes of the tensors, in the order in which they were added
 * and in pieces of any size; finish. Only the tables are held in memory. The file is written under a temporary name
 * in the same folder ("NAME.PID-N.partial") and renamed when finish() has written all of it to disk. A writer belongs
 * to one thread at a time. After a failure of any call but set and add, the writer can only be freed. */

typedef struct tn_gguf_writer tn_gguf_writer;

typedef struct tn_gguf_writer_params {
    /* 0: one file. Otherwise a split set of files "-00001-of-0000N" of at most this many bytes each; a larger tensor
     * gets a file of its own. */
    uint64_t part_bytes;
    bool no_data; /* metadata and tensor table only, for planning; marked with the key "tenon.no_data" */
} tn_gguf_writer_params;

/* `params` may be NULL. */
TN_API tn_status tn_gguf_writer_new(const char *path, const tn_gguf_writer_params *params, tn_gguf_writer **writer);
/* Removes unfinished files from disk. Accepts NULL. */
TN_API void tn_gguf_writer_free(tn_gguf_writer *writer);

/* Adds a key, or replaces its value and keeps its position. Everything is copied. "general.alignment" (a power of
 * two, default 32) sets the alignment of the data. The keys "split.*" and "tenon.no_data" are ignored: the writer
 * sets them itself. */
TN_API tn_status tn_gguf_writer_set(tn_gguf_writer *writer, const char *key, const tn_gguf_value *value);
TN_API tn_status tn_gguf_writer_set_u32(tn_gguf_writer *writer, const char *key, uint32_t value);
TN_API tn_status tn_gguf_writer_set_i32(tn_gguf_writer *writer, const char *key, int32_t value);
TN_API tn_status tn_gguf_writer_set_f32(tn_gguf_writer *writer, const char *key, float value);
TN_API tn_status tn_gguf_writer_set_bool(tn_gguf_writer *writer, const char *key, bool value);
TN_API tn_status tn_gguf_writer_set_cstr(tn_gguf_writer *writer, const char *key, const char *value);
TN_API tn_status tn_gguf_writer_set_array(tn_gguf_writer *writer, const char *key, tn_gguf_type type,
                                          const void *data, uint64_t count);
TN_API tn_status tn_gguf_writer_copy_keys(tn_gguf_writer *writer, const tn_gguf *file); /* all keys of a file */
TN_API bool tn_gguf_writer_remove(tn_gguf_writer *writer, const char *key);             /* false: no such key */
/* The keys so far, as a file without tensors. It is independent of the writer; the caller closes it. */
TN_API tn_status tn_gguf_writer_metadata(const tn_gguf_writer *writer, tn_gguf **metadata) TN_MUST_CHECK;

TN_API tn_status tn_gguf_writer_add(tn_gguf_writer *writer, const char *name, tn_type type, int n_dims,
                                    const int64_t *ne);
TN_API tn_status tn_gguf_writer_begin(tn_gguf_writer *writer);
TN_API tn_status tn_gguf_writer_write(tn_gguf_writer *writer, const void *bytes, size_t size);
TN_API tn_status tn_gguf_writer_finish(tn_gguf_writer *writer);
/* After begin(): the total size of all files, and their number. */
TN_API uint64_t tn_gguf_writer_bytes(const tn_gguf_writer *writer);
TN_API int tn_gguf_writer_part_count(const tn_gguf_writer *writer);

/* The metadata and the tensor table of all parts, as the bytes of one plan-only file: another process opens them with
 * tn_gguf_open_memory() and knows the model without its data. The caller frees them with tn_free(). */
TN_API tn_status tn_gguf_head(const tn_gguf *file, void **bytes, size_t *size) TN_MUST_CHECK;

/* ---- Editing, merging, splitting ---- */

typedef struct tn_gguf_rename {
    const char *from, *to;
} tn_gguf_rename;

typedef struct tn_gguf_copy_params {
    const tn_gguf_kv *set; /* keys to change or add; key.data must end with a NUL */
    size_t set_count;
    const char *const *remove; /* keys to omit; TN_E_NOT_FOUND if absent */
    size_t remove_count;
    const tn_gguf_rename *rename; /* tensors; TN_E_NOT_FOUND if absent */
    size_t rename_count;
    uint64_t part_bytes; /* as in tn_gguf_writer_params */
    int *part_count;     /* receives the number of files written; may be NULL */
    bool (*progress)(void *user, uint64_t done, uint64_t total); /* in bytes; returns false to stop (TN_E_ABORTED) */
    void *user;
} tn_gguf_copy_params;

/* Writes an open file (all its parts) to a new file with these changes. `path` may be the file's own: it is replaced
 * atomically when everything is on disk, and the open file keeps the old content. `params` may be NULL. */
TN_API tn_status tn_gguf_copy(const tn_gguf *file, const char *path, const tn_gguf_copy_params *params);

#ifdef __cplusplus
}
#endif
#endif

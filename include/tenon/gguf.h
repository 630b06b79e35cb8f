/* GGUF model files: metadata and tensors, read, written, edited and split.
 *
 * A tn_gguf is an open file (or a set of split files seen as one). It is immutable, so any number of threads may use
 * it; everything it hands out is owned by it and lives until the last tn_gguf_close(). Files come from strangers:
 * every count, length and offset is checked against the file's size before it is used, and a bad file is an error
 * that names the byte offset and what is wrong there.
 *
 * Statuses: TN_E_IO (the system refused), TN_E_FORMAT (the file is malformed), TN_E_VERSION (a version or byte order
 * not read), TN_E_LIMIT (a limit below), TN_E_NOMEM. */
#ifndef TENON_GGUF_H
#define TENON_GGUF_H

#include "tenon/base.h"
#include "tenon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits. They are far above any released model, and keep hostile files cheap. */
#define TN_GGUF_MAX_KEYS 65536     /* metadata entries */
#define TN_GGUF_MAX_TENSORS 131072 /* tensors in all parts together */
#define TN_GGUF_MAX_KEY 65535      /* bytes in a key */
#define TN_GGUF_MAX_NAME 255       /* bytes in a tensor's name */
#define TN_GGUF_MAX_NESTING 8      /* arrays in arrays */
#define TN_GGUF_MAX_ALIGNMENT (1 << 26)
#define TN_GGUF_MAX_PARTS 10000 /* files of a split model */
#define TN_GGUF_DEFAULT_ALIGNMENT 32

/* ---- Values -------------------------------------------------------------------------------------------------- */

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

/* Bytes, not necessarily text. What the reader returns is followed by a NUL that `size` does not count; what the
 * writer is given need not be. An absent string has data == NULL. */
typedef struct tn_gguf_str {
    const char *data;
    size_t size;
} tn_gguf_str;

/* `data` points at `count` elements: numbers of the named type in native alignment, bools as one byte 0 or 1,
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

/* ---- Reading ------------------------------------------------------------------------------------------------- */

typedef struct tn_gguf tn_gguf;

/* How tensor data becomes memory. Metadata is always read, so only the data pointers of a mapped file touch the
 * map. MAP: a read-only map that the system pages in; if another program truncates the file meanwhile, touching the
 * lost pages raises SIGBUS, as with every map: use READ, or META with tn_gguf_read(), where that may happen.
 * tn_gguf_check_unchanged() tells cheaply whether it did. A file whose alignment is below 32 is read, not mapped. */
typedef enum tn_gguf_mode {
    TN_GGUF_MAP,  /* data pointers into a map */
    TN_GGUF_READ, /* data pointers into memory of our own, each aligned to 64 */
    TN_GGUF_META  /* no data pointers; tn_gguf_read() still works */
} tn_gguf_mode;

typedef struct tn_gguf_params {
    tn_gguf_mode mode;
    bool one_part; /* open this file alone, even when it is one of a split set */
} tn_gguf_params;

typedef struct tn_gguf_tensor {
    const char *name;
    tn_type type;
    int n_dims;           /* as written in the file; ne is filled up with ones */
    int64_t ne[4];        /* innermost first */
    size_t size;          /* bytes of data */
    uint64_t file_offset; /* of the data, from the start of the file of its part */
    int part;             /* which file of a split set, from 0 */
    const void *data;     /* NULL in META mode and in a file without data; else aligned to at least 32 */
} tn_gguf_tensor;

/* Opens a file; `params` may be NULL (MAP). If it is one of a split set ("NAME-00002-of-00005.gguf", any of them),
 * all files of the set are opened and appear as one: the metadata is that of the first, the tensors of all. */
TN_API tn_status tn_gguf_open(const char *path, const tn_gguf_params *params, tn_gguf **file);
/* The same from memory, which must stay valid while data pointers are in use (alignment permitting, they point into
 * it). Never opens other files. */
TN_API tn_status tn_gguf_open_memory(const void *bytes, size_t size, const tn_gguf_params *params, tn_gguf **file);
/* One more owner of the same open file; each owner closes it once. Returns `file`. */
TN_API tn_gguf *tn_gguf_share(tn_gguf *file);
TN_API void tn_gguf_close(tn_gguf *file); /* accepts NULL */

TN_API const char *tn_gguf_path(const tn_gguf *file); /* of the first part; "memory" for one from memory */
TN_API const char *tn_gguf_part_path(const tn_gguf *file, int part);
TN_API int tn_gguf_part_count(const tn_gguf *file);
TN_API uint32_t tn_gguf_version(const tn_gguf *file);
TN_API uint32_t tn_gguf_alignment(const tn_gguf *file);
TN_API uint64_t tn_gguf_file_bytes(const tn_gguf *file); /* of all parts */
/* True unless this is a plan-only file ("tenon.no_data" is true and nothing follows the tensor table). */
TN_API bool tn_gguf_has_data(const tn_gguf *file);
/* TN_E_STATE when a file of the set has a different size or modification time than when it was opened. */
TN_API tn_status tn_gguf_check_unchanged(const tn_gguf *file);

/* Metadata by position and by key; NULL where there is none. */
TN_API uint64_t tn_gguf_key_count(const tn_gguf *file);
TN_API const tn_gguf_kv *tn_gguf_key_at(const tn_gguf *file, uint64_t index);
TN_API const tn_gguf_value *tn_gguf_find(const tn_gguf *file, const char *key);

/* Typed getters: the value when the key exists with a type that holds it exactly (any integer type for integers, any
 * number for floats), else `missing`. tn_gguf_need_*() instead fail with TN_E_NOT_FOUND or TN_E_FORMAT and a message
 * naming the key, the type found and the file. */
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
/* An array of exactly this element type; NULL and *count = 0 when missing or of another type. */
TN_API const void *tn_gguf_get_array(const tn_gguf *file, const char *key, tn_gguf_type type, uint64_t *count);

/* Some keys hold one number for all layers or an array with one per layer: the element `index` of the array, or the
 * number itself. */
TN_API uint32_t tn_gguf_get_u32_at(const tn_gguf *file, const char *key, uint64_t index, uint32_t missing);
TN_API float tn_gguf_get_f32_at(const tn_gguf *file, const char *key, uint64_t index, float missing);
TN_API bool tn_gguf_get_bool_at(const tn_gguf *file, const char *key, uint64_t index, bool missing);

TN_API tn_status tn_gguf_need_u32(const tn_gguf *file, const char *key, uint32_t *value);
TN_API tn_status tn_gguf_need_f32(const tn_gguf *file, const char *key, float *value);
TN_API tn_status tn_gguf_need_str(const tn_gguf *file, const char *key, tn_gguf_str *value);

/* Reads a number out of any value: false when it is not a number, not exact as an integer, or out of range. */
TN_API bool tn_gguf_value_i64(const tn_gguf_value *value, int64_t *out);
TN_API bool tn_gguf_value_u64(const tn_gguf_value *value, uint64_t *out);
TN_API bool tn_gguf_value_f64(const tn_gguf_value *value, double *out);
/* Element `index` of an array as a value of its own (an inner array as ARR); false past the end. */
TN_API bool tn_gguf_arr_at(const tn_gguf_arr *arr, uint64_t index, tn_gguf_value *out);

/* Tensors in file order and by name (hashed); NULL where there is none. */
TN_API uint64_t tn_gguf_tensor_count(const tn_gguf *file);
TN_API const tn_gguf_tensor *tn_gguf_tensor_at(const tn_gguf *file, uint64_t index);
TN_API const tn_gguf_tensor *tn_gguf_find_tensor(const tn_gguf *file, const char *name);

/* Copies bytes [offset, offset + size) of a tensor's data in any mode, by reading the file: a file cut short
 * meanwhile is TN_E_IO, never a signal. */
TN_API tn_status tn_gguf_read(const tn_gguf *file, const tn_gguf_tensor *tensor, size_t offset, void *out,
                              size_t size);
/* Advises the system that a mapped range will be wanted soon, or no more. No effect in other modes. */
TN_API void tn_gguf_prefetch(const tn_gguf *file, const tn_gguf_tensor *tensor);
TN_API void tn_gguf_evict(const tn_gguf *file, const tn_gguf_tensor *tensor);

/* Name of part `part` (from 0) of `count`: the ".gguf" ending of `base` becomes "-00001-of-00005.gguf". TN_E_LIMIT
 * when it does not fit into `size`. */
TN_API tn_status tn_gguf_part_name(const char *base, int part, int count, char *out, size_t size);

/* ---- Writing -------------------------------------------------------------------------------------------------
 * Set keys and add tensors in any order, begin, stream the tensors' bytes in the order they were added in pieces of
 * any size, finish. Nothing but the tables is held in memory. The file appears under its name when finish() has
 * written all of it to disk: it is made under a temporary name beside it ("NAME.PID-N.partial") and renamed. One
 * writer belongs to one thread at a time. A failed call other than set/add leaves the writer good for free() only. */

typedef struct tn_gguf_writer tn_gguf_writer;

typedef struct tn_gguf_writer_params {
    uint64_t part_bytes; /* 0: one file. Else a split set of "-00001-of-0000N" files of at most this many bytes each,
                            as far as single tensors allow */
    bool no_data;        /* metadata and tensor table only, for planning; marked with the key "tenon.no_data" */
} tn_gguf_writer_params;

/* `params` may be NULL. */
TN_API tn_status tn_gguf_writer_new(const char *path, const tn_gguf_writer_params *params, tn_gguf_writer **writer);
/* Gives up what is unfinished: nothing stays on disk. Accepts NULL. */
TN_API void tn_gguf_writer_free(tn_gguf_writer *writer);

/* Adds a key or replaces its value, in place. Everything is copied. "general.alignment" (a power of two, default 32)
 * sets the alignment of the data. Keys "split.*" and "tenon.no_data" are the writer's own and ignored here. */
TN_API tn_status tn_gguf_writer_set(tn_gguf_writer *writer, const char *key, const tn_gguf_value *value);
TN_API tn_status tn_gguf_writer_set_u32(tn_gguf_writer *writer, const char *key, uint32_t value);
TN_API tn_status tn_gguf_writer_set_i32(tn_gguf_writer *writer, const char *key, int32_t value);
TN_API tn_status tn_gguf_writer_set_f32(tn_gguf_writer *writer, const char *key, float value);
TN_API tn_status tn_gguf_writer_set_bool(tn_gguf_writer *writer, const char *key, bool value);
TN_API tn_status tn_gguf_writer_set_cstr(tn_gguf_writer *writer, const char *key, const char *value);
TN_API tn_status tn_gguf_writer_set_array(tn_gguf_writer *writer, const char *key, tn_gguf_type type,
                                          const void *data, uint64_t count);
TN_API tn_status tn_gguf_writer_copy_keys(tn_gguf_writer *writer, const tn_gguf *file); /* all of a file's */
TN_API bool tn_gguf_writer_remove(tn_gguf_writer *writer, const char *key);             /* false: there was none */

TN_API tn_status tn_gguf_writer_add(tn_gguf_writer *writer, const char *name, tn_type type, int n_dims,
                                    const int64_t *ne);
TN_API tn_status tn_gguf_writer_begin(tn_gguf_writer *writer);
TN_API tn_status tn_gguf_writer_write(tn_gguf_writer *writer, const void *bytes, size_t size);
TN_API tn_status tn_gguf_writer_finish(tn_gguf_writer *writer);
/* After begin(): bytes of all files together, and how many there are. */
TN_API uint64_t tn_gguf_writer_bytes(const tn_gguf_writer *writer);
TN_API int tn_gguf_writer_part_count(const tn_gguf_writer *writer);

/* ---- Editing, merging, splitting ----------------------------------------------------------------------------- */

typedef struct tn_gguf_rename {
    const char *from, *to;
} tn_gguf_rename;

typedef struct tn_gguf_copy_params {
    const tn_gguf_kv *set; /* keys to change or add; key.data must end with a NUL */
    size_t set_count;
    const char *const *remove; /* keys to leave out; TN_E_NOT_FOUND when absent */
    size_t remove_count;
    const tn_gguf_rename *rename; /* tensors; TN_E_NOT_FOUND when absent */
    size_t rename_count;
    uint64_t part_bytes; /* as in tn_gguf_writer_params */
    int *part_count;     /* when not NULL, receives how many files were written */
    bool (*progress)(void *user, uint64_t done, uint64_t total); /* bytes; returns false to stop (TN_E_ABORTED) */
    void *user;
} tn_gguf_copy_params;

/* Writes an open file (all its parts) as a new file with these changes. `path` may be the file's own: it is replaced
 * in one step when everything is on disk, and the open file keeps the old content. `params` may be NULL. */
TN_API tn_status tn_gguf_copy(const tn_gguf *file, const char *path, const tn_gguf_copy_params *params);

#ifdef __cplusplus
}
#endif
#endif

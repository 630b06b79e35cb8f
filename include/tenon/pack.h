/* Packing of things with known lifetimes into as few bytes as possible. Part of tenon/plan.h, usable on its own.
 *
 * Nothing here allocates tensor memory: the answers are numbers. All functions may be called from any thread; a
 * result belongs to the caller and is constant once made. */
#ifndef TENON_PACK_H
#define TENON_PACK_H

#include "tenon/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Packing --------------------------------------------------------------------------------------------------
 * Items have a lifetime [start, end) and a size. Two items whose lifetimes share a moment may not share a byte. The
 * packer finds an offset for each so that the whole is small. The same input gives the same bytes of output, on every
 * machine and at every effort, unless the caller sets a time limit. */

typedef struct tn_pack_item {
    int64_t start, end; /* half open; start == end is legal and conflicts with nothing */
    size_t size;        /* zero is legal */
    size_t alignment;   /* of the offset within its chunk: a power of two; 0 means 1 */
    bool fixed;         /* true: already at `offset` of `chunk`, to be worked around */
    uint32_t chunk;
    size_t offset;
} tn_pack_item;

typedef enum tn_pack_effort {
    TN_PACK_FAST,     /* several n log n heuristics, the best kept; the default. Milliseconds for 10,000 items. */
    TN_PACK_BALANCED, /* plus local improvement and a short search. A second or two for hard inputs. */
    TN_PACK_EXACT /* plus branch and bound until proven optimal, or until the budget is spent (some ten seconds) */
} tn_pack_effort;

typedef struct tn_pack_params {
    tn_pack_effort effort;
    size_t capacity;            /* largest total size accepted; 0: as small as can be found, whatever it is */
    size_t max_chunk;           /* largest single chunk; 0: one chunk of any size */
    uint64_t max_steps;         /* budget in elementary steps (a few nanoseconds each); 0: the effort's own */
    double time_limit;          /* seconds after which the best so far is returned; 0: none. Gives up determinism. */
    bool (*cancel)(void *user); /* polled now and then; true stops with TN_E_ABORTED. May be NULL. */
    void *user;
} tn_pack_params;

TN_API tn_pack_params tn_pack_params_default(void); /* all zero: fast, unlimited, one chunk */

typedef struct tn_pack_result {
    size_t count;        /* of items; the two arrays below have this length */
    size_t *offsets;     /* within the item's chunk */
    uint32_t *chunks;    /* chunk of each item */
    size_t chunk_count;  /* 1 unless max_chunk forced more; 0 without items */
    size_t *chunk_sizes; /* each at most max_chunk */
    size_t size;         /* sum of the chunk sizes */
    size_t live_peak;    /* largest sum of the sizes live at one moment */
    size_t lower_bound;  /* largest size proven unavoidable; at least live_peak */
    double ratio;        /* size / lower_bound; 1 when both are zero */
    bool optimal;        /* size == lower_bound */
    uint64_t steps;      /* spent */
    /* With TN_E_INFEASIBLE: items that cannot fit together within the capacity, as indices, ascending; a small set,
     * not always the smallest. The arrays above are then NULL. */
    size_t conflict_count;
    size_t *conflict;
} tn_pack_result;

/* Packs `count` items. `params` may be NULL for the defaults. On
 *   TN_OK             `result` holds a placement (within the capacity, where one was given);
 *   TN_E_INFEASIBLE   none exists within the capacity; `result` names a conflicting set;
 *   TN_E_UNDECIDED    none was found within the budget; `result` holds the smallest placement found, larger than the
 *                     capacity;
 *   TN_E_INVALID      an item or parameter makes no sense (end before start, alignment not a power of two, fixed
 * items that overlap, an item larger than max_chunk); TN_E_OVERFLOW, TN_E_NOMEM, TN_E_ABORTED. Free the result with
 * tn_pack_result_free() after the first three; after the others it is empty and freeing it is harmless. */
TN_API tn_status tn_pack(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                         tn_pack_result *result);
TN_API void tn_pack_result_free(tn_pack_result *result);

/* Checks a placement independently of how it was made, in n log n: every offset aligned, every item inside its chunk,
 * fixed items where they must be, chunk sizes within max_chunk and adding up, no two live items on one byte.
 * TN_E_INTERNAL with the two offenders named when it is wrong. `params` may be NULL. */
TN_API tn_status tn_pack_verify(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                                const tn_pack_result *result);

/* ---- Packing files ---------------------------------------------------------------------------------------------
 * Comma-separated lines under a header that names the columns in any order: id, lower, upper, size and optionally
 * alignment. Other columns are ignored, lifetimes are half open. */
typedef struct tn_pack_table {
    size_t count;
    tn_pack_item *items;
    const char **ids; /* as written in the file */
    void *memory;     /* behind ids */
} tn_pack_table;

/* TN_E_FORMAT with "line N: why" when the text is not such a table. */
TN_API tn_status tn_pack_table_parse(const char *text, size_t length, tn_pack_table *table);
TN_API void tn_pack_table_free(tn_pack_table *table);

/* Writes `id,lower,upper,size,offset` lines (and `chunk` as a last column when there are several chunks) into a new
 * string, to be freed with tn_free(). `ids` may be NULL: the index is used. */
TN_API tn_status tn_pack_print_csv(const tn_pack_item *items, const char *const *ids, const tn_pack_result *result,
                                   char **text);

/* ---- Pictures ---------------------------------------------------------------------------------------------------
 */
/* One rectangle of a picture of a packing: time runs to the right, addresses upwards. */
typedef struct tn_picture_box {
    int64_t start, end;
    size_t offset, size;
    uint32_t chunk;
    uint32_t kind;     /* colour and legend entry: index into tn_picture.kinds */
    const char *label; /* drawn where it fits, and shown when the pointer rests on the box */
    const char *note;  /* more text for the pointer; may be NULL */
} tn_picture_box;

typedef struct tn_picture {
    const char *title;
    size_t box_count;
    const tn_picture_box *boxes;
    size_t chunk_count;
    const size_t *chunk_sizes;
    size_t kind_count;        /* 0: coloured by size */
    const char *const *kinds; /* names for the legend */
    size_t lower_bound;       /* drawn as a line when not zero and there is one chunk */
} tn_picture;

/* A self-contained SVG 1.1 document as a new string, to be freed with tn_free(). */
TN_API tn_status tn_picture_svg(const tn_picture *picture, char **text);
/* The picture of a packing; `ids` may be NULL. */
TN_API tn_status tn_pack_svg(const tn_pack_item *items, const char *const *ids, const tn_pack_result *result,
                             const char *title, char **text);

#ifdef __cplusplus
}
#endif
#endif

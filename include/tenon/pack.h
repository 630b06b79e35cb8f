/* Packing: offsets for items with known lifetimes, in as few bytes as possible. Used by tenon/plan.h, usable on its
 * own.
 *
 * Nothing here allocates the packed memory: results are offsets. All functions may be called from any thread. A
 * result belongs to the caller. */
#ifndef TENON_PACK_H
#define TENON_PACK_H

#include "tenon/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Packing ---- */
/* Items have a lifetime [start, end) and a size. Two items whose lifetimes overlap must not share a byte. The packer
 * finds an offset for each item so that the total size is small. The result is deterministic: for the same input and
 * effort it is the same on every machine, unless the caller sets a time limit. */

typedef struct tn_pack_item {
    int64_t start, end; /* half open; an empty lifetime is legal and conflicts with nothing */
    size_t size;        /* zero is legal */
    size_t alignment;   /* of the offset within its chunk: a power of two; 0 means 1 */
    bool fixed;         /* true: must stay at `offset` of `chunk` */
    uint32_t chunk;
    size_t offset;
} tn_pack_item;

typedef enum tn_pack_effort {
    /* The best of several n log n heuristics; the default. Milliseconds for 10,000 items; tens of milliseconds where
     * thousands of them are live together. */
    TN_PACK_FAST,
    TN_PACK_BALANCED, /* and many more orders, local improvement and a short search. A second or two for hard inputs.
                       */
    TN_PACK_EXACT     /* and branch and bound, until proven optimal or the budget is spent (about ten seconds) */
} tn_pack_effort;

typedef struct tn_pack_params {
    tn_pack_effort effort;
    size_t capacity;  /* largest total size accepted (with bins: largest `reserved`); 0: no limit */
    size_t max_chunk; /* largest single chunk; 0: any size, in as many chunks as there are bins, at least one */
    /* Sizes of chunks that exist already, each at most max_chunk. Chunk c < n_bins of the result is bin c. Bins are
     * filled first: the packer minimises `reserved`, the sum of max(chunk size, bin) over all chunks. */
    const size_t *bins;
    size_t n_bins;
    uint64_t max_steps; /* budget in elementary steps of a few nanoseconds; 0: the default of the effort */
    double time_limit;  /* seconds after which the best result so far is returned, instead of the default budget of
                         * steps; 0: none. Not deterministic. */
    bool (*cancel)(void *user); /* polled regularly; true stops with TN_E_ABORTED. May be NULL. */
    void *user;
} tn_pack_params;

TN_API tn_pack_params tn_pack_params_default(void); /* all zero: fast, unlimited, one chunk */

typedef struct tn_pack_result {
    size_t count;        /* of items; length of the two arrays below */
    size_t *offsets;     /* of each item within its chunk */
    uint32_t *chunks;    /* of each item */
    size_t chunk_count;  /* 1 unless max_chunk or bins lead to more; 0 without items */
    size_t *chunk_sizes; /* bytes used of each chunk, at most max_chunk; may be less or more than its bin */
    size_t size;         /* sum of the chunk sizes */
    size_t reserved;     /* sum of max(chunk size, bin), with the bins that are not used; without bins: size */
    size_t live_peak;    /* largest sum of sizes live at the same time */
    size_t lower_bound;  /* no packing is smaller than this; at least live_peak */
    double ratio;        /* size / lower_bound; 1 when both are zero */
    bool optimal;        /* size == lower_bound; with bins: `reserved` is the larger of lower_bound and all bins */
    uint64_t steps;      /* used */
    /* For TN_E_INFEASIBLE: ascending indices of items that do not fit together within the capacity; a small set,
     * though not necessarily the smallest. The arrays above are then NULL. */
    size_t conflict_count;
    size_t *conflict;
} tn_pack_result;

/* Packs `count` items. `params` may be NULL for the defaults. Returns
 *
 *   TN_OK             `result` holds a packing (within the capacity, if there is one)
 *   TN_E_INFEASIBLE   no packing fits into the capacity; `result` holds a conflicting set of items
 *   TN_E_UNDECIDED    none was found within the budget; `result` holds the smallest packing found, which exceeds
 *                     the capacity
 *   TN_E_INVALID      an item or parameter is invalid (end before start, alignment not a power of two, fixed
 *                     items that overlap, an item or bin larger than max_chunk)
 *
 * or TN_E_OVERFLOW, TN_E_NOMEM, TN_E_ABORTED. Free the result with tn_pack_result_free() after the first three. After
 * the others it is empty; freeing it does nothing. */
TN_API tn_status tn_pack(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                         tn_pack_result *result);
TN_API void tn_pack_result_free(tn_pack_result *result);

/* Checks a packing independently of the packer, in n log n: offsets are aligned, items are inside their chunks, fixed
 * items have not moved, chunk sizes are within max_chunk and add up to the size, with the bins to `reserved`, and
 * items that are live at the same time do not overlap. TN_E_INTERNAL with a message that names the items in conflict.
 * `params` may be NULL. */
TN_API tn_status tn_pack_verify(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                                const tn_pack_result *result);

/* ---- Packing files ---- */
/* Comma-separated values. A header line names the columns in any order: id, lower, upper, size and optionally
 * alignment. [lower, upper) is the lifetime. Other columns are ignored. */
typedef struct tn_pack_table {
    size_t count;
    tn_pack_item *items;
    const char **ids; /* as written in the file */
    void *memory;     /* behind ids */
} tn_pack_table;

/* TN_E_FORMAT with a message "line N: reason" when the text is malformed. */
TN_API tn_status tn_pack_table_parse(const char *text, size_t length, tn_pack_table *table);
TN_API void tn_pack_table_free(tn_pack_table *table);

/* Writes the columns id, lower, upper, size, offset (and chunk, if there are several) to a new string, to be freed
 * with tn_free(). `ids` may be NULL: indices are used. */
TN_API tn_status tn_pack_print_csv(const tn_pack_item *items, const char *const *ids, const tn_pack_result *result,
                                   char **text);

/* ---- Pictures ---- */
/* One rectangle of a picture of a packing: time runs to the right, addresses upwards. */
typedef struct tn_picture_box {
    int64_t start, end;
    size_t offset, size;
    uint32_t chunk;
    uint32_t kind;     /* colour and legend entry: index into tn_picture.kinds */
    const char *label; /* drawn if it fits, and part of the tooltip */
    const char *note;  /* more text for the tooltip; may be NULL */
} tn_picture_box;

typedef struct tn_picture {
    const char *title;
    size_t box_count;
    const tn_picture_box *boxes;
    size_t chunk_count;
    const size_t *chunk_sizes;
    size_t kind_count;        /* 0: coloured by size */
    const char *const *kinds; /* names for the legend */
    size_t lower_bound;       /* drawn as a line unless zero; one chunk only */
} tn_picture;

/* Writes a self-contained SVG 1.1 document to a new string, to be freed with tn_free(). */
TN_API tn_status tn_picture_svg(const tn_picture *picture, char **text);
/* The picture of a packing; `ids` may be NULL. */
TN_API tn_status tn_pack_svg(const tn_pack_item *items, const char *const *ids, const tn_pack_result *result,
                             const char *title, char **text);

#ifdef __cplusplus
}
#endif
#endif

/* The buffers behind graph allocators: chunks of every buffer type, which several allocators may share. */
#ifndef TN_RUNTIME_POOLS_H
#define TN_RUNTIME_POOLS_H

#include "tenon/backend.h"
#include "tenon/plan.h"

/* The chunks of one buffer type. */
typedef struct tn__pool {
    tn_buffer_type *type;
    tn_buffer **chunks; /* NULL: the chunk has no bytes yet */
    size_t n_chunks;
} tn__pool;

typedef struct tn__pools {
    size_t n_users;
    size_t n_types;
    uint16_t *pool_of; /* by type index; equal types share a pool */
    tn__pool *pools;
    tn_plan_memory *memories; /* per pool */
    size_t n;
    uint64_t generation; /* changes whenever a buffer is replaced or added */
} tn__pools;

tn_status tn__pools_new(tn_buffer_type *const *types, size_t n_types, tn__pools **pools) TN_MUST_CHECK;
/* Ends one use; the last frees the buffers. */
void tn__pools_leave(tn__pools *pools);
size_t tn__pool_chunk_size(const tn__pool *pool, size_t chunk); /* 0 past the last */
size_t tn__pool_size(const tn__pool *pool);

/* Sizes of chunks, one list per pool: what exists, or what is wanted. */
typedef struct tn__chunk_sizes {
    size_t *sizes;
    size_t count;
} tn__chunk_sizes;
/* The sizes of the chunks that exist. Free with tn__chunk_sizes_free. */
tn_status tn__pools_sizes(const tn__pools *pools, tn__chunk_sizes **sizes) TN_MUST_CHECK;
void tn__chunk_sizes_free(const tn__pools *pools, tn__chunk_sizes *sizes);
/* Raises the sizes to what a plan needs. */
tn_status tn__chunk_sizes_raise(const tn__pools *pools, tn__chunk_sizes *sizes, const tn_plan *plan) TN_MUST_CHECK;
/* The sum of all chunks after raising them to what a plan needs. */
size_t tn__chunk_sizes_with(const tn__pools *pools, const tn__chunk_sizes *sizes, const tn_plan *plan);
/* Whether every chunk of a plan fits; if not, `pool` and `chunk` (may be NULL) say which does not. */
bool tn__pools_suffice(const tn__pools *pools, const tn_plan *plan, size_t *pool, size_t *chunk);
/* Replaces every chunk that is smaller than wanted. All new buffers exist before an old one is freed; if one cannot
 * be had, nothing changes. `replaced` (may be NULL): whether an existing buffer was replaced. */
tn_status tn__pools_grow(tn__pools *pools, const tn__chunk_sizes *wanted, bool *replaced) TN_MUST_CHECK;

#endif

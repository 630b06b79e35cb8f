/* Host memory through hooks, with a small header per block so that free needs no size from the caller. */
#include "base/checked.h"
#include "tenon/base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Precedes the pointer returned to the caller. `lead` is the distance back to the hook's pointer. */
typedef struct block_header {
    size_t size; /* requested by the caller */
    size_t lead;
} block_header;
_Static_assert(sizeof(block_header) == 16, "the header keeps 16-byte alignment");

static void *default_alloc(void *user, size_t size, size_t align) {
    (void)user;
    if (align <= 16) return malloc(size);
    void *pointer = NULL;
    return posix_memalign(&pointer, align, size) == 0 ? pointer : NULL;
}
static void default_free(void *user, void *pointer, size_t size) {
    (void)user;
    (void)size;
    free(pointer);
}

static tn_allocator hooks = {default_alloc, default_free, NULL};

static atomic_uint_fast64_t stat_allocations, stat_blocks, stat_bytes, stat_peak;

void tn_set_allocator(const tn_allocator *allocator) {
    hooks = allocator ? *allocator : (tn_allocator){default_alloc, default_free, NULL};
}

static void count_alloc(size_t size) {
    atomic_fetch_add_explicit(&stat_allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&stat_blocks, 1, memory_order_relaxed);
    uint64_t live = atomic_fetch_add_explicit(&stat_bytes, size, memory_order_relaxed) + size;
    uint64_t peak = atomic_load_explicit(&stat_peak, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(&stat_peak, &peak, live, memory_order_relaxed,
                                                                 memory_order_relaxed)) {}
}

/* Bytes allocated for a block of this size: at least one, so that its address is inside the allocation. */
static size_t block_bytes(size_t size) { return size ? size : 1; }

void *tn_malloc_aligned(size_t size, size_t align) {
    if (!tn__is_pow2(align)) {
        tn_fail(TN_E_INVALID, "alignment %zu is not a power of two", align);
        return NULL;
    }
    if (align < 16) align = 16;
    size_t lead = align > sizeof(block_header) ? align : sizeof(block_header), total;
    if (!tn__add_size(block_bytes(size), lead, &total) || total > PTRDIFF_MAX) {
        tn_fail(TN_E_NOMEM, "out of host memory: %zu bytes asked for", size);
        return NULL;
    }
    char *raw = hooks.alloc(hooks.user, total, align);
    if (!raw) {
        tn_fail(TN_E_NOMEM, "out of host memory: %zu bytes asked for", size);
        return NULL;
    }
    block_header *header = (block_header *)(raw + lead) - 1;
    header->size = size;
    header->lead = lead;
    count_alloc(size);
    return raw + lead;
}

void *tn_malloc(size_t size) { return tn_malloc_aligned(size, 16); }

void *tn_calloc(size_t count, size_t size) {
    size_t total;
    if (!tn__mul_size(count, size, &total)) {
        tn_fail(TN_E_NOMEM, "out of host memory: %zu items of %zu bytes overflow", count, size);
        return NULL;
    }
    void *pointer = tn_malloc(total);
    if (pointer) memset(pointer, 0, total);
    return pointer;
}

void *tn_realloc(void *pointer, size_t size) {
    if (!pointer) return tn_malloc(size);
    const block_header *header = (const block_header *)pointer - 1;
    size_t align = header->lead > 16 ? header->lead : 16;
    void *fresh = tn_malloc_aligned(size, align);
    if (!fresh) return NULL;
    memcpy(fresh, pointer, TN__MIN(size, header->size));
    tn_free(pointer);
    return fresh;
}

char *tn_strdup(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = tn_malloc(size);
    if (copy) memcpy(copy, text, size);
    return copy;
}

void tn_free(void *pointer) {
    if (!pointer) return;
    const block_header *header = (const block_header *)pointer - 1;
    size_t size = header->size, lead = header->lead;
    atomic_fetch_sub_explicit(&stat_blocks, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&stat_bytes, size, memory_order_relaxed);
    hooks.free(hooks.user, (char *)pointer - lead, block_bytes(size) + lead);
}

tn_memory_stats tn_memory_get_stats(void) {
    return (tn_memory_stats){
        .allocations = atomic_load(&stat_allocations),
        .live_blocks = atomic_load(&stat_blocks),
        .live_bytes = atomic_load(&stat_bytes),
        .peak_bytes = atomic_load(&stat_peak),
    };
}

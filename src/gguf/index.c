/* A hash index over structures whose first member is a name. */
#include "base/hash.h"
#include "gguf/internal.h"

#include <string.h>

static const char *name_at(const void *items, size_t stride, size_t i) {
    const char *name;
    memcpy(&name, (const char *)items + i * stride, sizeof name);
    return name;
}

/* The slot of `name`, or the free slot where it would be inserted. */
static size_t slot_of(const tn__gguf_index *index, const void *items, size_t stride, const char *name) {
    size_t slot = (size_t)tn__hash_bytes(name, strlen(name), index->seed) & index->mask;
    while (index->slots[slot] && strcmp(name_at(items, stride, index->slots[slot] - 1), name) != 0)
        slot = (slot + 1) & index->mask;
    return slot;
}

tn_status tn__gguf_index_build(tn__gguf_index *index, const void *items, size_t stride, size_t count,
                               size_t *duplicate) {
    size_t capacity = 16;
    while (capacity < count * 2) capacity *= 2;
    index->slots = tn_calloc(capacity, sizeof *index->slots);
    if (!index->slots) return TN_E_NOMEM;
    index->mask = capacity - 1;
    index->seed = tn__mix64(tn_time_ns() ^ (uint64_t)(uintptr_t)index->slots);
    *duplicate = count;
    for (size_t i = 0; i < count; i++) {
        size_t slot = slot_of(index, items, stride, name_at(items, stride, i));
        if (index->slots[slot]) {
            *duplicate = i;
            return TN_OK;
        }
        index->slots[slot] = (uint32_t)(i + 1);
    }
    return TN_OK;
}

void tn__gguf_index_put(tn__gguf_index *index, const void *items, size_t stride, size_t i) {
    index->slots[slot_of(index, items, stride, name_at(items, stride, i))] = (uint32_t)(i + 1);
}

tn_status tn__gguf_index_add(tn__gguf_index *index, const void *items, size_t stride, size_t count) {
    if (!index->slots || count * 2 > index->mask + 1) {
        tn__gguf_index grown = {0};
        size_t duplicate;
        TN_TRY(tn__gguf_index_build(&grown, items, stride, count, &duplicate));
        tn_free(index->slots);
        *index = grown;
        return TN_OK;
    }
    tn__gguf_index_put(index, items, stride, count - 1);
    return TN_OK;
}

size_t tn__gguf_index_find(const tn__gguf_index *index, const void *items, size_t stride, const char *name) {
    if (!index->slots || !name) return SIZE_MAX;
    size_t slot = slot_of(index, items, stride, name);
    return index->slots[slot] ? index->slots[slot] - 1 : SIZE_MAX;
}

/* Tensors that the caller pinned to a stream. */
#include "runtime/sched_internal.h"

int tn__pins_get(const tn__pins *p, const tn_tensor *tensor) {
    uint32_t i = p->n ? tn__ptr_map_get(&p->map, tensor, UINT32_MAX) : UINT32_MAX;
    return i == UINT32_MAX ? -1 : p->streams[i];
}

static tn_status grow_pins(tn__pins *p) {
    size_t capacity = p->capacity ? 2 * p->capacity : 16, slots = tn__ptr_map_capacity(capacity);
    if (capacity >= UINT32_MAX) return tn_fail(TN_E_OVERFLOW, "%zu pinned tensors", capacity);
    const tn_tensor **tensors = tn_realloc(p->tensors, capacity * sizeof *tensors);
    if (!tensors) return TN_E_NOMEM;
    p->tensors = tensors;
    int16_t *streams = tn_realloc(p->streams, capacity * sizeof *streams);
    if (!streams) return TN_E_NOMEM;
    p->streams = streams;
    void *memory = tn_malloc(tn__ptr_map_bytes(slots));
    if (!memory) return TN_E_NOMEM;
    tn_free(p->memory);
    p->memory = memory;
    tn__ptr_map_bind(&p->map, slots, memory);
    for (size_t i = 0; i < p->n; i++)
        tn__ptr_map_put(&p->map, tn__ptr_map_slot(&p->map, p->tensors[i]), p->tensors[i], (uint32_t)i);
    p->capacity = capacity;
    return TN_OK;
}

tn_status tn__pins_set(tn__pins *p, const tn_tensor *tensor, int stream) {
    if (p->n == p->capacity) TN_TRY(grow_pins(p));
    size_t slot = tn__ptr_map_slot(&p->map, tensor);
    if (tn__ptr_map_has(&p->map, slot)) {
        p->streams[p->map.values[slot]] = (int16_t)stream;
        return TN_OK;
    }
    tn__ptr_map_put(&p->map, slot, tensor, (uint32_t)p->n);
    p->tensors[p->n] = tensor;
    p->streams[p->n++] = (int16_t)stream;
    return TN_OK;
}

/* A sum, so that the order of pinning does not matter. */
uint64_t tn__pins_hash(const tn__pins *p, const tn_graph *graph) {
    uint64_t sum = 0;
    for (size_t i = 0; i < p->n; i++) {
        uint32_t index = p->streams[i] >= 0 ? tn_graph_index(graph, p->tensors[i]) : TN_GRAPH_NONE;
        if (index != TN_GRAPH_NONE) sum += tn__mix64(((uint64_t)index << 16 | (uint16_t)p->streams[i]) + 1);
    }
    return sum;
}

void tn__pins_clear(tn__pins *p) {
    p->n = 0;
    if (p->memory) tn__ptr_map_clear(&p->map);
}

void tn__pins_free(tn__pins *p) {
    tn_free(p->tensors);
    tn_free(p->streams);
    tn_free(p->memory);
}

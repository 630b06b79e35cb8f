/* Set-up of the pointer map. */
#include "base/hash.h"

#include <string.h>

size_t tn__ptr_map_capacity(size_t count) {
    size_t capacity = 16;
    while (capacity < count * 2) capacity *= 2;
    return capacity;
}

size_t tn__ptr_map_bytes(size_t capacity) {
    return capacity * sizeof(void *) + (capacity * sizeof(uint32_t) + 7) / 8 * 8 + tn__bits_words(capacity) * 8;
}

void tn__ptr_map_bind(tn__ptr_map *map, size_t capacity, void *memory) {
    char *p = memory;
    map->capacity = capacity;
    map->keys = (const void **)(void *)p;
    p += capacity * sizeof(void *);
    map->values = (uint32_t *)(void *)p;
    p += (capacity * sizeof(uint32_t) + 7) / 8 * 8;
    map->used = (tn__bits *)(void *)p;
    tn__ptr_map_clear(map);
}

void tn__ptr_map_clear(tn__ptr_map *map) { memset(map->used, 0, tn__bits_words(map->capacity) * sizeof(tn__bits)); }

/* Hashing of bytes and integers, a bitset, and a map from pointers to indices. */
#ifndef TN_BASE_HASH_H
#define TN_BASE_HASH_H

#include "tenon/base.h"

#include <string.h>

/* 64-bit mix of one word (a bijection with good avalanche). */
static inline uint64_t tn__mix64(uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}
static inline uint64_t tn__hash_combine(uint64_t seed, uint64_t value) {
    return tn__mix64(seed * 0x9e3779b97f4a7c15u + tn__mix64(value + 0x632be59bd9b4e019u));
}
/* Hash of a byte range, for names, keys and checksums of small structures. Not cryptographic. Inline, so that both
 * libraries of the project can use it: tn__ names are not exported. */
static inline uint64_t tn__hash_bytes(const void *bytes, size_t size, uint64_t seed) {
    const unsigned char *p = bytes;
    uint64_t h = seed ^ tn__mix64(size);
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        h = tn__hash_combine(h, word);
        p += 8;
        size -= 8;
    }
    uint64_t tail = 0;
    memcpy(&tail, p, size);
    return tn__hash_combine(h, tail);
}

/* ---- Bitset ---- */
typedef uint64_t tn__bits;
static inline size_t tn__bits_words(size_t count) { return (count + 63) / 64; }
static inline bool tn__bits_get(const tn__bits *b, size_t i) { return b[i / 64] >> (i % 64) & 1; }
static inline void tn__bits_set(tn__bits *b, size_t i) { b[i / 64] |= (tn__bits)1 << (i % 64); }
static inline void tn__bits_clear(tn__bits *b, size_t i) { b[i / 64] &= ~((tn__bits)1 << (i % 64)); }

/* ---- Pointer → index map ---- */
/* Open addressing in memory of the caller. The capacity is a power of two. A bitset marks used slots, so that
 * clearing takes capacity/64 words. It does not grow; keep it at most half full. */
typedef struct tn__ptr_map {
    size_t capacity; /* power of two */
    const void **keys;
    uint32_t *values;
    tn__bits *used;
} tn__ptr_map;

/* The smallest capacity for `count` keys. */
size_t tn__ptr_map_capacity(size_t count);
/* Bytes that tn__ptr_map_bind needs, aligned to 8. */
size_t tn__ptr_map_bytes(size_t capacity);
void tn__ptr_map_bind(tn__ptr_map *map, size_t capacity, void *memory); /* also clears */
void tn__ptr_map_clear(tn__ptr_map *map);

/* The slot of `key`, or the empty slot where it would be inserted. */
static inline size_t tn__ptr_map_slot(const tn__ptr_map *map, const void *key) {
    size_t mask = map->capacity - 1;
    size_t i = (size_t)tn__mix64((uint64_t)(uintptr_t)key >> 4) & mask;
    while (tn__bits_get(map->used, i) && map->keys[i] != key) i = (i + 1) & mask;
    return i;
}
static inline bool tn__ptr_map_has(const tn__ptr_map *map, size_t slot) { return tn__bits_get(map->used, slot); }
static inline void tn__ptr_map_put(tn__ptr_map *map, size_t slot, const void *key, uint32_t value) {
    map->keys[slot] = key;
    map->values[slot] = value;
    tn__bits_set(map->used, slot);
}
/* The value of `key`, or `missing`. */
static inline uint32_t tn__ptr_map_get(const tn__ptr_map *map, const void *key, uint32_t missing) {
    size_t slot = tn__ptr_map_slot(map, key);
    return tn__ptr_map_has(map, slot) ? map->values[slot] : missing;
}

#endif

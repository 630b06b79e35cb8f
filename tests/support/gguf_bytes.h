/* Builds GGUF files byte by byte, well formed or not, for tests of the reader. */
#ifndef TN_TESTS_GGUF_BYTES_H
#define TN_TESTS_GGUF_BYTES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct gguf_bytes {
    unsigned char *data;
    size_t size, capacity;
} gguf_bytes;

static inline void gb_put(gguf_bytes *b, const void *bytes, size_t size) {
    while (b->size + size > b->capacity) {
        b->capacity = b->capacity ? b->capacity * 2 : 256;
        b->data = realloc(b->data, b->capacity);
    }
    if (size) memcpy(b->data + b->size, bytes, size);
    b->size += size;
}
static inline void gb_u8(gguf_bytes *b, uint8_t x) { gb_put(b, &x, 1); }
static inline void gb_u32(gguf_bytes *b, uint32_t x) { gb_put(b, &x, 4); }
static inline void gb_u64(gguf_bytes *b, uint64_t x) { gb_put(b, &x, 8); }
static inline void gb_str(gguf_bytes *b, const char *text) {
    gb_u64(b, strlen(text));
    gb_put(b, text, strlen(text));
}
static inline void gb_header(gguf_bytes *b, uint32_t version, uint64_t tensors, uint64_t keys) {
    b->size = 0;
    gb_put(b, "GGUF", 4);
    gb_u32(b, version);
    gb_u64(b, tensors);
    gb_u64(b, keys);
}
static inline void gb_key_u32(gguf_bytes *b, const char *key, uint32_t value) {
    gb_str(b, key);
    gb_u32(b, 4);
    gb_u32(b, value);
}
static inline void gb_key_str(gguf_bytes *b, const char *key, const char *value) {
    gb_str(b, key);
    gb_u32(b, 8);
    gb_str(b, value);
}
/* A tensor's entry; dimensions end with the count. */
static inline void gb_tensor(gguf_bytes *b, const char *name, uint32_t type, uint64_t offset, uint32_t n_dims,
                             const uint64_t *ne) {
    gb_str(b, name);
    gb_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) gb_u64(b, ne[i]);
    gb_u32(b, type);
    gb_u64(b, offset);
}
static inline void gb_pad(gguf_bytes *b, size_t align) {
    while (b->size % align) gb_u8(b, 0);
}
static inline void gb_zeros(gguf_bytes *b, size_t count) {
    for (size_t i = 0; i < count; i++) gb_u8(b, 0);
}
static inline void gb_free(gguf_bytes *b) {
    free(b->data);
    *b = (gguf_bytes){0};
}

#endif

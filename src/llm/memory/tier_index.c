/* The index of a tier: blobs by key, and the least recently used of them. Its memory is planned; it does not grow. */
#include "llm/memory/tier.h"

#include "base/checked.h"
#include "base/hash.h"

#include <string.h>

static size_t bucket_count(int32_t capacity) {
    size_t n = 16;
    while (n < 2 * (size_t)capacity) n *= 2;
    return n;
}

size_t tn__blob_index_bytes(int32_t capacity) {
    const size_t n = (size_t)capacity;
    return tn__align_up(n * sizeof(tn__blob) + n * sizeof(uint64_t) + bucket_count(capacity) * sizeof(int32_t), 64);
}

void tn__blob_index_bind(tn__blob_index *x, int32_t capacity, void *memory) {
    const size_t n = (size_t)capacity;
    *x = (tn__blob_index){.capacity = capacity, .n_buckets = bucket_count(capacity), .blobs = memory};
    x->used = (uint64_t *)(x->blobs + n);
    x->buckets = (int32_t *)(x->used + n);
    memset(x->used, 0, n * sizeof *x->used);
    for (size_t i = 0; i < x->n_buckets; i++) x->buckets[i] = -1;
    for (int32_t i = 0; i < capacity; i++) x->blobs[i].next = i + 1 < capacity ? i + 1 : -1;
    x->unused = capacity ? 0 : -1;
}

static int32_t *bucket_of(const tn__blob_index *x, tn__hash128 key, int32_t kind) {
    const uint64_t h = tn__mix64((uint64_t)key ^ (uint64_t)(key >> 64) * 3 ^ (uint64_t)(uint32_t)kind);
    return &x->buckets[h & (x->n_buckets - 1)];
}

/* The length of the common prefix of a blob and `id`; 0: they belong to different texts.
 */
static int32_t common_tokens(const tn__blob *b, const tn__blob_id *id) {
    const int32_t most = TN__MIN(b->n, id->n);
    int32_t n = 0;
    if (b->key != id->key || b->kind != id->kind || b->from != id->from) return 0;
    while (n < most && b->tokens[n] == id->tokens[n]) n++;
    return n;
}

int32_t tn__blob_index_find(const tn__blob_index *x, const tn__blob_id *id, int32_t *common) {
    int32_t found = -1;
    *common = 0;
    for (int32_t i = *bucket_of(x, id->key, id->kind); i >= 0; i = x->blobs[i].next) {
        const int32_t n = common_tokens(&x->blobs[i], id);
        if (n <= *common) continue;
        *common = n;
        found = i;
    }
    return found;
}

int32_t tn__blob_index_holds(const tn__blob_index *x, const tn__blob_id *id) {
    int32_t common;
    const int32_t i = tn__blob_index_find(x, id, &common);
    return i >= 0 && common == id->n ? i : -1;
}

int32_t tn__blob_index_shorter(const tn__blob_index *x, const tn__blob_id *id) {
    for (int32_t i = *bucket_of(x, id->key, id->kind); i >= 0; i = x->blobs[i].next) {
        const tn__blob *b = &x->blobs[i];
        if (b->n > 0 && b->n < id->n && common_tokens(b, id) == b->n) return i;
    }
    return -1;
}

int32_t tn__blob_index_named(const tn__blob_index *x, tn__hash128 key, uint64_t mark, int32_t kind) {
    for (int32_t i = *bucket_of(x, key, kind); i >= 0; i = x->blobs[i].next)
        if (x->blobs[i].key == key && x->blobs[i].mark == mark && x->blobs[i].kind == kind) return i;
    return -1;
}

int32_t tn__blob_index_add(tn__blob_index *x, const tn__blob_id *id, uint64_t used) {
    const int32_t i = x->unused;
    if (i < 0) return -1;
    tn__blob *b = &x->blobs[i];
    int32_t *bucket = bucket_of(x, id->key, id->kind);
    x->unused = b->next;
    *b = (tn__blob){.key = id->key, .kind = id->kind, .from = id->from, .n = id->n, .next = *bucket, .unit = -1};
    if (id->n) memcpy(b->tokens, id->tokens, (size_t)id->n * sizeof *b->tokens);
    b->mark = tn__blob_mark(b->tokens, id->n);
    *bucket = i;
    x->used[i] = TN__MAX(used, 1);
    x->n++;
    return i;
}

void tn__blob_index_remove(tn__blob_index *x, int32_t blob) {
    tn__blob *b = &x->blobs[blob];
    int32_t *at = bucket_of(x, b->key, b->kind);
    while (*at != blob) at = &x->blobs[*at].next;
    *at = b->next;
    b->next = x->unused;
    x->unused = blob;
    x->used[blob] = 0;
    x->n--;
}

int32_t tn__blob_index_oldest(const tn__blob_index *x) {
    int32_t oldest = -1;
    for (int32_t i = 0; i < x->capacity; i++)
        if (x->used[i] && (oldest < 0 || x->used[i] < x->used[oldest]) && !x->blobs[i].pins) oldest = i;
    return oldest;
}

uint64_t tn__blob_mark(const tn_token *tokens, int32_t n) {
    return tn__hash_bytes(tokens, (size_t)n * sizeof *tokens, 0x746f6b656e73u);
}

/* Eight independent sums, so that the processor can compute them in parallel. Every step is a bijection of a sum. */
uint64_t tn__blob_sum(const tn__blob_content *content, size_t bytes) {
    enum { LANES = 8 };
    uint64_t lanes[LANES] = {1, 2, 3, 4, 5, 6, 7, 8}, words[LANES];
    for (size_t offset = 0, size; offset < bytes; offset += size) {
        size = bytes - offset;
        const char *p = tn__blob_piece(content, offset, &size), *end = p + size;
        for (; p < end; p += sizeof words) {
            const size_t left = (size_t)(end - p);
            if (left < sizeof words) memset(words, 0, sizeof words);
            memcpy(words, p, TN__MIN(left, sizeof words));
            for (int i = 0; i < LANES; i++) {
                lanes[i] = (lanes[i] ^ words[i]) * 0x9e3779b97f4a7c15u;
                lanes[i] ^= lanes[i] >> 32;
            }
            if (left <= sizeof words) break;
        }
    }
    return tn__hash_bytes(lanes, sizeof lanes, bytes);
}

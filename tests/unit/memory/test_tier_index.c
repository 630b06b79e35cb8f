/* The index of a tier against a list, and the checksum of blobs. */
#include "support.h"

#include "llm/memory/tier.h"

#include <string.h>

static uint64_t random_state;
static uint32_t pick(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* Random operations against a list. */
static void indexes_equal_a_list(void **state) {
    (void)state;
    enum { CAPACITY = 24, OPERATIONS = 20000 };
    tn__blob_index x;
    tn__blob list[CAPACITY];
    uint64_t used[CAPACITY];
    int32_t n = 0, common;
    void *memory = tn_malloc_aligned(tn__blob_index_bytes(CAPACITY), 64);
    tn__blob_index_bind(&x, CAPACITY, memory);
    random_state = 99;
    for (uint64_t step = 1; step <= OPERATIONS; step++) {
        tn_token tokens[TN__BLOCK];
        for (int i = 0; i < TN__BLOCK; i++) tokens[i] = (tn_token)pick(2);
        const tn__blob_id id = {pick(6) + 1, (int32_t)pick(2), 0, 1 + (int32_t)pick(4), tokens};
        int32_t longest = 0;
        for (int32_t i = 0; i < n; i++) {
            int32_t k = 0;
            if (list[i].key != id.key || list[i].kind != id.kind) continue;
            while (k < id.n && k < list[i].n && list[i].tokens[k] == tokens[k]) k++;
            longest = k > longest ? k : longest;
        }
        const int32_t found = tn__blob_index_find(&x, &id, &common);
        assert_int_equal(common, longest);
        assert_int_equal(found < 0, longest == 0);
        assert_int_equal(tn__blob_index_holds(&x, &id) >= 0, longest == id.n);
        assert_int_equal(x.n, n);
        if (pick(2)) { /* remove the oldest */
            const int32_t oldest = tn__blob_index_oldest(&x);
            int32_t expected = -1;
            for (int32_t i = 0; i < n; i++)
                if (expected < 0 || used[i] < used[expected]) expected = i;
            assert_int_equal(oldest < 0, expected < 0);
            if (oldest < 0) continue;
            assert_int_equal(x.used[oldest], used[expected]);
            tn__blob_index_remove(&x, oldest);
            list[expected] = list[--n];
            used[expected] = used[n];
        } else if (longest < id.n) {
            const int32_t blob = tn__blob_index_add(&x, &id, step);
            assert_int_equal(blob < 0, n == CAPACITY);
            if (blob < 0) continue;
            list[n] = x.blobs[blob];
            used[n++] = step;
        }
    }
    tn_free(memory);
}

static void sums_show_every_change(void **state) {
    (void)state;
    enum { BYTES = 300 };
    char bytes[512] = {0}, units[512];
    const tn__blob_content flat = {.base = bytes}, pieces = {.base = units, .unit = 64, .units = {4, 0, 3, 1, 2}};
    for (int i = 0; i < BYTES; i++) bytes[i] = (char)(i * 7);
    for (size_t i = 0; i < BYTES; i++) {
        size_t size = 1;
        *tn__blob_piece(&pieces, i, &size) = bytes[i];
    }
    const uint64_t sum = tn__blob_sum(&flat, BYTES);
    assert_true(sum == tn__blob_sum(&pieces, BYTES));
    assert_true(sum != tn__blob_sum(&flat, BYTES - 1));
    for (int i = 0; i < 8 * BYTES; i++) {
        bytes[i / 8] = (char)(bytes[i / 8] ^ 1 << i % 8);
        assert_true(sum != tn__blob_sum(&flat, BYTES));
        bytes[i / 8] = (char)(bytes[i / 8] ^ 1 << i % 8);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(indexes_equal_a_list),
        cmocka_unit_test(sums_show_every_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

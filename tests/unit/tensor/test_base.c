/* Status table, error text, memory hooks, checked arithmetic, half floats, hash map. */
#include "support.h"

#include "base/checked.h"
#include "base/half.h"
#include "base/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void status_table_is_complete(void **state) {
    (void)state;
#define TN_X(name, value, text)                                                                                      \
    assert_string_equal(tn_status_name(TN_##name), "TN_" #name);                                                     \
    assert_string_equal(tn_status_text(TN_##name), text);                                                            \
    assert_int_equal(TN_##name, value);
    TN_STATUS_TABLE(TN_X)
#undef TN_X
    assert_string_equal(tn_status_name((tn_status)999), "TN_UNKNOWN");
}

static void error_text_is_kept_and_extended(void **state) {
    (void)state;
    assert_int_equal(tn_fail(TN_E_IO, "file %s", "x"), TN_E_IO);
    assert_string_equal(tn_error(), "file x");
    assert_int_equal(tn_fail(TN_E_IO, "again: %s", tn_error()), TN_E_IO);
    assert_string_equal(tn_error(), "again: file x");
    tn_fail_more(TN_E_IO, ", at byte %d", 7);
    assert_string_equal(tn_error(), "again: file x, at byte 7");
    char long_text[5000];
    memset(long_text, 'y', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    tn_fail(TN_E_IO, "%s", long_text);
    tn_fail_more(TN_E_IO, "%s", long_text);
    assert_true(strlen(tn_error()) < sizeof long_text);
}

static void memory_is_counted_and_aligned(void **state) {
    (void)state;
    tn_memory_stats before = tn_memory_get_stats();
    void *a = tn_malloc(0), *b = tn_malloc_aligned(100, 4096);
    char *c = tn_calloc(3, 7);
    assert_non_null(a);
    assert_int_equal((uintptr_t)b % 4096, 0);
    for (int i = 0; i < 21; i++) assert_int_equal(c[i], 0);
    memcpy(c, "hello", 6);
    c = tn_realloc(c, 1000);
    assert_string_equal(c, "hello");
    assert_int_equal(tn_memory_get_stats().live_blocks, before.live_blocks + 3);
    assert_int_equal(tn_memory_get_stats().live_bytes, before.live_bytes + 1100);
    tn_free(a);
    tn_free(b);
    tn_free(c);
    tn_free(NULL);
    assert_int_equal(tn_memory_get_stats().live_blocks, before.live_blocks);
    assert_null(tn_malloc(SIZE_MAX - 3));
    assert_null(tn_calloc(SIZE_MAX / 2, 3));
    assert_null(tn_malloc_aligned(8, 24));
}

static tn_status two_blocks(void *user) {
    (void)user;
    void *a = tn_malloc(10);
    if (!a) return TN_E_NOMEM;
    void *b = tn_malloc(20);
    tn_free(a);
    if (!b) return TN_E_NOMEM;
    tn_free(b);
    return TN_OK;
}
static void failing_allocator_reaches_every_block(void **state) {
    (void)state;
    check_every_allocation_failure(two_blocks, NULL);
    check_no_leak(two_blocks, NULL);
}

static void checked_arithmetic(void **state) {
    (void)state;
    size_t r;
    assert_true(tn__add_size(1, 2, &r) && r == 3);
    assert_false(tn__add_size(SIZE_MAX, 1, &r));
    assert_false(tn__mul_size(SIZE_MAX / 2, 3, &r));
    assert_false(tn__align_up_checked(SIZE_MAX - 3, 16, &r));
    assert_true(tn__align_up_checked(17, 16, &r) && r == 32);
}

static void halves_round_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) { /* every f16 survives the round trip; NaN stays NaN */
        float f = tn__f16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true((tn__f32_to_f16(f) & 0x7fff) > 0x7c00);
        else
            assert_int_equal(tn__f32_to_f16(f), h);
        float g = tn__bf16_to_f32((uint16_t)h);
        if (!isnan(g)) assert_int_equal(tn__f32_to_bf16(g), h);
    }
    assert_int_equal(tn__f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(tn__f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(tn__f32_to_f16(2049.0f), tn__f32_to_f16(2048.0f)); /* tie to even */
    assert_int_equal(tn__f32_to_f16(2051.0f), tn__f32_to_f16(2052.0f));
    assert_int_equal(tn__f32_to_f16(0x1p-25f), 0);
    assert_int_equal(tn__f32_to_f16(0x1.8p-25f), 1);
    assert_true(tn__f16_to_f32(1) == 0x1p-24f);
    assert_true(isnan(tn__bf16_to_f32(tn__f32_to_bf16(NAN))));
}

/* The nearest of all finite fp8 values; of two equally near ones the even code. */
static uint8_t nearest_fp8(float x) {
    int best = 0;
    for (int code = 0; code < 0x7f; code++) {
        const double d = fabs((double)tn__fp8_to_f32((uint8_t)code) - fabs((double)x)),
                     b = fabs((double)tn__fp8_to_f32((uint8_t)best) - fabs((double)x));
        if (d < b || (d == b && code % 2 == 0)) best = code;
    }
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}
static void fp8_rounds_to_nearest_even_and_saturates(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        const float f = tn__fp8_to_f32((uint8_t)code);
        assert_int_equal(isnan(f) != 0, (code & 0x7f) == 0x7f);
        assert_int_equal(signbit(f) != 0, code >= 0x80);
        assert_int_equal(tn__f32_to_fp8(f), code);
    }
    assert_true(tn__fp8_to_f32(0x7e) == 448 && tn__fp8_to_f32(1) == 0x1p-9f && tn__fp8_to_f32(0x38) == 1);
    for (int code = 0; code < 0x7e; code++) { /* halfway between neighbours, and just beside it */
        const float middle = (tn__fp8_to_f32((uint8_t)code) + tn__fp8_to_f32((uint8_t)(code + 1))) / 2;
        const float near[] = {middle, nextafterf(middle, 0), nextafterf(middle, 1000)};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(tn__f32_to_fp8(near[i]), nearest_fp8(near[i]));
            assert_int_equal(tn__f32_to_fp8(-near[i]), nearest_fp8(-near[i]));
        }
    }
    assert_int_equal(tn__f32_to_fp8(464), 0x7e);
    assert_int_equal(tn__f32_to_fp8(1e30f), 0x7e);
    assert_int_equal(tn__f32_to_fp8(-INFINITY), 0xfe);
    assert_int_equal(tn__f32_to_fp8(1e-30f), 0);
    assert_int_equal(tn__f32_to_fp8(NAN) & 0x7f, 0x7f);
}

static void pointer_map_finds_what_was_put(void **state) {
    (void)state;
    enum { N = 1000 };
    static char objects[N * 16];
    size_t capacity = tn__ptr_map_capacity(N);
    void *memory = malloc(tn__ptr_map_bytes(capacity));
    tn__ptr_map map;
    tn__ptr_map_bind(&map, capacity, memory);
    for (uint32_t i = 0; i < N; i += 2)
        tn__ptr_map_put(&map, tn__ptr_map_slot(&map, objects + 16 * i), objects + 16 * i, i);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(tn__ptr_map_get(&map, objects + 16 * i, 7777), i % 2 ? 7777 : i);
    tn__ptr_map_clear(&map);
    assert_int_equal(tn__ptr_map_get(&map, objects, 7777), 7777);
    free(memory);
}

static int log_calls;
static void count_log(void *user, tn_log_level level, const char *text) {
    (void)level;
    log_calls++;
    assert_string_equal(text, user);
}
static void log_reaches_the_sink_above_the_level(void **state) {
    (void)state;
    tn_log_set(count_log, "n=3", TN_LOG_INFO);
    tn_log(TN_LOG_DEBUG, "n=%d", 3);
    tn_log(TN_LOG_WARN, "n=%d", 3);
    assert_int_equal(log_calls, 1);
    tn_log_set(NULL, NULL, TN_LOG_WARN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_table_is_complete),
        cmocka_unit_test(error_text_is_kept_and_extended),
        cmocka_unit_test(memory_is_counted_and_aligned),
        cmocka_unit_test(failing_allocator_reaches_every_block),
        cmocka_unit_test(checked_arithmetic),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(fp8_rounds_to_nearest_even_and_saturates),
        cmocka_unit_test(pointer_map_finds_what_was_put),
        cmocka_unit_test(log_reaches_the_sink_above_the_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

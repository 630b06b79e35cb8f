/* Tensors filled by a reader: every kind of memory gets the reader's bytes, and a reader's failure is returned with
 * its message. */
#include "support.h"

#include "base/checked.h"
#include "tenon/backend_impl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A reader over memory ---- */

typedef struct source {
    const unsigned char *bytes;
    size_t size;
    size_t bad; /* the byte that cannot be read; past the end: none */
    atomic_size_t given, calls;
    atomic_bool beyond; /* something outside was asked for */
} source;

static tn_status give(void *user, size_t offset, void *to, size_t size) {
    source *s = user;
    atomic_fetch_add(&s->calls, 1);
    if (offset > s->size || size > s->size - offset) {
        atomic_store(&s->beyond, true);
        return tn_fail(TN_E_INVALID, "%zu bytes at %zu", size, offset);
    }
    if (s->bad >= offset && s->bad - offset < size) return tn_fail(TN_E_IO, "byte %zu is damaged", s->bad);
    memcpy(to, s->bytes + offset, size);
    atomic_fetch_add(&s->given, size);
    return TN_OK;
}

/* ---- Every kind of memory ---- */

enum { MOST = 4 << 20 };
static unsigned char *bytes; /* MOST of them */

static const struct {
    tn_type type;
    int64_t ne[3];
} shapes[] = {
    {TN_F32, {7, 1, 1}},        {TN_F32, {750, 1, 1}},      {TN_F32, {1300, 1, 1}},    {TN_F16, {1001, 1100, 1}},
    {TN_Q8_0, {512, 37, 2}},    {TN_Q8_0, {2048, 1000, 1}}, {TN_Q4_0, {1024, 512, 9}}, {TN_Q6_K, {512, 1024, 3}},
    {TN_Q4_K, {2048, 1600, 1}}, {TN_F32, {5, 0, 3}},
};

typedef struct subject {
    tn_buffer_type *type;
    const unsigned char *bytes;
    size_t index; /* of the shape */
} subject;

/* One tensor in memory of its own; `x` lives as long as the arena. */
static tn_status bind_subject(const subject *s, tn_arena **arena, tn_buffer **buffer, tn_tensor **x) {
    *buffer = NULL;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = 4096, .no_alloc = true}, arena));
    *x = tn_tensor_new(*arena, shapes[s->index].type, 3, shapes[s->index].ne);
    if (!*x) return TN_E_NOMEM;
    TN_TRY(tn_buffer_new(s->type, tn_buffer_type_tensor_size(s->type, *x), buffer));
    tn_buffer_set_usage(*buffer, TN_USAGE_WEIGHTS);
    return tn_buffer_bind(*buffer, *x, 0);
}

static void check(const subject *s) {
    tn_arena *arena;
    tn_buffer *buffer;
    tn_tensor *x;
    assert_ok(bind_subject(s, &arena, &buffer, &x));
    const size_t size = tn_nbytes(x);
    unsigned char *got = malloc(size + 1);
    source from = {.bytes = s->bytes, .size = size, .bad = SIZE_MAX};
    assert_ok(tn_tensor_load(x, give, &from));
    assert_int_equal(atomic_load(&from.given), size); /* every byte once, or the next line fails */
    assert_ok(tn_tensor_get(x, got));
    if (memcmp(got, s->bytes, size) != 0) fail_msg("%s: shape %zu differs", tn_buffer_type_name(s->type), s->index);
    /* If the first or the last byte cannot be read, the reader's status and message are returned, and the next load
     * works. */
    for (int last = 0; last < 2 && size; last++) {
        char text[64];
        source bad = {.bytes = s->bytes + 1, .size = size, .bad = last ? size - 1 : 0};
        snprintf(text, sizeof text, "byte %zu is damaged", bad.bad);
        for (int again = 0; again < 3; again++) {
            assert_fails(TN_E_IO, tn_tensor_load(x, give, &bad));
            assert_string_equal(tn_error(), text);
        }
        source good = {.bytes = s->bytes + 2, .size = size, .bad = SIZE_MAX};
        assert_ok(tn_tensor_load(x, give, &good));
        assert_ok(tn_tensor_get(x, got));
        assert_memory_equal(got, s->bytes + 2, size);
        assert_false(atomic_load(&bad.beyond) || atomic_load(&good.beyond));
    }
    free(got);
    tn_buffer_free(buffer);
    tn_arena_free(arena);
}

static void check_type(tn_buffer_type *type) {
    for (size_t i = 0; i < TN__COUNT(shapes); i++) check(&(subject){type, bytes, i});
}

/* Loads all shapes with one list. Runs of three neighbours alternate between two buffers. */
static void check_list(tn_buffer_type *type) {
    enum { N = TN__COUNT(shapes) };
    tn_arena *arena;
    tn_buffer *buffers[2];
    source from[N];
    tn_tensor_source list[N];
    size_t offsets[N], used[2] = {0}, align = tn_buffer_type_alignment(type);
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    for (size_t i = 0; i < N; i++) {
        tn_tensor *x = tn_tensor_new(arena, shapes[i].type, 3, shapes[i].ne);
        from[i] = (source){.bytes = bytes + 16 * i, .size = tn_nbytes(x), .bad = SIZE_MAX};
        list[i] = (tn_tensor_source){x, give, &from[i]};
        offsets[i] = used[i / 3 % 2];
        used[i / 3 % 2] += tn__align_up(tn_buffer_type_tensor_size(type, x), align);
    }
    for (size_t b = 0; b < 2; b++) {
        assert_ok(tn_buffer_new(type, used[b], &buffers[b]));
        tn_buffer_set_usage(buffers[b], TN_USAGE_WEIGHTS);
    }
    for (size_t i = 0; i < N; i++) assert_ok(tn_buffer_bind(buffers[i / 3 % 2], list[i].tensor, offsets[i]));
    /* If one tensor fails, wherever it is in the list, its status and message are returned, and the list can be
     * loaded afterwards. */
    for (size_t bad = 0; bad < N; bad++) {
        if (!from[bad].size) continue;
        from[bad].bad = from[bad].size / 2;
        char text[64];
        snprintf(text, sizeof text, "byte %zu is damaged", from[bad].bad);
        assert_fails(TN_E_IO, tn_tensors_load(list, N));
        assert_string_equal(tn_error(), text);
        from[bad].bad = SIZE_MAX;
    }
    for (size_t i = 0; i < N; i++) atomic_store(&from[i].given, 0);
    assert_ok(tn_tensors_load(list, N));
    for (size_t i = 0; i < N; i++) {
        unsigned char *got = malloc(from[i].size + 1);
        assert_ok(tn_tensor_get(list[i].tensor, got));
        assert_int_equal(atomic_load(&from[i].given), from[i].size);
        assert_false(atomic_load(&from[i].beyond));
        if (memcmp(got, from[i].bytes, from[i].size) != 0)
            fail_msg("%s: shape %zu of a list differs", tn_buffer_type_name(type), i);
        free(got);
    }
    for (size_t b = 0; b < 2; b++) tn_buffer_free(buffers[b]);
    tn_arena_free(arena);
}

static void for_every_memory(void (*check_memory)(tn_buffer_type *type)) {
    tn_device *sim;
    assert_ok(tn_device_find("sim:64M,align=256", &sim));
    for (size_t i = 0; i < tn_device_count(); i++) { /* the CPU, the simulated device, and any GPUs */
        tn_device *device = tn_device_get(i);
        tn_buffer_type *extra;
        check_memory(tn_device_buffer_type(device));
        if (tn_device_host_buffer_type(device)) check_memory(tn_device_host_buffer_type(device));
        for (size_t k = 0; (extra = tn_device_extra_buffer_type(device, k)); k++) check_memory(extra);
    }
}
static void every_memory_gets_the_readers_bytes(void **state) {
    (void)state;
    for_every_memory(check_type);
}
static void lists_are_loaded_as_one_by_one(void **state) {
    (void)state;
    for_every_memory(check_list);
    assert_ok(tn_tensors_load(NULL, 0));
    assert_fails(TN_E_INVALID, tn_tensors_load(NULL, 1));
}

static void plain_host_tensors_are_read_in_place(void **state) {
    (void)state;
    tn_arena *arena;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16}, &arena));
    tn_tensor *x = tn_tensor_nd(arena, TN_F32, 64, 8);
    source from = {.bytes = bytes, .size = tn_nbytes(x), .bad = SIZE_MAX};
    assert_ok(tn_tensor_load(x, give, &from));
    assert_memory_equal(x->data, bytes, tn_nbytes(x));
    assert_int_equal(atomic_load(&from.calls), 1);
    assert_fails(TN_E_INVALID, tn_tensor_load(NULL, give, &from));
    assert_fails(TN_E_INVALID, tn_tensor_load(x, NULL, &from));
    tn_arena_free(arena);

    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    assert_fails(TN_E_STATE, tn_tensor_load(tn_tensor_nd(arena, TN_F32, 64, 8), give, &from)); /* no memory yet */
    tn_arena_free(arena);
}

/* ---- Devices without an op for it ---- */

static void devices_without_load_get_pieces(void **state) {
    (void)state;
    tn_device *sim;
    assert_ok(tn_device_find("sim:64M,align=256", &sim));
    subject s = {tn_device_buffer_type(sim), bytes, 0};
    while (shapes[s.index].type != TN_F16) s.index++;
    tn_arena *arena;
    tn_buffer *buffer;
    tn_tensor *x;
    assert_ok(bind_subject(&s, &arena, &buffer, &x));
    assert_null(buffer->ops->load);
    source from = {.bytes = bytes, .size = tn_nbytes(x), .bad = SIZE_MAX};
    uint64_t live = tn_memory_get_stats().live_bytes;
    assert_ok(tn_tensor_load(x, give, &from));
    assert_in_range(atomic_load(&from.calls), 2, 8);
    assert_int_equal(tn_memory_get_stats().live_bytes, live);
    /* A tensor that the backend stores in its own layout (`extra`) is set in one call. */
    x->extra = x;
    atomic_store(&from.calls, 0);
    assert_ok(tn_tensor_load(x, give, &from));
    assert_int_equal(atomic_load(&from.calls), 1);
    tn_buffer_free(buffer);
    tn_arena_free(arena);
}

static void a_failing_copy_ends_it(void **state) {
    (void)state;
    tn_device *sim;
    assert_ok(tn_device_find("sim:64M,fail=copy:2", &sim));
    subject s = {tn_device_buffer_type(sim), bytes, 0};
    while (shapes[s.index].type != TN_F16) s.index++;
    tn_arena *arena;
    tn_buffer *buffer;
    tn_tensor *x;
    assert_ok(bind_subject(&s, &arena, &buffer, &x));
    source from = {.bytes = bytes, .size = tn_nbytes(x), .bad = SIZE_MAX};
    assert_fails(TN_E_DEVICE, tn_tensor_load(x, give, &from));
    assert_int_equal(atomic_load(&from.calls), 2);
    assert_ok(tn_tensor_load(x, give, &from));
    tn_buffer_free(buffer);
    tn_arena_free(arena);
}

static void a_device_for_planning_reads_nothing(void **state) {
    (void)state;
    tn_device *sim;
    assert_ok(tn_device_find("sim:64M,memory-only=1", &sim));
    tn_arena *arena;
    tn_buffer *buffer;
    tn_tensor *x;
    assert_ok(bind_subject(&(subject){tn_device_buffer_type(sim), bytes, 3}, &arena, &buffer, &x));
    source from = {.bytes = bytes, .size = tn_nbytes(x), .bad = SIZE_MAX};
    assert_ok(tn_tensor_load(x, give, &from));
    assert_int_equal(atomic_load(&from.calls), 0);
    tn_buffer_free(buffer);
    tn_arena_free(arena);
}

/* ---- No memory ---- */

static tn_status load_and_compare(void *user) {
    const subject *s = user;
    tn_arena *arena = NULL;
    tn_buffer *buffer = NULL;
    tn_tensor *x;
    unsigned char *got = NULL;
    tn_status status = bind_subject(s, &arena, &buffer, &x);
    if (status == TN_OK) {
        source from = {.bytes = s->bytes, .size = tn_nbytes(x), .bad = SIZE_MAX};
        status = tn_tensor_load(x, give, &from);
        got = malloc(tn_nbytes(x));
        if (status == TN_OK) status = tn_tensor_get(x, got);
        if (status == TN_OK) assert_memory_equal(got, s->bytes, tn_nbytes(x));
    }
    free(got);
    tn_buffer_free(buffer);
    tn_arena_free(arena);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    tn_device *cpu, *sim;
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_device_find("sim:64M,align=256", &sim));
    tn_buffer_type *types[] = {tn_device_buffer_type(cpu), tn_device_extra_buffer_type(cpu, 0),
                               tn_device_buffer_type(sim)};
    for (size_t i = 0; i < TN__COUNT(types); i++)
        for (size_t k = 3; types[i] && k < 6; k++)
            check_every_allocation_failure(load_and_compare, &(subject){types[i], bytes, k});
}

static int set_up(void **state) {
    (void)state;
    rng r = {1};
    bytes = malloc(MOST);
    for (size_t i = 0; bytes && i < MOST; i++) bytes[i] = (unsigned char)rng_next(&r);
    return !bytes;
}
static int tear_down(void **state) {
    (void)state;
    free(bytes);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_memory_gets_the_readers_bytes),
        cmocka_unit_test(lists_are_loaded_as_one_by_one),
        cmocka_unit_test(plain_host_tensors_are_read_in_place),
        cmocka_unit_test(devices_without_load_get_pieces),
        cmocka_unit_test(a_failing_copy_ends_it),
        cmocka_unit_test(a_device_for_planning_reads_nothing),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* The registry, devices, buffers and tensor data through the public interface, on the CPU. */
#include "support.h"

#include "tenon/backend_impl.h"
#include "tenon/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_device *cpu(void) {
    tn_device *device;
    assert_ok(tn_device_find("cpu", &device));
    return device;
}

static void the_cpu_is_always_there(void **state) {
    (void)state;
    assert_true(tn_device_count() >= 1);
    tn_device *device = tn_device_get(0);
    assert_ptr_equal(device, cpu());
    assert_string_equal(tn_device_name(device), "cpu");
    assert_true(strlen(tn_device_description(device)) > 0);
    assert_int_equal(tn_device_get_kind(device), TN_DEVICE_CPU);
    assert_string_equal(tn_device_kind_name(TN_DEVICE_CPU), "cpu");
    assert_true(tn_device_get_caps(device).unified);
    assert_true(tn_device_get_caps(device).wrap_host);
    size_t available, total;
    assert_ok(tn_device_memory(device, &available, &total));
    assert_true(available > 0 && available <= total);
    assert_null(tn_device_get(tn_device_count()));
    assert_true(strlen(tn_cpu_name()) > 0);
    assert_true(strlen(tn_cpu_level()) > 0);
}

static int lines_logged;
static void count_lines(void *user, tn_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
    lines_logged++;
}

/* The module folder is searched at the first use of the registry. The good module's device is found; each of the
 * others is skipped with a log line. */
static void loadable_backends_are_found_and_bad_ones_skipped(void **state) {
    (void)state;
    tn_device *device;
    assert_ok(tn_device_find("module0", &device));
    assert_string_equal(tn_device_description(device), "for tests");
    assert_ptr_equal(tn_device_get(1), device);
    size_t available, count = tn_device_count();
    assert_ok(tn_device_memory(device, &available, NULL));
    assert_int_equal(available, 1000);
    assert_int_equal(lines_logged, 3); /* another interface, no stream, a file that is not there */

    assert_fails(TN_E_EXISTS, tn_registry_load(TENON_TEST_MODULES "/libtenon-good.so"));
    assert_fails(TN_E_VERSION, tn_registry_load(TENON_TEST_MODULES "/libtenon-old.so"));
    assert_fails(TN_E_FORMAT, tn_registry_load(TENON_TEST_MODULES "/libtenon-stranger.so"));
    assert_ok(tn_registry_load(TENON_TEST_MODULES "/libtenon-none.so")); /* no usable device is no error */
    assert_int_equal(tn_device_count(), count);

    tn_stream *stream; /* the status of an unsupported function is passed on */
    assert_int_equal(tn_stream_new(device, NULL, &stream), TN_E_UNSUPPORTED);
    tn_buffer *buffer;
    assert_int_equal(tn_buffer_new(tn_device_buffer_type(device), 10, &buffer), TN_E_UNSUPPORTED);
    assert_fails(TN_E_DEVICE_MEMORY, tn_buffer_new(tn_device_buffer_type(device), 1001, &buffer));
    assert_fails(TN_E_UNSUPPORTED, tn_device_wrap_host(device, &available, 8, &buffer));
}

static void backends_make_devices_from_specifications(void **state) {
    (void)state;
    tn_device *device, *again;
    size_t count = tn_device_count();
    assert_int_equal(tn_device_find("module:one", &device), TN_E_INVALID); /* the backend's own status */
    assert_ok(tn_device_find("module:two", &device));
    assert_string_equal(tn_device_description(device), "described");
    assert_int_equal(tn_device_count(), count + 1);
    assert_ok(tn_device_find("module:two", &again));
    assert_ptr_equal(again, device);
    tn_registry_remove(device);
    assert_int_equal(tn_device_count(), count);
    assert_fails(TN_E_NOT_FOUND, tn_device_find("other:two", &device));
}

static void an_unknown_name_is_told_what_there_is(void **state) {
    (void)state;
    tn_device *device;
    assert_fails(TN_E_NOT_FOUND, tn_device_find("cuda77", &device));
    assert_non_null(strstr(tn_error(), "cpu"));
    assert_fails(TN_E_INVALID, tn_device_find(NULL, &device));
    assert_fails(TN_E_IO, tn_registry_load("/nowhere/libtenon-none.so"));
    assert_fails(TN_E_INVALID, tn_registry_load(NULL));
}

static int freed;
static void count_free(tn_device *device) {
    (void)device;
    freed++;
}

static void devices_come_and_go(void **state) {
    (void)state;
    tn_device_ops ops = *cpu()->ops;
    ops.free = count_free;
    tn_device extra = *cpu();
    extra.ops = &ops;
    assert_fails(TN_E_EXISTS, tn_registry_add(&extra)); /* the name is taken */
    strcpy(extra.name, "extra0");
    size_t before = tn_device_count();
    assert_ok(tn_registry_add(&extra));
    assert_int_equal(tn_device_count(), before + 1);
    tn_device *found;
    assert_ok(tn_device_find("extra0", &found));
    assert_ptr_equal(found, &extra);
    tn_registry_remove(&extra);
    assert_int_equal(freed, 1);
    tn_registry_remove(&extra); /* a stranger now: nothing happens */
    assert_int_equal(freed, 1);
    assert_int_equal(tn_device_count(), before);
    tn_registry_remove(cpu()); /* the CPU stays */
    assert_int_equal(tn_device_count(), before);
}

/* ---- Memory domains ---- */

static size_t free_bytes_of(tn_device *device) {
    size_t available;
    assert_ok(tn_device_memory(device, &available, NULL));
    return available;
}
static tn_status report_nothing(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    (void)device;
    *free_bytes = *total_bytes = 0;
    return TN_OK;
}
static tn_status report_some(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    (void)device;
    *free_bytes = 600;
    *total_bytes = 1000;
    return TN_OK;
}

static void devices_name_the_memory_they_draw_from(void **state) {
    (void)state;
    tn_device_ops silent_ops = *cpu()->ops, some_ops = *cpu()->ops;
    silent_ops.memory = report_nothing;
    some_ops.memory = report_some;
    enum { DISCRETE, INTEGRATED, SILENT, FIRST, SECOND, SILENT_SECOND, N };
    tn_device devices[N];
    for (int i = 0; i < N; i++) {
        devices[i] = *cpu();
        devices[i].ops = i == SILENT || i == SILENT_SECOND ? &silent_ops : &some_ops;
        devices[i].kind = TN_DEVICE_GPU;
        devices[i].caps = (tn_device_caps){.unified = i == INTEGRATED};
        snprintf(devices[i].name, sizeof devices[i].name, "domain%d", i);
        if (i >= FIRST) strcpy(devices[i].card, "0000:01:00.0");
    }
    for (int i = 0; i < N; i++) assert_ok(tn_registry_add(&devices[i]));
    assert_ptr_equal(tn_device_domain(NULL), NULL);
    assert_ptr_equal(tn_device_domain(cpu()), cpu());
    assert_ptr_equal(tn_device_domain(&devices[DISCRETE]), &devices[DISCRETE]);
    assert_ptr_equal(tn_device_domain(&devices[INTEGRATED]), cpu());
    assert_ptr_equal(tn_device_domain(&devices[SILENT]), cpu());
    for (int i = FIRST; i < N; i++) assert_ptr_equal(tn_device_domain(&devices[i]), &devices[FIRST]);

    /* A device that reports nothing has the figures of its domain. */
    assert_int_equal(free_bytes_of(&devices[SILENT_SECOND]), 600);
    assert_true(free_bytes_of(&devices[SILENT]) > 1000);

    tn_device *list[N + 1];
    tn_device_budget budgets[N + 1];
    for (int i = 0; i < N; i++) list[i] = &devices[i];
    list[N] = cpu();
    assert_ok(tn_device_budgets(list, N + 1, budgets));
    const size_t domains[N + 1] = {DISCRETE, INTEGRATED, INTEGRATED, FIRST, FIRST, FIRST, INTEGRATED};
    for (int i = 0; i <= N; i++) {
        bool on_host = domains[i] == INTEGRATED;
        assert_int_equal(budgets[i].domain, domains[i]);
        assert_int_equal(budgets[i].reported, i != SILENT && i != SILENT_SECOND);
        assert_int_equal(budgets[i].domain_total == 1000, !on_host);
        if (i != SILENT && i != N) assert_int_equal(budgets[i].free, 600); /* its own, also of the integrated one */
    }
    /* A machine that is not there: its unified memory stands for the host's. */
    devices[INTEGRATED].caps.described = true;
    assert_ptr_equal(tn_device_domain(&devices[INTEGRATED]), &devices[INTEGRATED]);
    assert_ok(tn_device_budgets(list, N + 1, budgets));
    assert_int_equal(budgets[N].domain, INTEGRATED);
    assert_int_equal(budgets[N].free, 600);
    assert_int_equal(budgets[N].domain_total, 1000);
    list[1] = NULL;
    assert_fails(TN_E_INVALID, tn_device_budgets(list, 2, budgets));
    for (int i = 0; i < N; i++) tn_registry_remove(&devices[i]);
}

static void buffers_hold_tensors(void **state) {
    (void)state;
    tn_buffer_type *type = tn_device_buffer_type(cpu());
    assert_true(tn_buffer_type_is_host(type));
    size_t align = tn_buffer_type_alignment(type);
    assert_true(align >= 64);
    tn_arena *arena;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    tn_tensor *x = tn_tensor_nd(arena, TN_F32, 8, 2), *y = tn_tensor_nd(arena, TN_F32, 8, 2);
    tn_tensor *row = tn_view(arena, x, 1, (int64_t[]){8}, NULL, 32);
    tn_buffer *buffer;
    assert_ok(tn_buffer_new(type, 64 + align, &buffer));
    assert_int_equal((uintptr_t)tn_buffer_base(buffer) % align, 0);
    float values[16], got[16];
    for (int i = 0; i < 16; i++) values[i] = (float)i;

    assert_fails(TN_E_STATE, tn_tensor_set(x, values)); /* no memory yet */
    assert_fails(TN_E_STATE, tn_view_bind(row));
    assert_fails(TN_E_INVALID, tn_buffer_bind(buffer, x, 4));
    assert_fails(TN_E_INVALID, tn_buffer_bind(buffer, x, 2 * align));
    assert_fails(TN_E_INVALID, tn_buffer_bind(buffer, row, 0));
    assert_ok(tn_buffer_bind(buffer, x, 0));
    assert_ok(tn_buffer_bind(buffer, y, align));
    assert_ok(tn_view_bind(row));
    assert_ptr_equal(row->data, (char *)x->data + 32);

    assert_ok(tn_buffer_clear(buffer, 0));
    assert_ok(tn_tensor_set(x, values));
    assert_ok(tn_tensor_copy(x, y));
    assert_ok(tn_tensor_get(y, got));
    assert_memory_equal(got, values, sizeof values);
    assert_ok(tn_tensor_get_at(row, got, 4, 8));
    assert_memory_equal(got, values + 9, 8);
    assert_ok(tn_tensor_fill(x, 0, 32, 32));
    assert_ok(tn_tensor_get(row, got));
    assert_true(got[0] == 0 && got[7] == 0);
    assert_fails(TN_E_INVALID, tn_tensor_set_at(x, values, 60, 8));
    assert_fails(TN_E_INVALID, tn_tensor_get_at(x, got, SIZE_MAX, 8));
    assert_fails(TN_E_SHAPE, tn_tensor_copy(x, row));

    tn_buffer_set_usage(buffer, TN_USAGE_WEIGHTS);
    assert_int_equal(tn_buffer_get_usage(buffer), TN_USAGE_WEIGHTS);
    tn_arena_free(arena);
    tn_buffer_free(buffer);
    tn_buffer_free(NULL);
}

/* A copy between two unrelated devices goes through the host, here in several pieces. */
static void tensors_are_copied_between_strangers(void **state) {
    (void)state;
    enum { N = 30000 };
    static const char *const names[] = {"sim:4M,name=left", "sim:4M,name=right"};
    tn_arena *arena;
    tn_buffer *buffers[2];
    tn_tensor *x[2];
    static float values[N], got[N];
    for (int i = 0; i < N; i++) values[i] = (float)i + 0.1f; /* no byte of the first is 0 */
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    for (int i = 0; i < 2; i++) {
        tn_device *device;
        assert_ok(tn_device_find(names[i], &device));
        tn_buffer_type *type = tn_device_buffer_type(device);
        x[i] = tn_tensor_nd(arena, TN_F32, N);
        assert_ok(tn_buffer_new(type, tn_buffer_type_tensor_size(type, x[i]), &buffers[i]));
        assert_ok(tn_buffer_bind(buffers[i], x[i], 0));
    }
    assert_ok(tn_tensor_set(x[0], values));
    assert_ok(tn_tensor_copy(x[0], x[1]));
    assert_ok(tn_tensor_get(x[1], got));
    assert_memory_equal(got, values, sizeof values);
    assert_ok(tn_tensor_fill(x[1], 0, 4, 8));
    assert_ok(tn_tensor_get(x[1], got));
    assert_true(got[0] == values[0] && got[1] == 0 && got[2] == 0 && got[3] == values[3]);
    assert_ok(tn_buffer_clear(buffers[1], 0));
    assert_ok(tn_tensor_get(x[1], got));
    assert_true(got[3] == 0 && got[N - 1] == 0);
    for (int i = 0; i < 2; i++) tn_buffer_free(buffers[i]);
    tn_arena_free(arena);
}

/* A device that stores private data in weights, as one that repacks them does. */
static char noted;
static tn_status note_weights(tn_buffer *buffer, tn_tensor *tensor) {
    if (buffer->usage == TN_USAGE_WEIGHTS) tensor->extra = &noted;
    return TN_OK;
}

static void a_reset_buffer_takes_other_tensors(void **state) {
    (void)state;
    tn_device *sim;
    tn_buffer *wrapped, *plain;
    static _Alignas(64) char memory[1 << 14];
    assert_ok(tn_device_find("sim:1M,name=reset", &sim));
    assert_ok(tn_device_wrap_host(cpu(), memory, sizeof memory, &wrapped));
    assert_ok(tn_buffer_new(tn_device_buffer_type(cpu()), 1 << 14, &plain));
    tn_buffer *buffers[] = {NULL, NULL, NULL, wrapped};
    tn_buffer_type *types[] = {tn_device_buffer_type(cpu()), tn_device_extra_buffer_type(cpu(), 0),
                               tn_device_buffer_type(sim)};
    for (size_t i = 0; i < 3; i++) assert_ok(tn_buffer_new(types[i], 1 << 14, &buffers[i]));
    char first[32 * 68], second[32 * 36], got[32 * 68];
    for (size_t i = 0; i < sizeof first; i++) first[i] = (char)(i * 7 % 60); /* every one a valid block */
    for (size_t i = 0; i < sizeof second; i++) second[i] = (char)(i * 5 % 60);
    for (size_t i = 0; i < 4; i++) {
        tn_arena *arena, *other;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &other));
        tn_tensor *x = tn_tensor_nd(arena, TN_Q8_0, 64, 32), *y = tn_tensor_nd(other, TN_Q4_0, 64, 32);
        tn_tensor *view = tn_view(arena, x, 2, (int64_t[]){64, 32}, NULL, 0);
        tn_tensor *stays = tn_tensor_nd(arena, TN_Q8_0, 64, 32);
        tn_buffer_ops ops = *buffers[i]->ops;
        const tn_buffer_ops *real = buffers[i]->ops;
        ops.init_tensor = note_weights;
        buffers[i]->ops = &ops;
        tn_buffer_set_usage(buffers[i], TN_USAGE_WEIGHTS);
        assert_ok(tn_buffer_bind(buffers[i], x, 0));
        assert_ok(tn_view_bind(view));
        assert_ok(tn_buffer_bind(plain, stays, 0));
        assert_ptr_equal(x->extra, &noted);
        assert_ok(tn_tensor_set(x, first));

        assert_ok(tn_buffer_reset(buffers[i], other)); /* of which none is there */
        assert_non_null(x->data);
        assert_ok(tn_buffer_reset(buffers[i], NULL));
        assert_ok(tn_buffer_reset(buffers[i], arena));
        assert_null(x->data);
        assert_null(x->buffer);
        assert_null(x->extra);
        assert_null(view->data);
        assert_null(view->buffer);
        assert_ptr_equal(stays->buffer, plain);
        assert_int_equal(tn_buffer_get_usage(buffers[i]), TN_USAGE_ANY);
        assert_int_equal(tn_buffer_size(buffers[i]), 1 << 14);
        assert_fails(TN_E_STATE, tn_tensor_set(x, first));

        assert_ok(tn_buffer_bind(buffers[i], y, 0)); /* another type and layout, in the same place */
        assert_null(y->extra);
        assert_ok(tn_tensor_set(y, second));
        assert_ok(tn_tensor_get(y, got));
        assert_memory_equal(got, second, sizeof second);
        /* Binding to another buffer clears `extra`, even without a reset. */
        tn_buffer_set_usage(buffers[i], TN_USAGE_WEIGHTS);
        assert_ok(tn_buffer_bind(buffers[i], x, 0));
        assert_ptr_equal(x->extra, &noted);
        assert_ok(tn_buffer_bind(plain, x, 0));
        assert_null(x->extra);
        assert_ok(tn_tensor_set(x, first));
        assert_ok(tn_tensor_get(x, got));
        assert_memory_equal(got, first, sizeof first);
        buffers[i]->ops = real;
        tn_buffer_free(buffers[i]);
        tn_arena_free(arena);
        tn_arena_free(other);
    }
    assert_fails(TN_E_INVALID, tn_buffer_reset(NULL, NULL));
    tn_buffer_free(plain);
}

static void odd_buffers_are_legal(void **state) {
    (void)state;
    tn_buffer_type *type = tn_device_buffer_type(cpu());
    tn_buffer *buffer;
    assert_ok(tn_buffer_new(type, 0, &buffer));
    assert_int_equal(tn_buffer_size(buffer), 0);
    assert_ok(tn_buffer_clear(buffer, 1));
    tn_buffer_free(buffer);
    assert_fails(TN_E_NOMEM, tn_buffer_new(type, SIZE_MAX / 4, &buffer)); /* more than there is */

    float memory[4] = {1, 2, 3, 4};
    assert_ok(tn_device_wrap_host(cpu(), memory, sizeof memory, &buffer));
    assert_ptr_equal(tn_buffer_base(buffer), memory);
    tn_arena *arena;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    tn_tensor *x = tn_tensor_nd(arena, TN_F32, 2);
    assert_ok(tn_buffer_bind(buffer, x, 8)); /* files are not aligned to our liking */
    float got[2];
    assert_ok(tn_tensor_get(x, got));
    assert_true(got[0] == 3 && got[1] == 4);
    assert_true(tn_device_supports_buffer_type(cpu(), tn_buffer_get_type(buffer)));
    tn_buffer_free(buffer);
    tn_arena_free(arena);
}

/* (x·y)+(x·y) with memory from the arena. */
static tn_status small_program(void *user) {
    float *result = user;
    tn_arena *arena = NULL;
    tn_stream *stream = NULL;
    tn_program *program = NULL;
    tn_buffer *scratch = NULL;
    tn_graph *graph;
    tn_device *device;
    tn_status status;
    TN_TRY_GOTO(tn_arena_new(&(tn_arena_params){.size = 1 << 16}, &arena), status, out);
    tn_tensor *x = tn_tensor_nd(arena, TN_F32, 2, 3), *y = tn_tensor_nd(arena, TN_F32, 2, 1);
    tn_tensor *p = tn_mul_mat(arena, x, y), *z = tn_add(arena, p, p);
    TN_TRY_GOTO(tn_graph_of(arena, z, &graph), status, out);
    float xs[6] = {1, 2, 3, 4, 5, 6}, ys[2] = {10, 1};
    TN_TRY_GOTO(tn_tensor_set(x, xs), status, out);
    TN_TRY_GOTO(tn_tensor_set(y, ys), status, out);
    TN_TRY_GOTO(tn_device_find("cpu", &device), status, out);
    TN_TRY_GOTO(tn_stream_new(device, &(tn_stream_params){.n_threads = 2}, &stream), status, out);
    TN_TRY_GOTO(tn_program_new(stream, tn_graph_nodes(graph), tn_graph_node_count(graph), &program), status, out);
    TN_TRY_GOTO(tn_buffer_new(tn_device_buffer_type(device), tn_program_scratch(program), &scratch), status, out);
    TN_TRY_GOTO(tn_program_run(program, scratch), status, out);
    TN_TRY_GOTO(tn_stream_synchronize(stream), status, out);
    TN_TRY_GOTO(tn_tensor_get(z, result), status, out);
out:
    tn_program_free(program);
    tn_buffer_free(scratch);
    tn_stream_free(stream);
    tn_arena_free(arena);
    return status;
}

static void a_small_program_runs(void **state) {
    (void)state;
    float result[3];
    check_no_leak(small_program, result);
    assert_true(result[0] == 24 && result[1] == 68 && result[2] == 112);
    check_every_allocation_failure(small_program, result);
}

static void a_program_checks_what_it_is_given(void **state) {
    (void)state;
    tn_arena *arena;
    tn_stream *stream;
    tn_program *program;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    tn_tensor *x = tn_tensor_nd(arena, TN_F32, 4, 4), *order = tn_argsort(arena, x, false);
    assert_ok(tn_stream_new(cpu(), NULL, &stream));
    assert_ok(tn_program_new(stream, &order, 1, &program));
    assert_true(tn_program_scratch(program) > 0); /* known before memory is bound */
    assert_fails(TN_E_INVALID, tn_program_run(program, NULL));
    tn_buffer *scratch;
    assert_ok(tn_buffer_new(tn_device_buffer_type(cpu()), tn_program_scratch(program), &scratch));
    assert_fails(TN_E_STATE, tn_program_run(program, scratch));
    float values[16] = {0};
    tn_buffer_type elsewhere = *tn_device_buffer_type(cpu());
    elsewhere.is_host = false;
    tn_buffer foreign = {.type = &elsewhere, .base = values, .size = sizeof values};
    x->data = order->data = values;
    x->buffer = &foreign;
    assert_fails(TN_E_INVALID, tn_program_run(program, scratch)); /* another device's memory is not touched */
    tn_event *event;
    assert_fails(TN_E_UNSUPPORTED, tn_event_new(cpu(), &event));
    tn_buffer_free(scratch);
    tn_program_free(program);
    tn_stream_free(stream);
    tn_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_is_always_there),
        cmocka_unit_test(loadable_backends_are_found_and_bad_ones_skipped),
        cmocka_unit_test(backends_make_devices_from_specifications),
        cmocka_unit_test(an_unknown_name_is_told_what_there_is),
        cmocka_unit_test(devices_come_and_go),
        cmocka_unit_test(devices_name_the_memory_they_draw_from),
        cmocka_unit_test(buffers_hold_tensors),
        cmocka_unit_test(tensors_are_copied_between_strangers),
        cmocka_unit_test(a_reset_buffer_takes_other_tensors),
        cmocka_unit_test(odd_buffers_are_legal),
        cmocka_unit_test(a_small_program_runs),
        cmocka_unit_test(a_program_checks_what_it_is_given),
    };
    setenv("TENON_BACKEND_PATH", TENON_TEST_MODULES ":/nowhere/libtenon-none.so", 1);
    tn_log_set(count_lines, NULL, TN_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

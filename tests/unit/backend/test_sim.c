/* Simulated devices: unified memory, cards, presets, rates, and specifications that are refused. */
#include "support.h"

#include "tenon/backend_impl.h" /* tn_registry_remove */

#include <stdio.h>
#include <string.h>

static tn_device *cpu(void) { return tn_device_get(0); }

static size_t free_bytes_of(tn_device *device) {
    size_t available;
    assert_ok(tn_device_memory(device, &available, NULL));
    return available;
}
static tn_device *simulated(const char *spec) {
    tn_device *device;
    assert_ok(tn_device_find(spec, &device));
    return device;
}

/* ---- Memory ---- */

/* Unified memory of a simulated device is that of a whole machine: the host's buffers count as well. */
static void simulated_unified_memory_is_the_hosts(void **state) {
    (void)state;
    tn_device *device = simulated("sim:1M,uma=1,limit=768K,name=unified"), *domain = tn_device_domain(device);
    tn_device_caps caps = tn_device_get_caps(device);
    assert_true(caps.unified && caps.wrap_host);
    assert_int_equal(tn_device_get_kind(device), TN_DEVICE_IGPU);
    assert_ptr_not_equal(domain, device);
    const size_t all = free_bytes_of(domain), kib = 1024;
    assert_int_equal(all, 1024 * kib);
    assert_int_equal(free_bytes_of(device), 768 * kib);
    tn_device_budget budgets[2];
    assert_ok(tn_device_budgets((tn_device *[]){device, cpu()}, 2, budgets));
    assert_int_equal(budgets[1].domain, 0);
    assert_int_equal(budgets[1].free, all);
    assert_int_equal(budgets[1].total, 1024 * kib);
    assert_int_equal(budgets[0].domain_free, all);
    assert_int_equal(budgets[0].free, 768 * kib);

    tn_buffer *host, *own, *none;
    assert_ok(tn_buffer_new(tn_device_buffer_type(cpu()), 500 * kib, &host));
    assert_int_equal(free_bytes_of(device), 524 * kib);
    assert_fails(TN_E_DEVICE_MEMORY, tn_buffer_new(tn_device_buffer_type(device), 525 * kib, &none));
    assert_ok(tn_buffer_new(tn_device_buffer_type(device), 524 * kib, &own));
    assert_int_equal(free_bytes_of(domain), 0);
    tn_buffer_free(host);
    assert_int_equal(free_bytes_of(domain), 500 * kib);
    assert_int_equal(free_bytes_of(device), 244 * kib);                       /* its own limit */
    assert_ok(tn_buffer_new(tn_device_buffer_type(cpu()), 600 * kib, &host)); /* the real host has more */
    assert_int_equal(free_bytes_of(domain), 0);
    assert_int_equal(free_bytes_of(device), 0);
    assert_fails(TN_E_DEVICE_MEMORY, tn_buffer_new(tn_device_buffer_type(device), 1, &none));
    tn_buffer_free(host);
    tn_buffer_free(own);
    assert_int_equal(free_bytes_of(domain), all);
    tn_registry_remove(device);
}

/* The caller's memory is used in place: the host sees what the device writes. */
static void unified_devices_compute_on_wrapped_memory(void **state) {
    (void)state;
    tn_device *device = simulated("sim:1M,uma=1,name=wrapping"), *discrete = simulated("sim:1M,name=apart");
    float values[8] = {1, 2, 3, 4}, got[4];
    tn_arena *arena;
    tn_stream *stream;
    tn_program *program;
    tn_buffer *buffer;
    assert_fails(TN_E_UNSUPPORTED, tn_device_wrap_host(discrete, values, sizeof values, &buffer));
    assert_ok(tn_device_wrap_host(device, values, sizeof values, &buffer));
    assert_true(tn_device_supports_buffer_type(device, tn_buffer_get_type(buffer)));
    assert_true(tn_device_supports_buffer_type(cpu(), tn_buffer_get_type(buffer)));
    assert_false(tn_device_supports_buffer_type(discrete, tn_buffer_get_type(buffer)));
    assert_int_equal(free_bytes_of(device), 1 << 20);
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena));
    tn_tensor *x = tn_tensor_nd(arena, TN_F32, 4), *y = tn_add(arena, x, x);
    assert_ok(tn_buffer_bind(buffer, x, 0));
    assert_ok(tn_buffer_bind(buffer, y, 16));
    assert_ok(tn_stream_new(device, NULL, &stream));
    assert_ok(tn_program_new(stream, &y, 1, &program));
    assert_ok(tn_program_run(program, NULL));
    assert_ok(tn_stream_synchronize(stream));
    assert_ok(tn_tensor_get(y, got));
    for (int i = 0; i < 4; i++) assert_true(values[4 + i] == 2 * values[i] && got[i] == values[4 + i]);
    tn_buffer *none;
    assert_fails(TN_E_UNSUPPORTED, tn_buffer_new(tn_buffer_get_type(buffer), 64, &none));
    tn_program_free(program);
    tn_stream_free(stream);
    tn_arena_free(arena);
    tn_buffer_free(buffer);
    tn_registry_remove(device);
    tn_registry_remove(discrete);
}

static void simulated_devices_of_one_card_share_its_memory(void **state) {
    (void)state;
    tn_device *a = simulated("sim:1M,card=one,name=card-a"), *b = simulated("sim:1M,card=one,name=card-b"), *other;
    assert_ptr_equal(tn_device_domain(b), a);
    tn_buffer *buffer;
    assert_ok(tn_buffer_new(tn_device_buffer_type(a), 1000, &buffer));
    assert_int_equal(free_bytes_of(b), (1 << 20) - 1000);
    assert_fails(TN_E_INVALID, tn_device_find("sim:2M,card=one", &other));
    assert_non_null(strstr(tn_error(), "card-a"));
    tn_buffer_free(buffer);
    tn_registry_remove(a);
    assert_int_equal(free_bytes_of(b), 1 << 20);
    assert_ptr_equal(tn_device_domain(b), b);
    tn_registry_remove(b);
}

static void a_silent_device_has_the_hosts_figures(void **state) {
    (void)state;
    tn_device *device = simulated("sim:1M,report=0,name=silent"),
              *both = simulated("sim:1M,uma=1,report=0,name=mute");
    assert_ptr_equal(tn_device_domain(device), cpu());
    assert_ptr_equal(tn_device_domain(both), cpu());
    assert_true(free_bytes_of(device) > 1 << 20);
    tn_device *none = simulated("sim:0,name=none"); /* without memory, which is not the same */
    assert_int_equal(free_bytes_of(none), 0);
    assert_ptr_equal(tn_device_domain(none), none);
    tn_registry_remove(none);
    tn_buffer *buffer;
    assert_fails(TN_E_DEVICE_MEMORY, tn_buffer_new(tn_device_buffer_type(device), (1 << 20) + 1, &buffer));
    tn_registry_remove(device);
    tn_registry_remove(both);
}

/* A device with memory of its own leaves the host its figures. */
static void a_simulated_gpu_is_apart_from_the_host(void **state) {
    (void)state;
    tn_device *device = simulated("sim:1M,name=alone");
    tn_device_budget budgets[2];
    size_t total;
    assert_ok(tn_device_memory(cpu(), NULL, &total));
    assert_ok(tn_device_budgets((tn_device *[]){device, cpu()}, 2, budgets));
    assert_int_equal(budgets[0].domain, 0);
    assert_int_equal(budgets[0].domain_total, 1 << 20);
    assert_int_equal(budgets[1].domain, 1);
    assert_int_equal(budgets[1].total, total);
    assert_int_equal(budgets[1].domain_total, total);
    assert_true(budgets[1].free > 1 << 20 && budgets[1].free == budgets[1].domain_free);
    tn_registry_remove(device);
}

/* ---- Specifications of simulated devices ---- */

static void ops_are_listed_or_left_out(void **state) {
    (void)state;
    tn_device *only = simulated("sim:1M,ops=add+silu,name=only"),
              *without = simulated("sim:1M,ops=-add,name=without");
    tn_arena *a;
    char reason[128];
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &a));
    tn_tensor *x = tn_input(a, TN_F32, 8), *nodes[] = {tn_add(a, x, x), tn_silu(a, x), tn_mul(a, x, x)};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tn_device_supports_op(only, nodes[i], reason, sizeof reason), i < 2);
        assert_int_equal(tn_device_supports_op(without, nodes[i], reason, sizeof reason), i > 0);
    }
    assert_true(tn_device_supports_op(only, tn_reshape(a, x, 4, 2), NULL, 0));
    tn_device *none;
    assert_fails(TN_E_INVALID, tn_device_find("sim:1M,ops=nonsense", &none));
    tn_arena_free(a);
    tn_registry_remove(only);
    tn_registry_remove(without);
}

static void presets_and_rates_are_read(void **state) {
    (void)state;
    size_t n, available;
    tn_device_rates rates;
    const tn_device_preset *presets = tn_device_presets(&n);
    bool rtx4090 = false, spark = false;
    for (size_t i = 0; i < n; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "sim:%s", presets[i].name);
        tn_device *device = simulated(spec);
        assert_string_equal(tn_device_name(device), presets[i].name);
        assert_non_null(strstr(tn_device_description(device), presets[i].title));
        assert_int_equal(strncmp(tn_device_description(device), "simulated", 9), 0);
        assert_int_equal(tn_device_get_caps(device).unified, presets[i].unified);
        available = free_bytes_of(device);
        assert_int_equal(available, presets[i].limit ? presets[i].limit : presets[i].memory);
        assert_true(tn_device_given_rates(device, &rates));
        assert_memory_equal(&rates, &presets[i].rates, sizeof rates);
        assert_true(rates.read >= 1e11 && rates.read < 1e13 && rates.f16 >= rates.f32 && rates.i8 >= rates.f16);
        rtx4090 = rtx4090 || strcmp(presets[i].name, "rtx4090") == 0;
        spark = spark || (strcmp(presets[i].name, "dgx-spark") == 0 && presets[i].unified);
        tn_device *again = simulated(spec); /* another one, with another name */
        assert_ptr_not_equal(again, device);
        tn_registry_remove(again);
        tn_registry_remove(device);
    }
    assert_true(rtx4090 && spark);
    tn_device *device = simulated("sim:rtx3090,read=900G,f32=1.5T,f16=71T,i8=2P,link=25G,launch=5us,name=mine");
    assert_true(tn_device_given_rates(device, &rates));
    assert_true(rates.read == 900e9 && rates.f32 == 1.5e12 && rates.f16 == 71e12 && rates.i8 == 2e15);
    assert_true(rates.link == 25e9 && rates.launch == 5e-6);
    /* A long specification with a name finds the same device again. */
    assert_ptr_equal(simulated("sim:rtx3090,read=900G,f32=1.5T,f16=71T,i8=2P,link=25G,launch=5us,name=mine"), device);
    tn_registry_remove(device);
    assert_false(tn_device_given_rates(cpu(), &rates));
    assert_true(rates.read == 0);
}

static void bad_specifications_are_refused_with_a_reason(void **state) {
    (void)state;
    static const struct {
        const char *spec, *reason;
    } bad[] = {
        {"sim:", "a size like 8G"},
        {"sim:,,,=", "a size like 8G"},
        {"sim:rtx9999", "rtx4090"},
        {"sim:-1G", "a size like 8G"},
        {"sim: 1G", "a size like 8G"},
        {"sim:nan", "a size like 8G"},
        {"sim:inf", "a size like 8G"},
        {"sim:0x10", "a size like 8G"},
        {"sim:1e300", "a size like 8G"},
        {"sim:99999999999T", "a size like 8G"},
        {"sim:8Gx", "a size like 8G"},
        {"sim:8G,", "empty"},
        {"sim:8G,,align=8", "empty"},
        {"sim:8G,=", "invalid setting '='"},
        {"sim:8G,=1", "invalid setting '=1'"},
        {"sim:8G,uma=2", "uma=1"},
        {"sim:8G,report=yes", "report=0"},
        {"sim:8G,limit=0", "limit=BYTES"},
        {"sim:8G,limit=-1", "limit=BYTES"},
        {"sim:8G,card=", "card=NAME"},
        {"sim:8G,card=0123456789012345678901234567890123456789", "card=NAME"},
        {"sim:8G,read=", "read=RATE"},
        {"sim:8G,read=0", "read=RATE"},
        {"sim:8G,read=-5G", "read=RATE"},
        {"sim:8G,f16=9999999P", "f16=RATE"},
        {"sim:8G,f16=nan", "f16=RATE"},
        {"sim:8G,launch=5", "launch=TIME"},
        {"sim:8G,launch=-5us", "launch=TIME"},
        {"sim:8G,max-alloc=0", "max-alloc=BYTES"},
    };
    const size_t count = tn_device_count();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tn_device *device;
        if (tn_device_find(bad[i].spec, &device) != TN_E_INVALID || !strstr(tn_error(), bad[i].reason))
            fail_msg("%s: %s", bad[i].spec, tn_error());
    }
    char spec[600] = "sim:8G,name=";
    memset(spec + strlen(spec), 'x', sizeof spec - 1 - strlen(spec));
    spec[sizeof spec - 1] = '\0';
    tn_device *device;
    assert_fails(TN_E_INVALID, tn_device_find(spec, &device));
    assert_int_equal(tn_device_count(), count);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulated_unified_memory_is_the_hosts),
        cmocka_unit_test(unified_devices_compute_on_wrapped_memory),
        cmocka_unit_test(simulated_devices_of_one_card_share_its_memory),
        cmocka_unit_test(a_silent_device_has_the_hosts_figures),
        cmocka_unit_test(a_simulated_gpu_is_apart_from_the_host),
        cmocka_unit_test(ops_are_listed_or_left_out),
        cmocka_unit_test(presets_and_rates_are_read),
        cmocka_unit_test(bad_specifications_are_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

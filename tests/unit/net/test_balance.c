/* Shares of ranks by their measured peaks and free memory. */
#include "support.h"

#include "tenon/cpu.h"
#include "tenon/llm.h"
#include "tenon/net/ranks.h"
#include "tenon/speed.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

static const uint64_t gib = 1ull << 30;
#define RANK(READ, MULTIPLY, MEMORY, DEVICE, MODEL)                                                                  \
    {                                                                                                                \
        .read = (READ), .multiply = (MULTIPLY), .n_devices = 1, .devices = {{(DEVICE), (MEMORY)}},                   \
        .model_bytes = (MODEL)                                                                                       \
    }

static void check_shares(const tn_rank_resources *all, int n, bool by_layers, const double *expected) {
    float shares[TN_NET_RANKS_MOST];
    double sum = 0;
    tn_ranks_shares(all, n, by_layers, shares);
    for (int r = 0; r < n; r++) sum += (double)shares[r];
    for (int r = 0; r < n; r++) {
        const double share = sum > 0 ? (double)shares[r] / sum : 0;
        if (fabs(share - expected[r]) > 1e-3) fail_msg("rank %d has %g, not %g", r, share, expected[r]);
    }
}

static void ranks_that_are_alike_have_equal_shares(void **state) {
    (void)state;
    const tn_rank_resources alike[] = {RANK(30e9, 1e12, 8 * gib, 1, 4 * gib),
                                       RANK(32e9, 1.05e12, 9 * gib, 2, 4 * gib)};
    check_shares(alike, 2, false, (const double[]){0, 0});
    check_shares(alike, 2, true, (const double[]){0, 0});
    const tn_rank_resources unknown[] = {RANK(30e9, 1e12, 8 * gib, 1, 4 * gib), RANK(0, 0, 8 * gib, 2, 4 * gib)};
    check_shares(unknown, 2, false, (const double[]){0, 0});
}

static void shares_follow_the_peaks(void **state) {
    (void)state;
    const tn_rank_resources two[] = {RANK(90e9, 1e12, 64 * gib, 1, 4 * gib), RANK(30e9, 4e12, 64 * gib, 2, 0)};
    check_shares(two, 2, false, (const double[]){0.75, 0.25}); /* every token reads all rows */
    check_shares(two, 2, true, (const double[]){0.2, 0.8});    /* layers pay for prompts */
}

static void memory_limits_shares(void **state) {
    (void)state;
    /* The fast rank holds 0.9 · 2 of 6 GiB, the slow ones the rest. */
    const tn_rank_resources small[] = {RANK(90e9, 0, 2 * gib, 1, 6 * gib), RANK(30e9, 0, 64 * gib, 2, 6 * gib),
                                       RANK(30e9, 0, 64 * gib, 3, 6 * gib)};
    check_shares(small, 3, false, (const double[]){0.3, 0.35, 0.35});
    /* Two ranks on one device have half of its memory each. */
    const tn_rank_resources together[] = {RANK(0, 0, 4 * gib, 1, 6 * gib), RANK(0, 0, 4 * gib, 1, 6 * gib),
                                          RANK(0, 0, 64 * gib, 3, 0)};
    check_shares(together, 3, false, (const double[]){0.3, 0.3, 0.4});
    /* Too little everywhere: by memory; the session is refused later, with numbers. */
    const tn_rank_resources none[] = {RANK(0, 0, 1 * gib, 1, 60 * gib), RANK(0, 0, 3 * gib, 2, 60 * gib)};
    check_shares(none, 2, false, (const double[]){0.25, 0.75});
}

static void the_limit_of_a_full_rank_passes_to_the_next(void **state) {
    (void)state;
    /* Filling the first rank raises the share of the second beyond its memory as well. */
    const tn_rank_resources all[] = {RANK(40e9, 0, 1 * gib, 1, 9 * gib), RANK(30e9, 0, 3 * gib, 2, 9 * gib),
                                     RANK(10e9, 0, 64 * gib, 3, 9 * gib)};
    check_shares(all, 3, false, (const double[]){0.1, 0.3, 0.6});
}

static void ranks_of_machines_are_counted(void **state) {
    (void)state;
    static const struct {
        uint64_t machines[6];
        int n, expected;
    } cases[] = {{{1, 1, 2, 2}, 4, 2}, {{1, 1, 1}, 3, 3},          {{1, 2, 3}, 3, 1},
                 {{1, 1, 2}, 3, 0},    {{1, 2, 1, 2}, 4, 0},       {{1, 1, 2, 2, 1, 1}, 6, 0},
                 {{1, 2, 2, 2}, 4, 0}, {{1, 1, 1, 2, 2, 3}, 6, 0}, {{7}, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_rank_resources all[6] = {{0}};
        for (int r = 0; r < cases[i].n; r++) all[r].machine = cases[i].machines[r];
        assert_int_equal(tn_ranks_per_machine(all, cases[i].n), cases[i].expected);
    }
}

struct exchanging {
    tn_net *net;
    tn_rank_resources own, all[3];
    tn_status status;
};
static void *exchange(void *user) {
    struct exchanging *e = user;
    e->status = tn_ranks_exchange(e->net, &e->own, e->all);
    return NULL;
}

static void ranks_exchange_what_they_have(void **state) {
    (void)state;
    tn_net *nets[3];
    pthread_t threads[3];
    struct exchanging e[3];
    assert_ok(tn_net_threads(&(tn_net_params){.n_ranks = 3, .timeout_ms = 20000}, nets));
    for (int r = 0; r < 3; r++) {
        e[r] = (struct exchanging){.net = nets[r],
                                   .own = {.read = 10.0 + r, .n_devices = 1, .devices = {{1, (uint64_t)r}}}};
        assert_int_equal(pthread_create(&threads[r], NULL, exchange, &e[r]), 0);
    }
    for (int r = 0; r < 3; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < 3; r++) {
        assert_ok(e[r].status);
        for (int other = 0; other < 3; other++)
            assert_memory_equal(&e[r].all[other], &e[other].own, sizeof e[other].own);
    }
    for (int r = 0; r < 3; r++) tn_net_free(nets[r]);
    assert_fails(TN_E_INVALID, tn_ranks_exchange(NULL, &e[0].own, e[0].all));
}

static void a_device_gives_its_declared_peaks(void **state) {
    (void)state;
    tn_device *cpu;
    tn_rank_resources first, again;
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_rank_resources_of(&cpu, 1, 3, &first));
    assert_true(first.n_devices == 1 && first.devices[0].memory > 0 && first.devices[0].id != 0);
    assert_true(first.read == 0 && first.multiply == 0);
    const tn_device_speed speed = tn_speed_from_rates(&(tn_device_rates){.read = 5e10, .f16 = 2e12, .f32 = 1e12});
    assert_ok(tn_device_set_speed(cpu, 3, &speed));
    assert_ok(tn_rank_resources_of(&cpu, 1, 3, &again));
    assert_true(again.read == speed.read && again.multiply > 0 && again.devices[0].id == first.devices[0].id);
    assert_ok(tn_device_set_speed(cpu, 3, NULL));
    assert_fails(TN_E_INVALID, tn_rank_resources_of(NULL, 1, 1, &first));
    assert_fails(TN_E_INVALID, tn_rank_resources_of(&cpu, 0, 1, &first));
    cpu = NULL;
    assert_fails(TN_E_INVALID, tn_rank_resources_of(&cpu, 1, 1, &first));
}

static void a_rank_has_the_memory_of_all_its_devices(void **state) {
    (void)state;
    tn_device *devices[2];
    tn_rank_resources own;
    assert_ok(tn_device_find("sim:3G,name=balance_a", &devices[0]));
    assert_ok(tn_device_find("sim:5G,name=balance_b", &devices[1]));
    assert_ok(tn_rank_resources_of(devices, 2, 1, &own));
    assert_int_equal(own.n_devices, 2);
    assert_true(own.devices[0].memory == 3 * gib && own.devices[1].memory == 5 * gib);
    assert_true(own.devices[0].id != own.devices[1].id);
    /* Both ranks use device 1, only the first one also device 2: 0.9 · (2 + 2) and 0.9 · 2 of 6 GiB. */
    const tn_rank_resources shared[] = {
        {.n_devices = 2, .devices = {{1, 4 * gib}, {2, 2 * gib}}, .model_bytes = 6 * gib},
        {.n_devices = 1, .devices = {{1, 4 * gib}}}};
    check_shares(shared, 2, false, (const double[]){2.0 / 3, 1.0 / 3});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_are_alike_have_equal_shares),
        cmocka_unit_test(shares_follow_the_peaks),
        cmocka_unit_test(memory_limits_shares),
        cmocka_unit_test(the_limit_of_a_full_rank_passes_to_the_next),
        cmocka_unit_test(ranks_of_machines_are_counted),
        cmocka_unit_test(ranks_exchange_what_they_have),
        cmocka_unit_test(a_device_gives_its_declared_peaks),
        cmocka_unit_test(a_rank_has_the_memory_of_all_its_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The placement policy: placements fit, the fastest device is filled first, the caller's choices are kept, and causes
 * are given. */
#include "support.h"

#include "tenon/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 24, MAX_DEVICES = 4 };

typedef struct model {
    tn_placement_device devices[MAX_DEVICES];
    tn_placement_layer layers[MAX_LAYERS];
    size_t bytes[MAX_LAYERS * MAX_DEVICES];
    tn_placement_params params;
    tn_placement places[MAX_LAYERS];
    size_t needed[MAX_DEVICES];
    bool fits;
} model;

/* n layers of 10 bytes and an output of 25, over the given devices, the last of them the host. */
static void make(model *m, size_t n_layers, size_t n_devices, const tn_placement_device *devices) {
    memset(m, 0, sizeof *m);
    memcpy(m->devices, devices, n_devices * sizeof *devices);
    for (size_t i = 0; i <= n_layers; i++) {
        m->layers[i] = (tn_placement_layer){i < n_layers ? "layer" : "output", TN_PLACEMENT_FREE, i == n_layers};
        for (size_t d = 0; d < n_devices; d++) m->bytes[i * n_devices + d] = i < n_layers ? 10 : 25;
    }
    m->params = (tn_placement_params){.devices = m->devices,
                                      .n_devices = n_devices,
                                      .layers = m->layers,
                                      .n_layers = n_layers + 1,
                                      .bytes = m->bytes,
                                      .n_off_host = -1};
}
static void place(model *m) { assert_ok(tn_placement_choose(&m->params, m->places, m->needed, &m->fits)); }
static size_t count_on(const model *m, int device) {
    size_t n = 0;
    for (size_t i = 0; i < m->params.n_layers; i++) n += m->places[i].device == device;
    return n;
}

static void what_fits_on_the_fastest_goes_there(void **state) {
    (void)state;
    model m;
    make(&m, 8, 3,
         (tn_placement_device[]){{"slow", 1000, 5, 1, 0, 0}, {"fast", 1000, 5, 2, 0, 0}, {"cpu", 1000, 0, 0, 0, 0}});
    place(&m);
    assert_true(m.fits);
    assert_int_equal(count_on(&m, 1), 9);
    assert_int_equal(m.needed[1], 5 + 80 + 25);
    assert_int_equal(m.needed[0], 0);
    assert_int_equal(m.places[0].cause, TN_PLACEMENT_FASTEST);

    /* Exactly enough is enough; one byte less moves the first layer to the next device. */
    m.devices[1].free = 110;
    place(&m);
    assert_int_equal(count_on(&m, 1), 9);
    m.devices[1].free = 109;
    place(&m);
    assert_true(m.fits);
    assert_int_equal(count_on(&m, 1), 8);
    assert_int_equal(m.places[0].device, 0);
    assert_int_equal(m.places[0].cause, TN_PLACEMENT_NEXT);
    assert_int_equal(m.needed[0], 15);
}

static void what_is_left_stays_on_the_host(void **state) {
    (void)state;
    model m;
    make(&m, 8, 2, (tn_placement_device[]){{"gpu", 60, 5, 1, 0, 0}, {"cpu", 1000, 7, 0, 0, 0}});
    place(&m);
    assert_true(m.fits);
    /* Five layers fit; the output matrix is the last to leave. */
    assert_int_equal(count_on(&m, 0), 5);
    for (size_t i = 0; i < 9; i++) assert_int_equal(m.places[i].device, i >= 3 && i < 8 ? 0 : 1);
    assert_int_equal(m.places[0].cause, TN_PLACEMENT_FULL);
    assert_int_equal(m.needed[1], 7 + 30 + 25);
    /* When the host is too small for the rest nothing fits, and the figures say what would be needed. */
    m.devices[1].free = 61;
    place(&m);
    assert_false(m.fits);
    assert_int_equal(m.needed[0], 5 + 80 + 25);
    /* Alone, the host takes all. */
    make(&m, 8, 1, (tn_placement_device[]){{"cpu", 1000, 7, 0, 0, 0}});
    place(&m);
    assert_true(m.fits && m.places[4].cause == TN_PLACEMENT_ONLY);
}

static void the_callers_word_is_kept(void **state) {
    (void)state;
    model m;
    make(&m, 8, 3,
         (tn_placement_device[]){{"a", 1000, 0, 0, 0, 0}, {"b", 1000, 0, 0, 0, 0}, {"cpu", 1000, 0, 0, 0, 0}});
    m.params.n_off_host = 3;
    place(&m);
    assert_int_equal(count_on(&m, 0), 3);
    assert_int_equal(m.places[7].device, 0);
    assert_int_equal(m.places[8].device, 2); /* the output stays on the host: fewer than all layers were requested */
    assert_int_equal(m.places[0].cause, TN_PLACEMENT_LIMIT);
    /* The requested number of layers is placed even where it does not fit. */
    m.devices[0].free = m.devices[1].free = 5;
    place(&m);
    assert_false(m.fits);
    assert_int_equal(count_on(&m, 0), 3);

    make(&m, 8, 3,
         (tn_placement_device[]){{"a", 1000, 0, 0, 3, 0}, {"b", 1000, 0, 0, 1, 0}, {"cpu", 1000, 0, 0, 0, 0}});
    m.params.n_off_host = 8;
    place(&m);
    for (size_t i = 0; i < 8; i++) assert_int_equal(m.places[i].device, i < 6 ? 0 : 1);
    assert_int_equal(m.places[3].cause, TN_PLACEMENT_SHARE);
    /* As many layers as fit are placed, in the same proportions: device a has room for 4 layers of 10 bytes. */
    m.params.n_off_host = -1;
    m.devices[0].free = 40;
    place(&m);
    assert_true(m.fits);
    assert_true(count_on(&m, 0) <= 4 && count_on(&m, 0) + count_on(&m, 1) >= 5);

    make(&m, 8, 2, (tn_placement_device[]){{"gpu", 1000, 0, 0, 0, 0}, {"cpu", 1000, 0, 0, 0, 0}});
    m.layers[2].device = 1;
    m.params.n_off_host = 0;
    m.layers[5].device = 0;
    place(&m);
    assert_int_equal(count_on(&m, 0), 1);
    assert_int_equal(m.places[2].cause, TN_PLACEMENT_PINNED);
    assert_int_equal(m.places[5].device, 0);
}

/* A GPU and the host that share one memory of 130 bytes; the GPU alone may take 100 of them. */
static void a_domain_is_counted_once(void **state) {
    (void)state;
    model m;
    size_t domain_free[] = {130};
    make(&m, 8, 2, (tn_placement_device[]){{"gpu", 100, 5, 1, 0, 1}, {"cpu", 1000, 7, 0, 0, 1}});
    m.params.domain_free = domain_free;
    m.params.n_domains = 1;
    place(&m);
    assert_true(m.fits);
    assert_int_equal(count_on(&m, 0), 8); /* 85 bytes; the output would make 110 */
    assert_int_equal(m.needed[0] + m.needed[1], 5 + 80 + 7 + 25);
    domain_free[0] = 117;
    place(&m);
    assert_true(m.fits);
    domain_free[0] = 116;
    place(&m);
    assert_true(m.fits); /* the GPU's own 5 bytes are saved where it has no layers */
    assert_int_equal(count_on(&m, 0), 0);
    domain_free[0] = 111;
    place(&m);
    assert_false(m.fits);
    m.devices[0].domain = 2;
    assert_fails(TN_E_INVALID, tn_placement_choose(&m.params, m.places, m.needed, &m.fits));
}

/* Random models: the figures are recomputed from the placements alone. */
static void placements_fit_and_hold_together(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 3000; round++) {
        rng r = {round};
        model m;
        size_t n_devices = 1 + rng_below(&r, MAX_DEVICES), n_layers = 1 + rng_below(&r, MAX_LAYERS - 1);
        tn_placement_device devices[MAX_DEVICES] = {{0}};
        for (size_t d = 0; d < n_devices; d++)
            devices[d] =
                (tn_placement_device){"d", rng_below(&r, 300), rng_below(&r, 30), (double)rng_below(&r, 3), 0, 0};
        make(&m, n_layers, n_devices, devices);
        for (size_t i = 0; i < (n_layers + 1) * n_devices; i++) m.bytes[i] = 1 + rng_below(&r, 30);
        const size_t domain_free[2] = {rng_below(&r, 400), rng_below(&r, 400)};
        for (size_t d = 0; round % 2 && d < n_devices; d++) m.devices[d].domain = rng_below(&r, 3);
        m.params.domain_free = domain_free;
        m.params.n_domains = 2;
        place(&m);
        size_t host = n_devices - 1, used[MAX_DEVICES] = {0}, in_domain[2] = {0}, all_on_host = devices[host].fixed;
        bool seen[MAX_DEVICES] = {0}, fits = true;
        for (size_t i = 0; i <= n_layers; i++) {
            size_t d = (size_t)m.places[i].device;
            used[d] += m.bytes[i * n_devices + d] + (seen[d] || d == host ? 0 : devices[d].fixed);
            all_on_host += m.bytes[i * n_devices + host];
            if (i && m.places[i - 1].device != (int)d && d != host) assert_false(seen[d]); /* one run each */
            seen[d] = true;
        }
        used[host] += devices[host].fixed;
        for (size_t d = 0; d < n_devices; d++) {
            assert_int_equal(used[d], m.needed[d]);
            fits = fits && used[d] <= devices[d].free;
            if (m.devices[d].domain) in_domain[m.devices[d].domain - 1] += used[d];
        }
        for (size_t i = 0; i < 2; i++) fits = fits && in_domain[i] <= domain_free[i];
        assert_int_equal(fits, m.fits);
        const size_t domain = m.devices[host].domain, most = domain ? domain_free[domain - 1] : SIZE_MAX;
        if (all_on_host <= devices[host].free && all_on_host <= most) assert_true(m.fits);
    }
}

static void every_place_is_explained(void **state) {
    (void)state;
    model m;
    make(&m, 4, 2, (tn_placement_device[]){{"gpu", 25, 5, 1, 0, 0}, {"cpu", 1000, 7, 0, 0, 0}});
    place(&m);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_ok(tn_placement_explain(&m.params, m.places, out));
    fclose(out);
    assert_non_null(
        strstr(text, "layer                        10 bytes on gpu      the fastest device with free memory\n"));
    assert_non_null(
        strstr(text, "output                       25 bytes on cpu      no other device has free memory\n"));
    free(text);
}

static tn_status place_something(void *user) {
    model *m = user;
    return tn_placement_choose(&m->params, m->places, m->needed, &m->fits);
}
static void mistakes_are_refused(void **state) {
    (void)state;
    model m;
    make(&m, 4, 2, (tn_placement_device[]){{"gpu", 25, 5, 1, 0, 0}, {"cpu", 1000, 7, 0, 0, 0}});
    check_every_allocation_failure(place_something, &m);
    m.layers[1].device = 2;
    assert_fails(TN_E_INVALID, place_something(&m));
    m.layers[1].device = -2;
    assert_fails(TN_E_INVALID, place_something(&m));
    m.layers[1].device = 0;
    m.devices[0].share = -1;
    assert_fails(TN_E_INVALID, place_something(&m));
    m.params.n_devices = 0;
    assert_fails(TN_E_INVALID, place_something(&m));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_on_the_fastest_goes_there),
        cmocka_unit_test(what_is_left_stays_on_the_host),
        cmocka_unit_test(the_callers_word_is_kept),
        cmocka_unit_test(a_domain_is_counted_once),
        cmocka_unit_test(placements_fit_and_hold_together),
        cmocka_unit_test(every_place_is_explained),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

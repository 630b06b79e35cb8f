/* Implementation of the shared test helpers. */
#include "support.h"

#include "tenon/backend.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whatever a test allocates through the library's hooks is freed when it ends by itself: a program that leaves blocks
 * fails. Simulated devices, two blocks each, live as long as the process. The check runs after all other destructors.
 */
__attribute__((destructor(101))) static void check_that_nothing_is_left(void) {
    const tn_memory_stats left = tn_memory_get_stats();
    uint64_t devices = 0;
    if (left.live_blocks == 0) return;
    for (size_t i = 0; i < tn_device_count(); i++) devices += tn_device_get_kind(tn_device_get(i)) != TN_DEVICE_CPU;
    if (left.live_blocks <= 2 * devices) return;
    fprintf(stderr, "FAILED: %llu blocks of %llu bytes are not freed at the end\n",
            (unsigned long long)left.live_blocks, (unsigned long long)left.live_bytes);
    _exit(1);
}

const char *golden_path(const char *relative) {
    static char path[1024];
    const char *root = getenv("TENON_GOLDEN");
    if (!root || !*root) root = getenv("TENON_GOLDEN_DEFAULT");
    if (!root || !*root) root = "../shared/golden";
    snprintf(path, sizeof path, "%s/%s", root, relative);
    return access(path, R_OK) == 0 ? path : NULL;
}

void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *bytes = length < 0 ? NULL : malloc((size_t)length + 1);
    if (bytes && fread(bytes, 1, (size_t)length, file) != (size_t)length) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    if (!bytes) return NULL;
    bytes[length] = '\0';
    if (size) *size = (size_t)length;
    return bytes;
}

uint64_t rng_next(rng *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
uint64_t rng_below(rng *r, uint64_t bound) { return bound ? rng_next(r) % bound : 0; }
double rng_unit(rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }
float rng_normal(rng *r) {
    double u = rng_unit(r) + 0x1p-60, v = rng_unit(r);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static atomic_long countdown; /* the allocation that reaches 0 fails */
static atomic_long fired;

static void *failing_alloc(void *user, size_t size, size_t align) {
    (void)user;
    if (atomic_fetch_sub(&countdown, 1) == 1) {
        atomic_store(&fired, 1);
        return NULL;
    }
    void *pointer = NULL;
    return posix_memalign(&pointer, align < 16 ? 16 : align, size ? size : 1) == 0 ? pointer : NULL;
}
static void failing_free(void *user, void *pointer, size_t size) {
    (void)user;
    (void)size;
    free(pointer);
}

void check_no_leak(alloc_scenario scenario, void *user) {
    uint64_t before = tn_memory_get_stats().live_blocks;
    tn_status status = scenario(user);
    uint64_t after = tn_memory_get_stats().live_blocks;
    if (status != TN_OK) fail_msg("scenario failed: %s: %s", tn_status_name(status), tn_error());
    if (before != after) fail_msg("%lld blocks leaked", (long long)(after - before));
}

void check_every_allocation_failure(alloc_scenario scenario, void *user) {
    tn_allocator hooks = {failing_alloc, failing_free, NULL};
    for (long n = 1; n < 1000000; n++) {
        atomic_store(&countdown, n);
        atomic_store(&fired, 0);
        tn_set_allocator(&hooks);
        uint64_t before = tn_memory_get_stats().live_blocks;
        tn_error_clear();
        tn_status status = scenario(user);
        uint64_t after = tn_memory_get_stats().live_blocks;
        tn_set_allocator(NULL);
        if (before != after) fail_msg("allocation %ld failing: %lld blocks leaked", n, (long long)(after - before));
        if (!atomic_load(&fired)) {
            if (status != TN_OK) fail_msg("without a failure: %s: %s", tn_status_name(status), tn_error());
            return;
        }
        if (status != TN_OK && status != TN_E_NOMEM)
            fail_msg("allocation %ld failing gave %s: %s", n, tn_status_name(status), tn_error());
        if (status != TN_OK && !*tn_error()) fail_msg("allocation %ld failing left no message", n);
    }
    fail_msg("the scenario never ran through");
}

/* The GPU for GPU tests: the first one, or $TENON_GPU, which may be a simulated device. */
#ifndef TN_TESTS_GPU_H
#define TN_TESTS_GPU_H

#include "support.h"

#include "tenon/backend.h"

#include <stdlib.h>
#include <string.h>

static tn_device *gpu;

static int find_gpu(void **state) {
    (void)state;
    const char *name = getenv("TENON_GPU");
    if (name && *name) return tn_device_find(name, &gpu) == TN_OK ? 0 : -1;
    for (size_t i = 0; i < tn_device_count() && !gpu; i++) {
        tn_device *device = tn_device_get(i);
        if (tn_device_get_kind(device) != TN_DEVICE_CPU &&
            strncmp(tn_device_description(device), "simulated", 9) != 0)
            gpu = device;
    }
    return 0;
}
/* How often a test repeats: TENON_QUICK (the emulated CUDA of `make test`), without a variable, TENON_LONG. */
static inline int gpu_rounds(int quick, int usual, int many) {
    return getenv("TENON_LONG") ? many : getenv("TENON_QUICK") ? quick : usual;
}
#define NEED_GPU()                                                                                                   \
    if (!gpu) {                                                                                                      \
        print_message("skipped: no GPU here\n");                                                                     \
        skip();                                                                                                      \
    }

#endif

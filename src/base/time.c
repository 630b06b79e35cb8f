/* Monotonic time and the version string. */
#include "tenon/base.h"

#include <time.h>

uint64_t tn_time_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define TN__STRING_(x) #x
#define TN__STRING(x) TN__STRING_(x)
const char *tn_version(void) {
    return TN__STRING(TN_VERSION_MAJOR) "." TN__STRING(TN_VERSION_MINOR) "." TN__STRING(TN_VERSION_PATCH);
}

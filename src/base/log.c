/* The log: one sink, one threshold. */
#include "tenon/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(tn_log_fn) log_sink;
static _Atomic(void *) log_user;
static atomic_int log_lowest = -1; /* -1: not set yet; read from the environment on first use */

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};

static int level_from_environment(void) {
    const char *value = getenv("TENON_LOG");
    if (value) {
        for (int i = 0; i <= TN_LOG_OFF; i++)
            if (strcmp(value, level_names[i]) == 0) return i;
    }
    return TN_LOG_WARN;
}

void tn_log_set(tn_log_fn sink, void *user, tn_log_level lowest) {
    atomic_store(&log_user, user);
    atomic_store(&log_sink, sink);
    atomic_store(&log_lowest, (int)lowest);
}

void tn_log(tn_log_level level, const char *format, ...) {
    int lowest = atomic_load_explicit(&log_lowest, memory_order_relaxed);
    if (lowest < 0) {
        lowest = level_from_environment();
        atomic_store(&log_lowest, lowest);
    }
    if ((int)level < lowest || level >= TN_LOG_OFF) return;

    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    tn_log_fn sink = atomic_load(&log_sink);
    if (sink)
        sink(atomic_load(&log_user), level, text);
    else
        fprintf(stderr, "tenon: %s: %s\n", level_names[level], text);
}

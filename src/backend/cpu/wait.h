/* Waiting for a word in memory to change: polling, then yielding, then sleeping in the kernel. */
#ifndef TN_CPU_WAIT_H
#define TN_CPU_WAIT_H

#include "tenon/base.h"

#include <sched.h>
#include <stdatomic.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <time.h>
#endif

static inline void tn__cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Sleeps while *word == old; may wake early. Without a futex, sleeps for a short time. */
static inline void tn__sleep_on(_Atomic uint32_t *word, uint32_t old) {
#if defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
#else
    if (atomic_load_explicit(word, memory_order_relaxed) == old) nanosleep(&(struct timespec){0, 50000}, NULL);
#endif
}
static inline void tn__wake_all(_Atomic uint32_t *word) {
#if defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#endif
}

/* Polls *word until it differs from `old` or `limit_ns` have passed; returns whether it differs. After a while every
 * poll yields first: on a busy machine the awaited thread may need this core. `crowded` counts across calls how often
 * yielding was needed; then yielding begins at once. */
static inline bool tn__poll(_Atomic uint32_t *word, uint32_t old, uint64_t limit_ns, _Atomic int *crowded) {
    enum { GIVE_WAY_NS = 20 * 1000, GIVE_WAY_CROWDED_NS = 1000, CROWDED = 8, MOST_CROWDED = 16 };
    if (atomic_load_explicit(word, memory_order_acquire) != old) return true;
    if (limit_ns == 0) return false;
    int crowd = atomic_load_explicit(crowded, memory_order_relaxed);
    const uint64_t give_way_ns = crowd >= CROWDED ? GIVE_WAY_CROWDED_NS : GIVE_WAY_NS;
    uint64_t start = tn_time_ns(), waited = 0;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old) {
                if (waited >= give_way_ns && crowd < MOST_CROWDED)
                    atomic_store_explicit(crowded, crowd + 1, memory_order_relaxed);
                else if (waited < GIVE_WAY_CROWDED_NS && crowd > 0)
                    atomic_store_explicit(crowded, crowd - 1, memory_order_relaxed);
                return true;
            }
            tn__cpu_relax();
        }
        waited = tn_time_ns() - start;
        if (waited >= limit_ns) return false;
        if (waited >= give_way_ns) sched_yield();
    }
}

#endif

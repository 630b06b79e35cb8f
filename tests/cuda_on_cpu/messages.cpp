// Error messages: what went wrong, and in which kernel, block and thread.
#include "block.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

namespace emul {

enum { MAX_SECONDS = 20 }; // that a thread may run between two waits

static void print_thread() {
    if (!self) return;
    fprintf(stderr, "  kernel %s\n  block (%u, %u, %u) of (%u, %u, %u), thread (%u, %u, %u) of (%u, %u, %u)\n",
            now && now->name ? now->name : "?", here->block.x, here->block.y, here->block.z, here->blocks.x,
            here->blocks.y, here->blocks.z, here->thread.x, here->thread.y, here->thread.z, here->threads.x,
            here->threads.y, here->threads.z);
}
static void print_calls() {
    void *calls[16];
    int n = backtrace(calls, 16);
    backtrace_symbols_fd(calls, n, 2);
}
void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "\nCUDA on CPU: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    print_thread();
    print_calls();
    _exit(99);
}
// Sanitizers end a bad access with an illegal instruction; guard pages with a fault.
static void on_signal(int number, siginfo_t *info, void *) {
    if (number == SIGILL)
        fail("misaligned access, index out of bounds, shift out of range, or division by zero");
    else
        fail("access to unmapped memory: %p", info->si_addr);
}
// Detects loops that wait without calling let_others_run().
static void *run_watchdog(void *) {
    long seen = -1;
    for (int still = 0;; still++) {
        sleep(1);
        if (!self || switches != seen) still = 0;
        seen = switches;
        if (still == MAX_SECONDS) fail("a thread has run for %d seconds without waiting", MAX_SECONDS);
    }
    return NULL;
}
static const int caught[] = {SIGSEGV, SIGBUS, SIGILL};
static struct sigaction handlers[3];
void catch_signals() {
    static char stack[64 << 10];
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, NULL);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 3; i++) sigaction(caught[i], &action, &handlers[i]);
}
void restore_signals() {
    for (int i = 0; i < 3; i++) sigaction(caught[i], &handlers[i], NULL);
}

void deadlock() {
    fprintf(stderr, "\nCUDA on CPU: deadlock: threads wait for each other\n");
    for (block *b : now->blocks)
        for (int w = 0; b->alive && w < b->n_warps; w++) {
            const warp &wa = b->warps[w];
            const thread &t = b->threads[w * WARP];
            if (!wa.alive) continue;
            fprintf(stderr, "  block (%u, %u, %u), warp %d: alive %08x, at the block's barrier %08x, spinning %08x",
                    t.at.block.x, t.at.block.y, t.at.block.z, w, wa.alive, b->at_barrier[w], wa.ready);
            for (int i = 0; i < WARP; i++)
                if (wa.waiting >> i & 1) fprintf(stderr, ", lane %d at %s of %08x", i, wa.what[i], wa.masks[i]);
            fprintf(stderr, "\n");
        }
    fail("the last thread that ran");
}
void start_watchdog() {
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, run_watchdog, NULL) == 0) pthread_detach(watcher);
}

} // namespace emul

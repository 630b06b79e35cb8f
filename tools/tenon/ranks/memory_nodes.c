/* --numa isolate with several ranks on a machine: each rank stays on a memory node of its own. */
#include "ranks/ranks.h"

#include "cli/term.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MOST = 64 };

/* The processors of every memory node that has any. TENON_SYSFS replaces /sys, for tests. */
static int list_nodes(tn_cpu_mask masks[NODES_MOST]) {
    const char *root = getenv("TENON_SYSFS");
    int n = 0;
    for (int node = 0; node < NODES_MOST; node++) {
        char path[512], line[4096];
        snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", root && *root ? root : "/sys", node);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        tn_cpu_mask mask = {0};
        const bool read = fgets(line, sizeof line, file) != NULL;
        fclose(file);
        if (!read || tn_cpu_mask_parse(line, &mask) != TN_OK) continue;
        bool some = false;
        for (size_t i = 0; i < sizeof mask.words / sizeof *mask.words; i++) some = some || mask.words[i];
        if (some) masks[n++] = mask;
    }
    tn_error_clear();
    return n;
}

int ranks_take_node(const struct args *args, int rank, int n_ranks) {
    tn_cpu_mask masks[NODES_MOST];
    const char *numa = args_text(args, "numa");
    if (!numa || strcmp(numa, "isolate") != 0 || n_ranks < 2) return 0;
    const int n = list_nodes(masks);
    if (n < 2) return 0;
    const int node = rank % n;
    cpu_set_t allowed, own;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && cpu < TN_MAX_CPUS; cpu++)
        if (CPU_ISSET(cpu, &allowed) && masks[node].words[cpu / 64] >> (cpu % 64) & 1) CPU_SET(cpu, &own);
    /* Threads that start later inherit the affinity; apply_memory_policy() prefers the node of this processor. */
    if (CPU_COUNT(&own) == 0 || sched_setaffinity(0, sizeof own, &own) != 0) {
        warn("--numa isolate: rank %d cannot stay on its memory node: %s", rank,
             CPU_COUNT(&own) ? strerror(errno) : "this process may use none of its processors");
        return 0;
    }
    return (n_ranks - node + n - 1) / n;
}

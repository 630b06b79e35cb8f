/* Processor masks, memory nodes and priorities of threads on Linux. */
#include "backend/cpu/topology.h"

#include "base/checked.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static bool mask_get(const tn_cpu_mask *mask, int cpu) { return mask->words[cpu / 64] >> (cpu % 64) & 1; }
static void mask_set(tn_cpu_mask *mask, int cpu) { mask->words[cpu / 64] |= (uint64_t)1 << (cpu % 64); }
static int mask_count(const tn_cpu_mask *mask) {
    int count = 0;
    for (size_t i = 0; i < TN__COUNT(mask->words); i++) count += __builtin_popcountll(mask->words[i]);
    return count;
}

tn_status tn_cpu_mask_parse(const char *text, tn_cpu_mask *mask) {
    if (!text || !mask) return tn_fail(TN_E_INVALID, "tn_cpu_mask_parse: missing argument");
    tn_cpu_mask result = {0};
    const char *at = text;
    while (*at && *at != '\n') {
        char *end;
        if (!isdigit((unsigned char)*at))
            return tn_fail(TN_E_SYNTAX, "processor list '%s': a number is missing", text);
        long first = strtol(at, &end, 10), last = first;
        if (*end == '-') {
            if (!isdigit((unsigned char)end[1]))
                return tn_fail(TN_E_SYNTAX, "processor list '%s': a number is missing", text);
            last = strtol(end + 1, &end, 10);
        }
        if (first > last || last >= TN_MAX_CPUS)
            return tn_fail(TN_E_SYNTAX, "processor list '%s': invalid range %ld-%ld (processors are below %d)", text,
                           first, last, TN_MAX_CPUS);
        for (long cpu = first; cpu <= last; cpu++) mask_set(&result, (int)cpu);
        if (*end == ',')
            end++;
        else if (*end && *end != '\n')
            return tn_fail(TN_E_SYNTAX, "processor list '%s': unexpected '%c'", text, *end);
        at = end;
    }
    *mask = result;
    return TN_OK;
}

#if defined(__linux__)
static tn_cpu_mask usable(void) {
    tn_cpu_mask mask = {0};
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int cpu = 0; cpu < CPU_SETSIZE && cpu < TN_MAX_CPUS; cpu++)
            if (CPU_ISSET(cpu, &set)) mask_set(&mask, cpu);
    if (mask_count(&mask) == 0) mask_set(&mask, 0);
    return mask;
}

/* The processors of a memory node; false when it does not exist. */
static bool node_mask(int node, tn_cpu_mask *mask) {
    char path[96], line[4096];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    return read && tn_cpu_mask_parse(line, mask) == TN_OK && mask_count(mask) > 0;
}

static void set_affinity(const tn_cpu_mask *mask) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu = 0; cpu < TN_MAX_CPUS && cpu < CPU_SETSIZE; cpu++)
        if (mask_get(mask, cpu)) CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        tn_log(TN_LOG_WARN, "cannot set the processor mask of a thread: %s", strerror(errno));
}

/* The mask of thread `index`; false when it has none. */
static bool placement_of(const tn_threadpool_params *params, int index, tn_cpu_mask *mask) {
    int count = mask_count(&params->mask);
    if (count > 0) {
        *mask = params->mask;
        if (!params->strict) return true;
        int skip = index % count;
        for (int cpu = 0; cpu < TN_MAX_CPUS; cpu++) {
            if (!mask_get(&params->mask, cpu) || skip-- > 0) continue;
            *mask = (tn_cpu_mask){0};
            mask_set(mask, cpu);
            return true;
        }
    }
    if (params->numa == TN_NUMA_SPREAD) {
        int nodes = 0;
        while (nodes < 64 && node_mask(nodes, mask)) nodes++;
        return nodes > 1 && node_mask(index % nodes, mask);
    }
    return false;
}

tn_status tn__resolve_placement(tn_threadpool_params *params) {
    tn_cpu_mask allowed = usable();
    if (mask_count(&params->mask) == 0 && params->numa == TN_NUMA_LOCAL) {
        int cpu = sched_getcpu();
        tn_cpu_mask mask;
        for (int node = 0; cpu >= 0 && cpu < TN_MAX_CPUS && node < 64 && node_mask(node, &mask); node++) {
            if (!mask_get(&mask, cpu)) continue;
            for (size_t i = 0; i < TN__COUNT(mask.words); i++) mask.words[i] &= allowed.words[i];
            params->mask = mask;
            break;
        }
    }
    for (int cpu = 0; cpu < TN_MAX_CPUS; cpu++)
        if (mask_get(&params->mask, cpu) && !mask_get(&allowed, cpu))
            return tn_fail(TN_E_INVALID, "processor %d of the mask is not available to this process", cpu);
    return TN_OK;
}

void tn__apply_placement(const tn_threadpool_params *params, int index) {
    tn_cpu_mask mask;
    if (placement_of(params, index, &mask)) set_affinity(&mask);
}

bool tn__enter_placement(const tn_threadpool_params *params, tn__saved_affinity *saved) {
    tn_cpu_mask mask;
    if (mask_count(&params->mask) == 0 || !placement_of(params, 0, &mask)) return false;
    if (sched_getaffinity(0, sizeof saved->set, &saved->set) != 0) return false;
    set_affinity(&mask);
    return true;
}
void tn__leave_placement(const tn__saved_affinity *saved) {
    if (sched_setaffinity(0, sizeof saved->set, &saved->set) != 0)
        tn_log(TN_LOG_WARN, "cannot restore the processor mask of a thread: %s", strerror(errno));
}

int tn_cpu_count(void) {
    tn_cpu_mask mask = usable();
    return mask_count(&mask);
}

void tn__apply_priority(tn_thread_priority priority) {
    int result = 0;
    if (priority == TN_PRIORITY_LOW || priority == TN_PRIORITY_HIGH) /* Linux keeps one nice value per thread */
        result = setpriority(PRIO_PROCESS, (id_t)gettid(), priority == TN_PRIORITY_LOW ? 10 : -10) ? errno : 0;
    else if (priority == TN_PRIORITY_REALTIME)
        result = pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = 40});
    if (result) tn_log(TN_LOG_WARN, "cannot change a thread's priority: %s", strerror(result));
}
#else
static void no_placement(void) { tn_log(TN_LOG_WARN, "processor masks, memory nodes and priorities need Linux"); }
tn_status tn__resolve_placement(tn_threadpool_params *params) {
    if (mask_count(&params->mask) || params->numa || params->priority) no_placement();
    return TN_OK;
}
void tn__apply_placement(const tn_threadpool_params *params, int index) {}
void tn__apply_priority(tn_thread_priority priority) {}
bool tn__enter_placement(const tn_threadpool_params *params, tn__saved_affinity *saved) { return false; }
void tn__leave_placement(const tn__saved_affinity *saved) {}
int tn_cpu_count(void) { return (int)TN__MAX(1, sysconf(_SC_NPROCESSORS_ONLN)); }
#endif

int tn__default_threads(const tn_cpu_mask *mask) {
    int count = mask_count(mask), usable_count = tn_cpu_count();
    return TN__MIN(count > 0 ? count : usable_count, TN_MAX_THREADS);
}

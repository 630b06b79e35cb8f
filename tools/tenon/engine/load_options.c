/* Options of how a model is loaded and on which threads it runs: mapping and locking of weights, processors,
 * priority, polling, memory nodes. */
#include "engine/load_options.h"

#include "cli/term.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct option load_table[] = {
    {.name = "mmap",
     .letter = "mmp",
     .value = "[on|off]",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .help = "map the weights of the file; --no-mmap reads them into memory of their own",
     .env = "LLAMA_ARG_MMAP"},
    {.name = "mlock",
     .kind = OPTION_FLAG,
     .help = "lock the model in memory, so that it is never paged out",
     .env = "LLAMA_ARG_MLOCK"},
    {.name = "load-mode",
     .letter = "lm",
     .value = "MODE",
     .kind = OPTION_TEXT,
     .choices = "auto none mmap mlock mmap+mlock",
     .help = "--mmap and --mlock in one option: none is --no-mmap, mlock is --no-mmap --mlock",
     .env = "LLAMA_ARG_LOAD_MODE"},
    {.name = "threads-batch",
     .letter = "tb",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 4096,
     .fallback = "0",
     .words = "-1=0",
     .help = "CPU threads for prompts and batches, 0 for as many as --threads"},
    {.name = "cpu-mask",
     .letter = "C",
     .value = "HEX",
     .kind = OPTION_TEXT,
     .help = "processors that the threads may use, as a hexadecimal mask"},
    {.name = "cpu-range",
     .letter = "Cr",
     .value = "LIST",
     .kind = OPTION_TEXT,
     .help = "processors that the threads may use, e.g. 0-7 or 0-3,8-11"},
    {.name = "cpu-strict",
     .value = "0|1",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1,
     .fallback = "0",
     .help = "1 keeps each thread on one processor of --cpu-mask or --cpu-range"},
    {.name = "prio",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 3,
     .fallback = "0",
     .help = "priority of the threads: -1 low, 0 normal, 1 or 2 high, 3 realtime"},
    {.name = "poll",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 100,
     .fallback = "50",
     .help = "how long idle threads poll before they sleep, from 0 (not at all) to 100 (always)"},
    {.name = "numa",
     .value = "HOW",
     .kind = OPTION_TEXT,
     .choices = "distribute isolate numactl",
     .help = "memory nodes: spread threads and memory over all, keep both on one (ranks: each on its own), or as "
             "numactl says",
     .env = "LLAMA_ARG_NUMA"},
    {.name = "ranks",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = TN_NET_RANKS_MOST,
     .fallback = "1",
     .help = "processes on this machine that compute the model together; mpirun starts them itself"},
    {.name = "nodes-split",
     .value = "HOW",
     .kind = OPTION_TEXT,
     .fallback = "auto",
     .choices = "auto row layer pipeline",
     .help =
         "row gives each rank a slice of every matrix; layer gives whole layers to machines, whose ranks divide them "
         "by rows, or on one machine to ranks; pipeline gives them to ranks; auto is row on one machine and layer on "
         "several"},
    {.name = "share-weights",
     .kind = OPTION_FLAG,
     .help = "rank 0 reads the model's file and sends the other ranks their parts; only it needs the file"},
    {.name = "net",
     .value = "TRANSPORT",
     .kind = OPTION_TEXT,
     .help = "transport between ranks: shm or mpi, or delay:LATENCY[,RATE]:TRANSPORT to try a slower network"},
    {.name = "net-type",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .fallback = "f32",
     .choices = "f32 bf16 q8",
     .help = "type of activations in messages between ranks: smaller types for slow networks, with rounding"},
    {.name = "net-timeout",
     .value = "SECONDS",
     .kind = OPTION_INT,
     .min = 1,
     .max = 86400,
     .fallback = "30",
     .help = "how long ranks wait for each other before all of them exit"},
    {0},
};
const struct option_group load_options = {"Loading and threads", load_table};

/* ---- Loading ---- */

static bool load_mode_has(const struct args *args, const char *word, const char *flag) {
    const char *mode = args_text(args, "load-mode");
    if (!mode || strcmp(mode, "auto") == 0) return args_flag(args, flag);
    return strstr(mode, word) != NULL;
}

tn_model_params model_params_from(const struct args *args) {
    return (tn_model_params){.no_mmap = !load_mode_has(args, "mmap", "mmap"),
                             .check_weights = args_flag(args, "check-tensors"),
                             .share_weights = args_flag(args, "share-weights")};
}

void lock_memory(const struct args *args) {
    if (!load_mode_has(args, "mlock", "mlock") || mlockall(MCL_CURRENT) == 0) return;
    const int error = errno;
    struct rlimit limit = {0};
    char size[HUMAN_SIZE];
    getrlimit(RLIMIT_MEMLOCK, &limit);
    warn("--mlock: the model cannot be locked in memory: %s; the limit is %s (ulimit -l, or LimitMEMLOCK of systemd)",
         strerror(error), human_bytes(size, limit.rlim_cur));
}

/* ---- Threads ---- */

/* The lowest bit of a hexadecimal number is processor 0. */
static bool parse_hex_mask(const char *text, tn_cpu_mask *mask) {
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) text += 2;
    const size_t length = strlen(text);
    if (!length || strspn(text, "0123456789abcdefABCDEF") != length || length * 4 > sizeof mask->words * 8)
        return false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[length - 1 - i];
        const uint64_t digit = c <= '9' ? (uint64_t)(c - '0') : (uint64_t)((c | 0x20) - 'a' + 10);
        mask->words[i / 16] |= digit << (i % 16 * 4);
    }
    return true;
}

/* The pool changes its own threads only; the calling thread computes as well, and threads begin with its priority.
 * False after a warning. */
static bool apply_priority(int64_t priority) {
    const struct sched_param realtime = {.sched_priority = 40};
    int result = 0;
    if (priority == 3)
        result = sched_setscheduler(0, SCHED_FIFO, &realtime);
    else if (priority)
        result = setpriority(PRIO_PROCESS, 0, priority < 0 ? 10 : -10);
    if (result) warn("--prio %d: the priority cannot be changed: %s", (int)priority, strerror(errno));
    return result == 0;
}

int thread_params_from(const struct args *args, tn_threadpool_params *p) {
    static const tn_thread_priority priorities[] = {TN_PRIORITY_LOW, TN_PRIORITY_NORMAL, TN_PRIORITY_HIGH,
                                                    TN_PRIORITY_HIGH, TN_PRIORITY_REALTIME};
    const char *hex = args_text(args, "cpu-mask"), *range = args_text(args, "cpu-range");
    const char *numa = args_text(args, "numa");
    *p = tn_threadpool_params_default((int)args_int(args, "threads"));
    /* The pool has the larger number; --threads then limits single tokens, --threads-batch everything. */
    const int batch = (int)args_int(args, "threads-batch"), single = p->n_threads ? p->n_threads : tn_cpu_count();
    if (batch && batch < single)
        warn("--threads-batch %d is less than --threads %d: both use %d", batch, single, batch);
    if (batch) p->n_threads = batch;
    if (batch > single) p->n_decode = single;
    p->poll = (int)args_int(args, "poll");
    p->strict = args_int(args, "cpu-strict") == 1;
    p->priority = priorities[apply_priority(args_int(args, "prio")) ? args_int(args, "prio") + 1 : 1];
    if (numa && strcmp(numa, "distribute") == 0) p->numa = TN_NUMA_SPREAD;
    if (numa && strcmp(numa, "isolate") == 0) p->numa = TN_NUMA_LOCAL;
    if (hex && !parse_hex_mask(hex, &p->mask))
        return fail_usage(args, "--cpu-mask takes a hexadecimal number such as 0xff, not \"%s\"", hex);
    tn_cpu_mask more = {0};
    if (range && tn_cpu_mask_parse(range, &more) != TN_OK) return fail_usage(args, "--cpu-range: %s", tn_error());
    for (size_t i = 0; i < sizeof more.words / sizeof *more.words; i++) p->mask.words[i] |= more.words[i];
    const int wanted = p->n_threads, cores = tn_cpu_count();
    if (wanted > cores)
        warn("%d threads on %d processors: more threads than processors make it slower", wanted, cores);
    return EXIT_OK;
}

/* ---- Memory nodes ---- */

/* Bits of the memory nodes that are online, of the first 64. */
static unsigned long online_nodes(void) {
    char line[256] = "";
    tn_cpu_mask mask = {0};
    FILE *file = fopen("/sys/devices/system/node/online", "r");
    if (!file) return 0;
    const bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    return read && tn_cpu_mask_parse(line, &mask) == TN_OK ? (unsigned long)mask.words[0] : 0;
}

void apply_memory_policy(const struct args *args) {
    enum { POLICY_PREFERRED = 1, POLICY_INTERLEAVE = 3 }; /* of linux/mempolicy.h */
    const char *numa = args_text(args, "numa");
    unsigned long nodes = online_nodes();
    unsigned cpu, node = 0;
    if (!numa || strcmp(numa, "numactl") == 0) return; /* numactl has set the policy of this process */
    const bool spread = strcmp(numa, "distribute") == 0;
    if (!spread) nodes = getcpu(&cpu, &node) == 0 && node < 64 ? 1ul << node : 0;
    if (!nodes) return;
    if (syscall(SYS_set_mempolicy, spread ? POLICY_INTERLEAVE : POLICY_PREFERRED, &nodes, sizeof nodes * 8 + 1) != 0)
        warn("--numa %s: the memory policy cannot be set: %s", numa, strerror(errno));
}

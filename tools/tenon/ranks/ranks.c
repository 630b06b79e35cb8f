/* Ranks as processes: started here, or by mpirun or Slurm. */
#include "ranks/ranks.h"

#include "cli/term.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 16 << 20 };

/* The processes that this one has started. */
static pid_t children[TN_NET_RANKS_MOST];
static int n_children;
static int ranks_of_node; /* with --numa isolate: number of ranks on this one's memory node; else 0 */

static int64_t number_in_environment(const char *name, int64_t missing) {
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return missing;
    const long long value = strtoll(text, &end, 10);
    return *end ? missing : value;
}

/* Ranks that a launcher has started: Open MPI, MPICH and others with PMI, Slurm. */
int ranks_launched(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const int64_t n = number_in_environment(names[i], 0);
        if (n > 0) return (int)n;
    }
    return getenv("PMIX_RANK") ? (int)number_in_environment("SLURM_NTASKS", 0) : 0;
}
int ranks_here(int n_ranks) {
    const int64_t n =
        number_in_environment("OMPI_COMM_WORLD_LOCAL_SIZE", number_in_environment("MPI_LOCALNRANKS", 0));
    return n > 0 ? (int)n : n_ranks;
}

/* This rank's index among the ranks of the machine. */
static int rank_here(const tn_net *net) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const int64_t rank = number_in_environment(names[i], -1);
        if (rank >= 0) return (int)rank;
    }
    return tn_net_rank(net);
}

static bool runs_on_cpu_only(const tn_session_params *params) {
    if (params->devices[0]) return strcmp(params->devices[0], "cpu") == 0;
    for (size_t i = 0; i < tn_device_count(); i++)
        if (tn_device_get_kind(tn_device_get(i)) == TN_DEVICE_GPU) return false;
    return true;
}

void ranks_divide(const struct args *args, int n_ranks, tn_session_params *params, tn_model_params *model) {
    const size_t most = sizeof params->split / sizeof *params->split;
    const char *how = args_text(args, "nodes-split");
    const bool each = strcmp(how, "pipeline") == 0;
    model->stage_ranks = each ? 1 : 0; /* 0: ranks_balance() counts the ranks of a machine */
    model->by_layers =
        each || strcmp(how, "layer") == 0 || (strcmp(how, "auto") == 0 && ranks_here(n_ranks) < n_ranks);
    if (model->by_layers && !args_given(args, "ubatch") && runs_on_cpu_only(params))
        params->n_ubatch = RANKS_PIPELINED_UBATCH;
    for (size_t i = 0; i < most; i++) model->shares[i] = params->split[i];
    memset(params->split, 0, sizeof params->split); /* of the devices of one rank */
}

/* "delay:20us:shm" with the memory's descriptor. */
static void name_transport(const char *given, int fd, char *spec, size_t size) {
    const size_t length = strlen(given);
    if (length >= 3 && strcmp(given + length - 3, "shm") == 0)
        snprintf(spec, size, "%s:%d", given, fd);
    else
        snprintf(spec, size, "%s", given);
}

/* In the child: the same command as another rank, without input and output. */
static void become_rank(char **words, int rank, int n_ranks, const char *spec, pid_t parent) {
    char text[32];
    snprintf(text, sizeof text, "%d", rank);
    setenv("TENON_RANK", text, 1);
    snprintf(text, sizeof text, "%d", n_ranks);
    setenv("TENON_RANKS", text, 1);
    setenv("TENON_NET", spec, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_ERROR);
    const int nothing = open("/dev/null", O_RDWR);
    if (nothing >= 0) {
        dup2(nothing, STDIN_FILENO);
        dup2(nothing, STDOUT_FILENO);
    }
    signal(SIGINT, SIG_IGN); /* of the terminal: rank 0 decides */
    execv("/proc/self/exe", words);
    _exit(EXIT_ERROR);
}

/* The words of this process's command line; the caller frees both. */
static char **command_words(char **memory) {
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t used = 0, room = 1 << 20, count = 0;
    char *text = malloc(room + 1), **words = NULL;
    if (file && text) used = fread(text, 1, room, file);
    if (file) fclose(file);
    for (size_t i = 0; i < used; i++) count += !text[i];
    if (text && used && used < room && !text[used - 1]) words = calloc(count + 1, sizeof *words);
    for (size_t i = 0, n = 0; words && i < used; i += strlen(text + i) + 1) words[n++] = text + i;
    *memory = text;
    return words;
}

static int start_ranks(int n_ranks, const char *given, const tn_net_params *params, char *spec, size_t size) {
    int fd;
    tn_status status = tn_net_shm_new(params, &fd);
    if (status != TN_OK) return fail_status(status, "ranks");
    name_transport(given, fd, spec, size);
    char *memory, **words = command_words(&memory);
    int code = words ? EXIT_OK : fail("the command line cannot be read");
    const pid_t parent = getpid();
    fflush(NULL);
    for (int r = 1; r < n_ranks && !code; r++) {
        const pid_t child = fork();
        if (child == 0) become_rank(words, r, n_ranks, spec, parent);
        if (child < 0)
            code = fail("rank %d cannot be started: %s", r, strerror(errno));
        else
            children[n_children++] = child;
    }
    free(words);
    free(memory);
    return code;
}

tn_net_type ranks_type(const struct args *args) {
    const char *type = args_text(args, "net-type");
    return strcmp(type, "bf16") == 0 ? TN_NET_BF16 : strcmp(type, "q8") == 0 ? TN_NET_Q8 : TN_NET_F32;
}

int ranks_join(const struct args *args, tn_net **net) {
    const char *started = getenv("TENON_RANK"), *given = args_text(args, "net");
    const int64_t launched = ranks_launched(), wanted = args_int(args, "ranks");
    tn_net_params params = {.n_ranks = (int)wanted,
                            .timeout_ms = (uint32_t)(args_int(args, "net-timeout") * 1000),
                            .message_bytes = MESSAGE_BYTES,
                            .type = ranks_type(args)};
    char spec[256];
    *net = NULL;
    if (started) {
        params.rank = (int)number_in_environment("TENON_RANK", 0);
        params.n_ranks = (int)number_in_environment("TENON_RANKS", 1);
        snprintf(spec, sizeof spec, "%s", getenv("TENON_NET") ? getenv("TENON_NET") : "");
    } else if (launched > 1 || (given && strstr(given, "mpi"))) {
        if (wanted > 1 && wanted != launched)
            return fail("--ranks %d, and the launcher has started %d: leave --ranks out", (int)wanted, (int)launched);
        name_transport(given ? given : "mpi", -1, spec, sizeof spec);
    } else if (wanted > 1) {
        if (n_children) return fail("a command has one session of several ranks: use one rank");
        const int code = start_ranks((int)wanted, given ? given : "shm", &params, spec, sizeof spec);
        if (code) return code;
    } else {
        return EXIT_OK;
    }
    tn_status status = tn_net_open(spec, &params, net);
    if (status != TN_OK) return fail_status(status, "ranks");
    ranks_of_node = ranks_take_node(args, rank_here(*net), ranks_here(tn_net_size(*net)));
    return EXIT_OK;
}

void ranks_leave(tn_net *net) {
    const bool broken = tn_net_status(net) != TN_OK;
    tn_net_free(net);
    while (n_children > 0) {
        int result;
        const pid_t child = children[--n_children];
        if (broken) kill(child, SIGKILL); /* it may be stopped, or wait for a file */
        while (waitpid(child, &result, 0) < 0 && errno == EINTR) {}
    }
}

int ranks_thread_share(int n_ranks) {
    const int share = tn_cpu_count() / (ranks_of_node ? ranks_of_node : ranks_here(n_ranks));
    if (ranks_of_node) return share > 0 ? share : 1;
    /* A launcher that binds ranks to processors has divided them already. */
    if (sysconf(_SC_NPROCESSORS_ONLN) != tn_cpu_count()) return 0;
    return share > 0 ? share : 1;
}
void ranks_threads(const struct args *args, tn_net *net, tn_threadpool_params *params) {
    if (!net || args_given(args, "threads")) return;
    const int share = ranks_thread_share(tn_net_size(net));
    if (params->n_threads == 0 && share) params->n_threads = share;
}

void ranks_follow(tn_net *net, tn_session *session, tn_model *model) {
    tn_status status = tn_session_follow(session);
    const int code = status == TN_OK ? EXIT_OK : fail_status(status, "rank %d", tn_net_rank(net));
    tn_session_free(session);
    tn_model_close(model);
    tn_net_free(net);
    exit(code);
}

void ranks_fail(tn_net *net) {
    if (net && tn_net_status(net) == TN_OK) tn_net_abort(net, TN_E_STATE, "it could not begin");
}

/* bench/net [RANKS] [TRANSPORT]: time of collectives between ranks, by size. Without a transport processes over shm
 * are started; under mpirun: mpirun -n 2 build/bench/net 2 mpi. Prints the median and the least of many rounds. */
#include "tenon/net/net.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 2000, LARGEST = 1 << 22 };

static int by_time(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static tn_status measure(tn_net *net) {
    static uint64_t times[ROUNDS];
    float *in = calloc(1, LARGEST), *out = calloc(1, LARGEST);
    tn_status status = in && out ? TN_OK : TN_E_NOMEM;
    if (tn_net_rank(net) == 0)
        printf("%s, %d ranks\n%10s %12s %12s %12s\n", tn_net_name(net), tn_net_size(net), "bytes", "median us",
               "least us", "GB/s");
    for (size_t bytes = 4; bytes <= LARGEST && status == TN_OK; bytes = bytes < 1024 ? bytes * 16 : bytes * 2) {
        const int rounds = bytes > 65536 ? ROUNDS / 20 : ROUNDS;
        for (int i = 0; i < rounds && status == TN_OK; i++) {
            const uint64_t begin = tn_time_ns();
            status = tn_net_all_reduce(net, in, out, bytes / sizeof *in);
            times[i] = tn_time_ns() - begin;
        }
        qsort(times, (size_t)rounds, sizeof *times, by_time);
        if (tn_net_rank(net) == 0 && status == TN_OK)
            printf("%10zu %12.2f %12.2f %12.2f\n", bytes, (double)times[rounds / 2] / 1e3, (double)times[0] / 1e3,
                   (double)bytes / (double)times[rounds / 2]);
    }
    free(in);
    free(out);
    return status;
}

int main(int argc, char **argv) {
    const int n_ranks = argc > 1 ? atoi(argv[1]) : 2;
    tn_net_params params = {.n_ranks = n_ranks};
    char spec[64];
    int fd = -1;
    tn_net *net = NULL;
    snprintf(spec, sizeof spec, "%s", argc > 2 ? argv[2] : "");
    tn_status status = argc > 2 ? TN_OK : tn_net_shm_new(&params, &fd);
    if (argc <= 2) snprintf(spec, sizeof spec, "shm:%d", fd);
    for (int r = 1; r < n_ranks && argc <= 2 && status == TN_OK; r++)
        if (fork() == 0) {
            params.rank = r;
            break;
        }
    /* As launchers of MPI do: a rank per processor. */
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET((size_t)params.rank % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &own);
    if (argc <= 2) (void)!sched_setaffinity(0, sizeof own, &own);
    if (status == TN_OK) status = tn_net_open(spec, &params, &net);
    if (status == TN_OK) status = measure(net);
    if (status != TN_OK) fprintf(stderr, "%s\n", tn_error());
    tn_net_free(net);
    while (params.rank == 0 && argc <= 2 && wait(NULL) > 0) {}
    return status != TN_OK;
}

/* Sums through NCCL: with a stand-in for NCCL and the CUDA driver (tests/modules/fake_nccl.c), or with the real ones
 * where TENON_NCCL=real. */
#include "support.h"

#include "tenon/net/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NCCL_RANKS = 3, LARGEST = 2200000 };

typedef struct rank_result {
    tn_status status;
    int line; /* of the first failed check */
    char error[512];
} rank_result;
static rank_result *results; /* of the ranks, in memory that they share */

static bool real_nccl(void) {
    const char *which = getenv("TENON_NCCL");
    return which && strcmp(which, "real") == 0;
}

#define CHECK(r, condition)                                                                                          \
    do {                                                                                                             \
        if (!(condition) && !(r)->line) (r)->line = __LINE__;                                                        \
    } while (0)

/* Whole numbers: every order of adding gives the same sum. */
static float nccl_value(int rank, size_t i) { return (float)((int)(i * 7 % 1009) - 500 + rank * 3); }

static tn_status exchange_sums(tn_net *net, rank_result *r) {
    static const size_t counts[] = {1, 4096, 4097, 70001, LARGEST};
    const int rank = tn_net_rank(net), n_ranks = tn_net_size(net);
    float *in = calloc(LARGEST, sizeof *in), *out = calloc(LARGEST, sizeof *out);
    tn_status status = TN_OK;
    for (size_t k = 0; k < 2 * sizeof counts / sizeof *counts && status == TN_OK; k++) {
        const size_t n = counts[k / 2];
        float *to = k % 2 ? in : out;
        for (size_t i = 0; i < n; i++) in[i] = nccl_value(rank, i);
        status = tn_net_all_reduce(net, in, to, n);
        for (size_t i = 0; i < n && status == TN_OK; i++) {
            float sum = 0;
            for (int o = 0; o < n_ranks; o++) sum += nccl_value(o, i);
            CHECK(r, to[i] == sum);
        }
    }
    /* The rest passes through the other transport. */
    int32_t mine = rank + 5, all[NCCL_RANKS] = {0}, note = rank ? 0 : 77;
    const size_t sizes[NCCL_RANKS] = {sizeof mine, sizeof mine, sizeof mine};
    if (status == TN_OK) status = tn_net_all_gather(net, &mine, sizes, all);
    if (status == TN_OK) status = tn_net_note(net, &note, sizeof note);
    for (int o = 0; o < n_ranks && status == TN_OK; o++) CHECK(r, all[o] == o + 5 && note == 77);
    free(in);
    free(out);
    return status;
}

static void run_rank(int fd, int rank, int n_ranks, uint32_t timeout_ms) {
    char spec[64];
    tn_net *net = NULL;
    rank_result *r = &results[rank];
    snprintf(spec, sizeof spec, "nccl:shm:%d", fd);
    r->status = tn_net_open(spec, &(tn_net_params){.rank = rank, .n_ranks = n_ranks, .timeout_ms = timeout_ms}, &net);
    if (r->status == TN_OK) {
        CHECK(r, strcmp(tn_net_name(net), "nccl") == 0 && tn_net_bytes(net) > 0);
        r->status = exchange_sums(net, r);
    }
    if (r->status != TN_OK) snprintf(r->error, sizeof r->error, "%s", tn_error());
    tn_net_free(net);
}

/* Every rank in a process of its own. */
static void run_ranks(int n_ranks, const char *fake, uint32_t timeout_ms) {
    int fd;
    memset(results, 0, NCCL_RANKS * sizeof *results);
    assert_ok(tn_net_shm_new(&(tn_net_params){.n_ranks = n_ranks}, &fd));
    pid_t children[NCCL_RANKS];
    for (int rank = 0; rank < n_ranks; rank++) {
        children[rank] = fork();
        if (children[rank]) continue;
        if (fake) setenv("FAKE_NCCL", fake, 1);
        run_rank(fd, rank, n_ranks, timeout_ms);
        _exit(0);
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        int code;
        assert_int_equal(waitpid(children[rank], &code, 0), children[rank]);
        assert_true(WIFEXITED(code));
    }
    close(fd);
}

static void sums_pass_through_nccl(void **state) {
    (void)state;
    for (int n = 1; n <= (real_nccl() ? 1 : NCCL_RANKS); n++) {
        run_ranks(n, NULL, 60000);
        for (int rank = 0; rank < n; rank++) {
            const rank_result *r = &results[rank];
            if (r->status != TN_OK || r->line) fail_msg("rank %d of %d: line %d: %s", rank, n, r->line, r->error);
        }
    }
}

/* NCCL refuses two ranks on one GPU; where it allows them, they must be right. */
static void two_ranks_on_one_gpu(void **state) {
    (void)state;
    if (!real_nccl()) skip();
    run_ranks(2, NULL, 60000);
    for (int rank = 0; rank < 2; rank++) {
        const rank_result *r = &results[rank];
        print_message("rank %d: %s\n", rank, r->status == TN_OK ? "allowed" : r->error);
        assert_int_equal(r->line, 0);
        assert_true(r->status == TN_OK || strstr(r->error, "ncclCommInitRank"));
    }
}

static void failures_of_nccl_reach_all_ranks(void **state) {
    (void)state;
    static const struct {
        const char *fake, *message;
    } cases[] = {{"refuse", "ncclCommInitRank: invalid usage (5)"},
                 {"hang", "NCCL has not joined the ranks for 300 ms"},
                 {"fail", "ncclAllReduce: remote error (6)"}};
    if (real_nccl()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t begin = tn_time_ns();
        run_ranks(2, cases[i].fake, 300);
        assert_true(tn_time_ns() - begin < 5000000000ull);
        bool named = false;
        for (int rank = 0; rank < 2; rank++) {
            if (results[rank].status != TN_E_DEVICE_LOST)
                fail_msg("%s: rank %d: %s", cases[i].fake, rank, results[rank].error);
            named = named || strstr(results[rank].error, cases[i].message);
        }
        if (!named) fail_msg("%s: %s", cases[i].fake, results[0].error);
    }
}

int main(void) {
    results = mmap(NULL, NCCL_RANKS * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_pass_through_nccl),
        cmocka_unit_test(two_ranks_on_one_gpu),
        cmocka_unit_test(failures_of_nccl_reach_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

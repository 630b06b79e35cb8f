/* Transports between ranks: results, order, failure. */
#include "support.h"

#include "tenon/net/net.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MOST = 4, LARGE = 200000 };

typedef struct rank_job {
    tn_net *net;
    void (*run)(struct rank_job *job);
    int failed; /* line of the first failed check */
    tn_status status;
    char error[512];
} rank_job;
#define EXPECT(job, condition)                                                                                       \
    do {                                                                                                             \
        if (!(condition) && !(job)->failed) (job)->failed = __LINE__;                                                \
    } while (0)

static void *run_job(void *user) {
    rank_job *job = user;
    job->run(job);
    return NULL;
}

static tn_net_type net_type; /* of the threads that follow */

/* Runs a function on every rank of a group of threads. */
static void on_threads(int n, uint32_t timeout_ms, void (*run)(rank_job *), rank_job *jobs) {
    tn_net *nets[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
    const tn_net_params params = {.n_ranks = n, .timeout_ms = timeout_ms, .message_bytes = 10000, .type = net_type};
    assert_ok(tn_net_threads(&params, nets));
    for (int r = 0; r < n; r++) {
        jobs[r] = (rank_job){.net = nets[r], .run = run};
        assert_int_equal(pthread_create(&threads[r], NULL, run_job, &jobs[r]), 0);
    }
    for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < n; r++) tn_net_free(nets[r]);
}

static float value_of(int rank, size_t i, size_t n) {
    return (float)((int)((i * 7 + n) % 1001) - 500) / (float)(rank + 3);
}

static void exchange_everything(rank_job *job) {
    tn_net *net = job->net;
    const int rank = tn_net_rank(net), n_ranks = tn_net_size(net);
    static const size_t counts[] = {1, 17, 2048, 65536, LARGE, 65537, 3};
    float *in = calloc(2 * LARGE * RANKS_MOST, sizeof *in), *out = calloc(2 * LARGE * RANKS_MOST, sizeof *out);
    for (size_t k = 0; k < 2 * sizeof counts / sizeof *counts; k++) {
        const size_t n = counts[k / 2];
        float *to = k % 2 ? in : out; /* in place, too */
        for (size_t i = 0; i < n; i++) in[i] = value_of(rank, i, n);
        EXPECT(job, tn_net_all_reduce(net, in, to, n) == TN_OK);
        for (size_t i = 0; i < n; i++) {
            float sum = value_of(0, i, n);
            for (int r = 1; r < n_ranks; r++) sum += value_of(r, i, n);
            EXPECT(job, to[i] == sum);
        }
        /* Parts of different sizes; one is empty. */
        size_t sizes[RANKS_MOST], at = 0;
        for (int r = 0; r < n_ranks; r++) sizes[r] = r == 1 && k % 3 == 0 ? 0 : (n + (size_t)r * 5) * sizeof *in;
        for (size_t i = 0; i < sizes[rank] / sizeof *in; i++) in[i] = value_of(rank, i, n);
        EXPECT(job, tn_net_all_gather(net, in, sizes, out) == TN_OK);
        for (int r = 0; r < n_ranks; at += sizes[r++] / sizeof *in)
            for (size_t i = 0; i < sizes[r] / sizeof *in; i++) EXPECT(job, out[at + i] == value_of(r, i, n));
        const int root = (int)k % n_ranks;
        for (size_t i = 0; i < n; i++) in[i] = rank == root ? value_of(root, i, n) : 0;
        EXPECT(job, tn_net_broadcast(net, root, in, n * sizeof *in) == TN_OK);
        for (size_t i = 0; i < n; i++) EXPECT(job, in[i] == value_of(root, i, n));
        char note[100] = "";
        if (rank == 0) snprintf(note, sizeof note, "note %zu", k);
        EXPECT(job, tn_net_note(net, note, sizeof note) == TN_OK);
        EXPECT(job, (size_t)strtoul(note + 5, NULL, 10) == k);
        /* Messages around the ring, larger than their buffers. All send first, so that they must fit. */
        const size_t bytes = TN_NET_NOTE < n * 4 ? TN_NET_NOTE : n * 4;
        for (size_t i = 0; i < bytes; i++) ((char *)in)[i] = (char)(rank + (int)i);
        const int next = (rank + 1) % n_ranks, before = (rank + n_ranks - 1) % n_ranks;
        EXPECT(job, tn_net_send(net, next, in, bytes) == TN_OK && tn_net_send(net, next, in, bytes) == TN_OK);
        for (int twice = 0; twice < 2; twice++) {
            EXPECT(job, tn_net_receive(net, before, out, bytes) == TN_OK);
            for (size_t i = 0; i < bytes; i++) EXPECT(job, ((char *)out)[i] == (char)(before + (int)i));
        }
        EXPECT(job, tn_net_barrier(net) == TN_OK);
    }
    free(in);
    free(out);
}

static void ranks_exchange(void **state) {
    (void)state;
    for (int n = 2; n <= RANKS_MOST; n++) {
        rank_job jobs[RANKS_MOST];
        on_threads(n, 20000, exchange_everything, jobs);
        for (int r = 0; r < n; r++)
            if (jobs[r].failed) fail_msg("%d ranks: rank %d: line %d: %s", n, r, jobs[r].failed, tn_error());
    }
}

/* Groups of two and of three of four ranks compute side by side; they leave the whole transport usable. */
static void exchange_in_groups(rank_job *job) {
    tn_net *whole = job->net, *group = NULL;
    const int rank = tn_net_rank(whole);
    for (int size = 2; size <= 3; size++) {
        const int first = size == 2 ? rank / 2 * 2 : 1;
        if (size == 3 && rank == 0) {
            EXPECT(job, tn_net_group(whole, 1, 3, &group) == TN_E_INVALID && !group);
        } else {
            EXPECT(job, tn_net_group(whole, first, size, &job->net) == TN_OK);
            EXPECT(job, tn_net_rank(job->net) == rank - first && tn_net_size(job->net) == size);
            EXPECT(job, tn_net_bytes(job->net) > 0);
            exchange_everything(job);
            tn_net_free(job->net);
            job->net = whole;
        }
        float x = 1;
        EXPECT(job, tn_net_all_reduce(whole, &x, &x, 1) == TN_OK && x == 4);
    }
    EXPECT(job, tn_net_group(whole, 0, 5, &group) == TN_E_INVALID);
    EXPECT(job, tn_net_group(NULL, 0, 1, &group) == TN_E_INVALID);
}
static void groups_of_ranks_exchange(void **state) {
    (void)state;
    rank_job jobs[RANKS_MOST];
    on_threads(4, 20000, exchange_in_groups, jobs);
    for (int r = 0; r < 4; r++)
        if (jobs[r].failed) fail_msg("rank %d: line %d", r, jobs[r].failed);
}

/* A failure in a group breaks the whole transport. */
static void abort_in_a_group(rank_job *job) {
    tn_net *group;
    const int rank = tn_net_rank(job->net);
    float x = 1;
    EXPECT(job, tn_net_group(job->net, rank / 2 * 2, 2, &group) == TN_OK);
    if (rank == 3) tn_net_abort(group, TN_E_NOMEM, "no room in the group");
    job->status = tn_net_all_reduce(rank == 2 ? group : job->net, &x, &x, 1);
    snprintf(job->error, sizeof job->error, "%s", tn_error());
    tn_net_free(group);
}
static void a_failure_in_a_group_reaches_all(void **state) {
    (void)state;
    rank_job jobs[RANKS_MOST];
    on_threads(4, 20000, abort_in_a_group, jobs);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(jobs[r].failed, 0);
        assert_int_equal(jobs[r].status, TN_E_NOMEM);
        assert_non_null(strstr(jobs[r].error, "no room in the group"));
    }
}

/* A message larger than the buffers passes in pieces while the other rank receives. */
static void send_large(rank_job *job) {
    enum { BYTES = 123457 };
    char *data = malloc(BYTES);
    const int rank = tn_net_rank(job->net);
    for (int i = 0; i < BYTES; i++) data[i] = rank ? 0 : (char)i;
    EXPECT(job, (rank ? tn_net_receive(job->net, 0, data, BYTES) : tn_net_send(job->net, 1, data, BYTES)) == TN_OK);
    for (int i = 0; i < BYTES; i++) EXPECT(job, data[i] == (char)i);
    EXPECT(job, tn_net_send(job->net, rank, data, 1) == TN_E_INVALID);
    EXPECT(job, tn_net_receive(job->net, 2, data, 1) == TN_E_INVALID);
    free(data);
}
static void large_messages_pass_in_pieces(void **state) {
    (void)state;
    rank_job jobs[RANKS_MOST];
    on_threads(2, 20000, send_large, jobs);
    assert_int_equal(jobs[0].failed, 0);
    assert_int_equal(jobs[1].failed, 0);
}

/* ---- Fewer bytes ---- */

static uint64_t coded_sums[RANKS_MOST]; /* a hash of every rank's results */

static void exchange_coded(rank_job *job) {
    static const size_t counts[] = {1, 33, 2048, 70001};
    const int rank = tn_net_rank(job->net), n_ranks = tn_net_size(job->net);
    const bool bf16 = tn_net_get_type(job->net) == TN_NET_BF16;
    float *in = calloc(LARGE, sizeof *in), *out = calloc(LARGE, sizeof *out);
    uint64_t hash = 0;
    EXPECT(job, tn_net_bytes(job->net) > 0);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        const size_t n = counts[k];
        for (size_t i = 0; i < n; i++) in[i] = value_of(rank, i, n);
        EXPECT(job, tn_net_all_reduce(job->net, in, out, n) == TN_OK);
        bool rounded = false;
        for (size_t i = 0; i < n; i++) {
            float sum = 0, most = 0;
            for (int r = 0; r < n_ranks; r++) {
                sum += value_of(r, i, n);
                /* bf16 rounds a number to 8 bits, q8 to 1/254 of the largest of its block. */
                most += bf16 ? fabsf(value_of(r, i, n)) / 256 : 500.0f / (float)(r + 3) / 254;
            }
            EXPECT(job, fabsf(out[i] - sum) <= most * 1.01f);
            rounded = rounded || out[i] != sum;
            uint32_t bits;
            memcpy(&bits, &out[i], sizeof bits);
            hash = (hash ^ bits) * 0x9e3779b97f4a7c15u;
        }
        EXPECT(job, rounded || n < 33); /* the type is used */
        if (rank == 0) EXPECT(job, tn_net_send_floats(job->net, 1, in, n) == TN_OK);
        if (rank == 1) EXPECT(job, tn_net_receive_floats(job->net, 0, out, n) == TN_OK);
        for (size_t i = 0; i < n && rank == 1; i++)
            EXPECT(job, fabsf(out[i] - value_of(0, i, n)) <= (bf16 ? fabsf(out[i]) / 256 : 500.0f / 3 / 254) * 1.01f);
    }
    in[0] = rank ? 1 : INFINITY; /* what is not finite does not become a number */
    EXPECT(job, tn_net_all_reduce(job->net, in, out, 32) == TN_OK && !isfinite(out[0]));
    coded_sums[rank] = hash;
    free(in);
    free(out);
}

static void coded_sums_are_near_and_the_same_on_all_ranks(void **state) {
    (void)state;
    for (int n = 2; n <= 3; n++)
        for (tn_net_type type = TN_NET_BF16; type <= TN_NET_Q8; type++) {
            rank_job jobs[RANKS_MOST];
            net_type = type;
            on_threads(n, 20000, exchange_coded, jobs);
            net_type = TN_NET_F32;
            for (int r = 0; r < n; r++) {
                if (jobs[r].failed) fail_msg("type %d, rank %d of %d: line %d", (int)type, r, n, jobs[r].failed);
                assert_true(coded_sums[r] == coded_sums[0]);
            }
        }
}

/* ---- Failure ---- */

static void all_but_one_reduce(rank_job *job) {
    float x = 1;
    if (tn_net_rank(job->net) == 1) return;
    job->status = tn_net_all_reduce(job->net, &x, &x, 1);
    snprintf(job->error, sizeof job->error, "%s", tn_error());
    EXPECT(job, tn_net_barrier(job->net) == job->status); /* it stays broken */
    EXPECT(job, tn_net_status(job->net) == job->status);
}
static void a_stalled_rank_ends_the_others(void **state) {
    (void)state;
    rank_job jobs[RANKS_MOST];
    const uint64_t begin = tn_time_ns();
    on_threads(3, 100, all_but_one_reduce, jobs);
    assert_true(tn_time_ns() - begin < 3000000000ull);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(jobs[r].failed, 0);
        assert_int_equal(jobs[r].status, TN_E_DEVICE_LOST);
        assert_non_null(strstr(jobs[r].error, "rank "));
    }
}

static void one_aborts(rank_job *job) {
    float x = 1;
    if (tn_net_rank(job->net) == 2) tn_net_abort(job->net, TN_E_NOMEM, "no room for cells");
    job->status = tn_net_all_reduce(job->net, &x, &x, 1);
    snprintf(job->error, sizeof job->error, "%s", tn_error());
}
static void an_abort_reaches_all(void **state) {
    (void)state;
    rank_job jobs[RANKS_MOST];
    const uint64_t begin = tn_time_ns();
    on_threads(3, 20000, one_aborts, jobs);
    assert_true(tn_time_ns() - begin < 5000000000ull);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(jobs[r].status, TN_E_NOMEM);
        assert_non_null(strstr(jobs[r].error, "no room for cells"));
    }
}

/* ---- Processes ---- */

/* Waits for rank 0 in a child: for a note if `idle`, else for a sum. Returns the status as the exit code. */
static pid_t start_rank(int fd, int rank, int n_ranks, uint32_t timeout_ms, bool idle) {
    const pid_t child = fork();
    if (child) return child;
    char spec[32];
    tn_net *net;
    float x = 1;
    snprintf(spec, sizeof spec, "shm:%d", fd);
    const tn_net_params params = {.rank = rank, .n_ranks = n_ranks, .timeout_ms = timeout_ms};
    tn_status status = tn_net_open(spec, &params, &net);
    if (status == TN_OK) status = tn_net_barrier(net);
    if (status == TN_OK) status = idle ? tn_net_note(net, &x, sizeof x) : tn_net_all_reduce(net, &x, &x, 1);
    _exit((int)status);
}

static tn_net *join_children(int fd, int n_ranks, uint32_t timeout_ms) {
    char spec[32];
    tn_net *net;
    snprintf(spec, sizeof spec, "shm:%d", fd);
    assert_ok(tn_net_open(spec, &(tn_net_params){.n_ranks = n_ranks, .timeout_ms = timeout_ms}, &net));
    assert_ok(tn_net_barrier(net));
    return net;
}
static int exit_code(pid_t child) {
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
}

static void processes_exchange_and_end(void **state) {
    (void)state;
    int fd;
    const tn_net_params params = {.n_ranks = 3};
    assert_ok(tn_net_shm_new(&params, &fd));
    pid_t a = start_rank(fd, 1, 3, 20000, false), b = start_rank(fd, 2, 3, 20000, false);
    tn_net *net = join_children(fd, 3, 20000);
    float x = 40;
    assert_ok(tn_net_all_reduce(net, &x, &x, 1));
    assert_true(x == 42);
    assert_int_equal(exit_code(a), TN_OK);
    assert_int_equal(exit_code(b), TN_OK);
    /* Both have ended: that is found long before the timeout. */
    const uint64_t begin = tn_time_ns();
    assert_fails(TN_E_DEVICE_LOST, tn_net_all_reduce(net, &x, &x, 1));
    assert_true(tn_time_ns() - begin < 2000000000ull);
    tn_net_free(net);
    close(fd);
}

static void a_killed_rank_is_noticed(void **state) {
    (void)state;
    int fd;
    assert_ok(tn_net_shm_new(&(tn_net_params){.n_ranks = 2}, &fd));
    pid_t child = start_rank(fd, 1, 2, 20000, true);
    tn_net *net = join_children(fd, 2, 20000);
    kill(child, SIGKILL);
    float x = 1;
    const uint64_t begin = tn_time_ns();
    assert_fails(TN_E_DEVICE_LOST, tn_net_all_reduce(net, &x, &x, 1));
    assert_true(tn_time_ns() - begin < 2000000000ull);
    assert_non_null(strstr(tn_error(), "rank 1 of 2 has ended"));
    assert_int_equal(exit_code(child), -1);
    tn_net_free(net);
    close(fd);
}

static void an_idle_rank_notices_the_end_and_the_stop_of_rank_0(void **state) {
    (void)state;
    for (int stopped = 0; stopped < 2; stopped++) {
        int fd;
        assert_ok(tn_net_shm_new(&(tn_net_params){.n_ranks = 2}, &fd));
        const pid_t leader = fork();
        if (!leader) { /* waits in vain */
            tn_net *net = join_children(fd, 2, 300);
            for (;;) pause();
            tn_net_free(net);
        }
        const pid_t child = start_rank(fd, 1, 2, 300, true);
        usleep(500000); /* longer than the timeout: waiting for a note is no failure */
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
        kill(leader, stopped ? SIGSTOP : SIGKILL);
        assert_int_equal(exit_code(child), TN_E_DEVICE_LOST);
        kill(leader, SIGKILL);
        (void)exit_code(leader);
        close(fd);
    }
}

static void wrong_specifications_are_refused(void **state) {
    (void)state;
    tn_net *net;
    int fd;
    const tn_net_params params = {.n_ranks = 2};
    assert_fails(TN_E_NOT_FOUND, tn_net_open("pigeons", &params, &net));
    assert_fails(TN_E_NOT_FOUND, tn_net_open("nccl:pigeons", &params, &net));
    assert_fails(TN_E_SYNTAX, tn_net_open("shm:x", &params, &net));
    assert_fails(TN_E_SYNTAX, tn_net_open("delay:5:shm:0", &params, &net));
    assert_fails(TN_E_SYNTAX, tn_net_open("delay:5us,fast:shm:0", &params, &net));
    assert_fails(TN_E_IO, tn_net_open("shm:4000", &params, &net));
    assert_fails(TN_E_INVALID, tn_net_shm_new(&(tn_net_params){.n_ranks = 65}, &fd));
    assert_ok(tn_net_shm_new(&params, &fd));
    char spec[64];
    snprintf(spec, sizeof spec, "shm:%d", fd);
    assert_fails(TN_E_FORMAT, tn_net_open(spec, &(tn_net_params){.n_ranks = 3}, &net));
    assert_ok(tn_net_open(spec, &params, &net));
    tn_net *second;
    assert_fails(TN_E_STATE, tn_net_open(spec, &params, &second));
    tn_net_free(net);
    close(fd);
}

static void delayed_messages_take_longer(void **state) {
    (void)state;
    int fd;
    char spec[64];
    tn_net *net;
    float x[1000] = {2};
    assert_ok(tn_net_shm_new(&(tn_net_params){.n_ranks = 2}, &fd));
    pid_t child = start_rank(fd, 1, 2, 20000, false);
    snprintf(spec, sizeof spec, "delay:5ms,400K:shm:%d", fd);
    assert_ok(tn_net_open(spec, &(tn_net_params){.n_ranks = 2}, &net));
    assert_string_equal(tn_net_name(net), "delay");
    assert_ok(tn_net_barrier(net));
    const uint64_t begin = tn_time_ns();
    assert_ok(tn_net_all_reduce(net, x, x, 1));
    assert_true(tn_time_ns() - begin >= 5000000);
    assert_true(x[0] == 3);
    assert_int_equal(exit_code(child), TN_OK);
    tn_net_free(net);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_exchange),
        cmocka_unit_test(groups_of_ranks_exchange),
        cmocka_unit_test(a_failure_in_a_group_reaches_all),
        cmocka_unit_test(large_messages_pass_in_pieces),
        cmocka_unit_test(coded_sums_are_near_and_the_same_on_all_ranks),
        cmocka_unit_test(a_stalled_rank_ends_the_others),
        cmocka_unit_test(an_abort_reaches_all),
        cmocka_unit_test(processes_exchange_and_end),
        cmocka_unit_test(a_killed_rank_is_noticed),
        cmocka_unit_test(an_idle_rank_notices_the_end_and_the_stop_of_rank_0),
        cmocka_unit_test(wrong_specifications_are_refused),
        cmocka_unit_test(delayed_messages_take_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

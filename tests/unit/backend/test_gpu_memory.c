/* Memory and abort on a GPU: planned bytes are those that the backend requests, programs share one scratch buffer,
 * and long programs stop soon. Skipped without a GPU.
 *
 * TENON_COUNT_GPU_BYTES names the file in which the emulator, or tests/modules/count_gpu_bytes.c on a real GPU,
 * records every allocation. TENON_GPU_MODELS: model files separated by spaces. */
#include "gpu.h"
#include "random_tensor.h"

#include "tenon/llm.h"
#include "tenon/sched.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Allocations as recorded ---- */

typedef struct requests {
    size_t device, pinned; /* bytes requested and not yet released */
    size_t lines;
} requests;

static bool read_requests(requests *r) {
    const char *path = getenv("TENON_COUNT_GPU_BYTES");
    *r = (requests){0};
    FILE *file = path && *path ? fopen(path, "r") : NULL;
    if (!file) return false;
    char sign, kind[16];
    unsigned long long bytes;
    while (fscanf(file, " %c %15s %llu%*[^\n]", &sign, kind, &bytes) == 3) {
        size_t *sum = strcmp(kind, "device") == 0 ? &r->device : &r->pinned;
        *sum = sign == '+' ? *sum + (size_t)bytes : *sum - (size_t)bytes;
        r->lines++;
    }
    fclose(file);
    return true;
}

/* ---- Models ---- */

enum { MAX_MODELS = 8, CELLS = 256, MICRO_BATCH = 48 };
static int model_names(char list[4096], char *names[MAX_MODELS]) {
    int n = 0;
    snprintf(list, 4096, "%s", getenv("TENON_GPU_MODELS") ? getenv("TENON_GPU_MODELS") : "");
    for (char *name = strtok(list, " "); name && n < MAX_MODELS; name = strtok(NULL, " ")) names[n++] = name;
    return n;
}
static tn_session_params memory_params(const tn_sched *sched) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = CELLS;
    p.n_ubatch = MICRO_BATCH;
    p.n_outputs = 1;
    p.sched = sched;
    p.n_gpu_layers = 1000;
    if (!sched) p.devices[0] = tn_device_name(gpu);
    return p;
}
static void decode_some(tn_session *session, int32_t n, bool argmax) {
    tn_token tokens[MICRO_BATCH];
    for (int32_t i = 0; i < n; i++) tokens[i] = 3 + i * 7 % 400;
    tn_session_clear(session);
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens, .argmax = argmax}));
}

static void decode_mixed_sizes(tn_session *session, bool argmax) {
    const bool quick = gpu_rounds(1, 0, 0);
    for (int32_t size = 1; size <= MICRO_BATCH; size += quick ? size : size < 10 ? 1 : 13)
        decode_some(session, size, argmax);
}

static bool look_at_every_node(void *user, tn_tensor *node, bool ask) {
    (void)node;
    if (!ask) ++*(int *)user;
    return true;
}
/* What a session may be asked beside decoding: eval, copies, shifts, moves and states of its cells. */
static void use_everything(tn_session *session) {
    int seen = 0;
    size_t size;
    tn_sched_set_eval(tn_session_sched(session), look_at_every_node, &seen);
    decode_some(session, 1, false);
    decode_some(session, 5, false);
    tn_sched_set_eval(tn_session_sched(session), NULL, NULL);
    assert_true(seen > 0);
    decode_some(session, 12, false);
    assert_ok(tn_session_seq_copy(session, 0, 1, 0, -1));
    assert_ok(tn_session_seq_remove(session, 0, 2, 5));
    assert_ok(tn_session_seq_shift(session, 0, 5, -1, -3));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &(tn_token){7}}));
    assert_ok(tn_session_seq_remove(session, 1, 0, -1));
    assert_ok(tn_session_defragment(session));
    assert_ok(tn_session_state_size(session, -1, &size));
    void *cells = malloc(size);
    assert_ok(tn_session_state_get(session, -1, cells, size));
    tn_session_clear(session);
    assert_ok(tn_session_state_set(session, -1, cells, size));
    free(cells);
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &(tn_token){7}}));
}

/* Counters, step tables and whatever else the backend needs are part of the plan: a session requests from the driver
 * what was planned when it is made, and nothing later. */
static void check_requests(const char *name, int32_t n_gpu_layers) {
    requests before, opened, after;
    tn_model *model;
    tn_session *session;
    tn_session_plan *plan;
    tn_session_params p = memory_params(NULL);
    tn_fit fit;
    p.n_gpu_layers = n_gpu_layers;
    p.n_seqs = 2;
    assert_true(read_requests(&before));
    assert_ok(tn_model_open(name, NULL, &model));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    assert_true(read_requests(&after));
    assert_int_equal(after.lines, before.lines); /* planning takes nothing */
    assert_ok(tn_session_new(plan, &session));
    assert_true(read_requests(&opened));
    const tn_fit_device *d = &fit.devices[0], *host = &fit.devices[fit.n_devices - 1];
    const size_t planned = d->weights + d->cache + d->compute + d->scratch + d->own,
                 staging = tn_buffer_type_load_bytes(tn_device_buffer_type(gpu));
    print_message(
        "%s, %d layers: device %zu planned, %zu requested; pinned %zu planned, %zu requested, of it %zu for "
        "uploads\n",
        name, d->n_layers, planned, opened.device - before.device, host->pinned, opened.pinned - before.pinned,
        staging);
    assert_int_equal(opened.device - before.device, planned);
    assert_int_equal(opened.pinned - before.pinned, host->pinned);
    for (int round = 0; round < gpu_rounds(2, 3, 3); round++) decode_mixed_sizes(session, round == 1);
    use_everything(session);
    assert_true(read_requests(&after));
    assert_int_equal(after.lines, opened.lines);
    tn_session_free(session);
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    tn_model_close(model);
    assert_true(read_requests(&after));
    assert_int_equal(after.device, before.device);
    assert_int_equal(after.pinned, before.pinned);
}

/* Of every model: all layers on the device, and one, with large batches of the others offloaded. */
static void memory_requested_is_as_planned(void **state) {
    (void)state;
    NEED_GPU();
    char list[4096], *names[MAX_MODELS];
    const int n = model_names(list, names);
    requests before;
    tn_buffer *empty; /* libraries that allocate when they are loaded have done so afterwards */
    assert_ok(tn_buffer_new(tn_device_buffer_type(gpu), 256, &empty));
    tn_buffer_free(empty);
    if (!n || !read_requests(&before)) skip();
    for (int m = 0; m < n; m++) {
        check_requests(names[m], 1000);
        check_requests(names[m], 1);
    }
}

static void planned_fit(tn_model *model, const tn_session_params *p, tn_fit *fit) {
    tn_session_plan *plan;
    assert_ok(tn_session_plan_new(model, p, &plan));
    assert_ok(tn_session_plan_fit(plan, fit));
    tn_session_plan_free(plan);
}

/* By the driver's own account. Its kernels, graphs and heaps are loaded when every size has run three times, as
 * logits and as argmax. TENON_GPU_STEPS: the number of further steps. */
static void memory_free_stays_the_same(void **state) {
    (void)state;
    NEED_GPU();
    char list[4096], *names[MAX_MODELS];
    const int n = model_names(list, names);
    const char *steps = getenv("TENON_GPU_STEPS");
    const int more = steps ? atoi(steps) : 1000;
    if (!n) skip();
    for (int m = 0; m < gpu_rounds(1, n, n); m++) {
        tn_model *model;
        tn_session *session;
        tn_session_params p = memory_params(NULL);
        size_t at_first, opened, warm, after, total;
        assert_ok(tn_device_memory(gpu, &at_first, &total));
        assert_ok(tn_model_open(names[m], NULL, &model));
        assert_ok(tn_session_open(model, &p, &session));
        assert_ok(tn_device_memory(gpu, &opened, &total));
        /* The driver loads kernels when they are first used. */
        for (int round = 0; round < (more < 100 ? 2 : 6); round++) decode_mixed_sizes(session, round % 2 == 1);
        assert_ok(tn_device_memory(gpu, &warm, &total));
        for (int i = 0; i < more; i++) decode_some(session, 1 + (i < 500 ? i % 10 : 0), i % 3 == 1);
        for (int i = 0; i * 13 < more; i++) decode_mixed_sizes(session, i % 2 == 1);
        assert_ok(tn_device_memory(gpu, &after, &total));
        print_message("%s: free %zu at first, %zu opened, %zu after all sizes, %zu after %d further steps\n",
                      names[m], at_first, opened, warm, after, more);
        assert_int_equal(warm, after);
        tn_session_free(session);
        tn_model_close(model);
    }
}

/* A device described by "cuda:0" needs the scratch that the real one needs. */
static void memory_of_described_devices_is_the_same(void **state) {
    (void)state;
    NEED_GPU();
    char list[4096], *names[MAX_MODELS];
    const int n = model_names(list, names);
    if (!n || strncmp(tn_device_name(gpu), "cuda", 4) != 0) skip();
    for (int m = 0; m < n; m++) {
        tn_model *model;
        tn_fit fit[2];
        assert_ok(tn_model_open(names[m], NULL, &model));
        for (int described = 0; described < 2; described++) {
            tn_session_params p = memory_params(NULL);
            if (described) p.devices[0] = "cuda:0";
            planned_fit(model, &p, &fit[described]);
        }
        assert_int_equal(fit[0].devices[0].scratch, fit[1].devices[0].scratch);
        assert_int_equal(fit[0].devices[0].compute, fit[1].devices[0].compute);
        tn_fit_free(&fit[0]);
        tn_fit_free(&fit[1]);
        tn_model_close(model);
    }
}

/* Scratch is not monotone in the number of tokens: work is divided in other ways. What a session plans for its
 * micro-batch covers every smaller one. Needs the module, not a GPU. TENON_PLAN_MODELS: files, also without data. */
static void scratch_covers_every_smaller_batch(void **state) {
    (void)state;
    static const char *const devices[] = {"cuda:h200", "cuda:rtx4090", "cuda:t4"};
    char list[4096];
    tn_device *device;
    snprintf(list, sizeof list, "%s", getenv("TENON_PLAN_MODELS") ? getenv("TENON_PLAN_MODELS") : "");
    if (!*list || tn_device_find(devices[0], &device) != TN_OK) skip();
    for (char *name = strtok(list, " "); name; name = strtok(NULL, " "))
        for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
            tn_model *model;
            size_t larger = SIZE_MAX;
            assert_ok(tn_model_open(name, NULL, &model));
            for (int32_t n = 64; n > 0; n--) {
                tn_session_params p = memory_params(NULL);
                tn_fit fit;
                p.devices[0] = devices[d];
                p.n_ubatch = n;
                p.n_ctx = 8192; /* attention is split over many blocks */
                planned_fit(model, &p, &fit);
                if (fit.devices[0].scratch > larger)
                    fail_msg("%s on %s: %d tokens need %zu bytes of scratch, %d are planned with %zu", name,
                             devices[d], (int)n, fit.devices[0].scratch, (int)n + 1, larger);
                larger = fit.devices[0].scratch;
                tn_fit_free(&fit);
            }
            tn_model_close(model);
        }
}

/* ---- Programs that take turns in one scratch buffer ---- */

enum { TURNS = 9 };
static double last_logit_sums(tn_session *session, const float *logits) {
    double sum = 0;
    const int32_t vocab = tn_model_get_info(tn_session_model(session)).n_vocab;
    for (int32_t i = 0; i < vocab; i++) sum += (double)logits[i] * (1 + i % 7);
    return sum;
}
/* One token more, or a prompt anew in every fourth turn. The order of sessions changes from round to round. */
static void take_turn(tn_session *session, int turn, double *sum) {
    static const tn_token tokens[MICRO_BATCH] = {5, 9, 2, 77, 31, 8, 3, 12, 60, 41, 18, 6};
    const bool prompt = turn % 4 == 0;
    if (prompt) tn_session_clear(session);
    assert_ok(tn_session_decode(
        session, &(tn_batch){.n_tokens = prompt ? 12 : 1, .tokens = prompt ? tokens : tokens + turn % 5}));
    *sum = last_logit_sums(session, tn_session_logits(session, 0));
}
static void programs_that_share_scratch_find_their_tables(void **state) {
    (void)state;
    NEED_GPU();
    char list[4096], *names[MAX_MODELS];
    const int n = model_names(list, names) < 3 ? model_names(list, names) : 3;
    if (!n) skip();
    static double alone[3][TURNS], shared[3][TURNS];
    tn_model *models[3];
    tn_session *sessions[3];
    tn_sched *sched;
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {tn_device_name(gpu), "cpu"}}, &sched));
    for (int m = 0; m < n; m++) {
        tn_session_params p = memory_params(NULL);
        assert_ok(tn_model_open(names[m], NULL, &models[m]));
        assert_ok(tn_session_open(models[m], &p, &sessions[m]));
        for (int turn = 0; turn < TURNS; turn++) take_turn(sessions[m], turn, &alone[m][turn]);
        tn_session_free(sessions[m]);
    }
    for (int m = 0; m < n; m++) {
        tn_session_params p = memory_params(sched);
        assert_ok(tn_session_open(models[m], &p, &sessions[m]));
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < n; i++) {
            const int m = (i + turn / 2) % n;
            take_turn(sessions[m], turn, &shared[m][turn]);
        }
    for (int m = 0; m < n; m++)
        for (int turn = 0; turn < TURNS; turn++)
            if (!(fabs(alone[m][turn] - shared[m][turn]) <= 1e-3 * (1 + fabs(alone[m][turn]))))
                fail_msg("%s, turn %d: %.9g alone, %.9g with others", names[m], turn, alone[m][turn],
                         shared[m][turn]);
    for (int m = 0; m < n; m++) tn_session_free(sessions[m]);
    for (int m = 0; m < n; m++) tn_model_close(models[m]);
    tn_sched_free(sched);
}

/* Counters in scratch survive from run to run, but not another use of the buffer. Two streams take turns; the buffer
 * is overwritten; another one is used; and the first again. */
static void scratch_may_be_used_for_other_things_between_runs(void **state) {
    (void)state;
    NEED_GPU();
    enum { N = 8192, RUNS = 10 };
    tn_arena *a;
    tn_stream *streams[2];
    tn_program *programs[2];
    tn_buffer *memory, *scratch[2];
    tn_buffer_type *type = tn_device_buffer_type(gpu);
    static float x[N];
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &a));
    tn_tensor *tx = tn_tensor_new(a, TN_F32, 1, (int64_t[]){N});
    tn_tensor *nodes[2] = {tn_output(tn_sum_rows(a, tx)), tn_output(tn_argmax(a, tx))};
    assert_ok(tn_buffer_new(type, N * 4 + 512, &memory));
    assert_ok(tn_buffer_bind(memory, tx, 0));
    for (int i = 0; i < 2; i++) {
        assert_ok(tn_buffer_bind(memory, nodes[i], N * 4 + 256 * (size_t)i));
        assert_ok(tn_stream_new(gpu, NULL, &streams[i]));
        assert_ok(tn_program_new(streams[i], nodes, 2, &programs[i]));
        assert_ok(tn_buffer_new(type, tn_program_scratch(programs[i]) + 4096 * (size_t)i, &scratch[i]));
        assert_ok(tn_buffer_clear(scratch[i], 0xff));
    }
    for (int run = 0; run < RUNS; run++) {
        const int stream = run / 2 % 2, buffer = run / 4 % 2, at = run * 701 % N;
        for (int i = 0; i < N; i++) x[i] = i == at ? 2 : 1;
        assert_ok(tn_tensor_set(tx, x));
        if (run == 3 || run == 8) assert_ok(tn_buffer_clear(scratch[buffer], 0xff));
        assert_ok(tn_program_run(programs[stream], scratch[buffer]));
        assert_ok(tn_stream_synchronize(streams[stream]));
        float sum;
        int32_t best;
        assert_ok(tn_tensor_get(nodes[0], &sum));
        assert_ok(tn_tensor_get(nodes[1], &best));
        assert_true(sum == N + 1);
        assert_int_equal(best, at);
    }
    for (int i = 0; i < 2; i++) {
        tn_program_free(programs[i]);
        tn_stream_free(streams[i]);
        tn_buffer_free(scratch[i]);
    }
    tn_buffer_free(memory);
    tn_arena_free(a);
}

/* ---- Abort ---- */

enum { CHAIN = 12, SIDE = 64, COLUMNS = 16 };
typedef struct matmul_chain {
    tn_arena *a;
    tn_stream *stream;
    tn_buffer *memory, *scratch;
    tn_tensor *x, *nodes[1024];
    tn_program *program;
} matmul_chain;

/* x, W x, W W x …: every node is an output in memory of its own. */
static void chain_begin(matmul_chain *c, int64_t side, int64_t columns, tn_type type, int n,
                        tn_stream_params params) {
    *c = (matmul_chain){0};
    tn_buffer_type *type_of = tn_device_buffer_type(gpu);
    const int64_t w_shape[4] = {side, side, 1, 1}, x_shape[4] = {side, columns, 1, 1};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 4 << 20, .no_alloc = true}, &c->a));
    assert_ok(tn_stream_new(gpu, &params, &c->stream));
    tn_tensor *w = tn_tensor_new(c->a, type, 4, w_shape);
    c->x = tn_tensor_new(c->a, TN_F32, 4, x_shape);
    const size_t w_bytes = (tn_nbytes(w) + 255) / 256 * 256, x_bytes = (tn_nbytes(c->x) + 255) / 256 * 256;
    const size_t kept = n <= CHAIN ? (size_t)n : 2; /* of a long chain only two results at a time */
    assert_ok(tn_buffer_new(type_of, w_bytes + (1 + kept) * x_bytes, &c->memory));
    assert_ok(tn_buffer_clear(c->memory, 0));
    assert_ok(tn_buffer_bind(c->memory, w, 0));
    assert_ok(tn_buffer_bind(c->memory, c->x, w_bytes));
    for (int i = 0; i < n; i++) {
        c->nodes[i] = tn_output(tn_mul_mat(c->a, w, i ? c->nodes[i - 1] : c->x));
        assert_ok(tn_buffer_bind(c->memory, c->nodes[i], w_bytes + (1 + (size_t)i % kept) * x_bytes));
    }
    if (n <= CHAIN) { /* a permutation of the rows, so that results are exact */
        float *ones = calloc((size_t)(side * side), sizeof *ones);
        for (int64_t i = 0; i < side; i++) ones[i * side + (i + 1) % side] = 1;
        assert_ok(tn_tensor_set(w, ones));
        free(ones);
    }
    assert_ok(tn_program_new(c->stream, c->nodes, (size_t)n, &c->program));
    assert_ok(tn_buffer_new(type_of, tn_program_scratch(c->program), &c->scratch));
}
static void chain_end(matmul_chain *c) {
    tn_program_free(c->program);
    tn_stream_free(c->stream);
    tn_buffer_free(c->scratch);
    tn_buffer_free(c->memory);
    tn_arena_free(c->a);
}

typedef struct asked {
    int calls, stop_at; /* 0: never */
} asked;
static bool stop_at_call(void *user) {
    asked *a = user;
    return ++a->calls == a->stop_at;
}
static void set_x(matmul_chain *c, float first) {
    float x[SIDE * COLUMNS];
    for (int i = 0; i < SIDE * COLUMNS; i++) x[i] = first + (float)(i % 31);
    assert_ok(tn_tensor_set(c->x, x));
}
/* How many of the chain's results belong to this x. */
static int results_of(matmul_chain *c, float first) {
    float y[SIDE * COLUMNS];
    int right = 0;
    for (int i = 0; i < CHAIN; i++) {
        assert_ok(tn_tensor_get(c->nodes[i], y));
        int same = 0;
        for (int k = 0; k < SIDE * COLUMNS; k++)
            same += y[k] == first + (float)((k / SIDE * SIDE + (k + i + 1) % SIDE) % 31);
        right += same == SIDE * COLUMNS;
    }
    return right;
}
/* A segment for every launch. The callback stops a run at its k-th call; the next run is complete. Also where runs
 * replay graphs. */
static void an_abort_stops_between_segments(void **state) {
    (void)state;
    NEED_GPU();
    if (strncmp(tn_device_name(gpu), "cuda", 4) != 0) skip();
    setenv("TENON_CUDA_SEGMENT_US", "0", 1);
    asked a = {0};
    matmul_chain c;
    chain_begin(&c, SIDE, COLUMNS, TN_F32, CHAIN, (tn_stream_params){.abort = stop_at_call, .abort_user = &a});
    float first = 1;
    for (int round = 0; round < 4; round++)
        for (int stop = 1; stop <= CHAIN; stop += 5, first++) {
            set_x(&c, first);
            a = (asked){.stop_at = stop};
            assert_int_equal(tn_program_run(c.program, c.scratch), TN_E_ABORTED);
            assert_int_equal(a.calls, stop);
            const int done = results_of(&c, first);
            assert_true(done < CHAIN && done >= stop - 1);
            assert_ok(tn_stream_synchronize(c.stream));
            assert_int_equal(a.calls, stop); /* nothing was queued: not asked */
            assert_int_equal(results_of(&c, first), done);
            a = (asked){0};
            assert_ok(tn_program_run(c.program, c.scratch));
            assert_true(a.calls >= CHAIN);
            assert_ok(tn_stream_synchronize(c.stream));
            assert_int_equal(results_of(&c, first), CHAIN);
        }
    /* While waiting for a run, too. */
    a = (asked){0};
    assert_ok(tn_program_run(c.program, c.scratch));
    a.stop_at = a.calls + 1;
    assert_int_equal(tn_stream_synchronize(c.stream), TN_E_ABORTED);
    assert_ok(tn_stream_synchronize(c.stream));
    chain_end(&c);
    unsetenv("TENON_CUDA_SEGMENT_US");
}

/* A prompt that is stopped anywhere leaves a session that decodes it as if nothing had happened. */
static void sessions_continue_after_an_abort(void **state) {
    (void)state;
    NEED_GPU();
    char list[4096], *names[MAX_MODELS];
    if (!model_names(list, names) || strncmp(tn_device_name(gpu), "cuda", 4) != 0) skip();
    setenv("TENON_CUDA_SEGMENT_US", "0", 1);
    asked a = {0};
    tn_model *model;
    tn_session *session;
    tn_session_params p = memory_params(NULL);
    p.abort = stop_at_call;
    p.user = &a;
    assert_ok(tn_model_open(names[0], NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    double want = 0, got;
    a = (asked){0}; /* planning and loading have asked too */
    take_turn(session, 0, &want);
    const int calls = a.calls;
    assert_true(calls > 3);
    for (int stop = 1; stop <= calls; stop += 1 + calls / 7) {
        static const tn_token tokens[12] = {5, 9, 2, 77, 31, 8, 3, 12, 60, 41, 18, 6};
        a = (asked){.stop_at = stop};
        tn_session_clear(session);
        assert_int_equal(tn_session_decode(session, &(tn_batch){.n_tokens = 12, .tokens = tokens}), TN_E_ABORTED);
        a = (asked){0};
        take_turn(session, 0, &got);
        if (!(fabs(got - want) <= 1e-3 * (1 + fabs(want)))) fail_msg("stopped at %d: %g, not %g", stop, got, want);
    }
    tn_session_free(session);
    tn_model_close(model);
    unsetenv("TENON_CUDA_SEGMENT_US");
}

typedef struct stopper {
    atomic_bool stop;
    double at; /* seconds: when `stop` was set */
} stopper;
static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static bool stop_wanted(void *user) { return atomic_load(&((stopper *)user)->stop); }
static void *stop_later(void *user) {
    stopper *s = user;
    nanosleep(&(struct timespec){.tv_nsec = 70000000}, NULL);
    s->at = seconds_now();
    atomic_store(&s->stop, true);
    return NULL;
}
static double time_run(matmul_chain *c) {
    double best = 1e9;
    for (int i = 0; i < 4; i++) {
        const double begin = seconds_now();
        assert_ok(tn_program_run(c->program, c->scratch));
        assert_ok(tn_stream_synchronize(c->stream));
        const double took = seconds_now() - begin;
        if (i && took < best) best = took;
    }
    return best;
}
/* Only on hardware: a second or so of matrix multiplications, as in a prompt, stopped by another thread. */
static void an_abort_takes_at_most_50_ms(void **state) {
    (void)state;
    NEED_GPU();
    if (strncmp(tn_device_name(gpu), "cuda", 4) != 0 || strstr(tn_device_description(gpu), "CUDA on CPU")) skip();
    stopper s = {0};
    matmul_chain c;
    double took[2];
    for (int asks = 0; asks < 2; asks++) {
        tn_stream_params params = {.abort = asks ? stop_wanted : NULL, .abort_user = &s};
        chain_begin(&c, 8192, 4096, TN_F16, 512, params);
        took[asks] = time_run(&c);
        if (asks) break;
        chain_end(&c);
    }
    print_message("a run takes %.1f ms without a callback, %.1f ms with one (%+.2f%%)\n", 1e3 * took[0],
                  1e3 * took[1], 100 * (took[1] / took[0] - 1));
    double worst = 0;
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        atomic_store(&s.stop, false);
        assert_int_equal(pthread_create(&thread, NULL, stop_later, &s), 0);
        tn_status status = tn_program_run(c.program, c.scratch);
        if (status == TN_OK) status = tn_stream_synchronize(c.stream);
        const double returned = seconds_now();
        pthread_join(thread, NULL);
        assert_int_equal(status, TN_E_ABORTED);
        if (returned - s.at > worst) worst = returned - s.at;
        atomic_store(&s.stop, false);
        assert_ok(tn_stream_synchronize(c.stream));
    }
    print_message("an abort returned after at most %.1f ms\n", 1e3 * worst);
    assert_true(worst <= 0.05);
    assert_true(took[1] <= 1.02 * took[0]);
    chain_end(&c);
}

/* ---- Integrated GPUs ---- */

static void integrated_gpus_use_the_hosts_memory(void **state) {
    (void)state;
    tn_device *device;
    if (tn_device_find("cuda:sm=87,sms=16,memory=32G,integrated=1,name=orin", &device) != TN_OK) skip();
    assert_int_equal(tn_device_get_kind(device), TN_DEVICE_IGPU);
    assert_true(tn_device_get_caps(device).unified && tn_device_get_caps(device).wrap_host);
    if (!gpu || !tn_device_get_caps(gpu).unified) skip(); /* TENON_EMULATED_INTEGRATED=1 */
    tn_arena *a;
    tn_stream *stream;
    tn_buffer *weights, *memory;
    tn_program *program;
    static float w[4 * 8] __attribute__((aligned(256))), x[8], y[4];
    for (int i = 0; i < 32; i++) w[i] = (float)(i % 5);
    for (int i = 0; i < 8; i++) x[i] = (float)i;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &a));
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    assert_ok(tn_device_wrap_host(gpu, w, sizeof w, &weights));
    assert_ok(tn_buffer_new(tn_device_buffer_type(gpu), 1024, &memory));
    tn_tensor *tw = tn_tensor_new(a, TN_F32, 2, (int64_t[]){8, 4}), *tx = tn_tensor_new(a, TN_F32, 1, (int64_t[]){8}),
              *ty = tn_output(tn_mul_mat(a, tw, tx));
    assert_ok(tn_buffer_bind(weights, tw, 0));
    assert_ok(tn_buffer_bind(memory, tx, 0));
    assert_ok(tn_buffer_bind(memory, ty, 256));
    assert_ok(tn_tensor_set(tx, x));
    assert_ok(tn_program_new(stream, &ty, 1, &program));
    tn_buffer *scratch = NULL;
    if (tn_program_scratch(program))
        assert_ok(tn_buffer_new(tn_device_buffer_type(gpu), tn_program_scratch(program), &scratch));
    assert_ok(tn_program_run(program, scratch));
    assert_ok(tn_stream_synchronize(stream));
    assert_ok(tn_tensor_get(ty, y));
    for (int row = 0; row < 4; row++) {
        float want = 0;
        for (int i = 0; i < 8; i++) want += w[8 * row + i] * x[i];
        assert_true(y[row] == want);
    }
    tn_program_free(program);
    tn_buffer_free(scratch);
    tn_buffer_free(memory);
    tn_buffer_free(weights);
    tn_stream_free(stream);
    tn_arena_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_requested_is_as_planned),
        cmocka_unit_test(memory_free_stays_the_same),
        cmocka_unit_test(memory_of_described_devices_is_the_same),
        cmocka_unit_test(scratch_covers_every_smaller_batch),
        cmocka_unit_test(programs_that_share_scratch_find_their_tables),
        cmocka_unit_test(scratch_may_be_used_for_other_things_between_runs),
        cmocka_unit_test(an_abort_stops_between_segments),
        cmocka_unit_test(sessions_continue_after_an_abort),
        cmocka_unit_test(an_abort_takes_at_most_50_ms),
        cmocka_unit_test(integrated_gpus_use_the_hosts_memory),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}

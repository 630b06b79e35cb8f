/* Every op of the table on the CPU, at every level of kernels the machine has, against the f64 reference: random
 * shapes, types and layouts, in place, NaN and infinities, and the same bits for any number of threads.
 * TENON_LONG=1 runs many more cases; TENON_OPS="rope attention" only these ops; TENON_SEED another sequence. */
#include "run_case.h"

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int thread_counts[] = {1, 2, 5};
enum { N_COUNTS = 3 };

static tn_stream *streams[N_COUNTS];

static int make_streams(void **state) {
    (void)state;
    tn_device *cpu;
    assert_ok(tn_device_find("cpu", &cpu));
    for (int i = 0; i < N_COUNTS; i++) {
        assert_ok(tn_stream_new(cpu, &(tn_stream_params){.n_threads = thread_counts[i]}, &streams[i]));
        ((tn__cpu_stream *)streams[i]->impl)->tiny_ns = 0; /* share even the smallest node */
    }
    return 0;
}
static int free_streams(void **state) {
    (void)state;
    for (int i = 0; i < N_COUNTS; i++) tn_stream_free(streams[i]);
    return 0;
}

static bool is_work(tn_op op) { return op != TN_OP_NONE && tn_op_get_family(op) != TN_FAMILY_VIEW; }

static bool asked_for(tn_op op) {
    const char *ops = getenv("TENON_OPS"), *name = tn_op_name(op);
    if (!ops || !*ops) return true;
    size_t length = strlen(name);
    for (const char *at = ops; (at = strstr(at, name)); at++)
        if ((at == ops || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

static void compare_bytes(const tn_tensor *node, const void *a, const void *b, const char *where) {
    if (!tn_is_empty(node) && memcmp(a, b, case_bytes(node)) != 0)
        fail_msg("%s: %s: bits differ", where, describe_case(node));
}

static void check_one(tn_tensor *node, const char *level) {
    char where[64];
    void *first = NULL;
    for (int i = 0; i < N_COUNTS; i++) {
        snprintf(where, sizeof where, "%s, %d threads", level, thread_counts[i]);
        void *bytes = run_case(streams[i], node, -1);
        if (!bytes) fail_msg("%s: %s: not supported", where, describe_case(node));
        if (i == 0) {
            check_case(node, bytes, where);
            first = bytes;
        } else {
            compare_bytes(node, first, bytes, where);
            free(bytes);
        }
    }
    for (int source = 0; source < TN_MAX_SRC; source++) {
        if (!can_run_in_place(streams[1], node, source)) continue;
        void *bytes = run_case(streams[1], node, source);
        compare_bytes(node, first, bytes, "in place");
        free(bytes);
    }
    free(first);
}

static bool long_run(void) {
    const char *text = getenv("TENON_LONG");
    return text && *text;
}
static uint64_t first_seed(void) {
    const char *text = getenv("TENON_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

static void run_cases(int n_cases, bool wild, const char *level) {
    size_t size = 64 << 20;
    void *memory = malloc(size);
    for (tn_op op = 0; op < TN_OP_COUNT; op++) {
        if (!is_work(op) || !asked_for(op)) continue;
        for (int i = 0; i < n_cases; i++) {
            rng r = {first_seed() * 1000003 + (uint64_t)op * 10007 + (uint64_t)i};
            tn_arena *arena;
            assert_ok(tn_arena_new(&(tn_arena_params){.size = size, .memory = memory}, &arena));
            tn_tensor *node = random_case(arena, op, &r, wild);
            if (tn_arena_status(arena) != TN_OK) fail_msg("%s, case %d: %s", tn_op_name(op), i, tn_error());
            if (!node || node->op != op) fail_msg("no test case for the op '%s'", tn_op_name(op));
            check_one(node, level);
            tn_arena_free(arena);
        }
    }
    free(memory);
}

/* Ops that read repacked weights, with several groups of rows and an incomplete one. */
static void run_repacked_cases(int n_cases, const char *level) {
    static const tn_op ops[] = {TN_OP_MUL_MAT, TN_OP_MUL_MAT_ID, TN_OP_GET_ROWS};
    tn_buffer_type *repacked = tn_device_extra_buffer_type(tn_stream_device(streams[0]), 0);
    int done = 0;
    for (size_t o = 0; o < 3; o++) {
        for (int i = 0; done < n_cases * (int)(o + 1) && i < 100000; i++) {
            rng r = {first_seed() * 7919 + (uint64_t)o * 104729 + (uint64_t)i};
            tn_arena *arena;
            assert_ok(tn_arena_new(&(tn_arena_params){.size = 16 << 20}, &arena));
            tn_tensor *node = random_case(arena, ops[o], &r, false);
            assert_ok(tn_arena_status(arena));
            const tn_tensor *x = node->src[0];
            if (!x->view_src && !tn_is_empty(node) &&
                tn__cpu_kernels_get()->can_repack(x->type, x->ne[1], x->ne[0])) {
                void *first = run_case_with_weights(streams[0], node, repacked);
                void *second = run_case_with_weights(streams[2], node, repacked);
                assert_true(first && second);
                check_case(node, first, level);
                compare_bytes(node, first, second, level);
                free(first);
                free(second);
                done++;
            }
            tn_arena_free(arena);
        }
    }
    assert_int_equal(done, n_cases * 3);
}

/* All levels of the machine; TENON_CPU is ignored. */
static void run_levels(int n_cases, bool wild) {
    for (int level = 0; level < TN__CPU_LEVELS; level++) {
        const tn__cpu_kernels *kernels = tn__cpu_kernels_at((tn__cpu_level)level);
        if (!kernels) continue;
        for (int i = 0; i < N_COUNTS; i++) ((tn__cpu_stream *)streams[i]->impl)->kernels = kernels;
        run_cases(n_cases, wild, kernels->name);
        if (!wild) run_repacked_cases(n_cases, kernels->name);
    }
}

static void every_op_agrees_with_the_reference(void **state) {
    (void)state;
    run_levels(long_run() ? 1500 : 20, false);
}
static void nan_and_infinity_propagate(void **state) {
    (void)state;
    run_levels(long_run() ? 300 : 6, true);
}

/* On the highest level of the machine; every other case unless TENON_LONG is set. */
static void run_attention_list(tn_tensor *(*case_of)(tn_arena *, int, rng *)) {
    if (!asked_for(TN_OP_ATTENTION)) skip();
    for (int i = 0; i < N_COUNTS; i++) ((tn__cpu_stream *)streams[i]->impl)->kernels = tn__cpu_kernels_get();
    tn_tensor *node = NULL;
    int i = 0;
    do {
        rng r = {first_seed() * 1000003 + (uint64_t)i};
        tn_arena *arena;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &arena));
        node = case_of(arena, i, &r);
        assert_ok(tn_arena_status(arena));
        if (node) check_one(node, "best");
        i += long_run() ? 1 : 2;
        tn_arena_free(arena);
    } while (node);
}
static void attention_agrees_over_every_cache(void **state) {
    (void)state;
    run_attention_list(cache_case);
}
static void latent_attention_agrees(void **state) {
    (void)state;
    run_attention_list(latent_case);
}

static void repacked_weights_keep_their_bytes(void **state) {
    (void)state;
    static const tn_type types[] = {TN_Q4_0, TN_Q8_0, TN_Q4_K, TN_Q6_K, TN_F16, TN_BF16};
    tn_buffer_type *repacked = tn_device_extra_buffer_type(tn_stream_device(streams[0]), 0);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        rng r = {i + 1};
        tn_arena *arena;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20}, &arena));
        tn_tensor *x = random_tensor(arena, types[i], (int64_t[]){512, 37, 2, 1}, 0, 1, &r);
        size_t size = tn_nbytes(x);
        unsigned char *host = x->data, *got = malloc(size);
        tn_buffer *buffer;
        assert_ok(tn_buffer_new(repacked, tn_buffer_type_tensor_size(repacked, x), &buffer));
        assert_ok(tn_buffer_bind(buffer, x, 0));
        assert_ok(tn_buffer_clear(buffer, 0));
        for (size_t at = 0; at < size;) { /* in pieces of odd sizes, like a loader */
            size_t part = 1 + rng_below(&r, 20000);
            part = part < size - at ? part : size - at;
            assert_ok(tn_tensor_set_at(x, host + at, at, part));
            at += part;
        }
        assert_ok(tn_tensor_get(x, got));
        assert_memory_equal(got, host, size);
        assert_ok(tn_tensor_get_at(x, got, 1000, 3000));
        assert_memory_equal(got, host + 1000, 3000);
        assert_ok(tn_tensor_fill(x, 0, 100, 5000));
        assert_ok(tn_tensor_get(x, got));
        assert_memory_equal(got, host, 100);
        assert_memory_equal(got + 5100, host + 5100, size - 5100);
        for (int k = 100; k < 5100; k++) assert_int_equal(got[k], 0);

        char reason[128]; /* the reason of an op that cannot read it */
        tn_tensor *copy = tn_dup(arena, x);
        assert_false(tn_device_supports_op(tn_stream_device(streams[0]), copy, reason, sizeof reason));
        assert_non_null(strstr(reason, "repacked"));
        free(got);
        tn_buffer_free(buffer);
        tn_arena_free(arena);
    }
}

int main(void) {
    unsetenv("TENON_CPU"); /* all levels are tested, and weights are repacked for the best */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_agrees_with_the_reference), cmocka_unit_test(nan_and_infinity_propagate),
        cmocka_unit_test(attention_agrees_over_every_cache),  cmocka_unit_test(latent_attention_agrees),
        cmocka_unit_test(repacked_weights_keep_their_bytes),
    };
    return cmocka_run_group_tests(tests, make_streams, free_streams);
}

/* Recurrent layers: decode and prompts, through the CPU's op drivers.
 *
 *   build/bench/recurrent [threads=1] [repeats=15]
 *
 * Every line is one op of one layer. The figures are the least time of the repeats, per token, and two ratios that
 * say what limits it: bytes of the state per second (each row is read and written once per batch) and operations per
 * second. TENON_CPU=LEVEL selects other kernels. */
#include "tenon/recurrent.h"
#include "tenon/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* With one thread CPU time, which other processes disturb less. */
static double now_seconds(int threads) {
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int option(int argc, char **argv, const char *name, int otherwise) {
    const size_t n = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') return atoi(argv[i] + n + 1);
    return otherwise;
}

static tn_tensor *filled(tn_arena *a, float low, float high, int64_t n0, int64_t n1, int64_t n2) {
    static uint32_t seed = 1;
    tn_tensor *t = tn_tensor_nd(a, TN_F32, n0, n1, n2);
    for (int64_t i = 0; t && i < tn_nelements(t); i++) {
        seed = seed * 1664525 + 1013904223;
        ((float *)t->data)[i] = low + (high - low) * (float)(seed >> 8) * 0x1p-24f;
    }
    return t;
}

/* `sequences` sequences of equal length, each with a row of its own. */
static tn_tensor *steps_of(tn_arena *a, int64_t tokens, int64_t sequences) {
    tn_tensor *t = tn_tensor_nd(a, TN_I32, 4, tokens);
    const int64_t each = tokens / sequences;
    for (int64_t i = 0; t && i < tokens; i++) {
        int32_t *step = (int32_t *)t->data + 4 * i;
        const bool first = i % each == 0, last = i % each == each - 1;
        step[TN_STEP_PREVIOUS] = first ? -1 : (int32_t)i - 1;
        step[TN_STEP_NEXT] = last ? -1 : (int32_t)i + 1;
        step[TN_STEP_READ] = (int32_t)(i / each);
        step[TN_STEP_WRITE] = last ? (int32_t)(i / each) : -1;
    }
    return t;
}

typedef enum bench_op { DELTA, DELTA_CHANNELS, MAMBA2, MAMBA1, CONV, RWKV7 } bench_op;
static const char *const names[] = {"gated delta net 128x128x16", "KDA 128x128x16",
                                    "Mamba-2 128x64x48",          "Mamba-1 16x3072",
                                    "convolution 4x8192",         "RWKV 7 64x64x32"};

static tn_tensor *make_op(tn_arena *a, bench_op op, int64_t tokens, int64_t sequences, double *operations) {
    tn_tensor *steps = steps_of(a, tokens, sequences);
    const float s = 0.08f;
    if (op == DELTA || op == DELTA_CHANNELS || op == MAMBA2) {
        const int64_t dk = 128, dv = op == MAMBA2 ? 64 : 128, heads = op == MAMBA2 ? 48 : 16,
                      keys = op == MAMBA2 ? 1 : heads;
        *operations = (double)(dk * dv * heads) * (op == MAMBA2 ? 5 : 7);
        tn_linear_attention_sources l = {.q = filled(a, -1, 1, dk, keys, tokens),
                                         .k = filled(a, -s, s, dk, keys, tokens),
                                         .v = filled(a, -1, 1, dv, heads, tokens),
                                         .g = filled(a, -1, 0, op == DELTA_CHANNELS ? dk : 1, heads, tokens),
                                         .beta = op == MAMBA2 ? NULL : filled(a, 0, 1, 1, heads, tokens),
                                         .state = filled(a, -1, 1, dk * dv * heads, sequences, 1),
                                         .steps = steps};
        return tn_linear_attention(a, &l, &(tn_linear_attention_params){.scale = 1, .delta = op != MAMBA2});
    }
    if (op == MAMBA1) {
        *operations = 16.0 * 16 * 3072;
        return tn_selective_scan(a, &(tn_selective_scan_sources){.x = filled(a, -1, 1, 3072, tokens, 1),
                                                                 .dt = filled(a, 0, 1, 3072, tokens, 1),
                                                                 .A = filled(a, -1, 0, 16, 3072, 1),
                                                                 .B = filled(a, -1, 1, 16, tokens, 1),
                                                                 .C = filled(a, -1, 1, 16, tokens, 1),
                                                                 .state = filled(a, -1, 1, 16 * 3072, sequences, 1),
                                                                 .steps = steps});
    }
    if (op == CONV) {
        *operations = 8.0 * 8192;
        return tn_causal_conv(a, filled(a, -1, 1, 8192, tokens, 1), filled(a, -1, 1, 4, 8192, 1), NULL,
                              filled(a, -1, 1, 3 * 8192, sequences, 1), steps, true);
    }
    *operations = 8.0 * 64 * 64 * 32;
    return tn_rwkv7(a, &(tn_rwkv7_sources){.r = filled(a, -1, 1, 64, 32, tokens),
                                           .w = filled(a, 0.5f, 1, 64, 32, tokens),
                                           .k = filled(a, -1, 1, 64, 32, tokens),
                                           .v = filled(a, -1, 1, 64, 32, tokens),
                                           .a = filled(a, -s, s, 64, 32, tokens),
                                           .b = filled(a, -s, s, 64, 32, tokens),
                                           .state = filled(a, -1, 1, 64 * 64 * 32, sequences, 1),
                                           .steps = steps});
}

static tn_status run_op(tn_stream *stream, tn_arena *a, bench_op op, int64_t tokens, int64_t sequences, int repeats,
                        int threads) {
    double operations, least = INFINITY;
    tn_arena_reset(a);
    tn_tensor *node = make_op(a, op, tokens, sequences, &operations);
    TN_TRY(tn_arena_status(a));
    tn_program *program;
    tn_buffer *scratch = NULL;
    TN_TRY(tn_program_new(stream, &node, 1, &program));
    if (tn_program_scratch(program))
        TN_TRY(tn_buffer_new(tn_device_buffer_type(tn_stream_device(stream)), tn_program_scratch(program), &scratch));
    for (int i = 0; i < repeats; i++) {
        const double begin = now_seconds(threads);
        TN_TRY(tn_program_run(program, scratch));
        TN_TRY(tn_stream_synchronize(stream));
        least = fmin(least, now_seconds(threads) - begin);
    }
    const double bytes = 8.0 * (double)node->src[TN_RECURRENT_STATE]->ne[0] * (double)sequences;
    printf("%-28s %4lld tokens of %2lld  %9.2f us/token  %6.1f GB/s of state  %6.1f Gop/s\n", names[op],
           (long long)tokens, (long long)sequences, least / (double)tokens * 1e6, bytes / least * 1e-9,
           operations * (double)tokens / least * 1e-9);
    tn_program_free(program);
    tn_buffer_free(scratch);
    return TN_OK;
}

int main(int argc, char **argv) {
    const int threads = option(argc, argv, "threads", 1), repeats = option(argc, argv, "repeats", 15);
    static const int64_t shapes[][2] = {{1, 1}, {16, 16}, {512, 1}, {512, 4}};
    tn_device *cpu;
    tn_stream *stream;
    tn_arena *a;
    tn_status status = tn_device_find("cpu", &cpu);
    if (status == TN_OK) status = tn_stream_new(cpu, &(tn_stream_params){.n_threads = threads}, &stream);
    if (status == TN_OK) status = tn_arena_new(&(tn_arena_params){.size = (size_t)256 << 20}, &a);
    for (int op = DELTA; op <= RWKV7 && status == TN_OK; op++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes && status == TN_OK; i++)
            status = run_op(stream, a, (bench_op)op, shapes[i][0], shapes[i][1], repeats, threads);
    if (status != TN_OK) {
        fprintf(stderr, "%s\n", tn_error());
        return 1;
    }
    tn_arena_free(a);
    tn_stream_free(stream);
    return 0;
}

/* GPU benchmark: measured peaks of the card, then tokens per second of models and their share of the peaks.
 *
 *   build/bench/gpu [device=cuda0] [prompt=512] [depth=0] [generate=128] [repeat=5] MODEL.gguf … */
#include "tenon/llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

/* Median time of a graph with one op, in seconds. The sources are filled with small random numbers. */
static tn_status time_op(const char *device, tn_arena *arena, tn_tensor *node, tn_tensor *const *sources,
                         int n_sources, double *seconds) {
    tn_graph *graph;
    tn_sched *sched;
    TN_TRY(tn_graph_of(arena, tn_output(node), &graph));
    TN_TRY(tn_sched_new(&(tn_sched_params){.devices = {device}}, &sched));
    tn_status status = TN_OK;
    tn_buffer *buffers[2] = {NULL, NULL};
    for (int i = 0; i < n_sources && status == TN_OK; i++) {
        tn_buffer_type *type = tn_device_buffer_type(tn_stream_device(tn_sched_stream(sched, 0)));
        status = tn_buffer_new(type, tn_buffer_type_tensor_size(type, sources[i]), &buffers[i]);
        if (status == TN_OK) tn_buffer_set_usage(buffers[i], TN_USAGE_WEIGHTS);
        if (status == TN_OK) status = tn_buffer_bind(buffers[i], sources[i], 0);
        enum { PIECE = 1 << 20 };
        static uint16_t noise[PIECE / 2];
        for (int k = 0; k < PIECE / 2; k++)
            noise[k] = (uint16_t)(0x3c00 ^ (rand() & 0x83ff)); /* ±1 … ±2 as f16 or bf16 halves */
        for (size_t at = 0; at < tn_nbytes(sources[i]) && status == TN_OK; at += PIECE)
            status = tn_tensor_set_at(sources[i], noise, at,
                                      tn_nbytes(sources[i]) - at < PIECE ? tn_nbytes(sources[i]) - at : PIECE);
    }
    double times[9];
    for (int i = -3; i < 9 && status == TN_OK; i++) {
        uint64_t begin = tn_time_ns();
        status = tn_sched_run(sched, graph);
        if (i >= 0) times[i] = (double)(tn_time_ns() - begin) * 1e-9;
    }
    if (status == TN_OK) *seconds = median(times, 9);
    tn_sched_free(sched);
    for (int i = 0; i < 2; i++) tn_buffer_free(buffers[i]);
    return status;
}

/* Read bandwidth (bytes per second) by summing rows, copy bandwidth, and the rate of a bf16 mat-mul. */
static tn_status measure_card(const char *device, double *read, double *copy, double *flops) {
    tn_arena *arena;
    double seconds;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &arena));
    tn_tensor *x = tn_tensor_nd(arena, TN_F32, 16384, 65536); /* 4 GiB */
    tn_status status = time_op(device, arena, tn_sum_rows(arena, x), &x, 1, &seconds);
    *read = (double)tn_nbytes(x) / seconds;
    if (status == TN_OK) {
        tn_arena_reset(arena);
        x = tn_tensor_nd(arena, TN_F32, 16384, 65536);
        status = time_op(device, arena, tn_dup(arena, x), &x, 1, &seconds);
        *copy = 2 * (double)tn_nbytes(x) / seconds;
    }
    if (status == TN_OK) {
        tn_arena_reset(arena);
        tn_tensor *pair[2] = {tn_tensor_nd(arena, TN_BF16, 8192, 8192), tn_tensor_nd(arena, TN_F32, 8192, 8192)};
        status = time_op(device, arena, tn_mul_mat(arena, pair[0], pair[1]), pair, 2, &seconds);
        *flops = 2.0 * 8192 * 8192 * 8192 / seconds;
    }
    tn_arena_free(arena);
    return status;
}

/* Bytes per second from pinned memory to the device. */
static tn_status measure_upload(const char *name, double *rate) {
    enum { BYTES = 256 << 20 };
    tn_device *device;
    tn_stream *stream = NULL;
    tn_buffer *from = NULL, *to = NULL;
    tn_arena *arena = NULL;
    double times[9];
    TN_TRY(tn_device_find(name, &device));
    tn_buffer_type *pinned = tn_device_host_buffer_type(device);
    if (!pinned) return tn_fail(TN_E_UNSUPPORTED, "%s offers no pinned memory", name);
    tn_status status = tn_stream_new(device, NULL, &stream);
    if (status == TN_OK) status = tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena);
    tn_tensor *t = status == TN_OK ? tn_tensor_nd(arena, TN_F32, BYTES / 4) : NULL;
    if (status == TN_OK) status = tn_buffer_new(pinned, BYTES, &from);
    if (status == TN_OK) status = tn_buffer_new(tn_device_buffer_type(device), BYTES, &to);
    if (status == TN_OK) status = tn_buffer_bind(to, t, 0);
    for (int i = -2; i < 9 && status == TN_OK; i++) {
        uint64_t begin = tn_time_ns();
        status = tn_stream_set_async(stream, t, tn_buffer_base(from), 0, BYTES);
        if (status == TN_OK) status = tn_stream_synchronize(stream);
        if (i >= 0) times[i] = (double)(tn_time_ns() - begin) * 1e-9;
    }
    if (status == TN_OK) *rate = BYTES / median(times, 9);
    tn_buffer_free(from);
    tn_buffer_free(to);
    tn_arena_free(arena);
    tn_stream_free(stream);
    return status;
}

/* Bytes of weights read per token: all but the embedding, and only the experts in use. */
static double bytes_per_token(const tn_model *model) {
    tn_model_info info = tn_model_get_info(model);
    double bytes = 0, table = 0;
    bool output = false;
    for (uint64_t i = 0; i < tn_gguf_tensor_count(tn_model_file(model)); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(tn_model_file(model), i);
        if (strcmp(t->name, "token_embd.weight") == 0)
            table = (double)t->size;
        else if (info.n_expert && strstr(t->name, "_exps."))
            bytes += (double)t->size * info.n_expert_used / info.n_expert;
        else
            bytes += (double)t->size;
        output = output || strcmp(t->name, "output.weight") == 0;
    }
    return output ? bytes : bytes + table;
}

typedef struct settings {
    const char *device;
    int prompt, depth, generate, repeat;
} settings;

static tn_status run_model(const settings *s, const char *path, double ceiling, double bus) {
    tn_model *model;
    tn_session *session = NULL;
    TN_TRY(tn_model_open(path, NULL, &model));
    tn_session_params p = tn_session_params_default();
    p.devices[0] = s->device;
    p.n_ctx = s->prompt + s->depth + s->generate + 16;
    p.n_ctx = (p.n_ctx + 255) / 256 * 256;
    if (s->depth == 0 && p.n_ctx > 1024) p.n_ctx = 1024;
    uint64_t begin = tn_time_ns();
    tn_status status = tn_session_open(model, &p, &session);
    double load = (double)(tn_time_ns() - begin) * 1e-9;
    tn_model_info info = tn_model_get_info(model);
    tn_token *tokens = calloc(16384, sizeof *tokens);
    for (int i = 0; i < 16384; i++) tokens[i] = (tn_token)((unsigned)i * 7919u % (unsigned)info.n_vocab);
    double prefill[16] = {0}, decode[16] = {0};
    for (int r = -1; r < s->repeat && status == TN_OK; r++) {
        tn_session_clear(session);
        begin = tn_time_ns();
        status = tn_session_decode(session, &(tn_batch){.n_tokens = s->prompt, .tokens = tokens});
        if (r >= 0) prefill[r] = s->prompt / ((double)(tn_time_ns() - begin) * 1e-9);
        for (int done = s->prompt; done < s->depth && status == TN_OK; done += 512)
            status = tn_session_decode(
                session, &(tn_batch){.n_tokens = s->depth - done < 512 ? s->depth - done : 512, .tokens = tokens});
        if (s->depth == 0) tn_session_clear(session);
        /* Greedy decoding. */
        tn_token next = tokens[0];
        for (int i = -4; i < s->generate && status == TN_OK; i++) {
            if (i == 0) begin = tn_time_ns();
            status = tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &next, .argmax = true});
            next = tn_session_argmax(session, -1);
        }
        if (r >= 0) decode[r] = s->generate / ((double)(tn_time_ns() - begin) * 1e-9);
    }
    if (status == TN_OK) {
        double d = median(decode, s->repeat), f = median(prefill, s->repeat);
        printf("%-40s depth %5d  decode %8.1f t/s (%5.1f%% of read)  prefill %d: %9.1f t/s  load %.2f s (%.2f GB/s, "
               "%.0f%% of the bus)\n",
               path, s->depth, d, 100 * d * bytes_per_token(model) / ceiling, s->prompt, f, load,
               (double)info.bytes * 1e-9 / load, 100 * (double)info.bytes / load / bus);
        fflush(stdout);
    }
    free(tokens);
    tn_session_free(session);
    tn_model_close(model);
    return status;
}

int main(int argc, char **argv) {
    settings s = {"cuda0", 512, 0, 128, 5};
    double read = 0, copy = 0, flops = 0, bus = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "device=", 7) == 0) s.device = argv[i] + 7;
        if (sscanf(argv[i], "prompt=%d", &s.prompt) == 1 || sscanf(argv[i], "depth=%d", &s.depth) == 1 ||
            sscanf(argv[i], "generate=%d", &s.generate) == 1 || sscanf(argv[i], "repeat=%d", &s.repeat) == 1)
            continue;
    }
    if (s.repeat < 1 || s.repeat > 16 || s.prompt < 1 || s.prompt > 16384)
        return fprintf(stderr, "gpu: repeat must be 1 to 16, prompt 1 to 16384\n"), 2;
    if (measure_card(s.device, &read, &copy, &flops) != TN_OK) return fprintf(stderr, "gpu: %s\n", tn_error()), 1;
    if (measure_upload(s.device, &bus) != TN_OK) return fprintf(stderr, "gpu: %s\n", tn_error()), 1;
    printf("%s: read %.2f TB/s, copy %.2f TB/s, bf16 8192³ %.0f TFLOP/s, upload %.1f GB/s\n", s.device, read * 1e-12,
           copy * 1e-12, flops * 1e-12, bus * 1e-9);
    double ceiling = read > copy ? read : copy;
    int bad = 0;
    for (int i = 1; i < argc; i++) {
        if (strchr(argv[i], '=')) continue;
        if (run_model(&s, argv[i], ceiling, bus) != TN_OK)
            bad = 1, fprintf(stderr, "gpu: %s: %s\n", argv[i], tn_error());
    }
    return bad;
}

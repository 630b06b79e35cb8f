/* GPU benchmark: measured peaks of the card, then tokens per second of models and their share of the peaks.
 *
 *   build/bench/gpu [device=cuda0] [prompt=512] [depth=0] [generate=128] [repeat=5] [sequences=1,8,32]
 *                   [repeatable=1] [ubatch=0] MODEL.gguf …
 *
 * With sequences=…: so many sequences have prompts of `prompt` tokens, then generate `generate` tokens each. */
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
    int sequences[16], n_sequences, ubatch;
    bool repeatable;
} settings;

static tn_token any_token(const tn_model *model, int i) {
    return (tn_token)((unsigned)i * 7919u % (unsigned)tn_model_get_info(model).n_vocab);
}

static tn_status run_model(const settings *s, const char *path, double ceiling, double bus) {
    tn_model *model;
    tn_session *session = NULL;
    TN_TRY(tn_model_open(path, NULL, &model));
    tn_session_params p = tn_session_params_default();
    p.devices[0] = s->device;
    p.n_ctx = s->prompt + s->depth + s->generate + 16;
    p.n_ctx = (p.n_ctx + 255) / 256 * 256;
    p.repeatable = s->repeatable;
    if (s->prompt > p.n_batch) p.n_batch = s->prompt;
    if (s->ubatch) p.n_ubatch = s->ubatch;
    uint64_t begin = tn_time_ns();
    tn_status status = tn_session_open(model, &p, &session);
    double load = (double)(tn_time_ns() - begin) * 1e-9;
    tn_model_info info = tn_model_get_info(model);
    tn_token *tokens = calloc(16384, sizeof *tokens);
    for (int i = 0; i < 16384; i++) tokens[i] = any_token(model, i);
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

/* ---- Many sequences ---- */

/* Prompts of n sequences, in batches as large as the session takes. */
static tn_status read_prompts(tn_session *session, int n, int prompt) {
    enum { MOST = 2048 };
    tn_token tokens[MOST];
    int32_t seqs[MOST];
    int32_t filled = 0;
    for (int i = 0; i < n * prompt; i++) {
        tokens[filled] = any_token(tn_session_model(session), i);
        seqs[filled++] = i / prompt;
        if (filled < MOST && i + 1 < n * prompt) continue;
        TN_TRY(tn_session_decode(session, &(tn_batch){.n_tokens = filled, .tokens = tokens, .seqs = seqs}));
        filled = 0;
    }
    return TN_OK;
}

/* `steps` greedy tokens of each of n sequences. */
static tn_status generate_all(tn_session *session, int n, int steps) {
    tn_token tokens[512];
    int32_t seqs[512];
    for (int i = 0; i < n; i++) {
        tokens[i] = any_token(tn_session_model(session), i);
        seqs[i] = i;
    }
    for (int k = 0; k < steps; k++) {
        TN_TRY(
            tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs, .argmax = true}));
        for (int i = 0; i < n; i++) tokens[i] = tn_session_argmax(session, i);
    }
    return TN_OK;
}

/* The least time of a step: reading weights and cache, or multiplying. */
static double least_step(const tn_session *session, int n, double depth, double ceiling, double flops) {
    tn_model_info info = tn_model_get_info(tn_session_model(session));
    tn_fit fit;
    double cache = 0, token = bytes_per_token(tn_session_model(session));
    if (tn_session_memory(session, &fit) != TN_OK) return 0;
    for (size_t i = 0; i < fit.n_devices; i++) cache += (double)fit.devices[i].cache;
    tn_fit_free(&fit);
    double read = token + cache / tn_session_get_params(session).n_ctx * depth * n;
    double weights_per_byte = (double)info.n_params / (double)info.bytes;
    double by_read = read / ceiling, by_matmul = 2 * weights_per_byte * token * n / flops;
    return by_read > by_matmul ? by_read : by_matmul;
}

static tn_status run_sequences(const settings *s, const char *path, int n, double ceiling, double flops) {
    enum { WARM_UP = 4 };
    tn_model *model;
    tn_session *session = NULL;
    TN_TRY(tn_model_open(path, NULL, &model));
    tn_session_params p = tn_session_params_default();
    p.devices[0] = s->device;
    p.n_seqs = n;
    p.repeatable = s->repeatable;
    if (s->ubatch) p.n_ubatch = s->ubatch;
    p.n_ctx = (s->prompt + s->generate + WARM_UP + 63) / 64 * 64 * n;
    tn_status status = tn_session_open(model, &p, &session);
    double prefill[16] = {0}, decode[16] = {0}, both[16] = {0};
    for (int r = -1; r < s->repeat && status == TN_OK; r++) {
        tn_session_clear(session);
        uint64_t begin = tn_time_ns();
        status = read_prompts(session, n, s->prompt);
        uint64_t read = tn_time_ns();
        if (status == TN_OK && r < 0)
            status = generate_all(session, n, WARM_UP);
        else if (status == TN_OK)
            status = generate_all(session, n, s->generate);
        uint64_t end = tn_time_ns();
        if (r < 0) continue;
        prefill[r] = 1e9 * n * s->prompt / (double)(read - begin);
        decode[r] = 1e9 * n * s->generate / (double)(end - read);
        both[r] = 1e9 * n * s->generate / (double)(end - begin);
    }
    if (status == TN_OK) {
        double d = median(decode, s->repeat),
               least = least_step(session, n, s->prompt + s->generate / 2.0, ceiling, flops);
        printf("%-40s %3d sequences %d/%d  decode %8.1f t/s (%5.1f%% of the limit)  prompts %9.1f t/s  "
               "with prompts %8.1f t/s\n",
               path, n, s->prompt, s->generate, d, 100 * least * d / n, median(prefill, s->repeat),
               median(both, s->repeat));
        fflush(stdout);
    }
    tn_session_free(session);
    tn_model_close(model);
    return status;
}

static bool read_sequences(settings *s, const char *list) {
    for (char *end; *list; list = *end == ',' ? end + 1 : end) {
        long n = strtol(list, &end, 10);
        if (end == list || n < 1 || n > 512 || s->n_sequences == 16 || (*end && *end != ',')) return false;
        s->sequences[s->n_sequences++] = (int)n;
    }
    return true;
}

int main(int argc, char **argv) {
    settings s = {"cuda0", 512, 0, 128, 5, {0}, 0, 0, false};
    double read = 0, copy = 0, flops = 0, bus = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "device=", 7) == 0) s.device = argv[i] + 7;
        if (sscanf(argv[i], "prompt=%d", &s.prompt) == 1 || sscanf(argv[i], "depth=%d", &s.depth) == 1 ||
            sscanf(argv[i], "generate=%d", &s.generate) == 1 || sscanf(argv[i], "repeat=%d", &s.repeat) == 1)
            continue;
        if (strcmp(argv[i], "repeatable=1") == 0) s.repeatable = true;
        if (sscanf(argv[i], "ubatch=%d", &s.ubatch) == 1 && s.ubatch < 0) s.ubatch = 0;
        if (strncmp(argv[i], "sequences=", 10) == 0 && !read_sequences(&s, argv[i] + 10))
            return fprintf(stderr, "gpu: sequences: a list of at most 16 numbers from 1 to 512\n"), 2;
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
        tn_status status = TN_OK;
        for (int k = 0; k < s.n_sequences && status == TN_OK; k++)
            status = run_sequences(&s, argv[i], s.sequences[k], ceiling, flops);
        if (s.n_sequences == 0) status = run_model(&s, argv[i], ceiling, bus);
        if (status != TN_OK) bad = 1, fprintf(stderr, "gpu: %s: %s\n", argv[i], tn_error());
    }
    return bad;
}

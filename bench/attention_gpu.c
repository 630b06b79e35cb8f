/* Attention of many sequences over page tables on a GPU: the time of a layer and the rate at which it reads the KV
 * cache.
 *
 *   build/bench/attention_gpu [device=cuda0] [head=128] [heads=32] [kv=8] [page=64] [sequences=1,8,32,64,256]
 *                             [cells=128,2048,32768] [types=f16,q8_0,fp8] [tokens=1] [chunk=0] [repeatable=0]
 *                             [mib=24000]
 *
 * Each sequence has `cells` cells and `tokens` queries at its end. chunk=N: the first sequence has N queries instead.
 * Cases that need more than `mib` MiB are left out. Layers run one after the other in one program, each with a cache
 * of its own, so that no cache of the GPU holds what is read. */
#include "tenon/backend.h"
#include "tenon/sched.h"
#include "tenon/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 16, REPEATS = 7 };

static const char *text_option(int argc, char **argv, const char *name, const char *otherwise) {
    const size_t n = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') return argv[i] + n + 1;
    return otherwise;
}
static int64_t number_option(int argc, char **argv, const char *name, int64_t otherwise) {
    const char *text = text_option(argc, argv, name, NULL);
    return text ? atoll(text) : otherwise;
}

typedef struct bench_case {
    const char *device;
    int64_t head, heads, kv, page, sequences, cells, tokens, chunk, memory;
    tn_type type;
    bool repeatable;
} bench_case;

typedef struct bench_problem {
    tn_arena *arena, *data;
    tn_sched *sched;
    tn_graph *graph;
    tn_buffer *buffers[2 * MOST_LAYERS];
    tn_tensor *q, *q_pos, *pages;
    int n_buffers;
    int64_t layers, rows;
} bench_problem;

static tn_status new_cache(const bench_case *c, bench_problem *p, tn_tensor **out) {
    tn_buffer_type *type = tn_device_buffer_type(tn_stream_device(tn_sched_stream(p->sched, 0)));
    const int64_t pages = (c->cells + c->page - 1) / c->page;
    tn_tensor *t = *out = tn_tensor_nd(p->arena, c->type, c->head, c->kv, pages * c->page * c->sequences);
    TN_TRY(tn_arena_status(p->arena));
    TN_TRY(tn_buffer_new(type, tn_buffer_type_tensor_size(type, t), &p->buffers[p->n_buffers]));
    TN_TRY(tn_buffer_bind(p->buffers[p->n_buffers++], t, 0));
    enum { PIECE = 1 << 22 };
    static uint16_t noise[PIECE / 2];
    for (int i = 0; i < PIECE / 2; i++) noise[i] = (uint16_t)(0x3000 ^ (rand() & 0x83ff));
    for (size_t at = 0; at < tn_nbytes(t); at += PIECE)
        TN_TRY(tn_tensor_set_at(t, noise, at, tn_nbytes(t) - at < PIECE ? tn_nbytes(t) - at : PIECE));
    return TN_OK;
}
/* Pages in random order. */
static tn_status set_inputs(const bench_case *c, bench_problem *p) {
    const int64_t runs = (c->cells + c->page - 1) / c->page, n = runs * c->sequences;
    int32_t *q_pos = tn_tensor_nd(p->data, TN_I32, 2, p->rows)->data, *order = tn_tensor_nd(p->data, TN_I32, n)->data;
    tn_page_run *table = tn_tensor_nd(p->data, TN_I32, 4, 1 + runs, c->sequences)->data;
    float *q = tn_tensor_nd(p->data, TN_F32, tn_nelements(p->q))->data;
    TN_TRY(tn_arena_status(p->data));
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t other = rand() % (i + 1);
        const int32_t was = order[i];
        order[i] = order[other], order[other] = was;
    }
    for (int64_t s = 0, row = 0, next = 0; s < c->sequences; s++) {
        const int64_t tokens = s == 0 && c->chunk ? c->chunk : c->tokens;
        for (int64_t t = 0; t < tokens; t++, row++) {
            q_pos[2 * row] = (int32_t)(c->cells - tokens + t);
            q_pos[2 * row + 1] = (int32_t)s;
        }
        tn_page_run *runs_of = table + s * (1 + runs);
        runs_of[0] = (tn_page_run){(int32_t)runs, 0, 0, 0};
        for (int64_t i = 0; i < runs; i++, next++)
            runs_of[1 + i] =
                (tn_page_run){(int32_t)(order[next] * c->page), (int32_t)c->page, (int32_t)(i * c->page), 1};
    }
    for (int64_t i = 0; i < tn_nelements(p->q); i++) q[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
    TN_TRY(tn_tensor_set(p->q, q));
    TN_TRY(tn_tensor_set(p->q_pos, q_pos));
    return tn_tensor_set(p->pages, table);
}
static tn_status make_problem(const bench_case *c, bench_problem *p) {
    const int64_t runs = (c->cells + c->page - 1) / c->page;
    p->rows = c->tokens * c->sequences + (c->chunk ? c->chunk - c->tokens : 0);
    TN_TRY(
        tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true, .repeatable = c->repeatable}, &p->arena));
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = 256 << 20}, &p->data));
    TN_TRY(tn_sched_new(&(tn_sched_params){.devices = {c->device}}, &p->sched));
    p->q = tn_input(p->arena, TN_F32, c->head, c->heads, p->rows);
    p->q_pos = tn_input(p->arena, TN_I32, 2, p->rows);
    p->pages = tn_input(p->arena, TN_I32, 4, 1 + runs, c->sequences);
    tn_tensor *x = p->q;
    for (int64_t i = 0; i < p->layers; i++) {
        tn_attention_sources s = {.q = x, .q_pos = p->q_pos, .pages = p->pages};
        TN_TRY(new_cache(c, p, &s.k));
        TN_TRY(new_cache(c, p, &s.v));
        x = tn_attention(p->arena, &s, &(tn_attention_params){.scale = 0.09f, .causal = 1, .page = (int32_t)c->page});
        TN_TRY(tn_sched_pin(p->sched, x, 0));
    }
    TN_TRY(tn_arena_status(p->arena));
    TN_TRY(tn_graph_of(p->arena, tn_output(x), &p->graph));
    TN_TRY(tn_sched_reserve(p->sched, p->graph));
    return set_inputs(c, p);
}
static tn_status time_problem(const bench_problem *p, double *seconds) {
    *seconds = 1e9;
    for (int i = -3; i < REPEATS; i++) {
        const uint64_t begin = tn_time_ns();
        TN_TRY(tn_sched_run(p->sched, p->graph));
        const double now = (double)(tn_time_ns() - begin) * 1e-9;
        if (i >= 0 && now < *seconds) *seconds = now;
    }
    return TN_OK;
}
static tn_status run_case(const bench_case *c) {
    bench_problem p = {0};
    const int64_t row = c->head / tn_type_block(c->type) * (int64_t)tn_type_bytes(c->type),
                  cache = 2 * row * c->kv * c->cells * c->sequences;
    if (cache > c->memory) return TN_OK;
    p.layers = c->memory / cache < MOST_LAYERS ? c->memory / cache : MOST_LAYERS;
    double seconds = 0;
    tn_status status = make_problem(c, &p);
    if (status == TN_OK) status = time_problem(&p, &seconds);
    const double layer = seconds / (double)p.layers;
    if (status == TN_OK)
        printf("%-5s %4lld sequences of %6lld: %8.1f us a layer, %6.0f GB/s\n", tn_type_name(c->type),
               (long long)c->sequences, (long long)c->cells, layer * 1e6, (double)cache / layer * 1e-9);
    else
        fprintf(stderr, "%lld sequences of %lld: %s\n", (long long)c->sequences, (long long)c->cells, tn_error());
    fflush(stdout);
    tn_sched_free(p.sched);
    for (int i = 0; i < p.n_buffers; i++) tn_buffer_free(p.buffers[i]);
    tn_arena_free(p.data);
    tn_arena_free(p.arena);
    return status;
}

int main(int argc, char **argv) {
    bench_case c = {.device = text_option(argc, argv, "device", "cuda0"),
                    .head = number_option(argc, argv, "head", 128),
                    .heads = number_option(argc, argv, "heads", 32),
                    .kv = number_option(argc, argv, "kv", 8),
                    .page = number_option(argc, argv, "page", 64),
                    .tokens = number_option(argc, argv, "tokens", 1),
                    .chunk = number_option(argc, argv, "chunk", 0),
                    .repeatable = number_option(argc, argv, "repeatable", 0) != 0,
                    .memory = number_option(argc, argv, "mib", 24000) << 20};
    const char *types = text_option(argc, argv, "types", "f16,q8_0,fp8"),
               *sequences = text_option(argc, argv, "sequences", "1,8,32,64,256"),
               *cells = text_option(argc, argv, "cells", "128,2048,32768");
    if (c.head < 8 || c.kv < 1 || c.heads % c.kv || c.page < 1 || c.tokens < 1) return 2;
    for (const char *t = types; t; t = strchr(t, ',') ? strchr(t, ',') + 1 : NULL) {
        char name[16] = "";
        snprintf(name, sizeof name, "%.*s", (int)strcspn(t, ","), t);
        if (tn_type_parse(name, &c.type) != TN_OK) return 2;
        for (const char *s = sequences; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL)
            for (const char *n = cells; n; n = strchr(n, ',') ? strchr(n, ',') + 1 : NULL) {
                c.sequences = atoll(s);
                c.cells = atoll(n);
                if (c.sequences < 1 || c.cells < c.tokens || c.cells < c.chunk) return 2;
                if (run_case(&c) != TN_OK) return 1;
            }
    }
    return 0;
}

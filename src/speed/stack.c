/* Stacks of transformer layers for measuring, built as a language model's graph is. */
#include "speed/speed_internal.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

/* ---- Building ---- */

typedef tn__stack_layer stack_layer;

enum { LAYER_TENSORS = 14, LAYER_NODES = 48, MATRICES = 7, SMALL_WEIGHTS = 5 };
/* Cells of a page, and pages for a number of cells. */
enum { STACK_PAGE = 64 };
static int64_t stack_runs(int64_t cells) { return (cells + STACK_PAGE - 1) / STACK_PAGE; }

/* Matrices: in memory for weights, the repacked one where the device prefers it. */
static tn_status make_weights(tn_arena *a, const tn__stack_shape *s, stack_layer *l) {
    const int64_t experts = s->experts ? s->experts : 1, q = s->heads * s->head, kv = s->kv_heads * s->head;
    l->attn_norm = tn_tensor_nd(a, TN_F32, s->width);
    l->ffn_norm = tn_tensor_nd(a, TN_F32, s->width);
    l->q = tn_tensor_nd(a, s->type, s->width, q);
    l->k = tn_tensor_nd(a, s->type, s->width, kv);
    l->v = tn_tensor_nd(a, s->type, s->width, kv);
    l->o = tn_tensor_nd(a, s->type, q, s->width);
    l->up = tn_tensor_nd(a, s->type, s->width, s->ffn, experts);
    l->gate = tn_tensor_nd(a, s->type, s->width, s->ffn, experts);
    l->down = tn_tensor_nd(a, s->type, s->ffn, s->width, experts);
    if (s->experts) { /* most models with experts normalize the heads of q and k */
        l->router = tn_tensor_nd(a, TN_F32, s->width, s->experts);
        l->q_norm = tn_tensor_nd(a, TN_F32, s->head);
        l->k_norm = tn_tensor_nd(a, TN_F32, s->head);
    }
    l->k_cache = tn_tensor_nd(a, TN_F16, kv, s->cells);
    l->v_cache = tn_tensor_nd(a, TN_F16, kv, s->cells);
    return tn_arena_status(a);
}

static tn_tensor *as_heads(tn_arena *a, tn_tensor *x, int64_t size, int64_t heads) {
    if (!x) return NULL;
    return tn_view(a, x, 3, (const int64_t[]){size, heads, x->ne[1]}, (const size_t[]){4, (size_t)size * 4, x->nb[1]},
                   0);
}
static tn_tensor *as_rows(tn_arena *a, tn_tensor *x) {
    if (!x) return NULL;
    return tn_view(a, x, 2, (const int64_t[]){x->ne[0] * x->ne[1], x->ne[2]}, (const size_t[]){4, x->nb[2]}, 0);
}

static tn_tensor *stack_attention(tn__stack *st, const stack_layer *l, tn_tensor *x, tn_status *status) {
    const tn__stack_shape *s = &st->shape;
    tn_arena *a = st->arena;
    tn_tensor *q = tn_mul_mat(a, l->q, x), *k = tn_mul_mat(a, l->k, x), *v = tn_mul_mat(a, l->v, x);
    tn_tensor *now[] = {q, k, v};
    for (size_t i = 0; i < TN__COUNT(now) && *status == TN_OK && now[i]; i++)
        *status = tn_graph_add(st->graph, now[i]);
    const tn_rope_params rope = tn_rope_params_default((int32_t)s->head, TN_ROPE_NORMAL);
    q = as_heads(a, q, s->head, s->heads);
    k = as_heads(a, k, s->head, s->kv_heads);
    if (l->q_norm) q = tn_rms_norm(a, q, l->q_norm, 1e-5f);
    if (l->k_norm) k = tn_rms_norm(a, k, l->k_norm, 1e-5f);
    q = tn_rope(a, q, st->positions, NULL, &rope);
    k = tn_rope(a, k, st->positions, NULL, &rope);
    v = as_heads(a, v, s->head, s->kv_heads);
    tn_tensor *kc = tn_set_rows(a, l->k_cache, as_rows(a, k), st->cell_rows);
    tn_tensor *vc = tn_set_rows(a, l->v_cache, as_rows(a, v), st->cell_rows);
    tn_attention_sources src = {.q = q,
                                .k = tn_reshape(a, kc, s->head, s->kv_heads, s->cells),
                                .v = tn_reshape(a, vc, s->head, s->kv_heads, s->cells),
                                .q_pos = st->q_pos,
                                .pages = st->pages};
    const tn_attention_params p = {.scale = 1 / sqrtf((float)s->head), .causal = 1, .page = STACK_PAGE};
    tn_tensor *y = tn_attention(a, &src, &p);
    return y ? tn_mul_mat(a, l->o, tn_reshape(a, y, y->ne[0] * y->ne[1], y->ne[2])) : NULL;
}

static tn_tensor *stack_ffn(tn__stack *st, const stack_layer *l, tn_tensor *x) {
    const tn__stack_shape *s = &st->shape;
    tn_arena *a = st->arena;
    if (!x) return NULL;
    if (!s->experts) return tn_mul_mat(a, l->down, tn_swiglu(a, tn_mul_mat(a, l->gate, x), tn_mul_mat(a, l->up, x)));
    const int64_t tokens = x->ne[1];
    tn_tensor *probs = tn_soft_max(a, tn_mul_mat(a, l->router, x), NULL, NULL, 1, 0);
    tn_tensor *ids = tn_top_k(a, probs, (int)s->used);
    tn_tensor *weights =
        tn_reshape(a, tn_get_rows(a, tn_reshape(a, probs, 1, s->experts, tokens), ids), s->used, tokens);
    weights = tn_div(a, weights, tn_sum_rows(a, weights));
    tn_tensor *row = tn_reshape(a, x, s->width, 1, tokens);
    tn_tensor *up = tn_mul_mat_id(a, l->up, row, ids), *gate = tn_mul_mat_id(a, l->gate, row, ids);
    return tn_mix(a, tn_mul_mat_id(a, l->down, tn_swiglu(a, gate, up), ids), weights);
}

/* Up to this many rows of the feed-forward part are computed together on the CPU, as in a session. */
enum { CPU_CHUNK = 128 };

static tn_tensor *stack_ffn_chunks(tn__stack *st, const stack_layer *l, tn_tensor *x) {
    tn_arena *a = st->arena;
    tn_device *device = tn_stream_device(tn_sched_stream(st->sched, 0));
    const int64_t rows = st->shape.rows, chunk = tn_device_get_kind(device) == TN_DEVICE_CPU ? CPU_CHUNK : rows;
    for (int64_t begin = 0; begin < rows && x; begin += chunk) {
        const int64_t n = TN__MIN(chunk, rows - begin);
        const size_t offset = (size_t)begin * x->nb[1];
        tn_tensor *part =
            rows <= chunk ? x
                          : tn_view(a, x, 2, (const int64_t[]){x->ne[0], n}, (const size_t[]){4, x->nb[1]}, offset);
        tn_tensor *y = stack_ffn(st, l, tn_rms_norm(a, part, l->ffn_norm, 1e-5f));
        x = rows <= chunk ? tn_add(a, x, y) : tn_acc(a, x, y, x->nb[1], x->nb[2], x->nb[3], offset);
    }
    return x;
}

static tn_status build_stack(tn__stack *st) {
    const tn__stack_shape *s = &st->shape;
    tn_arena *a = st->arena;
    tn_status status = TN_OK;
    /* An output's memory is not used again: the values are the same in every run. */
    st->x = tn_output(tn_input(a, TN_F32, s->width, s->rows));
    st->positions = tn_input(a, TN_I32, s->rows);
    st->q_pos = tn_input(a, TN_I32, 2, s->rows);
    st->cell_rows = tn_input(a, TN_I32, s->rows);
    st->pages = tn_input(a, TN_I32, 4, 1 + stack_runs(s->cells));
    tn_tensor *x = st->x;
    for (int64_t i = 0; i < st->used_layers; i++) {
        const stack_layer *l = &st->layers[i];
        tn_tensor *y = stack_attention(st, l, tn_rms_norm(a, x, l->attn_norm, 1e-5f), &status);
        x = stack_ffn_chunks(st, l, tn_add(a, y, x));
    }
    st->result = tn_output(tn_sum_rows(a, x));
    TN_TRY(tn_arena_status(a));
    TN_TRY(status);
    return tn_graph_add(st->graph, st->result);
}

/* ---- Memory and data ---- */

/* Random numbers between -1 and 1. */
static void fill_random(float *to, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        to[i] = (float)(int32_t)(seed >> 32) * 0x1p-31f;
    }
}

/* A few rows that are repeated over all of a tensor. */
typedef struct row_pattern {
    char *bytes;
    size_t size;
} row_pattern;

static tn_status read_pattern(void *user, size_t offset, void *to, size_t size) {
    const row_pattern *p = user;
    for (size_t done = 0; done < size;) {
        const size_t at = (offset + done) % p->size, n = TN__MIN(p->size - at, size - done);
        memcpy((char *)to + done, p->bytes + at, n);
        done += n;
    }
    return TN_OK;
}

/* Weights that arithmetic treats as real ones: zeros would take less power, and a GPU would be faster. Quantizing all
 * of them takes too long, so a few rows are repeated. Routers must differ in every row, or all tokens would choose
 * the same experts. */
static tn_status fill_weights(tn_tensor *t) {
    enum { SAME_ROWS = 16, SMALL = 1 << 20 };
    const int64_t rows = tn_nrows(t),
                  distinct = t->type == TN_F32 && tn_nelements(t) <= SMALL ? rows : TN__MIN(rows, SAME_ROWS);
    size_t row;
    if (!tn_type_row_bytes(t->type, t->ne[0], &row))
        return tn_fail(TN_E_SHAPE, "a row is not a multiple of the block");
    float *values = tn_malloc((size_t)(distinct * t->ne[0]) * sizeof *values);
    row_pattern pattern = {.bytes = tn_malloc((size_t)distinct * row), .size = (size_t)distinct * row};
    tn_status status = values && pattern.bytes ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) {
        fill_random(values, distinct * t->ne[0], (uint64_t)t->ne[1]);
        for (int64_t i = 0; i < distinct * t->ne[0]; i++) values[i] *= 1.7f / sqrtf((float)t->ne[0]);
        status = tn_type_from_f32(t->type, values, pattern.bytes, distinct * t->ne[0], NULL);
    }
    if (status == TN_OK) status = tn_tensor_load(t, read_pattern, &pattern);
    tn_free(values);
    tn_free(pattern.bytes);
    return status;
}

static tn_buffer_type *memory_for_weights(tn_device *device, const tn_tensor *t) {
    tn_buffer_type *type;
    for (size_t i = 0; (type = tn_device_extra_buffer_type(device, i)); i++)
        if (tn_buffer_type_wants(type, t, 1)) return type;
    return tn_device_buffer_type(device);
}

/* Binds tensors to one new buffer of their type. */
static tn_status bind_all(tn_buffer_type *type, tn_tensor *const *tensors, size_t n, tn_buffer_usage usage,
                          tn_buffer **buffer) {
    size_t size = 0, at = 0;
    const size_t align = tn_buffer_type_alignment(type);
    for (size_t i = 0; i < n; i++)
        if (tensors[i] &&
            !tn__add_size(size, tn__align_up(tn_buffer_type_tensor_size(type, tensors[i]), align), &size))
            return tn_fail(TN_E_OVERFLOW, "the measuring graph is too large");
    TN_TRY(tn_buffer_new(type, size, buffer));
    tn_buffer_set_usage(*buffer, usage);
    for (size_t i = 0; i < n; i++) {
        if (!tensors[i]) continue;
        TN_TRY(tn_buffer_bind(*buffer, tensors[i], at));
        at += tn__align_up(tn_buffer_type_tensor_size(type, tensors[i]), align);
    }
    return TN_OK;
}

static tn_status bind_weights(tn__stack *st) {
    const size_t n = (size_t)st->shape.layers;
    tn_device *device = tn_stream_device(tn_sched_stream(st->sched, 0));
    tn_tensor **list = tn_calloc(n * LAYER_TENSORS + 1, sizeof(tn_tensor *));
    if (!list) return TN_E_NOMEM;
    tn_tensor **matrices = list, **small = list + n * MATRICES, **caches = small + n * SMALL_WEIGHTS;
    for (size_t i = 0; i < n; i++) {
        const stack_layer *l = &st->layers[i];
        memcpy(matrices + i * MATRICES, (tn_tensor *[]){l->q, l->k, l->v, l->o, l->up, l->gate, l->down},
               MATRICES * sizeof *list);
        memcpy(small + i * SMALL_WEIGHTS, (tn_tensor *[]){l->attn_norm, l->ffn_norm, l->router, l->q_norm, l->k_norm},
               SMALL_WEIGHTS * sizeof *list);
        memcpy(caches + i * 2, (tn_tensor *[]){l->k_cache, l->v_cache}, 2 * sizeof *list);
    }
    tn_buffer_type *plain = tn_device_buffer_type(device);
    tn_status status = bind_all(memory_for_weights(device, st->layers[0].up), matrices, n * MATRICES,
                                TN_USAGE_WEIGHTS, &st->buffers[0]);
    if (status == TN_OK) status = bind_all(plain, small, n * SMALL_WEIGHTS, TN_USAGE_WEIGHTS, &st->buffers[1]);
    if (status == TN_OK) status = bind_all(plain, caches, n * 2, TN_USAGE_ANY, &st->buffers[2]);
    tn_free(list);
    return status;
}

static tn_status fill_stack(tn__stack *st) {
    for (int64_t i = 0; i < st->shape.layers; i++) {
        const stack_layer *l = &st->layers[i];
        tn_tensor *const list[] = {l->q,    l->k,         l->v,        l->o,      l->up,     l->gate,
                                   l->down, l->attn_norm, l->ffn_norm, l->router, l->q_norm, l->k_norm};
        for (size_t k = 0; k < TN__COUNT(list); k++)
            if (list[k]) TN_TRY(fill_weights(list[k]));
    }
    return tn_buffer_clear(st->buffers[2], 0);
}

/* ---- Public within the module ---- */

double tn__stack_weight_bytes(const tn__stack_shape *s) {
    const double experts = s->experts ? (double)s->experts : 1;
    const double weights = (double)s->width * (double)s->head * (double)(2 * s->heads + 2 * s->kv_heads) +
                           3 * experts * (double)s->width * (double)s->ffn;
    return (double)s->layers * weights * (double)tn_type_bytes(s->type) / (double)tn_type_block(s->type);
}

double tn__stack_bytes(const tn__stack_shape *s) {
    return tn__stack_weight_bytes(s) + 4.0 * (double)s->layers * (double)(s->kv_heads * s->head * s->cells);
}

tn_status tn__stack_new(tn_sched *sched, const tn__stack_shape *shape, tn__stack *st) {
    *st = (tn__stack){.shape = *shape, .sched = sched};
    const size_t n = (size_t)shape->layers;
    tn_status status = TN_E_NOMEM;
    if (!(st->layers = tn_calloc(n, sizeof *st->layers))) goto failed;
    tn_arena_params tensors = {.size = tn_arena_size_for(n * LAYER_TENSORS + 1, 1), .no_alloc = true};
    TN_TRY_GOTO(tn_arena_new(&tensors, &st->tensors), status, failed);
    for (size_t i = 0; i < n; i++) TN_TRY_GOTO(make_weights(st->tensors, shape, &st->layers[i]), status, failed);
    TN_TRY_GOTO(tn_arena_status(st->tensors), status, failed);
    TN_TRY_GOTO(bind_weights(st), status, failed);
    return TN_OK;
failed:
    tn__stack_free(st);
    return status;
}

/* All nodes must run on the device itself. */
static tn_status schedule_stack(tn__stack *st) {
    tn_tensor *const inputs[] = {st->x, st->positions, st->q_pos, st->cell_rows, st->pages};
    for (size_t i = 0; i < TN__COUNT(inputs); i++) TN_TRY(tn_sched_pin(st->sched, inputs[i], 0));
    tn_sched_info info;
    TN_TRY(tn_sched_describe(st->sched, st->graph, &info));
    if (info.splits != 1 || tn_sched_stream_of(st->sched, st->graph, st->result) != 0)
        return tn_fail(TN_E_UNSUPPORTED, "%s does not compute all of a transformer with %s weights",
                       tn_device_name(tn_stream_device(tn_sched_stream(st->sched, 0))), tn_type_name(st->shape.type));
    TN_TRY(tn_sched_reserve(st->sched, st->graph));
    return tn_sched_alloc(st->sched, st->graph);
}

static void drop_graph(tn__stack *st) {
    if (st->sched) tn_sched_reset(st->sched); /* waits, and forgets the graph */
    tn_arena_free(st->arena);
    tn_free(st->ints);
    tn_free(st->floats);
    st->arena = NULL;
    st->graph = NULL;
    st->ints = NULL;
    st->floats = NULL;
}

tn_status tn__stack_prepare(tn__stack *st, int64_t layers, int64_t rows) {
    drop_graph(st);
    st->used_layers = TN__MIN(layers, st->shape.layers);
    st->shape.rows = rows;
    const size_t n = (size_t)st->used_layers, chunks = (size_t)(rows + CPU_CHUNK - 1) / CPU_CHUNK;
    const size_t nodes = n * (LAYER_NODES + 24 * chunks) + 16, capacity = nodes + n * LAYER_TENSORS + 1;
    TN_TRY(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(nodes, capacity), .no_alloc = true}, &st->arena));
    TN_TRY(tn_graph_new(st->arena, capacity, &st->graph));
    TN_TRY(build_stack(st));
    TN_TRY(schedule_stack(st));
    if (!st->filled) TN_TRY(fill_stack(st));
    st->filled = true;
    st->ints = tn_calloc(3 * (size_t)rows + 4 * (size_t)(1 + stack_runs(st->shape.cells)), sizeof *st->ints);
    st->floats = tn_calloc((size_t)(rows * st->shape.width), sizeof *st->floats);
    if (!st->ints || !st->floats) return TN_E_NOMEM;
    fill_random(st->floats, rows * st->shape.width, 7);
    return tn_tensor_set(st->x, st->floats);
}

void tn__stack_free(tn__stack *st) {
    drop_graph(st);
    for (size_t i = 0; i < TN__COUNT(st->buffers); i++) tn_buffer_free(st->buffers[i]);
    tn_arena_free(st->tensors);
    tn_free(st->layers);
    *st = (tn__stack){0};
}

/* Cell i holds position i of sequence 0. Returns the number of runs. */
static int64_t fill_pages(int32_t *pages, int64_t cells) {
    const int64_t runs = stack_runs(cells);
    memcpy(pages, (int32_t[4]){(int32_t)runs}, sizeof(tn_page_run));
    for (int64_t i = 0; i < runs; i++) {
        const int32_t cell = (int32_t)(i * STACK_PAGE), count = (int32_t)TN__MIN(STACK_PAGE, cells - cell);
        memcpy(pages + 4 * (1 + i), (int32_t[4]){cell, count, cell, 1}, sizeof(tn_page_run));
    }
    return runs;
}

tn_status tn__stack_run(tn__stack *st, int64_t n_past) {
    const int64_t rows = st->shape.rows;
    if (n_past < 0 || n_past + rows > st->shape.cells)
        return tn_fail(TN_E_INVALID, "%lld cells do not fit the measuring graph", (long long)(n_past + rows));
    tn_stream *stream = tn_sched_stream(st->sched, 0);
    /* Not on the stack: after a failure the device may still be reading them. */
    int32_t *position = st->ints, *query = st->ints + rows, *pages = st->ints + 3 * rows;
    float *sums = st->floats; /* as many as rows: not more than the inputs it was filled with */
    for (int64_t i = 0; i < rows; i++) {
        position[i] = (int32_t)(n_past + i);
        query[2 * i] = (int32_t)(n_past + i);
        query[2 * i + 1] = 0;
    }
    const int64_t runs = fill_pages(pages, n_past + rows);
    const size_t n = (size_t)rows * sizeof(int32_t);
    TN_TRY(tn_stream_set_async(stream, st->positions, position, 0, n));
    TN_TRY(tn_stream_set_async(stream, st->cell_rows, position, 0, n));
    TN_TRY(tn_stream_set_async(stream, st->q_pos, query, 0, 2 * n));
    TN_TRY(tn_stream_set_async(stream, st->pages, pages, 0, (size_t)(1 + runs) * sizeof(tn_page_run)));
    TN_TRY(tn_sched_run_async(st->sched, st->graph));
    TN_TRY(tn_stream_get_async(stream, st->result, sums, 0, tn_nbytes(st->result)));
    TN_TRY(tn_stream_synchronize(stream));
    return tn_sched_synchronize(st->sched);
}

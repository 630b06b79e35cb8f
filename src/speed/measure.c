/* Measuring a device's peaks with stacks of transformer layers, in an order in which every step needs only what the
 * steps before it found:
 *
 *   read, read_mapped      patterns of plain reads and matrix × vector (read_rate.c)
 *   launch, run            layers so narrow that their bytes and operations do not count: the slope over the number
 *                          of layers is the cost of nodes, the rest that of a run
 *   move                   a chain of norms, gates and additions
 *   attention              narrow layers with many heads: the difference between a long and a short cache
 *   ramp                   layers of two sizes with 512 rows: what does not grow with the matrices
 *   multiply[type][rows]   wide layers, without the predicted time of all that is not a matmul
 *   experts, their launch  the same with experts, in relation to multiply; with one row for two numbers of experts
 *   link                   copies from host memory */
#include "speed/measure_internal.h"

#include "tenon/cpu.h"

#include "base/checked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The types of most model files, then those measured if there is time left. */
static const tn_type common_types[] = {TN_Q4_K, TN_Q6_K, TN_Q8_0, TN_F16,  TN_BF16,   TN_F32,    TN_Q4_0, TN_Q5_K,
                                       TN_Q3_K, TN_Q2_K, TN_Q5_0, TN_Q5_1, TN_IQ4_XS, TN_IQ4_NL, TN_Q4_1, TN_MXFP4};
enum { NEEDED_TYPES = 8 };

/* ---- Timing ---- */

static int compare_times(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

tn_status tn__measure_time(tn__measure *m, tn__stack *stack, int64_t n_past, double *seconds, double *best) {
    enum { WARM_UP = 3, MIN_RUNS = 4, MAX_RUNS = 512 };
    static const uint64_t enough_ns = 150000000;
    double times[MAX_RUNS];
    size_t n = 0;
    const uint64_t begin = tn_time_ns();
    for (int i = 0; n < MAX_RUNS; i++) {
        const uint64_t start = tn_time_ns();
        TN_TRY(tn__stack_run(stack, n_past));
        const uint64_t end = tn_time_ns();
        const bool slow = end - start > enough_ns / MIN_RUNS; /* long runs need no long warm-up */
        if (i >= WARM_UP || (slow && i > 0)) times[n++] = (double)(end - start) * 1e-9;
        if (n >= MIN_RUNS && end - begin > enough_ns) break;
        if (n >= 2 && end - begin > 8 * enough_ns) break;
    }
    (void)m;
    qsort(times, n, sizeof *times, compare_times);
    *seconds = times[n / 4];
    if (best) *best = times[0];
    return TN_OK;
}

static tn_status report_progress(tn__measure *m) {
    m->done++;
    if (m->params.progress && !m->params.progress(m->params.user, TN__MIN(m->done, m->total), m->total))
        return tn_fail(TN_E_ABORTED, "measuring %s was cancelled", tn_device_name(m->device));
    return TN_OK;
}

/* What a device cannot do, or has no memory for, stays 0. */
static tn_status tolerate(const tn__measure *m, tn_status status) {
    switch (status) {
    case TN_E_UNSUPPORTED:
    case TN_E_TYPE:
    case TN_E_DEVICE_MEMORY:
    case TN_E_TOO_BIG:
        tn_log(TN_LOG_INFO, "measuring %s: %s", tn_device_name(m->device), tn_error());
        tn_error_clear();
        return TN_OK;
    default: return status;
    }
}

static bool on_cpu(const tn__measure *m) { return tn_device_get_kind(m->device) == TN_DEVICE_CPU; }

/* What the peaks known so far predict for the stack's graph. */
static tn_status predict_stack(const tn__measure *m, tn__stack *stack, int64_t n_past, const tn_device_speed *speed,
                               tn_prediction *prediction) {
    tn_device_speed *speeds = tn_calloc(2, sizeof *speeds);
    if (!speeds) return TN_E_NOMEM;
    speeds[0] = *speed;
    tn_status status = tn__predict_with(m->sched, stack->graph, &(tn_predict_params){.n_past = n_past, .n_seqs = 1},
                                        speeds, prediction);
    tn_free(speeds);
    return status;
}

/* ---- Launches ---- */

static tn_status measure_launch_of(tn__measure *m, const tn__stack_shape *shape, int64_t rows, double *launch,
                                   double *run) {
    tn__stack stack;
    tn_prediction few = {0}, many = {0};
    double seconds[2] = {INFINITY, INFINITY}, now;
    const tn_device_speed nothing = {0};
    tn_status status = tn__stack_new(m->sched, shape, &stack);
    if (status != TN_OK) return status;
    /* Twice: the times are short, and work that disturbs all runs of one of them would change all other peaks. */
    for (int round = 0; round < 4; round++) {
        const int i = round % 2;
        TN_TRY_GOTO(tn__stack_prepare(&stack, i ? shape->layers : 2, rows), status, out);
        TN_TRY_GOTO(predict_stack(m, &stack, 0, &nothing, i ? &many : &few), status, out);
        TN_TRY_GOTO(tn__measure_time(m, &stack, 0, &now, NULL), status, out);
        seconds[i] = fmin(seconds[i], now);
    }
    *launch = fmax((seconds[1] - seconds[0]) / (double)(many.nodes - few.nodes), 0);
    if (run) *run = fmax(seconds[0] - (double)few.nodes * *launch, 0);
out:
    tn__stack_free(&stack);
    return status;
}

static tn_status measure_launches(tn__measure *m) {
    tn__stack_shape shape = {
        .type = TN_F16, .width = 256, .heads = 4, .kv_heads = 1, .head = 64, .ffn = 512, .layers = 18, .cells = 64};
    double *launch = m->speed->launch;
    TN_TRY(measure_launch_of(m, &shape, 1, &launch[TN_LAUNCH_DECODE], &m->speed->run));
    TN_TRY(measure_launch_of(m, &shape, 16, &launch[TN_LAUNCH_PREFILL], NULL));
    shape.experts = 8;
    shape.used = 2;
    shape.ffn = 256;
    launch[TN_LAUNCH_EXPERTS] = launch[TN_LAUNCH_DECODE];
    return measure_launch_of(m, &shape, 1, &launch[TN_LAUNCH_EXPERTS], NULL);
}

/* ---- Other ops ---- */

static tn_status measure_move(tn__measure *m) {
    enum { ROUNDS = 4, WIDTH = 4096, RUNS = 16 };
    const int64_t rows = on_cpu(m) ? 128 : 512; /* as many as a session computes together */
    tn_arena *arena = NULL;
    tn_graph *graph;
    double times[RUNS];
    tn_device_speed *speeds = tn_calloc(2, sizeof *speeds);
    tn_status status = TN_E_NOMEM;
    float *values = tn_malloc(sizeof(float) * WIDTH * (size_t)rows);
    if (!speeds || !values) goto out;
    for (size_t i = 0; i < (size_t)(WIDTH * rows); i++) values[i] = (float)(i % 97) * 0.01f - 0.5f;
    TN_TRY_GOTO(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(8 * ROUNDS + 8, 64), .no_alloc = true}, &arena),
        status, out);
    tn_tensor *x = tn_output(tn_input(arena, TN_F32, WIDTH, rows)), *w = tn_output(tn_input(arena, TN_F32, WIDTH)),
              *y = x;
    for (int i = 0; i < ROUNDS; i++) {
        tn_tensor *z = tn_rms_norm(arena, y, w, 1e-5f);
        y = tn_add(arena, tn_swiglu(arena, z, y), x);
    }
    TN_TRY_GOTO(tn_graph_of(arena, tn_output(y), &graph), status, out);
    TN_TRY_GOTO(tn_sched_pin(m->sched, x, 0), status, out);
    TN_TRY_GOTO(tn_sched_pin(m->sched, w, 0), status, out);
    TN_TRY_GOTO(tn_sched_reserve(m->sched, graph), status, out);
    TN_TRY_GOTO(tn_sched_alloc(m->sched, graph), status, out);
    TN_TRY_GOTO(tn_tensor_set(x, values), status, out);
    TN_TRY_GOTO(tn_tensor_set(w, values), status, out);
    for (int i = -3; i < RUNS; i++) {
        const uint64_t begin = tn_time_ns();
        TN_TRY_GOTO(tn_sched_run(m->sched, graph), status, out);
        if (i >= 0) times[i] = (double)(tn_time_ns() - begin) * 1e-9;
    }
    qsort(times, RUNS, sizeof *times, compare_times);
    tn_prediction p;
    TN_TRY_GOTO(tn__predict_with(m->sched, graph, &(tn_predict_params){0}, speeds, &p), status, out);
    const double spent = times[RUNS / 4] - m->speed->run - (double)p.nodes * m->speed->launch[TN_LAUNCH_PREFILL];
    m->speed->move = p.bytes / fmax(spent, times[RUNS / 4] / 4);
out:
    tn_sched_reset(m->sched);
    tn_arena_free(arena);
    tn_free(values);
    tn_free(speeds);
    return status;
}

/* ---- Attention ---- */

/* Heads of a cache, and the rows that read it. */
typedef struct cells_case {
    int64_t heads, kv_heads, head, rows;
} cells_case;

/* The time that `more` cells add to attention, the keys that these are and the operations on them. */
static tn_status measure_cells(tn__measure *m, const cells_case *c, int64_t few, int64_t more, double *seconds,
                               double *keys, double *operations) {
    tn__stack_shape shape = {.type = TN_F16,
                             .width = 256,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .head = c->head,
                             .ffn = 256,
                             .layers = on_cpu(m) ? 4 : 8,
                             .cells = few + more + c->rows};
    while ((shape.layers > 1 || more > 256) && tn__stack_bytes(&shape) > (double)m->memory / 4) { /* a small device */
        if (shape.layers > 1)
            shape.layers /= 2;
        else
            more /= 2;
        shape.cells = few + more + c->rows;
    }
    tn__stack stack;
    tn_prediction p[2] = {{0}};
    double times[2] = {0};
    /* With rates of one the time of attention is the number of keys. */
    tn_device_speed unit = {.attention_fixed = 1};
    for (int i = 0; i < TN_SPEED_GROUPS; i++) unit.attention_keys[i] = 1;
    TN_TRY(tn__stack_new(m->sched, &shape, &stack));
    tn_status status = tn__stack_prepare(&stack, shape.layers, c->rows);
    for (int i = 0; i < 2 && status == TN_OK; i++) {
        status = tn__measure_time(m, &stack, few + i * more, &times[i], NULL);
        if (status == TN_OK) status = predict_stack(m, &stack, few + i * more, &unit, &p[i]);
    }
    *keys = p[1].attention - p[0].attention;
    *operations = p[1].operations - p[0].operations;
    *seconds = fmax(times[1] - times[0], times[1] * 0.01);
    tn__stack_free(&stack);
    return status;
}

static tn_status measure_attention(tn__measure *m) {
    enum { CELLS = 4096, FEW = 64, HALF_KEYS = 1 };
    double seconds, keys, operations;
    tn_device_speed *s = m->speed;
    for (int i = 0; i < TN_SPEED_GROUPS; i++) {
        const int64_t group = tn_speed_group(i), kv_heads = group > 4 ? 4 : 8;
        const cells_case c = {group * kv_heads, kv_heads, 128, 1};
        TN_TRY(measure_cells(m, &c, FEW, CELLS, &seconds, &keys, &operations));
        s->attention_keys[i] = keys / seconds;
    }
    /* Keys of half the size: a device that reads bytes takes half the time, one that waits for each key the same. */
    TN_TRY(measure_cells(m, &(cells_case){32, 8, 64, 1}, FEW, CELLS, &seconds, &keys, &operations));
    s->attention_fixed = fmin(fmax(2 * seconds / keys * s->attention_keys[HALF_KEYS] - 1, 0), 1);
    const cells_case many = {32, 8, 128, on_cpu(m) ? 128 : 512};
    TN_TRY(measure_cells(m, &many, 0, 1024, &seconds, &keys, &operations));
    s->attention_many = operations / seconds;
    return TN_OK;
}

/* ---- Matmul ---- */

tn__stack_shape tn__measure_shape(const tn__measure *m, tn_type type) {
    tn__stack_shape s = {.type = type, .head = 128, .cells = 1024, .layers = 1};
    const bool small = on_cpu(m);
    s.width = small ? 2048 : 4096;
    s.heads = s.width / s.head;
    s.kv_heads = s.heads / 4;
    s.ffn = small ? 8192 : 14336;
    while (s.width > 512 && tn__stack_bytes(&s) > (double)m->memory / 2) { /* a small device */
        s.width /= 2;
        s.heads /= 2;
        s.kv_heads = TN__MAX(s.heads / 4, 1);
        s.ffn = s.width * 2;
    }
    const double wanted = fmin(small ? 192e6 : 800e6, (double)m->memory / 2), each = tn__stack_bytes(&s);
    while ((double)s.layers * each < wanted && s.layers < 32) s.layers++;
    return s;
}

/* The time of the matmuls in the prepared stack, given all other peaks, and their operations. */
static tn_status time_matmuls(tn__measure *m, tn__stack *stack, double *seconds, double *operations) {
    tn_prediction rest, all;
    double measured;
    tn_device_speed speed = *m->speed, unit = {0};
    memset(speed.multiply, 0, sizeof speed.multiply);
    TN_TRY(tn__measure_time(m, stack, 0, &measured, NULL));
    TN_TRY(predict_stack(m, stack, 0, &speed, &rest));
    unit.multiply[stack->shape.type][0] = unit.experts[0] = 1;
    TN_TRY(predict_stack(m, stack, 0, &unit, &all));
    *seconds = fmax(measured - rest.seconds, measured / 4);
    *operations = all.multiply;
    return TN_OK;
}

/* Many layers are closer to a model than one: the device neither rests between them nor finds weights in caches. */
static const double many_layers_seconds = 0.02; /* the longest run for which all are used */

static tn_status measure_type(tn__measure *m, tn_type type) {
    const tn__stack_shape shape = tn__measure_shape(m, type);
    double *rates = m->speed->multiply[type];
    double found[TN_SPEED_POINTS] = {0}, expected = 0; /* seconds of one layer */
    tn__stack stack;
    TN_TRY(tn__stack_new(m->sched, &shape, &stack));
    tn_status status = TN_OK;
    for (int p = 0; p < TN_SPEED_POINTS && status == TN_OK; p++) {
        const int64_t rows = tn_speed_rows(p);
        double operations = 0, seconds = 0;
        if (p > 0) expected *= (double)rows / (double)tn_speed_rows(p - 1);
        /* With few rows the weights must come from memory. */
        const bool all = p < 2 || expected * (double)shape.layers < many_layers_seconds;
        TN_TRY_GOTO(tn__stack_prepare(&stack, all ? shape.layers : 1, rows), status, out);
        TN_TRY_GOTO(time_matmuls(m, &stack, &seconds, &operations), status, out);
        found[p] = operations / seconds;
        expected = seconds / (double)stack.used_layers;
        /* Slow devices: more rows take longer, but not longer per row. */
        if (seconds > (rows < 128 ? 0.25 : 0.05)) {
            for (int next = p + 1; next < TN_SPEED_POINTS; next++) found[next] = found[p];
            break;
        }
    }
    memcpy(rates, found, sizeof found);
out:
    tn__stack_free(&stack);
    return status;
}

/* ---- Ramp ---- */

/* One size of layers with 512 rows. */
typedef struct ramp_case {
    double seconds, operations, matmuls;
} ramp_case;

/* `skip`: layers take so long that their matmuls' ends do not count. */
static tn_status time_ramp_case(tn__measure *m, const tn__stack_shape *shape, ramp_case *c, bool *skip) {
    enum { TRY_ROWS = 32, ROWS = 512 };
    static const double slow_seconds = 0.003; /* a layer with TRY_ROWS */
    const tn_device_speed unit = {.ramp = 1};
    tn_prediction matmuls;
    tn__stack stack;
    TN_TRY(tn__stack_new(m->sched, shape, &stack));
    tn_status status = tn__stack_prepare(&stack, 1, TRY_ROWS);
    *skip = true;
    for (int i = 0; i < 4 && status == TN_OK && *skip; i++) { /* the first runs compile and capture */
        const uint64_t begin = tn_time_ns();
        status = tn__stack_run(&stack, 0);
        *skip = (double)(tn_time_ns() - begin) * 1e-9 > slow_seconds;
    }
    if (status != TN_OK || *skip) goto out;
    TN_TRY_GOTO(tn__stack_prepare(&stack, shape->layers, ROWS), status, out);
    TN_TRY_GOTO(time_matmuls(m, &stack, &c->seconds, &c->operations), status, out);
    TN_TRY_GOTO(predict_stack(m, &stack, 0, &unit, &matmuls), status, out);
    c->matmuls = matmuls.multiply;
out:
    tn__stack_free(&stack);
    return status;
}

/* Layers of two sizes have as many matmuls each: seconds = operations / rate + matmuls × ramp for both. */
static tn_status measure_ramp_of(tn__measure *m, tn_type type, double *ramp) {
    ramp_case small = {0}, large = {0};
    tn__stack_shape shape = tn__measure_shape(m, type), half = shape;
    bool skip = false;
    half.width /= 2;
    half.head /= 2;
    half.ffn /= 2;
    half.layers = TN__MIN(4 * shape.layers, 8);
    *ramp = 0;
    TN_TRY(time_ramp_case(m, &half, &small, &skip));
    if (!skip) TN_TRY(time_ramp_case(m, &shape, &large, &skip));
    const double scale = small.matmuls * large.operations - large.matmuls * small.operations;
    if (skip || !(scale > 0)) return TN_OK;
    *ramp = (small.seconds * large.operations - large.seconds * small.operations) / scale;
    *ramp = fmin(fmax(*ramp, 0), small.seconds / small.matmuls / 2);
    return TN_OK;
}

/* The mean of a block type, whose weights are converted first, and one that needs no conversion. */
static tn_status measure_ramp(tn__measure *m) {
    static const tn_type both[] = {TN_Q4_K, TN_F16};
    const size_t most = m->params.types ? TN__MIN(m->params.n_types, TN__COUNT(both)) : TN__COUNT(both);
    const tn_type *types = m->params.types ? m->params.types : both;
    double sum = 0, n = 0, ramp = 1;
    for (size_t i = 0; i < most && ramp > 0; i++) {
        if (!tn_type_valid(types[i])) continue;
        tn_status status = measure_ramp_of(m, types[i], &ramp);
        if (status == TN_OK) {
            sum += ramp;
            n++;
        }
        TN_TRY(tolerate(m, status));
    }
    m->speed->ramp = n > 0 ? sum / n : 0;
    return TN_OK;
}

/* ---- Types and experts ---- */

static tn_status measure_types(tn__measure *m) {
    const tn_type *types = m->params.types ? m->params.types : common_types;
    const size_t n = m->params.types ? m->params.n_types : TN__COUNT(common_types);
    for (size_t i = 0; i < n; i++) {
        if (!tn_type_valid(types[i]))
            return tn_fail(TN_E_INVALID, "tn_device_measure: type %d does not exist", (int)types[i]);
        const uint64_t limit = i < NEEDED_TYPES ? 2 * m->limit_ns : m->limit_ns;
        if (!m->params.types && i > 0 && tn_time_ns() - m->began > limit) break;
        TN_TRY(tolerate(m, measure_type(m, types[i])));
        TN_TRY(report_progress(m));
    }
    return TN_OK;
}

/* The layers of a model whose tokens choose from sixteen experts. */
enum { EXPERTS = 16, MOST_USED = 8, FEWER_USED = 2 };

static tn__stack_shape experts_shape(const tn__measure *m) {
    tn__stack_shape shape = {.type = TN_Q4_K,
                             .width = 2048,
                             .heads = 32,
                             .kv_heads = 4,
                             .head = 128,
                             .ffn = 1024,
                             .experts = EXPERTS,
                             .used = MOST_USED,
                             .layers = on_cpu(m) ? 4 : 8,
                             .cells = 1024};
    while (shape.layers > 1 && tn__stack_bytes(&shape) > (double)m->memory / 2) shape.layers--;
    return shape;
}

/* What the stack takes beyond everything but experts, and what experts would take at the full rates. `launches`:
 * whether the cost of nodes is known, else it is part of `seconds`. */
typedef struct experts_case {
    double seconds, ideal, nodes;
} experts_case;

static tn_status time_experts(tn__measure *m, tn__stack *stack, bool launches, experts_case *c) {
    tn_prediction rest, experts;
    double seconds;
    tn_device_speed speed = *m->speed;
    if (!launches) speed.launch[TN_LAUNCH_EXPERTS] = 0;
    memset(speed.experts, 0, sizeof speed.experts); /* a rate of 0: no time */
    TN_TRY(tn__measure_time(m, stack, 0, &seconds, NULL));
    TN_TRY(predict_stack(m, stack, 0, &speed, &rest));
    for (int k = 0; k < TN_SPEED_POINTS; k++) speed.experts[k] = 1;
    speed.read = 0; /* no limit: weights that the processor's caches hold are read faster than memory */
    TN_TRY(predict_stack(m, stack, 0, &speed, &experts));
    *c = (experts_case){fmax(seconds - rest.seconds, seconds / 4), experts.multiply - rest.multiply,
                        (double)rest.nodes};
    return TN_OK;
}

/* One row. With two numbers of experts per token the nodes are the same, but not the weights that are read: the
 * difference gives the share, and what both have in common is the cost of nodes. That is higher than in narrow
 * layers, because a device that runs a layer in several launches must start reading in each of them. */
static tn_status measure_few_experts(tn__measure *m, tn__stack *stack) {
    experts_case few, many;
    double *launch = &m->speed->launch[TN_LAUNCH_EXPERTS];
    stack->shape.used = FEWER_USED;
    TN_TRY(tn__stack_prepare(stack, stack->shape.layers, 1));
    TN_TRY(time_experts(m, stack, false, &few));
    stack->shape.used = MOST_USED;
    TN_TRY(tn__stack_prepare(stack, stack->shape.layers, 1));
    TN_TRY(time_experts(m, stack, false, &many));
    /* Experts cannot be read faster than memory gives them. */
    const double peak = m->speed->read > 0 ? m->speed->multiply[TN_Q4_K][0] / 2 / (double)tn_type_block(TN_Q4_K) *
                                                 (double)tn_type_bytes(TN_Q4_K) / m->speed->read
                                           : 1;
    double slope = fmax((many.seconds - few.seconds) / (many.ideal - few.ideal), fmin(peak, 1));
    const double common = (few.seconds + many.seconds - slope * (few.ideal + many.ideal)) / 2;
    if (common / many.nodes > *launch)
        *launch = common / many.nodes;
    else
        slope = (many.seconds - many.nodes * *launch) / many.ideal;
    m->speed->experts[0] = 1 / fmax(slope, 0.25);
    return TN_OK;
}

static tn_status measure_experts(tn__measure *m) {
    const tn__stack_shape shape = experts_shape(m);
    double *shares = m->speed->experts, expected = 0; /* seconds of one layer */
    for (int p = 0; p < TN_SPEED_POINTS; p++) shares[p] = 1;
    if (!(m->speed->multiply[TN_Q4_K][0] > 0)) return TN_OK;
    tn__stack stack;
    experts_case c;
    TN_TRY(tn__stack_new(m->sched, &shape, &stack));
    tn_status status = measure_few_experts(m, &stack);
    for (int p = 1; p < TN_SPEED_POINTS - 1 && status == TN_OK; p++) {
        const int64_t rows = tn_speed_rows(p) * EXPERTS / MOST_USED;
        const bool all = p > 1 && expected * 4 * (double)shape.layers < many_layers_seconds;
        TN_TRY_GOTO(tn__stack_prepare(&stack, all ? shape.layers : 1, rows), status, out);
        TN_TRY_GOTO(time_experts(m, &stack, true, &c), status, out);
        expected = c.seconds / (double)stack.used_layers;
        shares[p] = shares[p + 1] = c.ideal / c.seconds;
    }
out:
    tn__stack_free(&stack);
    return status;
}

/* ---- Link ---- */

static tn_status measure_link(tn__measure *m) {
    if (on_cpu(m)) return TN_OK;
    tn_buffer_type *type = tn_device_buffer_type(m->device),
                   *host = tn_device_buffer_type(tn_stream_device(m->streams[1]));
    const size_t size = TN__MIN(TN__MIN((size_t)128 << 20, m->memory / 4), tn_buffer_type_max_size(type));
    const int64_t n = (int64_t)(size / sizeof(float));
    tn_arena *arena = NULL;
    tn_buffer *buffers[2] = {NULL, NULL};
    tn_status status;
    if (n < 1) return TN_OK;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(4, 1), .no_alloc = true}, &arena));
    tn_tensor *from = tn_tensor_nd(arena, TN_F32, n), *to = tn_tensor_nd(arena, TN_F32, n);
    TN_TRY_GOTO(tn_arena_status(arena), status, out);
    TN_TRY_GOTO(tn_buffer_new(host, tn_buffer_type_tensor_size(host, from), &buffers[0]), status, out);
    TN_TRY_GOTO(tn_buffer_new(type, tn_buffer_type_tensor_size(type, to), &buffers[1]), status, out);
    TN_TRY_GOTO(tn_buffer_clear(buffers[0], 1), status, out);
    TN_TRY_GOTO(tn_buffer_bind(buffers[0], from, 0), status, out);
    TN_TRY_GOTO(tn_buffer_bind(buffers[1], to, 0), status, out);
    for (int i = 0; i < 5; i++) {
        const uint64_t begin = tn_time_ns();
        TN_TRY_GOTO(tn_stream_copy_async(m->streams[1], m->streams[0], from, to), status, out);
        TN_TRY_GOTO(tn_stream_synchronize(m->streams[0]), status, out);
        const uint64_t ns = tn_time_ns() - begin;
        if (i && ns) m->speed->link = fmax(m->speed->link, (double)size * 1e9 / (double)ns);
    }
out:
    tn_arena_free(arena);
    tn_buffer_free(buffers[0]);
    tn_buffer_free(buffers[1]);
    return status;
}

/* ---- Public ---- */

static void end_measure(tn__measure *m) {
    tn_sched_free(m->sched);
    tn_stream_free(m->streams[0]);
    tn_stream_free(m->streams[1]);
}

static tn_status begin_measure(tn_device *device, const tn_measure_params *params, tn__measure *m) {
    size_t available = 0, total = 0;
    *m = (tn__measure){.device = device, .began = tn_time_ns()};
    if (params) m->params = *params;
    m->limit_ns = (uint64_t)((m->params.seconds > 0 ? m->params.seconds : 15) * 1e9);
    if (tn_device_get_caps(device).described)
        return tn_fail(TN_E_UNSUPPORTED, "%s is a description without hardware: nothing can be measured on it",
                       tn_device_name(device));
    TN_TRY(tn_device_memory(device, &available, &total));
    /* A device that reports nothing may still have memory. */
    m->memory = total ? TN__MIN(available / 2, (size_t)1800 << 20) : (size_t)1 << 30;
    m->memory = TN__MIN(m->memory, tn_buffer_type_max_size(tn_device_buffer_type(device)));
    tn_stream_params sp = {.n_threads = m->params.n_threads, .threads = m->params.threads};
    tn_device *cpu;
    tn_status status = tn_stream_new(device, &sp, &m->streams[0]);
    size_t n = 1;
    if (status == TN_OK && !on_cpu(m)) {
        status = tn_device_find("cpu", &cpu);
        if (status == TN_OK) status = tn_stream_new(cpu, &sp, &m->streams[n++]);
    }
    if (status == TN_OK) status = tn_sched_new(&(tn_sched_params){.streams = m->streams, .n_streams = n}, &m->sched);
    if (status != TN_OK) end_measure(m);
    return status;
}

typedef tn_status (*measure_fn)(tn__measure *m);
static tn_status measure_read_rate(tn__measure *m) { return tn__measure_read(m, &m->speed->read); }

/* A matmul cannot have read its weights faster than the memory gives them: the peak is raised to what was seen. */
static void raise_read(tn_device_speed *s) {
    for (int t = 0; t < TN_TYPE_LIMIT; t++)
        if (tn_type_valid((tn_type)t))
            s->read = fmax(s->read, s->multiply[t][0] / 2 / (double)tn_type_block((tn_type)t) *
                                        (double)tn_type_bytes((tn_type)t));
}

tn_status tn_device_measure(tn_device *device, const tn_measure_params *params, tn_device_speed *speed) {
    if (!device || !speed) return tn_fail(TN_E_INVALID, "tn_device_measure: NULL argument");
    static const measure_fn steps[] = {measure_read_rate, tn__measure_read_mapped, measure_launches,
                                       measure_move,      measure_attention,       measure_ramp,
                                       measure_types,     measure_experts,         measure_link};
    tn__measure m;
    *speed = (tn_device_speed){0};
    TN_TRY(begin_measure(device, params, &m));
    m.speed = speed;
    m.total = TN__COUNT(steps) + (m.params.types ? m.params.n_types : TN__COUNT(common_types));
    tn_status status = TN_OK;
    for (size_t i = 0; i < TN__COUNT(steps) && status == TN_OK; i++) {
        status = tolerate(&m, steps[i](&m));
        if (status == TN_OK) status = report_progress(&m);
    }
    raise_read(speed);
    end_measure(&m);
    if (status == TN_OK && !(speed->read > 0))
        status = tn_fail(TN_E_UNSUPPORTED, "%s computes too few ops, or has too little memory, to be measured",
                         tn_device_name(device));
    else if (status != TN_OK && status != TN_E_ABORTED)
        tn_fail_more(status, " (measuring %s)", tn_device_name(device));
    return status;
}

tn_status tn_device_measure_read(tn_device *device, const tn_measure_params *params, double *bytes_per_second) {
    if (!device || !bytes_per_second) return tn_fail(TN_E_INVALID, "tn_device_measure_read: NULL argument");
    tn__measure m;
    *bytes_per_second = 0;
    TN_TRY(begin_measure(device, params, &m));
    tn_status status = tn__measure_read(&m, bytes_per_second);
    end_measure(&m);
    return status;
}

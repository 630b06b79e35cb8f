/* A graph that runs on a GPU and on the CPU with the same random data. */
#ifndef TN_TESTS_DEVICE_GRAPH_H
#define TN_TESTS_DEVICE_GRAPH_H

#include "gpu.h"
#include "run_case.h"

#include "tenon/sched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 48 };
typedef struct device_graph {
    tn_arena *a, *data; /* of the graph; of the host's copies */
    tn_sched *sched;
    tn_buffer_type *memory;
    tn_buffer *buffers[MOST_TENSORS];
    /* `changed`: tensors that the graph writes to, compared after a run. */
    tn_tensor *inputs[MOST_TENSORS], *changed[MOST_TENSORS];
    /* Of the inputs; `earlier`: in the first of two runs, or NULL. */
    const void *contents[MOST_TENSORS], *earlier[MOST_TENSORS];
    tn_tensor *in_order[MOST_TENSORS]; /* nodes that run in this order; other nodes run just before they are needed */
    int n_buffers, n_inputs, n_changed, n_in_order;
    rng r;
} device_graph;

static inline void device_graph_begin(device_graph *w, const char *device) {
    *w = (device_graph){.r = {29}};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &w->a));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &w->data));
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {device}}, &w->sched));
    w->memory = tn_device_buffer_type(tn_stream_device(tn_sched_stream(w->sched, 0)));
}
/* Makes all ops repeatable. The graph has none yet. */
static inline void device_graph_repeatable(device_graph *w) {
    tn_arena_free(w->a);
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true, .repeatable = true}, &w->a));
}
static inline void device_graph_end(device_graph *w) {
    tn_sched_free(w->sched);
    for (int i = 0; i < w->n_buffers; i++) tn_buffer_free(w->buffers[i]);
    tn_arena_free(w->data);
    tn_arena_free(w->a);
}
/* A tensor of random numbers on the device. */
static inline tn_tensor *spread_tensor(device_graph *w, tn_type type, tn_buffer_usage usage, const int64_t ne[4],
                                       float spread) {
    tn_tensor *t = tn_tensor_new(w->a, type, 4, ne);
    tn_buffer **buffer = &w->buffers[w->n_buffers++];
    assert_ok(tn_buffer_new(w->memory, tn_buffer_type_tensor_size(w->memory, t), buffer));
    tn_buffer_set_usage(*buffer, usage);
    assert_ok(tn_buffer_bind(*buffer, t, 0));
    assert_ok(tn_tensor_set(t, random_tensor(w->data, type, ne, 0, spread, &w->r)->data));
    return t;
}
static inline tn_tensor *device_tensor(device_graph *w, tn_type type, tn_buffer_usage usage, int64_t n0, int64_t n1,
                                       int64_t n2) {
    return spread_tensor(w, type, usage, (int64_t[]){n0, n1, n2, 1}, 1);
}
static inline tn_tensor *input_of(device_graph *w, tn_type type, int64_t n0, int64_t n1, int64_t n2,
                                  const void *contents) {
    const int64_t ne[4] = {n0, n1, n2, 1};
    tn_tensor *t = tn_input(w->a, type, n0, n1, n2);
    w->contents[w->n_inputs] = contents ? contents : random_tensor(w->data, type, ne, 0, 1, &w->r)->data;
    w->inputs[w->n_inputs++] = t;
    return t;
}
/* All of `wanted` and of `changed` as floats, concatenated; the caller frees them with free(). The graph runs twice,
 * as in a token loop: a second run may be launched in another way. */
static inline float *run_device_graph(device_graph *w, tn_tensor *const *wanted, int n, int64_t *count) {
    tn_graph *graph;
    tn_tensor *all[2 * MOST_TENSORS];
    int n_all = 0;
    *count = 0;
    for (int i = 0; i < n; i++) all[n_all++] = tn_output(wanted[i]);
    for (int i = 0; i < w->n_changed; i++) all[n_all++] = w->changed[i];
    for (int i = 0; i < n_all; i++) *count += tn_nelements(all[i]);
    assert_ok(tn_arena_status(w->a));
    assert_ok(tn_graph_new(w->a, 256, &graph));
    for (int i = 0; i < w->n_in_order; i++) assert_ok(tn_graph_add(graph, w->in_order[i]));
    for (int i = 0; i < n; i++) assert_ok(tn_graph_add(graph, wanted[i]));
    assert_ok(tn_sched_reserve(w->sched, graph));
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < w->n_inputs; i++)
            assert_ok(tn_tensor_set(w->inputs[i], again || !w->earlier[i] ? w->contents[i] : w->earlier[i]));
        assert_ok(tn_sched_run(w->sched, graph));
    }
    float *values = malloc(((size_t)*count + 1) * sizeof *values), *to = values;
    for (int i = 0; i < n_all; to += tn_nelements(all[i++])) {
        void *bytes = malloc(tn_nbytes(all[i]) + 1);
        assert_ok(tn_tensor_get(all[i], bytes));
        assert_ok(tn_type_to_f32(all[i]->type, bytes, to, tn_nelements(all[i])));
        free(bytes);
    }
    return values;
}
/* Relative to 1 + |value|. Larger for quantized weights, where one device rounds activations to eight bits. */
static float tolerance = 2e-2f;
static inline void check_close(const float *got, const float *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= tolerance * (1 + fabsf(want[i]))))
            fail_msg("%s: element %lld is %g, on the CPU %g", what, (long long)i, got[i], want[i]);
}
/* Runs a graph on both devices. */
typedef int (*builder)(device_graph *w, tn_tensor **wanted);
static inline void check_on_both(builder build, const char *what) {
    float *result[2];
    int64_t n = 0;
    for (int i = 0; i < 2; i++) {
        device_graph w;
        tn_tensor *wanted[MOST_TENSORS];
        device_graph_begin(&w, i ? tn_device_name(gpu) : "cpu");
        int count = build(&w, wanted);
        result[i] = run_device_graph(&w, wanted, count, &n);
        device_graph_end(&w);
    }
    check_close(result[1], result[0], n, what);
    free(result[0]);
    free(result[1]);
}

static inline tn_tensor *heads_of(device_graph *w, tn_tensor *cache, int64_t size, int64_t kv, int64_t stored) {
    return tn_view(w->a, cache, 3, (int64_t[]){size, kv, cache->ne[1]},
                   (size_t[]){2, (size_t)stored * 2, cache->nb[1]}, 0);
}

#endif

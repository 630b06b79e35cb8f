/* The predicted time of one run of a scheduled graph. This file holds the whole formula:
 *
 *   run      = Σ nodes time + Σ copies bytes / link + the cost of a run on each device
 *   matmul   = max(bytes / read, operations / multiply[type, rows]) + launch; read_mapped where weights are mapped;
 *              many rows: + ramp
 *   experts  = max(bytes / read, operations / (experts[rows] × multiply)) + launch, counting the experts in use
 *   attention= few rows: keys / attention_keys[heads that read each] × size of a key + launch
 *              many rows: max(cache bytes / read, operations / attention_many) + launch
 *   recurrent= max(bytes / read, operations / rate of f32 multiplication) + launch; counted as attention
 *   others   = bytes / move + launch
 *
 * All constants are measured on the device (measure.c) or part of its specification, except those named here. Why
 * each of them is there:
 *
 *   ramp     A GPU converts weights, starts and ends each matmul with multiprocessors that have nothing to do. That
 *            takes about as long for small matrices as for large ones. From layers of two sizes with 512 rows.
 *   keys     The cells are divided among multiprocessors, and each of these goes through its share key by key. On a
 * GPU that takes as long for small keys as for large ones, on a CPU it is proportional. From caches with 1, 4 and 8
 * query heads per key/value head, and with keys of half the size. launch   by kind, because devices fuse and launch a
 * mixture of experts in another way than dense layers. For experts from layers as wide as those of a model, with 2
 * and with 8 experts per token: what both have in common. */
#include "speed/speed_internal.h"

#include "runtime/visit.h"

#include "base/checked.h"

#include <math.h>

/* Up to this many rows devices use kernels that read every weight once: GEMV on GPUs, and decode of a few
 * sequences. */
enum { FEW_ROWS = 8 };
/* Rows at which matrix multiplication reaches its full rate: that of the arithmetic of recurrent layers. */
enum { MANY_ROWS = 512 };
/* A node counts as limited by memory where reading at the peak would take more than this share of its time. */
static const double memory_share = 0.6;

typedef struct prediction_state {
    const tn_sched *sched;
    const tn_predict_params *params;
    const tn_device_speed *speeds; /* per stream */
    tn_prediction *result;
    size_t nodes[TN_PREDICT_STREAMS];
    double limits[4]; /* seconds by tn_speed_limit */
    double rows;      /* the largest number of rows of a matmul */
    bool experts;
} prediction_state;

const char *tn_speed_limit_name(tn_speed_limit limit) {
    static const char *const names[] = {"memory bandwidth", "arithmetic", "link", "launches"};
    return (unsigned)limit < TN__COUNT(names) ? names[limit] : "?";
}

static double divided(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

static bool is_on_host(const tn_sched *sched, int stream) {
    return tn_device_get_caps(tn_stream_device(tn_sched_stream(sched, (size_t)stream))).unified;
}

/* ---- Nodes ---- */

/* Weights in plain host memory are pages of the mapped file. */
static double weights_rate(const tn_device_speed *s, const tn_tensor *node) {
    const tn_tensor *weights = node->src[0];
    const tn_buffer_type *type = weights ? tn_tensor_buffer_type(weights) : NULL;
    const bool mapped = type && tn_buffer_type_is_host(type) && tn_tensor_usage(weights) == TN_USAGE_WEIGHTS;
    return mapped && s->read_mapped > 0 ? s->read_mapped : s->read;
}

/* Keys per second, if this many query heads read each. Between the measured points the time is a straight line. */
static double keys_rate(const tn_device_speed *s, double group) {
    const double *rates = s->attention_keys;
    enum { LAST = TN_SPEED_GROUPS - 1 };
    int p = 0;
    if (group >= (double)tn_speed_group(LAST)) return rates[LAST] * (double)tn_speed_group(LAST) / group;
    while (p + 2 < TN_SPEED_GROUPS && group > (double)tn_speed_group(p + 1)) p++;
    const double low = (double)tn_speed_group(p), high = (double)tn_speed_group(p + 1);
    if (group <= low || !(rates[p] > 0) || !(rates[p + 1] > 0)) return rates[p];
    const double share = (group - low) / (high - low);
    return 1 / ((1 - share) / rates[p] + share / rates[p + 1]);
}

static double attention_seconds(const tn_device_speed *s, const tn__cost *c) {
    if (c->rows > FEW_ROWS) return fmax(divided(c->weights, s->read), divided(c->operations, s->attention_many));
    if (!(c->keys > 0)) return 0;
    const double size = c->weights / c->keys / TN__KEY_BYTES;
    return divided(c->keys, keys_rate(s, c->scores / c->keys)) *
           (s->attention_fixed + (1 - s->attention_fixed) * size);
}

static double node_seconds(const tn_device_speed *s, const tn_tensor *node, const tn__cost *c) {
    switch (c->kind) {
    case TN__COST_EXPERTS:
    case TN__COST_MULTIPLY: {
        double rate = tn_speed_multiply(s, c->type, c->rows);
        if (c->kind == TN__COST_EXPERTS) rate *= tn__speed_between(s->experts, c->rows);
        const double ramp = c->kind == TN__COST_MULTIPLY && c->rows > FEW_ROWS ? s->ramp : 0;
        return ramp + (rate > 0 ? fmax(divided(c->weights, weights_rate(s, node)), c->operations / rate) : 0);
    }
    case TN__COST_ATTENTION: return attention_seconds(s, c);
    case TN__COST_RECURRENT:
        return fmax(divided(c->bytes, s->read), divided(c->operations, tn_speed_multiply(s, c->type, MANY_ROWS)));
    case TN__COST_OTHER: return divided(c->bytes, s->move);
    }
    return 0;
}

static void add_node_time(prediction_state *p, const tn__visit *visit) {
    tn_prediction *r = p->result;
    const tn_device_speed *s = &p->speeds[visit->stream];
    const tn__cost c = tn__node_cost(visit->node, p->params);
    const double seconds = node_seconds(s, visit->node, &c);
    r->streams[visit->stream] += seconds;
    r->bytes += c.bytes;
    r->operations += c.operations;
    p->nodes[visit->stream]++;
    r->nodes++;
    p->experts = p->experts || c.kind == TN__COST_EXPERTS;
    if (c.kind == TN__COST_MULTIPLY) p->rows = fmax(p->rows, c.rows);
    if (c.kind == TN__COST_OTHER)
        r->other += seconds;
    else if (c.kind == TN__COST_ATTENTION || c.kind == TN__COST_RECURRENT)
        r->attention += seconds;
    else
        r->multiply += seconds;
    const bool memory = c.kind == TN__COST_OTHER || divided(c.weights, s->read) > memory_share * seconds;
    p->limits[memory ? TN_LIMIT_MEMORY : TN_LIMIT_ARITHMETIC] += seconds;
}

/* ---- Copies ---- */

static void add_link_time(prediction_state *p, int stream, double bytes) {
    const double seconds = divided(bytes, p->speeds[stream].link);
    p->result->copies += seconds;
    p->limits[TN_LIMIT_LINK] += seconds;
}

static void add_copy_time(prediction_state *p, const tn__visit *visit) {
    double bytes = (double)tn_nbytes(visit->node);
    if (visit->ids && visit->node->ne[2])
        bytes *= tn__experts_in_use(visit->ids, (double)visit->node->ne[2]) / (double)visit->node->ne[2];
    p->result->copy_bytes += bytes;
    if (!is_on_host(p->sched, visit->stream)) add_link_time(p, visit->stream, bytes);
    if (visit->from >= 0 && !is_on_host(p->sched, visit->from)) add_link_time(p, visit->from, bytes);
}

static void visit_step(void *user, const tn__visit *visit) {
    prediction_state *p = user;
    if (visit->from >= 0) {
        add_copy_time(p, visit);
        return;
    }
    add_node_time(p, visit);
    /* The caller reads outputs. */
    if (visit->node->flags & TN_FLAG_OUTPUT && !is_on_host(p->sched, visit->stream))
        add_link_time(p, visit->stream, (double)tn_nbytes(visit->node));
}

/* ---- Sums ---- */

static void add_launches(prediction_state *p, size_t n_streams) {
    tn_prediction *r = p->result;
    const tn_launch_kind kind = p->rows > FEW_ROWS ? TN_LAUNCH_PREFILL
                                : p->experts       ? TN_LAUNCH_EXPERTS
                                                   : TN_LAUNCH_DECODE;
    for (size_t i = 0; i < n_streams; i++) {
        if (!p->nodes[i]) continue;
        const double seconds = (double)p->nodes[i] * p->speeds[i].launch[kind] + p->speeds[i].run;
        r->launch += seconds;
        r->streams[i] += seconds;
        p->limits[TN_LIMIT_LAUNCH] += seconds;
    }
    r->seconds = r->copies;
    for (size_t i = 0; i < n_streams; i++) r->seconds += r->streams[i];
    for (int i = 0; i < (int)TN__COUNT(p->limits); i++)
        if (p->limits[i] > p->limits[r->limit]) r->limit = (tn_speed_limit)i;
}

tn_status tn__predict_with(tn_sched *sched, tn_graph *graph, const tn_predict_params *params,
                           const tn_device_speed *speeds, tn_prediction *prediction) {
    *prediction = (tn_prediction){0};
    prediction_state p = {.sched = sched, .params = params, .speeds = speeds, .result = prediction};
    TN_TRY(tn__sched_visit(sched, graph, visit_step, &p));
    add_launches(&p, tn_sched_stream_count(sched));
    return TN_OK;
}

/* ---- Public ---- */

double tn_predict_node(const tn_device_speed *speed, const tn_tensor *node) {
    const tn__cost c = tn__node_cost(node, &(tn_predict_params){0});
    const bool many = c.kind == TN__COST_OTHER || c.rows > FEW_ROWS;
    return node_seconds(speed, node, &c) + speed->launch[many ? TN_LAUNCH_PREFILL : TN_LAUNCH_DECODE];
}

/* A host that only looks up embeddings or samples need not be measured. */
static void mark_stream(void *user, const tn__visit *visit) {
    const tn_op_family family = tn_op_get_family(visit->node->op);
    bool *used = user;
    const bool heavy = family == TN_FAMILY_MATMUL || family == TN_FAMILY_ATTENTION || family == TN_FAMILY_RECURRENT;
    if (visit->from < 0 && heavy) used[visit->stream] = true;
}

tn_status tn_predict_graph(tn_sched *sched, tn_graph *graph, const tn_predict_params *params,
                           tn_prediction *prediction) {
    if (!sched || !graph || !params || !prediction) return tn_fail(TN_E_INVALID, "tn_predict_graph: NULL argument");
    const size_t n = tn_sched_stream_count(sched);
    bool used[TN_PREDICT_STREAMS] = {false};
    if (n > TN_PREDICT_STREAMS)
        return tn_fail(TN_E_UNSUPPORTED, "predictions are made for up to %d devices, not %zu",
                       (int)TN_PREDICT_STREAMS, n);
    if (params->n_past < 0 || params->n_seqs < 0)
        return tn_fail(TN_E_INVALID, "%lld cells and %lld sequences: both must not be negative",
                       (long long)params->n_past, (long long)params->n_seqs);
    TN_TRY(tn__sched_visit(sched, graph, mark_stream, used));
    tn_device_speed *speeds = tn_calloc(n, sizeof *speeds);
    tn_status status = speeds ? TN_OK : TN_E_NOMEM;
    for (size_t i = 0; i < n && status == TN_OK; i++)
        if (used[i])
            status = tn_device_get_speed(tn_stream_device(tn_sched_stream(sched, i)), params->n_threads, &speeds[i]);
    if (status == TN_OK) status = tn__predict_with(sched, graph, params, speeds, prediction);
    tn_free(speeds);
    return status;
}

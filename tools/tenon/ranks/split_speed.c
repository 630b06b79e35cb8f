/* An all-reduce of B bytes among n ranks takes the least of
 *   ⌈log2 n⌉ · (latency + B / rate)                  recursive doubling
 *   2 (n-1) · latency + 2 (n-1)/n · B / rate         ring
 * and across machines the sum of both levels. */
#include "ranks/split_speed.h"

#include <math.h>
#include <stdlib.h>

/* ---- Ranks ---- */

static tn_status predict_rank(const tn_session_plan *plan, double prompt, struct rank_figures *f) {
    enum { PROMPT = 512 };
    tn_session_speed speed = {0};
    const int32_t tokens = prompt > 0 ? (int32_t)prompt : PROMPT;
    tn_status status = tn_session_plan_predict(plan, &(tn_session_speed_params){.prompt = tokens}, &speed);
    if (status != TN_OK) return status;
    const tn_session_params used = tn_session_plan_params(plan);
    f->prefill = speed.prefill_run.streams[0];
    f->decode = speed.decode_run.streams[0];
    f->rows = used.n_ubatch;
    f->seqs = used.n_seqs;
    return TN_OK;
}

/* Predictions are for full micro-batches: where the prompt is cut into smaller ones, the speed is that of a plan with
 * these. */
tn_status plan_rank_speed(const char *path, const tn_model_params *model_params, const tn_session_params *params,
                          double prompt, struct rank_figures *f) {
    tn_session_params p = *params;
    tn_model *model = NULL;
    tn_session_plan *plan = NULL;
    tn_fit fit = {0};
    tn_status status = tn_model_open(path, model_params, &model);
    if (status == TN_OK) status = tn_session_plan_new(model, &p, &plan);
    if (status == TN_OK) status = tn_session_plan_fit(plan, &fit);
    if (status == TN_OK) {
        const tn_fit_device *d = &fit.devices[0];
        f->bytes = d->weights + d->mapped + d->cache + d->compute + d->scratch + d->own;
        f->available = d->free;
        p = tn_session_plan_params(plan);
        const int32_t rows =
            tn_session_plan_micro_batch(plan, prompt > 0 && prompt < INT32_MAX ? (int32_t)prompt : INT32_MAX);
        if (rows < p.n_ubatch) {
            tn_session_plan_free(plan);
            plan = NULL;
            p = *params;
            p.n_ubatch = rows;
            status = tn_session_plan_new(model, &p, &plan);
        }
    }
    if (status == TN_OK) status = predict_rank(plan, prompt, f);
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    tn_model_close(model);
    return status;
}

/* ---- Messages ---- */

static double reduce_on(struct wire w, int n, double bytes) {
    if (n < 2) return 0;
    const double doubling = ceil(log2(n)) * (w.latency + bytes / w.rate);
    const double ring = 2 * (n - 1) * w.latency + 2.0 * (n - 1) / n * bytes / w.rate;
    return fmin(doubling, ring);
}
static double reduce_time(const struct rank_links *l, int n, double bytes) {
    const int near = n < l->devices ? n : l->devices, far = (n + l->devices - 1) / l->devices;
    return reduce_on(l->link, near, bytes) + reduce_on(l->net, far, bytes);
}
/* Between two ranks, which are on different machines if `n` ranks are. */
static double message_time(const struct rank_links *l, int n, double bytes) {
    const struct wire w = n > l->devices ? l->net : l->link;
    return n > 1 ? w.latency + bytes / w.rate : 0;
}
/* All messages of one state through the ranks. */
static double pass_time(const struct rank_links *l, int n, double bytes) {
    const int far = (n - 1) / l->devices, near = n - 1 - far;
    return near * (l->link.latency + bytes / l->link.rate) + far * (l->net.latency + bytes / l->net.rate);
}

/* ---- Splits ---- */

static struct split_speed add_messages(double seqs, double decode, double messages, double prefill) {
    const double step = decode + messages;
    return (struct split_speed){.prefill = prefill, .decode = seqs / step, .messages = messages / step};
}

static struct split_speed predict_rows(const struct rank_links *l, const tn_model_info *info, int n,
                                       const struct ranks_times *t) {
    const double state = 4.0 * info->n_embd, logits = 4.0 * info->n_vocab, note = message_time(l, n, TN_NET_NOTE);
    const double sums = 2.0 * info->n_layer * reduce_time(l, n, state * t->seqs) +
                        message_time(l, n, logits * t->seqs * (n - 1) / n) + note;
    const double run = t->slowest_prefill + 2.0 * info->n_layer * reduce_time(l, n, state * t->rows) + note;
    return add_messages(t->seqs, t->slowest_decode, sums, t->rows / run);
}

/* `turn`: the slowest rank or message of a micro-batch. Of a long prompt every stage has a micro-batch; of another
 * one they begin and end one after the other. */
static double pipelined_rate(const struct rank_links *l, double rows, int n_stages, double turn) {
    const double runs = l->prompt > 0 ? ceil(l->prompt / rows) : 0;
    return runs > 0 ? l->prompt / ((runs + n_stages - 1) * turn) : rows / turn;
}

/* Ranks between the first and the last are alike, but for a layer more or less: together they compute what one rank
 * with all layers computes. */
static struct split_speed predict_layers(const struct rank_links *l, const tn_model_info *info, int n,
                                         const struct ranks_times *t) {
    const double state = 4.0 * info->n_embd, logits = 4.0 * info->n_vocab;
    const double passed = n == 1 ? 0 : pass_time(l, n, state * t->seqs) + message_time(l, n, logits * t->seqs);
    const double message = n == 1 ? 0 : pass_time(l, n, state * t->rows) / (n - 1);
    const double turn = fmax(fmax(t->slowest_prefill, t->all_prefill / n), message);
    return add_messages(t->seqs, t->all_decode, passed, pipelined_rate(l, t->rows, n, turn));
}

/* Every rank of a machine passes the state to its counterpart: together they need the link between machines once for
 * each. */
static struct split_speed predict_stages(const struct rank_links *l, const tn_model_info *info, int n,
                                         const struct ranks_times *t) {
    const int n_stages = n / l->devices;
    const double state = 4.0 * info->n_embd, logits = 4.0 * info->n_vocab;
    const double sums = 2.0 * info->n_layer * reduce_on(l->link, l->devices, state * t->seqs) + l->link.latency +
                        logits * t->seqs / l->link.rate;
    const double passed = (n_stages - 1) * (l->net.latency + l->devices * state * t->seqs / l->net.rate) +
                          l->net.latency + logits * t->seqs / l->net.rate;
    const double in_stage =
        2.0 * ceil((double)info->n_layer / n_stages) * reduce_on(l->link, l->devices, state * t->rows);
    const double turn =
        fmax(t->slowest_prefill + in_stage, l->net.latency + l->devices * state * t->rows / l->net.rate);
    return add_messages(t->seqs, t->all_decode, sums + passed, pipelined_rate(l, t->rows, n_stages, turn));
}

struct split_speed predict_split(const struct rank_links *l, const tn_model_info *info, int n, enum node_split split,
                                 const struct ranks_times *t) {
    switch (split) {
    case SPLIT_STAGES: return predict_stages(l, info, n, t);
    case SPLIT_LAYERS: return predict_layers(l, info, n, t);
    default: return predict_rows(l, info, n, t);
    }
}

/* ---- Links of a job ---- */

static int by_seconds(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of a sum over the ranks of `net`, in seconds. */
static tn_status time_sums(tn_net *net, float *values, size_t n, int rounds, double *seconds) {
    enum { ROUNDS_MOST = 200 };
    double times[ROUNDS_MOST] = {0};
    if (rounds > ROUNDS_MOST) rounds = ROUNDS_MOST;
    for (int i = 0; i < rounds; i++) {
        const uint64_t begin = tn_time_ns();
        tn_status status = tn_net_all_reduce(net, values, values, n);
        if (status != TN_OK) return status;
        times[i] = (double)(tn_time_ns() - begin) * 1e-9;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_seconds);
    *seconds = times[rounds / 2];
    return TN_OK;
}

struct sum_times {
    double few, many; /* seconds of a sum of one number, and of MANY */
};
enum { MANY = 1 << 20 };

static tn_status measure_sums(tn_net *net, struct sum_times *t) {
    enum { FEW_ROUNDS = 200, MANY_ROUNDS = 9 };
    float *values = calloc(MANY, sizeof *values);
    if (!values) return TN_E_NOMEM;
    tn_status status = time_sums(net, values, 1, FEW_ROUNDS, &t->few);
    if (status == TN_OK) status = time_sums(net, values, MANY, MANY_ROUNDS, &t->many);
    free(values);
    return status;
}

/* The latency and rate with which the formula gives these times of `n` ranks: a large sum takes recursive doubling
 * or, from three ranks on, a ring. */
static struct wire wire_of(int n, struct sum_times t) {
    const double steps = ceil(log2(n)), bytes = MANY * sizeof(float);
    return (struct wire){.rate = bytes * fmin(steps, 2.0 * (n - 1) / n) / fmax(t.many - t.few, 1e-9),
                         .latency = fmax(t.few / steps, 1e-9)};
}

tn_status measure_links(tn_net *net, int per_machine, struct rank_links *l) {
    const int n = tn_net_size(net);
    const bool several = per_machine > 0 && per_machine < n;
    struct sum_times near = {0}, all;
    l->devices = several ? per_machine : n;
    l->link = l->net = (struct wire){64e9, 3e-6}; /* of a wire that no ranks use */
    tn_status status = TN_OK;
    if (l->devices > 1 && several) {
        tn_net *group;
        status = tn_net_group(net, tn_net_rank(net) / per_machine * per_machine, per_machine, &group);
        if (status == TN_OK) {
            status = measure_sums(group, &near);
            tn_net_free(group);
        }
    }
    if (status == TN_OK) status = measure_sums(net, &all);
    if (status != TN_OK) return status;
    if (!several) {
        l->link = wire_of(n, all);
        return TN_OK;
    }
    if (l->devices > 1) l->link = wire_of(l->devices, near);
    l->net = wire_of(n / l->devices, (struct sum_times){all.few - near.few, all.many - near.many});
    return TN_OK;
}

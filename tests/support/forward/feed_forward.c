/* The reference's feed-forward parts: dense and mixtures of experts. */
#include "forward/forward.h"

#include <math.h>
#include <string.h>

static double plain(const forward_model *m, double x) {
    const double beta = 0.5, below = beta + log1p(exp(0.8)), above = log1p(exp(0.8)); /* of xIELU without its keys */
    switch (m->f->act) {
    case ACT_RELU2: return fmax(0, x) * fmax(0, x);
    case ACT_GELU_ERF: return x / 2 * (1 + erf(x / sqrt(2)));
    case ACT_XIELU: return x > 0 ? above * x * x + beta * x : below * (expm1(x) - x) + beta * x;
    default: return forward_gelu(x);
    }
}
static bool is_plain(const forward_model *m) { return m->f->act >= ACT_GELU; }

void forward_dense(const forward_model *m, int il, double *x) {
    double up[FORWARD_MOST], gate[FORWARD_MOST], y[FORWARD_MOST];
    int n = forward_linear(m, il, "ffn_up", 0, x, up);
    const bool gated = forward_linear(m, il, "ffn_gate", 0, x, gate) > 0;
    if (!gated && !is_plain(m)) { /* one matrix: gates, then the others */
        n /= 2;
        memcpy(gate, up, sizeof up);
        memmove(up, up + n, (size_t)n * sizeof *up);
    }
    for (int i = 0; i < n; i++) y[i] = is_plain(m) && !gated ? plain(m, up[i]) : forward_gated(m, gate[i], up[i]);
    const float *sub = forward_weight(m, il, "ffn_sub_norm.weight");
    if (sub) forward_norm(m, m->f->mean, sub, NULL, n, m->eps, y);
    forward_linear(m, il, "ffn_down", 0, y, x);
}

/* One expert of matrices with these names. */
static void expert(const forward_model *m, int il, const char *const names[3], int e, const double *x, double *y) {
    double up[FORWARD_MOST], gate[FORWARD_MOST];
    const int n = forward_linear(m, il, names[0], e, x, up);
    const bool gated = forward_linear(m, il, names[1], e, x, gate) > 0;
    for (int i = 0; i < n; i++) up[i] = gated ? forward_gated(m, gate[i], up[i]) : plain(m, up[i]);
    forward_linear(m, il, names[2], e, up, y);
}
static const char *const routed[3] = {"ffn_up_exps", "ffn_gate_exps", "ffn_down_exps"},
                         *const common[3] = {"ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp"},
                         *const chunks[3] = {"ffn_up_chexps", "ffn_gate_chexps", "ffn_down_chexps"};

/* The number of values larger than x[i]. */
static int rank_of(const double *x, int n, int i) {
    int larger = 0;
    for (int o = 0; o < n; o++) larger += x[o] > x[i];
    return larger;
}

/* Only experts of the best groups stay in the race. A group is as good as its two best experts together. */
static void limit_groups(const forward_model *m, int n, double *ranked) {
    const int groups = (int)forward_key(m, "expert_group_count", 0), size = groups > 1 ? n / groups : n;
    double sums[FORWARD_MOST];
    for (int g = 0; g < groups && groups > 1; g++) {
        sums[g] = 0;
        for (int i = 0; i < size; i++)
            if (rank_of(ranked + g * size, size, i) < 2) sums[g] += ranked[g * size + i];
    }
    for (int g = 0; g < groups && groups > 1; g++)
        if (rank_of(sums, groups, g) >= (int)forward_key(m, "expert_group_used_count", 1))
            for (int i = 0; i < size; i++) ranked[g * size + i] = -INFINITY;
}

/* SparseMixer: the weight of the best of those that are left, by a soft-max over all that come close to it. */
static int mixed(const double *logits, int n, int without, double *weight) {
    int best = -1;
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (i != without && (best < 0 || logits[i] > logits[best])) best = i;
    for (int i = 0; i < n; i++) {
        const double larger = fmax(fabs(logits[i]), logits[best]);
        if (i != without && (logits[best] - logits[i]) / larger <= 0.02) sum += exp(logits[i] - logits[best]);
    }
    *weight = 1 / sum;
    return best;
}

/* Weights of all experts, 0 of those not in use; and the probabilities. */
static void choose(const forward_model *m, int il, int n, const double *logits, double *probs, double *weights,
                   int *by_rank) {
    const int used = (int)forward_key(m, "expert_used_count", 0);
    const float *bias = forward_weight(m, il, "exp_probs_b.bias");
    const forward_gating gating = m->f->gating;
    double ranked[FORWARD_MOST], total = 0, sum = 0;
    memset(weights, 0, (size_t)n * sizeof *weights);
    if (gating == GATE_MIXER) {
        const int first = mixed(logits, n, -1, &total), second = mixed(logits, n, first, &sum);
        weights[first] = total, weights[second] = sum;
        return;
    }
    const bool softmax = gating == GATE_SOFTMAX && forward_key(m, "expert_gating_func", 1) < 2;
    for (int e = 0; e < n; e++) total += exp(logits[e]);
    for (int e = 0; e < n; e++)
        probs[e] = softmax                            ? exp(logits[e]) / total
                   : gating == GATE_SOFTMAX_OF_CHOSEN ? logits[e]
                                                      : forward_sigmoid(logits[e]);
    for (int e = 0; e < n; e++) ranked[e] = probs[e] + (bias ? (double)bias[e] : 0);
    limit_groups(m, n, ranked);
    for (int e = 0; e < n; e++) {
        const int rank = rank_of(ranked, n, e);
        if (rank < used) by_rank[rank] = e;
        if (rank < used) weights[e] = gating == GATE_SOFTMAX_OF_CHOSEN ? exp(logits[e]) : probs[e];
        sum += weights[e];
    }
    for (int e = 0; e < n && (m->f->sum_to_one || gating == GATE_SOFTMAX_OF_CHOSEN); e++) weights[e] /= sum;
}

/* GroveMoE: a small expert for each group of the others reads their sum. Its weight is that of the expert with its
 * own number, as often as experts of its group are in use. */
static void add_chunks(const forward_model *m, int il, const double *probs, const int *by_rank, double *x) {
    const int group = (int)forward_key(m, "experts_per_group", 1), n = (int)forward_key(m, "expert_count", 0);
    const int used = (int)forward_key(m, "expert_used_count", 0), some = used < n / group ? used : n / group;
    double sum = 0, y[FORWARD_MOST], total[FORWARD_MOST] = {0};
    for (int i = 0; i < some; i++) sum += probs[by_rank[i] / group];
    for (int i = 0; i < some; i++) {
        const int chunk = by_rank[i] / group;
        expert(m, il, chunks, chunk, x, y);
        for (int k = 0; k < m->width; k++) total[k] += probs[chunk] / sum * y[k];
    }
    for (int k = 0; k < m->width; k++) x[k] += forward_key(m, "expert_group_scale", 1) * total[k];
}

void forward_experts(const forward_model *m, int il, const double *state, double *x) {
    double logits[FORWARD_MOST], probs[FORWARD_MOST], weights[FORWARD_MOST], y[FORWARD_MOST], in[FORWARD_MOST];
    double sum[FORWARD_MOST] = {0};
    int by_rank[FORWARD_MOST];
    const int n = forward_linear(m, il, "ffn_gate_inp", 0, state, logits);
    choose(m, il, n, logits, probs, weights, by_rank);
    int width = forward_linear(m, il, "ffn_routed_down", 0, x, in);
    if (!width) memcpy(in, x, sizeof in), width = m->width;
    for (int e = 0; e < n; e++) {
        double scaled[FORWARD_MOST];
        const bool before = forward_is(m, "llama4"); /* the weight multiplies what the expert reads */
        if (weights[e] == 0) continue;
        for (int i = 0; i < width; i++) scaled[i] = in[i] * (before ? weights[e] : 1);
        expert(m, il, routed, e, scaled, y);
        for (int i = 0; i < width; i++) sum[i] += (before ? 1 : weights[e]) * y[i];
    }
    if (forward_tensor(m, il, "ffn_up_chexps.weight")) add_chunks(m, il, probs, by_rank, sum);
    forward_norm_named(m, il, "ffn_routed_norm", width, sum);
    if (forward_linear(m, il, "ffn_routed_up", 0, sum, y)) memcpy(sum, y, sizeof sum);
    if (forward_tensor(m, il, "ffn_up_shexp.weight")) {
        double gate = 1;
        const float *w = forward_weight(m, il, "ffn_gate_inp_shexp.weight");
        expert(m, il, common, 0, x, y);
        if (w) {
            gate = 0;
            for (int i = 0; i < m->width; i++) gate += (double)w[i] * x[i];
            gate = forward_sigmoid(gate);
        }
        for (int i = 0; i < m->width; i++) sum[i] += gate * y[i];
        for (int i = 0; i < m->width && forward_is(m, "cohere2moe"); i++) sum[i] /= 2;
    }
    memcpy(x, sum, sizeof sum);
}

void forward_feed(const forward_model *m, int il, const double *state, double *x) {
    if (!m->layer[il].experts) {
        forward_dense(m, il, x);
        return;
    }
    double dense[FORWARD_MOST];
    const bool beside = forward_is(m, "grok") && forward_tensor(m, il, "ffn_up.weight");
    memcpy(dense, x, sizeof dense);
    if (state != x) {
        forward_experts(m, il, state, x);
    } else {
        double copy[FORWARD_MOST];
        memcpy(copy, x, sizeof copy);
        forward_experts(m, il, copy, x);
    }
    if (!beside) return;
    forward_dense(m, il, dense);
    for (int i = 0; i < m->width; i++) x[i] = (x[i] + dense[i]) * sqrt(0.5);
}

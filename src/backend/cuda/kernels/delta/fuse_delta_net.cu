// Fusing a gated delta net's step of one token: the convolution, norms and gates before a linear attention run inside
// it, and the gated norm after it as well.
#include "backend/cuda/compiler.cuh"
#include "backend/cuda/kernels/delta/delta_net.cuh"

#include "tenon/recurrent.h"

#include <algorithm>

// Nodes that run inside a linear attention, in their order.
enum { DELTA_NODES = 7 };
struct delta_nodes {
    int at[DELTA_NODES];
};

// The node that t shows whole, if its op is this one and nothing else reads it; otherwise NULL.
static const tn_tensor *inner_node(const compiler *f, const tn_tensor *t, tn_op op) {
    const int at = t ? index_of_whole(f, t) : -1;
    return at >= 0 && f->nodes[at]->op == op && only_read_by(f, at, 1) ? f->nodes[at] : NULL;
}
// Matches what linear attention i reads.
static bool match_sources(const compiler *f, int i, gated_delta *n, delta_nodes *nodes) {
    const tn_tensor *t = f->nodes[i];
    *n = {};
    n->attention = t;
    n->q = inner_node(f, t->src[TN_LINEAR_Q], TN_OP_L2_NORM);
    n->k = inner_node(f, t->src[TN_LINEAR_K], TN_OP_L2_NORM);
    n->g = inner_node(f, t->src[TN_LINEAR_G], TN_OP_MUL);
    n->beta = inner_node(f, t->src[TN_LINEAR_BETA], TN_OP_SIGMOID);
    if (!n->q || !n->k || !n->g || !n->beta) return false;
    n->softplus = inner_node(f, n->g->src[0], TN_OP_SOFTPLUS);
    n->add = n->softplus ? inner_node(f, n->softplus->src[0], TN_OP_ADD) : NULL;
    const int conv = index_of(f, t->src[TN_LINEAR_V]);
    if (!n->add || conv < 0 || f->nodes[conv]->op != TN_OP_CAUSAL_CONV || index_of(f, n->q->src[0]) != conv ||
        index_of(f, n->k->src[0]) != conv || !only_read_by(f, conv, 3))
        return false;
    n->conv = f->nodes[conv];
    n->alpha = n->add->src[0];
    n->bias = n->add->src[1];
    n->decay = n->g->src[1];
    n->raw_beta = n->beta->src[0];
    const tn_tensor *all[DELTA_NODES] = {n->conv, n->q, n->k, n->add, n->softplus, n->g, n->beta};
    for (int k = 0; k < DELTA_NODES; k++) nodes->at[k] = index_of(f, all[k]);
    std::sort(nodes->at, nodes->at + DELTA_NODES);
    return true;
}
// Matches the gated norm after it, which only matmuls read.
static bool match_gated_norm(const compiler *f, int i, gated_delta *n, int *gate, matmul_group *next) {
    const int norm = next_node(f, i);
    *gate = next_node(f, norm);
    if (*gate >= f->n || !only_read_by(f, i, 1) || !only_read_by(f, norm, 1)) return false;
    n->norm = f->nodes[norm];
    n->gate = f->nodes[*gate];
    if (n->norm->op != TN_OP_RMS_NORM || index_of_whole(f, n->norm->src[0]) != i ||
        tn_op_get_family(n->gate->op) != TN_FAMILY_GLU || !n->gate->src[1])
        return false;
    const bool first = index_of_whole(f, n->gate->src[0]) == norm,
               second = index_of_whole(f, n->gate->src[1]) == norm;
    n->z = n->gate->src[first ? 1 : 0];
    return first != second && is_rows(n->gate) && feeds_group(f, *gate, *gate, next);
}

static void mark_delta_nodes(compiler *f, const delta_nodes &nodes, bool done) {
    for (int node : nodes.at) f->info[node].done = done;
}
void mark_delta_nets(compiler *f) {
    for (int i = 0; i < f->n; i++) {
        gated_delta n;
        delta_nodes nodes;
        matmul_group next;
        int gate;
        if (f->nodes[i]->op != TN_OP_LINEAR_ATTENTION || !match_sources(f, i, &n, &nodes)) continue;
        bool fits = nodes.at[DELTA_NODES - 1] < i;
        for (int node : nodes.at) fits = fits && !f->info[node].done;
        if (!fits || !match_gated_norm(f, i, &n, &gate, &next) || !delta_net_supports(n)) continue;
        mark_delta_nodes(f, nodes, true);
        // The plan keeps these only until the nodes that run inside the attention.
        const tn_tensor *late[] = {n.conv->src[TN_CONV_X], n.alpha, n.bias, n.decay, n.raw_beta};
        for (const tn_tensor *source : late) fits = fits && survives_until(f, source, index_of(f, source), i);
        if (!fits) mark_delta_nodes(f, nodes, false);
        f->info[i].runs_delta_net = fits;
    }
}

tn_status fuse_delta_net(compiler *f, const compilation &c, int i, bool *matched) {
    gated_delta n;
    delta_nodes nodes;
    matmul_group group;
    gemv_next next = {};
    int gate;
    *matched = f->info[i].runs_delta_net;
    if (!*matched || !match_sources(f, i, &n, &nodes)) return TN_OK;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    if (!match_gated_norm(f, i, &n, &gate, &group)) {
        // Separate launches, as late as the attention.
        for (int node : nodes.at) {
            fuse_node(f, node);
            TN_TRY(node_compile(c, f->nodes[node]));
            TN_TRY(assign_nodes(f, c));
        }
        *matched = false;
        return TN_OK;
    }
    for (int node : nodes.at) fuse_node(f, node);
    for (int node : {i, index_of(f, n.norm), gate}) fuse_node(f, node);
    const activations form = new_activations(f, group, n.gate->ne[0], 1, NULL, &next);
    leave_pending(f, n.gate, group.family, form);
    return compile_delta_net(c, n, next, index_of(f, n.attention->src[TN_RECURRENT_STEPS]) < 0);
}

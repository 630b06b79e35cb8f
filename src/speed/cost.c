/* What a node reads, writes and computes, from its op and shapes. */
#include "speed/speed_internal.h"

#include "base/checked.h"
#include "tenon/recurrent.h"

#include <math.h>

static double row_bytes_of(const tn_tensor *t) {
    return (double)t->ne[0] / (double)tn_type_block(t->type) * (double)tn_type_bytes(t->type);
}
static double data_bytes(const tn_tensor *t) { return t ? row_bytes_of(t) * (double)tn_nrows(t) : 0; }

double tn__experts_in_use(const tn_tensor *ids, double n_experts) {
    const double tokens = (double)ids->ne[1] * (double)ids->ne[2], used = (double)ids->ne[0];
    if (n_experts <= 0) return 0;
    return n_experts * (1 - pow(1 - fmin(used / n_experts, 1), tokens));
}

static tn__cost multiply_cost(const tn_tensor *node) {
    const tn_tensor *x = node->src[0], *y = node->src[1];
    tn__cost c = {.kind = TN__COST_MULTIPLY, .type = x->type, .rows = (double)y->ne[1], .weights = data_bytes(x)};
    if (x->ne[2] == 1 && x->ne[3] == 1) c.rows = (double)tn_nrows(y);
    c.bytes = c.weights + data_bytes(y) + data_bytes(node);
    c.operations = 2 * (double)tn_nelements(node) * (double)(node->op == TN_OP_OUT_PROD ? x->ne[1] : x->ne[0]);
    return c;
}

static tn__cost experts_cost(const tn_tensor *node) {
    const tn_tensor *x = node->src[0], *y = node->src[1], *ids = node->src[2];
    const double in_use = tn__experts_in_use(ids, (double)x->ne[2]);
    tn__cost c = {.kind = TN__COST_EXPERTS, .type = x->type};
    c.weights = x->ne[2] ? data_bytes(x) * in_use / (double)x->ne[2] : 0;
    c.rows = in_use > 0 ? (double)tn_nelements(ids) / in_use : 0;
    c.bytes = c.weights + data_bytes(y) + data_bytes(node);
    c.operations = 2 * (double)tn_nelements(node) * (double)x->ne[0];
    return c;
}

static const tn_tensor *root_of(const tn_tensor *t) { return t->view_src ? t->view_src : t; }
/* The rows of a run are divided evenly among the sequences. Row i of a sequence sees the cells before the run and, if
 * attention is causal, i + 1 of the run's own. */
static tn__cost attention_cost(const tn_tensor *node, const tn_predict_params *p) {
    const tn_tensor *q = node->src[TN_ATTN_Q], *k = node->src[TN_ATTN_K], *v = node->src[TN_ATTN_V];
    const tn_attention_params *a = &node->params.attention;
    const tn_tensor *selected = node->src[TN_ATTN_SELECTED];
    const bool cached = node->src[TN_ATTN_Q_POS] != NULL;
    const double tokens = (double)q->ne[2], heads = (double)q->ne[1], batch = (double)q->ne[3];
    const double seqs = cached ? fmin(fmax(1, (double)p->n_seqs), tokens) : 1;
    const double rows = tokens / fmax(seqs, 1);
    const double past = cached ? (double)p->n_past : fmax(0, (double)(k->ne[2] - q->ne[2]));
    double mean = past + (a->causal ? (rows + 1) / 2 : rows), reach = past + rows;
    if (a->window > 0) {
        mean = fmin(mean, (double)a->window);
        reach = fmin(reach, (double)a->window + rows);
    }
    if (a->chunk > 0) mean = fmin(mean, (double)a->chunk);
    if (!a->causal && !cached) mean = reach = (double)k->ne[2];
    if (!a->causal && a->window > 0 && a->window_after > 0)
        mean = fmin(mean, (double)a->window + (double)a->window_after - 1);
    if (selected) { /* each row reads its own */
        mean = fmin(mean, (double)selected->ne[0] * (a->select_block > 1 ? a->select_block : 1));
        reach = fmin(reach, rows * mean);
    }
    const double cells = fmin(reach * seqs, (double)k->ne[2]);
    tn__cost c = {.kind = TN__COST_ATTENTION, .type = k->type, .rows = rows};
    c.keys = batch * cells * (double)k->ne[1];
    c.weights = c.keys * (row_bytes_of(k) + row_bytes_of(v));
    c.bytes = c.weights + data_bytes(q) + data_bytes(node) + data_bytes(selected);
    if (root_of(k) == root_of(v)) c.bytes -= c.keys * row_bytes_of(v); /* V is a part of K's rows */
    c.scores = batch * tokens * heads * mean;
    c.operations = 2 * c.scores * (double)(k->ne[0] + v->ne[0]);
    return c;
}

/* As in causal attention over the keys alone. */
static tn__cost select_cost(const tn_tensor *node, const tn_predict_params *p) {
    const tn_tensor *q = node->src[TN_SELECT_Q], *keys = node->src[TN_SELECT_KEYS];
    const double tokens = (double)q->ne[2], seqs = fmin(fmax(1, (double)p->n_seqs), tokens),
                 rows = tokens / fmax(seqs, 1);
    double mean = (double)p->n_past + (rows + 1) / 2, reach = (double)p->n_past + rows;
    if (node->params.select.window > 0) {
        mean = fmin(mean, (double)node->params.select.window);
        reach = fmin(reach, (double)node->params.select.window + rows);
    }
    tn__cost c = {.kind = TN__COST_ATTENTION, .type = keys->type, .rows = rows};
    c.keys = fmin(reach * seqs, (double)keys->ne[1]);
    c.weights = c.keys * row_bytes_of(keys);
    c.bytes = c.weights + data_bytes(q) + data_bytes(node);
    c.scores = tokens * (double)q->ne[1] * mean;
    c.operations = 2 * c.scores * (double)q->ne[0];
    return c;
}

/* Operations per element of the state and token: decay, update and output; the delta rule and RWKV 7 add one more sum
 * and its use, the selective scan an exponential (counted as ten). */
static double recurrent_operations(const tn_tensor *node) {
    const double tokens = (double)node->src[TN_RECURRENT_STEPS]->ne[1],
                 elements = tokens * (double)node->src[TN_RECURRENT_STATE]->ne[0];
    switch (node->op) {
    case TN_OP_CAUSAL_CONV: return 2 * (double)tn_nelements(node) * (double)node->src[TN_CONV_W]->ne[0];
    case TN_OP_LINEAR_ATTENTION: return elements * (node->params.linear_attention.delta ? 7 : 5);
    case TN_OP_SELECTIVE_SCAN: return elements * 16;
    default: return elements * 8;
    }
}

/* Every sequence reads and writes one row of the state. */
static tn__cost recurrent_cost(const tn_tensor *node, const tn_predict_params *p) {
    const double tokens = (double)node->src[TN_RECURRENT_STEPS]->ne[1],
                 seqs = fmin(fmax(1, (double)p->n_seqs), tokens);
    tn__cost c = {.kind = TN__COST_RECURRENT, .type = TN_F32, .rows = tokens / fmax(seqs, 1)};
    c.weights = 2 * seqs * row_bytes_of(node->src[TN_RECURRENT_STATE]);
    c.bytes = c.weights + data_bytes(node);
    for (int i = TN_RECURRENT_STEPS; i < TN_MAX_SRC; i++) c.bytes += data_bytes(node->src[i]);
    c.operations = recurrent_operations(node);
    return c;
}

/* Of tables only the rows that are named are read or written. */
static tn__cost other_cost(const tn_tensor *node) {
    tn__cost c = {.kind = TN__COST_OTHER, .type = node->type};
    switch (node->op) {
    case TN_OP_GET_ROWS:
        c.bytes = data_bytes(node) + row_bytes_of(node->src[0]) * (double)tn_nelements(node->src[1]);
        break;
    case TN_OP_SET_ROWS:
        c.bytes = data_bytes(node->src[1]) + row_bytes_of(node) * (double)tn_nrows(node->src[1]);
        break;
    case TN_OP_CPY: c.bytes = data_bytes(node->src[0]) + data_bytes(node); break;
    case TN_OP_ACC:
    case TN_OP_SET: /* in place */ c.bytes = 3 * data_bytes(node->src[1]); break;
    default:
        c.bytes = data_bytes(node);
        for (int i = 0; i < TN_MAX_SRC; i++) c.bytes += data_bytes(node->src[i]);
    }
    return c;
}

tn__cost tn__node_cost(const tn_tensor *node, const tn_predict_params *params) {
    switch (node->op) {
    case TN_OP_MUL_MAT:
    case TN_OP_OUT_PROD: return multiply_cost(node);
    case TN_OP_MUL_MAT_ID: return experts_cost(node);
    case TN_OP_ATTENTION: return attention_cost(node, params);
    case TN_OP_SELECT_POSITIONS: return select_cost(node, params);
    default:
        return tn_op_get_family(node->op) == TN_FAMILY_RECURRENT ? recurrent_cost(node, params) : other_cost(node);
    }
}

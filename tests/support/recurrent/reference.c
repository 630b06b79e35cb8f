/* The reference implementation: recurrent layers, one token and one element of the state after another. */
#include "reference_array.h"

#include "tenon/recurrent.h"

typedef struct recurrence {
    const tn_tensor *node;
    array src[TN_MAX_SRC];
    double *state; /* all rows */
    int64_t row, rows, tokens;
    double *out;
    double *most; /* the largest sum of magnitudes of the terms of a result */
} recurrence;

/* Adds a term of a result and its magnitude. */
static void add_term(double term, double *sum, double *magnitude) {
    *sum += term;
    *magnitude += fabs(term);
}
static void finish(const recurrence *c, int64_t element, double result, double magnitude) {
    c->out[element] = result;
    *c->most = fmax(*c->most, magnitude);
}

static double silu_of(double x) { return x / (1 + exp(-x)); }

static void conv_step(const recurrence *c, int64_t t, double *s) {
    const array *x = &c->src[TN_CONV_X], *w = &c->src[TN_CONV_W], *bias = &c->src[TN_CONV_BIAS];
    const int64_t channels = x->n0, width = w->n0;
    for (int64_t i = 0; i < channels; i++) {
        double y = bias->t ? at(bias, i, 0, 0, 0) : 0, size = fabs(y), now = at(x, i, t, 0, 0);
        for (int64_t j = 0; j < width; j++)
            add_term(at(w, j, i, 0, 0) * (j + 1 < width ? s[j * channels + i] : now), &y, &size);
        for (int64_t j = 0; j + 1 < width; j++) s[j * channels + i] = j + 2 < width ? s[(j + 1) * channels + i] : now;
        finish(c, t * channels + i, c->node->params.causal_conv.silu ? silu_of(y) : y, size);
    }
}

static void linear_step(const recurrence *c, int64_t t, double *state) {
    const array *q = &c->src[TN_LINEAR_Q], *k = &c->src[TN_LINEAR_K], *v = &c->src[TN_LINEAR_V],
                *g = &c->src[TN_LINEAR_G], *beta = &c->src[TN_LINEAR_BETA], *u = &c->src[TN_LINEAR_U];
    const tn_linear_attention_params *p = &c->node->params.linear_attention;
    const int64_t dk = q->n0, dv = v->n0, heads = v->n1;
    for (int64_t h = 0; h < heads; h++) {
        const int64_t kh = p->tiled ? h % q->n1 : h / (heads / q->n1);
        for (int64_t j = 0; j < dv; j++) {
            double *s = state + (h * dv + j) * dk, predicted = 0, o = 0, size = 0;
            for (int64_t i = 0; i < dk; i++) {
                if (u->t) add_term(s[i] * at(q, i, kh, t, 0), &o, &size);
                if (g->t) s[i] *= exp(at(g, g->n0 > 1 ? i : 0, h, t, 0));
                predicted += s[i] * at(k, i, kh, t, 0);
            }
            const double value = at(v, j, h, t, 0) - (p->delta ? predicted : 0);
            const double added = (beta->t ? at(beta, 0, h, t, 0) : 1) * value;
            for (int64_t i = 0; i < dk; i++) {
                const double kq = at(k, i, kh, t, 0) * added * at(q, i, kh, t, 0);
                s[i] += at(k, i, kh, t, 0) * added;
                add_term(u->t ? at(u, i, h, 0, 0) * kq : s[i] * at(q, i, kh, t, 0), &o, &size);
            }
            finish(c, (t * heads + h) * dv + j, p->scale * o, p->scale * size);
        }
    }
}

static void scan_step(const recurrence *c, int64_t t, double *state) {
    const array *x = &c->src[TN_SCAN_X], *dt = &c->src[TN_SCAN_DT], *A = &c->src[TN_SCAN_A], *B = &c->src[TN_SCAN_B],
                *C = &c->src[TN_SCAN_C];
    for (int64_t i = 0; i < x->n0; i++) {
        const double step = at(dt, i, t, 0, 0);
        double y = 0, size = 0;
        for (int64_t n = 0; n < A->n0; n++) {
            double *s = &state[i * A->n0 + n];
            *s = exp(step * at(A, n, i, 0, 0)) * *s + step * at(x, i, t, 0, 0) * at(B, n, t, 0, 0);
            add_term(*s * at(C, n, t, 0, 0), &y, &size);
        }
        finish(c, t * x->n0 + i, y, size);
    }
}

static void rwkv7_step(const recurrence *c, int64_t t, double *state) {
    const array *r = &c->src[TN_RWKV7_R], *w = &c->src[TN_RWKV7_W], *k = &c->src[TN_RWKV7_K],
                *v = &c->src[TN_RWKV7_V], *a = &c->src[TN_RWKV7_A], *b = &c->src[TN_RWKV7_B];
    const int64_t d = r->n0;
    for (int64_t h = 0; h < r->n1; h++)
        for (int64_t j = 0; j < d; j++) {
            double *s = state + (h * d + j) * d, sa = 0, o = 0, size = 0;
            for (int64_t i = 0; i < d; i++) sa += s[i] * at(a, i, h, t, 0);
            for (int64_t i = 0; i < d; i++) {
                s[i] = s[i] * at(w, i, h, t, 0) + sa * at(b, i, h, t, 0) + at(v, j, h, t, 0) * at(k, i, h, t, 0);
                add_term(s[i] * at(r, i, h, t, 0), &o, &size);
            }
            finish(c, (t * r->n1 + h) * d + j, o, size);
        }
}

/* Follows the definition: from every first token along the links on which both ends agree. */
static void run_recurrence(recurrence *c) {
    const int32_t(*steps)[4] = c->node->src[TN_RECURRENT_STEPS]->data;
    double *s = malloc(((size_t)c->row + 1) * sizeof *s);
    memset(c->out, 0, (size_t)tn_nelements(c->node) * sizeof *c->out);
    for (int64_t first = 0; first < c->tokens; first++) {
        if (steps[first][0] != -1 || steps[first][2] < -1 || steps[first][2] >= c->rows) continue;
        for (int64_t i = 0; i < c->row; i++) s[i] = steps[first][2] < 0 ? 0 : c->state[steps[first][2] * c->row + i];
        for (int64_t t = first; t >= 0;) {
            switch (c->node->op) {
            case TN_OP_CAUSAL_CONV: conv_step(c, t, s); break;
            case TN_OP_LINEAR_ATTENTION: linear_step(c, t, s); break;
            case TN_OP_SELECTIVE_SCAN: scan_step(c, t, s); break;
            default: rwkv7_step(c, t, s);
            }
            const int64_t write = steps[t][3], next = steps[t][1];
            if (write >= 0 && write < c->rows) memcpy(c->state + write * c->row, s, (size_t)c->row * sizeof *s);
            t = next > t && next < c->tokens && steps[next][0] == t ? next : -1;
        }
    }
    free(s);
}

static double *recurrence_of(const tn_tensor *node, double *out, double *most) {
    const tn_tensor *state = node->src[TN_RECURRENT_STATE];
    recurrence c = {.node = node,
                    .state = reference_values(state),
                    .row = state->ne[0],
                    .rows = state->ne[1],
                    .tokens = node->src[TN_RECURRENT_STEPS]->ne[1],
                    .out = out,
                    .most = most};
    for (int i = TN_RECURRENT_STEPS + 1; i < TN_MAX_SRC; i++) c.src[i] = load(node->src[i]);
    run_recurrence(&c);
    for (int i = 0; i < TN_MAX_SRC; i++) free(c.src[i].v);
    return c.state;
}

void reference_recurrent(const tn_tensor *node, double *out, double *scale) {
    double most = 0;
    free(recurrence_of(node, out, &most));
    for (int64_t i = 0; i < tn_nelements(node); i++) scale[i] = most;
}

double *reference_state(const tn_tensor *node) {
    double *out = malloc(((size_t)tn_nelements(node) + 1) * sizeof *out), most = 0;
    double *state = recurrence_of(node, out, &most);
    free(out);
    return state;
}

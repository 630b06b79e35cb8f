/* Activations of the feed-forward part. */
#include "llm/build/builder.h"

#include <math.h>

/* xIELU: αp·x² + β·x above zero, αn·(eˣ − 1 − x) + β·x below. elu(x) − x is zero above zero, so that both sides are
 * one sum. */
static tn_tensor *build_xielu(const tn__builder *b, const tn__layer_hparams *l, tn_tensor *x) {
    tn_tensor *above = tn_scale(b->a, tn_sqr(b->a, tn_relu(b->a, x)), l->xielu_p, 0);
    tn_tensor *below = tn_scale(b->a, tn_sub(b->a, tn_elu(b->a, x), x), l->xielu_n, 0);
    return tn_add(b->a, tn_add(b->a, above, below), tn_scale(b->a, x, l->xielu_beta, 0));
}

static tn_tensor *build_squared_relu(const tn__builder *b, tn_tensor *x) { return tn_sqr(b->a, tn_relu(b->a, x)); }

tn_tensor *tn__build_activation(const tn__builder *b, const tn__layer *l, tn_tensor *x) {
    const tn__hparams *h = b->h;
    tn_tensor *y = h->squared_relu ? build_squared_relu(b, x)
                   : h->xielu      ? build_xielu(b, &h->layers[l - b->m->w.layers], x)
                                   : tn_unary(b->a, h->activation, x);
    return tn__name_node(b, y, "ffn_act");
}

/* bound · tanh(x / bound) */
static tn_tensor *build_bounded(const tn__builder *b, tn_tensor *x, float bound) {
    return tn_scale(b->a, tn_tanh(b->a, tn_scale(b->a, x, 1 / bound, 0)), bound, 0);
}
/* SiTU: the bounded gate times its sigmoid, times up, which may be bounded as well. */
static tn_tensor *build_situ(const tn__builder *b, tn_tensor *gate, tn_tensor *up) {
    const float linear = b->h->situ_linear_beta;
    tn_tensor *x = tn_mul(b->a, build_bounded(b, gate, b->h->situ_beta), tn_sigmoid(b->a, gate));
    return tn_mul(b->a, x, linear > 0 ? build_bounded(b, up, linear) : up);
}

tn_tensor *tn__build_gated(const tn__builder *b, tn_tensor *gate, tn_tensor *up, float limit) {
    if (limit > 0 && up) {
        gate = tn_clamp(b->a, tn_silu(b->a, gate), -INFINITY, limit);
        return tn__name_node(b, tn_mul(b->a, gate, tn_clamp(b->a, up, -limit, limit)), "ffn_act");
    }
    if (!b->h->squared_relu && !(b->h->situ_beta > 0))
        return tn__name_node(b, tn_glu(b->a, b->h->activation, gate, up, false), "ffn_act");
    if (!up && gate) {
        const int64_t half = gate->ne[0] / 2;
        up = tn__build_columns(b, gate, half, half);
        gate = tn__build_columns(b, gate, 0, half);
    }
    tn_tensor *y = b->h->squared_relu ? tn_mul(b->a, build_squared_relu(b, gate), up) : build_situ(b, gate, up);
    return tn__name_node(b, y, "ffn_act");
}

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

tn_tensor *tn__build_gated(const tn__builder *b, tn_tensor *gate, tn_tensor *up, float limit) {
    if (limit > 0 && up) {
        gate = tn_clamp(b->a, tn_silu(b->a, gate), -INFINITY, limit);
        return tn__name_node(b, tn_mul(b->a, gate, tn_clamp(b->a, up, -limit, limit)), "ffn_act");
    }
    if (!b->h->squared_relu) return tn__name_node(b, tn_glu(b->a, b->h->activation, gate, up, false), "ffn_act");
    if (!up && gate) {
        const int64_t half = gate->ne[0] / 2;
        up = tn__build_columns(b, gate, half, half);
        gate = tn__build_columns(b, gate, 0, half);
    }
    return tn__name_node(b, tn_mul(b->a, build_squared_relu(b, gate), up), "ffn_act");
}

/* PLaMo 2's Mamba: heads as in Mamba-2, whose step sizes, inputs and outputs come from a matrix of their own as in
 * Mamba, each normalised. */
#include "llm/parts/mixers.h"

static void plamo_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    (void)il;
    m->state[0] = (h->ssm.width - 1) * h->ssm.inner;
    m->state[1] = h->ssm.state * h->ssm.inner;
}

static tn_tensor *build_plamo_mamba(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__hparams *h = b->h;
    const int32_t inner = h->ssm.inner, state = h->ssm.state, heads = h->ssm.heads, head = inner / heads;
    const float eps = h->norm_eps;
    tn_tensor *steps = tn__builder_input(b, TN__INPUT_STEPS);
    tn_arena *a = b->a;
    tn_tensor *zx = tn__build_linear(b, l->ssm_in, NULL, NULL, x, "ssm_in");
    if (!zx) return NULL;
    /* For every head its gate, then its input. */
    const int64_t tokens = x->ne[1], ne[] = {head, heads, tokens};
    const size_t nb[] = {4, (size_t)(2 * head) * 4, zx->nb[1]};
    tn_tensor *z = tn_cont(a, tn_view(a, zx, 3, ne, nb, 0));
    tn_tensor *u = tn_cont(a, tn_view(a, zx, 3, ne, nb, (size_t)head * 4));
    u = tn_causal_conv(a, tn_reshape(a, u, inner, tokens), l->ssm_conv, l->ssm_conv_b, tn__layer_state(b, il, 0),
                       steps, true);
    tn_tensor *parts = tn__build_linear(b, l->ssm_x, NULL, NULL, tn__name_node(b, u, "ssm_conv"), "ssm_x");
    if (!parts) return NULL;
    tn_tensor *k = tn_rms_norm(a, tn__build_columns(b, parts, 0, state), l->ssm_b_norm, eps);
    tn_tensor *q = tn_rms_norm(a, tn__build_columns(b, parts, state, state), l->ssm_c_norm, eps);
    tn_tensor *dt =
        tn_rms_norm(a, tn__build_columns(b, parts, 2 * state, parts->ne[0] - 2 * state), l->ssm_dt_norm, eps);
    dt = tn_softplus(a, tn__build_linear(b, l->ssm_dt, NULL, l->ssm_dt_b, dt, "ssm_dt"));
    dt = tn_reshape(a, dt, 1, heads, tokens);
    u = tn_reshape(a, u, head, heads, tokens);
    const tn_linear_attention_sources sources = {.q = tn_reshape(a, q, state, 1, tokens),
                                                 .k = tn_reshape(a, k, state, 1, tokens),
                                                 .v = tn_mul(a, u, dt),
                                                 .g = tn_mul(a, dt, tn_reshape(a, l->ssm_a, 1, heads)),
                                                 .state = tn__layer_state(b, il, 1),
                                                 .steps = steps};
    tn_tensor *y = tn_linear_attention(a, &sources, &(tn_linear_attention_params){.scale = 1});
    y = tn_add(a, tn__name_node(b, y, "ssm_scan"), tn_mul(a, u, tn_reshape(a, l->ssm_d, 1, heads)));
    y = tn_swiglu(a, tn_reshape(a, z, inner, tokens), tn_reshape(a, y, inner, tokens));
    return tn__build_linear(b, l->ssm_out, NULL, NULL, y, "ssm_out");
}

const tn__mixer tn__plamo_mamba = {
    .name = "PLaMo's Mamba", .kinds = TN__MIXES_PLAMO_MAMBA, .memory = plamo_memory, .build = build_plamo_mamba};

/* Gated delta networks (Qwen 3 Next, Qwen 3.5): a convolution over queries, keys and values, linear attention with
 * the delta rule, and a gated norm. */
#include "llm/parts/mixers.h"

#include <math.h>

static void delta_net_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    (void)il;
    m->state[0] = (h->ssm.width - 1) * (h->ssm.inner + 2 * h->ssm.groups * h->ssm.state);
    m->state[1] = h->ssm.state * h->ssm.inner;
}

/* Strength of the update and logarithm of the decay, [1, heads, tokens] each. */
typedef struct delta_gates {
    tn_tensor *beta, *g;
} delta_gates;

static delta_gates build_delta_gates(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const int64_t heads = b->h->ssm.heads, groups = b->h->ssm.groups, share = heads / groups, tokens = x->ne[1];
    tn_arena *a = b->a;
    tn_tensor *beta, *alpha;
    if (l->ssm_beta_alpha) { /* for every group beta of its heads, then alpha */
        tn_tensor *both = tn__build_linear(b, l->ssm_beta_alpha, l->ssm_beta_alpha_s, NULL, x, "ssm_beta_alpha");
        if (!both) return (delta_gates){NULL, NULL};
        const int64_t ne[] = {share, groups, tokens};
        const size_t nb[] = {4, (size_t)(2 * share) * 4, both->nb[1]};
        beta = tn_cont(a, tn_view(a, both, 3, ne, nb, 0));
        alpha = tn_cont(a, tn_view(a, both, 3, ne, nb, (size_t)share * 4));
    } else {
        beta = tn__build_linear(b, l->ssm_beta, l->ssm_beta_s, NULL, x, "ssm_beta");
        alpha = tn__build_linear(b, l->ssm_alpha, l->ssm_alpha_s, NULL, x, "ssm_alpha");
        tn__append_now(b, beta);
        tn__append_now(b, alpha);
    }
    alpha = tn_softplus(a, tn_add(a, tn_reshape(a, alpha, heads, tokens), l->ssm_dt_b));
    alpha = tn_mul(a, alpha, l->ssm_a);
    return (delta_gates){tn_sigmoid(a, tn_reshape(a, beta, 1, heads, tokens)),
                         tn__name_node(b, tn_reshape(a, alpha, 1, heads, tokens), "ssm_decay")};
}

static tn_tensor *unit_heads(const tn__builder *b, tn_tensor *conv, size_t offset) {
    tn_tensor *heads = tn__split_heads(b, conv, b->h->ssm.state, b->h->ssm.groups, offset);
    return tn_l2_norm(b->a, heads, b->h->norm_eps);
}

static tn_tensor *build_delta_net(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__hparams *h = b->h;
    const int32_t inner = h->ssm.inner, heads = h->ssm.heads, head = inner / heads;
    const size_t keys = (size_t)h->ssm.groups * (size_t)h->ssm.state * 4;
    tn_arena *a = b->a;
    if (!x) return NULL;
    const int64_t tokens = x->ne[1];
    tn_tensor *qkv = tn__build_linear(b, l->wqkv, l->sqkv, NULL, x, "ssm_qkv");
    tn_tensor *z = tn__build_linear(b, l->attn_gate, l->attn_gate_s, NULL, x, "ssm_gate");
    /* Matmuls of one input follow each other, so that devices can multiply them in one step. */
    tn__append_now(b, z);
    tn__append_now(b, qkv);
    const delta_gates gates = build_delta_gates(b, il, x);
    tn_tensor *steps = tn__builder_input(b, TN__INPUT_STEPS);
    tn_tensor *conv = tn__name_node(
        b, tn_causal_conv(a, qkv, l->ssm_conv, l->ssm_conv_b, tn__layer_state(b, il, 0), steps, true), "ssm_conv");
    const tn_linear_attention_sources sources = {.q = unit_heads(b, conv, 0),
                                                 .k = unit_heads(b, conv, keys),
                                                 .v = tn__split_heads(b, conv, head, heads, 2 * keys),
                                                 .g = gates.g,
                                                 .beta = gates.beta,
                                                 .state = tn__layer_state(b, il, 1),
                                                 .steps = steps};
    const tn_linear_attention_params p = {
        .scale = 1 / sqrtf((float)h->ssm.state), .delta = true, .tiled = b->arch->tiled_heads};
    tn_tensor *y = tn__name_node(b, tn_linear_attention(a, &sources, &p), "ssm_scan");
    y = tn__name_node(b, tn_rms_norm(a, y, l->ssm_norm, h->norm_eps), "ssm_norm");
    y = tn_swiglu(a, z, tn_reshape(a, y, inner, tokens));
    return tn__build_linear(b, l->ssm_out, l->ssm_out_s, NULL, y, "ssm_out");
}

const tn__mixer tn__delta_net = {.name = "gated delta network",
                                 .kinds = TN__MIXES_DELTA_NET,
                                 .memory = delta_net_memory,
                                 .build = build_delta_net};

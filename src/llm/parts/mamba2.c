/* Mamba-2: a convolution over time, then linear attention whose decay and step size depend on the token. */
#include "llm/parts/mixers.h"

static int32_t channels_of(const tn__hparams *h) { return h->ssm.inner + 2 * h->ssm.groups * h->ssm.state; }

static void mamba2_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    (void)il;
    m->state[0] = (h->ssm.width - 1) * channels_of(h);
    m->state[1] = h->ssm.state * h->ssm.inner;
}

static tn_tensor *build_mamba2(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__hparams *h = b->h;
    const int32_t inner = h->ssm.inner, state = h->ssm.state, heads = h->ssm.heads, groups = h->ssm.groups;
    const int32_t channels = channels_of(h), head = inner / heads;
    tn_tensor *steps = tn__builder_input(b, TN__INPUT_STEPS);
    tn_arena *a = b->a;
    if (!x) return NULL;
    const int64_t tokens = x->ne[1];
    tn_tensor *all = tn__build_linear(b, l->ssm_in, l->ssm_in_s, NULL, x, "ssm_in");
    tn_tensor *conv = tn__name_node(b,
                                    tn_causal_conv(a, tn__build_columns(b, all, inner, channels), l->ssm_conv,
                                                   l->ssm_conv_b, tn__layer_state(b, il, 0), steps, true),
                                    "ssm_conv");
    tn_tensor *dt = tn_cont(a, tn__build_columns(b, all, inner + channels, heads));
    dt = tn__name_node(b, tn_softplus(a, tn_add(a, dt, l->ssm_dt_b)), "ssm_dt");
    dt = tn_reshape(a, dt, 1, heads, tokens);
    tn_tensor *u = tn__split_heads(b, conv, head, heads, 0);
    const tn_linear_attention_sources sources = {
        .q = tn__split_heads(b, conv, state, groups, (size_t)(inner + groups * state) * 4),
        .k = tn__split_heads(b, conv, state, groups, (size_t)inner * 4),
        .v = tn_mul(a, u, dt),
        .g = tn_mul(a, dt, tn_reshape(a, l->ssm_a, 1, heads)),
        .state = tn__layer_state(b, il, 1),
        .steps = steps};
    tn_tensor *y =
        tn__name_node(b, tn_linear_attention(a, &sources, &(tn_linear_attention_params){.scale = 1}), "ssm_scan");
    y = tn_add(a, y, tn_mul(a, u, tn_reshape(a, l->ssm_d, 1, heads)));
    y = tn_swiglu(a, tn_cont(a, tn__build_columns(b, all, 0, inner)), tn_reshape(a, y, inner, tokens));
    if (l->ssm_norm) { /* over each group, with weights of its own */
        y = tn_rms_norm(a, tn_reshape(a, y, inner / groups, groups, tokens), NULL, h->norm_eps);
        y = tn_reshape(a, tn_mul(a, y, tn_reshape(a, l->ssm_norm, inner / groups, groups)), inner, tokens);
    }
    return tn__build_linear(b, l->ssm_out, l->ssm_out_s, NULL, y, "ssm_out");
}

const tn__mixer tn__mamba2 = {
    .name = "mamba2", .kinds = TN__MIXES_MAMBA2, .memory = mamba2_memory, .build = build_mamba2};

/* Falcon-H1: both, from the same input. */
static tn_tensor *build_with_attention(tn__builder *b, int32_t il, tn_tensor *x) {
    return tn_add(b->a, tn__build_attention(b, il, x), build_mamba2(b, il, x));
}
const tn__mixer tn__mamba2_and_attention = {.name = "mamba2 and attention",
                                            .kinds = TN__MIXES_MAMBA2,
                                            .attends = true,
                                            .memory = mamba2_memory,
                                            .build = build_with_attention};

tn_status tn__check_mamba2(const tn_gguf *file, const tn__hparams *h) {
    const int64_t inner = h->ssm.inner, state = h->ssm.state;
    if (h->ssm.width < 2 || h->ssm.width > 8 || inner < 1 || inner > 1 << 20 || state < 1 || state > 4096 ||
        h->ssm.heads < 1 || inner % h->ssm.heads || h->ssm.groups < 1 || h->ssm.heads % h->ssm.groups ||
        inner % h->ssm.groups || inner * state > INT32_MAX)
        return tn_fail(
            TN_E_FORMAT,
            "%s: Mamba-2 layers of %d channels in %d heads and %d groups, states of %d and a convolution of %d are "
            "not valid",
            tn_gguf_path(file), h->ssm.inner, h->ssm.heads, h->ssm.groups, h->ssm.state, h->ssm.width);
    return TN_OK;
}

/* Mamba: a convolution over time, then a selective scan whose step sizes, inputs and outputs depend on the token. */
#include "llm/parts/mixers.h"

static void mamba_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    (void)il;
    m->state[0] = (h->ssm.width - 1) * h->ssm.inner;
    m->state[1] = h->ssm.state * h->ssm.inner;
}

static tn_tensor *norm_if(const tn__builder *b, tn_tensor *x, tn_tensor *weight, const char *what) {
    if (!weight && !b->h->ssm.bare_norms) return x;
    return tn__name_node(b, tn_rms_norm(b->a, x, weight, b->h->norm_eps), what);
}

static tn_tensor *build_mamba(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const int32_t inner = b->h->ssm.inner, state = b->h->ssm.state, rank = b->h->ssm.heads;
    tn_tensor *steps = tn__builder_input(b, TN__INPUT_STEPS);
    tn_arena *a = b->a;
    tn_tensor *xz = tn__build_linear(b, l->ssm_in, l->ssm_in_s, NULL, x, "ssm_in");
    tn_tensor *u = tn__name_node(b,
                                 tn_causal_conv(a, tn__build_columns(b, xz, 0, inner), l->ssm_conv, l->ssm_conv_b,
                                                tn__layer_state(b, il, 0), steps, true),
                                 "ssm_conv");
    tn_tensor *parts = tn__build_linear(b, l->ssm_x, NULL, NULL, u, "ssm_x");
    tn_tensor *dt = norm_if(b, tn__build_columns(b, parts, 0, rank), l->ssm_dt_norm, "ssm_dt_norm");
    dt = tn_softplus(a, tn__build_linear(b, l->ssm_dt, NULL, l->ssm_dt_b, tn_cont(a, dt), "ssm_dt"));
    const tn_selective_scan_sources scan = {
        .x = u,
        .dt = dt,
        .A = l->ssm_a,
        .B = norm_if(b, tn__build_columns(b, parts, rank, state), l->ssm_b_norm, "ssm_b_norm"),
        .C = norm_if(b, tn__build_columns(b, parts, rank + state, state), l->ssm_c_norm, "ssm_c_norm"),
        .state = tn__layer_state(b, il, 1),
        .steps = steps};
    tn_tensor *y = tn__name_node(b, tn_selective_scan(a, &scan), "ssm_scan");
    y = tn_add(a, y, tn_mul(a, u, l->ssm_d));
    y = tn_swiglu(a, tn_cont(a, tn__build_columns(b, xz, inner, inner)), y);
    return tn__build_linear(b, l->ssm_out, l->ssm_out_s, NULL, y, "ssm_out");
}

const tn__mixer tn__mamba = {.name = "mamba", .kinds = TN__MIXES_MAMBA, .memory = mamba_memory, .build = build_mamba};

tn_status tn__check_mamba(const tn_gguf *file, const tn__hparams *h) {
    const int64_t inner = h->ssm.inner, state = h->ssm.state;
    if (h->ssm.width < 2 || h->ssm.width > 8 || inner < 1 || inner > 1 << 20 || state < 1 || state > 4096 ||
        h->ssm.heads < 1 || h->ssm.heads > inner || inner * state > INT32_MAX)
        return tn_fail(
            TN_E_FORMAT,
            "%s: Mamba layers of %d channels, states of %d, a rank of %d and a convolution of %d are not valid",
            tn_gguf_path(file), h->ssm.inner, h->ssm.state, h->ssm.heads, h->ssm.width);
    return TN_OK;
}

/* A short convolution over time between two gates (LFM 2). */
#include "llm/parts/mixers.h"

static void short_conv_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    (void)il;
    m->state[0] = (h->short_conv - 1) * h->n_embd;
}

static tn_tensor *build_short_conv(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const int32_t n = b->h->n_embd;
    tn_arena *a = b->a;
    tn_tensor *all = tn__build_linear(b, l->short_in, l->short_in_s, l->short_in_b, x, "short_in");
    tn_tensor *u = tn_mul(a, tn__build_columns(b, all, 0, n), tn__build_columns(b, all, 2 * n, n));
    u = tn__name_node(b,
                      tn_causal_conv(a, u, l->short_conv, l->short_conv_b, tn__layer_state(b, il, 0),
                                     tn__builder_input(b, TN__INPUT_STEPS), false),
                      "short_conv");
    u = tn_mul(a, u, tn__build_columns(b, all, n, n));
    return tn__build_linear(b, l->short_out, l->short_out_s, l->short_out_b, u, "short_out");
}

const tn__mixer tn__short_conv = {.name = "short convolution",
                                  .kinds = TN__MIXES_SHORT_CONV,
                                  .memory = short_conv_memory,
                                  .build = build_short_conv};

/* Kimi delta attention: a convolution over queries, keys and values each, linear attention with the delta rule and a
 * decay for every channel of the keys, and a norm with a gate. */
#include "llm/parts/mixers.h"

#include <math.h>

static void kda_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    const tn__layer_hparams *l = &h->layers[il];
    m->state[0] = 3 * (h->ssm.width - 1) * l->n_head * l->head_k;
    m->state[1] = l->n_head * l->head_k * l->head_v;
}

/* Number 0, 1 or 2: queries, keys or values, whose last tokens are that third of the first state. */
static tn_tensor *build_kda_conv(tn__builder *b, int32_t il, tn_tensor *x, tn_tensor *kernel, int number) {
    const tn__layer_hparams *l = &b->h->layers[il];
    const int64_t width = b->h->ssm.width, channels = (int64_t)l->n_head * l->head_k;
    tn_tensor *all = tn__layer_state(b, il, 0);
    if (!all) return NULL;
    const int64_t part = (width - 1) * channels;
    tn_tensor *state = tn_view(b->a, all, 2, (const int64_t[]){part, all->ne[1]}, (const size_t[]){4, all->nb[1]},
                               (size_t)(number * part) * 4);
    tn_tensor *y = tn_causal_conv(b->a, x, tn_reshape(b->a, kernel, width, channels), NULL, state,
                                  tn__builder_input(b, TN__INPUT_STEPS), true);
    return tn__split_heads(b, y, l->head_k, l->n_head, 0);
}

/* The logarithm of the decay, [head, heads, tokens]. */
static tn_tensor *build_kda_decay(const tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    tn_arena *a = b->a;
    tn_tensor *f = tn__build_linear(b, l->kda_f_a, NULL, NULL, x, "kda_f_a");
    if (l->kda_f_b) f = tn__build_linear(b, l->kda_f_b, NULL, NULL, f, "kda_f_b");
    f = tn_add(a, f, l->ssm_dt_b);
    tn_tensor *rate = tn_reshape(a, l->ssm_a, 1, lh->n_head);
    if (b->h->kda_lower_bound == 0)
        return tn_mul(a, tn_reshape(a, tn_softplus(a, f), lh->head_k, lh->n_head, x->ne[1]), rate);
    /* Bounded: a share of the lower bound. */
    f = tn_mul(a, tn_reshape(a, f, lh->head_k, lh->n_head, x->ne[1]), rate);
    if (!b->arch->positive_decay) f = tn_neg(a, f);
    return tn_scale(a, tn_sigmoid(a, f), b->h->kda_lower_bound, 0);
}

static tn_tensor *build_kda(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    tn_arena *a = b->a;
    if (!x) return NULL;
    const int64_t tokens = x->ne[1];
    tn_tensor *q, *k, *v;
    tn__append_now(b, q = tn_mul_mat(a, l->wq, x));
    tn__append_now(b, k = tn_mul_mat(a, l->wk, x));
    tn__append_now(b, v = tn_mul_mat(a, l->wv, x));
    q = build_kda_conv(b, il, tn__finish_linear(b, l->wq, x, q, NULL, NULL, "q"), l->kda_conv_q, 0);
    k = build_kda_conv(b, il, tn__finish_linear(b, l->wk, x, k, NULL, NULL, "k"), l->kda_conv_k, 1);
    v = build_kda_conv(b, il, tn__finish_linear(b, l->wv, x, v, NULL, NULL, "v"), l->kda_conv_v, 2);
    tn_tensor *beta = tn__build_linear(b, l->ssm_beta, NULL, NULL, x, "kda_beta");
    const tn_linear_attention_sources sources = {.q = tn_l2_norm(a, q, b->h->norm_eps),
                                                 .k = tn_l2_norm(a, k, b->h->norm_eps),
                                                 .v = v,
                                                 .g = tn__name_node(b, build_kda_decay(b, il, x), "kda_decay"),
                                                 .beta = tn_sigmoid(a, tn_reshape(a, beta, 1, lh->n_head, tokens)),
                                                 .state = tn__layer_state(b, il, 1),
                                                 .steps = tn__builder_input(b, TN__INPUT_STEPS)};
    const tn_linear_attention_params p = {.scale = 1 / sqrtf((float)lh->head_k), .delta = true};
    tn_tensor *y = tn__name_node(b, tn_linear_attention(a, &sources, &p), "kda_scan");
    y = tn__name_node(b, tn_rms_norm(a, y, l->ssm_norm, b->h->norm_eps), "kda_norm");
    tn_tensor *gate = tn__build_linear(b, l->kda_g ? l->kda_g : l->kda_g_a, NULL, NULL, x, "kda_gate");
    if (!l->kda_g && l->kda_g_b) gate = tn__build_linear(b, l->kda_g_b, NULL, NULL, gate, "kda_gate_b");
    y = tn_mul(a, tn_reshape(a, y, (int64_t)lh->head_v * lh->n_head, tokens), tn_sigmoid(a, gate));
    return tn__build_linear(b, l->wo, NULL, NULL, y, "attn_out");
}

const tn__mixer tn__kda = {
    .name = "Kimi delta attention", .kinds = TN__MIXES_KDA, .memory = kda_memory, .build = build_kda};

tn_status tn__read_kda(const tn_gguf *file, tn__hparams *h) {
    const int32_t head = tn_gguf_get_i32(file, tn__arch_key(file, "kda.head_dim"), 0);
    int32_t heads = 0;
    for (int32_t i = 0; i < h->n_layer; i++)
        if (h->layers[i].n_head > heads) heads = h->layers[i].n_head;
    h->kda_lower_bound = tn_gguf_get_f32(file, tn__arch_key(file, "kda.gate_lower_bound"), 0);
    if (heads < 1 || head < 1 || head > 1024 || h->ssm.width < 2 || h->ssm.width > 8 || !(h->kda_lower_bound <= 0) ||
        (int64_t)heads * head * head > INT32_MAX)
        return tn_fail(TN_E_FORMAT,
                       "%s: Kimi delta attention with %d heads of %d and a convolution of %d is not valid",
                       tn_gguf_path(file), heads, head, h->ssm.width);
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        if (l->n_head_kv) continue;
        l->n_head = l->n_head_kv = heads;
        l->head_k = l->head_v = head;
        l->mixer = &tn__kda;
    }
    return TN_OK;
}

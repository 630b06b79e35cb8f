/* Lightning attention (MiniMax-01): linear attention whose heads forget at constant rates, weaker in later layers,
 * then a norm over all heads with a gate. */
#include "llm/parts/mixers.h"

#include <math.h>

static void lightning_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    const tn__layer_hparams *l = &h->layers[il];
    m->state[0] = l->n_head * l->head_k * l->head_v;
}

/* The logarithm of the decay, [1, heads, tokens]: rates fall geometrically from head to head, as ALiBi's slopes do.
 */
static tn_tensor *build_rates(const tn__builder *b, int32_t il, int64_t tokens) {
    const tn__hparams *h = b->h;
    const int32_t heads = h->layers[il].n_head;
    const double ratio = pow(2, -pow(2, -(log2(heads) - 3)));
    const double layer = 1 - (h->n_layer > 1 ? (double)il / (h->n_layer - 1) : 0) + 1e-5;
    tn_tensor *numbers = tn_arange(b->a, 1, (float)heads + 1, 1);
    tn_tensor *rates = tn_scale(b->a, tn_exp(b->a, tn_scale(b->a, numbers, (float)log(ratio), 0)), (float)-layer, 0);
    return tn_repeat(b->a, tn_reshape(b->a, rates, 1, heads, 1), (const int64_t[]){1, heads, tokens, 1});
}

static tn_tensor *build_lightning(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    const size_t head = (size_t)lh->head_k * 4;
    tn_arena *a = b->a;
    tn_tensor *qkv = tn_silu(a, tn__build_linear(b, l->wqkv, NULL, NULL, x, "qkv"));
    if (!qkv) return NULL;
    /* Rows hold q, k and v of one head after another. */
    const int64_t ne[] = {lh->head_k, lh->n_head, x->ne[1]};
    const size_t nb[] = {4, 3 * head, qkv->nb[1]};
    const tn_linear_attention_sources sources = {.q = tn_view(a, qkv, 3, ne, nb, 0),
                                                 .k = tn_view(a, qkv, 3, ne, nb, head),
                                                 .v = tn_view(a, qkv, 3, ne, nb, 2 * head),
                                                 .g = build_rates(b, il, x->ne[1]),
                                                 .state = tn__layer_state(b, il, 0),
                                                 .steps = tn__builder_input(b, TN__INPUT_STEPS)};
    tn_tensor *y = tn_linear_attention(a, &sources, &(tn_linear_attention_params){.scale = 1});
    y = tn_reshape(a, tn__name_node(b, y, "lightning"), (int64_t)lh->head_v * lh->n_head, x->ne[1]);
    y = tn__name_node(b, tn_rms_norm(a, y, l->attn_norm_2, b->h->norm_eps), "lightning_norm");
    tn_tensor *gate = tn__build_linear(b, l->attn_gate, NULL, NULL, x, "attn_gate");
    return tn__build_linear(b, l->wo, NULL, NULL, tn_mul(a, y, tn_sigmoid(a, gate)), "attn_out");
}

const tn__mixer tn__lightning_attention = {.name = "lightning attention",
                                           .kinds = TN__MIXES_LIGHTNING,
                                           .memory = lightning_memory,
                                           .build = build_lightning};

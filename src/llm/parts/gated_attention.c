/* Attention whose result is multiplied by the sigmoid of a gate, which comes with the queries: rows of attn_q are,
 * for every head, the query and its gate. There are no biases. */
#include "llm/parts/mixers.h"

static tn_tensor *build_gated_attention(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    const size_t head = (size_t)lh->head_k * 4;
    tn_arena *a = b->a;
    tn__qkv y;
    tn_tensor *both;
    tn__append_now(b, both = tn_mul_mat(a, l->wq, x));
    tn__append_now(b, y.k = tn_mul_mat(a, l->wk, x));
    tn__append_now(b, y.v = tn_mul_mat(a, l->wv, x));
    both = tn__finish_linear(b, l->wq, x, both, l->sq, NULL, "q");
    y.k = tn__split_heads(b, tn__finish_linear(b, l->wk, x, y.k, l->sk, NULL, "k"), lh->head_k, lh->n_head_kv, 0);
    y.v = tn__split_heads(b, tn__finish_linear(b, l->wv, x, y.v, l->sv, NULL, "v"), lh->head_v, lh->n_head_kv, 0);
    if (!both || !y.k || !y.v) return NULL;
    const int64_t ne[] = {lh->head_k, lh->n_head, x->ne[1]};
    const size_t nb[] = {4, 2 * head, both->nb[1]};
    y.q = tn_view(a, both, 3, ne, nb, 0);
    tn_tensor *gate = tn_sigmoid(a, tn_cont(a, tn_view(a, both, 3, ne, nb, head)));
    y = tn__norm_and_rotate(b, il, y);
    const tn_attention_params p = tn__attention_params(b, il);
    if (!y.q || !y.k) return NULL;
    tn_tensor *z = tn_mul(a, tn__build_attend(b, il, &y, &p), gate);
    if (!z) return NULL;
    z = tn_reshape(a, z, z->ne[0] * z->ne[1], z->ne[2]);
    return tn__build_linear(b, l->wo, l->so, NULL, z, "attn_out");
}

const tn__mixer tn__gated_attention = {.name = "gated attention", .attends = true, .build = build_gated_attention};

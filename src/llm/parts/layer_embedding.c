/* Embeddings that every layer has of its own (Gemma 3n and 4): looked up by token and mixed with a projection of the
 * model's embedding, once for all layers; every layer adds its part, through a gate and a norm. */
#include "llm/parts/mixers.h"

#include <math.h>

/* [size, layers, tokens]. */
tn_tensor *tn__build_layer_embeddings(tn__builder *b, tn_tensor *x) {
    const tn__weights *w = &b->m->w;
    const int64_t size = b->h->n_embd_layer, layers = b->h->n_layer;
    tn_arena *a = b->a;
    if (!w->layer_tok_embd || !x) return NULL;
    tn_tensor *looked_up = tn__name_node(b, tn_get_rows(a, w->layer_tok_embd, b->tokens), "layer_embedding");
    looked_up = tn_scale(a, tn_reshape(a, looked_up, size, layers, x->ne[1]), sqrtf((float)size), 0);
    tn_tensor *projected = tn__build_linear(b, w->layer_model_proj, NULL, NULL, x, "layer_projection");
    projected = tn_scale(a, projected, 1 / sqrtf((float)b->h->n_embd), 0);
    projected = tn_rms_norm(a, tn_reshape(a, projected, size, layers, x->ne[1]), w->layer_proj_norm, b->h->norm_eps);
    return tn__name_node(b, tn_scale(a, tn_add(a, projected, looked_up), sqrtf(0.5f), 0), "layer_embeddings");
}

/* What layer `il` makes of its part and x, [width, tokens]; NULL where the model has none. */
tn_tensor *tn__build_layer_embedding(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const int64_t size = b->h->n_embd_layer;
    tn_tensor *all = b->shared;
    tn_arena *a = b->a;
    if (!all || !x) return NULL;
    tn_tensor *part = tn_view(a, all, 2, (const int64_t[]){size, all->ne[2]}, (const size_t[]){4, all->nb[2]},
                              (size_t)il * (size_t)size * 4);
    if (x->ne[1] != part->ne[1]) part = tn_get_rows(a, tn_cont(a, part), tn__builder_input(b, TN__INPUT_OUTPUT_ROWS));
    tn_tensor *y = tn_gelu(a, tn__build_linear(b, l->layer_gate, NULL, NULL, x, "layer_gate"));
    y = tn__build_linear(b, l->layer_proj, NULL, NULL, tn_mul(a, y, part), "layer_proj");
    return tn__name_node(b, tn_rms_norm(a, y, l->layer_post_norm, b->h->norm_eps), "layer_post_norm");
}

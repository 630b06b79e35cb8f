/* Alternating updates (Gemma 3n): the state is several copies, [width, tokens, copies], of which only the first goes
 * through a layer. Before a layer all copies are predicted from each other; after it they are corrected by what the
 * layer has changed in the first. */
#include "llm/parts/mixers.h"

#include <math.h>

tn_tensor *tn__altup_first(const tn__builder *b, tn_tensor *x) {
    if (!x) return NULL;
    return tn_view(b->a, x, 2, (const int64_t[]){x->ne[0], x->ne[1]}, (const size_t[]){4, x->nb[1]}, 0);
}

/* All copies but the first. */
static tn_tensor *altup_rest(const tn__builder *b, tn_tensor *x) {
    if (!x) return NULL;
    return tn_view(b->a, x, 3, (const int64_t[]){x->ne[0], x->ne[1], x->ne[2] - 1},
                   (const size_t[]){4, x->nb[1], x->nb[2]}, x->nb[2]);
}

static tn_tensor *magnitude(const tn__builder *b, tn_tensor *x) {
    return tn_sqrt(b->a, tn_sum_rows(b->a, tn_sqr(b->a, x)));
}

/* x with the magnitudes of `like`, token by token. A mean square below 1e-5 counts as that. */
static tn_tensor *with_magnitude(const tn__builder *b, tn_tensor *x, tn_tensor *like) {
    if (!x) return NULL;
    tn_tensor *own = tn_clamp(b->a, magnitude(b, x), sqrtf(1e-5f * (float)x->ne[0]), INFINITY);
    return tn_div(b->a, tn_mul(b->a, x, magnitude(b, like)), own);
}

tn_tensor *tn__altup_begin(tn__builder *b, tn_tensor *x) {
    const int64_t rest = b->h->n_altup - 1;
    if (!x) return NULL;
    const int64_t ne[] = {x->ne[0], x->ne[1], rest, 1};
    tn_tensor *copies = tn_repeat(b->a, tn_reshape(b->a, x, x->ne[0], x->ne[1], 1), ne);
    copies = tn__name_node(b, tn_mul_mat(b->a, b->m->w.altup_proj, copies), "altup_proj");
    copies = with_magnitude(b, copies, x);
    return tn__name_node(b, tn_concat(b->a, tn_reshape(b->a, x, x->ne[0], x->ne[1], 1), copies, 2), "altup");
}

tn_tensor *tn__altup_end(tn__builder *b, tn_tensor *x) {
    tn_tensor *first = tn__altup_first(b, x), *sum = first;
    tn_tensor *rest = tn_mul_mat(b->a, b->m->w.altup_unproj, tn_cont(b->a, altup_rest(b, x)));
    rest = with_magnitude(b, tn__name_node(b, rest, "altup_unproj"), first);
    for (int32_t i = 0; rest && i < b->h->n_altup - 1; i++) {
        tn_tensor *one = tn_view(b->a, rest, 2, (const int64_t[]){rest->ne[0], rest->ne[1]},
                                 (const size_t[]){4, rest->nb[1]}, (size_t)i * rest->nb[2]);
        sum = tn_add(b->a, sum, one);
    }
    tn_tensor *rows = tn__builder_input(b, TN__INPUT_OUTPUT_ROWS);
    if (rows) sum = tn_get_rows(b->a, sum, rows);
    return tn__name_node(b, tn_scale(b->a, sum, 1 / (float)b->h->n_altup, 0), "altup_mean");
}

/* How much of each copy a token needs, [copies, tokens]. */
static tn_tensor *altup_modalities(const tn__builder *b, const tn__layer *l, tn_tensor *x) {
    tn_tensor *in = tn_rms_norm(b->a, x, l->altup_router_norm, b->h->norm_eps);
    in = tn_scale(b->a, in, 1 / (float)b->h->n_embd, 0);
    return tn_tanh(b->a, tn__build_linear(b, l->altup_router, NULL, NULL, in, "altup_router"));
}

tn_tensor *tn__altup_predict(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const int64_t n = b->h->n_altup;
    tn_arena *a = b->a;
    if (!x) return NULL;
    tn_tensor *mix = altup_modalities(b, l, tn__altup_first(b, x));
    mix = tn__build_linear(b, l->altup_predict, NULL, NULL, mix, "altup_predict");
    /* Token by token a matrix of n × n mixes the copies. */
    tn_tensor *copies = tn_cont(a, tn_permute(a, x, 1, 2, 0, 3)); /* [copies, width, tokens] */
    tn_tensor *y = tn_mul_mat(a, copies, tn_reshape(a, mix, n, n, x->ne[1]));
    y = tn_permute(a, tn__name_node(b, y, "altup_mixed"), 0, 2, 1, 3);
    return tn__name_node(b, tn_add(a, tn_cont(a, y), x), "altup_predicted");
}

tn_tensor *tn__altup_correct(tn__builder *b, int32_t il, tn_tensor *predicted, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    if (!predicted || !x) return NULL;
    tn_tensor *change = tn_sub(a, x, tn__altup_first(b, predicted));
    tn_tensor *share = tn__build_linear(b, l->altup_correct, NULL, NULL, altup_modalities(b, l, x), "altup_correct");
    share = tn_scale(a, share, 1, 1);
    share = tn_reshape(a, tn_cont(a, tn_transpose(a, share)), 1, x->ne[1], b->h->n_altup);
    const int64_t ne[] = {x->ne[0], x->ne[1], b->h->n_altup, 1};
    change = tn_repeat(a, tn_reshape(a, change, x->ne[0], x->ne[1], 1), ne);
    return tn__name_node(b, tn_add(a, tn_mul(a, change, share), predicted), "altup_corrected");
}

tn_tensor *tn__altup_add_to_rest(tn__builder *b, tn_tensor *x, tn_tensor *y) {
    tn_tensor *first = tn__altup_first(b, x);
    if (!first || !y) return NULL;
    tn_tensor *rest = tn_add(b->a, tn_cont(b->a, altup_rest(b, x)), y);
    return tn_concat(b->a, tn_reshape(b->a, tn_cont(b->a, first), x->ne[0], x->ne[1], 1), rest, 2);
}

tn_tensor *tn__build_laurel(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_tensor *y = tn__build_linear(b, l->laurel_l, NULL, NULL, x, "laurel_l");
    y = tn__build_linear(b, l->laurel_r, NULL, NULL, y, "laurel_r");
    return tn_add(b->a, tn__name_node(b, tn_rms_norm(b->a, y, l->laurel_norm, b->h->norm_eps), "laurel_norm"), x);
}

/* Gemma 3n and 4: windows with smaller heads, embeddings of every layer, layers that read the cells of earlier ones,
 * a dense feed-forward part beside experts. */
#include "llm/arch/families.h"
#include "llm/parts/mixers.h"

#include "base/checked.h"

#include <math.h>

/* The last `n` layers read the cells of the last earlier layer of their kind. */
static tn_status share_cells(const tn_gguf *file, tn__hparams *h, int32_t n) {
    const int32_t first = h->n_layer - n;
    if (n < 0 || (n > 0 && first < 1))
        return tn_fail(TN_E_FORMAT, "%s: %d of %d layers have no cells of their own", tn_gguf_path(file), n,
                       h->n_layer);
    for (int32_t i = TN__MAX(first, 0); n > 0 && i < h->n_layer; i++) {
        int32_t from = first - 1;
        while (from >= 0 && (h->layers[from].window > 0) != (h->layers[i].window > 0)) from--;
        if (from < 0 || h->layers[from].n_head_kv != h->layers[i].n_head_kv ||
            h->layers[from].head_k != h->layers[i].head_k || h->layers[from].head_v != h->layers[i].head_v)
            return tn_fail(TN_E_FORMAT, "%s: layer %d has no earlier layer of its kind whose cells it could read",
                           tn_gguf_path(file), i);
        h->layers[i].cells_of = from + 1;
    }
    return TN_OK;
}

static tn_status read_gemma4(const tn_gguf *file, tn__hparams *h) {
    const int32_t head_k = tn_gguf_get_i32(file, tn__arch_key(file, "attention.key_length_swa"), h->head_k);
    const int32_t head_v = tn_gguf_get_i32(file, tn__arch_key(file, "attention.value_length_swa"), h->head_v);
    const int32_t n_rot = tn_gguf_get_i32(file, tn__arch_key(file, "rope.dimension_count_swa"), head_k);
    TN_TRY(tn__read_gemma(file, h));
    h->attn_scale = 1;
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 30);
    h->n_embd_layer = tn_gguf_get_i32(file, tn__arch_key(file, "embedding_length_per_layer_input"), 0);
    if (head_k < 1 || head_k > 65536 || head_v < 1 || head_v > 65536 || n_rot < 2 || n_rot > head_k || n_rot % 2 ||
        h->n_embd_layer < 0 || h->n_embd_layer > 1 << 16)
        return tn_fail(TN_E_FORMAT,
                       "%s: heads of %d (k) and %d (v) in layers with a window, %d rotated, are not valid",
                       tn_gguf_path(file), head_k, head_v, n_rot);
    /* Released files list the layers that have a window; a single number other than 0 means all of them. */
    const int32_t window = tn_gguf_get_i32(file, tn__arch_key(file, "attention.sliding_window"), 0);
    const bool all = tn_gguf_find(file, tn__arch_key(file, "attention.sliding_window_pattern")) &&
                     !tn_gguf_get_arr(file, tn__arch_key(file, "attention.sliding_window_pattern"));
    const float base = tn_gguf_get_f32(file, tn__arch_key(file, "rope.freq_base_swa"), 10000);
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        if (all) l->window = window;
        if (!l->window) continue;
        l->rope_base = base > 0 ? base : 10000;
        l->head_k = head_k, l->head_v = head_v, l->n_rot = n_rot;
        l->no_rope_factors = true;
        l->rope_scale = 1;
    }
    return share_cells(file, h, tn_gguf_get_i32(file, tn__arch_key(file, "attention.shared_kv_layers"), 0));
}

/* Values are normalised without weights; without a matrix of their own they are the keys before their norm. */
static tn_tensor *build_gemma4_attention(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    tn_arena *a = b->a;
    tn__qkv y = {0};
    y.q = tn__split_heads(b, tn__build_linear(b, l->wq, l->sq, NULL, x, "q"), lh->head_k, lh->n_head, 0);
    if (!lh->cells_of) {
        tn_tensor *k = tn__build_linear(b, l->wk, l->sk, NULL, x, "k");
        tn_tensor *v = l->wv ? tn__build_linear(b, l->wv, l->sv, NULL, x, "v") : k;
        y.k = tn__split_heads(b, k, lh->head_k, lh->n_head_kv, 0);
        y.v = tn_rms_norm(a, tn__split_heads(b, v, lh->head_v, lh->n_head_kv, 0), NULL, b->h->norm_eps);
    }
    y = tn__norm_and_rotate(b, il, y);
    const tn_attention_params p = tn__attention_params(b, il);
    tn_tensor *z = tn__build_attend(b, il, &y, &p);
    if (!z) return NULL;
    z = tn__build_linear(b, l->wo, l->so, NULL, tn_reshape(a, z, z->ne[0] * z->ne[1], z->ne[2]), "attn_out");
    return tn__sum_ranks(b, tn__division_of(b, il)->mixer, z, "attn_out");
}

static tn_tensor *normed(const tn__builder *b, tn_tensor *x, tn_tensor *weight, const char *what) {
    return tn__name_node(b, tn_rms_norm(b->a, x, weight, b->h->norm_eps), what);
}

static tn_tensor *build_gemma4(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    tn_tensor *attn = build_gemma4_attention(b, il, normed(b, x, l->attn_norm, "attn_norm"));
    attn = normed(b, tn__build_wanted(b, il, attn, "attn_wanted"), l->attn_post_norm, "attn_post_norm");
    x = tn__name_node(b, tn_add(a, attn, tn__build_wanted(b, il, x, "x_wanted")), "attn_sum");
    tn_tensor *y = tn__build_dense_ffn(b, l, normed(b, x, l->ffn_norm, "ffn_norm"));
    x = tn__name_node(b, tn_add(a, normed(b, y, l->ffn_post_norm, "ffn_post_norm"), x), "ffn_sum");
    tn_tensor *own = tn__build_layer_embedding(b, il, x);
    if (own) x = tn_add(a, x, own);
    return l->layer_scale ? tn_mul(a, x, l->layer_scale) : x;
}

/* ---- Gemma 3n ---- */

/* Some layers activate only the largest gates. Files that do not list them have ten at the beginning, with the point
 * beyond which a normal distribution has 5%. */
enum { SPARSE_LAYERS = 10 };
static const float usual_deviations = 1.6448533535f;
static void read_sparse_gates(const tn_gguf *file, tn__hparams *h) {
    const bool listed = tn_gguf_get_arr(file, tn__arch_key(file, "activation_sparsity_scale")) != NULL;
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        const float point = tn_gguf_get_f32_at(file, tn__arch_key(file, "activation_sparsity_scale"), (uint64_t)i,
                                               i < SPARSE_LAYERS && !listed ? usual_deviations : -INFINITY);
        l->sparse_gate = isfinite(point);
        l->sparse_deviations = point;
    }
}

static tn_status read_gemma3n(const tn_gguf *file, tn__hparams *h) {
    const float base = tn_gguf_get_f32(file, tn__arch_key(file, "rope.freq_base_swa"), 10000);
    TN_TRY(tn__read_gemma(file, h));
    h->attn_scale = 1;
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 30);
    h->n_embd_layer = tn_gguf_get_i32(file, tn__arch_key(file, "embedding_length_per_layer_input"), 256);
    h->n_altup = tn_gguf_get_i32(file, tn__arch_key(file, "altup.num_inputs"), 4);
    h->laurel_rank = tn_gguf_get_i32(file, tn__arch_key(file, "laurel.rank"), 64);
    read_sparse_gates(file, h);
    if (h->n_altup < 2 || h->n_altup > 64 || h->laurel_rank < 1 || h->laurel_rank > 1 << 16 || h->n_embd_layer < 1 ||
        h->n_embd_layer > 1 << 16)
        return tn_fail(TN_E_FORMAT, "%s: %d copies of the state and embeddings of %d are not valid",
                       tn_gguf_path(file), h->n_altup, h->n_embd_layer);
    for (int32_t i = 0; i < h->n_layer; i++)
        if (h->layers[i].window) h->layers[i].rope_base = base > 0 ? base : 10000, h->layers[i].rope_scale = 1;
    /* Released models have 20 layers with cells of their own. */
    return share_cells(
        file, h,
        tn_gguf_get_i32(file, tn__arch_key(file, "attention.shared_kv_layers"), TN__MAX(h->n_layer - 20, 0)));
}

static tn_tensor *build_gemma3n_attention(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    tn_arena *a = b->a;
    tn__qkv y = {0};
    if (lh->cells_of) {
        y.q = tn__split_heads(b, tn__build_linear(b, l->wq, NULL, NULL, x, "q"), lh->head_k, lh->n_head, 0);
    } else {
        y = tn__build_projections(b, il, x);
        y.v = tn_rms_norm(a, y.v, NULL, b->h->norm_eps);
    }
    y = tn__norm_and_rotate(b, il, y);
    const tn_attention_params p = tn__attention_params(b, il);
    tn_tensor *z = y.q ? tn__build_attend(b, il, &y, &p) : NULL;
    if (!z) return NULL;
    z = tn__build_linear(b, l->wo, l->so, NULL, tn_reshape(a, z, z->ne[0] * z->ne[1], z->ne[2]), "attn_out");
    return tn__sum_ranks(b, tn__division_of(b, il)->mixer, z, "attn_out");
}

static tn_tensor *build_sparse_ffn(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    tn_tensor *gate = tn__build_linear(b, l->ffn_gate, NULL, NULL, x, "ffn_gate");
    tn_tensor *up = tn__build_linear(b, l->ffn_up, NULL, NULL, x, "ffn_up");
    if (b->h->layers[il].sparse_gate && gate) {
        tn_tensor *mean = tn_mean(a, gate), *around = tn_sub(a, gate, mean);
        tn_tensor *variance = tn_scale(a, tn_sum_rows(a, tn_sqr(a, around)), 1 / (float)gate->ne[0], 0);
        gate =
            tn_relu(a, tn_sub(a, around, tn_scale(a, tn_sqrt(a, variance), b->h->layers[il].sparse_deviations, 0)));
    }
    tn_tensor *y = tn__build_linear(b, l->ffn_down, NULL, NULL, tn_geglu(a, gate, up), "ffn_out");
    return tn__sum_ranks(b, tn__division_of(b, il)->dense, y, "ffn_out");
}

static tn_tensor *build_gemma3n(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    tn_tensor *predicted = tn__altup_predict(b, il, x), *first = tn__altup_first(b, predicted);
    tn_tensor *in = normed(b, first, l->attn_norm, "attn_norm");
    tn_tensor *laurel = tn__build_laurel(b, il, in);
    tn_tensor *y = normed(b, build_gemma3n_attention(b, il, in), l->attn_post_norm, "attn_post_norm");
    y = tn_scale(a, tn_add(a, tn_add(a, y, first), laurel), sqrtf(0.5f), 0);
    tn_tensor *ffn = build_sparse_ffn(b, il, normed(b, y, l->ffn_norm, "ffn_norm"));
    y = tn_add(a, normed(b, ffn, l->ffn_post_norm, "ffn_post_norm"), y);
    tn_tensor *corrected = tn__altup_correct(b, il, predicted, y);
    tn_tensor *own = tn_mul(a, tn__altup_first(b, corrected), l->altup_scale);
    return tn__altup_add_to_rest(b, corrected, tn__build_layer_embedding(b, il, own));
}

static tn_tensor *begin_gemma3n(tn__builder *b, tn_tensor *x) {
    b->shared = tn__build_layer_embeddings(b, x);
    return tn__altup_begin(b, x);
}

static const tn_arch_key gemma3n_keys[] = {{"embedding_length_per_layer_input", TN_ARCH_HEAD, 1, NULL},
                                           {"attention.shared_kv_layers", TN_ARCH_COUNT, 1, NULL},
                                           {0}};

/* ---- Rows ---- */

static tn_tensor *begin_gemma4(tn__builder *b, tn_tensor *x) {
    b->shared = tn__build_layer_embeddings(b, x);
    return x;
}

static const tn_arch_key gemma4_keys[] = {{"embedding_length_per_layer_input", TN_ARCH_HEAD, 1, NULL},
                                          {"attention.key_length_swa", TN_ARCH_HEAD, 0.5, NULL},
                                          {"attention.value_length_swa", TN_ARCH_HEAD, 0.5, NULL},
                                          {"rope.dimension_count_swa", TN_ARCH_HEAD, 0.5, NULL},
                                          {"attention.shared_kv_layers", TN_ARCH_COUNT, 1, NULL},
                                          {0}};

const tn__arch tn__gemma_families[] = {
    {
        .info = {.name = "gemma3n",
                 .traits = TN_ARCH_TIED | TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM | TN_ARCH_WINDOW,
                 .window_period = 5,
                 .typical = {.window = 512},
                 .keys = gemma3n_keys,
                 .classes = {{"Gemma3nForCausalLM", 0}, {"Gemma3nForConditionalGeneration", TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GEGLU,
        .read = read_gemma3n,
        .begin = begin_gemma3n,
        .end = tn__altup_end,
        .layer = build_gemma3n,
    },
    {
        .info = {.name = "gemma4",
                 .traits = TN_ARCH_TIED | TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM | TN_ARCH_WINDOW | TN_ARCH_LAYER_SCALE,
                 .window_period = 5,
                 .typical = {.window = 512, .softcap_output = 30},
                 .keys = gemma4_keys,
                 .classes = {{"Gemma4ForCausalLM", 0}, {"Gemma4ForConditionalGeneration", TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GEGLU,
        .ffn_scales = true,
        .keys_as_values = true,
        .read = read_gemma4,
        .begin = begin_gemma4,
        .layer = build_gemma4,
    },
    {.info = {.name = NULL}},
};

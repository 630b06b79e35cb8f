/* Attention over the KV cache. */
#include "llm/build/builder.h"

#include <math.h>

tn_rope_params tn__rope_params(const tn__builder *b, int32_t il) {
    const tn__hparams *h = b->h;
    tn_rope_params p = tn_rope_params_default(h->layers[il].n_rot, h->rope);
    p.base = b->plan->params.rope_base > 0 ? b->plan->params.rope_base : h->layers[il].rope_base;
    p.freq_scale = b->plan->params.rope_scale > 0 ? b->plan->params.rope_scale : h->layers[il].rope_scale;
    if (!h->layers[il].plain_rope) {
        p.ext_factor = h->yarn_ext >= 0 ? h->yarn_ext : h->rope_scaling == TN__ROPE_SCALING_YARN ? 1.0f : 0.0f;
        p.attn_factor = h->yarn_attn * h->rope_attn_factor;
    }
    p.beta_fast = h->yarn_beta_fast;
    p.beta_slow = h->yarn_beta_slow;
    p.exact_ramp = h->yarn_exact;
    p.n_ctx_orig = h->rope_orig_ctx;
    for (int i = 0; i < 4; i++) p.sections[i] = h->rope_sections[i];
    return p;
}

tn_tensor *tn__rope_factors(const tn_session_plan *p) {
    const tn__weights *w = &p->model->w;
    if (w->rope_freqs) return w->rope_freqs;
    return p->params.n_ctx / p->params.n_seqs > p->model->h.rope_orig_ctx ? w->rope_long : w->rope_short;
}

tn_tensor *tn__layer_rope_factors(const tn__builder *b, int32_t il) {
    const tn__weights *w = &b->m->w;
    if (b->h->layers[il].no_rope_factors) return NULL;
    if (w->layers[il].rope_freqs) return w->layers[il].rope_freqs;
    tn_tensor *copy = b->plan->kv.factors[b->plan->kv.layers[il].device];
    return copy ? copy : tn__rope_factors(b->plan);
}

tn_tensor *tn__split_heads(const tn__builder *b, tn_tensor *x, int32_t size, int32_t heads, size_t offset) {
    if (!x) return NULL;
    return tn_view(b->a, x, 3, (const int64_t[]){size, heads, x->ne[1]},
                   (const size_t[]){4, (size_t)size * 4, x->nb[1]}, offset);
}
tn_tensor *tn__flatten_heads(const tn__builder *b, tn_tensor *x) {
    if (!x) return NULL;
    return tn_view(b->a, x, 2, (const int64_t[]){x->ne[0] * x->ne[1], x->ne[2]}, (const size_t[]){4, x->nb[2]}, 0);
}

tn_tensor *tn__build_head_norm(const tn__builder *b, tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                               const char *what) {
    if (!weight || !x) return x;
    if (weight->ne[0] == x->ne[0]) return tn__name_node(b, tn__build_norm(b, x, weight, bias), what);
    tn_tensor *y = tn__name_node(b, tn__build_norm(b, tn__flatten_heads(b, x), weight, bias), what);
    return tn_reshape(b->a, y, x->ne[0], x->ne[1], x->ne[2]);
}

/* Rotates heads in blocks before they are quantized, or back: the rotation is its own inverse. */
static tn_tensor *build_rotation(const tn__builder *b, tn_tensor *x, int32_t block, const char *what) {
    return block ? tn__name_node(b, tn_hadamard(b->a, x, block), what) : x;
}

tn_tensor *tn__build_rope(const tn__builder *b, int32_t il, tn_tensor *x, const char *what) {
    if (!x || tn__arch_has(b->arch, TN_ARCH_NO_ROPE) || b->h->layers[il].no_rope) return x;
    const tn_rope_params p = tn__rope_params(b, il);
    return tn__name_node(
        b, tn_rope(b->a, x, tn__builder_input(b, TN__INPUT_POSITIONS), tn__layer_rope_factors(b, il), &p), what);
}

tn__qkv tn__build_projections(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__hparams *h = b->h;
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &h->layers[il];
    const float clamp = h->clamp_qkv;
    tn_arena *a = b->a;
    tn__qkv y;
    if (l->wqkv) {
        tn_tensor *qkv = tn__build_linear(b, l->wqkv, l->sqkv, l->bqkv, x, "qkv");
        if (clamp > 0) qkv = tn_clamp(a, qkv, -clamp, clamp);
        size_t q_bytes = (size_t)lh->n_head * (size_t)lh->head_k * 4,
               k_bytes = (size_t)lh->n_head_kv * (size_t)lh->head_k * 4;
        y.q = tn__split_heads(b, qkv, lh->head_k, lh->n_head, 0);
        y.k = tn__split_heads(b, qkv, lh->head_k, lh->n_head_kv, q_bytes);
        y.v = tn__split_heads(b, qkv, lh->head_v, lh->n_head_kv, q_bytes + k_bytes);
        return y;
    }
    /* The three matmuls are adjacent, so that a backend can share their common input. */
    tn__append_now(b, y.q = tn_mul_mat(a, l->wq, x));
    tn__append_now(b, y.k = tn_mul_mat(a, l->wk, x));
    tn__append_now(b, y.v = tn_mul_mat(a, l->wv, x));
    y.q = tn__finish_linear(b, l->wq, x, y.q, l->sq, l->bq, "q");
    y.k = tn__finish_linear(b, l->wk, x, y.k, l->sk, l->bk, "k");
    y.v = tn__finish_linear(b, l->wv, x, y.v, l->sv, l->bv, "v");
    if (clamp > 0) {
        y.q = tn_clamp(a, y.q, -clamp, clamp);
        y.k = tn_clamp(a, y.k, -clamp, clamp);
        y.v = tn_clamp(a, y.v, -clamp, clamp);
    }
    y.q = tn__split_heads(b, y.q, lh->head_k, lh->n_head, 0);
    y.k = tn__split_heads(b, y.k, lh->head_k, lh->n_head_kv, 0);
    y.v = tn__split_heads(b, y.v, lh->head_v, lh->n_head_kv, 0);
    return y;
}

static void norm_heads(const tn__builder *b, int32_t il, tn__qkv *x) {
    const tn__layer *l = &b->m->w.layers[il];
    if (tn__arch_has(b->arch, TN_ARCH_Q_GAIN)) {
        x->q = tn__name_node(b, tn_mul(b->a, tn__build_norm(b, x->q, NULL, NULL), l->q_norm), "q_norm");
        x->k = tn__name_node(b, tn__build_norm(b, x->k, NULL, NULL), "k_norm");
        return;
    }
    x->q = tn__build_head_norm(b, x->q, l->q_norm, l->q_norm_b, "q_norm");
    x->k = tn__build_head_norm(b, x->k, l->k_norm, l->k_norm_b, "k_norm");
}

tn__qkv tn__build_qkv(tn__builder *b, int32_t il, tn_tensor *x) {
    return tn__norm_and_rotate(b, il, tn__build_projections(b, il, x));
}

tn__qkv tn__norm_and_rotate(const tn__builder *b, int32_t il, tn__qkv y) {
    if (!b->arch->norm_qk_after_rope) norm_heads(b, il, &y);
    y.q = tn__build_rope(b, il, y.q, "q_rope");
    y.k = tn__build_rope(b, il, y.k, "k_rope");
    if (b->arch->norm_qk_after_rope) norm_heads(b, il, &y);
    const bool rotates = !b->h->layers[il].no_rope;
    if (b->h->bare_qk_norm && rotates) {
        y.q = tn__name_node(b, tn__build_norm(b, y.q, NULL, NULL), "q_norm");
        y.k = tn__name_node(b, tn__build_norm(b, y.k, NULL, NULL), "k_norm");
    }
    tn_tensor *q_scale = tn__builder_input(b, TN__INPUT_QUERY_SCALES);
    if (q_scale && !(b->h->temperature_without_rope && rotates)) y.q = tn_mul(b->a, y.q, q_scale);
    return y;
}

/* Of T5: all cells from this distance on have the same bias. */
enum { T5_DISTANCE = 128 };

tn_attention_params tn__attention_params(const tn__builder *b, int32_t il) {
    const tn__hparams *h = b->h;
    /* The window of an encoder has one half before the query and one after it. */
    const int32_t window = h->layers[il].window, side = window && !h->causal ? window / 2 + 1 : window;
    return (tn_attention_params){
        .scale = h->attn_scale != 0 ? h->attn_scale : 1 / sqrtf((float)h->layers[il].head_k),
        .soft_cap = h->attn_soft_cap,
        .max_bias = h->max_alibi,
        .causal = h->causal,
        .window = side,
        .window_after = h->causal ? 0 : side,
        .chunk = h->layers[il].chunk,
        .bias_distance = h->n_rel_buckets > 0 ? T5_DISTANCE : 0,
        .bias_bidirectional = h->n_rel_buckets > 0 && !h->causal,
    };
}

tn_attention_sources tn__build_cells(tn__builder *b, int32_t il, const tn__qkv *x, tn_attention_params *params) {
    const tn__layer_hparams *lh = &b->h->layers[il];
    const tn__kv_layer *cache = &b->plan->kv.layers[il];
    const int group = cache->group;
    tn_arena *a = b->a;
    tn_attention_sources src = {.q = build_rotation(b, x->q, cache->rotate_k, "q_rotated"),
                                .sinks = b->m->w.layers[il].sinks,
                                .bias_table = b->m->w.layers[il].rel_bias};
    if (src.bias_table && src.bias_table->type != TN_F32) src.bias_table = tn_cast(b->a, src.bias_table, TN_F32);
    tn_tensor *rows = tn__builder_input(b, group == TN__CACHE_FULL ? TN__INPUT_ROWS_FULL : TN__INPUT_ROWS_WINDOW);
    tn_tensor *kc = cache->k, *vc = cache->v;
    if (x->k) {
        tn_tensor *k = build_rotation(b, x->k, cache->rotate_k, "k_rotated");
        kc = tn__name_node(b, tn_set_rows(a, cache->k, tn__flatten_heads(b, k), rows), "k_store");
    }
    if (x->v) {
        tn_tensor *v = build_rotation(b, x->v, cache->rotate_v, "v_rotated");
        vc = tn__name_node(b, tn_set_rows(a, cache->v, tn__flatten_heads(b, v), rows), "v_store");
    }
    src.k = tn_reshape(a, kc, lh->head_k, lh->n_head_kv, cache->k->ne[1]);
    src.v = tn_reshape(a, vc, lh->head_v, lh->n_head_kv, cache->v->ne[1]);
    src.q_pos = tn__builder_input(b, TN__INPUT_QUERY_CELLS);
    src.pages = b->plan->kv.tables[(size_t)group * b->plan->kv.n_devices + (size_t)cache->device];
    params->page = b->plan->kv.groups[group].page;
    return src;
}

tn_tensor *tn__finish_attend(const tn__builder *b, int32_t il, tn_tensor *y) {
    return build_rotation(b, y, b->plan->kv.layers[il].rotate_v, "attn_rotated");
}

tn_tensor *tn__build_attend(tn__builder *b, int32_t il, const tn__qkv *x, const tn_attention_params *params) {
    tn_attention_params p = *params;
    const tn_attention_sources src = tn__build_cells(b, il, x, &p);
    return tn__finish_attend(b, il, tn__name_node(b, tn_attention(b->a, &src, &p), "attn"));
}

/* The output y of attention, [head, heads, tokens], times a function of x: of every element, or of every head. */
static tn_tensor *build_attn_gate(const tn__builder *b, tn_tensor *w, tn_tensor *x, tn_tensor *y) {
    tn_tensor *gate = tn__build_linear(b, w, NULL, NULL, x, "attn_gate");
    gate = b->arch->softplus_gate ? tn_softplus(b->a, gate) : tn_sigmoid(b->a, gate);
    const int64_t each = w->ne[1] == y->ne[1] ? 1 : y->ne[0];
    return tn__name_node(b, tn_mul(b->a, y, tn_reshape(b->a, gate, each, y->ne[1], y->ne[2])), "attn_gated");
}

tn_tensor *tn__build_attention(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__qkv qkv = tn__build_qkv(b, il, x);
    const tn_attention_params p = tn__attention_params(b, il);
    if (!qkv.q || !qkv.k || !qkv.v) return NULL;
    tn_tensor *y = tn__build_attend(b, il, &qkv, &p);
    if (!y) return NULL;
    if (l->attn_gate) y = build_attn_gate(b, l->attn_gate, x, y);
    y = y ? tn_reshape(b->a, y, y->ne[0] * y->ne[1], y->ne[2]) : NULL;
    if (l->attn_sub_norm) y = tn__name_node(b, tn__build_norm(b, y, l->attn_sub_norm, NULL), "attn_sub_norm");
    y = tn__build_linear(b, l->wo, l->so, l->bo, y, "attn_out");
    return tn__name_node(b, tn__build_scaled(b, y, b->h->attn_out_scale), "attn_out_scaled");
}

static tn_tensor *build_linear_mixer(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    return tn__build_linear(b, l->wo, l->so, l->bo, x, "attn_out");
}
const tn__mixer tn__linear_mixer = {.name = "linear", .build = build_linear_mixer};

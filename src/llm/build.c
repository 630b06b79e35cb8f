/* The shared builder: a transformer's graph from hyper-parameters, the architecture's switches, and the optional
 * tensors that the file has. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"

#include <math.h>

/* Tokens whose feed-forward part is computed together: bounds the widest intermediate to this many rows, which is
 * where most of a prefill's compute memory would go. Weights are read once per chunk, so chunks must not be too
 * small: on the CPU 128 rows took as long as 256. A GPU is faster with large matrices and has the memory. */
enum { FFN_CHUNK_CPU = 128, FFN_CHUNK_GPU = 512 };

typedef struct graph_builder {
    const tn_session_plan *plan;
    const tn_model *m;
    const tn__hparams *h;
    const tn__arch *arch;
    tn_arena *a;
    tn__graph_set *set;
    tn_graph *graph;
    tn_tensor *tokens; /* an input, or the argmax that the step before left on the device */
    tn_status status;  /* of append_now */
    char suffix[40];   /* of the names of what is built now: ".3" in layer 3, ".3@128" for its rows from 128 on */
} graph_builder;

static tn_tensor *graph_input(const graph_builder *b, tn__input source) {
    return tn__input_tensor(&b->set->inputs, source);
}

/* Names a tensor for plans, dumps and callbacks. A tensor that has a name keeps it: where a part of a layer is
 * missing, its input passes through. */
static tn_tensor *name_node(const graph_builder *b, tn_tensor *t, const char *what) {
    return t && !t->name[0] ? tn_name(b->a, t, "%s%s", what, b->suffix) : t;
}

/* Appends a node to the graph now. Other nodes are appended in the order in which the last node's sources need them.
 */
static void append_now(graph_builder *b, tn_tensor *t) {
    if (t && b->status == TN_OK) b->status = tn_graph_add(b->graph, t);
}

static tn_tensor *build_norm(const graph_builder *b, tn_tensor *x, tn_tensor *weight, tn_tensor *bias) {
    return !tn__arch_has(b->arch, TN_ARCH_LAYER_NORM) ? tn_rms_norm(b->a, x, weight, b->h->norm_eps)
                                                      : tn_norm(b->a, x, weight, bias, b->h->norm_eps);
}
/* Applies a matrix's scale and bias to the result of its matmul. The last node has the plain name. */
static tn_tensor *finish_linear(const graph_builder *b, tn_tensor *y, tn_tensor *scale, tn_tensor *bias,
                                const char *what) {
    if (!scale && !bias) return name_node(b, y, what);
    if (y) tn_name(b->a, y, "%s_matmul%s", what, b->suffix);
    if (scale && bias && y) y = tn_name(b->a, tn_mul(b->a, y, scale), "%s_scaled%s", what, b->suffix);
    return name_node(b, bias ? tn_add(b->a, y, bias) : tn_mul(b->a, y, scale), what);
}
static tn_tensor *build_linear(const graph_builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias, tn_tensor *x,
                               const char *what) {
    return finish_linear(b, tn_mul_mat(b->a, w, x), scale, bias, what);
}
/* In the feed-forward part a matrix's scale covers its bias too. */
static tn_tensor *build_ffn_linear(const graph_builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias,
                                   tn_tensor *x, const char *what) {
    if (!b->arch->ffn_scales) scale = NULL;
    if (!scale || !bias) return build_linear(b, w, scale, bias, x, what);
    tn_tensor *y = tn_name(b->a, tn_mul_mat(b->a, w, x), "%s_matmul%s", what, b->suffix);
    y = tn_name(b->a, tn_add(b->a, y, bias), "%s_biased%s", what, b->suffix);
    return name_node(b, tn_mul(b->a, y, scale), what);
}
static tn_tensor *build_scaled(const graph_builder *b, tn_tensor *x, float scale) {
    return scale != 0 && scale != 1 ? tn_scale(b->a, x, scale, 0) : x;
}

/* ---- Attention ---- */

static tn_rope_params rope_params(const graph_builder *b, int32_t il) {
    const tn__hparams *h = b->h;
    tn_rope_params p = tn_rope_params_default(h->n_rot, b->arch->rope);
    p.base = b->plan->params.rope_base > 0 ? b->plan->params.rope_base : h->layers[il].rope_base;
    p.freq_scale = b->plan->params.rope_scale > 0 ? b->plan->params.rope_scale : h->layers[il].rope_scale;
    p.ext_factor = h->yarn_ext >= 0 ? h->yarn_ext : h->rope_scaling == TN__ROPE_SCALING_YARN ? 1.0f : 0.0f;
    p.attn_factor = h->yarn_attn * h->rope_attn_factor;
    p.beta_fast = h->yarn_beta_fast;
    p.beta_slow = h->yarn_beta_slow;
    p.n_ctx_orig = h->rope_orig_ctx;
    for (int i = 0; i < 4; i++) p.sections[i] = h->rope_sections[i];
    return p;
}

tn_tensor *tn__rope_factors(const tn_session_plan *p) {
    const tn__weights *w = &p->model->w;
    if (w->rope_freqs) return w->rope_freqs;
    return p->params.n_ctx / p->params.n_seqs > p->model->h.rope_orig_ctx ? w->rope_long : w->rope_short;
}

/* On the layer's own device: such a small tensor must move neither itself nor its op to another device. */
static tn_tensor *rope_factors(const graph_builder *b, int32_t il) {
    const tn__weights *w = &b->m->w;
    if (w->layers[il].rope_freqs) return w->layers[il].rope_freqs;
    tn_tensor *copy = b->plan->kv.factors[b->plan->kv.layers[il].device];
    return copy ? copy : tn__rope_factors(b->plan);
}

/* Rows of a head each: [size, heads, tokens] out of a matrix whose rows start at `offset` bytes. */
static tn_tensor *split_heads(const graph_builder *b, tn_tensor *x, int32_t size, int32_t heads, size_t offset) {
    if (!x) return NULL;
    return tn_view(b->a, x, 3, (const int64_t[]){size, heads, x->ne[1]},
                   (const size_t[]){4, (size_t)size * 4, x->nb[1]}, offset);
}
static tn_tensor *flatten_heads(const graph_builder *b, tn_tensor *x) {
    if (!x) return NULL;
    return tn_view(b->a, x, 2, (const int64_t[]){x->ne[0] * x->ne[1], x->ne[2]}, (const size_t[]){4, x->nb[2]}, 0);
}

/* Normalises q or k: over a whole row when the weight is as long as that, else head by head. */
static tn_tensor *build_head_norm(const graph_builder *b, tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                  const char *what) {
    if (!weight || !x) return x;
    if (weight->ne[0] == x->ne[0]) return name_node(b, build_norm(b, x, weight, bias), what);
    tn_tensor *y = name_node(b, build_norm(b, flatten_heads(b, x), weight, bias), what);
    return tn_reshape(b->a, y, x->ne[0], x->ne[1], x->ne[2]);
}

/* Rotates heads in blocks before they are quantized, or back: the rotation is its own inverse. */
static tn_tensor *build_rotation(const graph_builder *b, tn_tensor *x, int32_t block, const char *what) {
    return block ? name_node(b, tn_hadamard(b->a, x, block), what) : x;
}

static tn_tensor *build_attention(graph_builder *b, int32_t il, tn_tensor *x) {
    const tn__hparams *h = b->h;
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &h->layers[il];
    tn_arena *a = b->a;
    tn_tensor *q, *k, *v;
    if (l->wqkv) {
        tn_tensor *qkv = build_linear(b, l->wqkv, l->sqkv, l->bqkv, x, "qkv");
        if (h->clamp_qkv > 0) qkv = tn_clamp(a, qkv, -h->clamp_qkv, h->clamp_qkv);
        size_t q_bytes = (size_t)lh->n_head * (size_t)h->head_k * 4,
               k_bytes = (size_t)lh->n_head_kv * (size_t)h->head_k * 4;
        q = split_heads(b, qkv, h->head_k, lh->n_head, 0);
        k = split_heads(b, qkv, h->head_k, lh->n_head_kv, q_bytes);
        v = split_heads(b, qkv, h->head_v, lh->n_head_kv, q_bytes + k_bytes);
    } else {
        /* The three matmuls are adjacent, so that a backend can share their common input. */
        append_now(b, q = tn_mul_mat(a, l->wq, x));
        append_now(b, k = tn_mul_mat(a, l->wk, x));
        append_now(b, v = tn_mul_mat(a, l->wv, x));
        q = finish_linear(b, q, l->sq, l->bq, "q");
        k = finish_linear(b, k, l->sk, l->bk, "k");
        v = finish_linear(b, v, l->sv, l->bv, "v");
        if (h->clamp_qkv > 0) {
            q = tn_clamp(a, q, -h->clamp_qkv, h->clamp_qkv);
            k = tn_clamp(a, k, -h->clamp_qkv, h->clamp_qkv);
            v = tn_clamp(a, v, -h->clamp_qkv, h->clamp_qkv);
        }
        q = split_heads(b, q, h->head_k, lh->n_head, 0);
        k = split_heads(b, k, h->head_k, lh->n_head_kv, 0);
        v = split_heads(b, v, h->head_v, lh->n_head_kv, 0);
    }
    if (!b->arch->norm_qk_after_rope) {
        q = build_head_norm(b, q, l->q_norm, l->q_norm_b, "q_norm");
        k = build_head_norm(b, k, l->k_norm, l->k_norm_b, "k_norm");
    }
    if (!tn__arch_has(b->arch, TN_ARCH_NO_ROPE) && !lh->no_rope) {
        tn_rope_params p = rope_params(b, il);
        q = name_node(b, tn_rope(a, q, graph_input(b, TN__INPUT_POSITIONS), rope_factors(b, il), &p), "q_rope");
        k = name_node(b, tn_rope(a, k, graph_input(b, TN__INPUT_POSITIONS), rope_factors(b, il), &p), "k_rope");
    }
    if (b->arch->norm_qk_after_rope) {
        q = build_head_norm(b, q, l->q_norm, l->q_norm_b, "q_norm");
        k = build_head_norm(b, k, l->k_norm, l->k_norm_b, "k_norm");
    }

    tn_tensor *q_scale = graph_input(b, TN__INPUT_QUERY_SCALES);
    if (q_scale) q = tn_mul(a, q, q_scale);
    const tn__kv_layer *cache = &b->plan->kv.layers[il];
    q = build_rotation(b, q, cache->rotate_k, "q_rotated");
    k = build_rotation(b, k, cache->rotate_k, "k_rotated");
    v = build_rotation(b, v, cache->rotate_v, "v_rotated");
    tn_attention_sources src = {.q = q, .sinks = l->sinks};
    tn_attention_params p = {
        .scale = h->attn_scale != 0 ? h->attn_scale : 1 / sqrtf((float)h->head_k),
        .soft_cap = h->attn_soft_cap,
        .max_bias = h->max_alibi,
        .causal = h->causal,
        .window = lh->window,
    };
    int group = cache->group;
    tn_tensor *rows = graph_input(b, group == TN__CACHE_FULL ? TN__INPUT_ROWS_FULL : TN__INPUT_ROWS_WINDOW);
    tn_tensor *kc = name_node(b, tn_set_rows(a, cache->k, flatten_heads(b, k), rows), "k_store");
    tn_tensor *vc = name_node(b, tn_set_rows(a, cache->v, flatten_heads(b, v), rows), "v_store");
    src.k = tn_reshape(a, kc, h->head_k, lh->n_head_kv, cache->k->ne[1]);
    src.v = tn_reshape(a, vc, h->head_v, lh->n_head_kv, cache->v->ne[1]);
    src.q_pos = graph_input(b, TN__INPUT_QUERY_CELLS);
    src.pages = b->plan->kv.tables[(size_t)group * b->plan->kv.n_devices + (size_t)cache->device];
    p.page = b->plan->kv.groups[group].page;
    tn_tensor *y = name_node(b, tn_attention(a, &src, &p), "attn");
    y = build_rotation(b, y, cache->rotate_v, "attn_rotated");
    if (!y) return NULL;
    y = tn_reshape(a, y, y->ne[0] * y->ne[1], y->ne[2]);
    return build_linear(b, l->wo, l->so, l->bo, y, "attn_out");
}

/* ---- Feed-forward ---- */

static tn_tensor *build_gated(const graph_builder *b, tn_tensor *gate, tn_tensor *up) {
    return name_node(b, tn_glu(b->a, b->arch->activation, gate, up, false), "ffn_act");
}

static tn_tensor *build_dense_ffn(const graph_builder *b, const tn__layer *l, tn_tensor *x) {
    tn_tensor *up = build_ffn_linear(b, l->ffn_up, l->ffn_up_s, l->ffn_up_b, x, "ffn_up"), *y;
    if (tn__arch_has(b->arch, TN_ARCH_NO_GATE))
        y = name_node(b, tn_unary(b->a, b->arch->activation, up), "ffn_act");
    else if (l->ffn_gate)
        y = build_gated(b, build_ffn_linear(b, l->ffn_gate, l->ffn_gate_s, l->ffn_gate_b, x, "ffn_gate"), up);
    else
        y = build_gated(b, up, NULL); /* one matrix holds gate and up */
    if (l->ffn_act && y) y = name_node(b, tn_div(b->a, y, l->ffn_act), "ffn_act_scaled");
    return build_ffn_linear(b, l->ffn_down, l->ffn_down_s, l->ffn_down_b, y, "ffn_out");
}

/* The matmul of the chosen experts, with the scale and bias of each. */
static tn_tensor *build_expert_linear(const graph_builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias,
                                      tn_tensor *x, tn_tensor *ids, const char *what) {
    tn_tensor *y = tn_mul_mat_id(b->a, w, x, ids);
    if (!b->arch->ffn_scales) scale = NULL;
    if (scale || bias) tn_name(b->a, y, "%s_matmul%s", what, b->suffix);
    if (scale && y) {
        int64_t used = ids->ne[0], tokens = ids->ne[1];
        tn_tensor *s = tn_get_rows(b->a, tn_reshape(b->a, scale, 1, scale->ne[0]),
                                   tn_reshape(b->a, tn_cont(b->a, ids), used * tokens));
        y = tn_mul(b->a, y, tn_reshape(b->a, s, 1, used, tokens));
        if (bias) tn_name(b->a, y, "%s_scaled%s", what, b->suffix);
    }
    if (bias) y = tn_add_id(b->a, y, bias, ids);
    return name_node(b, y, what);
}

static tn_tensor *build_experts(const graph_builder *b, const tn__layer *l, tn_tensor *x) {
    const tn__hparams *h = b->h;
    tn_arena *a = b->a;
    if (!x) return NULL;
    int64_t tokens = x->ne[1], used = h->n_expert_used;
    tn_tensor *logits = build_linear(b, l->router, NULL, l->router_b, x, "router"), *probs = logits;
    if (h->gating == TN__GATING_SOFTMAX) probs = tn_soft_max(a, logits, NULL, NULL, 1, 0);
    if (h->gating == TN__GATING_SIGMOID) probs = tn_sigmoid(a, logits);
    probs = name_node(b, probs, "router_probs");
    tn_tensor *ranked = l->router_bias ? tn_add(a, probs, l->router_bias) : probs;
    tn_tensor *ids = name_node(b, tn_top_k(a, ranked, h->n_expert_used), "experts");
    tn_tensor *weights =
        tn_reshape(a, tn_get_rows(a, tn_reshape(a, probs, 1, h->n_expert, tokens), ids), used, tokens);
    if (h->gating == TN__GATING_SOFTMAX_OF_CHOSEN) weights = tn_soft_max(a, weights, NULL, NULL, 1, 0);
    if (h->norm_expert_weights) weights = tn_div(a, weights, tn_sum_rows(a, weights));
    weights = name_node(b, build_scaled(b, weights, h->expert_scale), "expert_weights");

    tn_tensor *row = tn_reshape(a, x, h->n_embd, 1, tokens);
    tn_tensor *up = build_expert_linear(b, l->up_exps, l->up_exps_s, l->up_exps_b, row, ids, "ffn_up");
    tn_tensor *y =
        l->gate_exps
            ? build_gated(
                  b, build_expert_linear(b, l->gate_exps, l->gate_exps_s, l->gate_exps_b, row, ids, "ffn_gate"), up)
            : name_node(b, tn_unary(a, b->arch->activation, up), "ffn_act");
    y = build_expert_linear(b, l->down_exps, l->down_exps_s, l->down_exps_b, y, ids, "ffn_down");
    y = name_node(b, tn_mix(a, y, weights), l->up_shexp ? "ffn_mix" : "ffn_out");
    if (l->up_shexp) {
        tn_tensor *inner = build_gated(b, build_ffn_linear(b, l->gate_shexp, l->gate_shexp_s, NULL, x, "shared_gate"),
                                       build_ffn_linear(b, l->up_shexp, l->up_shexp_s, NULL, x, "shared_up"));
        tn_tensor *shared = build_ffn_linear(b, l->down_shexp, l->down_shexp_s, NULL, inner, "shared_out");
        if (l->shared_router) {
            tn_tensor *router = tn_reshape(a, l->shared_router, h->n_embd, 1);
            tn_tensor *gate = tn_sigmoid(a, name_node(b, tn_mul_mat(a, router, x), "shared_router"));
            shared = tn_mul(a, shared, gate);
        }
        y = name_node(b, tn_add(a, y, shared), "ffn_out");
    }
    return y;
}

static tn_tensor *build_feed_forward(const graph_builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_tensor *y = l->router ? build_experts(b, l, x) : build_dense_ffn(b, l, x);
    if (l->ffn_post_norm) y = name_node(b, build_norm(b, y, l->ffn_post_norm, NULL), "ffn_post_norm");
    return name_node(b, build_scaled(b, y, b->h->residual_scale), "ffn_scaled");
}

/* Bounds the size of the graph for micro-batches of any size. */
enum { FFN_MOST_CHUNKS = 64 };
/* Whether another device copies the host's weights over for this many rows: it does so once per chunk. */
static bool copies_weights(const graph_builder *b, const tn__layer *l, tn_tensor *x) {
    const tn_tensor *example = tn_mul_mat(b->a, l->router ? l->router : l->ffn_up, x);
    for (size_t d = 0; example && d < b->plan->placement.n_devices; d++)
        if (tn_device_wants_op(tn__plan_device(b->plan, d), example)) return true;
    return false;
}
static int64_t ffn_chunk(const graph_builder *b, int32_t il, tn_tensor *x) {
    const int64_t rows = x->ne[1], most = b->plan->params.ffn_chunk ? b->plan->params.ffn_chunk : INT64_MAX;
    if (rows <= TN__MIN(most, FFN_CHUNK_CPU)) return rows;
    tn_device *device = tn__plan_device(b->plan, (size_t)b->plan->placement.device_of_layer[il + 1]);
    bool host = tn_device_get_kind(device) == TN_DEVICE_CPU;
    int64_t chunk = host && !copies_weights(b, &b->m->w.layers[il], x) ? FFN_CHUNK_CPU : FFN_CHUNK_GPU;
    int64_t least = (rows + FFN_MOST_CHUNKS - 1) / FFN_MOST_CHUNKS;
    return TN__MAX(least, TN__MIN(most, chunk));
}

/* x + ffn(norm(x)), in chunks of tokens that add to x in place. */
static tn_tensor *build_serial_ffn(graph_builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    if (!x) return NULL;
    int64_t rows = x->ne[1], chunk = ffn_chunk(b, il, x);
    for (int64_t begin = 0; begin < rows && x; begin += chunk) {
        int64_t n = rows - begin < chunk ? rows - begin : chunk;
        size_t offset = (size_t)begin * x->nb[1];
        if (begin) snprintf(b->suffix, sizeof b->suffix, ".%d@%lld", il, (long long)begin);
        tn_tensor *part = rows <= chunk ? x
                                        : tn_view(b->a, x, 2, (const int64_t[]){x->ne[0], n},
                                                  (const size_t[]){4, x->nb[1]}, offset);
        if (l->ffn_norm || tn__arch_has(b->arch, TN_ARCH_BARE_NORMS))
            part = name_node(b, build_norm(b, part, l->ffn_norm, l->ffn_norm_b), "ffn_norm");
        tn_tensor *y = build_feed_forward(b, il, part);
        if (rows <= chunk) return tn_add(b->a, x, y);
        if (!y) return NULL;
        x = tn_acc(b->a, x, y, x->nb[1], x->nb[2], x->nb[3], offset);
        if (begin + n < rows) name_node(b, x, "ffn_sum");
    }
    return x;
}

/* ---- Layers and graphs ---- */

/* How this layer's parts are combined: as in its family, unless the file says otherwise. */
static tn__residual residual_of(const graph_builder *b, const tn__layer *l) {
    if (b->arch->parallel_without_norm && !l->ffn_norm) return TN__RESIDUAL_PARALLEL;
    if (b->arch->residual == TN__RESIDUAL_PARALLEL_NORM && !b->h->parallel) return TN__RESIDUAL_SERIAL;
    return b->arch->residual;
}

static tn_tensor *build_layer(graph_builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    tn__residual residual = residual_of(b, l);
    snprintf(b->suffix, sizeof b->suffix, ".%d", il);
    tn_tensor *in = x;
    if (l->attn_norm || tn__arch_has(b->arch, TN_ARCH_BARE_NORMS))
        in = name_node(b, build_norm(b, x, l->attn_norm, l->attn_norm_b), "attn_norm");
    tn_tensor *attn_in =
        l->attn_norm_2 ? name_node(b, build_norm(b, x, l->attn_norm_2, l->attn_norm_2_b), "attn_norm_2") : in;
    tn_tensor *attn = build_attention(b, il, attn_in);
    /* After the last attention only the output rows are computed further. */
    tn_tensor *out_rows = graph_input(b, TN__INPUT_OUTPUT_ROWS);
    if (il == b->h->n_layer - 1 && out_rows) {
        attn = name_node(b, tn_get_rows(a, attn, out_rows), "attn_wanted");
        x = name_node(b, tn_get_rows(a, x, out_rows), "x_wanted");
        if (residual == TN__RESIDUAL_PARALLEL) in = tn_get_rows(a, in, out_rows);
    }
    if (l->attn_post_norm) attn = name_node(b, build_norm(b, attn, l->attn_post_norm, NULL), "attn_post_norm");
    attn = name_node(b, build_scaled(b, attn, b->h->residual_scale), "attn_scaled");
    switch (residual) {
    case TN__RESIDUAL_SERIAL: return build_serial_ffn(b, il, name_node(b, tn_add(a, attn, x), "attn_sum"));
    case TN__RESIDUAL_PARALLEL: {
        tn_tensor *sum = name_node(b, tn_add(a, attn, x), "attn_sum");
        return tn_add(a, build_feed_forward(b, il, in), sum);
    }
    case TN__RESIDUAL_PARALLEL_NORM: {
        tn_tensor *sum = name_node(b, tn_add(a, attn, x), "attn_sum");
        return tn_add(
            a, build_feed_forward(b, il, name_node(b, build_norm(b, x, l->ffn_norm, l->ffn_norm_b), "ffn_norm")),
            sum);
    }
    case TN__RESIDUAL_POST_NORM: {
        tn_tensor *mid =
            build_norm(b, name_node(b, tn_add(a, attn, x), "attn_sum"), l->attn_out_norm, l->attn_out_norm_b);
        tn_tensor *sum = tn_add(a, build_feed_forward(b, il, name_node(b, mid, "attn_norm")), mid);
        return build_norm(b, name_node(b, sum, "ffn_sum"), l->layer_out_norm, l->layer_out_norm_b);
    }
    }
    return NULL;
}

static tn_tensor *build_embedding(const graph_builder *b) {
    const tn__weights *w = &b->m->w;
    tn_tensor *x = name_node(b, tn_get_rows(b->a, w->tok_embd, b->tokens), "embedding");
    x = name_node(b, build_scaled(b, x, b->h->embd_scale), "embedding_scaled");
    if (w->type_embd) x = tn_add(b->a, x, tn_view(b->a, w->type_embd, 1, (const int64_t[]){b->h->n_embd}, NULL, 0));
    if (w->pos_embd)
        x = tn_add(
            b->a, x,
            name_node(b, tn_get_rows(b->a, w->pos_embd, graph_input(b, TN__INPUT_POSITIONS)), "position_embedding"));
    x = name_node(b, x, "embedding_sum");
    if (w->tok_norm) x = name_node(b, build_norm(b, x, w->tok_norm, w->tok_norm_b), "embedding_norm");
    return x;
}

static tn_tensor *build_head(const graph_builder *b, tn_tensor *x) {
    const tn__weights *w = &b->m->w;
    tn_tensor *y = build_linear(b, w->output ? w->output : w->tok_embd, w->output_s, w->output_b, x, "logits");
    y = build_scaled(b, y, b->h->logit_scale);
    float cap = b->h->final_soft_cap;
    if (cap > 0) y = tn_scale(b->a, tn_tanh(b->a, tn_scale(b->a, y, 1 / cap, 0)), cap, 0);
    return y;
}

/* Scores from the pooled state. */
static tn_tensor *build_classifier(const graph_builder *b, tn_tensor *x) {
    const tn__weights *w = &b->m->w;
    if (w->cls) x = tn_tanh(b->a, build_linear(b, w->cls, NULL, w->cls_b, x, "classifier"));
    return build_linear(b, w->cls_out, NULL, w->cls_out_b, x, "scores");
}

/* An upper bound for the tensors of a graph. */
static size_t graph_tensor_limit(const tn_session_plan *p, tn__shape shape) {
    const tn_model *m = p->model;
    const size_t least = p->params.ffn_chunk ? TN__MIN((size_t)p->params.ffn_chunk, FFN_CHUNK_CPU) : FFN_CHUNK_CPU;
    size_t chunks = TN__MIN(((size_t)shape.n_tokens + least - 1) / least, FFN_MOST_CHUNKS);
    return (size_t)m->h.n_layer * (48 + 40 * chunks) + 64;
}

/* What a graph of this kind gives, from the state after the last layer. */
static tn_tensor *build_result(graph_builder *b, tn_tensor *x) {
    static const char *const names[] = {[TN__GRAPH_LOGITS] = "logits",
                                        [TN__GRAPH_ARGMAX] = "argmax",
                                        [TN__GRAPH_NEXT] = "argmax",
                                        [TN__GRAPH_HIDDEN] = "hidden",
                                        [TN__GRAPH_RANK] = "scores"};
    const tn__weights *w = &b->m->w;
    const tn__graph_kind kind = b->set->shape.kind;
    const bool argmax = kind == TN__GRAPH_ARGMAX || kind == TN__GRAPH_NEXT;
    b->suffix[0] = '\0';
    if (w->out_norm || tn__arch_has(b->arch, TN_ARCH_BARE_NORMS))
        x = name_node(b, build_norm(b, x, w->out_norm, w->out_norm_b), "output_norm");
    if (kind == TN__GRAPH_LOGITS || argmax) x = build_head(b, x);
    if (kind == TN__GRAPH_RANK) x = build_classifier(b, x);
    if (argmax) {
        b->set->sums = tn_name(b->a, tn_output(tn_sum_rows(b->a, x)), "sums");
        x = tn_argmax(b->a, x);
    }
    return tn_name(b->a, tn_output(x), "%s", names[kind]);
}

static graph_builder begin_graph(const tn_session_plan *p, tn__shape shape, tn__graph_set *set) {
    set->shape = shape;
    return (graph_builder){.plan = p, .m = p->model, .h = &p->model->h, .arch = p->model->arch, .set = set};
}

tn_status tn__build_graph(const tn_session_plan *p, tn__shape shape, tn__graph_set *set) {
    graph_builder b = begin_graph(p, shape, set);
    size_t limit = set->n_tensors ? set->n_tensors : graph_tensor_limit(p, shape);
    size_t capacity = set->n_tensors ? set->capacity : limit + p->model->n_all + 4 * (size_t)b.h->n_layer;
    TN_TRY(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(limit, capacity), .no_alloc = true}, &set->arena));
    tn_arena *a = b.a = set->arena;
    TN_TRY(tn_graph_new(a, capacity, &b.graph));
    tn__inputs_build(a, b.h, &p->kv, shape, &set->inputs);
    b.tokens = shape.kind == TN__GRAPH_NEXT ? tn_view(a, p->kv.argmax, 1, (const int64_t[]){1}, NULL, 0)
                                            : graph_input(&b, TN__INPUT_TOKENS);
    tn_tensor *x = build_embedding(&b);
    for (int32_t k = 0; k < tn__built_count(p); k++) {
        int32_t il = tn__built_layer(p, k);
        x = build_layer(&b, il, x);
        tn_name(a, x, "layer.%d", il);
    }
    set->result = build_result(&b, x);
    TN_TRY(tn_arena_status(a));
    TN_TRY(b.status);
    set->graph = b.graph;
    if (set->sums) TN_TRY(tn_graph_add(set->graph, set->sums));
    return tn_graph_add(set->graph, set->result);
}

/* ---- Moving cached cells ---- */

/* Reads the cells MOVE_FROM, rotates K by MOVE_DELTA if `rotate_layer` is not -1, and writes the cells MOVE_TO. */
static tn_tensor *move_rows(const graph_builder *b, tn_tensor *cache, int32_t rotate_layer) {
    tn_tensor *x =
        tn_name(b->a, tn_get_rows(b->a, cache, graph_input(b, TN__INPUT_MOVE_FROM)), "moved.%s", cache->name);
    if (rotate_layer >= 0 && x) {
        int32_t heads = b->h->layers[rotate_layer].n_head_kv;
        tn_rope_params p = rope_params(b, rotate_layer);
        /* Cached keys have their magnitude already: only the angle changes. */
        p.attn_factor = p.ext_factor != 0 ? 1 / (1 + 0.1f * logf(1 / p.freq_scale)) : 1;
        const int32_t block = b->plan->kv.layers[rotate_layer].rotate_k;
        x = tn_reshape(b->a, x, b->h->head_k, heads, x->ne[1]);
        if (block) x = tn_hadamard(b->a, x, block);
        x = tn_rope(b->a, x, graph_input(b, TN__INPUT_MOVE_DELTA), rope_factors(b, rotate_layer), &p);
        if (block) x = tn_hadamard(b->a, x, block);
        x = x ? tn_reshape(b->a, x, x->ne[0] * x->ne[1], x->ne[2]) : NULL;
    }
    return tn_set_rows(b->a, cache, x, graph_input(b, TN__INPUT_MOVE_TO));
}

tn_status tn__build_move(const tn_session_plan *p, tn__shape shape, tn__graph_set *set) {
    graph_builder b = begin_graph(p, shape, set);
    size_t limit = set->n_tensors ? set->n_tensors : 16 * (size_t)b.h->n_layer + 16;
    size_t capacity = set->n_tensors ? set->capacity : limit;
    int group = shape.n_outputs;
    bool shift = shape.kind == TN__GRAPH_SHIFT;
    TN_TRY(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(limit, capacity), .no_alloc = true}, &set->arena));
    tn_arena *a = b.a = set->arena;
    tn__inputs_build(a, b.h, &p->kv, shape, &set->inputs);
    tn_graph *graph;
    TN_TRY(tn_graph_new(a, capacity, &graph));
    for (int32_t built = 0; built < tn__built_count(p); built++) {
        const int32_t il = tn__built_layer(p, built);
        const tn__kv_layer *l = &p->kv.layers[il];
        bool rotates = !tn__arch_has(b.arch, TN_ARCH_NO_ROPE) && !b.h->layers[il].no_rope;
        if (l->group != group || (shift && !rotates)) continue;
        tn_tensor *k = move_rows(&b, l->k, shift ? il : -1), *v = shift ? NULL : move_rows(&b, l->v, -1);
        TN_TRY(tn_arena_status(a));
        TN_TRY(tn_graph_add(graph, k));
        if (v) TN_TRY(tn_graph_add(graph, v));
        set->graph = graph;
    }
    return TN_OK;
}

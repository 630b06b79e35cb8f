/* The feed-forward part of a layer: dense, in chunks of tokens. parts/experts.c has the mixture of experts. */
#include "llm/build/builder.h"

#include "base/checked.h"

/* Tokens whose feed-forward part is computed together: bounds the widest intermediate to this many rows, which is
 * where most of a prefill's compute memory would go. Weights are read once per chunk, so chunks must not be too
 * small: on the CPU 128 rows took as long as 256. A GPU is faster with large matrices and has the memory. */
enum { FFN_CHUNK_CPU = 128, FFN_CHUNK_GPU = 512 };

tn_tensor *tn__build_ffn_linear(const tn__builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias, tn_tensor *x,
                                const char *what) {
    if (!b->arch->ffn_scales) scale = NULL;
    if (!scale || !bias) return tn__build_linear(b, w, scale, bias, x, what);
    tn_tensor *y = tn_name(b->a, tn_mul_mat(b->a, w, x), "%s_matmul%s", what, b->suffix);
    y = tn_name(b->a, tn_add(b->a, y, bias), "%s_biased%s", what, b->suffix);
    y = tn_mul(b->a, y, scale);
    if (tn__is_adapted(b, w) && y)
        y = tn__adapt_linear(b, w, x, tn_name(b->a, y, "%s_scaled%s", what, b->suffix), what);
    return tn__name_node(b, y, what);
}

static tn_tensor *build_dense_matrices(const tn__builder *b, const tn__layer *l, tn_tensor *x) {
    const float limit = b->h->layers[l - b->m->w.layers].swiglu_limit_shared;
    if (!l->ffn_up) return tn__name_node(b, tn_silu(b->a, x), "ffn_act"); /* tn__arch.ffn_without_matrices */
    tn_tensor *up = tn__build_ffn_linear(b, l->ffn_up, l->ffn_up_s, l->ffn_up_b, x, "ffn_up"), *y;
    if (tn__arch_has(b->arch, TN_ARCH_NO_GATE) || b->h->plain_ffn)
        y = tn__build_activation(b, l, up);
    else if (l->ffn_gate)
        y = tn__build_gated(b, tn__build_ffn_linear(b, l->ffn_gate, l->ffn_gate_s, l->ffn_gate_b, x, "ffn_gate"), up,
                            limit);
    else
        y = tn__build_gated(b, up, NULL, 0); /* one matrix holds gate and up */
    if (l->ffn_act && y) y = tn__name_node(b, tn_div(b->a, y, l->ffn_act), "ffn_act_scaled");
    if (l->ffn_sub_norm) y = tn__name_node(b, tn__build_norm(b, y, l->ffn_sub_norm, NULL), "ffn_sub_norm");
    return tn__build_ffn_linear(b, l->ffn_down, l->ffn_down_s, l->ffn_down_b, y, "ffn_out");
}

tn__part_result tn__build_dense_part(const tn__builder *b, const tn__layer *l, tn_tensor *x) {
    const bool divided = tn__division_of(b, (int32_t)(l - b->m->w.layers))->dense;
    return (tn__part_result){build_dense_matrices(b, l, x), divided};
}

tn_tensor *tn__build_dense_ffn(const tn__builder *b, const tn__layer *l, tn_tensor *x) {
    return tn__sum_result(b, tn__build_dense_part(b, l, x), "ffn_out");
}

tn__part_result tn__build_feed_forward_part(const tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn__part_result result = l->router ? tn__build_experts_part(b, il, x) : tn__build_dense_part(b, l, x);
    const bool beside = l->router && l->ffn_up && tn__arch_has(b->arch, TN_ARCH_DENSE_TOO);
    if (beside) {
        result = tn__add_results(b, result, tn__build_dense_part(b, l, x), "ffn_out");
        tn__name_node(b, result.y, "ffn_both");
    }
    const bool biased = l->router && l->ffn_down_b && !beside; /* of the sum of all experts */
    if (biased || l->ffn_post_norm) result = (tn__part_result){tn__sum_result(b, result, "ffn_out"), false};
    tn_tensor *y = result.y;
    if (biased) y = tn__name_node(b, tn_add(b->a, y, l->ffn_down_b), "ffn_biased");
    if (beside || (l->router && l->up_shexp))
        y = tn__name_node(b, tn__build_scaled(b, y, b->h->experts_sum_scale), "ffn_sum_scaled");
    if (l->ffn_post_norm) y = tn__name_node(b, tn__build_post_norm(b, y, l->ffn_post_norm), "ffn_post_norm");
    return (tn__part_result){tn__name_node(b, tn__build_scaled(b, y, b->h->residual_scale), "ffn_scaled"),
                             result.partial};
}

tn_tensor *tn__build_feed_forward(const tn__builder *b, int32_t il, tn_tensor *x) {
    return tn__sum_result(b, tn__build_feed_forward_part(b, il, x), "ffn_out");
}

/* Bounds the size of the graph for micro-batches of any size. */
enum { FFN_MOST_CHUNKS = 64 };
size_t tn__ffn_most_chunks(const tn_session_plan *p, int32_t n_tokens) {
    const size_t least = p->params.ffn_chunk ? TN__MIN((size_t)p->params.ffn_chunk, FFN_CHUNK_CPU) : FFN_CHUNK_CPU;
    return TN__MIN(((size_t)n_tokens + least - 1) / least, FFN_MOST_CHUNKS);
}

/* Whether another device copies the host's weights over for this many rows: it does so once per chunk. */
static bool copies_weights(const tn__builder *b, const tn__layer *l, tn_tensor *x) {
    tn_tensor *matrix = l->router ? l->router : l->ffn_up;
    const tn_tensor *example = matrix ? tn_mul_mat(b->a, matrix, x) : NULL;
    for (size_t d = 0; example && d < b->plan->placement.n_devices; d++)
        if (tn_device_wants_op(tn__plan_device(b->plan, d), example)) return true;
    return false;
}
static int64_t ffn_chunk(const tn__builder *b, int32_t il, tn_tensor *x) {
    const int64_t rows = x->ne[1], most = b->plan->params.ffn_chunk ? b->plan->params.ffn_chunk : INT64_MAX;
    if (rows <= TN__MIN(most, FFN_CHUNK_CPU)) return rows;
    tn_device *device = tn__plan_device(b->plan, (size_t)b->plan->placement.device_of_layer[il + 1]);
    bool host = tn_device_get_kind(device) == TN_DEVICE_CPU;
    /* Every chunk of a part that ranks divide needs a sum, and a rank's intermediates are narrower. */
    const tn__layer_division *division = tn__division_of(b, il);
    const bool small = host && !division->dense && !division->experts && !copies_weights(b, &b->m->w.layers[il], x);
    int64_t chunk = small ? FFN_CHUNK_CPU : FFN_CHUNK_GPU;
    int64_t least = (rows + FFN_MOST_CHUNKS - 1) / FFN_MOST_CHUNKS;
    return TN__MAX(least, TN__MIN(most, chunk));
}

static tn_tensor *view_rows(const tn__builder *b, tn_tensor *x, int64_t begin, int64_t n) {
    return tn_view(b->a, x, 2, (const int64_t[]){x->ne[0], n}, (const size_t[]){4, x->nb[1]},
                   (size_t)begin * x->nb[1]);
}

tn_tensor *tn__build_serial_ffn(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    if (!x) return NULL;
    int64_t rows = x->ne[1], chunk = ffn_chunk(b, il, x);
    tn_tensor *router_input = b->router_input;
    for (int64_t begin = 0; begin < rows && x; begin += chunk) {
        int64_t n = rows - begin < chunk ? rows - begin : chunk;
        size_t offset = (size_t)begin * x->nb[1];
        if (begin) snprintf(b->suffix, sizeof b->suffix, ".%d@%lld", il, (long long)begin);
        tn_tensor *part = rows <= chunk ? x : view_rows(b, x, begin, n);
        if (router_input && rows > chunk) b->router_input = view_rows(b, router_input, begin, n);
        if (l->ffn_norm || tn__arch_has(b->arch, TN_ARCH_BARE_NORMS))
            part = tn__name_node(b, tn__build_norm(b, part, l->ffn_norm, l->ffn_norm_b), "ffn_norm");
        b->chunk_of = rows;
        b->chunk_begin = begin;
        tn_tensor *y = tn__build_feed_forward(b, il, part);
        b->chunk_of = b->chunk_begin = 0;
        if (rows <= chunk) return tn_add(b->a, x, y);
        if (!y) return NULL;
        x = tn_acc(b->a, x, y, x->nb[1], x->nb[2], x->nb[3], offset);
        if (begin + n < rows) tn__name_node(b, x, "ffn_sum");
    }
    return x;
}

/* Latent attention (MLA): keys and values of all heads are made from one short row per token.
 *
 * What is stored is that row, normalised, and after it the rotated key that all heads share. The matrix that would
 * make keys from rows is applied to the queries instead (attn_k_b), and the one that makes values to the result
 * (attn_v_b), so that attention runs over the rows themselves with a single head of keys, and values are the first
 * part of it. */
#include "llm/parts/mixers.h"

#include <math.h>

static void latent_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    const tn__layer_hparams *l = &h->layers[il];
    m->k = m->head_k = l->kv_rank + l->n_rot;
    m->v = 0;
    m->head_v = l->kv_rank;
    m->window = h->causal ? l->window : 0;
    tn__indexer_memory(h, il, m);
}

/* [size, heads, tokens]: elements begin … begin+size-1 of every head. */
static tn_tensor *part_of_heads(const tn__builder *b, tn_tensor *x, int64_t begin, int64_t size) {
    if (!x) return NULL;
    return tn_view(b->a, x, 3, (const int64_t[]){size, x->ne[1], x->ne[2]}, (const size_t[]){4, x->nb[1], x->nb[2]},
                   (size_t)begin * 4);
}

/* Multiplies every head with a matrix of its own: w [in, out, heads] × x [in, heads, tokens] → [out, heads, tokens].
 */
static tn_tensor *multiply_heads(const tn__builder *b, tn_tensor *w, tn_tensor *x, const char *what) {
    tn_tensor *y = tn__build_linear(b, w, NULL, NULL, tn_cont(b->a, tn_permute(b->a, x, 0, 2, 1, 3)), what);
    return tn_cont(b->a, tn_permute(b->a, y, 0, 2, 1, 3));
}

tn__latent tn__build_latent(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    const int32_t rank = lh->kv_rank;
    tn_arena *a = b->a;
    tn__latent y = {.q_low = x};
    if (l->q_a) {
        tn_tensor *low = tn__build_linear(b, l->q_a, NULL, NULL, x, "q_a");
        y.q_low = tn__name_node(b, tn_rms_norm(a, low, l->q_a_norm, b->h->norm_eps), "q_a_norm");
        y.q = tn__build_linear(b, l->q_b, NULL, NULL, y.q_low, "q");
    } else {
        y.q = tn__build_linear(b, l->wq, NULL, NULL, x, "q");
    }
    y.q = tn__split_heads(b, y.q, lh->latent_k, lh->n_head, 0);
    tn_tensor *kv = tn__build_linear(b, l->kv_a, NULL, NULL, x, "kv_a");
    y.row = tn_rms_norm(a, tn__build_columns(b, kv, 0, rank), l->kv_a_norm, b->h->norm_eps);
    y.row = tn__name_node(b, y.row, "kv_a_norm");
    y.key = tn__split_heads(b, kv, lh->n_rot, 1, (size_t)rank * 4);
    if (l->k_norm) y.key = tn__build_head_norm(b, y.key, l->k_norm, NULL, "k_norm");
    y.key = tn__build_rope(b, il, y.key, "k_rope");
    return y;
}

/* YaRN's factor of magnitudes is applied to the scores, squared, instead of to q and k. */
float tn__latent_scale(const tn__builder *b, int32_t il) {
    const tn__hparams *h = b->h;
    const float scale = h->layers[il].rope_scale, log_scale = scale > 0 ? logf(1 / scale) : 0;
    const float magnitude = h->rope_attn_factor * (1 + 0.1f * h->yarn_log_mul * log_scale);
    return magnitude * magnitude / sqrtf((float)h->layers[il].latent_k);
}

tn_tensor *tn__build_latent_attend(tn__builder *b, int32_t il, const tn__latent *x, tn_tensor *selected) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    const tn__kv_layer *cache = &b->plan->kv.layers[il];
    const int32_t nope = lh->latent_k - lh->n_rot, rank = lh->kv_rank;
    const int group = cache->group;
    tn_arena *a = b->a;
    if (!x->q || !x->row || !x->key) return NULL;
    const int64_t tokens = x->q->ne[2];
    tn_tensor *q_key = tn__build_rope(b, il, part_of_heads(b, x->q, nope, lh->n_rot), "q_rope");
    tn_tensor *q_row = multiply_heads(b, l->k_b, part_of_heads(b, x->q, 0, nope), "q_latent");
    tn_tensor *q = tn_concat(a, q_row, q_key, 0);
    tn_tensor *q_scale = tn__builder_input(b, TN__INPUT_QUERY_SCALES);
    if (q_scale) q = tn_mul(a, q, q_scale);
    tn_tensor *k = tn_concat(a, tn_reshape(a, x->row, rank, 1, tokens), x->key, 0);
    if (cache->rotate_k) {
        q = tn_hadamard(a, q, cache->rotate_k);
        k = tn_hadamard(a, k, cache->rotate_k);
    }
    tn_tensor *rows = tn__builder_input(b, group == TN__CACHE_FULL ? TN__INPUT_ROWS_FULL : TN__INPUT_ROWS_WINDOW);
    tn_tensor *kc = tn__name_node(b, tn_set_rows(a, cache->k, tn__flatten_heads(b, k), rows), "k_store");
    const int64_t cells = cache->k->ne[1];
    const size_t row_bytes = cache->k->nb[1];
    tn_attention_params p = tn__attention_params(b, il);
    p.scale = tn__latent_scale(b, il);
    p.page = b->plan->kv.groups[group].page;
    tn_attention_sources src = {.q = q,
                                .k = tn_reshape(a, kc, rank + lh->n_rot, 1, cells),
                                .v = tn_view(a, kc, 3, (const int64_t[]){rank, 1, cells},
                                             (const size_t[]){cache->k->nb[0], row_bytes, row_bytes}, 0),
                                .q_pos = tn__builder_input(b, TN__INPUT_QUERY_CELLS),
                                .pages =
                                    b->plan->kv.tables[(size_t)group * b->plan->kv.n_devices + (size_t)cache->device],
                                .selected = selected};
    tn_tensor *y = tn__name_node(b, tn_attention(a, &src, &p), "attn");
    if (cache->rotate_k) y = tn_hadamard(a, y, cache->rotate_k);
    y = multiply_heads(b, l->v_b, y, "attn_values");
    return y ? tn_reshape(a, y, y->ne[0] * y->ne[1], y->ne[2]) : NULL;
}

static tn_tensor *build_latent(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__latent latent = tn__build_latent(b, il, x);
    tn_tensor *y = tn__build_latent_attend(b, il, &latent, tn__build_selection(b, il, latent.q_low, x));
    if (l->attn_gate && y) { /* a gate for every head or for every element */
        const int64_t heads = b->h->layers[il].n_head, size = y->ne[0] / heads, tokens = y->ne[1];
        tn_tensor *w = tn_reshape(b->a, l->attn_gate, l->attn_gate->ne[0], l->attn_gate->ne[1]);
        tn_tensor *gate = tn_sigmoid(b->a, tn__build_linear(b, w, l->attn_gate_s, NULL, x, "attn_gate"));
        if (!gate) return NULL;
        gate = tn_reshape(b->a, gate, gate->ne[0] / heads, heads, tokens);
        y = tn_reshape(b->a, tn_mul(b->a, tn_reshape(b->a, y, size, heads, tokens), gate), size * heads, tokens);
    }
    return tn__build_linear(b, l->wo, l->so, l->bo, y, "attn_out");
}

const tn__mixer tn__latent_attention = {
    .name = "latent attention", .kinds = TN__MIXES_LATENT, .memory = latent_memory, .build = build_latent};

/* ---- With keys and values of every head ---- */

static tn_tensor *build_expanded(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    const int32_t nope = lh->latent_k - lh->n_rot, heads = lh->n_head;
    tn_arena *a = b->a;
    const tn__latent latent = tn__build_latent(b, il, x);
    tn_tensor *kv = tn__build_linear(b, l->kv_b, NULL, NULL, latent.row, "kv_b");
    if (!latent.q || !latent.key || !kv) return NULL;
    const int64_t tokens = kv->ne[1];
    const size_t head_bytes = (size_t)(nope + lh->head_v) * 4;
    tn_tensor *q_key = tn__build_rope(b, il, part_of_heads(b, latent.q, nope, lh->n_rot), "q_rope");
    tn_tensor *k = !nope ? NULL
                         : tn_view(a, kv, 3, (const int64_t[]){nope, heads, tokens},
                                   (const size_t[]){4, head_bytes, kv->nb[1]}, 0);
    const int64_t all_heads[] = {lh->n_rot, heads, tokens, 1};
    tn_tensor *k_key = tn_repeat(a, latent.key, all_heads);
    tn__qkv y = {.q = nope ? tn_concat(a, tn_cont(a, part_of_heads(b, latent.q, 0, nope)), q_key, 0) : q_key,
                 .k = nope ? tn_concat(a, tn_cont(a, k), k_key, 0) : k_key,
                 .v = tn_cont(a, tn_view(a, kv, 3, (const int64_t[]){lh->head_v, heads, tokens},
                                         (const size_t[]){4, head_bytes, kv->nb[1]}, (size_t)nope * 4))};
    tn_tensor *q_scale = tn__builder_input(b, TN__INPUT_QUERY_SCALES);
    if (q_scale) y.q = tn_mul(a, y.q, q_scale);
    tn_attention_params p = tn__attention_params(b, il);
    p.scale = tn__latent_scale(b, il);
    tn_tensor *z = tn__build_attend(b, il, &y, &p);
    return z ? tn__build_linear(b, l->wo, l->so, l->bo, tn_reshape(a, z, z->ne[0] * z->ne[1], z->ne[2]), "attn_out")
             : NULL;
}

/* The cells are those of attention with as many heads of keys as of queries. */
static void expanded_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    const tn__layer_hparams *l = &h->layers[il];
    m->head_k = l->head_k;
    m->head_v = l->head_v;
    m->k = l->n_head * l->head_k;
    m->v = l->n_head * l->head_v;
    m->window = l->window;
}

const tn__mixer tn__expanded_latent_attention = {.name = "expanded latent attention",
                                                 .kinds = TN__MIXES_EXPANDED_LATENT,
                                                 .memory = expanded_memory,
                                                 .build = build_expanded};

/* ---- Keys of a file ---- */

/* Files hold a tenth of the multiplier with which YaRN's logarithm scales attention. The same multiplier scales what
 * RoPE rotates, so that only attention is left to scale. */
static void read_latent_yarn(const tn_gguf *file, tn__hparams *h) {
    const float tenth = tn_gguf_get_f32(file, tn__arch_key(file, "rope.scaling.yarn_log_multiplier"), 0);
    if (h->rope_scaling != TN__ROPE_SCALING_YARN || !(tenth > 0) || !(h->rope_factor > 1)) return;
    h->yarn_log_mul = 10 * tenth;
    if (!tn_gguf_find(file, tn__arch_key(file, "rope.scaling.yarn_attn_factor")))
        h->yarn_attn = 1 / (1 + 0.1f * logf(h->rope_factor));
}

tn_status tn__read_latent(const tn_gguf *file, tn__hparams *h) {
    const int32_t rank = tn_gguf_get_i32(file, tn__arch_key(file, "attention.kv_lora_rank"), 0);
    const int32_t k = tn_gguf_get_i32(file, tn__arch_key(file, "attention.key_length_mla"), 0);
    const int32_t v = tn_gguf_get_i32(file, tn__arch_key(file, "attention.value_length_mla"), 0);
    h->q_rank = tn_gguf_get_i32(file, tn__arch_key(file, "attention.q_lora_rank"), 0);
    read_latent_yarn(file, h);
    const int32_t window_rank = tn_gguf_get_i32(file, tn__arch_key(file, "attention.kv_lora_rank_swa"), rank);
    const int32_t window_k = tn_gguf_get_i32(file, tn__arch_key(file, "attention.key_length_mla_swa"), k);
    const int32_t window_v = tn_gguf_get_i32(file, tn__arch_key(file, "attention.value_length_mla_swa"), v);
    const bool expanded = k == 0;
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        if (l->n_head <= 0 || l->mixer) continue;
        const int32_t own = l->window ? window_rank : rank;
        l->kv_rank = own;
        l->latent_k = expanded ? l->head_k : l->window ? window_k : k;
        l->latent_v = expanded ? l->head_v : l->window ? window_v : v;
        l->rope_offset = expanded ? l->head_k - l->n_rot : own;
        if (l->window && !expanded) {
            l->head_k = tn_gguf_get_i32(file, tn__arch_key(file, "attention.key_length_swa"), l->head_k);
            l->head_v = tn_gguf_get_i32(file, tn__arch_key(file, "attention.value_length_swa"), l->head_v);
        }
        l->mixer = expanded ? &tn__expanded_latent_attention : &tn__latent_attention;
        if (own < 1 || own > 65536 || l->latent_k < l->n_rot || (!expanded && l->latent_k == l->n_rot) ||
            l->latent_v < 1 || l->latent_k > 65536 || l->latent_v > 65536 || h->q_rank < 0 || h->q_rank > 1 << 20 ||
            (expanded && l->n_head_kv != l->n_head) ||
            (!expanded && (l->n_head_kv != 1 || l->head_k != own + l->n_rot || l->head_v != own)))
            return tn_fail(
                TN_E_FORMAT,
                "%s: layer %d: latent attention with rows of %d, heads of %d (k) and %d (v), stored heads of %d and "
                "%d, %d rotated, is not valid",
                tn_gguf_path(file), i, own, l->latent_k, l->latent_v, l->head_k, l->head_v, l->n_rot);
    }
    return TN_OK;
}

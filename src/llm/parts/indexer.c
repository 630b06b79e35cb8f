/* Indexers of sparse attention: small heads that select the positions which the heads of attention read.
 *
 * Every cell has a further row, the indexer's key. With latent attention (DSA) the indexer's heads select positions
 * together, and a layer may use the selection of an earlier one. In block-sparse attention (MSA) every key/value head
 * has a head of the indexer, which selects blocks of positions. */
#include "llm/parts/mixers.h"

/* The layer norm of keys has an epsilon of its own, which files do not have. */
static const float INDEX_NORM_EPS = 1e-6f;

void tn__indexer_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    if (h->layers[il].indexer == TN__INDEXER_OWN) m->x = h->index.size;
}

tn_rope_params tn__index_rope_params(const tn__builder *b, int32_t il) {
    tn_rope_params p = tn__rope_params(b, il);
    p.mode = b->h->index.rope;
    return p;
}
static tn_tensor *rotate_index(const tn__builder *b, int32_t il, tn_tensor *x, const char *what) {
    const tn_rope_params p = tn__index_rope_params(b, il);
    return tn__name_node(
        b, tn_rope(b->a, x, tn__builder_input(b, TN__INPUT_POSITIONS), tn__layer_rope_factors(b, il), &p), what);
}

/* Stores the keys k, [size, 1, tokens], and selects with q, [size, heads, tokens]. */
static tn_tensor *select_with(tn__builder *b, int32_t il, tn_tensor *q, tn_tensor *k, tn_tensor *weights) {
    const tn__kv_layer *cache = &b->plan->kv.layers[il];
    const tn__layer_hparams *lh = &b->h->layers[il];
    const int group = cache->group;
    tn_tensor *rows = tn__builder_input(b, group == TN__CACHE_FULL ? TN__INPUT_ROWS_FULL : TN__INPUT_ROWS_WINDOW);
    tn_tensor *keys = tn_set_rows(b->a, cache->x, tn__flatten_heads(b, k), rows);
    tn_tensor *pages = b->plan->kv.tables[(size_t)group * b->plan->kv.n_devices + (size_t)cache->device];
    const tn_select_params p = {.k = b->h->index.k,
                                .block = b->h->index.block,
                                .local = b->h->index.local,
                                .causal = b->h->causal,
                                .window = lh->window,
                                .page = b->plan->kv.groups[group].page};
    tn_tensor *y = tn_select_positions(b->a, q, tn__name_node(b, keys, "index_store"),
                                       tn__builder_input(b, TN__INPUT_QUERY_CELLS), pages, weights, &p);
    return tn__name_node(b, y, "selected");
}

/* ---- Positions, for latent attention ---- */

tn_tensor *tn__build_selection(tn__builder *b, int32_t il, tn_tensor *q_low, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const int32_t size = b->h->index.size;
    if (b->h->layers[il].indexer == TN__INDEXER_NONE) return NULL;
    if (b->h->layers[il].indexer == TN__INDEXER_EARLIER) return b->selected;
    tn_tensor *q = tn__build_linear(b, l->index_q_b, NULL, NULL, q_low, "index_q");
    q = rotate_index(b, il, tn__split_heads(b, q, size, b->h->index.heads, 0), "index_q_rope");
    tn_tensor *k = tn__build_linear(b, l->index_k, NULL, NULL, x, "index_k");
    k = tn__name_node(b, tn_norm(b->a, k, l->index_k_norm, l->index_k_norm_b, INDEX_NORM_EPS), "index_k_norm");
    k = rotate_index(b, il, tn__split_heads(b, k, size, 1, 0), "index_k_rope");
    tn_tensor *weights = tn__build_linear(b, l->index_proj, NULL, NULL, x, "index_weights");
    return b->selected = select_with(b, il, q, k, weights);
}

/* ---- Blocks of positions, for every key/value head ---- */

/* Head `head` and the following of a tensor [size, heads, …]. */
static tn_tensor *some_heads(const tn__builder *b, tn_tensor *x, int64_t head, int64_t n) {
    if (!x) return NULL;
    return tn_view(b->a, x, 3, (const int64_t[]){x->ne[0], n, x->ne[2]},
                   (const size_t[]){x->nb[0], x->nb[1], x->nb[2]}, (size_t)head * x->nb[1]);
}
static tn_tensor *list_of_head(const tn__builder *b, tn_tensor *lists, int64_t head) {
    if (!lists) return NULL;
    return tn_view(b->a, lists, 2, (const int64_t[]){lists->ne[0], lists->ne[1]}, (const size_t[]){4, lists->nb[1]},
                   (size_t)head * lists->nb[2]);
}

static tn_tensor *select_blocks(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const int32_t size = b->h->index.size;
    tn_tensor *q = tn__build_linear(b, l->index_q_proj, NULL, NULL, x, "index_q");
    tn_tensor *k = tn__build_linear(b, l->index_k_proj, NULL, NULL, x, "index_k");
    q = tn__build_head_norm(b, tn__split_heads(b, q, size, b->h->index.heads, 0), l->index_q_norm, NULL,
                            "index_q_norm");
    k = tn__build_head_norm(b, tn__split_heads(b, k, size, 1, 0), l->index_k_norm, NULL, "index_k_norm");
    q = rotate_index(b, il, q, "index_q_rope");
    k = rotate_index(b, il, k, "index_k_rope");
    return select_with(b, il, q, k, NULL);
}

static tn_tensor *build_block_sparse(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const int32_t kv_heads = b->h->layers[il].n_head_kv, share = b->h->layers[il].n_head / kv_heads;
    const tn__qkv qkv = tn__build_qkv(b, il, x);
    tn_tensor *lists = select_blocks(b, il, x), *all = NULL;
    tn_attention_params p = tn__attention_params(b, il);
    if (!qkv.q || !qkv.k || !qkv.v) return NULL;
    tn_attention_sources src = tn__build_cells(b, il, &qkv, &p);
    p.select_block = b->h->index.block;
    for (int32_t g = 0; g < kv_heads; g++) {
        tn_attention_sources own = src;
        own.q = some_heads(b, src.q, (int64_t)g * share, share);
        own.k = some_heads(b, src.k, g, 1);
        own.v = some_heads(b, src.v, g, 1);
        own.selected = list_of_head(b, lists, g);
        tn_tensor *y = tn__name_node(b, tn_attention(b->a, &own, &p), "attn");
        all = all ? tn_concat(b->a, all, y, 1) : y;
    }
    all = tn__finish_attend(b, il, all);
    all = all ? tn_reshape(b->a, all, all->ne[0] * all->ne[1], all->ne[2]) : NULL;
    return tn__build_linear(b, l->wo, l->so, l->bo, all, "attn_out");
}

const tn__mixer tn__block_sparse_attention = {
    .name = "block-sparse attention", .attends = true, .memory = tn__indexer_memory, .build = build_block_sparse};

/* ---- Keys of a file ---- */

tn_status tn__read_indexer(const tn_gguf *file, tn__hparams *h) {
    h->index.heads = tn_gguf_get_i32(file, tn__arch_key(file, "attention.indexer.head_count"), 0);
    h->index.size = tn_gguf_get_i32(file, tn__arch_key(file, "attention.indexer.key_length"), 0);
    h->index.k = tn_gguf_get_i32(file, tn__arch_key(file, "attention.indexer.top_k"), 0);
    h->index.block = tn_gguf_get_i32(file, tn__arch_key(file, "attention.indexer.block_size"), 1);
    h->index.local = tn_gguf_get_i32(file, tn__arch_key(file, "attention.indexer.local_blocks"), 0);
    if (h->index.heads < 1 || h->index.heads > 4096 || h->index.size < h->n_rot || h->index.size > 65536 ||
        h->index.k < 1 || h->index.k > 1 << 20 || h->index.block < 1 || h->index.block > 1 << 20 ||
        h->index.local < 0 || h->index.local > 1 << 20)
        return tn_fail(TN_E_FORMAT,
                       "%s: an indexer with %d heads of %d elements, %d of which are rotated, that selects %d blocks "
                       "of %d positions (%d local), is not valid",
                       tn_gguf_path(file), h->index.heads, h->index.size, h->n_rot, h->index.k, h->index.block,
                       h->index.local);
    return TN_OK;
}

tn_status tn__check_indexers(const tn_gguf *file, const tn__hparams *h) {
    bool any = false;
    for (int32_t i = 0; i < h->n_layer; i++) {
        any = any || h->layers[i].indexer == TN__INDEXER_OWN;
        if (h->layers[i].indexer == TN__INDEXER_EARLIER && !any)
            return tn_fail(TN_E_FORMAT,
                           "%s: layer %d uses the selection of an earlier layer, but none has an indexer",
                           tn_gguf_path(file), i);
    }
    return TN_OK;
}

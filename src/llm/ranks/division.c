/* Dividing a model by rows: attention by heads, feed-forward parts by width, experts by expert, the vocabulary by
 * rows.
 *
 * Every rank derives the same decisions from the file alone. A part with fewer units than ranks, or whose norms span
 * all of its width, is not divided: every rank computes it. Matrices are cut along their rows only at block
 * boundaries. */
#include "llm/parts/mixers.h"

#include "base/checked.h"

typedef struct unit_range {
    int64_t begin, end;
} unit_range;

/* The fraction, 0 to 1, of the shares of ranks first … first+n-1 that ranks before `rank` have. */
static double share_before(const tn__division *d, int first, int rank, int n) {
    double before = 0, all = 0;
    for (int r = first; r < first + n; r++) {
        all += d->shares[r] > 0 ? d->shares[r] : 0;
        if (r < rank) before = all;
    }
    return all > 0 ? before / all : (double)(rank - first) / n;
}
double tn__share_before_stage(const tn__division *d, int stage) {
    return share_before(d, 0, stage * d->stage_size, d->n_ranks);
}

/* Where the units of a part begin, among those that ranks first … first+n-1 of this stage share: each has at least
 * one. */
static int64_t share_begin(const tn__division *d, int64_t units, int first, int rank, int n) {
    const int begin = d->stage * d->stage_size;
    const int64_t wanted = (int64_t)((double)units * share_before(d, begin + first, begin + rank, n) + 0.5);
    return TN__MAX(rank - first, TN__MIN(wanted, units - (first + n - rank)));
}
static unit_range share_among(const tn__division *d, int64_t units, int first, int rank, int n) {
    return (unit_range){share_begin(d, units, first, rank, n), share_begin(d, units, first, rank + 1, n)};
}
/* The share of a rank in `units`. */
static unit_range share_of(const tn__division *d, int64_t units, int rank) {
    return share_among(d, units, 0, rank, d->stage_size);
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}
/* The smallest number of units of `size` elements that fill whole blocks of the tensor's type. */
static int64_t whole_blocks(const tn_tensor *t, int64_t size) {
    const int64_t block = tn_type_block(t->type);
    return block / common_divisor(size, block);
}

/* ---- Slicing tensors ---- */

static tn__weight *weight_of(const tn_model *m, const tn_tensor *t) {
    for (size_t i = 0; i < m->n_all; i++)
        if (m->all[i].tensor == t) return &m->all[i];
    return NULL;
}

static void set_length(tn_tensor *t, int axis, int64_t n) {
    t->ne[axis] = n;
    t->nb[0] = tn_type_bytes(t->type);
    t->nb[1] = t->nb[0] * (size_t)(t->ne[0] / tn_type_block(t->type));
    for (int i = 2; i < TN_MAX_DIMS; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
}

static void take_slice(const tn_model *m, tn_tensor *t, const tn__slice *slice) {
    tn__weight *w = t ? weight_of(m, t) : NULL;
    if (!w || w->slice.n) return; /* tensors that several layers use */
    int64_t n = 0;
    for (int i = 0; i < slice->n; i++) n += slice->end[i] - slice->begin[i];
    w->slice = *slice;
    set_length(t, slice->axis, n);
    const size_t start = tn__slice_start(w->info, &w->slice);
    w->size = tn_nbytes(t);
    w->data = w->data && start != SIZE_MAX ? (const char *)w->data + start : NULL;
}

/* Units begin … end-1 of the `units` that the axis has. */
static void take_units(const tn_model *m, tn_tensor *t, int axis, int64_t units, unit_range r) {
    if (!t) return;
    const int64_t each = t->ne[axis] / units;
    take_slice(m, t, &(tn__slice){.axis = axis, .n = 1, .begin = {r.begin * each}, .end = {r.end * each}});
}

/* The bias of a sum over ranks: rank 0 adds it. */
static void keep_on_first(const tn_model *m, tn_tensor **bias) {
    tn__weight *w = *bias && m->division.rank_in_stage ? weight_of(m, *bias) : NULL;
    if (!w) return;
    w->ignored = true;
    *bias = NULL;
}

/* ---- Attention ---- */

typedef struct head_ranges {
    unit_range heads, kv;
} head_ranges;

static bool is_latent(const tn__layer_hparams *lh) {
    return lh->mixer && (lh->mixer->kinds & (TN__MIXES_LATENT | TN__MIXES_EXPANDED_LATENT));
}

static bool can_divide_mixer(const tn_model *m, int32_t il) {
    const tn__layer *l = &m->w.layers[il];
    const tn__layer_hparams *lh = &m->h.layers[il];
    const bool attention = tn__layer_attends(lh) && (!lh->mixer || lh->mixer == &tn__gated_attention);
    if ((!attention && !is_latent(lh)) || !l->wo || lh->n_head < 1 || l->wo->ne[0] % lh->n_head) return false;
    if (l->attn_sub_norm || m->h.max_alibi > 0) return false; /* slopes depend on the number of all heads */
    if (attention && lh->indexer) return false;
    /* A norm over all heads needs all of them. */
    if (attention && l->q_norm && l->q_norm->ne[1] == 1 && l->q_norm->ne[0] > lh->head_k) return false;
    if (attention && l->k_norm && l->k_norm->ne[1] == 1 && l->k_norm->ne[0] > lh->head_k) return false;
    return !l->attn_gate || l->attn_gate->ne[1] % lh->n_head == 0;
}

/* The heads of a rank: whole groups of those that share a key/value head; with more ranks than such groups, some
 * heads of one group. False: there are not enough. */
static bool cut_heads(const tn_model *m, int32_t il, int rank, head_ranges *own) {
    const tn__layer_hparams *lh = &m->h.layers[il];
    const tn_tensor *wo = m->w.layers[il].wo;
    const int n_ranks = m->division.stage_size;
    const int64_t size = wo->ne[0] / lh->n_head;
    const bool shared_rows = is_latent(lh) && (lh->mixer->kinds & TN__MIXES_LATENT);
    const int64_t groups = shared_rows ? lh->n_head : lh->n_head_kv, share = lh->n_head / groups;
    const int64_t together = whole_blocks(wo, share * size), units = (groups + together - 1) / together;
    if (units >= n_ranks) {
        const unit_range r = share_of(&m->division, units, rank);
        own->kv = (unit_range){r.begin * together, TN__MIN(r.end * together, groups)};
        own->heads = (unit_range){own->kv.begin * share, own->kv.end * share};
        return true;
    }
    if (groups >= n_ranks || shared_rows) return false;
    const int64_t group = (int64_t)rank * groups / n_ranks;
    const int64_t first = (group * n_ranks + groups - 1) / groups,
                  end = ((group + 1) * n_ranks + groups - 1) / groups;
    const int64_t few = whole_blocks(wo, size), pieces = (share + few - 1) / few;
    if (pieces < end - first) return false;
    const unit_range r = share_among(&m->division, pieces, (int)first, rank, (int)(end - first));
    own->kv = (unit_range){group, group + 1};
    own->heads = (unit_range){group * share + r.begin * few, group * share + TN__MIN(r.end * few, share)};
    return true;
}

static bool all_ranks_have_heads(const tn_model *m, int32_t il) {
    head_ranges own;
    for (int r = 0; r < m->division.stage_size; r++)
        if (!cut_heads(m, il, r, &own) || own.heads.begin >= own.heads.end) return false;
    return true;
}

/* Layers that read the cells of another layer are divided like that layer. */
static bool same_cells(const tn_model *m, int32_t a, int32_t b) {
    head_ranges x, y;
    for (int r = 0; r < m->division.stage_size; r++)
        if (!cut_heads(m, a, r, &x) || !cut_heads(m, b, r, &y) || x.kv.begin != y.kv.begin || x.kv.end != y.kv.end)
            return false;
    return true;
}

static void choose_mixers(tn_model *m) {
    tn__layer_division *d = m->division.layers;
    bool changed = true;
    for (int32_t i = 0; i < m->h.n_stored_layers; i++)
        d[i].mixer = can_divide_mixer(m, i) && all_ranks_have_heads(m, i);
    while (changed) {
        changed = false;
        for (int32_t i = 0; i < m->h.n_stored_layers; i++) {
            const int32_t from = m->h.layers[i].cells_of - 1;
            if (from < 0 || from == i || (!d[i].mixer && !d[from].mixer)) continue;
            if (d[i].mixer && d[from].mixer && same_cells(m, i, from)) continue;
            d[i].mixer = d[from].mixer = false;
            changed = true;
        }
    }
}

static void take_heads(tn_model *m, int32_t il) {
    tn__layer *l = &m->w.layers[il];
    tn__layer_hparams *lh = &m->h.layers[il];
    const int64_t heads = lh->n_head, kv = lh->n_head_kv;
    head_ranges p;
    if (!cut_heads(m, il, m->division.rank_in_stage, &p)) return;
    take_units(m, l->wq, 1, heads, p.heads);
    take_units(m, l->bq, 0, heads, p.heads);
    take_units(m, l->wo, 0, heads, p.heads);
    take_units(m, l->sinks, 0, heads, p.heads);
    take_units(m, l->attn_gate, 1, heads, p.heads);
    keep_on_first(m, &l->bo);
    if (is_latent(lh)) {
        take_units(m, l->q_b, 1, heads, p.heads);
        take_units(m, l->k_b, 2, heads, p.heads);
        take_units(m, l->v_b, 2, heads, p.heads);
        take_units(m, l->kv_b, 1, heads, p.heads);
    } else {
        take_units(m, l->wk, 1, kv, p.kv);
        take_units(m, l->bk, 0, kv, p.kv);
        take_units(m, l->wv, 1, kv, p.kv);
        take_units(m, l->bv, 0, kv, p.kv);
        const int64_t q = heads * lh->head_k, k = kv * lh->head_k;
        tn__slice qkv = {
            .axis = 1,
            .n = 3,
            .begin = {p.heads.begin * lh->head_k, q + p.kv.begin * lh->head_k, q + k + p.kv.begin * lh->head_v},
            .end = {p.heads.end * lh->head_k, q + p.kv.end * lh->head_k, q + k + p.kv.end * lh->head_v}};
        take_slice(m, l->wqkv, &qkv);
        qkv.axis = 0;
        take_slice(m, l->bqkv, &qkv);
        if (l->q_norm && l->q_norm->ne[1] == heads) {
            take_units(m, l->q_norm, 1, heads, p.heads);
            take_units(m, l->q_norm_b, 1, heads, p.heads);
        }
        if (l->k_norm && l->k_norm->ne[1] == kv) {
            take_units(m, l->k_norm, 1, kv, p.kv);
            take_units(m, l->k_norm_b, 1, kv, p.kv);
        }
    }
    lh->n_head = (int32_t)(p.heads.end - p.heads.begin);
    if (!is_latent(lh) || (lh->mixer->kinds & TN__MIXES_EXPANDED_LATENT))
        lh->n_head_kv = (int32_t)(p.kv.end - p.kv.begin);
}

/* ---- Feed-forward parts ---- */

/* The elements of a rank in the row length of `down`: whole blocks, and multiples of 64 if possible. False:
 * there are not enough. */
static bool cut_width(const tn_model *m, const tn_tensor *down, int64_t width, unit_range *own) {
    enum { TOGETHER = 64 };
    const int n_ranks = m->division.stage_size;
    const int64_t block = tn_type_block(down->type);
    int64_t unit = TN__MAX(block, TOGETHER / common_divisor(TOGETHER, block) * block);
    if (unit > TOGETHER) unit = block;
    if (width % unit || width / unit < n_ranks) unit = block;
    if (width % unit || width / unit < n_ranks) return false;
    const unit_range r = share_of(&m->division, width / unit, m->division.rank_in_stage);
    *own = (unit_range){r.begin * unit, r.end * unit};
    return true;
}

static bool take_dense(tn_model *m, int32_t il) {
    tn__layer *l = &m->w.layers[il];
    tn__layer_hparams *lh = &m->h.layers[il];
    unit_range p;
    if (!l->ffn_up || !l->ffn_down || l->ffn_sub_norm || lh->sparse_gate) return false;
    const int64_t width = l->ffn_down->ne[0];
    const bool both = l->ffn_up->ne[1] == 2 * width;
    if (!cut_width(m, l->ffn_down, width, &p)) return false;
    /* Gate and up in one matrix, one after the other. */
    tn__slice up = {.axis = 1, .n = both ? 2 : 1, .begin = {p.begin, width + p.begin}, .end = {p.end, width + p.end}};
    take_slice(m, l->ffn_up, &up);
    up.axis = 0;
    take_slice(m, l->ffn_up_b, &up);
    take_units(m, l->ffn_gate, 1, width, p);
    take_units(m, l->ffn_gate_b, 0, width, p);
    take_units(m, l->ffn_act, 0, width, p);
    take_units(m, l->ffn_down, 0, width, p);
    keep_on_first(m, &l->ffn_down_b);
    lh->n_ff = (int32_t)(p.end - p.begin);
    return true;
}

static void take_experts(tn_model *m, int32_t il) {
    tn__layer *l = &m->w.layers[il];
    tn__layer_division *d = &m->division.layers[il];
    const int64_t n = m->h.n_expert;
    if (!l->router || !l->down_exps || n < m->division.stage_size) return;
    const unit_range r = share_of(&m->division, n, m->division.rank_in_stage);
    tn_tensor *const matrices[] = {l->gate_up_exps, l->gate_exps, l->up_exps, l->down_exps};
    tn_tensor *const biases[] = {l->gate_exps_b, l->up_exps_b, l->down_exps_b};
    for (size_t i = 0; i < TN__COUNT(matrices); i++) take_units(m, matrices[i], 2, n, r);
    for (size_t i = 0; i < TN__COUNT(biases); i++) take_units(m, biases[i], 1, n, r);
    d->experts = true;
    d->first_expert = (int32_t)r.begin;
    unit_range p;
    const bool sum_is_used = l->latent_norm || l->latent_up || l->up_chexps; /* before the shared expert is added */
    if (!l->up_shexp || sum_is_used || !cut_width(m, l->down_shexp, l->down_shexp->ne[0], &p)) return;
    const int64_t width = l->down_shexp->ne[0];
    take_units(m, l->up_shexp, 1, width, p);
    take_units(m, l->gate_shexp, 1, width, p);
    take_units(m, l->down_shexp, 0, width, p);
    d->shared = true;
}

/* ---- The vocabulary ---- */

static void take_vocabulary(tn_model *m) {
    enum { ROWS_TOGETHER = 64 };
    tn__division *d = &m->division;
    const int64_t rows = m->h.n_vocab;
    const int64_t unit = rows / ROWS_TOGETHER >= d->stage_size ? ROWS_TOGETHER : 1;
    const tn_tensor *head = m->w.output ? m->w.output : m->w.tok_embd;
    if (rows < d->stage_size || !head || head->ne[1] != rows || tn__arch_has(m->arch, TN_ARCH_ENCODER)) return;
    for (int r = 0; r < d->stage_size; r++) {
        unit_range p = share_of(d, rows / unit, r);
        p = (unit_range){p.begin * unit, r == d->stage_size - 1 ? rows : p.end * unit};
        d->row_bytes[r] = (size_t)(p.end - p.begin) * sizeof(float);
        if (r != d->rank_in_stage) continue;
        d->first_row = p.begin;
        d->end_row = p.end;
    }
    d->vocabulary = true;
    const unit_range own = {d->first_row, d->end_row};
    if (m->w.output) take_units(m, m->w.output, 1, rows, own);
    if (m->w.output_b) take_units(m, m->w.output_b, 0, rows, own);
}

/* By rows: one stage of all ranks. By layers: stages of stage_ranks ranks each. */
static tn_status form_stages(tn__division *d) {
    if (d->n_ranks < 1) d->n_ranks = 1;
    if (d->n_ranks > TN_NET_RANKS_MOST || (d->n_ranks > 1 && (d->rank < 0 || d->rank >= d->n_ranks)))
        return tn_fail(TN_E_INVALID, "rank %d of %d: 1 to %d ranks are supported", d->rank, d->n_ranks,
                       TN_NET_RANKS_MOST);
    d->stage_size = !d->by_layers ? d->n_ranks : TN__MIN(TN__MAX(d->stage_ranks, 1), d->n_ranks);
    if (d->n_ranks % d->stage_size)
        return tn_fail(TN_E_INVALID, "%d ranks cannot form stages of %d ranks with the same layers", d->n_ranks,
                       d->stage_size);
    d->n_stages = d->n_ranks / d->stage_size;
    d->stage = d->rank / d->stage_size;
    d->rank_in_stage = d->rank % d->stage_size;
    d->by_layers = d->n_stages > 1;
    d->stage_net = d->net;
    if (!d->by_layers || d->stage_size == 1 || !d->net) return TN_OK;
    return tn_net_group(d->net, d->stage * d->stage_size, d->stage_size, &d->stage_net);
}

tn_status tn__divide(tn_model *m) {
    tn__division *d = &m->division;
    TN_TRY(form_stages(d));
    if (d->n_ranks < 2) return TN_OK;
    if (d->by_layers) TN_TRY(tn__divide_layers(m));
    if (d->stage_size < 2) return TN_OK;
    d->layers = tn_calloc((size_t)m->h.n_layer, sizeof *d->layers);
    if (!d->layers) return TN_E_NOMEM;
    choose_mixers(m);
    for (int32_t i = 0; i < m->h.n_stored_layers; i++) {
        if (d->layers[i].mixer) take_heads(m, i);
        d->layers[i].dense = take_dense(m, i);
        take_experts(m, i);
    }
    for (int32_t i = m->h.n_stored_layers; i < m->h.n_layer; i++) { /* the stored ones again */
        const int32_t from = i % m->h.n_stored_layers;
        d->layers[i] = d->layers[from];
        if (d->layers[from].mixer) {
            m->h.layers[i].n_head = m->h.layers[from].n_head;
            m->h.layers[i].n_head_kv = m->h.layers[from].n_head_kv;
        }
        if (d->layers[from].dense) m->h.layers[i].n_ff = m->h.layers[from].n_ff;
    }
    take_vocabulary(m);
    return TN_OK;
}

size_t tn__division_bytes(const tn__division *d) {
    if (d->stage_net && d->stage_net != d->net) return tn_net_bytes(d->stage_net);
    return !d->net && d->by_layers && d->stage_size > 1 ? tn_net_group_bytes(NULL, d->stage_size) : 0;
}

void tn__division_free(tn__division *d) {
    if (d->stage_net != d->net) tn_net_free(d->stage_net);
    d->stage_net = NULL;
    tn_free(d->layers);
    d->layers = NULL;
}

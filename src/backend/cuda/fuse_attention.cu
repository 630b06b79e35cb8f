// Fusing attention of few tokens with the rotation of q and k and the storing of new rows before it.
#include "backend/cuda/compiler.cuh"
#include "backend/cuda/kernels/exact/rotate_store.cuh"

bool attention_is_step(const device_description &device, const tn_tensor *t) {
    return decode_takes_more(device, t) && decode_is_whole(t) && persistent_takes_attention(device, t);
}

static bool same_rope(const tn_tensor *a, const tn_tensor *b) {
    return a->src[1]->data == b->src[1]->data &&
           (a->src[2] ? a->src[2]->data : NULL) == (b->src[2] ? b->src[2]->data : NULL) &&
           memcmp(&a->params.rope, &b->params.rope, sizeof a->params.rope) == 0;
}
static bool can_rotate(const tn_tensor *t) {
    const tn_rope_params &p = t->params.rope;
    const tn_tensor *x = t->src[0];
    return t->op == TN_OP_ROPE && (p.mode == TN_ROPE_NORMAL || p.mode == TN_ROPE_NEOX) && !p.reverse &&
           x->type == TN_F32 && x->nb[0] == 4;
}
// Whether attention reads the whole cache that the store writes rows to, with the same rows.
static bool sees_rows_of(const tn_tensor *seen, const tn_tensor *store) {
    const tn_tensor *cache = store->src[0];
    return seen->data == cache->data && seen->nb[2] == cache->nb[1] && seen->ne[2] == cache->ne[1] &&
           seen->nb[1] == (size_t)seen->ne[0] * seen->nb[0] && seen->ne[0] * seen->ne[1] == store->src[1]->ne[0];
}
// Whether the stores of k and v are what this attention needs.
static bool stores_fit(const tn_tensor *t, const tn_tensor *store_k, const tn_tensor *store_v) {
    return store_k->op == TN_OP_SET_ROWS && store_v->op == TN_OP_SET_ROWS &&
           store_k->src[2]->data == store_v->src[2]->data && store_k->src[2]->type == TN_I32 &&
           tn_nelements(store_k->src[2]) == t->src[TN_ATTN_Q]->ne[2] && is_rows(store_k->src[1]) &&
           is_rows(store_v->src[1]) && sees_rows_of(t->src[TN_ATTN_K], store_k) &&
           sees_rows_of(t->src[TN_ATTN_V], store_v);
}
static bool rotations_fit(const tn_tensor *t, const tn_tensor *q, const tn_tensor *k) {
    int64_t size = t->src[TN_ATTN_Q]->ne[0];
    return can_rotate(q) && can_rotate(k) && q->ne[0] == size && k->ne[0] == size &&
           q->ne[1] == t->src[TN_ATTN_Q]->ne[1] && k->ne[1] == t->src[TN_ATTN_K]->ne[1] && same_rope(q, k);
}

// Indices of the nodes that run inside an attention: rope q, rope k, store k, store v; -1 for none.
struct extra_nodes {
    int at[4];
};
static decode_extras extras_of(const compiler *f, int i, extra_nodes *nodes) {
    decode_extras e = {}, none = {};
    const tn_tensor *t = f->nodes[i];
    int rope_q = index_of_whole(f, t->src[TN_ATTN_Q]), store_k = index_of(f, t->src[TN_ATTN_K]),
        store_v = index_of(f, t->src[TN_ATTN_V]);
    *nodes = {{-1, -1, -1, -1}};
    if (store_k < 0 || store_v < 0 || !stores_fit(t, f->nodes[store_k], f->nodes[store_v])) return none;
    e.store_k = f->nodes[store_k];
    e.store_v = f->nodes[store_v];
    int rope_k = index_of_whole(f, e.store_k->src[1]);
    bool rotates_q = rope_q >= 0 && f->nodes[rope_q]->op == TN_OP_ROPE,
         rotates_k = rope_k >= 0 && f->nodes[rope_k]->op == TN_OP_ROPE;
    if (rotates_q != rotates_k) return none;
    if (rotates_q) {
        e.rope_q = f->nodes[rope_q];
        e.rope_k = f->nodes[rope_k];
        if (!rotations_fit(t, e.rope_q, e.rope_k)) return none;
        nodes->at[0] = rope_q;
        nodes->at[1] = rope_k;
    }
    nodes->at[2] = store_k;
    nodes->at[3] = store_v;
    return e;
}

// Operands that the attention reads later than the plan expects: the plan keeps them only until the nodes that run
// inside it.
struct late_sources {
    const tn_tensor *at[5];
};
static late_sources late_sources_of(const tn_tensor *t, const decode_extras &e) {
    const tn_tensor *rows = e.store_k->src[2];
    return {{e.rope_q ? e.rope_q->src[0] : t->src[TN_ATTN_Q], e.rope_k ? e.rope_k->src[0] : e.store_k->src[1],
             e.store_v->src[1], rows, e.rope_q ? e.rope_q->src[1] : rows}};
}

static void mark_extras(compiler *f, const extra_nodes &nodes, bool done) {
    for (int node : nodes.at)
        if (node >= 0) f->info[node].done = done;
}
void mark_attention_extras(compiler *f) {
    for (int i = 0; i < f->n; i++) {
        const tn_tensor *t = f->nodes[i];
        if (t->op != TN_OP_ATTENTION || !decode_takes_more(*f->device, t)) continue;
        extra_nodes nodes;
        decode_extras e = extras_of(f, i, &nodes);
        if (!e.store_k) continue;
        bool fits = true;
        for (int node : nodes.at)
            fits = fits && (node < 0 || (node < i && !f->info[node].done && only_read_by(f, node, 1)));
        if (!fits) continue;
        mark_extras(f, nodes, true);
        late_sources late = late_sources_of(t, e);
        for (const tn_tensor *source : late.at) fits = fits && survives_until(f, source, index_of(f, source), i);
        if (!fits) mark_extras(f, nodes, false);
        f->info[i].runs_extras = fits;
    }
}

// Whether no node of this program computes positions, rows or page tables, so that they may be read before
// grid_wait().
static bool indices_are_inputs(const compiler *f, const tn_tensor *t, const decode_extras &e) {
    const tn_tensor *indices[] = {t->src[TN_ATTN_Q_POS], t->src[TN_ATTN_PAGES], e.rope_q ? e.rope_q->src[1] : NULL,
                                  e.store_k ? e.store_k->src[2] : NULL};
    for (const tn_tensor *index : indices)
        if (index && index_of(f, index) >= 0) return false;
    return true;
}
// Whether the result lies over operands that other blocks still read.
static bool overwrites_sources(const tn_tensor *t, const decode_extras &e) {
    late_sources late = late_sources_of(t, e);
    for (const tn_tensor *source : late.at)
        if (overlap(source, t)) return true;
    return false;
}

// ---- More tokens ----

// Whether node k may run at node i: its memory is not used in between, and its sources are there.
static bool may_run_early(const compiler *f, int k, int i) {
    if (k <= i || f->info[k].done || !can_run_at(f, k, i)) return false;
    for (const tn_tensor *source : f->nodes[k]->src) {
        const int s = source ? index_of(f, source) : -1;
        if (s >= i && !f->info[s].done) return false;
    }
    return true;
}
// The rotation of q at node i with the rotation of k and the stores of k and v that follow.
tn_status fuse_rotations(compiler *f, const compilation &c, int i, bool *matched) {
    rotate_store r = {f->nodes[i], NULL, NULL, NULL};
    int at[3] = {-1, -1, -1}; // rope k, store k, store v
    *matched = false;
    if (r.rope_q->op != TN_OP_ROPE) return TN_OK;
    for (int k = i + 1; k < f->n && k < i + GROUP_WINDOW; k++) {
        const tn_tensor *t = f->nodes[k];
        if (f->info[k].done) continue;
        if (t->op == TN_OP_ROPE && at[0] < 0 && may_run_early(f, k, i)) at[0] = k;
        if (t->op != TN_OP_SET_ROWS) continue;
        if (at[0] >= 0 && index_of_whole(f, t->src[1]) == at[0] && at[1] < 0)
            at[1] = k;
        else if (at[1] >= 0 && at[2] < 0 && may_run_early(f, k, i))
            at[2] = k;
    }
    if (at[2] < 0 || !only_read_by(f, at[0], 1) || !can_run_at(f, at[1], i)) return TN_OK;
    r = {r.rope_q, f->nodes[at[0]], f->nodes[at[1]], f->nodes[at[2]]};
    // The store must not be of the rotated q's memory or of what the launch still reads.
    for (const tn_tensor *source : {r.rope_k->src[0], r.store_v->src[1], r.store_k->src[2]})
        if (overlap(source, r.rope_q)) return TN_OK;
    if (!rotate_store_supports(r)) return TN_OK;
    *matched = true;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    fuse_node(f, i);
    for (int node : at) fuse_node(f, node);
    bool early = true;
    for (const tn_tensor *index : {r.rope_q->src[1], r.rope_q->src[2], r.store_k->src[2]})
        early = early && (!index || index_of(f, index) < 0);
    return compile_rotate_store(c, r, early);
}

tn_status fuse_attention(compiler *f, const compilation &c, int i, bool *matched) {
    const tn_tensor *t = f->nodes[i];
    *matched = t->op == TN_OP_ATTENTION && decode_takes_more(*f->device, t);
    if (!*matched) return TN_OK;
    decode_extras e = {};
    extra_nodes nodes = {{-1, -1, -1, -1}};
    if (f->info[i].runs_extras) e = extras_of(f, i, &nodes);
    e.early = indices_are_inputs(f, t, e);
    matmul_group g;
    bool step =
        f->persistent && attention_is_step(*c.device, t) && (!e.rope_q || e.rope_q->params.rope.dims % 8 == 0);
    e.has_next = feeds_group(f, i, i, &g) && tn_is_contiguous(t) && t->ne[0] % 32 == 0 && (!step || is_step(f, g));
    f->pending = NULL;
    if (!step) TN_TRY(launch_steps(f, c));
    if (e.has_next) {
        int64_t k = t->ne[0] * t->ne[1], columns = t->ne[2];
        activations form = new_activations(f, g, k, columns, NULL, &e.next);
        leave_pending(f, t, g.family, form);
    } else if (e.store_k && overwrites_sources(t, e)) {
        // Separate launches in the planned order. The rows are written just now, so nothing is read early.
        TN_TRY(launch_steps(f, c));
        for (int &node : nodes.at) {
            if (node < 0) continue;
            fuse_node(f, node);
            TN_TRY(node_compile(c, f->nodes[node]));
            TN_TRY(assign_nodes(f, c));
            node = -1;
        }
        e = decode_extras{};
    }
    for (int node : nodes.at)
        if (node >= 0) fuse_node(f, node);
    fuse_node(f, i);
    if (!step) return compile_decode(c, t, e);
    decode_job job = decode_job_of(c, t, e);
    if (persistent_must_launch(f->steps, job)) TN_TRY(launch_steps(f, c));
    persistent_add_attention(f->steps, job);
    return assign_step(f, c, "attention");
}

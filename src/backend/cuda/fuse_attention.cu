// Fusing attention of few tokens with norms and rotation of q and k and the storing of new rows before it, and with a
// gate after it.
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
    const bool has_sections =
        p.mode == TN_ROPE_MULTI && p.sections[0] + p.sections[1] + p.sections[2] + p.sections[3];
    return t->op == TN_OP_ROPE && (p.mode == TN_ROPE_NORMAL || p.mode == TN_ROPE_NEOX || has_sections) &&
           !p.reverse && x->type == TN_F32 && x->nb[0] == 4;
}
// Whether a persistent decode kernel may have the attention as a step. It has no norms and one position per token.
static bool may_be_step(const compiler *f, const tn_tensor *t, const tn_tensor *rope_q) {
    return f->persistent && attention_is_step(*f->device, t) &&
           (!rope_q || (rope_q->params.rope.dims % 8 == 0 && rope_q->params.rope.mode != TN_ROPE_MULTI));
}
// The norm of heads whose result this rotation reads, or -1.
static int head_norm_of(const compiler *f, const tn_tensor *rope) {
    const int at = index_of_whole(f, rope->src[0]);
    const tn_tensor *t = at < 0 ? NULL : f->nodes[at];
    if (!t || t->op != TN_OP_RMS_NORM || !t->src[1] || t->src[2] || (t->flags & TN_FLAG_REPEATABLE)) return -1;
    const tn_tensor *x = t->src[0], *w = t->src[1];
    return x->type == TN_F32 && x->nb[0] == 4 && tn_same_shape(x, rope) && w->type == TN_F32 && w->nb[0] == 4 &&
                   tn_nelements(w) == x->ne[0]
               ? at
               : -1;
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

// Indices of the nodes that run inside an attention, in their order: norm q, norm k, rope q, rope k, store k, store
// v; -1 for none.
struct extra_nodes {
    int at[6];
};
static const extra_nodes no_extra_nodes = {{-1, -1, -1, -1, -1, -1}};
static decode_extras extras_of(const compiler *f, int i, bool norms, extra_nodes *nodes) {
    decode_extras e = {}, none = {};
    const tn_tensor *t = f->nodes[i];
    int rope_q = index_of_whole(f, t->src[TN_ATTN_Q]), store_k = index_of(f, t->src[TN_ATTN_K]),
        store_v = index_of(f, t->src[TN_ATTN_V]);
    *nodes = no_extra_nodes;
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
        nodes->at[2] = rope_q;
        nodes->at[3] = rope_k;
        const int norm_q = head_norm_of(f, e.rope_q), norm_k = head_norm_of(f, e.rope_k);
        if (norms && norm_q >= 0 && norm_k >= 0 && t->src[TN_ATTN_Q]->ne[2] == 1 && !may_be_step(f, t, e.rope_q)) {
            e.norm_q = f->nodes[nodes->at[0] = norm_q];
            e.norm_k = f->nodes[nodes->at[1] = norm_k];
        }
    }
    nodes->at[4] = store_k;
    nodes->at[5] = store_v;
    return e;
}

// Operands that the attention reads later than the plan expects: the plan keeps them only until the nodes that run
// inside it.
struct late_sources {
    const tn_tensor *at[5];
};
static late_sources late_sources_of(const tn_tensor *t, const decode_extras &e) {
    const tn_tensor *rows = e.store_k->src[2], *q = t->src[TN_ATTN_Q], *k = e.store_k->src[1];
    if (e.rope_q) q = e.rope_q->src[0], k = e.rope_k->src[0];
    if (e.norm_q) q = e.norm_q->src[0], k = e.norm_k->src[0];
    return {{q, k, e.store_v->src[1], rows, e.rope_q ? e.rope_q->src[1] : rows}};
}

static void mark_extras(compiler *f, const extra_nodes &nodes, bool done) {
    for (int node : nodes.at)
        if (node >= 0) f->info[node].done = done;
}
static bool mark_extras_of(compiler *f, int i, bool norms) {
    extra_nodes nodes;
    const decode_extras e = extras_of(f, i, norms, &nodes);
    if (!e.store_k || (norms && !e.norm_q)) return false;
    bool fits = true;
    for (int node : nodes.at)
        fits = fits && (node < 0 || (node < i && !f->info[node].done && only_read_by(f, node, 1)));
    if (!fits) return false;
    mark_extras(f, nodes, true);
    const late_sources late = late_sources_of(f->nodes[i], e);
    for (const tn_tensor *source : late.at) fits = fits && survives_until(f, source, index_of(f, source), i);
    if (!fits) mark_extras(f, nodes, false);
    return fits;
}
void mark_attention_extras(compiler *f) {
    for (int i = 0; i < f->n; i++) {
        const tn_tensor *t = f->nodes[i];
        if (t->op != TN_OP_ATTENTION || !decode_takes_more(*f->device, t)) continue;
        f->info[i].runs_norms = mark_extras_of(f, i, true);
        f->info[i].runs_extras = f->info[i].runs_norms || mark_extras_of(f, i, false);
    }
}

// The gate after attention i: [cont], sigmoid and their multiplication, which only a group of matmuls reads. `end` is
// the last node.
static const tn_tensor *match_gate(const compiler *f, int i, int *end, matmul_group *g) {
    int at = next_node(f, i);
    const tn_tensor *t = f->nodes[i], *x = at < f->n ? f->nodes[at]->src[0] : NULL;
    if (!x || !only_read_by(f, i, 1)) return NULL;
    if (f->nodes[at]->op == TN_OP_CONT) {
        const int next = next_node(f, at);
        if (next >= f->n || index_of_whole(f, f->nodes[next]->src[0]) != at || !only_read_by(f, at, 1)) return NULL;
        at = next;
    }
    const int multiply = next_node(f, at);
    if (f->nodes[at]->op != TN_OP_SIGMOID || multiply >= f->n || !only_read_by(f, at, 1)) return NULL;
    const tn_tensor *z = f->nodes[multiply];
    if (z->op != TN_OP_MUL || index_of_whole(f, z->src[0]) != i || index_of_whole(f, z->src[1]) != at ||
        x->type != TN_F32 || x->nb[0] != 4 || !tn_same_shape(x, t) || !tn_same_shape(z, t) || !tn_is_contiguous(z) ||
        t->ne[0] % 32 || !feeds_group(f, multiply, multiply, g))
        return NULL;
    *end = multiply;
    return x;
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
    extra_nodes nodes = no_extra_nodes;
    if (f->info[i].runs_extras) e = extras_of(f, i, f->info[i].runs_norms, &nodes);
    e.early = indices_are_inputs(f, t, e);
    matmul_group g;
    const bool step = may_be_step(f, t, e.rope_q);
    int gate_end = i;
    e.gate = step ? NULL : match_gate(f, i, &gate_end, &g);
    e.has_next =
        e.gate || (feeds_group(f, i, i, &g) && tn_is_contiguous(t) && t->ne[0] % 32 == 0 && (!step || is_step(f, g)));
    f->pending = NULL;
    if (!step) TN_TRY(launch_steps(f, c));
    if (e.has_next) {
        int64_t k = t->ne[0] * t->ne[1], columns = t->ne[2];
        activations form = new_activations(f, g, k, columns, NULL, &e.next);
        leave_pending(f, f->nodes[e.gate ? gate_end : i], g.family, form);
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
    for (int k = next_node(f, i); k <= gate_end; k = next_node(f, k)) fuse_node(f, k);
    if (!step) return compile_decode(c, t, e);
    decode_job job = decode_job_of(c, t, e);
    if (persistent_must_launch(f->steps, job)) TN_TRY(launch_steps(f, c));
    persistent_add_attention(f->steps, job);
    return assign_step(f, c, "attention");
}

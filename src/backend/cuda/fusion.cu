// Running a program's nodes, several in one launch where a token is decoded:
//
//   norm → products with the same input          one launch; the norm was left by the launch before
//   rope q, rope k, store k, store v, attention  one launch
//   product → add → norm                         one launch
//   gate, up → gated activation                  one launch, with experts too
//   soft-max → choice of experts                 one launch
//   experts' weights → mix of results → add      one launch
//   sum and argmax of the logits                 one launch
//
// A node whose only readers take its result in another form is never stored. Which nodes those are follows from the
// graph (who reads whom) and from addresses (the plan reuses memory as if nodes ran one by one, so what runs later
// than planned must not find its sources overwritten). Whatever does not fit a pattern runs by itself.
//
// Where the device can, all of that is collected into chains of steps, each of which is one launch (chain.cuh).
#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/persistent/persistent.cuh"
#include "backend/cuda/profile.cuh"

#include <stdlib.h>

enum { GROUP_WINDOW = 16, MAX_GROUP = 3 };

struct node_info {
    int readers;      // nodes of this program that read it, itself or through views
    bool kept, done;  // read elsewhere too; run, or part of another node's launch
    bool runs_extras; // an attention that rotates and stores
};
struct by_address {
    const tn_tensor *tensor;
    int index;
};
struct fusion {
    tn_tensor *const *nodes;
    int n;
    node_info *info;
    by_address *order; // nodes sorted by address, to find their number
    // Activations that the last launch left instead of a node's result.
    const tn_tensor *pending;
    activations pending_form;
    gemv_family pending_family;
    persistent_launcher *steps; // NULL where the device has none, or the program nothing for it
    bool persistent;            // in this run
    char *activation_buffers;   // two places for activations: what a launch reads, and what it leaves
    int next_buffer;            // which of them is next
    size_t activation_buffer_bytes;
};

static int compare_address(const void *a, const void *b) {
    const tn_tensor *x = ((const by_address *)a)->tensor, *y = ((const by_address *)b)->tensor;
    return x < y ? -1 : x > y;
}
static const tn_tensor *without_views(const tn_tensor *t) {
    while (t && tn_op_get_family(t->op) == TN_FAMILY_VIEW && t->src[0]) t = t->src[0];
    return t;
}
static bool is_matmul(const tn_tensor *t) { return t->op == TN_OP_MUL_MAT || t->op == TN_OP_MUL_MAT_ID; }
// The node's number, or -1 when it is not of this program.
static int number_of(const fusion *f, const tn_tensor *t) {
    by_address key = {without_views(t), 0};
    const by_address *entry =
        (const by_address *)bsearch(&key, f->order, (size_t)f->n, sizeof *f->order, compare_address);
    return entry ? entry->index : -1;
}
// The same, but -1 as well for views that show other than all of it in its order.
static int node_shown(const fusion *f, const tn_tensor *t) {
    int i = number_of(f, t);
    const tn_tensor *node = i < 0 ? t : f->nodes[i];
    return t == node || (t->data == node->data && tn_is_contiguous(t) && tn_nelements(t) == tn_nelements(node)) ? i
                                                                                                                : -1;
}

static bool attention_is_step(const cuda_device *device, const tn_tensor *t) {
    return decode_takes_more(t) && decode_is_whole(t) && persistent_takes_attention(device, t);
}
// How many steps a chain may have.
static int count_steps(const fusion *f, const cuda_device *device) {
    const char *wanted = getenv("TENON_CUDA_PERSISTENT");
    if (!persistent_supports(device) || (wanted && strcmp(wanted, "0") == 0)) return 0;
    int steps = 0;
    for (int i = 0; i < f->n; i++) {
        const tn_tensor *t = f->nodes[i];
        if (t->op == TN_OP_MUL_MAT) steps += gemv_supports(t) && t->ne[1] == 1;
        if (t->op == TN_OP_ATTENTION) steps += attention_is_step(device, t);
    }
    return steps;
}

tn_status fusion_new(tn_tensor *const *nodes, size_t n_nodes, const cuda_device *device, fusion **out) {
    fusion *f = (fusion *)tn_calloc(1, sizeof *f);
    if (!f) return TN_E_NOMEM;
    f->nodes = nodes;
    f->n = (int)n_nodes;
    f->info = (node_info *)tn_calloc(n_nodes + 1, sizeof *f->info);
    f->order = (by_address *)tn_calloc(n_nodes + 1, sizeof *f->order);
    if (!f->info || !f->order) {
        fusion_free(f);
        return TN_E_NOMEM;
    }
    for (int i = 0; i < f->n; i++) f->order[i] = {nodes[i], i};
    qsort(f->order, n_nodes, sizeof *f->order, compare_address);
    for (int i = 0; i < f->n; i++) {
        for (int s = 0; s < TN_MAX_SRC; s++) {
            int source = nodes[i]->src[s] ? number_of(f, nodes[i]->src[s]) : -1;
            if (source >= 0) f->info[source].readers++;
        }
        if (is_matmul(nodes[i]) && gemv_supports(nodes[i]) && gemv_scratch(nodes[i]) > f->activation_buffer_bytes)
            f->activation_buffer_bytes = gemv_scratch(nodes[i]);
    }
    int steps = count_steps(f, device);
    tn_status status = steps ? persistent_new(device, steps, &f->steps) : TN_OK;
    if (status != TN_OK) {
        fusion_free(f);
        return status;
    }
    *out = f;
    return TN_OK;
}
void fusion_free(fusion *f) {
    if (!f) return;
    persistent_free(f->steps);
    tn_free(f->info);
    tn_free(f->order);
    tn_free(f);
}

size_t fusion_scratch(const fusion *f, const cuda_device *device) {
    size_t most = 0;
    for (int i = 0; i < f->n; i++) {
        size_t bytes = node_scratch(device, f->nodes[i]);
        if (bytes > most) most = bytes;
    }
    return 2 * f->activation_buffer_bytes + most;
}

// ---- What may be moved ----

static bool overlap(const tn_tensor *a, const tn_tensor *b) {
    const char *x = (const char *)a->data, *y = (const char *)b->data;
    return x < y + tn_nbytes(b) && y < x + tn_nbytes(a);
}
static bool only_read_by(const fusion *f, int i, int readers) {
    return f->info[i].readers == readers && !f->info[i].kept;
}
// The next node that still runs by itself.
static int following(const fusion *f, int i) {
    do i++;
    while (i < f->n && f->info[i].done);
    return i;
}

// ---- Products with the same input ----

struct group {
    int at[MAX_GROUP], n;
    gemv_family family;
};

static bool same_input(const tn_tensor *a, const tn_tensor *b) {
    return a->data == b->data && a->type == b->type && tn_same_shape(a, b) && a->nb[1] == b->nb[1] &&
           a->nb[2] == b->nb[2] && without_views(a) == without_views(b);
}
// Two products of the same columns, and the same experts.
static bool same_columns(const tn_tensor *a, const tn_tensor *b) {
    return a->op == b->op && same_input(a->src[1], b->src[1]) &&
           (a->op == TN_OP_MUL_MAT || (same_input(a->src[2], b->src[2]) && a->src[0]->ne[2] == b->src[0]->ne[2]));
}
// Products of node i's input, node i first. Later ones may run now if nothing in between touches their result.
static group group_at(const fusion *f, int i) {
    group g = {};
    if (i >= f->n || !is_matmul(f->nodes[i]) || f->info[i].done) return g;
    g.family = gemv_family_of(f->nodes[i]);
    if (g.family == GEMV_OTHER) return g;
    g.at[g.n++] = i;
    for (int k = i + 1; k < f->n && k < i + GROUP_WINDOW && g.n < MAX_GROUP; k++) {
        const tn_tensor *t = f->nodes[k];
        if (f->info[k].done || !is_matmul(t) || !same_columns(t, f->nodes[i]) || gemv_family_of(t) != g.family)
            continue;
        bool free_way = true;
        for (int m = i; m < k && free_way; m++) {
            const tn_tensor *between = f->nodes[m];
            free_way = !overlap(between, t);
            for (int s = 0; s < TN_MAX_SRC && free_way; s++)
                free_way = !between->src[s] || !between->src[s]->data || !overlap(between->src[s], t);
        }
        if (free_way) g.at[g.n++] = k;
    }
    return g;
}
// Whether node i's readers are exactly one group that runs next after `after`.
static bool feeds_group(const fusion *f, int i, int after, group *g) {
    *g = group_at(f, following(f, after));
    if (!g->n || f->info[i].kept) return false;
    for (int k = 0; k < g->n; k++)
        if (node_shown(f, f->nodes[g->at[k]]->src[1]) != i) return false;
    // Its columns must be what the node has as rows; attention's are of all heads.
    const tn_tensor *t = f->nodes[i], *first = f->nodes[g->at[0]];
    int64_t k = t->op == TN_OP_ATTENTION ? t->ne[0] * t->ne[1] : t->ne[0];
    if (first->src[1]->ne[0] != k || gemv_columns(first) * k != tn_nelements(t)) return false;
    return f->info[i].readers == g->n && first->src[0]->ne[0] % 32 == 0;
}

// Whether a group of products is a step of a chain. Those read and leave plain floats, and do the norm themselves.
static bool is_step(const fusion *f, const group &g) {
    if (!f->persistent || f->nodes[g.at[0]]->op != TN_OP_MUL_MAT || f->nodes[g.at[0]]->src[1]->ne[1] != 1)
        return false;
    gemv_job job = {};
    job.k = (int)f->nodes[g.at[0]]->src[0]->ne[0];
    bool lasting = true;
    for (job.n = 0; job.n < g.n; job.n++) {
        job.m[job.n] = gemv_matrix_of(f->nodes[g.at[job.n]]);
        lasting = lasting && job.m[job.n].lasting;
    }
    return lasting && persistent_takes_matmul(job);
}
// Room for what group g will read in the place of a node's result: with `norm`, of the node's source, and the norm is
// g's or, between launches, shared: the weight before, the division after.
static activations new_activations(fusion *f, const group &g, int64_t k, int64_t columns, const tn_tensor *norm,
                                   gemv_next *next) {
    char *at = f->activation_buffers + (size_t)f->next_buffer * f->activation_buffer_bytes;
    f->next_buffer ^= 1;
    bool step = is_step(f, g);
    activations form = activations_at(at, step ? GEMV_HALF : g.family, k, columns, norm && !step, next);
    if (norm) {
        form.eps = norm->params.norm.eps;
        *(step ? &form.weight : &next->weight) = (const float *)norm->src[1]->data;
    }
    return form;
}
static tn_status launch_steps(const fusion *f, const launch &l) {
    return f->persistent ? persistent_launch(f->steps, l) : TN_OK;
}
static void leave_pending(fusion *f, const tn_tensor *instead_of, gemv_family family, const activations &form) {
    f->pending = instead_of;
    f->pending_family = family;
    f->pending_form = form;
}
static bool is_plain_norm(const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *w = t->src[1];
    return t->op == TN_OP_RMS_NORM && x->type == TN_F32 && x->nb[0] == 4 && x->ne[2] == 1 && x->ne[3] == 1 &&
           x->ne[1] <= GEMV_MAX_COLUMNS && w && w->type == TN_F32 && w->nb[0] == 4 && tn_nrows(w) == 1 &&
           w->ne[0] == x->ne[0];
}
static bool is_rows(const tn_tensor *t) {
    return t->type == TN_F32 && t->nb[0] == 4 && t->ne[2] == 1 && t->ne[3] == 1 && t->nb[1] % 4 == 0;
}

// Whether a group of products leaves this alone: what only stores, or is told, does not go elsewhere.
static bool survives_group(const fusion *f, const tn_tensor *x, const group &g) {
    for (int k = 0; k < g.n; k++)
        if (overlap(f->nodes[g.at[k]], x)) return false;
    return true;
}

// A norm that the products after it take unfinished.
static tn_status run_norm(fusion *f, const launch &l, int i, bool *ran) {
    const tn_tensor *t = f->nodes[i], *x = t->src[0];
    group g;
    *ran = is_plain_norm(t) && feeds_group(f, i, i, &g);
    if (!*ran) return TN_OK;
    if (is_step(f, g) && g.n > 1 && survives_group(f, x, g) && (uintptr_t)x->data % 16 == 0) {
        activations form = {};
        form.y = (const float *)x->data;
        form.stride = x->ne[0];
        form.weight = (const float *)t->src[1]->data;
        form.eps = t->params.norm.eps;
        leave_pending(f, t, g.family, form);
        return TN_OK;
    }
    gemv_next next = {};
    activations form = new_activations(f, g, x->ne[0], x->ne[1], t, &next);
    leave_pending(f, t, g.family, form);
    TN_TRY(launch_steps(f, l));
    return gemv_prepare(l, (const float *)x->data, (int64_t)x->nb[1], x->ne[0], (int)x->ne[1], next);
}

// Gate and up, and the gated activation if the product after it is all that reads it.
static bool finish_with_gate(fusion *f, const group &g, gemv_job *job, int columns) {
    if (g.n != 2) return false;
    int a = g.at[0], b = g.at[1], at = following(f, a);
    if (at >= f->n || tn_op_get_family(f->nodes[at]->op) != TN_FAMILY_GLU) return false;
    const tn_tensor *t = f->nodes[at];
    bool experts = job->experts.ids != NULL;
    if (experts ? !tn_is_contiguous(t) || tn_nrows(t) != job->experts.pairs : !is_rows(t) || t->ne[1] != columns)
        return false;
    if (!t->src[1] || !only_read_by(f, a, 1) || !only_read_by(f, b, 1) || t->type != TN_F32 || t->ne[0] % GEMV_TILE ||
        t->ne[0] != job->m[0].rows || t->ne[0] != job->m[1].rows || job->m[0].kind != job->m[1].kind)
        return false;
    int gate = node_shown(f, t->src[t->params.glu.swapped ? 1 : 0]),
        up = node_shown(f, t->src[t->params.glu.swapped ? 0 : 1]);
    if (!((gate == a && up == b) || (gate == b && up == a))) return false;
    group next_group;
    if (!feeds_group(f, at, at, &next_group) || is_step(f, g) > is_step(f, next_group)) return false;
    if (gate == b) {
        gemv_matrix other = job->m[0];
        job->m[0] = job->m[1];
        job->m[1] = other;
    }
    job->finish = GEMV_GLU;
    job->glu = t->op;
    job->glu_params = t->params;
    job->m[0].out = job->m[1].out = NULL;
    activations form = new_activations(f, next_group, t->ne[0], tn_nrows(t), NULL, &job->next);
    leave_pending(f, t, next_group.family, form);
    f->info[at].done = true;
    return true;
}

// A product that is added to something of its shape; and the norm after that, if only products read it.
static bool finish_with_add(fusion *f, const group &g, gemv_job *job, int columns) {
    int a = g.at[0], at = following(f, a);
    if (g.n != 1 || job->experts.ids || at >= f->n || f->nodes[at]->op != TN_OP_ADD || !only_read_by(f, a, 1))
        return false;
    const tn_tensor *t = f->nodes[at], *other = node_shown(f, t->src[0]) == a ? t->src[1] : t->src[0];
    if ((node_shown(f, t->src[0]) != a) == (node_shown(f, t->src[1]) != a)) return false;
    if (!is_rows(t) || !is_rows(other) || !tn_same_shape(t, other) || t->ne[1] != columns ||
        t->ne[0] != job->m[0].rows)
        return false;
    // Every element is read where it is written, or nowhere near; and the input may still be read by other blocks.
    if (overlap(t, other) && (t->data != other->data || t->nb[1] != other->nb[1])) return false;
    if (!job->in.q && overlap(t, f->nodes[a]->src[1]) && f->pending == NULL) return false;
    job->finish = GEMV_ADD;
    job->residual = (const float *)other->data;
    job->residual_row = (int64_t)other->nb[1] / 4;
    job->m[0].out = (float *)t->data;
    job->m[0].out_row = (int64_t)t->nb[1] / 4;
    f->info[at].done = true;
    int norm = following(f, at);
    f->pending = NULL;
    if (norm >= f->n || t->ne[0] % GEMV_TILE || !is_plain_norm(f->nodes[norm]) ||
        node_shown(f, f->nodes[norm]->src[0]) != at)
        return true;
    group next_group;
    if (!feeds_group(f, norm, norm, &next_group) || is_step(f, g) > is_step(f, next_group)) return true;
    activations form = new_activations(f, next_group, t->ne[0], columns, f->nodes[norm], &job->next);
    leave_pending(f, f->nodes[norm], next_group.family, form);
    f->info[norm].done = true;
    return true;
}

// A step takes all products of a group, of any kinds.
static tn_status add_step(fusion *f, const group &g, gemv_job *job) {
    for (job->n = 0; job->n < g.n; job->n++) job->m[job->n] = gemv_matrix_of(f->nodes[g.at[job->n]]);
    for (int k = 0; k < g.n; k++) f->info[g.at[k]].done = true;
    if (!finish_with_gate(f, g, job, 1) && !finish_with_add(f, g, job, 1)) f->pending = NULL;
    persistent_add_matmul(f->steps, *job);
    return TN_OK;
}

static int kind_in(const fusion *f, const group &g, int k) { return kind_of(f->nodes[g.at[k]]->src[0]); }

static tn_status run_group(fusion *f, const launch &l, int i, bool *ran) {
    group g = group_at(f, i);
    const tn_tensor *first = f->nodes[i], *in = g.n ? first->src[1] : NULL;
    *ran = g.n && ((uintptr_t)in->data % 16 == 0 || f->pending == without_views(in));
    if (!*ran) return TN_OK;
    int columns = gemv_columns(first);
    gemv_job job = {};
    job.k = (int)in->ne[0];
    job.experts = gemv_experts_of(first);
    bool step = is_step(f, g);
    if (!step) TN_TRY(launch_steps(f, l));
    if (f->pending && f->pending == without_views(in) && f->pending_family == g.family) {
        job.in = f->pending_form;
    } else if (g.family == GEMV_INT8 && !step) {
        gemv_next next = {};
        f->pending = NULL;
        job.in = new_activations(f, g, job.k, columns, NULL, &next);
        TN_TRY(gemv_prepare(l, (const float *)in->data, gemv_column_bytes(first), job.k, columns, next));
    } else {
        f->pending = NULL;
        job.in.y = (const float *)in->data;
        job.in.stride = gemv_column_bytes(first) / 4;
    }
    if (step) return add_step(f, g, &job);
    bool first_launch = true, one_kind = true;
    for (int k = 1; k < g.n; k++) one_kind = one_kind && kind_in(f, g, k) == kind_in(f, g, 0);
    for (int k = 0; k < g.n; k++) f->info[g.at[k]].done = true;
    // One launch per kind of weights; what finishes more than a product needs all of them in one.
    for (int k = 0; k < g.n; k++) {
        bool had = false;
        for (int m = 0; m < k; m++) had = had || kind_in(f, g, m) == kind_in(f, g, k);
        if (had) continue;
        job.n = 0;
        for (int m = k; m < g.n; m++)
            if (kind_in(f, g, m) == kind_in(f, g, k)) job.m[job.n++] = gemv_matrix_of(f->nodes[g.at[m]]);
        if (first_launch &&
            !(one_kind && (finish_with_gate(f, g, &job, columns) || finish_with_add(f, g, &job, columns))))
            f->pending = NULL;
        first_launch = false;
        TN_TRY(gemv_run(l, job, columns));
    }
    return TN_OK;
}

// ---- Attention with what comes before it ----

static bool same_rotation(const tn_tensor *a, const tn_tensor *b) {
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
// Nobody who runs between node `from` and node `to` writes over this memory.
static bool survives(const fusion *f, const tn_tensor *t, int from, int to) {
    for (int m = from + 1; m < to; m++)
        if (!f->info[m].done && overlap(f->nodes[m], t)) return false;
    return true;
}

// Whether attention sees all of the cache that rows are written to, row by row as they are.
static bool sees_rows_of(const tn_tensor *seen, const tn_tensor *store) {
    const tn_tensor *cache = store->src[0];
    return seen->data == cache->data && seen->nb[2] == cache->nb[1] && seen->ne[2] == cache->ne[1] &&
           seen->nb[1] == (size_t)seen->ne[0] * seen->nb[0] && seen->ne[0] * seen->ne[1] == store->src[1]->ne[0];
}
static decode_extras extras_of(const fusion *f, int i, int numbers[4]) {
    decode_extras e = {};
    const tn_tensor *t = f->nodes[i];
    int rope_q = node_shown(f, t->src[TN_ATTN_Q]), store_k = number_of(f, t->src[TN_ATTN_K]),
        store_v = number_of(f, t->src[TN_ATTN_V]);
    numbers[0] = numbers[1] = numbers[2] = numbers[3] = -1;
    if (store_k < 0 || store_v < 0 || f->nodes[store_k]->op != TN_OP_SET_ROWS ||
        f->nodes[store_v]->op != TN_OP_SET_ROWS)
        return e;
    const tn_tensor *sk = f->nodes[store_k], *sv = f->nodes[store_v];
    if (sk->src[2]->data != sv->src[2]->data || sk->src[2]->type != TN_I32 ||
        tn_nelements(sk->src[2]) != t->src[TN_ATTN_Q]->ne[2] || !is_rows(sk->src[1]) || !is_rows(sv->src[1]) ||
        !sees_rows_of(t->src[TN_ATTN_K], sk) || !sees_rows_of(t->src[TN_ATTN_V], sv))
        return e;
    int rope_k = node_shown(f, sk->src[1]);
    bool q_turns = rope_q >= 0 && f->nodes[rope_q]->op == TN_OP_ROPE,
         k_turns = rope_k >= 0 && f->nodes[rope_k]->op == TN_OP_ROPE;
    if (q_turns != k_turns) return e;
    if (q_turns) {
        int64_t size = t->src[TN_ATTN_Q]->ne[0];
        if (!can_rotate(f->nodes[rope_q]) || !can_rotate(f->nodes[rope_k]) || f->nodes[rope_q]->ne[0] != size ||
            f->nodes[rope_k]->ne[0] != size || f->nodes[rope_q]->ne[1] != t->src[TN_ATTN_Q]->ne[1] ||
            f->nodes[rope_k]->ne[1] != t->src[TN_ATTN_K]->ne[1] || !same_rotation(f->nodes[rope_q], f->nodes[rope_k]))
            return e;
        e.rope_q = f->nodes[rope_q];
        e.rope_k = f->nodes[rope_k];
        numbers[0] = rope_q;
        numbers[1] = rope_k;
    }
    e.store_k = sk;
    e.store_v = sv;
    numbers[2] = store_k;
    numbers[3] = store_v;
    return e;
}

// What must last until the attention, though the plan needs it only until the nodes that run in it.
struct late_sources {
    const tn_tensor *at[5];
};
static late_sources late_sources_of(const tn_tensor *t, const decode_extras &e) {
    const tn_tensor *rows = e.store_k->src[2];
    return {{e.rope_q ? e.rope_q->src[0] : t->src[TN_ATTN_Q], e.rope_k ? e.rope_k->src[0] : e.store_k->src[1],
             e.store_v->src[1], rows, e.rope_q ? e.rope_q->src[1] : rows}};
}

// Marks what runs inside attentions, before anything is launched.
static void find_attentions(fusion *f) {
    for (int i = 0; i < f->n; i++) {
        const tn_tensor *t = f->nodes[i];
        if (t->op != TN_OP_ATTENTION || !decode_takes_more(t)) continue;
        int numbers[4];
        decode_extras e = extras_of(f, i, numbers);
        if (!e.store_k) continue;
        bool fits = true;
        for (int k = 0; k < 4; k++)
            fits = fits && (numbers[k] < 0 ||
                            (numbers[k] < i && !f->info[numbers[k]].done && only_read_by(f, numbers[k], 1)));
        if (!fits) continue;
        for (int k = 0; k < 4; k++)
            if (numbers[k] >= 0) f->info[numbers[k]].done = true;
        late_sources late = late_sources_of(t, e);
        for (const tn_tensor *source : late.at) fits = fits && survives(f, source, number_of(f, source), i);
        if (!fits)
            for (int k = 0; k < 4; k++)
                if (numbers[k] >= 0) f->info[numbers[k]].done = false;
        f->info[i].runs_extras = fits;
    }
}

static tn_status run_attention(fusion *f, const launch &l, int i, bool *ran) {
    const tn_tensor *t = f->nodes[i];
    *ran = t->op == TN_OP_ATTENTION && decode_takes_more(t);
    if (!*ran) return TN_OK;
    decode_extras e = {};
    int numbers[4];
    if (f->info[i].runs_extras) e = extras_of(f, i, numbers);
    const tn_tensor *indices[] = {t->src[TN_ATTN_Q_POS], t->src[TN_ATTN_K_POS], t->src[TN_ATTN_RANGE],
                                  e.rope_q ? e.rope_q->src[1] : NULL, e.store_k ? e.store_k->src[2] : NULL};
    e.early = true;
    for (const tn_tensor *index : indices) e.early = e.early && (!index || number_of(f, index) < 0);
    group g;
    bool step = f->persistent && attention_is_step(l.device, t) && (!e.rope_q || e.rope_q->params.rope.dims % 8 == 0);
    e.has_next = feeds_group(f, i, i, &g) && tn_is_contiguous(t) && t->ne[0] % 32 == 0 && (!step || is_step(f, g));
    f->pending = NULL;
    if (!step) TN_TRY(launch_steps(f, l));
    if (e.has_next) {
        int64_t k = t->ne[0] * t->ne[1], columns = t->ne[2];
        activations form = new_activations(f, g, k, columns, NULL, &e.next);
        leave_pending(f, t, g.family, form);
    } else if (e.store_k) {
        // The result is written while other blocks still read their sources.
        late_sources late = late_sources_of(t, e);
        for (const tn_tensor *source : late.at) {
            if (!overlap(source, t)) continue;
            // Apart, then, in the planned order.
            TN_TRY(launch_steps(f, l));
            for (int n = 0; n < 4; n++)
                if (numbers[n] >= 0) TN_TRY(node_launch(l, f->nodes[numbers[n]]));
            e = decode_extras{};
            break; // nothing early: the rows were written just now
        }
    }
    if (!step) return launch_decode(l, t, e);
    return persistent_add_attention(f->steps, l, decode_job_of(l, t, e));
}

// A row's sum, which tells whether it is finite, and its largest.
static tn_status run_sum_argmax(fusion *f, const launch &l, int i, bool *ran) {
    int next = following(f, i);
    *ran = next < f->n && sum_argmax_supports(f->nodes[i], f->nodes[next]);
    if (!*ran) return TN_OK;
    f->info[next].done = true;
    f->pending = NULL;
    TN_TRY(launch_steps(f, l));
    return launch_sum_argmax(l, f->nodes[i], f->nodes[next]);
}

// ---- Experts ----

// Soft-max and the choice of the largest.
static tn_status run_moe_router(fusion *f, const launch &l, int i, bool *ran) {
    const tn_tensor *probs = f->nodes[i];
    int next = following(f, i);
    if (next >= f->n || !moe_router_supports(probs, f->nodes[next])) return TN_OK;
    const tn_tensor *logits = probs->src[0], *ids = f->nodes[next];
    // Tokens are read and written by blocks of their own.
    bool in_place = probs->data == logits->data && probs->nb[1] == logits->nb[1];
    *ran = !overlap(ids, logits) && !overlap(ids, probs) && (in_place || !overlap(probs, logits));
    if (!*ran) return TN_OK;
    f->info[next].done = true;
    f->pending = NULL;
    TN_TRY(launch_steps(f, l));
    return launch_moe_router(l, probs, ids);
}

// Whether the next node is of that op and reads node `at` first; then `at` is that node.
static const tn_tensor *step_to(const fusion *f, int *at, int readers, tn_op op) {
    int next = following(f, *at);
    if (next >= f->n || f->nodes[next]->op != op || node_shown(f, f->nodes[next]->src[0]) != *at ||
        !only_read_by(f, *at, readers))
        return NULL;
    *at = next;
    return f->nodes[next];
}
// Whether t adds something to node `at`, every element where it is read.
static bool takes_sum(const fusion *f, int at, const tn_tensor *t) {
    if (t->op != TN_OP_ADD || (node_shown(f, t->src[0]) == at) == (node_shown(f, t->src[1]) == at)) return false;
    const tn_tensor *other = node_shown(f, t->src[0]) == at ? t->src[1] : t->src[0];
    return t->type == TN_F32 && other->type == TN_F32 && tn_same_shape(t, other) && tn_is_contiguous(t) &&
           tn_is_contiguous(other) && tn_nelements(t) == tn_nelements(f->nodes[at]) &&
           (t->data == other->data || !overlap(t, other));
}
// The chosen experts' weights and the sum of their results: rows, [soft_max], [sum_rows, div], [scale], mix, [add].
static tn_status run_mix(fusion *f, const launch &l, int i, bool *ran) {
    if (f->nodes[i]->op != TN_OP_GET_ROWS) return TN_OK;
    chosen_mix m = {f->nodes[i]};
    int at = i, first = i;
    if ((m.soft_max = step_to(f, &at, 1, TN_OP_SOFT_MAX)) && !is_plain_soft_max(m.soft_max)) return TN_OK;
    first = at;
    if ((m.sum = step_to(f, &at, 2, TN_OP_SUM_ROWS))) {
        at = following(f, at);
        m.div = at < f->n ? f->nodes[at] : NULL;
        if (!m.div || m.div->op != TN_OP_DIV || node_shown(f, m.div->src[0]) != first ||
            without_views(m.div->src[1]) != m.sum || !only_read_by(f, number_of(f, m.sum), 1))
            return TN_OK;
    }
    if ((m.scale = step_to(f, &at, 1, TN_OP_SCALE)) && m.scale->params.scale.bias != 0) return TN_OK;
    int end = following(f, at);
    if (end >= f->n || f->nodes[end]->op != TN_OP_MIX || node_shown(f, f->nodes[end]->src[1]) != at ||
        number_of(f, f->nodes[end]->src[0]) == at || !only_read_by(f, at, 1))
        return TN_OK;
    m.mix = m.out = f->nodes[end];
    int sum = following(f, end);
    if (sum < f->n && only_read_by(f, end, 1) && takes_sum(f, end, f->nodes[sum])) {
        m.out = f->nodes[sum];
        m.residual = node_shown(f, m.out->src[0]) == end ? m.out->src[1] : m.out->src[0];
        end = sum;
    }
    // Read later than planned: what the result takes the place of may still be needed.
    if (!mix_supports(m) || overlap(m.out, m.mix->src[0]) || overlap(m.out, m.rows->src[0]) ||
        overlap(m.out, m.rows->src[1]))
        return TN_OK;
    *ran = true;
    for (int k = following(f, i); k <= end; k = following(f, k)) f->info[k].done = true;
    f->pending = NULL;
    TN_TRY(launch_steps(f, l));
    return launch_chosen_mix(l, m);
}

// ---- The whole ----

tn_status fusion_launch(fusion *f, const launch &whole, profile *p) {
    launch l = whole;
    f->activation_buffers = whole.scratch;
    l.scratch += 2 * f->activation_buffer_bytes; // what nodes use by themselves lies behind
    f->pending = NULL;
    f->next_buffer = 0;
    f->persistent = f->steps && !profile_is_single(p);
    if (f->persistent) persistent_begin(f->steps);
    for (int i = 0; i < f->n; i++) {
        f->info[i].done = node_is_idle(f->nodes[i]);
        f->info[i].runs_extras = false;
        f->info[i].kept = (f->nodes[i]->flags & (TN_FLAG_OUTPUT | TN_FLAG_KEPT)) != 0 || !f->info[i].readers;
    }
    find_attentions(f);
    for (int i = 0; i < f->n; i++) {
        if (f->info[i].done) continue;
        bool ran = false;
        if (profile_is_single(p)) profile_begin(p, l.stream);
        TN_TRY(run_norm(f, l, i, &ran));
        if (!ran) TN_TRY(run_group(f, l, i, &ran));
        if (!ran) TN_TRY(run_attention(f, l, i, &ran));
        if (!ran) TN_TRY(run_sum_argmax(f, l, i, &ran));
        if (!ran) TN_TRY(run_moe_router(f, l, i, &ran));
        if (!ran) TN_TRY(run_mix(f, l, i, &ran));
        if (ran || !is_matmul(f->nodes[i])) *l.narrowed = {};
        if (!ran) {
            f->pending = NULL;
            TN_TRY(launch_steps(f, l));
            TN_TRY(node_launch(l, f->nodes[i]));
        }
        f->info[i].done = true;
        if (profile_is_single(p)) profile_end(p, l.stream, f->nodes[i]);
    }
    return launch_steps(f, l);
}

// Fusing matrix multiplications: with few columns with others of the same input, the norm before them, and the
// activation, addition or norm after them; with more columns with others of the same input or an addition.
#include "backend/cuda/compiler.cuh"
#include "backend/cuda/kernels/tiles/few_columns.cuh"

#include <algorithm>

// ---- Groups ----

static bool same_input(const tn_tensor *a, const tn_tensor *b) {
    return a->data == b->data && a->type == b->type && tn_same_shape(a, b) && a->nb[1] == b->nb[1] &&
           a->nb[2] == b->nb[2] && without_views(a) == without_views(b);
}
// Matrix multiplications of the same columns, and the same experts.
static bool same_columns(const tn_tensor *a, const tn_tensor *b) {
    return a->op == b->op && same_input(a->src[1], b->src[1]) &&
           (a->op == TN_OP_MUL_MAT || (same_input(a->src[2], b->src[2]) && a->src[0]->ne[2] == b->src[0]->ne[2]));
}
bool can_run_at(const compiler *f, int k, int i) {
    for (int m = i; m < k; m++) {
        const tn_tensor *between = f->nodes[m];
        if (overlap(between, f->nodes[k])) return false;
        for (const tn_tensor *source : between->src)
            if (source && source->data && overlap(source, f->nodes[k])) return false;
    }
    return true;
}
// How many matrices of a group are of this kind.
static int of_kind_in(const compiler *f, const matmul_group &g, int kind) {
    int n = 0;
    for (int k = 0; k < g.n; k++) n += kind_of(f->nodes[g.at[k]]->src[0]) == kind;
    return n;
}
matmul_group group_at(const compiler *f, int i) {
    matmul_group g = {};
    if (i >= f->n || !is_matmul(f->nodes[i]) || f->info[i].done) return g;
    g.family = gemv_family_of(*f->device, f->nodes[i]);
    if (g.family == GEMV_OTHER) return g;
    g.at[g.n++] = i;
    for (int k = i + 1; k < f->n && k < i + GROUP_WINDOW && g.n < MAX_GROUP; k++) {
        const tn_tensor *t = f->nodes[k];
        if (f->info[k].done || !is_matmul(t) || !same_columns(t, f->nodes[i]) ||
            gemv_family_of(*f->device, t) != g.family)
            continue;
        if (g.n == 3 && (is_step(f, g) || of_kind_in(f, g, kind_of(t->src[0])) == 3)) break;
        if (!can_run_at(f, k, i)) continue;
        matmul_group more = g;
        const matmul_group alone = {{k}, 1, g.family};
        more.at[more.n++] = k;
        if (is_step(f, g) && !is_step(f, more) && is_step(f, alone)) continue; // rest_of_group() has it
        g = more;
    }
    return g;
}
// Matmuls of the same input that do not fit into the step of group g, but make a step of their own after it.
static matmul_group rest_of_group(const compiler *f, const matmul_group &g) {
    matmul_group rest = {};
    if (!g.n || !is_step(f, g)) return rest;
    const int i = g.at[0];
    rest.family = g.family;
    for (int k = i + 1; k < f->n && k < i + GROUP_WINDOW && rest.n < 3; k++) {
        const tn_tensor *t = f->nodes[k];
        bool taken = f->info[k].done || !is_matmul(t) || !same_columns(t, f->nodes[i]) ||
                     gemv_family_of(*f->device, t) != g.family || !can_run_at(f, k, i);
        for (int m = 0; m < g.n; m++) taken = taken || g.at[m] == k;
        if (taken) continue;
        matmul_group more = rest;
        more.at[more.n++] = k;
        if (is_step(f, more)) rest = more;
    }
    return rest;
}
bool feeds_group(const compiler *f, int i, int after, matmul_group *g) {
    *g = group_at(f, next_node(f, after));
    if (!g->n || f->info[i].kept) return false;
    for (int k = 0; k < g->n; k++)
        if (index_of_whole(f, f->nodes[g->at[k]]->src[1]) != i) return false;
    // The node's rows must be the group's columns. An attention's row consists of all heads, gated or not.
    const tn_tensor *t = f->nodes[i], *first = f->nodes[g->at[0]];
    int64_t k = t->op == TN_OP_ATTENTION || t->op == TN_OP_MUL ? t->ne[0] * t->ne[1] : t->ne[0];
    if (first->src[1]->ne[0] != k || gemv_columns(first) * k != tn_nelements(t)) return false;
    return f->info[i].readers == g->n + rest_of_group(f, *g).n && first->src[0]->ne[0] % 32 == 0;
}

bool is_step(const compiler *f, const matmul_group &g) {
    if (!f->persistent || g.n > 3 || f->nodes[g.at[0]]->op != TN_OP_MUL_MAT || f->nodes[g.at[0]]->src[1]->ne[1] != 1)
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
activations new_activations(compiler *f, const matmul_group &g, int64_t k, int64_t columns, const tn_tensor *norm,
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
void leave_pending(compiler *f, const tn_tensor *instead_of, gemv_family family, const activations &form) {
    f->pending = instead_of;
    f->pending_family = family;
    f->pending_form = form;
}

// ---- Norms ----

bool is_plain_norm(const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *w = t->src[1];
    return t->op == TN_OP_RMS_NORM && x->type == TN_F32 && x->nb[0] == 4 && x->ne[2] == 1 && x->ne[3] == 1 &&
           x->ne[1] <= GEMV_MAX_COLUMNS && w && w->type == TN_F32 && w->nb[0] == 4 && tn_nrows(w) == 1 &&
           w->ne[0] == x->ne[0];
}
// Whether a group of matrix multiplications does not write to x.
static bool survives_group(const compiler *f, const tn_tensor *x, const matmul_group &g) {
    for (int k = 0; k < g.n; k++)
        if (overlap(f->nodes[g.at[k]], x)) return false;
    return true;
}

bool norm_is_fused(const compiler *f, int i) {
    matmul_group g;
    return is_plain_norm(f->nodes[i]) && feeds_group(f, i, i, &g);
}
// A norm whose division is left to the matmuls that read it.
tn_status fuse_norm(compiler *f, const compilation &c, int i, bool *matched) {
    const tn_tensor *t = f->nodes[i], *x = t->src[0];
    matmul_group g;
    *matched = is_plain_norm(t) && feeds_group(f, i, i, &g);
    if (!*matched) return TN_OK;
    fuse_node(f, i);
    if (is_step(f, g) && g.n > 1 && survives_group(f, x, g) && survives_group(f, x, rest_of_group(f, g)) &&
        (uintptr_t)x->data % 16 == 0) {
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
    TN_TRY(launch_steps(f, c));
    return gemv_prepare(c, x, (int64_t)x->nb[1], x->ne[0], (int)x->ne[1], next);
}

// ---- What follows a group ----

// Fuses the matmuls of gate and up with the gated activation, if only the next matmul reads the result.
static bool finish_with_gate(compiler *f, const matmul_group &g, gemv_job *job, int columns) {
    if (g.n != 2) return false;
    int a = g.at[0], b = g.at[1], at = next_node(f, a);
    if (at >= f->n || tn_op_get_family(f->nodes[at]->op) != TN_FAMILY_GLU) return false;
    const tn_tensor *t = f->nodes[at];
    bool experts = job->experts.ids != NULL;
    if (experts ? !tn_is_contiguous(t) || tn_nrows(t) != job->experts.pairs : !is_rows(t) || t->ne[1] != columns)
        return false;
    if (!t->src[1] || !only_read_by(f, a, 1) || !only_read_by(f, b, 1) || t->type != TN_F32 || t->ne[0] % GEMV_TILE ||
        t->ne[0] != job->m[0].rows || t->ne[0] != job->m[1].rows || job->m[0].kind != job->m[1].kind)
        return false;
    int gate = index_of_whole(f, t->src[t->params.glu.swapped ? 1 : 0]),
        up = index_of_whole(f, t->src[t->params.glu.swapped ? 0 : 1]);
    if (!((gate == a && up == b) || (gate == b && up == a))) return false;
    matmul_group next_group;
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
    fuse_node(f, at);
    return true;
}

// Fuses a matmul with the addition of a tensor of the same shape, and with the norm after that if only matmuls read
// the norm.
static bool finish_with_add(compiler *f, const matmul_group &g, gemv_job *job, int columns) {
    int a = g.at[0], at = next_node(f, a);
    if (g.n != 1 || job->experts.ids || at >= f->n || f->nodes[at]->op != TN_OP_ADD || !only_read_by(f, a, 1))
        return false;
    const tn_tensor *t = f->nodes[at], *other = index_of_whole(f, t->src[0]) == a ? t->src[1] : t->src[0];
    if ((index_of_whole(f, t->src[0]) != a) == (index_of_whole(f, t->src[1]) != a)) return false;
    if (!is_rows(t) || !is_rows(other) || !tn_same_shape(t, other) || t->ne[1] != columns ||
        t->ne[0] != job->m[0].rows)
        return false;
    // Each element is read by the thread that writes it, or the two do not overlap. Other blocks may still be reading
    // the input.
    if (overlap(t, other) && (t->data != other->data || t->nb[1] != other->nb[1])) return false;
    if (!job->in.q && overlap(t, f->nodes[a]->src[1]) && f->pending == NULL) return false;
    job->finish = GEMV_ADD;
    job->residual = (const float *)other->data;
    job->residual_row = (int64_t)other->nb[1] / 4;
    job->m[0].out = (float *)t->data;
    job->m[0].out_row = (int64_t)t->nb[1] / 4;
    fuse_node(f, at);
    int norm = next_node(f, at);
    f->pending = NULL;
    if (norm >= f->n || t->ne[0] % GEMV_TILE || !is_plain_norm(f->nodes[norm]) ||
        index_of_whole(f, f->nodes[norm]->src[0]) != at)
        return true;
    matmul_group next_group;
    if (!feeds_group(f, norm, norm, &next_group) || is_step(f, g) > is_step(f, next_group)) return true;
    activations form = new_activations(f, next_group, t->ne[0], columns, f->nodes[norm], &job->next);
    leave_pending(f, f->nodes[norm], next_group.family, form);
    fuse_node(f, norm);
    return true;
}

// ---- Launches ----

// A step takes all matrices of a group, of any types. What follows them is fused if no other step reads their input.
static tn_status add_matmul_step(compiler *f, const compilation &c, const matmul_group &g, gemv_job *job,
                                 bool alone) {
    for (job->n = 0; job->n < g.n; job->n++) job->m[job->n] = gemv_matrix_of(f->nodes[g.at[job->n]]);
    for (int k = 0; k < g.n; k++) fuse_node(f, g.at[k]);
    if (!alone || (!finish_with_gate(f, g, job, 1) && !finish_with_add(f, g, job, 1))) f->pending = NULL;
    persistent_add_matmul(f->steps, *job);
    return assign_step(f, c, "matmul");
}

static int kind_in(const compiler *f, const matmul_group &g, int k) { return kind_of(f->nodes[g.at[k]]->src[0]); }

// Fills jobs[] with the matrices of a group, a job for each type of weights; at[] is the first matrix of a job.
static int jobs_by_kind(const compiler *f, const matmul_group &g, const gemv_job &job, gemv_job *jobs, int *at) {
    int n = 0;
    for (int k = 0; k < g.n; k++) {
        bool known = false;
        for (int m = 0; m < k; m++) known = known || kind_in(f, g, m) == kind_in(f, g, k);
        if (known) continue;
        jobs[n] = job;
        jobs[n].n = 0;
        at[n] = k;
        for (int m = k; m < g.n; m++)
            if (kind_in(f, g, m) == kind_in(f, g, k)) jobs[n].m[jobs[n].n++] = gemv_matrix_of(f->nodes[g.at[m]]);
        n++;
    }
    return n;
}
// One launch per type of weights, or one for all. An activation or addition is fused only if there is one type.
static tn_status add_group(compiler *f, const compilation &c, const matmul_group &g, const gemv_job &job,
                           int columns) {
    gemv_job jobs[MAX_GROUP];
    int at[MAX_GROUP];
    const int n = jobs_by_kind(f, g, job, jobs, at);
    for (int k = 0; k < g.n; k++) f->info[g.at[k]].done = true;
    if (gemv_can_mix(*f->device, jobs, n, columns)) {
        f->pending = NULL;
        for (int k = 0; k < g.n; k++) fuse_node(f, g.at[k]);
        TN_TRY(gemv_compile_mixed(c, jobs, n));
        return assign_nodes(f, c);
    }
    for (int i = 0; i < n; i++) {
        for (int m = at[i]; m < g.n; m++)
            if (kind_in(f, g, m) == kind_in(f, g, at[i])) fuse_node(f, g.at[m]);
        if (i == 0 &&
            !(n == 1 && (finish_with_gate(f, g, &jobs[0], columns) || finish_with_add(f, g, &jobs[0], columns))))
            f->pending = NULL;
        TN_TRY(gemv_compile(c, jobs[i], columns));
        TN_TRY(assign_nodes(f, c));
    }
    return TN_OK;
}

tn_status fuse_matmuls(compiler *f, const compilation &c, int i, bool *matched) {
    matmul_group g = group_at(f, i);
    const tn_tensor *first = f->nodes[i], *in = g.n ? first->src[1] : NULL;
    *matched = g.n && ((uintptr_t)in->data % 16 == 0 || f->pending == without_views(in));
    if (!*matched) return TN_OK;
    int columns = gemv_columns(first);
    gemv_job job = {};
    job.k = (int)in->ne[0];
    job.experts = gemv_experts_of(first);
    bool step = is_step(f, g);
    if (!step) TN_TRY(launch_steps(f, c));
    if (f->pending && f->pending == without_views(in) && f->pending_family == g.family) {
        job.in = f->pending_form;
    } else if (g.family == GEMV_INT8 && !step) {
        gemv_next next = {};
        compilation convert = c;
        convert.converts = in;
        f->pending = NULL;
        job.in = new_activations(f, g, job.k, columns, NULL, &next);
        TN_TRY(gemv_prepare(convert, in, gemv_column_bytes(first), job.k, columns, next));
        for (int k = 0; k < g.n; k++) fuse_node(f, g.at[k]);
        TN_TRY(assign_nodes(f, c));
    } else {
        f->pending = NULL;
        job.in.y = (const float *)in->data;
        job.in.stride = gemv_column_bytes(first) / 4;
    }
    bool summed = false;
    if (g.n == 1 && job.experts.ids) TN_TRY(fuse_expert_sum(f, c, i, &job, &summed));
    if (summed) return TN_OK;
    if (!step) return add_group(f, c, g, job, columns);
    const matmul_group rest = rest_of_group(f, g);
    gemv_job other = job;
    TN_TRY(add_matmul_step(f, c, g, &job, !rest.n));
    return rest.n ? add_matmul_step(f, c, rest, &other, false) : TN_OK;
}

// ---- More columns ----

static bool is_tile_matmul(const compiler *f, const tn_tensor *t) {
    return t->op == TN_OP_MUL_MAT && tiles_support(*f->device, t) && t->ne[2] == 1 && t->ne[3] == 1 &&
           t->src[0]->ne[2] == 1 && t->src[0]->ne[3] == 1;
}
// The addition of a tensor of the same shape to matmul `a`, if it comes next and nothing else reads the matmul.
static bool add_after(compiler *f, int a, tile_matrix *m) {
    const int at = next_node(f, a);
    if (at >= f->n || f->nodes[at]->op != TN_OP_ADD || !only_read_by(f, a, 1)) return false;
    const tn_tensor *t = f->nodes[at], *other = index_of_whole(f, t->src[0]) == a ? t->src[1] : t->src[0];
    if ((index_of_whole(f, t->src[0]) != a) == (index_of_whole(f, t->src[1]) != a)) return false;
    if (!is_rows(t) || !is_rows(other) || !tn_same_shape(t, other) || !tn_same_shape(t, f->nodes[a])) return false;
    // Each element is read by the thread that writes it, or the two do not overlap.
    if (overlap(t, other) && (t->data != other->data || t->nb[1] != other->nb[1])) return false;
    m->residual = (const float *)other->data;
    m->residual_row = (int64_t)other->nb[1] / 4;
    m->out = (float *)t->data;
    m->out_row = (int64_t)t->nb[1] / 4;
    fuse_node(f, at);
    return true;
}
static narrow_request narrow_request_of(const compiler *f, const compilation &c, int i);
// The gate of two matmuls with few columns, if it comes next and nothing else reads them. Its result goes to the
// activation buffer as well if the next matmul reads it there.
static bool finish_with_few_gate(compiler *f, const compilation &c, const int *at, few_job *j) {
    const int gate_at = next_node(f, at[0]);
    if (j->n != 2 || gate_at >= f->n || tn_op_get_family(f->nodes[gate_at]->op) != TN_FAMILY_GLU) return false;
    const tn_tensor *t = f->nodes[gate_at];
    if (!t->src[1] || !is_rows(t) || t->ne[1] != j->columns || t->ne[0] != j->m[0].rows || t->ne[0] != j->m[1].rows ||
        !only_read_by(f, at[0], 1) || !only_read_by(f, at[1], 1) || !few_takes_gate(t->ne[0], j->k))
        return false;
    const int gate = index_of_whole(f, t->src[t->params.glu.swapped ? 1 : 0]),
              up = index_of_whole(f, t->src[t->params.glu.swapped ? 0 : 1]);
    if (!((gate == at[0] && up == at[1]) || (gate == at[1] && up == at[0]))) return false;
    if (gate == at[1]) {
        std::swap(j->m[0], j->m[1]);
        std::swap(j->kinds[0], j->kinds[1]);
    }
    j->gated = true;
    j->gate_op = t->op;
    j->gate_params = t->params;
    j->z = (float *)t->data;
    j->z_row = (int64_t)t->nb[1] / 4;
    fuse_node(f, gate_at);
    narrow_request request = narrow_request_of(f, c, gate_at);
    if (request.order != FEW_ORDER || t->ne[0] % 64 != 0) return true;
    compilation asked = c;
    asked.narrow = &request;
    request.to = f->activation_buffers;
    j->next = narrow_rows_of(asked, t->ne[0]);
    return true;
}
// Matmuls with few columns: of any kinds that their kernel takes, with the gate or the addition after them.
static tn_status fuse_few_matmuls(compiler *f, const compilation &c, int i) {
    const tn_tensor *first = f->nodes[i];
    int at[TILE_MAX_MATRICES] = {i};
    few_job j = {};
    char *columns;
    j.k = (int)first->src[0]->ne[0];
    j.columns = (int)first->src[1]->ne[1];
    j.y_row = tile_column_bytes(j.k);
    for (int k = i; k < f->n && k < i + GROUP_WINDOW && j.n < TILE_MAX_MATRICES; k++) {
        const tn_tensor *t = f->nodes[k];
        if (f->info[k].done || !is_tile_matmul(f, t) || !few_takes(t) || !same_columns(t, first) ||
            (k > i && !can_run_at(f, k, i)))
            continue;
        fuse_node(f, k);
        at[j.n] = k;
        j.kinds[j.n] = kind_of(t->src[0]);
        j.m[j.n++] = tile_matrix_of(t);
    }
    TN_TRY(compile_tile_columns(c, first, (const char *)first->src[1]->data, FEW_ORDER, &columns));
    j.y = columns;
    const bool is_gated = finish_with_few_gate(f, c, at, &j);
    if (j.n == 1) add_after(f, i, &j.m[0]);
    TN_TRY(compile_few(c, &j));
    if (!is_gated) return TN_OK;
    *c.converted = {};
    if (j.next.to) {
        const tn_tensor *y = f->nodes[next_node(f, at[0])]->src[1];
        *c.converted = {y->data, j.next.bf16 ? TN_BF16 : TN_F16, y};
        c.converted->order = FEW_ORDER;
        c.converted->at = j.next.to;
    }
    return TN_OK;
}
tn_status fuse_tile_matmuls(compiler *f, const compilation &c, int i, bool *matched) {
    const tn_tensor *first = f->nodes[i];
    *matched = is_tile_matmul(f, first);
    if (!*matched) return TN_OK;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    if (few_takes(first)) return fuse_few_matmuls(f, c, i);
    tile_matrix all[TILE_MAX_MATRICES] = {tile_matrix_of(first)};
    int n = 1;
    fuse_node(f, i);
    for (int k = i + 1; k < f->n && k < i + GROUP_WINDOW && n < TILE_MAX_MATRICES; k++) {
        const tn_tensor *t = f->nodes[k];
        if (f->info[k].done || !is_tile_matmul(f, t) || !same_columns(t, first) || !tiles_can_share(t, first) ||
            !can_run_at(f, k, i))
            continue;
        fuse_node(f, k);
        all[n++] = tile_matrix_of(t);
    }
    if (n == 1) add_after(f, i, &all[0]);
    return compile_tile_group(c, first, (const char *)first->src[1]->data, all, n);
}
// A matmul of cuBLASLt with the addition after it.
tn_status fuse_blas_add(compiler *f, const compilation &c, int i, bool *matched) {
    const tn_tensor *t = f->nodes[i];
    tile_matrix m = {};
    *matched = t->op == TN_OP_MUL_MAT && blas_takes(*f->device, t) && add_after(f, i, &m);
    if (!*matched) return TN_OK;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    fuse_node(f, i);
    return compile_blas_add(c, t, m.residual, m.residual_row, m.out, m.out_row);
}

// ---- Activations as halves ----

static narrow_request narrow_request_of(const compiler *f, const compilation &c, int i) {
    const tn_tensor *t = f->nodes[i];
    const int at = next_node(f, i);
    const bool is_attention = t->op == TN_OP_ATTENTION;
    narrow_request r = {};
    if (at >= f->n || (is_attention ? !tn_is_contiguous(t) : !is_rows(t)) ||
        (!is_attention && t->op != TN_OP_RMS_NORM && tn_op_get_family(t->op) != TN_FAMILY_GLU))
        return r;
    const tn_tensor *reader = f->nodes[at], *y = reader->src[1];
    const int64_t row = is_attention ? t->ne[0] * t->ne[1] : t->ne[0], rows = is_attention ? t->ne[2] : t->ne[1];
    if (reader->op != TN_OP_MUL_MAT || index_of_whole(f, y) != i || y->ne[0] != row || y->ne[1] != rows ||
        (int64_t)y->nb[1] != (is_attention ? 4 * row : (int64_t)t->nb[1]))
        return r;
    if (is_attention) {
        // Attention reads scratch while it stores.
        if (is_tile_matmul(f, reader) && few_takes(reader)) r = {f->activation_buffers, TN_F16, FEW_ORDER, false};
    } else if (is_tile_matmul(f, reader)) {
        r = {c.scratch, reader->src[0]->type == TN_BF16 ? TN_BF16 : TN_F16,
             few_takes(reader) ? FEW_ORDER : TILE_ORDER, false};
    } else if (blas_takes(*f->device, reader)) {
        r.to = blas_activations(c, reader, &r.type);
    }
    return r;
}
bool is_narrowed(const compiler *f, const compilation &c, int i) {
    const narrow_request r = narrow_request_of(f, c, i);
    return r.to || r.order != ROW_ORDER;
}
tn_status compile_narrowed(compiler *f, const compilation &c, int i) {
    narrow_request request = narrow_request_of(f, c, i);
    compilation asked = c;
    asked.narrow = &request;
    fuse_node(f, i);
    TN_TRY(node_compile(asked, f->nodes[i]));
    if (!request.done) return TN_OK;
    const tn_tensor *y = f->nodes[next_node(f, i)]->src[1];
    *c.converted = {y->data, request.type, y};
    c.converted->order = request.order;
    c.converted->at = (char *)request.to;
    return TN_OK;
}

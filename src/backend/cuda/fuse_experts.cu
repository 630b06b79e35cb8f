// Fusing the MoE router, the sum of the experts' results, and the argmax of the logits.
#include "backend/cuda/compiler.cuh"
#include "backend/cuda/kernels/experts/experts.cuh"

// A row's sum, which shows whether all of it is finite, and its argmax.
tn_status fuse_sum_argmax(compiler *f, const compilation &c, int i, bool *matched) {
    int next = next_node(f, i);
    *matched = next < f->n && sum_argmax_supports(f->nodes[i], f->nodes[next]);
    if (!*matched) return TN_OK;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    fuse_node(f, i);
    fuse_node(f, next);
    return compile_sum_argmax(c, f->nodes[i], f->nodes[next]);
}

// Soft-max and the choice of the largest.
tn_status fuse_moe_router(compiler *f, const compilation &c, int i, bool *matched) {
    const tn_tensor *probs = f->nodes[i];
    int next = next_node(f, i);
    if (next >= f->n || !moe_router_supports(probs, f->nodes[next])) return TN_OK;
    const tn_tensor *logits = probs->src[0], *ids = f->nodes[next];
    // Each token has a block of its own: a token's results must not overwrite another token's logits.
    bool in_place = probs->data == logits->data && probs->nb[1] == logits->nb[1];
    *matched = !overlap(ids, logits) && !overlap(ids, probs) && (in_place || !overlap(probs, logits));
    if (!*matched) return TN_OK;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    fuse_node(f, i);
    fuse_node(f, next);
    return compile_moe_router(c, probs, ids);
}

// Matches norm, router, soft_max, top_k from node i on.
static bool match_normed_router(const compiler *f, int i, normed_router *r) {
    const int router = next_node(f, i), probs = next_node(f, router), ids = next_node(f, probs);
    if (ids >= f->n || !is_plain_norm(f->nodes[i]) || index_of_whole(f, f->nodes[router]->src[1]) != i) return false;
    *r = {f->nodes[i], f->nodes[router], f->nodes[probs], f->nodes[ids]};
    if (r->probs->src[0] != r->router || !normed_router_supports(*r)) return false;
    // Blocks of other tokens and experts still read the norm's source and the logits.
    const tn_tensor *x = r->norm->src[0], *all[] = {r->norm, r->router, r->probs, r->ids};
    for (int a = 0; a < 4; a++) {
        if (overlap(all[a], x)) return false;
        for (int b = a + 1; b < 4; b++)
            if (overlap(all[a], all[b]) && !(a == 1 && b == 2 && all[a]->data == all[b]->data)) return false;
    }
    return true;
}
bool has_normed_router(const compiler *f, int i) {
    normed_router r;
    return match_normed_router(f, i, &r);
}
// The norm before a router, the router, and the choice. The experts' matmuls find the norm's result quantized.
tn_status fuse_normed_router(compiler *f, const compilation &c, int i, bool *matched) {
    normed_router r;
    *matched = match_normed_router(f, i, &r);
    if (!*matched) return TN_OK;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    int at = i;
    for (int k = 0; k < 4; k++, at = next_node(f, at)) fuse_node(f, at);
    const matmul_group g = group_at(f, at);
    gemv_next next = {};
    if (g.n && g.family == GEMV_INT8 && index_of_whole(f, f->nodes[at]->src[1]) == i && !is_step(f, g) &&
        gemv_columns(f->nodes[at]) == r.norm->ne[1]) {
        activations form = new_activations(f, g, r.norm->ne[0], r.norm->ne[1], NULL, &next);
        leave_pending(f, r.norm, g.family, form);
    }
    return compile_normed_router(c, r, next);
}

// If the next node is of that op and reads node `at` first, moves `at` to it and returns it.
static const tn_tensor *advance_to(const compiler *f, int *at, int readers, tn_op op) {
    int next = next_node(f, *at);
    if (next >= f->n || f->nodes[next]->op != op || index_of_whole(f, f->nodes[next]->src[0]) != *at ||
        !only_read_by(f, *at, readers))
        return NULL;
    *at = next;
    return f->nodes[next];
}
// Whether t adds something to node `at`, each element by the thread that reads it.
static bool adds_to(const compiler *f, int at, const tn_tensor *t) {
    if (t->op != TN_OP_ADD || (index_of_whole(f, t->src[0]) == at) == (index_of_whole(f, t->src[1]) == at))
        return false;
    const tn_tensor *other = index_of_whole(f, t->src[0]) == at ? t->src[1] : t->src[0];
    return t->type == TN_F32 && other->type == TN_F32 && tn_same_shape(t, other) && tn_is_contiguous(t) &&
           tn_is_contiguous(other) && tn_nelements(t) == tn_nelements(f->nodes[at]) &&
           (t->data == other->data || !overlap(t, other));
}
// Matches rows, [soft_max], [sum_rows, div], [scale], mix, [add] from node i on; `end` is the last node.
static bool match_mix(const compiler *f, int i, chosen_mix *m, int *end) {
    if (f->nodes[i]->op != TN_OP_GET_ROWS) return false;
    *m = {f->nodes[i]};
    int at = i;
    if ((m->soft_max = advance_to(f, &at, 1, TN_OP_SOFT_MAX)) && !is_plain_soft_max(m->soft_max)) return false;
    int weights = at;
    if ((m->sum = advance_to(f, &at, 2, TN_OP_SUM_ROWS))) {
        at = next_node(f, at);
        m->div = at < f->n ? f->nodes[at] : NULL;
        if (!m->div || m->div->op != TN_OP_DIV || index_of_whole(f, m->div->src[0]) != weights ||
            without_views(m->div->src[1]) != m->sum || !only_read_by(f, index_of(f, m->sum), 1))
            return false;
    }
    if ((m->scale = advance_to(f, &at, 1, TN_OP_SCALE)) && m->scale->params.scale.bias != 0) return false;
    *end = next_node(f, at);
    if (*end >= f->n || f->nodes[*end]->op != TN_OP_MIX || index_of_whole(f, f->nodes[*end]->src[1]) != at ||
        index_of(f, f->nodes[*end]->src[0]) == at || !only_read_by(f, at, 1))
        return false;
    m->mix = m->out = f->nodes[*end];
    int sum = next_node(f, *end);
    if (sum < f->n && only_read_by(f, *end, 1) && adds_to(f, *end, f->nodes[sum])) {
        m->out = f->nodes[sum];
        m->residual = index_of_whole(f, m->out->src[0]) == *end ? m->out->src[1] : m->out->src[0];
        *end = sum;
    }
    // All of it is read later than planned: the result must not overwrite what is still needed.
    return mix_supports(*m) && !overlap(m->out, m->mix->src[0]) && !overlap(m->out, m->rows->src[0]) &&
           !overlap(m->out, m->rows->src[1]);
}
// The chosen experts' weights and the weighted sum of their results.
tn_status fuse_mix(compiler *f, const compilation &c, int i, bool *matched) {
    chosen_mix m;
    int end;
    *matched = match_mix(f, i, &m, &end);
    if (!*matched) return TN_OK;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    for (int k = i; k <= end; k = next_node(f, k)) fuse_node(f, k);
    return compile_chosen_mix(c, m);
}
// A matmul with experts whose results are only summed: `job` has its input. The norm after the sum is fused as well
// if only matmuls read it.
tn_status fuse_expert_sum(compiler *f, const compilation &c, int i, gemv_job *job, bool *matched) {
    chosen_mix m;
    int end;
    const tn_tensor *t = f->nodes[i];
    const bool reads_scratch = f->pending && f->pending == without_views(t->src[1]);
    job->n = 1;
    job->m[0] = gemv_matrix_of(t);
    f->info[i].done = true;
    *matched = only_read_by(f, i, 1) && match_mix(f, next_node(f, i), &m, &end) &&
               index_of_whole(f, m.mix->src[0]) == i && expert_sum_supports(*job, m) &&
               (reads_scratch || !overlap(m.out, t->src[1]));
    f->info[i].done = false;
    if (!*matched) return TN_OK;
    const int begin = next_node(f, i);
    // What was pending comes from a kernel with experts, which waits for the router before it lets this kernel start.
    const bool ids_are_old = reads_scratch && index_of(f, m.rows->src[0]) < index_of(f, m.rows->src[1]);
    fuse_node(f, i);
    for (int k = begin; k <= end; k = next_node(f, k)) fuse_node(f, k);
    job->m[0].out = (float *)m.out->data;
    job->m[0].out_row = t->ne[0];
    job->residual = m.residual ? (const float *)m.residual->data : NULL;
    job->residual_row = t->ne[0];
    f->pending = NULL;
    matmul_group next_group;
    const int norm = next_node(f, end);
    if (norm < f->n && t->ne[0] % GEMV_TILE == 0 && is_plain_norm(f->nodes[norm]) &&
        index_of_whole(f, f->nodes[norm]->src[0]) == end && feeds_group(f, norm, norm, &next_group) &&
        !is_step(f, next_group)) {
        activations form = new_activations(f, next_group, t->ne[0], t->ne[2], f->nodes[norm], &job->next);
        leave_pending(f, f->nodes[norm], next_group.family, form);
        fuse_node(f, norm);
    }
    TN_TRY(compile_expert_sum(c, *job, m, ids_are_old));
    return assign_nodes(f, c);
}

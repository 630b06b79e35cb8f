// Fusing the MoE router, the sum of the experts' results, and the argmax of the logits.
#include "backend/cuda/compiler.cuh"

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

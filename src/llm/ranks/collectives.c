/* Collectives as nodes of graphs. They are custom ops of the CPU: devices with their own memory exchange data
 * through the host, and no op is moved past them, so that all ranks call them in the same order. The transport stores
 * a failure, which the session checks after each run. */
#include "llm/build/builder.h"

#include <string.h>

static void run_all_reduce(const tn_custom_job *job) {
    const tn__division *d = job->user;
    const tn_tensor *x = job->result->src[0];
    if (job->ith == 0)
        (void)!tn_net_all_reduce(d->stage_net, x->data, job->result->data, (size_t)tn_nelements(job->result));
}

tn_tensor *tn__sum_ranks(const tn__builder *b, bool divided, tn_tensor *x, const char *what) {
    if (!divided || !x) return x;
    if (x->name[0] == '\0') tn__name_node(b, x, what);
    const tn_tensor *sum = x;
    tn_tensor *y =
        tn_custom(b->a, TN_F32, TN_MAX_DIMS, sum->ne, &x, 1, run_all_reduce, (void *)(uintptr_t)&b->m->division, 1);
    return y ? tn_name(b->a, y, "%s_reduced%s", what, b->suffix) : NULL;
}

tn_tensor *tn__sum_result(const tn__builder *b, tn__part_result result, const char *what) {
    return tn__sum_ranks(b, result.partial, result.y, what);
}

tn__part_result tn__add_results(const tn__builder *b, tn__part_result one, tn__part_result other, const char *what) {
    if (one.partial != other.partial) {
        one = (tn__part_result){tn__sum_result(b, one, what), false};
        other = (tn__part_result){tn__sum_result(b, other, what), false};
    }
    return (tn__part_result){tn_add(b->a, one.y, other.y), one.partial};
}

/* Rows of logits, one after the other: every rank has a slice of each. */
static void run_all_gather(const tn_custom_job *job) {
    const tn__division *d = job->user;
    const tn_tensor *x = job->result->src[0];
    for (int64_t i = 0; i < x->ne[1] && job->ith == 0; i++)
        (void)!tn_net_all_gather(d->stage_net, (const char *)x->data + (size_t)i * x->nb[1], d->row_bytes,
                                 (char *)job->result->data + (size_t)i * job->result->nb[1]);
}

tn_tensor *tn__gather_vocabulary(const tn__builder *b, tn_tensor *x) {
    if (!b->m->division.vocabulary || !x) return x;
    tn_name(b->a, x, "logits_part");
    const int64_t ne[] = {b->h->n_vocab, x->ne[1]};
    return tn_custom(b->a, TN_F32, 2, ne, &x, 1, run_all_gather, (void *)(uintptr_t)&b->m->division, 1);
}

tn_tensor *tn__vocabulary_slice(const tn__builder *b, tn_tensor *head) {
    const tn__division *d = &b->m->division;
    if (!d->vocabulary || !head || head->ne[1] != b->h->n_vocab) return head;
    return tn_view(b->a, head, 2, (const int64_t[]){head->ne[0], d->end_row - d->first_row},
                   (const size_t[]){head->nb[0], head->nb[1]}, (size_t)d->first_row * head->nb[1]);
}

const tn__layer_division *tn__division_of(const tn__builder *b, int32_t il) {
    static const tn__layer_division whole = {.mixer = false};
    return b->m->division.layers ? &b->m->division.layers[il] : &whole;
}

tn_tensor *tn__own_experts(const tn__builder *b, int32_t il, tn_tensor *ids) {
    const tn__layer_division *d = tn__division_of(b, il);
    if (!d->experts || !d->first_expert || !ids) return ids;
    tn_tensor *moved = tn_scale(b->a, tn_cast(b->a, ids, TN_F32), 1, (float)-d->first_expert);
    return tn__name_node(b, tn_cast(b->a, moved, TN_I32), "experts_own");
}

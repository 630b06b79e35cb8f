/* Ranks with whole layers, one after the other: hidden states pass from rank to rank, and logits return to rank
 * 0. Several micro-batches of a prompt are in flight, one on every rank. The ranks of a machine may form a stage and
 * divide its layers by rows: each of them has the whole state, and passes it to its counterpart of the next stage. */
#include "llm/build/builder.h"

#include "base/checked.h"
#include "llm/session_internal.h"

#include <math.h>

/* Impossible for layers that need more than the hidden state of an earlier layer. */
static tn_status check_layers(const tn_model *m) {
    const tn__hparams *h = &m->h;
    bool alone = !m->arch->begin && !m->arch->end && !m->arch->layers_add_embedding && h->causal &&
                 !h->residual_block && !h->n_embd_layer && h->n_stored_layers == h->n_layer;
    for (int32_t i = 0; i < h->n_layer; i++)
        alone = alone && !h->layers[i].cells_of && h->layers[i].indexer != TN__INDEXER_EARLIER;
    if (!alone)
        return tn_fail(
            TN_E_UNSUPPORTED,
            "layers of %s depend on more than the previous hidden state, so ranks cannot have whole layers: divide "
            "it by rows (--nodes-split row)",
            m->arch->info.name);
    const tn__division *d = &m->division;
    if (h->n_layer < d->n_stages)
        return tn_fail(TN_E_UNSUPPORTED, "cannot divide %d layers among %d %s", h->n_layer, d->n_stages,
                       d->stage_size > 1 ? "machines" : "ranks");
    return TN_OK;
}

static bool is_head(const tn_model *m, const tn__weight *w) {
    return w->layer >= m->h.n_layer || w->tensor == m->w.out_norm || w->tensor == m->w.out_norm_b ||
           (!m->w.output && w->tensor == m->w.tok_embd);
}

/* Contiguous layers with bytes by their shares. What is before and after the layers does not count: the embedding
 * of the first rank and the output matrix of the last are about equally large, and a prompt's micro-batches use
 * neither. */
static tn_status cut_layers(tn_model *m) {
    tn__division *d = &m->division;
    const int32_t n = m->h.n_layer;
    double *bytes = tn_calloc((size_t)n + 1, sizeof *bytes), all = 0, done = 0; /* one more is received to check */
    if (!bytes) return TN_E_NOMEM;
    for (size_t i = 0; i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (!w->ignored && w->layer >= 0 && w->layer < n) bytes[w->layer] += (double)w->size;
    }
    for (int32_t i = 0; i < n; i++) all += bytes[i];
    int32_t begin = 0;
    for (int s = 0; s < d->n_stages; s++) {
        int32_t end = begin;
        do done += bytes[end++];
        while (end < n - (d->n_stages - 1 - s) && done + bytes[end] / 2 < all * tn__share_before_stage(d, s + 1));
        if (s == d->n_stages - 1) end = n;
        if (s == d->stage) {
            d->first_layer = begin;
            d->end_layer = end;
        }
        begin = end;
    }
    tn_free(bytes);
    return TN_OK;
}

tn_status tn__divide_layers(tn_model *m) {
    const tn__division *d = &m->division;
    TN_TRY(check_layers(m));
    TN_TRY(cut_layers(m));
    for (size_t i = 0; i < m->n_all; i++) {
        tn__weight *w = &m->all[i];
        if (w->ignored) continue;
        const bool factors =
            w->tensor == m->w.rope_freqs || w->tensor == m->w.rope_long || w->tensor == m->w.rope_short;
        bool held = factors || (w->layer >= 0 && w->layer < m->h.n_layer && tn__holds_layer(d, w->layer));
        held = held || (w->layer < 0 && tn__holds_start(d)) || (is_head(m, w) && tn__holds_end(d));
        w->ignored = !held;
    }
    return TN_OK;
}

/* ---- Micro-batches ---- */

/* A micro-batch of c tokens takes a stage a + b·c seconds: a to read its weights and to begin, b to multiply a token.
 * N tokens take S stages (N/c + S - 1) · (a + b·c), which is least for c² = N · a / b / (S - 1). a / b is about ten
 * tokens on a CPU (measured: 64 tokens at once run at 0.88 of the rate of 512) and, by the peaks of memory and matrix
 * units, 64 on a GPU. The result does not depend on peaks that were measured: a prompt gives the same bits each time.
 * Repeatable sessions cut all prompts alike. */
int32_t tn_session_plan_micro_batch(const tn_session_plan *p, int32_t n_tokens) {
    enum { CPU_BEGIN = 10, GPU_BEGIN = 64, STEP = 32 };
    if (!p) return 0;
    const int n_stages = p->model->division.n_stages;
    const int32_t most = p->params.n_ubatch;
    if (n_stages < 2 || p->params.repeatable) return most;
    int begin = CPU_BEGIN;
    for (size_t d = 0; d < p->placement.n_devices; d++)
        if (p->devices[d].n_layers && tn_device_get_kind(p->devices[d].device) != TN_DEVICE_CPU) begin = GPU_BEGIN;
    const int32_t best = (int32_t)sqrt((double)TN__MAX(n_tokens, 0) * begin / (n_stages - 1)) / STEP * STEP;
    return TN__MIN(TN__MAX(best, STEP), most);
}

/* ---- Nodes ---- */

static void run_send(const tn_custom_job *job) {
    const tn__division *d = job->user;
    const tn_tensor *x = job->result->src[0];
    if (job->ith == 0)
        (void)!tn_net_send_floats(d->net, (d->rank + d->stage_size) % d->n_ranks, x->data, (size_t)tn_nelements(x));
}
static void run_receive(const tn_custom_job *job) {
    const tn__division *d = job->user;
    if (job->ith == 0)
        (void)!tn_net_receive_floats(d->net, (d->rank + d->n_ranks - d->stage_size) % d->n_ranks, job->result->data,
                                     (size_t)tn_nelements(job->result));
}

tn_tensor *tn__receive_state(const tn__builder *b, tn_tensor *after, int64_t width, int64_t rows, const char *what) {
    const int64_t ne[] = {width, rows};
    tn_tensor *y =
        tn_custom(b->a, TN_F32, 2, ne, &after, after ? 1 : 0, run_receive, (void *)(uintptr_t)&b->m->division, 1);
    return tn_name(b->a, y, "%s", what);
}

/* The result is meaningless; it exists because a graph runs only nodes that its results depend on. */
tn_tensor *tn__send_state(const tn__builder *b, tn_tensor *x, const char *what) {
    const int64_t ne[] = {1};
    return tn_name(b->a, tn_custom(b->a, TN_F32, 1, ne, &x, 1, run_send, (void *)(uintptr_t)&b->m->division, 1), "%s",
                   what);
}

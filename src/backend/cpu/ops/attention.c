/* Attention: converts the op's tensors to kernel jobs, one per batch entry. */
#include "backend/cpu/ops/ops.h"

/* Also used for planning, before memory is bound. */
static tn__attention_job attention_job_for(const tn_tensor *node, int64_t batch) {
    const tn_tensor *q = node->src[TN_ATTN_Q], *k = node->src[TN_ATTN_K], *v = node->src[TN_ATTN_V];
    const tn_tensor *q_pos = node->src[TN_ATTN_Q_POS], *pages = node->src[TN_ATTN_PAGES];
    const tn_tensor *mask = node->src[TN_ATTN_MASK], *sinks = node->src[TN_ATTN_SINKS];
    const tn_tensor *selected = node->src[TN_ATTN_SELECTED], *biases = node->src[TN_ATTN_BIAS_TABLE];
    tn__attention_job job = {
        .head_k = k->ne[0],
        .head_v = v->ne[0],
        .heads = q->ne[1],
        .kv_heads = k->ne[1],
        .tokens = q->ne[2],
        .cells = k->ne[2],
        .k_type = k->type,
        .v_type = v->type,
        .q = q->data ? tn__at(q, 0, 0, batch) : NULL,
        .k = k->data ? tn__at(k, 0, 0, batch) : NULL,
        .v = v->data ? tn__at(v, 0, 0, batch) : NULL,
        .q_head = q->nb[1],
        .q_token = q->nb[2],
        .k_head = k->nb[1],
        .k_cell = k->nb[2],
        .v_head = v->nb[1],
        .v_cell = v->nb[2],
        .out = node->data ? (float *)(void *)tn__at(node, 0, 0, batch) : NULL,
        .out_head = node->nb[1],
        .out_token = node->nb[2],
        .params = node->params.attention,
        .repeatable = (node->flags & TN_FLAG_REPEATABLE) != 0,
    };
    if (pages) {
        job.paged = true;
        job.q_pos = q_pos->data;
        job.pages = pages->data;
        job.runs = pages->ne[1] - 1;
        job.sequences = pages->ne[2];
    }
    if (mask) {
        job.mask = mask->data ? tn__at(mask, 0, 0, batch % mask->ne[3]) : NULL;
        job.mask_f16 = mask->type == TN_F16;
        job.mask_token = mask->nb[1];
        job.mask_head = mask->ne[2] > 1 ? mask->nb[2] : 0;
    }
    if (sinks) job.sinks = sinks->data;
    if (selected) {
        job.selects = true;
        job.selected = selected->data;
        job.n_selected = selected->ne[0];
    }
    if (biases) {
        job.biased = true;
        job.biases = biases->data;
        job.buckets = tn__bias_buckets_of(node);
    }
    return job;
}

bool tn__supports_attention(const tn_tensor *node, char *reason, size_t size) {
    const tn_tensor *mask = node->src[TN_ATTN_MASK];
    if (mask && mask->ne[2] != 1 && mask->ne[2] != node->src[TN_ATTN_Q]->ne[1])
        return tn__refuse(reason, size, "attention: the mask must have 1 head or all, not %lld of %lld",
                          (long long)mask->ne[2], (long long)node->src[TN_ATTN_Q]->ne[1]);
    return true;
}

static size_t job_scratch(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const tn__attention_job job = attention_job_for(node, 0);
    return tn__scratch_size(kernels->attention_scratch(&job, n_threads));
}
size_t tn__scratch_attention(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return job_scratch(node, kernels, n_threads) * (size_t)node->ne[3];
}
int tn__phases_attention(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const tn__attention_job job = attention_job_for(node, 0);
    return kernels->attention_splits(&job) > 1 ? 2 : 1;
}

/* Two multiplications per cell; the number of visible cells is known only at run time. */
double tn__cost_attention(const tn_tensor *node) {
    const tn_tensor *pages = node->src[TN_ATTN_PAGES];
    double cells = (double)node->src[TN_ATTN_K]->ne[2];
    const tn_tensor *selected = node->src[TN_ATTN_SELECTED];
    if (pages) cells = TN__MIN(cells, (double)(pages->ne[1] - 1) * (double)node->params.attention.page);
    if (selected)
        cells = TN__MIN(cells, (double)selected->ne[0] * (double)TN__MAX(1, node->params.attention.select_block));
    return (double)tn_nrows(node) * cells * (double)node->ne[0] * 0.1;
}

void tn__run_attention(const tn__task *task) {
    const size_t bytes = job_scratch(task->node, task->kernels, task->nth);
    for (int64_t batch = 0; batch < task->node->ne[3]; batch++) {
        tn__attention_job job = attention_job_for(task->node, batch);
        job.scratch = task->scratch + (size_t)batch * bytes;
        if (task->phase == 0)
            task->kernels->attention(&job, task->ith, task->nth);
        else
            task->kernels->attention_combine(&job, task->ith, task->nth);
    }
}

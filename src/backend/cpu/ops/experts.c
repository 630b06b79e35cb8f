/* mul_mat with expert ids: rows are grouped by expert, so that each expert's weights are read once.
 *
 * The pairs (token, expert slot) are sorted by expert. Their activations are prepared in that order, so that an
 * expert's rows are adjacent. Results are scattered back to their pairs. */
#include "backend/cpu/ops/matmul.h"

typedef struct expert_plan {
    tn__act_form form;
    bool repacked, alone;
    int64_t m, k, pairs, experts;
    int64_t align;                     /* an expert's rows start at a multiple of this */
    int64_t rows;                      /* an upper bound, including padding rows */
    size_t order, row_bytes, prepared; /* bytes of scratch, per thread if `alone` */
    size_t own;                        /* bytes of scratch per thread */
} expert_plan;

/* Arrays in scratch. Per expert: its first row and its end. Per row: its pair, and the offset of its source row in y
 * in floats (-1 for a padding row). */
typedef struct expert_groups {
    int32_t *start, *end, *pair, *row;
    unsigned char *prepared;
} expert_groups;

static expert_plan expert_plan_of(const tn_tensor *node, const tn__cpu_kernels *kernels) {
    const tn_tensor *x = node->src[0], *ids = node->src[2];
    expert_plan p = {.m = x->ne[1],
                     .k = x->ne[0],
                     .pairs = tn_nelements(ids),
                     .experts = x->ne[2],
                     .repacked = tn__is_repacked(x)};
    p.form = kernels->matmul_form(x->type, p.repacked, p.m, p.pairs, p.k, tn__matmul_how(node));
    p.alone = p.pairs * p.k <= TN__ALONE_VALUES;
    p.align = p.form == TN__ACT_TILES ? TN__TILE_ROWS : 1;
    p.rows = p.pairs + TN__MIN(p.pairs, p.experts) * (p.align - 1);
    p.order = 2 * tn__scratch_size((size_t)(p.experts + 1) * 4) + 2 * tn__scratch_size((size_t)p.rows * 4);
    p.row_bytes = (size_t)p.k * 4;
    p.prepared = tn__scratch_size(p.form == TN__ACT_PLAIN ? (size_t)p.rows * p.row_bytes
                                                          : kernels->act_bytes(p.form, p.rows, p.k));
    p.own = tn__scratch_size(kernels->matmul_scratch(p.form, p.pairs, p.k));
    return p;
}

static expert_groups groups_in(const expert_plan *p, const tn__task *task) {
    unsigned char *at = task->scratch + (p->alone ? (size_t)task->ith * (p->order + p->prepared) : 0);
    expert_groups g;
    g.start = (int32_t *)(void *)at;
    g.end = (int32_t *)(void *)(at + tn__scratch_size((size_t)(p->experts + 1) * 4));
    g.pair = (int32_t *)(void *)(at + 2 * tn__scratch_size((size_t)(p->experts + 1) * 4));
    g.row = (int32_t *)(void *)((unsigned char *)g.pair + tn__scratch_size((size_t)p->rows * 4));
    g.prepared = at + p->order;
    return g;
}

int tn__phases_mul_mat_id(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return expert_plan_of(node, kernels).alone ? 1 : 3;
}
size_t tn__scratch_mul_mat_id(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const expert_plan p = expert_plan_of(node, kernels);
    return (p.order + p.prepared) * (size_t)(p.alone ? n_threads : 1) + p.own * (size_t)n_threads;
}
/* Only the weights of experts in use are read. */
double tn__cost_mul_mat_id(const tn_tensor *node) {
    return (double)tn_nelements(node) * (double)node->src[0]->ne[0] * 0.05;
}

/* A counting sort; ids out of range belong to no group. start[experts] is the end of all groups. */
static void sort_pairs(const expert_plan *p, const expert_groups *g, const tn_tensor *y, const tn_tensor *ids) {
    memset(g->end, 0, (size_t)(p->experts + 1) * 4);
    for (int64_t i = 0; i < p->pairs; i++) {
        const int64_t e = tn__load_int(ids, tn__at(ids, i / ids->ne[0], 0, 0), i % ids->ne[0]);
        if (e >= 0 && e < p->experts) g->end[e]++;
    }
    g->start[0] = 0;
    for (int64_t e = 0; e < p->experts; e++) {
        const int64_t padded = (g->end[e] + p->align - 1) / p->align * p->align;
        for (int64_t i = g->end[e]; i < padded; i++) g->row[g->start[e] + i] = -1;
        g->start[e + 1] = g->start[e] + (int32_t)padded;
        g->end[e] = g->start[e];
    }
    for (int64_t i = 0; i < p->pairs; i++) {
        const int64_t token = i / ids->ne[0], used = i % ids->ne[0];
        const int64_t e = tn__load_int(ids, tn__at(ids, token, 0, 0), used);
        if (e < 0 || e >= p->experts) continue;
        const int32_t at = g->end[e]++;
        g->pair[at] = (int32_t)i;
        g->row[at] = (int32_t)(((size_t)token * y->nb[2] + (size_t)(used % y->ne[1]) * y->nb[1]) / 4);
    }
}

static void prepare_experts(const expert_plan *p, const tn__task *task, const expert_groups *g, const tn_tensor *y,
                            int ith, int nth) {
    const int64_t n = g->start[p->experts];
    if (p->form != TN__ACT_PLAIN) {
        task->kernels->act_prepare(p->form, y->data, 4, g->row, n, p->k, g->prepared, ith, nth);
        return;
    }
    for (int64_t r = ith; r < n; r += nth)
        memcpy(g->prepared + (size_t)r * p->row_bytes, (const float *)y->data + g->row[r], p->row_bytes);
}

static void clear_strangers(const expert_plan *p, tn_tensor *out, const tn_tensor *ids) {
    for (int64_t i = 0; i < p->pairs; i++) {
        const int64_t token = i / ids->ne[0], used = i % ids->ne[0];
        const int64_t e = tn__load_int(ids, tn__at(ids, token, 0, 0), used);
        if (e < 0 || e >= p->experts) memset(tn__at(out, used, token, 0), 0, (size_t)p->m * 4);
    }
}

static void multiply_experts(const expert_plan *p, const tn__task *task, const expert_groups *g) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0];
    const int chunks = tn__matmul_chunks(p->m, p->pairs / TN__MAX(1, p->experts), task->nth);
    unsigned char *own = task->scratch + (p->order + p->prepared) * (size_t)(p->alone ? task->nth : 1);
    int64_t unit = tn__take(task), passed = 0;
    for (int64_t e = 0; e < p->experts; e++) {
        if (g->start[e] == g->end[e]) continue;
        tn__matmul_job job = {
            .type = x->type,
            .repacked = p->repacked,
            .form = p->form,
            .repeatable = (out->flags & TN_FLAG_REPEATABLE) != 0,
            .m = p->m,
            .n = g->end[e] - g->start[e],
            .k = p->k,
            .w = tn__weights_at(x, p->repacked, e, 0),
            .w_stride = x->nb[1],
            .x = g->prepared,
            .x_rows = g->start[p->experts],
            .x_first = g->start[e],
            .out = out->data,
            .out_stride = out->nb[1],
            .scatter = g->pair + g->start[e],
            .scratch = own + (size_t)task->ith * p->own,
        };
        if (p->form == TN__ACT_PLAIN) {
            job.x = g->prepared + (size_t)g->start[e] * p->row_bytes;
            job.x_stride = p->row_bytes;
        }
        for (; unit < passed + chunks; unit = tn__take(task))
            task->kernels->matmul(&job, (int)(unit - passed), chunks);
        passed += chunks;
    }
}

bool tn__supports_mul_mat_id(const tn_tensor *node, char *reason, size_t size) {
    const tn_tensor *y = node->src[1];
    if (!tn__supports_mul_mat(node, reason, size)) return false;
    if (tn_nelements(node->src[2]) > INT32_MAX / TN__TILE_ROWS || node->src[0]->ne[2] >= INT32_MAX ||
        tn_nbytes(y) / 4 > INT32_MAX)
        return tn__refuse(reason, size, "mul_mat_id: more than 8 GiB of activations, or 2^27 rows");
    if (y->nb[1] % 4 || y->nb[2] % 4) return tn__refuse(reason, size, "mul_mat_id: rows of y are not aligned");
    return true;
}

void tn__run_mul_mat_id(const tn__task *task) {
    const expert_plan p = expert_plan_of(task->node, task->kernels);
    const expert_groups g = groups_in(&p, task);
    const tn_tensor *y = task->node->src[1], *ids = task->node->src[2];
    if (p.alone) {
        sort_pairs(&p, &g, y, ids);
        prepare_experts(&p, task, &g, y, 0, 1);
    }
    if (p.alone || task->phase == 2) {
        if (task->ith == 0) clear_strangers(&p, task->node, ids);
        if (p.k > 0)
            multiply_experts(&p, task, &g);
        else if (task->ith == 0)
            memset(task->node->data, 0, tn_nbytes(task->node));
    } else if (task->phase == 0) {
        if (task->ith == 0) sort_pairs(&p, &g, y, ids);
    } else {
        prepare_experts(&p, task, &g, y, task->ith, task->nth);
    }
}

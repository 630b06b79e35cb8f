/* Matrix products: mul_mat, and outer products. The kernels multiply; here shapes become jobs.
 *
 * Activations are first brought into the form the weights want. Few rows are prepared by every thread for itself,
 * which is cheaper than a barrier; many rows are prepared together, in a phase of their own. */
#include "backend/cpu/matmul.h"

int tn__matmul_chunks(int64_t m, int64_t n, int nth) {
    const int64_t least = n > 32 ? 256 : 32; /* rows: many activations are worth passing by only for many weights */
    if (nth == 1) return 1;
    return (int)TN__MAX(TN__MAX(1, TN__MIN(m / 32, (int64_t)nth)), TN__MIN(m / least, (int64_t)nth * 4));
}

/* What a mul_mat does, from shapes alone. */
typedef struct plan {
    tn__act_form form;
    bool packed, converts, alone; /* alone: every thread prepares a copy for itself */
    int64_t m, n, k, jobs;        /* per job; x may be repeated over several */
    bool merged;                  /* all of y's rows are one job */
    size_t converted, prepared;   /* bytes of scratch: f32 rows of y; one job's prepared rows… */
    size_t own;                   /* …and what every thread needs for itself */
} plan;

/* Whether all rows of t, over all outer dimensions, lie at equal distances. */
static bool even_rows(const tn_tensor *t) {
    return (t->ne[2] == 1 || t->nb[2] == t->nb[1] * (size_t)t->ne[1]) &&
           (t->ne[3] == 1 || t->nb[3] == t->nb[1] * (size_t)(t->ne[1] * t->ne[2]));
}

static plan plan_of(const tn_tensor *node, const tn__cpu_kernels *kernels) {
    const tn_tensor *x = node->src[0], *y = node->src[1];
    plan p = {.m = x->ne[1], .n = y->ne[1], .k = x->ne[0], .packed = tn__is_packed(x)};
    p.converts = y->type != TN_F32;
    p.merged = x->ne[2] == 1 && x->ne[3] == 1 && (p.converts || even_rows(y));
    p.jobs = p.merged ? 1 : y->ne[2] * y->ne[3];
    if (p.merged) p.n = tn_nrows(y);
    p.form = kernels->matmul_form(x->type, p.packed, p.m, p.n, p.k, node->params.mul_mat.precise != 0);
    p.alone = !p.converts && p.jobs == 1 && p.form != TN__ACT_PLAIN && p.n * p.k <= TN__ALONE_VALUES;
    if (p.converts) p.converted = tn__scratch_size((size_t)tn_nelements(y) * 4);
    if (p.form != TN__ACT_PLAIN) p.prepared = tn__scratch_size(kernels->act_bytes(p.form, p.n, p.k));
    p.own = tn__scratch_size(kernels->matmul_scratch(p.form, p.n, p.k));
    return p;
}

bool tn__supports_mul_mat(const tn_tensor *node, char *reason, size_t size) {
    const tn_type type = node->src[0]->type;
    if (type == TN_Q8_1 || type == TN_Q8_K)
        return tn__refuse(reason, size, "%s: %s is a format for activations, not for weights", tn_op_name(node->op),
                          tn_type_name(type));
    return true;
}

int tn__phases_mul_mat(const tn_tensor *node, const tn__cpu_kernels *kernels) {
    const plan p = plan_of(node, kernels);
    return 1 + p.converts + (p.form != TN__ACT_PLAIN && !p.alone);
}
size_t tn__scratch_mul_mat(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const plan p = plan_of(node, kernels);
    return p.converted + p.prepared * (size_t)(p.alone ? n_threads : p.jobs) + p.own * (size_t)n_threads;
}
bool tn__shares_mul_mat(const tn_tensor *earlier, const tn_tensor *later, const tn__cpu_kernels *kernels) {
    if (earlier->op != TN_OP_MUL_MAT || earlier->src[1] != later->src[1]) return false;
    const plan a = plan_of(earlier, kernels), b = plan_of(later, kernels);
    return a.form == b.form && a.form != TN__ACT_PLAIN && a.k == b.k && a.n == b.n && a.jobs == b.jobs;
}
int64_t tn__units_mul_mat(const tn_tensor *node) { return (tn_nelements(node) + 31) / 32; }
/* Weights from memory at some 10 GB/s, or arithmetic at some 50 GFLOP/s, whichever takes longer. */
double tn__cost_mul_mat(const tn_tensor *node) {
    return TN__MAX((double)tn_nbytes(node->src[0]) * 0.1,
                   (double)tn_nelements(node) * (double)node->src[0]->ne[0] * 0.04);
}

/* f32 rows of job number `index`. */
static const float *activations(const plan *p, const tn_tensor *y, const tn__task *task, int64_t index,
                                size_t *stride) {
    if (p->converts) {
        *stride = (size_t)p->k * 4;
        return (const float *)(const void *)task->scratch + index * p->n * p->k;
    }
    *stride = y->nb[1];
    return (const float *)(const void *)(p->merged ? (char *)y->data
                                                   : tn__at(y, 0, index % y->ne[2], index / y->ne[2]));
}

static void convert(const plan *p, const tn__task *task, const tn_tensor *y) {
    float *rows = (float *)(void *)task->scratch;
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) task->kernels->to_f32[y->type](tn__row(y, r), rows + r * p->k, p->k);
}

static void prepare(const plan *p, const tn__task *task, const tn_tensor *y) {
    unsigned char *data = task->scratch + p->converted;
    size_t stride;
    if (p->alone) {
        const float *x = activations(p, y, task, 0, &stride);
        data += (size_t)task->ith * p->prepared;
        task->kernels->act_prepare(p->form, x, stride, NULL, p->n, p->k, data, 0, 1);
        return;
    }
    for (int64_t i = 0; i < p->jobs; i++) {
        const float *x = activations(p, y, task, i, &stride);
        task->kernels->act_prepare(p->form, x, stride, NULL, p->n, p->k, data + (size_t)i * p->prepared, task->ith,
                                   task->nth);
    }
}

static void multiply(const plan *p, const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1];
    const int chunks = tn__matmul_chunks(p->m, p->n, task->nth);
    unsigned char *own = task->scratch + p->converted + p->prepared * (size_t)(p->alone ? task->nth : p->jobs);
    for (int64_t unit; (unit = tn__take(task)) < p->jobs * chunks;) {
        const int64_t index = unit / chunks, i2 = p->merged ? 0 : index % y->ne[2],
                      i3 = p->merged ? 0 : index / y->ne[2];
        tn__matmul_job job = {
            .type = x->type,
            .packed = p->packed,
            .form = p->form,
            .m = p->m,
            .n = p->n,
            .k = p->k,
            .w = tn__weights_at(x, p->packed, i2 / (y->ne[2] / x->ne[2]), i3 / (y->ne[3] / x->ne[3])),
            .w_stride = x->nb[1],
            .x_rows = p->n,
            .out = (float *)(void *)(p->merged ? (char *)out->data : tn__at(out, 0, i2, i3)),
            .out_stride = out->nb[1],
            .scratch = own + (size_t)task->ith * p->own,
        };
        if (p->form == TN__ACT_PLAIN)
            job.x = activations(p, y, task, index, &job.x_stride);
        else
            job.x = task->scratch + p->converted + (size_t)(p->alone ? task->ith : index) * p->prepared;
        task->kernels->matmul(&job, (int)(unit % chunks), chunks);
    }
}

void tn__run_mul_mat(const tn__task *task) {
    const plan p = plan_of(task->node, task->kernels);
    const tn_tensor *y = task->node->src[1];
    const int last = tn__phases_mul_mat(task->node, task->kernels) - 1;
    if (task->phase == last) {
        if (p.alone && !task->shared) prepare(&p, task, y);
        if (p.k == 0) {
            if (task->ith == 0) memset(task->node->data, 0, tn_nbytes(task->node));
        } else {
            multiply(&p, task);
        }
    } else if (p.converts && task->phase == 0) {
        convert(&p, task, y);
    } else {
        prepare(&p, task, y);
    }
}

/* ---- Outer product ------------------------------------------------------------------------------------------- */

size_t tn__scratch_out_prod(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return tn__scratch_size((size_t)node->ne[0] * 4) * (size_t)n_threads;
}
double tn__cost_out_prod(const tn_tensor *node) {
    return (double)tn_nelements(node) * (double)node->src[0]->ne[1] * 0.1;
}

/* out[i,j] = Σ_k x[i,k]·y[j,k], row j growing by one multiple of x's row k at a time. */
void tn__run_out_prod(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1];
    float *row = (float *)(void *)(task->scratch + (size_t)task->ith * tn__scratch_size((size_t)out->ne[0] * 4));
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        const int64_t i2 = i.i2 / (out->ne[2] / x->ne[2]), i3 = i.i3 / (out->ne[3] / x->ne[3]);
        float *to = (float *)(void *)tn__at(out, i.i1, i.i2, i.i3);
        memset(to, 0, (size_t)out->ne[0] * 4);
        for (int64_t k = 0; k < x->ne[1]; k++) {
            const float *v = tn__load(task->kernels, x, tn__at(x, k, i2, i3), 0, out->ne[0], row);
            const float s = *(const float *)(const void *)(tn__at(y, k, i.i2, i.i3) + (size_t)i.i1 * y->nb[0]);
            task->kernels->mad(out->ne[0], s, v, to);
        }
    }
}

/* Matrix multiplication: mul_mat and out_prod. Converts shapes to kernel jobs.
 *
 * Activations are first converted to the form the kernel needs. For few rows every thread prepares its own copy,
 * which is cheaper than a barrier. More rows are prepared together in a separate phase, and the weights are divided
 * among the threads. With many rows for each of few threads, every thread prepares and multiplies its own rows, as in
 * the ops between mat-muls: moving them between cores costs more than unpacking the weights twice. */
#include "backend/cpu/ops/matmul.h"

int tn__matmul_chunks(int64_t m, int64_t n, int nth) {
    const int64_t least = n > 32 ? 256 : 32; /* weight rows: reading many activations pays only for many weights */
    if (nth == 1) return 1;
    return (int)TN__MAX(TN__MAX(1, TN__MIN(m / 32, (int64_t)nth)), TN__MIN(m / least, (int64_t)nth * 4));
}

/* How a mul_mat is computed, from shapes alone. */
typedef struct matmul_plan {
    tn__act_form form;
    bool repacked, converts;
    bool alone;                 /* every thread prepares its own copy */
    bool own_rows;              /* every thread prepares and multiplies its own rows of y */
    int64_t m, n, k, jobs;      /* per job; x may be repeated over several */
    bool merged;                /* all of y's rows are one job */
    size_t converted, prepared; /* bytes of scratch: f32 rows of y; one job's prepared rows */
    size_t own;                 /* bytes of scratch per thread */
} matmul_plan;

/* Whether all rows of t, over all outer dimensions, are equally spaced. */
static bool even_rows(const tn_tensor *t) {
    return (t->ne[2] == 1 || t->nb[2] == t->nb[1] * (size_t)t->ne[1]) &&
           (t->ne[3] == 1 || t->nb[3] == t->nb[1] * (size_t)(t->ne[1] * t->ne[2]));
}

/* Minimum rows per thread, and maximum threads, for own_rows: every thread reads all weights. */
enum { OWN_ROWS = 24, OWN_THREADS = 4 };

static matmul_plan matmul_plan_of(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const tn_tensor *x = node->src[0], *y = node->src[1];
    matmul_plan p = {.m = x->ne[1], .n = y->ne[1], .k = x->ne[0], .repacked = tn__is_repacked(x)};
    p.converts = y->type != TN_F32;
    p.merged = x->ne[2] == 1 && x->ne[3] == 1 && (p.converts || even_rows(y));
    p.jobs = p.merged ? 1 : y->ne[2] * y->ne[3];
    if (p.merged) p.n = tn_nrows(y);
    p.form = kernels->matmul_form(x->type, p.repacked, p.m, p.n, p.k, tn__matmul_how(node));
    p.own_rows = !p.converts && p.jobs == 1 && kernels->level != TN__CPU_AMX && n_threads > 1 &&
                 n_threads <= OWN_THREADS && p.n >= (int64_t)OWN_ROWS * n_threads;
    p.alone = !p.converts && p.jobs == 1 && p.form != TN__ACT_PLAIN && p.n * p.k <= TN__ALONE_VALUES && !p.own_rows;
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

int tn__phases_mul_mat(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const matmul_plan p = matmul_plan_of(node, kernels, n_threads);
    return 1 + p.converts + (p.form != TN__ACT_PLAIN && !p.alone && !p.own_rows);
}
size_t tn__scratch_mul_mat(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const matmul_plan p = matmul_plan_of(node, kernels, n_threads);
    return p.converted + p.prepared * (size_t)(p.alone ? n_threads : p.jobs) + p.own * (size_t)n_threads;
}
bool tn__shares_mul_mat(const tn_tensor *earlier, const tn_tensor *later, const tn__cpu_kernels *kernels) {
    if (earlier->op != TN_OP_MUL_MAT || earlier->src[1] != later->src[1]) return false;
    const matmul_plan a = matmul_plan_of(earlier, kernels, 1), b = matmul_plan_of(later, kernels, 1);
    return a.form == b.form && a.form != TN__ACT_PLAIN && a.k == b.k && a.n == b.n && a.jobs == b.jobs;
}
int tn__by_rows_mul_mat(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return matmul_plan_of(node, kernels, n_threads).own_rows ? 2 : TN__NOT_BY_ROWS;
}
int64_t tn__units_mul_mat(const tn_tensor *node) { return (tn_nelements(node) + 31) / 32; }
/* The longer of reading weights at 10 GB/s and computing at 50 GFLOP/s. */
double tn__cost_mul_mat(const tn_tensor *node) {
    return TN__MAX((double)tn_nbytes(node->src[0]) * 0.1,
                   (double)tn_nelements(node) * (double)node->src[0]->ne[0] * 0.04);
}

/* The f32 rows of job `index`. */
static const float *activation_rows(const matmul_plan *p, const tn_tensor *y, const tn__task *task, int64_t index,
                                    size_t *stride) {
    if (p->converts) {
        *stride = (size_t)p->k * 4;
        return (const float *)(const void *)task->scratch + index * p->n * p->k;
    }
    *stride = y->nb[1];
    return (const float *)(const void *)(p->merged ? (char *)y->data
                                                   : tn__at(y, 0, index % y->ne[2], index / y->ne[2]));
}

static void convert(const matmul_plan *p, const tn__task *task, const tn_tensor *y) {
    float *rows = (float *)(void *)task->scratch;
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) task->kernels->to_f32[y->type](tn__row(y, r), rows + r * p->k, p->k);
}

static void prepare_rows(const matmul_plan *p, const tn__task *task, const tn_tensor *y) {
    unsigned char *data = task->scratch + p->converted;
    size_t stride;
    if (p->alone) {
        const float *x = activation_rows(p, y, task, 0, &stride);
        data += (size_t)task->ith * p->prepared;
        task->kernels->act_prepare(p->form, x, stride, NULL, p->n, p->k, data, 0, 1);
        return;
    }
    for (int64_t i = 0; i < p->jobs; i++) {
        const float *x = activation_rows(p, y, task, i, &stride);
        task->kernels->act_prepare(p->form, x, stride, NULL, p->n, p->k, data + (size_t)i * p->prepared, task->ith,
                                   task->nth);
    }
}

static tn__matmul_job matmul_job_of(const matmul_plan *p, const tn__task *task, int64_t index) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1];
    const int64_t i2 = p->merged ? 0 : index % y->ne[2], i3 = p->merged ? 0 : index / y->ne[2];
    unsigned char *own = task->scratch + p->converted + p->prepared * (size_t)(p->alone ? task->nth : p->jobs);
    tn__matmul_job job = {
        .type = x->type,
        .repacked = p->repacked,
        .form = p->form,
        .repeatable = (out->flags & TN_FLAG_REPEATABLE) != 0,
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .w = tn__weights_at(x, p->repacked, i2 / (y->ne[2] / x->ne[2]), i3 / (y->ne[3] / x->ne[3])),
        .w_stride = x->nb[1],
        .x_rows = p->n,
        .out = (float *)(void *)(p->merged ? (char *)out->data : tn__at(out, 0, i2, i3)),
        .out_stride = out->nb[1],
        .scratch = own + (size_t)task->ith * p->own,
    };
    if (p->form == TN__ACT_PLAIN)
        job.x = activation_rows(p, y, task, index, &job.x_stride);
    else
        job.x = task->scratch + p->converted + (size_t)(p->alone ? task->ith : index) * p->prepared;
    return job;
}

static void multiply_rows(const matmul_plan *p, const tn__task *task) {
    const int chunks = tn__matmul_chunks(p->m, p->n, task->nth);
    for (int64_t unit; (unit = tn__take(task)) < p->jobs * chunks;) {
        const tn__matmul_job job = matmul_job_of(p, task, unit / chunks);
        task->kernels->matmul(&job, (int)(unit % chunks), chunks);
    }
}

/* All weights times this thread's rows. */
static void multiply_own(const matmul_plan *p, const tn__task *task) {
    tn__matmul_job job = matmul_job_of(p, task, 0);
    int64_t from, to;
    tn__share(p->n, 1, task->ith, task->nth, &from, &to);
    job.n = to - from;
    job.out = (float *)(void *)((char *)job.out + (size_t)from * job.out_stride);
    if (p->form == TN__ACT_PLAIN)
        job.x = (const char *)job.x + (size_t)from * job.x_stride;
    else
        job.x_first = from;
    task->kernels->matmul(&job, 0, 1);
}

void tn__run_mul_mat(const tn__task *task) {
    const matmul_plan p = matmul_plan_of(task->node, task->kernels, task->nth);
    const tn_tensor *y = task->node->src[1];
    const int last = tn__phases_mul_mat(task->node, task->kernels, task->nth) - 1;
    if (task->phase == last) {
        if ((p.alone || (p.own_rows && p.form != TN__ACT_PLAIN)) && !task->shared) prepare_rows(&p, task, y);
        if (p.k == 0) {
            if (task->ith == 0) memset(task->node->data, 0, tn_nbytes(task->node));
        } else if (p.own_rows) {
            multiply_own(&p, task);
        } else {
            multiply_rows(&p, task);
        }
    } else if (p.converts && task->phase == 0) {
        convert(&p, task, y);
    } else {
        prepare_rows(&p, task, y);
    }
}

/* ---- Outer product ---- */

size_t tn__scratch_out_prod(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return tn__scratch_size((size_t)node->ne[0] * 4) * (size_t)n_threads;
}
double tn__cost_out_prod(const tn_tensor *node) {
    return (double)tn_nelements(node) * (double)node->src[0]->ne[1] * 0.1;
}

/* out[i,j] = Σ_k x[i,k]·y[j,k]: adds a multiple of x's row k to row j for every k. */
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

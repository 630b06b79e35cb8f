/* Element-wise ops of two sources: arithmetic with broadcast, and gated activations. f32 arithmetic, one rounding. */
#include "backend/cpu/ops/activations.h"
#include "backend/cpu/ops/ops.h"

typedef void (*vector_fn)(int64_t n, const float *x, const float *y, float *z);
static vector_fn vector_of(const tn__cpu_kernels *k, tn_op op) {
    return op == TN_OP_ADD ? k->add : op == TN_OP_SUB ? k->sub : op == TN_OP_MUL ? k->mul : k->div;
}

/* n elements of y's row starting at `first`; the row repeats every y->ne[0] elements. */
static const float *load_repeated(const tn__task *task, const tn_tensor *y, const char *row, int64_t first, int64_t n,
                                  float *buffer) {
    int64_t period = y->ne[0];
    if (first % period + n <= period) return tn__load(task->kernels, y, row, first % period, n, buffer);
    if (period == 1) {
        const float value = *tn__load(task->kernels, y, row, 0, 1, buffer);
        for (int64_t i = 0; i < n; i++) buffer[i] = value;
        return buffer;
    }
    for (int64_t i = 0; i < n;) {
        int64_t at = (first + i) % period, part = TN__MIN(n - i, period - at);
        const float *values = tn__load(task->kernels, y, row, at, part, buffer + i);
        if (values != buffer + i) memcpy(buffer + i, values, (size_t)part * 4);
        i += part;
    }
    return buffer;
}

/* The row of y that corresponds to row i of the result. */
static char *repeated_row(const tn_tensor *y, tn__index i) {
    return tn__at(y, i.i1 % y->ne[1], i.i2 % y->ne[2], i.i3 % y->ne[3]);
}

int tn__by_rows_binary(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const tn_tensor *y = node->src[1];
    const bool repeats = y->ne[1] != node->ne[1] || y->ne[2] != node->ne[2] || y->ne[3] != node->ne[3];
    return repeats ? 1 : 3;
}

void tn__run_binary(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1];
    const vector_fn fn = vector_of(task->kernels, out->op);
    int64_t begin, end;
    tn__task_share(task, tn__pieces(out), &begin, &end);
    for (int64_t piece = begin; piece < end; piece++) {
        float a[TN__PIECE], b[TN__PIECE], result[TN__PIECE];
        tn__piece at = tn__piece_at(out, piece);
        tn__index i = tn__row_index(out, at.row);
        char *to = tn__at(out, i.i1, i.i2, i.i3);
        float *target = tn__target(out, to, at.first, result);
        const float *xs = tn__load(task->kernels, x, tn__at(x, i.i1, i.i2, i.i3), at.first, at.n, a);
        fn(at.n, xs, load_repeated(task, y, repeated_row(y, i), at.first, at.n, b), target);
        tn__store(task->kernels, out, to, at.first, at.n, target);
    }
}

static void gate(const tn__task *task, float *out, const float *g, const float *u, int64_t n) {
    const tn_op_params *p = &task->node->params;
    switch (task->node->op) {
    case TN_OP_REGLU:
        for (int64_t i = 0; i < n; i++) out[i] = tn__relu(g[i]) * u[i];
        break;
    case TN_OP_GEGLU: task->kernels->geglu(n, g, u, out); break;
    case TN_OP_SWIGLU: task->kernels->swiglu(n, g, u, out); break;
    case TN_OP_GEGLU_QUICK:
        for (int64_t i = 0; i < n; i++) out[i] = tn__gelu_quick(g[i]) * u[i];
        break;
    case TN_OP_GEGLU_ERF:
        for (int64_t i = 0; i < n; i++) out[i] = tn__gelu_erf(g[i]) * u[i];
        break;
    default: /* swiglu_oai */
        for (int64_t i = 0; i < n; i++) {
            const float limit = p->glu.limit;
            float gi = g[i] > limit ? limit : g[i], ui = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
            out[i] = gi / (1 + expf(-p->glu.alpha * gi)) * (ui + 1);
        }
    }
}

int tn__by_rows_glu(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) { return 3; }

void tn__run_glu(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1] ? out->src[1] : x;
    int64_t gate_at = 0, up_at = 0;
    if (!out->src[1])
        *(out->params.glu.swapped ? &gate_at : &up_at) = out->ne[0];
    else if (out->params.glu.swapped) {
        const tn_tensor *other = x;
        x = y;
        y = other;
    }
    int64_t begin, end;
    tn__task_share(task, tn__pieces(out), &begin, &end);
    for (int64_t piece = begin; piece < end; piece++) {
        float a[TN__PIECE], b[TN__PIECE], result[TN__PIECE];
        tn__piece at = tn__piece_at(out, piece);
        char *to = tn__row(out, at.row);
        float *target = tn__target(out, to, at.first, result);
        const float *g = tn__load(task->kernels, x, tn__row(x, at.row), gate_at + at.first, at.n, a);
        const float *u = tn__load(task->kernels, y, tn__row(y, at.row), up_at + at.first, at.n, b);
        gate(task, target, g, u, at.n);
        tn__store(task->kernels, out, to, at.first, at.n, target);
    }
}

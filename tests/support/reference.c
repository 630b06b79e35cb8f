/* The reference implementation of every op: f64, one element at a time, written from the definitions. */
#include "reference_array.h"

double *reference_values(const tn_tensor *t) {
    int64_t block = tn_type_block(t->type), n = tn_nelements(t);
    double *values = malloc(((size_t)n + 1) * sizeof *values);
    float *unpacked = malloc((size_t)block * sizeof *unpacked);
    for (int64_t e = 0; e < n; e += block) {
        int64_t i0 = e % t->ne[0], r = e / t->ne[0], i1 = r % t->ne[1], i2 = r / t->ne[1] % t->ne[2];
        int64_t i3 = r / t->ne[1] / t->ne[2];
        const char *at = (const char *)t->data + (size_t)(i0 / block) * t->nb[0] + (size_t)i1 * t->nb[1] +
                         (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
        if (t->type == TN_F64) {
            memcpy(values + e, at, 8);
        } else if (t->type == TN_I32) {
            int32_t x;
            memcpy(&x, at, 4);
            values[e] = x;
        } else if (t->type == TN_I64) {
            int64_t x;
            memcpy(&x, at, 8);
            values[e] = (double)x;
        } else {
            assert_ok(tn_type_to_f32(t->type, at, unpacked, block));
            for (int64_t i = 0; i < block; i++) values[e + i] = unpacked[i];
        }
    }
    free(unpacked);
    return values;
}

/* ---- Element-wise ---- */

static double sigmoid(double v) { return 1 / (1 + exp(-v)); }
static double gelu(double v) { return 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); }

static double unary(const tn_tensor *node, double v) {
    const tn_op_params *p = &node->params;
    switch (node->op) {
    case TN_OP_SCALE: return v * p->scale.scale + p->scale.bias;
    case TN_OP_SQR: return v * v;
    case TN_OP_SQRT: return sqrt(v);
    case TN_OP_LOG: return log(v);
    case TN_OP_EXP: return exp(v);
    case TN_OP_SIN: return sin(v);
    case TN_OP_COS: return cos(v);
    case TN_OP_CLAMP: return v < p->clamp.min ? p->clamp.min : v > p->clamp.max ? p->clamp.max : v;
    case TN_OP_NEG: return -v;
    case TN_OP_ABS: return fabs(v);
    case TN_OP_SGN: return v > 0 ? 1 : v < 0 ? -1 : 0;
    case TN_OP_STEP: return v > 0;
    case TN_OP_TANH: return tanh(v);
    case TN_OP_ELU: return v > 0 ? v : expm1(v);
    case TN_OP_RELU: return v < 0 ? 0 : v;
    case TN_OP_LEAKY_RELU: return v > 0 ? v : v * p->leaky_relu.slope;
    case TN_OP_SIGMOID: return sigmoid(v);
    case TN_OP_GELU: return gelu(v);
    case TN_OP_GELU_QUICK: return v * sigmoid(1.702 * v);
    case TN_OP_GELU_ERF: return 0.5 * v * (1 + erf(v / sqrt(2)));
    case TN_OP_SILU: return v * sigmoid(v);
    case TN_OP_HARDSWISH: return v * (v < -3 ? 0 : v > 3 ? 1 : (v + 3) / 6);
    case TN_OP_HARDSIGMOID: return v < -3 ? 0 : v > 3 ? 1 : (v + 3) / 6;
    case TN_OP_SOFTPLUS: return v > 30 ? v : log1p(exp(v));
    default: return NAN;
    }
}

static double gated(const tn_tensor *node, double g, double u) {
    double limit = node->params.glu.limit;
    switch (node->op) {
    case TN_OP_REGLU: return (g < 0 ? 0 : g) * u;
    case TN_OP_GEGLU: return gelu(g) * u;
    case TN_OP_GEGLU_QUICK: return g * sigmoid(1.702 * g) * u;
    case TN_OP_GEGLU_ERF: return 0.5 * g * (1 + erf(g / sqrt(2))) * u;
    case TN_OP_SWIGLU: return g * sigmoid(g) * u;
    default:
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        return g * sigmoid(node->params.glu.alpha * g) * (u + 1);
    }
}

static double binary(tn_op op, double x, double y) {
    return op == TN_OP_ADD ? x + y : op == TN_OP_SUB ? x - y : op == TN_OP_MUL ? x * y : x / y;
}

/* ---- Rows ---- */

/* Sorting order: numbers by value, then NaN; equal values by index. */
static const double *sort_values;
static bool sort_descending;
static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    double u = sort_values[x], v = sort_values[y];
    if (isnan(u) != isnan(v)) return isnan(u) ? 1 : -1;
    if (u == v || isnan(u)) return x < y ? -1 : 1;
    return (u < v) != sort_descending ? -1 : 1;
}
static void sorted(const double *values, int64_t n, bool descending, double *order, int64_t k) {
    int *index = malloc(((size_t)n + 1) * sizeof *index);
    for (int64_t i = 0; i < n; i++) index[i] = (int)i;
    sort_values = values;
    sort_descending = descending;
    qsort(index, (size_t)n, sizeof *index, compare);
    for (int64_t i = 0; i < k; i++) order[i] = index[i];
    free(index);
}

static void norm_row(const tn_tensor *node, const double *x, double *y, double *scale, int64_t n) {
    double mean = 0, squares = 0, most = 0, eps = node->params.norm.eps;
    bool centred = node->op == TN_OP_NORM || node->op == TN_OP_GROUP_NORM;
    for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
    if (!centred) mean = 0;
    for (int64_t i = 0; i < n; i++) {
        squares += (x[i] - mean) * (x[i] - mean);
        most = fmax(most, fabs(x[i]));
    }
    double by = node->op == TN_OP_L2_NORM ? fmax(sqrt(squares), eps) : sqrt(squares / (double)n + eps);
    for (int64_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) / by;
        scale[i] = most / by;
    }
}

static double alibi(int64_t head, int64_t heads, double max_bias) {
    int64_t power = (int64_t)1 << (int64_t)floor(log2((double)heads));
    return head < power ? pow(2, -max_bias * (double)(head + 1) / (double)power)
                        : pow(2, -max_bias / 2 * (double)(2 * (head - power) + 1) / (double)power);
}

static void soft_max(const tn_tensor *node, double *out) {
    array x = load(node->src[0]), mask = load(node->src[1]), sinks = load(node->src[2]);
    double max_bias = node->params.soft_max.max_bias;
    EACH_ROW(node) {
        double *y = out + row * x.n0, most = -INFINITY, sum = 0;
        double slope = max_bias > 0 ? alibi(i2, node->ne[2], max_bias) : 1;
        for (int64_t i = 0; i < x.n0; i++) {
            y[i] = at(&x, i, i1, i2, i3) * node->params.soft_max.scale;
            if (mask.t) y[i] += slope * at(&mask, i, i1, i2 % mask.n2, i3 % mask.n3);
            if (y[i] > most || isnan(y[i])) most = y[i];
        }
        if (sinks.t && sinks.v[i2] > most) most = sinks.v[i2];
        for (int64_t i = 0; i < x.n0; i++) sum += most == -INFINITY ? 0 : exp(y[i] - most);
        if (sinks.t) sum += exp(sinks.v[i2] - most);
        for (int64_t i = 0; i < x.n0; i++) y[i] = most == -INFINITY ? 0 : exp(y[i] - most) / sum;
    }
    free(x.v);
    free(mask.v);
    free(sinks.v);
}

/* ---- Rope ---- */

static void rope(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), pos = load(node->src[1]), factors = load(node->src[2]);
    const tn_rope_params *p = &node->params.rope;
    bool vision = p->mode == TN_ROPE_VISION, multi = vision || p->mode == TN_ROPE_MULTI;
    int64_t pairs = vision ? p->dims : p->dims / 2;
    int64_t total = (int64_t)p->sections[0] + p->sections[1] + p->sections[2] + p->sections[3];
    double low = 0, high = 0, magnitude = p->attn_factor;
    if (p->ext_factor != 0) {
        double turns_fast = p->dims * log(p->n_ctx_orig / (p->beta_fast * 2 * M_PI)) / (2 * log(p->base));
        double turns_slow = p->dims * log(p->n_ctx_orig / (p->beta_slow * 2 * M_PI)) / (2 * log(p->base));
        low = fmax(0, p->exact_ramp ? turns_fast : floor(turns_fast));
        high = fmin(p->dims - 1, p->exact_ramp ? turns_slow : ceil(turns_slow));
        magnitude *= 1 + 0.1 * log(1 / p->freq_scale);
    }
    EACH_ROW(node) {
        double *y = out + row * x.n0;
        for (int64_t i = 0; i < x.n0; i++) {
            y[i] = at(&x, i, i1, i2, i3);
            scale[row * x.n0 + i] = fabs(y[i]);
        }
        for (int64_t i = 0; i < pairs; i++) {
            int64_t section = 0, exponent = i;
            if (multi && total > 0) {
                int64_t place = i % total, start = 0;
                while (section < 3 && place >= start + p->sections[section]) start += p->sections[section++];
                if (vision) exponent = place - start;
            }
            double angle = pos.v[i2 + section * node->ne[2]] * pow(p->base, -2.0 * (double)exponent / p->dims);
            if (factors.t) angle /= factors.v[i];
            double theta = angle * p->freq_scale;
            if (p->ext_factor != 0) {
                double ramp = ((double)i - low) / fmax(0.001, high - low);
                double mix = (1 - fmin(1, fmax(0, ramp))) * p->ext_factor;
                theta = theta * (1 - mix) + angle * mix;
            }
            double c = cos(theta) * magnitude, s = sin(theta) * magnitude * (p->reverse ? -1 : 1);
            int64_t a = p->mode == TN_ROPE_NORMAL ? 2 * i : i, b = p->mode == TN_ROPE_NORMAL ? a + 1 : i + pairs;
            double u = at(&x, a, i1, i2, i3), v = at(&x, b, i1, i2, i3);
            y[a] = u * c - v * s;
            y[b] = u * s + v * c;
            scale[row * x.n0 + a] = scale[row * x.n0 + b] = (fabs(u) + fabs(v)) * fabs(magnitude);
        }
    }
    free(x.v);
    free(pos.v);
    free(factors.v);
}

/* ---- Matrix multiplication and attention ---- */

static void mul_mat(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), y = load(node->src[1]);
    EACH(node) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < x.n0; k++) {
            double term = at(&x, k, i0, i2 / (node->ne[2] / x.n2), i3 / (node->ne[3] / x.n3)) * at(&y, k, i1, i2, i3);
            sum += term;
            size += fabs(term);
        }
        out[e] = sum;
        scale[e] = size;
    }
    free(x.v);
    free(y.v);
}

static void mul_mat_id(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), y = load(node->src[1]), ids = load(node->src[2]);
    EACH(node) {
        double sum = 0, size = 0;
        int64_t expert = (int64_t)at(&ids, i1, i2, 0, 0);
        for (int64_t k = 0; k < x.n0 && expert >= 0 && expert < x.n2; k++) {
            double term = at(&x, k, i0, expert, 0) * at(&y, k, i1 % y.n1, i2, 0);
            sum += term;
            size += fabs(term);
        }
        out[e] = sum;
        scale[e] = size;
    }
    free(x.v);
    free(y.v);
    free(ids.v);
}

static void out_prod(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), y = load(node->src[1]);
    EACH(node) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < x.n1; k++) {
            double term = at(&x, i0, k, i2 / (node->ne[2] / x.n2), i3 / (node->ne[3] / x.n3)) * at(&y, i1, k, i2, i3);
            sum += term;
            size += fabs(term);
        }
        out[e] = sum;
        scale[e] = size;
    }
    free(x.v);
    free(y.v);
}

/* A cell of a query's sequence; the same one may be listed more than once. */
typedef struct listed_cell {
    int64_t cell, position;
} listed_cell;
/* Lists all cells of a sequence, visible or not. */
static int64_t list_cells(const tn_tensor *node, int64_t sequence, listed_cell *list) {
    const tn_tensor *pages = node->src[TN_ATTN_PAGES];
    const int64_t cells = node->src[TN_ATTN_K]->ne[2];
    int64_t n = 0;
    for (; !pages && n < cells; n++) list[n] = (listed_cell){n, n};
    if (!pages || sequence < 0 || sequence >= pages->ne[2]) return n;
    const int32_t *row = (const int32_t *)pages->data + sequence * pages->ne[1] * 4;
    for (int64_t i = 0; i < row[0] && i + 1 < pages->ne[1]; i++) {
        const int32_t *run = row + 4 + 4 * i;
        const int64_t cell = run[0], count = run[1], first = run[2], divisor = run[3] < 1 ? 1 : run[3];
        if (count < 1 || count > node->params.attention.page || cell < 0 || cell + count > cells) continue;
        if (first < 0 || first + count - 1 > INT32_MAX) continue;
        for (int64_t o = 0; o < count; o++) list[n++] = (listed_cell){cell + o, (first + o) / divisor};
    }
    return n;
}

/* The score of a cell that a T5 model adds for its position relative to the query's. */
static double relative_bias(const tn_tensor *node, int64_t distance, int64_t head) {
    const tn_tensor *table = node->src[TN_ATTN_BIAS_TABLE];
    const tn_attention_params *p = &node->params.attention;
    const int64_t n = table->ne[1] / (p->bias_bidirectional ? 2 : 1), exact = n / 2;
    const int64_t away = p->bias_bidirectional ? llabs(distance) : distance < 0 ? -distance : 0;
    const int64_t first = p->bias_bidirectional && distance > 0 ? n : 0;
    int64_t bucket = away;
    if (away >= exact) {
        const double reach = log((double)away / (double)exact) / log((double)p->bias_distance / (double)exact);
        bucket = exact + (int64_t)(reach * (double)(n - exact) + 1e-9);
    }
    if (bucket > n - 1) bucket = n - 1;
    return ((const float *)table->data)[(first + bucket) * table->ne[0] + head];
}
static bool is_selected(const tn_tensor *node, int64_t token, int64_t position) {
    const tn_tensor *selected = node->src[TN_ATTN_SELECTED];
    const int64_t block = node->params.attention.select_block > 1 ? node->params.attention.select_block : 1;
    for (int64_t i = 0; i < selected->ne[0]; i++) {
        const int64_t first = ((const int32_t *)selected->data)[token * selected->ne[0] + i] * block;
        if (first >= 0 && position >= first && position < first + block) return true;
    }
    return false;
}

static void attention(const tn_tensor *node, double *out, double *scale) {
    array q = load(node->src[TN_ATTN_Q]), k = load(node->src[TN_ATTN_K]), v = load(node->src[TN_ATTN_V]);
    array q_pos = load(node->src[TN_ATTN_Q_POS]);
    array mask = load(node->src[TN_ATTN_MASK]), sinks = load(node->src[TN_ATTN_SINKS]);
    const tn_tensor *pages = node->src[TN_ATTN_PAGES];
    const tn_attention_params *p = &node->params.attention;
    const int64_t at_once = p->page < k.n2 ? p->page : k.n2, most_cells = pages ? (pages->ne[1] - 1) * at_once : k.n2;
    double *score = malloc(((size_t)most_cells + 1) * sizeof *score);
    listed_cell *list = malloc(((size_t)most_cells + 1) * sizeof *list);
    EACH_ROW(node) { /* i1 head, i2 token, i3 batch */
        int64_t own = k.n2 - q.n2 + i2, sequence = 0, kv = i1 / (q.n1 / k.n1);
        if (q_pos.t) {
            own = (int64_t)at(&q_pos, 0, i2, 0, 0);
            sequence = (int64_t)at(&q_pos, 1, i2, 0, 0);
        }
        const int64_t n = list_cells(node, sequence, list);
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++) {
            const int64_t c = list[j].cell, cell = list[j].position;
            score[j] = -INFINITY;
            if (p->causal && cell > own) continue;
            if (p->window && own - cell >= p->window) continue;
            if (p->window_after && cell - own >= p->window_after) continue;
            if (p->chunk && cell / p->chunk != own / p->chunk) continue;
            if (node->src[TN_ATTN_SELECTED] && !is_selected(node, i2, cell)) continue;
            double s = 0;
            for (int64_t i = 0; i < q.n0; i++) s += at(&q, i, i1, i2, i3) * at(&k, i, kv, c, i3);
            s *= p->scale;
            if (p->soft_cap > 0) s = p->soft_cap * tanh(s / p->soft_cap);
            if (p->max_bias > 0) s -= alibi(i1, q.n1, p->max_bias) * fabs((double)(own - cell));
            if (node->src[TN_ATTN_BIAS_TABLE]) s += relative_bias(node, cell - own, i1);
            if (mask.t) s += at(&mask, c, i2, i1 % mask.n2, i3 % mask.n3);
            score[j] = s;
            if (s > most || isnan(s)) most = s;
        }
        if (sinks.t && most != -INFINITY && sinks.v[i1] > most) most = sinks.v[i1];
        for (int64_t j = 0; j < n; j++) sum += score[j] == -INFINITY ? 0 : exp(score[j] - most);
        if (sinks.t) sum += exp(sinks.v[i1] - most);
        for (int64_t i = 0; i < v.n0; i++) {
            double total = 0, size = 0;
            for (int64_t j = 0; j < n && most != -INFINITY; j++) {
                if (score[j] == -INFINITY) continue;
                double weight = exp(score[j] - most) / sum, value = at(&v, i, kv, list[j].cell, i3);
                total += weight * value;
                size += fmax(weight, 1e-6) * fabs(value); /* below this the steps of f16 no longer become smaller */
            }
            out[row * v.n0 + i] = total;
            scale[row * v.n0 + i] = size;
        }
    }
    free(score);
    free(list);
    free(q.v);
    free(k.v);
    free(v.v);
    free(q_pos.v);
    free(mask.v);
    free(sinks.v);
}

/* ---- Regions and rows ---- */

static void region(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), y = load(node->src[1]);
    memcpy(out, x.v, (size_t)tn_nelements(node) * sizeof *out);
    for (int64_t i = 0; i < tn_nelements(node); i++) scale[i] = fabs(out[i]);
    EACH(node->src[1]) {
        size_t byte = node->params.region.offset + (size_t)i0 * 4 + (size_t)i1 * node->params.region.nb1 +
                      (size_t)i2 * node->params.region.nb2 + (size_t)i3 * node->params.region.nb3;
        double *to = out + byte / 4;
        *to = node->op == TN_OP_ACC ? *to + y.v[e] : y.v[e];
        scale[byte / 4] += fabs(y.v[e]);
    }
    free(x.v);
    free(y.v);
}

static void set_rows(const tn_tensor *node, double *out) {
    array x = load(node->src[0]), y = load(node->src[1]), rows = load(node->src[2]);
    memcpy(out, x.v, (size_t)tn_nelements(node) * sizeof *out);
    EACH_ROW(node->src[1]) {
        int64_t to = (int64_t)at(&rows, i1, i2 % rows.n1, i3 % rows.n2, 0);
        if (to < 0 || to >= x.n1) continue;
        for (int64_t i = 0; i < x.n0; i++) out[((i3 * x.n2 + i2) * x.n1 + to) * x.n0 + i] = at(&y, i, i1, i2, i3);
    }
    free(x.v);
    free(y.v);
    free(rows.v);
}

/* ---- Dispatch ---- */

static int64_t modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

/* Sums, sorting, mixing and the loss. */
static void reduction(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), y = load(node->src[1]);
    const tn_op_params *p = &node->params;
    double total = 0, size = 0;
    switch (node->op) {
    case TN_OP_SUM:
        for (int64_t i = 0; i < tn_nelements(node->src[0]); i++) {
            total += x.v[i];
            size += fabs(x.v[i]);
        }
        out[0] = total;
        scale[0] = size;
        break;
    case TN_OP_CROSS_ENTROPY_LOSS:
        EACH_ROW(node->src[0]) {
            double most = -INFINITY, sum = 0;
            for (int64_t i = 0; i < x.n0; i++) most = fmax(most, x.v[row * x.n0 + i]);
            for (int64_t i = 0; i < x.n0; i++) sum += exp(x.v[row * x.n0 + i] - most);
            for (int64_t i = 0; i < x.n0; i++) {
                double term = y.v[row * x.n0 + i] * (x.v[row * x.n0 + i] - most - log(sum));
                total -= term;
                size += fabs(term);
            }
        }
        out[0] = total / (double)tn_nrows(node->src[0]);
        scale[0] = size / (double)tn_nrows(node->src[0]);
        break;
    case TN_OP_SUM_ROWS:
    case TN_OP_MEAN:
        EACH(node) {
            out[e] = scale[e] = 0;
            for (int64_t i = 0; i < x.n0; i++) {
                out[e] += at(&x, i, i1, i2, i3) / (node->op == TN_OP_MEAN ? (double)x.n0 : 1);
                scale[e] += fabs(at(&x, i, i1, i2, i3)) / (node->op == TN_OP_MEAN ? (double)x.n0 : 1);
            }
        }
        break;
    case TN_OP_CUMSUM:
        EACH(node) {
            out[e] = (i0 ? out[e - 1] : 0) + x.v[e];
            scale[e] = (i0 ? scale[e - 1] : 0) + fabs(x.v[e]);
        }
        break;
    case TN_OP_ARGMAX: EACH_ROW(node->src[0]) sorted(x.v + row * x.n0, x.n0, true, out + row, 1); break;
    case TN_OP_ARGSORT:
        EACH_ROW(node) sorted(x.v + row * x.n0, x.n0, p->argsort.descending, out + row * x.n0, x.n0);
        break;
    case TN_OP_TOP_K: EACH_ROW(node) sorted(x.v + row * x.n0, x.n0, true, out + row * p->top_k.k, p->top_k.k); break;
    case TN_OP_MIX:
        EACH(node) {
            out[e] = scale[e] = 0;
            for (int64_t k = 0; k < x.n1; k++) {
                double term = at(&x, i0, k, i1, 0) * at(&y, k, i1, 0, 0);
                out[e] += term;
                scale[e] += fabs(term);
            }
        }
        break;
    default: break;
    }
    free(x.v);
    free(y.v);
}

/* Copies, moved and generated data. */
static void movement(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), y = load(node->src[1]), z = load(node->src[2]);
    const tn_op_params *p = &node->params;
    switch (node->op) {
    case TN_OP_CONCAT:
        EACH(node) {
            int64_t i[4] = {i0, i1, i2, i3}, d = p->concat.dim;
            const array *from = &x;
            if (i[d] >= node->src[0]->ne[d]) {
                i[d] -= node->src[0]->ne[d];
                from = &y;
            }
            out[e] = at(from, i[0], i[1], i[2], i[3]);
        }
        break;
    case TN_OP_REPEAT: EACH(node) out[e] = at(&x, i0 % x.n0, i1 % x.n1, i2 % x.n2, i3 % x.n3); break;
    case TN_OP_PAD:
        EACH(node) {
            int64_t i[4] = {i0 - p->pad.before[0], i1 - p->pad.before[1], i2 - p->pad.before[2],
                            i3 - p->pad.before[3]};
            bool inside = true;
            for (int d = 0; d < 4; d++) inside = inside && i[d] >= 0 && i[d] < node->src[0]->ne[d];
            out[e] = inside ? at(&x, i[0], i[1], i[2], i[3]) : 0;
        }
        break;
    case TN_OP_ROLL:
        EACH(node)
        out[e] = at(&x, modulo(i0 - p->roll.shift[0], x.n0), modulo(i1 - p->roll.shift[1], x.n1),
                    modulo(i2 - p->roll.shift[2], x.n2), modulo(i3 - p->roll.shift[3], x.n3));
        break;
    case TN_OP_ARANGE: EACH(node) out[e] = (double)p->arange.start + (double)p->arange.step * (double)i0; break;
    case TN_OP_GET_ROWS:
        EACH(node) {
            int64_t row = (int64_t)at(&y, i1, i2, i3, 0);
            out[e] = row < 0 || row >= x.n1 ? 0 : at(&x, i0, row, i2, i3);
        }
        break;
    case TN_OP_ADD_ID:
        EACH(node) {
            int64_t id = (int64_t)at(&z, i1, i2, 0, 0);
            double bias = id < 0 || id >= y.n1 ? 0 : at(&y, i0, id, 0, 0);
            out[e] = x.v[e] + bias;
            scale[e] = fabs(x.v[e]) + fabs(bias);
        }
        break;
    case TN_OP_DIAG_MASK_INF:
    case TN_OP_DIAG_MASK_ZERO:
        EACH(node)
        out[e] = i0 <= p->diag_mask.n_past + i1 ? x.v[e] : node->op == TN_OP_DIAG_MASK_INF ? -INFINITY : 0;
        break;
    case TN_OP_TIMESTEP_EMBEDDING:
        EACH(node) {
            int64_t half = p->timestep.dim / 2, j = i0 % (half ? half : 1);
            double angle = x.v[i1] * exp(-log(p->timestep.max_period) * (double)j / (double)half);
            out[e] = i0 >= 2 * half ? 0 : i0 < half ? cos(angle) : sin(angle);
            scale[e] = 1 + fabs(angle);
        }
        break;
    default: /* copies: elements in order */ memcpy(out, x.v, (size_t)tn_nelements(node) * sizeof *out);
    }
    free(x.v);
    free(y.v);
    free(z.v);
}

static void elementwise(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), y = load(node->src[1]);
    tn_op_family family = tn_op_get_family(node->op);
    EACH(node) {
        if (family == TN_FAMILY_BINARY) {
            double a = x.v[e], b = at(&y, i0 % y.n0, i1 % y.n1, i2 % y.n2, i3 % y.n3);
            out[e] = binary(node->op, a, b);
            if (node->op == TN_OP_ADD || node->op == TN_OP_SUB) scale[e] = fabs(a) + fabs(b);
        } else if (family == TN_FAMILY_GLU) {
            const array *g = &x, *u = y.t ? &y : &x;
            bool swapped = node->params.glu.swapped != 0;
            int64_t g0 = !y.t && swapped ? node->ne[0] : 0, u0 = !y.t && !swapped ? node->ne[0] : 0;
            if (y.t && swapped) {
                g = &y;
                u = &x;
            }
            double a = at(g, g0 + i0, i1, i2, i3), b = at(u, u0 + i0, i1, i2, i3);
            out[e] = gated(node, a, b);
            scale[e] = fabs(out[e]) + fabs(b) + fabs(a);
        } else {
            out[e] = unary(node, x.v[e]);
            /* The argument has a rounding error, which the function may propagate. */
            scale[e] = fabs(out[e]) + (node->op == TN_OP_SCALE ? fabs(x.v[e] * node->params.scale.scale) : 0);
            if (node->op == TN_OP_GELU || node->op == TN_OP_GELU_QUICK || node->op == TN_OP_GELU_ERF ||
                node->op == TN_OP_SILU || node->op == TN_OP_HARDSWISH || node->op == TN_OP_HARDSIGMOID ||
                node->op == TN_OP_LOG || node->op == TN_OP_SIN || node->op == TN_OP_COS)
                scale[e] += fabs(x.v[e]) + (node->op == TN_OP_HARDSIGMOID);
            if (node->op == TN_OP_EXP) scale[e] *= 1 + fabs(x.v[e]);
        }
    }
    free(x.v);
    free(y.v);
}

static void hadamard(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]);
    const int64_t block = node->params.hadamard.block;
    for (int64_t e = 0; e < tn_nelements(node); e++) {
        const int64_t first = e - e % block, i = e % block;
        double sum = 0, most = 0;
        for (int64_t j = 0; j < block; j++) {
            sum += __builtin_parityll((unsigned long long)(i & j)) ? -x.v[first + j] : x.v[first + j];
            most += fabs(x.v[first + j]);
        }
        out[e] = sum / sqrt((double)block);
        scale[e] = most / sqrt((double)block);
    }
    free(x.v);
}

static void norms(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]), w = load(node->src[1]), b = load(node->src[2]);
    if (node->op == TN_OP_GROUP_NORM) {
        int64_t groups = node->params.norm.groups, per_group = (node->ne[2] + groups - 1) / groups;
        int64_t plane = node->ne[0] * node->ne[1];
        for (int64_t i3 = 0; i3 < node->ne[3]; i3++)
            for (int64_t first = 0; first < node->ne[2]; first += per_group) {
                int64_t count = first + per_group > node->ne[2] ? node->ne[2] - first : per_group;
                int64_t from = (i3 * node->ne[2] + first) * plane;
                norm_row(node, x.v + from, out + from, scale + from, count * plane);
            }
    } else {
        EACH_ROW(node) norm_row(node, x.v + row * x.n0, out + row * x.n0, scale + row * x.n0, x.n0);
        EACH(node) {
            if (w.t) {
                double weight = at(&w, i0, i1 % w.n1, i2 % w.n2, i3 % w.n3);
                out[e] *= weight;
                scale[e] *= fabs(weight);
            }
            if (b.t) {
                double bias = at(&b, i0, i1 % b.n1, i2 % b.n2, i3 % b.n3);
                out[e] += bias;
                scale[e] += fabs(bias);
            }
        }
    }
    free(x.v);
    free(w.v);
    free(b.v);
}

void reference_run(const tn_tensor *node, double *out, double *scale_out) {
    int64_t n = tn_nelements(node);
    double *scale = malloc(((size_t)n + 1) * sizeof *scale);
    for (int64_t i = 0; i < n; i++) scale[i] = -1;
    switch (node->op) {
    case TN_OP_SOFT_MAX: soft_max(node, out); break;
    case TN_OP_ROPE: rope(node, out, scale); break;
    case TN_OP_MUL_MAT: mul_mat(node, out, scale); break;
    case TN_OP_MUL_MAT_ID: mul_mat_id(node, out, scale); break;
    case TN_OP_OUT_PROD: out_prod(node, out, scale); break;
    case TN_OP_ATTENTION: attention(node, out, scale); break;
    case TN_OP_SELECT_POSITIONS: reference_select(node, out); break;
    case TN_OP_CONV_1D:
    case TN_OP_CONV_2D: reference_conv(node, out, scale); break;
    case TN_OP_IM2COL: reference_im2col(node, out); break;
    case TN_OP_CONV_TRANSPOSE_1D:
    case TN_OP_CONV_TRANSPOSE_2D: reference_conv_transpose(node, out, scale); break;
    case TN_OP_POOL_1D:
    case TN_OP_POOL_2D: reference_pool(node, out, scale); break;
    case TN_OP_UPSCALE: reference_upscale(node, out, scale); break;
    case TN_OP_ACC:
    case TN_OP_SET: region(node, out, scale); break;
    case TN_OP_SET_ROWS: set_rows(node, out); break;
    case TN_OP_NORM:
    case TN_OP_RMS_NORM:
    case TN_OP_L2_NORM:
    case TN_OP_GROUP_NORM: norms(node, out, scale); break;
    case TN_OP_HADAMARD: hadamard(node, out, scale); break;
    case TN_OP_CAUSAL_CONV:
    case TN_OP_LINEAR_ATTENTION:
    case TN_OP_SELECTIVE_SCAN:
    case TN_OP_RWKV7: reference_recurrent(node, out, scale); break;
    case TN_OP_DIAG_MASK_INF:
    case TN_OP_DIAG_MASK_ZERO: movement(node, out, scale); break;
    default: {
        tn_op_family family = tn_op_get_family(node->op);
        if (family == TN_FAMILY_UNARY || family == TN_FAMILY_BINARY || family == TN_FAMILY_GLU)
            elementwise(node, out, scale);
        else if (family == TN_FAMILY_REDUCE)
            reduction(node, out, scale);
        else
            movement(node, out, scale);
    }
    }
    for (int64_t i = 0; scale_out && i < n; i++) scale_out[i] = scale[i] < 0 ? fabs(out[i]) : scale[i];
    free(scale);
}

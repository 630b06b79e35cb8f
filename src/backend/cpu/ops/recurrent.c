/* Recurrent layers. The work is divided over heads, columns of the state and channels only: every thread walks the
 * subsequences of all tokens in order, for its own part of the state. Therefore a subsequence may begin with a row
 * that an earlier subsequence has written, and the bits do not depend on the number of threads. */
#include "backend/cpu/ops/ops.h"

#include "tenon/recurrent.h"

/* ---- Subsequences ---- */

typedef struct steps_view {
    const int32_t *table;
    int64_t tokens, rows; /* rows of the state */
} steps_view;

static steps_view steps_of(const tn_tensor *node) {
    const tn_tensor *steps = node->src[TN_RECURRENT_STEPS];
    return (steps_view){steps->data, steps->ne[1], node->src[TN_RECURRENT_STATE]->ne[1]};
}
static int32_t entry_of(const steps_view *s, int64_t token, int which) { return s->table[4 * token + which]; }

/* The token after this one in its subsequence, or -1. Both must name each other. */
static int64_t token_after(const steps_view *s, int64_t token) {
    const int64_t next = entry_of(s, token, TN_STEP_NEXT);
    return next > token && next < s->tokens && entry_of(s, next, TN_STEP_PREVIOUS) == token ? next : -1;
}
static bool begins_subsequence(const steps_view *s, int64_t token) {
    const int64_t previous = entry_of(s, token, TN_STEP_PREVIOUS);
    return !(previous >= 0 && previous < token && entry_of(s, previous, TN_STEP_NEXT) == token);
}
/* Whether the subsequence that begins with this token is none of padding rows. */
static bool subsequence_is_live(const steps_view *s, int64_t token) {
    const int32_t read = entry_of(s, token, TN_STEP_READ);
    return entry_of(s, token, TN_STEP_PREVIOUS) == -1 && read >= -1 && read < s->rows;
}
/* The row written after the token, or -1. */
static int64_t written_row(const steps_view *s, int64_t token) {
    const int32_t row = entry_of(s, token, TN_STEP_WRITE);
    return row < s->rows ? row : -1;
}

/* ---- A part of the state ---- */

/* Values first…first+n-1 of rows of the state. `spare` holds the part of a subsequence whose last state is not
 * stored. */
typedef struct state_part {
    char *rows;
    size_t stride;
    int64_t first, n;
    float *spare;
} state_part;

static float *part_of_row(const state_part *p, int64_t row) {
    return (float *)(void *)(p->rows + (size_t)row * p->stride) + p->first;
}
/* The row that a subsequence begins with; zeros in `state` for a new one. */
static const float *begin_subsequence(const state_part *p, int64_t read, float *state) {
    if (read >= 0) return part_of_row(p, read);
    memset(state, 0, (size_t)p->n * 4);
    return state;
}

/* What one driver does with a part: compute a block of tokens that follow each other, or clear their results. The
 * state before the block is in `from`, which may be `state`; that after it goes to `state`. */
typedef struct subsequence_worker {
    void (*compute)(void *user, const float *from, float *state, const int32_t *tokens, int64_t n);
    void (*clear)(void *user, int64_t token);
    void *user;
} subsequence_worker;

/* Walks all subsequences for one part of the state, each in the row that receives it last. Blocks end where a state
 * is stored. */
static void walk_subsequences(const steps_view *s, const state_part *part, const subsequence_worker *w) {
    for (int64_t first = 0; first < s->tokens; first++) {
        if (!begins_subsequence(s, first)) continue;
        if (!subsequence_is_live(s, first)) {
            for (int64_t t = first; t >= 0; t = token_after(s, t)) w->clear(w->user, t);
            continue;
        }
        int64_t last = first;
        for (int64_t t = first; t >= 0; t = token_after(s, t)) last = t;
        const int64_t target = written_row(s, last);
        float *state = target >= 0 ? part_of_row(part, target) : part->spare;
        const float *from = begin_subsequence(part, entry_of(s, first, TN_STEP_READ), state);
        int32_t block[TN__TOKEN_BLOCK];
        int64_t n = 0;
        for (int64_t t = first; t >= 0; t = token_after(s, t)) {
            const int64_t row = written_row(s, t);
            block[n++] = (int32_t)t;
            if (row < 0 && t != last && n < TN__TOKEN_BLOCK) continue;
            w->compute(w->user, from, state, block, n);
            from = state;
            n = 0;
            if (row >= 0 && part_of_row(part, row) != state)
                memcpy(part_of_row(part, row), state, (size_t)part->n * 4);
        }
    }
}

static state_part state_part_of(const tn_tensor *node, int64_t first, int64_t n, float *spare) {
    const tn_tensor *state = node->src[TN_RECURRENT_STATE];
    return (state_part){state->data, state->nb[1], first, n, spare};
}
static int64_t tokens_of(const tn_tensor *node) { return node->src[TN_RECURRENT_STEPS]->ne[1]; }
static double state_cost(const tn_tensor *node, double per_value) {
    return (double)tokens_of(node) * (double)node->src[TN_RECURRENT_STATE]->ne[0] * per_value;
}

/* ---- Causal convolution ---- */

/* Channels of a part, a multiple of every vector. */
enum { CONV_CHANNELS = 256, MAX_WIDTH = 8 };

int64_t tn__units_causal_conv(const tn_tensor *node) { return (node->ne[0] + CONV_CHANNELS - 1) / CONV_CHANNELS; }
double tn__cost_causal_conv(const tn_tensor *node) {
    return (double)tn_nelements(node) * (double)node->src[TN_CONV_W]->ne[0] * 0.2;
}

typedef struct conv_part {
    const tn_tensor *node;
    const tn__cpu_kernels *kernels;
    tn__conv_job job;
    int64_t first;                               /* channel */
    float past[(MAX_WIDTH - 1) * CONV_CHANNELS]; /* the last width-1 rows of the subsequence, oldest first */
} conv_part;

static const float *conv_x(const conv_part *p, int64_t token) {
    return (const float *)(const void *)tn__at(p->node->src[TN_CONV_X], token, 0, 0) + p->first;
}
static void clear_conv(const conv_part *p, int64_t token) {
    memset((float *)(void *)tn__at(p->node, token, 0, 0) + p->first, 0, (size_t)p->job.n * 4);
}
static void load_past(conv_part *p, int64_t read) {
    const tn_tensor *state = p->node->src[TN_RECURRENT_STATE];
    for (int64_t j = 0; j + 1 < p->job.width; j++) {
        float *to = p->past + j * p->job.n;
        if (read < 0)
            memset(to, 0, (size_t)p->job.n * 4);
        else
            memcpy(to, (float *)(void *)tn__at(state, read, 0, 0) + j * p->node->ne[0] + p->first,
                   (size_t)p->job.n * 4);
    }
}
static void store_past(const conv_part *p, const float *const *rows, int64_t row) {
    const tn_tensor *state = p->node->src[TN_RECURRENT_STATE];
    for (int64_t j = 0; j + 1 < p->job.width; j++)
        memcpy((float *)(void *)tn__at(state, row, 0, 0) + j * p->node->ne[0] + p->first, rows[j + 1],
               (size_t)p->job.n * 4);
}

static void conv_subsequence(conv_part *p, const steps_view *s, int64_t first) {
    const float *rows[MAX_WIDTH];
    const int64_t width = p->job.width;
    load_past(p, entry_of(s, first, TN_STEP_READ));
    for (int64_t j = 0; j + 1 < width; j++) rows[j + 1] = p->past + j * p->job.n;
    for (int64_t t = first; t >= 0; t = token_after(s, t)) {
        for (int64_t j = 0; j + 1 < width; j++) rows[j] = rows[j + 1];
        rows[width - 1] = conv_x(p, t);
        p->kernels->conv_token(&p->job, rows, (float *)(void *)tn__at(p->node, t, 0, 0) + p->first);
        const int64_t row = written_row(s, t);
        if (row >= 0) store_past(p, rows, row);
    }
}

void tn__run_causal_conv(const tn__task *task) {
    const tn_tensor *node = task->node, *w = node->src[TN_CONV_W], *bias = node->src[TN_CONV_BIAS];
    const steps_view steps = steps_of(node);
    float weights[MAX_WIDTH * CONV_CHANNELS];
    conv_part p = {.node = node, .kernels = task->kernels};
    for (int64_t unit; (unit = tn__take(task)) < tn__units_causal_conv(node);) {
        p.first = unit * CONV_CHANNELS;
        p.job = (tn__conv_job){.n = TN__MIN(CONV_CHANNELS, node->ne[0] - p.first),
                               .width = w->ne[0],
                               .w = weights,
                               .bias = bias ? (const float *)bias->data + p.first : NULL,
                               .silu = node->params.causal_conv.silu};
        task->kernels->conv_weights(p.job.n, w->ne[0], (const float *)w->data + p.first * w->ne[0], weights);
        for (int64_t first = 0; first < steps.tokens; first++) {
            if (!begins_subsequence(&steps, first)) continue;
            if (subsequence_is_live(&steps, first))
                conv_subsequence(&p, &steps, first);
            else
                for (int64_t t = first; t >= 0; t = token_after(&steps, t)) clear_conv(&p, t);
        }
    }
}

/* ---- Linear attention ---- */

/* Columns of a part: enough that what all columns of a head share is computed seldom. */
enum { PART_COLUMNS = 64 };
_Static_assert(PART_COLUMNS % TN__COLUMNS == 0, "parts are whole groups of columns");

static int64_t column_parts(int64_t columns) { return (columns + PART_COLUMNS - 1) / PART_COLUMNS; }

int64_t tn__units_linear_attention(const tn_tensor *node) { return node->ne[1] * column_parts(node->ne[0]); }
double tn__cost_linear_attention(const tn_tensor *node) { return state_cost(node, 0.2); }
static size_t linear_spare(int64_t dk) { return tn__scratch_size((size_t)(PART_COLUMNS * dk) * 4); }
static size_t linear_shared(int64_t dk) { return tn__scratch_size((size_t)(4 * TN__TOKEN_BLOCK * dk) * 4); }
size_t tn__scratch_linear_attention(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const int64_t dk = node->src[TN_LINEAR_Q]->ne[0];
    return (linear_spare(dk) + linear_shared(dk)) * (size_t)n_threads;
}

typedef struct linear_part {
    tn__linear_job job;
    const tn__cpu_kernels *kernels;
} linear_part;

static void compute_linear(void *user, const float *from, float *state, const int32_t *tokens, int64_t n) {
    linear_part *p = user;
    p->job.from = from;
    p->job.state = state;
    p->job.tokens = tokens;
    p->job.n = n;
    p->kernels->linear_attention(&p->job);
}
static void clear_linear(void *user, int64_t token) {
    const tn__linear_job *job = &((const linear_part *)user)->job;
    memset((char *)job->out + (size_t)token * job->out_token, 0, (size_t)job->dv * 4);
}
/* The row of head h in the first token. */
static const float *head_of(const tn_tensor *t, int64_t h) {
    return t ? (const float *)(const void *)tn__at(t, h, 0, 0) : NULL;
}

void tn__run_linear_attention(const tn__task *task) {
    const tn_tensor *node = task->node, *q = node->src[TN_LINEAR_Q], *k = node->src[TN_LINEAR_K],
                    *v = node->src[TN_LINEAR_V], *g = node->src[TN_LINEAR_G], *beta = node->src[TN_LINEAR_BETA];
    const tn_linear_attention_params *params = &node->params.linear_attention;
    const steps_view steps = steps_of(node);
    const int64_t dk = q->ne[0], dv = v->ne[0], parts = column_parts(dv), units = tn__units_linear_attention(node);
    unsigned char *scratch = task->scratch + (size_t)task->ith * (linear_spare(dk) + linear_shared(dk));
    for (int64_t unit; (unit = tn__take(task)) < units;) {
        const int64_t h = unit / parts, first = unit % parts * PART_COLUMNS, n = TN__MIN(PART_COLUMNS, dv - first);
        const int64_t key = params->tiled ? h % q->ne[1] : h / (v->ne[1] / q->ne[1]);
        linear_part p = {.kernels = task->kernels,
                         .job = {.dk = dk,
                                 .dv = n,
                                 .q = head_of(q, key),
                                 .k = head_of(k, key),
                                 .v = head_of(v, h) + first,
                                 .g = head_of(g, h),
                                 .beta = head_of(beta, h),
                                 .u = head_of(node->src[TN_LINEAR_U], h),
                                 .q_token = q->nb[2],
                                 .k_token = k->nb[2],
                                 .v_token = v->nb[2],
                                 .g_token = g ? g->nb[2] : 0,
                                 .beta_token = beta ? beta->nb[2] : 0,
                                 .channels = g && g->ne[0] > 1,
                                 .delta = params->delta,
                                 .scale = params->scale,
                                 .out = (float *)(void *)tn__at(node, h, 0, 0) + first,
                                 .out_token = node->nb[2],
                                 .scratch = (float *)(void *)(scratch + linear_spare(dk))}};
        const state_part part = state_part_of(node, (h * dv + first) * dk, n * dk, (float *)(void *)scratch);
        walk_subsequences(&steps, &part, &(subsequence_worker){compute_linear, clear_linear, &p});
    }
}

/* ---- Selective scan ---- */

enum { SCAN_CHANNELS = 64 };

int64_t tn__units_selective_scan(const tn_tensor *node) { return (node->ne[0] + SCAN_CHANNELS - 1) / SCAN_CHANNELS; }
double tn__cost_selective_scan(const tn_tensor *node) { return state_cost(node, 1); }
static size_t scan_spare(int64_t d) { return tn__scratch_size((size_t)(SCAN_CHANNELS * d) * 4); }
size_t tn__scratch_selective_scan(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return scan_spare(node->src[TN_SCAN_A]->ne[0]) * (size_t)n_threads;
}

typedef struct scan_part {
    tn__scan_job job;
    const tn__cpu_kernels *kernels;
} scan_part;

static void compute_scan(void *user, const float *from, float *state, const int32_t *tokens, int64_t n) {
    scan_part *p = user;
    if (from != state) memcpy(state, from, (size_t)(p->job.n * p->job.d) * 4);
    p->job.state = state;
    p->job.tokens = tokens;
    p->job.n_tokens = n;
    p->kernels->selective_scan(&p->job);
}
static void clear_scan(void *user, int64_t token) {
    const tn__scan_job *job = &((const scan_part *)user)->job;
    memset((char *)job->out + (size_t)token * job->out_token, 0, (size_t)job->n * 4);
}

void tn__run_selective_scan(const tn__task *task) {
    const tn_tensor *node = task->node, *x = node->src[TN_SCAN_X], *dt = node->src[TN_SCAN_DT],
                    *A = node->src[TN_SCAN_A], *B = node->src[TN_SCAN_B], *C = node->src[TN_SCAN_C];
    const steps_view steps = steps_of(node);
    const int64_t d = A->ne[0], units = tn__units_selective_scan(node);
    float *spare = (float *)(void *)(task->scratch + (size_t)task->ith * scan_spare(d));
    for (int64_t unit; (unit = tn__take(task)) < units;) {
        const int64_t first = unit * SCAN_CHANNELS, n = TN__MIN(SCAN_CHANNELS, node->ne[0] - first);
        scan_part p = {.kernels = task->kernels,
                       .job = {.d = d,
                               .n = n,
                               .x = (const float *)x->data + first,
                               .dt = (const float *)dt->data + first,
                               .A = (const float *)A->data + first * d,
                               .B = B->data,
                               .C = C->data,
                               .x_token = x->nb[1],
                               .dt_token = dt->nb[1],
                               .b_token = B->nb[1],
                               .c_token = C->nb[1],
                               .out = (float *)node->data + first,
                               .out_token = node->nb[1]}};
        const state_part part = state_part_of(node, first * d, n * d, spare);
        walk_subsequences(&steps, &part, &(subsequence_worker){compute_scan, clear_scan, &p});
    }
}

/* ---- RWKV 7 ---- */

int64_t tn__units_rwkv7(const tn_tensor *node) { return node->ne[1] * column_parts(node->ne[0]); }
double tn__cost_rwkv7(const tn_tensor *node) { return state_cost(node, 0.25); }
size_t tn__scratch_rwkv7(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return linear_spare(node->ne[0]) * (size_t)n_threads;
}

typedef struct rwkv7_part {
    tn__rwkv7_job job;
    const tn__cpu_kernels *kernels;
} rwkv7_part;

static void compute_rwkv7(void *user, const float *from, float *state, const int32_t *tokens, int64_t n) {
    rwkv7_part *p = user;
    if (from != state) memcpy(state, from, (size_t)(p->job.n * p->job.d) * 4);
    p->job.state = state;
    p->job.tokens = tokens;
    p->job.n_tokens = n;
    p->kernels->rwkv7(&p->job);
}
static void clear_rwkv7(void *user, int64_t token) {
    const tn__rwkv7_job *job = &((const rwkv7_part *)user)->job;
    memset((char *)job->out + (size_t)token * job->out_token, 0, (size_t)job->n * 4);
}

void tn__run_rwkv7(const tn__task *task) {
    const tn_tensor *node = task->node, *r = node->src[TN_RWKV7_R], *w = node->src[TN_RWKV7_W],
                    *k = node->src[TN_RWKV7_K], *v = node->src[TN_RWKV7_V], *a = node->src[TN_RWKV7_A],
                    *b = node->src[TN_RWKV7_B];
    const steps_view steps = steps_of(node);
    const int64_t d = node->ne[0], parts = column_parts(d), units = tn__units_rwkv7(node);
    float *spare = (float *)(void *)(task->scratch + (size_t)task->ith * linear_spare(d));
    for (int64_t unit; (unit = tn__take(task)) < units;) {
        const int64_t h = unit / parts, first = unit % parts * PART_COLUMNS, n = TN__MIN(PART_COLUMNS, d - first);
        rwkv7_part p = {.kernels = task->kernels,
                        .job = {.d = d,
                                .n = n,
                                .r = head_of(r, h),
                                .w = head_of(w, h),
                                .k = head_of(k, h),
                                .v = head_of(v, h) + first,
                                .a = head_of(a, h),
                                .b = head_of(b, h),
                                .r_token = r->nb[2],
                                .w_token = w->nb[2],
                                .k_token = k->nb[2],
                                .v_token = v->nb[2],
                                .a_token = a->nb[2],
                                .b_token = b->nb[2],
                                .out = (float *)(void *)tn__at(node, h, 0, 0) + first,
                                .out_token = node->nb[2]}};
        const state_part part = state_part_of(node, (h * d + first) * d, n * d, spare);
        walk_subsequences(&steps, &part, &(subsequence_worker){compute_rwkv7, clear_rwkv7, &p});
    }
}

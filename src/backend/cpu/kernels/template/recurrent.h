/* Recurrent layers: a template over the vector type, included once per level after its vec.h.
 *
 * A state is columns of d values. Groups of VL columns stay in the first-level cache while all tokens of a job pass
 * over them. A token needs sums over each column before it can update it, and the next token needs sums over the
 * updated column: one pass updates the columns for a token and adds up what the next one needs. */
#include "backend/cpu/kernels/shared.h"
#include "backend/cpu/kernels/template/math.h"

/* Columns whose sums are kept in registers at the same time. */
enum { SUB_COLUMNS = 4 };
_Static_assert(TN__COLUMNS % VL == 0 && VL % SUB_COLUMNS == 0, "groups of columns are whole vectors");

TN__VEC const float *row_at(const float *rows, size_t stride, int32_t token) {
    return (const float *)(const void *)((const char *)rows + (size_t)token * stride);
}
TN__VEC float *out_at(float *rows, size_t stride, int32_t token) {
    return (float *)(void *)((char *)rows + (size_t)token * stride);
}

/* n is a constant in the inner loops. */
TN__VEC vf load_some(const float *p, int64_t n) { return n >= VL ? vf_load(p) : vf_load_n(p, n); } /* rest: zero */
TN__VEC void store_some(float *p, vf v, int64_t n) {
    if (n >= VL)
        vf_store(p, v);
    else
        vf_store_n(p, v, n);
}

/* ---- Causal convolution ---- */

/* With a constant width the compiler uses vectors. */
TN__VEC void transpose_weights(int64_t n, int64_t width, const float *restrict w, float *restrict to) {
    for (int64_t j = 0; j < width; j++)
        for (int64_t c = 0; c < n; c++) to[j * n + c] = w[c * width + j];
}
static void conv_weights(int64_t n, int64_t width, const float *w, float *to) {
    switch (width) {
    case 2: transpose_weights(n, 2, w, to); break;
    case 3: transpose_weights(n, 3, w, to); break;
    case 4: transpose_weights(n, 4, w, to); break;
    default: transpose_weights(n, width, w, to);
    }
}

TN__VEC vf conv_sum(const tn__conv_job *job, const float *const *rows, int64_t c, int64_t n) {
    vf sum = job->bias ? load_some(job->bias + c, n) : vf_zero();
    for (int64_t j = 0; j < job->width; j++)
        sum = vf_fma(load_some(job->w + j * job->n + c, n), load_some(rows[j] + c, n), sum);
    return job->silu ? vf_silu(sum) : sum;
}
static void conv_token(const tn__conv_job *job, const float *const *rows, float *out) {
    int64_t c = 0;
    for (; c + VL <= job->n; c += VL) vf_store(out + c, conv_sum(job, rows, c, VL));
    if (c < job->n) store_some(out + c, conv_sum(job, rows, c, job->n - c), job->n - c);
}

/* ---- Linear attention ---- */

/* What all columns of a job need of a token. Rows of dk values are copied to scratch: those of neighbouring tokens
 * may be a multiple of 4 KiB apart, and would evict each other from the cache. With a decay per channel, the k and q
 * of the sums are multiplied by it. */
enum { ROW_K, ROW_SUM_Q, ROW_SUM_K, ROW_DECAY, TOKEN_ROWS };
typedef struct linear_token {
    const float *k, *decay;     /* of the update */
    const float *sum_k, *sum_q; /* of the sums */
    const float *v;
    float *out;
    float factor, beta, self; /* decay without channels; of v; weight of the token's own v in the output */
    float sum_factor;         /* of the sums */
} linear_token;

static float own_weight(const tn__linear_job *job, const float *k, const float *q) {
    vf sum = vf_zero();
    for (int64_t i = 0; i < job->dk; i += VL) {
        const int64_t n = job->dk - i;
        vf kq = vf_mul(load_some(k + i, n), load_some(q + i, n));
        sum = job->u ? vf_fma(load_some(job->u + i, n), kq, sum) : vf_add(sum, kq);
    }
    return vf_sum(sum);
}

static void prepare_token(const tn__linear_job *job, int64_t index, float *rows, linear_token *t) {
    const int32_t token = job->tokens[index];
    const int64_t dk = job->dk;
    const float *q = row_at(job->q, job->q_token, token), *k = row_at(job->k, job->k_token, token);
    const float *g = job->g ? row_at(job->g, job->g_token, token) : NULL;
    float *own_k = rows + ROW_K * dk, *sum_q = rows + ROW_SUM_Q * dk, *sum_k = rows + ROW_SUM_K * dk,
          *decay = rows + ROW_DECAY * dk;
    *t = (linear_token){.k = own_k, .decay = decay, .sum_q = sum_q, .factor = 1, .sum_factor = 1};
    t->sum_k = job->channels && job->delta ? sum_k : own_k;
    t->v = row_at(job->v, job->v_token, token);
    t->out = out_at(job->out, job->out_token, token);
    t->beta = job->beta ? *row_at(job->beta, job->beta_token, token) : 1;
    if (job->delta || job->u) t->self = own_weight(job, k, q);
    for (int64_t i = 0; i < dk; i += VL) {
        const int64_t n = dk - i;
        vf ks = load_some(k + i, n), qs = load_some(q + i, n);
        store_some(own_k + i, ks, n);
        if (job->channels) {
            const vf d = vf_exp(load_some(g + i, n));
            store_some(decay + i, d, n);
            if (job->delta) store_some(sum_k + i, vf_mul(d, ks), n);
            if (job->delta) qs = vf_mul(d, qs);
        }
        store_some(sum_q + i, qs, n);
    }
    if (!g || job->channels) return;
    float lanes[VL];
    vf_store(lanes, vf_exp(vf_set1(*g)));
    t->factor = lanes[0];
    if (job->delta) t->sum_factor = lanes[0];
}

/* What a pass over columns does: updates them by a token, and takes sums for a token. Without the delta rule both are
 * the same token, and its q is multiplied with the state after the update, or with u before it. */
typedef enum sums_kind { SUMS_NONE, SUMS_K_Q, SUMS_Q, SUMS_Q_BEFORE } sums_kind;
typedef struct linear_pass {
    bool update, channels;
    sums_kind sums;
    bool stream; /* the state is stored past the caches, which it would leave before the next token anyhow */
} linear_pass;

/* The part [i, i+n) of columns, read in `from`; everything but i is constant in the loops around it. */
TN__VEC void pass_part(const float *from, float *state, int64_t dk, int64_t i, int64_t n, int columns, linear_pass p,
                       const linear_token *t, const linear_token *s, const vf *added, vf *sum_k, vf *sum_q) {
    const vf decay = !p.update ? vf_zero() : p.channels ? load_some(t->decay + i, n) : vf_set1(t->factor);
    const vf k = p.update ? load_some(t->k + i, n) : vf_zero();
    const vf next_k = p.sums == SUMS_K_Q ? load_some(s->sum_k + i, n) : vf_zero();
    const vf q = p.sums != SUMS_NONE ? load_some(s->sum_q + i, n) : vf_zero();
    for (int c = 0; c < columns; c++) {
        vf x = load_some(from + c * dk + i, n);
        if (p.sums == SUMS_Q_BEFORE) sum_q[c] = vf_fma(x, q, sum_q[c]);
        if (p.update) {
            x = vf_fma(k, added[c], vf_mul(x, decay));
            if (p.stream)
                vf_stream(state + c * dk + i, x);
            else
                store_some(state + c * dk + i, x, n);
        }
        if (p.sums == SUMS_K_Q) sum_k[c] = vf_fma(x, next_k, sum_k[c]);
        if (p.sums == SUMS_K_Q || p.sums == SUMS_Q) sum_q[c] = vf_fma(x, q, sum_q[c]);
    }
}
TN__VEC void pass_columns(const float *from, float *state, int64_t dk, int columns, linear_pass p,
                          const linear_token *t, const linear_token *s, const float *added, vf *sum_k, vf *sum_q) {
    vf adds[SUB_COLUMNS], ks[SUB_COLUMNS], qs[SUB_COLUMNS];
    const linear_token update = p.update ? *t : *s, sums = p.sums != SUMS_NONE ? *s : *t;
    int64_t i = 0;
    for (int c = 0; c < columns; c++) {
        ks[c] = qs[c] = vf_zero();
        adds[c] = p.update ? vf_set1(added[c]) : vf_zero();
    }
    for (; i + VL <= dk; i += VL) pass_part(from, state, dk, i, VL, columns, p, &update, &sums, adds, ks, qs);
    if (i < dk) pass_part(from, state, dk, i, dk - i, columns, p, &update, &sums, adds, ks, qs);
    for (int c = 0; c < columns; c++) {
        if (p.sums == SUMS_K_Q) sum_k[c] = ks[c];
        if (p.sums != SUMS_NONE) sum_q[c] = qs[c];
    }
}
/* All of up to VL columns, four at a time. */
TN__VEC void pass_group(const float *from, float *state, int64_t dk, int columns, linear_pass p,
                        const linear_token *t, const linear_token *s, const float *added, vf *sum_k, vf *sum_q) {
    int c = 0;
    for (; c + SUB_COLUMNS <= columns; c += SUB_COLUMNS)
        pass_columns(from + c * dk, state + c * dk, dk, SUB_COLUMNS, p, t, s, added + c, sum_k + c, sum_q + c);
    for (; c < columns; c++)
        pass_columns(from + c * dk, state + c * dk, dk, 1, p, t, s, added + c, sum_k + c, sum_q + c);
}

TN__VEC void delta_group(const float *from, float *state, int64_t dk, int64_t first, int columns,
                         const linear_token *tokens, int64_t n, float scale, bool channels, bool stream) {
    vf sum_k[VL], sum_q[VL];
    float added[VL];
    for (int c = 0; c < VL; c++) sum_k[c] = sum_q[c] = vf_zero();
    pass_group(from, state, dk, columns, (linear_pass){false, channels, SUMS_K_Q, false}, tokens, tokens, added,
               sum_k, sum_q);
    for (int64_t t = 0; t < n; t++) {
        const linear_token *at = &tokens[t];
        vf predicted = vf_mul(vf_sums(sum_k), vf_set1(at->sum_factor));
        vf v = vf_mul(vf_set1(at->beta), vf_sub(load_some(at->v + first, columns), predicted));
        vf seen = vf_mul(vf_sums(sum_q), vf_set1(at->sum_factor));
        vf_store(added, v);
        store_some(at->out + first, vf_mul(vf_set1(scale), vf_fma(v, vf_set1(at->self), seen)), columns);
        if (t + 1 < n)
            pass_group(from, state, dk, columns, (linear_pass){true, channels, SUMS_K_Q, false}, at, at + 1, added,
                       sum_k, sum_q);
        else
            pass_group(from, state, dk, columns, (linear_pass){true, channels, SUMS_NONE, stream}, at, at, added,
                       sum_k, sum_q);
        from = state;
    }
}

TN__VEC void plain_group(const float *from, float *state, int64_t dk, int64_t first, int columns,
                         const linear_token *tokens, int64_t n, float scale, bool channels, sums_kind sums,
                         bool stream) {
    vf sum_k[VL], sum_q[VL];
    float added[VL];
    for (int c = 0; c < VL; c++) sum_k[c] = sum_q[c] = vf_zero();
    for (int64_t t = 0; t < n; t++) {
        const linear_token *at = &tokens[t];
        vf v = vf_mul(vf_set1(at->beta), load_some(at->v + first, columns));
        vf_store(added, v);
        pass_group(from, state, dk, columns, (linear_pass){true, channels, sums, stream}, at, at, added, sum_k,
                   sum_q);
        from = state;
        vf seen = vf_sums(sum_q);
        if (sums == SUMS_Q_BEFORE) seen = vf_fma(v, vf_set1(at->self), seen);
        store_some(at->out + first, vf_mul(vf_set1(scale), seen), columns);
    }
}

/* Whether a single token takes the state from one row to another: in aligned vectors, past the caches. */
static bool streams(const tn__linear_job *job) {
    return job->n == 1 && job->from != job->state && job->dk % VL == 0 &&
           (uintptr_t)job->state % (VL * sizeof(float)) == 0;
}

TN__VEC void linear_group(const tn__linear_job *job, int64_t j, const linear_token *tokens, bool channels,
                          bool stream) {
    const int columns = (int)(job->dv - j < VL ? job->dv - j : VL);
    const float *from = job->from + j * job->dk;
    float *state = job->state + j * job->dk;
    if (job->delta)
        delta_group(from, state, job->dk, j, columns, tokens, job->n, job->scale, channels, stream);
    else if (job->u)
        plain_group(from, state, job->dk, j, columns, tokens, job->n, job->scale, channels, SUMS_Q_BEFORE, stream);
    else
        plain_group(from, state, job->dk, j, columns, tokens, job->n, job->scale, channels, SUMS_Q, stream);
}

static void linear_attention(const tn__linear_job *job) {
    linear_token tokens[TN__TOKEN_BLOCK];
    const bool stream = streams(job);
    for (int64_t t = 0; t < job->n; t++) prepare_token(job, t, job->scratch + t * TOKEN_ROWS * job->dk, &tokens[t]);
    for (int64_t j = 0; j < job->dv; j += VL) {
        if (job->channels && stream)
            linear_group(job, j, tokens, true, true);
        else if (job->channels)
            linear_group(job, j, tokens, true, false);
        else if (stream)
            linear_group(job, j, tokens, false, true);
        else
            linear_group(job, j, tokens, false, false);
    }
    if (stream) vf_stream_end();
}

/* ---- Selective scan ---- */

TN__VEC vf scan_pass(const tn__scan_job *job, int64_t c, int64_t i, int64_t n, vf dt, vf dtx, vf B, vf C, vf sum) {
    float *at = job->state + c * job->d + i;
    vf decay = vf_exp(vf_mul(dt, load_some(job->A + c * job->d + i, n)));
    vf s = vf_fma(decay, load_some(at, n), vf_mul(dtx, B));
    store_some(at, s, n);
    return vf_fma(s, C, sum);
}
static void selective_scan(const tn__scan_job *job) {
    for (int64_t first = 0; first < job->n; first += VL) {
        const int64_t columns = job->n - first < VL ? job->n - first : VL;
        for (int64_t t = 0; t < job->n_tokens; t++) {
            const int32_t token = job->tokens[t];
            const float *x = row_at(job->x, job->x_token, token) + first;
            const float *dt = row_at(job->dt, job->dt_token, token) + first;
            const float *B = row_at(job->B, job->b_token, token), *C = row_at(job->C, job->c_token, token);
            vf sums[VL];
            for (int64_t c = 0; c < VL; c++) sums[c] = vf_zero();
            for (int64_t i = 0; i < job->d; i += VL) {
                const int64_t n = job->d - i < VL ? job->d - i : VL;
                const vf b = load_some(B + i, n), cs = load_some(C + i, n);
                for (int64_t c = 0; c < columns; c++)
                    sums[c] = scan_pass(job, first + c, i, n, vf_set1(dt[c]), vf_set1(dt[c] * x[c]), b, cs, sums[c]);
            }
            store_some(out_at(job->out, job->out_token, token) + first, vf_sums(sums), columns);
        }
    }
}

/* ---- RWKV 7 ---- */

/* Rows of a token, and a of the next one. */
typedef struct rwkv7_token {
    const float *r, *w, *k, *b, *next_a;
} rwkv7_token;

TN__VEC void rwkv7_pass(float *state, int64_t d, int64_t i, int64_t n, int columns, const rwkv7_token *t,
                        const float *sa, const float *v, vf *sum_a, vf *sum_r) {
    const vf w = load_some(t->w + i, n), b = load_some(t->b + i, n), k = load_some(t->k + i, n),
             r = load_some(t->r + i, n), a = load_some(t->next_a + i, n);
    for (int c = 0; c < columns; c++) {
        float *at = state + c * d + i;
        vf x = vf_fma(load_some(at, n), w, vf_fma(vf_set1(sa[c]), b, vf_mul(vf_set1(v[c]), k)));
        store_some(at, x, n);
        sum_r[c] = vf_fma(x, r, sum_r[c]);
        sum_a[c] = vf_fma(x, a, sum_a[c]);
    }
}
TN__VEC void rwkv7_columns(float *state, int64_t d, int columns, const rwkv7_token *t, const float *sa,
                           const float *v, vf *sum_a, vf *sum_r) {
    vf as[SUB_COLUMNS], rs[SUB_COLUMNS];
    int64_t i = 0;
    for (int c = 0; c < columns; c++) as[c] = rs[c] = vf_zero();
    for (; i + VL <= d; i += VL) rwkv7_pass(state, d, i, VL, columns, t, sa, v, as, rs);
    if (i < d) rwkv7_pass(state, d, i, d - i, columns, t, sa, v, as, rs);
    for (int c = 0; c < columns; c++) {
        sum_a[c] = as[c];
        sum_r[c] = rs[c];
    }
}

static void rwkv7_group(const tn__rwkv7_job *job, int64_t first, int columns) {
    float *state = job->state + first * job->d, sa[VL], v[VL];
    vf sum_a[VL], sum_r[VL];
    const float *a = row_at(job->a, job->a_token, job->tokens[0]);
    for (int c = 0; c < VL; c++) {
        sum_a[c] = sum_r[c] = vf_zero();
        for (int64_t i = 0; c < columns && i < job->d; i += VL)
            sum_a[c] = vf_fma(load_some(state + c * job->d + i, job->d - i), load_some(a + i, job->d - i), sum_a[c]);
    }
    for (int64_t t = 0; t < job->n_tokens; t++) {
        const int32_t token = job->tokens[t], next = job->tokens[t + 1 < job->n_tokens ? t + 1 : t];
        const rwkv7_token rows = {
            .r = row_at(job->r, job->r_token, token),
            .w = row_at(job->w, job->w_token, token),
            .k = row_at(job->k, job->k_token, token),
            .b = row_at(job->b, job->b_token, token),
            .next_a = row_at(job->a, job->a_token, next),
        };
        vf_store(sa, vf_sums(sum_a));
        vf_store(v, load_some(row_at(job->v, job->v_token, token) + first, columns));
        int c = 0;
        for (; c + SUB_COLUMNS <= columns; c += SUB_COLUMNS)
            rwkv7_columns(state + c * job->d, job->d, SUB_COLUMNS, &rows, sa + c, v + c, sum_a + c, sum_r + c);
        for (; c < columns; c++)
            rwkv7_columns(state + c * job->d, job->d, 1, &rows, sa + c, v + c, sum_a + c, sum_r + c);
        store_some(out_at(job->out, job->out_token, token) + first, vf_sums(sum_r), columns);
    }
}
static void rwkv7(const tn__rwkv7_job *job) {
    for (int64_t j = 0; j < job->n; j += VL) rwkv7_group(job, j, (int)(job->n - j < VL ? job->n - j : VL));
}

static void fill_recurrent(tn__cpu_kernels *table) {
    table->conv_weights = conv_weights;
    table->conv_token = conv_token;
    table->linear_attention = linear_attention;
    table->selective_scan = selective_scan;
    table->rwkv7 = rwkv7;
}

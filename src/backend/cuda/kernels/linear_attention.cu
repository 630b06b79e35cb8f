// Linear attention and RWKV 7: states of heads, column by column.
//
// A block has 32 columns of a head's state, in registers: 8 lanes per column, each with every eighth group of four
// values. It walks its subsequences token by token. Rows of eight tokens are in shared memory at a time. What a token
// adds to its own output follows from one number per token, so that the sums of the prediction and of the output are
// taken in one pass over the state, before the update.
#include "backend/cuda/kernels/state_columns.cuh"

enum { STATE_TOKENS = 8 };
static_assert(STATE_THREADS / 32 == STATE_TOKENS, "a warp per token");

// Rows of a source for tokens of a subsequence, padded with zeros: to[token][size].
__device__ static inline void stage_rows(float *to, const recurrent_rows &from, int head, const int *tokens,
                                         int count, int n, int size) {
    for (int i = threadIdx.x; i < count * size; i += STATE_THREADS) {
        const int t = i / size, at = i % size;
        to[i] = at < n ? from.data[head * from.head + tokens[t] * from.token + at] : 0;
    }
}
// ---- Linear attention ----

struct linear_job {
    recurrent_rows q, k, v, g, beta, u;
    float *state, *out;
    int64_t state_row, out_head, out_token; // floats
    int dk, dv, group, key_heads;           // group: value heads per key head
    float scale;
    bool delta, tiled, channels, wide;
};

template <int GROUPS> struct linear_shared {
    float4 k[STATE_TOKENS][GROUPS * STATE_LANES], q[STATE_TOKENS][GROUPS * STATE_LANES],
        decay[STATE_TOKENS][GROUPS * STATE_LANES];
    float v[STATE_TOKENS][STATE_COLUMNS];
    float factor[STATE_TOKENS], beta[STATE_TOKENS], self[STATE_TOKENS];
    int tokens[STATE_TOKENS];
};

template <int GROUPS>
__device__ static void stage_linear(const linear_job &job, const subsequence_view &v, int head, int key, int from,
                                    int count, linear_shared<GROUPS> *s) {
    enum { SIZE = GROUPS * STATE_LANES * 4 };
    const int first = blockIdx.z * STATE_COLUMNS, columns = min((int)STATE_COLUMNS, job.dv - first);
    __syncthreads();
    if ((int)threadIdx.x < count) {
        const int token = subsequence_token(v, from + threadIdx.x);
        s->tokens[threadIdx.x] = token;
        s->beta[threadIdx.x] = job.beta.data ? job.beta.data[head * job.beta.head + token * job.beta.token] : 1;
        s->factor[threadIdx.x] =
            job.g.data && !job.channels ? expf(job.g.data[head * job.g.head + token * job.g.token]) : 1;
    }
    __syncthreads();
    stage_rows(&s->k[0][0].x, job.k, key, s->tokens, count, job.dk, SIZE);
    stage_rows(&s->q[0][0].x, job.q, key, s->tokens, count, job.dk, SIZE);
    for (int i = threadIdx.x; i < count * STATE_COLUMNS; i += STATE_THREADS) {
        const int t = i / STATE_COLUMNS, column = i % STATE_COLUMNS;
        s->v[t][column] =
            column < columns ? job.v.data[head * job.v.head + s->tokens[t] * job.v.token + first + column] : 0;
    }
    if (job.channels)
        for (int i = threadIdx.x; i < count * SIZE; i += STATE_THREADS) {
            const int t = i / SIZE, at = i % SIZE;
            (&s->decay[0][0].x)[i] =
                at < job.dk ? expf(job.g.data[head * job.g.head + s->tokens[t] * job.g.token + at]) : 0;
        }
    __syncthreads();
    const int t = threadIdx.x / 32;
    float sum = 0;
    if (t < count)
        for (int i = threadIdx.x % 32; i < job.dk; i += 32)
            sum += (&s->k[t][0].x)[i] * (&s->q[t][0].x)[i] * (job.u.data ? job.u.data[head * job.u.head + i] : 1);
    sum = warp_sum(sum);
    if (t < count && threadIdx.x % 32 == 0) s->self[t] = sum;
    __syncthreads();
}

// One token: updates the state and returns the output of the thread's column.
template <int GROUPS>
__device__ static inline float linear_token(const linear_job &job, const linear_shared<GROUPS> &sh, int t,
                                            column_state<GROUPS> *s) {
    const float factor = sh.factor[t];
    float predicted = 0, seen = 0;
#pragma unroll
    for (int m = 0; m < GROUPS; m++) {
        const float4 k4 = four_of<GROUPS>(&sh.k[t][0].x, m), q4 = four_of<GROUPS>(&sh.q[t][0].x, m);
        float4 d4 = make_float4(factor, factor, factor, factor);
        if (job.channels) d4 = four_of<GROUPS>(&sh.decay[t][0].x, m);
        const float k[4] = {k4.x, k4.y, k4.z, k4.w}, q[4] = {q4.x, q4.y, q4.z, q4.w}, d[4] = {d4.x, d4.y, d4.z, d4.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float before = s->at[m][e], x = before * d[e];
            s->at[m][e] = x;
            predicted += x * k[e];
            seen += (job.u.data ? before : x) * q[e];
        }
    }
    if (job.delta) predicted = column_sum(predicted);
    seen = column_sum(seen);
    const float v = sh.v[t][threadIdx.x / STATE_LANES], added = sh.beta[t] * (job.delta ? v - predicted : v);
#pragma unroll
    for (int m = 0; m < GROUPS; m++) {
        const float4 k4 = four_of<GROUPS>(&sh.k[t][0].x, m);
        s->at[m][0] += k4.x * added;
        s->at[m][1] += k4.y * added;
        s->at[m][2] += k4.z * added;
        s->at[m][3] += k4.w * added;
    }
    return job.scale * (seen + sh.self[t] * added);
}

template <int GROUPS>
__global__ static void __launch_bounds__(STATE_THREADS) linear_attention_kernel(linear_job job, subsequence_view v) {
    grid_follow();
    __shared__ linear_shared<GROUPS> shared;
    const int head = blockIdx.y, key = job.tiled ? head % job.key_heads : head / job.group,
              first = blockIdx.z * STATE_COLUMNS, column = first + threadIdx.x / STATE_LANES,
              n = subsequence_count(v), step = subsequence_stride(v);
    const bool writes_out = threadIdx.x % STATE_LANES == 0 && column < job.dv;
    const state_columns columns = {job.state + ((int64_t)head * job.dv + first) * job.dk, job.state_row, job.dk,
                                   job.dv - first, job.wide};
    column_state<GROUPS> s;
    for (int subsequence = subsequence_first_of_block(v); subsequence < n; subsequence += step) {
        const int begin = subsequence_begin(v, subsequence), end = subsequence_begin(v, subsequence + 1),
                  token = subsequence_token(v, begin);
        if (!subsequence_is_live(v, token)) {
            for (int i = begin; i < end && writes_out; i++)
                job.out[head * job.out_head + subsequence_token(v, i) * job.out_token + column] = 0;
            continue;
        }
        load_columns<GROUPS>(columns, v.steps[4 * (int64_t)token + TN_STEP_READ], &s);
        for (int from = begin; from < end; from += STATE_TOKENS) {
            const int count = min((int)STATE_TOKENS, end - from);
            stage_linear<GROUPS>(job, v, head, key, from, count, &shared);
            for (int t = 0; t < count; t++) {
                const float out = linear_token<GROUPS>(job, shared, t, &s);
                if (writes_out) job.out[head * job.out_head + shared.tokens[t] * job.out_token + column] = out;
                const int row = subsequence_written_row(v, shared.tokens[t]);
                if (row >= 0) store_columns<GROUPS>(columns, row, s);
            }
        }
    }
}

template <int GROUPS>
static tn_status add_linear(const compilation &c, const tn_tensor *t, const linear_job &job,
                            const subsequence_view &v) {
    const unsigned slices = blocks_for(job.dv, STATE_COLUMNS);
    return add_early(c, kernel_called("linear_attention_kernel", NULL, GROUPS), linear_attention_kernel<GROUPS>,
                     dim3(subsequence_blocks(t, t->ne[1] * slices), (unsigned)t->ne[1], slices), STATE_THREADS, 0,
                     job, v);
}
tn_status compile_linear_attention(const compilation &c, const tn_tensor *t) {
    const tn_tensor *state = t->src[TN_RECURRENT_STATE], *q = t->src[TN_LINEAR_Q], *g = t->src[TN_LINEAR_G];
    const tn_linear_attention_params &p = t->params.linear_attention;
    subsequence_view v;
    TN_TRY(compile_subsequences(c, t, &v));
    const linear_job job = {recurrent_rows_of(q, true),
                            recurrent_rows_of(t->src[TN_LINEAR_K], true),
                            recurrent_rows_of(t->src[TN_LINEAR_V], true),
                            recurrent_rows_of(g, true),
                            recurrent_rows_of(t->src[TN_LINEAR_BETA], true),
                            recurrent_rows_of(t->src[TN_LINEAR_U], true),
                            (float *)state->data,
                            (float *)t->data,
                            (int64_t)(state->nb[1] / 4),
                            (int64_t)(t->nb[1] / 4),
                            (int64_t)(t->nb[2] / 4),
                            (int)q->ne[0],
                            (int)t->ne[0],
                            (int)(t->ne[1] / q->ne[1]),
                            (int)q->ne[1],
                            p.scale,
                            p.delta != 0,
                            p.tiled != 0,
                            g && g->ne[0] > 1,
                            columns_are_wide(state, q->ne[0])};
    if (job.dk <= 32) return add_linear<1>(c, t, job, v);
    if (job.dk <= 64) return add_linear<2>(c, t, job, v);
    if (job.dk <= 128) return add_linear<4>(c, t, job, v);
    return add_linear<8>(c, t, job, v);
}

// ---- RWKV 7 ----

struct rwkv7_job {
    recurrent_rows r, w, k, v, a, b;
    float *state, *out;
    int64_t state_row, out_head, out_token; // floats
    int d;
    bool wide;
};

enum { RWKV7_TOKENS = 4 };
template <int GROUPS> struct rwkv7_shared {
    float4 r[RWKV7_TOKENS][GROUPS * STATE_LANES], w[RWKV7_TOKENS][GROUPS * STATE_LANES],
        k[RWKV7_TOKENS][GROUPS * STATE_LANES], a[RWKV7_TOKENS][GROUPS * STATE_LANES],
        b[RWKV7_TOKENS][GROUPS * STATE_LANES];
    float v[RWKV7_TOKENS][STATE_COLUMNS];
    float br[RWKV7_TOKENS], kr[RWKV7_TOKENS]; // b·r and k·r
    int tokens[RWKV7_TOKENS];
};

template <int GROUPS>
__device__ static void stage_rwkv7(const rwkv7_job &job, const subsequence_view &v, int head, int from, int count,
                                   rwkv7_shared<GROUPS> *s) {
    enum { SIZE = GROUPS * STATE_LANES * 4 };
    const int first = blockIdx.z * STATE_COLUMNS, columns = min((int)STATE_COLUMNS, job.d - first);
    __syncthreads();
    if ((int)threadIdx.x < count) s->tokens[threadIdx.x] = subsequence_token(v, from + threadIdx.x);
    __syncthreads();
    stage_rows(&s->r[0][0].x, job.r, head, s->tokens, count, job.d, SIZE);
    stage_rows(&s->w[0][0].x, job.w, head, s->tokens, count, job.d, SIZE);
    stage_rows(&s->k[0][0].x, job.k, head, s->tokens, count, job.d, SIZE);
    stage_rows(&s->a[0][0].x, job.a, head, s->tokens, count, job.d, SIZE);
    stage_rows(&s->b[0][0].x, job.b, head, s->tokens, count, job.d, SIZE);
    for (int i = threadIdx.x; i < count * STATE_COLUMNS; i += STATE_THREADS) {
        const int t = i / STATE_COLUMNS, column = i % STATE_COLUMNS;
        s->v[t][column] =
            column < columns ? job.v.data[head * job.v.head + s->tokens[t] * job.v.token + first + column] : 0;
    }
    __syncthreads();
    const int t = threadIdx.x / 64;
    const bool of_k = threadIdx.x / 32 % 2;
    float sum = 0;
    if (t < count)
        for (int i = threadIdx.x % 32; i < job.d; i += 32)
            sum += (of_k ? (&s->k[t][0].x)[i] : (&s->b[t][0].x)[i]) * (&s->r[t][0].x)[i];
    sum = warp_sum(sum);
    if (t < count && threadIdx.x % 32 == 0) (of_k ? s->kr : s->br)[t] = sum;
    __syncthreads();
}

template <int GROUPS>
__device__ static inline float rwkv7_token(const rwkv7_shared<GROUPS> &sh, int t, column_state<GROUPS> *s) {
    float sa = 0, seen = 0;
#pragma unroll
    for (int m = 0; m < GROUPS; m++) {
        const float4 a = four_of<GROUPS>(&sh.a[t][0].x, m), w = four_of<GROUPS>(&sh.w[t][0].x, m),
                     r = four_of<GROUPS>(&sh.r[t][0].x, m);
        float(&x)[4] = s->at[m];
        sa += (x[0] * a.x + x[1] * a.y) + (x[2] * a.z + x[3] * a.w);
        x[0] *= w.x, x[1] *= w.y, x[2] *= w.z, x[3] *= w.w;
        seen += (x[0] * r.x + x[1] * r.y) + (x[2] * r.z + x[3] * r.w);
    }
    sa = column_sum(sa);
    seen = column_sum(seen);
    const float v = sh.v[t][threadIdx.x / STATE_LANES];
#pragma unroll
    for (int m = 0; m < GROUPS; m++) {
        const float4 k = four_of<GROUPS>(&sh.k[t][0].x, m), b = four_of<GROUPS>(&sh.b[t][0].x, m);
        float(&x)[4] = s->at[m];
        x[0] += sa * b.x + v * k.x;
        x[1] += sa * b.y + v * k.y;
        x[2] += sa * b.z + v * k.z;
        x[3] += sa * b.w + v * k.w;
    }
    return seen + sa * sh.br[t] + v * sh.kr[t];
}

template <int GROUPS>
__global__ static void __launch_bounds__(STATE_THREADS) rwkv7_kernel(rwkv7_job job, subsequence_view v) {
    grid_follow();
    __shared__ rwkv7_shared<GROUPS> shared;
    const int head = blockIdx.y, first = blockIdx.z * STATE_COLUMNS, column = first + threadIdx.x / STATE_LANES,
              n = subsequence_count(v), step = subsequence_stride(v);
    const bool writes_out = threadIdx.x % STATE_LANES == 0 && column < job.d;
    const state_columns columns = {job.state + ((int64_t)head * job.d + first) * job.d, job.state_row, job.d,
                                   job.d - first, job.wide};
    column_state<GROUPS> s;
    for (int subsequence = subsequence_first_of_block(v); subsequence < n; subsequence += step) {
        const int begin = subsequence_begin(v, subsequence), end = subsequence_begin(v, subsequence + 1),
                  token = subsequence_token(v, begin);
        if (!subsequence_is_live(v, token)) {
            for (int i = begin; i < end && writes_out; i++)
                job.out[head * job.out_head + subsequence_token(v, i) * job.out_token + column] = 0;
            continue;
        }
        load_columns<GROUPS>(columns, v.steps[4 * (int64_t)token + TN_STEP_READ], &s);
        for (int from = begin; from < end; from += RWKV7_TOKENS) {
            const int count = min((int)RWKV7_TOKENS, end - from);
            stage_rwkv7<GROUPS>(job, v, head, from, count, &shared);
            for (int t = 0; t < count; t++) {
                const float out = rwkv7_token<GROUPS>(shared, t, &s);
                if (writes_out) job.out[head * job.out_head + shared.tokens[t] * job.out_token + column] = out;
                const int row = subsequence_written_row(v, shared.tokens[t]);
                if (row >= 0) store_columns<GROUPS>(columns, row, s);
            }
        }
    }
}

template <int GROUPS>
static tn_status add_rwkv7(const compilation &c, const tn_tensor *t, const rwkv7_job &job,
                           const subsequence_view &v) {
    const unsigned slices = blocks_for(job.d, STATE_COLUMNS);
    return add_early(c, kernel_called("rwkv7_kernel", NULL, GROUPS), rwkv7_kernel<GROUPS>,
                     dim3(subsequence_blocks(t, t->ne[1] * slices), (unsigned)t->ne[1], slices), STATE_THREADS, 0,
                     job, v);
}
tn_status compile_rwkv7(const compilation &c, const tn_tensor *t) {
    const tn_tensor *state = t->src[TN_RECURRENT_STATE];
    subsequence_view v;
    TN_TRY(compile_subsequences(c, t, &v));
    const rwkv7_job job = {recurrent_rows_of(t->src[TN_RWKV7_R], true),
                           recurrent_rows_of(t->src[TN_RWKV7_W], true),
                           recurrent_rows_of(t->src[TN_RWKV7_K], true),
                           recurrent_rows_of(t->src[TN_RWKV7_V], true),
                           recurrent_rows_of(t->src[TN_RWKV7_A], true),
                           recurrent_rows_of(t->src[TN_RWKV7_B], true),
                           (float *)state->data,
                           (float *)t->data,
                           (int64_t)(state->nb[1] / 4),
                           (int64_t)(t->nb[1] / 4),
                           (int64_t)(t->nb[2] / 4),
                           (int)t->ne[0],
                           columns_are_wide(state, t->ne[0])};
    if (job.d <= 32) return add_rwkv7<1>(c, t, job, v);
    if (job.d <= 64) return add_rwkv7<2>(c, t, job, v);
    if (job.d <= 128) return add_rwkv7<4>(c, t, job, v);
    return add_rwkv7<8>(c, t, job, v);
}

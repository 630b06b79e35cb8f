// A gated delta net's step of one token (delta_net.cuh).
//
// A block has 32 columns of a head's state, as in linear_attention.cu. It convolves the channels that it needs: its
// head's q and k, which other blocks convolve too, and v of its columns. The factors of the norms of q and k are left
// to the end of each sum. The last block of all that share a key head stores the convolution's state of q and k,
// which the others read, and computes the gated norm of the heads, whose results are then in scratch.
#include "backend/cuda/kernels/delta/delta_net.cuh"

#include "backend/cuda/kernels/state_columns.cuh"
#include "backend/cuda/kernels/unary.cuh"

enum { CONV_WIDTH = 4, MOST_DELTA_HEAD = 256 };

struct delta_job {
    const int *steps; // of the token
    int rows;         // of both states
    const float *x, *conv_w, *conv_bias;
    float *conv_state;
    int64_t conv_row; // floats
    int channels, at_q, at_k, at_v;
    const float *alpha, *bias, *decay, *beta;
    float *state;
    int64_t state_row; // floats
    const float *norm_weight, *z;
    float *y;                                 // [heads][dv]: results before the gated norm
    unsigned *tickets;                        // one per key head
    int dk, dv, heads, key_heads, group, glu; // group: value heads per key head
    float unit_eps_q, unit_eps_k, norm_eps, scale;
    bool tiled, wide, silu, early;
    bool swapped; // z is what the gate multiplies
    tn_op_params glu_params;
    gemv_next next;
};

// Weights and inputs of one channel's convolution.
struct conv_tap {
    float w[CONV_WIDTH], x[CONV_WIDTH];
};
__device__ static inline float convolve(const delta_job &j, const conv_tap &t, float bias) {
    float y = bias;
#pragma unroll
    for (int i = 0; i < CONV_WIDTH; i++) y += t.w[i] * t.x[i];
    return j.silu ? y / (1 + expf(-y)) : y;
}
__device__ static inline void load_inputs(const delta_job &j, int channel, int read, float (&x)[CONV_WIDTH]) {
#pragma unroll
    for (int i = 0; i < CONV_WIDTH - 1; i++)
        x[i] = read < 0 ? 0 : j.conv_state[read * j.conv_row + (int64_t)i * j.channels + channel];
    x[CONV_WIDTH - 1] = j.x[channel];
}
__device__ static inline void store_inputs(const delta_job &j, int channel, int write, const float (&x)[CONV_WIDTH]) {
#pragma unroll
    for (int i = 0; i < CONV_WIDTH - 1; i++)
        j.conv_state[write * j.conv_row + (int64_t)i * j.channels + channel] = x[i + 1];
}

// What the last block of a key head does.
__device__ static void finish_key_head(const delta_job &j, int key, int read, int write, bool live) {
    if (live && write >= 0)
        for (int i = threadIdx.x; i < 2 * j.dk; i += STATE_THREADS) {
            const int channel = i < j.dk ? j.at_q + key * j.dk + i : j.at_k + key * j.dk + i - j.dk;
            float x[CONV_WIDTH];
            load_inputs(j, channel, read, x);
            store_inputs(j, channel, write, x);
        }
    // A warp per 32 elements; each adds up the squares of the whole head.
    const int lane = threadIdx.x % 32, parts = j.dv / 32;
    for (int item = threadIdx.x / 32; item < j.group * parts; item += STATE_THREADS / 32) {
        const int nth = item / parts, head = j.tiled ? key + nth * j.key_heads : key * j.group + nth,
                  i = item % parts * 32 + lane;
        const float *y = j.y + (int64_t)head * j.dv;
        const float z = j.z[(int64_t)head * j.dv + i], weight = j.norm_weight[i];
        float sum = 0;
#pragma unroll 8
        for (int k = lane; k < j.dv; k += 32) {
            const float v = __ldcg(y + k);
            sum += v * v;
        }
        const float normed = __ldcg(y + i) * rsqrtf(warp_sum(sum) / (float)j.dv + j.norm_eps) * weight,
                    value = gated(j.glu, j.swapped ? normed : z, j.swapped ? z : normed, j.glu_params);
        gemv_store_next(j.next, (int64_t)j.heads * j.dv, 0, ((int64_t)head * j.dv + i) / 32, value, value);
    }
}

template <int GROUPS>
__global__ static void __launch_bounds__(STATE_THREADS) delta_net_kernel(const __grid_constant__ delta_job j) {
    enum {
        SIZE = GROUPS * STATE_LANES * 4,
        ALL = 2 * SIZE + STATE_COLUMNS,
        EACH = (ALL + STATE_THREADS - 1) / STATE_THREADS
    };
    __shared__ __align__(16) float qkv[ALL]; // q and k, padded with zeros, and v of the block's columns
    __shared__ float sums[3], strength, factor;
    __shared__ bool is_last_block;
    const int head = blockIdx.y, key = j.tiled ? head % j.key_heads : head / j.group,
              first = blockIdx.x * STATE_COLUMNS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    grid_next();
    // The channel of an element of qkv; -1: none.
    auto channel_of = [&](int i) {
        const int at = i % SIZE;
        if (i < 2 * SIZE) return at < j.dk ? (i < SIZE ? j.at_q : j.at_k) + key * j.dk + at : -1;
        return first + at < j.dv ? j.at_v + head * j.dv + first + at : -1;
    };
    conv_tap taps[EACH];
    float bias[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int i = threadIdx.x + e * STATE_THREADS, channel = i < ALL ? channel_of(i) : -1;
        bias[e] = 0;
        if (channel < 0) continue;
#pragma unroll
        for (int t = 0; t < CONV_WIDTH; t++) taps[e].w[t] = j.conv_w[(int64_t)channel * CONV_WIDTH + t];
        if (j.conv_bias) bias[e] = j.conv_bias[channel];
    }
    if (!j.early) grid_wait();
    const int read = j.steps[TN_STEP_READ];
    const bool live = j.steps[TN_STEP_PREVIOUS] == -1 && read >= -1 && read < j.rows;
    const int write = j.steps[TN_STEP_WRITE] < j.rows ? j.steps[TN_STEP_WRITE] : -1;
    if (j.early) grid_wait();
    const state_columns columns = {j.state + ((int64_t)head * j.dv + first) * j.dk, j.state_row, j.dk, j.dv - first,
                                   j.wide};
    column_state<GROUPS> s;
    load_columns<GROUPS>(columns, live ? read : -1, &s);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int i = threadIdx.x + e * STATE_THREADS, channel = i < ALL ? channel_of(i) : -1;
        if (channel >= 0 && live) load_inputs(j, channel, read, taps[e].x);
    }
    if (threadIdx.x == STATE_THREADS - 1) {
        tn_op_params none = {};
        factor = expf(unary(TN_OP_SOFTPLUS, j.alpha[head] + j.bias[head], none) * j.decay[head]);
        strength = unary(TN_OP_SIGMOID, j.beta[head], none);
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int i = threadIdx.x + e * STATE_THREADS, channel = i < ALL ? channel_of(i) : -1;
        if (i < ALL) qkv[i] = channel >= 0 && live ? convolve(j, taps[e], bias[e]) : 0;
        // No other block reads the inputs of v.
        if (i >= 2 * SIZE && channel >= 0 && live && write >= 0) store_inputs(j, channel, write, taps[e].x);
    }
    __syncthreads();
    const float *q = qkv, *k = qkv + SIZE;
    if (warp < 3) { // q·q, k·k, q·k
        const float *a = warp == 1 ? k : q, *b = warp == 0 ? q : k;
        float sum = 0;
        for (int i = lane; i < SIZE; i += 32) sum += a[i] * b[i];
        sum = warp_sum(sum);
        if (lane == 0) sums[warp] = sum;
    }
    float predicted = 0, seen = 0;
#pragma unroll
    for (int m = 0; m < GROUPS; m++) {
        const float4 k4 = four_of<GROUPS>(k, m), q4 = four_of<GROUPS>(q, m);
        const float ks[4] = {k4.x, k4.y, k4.z, k4.w}, qs[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s.at[m][e] *= factor;
            predicted += s.at[m][e] * ks[e];
            seen += s.at[m][e] * qs[e];
        }
    }
    predicted = column_sum(predicted);
    seen = column_sum(seen);
    __syncthreads();
    const float of_q = 1 / fmaxf(sqrtf(sums[0]), j.unit_eps_q), of_k = 1 / fmaxf(sqrtf(sums[1]), j.unit_eps_k),
                added = strength * (qkv[2 * SIZE + threadIdx.x / STATE_LANES] - predicted * of_k), by = added * of_k;
#pragma unroll
    for (int m = 0; m < GROUPS; m++) {
        const float4 k4 = four_of<GROUPS>(k, m);
        s.at[m][0] += k4.x * by;
        s.at[m][1] += k4.y * by;
        s.at[m][2] += k4.z * by;
        s.at[m][3] += k4.w * by;
    }
    const int column = first + threadIdx.x / STATE_LANES;
    if (threadIdx.x % STATE_LANES == 0 && column < j.dv)
        j.y[(int64_t)head * j.dv + column] = live ? j.scale * of_q * (seen + sums[2] * by) : 0;
    if (live && write >= 0) store_columns<GROUPS>(columns, write, s);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned blocks = (unsigned)j.group * gridDim.x;
        is_last_block = atomicInc(&j.tickets[key], blocks - 1) == blocks - 1;
    }
    __syncthreads();
    if (!is_last_block) return;
    __threadfence();
    finish_key_head(j, key, read, write, live);
}

// ---- Host ----

static bool is_dense_f32(const tn_tensor *t, int64_t n) {
    return t->type == TN_F32 && tn_is_contiguous(t) && tn_nelements(t) == n;
}
// A view of heads in the convolution's result, without gaps. Its first channel in *at.
static bool is_part_of_conv(const tn_tensor *part, const tn_tensor *conv, int *at) {
    const ptrdiff_t bytes = (const char *)part->data - (const char *)conv->data;
    *at = (int)(bytes / 4);
    return part->type == TN_F32 && part->nb[0] == 4 && part->nb[1] == 4 * (size_t)part->ne[0] && part->ne[2] == 1 &&
           part->ne[3] == 1 && bytes >= 0 && bytes % 4 == 0 && *at + part->ne[0] * part->ne[1] <= conv->ne[0];
}
static bool is_weight(const tn_tensor *t) { return t->buffer && t->buffer->usage == TN_USAGE_WEIGHTS; }
bool delta_net_supports(const gated_delta &n) {
    const tn_tensor *t = n.attention, *q = n.q, *k = n.k, *v = t->src[TN_LINEAR_V],
                    *steps = t->src[TN_RECURRENT_STEPS], *state = t->src[TN_RECURRENT_STATE],
                    *conv_state = n.conv->src[TN_RECURRENT_STATE], *w = n.conv->src[TN_CONV_W],
                    *bias = n.conv->src[TN_CONV_BIAS], *x = n.conv->src[TN_CONV_X];
    const tn_linear_attention_params &p = t->params.linear_attention;
    const int64_t dk = q->ne[0], dv = t->ne[0], heads = t->ne[1], key_heads = q->ne[1];
    int at_q, at_k, at_v;
    for (const tn_tensor *node : {n.conv, n.q, n.k, n.g, n.beta, t, n.norm, n.gate})
        if (node->flags & TN_FLAG_REPEATABLE) return false;
    if (steps->ne[1] != 1 || t->ne[2] != 1 || t->ne[3] != 1 || !p.delta || t->src[TN_LINEAR_U] ||
        t->src[TN_LINEAR_G]->ne[0] != 1 || dk > MOST_DELTA_HEAD || dv % GEMV_TILE || heads > MOST_ROWS ||
        key_heads > N_TICKETS || heads % key_heads || heads * dv > INT32_MAX || k->ne[0] != dk ||
        k->ne[1] != key_heads)
        return false;
    if (n.conv->src[TN_RECURRENT_STEPS]->data != steps->data || state->ne[1] != conv_state->ne[1] ||
        w->ne[0] != CONV_WIDTH || !is_weight(w) || (bias && !is_weight(bias)) || n.conv->ne[0] > INT32_MAX / 4)
        return false;
    if (!is_part_of_conv(q->src[0], n.conv, &at_q) || !is_part_of_conv(k->src[0], n.conv, &at_k) ||
        !is_part_of_conv(v, n.conv, &at_v) || v->ne[0] != dv || v->ne[1] != heads)
        return false;
    // Every channel belongs to one of them, so that its state is stored once.
    const int keys = (int)(dk * key_heads), values = (int)(dv * heads);
    const auto apart = [](int a, int n, int b, int m) { return a + n <= b || b + m <= a; };
    return n.conv->ne[0] == 2 * keys + values && apart(at_q, keys, at_k, keys) && apart(at_q, keys, at_v, values) &&
           apart(at_k, keys, at_v, values) && is_dense_f32(x, n.conv->ne[0]) && is_dense_f32(n.alpha, heads) &&
           is_dense_f32(n.bias, heads) && is_dense_f32(n.decay, heads) && is_dense_f32(n.raw_beta, heads) &&
           is_dense_f32(n.z, heads * dv) && n.norm->src[1] && !n.norm->src[2] && is_dense_f32(n.norm->src[1], dv) &&
           tn_nelements(n.gate) == heads * dv && n.gate->type == TN_F32;
}
size_t delta_net_scratch(const device_description &, const tn_tensor *t) {
    return t->ne[2] == 1 && t->params.linear_attention.delta ? round_up_256((size_t)(t->ne[0] * t->ne[1]) * 4) : 0;
}
template <int GROUPS> static tn_status add_delta(const compilation &c, const delta_job &j) {
    return add_early(c, kernel_called("delta_net_kernel", NULL, GROUPS), delta_net_kernel<GROUPS>,
                     dim3(blocks_for(j.dv, STATE_COLUMNS), (unsigned)j.heads), STATE_THREADS, 0, j);
}
tn_status compile_delta_net(const compilation &c, const gated_delta &n, const gemv_next &next, bool early) {
    const tn_tensor *t = n.attention, *state = t->src[TN_RECURRENT_STATE],
                    *conv_state = n.conv->src[TN_RECURRENT_STATE], *bias = n.conv->src[TN_CONV_BIAS];
    delta_job j = {};
    j.steps = (const int *)t->src[TN_RECURRENT_STEPS]->data;
    j.rows = (int)state->ne[1];
    j.x = (const float *)n.conv->src[TN_CONV_X]->data;
    j.conv_w = (const float *)n.conv->src[TN_CONV_W]->data;
    j.conv_bias = bias ? (const float *)bias->data : NULL;
    j.conv_state = (float *)conv_state->data;
    j.conv_row = (int64_t)(conv_state->nb[1] / 4);
    j.channels = (int)n.conv->ne[0];
    j.silu = n.conv->params.causal_conv.silu != 0;
    is_part_of_conv(n.q->src[0], n.conv, &j.at_q);
    is_part_of_conv(n.k->src[0], n.conv, &j.at_k);
    is_part_of_conv(t->src[TN_LINEAR_V], n.conv, &j.at_v);
    j.alpha = (const float *)n.alpha->data;
    j.bias = (const float *)n.bias->data;
    j.decay = (const float *)n.decay->data;
    j.beta = (const float *)n.raw_beta->data;
    j.state = (float *)state->data;
    j.state_row = (int64_t)(state->nb[1] / 4);
    j.norm_weight = (const float *)n.norm->src[1]->data;
    j.z = (const float *)n.z->data;
    j.y = (float *)c.scratch;
    j.tickets = c.tickets;
    j.dk = (int)n.q->ne[0];
    j.dv = (int)t->ne[0];
    j.heads = (int)t->ne[1];
    j.key_heads = (int)n.q->ne[1];
    j.group = j.heads / j.key_heads;
    j.unit_eps_q = n.q->params.norm.eps;
    j.unit_eps_k = n.k->params.norm.eps;
    j.norm_eps = n.norm->params.norm.eps;
    j.scale = t->params.linear_attention.scale;
    j.tiled = t->params.linear_attention.tiled != 0;
    j.wide = columns_are_wide(state, j.dk);
    j.glu = n.gate->op;
    j.glu_params = n.gate->params;
    j.swapped = (n.gate->params.glu.swapped != 0) == (n.gate->src[0] == n.z);
    j.early = early;
    j.next = next;
    if (j.dk <= 32) return add_delta<1>(c, j);
    if (j.dk <= 64) return add_delta<2>(c, j);
    if (j.dk <= 128) return add_delta<4>(c, j);
    return add_delta<8>(c, j);
}

// Recurrent layers: the plan of subsequences, causal convolution, selective scan.
#include "backend/cuda/kernels/recurrent.cuh"

#include <algorithm>

// ---- The plan ----

enum { PLAN_THREADS = 1024 };

size_t subsequence_plan_bytes(const tn_tensor *t) {
    const size_t tokens = (size_t)t->src[TN_RECURRENT_STEPS]->ne[1], rows = (size_t)t->src[TN_RECURRENT_STATE]->ne[1];
    return round_up_256(sizeof(subsequence_plan_head) + 4 * (2 * tokens + 1 + 4 * tokens + rows));
}

// The sum of x over the threads before this one, and the sum over all in *total. `shared` has PLAN_THREADS ints.
__device__ static int sum_before(int x, int *shared, int *total) {
    __syncthreads();
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int far = 1; far < PLAN_THREADS; far *= 2) {
        const int other = (int)threadIdx.x >= far ? shared[threadIdx.x - far] : 0;
        __syncthreads();
        shared[threadIdx.x] += other;
        __syncthreads();
    }
    *total = shared[PLAN_THREADS - 1];
    return shared[threadIdx.x] - x;
}

// Every token finds the first token of its subsequence and its distance from it, by jumps of doubled length. Then
// subsequences are numbered in the order of their first tokens, and their tokens listed.
__global__ static void __launch_bounds__(PLAN_THREADS)
    subsequence_plan_kernel(const int *steps, int tokens, int rows, int *plan) {
    grid_follow();
    __shared__ int shared[PLAN_THREADS];
    subsequence_plan_head *head = (subsequence_plan_head *)plan;
    int *begin = plan + sizeof *head / 4, *list = begin + tokens + 1, *first = list + tokens,
        *distance = first + tokens, *next_first = distance + tokens, *next_distance = next_first + tokens,
        *writer = next_distance + tokens;
    const subsequence_view v = {steps, plan, tokens, rows};
    if (threadIdx.x == 0) head->in_order = 0;
    for (int t = threadIdx.x; t < tokens; t += PLAN_THREADS) {
        const int previous = steps[4 * t + TN_STEP_PREVIOUS], write = subsequence_written_row(v, t),
                  read = steps[4 * t + TN_STEP_READ];
        const bool linked = previous >= 0 && previous < t && steps[4 * previous + TN_STEP_NEXT] == t;
        first[t] = linked ? previous : t;
        distance[t] = linked;
        if (write >= 0) writer[write] = -1;
        if (read >= 0 && read < rows) writer[read] = -1;
    }
    __syncthreads();
    for (int far = 1; far < tokens; far *= 2) {
        for (int t = threadIdx.x; t < tokens; t += PLAN_THREADS) {
            next_first[t] = first[first[t]];
            next_distance[t] = distance[t] + distance[first[t]];
        }
        __syncthreads();
        int *swap = first;
        first = next_first;
        next_first = swap;
        swap = distance;
        distance = next_distance;
        next_distance = swap;
    }
    // The last token of a subsequence knows its length; next_distance[first] receives it.
    int *length = next_distance, *base = next_first;
    for (int t = threadIdx.x; t < tokens; t += PLAN_THREADS) {
        const int next = steps[4 * t + TN_STEP_NEXT];
        const bool last = !(next > t && next < tokens && steps[4 * next + TN_STEP_PREVIOUS] == t);
        if (last) length[first[t]] = distance[t] + 1;
    }
    int subsequences = 0, listed = 0;
    for (int from = 0; from < tokens; from += PLAN_THREADS) {
        __syncthreads();
        const int t = from + (int)threadIdx.x, count = t < tokens && first[t] == t ? length[t] : 0;
        int n_subsequences, n_tokens;
        const int subsequence = subsequences + sum_before(count > 0, shared, &n_subsequences),
                  at = listed + sum_before(count, shared, &n_tokens);
        if (count) begin[subsequence] = base[t] = at;
        subsequences += n_subsequences;
        listed += n_tokens;
    }
    if (threadIdx.x == 0) {
        begin[subsequences] = listed;
        head->n_subsequences = subsequences;
    }
    __syncthreads();
    // A row that two subsequences write, or one writes and another reads, orders them.
    for (int t = threadIdx.x; t < tokens; t += PLAN_THREADS) {
        list[base[first[t]] + distance[t]] = t;
        const int row = subsequence_written_row(v, t);
        if (row < 0 || !subsequence_is_live(v, first[t])) continue;
        const int other = atomicCAS(&writer[row], -1, first[t]);
        if (other >= 0 && other != first[t]) head->in_order = 1;
    }
    __syncthreads();
    for (int t = threadIdx.x; t < tokens; t += PLAN_THREADS) {
        const int read = steps[4 * t + TN_STEP_READ];
        if (first[t] != t || read < 0 || !subsequence_is_live(v, t)) continue;
        if (writer[read] >= 0 && writer[read] != t) head->in_order = 1;
    }
}

tn_status compile_subsequences(const compilation &c, const tn_tensor *t, subsequence_view *view) {
    const tn_tensor *steps = t->src[TN_RECURRENT_STEPS];
    const int64_t rows = t->src[TN_RECURRENT_STATE]->ne[1];
    *view = {(const int *)steps->data, (const int *)c.subsequences->memory, (int)steps->ne[1], (int)rows};
    if (steps->ne[1] == 1) view->plan = NULL;
    if (!view->plan || (c.subsequences->steps == steps && c.subsequences->rows == rows)) return TN_OK;
    c.subsequences->steps = steps;
    c.subsequences->rows = rows;
    return add_early(c, KERNEL(subsequence_plan_kernel), dim3(1), PLAN_THREADS, 0, (const int *)steps->data,
                     (int)steps->ne[1], (int)rows, (int *)c.subsequences->memory);
}

// A prompt is one subsequence: blocks that find no subsequence should be few. Many sequences fill the device with
// this many.
enum { ENOUGH_BLOCKS = 2048 };
unsigned subsequence_blocks(const tn_tensor *t, int64_t parts) {
    const int64_t tokens = t->src[TN_RECURRENT_STEPS]->ne[1];
    return (unsigned)std::min<int64_t>(tokens, std::max<int64_t>(1, ENOUGH_BLOCKS / std::max<int64_t>(parts, 1)));
}

static bool refuse_recurrent(char *reason, size_t size, const char *text) {
    if (reason) snprintf(reason, size, "%s", text);
    return false;
}
bool recurrent_supported(const tn_tensor *t, char *reason, size_t size) {
    const tn_tensor *state = t->src[TN_RECURRENT_STATE];
    if (t->op == TN_OP_LINEAR_ATTENTION && t->src[TN_LINEAR_Q]->ne[0] > MOST_RECURRENT_HEAD)
        return refuse_recurrent(reason, size, "keys of more than 256 elements");
    if (t->op == TN_OP_RWKV7 && t->ne[0] > MOST_RECURRENT_HEAD)
        return refuse_recurrent(reason, size, "heads of more than 256 elements");
    if (t->op == TN_OP_SELECTIVE_SCAN && t->src[TN_SCAN_A]->ne[0] > MOST_RECURRENT_HEAD)
        return refuse_recurrent(reason, size, "states of more than 256 elements");
    if (t->ne[1] > MOST_ROWS && (t->op == TN_OP_LINEAR_ATTENTION || t->op == TN_OP_RWKV7))
        return refuse_recurrent(reason, size, "more heads than a grid has blocks in y");
    // The plan counts in 32 bits.
    if (t->src[TN_RECURRENT_STEPS]->ne[1] > (1 << 24) || state->ne[1] > (1 << 24))
        return refuse_recurrent(reason, size, "too many tokens or rows");
    return true;
}

// ---- Causal convolution ----

enum { CONV_THREADS = 128, CONV_TOKENS = 8 };

struct conv_job {
    recurrent_rows x;
    const float *w, *bias;
    float *state, *out;
    int64_t state_row, out_token; // floats
    int channels;
    bool silu;
};

// A thread per channel walks the subsequences. It keeps the inputs of the last width-1 tokens and loads eight at a
// time.
template <int WIDTH> struct conv_window { float at[WIDTH - 1 + CONV_TOKENS]; };
template <int WIDTH>
__device__ static void conv_subsequence(const conv_job &job, const subsequence_view &v, const float (&w)[WIDTH],
                                        float bias, int channel, int begin, int end) {
    conv_window<WIDTH> x;
    const int read = v.steps[4 * (int64_t)subsequence_token(v, begin) + TN_STEP_READ];
#pragma unroll
    for (int j = 0; j < WIDTH - 1; j++)
        x.at[j] = read < 0 ? 0 : job.state[read * job.state_row + (int64_t)j * job.channels + channel];
    for (int from = begin; from < end; from += CONV_TOKENS) {
        int token[CONV_TOKENS];
#pragma unroll
        for (int n = 0; n < CONV_TOKENS; n++) {
            token[n] = from + n < end ? subsequence_token(v, from + n) : -1;
            x.at[WIDTH - 1 + n] = token[n] < 0 ? 0 : job.x.data[token[n] * job.x.token + channel];
        }
#pragma unroll
        for (int n = 0; n < CONV_TOKENS; n++) {
            if (token[n] < 0) break;
            float y = bias;
#pragma unroll
            for (int j = 0; j < WIDTH; j++) y += w[j] * x.at[n + j];
            job.out[token[n] * job.out_token + channel] = job.silu ? y / (1 + expf(-y)) : y;
            const int row = subsequence_written_row(v, token[n]);
            if (row < 0) continue;
#pragma unroll
            for (int j = 0; j < WIDTH - 1; j++)
                job.state[row * job.state_row + (int64_t)j * job.channels + channel] = x.at[n + 1 + j];
        }
#pragma unroll
        for (int j = 0; j < WIDTH - 1; j++) x.at[j] = x.at[CONV_TOKENS + j];
    }
}
template <int WIDTH>
__global__ static void __launch_bounds__(CONV_THREADS) causal_conv_kernel(conv_job job, subsequence_view v) {
    grid_follow();
    const int channel = blockIdx.y * CONV_THREADS + threadIdx.x, n = subsequence_count(v),
              step = subsequence_stride(v);
    if (channel >= job.channels) return;
    float w[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; j++) w[j] = job.w[(int64_t)channel * WIDTH + j];
    const float bias = job.bias ? job.bias[channel] : 0;
    for (int subsequence = subsequence_first_of_block(v); subsequence < n; subsequence += step) {
        const int begin = subsequence_begin(v, subsequence), end = subsequence_begin(v, subsequence + 1);
        if (subsequence_is_live(v, subsequence_token(v, begin)))
            conv_subsequence<WIDTH>(job, v, w, bias, channel, begin, end);
        else
            for (int i = begin; i < end; i++) job.out[subsequence_token(v, i) * job.out_token + channel] = 0;
    }
}

template <int WIDTH>
static tn_status add_conv(const compilation &c, const tn_tensor *t, const conv_job &job, const subsequence_view &v) {
    const unsigned tiles = blocks_for(t->ne[0], CONV_THREADS);
    return add_early(c, kernel_called("causal_conv_kernel", NULL, WIDTH), causal_conv_kernel<WIDTH>,
                     dim3(subsequence_blocks(t, tiles), tiles), CONV_THREADS, 0, job, v);
}
tn_status compile_causal_conv(const compilation &c, const tn_tensor *t) {
    const tn_tensor *state = t->src[TN_RECURRENT_STATE], *bias = t->src[TN_CONV_BIAS];
    subsequence_view v;
    TN_TRY(compile_subsequences(c, t, &v));
    const conv_job job = {recurrent_rows_of(t->src[TN_CONV_X], false),
                          (const float *)t->src[TN_CONV_W]->data,
                          bias ? (const float *)bias->data : NULL,
                          (float *)state->data,
                          (float *)t->data,
                          (int64_t)(state->nb[1] / 4),
                          (int64_t)(t->nb[1] / 4),
                          (int)t->ne[0],
                          t->params.causal_conv.silu != 0};
    switch (t->src[TN_CONV_W]->ne[0]) {
    case 2: return add_conv<2>(c, t, job, v);
    case 3: return add_conv<3>(c, t, job, v);
    case 4: return add_conv<4>(c, t, job, v);
    case 5: return add_conv<5>(c, t, job, v);
    case 6: return add_conv<6>(c, t, job, v);
    case 7: return add_conv<7>(c, t, job, v);
    default: return add_conv<8>(c, t, job, v);
    }
}

// ---- Selective scan ----

enum { SCAN_THREADS = 256, SCAN_LANES = 4, SCAN_TOKENS = 8 };

struct scan_job {
    recurrent_rows x, dt, B, C;
    const float *A;
    float *state, *out;
    int64_t state_row, out_token; // floats
    int channels, d;
};

// Four lanes per channel, each with PER values of its state. B and C of eight tokens are in shared memory.
template <int PER>
__global__ static void __launch_bounds__(SCAN_THREADS) selective_scan_kernel(scan_job job, subsequence_view v) {
    grid_follow();
    __shared__ float Bs[SCAN_TOKENS][PER * SCAN_LANES], Cs[SCAN_TOKENS][PER * SCAN_LANES];
    __shared__ int tokens[SCAN_TOKENS];
    const int channel = blockIdx.y * (SCAN_THREADS / SCAN_LANES) + threadIdx.x / SCAN_LANES,
              lane = threadIdx.x % SCAN_LANES, d = job.d, n = subsequence_count(v), step = subsequence_stride(v);
    const bool has_channel = channel < job.channels;
    float A[PER], s[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int at = i * SCAN_LANES + lane;
        A[i] = has_channel && at < d ? job.A[(int64_t)channel * d + at] : 0;
    }
    for (int subsequence = subsequence_first_of_block(v); subsequence < n; subsequence += step) {
        const int begin = subsequence_begin(v, subsequence), end = subsequence_begin(v, subsequence + 1),
                  first = subsequence_token(v, begin);
        const bool live = subsequence_is_live(v, first);
        const int read = live ? v.steps[4 * (int64_t)first + TN_STEP_READ] : -1;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int at = i * SCAN_LANES + lane;
            s[i] =
                read >= 0 && has_channel && at < d ? job.state[read * job.state_row + (int64_t)channel * d + at] : 0;
        }
        for (int from = begin; from < end; from += SCAN_TOKENS) {
            const int count = min(SCAN_TOKENS, end - from);
            __syncthreads();
            if ((int)threadIdx.x < count) tokens[threadIdx.x] = subsequence_token(v, from + threadIdx.x);
            __syncthreads();
            for (int i = threadIdx.x; i < count * PER * SCAN_LANES; i += SCAN_THREADS) {
                const int t = i / (PER * SCAN_LANES), at = i % (PER * SCAN_LANES);
                Bs[t][at] = at < d ? job.B.data[tokens[t] * job.B.token + at] : 0;
                Cs[t][at] = at < d ? job.C.data[tokens[t] * job.C.token + at] : 0;
            }
            __syncthreads();
            for (int t = 0; t < count; t++) {
                const int token = tokens[t];
                const float dt = has_channel ? job.dt.data[token * job.dt.token + channel] : 0,
                            dtx = has_channel ? dt * job.x.data[token * job.x.token + channel] : 0;
                float y = 0;
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    const int at = i * SCAN_LANES + lane;
                    s[i] = expf(dt * A[i]) * s[i] + dtx * Bs[t][at];
                    y += s[i] * Cs[t][at];
                }
                for (int far = SCAN_LANES / 2; far; far /= 2) y += __shfl_xor_sync(0xffffffffu, y, far);
                if (!has_channel) continue;
                if (lane == 0) job.out[token * job.out_token + channel] = live ? y : 0;
                const int row = live ? subsequence_written_row(v, token) : -1;
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    const int at = i * SCAN_LANES + lane;
                    if (row >= 0 && at < d) job.state[row * job.state_row + (int64_t)channel * d + at] = s[i];
                }
            }
        }
    }
}

template <int PER>
static tn_status add_scan(const compilation &c, const tn_tensor *t, const scan_job &job, const subsequence_view &v) {
    const unsigned tiles = blocks_for(t->ne[0] * SCAN_LANES, SCAN_THREADS);
    return add_early(c, kernel_called("selective_scan_kernel", NULL, PER), selective_scan_kernel<PER>,
                     dim3(subsequence_blocks(t, tiles), tiles), SCAN_THREADS, 0, job, v);
}
tn_status compile_selective_scan(const compilation &c, const tn_tensor *t) {
    const tn_tensor *state = t->src[TN_RECURRENT_STATE], *A = t->src[TN_SCAN_A];
    subsequence_view v;
    TN_TRY(compile_subsequences(c, t, &v));
    const scan_job job = {recurrent_rows_of(t->src[TN_SCAN_X], false),
                          recurrent_rows_of(t->src[TN_SCAN_DT], false),
                          recurrent_rows_of(t->src[TN_SCAN_B], false),
                          recurrent_rows_of(t->src[TN_SCAN_C], false),
                          (const float *)A->data,
                          (float *)state->data,
                          (float *)t->data,
                          (int64_t)(state->nb[1] / 4),
                          (int64_t)(t->nb[1] / 4),
                          (int)t->ne[0],
                          (int)A->ne[0]};
    if (job.d <= 16) return add_scan<4>(c, t, job, v);
    if (job.d <= 64) return add_scan<16>(c, t, job, v);
    return add_scan<64>(c, t, job, v);
}

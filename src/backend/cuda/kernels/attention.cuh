// Attention: what its kernels share. The job, page tables, which cells are visible to a query, scores, rotation.
//
// A kernel works on logical cells: run i of a sequence has the logical cells i * page to i * page + page - 1, of
// which the first `count` exist. Without a page table all cells of k and v are one run.
#ifndef TN_BACKEND_CUDA_KERNELS_ATTENTION_CUH
#define TN_BACKEND_CUDA_KERNELS_ATTENTION_CUH

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/kv_cache.cuh"

struct attention_job {
    const char *q, *k, *v;
    char *out;
    int64_t q1, q2, q3, k1, k2, k3, v1, v2, v3, o1, o2, o3; // byte strides of head, token or cell, batch
    const int32_t *q_pos;
    // The page table, or NULL. By sequence: the number of runs and three zeros, then max_runs runs as tn_page_run.
    const int32_t *pages;
    const char *mask;
    int64_t m0, m1, m2, m3;
    int mask_type, mask_heads, mask_batches;
    const float *sinks;
    int head_k, head_v, heads, kv_heads, tokens, cells, k_type, v_type;
    int page_shift; // log2 of the page, -1 if it is no power of two; 31 without a page table: all cells are in run 0
    int max_runs, sequences;
    tn_attention_params p;
};

// log2 of a power of two, otherwise -1.
static inline int page_shift_of(int32_t page) {
    int shift = 0;
    while (shift < 30 && 1 << shift < page) shift++;
    return 1 << shift == page ? shift : -1;
}
static inline attention_job attention_job_of(const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V],
                    *pages = t->src[TN_ATTN_PAGES], *mask = t->src[TN_ATTN_MASK];
    attention_job j;
    memset(&j, 0, sizeof j);
    j.q = (const char *)q->data;
    j.k = (const char *)k->data;
    j.v = (const char *)v->data;
    j.out = (char *)t->data;
    j.q1 = (int64_t)q->nb[1], j.q2 = (int64_t)q->nb[2], j.q3 = (int64_t)q->nb[3];
    j.k1 = (int64_t)k->nb[1], j.k2 = (int64_t)k->nb[2], j.k3 = (int64_t)k->nb[3];
    j.v1 = (int64_t)v->nb[1], j.v2 = (int64_t)v->nb[2], j.v3 = (int64_t)v->nb[3];
    j.o1 = (int64_t)t->nb[1], j.o2 = (int64_t)t->nb[2], j.o3 = (int64_t)t->nb[3];
    j.page_shift = 31;
    if (pages) {
        j.q_pos = (const int32_t *)t->src[TN_ATTN_Q_POS]->data;
        j.pages = (const int32_t *)pages->data;
        j.max_runs = (int)pages->ne[1] - 1;
        j.sequences = (int)pages->ne[2];
        j.page_shift = page_shift_of(t->params.attention.page);
    }
    if (mask) {
        j.mask = (const char *)mask->data;
        j.m0 = (int64_t)mask->nb[0], j.m1 = (int64_t)mask->nb[1], j.m2 = (int64_t)mask->nb[2],
        j.m3 = (int64_t)mask->nb[3];
        j.mask_type = mask->type;
        j.mask_heads = (int)mask->ne[2];
        j.mask_batches = (int)mask->ne[3];
    }
    j.sinks = t->src[TN_ATTN_SINKS] ? (const float *)t->src[TN_ATTN_SINKS]->data : NULL;
    j.head_k = (int)q->ne[0];
    j.head_v = (int)v->ne[0];
    j.heads = (int)q->ne[1];
    j.kv_heads = (int)k->ne[1];
    j.tokens = (int)q->ne[2];
    j.cells = (int)k->ne[2];
    j.k_type = k->type;
    j.v_type = v->type;
    j.p = t->params.attention;
    return j;
}

// A query's position and sequence; -1: padding, or a sequence that the table does not have. It sees nothing.
struct attention_query {
    int position, seq;
};
__device__ static attention_query query_of(const attention_job &j, int token) {
    if (!j.q_pos) return {j.cells - j.tokens + token, 0};
    int seq = j.q_pos[2 * token + 1];
    return {j.q_pos[2 * token], seq < j.sequences ? seq : -1};
}
// The positions visible to a query: `low` to `high`. No cell has a position below 0.
struct visible_positions {
    int low, high;
};
enum { LAST_POSITION = 0x7fffffff };
__device__ static visible_positions visible_without_chunks(const attention_job &j, attention_query q) {
    // The persistent decode kernel supports neither chunks nor windows to both sides.
    if (q.seq < 0) return {LAST_POSITION, -1};
    return {j.p.window && q.position >= j.p.window ? q.position - j.p.window + 1 : 0,
            j.p.causal ? q.position : (int)LAST_POSITION};
}
__device__ static visible_positions visible_to(const attention_job &j, attention_query q) {
    visible_positions sees = visible_without_chunks(j, q);
    if (j.p.window_after)
        sees.high = min(sees.high, q.position > LAST_POSITION - j.p.window_after ? LAST_POSITION
                                                                                 : q.position + j.p.window_after - 1);
    if (j.p.chunk) {
        int start = q.position / j.p.chunk * j.p.chunk;
        sees.low = max(sees.low, start);
        sees.high = min(sees.high, start > LAST_POSITION - j.p.chunk ? LAST_POSITION : start + j.p.chunk - 1);
    }
    return sees;
}

// ---- Page tables ----

// The logical cells of a query's sequence.
__device__ static int logical_cells(const attention_job &j, attention_query q) {
    if (!j.pages) return j.cells;
    // With one sequence the load of the table does not depend on the load of the query's sequence.
    int runs = j.sequences == 1 ? j.pages[0] : q.seq < 0 ? 0 : j.pages[4 * (int64_t)q.seq * (1 + j.max_runs)];
    return q.seq < 0 ? 0 : min(max(runs, 0), j.max_runs) * j.p.page;
}
// The run that has this logical cell, and the first logical cell of a run.
__device__ static int run_index(const attention_job &j, int logical) {
    return j.page_shift >= 0 ? logical >> j.page_shift : logical / j.p.page;
}
__device__ static int run_begin(const attention_job &j, int run) { return j.pages ? run * j.p.page : 0; }
// Run i of a sequence, i < max_runs. The count of a run that is not inside k and v or has invalid positions is 0.
// ALIGNED: the table is 16-byte aligned.
template <bool ALIGNED = true> __device__ static tn_page_run run_of(const attention_job &j, int seq, int i) {
    if (!j.pages) return {0, j.cells, 0, 1};
    const int32_t *at = j.pages + 4 * ((int64_t)seq * (1 + j.max_runs) + 1 + i);
    int4 x = ALIGNED ? *(const int4 *)at : make_int4(at[0], at[1], at[2], at[3]);
    bool is_valid =
        x.y >= 1 && x.y <= j.p.page && x.x >= 0 && x.x <= j.cells - x.y && x.z >= 0 && x.z <= LAST_POSITION - x.y;
    return {x.x, is_valid ? x.y : 0, x.z, x.w};
}
// The position of a cell of a run. Nearly all divisors are 1.
__device__ static int run_position(const tn_page_run &run, int offset) {
    int position = run.first + offset;
    return run.divisor > 1 ? position / run.divisor : position;
}
// A logical cell: its index in k and v and its position. Cell -1: there is none, position LAST_POSITION.
struct paged_cell {
    int cell, position;
};
template <bool ALIGNED = true>
__device__ static paged_cell cell_at(const attention_job &j, int seq, int logical, int end) {
    if (logical >= end) return {-1, LAST_POSITION};
    int index = run_index(j, logical), offset = logical - run_begin(j, index);
    tn_page_run run = run_of<ALIGNED>(j, seq, index);
    if (offset >= run.count) return {-1, LAST_POSITION};
    return {run.cell + offset, run_position(run, offset)};
}

// ---- Scores ----

// The ALiBi slope of a head, or 0.
__device__ static float attention_slope(const attention_job &j, int head) {
    if (j.p.max_bias <= 0) return 0;
    int base = 1 << (31 - __clz(j.heads));
    float m0 = exp2f(-j.p.max_bias / (float)base), m1 = exp2f(-j.p.max_bias / 2 / (float)base);
    return head < base ? powf(m0, (float)(head + 1)) : powf(m1, (float)(2 * (head - base) + 1));
}
// cap · tanh(s / cap), with an error below cap / 10^6.
__device__ static float soft_capped(float s, float cap) { return cap - __fdividef(2 * cap, 1 + __expf(2 * s / cap)); }
// From the dot product of a query and a key to the exponent's argument.
__device__ static float finish_score(const attention_job &j, float dot, int head, int token, int batch, int cell,
                                     attention_query q, int position, float slope) {
    float s = dot * j.p.scale;
    if (j.p.soft_cap > 0) s = soft_capped(s, j.p.soft_cap);
    if (slope > 0) s -= slope * (float)abs(q.position - position);
    if (j.mask) {
        float m = load_as_float(j.mask + cell * j.m0 + token * j.m1 + head % j.mask_heads * j.m2 +
                                    batch % j.mask_batches * j.m3,
                                j.mask_type);
        s += m;
    }
    return s;
}

// ---- Few tokens (attention_decode.cu) ----

// What can run in the same launch: norms of the heads of q and k, rotating them, storing the new rows of k and v,
// multiplying the result with the sigmoid of a gate, preparing the next matmul's input.
struct decode_extras {
    const tn_tensor *norm_q, *norm_k;   // both or none, one token only
    const tn_tensor *rope_q, *rope_k;   // both or none
    const tn_tensor *store_k, *store_v; // both or none
    const tn_tensor *gate;              // heads like the result's, needs `next`; or NULL
    gemv_next next;                     // has_next: stored instead of the result, in the form the next matmul reads
    bool has_next;
    bool early; // no node of the program computes positions, rows or page tables
};
struct decode_job {
    attention_job a;
    int splits;
    // Results of blocks: [token][head][split][SIZE + 2]: sums, maximum of the scores, sum of the weights.
    float *partial;
    unsigned *tickets; // [token][block]: counts the blocks that have finished
    // Rotation, if dims > 0.
    int dims, neox;
    // Steps of the persistent decode kernel with the same `rotation` have the same rotation table, and those with the
    // same `view` read the same runs.
    int rotation, view;
    const int32_t *positions;
    const float *factors;
    float freq_scale, ext_factor, attn_factor, corr_low, corr_high;
    double octave; // log2 of a pair's frequency, divided by the pair's index
    // New rows of the cache, if rows is set.
    const int32_t *rows;
    const char *new_k, *new_v;
    int64_t nk1, nk2, nv1, nv2; // byte strides of head and token
    char *cache_k, *cache_v;    // the same memory as a.k and a.v
    gemv_next next;
    bool store; // store the result as floats
    // Positions, rows and page tables are not computed by this program, so they may be read before grid_wait().
    bool early;
    // Persistent decode kernel only: nothing may be read before the previous step has ended; where the result is
    // published to the next step, or NULL.
    bool wait_first;
    float *published;
};

// Cosine and sine of a pair at this position.
__device__ static float2 rope_turn(const decode_job &d, int position, int pair) {
    double theta = (double)position * exp2(pair * d.octave);
    if (d.factors) theta /= d.factors[pair];
    double angle = d.freq_scale * theta;
    float magnitude = d.attn_factor;
    if (d.ext_factor != 0) {
        double ramp =
            1 - fmin(1.0, fmax(0.0, (pair - (double)d.corr_low) / fmax(0.001, (double)d.corr_high - d.corr_low)));
        double blend = ramp * d.ext_factor;
        angle = angle * (1 - blend) + theta * blend;
        magnitude *= 1 + 0.1f * logf(1 / d.freq_scale);
    }
    float s, c;
    double turns = angle * 0.15915494309189533577;
    sincospif((float)(2 * (turns - rint(turns))), &s, &c);
    return make_float2(c * magnitude, s * magnitude);
}
// Those of all pairs, one per thread.
__device__ static void rope_table(const decode_job &d, int position, float2 *turn) {
    int pair = threadIdx.x;
    if (pair < d.dims / 2) turn[pair] = rope_turn(d, position, pair);
    __syncthreads();
}
// Element i of row x, rotated. turn: cosine and sine of every pair.
__device__ static float rope_element(const decode_job &d, const float *x, int i, const float2 *turn) {
    if (i >= d.dims) return x[i];
    int pair = d.neox ? i % (d.dims / 2) : i / 2;
    bool second = d.neox ? i >= d.dims / 2 : i & 1;
    float u = x[d.neox ? pair : 2 * pair], v = x[d.neox ? pair + d.dims / 2 : 2 * pair + 1];
    return second ? u * turn[pair].y + v * turn[pair].x : u * turn[pair].x - v * turn[pair].y;
}

bool decode_supports(const device_description &device, const tn_tensor *t);
// Whether the kernel can run decode_extras, which needs an f16 cache and at most 8 tokens. `next` also needs heads of
// a multiple of 32 elements, which the caller checks.
bool decode_takes_more(const device_description &device, const tn_tensor *t);
// Rows of f16 with exactly 64 or 128 elements, and up to eight query heads per key/value head: what the persistent
// decode kernel supports.
bool decode_is_whole(const tn_tensor *t);
size_t decode_scratch(const device_description &device, const tn_tensor *t);
decode_job decode_job_of(const compilation &c, const tn_tensor *t, const decode_extras &extras);
tn_status compile_decode(const compilation &c, const tn_tensor *t, const decode_extras &extras);

// ---- Many tokens (attention_prefill.cu) ----

bool prefill_supports(const device_description &device, const tn_tensor *t);
tn_status compile_prefill(const compilation &c, const tn_tensor *t);

// ---- Tokens of many sequences, and repeatable ops (attention_many.cu) ----

bool attention_is_planned(const device_description &device, const tn_tensor *t);
size_t many_scratch(const device_description &device, const tn_tensor *t);
tn_status compile_many(const compilation &c, const tn_tensor *t);

// ---- Large heads (attention_latent.cu) ----

bool latent_supports(const device_description &device, const tn_tensor *t);
size_t latent_scratch(const device_description &device, const tn_tensor *t);
tn_status compile_latent(const compilation &c, const tn_tensor *t);

// Whether kernels for heads of up to this size can read the cache and the page table. They read row 0 instead of
// invisible cells. Tables of biases need the general kernel.
static inline bool cache_is_fast(const tn_tensor *t, int64_t size_k = 256, int64_t size_v = 256,
                                 bool selects = false) {
    const tn_tensor *pages = t->src[TN_ATTN_PAGES];
    if ((t->src[TN_ATTN_SELECTED] && !selects) || t->src[TN_ATTN_BIAS_TABLE]) return false;
    return cache_is_readable(t->src[TN_ATTN_K], size_k) && cache_is_readable(t->src[TN_ATTN_V], size_v) &&
           t->src[TN_ATTN_Q]->ne[3] == 1 && t->src[TN_ATTN_K]->ne[2] > 0 && !(pages && (uintptr_t)pages->data % 16);
}

#endif

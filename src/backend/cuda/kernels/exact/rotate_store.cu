// Rotating q and k and storing new rows of k and v in one launch (rotate_store.cuh). The results have the bits of
// rope_kernel and set_rows_kernel (rows.cu).
#include "backend/cuda/kernels/exact/rotate_store.cuh"

#include "backend/cuda/kernels/exact/exact.cuh"

enum { ROTATE_THREADS = 256, MAX_PAIRS = 256, FEW_ROTATED = 16 };

// Heads of a token: read as floats, perhaps rotated, and stored in a row of their own or in a row of the cache.
struct rotated_heads {
    const char *from;
    int64_t from_head, from_token; // bytes from one to the next
    char *to;
    int64_t to_head, to_row;
    int heads, size, type;
    bool rotates, in_cache;
};
struct rotate_store_job {
    rotated_heads parts[3];
    int begin[3], pairs; // where the pairs of each part begin; all of them
    const int32_t *positions, *rows;
    const float *factors;
    rope_scaling scaling;
    float base;
    int dims, tokens, cells;
    bool neox;
    bool early; // positions and rows are there before the previous kernel has ended
};

// A block computes a part of a token's heads, and the angles that all heads share.
__global__ static void __launch_bounds__(ROTATE_THREADS) rotate_store_kernel(rotate_store_job j) {
    grid_next();
    if (!j.early) grid_wait();
    __shared__ float2 turns[MAX_PAIRS];
    const int token = (int)blockIdx.x, row = j.rows[token], half = j.dims / 2;
    for (int pair = threadIdx.x; pair < half; pair += ROTATE_THREADS)
        turns[pair] =
            exact_pair_turn(exact_theta(j.positions[token], j.base, pair, j.dims), pair, j.factors, j.scaling);
    // Of equal rows the last one is stored.
    int later = 0;
    for (int i = token + 1 + threadIdx.x; i < j.tokens; i += ROTATE_THREADS) later |= j.rows[i] == row;
    const bool stores = !__syncthreads_or(later) && row >= 0 && row < j.cells;
    grid_wait();
    // One round for all parts, unless there are many heads.
    for (int i = (int)(blockIdx.y * ROTATE_THREADS + threadIdx.x); i < j.pairs;
         i += (int)gridDim.y * ROTATE_THREADS) {
        const int part = (i >= j.begin[1]) + (i >= j.begin[2]);
        const rotated_heads &p = j.parts[part];
        if (p.in_cache && !stores) continue;
        const int pairs = p.size / 2, of_part = i - j.begin[part], head = of_part / pairs, pair = of_part % pairs;
        const bool rotates = p.rotates && pair < half, apart = rotates && j.neox;
        const int a = apart ? pair : 2 * pair, b = apart ? pair + half : 2 * pair + 1,
                  bytes = p.type == TN_F32 ? 4 : 2;
        const float *from = (const float *)(p.from + head * p.from_head + token * p.from_token);
        float u = from[a], v = from[b];
        if (rotates) {
            const float2 turn = turns[pair];
            const float x = exact_rotated_first(u, v, turn), y = exact_rotated_second(u, v, turn);
            u = x;
            v = y;
        }
        char *to = p.to + (p.in_cache ? row : token) * p.to_row + head * p.to_head;
        if (p.type == TN_F16 && !apart) {
            *(__half2 *)(to + 2 * a) = __floats2half2_rn(u, v);
        } else {
            store_float(to + a * bytes, p.type, u);
            store_float(to + b * bytes, p.type, v);
        }
    }
}

// ---- Host ----

static bool is_heads(const tn_tensor *t) {
    return t->type == TN_F32 && t->nb[0] == 4 && t->ne[3] == 1 && t->ne[0] % 2 == 0;
}
static bool rope_is_plain(const tn_tensor *t) {
    const tn_rope_params &p = t->params.rope;
    // Behind the rotated dimensions pairs are neighbours: with all modes their number must be even.
    return t->op == TN_OP_ROPE && (p.mode == TN_ROPE_NORMAL || p.mode == TN_ROPE_NEOX) && !p.reverse &&
           is_heads(t->src[0]) && is_heads(t) && p.dims % 2 == 0 && p.dims / 2 <= MAX_PAIRS && p.dims <= t->ne[0];
}
static bool store_is_plain(const tn_tensor *t) {
    const tn_tensor *cache = t->src[0], *y = t->src[1];
    return t->op == TN_OP_SET_ROWS && (cache->type == TN_F32 || cache->type == TN_F16 || cache->type == TN_BF16) &&
           cache->ne[2] == 1 && cache->ne[3] == 1 && y->ne[2] == 1 && y->ne[3] == 1 && y->type == TN_F32 &&
           y->nb[0] == 4 && t->src[2]->type == TN_I32 && y->ne[0] % 2 == 0 && cache->nb[1] % 4 == 0 &&
           (uintptr_t)cache->data % 4 == 0 && cache->nb[0] == (size_t)(cache->type == TN_F32 ? 4 : 2);
}
bool rotate_store_supports(const rotate_store &r) {
    if (!rope_is_plain(r.rope_q) || !rope_is_plain(r.rope_k) || !store_is_plain(r.store_k) ||
        !store_is_plain(r.store_v))
        return false;
    const tn_tensor *q = r.rope_q, *k = r.rope_k, *rows = r.store_k->src[2], *other = r.store_v->src[2];
    const int64_t tokens = q->ne[2];
    return k->ne[2] == tokens && r.store_k->src[1]->ne[1] == tokens && r.store_v->src[1]->ne[1] == tokens &&
           r.store_k->src[1]->ne[0] == k->ne[0] * k->ne[1] && rows->data == other->data && rows->nb[0] == 4 &&
           other->nb[0] == 4 && r.store_k->src[0]->ne[1] == r.store_v->src[0]->ne[1] &&
           r.store_k->src[0]->ne[1] < INT32_MAX && q->src[1]->data == k->src[1]->data &&
           (q->src[2] ? q->src[2]->data : NULL) == (k->src[2] ? k->src[2]->data : NULL) &&
           memcmp(&q->params.rope, &k->params.rope, sizeof q->params.rope) == 0;
}
tn_status compile_rotate_store(const compilation &c, const rotate_store &r, bool early) {
    const tn_tensor *q = r.rope_q->src[0], *k = r.rope_k->src[0], *v = r.store_v->src[1], *kc = r.store_k->src[0],
                    *vc = r.store_v->src[0];
    const tn_rope_params &p = r.rope_q->params.rope;
    rotate_store_job j = {};
    j.parts[0] = {(const char *)q->data,
                  (int64_t)q->nb[1],
                  (int64_t)q->nb[2],
                  (char *)r.rope_q->data,
                  (int64_t)r.rope_q->nb[1],
                  (int64_t)r.rope_q->nb[2],
                  (int)q->ne[1],
                  (int)q->ne[0],
                  TN_F32,
                  true,
                  false};
    j.parts[1] = {(const char *)k->data,
                  (int64_t)k->nb[1],
                  (int64_t)k->nb[2],
                  (char *)kc->data,
                  k->ne[0] * (int64_t)kc->nb[0],
                  (int64_t)kc->nb[1],
                  (int)k->ne[1],
                  (int)k->ne[0],
                  kc->type,
                  true,
                  true};
    j.parts[2] = {(const char *)v->data,
                  0,
                  (int64_t)v->nb[1],
                  (char *)vc->data,
                  0,
                  (int64_t)vc->nb[1],
                  1,
                  (int)v->ne[0],
                  vc->type,
                  false,
                  true};
    j.positions = (const int32_t *)r.rope_q->src[1]->data;
    j.rows = (const int32_t *)r.store_k->src[2]->data;
    j.factors = r.rope_q->src[2] ? (const float *)r.rope_q->src[2]->data : NULL;
    j.scaling = {p.freq_scale, p.ext_factor, p.attn_factor, 0, 0};
    rope_blend(p, &j.scaling.corr_low, &j.scaling.corr_high);
    j.base = p.base;
    j.dims = p.dims;
    j.tokens = (int)q->ne[2];
    j.cells = (int)kc->ne[1];
    j.neox = p.mode == TN_ROPE_NEOX;
    j.early = early;
    // With few tokens several blocks share the heads of one.
    for (int i = 0; i < 3; i++) {
        j.begin[i] = j.pairs;
        j.pairs += j.parts[i].heads * (j.parts[i].size / 2);
    }
    const int64_t parts = j.tokens <= FEW_ROTATED ? blocks_for(j.pairs, ROTATE_THREADS) : 1;
    return add_early(c, KERNEL(rotate_store_kernel), dim3((unsigned)j.tokens, (unsigned)parts), ROTATE_THREADS, 0, j);
}

/* Queries, keys and values of a piece of attention as bfloat16 tiles: part of attention_tiles.h. */

TN__VEC __m512i tiled_rounded(vf low, vf high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
/* The residue of rounding; zero for infinities and NaN. */
TN__VEC vf tiled_left(vf x, __m256i rounded) {
    enum { NOT_FINITE = 0x99 };
    const vf r = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
    return _mm512_maskz_sub_ps((__mmask16)~_mm512_fpclass_ps_mask(r, NOT_FINITE), x, r);
}
TN__VEC __m512i tiled_rest(vf low, vf high, __m512i rounded) {
    return tiled_rounded(tiled_left(low, _mm512_castsi512_si256(rounded)),
                         tiled_left(high, _mm512_extracti64x4_epi64(rounded, 1)));
}
/* Rounds and interleaves two vectors. */
TN__VEC __m512i tiled_pairs(vf first, vf second) {
    const __m512i together = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(together, tiled_rounded(first, second));
}

/* Scores are in units of ln 2, so that weights are powers of two. Where tiled_adjust() modifies scores, the
 * conversion to these units follows the modification. */
#define TILED_LOG2_E 1.44269504f
#define TILED_LN_2 0.693147181f
static bool tiled_adjusts(const tn__attention_job *job) {
    return job->params.soft_cap > 0 || job->params.max_bias > 0 || job->mask;
}

/* Adds to the squared length of a row. */
TN__VEC vf tiled_squares(vf squares, vf low, vf high) { return vf_fma(low, low, vf_fma(high, high, squares)); }
/* Maximum of non-negative values, compared as integers: a NaN is larger than any number. */
TN__VEC vf tiled_longer(vf a, vf b) {
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
TN__VEC float tiled_longest(vf a) {
    const __m128i one = _mm_cvtsi32_si128((int)_mm512_reduce_max_epu32(_mm512_castps_si512(a)));
    return _mm_cvtss_f32(_mm_castsi128_ps(one));
}

static const float *tiled_query(const tn__attention_job *job, int64_t kv, int64_t row) {
    const int64_t share = job->heads / job->kv_heads, token = row / share, head = kv * share + row % share;
    return (const float *)((const char *)job->q + (size_t)head * job->q_head + (size_t)token * job->q_token);
}

/* Converts query rows, rounded values or residues: groups of 16 rows, transposed as pairs. Rows past the last are
 * zero. Returns the largest squared length, in units of ln 2. */
static float tiled_queries(const tn__attention_job *job, int64_t kv, int64_t row, int rows, bool rest,
                           tiled_memory *m) {
    const vf scale = vf_set1(tiled_adjusts(job) ? job->params.scale : job->params.scale * TILED_LOG2_E);
    const size_t part = (size_t)m->steps * TILED_VALUES;
    vf longest = vf_zero();
    for (int g = 0; g < rows; g += TILED_GROUP) {
        uint16_t *to = m->q + ((size_t)(g / TILED_GROUP) * 2 + rest) * part;
        vf squares[TILED_GROUP];
        const float *from[TILED_GROUP];
        for (int i = 0; i < TILED_GROUP; i++) {
            squares[i] = vf_zero();
            from[i] = g + i < rows ? tiled_query(job, kv, row + g + i) : NULL;
            if (g + i + TILED_GROUP >= rows) continue; /* prefetch the next group, whose rows may be pages apart */
            const float *later = tiled_query(job, kv, row + g + i + TILED_GROUP);
            for (int64_t d = 0; d < job->head_k; d += 16) _mm_prefetch((const char *)(later + d), _MM_HINT_T0);
        }
        for (int64_t s = 0; s < m->steps; s++, to += TILED_VALUES) {
            const int64_t left = job->head_k - 32 * s;
            __m512i tile[16];
            for (int i = 0; i < TILED_GROUP; i++) {
                tile[i] = _mm512_setzero_si512();
                if (!from[i]) continue;
                const float *q = from[i] + 32 * s;
                const vf low = vf_mul(scale, vf_load_n(q, left)),
                         high = left > 16 ? vf_mul(scale, vf_load_n(q + 16, left - 16)) : vf_zero();
                tile[i] = tiled_rounded(low, high);
                if (rest) tile[i] = tiled_rest(low, high, tile[i]);
                squares[i] = tiled_squares(squares[i], low, high);
            }
            tn__transpose16(tile);
            for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, tile[i]);
        }
        longest = tiled_longer(longest, vf_sums(squares));
    }
    return tiled_longest(longest) * (tiled_adjusts(job) ? TILED_LOG2_E * TILED_LOG2_E : 1);
}

/* Converts the rows of `count` listed cells to floats and fills up to `all` rows with zeros. */
static void tiled_floats(tn_type type, const char *cell_0, size_t stride, const int32_t *cells, int count, int64_t n,
                         int64_t padded, tiled_memory *m, int all) {
    for (int i = 0; i < all; i++) {
        float *row = m->rows + (size_t)i * (size_t)m->larger;
        if (i < count) row_to_f32(type, cell_0 + (size_t)cells[i] * stride, row, n);
        for (int64_t d = i < count ? n : 0; d < padded; d++) row[d] = 0;
    }
}

/* Prefetches a row of the next block. The rows of a head are often far apart, which defeats the hardware prefetcher.
 */
TN__VEC void tiled_prefetch(const char *row, size_t bytes) {
    for (size_t b = 0; b < bytes; b += 64) _mm_prefetch(row + b, _MM_HINT_T1);
}

/* Converts the keys of a list, not transposed. Returns whether scores of queries of the given squared length with
 * these keys need TILED_PARTS multiplications: one rounding costs an error of 2^-9·|q|·|k| at worst, and a tenth of
 * that unless few dimensions dominate. */
static bool tiled_keys(const tn__attention_job *job, int64_t kv, const tiled_list *list, const tiled_list *later,
                       float queries, tiled_memory *m, uint16_t *keys) {
    const char *k = (const char *)job->k + (size_t)kv * job->k_head;
    const int count = list->count;
    const bool halves = job->k_type == TN_F16 && job->head_k % 32 == 0;
    const size_t bytes = att_row_bytes(job->k_type, job->head_k);
    vf squares[TILED_GROUP], longest = vf_zero();
    for (int c = 0; c < TILED_CELLS; c++) {
        uint16_t *to = keys + (size_t)(c / 16) * (size_t)m->steps * TILED_VALUES + c % 16 * 32;
        const char *at = k + (size_t)list->cells[c] * job->k_cell;
        if (c < later->count) tiled_prefetch(k + (size_t)later->cells[c] * job->k_cell, bytes);
        if (!halves || c >= count)
            tiled_floats(job->k_type, k, job->k_cell, list->cells + c, c < count, job->head_k, 32 * m->steps, m, 1);
        vf sum = vf_zero();
        for (int64_t s = 0; s < m->steps; s++) {
            const uint16_t *h = (const uint16_t *)at + 32 * s;
            const float *f = m->rows + 32 * s;
            const bool half = halves && c < count;
            const vf low = half ? vf_load_f16(h) : vf_load(f), high = half ? vf_load_f16(h + 16) : vf_load(f + 16);
            _mm512_store_si512(to + s * TILED_VALUES, tiled_rounded(low, high));
            sum = tiled_squares(sum, low, high);
        }
        squares[c % TILED_GROUP] = c < count ? sum : vf_zero();
        if (c % TILED_GROUP == TILED_GROUP - 1) longest = tiled_longer(longest, vf_sums(squares));
    }
    if (queries * tiled_longest(longest) <= TILED_LARGE * TILED_LARGE) return false;
    const size_t part = (size_t)m->steps * TILED_VALUES;
    for (int c = 0; c < TILED_CELLS; c++) {
        uint16_t *to = keys + (size_t)(c / 16) * 2 * part + c % 16 * 32;
        tiled_floats(job->k_type, k, job->k_cell, list->cells + c, c < count, job->head_k, 32 * m->steps, m, 1);
        for (int64_t s = 0; s < m->steps; s++, to += TILED_VALUES) {
            const vf low = vf_load(m->rows + 32 * s), high = vf_load(m->rows + 32 * s + 16);
            const __m512i rounded = tiled_rounded(low, high);
            _mm512_store_si512(to, rounded);
            _mm512_store_si512(to + part, tiled_rest(low, high, rounded));
        }
    }
    return true;
}

/* Converts the values of a list: pairs of neighbouring cells, transposed. Each row is read completely before the
 * next: rows are often a multiple of 4 KiB apart, and few such lines stay in the cache together. */
static void tiled_values(const tn__attention_job *job, int64_t kv, const tiled_list *list, const tiled_list *later,
                         tiled_memory *m, uint16_t *values) {
    const char *v = (const char *)job->v + (size_t)kv * job->v_head;
    const int count = list->count;
    const size_t bytes = att_row_bytes(job->v_type, job->head_v);
    for (int c = 0; c < TILED_CELLS; c += 32) {
        const bool halves = job->v_type == TN_F16 && job->head_v % 32 == 0 && c + 32 <= count;
        const int32_t *cells = list->cells + c;
        const int left = count > c ? count - c : 0;
        uint16_t *to = values + (size_t)(c / 32) * (size_t)m->bands * TILED_VALUES;
        if (!halves)
            tiled_floats(job->v_type, v, job->v_cell, cells, left < 32 ? left : 32, job->head_v, 16 * m->bands, m,
                         32);
        for (int i = 0; i < 32 && c + i < later->count; i++)
            tiled_prefetch(v + (size_t)later->cells[c + i] * job->v_cell, bytes);
        for (int i = 0; i < 16; i++) {
            const uint16_t *h = (const uint16_t *)(v + (size_t)cells[2 * i] * job->v_cell),
                           *next = (const uint16_t *)(v + (size_t)cells[2 * i + 1] * job->v_cell);
            const float *f = m->rows + (size_t)(2 * i) * (size_t)m->larger;
            for (int64_t d = 0; d < m->bands; d++) {
                const __m512i pairs = halves ? tiled_pairs(vf_load_f16(h + 16 * d), vf_load_f16(next + 16 * d))
                                             : tiled_pairs(vf_load(f + 16 * d), vf_load(f + m->larger + 16 * d));
                _mm512_store_si512(to + d * TILED_VALUES + 32 * i, pairs);
            }
        }
        for (int64_t d = 0; d < m->bands; d++, to += TILED_VALUES) {
            __m512i pairs[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) pairs[i] = _mm512_load_si512(to + 32 * i);
            tn__transpose16(pairs);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, pairs[i]);
        }
    }
}

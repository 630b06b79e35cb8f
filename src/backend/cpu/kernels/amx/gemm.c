/* GEMM with AMX: bfloat16 tiles for weights of every type.
 *
 * Eight-bit tiles are twice as fast per instruction, but block scales would force every 16×16 tile of sums out of its
 * register after 32 values, which costs several times the multiplication. In bfloat16 the scales are part of the
 * weights, and the activations keep eight bits of precision whatever their range.
 *
 * Weights are converted to panels of 32 rows × 256 values. A panel stays in the first-level cache while it is
 * multiplied with all activations, 16 rows at a time. Meanwhile the otherwise idle vector units convert the next
 * panel, tile by tile. Every tile is loaded from contiguous memory: activations are prepared that way, and between
 * panels of the same rows the sums stay in scratch. Output rows are often a multiple of 4 KiB apart, which would put
 * the rows of a tile into the same cache sets. */
#include "backend/cpu/kernels/amx/internal.h"
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512bf16/internal.h"
#include "backend/cpu/kernels/gemm_loop.h"

enum {
    ROWS = 32,    /* of weights in a panel */
    COLS = 16,    /* activation rows at a time */
    PANELS = 16,  /* see tn__gemm_shape */
    WIDE = 512,   /* see tn__gemm_shape */
    PREFETCH = 4, /* distance in tiles between the prefetch of activations into the first-level cache and the load */
    TILE_BYTES = 1024,
    STEPS = TN__CHUNK / TN__TILE_VALUES, /* tiles in a chunk */
};

typedef struct scratch {
    tn__panel_bf16 panel[2][2]; /* one in use, one being built; each two halves of 16 rows */
    float sums[PANELS][WIDE / COLS][2][16][16];
} scratch;

size_t tn__amx_scratch(tn__act_form form, int64_t n, int64_t k) {
    (void)n, (void)k;
    return form == TN__ACT_TILES ? sizeof(scratch) : 0;
}

/* ---- Panels ---- */

/* A panel under construction. It is built in pieces between multiplications: tiles for repacked blocks and for rows
 * of bfloat16, halves for other types. Repacked bfloat16 needs no panel: tiles are loaded from the weights. */
typedef struct panel_builder {
    const tn__matmul_job *job;
    tn__panel_bf16 *panel; /* its two halves */
    int64_t row, chunk;
    int units; /* tiles of one half */
    tn__bf16_tile_fn *tile;
    const uint8_t *group; /* repacked weights only */
    size_t group_bytes;
    const char *prefetch; /* the weights of the panel after this one; NULL: none */
    int pieces;           /* of one half */
    int done, total;      /* pieces */
    int per_block;        /* pieces built after each block of multiplications */
} panel_builder;

static panel_builder panel_builder_for(const tn__matmul_job *job, int64_t row, int64_t chunk, tn__panel_bf16 *panel,
                                       int blocks) {
    const int64_t left = job->k - chunk * TN__CHUNK;
    panel_builder m = {.job = job, .panel = panel, .row = row, .chunk = chunk};
    m.units = (int)(((left < TN__CHUNK ? left : TN__CHUNK) + TN__TILE_VALUES - 1) / TN__TILE_VALUES);
    if (job->repacked) {
        m.group_bytes = tn__repacked_group_bytes(job->type, job->k);
        m.group = (const uint8_t *)job->w + (size_t)(row / 16) * m.group_bytes;
        m.tile = tn__bf16_tile_of(job->type);
    }
    if (job->repacked && job->type == TN_BF16) return m;
    m.pieces = m.tile || job->type == TN_BF16 ? m.units : 1;
    m.total = m.pieces * (job->m - row > 16 ? 2 : 1);
    m.per_block = (m.total + blocks - 1) / blocks;
    return m;
}

/* Prefetches one piece of the panel after this one, so that building it does not wait for memory. */
static void prefetch_piece(const panel_builder *m, int half, int unit) {
    const tn__matmul_job *job = m->job;
    if (m->tile) {
        const size_t bytes = m->group_bytes / (size_t)(job->k / TN__TILE_VALUES);
        const char *at = m->prefetch + (size_t)half * m->group_bytes + (size_t)unit * bytes;
        for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(at + i, _MM_HINT_T1);
    } else if (job->type == TN_BF16) {
        const char *at = m->prefetch + (size_t)(16 * half) * job->w_stride + (size_t)unit * 64;
        for (int i = 0; i < 16; i++) _mm_prefetch(at + (size_t)i * job->w_stride, _MM_HINT_T1);
    }
}

static void build_pieces(panel_builder *m, int count) {
    for (; count > 0 && m->done < m->total; count--, m->done++) {
        const int half = m->done >= m->pieces, unit = m->done - half * m->pieces;
        const int64_t row = m->row + 16 * half, at = m->chunk * STEPS + unit;
        if (m->tile)
            m->tile(m->group + (size_t)half * m->group_bytes, at, m->panel[half].value + 16 * unit);
        else if (m->job->type == TN_BF16)
            tn__bf16_rows_tile(m->job, row, at, m->panel[half].value + 16 * unit);
        else
            tn__bf16_panel(m->job, row, m->chunk, &m->panel[half]);
        if (m->prefetch) prefetch_piece(m, half, unit);
    }
}

/* ---- Multiplication ---- */

static inline __attribute__((always_inline)) void prefetch_tile(const char *tile) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm_prefetch(tile + 64 * i, _MM_HINT_T0);
}

/* Uses four of the eight tile registers: two for sums, one for activations, one for weights. A tile instruction
 * occupies a new physical register until it retires, and a thread that shares its core has about ten of them. Every
 * architectural register in use leaves one less for instructions in flight: with 2×2 sums and all eight registers,
 * half the speed was measured there. */
static inline __attribute__((always_inline)) void multiply(const char *x, const char *w0, const char *w1, int steps,
                                                           const char *next, const bool rows2) {
    for (int s = 0; s < steps; s++, x += TILE_BYTES, w0 += TILE_BYTES, w1 += TILE_BYTES, next += 256) {
        tile_load(2, x, 64);
        tile_load(3, w0, 64);
        tile_dot_bf16(0, 2, 3);
        prefetch_tile(x + PREFETCH * TILE_BYTES);
        for (int i = 0; i < 4; i++) _mm_prefetch(next + 64 * i, _MM_HINT_T0); /* sums of the next block */
        if (rows2) {
            tile_load(3, w1, 64);
            tile_dot_bf16(1, 2, 3);
        }
    }
}

static void store_sums(const tn__matmul_job *job, int64_t row, int64_t j, int64_t j_to, float sums[16][16]) {
    for (int64_t i = 0; i < 16 && j + i < j_to; i++)
        _mm512_mask_storeu_ps(tn__out_row(job, j + i) + row, tn__row_mask(job->m - row), _mm512_loadu_ps(sums[i]));
}

/* One panel (32 weight rows) times up to 16 activation rows. */
static void block(const tn__matmul_job *job, const char *x, const char *const w[2], int steps, int64_t row, int64_t j,
                  int64_t j_to, float sums[2][16][16], bool first, bool last) {
    const bool rows2 = job->m - row > 16, whole = !job->scatter && job->m - row >= ROWS && j_to - j >= COLS;
    for (int i = 0; i < COLS && last && whole; i++) { /* the destination of the sums */
        __builtin_prefetch(tn__out_row(job, j + i) + row, 1);
        __builtin_prefetch(tn__out_row(job, j + i) + row + 16, 1);
    }
    if (first) {
        tile_zero(0);
        tile_zero(1);
    } else {
        tile_load(0, sums[0], 64);
        tile_load(1, sums[1], 64);
    }
    const char *next = (const char *)sums + 2 * sizeof sums[0]; /* the next block's sums, for prefetching only */
    if (rows2)
        multiply(x, w[0], w[1], steps, next, true);
    else
        multiply(x, w[0], w[1], steps, next, false);
    if (last && whole) {
        char *out = (char *)(tn__out_row(job, j) + row);
        tile_store(0, out, job->out_stride);
        tile_store(1, out + 64, job->out_stride);
        return;
    }
    tile_store(0, sums[0], 64);
    tile_store(1, sums[1], 64);
    if (!last) return;
    tiles_see_memory();
    store_sums(job, row, j, j_to, sums[0]);
    store_sums(job, row + 16, j, j_to, sums[1]);
}

/* The first weight of a panel. */
static const char *weights_at(const tn__matmul_job *job, int64_t row, int64_t chunk) {
    const char *w = (const char *)job->w;
    if (job->repacked) {
        const size_t group = tn__repacked_group_bytes(job->type, job->k);
        return w + (size_t)(row / 16) * group +
               (size_t)(chunk * STEPS) * (group / (size_t)(job->k / TN__TILE_VALUES));
    }
    return w + (size_t)row * job->w_stride + (size_t)chunk * TN__CHUNK * 2;
}

/* Up to PANELS panels of rows, over all of k, times up to WIDE activation rows. */
static void rectangle(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to) {
    scratch *own = job->scratch;
    const int64_t chunks = (job->k + TN__CHUNK - 1) / TN__CHUNK, panels = to - from, total = chunks * panels;
    const int blocks = (int)((col_to - col_from + COLS - 1) / COLS);
    panel_builder use = panel_builder_for(job, from * ROWS, 0, own->panel[0], blocks);
    build_pieces(&use, use.total);
    for (int64_t t = 0; t < total; t++) {
        panel_builder next = {0};
        if (t + 1 < total)
            next = panel_builder_for(job, (from + (t + 1) % panels) * ROWS, (t + 1) / panels, own->panel[(t + 1) % 2],
                                     blocks);
        if (t + 2 < total) next.prefetch = weights_at(job, (from + (t + 2) % panels) * ROWS, (t + 2) / panels);
        const char *w[2] = {(const char *)&use.panel[0], (const char *)&use.panel[1]};
        if (job->repacked && job->type == TN_BF16) {
            w[0] = (const char *)use.group + use.chunk * STEPS * TILE_BYTES;
            w[1] = w[0] + use.group_bytes;
        }
        tiles_see_memory();
        for (int64_t j = col_from; j < col_to; j += COLS) {
            const char *x = (const char *)job->x +
                            tn__act_tile(job->x_rows, (job->x_first + j) / COLS, use.chunk, 0) * TILE_BYTES;
            block(job, x, w, use.units, use.row, j, col_to, own->sums[t % panels][(j - col_from) / COLS],
                  use.chunk == 0, use.chunk + 1 == chunks);
            build_pieces(&next, next.per_block);
        }
        build_pieces(&next, next.total);
        use = next;
    }
}

void tn__amx_gemm(const tn__matmul_job *job, int ith, int nth) {
    const tn__gemm_shape shape = {.rows = ROWS, .share_cols = 4 * COLS, .panels = PANELS, .wide = WIDE};
    tiles_begin();
    tn__gemm_loop(job, shape, rectangle, ith, nth);
    tiles_end();
}

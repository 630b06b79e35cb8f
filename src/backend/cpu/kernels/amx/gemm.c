/* Many activation rows with AMX: bfloat16 tiles for weights of every type.
 *
 * Eight-bit tiles are twice as fast per instruction, but block scales would have every 16×16 tile of sums leave its
 * register after 32 values, which costs several times the multiplication. As bfloat16 the scales are in the weights,
 * and the activations keep eight bits of precision whatever their range.
 *
 * Weights become panels of 32 rows × 256 values, which stay in the first level cache while all activations pass by,
 * 16 rows at a time. While a panel is in use the next one is made, tile by tile: the vector units are idle then.
 * Everything a tile is loaded from lies in one piece: activations are prepared that way, and sums wait for the next
 * panel of the same rows in scratch, not in the output, whose rows are often a multiple of 4 KiB apart and would then
 * fall on each other in the caches. */
#include "backend/cpu/kernels/amx/internal.h"
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512bf16/internal.h"
#include "backend/cpu/kernels/grid.h"

enum {
    ROWS = 32,   /* of weights in a panel */
    COLS = 16,   /* activation rows at a time */
    PANELS = 16, /* that take turns on the same activations while those are in the second level cache */
    WIDE = 512,  /* activation rows per pass */
    AHEAD = 4,   /* tiles that are fetched from the second level before they are loaded */
    TILE = 1024,
    STEPS = TN__CHUNK / TN__TILE_VALUES, /* tiles in a chunk */
};

typedef struct scratch {
    tn__panel_bf16 panel[2][2]; /* one in use, one being made; each two halves of 16 rows */
    float sums[PANELS][WIDE / COLS][2][16][16];
} scratch;

size_t tn__amx_scratch(tn__act_form form, int64_t n, int64_t k) {
    (void)n, (void)k;
    return form == TN__ACT_TILES ? sizeof(scratch) : 0;
}

/* ---- Panels ------------------------------------------------------------------------------------------------------
 */

/* A panel that is being made, piece by piece: tiles of packed blocks and of rows of bfloat16, halves of other types.
 * Packed bfloat16 needs none: tiles are loaded from the weights. */
typedef struct maker {
    const tn__matmul_job *job;
    tn__panel_bf16 *panel; /* its two halves */
    int64_t row, chunk;
    int units; /* tiles of one half */
    tn__bf16_tile_fn *tile;
    const uint8_t *group; /* packed */
    size_t group_bytes;
    const char *later;  /* the weights of the panel after this one, to be fetched; NULL: none */
    int pieces;         /* of one half */
    int made, to, each; /* pieces so far, in all, and per slot between the products */
} maker;

static maker maker_of(const tn__matmul_job *job, int64_t row, int64_t chunk, tn__panel_bf16 *panel, int slots) {
    const int64_t left = job->k - chunk * TN__CHUNK;
    maker m = {.job = job, .panel = panel, .row = row, .chunk = chunk};
    m.units = (int)(((left < TN__CHUNK ? left : TN__CHUNK) + TN__TILE_VALUES - 1) / TN__TILE_VALUES);
    if (job->packed) {
        m.group_bytes = tn__packed_group_bytes(job->type, job->k);
        m.group = (const uint8_t *)job->w + (size_t)(row / 16) * m.group_bytes;
        m.tile = tn__bf16_tile_of(job->type);
    }
    if (job->packed && job->type == TN_BF16) return m;
    m.pieces = m.tile || job->type == TN_BF16 ? m.units : 1;
    m.to = m.pieces * (job->m - row > 16 ? 2 : 1);
    m.each = (m.to + slots - 1) / slots;
    return m;
}

/* Weights come from memory, some of it after the other: the vector units should not wait for it. */
static void fetch_later(const maker *m, int half, int unit) {
    const tn__matmul_job *job = m->job;
    if (m->tile) {
        const size_t bytes = m->group_bytes / (size_t)(job->k / TN__TILE_VALUES);
        const char *at = m->later + (size_t)half * m->group_bytes + (size_t)unit * bytes;
        for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(at + i, _MM_HINT_T1);
    } else if (job->type == TN_BF16) {
        const char *at = m->later + (size_t)(16 * half) * job->w_stride + (size_t)unit * 64;
        for (int i = 0; i < 16; i++) _mm_prefetch(at + (size_t)i * job->w_stride, _MM_HINT_T1);
    }
}

static void make(maker *m, int count) {
    for (; count > 0 && m->made < m->to; count--, m->made++) {
        const int half = m->made >= m->pieces, unit = m->made - half * m->pieces;
        const int64_t row = m->row + 16 * half, at = m->chunk * STEPS + unit;
        if (m->tile)
            m->tile(m->group + (size_t)half * m->group_bytes, at, m->panel[half].value + 16 * unit);
        else if (m->job->type == TN_BF16)
            tn__bf16_rows_tile(m->job, row, at, m->panel[half].value + 16 * unit);
        else
            tn__bf16_panel(m->job, row, m->chunk, &m->panel[half]);
        if (m->later) fetch_later(m, half, unit);
    }
}

/* ---- Products ----------------------------------------------------------------------------------------------------
 */

static inline __attribute__((always_inline)) void fetch(const char *tile) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm_prefetch(tile + 64 * i, _MM_HINT_T0);
}

/* Two tiles of sums, one of activations, one of weights, although there are four more: a tile instruction needs a
 * fresh physical register until it retires, and a thread that shares its core behaves as if there were ten in all.
 * Every name in use is one less for instructions under way: with 2×2 sums and all eight names half of this was
 * measured there. */
static inline __attribute__((always_inline)) void multiply(const char *x, const char *w0, const char *w1, int steps,
                                                           const char *next, const bool rows2) {
    for (int s = 0; s < steps; s++, x += TILE, w0 += TILE, w1 += TILE, next += 256) {
        tile_load(2, x, 64);
        tile_load(3, w0, 64);
        tile_dot_bf16(0, 2, 3);
        fetch(x + AHEAD * TILE);
        for (int i = 0; i < 4; i++) _mm_prefetch(next + 64 * i, _MM_HINT_T0); /* the sums that are next */
        if (rows2) {
            tile_load(3, w1, 64);
            tile_dot_bf16(1, 2, 3);
        }
    }
}

static __mmask16 lanes(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }
static void put(const tn__matmul_job *job, int64_t row, int64_t j, int64_t j_to, float sums[16][16]) {
    for (int64_t i = 0; i < 16 && j + i < j_to; i++)
        _mm512_mask_storeu_ps(tn__out_row(job, j + i) + row, lanes(job->m - row), _mm512_loadu_ps(sums[i]));
}

/* 32 weight rows, one panel of them, times up to 16 activation rows. */
static void block(const tn__matmul_job *job, const char *x, const char *const w[2], int steps, int64_t row, int64_t j,
                  int64_t j_to, float sums[2][16][16], bool first, bool last) {
    const bool rows2 = job->m - row > 16, whole = !job->scatter && job->m - row >= ROWS && j_to - j >= COLS;
    for (int i = 0; i < COLS && last && whole; i++) { /* where the sums will go */
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
    const char *next = (const char *)sums + 2 * sizeof sums[0]; /* the next block's sums, only fetched */
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
    put(job, row, j, j_to, sums[0]);
    put(job, row + 16, j, j_to, sums[1]);
}

/* Where the weights of a panel begin. */
static const char *weights_at(const tn__matmul_job *job, int64_t row, int64_t chunk) {
    const char *w = (const char *)job->w;
    if (job->packed) {
        const size_t group = tn__packed_group_bytes(job->type, job->k);
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
    maker use = maker_of(job, from * ROWS, 0, own->panel[0], blocks);
    make(&use, use.to);
    for (int64_t t = 0; t < total; t++) {
        maker next = {0};
        if (t + 1 < total)
            next = maker_of(job, (from + (t + 1) % panels) * ROWS, (t + 1) / panels, own->panel[(t + 1) % 2], blocks);
        if (t + 2 < total) next.later = weights_at(job, (from + (t + 2) % panels) * ROWS, (t + 2) / panels);
        const char *w[2] = {(const char *)&use.panel[0], (const char *)&use.panel[1]};
        if (job->packed && job->type == TN_BF16) {
            w[0] = (const char *)use.group + use.chunk * STEPS * TILE;
            w[1] = w[0] + use.group_bytes;
        }
        tiles_see_memory();
        for (int64_t j = col_from; j < col_to; j += COLS) {
            const char *x =
                (const char *)job->x + tn__act_tile(job->x_rows, (job->x_first + j) / COLS, use.chunk, 0) * TILE;
            block(job, x, w, use.units, use.row, j, col_to, own->sums[t % panels][(j - col_from) / COLS],
                  use.chunk == 0, use.chunk + 1 == chunks);
            make(&next, next.each);
        }
        make(&next, next.to);
        use = next;
    }
}

void tn__amx_gemm(const tn__matmul_job *job, int ith, int nth) {
    tn__rect rect[3];
    int count = tn__grid_share((job->m + ROWS - 1) / ROWS, job->n, 4 * COLS, ith, nth, rect);
    tiles_begin();
    for (int i = 0; i < count; i++) {
        for (int64_t j = rect[i].col_from; j < rect[i].col_to; j += WIDE) {
            int64_t j_to = rect[i].col_to - j < WIDE ? rect[i].col_to : j + WIDE;
            for (int64_t p = rect[i].panel_from; p < rect[i].panel_to; p += PANELS) {
                int64_t p_to = rect[i].panel_to - p < PANELS ? rect[i].panel_to : p + PANELS;
                rectangle(job, p, p_to, j, j_to);
            }
        }
    }
    tiles_end();
}

/* Many activation rows with AMX: bfloat16 tiles for weights of every type.
 *
 * Eight-bit tiles are twice as fast per instruction, but block scales would have every 16×16 tile of sums leave its
 * register after 32 values, which costs several times the multiplication. As bfloat16 the scales are in the weights,
 * and the activations keep eight bits of precision whatever their range.
 *
 * Weights become panels of 32 rows × 1024 values, made once for all activations that pass by, 32 rows at a time: 2×2
 * tiles of sums, 2 of activations, 2 of weights. While a panel is in use the next one is made, tile by tile: the
 * vector units are idle then. Everything a tile is loaded from lies in one piece: activations are prepared that way,
 * and sums wait for the next panel of the same rows in scratch, not in the output, whose rows are often a multiple of
 * 4 KiB apart and would then fall on each other in the caches. */
#include "backend/cpu/kernels/amx/internal.h"
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512bf16/internal.h"
#include "backend/cpu/kernels/generic/grid.h"

enum {
    ROWS = 32,  /* of weights in a panel */
    COLS = 32,  /* activation rows at a time */
    DEPTH = 4,  /* chunks of 256 values in a panel */
    PANELS = 8, /* that take turns on the same activations while those are in the second level cache */
    WIDE = 512, /* activation rows per pass: 1 MiB of bfloat16 */
    AHEAD = 2,  /* tiles that are fetched from the second level before they are loaded */
    TILE = 1024,
    STEPS = TN__CHUNK / TN__TILE_VALUES, /* tiles in a chunk */
};

typedef struct scratch {
    tn__panel_bf16 panel[2][2][DEPTH]; /* one in use, one being made; each two halves of 16 rows */
    float sums[PANELS][WIDE / COLS][4][16][16];
} scratch;

size_t tn__amx_scratch(tn__act_form form, int64_t n, int64_t k) {
    (void)n, (void)k;
    return form == TN__ACT_TILES ? sizeof(scratch) : 0;
}

/* ---- Panels ------------------------------------------------------------------------------------------------------
 */

/* A panel that is being made. */
typedef struct maker {
    tn__panel_bf16 (*panel)[DEPTH];
    int64_t row, chunk, values;
    int units; /* tiles of one half */
    /* Packed blocks only: tile by tile. */
    tn__bf16_tile_fn *tile;
    const uint8_t *group;
    size_t group_bytes;
    int made, to, each; /* tiles so far, in all, and per slot between the products */
} maker;

static maker maker_of(const tn__matmul_job *job, int64_t row, int64_t chunk, tn__panel_bf16 (*panel)[DEPTH],
                      int blocks) {
    const int64_t left = job->k - chunk * TN__CHUNK;
    maker m = {.panel = panel, .row = row, .chunk = chunk};
    m.values = left < DEPTH * TN__CHUNK ? left : DEPTH * TN__CHUNK;
    m.units = (int)((m.values + TN__TILE_VALUES - 1) / TN__TILE_VALUES);
    if (!job->packed) return m;
    m.group_bytes = tn__packed_group_bytes(job->type, job->k);
    m.group = (const uint8_t *)job->w + (size_t)(row / 16) * m.group_bytes;
    m.tile = tn__bf16_tile_of(job->type);
    if (m.tile) {
        const int slots = blocks * ((m.units + STEPS - 1) / STEPS);
        m.to = m.units * (job->m - row > 16 ? 2 : 1);
        m.each = (m.to + slots - 1) / slots;
    }
    return m;
}

static void make_some(maker *m, int count) {
    for (; count > 0 && m->made < m->to; count--, m->made++) {
        const int half = m->made >= m->units, unit = m->made - half * m->units;
        m->tile(m->group + (size_t)half * m->group_bytes, m->chunk * STEPS + unit,
                m->panel[half][0].value + 16 * unit);
    }
}
/* What is left of it, or all of it where it is not made tile by tile. */
static void make_rest(const tn__matmul_job *job, maker *m) {
    if (m->tile) {
        make_some(m, m->to);
        return;
    }
    if (job->packed && job->type == TN_BF16) return; /* tiles are loaded from the weights */
    for (int64_t d = 0; d * TN__CHUNK < m->values; d++) {
        tn__bf16_panel(job, m->row, m->chunk + d, &m->panel[0][d]);
        if (job->m - m->row > 16) tn__bf16_panel(job, m->row + 16, m->chunk + d, &m->panel[1][d]);
    }
}

/* ---- Products ----------------------------------------------------------------------------------------------------
 */

typedef struct operands {
    const char *x, *w[2]; /* where tiles of activations, and of the weights' two halves, start */
    size_t x_chunk;       /* from one chunk of activations to the next */
    int steps;
    maker *next;
} operands;

static inline __attribute__((always_inline)) void fetch(const char *tile) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm_prefetch(tile + 64 * i, _MM_HINT_T0);
}

/* One register for activations and one for weights, although there are two to spare and activations have to be loaded
 * again: a tile instruction needs a fresh physical register until it retires, and a thread that shares its core has
 * ten of them. With all eight names in use two are left, and loads and products wait for each other. */
static inline __attribute__((always_inline)) void multiply(const operands *o, const bool rows2, const bool cols2) {
    const char *w0 = o->w[0], *w1 = o->w[1], *chunk = o->x;
    for (int done = 0; done < o->steps; done += STEPS, chunk += o->x_chunk) {
        const char *x = chunk;
        const int steps = o->steps - done < STEPS ? o->steps - done : STEPS;
        for (int s = 0; s < steps; s++, x += TILE, w0 += TILE, w1 += TILE) {
            tile_load(4, x, 64);
            tile_load(5, w0, 64);
            tile_dot_bf16(0, 4, 5);
            fetch(x + AHEAD * TILE);
            if (cols2) {
                tile_load(4, x + STEPS * TILE, 64);
                tile_dot_bf16(2, 4, 5);
                fetch(x + (STEPS + AHEAD) * TILE);
            }
            if (rows2) {
                tile_load(5, w1, 64);
                if (cols2) {
                    tile_dot_bf16(3, 4, 5);
                    tile_load(4, x, 64);
                }
                tile_dot_bf16(1, 4, 5);
            }
        }
        make_some(o->next, o->next->each);
    }
}

static __mmask16 lanes(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }
static void put(const tn__matmul_job *job, int64_t row, int64_t j, int64_t j_to, float sums[16][16]) {
    for (int64_t i = 0; i < 16 && j + i < j_to; i++)
        _mm512_mask_storeu_ps(tn__out_row(job, j + i) + row, lanes(job->m - row), _mm512_loadu_ps(sums[i]));
}

/* 32 weight rows times up to 32 activation rows over one panel. */
static void block(const tn__matmul_job *job, const operands *o, int64_t row, int64_t j, int64_t j_to,
                  float sums[4][16][16], bool first, bool last) {
    const bool rows2 = job->m - row > 16, cols2 = j_to - j > 16;
    const bool whole = !job->scatter && job->m - row >= ROWS && j_to - j >= COLS;
    for (int i = 0; i < 32 && last && whole; i++) { /* where the sums will go */
        __builtin_prefetch(tn__out_row(job, j + i) + row, 1);
        __builtin_prefetch(tn__out_row(job, j + i) + row + 16, 1);
    }
    if (first) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_load(0, sums[0], 64);
        tile_load(1, sums[1], 64);
        tile_load(2, sums[2], 64);
        tile_load(3, sums[3], 64);
    }
    if (rows2 && cols2)
        multiply(o, true, true);
    else if (rows2)
        multiply(o, true, false);
    else if (cols2)
        multiply(o, false, true);
    else
        multiply(o, false, false);
    if (last && whole) {
        char *out = (char *)(tn__out_row(job, j) + row);
        tile_store(0, out, job->out_stride);
        tile_store(1, out + 64, job->out_stride);
        out += 16 * job->out_stride;
        tile_store(2, out, job->out_stride);
        tile_store(3, out + 64, job->out_stride);
        return;
    }
    tile_store(0, sums[0], 64);
    tile_store(1, sums[1], 64);
    tile_store(2, sums[2], 64);
    tile_store(3, sums[3], 64);
    if (!last) return;
    tiles_see_memory();
    put(job, row, j, j_to, sums[0]);
    put(job, row + 16, j, j_to, sums[1]);
    put(job, row, j + 16, j_to, sums[2]);
    put(job, row + 16, j + 16, j_to, sums[3]);
}

/* Up to PANELS panels of rows, over all of k, times up to WIDE activation rows. */
static void rectangle(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to) {
    scratch *own = job->scratch;
    const int64_t chunks = (job->k + TN__CHUNK - 1) / TN__CHUNK, panels = to - from;
    const int64_t total = (chunks + DEPTH - 1) / DEPTH * panels;
    const int blocks = (int)((col_to - col_from + COLS - 1) / COLS);
    maker use = maker_of(job, from * ROWS, 0, own->panel[0], blocks);
    make_rest(job, &use);
    for (int64_t t = 0; t < total; t++) {
        maker next = {0};
        if (t + 1 < total)
            next = maker_of(job, (from + (t + 1) % panels) * ROWS, (t + 1) / panels * DEPTH, own->panel[(t + 1) % 2],
                            blocks);
        operands o = {.w = {(const char *)use.panel[0], (const char *)use.panel[1]},
                      .x_chunk = (size_t)tn__act_tile(job->x_rows, 0, 1, 0) * TILE,
                      .steps = use.units,
                      .next = &next};
        if (job->packed && job->type == TN_BF16) {
            o.w[0] = (const char *)use.group + use.chunk * STEPS * TILE;
            o.w[1] = o.w[0] + use.group_bytes;
        }
        tiles_see_memory();
        for (int64_t j = col_from; j < col_to; j += COLS) {
            o.x = (const char *)job->x + tn__act_tile(job->x_rows, (job->x_first + j) / 16, use.chunk, 0) * TILE;
            block(job, &o, use.row, j, col_to, own->sums[t % panels][(j - col_from) / COLS], use.chunk == 0,
                  use.chunk + DEPTH >= chunks);
        }
        if (t + 1 < total) make_rest(job, &next);
        use = next;
    }
}

void tn__amx_gemm(const tn__matmul_job *job, int ith, int nth) {
    tn__rect rect[3];
    int count = tn__grid_share((job->m + ROWS - 1) / ROWS, job->n, 2 * COLS, ith, nth, rect);
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

/* Many activation rows with AMX: bfloat16 tiles for weights of every type.
 *
 * Eight-bit tiles are twice as fast per instruction, but block scales would have every 16×16 tile of sums leave its
 * register after 32 values, which costs several times the multiplication. As bfloat16 the scales are in the weights,
 * sums stay in tiles over 512 values, and the activations keep eight bits of precision whatever their range.
 *
 * A panel of 32 weight rows × 512 values (32 KiB of bfloat16) stays in the first level cache while all activation
 * rows pass by, 32 at a time: 2×2 tiles of sums, 2 of activations, 2 of weights. */
#include "backend/cpu/kernels/amx/internal.h"
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512bf16/internal.h"
#include "backend/cpu/kernels/generic/grid.h"

enum {
    ROWS = 32,
    COLS = 32,
    DEPTH = 2,   /* chunks of 256 values per pass */
    PANELS = 8,  /* panels that take turns on the same activations while those are in the second level cache */
    WIDE = 1024, /* activation rows per pass: 1 MiB of bfloat16 */
    STRIDE = TN__CHUNK * sizeof(uint16_t), /* between activation rows */
};

/* 16×16 sums that do not lie as a whole in the output: an edge, or scattered rows. */
typedef struct corner {
    float value[16][16];
} corner;

static __mmask16 lanes(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

static void corner_from(const tn__matmul_job *job, int64_t row, int64_t j, int64_t j_to, corner *c) {
    for (int64_t i = 0; i < 16 && j + i < j_to; i++)
        _mm512_storeu_ps(c->value[i], _mm512_maskz_loadu_ps(lanes(job->m - row), tn__out_row(job, j + i) + row));
}
static void corner_to(const tn__matmul_job *job, int64_t row, int64_t j, int64_t j_to, const corner *c) {
    for (int64_t i = 0; i < 16 && j + i < j_to; i++)
        _mm512_mask_storeu_ps(tn__out_row(job, j + i) + row, lanes(job->m - row), _mm512_loadu_ps(c->value[i]));
}

/* Loads or clears the tile of sums at (row, j), and stores it again. */
#define SUMS_BEGIN(t, row, j)                                                                                        \
    do {                                                                                                             \
        if (first) {                                                                                                 \
            tile_zero(t);                                                                                            \
        } else if (whole) {                                                                                          \
            tile_load(t, tn__out_row(job, j) + (row), job->out_stride);                                              \
        } else {                                                                                                     \
            corner_from(job, row, j, j_to, &edge);                                                                   \
            tiles_see_memory();                                                                                      \
            tile_load(t, edge.value, 64);                                                                            \
        }                                                                                                            \
    } while (0)
#define SUMS_END(t, row, j)                                                                                          \
    do {                                                                                                             \
        if (whole) {                                                                                                 \
            tile_store(t, tn__out_row(job, j) + (row), job->out_stride);                                             \
        } else {                                                                                                     \
            tile_store(t, edge.value, 64);                                                                           \
            corner_to(job, row, j, j_to, &edge);                                                                     \
        }                                                                                                            \
    } while (0)

/* 32 rows × up to 32 activation rows over `steps` times 32 values. */
static void block(const tn__matmul_job *job, const tn__panel_bf16 panel[DEPTH][2], int64_t row, int64_t c, int64_t j,
                  int64_t j_to, int steps, bool first) {
    _Alignas(64) corner edge;
    bool two_rows = job->m - row > 16, two_cols = j_to - j > 16;
    bool whole = !job->scatter && job->m - row >= ROWS && j_to - j >= COLS;
    SUMS_BEGIN(0, row, j);
    if (two_rows) SUMS_BEGIN(1, row + 16, j);
    if (two_cols) SUMS_BEGIN(2, row, j + 16);
    if (two_rows && two_cols) SUMS_BEGIN(3, row + 16, j + 16);
    tiles_see_memory();
    for (int s = 0; s < steps; s++) {
        const char *x = (const char *)tn__bf16_at(job, c + s / 8, j) + (size_t)(s % 8) * 64;
        const void *w = panel[s / 8][0].value[16 * (s % 8)], *w2 = panel[s / 8][1].value[16 * (s % 8)];
        tile_load(4, x, STRIDE);
        tile_load(6, w, 64);
        tile_dot_bf16(0, 4, 6);
        if (two_rows) {
            tile_load(7, w2, 64);
            tile_dot_bf16(1, 4, 7);
        }
        if (two_cols) {
            tile_load(5, x + 16 * STRIDE, STRIDE);
            tile_dot_bf16(2, 5, 6);
            if (two_rows) tile_dot_bf16(3, 5, 7);
        }
    }
    SUMS_END(0, row, j);
    if (two_rows) SUMS_END(1, row + 16, j);
    if (two_cols) SUMS_END(2, row, j + 16);
    if (two_rows && two_cols) SUMS_END(3, row + 16, j + 16);
}

static void rectangle(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to) {
    _Alignas(64) tn__panel_bf16 panel[DEPTH][2];
    for (int64_t c = 0; c * TN__CHUNK < job->k; c += DEPTH) {
        int64_t left = job->k - c * TN__CHUNK, values = left < DEPTH * TN__CHUNK ? left : DEPTH * TN__CHUNK;
        for (int64_t p = from; p < to; p++) {
            int64_t row = p * ROWS;
            for (int64_t d = 0; d * TN__CHUNK < values; d++) {
                tn__bf16_panel(job, row, c + d, &panel[d][0]);
                if (job->m - row > 16) tn__bf16_panel(job, row + 16, c + d, &panel[d][1]);
            }
            for (int64_t j = col_from; j < col_to; j += COLS)
                block(job, panel, row, c, j, col_to, (int)((values + 31) / 32), c == 0);
        }
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

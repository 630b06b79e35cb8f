/* The f32 register tile, a template over the vector type: two vectors of rows times up to TILE_COLS columns,
 *   out[j][i] (+)= Σ_l panel[l][i]·x[j][l]   for i < 2·VL.
 * Every sum runs over l in order, whatever the number of columns, so a result does not depend on how work is divided.
 */
#ifndef TN_TEMPLATE_TILE_H
#define TN_TEMPLATE_TILE_H

enum { TILE_ROWS = 2 * VL };

/* Rows i ≥ `rows` are neither read from nor written to `out`. */
TN__VEC void tile_of(const float *panel, const float *x, size_t x_next, int count, bool add, float *const *out,
                     int64_t rows, const int cols) {
    vf a[TILE_COLS], b[TILE_COLS];
#pragma GCC unroll 12
    for (int j = 0; j < cols; j++) {
        a[j] = b[j] = vf_zero();
        if (add) {
            a[j] = vf_load_n(out[j], rows);
            if (rows > VL) b[j] = vf_load_n(out[j] + VL, rows - VL);
        }
    }
    for (int l = 0; l < count; l++) {
        vf u = vf_load(panel + l * TILE_ROWS), v = vf_load(panel + l * TILE_ROWS + VL);
#pragma GCC unroll 12
        for (int j = 0; j < cols; j++) {
            vf s = vf_set1(x[(size_t)j * x_next + (size_t)l]);
            a[j] = vf_fma(u, s, a[j]);
            b[j] = vf_fma(v, s, b[j]);
        }
    }
#pragma GCC unroll 12
    for (int j = 0; j < cols; j++) {
        vf_store_n(out[j], a[j], rows);
        if (rows > VL) vf_store_n(out[j] + VL, b[j], rows - VL);
    }
}

#define TILE(cols)                                                                                                   \
    static void tile_##cols(const float *panel, const float *x, size_t x_next, int count, bool add,                  \
                            float *const *out, int64_t rows) {                                                       \
        tile_of(panel, x, x_next, count, add, out, rows, cols);                                                      \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
#if TN__TILE_12
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
#endif
#undef TILE
static void (*const tiles[TILE_COLS])(const float *, const float *, size_t, int, bool, float *const *, int64_t) = {
    tile_1, tile_2, tile_3, tile_4,  tile_5,  tile_6,
#if TN__TILE_12
    tile_7, tile_8, tile_9, tile_10, tile_11, tile_12,
#endif
};

/* Transposes VL rows of `count` floats, `stride` floats apart, into columns `first`… of a panel. */
TN__VEC void transpose_rows(const float *rows, size_t stride, int count, int first, float *panel) {
    for (int l = 0; l < count; l += VL) {
        vf r[VL];
        int left = count - l;
        for (int i = 0; i < VL; i++)
            r[i] =
                left >= VL ? vf_load(rows + (size_t)i * stride + l) : vf_load_n(rows + (size_t)i * stride + l, left);
        vf_transpose(r);
        for (int i = 0; i < VL && i < left; i++) vf_store(panel + (size_t)(l + i) * TILE_ROWS + first, r[i]);
    }
}

#endif

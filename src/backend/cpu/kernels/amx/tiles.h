/* The eight 16×64-byte tile registers of AMX. Where TN__TILES_EMULATED is defined they are emulated in memory, so
 * that the loops built on them can be tested on any machine. Tile numbers must be constants. */
#ifndef TN_AMX_TILES_H
#define TN_AMX_TILES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

#if defined(TN__TILES_EMULATED)

static _Thread_local struct tile { float f32[16][16]; } tile_memory[8];
static _Thread_local int tiles_configured;

static inline void tiles_begin(void) { tiles_configured = 1; }
static inline void tiles_end(void) { tiles_configured = 0; }
static inline void tiles_see_memory(void) {}
static inline void tile_zero(int t) { memset(&tile_memory[t], 0, sizeof tile_memory[t]); }
static inline void tile_load(int t, const void *from, size_t stride) {
    for (int r = 0; r < 16; r++) memcpy(tile_memory[t].f32[r], (const char *)from + (size_t)r * stride, 64);
}
static inline void tile_load_once(int t, const void *from, size_t stride) { tile_load(t, from, stride); }
static inline void tile_store(int t, void *to, size_t stride) {
    for (int r = 0; r < 16; r++) memcpy((char *)to + (size_t)r * stride, tile_memory[t].f32[r], 64);
}
/* c[i][j] += Σ_l a[i][2l]·b[l][2j] + a[i][2l+1]·b[l][2j+1] */
static inline void tile_dot_bf16(int c, int a, int b) {
    if (!tiles_configured) return; /* wrong results, which tests detect */
    const uint16_t(*x)[32] = (const uint16_t(*)[32])(const void *)tile_memory[a].f32;
    const uint16_t(*y)[32] = (const uint16_t(*)[32])(const void *)tile_memory[b].f32;
    for (int i = 0; i < 16; i++) {
        for (int l = 0; l < 16; l++) {
            for (int j = 0; j < 16; j++)
                tile_memory[c].f32[i][j] += tn__bf16_to_f32(x[i][2 * l]) * tn__bf16_to_f32(y[l][2 * j]) +
                                            tn__bf16_to_f32(x[i][2 * l + 1]) * tn__bf16_to_f32(y[l][2 * j + 1]);
        }
    }
}

#else

/* All eight tiles have 16 rows of 64 bytes. The configuration belongs to the thread and is saved with its registers;
 * releasing it afterwards keeps context switches of idle threads cheap. */
static inline void tiles_begin(void) {
    /* Constant, because the compiler does not know that the intrinsic reads all of it. */
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_per_row[16];
        uint8_t rows[16];
    } config = {
        .palette = 1, .bytes_per_row = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _Static_assert(sizeof config == 64, "layout of LDTILECFG's operand");
    _tile_loadconfig(&config);
}
static inline void tiles_end(void) { _tile_release(); }
/* The compiler does not know that a tile load reads memory: this barrier keeps earlier writes before later loads. */
#define tiles_see_memory() __asm__ volatile("" ::: "memory")
#define tile_zero(t) _tile_zero(t)
#define tile_load(t, from, stride) _tile_loadd(t, from, stride)
#define tile_load_once(t, from, stride) _tile_stream_loadd(t, from, stride)
#define tile_store(t, to, stride) _tile_stored(t, to, stride)
#define tile_dot_bf16(c, a, b) _tile_dpbf16ps(c, a, b)

#endif
#endif

/* Repacked weights: 16 rows interleaved, so that one vector holds the same values of 16 rows.
 *
 * The layout is the same at every level. A group holds 16 rows and consists of units. A unit is one block of the
 * type, and at least 32 values:
 *
 *   q8_0x16  f16 d[16]; bytes [8][16][4] of code + 128
 *   q4_0x16  f16 d[16]; bytes [4][16][4] as in the rows: element in the low nibble, element + 16 in the high one
 *   q4_Kx16  f16 d[16], dmin[16]; scales as below; bytes [4][8][16][4] as in the rows
 *   q6_Kx16  f16 d[16]; i8 scales[16][16]; per half of 128 values eight times: ql [2][16][4], qh [16][4]
 *   f16x16, bf16x16  [k/2][16][2]
 *
 * [n][16][4] means n times 16 rows times four neighbouring bytes. The six-bit scales and minima of q4_Kx16 take three
 * times 16 bytes, one byte per row, for each pair of sub-blocks (2p, 2p+1):
 *   scale(2p) | low two bits of min(2p) << 6
 *   scale(2p+1) | low two bits of min(2p+1) << 6
 *   high four bits of min(2p) | high four bits of min(2p+1) << 4 */
#ifndef TN_CPU_KERNELS_REPACK_H
#define TN_CPU_KERNELS_REPACK_H

#include "backend/cpu/kernels/kernels.h"

enum { TN__REPACK_ROWS = 16 };

/* Whether the type has such a layout and k fills whole units. */
bool tn__can_repack(tn_type type, int64_t m, int64_t k);
size_t tn__repacked_bytes(tn_type type, int64_t m, int64_t k);
size_t tn__repacked_group_bytes(tn_type type, int64_t k);
void tn__repack(tn_type type, int64_t m, int64_t k, const void *rows, size_t stride, void *repacked, int64_t first,
                int64_t n);

/* The original bytes: of one row, and of values [256·chunk, +256) (or up to k) of one row. */
void tn__repacked_read_row(tn_type type, int64_t m, int64_t k, const void *repacked, int64_t row, void *out);
void tn__repacked_read_chunk(tn_type type, int64_t k, const void *repacked, int64_t row, int64_t chunk, void *out);

#endif

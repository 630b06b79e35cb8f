/* The table of CPU kernels: plain C for every entry, overridden by faster ones where the CPU has the instructions.
 *
 * Op drivers handle shapes, broadcasting, threads and scratch; kernels handle rows, tiles and types. Kernels allocate
 * nothing and cannot fail. They give the same bits for any number of threads: work is divided over outputs only, and
 * the order of summation for one output depends on the shapes alone.
 *
 * All pointers may be unaligned unless stated otherwise. Tables are constant once returned and safe from any thread.
 */
#ifndef TN_CPU_KERNELS_H
#define TN_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tenon/tensor.h"
#include "tensor/attention_bias.h"

/* ---- Levels ---- */

typedef enum tn__cpu_level {
    TN__CPU_GENERIC, /* plain C for any CPU of the architecture */
    TN__CPU_AVX2,    /* AVX2, FMA, F16C */
    TN__CPU_AVX512,  /* F, BW, VL, DQ, VNNI, VBMI; BF16 where present */
    TN__CPU_AMX,     /* the same with int8 and bf16 tiles */
    TN__CPU_NEON,    /* ARM v8.2 with dot products; int8 matrix instructions where present */
    TN__CPU_LEVELS
} tn__cpu_level;

/* ---- Mat-mul ---- */
/* out[j][i] = Σ w[i][·]·x[j][·] for m weight rows i and n activation rows j of k values each.
 *
 * 1. matmul_form returns the form in which the kernel needs the activations.
 * 2. act_prepare converts them into act_bytes() bytes of scratch: each thread its share, then a barrier. For one
 *    or two rows it is cheaper when every thread prepares its own copy, with ith = 0 of 1. With at least as many
 *    rows as threads, a share is the whole rows given by tn__share(), except for tiles. Several matmuls with the
 *    same activations, k and form share one preparation. TN__ACT_PLAIN needs none.
 * 3. matmul computes share ith of nth.
 *
 * Prepared activations are divided into chunks of 256 values: chunk c of row r has index c·rows + r. The last chunk
 * is padded with zeros. Tiles have a layout of their own: see tn__act_tile. */
enum { TN__CHUNK = 256, TN__ACT_ALIGN = 64, TN__TILE_ROWS = 16, TN__TILE_VALUES = 32 };

/* How a mat-mul is computed; combined with |. */
enum {
    TN__MATMUL_PRECISE = 1,    /* activations are never quantized */
    TN__MATMUL_REPEATABLE = 2, /* the bits of a result do not depend on the number of activation rows */
};

typedef enum tn__act_form {
    TN__ACT_PLAIN, /* f32 rows as they are */
    TN__ACT_F32,   /* chunks of 256 floats */
    TN__ACT_BF16,  /* chunks of 256 bfloat16 */
    TN__ACT_Q8,    /* chunks of tn__q8_chunk: eight bits with a scale per 32 values */
    TN__ACT_TILES  /* bfloat16 tiles of 16 rows × 32 values; padding rows of the last tile are zero */
} tn__act_form;

/* Index of the tile, each of 1 KiB, with values [32·(8·chunk + step), +32) of rows [16·group, +16). */
static inline int64_t tn__act_tile(int64_t rows, int64_t group, int64_t chunk, int64_t step) {
    int64_t groups = (rows + TN__TILE_ROWS - 1) / TN__TILE_ROWS;
    return (chunk * groups + group) * (TN__CHUNK / TN__TILE_VALUES) + step;
}

/* value = d·qs. A block with a NaN or an infinity has d = NaN, so that every result that depends on it is NaN. */
typedef struct tn__q8_chunk {
    int8_t qs[256];
    float d[8];         /* per 32 */
    float ds[8];        /* d·Σqs per 32: the factor of a weight block's minimum */
    int32_t bias[8];    /* -128·Σqs per 32: cancels the offset of weights held as unsigned bytes, 128 too large */
    float reserved[8];  /* zero */
    int32_t bias16[16]; /* the same per 16 */
    float ds16[16];
} tn__q8_chunk;
_Static_assert(sizeof(tn__q8_chunk) == 512, "eight cache lines");

typedef struct tn__matmul_job {
    tn_type type;      /* of the weights */
    bool repacked;     /* w was written by `repack`; otherwise rows w_stride bytes apart */
    tn__act_form form; /* the result of matmul_form for these weights (n may be smaller: an expert's rows) */
    bool repeatable;   /* TN__MATMUL_REPEATABLE was given to matmul_form */
    int64_t m, n, k;
    const void *w;
    size_t w_stride;
    const void *x;   /* PLAIN: f32 rows x_stride bytes apart; else prepared data, 64-byte aligned */
    size_t x_stride; /* PLAIN only */
    int64_t x_rows;  /* prepared: number of rows prepared together */
    int64_t x_first; /* prepared: index of this job's row 0 among them; TILES: a multiple of 16 */
    float *out;
    size_t out_stride;      /* bytes between out rows */
    const int32_t *scatter; /* out row of activation row j is scatter[j]; NULL: j */
    void *scratch;          /* matmul_scratch() bytes of this thread, 64-byte aligned */
} tn__matmul_job;

/* ---- Attention ---- */
/* One batch entry of tn_attention (tensor.h); strides in bytes; elements inside a row are adjacent. Scores are
 * scale·q·k, capped, plus ALiBi's -slope·|position difference|, plus the mask.
 *
 * 1. attention_scratch returns the bytes of scratch (64-byte aligned) that all threads share.
 * 2. attention computes share ith of nth. If attention_splits() > 1, a barrier follows, then
 * 3. attention_combine combines the partial results, again by shares. */
typedef struct tn__attention_job {
    int64_t head_k, head_v, heads, kv_heads, tokens, cells;
    tn_type k_type, v_type;
    const void *q, *k, *v;
    size_t q_head, q_token, k_head, k_cell, v_head, v_cell;
    float *out;
    size_t out_head, out_token;
    bool paged;
    bool repeatable;          /* a query's bits depend on its cells and their positions alone: TN_FLAG_REPEATABLE */
    const int32_t *q_pos;     /* [2, tokens]; NULL if not paged: cells - tokens - later + index */
    int64_t later;            /* tokens after those of this job, where it is a part of another */
    const tn_page_run *pages; /* [sequences][1 + runs]; the first entry's `cell` is the number of runs */
    int64_t runs, sequences;
    const void *mask; /* f32, or f16 when mask_f16; NULL: none */
    bool mask_f16;
    size_t mask_token, mask_head; /* mask_head 0: one mask for all heads */
    const float *sinks;           /* [heads] or NULL */
    const int32_t *selected;      /* [tokens][n_selected] or NULL: blocks of positions, negative if unused */
    int64_t n_selected;           /* 0 without selected positions */
    bool selects;                 /* only selected positions are visible */
    const float *biases;          /* [buckets][heads] or NULL */
    bool biased;                  /* scores have biases */
    tn__bias_buckets buckets;     /* if biased */
    tn_attention_params params;
    void *scratch;
    int32_t *sorted; /* vector kernels: the thread's room for the entries of one query */
} tn__attention_job;

/* ---- Recurrent layers ---- */
/* Tokens of one subsequence (recurrent.h), in order, with one head or a few channels. Row i of a source is
 * source + tokens[i]·stride bytes. Columns of a state are independent of each other and always computed in the same
 * way, so that they can be divided among threads in multiples of TN__COLUMNS. */
enum { TN__COLUMNS = 16, TN__TOKEN_BLOCK = 16 };

typedef struct tn__conv_job {
    int64_t n, width;  /* channels; values per channel */
    const float *w;    /* [width][n] */
    const float *bias; /* [n] or NULL */
    bool silu;
} tn__conv_job;

/* Columns j of the state are dk values each. With up to TN__TOKEN_BLOCK tokens. */
typedef struct tn__linear_job {
    int64_t dk, dv; /* dv: columns of this job */
    const int32_t *tokens;
    int64_t n;
    const float *q, *k, *v, *g, *beta, *u; /* g, beta and u may be NULL */
    size_t q_token, k_token, v_token, g_token, beta_token;
    bool channels; /* g has dk values, otherwise one */
    bool delta;
    float scale;
    const float *from; /* the state before the tokens; may be `state` */
    float *state, *out;
    size_t out_token;
    float *scratch; /* 4·TN__TOKEN_BLOCK·dk floats */
} tn__linear_job;

/* Channels c of the state are d values each. */
typedef struct tn__scan_job {
    int64_t d, n; /* values per channel; channels */
    const int32_t *tokens;
    int64_t n_tokens;
    const float *x, *dt, *A, *B, *C;
    size_t x_token, dt_token, b_token, c_token;
    float *state, *out;
    size_t out_token;
} tn__scan_job;

typedef struct tn__rwkv7_job {
    int64_t d, n; /* size of a head; columns of this job */
    const int32_t *tokens;
    int64_t n_tokens;
    const float *r, *w, *k, *v, *a, *b;
    size_t r_token, w_token, k_token, v_token, a_token, b_token;
    float *state, *out;
    size_t out_token;
} tn__rwkv7_job;

/* ---- Indexers of sparse attention ---- */

/* Scores of consecutive cells for one query. A dot product is always summed in the same order, whatever the number of
 * cells. */
typedef struct tn__index_job {
    int64_t size, heads;
    const float *q; /* [heads], q_head bytes apart */
    size_t q_head;
    const float *weights; /* [heads], or NULL: every head has scores of its own */
    const char *keys;     /* [n], key_cell bytes apart */
    size_t key_cell;
    int64_t n;
    float *out;       /* [n], or [heads][n] */
    int64_t out_list; /* floats from a head's scores to the next head's */
} tn__index_job;

/* ---- The table ---- */

typedef struct tn__cpu_kernels {
    tn__cpu_level level;
    const char *name; /* "avx512" */

    /* Mat-mul. */
    tn__act_form (*matmul_form)(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how);
    size_t (*act_bytes)(tn__act_form form, int64_t rows, int64_t k);
    /* Row r is read from x + (gather ? gather[r] : r)·x_stride; for TILES it is zero where gather[r] is negative. */
    void (*act_prepare)(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                        int64_t k, void *data, int ith, int nth);
    size_t (*matmul_scratch)(tn__act_form form, int64_t n, int64_t k); /* per thread */
    void (*matmul)(const tn__matmul_job *job, int ith, int nth);

    /* Repacked weights (repack.h): groups of 16 interleaved rows. The layout is the same at every level and every
     * level can read it; can_repack returns whether it is faster at this one. k must be a multiple of 32 and
     * of the type's block size. `repack` fills groups first…first+n-1 (of ceil(m/16)); absent rows of the last group
     * are zero. `repacked_read_row` restores the original bytes. */
    bool (*can_repack)(tn_type type, int64_t m, int64_t k);
    size_t (*repacked_bytes)(tn_type type, int64_t m, int64_t k);
    void (*repack)(tn_type type, int64_t m, int64_t k, const void *rows, size_t stride, void *repacked, int64_t first,
                   int64_t n);
    void (*repacked_read_row)(tn_type type, int64_t m, int64_t k, const void *repacked, int64_t row, void *out);

    /* Attention. */
    size_t (*attention_scratch)(const tn__attention_job *job, int nth);
    int (*attention_splits)(const tn__attention_job *job);
    void (*attention)(const tn__attention_job *job, int ith, int nth);
    void (*attention_combine)(const tn__attention_job *job, int ith, int nth);

    void (*index_scores)(const tn__index_job *job);

    /* Recurrent layers. conv_weights turns w[n][width] into [width][n]. The convolution of one token: rows[0] is the
     * oldest of `width` rows of n channels. */
    void (*conv_weights)(int64_t n, int64_t width, const float *w, float *to);
    void (*conv_token)(const tn__conv_job *job, const float *const *rows, float *out);
    void (*linear_attention)(const tn__linear_job *job);
    void (*selective_scan)(const tn__scan_job *job);
    void (*rwkv7)(const tn__rwkv7_job *job);

    /* Row conversions by type; NULL where the type has none. */
    void (*to_f32[TN_TYPE_LIMIT])(const void *from, float *to, int64_t n);
    void (*from_f32[TN_TYPE_LIMIT])(const float *from, void *to, int64_t n);

    /* Rows of n floats; y may be x, z may be x or y. */
    void (*add)(int64_t n, const float *x, const float *y, float *z);
    void (*sub)(int64_t n, const float *x, const float *y, float *z);
    void (*mul)(int64_t n, const float *x, const float *y, float *z);
    void (*div)(int64_t n, const float *x, const float *y, float *z);
    void (*scale)(int64_t n, float s, float b, const float *x, float *y); /* s·x + b */
    void (*mad)(int64_t n, float s, const float *x, float *y);            /* y += s·x */
    void (*exp)(int64_t n, const float *x, float *y);
    void (*tanh)(int64_t n, const float *x, float *y);
    void (*sigmoid)(int64_t n, const float *x, float *y);
    void (*silu)(int64_t n, const float *x, float *y);
    void (*gelu)(int64_t n, const float *x, float *y);
    void (*gelu_quick)(int64_t n, const float *x, float *y);
    void (*gelu_erf)(int64_t n, const float *x, float *y);
    void (*softplus)(int64_t n, const float *x, float *y);                   /* log(1 + e^x) */
    void (*swiglu)(int64_t n, const float *gate, const float *up, float *y); /* silu(gate)·up */
    void (*geglu)(int64_t n, const float *gate, const float *up, float *y);  /* gelu(gate)·up */
    float (*dot)(int64_t n, const float *x, const float *y);
    float (*sum)(int64_t n, const float *x);
    float (*max)(int64_t n, const float *x);                          /* -inf for n = 0; NaN if any */
    float (*exp_sum)(int64_t n, float max, const float *x, float *y); /* y = exp(x - max); returns Σy */
    void (*rms_norm)(int64_t n, const float *x, const float *weight, float eps, float *y); /* weight may be NULL */
    void (*norm)(int64_t n, const float *x, const float *weight, const float *bias, float eps, float *y);
    /* Blocks of a power of two that divides n times the orthogonal Hadamard matrix (tn_hadamard). */
    void (*hadamard)(int64_t n, int64_t block, const float *x, float *y);
    /* Rotates n/2 pairs by the angles whose cosine and sine are given: (0,1)(2,3)… or (0,n/2)(1,n/2+1)…. */
    void (*rope_normal)(int64_t n, const float *x, const float *cos, const float *sin, float *y);
    void (*rope_neox)(int64_t n, const float *x, const float *cos, const float *sin, float *y);
} tn__cpu_kernels;

/* The highest level of this CPU, or the one that TENON_CPU=generic|avx2|avx512|amx|neon lowers it to. Chosen once. */
const tn__cpu_kernels *tn__cpu_kernels_get(void);
/* The table of a level, or NULL where this build or CPU lacks it. Ignores TENON_CPU. */
const tn__cpu_kernels *tn__cpu_kernels_at(tn__cpu_level level);
const char *tn__cpu_level_name(tn__cpu_level level);

/* A thread's share [*from, *to) of `total` items, divided in units of `unit`. */
static inline void tn__share(int64_t total, int64_t unit, int ith, int nth, int64_t *from, int64_t *to) {
    int64_t units = (total + unit - 1) / unit, each = units / nth, extra = units % nth;
    int64_t first = ith * each + (ith < extra ? ith : extra), count = each + (ith < extra);
    *from = first * unit < total ? first * unit : total;
    *to = (first + count) * unit < total ? (first + count) * unit : total;
}

#endif

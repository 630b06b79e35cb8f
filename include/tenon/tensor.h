/* Types, arenas, tensors and the operations between them.
 *
 * A graph is written as an expression: every constructor takes an arena and source tensors and returns the result
 * tensor. Nothing is computed. On an error the constructor returns NULL and the arena keeps the first error. A NULL
 * source gives a NULL result, so that one check at the end (tn_graph_of, tn_arena_status) covers a whole expression.
 *
 * An arena and the tensors in it belong to one thread at a time. */
#ifndef TENON_TENSOR_H
#define TENON_TENSOR_H

#include "tenon/base.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_arena tn_arena;
typedef struct tn_tensor tn_tensor;
typedef struct tn_buffer tn_buffer;     /* backend.h */
typedef struct tn_location tn_location; /* backend.h */

enum { TN_MAX_DIMS = 4, TN_MAX_SRC = 10, TN_MAX_NAME = 64, TN_MAX_PARAMS = 64 };

/* ---- Types ---- */
/* X(NAME, name, id, elements per block, bytes per block). Values are GGUF's ids. GGUF has no fp8 (e4m3: 4 exponent
 * bits, 3 of mantissa, no infinity, largest value 448): its id is specific to Tenon, and files with it are
 * neither read nor written. */
#define TN_TYPE_TABLE(X)                                                                                             \
    X(F32, f32, 0, 1, 4)                                                                                             \
    X(F16, f16, 1, 1, 2)                                                                                             \
    X(Q4_0, q4_0, 2, 32, 18)                                                                                         \
    X(Q4_1, q4_1, 3, 32, 20)                                                                                         \
    X(Q5_0, q5_0, 6, 32, 22)                                                                                         \
    X(Q5_1, q5_1, 7, 32, 24)                                                                                         \
    X(Q8_0, q8_0, 8, 32, 34)                                                                                         \
    X(Q8_1, q8_1, 9, 32, 36)                                                                                         \
    X(Q2_K, q2_K, 10, 256, 84)                                                                                       \
    X(Q3_K, q3_K, 11, 256, 110)                                                                                      \
    X(Q4_K, q4_K, 12, 256, 144)                                                                                      \
    X(Q5_K, q5_K, 13, 256, 176)                                                                                      \
    X(Q6_K, q6_K, 14, 256, 210)                                                                                      \
    X(Q8_K, q8_K, 15, 256, 292)                                                                                      \
    X(IQ2_XXS, iq2_xxs, 16, 256, 66)                                                                                 \
    X(IQ2_XS, iq2_xs, 17, 256, 74)                                                                                   \
    X(IQ3_XXS, iq3_xxs, 18, 256, 98)                                                                                 \
    X(IQ1_S, iq1_s, 19, 256, 50)                                                                                     \
    X(IQ4_NL, iq4_nl, 20, 32, 18)                                                                                    \
    X(IQ3_S, iq3_s, 21, 256, 110)                                                                                    \
    X(IQ2_S, iq2_s, 22, 256, 82)                                                                                     \
    X(IQ4_XS, iq4_xs, 23, 256, 136)                                                                                  \
    X(I8, i8, 24, 1, 1)                                                                                              \
    X(I16, i16, 25, 1, 2)                                                                                            \
    X(I32, i32, 26, 1, 4)                                                                                            \
    X(I64, i64, 27, 1, 8)                                                                                            \
    X(F64, f64, 28, 1, 8)                                                                                            \
    X(IQ1_M, iq1_m, 29, 256, 56)                                                                                     \
    X(BF16, bf16, 30, 1, 2)                                                                                          \
    X(TQ1_0, tq1_0, 34, 256, 54)                                                                                     \
    X(TQ2_0, tq2_0, 35, 256, 66)                                                                                     \
    X(MXFP4, mxfp4, 39, 32, 17)                                                                                      \
    X(NVFP4, nvfp4, 40, 64, 36)                                                                                      \
    X(FP8, fp8, 63, 1, 1)

typedef enum tn_type {
#define TN_X(name, text, id, block, bytes) TN_##name = id,
    TN_TYPE_TABLE(TN_X)
#undef TN_X
        TN_TYPE_LIMIT = 64 /* one past the largest id; some smaller ids are unused */
} tn_type;

TN_API bool tn_type_valid(tn_type type);                         /* in the table */
TN_API const char *tn_type_name(tn_type type);                   /* "q4_K"; "?" outside the table */
TN_API tn_status tn_type_parse(const char *name, tn_type *type); /* case-insensitive */
TN_API int64_t tn_type_block(tn_type type);     /* elements per block; 1 for plain types; 0 outside the table */
TN_API size_t tn_type_bytes(tn_type type);      /* bytes per block */
TN_API bool tn_type_is_quantized(tn_type type); /* block type */
TN_API bool tn_type_is_float(tn_type type);     /* f64 f32 f16 bf16 fp8 */
TN_API bool tn_type_can_read(tn_type type);     /* conversion to f32 exists */
TN_API bool tn_type_can_write(tn_type type);    /* conversion from f32 exists */
/* Bytes of a row of n elements. False on overflow, or if n is not a multiple of the block. */
TN_API bool tn_type_row_bytes(tn_type type, int64_t n, size_t *bytes);
/* Converts n elements, a multiple of the block. `importance` (n weights for the error of each element, or NULL)
 * guides quantization. */
TN_API tn_status tn_type_to_f32(tn_type type, const void *from, float *to, int64_t n);
TN_API tn_status tn_type_from_f32(tn_type type, const float *from, void *to, int64_t n, const float *importance);

/* ---- Arena ---- */

typedef struct tn_arena_params {
    size_t size;     /* bytes of the pool, including all metadata */
    void *memory;    /* the caller's pool (16-byte aligned, outlives the arena), or NULL: allocated by the arena */
    bool no_alloc;   /* tensors have metadata only; an allocator binds their data later */
    bool repeatable; /* every op is flagged TN_FLAG_REPEATABLE */
} tn_arena_params;

TN_API tn_status tn_arena_new(const tn_arena_params *params, tn_arena **arena) TN_MUST_CHECK;
TN_API void tn_arena_free(tn_arena *arena);  /* frees everything in it; accepts NULL */
TN_API void tn_arena_reset(tn_arena *arena); /* removes all objects and the error */

/* The first error since creation or reset (TN_OK: none). Also makes its text the calling thread's tn_error(). */
TN_API tn_status tn_arena_status(const tn_arena *arena);
TN_API size_t tn_arena_used(const tn_arena *arena);
TN_API size_t tn_arena_size(const tn_arena *arena);
TN_API size_t tn_arena_tensor_count(const tn_arena *arena);
TN_API bool tn_arena_no_alloc(const tn_arena *arena);

/* The tensors of an arena in the order of creation: the one created after `after`, or the first for NULL. NULL at the
 * end. */
TN_API tn_tensor *tn_arena_next_tensor(const tn_arena *arena, const tn_tensor *after);

/* Exact sizes in bytes: one tensor's metadata; a graph of `capacity` tensors; an arena for both, without data. */
TN_API size_t tn_tensor_overhead(void);
TN_API size_t tn_graph_overhead(size_t capacity);
TN_API size_t tn_arena_size_for(size_t tensors, size_t graph_capacity);

/* Allocates 16-byte aligned bytes that live as long as the arena. NULL if it is full (the arena keeps the error). */
TN_API void *tn_arena_alloc(tn_arena *arena, size_t size);

/* ---- Operations ---- */
/* The table: X(NAME, name, symbol, min sources, max sources, family, in-place mask). Bit i of the mask: the result
 * may use the memory of source i if both have the same type and layout and this is the last read of the source.
 * Families group ops that share a shape rule. */
#define TN_OP_TABLE(X)                                                                                               \
    X(NONE, none, "", 0, 0, LEAF, 0)                                                                                 \
    X(DUP, dup, "x", 1, 1, COPY, 0)                                                                                  \
    X(CAST, cast, "x→type", 1, 1, COPY, 0)                                                                           \
    X(CONT, cont, "contiguous(x)", 1, 1, COPY, 0)                                                                    \
    X(CPY, cpy, "y←x", 2, 2, COPY, 0)                                                                                \
    X(VIEW, view, "view(x)", 1, 1, VIEW, 0)                                                                          \
    X(RESHAPE, reshape, "reshape(x)", 1, 1, VIEW, 0)                                                                 \
    X(PERMUTE, permute, "permute(x)", 1, 1, VIEW, 0)                                                                 \
    X(TRANSPOSE, transpose, "xᵀ", 1, 1, VIEW, 0)                                                                     \
    X(ADD, add, "x+y", 2, 2, BINARY, 3)                                                                              \
    X(SUB, sub, "x-y", 2, 2, BINARY, 3)                                                                              \
    X(MUL, mul, "x*y", 2, 2, BINARY, 3)                                                                              \
    X(DIV, div, "x/y", 2, 2, BINARY, 3)                                                                              \
    X(ADD_ID, add_id, "x+y[i]", 3, 3, ROWS, 1)                                                                       \
    X(SCALE, scale, "s*x+b", 1, 1, UNARY, 1)                                                                         \
    X(SQR, sqr, "x²", 1, 1, UNARY, 1)                                                                                \
    X(SQRT, sqrt, "√x", 1, 1, UNARY, 1)                                                                              \
    X(LOG, log, "log(x)", 1, 1, UNARY, 1)                                                                            \
    X(EXP, exp, "exp(x)", 1, 1, UNARY, 1)                                                                            \
    X(SIN, sin, "sin(x)", 1, 1, UNARY, 1)                                                                            \
    X(COS, cos, "cos(x)", 1, 1, UNARY, 1)                                                                            \
    X(CLAMP, clamp, "clamp(x)", 1, 1, UNARY, 1)                                                                      \
    X(NEG, neg, "-x", 1, 1, UNARY, 1)                                                                                \
    X(ABS, abs, "|x|", 1, 1, UNARY, 1)                                                                               \
    X(SGN, sgn, "sgn(x)", 1, 1, UNARY, 1)                                                                            \
    X(STEP, step, "x>0", 1, 1, UNARY, 1)                                                                             \
    X(TANH, tanh, "tanh(x)", 1, 1, UNARY, 1)                                                                         \
    X(ELU, elu, "elu(x)", 1, 1, UNARY, 1)                                                                            \
    X(RELU, relu, "relu(x)", 1, 1, UNARY, 1)                                                                         \
    X(LEAKY_RELU, leaky_relu, "leaky(x)", 1, 1, UNARY, 1)                                                            \
    X(SIGMOID, sigmoid, "σ(x)", 1, 1, UNARY, 1)                                                                      \
    X(GELU, gelu, "gelu(x)", 1, 1, UNARY, 1)                                                                         \
    X(GELU_QUICK, gelu_quick, "gelu_quick(x)", 1, 1, UNARY, 1)                                                       \
    X(GELU_ERF, gelu_erf, "gelu_erf(x)", 1, 1, UNARY, 1)                                                             \
    X(SILU, silu, "silu(x)", 1, 1, UNARY, 1)                                                                         \
    X(HARDSWISH, hardswish, "hardswish(x)", 1, 1, UNARY, 1)                                                          \
    X(HARDSIGMOID, hardsigmoid, "hardsigmoid(x)", 1, 1, UNARY, 1)                                                    \
    X(SOFTPLUS, softplus, "softplus(x)", 1, 1, UNARY, 1)                                                             \
    X(REGLU, reglu, "relu(x)*y", 1, 2, GLU, 3)                                                                       \
    X(GEGLU, geglu, "gelu(x)*y", 1, 2, GLU, 3)                                                                       \
    X(GEGLU_QUICK, geglu_quick, "gelu_quick(x)*y", 1, 2, GLU, 3)                                                     \
    X(GEGLU_ERF, geglu_erf, "gelu_erf(x)*y", 1, 2, GLU, 3)                                                           \
    X(SWIGLU, swiglu, "silu(x)*y", 1, 2, GLU, 3)                                                                     \
    X(SWIGLU_OAI, swiglu_oai, "x*σ(αx)*(y+1)", 1, 2, GLU, 3)                                                         \
    X(SUM, sum, "Σx", 1, 1, REDUCE, 0)                                                                               \
    X(SUM_ROWS, sum_rows, "Σrow", 1, 1, REDUCE, 0)                                                                   \
    X(MEAN, mean, "mean(row)", 1, 1, REDUCE, 0)                                                                      \
    X(CUMSUM, cumsum, "cumsum(row)", 1, 1, REDUCE, 1)                                                                \
    X(ARGMAX, argmax, "argmax(row)", 1, 1, REDUCE, 0)                                                                \
    X(ARGSORT, argsort, "argsort(row)", 1, 1, REDUCE, 0)                                                             \
    X(TOP_K, top_k, "top_k(row)", 1, 1, REDUCE, 0)                                                                   \
    X(CONCAT, concat, "x|y", 2, 2, MOVE, 0)                                                                          \
    X(REPEAT, repeat, "repeat(x)", 1, 1, MOVE, 0)                                                                    \
    X(PAD, pad, "pad(x)", 1, 1, MOVE, 0)                                                                             \
    X(ROLL, roll, "roll(x)", 1, 1, MOVE, 0)                                                                          \
    X(ARANGE, arange, "arange", 0, 0, MOVE, 0)                                                                       \
    X(GET_ROWS, get_rows, "x[i]", 2, 2, ROWS, 0)                                                                     \
    X(SET_ROWS, set_rows, "x[i]=y", 3, 3, ROWS, 0)                                                                   \
    X(ACC, acc, "x+=y", 2, 2, MOVE, 1)                                                                               \
    X(SET, set, "x[..]=y", 2, 2, MOVE, 1)                                                                            \
    X(NORM, norm, "norm(x)", 1, 3, NORM, 1)                                                                          \
    X(RMS_NORM, rms_norm, "rms_norm(x)", 1, 2, NORM, 1)                                                              \
    X(L2_NORM, l2_norm, "l2_norm(x)", 1, 1, NORM, 1)                                                                 \
    X(GROUP_NORM, group_norm, "group_norm(x)", 1, 1, NORM, 1)                                                        \
    X(SOFT_MAX, soft_max, "soft_max(x)", 1, 3, NORM, 1)                                                              \
    X(DIAG_MASK_INF, diag_mask_inf, "mask∞(x)", 1, 1, UNARY, 1)                                                      \
    X(DIAG_MASK_ZERO, diag_mask_zero, "mask0(x)", 1, 1, UNARY, 1)                                                    \
    X(ROPE, rope, "rope(x)", 2, 3, ROPE, 1)                                                                          \
    X(HADAMARD, hadamard, "H·x", 1, 1, NORM, 1)                                                                      \
    X(MUL_MAT, mul_mat, "x·y", 2, 2, MATMUL, 0)                                                                      \
    X(MUL_MAT_ID, mul_mat_id, "x[i]·y", 3, 3, MATMUL, 0)                                                             \
    X(OUT_PROD, out_prod, "x·yᵀ", 2, 2, MATMUL, 0)                                                                   \
    X(MIX, mix, "Σw*x", 2, 2, REDUCE, 0)                                                                             \
    X(IM2COL, im2col, "im2col(x)", 2, 2, CONV, 0)                                                                    \
    X(CONV_1D, conv_1d, "conv(x)", 2, 2, CONV, 0)                                                                    \
    X(CONV_2D, conv_2d, "conv(x)", 2, 2, CONV, 0)                                                                    \
    X(CONV_TRANSPOSE_1D, conv_transpose_1d, "convᵀ(x)", 2, 2, CONV, 0)                                               \
    X(CONV_TRANSPOSE_2D, conv_transpose_2d, "convᵀ(x)", 2, 2, CONV, 0)                                               \
    X(POOL_1D, pool_1d, "pool(x)", 1, 1, CONV, 0)                                                                    \
    X(POOL_2D, pool_2d, "pool(x)", 1, 1, CONV, 0)                                                                    \
    X(UPSCALE, upscale, "upscale(x)", 1, 1, MOVE, 0)                                                                 \
    X(ATTENTION, attention, "attention(q,k,v)", 3, 9, ATTENTION, 0)                                                  \
    X(SELECT_POSITIONS, select_positions, "select(q,keys)", 4, 5, ATTENTION, 0)                                      \
    X(CAUSAL_CONV, causal_conv, "conv(x,state)", 4, 5, RECURRENT, 0)                                                 \
    X(LINEAR_ATTENTION, linear_attention, "linear(q,k,v,state)", 5, 8, RECURRENT, 0)                                 \
    X(SELECTIVE_SCAN, selective_scan, "scan(x,state)", 7, 7, RECURRENT, 0)                                           \
    X(RWKV7, rwkv7, "rwkv7(r,w,k,v,a,b,state)", 8, 8, RECURRENT, 0)                                                  \
    X(CROSS_ENTROPY_LOSS, cross_entropy_loss, "-Σy*log(p)", 2, 2, REDUCE, 0)                                         \
    X(TIMESTEP_EMBEDDING, timestep_embedding, "timestep(x)", 1, 1, MOVE, 0)                                          \
    X(CUSTOM, custom, "f(x…)", 0, 10, CUSTOM, 0)

typedef enum tn_op {
#define TN_X(NAME, name, symbol, min, max, family, inplace) TN_OP_##NAME,
    TN_OP_TABLE(TN_X)
#undef TN_X
        TN_OP_COUNT
} tn_op;

typedef enum tn_op_family {
    TN_FAMILY_LEAF,
    TN_FAMILY_COPY,
    TN_FAMILY_VIEW,
    TN_FAMILY_BINARY,
    TN_FAMILY_UNARY,
    TN_FAMILY_GLU,
    TN_FAMILY_REDUCE,
    TN_FAMILY_MOVE,
    TN_FAMILY_ROWS,
    TN_FAMILY_NORM,
    TN_FAMILY_ROPE,
    TN_FAMILY_MATMUL,
    TN_FAMILY_CONV,
    TN_FAMILY_ATTENTION,
    TN_FAMILY_RECURRENT, /* recurrent.h */
    TN_FAMILY_CUSTOM
} tn_op_family;

TN_API const char *tn_op_name(tn_op op);
TN_API const char *tn_op_symbol(tn_op op);
TN_API tn_op_family tn_op_get_family(tn_op op);
TN_API int tn_op_min_sources(tn_op op);
TN_API int tn_op_max_sources(tn_op op);
TN_API uint32_t tn_op_inplace_mask(tn_op op);
/* The source whose memory the op updates in addition to computing its result (the state of recurrent ops); -1: none.
 */
TN_API int tn_op_written_source(tn_op op);

typedef enum tn_rope_mode { TN_ROPE_NORMAL, TN_ROPE_NEOX, TN_ROPE_MULTI, TN_ROPE_VISION } tn_rope_mode;

/* Rotary position embedding. NORMAL rotates neighbours (0,1)(2,3)…, NEOX halves (0,n/2)(1,n/2+1)…. MULTI uses 4
 * positions per token (pos has 4*n entries, section-major) and `sections` pairs for each, rotated as in NEOX. */
typedef struct tn_rope_params {
    int32_t dims;        /* number of elements of a head that rotate; even */
    int32_t mode;        /* tn_rope_mode */
    int32_t sections[4]; /* MULTI and VISION */
    float base;          /* 10000 */
    float freq_scale;    /* 1; linear scaling by 4 is 0.25 */
    float ext_factor;    /* 0: none; 1: the YaRN blend between interpolation and extrapolation */
    float attn_factor;   /* 1; magnitude scale */
    float beta_fast;     /* 32 */
    float beta_slow;     /* 1 */
    int32_t n_ctx_orig;  /* training context, for YaRN */
    int32_t reverse;     /* rotate backwards (gradient) */
    int32_t exact_ramp;  /* the ends of YaRN's blend are not rounded to whole pairs */
} tn_rope_params;
TN_API tn_rope_params tn_rope_params_default(int32_t dims, tn_rope_mode mode);

/* Consecutive cells of a sequence with consecutive positions. */
typedef struct tn_page_run {
    int32_t cell;    /* the first */
    int32_t count;   /* at most tn_attention_params.page */
    int32_t first;   /* cell i of the run has the position (first + i) / divisor */
    int32_t divisor; /* 1, except after positions were divided */
} tn_page_run;

/* Attention over K and V rows ("cells"). The cells visible to a query follow from positions, not from a stored mask.
 */
typedef struct tn_attention_params {
    float scale;    /* usually 1/√(head size) */
    float soft_cap; /* 0: none; otherwise cap*tanh(score/cap) */
    float max_bias; /* 0: none; otherwise ALiBi with slopes from this maximum */
    int32_t causal; /* visible cells have a position ≤ the query's */
    int32_t window; /* 0: all; otherwise visible cells satisfy (query position) - (cell position) < window */
    int32_t chunk;  /* 0: none; otherwise (position / chunk) of visible cells equals the query's */
    int32_t page;   /* with page tables: the most cells of a run */
    /* 0: all; otherwise visible cells satisfy (cell position) - (query position) < window_after. A symmetric window,
     * |distance| ≤ n, is window = window_after = n + 1. */
    int32_t window_after;
    int32_t select_block;       /* with `selected`: positions of an entry; 0: 1 */
    int32_t bias_distance;      /* with `bias_table`: from this distance on all cells are in the last bucket */
    int32_t bias_bidirectional; /* with `bias_table`: half of the buckets are for cells after the query */
} tn_attention_params;

typedef struct tn_select_params {
    int32_t k, block;             /* entries of a query, at most; positions of an entry, 0: 1 */
    int32_t local;                /* entries that are always selected: the query's own and those before it */
    int32_t causal, window, page; /* as in tn_attention_params */
} tn_select_params;

/* Parameters of tn_linear_attention (recurrent.h). */
typedef struct tn_linear_attention_params {
    float scale;   /* of the result */
    int32_t delta; /* the delta rule: the state's prediction for k is subtracted from v */
    int32_t tiled; /* value head h uses key head h % heads_k instead of h / (heads_v / heads_k) */
} tn_linear_attention_params;

typedef enum tn_pool_kind { TN_POOL_MAX, TN_POOL_AVG } tn_pool_kind;
typedef enum tn_upscale_mode { TN_UPSCALE_NEAREST, TN_UPSCALE_BILINEAR } tn_upscale_mode;

/* Index 0 is the innermost spatial dimension (width), 1 the next (height). */
typedef struct tn_conv_params {
    int32_t stride[2], pad[2], dilation[2];
    int32_t groups; /* 1, or the number of channels for a depth-wise convolution */
    int32_t is_2d;  /* for im2col */
} tn_conv_params;
typedef struct tn_pool_params {
    int32_t kind; /* tn_pool_kind */
    int32_t kernel[2], stride[2], pad[2];
} tn_pool_params;

struct tn_custom_job;
/* Computes share `ith` of `nth` of a custom op; called by up to `n_tasks` threads at once. */
typedef void (*tn_custom_fn)(const struct tn_custom_job *job);
typedef struct tn_custom_job {
    tn_tensor *result;
    int ith, nth;
    void *user;
} tn_custom_job;

/* Parameters of every op. Unused bytes are zero, so that equal parameters have equal bytes. */
typedef union tn_op_params {
    struct {
        float scale, bias;
    } scale;
    struct {
        float min, max;
    } clamp;
    struct {
        float slope;
    } leaky_relu;
    struct {
        int32_t swapped;
        float alpha, limit;
    } glu; /* alpha and limit: swiglu_oai */
    struct {
        int32_t axis[4];
    } permute;
    struct {
        int32_t dim;
    } concat;
    struct {
        int32_t descending;
    } argsort;
    struct {
        int32_t k;
    } top_k;
    struct {
        int32_t before[4], after[4];
    } pad;
    struct {
        int32_t shift[4];
    } roll;
    struct {
        float start, stop, step;
    } arange;
    struct {
        uint64_t nb1, nb2, nb3, offset;
    } region; /* acc, set: strides and offset of y inside x, in bytes */
    struct {
        float eps;
        int32_t groups;
    } norm;
    struct {
        float scale, max_bias;
    } soft_max;
    struct {
        int32_t n_past;
    } diag_mask;
    struct {
        int32_t block;
    } hadamard;
    tn_rope_params rope;
    tn_attention_params attention;
    tn_select_params select;
    tn_linear_attention_params linear_attention;
    struct {
        int32_t silu;
    } causal_conv;
    tn_conv_params conv;
    tn_pool_params pool;
    struct {
        int32_t mode;
    } upscale;
    struct {
        int32_t dim, max_period;
    } timestep;
    struct {
        tn_custom_fn fn;
        void *user;
        int32_t n_tasks;
    } custom;
    struct {
        int32_t precise;
    } mul_mat; /* precise 1: never quantize the activations */
    unsigned char bytes[TN_MAX_PARAMS];
} tn_op_params;

/* ---- Tensor ---- */

typedef enum tn_tensor_flag {
    TN_FLAG_INPUT = 1,  /* the caller writes it before the graph runs */
    TN_FLAG_OUTPUT = 2, /* its memory is never reused */
    TN_FLAG_PARAM = 4,
    TN_FLAG_LOSS = 8,
    TN_FLAG_PLANNED = 16, /* bound by an allocator or scheduler, whose memory may have been released since */
    TN_FLAG_KEPT = 32,    /* read outside the program that computes it: a backend must store it */
    /* The bits of a row of the result depend only on that row's inputs, not on the number or contents of the other
     * rows. In attention a row is a query, and its inputs are the cells that it sees with their positions. */
    TN_FLAG_REPEATABLE = 64
} tn_tensor_flag;

/* The layout is part of the interface. Element (i0,i1,i2,i3) is at
 * data + i0/block*nb[0] + i1*nb[1] + i2*nb[2] + i3*nb[3]. */
struct tn_tensor {
    tn_type type;
    tn_op op;
    uint32_t flags;
    int32_t n_dims; /* as created; trailing dimensions are 1 */
    int64_t ne[TN_MAX_DIMS];
    size_t nb[TN_MAX_DIMS];
    tn_op_params params;
    tn_tensor *src[TN_MAX_SRC]; /* absent optional sources are NULL */
    tn_tensor *view_src;        /* the root tensor of a view, or NULL */
    size_t view_offset;         /* bytes from the root's data */
    void *data;                 /* NULL until bound; an address on the buffer's device */
    tn_buffer *buffer;          /* NULL: data (if any) is plain host memory */
    void *extra;                /* used by the backend that owns the buffer */
    /* The declared location of a tensor that has no memory yet. Schedulers set it only on their own tensors. */
    const tn_location *location;
    char name[TN_MAX_NAME];
};

TN_API tn_tensor *tn_tensor_new(tn_arena *arena, tn_type type, int n_dims, const int64_t *ne);
/* tn_tensor_nd(a, TN_F32, 4096, 32): dimensions as arguments, innermost first. For C++, which has no compound
 * literals, there are templates at the end of this file. */
#ifndef __cplusplus
#define TN_DIMS_(...)                                                                                                \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
#define tn_tensor_nd(arena, type, ...) tn_tensor_new(arena, type, TN_DIMS_(__VA_ARGS__))
#define tn_input(arena, type, ...) tn_mark(tn_tensor_nd(arena, type, __VA_ARGS__), TN_FLAG_INPUT)
#define tn_reshape(arena, x, ...) tn_reshape_to(arena, x, TN_DIMS_(__VA_ARGS__))
#endif
#define tn_output(tensor) tn_mark(tensor, TN_FLAG_OUTPUT)
TN_API tn_tensor *tn_mark(tn_tensor *tensor, uint32_t flags); /* sets flags; returns its argument; accepts NULL */
/* Sets the name (printf style) and returns the tensor. A name over TN_MAX_NAME-1 bytes is an error: NULL. */
TN_API tn_tensor *tn_name(tn_arena *arena, tn_tensor *tensor, const char *format, ...) TN_PRINTF(3, 4);

TN_API int64_t tn_nelements(const tn_tensor *t);
TN_API int64_t tn_nrows(const tn_tensor *t);
/* Bytes from the first element to the end of the last (0 for an empty tensor): the size of its storage. */
TN_API size_t tn_nbytes(const tn_tensor *t);
TN_API bool tn_is_empty(const tn_tensor *t);
TN_API bool tn_is_view(const tn_tensor *t);
TN_API bool tn_is_contiguous(const tn_tensor *t);
/* Whether rows are dense and there are no gaps above dimension n; dimensions 1 to n may have any stride. */
TN_API bool tn_is_contiguous_from(const tn_tensor *t, int n);
TN_API bool tn_is_contiguous_rows(const tn_tensor *t); /* each row's elements are adjacent */
TN_API bool tn_is_transposed(const tn_tensor *t);      /* nb[0] > nb[1] */
TN_API bool tn_is_permuted(const tn_tensor *t);
TN_API bool tn_is_scalar(const tn_tensor *t);
TN_API bool tn_is_vector(const tn_tensor *t);
TN_API bool tn_is_matrix(const tn_tensor *t);
TN_API bool tn_same_shape(const tn_tensor *a, const tn_tensor *b);
TN_API bool tn_same_layout(const tn_tensor *a, const tn_tensor *b); /* type, shape and strides */
/* Whether `small` can be broadcast to `large`: its dimensions divide those of `large`. */
TN_API bool tn_can_repeat(const tn_tensor *small, const tn_tensor *large);
TN_API const char *tn_shape_text(const tn_tensor *t, char *text, size_t size); /* "f32[4096,32]" */

/* ---- Constructors ---- */
/* Shapes are written [innermost, …]. "…" are equal or broadcast outer dimensions. */

TN_API tn_tensor *tn_dup(tn_arena *a, tn_tensor *x);                /* a contiguous copy */
TN_API tn_tensor *tn_cast(tn_arena *a, tn_tensor *x, tn_type type); /* the same, in another type */
TN_API tn_tensor *tn_cont(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_cpy(tn_arena *a, tn_tensor *x, tn_tensor *y); /* x into y's memory, converting; view of y */

/* Views move no data. A view of a view refers to the root. Strides (NULL: contiguous) and offset are in bytes. A view
 * outside the root's bounds is an error. */
TN_API tn_tensor *tn_view(tn_arena *a, tn_tensor *x, int n_dims, const int64_t *ne, const size_t *nb, size_t offset);
/* x must be contiguous. tn_reshape(a, x, 64, 8, n) takes the dimensions as arguments. */
TN_API tn_tensor *tn_reshape_to(tn_arena *a, tn_tensor *x, int n_dims, const int64_t *ne);
/* Dimension i of x becomes dimension di. */
TN_API tn_tensor *tn_permute(tn_arena *a, tn_tensor *x, int d0, int d1, int d2, int d3);
TN_API tn_tensor *tn_transpose(tn_arena *a, tn_tensor *x);

/* y is broadcast: its dimensions must divide those of x. */
TN_API tn_tensor *tn_add(tn_arena *a, tn_tensor *x, tn_tensor *y);
TN_API tn_tensor *tn_sub(tn_arena *a, tn_tensor *x, tn_tensor *y);
TN_API tn_tensor *tn_mul(tn_arena *a, tn_tensor *x, tn_tensor *y);
TN_API tn_tensor *tn_div(tn_arena *a, tn_tensor *x, tn_tensor *y);
/* x[d,k,t] + y[d, ids[k,t]]: a bias per expert. */
TN_API tn_tensor *tn_add_id(tn_arena *a, tn_tensor *x, tn_tensor *y, tn_tensor *ids);

TN_API tn_tensor *tn_scale(tn_arena *a, tn_tensor *x, float scale, float bias); /* scale*x + bias */
TN_API tn_tensor *tn_clamp(tn_arena *a, tn_tensor *x, float min, float max);
TN_API tn_tensor *tn_leaky_relu(tn_arena *a, tn_tensor *x, float slope);
TN_API tn_tensor *tn_unary(tn_arena *a, tn_op op, tn_tensor *x); /* any op of the unary family without parameters */
TN_API tn_tensor *tn_sqr(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_sqrt(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_log_of(tn_arena *a, tn_tensor *x); /* natural logarithm (tn_log is the log sink) */
TN_API tn_tensor *tn_exp(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_sin(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_cos(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_neg(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_abs(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_sgn(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_step(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_tanh(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_elu(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_relu(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_sigmoid(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_gelu(tn_arena *a, tn_tensor *x); /* tanh form */
TN_API tn_tensor *tn_gelu_quick(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_gelu_erf(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_silu(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_hardswish(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_hardsigmoid(tn_arena *a, tn_tensor *x);
TN_API tn_tensor *tn_softplus(tn_arena *a, tn_tensor *x);

/* Gated activations act(gate)*up. If `up` is NULL, a row of `gate` holds both halves: the gate first, or second if
 * swapped. */
TN_API tn_tensor *tn_glu(tn_arena *a, tn_op op, tn_tensor *gate, tn_tensor *up, bool swapped);
TN_API tn_tensor *tn_reglu(tn_arena *a, tn_tensor *gate, tn_tensor *up);
TN_API tn_tensor *tn_geglu(tn_arena *a, tn_tensor *gate, tn_tensor *up);
TN_API tn_tensor *tn_geglu_quick(tn_arena *a, tn_tensor *gate, tn_tensor *up);
TN_API tn_tensor *tn_geglu_erf(tn_arena *a, tn_tensor *gate, tn_tensor *up);
TN_API tn_tensor *tn_swiglu(tn_arena *a, tn_tensor *gate, tn_tensor *up);
/* gate=min(gate,limit), up=clamp(up,±limit); gate*σ(alpha*gate)*(up+1). */
TN_API tn_tensor *tn_swiglu_oai(tn_arena *a, tn_tensor *gate, tn_tensor *up, float alpha, float limit);

TN_API tn_tensor *tn_sum(tn_arena *a, tn_tensor *x);                      /* → [1] */
TN_API tn_tensor *tn_sum_rows(tn_arena *a, tn_tensor *x);                 /* [n,…] → [1,…] */
TN_API tn_tensor *tn_mean(tn_arena *a, tn_tensor *x);                     /* [n,…] → [1,…] */
TN_API tn_tensor *tn_cumsum(tn_arena *a, tn_tensor *x);                   /* along rows */
TN_API tn_tensor *tn_argmax(tn_arena *a, tn_tensor *x);                   /* [n,m] → i32[m]; the first maximum */
TN_API tn_tensor *tn_argsort(tn_arena *a, tn_tensor *x, bool descending); /* → i32, same shape; stable */
TN_API tn_tensor *tn_top_k(tn_arena *a, tn_tensor *x, int k);             /* [n,…] → i32[k,…], largest first */
/* x[d,k,t] weighted by w[k,t] and summed over k → [d,t]: combines the results of experts. */
TN_API tn_tensor *tn_mix(tn_arena *a, tn_tensor *x, tn_tensor *w);

TN_API tn_tensor *tn_concat(tn_arena *a, tn_tensor *x, tn_tensor *y, int dim);
TN_API tn_tensor *tn_repeat(tn_arena *a, tn_tensor *x, const int64_t ne[TN_MAX_DIMS]);
TN_API tn_tensor *tn_pad(tn_arena *a, tn_tensor *x, const int32_t before[4], const int32_t after[4]); /* zeros */
TN_API tn_tensor *tn_roll(tn_arena *a, tn_tensor *x, const int32_t shift[4]);
TN_API tn_tensor *tn_arange(tn_arena *a, float start, float stop, float step); /* f32 */
/* x[n,m,…], i32 rows[r,…] → f32[n,r,…]; i32 for x of i32. */
TN_API tn_tensor *tn_get_rows(tn_arena *a, tn_tensor *x, tn_tensor *rows);
/* Writes the rows of y[n,r,…] to rows (i32 or i64)[r,…] of x[n,m,…], converted to x's type; a view of x. Row numbers
 * outside 0…m-1 are skipped, so that padding rows can be marked with -1. */
TN_API tn_tensor *tn_set_rows(tn_arena *a, tn_tensor *x, tn_tensor *y, tn_tensor *rows);
/* A copy of x in which y is added to (acc) or replaces (set) the region with these strides and offset. */
TN_API tn_tensor *tn_acc(tn_arena *a, tn_tensor *x, tn_tensor *y, size_t nb1, size_t nb2, size_t nb3, size_t offset);
TN_API tn_tensor *tn_set(tn_arena *a, tn_tensor *x, tn_tensor *y, size_t nb1, size_t nb2, size_t nb3, size_t offset);

/* Normalisation over rows, fused with an optional weight and bias [n] (NULL: none). */
TN_API tn_tensor *tn_norm(tn_arena *a, tn_tensor *x, tn_tensor *weight, tn_tensor *bias, float eps);
TN_API tn_tensor *tn_rms_norm(tn_arena *a, tn_tensor *x, tn_tensor *weight, float eps);
TN_API tn_tensor *tn_l2_norm(tn_arena *a, tn_tensor *x, float eps);
TN_API tn_tensor *tn_group_norm(tn_arena *a, tn_tensor *x, int groups, float eps); /* groups of ne[2] */
/* soft_max(scale*x + slope*mask) over rows; mask f32/f16 [n, ≥rows, …broadcast]; sinks f32[ne[2]] are added to the
 * denominator; max_bias > 0 gives ALiBi slopes per ne[2]. */
TN_API tn_tensor *tn_soft_max(tn_arena *a, tn_tensor *x, tn_tensor *mask, tn_tensor *sinks, float scale,
                              float max_bias);
TN_API tn_tensor *tn_diag_mask_inf(tn_arena *a, tn_tensor *x, int n_past);
TN_API tn_tensor *tn_diag_mask_zero(tn_arena *a, tn_tensor *x, int n_past);
/* x[head, heads, tokens, …], pos i32[tokens] (4*tokens for MULTI/VISION), factors f32[dims/2] or NULL. */
TN_API tn_tensor *tn_rope(tn_arena *a, tn_tensor *x, tn_tensor *pos, tn_tensor *factors,
                          const tn_rope_params *params);

/* Every `block` neighbouring elements of a row (a power of two that divides it) times the Hadamard matrix of that
 * size, scaled to be orthogonal: entry (i,j) is ±1/√block, negative where i & j has an odd number of bits. The matrix
 * is its own inverse. Spreads outliers over the block, which makes rows easier to quantize. */
TN_API tn_tensor *tn_hadamard(tn_arena *a, tn_tensor *x, int block);

/* x[k,m,…] · y[k,n,…] → f32[m,n,…]; x is broadcast over y's outer dimensions and has any type with arithmetic. */
TN_API tn_tensor *tn_mul_mat(tn_arena *a, tn_tensor *x, tn_tensor *y);
TN_API tn_tensor *tn_mul_mat_precise(tn_arena *a, tn_tensor *x, tn_tensor *y); /* keeps y in f32 */
/* Experts x[k,m,e], y[k,u,t] (u = ids per token, or 1), ids i32[u,t] → f32[m,u,t]. */
TN_API tn_tensor *tn_mul_mat_id(tn_arena *a, tn_tensor *x, tn_tensor *y, tn_tensor *ids);
TN_API tn_tensor *tn_out_prod(tn_arena *a, tn_tensor *x, tn_tensor *y); /* x[m,k] , y[n,k] → [m,n] */

/* Convolutions. 1d: kernel [kw, in/groups, out], x [w, in, batch]. 2d: kernel [kw, kh, in/groups, out], x [w, h, in,
 * batch]. The _dw versions are depth-wise. */
TN_API tn_tensor *tn_im2col(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p, tn_type type);
TN_API tn_tensor *tn_conv_1d(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p);
TN_API tn_tensor *tn_conv_2d(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p);
TN_API tn_conv_params tn_conv_params_default(void);
TN_API tn_tensor *tn_conv_1d_dw(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p);
TN_API tn_tensor *tn_conv_2d_dw(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p);
/* Kernels [kw, out, in] and [kw, kh, out, in]; padding 0. */
TN_API tn_tensor *tn_conv_transpose_1d(tn_arena *a, tn_tensor *kernel, tn_tensor *x, int stride);
TN_API tn_tensor *tn_conv_transpose_2d(tn_arena *a, tn_tensor *kernel, tn_tensor *x, int stride);
TN_API tn_tensor *tn_pool_1d(tn_arena *a, tn_tensor *x, const tn_pool_params *p);
TN_API tn_tensor *tn_pool_2d(tn_arena *a, tn_tensor *x, const tn_pool_params *p);
TN_API tn_tensor *tn_upscale(tn_arena *a, tn_tensor *x, const int64_t ne[TN_MAX_DIMS], tn_upscale_mode mode);

/* Attention. q f32[head_k, heads, tokens, batch], k[head_k, kv_heads, cells, batch], v[head_v, kv_heads, cells,
 * batch] of any type with arithmetic → f32[head_v, heads, tokens, batch]. Heads share K/V in groups.
 *
 * Without positions, the position of a query is cells - tokens + its index, and that of a cell its index. With
 * sequence memory, the cells of a sequence are those of its row in a page table:
 *
 *   q_pos i32[2, tokens]       position and sequence of every query (sequence < 0: a padding row, result 0)
 *   pages i32[4, 1 + n, seqs]  for each sequence the number of runs and three zeros, then the runs as tn_page_run
 *
 * Runs may be in any order, several sequences may name the same cells, and a run may be shorter than a page. The last
 * run may include cells that are not written yet if their positions are above every query's, attention is causal, and
 * their memory holds finite values. No contents of the table cause reads outside k and v: at most n runs are
 * used; runs that exceed k, have a count below 1 or above params.page, or positions below 0 or above INT32_MAX before
 * division are ignored; a divisor below 1 counts as 1; and a query of a sequence ≥ seqs sees nothing.
 *
 * mask f32/f16[cells, ≥tokens, 1 or heads, 1 or batch] is added to the scores; sinks f32[heads] are added to the
 * denominator. All four are optional, but q_pos and pages are given together, with params.page > 0 and without a
 * mask. The result of a query that sees no cell is 0.
 *
 * v may be a view of k: with latent attention (MLA) k has rows of 576 elements, and v is the first 512 of each. q, k
 * and v may have different numbers of rows; without `causal` this is cross attention.
 *
 * selected i32[n, tokens] (optional, without a batch dimension) restricts each query to the positions that it lists,
 * in any order. Entry e stands for the positions e * select_block to e * select_block + select_block - 1; negative
 * entries are unused. Cells that causal, window or chunk hide remain hidden.
 *
 * bias_table f32[heads, buckets] (optional): the score of a cell gets the head's bias for the bucket of (cell
 * position) - (query position), as in T5. Half of the buckets hold one distance each; the others grow
 * logarithmically up to bias_distance. With bias_bidirectional the second half of the table is for
 * cells after the query; otherwise these use bucket 0. At most 128 buckets. */
typedef struct tn_attention_sources {
    tn_tensor *q, *k, *v;
    tn_tensor *q_pos, *pages;
    tn_tensor *mask, *sinks;
    tn_tensor *selected, *bias_table;
} tn_attention_sources;
/* Indices of the sources in tn_tensor.src. */
enum {
    TN_ATTN_Q,
    TN_ATTN_K,
    TN_ATTN_V,
    TN_ATTN_Q_POS,
    TN_ATTN_PAGES,
    TN_ATTN_MASK,
    TN_ATTN_SINKS,
    TN_ATTN_SELECTED,
    TN_ATTN_BIAS_TABLE
};
TN_API tn_tensor *tn_attention(tn_arena *a, const tn_attention_sources *s, const tn_attention_params *p);
/* An indexer: the entries for `selected` with the highest scores. q f32[size, heads, tokens], keys f32[size, cells],
 * q_pos and pages as above, weights f32[heads, tokens] or NULL. With weights the score of a cell is Σ_h weights[h] ·
 * max(0, q_h · key), and the result i32[k, tokens]; without, every head selects by q_h · key: i32[k, tokens, heads].
 * An entry has the highest score of its visible cells. Among equal scores the lowest entry is selected, NaN last.
 * Lists are in ascending order and padded with -1 if a query sees fewer than k entries. */
TN_API tn_tensor *tn_select_positions(tn_arena *a, tn_tensor *q, tn_tensor *keys, tn_tensor *q_pos, tn_tensor *pages,
                                      tn_tensor *weights, const tn_select_params *p);
enum { TN_SELECT_Q, TN_SELECT_KEYS, TN_SELECT_Q_POS, TN_SELECT_PAGES, TN_SELECT_WEIGHTS };

TN_API tn_tensor *tn_cross_entropy_loss(tn_arena *a, tn_tensor *logits, tn_tensor *labels); /* mean over rows → [1] */
TN_API tn_tensor *tn_timestep_embedding(tn_arena *a, tn_tensor *steps, int dim, int max_period);
/* An op implemented by the caller, with a result of this type and shape and up to TN_MAX_SRC sources. Runs on the CPU
 * with up to n_tasks threads (0: any number). */
TN_API tn_tensor *tn_custom(tn_arena *a, tn_type type, int n_dims, const int64_t *ne, tn_tensor *const *src,
                            int n_src, tn_custom_fn fn, void *user, int n_tasks);

#ifdef __cplusplus
} /* extern "C" */

extern "C++" { /* in case this file is included inside extern "C" */
template <class... N> inline tn_tensor *tn_tensor_nd(tn_arena *arena, tn_type type, N... dims) {
    const int64_t ne[] = {static_cast<int64_t>(dims)...};
    return tn_tensor_new(arena, type, static_cast<int>(sizeof...(dims)), ne);
}
template <class... N> inline tn_tensor *tn_input(tn_arena *arena, tn_type type, N... dims) {
    return tn_mark(tn_tensor_nd(arena, type, dims...), TN_FLAG_INPUT);
}
template <class... N> inline tn_tensor *tn_reshape(tn_arena *arena, tn_tensor *x, N... dims) {
    const int64_t ne[] = {static_cast<int64_t>(dims)...};
    return tn_reshape_to(arena, x, static_cast<int>(sizeof...(dims)), ne);
}
}
#endif
#endif

/* The table from ops to drivers. The CPU does not support ops without a row, and reports so in supports_op. */
#include "backend/cpu/ops/ops.h"

static int64_t pieces(const tn_tensor *node) { return tn__pieces(node); }
static int64_t elements(const tn_tensor *node) { return node->ne[0]; }
static double cost_kernel(const tn_tensor *node) {
    return (double)tn_nelements(node) * 1.5;
} /* vectorized functions such as exp */
static double cost_function(const tn_tensor *node) { return (double)tn_nelements(node) * 8; } /* scalar functions */

#define COPY                                                                                                         \
    { .run = tn__run_copy, .units = tn__units_elements }
#define MATH                                                                                                         \
    { .run = tn__run_unary, .units = pieces, .by_rows = tn__by_rows_one }
#define KERNEL                                                                                                       \
    { .run = tn__run_unary, .units = pieces, .cost = cost_kernel, .by_rows = tn__by_rows_one }
#define FUNCTION                                                                                                     \
    { .run = tn__run_unary, .units = pieces, .cost = cost_function, .by_rows = tn__by_rows_one }
#define BINARY                                                                                                       \
    { .run = tn__run_binary, .units = pieces, .by_rows = tn__by_rows_binary }
#define GATED                                                                                                        \
    { .run = tn__run_glu, .units = pieces, .cost = cost_function, .by_rows = tn__by_rows_glu }
#define NORM                                                                                                         \
    { .run = tn__run_norm, .by_rows = tn__by_rows_one }

const tn__cpu_op tn__cpu_ops[TN_OP_COUNT] = {
    [TN_OP_DUP] = COPY,
    [TN_OP_CAST] = COPY,
    [TN_OP_CONT] = COPY,
    [TN_OP_CPY] = COPY,

    [TN_OP_ADD] = BINARY,
    [TN_OP_SUB] = BINARY,
    [TN_OP_MUL] = BINARY,
    [TN_OP_DIV] = BINARY,
    [TN_OP_ADD_ID] = {.run = tn__run_add_id, .units = pieces},

    [TN_OP_SCALE] = MATH,
    [TN_OP_SQR] = MATH,
    [TN_OP_SQRT] = MATH,
    [TN_OP_LOG] = FUNCTION,
    [TN_OP_EXP] = KERNEL,
    [TN_OP_SIN] = FUNCTION,
    [TN_OP_COS] = FUNCTION,
    [TN_OP_CLAMP] = MATH,
    [TN_OP_NEG] = MATH,
    [TN_OP_ABS] = MATH,
    [TN_OP_SGN] = MATH,
    [TN_OP_STEP] = MATH,
    [TN_OP_TANH] = KERNEL,
    [TN_OP_ELU] = FUNCTION,
    [TN_OP_RELU] = MATH,
    [TN_OP_LEAKY_RELU] = MATH,
    [TN_OP_SIGMOID] = KERNEL,
    [TN_OP_GELU] = KERNEL,
    [TN_OP_GELU_QUICK] = KERNEL,
    [TN_OP_GELU_ERF] = KERNEL,
    [TN_OP_SILU] = KERNEL,
    [TN_OP_HARDSWISH] = MATH,
    [TN_OP_HARDSIGMOID] = MATH,
    [TN_OP_SOFTPLUS] = KERNEL,
    [TN_OP_DIAG_MASK_INF] = {.run = tn__run_diag_mask},
    [TN_OP_DIAG_MASK_ZERO] = {.run = tn__run_diag_mask},

    [TN_OP_REGLU] = GATED,
    [TN_OP_GEGLU] = {.run = tn__run_glu, .units = pieces, .cost = cost_kernel, .by_rows = tn__by_rows_glu},
    [TN_OP_GEGLU_QUICK] = GATED,
    [TN_OP_GEGLU_ERF] = GATED,
    [TN_OP_SWIGLU] = {.run = tn__run_glu, .units = pieces, .cost = cost_kernel, .by_rows = tn__by_rows_glu},
    [TN_OP_SWIGLU_OAI] = GATED,

    [TN_OP_SUM] = {.run = tn__run_sum,
                   .phases = tn__phases_two,
                   .scratch = tn__scratch_row_sums,
                   .units = tn__units_source_rows,
                   .cost = tn__cost_source},
    [TN_OP_SUM_ROWS] = {.run = tn__run_sum_rows, .cost = tn__cost_source},
    [TN_OP_MEAN] = {.run = tn__run_sum_rows, .cost = tn__cost_source},
    [TN_OP_CUMSUM] = {.run = tn__run_cumsum},
    [TN_OP_ARGMAX] = {.run = tn__run_argmax, .units = tn__units_source_rows, .cost = tn__cost_source},
    [TN_OP_ARGSORT] = {.run = tn__run_argsort, .scratch = tn__scratch_argsort, .cost = cost_function},
    [TN_OP_TOP_K] = {.run = tn__run_top_k, .cost = tn__cost_source},
    [TN_OP_MIX] = {.run = tn__run_mix, .units = pieces, .cost = tn__cost_source},
    [TN_OP_CROSS_ENTROPY_LOSS] = {.run = tn__run_cross_entropy,
                                  .phases = tn__phases_two,
                                  .scratch = tn__scratch_row_sums,
                                  .units = tn__units_source_rows,
                                  .cost = tn__cost_source},

    [TN_OP_CONCAT] = {.run = tn__run_concat},
    [TN_OP_REPEAT] = {.run = tn__run_repeat},
    [TN_OP_PAD] = {.run = tn__run_pad},
    [TN_OP_ROLL] = {.run = tn__run_roll},
    [TN_OP_ARANGE] = {.run = tn__run_arange, .units = elements},
    [TN_OP_ACC] = {.run = tn__run_region, .phases = tn__phases_two},
    [TN_OP_SET] = {.run = tn__run_region, .phases = tn__phases_two},
    [TN_OP_UPSCALE] = {.run = tn__run_upscale, .cost = cost_function},
    [TN_OP_TIMESTEP_EMBEDDING] = {.run = tn__run_timestep, .cost = cost_function},

    [TN_OP_GET_ROWS] = {.run = tn__run_get_rows, .scratch = tn__scratch_get_rows, .by_rows = tn__by_rows_get_rows},
    [TN_OP_SET_ROWS] = {.run = tn__run_set_rows,
                        .units = tn__units_set_rows,
                        .cost = tn__cost_set_rows,
                        .by_rows = tn__by_rows_set_rows},

    [TN_OP_NORM] = NORM,
    [TN_OP_RMS_NORM] = NORM,
    [TN_OP_L2_NORM] = NORM,
    [TN_OP_GROUP_NORM] = {.run = tn__run_group_norm, .units = tn__units_groups},
    [TN_OP_SOFT_MAX] = {.run = tn__run_soft_max, .scratch = tn__scratch_rows, .cost = cost_function},
    [TN_OP_ROPE] = {.run = tn__run_rope,
                    .supports = tn__supports_rope,
                    .scratch = tn__scratch_rope,
                    .by_rows = tn__by_rows_one},

    [TN_OP_HADAMARD] = {.run = tn__run_hadamard, .cost = cost_function, .by_rows = tn__by_rows_one},

    [TN_OP_MUL_MAT] = {.run = tn__run_mul_mat,
                       .supports = tn__supports_mul_mat,
                       .phases = tn__phases_mul_mat,
                       .scratch = tn__scratch_mul_mat,
                       .units = tn__units_mul_mat,
                       .cost = tn__cost_mul_mat,
                       .shares = tn__shares_mul_mat,
                       .by_rows = tn__by_rows_mul_mat},
    [TN_OP_MUL_MAT_ID] = {.run = tn__run_mul_mat_id,
                          .supports = tn__supports_mul_mat_id,
                          .phases = tn__phases_mul_mat_id,
                          .scratch = tn__scratch_mul_mat_id,
                          .units = tn__units_mul_mat,
                          .cost = tn__cost_mul_mat_id},
    [TN_OP_OUT_PROD] = {.run = tn__run_out_prod, .scratch = tn__scratch_out_prod, .cost = tn__cost_out_prod},

    [TN_OP_IM2COL] = {.run = tn__run_im2col, .scratch = tn__scratch_rows},
    [TN_OP_CONV_1D] = {.run = tn__run_conv,
                       .scratch = tn__scratch_conv,
                       .units = tn__units_conv,
                       .cost = tn__cost_conv},
    [TN_OP_CONV_2D] = {.run = tn__run_conv,
                       .scratch = tn__scratch_conv,
                       .units = tn__units_conv,
                       .cost = tn__cost_conv},
    [TN_OP_CONV_TRANSPOSE_1D] = {.run = tn__run_conv_transpose, .cost = cost_function},
    [TN_OP_CONV_TRANSPOSE_2D] = {.run = tn__run_conv_transpose, .cost = cost_function},
    [TN_OP_POOL_1D] = {.run = tn__run_pool, .cost = tn__cost_source},
    [TN_OP_POOL_2D] = {.run = tn__run_pool, .cost = tn__cost_source},

    [TN_OP_ATTENTION] = {.run = tn__run_attention,
                         .supports = tn__supports_attention,
                         .phases = tn__phases_attention,
                         .scratch = tn__scratch_attention,
                         .cost = tn__cost_attention},
    [TN_OP_SELECT_POSITIONS] = {.run = tn__run_select_positions,
                                .phases = tn__phases_select_positions,
                                .scratch = tn__scratch_select_positions,
                                .units = tn__units_select_positions,
                                .cost = tn__cost_select_positions},

    [TN_OP_CAUSAL_CONV] = {.run = tn__run_causal_conv, .units = tn__units_causal_conv, .cost = tn__cost_causal_conv},
    [TN_OP_LINEAR_ATTENTION] = {.run = tn__run_linear_attention,
                                .scratch = tn__scratch_linear_attention,
                                .units = tn__units_linear_attention,
                                .cost = tn__cost_linear_attention},
    [TN_OP_SELECTIVE_SCAN] = {.run = tn__run_selective_scan,
                              .scratch = tn__scratch_selective_scan,
                              .units = tn__units_selective_scan,
                              .cost = tn__cost_selective_scan},
    [TN_OP_RWKV7] = {.run = tn__run_rwkv7,
                     .scratch = tn__scratch_rwkv7,
                     .units = tn__units_rwkv7,
                     .cost = tn__cost_rwkv7},

    [TN_OP_CUSTOM] = {.run = tn__run_custom, .units = tn__units_custom, .cost = tn__cost_custom},
};

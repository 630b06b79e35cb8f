/* Tensors and graphs: the shape rule of every op, views, exact arena sizes, graphs and their fingerprints. */
#include "support.h"

#include "tenon/graph.h"
#include "tenon/recurrent.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- Shape rules ---- */

static tn_tensor *f32(tn_arena *a, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    return tn_tensor_nd(a, TN_F32, n0, n1, n2, n3);
}
static tn_tensor *i32(tn_arena *a, int64_t n0, int64_t n1, int64_t n2) { return tn_tensor_nd(a, TN_I32, n0, n1, n2); }
static tn_tensor *attend(tn_arena *a, tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *q_pos) {
    return tn_attention(a, &(tn_attention_sources){.q = q, .k = k, .v = v, .q_pos = q_pos}, NULL);
}
static tn_tensor *attend_pages(tn_arena *a, int64_t entry, int32_t page, bool masked) {
    tn_attention_sources s = {.q = f32(a, 8, 2, 6, 1),
                              .k = f32(a, 8, 1, 9, 1),
                              .v = f32(a, 8, 1, 9, 1),
                              .q_pos = i32(a, 2, 6, 1),
                              .pages = i32(a, entry, 3, 5),
                              .mask = masked ? f32(a, 9, 6, 1, 1) : NULL};
    return tn_attention(a, &s, &(tn_attention_params){.scale = 1, .page = page});
}
/* Two heads and 6 tokens; with weights of the heads, or a list for each. */
static tn_tensor *select_from(tn_arena *a, tn_tensor *keys, bool weighted, int32_t k) {
    return tn_select_positions(a, f32(a, 8, 2, 6, 1), keys, i32(a, 2, 6, 1), i32(a, 4, 3, 5),
                               weighted ? f32(a, 2, 6, 1, 1) : NULL,
                               &(tn_select_params){.k = k, .causal = 1, .page = 4});
}
/* Recurrent ops over 6 tokens, with rows of the state of this size. */
static tn_tensor *recur(tn_arena *a, tn_op op, int64_t row) {
    tn_tensor *state = f32(a, row, 2, 1, 1), *steps = i32(a, 4, 6, 1), *x = f32(a, 8, 2, 6, 1),
              *y = f32(a, 8, 6, 1, 1);
    if (op == TN_OP_CAUSAL_CONV) return tn_causal_conv(a, y, f32(a, 4, 8, 1, 1), NULL, state, steps, false);
    if (op == TN_OP_LINEAR_ATTENTION)
        return tn_linear_attention(
            a, &(tn_linear_attention_sources){.q = x, .k = x, .v = x, .state = state, .steps = steps}, NULL);
    if (op == TN_OP_SELECTIVE_SCAN)
        return tn_selective_scan(a, &(tn_selective_scan_sources){.x = y,
                                                                 .dt = y,
                                                                 .A = f32(a, 3, 8, 1, 1),
                                                                 .B = f32(a, 3, 6, 1, 1),
                                                                 .C = f32(a, 3, 6, 1, 1),
                                                                 .state = state,
                                                                 .steps = steps});
    return tn_rwkv7(
        a, &(tn_rwkv7_sources){.r = x, .w = x, .k = x, .v = x, .a = x, .b = x, .state = state, .steps = steps});
}
static void nothing(const tn_custom_job *job) { (void)job; }

/* The sources of the cases. */
typedef struct fixture {
    tn_tensor *m, *n, *v, *w, *h, *k, *q, *e, *x3, *p;
} fixture;

/* X(number, op, expected status, expected shape, expression) */
#define CASES(X)                                                                                                     \
    X(0, DUP, TN_OK, (4, 3, 1, 1), (tn_dup(a, m)))                                                                   \
    X(1, DUP, TN_E_INVALID, (0, 0, 0, 0), (tn_dup(a, NULL)))                                                         \
    X(2, CAST, TN_OK, (4, 3, 1, 1), (tn_cast(a, m, TN_F16)))                                                         \
    X(3, CAST, TN_E_TYPE, (0, 0, 0, 0), (tn_cast(a, q, TN_Q8_0)))                                                    \
    X(4, CAST, TN_E_TYPE, (0, 0, 0, 0), (tn_cast(a, m, (tn_type)5)))                                                 \
    X(5, CAST, TN_E_SHAPE, (0, 0, 0, 0), (tn_cast(a, m, TN_Q4_0)))                                                   \
    X(6, CONT, TN_OK, (3, 4, 1, 1), (tn_cont(a, tn_transpose(a, m))))                                                \
    X(7, CONT, TN_E_INVALID, (0, 0, 0, 0), (tn_cont(a, NULL)))                                                       \
    X(8, CPY, TN_OK, (4, 3, 1, 1), (tn_cpy(a, m, h)))                                                                \
    X(9, CPY, TN_E_SHAPE, (0, 0, 0, 0), (tn_cpy(a, m, n)))                                                           \
    X(10, VIEW, TN_OK, (2, 3, 1, 1), (tn_view(a, m, 2, (int64_t[]){2, 3}, (size_t[]){4, 16}, 8)))                    \
    X(11, VIEW, TN_E_SHAPE, (0, 0, 0, 0), (tn_view(a, m, 2, (int64_t[]){4, 3}, (size_t[]){4, 16}, 8)))               \
    X(12, VIEW, TN_E_INVALID, (0, 0, 0, 0), (tn_view(a, m, 1, (int64_t[]){2}, (size_t[]){8}, 0)))                    \
    X(13, VIEW, TN_E_INVALID, (0, 0, 0, 0), (tn_view(a, m, 1, (int64_t[]){2}, NULL, 2)))                             \
    X(14, VIEW, TN_E_INVALID, (0, 0, 0, 0), (tn_view(a, m, 5, (int64_t[]){1, 1, 1, 1, 1}, NULL, 0)))                 \
    X(15, VIEW, TN_E_SHAPE, (0, 0, 0, 0), (tn_view(a, m, 1, (int64_t[]){-1}, NULL, 0)))                              \
    X(16, VIEW, TN_E_OVERFLOW, (0, 0, 0, 0),                                                                         \
      (tn_view(a, m, 2, (int64_t[]){2, INT64_MAX}, (size_t[]){4, SIZE_MAX / 2}, 0)))                                 \
    X(17, RESHAPE, TN_OK, (2, 6, 1, 1), (tn_reshape(a, m, 2, 6)))                                                    \
    X(18, RESHAPE, TN_E_SHAPE, (0, 0, 0, 0), (tn_reshape(a, m, 5, 2)))                                               \
    X(19, RESHAPE, TN_E_SHAPE, (0, 0, 0, 0), (tn_reshape(a, tn_transpose(a, m), 12)))                                \
    X(20, RESHAPE, TN_E_SHAPE, (0, 0, 0, 0), (tn_reshape(a, q, 16, 6)))                                              \
    X(21, PERMUTE, TN_OK, (3, 1, 4, 1), (tn_permute(a, m, 2, 0, 1, 3)))                                              \
    X(22, PERMUTE, TN_E_INVALID, (0, 0, 0, 0), (tn_permute(a, m, 0, 0, 1, 2)))                                       \
    X(23, PERMUTE, TN_E_TYPE, (0, 0, 0, 0), (tn_permute(a, q, 1, 0, 2, 3)))                                          \
    X(24, TRANSPOSE, TN_OK, (3, 4, 1, 1), (tn_transpose(a, m)))                                                      \
    X(25, TRANSPOSE, TN_E_TYPE, (0, 0, 0, 0), (tn_transpose(a, q)))                                                  \
    X(26, ADD, TN_OK, (4, 3, 1, 1), (tn_add(a, m, v)))                                                               \
    X(27, ADD, TN_E_SHAPE, (0, 0, 0, 0), (tn_add(a, m, n)))                                                          \
    X(28, ADD, TN_E_TYPE, (0, 0, 0, 0), (tn_add(a, k, m)))                                                           \
    X(29, SUB, TN_OK, (4, 3, 1, 1), (tn_sub(a, m, v)))                                                               \
    X(30, SUB, TN_E_SHAPE, (0, 0, 0, 0), (tn_sub(a, m, n)))                                                          \
    X(31, SUB, TN_E_TYPE, (0, 0, 0, 0), (tn_sub(a, k, m)))                                                           \
    X(32, MUL, TN_OK, (4, 3, 1, 1), (tn_mul(a, m, v)))                                                               \
    X(33, MUL, TN_E_SHAPE, (0, 0, 0, 0), (tn_mul(a, m, n)))                                                          \
    X(34, MUL, TN_E_TYPE, (0, 0, 0, 0), (tn_mul(a, k, m)))                                                           \
    X(35, DIV, TN_OK, (4, 3, 1, 1), (tn_div(a, m, v)))                                                               \
    X(36, DIV, TN_E_SHAPE, (0, 0, 0, 0), (tn_div(a, m, n)))                                                          \
    X(37, DIV, TN_E_TYPE, (0, 0, 0, 0), (tn_div(a, k, m)))                                                           \
    X(38, ADD_ID, TN_OK, (4, 2, 3, 1), (tn_add_id(a, f32(a, 4, 2, 3, 1), n, i32(a, 2, 3, 1))))                       \
    X(39, ADD_ID, TN_E_SHAPE, (0, 0, 0, 0), (tn_add_id(a, f32(a, 4, 2, 3, 1), n, i32(a, 3, 3, 1))))                  \
    X(40, ADD_ID, TN_E_TYPE, (0, 0, 0, 0), (tn_add_id(a, m, n, m)))                                                  \
    X(41, SCALE, TN_OK, (4, 3, 1, 1), (tn_scale(a, h, 2, 1)))                                                        \
    X(42, SCALE, TN_E_TYPE, (0, 0, 0, 0), (tn_scale(a, k, 2, 1)))                                                    \
    X(43, SQR, TN_OK, (4, 3, 1, 1), (tn_sqr(a, m)))                                                                  \
    X(44, SQR, TN_E_TYPE, (0, 0, 0, 0), (tn_sqr(a, q)))                                                              \
    X(45, SQRT, TN_OK, (4, 3, 1, 1), (tn_sqrt(a, m)))                                                                \
    X(46, SQRT, TN_E_TYPE, (0, 0, 0, 0), (tn_sqrt(a, q)))                                                            \
    X(47, LOG, TN_OK, (4, 3, 1, 1), (tn_log_of(a, m)))                                                               \
    X(48, LOG, TN_E_TYPE, (0, 0, 0, 0), (tn_log_of(a, q)))                                                           \
    X(49, EXP, TN_OK, (4, 3, 1, 1), (tn_exp(a, m)))                                                                  \
    X(50, EXP, TN_E_TYPE, (0, 0, 0, 0), (tn_exp(a, q)))                                                              \
    X(51, SIN, TN_OK, (4, 3, 1, 1), (tn_sin(a, m)))                                                                  \
    X(52, SIN, TN_E_TYPE, (0, 0, 0, 0), (tn_sin(a, q)))                                                              \
    X(53, COS, TN_OK, (4, 3, 1, 1), (tn_cos(a, m)))                                                                  \
    X(54, COS, TN_E_TYPE, (0, 0, 0, 0), (tn_cos(a, q)))                                                              \
    X(55, NEG, TN_OK, (4, 3, 1, 1), (tn_neg(a, m)))                                                                  \
    X(56, NEG, TN_E_TYPE, (0, 0, 0, 0), (tn_neg(a, q)))                                                              \
    X(57, ABS, TN_OK, (4, 3, 1, 1), (tn_abs(a, m)))                                                                  \
    X(58, ABS, TN_E_TYPE, (0, 0, 0, 0), (tn_abs(a, q)))                                                              \
    X(59, SGN, TN_OK, (4, 3, 1, 1), (tn_sgn(a, m)))                                                                  \
    X(60, SGN, TN_E_TYPE, (0, 0, 0, 0), (tn_sgn(a, q)))                                                              \
    X(61, STEP, TN_OK, (4, 3, 1, 1), (tn_step(a, m)))                                                                \
    X(62, STEP, TN_E_TYPE, (0, 0, 0, 0), (tn_step(a, q)))                                                            \
    X(63, TANH, TN_OK, (4, 3, 1, 1), (tn_tanh(a, m)))                                                                \
    X(64, TANH, TN_E_TYPE, (0, 0, 0, 0), (tn_tanh(a, q)))                                                            \
    X(65, ELU, TN_OK, (4, 3, 1, 1), (tn_elu(a, m)))                                                                  \
    X(66, ELU, TN_E_TYPE, (0, 0, 0, 0), (tn_elu(a, q)))                                                              \
    X(67, RELU, TN_OK, (4, 3, 1, 1), (tn_relu(a, m)))                                                                \
    X(68, RELU, TN_E_TYPE, (0, 0, 0, 0), (tn_relu(a, q)))                                                            \
    X(69, SIGMOID, TN_OK, (4, 3, 1, 1), (tn_sigmoid(a, m)))                                                          \
    X(70, SIGMOID, TN_E_TYPE, (0, 0, 0, 0), (tn_sigmoid(a, q)))                                                      \
    X(71, GELU, TN_OK, (4, 3, 1, 1), (tn_gelu(a, m)))                                                                \
    X(72, GELU, TN_E_TYPE, (0, 0, 0, 0), (tn_gelu(a, q)))                                                            \
    X(73, GELU_QUICK, TN_OK, (4, 3, 1, 1), (tn_gelu_quick(a, m)))                                                    \
    X(74, GELU_QUICK, TN_E_TYPE, (0, 0, 0, 0), (tn_gelu_quick(a, q)))                                                \
    X(75, GELU_ERF, TN_OK, (4, 3, 1, 1), (tn_gelu_erf(a, m)))                                                        \
    X(76, GELU_ERF, TN_E_TYPE, (0, 0, 0, 0), (tn_gelu_erf(a, q)))                                                    \
    X(77, SILU, TN_OK, (4, 3, 1, 1), (tn_silu(a, m)))                                                                \
    X(78, SILU, TN_E_TYPE, (0, 0, 0, 0), (tn_silu(a, q)))                                                            \
    X(79, HARDSWISH, TN_OK, (4, 3, 1, 1), (tn_hardswish(a, m)))                                                      \
    X(80, HARDSWISH, TN_E_TYPE, (0, 0, 0, 0), (tn_hardswish(a, q)))                                                  \
    X(81, HARDSIGMOID, TN_OK, (4, 3, 1, 1), (tn_hardsigmoid(a, m)))                                                  \
    X(82, HARDSIGMOID, TN_E_TYPE, (0, 0, 0, 0), (tn_hardsigmoid(a, q)))                                              \
    X(83, SOFTPLUS, TN_OK, (4, 3, 1, 1), (tn_softplus(a, m)))                                                        \
    X(84, SOFTPLUS, TN_E_TYPE, (0, 0, 0, 0), (tn_softplus(a, q)))                                                    \
    X(85, CLAMP, TN_OK, (4, 3, 1, 1), (tn_clamp(a, m, 0, 1)))                                                        \
    X(86, CLAMP, TN_E_TYPE, (0, 0, 0, 0), (tn_clamp(a, k, 0, 1)))                                                    \
    X(87, LEAKY_RELU, TN_OK, (4, 3, 1, 1), (tn_leaky_relu(a, m, 0.1f)))                                              \
    X(88, LEAKY_RELU, TN_E_TYPE, (0, 0, 0, 0), (tn_leaky_relu(a, q, 0.1f)))                                          \
    X(89, REGLU, TN_OK, (4, 3, 1, 1), (tn_reglu(a, m, m)))                                                           \
    X(90, REGLU, TN_OK, (2, 3, 1, 1), (tn_glu(a, TN_OP_REGLU, m, NULL, false)))                                      \
    X(91, REGLU, TN_E_SHAPE, (0, 0, 0, 0), (tn_reglu(a, m, n)))                                                      \
    X(92, REGLU, TN_E_SHAPE, (0, 0, 0, 0), (tn_glu(a, TN_OP_REGLU, w, NULL, false)))                                 \
    X(93, REGLU, TN_E_INVALID, (0, 0, 0, 0), (tn_reglu(a, m, NULL)))                                                 \
    X(94, GEGLU, TN_OK, (4, 3, 1, 1), (tn_geglu(a, m, m)))                                                           \
    X(95, GEGLU, TN_OK, (2, 3, 1, 1), (tn_glu(a, TN_OP_GEGLU, m, NULL, false)))                                      \
    X(96, GEGLU, TN_E_SHAPE, (0, 0, 0, 0), (tn_geglu(a, m, n)))                                                      \
    X(97, GEGLU, TN_E_SHAPE, (0, 0, 0, 0), (tn_glu(a, TN_OP_GEGLU, w, NULL, false)))                                 \
    X(98, GEGLU, TN_E_INVALID, (0, 0, 0, 0), (tn_geglu(a, m, NULL)))                                                 \
    X(99, GEGLU_QUICK, TN_OK, (4, 3, 1, 1), (tn_geglu_quick(a, m, m)))                                               \
    X(100, GEGLU_QUICK, TN_OK, (2, 3, 1, 1), (tn_glu(a, TN_OP_GEGLU_QUICK, m, NULL, false)))                         \
    X(101, GEGLU_QUICK, TN_E_SHAPE, (0, 0, 0, 0), (tn_geglu_quick(a, m, n)))                                         \
    X(102, GEGLU_QUICK, TN_E_SHAPE, (0, 0, 0, 0), (tn_glu(a, TN_OP_GEGLU_QUICK, w, NULL, false)))                    \
    X(103, GEGLU_QUICK, TN_E_INVALID, (0, 0, 0, 0), (tn_geglu_quick(a, m, NULL)))                                    \
    X(104, GEGLU_ERF, TN_OK, (4, 3, 1, 1), (tn_geglu_erf(a, m, m)))                                                  \
    X(105, GEGLU_ERF, TN_OK, (2, 3, 1, 1), (tn_glu(a, TN_OP_GEGLU_ERF, m, NULL, false)))                             \
    X(106, GEGLU_ERF, TN_E_SHAPE, (0, 0, 0, 0), (tn_geglu_erf(a, m, n)))                                             \
    X(107, GEGLU_ERF, TN_E_SHAPE, (0, 0, 0, 0), (tn_glu(a, TN_OP_GEGLU_ERF, w, NULL, false)))                        \
    X(108, GEGLU_ERF, TN_E_INVALID, (0, 0, 0, 0), (tn_geglu_erf(a, m, NULL)))                                        \
    X(109, SWIGLU, TN_OK, (4, 3, 1, 1), (tn_swiglu(a, m, m)))                                                        \
    X(110, SWIGLU, TN_OK, (2, 3, 1, 1), (tn_glu(a, TN_OP_SWIGLU, m, NULL, false)))                                   \
    X(111, SWIGLU, TN_E_SHAPE, (0, 0, 0, 0), (tn_swiglu(a, m, n)))                                                   \
    X(112, SWIGLU, TN_E_SHAPE, (0, 0, 0, 0), (tn_glu(a, TN_OP_SWIGLU, w, NULL, false)))                              \
    X(113, SWIGLU, TN_E_INVALID, (0, 0, 0, 0), (tn_swiglu(a, m, NULL)))                                              \
    X(114, SWIGLU_OAI, TN_OK, (4, 3, 1, 1), (tn_swiglu_oai(a, m, m, 1.7f, 7)))                                       \
    X(115, SWIGLU_OAI, TN_E_SHAPE, (0, 0, 0, 0), (tn_swiglu_oai(a, m, n, 1.7f, 7)))                                  \
    X(116, SUM, TN_OK, (1, 1, 1, 1), (tn_sum(a, m)))                                                                 \
    X(117, SUM, TN_E_TYPE, (0, 0, 0, 0), (tn_sum(a, k)))                                                             \
    X(118, SUM_ROWS, TN_OK, (1, 3, 1, 1), (tn_sum_rows(a, m)))                                                       \
    X(119, SUM_ROWS, TN_E_TYPE, (0, 0, 0, 0), (tn_sum_rows(a, q)))                                                   \
    X(120, MEAN, TN_OK, (1, 3, 1, 1), (tn_mean(a, m)))                                                               \
    X(121, MEAN, TN_E_TYPE, (0, 0, 0, 0), (tn_mean(a, q)))                                                           \
    X(122, CUMSUM, TN_OK, (4, 3, 1, 1), (tn_cumsum(a, m)))                                                           \
    X(123, CUMSUM, TN_E_TYPE, (0, 0, 0, 0), (tn_cumsum(a, h)))                                                       \
    X(124, ARGMAX, TN_OK, (3, 1, 1, 1), (tn_argmax(a, m)))                                                           \
    X(125, ARGMAX, TN_E_SHAPE, (0, 0, 0, 0), (tn_argmax(a, e)))                                                      \
    X(126, ARGMAX, TN_E_TYPE, (0, 0, 0, 0), (tn_argmax(a, k)))                                                       \
    X(127, ARGSORT, TN_OK, (4, 3, 1, 1), (tn_argsort(a, m, true)))                                                   \
    X(128, ARGSORT, TN_E_TYPE, (0, 0, 0, 0), (tn_argsort(a, h, true)))                                               \
    X(129, TOP_K, TN_OK, (2, 3, 1, 1), (tn_top_k(a, m, 2)))                                                          \
    X(130, TOP_K, TN_E_INVALID, (0, 0, 0, 0), (tn_top_k(a, m, 5)))                                                   \
    X(131, TOP_K, TN_E_INVALID, (0, 0, 0, 0), (tn_top_k(a, m, 0)))                                                   \
    X(132, CONCAT, TN_OK, (4, 8, 1, 1), (tn_concat(a, m, n, 1)))                                                     \
    X(133, CONCAT, TN_E_SHAPE, (0, 0, 0, 0), (tn_concat(a, m, n, 0)))                                                \
    X(134, CONCAT, TN_E_INVALID, (0, 0, 0, 0), (tn_concat(a, m, n, 4)))                                              \
    X(135, CONCAT, TN_E_TYPE, (0, 0, 0, 0), (tn_concat(a, m, h, 1)))                                                 \
    X(136, REPEAT, TN_OK, (8, 3, 2, 1), (tn_repeat(a, m, (int64_t[]){8, 3, 2, 1})))                                  \
    X(137, REPEAT, TN_E_SHAPE, (0, 0, 0, 0), (tn_repeat(a, m, (int64_t[]){6, 3, 1, 1})))                             \
    X(138, REPEAT, TN_E_OVERFLOW, (0, 0, 0, 0), (tn_repeat(a, m, (int64_t[]){INT64_MAX / 4 * 4, 3, 1, 1})))          \
    X(139, PAD, TN_OK, (7, 3, 1, 1), (tn_pad(a, m, (int32_t[]){1, 0, 0, 0}, (int32_t[]){2, 0, 0, 0})))               \
    X(140, PAD, TN_E_INVALID, (0, 0, 0, 0), (tn_pad(a, m, (int32_t[]){-1, 0, 0, 0}, NULL)))                          \
    X(141, PAD, TN_E_TYPE, (0, 0, 0, 0), (tn_pad(a, h, NULL, NULL)))                                                 \
    X(142, ROLL, TN_OK, (4, 3, 1, 1), (tn_roll(a, m, (int32_t[]){1, -1, 0, 0})))                                     \
    X(143, ROLL, TN_E_TYPE, (0, 0, 0, 0), (tn_roll(a, k, NULL)))                                                     \
    X(144, ARANGE, TN_OK, (5, 1, 1, 1), (tn_arange(a, 0, 5, 1)))                                                     \
    X(145, ARANGE, TN_OK, (3, 1, 1, 1), (tn_arange(a, 0, 5, 2)))                                                     \
    X(146, ARANGE, TN_E_INVALID, (0, 0, 0, 0), (tn_arange(a, 0, 5, 0)))                                              \
    X(147, ARANGE, TN_E_INVALID, (0, 0, 0, 0), (tn_arange(a, 0, 5, -1)))                                             \
    X(148, GET_ROWS, TN_OK, (4, 6, 1, 1), (tn_get_rows(a, m, p)))                                                    \
    X(149, GET_ROWS, TN_OK, (32, 6, 1, 1), (tn_get_rows(a, q, p)))                                                   \
    X(150, GET_ROWS, TN_E_TYPE, (0, 0, 0, 0), (tn_get_rows(a, m, v)))                                                \
    X(151, GET_ROWS, TN_E_SHAPE, (0, 0, 0, 0), (tn_get_rows(a, m, i32(a, 2, 2, 1))))                                 \
    X(152, SET_ROWS, TN_OK, (4, 3, 1, 1), (tn_set_rows(a, h, f32(a, 4, 6, 1, 1), p)))                                \
    X(153, SET_ROWS, TN_E_SHAPE, (0, 0, 0, 0), (tn_set_rows(a, h, m, p)))                                            \
    X(154, SET_ROWS, TN_E_TYPE, (0, 0, 0, 0), (tn_set_rows(a, m, h, p)))                                             \
    X(155, ACC, TN_OK, (4, 3, 1, 1), (tn_acc(a, m, f32(a, 2, 2, 1, 1), 16, 48, 48, 8)))                              \
    X(156, ACC, TN_E_SHAPE, (0, 0, 0, 0), (tn_acc(a, m, f32(a, 2, 2, 1, 1), 16, 48, 48, 32)))                        \
    X(157, ACC, TN_E_INVALID, (0, 0, 0, 0), (tn_acc(a, m, v, 16, 48, 48, 2)))                                        \
    X(158, ACC, TN_E_TYPE, (0, 0, 0, 0), (tn_acc(a, m, h, 16, 48, 48, 0)))                                           \
    X(159, SET, TN_OK, (4, 3, 1, 1), (tn_set(a, m, f32(a, 2, 2, 1, 1), 16, 48, 48, 8)))                              \
    X(160, SET, TN_E_SHAPE, (0, 0, 0, 0), (tn_set(a, m, f32(a, 2, 2, 1, 1), 16, 48, 48, 32)))                        \
    X(161, SET, TN_E_INVALID, (0, 0, 0, 0), (tn_set(a, m, v, 16, 48, 48, 2)))                                        \
    X(162, SET, TN_E_TYPE, (0, 0, 0, 0), (tn_set(a, m, h, 16, 48, 48, 0)))                                           \
    X(163, NORM, TN_OK, (4, 3, 1, 1), (tn_norm(a, m, v, v, 1e-5f)))                                                  \
    X(164, NORM, TN_E_SHAPE, (0, 0, 0, 0), (tn_norm(a, m, w, NULL, 1e-5f)))                                          \
    X(165, NORM, TN_E_TYPE, (0, 0, 0, 0), (tn_norm(a, h, NULL, NULL, 1e-5f)))                                        \
    X(166, NORM, TN_E_INVALID, (0, 0, 0, 0), (tn_norm(a, m, NULL, NULL, -1)))                                        \
    X(167, RMS_NORM, TN_OK, (4, 3, 1, 1), (tn_rms_norm(a, m, v, 1e-5f)))                                             \
    X(168, RMS_NORM, TN_E_SHAPE, (0, 0, 0, 0), (tn_rms_norm(a, m, w, 1e-5f)))                                        \
    X(169, RMS_NORM, TN_E_SHAPE, (0, 0, 0, 0), (tn_rms_norm(a, tn_transpose(a, m), NULL, 1e-5f)))                    \
    X(170, L2_NORM, TN_OK, (4, 3, 1, 1), (tn_l2_norm(a, m, 1e-5f)))                                                  \
    X(171, L2_NORM, TN_E_TYPE, (0, 0, 0, 0), (tn_l2_norm(a, h, 1e-5f)))                                              \
    X(172, GROUP_NORM, TN_OK, (8, 2, 6, 1), (tn_group_norm(a, x3, 3, 1e-5f)))                                        \
    X(173, GROUP_NORM, TN_E_INVALID, (0, 0, 0, 0), (tn_group_norm(a, x3, 7, 1e-5f)))                                 \
    X(174, SOFT_MAX, TN_OK, (4, 3, 1, 1), (tn_soft_max(a, m, n, NULL, 1, 0)))                                        \
    X(175, SOFT_MAX, TN_E_SHAPE, (0, 0, 0, 0), (tn_soft_max(a, n, m, NULL, 1, 0)))                                   \
    X(176, SOFT_MAX, TN_E_INVALID, (0, 0, 0, 0), (tn_soft_max(a, m, NULL, NULL, 1, 8)))                              \
    X(177, SOFT_MAX, TN_E_SHAPE, (0, 0, 0, 0), (tn_soft_max(a, m, NULL, v, 1, 0)))                                   \
    X(178, DIAG_MASK_INF, TN_OK, (4, 3, 1, 1), (tn_diag_mask_inf(a, m, 1)))                                          \
    X(179, DIAG_MASK_INF, TN_E_INVALID, (0, 0, 0, 0), (tn_diag_mask_inf(a, m, -1)))                                  \
    X(180, DIAG_MASK_INF, TN_E_TYPE, (0, 0, 0, 0), (tn_diag_mask_inf(a, h, 0)))                                      \
    X(181, DIAG_MASK_ZERO, TN_OK, (4, 3, 1, 1), (tn_diag_mask_zero(a, m, 1)))                                        \
    X(182, DIAG_MASK_ZERO, TN_E_INVALID, (0, 0, 0, 0), (tn_diag_mask_zero(a, m, -1)))                                \
    X(183, DIAG_MASK_ZERO, TN_E_TYPE, (0, 0, 0, 0), (tn_diag_mask_zero(a, h, 0)))                                    \
    X(184, ROPE, TN_OK, (8, 2, 6, 1), (tn_rope(a, x3, p, NULL, &rope)))                                              \
    X(185, ROPE, TN_E_SHAPE, (0, 0, 0, 0), (tn_rope(a, x3, i32(a, 5, 1, 1), NULL, &rope)))                           \
    X(186, ROPE, TN_E_INVALID, (0, 0, 0, 0),                                                                         \
      (tn_rope(a, x3, p, NULL, &(tn_rope_params){.dims = 10, .base = 1e4f, .freq_scale = 1})))                       \
    X(187, ROPE, TN_E_INVALID, (0, 0, 0, 0), (tn_rope(a, x3, p, NULL, NULL)))                                        \
    X(188, MUL_MAT, TN_OK, (3, 5, 1, 1), (tn_mul_mat(a, m, n)))                                                      \
    X(189, MUL_MAT, TN_OK, (3, 2, 1, 1), (tn_mul_mat(a, q, f32(a, 32, 2, 1, 1))))                                    \
    X(190, MUL_MAT, TN_E_SHAPE, (0, 0, 0, 0), (tn_mul_mat(a, m, w)))                                                 \
    X(191, MUL_MAT, TN_E_TYPE, (0, 0, 0, 0), (tn_mul_mat(a, k, n)))                                                  \
    X(192, MUL_MAT, TN_E_SHAPE, (0, 0, 0, 0), (tn_mul_mat(a, f32(a, 4, 3, 2, 1), f32(a, 4, 3, 3, 1))))               \
    X(193, MUL_MAT, TN_E_SHAPE, (0, 0, 0, 0), (tn_mul_mat(a, tn_transpose(a, m), w)))                                \
    X(194, MUL_MAT_ID, TN_OK, (3, 2, 6, 1),                                                                          \
      (tn_mul_mat_id(a, f32(a, 4, 3, 5, 1), f32(a, 4, 1, 6, 1), i32(a, 2, 6, 1))))                                   \
    X(195, MUL_MAT_ID, TN_E_SHAPE, (0, 0, 0, 0),                                                                     \
      (tn_mul_mat_id(a, f32(a, 4, 3, 5, 1), f32(a, 4, 3, 6, 1), i32(a, 2, 6, 1))))                                   \
    X(196, MUL_MAT_ID, TN_E_TYPE, (0, 0, 0, 0), (tn_mul_mat_id(a, m, n, m)))                                         \
    X(197, OUT_PROD, TN_OK, (4, 4, 1, 1), (tn_out_prod(a, m, f32(a, 4, 3, 1, 1))))                                   \
    X(198, OUT_PROD, TN_E_SHAPE, (0, 0, 0, 0), (tn_out_prod(a, m, n)))                                               \
    X(199, MIX, TN_OK, (4, 3, 1, 1), (tn_mix(a, f32(a, 4, 2, 3, 1), f32(a, 2, 3, 1, 1))))                            \
    X(200, MIX, TN_E_SHAPE, (0, 0, 0, 0), (tn_mix(a, f32(a, 4, 2, 3, 1), m)))                                        \
    X(201, IM2COL, TN_OK, (12, 3, 1, 1), (tn_im2col(a, f32(a, 3, 4, 2, 1), f32(a, 5, 4, 1, 1), NULL, TN_F32)))       \
    X(202, IM2COL, TN_E_SHAPE, (0, 0, 0, 0), (tn_im2col(a, f32(a, 3, 4, 2, 1), f32(a, 5, 3, 1, 1), NULL, TN_F32)))   \
    X(203, IM2COL, TN_E_TYPE, (0, 0, 0, 0), (tn_im2col(a, f32(a, 3, 4, 2, 1), f32(a, 5, 4, 1, 1), NULL, TN_I32)))    \
    X(204, CONV_1D, TN_OK, (3, 2, 1, 1), (tn_conv_1d(a, f32(a, 3, 4, 2, 1), f32(a, 5, 4, 1, 1), NULL)))              \
    X(205, CONV_1D, TN_E_SHAPE, (0, 0, 0, 0), (tn_conv_1d(a, f32(a, 6, 4, 2, 1), f32(a, 5, 4, 1, 1), NULL)))         \
    X(206, CONV_1D, TN_E_INVALID, (0, 0, 0, 0),                                                                      \
      (tn_conv_1d(a, f32(a, 3, 4, 2, 1), f32(a, 5, 4, 1, 1), &(tn_conv_params){.groups = 1})))                       \
    X(207, CONV_1D, TN_OK, (3, 4, 1, 1), (tn_conv_1d_dw(a, f32(a, 3, 1, 4, 1), f32(a, 5, 4, 1, 1), NULL)))           \
    X(208, CONV_2D, TN_OK, (3, 4, 2, 1), (tn_conv_2d(a, f32(a, 3, 3, 4, 2), f32(a, 5, 6, 4, 1), NULL)))              \
    X(209, CONV_2D, TN_E_SHAPE, (0, 0, 0, 0), (tn_conv_2d(a, f32(a, 3, 3, 3, 2), f32(a, 5, 6, 4, 1), NULL)))         \
    X(210, CONV_2D, TN_OK, (3, 4, 4, 1), (tn_conv_2d_dw(a, f32(a, 3, 3, 1, 4), f32(a, 5, 6, 4, 1), NULL)))           \
    X(211, CONV_TRANSPOSE_1D, TN_OK, (11, 2, 1, 1),                                                                  \
      (tn_conv_transpose_1d(a, f32(a, 3, 2, 4, 1), f32(a, 5, 4, 1, 1), 2)))                                          \
    X(212, CONV_TRANSPOSE_1D, TN_E_INVALID, (0, 0, 0, 0),                                                            \
      (tn_conv_transpose_1d(a, f32(a, 3, 2, 4, 1), f32(a, 5, 4, 1, 1), 0)))                                          \
    X(213, CONV_TRANSPOSE_2D, TN_OK, (11, 13, 2, 1),                                                                 \
      (tn_conv_transpose_2d(a, f32(a, 3, 3, 2, 4), f32(a, 5, 6, 4, 1), 2)))                                          \
    X(214, CONV_TRANSPOSE_2D, TN_E_SHAPE, (0, 0, 0, 0),                                                              \
      (tn_conv_transpose_2d(a, f32(a, 3, 3, 2, 3), f32(a, 5, 6, 4, 1), 2)))                                          \
    X(215, POOL_1D, TN_OK, (2, 3, 1, 1), (tn_pool_1d(a, m, &pool)))                                                  \
    X(216, POOL_1D, TN_E_INVALID, (0, 0, 0, 0), (tn_pool_1d(a, m, NULL)))                                            \
    X(217, POOL_2D, TN_OK, (2, 1, 1, 1), (tn_pool_2d(a, m, &pool)))                                                  \
    X(218, POOL_2D, TN_E_SHAPE, (0, 0, 0, 0), (tn_pool_2d(a, v, &pool)))                                             \
    X(219, UPSCALE, TN_OK, (8, 6, 1, 1), (tn_upscale(a, m, (int64_t[]){8, 6, 1, 1}, TN_UPSCALE_BILINEAR)))           \
    X(220, UPSCALE, TN_E_SHAPE, (0, 0, 0, 0), (tn_upscale(a, m, (int64_t[]){8, 0, 1, 1}, TN_UPSCALE_NEAREST)))       \
    X(221, UPSCALE, TN_E_INVALID, (0, 0, 0, 0), (tn_upscale(a, m, (int64_t[]){8, 6, 1, 1}, (tn_upscale_mode)9)))     \
    X(222, ATTENTION, TN_OK, (8, 2, 6, 1), (attend(a, x3, f32(a, 8, 1, 9, 1), f32(a, 8, 1, 9, 1), NULL)))            \
    X(223, ATTENTION, TN_E_SHAPE, (0, 0, 0, 0), (attend(a, x3, f32(a, 8, 3, 9, 1), f32(a, 8, 3, 9, 1), NULL)))       \
    X(224, ATTENTION, TN_E_SHAPE, (0, 0, 0, 0), (attend(a, x3, f32(a, 4, 1, 9, 1), f32(a, 8, 1, 9, 1), NULL)))       \
    X(225, ATTENTION, TN_E_INVALID, (0, 0, 0, 0),                                                                    \
      (attend(a, x3, f32(a, 8, 1, 9, 1), f32(a, 8, 1, 9, 1), i32(a, 2, 6, 1))))                                      \
    X(226, ATTENTION, TN_E_INVALID, (0, 0, 0, 0), (tn_attention(a, NULL, NULL)))                                     \
    X(227, CROSS_ENTROPY_LOSS, TN_OK, (1, 1, 1, 1), (tn_cross_entropy_loss(a, m, m)))                                \
    X(228, CROSS_ENTROPY_LOSS, TN_E_SHAPE, (0, 0, 0, 0), (tn_cross_entropy_loss(a, m, n)))                           \
    X(229, TIMESTEP_EMBEDDING, TN_OK, (10, 4, 1, 1), (tn_timestep_embedding(a, v, 10, 100)))                         \
    X(230, TIMESTEP_EMBEDDING, TN_E_INVALID, (0, 0, 0, 0), (tn_timestep_embedding(a, v, 0, 100)))                    \
    X(231, TIMESTEP_EMBEDDING, TN_E_TYPE, (0, 0, 0, 0), (tn_timestep_embedding(a, m, 10, 100)))                      \
    X(232, CUSTOM, TN_OK, (5, 1, 1, 1),                                                                              \
      (tn_custom(a, TN_F32, 1, (int64_t[]){5}, (tn_tensor *[]){m}, 1, nothing, NULL, 0)))                            \
    X(233, CUSTOM, TN_E_INVALID, (0, 0, 0, 0),                                                                       \
      (tn_custom(a, TN_F32, 1, (int64_t[]){5}, (tn_tensor *[]){m}, 1, NULL, NULL, 0)))                               \
    X(234, CUSTOM, TN_E_INVALID, (0, 0, 0, 0),                                                                       \
      (tn_custom(a, TN_F32, 1, (int64_t[]){5}, NULL, 11, nothing, NULL, 0)))                                         \
    X(235, ATTENTION, TN_OK, (8, 2, 6, 1), (attend_pages(a, 4, 64, false)))                                          \
    X(236, ATTENTION, TN_E_SHAPE, (0, 0, 0, 0), (attend_pages(a, 3, 64, false)))                                     \
    X(237, ATTENTION, TN_E_INVALID, (0, 0, 0, 0), (attend_pages(a, 4, 0, false)))                                    \
    X(238, ATTENTION, TN_E_INVALID, (0, 0, 0, 0), (attend_pages(a, 4, 64, true)))                                    \
    X(239, HADAMARD, TN_OK, (4, 3, 1, 1), (tn_hadamard(a, m, 2)))                                                    \
    X(240, HADAMARD, TN_E_INVALID, (0, 0, 0, 0), (tn_hadamard(a, m, 3)))                                             \
    X(241, HADAMARD, TN_E_INVALID, (0, 0, 0, 0), (tn_hadamard(a, m, 0)))                                             \
    X(242, HADAMARD, TN_E_SHAPE, (0, 0, 0, 0), (tn_hadamard(a, m, 8)))                                               \
    X(243, HADAMARD, TN_E_TYPE, (0, 0, 0, 0), (tn_hadamard(a, h, 2)))                                                \
    X(244, CAUSAL_CONV, TN_OK, (8, 6, 1, 1), (recur(a, TN_OP_CAUSAL_CONV, 24)))                                      \
    X(245, CAUSAL_CONV, TN_E_SHAPE, (0, 0, 0, 0), (recur(a, TN_OP_CAUSAL_CONV, 25)))                                 \
    X(246, LINEAR_ATTENTION, TN_OK, (8, 2, 6, 1), (recur(a, TN_OP_LINEAR_ATTENTION, 128)))                           \
    X(247, LINEAR_ATTENTION, TN_E_SHAPE, (0, 0, 0, 0), (recur(a, TN_OP_LINEAR_ATTENTION, 129)))                      \
    X(248, SELECTIVE_SCAN, TN_OK, (8, 6, 1, 1), (recur(a, TN_OP_SELECTIVE_SCAN, 24)))                                \
    X(249, SELECTIVE_SCAN, TN_E_SHAPE, (0, 0, 0, 0), (recur(a, TN_OP_SELECTIVE_SCAN, 25)))                           \
    X(250, RWKV7, TN_OK, (8, 2, 6, 1), (recur(a, TN_OP_RWKV7, 128)))                                                 \
    X(251, RWKV7, TN_E_SHAPE, (0, 0, 0, 0), (recur(a, TN_OP_RWKV7, 129)))                                            \
    X(252, SELECT_POSITIONS, TN_OK, (3, 6, 1, 1), (select_from(a, f32(a, 8, 9, 1, 1), true, 3)))                     \
    X(253, SELECT_POSITIONS, TN_OK, (3, 6, 2, 1), (select_from(a, f32(a, 8, 9, 1, 1), false, 3)))                    \
    X(254, SELECT_POSITIONS, TN_E_SHAPE, (0, 0, 0, 0), (select_from(a, f32(a, 4, 9, 1, 1), true, 3)))                \
    X(255, SELECT_POSITIONS, TN_E_TYPE, (0, 0, 0, 0), (select_from(a, i32(a, 8, 9, 1), true, 3)))                    \
    X(256, SELECT_POSITIONS, TN_E_INVALID, (0, 0, 0, 0), (select_from(a, f32(a, 8, 9, 1, 1), true, 0)))              \
    X(257, SELECT_POSITIONS, TN_E_INVALID, (0, 0, 0, 0), (select_from(a, NULL, true, 3)))

#define UNPACK(...) __VA_ARGS__
static const struct {
    tn_op op;
    tn_status status;
    int64_t ne[4];
    const char *text;
} cases[] = {
#define X(number, OP, expected, shape, expression) {TN_OP_##OP, expected, {UNPACK shape}, #expression},
    CASES(X)
#undef X
};

static tn_tensor *build(int number, tn_arena *a, const fixture *f) {
    tn_tensor *m = f->m, *n = f->n, *v = f->v, *w = f->w, *h = f->h, *k = f->k, *q = f->q, *e = f->e, *x3 = f->x3,
              *p = f->p;
    tn_rope_params rope = tn_rope_params_default(8, TN_ROPE_NEOX);
    tn_pool_params pool = {.kind = TN_POOL_MAX, .kernel = {2, 2}, .stride = {2, 2}};
    (void)w;
    (void)e;
    switch (number) {
#define X(number, OP, expected, shape, expression)                                                                   \
    case number: return expression;
        CASES(X)
#undef X
    }
    return NULL;
}

static void every_shape_rule_accepts_and_refuses(void **state) {
    (void)state;
    int accepted[TN_OP_COUNT] = {0}, refused[TN_OP_COUNT] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_arena *a;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &a));
        fixture f = {.m = f32(a, 4, 3, 1, 1),
                     .n = f32(a, 4, 5, 1, 1),
                     .v = tn_tensor_nd(a, TN_F32, 4),
                     .w = tn_tensor_nd(a, TN_F32, 3),
                     .h = tn_tensor_nd(a, TN_F16, 4, 3),
                     .k = tn_tensor_nd(a, TN_I32, 4, 3),
                     .q = tn_tensor_nd(a, TN_Q4_0, 32, 3),
                     .e = f32(a, 0, 3, 1, 1),
                     .x3 = f32(a, 8, 2, 6, 1),
                     .p = tn_tensor_nd(a, TN_I32, 6)};
        assert_ok(tn_arena_status(a));
        tn_tensor *t = build((int)i, a, &f);
        tn_status status = tn_arena_status(a);
        if (status != cases[i].status)
            fail_msg("%s: expected %s, got %s (%s)", cases[i].text, tn_status_name(cases[i].status),
                     tn_status_name(status), tn_error());
        if (status == TN_OK) {
            assert_non_null(t);
            if (t->op != cases[i].op || memcmp(t->ne, cases[i].ne, sizeof t->ne) != 0)
                fail_msg("%s: %s[%lld,%lld,%lld,%lld]", cases[i].text, tn_op_name(t->op), (long long)t->ne[0],
                         (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3]);
            accepted[cases[i].op]++;
        } else {
            assert_null(t);
            if (!strstr(tn_error(), tn_op_name(cases[i].op)))
                fail_msg("%s: '%s' does not name the op", cases[i].text, tn_error());
            refused[cases[i].op]++;
            /* The first error is kept, and the arena works again after a reset. */
            assert_null(tn_add(a, f.m, f.m));
            tn_arena_reset(a);
            assert_ok(tn_arena_status(a));
            assert_non_null(tn_tensor_nd(a, TN_F32, 2));
        }
        tn_arena_free(a);
    }
    for (tn_op op = 1; op < TN_OP_COUNT; op++)
        if (!accepted[op] || !refused[op])
            fail_msg("the op '%s' has no %s case", tn_op_name(op), accepted[op] ? "refused" : "accepted");
}

/* ---- Tensors and arenas ---- */

static void bad_tensors_are_refused_with_the_particulars(void **state) {
    (void)state;
    static const struct {
        tn_type type;
        int64_t ne[2];
        tn_status status;
    } bad[] = {{TN_F32, {INT64_MAX, 2}, TN_E_OVERFLOW},
               {TN_F32, {-1, 2}, TN_E_SHAPE},
               {TN_Q4_0, {33, 2}, TN_E_SHAPE},
               {(tn_type)77, {1, 1}, TN_E_TYPE}};
    for (size_t i = 0; i < 4; i++) {
        tn_arena *a;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 4096, .no_alloc = true}, &a));
        assert_null(tn_tensor_new(a, bad[i].type, 2, bad[i].ne));
        assert_fails(bad[i].status, tn_arena_status(a));
        tn_arena_free(a);
    }
    tn_arena *a;
    assert_fails(TN_E_INVALID, tn_arena_new(NULL, &a));
    assert_fails(TN_E_INVALID, tn_arena_new(&(tn_arena_params){.size = 8}, &a));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 4096, .no_alloc = true}, &a));
    char name[100];
    memset(name, 'x', 99);
    name[99] = 0;
    assert_null(tn_name(a, tn_tensor_nd(a, TN_F32, 1), "%s", name));
    assert_fails(TN_E_INVALID, tn_arena_status(a));
    tn_arena_free(a);
}

static void an_arena_holds_what_was_computed_for_it(void **state) {
    (void)state;
    for (size_t n = 1; n < 20; n++) {
        size_t size = tn_arena_size_for(n, 7);
        tn_arena *a;
        tn_graph *g;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = size, .no_alloc = true}, &a));
        for (size_t i = 0; i < n; i++) assert_non_null(tn_tensor_nd(a, TN_F32, 3));
        assert_ok(tn_graph_new(a, 7, &g));
        assert_int_equal(tn_arena_used(a), size);
        size_t tensors = 0;
        for (const tn_tensor *t = NULL; (t = tn_arena_next_tensor(a, t));) tensors++;
        assert_int_equal(tensors, n);
        assert_null(tn_tensor_nd(a, TN_F32, 1));
        assert_fails(TN_E_FULL, tn_arena_status(a));
        assert_non_null(strstr(tn_error(), "missing"));
        tn_arena_free(a);
    }
}

static void views_point_at_their_root(void **state) {
    (void)state;
    tn_arena *a;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 14}, &a));
    tn_tensor *root = tn_tensor_nd(a, TN_F32, 6, 4),
              *one = tn_view(a, root, 2, (int64_t[]){3, 4}, (size_t[]){4, 24}, 12);
    tn_tensor *two = tn_view(a, one, 1, (int64_t[]){2}, NULL, 24);
    assert_ptr_equal(two->view_src, root);
    assert_int_equal(two->view_offset, 36);
    assert_ptr_equal(two->data, (char *)root->data + 36);
    assert_true(tn_is_view(two) && !tn_is_contiguous(one) && tn_is_contiguous_rows(one) &&
                tn_is_contiguous_from(one, 1));
    tn_tensor *t = tn_transpose(a, root);
    assert_true(tn_is_transposed(t) && tn_is_permuted(t) && !tn_is_contiguous(t) && tn_nbytes(t) == tn_nbytes(root));
    tn_arena_free(a);
}

/* ---- Graphs ---- */

static tn_graph *diamond(tn_arena *a, float scale, tn_tensor **last) {
    tn_graph *g;
    tn_tensor *x = tn_input(a, TN_F32, 4), *l = tn_scale(a, x, scale, 0), *r = tn_silu(a, x);
    *last = tn_name(a, tn_output(tn_add(a, l, r)), "sum");
    assert_ok(tn_graph_of(a, *last, &g));
    return g;
}

static void a_graph_lists_each_tensor_once_in_order(void **state) {
    (void)state;
    tn_arena *a;
    tn_tensor *last, *again;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &a));
    tn_graph *g = diamond(a, 2, &last), *same = diamond(a, 2, &again), *other = diamond(a, 3, &again), *slice, *copy;
    assert_int_equal(tn_graph_node_count(g), 3);
    assert_int_equal(tn_graph_leaf_count(g), 1);
    assert_ptr_equal(tn_graph_node(g, 2), last);
    assert_ptr_equal(tn_graph_find(g, "sum"), last);
    assert_null(tn_graph_find(g, "none"));
    assert_int_equal(tn_graph_use_count(g, tn_graph_leaf(g, 0)), 2);
    assert_int_equal(tn_graph_index(g, again), TN_GRAPH_NONE); /* not in the graph */
    tn_fingerprint f = tn_graph_fingerprint(g), s = tn_graph_fingerprint(same), o = tn_graph_fingerprint(other);
    assert_true(f.lo == s.lo && f.hi == s.hi);
    assert_false(f.lo == o.lo && f.hi == o.hi);
    assert_ok(tn_graph_slice(a, g, 2, 3, &slice));
    assert_int_equal(tn_graph_node_count(slice), 1);
    assert_int_equal(tn_graph_leaf_count(slice), 2);
    assert_ok(tn_graph_copy(a, g, &copy));
    assert_int_equal(tn_graph_index(copy, last), 2);
    tn_graph_clear(copy);
    assert_int_equal(tn_graph_node_count(copy), 0);
    assert_fails(TN_E_INVALID, tn_graph_slice(a, g, 2, 9, &slice));
    assert_fails(TN_E_INVALID, tn_graph_add(g, NULL));
    tn_arena_free(a);
}

static void a_full_or_cyclic_graph_stays_as_it_was(void **state) {
    (void)state;
    tn_arena *a;
    tn_graph *g;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &a));
    tn_tensor *x = tn_input(a, TN_F32, 4), *y = x;
    for (int i = 0; i < 5; i++) y = tn_neg(a, y);
    assert_ok(tn_graph_new(a, 4, &g));
    assert_ok(tn_graph_add(g, tn_abs(a, x)));
    assert_fails(TN_E_FULL, tn_graph_add(g, y));
    assert_int_equal(tn_graph_node_count(g), 1);
    assert_ok(tn_graph_add(g, tn_sqr(a, x)));
    tn_tensor *p = tn_neg(a, x), *q = tn_neg(a, p);
    p->src[0] = q;
    assert_fails(TN_E_INVALID, tn_graph_add(g, q));
    assert_int_equal(tn_graph_node_count(g), 2);
    tn_arena_free(a);
}

enum { CHAIN = 1000000 };
static void *build_chain(void *result) {
    tn_arena *a = NULL;
    tn_graph *g;
    size_t size = tn_arena_size_for(CHAIN + 1, CHAIN + 1);
    *(int *)result = 1;
    if (tn_arena_new(&(tn_arena_params){.size = size, .no_alloc = true}, &a) != TN_OK) return NULL;
    tn_tensor *x = tn_input(a, TN_F32, 1);
    for (int i = 0; i < CHAIN; i++) x = tn_neg(a, x);
    FILE *sink = fopen("/dev/null", "w");
    if (sink && tn_graph_new(a, CHAIN + 1, &g) == TN_OK && tn_graph_add(g, x) == TN_OK &&
        tn_graph_node_count(g) == CHAIN && tn_graph_fingerprint(g).lo && tn_graph_print(g, sink) == TN_OK &&
        tn_graph_print_dot(g, sink) == TN_OK && tn_graph_print_json(g, sink) == TN_OK)
        *(int *)result = 0;
    if (sink) fclose(sink);
    tn_arena_free(a);
    return NULL;
}
static void a_chain_of_a_million_needs_little_stack(void **state) {
    (void)state;
    pthread_attr_t attributes;
    pthread_t thread;
    int result = -1;
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 64 << 10), 0);
    assert_int_equal(pthread_create(&thread, &attributes, build_chain, &result), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    assert_int_equal(result, 0);
}

static tn_status arena_and_graph(void *user) {
    (void)user;
    tn_arena *a;
    tn_graph *g;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(2, 8), .no_alloc = true}, &a));
    tn_status status = tn_graph_new(a, 8, &g);
    if (status == TN_OK) status = tn_graph_add(g, tn_neg(a, tn_input(a, TN_F32, 4)));
    tn_arena_free(a);
    return status;
}
static void failed_allocations_are_survived(void **state) {
    (void)state;
    check_every_allocation_failure(arena_and_graph, NULL);
    check_no_leak(arena_and_graph, NULL);
}

static void the_type_table_agrees_with_itself(void **state) {
    (void)state;
#define TN_X(NAME, name, id, block, bytes)                                                                           \
    {                                                                                                                \
        tn_type type;                                                                                                \
        size_t row;                                                                                                  \
        assert_true(tn_type_valid(TN_##NAME));                                                                       \
        assert_ok(tn_type_parse(#NAME, &type));                                                                      \
        assert_int_equal(type, id);                                                                                  \
        assert_string_equal(tn_type_name(TN_##NAME), #name);                                                         \
        assert_true(tn_type_row_bytes(TN_##NAME, 2 * (block), &row) && row == 2 * (bytes));                          \
        assert_int_equal(tn_type_is_quantized(TN_##NAME), (block) > 1);                                              \
    }
    TN_TYPE_TABLE(TN_X)
#undef TN_X
    tn_type type;
    assert_fails(TN_E_NOT_FOUND, tn_type_parse("q9_9", &type));
    float x[3] = {1};
    char blocks[64];
    assert_fails(TN_E_SHAPE, tn_type_from_f32(TN_Q4_0, x, blocks, 3, NULL));
    assert_fails(TN_E_SHAPE, tn_type_from_f32(TN_IQ1_S, x, blocks, 3, NULL));
    for (tn_type t = 0; t < TN_TYPE_LIMIT; t++) assert_int_equal(tn_type_can_read(t), tn_type_can_write(t));
    assert_fails(TN_E_TYPE, tn_type_to_f32((tn_type)5, blocks, x, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_rule_accepts_and_refuses),
        cmocka_unit_test(bad_tensors_are_refused_with_the_particulars),
        cmocka_unit_test(an_arena_holds_what_was_computed_for_it),
        cmocka_unit_test(views_point_at_their_root),
        cmocka_unit_test(a_graph_lists_each_tensor_once_in_order),
        cmocka_unit_test(a_full_or_cyclic_graph_stays_as_it_was),
        cmocka_unit_test(a_chain_of_a_million_needs_little_stack),
        cmocka_unit_test(failed_allocations_are_survived),
        cmocka_unit_test(the_type_table_agrees_with_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

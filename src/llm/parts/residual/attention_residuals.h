/* Tensors of attention residuals: scores of earlier states. */
#ifndef TN_LLM_PARTS_RESIDUAL_ATTENTION_RESIDUALS_H
#define TN_LLM_PARTS_RESIDUAL_ATTENTION_RESIDUALS_H

/* clang-format off */
#define TN__ATTENTION_RESIDUAL_TENSORS(X)                                                                       \
    X(attn_res_score, "attn_res_score.weight", D1(EMBD), NORM, h->residual_block > 0)                           \
    X(ffn_res_score, "ffn_res_score.weight", D1(EMBD), NORM, h->residual_block > 0)

#define TN__MODEL_ATTENTION_RESIDUAL_TENSORS(X)                                                                 \
    X(output_res_score, "output_res_score.weight", D1(EMBD), NORM, h->residual_block > 0)
/* clang-format on */

#endif

/* Tensors of T5's attention: a table of biases by distance, which the first layer has for all. */
#ifndef TN_LLM_PARTS_RELATIVE_BIAS_H
#define TN_LLM_PARTS_RELATIVE_BIAS_H

/* clang-format off */
#define TN__RELATIVE_BIAS_TENSORS(X)                                                                            \
    X(rel_bias, "attn_rel_b.weight", D2(HEADS, h->n_rel_buckets), BIAS, !HAS(RELATIVE_BIAS) ? false : l == h->layers ? true : OPTIONAL) \
    X(attn_o, "attn_o.weight", D2(ATTN_OUT, EMBD), MATRIX, HAS(RELATIVE_BIAS))
/* clang-format on */

#endif

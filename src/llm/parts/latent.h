/* Tensors of latent attention (MLA). */
#ifndef TN_LLM_PARTS_LATENT_H
#define TN_LLM_PARTS_LATENT_H

/* clang-format off */
#define TN__LATENT_TENSORS(X)                                                                                   \
    X(q_a, "attn_q_a.weight", D2(EMBD, Q_RANK), MATRIX, LATENT && Q_RANK > 0)                                   \
    X(q_a_norm, "attn_q_a_norm.weight", D1(Q_RANK), NORM, LATENT && Q_RANK > 0)                                 \
    X(q_b, "attn_q_b.weight", D2(Q_RANK, LATENT_Q), MATRIX, LATENT && Q_RANK > 0)                               \
    X(kv_a, "attn_kv_a_mqa.weight", D2(EMBD, KV_RANK + ROTATED), MATRIX, LATENT)                                \
    X(kv_a_norm, "attn_kv_a_norm.weight", D1(KV_RANK), NORM, LATENT)                                            \
    X(k_b, "attn_k_b.weight", D3(LATENT_NOPE, KV_RANK, LATENT_HEADS), MATRIX, MIXES(LATENT))                    \
    X(v_b, "attn_v_b.weight", D3(KV_RANK, LATENT_V, LATENT_HEADS), MATRIX, MIXES(LATENT))                       \
    X(kv_b, "attn_kv_b.weight", D2(KV_RANK, LATENT_KV), MATRIX, MIXES(EXPANDED_LATENT) ? true : OPTIONAL)
/* clang-format on */

#endif

/* Tensors of indexers (sparse attention). */
#ifndef TN_LLM_PARTS_INDEXER_H
#define TN_LLM_PARTS_INDEXER_H

/* clang-format off */
#define TN__INDEXER_TENSORS(X)                                                                                  \
    X(index_q_b, "indexer.attn_q_b.weight", D2(Q_RANK, INDEX_Q), MATRIX, OWN_INDEXER && LATENT)                 \
    X(index_k, "indexer.attn_k.weight", D2(EMBD, INDEX_SIZE), MATRIX, OWN_INDEXER && LATENT)                    \
    X(index_k_norm, "indexer.k_norm.weight", D1(INDEX_SIZE), NORM, OWN_INDEXER)                                 \
    X(index_k_norm_b, "indexer.k_norm.bias", D1(INDEX_SIZE), BIAS, OWN_INDEXER && LATENT)                       \
    X(index_proj, "indexer.proj.weight", D2(EMBD, INDEX_HEADS), MATRIX, OWN_INDEXER && LATENT)                  \
    X(index_q_proj, "indexer.q_proj.weight", D2(EMBD, INDEX_Q), MATRIX, OWN_INDEXER && !LATENT)                 \
    X(index_k_proj, "indexer.k_proj.weight", D2(EMBD, INDEX_SIZE), MATRIX, OWN_INDEXER && !LATENT)              \
    X(index_q_norm, "indexer.q_norm.weight", D1(INDEX_SIZE), NORM, OWN_INDEXER && !LATENT)
/* clang-format on */

#endif

/* Tensors of small experts that groups of others share, and around experts of another width than the model's. */
#ifndef TN_LLM_PARTS_EXPERTS_H
#define TN_LLM_PARTS_EXPERTS_H

/* clang-format off */
#define TN__CHUNK_EXPERT_TENSORS(X)                                                                             \
    X(gate_chexps, "ffn_gate_chexps.weight", D3(EMBD, FF_CHUNK, CHUNK_EXPERTS), MATRIX, MOE && HAS(CHUNK_EXPERTS)) \
    X(down_chexps, "ffn_down_chexps.weight", D3(FF_CHUNK, EMBD, CHUNK_EXPERTS), MATRIX, MOE && HAS(CHUNK_EXPERTS)) \
    X(up_chexps, "ffn_up_chexps.weight", D3(EMBD, FF_CHUNK, CHUNK_EXPERTS), MATRIX, MOE && HAS(CHUNK_EXPERTS))

#define TN__LATENT_EXPERT_TENSORS(X)                                                                            \
    X(latent_down, "ffn_routed_down.weight", D2(EMBD, EXPERT_EMBD), MATRIX, MOE && h->n_expert_latent > 0)      \
    X(latent_up, "ffn_routed_up.weight", D2(EXPERT_EMBD, EMBD), MATRIX, MOE && h->n_expert_latent > 0)          \
    X(latent_norm, "ffn_routed_norm.weight", D1(EXPERT_EMBD), NORM, MOE && h->n_expert_latent > 0 ? USUAL : false)
/* clang-format on */

#endif

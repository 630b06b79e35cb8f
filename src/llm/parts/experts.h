/* Choosing experts, and the tensors of small experts that groups of others share. */
#ifndef TN_LLM_PARTS_EXPERTS_H
#define TN_LLM_PARTS_EXPERTS_H

/* clang-format off */
#define TN__CHUNK_EXPERT_TENSORS(X)                                                                             \
    X(gate_chexps, "ffn_gate_chexps.weight", D3(EMBD, FF_CHUNK, CHUNK_EXPERTS), MATRIX, MOE && HAS(CHUNK_EXPERTS)) \
    X(down_chexps, "ffn_down_chexps.weight", D3(FF_CHUNK, EMBD, CHUNK_EXPERTS), MATRIX, MOE && HAS(CHUNK_EXPERTS)) \
    X(up_chexps, "ffn_up_chexps.weight", D3(EMBD, FF_CHUNK, CHUNK_EXPERTS), MATRIX, MOE && HAS(CHUNK_EXPERTS))
/* clang-format on */

#endif

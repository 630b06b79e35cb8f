/* Tensors of layers that predict further tokens (multi-token prediction). Such a layer joins the embedding of the
 * next token with the state of the last ordinary layer, and is otherwise a layer like those. Its head is the model's
 * where it has none of its own. */
#ifndef TN_LLM_PARTS_NEXTN_H
#define TN_LLM_PARTS_NEXTN_H

/* clang-format off */
#define TN__NEXTN_TENSORS(X)                                                                                    \
    X(nextn_proj, "nextn.eh_proj.weight", D2(2 * (int64_t)EMBD, EMBD), MATRIX, NEXTN)                           \
    X(nextn_embd, "nextn.embed_tokens.weight", D2(EMBD, VOCAB), EMBEDDING, NEXTN ? OPTIONAL : false)            \
    X(nextn_embd_norm, "nextn.enorm.weight", D1(EMBD), NORM, NEXTN)                                             \
    X(nextn_state_norm, "nextn.hnorm.weight", D1(EMBD), NORM, NEXTN)                                            \
    X(nextn_head, "nextn.shared_head_head.weight", D2(EMBD, VOCAB), MATRIX, NEXTN ? OPTIONAL : false)           \
    X(nextn_head_norm, "nextn.shared_head_norm.weight", D1(EMBD), NORM, NEXTN ? USUAL : false)
/* clang-format on */

#endif

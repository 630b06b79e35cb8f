/* Tensors of embeddings that every layer has of its own (Gemma 3n and 4). */
#ifndef TN_LLM_PARTS_LAYER_EMBEDDING_H
#define TN_LLM_PARTS_LAYER_EMBEDDING_H

/* clang-format off */
#define TN__LAYER_EMBEDDING_TENSORS(X)                                                                          \
    X(layer_gate, "inp_gate.weight", D2(EMBD, LAYER_EMBD), MATRIX, LAYER_EMBD > 0)                              \
    X(layer_proj, "proj.weight", D2(LAYER_EMBD, EMBD), MATRIX, LAYER_EMBD > 0)                                  \
    X(layer_post_norm, "post_norm.weight", D1(EMBD), NORM, LAYER_EMBD > 0)
#define TN__MODEL_LAYER_EMBEDDING_TENSORS(X)                                                                    \
    X(layer_tok_embd, "per_layer_token_embd.weight", D2(ALL_LAYER_EMBD, VOCAB), EMBEDDING, LAYER_EMBD > 0)      \
    X(layer_model_proj, "per_layer_model_proj.weight", D2(EMBD, ALL_LAYER_EMBD), MATRIX, LAYER_EMBD > 0)        \
    X(layer_proj_norm, "per_layer_proj_norm.weight", D1(LAYER_EMBD), NORM, LAYER_EMBD > 0)
/* clang-format on */

#endif

/* Tensors of alternating updates and of the low-rank branch beside attention (Gemma 3n). */
#ifndef TN_LLM_PARTS_RESIDUAL_ALTUP_H
#define TN_LLM_PARTS_RESIDUAL_ALTUP_H

/* clang-format off */
#define TN__ALTUP_TENSORS(X)                                                                                    \
    X(altup_correct, "altup_correct_coef.weight", D2(ALTUP, ALTUP), MATRIX, ALTUP > 0)                          \
    X(altup_scale, "altup_correct_scale.weight", D1(EMBD), NORM, ALTUP > 0)                                     \
    X(altup_predict, "altup_predict_coef.weight", D2(ALTUP, ALTUP * ALTUP), MATRIX, ALTUP > 0)                  \
    X(altup_router, "altup_router.weight", D2(EMBD, ALTUP), MATRIX, ALTUP > 0)                                  \
    X(altup_router_norm, "altup_router_norm.weight", D1(EMBD), NORM, ALTUP > 0)                                 \
    X(laurel_l, "laurel_l.weight", D2(EMBD, LAUREL), MATRIX, ALTUP > 0)                                         \
    X(laurel_r, "laurel_r.weight", D2(LAUREL, EMBD), MATRIX, ALTUP > 0)                                         \
    X(laurel_norm, "laurel_post_norm.weight", D1(EMBD), NORM, ALTUP > 0)
#define TN__MODEL_ALTUP_TENSORS(X)                                                                              \
    X(altup_proj, "altup_proj.weight", D3(EMBD, EMBD, ALTUP - 1), MATRIX, ALTUP > 0)                            \
    X(altup_unproj, "altup_unembd_proj.weight", D3(EMBD, EMBD, ALTUP - 1), MATRIX, ALTUP > 0)
/* clang-format on */

#endif

/* Tensors of recurrent mixers: Mamba, Mamba-2, short convolutions, gated delta networks, KDA. */
#ifndef TN_LLM_PARTS_RECURRENT_H
#define TN_LLM_PARTS_RECURRENT_H

/* clang-format off */
#define TN__RECURRENT_TENSORS(X)                                                                                \
    X(ssm_in, "ssm_in.weight", D2(EMBD, SSM_IN), MATRIX, STATE_SPACE ? true : OPTIONAL)       \
    X(ssm_in_s, "ssm_in.scale", D1(ONE), BIAS, OPTIONAL)                                                        \
    X(ssm_conv, "ssm_conv1d.weight", D2(SSM_WIDTH, SSM_CHANNELS), CONV, STATE_SPACE || MIXES(DELTA_NET))        \
    X(ssm_conv_b, "ssm_conv1d.bias", D1(SSM_CHANNELS), BIAS, STATE_SPACE ? USUAL : OPTIONAL)                    \
    X(ssm_x, "ssm_x.weight", D2(SSM_INNER, SSM_X), MATRIX, MIXES(MAMBA) || MIXES(PLAMO_MAMBA))                                        \
    X(ssm_dt, "ssm_dt.weight", D2(DT_RANK, SSM_DT), MATRIX, MIXES(MAMBA) || MIXES(PLAMO_MAMBA))                                  \
    X(ssm_dt_b, "ssm_dt.bias", D1(SSM_DT), BIAS, STATE_SPACE || MIXES(DELTA_NET) || MIXES(KDA))                 \
    X(ssm_dt_norm, "ssm_dt_norm.weight", D1(DT_RANK), NORM, NORMED_DT)                                        \
    X(ssm_b_norm, "ssm_b_norm.weight", D1(SSM_STATE), NORM, NORMED_DT)                                          \
    X(ssm_c_norm, "ssm_c_norm.weight", D1(SSM_STATE), NORM, NORMED_DT)                                          \
    X(ssm_a, "ssm_a", D2(SSM_A, SSM_A_ROWS), DECAY, STATE_SPACE || MIXES(DELTA_NET) || MIXES(KDA))              \
    X(ssm_d, "ssm_d", D2(SSM_D, SSM_D_ROWS), BIAS, STATE_SPACE)                                                 \
    X(ssm_norm, "ssm_norm.weight", D2(SSM_NORM, SSM_NORM_ROWS), NORM, SSM_NORMED)                               \
    X(ssm_out, "ssm_out.weight", D2(SSM_INNER, EMBD), MATRIX, STATE_SPACE || MIXES(DELTA_NET))                  \
    X(ssm_out_s, "ssm_out.scale", D1(ONE), BIAS, OPTIONAL)                                                      \
    X(ssm_beta, "ssm_beta.weight", D2(EMBD, SSM_HEADS), MATRIX, MIXES(KDA) || (MIXES(DELTA_NET) && !HAS(FUSED_BETA))) \
    X(kda_conv_q, "ssm_conv1d_q.weight", D3(SSM_WIDTH, ONE, Q), CONV, MIXES(KDA))                               \
    X(kda_conv_k, "ssm_conv1d_k.weight", D3(SSM_WIDTH, ONE, Q), CONV, MIXES(KDA))                               \
    X(kda_conv_v, "ssm_conv1d_v.weight", D3(SSM_WIDTH, ONE, Q), CONV, MIXES(KDA))                               \
    X(kda_f_a, "ssm_f_a.weight", D2(EMBD, KDA_LOW), MATRIX, MIXES(KDA))                                         \
    X(kda_f_b, "ssm_f_b.weight", D2(KDA_LOW, Q), MATRIX, MIXES(KDA) ? EITHER(!HAS(WIDE_KDA)) : false)           \
    X(kda_g_a, "ssm_g_a.weight", D2(EMBD, KDA_LOW), MATRIX, MIXES(KDA) ? EITHER(!HAS(FULL_KDA_GATE)) : false)                  \
    X(kda_g_b, "ssm_g_b.weight", D2(KDA_LOW, Q), MATRIX, MIXES(KDA) ? EITHER(!HAS(WIDE_KDA) && !HAS(FULL_KDA_GATE)) : false) \
    X(kda_g, "ssm_g.weight", D2(EMBD, Q), MATRIX, MIXES(KDA) ? EITHER(HAS(FULL_KDA_GATE)) : false)                                \
    X(ssm_beta_s, "ssm_beta.scale", D1(ONE), BIAS, OPTIONAL)                                                    \
    X(ssm_alpha, "ssm_alpha.weight", D2(EMBD, SSM_HEADS), MATRIX, MIXES(DELTA_NET) && !HAS(FUSED_BETA))         \
    X(ssm_alpha_s, "ssm_alpha.scale", D1(ONE), BIAS, OPTIONAL)                                                  \
    X(ssm_beta_alpha, "ssm_ba.weight", D2(EMBD, 2 * SSM_HEADS), MATRIX, MIXES(DELTA_NET) && HAS(FUSED_BETA))    \
    X(ssm_beta_alpha_s, "ssm_ba.scale", D1(ONE), BIAS, OPTIONAL)                                                \
    X(attn_gate_s, "attn_gate.scale", D1(ONE), BIAS, OPTIONAL)                                                       \
    X(short_in, "shortconv.in_proj.weight", D2(EMBD, 3 * EMBD), MATRIX, MIXES(SHORT_CONV))                      \
    X(short_in_s, "shortconv.in_proj.scale", D1(ONE), BIAS, OPTIONAL)                                           \
    X(short_in_b, "shortconv.in_proj.bias", D1(3 * EMBD), BIAS, OPTIONAL)                                       \
    X(short_conv, "shortconv.conv.weight", D2(SHORT_WIDTH, EMBD), CONV, MIXES(SHORT_CONV))                      \
    X(short_conv_b, "shortconv.conv.bias", D1(EMBD), BIAS, OPTIONAL)                                            \
    X(short_out, "shortconv.out_proj.weight", D2(EMBD, EMBD), MATRIX, MIXES(SHORT_CONV))                        \
    X(short_out_s, "shortconv.out_proj.scale", D1(ONE), BIAS, OPTIONAL)                                         \
    X(short_out_b, "shortconv.out_proj.bias", D1(EMBD), BIAS, OPTIONAL)
/* clang-format on */

#endif

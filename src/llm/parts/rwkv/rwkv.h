/* Tensors of RWKV 6 and 7: time mixing, and channel mixing, which replaces the feed-forward part. */
#ifndef TN_LLM_PARTS_RWKV_H
#define TN_LLM_PARTS_RWKV_H

/* clang-format off */
#define TN__RWKV_TENSORS(X)                                                                                     \
    X(time_lerp_x, "time_mix_lerp_x.weight", D3(EMBD, ONE, ONE), BIAS, MIXES(RWKV6))                            \
    X(time_lerp, "time_mix_lerp_fused.weight", D4(EMBD, ONE, ONE, RWKV_SHARES), BIAS, MIXES(RWKV6) ? USUAL : MIXES(RWKV7)) \
    X(time_lerp_w, "time_mix_lerp_w.weight", D3(EMBD, ONE, ONE), BIAS, MIXES(RWKV6) ? OPTIONAL : false)         \
    X(time_lerp_k, "time_mix_lerp_k.weight", D3(EMBD, ONE, ONE), BIAS, MIXES(RWKV6) ? OPTIONAL : false)         \
    X(time_lerp_v, "time_mix_lerp_v.weight", D3(EMBD, ONE, ONE), BIAS, MIXES(RWKV6) ? OPTIONAL : false)         \
    X(time_lerp_r, "time_mix_lerp_r.weight", D3(EMBD, ONE, ONE), BIAS, MIXES(RWKV6) ? OPTIONAL : false)         \
    X(time_lerp_g, "time_mix_lerp_g.weight", D3(EMBD, ONE, ONE), BIAS, MIXES(RWKV6) ? OPTIONAL : false)         \
    X(time_w0, "time_mix_w0.weight", D1(EMBD), BIAS, MIXES(RWKV7))                                              \
    X(time_w1, "time_mix_w1.weight", D2(EMBD, RWKV_W1), MATRIX, MIXES(RWKV6) || MIXES(RWKV7))                   \
    X(time_w2, "time_mix_w2.weight", D3(RWKV_W2, EMBD, RWKV_W2_PARTS), BIAS, MIXES(RWKV6) || MIXES(RWKV7))      \
    X(time_a0, "time_mix_a0.weight", D1(EMBD), BIAS, MIXES(RWKV7))                                              \
    X(time_a1, "time_mix_a1.weight", D2(EMBD, h->rwkv.rate), MATRIX, MIXES(RWKV7))                              \
    X(time_a2, "time_mix_a2.weight", D2(h->rwkv.rate, EMBD), MATRIX, MIXES(RWKV7))                              \
    X(time_v0, "time_mix_v0.weight", D1(EMBD), BIAS, MIXES(RWKV7))                                              \
    X(time_v1, "time_mix_v1.weight", D2(EMBD, RWKV_VALUE), MATRIX, MIXES(RWKV7))                                \
    X(time_v2, "time_mix_v2.weight", D2(RWKV_VALUE, EMBD), MATRIX, MIXES(RWKV7))                                \
    X(time_g1, "time_mix_g1.weight", D2(EMBD, h->rwkv.gate), MATRIX, MIXES(RWKV7))                              \
    X(time_g2, "time_mix_g2.weight", D2(h->rwkv.gate, EMBD), MATRIX, MIXES(RWKV7))                              \
    X(time_k_k, "time_mix_k_k.weight", D1(EMBD), BIAS, MIXES(RWKV7))                                            \
    X(time_k_a, "time_mix_k_a.weight", D1(EMBD), BIAS, MIXES(RWKV7))                                            \
    X(time_r_k, "time_mix_r_k.weight", D1(EMBD), BIAS, MIXES(RWKV7))                                            \
    X(time_first, "time_mix_first.weight", D2(h->rwkv.head, RWKV_HEADS), BIAS, MIXES(RWKV6))                    \
    X(time_decay, "time_mix_decay.weight", D1(EMBD), BIAS, MIXES(RWKV6))                                        \
    X(time_decay_w1, "time_mix_decay_w1.weight", D2(EMBD, h->rwkv.decay), MATRIX, MIXES(RWKV6))                 \
    X(time_decay_w2, "time_mix_decay_w2.weight", D2(h->rwkv.decay, EMBD), MATRIX, MIXES(RWKV6))                 \
    X(time_key, "time_mix_key.weight", D2(EMBD, EMBD), MATRIX, MIXES(RWKV6) || MIXES(RWKV7))                    \
    X(time_value, "time_mix_value.weight", D2(EMBD, EMBD), MATRIX, MIXES(RWKV6) || MIXES(RWKV7))                \
    X(time_receptance, "time_mix_receptance.weight", D2(EMBD, EMBD), MATRIX, MIXES(RWKV6) || MIXES(RWKV7))      \
    X(time_gate, "time_mix_gate.weight", D2(EMBD, EMBD), MATRIX, MIXES(RWKV6))                                  \
    X(time_ln, "time_mix_ln.weight", D1(EMBD), NORM, MIXES(RWKV6) || MIXES(RWKV7))                              \
    X(time_ln_b, "time_mix_ln.bias", D1(EMBD), BIAS, MIXES(RWKV6) || MIXES(RWKV7))                              \
    X(time_output, "time_mix_output.weight", D2(EMBD, EMBD), MATRIX, MIXES(RWKV6) || MIXES(RWKV7))              \
    X(channel_lerp_k, "channel_mix_lerp_k.weight", D3(EMBD, ONE, ONE), BIAS, MIXES(RWKV6) || MIXES(RWKV7))      \
    X(channel_lerp_r, "channel_mix_lerp_r.weight", D3(EMBD, ONE, ONE), BIAS, MIXES(RWKV6))                      \
    X(channel_key, "channel_mix_key.weight", D2(EMBD, h->rwkv.channels), MATRIX, MIXES(RWKV6) || MIXES(RWKV7))  \
    X(channel_value, "channel_mix_value.weight", D2(h->rwkv.channels, EMBD), MATRIX, MIXES(RWKV6) || MIXES(RWKV7)) \
    X(channel_receptance, "channel_mix_receptance.weight", D2(EMBD, EMBD), MATRIX, MIXES(RWKV6))
/* clang-format on */

#endif

/* The tensors of all architectures: name, shape by meaning, and which models have them. Loading checks a file against
 * these rows, and tn_arch_tensors lists a model's tensors from them, in this order. */
#ifndef TN_LLM_ARCH_TENSORS_H
#define TN_LLM_ARCH_TENSORS_H

#include "llm/parts/experts.h"
#include "llm/parts/indexer.h"
#include "llm/parts/latent.h"
#include "llm/parts/layer_embedding.h"
#include "llm/parts/nextn.h"
#include "llm/parts/recurrent.h"
#include "llm/parts/relative_bias.h"
#include "llm/parts/residual/altup.h"
#include "llm/parts/residual/attention_residuals.h"
#include "llm/parts/rwkv/rwkv.h"
#include "tenon/arch.h"
#include "tenon/tensor.h"

/* X(member of tn__layer, name in the file after "blk.N.", dimensions, kind, condition). Dimensions and conditions are
 * expressions in words that tensors.c defines, from the hyper-parameters of the model and of the layer. The condition
 * is true for a tensor that the layer has, OPTIONAL for one that is used where a file has it, USUAL for one that only
 * some files lack. A bias and a scale are rows of their own. A part with a file in parts/ has its rows in its own
 * header. */
/* clang-format off */
#define TN__COMMON_TENSORS(X)                                                                                   \
    X(attn_norm, "attn_norm.weight", D1(EMBD), NORM, FIRST_NORM)                                                \
    X(attn_norm_b, "attn_norm.bias", D1(EMBD), BIAS, PRE_NORM && HAS_MIXER && HAS(NORM_BIAS))                       \
    X(attn_norm_2, "attn_norm_2.weight", D1(SECOND_NORM), NORM, MIXES(LIGHTNING) || EAGLE ? true : EITHER(HAS(ATTN_NORM_2)))                              \
    X(attn_norm_2_b, "attn_norm_2.bias", D1(EMBD), BIAS, EITHER(HAS(ATTN_NORM_2) && HAS(NORM_BIAS)))            \
    X(wqkv, "attn_qkv.weight", D2(EMBD, QKV), MATRIX, FUSED_QKV)                                                \
    X(bqkv, "attn_qkv.bias", D1(QKV), BIAS, EITHER(FUSED_QKV && HAS(QKV_BIAS)))                                 \
    X(sqkv, "attn_qkv.scale", D1(ONE), BIAS, OPTIONAL)                                                          \
    X(wq, "attn_q.weight", D2(ATTN_IN, WQ), MATRIX, OWN_Q)                                                      \
    X(bq, "attn_q.bias", D1(WQ), BIAS, EITHER(SPLIT_QKV && HAS(QKV_BIAS)))                                       \
    X(sq, "attn_q.scale", D1(ONE), BIAS, OPTIONAL)                                                              \
    X(wk, "attn_k.weight", D2(ATTN_IN, K), MATRIX, OWN_KV)                                                      \
    X(bk, "attn_k.bias", D1(K), BIAS, EITHER(SPLIT_QKV && HAS(QKV_BIAS)))                                       \
    X(sk, "attn_k.scale", D1(ONE), BIAS, OPTIONAL)                                                              \
    X(wv, "attn_v.weight", D2(ATTN_IN, V), MATRIX, OWN_KV)                                                      \
    X(bv, "attn_v.bias", D1(V), BIAS, EITHER(SPLIT_QKV && HAS(QKV_BIAS)))                                       \
    X(sv, "attn_v.scale", D1(ONE), BIAS, OPTIONAL)                                                              \
    X(q_norm, "attn_q_norm.weight", D2(Q_NORM, Q_NORM_HEADS), NORM, ANY_QK_NORM || HAS(Q_GAIN) ? true : OPTIONAL)         \
    X(q_norm_b, "attn_q_norm.bias", D2(Q_NORM, Q_NORM_HEADS), BIAS, OPTIONAL)                                   \
    X(k_norm, "attn_k_norm.weight", D2(K_NORM, K_NORM_HEADS), NORM, (ANY_QK_NORM && !l->cells_of) || (LATENT && HAS(LATENT_K_NORM)) ? true : OPTIONAL) \
    X(k_norm_b, "attn_k_norm.bias", D2(K_NORM, K_NORM_HEADS), BIAS, OPTIONAL)                                   \
    X(wo, "attn_output.weight", D2(ATTN_OUT, EMBD), MATRIX, OWN_OUTPUT)                                            \
    X(bo, "attn_output.bias", D1(EMBD), BIAS, EITHER(HAS(OUT_BIAS)))                                            \
    X(so, "attn_output.scale", D1(ONE), BIAS, OPTIONAL)                                                         \
    X(attn_gate, "attn_gate.weight", D2(EMBD, GATE), MATRIX, HAS_GATE)                     \
    X(attn_sub_norm, "attn_sub_norm.weight", D1(ATTN_OUT), NORM, ATTENDS && HAS(SUB_NORMS))                     \
    X(sinks, "attn_sinks.weight", D1(HEADS), BIAS, HAS(SINKS) ? true : OPTIONAL)                                \
    X(attn_out_norm, "attn_output_norm.weight", D1(EMBD), NORM, HAS(BERT) || HAS(FFN_NORM_OUT) || HAS(POST_NORMS_OUT)) \
    X(attn_out_norm_b, "attn_output_norm.bias", D1(EMBD), BIAS, HAS(BERT) && HAS(NORM_BIAS))                    \
    X(attn_post_norm, "post_attention_norm.weight", D1(EMBD), NORM, HAS(POST_NORMS) || HAS(RENAMED_FFN_NORM)) \
    X(ffn_norm, "ffn_norm.weight", D1(EMBD), NORM, NORM_OF_FFN)                                                 \
    X(ffn_norm_b, "ffn_norm.bias", D1(EMBD), BIAS, EITHER(HAS_FFN_NORM && HAS(NORM_BIAS)))                       \
    X(router, "ffn_gate_inp.weight", D2(EMBD, EXPERT), MATRIX, MOE)                                             \
    X(router_b, "ffn_gate_inp.bias", D1(EXPERT), BIAS, MOE && HAS(EXPERT_BIAS))                                 \
    X(router_bias, "exp_probs_b.bias", D1(EXPERT), BIAS, EITHER(MOE && HAS(ROUTER_BIAS)))                       \
    X(router_bias_bare, "exp_probs_b", D1(EXPERT), BIAS, OPTIONAL)                                              \
    X(exps_norm, "ffn_norm_exps.weight", D1(EMBD), NORM, MOE && HAS(EXPERTS_NORM))                              \
    X(gate_up_exps, "ffn_gate_up_exps.weight", D3(EXPERT_EMBD, 2 * (int64_t)FF_EXPERT, EXPERT), MATRIX, EITHER(MOE && HAS(MERGED_EXPERTS))) \
    X(gate_exps, "ffn_gate_exps.weight", D3(EXPERT_EMBD, FF_EXPERT, EXPERT), MATRIX, MOE && !HAS(NO_GATE) && !HAS(MERGED_EXPERTS)) \
    X(up_exps, "ffn_up_exps.weight", D3(EXPERT_EMBD, FF_EXPERT, EXPERT), MATRIX, MOE && !HAS(MERGED_EXPERTS))          \
    X(down_exps, "ffn_down_exps.weight", D3(FF_EXPERT, EXPERT_EMBD, EXPERT), MATRIX, MOE)                              \
    X(gate_exps_b, "ffn_gate_exps.bias", D2(FF_EXPERT, EXPERT), BIAS, MOE && HAS(EXPERT_BIAS))                  \
    X(up_exps_b, "ffn_up_exps.bias", D2(FF_EXPERT, EXPERT), BIAS, MOE && HAS(EXPERT_BIAS))                      \
    X(down_exps_b, "ffn_down_exps.bias", D2(EMBD, EXPERT), BIAS, MOE && HAS(EXPERT_BIAS))                       \
    X(gate_exps_s, "ffn_gate_exps.scale", D1(EXPERT), BIAS, OPTIONAL)                                           \
    X(up_exps_s, "ffn_up_exps.scale", D1(EXPERT), BIAS, OPTIONAL)                                               \
    X(down_exps_s, "ffn_down_exps.scale", D1(EXPERT), BIAS, OPTIONAL)                                           \
    X(shared_router, "ffn_gate_inp_shexp.weight", D1(EMBD), MATRIX, SHARED && HAS(SHARED_GATE))                 \
    X(gate_shexp, "ffn_gate_shexp.weight", D2(EMBD, FF_SHARED), MATRIX, SHARED && OWN_GATE)                     \
    X(up_shexp, "ffn_up_shexp.weight", D2(EMBD, FF_SHARED), MATRIX, SHARED)                                     \
    X(down_shexp, "ffn_down_shexp.weight", D2(FF_SHARED, EMBD), MATRIX, SHARED)                                 \
    X(gate_shexp_s, "ffn_gate_shexp.scale", D1(ONE), BIAS, OPTIONAL)                                            \
    X(up_shexp_s, "ffn_up_shexp.scale", D1(ONE), BIAS, OPTIONAL)                                                \
    X(down_shexp_s, "ffn_down_shexp.scale", D1(ONE), BIAS, OPTIONAL)                                            \
    X(ffn_gate, "ffn_gate.weight", D2(EMBD, FF), MATRIX, DENSE && OWN_GATE)                                     \
    X(ffn_gate_b, "ffn_gate.bias", D1(FF), BIAS, EITHER(DENSE && OWN_GATE && HAS(FFN_BIAS)))                    \
    X(ffn_gate_s, "ffn_gate.scale", D1(ONE), BIAS, OPTIONAL)                                                    \
    X(ffn_up, "ffn_up.weight", D2(EMBD, UP), MATRIX, DENSE)                                                     \
    X(ffn_up_b, "ffn_up.bias", D1(UP), BIAS, EITHER(DENSE && HAS(FFN_BIAS)))                                    \
    X(ffn_up_s, "ffn_up.scale", D1(ONE), BIAS, OPTIONAL)                                                        \
    X(ffn_down, "ffn_down.weight", D2(FF, EMBD), MATRIX, DENSE)                                                 \
    X(ffn_down_b, "ffn_down.bias", D1(EMBD), BIAS, EITHER(DENSE && HAS(FFN_BIAS)))                              \
    X(ffn_down_s, "ffn_down.scale", D1(ONE), BIAS, OPTIONAL)                                                    \
    X(ffn_act, "ffn.act.scales", D1(FF), BIAS, OPTIONAL)                                                        \
    X(ffn_sub_norm, "ffn_sub_norm.weight", D1(FF), NORM, FEEDS && HAS(SUB_NORMS))                               \
    X(layer_scale, "layer_output_scale.weight", D1(ONE), BIAS, HAS(LAYER_SCALE))                                \
    X(ffn_post_norm, "post_ffw_norm.weight", D1(EMBD), NORM, HAS(POST_NORMS))                           \
    X(layer_out_norm, "layer_output_norm.weight", D1(EMBD), NORM, HAS(BERT) || HAS(POST_NORMS_OUT))             \
    X(layer_out_norm_b, "layer_output_norm.bias", D1(EMBD), BIAS, HAS(BERT) && HAS(NORM_BIAS))                  \
    X(rope_freqs, "rope_freqs.weight", D1(HALF_ROTATED), FACTORS, OPTIONAL)

/* The rows of all parts. Every layer has those of its mixer and of the further parts of its architecture. */
#define TN__LAYER_TENSORS(X)                                                                                    \
    TN__COMMON_TENSORS(X)                                                                                       \
    TN__CHUNK_EXPERT_TENSORS(X)                                                                                 \
    TN__LATENT_EXPERT_TENSORS(X)                                                                                \
    TN__ATTENTION_RESIDUAL_TENSORS(X)                                                                           \
    TN__RECURRENT_TENSORS(X)                                                                                    \
    TN__LATENT_TENSORS(X)                                                                                       \
    TN__INDEXER_TENSORS(X)                                                                                      \
    TN__LAYER_EMBEDDING_TENSORS(X)                                                                              \
    TN__ALTUP_TENSORS(X)                                                                                        \
    TN__NEXTN_TENSORS(X)                                                                                        \
    TN__RELATIVE_BIAS_TENSORS(X)                                                                                \
    TN__RWKV_TENSORS(X)

/* X(member of tn__weights, name in the file, dimensions, kind, condition). */
#define TN__COMMON_MODEL_TENSORS(X)                                                                                    \
    X(tok_embd, "token_embd.weight", D2(EMBD, TEXT_VOCAB), EMBEDDING, EAGLE ? OPTIONAL : true)                                          \
    X(type_embd, "token_types.weight", D2(EMBD, TYPES), EMBEDDING, h->n_token_types > 0)                        \
    X(pos_embd, "position_embd.weight", D2(EMBD, CTX), EMBEDDING, EITHER(HAS(POSITIONS)))                       \
    X(tok_norm, "token_embd_norm.weight", D1(EMBD), NORM, EMBEDDING_NORM)                                         \
    X(tok_norm_b, "token_embd_norm.bias", D1(EMBD), BIAS, EMBEDDING_NORM && HAS(NORM_BIAS))                       \
    X(rope_freqs, "rope_freqs.weight", D1(HALF_ROTATED), FACTORS, OPTIONAL)                                     \
    X(rope_long, "rope_factors_long.weight", D1(HALF_ROTATED), FACTORS, OPTIONAL)                               \
    X(rope_short, "rope_factors_short.weight", D1(HALF_ROTATED), FACTORS, OPTIONAL)                             \
    X(out_norm, "output_norm.weight", D1(EMBD), NORM, FINAL_NORM && !HAS(ENC_OUTPUT_NORM))                      \
    X(enc_out_norm, "enc.output_norm.weight", D1(LAST_NORM_IN), NORM, HAS(ENC_OUTPUT_NORM) || h->norm_before_fc)                             \
    X(out_norm_b, "output_norm.bias", D1(EMBD), BIAS, FINAL_NORM && HAS(NORM_BIAS))                             \
    X(output, "output.weight", D2(EMBD, GUESSED_VOCAB), MATRIX, !HAS(ENCODER) ? EITHER(!HAS(TIED)) : false)                            \
    X(output_b, "output.bias", D1(VOCAB), BIAS, EITHER(HAS(OUTPUT_BIAS)))                                       \
    X(output_s, "output.scale", D1(ONE), BIAS, OPTIONAL)                                                        \
    X(fc, "fc.weight", D2(FEATURES, EMBD), MATRIX, EAGLE)                                                       \
    X(dense_2, "dense_2.weight", D2(EMBD, ANY), MATRIX, OPTIONAL)                                               \
    X(dense_3, "dense_3.weight", D2(ANY, EMBD), MATRIX, OPTIONAL)                                               \
    X(cls_norm, "cls.norm.weight", D1(EMBD), NORM, OPTIONAL)                                                    \
    X(cls, "cls.weight", D2(EMBD, EMBD), MATRIX, OPTIONAL)                                                      \
    X(cls_b, "cls.bias", D1(EMBD), BIAS, OPTIONAL)                                                              \
    X(cls_out, "cls.output.weight", D2(EMBD, ANY), MATRIX, OPTIONAL)                                            \
    X(cls_out_b, "cls.output.bias", D1(ANY), BIAS, OPTIONAL)
/* clang-format on */

#define TN__MODEL_TENSORS(X)                                                                                         \
    TN__COMMON_MODEL_TENSORS(X)                                                                                      \
    TN__MODEL_LAYER_EMBEDDING_TENSORS(X)                                                                             \
    TN__MODEL_ATTENTION_RESIDUAL_TENSORS(X)                                                                          \
    TN__MODEL_ALTUP_TENSORS(X)

typedef struct tn__layer {
#define TN_X(member, name, dims, kind, condition) tn_tensor *member;
    TN__LAYER_TENSORS(TN_X)
#undef TN_X
} tn__layer;

typedef struct tn__weights {
#define TN_X(member, name, dims, kind, condition) tn_tensor *member;
    TN__MODEL_TENSORS(TN_X)
#undef TN_X
    tn__layer *layers; /* with the layers that predict further tokens after the ordinary ones */
} tn__weights;

/* What dimensions and conditions depend on. */
typedef struct tn__tensor_context {
    uint64_t f; /* the architecture's traits */
    const struct tn__hparams *h;
    const struct tn__layer_hparams *l; /* of a tensor in a layer */
    bool file;                         /* the tensor is in a file: dimensions that may vary are TN__ANY */
} tn__tensor_context;
enum { TN__ANY = -1 };
enum { TN__OPTIONAL = 2, TN__USUAL = 3 }; /* conditions beside false and true (TN_ARCH_OPTIONAL, TN_ARCH_USUAL) */

typedef struct tn__tensor_row {
    const char *name;
    size_t offset; /* of the pointer in tn__layer or tn__weights */
    tn_arch_tensor_kind kind;
    int n_dims;
    void (*dims)(const tn__tensor_context *context, int64_t ne[4]);
    int (*present)(const tn__tensor_context *context);
} tn__tensor_row;

extern const tn__tensor_row tn__layer_rows[], tn__model_rows[];
extern const size_t tn__n_common_layer_rows, tn__n_layer_rows, tn__n_model_rows;

/* Whether a tensor outside the layers comes after them. */
bool tn__after_layers(const char *name);
/* Whether a tensor outside the layers is used with the first layer of a head. */
bool tn__in_head(const char *name);

#endif

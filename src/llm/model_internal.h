/* A model inside: hyper-parameters, weights by slot, and the table of architectures. */
#ifndef TN_LLM_MODEL_INTERNAL_H
#define TN_LLM_MODEL_INTERNAL_H

#include "tenon/llm.h"

/* ---- Hyper-parameters ---------------------------------------------------------------------------------------- */

typedef enum tn__rope_scaling {
    TN__ROPE_SCALING_NONE,
    TN__ROPE_SCALING_LINEAR,
    TN__ROPE_SCALING_YARN,
    TN__ROPE_SCALING_LONGROPE
} tn__rope_scaling;
/* How expert logits become weights. */
typedef enum tn__gating {
    TN__GATING_SOFTMAX = 1,
    TN__GATING_SIGMOID = 2,
    TN__GATING_SOFTMAX_OF_CHOSEN = 3
} tn__gating;

typedef struct tn__layer_hparams {
    int32_t n_head, n_head_kv, n_ff;
    int32_t window; /* 0: sees everything */
    bool no_rope;
    float rope_base, rope_scale;
} tn__layer_hparams;

typedef struct tn__hparams {
    int32_t n_vocab, n_ctx_train, n_embd, n_layer;
    int32_t head_k, head_v; /* elements of a head */
    int32_t n_rot;          /* of which rotate */
    tn__layer_hparams *layers;
    float norm_eps;
    tn__rope_scaling rope_scaling;
    float rope_factor, rope_attn_factor, yarn_ext, yarn_attn, yarn_beta_fast, yarn_beta_slow;
    int32_t rope_orig_ctx;
    int32_t rope_sections[4];
    float attn_soft_cap, final_soft_cap, max_alibi, clamp_qkv;
    float attn_scale;        /* 0: 1/√head_k */
    float temperature_scale; /* queries grow by this × ln(1 + ⌊position/length⌋); 0: never */
    int32_t temperature_length;
    float embd_scale, residual_scale, logit_scale; /* 0: none */
    int32_t n_expert, n_expert_used, n_ff_expert, n_ff_shared;
    tn__gating gating;
    bool norm_expert_weights;
    float expert_scale;
    int32_t n_token_types;
    bool causal;
    bool parallel; /* gptneox: the file decides */
    tn_pooling pooling;
} tn__hparams;

/* ---- Weights --------------------------------------------------------------------------------------------------
 * Dimensions by meaning, so that one table can state every tensor's expected shape. */
typedef enum tn__dim {
    TN__DIM_NONE,
    TN__DIM_ONE,
    TN__DIM_ANY,
    TN__DIM_EMBD,
    TN__DIM_VOCAB,
    TN__DIM_Q,
    TN__DIM_K,
    TN__DIM_V,
    TN__DIM_QKV,
    TN__DIM_ATTN_OUT,
    TN__DIM_FF,
    TN__DIM_UP,
    TN__DIM_EXPERT,
    TN__DIM_FF_EXPERT,
    TN__DIM_FF_SHARED,
    TN__DIM_HEADS,
    TN__DIM_CTX,
    TN__DIM_TYPES
} tn__dim;

/* X(member, name in the file after "blk.N.", dimensions). Biases and scales of a matrix are slots of their own. */
#define TN__LAYER_SLOTS(X)                                                                                           \
    X(attn_norm, "attn_norm.weight", EMBD, NONE, NONE)                                                               \
    X(attn_norm_b, "attn_norm.bias", EMBD, NONE, NONE)                                                               \
    X(attn_norm_2, "attn_norm_2.weight", EMBD, NONE, NONE)                                                           \
    X(attn_norm_2_b, "attn_norm_2.bias", EMBD, NONE, NONE)                                                           \
    X(wq, "attn_q.weight", EMBD, Q, NONE)                                                                            \
    X(bq, "attn_q.bias", Q, NONE, NONE)                                                                              \
    X(sq, "attn_q.scale", ONE, NONE, NONE)                                                                           \
    X(wk, "attn_k.weight", EMBD, K, NONE)                                                                            \
    X(bk, "attn_k.bias", K, NONE, NONE)                                                                              \
    X(sk, "attn_k.scale", ONE, NONE, NONE)                                                                           \
    X(wv, "attn_v.weight", EMBD, V, NONE)                                                                            \
    X(bv, "attn_v.bias", V, NONE, NONE)                                                                              \
    X(sv, "attn_v.scale", ONE, NONE, NONE)                                                                           \
    X(wqkv, "attn_qkv.weight", EMBD, QKV, NONE)                                                                      \
    X(bqkv, "attn_qkv.bias", QKV, NONE, NONE)                                                                        \
    X(sqkv, "attn_qkv.scale", ONE, NONE, NONE)                                                                       \
    X(wo, "attn_output.weight", ATTN_OUT, EMBD, NONE)                                                                \
    X(bo, "attn_output.bias", EMBD, NONE, NONE)                                                                      \
    X(so, "attn_output.scale", ONE, NONE, NONE)                                                                      \
    X(q_norm, "attn_q_norm.weight", ANY, ANY, NONE)                                                                  \
    X(q_norm_b, "attn_q_norm.bias", ANY, ANY, NONE)                                                                  \
    X(k_norm, "attn_k_norm.weight", ANY, ANY, NONE)                                                                  \
    X(k_norm_b, "attn_k_norm.bias", ANY, ANY, NONE)                                                                  \
    X(sinks, "attn_sinks.weight", HEADS, NONE, NONE)                                                                 \
    X(attn_post_norm, "post_attention_norm.weight", EMBD, NONE, NONE)                                                \
    X(attn_out_norm, "attn_output_norm.weight", EMBD, NONE, NONE)                                                    \
    X(attn_out_norm_b, "attn_output_norm.bias", EMBD, NONE, NONE)                                                    \
    X(ffn_norm, "ffn_norm.weight", EMBD, NONE, NONE)                                                                 \
    X(ffn_norm_b, "ffn_norm.bias", EMBD, NONE, NONE)                                                                 \
    X(ffn_gate, "ffn_gate.weight", EMBD, FF, NONE)                                                                   \
    X(ffn_gate_b, "ffn_gate.bias", FF, NONE, NONE)                                                                   \
    X(ffn_gate_s, "ffn_gate.scale", ONE, NONE, NONE)                                                                 \
    X(ffn_up, "ffn_up.weight", EMBD, UP, NONE)                                                                       \
    X(ffn_up_b, "ffn_up.bias", UP, NONE, NONE)                                                                       \
    X(ffn_up_s, "ffn_up.scale", ONE, NONE, NONE)                                                                     \
    X(ffn_down, "ffn_down.weight", FF, EMBD, NONE)                                                                   \
    X(ffn_down_b, "ffn_down.bias", EMBD, NONE, NONE)                                                                 \
    X(ffn_down_s, "ffn_down.scale", ONE, NONE, NONE)                                                                 \
    X(ffn_act, "ffn_act.scales", FF, NONE, NONE)                                                                     \
    X(ffn_post_norm, "post_ffw_norm.weight", EMBD, NONE, NONE)                                                       \
    X(layer_out_norm, "layer_output_norm.weight", EMBD, NONE, NONE)                                                  \
    X(layer_out_norm_b, "layer_output_norm.bias", EMBD, NONE, NONE)                                                  \
    X(router, "ffn_gate_inp.weight", EMBD, EXPERT, NONE)                                                             \
    X(router_b, "ffn_gate_inp.bias", EXPERT, NONE, NONE)                                                             \
    X(router_bias, "exp_probs_b.bias", EXPERT, NONE, NONE)                                                           \
    X(gate_exps, "ffn_gate_exps.weight", EMBD, FF_EXPERT, EXPERT)                                                    \
    X(gate_exps_b, "ffn_gate_exps.bias", FF_EXPERT, EXPERT, NONE)                                                    \
    X(gate_exps_s, "ffn_gate_exps.scale", EXPERT, NONE, NONE)                                                        \
    X(up_exps, "ffn_up_exps.weight", EMBD, FF_EXPERT, EXPERT)                                                        \
    X(up_exps_b, "ffn_up_exps.bias", FF_EXPERT, EXPERT, NONE)                                                        \
    X(up_exps_s, "ffn_up_exps.scale", EXPERT, NONE, NONE)                                                            \
    X(down_exps, "ffn_down_exps.weight", FF_EXPERT, EMBD, EXPERT)                                                    \
    X(down_exps_b, "ffn_down_exps.bias", EMBD, EXPERT, NONE)                                                         \
    X(down_exps_s, "ffn_down_exps.scale", EXPERT, NONE, NONE)                                                        \
    X(shared_router, "ffn_gate_inp_shexp.weight", EMBD, NONE, NONE)                                                  \
    X(gate_shexp, "ffn_gate_shexp.weight", EMBD, FF_SHARED, NONE)                                                    \
    X(up_shexp, "ffn_up_shexp.weight", EMBD, FF_SHARED, NONE)                                                        \
    X(gate_shexp_s, "ffn_gate_shexp.scale", ONE, NONE, NONE)                                                         \
    X(up_shexp_s, "ffn_up_shexp.scale", ONE, NONE, NONE)                                                             \
    X(down_shexp_s, "ffn_down_shexp.scale", ONE, NONE, NONE)                                                         \
    X(down_shexp, "ffn_down_shexp.weight", FF_SHARED, EMBD, NONE)                                                    \
    X(rope_freqs, "rope_freqs.weight", ANY, NONE, NONE)

#define TN__MODEL_SLOTS(X)                                                                                           \
    X(tok_embd, "token_embd.weight", EMBD, VOCAB, NONE)                                                              \
    X(pos_embd, "position_embd.weight", EMBD, CTX, NONE)                                                             \
    X(type_embd, "token_types.weight", EMBD, TYPES, NONE)                                                            \
    X(tok_norm, "token_embd_norm.weight", EMBD, NONE, NONE)                                                          \
    X(tok_norm_b, "token_embd_norm.bias", EMBD, NONE, NONE)                                                          \
    X(out_norm, "output_norm.weight", EMBD, NONE, NONE)                                                              \
    X(out_norm_b, "output_norm.bias", EMBD, NONE, NONE)                                                              \
    X(output, "output.weight", EMBD, VOCAB, NONE)                                                                    \
    X(output_b, "output.bias", VOCAB, NONE, NONE)                                                                    \
    X(output_s, "output.scale", ONE, NONE, NONE)                                                                     \
    X(rope_freqs, "rope_freqs.weight", ANY, NONE, NONE)                                                              \
    X(cls, "cls.weight", EMBD, EMBD, NONE)                                                                           \
    X(cls_b, "cls.bias", EMBD, NONE, NONE)                                                                           \
    X(cls_out, "cls.output.weight", EMBD, ANY, NONE)                                                                 \
    X(cls_out_b, "cls.output.bias", ANY, NONE, NONE)                                                                 \
    X(rope_long, "rope_factors_long.weight", ANY, NONE, NONE)                                                        \
    X(rope_short, "rope_factors_short.weight", ANY, NONE, NONE)

typedef struct tn__layer {
#define TN_X(member, name, d0, d1, d2) tn_tensor *member;
    TN__LAYER_SLOTS(TN_X)
#undef TN_X
} tn__layer;

typedef struct tn__weights {
#define TN_X(member, name, d0, d1, d2) tn_tensor *member;
    TN__MODEL_SLOTS(TN_X)
#undef TN_X
    tn__layer *layers;
} tn__weights;

/* One tensor of the file: where it belongs and where it was put. */
typedef struct tn__weight {
    const tn_gguf_tensor *info;
    tn_tensor *tensor; /* in model->arena */
    int32_t layer;     /* -1: before the first; n_layer: after the last */
    bool ignored;      /* known, but nothing uses it */
} tn__weight;

/* ---- Architectures -------------------------------------------------------------------------------------------- */

typedef enum tn__norm_kind { TN__NORM_RMS, TN__NORM_LAYER } tn__norm_kind;
/* Where the feed-forward part gets its input. */
typedef enum tn__residual {
    TN__RESIDUAL_SERIAL,        /* after attention was added */
    TN__RESIDUAL_PARALLEL,      /* beside attention, from the same normalised input */
    TN__RESIDUAL_PARALLEL_NORM, /* beside attention, with a norm of its own */
    TN__RESIDUAL_POST_NORM      /* norms come after the sums (bert) */
} tn__residual;

/* What makes one family different from the next. The shared builder in build.c does the rest. */
typedef struct tn__arch {
    const char *name;
    tn__norm_kind norm;
    tn_rope_mode rope;
    bool no_rope; /* learned positions or ALiBi */
    tn__residual residual;
    tn_op activation; /* of the gate; with `ungated` a plain unary op */
    bool ungated;
    bool norm_qk_after_rope;
    bool no_ffn_scales;         /* scales of feed-forward matrices, where a file has them, are not applied */
    bool bare_norms;            /* norms have no weights */
    bool parallel_without_norm; /* a layer without a feed-forward norm runs both parts side by side */
    /* Tensors every layer must have, "a|b" for alternatives; NULL at the end. */
    const char *required[24];
    /* Reads what only this family has; may be NULL. Called after the common keys. */
    tn_status (*read)(const tn_gguf *file, tn__hparams *h);
    /* Renames slots after loading (a name that means something else in this family); may be NULL. */
    void (*adjust)(const tn__hparams *h, tn__weights *w);
} tn__arch;
const tn__arch *tn__arch_find(const char *name);

/* ---- The model ------------------------------------------------------------------------------------------------ */

typedef struct tn__weight_buffer {
    tn_buffer *buffer;
    bool mapped;
} tn__weight_buffer;

struct tn_model {
    tn_gguf *file;
    tn_model_params params;
    const tn__arch *arch;
    tn__hparams h;
    tn__weights w;
    tn__weight *all;
    size_t n_all;
    tn_arena *arena;
    tn_tokenizer *tokenizer;
    char *chat_template;
    int64_t n_params;
    /* Set by the first session. */
    bool loaded;
    bool repacked;       /* as loaded; later sessions follow */
    int32_t repack_rows; /* multiplied at once, that the layouts were chosen for */
    tn__weight_buffer *buffers;
    size_t n_buffers;
    uint64_t load_ns;
    uint64_t identity; /* hash of the metadata that shapes the cache */
};

tn_status tn__hparams_read(const tn_gguf *file, const tn__arch *arch, tn__hparams *h);
tn_status tn__weights_find(tn_model *model); /* makes the tensors and checks names and shapes */

/* "arch.key" for reading metadata; valid until the next call on this thread. */
const char *tn__arch_key(const tn_gguf *file, const char *key);

#endif

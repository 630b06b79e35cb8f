/* Architectures: the table of model families, used by everything that loads, creates, converts or lists models.
 *
 * A row has a family's GGUF name (general.architecture), the Hugging Face classes it is converted from, and its
 * traits. The traits and the sizes of a model determine its tensors and their shapes. src/llm/arch has the rows;
 * docs/adding-a-model.md shows how to add one. All of it is constant and may be read by any thread. */
#ifndef TENON_ARCH_H
#define TENON_ARCH_H

#include "tenon/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which tensors the models of a family have, and what their layers do. A model may have more or fewer of them than
 * its family; a converter follows the model's configuration. */
#define TN_ARCH_BIT(n) (UINT64_C(1) << (n))
#define TN_ARCH_LAYER_NORM TN_ARCH_BIT(0) /* norms subtract the mean; otherwise RMS norms */
#define TN_ARCH_NORM_BIAS TN_ARCH_BIT(1)
#define TN_ARCH_BARE_NORMS TN_ARCH_BIT(2)     /* norms have no weights */
#define TN_ARCH_NO_PRE_NORMS TN_ARCH_BIT(3)   /* no attn_norm and no ffn_norm */
#define TN_ARCH_NO_FFN_NORM TN_ARCH_BIT(4)    /* attention and feed-forward read the same norm */
#define TN_ARCH_ATTN_NORM_2 TN_ARCH_BIT(5)    /* the norm of the feed-forward part is called attn_norm_2 */
#define TN_ARCH_POST_NORMS TN_ARCH_BIT(6)     /* post_attention_norm and post_ffw_norm */
#define TN_ARCH_FUSED_QKV TN_ARCH_BIT(7)      /* one attn_qkv matrix */
#define TN_ARCH_QKV_BIAS TN_ARCH_BIT(8)       /* on q, k and v */
#define TN_ARCH_OUT_BIAS TN_ARCH_BIT(9)       /* on attn_output */
#define TN_ARCH_QK_NORM TN_ARCH_BIT(10)       /* norms of q and k over a head */
#define TN_ARCH_QK_NORM_WIDE TN_ARCH_BIT(11)  /* … over all heads */
#define TN_ARCH_QK_NORM_HEADS TN_ARCH_BIT(12) /* … over a head, with weights for each head */
#define TN_ARCH_SINKS TN_ARCH_BIT(13)         /* attn_sinks */
#define TN_ARCH_NO_GATE TN_ARCH_BIT(14)       /* a plain feed-forward part: up, activation, down */
#define TN_ARCH_FUSED_UP TN_ARCH_BIT(15)      /* ffn_up holds gate and up */
#define TN_ARCH_FFN_BIAS TN_ARCH_BIT(16)      /* on the feed-forward matrices */
#define TN_ARCH_EXPERTS TN_ARCH_BIT(17)       /* a mixture of experts */
#define TN_ARCH_EXPERT_BIAS TN_ARCH_BIT(18)   /* on the matrices of the experts and the router */
#define TN_ARCH_SHARED_EXPERT TN_ARCH_BIT(19) /* an expert that every token uses … */
#define TN_ARCH_SHARED_GATE TN_ARCH_BIT(20)   /* … weighted by ffn_gate_inp_shexp */
#define TN_ARCH_NO_ROPE TN_ARCH_BIT(21)       /* learned positions or ALiBi */
#define TN_ARCH_POSITIONS TN_ARCH_BIT(22)     /* learned positions */
#define TN_ARCH_WINDOW TN_ARCH_BIT(25)        /* sliding-window attention where the file gives a window */
#define TN_ARCH_TIED TN_ARCH_BIT(26)          /* the token embedding is the output matrix */
#define TN_ARCH_OUTPUT_BIAS TN_ARCH_BIT(27)
#define TN_ARCH_ENCODER TN_ARCH_BIT(28) /* embeddings: not causal, no output matrix */
/* A layer without ffn_norm runs attention and feed-forward in parallel. */
#define TN_ARCH_FFN_NORM_OR_PARALLEL TN_ARCH_BIT(30)
#define TN_ARCH_HYBRID TN_ARCH_BIT(29)         /* layers without heads of attention are possible */
#define TN_ARCH_DIFFUSION TN_ARCH_BIT(32)      /* text diffusion: not causal, with logits of every token */
#define TN_ARCH_EMBEDDING_NORM TN_ARCH_BIT(33) /* token_embd_norm */
#define TN_ARCH_RENAMED_FFN_NORM                                                                                     \
    TN_ARCH_BIT(34)                       /* the norm of the feed-forward part is called post_attention_norm         \
                                           */
#define TN_ARCH_SUB_NORMS TN_ARCH_BIT(35) /* attn_sub_norm and ffn_sub_norm, before the matrix after each */
#define TN_ARCH_ATTN_GATE TN_ARCH_BIT(36) /* attn_gate: the result of attention is multiplied by σ(gate · input) */
#define TN_ARCH_LAYER_SCALE TN_ARCH_BIT(37) /* layer_output_scale */
/* q and k are normalised without weights; attn_q_norm has a factor for each head of q. */
#define TN_ARCH_Q_GAIN TN_ARCH_BIT(38)
#define TN_ARCH_BERT TN_ARCH_BIT(39)            /* norms after the sums instead of before each part; token types */
#define TN_ARCH_ENC_OUTPUT_NORM TN_ARCH_BIT(40) /* the last norm is called enc.output_norm */
#define TN_ARCH_GATED_Q                                                                                              \
    TN_ARCH_BIT(47) /* attn_q holds a gate for every query, which multiplies attention's result                      \
                     */
#define TN_ARCH_NORMED_DT TN_ARCH_BIT(41)         /* Mamba with norms of dt, B and C */
#define TN_ARCH_FUSED_BETA TN_ARCH_BIT(42)        /* ssm_ba holds beta and alpha of a gated delta network */
#define TN_ARCH_RENAMED_LAST_NORM TN_ARCH_BIT(43) /* the norm before the output is called token_embd_norm */
#define TN_ARCH_WIDE_KDA TN_ARCH_BIT(44)          /* gates of Kimi delta attention are one matrix each, not two */
#define TN_ARCH_HEAD_GATE TN_ARCH_BIT(45)         /* attn_gate has one row per head */
#define TN_ARCH_GATED_LATENT                                                                                         \
    TN_ARCH_BIT(46) /* latent attention with attn_gate: its result is multiplied by σ(gate) */
#define TN_ARCH_FFN_NORM_OUT TN_ARCH_BIT(48)   /* the norm of the feed-forward part is called attn_output_norm */
#define TN_ARCH_POST_NORMS_OUT TN_ARCH_BIT(49) /* norms after each part: attn_output_norm and layer_output_norm */
#define TN_ARCH_ROUTER_BIAS TN_ARCH_BIT(51)    /* exp_probs_b: experts are ranked with a bias */
#define TN_ARCH_MERGED_EXPERTS TN_ARCH_BIT(52) /* ffn_gate_up_exps holds gate and up */
#define TN_ARCH_DENSE_TOO TN_ARCH_BIT(53)      /* layers with experts also have a dense feed-forward part */
#define TN_ARCH_EXPERTS_NORM TN_ARCH_BIT(54)   /* ffn_norm_exps, the norm of the experts' input */
#define TN_ARCH_CHUNK_EXPERTS TN_ARCH_BIT(55)  /* small experts, each shared by a group of the others */
#define TN_ARCH_FULL_KDA_GATE TN_ARCH_BIT(57)  /* Kimi delta attention: the last gate is one matrix, ssm_g */
#define TN_ARCH_RELATIVE_BIAS                                                                                        \
    TN_ARCH_BIT(58) /* T5: attn_rel_b, biases by distance; attn_o is the output of attention */
#define TN_ARCH_LATENT_K_NORM TN_ARCH_BIT(56) /* latent attention: attn_k_norm of the key that all heads share */

/* How the weights of a Hugging Face class differ from those in GGUF. */
typedef enum tn_arch_hf_trait {
    TN_ARCH_HF_PAIRED_ROPE = 1 << 0, /* GGUF rotates neighbours, Hugging Face halves: rows of q and k are reordered */
    TN_ARCH_HF_NORM_PLUS_ONE = 1 << 1, /* norms multiply by 1 + weight */
    TN_ARCH_HF_TRANSPOSED = 1 << 2,    /* matrices are stored [in, out] */
    TN_ARCH_HF_GROUPED_QKV = 1 << 3,   /* the fused matrix holds q, k and v of each group of heads together */
    TN_ARCH_HF_NESTED = 1 << 4,        /* the language model's configuration is under text_config */
    /* Matrices of experts are stored [expert, in, out], rows of gate and up alternate. */
    TN_ARCH_HF_INTERLEAVED_EXPERTS = 1 << 5,
    TN_ARCH_HF_TRANSPOSED_EXPERTS = 1 << 8 /* the same, gate before up */
} tn_arch_hf_trait;

typedef struct tn_arch_class {
    const char *name; /* "LlamaForCausalLM" */
    uint32_t traits;  /* TN_ARCH_HF_… */
    /* Only folders whose config.json has this entry, neither 0 nor null nor empty: another architecture has the class
     * as well. NULL: all. */
    const char *entry;
} tn_arch_class;

/* Numbers that only some families have; 0: absent. */
typedef struct tn_arch_constants {
    uint32_t window;
    uint32_t kv_heads; /* TN_ARCH_KV_SAME: as many as heads */
    float softcap_attention, softcap_output;
    float scale_output, scale_residual, scale_embedding;
    float scale_attention; /* negative: 1/√head */
    float alibi;
} tn_arch_constants;
#define TN_ARCH_KV_SAME UINT32_MAX

/* A metadata key of synthetic models that the table above does not cover: value × unit. With a pattern the key is a
 * list with one number per layer: digit i of the pattern (repeated to the number of layers) × value × unit. */
typedef enum tn_arch_unit {
    TN_ARCH_COUNT, /* 1 */
    TN_ARCH_WIDTH,
    TN_ARCH_HEADS,
    TN_ARCH_KV_HEADS,
    TN_ARCH_HEAD, /* the size of a head */
    TN_ARCH_FFN,
    TN_ARCH_REAL, /* 1, written as a float */
    TN_ARCH_TRUTH /* 1, written as a bool */
} tn_arch_unit;
typedef struct tn_arch_key {
    const char *name; /* without the architecture: "ssm.conv_kernel" */
    tn_arch_unit unit;
    double value;
    const char *pattern;
} tn_arch_key;

typedef struct tn_arch {
    const char *name; /* general.architecture */
    uint64_t traits;  /* TN_ARCH_… */
    float rotated;    /* default share of a head that RoPE rotates; 0: all of it */
    /* Every period-th layer sees all positions, the others a window; 0: every layer has the window. */
    int window_period;
    bool full_first;         /* … every period-th, beginning with the first; otherwise ending with the last */
    uint32_t default_window; /* of files without a window size; 0: no window */
    int fewest_layers;       /* of a synthetic model that has every kind of layer; 0: 1 */
    bool one_ffn_key;        /* feed_forward_length is the size of an expert where there are experts */
    bool parallel_key;       /* the key use_parallel_residual says how attention and feed-forward are connected */
    bool output_q8_0;        /* every quantization mix keeps the output matrix in q8_0 */
    /* Whether the weights of the experts in use sum to 1, which GGUF files do not say. */
    bool experts_sum_to_one;
    tn_arch_constants typical; /* of a synthetic model */
    const tn_arch_key *keys;   /* further keys of a synthetic model, ended by a NULL name; NULL: none */
    tn_arch_class classes[10]; /* ended by a NULL name */
} tn_arch;

/* The rows in the table's order; NULL past the end. Heads that guess tokens for another model (eagle3) are not among
 * them, but the functions below find them. */
TN_API const tn_arch *tn_arch_at(size_t index);
/* NULL if there is no such architecture. */
TN_API const tn_arch *tn_arch_find(const char *name);
/* The architecture that a Hugging Face class is converted to, and the class's row; NULL if there is none. Rows with
 * an entry are passed over. */
TN_API const tn_arch *tn_arch_find_class(const char *class_name, const tn_arch_class **found);

/* ---- Tensors ---- */

typedef enum tn_arch_tensor_kind {
    TN_ARCH_MATRIX,    /* multiplied with activations */
    TN_ARCH_NORM,      /* weights of a norm */
    TN_ARCH_BIAS,      /* added */
    TN_ARCH_EMBEDDING, /* rows are looked up */
    TN_ARCH_FACTORS,   /* of RoPE frequencies */
    TN_ARCH_CONV,      /* of a convolution over time */
    TN_ARCH_DECAY      /* of a recurrent state: negative */
} tn_arch_tensor_kind;

typedef enum tn_arch_need {
    TN_ARCH_REQUIRED,
    TN_ARCH_USUAL,   /* synthetic models have it; others need not */
    TN_ARCH_OPTIONAL /* used if a file has it; dimensions that the metadata does not determine are 0 */
} tn_arch_need;
/* A tensor that a model has, or may have. */
typedef struct tn_arch_tensor {
    const char *name;
    tn_arch_tensor_kind kind;
    tn_arch_need need;
    int n_dims;
    int64_t ne[4];
} tn_arch_tensor;
typedef tn_status (*tn_arch_tensor_fn)(void *user, const tn_arch_tensor *tensor);
/* Calls `fn` for every tensor of a model with this metadata ("general.architecture" and the architecture's keys), in
 * the order of GGUF files. Stops at the first status other than TN_OK and returns it. tn_gguf_writer_metadata
 * returns the metadata of a file that is being written. */
TN_API tn_status tn_arch_tensors(const tn_gguf *metadata, tn_arch_tensor_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif

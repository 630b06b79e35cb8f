/* Architectures: the one table of model families, read by everything that loads, makes, converts or lists models.
 *
 * A row names a family as GGUF does (general.architecture), the Hugging Face classes it is converted from, and what
 * sets it apart. From the traits and the sizes of a model follow its tensors with their shapes. src/llm/arch has the
 * rows; docs/adding-a-model.md shows how to add one. All of it is constant and may be read by any thread. */
#ifndef TENON_ARCH_H
#define TENON_ARCH_H

#include "tenon/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which tensors the models of a family have, and what their layers do. A single model may have more or fewer of them
 * than its family: a converter sets what a configuration says. */
typedef enum tn_arch_trait {
    TN_ARCH_LAYER_NORM = 1 << 0, /* norms subtract the mean; otherwise RMS norms */
    TN_ARCH_NORM_BIAS = 1 << 1,
    TN_ARCH_BARE_NORMS = 1 << 2,     /* norms have no weights */
    TN_ARCH_NO_PRE_NORMS = 1 << 3,   /* no attn_norm and no ffn_norm */
    TN_ARCH_NO_FFN_NORM = 1 << 4,    /* attention and feed-forward read the same norm */
    TN_ARCH_ATTN_NORM_2 = 1 << 5,    /* the norm of the feed-forward part is called attn_norm_2 */
    TN_ARCH_POST_NORMS = 1 << 6,     /* post_attention_norm and post_ffw_norm */
    TN_ARCH_FUSED_QKV = 1 << 7,      /* one attn_qkv matrix */
    TN_ARCH_QKV_BIAS = 1 << 8,       /* on q, k and v */
    TN_ARCH_OUT_BIAS = 1 << 9,       /* on attn_output */
    TN_ARCH_QK_NORM = 1 << 10,       /* norms of q and k over a head */
    TN_ARCH_QK_NORM_WIDE = 1 << 11,  /* … over all heads */
    TN_ARCH_QK_NORM_HEADS = 1 << 12, /* … over a head, with weights for each head */
    TN_ARCH_SINKS = 1 << 13,         /* attn_sinks; the norm of the feed-forward part is called post_attention_norm */
    TN_ARCH_NO_GATE = 1 << 14,       /* a plain feed-forward part: up, activation, down */
    TN_ARCH_FUSED_UP = 1 << 15,      /* ffn_up holds gate and up */
    TN_ARCH_FFN_BIAS = 1 << 16,      /* on the feed-forward matrices */
    TN_ARCH_EXPERTS = 1 << 17,       /* a mixture of experts */
    TN_ARCH_EXPERT_BIAS = 1 << 18,   /* on the matrices of the experts and the router */
    TN_ARCH_SHARED_EXPERT = 1 << 19, /* an expert that every token uses … */
    TN_ARCH_SHARED_GATE = 1 << 20,   /* … weighted by ffn_gate_inp_shexp */
    TN_ARCH_NO_ROPE = 1 << 21,       /* learned positions or ALiBi */
    TN_ARCH_POSITIONS = 1 << 22,     /* learned positions */
    TN_ARCH_ROPE_FACTORS = 1 << 23,  /* rope_freqs … */
    TN_ARCH_ROPE_LONG_SHORT = 1 << 24, /* … or rope_factors_long and rope_factors_short */
    TN_ARCH_WINDOW = 1 << 25,          /* sliding-window attention where the file gives a window */
    TN_ARCH_TIED = 1 << 26,            /* the token embedding is the output matrix */
    TN_ARCH_OUTPUT_BIAS = 1 << 27,
    TN_ARCH_ENCODER = 1 << 28 /* norms after the sums, token types, not causal, no output matrix */
} tn_arch_trait;

/* How the weights of a Hugging Face class differ from those in GGUF. */
typedef enum tn_arch_hf_trait {
    TN_ARCH_HF_PAIRED_ROPE = 1 << 0, /* GGUF rotates neighbours, Hugging Face halves: rows of q and k are reordered */
    TN_ARCH_HF_NORM_PLUS_ONE = 1 << 1, /* norms multiply by 1 + weight */
    TN_ARCH_HF_TRANSPOSED = 1 << 2,    /* matrices are stored [in, out] */
    TN_ARCH_HF_GROUPED_QKV = 1 << 3,   /* the fused matrix holds q, k and v of each group of heads together */
    TN_ARCH_HF_NESTED = 1 << 4,        /* the language model's configuration is under text_config */
    /* Matrices of experts are stored [expert, in, out], rows of gate and up alternate. */
    TN_ARCH_HF_INTERLEAVED_EXPERTS = 1 << 5
} tn_arch_hf_trait;

typedef struct tn_arch_class {
    const char *name; /* "LlamaForCausalLM" */
    uint32_t traits;  /* TN_ARCH_HF_… */
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

typedef struct tn_arch {
    const char *name; /* general.architecture */
    uint32_t traits;  /* TN_ARCH_… */
    float rotated;    /* share of a head that RoPE rotates, where a configuration gives none; 0: all of it */
    /* Every period-th layer sees all positions, the others a window; 0: every layer has the window. */
    int window_period;
    uint32_t default_window; /* of files that give none; 0: no window */
    bool one_ffn_key;        /* feed_forward_length is the size of an expert where there are experts */
    bool parallel_key;       /* the key use_parallel_residual says how attention and feed-forward are connected */
    bool output_q8_0;        /* every quantization mix keeps the output matrix in q8_0 */
    /* Whether the weights of the experts in use sum to 1, which GGUF files do not say. */
    bool experts_sum_to_one;
    tn_arch_constants typical; /* of a synthetic model */
    tn_arch_class classes[6];  /* ended by a NULL name */
} tn_arch;

/* The rows in the table's order; NULL past the end. */
TN_API const tn_arch *tn_arch_at(size_t index);
/* NULL if there is no such architecture. */
TN_API const tn_arch *tn_arch_find(const char *name);
/* The architecture that a Hugging Face class is converted to, and the class's row; NULL if there is none. */
TN_API const tn_arch *tn_arch_find_class(const char *class_name, const tn_arch_class **found);

/* ---- Tensors ---- */

/* Sizes of a model; 0 for what it does not have. */
typedef struct tn_arch_sizes {
    int64_t layers, width, vocab, context;
    int64_t heads, kv_heads, head_k, head_v; /* number of heads; elements of a head */
    int64_t rotated;                         /* elements of a head that RoPE rotates */
    int64_t ffn, experts, expert_ffn, shared_ffn;
    int64_t token_types;
} tn_arch_sizes;

typedef enum tn_arch_tensor_kind {
    TN_ARCH_MATRIX,    /* multiplied with activations */
    TN_ARCH_NORM,      /* weights of a norm */
    TN_ARCH_BIAS,      /* added */
    TN_ARCH_EMBEDDING, /* rows are looked up */
    TN_ARCH_FACTORS    /* of RoPE frequencies */
} tn_arch_tensor_kind;

typedef tn_status (*tn_arch_tensor_fn)(void *user, const char *name, tn_arch_tensor_kind kind, int n_dims,
                                       const int64_t *ne);
/* Calls `fn` for every tensor of a model with these traits and sizes, in the order of GGUF files. Stops at the first
 * status other than TN_OK and returns it. */
TN_API tn_status tn_arch_tensors(uint32_t traits, const tn_arch_sizes *sizes, tn_arch_tensor_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif

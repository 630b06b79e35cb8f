/* The inside of a model: hyperparameters, weights, and the rows of the architecture table. */
#ifndef TN_LLM_MODEL_INTERNAL_H
#define TN_LLM_MODEL_INTERNAL_H

#include "llm/arch/tensors.h"
#include "llm/ranks/division.h"
#include "llm/ranks/share.h"
#include "tenon/arch.h"
#include "tenon/llm.h"

/* ---- Hyperparameters ---- */

typedef enum tn__rope_scaling {
    TN__ROPE_SCALING_NONE,
    TN__ROPE_SCALING_LINEAR,
    TN__ROPE_SCALING_YARN,
    TN__ROPE_SCALING_LONGROPE
} tn__rope_scaling;
/* How the router's logits become weights of experts; the numbers are those of GGUF. */
typedef enum tn__gating {
    TN__GATING_SOFTMAX = 1,
    TN__GATING_SIGMOID = 2,
    TN__GATING_SOFTMAX_OF_CHOSEN = 3,
    TN__GATING_SPARSE_MIXER = 100 /* not of GGUF */
} tn__gating;

/* Where a layer of sparse attention gets its selected positions. */
typedef enum tn__indexer {
    TN__INDEXER_NONE,
    TN__INDEXER_OWN,
    TN__INDEXER_EARLIER /* the selection of the last layer before it that has an indexer */
} tn__indexer;

struct tn__mixer;

typedef struct tn__layer_hparams {
    int32_t n_head, n_head_kv, n_ff;
    int32_t head_k, head_v; /* elements of a head */
    int32_t n_rot;          /* elements of a head that RoPE rotates */
    int32_t cells_of;       /* the layer whose cells it reads, counted from 1; 0: its own */
    bool no_rope_factors;   /* RoPE without the model's factors */
    int32_t rope_offset;    /* elements of a key before the rotated ones */
    /* Latent attention: elements of the row that keys and values are made from; elements of a head of them. */
    int32_t kv_rank, latent_k, latent_v;
    bool moe; /* a mixture of experts instead of a dense feed-forward part */
    /* The token mixer of this layer; NULL: attention (parts/attention.c). */
    const struct tn__mixer *mixer;
    int32_t window; /* positions that attention sees; 0: all */
    tn__indexer indexer;
    int32_t chunk; /* attention sees the query's chunk of this many positions only; 0: no chunks */
    bool no_rope;
    bool plain_rope; /* RoPE without the model's scaling */
    float rope_base, rope_scale;
    float swiglu_limit, swiglu_limit_shared; /* of the experts, and of other feed-forward parts; 0: none */
    bool sparse_gate; /* only gates above the mean by sparse_deviations standard deviations are activated */
    float sparse_deviations;
    float xielu_n, xielu_p, xielu_beta; /* xIELU: of the exponential, of the square, of x */
} tn__layer_hparams;

typedef struct tn__hparams {
    int32_t n_vocab, n_ctx_train, n_embd, n_layer;
    int32_t n_stored_layers; /* layers with their own tensors, which the others reuse in the same order */
    /* Multi-token prediction layers, stored after the ordinary ones. Ordinary graphs do not use them; their
     * entries in `layers` and in the weights follow those of the ordinary layers. */
    int32_t n_nextn;
    int32_t head_layer; /* of a head (tn_model_params.head): the layer of the file that is layer 0 here; 0: no head */
    /* Of an EAGLE-3 head: the width of its model and the layers of it whose inputs the head reads; tokens that it
     * reads, where it guesses only n_vocab of them. 0 in other models. */
    int32_t n_target_embd, n_target_layers, target_layers[TN_STATE_LAYERS_MOST], n_text_vocab;
    bool norm_before_fc, norm_before_residual;
    int32_t head_k, head_v, n_rot; /* of layers that do not say otherwise */
    tn__layer_hparams *layers;
    bool layer_norm; /* norms subtract the mean; otherwise RMS norms */
    float norm_eps;
    float post_norm_eps;      /* of norms after a part; 0: norm_eps */
    tn_rope_mode rope;        /* the architecture's, unless the file says otherwise */
    tn_op activation;         /* likewise */
    bool squared_relu, xielu; /* instead of it */
    tn__rope_scaling rope_scaling;
    float rope_factor, rope_attn_factor, yarn_ext, yarn_attn, yarn_beta_fast, yarn_beta_slow;
    bool yarn_exact; /* the ends of YaRN's blend are not rounded */
    int32_t rope_orig_ctx;
    int32_t rope_sections[4];
    float attn_soft_cap, final_soft_cap, max_alibi, clamp_qkv;
    float attn_scale;        /* 0: 1/√head_k */
    float temperature_scale; /* queries are multiplied by 1 + this × ln(1 + ⌊position / length⌋); 0: never */
    int32_t temperature_length, temperature_offset; /* the offset is added to positions */
    bool temperature_without_rope;                  /* only queries of layers without RoPE are multiplied */
    bool bare_qk_norm;                             /* RoPE is followed by RMS norms of q and k that have no weights */
    float attn_out_scale;                          /* of the output of attention; 0: none */
    float embd_scale, residual_scale, logit_scale; /* 0: none */
    int32_t n_expert, n_expert_used, n_ff_expert, n_ff_shared;
    tn__gating gating;
    bool norm_expert_weights;
    float expert_scale;
    int32_t n_expert_groups, n_groups_used; /* experts are chosen from the highest groups; 0 or 1: from all */
    int32_t experts_per_group, n_ff_chunk;  /* of small experts that groups of the others share */
    float expert_group_scale;
    int32_t n_expert_latent;           /* elements of the experts' input and output; 0: the width */
    float situ_beta, situ_linear_beta; /* SiTU in place of the activation: bounds of gate and up; 0: none */
    int32_t residual_block;            /* attention residuals: layers from a kept state to the next; 0: none */
    float experts_sum_scale;           /* of the sum of the experts and what runs beside them; 0: none */
    int32_t n_rel_buckets;             /* of biases by distance */
    bool plain_ffn;                    /* no gates, in a family that usually has them */
    int32_t n_token_types;
    int32_t separator;    /* token between two texts; −1: none */
    bool classifies_mean; /* the classifier's input is the mean of all states, which is not supported */
    /* Recurrent layers. Heads: the rank of the time steps in Mamba, else heads of values; inner: all of them
     * together; groups: heads of keys; state: the size of one. */
    struct {
        int32_t width, inner, state, heads, groups;
        bool bare_norms; /* of dt, B and C, without weights */
    } ssm;
    int32_t n_altup, laurel_rank; /* alternating updates: copies of the state; rank of the branch beside attention */
    int32_t n_embd_layer;         /* elements of the embedding that every layer has of its own; 0: none */
    int32_t short_conv;           /* width of short convolutions */
    /* RWKV: elements of a head, and of the mixer over channels; ranks of small matrices; the state is halved every so
     * many layers. */
    struct {
        int32_t head, channels, mix, decay, rate, value, gate, halve_every;
    } rwkv;
    int32_t q_rank; /* of latent attention: elements of the row that queries are made from; 0: the state itself */
    /* Indexers: heads and their size; entries that a query selects, and positions of an entry; entries that are
     * always selected. */
    struct {
        int32_t heads, size, k, block, local;
        tn_rope_mode rope;
    } index;
    float kda_lower_bound; /* of Kimi delta attention: the strongest decay; 0: none */
    float yarn_log_mul;    /* of latent attention: multiplies the logarithm of the scaling factor */
    bool causal;
    bool bare_loops; /* with fewer stored layers: the last norm does not end the loops before the last */
    bool parallel;   /* with TN__RESIDUAL_PARALLEL_NORM: false makes it TN__RESIDUAL_SERIAL */
    tn_pooling pooling;
} tn__hparams;

/* The token mixer of a layer, if that is not plain attention. */
struct tn__builder;
struct tn__layer_memory;
enum {
    TN__MIXES_MAMBA = 1 << 0,
    TN__MIXES_MAMBA2 = 1 << 1,
    TN__MIXES_SHORT_CONV = 1 << 2,
    TN__MIXES_DELTA_NET = 1 << 3,
    TN__MIXES_LATENT = 1 << 4,
    TN__MIXES_EXPANDED_LATENT = 1 << 5,
    TN__MIXES_KDA = 1 << 6,
    TN__MIXES_LIGHTNING = 1 << 7,
    TN__MIXES_PLAMO_MAMBA = 1 << 8,
    TN__MIXES_RWKV6 = 1 << 9,
    TN__MIXES_RWKV7 = 1 << 10
};
typedef struct tn__mixer {
    const char *name;
    uint32_t kinds; /* TN__MIXES_…: which tensors it has */
    bool attends;   /* it also has the tensors and the cells of attention */
    /* Adds what a layer needs of sequence memory; NULL: nothing beyond the cells of attention. */
    void (*memory)(const tn__hparams *h, int32_t il, struct tn__layer_memory *memory);
    /* From the normalised input of the layer to what is added to the residual. */
    tn_tensor *(*build)(struct tn__builder *b, int32_t il, tn_tensor *x);
} tn__mixer;

/* attn_output alone, from the normalised input (parts/attention.c). */
extern const tn__mixer tn__linear_mixer;

static inline bool tn__layer_attends(const tn__layer_hparams *l) {
    return l->n_head > 0 && l->n_head_kv > 0 && (!l->mixer || l->mixer->attends);
}
static inline bool tn__layer_mixes(const tn__layer_hparams *l) { return l->mixer || tn__layer_attends(l); }
static inline bool tn__layer_feeds(const tn__layer_hparams *l) { return l->moe || l->n_ff > 0; }

/* ---- Weights ---- */

/* One tensor of the file. */
typedef struct tn__weight {
    const tn_gguf_tensor *info;
    const tn_gguf *file; /* that it is in: the model's, or that of the model that a head guesses for */
    tn_tensor *tensor;   /* in model->arena */
    int32_t layer;       /* -1: before the first; n_layer: after the last */
    bool ignored;        /* recognised, but not used by any graph */
    bool multiplied;     /* only matmuls read it */
    tn__slice slice;     /* the part that this rank has */
    const void *data;    /* of the part in the file's map; NULL: it is not there, or not contiguous */
    size_t size;         /* of the part */
} tn__weight;

/* ---- Architectures ---- */

/* Where the feed-forward part gets its input. */
typedef enum tn__residual {
    TN__RESIDUAL_SERIAL,        /* the sum with the output of attention */
    TN__RESIDUAL_PARALLEL,      /* the same normalised input as attention */
    TN__RESIDUAL_PARALLEL_NORM, /* the same input as attention, through its own norm */
    TN__RESIDUAL_POST_NORM      /* SERIAL, with norms after the sums instead of before each part (bert) */
} tn__residual;

/* A row of the architecture table: the public part, and switches for the graph builder (build/graph.c). */
typedef struct tn__arch {
    tn_arch info;
    const char *layer_prefix; /* before "blk.N." in the names of tensors; NULL: nothing */
    tn_rope_mode rope;
    tn__residual residual;
    tn_op activation;         /* of the gate; with TN_ARCH_NO_GATE a unary op */
    tn_op classifier;         /* activation of the classifier's first matrix; 0: tanh */
    bool squared_relu;        /* that is the activation */
    bool bare_embedding_norm; /* the embedding is normalised, without weights */
    bool rope_in_windows;     /* in a model with windows the other layers have no RoPE */
    bool norm_qk_after_rope;
    bool either_ffn;         /* layers with and without experts; otherwise TN_ARCH_EXPERTS says which */
    bool positive_decay;     /* ssm_a of Kimi delta attention is positive */
    bool keys_as_values;     /* a layer without attn_v has values made by attn_k */
    bool tiled_heads;        /* of linear attention: value head h reads key head h % (heads of keys) */
    bool ffn_scales;         /* scales of feed-forward matrices are applied where a file has them */
    tn__gating gating;       /* default if the file has none; 0: softmax */
    bool router_reads_layer; /* the router reads the state before the layer instead of the experts' input */
    bool weights_before;     /* the weights of experts multiply their input instead of their output */
    /* A layer without experts and without the matrices of a dense part applies SiLU alone, as other programs do. */
    bool ffn_without_matrices;
    bool softplus_gate; /* attn_gate: softplus instead of the sigmoid */
    /* Tensors of some files that graphs of this family do not use, separated by spaces, as in "attn_q.bias
     * output.bias": in a layer without "blk.N.". NULL: none. */
    const char *unused;
    /* Reads the keys that only this family has, after the common ones; may be NULL. */
    tn_status (*read)(const tn_gguf *file, tn__hparams *h);
    /* Builds a layer, from its input state to its output state; NULL: the shared builder (build/graph.c) does, from
     * the switches above. */
    tn_tensor *(*layer)(struct tn__builder *b, int32_t il, tn_tensor *x);
    bool layers_add_embedding; /* `layer` reads the embedding, too: ranks cannot have whole layers */
    /* From the embedding to the state before the first layer, and from the state after the last layer to that before
     * the last norm; NULL: they are the same. */
    tn_tensor *(*begin)(struct tn__builder *b, tn_tensor *x);
    tn_tensor *(*end)(struct tn__builder *b, tn_tensor *x);
    /* Reassigns tensors whose names have another meaning in this family; may be NULL. */
    void (*adjust)(const tn__hparams *h, tn__weights *w);
} tn__arch;

static inline bool tn__arch_has(const tn__arch *arch, uint64_t trait) { return (arch->info.traits & trait) != 0; }
static inline const char *tn__layer_prefix(const tn__arch *arch) {
    return arch->layer_prefix ? arch->layer_prefix : "";
}
const tn__arch *tn__arch_find(const char *name);

/* ---- The model ---- */

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
    tn__division division; /* among ranks */
    tn__share share;
    /* Set by the first session. */
    bool loaded;
    bool repacked;       /* as loaded; later sessions follow */
    int32_t repack_rows; /* rows multiplied at once for which the layouts were chosen */
    tn__weight_buffer *buffers;
    size_t n_buffers;
    uint64_t load_ns;
    uint64_t identity; /* see identity_of in model.c */
};

/* After a failure, too, tn__hparams_free frees what was read. */
tn_status tn__hparams_read(const tn_gguf *file, const tn__arch *arch, tn__hparams *h);
void tn__hparams_free(tn__hparams *h);
/* The tokens that a model reads: 0 … this - 1. */
static inline int32_t tn__n_text_vocab(const tn__hparams *h) {
    return h->n_text_vocab ? h->n_text_vocab : h->n_vocab;
}
/* Width of the states that an EAGLE-3 head reads; 0 for other models. */
static inline int32_t tn__feature_width(const tn__hparams *h) { return h->n_target_layers * h->n_target_embd; }
/* TN_E_INVALID: the EAGLE-3 head is not one for this model. */
tn_status tn__check_target(const tn_model *head, const tn_model *target);
/* Makes a tensor for each one in the file and checks names, shapes and that none is missing. */
tn_status tn__weights_find(tn_model *model);

/* "arch.key" for reading metadata; valid until the next call on this thread. */
const char *tn__arch_key(const tn_gguf *file, const char *key);
/* Layer i's entry of "arch.key", a list of truth values or of numbers. */
bool tn__flag_at(const tn_gguf *file, const char *key, int32_t i, bool missing);

#endif

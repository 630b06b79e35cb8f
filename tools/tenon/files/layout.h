/* What a GGUF model of each architecture consists of: its metadata keys, and its tensors with their shapes. Shared by
 * the commands that make models. */
#ifndef TENON_TOOL_LAYOUT_H
#define TENON_TOOL_LAYOUT_H

#include "tenon/gguf.h"

/* What sets architectures apart, as bits. A converter may change them by what a model's configuration says. */
enum layout_feature {
    L_LAYER_NORM = 1 << 0, /* norms subtract the mean (else root mean square only) */
    L_NORM_BIAS = 1 << 1,  /* norms have a bias */
    L_FUSED_QKV = 1 << 2,  /* one attn_qkv matrix */
    L_QKV_BIAS = 1 << 3,
    L_OUT_BIAS = 1 << 4, /* on attn_output */
    L_NO_GATE = 1 << 5,  /* a plain feed-forward: up, activation, down */
    L_FUSED_UP = 1 << 6, /* ffn_up holds gate and up */
    L_FFN_BIAS = 1 << 7,
    L_QK_NORM = 1 << 8,        /* attn_q_norm and attn_k_norm over a head */
    L_QK_NORM_WIDE = 1 << 9,   /* … over all heads */
    L_QK_NORM_HEADS = 1 << 10, /* … over a head, with weights per head */
    L_POST_NORMS = 1 << 11,    /* post_attention_norm and post_ffw_norm */
    L_NO_PRE_NORMS = 1 << 12,  /* no attn_norm and ffn_norm */
    L_NO_FFN_NORM = 1 << 13,   /* attention and feed-forward read the same norm */
    L_ATTN_NORM_2 = 1 << 14,   /* the feed-forward's own norm is called attn_norm_2 */
    L_BARE_NORMS = 1 << 15,    /* norms without weights */
    L_POSITIONS = 1 << 16,     /* learned positions */
    L_OUTPUT_BIAS = 1 << 17,
    L_SINKS = 1 << 18,         /* attn_sinks, and post_attention_norm in the place of ffn_norm */
    L_EXPERTS = 1 << 19,       /* the architecture has experts */
    L_EXPERT_BIAS = 1 << 20,   /* on the experts' matrices and the router */
    L_SHARED_EXPERT = 1 << 21, /* an expert for all tokens … */
    L_SHARED_GATE = 1 << 22,   /* … weighed by ffn_gate_inp_shexp */
    L_TIED = 1 << 23,          /* the token embedding is the output matrix */
    L_NO_ROPE = 1 << 24,
    L_ENCODER = 1 << 25,      /* norms after the blocks, token types, not causal, no output */
    L_ROPE_FACTORS = 1 << 26, /* rope_freqs, or long and short factors */
    L_LONG_SHORT = 1 << 27
};

struct layout_arch {
    const char *name;
    uint32_t features;
    int head;      /* size of a head, where the architecture fixes it; else 0 */
    float rotated; /* share of a head that is rotated */
};
extern const struct layout_arch layout_table[]; /* ended by an entry without a name */
const struct layout_arch *layout_find(const char *name);

/* A model's numbers. 0 means absent for what is optional. */
struct layout {
    const struct layout_arch *arch;
    uint32_t features;
    uint32_t layers, width, heads, kv_heads, head, ffn, vocab, context;
    uint32_t experts, experts_used, expert_ffn, shared_ffn;
    uint32_t rotated; /* elements of a head */
    uint32_t window;
    uint32_t token_types;
    float eps, rope_base, rope_base_local;
    float softcap_attention, softcap_output;
    float scale_output, scale_residual, scale_embedding, scale_attention;
    float clamp_qkv, alibi;
    bool parallel_residual, experts_normalized;
};

enum layout_kind { LAYOUT_MATRIX, LAYOUT_NORM, LAYOUT_BIAS, LAYOUT_TABLE, LAYOUT_FACTORS };
typedef tn_status (*layout_visitor)(void *user, const char *name, enum layout_kind kind, int n_dims,
                                    const int64_t *ne);

/* Checks the numbers against each other; TN_E_INVALID names what does not fit. */
tn_status layout_check(const struct layout *layout);
/* Every tensor in the usual order. Stops at the first failure. */
tn_status layout_tensors(const struct layout *layout, layout_visitor visit, void *user);
/* Sets "general.architecture" and all "ARCH.*" keys. */
tn_status layout_keys(const struct layout *layout, tn_gguf_writer *writer);

#endif

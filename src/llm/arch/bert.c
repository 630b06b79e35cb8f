/* BERT and Nomic BERT: encoders for embeddings. */
#include "llm/arch/arch.h"

static tn_status read(const tn_gguf *file, tn__hparams *h) {
    h->causal = tn_gguf_get_bool(file, tn__arch_key(file, "attention.causal"), false);
    return TN_OK;
}

const tn__arch tn__arch_bert = {
    .name = "bert",
    .norm = TN__NORM_LAYER,
    .no_rope = true,
    .residual = TN__RESIDUAL_POST_NORM,
    .activation = TN_OP_GELU_ERF,
    .no_ffn_scales = true,
    .ungated = true,
    .read = read,
    .required = {"attn_q|attn_qkv", "attn_output", "attn_output_norm", "ffn_up", "ffn_down", "layer_output_norm"},
};
const tn__arch tn__arch_nomic_bert = {
    .name = "nomic-bert",
    .norm = TN__NORM_LAYER,
    .rope = TN_ROPE_NEOX,
    .residual = TN__RESIDUAL_POST_NORM,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .read = read,
    .required = {"attn_q|attn_qkv", "attn_output", "attn_output_norm", "ffn_up", "ffn_down", "layer_output_norm"},
};

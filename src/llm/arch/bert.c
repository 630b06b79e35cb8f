/* BERT and Nomic BERT: encoders for embeddings. */
#include "llm/arch/arch.h"

static tn_status read_bert(const tn_gguf *file, tn__hparams *h) {
    h->causal = tn_gguf_get_bool(file, tn__arch_key(file, "attention.causal"), false);
    return TN_OK;
}

const tn__arch tn__arch_bert = {
    .info = {.name = "bert",
             .traits = TN__ARCH_CLASSIC | TN_ARCH_ENCODER | TN_ARCH_POSITIONS | TN_ARCH_NO_ROPE,
             .classes = {{"BertModel", 0}, {"BertForMaskedLM", 0}, {"BertForSequenceClassification", 0}}},
    .residual = TN__RESIDUAL_POST_NORM,
    .activation = TN_OP_GELU_ERF,
    .no_ffn_scales = true,
    .read = read_bert,
};
const tn__arch tn__arch_nomic_bert = {
    .info = {.name = "nomic-bert",
             .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_FUSED_QKV | TN_ARCH_ENCODER,
             .classes = {{"NomicBertModel", 0}}},
    .rope = TN_ROPE_NEOX,
    .residual = TN__RESIDUAL_POST_NORM,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .read = read_bert,
};

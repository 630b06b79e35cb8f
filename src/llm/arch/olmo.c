/* OLMo: norms without weights. OLMo 2: norms after each part. OLMoE: experts. */
#include "llm/arch/arch.h"

static tn_status read_olmo(const tn_gguf *file, tn__hparams *h) {
    h->clamp_qkv = tn_gguf_get_f32(file, tn__arch_key(file, "attention.clamp_kqv"), 0);
    return TN_OK;
}
const tn__arch tn__arch_olmo = {
    .info = {.name = "olmo",
             .traits = TN_ARCH_LAYER_NORM | TN_ARCH_BARE_NORMS,
             .classes = {{"OlmoForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
    .rope = TN_ROPE_NORMAL,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .read = read_olmo,
};
const tn__arch tn__arch_olmo2 = {
    .info = {.name = "olmo2",
             .traits = TN_ARCH_NO_PRE_NORMS | TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM_WIDE,
             .classes = {{"Olmo2ForCausalLM", 0}}},
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
};
/* Other programs accept OLMoE only with a KV head for every head, so synthetic models have them. */
const tn__arch tn__arch_olmoe = {
    .info = {.name = "olmoe",
             .traits = TN_ARCH_QK_NORM_WIDE | TN_ARCH_EXPERTS,
             .one_ffn_key = true,
             .typical = {.kv_heads = TN_ARCH_KV_SAME},
             .classes = {{"OlmoeForCausalLM", 0}}},
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
};

/* GPT-2, StarCoder and GPT-NeoX: layer norms, fused attention matrices, no gate. The first three were trained with
 * the tanh form of GELU, GPT-NeoX (like Falcon, MPT and BERT) with the exact one. */
#include "llm/arch/arch.h"

const tn__arch tn__arch_gpt2 = {
    .info = {.name = "gpt2",
             .traits = TN__ARCH_CLASSIC | TN_ARCH_FUSED_QKV | TN_ARCH_POSITIONS | TN_ARCH_NO_ROPE,
             .classes = {{"GPT2LMHeadModel", TN_ARCH_HF_TRANSPOSED}}},
    .activation = TN_OP_GELU,
    .no_ffn_scales = true,
};
const tn__arch tn__arch_starcoder = {
    .info = {.name = "starcoder",
             .traits = TN__ARCH_CLASSIC | TN_ARCH_FUSED_QKV | TN_ARCH_POSITIONS | TN_ARCH_NO_ROPE,
             .typical = {.kv_heads = 1},
             .classes = {{"GPTBigCodeForCausalLM", 0}}},
    .activation = TN_OP_GELU,
    .no_ffn_scales = true,
};
const tn__arch tn__arch_starcoder2 = {
    .info = {.name = "starcoder2", .traits = TN__ARCH_CLASSIC, .classes = {{"Starcoder2ForCausalLM", 0}}},
    .activation = TN_OP_GELU,
    .rope = TN_ROPE_NEOX,
    .no_ffn_scales = true,
};

static tn_status read_gptneox(const tn_gguf *file, tn__hparams *h) {
    h->parallel = tn_gguf_get_bool(file, tn__arch_key(file, "use_parallel_residual"), true);
    return TN_OK;
}
const tn__arch tn__arch_gptneox = {
    .info = {.name = "gptneox",
             .traits = TN__ARCH_CLASSIC | TN_ARCH_FUSED_QKV,
             .rotated = 0.25f,
             .parallel_key = true,
             .classes = {{"GPTNeoXForCausalLM", TN_ARCH_HF_GROUPED_QKV}}},
    .activation = TN_OP_GELU_ERF,
    .rope = TN_ROPE_NEOX,
    .residual = TN__RESIDUAL_PARALLEL_NORM,
    .no_ffn_scales = true,
    .read = read_gptneox,
};

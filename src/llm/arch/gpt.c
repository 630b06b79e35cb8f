/* GPT-2, StarCoder and GPT-NeoX: layer norms, fused attention matrices, no gate. The first three
 * were trained with the tanh form of GELU, GPT-NeoX (as Falcon, MPT and BERT) with the exact one. */
#include "llm/arch/arch.h"

#define GPT                                                                                                          \
    .norm = TN__NORM_LAYER, .no_ffn_scales = true, .ungated = true,                                                  \
    .required = {"attn_norm", "attn_qkv|attn_q", "attn_output", "ffn_norm", "ffn_up", "ffn_down"}

const tn__arch tn__arch_gpt2 = {.name = "gpt2", GPT, .activation = TN_OP_GELU, .no_rope = true};
const tn__arch tn__arch_starcoder = {.name = "starcoder", GPT, .activation = TN_OP_GELU, .no_rope = true};
const tn__arch tn__arch_starcoder2 = {.name = "starcoder2", GPT, .activation = TN_OP_GELU, .rope = TN_ROPE_NEOX};

static tn_status read_gptneox(const tn_gguf *file, tn__hparams *h) {
    h->parallel = tn_gguf_get_bool(file, tn__arch_key(file, "use_parallel_residual"), true);
    return TN_OK;
}
const tn__arch tn__arch_gptneox = {.name = "gptneox",
                                   GPT,
                                   .activation = TN_OP_GELU_ERF,
                                   .rope = TN_ROPE_NEOX,
                                   .residual = TN__RESIDUAL_PARALLEL_NORM,
                                   .read = read_gptneox};

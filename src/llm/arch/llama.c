/* Llama and the families that are built like it: Mistral, Mixtral, TinyLlama, SmolLM, Yi, DeepSeek-LLM; Mistral 3,
 * InternLM 2 and SmolLM 3 with small changes. */
#include "llm/arch/arch.h"

#include <math.h>

#define LLAMA_LIKE .rope = TN_ROPE_NORMAL, .activation = TN_OP_SWIGLU

const tn__arch tn__arch_llama = {
    .info = {.name = "llama",
             .traits = TN_ARCH_WINDOW,
             .one_ffn_key = true,
             .experts_sum_to_one = true,
             .classes = {{"LlamaForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                         {"LLaMAForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                         {"MistralForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                         {"MixtralForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
    LLAMA_LIKE,
};

/* Queries beyond the context of the first training grow with their position. YaRN scales q and k with the logarithm
 * of the factor; a file with a multiplier of that logarithm undoes the scaling, whatever attention factor it gives.
 */
static tn_status read_mistral3(const tn_gguf *file, tn__hparams *h) {
    h->temperature_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.temperature_scale"), 0);
    h->temperature_length = tn_gguf_get_i32(file, tn__arch_key(file, "attention.temperature_length"), 0);
    if (h->temperature_length <= 0) h->temperature_length = h->rope_orig_ctx > 0 ? h->rope_orig_ctx : h->n_ctx_train;
    float log_mul = tn_gguf_get_f32(file, tn__arch_key(file, "rope.scaling.yarn_log_multiplier"), 0);
    if (h->rope_scaling == TN__ROPE_SCALING_YARN && h->rope_factor > 1 && log_mul > 0)
        h->yarn_attn = 1 / (1 + 0.1f * log_mul * logf(h->rope_factor));
    return TN_OK;
}
const tn__arch tn__arch_mistral3 = {
    .info = {.name = "mistral3",
             .traits = TN_ARCH_WINDOW,
             .one_ffn_key = true,
             .experts_sum_to_one = true,
             .classes = {{"Ministral3ForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                         {"Mistral3ForConditionalGeneration", TN_ARCH_HF_PAIRED_ROPE | TN_ARCH_HF_NESTED}}},
    LLAMA_LIKE,
    .read = read_mistral3,
};

const tn__arch tn__arch_internlm2 = {
    .info = {.name = "internlm2",
             .classes = {{"InternLM2ForCausalLM", TN_ARCH_HF_PAIRED_ROPE | TN_ARCH_HF_GROUPED_QKV}}},
    LLAMA_LIKE,
    .no_ffn_scales = true,
};

/* Every fourth layer has no RoPE. */
static tn_status read_smollm3(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    for (int32_t i = 3; i < h->n_layer; i += 4) h->layers[i].no_rope = true;
    return TN_OK;
}
const tn__arch tn__arch_smollm3 = {
    .info = {.name = "smollm3", .traits = TN_ARCH_TIED, .classes = {{"SmolLM3ForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
    LLAMA_LIKE,
    .no_ffn_scales = true,
    .read = read_smollm3,
};

/* Llama and its many relatives (Mistral, TinyLlama, SmolLM, Yi, DeepSeek-LLM …), with experts: Mixtral. Mistral 3,
 * InternLM 2 and SmolLM 3 differ in next to nothing. */
#include "llm/arch/arch.h"

#include <math.h>

static tn_status read(const tn_gguf *file, tn__hparams *h) {
    tn__window_all(file, h);
    h->norm_expert_weights = true;
    return TN_OK;
}

#define LLAMA_LIKE                                                                                                   \
    .norm = TN__NORM_RMS, .rope = TN_ROPE_NORMAL, .activation = TN_OP_SWIGLU,                                        \
    .required = {"attn_norm", "attn_q|attn_qkv", "attn_output", "ffn_norm", "ffn_down|ffn_down_exps"}

/* Queries beyond the context the model was first trained with grow with their position. YaRN's own growth of q and k
 * is taken back as far as the file says; one that says so takes it back altogether, whatever factor it names besides.
 */
static tn_status read_mistral3(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(read(file, h));
    h->temperature_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.temperature_scale"), 0);
    h->temperature_length = tn_gguf_get_i32(file, tn__arch_key(file, "attention.temperature_length"), 0);
    if (h->temperature_length <= 0) h->temperature_length = h->rope_orig_ctx > 0 ? h->rope_orig_ctx : h->n_ctx_train;
    float log_mul = tn_gguf_get_f32(file, tn__arch_key(file, "rope.scaling.yarn_log_multiplier"), 0);
    if (h->rope_scaling == TN__ROPE_SCALING_YARN && h->rope_factor > 1 && log_mul > 0)
        h->yarn_attn = 1 / (1 + 0.1f * log_mul * logf(h->rope_factor));
    return TN_OK;
}

const tn__arch tn__arch_llama = {.name = "llama", LLAMA_LIKE, .read = read};
const tn__arch tn__arch_mistral3 = {.name = "mistral3", LLAMA_LIKE, .read = read_mistral3};
const tn__arch tn__arch_internlm2 = {.name = "internlm2", LLAMA_LIKE, .no_ffn_scales = true};

/* Every fourth layer of SmolLM 3 knows no positions. */
static tn_status read_smollm3(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    for (int32_t i = 3; i < h->n_layer; i += 4) h->layers[i].no_rope = true;
    return TN_OK;
}
const tn__arch tn__arch_smollm3 = {.name = "smollm3", LLAMA_LIKE, .no_ffn_scales = true, .read = read_smollm3};

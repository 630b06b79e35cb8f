/* Architectures with latent attention (MLA). */
#include "llm/arch/families.h"
#include "llm/parts/mixers.h"

#include <math.h>

/* Kimi delta attention in layers without heads, latent attention without positions in the others. */
static tn_status read_kimi_linear(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(tn__read_kda(file, h));
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].no_rope = true;
    return tn__read_latent(file, h);
}

/* The same, with positions. */
static tn_status read_bailingmoe3(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(tn__read_kda(file, h));
    return tn__read_latent(file, h);
}

/* Without positions. Experts work on rows of another width; parts of a layer read a mixture of earlier states. */
static tn_status read_kimi_k3(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(read_kimi_linear(file, h));
    h->n_expert_latent = tn_gguf_get_i32(file, tn__arch_key(file, "expert_latent_length"), 0);
    h->residual_block = tn_gguf_get_i32(file, tn__arch_key(file, "attn_res.block_size"), 0);
    h->situ_beta = tn_gguf_get_f32(file, tn__arch_key(file, "activation.situ_beta"), 0);
    h->situ_linear_beta = tn_gguf_get_f32(file, tn__arch_key(file, "activation.situ_linear_beta"), 0);
    if (h->n_expert_latent < 0 || h->n_expert_latent > 1 << 24 || h->residual_block < 0 || !(h->situ_beta > 0) ||
        !isfinite(h->situ_beta) || !isfinite(h->situ_linear_beta))
        return tn_fail(TN_E_FORMAT,
                       "%s: experts of width %d, residuals of %d layers and bounds of %g and %g are not valid",
                       tn_gguf_path(file), h->n_expert_latent, h->residual_block, (double)h->situ_beta,
                       (double)h->situ_linear_beta);
    return TN_OK;
}

/* Files do not have these multipliers: all models of the family have the same. */
static tn_status read_minicpm3(const tn_gguf *file, tn__hparams *h) {
    h->embd_scale = 12;
    h->residual_scale = 1.4f / sqrtf((float)h->n_layer);
    h->logit_scale = 256 / (float)h->n_embd;
    return tn__read_latent(file, h);
}

static const tn_arch_key latent_keys[] = {{"attention.kv_lora_rank", TN_ARCH_HEAD, 2, NULL},
                                          {"attention.q_lora_rank", TN_ARCH_WIDTH, 0.5, NULL},
                                          {"attention.key_length", TN_ARCH_HEAD, 2.5, NULL},
                                          {"attention.value_length", TN_ARCH_HEAD, 2, NULL},
                                          {"attention.key_length_mla", TN_ARCH_HEAD, 1.5, NULL},
                                          {"attention.value_length_mla", TN_ARCH_HEAD, 1, NULL},
                                          {"attention.head_count_kv", TN_ARCH_COUNT, 1, NULL},
                                          {"rope.dimension_count", TN_ARCH_HEAD, 0.5, NULL},
                                          {0}};
static const tn_arch_key kimi_keys[] = {{"attention.kv_lora_rank", TN_ARCH_HEAD, 2, NULL},
                                        {"attention.key_length", TN_ARCH_HEAD, 2.5, NULL},
                                        {"attention.value_length", TN_ARCH_HEAD, 2, NULL},
                                        {"attention.key_length_mla", TN_ARCH_HEAD, 1.5, NULL},
                                        {"attention.value_length_mla", TN_ARCH_HEAD, 1, NULL},
                                        {"attention.head_count_kv", TN_ARCH_COUNT, 1, "01"},
                                        {"rope.dimension_count", TN_ARCH_HEAD, 0.5, NULL},
                                        {"ssm.conv_kernel", TN_ARCH_COUNT, 4, NULL},
                                        {"kda.head_dim", TN_ARCH_HEAD, 1, NULL},
                                        {"expert_gating_func", TN_ARCH_COUNT, 2, NULL},
                                        {0}};

static const tn_arch_key kimi_k3_keys[] = {{"attention.kv_lora_rank", TN_ARCH_HEAD, 2, NULL},
                                           {"attention.q_lora_rank", TN_ARCH_WIDTH, 0.5, NULL},
                                           {"attention.key_length", TN_ARCH_HEAD, 2.5, NULL},
                                           {"attention.value_length", TN_ARCH_HEAD, 2, NULL},
                                           {"attention.key_length_mla", TN_ARCH_HEAD, 1.5, NULL},
                                           {"attention.value_length_mla", TN_ARCH_HEAD, 1, NULL},
                                           {"attention.head_count_kv", TN_ARCH_COUNT, 1, "01"},
                                           {"rope.dimension_count", TN_ARCH_HEAD, 0.5, NULL},
                                           {"ssm.conv_kernel", TN_ARCH_COUNT, 4, NULL},
                                           {"kda.head_dim", TN_ARCH_HEAD, 1, NULL},
                                           {"kda.gate_lower_bound", TN_ARCH_REAL, -5, NULL},
                                           {"expert_gating_func", TN_ARCH_COUNT, 2, NULL},
                                           {"expert_latent_length", TN_ARCH_WIDTH, 0.5, NULL},
                                           {"attn_res.block_size", TN_ARCH_COUNT, 2, NULL},
                                           {"activation.situ_beta", TN_ARCH_REAL, 4, NULL},
                                           {"activation.situ_linear_beta", TN_ARCH_REAL, 25, NULL},
                                           {0}};

static const tn_arch_key expanded_keys[] = {{"attention.kv_lora_rank", TN_ARCH_HEAD, 2, NULL},
                                            {"attention.q_lora_rank", TN_ARCH_WIDTH, 0.5, NULL},
                                            {"attention.head_count_kv", TN_ARCH_HEADS, 1, NULL},
                                            {"rope.dimension_count", TN_ARCH_HEAD, 0.5, NULL},
                                            {0}};

const tn__arch tn__latent_families[] = {
    /* DeepSeek V2 and V3, Kimi K2, GigaChat 3. */
    {
        .info = {.name = "deepseek2",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT,
                 .keys = latent_keys,
                 .classes = {{"DeepseekV2ForCausalLM", 0},
                             {"DeepseekV3ForCausalLM", 0},
                             {"Glm4MoeLiteForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = tn__read_latent,
    },
    {
        .info = {.name = "mistral4", .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT, .keys = latent_keys},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = tn__read_latent,
    },
    {
        .info = {.name = "kimi-linear",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT,
                 .fewest_layers = 2,
                 .experts_sum_to_one = true,
                 .keys = kimi_keys,
                 .classes = {{"KimiLinearForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = read_kimi_linear,
    },
    {
        .info = {.name = "kimi-k3",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS |
                           TN_ARCH_FULL_KDA_GATE | TN_ARCH_GATED_LATENT,
                 .fewest_layers = 3,
                 .keys = kimi_k3_keys},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .unused = "attn_output.scale attn_gate.scale attn_q.bias attn_k.bias attn_v.bias attn_q.scale attn_k.scale "
                  "attn_v.scale ssm_beta.scale",
        .read = read_kimi_k3,
        .layer = tn__build_residual_layer,
        .end = tn__build_residual_end,
    },
    {
        .info = {.name = "bailingmoe3",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_WIDE_KDA |
                           TN_ARCH_HEAD_GATE | TN_ARCH_GATED_LATENT,
                 .fewest_layers = 2,
                 .keys = kimi_keys},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .positive_decay = true,
        .unused = "attn_output.scale attn_gate.scale attn_q.bias attn_k.bias attn_v.bias attn_q.scale attn_k.scale "
                  "attn_v.scale ssm_beta.scale",
        .read = read_bailingmoe3,
    },
    {
        .info = {.name = "minicpm3", .keys = expanded_keys},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = read_minicpm3,
    },
    {.info = {.name = NULL}},
};

/* Architectures that are the shared transformer with switches. A family that differs from another in switches only is
 * a row here and nothing else. */
#include "llm/arch/families.h"

/* Families before RMS norms and gates: layer norms and biases everywhere, a plain feed-forward part. */
#define CLASSIC                                                                                                      \
    (TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_NO_GATE | TN_ARCH_FFN_BIAS | TN_ARCH_OUT_BIAS |                \
     TN_ARCH_QKV_BIAS)

const tn__arch tn__transformers[] = {
    /* Llama 1 to 3, Mistral, TinyLlama, SmolLM, Yi, DeepSeek-LLM; with experts: Mixtral. */
    {
        .info = {.name = "llama",
                 .traits = TN_ARCH_WINDOW,
                 .one_ffn_key = true,
                 .experts_sum_to_one = true,
                 .classes = {{"LlamaForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                             {"LLaMAForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                             {"MistralForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                             {"MixtralForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
    },
    /* A Llama whose queries grow with their position. */
    {
        .info = {.name = "mistral3",
                 .traits = TN_ARCH_WINDOW,
                 .one_ffn_key = true,
                 .experts_sum_to_one = true,
                 .classes = {{"Ministral3ForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                             {"Mistral3ForConditionalGeneration", TN_ARCH_HF_PAIRED_ROPE | TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
        .read = tn__read_mistral3,
    },
    {
        .info = {.name = "internlm2",
                 .classes = {{"InternLM2ForCausalLM", TN_ARCH_HF_PAIRED_ROPE | TN_ARCH_HF_GROUPED_QKV}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
    },
    /* A Llama without RoPE in every fourth layer. */
    {
        .info = {.name = "smollm3",
                 .traits = TN_ARCH_TIED,
                 .classes = {{"SmolLM3ForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = tn__read_smollm3,
    },
    /* A Llama with four multipliers. */
    {
        .info =
            {.name = "granite",
             .experts_sum_to_one = true,
             .typical = {.scale_output = 8, .scale_residual = 0.25f, .scale_embedding = 12, .scale_attention = -1},
             .classes = {{"GraniteForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = tn__read_granite,
    },
    {
        .info =
            {.name = "granitemoe",
             .traits = TN_ARCH_EXPERTS,
             .one_ffn_key = true,
             .experts_sum_to_one = true,
             .typical = {.scale_output = 8, .scale_residual = 0.25f, .scale_embedding = 12, .scale_attention = -1},
             .classes = {{"GraniteMoeForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                         {"GraniteMoeSharedForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = tn__read_granite,
    },
    /* Code World Model: Llama with windows in three of four layers, and q and k in halves. */
    {
        .info = {.name = "cwm",
                 .traits = TN_ARCH_WINDOW,
                 .window_period = 4,
                 .full_first = true,
                 .default_window = 8192,
                 .typical = {.window = 8192},
                 .classes = {{"CwmForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    /* Biases on q, k and v; Qwen 3 has norms of q and k instead. */
    {
        .info = {.name = "qwen2", .traits = TN_ARCH_QKV_BIAS, .classes = {{"Qwen2ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
    },
    {
        .info = {.name = "qwen2moe",
                 .traits = TN_ARCH_QKV_BIAS | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_SHARED_GATE,
                 .classes = {{"Qwen2MoeForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
    },
    {
        .info = {.name = "qwen3",
                 .traits = TN_ARCH_QK_NORM,
                 .classes = {{"Qwen3ForCausalLM", 0}, {"Qwen3Model", 0}, {"Qwen3ForSequenceClassification", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
    },
    {
        .info = {.name = "qwen3moe",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS,
                 .experts_sum_to_one = true,
                 .classes = {{"Qwen3MoeForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
    },
    /* Scaled embeddings and GeGLU; from Gemma 2 on norms after each part and windows in most layers. */
    {
        .info = {.name = "gemma",
                 .traits = TN_ARCH_TIED,
                 .classes = {{"GemmaForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GEGLU,
        .read = tn__read_gemma,
    },
    {
        .info = {.name = "gemma2",
                 .traits = TN_ARCH_TIED | TN_ARCH_POST_NORMS | TN_ARCH_WINDOW,
                 .window_period = 2,
                 .default_window = 4096,
                 .typical = {.window = 512, .softcap_attention = 50, .softcap_output = 30},
                 .classes = {{"Gemma2ForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GEGLU,
        .read = tn__read_gemma2,
    },
    {
        .info = {.name = "gemma3",
                 .traits = TN_ARCH_TIED | TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM | TN_ARCH_WINDOW,
                 .window_period = 6,
                 .typical = {.window = 512},
                 .classes = {{"Gemma3ForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE},
                             {"Gemma3ForConditionalGeneration", TN_ARCH_HF_NORM_PLUS_ONE | TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GEGLU,
        .read = tn__read_gemma3,
    },
    /* Attention and a plain feed-forward part in parallel. */
    {
        .info = {.name = "phi2",
                 .traits = CLASSIC | TN_ARCH_NO_FFN_NORM | TN_ARCH_OUTPUT_BIAS,
                 .rotated = 0.4f,
                 .classes = {{"PhiForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .residual = TN__RESIDUAL_PARALLEL,
        .activation = TN_OP_GELU,
    },
    /* A Llama with fused matrices and RoPE factors for long contexts. */
    {
        .info = {.name = "phi3",
                 .traits = TN_ARCH_FUSED_QKV | TN_ARCH_FUSED_UP | TN_ARCH_WINDOW,
                 .classes = {{"Phi3ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = tn__read_listed_windows,
    },
    /* GPT-2, StarCoder and StarCoder 2 were trained with the tanh form of GELU; GPT-NeoX, Falcon, MPT and BERT with
     * the exact one. */
    {
        .info = {.name = "gpt2",
                 .traits = CLASSIC | TN_ARCH_FUSED_QKV | TN_ARCH_POSITIONS | TN_ARCH_NO_ROPE,
                 .classes = {{"GPT2LMHeadModel", TN_ARCH_HF_TRANSPOSED}}},
        .activation = TN_OP_GELU,
    },
    {
        .info = {.name = "starcoder",
                 .traits = CLASSIC | TN_ARCH_FUSED_QKV | TN_ARCH_POSITIONS | TN_ARCH_NO_ROPE,
                 .typical = {.kv_heads = 1},
                 .classes = {{"GPTBigCodeForCausalLM", 0}}},
        .activation = TN_OP_GELU,
    },
    {
        .info = {.name = "starcoder2", .traits = CLASSIC, .classes = {{"Starcoder2ForCausalLM", 0}}},
        .activation = TN_OP_GELU,
        .rope = TN_ROPE_NEOX,
    },
    {
        .info = {.name = "gptneox",
                 .traits = CLASSIC | TN_ARCH_FUSED_QKV,
                 .rotated = 0.25f,
                 .parallel_key = true,
                 .classes = {{"GPTNeoXForCausalLM", TN_ARCH_HF_GROUPED_QKV}}},
        .activation = TN_OP_GELU_ERF,
        .rope = TN_ROPE_NEOX,
        .residual = TN__RESIDUAL_PARALLEL_NORM,
        .read = tn__read_gptneox,
    },
    /* Attention and feed-forward in parallel; the larger models have a norm for each. */
    {
        .info = {.name = "falcon",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_NO_GATE | TN_ARCH_FUSED_QKV |
                           TN_ARCH_NO_FFN_NORM,
                 .output_q8_0 = true,
                 .classes = {{"FalconForCausalLM", TN_ARCH_HF_GROUPED_QKV},
                             {"RWForCausalLM", TN_ARCH_HF_GROUPED_QKV}}},
        .rope = TN_ROPE_NEOX,
        .residual = TN__RESIDUAL_PARALLEL,
        .activation = TN_OP_GELU_ERF,
    },
    /* ALiBi instead of RoPE. */
    {
        .info = {.name = "mpt",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NO_GATE | TN_ARCH_FUSED_QKV | TN_ARCH_TIED | TN_ARCH_NO_ROPE,
                 .typical = {.alibi = 8},
                 .classes = {{"MptForCausalLM", 0}, {"MPTForCausalLM", 0}}},
        .activation = TN_OP_GELU_ERF,
        .read = tn__read_mpt,
        .adjust = tn__adjust_mpt,
    },
    /* A Llama with layer norms; a layer without a feed-forward norm runs both parts in parallel. */
    {
        .info = {.name = "stablelm",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_FFN_NORM_OR_PARALLEL,
                 .rotated = 0.25f,
                 .classes = {{"StableLmForCausalLM", 0}, {"StableLMEpochForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    /* Norms without weights. */
    {
        .info = {.name = "olmo",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_BARE_NORMS,
                 .classes = {{"OlmoForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .read = tn__read_olmo,
    },
    /* Norms after each part instead of before it. */
    {
        .info = {.name = "olmo2",
                 .traits = TN_ARCH_NO_PRE_NORMS | TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM_WIDE | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .classes = {{"Olmo2ForCausalLM", 0}, {"Olmo3ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "attn_q.bias attn_k.bias attn_v.bias attn_q.scale attn_k.scale attn_v.scale",
        .read = tn__read_olmo2,
    },
    /* Other programs accept OLMoE only with a KV head for every head, so synthetic models have as many. */
    {
        .info = {.name = "olmoe",
                 .traits = TN_ARCH_QK_NORM_WIDE | TN_ARCH_EXPERTS,
                 .one_ffn_key = true,
                 .typical = {.kv_heads = TN_ARCH_KV_SAME},
                 .classes = {{"OlmoeForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "attn_q.bias attn_k.bias attn_v.bias attn_q.scale attn_k.scale attn_v.scale",
    },
    /* Attention sinks, windows in every other layer, experts with biases and a clamped gate. */
    {
        .info = {.name = "gpt-oss",
                 .traits = TN_ARCH_QKV_BIAS | TN_ARCH_OUT_BIAS | TN_ARCH_SINKS | TN_ARCH_RENAMED_FFN_NORM |
                           TN_ARCH_EXPERTS | TN_ARCH_EXPERT_BIAS | TN_ARCH_WINDOW,
                 .window_period = 2,
                 .experts_sum_to_one = true,
                 .typical = {.window = 128},
                 .classes = {{"GptOssForCausalLM", TN_ARCH_HF_INTERLEAVED_EXPERTS}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU_OAI,
        .read = tn__read_gpt_oss,
    },
    /* One norm for attention and feed-forward in parallel, scaled logits. */
    {
        .info = {.name = "command-r",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NO_FFN_NORM | TN_ARCH_TIED,
                 .typical = {.scale_output = 0.0625f},
                 .classes = {{"CohereForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .residual = TN__RESIDUAL_PARALLEL,
        .activation = TN_OP_SWIGLU,
        .read = tn__read_logit_scale,
    },
    /* Encoders for embeddings. */
    {
        .info = {.name = "bert",
                 .traits = CLASSIC | TN_ARCH_ENCODER | TN_ARCH_BERT | TN_ARCH_POSITIONS | TN_ARCH_NO_ROPE,
                 .classes = {{"BertModel", 0},
                             {"BertForMaskedLM", 0},
                             {"BertForSequenceClassification", 0},
                             {"RobertaModel", 0},
                             {"RobertaForSequenceClassification", 0},
                             {"XLMRobertaModel", 0},
                             {"XLMRobertaForSequenceClassification", 0},
                             {"CamembertModel", 0}}},
        .residual = TN__RESIDUAL_POST_NORM,
        .activation = TN_OP_GELU_ERF,
    },
    {
        .info = {.name = "nomic-bert",
                 .traits =
                     TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_FUSED_QKV | TN_ARCH_ENCODER | TN_ARCH_BERT,
                 .classes = {{"NomicBertModel", 0}}},
        .rope = TN_ROPE_NEOX,
        .residual = TN__RESIDUAL_POST_NORM,
        .activation = TN_OP_SWIGLU,
    },
    {.info = {.name = NULL}},
};

/* Architectures with recurrent layers: alone, beside attention, or in turn with it. */
#include "llm/arch/families.h"
#include "llm/parts/mixers.h"

/* ---- Layers ---- */

/* Layers without heads of attention get the mixer. */
static void mix_layers_without_heads(tn__hparams *h, const tn__mixer *mixer) {
    for (int32_t i = 0; i < h->n_layer; i++)
        if (h->layers[i].n_head_kv == 0) h->layers[i].mixer = mixer;
}

static tn_status read_mamba(const tn_gguf *file, tn__hparams *h) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        h->layers[i].n_head_kv = h->layers[i].n_ff = 0; /* files give numbers that nothing uses */
        h->layers[i].mixer = &tn__mamba;
    }
    return tn__check_mamba(file, h);
}

static tn_status read_mamba2(const tn_gguf *file, tn__hparams *h) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        h->layers[i].n_head_kv = h->layers[i].n_ff = 0;
        h->layers[i].mixer = &tn__mamba2;
    }
    return tn__check_mamba2(file, h);
}

static tn_status read_jamba(const tn_gguf *file, tn__hparams *h) {
    mix_layers_without_heads(h, &tn__mamba);
    return tn__check_mamba(file, h);
}

/* RoPE is off in files that say that they were not trained with it. */
static tn_status read_granite_hybrid(const tn_gguf *file, tn__hparams *h) {
    const bool rope = tn_gguf_get_bool(file, tn__arch_key(file, "rope.scaling.finetuned"), true);
    TN_TRY(tn__read_granite(file, h));
    mix_layers_without_heads(h, &tn__mamba2);
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].no_rope = !rope;
    return tn__check_mamba2(file, h);
}

static tn_status read_falcon_h1(const tn_gguf *file, tn__hparams *h) {
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].mixer = &tn__mamba2_and_attention;
    return tn__check_mamba2(file, h);
}

/* Every layer is one thing: feed-forward where it has a width or experts, else attention where it has heads, else
 * Mamba-2. */
static tn_status read_nemotron_h(const tn_gguf *file, tn__hparams *h) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        l->moe = h->n_expert > 0 && l->n_ff > 0;
        if (l->n_ff > 0) l->n_head_kv = 0;
        if (l->n_ff == 0 && l->n_head_kv == 0) l->mixer = &tn__mamba2;
    }
    return tn__check_mamba2(file, h);
}

static tn_tensor *build_nemotron_h(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_tensor *in = tn__name_node(b, tn__build_norm(b, x, l->attn_norm, NULL), "attn_norm");
    tn_tensor *y;
    if (tn__layer_feeds(&b->h->layers[il]))
        y = tn__build_feed_forward(b, il, tn__build_wanted(b, il, in, "ffn_wanted"));
    else
        y = tn__build_wanted(b, il, tn__build_mixer(b, il, in), "attn_wanted");
    return tn_add(b->a, y, tn__build_wanted(b, il, x, "x_wanted"));
}

static tn_status read_lfm2(const tn_gguf *file, tn__hparams *h) {
    const int32_t window = tn_gguf_get_i32(file, tn__arch_key(file, "attention.sliding_window"), 0);
    if (h->short_conv < 2 || h->short_conv > 8)
        return tn_fail(TN_E_FORMAT, "%s: short convolutions of %d tokens; 2 to 8 are possible", tn_gguf_path(file),
                       h->short_conv);
    mix_layers_without_heads(h, &tn__short_conv);
    for (int32_t i = 0; i < h->n_layer; i++)
        if (h->layers[i].n_head_kv && window > 0) h->layers[i].window = window;
    return TN_OK;
}

/* Every so many layers attend, the others are gated delta networks. */
static tn_status read_qwen3next(const tn_gguf *file, tn__hparams *h) {
    const int32_t interval = tn_gguf_get_i32(file, tn__arch_key(file, "full_attention_interval"), 4);
    if (interval < 1) return tn_fail(TN_E_FORMAT, "%s: full attention every %d layers", tn_gguf_path(file), interval);
    for (int32_t i = 0; i < h->n_layer; i++) {
        const bool recurrent = tn_gguf_get_bool_at(file, tn__arch_key(file, "attention.recurrent_layers"),
                                                   (uint64_t)i, (i + 1) % interval != 0);
        h->layers[i].mixer = recurrent ? &tn__delta_net : &tn__gated_attention;
    }
    return tn__check_mamba2(file, h);
}

/* Every so many layers attend, the others have lightning attention. */
static tn_status read_minimax_01(const tn_gguf *file, tn__hparams *h) {
    const int32_t interval = tn_gguf_get_i32(file, tn__arch_key(file, "full_attention_interval"), 8);
    h->residual_scale = tn_gguf_get_f32(file, tn__arch_key(file, "residual_scale"), 1);
    const int32_t window = tn_gguf_get_i32(file, tn__arch_key(file, "attention.sliding_window"), 0);
    if (interval < 1) return tn_fail(TN_E_FORMAT, "%s: full attention every %d layers", tn_gguf_path(file), interval);
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        l->window = 0;
        if (!tn_gguf_get_bool_at(file, tn__arch_key(file, "attention.recurrent_layers"), (uint64_t)i,
                                 (i + 1) % interval != 0)) {
            if (window > 0) l->window = window;
            continue;
        }
        l->n_head_kv = l->n_head; /* of keys and values alike */
        l->mixer = &tn__lightning_attention;
    }
    return TN_OK;
}

/* What is added to each part is its normalised input, scaled, instead of the state before it. */
static tn_tensor *build_minimax_01(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    const float scale = b->h->residual_scale;
    tn_arena *a = b->a;
    tn_tensor *in = tn__name_node(b, tn__build_norm(b, x, l->attn_norm, NULL), "attn_norm");
    tn_tensor *y = tn__build_wanted(b, il, tn__build_mixer(b, il, in), "attn_wanted");
    in = tn__build_wanted(b, il, in, "attn_norm_wanted");
    tn_tensor *sum = tn__name_node(b, tn_add(a, y, tn__build_scaled(b, in, scale)), "attn_sum");
    in = tn__name_node(b, tn__build_norm(b, sum, l->ffn_norm, NULL), "ffn_norm");
    return tn_add(a, tn__build_experts(b, il, in), tn__build_scaled(b, in, scale));
}

static tn_status read_plamo2(const tn_gguf *file, tn__hparams *h) {
    mix_layers_without_heads(h, &tn__plamo_mamba);
    if (h->ssm.heads < 1 || h->ssm.inner % h->ssm.heads)
        return tn_fail(TN_E_FORMAT, "%s: %d channels in %d heads", tn_gguf_path(file), h->ssm.inner, h->ssm.heads);
    return tn__check_mamba(file, h);
}

static tn_status read_rwkv6(const tn_gguf *file, tn__hparams *h) { return tn__read_rwkv(file, h, &tn__rwkv6); }
static tn_status read_rwkv7(const tn_gguf *file, tn__hparams *h) { return tn__read_rwkv(file, h, &tn__rwkv7); }

/* ---- Keys of synthetic models ---- */

/* States as large as those of released models; heads of 64 with as many heads as attention has. */
#define STATE_SPACE_KEYS                                                                                             \
    {"ssm.conv_kernel", TN_ARCH_COUNT, 4, NULL}, {"ssm.inner_size", TN_ARCH_WIDTH, 2, NULL}, {                       \
        "ssm.state_size", TN_ARCH_COUNT, 16, NULL                                                                    \
    }
#define HALF_ATTEND                                                                                                  \
    { "attention.head_count_kv", TN_ARCH_KV_HEADS, 1, "01" }
static const tn_arch_key mamba_keys[] = {
    STATE_SPACE_KEYS, {"ssm.time_step_rank", TN_ARCH_WIDTH, 1.0 / 16, NULL}, {0}};
static const tn_arch_key mamba2_keys[] = {STATE_SPACE_KEYS,
                                          {"ssm.time_step_rank", TN_ARCH_HEADS, 1, NULL},
                                          {"ssm.group_count", TN_ARCH_COUNT, 1, NULL},
                                          {0}};
static const tn_arch_key jamba_keys[] = {
    STATE_SPACE_KEYS, {"ssm.time_step_rank", TN_ARCH_WIDTH, 1.0 / 16, NULL}, HALF_ATTEND, {0}};
static const tn_arch_key granite_hybrid_keys[] = {STATE_SPACE_KEYS,
                                                  {"ssm.time_step_rank", TN_ARCH_HEADS, 1, NULL},
                                                  {"ssm.group_count", TN_ARCH_COUNT, 1, NULL},
                                                  HALF_ATTEND,
                                                  {0}};
static const tn_arch_key nemotron_h_keys[] = {STATE_SPACE_KEYS,
                                              {"ssm.time_step_rank", TN_ARCH_HEADS, 1, NULL},
                                              {"ssm.group_count", TN_ARCH_COUNT, 1, NULL},
                                              {"attention.head_count_kv", TN_ARCH_KV_HEADS, 1, "0010"},
                                              {"feed_forward_length", TN_ARCH_FFN, 1, "0101"},
                                              {0}};
static const tn_arch_key lfm2_keys[] = {{"shortconv.l_cache", TN_ARCH_COUNT, 3, NULL}, HALF_ATTEND, {0}};
static const tn_arch_key qwen3next_keys[] = {{"ssm.conv_kernel", TN_ARCH_COUNT, 4, NULL},
                                             {"ssm.inner_size", TN_ARCH_WIDTH, 2, NULL},
                                             {"ssm.state_size", TN_ARCH_HEAD, 1, NULL},
                                             {"ssm.time_step_rank", TN_ARCH_HEADS, 1, NULL},
                                             {"ssm.group_count", TN_ARCH_KV_HEADS, 1, NULL},
                                             {"full_attention_interval", TN_ARCH_COUNT, 4, NULL},
                                             {0}};

static const tn_arch_key minimax_01_keys[] = {
    {"full_attention_interval", TN_ARCH_COUNT, 2, NULL}, {"residual_scale", TN_ARCH_REAL, 1.5, NULL}, {0}};
static const tn_arch_key plamo2_keys[] = {
    STATE_SPACE_KEYS, {"ssm.time_step_rank", TN_ARCH_HEADS, 1, NULL}, HALF_ATTEND, {0}};

static const tn_arch_key rwkv6_keys[] = {
    {"wkv.head_size", TN_ARCH_HEAD, 1, NULL},          {"time_mix_extra_dim", TN_ARCH_COUNT, 32, NULL},
    {"time_decay_extra_dim", TN_ARCH_COUNT, 64, NULL}, {"rescale_every_n_layers", TN_ARCH_COUNT, 2, NULL},
    {"token_shift_count", TN_ARCH_COUNT, 2, NULL},     {0}};
static const tn_arch_key rwkv7_keys[] = {{"wkv.head_size", TN_ARCH_HEAD, 1, NULL},
                                         {"attention.decay_lora_rank", TN_ARCH_COUNT, 64, NULL},
                                         {"attention.iclr_lora_rank", TN_ARCH_COUNT, 64, NULL},
                                         {"attention.value_residual_mix_lora_rank", TN_ARCH_COUNT, 32, NULL},
                                         {"attention.gate_lora_rank", TN_ARCH_COUNT, 128, NULL},
                                         {"token_shift_count", TN_ARCH_COUNT, 2, NULL},
                                         {0}};

/* ---- Rows ---- */

const tn__arch tn__hybrids[] = {
    {
        .info = {.name = "mamba",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_NO_ROPE | TN_ARCH_NO_FFN_NORM,
                 .keys = mamba_keys,
                 .classes = {{"MambaForCausalLM", 0}, {"FalconMambaForCausalLM", 0}}},
        .read = read_mamba,
    },
    {
        .info = {.name = "mamba2",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_NO_ROPE | TN_ARCH_NO_FFN_NORM,
                 .keys = mamba2_keys,
                 .classes = {{"Mamba2ForCausalLM", 0}}},
        .read = read_mamba2,
    },
    /* Mamba with further norms, attention without positions, experts in some layers. */
    {
        .info = {.name = "jamba",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_NO_ROPE | TN_ARCH_NORMED_DT,
                 .fewest_layers = 2,
                 .keys = jamba_keys,
                 .classes = {{"JambaForCausalLM", 0}}},
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = read_jamba,
    },
    /* Mamba-2 and attention in turn, with Granite's multipliers. */
    {
        .info =
            {.name = "granitehybrid",
             .traits = TN_ARCH_HYBRID,
             .fewest_layers = 2,
             .experts_sum_to_one = true,
             .typical = {.scale_output = 8, .scale_residual = 0.25f, .scale_embedding = 12, .scale_attention = -1},
             .keys = granite_hybrid_keys,
             .classes = {{"GraniteMoeHybridForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                         {"BambaForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = read_granite_hybrid,
    },
    /* Mamba-2 and attention side by side. */
    {
        .info = {.name = "falcon-h1",
                 .traits = TN_ARCH_HYBRID,
                 .keys = mamba2_keys,
                 .classes = {{"FalconH1ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "attn_output.bias rope_freqs.weight",
        .read = read_falcon_h1,
    },
    /* Mamba-2, attention without positions and feed-forward parts in turn, one per layer. */
    {
        .info = {.name = "nemotron_h",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_NO_ROPE | TN_ARCH_NO_FFN_NORM | TN_ARCH_NO_GATE,
                 .fewest_layers = 4,
                 .keys = nemotron_h_keys,
                 .classes = {{"NemotronHForCausalLM", 0}}},
        .squared_relu = true,
        .either_ffn = true,
        .ffn_scales = true,
        .read = read_nemotron_h,
        .layer = build_nemotron_h,
    },
    {
        .info = {.name = "nemotron_h_moe",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_NO_ROPE | TN_ARCH_NO_FFN_NORM | TN_ARCH_NO_GATE,
                 .fewest_layers = 4,
                 .keys = nemotron_h_keys},
        .squared_relu = true,
        .either_ffn = true,
        .ffn_scales = true,
        .read = read_nemotron_h,
        .layer = build_nemotron_h,
    },
    /* Short convolutions and attention in turn. */
    {
        .info = {.name = "lfm2",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_QK_NORM | TN_ARCH_TIED | TN_ARCH_RENAMED_LAST_NORM,
                 .fewest_layers = 2,
                 .keys = lfm2_keys,
                 .classes = {{"Lfm2ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "attn_output.bias rope_freqs.weight",
        .read = read_lfm2,
    },
    {
        .info = {.name = "lfm2moe",
                 .traits =
                     TN_ARCH_HYBRID | TN_ARCH_QK_NORM | TN_ARCH_TIED | TN_ARCH_RENAMED_LAST_NORM | TN_ARCH_EXPERTS,
                 .fewest_layers = 2,
                 .experts_sum_to_one = true,
                 .keys = lfm2_keys,
                 .classes = {{"Lfm2MoeForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .unused = "attn_output.bias rope_freqs.weight",
        .read = read_lfm2,
    },
    /* Gated delta networks, and every fourth layer attention with a gate. */
    {
        .info = {.name = "qwen3next",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_QK_NORM | TN_ARCH_GATED_Q | TN_ARCH_FUSED_BETA |
                           TN_ARCH_RENAMED_FFN_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_SHARED_GATE,
                 .rotated = 0.25f,
                 .fewest_layers = 4,
                 .experts_sum_to_one = true,
                 .keys = qwen3next_keys,
                 .classes = {{"Qwen3NextForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .ffn_scales = true,
        .unused = "attn_qkv.scale attn_gate.scale ssm_out.scale attn_q.bias attn_k.bias attn_v.bias",
        .read = read_qwen3next,
    },
    {
        .info = {.name = "qwen35",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_QK_NORM | TN_ARCH_GATED_Q | TN_ARCH_RENAMED_FFN_NORM,
                 .rotated = 0.25f,
                 .fewest_layers = 4,
                 .keys = qwen3next_keys,
                 .classes = {{"Qwen3_5ForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE},
                             {"Qwen3_5ForConditionalGeneration", TN_ARCH_HF_NORM_PLUS_ONE | TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .ffn_scales = true,
        .tiled_heads = true,
        .read = read_qwen3next,
    },
    {
        .info = {.name = "qwen35moe",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_QK_NORM | TN_ARCH_GATED_Q | TN_ARCH_RENAMED_FFN_NORM |
                           TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_SHARED_GATE,
                 .rotated = 0.25f,
                 .fewest_layers = 4,
                 .experts_sum_to_one = true,
                 .keys = qwen3next_keys,
                 .classes = {{"Qwen3_5MoeForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE},
                             {"Qwen3_5MoeForConditionalGeneration", TN_ARCH_HF_NORM_PLUS_ONE | TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .ffn_scales = true,
        .tiled_heads = true,
        .read = read_qwen3next,
    },
    /* Lightning attention, and every eighth layer attention. */
    {
        .info = {.name = "minimax-01",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_EXPERTS,
                 .fewest_layers = 2,
                 .experts_sum_to_one = true,
                 .keys = minimax_01_keys,
                 .classes = {{"MiniMaxForCausalLM", 0}, {"MiniMaxM1ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = read_minimax_01,
        .layer = build_minimax_01,
    },
    {
        .info = {.name = "plamo2",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_FUSED_QKV | TN_ARCH_FUSED_UP | TN_ARCH_QK_NORM_HEADS |
                           TN_ARCH_POST_NORMS,
                 .fewest_layers = 2,
                 .keys = plamo2_keys,
                 .classes = {{"Plamo2ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = read_plamo2,
    },
    /* RWKV: channel mixing replaces the feed-forward part. */
    {
        .info = {.name = "rwkv6",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_NO_ROPE | TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS |
                           TN_ARCH_EMBEDDING_NORM | TN_ARCH_ATTN_NORM_2,
                 .keys = rwkv6_keys},
        .read = read_rwkv6,
        .begin = tn__rwkv_begin,
        .layer = tn__build_rwkv_layer,
    },
    {
        .info = {.name = "rwkv7",
                 .traits = TN_ARCH_HYBRID | TN_ARCH_NO_ROPE | TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS |
                           TN_ARCH_EMBEDDING_NORM | TN_ARCH_ATTN_NORM_2,
                 .fewest_layers = 2,
                 .keys = rwkv7_keys},
        .read = read_rwkv7,
        .begin = tn__rwkv_begin,
        .layer = tn__build_rwkv_layer,
        .layers_add_embedding = true,
    },
    {.info = {.name = NULL}},
};

/* Further architectures with attention and a dense feed-forward part in every layer: the shared transformer with
 * switches. */
#include "llm/arch/families.h"
#include "llm/build/builder.h"

#include <math.h>
#include <string.h>

#define KEY(name) tn__arch_key(file, name)

/* ---- Keys ---- */

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* One number for all layers, or one for each. */
static tn_status read_apertus(const tn_gguf *file, tn__hparams *h) {
    h->xielu = true;
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        l->xielu_beta = tn_gguf_get_f32_at(file, "xielu.beta", (uint64_t)i, 0.5f);
        l->xielu_n = l->xielu_beta + softplus(tn_gguf_get_f32_at(file, "xielu.alpha_n", (uint64_t)i, 0.8f));
        l->xielu_p = softplus(tn_gguf_get_f32_at(file, "xielu.alpha_p", (uint64_t)i, 0.8f));
        if (!isfinite(l->xielu_n) || !isfinite(l->xielu_p) || !isfinite(l->xielu_beta))
            return tn_fail(TN_E_FORMAT, "%s: the parameters of xIELU in layer %d are not finite", tn_gguf_path(file),
                           i);
    }
    return TN_OK;
}

static tn_status read_alibi(const tn_gguf *file, tn__hparams *h) {
    h->max_alibi = tn_gguf_get_f32(file, KEY("attention.max_alibi_bias"), 8);
    return TN_OK;
}

/* Files do not say which of the two models they have; their number of layers does. The smaller one has RoPE, the
 * larger one ALiBi. */
static tn_status read_baichuan(const tn_gguf *file, tn__hparams *h) {
    h->max_alibi = tn_gguf_get_f32(file, KEY("attention.max_alibi_bias"), h->n_layer == 40 ? 8 : 0);
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].no_rope = h->n_layer != 32;
    return TN_OK;
}

static tn_status read_bitnet(const tn_gguf *file, tn__hparams *h) {
    h->squared_relu = strcmp(tn_gguf_get_cstr(file, KEY("hidden_activation"), ""), "relu2") == 0;
    return TN_OK;
}

/* A layer may have neither heads nor a feed-forward part; one with heads but no KV heads is a matrix. */
static tn_status read_deci(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    for (int32_t i = 0; i < h->n_layer; i++)
        if (h->layers[i].n_head > 0 && h->layers[i].n_head_kv == 0) h->layers[i].mixer = &tn__linear_mixer;
    return TN_OK;
}

/* Only the largest model has windows, unless the file lists the layers that do. */
static tn_status read_exaone4(const tn_gguf *file, tn__hparams *h) {
    return h->n_layer == 64 ? TN_OK : tn__read_listed_windows(file, h);
}

/* Files of models that see pictures have sections, and rotate halves. The positions of text are the same in every
 * section. */
static tn_status read_sections(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    if (h->rope_sections[0] > 0 && h->rope_sections[1] > 0) h->rope = TN_ROPE_NEOX;
    return TN_OK;
}

static tn_status read_granite_swa(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(tn__read_granite(file, h));
    for (int32_t i = 0; i < h->n_layer; i++)
        h->layers[i].no_rope = !tn__flag_at(file, "attention.rope_pattern", i, true);
    return TN_OK;
}

static tn_status read_hunyuan(const tn_gguf *file, tn__hparams *h) {
    const float alpha = tn_gguf_get_f32(file, KEY("rope.scaling.alpha"), 0);
    if (!(alpha > 0) || h->head_k <= 2) return TN_OK;
    const float factor = powf(alpha, (float)h->head_k / (float)(h->head_k - 2));
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].rope_base *= factor;
    return isfinite(h->layers[0].rope_base)
               ? TN_OK
               : tn_fail(TN_E_FORMAT, "%s: %s is %g", tn_gguf_path(file), KEY("rope.scaling.alpha"), (double)alpha);
}

static tn_status read_jais(const tn_gguf *file, tn__hparams *h) {
    h->max_alibi = tn_gguf_get_f32(file, KEY("attention.max_alibi_bias"), 0);
    h->attn_scale = 1 / (float)h->head_k;
    return TN_OK;
}

/* A Granite whose multipliers have defaults. */
static tn_status read_minicpm(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(tn__read_granite(file, h));
    h->embd_scale = tn_gguf_get_f32(file, KEY("embedding_scale"), 12);
    h->residual_scale = tn_gguf_get_f32(file, KEY("residual_scale"), 1.4f / sqrtf((float)h->n_layer));
    if (!tn_gguf_find(file, KEY("logit_scale"))) h->logit_scale = 256.0f / (float)h->n_embd;
    return TN_OK;
}

static tn_status read_muse_glimmer(const tn_gguf *file, tn__hparams *h) {
    h->post_norm_eps = 1e-8f;
    h->final_soft_cap = tn_gguf_get_f32(file, KEY("final_logit_softcapping"), 30);
    return tn__read_logit_scale(file, h);
}

/* The layers run several times, each time with cells of their own. */
static tn_status read_nanbeige(const tn_gguf *file, tn__hparams *h) {
    const int32_t loops = tn_gguf_get_i32(file, KEY("num_loops"), 1), stored = h->n_layer;
    if (loops < 1 || loops > 65536 / stored)
        return tn_fail(TN_E_FORMAT, "%s: %s is %d; with %d layers it must be from 1 to %d", tn_gguf_path(file),
                       KEY("num_loops"), loops, stored, 65536 / stored);
    tn__layer_hparams *layers = tn_realloc(h->layers, (size_t)(stored * loops) * sizeof *layers);
    if (!layers) return TN_E_NOMEM;
    h->layers = layers;
    h->n_layer = stored * loops;
    for (int32_t i = stored; i < h->n_layer; i++) layers[i] = layers[i - stored];
    h->bare_loops = tn_gguf_get_bool(file, KEY("skip_loop_final_norm"), false);
    return TN_OK;
}

static tn_status read_plamo3(const tn_gguf *file, tn__hparams *h) {
    const float local = tn_gguf_get_f32(file, KEY("rope.freq_base_swa"), 10000);
    for (int32_t i = 0; i < h->n_layer; i++)
        if (h->layers[i].window && local > 0) h->layers[i].rope_base = local;
    return tn__read_olmo2(file, h);
}

/* The file's width is that of gate and up together. */
static tn_status read_qwen(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].n_ff /= 2;
    return TN_OK;
}

/* ---- Layers ---- */

/* After a layer the embedding is added once more, with a factor of the layer's. */
static tn_tensor *build_talkie_layer(tn__builder *b, int32_t il, tn_tensor *x) {
    tn_tensor *y = tn__build_layer(b, il, x), *skip = tn__build_wanted(b, il, b->embedding, "embedding_wanted");
    return tn_add(b->a, tn__name_node(b, y, "layer_sum"), tn_mul(b->a, skip, b->m->w.layers[il].layer_scale));
}

/* The last norm also ends every loop before the last. */
static tn_tensor *build_nanbeige_layer(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__hparams *h = b->h;
    x = tn__build_layer(b, il, x);
    if (h->bare_loops || (il + 1) % h->n_stored_layers || il + 1 == h->n_layer) return x;
    return tn__build_norm(b, tn__name_node(b, x, "loop"), b->m->w.out_norm, NULL);
}

/* ---- Rows ---- */

#define CLASSIC                                                                                                      \
    (TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_NO_GATE | TN_ARCH_FFN_BIAS | TN_ARCH_OUT_BIAS |                \
     TN_ARCH_QKV_BIAS)

static const tn_arch_key deci_keys[] = {{"attention.head_count", TN_ARCH_HEADS, 1, "1110"},
                                        {"attention.head_count_kv", TN_ARCH_KV_HEADS, 1, "1010"},
                                        {0}};
static const tn_arch_key granite_swa_keys[] = {{"attention.sliding_window_pattern", TN_ARCH_TRUTH, 1, "01"}, {0}};

static const tn_arch_key nanbeige_keys[] = {{"num_loops", TN_ARCH_COUNT, 2, NULL}, {0}};

const tn__arch tn__dense_families[] = {
    /* xIELU, and norms of q and k. */
    {
        .info = {.name = "apertus",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_NO_GATE,
                 .classes = {{"ApertusForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_ELU,
        .read = read_apertus,
    },
    /* A Llama with a squared ReLU instead of gates. */
    {
        .info = {.name = "arcee",
                 .traits = TN_ARCH_NO_GATE,
                 .classes = {{"ArceeForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_RELU,
        .squared_relu = true,
    },
    {
        .info = {.name = "baichuan"},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .read = read_baichuan,
    },
    {
        .info = {.name = "bitnet",
                 .traits = TN_ARCH_SUB_NORMS | TN_ARCH_TIED,
                 .classes = {{"BitNetForCausalLM", 0}, {"BitnetForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .ffn_scales = true,
        .read = read_bitnet,
    },
    /* ALiBi, and a norm after the embedding. */
    {
        .info = {.name = "bloom",
                 .traits = CLASSIC | TN_ARCH_FUSED_QKV | TN_ARCH_NO_ROPE | TN_ARCH_EMBEDDING_NORM | TN_ARCH_TIED,
                 .typical = {.alibi = 8},
                 .classes = {{"BloomForCausalLM", TN_ARCH_HF_GROUPED_QKV}, {"BloomModel", TN_ARCH_HF_GROUPED_QKV}}},
        .activation = TN_OP_GELU,
        .read = read_alibi,
    },
    {
        .info = {.name = "chatglm",
                 .traits = TN_ARCH_QKV_BIAS | TN_ARCH_FUSED_UP,
                 .rotated = 0.5f,
                 .classes = {{"GlmForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
    },
    {
        .info = {.name = "codeshell", .traits = CLASSIC},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GELU,
    },
    /* The matrices for tokens of text; those for tokens of pictures are not used. */
    {
        .info = {.name = "cogvlm", .traits = TN_ARCH_FUSED_QKV, .typical = {.kv_heads = TN_ARCH_KV_SAME}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "attn_qkv.scale rope_freqs.weight vis_attn_qkv.weight vis_attn_output.weight vis_gate.weight "
                  "vis_up.weight vis_down.weight",
    },
    /* Command R with windows; layers without a window have no RoPE. */
    {
        .info = {.name = "cohere2",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NO_FFN_NORM | TN_ARCH_TIED | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .typical = {.scale_output = 0.0625f, .window = 4096},
                 .classes = {{"Cohere2ForCausalLM", 0},
                             {"Cohere2VisionForConditionalGeneration", TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NORMAL,
        .residual = TN__RESIDUAL_PARALLEL,
        .activation = TN_OP_SWIGLU,
        .rope_in_windows = true,
        .ffn_scales = true,
        .read = tn__read_logit_scale,
    },
    /* Llamas whose layers differ in their heads and widths, or lack attention. */
    {
        .info = {.name = "deci", .traits = TN_ARCH_HYBRID, .keys = deci_keys},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .read = read_deci,
    },
    /* Text diffusion. */
    {
        .info = {.name = "dream", .traits = TN_ARCH_DIFFUSION | TN_ARCH_QKV_BIAS, .classes = {{"DreamModel", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "output.bias",
    },
    {
        .info = {.name = "llada", .traits = TN_ARCH_DIFFUSION},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .unused = "attn_output.bias ffn_gate.bias ffn_up.bias ffn_down.bias rope_freqs.weight ffn_gate_inp.weight "
                  "ffn_gate_exps.weight ffn_up_exps.weight ffn_down_exps.weight",
        .ffn_without_matrices = true,
    },
    {
        .info = {.name = "ernie4_5", .classes = {{"Ernie4_5ForCausalLM", 0}, {"Ernie4_5_ForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .unused = "attn_output.bias",
    },
    {
        .info = {.name = "exaone", .classes = {{"ExaoneForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    {
        .info = {.name = "exaone4",
                 .traits = TN_ARCH_NO_PRE_NORMS | TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .classes = {{"Exaone4ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .rope_in_windows = true,
        .read = read_exaone4,
    },
    {
        .info = {.name = "glm4",
                 .traits = TN_ARCH_POST_NORMS | TN_ARCH_FUSED_UP,
                 .rotated = 0.5f,
                 .classes = {{"Glm4ForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .read = read_sections,
    },
    /* Granite with windows and sinks. */
    {
        .info = {.name = "granite_swa",
                 .traits = TN_ARCH_SINKS | TN_ARCH_WINDOW,
                 .experts_sum_to_one = true,
                 .typical = {.scale_output = 8,
                             .scale_residual = 0.25f,
                             .scale_embedding = 12,
                             .scale_attention = -1,
                             .window = 128},
                 .keys = granite_swa_keys},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = read_granite_swa,
    },
    /* Norms of q and k after RoPE. */
    {
        .info = {.name = "hunyuan-dense", .traits = TN_ARCH_QK_NORM, .classes = {{"HunYuanDenseV1ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .norm_qk_after_rope = true,
        .read = read_hunyuan,
    },
    {
        .info = {.name = "hunyuan_vl", .traits = TN_ARCH_QK_NORM},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .norm_qk_after_rope = true,
        .read = read_hunyuan,
    },
    /* ALiBi; attention is scaled by 1/head instead of 1/√head. */
    {
        .info = {.name = "jais",
                 .traits = (CLASSIC & ~TN_ARCH_NO_GATE) | TN_ARCH_FUSED_QKV | TN_ARCH_NO_ROPE,
                 .typical = {.alibi = 8}},
        .activation = TN_OP_SWIGLU,
        .read = read_jais,
    },
    {
        .info = {.name = "jais2", .traits = CLASSIC, .classes = {{"Jais2ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_RELU,
        .squared_relu = true,
    },
    {
        .info = {.name = "maincoder", .traits = TN_ARCH_QK_NORM},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .norm_qk_after_rope = true,
    },
    {
        .info = {.name = "minicpm",
                 .experts_sum_to_one = true,
                 .typical = {.scale_output = 8, .scale_residual = 0.25f, .scale_embedding = 12},
                 .classes = {{"MiniCPMForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = read_minicpm,
    },
    /* A gate on what attention gives; the embedding is normalised. */
    {
        .info = {.name = "muse-glimmer",
                 .traits = TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM | TN_ARCH_ATTN_GATE | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .typical = {.scale_output = 0.5f, .window = 512}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .bare_embedding_norm = true,
        .rope_in_windows = true,
        .unused = "attn_gate.scale",
        .read = read_muse_glimmer,
    },
    {
        .info = {.name = "nanbeige", .keys = nanbeige_keys},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .ffn_scales = true,
        .read = read_nanbeige,
        .layer = build_nanbeige_layer,
    },
    {
        .info = {.name = "nemotron",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_NO_GATE,
                 .rotated = 0.5f,
                 .classes = {{"NemotronForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_RELU,
        .squared_relu = true,
    },
    {
        .info = {.name = "openelm", .traits = TN_ARCH_FUSED_QKV | TN_ARCH_QK_NORM | TN_ARCH_TIED},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "attn_qkv.scale",
    },
    {
        .info = {.name = "orion",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS,
                 .classes = {{"OrionForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    {
        .info = {.name = "paddleocr"},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    {
        .info = {.name = "pangu-embedded", .traits = TN_ARCH_QKV_BIAS | TN_ARCH_OUT_BIAS},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "rope_freqs.weight",
    },
    {
        .info = {.name = "plamo", .traits = TN_ARCH_NO_FFN_NORM},
        .rope = TN_ROPE_NEOX,
        .residual = TN__RESIDUAL_PARALLEL,
        .activation = TN_OP_SWIGLU,
    },
    {
        .info = {.name = "plamo3",
                 .traits =
                     TN_ARCH_FUSED_QKV | TN_ARCH_QK_NORM | TN_ARCH_POST_NORMS | TN_ARCH_FUSED_UP | TN_ARCH_WINDOW,
                 .window_period = 8,
                 .typical = {.window = 2048}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = read_plamo3,
    },
    /* The language model of a speech model. */
    {
        .info = {.name = "pockettts",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_NO_GATE | TN_ARCH_TIED},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_GELU,
    },
    {
        .info = {.name = "qwen", .traits = TN_ARCH_FUSED_QKV | TN_ARCH_QKV_BIAS},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = read_qwen,
    },
    {
        .info = {.name = "qwen2vl",
                 .traits = TN_ARCH_QKV_BIAS,
                 .classes = {{"Qwen2VLForConditionalGeneration", TN_ARCH_HF_NESTED},
                             {"Qwen2_5_VLForConditionalGeneration", TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .unused = "output.bias",
    },
    {
        .info = {.name = "qwen3vl",
                 .traits = TN_ARCH_QK_NORM,
                 .classes = {{"Qwen3VLForConditionalGeneration", TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    {
        .info = {.name = "refact", .traits = TN_ARCH_NO_ROPE, .typical = {.alibi = 8, .kv_heads = 1}},
        .activation = TN_OP_SWIGLU,
        .unused = "attn_output.bias ffn_gate.bias ffn_up.bias ffn_down.bias rope_freqs.weight ffn_gate_inp.weight "
                  "ffn_gate_exps.weight ffn_up_exps.weight ffn_down_exps.weight",
        .ffn_without_matrices = true,
        .read = read_alibi,
    },
    {
        .info = {.name = "seed_oss",
                 .traits = TN_ARCH_QKV_BIAS | TN_ARCH_RENAMED_FFN_NORM,
                 .classes = {{"SeedOssForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    /* Norms without weights, and the embedding added after every layer. */
    {
        .info = {.name = "talkie",
                 .traits = TN_ARCH_BARE_NORMS | TN_ARCH_Q_GAIN | TN_ARCH_LAYER_SCALE,
                 .typical = {.scale_output = 0.5f}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .norm_qk_after_rope = true,
        .bare_embedding_norm = true,
        .ffn_scales = true,
        .unused = "ffn_gate.scale ffn_up.scale",
        .read = tn__read_logit_scale,
        .layer = build_talkie_layer,
        .layers_add_embedding = true,
    },
    {
        .info = {.name = "xverse", .classes = {{"XverseForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
    },
    {.info = {.name = NULL}},
};

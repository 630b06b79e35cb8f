/* Mixtures of experts with ordinary attention. */
#include "llm/arch/families.h"

#include "llm/build/builder.h"

#include <math.h>
#include <stdio.h>

#define QKV_VECTORS "attn_q.bias attn_k.bias attn_v.bias attn_q.scale attn_k.scale attn_v.scale"

/* ---- Keys ---- */

/* Layers whose experts the keys do not say: those with a router. A file without tensors is about to be written. */
static void find_routers(const tn_gguf *file, tn__hparams *h) {
    char name[64];
    for (int32_t i = 0; i < h->n_layer && tn_gguf_tensor_count(file); i++) {
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        h->layers[i].moe = h->n_expert > 0 && tn_gguf_find_tensor(file, name);
    }
}

/* Every fourth layer has no RoPE; where the file lists the layers with windows, those without. */
static tn_status read_afmoe(const tn_gguf *file, tn__hparams *h) {
    const bool listed = tn_gguf_get_arr(file, tn__arch_key(file, "attention.sliding_window_pattern"));
    h->embd_scale = tn_gguf_get_f32(file, tn__arch_key(file, "embedding_scale"), sqrtf((float)h->n_embd));
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].no_rope = listed ? !h->layers[i].window : i % 4 == 3;
    return TN_OK;
}

/* feed_forward_length is the size of an expert; the dense part is as wide as the model. */
static tn_status read_arctic(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].n_ff = h->n_embd;
    return TN_OK;
}

static tn_status read_bailing(const tn_gguf *file, tn__hparams *h) {
    find_routers(file, h);
    return TN_OK;
}

/* The length of shared experts is that of one of them. */
static tn_status read_bailing2(const tn_gguf *file, tn__hparams *h) {
    const int64_t count = tn_gguf_get_i32(file, tn__arch_key(file, "expert_shared_count"), 0);
    const int64_t one = tn_gguf_get_i32(file, tn__arch_key(file, "expert_shared_feed_forward_length"), 0);
    if (count > 0 && one > 0 && count * one <= 1 << 24) h->n_ff_shared = (int32_t)(count * one);
    return TN_OK;
}

/* Files of models with RMS norms say so by their epsilon. Leading dense layers have RoPE, of the others those with a
 * window. Experts and shared experts are averaged. */
static tn_status read_cohere2moe(const tn_gguf *file, tn__hparams *h) {
    const int32_t n_dense = tn_gguf_get_i32(file, tn__arch_key(file, "leading_dense_block_count"), 0);
    const float rms = tn_gguf_get_f32(file, tn__arch_key(file, "attention.layer_norm_rms_epsilon"), 0);
    if (rms > 0 && isfinite(rms)) h->layer_norm = false, h->norm_eps = rms;
    h->logit_scale = tn_gguf_get_f32(file, tn__arch_key(file, "logit_scale"), 0);
    h->experts_sum_scale = 0.5f;
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].no_rope = !h->layers[i].window && i >= n_dense;
    return TN_OK;
}

static tn_status read_dbrx(const tn_gguf *file, tn__hparams *h) {
    h->clamp_qkv = tn_gguf_get_f32(file, tn__arch_key(file, "attention.clamp_kqv"), 0);
    return TN_OK;
}

/* Without their keys the numbers are those of Grok 1. */
static tn_status read_grok(const tn_gguf *file, tn__hparams *h) {
    h->logit_scale = tn_gguf_get_f32(file, tn__arch_key(file, "logit_scale"), 0.5773502691896257f);
    h->embd_scale = tn_gguf_get_f32(file, tn__arch_key(file, "embedding_scale"), 78.38367176906169f);
    h->attn_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.output_scale"), 0.08838834764831845f);
    h->attn_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "attn_logit_softcapping"), 30);
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 0);
    h->yarn_beta_fast = tn_gguf_get_f32(file, tn__arch_key(file, "rope.scaling.yarn_beta_fast"), 8);
    h->experts_sum_scale = sqrtf(0.5f);
    return TN_OK;
}

static tn_status read_grovemoe(const tn_gguf *file, tn__hparams *h) {
    h->experts_per_group = tn_gguf_get_i32(file, tn__arch_key(file, "experts_per_group"), 1);
    h->expert_group_scale = tn_gguf_get_f32(file, tn__arch_key(file, "expert_group_scale"), 1);
    h->n_ff_chunk = tn_gguf_get_i32(file, tn__arch_key(file, "expert_chunk_feed_forward_length"), h->head_k);
    if (h->experts_per_group <= 0 || h->n_expert % h->experts_per_group || h->n_ff_chunk <= 0)
        return tn_fail(TN_E_FORMAT, "%s: %d experts in groups of %d with small experts of size %d are not possible",
                       tn_gguf_path(file), h->n_expert, h->experts_per_group, h->n_ff_chunk);
    return TN_OK;
}

static tn_status read_hunyuan_moe(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    if (h->n_ff_shared <= 0) h->n_ff_shared = h->layers[0].n_ff;
    return TN_OK;
}

static tn_status read_hy_v3(const tn_gguf *file, tn__hparams *h) {
    if (h->n_ff_shared <= 0) h->n_ff_shared = h->n_ff_expert;
    find_routers(file, h);
    return TN_OK;
}

/* RoPE of layers with windows is not scaled, and may rotate another share of a head. */
static tn_status read_local_rope(const tn_gguf *file, tn__hparams *h) {
    const int32_t n_rot = tn_gguf_get_i32(file, tn__arch_key(file, "rope.dimension_count_swa"), h->n_rot);
    if (n_rot <= 0 || n_rot > h->head_k || n_rot % 2)
        return tn_fail(TN_E_FORMAT, "%s: %s is %d; heads have %d elements", tn_gguf_path(file),
                       tn__arch_key(file, "rope.dimension_count_swa"), n_rot, h->head_k);
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        if (!l->window) continue;
        l->plain_rope = true;
        l->rope_scale = 1;
        l->n_rot = n_rot;
    }
    return TN_OK;
}

static tn_status read_laguna(const tn_gguf *file, tn__hparams *h) {
    if (h->n_ff_shared <= 0) h->n_ff_shared = h->n_ff_expert;
    return read_local_rope(file, h);
}

/* Layers with RoPE see chunks of positions, and normalise q and k unless there are 128 experts. In the others, every
 * fourth, queries grow with their position. A window of 0 says that no layer is like that. */
static tn_status read_llama4(const tn_gguf *file, tn__hparams *h) {
    enum { EVERY = 4, CHUNK = 8192 };
    const int32_t chunk = tn_gguf_get_i32(file, tn__arch_key(file, "attention.chunk_size"), CHUNK);
    if (chunk <= 0)
        return tn_fail(TN_E_FORMAT, "%s: %s is %d", tn_gguf_path(file), tn__arch_key(file, "attention.chunk_size"),
                       chunk);
    if (h->n_ff_shared <= 0) h->n_ff_shared = h->n_ff_expert;
    h->bare_qk_norm = tn_gguf_get_bool(file, tn__arch_key(file, "attention.qk_norm"), h->n_expert != 128);
    if (tn_gguf_get_i32(file, tn__arch_key(file, "attention.sliding_window"), -1) == 0) return TN_OK;
    h->temperature_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.temperature_scale"), 0.1f);
    h->temperature_length = tn_gguf_get_i32(file, tn__arch_key(file, "attention.temperature_length"), CHUNK);
    if (h->temperature_length <= 0) h->temperature_length = CHUNK;
    h->temperature_offset = 1;
    h->temperature_without_rope = true;
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        l->no_rope = i % EVERY == EVERY - 1;
        /* A chunk has no positions further apart than its length: the window frees the cells of earlier chunks. */
        l->window = l->chunk = l->window ? chunk : 0;
    }
    return TN_OK;
}

static tn_status read_mimo2(const tn_gguf *file, tn__hparams *h) {
    h->attn_out_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.value_scale"), 0);
    find_routers(file, h);
    return TN_OK;
}

static tn_status read_phimoe(const tn_gguf *file, tn__hparams *h) {
    h->norm_eps = tn_gguf_get_f32(file, tn__arch_key(file, "attention.layer_norm_rms_epsilon"), h->norm_eps);
    if (!(h->norm_eps >= 0) || !isfinite(h->norm_eps)) h->norm_eps = 1e-5f;
    if (h->n_expert_used != 2)
        return tn_fail(TN_E_UNSUPPORTED, "%s: %d experts are used; SparseMixer chooses 2", tn_gguf_path(file),
                       h->n_expert_used);
    h->gating = TN__GATING_SPARSE_MIXER;
    return TN_OK;
}

/* A file with a window has windows of 4096 positions; then every fourth layer, from the first on, has no RoPE. */
static tn_status read_smallthinker(const tn_gguf *file, tn__hparams *h) {
    enum { EVERY = 4, WINDOW = 4096 };
    if (tn_gguf_get_i32(file, tn__arch_key(file, "attention.sliding_window"), 0) <= 0) return TN_OK;
    for (int32_t i = 0; i < h->n_layer; i++) {
        h->layers[i].no_rope = i % EVERY == 0;
        if (h->layers[i].window) h->layers[i].window = WINDOW;
    }
    return TN_OK;
}

/* RoPE rotates half as much of a head where there is no window, and has factors only there. */
static tn_status read_step35(const tn_gguf *file, tn__hparams *h) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        l->no_rope_factors = l->window > 0;
        if (!l->window) l->n_rot = h->n_rot / 2 & ~1;
    }
    find_routers(file, h);
    return TN_OK;
}

/* ---- Tensors with other meanings ---- */

static void adjust_dbrx(const tn__hparams *h, tn__weights *w) {
    for (int32_t i = 0; i < h->n_layer; i++) w->layers[i].ffn_norm = w->layers[i].attn_out_norm;
}

/* The keys decide whether a layer has experts, whatever tensors the file has. */
static void adjust_ernie(const tn__hparams *h, tn__weights *w) {
    for (int32_t i = 0; i < h->n_layer; i++)
        if (!h->layers[i].moe) w->layers[i].router = NULL;
}

static void adjust_grok(const tn__hparams *h, tn__weights *w) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer *l = &w->layers[i];
        l->attn_post_norm = l->attn_out_norm;
        if (l->layer_out_norm) l->ffn_post_norm = l->layer_out_norm;
    }
}

static void adjust_hy_v3(const tn__hparams *h, tn__weights *w) {
    for (int32_t i = 0; i < h->n_layer; i++)
        if (w->layers[i].router_bias_bare) w->layers[i].router_bias = w->layers[i].router_bias_bare;
}

/* ---- Layers ---- */

/* Attention and a dense part, one after the other, and beside them the experts, which read the same as attention. */
static tn_tensor *build_arctic_layer(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_tensor *attn_in = tn__name_node(b, tn__build_norm(b, x, l->attn_norm, NULL), "attn_norm");
    tn_tensor *attn = tn__build_wanted(b, il, tn__build_mixer(b, il, attn_in), "attn_wanted");
    x = tn__build_wanted(b, il, x, "x_wanted");
    tn_tensor *sum = tn__name_node(b, tn_add(b->a, attn, x), "attn_sum");
    tn_tensor *ffn_in = tn__name_node(b, tn__build_norm(b, sum, l->ffn_norm, NULL), "ffn_norm");
    tn__part_result dense = tn__build_dense_part(b, l, ffn_in);
    tn_tensor *experts_in = tn__name_node(b, tn__build_norm(b, x, l->exps_norm, NULL), "experts_norm");
    tn__part_result experts = tn__build_experts_part(b, il, experts_in);
    if (dense.partial && experts.partial) {
        dense = tn__add_results(b, dense, experts, "ffn_out");
        return tn_add(b->a, tn__sum_result(b, dense, "ffn_both"), sum);
    }
    sum = tn__name_node(b, tn_add(b->a, tn__sum_result(b, dense, "ffn_out"), sum), "ffn_sum");
    return tn_add(b->a, tn__sum_result(b, experts, "ffn_mix"), sum);
}

/* ---- The list ---- */

static const tn_arch_key one_dense[] = {{"leading_dense_block_count", TN_ARCH_COUNT, 1, NULL}, {0}};
static const tn_arch_key groups_and_dense[] = {{"leading_dense_block_count", TN_ARCH_COUNT, 1, NULL},
                                               {"expert_group_count", TN_ARCH_COUNT, 2, NULL},
                                               {"expert_group_used_count", TN_ARCH_COUNT, 1, NULL},
                                               {0}};
static const tn_arch_key half_dense[] = {{"interleave_moe_layer_step", TN_ARCH_COUNT, 2, NULL}, {0}};

static const tn_arch_key groups_of_two[] = {
    {"experts_per_group", TN_ARCH_COUNT, 2, NULL}, {"expert_group_scale", TN_ARCH_REAL, 0.5, NULL}, {0}};

const tn__arch tn__moe_families[] = {
    /* Norms before and after each part, a gate on the output of attention. */
    {
        .info = {.name = "afmoe",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_POST_NORMS | TN_ARCH_ATTN_GATE | TN_ARCH_EXPERTS |
                           TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .typical = {.window = 512},
                 .keys = one_dense,
                 .classes = {{"AfmoeForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
        .read = read_afmoe,
    },
    {
        .info = {.name = "arctic",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_EXPERTS_NORM | TN_ARCH_DENSE_TOO,
                 .one_ffn_key = true,
                 .experts_sum_to_one = true},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .read = read_arctic,
        .layer = build_arctic_layer,
    },
    {
        .info = {.name = "bailingmoe", .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .read = read_bailing,
    },
    {
        .info = {.name = "bailingmoe2",
                 .traits = TN_ARCH_FUSED_QKV | TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT |
                           TN_ARCH_ROUTER_BIAS,
                 .keys = groups_and_dense},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
        .read = read_bailing2,
    },
    {
        .info = {.name = "cohere2moe",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NO_FFN_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT |
                           TN_ARCH_WINDOW,
                 .window_period = 4,
                 .full_first = true,
                 .typical = {.window = 512, .scale_output = 0.25f},
                 .keys = one_dense,
                 .classes = {{"Cohere2MoeForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .residual = TN__RESIDUAL_PARALLEL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
        .gating = TN__GATING_SIGMOID,
        .read = read_cohere2moe,
    },
    {
        .info = {.name = "dbrx",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_FUSED_QKV | TN_ARCH_FFN_NORM_OUT | TN_ARCH_EXPERTS,
                 .one_ffn_key = true,
                 .experts_sum_to_one = true},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = read_dbrx,
        .adjust = adjust_dbrx,
    },
    /* DeepSeekMoE, before latent attention. */
    {
        .info = {.name = "deepseek", .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT, .keys = one_dense},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
    },
    {
        .info = {.name = "dots1",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS,
                 .keys = one_dense,
                 .classes = {{"Dots1ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
    },
    {
        .info = {.name = "ernie4_5-moe",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS,
                 .experts_sum_to_one = true,
                 .keys = half_dense,
                 .classes = {{"Ernie4_5_MoeForCausalLM", 0}, {"Ernie4_5MoeForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_without_matrices = true,
        .unused = "attn_output.bias",
        .adjust = adjust_ernie,
    },
    {
        .info = {.name = "exaone-moe",
                 .traits =
                     TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .default_window = 128,
                 .typical = {.window = 128},
                 .keys = one_dense,
                 .classes = {{"ExaoneMoeForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .rope_in_windows = true,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
    },
    {
        .info = {.name = "glm4moe",
                 .traits = TN_ARCH_RENAMED_FFN_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS |
                           TN_ARCH_QKV_BIAS,
                 .rotated = 0.5f,
                 .keys = one_dense,
                 .classes = {{"Glm4MoeForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
    },
    /* Norms after each part too; Grok 2 has a dense part beside the experts. */
    {
        .info = {.name = "grok",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_POST_NORMS_OUT | TN_ARCH_DENSE_TOO,
                 .one_ffn_key = true,
                 .experts_sum_to_one = true},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GEGLU,
        .read = read_grok,
        .adjust = adjust_grok,
    },
    {
        .info = {.name = "grovemoe",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_CHUNK_EXPERTS,
                 .experts_sum_to_one = true,
                 .keys = groups_of_two},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = read_grovemoe,
    },
    {
        .info = {.name = "hunyuan-moe",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT,
                 .experts_sum_to_one = true,
                 .classes = {{"HunYuanMoEV1ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .norm_qk_after_rope = true,
        .read = read_hunyuan_moe,
    },
    {
        .info = {.name = "hy_v3",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
        .gating = TN__GATING_SIGMOID,
        .read = read_hy_v3,
        .adjust = adjust_hy_v3,
    },
    {
        .info = {.name = "laguna",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_ATTN_GATE | TN_ARCH_HEAD_GATE | TN_ARCH_EXPERTS |
                           TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .full_first = true,
                 .typical = {.window = 512},
                 .keys = one_dense},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
        .softplus_gate = true,
        .read = read_laguna,
    },
    {
        .info = {.name = "llada-moe", .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_DIFFUSION},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    {
        .info = {.name = "rnd1",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_DIFFUSION,
                 .experts_sum_to_one = true},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    {
        .info = {.name = "llama4",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .default_window = 8192,
                 .keys = half_dense,
                 .classes = {{"Llama4ForCausalLM", TN_ARCH_HF_TRANSPOSED_EXPERTS},
                             {"Llama4ForConditionalGeneration", TN_ARCH_HF_TRANSPOSED_EXPERTS | TN_ARCH_HF_NESTED}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
        .weights_before = true,
        .read = read_llama4,
    },
    {
        .info = {.name = "mellum",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .experts_sum_to_one = true,
                 .typical = {.window = 512}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .ffn_scales = true,
        .read = read_local_rope,
    },
    /* Sinks in some layers; heads of k and v may have different sizes. */
    {
        .info = {.name = "mimo2",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_ROUTER_BIAS | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .experts_sum_to_one = true,
                 .typical = {.window = 128}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
        .unused = QKV_VECTORS,
        .read = read_mimo2,
    },
    {
        .info = {.name = "minimax-m2",
                 .traits = TN_ARCH_QK_NORM_WIDE | TN_ARCH_EXPERTS | TN_ARCH_ROUTER_BIAS,
                 .one_ffn_key = true,
                 .experts_sum_to_one = true,
                 .classes = {{"MiniMaxM2ForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .gating = TN__GATING_SIGMOID,
        .unused = QKV_VECTORS,
    },
    /* Experts by SparseMixer; layer norms, whose epsilon has the key of RMS norms. */
    {
        .info = {.name = "phimoe",
                 .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_EXPERTS | TN_ARCH_WINDOW,
                 .one_ffn_key = true,
                 .classes = {{"PhimoeForCausalLM", 0}, {"PhiMoEForCausalLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .read = read_phimoe,
    },
    {
        .info = {.name = "qwen3vlmoe", .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS, .experts_sum_to_one = true},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    /* The router reads the state before attention. */
    {
        .info = {.name = "smallthinker",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .full_first = true,
                 .experts_sum_to_one = true,
                 .typical = {.window = 4096}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_REGLU,
        .gating = TN__GATING_SIGMOID,
        .router_reads_layer = true,
        .read = read_smallthinker,
    },
    {
        .info = {.name = "step35",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_ATTN_GATE | TN_ARCH_HEAD_GATE | TN_ARCH_EXPERTS |
                           TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS | TN_ARCH_WINDOW,
                 .window_period = 4,
                 .full_first = true,
                 .typical = {.window = 512}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
        .unused = QKV_VECTORS,
        .read = read_step35,
    },
    {.info = {.name = NULL}},
};

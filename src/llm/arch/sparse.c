/* Architectures with sparse attention: an indexer selects the positions that queries attend to. */
#include "llm/arch/families.h"
#include "llm/parts/mixers.h"

/* ---- Keys ---- */

/* Latent attention with an indexer in every layer, or in those that "indexer.types" lists; others use the selection
 * of an earlier layer. */
static tn_status read_latent_indexers(const tn_gguf *file, tn__hparams *h, tn_rope_mode rope) {
    TN_TRY(tn__read_indexer(file, h));
    TN_TRY(tn__read_latent(file, h));
    h->index.rope = rope;
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        if (l->window) continue;
        l->indexer = tn__flag_at(file, "attention.indexer.types", i, true) ? TN__INDEXER_OWN : TN__INDEXER_EARLIER;
        if (l->mixer != &tn__latent_attention || h->q_rank < 1)
            return tn_fail(TN_E_FORMAT, "%s: layer %d: an indexer needs latent attention with a rank of queries",
                           tn_gguf_path(file), i);
    }
    return tn__check_indexers(file, h);
}
static tn_status read_deepseek32(const tn_gguf *file, tn__hparams *h) {
    return read_latent_indexers(file, h, TN_ROPE_NEOX);
}

/* Models with contexts of a million tokens whose files do not list the layers with indexers have one in the first
 * three and in every fourth after them. */
enum { LONG_CONTEXT = 1 << 20 };
static tn_status read_glm_dsa(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(read_latent_indexers(file, h, TN_ROPE_NORMAL));
    const bool listed = tn_gguf_find(file, tn__arch_key(file, "attention.indexer.types"));
    for (int32_t i = 3; i < h->n_layer && !listed && h->n_ctx_train >= LONG_CONTEXT; i++)
        if (i % 4 != 2) h->layers[i].indexer = TN__INDEXER_EARLIER;
    return TN_OK;
}

/* Layers with a dense feed-forward part attend to everything. */
static tn_status read_minimax_m3(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(tn__read_indexer(file, h));
    h->index.rope = h->rope;
    for (int32_t i = 0; i < h->n_layer; i++) {
        tn__layer_hparams *l = &h->layers[i];
        if (!l->moe) continue;
        l->indexer = TN__INDEXER_OWN;
        l->mixer = &tn__block_sparse_attention;
        if (h->index.heads != l->n_head_kv)
            return tn_fail(TN_E_FORMAT, "%s: layer %d has %d key/value heads, its indexer %d heads",
                           tn_gguf_path(file), i, l->n_head_kv, h->index.heads);
    }
    return TN_OK;
}

#define LATENT_KEYS                                                                                                  \
    {"attention.kv_lora_rank", TN_ARCH_HEAD, 2, NULL}, {"attention.q_lora_rank", TN_ARCH_WIDTH, 0.5, NULL},          \
        {"attention.key_length", TN_ARCH_HEAD, 2.5, NULL}, {"attention.value_length", TN_ARCH_HEAD, 2, NULL},        \
        {"attention.key_length_mla", TN_ARCH_HEAD, 1.5, NULL},                                                       \
        {"attention.value_length_mla", TN_ARCH_HEAD, 1, NULL}, {"attention.head_count_kv", TN_ARCH_COUNT, 1, NULL},  \
        {"rope.dimension_count", TN_ARCH_HEAD, 0.5, NULL}, {"attention.indexer.head_count", TN_ARCH_COUNT, 3, NULL}, \
        {"attention.indexer.key_length", TN_ARCH_HEAD, 1, NULL}, {                                                   \
        "attention.indexer.top_k", TN_ARCH_COUNT, 8, NULL                                                            \
    }

static const tn_arch_key deepseek32_keys[] = {LATENT_KEYS, {0}};
static const tn_arch_key glm_dsa_keys[] = {LATENT_KEYS, {"attention.indexer.types", TN_ARCH_COUNT, 1, "10"}, {0}};
static const tn_arch_key dots3note_keys[] = {LATENT_KEYS,
                                             {"attention.kv_lora_rank_swa", TN_ARCH_HEAD, 1, NULL},
                                             {"attention.key_length_swa", TN_ARCH_HEAD, 1.5, NULL},
                                             {"attention.value_length_swa", TN_ARCH_HEAD, 1, NULL},
                                             {"attention.key_length_mla_swa", TN_ARCH_HEAD, 1, NULL},
                                             {"attention.value_length_mla_swa", TN_ARCH_HEAD, 0.5, NULL},
                                             {"attention.sliding_window_pattern", TN_ARCH_COUNT, 1, "01"},
                                             {0}};
static const tn_arch_key minimax_m3_keys[] = {{"attention.indexer.head_count", TN_ARCH_KV_HEADS, 1, NULL},
                                              {"attention.indexer.key_length", TN_ARCH_HEAD, 1, NULL},
                                              {"attention.indexer.top_k", TN_ARCH_COUNT, 3, NULL},
                                              {"attention.indexer.block_size", TN_ARCH_COUNT, 4, NULL},
                                              {"attention.indexer.local_blocks", TN_ARCH_COUNT, 1, NULL},
                                              {"leading_dense_block_count", TN_ARCH_COUNT, 1, NULL},
                                              {0}};

const tn__arch tn__sparse_families[] = {
    /* DeepSeek V3.2. */
    {
        .info = {.name = "deepseek32",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS,
                 .keys = deepseek32_keys,
                 .classes = {{"DeepseekV32ForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
        .gating = TN__GATING_SIGMOID,
        .read = read_deepseek32,
    },
    /* GLM 5. */
    {
        .info = {.name = "glm-dsa",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS,
                 .fewest_layers = 2,
                 .keys = glm_dsa_keys,
                 .classes = {{"GlmMoeDsaForCausalLM", 0}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
        .gating = TN__GATING_SIGMOID,
        .read = read_glm_dsa,
    },
    /* Latent attention with other sizes in the layers with a window, which have no indexer; a gate for every head. */
    {
        .info = {.name = "dots3note",
                 .traits = TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS | TN_ARCH_WINDOW |
                           TN_ARCH_HEAD_GATE | TN_ARCH_GATED_LATENT | TN_ARCH_LATENT_K_NORM,
                 .fewest_layers = 2,
                 .typical = {.window = 16},
                 .keys = dots3note_keys},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .either_ffn = true,
        .ffn_scales = true,
        .gating = TN__GATING_SIGMOID,
        .unused = "attn_gate.scale",
        .read = read_deepseek32,
    },
    /* Block-sparse attention; leading layers are dense in every way. */
    {
        .info = {.name = "minimax-m3",
                 .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_ROUTER_BIAS,
                 .fewest_layers = 2,
                 .keys = minimax_m3_keys},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU_OAI,
        .either_ffn = true,
        .gating = TN__GATING_SIGMOID,
        .read = read_minimax_m3,
    },
    {.info = {.name = NULL}},
};

/* Gemma 1, 2 and 3: scaled embeddings and GeGLU; from 2 on norms after each part and windows in most layers. */
#include "llm/arch/arch.h"

#include <math.h>

static tn_status read_gemma(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    h->embd_scale = sqrtf((float)h->n_embd);
    return TN_OK;
}

/* The file's value. Without one, the largest model of each family divides by √(width per head) instead of √(size of a
 * head); its number of layers tells it apart. */
static float query_scale(const tn_gguf *file, const tn__hparams *h, int32_t layers_of_largest) {
    float scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.scale"), 0);
    if (scale > 0) return scale;
    return h->n_layer == layers_of_largest ? 1 / sqrtf((float)h->n_embd / (float)h->layers[0].n_head) : 0;
}

static tn_status read_gemma2(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(read_gemma(file, h));
    h->attn_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "attn_logit_softcapping"), 50);
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 30);
    h->attn_scale = query_scale(file, h, 46);
    return TN_OK;
}

static tn_status read_gemma3(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(read_gemma(file, h));
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 0);
    h->attn_scale = query_scale(file, h, 62);
    float local = tn_gguf_get_f32(file, tn__arch_key(file, "rope.freq_base_swa"), 10000);
    for (int32_t i = 0; i < h->n_layer; i++) {
        if (!h->layers[i].window) continue;
        h->layers[i].rope_base = local;
        h->layers[i].rope_scale = 1;
    }
    return TN_OK;
}

#define GEMMA .rope = TN_ROPE_NEOX, .activation = TN_OP_GEGLU, .no_ffn_scales = true

const tn__arch tn__arch_gemma = {
    .info = {.name = "gemma", .traits = TN_ARCH_TIED, .classes = {{"GemmaForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE}}},
    GEMMA,
    .read = read_gemma,
};
const tn__arch tn__arch_gemma2 = {
    .info = {.name = "gemma2",
             .traits = TN_ARCH_TIED | TN_ARCH_POST_NORMS | TN_ARCH_WINDOW,
             .window_period = 2,
             .default_window = 4096,
             .typical = {.window = 512, .softcap_attention = 50, .softcap_output = 30},
             .classes = {{"Gemma2ForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE}}},
    GEMMA,
    .read = read_gemma2,
};
const tn__arch tn__arch_gemma3 = {
    .info = {.name = "gemma3",
             .traits = TN_ARCH_TIED | TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM | TN_ARCH_WINDOW,
             .window_period = 6,
             .typical = {.window = 512},
             .classes = {{"Gemma3ForCausalLM", TN_ARCH_HF_NORM_PLUS_ONE},
                         {"Gemma3ForConditionalGeneration", TN_ARCH_HF_NORM_PLUS_ONE | TN_ARCH_HF_NESTED}}},
    GEMMA,
    .read = read_gemma3,
};

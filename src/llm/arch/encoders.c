/* Encoders for embeddings and ranking, besides BERT and Nomic's. */
#include "llm/arch/families.h"

#include <math.h>
#include <string.h>

#define KEY(name) tn__arch_key(file, name)

static tn_status read_modern_bert(const tn_gguf *file, tn__hparams *h) {
    static const struct {
        const char *name;
        tn_op op;
    } gates[] = {{"gelu", TN_OP_GEGLU_ERF}, {"gelu_pytorch_tanh", TN_OP_GEGLU},
                 {"gelu_new", TN_OP_GEGLU}, {"silu", TN_OP_SWIGLU},
                 {"swish", TN_OP_SWIGLU},   {"relu", TN_OP_REGLU}};
    const char *name = tn_gguf_get_cstr(file, KEY("hidden_activation"), "gelu");
    /* Files that do not say it are of models that classify the mean. */
    h->classifies_mean = tn_gguf_get_u32(file, KEY("classifier.pooling_type"), TN_POOLING_MEAN) != TN_POOLING_CLS;
    for (size_t i = 0; i < sizeof gates / sizeof *gates; i++)
        if (strcmp(gates[i].name, name) == 0) {
            h->activation = gates[i].op;
            return TN_OK;
        }
    return tn_fail(TN_E_UNSUPPORTED, "%s: unknown activation '%s'", tn_gguf_path(file), name);
}

/* Experts in every n-th layer, beginning with the second. */
static tn_status read_nomic_bert_moe(const tn_gguf *file, tn__hparams *h) {
    const int32_t every = tn_gguf_get_i32(file, KEY("moe_every_n_layers"), 0);
    for (int32_t i = 0; i < h->n_layer; i++) h->layers[i].moe = every > 0 && i % every == 1 % every;
    return TN_OK;
}

static tn_status read_jina_v2(const tn_gguf *file, tn__hparams *h) {
    h->max_alibi = tn_gguf_get_f32(file, KEY("attention.max_alibi_bias"), 8);
    return TN_OK;
}

/* T5: gates in all versions after the first, which has ReLU alone. */
static tn_status read_t5_encoder(const tn_gguf *file, tn__hparams *h) {
    const char *activation = tn_gguf_get_cstr(file, KEY("hidden_activation"), "");
    h->n_rel_buckets = tn_gguf_get_i32(file, KEY("attention.relative_buckets_count"), 32);
    if (h->n_rel_buckets < 4 || h->n_rel_buckets > 128 || h->n_rel_buckets % 4)
        return tn_fail(TN_E_FORMAT, "%s: %s is %d", tn_gguf_path(file), KEY("attention.relative_buckets_count"),
                       h->n_rel_buckets);
    const bool has_up = tn_gguf_find_tensor(file, "enc.blk.0.ffn_up.weight") != NULL;
    h->plain_ffn =
        strcmp(activation, "relu") == 0 || (has_up && !tn_gguf_find_tensor(file, "enc.blk.0.ffn_gate.weight"));
    if (h->plain_ffn) h->activation = TN_OP_RELU;
    h->attn_scale = 1;
    return TN_OK;
}

static void name_t5_tensors(const tn__hparams *h, tn__weights *w) {
    w->out_norm = w->enc_out_norm;
    for (int32_t i = 0; i < h->n_layer; i++) {
        w->layers[i].wo = w->layers[i].attn_o;
        if (!w->layers[i].rel_bias) w->layers[i].rel_bias = w->layers[0].rel_bias;
    }
}

static void name_last_norm(const tn__hparams *h, tn__weights *w) {
    (void)h;
    if (!w->out_norm) w->out_norm = w->enc_out_norm;
}

#define CLASSIC                                                                                                      \
    (TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_NO_GATE | TN_ARCH_FFN_BIAS | TN_ARCH_OUT_BIAS |                \
     TN_ARCH_QKV_BIAS)

static const tn_arch_key nomic_moe_keys[] = {{"moe_every_n_layers", TN_ARCH_COUNT, 2, NULL}, {0}};

const tn__arch tn__encoder_families[] = {
    /* Norms before each part, windows to both sides in two of three layers. */
    {
        .info = {.name = "modern-bert",
                 .traits = TN_ARCH_ENCODER | TN_ARCH_LAYER_NORM | TN_ARCH_FUSED_QKV | TN_ARCH_FUSED_UP |
                           TN_ARCH_EMBEDDING_NORM | TN_ARCH_WINDOW,
                 .window_period = 3,
                 .full_first = true,
                 .typical = {.window = 128},
                 .classes = {{"ModernBertModel", 0},
                             {"ModernBertForMaskedLM", 0},
                             {"ModernBertForSequenceClassification", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GEGLU_ERF,
        .classifier = TN_OP_GELU_ERF,
        .read = read_modern_bert,
    },
    /* BERT with RoPE, and experts in some layers. */
    {
        .info = {.name = "nomic-bert-moe",
                 .traits = CLASSIC | TN_ARCH_FUSED_QKV | TN_ARCH_ENCODER | TN_ARCH_BERT | TN_ARCH_EXPERTS,
                 .one_ffn_key = true,
                 .keys = nomic_moe_keys,
                 .classes = {{"NomicBertModel", 0, "moe_every_n_layers"}}},
        .rope = TN_ROPE_NEOX,
        .residual = TN__RESIDUAL_POST_NORM,
        .activation = TN_OP_GELU_ERF,
        .either_ffn = true,
        .read = read_nomic_bert_moe,
    },
    /* BERT with ALiBi and gates. */
    {
        .info = {.name = "jina-bert-v2",
                 .traits = (CLASSIC & ~TN_ARCH_NO_GATE) | TN_ARCH_ENCODER | TN_ARCH_BERT | TN_ARCH_NO_ROPE,
                 .typical = {.alibi = 8},
                 .classes = {{"JinaBertModel", 0},
                             {"JinaBertForMaskedLM", 0},
                             {"JinaBertForSequenceClassification", 0}}},
        .residual = TN__RESIDUAL_POST_NORM,
        .activation = TN_OP_GEGLU_ERF,
        .read = read_jina_v2,
    },
    /* BERT with RoPE. */
    {
        .info = {.name = "jina-bert-v3",
                 .traits = CLASSIC | TN_ARCH_FUSED_QKV | TN_ARCH_ENCODER | TN_ARCH_BERT,
                 .classes = {{"XLMRobertaModel", 0, "lora_adaptations"}}},
        .rope = TN_ROPE_NEOX,
        .residual = TN__RESIDUAL_POST_NORM,
        .activation = TN_OP_GELU_ERF,
    },
    /* Gemma 3 with windows to both sides. */
    {
        .info = {.name = "gemma-embedding",
                 .traits = TN_ARCH_ENCODER | TN_ARCH_POST_NORMS | TN_ARCH_QK_NORM | TN_ARCH_WINDOW,
                 .window_period = 6,
                 .typical = {.window = 512},
                 .classes = {{"Gemma3TextModel", TN_ARCH_HF_NORM_PLUS_ONE}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_GEGLU,
        .read = tn__read_gemma3,
    },
    {
        .info = {.name = "neo-bert",
                 .traits = TN_ARCH_ENCODER | TN_ARCH_FUSED_QKV | TN_ARCH_FUSED_UP | TN_ARCH_ENC_OUTPUT_NORM,
                 .classes = {{"NeoBERT", TN_ARCH_HF_GROUPED_QKV},
                             {"NeoBERTLMHead", TN_ARCH_HF_GROUPED_QKV},
                             {"NeoBERTForSequenceClassification", TN_ARCH_HF_GROUPED_QKV}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .adjust = name_last_norm,
    },
    {
        .info = {.name = "eurobert",
                 .traits = TN_ARCH_ENCODER,
                 .classes = {{"EuroBertModel", 0}, {"EuroBertForMaskedLM", 0}}},
        .rope = TN_ROPE_NEOX,
        .activation = TN_OP_SWIGLU,
    },
    /* T5: biases by distance, unscaled scores. */
    {
        .info = {.name = "t5encoder",
                 .traits = TN_ARCH_ENCODER | TN_ARCH_NO_ROPE | TN_ARCH_ENC_OUTPUT_NORM | TN_ARCH_RELATIVE_BIAS,
                 .classes = {{"T5EncoderModel", 0}, {"MT5EncoderModel", 0}, {"UMT5EncoderModel", 0}}},
        .layer_prefix = "enc.",
        .activation = TN_OP_GEGLU,
        .read = read_t5_encoder,
        .adjust = name_t5_tensors,
    },
    {.info = {.name = NULL}},
};

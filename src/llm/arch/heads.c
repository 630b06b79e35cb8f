/* EAGLE-3 heads: a layer that guesses the tokens of another model from the states before three of its layers.
 *
 * A matrix reduces these states, side by side, to one of the head's width. It is the residual of the only layer,
 * whose attention reads the normalised embedding of the next token beside it. For tokens that the head has guessed
 * itself there are no states of the model, and the head's own output is used instead. The head may guess only some
 * of the model's tokens; the tensor d2t has their numbers. */
#include "llm/arch/families.h"
#include "llm/build/builder.h"

#define KEY(name) tn__arch_key(file, name)

static tn_status read_eagle3(const tn_gguf *file, tn__hparams *h) {
    enum { LAYERS = 3 };
    const tn_gguf_arr *layers = tn_gguf_get_arr(file, KEY("target_layers"));
    h->n_target_embd = tn_gguf_get_i32(file, KEY("target_hidden_size"), 0);
    if (h->n_target_embd < 1 || h->n_target_embd > 1 << 24)
        return tn_fail(TN_E_FORMAT, "%s: %s is %d; it must be the width of a model", tn_gguf_path(file),
                       KEY("target_hidden_size"), h->n_target_embd);
    if (!layers || layers->count != LAYERS)
        return tn_fail(TN_E_FORMAT, "%s: %s has %llu entries; an EAGLE-3 head reads %d layers", tn_gguf_path(file),
                       KEY("target_layers"), layers ? (unsigned long long)layers->count : 0, LAYERS);
    for (int32_t i = 0; i < LAYERS; i++) {
        const uint32_t layer = tn_gguf_get_u32_at(file, KEY("target_layers"), (uint64_t)i, UINT32_MAX);
        if (layer > 65536 || (i && (int32_t)layer < h->target_layers[i - 1]))
            return tn_fail(TN_E_FORMAT, "%s: %s must be ascending layers, not %d after %d", tn_gguf_path(file),
                           KEY("target_layers"), (int32_t)layer, i ? h->target_layers[i - 1] : 0);
        h->target_layers[i] = (int32_t)layer;
    }
    h->n_target_layers = LAYERS;
    if (h->n_layer != 1)
        return tn_fail(TN_E_FORMAT, "%s: %d layers; an EAGLE-3 head has one", tn_gguf_path(file), h->n_layer);
    h->norm_before_fc = tn_gguf_get_bool(file, KEY("norm_before_fc"), false);
    h->norm_before_residual = tn_gguf_get_bool(file, KEY("norm_before_residual"), false);
    const tn_gguf_tensor *guessed = tn_gguf_find_tensor(file, "d2t");
    if (!guessed) return TN_OK;
    if (guessed->n_dims > 1 || guessed->ne[0] < 1 || guessed->ne[0] > h->n_vocab ||
        (guessed->type != TN_I64 && guessed->type != TN_I32))
        return tn_fail(TN_E_FORMAT,
                       "%s: tensor 'd2t' must be a list of at most %d whole numbers, not %lld of type %s",
                       tn_gguf_path(file), h->n_vocab, (long long)guessed->ne[0], tn_type_name(guessed->type));
    h->n_text_vocab = h->n_vocab;
    h->n_vocab = (int32_t)guessed->ne[0];
    return TN_OK;
}

/* Tokens have the model's states or the head's own; the others are zeros. */
static tn_tensor *begin_eagle3(tn__builder *b, tn_tensor *embedding) {
    const tn__weights *w = &b->m->w;
    const int32_t width = tn__feature_width(b->h);
    tn_tensor *states = tn__builder_input(b, TN__INPUT_STATES);
    tn_tensor *features = tn__build_columns(b, states, 0, width);
    (void)embedding;
    if (w->enc_out_norm)
        features = tn__name_node(b, tn__build_norm(b, features, w->enc_out_norm, NULL), "features_norm");
    tn_tensor *reduced = tn__build_linear(b, w->fc, NULL, NULL, features, "fc");
    return tn__name_node(b, tn_add(b->a, reduced, tn__build_columns(b, states, width, b->h->n_embd)), "head_input");
}

static tn_tensor *build_eagle3(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_tensor *token = tn__name_node(b, tn__build_norm(b, b->embedding, l->attn_norm, NULL), "attn_norm");
    tn_tensor *state = tn__name_node(b, tn__build_norm(b, x, l->attn_norm_2, NULL), "attn_norm_2");
    tn_tensor *both = tn__name_node(b, tn_concat(b->a, token, state, 0), "attn_in");
    tn_tensor *attn = tn__build_wanted(b, il, tn__build_mixer(b, il, both), "attn_wanted");
    x = tn__build_wanted(b, il, b->h->norm_before_residual ? state : x, "x_wanted");
    return tn__build_serial_ffn(b, il, tn__name_node(b, tn_add(b->a, attn, x), "attn_sum"));
}

/* Not in the public list of architectures: these files are not models that generate text. */
const tn__arch tn__heads[] = {
    {
        .info = {.name = "eagle3",
                 .traits = TN_ARCH_TIED,
                 .classes = {{"LlamaForCausalLMEagle3", TN_ARCH_HF_PAIRED_ROPE},
                             {"Eagle3LlamaForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                             {"Eagle3DraftModel", TN_ARCH_HF_PAIRED_ROPE},
                             {"Eagle3Speculator", TN_ARCH_HF_PAIRED_ROPE}}},
        .rope = TN_ROPE_NORMAL,
        .activation = TN_OP_SWIGLU,
        .read = read_eagle3,
        .begin = begin_eagle3,
        .layer = build_eagle3,
        .layers_add_embedding = true,
    },
    {.info = {.name = NULL}},
};

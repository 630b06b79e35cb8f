/* A model file without data for a shape that somebody names or pastes, so that it can be planned. */
#include "convert/convert.h"
#include "files/quant_mix.h"
#include "files/synth.h"

#include <string.h>

/* Far above those of real models; more would only take time. */
enum { MOST_LAYERS = 1000, MOST_TOKENS = 1 << 20 };

struct shape_file {
    const struct mix *mix;
    struct mix_model rules;
    const struct layout *layout;
    tn_gguf_writer *writer;
};

/* Tensors that models usually have are planned, those that some have are not. */
static tn_status add_shape_tensor(void *user, const tn_arch_tensor *t) {
    const struct shape_file *f = user;
    if (t->need == TN_ARCH_OPTIONAL) return TN_OK;
    if (strcmp(t->name, "output.weight") == 0 && f->layout->traits & TN_ARCH_TIED) return TN_OK;
    const bool large =
        mix_quantizes(t->name, t->n_dims) && (t->kind == TN_ARCH_MATRIX || t->kind == TN_ARCH_EMBEDDING);
    return tn_gguf_writer_add(f->writer, t->name, large ? mix_type(f->mix, &f->rules, t->name, t->ne) : TN_F32,
                              t->n_dims, t->ne);
}

/* `model` is NULL for a shape without a config.json. */
static tn_status write_shape_file(struct shape_file *f, struct hf_model *model) {
    const struct layout *l = f->layout;
    f->rules = (struct mix_model){.layers = l->layers,
                                  .experts = l->experts,
                                  .heads = l->heads,
                                  .kv_heads = l->kv_heads,
                                  .has_output = !(l->traits & (TN_ARCH_TIED | TN_ARCH_ENCODER)),
                                  .output_q8_0 = l->arch->output_q8_0};
    if (model) {
        TN_TRY(hf_model_keys(model, f->writer));
        TN_TRY(hf_model_weight_keys(model, NULL, f->writer));
    } else {
        TN_TRY(layout_keys(l, f->writer));
        TN_TRY(layout_synthetic_keys(l, f->writer));
        TN_TRY(tn_gguf_writer_set_cstr(f->writer, "general.name", "shape"));
    }
    TN_TRY(tn_gguf_writer_set_u32(f->writer, "general.file_type", f->mix->file_type));
    TN_TRY(synth_vocab(f->writer, l->vocab, l->traits & TN_ARCH_ENCODER));
    TN_TRY(layout_tensors(f->writer, add_shape_tensor, f));
    TN_TRY(tn_gguf_writer_begin(f->writer));
    return tn_gguf_writer_finish(f->writer);
}

tn_status shape_file_write(const char *path, const char *arch_name, const char *shape, const char *type) {
    struct shape_file f = {.mix = mix_find(type)};
    struct hf_model model = {0};
    struct layout layout;
    const bool config = shape[strspn(shape, " \t\r\n")] == '{';
    if (!f.mix || !tn_type_can_write(f.mix->type))
        return tn_fail(TN_E_INVALID, "unknown or read-only type \"%s\"", type);
    if (config) {
        TN_TRY(hf_model_parse(shape, &model));
        const json_t *tied = json_object_get(model.config, "tie_word_embeddings");
        if (tied ? json_is_true(tied) : (model.layout.arch->traits & TN_ARCH_TIED) != 0)
            model.layout.traits |= TN_ARCH_TIED;
        f.layout = &model.layout;
    } else {
        const tn_arch *arch = tn_arch_find(arch_name);
        if (!arch) return tn_fail(TN_E_INVALID, "unknown architecture \"%s\"", arch_name);
        TN_TRY(synth_layout(arch, shape, &layout));
        f.layout = &layout;
    }
    tn_status status = TN_OK;
    if (f.layout->layers > MOST_LAYERS || f.layout->vocab > MOST_TOKENS)
        status = tn_fail(TN_E_INVALID, "more than %d layers or %d tokens", MOST_LAYERS, MOST_TOKENS);
    const tn_gguf_writer_params params = {.no_data = true};
    if (status == TN_OK) status = tn_gguf_writer_new(path, &params, &f.writer);
    if (status == TN_OK) status = write_shape_file(&f, config ? &model : NULL);
    tn_gguf_writer_free(f.writer);
    hf_model_close(&model);
    return status;
}

/* EAGLE-3 heads in Hugging Face folders: a layer that guesses the tokens of another model, whose folder has the
 * vocabulary. */
#include "convert/convert.h"
#include "convert/recipe.h"

#include <stdio.h>
#include <string.h>

bool hf_is_eagle3(const struct hf_model *m) { return strcmp(m->layout.arch->name, "eagle3") == 0; }

/* "midlayer.self_attn…" becomes "model.layers.0.self_attn…". */
tn_status hf_eagle3_find(struct hf_model *model, struct safetensors *set) {
    static const char prefix[] = "midlayer.";
    bool renamed = false;
    for (size_t i = 0; hf_is_eagle3(model) && i < safetensors_count(set); i++) {
        struct safetensors_tensor *t = safetensors_at(set, i);
        char name[512];
        if (strcmp(t->name, "t2d") == 0) t->used = true; /* the same list the other way round */
        if (strncmp(t->name, prefix, sizeof prefix - 1) != 0) continue;
        snprintf(name, sizeof name, "model.layers.0.%s", t->name + sizeof prefix - 1);
        char *copy = tn_strdup(name);
        if (!copy) return TN_E_NOMEM;
        tn_free(t->name);
        t->name = copy;
        renamed = true;
    }
    if (renamed) safetensors_sort(set);
    return TN_OK;
}

tn_status hf_eagle3_target(struct hf_model *m, const struct hf_model *target) {
    if (m->layout.vocab != target->layout.vocab)
        return tn_fail(TN_E_INVALID, "%s is a head for a vocabulary of %u tokens; %s has %u", m->folder,
                       m->layout.vocab, target->folder, target->layout.vocab);
    m->target = target;
    return TN_OK;
}

/* The layers that the head reads: those of its configuration, or one near the beginning, the middle and one near the
 * end of the model, as the reference implementation has it. */
static tn_status target_layers(const struct hf_model *m, uint32_t layers[3]) {
    static const char name[] = "eagle_aux_hidden_state_layer_ids";
    const uint32_t n = m->target->layout.layers;
    const json_t *list = json_object_get(m->root, name);
    if (!list) list = json_object_get(json_object_get(m->root, "eagle_config"), name);
    if (!list || json_is_null(list)) {
        if (n < 6) return tn_fail(TN_E_INVALID, "%s: \"%s\" is missing", m->folder, name);
        layers[0] = 2, layers[1] = n / 2, layers[2] = n - 3;
        return TN_OK;
    }
    for (size_t i = 0; i < 3; i++) {
        const json_int_t layer = json_integer_value(json_array_get(list, i));
        if (json_array_size(list) != 3 || layer < 0 || layer > n || (i && layer < layers[i - 1]))
            return tn_fail(TN_E_FORMAT, "%s: \"%s\" must be three ascending layers of %u", m->folder, name, n);
        layers[i] = (uint32_t)layer;
    }
    return TN_OK;
}

static tn_status set_eagle3_keys(const struct hf_model *m, struct hf_weights *weights, tn_gguf_writer *w) {
    uint32_t layers[3];
    (void)weights;
    TN_TRY(target_layers(m, layers));
    const uint32_t width = config_whole(m->root, "target_hidden_size", m->target->layout.width);
    if (width != m->target->layout.width)
        return tn_fail(TN_E_INVALID, "%s is a head for a model of width %u; %s has a width of %u", m->folder, width,
                       m->target->folder, m->target->layout.width);
    TN_TRY(tn_gguf_writer_set_array(w, "eagle3.target_layers", TN_GGUF_U32, layers, 3));
    TN_TRY(tn_gguf_writer_set_u32(w, "eagle3.target_hidden_size", width));
    TN_TRY(tn_gguf_writer_set_bool(w, "eagle3.norm_before_residual",
                                   config_truth(m->root, "norm_before_residual", false)));
    return tn_gguf_writer_set_bool(w, "eagle3.norm_before_fc", config_truth(m->root, "norm_before_fc", false));
}

const struct config_family head_config_families[] = {
    {.arch = "eagle3", .keys = set_eagle3_keys},
    {NULL, NULL, NULL, NULL},
};

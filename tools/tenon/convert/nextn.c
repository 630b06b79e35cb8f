/* Layers that predict further tokens (multi-token prediction) in Hugging Face folders: they get the names that
 * ordinary layers have, with numbers after the last one. */
#include "convert/convert.h"
#include "convert/recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names outside layers that stand for tensors of the first of these layers. */
static const struct nextn_name {
    const char *folder, *layer;
} nextn_names[] = {
    {"mtp.fc.", "eh_proj."},
    {"mtp.pre_fc_norm_embedding.", "enorm."},
    {"mtp.pre_fc_norm_hidden.", "hnorm."},
    {"mtp.norm.", "shared_head.norm."},
};

/* The name that a tensor gets, or false. */
static bool nextn_rename(const char *name, uint32_t layers, char *out, size_t size) {
    static const char prefix[] = "mtp.layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) {
        char *end;
        const unsigned long index = strtoul(name + sizeof prefix - 1, &end, 10);
        if (*end != '.' || index > 64) return false;
        snprintf(out, size, "model.layers.%lu%s", layers + index, end);
        return true;
    }
    for (size_t i = 0; i < sizeof nextn_names / sizeof *nextn_names; i++) {
        const size_t n = strlen(nextn_names[i].folder);
        if (strncmp(name, nextn_names[i].folder, n) != 0) continue;
        snprintf(out, size, "model.layers.%u.%s%s", layers, nextn_names[i].layer, name + n);
        return true;
    }
    return false;
}

static bool nextn_exists(const struct safetensors *set, uint32_t layer) {
    char name[128];
    for (size_t i = 0; hf_prefixes[i]; i++) {
        snprintf(name, sizeof name, "%slayers.%u.eh_proj.weight", hf_prefixes[i], layer);
        if (safetensors_find(set, name)) return true;
    }
    return false;
}

tn_status hf_nextn_find(struct hf_model *model, struct safetensors *set) {
    const uint32_t layers = model->layout.layers;
    bool renamed = false;
    for (size_t i = 0; i < safetensors_count(set); i++) {
        struct safetensors_tensor *t = safetensors_at(set, i);
        char name[512];
        if (!nextn_rename(t->name, layers, name, sizeof name)) continue;
        char *copy = tn_strdup(name);
        if (!copy) return TN_E_NOMEM;
        tn_free(t->name);
        t->name = copy;
        renamed = true;
    }
    if (renamed) safetensors_sort(set);
    while (model->layout.nextn < 64 && nextn_exists(set, layers + model->layout.nextn)) model->layout.nextn++;
    return TN_OK;
}

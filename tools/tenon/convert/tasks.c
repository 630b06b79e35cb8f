/* Adapters for tasks in the folder of a model: PyTorch's parametrizations, as Jina embeddings 3 has them. A weight is
 * "NAME.parametrizations.weight.original", its matrices for all tasks are "….weight.0.lora_A" and "….lora_B". */
#include "cli/cli.h"
#include "convert/convert.h"
#include "convert/packed.h"

#include <stdio.h>
#include <string.h>

static const char task_part[] = ".parametrizations.weight.";

/* The number of the task, or -1. */
static int task_number(const struct hf_model *m, json_t *tasks) {
    for (size_t i = 0; m->task && i < json_array_size(tasks); i++) {
        const char *name = json_string_value(json_array_get(tasks, i));
        if (name && strcmp(name, m->task) == 0) return (int)i;
    }
    return -1;
}

static void list_tasks(json_t *tasks, char *out, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < json_array_size(tasks) && used < size; i++) {
        const char *name = json_string_value(json_array_get(tasks, i));
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", name ? name : "?");
    }
}

/* Adds "STEM.weight" for the tensor "STEM.parametrizations.weight.original". */
static tn_status add_task_weight(const struct hf_model *m, struct safetensors *set,
                                 const struct safetensors_tensor *original, int task) {
    const int stem = (int)(strstr(original->name, task_part) - original->name);
    char name[512], part[512];
    snprintf(name, sizeof name, "%.*s.weight", stem, original->name);
    struct safetensors_tensor copy = *original;
    copy.used = false;
    if (task < 0) return safetensors_put(set, name, &copy);
    snprintf(part, sizeof part, "%.*s%s0.lora_A", stem, original->name, task_part);
    const struct safetensors_tensor *a = safetensors_find(set, part);
    snprintf(part, sizeof part, "%.*s%s0.lora_B", stem, original->name, task_part);
    const struct safetensors_tensor *b = safetensors_find(set, part);
    if (!a && !b) return safetensors_put(set, name, &copy);
    if (!a || !b || a->n_dims != 3 || b->n_dims != 3)
        return tn_fail(TN_E_FORMAT, "tensor \"%s\" has no pair of matrices for tasks", original->name);
    /* Of a linear layer B · A is added, of an embedding A · B. */
    const bool linear = b->shape[1] == original->shape[0] && a->shape[1] == b->shape[2];
    const struct safetensors_tensor left = linear ? *b : *a, right = linear ? *a : *b;
    const double rank = (double)right.shape[1];
    return packed_weights_add_sum(set, name, &copy, &left, &right, task,
                                  (float)(config_number(m->root, "lora_alpha", 1) / (rank > 0 ? rank : 1)));
}

tn_status hf_tasks_find(const struct hf_model *m, struct safetensors *set) {
    json_t *tasks = json_object_get(m->root, "lora_adaptations");
    const int task = task_number(m, tasks);
    const size_t count = safetensors_count(set);
    char names[512] = "none";
    bool any = false;
    list_tasks(tasks, names, sizeof names);
    if (m->task && task < 0)
        return tn_fail(TN_E_NOT_FOUND, "%s: no adapter for the task \"%s\"; tasks with one: %s", m->folder, m->task,
                       names);
    for (size_t i = 0; i < count; i++) {
        /* Adding tensors moves those that are there. */
        const struct safetensors_tensor t = *safetensors_at(set, i);
        const char *part = strstr(t.name, task_part);
        if (!part) continue;
        any = true;
        safetensors_at(set, i)->used = true;
        if (strcmp(part + sizeof task_part - 1, "original") != 0) continue;
        if (t.type == ST_F8)
            return tn_fail(TN_E_UNSUPPORTED, "tensor \"%s\": adapters for weights in 8 bits are not converted",
                           t.name);
        TN_TRY(add_task_weight(m, set, &t, task));
    }
    safetensors_sort(set);
    if (any && !m->task)
        warn("%s has adapters for tasks, which are left out; --task adds one of %s to the weights", m->folder, names);
    return TN_OK;
}

/* Control vectors: opening a file of directions and checking it against the model. */
#include "llm/adapters/adapter.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* "direction.12" → 12; -1 for other names. */
static long direction_layer(const char *name) {
    static const char prefix[] = "direction.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
    const char *number = name + sizeof prefix - 1;
    char *end;
    const long layer = strtol(number, &end, 10);
    return *number >= '0' && *number <= '9' && !*end ? layer : -1;
}

static tn_status add_direction(tn_control_vector *v, const tn_gguf_tensor *t) {
    const tn_model *m = v->model;
    const long layer = direction_layer(t->name);
    const char *path = tn_gguf_path(v->file);
    if (layer < 0) return tn_fail(TN_E_FORMAT, "%s: tensor '%s' is not named direction.N", path, t->name);
    if (layer < 1 || layer >= m->h.n_layer)
        return tn_fail(TN_E_FORMAT, "%s: tensor '%s' belongs to layer %ld; the model has layers 1 to %d", path,
                       t->name, layer, m->h.n_layer - 1);
    if (t->type != TN_F32 || t->ne[0] != m->h.n_embd || t->ne[1] != 1 || t->ne[2] != 1 || t->ne[3] != 1)
        return tn_fail(TN_E_SHAPE, "%s: tensor '%s' is %s [%lld,%lld,%lld]; directions of this model are f32 [%d]",
                       path, t->name, tn_type_name(t->type), (long long)t->ne[0], (long long)t->ne[1],
                       (long long)t->ne[2], m->h.n_embd);
    if (v->directions[layer])
        return tn_fail(TN_E_FORMAT, "%s has two directions for layer %ld", path,
                       layer); /* direction.1, direction.01 */
    float *values;
    TN_TRY(tn__adapter_values(v->file, t, &values));
    v->hash = tn__hash_bytes(values, t->size, tn__hash_combine(v->hash, (uint64_t)layer));
    tn_free(values);
    v->directions[layer] = t;
    return TN_OK;
}

static tn_status open_control_vector(tn_control_vector *v, const char *path) {
    TN_TRY(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &v->file));
    v->directions = tn_calloc((size_t)v->model->h.n_layer, sizeof(tn_gguf_tensor *));
    if (!v->directions) return TN_E_NOMEM;
    const uint64_t n = tn_gguf_tensor_count(v->file);
    for (uint64_t i = 0; i < n; i++) TN_TRY(add_direction(v, tn_gguf_tensor_at(v->file, i)));
    return n ? TN_OK : tn_fail(TN_E_FORMAT, "%s has no directions", path);
}

tn_status tn_control_vector_open(const tn_model *model, const char *path, tn_control_vector **out) {
    if (!model || !path || !out) return tn_fail(TN_E_INVALID, "tn_control_vector_open: NULL argument");
    *out = NULL;
    if (model->params.vocab_only) return tn_fail(TN_E_STATE, "the model was opened for its vocabulary only");
    tn_control_vector *v = tn_calloc(1, sizeof *v);
    if (!v) return TN_E_NOMEM;
    v->model = model;
    const tn_status status = open_control_vector(v, path);
    if (status != TN_OK)
        tn_control_vector_close(v);
    else
        *out = v;
    return status;
}

void tn_control_vector_close(tn_control_vector *v) {
    if (!v) return;
    tn_gguf_close(v->file);
    tn_free(v->directions);
    tn_free(v);
}

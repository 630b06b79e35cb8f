/* variant MODEL OUT [NAME=VALUE …] [-TENSOR …]: a model of the golden zoo with other numbers. NAME is a key without
 * the architecture; a list is separated by commas. The key keeps its type. "-TENSOR" leaves a tensor out. The tensors
 * are those that the architecture has with these numbers, of which optional ones must be in MODEL; their data is
 * zero, until the golden data's `fill` gives them weights. */
#include "tenon/arch.h"
#include "tenon/gguf.h"

#include "tenon/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct variant {
    tn_gguf *head;
    tn_gguf_writer *writer;
    char **left_out;
    int n_left_out;
    size_t n_bytes;
    char (*added)[128];
    size_t n_added;
    int64_t old[3], new[3]; /* embedding_length, feed_forward_length, vocab_size */
} variant;
enum { MOST_TENSORS = 4096 };

/* The tensor of that name, in a layer that the model does not have: of an earlier one. */
static const tn_gguf_tensor *twin_of(const tn_gguf *head, const char *name) {
    char twin[128];
    int skip = 0, layer;
    const char *arch = tn_gguf_get_cstr(head, "general.architecture", "");
    snprintf(twin, sizeof twin, "%s.block_count", arch);
    const int layers = tn_gguf_get_i32(head, twin, 1);
    if (sscanf(name, "blk.%d.%n", &layer, &skip) != 1 || !skip) return tn_gguf_find_tensor(head, name);
    snprintf(twin, sizeof twin, "blk.%d.%s", layer % layers, name + skip);
    return tn_gguf_find_tensor(head, twin);
}

static bool is_added(const variant *v, const char *name) {
    for (size_t i = 0; i < v->n_added; i++)
        if (strcmp(v->added[i], name) == 0) return true;
    return false;
}

static tn_status add_zeros(variant *v, const char *name, tn_type type, int n_dims, const int64_t *ne) {
    size_t elements = 1;
    for (int i = 0; i < n_dims; i++) elements *= (size_t)ne[i];
    for (int i = 0; i < v->n_left_out; i++)
        if (strcmp(v->left_out[i] + 1, name) == 0) return TN_OK;
    if (v->n_added == MOST_TENSORS) return tn_fail(TN_E_LIMIT, "more than %d tensors", MOST_TENSORS);
    snprintf(v->added[v->n_added++], sizeof *v->added, "%s", name);
    v->n_bytes += elements * (type == TN_F32 ? 4 : 2);
    return tn_gguf_writer_add(v->writer, name, type, n_dims, ne);
}

/* With the dimensions it had, except those that are numbers which changed. */
static tn_status add_old_shape(variant *v, const char *name, const tn_gguf_tensor *twin) {
    int64_t ne[4];
    for (int i = 0; i < 4; i++) {
        ne[i] = twin->ne[i];
        for (int k = 0; k < 3; k++)
            if (twin->ne[i] == v->old[k]) {
                ne[i] = v->new[k];
                break;
            }
    }
    return add_zeros(v, name, twin->type, twin->n_dims, ne);
}

static int64_t number_of(const tn_gguf *file, const char *name) {
    char key[160];
    snprintf(key, sizeof key, "%s.%s", tn_gguf_get_cstr(file, "general.architecture", ""), name);
    return tn_gguf_get_u32_at(file, key, 0, 0);
}

static tn_status add_variant_tensor(void *user, const tn_arch_tensor *t) {
    variant *v = user;
    const tn_gguf_tensor *twin = twin_of(v->head, t->name);
    int64_t ne[4] = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]};
    int n_dims = t->n_dims;
    if (!twin) return TN_OK;
    for (int i = 0; i < n_dims; i++)
        if (ne[i] <= 0) return add_old_shape(v, t->name, twin);
    return add_zeros(v, t->name, twin->type, n_dims, ne);
}

/* Tensors that this library does not know, or knows under another name. */
static tn_status add_other_tensors(variant *v, const tn_gguf *metadata) {
    for (uint64_t i = 0; i < tn_gguf_tensor_count(v->head); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(v->head, i);
        int layer = -1;
        sscanf(t->name, "blk.%d.", &layer);
        if (layer >= (int)number_of(metadata, "block_count") || is_added(v, t->name)) continue;
        TN_TRY(add_old_shape(v, t->name, t));
    }
    return TN_OK;
}

/* Numbers separated by commas, in the type that the key has. */
static tn_status set_number(variant *v, const char *arch, const char *text) {
    char key[160];
    const char *sign = strchr(text, '=');
    snprintf(key, sizeof key, "%s.%.*s", arch, (int)(sign - text), text);
    const tn_gguf_value *old = tn_gguf_find(v->head, key);
    const tn_gguf_type type = !old ? TN_GGUF_U32 : old->type == TN_GGUF_ARR ? old->arr.type : old->type;
    uint32_t list[256];
    uint64_t n = 0;
    for (const char *at = sign + 1; *at && n < 256; at += *at == ',') {
        char *end;
        const double number = strtod(at, &end);
        if (end == at) return tn_fail(TN_E_INVALID, "%s: not a number", text);
        at = end;
        const float real = (float)number;
        if (type == TN_GGUF_F32)
            memcpy(&list[n++], &real, sizeof real);
        else if (type == TN_GGUF_BOOL)
            ((uint8_t *)list)[n++] = number != 0;
        else
            list[n++] = (uint32_t)(int64_t)number;
    }
    if (old && old->type == TN_GGUF_ARR) return tn_gguf_writer_set_array(v->writer, key, type, list, n);
    if (n > 1) return tn_gguf_writer_set_array(v->writer, key, TN_GGUF_U32, list, n);
    if (type == TN_GGUF_F32) return tn_gguf_writer_set_f32(v->writer, key, (float)strtod(sign + 1, NULL));
    if (type == TN_GGUF_BOOL) return tn_gguf_writer_set_bool(v->writer, key, *(uint8_t *)list);
    if (type == TN_GGUF_I32) return tn_gguf_writer_set_i32(v->writer, key, (int32_t)list[0]);
    return tn_gguf_writer_set_u32(v->writer, key, list[0]);
}

/* The new numbers with the old tensors: which tensors a layer has may depend on what is there. */
static tn_status write_old_tensors(variant *v, const char *path, tn_gguf **out) {
    tn_gguf *keys;
    tn_gguf_writer *writer = NULL;
    TN_TRY(tn_gguf_writer_metadata(v->writer, &keys));
    tn_status status = tn_gguf_writer_new(path, &(tn_gguf_writer_params){.no_data = true}, &writer);
    if (status == TN_OK) status = tn_gguf_writer_copy_keys(writer, keys);
    for (uint64_t i = 0; i < tn_gguf_tensor_count(v->head) && status == TN_OK; i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(v->head, i);
        status = tn_gguf_writer_add(writer, t->name, t->type, t->n_dims, t->ne);
    }
    if (status == TN_OK) status = tn_gguf_writer_begin(writer);
    if (status == TN_OK) status = tn_gguf_writer_finish(writer);
    tn_gguf_writer_free(writer);
    tn_gguf_close(keys);
    return status == TN_OK ? tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, out) : status;
}

static tn_status write_variant(variant *v, int count, char **arguments) {
    TN_TRY(tn_gguf_open(arguments[1], &(tn_gguf_params){.mode = TN_GGUF_META}, &v->head));
    char part[4096];
    snprintf(part, sizeof part, "%s.new", arguments[2]);
    TN_TRY(tn_gguf_writer_new(part, NULL, &v->writer));
    TN_TRY(tn_gguf_writer_copy_keys(v->writer, v->head));
    const char *arch = tn_gguf_get_cstr(v->head, "general.architecture", "");
    v->left_out = calloc((size_t)count, sizeof *v->left_out);
    v->added = calloc(MOST_TENSORS, sizeof *v->added);
    if (!v->left_out || !v->added) return TN_E_NOMEM;
    for (int i = 3; i < count; i++) {
        if (arguments[i][0] == '-')
            v->left_out[v->n_left_out++] = arguments[i];
        else if (strchr(arguments[i], '='))
            TN_TRY(set_number(v, arch, arguments[i]));
        else
            return tn_fail(TN_E_INVALID, "%s: neither NAME=VALUE nor -TENSOR", arguments[i]);
    }
    tn_gguf *old;
    TN_TRY(write_old_tensors(v, arguments[2], &old));
    static const char *const names[] = {"embedding_length", "feed_forward_length", "vocab_size"};
    for (int i = 0; i < 3; i++) v->old[i] = number_of(v->head, names[i]), v->new[i] = number_of(old, names[i]);
    tn_status status = tn_arch_tensors(old, add_variant_tensor, v);
    if (status == TN_OK) status = add_other_tensors(v, old);
    tn_gguf_close(old);
    if (status == TN_OK) status = tn_gguf_writer_begin(v->writer);
    if (status != TN_OK) return status;
    void *zeros = calloc(v->n_bytes ? v->n_bytes : 1, 1);
    status = zeros ? tn_gguf_writer_write(v->writer, zeros, v->n_bytes) : TN_E_NOMEM;
    free(zeros);
    if (status == TN_OK) status = tn_gguf_writer_finish(v->writer);
    if (status == TN_OK && rename(part, arguments[2]) != 0) status = tn_fail(TN_E_IO, "%s: %m", arguments[2]);
    return status;
}

int main(int count, char **arguments) {
    if (count < 3) return fprintf(stderr, "usage: variant MODEL OUT [NAME=VALUE …] [-TENSOR …]\n"), 2;
    variant v = {0};
    const tn_status status = write_variant(&v, count, arguments);
    if (status != TN_OK) fprintf(stderr, "%s: %s\n", arguments[1], tn_error());
    tn_gguf_writer_free(v.writer);
    tn_gguf_close(v.head);
    free(v.left_out);
    free(v.added);
    return status == TN_OK ? 0 : 1;
}

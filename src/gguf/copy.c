/* Copying of an open GGUF file with changes: used to edit, merge and split. */
#include "gguf/internal.h"

#include <string.h>

enum { PIECE = 4 << 20 };

static tn_status change_keys(tn_gguf_writer *w, const tn_gguf *file, const tn_gguf_copy_params *params) {
    TN_TRY(tn_gguf_writer_copy_keys(w, file));
    for (size_t i = 0; i < params->remove_count; i++)
        if (!tn_gguf_writer_remove(w, params->remove[i]))
            return tn_fail(TN_E_NOT_FOUND, "%s: no metadata key \"%s\" to remove", tn_gguf_path(file),
                           params->remove[i]);
    for (size_t i = 0; i < params->set_count; i++)
        TN_TRY(tn_gguf_writer_set(w, params->set[i].key.data, &params->set[i].value));
    return TN_OK;
}

static tn_status add_tensors(tn_gguf_writer *w, const tn_gguf *file, const tn_gguf_copy_params *params) {
    for (size_t i = 0; i < params->rename_count; i++)
        if (!tn_gguf_find_tensor(file, params->rename[i].from))
            return tn_fail(TN_E_NOT_FOUND, "%s: no tensor \"%s\" to rename", tn_gguf_path(file),
                           params->rename[i].from);
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        const char *name = t->name;
        for (size_t k = 0; k < params->rename_count; k++)
            if (strcmp(name, params->rename[k].from) == 0) {
                name = params->rename[k].to;
                break;
            }
        TN_TRY(tn_gguf_writer_add(w, name, t->type, t->n_dims, t->ne));
    }
    return TN_OK;
}

static tn_status copy_all_data(tn_gguf_writer *w, const tn_gguf *file, const tn_gguf_copy_params *params,
                               void *piece) {
    uint64_t done = 0, total = 0;
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) total += tn_gguf_tensor_at(file, i)->size;
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        for (size_t at = 0; at < t->size;) {
            size_t size = t->size - at < PIECE ? t->size - at : PIECE;
            TN_TRY(tn_gguf_read(file, t, at, piece, size));
            TN_TRY(tn_gguf_writer_write(w, piece, size));
            at += size;
            done += size;
            if (params->progress && !params->progress(params->user, done, total))
                return tn_fail(TN_E_ABORTED, "stopped after %llu of %llu bytes", (unsigned long long)done,
                               (unsigned long long)total);
        }
    }
    return TN_OK;
}

tn_status tn_gguf_copy(const tn_gguf *file, const char *path, const tn_gguf_copy_params *params) {
    tn_gguf_copy_params nothing = {0};
    if (!params) params = &nothing;
    tn_gguf_writer_params how = {.part_bytes = params->part_bytes, .no_data = !tn_gguf_has_data(file)};
    tn_gguf_writer *w = NULL;
    void *piece = NULL;
    tn_status status;
    TN_TRY_GOTO(tn_gguf_writer_new(path, &how, &w), status, out);
    TN_TRY_GOTO(change_keys(w, file, params), status, out);
    TN_TRY_GOTO(add_tensors(w, file, params), status, out);
    if (!(piece = tn_malloc(PIECE))) {
        status = TN_E_NOMEM;
        goto out;
    }
    TN_TRY_GOTO(tn_gguf_writer_begin(w), status, out);
    if (!how.no_data) TN_TRY_GOTO(copy_all_data(w, file, params, piece), status, out);
    status = tn_gguf_writer_finish(w);
    if (params->part_count) *params->part_count = tn_gguf_writer_part_count(w);
out:
    tn_free(piece);
    tn_gguf_writer_free(w);
    return status;
}

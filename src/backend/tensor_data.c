/* Reading, writing and copying tensor data, wherever the tensor lives. */
#include "base/checked.h"
#include "tenon/backend_impl.h"

#include <string.h>

static tn_status check_range(const tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    if (!tensor || (!data && size)) return tn_fail(TN_E_INVALID, "tensor data: missing argument");
    size_t bytes = tn_nbytes(tensor), end;
    if (!tn__add_size(offset, size, &end) || end > bytes)
        return tn_fail(TN_E_INVALID, "'%s': %zu bytes at offset %zu, but the tensor has %zu", tensor->name, size,
                       offset, bytes);
    if (size && !tensor->data) return tn_fail(TN_E_STATE, "'%s' has no memory yet", tensor->name);
    return TN_OK;
}

tn_status tn_tensor_set_at(tn_tensor *tensor, const void *data, size_t offset, size_t size) {
    TN_TRY(check_range(tensor, data, offset, size));
    if (!size) return TN_OK;
    if (tensor->buffer) return tensor->buffer->ops->set(tensor->buffer, tensor, data, offset, size);
    memcpy((char *)tensor->data + offset, data, size);
    return TN_OK;
}

tn_status tn_tensor_get_at(const tn_tensor *tensor, void *data, size_t offset, size_t size) {
    TN_TRY(check_range(tensor, data, offset, size));
    if (!size) return TN_OK;
    if (tensor->buffer) return tensor->buffer->ops->get(tensor->buffer, tensor, data, offset, size);
    memcpy(data, (const char *)tensor->data + offset, size);
    return TN_OK;
}

tn_status tn_tensor_set(tn_tensor *tensor, const void *data) {
    if (!tensor) return tn_fail(TN_E_INVALID, "tn_tensor_set: no tensor");
    return tn_tensor_set_at(tensor, data, 0, tn_nbytes(tensor));
}
tn_status tn_tensor_get(const tn_tensor *tensor, void *data) {
    if (!tensor) return tn_fail(TN_E_INVALID, "tn_tensor_get: no tensor");
    return tn_tensor_get_at(tensor, data, 0, tn_nbytes(tensor));
}

tn_status tn_tensor_fill(tn_tensor *tensor, uint8_t value, size_t offset, size_t size) {
    TN_TRY(check_range(tensor, "", offset, size));
    if (!size) return TN_OK;
    if (tensor->buffer) return tensor->buffer->ops->fill(tensor->buffer, tensor, value, offset, size);
    memset((char *)tensor->data + offset, value, size);
    return TN_OK;
}

static bool on_host(const tn_tensor *tensor) { return !tensor->buffer || tensor->buffer->type->is_host; }

static tn_status load_pieces(tn_tensor *tensor, tn_read_fn read, void *user, size_t size) {
    /* Pieces are large enough to make the fixed cost of a copy negligible. A tensor in a layout of the backend's own
     * is set at once: changing a part of it may be costly. */
    const size_t most = tensor->extra ? size : TN__MIN(size, (size_t)1 << 20);
    void *piece = tn_malloc(most);
    if (!piece) return TN_E_NOMEM;
    tn_status status = TN_OK;
    for (size_t done = 0, part; done < size && status == TN_OK; done += part) {
        part = TN__MIN(size - done, most);
        status = read(user, done, piece, part);
        if (status == TN_OK) status = tn_tensor_set_at(tensor, piece, done, part);
    }
    tn_free(piece);
    return status;
}

static bool loads_itself(const tn_tensor *tensor) { return !on_host(tensor) && tensor->buffer->ops->load; }

tn_status tn_tensors_load(const tn_tensor_source *sources, size_t n) {
    if (!sources && n) return tn_fail(TN_E_INVALID, "tn_tensors_load: missing argument");
    for (size_t i = 0; i < n; i++) {
        if (!sources[i].tensor || !sources[i].read) return tn_fail(TN_E_INVALID, "tn_tensors_load: missing argument");
        TN_TRY(check_range(sources[i].tensor, "", 0, tn_nbytes(sources[i].tensor)));
    }
    for (size_t i = 0, end; i < n; i = end) {
        const tn_tensor_source *s = &sources[i];
        const size_t size = tn_nbytes(s->tensor);
        end = i + 1;
        if (!size) continue;
        if (loads_itself(s->tensor)) {
            while (end < n && sources[end].tensor->buffer == s->tensor->buffer && tn_nbytes(sources[end].tensor))
                end++;
            TN_TRY(s->tensor->buffer->ops->load(s->tensor->buffer, s, end - i));
        } else if (on_host(s->tensor)) {
            TN_TRY(s->read(s->user, 0, s->tensor->data, size));
        } else {
            TN_TRY(load_pieces(s->tensor, s->read, s->user, size));
        }
    }
    return TN_OK;
}
tn_status tn_tensor_load(tn_tensor *tensor, tn_read_fn read, void *user) {
    return tn_tensors_load(&(tn_tensor_source){tensor, read, user}, 1);
}

static tn_status read_tensor(void *from, size_t offset, void *to, size_t size) {
    return tn_tensor_get_at(from, to, offset, size);
}

tn_status tn_tensor_copy(const tn_tensor *from, tn_tensor *to) {
    if (!from || !to) return tn_fail(TN_E_INVALID, "tn_tensor_copy: missing argument");
    if (!tn_same_layout(from, to)) {
        char a[96], b[96];
        return tn_fail(TN_E_SHAPE, "cannot copy %s into %s: their layouts differ", tn_shape_text(from, a, sizeof a),
                       tn_shape_text(to, b, sizeof b));
    }
    size_t size = tn_nbytes(from);
    TN_TRY(check_range(from, "", 0, size));
    TN_TRY(check_range(to, "", 0, size));
    if (!size || from == to) return TN_OK;
    if (to->buffer && to->buffer->ops->copy) {
        tn_status status = to->buffer->ops->copy(to->buffer, from, to);
        if (status != TN_E_UNSUPPORTED) return status;
        tn_error_clear();
    }
    if (on_host(from)) return tn_tensor_set_at(to, from->data, 0, size);
    if (on_host(to)) return tn_tensor_get_at(from, to->data, 0, size);
    /* From a layout of the CPU backend's own: the threads that load the target convert it. */
    if (from->buffer->type->device->kind == TN_DEVICE_CPU && loads_itself(to))
        return tn_tensor_load(to, read_tensor, (void *)(uintptr_t)from);
    /* Between two unrelated devices: through a small buffer on the stack, since a copy must not allocate. */
    unsigned char window[32768];
    for (size_t done = 0; done < size;) {
        size_t part = TN__MIN(size - done, sizeof window);
        TN_TRY(tn_tensor_get_at(from, window, done, part));
        TN_TRY(tn_tensor_set_at(to, window, done, part));
        done += part;
    }
    return TN_OK;
}

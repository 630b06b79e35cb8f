/* Buffer types and buffers: argument checks before a backend's functions, and binding tensors to memory. */
#include "base/checked.h"
#include "tenon/backend_impl.h"

const char *tn_buffer_type_name(const tn_buffer_type *type) { return type ? type->name : "?"; }
tn_device *tn_buffer_type_device(const tn_buffer_type *type) { return type ? type->device : NULL; }
size_t tn_buffer_type_alignment(const tn_buffer_type *type) { return type->alignment; }
size_t tn_buffer_type_max_size(const tn_buffer_type *type) { return type->max_size; }
bool tn_buffer_type_is_host(const tn_buffer_type *type) { return type && type->is_host; }
size_t tn_buffer_type_load_bytes(const tn_buffer_type *type) {
    return type && type->ops->load_bytes ? type->ops->load_bytes(type) : 0;
}

size_t tn_buffer_type_tensor_size(tn_buffer_type *type, const tn_tensor *tensor) {
    return type->ops->tensor_size ? type->ops->tensor_size(type, tensor) : tn_nbytes(tensor);
}

bool tn_buffer_type_wants(tn_buffer_type *type, const tn_tensor *weights, int64_t rows) {
    return type && weights && type->ops->wants && type->ops->wants(type, weights, rows);
}

tn_status tn_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **buffer) {
    if (!type || !buffer) return tn_fail(TN_E_INVALID, "tn_buffer_new: missing argument");
    if (size > type->max_size)
        return tn_fail(TN_E_DEVICE_MEMORY, "%s: %zu bytes are more than one allocation may have (%zu)", type->name,
                       size, type->max_size);
    return type->ops->buffer_new(type, size, buffer);
}

void tn_buffer_free(tn_buffer *buffer) {
    if (buffer) buffer->ops->free(buffer);
}
size_t tn_buffer_size(const tn_buffer *buffer) { return buffer ? buffer->size : 0; }
void *tn_buffer_base(const tn_buffer *buffer) { return buffer ? buffer->base : NULL; }
tn_buffer_type *tn_buffer_get_type(const tn_buffer *buffer) { return buffer ? buffer->type : NULL; }
tn_buffer_usage tn_buffer_get_usage(const tn_buffer *buffer) { return buffer ? buffer->usage : TN_USAGE_ANY; }

tn_buffer_type *tn_tensor_buffer_type(const tn_tensor *tensor) {
    const tn_tensor *root = tensor->view_src ? tensor->view_src : tensor;
    if (root->buffer) return root->buffer->type;
    return root->location ? root->location->type : NULL;
}
tn_buffer_usage tn_tensor_usage(const tn_tensor *tensor) {
    const tn_tensor *root = tensor->view_src ? tensor->view_src : tensor;
    if (root->buffer) return root->buffer->usage;
    return root->location ? root->location->usage : TN_USAGE_ANY;
}
void tn_buffer_set_usage(tn_buffer *buffer, tn_buffer_usage usage) {
    if (buffer) buffer->usage = usage;
}
tn_status tn_buffer_clear(tn_buffer *buffer, uint8_t value) {
    if (!buffer) return tn_fail(TN_E_INVALID, "tn_buffer_clear: no buffer");
    return buffer->size ? buffer->ops->clear(buffer, value) : TN_OK;
}

/* A device keeps its notes about a tensor in the tensor itself, so the backend is not called. */
tn_status tn_buffer_reset(tn_buffer *buffer, tn_arena *arena) {
    if (!buffer) return tn_fail(TN_E_INVALID, "tn_buffer_reset: no buffer");
    tn_tensor *t = NULL;
    while ((t = tn_arena_next_tensor(arena, t))) {
        if (t->buffer != buffer) continue;
        t->data = t->extra = NULL;
        t->buffer = NULL;
        t->flags &= ~(uint32_t)TN_FLAG_PLANNED;
    }
    buffer->usage = TN_USAGE_ANY;
    return TN_OK;
}

tn_status tn_buffer_bind(tn_buffer *buffer, tn_tensor *tensor, size_t offset) {
    if (!buffer || !tensor) return tn_fail(TN_E_INVALID, "tn_buffer_bind: missing argument");
    if (tensor->view_src) return tn_fail(TN_E_INVALID, "'%s' is a view: it is bound with its root", tensor->name);
    size_t size = tn_buffer_type_tensor_size(buffer->type, tensor), end;
    if (offset & (buffer->type->alignment - 1))
        return tn_fail(TN_E_INVALID, "'%s': offset %zu is not a multiple of %zu", tensor->name, offset,
                       buffer->type->alignment);
    if (!tn__add_size(offset, size, &end) || end > buffer->size)
        return tn_fail(TN_E_INVALID, "'%s': %zu bytes at offset %zu lie outside the buffer of %zu", tensor->name,
                       size, offset, buffer->size);
    void *old_data = tensor->data, *old_extra = tensor->extra;
    tn_buffer *old_buffer = tensor->buffer;
    tensor->data = (char *)buffer->base + offset;
    tensor->buffer = buffer;
    tensor->extra = NULL; /* the notes of another buffer's device do not apply */
    tn_status status = buffer->ops->init_tensor ? buffer->ops->init_tensor(buffer, tensor) : TN_OK;
    if (status != TN_OK) {
        tensor->data = old_data;
        tensor->buffer = old_buffer;
        tensor->extra = old_extra;
        return status;
    }
    tensor->flags &= ~(uint32_t)TN_FLAG_PLANNED;
    return TN_OK;
}

tn_status tn_view_bind(tn_tensor *view) {
    if (!view || !view->view_src) return tn_fail(TN_E_INVALID, "tn_view_bind: not a view");
    tn_tensor *root = view->view_src;
    if (!root->data && !tn_is_empty(root))
        return tn_fail(TN_E_STATE, "'%s' is a view of '%s', which has no memory yet", view->name, root->name);
    view->data = root->data ? (char *)root->data + view->view_offset : NULL;
    view->buffer = root->buffer;
    view->extra = NULL;
    if (view->buffer && view->buffer->ops->init_tensor) return view->buffer->ops->init_tensor(view->buffer, view);
    return TN_OK;
}

/* Devices: their properties, and what they support. */
#include "tenon/backend_impl.h"

#include <stdio.h>

const char *tn_device_kind_name(tn_device_kind kind) {
    switch (kind) {
    case TN_DEVICE_CPU: return "cpu";
    case TN_DEVICE_GPU: return "gpu";
    case TN_DEVICE_IGPU: return "integrated gpu";
    case TN_DEVICE_ACCEL: return "accelerator";
    }
    return "?";
}

const char *tn_device_name(const tn_device *device) { return device ? device->name : "?"; }
const char *tn_device_description(const tn_device *device) { return device ? device->description : "?"; }
tn_device_kind tn_device_get_kind(const tn_device *device) { return device->kind; }
tn_device_caps tn_device_get_caps(const tn_device *device) { return device->caps; }

bool tn_device_given_rates(tn_device *device, tn_device_rates *rates) {
    tn_device_rates given = device ? device->rates : (tn_device_rates){0};
    if (rates) *rates = given;
    return given.read > 0 || given.f32 > 0 || given.f16 > 0 || given.i8 > 0 || given.link > 0 || given.launch > 0;
}

bool tn_device_supports_op(tn_device *device, const tn_tensor *node, char *reason, size_t reason_size) {
    char unused[1];
    if (!reason || reason_size == 0) {
        reason = unused;
        reason_size = sizeof unused;
    }
    reason[0] = '\0';
    if (!device || !node || (unsigned)node->op >= TN_OP_COUNT) {
        snprintf(reason, reason_size, "not a node");
        return false;
    }
    /* Views and leaves need no work, so every device supports them. */
    if (tn_op_get_family(node->op) == TN_FAMILY_VIEW || node->op == TN_OP_NONE) return true;
    return device->ops->supports_op(device, node, reason, reason_size);
}

bool tn_device_supports_buffer_type(tn_device *device, const tn_buffer_type *type) {
    return device && type && device->ops->supports_buffer_type(device, type);
}
bool tn_device_wants_op(tn_device *device, const tn_tensor *node) {
    /* Whether a device wants an op depends on its number of rows; the result of a repeatable op must not. */
    if (!device || !node || node->flags & TN_FLAG_REPEATABLE) return false;
    return device->ops->wants_op && device->ops->wants_op(device, node);
}
uint32_t tn_device_inplace_mask(tn_device *device, const tn_tensor *node) {
    if (!device || !node) return 0;
    return device->ops->inplace_mask ? device->ops->inplace_mask(device, node) : tn_op_inplace_mask(node->op);
}
tn_buffer_type *tn_device_buffer_type(tn_device *device) { return device ? device->buffer_type : NULL; }
tn_buffer_type *tn_device_host_buffer_type(tn_device *device) { return device ? device->host_buffer_type : NULL; }
tn_buffer_type *tn_device_extra_buffer_type(tn_device *device, size_t index) {
    return device && device->ops->extra_buffer_type ? device->ops->extra_buffer_type(device, index) : NULL;
}

tn_status tn_device_wrap_host(tn_device *device, void *memory, size_t size, tn_buffer **buffer) {
    if (!device || !buffer || (!memory && size))
        return tn_fail(TN_E_INVALID, "tn_device_wrap_host: missing argument");
    if (!device->ops->wrap_host)
        return tn_fail(TN_E_UNSUPPORTED, "%s cannot compute on memory the caller mapped", device->name);
    return device->ops->wrap_host(device, memory, size, buffer);
}

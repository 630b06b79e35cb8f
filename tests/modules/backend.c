/* A loadable backend for the registry's tests, in four kinds: a good one, one without a usable device, one built for
 * another interface, and one that is no backend at all. It needs nothing from the library. */
#include "tenon/backend_impl.h"

#include <string.h>

#define MODULE_GOOD 1
#define MODULE_NONE 2
#define MODULE_OLD 3
#define MODULE_STRANGER 4

#if MODULE_KIND == MODULE_STRANGER
TN_API int tn_no_backend(void);
int tn_no_backend(void) { return 0; }
#else

static tn_status memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = 1000;
    *total_bytes = 2000;
    return TN_OK;
}
static bool supports_op(tn_device *device, const tn_tensor *node, char *reason, size_t reason_size) { return false; }
static bool supports_buffer_type(tn_device *device, const tn_buffer_type *type) { return false; }
static tn_status no_stream(tn_device *device, const tn_stream_params *params, tn_stream **stream) {
    return TN_E_UNSUPPORTED;
}
static tn_status no_buffer(tn_buffer_type *type, size_t size, tn_buffer **buffer) { return TN_E_UNSUPPORTED; }

static const tn_device_ops ops = {
    .memory = memory,
    .supports_op = supports_op,
    .supports_buffer_type = supports_buffer_type,
    .stream_new = no_stream,
};
static const tn_buffer_type_ops type_ops = {.buffer_new = no_buffer};
static tn_buffer_type type = {.ops = &type_ops, .name = "module0", .alignment = 64, .max_size = 1000};
static tn_device device = {
    .ops = &ops, .name = "module0", .description = "for tests", .kind = TN_DEVICE_ACCEL, .buffer_type = &type};

static tn_device described = {
    .ops = &ops, .name = "module:two", .description = "described", .kind = TN_DEVICE_ACCEL, .buffer_type = &type};
static tn_status describe(const char *spec, tn_device **made) {
    if (strcmp(spec, "two") != 0) return TN_E_INVALID;
    *made = &described;
    return TN_OK;
}

TN_API tn_status tn_backend_entry(tn_backend_module *module);
tn_status tn_backend_entry(tn_backend_module *module) {
    static tn_device *const devices[] = {&device};
    module->interface = MODULE_KIND == MODULE_OLD ? TN_BACKEND_INTERFACE + 1 : TN_BACKEND_INTERFACE;
    module->name = "module";
    module->n_devices = MODULE_KIND == MODULE_NONE ? 0 : 1;
    module->devices = devices;
    if (MODULE_KIND == MODULE_GOOD) module->describe = describe;
    return TN_OK;
}
#endif

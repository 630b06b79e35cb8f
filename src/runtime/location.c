/* Where tensors live that a schedule does not plan: in memory the caller gave them, or declared before it exists. */
#include "runtime/sched_internal.h"

void tn_sched_set_locations(tn_sched *s, tn_location_fn location_of, void *user) {
    s->location_of = location_of;
    s->location_user = user;
}

bool tn__sched_location(const tn_sched *s, const tn_tensor *t, tn_location *location) {
    const tn_tensor *root = t->view_src ? t->view_src : t;
    if (!tn__is_external(root)) return s->location_of && s->location_of(s->location_user, root, location);
    location->type = root->buffer ? tn_buffer_get_type(root->buffer) : s->core->types[s->core->n_streams - 1];
    location->usage = tn_buffer_get_usage(root->buffer);
    return true;
}

bool tn__sched_is_weight(const tn_sched *s, const tn_tensor *t) {
    tn_location location;
    return t->op == TN_OP_NONE && tn__sched_location(s, t, &location) && location.usage == TN_USAGE_WEIGHTS;
}

tn_buffer_type *tn__sched_memory_type(const tn_sched *s, const tn_tensor *t, int stream) {
    tn_location location;
    return tn__sched_location(s, t, &location) ? location.type : s->core->types[stream];
}

/* ---- Asking devices ---- */

/* A node whose sources carry their declared locations. Devices decide by the memory of sources, and the caller's
 * tensors, which several sessions may share, are not written to: the device is asked about copies. */
typedef struct located_node {
    tn_tensor node, sources[TN_MAX_SRC], roots[TN_MAX_SRC];
    tn_location locations[TN_MAX_SRC];
} located_node;

static const tn_tensor *with_locations(const tn_sched *s, const tn_tensor *node, located_node *copy) {
    const tn_tensor *result = node;
    for (int i = 0; s->location_of && i < TN_MAX_SRC; i++) {
        const tn_tensor *source = node->src[i];
        if (!source) continue;
        const tn_tensor *root = source->view_src ? source->view_src : source;
        if (tn__is_external(root) || !tn__sched_location(s, root, &copy->locations[i])) continue;
        if (result == node) copy->node = *node;
        copy->roots[i] = *root;
        copy->roots[i].location = &copy->locations[i];
        copy->sources[i] = *source;
        copy->sources[i].view_src = &copy->roots[i];
        copy->node.src[i] = source == root ? &copy->roots[i] : &copy->sources[i];
        result = &copy->node;
    }
    return result;
}

static tn_device *device_of_stream(const tn_sched *s, int stream) {
    return tn_stream_device(s->core->streams[stream]);
}

bool tn__sched_supports_op(const tn_sched *s, int stream, const tn_tensor *node, char *reason, size_t size) {
    located_node copy;
    return tn_device_supports_op(device_of_stream(s, stream), with_locations(s, node, &copy), reason, size);
}

bool tn__sched_wants_op(const tn_sched *s, int stream, const tn_tensor *node) {
    located_node copy;
    return tn_device_wants_op(device_of_stream(s, stream), with_locations(s, node, &copy));
}

/* Which stream runs which node: a few passes from what is certain to what follows from it. */
#include "runtime/sched_internal.h"

#include <string.h>

typedef struct job {
    const tn_sched *sched;
    const tn_graph *graph;
    tn__place *places;
    size_t n_nodes, n_leaves;
} job;

const char *tn__cause_text(tn__cause cause) {
    static const char *const texts[] = {
#define TN_X(name, text) text,
        TN__CAUSE_TABLE(TN_X)
#undef TN_X
    };
    return texts[cause];
}

static tn_device *device_of(const tn_sched *sched, int stream) {
    return tn_stream_device(sched->core->streams[stream]);
}

tn_buffer_type *tn__sched_memory_type(const tn_sched *sched, const tn_tensor *tensor, int stream) {
    const tn_tensor *root = tensor->view_src ? tensor->view_src : tensor;
    if (!tn__has_own_data(root)) return sched->core->types[stream];
    return root->buffer ? tn_buffer_get_type(root->buffer) : sched->core->types[sched->core->n_streams - 1];
}

static tn__place *place_of(const job *j, const tn_tensor *t) {
    uint32_t index = tn_graph_index(j->graph, t);
    return index == TN_GRAPH_NONE ? NULL : &j->places[index];
}
static bool supports(const job *j, int stream, const tn_tensor *node) {
    return tn_device_supports_op(device_of(j->sched, stream), node, NULL, 0);
}
static void assign(tn__place *place, int stream, tn__cause cause) {
    place->stream = (int16_t)stream;
    place->cause = (uint8_t)cause;
}

/* The stream for memory that exists: the device it belongs to, else the first that can read it. */
static int backend_of_memory(const tn_sched *sched, const tn_tensor *t) {
    const tn_tensor *root = t->view_src ? t->view_src : t;
    int cpu = (int)sched->core->n_streams - 1;
    if (!tn__has_own_data(root)) return -1;
    if (!root->buffer) return cpu;
    tn_buffer_type *type = tn_buffer_get_type(root->buffer);
    for (int b = 0; b <= cpu; b++)
        if (tn_buffer_type_device(type) == device_of(sched, b)) return b;
    for (int b = 0; b <= cpu; b++)
        if (tn_device_supports_buffer_type(device_of(sched, b), type)) return b;
    return -1;
}

static void place_leaves(const job *j) {
    int cpu = (int)j->sched->core->n_streams - 1;
    for (size_t i = 0; i < j->n_leaves; i++) {
        const tn_tensor *t = tn_graph_leaf(j->graph, i);
        tn__place *place = &j->places[j->n_nodes + i];
        int pin = tn__pins_get(&j->sched->pins, t), there = backend_of_memory(j->sched, t);
        if (there >= 0)
            assign(place, there, TN__CAUSE_DATA);
        else if (pin >= 0)
            assign(place, pin, TN__CAUSE_PINNED);
        else if (t->flags & TN_FLAG_INPUT)
            assign(place, cpu, TN__CAUSE_INPUT);
    }
}

/* A node that uses weights goes to them, unless they lie on the host and a faster device wants the op. */
static void follow_weights(const job *j, const tn_tensor *t, tn__place *place) {
    int cpu = (int)j->sched->core->n_streams - 1;
    for (int s = 0; s < TN_MAX_SRC; s++) {
        const tn_tensor *source = t->src[s];
        const tn_tensor *root = source ? (source->view_src ? source->view_src : source) : NULL;
        if (!root || root->op != TN_OP_NONE || !tn__has_own_data(root) || !root->buffer ||
            tn_buffer_get_usage(root->buffer) != TN_USAGE_WEIGHTS)
            continue;
        const tn__place *weights = place_of(j, root);
        if (!weights || weights->stream < 0) continue;
        if (weights->stream == cpu) {
            for (int b = 0; b < cpu; b++) {
                if (tn_device_wants_op(device_of(j->sched, b), t) && supports(j, b, t)) {
                    assign(place, b, TN__CAUSE_OFFLOAD);
                    return;
                }
            }
        }
        if (supports(j, weights->stream, t)) {
            assign(place, weights->stream, TN__CAUSE_WEIGHTS);
            return;
        }
    }
}

static void place_certain_nodes(const job *j) {
    for (size_t i = 0; i < j->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        tn__place *place = &j->places[i];
        int pin = tn__pins_get(&j->sched->pins, t);
        if (pin >= 0) {
            assign(place, pin, TN__CAUSE_PINNED);
            continue;
        }
        const tn__place *root = t->view_src ? place_of(j, t->view_src) : NULL;
        if (tn__is_view_op(t)) continue;
        if (root && root->stream >= 0 && supports(j, root->stream, t)) {
            assign(place, root->stream, TN__CAUSE_WRITES);
            continue;
        }
        int there = backend_of_memory(j->sched, t);
        if (there >= 0 && supports(j, there, t))
            assign(place, there, TN__CAUSE_DATA);
        else
            follow_weights(j, t, place);
    }
}

/* Carries assignments over runs of unassigned nodes. With `gpu_only` the CPU's are not carried and end a run. */
static void spread(const job *j, bool forward, bool gpu_only) {
    int cpu = (int)j->sched->core->n_streams - 1, current = -1;
    for (size_t k = 0; k < j->n_nodes; k++) {
        size_t i = forward ? k : j->n_nodes - 1 - k;
        const tn_tensor *t = tn_graph_node(j->graph, i);
        if (tn__is_view_op(t)) continue;
        tn__place *place = &j->places[i];
        if (place->stream >= 0)
            current = gpu_only && place->stream == cpu ? -1 : place->stream;
        else if (current >= 0 && supports(j, current, t))
            assign(place, current, TN__CAUSE_NEXT_TO);
    }
}

/* Sources of t that stream b can read where they are. */
static int readable_sources(const job *j, const tn_tensor *t, int b) {
    int count = 0;
    for (int s = 0; s < TN_MAX_SRC; s++) {
        const tn__place *source = t->src[s] ? place_of(j, t->src[s]) : NULL;
        if (!source || source->stream < 0) continue;
        count += tn_device_supports_buffer_type(device_of(j->sched, b),
                                                tn__sched_memory_type(j->sched, t->src[s], source->stream));
    }
    return count;
}

static void place_the_rest(const job *j) {
    for (size_t i = 0; i < j->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        tn__place *place = &j->places[i];
        if (tn__is_view_op(t)) continue;
        if (place->stream < 0) {
            int best = -1, most = -1;
            for (int b = 0; b < (int)j->sched->core->n_streams; b++) {
                if (!supports(j, b, t)) continue;
                int count = readable_sources(j, t, b);
                if (count > most) {
                    most = count;
                    best = b;
                }
            }
            if (best >= 0) assign(place, best, TN__CAUSE_SOURCES);
        } else if (place->cause != TN__CAUSE_PINNED) {
            /* A device of higher priority that works on the very same memory costs no copy. */
            for (int b = 0; b < place->stream; b++) {
                if (j->sched->core->types[b] == j->sched->core->types[place->stream] && supports(j, b, t)) {
                    assign(place, b, TN__CAUSE_UPGRADED);
                    break;
                }
            }
        }
    }
}

/* What writes into another tensor's memory runs where that is; or that moves to the writer, if only the writer's
 * device can. */
static void place_writers(const job *j) {
    for (size_t i = 0; i < j->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        tn__place *place = &j->places[i], *root = t->view_src ? place_of(j, t->view_src) : NULL;
        if (tn__is_view_op(t) || !root || root->stream < 0 || root->stream == place->stream) continue;
        bool root_stays = root->cause == TN__CAUSE_PINNED || tn__has_own_data(t->view_src);
        if (place->cause != TN__CAUSE_PINNED && supports(j, root->stream, t))
            assign(place, root->stream, TN__CAUSE_WRITES);
        else if (place->stream >= 0 && !root_stays &&
                 (t->view_src->op == TN_OP_NONE || supports(j, place->stream, t->view_src)))
            assign(root, place->stream, TN__CAUSE_WRITTEN);
    }
}

static void place_sources_and_views(const job *j) {
    for (size_t i = 0; i < j->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        for (int s = 0; s < TN_MAX_SRC; s++) {
            const tn_tensor *source = t->src[s];
            tn__place *place = source ? place_of(j, source->view_src ? source->view_src : source) : NULL;
            if (place && place->stream < 0 && j->places[i].stream >= 0)
                assign(place, j->places[i].stream, TN__CAUSE_READER);
        }
    }
    for (size_t i = 0; i < j->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        if (!tn__is_view_op(t)) continue;
        const tn__place *root = place_of(j, t->view_src);
        if (root && root->stream >= 0) assign(&j->places[i], root->stream, TN__CAUSE_VIEW);
    }
    /* What nothing computes with lives on the host. */
    for (size_t i = 0; i < j->n_nodes + j->n_leaves; i++)
        if (j->places[i].stream < 0 && (i >= j->n_nodes || tn__is_view_op(tn_graph_node(j->graph, i))))
            assign(&j->places[i], (int)j->sched->core->n_streams - 1, TN__CAUSE_ONLY);
}

static tn_status nobody_supports(const job *j, const tn_tensor *t) {
    char text[128], reason[256];
    tn_fail(TN_E_UNSUPPORTED, "no device runs %s → %s (", tn_op_name(t->op), tn_shape_text(t, text, sizeof text));
    for (int s = 0; s < TN_MAX_SRC; s++)
        if (t->src[s])
            tn_fail_more(TN_E_UNSUPPORTED, "%s%s", s ? ", " : "", tn_shape_text(t->src[s], text, sizeof text));
    tn_fail_more(TN_E_UNSUPPORTED, ")%s%s:", t->name[0] ? " " : "", t->name);
    for (size_t b = 0; b < j->sched->core->n_streams; b++) {
        tn_device *device = device_of(j->sched, (int)b);
        reason[0] = '\0';
        tn_device_supports_op(device, t, reason, sizeof reason);
        tn_fail_more(TN_E_UNSUPPORTED, " %s: %s;", tn_device_name(device), reason[0] ? reason : "no reason given");
    }
    return TN_E_UNSUPPORTED;
}

/* Whether the node's result lies in memory that its device can write: the caller may have put it, or what it writes
 * into, elsewhere. */
static bool can_write(const job *j, const tn_tensor *t, int stream) {
    const tn_tensor *root = t->view_src ? t->view_src : t;
    const tn__place *place = place_of(j, root);
    if (!place || place->stream < 0) return true;
    return tn_device_supports_buffer_type(device_of(j->sched, stream),
                                          tn__sched_memory_type(j->sched, root, place->stream));
}

/* Every node must be able to run where it is. */
static tn_status check(const job *j) {
    for (size_t i = 0; i < j->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        tn__place *place = &j->places[i];
        if (tn__is_view_op(t)) continue;
        if (place->stream >= 0 && supports(j, place->stream, t)) {
            if (can_write(j, t, place->stream)) continue;
            return tn_fail(TN_E_UNSUPPORTED, "'%s' (%s) would run on %s, which cannot write the memory it goes to",
                           t->name, tn_op_name(t->op), tn_device_name(device_of(j->sched, place->stream)));
        }
        if (place->cause == TN__CAUSE_PINNED)
            return tn_fail(TN_E_UNSUPPORTED, "'%s' (%s) is pinned to %s, which does not support it", t->name,
                           tn_op_name(t->op), tn_device_name(device_of(j->sched, place->stream)));
        return nobody_supports(j, t);
    }
    return TN_OK;
}

tn_status tn__sched_assign(const tn_sched *sched, const tn_graph *graph, tn__place *places) {
    job j = {sched, graph, places, tn_graph_node_count(graph), tn_graph_leaf_count(graph)};
    for (size_t i = 0; i < j.n_nodes + j.n_leaves; i++) assign(&places[i], -1, TN__CAUSE_NONE);
    place_leaves(&j);
    place_certain_nodes(&j);
    spread(&j, true, true);
    spread(&j, false, true);
    spread(&j, true, false);
    spread(&j, false, false);
    place_the_rest(&j);
    place_writers(&j);
    TN_TRY(tn__sched_trim_borders(sched, graph, places));
    place_sources_and_views(&j);
    return check(&j);
}

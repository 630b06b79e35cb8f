/* Which stream runs which node: a few passes, from what is certain to what follows from it. */
#include "runtime/sched_internal.h"

#include <string.h>

typedef struct assigner {
    const tn_sched *sched;
    const tn_graph *graph;
    tn__assignment *assigned;
    size_t n_nodes, n_leaves;
} assigner;

const char *tn__cause_text(tn__cause cause) {
    static const char *const texts[] = {
#define TN_X(name, text) text,
        TN__CAUSE_TABLE(TN_X)
#undef TN_X
    };
    return texts[cause];
}

static int cpu_stream(const assigner *a) { return (int)a->sched->core->n_streams - 1; }

static tn__assignment *assignment_of(const assigner *a, const tn_tensor *t) {
    uint32_t index = tn_graph_index(a->graph, t);
    return index == TN_GRAPH_NONE ? NULL : &a->assigned[index];
}
static bool stream_supports(const assigner *a, int stream, const tn_tensor *node) {
    return tn__sched_supports_op(a->sched, stream, node, NULL, 0);
}
static void assign_stream(tn__assignment *assignment, int stream, tn__cause cause) {
    assignment->stream = (int16_t)stream;
    assignment->cause = (uint8_t)cause;
}

/* The stream for memory that exists or is declared: that of its device, else the first that can read it. */
static int stream_of_memory(const assigner *a, const tn_tensor *t) {
    tn_location location;
    const tn_tensor *root = t->view_src ? t->view_src : t;
    tn_stream *const *streams = a->sched->core->streams;
    int cpu = cpu_stream(a);
    if (!tn__sched_location(a->sched, root, &location)) return -1;
    if (tn__is_external(root) && !root->buffer) return cpu;
    for (int b = 0; b <= cpu; b++)
        if (tn_buffer_type_device(location.type) == tn_stream_device(streams[b])) return b;
    for (int b = 0; b <= cpu; b++)
        if (tn_device_supports_buffer_type(tn_stream_device(streams[b]), location.type)) return b;
    return -1;
}

static void assign_leaves(const assigner *a) {
    for (size_t i = 0; i < a->n_leaves; i++) {
        const tn_tensor *t = tn_graph_leaf(a->graph, i);
        tn__assignment *leaf = &a->assigned[a->n_nodes + i];
        int pin = tn__pins_get(&a->sched->pins, t), there = stream_of_memory(a, t);
        if (there >= 0)
            assign_stream(leaf, there, TN__CAUSE_DATA);
        else if (pin >= 0)
            assign_stream(leaf, pin, TN__CAUSE_PINNED);
        else if (t->flags & TN_FLAG_INPUT)
            assign_stream(leaf, cpu_stream(a), TN__CAUSE_INPUT);
    }
}

/* A node that uses weights runs where they are, unless they are on the host and a faster device wants the op. */
static void follow_weights(const assigner *a, const tn_tensor *t, tn__assignment *node) {
    int cpu = cpu_stream(a);
    for (int s = 0; s < TN_MAX_SRC; s++) {
        const tn_tensor *source = t->src[s];
        const tn_tensor *root = source ? (source->view_src ? source->view_src : source) : NULL;
        if (!root || !tn__sched_is_weight(a->sched, root)) continue;
        const tn__assignment *weights = assignment_of(a, root);
        if (!weights || weights->stream < 0) continue;
        if (weights->stream == cpu) {
            for (int b = 0; b < cpu; b++) {
                if (tn__sched_wants_op(a->sched, b, t) && stream_supports(a, b, t)) {
                    assign_stream(node, b, TN__CAUSE_OFFLOAD);
                    return;
                }
            }
        }
        if (stream_supports(a, weights->stream, t)) {
            assign_stream(node, weights->stream, TN__CAUSE_WEIGHTS);
            return;
        }
    }
}

static void assign_certain_nodes(const assigner *a) {
    for (size_t i = 0; i < a->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(a->graph, i);
        tn__assignment *node = &a->assigned[i];
        int pin = tn__pins_get(&a->sched->pins, t);
        if (pin >= 0) {
            assign_stream(node, pin, TN__CAUSE_PINNED);
            continue;
        }
        if (tn__is_view_op(t)) continue;
        const tn_tensor *written = tn__written_root(t);
        const tn__assignment *root = written ? assignment_of(a, written) : NULL;
        if (root && root->stream >= 0 && stream_supports(a, root->stream, t)) {
            assign_stream(node, root->stream, TN__CAUSE_WRITES);
            continue;
        }
        int there = stream_of_memory(a, t);
        if (there >= 0 && stream_supports(a, there, t))
            assign_stream(node, there, TN__CAUSE_DATA);
        else
            follow_weights(a, t, node);
    }
}

/* Carries assignments over runs of unassigned nodes. With `gpu_only` those of the CPU are not carried and end a run.
 */
static void spread_assignments(const assigner *a, bool forward, bool gpu_only) {
    int current = -1;
    for (size_t k = 0; k < a->n_nodes; k++) {
        size_t i = forward ? k : a->n_nodes - 1 - k;
        const tn_tensor *t = tn_graph_node(a->graph, i);
        if (tn__is_view_op(t)) continue;
        tn__assignment *node = &a->assigned[i];
        if (node->stream >= 0)
            current = gpu_only && node->stream == cpu_stream(a) ? -1 : node->stream;
        else if (current >= 0 && stream_supports(a, current, t))
            assign_stream(node, current, TN__CAUSE_NEXT_TO);
    }
}

/* Sources of t that stream b can read where they are. */
static int count_readable_sources(const assigner *a, const tn_tensor *t, int b) {
    int count = 0;
    for (int s = 0; s < TN_MAX_SRC; s++) {
        const tn__assignment *source = t->src[s] ? assignment_of(a, t->src[s]) : NULL;
        if (!source || source->stream < 0) continue;
        count += tn_device_supports_buffer_type(tn_stream_device(a->sched->core->streams[b]),
                                                tn__sched_memory_type(a->sched, t->src[s], source->stream));
    }
    return count;
}

static void assign_remaining_nodes(const assigner *a) {
    for (size_t i = 0; i < a->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(a->graph, i);
        tn__assignment *node = &a->assigned[i];
        if (tn__is_view_op(t)) continue;
        if (node->stream < 0) {
            int best = -1, most = -1;
            for (int b = 0; b < (int)a->sched->core->n_streams; b++) {
                if (!stream_supports(a, b, t)) continue;
                int count = count_readable_sources(a, t, b);
                if (count > most) {
                    most = count;
                    best = b;
                }
            }
            if (best >= 0) assign_stream(node, best, TN__CAUSE_SOURCES);
        } else if (node->cause != TN__CAUSE_PINNED) {
            /* A device of higher priority that uses the same memory costs no copy. */
            for (int b = 0; b < node->stream; b++) {
                if (a->sched->core->types[b] == a->sched->core->types[node->stream] && stream_supports(a, b, t)) {
                    assign_stream(node, b, TN__CAUSE_UPGRADED);
                    break;
                }
            }
        }
    }
}

/* A node that writes into another tensor's memory runs where that is. Where only the writer's device can compute it,
 * the tensor moves to the writer. */
static void assign_writers(const assigner *a) {
    for (size_t i = 0; i < a->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(a->graph, i);
        const tn_tensor *written = tn__written_root(t);
        tn__assignment *node = &a->assigned[i], *root = written ? assignment_of(a, written) : NULL;
        if (!root || root->stream < 0 || root->stream == node->stream) continue;
        tn_location location;
        bool root_stays = root->cause == TN__CAUSE_PINNED || tn__sched_location(a->sched, written, &location);
        if (node->cause != TN__CAUSE_PINNED && stream_supports(a, root->stream, t))
            assign_stream(node, root->stream, TN__CAUSE_WRITES);
        else if (node->stream >= 0 && !root_stays &&
                 (written->op == TN_OP_NONE || stream_supports(a, node->stream, written)))
            assign_stream(root, node->stream, TN__CAUSE_WRITTEN);
    }
}

static void assign_sources_and_views(const assigner *a) {
    for (size_t i = 0; i < a->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(a->graph, i);
        for (int s = 0; s < TN_MAX_SRC; s++) {
            const tn_tensor *source = t->src[s];
            tn__assignment *read = source ? assignment_of(a, source->view_src ? source->view_src : source) : NULL;
            if (read && read->stream < 0 && a->assigned[i].stream >= 0)
                assign_stream(read, a->assigned[i].stream, TN__CAUSE_READER);
        }
    }
    for (size_t i = 0; i < a->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(a->graph, i);
        if (!tn__is_view_op(t)) continue;
        const tn__assignment *root = assignment_of(a, t->view_src);
        if (root && root->stream >= 0) assign_stream(&a->assigned[i], root->stream, TN__CAUSE_VIEW);
    }
    /* Tensors that no node computes with live on the host. */
    for (size_t i = 0; i < a->n_nodes + a->n_leaves; i++)
        if (a->assigned[i].stream < 0 && (i >= a->n_nodes || tn__is_view_op(tn_graph_node(a->graph, i))))
            assign_stream(&a->assigned[i], cpu_stream(a), TN__CAUSE_ONLY);
}

static tn_status fail_unsupported(const assigner *a, const tn_tensor *t) {
    char text[128], reason[256];
    tn_fail(TN_E_UNSUPPORTED, "no device runs %s → %s (", tn_op_name(t->op), tn_shape_text(t, text, sizeof text));
    for (int s = 0; s < TN_MAX_SRC; s++)
        if (t->src[s])
            tn_fail_more(TN_E_UNSUPPORTED, "%s%s", s ? ", " : "", tn_shape_text(t->src[s], text, sizeof text));
    tn_fail_more(TN_E_UNSUPPORTED, ")%s%s:", t->name[0] ? " " : "", t->name);
    for (size_t b = 0; b < a->sched->core->n_streams; b++) {
        reason[0] = '\0';
        tn__sched_supports_op(a->sched, (int)b, t, reason, sizeof reason);
        tn_fail_more(TN_E_UNSUPPORTED, " %s: %s;", tn_device_name(tn_stream_device(a->sched->core->streams[b])),
                     reason[0] ? reason : "no reason given");
    }
    return TN_E_UNSUPPORTED;
}

static bool can_write(const assigner *a, const tn_tensor *root, int stream) {
    const tn__assignment *assignment = assignment_of(a, root);
    if (!assignment || assignment->stream < 0) return true;
    return tn_device_supports_buffer_type(tn_stream_device(a->sched->core->streams[stream]),
                                          tn__sched_memory_type(a->sched, root, assignment->stream));
}
/* The tensor that the node writes and the stream's device cannot, or NULL: the caller may have put its result, or the
 * tensor it writes into, into memory of another device. */
static const tn_tensor *unwritable(const assigner *a, const tn_tensor *t, int stream) {
    const tn_tensor *root = t->view_src ? t->view_src : t, *written = tn__written_root(t);
    if (!can_write(a, root, stream)) return root;
    return written && !can_write(a, written, stream) ? written : NULL;
}

/* Every node must be able to run where it is assigned. */
static tn_status check_assignments(const assigner *a) {
    for (size_t i = 0; i < a->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(a->graph, i);
        const tn__assignment *node = &a->assigned[i];
        if (tn__is_view_op(t)) continue;
        if (node->stream < 0) return fail_unsupported(a, t);
        const char *device = tn_device_name(tn_stream_device(a->sched->core->streams[node->stream]));
        if (stream_supports(a, node->stream, t)) {
            const tn_tensor *written = unwritable(a, t, node->stream);
            if (!written) continue;
            return tn_fail(TN_E_UNSUPPORTED, "'%s' (%s) would run on %s, which cannot write the memory of %s '%s'",
                           t->name, tn_op_name(t->op), device,
                           written == tn__written_root(t) ? "the tensor" : "its result", written->name);
        }
        if (node->cause == TN__CAUSE_PINNED)
            return tn_fail(TN_E_UNSUPPORTED, "'%s' (%s) is pinned to %s, which does not support it", t->name,
                           tn_op_name(t->op), device);
        return fail_unsupported(a, t);
    }
    return TN_OK;
}

tn_status tn__sched_assign(const tn_sched *sched, const tn_graph *graph, tn__assignment *assigned) {
    assigner a = {sched, graph, assigned, tn_graph_node_count(graph), tn_graph_leaf_count(graph)};
    for (size_t i = 0; i < a.n_nodes + a.n_leaves; i++) assign_stream(&assigned[i], -1, TN__CAUSE_NONE);
    assign_leaves(&a);
    assign_certain_nodes(&a);
    spread_assignments(&a, true, true);
    spread_assignments(&a, false, true);
    spread_assignments(&a, true, false);
    spread_assignments(&a, false, false);
    assign_remaining_nodes(&a);
    assign_writers(&a);
    TN_TRY(tn__sched_trim_borders(sched, graph, assigned));
    assign_sources_and_views(&a);
    return check_assignments(&a);
}

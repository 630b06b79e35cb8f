/* Borders between devices: cheap nodes there move to the side from which fewer bytes are copied.
 *
 * Assignments spread backwards from a GPU's first weights and so include the last additions of the layer before. All
 * sources of these nodes would be copied, where copying their one result is enough. */
#include "runtime/sched_internal.h"

/* Nodes examined behind a border. Layers end in few cheap nodes. */
enum { MAX_MOVES = 16 };

typedef struct border {
    const tn_sched *sched;
    const tn_graph *graph;
    tn__assignment *assigned;
    size_t n_nodes;
    bool *written;     /* by node: others write into its memory and must run on its device */
    uint32_t *readers; /* [tensor * n_streams + stream]: how many nodes there read it, or a view of it */
} border;

static const tn_tensor *root_of(const tn_tensor *t) { return t->view_src ? t->view_src : t; }

/* Whether a tensor assigned to `from` must be copied to be read on `to`. */
static bool crosses(const border *b, const tn_tensor *root, int from, int to) {
    if (from < 0 || from == to) return false;
    return !tn_device_supports_buffer_type(tn_stream_device(b->sched->core->streams[to]),
                                           tn__sched_memory_type(b->sched, root, from));
}

static void count_readers(const border *b) {
    for (size_t i = 0; i < b->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(b->graph, i);
        if (tn__is_view_op(t) || b->assigned[i].stream < 0) continue;
        const tn_tensor *written = tn__written_root(t);
        uint32_t root = written ? tn_graph_index(b->graph, written) : TN_GRAPH_NONE;
        if (root < b->n_nodes) b->written[root] = true;
        for (int s = 0; s < TN_MAX_SRC; s++)
            if (t->src[s])
                b->readers[tn_graph_index(b->graph, root_of(t->src[s])) * b->sched->core->n_streams +
                           (size_t)b->assigned[i].stream]++;
    }
}

/* Moves node i. Returns how many more bytes are copied now. */
static int64_t move_node(const border *b, size_t i, int to) {
    const tn_tensor *t = tn_graph_node(b->graph, i);
    int from = b->assigned[i].stream;
    int64_t more = 0;
    for (int s = 0; s < TN_MAX_SRC; s++) {
        if (!t->src[s]) continue;
        const tn_tensor *root = root_of(t->src[s]);
        uint32_t index = tn_graph_index(b->graph, root);
        uint32_t *readers = &b->readers[index * b->sched->core->n_streams];
        int there = b->assigned[index].stream;
        int64_t bytes = (int64_t)tn_nbytes(root);
        if (--readers[from] == 0 && crosses(b, root, there, from)) more -= bytes;
        if (readers[to]++ == 0 && crosses(b, root, there, to)) more += bytes;
    }
    const uint32_t *readers = &b->readers[i * b->sched->core->n_streams];
    for (int r = 0; r < (int)b->sched->core->n_streams; r++) {
        if (!readers[r]) continue;
        if (crosses(b, t, from, r)) more -= (int64_t)tn_nbytes(t);
        if (crosses(b, t, to, r)) more += (int64_t)tn_nbytes(t);
    }
    b->assigned[i].stream = (int16_t)to;
    return more;
}

/* Only nodes assigned by their neighbours, and cheap enough for the slower device. */
static bool may_move(const border *b, size_t i, int to) {
    const tn_tensor *t = tn_graph_node(b->graph, i);
    tn_op_family family = tn_op_get_family(t->op);
    bool cheap = family != TN_FAMILY_MATMUL && family != TN_FAMILY_ATTENTION && family != TN_FAMILY_CONV &&
                 family != TN_FAMILY_CUSTOM;
    return cheap && !tn__written_root(t) && !b->written[i] && b->assigned[i].cause == TN__CAUSE_NEXT_TO &&
           tn__sched_supports_op(b->sched, to, t, NULL, 0);
}

/* Moves nodes from `first` on, one after another, to the device in front of the border; keeps the number of moves
 * that copies the fewest bytes. */
static void try_border_moves(const border *b, size_t first, int to) {
    size_t moved[MAX_MOVES], n = 0, best = 0;
    int from = b->assigned[first].stream;
    int64_t sum = 0, least = 0;
    for (size_t i = first; i < b->n_nodes && n < MAX_MOVES; i++) {
        if (tn__is_view_op(tn_graph_node(b->graph, i))) continue;
        if (b->assigned[i].stream != from || !may_move(b, i, to)) break;
        sum += move_node(b, i, to);
        moved[n++] = i;
        if (sum < least) {
            least = sum;
            best = n;
        }
    }
    for (size_t k = 0; k < best; k++) b->assigned[moved[k]].cause = TN__CAUSE_BORDER;
    while (n > best) (void)move_node(b, moved[--n], from);
}

tn_status tn__sched_trim_borders(const tn_sched *sched, const tn_graph *graph, tn__assignment *assigned) {
    border b = {sched, graph, assigned, tn_graph_node_count(graph), NULL, NULL};
    if (sched->core->n_streams < 2) return TN_OK;
    b.readers = tn_calloc(b.n_nodes + tn_graph_leaf_count(graph) + 1, sched->core->n_streams * sizeof *b.readers);
    b.written = tn_calloc(b.n_nodes + 1, sizeof *b.written);
    if (!b.readers || !b.written) {
        tn_free(b.readers);
        tn_free(b.written);
        return TN_E_NOMEM;
    }
    count_readers(&b);
    int before = -1;
    for (size_t i = 0; i < b.n_nodes; i++) {
        if (tn__is_view_op(tn_graph_node(graph, i))) continue;
        if (before >= 0 && assigned[i].stream >= 0 && assigned[i].stream != before && may_move(&b, i, before))
            try_border_moves(&b, i, before);
        before = assigned[i].stream;
    }
    tn_free(b.readers);
    tn_free(b.written);
    return TN_OK;
}

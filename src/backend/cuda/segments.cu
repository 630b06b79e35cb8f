// Segments: parts of a launch list that are queued one after the other, so that an abort callback can stop a program.
//
// Work that is queued cannot be taken back. With a callback, the host therefore keeps at most two segments queued: it
// waits for the last but one before it queues the next, and asks in between. The device always has a segment to run
// while the host asks. Without a callback a program is one segment and the host never waits.
#include "backend/cuda/compile.cuh"

#include <algorithm>
#include <stdlib.h>

// An abort takes effect after at most two segments. Estimates are at most a few times too short, on a GPU that is
// shared or throttled, so 50 ms hold.
static const uint64_t SEGMENT_NS = 8000000;
// For tests: TENON_CUDA_SEGMENT_US; 0 gives every launch a segment of its own.
uint64_t segment_max_ns(void) {
    const char *wanted = getenv("TENON_CUDA_SEGMENT_US");
    return wanted && *wanted ? strtoull(wanted, NULL, 10) * 1000 : SEGMENT_NS;
}

// ---- Estimates ----
// Rates that every GPU of a class exceeds, for each multiprocessor. They only have to bound the time: a GPU that is
// faster gets more segments, of which each costs it a few microseconds.

struct device_rates {
    double tensor, scalar, read; // operations and bytes per nanosecond
};
static device_rates rates_of(const device_description &d) {
    // A fifth of the peak rate of tensor cores with dense f16, and less than half of the memory's rate.
    bool server = d.minor == 0 && (d.major == 8 || d.major == 9 || d.major == 10); // A100, H100, B200: HBM
    double per_multiprocessor = server ? (d.major == 8 ? 600 : 1200) : 300, read = server ? 15 : 6;
    double n = d.multiprocessors;
    return {per_multiprocessor * n, 100 * n, read * n};
}
static double node_ns(const device_rates &rates, const tn_tensor *t) {
    double bytes = (double)tn_nbytes(t), operations = 0, rate = rates.tensor;
    const tn_tensor *x = t->src[0];
    if (t->op == TN_OP_MUL_MAT || t->op == TN_OP_MUL_MAT_ID) {
        operations = 2.0 * (double)x->ne[0] * (double)tn_nelements(t);
        bytes += (double)tn_nbytes(x);
        // Weights of block types are converted to f16, which is written and read again.
        if (tn_type_is_quantized(x->type) && t->ne[1] > 8) bytes += 4.0 * (double)tn_nelements(x);
        if (x->type == TN_F32) rate = rates.scalar;
    } else if (t->op == TN_OP_ATTENTION) {
        const tn_tensor *k = t->src[TN_ATTN_K];
        // How many of the cache's cells are visible is not known yet. Few prompts fill a long one.
        int64_t cells = std::min<int64_t>(k->ne[2], 32768);
        if (const tn_tensor *selected = t->src[TN_ATTN_SELECTED])
            cells = std::min<int64_t>(cells, selected->ne[0] * std::max(1, t->params.attention.select_block));
        operations = 4.0 * (double)tn_nelements(t) * (double)cells;
        bytes += 2.0 * (double)tn_nbytes(k);
        rate = rates.tensor / 2;
    } else if (t->op == TN_OP_SELECT_POSITIONS) {
        const tn_tensor *keys = t->src[TN_SELECT_KEYS];
        double cells = (double)std::min<int64_t>(keys->ne[1], 32768);
        operations = 2.0 * (double)tn_nelements(x) * cells;
        bytes += (double)x->ne[2] * 4 * (double)keys->ne[0] * cells;
        rate = rates.scalar / 2;
    } else {
        for (const tn_tensor *source : t->src)
            if (source && t->op != TN_OP_GET_ROWS && t->op != TN_OP_SET_ROWS &&
                !(source == x && tn_op_written_source(t->op) == 0))
                bytes += (double)tn_nbytes(source);
        // Of a state only the rows in use are read and written, but blocks walk the tokens of a subsequence one by
        // one: in less than a microsecond each.
        if (tn_op_get_family(t->op) == TN_FAMILY_RECURRENT) operations = 1e3 * (double)t->src[1]->ne[1] * rate;
    }
    return operations / rate + bytes / rates.read;
}
static double nodes_ns(const launch_list &l, tn_tensor *const *nodes, const device_rates &rates, int first, int n) {
    double ns = 0;
    for (int i = 0; i < n; i++) ns += node_ns(rates, nodes[l.nodes[first + i]]);
    return ns;
}
static double record_ns(const launch_list &l, tn_tensor *const *nodes, const device_rates &rates,
                        const launch_record &r) {
    double ns = r.n_steps ? 0 : nodes_ns(l, nodes, rates, r.first_node, r.n_nodes);
    for (int s = r.first_step; s < r.first_step + r.n_steps; s++)
        ns += nodes_ns(l, nodes, rates, l.steps[s].first_node, l.steps[s].n_nodes);
    return ns;
}

tn_status segments_of(const launch_list &l, tn_tensor *const *nodes, const device_description &d, uint64_t most_ns,
                      launch_segment **out, size_t *n) {
    const bool whole = most_ns == UINT64_MAX;
    const device_rates rates = rates_of(d);
    launch_segment *all = (launch_segment *)tn_calloc(whole ? 1 : l.n_records + 1, sizeof *all);
    if (!all) return TN_E_NOMEM;
    *out = all;
    *n = 0;
    all[0].end = whole ? l.n_records : 0;
    double sum = 0;
    for (size_t i = 0, group; i < l.n_records && !whole; i = group) {
        // Several records may compute the same nodes: each is assumed to take its share of their time.
        for (group = i + 1; group < l.n_records && !l.records[i].n_steps &&
                            l.records[group].first_node == l.records[i].first_node && l.records[group].n_nodes;
             group++) {}
        const double each = record_ns(l, nodes, rates, l.records[i]) / (double)(group - i);
        for (size_t r = i; r < group; r++) {
            if (sum > 0 && sum + each > (double)most_ns) {
                all[++*n].begin = r;
                sum = 0;
            }
            sum += each;
            all[*n].ns = (uint64_t)sum;
            all[*n].end = r + 1;
        }
    }
    ++*n;
    return TN_OK;
}

// ---- Queuing ----

// Everything queued has ended.
static void forget_marks(cuda_stream *s) {
    s->marked[0] = s->marked[1] = s->queued = false;
    s->unmarked_ns = 0;
}
static tn_status drain_stream(cuda_stream *s) {
    TN_TRY(cuda_check(cudaStreamSynchronize(s->stream), "cudaStreamSynchronize"));
    forget_marks(s);
    return TN_OK;
}
static tn_status aborted(const cuda_stream *s) {
    return tn_fail(TN_E_ABORTED, "%s: stopped by the abort callback", s->device->device.name);
}

tn_status segment_begin(cuda_stream *s) {
    s->queued = true;
    if (!s->abort) return TN_OK;
    const unsigned older = s->next_mark;
    if (s->marked[older]) CUDA_TRY(cudaEventSynchronize(s->marks[older]));
    s->marked[older] = false;
    if (!s->abort(s->abort_user)) return TN_OK;
    TN_TRY(drain_stream(s));
    return aborted(s);
}
tn_status segment_end(cuda_stream *s, uint64_t ns) {
    if (!s->abort) return TN_OK;
    s->unmarked_ns += std::max<uint64_t>(ns, 1);
    if (s->unmarked_ns < s->segment_ns / 2) return TN_OK; // short programs share a mark
    CUDA_TRY(cudaEventRecord(s->marks[s->next_mark], s->stream));
    s->marked[s->next_mark] = true;
    s->next_mark ^= 1;
    s->unmarked_ns = 0;
    return TN_OK;
}
tn_status segments_synchronize(cuda_stream *s) {
    const bool asks = s->abort && s->queued;
    bool stops = asks && s->abort(s->abort_user);
    TN_TRY(drain_stream(s));
    if (asks && !stops) stops = s->abort(s->abort_user);
    return stops ? aborted(s) : TN_OK;
}

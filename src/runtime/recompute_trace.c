/* Recomputation: an attempt to run a graph in given memory. Before a result that does not fit, values are freed that
 * cost little to compute again for the bytes and the time that they leave; a freed value is computed again just
 * before its next use. */
#include "runtime/recompute_internal.h"

#include "base/checked.h"
#include "plan/plan_internal.h"
#include "tensor/external.h"

#include <math.h>
#include <string.h>

static const uint32_t NONE = TN_GRAPH_NONE;
/* A trace with more steps than this many times the nodes is not worth running. */
enum { MAX_STEPS_PER_NODE = 6 };

static bool only_views(const tn_tensor *t) { return tn_op_get_family(t->op) == TN_FAMILY_VIEW; }

/* ---- Properties of the graph ---- */

void tn__values_free(tn__values *v) {
    tn_free(v->reads);
    tn_free(v->root);
    tn_free(v->bytes);
    tn_free(v->memory);
    tn_free(v->seconds);
    tn_free(v->kept);
    tn_free(v->written);
    tn_free(v->fixed);
    tn_free(v->uses_begin);
    tn_free(v->uses);
    *v = (tn__values){0};
}

static tn_status allocate_values(tn__values *v) {
    v->reads = tn_malloc((v->n_nodes + 1) * sizeof *v->reads);
    v->root = tn_calloc(v->n + 1, sizeof *v->root);
    v->bytes = tn_calloc(v->n + 1, sizeof *v->bytes);
    v->memory = tn_calloc(v->n + 1, sizeof *v->memory);
    v->seconds = tn_calloc(v->n_nodes + 1, sizeof *v->seconds);
    v->kept = tn_calloc(v->n + 1, sizeof *v->kept);
    v->written = tn_calloc(v->n + 1, sizeof *v->written);
    v->fixed = tn_calloc(v->n + 1, sizeof *v->fixed);
    v->uses_begin = tn_calloc(v->n + 2, sizeof *v->uses_begin);
    return v->reads && v->root && v->bytes && v->memory && v->seconds && v->kept && v->written && v->fixed &&
                   v->uses_begin
               ? TN_OK
               : TN_E_NOMEM;
}

static tn_status find_sizes(tn__values *v) {
    for (uint32_t i = 0; i < v->n; i++) {
        const tn_tensor *t = tn__plan_tensor(v->graph, i);
        v->root[i] = t->view_src ? tn_graph_index(v->graph, tn__root(t)) : i;
        if (v->root[i] == NONE) return tn_fail(TN_E_INVALID, "the root of view '%s' is not in the graph", t->name);
        if (t->flags & (TN_FLAG_OUTPUT | TN_FLAG_PARAM)) v->kept[v->root[i]] = true;
        if (t->view_src || tn__is_external(t)) continue;
        v->memory[i] = v->plan->memory_of ? v->plan->memory_of[i] : 0;
        if (v->memory[i] >= v->plan->n_memories)
            return tn_fail(TN_E_INVALID, "tensor %u ('%s') is assigned to memory %u of %zu", i, t->name, v->memory[i],
                           v->plan->n_memories);
        TN_TRY(tn__plan_bytes(v->plan, v->memory[i], i, t, &v->bytes[i]));
        if (i >= v->n_nodes && v->bytes[i]) v->has_planned_leaves = true;
    }
    return TN_OK;
}

static tn_status find_read_tensors(tn__values *v) {
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(v->graph, i);
        for (int s = 0; s < TN__READS; s++) {
            const tn_tensor *source = s < TN_MAX_SRC ? t->src[s] : t->view_src;
            v->reads[i][s] = source ? tn_graph_index(v->graph, source) : NONE;
            if (source && v->reads[i][s] == NONE)
                return tn_fail(TN_E_INVALID, "tensor '%s' (%s) is used but not part of the graph", source->name,
                               tn_op_name(source->op));
        }
        const tn_tensor *written = tn__written_root(t);
        if (written) v->written[tn_graph_index(v->graph, written)] = true;
    }
    return TN_OK;
}

/* Leaves of the caller may share memory: what is written through one of them changes the others. */
static void spread_writes(tn__values *v) {
    for (size_t i = v->n_nodes; i < v->n; i++) {
        const tn_tensor *a = tn__plan_tensor(v->graph, i);
        if (!v->written[i] || !a->data || a->flags & TN_FLAG_PLANNED) continue;
        const char *begin = a->data, *end = begin + tn_nbytes(a);
        for (size_t k = v->n_nodes; k < v->n; k++) {
            const tn_tensor *b = tn__plan_tensor(v->graph, k);
            if (!b->data || b->flags & TN_FLAG_PLANNED) continue;
            const char *from = b->data, *to = from + tn_nbytes(b);
            if (from < end && begin < to) v->written[k] = true;
        }
    }
}

/* A value is computed once if its op has effects, or if it depends on memory that changes during the run. */
static void find_fixed(tn__values *v) {
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(v->graph, i);
        bool fixed =
            t->op == TN_OP_CUSTOM || tn__written_root(t) || v->written[i] || v->kept[i] || tn__is_external(t);
        for (int s = 0; s < TN__READS; s++)
            fixed = fixed || (v->reads[i][s] != NONE && v->written[v->root[v->reads[i][s]]]);
        v->fixed[i] = fixed;
    }
}

/* Lists each reader once per value. */
static tn_status find_uses(tn__values *v) {
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < v->n_nodes; i++) {
            if (only_views(tn_graph_node(v->graph, i))) continue;
            for (int s = 0; s < TN__READS; s++) {
                if (v->reads[i][s] == NONE) continue;
                const uint32_t r = v->root[v->reads[i][s]];
                bool known = false;
                for (int k = 0; k < s; k++) known = known || (v->reads[i][k] != NONE && v->root[v->reads[i][k]] == r);
                if (known) continue;
                if (pass)
                    v->uses[v->uses_begin[r + 1]++] = i;
                else
                    v->uses_begin[r + 2]++;
            }
        }
        if (pass) break;
        for (size_t i = 2; i <= v->n + 1; i++) v->uses_begin[i] += v->uses_begin[i - 1];
        v->uses = tn_malloc(((size_t)v->uses_begin[v->n + 1] + 1) * sizeof *v->uses);
        if (!v->uses) return TN_E_NOMEM;
    }
    return TN_OK;
}

tn_status tn__values_new(const tn_graph *graph, const tn_recompute_params *params, tn__values *v) {
    *v = (tn__values){.graph = graph, .plan = params->plan, .n_nodes = tn_graph_node_count(graph)};
    v->n = v->n_nodes + tn_graph_leaf_count(graph);
    tn_status status = allocate_values(v);
    if (status == TN_OK) status = find_sizes(v);
    if (status == TN_OK) status = find_read_tensors(v);
    if (status == TN_OK) {
        spread_writes(v);
        find_fixed(v);
        status = find_uses(v);
    }
    for (size_t i = 0; status == TN_OK && i < v->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(graph, i);
        if (!only_views(t)) v->seconds[i] = params->seconds(params->user, t);
    }
    if (status != TN_OK) tn__values_free(v);
    return status;
}

/* ---- State of an attempt ---- */

typedef struct trace_frame {
    uint32_t node;
    int32_t next; /* read to look at next */
} trace_frame;

typedef struct trace_state {
    const tn__values *v;
    const tn__attempt *a;
    tn__trace *trace;
    bool *dropped;     /* values of the list of drops that were freed */
    int64_t most_over; /* bytes missing so far */
    bool failed;
    uint32_t now; /* the node of the given graph that is being computed */
    uint32_t *at; /* per tensor: the step that computed its current version */
    bool *resident;
    bool *evictable;
    uint32_t *locks;                  /* per value: reads of frames that wait for another source */
    uint32_t *use_at;                 /* per value: index of its next use */
    size_t *live;                     /* per memory */
    uint32_t *list, n_list, *list_at; /* values that may be freed; where in the list */
    trace_frame *frames;
    uint32_t *stack, *stamp, stamps;
} trace_state;

void tn__trace_free(tn__trace *t) {
    tn_free(t->origin);
    tn_free(t->reads);
    tn_free(t->evicted);
    tn_free(t->at_peak);
    tn_free(t->peak_use);
    *t = (tn__trace){0};
}

static void free_trace_state(trace_state *s) {
    tn_free(s->dropped);
    tn_free(s->at);
    tn_free(s->resident);
    tn_free(s->evictable);
    tn_free(s->locks);
    tn_free(s->use_at);
    tn_free(s->live);
    tn_free(s->list);
    tn_free(s->list_at);
    tn_free(s->frames);
    tn_free(s->stack);
    tn_free(s->stamp);
}

static uint32_t next_use(const trace_state *s, uint32_t value) {
    const uint32_t at = s->use_at[value];
    return at < s->v->uses_begin[value + 1] ? s->v->uses[at] : NONE;
}
uint32_t tn__last_use(const tn__values *v, uint32_t value) {
    if (v->kept[value]) return (uint32_t)v->n_nodes;
    const uint32_t end = v->uses_begin[value + 1];
    return end > v->uses_begin[value] ? v->uses[end - 1] : value < v->n_nodes ? value : 0;
}

/* A value may be freed and computed again if everything that this needs still exists at its last use: leaves, and
 * values that are computed once, end with their own last use. `end` is the first such end among what a value depends
 * on; for values that are not evictable their own. */
static tn_status find_evictable(trace_state *s) {
    const tn__values *v = s->v;
    uint32_t *end = tn_malloc((v->n + 1) * sizeof *end);
    if (!end) return TN_E_NOMEM;
    for (uint32_t i = (uint32_t)v->n_nodes; i < v->n; i++)
        end[i] = !v->bytes[i] || s->a->rule.keep_leaves ? NONE : tn__last_use(v, i);
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        if (v->root[i] != i) continue;
        uint32_t first = NONE;
        for (int k = 0; k < TN__READS; k++)
            if (v->reads[i][k] != NONE) first = TN__MIN(first, end[v->root[v->reads[i][k]]]);
        const uint32_t last = tn__last_use(v, i);
        s->evictable[i] = !v->fixed[i] && last <= first;
        end[i] = s->evictable[i] ? first : last;
    }
    tn_free(end);
    return TN_OK;
}

static tn_status start_trace(trace_state *s) {
    const tn__values *v = s->v;
    tn__trace *t = s->trace;
    t->capacity = v->n_nodes * MAX_STEPS_PER_NODE + 16;
    t->origin = tn_malloc(t->capacity * sizeof *t->origin);
    t->reads = tn_malloc(t->capacity * sizeof *t->reads);
    t->evicted = tn_calloc(v->n + 1, sizeof *t->evicted);
    t->at_peak = tn_malloc((v->n + 1) * sizeof *t->at_peak);
    t->peak_use = tn_malloc((v->n + 1) * sizeof *t->peak_use);
    s->dropped = tn_calloc(v->n + 1, sizeof *s->dropped);
    s->at = tn_malloc((v->n + 1) * sizeof *s->at);
    s->resident = tn_calloc(v->n + 1, sizeof *s->resident);
    s->evictable = tn_calloc(v->n + 1, sizeof *s->evictable);
    s->locks = tn_calloc(v->n + 1, sizeof *s->locks);
    s->use_at = tn_malloc((v->n + 1) * sizeof *s->use_at);
    s->live = tn_calloc(v->plan->n_memories, sizeof *s->live);
    s->list = tn_malloc((v->n + 1) * sizeof *s->list);
    s->list_at = tn_malloc((v->n + 1) * sizeof *s->list_at);
    s->frames = tn_malloc((v->n_nodes + 1) * sizeof *s->frames);
    s->stack = tn_malloc((v->n_nodes + 1) * sizeof *s->stack);
    s->stamp = tn_calloc(v->n + 1, sizeof *s->stamp);
    if (!t->origin || !t->reads || !t->evicted || !t->at_peak || !t->peak_use || !s->dropped || !s->at ||
        !s->resident || !s->evictable || !s->locks || !s->use_at || !s->live || !s->list || !s->list_at ||
        !s->frames || !s->stack || !s->stamp)
        return TN_E_NOMEM;
    for (size_t i = 0; i < v->n; i++) {
        s->at[i] = s->list_at[i] = NONE;
        s->use_at[i] = v->uses_begin[i];
        if (i < v->n_nodes) continue;
        s->resident[i] = true;
        s->live[v->memory[i]] += v->bytes[i];
    }
    for (size_t m = 0; m < v->plan->n_memories; m++)
        if (s->live[m] > s->a->bytes[m]) s->failed = true;
    return find_evictable(s);
}

/* ---- Memory ---- */

static void leave_memory(trace_state *s, uint32_t value, bool bytes_too) {
    s->resident[value] = false;
    if (bytes_too) s->live[s->v->memory[value]] -= s->v->bytes[value];
    const uint32_t index = s->list_at[value];
    if (index == NONE) return;
    s->list[index] = s->list[--s->n_list];
    s->list_at[s->list[index]] = index;
    s->list_at[value] = NONE;
}
static void enter_memory(trace_state *s, uint32_t value, bool bytes_too) {
    s->resident[value] = true;
    if (bytes_too) s->live[s->v->memory[value]] += s->v->bytes[value];
    if (!s->evictable[value] || !s->v->bytes[value]) return;
    s->list_at[value] = s->n_list;
    s->list[s->n_list++] = value;
}

/* Seconds to compute a value again, with everything that is not in memory either; more than `limit` ends the count.
 */
static double closure_seconds(trace_state *s, uint32_t value, double limit) {
    const tn__values *v = s->v;
    double sum = v->seconds[value];
    size_t depth = 0;
    s->stamps++;
    s->stamp[value] = s->stamps;
    s->stack[depth++] = value;
    while (depth && sum <= limit) {
        const uint32_t node = s->stack[--depth];
        for (int k = 0; k < TN__READS; k++) {
            if (v->reads[node][k] == NONE) continue;
            const uint32_t r = v->root[v->reads[node][k]];
            if (r >= v->n_nodes || s->resident[r] || s->stamp[r] == s->stamps) continue;
            s->stamp[r] = s->stamps;
            sum += v->seconds[r];
            s->stack[depth++] = r;
        }
    }
    return sum;
}

/* Frees the value with the lowest score; false if there is none. Values without further uses come first: they are in
 * memory only because others may be computed from them. */
static bool free_some(trace_state *s, size_t memory) {
    const tn__values *v = s->v;
    uint32_t best = NONE;
    double best_score = INFINITY;
    for (uint32_t i = 0; i < s->n_list; i++) {
        const uint32_t c = s->list[i], use = next_use(s, c);
        if (v->memory[c] != memory || s->locks[c]) continue;
        double score = 0;
        if (use != NONE) {
            if (s->a->banned && s->a->banned[c]) continue;
            const double gap = use > s->now ? (double)(use - s->now) : 0.25;
            const double worth = (double)v->bytes[c] * pow(gap, s->a->rule.exponent);
            const double cost = s->a->rule.closure ? closure_seconds(s, c, best_score * worth) : v->seconds[c];
            score = (cost + 1e-12) / worth;
        }
        if (score < best_score || (score == best_score && best != NONE &&
                                   (v->bytes[c] > v->bytes[best] || (c < best && v->bytes[c] == v->bytes[best])))) {
            best = c;
            best_score = score;
        }
    }
    if (best == NONE) return false;
    if (next_use(s, best) != NONE) s->trace->evicted[best] = true;
    leave_memory(s, best, true);
    return true;
}

/* ---- Steps ---- */

static uint32_t add_trace_step(trace_state *s, uint32_t node) {
    tn__trace *t = s->trace;
    const tn__values *v = s->v;
    if (t->n == t->capacity) {
        s->failed = true;
        return NONE;
    }
    t->origin[t->n] = node;
    for (int k = 0; k < TN__READS; k++)
        t->reads[t->n][k] = v->reads[node][k] == NONE ? NONE : s->at[v->reads[node][k]];
    return s->at[node] = (uint32_t)t->n++;
}

/* A view is valid for the version of its root that it was made from. */
static bool view_is_current(const trace_state *s, uint32_t view) {
    return s->at[view] != NONE && s->trace->reads[s->at[view]][TN_MAX_SRC] == s->at[s->v->root[view]];
}
/* Adds a view, after the views that it is made from. */
static void add_view(trace_state *s, uint32_t view) {
    const tn__values *v = s->v;
    while (!s->failed && !view_is_current(s, view)) {
        uint32_t deepest = view;
        for (;;) {
            const uint32_t from = v->reads[deepest][0];
            if (from >= v->n_nodes || v->root[from] == from || view_is_current(s, from)) break;
            if (!only_views(tn_graph_node(v->graph, from))) break;
            deepest = from;
        }
        add_trace_step(s, deepest);
    }
}

/* Whether the node may take over the memory of its source k, as the planner would decide. */
static bool may_take_over(const trace_state *s, uint32_t node, int k, uint32_t mask, bool again) {
    const tn__values *v = s->v;
    const tn_tensor *t = tn_graph_node(v->graph, node), *source = t->src[k];
    if (!source || !(mask >> k & 1) || !tn_same_layout(t, source) || source->view_offset) return false;
    const uint32_t r = v->root[v->reads[node][k]];
    if (!v->bytes[r] || v->bytes[r] != v->bytes[node] || v->memory[r] != v->memory[node] || v->kept[r]) return false;
    if (r >= v->n_nodes && s->a->rule.keep_leaves) return false;
    uint32_t own = 0;
    for (int o = 0; o < TN_MAX_SRC; o++) {
        if (v->reads[node][o] == NONE || v->root[v->reads[node][o]] != r) continue;
        own++;
        const tn_tensor *other = t->src[o];
        if (o != k && (!(mask >> o & 1) || other->view_offset || !tn_same_layout(other, source))) return false;
    }
    if (s->locks[r] != own) return false;
    /* The use by the node itself is the last one. */
    const uint32_t at = s->use_at[r], end = v->uses_begin[r + 1];
    return again ? at == end : at == end || (v->uses[at] == node && at + 1 == end);
}

/* Notes what could be freed where most bytes are missing. */
static void note_peak(trace_state *s, size_t memory) {
    if (s->a->bytes[memory] > INT64_MAX) return;
    const int64_t over = (int64_t)s->live[memory] - (int64_t)s->a->bytes[memory];
    if (over <= s->most_over) return;
    tn__trace *t = s->trace;
    s->most_over = over;
    t->n_at_peak = 0;
    for (uint32_t i = 0; i < s->n_list; i++) {
        const uint32_t c = s->list[i], use = next_use(s, c);
        if (s->v->memory[c] != memory || s->locks[c] || s->a->drop[c] != NONE || use == NONE || use <= s->now)
            continue;
        t->at_peak[t->n_at_peak] = c;
        t->peak_use[t->n_at_peak++] = use;
    }
}

static void store_result(trace_state *s, uint32_t node, bool again) {
    const tn__values *v = s->v;
    const size_t memory = v->memory[node], bytes = v->bytes[node];
    if (!bytes) {
        s->resident[node] = true;
        return;
    }
    const uint32_t mask = tn__plan_mask(v->plan, tn_graph_node(v->graph, node), node);
    for (int k = 0; k < TN_MAX_SRC; k++) {
        if (!may_take_over(s, node, k, mask, again)) continue;
        leave_memory(s, v->root[v->reads[node][k]], false);
        enter_memory(s, node, false);
        return;
    }
    while (!s->a->drop && s->live[memory] + bytes > s->a->bytes[memory])
        if (!free_some(s, memory)) {
            s->failed = true;
            return;
        }
    enter_memory(s, node, true);
    if (s->a->drop) note_peak(s, memory);
}

/* After a use: a value without further uses leaves if it cannot be computed again, or if nothing else is freed. One
 * of the list of drops leaves before the gap. */
static void drop_after_use(trace_state *s, uint32_t value) {
    const tn__values *v = s->v;
    const uint32_t use = next_use(s, value), *drop = s->a->drop;
    if (v->kept[value] || !s->resident[value] || s->locks[value]) return;
    if (use == NONE) {
        if (s->evictable[value] && !drop) return;
        if (value >= v->n_nodes && (s->a->rule.keep_leaves || !v->bytes[value])) return;
        leave_memory(s, value, true);
    } else if (drop && drop[value] == use && s->evictable[value] &&
               (!s->dropped[value] || use - s->now > s->a->near_use)) {
        s->dropped[value] = s->trace->evicted[value] = true;
        leave_memory(s, value, true);
    }
}

static void finish_node(trace_state *s, uint32_t node) {
    const tn__values *v = s->v;
    const bool again = node != s->now;
    store_result(s, node, again);
    if (s->failed) return;
    for (int k = 0; k < TN__READS; k++) {
        const uint32_t read = v->reads[node][k];
        if (read < v->n_nodes && v->root[read] != read && only_views(tn_graph_node(v->graph, read)))
            add_view(s, read);
    }
    if (s->failed || add_trace_step(s, node) == NONE) return;
    if (again) {
        s->trace->n_recomputed++;
        s->trace->added += v->seconds[node];
    }
    for (int k = 0; k < TN__READS; k++) {
        if (v->reads[node][k] == NONE) continue;
        const uint32_t r = v->root[v->reads[node][k]];
        s->locks[r]--;
        if (!again && next_use(s, r) == node) s->use_at[r]++;
        if (!again || s->a->drop) drop_after_use(s, r);
    }
    if (!again && v->root[node] == node) drop_after_use(s, node);
}

/* Computes a node of the given graph, after the freed values that it needs, and those that these need. */
static void compute_now(trace_state *s) {
    const tn__values *v = s->v;
    size_t depth = 0;
    s->frames[depth++] = (trace_frame){s->now, 0};
    while (depth && !s->failed) {
        trace_frame *f = &s->frames[depth - 1];
        uint32_t missing = NONE;
        while (f->next < TN__READS) {
            const uint32_t read = v->reads[f->node][f->next], r = read == NONE ? NONE : v->root[read];
            if (r != NONE && !s->resident[r]) {
                missing = r;
                break;
            }
            if (r != NONE) s->locks[r]++;
            f->next++;
        }
        if (missing == NONE) {
            finish_node(s, f->node);
            depth--;
        } else if (missing >= v->n_nodes || !s->evictable[missing] || depth > v->n_nodes) {
            s->failed = true; /* cannot happen: see find_evictable */
        } else {
            s->frames[depth++] = (trace_frame){missing, 0};
        }
    }
}

tn_status tn__trace_run(const tn__values *v, const tn__attempt *attempt, tn__trace *trace, bool *found) {
    trace_state s = {.v = v, .a = attempt, .trace = trace};
    *trace = (tn__trace){0};
    *found = false;
    tn_status status = start_trace(&s);
    for (; status == TN_OK && s.now < v->n_nodes && !s.failed; s.now++) {
        if (!only_views(tn_graph_node(v->graph, s.now)))
            compute_now(&s);
        else if (s.resident[v->root[s.now]])
            add_view(&s, s.now);
        if (trace->added > attempt->limit) s.failed = true;
    }
    *found = status == TN_OK && !s.failed;
    trace->fits = !s.most_over;
    free_trace_state(&s);
    if (!*found) tn__trace_free(trace);
    return status;
}

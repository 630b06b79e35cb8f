/* Making a schedule: the caller's tensors cloned in order, cut where the stream changes, with copies in between. */
#include "runtime/sched_internal.h"

#include "base/checked.h"
#include "tensor/graph_build.h"

#include <stdio.h>
#include <string.h>

void tn__schedule_free(tn__schedule *s) {
    if (!s) return;
    for (size_t i = 0; s->programs && i < s->n_programs; i++) tn_program_free(s->programs[i]);
    for (size_t i = 0; s->run_done && i < s->n_programs; i++) tn_event_free(s->run_done[i]);
    tn_arena_free(s->arena);
    tn_free(s->assigned);
    tn_free(s->clones);
    tn_free(s->locations);
    tn_free(s->type_of);
    tn_free(s->splits);
    tn_free(s->copies);
    tn_free(s->work);
    tn_free(s->scratch);
    tn_free(s->programs);
    tn_free(s->run_done);
    tn_free(s->targets);
    tn_free(s->twins);
    tn_free(s->ids);
    tn_free(s->wanted);
    tn_free(s->outer);
    tn_free(s->own);
    tn_free(s);
}

/* A split before it is built: its first node, and what it needs. */
typedef struct cut {
    size_t begin;
    int16_t stream; /* -1: nothing but views */
    size_t n_copies, n_in_flight;
} cut;

typedef struct schedule_builder {
    tn_sched *sched;
    const tn_graph *graph; /* the caller's */
    tn__schedule *s;
    size_t n; /* tensors in it */
    /* Per tensor of the caller's graph: the number of its copy in the split being built, and that split's number plus
     * one; its twin in the program being built. */
    size_t *copy;
    uint32_t *copy_split;
    const tn_tensor **copy_ids; /* the expert ids of that copy; NULL: the whole tensor */
    tn_tensor **twin;
    cut *cuts;
    size_t n_cuts, cap_cuts;
    size_t n_work, n_target_leaves, n_twins;
    size_t largest_ids, most_experts;
    size_t *segments; /* first nodes of the splits' copies and of the splits' nodes, in the scheduled graph */
    size_t n_segments;
} schedule_builder;

static bool needs_copy(const schedule_builder *b, const tn_tensor *source, uint32_t index, int stream) {
    int from = b->s->assigned[index].stream;
    if (from == stream) return false;
    return !tn_device_supports_buffer_type(tn_stream_device(b->sched->core->streams[stream]),
                                           tn__sched_memory_type(b->sched, source, from));
}

/* Whether source s of the node is a stack of experts in plain host memory, of which the node reads only some. */
static bool are_experts(const schedule_builder *b, const tn_tensor *t, int s) {
    const tn_tensor *source = t->src[s];
    return t->op == TN_OP_MUL_MAT_ID && s == 0 && tn__sched_is_weight(b->sched, source) && source->ne[3] == 1 &&
           tn_is_contiguous(source) && tn_buffer_type_is_host(tn__sched_memory_type(b->sched, source, 0));
}

/* ---- Cutting ---- */

/* A node whose weights are copied to its device begins a split: the weights are in memory no longer than that split,
 * and the expert ids are known when it begins. Weights below LARGE_WEIGHTS are not worth a split. */
enum { LARGE_WEIGHTS = 64 * 1024 };
static bool begins_split(const schedule_builder *b, const tn_tensor *t, int stream, uint32_t split) {
    for (int s = 0; s < TN_MAX_SRC; s++) {
        if (!t->src[s] || !tn__sched_is_weight(b->sched, t->src[s])) continue;
        uint32_t index = tn_graph_index(b->graph, t->src[s]);
        if (!needs_copy(b, t->src[s], index, stream)) continue;
        const tn_tensor *ids = are_experts(b, t, s) ? t->src[2] : NULL;
        if (b->copy_split[index] == split) {
            if (b->copy_ids[index] && b->copy_ids[index] != ids)
                return true; /* it reads other experts than were copied */
        } else if (ids || tn_nbytes(t->src[s]) >= LARGE_WEIGHTS) {
            return true;
        }
    }
    return false;
}

static tn_status add_cut(schedule_builder *b, size_t begin, int stream) {
    if (b->n_cuts == b->cap_cuts) {
        size_t capacity = b->cap_cuts ? 2 * b->cap_cuts : 16;
        cut *grown = tn_realloc(b->cuts, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        b->cuts = grown;
        b->cap_cuts = capacity;
    }
    b->cuts[b->n_cuts++] = (cut){.begin = begin, .stream = (int16_t)stream, .n_in_flight = 1};
    return TN_OK;
}

/* Decides where splits begin and counts what they need: one arena holds everything. */
static tn_status cut_graph(schedule_builder *b) {
    int current = -1;
    for (size_t i = 0; i < b->s->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(b->graph, i);
        if (tn__is_view_op(t)) continue;
        int stream = b->s->assigned[i].stream;
        if (stream != current || begins_split(b, t, stream, (uint32_t)b->n_cuts)) {
            TN_TRY(add_cut(b, current < 0 ? 0 : i, stream));
            current = stream;
        }
        cut *c = &b->cuts[b->n_cuts - 1];
        for (int s = 0; s < TN_MAX_SRC; s++) {
            if (!t->src[s]) continue;
            uint32_t index = tn_graph_index(b->graph, t->src[s]);
            if (b->copy_split[index] == b->n_cuts || !needs_copy(b, t->src[s], index, current)) continue;
            b->copy_split[index] = (uint32_t)b->n_cuts;
            b->copy_ids[index] = are_experts(b, t, s) ? t->src[2] : NULL;
            c->n_copies++;
            if (are_experts(b, t, s)) {
                b->largest_ids = TN__MAX(b->largest_ids, tn_nbytes(t->src[2]));
                b->most_experts = TN__MAX(b->most_experts, (size_t)t->src[0]->ne[2]);
            } else if (b->sched->n_in_flight > 1 && b->sched->core->async[current]) {
                c->n_in_flight = b->sched->n_in_flight;
                b->n_target_leaves += c->n_in_flight;
            }
        }
    }
    if (!b->n_cuts) TN_TRY(add_cut(b, 0, -1));
    for (size_t k = 0; k < b->n_cuts; k++) {
        size_t end = k + 1 < b->n_cuts ? b->cuts[k + 1].begin : b->s->n_nodes;
        b->n_twins += (end - b->cuts[k].begin) * (b->cuts[k].n_in_flight - 1);
    }
    memset(b->copy_split, 0, b->n * sizeof *b->copy_split);
    return TN_OK;
}

/* ---- Building ---- */

/* A tensor of the scheduled graph with the caller's layout; sources and root are clones, too. */
static tn_tensor *clone_tensor(schedule_builder *b, const tn_tensor *t) {
    tn_tensor *c = tn_arena_alloc(b->s->arena, sizeof *c);
    if (!c) return NULL;
    *c = *t;
    if (!tn__is_external(t)) {
        c->data = NULL;
        c->buffer = NULL;
        c->extra = NULL;
        tn_location *location = b->s->locations ? &b->s->locations[tn_graph_index(b->graph, t)] : NULL;
        if (location && !t->view_src && tn__sched_location(b->sched, t, location)) c->location = location;
    }
    for (int s = 0; s < TN_MAX_SRC; s++)
        if (t->src[s]) c->src[s] = b->s->clones[tn_graph_index(b->graph, t->src[s])];
    if (t->view_src) c->view_src = b->s->clones[tn_graph_index(b->graph, t->view_src)];
    return c;
}

static tn_status append_tensor(schedule_builder *b, tn_tensor *t, int stream) {
    /* type_of is indexed by node, then leaf: those of leaves are added once all nodes are known. */
    if (t->op != TN_OP_NONE) b->s->type_of[tn_graph_node_count(b->s->graph)] = (uint16_t)stream;
    return tn__graph_append(b->s->graph, t);
}

/* A copy's source may be a view among the very nodes being built: it is cloned before its turn. */
static tn_status clone_early(schedule_builder *b, const tn_tensor *t, uint32_t index) {
    tn__schedule *s = b->s;
    if (s->clones[index]) return TN_OK;
    s->clones[index] = clone_tensor(b, t);
    if (!s->clones[index]) return tn_arena_status(s->arena);
    return append_tensor(b, s->clones[index], s->assigned[index].stream);
}

static tn_tensor *new_copy_target(schedule_builder *b, const tn_tensor *source, const char *where) {
    tn_tensor *t = tn_arena_alloc(b->s->arena, sizeof *t);
    if (!t) return NULL;
    memset(t, 0, sizeof *t);
    t->type = source->type;
    t->n_dims = source->n_dims;
    memcpy(t->ne, source->ne, sizeof t->ne);
    memcpy(t->nb, source->nb, sizeof t->nb);
    snprintf(t->name, sizeof t->name, "%.40s@%.20s", source->name, where);
    return t;
}

static tn_status add_copy(schedule_builder *b, const tn_tensor *source, uint32_t index, const tn_tensor *ids,
                          tn__split *split) {
    tn__schedule *s = b->s;
    const char *where = tn_device_name(tn_stream_device(b->sched->core->streams[split->stream]));
    tn_tensor *from = s->clones[index], *to = new_copy_target(b, source, where);
    if (!to) return tn_arena_status(s->arena);
    tn__copy *copy = &s->copies[s->n_copies];
    *copy = (tn__copy){.source = from, .target = to, .from = s->assigned[index].stream, .first_target = s->n_targets};
    if (ids)
        copy->ids = s->clones[tn_graph_index(b->graph, ids)];
    else
        for (size_t k = 0; split->n_in_flight > 1 && k < split->n_in_flight; k++) {
            tn_tensor *target = new_copy_target(b, source, where);
            if (!target) return tn_arena_status(s->arena);
            /* It is filled before the run begins, so no other tensor may share its memory. */
            target->flags = TN_FLAG_INPUT | TN_FLAG_OUTPUT;
            TN_TRY(append_tensor(b, target, split->stream));
            s->targets[s->n_targets++] = target;
        }
    from->flags |= TN_FLAG_KEPT;
    if (from->view_src) from->view_src->flags |= TN_FLAG_KEPT;
    to->op = TN_OP_DUP;
    to->src[0] = from;
    if (s->n_targets > copy->first_target) to->view_src = s->targets[copy->first_target];
    TN_TRY(append_tensor(b, to, split->stream));
    s->copy_bytes += tn_nbytes(source);
    b->copy[index] = s->n_copies++;
    b->copy_split[index] = (uint32_t)s->n_splits;
    split->n_copies++;
    return TN_OK;
}

/* The copy that a node of the split being built reads instead of a source, or NULL. */
static const tn__copy *copy_for(const schedule_builder *b, const tn_tensor *source, int stream) {
    uint32_t index = tn_graph_index(b->graph, source);
    if (b->copy_split[index] != b->s->n_splits || !needs_copy(b, source, index, stream)) return NULL;
    return &b->s->copies[b->copy[index]];
}

/* The nodes of a split once more for every further run in flight: they read that run's copies and share all other
 * memory. */
static tn_status add_twins(schedule_builder *b, size_t begin, size_t end, const tn__split *split) {
    tn__schedule *s = b->s;
    for (size_t k = 1; k < split->n_in_flight; k++) {
        tn_tensor **work = s->work + k * s->n_nodes + split->first_node;
        for (size_t i = begin; i < end; i++) {
            const tn_tensor *t = tn_graph_node(b->graph, i);
            tn_tensor *twin = tn_arena_alloc(s->arena, sizeof *twin);
            if (!twin) return tn_arena_status(s->arena);
            *twin = *s->clones[i];
            for (int x = 0; x < TN_MAX_SRC; x++) {
                if (!t->src[x]) continue;
                const tn__copy *copy = tn__is_view_op(t) ? NULL : copy_for(b, t->src[x], split->stream);
                uint32_t index = tn_graph_index(b->graph, t->src[x]);
                if (copy && !copy->ids)
                    twin->src[x] = s->targets[copy->first_target + k];
                else if (!copy && index >= begin && index < end)
                    twin->src[x] = b->twin[index];
            }
            uint32_t root = t->view_src ? tn_graph_index(b->graph, t->view_src) : TN_GRAPH_NONE;
            if (root >= begin && root < end) twin->view_src = b->twin[root];
            b->twin[i] = twin;
            s->twins[s->n_twins++] = (tn__twin){twin, s->clones[i]};
            if (!tn__is_view_op(t) && !tn_is_empty(t)) *work++ = twin;
        }
    }
    return TN_OK;
}

/* Whether the split copies experts for these ids, so that they are known while it computes. */
static bool knows_ids(const schedule_builder *b, const cut *c, size_t end, const tn_tensor *ids) {
    for (size_t i = c->begin; i < end; i++) {
        const tn_tensor *t = tn_graph_node(b->graph, i);
        if (t->op == TN_OP_MUL_MAT_ID && t->src[2] == ids && are_experts(b, t, 0) &&
            needs_copy(b, t->src[0], tn_graph_index(b->graph, t->src[0]), c->stream))
            return true;
    }
    return false;
}

/* Copies of experts for the next split that are filled while this one computes (prefetch.c). */
static tn_status add_prefetches(schedule_builder *b, const cut *c, size_t end, const cut *next, size_t next_end,
                                tn__split *split) {
    tn__schedule *s = b->s;
    if (next->stream != c->stream || !tn__prefetch_possible(b->sched, c->stream)) return TN_OK;
    for (size_t i = next->begin; i < next_end; i++) {
        const tn_tensor *t = tn_graph_node(b->graph, i);
        if (t->op != TN_OP_MUL_MAT_ID || !are_experts(b, t, 0)) continue;
        const uint32_t index = tn_graph_index(b->graph, t->src[0]);
        if (b->copy_split[index] >= s->n_splits || !needs_copy(b, t->src[0], index, c->stream) ||
            !knows_ids(b, c, end, t->src[2]))
            continue;
        TN_TRY(clone_early(b, t->src[0], index));
        TN_TRY(add_copy(b, t->src[0], index, t->src[2], split));
        b->copy_split[index] = (uint32_t)s->n_splits + 1;
        split->n_copies--;
        split->n_prefetches++;
    }
    return split->n_prefetches ? tn__prefetch_open(b->sched->core, c->stream) : TN_OK;
}

/* A split's copies come before its nodes, so it is built in two passes over them. */
static tn_status build_split(schedule_builder *b, const cut *c, size_t end, const cut *next, size_t next_end) {
    tn__schedule *s = b->s;
    tn__split *split = NULL;
    if (c->stream >= 0) {
        split = &s->splits[s->n_splits++];
        *split = (tn__split){.stream = c->stream,
                             .first_copy = s->n_copies,
                             .first_node = b->n_work,
                             .n_in_flight = c->n_in_flight,
                             .waits_prefetch = s->n_splits > 1 && split[-1].n_prefetches > 0,
                             .first_program = s->n_programs};
        s->n_programs += split->n_in_flight;
        s->pipelined = s->pipelined || split->n_in_flight > 1;
    }
    b->segments[b->n_segments++] = tn_graph_node_count(s->graph);
    for (size_t i = c->begin; i < end; i++) {
        const tn_tensor *t = tn_graph_node(b->graph, i);
        if (tn__is_view_op(t)) continue;
        for (int x = 0; x < TN_MAX_SRC; x++) {
            const tn_tensor *source = t->src[x];
            if (!source) continue;
            uint32_t index = tn_graph_index(b->graph, source);
            if (b->copy_split[index] == s->n_splits || !needs_copy(b, source, index, c->stream)) continue;
            const tn_tensor *ids = are_experts(b, t, x) ? t->src[2] : NULL;
            TN_TRY(clone_early(b, source, index));
            if (ids) TN_TRY(clone_early(b, ids, tn_graph_index(b->graph, ids)));
            TN_TRY(add_copy(b, source, index, ids, split));
        }
    }
    if (split && next) TN_TRY(add_prefetches(b, c, end, next, next_end, split));
    b->segments[b->n_segments++] = tn_graph_node_count(s->graph);
    for (size_t i = c->begin; i < end; i++) {
        const tn_tensor *t = tn_graph_node(b->graph, i);
        if (s->clones[i]) continue;
        tn_tensor *node = clone_tensor(b, t);
        if (!node) return tn_arena_status(s->arena);
        s->clones[i] = node;
        if (!tn__is_view_op(t)) {
            for (int x = 0; x < TN_MAX_SRC; x++) {
                const tn__copy *copy = t->src[x] ? copy_for(b, t->src[x], c->stream) : NULL;
                if (copy) node->src[x] = copy->target;
            }
            if (!tn_is_empty(t)) {
                s->work[b->n_work++] = node;
                split->n_nodes++;
            }
        }
        TN_TRY(append_tensor(b, node, s->assigned[i].stream));
    }
    return split ? add_twins(b, c->begin, end, split) : TN_OK;
}

static tn_status allocate_schedule(schedule_builder *b) {
    tn__schedule *s = b->s;
    size_t n_copies = 0, n_programs = 0;
    for (size_t k = 0; k < b->n_cuts; k++) {
        n_copies += b->cuts[k].n_copies;
        n_programs += b->cuts[k].n_in_flight;
    }
    size_t in_graph = b->n + n_copies + b->n_target_leaves, n_in_flight = b->sched->n_in_flight;
    tn_arena_params params = {.size = tn_arena_size_for(in_graph + b->n_twins, in_graph ? in_graph : 1),
                              .no_alloc = true};
    TN_TRY(tn_arena_new(&params, &s->arena));
    TN_TRY(tn_graph_new(s->arena, in_graph ? in_graph : 1, &s->graph));
    s->type_of = tn_calloc(in_graph + 1, sizeof *s->type_of);
    s->n_work_lists = b->n_twins ? n_in_flight : 1;
    s->work = tn_calloc(s->n_work_lists * s->n_nodes + 1, sizeof *s->work);
    b->segments = tn_calloc(2 * b->n_cuts + 1, sizeof *b->segments);
    s->scratch = tn_calloc(b->sched->core->n_streams, sizeof *s->scratch);
    s->splits = tn_calloc(b->n_cuts, sizeof *s->splits);
    s->copies = tn_calloc(n_copies + 1, sizeof *s->copies);
    s->programs = tn_calloc(n_programs, sizeof *s->programs);
    s->run_done = tn_calloc(n_programs, sizeof *s->run_done);
    s->targets = tn_calloc(b->n_target_leaves + 1, sizeof *s->targets);
    s->twins = tn_calloc(b->n_twins + 1, sizeof *s->twins);
    s->ids = tn_malloc(b->largest_ids + 1);
    s->wanted = tn_malloc(b->most_experts + 1);
    s->outer = tn_calloc(b->n + 1, sizeof *s->outer);
    if (b->sched->location_of && !(s->locations = tn_calloc(b->n + 1, sizeof *s->locations))) return TN_E_NOMEM;
    return s->type_of && s->work && b->segments && s->scratch && s->splits && s->copies && s->programs &&
                   s->run_done && s->targets && s->twins && s->ids && s->wanted && s->outer
               ? TN_OK
               : TN_E_NOMEM;
}

static tn_status make_programs(schedule_builder *b) {
    tn__schedule *s = b->s;
    for (size_t i = 0; i < s->n_splits; i++) {
        const tn__split *split = &s->splits[i];
        tn_stream *stream = b->sched->core->streams[split->stream];
        for (size_t k = 0; k < split->n_in_flight; k++) {
            size_t at = split->first_program + k;
            if (split->n_in_flight > 1) TN_TRY(tn_event_new(tn_stream_device(stream), &s->run_done[at]));
            if (!split->n_nodes) continue;
            TN_TRY(tn_program_new(stream, s->work + k * s->n_nodes + split->first_node, split->n_nodes,
                                  &s->programs[at]));
            size_t scratch = tn_program_scratch(s->programs[at]);
            if (scratch > s->scratch[split->stream]) s->scratch[split->stream] = scratch;
        }
    }
    return TN_OK;
}

tn_status tn__schedule_allow_eval(const tn_sched *sched, tn__schedule *s) {
    if (s->allows_eval) return TN_OK;
    for (size_t i = 0; i < s->n_splits; i++) {
        const tn__split *split = &s->splits[i];
        for (size_t k = 0; k < split->n_nodes; k++) {
            tn_program *program;
            TN_TRY(tn_program_new(sched->core->streams[split->stream], s->work + split->first_node + k, 1, &program));
            s->scratch[split->stream] = TN__MAX(s->scratch[split->stream], tn_program_scratch(program));
            tn_program_free(program);
        }
    }
    s->allows_eval = true;
    return TN_OK;
}

static tn_status build_schedule(schedule_builder *b) {
    tn__schedule *s = b->s;
    TN_TRY(cut_graph(b));
    TN_TRY(allocate_schedule(b));
    for (size_t i = 0; i < s->n_leaves; i++) {
        tn_tensor *c = clone_tensor(b, tn_graph_leaf(b->graph, i));
        if (!c) return tn_arena_status(s->arena);
        s->clones[s->n_nodes + i] = c;
        TN_TRY(append_tensor(b, c, s->assigned[s->n_nodes + i].stream));
    }
    for (size_t k = 0; k < b->n_cuts; k++) {
        const cut *next = k + 1 < b->n_cuts ? &b->cuts[k + 1] : NULL;
        TN_TRY(build_split(b, &b->cuts[k], next ? next->begin : s->n_nodes, next,
                           k + 2 < b->n_cuts ? b->cuts[k + 2].begin : s->n_nodes));
    }

    uint16_t *leaves = s->type_of + tn_graph_node_count(s->graph);
    for (size_t i = 0; i < s->n_leaves; i++) *leaves++ = (uint16_t)s->assigned[s->n_nodes + i].stream;
    for (size_t i = 0; i < s->n_splits; i++) {
        const tn__split *split = &s->splits[i];
        for (size_t c = 0; split->n_in_flight > 1 && c < split->n_copies; c++)
            for (size_t k = 0; !s->copies[split->first_copy + c].ids && k < split->n_in_flight; k++)
                *leaves++ = (uint16_t)split->stream;
    }
    for (size_t i = 0; i < b->n; i++) {
        const tn_tensor *c = s->clones[i];
        s->n_own += tn__is_external(c) && !c->view_src;
        if (!c->data && !c->location && (c->op == TN_OP_NONE || c->flags & TN_FLAG_OUTPUT))
            s->outer[s->n_outer++] = (uint32_t)i;
    }
    s->own = tn_calloc(s->n_own + 1, sizeof *s->own);
    if (!s->own) return TN_E_NOMEM;
    for (size_t i = 0, k = 0; i < b->n; i++)
        if (tn__is_external(s->clones[i]) && !s->clones[i]->view_src) s->own[k++].index = (uint32_t)i;
    TN_TRY(tn__schedule_reorder(b->sched, s, b->segments, b->n_segments));
    TN_TRY(make_programs(b));
    return b->sched->eval ? tn__schedule_allow_eval(b->sched, s) : TN_OK;
}

tn_status tn__schedule_new(tn_sched *sched, tn_graph *graph, tn__schedule **out) {
    *out = NULL;
    tn__schedule *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->n_nodes = tn_graph_node_count(graph);
    s->n_leaves = tn_graph_leaf_count(graph);
    schedule_builder b = {.sched = sched, .graph = graph, .s = s, .n = s->n_nodes + s->n_leaves};
    s->assigned = tn_calloc(b.n + 1, sizeof *s->assigned);
    s->clones = tn_calloc(b.n + 1, sizeof *s->clones);
    b.copy = tn_calloc(b.n + 1, sizeof *b.copy);
    b.copy_split = tn_calloc(b.n + 1, sizeof *b.copy_split);
    b.copy_ids = tn_calloc(b.n + 1, sizeof *b.copy_ids);
    b.twin = tn_calloc(b.n + 1, sizeof *b.twin);
    tn_status status = TN_E_NOMEM;
    if (!s->assigned || !s->clones || !b.copy || !b.copy_split || !b.copy_ids || !b.twin) goto out;
    TN_TRY_GOTO(tn__sched_assign(sched, graph, s->assigned), status, out);
    TN_TRY_GOTO(build_schedule(&b), status, out);
out:
    tn_free(b.copy);
    tn_free(b.copy_split);
    tn_free(b.copy_ids);
    tn_free(b.twin);
    tn_free(b.cuts);
    tn_free(b.segments);
    if (status != TN_OK)
        tn__schedule_free(s);
    else
        *out = s;
    return status;
}

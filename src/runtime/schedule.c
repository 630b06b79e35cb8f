/* A scheduled graph: the caller's tensors cloned in order, cut where the backend changes, with copies in between. */
#include "runtime/sched_internal.h"

#include "base/checked.h"
#include "tensor/graph_build.h"

#include <stdio.h>
#include <string.h>

void tn__schedule_free(tn__schedule *s) {
    if (!s) return;
    for (size_t i = 0; s->splits && i < s->n_splits; i++) tn_program_free(s->splits[i].program);
    tn_arena_free(s->arena);
    tn_free(s->places);
    tn_free(s->clones);
    tn_free(s->type_of);
    tn_free(s->splits);
    tn_free(s->copies);
    tn_free(s->work);
    tn_free(s->scratch);
    tn_free(s);
}

typedef struct job {
    const tn_sched *sched;
    const tn_graph *graph; /* the caller's */
    tn__schedule *s;
    size_t n; /* tensors in it */
    /* Per tensor of the caller's graph: its copy in the split being built, and that split's number plus one. */
    tn_tensor **copy;
    uint32_t *copy_split;
    size_t cap_splits, cap_copies, n_work;
} job;

static bool needs_copy(const job *j, const tn_tensor *source, uint32_t index, int backend) {
    int from = j->s->places[index].backend;
    if (from == backend) return false;
    return !tn_device_supports_buffer_type(tn_backend_device(j->sched->backends[backend]),
                                           tn__sched_memory_type(j->sched, source, from));
}

/* Copies are counted beforehand, so that one arena holds everything exactly. */
static size_t count_copies(const job *j) {
    size_t count = 0;
    uint32_t split = 0;
    int current = -1;
    for (size_t i = 0; i < j->s->n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        if (tn__is_view_op(t)) continue;
        if (j->s->places[i].backend != current) {
            current = j->s->places[i].backend;
            split++;
        }
        for (int s = 0; s < TN_MAX_SRC; s++) {
            if (!t->src[s]) continue;
            uint32_t index = tn_graph_index(j->graph, t->src[s]);
            if (j->copy_split[index] == split || !needs_copy(j, t->src[s], index, current)) continue;
            j->copy_split[index] = split;
            count++;
        }
    }
    memset(j->copy_split, 0, j->n * sizeof *j->copy_split);
    return count;
}

static tn_status grow_array(void **array, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity) return TN_OK;
    size_t wanted = *capacity ? 2 * *capacity : 16;
    void *grown = tn_realloc(*array, wanted * size);
    if (!grown) return TN_E_NOMEM;
    *array = grown;
    *capacity = wanted;
    return TN_OK;
}

/* A tensor of the scheduled graph with the caller's layout; sources and root are the clones. */
static tn_tensor *clone(job *j, const tn_tensor *t) {
    tn_tensor *c = tn_arena_alloc(j->s->arena, sizeof *c);
    if (!c) return NULL;
    *c = *t;
    if (!tn__has_own_data(t)) {
        c->data = NULL;
        c->buffer = NULL;
        c->extra = NULL;
    }
    for (int s = 0; s < TN_MAX_SRC; s++)
        if (t->src[s]) c->src[s] = j->s->clones[tn_graph_index(j->graph, t->src[s])];
    if (t->view_src) c->view_src = j->s->clones[tn_graph_index(j->graph, t->view_src)];
    return c;
}

static tn_status append(job *j, tn_tensor *t, int backend) {
    /* The type array follows the scheduled graph's nodes; leaves are put behind them at the end. */
    if (t->op != TN_OP_NONE) j->s->type_of[tn_graph_node_count(j->s->graph)] = (uint16_t)backend;
    return tn__graph_append(j->s->graph, t);
}

static tn_status add_copy(job *j, const tn_tensor *source, uint32_t index, int backend, tn__split *split) {
    tn_tensor *from = j->s->clones[index], *to = tn_arena_alloc(j->s->arena, sizeof *to);
    if (!to) return tn_arena_status(j->s->arena);
    memset(to, 0, sizeof *to);
    to->op = TN_OP_DUP;
    to->type = source->type;
    to->n_dims = source->n_dims;
    memcpy(to->ne, source->ne, sizeof to->ne);
    memcpy(to->nb, source->nb, sizeof to->nb);
    to->src[0] = from;
    snprintf(to->name, sizeof to->name, "%.40s@%.20s", source->name,
             tn_device_name(tn_backend_device(j->sched->backends[backend])));
    TN_TRY(append(j, to, backend));
    TN_TRY(grow_array((void **)&j->s->copies, &j->cap_copies, j->s->n_copies, sizeof *j->s->copies));
    j->s->copies[j->s->n_copies++] = (tn__copy){from, to, j->s->places[index].backend};
    j->s->copy_bytes += tn_nbytes(source);
    j->copy[index] = to;
    j->copy_split[index] = (uint32_t)j->s->n_splits;
    split->n_copies++;
    return TN_OK;
}

/* The copies a split needs come first, so a split is built in two passes over its nodes. */
static tn_status build_split(job *j, size_t begin, size_t end) {
    int backend = -1;
    for (size_t i = begin; i < end && backend < 0; i++)
        if (!tn__is_view_op(tn_graph_node(j->graph, i))) backend = j->s->places[i].backend;
    if (backend >= 0) {
        TN_TRY(grow_array((void **)&j->s->splits, &j->cap_splits, j->s->n_splits, sizeof *j->s->splits));
        j->s->splits[j->s->n_splits++] =
            (tn__split){.backend = (int16_t)backend, .first_copy = j->s->n_copies, .first_node = j->n_work};
    }
    tn__split *split = backend >= 0 ? &j->s->splits[j->s->n_splits - 1] : NULL;

    for (size_t i = begin; i < end; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        if (tn__is_view_op(t)) continue;
        for (int s = 0; s < TN_MAX_SRC; s++) {
            const tn_tensor *source = t->src[s];
            if (!source) continue;
            uint32_t index = tn_graph_index(j->graph, source);
            if (j->copy_split[index] == j->s->n_splits || !needs_copy(j, source, index, backend)) continue;
            if (!j->s->clones[index]) {
                /* A view inside this very run of nodes, of memory elsewhere: it is cloned where it stands, ahead. */
                j->s->clones[index] = clone(j, source);
                if (!j->s->clones[index]) return tn_arena_status(j->s->arena);
                TN_TRY(append(j, j->s->clones[index], j->s->places[index].backend));
            }
            TN_TRY(add_copy(j, source, index, backend, split));
        }
    }
    for (size_t i = begin; i < end; i++) {
        const tn_tensor *t = tn_graph_node(j->graph, i);
        if (j->s->clones[i]) continue;
        tn_tensor *c = clone(j, t);
        if (!c) return tn_arena_status(j->s->arena);
        j->s->clones[i] = c;
        if (!tn__is_view_op(t)) {
            for (int s = 0; s < TN_MAX_SRC; s++) {
                if (!t->src[s]) continue;
                uint32_t index = tn_graph_index(j->graph, t->src[s]);
                if (j->copy_split[index] == j->s->n_splits && j->copy[index] &&
                    needs_copy(j, t->src[s], index, backend))
                    c->src[s] = j->copy[index];
            }
            if (!tn_is_empty(t)) {
                j->s->work[j->n_work++] = c;
                split->n_nodes++;
            }
        }
        TN_TRY(append(j, c, j->s->places[i].backend));
    }
    return TN_OK;
}

static tn_status build(job *j) {
    tn__schedule *s = j->s;
    size_t n_copies = count_copies(j), total = j->n + n_copies;
    tn_arena_params params = {.size = tn_arena_size_for(total, total ? total : 1), .no_alloc = true};
    TN_TRY(tn_arena_new(&params, &s->arena));
    TN_TRY(tn_graph_new(s->arena, total ? total : 1, &s->graph));
    s->type_of = tn_calloc(total + 1, sizeof *s->type_of);
    s->work = tn_calloc(s->n_nodes + 1, sizeof *s->work);
    s->scratch = tn_calloc(j->sched->n_backends, sizeof *s->scratch);
    if (!s->type_of || !s->work || !s->scratch) return TN_E_NOMEM;

    for (size_t i = 0; i < s->n_leaves; i++) {
        tn_tensor *c = clone(j, tn_graph_leaf(j->graph, i));
        if (!c) return tn_arena_status(s->arena);
        s->clones[s->n_nodes + i] = c;
        TN_TRY(append(j, c, s->places[s->n_nodes + i].backend));
    }
    size_t begin = 0;
    int current = -1;
    for (size_t i = 0; i < s->n_nodes; i++) {
        if (tn__is_view_op(tn_graph_node(j->graph, i))) continue;
        if (current >= 0 && s->places[i].backend != current) {
            TN_TRY(build_split(j, begin, i));
            begin = i;
        }
        current = s->places[i].backend;
    }
    TN_TRY(build_split(j, begin, s->n_nodes));
    for (size_t i = 0; i < s->n_leaves; i++)
        s->type_of[tn_graph_node_count(s->graph) + i] = (uint16_t)s->places[s->n_nodes + i].backend;

    for (size_t i = 0; i < s->n_splits; i++) {
        tn__split *split = &s->splits[i];
        if (!split->n_nodes) continue;
        TN_TRY(tn_program_new(j->sched->backends[split->backend], s->work + split->first_node, split->n_nodes,
                              &split->program));
        size_t scratch = tn_program_scratch(split->program);
        if (scratch > s->scratch[split->backend]) s->scratch[split->backend] = scratch;
    }
    return TN_OK;
}

tn_status tn__schedule_new(const tn_sched *sched, tn_graph *graph, tn__schedule **out) {
    *out = NULL;
    tn__schedule *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->n_nodes = tn_graph_node_count(graph);
    s->n_leaves = tn_graph_leaf_count(graph);
    job j = {.sched = sched, .graph = graph, .s = s, .n = s->n_nodes + s->n_leaves};
    s->places = tn_calloc(j.n + 1, sizeof *s->places);
    s->clones = tn_calloc(j.n + 1, sizeof *s->clones);
    j.copy = tn_calloc(j.n + 1, sizeof *j.copy);
    j.copy_split = tn_calloc(j.n + 1, sizeof *j.copy_split);
    tn_status status = TN_E_NOMEM;
    if (!s->places || !s->clones || !j.copy || !j.copy_split) goto out;
    TN_TRY_GOTO(tn__sched_assign(sched, graph, s->places), status, out);
    TN_TRY_GOTO(build(&j), status, out);
out:
    tn_free(j.copy);
    tn_free(j.copy_split);
    if (status != TN_OK)
        tn__schedule_free(s);
    else
        *out = s;
    return status;
}

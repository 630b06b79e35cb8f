/* The graph allocator: reservations of classes, and binding. */
#include "runtime/classes.h"

#include "base/checked.h"
#include "tensor/external.h"
#include "tensor/graph_build.h"

#include <string.h>

/* ---- Creation ---- */

tn_status tn__alloc_new(tn_buffer_type *const *types, size_t n_types, tn__alloc **out) {
    if (!types || !n_types || n_types > UINT16_MAX || !out)
        return tn_fail(TN_E_INVALID, "tn__alloc_new: 1 to 65535 buffer types are needed");
    *out = NULL;
    tn__alloc *a = tn_calloc(1, sizeof *a);
    if (!a) return TN_E_NOMEM;
    tn_status status = tn__pools_new(types, n_types, &a->pools);
    if (status != TN_OK) {
        tn_free(a);
        return status;
    }
    *out = a;
    return TN_OK;
}

tn_status tn__alloc_share(const tn__alloc *with, tn__alloc **out) {
    if (!with || !out) return tn_fail(TN_E_INVALID, "tn__alloc_share: NULL argument");
    *out = tn_calloc(1, sizeof **out);
    if (!*out) return TN_E_NOMEM;
    (*out)->pools = with->pools;
    with->pools->n_users++;
    return TN_OK;
}

void tn__alloc_free(tn__alloc *a) {
    if (!a) return;
    tn__classes_forget(a, true);
    tn__pools_leave(a->pools);
    tn_free(a->classes);
    tn_free(a);
}

void tn__alloc_forget(tn__alloc *a) { tn__classes_forget(a, !a->sealed); }
void tn__alloc_set_effort(tn__alloc *a, const tn_pack_params *pack) { a->pack = *pack; }
void tn__alloc_seal(tn__alloc *a) { a->sealed = true; }

/* ---- Messages ---- */

static const char *name_of_graph(const tn_graph *graph) {
    size_t n = tn_graph_node_count(graph);
    return n && tn_graph_node(graph, n - 1)->name[0] ? tn_graph_node(graph, n - 1)->name : "without a name";
}

/* A sealed allocator has met a graph that it should have covered. Names the tensor and its bytes. */
static tn_status fail_not_covered(const tn__alloc *a, const tn__request *r) {
    size_t n_nodes = tn_graph_node_count(r->graph), at = 0;
    for (size_t i = 0; i < a->n_classes; i++) {
        const tn__class *c = a->classes[i];
        const tn__cover *plan = c->plans[TN__CLASS_CURRENT];
        if (!plan || !tn__structure_equal(&c->structure, &r->structure)) continue;
        if (tn__cover_includes(plan, &r->extents, &at)) continue;
        const tn_tensor *t = tn__graph_tensor(r->graph, at);
        size_t needed = r->extents.sizes[at], reserved = plan->extents.sizes[at];
        return tn_fail(TN_E_INTERNAL,
                       "graph '%s' of %zu nodes is not covered by the reservation: tensor '%s' (%s) needs %zu bytes, "
                       "%zu are reserved%s; this is a bug in the session's plan",
                       name_of_graph(r->graph), n_nodes, t->name, tn_op_name(t->op), needed, reserved,
                       needed <= reserved ? ", but it must not be computed in place here" : "");
    }
    for (size_t i = 0; i < r->extents.n; i++)
        if (r->extents.sizes[i] > r->extents.sizes[at]) at = i;
    size_t total = 0;
    for (size_t p = 0; p < a->pools->n; p++) total += tn__pool_size(&a->pools->pools[p]);
    return tn_fail(
        TN_E_INTERNAL,
        "graph '%s' of %zu nodes is not covered by the reservation: no covered graph has its structure; its "
        "largest tensor is '%s' of %zu bytes, %zu bytes are reserved; this is a bug in the session's plan",
        name_of_graph(r->graph), n_nodes, tn__graph_tensor(r->graph, at)->name, r->extents.sizes[at], total);
}

/* Names a tensor that does not fit, and its chunk. */
static tn_status fail_need_reserve(const tn__alloc *a, const tn_plan *plan, size_t p, size_t chunk) {
    const tn_plan_entry *entries = tn_plan_entries(plan);
    size_t reserved = tn__pool_chunk_size(&a->pools->pools[p], chunk);
    size_t n = tn_plan_tensor_count(plan), i = 0;
    while (i + 1 < n && (entries[i].memory != (int32_t)p || entries[i].chunk != chunk ||
                         entries[i].offset + entries[i].size <= reserved))
        i++;
    return tn_fail(
        TN_E_NEED_RESERVE,
        "no room for '%s' of %zu bytes: chunk %zu in %s needs %zu bytes, %zu are reserved; reserve for this "
        "graph first",
        tn_plan_label(plan, i), entries[i].size, chunk, tn_buffer_type_name(a->pools->pools[p].type),
        tn_plan_chunk_size(plan, p, chunk), reserved);
}

static void log_growth(const tn__alloc *a, const tn_graph *graph, const tn__chunk_sizes *wanted) {
    for (size_t p = 0; p < a->pools->n; p++) {
        size_t from = tn__pool_size(&a->pools->pools[p]), to = 0;
        for (size_t c = 0; c < wanted[p].count; c++) to += wanted[p].sizes[c];
        if (to > from)
            tn_log(from ? TN_LOG_WARN : TN_LOG_DEBUG,
                   "%s: compute memory grows from %zu to %zu bytes: graph '%s' was not reserved",
                   tn_buffer_type_name(a->pools->pools[p].type), from, to, name_of_graph(graph));
    }
}

/* ---- Reservation ---- */

/* Finds or makes the plan of a graph. A sealed allocator has all plans that it needs. */
static tn_status cover_at(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, tn__class_level level,
                          tn__class **class) {
    tn__request r;
    TN_TRY(tn__request_begin(a, graph, type_of, &r));
    tn_status status = TN_OK;
    if (a->sealed) {
        *class = tn__class_find(a, &r, TN__CLASS_CURRENT, NULL);
        if (!*class) status = fail_not_covered(a, &r);
    } else {
        status = tn__class_cover(a, &r, level, class);
    }
    tn__request_end(&r);
    return status;
}

tn_status tn__alloc_cover(tn__alloc *a, tn_graph *graph, const uint16_t *type_of) {
    if (!a || !graph) return tn_fail(TN_E_INVALID, "tn__alloc_cover: NULL argument");
    tn__class *class;
    TN_TRY(cover_at(a, graph, type_of, TN__CLASS_WANTED, &class));
    class->reserved = true;
    return TN_OK;
}

static tn_status put_adopted(tn__alloc *a, const tn__request *r, tn__class *class, tn__cover *adopted) {
    TN_TRY(tn__class_put(a, r, class, TN__CLASS_WANTED, adopted, &class));
    class->reserved = true;
    a->stats.plans_adopted++;
    return TN_OK;
}

tn_status tn__alloc_adopt(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, const tn_plan *plan) {
    if (!a || !graph || !plan) return tn_fail(TN_E_INVALID, "tn__alloc_adopt: NULL argument");
    if (a->sealed) return tn_fail(TN_E_STATE, "the reservation is sealed: no plan can be added");
    tn__request r;
    TN_TRY(tn__request_begin(a, graph, type_of, &r));
    tn__class *class = NULL;
    for (size_t i = 0; i < a->n_classes && !class; i++)
        if (tn__structure_equal(&a->classes[i]->structure, &r.structure)) class = a->classes[i];
    tn__cover *adopted;
    tn_status status =
        tn__cover_adopt(graph, &r.params, &r.extents, class ? tn__class_top(class) : NULL, plan, &adopted);
    status = status == TN_OK ? put_adopted(a, &r, class, adopted) : status;
    tn__request_end(&r);
    return status;
}

/* Always a class of its own: two classes may have the same structure where one plan for both would be much larger. */
tn_status tn__alloc_adopt_offsets(tn__alloc *a, tn_graph *graph, const uint16_t *type_of,
                                  const tn_plan_offset *offsets, size_t n) {
    if (!a || !graph || (n && !offsets)) return tn_fail(TN_E_INVALID, "tn__alloc_adopt_offsets: NULL argument");
    if (a->sealed) return tn_fail(TN_E_STATE, "the reservation is sealed: no plan can be added");
    tn__request r;
    TN_TRY(tn__request_begin(a, graph, type_of, &r));
    tn__cover *adopted;
    tn_status status = tn__cover_from_offsets(graph, &r.params, &r.extents, offsets, n, &adopted);
    if (status == TN_OK) status = put_adopted(a, &r, NULL, adopted);
    tn__request_end(&r);
    return status;
}

tn_status tn__alloc_cover_served(tn__alloc *a, tn_graph *graph, const uint16_t *type_of) {
    if (!a || !graph) return tn_fail(TN_E_INVALID, "tn__alloc_cover_served: NULL argument");
    tn__request r;
    TN_TRY(tn__request_begin(a, graph, type_of, &r));
    tn__class *class = tn__class_find(a, &r, TN__CLASS_TRIAL, NULL);
    tn__request_end(&r);
    if (!class)
        return tn_fail(TN_E_STATE, "graph '%s' of %zu nodes is served by no plan that is there", name_of_graph(graph),
                       tn_graph_node_count(graph));
    class->reserved = true;
    a->stats.plans_reused++;
    return TN_OK;
}

/* A pool that several types share counts for the first of them. */
static bool counts_for(const tn__alloc *a, size_t type) {
    for (size_t t = 0; t < type; t++)
        if (a->pools->pool_of[t] == a->pools->pool_of[type]) return false;
    return true;
}

static void fill_needs(const tn__alloc *a, const tn__chunk_sizes *wanted, tn__alloc_need *needs) {
    for (size_t t = 0; t < a->pools->n_types; t++) {
        size_t p = a->pools->pool_of[t];
        needs[t] = (tn__alloc_need){0};
        if (!counts_for(a, t)) continue;
        for (size_t c = 0; c < wanted[p].count; c++) {
            needs[t].size += wanted[p].sizes[c];
            if (wanted[p].sizes[c] > tn__pool_chunk_size(&a->pools->pools[p], c))
                needs[t].missing += wanted[p].sizes[c];
        }
    }
}
static void raise_bounds(const tn__alloc *a, const tn_plan *plan, tn__alloc_need *needs) {
    for (size_t t = 0; t < a->pools->n_types; t++)
        if (counts_for(a, t))
            needs[t].lower_bound = TN__MAX(needs[t].lower_bound, tn_plan_lower_bound(plan, a->pools->pool_of[t]));
}

tn_status tn__alloc_needs(tn__alloc *a, tn__alloc_need *needs) {
    if (!a || !needs) return tn_fail(TN_E_INVALID, "tn__alloc_needs: NULL argument");
    tn__chunk_sizes *wanted;
    TN_TRY(tn__classes_sizes(a, &wanted));
    fill_needs(a, wanted, needs);
    for (size_t i = 0; i < a->n_classes; i++)
        if (a->classes[i]->reserved) raise_bounds(a, tn__class_top(a->classes[i])->plan, needs);
    tn__chunk_sizes_free(a->pools, wanted);
    return TN_OK;
}

tn_status tn__alloc_in_order(tn__alloc *a, size_t *per_type) {
    if (!a || !per_type) return tn_fail(TN_E_INVALID, "tn__alloc_in_order: NULL argument");
    for (size_t t = 0; t < a->pools->n_types; t++) {
        per_type[t] = 0;
        for (size_t i = 0; i < a->n_classes && counts_for(a, t); i++) {
            size_t bytes;
            if (!a->classes[i]->reserved) continue;
            TN_TRY(tn__cover_in_order(tn__class_top(a->classes[i]), a->pools->pool_of[t], &bytes));
            per_type[t] = TN__MAX(per_type[t], bytes);
        }
    }
    return TN_OK;
}

tn_status tn__alloc_take(tn__alloc *a) {
    if (!a) return tn_fail(TN_E_INVALID, "tn__alloc_take: NULL argument");
    tn__chunk_sizes *wanted;
    bool replaced;
    TN_TRY(tn__classes_sizes(a, &wanted));
    tn_status status = tn__pools_grow(a->pools, wanted, &replaced);
    tn__chunk_sizes_free(a->pools, wanted);
    TN_TRY(status);
    a->stats.buffers_grown += replaced;
    for (size_t i = 0; i < a->n_classes; i++)
        if (a->classes[i]->plans[TN__CLASS_WANTED]) tn__class_settle(a, a->classes[i]);
    return TN_OK;
}

/* Covers several graphs on trial. `classes` receives the class of each, `wanted` the chunks that exist raised to what
 * these classes need. */
static tn_status try_graphs(tn__alloc *a, tn_graph *const *graphs, const uint16_t *const *type_of, size_t n,
                            tn__class **classes, tn__chunk_sizes **wanted) {
    for (size_t i = 0; i < n; i++) {
        const uint16_t *types = type_of ? type_of[i] : NULL;
        classes[i] = tn__known_find(a, graphs[i], types);
        a->stats.plans_reused += classes[i] != NULL;
        if (!classes[i]) TN_TRY(cover_at(a, graphs[i], types, TN__CLASS_TRIAL, &classes[i]));
        classes[i]->busy = true;
    }
    TN_TRY(tn__pools_sizes(a->pools, wanted));
    for (size_t i = 0; i < n; i++) TN_TRY(tn__chunk_sizes_raise(a->pools, *wanted, tn__class_top(classes[i])->plan));
    return TN_OK;
}

tn_status tn__alloc_measure(tn__alloc *a, tn_graph *const *graphs, const uint16_t *const *type_of, size_t n,
                            tn__alloc_need *needs) {
    if (!a || !graphs || !needs) return tn_fail(TN_E_INVALID, "tn__alloc_measure: NULL argument");
    tn__chunk_sizes *wanted = NULL;
    tn__class **classes = tn_malloc((n + 1) * sizeof(tn__class *));
    if (!classes) return TN_E_NOMEM;
    tn_status status = try_graphs(a, graphs, type_of, n, classes, &wanted);
    if (status == TN_OK) {
        fill_needs(a, wanted, needs);
        for (size_t i = 0; i < n; i++) raise_bounds(a, tn__class_top(classes[i])->plan, needs);
    }
    tn__classes_end_trial(a);
    tn__chunk_sizes_free(a->pools, wanted);
    tn_free(classes);
    return status;
}

tn_status tn__alloc_reserve(tn__alloc *a, tn_graph *const *graphs, const uint16_t *const *type_of, size_t n) {
    if (!a || !graphs) return tn_fail(TN_E_INVALID, "tn__alloc_reserve: NULL argument");
    tn__chunk_sizes *wanted = NULL;
    tn__class **classes = tn_malloc((n + 1) * sizeof(tn__class *));
    if (!classes) return TN_E_NOMEM;
    bool replaced = false;
    tn_status status = try_graphs(a, graphs, type_of, n, classes, &wanted);
    if (status == TN_OK) status = tn__pools_grow(a->pools, wanted, &replaced);
    a->stats.buffers_grown += replaced;
    for (size_t i = 0; i < n && status == TN_OK; i++) {
        tn__class_settle(a, classes[i]);
        classes[i]->reserved = true;
    }
    tn__classes_end_trial(a);
    tn__chunk_sizes_free(a->pools, wanted);
    tn_free(classes);
    return status;
}

/* ---- Binding ---- */

/* Plans a graph that no class serves. Of several plans the first that fits the buffers is taken: joined with its
 * class, alone, and joined with more effort. */
static tn_status plan_unreserved(tn__alloc *a, const tn__request *r, tn__class **out) {
    tn__class *same = NULL;
    for (size_t i = 0; i < a->n_classes && !same; i++)
        if (tn__structure_equal(&a->classes[i]->structure, &r->structure)) same = a->classes[i];
    tn_pack_params fast = tn_pack_params_default();
    tn__cover *plan = NULL;
    bool joined = same != NULL;
    TN_TRY(tn__class_plan(a, r, same, &fast, &plan));
    if (joined && !tn__pools_suffice(a->pools, plan->plan, NULL, NULL)) {
        tn__cover *alone;
        tn_status status = tn__class_plan(a, r, NULL, &fast, &alone);
        if (status != TN_OK) {
            tn__cover_free(plan);
            return status;
        }
        size_t total = tn_plan_total(plan->plan);
        joined =
            !tn__pools_suffice(a->pools, alone->plan, NULL, NULL) && total - total / 5 <= tn_plan_total(alone->plan);
        tn__cover_free(joined ? alone : plan);
        plan = joined ? plan : alone;
    }
    a->stats.plans_made++;
    return tn__class_put(a, r, joined ? same : NULL, TN__CLASS_TRIAL, plan, out);
}

static tn_status grow_for(tn__alloc *a, const tn_graph *graph, const tn_plan *plan) {
    tn__chunk_sizes *wanted;
    bool replaced = false;
    TN_TRY(tn__pools_sizes(a->pools, &wanted));
    tn_status status = tn__chunk_sizes_raise(a->pools, wanted, plan);
    if (status == TN_OK) log_growth(a, graph, wanted);
    if (status == TN_OK) status = tn__pools_grow(a->pools, wanted, &replaced);
    a->stats.buffers_grown += replaced;
    tn__chunk_sizes_free(a->pools, wanted);
    return status;
}

/* The class of a graph: known, found, or planned on trial. */
static tn_status class_for(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, bool *known, tn__class **class) {
    *class = tn__known_find(a, graph, type_of);
    *known = *class != NULL;
    if (*known) {
        a->stats.plans_reused++;
        return TN_OK;
    }
    tn__request r;
    TN_TRY(tn__request_begin(a, graph, type_of, &r));
    tn_status status = TN_OK;
    *class = tn__class_find(a, &r, TN__CLASS_CURRENT, NULL);
    if (*class)
        a->stats.plans_reused++;
    else
        status = a->sealed ? fail_not_covered(a, &r) : plan_unreserved(a, &r, class);
    tn__request_end(&r);
    return status;
}

static tn_status prepare_graph(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, bool may_grow,
                               const tn_plan **plan) {
    tn__class *class;
    bool known;
    size_t p, c;
    TN_TRY(class_for(a, graph, type_of, &known, &class));
    tn__cover *cover =
        class->plans[TN__CLASS_TRIAL] ? class->plans[TN__CLASS_TRIAL] : class->plans[TN__CLASS_CURRENT];
    tn_status status = TN_OK;
    if (!tn__pools_suffice(a->pools, cover->plan, &p, &c)) {
        status = may_grow && !a->sealed ? grow_for(a, graph, cover->plan) : fail_need_reserve(a, cover->plan, p, c);
        if (a->sealed) status = tn_fail_more(TN_E_INTERNAL, "; this is a bug in the session's plan");
    }
    if (status == TN_OK && class->plans[TN__CLASS_TRIAL]) tn__class_settle(a, class);
    tn__classes_end_trial(a);
    TN_TRY(status);
    if (!known) tn__known_add(a, graph, class);
    *plan = cover->plan;
    return TN_OK;
}

tn_status tn__alloc_prepare(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, bool may_grow) {
    if (!a || !graph) return tn_fail(TN_E_INVALID, "tn__alloc_prepare: NULL argument");
    const tn_plan *plan;
    return prepare_graph(a, graph, type_of, may_grow, &plan);
}

static tn_status bind_roots(const tn__alloc *a, tn_tensor *const *tensors, const tn_plan_entry *entries,
                            size_t count) {
    for (size_t i = 0; i < count; i++) {
        const tn_plan_entry *entry = &entries[i];
        if (entry->memory < 0) continue;
        const tn__pool *set = &a->pools->pools[entry->memory];
        /* The chunk of an empty tensor may not exist. */
        if (entry->size == 0 && (entry->chunk >= set->n_chunks || !set->chunks[entry->chunk])) continue;
        TN_TRY(tn_buffer_bind(set->chunks[entry->chunk], tensors[i], entry->size ? entry->offset : 0));
        tensors[i]->flags |= TN_FLAG_PLANNED;
    }
    return TN_OK;
}

static tn_status bind_views(tn_tensor *const *tensors, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (tensors[i]->view_src && tensors[i]->view_src->data) TN_TRY(tn_view_bind(tensors[i]));
    return TN_OK;
}

tn_status tn__alloc_bind(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, bool may_grow) {
    if (!a || !graph) return tn_fail(TN_E_INVALID, "tn__alloc_bind: NULL argument");
    const tn_plan *plan;
    TN_TRY(prepare_graph(a, graph, type_of, may_grow, &plan));
    size_t n_nodes = tn_graph_node_count(graph), n_leaves = tn_graph_leaf_count(graph);
    TN_TRY(bind_roots(a, tn_graph_nodes(graph), tn_plan_entries(plan), n_nodes));
    TN_TRY(bind_roots(a, tn_graph_leaves(graph), tn_plan_entries(plan) + n_nodes, n_leaves));
    TN_TRY(bind_views(tn_graph_leaves(graph), n_leaves));
    return bind_views(tn_graph_nodes(graph), n_nodes);
}

/* ---- Properties ---- */

size_t tn__alloc_size(const tn__alloc *a, size_t type) {
    return a && type < a->pools->n_types ? tn__pool_size(&a->pools->pools[a->pools->pool_of[type]]) : 0;
}
size_t tn__alloc_chunk_count(const tn__alloc *a, size_t type) {
    return a && type < a->pools->n_types ? a->pools->pools[a->pools->pool_of[type]].n_chunks : 0;
}
tn_buffer *tn__alloc_buffer(const tn__alloc *a, size_t type, size_t chunk) {
    return chunk < tn__alloc_chunk_count(a, type) ? a->pools->pools[a->pools->pool_of[type]].chunks[chunk] : NULL;
}
uint64_t tn__alloc_generation(const tn__alloc *a) { return a->pools->generation; }

tn_status tn__alloc_plan(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, bool make, const tn_plan **plan) {
    *plan = NULL;
    tn__request r;
    TN_TRY(tn__request_begin(a, graph, type_of, &r));
    tn_status status = TN_OK;
    tn__cover *cover = NULL;
    tn__class *class = tn__class_find(a, &r, TN__CLASS_WANTED, &cover);
    if (!class && make && a->sealed) status = fail_not_covered(a, &r);
    if (!class && make && status == TN_OK) {
        status = tn__class_plan(a, &r, NULL, &a->pack, &cover);
        if (status == TN_OK) {
            a->stats.plans_made++;
            status = tn__class_put(a, &r, NULL, TN__CLASS_CURRENT, cover, &class);
        }
    }
    if (class && status == TN_OK) {
        class->handed_out = cover->handed_out = true;
        *plan = cover->plan;
    }
    tn__request_end(&r);
    return status;
}

size_t tn__alloc_plan_memory(const tn__alloc *a, size_t type) {
    return type < a->pools->n_types ? a->pools->pool_of[type] : 0;
}
tn__alloc_stats tn__alloc_get_stats(const tn__alloc *a) {
    tn__alloc_stats stats = a->stats;
    stats.classes = a->n_classes;
    return stats;
}

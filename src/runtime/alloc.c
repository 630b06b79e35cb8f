/* The graph allocator: remembered plans over one shared set of buffers per buffer type. */
#include "runtime/alloc.h"

#include "base/checked.h"
#include "tensor/external.h"
#include "tensor/graph_build.h"

#include <string.h>

/* One set of buffers: the chunks of one buffer type. */
typedef struct pool {
    tn_buffer_type *type;
    tn_buffer **chunks;
    size_t n_chunks;
} pool;

typedef struct reservation {
    tn_fingerprint key;
    uint16_t *type_of; /* a copy of the caller's, or NULL */
    tn_plan *plan;
    /* Serial number of the graph for which has_same_externals() was last true: it need not be checked again. */
    uint64_t serial;
    uint64_t last_used;
    bool keep; /* reserved, or handed out: never evicted */
} reservation;

/* The memory; several allocators may share it. */
typedef struct store {
    size_t n_users;
    size_t n_types;
    uint16_t *pool_of; /* by type index; equal types share a pool */
    pool *pools;
    tn_plan_memory *memories; /* per pool */
    size_t n_pools;
    uint64_t generation;
} store;

struct tn__alloc {
    store *store;
    reservation *reservations;
    size_t n_reservations, cap_reservations;
    uint64_t clock;
    tn__alloc_stats stats;
};

static void leave_store(store *s) {
    if (!s || --s->n_users) return;
    for (size_t p = 0; s->pools && p < s->n_pools; p++) {
        for (size_t c = 0; c < s->pools[p].n_chunks; c++) tn_buffer_free(s->pools[p].chunks[c]);
        tn_free(s->pools[p].chunks);
    }
    tn_free(s->pools);
    tn_free(s->memories);
    tn_free(s->pool_of);
    tn_free(s);
}

static tn_status make_store(tn_buffer_type *const *types, size_t n_types, store **out) {
    store *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    *s = (store){.n_users = 1, .n_types = n_types, .generation = 1};
    s->pool_of = tn_calloc(n_types, sizeof *s->pool_of);
    s->pools = tn_calloc(n_types, sizeof *s->pools);
    s->memories = tn_calloc(n_types, sizeof *s->memories);
    if (!s->pool_of || !s->pools || !s->memories) {
        leave_store(s);
        return TN_E_NOMEM;
    }
    for (size_t i = 0; i < n_types; i++) {
        size_t p = 0;
        while (p < s->n_pools && s->pools[p].type != types[i]) p++;
        if (p == s->n_pools) {
            s->pools[p].type = types[i];
            s->memories[p] = (tn_plan_memory){tn_buffer_type_name(types[i]), tn_buffer_type_alignment(types[i]),
                                              tn_buffer_type_max_size(types[i])};
            s->n_pools++;
        }
        s->pool_of[i] = (uint16_t)p;
    }
    *out = s;
    return TN_OK;
}

tn_status tn__alloc_new(tn_buffer_type *const *types, size_t n_types, tn__alloc **out) {
    if (!types || !n_types || n_types > UINT16_MAX || !out)
        return tn_fail(TN_E_INVALID, "tn__alloc_new: 1 to 65535 buffer types are needed");
    *out = NULL;
    tn__alloc *a = tn_calloc(1, sizeof *a);
    if (!a) return TN_E_NOMEM;
    tn_status status = make_store(types, n_types, &a->store);
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
    (*out)->store = with->store;
    with->store->n_users++;
    return TN_OK;
}

void tn__alloc_free(tn__alloc *a) {
    if (!a) return;
    tn__alloc_forget(a);
    leave_store(a->store);
    tn_free(a->reservations);
    tn_free(a);
}

void tn__alloc_forget(tn__alloc *a) {
    for (size_t i = 0; i < a->n_reservations; i++) {
        tn_plan_free(a->reservations[i].plan);
        tn_free(a->reservations[i].type_of);
    }
    a->n_reservations = 0;
}

static size_t tensor_count(const tn_graph *graph) { return tn_graph_node_count(graph) + tn_graph_leaf_count(graph); }

typedef struct plan_context {
    const tn__alloc *alloc;
    const uint16_t *pool_of_tensor;
} plan_context;

static size_t size_in_pool(void *user, size_t memory, const tn_tensor *tensor) {
    return tn_buffer_type_tensor_size(((const plan_context *)user)->alloc->store->pools[memory].type, tensor);
}
/* The device that runs the node is the one whose memory it is in. */
static uint32_t mask_on_device(void *user, const tn_tensor *node, size_t index) {
    const plan_context *c = user;
    return tn_device_inplace_mask(tn_buffer_type_device(c->alloc->store->pools[c->pool_of_tensor[index]].type), node);
}

static tn_status make_plan(const tn__alloc *a, const tn_graph *graph, const uint16_t *type_of, tn_plan **plan) {
    size_t n = tensor_count(graph);
    uint16_t *memory_of = tn_malloc(n * sizeof *memory_of);
    if (!memory_of) return TN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t type = type_of ? type_of[i] : 0;
        if (type >= a->store->n_types) {
            tn_free(memory_of);
            return tn_fail(TN_E_INVALID, "tensor %zu is assigned to buffer type %zu of %zu", i, type,
                           a->store->n_types);
        }
        memory_of[i] = a->store->pool_of[type];
    }
    plan_context context = {a, memory_of};
    tn_plan_params params = {
        .memories = a->store->memories,
        .n_memories = a->store->n_pools,
        .memory_of = memory_of,
        .tensor_size = size_in_pool,
        .inplace_mask = mask_on_device,
        .user = &context,
    };
    tn_status status = tn_plan_make(graph, &params, plan);
    tn_free(memory_of);
    return status;
}

/* Whether the plan has memory for exactly those tensors of the graph that have none of their own. The fingerprint
 * does not say: an input may have memory, or be left to the allocator. */
static bool has_same_externals(const tn_plan *plan, const tn_graph *graph) {
    const tn_plan_entry *entries = tn_plan_entries(plan);
    for (size_t i = 0, n = tensor_count(graph); i < n; i++) {
        const tn_tensor *t = tn__graph_tensor(graph, i);
        if (!t->view_src && tn__is_external(t) != (entries[i].memory < 0)) return false;
    }
    return true;
}

static reservation *find_reservation(const tn__alloc *a, tn_graph *graph, const uint16_t *type_of) {
    tn_fingerprint key = tn_graph_fingerprint(graph);
    uint64_t serial = tn__graph_serial(graph);
    for (size_t i = 0; i < a->n_reservations; i++) {
        reservation *r = &a->reservations[i];
        if (r->key.lo != key.lo || r->key.hi != key.hi || !r->type_of != !type_of) continue;
        if (type_of && memcmp(r->type_of, type_of, tensor_count(graph) * sizeof *type_of) != 0) continue;
        if (r->serial != serial && !has_same_externals(r->plan, graph)) continue;
        r->serial = serial;
        return r;
    }
    return NULL;
}

static void drop_reservation(tn__alloc *a, reservation *r) {
    tn_plan_free(r->plan);
    tn_free(r->type_of);
    *r = a->reservations[--a->n_reservations];
}
void tn__alloc_drop(tn__alloc *a, tn_graph *graph, const uint16_t *type_of) {
    reservation *r = find_reservation(a, graph, type_of);
    if (r) drop_reservation(a, r);
}

/* Makes room for one more plan: evicts the least recently used one that is not kept. */
static void evict_plan(tn__alloc *a) {
    reservation *oldest = NULL;
    size_t evictable = 0;
    for (size_t i = 0; i < a->n_reservations; i++) {
        reservation *r = &a->reservations[i];
        if (r->keep) continue;
        evictable++;
        if (!oldest || r->last_used < oldest->last_used) oldest = r;
    }
    if (!oldest || evictable < TN__ALLOC_PLANS) return;
    drop_reservation(a, oldest);
    a->stats.plans_forgotten++;
}

/* The plan for a graph: remembered, or made and remembered. */
static tn_status plan_for(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, bool keep, tn_plan **plan) {
    reservation *found = find_reservation(a, graph, type_of);
    if (found) {
        found->last_used = ++a->clock;
        found->keep = found->keep || keep;
        a->stats.plans_reused++;
        *plan = found->plan;
        return TN_OK;
    }
    if (a->n_reservations == a->cap_reservations) {
        size_t capacity = a->cap_reservations ? 2 * a->cap_reservations : 8;
        reservation *grown = tn_realloc(a->reservations, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        a->reservations = grown;
        a->cap_reservations = capacity;
    }
    reservation fresh = {.key = tn_graph_fingerprint(graph), .serial = tn__graph_serial(graph), .keep = keep};
    if (type_of) {
        size_t bytes = tensor_count(graph) * sizeof *type_of;
        fresh.type_of = tn_malloc(bytes);
        if (!fresh.type_of) return TN_E_NOMEM;
        memcpy(fresh.type_of, type_of, bytes);
    }
    tn_status status = make_plan(a, graph, type_of, &fresh.plan);
    if (status != TN_OK) {
        tn_free(fresh.type_of);
        return status;
    }
    evict_plan(a); /* the array has room already */
    *plan = fresh.plan;
    fresh.last_used = ++a->clock;
    a->reservations[a->n_reservations++] = fresh;
    a->stats.plans_made++;
    return TN_OK;
}

/* Whether the buffers are large enough for a plan; if not, `at_pool` and `at_chunk` say which is not. */
static bool buffers_suffice(const tn__alloc *a, const tn_plan *plan, size_t *at_pool, size_t *at_chunk) {
    for (size_t p = 0; p < a->store->n_pools; p++) {
        for (size_t c = 0; c < tn_plan_chunk_count(plan, p); c++) {
            if (c < a->store->pools[p].n_chunks &&
                tn_buffer_size(a->store->pools[p].chunks[c]) >= tn_plan_chunk_size(plan, p, c))
                continue;
            *at_pool = p;
            *at_chunk = c;
            return false;
        }
    }
    return true;
}

/* The largest number of chunks of a pool, and size of one chunk, that any of the plans needs. */
static size_t chunks_needed(tn_plan *const *plans, size_t n_plans, size_t p) {
    size_t count = 0;
    for (size_t i = 0; i < n_plans; i++) count = TN__MAX(count, tn_plan_chunk_count(plans[i], p));
    return count;
}
static size_t size_needed(tn_plan *const *plans, size_t n_plans, size_t p, size_t c) {
    size_t size = 0;
    for (size_t i = 0; i < n_plans; i++)
        if (c < tn_plan_chunk_count(plans[i], p)) size = TN__MAX(size, tn_plan_chunk_size(plans[i], p, c));
    return size;
}

/* Replaces every chunk that is too small for one of the plans, once for all of them. All new buffers exist before an
 * old one is freed. */
static tn_status grow_buffers(tn__alloc *a, tn_plan *const *plans, size_t n_plans) {
    tn_status status = TN_OK;
    size_t total = 0;
    for (size_t p = 0; p < a->store->n_pools; p++) {
        pool *set = &a->store->pools[p];
        size_t wanted = chunks_needed(plans, n_plans, p);
        total += wanted;
        if (wanted <= set->n_chunks) continue;
        tn_buffer **chunks = tn_realloc(set->chunks, wanted * sizeof *chunks);
        if (!chunks) return TN_E_NOMEM;
        memset(chunks + set->n_chunks, 0, (wanted - set->n_chunks) * sizeof *chunks);
        set->chunks = chunks;
    }
    tn_buffer **fresh = tn_calloc(total, sizeof *fresh);
    if (!fresh) return TN_E_NOMEM;
    bool replaced = false;
    size_t k = 0;
    for (size_t p = 0; p < a->store->n_pools; p++) {
        for (size_t c = 0, n = chunks_needed(plans, n_plans, p); c < n; c++, k++) {
            size_t needed = size_needed(plans, n_plans, p, c);
            const pool *set = &a->store->pools[p];
            if (c < set->n_chunks && tn_buffer_size(set->chunks[c]) >= needed) continue;
            TN_TRY_GOTO(tn_buffer_new(set->type, needed, &fresh[k]), status, out);
            tn_buffer_set_usage(fresh[k], TN_USAGE_COMPUTE);
        }
    }
    k = 0;
    for (size_t p = 0; p < a->store->n_pools; p++) {
        pool *set = &a->store->pools[p];
        size_t n = chunks_needed(plans, n_plans, p);
        for (size_t c = 0; c < n; c++, k++) {
            if (!fresh[k]) continue;
            if (c < set->n_chunks) {
                tn_buffer_free(set->chunks[c]);
                replaced = true;
            }
            set->chunks[c] = fresh[k];
            fresh[k] = NULL;
        }
        set->n_chunks = TN__MAX(set->n_chunks, n);
    }
    a->store->generation++;
    a->stats.buffers_grown += replaced;
out:
    for (size_t i = 0; i < total; i++) tn_buffer_free(fresh[i]);
    tn_free(fresh);
    return status;
}

/* A pool that several types share counts for the first of them. */
static bool counts_for(const tn__alloc *a, size_t type) {
    for (size_t t = 0; t < type; t++)
        if (a->store->pool_of[t] == a->store->pool_of[type]) return false;
    return true;
}

tn_status tn__alloc_measure(tn__alloc *a, tn_graph *graph, const uint16_t *type_of, size_t *sizes,
                            size_t *lower_bounds) {
    if (!a || !graph || !sizes) return tn_fail(TN_E_INVALID, "tn__alloc_measure: NULL argument");
    tn_plan *plan;
    TN_TRY(plan_for(a, graph, type_of, false, &plan));
    for (size_t t = 0; t < a->store->n_types; t++) {
        size_t p = a->store->pool_of[t];
        bool first = counts_for(a, t);
        sizes[t] = first ? tn_plan_size(plan, p) : 0;
        if (lower_bounds) lower_bounds[t] = first ? tn_plan_lower_bound(plan, p) : 0;
    }
    return TN_OK;
}

tn_status tn__alloc_measure_many(tn__alloc *a, tn_graph *const *graphs, const uint16_t *const *type_of,
                                 size_t n_graphs, tn__alloc_need *needs) {
    if (!a || !graphs || !needs) return tn_fail(TN_E_INVALID, "tn__alloc_measure_many: NULL argument");
    tn_plan **plans = tn_malloc(n_graphs * sizeof(tn_plan *));
    if (!plans) return TN_E_NOMEM;
    tn_status status = TN_OK;
    for (size_t i = 0; i < n_graphs && status == TN_OK; i++)
        status = plan_for(a, graphs[i], type_of ? type_of[i] : NULL, false, &plans[i]);
    for (size_t t = 0; t < a->store->n_types && status == TN_OK; t++) {
        size_t p = a->store->pool_of[t];
        const pool *set = &a->store->pools[p];
        needs[t] = (tn__alloc_need){0};
        if (!counts_for(a, t)) continue;
        size_t n_chunks = TN__MAX(set->n_chunks, chunks_needed(plans, n_graphs, p));
        for (size_t c = 0; c < n_chunks; c++) {
            size_t needed = size_needed(plans, n_graphs, p, c);
            size_t there = c < set->n_chunks ? tn_buffer_size(set->chunks[c]) : 0;
            needs[t].size += TN__MAX(needed, there);
            if (needed > there) needs[t].missing += needed;
        }
        for (size_t i = 0; i < n_graphs; i++)
            needs[t].lower_bound = TN__MAX(needs[t].lower_bound, tn_plan_lower_bound(plans[i], p));
    }
    tn_free(plans);
    return status;
}

tn_status tn__alloc_reserve(tn__alloc *a, tn_graph *graph, const uint16_t *type_of) {
    if (!a || !graph) return tn_fail(TN_E_INVALID, "tn__alloc_reserve: NULL argument");
    return tn__alloc_reserve_many(a, &graph, type_of ? &type_of : NULL, 1);
}

tn_status tn__alloc_reserve_many(tn__alloc *a, tn_graph *const *graphs, const uint16_t *const *type_of,
                                 size_t n_graphs) {
    if (!a || !graphs) return tn_fail(TN_E_INVALID, "tn__alloc_reserve_many: NULL argument");
    tn_plan **plans = tn_malloc(n_graphs * sizeof(tn_plan *));
    if (!plans) return TN_E_NOMEM;
    bool suffice = true;
    size_t p, c;
    tn_status status = TN_OK;
    for (size_t i = 0; i < n_graphs && status == TN_OK; i++) {
        status = plan_for(a, graphs[i], type_of ? type_of[i] : NULL, true, &plans[i]);
        if (status == TN_OK) suffice = suffice && buffers_suffice(a, plans[i], &p, &c);
    }
    if (status == TN_OK && !suffice) status = grow_buffers(a, plans, n_graphs);
    tn_free(plans);
    return status;
}

/* Names a tensor that does not fit, and its chunk. */
static tn_status fail_need_reserve(const tn__alloc *a, const tn_plan *plan, size_t p, size_t chunk) {
    const tn_plan_entry *entries = tn_plan_entries(plan);
    size_t reserved = chunk < a->store->pools[p].n_chunks ? tn_buffer_size(a->store->pools[p].chunks[chunk]) : 0;
    size_t n = tn_plan_tensor_count(plan), i = 0;
    while (i + 1 < n && (entries[i].memory != (int32_t)p || entries[i].chunk != chunk ||
                         entries[i].offset + entries[i].size <= reserved))
        i++;
    return tn_fail(
        TN_E_NEED_RESERVE,
        "no room for '%s' of %zu bytes: chunk %zu in %s needs %zu bytes, %zu are reserved; reserve for this "
        "graph first",
        tn_plan_label(plan, i), entries[i].size, chunk, tn_buffer_type_name(a->store->pools[p].type),
        tn_plan_chunk_size(plan, p, chunk), reserved);
}

static tn_status bind_roots(const tn__alloc *a, tn_tensor *const *tensors, const tn_plan_entry *entries,
                            size_t count) {
    for (size_t i = 0; i < count; i++) {
        const tn_plan_entry *entry = &entries[i];
        if (entry->memory < 0) continue;
        const pool *set = &a->store->pools[entry->memory];
        /* The pool of an empty tensor may have no chunk. */
        if (entry->size == 0 && set->n_chunks == 0) continue;
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
    tn_plan *plan;
    size_t p, c;
    TN_TRY(plan_for(a, graph, type_of, false, &plan));
    if (!buffers_suffice(a, plan, &p, &c)) {
        if (!may_grow) return fail_need_reserve(a, plan, p, c);
        TN_TRY(grow_buffers(a, &plan, 1));
    }
    size_t n_nodes = tn_graph_node_count(graph), n_leaves = tn_graph_leaf_count(graph);
    TN_TRY(bind_roots(a, tn_graph_nodes(graph), tn_plan_entries(plan), n_nodes));
    TN_TRY(bind_roots(a, tn_graph_leaves(graph), tn_plan_entries(plan) + n_nodes, n_leaves));
    TN_TRY(bind_views(tn_graph_leaves(graph), n_leaves));
    return bind_views(tn_graph_nodes(graph), n_nodes);
}

size_t tn__alloc_size(const tn__alloc *a, size_t type) {
    if (!a || type >= a->store->n_types) return 0;
    const pool *set = &a->store->pools[a->store->pool_of[type]];
    size_t total = 0;
    for (size_t c = 0; c < set->n_chunks; c++) total += tn_buffer_size(set->chunks[c]);
    return total;
}
size_t tn__alloc_chunk_count(const tn__alloc *a, size_t type) {
    return a && type < a->store->n_types ? a->store->pools[a->store->pool_of[type]].n_chunks : 0;
}
tn_buffer *tn__alloc_buffer(const tn__alloc *a, size_t type, size_t chunk) {
    return chunk < tn__alloc_chunk_count(a, type) ? a->store->pools[a->store->pool_of[type]].chunks[chunk] : NULL;
}
uint64_t tn__alloc_generation(const tn__alloc *a) { return a->store->generation; }
const tn_plan *tn__alloc_plan(const tn__alloc *a, tn_graph *graph, const uint16_t *type_of) {
    reservation *r = find_reservation(a, graph, type_of);
    if (!r) return NULL;
    r->keep = true;
    return r->plan;
}
size_t tn__alloc_plan_memory(const tn__alloc *a, size_t type) {
    return type < a->store->n_types ? a->store->pool_of[type] : 0;
}
tn__alloc_stats tn__alloc_get_stats(const tn__alloc *a) { return a->stats; }

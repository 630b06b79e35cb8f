/* Classes of graphs with their plans. */
#include "runtime/classes.h"

#include "base/checked.h"
#include "tensor/external.h"
#include "tensor/graph_build.h"

#include <string.h>

static size_t tensors_of(const tn_graph *graph) { return tn_graph_node_count(graph) + tn_graph_leaf_count(graph); }

/* ---- Requests ---- */

static size_t size_in_pool(void *user, size_t memory, const tn_tensor *tensor) {
    return tn_buffer_type_tensor_size(((const tn__alloc_context *)user)->alloc->pools->pools[memory].type, tensor);
}
/* The device that runs the node is the one whose memory it is in. */
static uint32_t mask_on_device(void *user, const tn_tensor *node, size_t index) {
    const tn__alloc_context *c = user;
    return tn_device_inplace_mask(tn_buffer_type_device(c->alloc->pools->pools[c->memory_of[index]].type), node);
}

tn_status tn__alloc_plan_params(const tn__alloc *a, const tn_graph *graph, const uint16_t *type_of,
                                uint16_t *memory_of, tn__alloc_context *user, tn_plan_params *params) {
    for (size_t i = 0, n = tensors_of(graph); i < n; i++) {
        size_t type = type_of ? type_of[i] : 0;
        if (type >= a->pools->n_types)
            return tn_fail(TN_E_INVALID, "tensor %zu is assigned to buffer type %zu of %zu", i, type,
                           a->pools->n_types);
        memory_of[i] = a->pools->pool_of[type];
    }
    *user = (tn__alloc_context){a, memory_of};
    *params = (tn_plan_params){
        .memories = a->pools->memories,
        .n_memories = a->pools->n,
        .memory_of = memory_of,
        .tensor_size = size_in_pool,
        .inplace_mask = mask_on_device,
        .user = user,
        .pack = a->pack,
    };
    return TN_OK;
}

tn_status tn__request_begin(const tn__alloc *a, tn_graph *graph, const uint16_t *type_of, tn__request *r) {
    *r = (tn__request){.graph = graph, .type_of = type_of};
    r->memory_of = tn_malloc((tensors_of(graph) + 1) * sizeof *r->memory_of);
    tn_status status = r->memory_of ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) status = tn__alloc_plan_params(a, graph, type_of, r->memory_of, &r->context, &r->params);
    if (status == TN_OK) status = tn__structure_of(graph, r->memory_of, &r->structure);
    if (status == TN_OK) status = tn__extents_of(graph, &r->params, &r->extents);
    if (status != TN_OK) tn__request_end(r);
    return status;
}

void tn__request_end(tn__request *r) {
    tn_free(r->memory_of);
    tn__structure_free(&r->structure);
    tn__extents_free(&r->extents);
}

/* ---- Known graphs ---- */

/* Whether the class plans exactly those tensors of the graph that have no memory of their own, in the same memories.
 * The fingerprint does not say: an input may have memory, or be left to the allocator. */
static bool same_memory(const tn__alloc *a, const tn__class *c, const tn_graph *graph, const uint16_t *type_of,
                        bool compared) {
    size_t n = tensors_of(graph);
    for (size_t i = 0; i < n; i++) {
        size_t type = type_of ? type_of[i] : 0;
        if (type >= a->pools->n_types || a->pools->pool_of[type] != c->memory_of[i]) return false;
    }
    const tn_plan_entry *entries = tn_plan_entries(tn__class_top(c)->plan);
    for (size_t i = 0; i < n && !compared; i++) {
        const tn_tensor *t = tn__graph_tensor(graph, i);
        if (!t->view_src && tn__is_external(t) != (entries[i].memory < 0)) return false;
    }
    return true;
}

tn__class *tn__known_find(tn__alloc *a, tn_graph *graph, const uint16_t *type_of) {
    tn_fingerprint key = tn_graph_fingerprint(graph);
    uint64_t serial = tn__graph_serial(graph);
    for (size_t i = 0; i < a->n_known; i++) {
        tn__known_graph *k = &a->known[i];
        if (k->key.lo != key.lo || k->key.hi != key.hi) continue;
        if (!same_memory(a, k->class, graph, type_of, k->serial == serial)) continue;
        k->serial = serial;
        k->last_used = k->class->last_used = ++a->clock;
        return k->class;
    }
    return NULL;
}

void tn__known_add(tn__alloc *a, tn_graph *graph, tn__class *class) {
    tn__known_graph *k = &a->known[0];
    if (a->n_known < TN__KNOWN_GRAPHS)
        k = &a->known[a->n_known++];
    else
        for (size_t i = 1; i < a->n_known; i++)
            if (a->known[i].last_used < k->last_used) k = &a->known[i];
    *k = (tn__known_graph){tn_graph_fingerprint(graph), tn__graph_serial(graph), ++a->clock, class};
}

static void unknow_class(tn__alloc *a, const tn__class *class) {
    for (size_t i = a->n_known; i-- > 0;)
        if (a->known[i].class == class) a->known[i] = a->known[--a->n_known];
}

/* ---- Classes ---- */

tn__cover *tn__class_top(const tn__class *c) {
    for (size_t level = TN__CLASS_LEVELS; level-- > 0;)
        if (c->plans[level]) return c->plans[level];
    return NULL;
}

/* A plan that a caller has a pointer to stays until everything is forgotten. */
static void retire_plan(tn__alloc *a, tn__cover *plan) {
    if (!plan) return;
    if (!plan->handed_out) {
        tn__cover_free(plan);
        return;
    }
    plan->next = a->retired;
    a->retired = plan;
}

static void drop_class(tn__alloc *a, size_t index) {
    tn__class *c = a->classes[index];
    unknow_class(a, c);
    for (size_t level = 0; level < TN__CLASS_LEVELS; level++) retire_plan(a, c->plans[level]);
    tn__structure_free(&c->structure);
    tn_free(c->memory_of);
    tn_free(c);
    a->classes[index] = a->classes[--a->n_classes];
}

void tn__classes_forget(tn__alloc *a, bool reserved_too) {
    for (size_t i = a->n_classes; i-- > 0;)
        if (reserved_too || !a->classes[i]->reserved) drop_class(a, i);
    while (a->retired) {
        tn__cover *next = a->retired->next;
        tn__cover_free(a->retired);
        a->retired = next;
    }
}

/* Makes room for one more class: evicts the least recently used one that need not stay. */
static void evict_class(tn__alloc *a) {
    size_t oldest = a->n_classes, evictable = 0;
    for (size_t i = 0; i < a->n_classes; i++) {
        const tn__class *c = a->classes[i];
        if (c->reserved || c->handed_out || c->busy || c->plans[TN__CLASS_TRIAL]) continue;
        evictable++;
        if (oldest == a->n_classes || c->last_used < a->classes[oldest]->last_used) oldest = i;
    }
    if (evictable < TN__ALLOC_CLASSES) return;
    drop_class(a, oldest);
    a->stats.plans_forgotten++;
}

tn__class *tn__class_find(tn__alloc *a, const tn__request *r, tn__class_level up_to, tn__cover **plan) {
    for (size_t i = 0; i < a->n_classes; i++) {
        tn__class *c = a->classes[i];
        if (!tn__structure_equal(&c->structure, &r->structure)) continue;
        for (int level = 0; level <= (int)up_to; level++) {
            if (!c->plans[level] || !tn__cover_includes(c->plans[level], &r->extents, NULL)) continue;
            if (plan) *plan = c->plans[level];
            c->last_used = ++a->clock;
            return c;
        }
    }
    return NULL;
}

tn_status tn__classes_sizes(const tn__alloc *a, tn__chunk_sizes **sizes) {
    TN_TRY(tn__pools_sizes(a->pools, sizes));
    for (size_t i = 0; i < a->n_classes; i++) {
        const tn__class *c = a->classes[i];
        if (!c->reserved && !c->plans[TN__CLASS_TRIAL]) continue;
        tn_status status = tn__chunk_sizes_raise(a->pools, *sizes, tn__class_top(c)->plan);
        if (status == TN_OK) continue;
        tn__chunk_sizes_free(a->pools, *sizes);
        *sizes = NULL;
        return status;
    }
    return TN_OK;
}

tn_status tn__class_plan(tn__alloc *a, const tn__request *r, const tn__class *join, const tn_pack_params *pack,
                         tn__cover **plan) {
    tn__chunk_sizes *sizes;
    TN_TRY(tn__classes_sizes(a, &sizes));
    tn_plan_params params = r->params;
    params.pack = *pack;
    tn_plan_bins *bins = tn_malloc(a->pools->n * sizeof *bins);
    for (size_t p = 0; bins && p < a->pools->n; p++) bins[p] = (tn_plan_bins){sizes[p].sizes, sizes[p].count};
    params.bins = bins;
    tn_status status =
        bins ? tn__cover_make(r->graph, &params, &r->extents, join ? tn__class_top(join) : NULL, plan) : TN_E_NOMEM;
    tn_free(bins);
    tn__chunk_sizes_free(a->pools, sizes);
    return status;
}

tn_status tn__class_put(tn__alloc *a, const tn__request *r, tn__class *class, tn__class_level level, tn__cover *plan,
                        tn__class **out) {
    if (!class) {
        evict_class(a);
        if (a->n_classes == a->cap_classes) {
            size_t capacity = a->cap_classes ? 2 * a->cap_classes : 8;
            tn__class **grown = tn_realloc(a->classes, capacity * sizeof(tn__class *));
            if (!grown) goto no_memory;
            a->classes = grown;
            a->cap_classes = capacity;
        }
        class = tn_calloc(1, sizeof *class);
        if (!class) goto no_memory;
        size_t n = r->extents.n;
        *class = (tn__class){.structure = r->structure};
        class->memory_of = tn_malloc((n + 1) * sizeof *class->memory_of);
        class->structure.words = tn_malloc(r->structure.n_words * sizeof *r->structure.words);
        if (!class->memory_of || !class->structure.words) {
            tn__structure_free(&class->structure);
            tn_free(class->memory_of);
            tn_free(class);
            goto no_memory;
        }
        memcpy(class->memory_of, r->memory_of, n * sizeof *class->memory_of);
        memcpy(class->structure.words, r->structure.words, r->structure.n_words * sizeof *r->structure.words);
        a->classes[a->n_classes++] = class;
    }
    retire_plan(a, class->plans[level]);
    class->plans[level] = plan;
    class->last_used = ++a->clock;
    *out = class;
    return TN_OK;
no_memory:
    tn__cover_free(plan);
    return TN_E_NOMEM;
}

/* Two graphs of one structure are planned separately if a plan for the largest sizes of both makes the reservation
 * larger by more than a quarter, as when one is wide where the other is narrow. */
static tn_status prefers_separate(tn__alloc *a, const tn__request *r, const tn__class *same, const tn__cover *joined,
                                  tn__cover **alone) {
    *alone = NULL;
    size_t before = tn_plan_total(tn__class_top(same)->plan), after = tn_plan_total(joined->plan);
    if (after - after / 5 <= before) return TN_OK;
    tn__chunk_sizes *sizes;
    TN_TRY(tn__classes_sizes(a, &sizes));
    tn_status status = tn__class_plan(a, r, NULL, &a->pack, alone);
    if (status == TN_OK) {
        size_t with_joined = tn__chunk_sizes_with(a->pools, sizes, joined->plan);
        size_t with_alone = tn__chunk_sizes_with(a->pools, sizes, (*alone)->plan);
        if (with_joined - with_joined / 5 <= with_alone) {
            tn__cover_free(*alone);
            *alone = NULL;
        }
    }
    tn__chunk_sizes_free(a->pools, sizes);
    return status;
}

tn_status tn__class_cover(tn__alloc *a, const tn__request *r, tn__class_level level, tn__class **out) {
    tn__class *class = tn__class_find(a, r, TN__CLASS_TRIAL, NULL);
    if (class) {
        a->stats.plans_reused++;
        *out = class;
        return TN_OK;
    }
    for (size_t i = 0; i < a->n_classes && !class; i++)
        if (tn__structure_equal(&a->classes[i]->structure, &r->structure)) class = a->classes[i];
    tn__cover *plan, *alone = NULL;
    TN_TRY(tn__class_plan(a, r, class, &a->pack, &plan));
    tn_status status = class ? prefers_separate(a, r, class, plan, &alone) : TN_OK;
    if (status != TN_OK || alone) tn__cover_free(plan);
    TN_TRY(status);
    a->stats.plans_made++;
    return tn__class_put(a, r, alone ? NULL : class, level, alone ? alone : plan, out);
}

void tn__class_settle(tn__alloc *a, tn__class *c) {
    tn__cover *top = tn__class_top(c);
    for (size_t level = 0; level < TN__CLASS_LEVELS; level++) {
        if (c->plans[level] != top) retire_plan(a, c->plans[level]);
        c->plans[level] = NULL;
    }
    c->plans[TN__CLASS_CURRENT] = top;
}

void tn__classes_end_trial(tn__alloc *a) {
    for (size_t i = a->n_classes; i-- > 0;) {
        tn__class *c = a->classes[i];
        tn__cover *trial = c->plans[TN__CLASS_TRIAL];
        c->busy = false;
        if (!trial) continue;
        c->plans[TN__CLASS_TRIAL] = NULL;
        if (tn__class_top(c))
            retire_plan(a, trial);
        else
            c->plans[TN__CLASS_CURRENT] = trial;
    }
}

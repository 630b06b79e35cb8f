/* Plans that serve every graph of one structure up to given sizes. */
#include "plan/plan_cover.h"

#include "base/checked.h"
#include "base/hash.h"
#include "plan/pack_internal.h"
#include "plan/plan_internal.h"
#include "tensor/external.h"

#include <string.h>

/* ---- Structure ---- */

/* Words of one tensor: its op, kind and flags; its memory and which sources it has; the root of a view; the sources.
 */
enum { WORDS_PER_TENSOR = 3 + TN_MAX_SRC };

tn_status tn__structure_of(const tn_graph *graph, const uint16_t *memory_of, tn__structure *out) {
    size_t n_nodes = tn_graph_node_count(graph), n = n_nodes + tn_graph_leaf_count(graph), bytes;
    *out = (tn__structure){0};
    if (!tn__mul_size(n * WORDS_PER_TENSOR + 2, sizeof *out->words, &bytes)) return TN_E_OVERFLOW;
    uint32_t *word = out->words = tn_malloc(bytes);
    if (!word) return TN_E_NOMEM;
    *word++ = (uint32_t)n_nodes;
    *word++ = (uint32_t)(n - n_nodes);
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = tn__plan_tensor(graph, i);
        /* Flags that do not affect lifetimes are left out: TN_FLAG_KEPT is set after planning. */
        uint32_t lives_on = (t->flags & TN_FLAG_OUTPUT ? 1 : 0) | (t->flags & TN_FLAG_PARAM ? 2 : 0);
        uint32_t elsewhere = (t->view_src ? 1 : 0) | (!t->view_src && tn__is_external(t) ? 2 : 0);
        *word++ = (uint32_t)t->op | elsewhere << 24 | lives_on << 28;
        uint32_t *kinds = word++;
        *kinds = (uint32_t)(memory_of ? memory_of[i] : 0) << 16;
        if (t->view_src) *word++ = tn_graph_index(graph, t->view_src);
        for (int s = 0; s < TN_MAX_SRC; s++) {
            if (!t->src[s]) continue;
            *kinds |= 1u << s;
            *word++ = tn_graph_index(graph, t->src[s]);
        }
    }
    out->n_words = (size_t)(word - out->words);
    out->hash = tn__hash_bytes(out->words, out->n_words * sizeof *out->words, 0);
    return TN_OK;
}

bool tn__structure_equal(const tn__structure *a, const tn__structure *b) {
    return a->hash == b->hash && a->n_words == b->n_words &&
           memcmp(a->words, b->words, a->n_words * sizeof *a->words) == 0;
}

void tn__structure_free(tn__structure *s) {
    tn_free(s->words);
    *s = (tn__structure){0};
}

/* ---- Extents ---- */

static tn_status new_extents(size_t n_nodes, size_t n, tn__extents *out) {
    *out = (tn__extents){.n_nodes = n_nodes,
                         .n = n,
                         .sizes = tn_calloc(n + 1, sizeof *out->sizes),
                         .masks = tn_calloc(n_nodes + 1, sizeof *out->masks)};
    if (out->sizes && out->masks) return TN_OK;
    tn__extents_free(out);
    return TN_E_NOMEM;
}

void tn__extents_free(tn__extents *e) {
    tn_free(e->sizes);
    tn_free(e->masks);
    *e = (tn__extents){0};
}

tn_status tn__extents_of(const tn_graph *graph, const tn_plan_params *params, tn__extents *out) {
    size_t n_nodes = tn_graph_node_count(graph), n = n_nodes + tn_graph_leaf_count(graph);
    TN_TRY(new_extents(n_nodes, n, out));
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = tn__plan_tensor(graph, i);
        if (t->view_src || tn__is_external(t)) continue;
        size_t memory = params->memory_of ? params->memory_of[i] : 0;
        tn_status status = tn__plan_bytes(params, memory, i, t, &out->sizes[i]);
        if (status != TN_OK) {
            tn__extents_free(out);
            return status;
        }
        if (i >= n_nodes || !out->sizes[i]) continue;
        uint32_t mask = tn__plan_mask(params, t, i);
        for (int s = 0; s < TN_MAX_SRC && mask >> s; s++)
            if (mask >> s & 1 && t->src[s] && !t->src[s]->view_offset && tn_same_layout(t, t->src[s]))
                out->masks[i] |= (uint16_t)(1u << s);
    }
    return TN_OK;
}

/* ---- Plans of several graphs ---- */

void tn__cover_free(tn__cover *c) {
    if (!c) return;
    tn__extents_free(&c->extents);
    tn_free(c->required);
    tn_plan_free(c->plan);
    tn_free(c);
}

/* For every tensor the larger of two sizes: in one graph, and in the graphs that a cover serves already. */
static tn_status new_cover(const tn__extents *own, const tn__cover *base, tn__cover **out) {
    tn__cover *c = *out = tn_calloc(1, sizeof *c);
    if (!c) return TN_E_NOMEM;
    tn_status status = new_extents(own->n_nodes, own->n, &c->extents);
    c->required = tn_calloc(own->n_nodes + 1, sizeof *c->required);
    if (status != TN_OK || !c->required) {
        tn__cover_free(c);
        *out = NULL;
        return TN_E_NOMEM;
    }
    for (size_t i = 0; i < own->n; i++)
        c->extents.sizes[i] = base ? TN__MAX(own->sizes[i], base->extents.sizes[i]) : own->sizes[i];
    /* A node without bytes in one of the graphs has no say there. */
    for (size_t i = 0; i < own->n_nodes; i++) {
        uint16_t mine = own->sizes[i] ? own->masks[i] : UINT16_MAX;
        uint16_t theirs = base && base->extents.sizes[i] ? base->extents.masks[i] : UINT16_MAX;
        c->extents.masks[i] = mine & theirs;
    }
    return TN_OK;
}

typedef struct joined_sizes {
    const tn_graph *graph;
    const tn__extents *extents;
} joined_sizes;
static size_t joined_size(void *user, size_t memory, const tn_tensor *t) {
    (void)memory;
    const joined_sizes *j = user;
    uint32_t i = tn_graph_index(j->graph, t);
    return i < j->extents->n ? j->extents->sizes[i] : 0;
}
static uint32_t joined_mask(void *user, const tn_tensor *node, size_t index) {
    (void)node;
    return ((const joined_sizes *)user)->extents->masks[index];
}

/* Which sources the plan overlays with each result. By bytes, not by `inplace_of`: an adopted plan may name others.
 */
static void find_required(tn__cover *c, const tn_graph *graph) {
    const tn_plan_entry *entries = tn_plan_entries(c->plan);
    for (size_t i = 0; i < c->extents.n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(graph, i);
        const tn_plan_entry *to = &entries[i];
        for (int s = 0; s < TN_MAX_SRC && to->memory >= 0; s++) {
            if (!t->src[s]) continue;
            const tn_plan_entry *from = &entries[tn_graph_index(graph, tn__root(t->src[s]))];
            if (from->memory == to->memory && from->chunk == to->chunk && from->offset < to->offset + to->size &&
                to->offset < from->offset + from->size)
                c->required[i] |= (uint16_t)(1u << s);
        }
    }
}

static tn_plan_params joined_params(const tn_plan_params *params, joined_sizes *joined) {
    tn_plan_params own = *params;
    own.tensor_size = joined_size;
    own.inplace_mask = joined_mask;
    own.user = joined;
    return own;
}

tn_status tn__cover_make(const tn_graph *graph, const tn_plan_params *params, const tn__extents *extents,
                         const tn__cover *base, tn__cover **out) {
    *out = NULL;
    tn__cover *c;
    TN_TRY(new_cover(extents, base, &c));
    joined_sizes joined = {graph, &c->extents};
    tn_plan_params own = joined_params(params, &joined);
    tn_status status = tn_plan_make(graph, &own, &c->plan);
    if (status != TN_OK) {
        tn__cover_free(c);
        return status;
    }
    find_required(c, graph);
    *out = c;
    return TN_OK;
}

bool tn__cover_includes(const tn__cover *c, const tn__extents *e, size_t *at) {
    for (size_t i = 0; i < e->n; i++) {
        bool too_large = e->sizes[i] > c->extents.sizes[i];
        if (!too_large && (i >= e->n_nodes || !e->sizes[i] || !(c->required[i] & ~e->masks[i]))) continue;
        if (at) *at = i;
        return false;
    }
    return true;
}

/* ---- Plans made elsewhere ---- */

static tn_status copy_plan(const tn_plan *from, tn_plan **out) {
    tn_plan *to;
    TN_TRY(tn__plan_new(from->n_nodes, from->n_leaves, from->n_parts, &to));
    size_t n = from->n_nodes + from->n_leaves;
    memcpy(to->entries, from->entries, n * sizeof *to->entries);
    memcpy(to->until, from->until, n * sizeof *to->until);
    memcpy(to->kinds, from->kinds, n * sizeof *to->kinds);
    memcpy(to->labels, from->labels, n * sizeof *to->labels);
    to->text = tn_malloc(from->text_size + 1);
    bool complete = to->text != NULL;
    if (complete && from->text_size) memcpy(to->text, from->text, from->text_size);
    to->text_size = from->text_size;
    for (size_t m = 0; m < from->n_parts; m++) {
        to->parts[m] = from->parts[m];
        to->parts[m].chunk_sizes = tn_malloc((from->parts[m].n_chunks + 1) * sizeof *to->parts[m].chunk_sizes);
        if (to->parts[m].chunk_sizes && from->parts[m].n_chunks)
            memcpy(to->parts[m].chunk_sizes, from->parts[m].chunk_sizes,
                   from->parts[m].n_chunks * sizeof *to->parts[m].chunk_sizes);
        complete = complete && to->parts[m].chunk_sizes;
    }
    *out = to;
    if (complete) return TN_OK;
    tn_plan_free(to);
    *out = NULL;
    return TN_E_NOMEM;
}

static tn_status refuse_plan(tn_status status) {
    if (status == TN_OK || status == TN_E_NOMEM) return status;
    char reason[400] = "";
    strncpy(reason, tn_error(), sizeof reason - 1);
    return tn_fail(TN_E_STATE, "the saved plan does not serve this graph: %s", reason);
}

tn_status tn__cover_adopt(const tn_graph *graph, const tn_plan_params *params, const tn__extents *extents,
                          const tn__cover *base, const tn_plan *plan, tn__cover **out) {
    *out = NULL;
    tn__cover *c;
    TN_TRY(new_cover(extents, base, &c));
    joined_sizes joined = {graph, &c->extents};
    tn_plan_params own = joined_params(params, &joined);
    tn_status status = refuse_plan(tn_plan_verify(plan, graph, &own));
    if (status == TN_OK) status = copy_plan(plan, &c->plan);
    if (status != TN_OK) {
        tn__cover_free(c);
        return status;
    }
    find_required(c, graph);
    for (size_t i = 0; i < c->extents.n; i++)
        if (c->plan->entries[i].memory >= 0) c->extents.sizes[i] = c->plan->entries[i].size;
    *out = c;
    return TN_OK;
}

/* ---- Offsets from elsewhere ---- */

enum { MAX_ADOPTED_CHUNKS = 1 << 16 };

/* The class's sizes are those of the offsets, which must be large enough for this graph. */
static tn_status take_sizes(const tn_graph *graph, const tn__extents *own, const tn_plan_offset *offsets,
                            tn__extents *extents) {
    for (size_t i = 0; i < own->n; i++) {
        const tn_plan_offset *o = &offsets[i];
        size_t end;
        if (o->memory < 0 && !own->sizes[i]) continue;
        if (o->memory < 0 || o->size < own->sizes[i] || o->chunk >= MAX_ADOPTED_CHUNKS ||
            __builtin_add_overflow(o->offset, o->size, &end))
            return tn_fail(TN_E_STATE, "tensor %zu ('%s') needs %zu bytes", i, tn__plan_tensor(graph, i)->name,
                           own->sizes[i]);
        extents->sizes[i] = o->size;
    }
    return TN_OK;
}

/* Masks of the sources that the offsets overlay with the result, so that lifetimes are those of the plan that the
 * offsets come from. */
static void restrict_masks(const tn_graph *graph, const tn_plan_offset *offsets, const uint16_t *masks,
                           uint16_t *restricted) {
    for (size_t i = 0; i < tn_graph_node_count(graph); i++) {
        const tn_tensor *t = tn_graph_node(graph, i);
        restricted[i] = 0;
        for (int s = 0; s < TN_MAX_SRC && masks[i] >> s; s++) {
            if (!(masks[i] >> s & 1) || !t->src[s]) continue;
            const uint32_t root = tn_graph_index(graph, tn__root(t->src[s]));
            if (root == TN_GRAPH_NONE) continue; /* computing lifetimes reports it */
            const tn_plan_offset *from = &offsets[root], *to = &offsets[i];
            if (from->memory == to->memory && from->chunk == to->chunk && from->offset == to->offset)
                restricted[i] |= (uint16_t)(1u << s);
        }
    }
}

/* Enters offsets into a plan that has its lifetimes. */
static tn_status enter_offsets(tn_plan *plan, const tn_plan_offset *offsets) {
    for (size_t i = 0; i < tn_plan_tensor_count(plan); i++) {
        tn_plan_entry *e = &plan->entries[i];
        if (e->memory != offsets[i].memory || (e->memory >= 0 && e->size != offsets[i].size))
            return tn_fail(TN_E_STATE, "tensor %zu ('%s') is in another memory, or its size is not aligned", i,
                           tn_plan_label(plan, i));
        if (e->memory < 0 || !e->size) continue;
        e->chunk = offsets[i].chunk;
        e->offset = offsets[i].offset;
        tn__plan_part *part = &plan->parts[e->memory];
        part->n_chunks = TN__MAX(part->n_chunks, (size_t)e->chunk + 1);
    }
    for (size_t m = 0; m < plan->n_parts; m++) {
        tn__plan_part *part = &plan->parts[m];
        part->chunk_sizes = tn_calloc(part->n_chunks + 1, sizeof *part->chunk_sizes);
        if (!part->chunk_sizes) return TN_E_NOMEM;
    }
    for (size_t i = 0; i < tn_plan_tensor_count(plan); i++) {
        const tn_plan_entry *e = &plan->entries[i];
        if (e->memory < 0 || !e->size) continue;
        size_t *end = &plan->parts[e->memory].chunk_sizes[e->chunk];
        *end = TN__MAX(*end, e->offset + e->size);
    }
    return TN_OK;
}

/* The largest sum of bytes that are live at one node, per memory. */
static tn_status bound_parts(tn_plan *plan) {
    const size_t n_steps = plan->n_nodes + 2;
    size_t *live = tn_malloc(n_steps * sizeof *live);
    if (!live) return TN_E_NOMEM;
    for (size_t m = 0; m < plan->n_parts; m++) {
        memset(live, 0, n_steps * sizeof *live); /* differences between steps, which may wrap around */
        for (size_t i = 0; i < tn_plan_tensor_count(plan); i++) {
            const tn_plan_entry *e = &plan->entries[i];
            if (e->memory != (int32_t)m || !tn__plan_owns(e)) continue;
            live[e->first] += e->size;
            live[plan->until[i] + 1] -= e->size;
        }
        tn__plan_part *part = &plan->parts[m];
        for (size_t step = 0, sum = 0; step < n_steps; step++) {
            sum += live[step];
            part->lower_bound = TN__MAX(part->lower_bound, sum);
        }
        part->optimal = part->lower_bound == tn_plan_size(plan, m);
    }
    tn_free(live);
    return TN_OK;
}

static tn_status plan_from_offsets(const tn_graph *graph, const tn_plan_params *params, const tn_plan_offset *offsets,
                                   tn_plan **out) {
    TN_TRY(tn__plan_check_params(graph, params));
    TN_TRY(tn__plan_new(tn_graph_node_count(graph), tn_graph_leaf_count(graph), params->n_memories, out));
    tn_plan *plan = *out;
    for (size_t m = 0; m < plan->n_parts; m++) tn__plan_begin_part(&plan->parts[m], &params->memories[m]);
    TN_TRY(tn__plan_liveness(graph, params, plan->entries, plan->until));
    TN_TRY(tn__plan_describe(plan, graph));
    TN_TRY(enter_offsets(plan, offsets));
    TN_TRY(tn_plan_verify(plan, graph, params));
    return bound_parts(plan);
}

tn_status tn__cover_from_offsets(const tn_graph *graph, const tn_plan_params *params, const tn__extents *extents,
                                 const tn_plan_offset *offsets, size_t n_offsets, tn__cover **out) {
    *out = NULL;
    if (n_offsets != extents->n)
        return tn_fail(TN_E_STATE, "the saved plan does not serve this graph: it has %zu tensors, not %zu", n_offsets,
                       extents->n);
    tn__cover *c;
    TN_TRY(new_cover(extents, NULL, &c));
    tn__extents restricted = c->extents;
    restricted.masks = tn_malloc((c->extents.n_nodes + 1) * sizeof *restricted.masks);
    tn_status status = restricted.masks ? take_sizes(graph, extents, offsets, &c->extents) : TN_E_NOMEM;
    if (status == TN_OK) {
        restrict_masks(graph, offsets, c->extents.masks, restricted.masks);
        joined_sizes joined = {graph, &restricted};
        tn_plan_params own = joined_params(params, &joined);
        status = plan_from_offsets(graph, &own, offsets, &c->plan);
    }
    tn_free(restricted.masks);
    if (status != TN_OK) {
        tn__cover_free(c);
        return refuse_plan(status);
    }
    find_required(c, graph);
    *out = c;
    return TN_OK;
}

/* ---- Comparison with an allocator at run time ---- */

tn_status tn__cover_in_order(const tn__cover *c, size_t memory, size_t *bytes) {
    const tn_plan *plan = c->plan;
    size_t count = 0;
    *bytes = 0;
    tn_pack_item *items = tn_malloc((c->extents.n + 1) * sizeof *items);
    uint32_t *order = tn_malloc((c->extents.n + 1) * sizeof *order);
    uint64_t *at = tn_malloc((c->extents.n + 1) * sizeof *at);
    tn_status status = items && order && at ? TN_OK : TN_E_NOMEM;
    for (size_t i = 0; status == TN_OK && i < c->extents.n; i++) {
        const tn_plan_entry *e = &plan->entries[i];
        if (e->memory != (int32_t)memory || !tn__plan_owns(e) || !e->size) continue;
        order[count] = (uint32_t)count;
        items[count++] = (tn_pack_item){.start = e->first,
                                        .end = (int64_t)plan->until[i] + 1,
                                        .size = e->size,
                                        .alignment = plan->parts[memory].alignment};
    }
    tn_pack_params params = tn_pack_params_default();
    tn__pack_problem problem = {0};
    if (status == TN_OK && count) {
        status = tn__pack_problem_make(items, count, &params, NULL, &problem);
        if (status == TN_OK) status = tn__pack_online(&problem, order, (uint32_t)count, false, TN__TIES_AS_GIVEN, at);
        for (size_t k = 0; status == TN_OK && k < count; k++) {
            size_t end = (size_t)at[k] + (size_t)problem.size[k];
            *bytes = TN__MAX(*bytes, end);
        }
        tn__pack_problem_free(&problem);
    }
    tn_free(items);
    tn_free(order);
    tn_free(at);
    return status;
}

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

tn_status tn__cover_adopt(const tn_graph *graph, const tn_plan_params *params, const tn__extents *extents,
                          const tn__cover *base, const tn_plan *plan, tn__cover **out) {
    *out = NULL;
    tn__cover *c;
    TN_TRY(new_cover(extents, base, &c));
    joined_sizes joined = {graph, &c->extents};
    tn_plan_params own = joined_params(params, &joined);
    tn_status status = tn_plan_verify(plan, graph, &own);
    if (status != TN_OK && status != TN_E_NOMEM) {
        char reason[400] = "";
        strncpy(reason, tn_error(), sizeof reason - 1);
        status = tn_fail(TN_E_STATE, "the saved plan does not serve this graph: %s", reason);
    }
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

/* The buffers behind graph allocators. */
#include "runtime/pools.h"

#include "base/checked.h"

#include <string.h>

void tn__pools_leave(tn__pools *s) {
    if (!s || --s->n_users) return;
    for (size_t p = 0; s->pools && p < s->n; p++) {
        for (size_t c = 0; c < s->pools[p].n_chunks; c++) tn_buffer_free(s->pools[p].chunks[c]);
        tn_free(s->pools[p].chunks);
    }
    tn_free(s->pools);
    tn_free(s->memories);
    tn_free(s->pool_of);
    tn_free(s);
}

tn_status tn__pools_new(tn_buffer_type *const *types, size_t n_types, tn__pools **out) {
    tn__pools *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    *s = (tn__pools){.n_users = 1, .n_types = n_types, .generation = 1};
    s->pool_of = tn_calloc(n_types, sizeof *s->pool_of);
    s->pools = tn_calloc(n_types, sizeof *s->pools);
    s->memories = tn_calloc(n_types, sizeof *s->memories);
    if (!s->pool_of || !s->pools || !s->memories) {
        tn__pools_leave(s);
        return TN_E_NOMEM;
    }
    for (size_t i = 0; i < n_types; i++) {
        size_t p = 0;
        while (p < s->n && s->pools[p].type != types[i]) p++;
        if (p == s->n) {
            s->pools[p].type = types[i];
            s->memories[p] = (tn_plan_memory){tn_buffer_type_name(types[i]), tn_buffer_type_alignment(types[i]),
                                              tn_buffer_type_max_size(types[i])};
            s->n++;
        }
        s->pool_of[i] = (uint16_t)p;
    }
    *out = s;
    return TN_OK;
}

size_t tn__pool_chunk_size(const tn__pool *pool, size_t c) {
    return c < pool->n_chunks && pool->chunks[c] ? tn_buffer_size(pool->chunks[c]) : 0;
}
size_t tn__pool_size(const tn__pool *pool) {
    size_t total = 0;
    for (size_t c = 0; c < pool->n_chunks; c++) total += tn__pool_chunk_size(pool, c);
    return total;
}

/* ---- Sizes ---- */

static tn_status lengthen_sizes(tn__chunk_sizes *list, size_t count) {
    if (count <= list->count) return TN_OK;
    size_t *grown = tn_realloc(list->sizes, count * sizeof *grown);
    if (!grown) return TN_E_NOMEM;
    memset(grown + list->count, 0, (count - list->count) * sizeof *grown);
    list->sizes = grown;
    list->count = count;
    return TN_OK;
}

void tn__chunk_sizes_free(const tn__pools *s, tn__chunk_sizes *sizes) {
    for (size_t p = 0; sizes && p < s->n; p++) tn_free(sizes[p].sizes);
    tn_free(sizes);
}

tn_status tn__pools_sizes(const tn__pools *s, tn__chunk_sizes **out) {
    tn__chunk_sizes *sizes = *out = tn_calloc(s->n, sizeof *sizes);
    if (!sizes) return TN_E_NOMEM;
    for (size_t p = 0; p < s->n; p++) {
        tn_status status = lengthen_sizes(&sizes[p], s->pools[p].n_chunks);
        if (status != TN_OK) {
            tn__chunk_sizes_free(s, sizes);
            *out = NULL;
            return status;
        }
        for (size_t c = 0; c < sizes[p].count; c++) sizes[p].sizes[c] = tn__pool_chunk_size(&s->pools[p], c);
    }
    return TN_OK;
}

tn_status tn__chunk_sizes_raise(const tn__pools *s, tn__chunk_sizes *sizes, const tn_plan *plan) {
    for (size_t p = 0; p < s->n; p++) {
        TN_TRY(lengthen_sizes(&sizes[p], tn_plan_chunk_count(plan, p)));
        for (size_t c = 0; c < tn_plan_chunk_count(plan, p); c++)
            sizes[p].sizes[c] = TN__MAX(sizes[p].sizes[c], tn_plan_chunk_size(plan, p, c));
    }
    return TN_OK;
}

size_t tn__chunk_sizes_with(const tn__pools *s, const tn__chunk_sizes *sizes, const tn_plan *plan) {
    size_t total = 0;
    for (size_t p = 0; p < s->n; p++) {
        size_t in_plan = plan ? tn_plan_chunk_count(plan, p) : 0;
        for (size_t c = 0; c < sizes[p].count || c < in_plan; c++) {
            size_t there = c < sizes[p].count ? sizes[p].sizes[c] : 0;
            size_t needed = c < in_plan ? tn_plan_chunk_size(plan, p, c) : 0;
            total += TN__MAX(there, needed);
        }
    }
    return total;
}

bool tn__pools_suffice(const tn__pools *s, const tn_plan *plan, size_t *at_pool, size_t *at_chunk) {
    for (size_t p = 0; p < s->n; p++) {
        for (size_t c = 0; c < tn_plan_chunk_count(plan, p); c++) {
            if (tn__pool_chunk_size(&s->pools[p], c) >= tn_plan_chunk_size(plan, p, c)) continue;
            if (at_pool) *at_pool = p;
            if (at_chunk) *at_chunk = c;
            return false;
        }
    }
    return true;
}

/* ---- Growth ---- */

tn_status tn__pools_grow(tn__pools *s, const tn__chunk_sizes *wanted, bool *replaced) {
    tn_status status = TN_OK;
    size_t total = 0, k = 0;
    bool changed = false;
    if (replaced) *replaced = false;
    for (size_t p = 0; p < s->n; p++) {
        tn__pool *set = &s->pools[p];
        total += wanted[p].count;
        if (wanted[p].count <= set->n_chunks) continue;
        tn_buffer **chunks = tn_realloc(set->chunks, wanted[p].count * sizeof *chunks);
        if (!chunks) return TN_E_NOMEM;
        set->chunks = chunks;
    }
    tn_buffer **fresh = tn_calloc(total, sizeof *fresh);
    if (!fresh) return TN_E_NOMEM;
    for (size_t p = 0; p < s->n; p++) {
        for (size_t c = 0; c < wanted[p].count; c++, k++) {
            if (tn__pool_chunk_size(&s->pools[p], c) >= wanted[p].sizes[c]) continue;
            TN_TRY_GOTO(tn_buffer_new(s->pools[p].type, wanted[p].sizes[c], &fresh[k]), status, out);
            tn_buffer_set_usage(fresh[k], TN_USAGE_COMPUTE);
        }
    }
    k = 0;
    for (size_t p = 0; p < s->n; p++) {
        tn__pool *set = &s->pools[p];
        for (size_t c = 0; c < wanted[p].count; c++, k++) {
            tn_buffer *old = c < set->n_chunks ? set->chunks[c] : NULL;
            if (c >= set->n_chunks) set->chunks[set->n_chunks++] = NULL;
            if (!fresh[k]) continue;
            changed = true;
            if (replaced && old) *replaced = true;
            tn_buffer_free(old);
            set->chunks[c] = fresh[k];
            fresh[k] = NULL;
        }
    }
    s->generation += changed;
out:
    for (size_t i = 0; i < total; i++) tn_buffer_free(fresh[i]);
    tn_free(fresh);
    return status;
}

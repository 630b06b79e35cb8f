/* Packing into chunks that exist already: the best of several ways to use the bins. */
#include "plan/pack_internal.h"

#include "base/checked.h"

typedef struct bins_search {
    const tn_pack_item *items;
    size_t count;
    tn_pack_params params; /* without capacity */
    uint64_t begun;
    bool any_fixed;
    uint32_t n;
    uint32_t *ascending; /* bins by size, then number */
    tn__pack_layout layout;
    tn_pack_result *best; /* without offsets before the first run */
    uint64_t steps;
} bins_search;

/* Whether one chunk of any size is all there can be. */
static bool bins_alone(const bins_search *s) { return !s->params.max_chunk && s->n == 1; }

static bool bins_reached(const bins_search *s) {
    return s->best->offsets && s->best->reserved <= TN__MAX(s->layout.total, s->best->lower_bound);
}

/* Keeps the better of a run's result and the best one. */
static void bins_keep(bins_search *s, tn_pack_result *result) {
    s->steps += result->steps;
    /* What holds for one chunk, by alignment or by a search, is no bound for several. */
    if (!bins_alone(s)) result->lower_bound = result->live_peak;
    size_t bound = TN__MAX(s->best->lower_bound, result->lower_bound);
    if (!s->best->offsets || result->reserved < s->best->reserved ||
        (result->reserved == s->best->reserved && result->chunk_count < s->best->chunk_count)) {
        tn_pack_result_free(s->best);
        *s->best = *result;
    } else {
        tn_pack_result_free(result);
    }
    s->best->lower_bound = bound;
}

static void set_position(bins_search *s, uint32_t position, uint32_t chunk, bool grows) {
    s->layout.chunk[position] = chunk;
    s->layout.position[chunk] = position;
    s->layout.bin[position] = s->params.bins[chunk];
    s->layout.limit[position] = grows ? UINT64_MAX : s->params.bins[chunk];
}

/* All items into the largest bin, which may grow. */
static tn_status use_one_bin(bins_search *s) {
    for (uint32_t k = 0; k < s->n; k++) set_position(s, k, s->ascending[s->n - 1 - k], true);
    s->layout.single = true;
    tn_pack_result result;
    tn_status status = tn__pack_run(s->items, s->count, &s->params, &s->layout, s->begun, &result);
    s->layout.single = false;
    if (status != TN_OK) return status;
    size_t limit = s->params.max_chunk;
    if (limit && result.size > limit) {
        s->steps += result.steps;
        tn_pack_result_free(&result);
        return TN_OK;
    }
    bins_keep(s, &result);
    return TN_OK;
}

/* All but the last `growing` bins are filled up to their size, the others to max_chunk; then come new chunks. */
static tn_status use_bins(bins_search *s, bool descending, uint32_t growing) {
    for (uint32_t k = 0; k < s->n; k++)
        set_position(s, k, s->ascending[descending ? s->n - 1 - k : k], k + growing >= s->n);
    tn_pack_result result;
    TN_TRY(tn__pack_run(s->items, s->count, &s->params, &s->layout, s->begun, &result));
    bins_keep(s, &result);
    return TN_OK;
}

/* Packs as if there were no bins, then assigns the largest chunk to the largest bin and so on, which minimises the
 * sum of the larger of both. */
static tn_status match_bins(bins_search *s) {
    tn_pack_result result;
    TN_TRY(tn__pack_run(s->items, s->count, &s->params, NULL, s->begun, &result));
    size_t chunks = TN__MAX(result.chunk_count, s->n);
    uint32_t *order = tn_malloc(chunks * sizeof *order), *number = tn_malloc(chunks * sizeof *number);
    uint64_t *key = tn_calloc(chunks, sizeof *key), *scratch = tn_malloc(4 * chunks * sizeof *scratch);
    size_t *sizes = tn_calloc(chunks, sizeof *sizes);
    tn_status status = order && number && key && scratch && sizes ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) {
        for (size_t c = 0; c < result.chunk_count; c++) key[c] = ~(uint64_t)result.chunk_sizes[c];
        for (size_t c = result.chunk_count; c < chunks; c++) key[c] = UINT64_MAX;
        for (uint32_t c = 0; c < chunks; c++) order[c] = c;
        if (!s->any_fixed) tn__pack_sort(order, (uint32_t)chunks, key, scratch);
        /* The k-th largest chunk becomes the k-th largest bin; fixed items keep all chunks where they are. */
        for (uint32_t k = 0; k < chunks; k++)
            number[order[k]] = s->any_fixed || k >= s->n ? k : s->ascending[s->n - 1 - k];
        size_t used = 0;
        result.reserved = result.size + s->layout.total;
        for (size_t c = 0; c < result.chunk_count; c++) {
            size_t size = result.chunk_sizes[c], bin = number[c] < s->n ? s->params.bins[number[c]] : 0;
            sizes[number[c]] = size;
            result.reserved -= TN__MIN(size, bin);
            if (size) used = TN__MAX(used, number[c] + (size_t)1);
        }
        for (size_t i = 0; i < s->count; i++)
            if (s->items[i].size && s->items[i].end > s->items[i].start) result.chunks[i] = number[result.chunks[i]];
        tn_free(result.chunk_sizes);
        result.chunk_sizes = sizes;
        sizes = NULL;
        result.chunk_count = TN__MAX(used, s->count > 0);
        bins_keep(s, &result);
    } else {
        tn_pack_result_free(&result);
    }
    tn_free(order);
    tn_free(number);
    tn_free(key);
    tn_free(scratch);
    tn_free(sizes);
    return status;
}

static tn_status use_bins_in_turn(bins_search *s) {
    if (!s->any_fixed || bins_alone(s)) TN_TRY(use_one_bin(s));
    if (bins_reached(s)) return TN_OK;
    /* Another goal leads to other packings: this finds again what made the bins. */
    if (s->params.max_chunk || s->n == 1 || !s->any_fixed) TN_TRY(match_bins(s));
    if (bins_alone(s)) return TN_OK;
    /* With several chunks a search proves nothing. */
    if (s->params.effort == TN_PACK_EXACT) s->params.effort = TN_PACK_BALANCED;
    for (int descending = 0; descending < 2 && !bins_reached(s); descending++) TN_TRY(use_bins(s, descending, 1));
    for (uint32_t growing = 2; growing <= s->n && s->best->chunk_count > s->n && !bins_reached(s);
         growing = growing < s->n && 2 * growing > s->n ? s->n : 2 * growing)
        TN_TRY(use_bins(s, false, growing));
    return TN_OK;
}

static tn_status check_bins(const tn_pack_params *params, uint64_t *total) {
    const uint64_t limit = (uint64_t)1 << 60;
    *total = 0;
    if (!params->bins) return tn_fail(TN_E_INVALID, "tn_pack: %zu bins without sizes", params->n_bins);
    if (params->n_bins > (size_t)1 << 20)
        return tn_fail(TN_E_OVERFLOW, "tn_pack: %zu bins; the maximum is 2^20", params->n_bins);
    for (size_t b = 0; b < params->n_bins; b++) {
        size_t size = params->bins[b];
        if (params->max_chunk && size > params->max_chunk)
            return tn_fail(TN_E_INVALID, "bin %zu has %zu bytes, more than the largest chunk of %zu", b, size,
                           params->max_chunk);
        if (size >= limit || *total + size >= limit)
            return tn_fail(TN_E_OVERFLOW, "the sizes of all bins add up to more than 2^60");
        *total += size;
    }
    if (params->capacity && *total > params->capacity)
        return tn_fail(TN_E_INVALID, "the bins have %llu bytes, more than the capacity of %zu",
                       (unsigned long long)*total, params->capacity);
    return TN_OK;
}

tn_status tn__pack_into_bins(const tn_pack_item *items, size_t count, const tn_pack_params *params, uint64_t begun,
                             tn_pack_result *result) {
    bins_search s = {.items = items, .count = count, .params = *params, .begun = begun, .best = result};
    uint64_t total;
    TN_TRY(check_bins(params, &total));
    size_t n = params->n_bins;
    s.params.capacity = 0;
    s.n = s.layout.count = (uint32_t)n;
    s.layout.total = total;
    for (size_t i = 0; i < count; i++) s.any_fixed |= items[i].fixed;
    s.ascending = tn_malloc(n * sizeof *s.ascending);
    s.layout.chunk = tn_malloc(n * sizeof *s.layout.chunk);
    s.layout.position = tn_malloc(n * sizeof *s.layout.position);
    s.layout.limit = tn_malloc(n * sizeof *s.layout.limit);
    s.layout.bin = tn_malloc(n * sizeof *s.layout.bin);
    uint64_t *key = tn_malloc(n * sizeof *key), *scratch = tn_malloc(4 * n * sizeof *scratch);
    tn_status status = TN_E_NOMEM;
    if (!s.ascending || !s.layout.chunk || !s.layout.position || !s.layout.limit || !s.layout.bin || !key || !scratch)
        goto out;
    for (uint32_t b = 0; b < n; b++) {
        s.ascending[b] = b;
        key[b] = params->bins[b];
    }
    tn__pack_sort(s.ascending, s.n, key, scratch);
    status = use_bins_in_turn(&s);
    if (status != TN_OK) goto out;
    result->steps = s.steps;
    result->ratio = result->lower_bound ? (double)result->size / (double)result->lower_bound : 1;
    result->optimal = result->reserved == TN__MAX(total, result->lower_bound);
    if (params->capacity && result->lower_bound > params->capacity) {
        /* Without bins the same bound holds, and there is a conflict to name. */
        tn_pack_result_free(result);
        status = tn__pack_run(items, count, params, NULL, begun, result);
    } else if (params->capacity && result->reserved > params->capacity) {
        status = tn_fail(TN_E_UNDECIDED,
                         "found no packing within %zu bytes, and no proof that there is none; the best one has %zu",
                         params->capacity, result->reserved);
    }
out:
    if (status != TN_OK && status != TN_E_INFEASIBLE && status != TN_E_UNDECIDED) tn_pack_result_free(result);
    tn_free(s.ascending);
    tn_free(s.layout.chunk);
    tn_free(s.layout.position);
    tn_free(s.layout.limit);
    tn_free(s.layout.bin);
    tn_free(key);
    tn_free(scratch);
    return status;
}

/* Tiers of a session: their memory, and storing the contents of evicted prefixes. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/plan/saved.h"

#include <string.h>

/* ---- Memory ---- */

/* Host memory of a session with only a disk tier: blobs pass through it. */
enum { PASSING_UNITS = 64 * TN__BLOCK };

static bool tiers_wanted(const tn_session_params *p) { return p->cache_ram || p->cache_disk; }

static tn_tensor *part_tensor(const tn__kv *kv, int32_t kind, int32_t i) {
    const int32_t layer = i / TN__LAYER_TENSORS_MOST, tensor = i % TN__LAYER_TENSORS_MOST;
    const bool is_state = tensor >= TN__CELL_TENSORS;
    if (is_state ? kind != TN__BLOB_STATES : kind != kv->layers[layer].group) return NULL;
    return tn__kv_layer_tensor(kv, layer, tensor);
}
static int32_t part_limit(const tn__kv *kv) { return TN__LAYER_TENSORS_MOST * kv->n_layer; }

/* Derives from the tensors: bytes per token of each kind, the largest blob, the unit of host memory. */
typedef struct tier_sizes {
    size_t tokens[TN__BLOB_KINDS], most, unit, n_parts;
} tier_sizes;

static tier_sizes tier_sizes_of(const tn__kv *kv) {
    tier_sizes z = {0};
    size_t cells = 0;
    for (int32_t kind = 0; kind < TN__BLOB_KINDS; kind++) {
        for (int32_t i = 0; i < part_limit(kv); i++) {
            const tn_tensor *t = part_tensor(kv, kind, i);
            z.tokens[kind] += t ? t->nb[1] : 0;
            z.n_parts += t != NULL;
        }
        if (kind != TN__BLOB_STATES) cells = TN__MAX(cells, z.tokens[kind]);
    }
    z.most = TN__MAX(TN__BLOCK * cells, z.tokens[TN__BLOB_STATES]);
    z.unit = tn__host_tier_unit(cells, z.tokens[TN__BLOB_STATES]);
    return z;
}

static tn_status size_host_tier(const tn_session_plan *p, const tier_sizes *z, tn__host_tier *host) {
    const size_t budget = p->params.cache_ram ? p->params.cache_ram : tn__host_tier_bytes_for(PASSING_UNITS, z->unit);
    return tn__host_tier_size(host, budget, z->unit);
}

static int32_t block_count(const tn_session_plan *p) { return p->params.n_ctx / TN__BLOCK + 1; }

tn_status tn__tiers_bytes(const tn_session_plan *p, size_t *host, size_t *beside) {
    tn__host_tier tier;
    *host = *beside = 0;
    if (!tiers_wanted(&p->params)) return TN_OK;
    const tier_sizes z = tier_sizes_of(&p->kv);
    TN_TRY(size_host_tier(p, &z, &tier));
    *host = tier.bytes;
    *beside = z.n_parts * sizeof(tn__blob_part);
    for (int g = 0; g < TN__CACHE_GROUPS; g++)
        if (z.tokens[g]) *beside += (size_t)block_count(p) * sizeof(tn__tier_step);
    if (p->params.cache_disk)
        *beside += z.most + strlen(p->params.cache_disk) + 1 +
                   tn__blob_index_bytes(tn__disk_tier_capacity(p->params.cache_disk_bytes, z.unit));
    return TN_OK;
}

static void list_blob_parts(tn_session *s) {
    const tn__kv *kv = &s->plan->kv;
    tn__tiers *t = &s->tiers;
    tn__blob_part *part = t->parts;
    for (int32_t k = 0; k < TN__BLOB_KINDS; k++) {
        tn__blob_kind *kind = &t->kinds[k];
        kind->parts = part;
        for (int32_t i = 0; i < part_limit(kv); i++) {
            tn_tensor *tensor = part_tensor(kv, k, i);
            if (!tensor) continue;
            *part++ = (tn__blob_part){tensor, tensor->nb[1], kind->token_bytes};
            kind->token_bytes += tensor->nb[1];
            kind->n_parts++;
        }
    }
}

static tn_status open_disk(tn_session *s, const tier_sizes *z) {
    const tn_session_params *p = &s->plan->params;
    tn__tiers *t = &s->tiers;
    t->buffer = tn_malloc_aligned(z->most, 64);
    if (!t->buffer) return TN_E_NOMEM;
    TN_TRY(tn__disk_tier_open(&t->disk, p->cache_disk, p->cache_disk_bytes,
                              tn__disk_tier_capacity(p->cache_disk_bytes, z->unit)));
    return tn__tier_writer_start(t);
}

tn_status tn__tiers_new(tn_session *s) {
    tn__tiers *t = &s->tiers;
    t->disk.folder = t->disk.lock = -1;
    if (!tiers_wanted(&s->plan->params)) return TN_OK;
    const tier_sizes z = tier_sizes_of(&s->plan->kv);
    t->n_blocks = block_count(s->plan);
    t->parts = tn_calloc(z.n_parts, sizeof *t->parts);
    if (!t->parts) return TN_E_NOMEM;
    list_blob_parts(s);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        if (!z.tokens[g]) continue;
        t->steps[g] = tn_calloc((size_t)t->n_blocks, sizeof *t->steps[g]);
        if (!t->steps[g]) return TN_E_NOMEM;
    }
    TN_TRY(size_host_tier(s->plan, &z, &t->host));
    TN_TRY(tn__host_tier_allocate(&t->host));
    if (pthread_mutex_init(&t->mutex, NULL) != 0) return tn_fail(TN_E_NOMEM, "cannot create the mutex of the tiers");
    (void)pthread_cond_init(&t->work, NULL);
    (void)pthread_cond_init(&t->done, NULL);
    t->has_mutex = true;
    if (s->plan->params.cache_disk) TN_TRY(open_disk(s, &z));
    t->on = true;
    return TN_OK;
}

/* Moves all kept prefixes of the device to the tiers, the least recently used first. */
static void store_kept(tn_session *s) {
    while (tn__prefixes_evict(s)) {}
}

void tn__tiers_free(tn_session *s) {
    tn__tiers *t = &s->tiers;
    if (t->on && t->has_thread) store_kept(s);
    tn__tier_writer_stop(t);
    if (t->has_mutex) {
        pthread_cond_destroy(&t->work);
        pthread_cond_destroy(&t->done);
        pthread_mutex_destroy(&t->mutex);
    }
    tn__disk_tier_close(&t->disk);
    tn__host_tier_free(&t->host);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) tn_free(t->steps[g]);
    tn_free(t->parts);
    tn_free(t->buffer);
    memset(t, 0, sizeof *t);
}

/* ---- Identity ---- */

/* A sample of the weights: fine-tuned models of the same shape differ in nearly all of them. */
static uint64_t hash_weights(const tn_model *m) {
    enum { SAMPLE = 64, SAMPLES = 3 };
    char bytes[SAMPLE];
    uint64_t h = 0;
    if (!tn_gguf_has_data(m->file)) return 0;
    for (size_t i = 0; i < m->n_all; i++) {
        const tn_gguf_tensor *info = m->all[i].info;
        const size_t size = TN__MIN((size_t)info->size, (size_t)SAMPLE);
        for (size_t k = 0; k < SAMPLES && size; k++) {
            const size_t offset = ((size_t)info->size - size) / (SAMPLES - 1) * k;
            if (tn_gguf_read(m->all[i].file, info, offset, bytes, size) == TN_OK) h = tn__hash_bytes(bytes, size, h);
        }
    }
    return h;
}

/* Settings that the bits of a repeatable session depend on besides the model; 0 for other sessions, which may take
 * blobs of any session.
 */
static uint64_t hash_of_bits(const tn_session_plan *p) {
    if (!p->params.repeatable) return 0;
    const tn__plan_keys keys = tn__plan_keys_of(p);
    const uint64_t words[] = {keys.version, keys.devices, (uint64_t)p->params.n_ctx, (uint64_t)p->params.n_gpu_layers,
                              p->params.no_repack};
    return tn__hash_bytes(words, sizeof words, 3);
}

tn__hash128 tn__tiers_seed(const tn_session *s) {
    const tn__tiers *t = &s->tiers;
    const tn_session_params *p = &s->plan->params;
    if (!t->on || t->disk.lock < 0) {
        const uint64_t random = tn__mix64(tn_time_ns() ^ (uint64_t)(uintptr_t)s);
        return (tn__hash128)tn__mix64(random + 1) << 64 | random;
    }
    const float rope[] = {p->rope_base, p->rope_scale};
    const uint64_t words[] = {t->disk.salt[0],
                              t->disk.salt[1],
                              tn__plan_keys_of(s->plan).model,
                              hash_weights(s->plan->model),
                              tn__cache_key(p),
                              hash_of_bits(s->plan),
                              tn__controls_hash(p)};
    const uint64_t low = tn__hash_bytes(rope, sizeof rope, tn__hash_bytes(words, sizeof words, 1));
    return (tn__hash128)tn__hash_combine(low, tn__hash_bytes(words, sizeof words, 2)) << 64 | low;
}

/* ---- Storing ---- */

tn_status tn__blob_copy(const tn__blob_kind *kind, int32_t n, int32_t a, int32_t b, const int32_t *cells,
                        const tn__blob_content *content, bool to_cells) {
    for (size_t p = 0; p < kind->n_parts; p++) {
        const tn__blob_part *part = &kind->parts[p];
        for (int32_t i = a, end; i < b; i = end) {
            for (end = i + 1; end < b && cells[end - a] == cells[end - a - 1] + 1;) end++;
            size_t offset = part->before * (size_t)n + part->row * (size_t)i, left = part->row * (size_t)(end - i),
                   at = part->row * (size_t)cells[i - a];
            for (size_t size; left; left -= size, offset += size, at += size) {
                size = left;
                char *piece = tn__blob_piece(content, offset, &size);
                TN_TRY(to_cells ? tn_tensor_set_at(part->tensor, piece, at, size)
                                : tn_tensor_get_at(part->tensor, piece, at, size));
            }
        }
    }
    return TN_OK;
}

/* Evicts the least recently used blobs until there is enough memory: those that are also on the device or on disk
 * immediately, others after they were written. False: all remaining blobs are in use. Called with the mutex. */
static bool make_host_room(tn__tiers *t, size_t bytes) {
    while (!tn__host_tier_has_room(&t->host, bytes)) {
        const int32_t oldest = tn__blob_index_oldest(&t->host.index);
        if (oldest < 0) return false;
        const tn__blob *b = &t->host.index.blobs[oldest];
        const tn__blob_id id = {b->key, b->kind, b->from, b->n, b->tokens};
        if (!b->resident && t->has_thread && tn__blob_index_holds(&t->disk.index, &id) < 0)
            tn__tier_writer_move(t, oldest);
        if (!b->resident && (!t->has_thread || tn__blob_index_holds(&t->disk.index, &id) < 0)) t->counts.dropped++;
        tn__host_tier_remove(&t->host, oldest);
    }
    return true;
}

/* Adds a blob to host memory unless it is there. Returns it pinned, to be filled; -1: it is there already, or does
 * not fit. */
static int32_t add_to_host(tn__tiers *t, const tn__blob_id *id, size_t bytes) {
    int32_t blob = tn__blob_index_holds(&t->host.index, id);
    if (blob >= 0) {
        tn__host_tier_touch(&t->host, blob);
        return -1;
    }
    for (int32_t i; (i = tn__blob_index_shorter(&t->host.index, id)) >= 0 && !t->host.index.blobs[i].pins;)
        tn__host_tier_remove(&t->host, i);
    if (!make_host_room(t, bytes)) {
        t->counts.dropped++;
        return -1;
    }
    blob = tn__host_tier_add(&t->host, id, bytes);
    t->host.index.blobs[blob].handled = t->has_thread && tn__blob_index_holds(&t->disk.index, id) >= 0;
    return blob;
}

static tn_status store_blob(tn_session *s, const tn__blob_id *id, const int32_t *cells) {
    tn__tiers *t = &s->tiers;
    const size_t bytes = tn__blob_bytes(t, id->kind, id->n);
    pthread_mutex_lock(&t->mutex);
    const int32_t blob = add_to_host(t, id, bytes);
    pthread_mutex_unlock(&t->mutex);
    if (blob < 0) return TN_OK;
    const tn__blob_content content = tn__host_tier_content(&t->host, blob);
    const tn_status status = tn__blob_copy(&t->kinds[id->kind], id->n, 0, id->n, cells, &content, false);
    const uint64_t sum = status == TN_OK ? tn__blob_sum(&content, bytes) : 0;
    pthread_mutex_lock(&t->mutex);
    t->host.index.blobs[blob].pins--;
    t->host.index.blobs[blob].sum = sum;
    if (status != TN_OK)
        tn__host_tier_remove(&t->host, blob);
    else
        t->counts.host_stored++;
    tn__tier_writer_wake(t);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

/* Marks the cells that lists other than this one see: in table->numbers. */
static void mark_cells_of_others(tn__page_table *t, int32_t list) {
    memset(t->numbers, 0, (size_t)tn__page_table_cells(t) * sizeof *t->numbers);
    for (int32_t other = 0; other < t->n_lists; other++)
        for (int32_t i = 0; other != list && i < t->sequences[other].n; i++) {
            const tn_page_run run = tn__page_run_at(t, other, i);
            for (int32_t c = 0; c < run.count; c++) t->numbers[run.cell + c] = 1;
        }
}

/* The cells of positions from … end - 1 of a list. False: it does not hold all of them. */
static bool cells_of_range(const tn__page_table *t, int32_t list, int32_t from, int32_t end, int32_t *cells) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->sequences[list].n; i++) {
        const tn_page_run run = tn__page_run_at(t, list, i);
        const int32_t begin = TN__MAX(from, run.first), stop = TN__MIN(end, run.first + run.count);
        if (run.divisor != 1) return false;
        for (int32_t p = begin; p < stop; p++, n++) {
            if (p != from + n) return false;
            cells[n] = run.cell + p - run.first;
        }
    }
    return n == end - from;
}

/* Stores positions from … end - 1 of a list, which are in one block. Nothing is stored if it does not hold them all,
 * if their tokens are not known, or if other lists hold them, as t->numbers says where `unless_shared` is set. */
static tn_status store_range(tn_session *s, int32_t list, int32_t kind, int32_t from, int32_t end,
                             bool unless_shared) {
    const tn__page_table *t = &s->plan->kv.groups[kind], *remembered = &s->plan->kv.groups[s->prefixes.group];
    int32_t cells[TN__BLOCK], named[TN__BLOCK];
    tn_token tokens[TN__BLOCK];
    bool shared = unless_shared, known = true;
    if (from >= end || !cells_of_range(t, list, from, end, cells) ||
        !cells_of_range(remembered, list, from, end, named))
        return TN_OK;
    for (int32_t i = 0; i < end - from; i++) {
        shared = shared && t->numbers[cells[i]];
        known = known && s->prefixes.hashes[named[i]];
        tokens[i] = s->prefixes.tokens[named[i]];
    }
    const tn__blob_id id = {s->prefixes.hashes[named[0]], kind, from, end - from, tokens};
    return shared || !known ? TN_OK : store_blob(s, &id, cells);
}

/* Stores the blobs of one kind in reverse order, so that the beginning, which more texts share, is the most
 * recently used. */
static tn_status store_kind(tn_session *s, int32_t list, int32_t kind, int32_t n) {
    tn__page_table *t = &s->plan->kv.groups[kind];
    int32_t held, last;
    if (!s->tiers.steps[kind] || !tn__pages_extent(t, list, &held, &last)) return TN_OK;
    const int32_t wanted = t->window ? TN__MAX(n + 1 - t->window, 0) : 0;
    mark_cells_of_others(t, list);
    for (int32_t k = (n - 1) / TN__BLOCK; k >= 0; k--) {
        const int32_t begin = k * TN__BLOCK, from = TN__MAX(begin, held), end = TN__MIN(n, begin + TN__BLOCK);
        /* A block whose beginning has left the window is stored only where the window begins in it. */
        if (end <= held || (from > begin && end <= wanted)) break;
        TN_TRY(store_range(s, list, kind, from, end, true));
    }
    return TN_OK;
}

/* Stores the recurrent state after the list's last token. */
static tn_status store_state(tn_session *s, int32_t list, int32_t n) {
    const tn__recurrent *states = &s->plan->kv.states;
    int32_t cell;
    if (tn__recurrent_tokens(states, list) != n || n < 1 || states->refs[states->owners[list].row] > 1 ||
        !cells_of_range(&s->plan->kv.groups[s->prefixes.group], list, n - 1, n, &cell) || !s->prefixes.hashes[cell])
        return TN_OK;
    const tn__blob_id id = {s->prefixes.hashes[cell], TN__BLOB_STATES, n - 1, 1, &s->prefixes.tokens[cell]};
    return store_blob(s, &id, &states->owners[list].row);
}

void tn__tiers_store_state(tn_session *s, int32_t list, int32_t n) {
    if (s->tiers.on && store_state(s, list, n) != TN_OK)
        tn_log(TN_LOG_WARN, "a checkpoint is dropped: %s", tn_error());
}

void tn__tiers_store(tn_session *s, int32_t list) {
    int32_t first, last;
    tn_status status = TN_OK;
    if (!s->tiers.on || !tn__pages_extent(&s->plan->kv.groups[s->prefixes.group], list, &first, &last)) return;
    for (int32_t kind = 0; kind < TN__CACHE_GROUPS && status == TN_OK; kind++)
        status = store_kind(s, list, kind, last + 1);
    if (status == TN_OK) status = store_state(s, list, last + 1);
    if (status != TN_OK) tn_log(TN_LOG_WARN, "a kept prefix is dropped: %s", tn_error());
}

/* Stores the blocks of a sequence whose cells leave the window of a query at `position`. */
static tn_status store_leaving(tn_session *s, int32_t seq, int32_t position) {
    const tn__page_table *t = &s->plan->kv.groups[TN__CACHE_WINDOW];
    int32_t held, last, leaving = 0;
    if (!t->sequences[seq].n || !tn__pages_extent(t, seq, &held, &last)) return TN_OK;
    for (int32_t i = 0; i < t->sequences[seq].n; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        const int32_t end = tn__run_position(run, run.count - 1) + 1;
        if (position - end + 1 >= t->window) leaving = TN__MAX(leaving, end);
    }
    for (int32_t begin = (held + TN__BLOCK - 1) / TN__BLOCK * TN__BLOCK; begin < leaving; begin += TN__BLOCK)
        TN_TRY(store_range(s, seq, TN__CACHE_WINDOW, begin, TN__MIN(begin + TN__BLOCK, last + 1), false));
    return TN_OK;
}

void tn__tiers_leave_window(tn_session *s, int32_t n, const int32_t *positions, const int32_t *seqs) {
    tn_status status = TN_OK;
    if (!s->tiers.on || !s->tiers.steps[TN__CACHE_WINDOW]) return;
    for (int32_t i = 0; i < n && status == TN_OK; i++)
        if ((!i || seqs[i] != seqs[i - 1]) && s->prefixes.owners[seqs[i]].known)
            status = store_leaving(s, seqs[i], positions[i]);
    if (status != TN_OK) tn_log(TN_LOG_WARN, "cells that leave a window are dropped: %s", tn_error());
}

/* ---- Forgetting ---- */

void tn__tiers_forget(tn_session *s, const tn_token *tokens, int32_t n) {
    tn__tiers *t = &s->tiers;
    int32_t common, i;
    if (!t->on) return;
    pthread_mutex_lock(&t->mutex);
    for (int32_t kind = 0; kind < TN__BLOB_KINDS; kind++)
        for (int32_t from = 0; from < n; from++) {
            const int32_t end = TN__MIN(n, (from / TN__BLOCK + 1) * TN__BLOCK);
            const tn__blob_id id = {s->prefixes.prompt[from], kind, from, end - from, tokens + from};
            while ((i = tn__blob_index_find(&t->host.index, &id, &common)) >= 0 && !t->host.index.blobs[i].pins)
                tn__host_tier_remove(&t->host, i);
            while (t->has_thread && (i = tn__blob_index_find(&t->disk.index, &id, &common)) >= 0)
                tn__disk_tier_remove(&t->disk, i);
        }
    pthread_mutex_unlock(&t->mutex);
}

void tn__tiers_clear(tn_session *s) {
    tn__tiers *t = &s->tiers;
    if (!t->on) return;
    pthread_mutex_lock(&t->mutex);
    for (int32_t i = 0; i < t->host.index.capacity; i++)
        if (t->host.index.used[i] && !t->host.index.blobs[i].pins) tn__host_tier_remove(&t->host, i);
    pthread_mutex_unlock(&t->mutex);
}

/* ---- Numbers ---- */

tn_tier_usage tn_session_tier_usage(tn_session *s) {
    if (!s || !s->tiers.on) return (tn_tier_usage){0};
    tn__tiers *t = &s->tiers;
    pthread_mutex_lock(&t->mutex);
    tn_tier_usage usage = t->counts;
    usage.host_limit = t->host.bytes;
    usage.host_bytes = t->host.unit * (size_t)(t->host.n_units - t->host.n_unused);
    usage.host_blocks = t->host.index.n;
    if (t->disk.lock >= 0) {
        usage.disk_limit = t->disk.budget;
        usage.disk_bytes = t->disk.bytes;
        usage.disk_blocks = t->disk.index.n;
    }
    pthread_mutex_unlock(&t->mutex);
    return usage;
}

/* Taking from the tiers: finds the blocks that continue the device's part of a prompt, and loads them into new cells.
 */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <string.h>

/* ---- Finding ---- */

/* Looks for a blob that begins at `from`, first in host memory. A longer one on disk is better. */
static void find_at(tn_session *s, int32_t kind, int32_t from, const tn_token *tokens, int32_t n,
                    tn__tier_step *step) {
    tn__tiers *t = &s->tiers;
    const int32_t end = kind == TN__BLOB_STATES ? from + 1 : TN__MIN(n, (from / TN__BLOCK + 1) * TN__BLOCK);
    const tn__blob_id id = {s->prefixes.prompt[from], kind, from, end - from, tokens + from};
    for (int tier = TN__TIER_HOST; tier <= TN__TIER_DISK; tier++) {
        const tn__blob_index *x = tier == TN__TIER_HOST ? &t->host.index : &t->disk.index;
        int32_t common;
        if (!x->capacity) continue;
        const int32_t i = tn__blob_index_find(x, &id, &common);
        if (i < 0 || from + common <= step->end) continue;
        *step =
            (tn__tier_step){.blob = i, .from = from, .end = from + common, .n = x->blobs[i].n, .tier = (uint8_t)tier};
        memcpy(step->tokens, x->blobs[i].tokens, sizeof step->tokens);
    }
}

/* Windows may begin inside a block. */
static void find_step(tn_session *s, int32_t kind, int32_t block, const tn_token *tokens, int32_t n,
                      tn__tier_step *step) {
    const int32_t begin = block * TN__BLOCK, end = TN__MIN(n, begin + TN__BLOCK);
    *step = (tn__tier_step){.tier = TN__TIER_NONE};
    for (int32_t from = begin; from < end; from++) {
        find_at(s, kind, from, tokens, n, step);
        if (!s->plan->kv.groups[kind].window || step->end == end) return;
    }
}

/* The length to which the tiers continue the first `n_held` tokens. */
static int32_t find_full(tn_session *s, int32_t n_held, const tn_token *tokens, int32_t n) {
    int32_t covered = n_held;
    for (int32_t k = covered / TN__BLOCK; covered < n; k++) {
        tn__tier_step *step = &s->tiers.steps[TN__CACHE_FULL][k];
        find_step(s, TN__CACHE_FULL, k, tokens, n, step);
        if (step->end <= covered) break;
        covered = step->end;
        if (covered < (k + 1) * TN__BLOCK) break;
    }
    return covered;
}

/* The first position of the list's window if it holds every position from there up to n - 1; otherwise n. */
static int32_t first_held(const tn_session *s, int32_t list, int32_t n) {
    const tn__page_table *t = &s->plan->kv.groups[TN__CACHE_WINDOW];
    int32_t first, last, cells = 0;
    if (list < 0 || !tn__pages_extent(t, list, &first, &last)) return n;
    for (int32_t i = 0; i < t->sequences[list].n; i++) cells += tn__page_run_at(t, list, i).count;
    return cells == last - first + 1 && last >= n - 1 ? TN__MIN(first, n) : n;
}

/* The lowest position from which on the list, which holds the positions held … n_held - 1, or the tiers hold
 * everything up to position n - 1. */
static int32_t first_covered(const tn__tier_step *steps, int32_t held, int32_t n_held, int32_t n, int32_t wanted) {
    while (n > wanted) {
        const tn__tier_step *step = &steps[(n - 1) / TN__BLOCK];
        if (n > held && n <= n_held)
            n = held;
        else if (step->tier && step->from < n && n <= step->end)
            n = step->from;
        else
            break;
    }
    return n;
}

/* The largest number of tokens up to `most` whose window the list and the tiers hold together. */
static int32_t find_window(tn_session *s, int32_t list, int32_t n_held, int32_t most) {
    tn__tiers *t = &s->tiers;
    const int32_t window = s->plan->kv.groups[TN__CACHE_WINDOW].window, held = first_held(s, list, n_held);
    for (int32_t n = most, first; n > 0; n = TN__MIN(first, n - 1)) {
        const int32_t wanted = TN__MAX(n + 1 - window, 0);
        first = first_covered(t->steps[TN__CACHE_WINDOW], held, n_held, n, wanted);
        if (first > wanted) continue;
        t->ranges[TN__CACHE_WINDOW] = (tn__tier_range){wanted, TN__MAX(held, wanted), TN__MIN(n_held, n)};
        return n;
    }
    return 0;
}

/* The largest number of tokens up to `most` after which the tiers have the recurrent state. */
static int32_t find_state(tn_session *s, const tn_token *tokens, int32_t most) {
    for (int32_t n = most; n > 0; n--) {
        s->tiers.state = (tn__tier_step){.tier = TN__TIER_NONE};
        find_at(s, TN__BLOB_STATES, n - 1, tokens, n, &s->tiers.state);
        if (s->tiers.state.tier) return n;
    }
    return 0;
}

int32_t tn__tiers_find(tn_session *s, int32_t list, int32_t n_held, const tn_token *tokens, int32_t n,
                       int32_t *n_full) {
    tn__tiers *t = &s->tiers;
    tn__tier_step *windows = t->steps[TN__CACHE_WINDOW];
    const bool states = t->kinds[TN__BLOB_STATES].n_parts > 0;
    *n_full = n_held;
    if (!t->on) return 0;
    pthread_mutex_lock(&t->mutex);
    t->ranges[TN__CACHE_FULL] = (tn__tier_range){0, 0, n_held};
    if (t->steps[TN__CACHE_FULL]) *n_full = n = find_full(s, n_held, tokens, n);
    for (int32_t k = 0; windows && k * TN__BLOCK < n; k++) find_step(s, TN__CACHE_WINDOW, k, tokens, n, &windows[k]);
    for (int32_t before = -1; n != before;) { /* repeats until windows and states agree */
        before = n;
        if (windows) n = find_window(s, list, n_held, n);
        if (states) n = find_state(s, tokens, n);
    }
    if (!t->steps[TN__CACHE_FULL] && !windows && !states) n = 0;
    pthread_mutex_unlock(&t->mutex);
    *n_full = TN__MAX(*n_full, n);
    return n;
}

/* ---- Loading ---- */

/* The end of the range of positions from `from` on that come from the same source: the list, or one blob. */
static int32_t range_end(const tn_session *s, int32_t kind, int32_t from, int32_t n, bool *is_held) {
    const tn__tier_range *r = &s->tiers.ranges[kind];
    const int32_t end = TN__MIN(n, (from / TN__BLOCK + 1) * TN__BLOCK);
    *is_held = from >= r->held && from < r->held_end;
    if (*is_held) return TN__MIN(n, r->held_end);
    return from < r->held && r->held < r->held_end ? TN__MIN(end, r->held) : end;
}

typedef void (*step_fn)(tn_session *s, int32_t kind, const tn__tier_step *step, int32_t from, int32_t end);

/* Calls `fn`, with the mutex, for all blobs that are loaded up to position n. */
static void each_step(tn_session *s, int32_t n, step_fn fn) {
    tn__tiers *t = &s->tiers;
    bool is_held;
    pthread_mutex_lock(&t->mutex);
    for (int32_t kind = 0; kind < TN__CACHE_GROUPS; kind++)
        for (int32_t p = t->ranges[kind].first, end; t->steps[kind] && p < n; p = end) {
            end = range_end(s, kind, p, n, &is_held);
            if (!is_held) fn(s, kind, &t->steps[kind][p / TN__BLOCK], p, end);
        }
    if (t->kinds[TN__BLOB_STATES].n_parts) fn(s, TN__BLOB_STATES, &t->state, n - 1, n);
    pthread_mutex_unlock(&t->mutex);
}

static void pin_step(tn_session *s, int32_t kind, const tn__tier_step *step, int32_t from, int32_t end) {
    (void)kind, (void)from, (void)end;
    if (step->tier == TN__TIER_HOST) s->tiers.host.index.blobs[step->blob].pins++;
}
static void unpin_step(tn_session *s, int32_t kind, const tn__tier_step *step, int32_t from, int32_t end) {
    (void)kind, (void)from, (void)end;
    if (step->tier == TN__TIER_HOST) s->tiers.host.index.blobs[step->blob].pins--;
}
/* The device has the blob now, so it is evicted first, unless the text diverges inside it or only a part was
 * loaded. A state stays, because the sequence that took it continues and will overwrite it. */
static void demote_step(tn_session *s, int32_t kind, const tn__tier_step *step, int32_t from, int32_t end) {
    tn__tiers *t = &s->tiers;
    const bool whole =
        kind != TN__BLOB_STATES && step->from + step->n <= end && (kind != TN__CACHE_WINDOW || step->from >= from);
    uint64_t *tokens = step->tier == TN__TIER_HOST ? &t->counts.host_tokens : &t->counts.disk_tokens;
    if (kind == s->prefixes.group) *tokens += (uint64_t)(end - from);
    if (step->tier == TN__TIER_HOST && whole)
        tn__host_tier_demote(&t->host, step->blob);
    else if (step->tier == TN__TIER_HOST)
        t->host.index.used[step->blob] = ++t->host.clock;
}

static tn_status take_new_cells(tn_session *s, int32_t kind, int32_t seq, int32_t from, int32_t n, int32_t *cells) {
    int32_t positions[TN__BLOCK], seqs[TN__BLOCK];
    for (int32_t i = 0; i < n; i++) {
        positions[i] = from + i;
        seqs[i] = seq;
    }
    tn_status status;
    do status = tn__pages_take(&s->plan->kv.groups[kind], n, positions, seqs, cells);
    while (status == TN_E_FULL && tn__prefixes_evict(s));
    return status;
}

/* Verifies a blob, and says where its content is. */
static tn_status open_blob(tn_session *s, int32_t kind, const tn__tier_step *step, tn__blob_content *content) {
    tn__tiers *t = &s->tiers;
    const size_t bytes = tn__blob_bytes(t, kind, step->n);
    if (step->tier == TN__TIER_DISK) {
        const tn__blob_id id = {s->prefixes.prompt[step->from], kind, step->from, step->n, step->tokens};
        *content = (tn__blob_content){.base = t->buffer};
        return tn__disk_tier_read(&t->disk, &t->mutex, &id, t->buffer, bytes);
    }
    *content = tn__host_tier_content(&t->host, step->blob); /* it is pinned */
    if (tn__blob_sum(content, bytes) == t->host.index.blobs[step->blob].sum) return TN_OK;
    pthread_mutex_lock(&t->mutex);
    t->host.index.blobs[step->blob].n = 0; /* never found again */
    pthread_mutex_unlock(&t->mutex);
    return tn_fail(TN_E_CHECKSUM, "a kept prefix in host memory is damaged");
}

/* Loads positions from … end - 1, which are in one block. A group of layers without cells has pages all the same. */
static tn_status load_block(tn_session *s, int32_t kind, int32_t seq, const tn_token *tokens, int32_t from,
                            int32_t end) {
    const tn__tier_step *step = s->tiers.steps[kind] ? &s->tiers.steps[kind][from / TN__BLOCK] : NULL;
    tn__prefixes *x = &s->prefixes;
    tn__blob_content content;
    int32_t cells[TN__BLOCK];
    if (step) TN_TRY(open_blob(s, kind, step, &content));
    TN_TRY(take_new_cells(s, kind, seq, from, end - from, cells));
    if (step)
        TN_TRY(tn__blob_copy(&s->tiers.kinds[kind], step->n, from - step->from, end - step->from, cells, &content,
                             true));
    for (int32_t i = 0; kind == x->group && i < end - from; i++) {
        x->tokens[cells[i]] = tokens[from + i];
        x->hashes[cells[i]] = x->prompt[from + i];
    }
    return TN_OK;
}

static tn_status load_state(tn_session *s, int32_t seq, int32_t n) {
    tn__tiers *t = &s->tiers;
    tn__blob_content content;
    int32_t row;
    if (!t->kinds[TN__BLOB_STATES].n_parts) return TN_OK;
    TN_TRY(open_blob(s, TN__BLOB_STATES, &t->state, &content));
    while ((row = tn__recurrent_set(&s->plan->kv.states, seq, n)) < 0 && tn__prefixes_make_room(s)) {}
    if (row < 0) return tn_fail(TN_E_FULL, "all recurrent states are in use");
    return tn__blob_copy(&t->kinds[TN__BLOB_STATES], 1, 0, 1, &row, &content, true);
}

/* Gives the sequence the positions up to n of a kind of cells, from runs of the list and from blobs. *loaded: the
 * length reached. */
static tn_status load_kind(tn_session *s, int32_t kind, int32_t seq, int32_t list, const tn_token *tokens, int32_t n,
                           int32_t *loaded) {
    tn__page_table *t = &s->plan->kv.groups[kind];
    bool is_held;
    for (int32_t p = s->tiers.ranges[kind].first, end; t->n_pages && p < n; p = end) {
        end = range_end(s, kind, p, n, &is_held);
        *loaded = p;
        TN_TRY(is_held ? tn__pages_copy(t, list, seq, p, end) : load_block(s, kind, seq, tokens, p, end));
    }
    return TN_OK;
}

tn_status tn__tiers_load(tn_session *s, int32_t seq, int32_t list, const tn_token *tokens, int32_t *n) {
    const int32_t found = *n;
    const bool divisible = !s->tiers.steps[TN__CACHE_WINDOW] && !s->tiers.kinds[TN__BLOB_STATES].n_parts;
    tn_status status = TN_OK;
    tn__queued_step_cancel(s); /* its step writes to cells */
    each_step(s, found, pin_step);
    for (int32_t kind = 0; kind < TN__CACHE_GROUPS && status == TN_OK; kind++) {
        int32_t loaded = 0;
        status = load_kind(s, kind, seq, list, tokens, found, &loaded);
        /* Without windows and states the tokens before a block that could not be loaded can still be used. */
        if (status == TN_OK || !divisible) continue;
        (void)tn__pages_remove(&s->plan->kv.groups[kind], seq, loaded, -1);
        *n = loaded;
        status = TN_OK;
    }
    if (status == TN_OK) status = load_state(s, seq, found);
    each_step(s, found, unpin_step);
    if (status == TN_OK) {
        each_step(s, *n, demote_step);
        return TN_OK;
    }
    for (int g = 0; g < TN__CACHE_GROUPS; g++)
        if (s->plan->kv.groups[g].n_pages) (void)tn__pages_remove(&s->plan->kv.groups[g], seq, 0, -1);
    tn__recurrent_remove(&s->plan->kv.states, seq);
    return status;
}

/* Kept prefixes: lists of runs in addition to those of the sequences, looked up by the tokens of their cells.
 *
 * A prefix that is kept is a list of runs like a sequence's, in the same page tables. Prefixes that share cells share
 * pages, so that a tree of conversations takes the pages of its distinct tokens. Every cell has its token and a hash
 * of the key and of all tokens up to its own. The hash represents the tokens before a list's first cell, which are
 * not present with windows; tokens that are present are compared one by one. The content of an evicted prefix moves
 * to the tiers (tier.h), from where a later sequence may take it. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "base/hash.h"

#include <string.h>

/* The group whose cells have tokens. */
static int remembered_group(const tn_session_plan *p) {
    return p->kv.groups[TN__CACHE_FULL].n_pages ? TN__CACHE_FULL : TN__CACHE_WINDOW;
}
static tn__page_table *remembered_pages(const tn_session *s) { return &s->plan->kv.groups[s->prefixes.group]; }

tn_status tn__prefixes_bytes(const tn_session_plan *p, size_t *bytes) {
    const size_t cells = (size_t)tn__page_table_cells(&p->kv.groups[remembered_group(p)]);
    const size_t per_list = (size_t)p->params.n_prefixes * (sizeof(uint64_t) + sizeof(tn__checkpoint_use)) +
                            (size_t)p->params.n_checkpoints * sizeof(tn__checkpoint) +
                            (size_t)p->params.n_seqs * sizeof(tn__prefix_owner) +
                            (size_t)p->params.n_ctx * sizeof(tn__hash128);
    *bytes = 0;
    if (!p->params.n_prefixes) return TN_OK;
    if (!tn__mul_size(cells, sizeof(int32_t) + sizeof(tn__hash128), bytes) || !tn__add_size(*bytes, per_list, bytes))
        return tn_fail(TN_E_OVERFLOW, "the tokens of %zu cells overflow", cells);
    return TN_OK;
}

tn_status tn__prefixes_new(const tn_session_plan *p, tn__hash128 seed, tn__prefixes *x) {
    const size_t cells = (size_t)tn__page_table_cells(&p->kv.groups[remembered_group(p)]);
    if (!p->params.n_prefixes) return TN_OK;
    x->group = remembered_group(p);
    x->seed = seed;
    x->in_use = -1;
    x->last_used = tn_calloc((size_t)p->params.n_prefixes, sizeof *x->last_used);
    x->uses = tn_calloc((size_t)p->params.n_prefixes, sizeof *x->uses);
    x->pending = tn_calloc((size_t)p->params.n_checkpoints, sizeof *x->pending);
    x->every = tn__checkpoint_interval(p);
    x->owners = tn_calloc((size_t)p->params.n_seqs, sizeof *x->owners);
    x->prompt = tn_calloc((size_t)p->params.n_ctx, sizeof *x->prompt);
    x->n_prompt = p->params.n_ctx;
    x->tokens = tn_calloc(cells, sizeof *x->tokens);
    x->hashes = tn_calloc(cells, sizeof *x->hashes);
    if (!x->last_used || !x->uses || !x->pending || !x->owners || !x->prompt || !x->tokens || !x->hashes)
        return TN_E_NOMEM;
    x->n = p->params.n_prefixes;
    return TN_OK;
}

void tn__prefixes_free(tn__prefixes *x) {
    tn_free(x->last_used);
    tn_free(x->uses);
    tn_free(x->pending);
    tn_free(x->owners);
    tn_free(x->prompt);
    tn_free(x->tokens);
    tn_free(x->hashes);
}

/* ---- Hashes ---- */

/* Never 0. */
static tn__hash128 hash_with(tn__hash128 before, uint64_t value) {
    const uint64_t low = tn__hash_combine((uint64_t)before, value);
    const uint64_t high = tn__hash_combine((uint64_t)(before >> 64) ^ low, ~value);
    return (tn__hash128)high << 64 | low | 1;
}
static tn__hash128 hash_of_key(const tn__prefixes *x, uint64_t key) { return hash_with(x->seed, key); }
/* Of the tokens up to this one. */
static tn__hash128 hash_after(tn__hash128 before, tn_token token) { return hash_with(before, (uint32_t)token); }

/* The cell at a position of a list, or -1. Searches from the last run, the most likely one. */
static int32_t cell_at(const tn__page_table *t, int32_t list, int32_t position) {
    for (int32_t i = t->sequences[list].n - 1; i >= 0; i--) {
        const tn_page_run run = tn__page_run_at(t, list, i);
        if (run.divisor == 1 && position >= run.first && position < run.first + run.count)
            return run.cell + position - run.first;
    }
    return -1;
}

/* Whether the list holds its positions up to `last` once each and without gaps, from 0 on or inside its window. */
static bool is_gapless(const tn__page_table *t, int32_t list, int32_t last) {
    int32_t next = -1;
    for (int32_t i = 0; i < t->sequences[list].n; i++) {
        const tn_page_run run = tn__page_run_at(t, list, i);
        if (run.divisor != 1 || (next < 0 ? run.first > 0 && !t->window : run.first != next)) return false;
        next = run.first + run.count;
        if (next > last) return true;
    }
    return false;
}

/* The hash of what a sequence holds before a position; 0 if it is unknown. */
static tn__hash128 hash_before(const tn_session *s, int32_t seq, int32_t position) {
    const tn__prefixes *x = &s->prefixes;
    const tn__page_table *t = remembered_pages(s);
    if (!x->owners[seq].known) return 0;
    if (position == 0) return hash_of_key(x, x->owners[seq].key);
    const int32_t cell = cell_at(t, seq, position - 1);
    return cell < 0 || !is_gapless(t, seq, position - 1) ? 0 : x->hashes[cell];
}

void tn__prefixes_write(tn_session *s, int32_t n, const tn_token *tokens, const int32_t *positions,
                        const int32_t *seqs, const int32_t *parents, const int32_t *rows) {
    tn__prefixes *x = &s->prefixes;
    for (int32_t i = 0; i < n; i++) {
        const bool continues = i && seqs[i] == seqs[i - 1] && positions[i] == positions[i - 1] + 1;
        const bool follows = parents && parents[i] >= 0;
        const tn__hash128 before = follows     ? x->hashes[rows[parents[i]]]
                                   : continues ? x->hashes[rows[i - 1]]
                                               : hash_before(s, seqs[i], positions[i]);
        x->tokens[rows[i]] = tokens[i];
        x->hashes[rows[i]] = before ? hash_after(before, tokens[i]) : 0;
    }
}

void tn__prefixes_forget_owner(tn_session *s, int32_t seq) {
    if (s->prefixes.n) s->prefixes.owners[seq].known = false;
}

void tn__prefixes_copy_owner(tn_session *s, int32_t source, int32_t target) {
    tn__prefixes *x = &s->prefixes;
    if (!x->n || source == target) return;
    if (remembered_pages(s)->sequences[target].n ||
        tn__sequence_adapters_hash(s, source) != tn__sequence_adapters_hash(s, target))
        x->owners[target].known = false;
    else
        x->owners[target] = x->owners[source];
}

void tn__prefixes_move(tn_session *s, int group, bool changed, int32_t n) {
    tn__prefixes *x = &s->prefixes;
    const int32_t *from = s->staging.move_from, *to = s->staging.move_to;
    int32_t tokens[TN__MOVE_CELLS];
    tn__hash128 hashes[TN__MOVE_CELLS];
    if (!x->n || group != x->group) return;
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = x->tokens[from[i]];
        hashes[i] = changed ? 0 : x->hashes[from[i]];
    }
    for (int32_t i = 0; i < n; i++) {
        x->tokens[to[i]] = tokens[i];
        x->hashes[to[i]] = hashes[i];
    }
}

/* ---- Finding ---- */

bool tn__prefix_continues(const tn_session *s, int32_t list, int32_t n) {
    const tn__page_table *t = &s->plan->kv.groups[TN__CACHE_WINDOW];
    int32_t first, last, cells = 0;
    if (s->plan->kv.states.n_rows && tn__recurrent_tokens(&s->plan->kv.states, list) != n) return false;
    if (!t->n_pages) return true;
    if (!tn__pages_extent(t, list, &first, &last)) return false;
    for (int32_t i = 0; i < t->sequences[list].n; i++) cells += tn__page_run_at(t, list, i).count;
    return last >= n - 1 && cells == last - first + 1 && first <= TN__MAX(n + 1 - t->window, 0);
}

/* Hashes of the tokens, for match_list. Returns how many there is room for. */
static int32_t hash_prompt(tn__prefixes *x, uint64_t key, const tn_token *tokens, int32_t n) {
    tn__hash128 hash = hash_of_key(x, key);
    n = TN__MIN(n, x->n_prompt);
    for (int32_t i = 0; i < n; i++) x->prompt[i] = hash = hash_after(hash, tokens[i]);
    return n;
}

static bool list_is_known(const tn_session *s, int32_t list) {
    return list >= s->plan->kv.n_seqs || s->prefixes.owners[list].known;
}

/* The number of tokens with which the list begins. Their hashes are x->prompt. */
static int32_t match_list(const tn_session *s, int32_t list, const tn_token *tokens, int32_t n) {
    const tn__prefixes *x = &s->prefixes;
    const tn__page_table *t = remembered_pages(s);
    if (!t->sequences[list].n || !list_is_known(s, list)) return 0;
    const tn_page_run head = tn__page_run_at(t, list, 0);
    if (head.first < 0 || head.first >= n || (head.first > 0 && !t->window)) return 0;
    int32_t matched = head.first;
    for (int32_t i = 0; i < t->sequences[list].n; i++) {
        const tn_page_run run = tn__page_run_at(t, list, i);
        if (run.first != matched || run.divisor != 1) break;
        for (int32_t c = 0; c < run.count; c++, matched++)
            if (matched == n || x->hashes[run.cell + c] != x->prompt[matched] ||
                x->tokens[run.cell + c] != tokens[matched])
                return matched == head.first ? 0 : matched;
    }
    return matched == head.first ? 0 : matched;
}

/* The longest prefix of the tokens in any list that a sequence can continue, and the longest one regardless of that.
 */
typedef struct prefix_matches {
    int32_t found, longest;    /* -1: none */
    int32_t matching, matched; /* regardless of windows and states */
} prefix_matches;

static prefix_matches match_lists(const tn_session *s, int32_t seq, const tn_token *tokens, int32_t n_tokens) {
    const tn__page_table *t = remembered_pages(s);
    prefix_matches m = {.found = -1, .matching = -1};
    for (int32_t list = 0; list < t->n_lists; list++) {
        const int32_t n = list == seq ? 0 : match_list(s, list, tokens, n_tokens);
        if (n > m.matched) {
            m.matched = n;
            m.matching = list;
        }
        if (n <= m.longest || !tn__prefix_continues(s, list, n)) continue;
        m.longest = n;
        m.found = list;
    }
    return m;
}

static tn_status check_prefixes(const tn_session *s, int32_t seq) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    if (!s->prefixes.n)
        return tn_fail(TN_E_UNSUPPORTED, "the session keeps no prefixes: set n_prefixes of its parameters");
    if (seq < 0 || seq >= s->plan->kv.n_seqs)
        return tn_fail(TN_E_INVALID, "there is no sequence %d; the session has 0 to %d", seq, s->plan->kv.n_seqs - 1);
    return TN_OK;
}

/* Prefixes of a kept prefix stay on the device at least as long. They exist only where layers have windows or
 * states. */
void tn__prefix_touch(tn_session *s, int32_t list) {
    const tn__page_table *t = remembered_pages(s);
    tn__prefixes *x = &s->prefixes;
    int32_t first, last, end;
    x->clock++;
    if (list < t->n_seqs || !tn__pages_extent(t, list, &first, &end)) return;
    x->last_used[list - t->n_seqs] = x->clock;
    if (!s->plan->kv.groups[TN__CACHE_WINDOW].n_pages && !s->plan->kv.states.n_rows) return;
    for (int32_t other = t->n_seqs; other < t->n_lists; other++) {
        if (other == list || !tn__pages_extent(t, other, &first, &last) || last > end) continue;
        const tn__hash128 hash = tn__prefix_hash_at(s, list, last);
        if (hash && hash == tn__prefix_hash_at(s, other, last)) x->last_used[other - t->n_seqs] = x->clock;
    }
}

/* A sequence took the prefix, or it was kept explicitly. */
static void use_prefix(tn_session *s, int32_t list) { /* -1: nothing */
    tn__prefix_touch(s, list);
    if (list >= s->plan->kv.n_seqs)
        s->prefixes.uses[list - s->plan->kv.n_seqs] = (tn__checkpoint_use){.when = s->prefixes.clock};
}

/* All but the recurrent state. */
static tn_status copy_cells(tn_session *s, int32_t source, int32_t target, int32_t n) {
    tn_status status = TN_OK;
    for (int g = 0; g < TN__CACHE_GROUPS && status == TN_OK; g++)
        if (s->plan->kv.groups[g].n_pages) status = tn__pages_copy(&s->plan->kv.groups[g], source, target, 0, n);
    return status;
}

static void remove_list(tn_session *s, int32_t list) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++)
        if (s->plan->kv.groups[g].n_pages) (void)tn__pages_remove(&s->plan->kv.groups[g], list, 0, -1);
    tn__recurrent_remove(&s->plan->kv.states, list);
}

void tn__prefix_remove(tn_session *s, int32_t list) {
    remove_list(s, list);
    s->prefixes.last_used[list - s->plan->kv.n_seqs] = 0;
}

tn_status tn_session_prefix_take(tn_session *s, int32_t seq, uint64_t key, const tn_token *tokens, int32_t n_tokens,
                                 int32_t *n_taken) {
    TN_TRY(check_prefixes(s, seq));
    if (!n_taken || n_tokens < 0 || (n_tokens && !tokens))
        return tn_fail(TN_E_INVALID, "tn_session_prefix_take: %d tokens at NULL, or no result", n_tokens);
    tn__prefixes *x = &s->prefixes;
    const tn__page_table *t = remembered_pages(s);
    if (t->sequences[seq].n) return tn_fail(TN_E_STATE, "sequence %d is not empty", seq);
    key = tn__sequence_key(s, seq, key); /* what it computes depends on its adapters as well */
    const int32_t n_hashed = hash_prompt(x, key, tokens, n_tokens);
    const prefix_matches m = match_lists(s, seq, tokens, n_hashed);
    int32_t n_full, n = tn__tiers_find(s, m.matching, m.matched, tokens, n_hashed, &n_full);
    x->owners[seq] = (tn__prefix_owner){key, true};
    x->asked += (uint64_t)n_tokens;
    *n_taken = 0;
    if (n > m.longest) {
        tn__prefix_touch(s, m.matching);
        x->in_use = m.matching;
        if (tn__tiers_load(s, seq, m.matching, tokens, &n) == TN_OK) *n_taken = n;
        x->in_use = -1;
    }
    if (!*n_taken && m.found >= 0 && t->sequences[m.found].n &&
        tn__prefix_continues(s, m.found, m.longest)) { /* loading may have evicted prefixes */
        use_prefix(s, m.found);
        const tn_status status = copy_cells(s, m.found, seq, m.longest);
        if (status != TN_OK) remove_list(s, seq);
        if (status != TN_OK) return status == TN_E_FULL ? TN_OK : status; /* decoding works without it */
        tn__recurrent_copy(&s->plan->kv.states, m.found, seq);
        *n_taken = m.longest;
    }
    x->hits += *n_taken > 0;
    x->misses += n_tokens && !*n_taken;
    x->taken += (uint64_t)*n_taken;
    x->missed = n_full > *n_taken ? n_full : 0;
    return TN_OK;
}

int32_t tn_session_prefix_shared(tn_session *s, uint64_t key, const tn_token *tokens, int32_t n_tokens) {
    int32_t longest = 0;
    if (!s || !s->prefixes.n || !tokens || n_tokens < 1) return 0;
    const int32_t n = hash_prompt(&s->prefixes, key, tokens, n_tokens);
    for (int32_t seq = 0; seq < s->plan->kv.n_seqs; seq++) {
        const int32_t matched = match_list(s, seq, tokens, n);
        if (matched > longest && tn__prefix_continues(s, seq, matched)) longest = matched;
    }
    return longest;
}

int32_t tn_session_prefix_missed(const tn_session *s) { return s ? s->prefixes.missed : 0; }

/* ---- Keeping ---- */

/* The tokens from the sequence's beginning on whose hashes are known and which another sequence can take. */
static int32_t keepable_tokens(const tn_session *s, int32_t seq) {
    const tn__page_table *t = remembered_pages(s);
    int32_t n = t->sequences[seq].n ? tn__page_run_at(t, seq, 0).first : 0;
    if (!list_is_known(s, seq) || (n > 0 && !t->window)) return 0;
    for (int32_t i = 0; i < t->sequences[seq].n; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        if (run.first != n || run.divisor != 1) return n;
        for (int32_t c = 0; c < run.count; c++, n++)
            if (!s->prefixes.hashes[run.cell + c]) return n;
    }
    return n;
}

tn__hash128 tn__prefix_hash_at(const tn_session *s, int32_t list, int32_t position) {
    const int32_t cell = cell_at(remembered_pages(s), list, position);
    return cell < 0 ? 0 : s->prefixes.hashes[cell];
}

static int32_t unused_list(const tn_session *s) {
    for (int32_t i = 0; i < s->prefixes.n; i++)
        if (!s->prefixes.last_used[i]) return s->plan->kv.n_seqs + i;
    return -1;
}

int32_t tn__prefix_new(tn_session *s, int32_t seq, int32_t n) {
    int32_t list = unused_list(s);
    if (list < 0 && tn__checkpoints_evict(s)) list = unused_list(s); /* one inside another prefix */
    if (list < 0 && tn__prefixes_evict(s)) list = unused_list(s);
    if (list < 0 || copy_cells(s, seq, list, n) == TN_OK) return list;
    remove_list(s, list); /* it has too many runs */
    return -1;
}

tn_status tn_session_prefix_keep(tn_session *s, int32_t seq) {
    TN_TRY(check_prefixes(s, seq));
    const tn__page_table *t = remembered_pages(s);
    const int32_t n = keepable_tokens(s, seq);
    if (n < 1 || !tn__prefix_continues(s, seq, n)) return TN_OK;
    const tn__hash128 hash = tn__prefix_hash_at(s, seq, n - 1);
    for (int32_t list = t->n_seqs; list < t->n_lists; list++) {
        int32_t first, last;
        if (!tn__pages_extent(t, list, &first, &last)) continue;
        if (tn__prefix_hash_at(s, list, n - 1) == hash && tn__prefix_continues(s, list, n)) { /* it is kept already */
            use_prefix(s, list);
            return TN_OK;
        }
        /* Whether this prefix is contained in the other, which can then replace it at any length; with windows or
         * states only at equal length. */
        if (last < n - 1 && tn__prefix_hash_at(s, seq, last) == tn__prefix_hash_at(s, list, last) &&
            !s->plan->kv.groups[TN__CACHE_WINDOW].n_pages && !s->plan->kv.states.n_rows)
            tn__prefix_remove(s, list);
    }
    const int32_t list = tn__prefix_new(s, seq, n);
    if (list < 0) return TN_OK;
    tn__recurrent_copy(&s->plan->kv.states, seq, list);
    use_prefix(s, list);
    return TN_OK;
}

/* Whether prefix a is evicted before b: the least recently used first, the end of a text before its beginning.
 * If windows need pages, spare checkpoints are evicted first, then the least recently taken. */
static bool goes_before(const tn_session *s, int32_t a, int32_t b, bool for_windows) {
    const tn__prefixes *x = &s->prefixes;
    const tn__page_table *t = remembered_pages(s);
    int32_t first, end_a = 0, end_b = 0;
    if (for_windows && x->uses[a].spare != x->uses[b].spare) return x->uses[a].spare;
    if (for_windows) return x->uses[a].when < x->uses[b].when;
    if (x->last_used[a] != x->last_used[b]) return x->last_used[a] < x->last_used[b];
    (void)tn__pages_extent(t, t->n_seqs + a, &first, &end_a);
    (void)tn__pages_extent(t, t->n_seqs + b, &first, &end_b);
    return end_a > end_b;
}

bool tn__prefixes_evict(tn_session *s) {
    tn__prefixes *x = &s->prefixes;
    const tn__page_table *windows = &s->plan->kv.groups[TN__CACHE_WINDOW];
    const bool for_windows = windows->n_pages && windows->n_free * windows->page < s->plan->params.n_ubatch;
    int32_t oldest = -1;
    for (int32_t i = 0; i < x->n; i++)
        if (x->last_used[i] && s->plan->kv.n_seqs + i != x->in_use &&
            (oldest < 0 || goes_before(s, i, oldest, for_windows)))
            oldest = i;
    if (oldest < 0) return false;
    tn__tiers_store(s, s->plan->kv.n_seqs + oldest);
    tn__prefix_remove(s, s->plan->kv.n_seqs + oldest);
    x->evicted++;
    return true;
}

bool tn__prefixes_make_room(tn_session *s) {
    return (tn__recurrent_full(&s->plan->kv.states) && tn__checkpoints_evict(s)) || tn__prefixes_evict(s);
}

void tn__prefixes_clear(tn_session *s) {
    for (int32_t i = 0; i < s->prefixes.n; i++) tn__prefix_remove(s, s->plan->kv.n_seqs + i);
}

void tn_session_prefix_clear(tn_session *s) {
    if (!s) return;
    tn__prefixes_clear(s);
    tn__tiers_clear(s);
}

tn_status tn_session_prefix_forget(tn_session *s, uint64_t key, const tn_token *tokens, int32_t n_tokens) {
    TN_TRY(check_prefixes(s, 0));
    if (n_tokens < 0 || (n_tokens && !tokens))
        return tn_fail(TN_E_INVALID, "tn_session_prefix_forget: %d tokens at NULL", n_tokens);
    const tn__page_table *t = remembered_pages(s);
    const int32_t n = hash_prompt(&s->prefixes, key, tokens, n_tokens);
    for (int32_t list = t->n_seqs; list < t->n_lists; list++) {
        int32_t first, last;
        if (!tn__pages_extent(t, list, &first, &last)) continue;
        if (match_list(s, list, tokens, n) >= TN__MAX(TN__MIN(last + 1, n), 1)) tn__prefix_remove(s, list);
    }
    tn__tiers_forget(s, tokens, n);
    return TN_OK;
}

tn_status tn_session_prefix_note(tn_session *s, int32_t seq, uint64_t key, const tn_token *tokens, int32_t n_tokens) {
    TN_TRY(check_prefixes(s, seq));
    tn__prefixes *x = &s->prefixes;
    const tn__page_table *t = remembered_pages(s);
    int32_t first, last;
    if (n_tokens < 1 || !tokens) return tn_fail(TN_E_INVALID, "tn_session_prefix_note: no tokens");
    if (!tn__pages_extent(t, seq, &first, &last) || last != n_tokens - 1 || n_tokens > x->n_prompt ||
        !is_gapless(t, seq, last))
        return tn_fail(TN_E_STATE, "sequence %d does not hold %d tokens from its beginning on", seq, n_tokens);
    for (int32_t i = 0; i < t->sequences[seq].n; i++)
        if (tn__pages_shared(t, seq, i))
            return tn_fail(TN_E_STATE, "sequence %d shares cells with others, whose tokens are already known", seq);
    key = tn__sequence_key(s, seq, key); /* what it computes depends on its adapters as well */
    (void)hash_prompt(x, key, tokens, n_tokens);
    for (int32_t i = 0; i < t->sequences[seq].n; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        for (int32_t c = 0; c < run.count; c++) {
            x->tokens[run.cell + c] = tokens[run.first + c];
            x->hashes[run.cell + c] = x->prompt[run.first + c];
        }
    }
    x->owners[seq] = (tn__prefix_owner){key, true};
    return TN_OK;
}

tn_prefix_usage tn_session_prefix_usage(tn_session *s) {
    if (!s) return (tn_prefix_usage){0};
    const tn__prefixes *x = &s->prefixes;
    tn_prefix_usage usage = {.limit = x->n,
                             .asked = x->asked,
                             .taken = x->taken,
                             .evicted = x->evicted,
                             .hits = x->hits,
                             .misses = x->misses};
    if (!x->n) return usage;
    for (int32_t i = 0; i < x->n; i++) usage.kept += x->last_used[i] != 0;
    tn__page_table *t = remembered_pages(s);
    usage.cells = tn__pages_number(t, 0, t->n_lists) - tn__pages_number(t, 0, t->n_seqs);
    return usage;
}

/* The report of the prefix tree: sequences, kept prefixes, and the cells that they have in common. */
#include "llm/session_internal.h"

#include "base/checked.h"

static tn__page_table *tree_pages(const tn_session *s) {
    return &s->plan->kv.groups[s->plan->kv.groups[TN__CACHE_FULL].n_pages ? TN__CACHE_FULL : TN__CACHE_WINDOW];
}

static int32_t tokens_of_list(const tn__page_table *t, int32_t list) {
    int32_t first, last;
    return tn__pages_extent(t, list, &first, &last) ? last + 1 : 0;
}

/* One past the last position of the cells with which both lists begin; 0: their first cells differ. */
static int32_t shared_beginning(const tn__page_table *t, int32_t a, int32_t b) {
    int32_t i = 0, k = 0, from_a = 0, from_b = 0, end = 0;
    while (i < t->sequences[a].n && k < t->sequences[b].n) {
        const tn_page_run x = tn__page_run_at(t, a, i), y = tn__page_run_at(t, b, k);
        if (x.cell + from_a != y.cell + from_b || x.first + from_a != y.first + from_b || x.divisor != 1 ||
            y.divisor != 1)
            break;
        const int32_t n = TN__MIN(x.count - from_a, y.count - from_b);
        end = x.first + from_a + n;
        from_a += n;
        from_b += n;
        if (from_a == x.count) i++, from_a = 0;
        if (from_b == y.count) k++, from_b = 0;
    }
    return end;
}

/* Counts in table->numbers how many lists see each cell. */
static void count_viewers(tn__page_table *t) {
    const int32_t cells = tn__page_table_cells(t);
    for (int32_t i = 0; i < cells; i++) t->numbers[i] = 0;
    for (int32_t list = 0; list < t->n_lists; list++)
        for (int32_t i = 0; i < t->sequences[list].n; i++) {
            const tn_page_run run = tn__page_run_at(t, list, i);
            for (int32_t c = 0; c < run.count; c++) t->numbers[run.cell + c]++;
        }
}

static int32_t own_cells(const tn__page_table *t, int32_t list) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->sequences[list].n; i++) {
        const tn_page_run run = tn__page_run_at(t, list, i);
        for (int32_t c = 0; c < run.count; c++) n += t->numbers[run.cell + c] == 1;
    }
    return n;
}

/* Adds an entry in its order: sequences, then prefixes, the most recently used first. When the list is full, the
 * last one is dropped. */
static void add_tree_entry(tn_prefix_info *list, int32_t capacity, int32_t *n, tn_prefix_info entry) {
    int32_t at = *n;
    if (at == capacity && (!list[at - 1].last_used || entry.last_used <= list[at - 1].last_used)) return;
    if (at < capacity)
        ++*n;
    else
        at--;
    for (; at > 0 && entry.last_used && list[at - 1].last_used && list[at - 1].last_used < entry.last_used; at--)
        list[at] = list[at - 1];
    list[at] = entry;
}

int32_t tn_session_prefix_tree(tn_session *s, tn_prefix_info *list, int32_t capacity) {
    int32_t n = 0;
    if (!s || !list || capacity < 1) return 0;
    tn__page_table *t = tree_pages(s);
    for (int32_t i = 0; i < t->n_lists; i++) {
        if (!t->sequences[i].n) continue;
        const uint64_t used = i < t->n_seqs ? 0 : s->prefixes.last_used[i - t->n_seqs];
        add_tree_entry(list, capacity, &n,
                       (tn_prefix_info){.id = i, .tokens = tokens_of_list(t, i), .parent = -1, .last_used = used});
    }
    count_viewers(t);
    for (int32_t i = 0; i < n; i++) {
        list[i].cells = own_cells(t, list[i].id);
        for (int32_t k = 0; k < i; k++) {
            const int32_t shared = shared_beginning(t, list[k].id, list[i].id);
            if (shared <= list[i].shared) continue;
            list[i].shared = shared;
            list[i].parent = k;
        }
    }
    return n;
}

void tn_session_page_map(const tn_session *s, int32_t *owner) {
    const tn__page_table *t = tree_pages(s);
    for (int32_t i = 0; i < t->n_pages; i++) owner[i] = TN_PAGE_FREE;
    for (int32_t list = 0; list < t->n_lists; list++)
        for (int32_t i = 0; i < t->sequences[list].n; i++) {
            int32_t *of_page = &owner[tn__page_run_at(t, list, i).cell / t->page];
            if (*of_page == TN_PAGE_FREE)
                *of_page = list;
            else if (list < t->n_seqs && *of_page != list)
                *of_page = TN_PAGE_SHARED;
        }
}

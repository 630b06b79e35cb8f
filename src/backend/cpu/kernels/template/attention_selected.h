/* Selected positions: part of the attention template.
 *
 * Every query has entries of its own, so that a group has one token. A thread sorts the entries of the token that it
 * works on; a cursor then cuts every run into the parts that entries name. The cells that a query sees are listed in
 * the order of the page table, whatever the order of the entries. */

enum { ATT_DIGIT = 11 }; /* bits that a pass of the sort distinguishes */

/* A thread's room: the number of entries, the entries, and as many for sorting. */
static size_t att_selected_floats(const tn__attention_job *job) {
    return job->selects ? (2 * (size_t)job->n_selected + 1 + 15) / 16 * 16 : 0;
}
/* One pass of a radix sort. */
static void att_sort_digit(const int32_t *from, int32_t *to, int64_t n, int shift) {
    int64_t begin[1 << ATT_DIGIT] = {0}, at = 0;
    for (int64_t i = 0; i < n; i++) begin[(from[i] >> shift) & ((1 << ATT_DIGIT) - 1)]++;
    for (int i = 0; i < 1 << ATT_DIGIT; i++) {
        const int64_t count = begin[i];
        begin[i] = at;
        at += count;
    }
    for (int64_t i = 0; i < n; i++) to[begin[(from[i] >> shift) & ((1 << ATT_DIGIT) - 1)]++] = from[i];
}
/* Fills job->sorted with the entries of a token: their number, then each once in ascending order. */
static void att_sort_selected(const tn__attention_job *job, int64_t token) {
    const int32_t *from = job->selected + token * job->n_selected;
    int32_t *to = job->sorted + 1, *other = to + job->n_selected, largest = 0;
    int64_t n = 0, kept = 0;
    bool is_sorted = true;
    for (int64_t i = 0; i < job->n_selected; i++) {
        if (from[i] < 0) continue;
        is_sorted = is_sorted && from[i] >= largest;
        largest = from[i] > largest ? from[i] : largest;
        to[n++] = from[i];
    }
    for (int shift = 0; !is_sorted && shift < 31 && largest >> shift > 0; shift += ATT_DIGIT) {
        att_sort_digit(to, other, n, shift);
        int32_t *swap = to;
        to = other;
        other = swap;
    }
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || to[i] != to[i - 1]) job->sorted[1 + kept++] = to[i];
    job->sorted[0] = (int32_t)kept;
}

/* Moves to the first part of a run. */
static void att_begin_selected(const tn__attention_job *job, att_cursor *c, tn_page_run run) {
    const int32_t *entries = job->sorted + 1, block = tn__select_block(job);
    c->later = run;
    if (run.count == 0) return;
    const int32_t wanted = run.first / run.divisor / block; /* the run is clipped, so that its divisor is valid */
    int64_t low = 0, high = job->sorted[0];
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (entries[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    c->entry = low;
}
/* Takes the next part from the rest of a run: the positions of an entry and of those that directly follow it. */
static void att_next_selected(const tn__attention_job *job, att_cursor *c) {
    const int32_t *entries = job->sorted + 1;
    const int64_t n = job->sorted[0], block = tn__select_block(job);
    tn_page_run part = {0};
    if (c->entry < n) {
        const int64_t low = entries[c->entry] * block;
        int64_t high = low + block - 1;
        while (++c->entry < n && entries[c->entry] == entries[c->entry - 1] + 1) high += block;
        if (low <= INT32_MAX)
            part = att_clip(c->later, (att_span){(int32_t)low, (int32_t)(high < INT32_MAX ? high : INT32_MAX)});
    }
    const int32_t end = part.cell + part.count, skipped = part.count > 0 ? end - c->later.cell : c->later.count;
    c->rest = part;
    c->later.cell += skipped;
    c->later.first += skipped;
    c->later.count -= skipped;
}

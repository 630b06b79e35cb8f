/* Merges adjacent symbols by rank, of equal ranks the leftmost first, in at most n log n time.
 *
 * Short words are scanned repeatedly for the pair of lowest rank, which is fastest while all fits into a few cache
 * lines. Long words (a megabyte of one letter is one word) use a bucket of positions per rank. Positions are added
 * nearly in order, so a bucket is a list that is sorted once, when its rank is the lowest, and then consumed from the
 * front: memory is accessed in order, and a merge costs a few nanoseconds. Positions added to a bucket after that go
 * to a heap, so that the order is exact for every table of merges. */
#include "text/tokenizer/internal.h"

#include <string.h>

enum { SHORT_WORD = 48 };

/* ---- The table ---- */

tn_status tn__merges_init(tn__merges *merges, size_t capacity, uint64_t seed) {
    size_t slots = 16;
    while (slots / 2 < capacity) {
        if (slots > SIZE_MAX / 2 / sizeof(tn__merge_slot))
            return tn_fail(TN_E_OVERFLOW, "%zu merges are too many", capacity);
        slots *= 2;
    }
    merges->slots = tn_malloc(slots * sizeof *merges->slots);
    if (!merges->slots) return TN_E_NOMEM;
    memset(merges->slots, 0xff, slots * sizeof *merges->slots);
    merges->mask = slots - 1;
    merges->count = 0;
    merges->seed = seed;
    return TN_OK;
}

void tn__merges_free(tn__merges *merges) {
    tn_free(merges->slots);
    merges->slots = NULL;
}

static inline size_t merge_slot_of(const tn__merges *merges, uint64_t pair) {
    uint64_t h = (pair ^ merges->seed) * 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ h >> 32) & merges->mask;
}

static void put_merge(tn__merges *merges, tn__merge_slot slot) {
    size_t i = merge_slot_of(merges, slot.pair);
    while (merges->slots[i].pair != UINT64_MAX) {
        if (merges->slots[i].pair == slot.pair) return;
        i = (i + 1) & merges->mask;
    }
    merges->slots[i] = slot;
    merges->count++;
}

tn_status tn__merges_add(tn__merges *merges, uint32_t left, uint32_t right, uint32_t rank, uint32_t result) {
    if (merges->count > merges->mask / 2) {
        tn__merges larger = {0};
        TN_TRY(tn__merges_init(&larger, merges->count * 2, merges->seed));
        larger.n_ranks = merges->n_ranks;
        for (size_t i = 0; i <= merges->mask; i++)
            if (merges->slots[i].pair != UINT64_MAX) put_merge(&larger, merges->slots[i]);
        tn_free(merges->slots);
        *merges = larger;
    }
    put_merge(merges, (tn__merge_slot){(uint64_t)left << 32 | right, rank, result});
    return TN_OK;
}

/* The rank of a pair and its result; TN__NIL if no merge joins the pair. */
static inline uint32_t find_pair(const tn__merges *merges, uint32_t left, uint32_t right, uint32_t *result) {
    uint64_t pair = (uint64_t)left << 32 | right;
    if (pair == UINT64_MAX) return TN__NIL; /* two missing symbols; also the mark of an empty slot */
    for (size_t i = merge_slot_of(merges, pair);; i = (i + 1) & merges->mask) {
        const tn__merge_slot *slot = &merges->slots[i];
        if (slot->pair == pair) {
            *result = slot->result;
            return slot->rank;
        }
        if (slot->pair == UINT64_MAX) return TN__NIL;
    }
}

/* ---- Memory ---- */

void tn__merge_work_free(tn__merge_work *work) {
    tn_free(work->symbols);
    tn_free(work->starts);
    tn_free(work->next);
    tn_free(work->prev);
    tn_free(work->ranks);
    tn_free(work->results);
    tn_free(work->entries);
    tn_free(work->buckets);
    tn_free(work->rank_heap);
    tn_free(work->late_heap);
    memset(work, 0, sizeof *work);
}

tn_status tn__merge_reserve(tn__merge_work *work, size_t count) {
    if (count <= work->capacity) return TN_OK;
    size_t capacity = work->capacity;
    TN_TRY(tn__grow((void **)&work->symbols, &capacity, count, sizeof *work->symbols));
    capacity = work->capacity;
    TN_TRY(tn__grow((void **)&work->starts, &capacity, count, sizeof *work->starts));
    work->capacity = capacity;
    return TN_OK;
}

static tn_status reserve_long(tn__merge_work *work, size_t count, size_t n_ranks) {
    if (count > work->long_capacity) {
        uint32_t **arrays[] = {&work->next, &work->prev, &work->ranks, &work->results};
        size_t capacity = 0;
        for (size_t i = 0; i < TN__COUNT(arrays); i++) {
            capacity = work->long_capacity;
            TN_TRY(tn__grow((void **)arrays[i], &capacity, count, sizeof **arrays[i]));
        }
        work->long_capacity = capacity;
    }
    if (work->bucket_count < n_ranks) {
        tn_free(work->buckets);
        work->bucket_count = 0;
        work->buckets = tn_calloc(n_ranks, sizeof *work->buckets);
        if (!work->buckets) return TN_E_NOMEM;
        work->bucket_count = n_ranks;
        work->epoch = 0;
    }
    return TN_OK;
}

/* ---- Short words ---- */

static size_t merge_short_word(const tn__merges *merges, tn__merge_work *work, size_t count) {
    uint32_t ranks[SHORT_WORD], results[SHORT_WORD];
    uint32_t *symbols = work->symbols, *starts = work->starts;
    for (size_t i = 0; i < count; i++) starts[i] = (uint32_t)i;
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = find_pair(merges, symbols[i], symbols[i + 1], &results[i]);
    while (count > 1) {
        size_t lowest = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[lowest]) lowest = i;
        if (ranks[lowest] == TN__NIL) break;
        symbols[lowest] = results[lowest];
        count--;
        size_t moved = (count - lowest - 1) * sizeof *symbols;
        memmove(&symbols[lowest + 1], &symbols[lowest + 2], moved);
        memmove(&starts[lowest + 1], &starts[lowest + 2], moved);
        if (lowest + 1 < count) {
            memmove(&ranks[lowest], &ranks[lowest + 1], (count - lowest - 1) * sizeof *ranks);
            memmove(&results[lowest], &results[lowest + 1], (count - lowest - 1) * sizeof *results);
            ranks[lowest] = find_pair(merges, symbols[lowest], symbols[lowest + 1], &results[lowest]);
        }
        if (lowest > 0)
            ranks[lowest - 1] = find_pair(merges, symbols[lowest - 1], symbols[lowest], &results[lowest - 1]);
    }
    return count;
}

/* ---- Lists and heaps of long words ---- */

static uint32_t join_sorted(struct tn__merge_entry *entries, uint32_t a, uint32_t b) {
    uint32_t head = TN__NIL, *link = &head;
    while (a != TN__NIL && b != TN__NIL) {
        uint32_t *smaller = entries[a].position <= entries[b].position ? &a : &b;
        *link = *smaller;
        link = &entries[*smaller].next;
        *smaller = *link;
    }
    *link = a != TN__NIL ? a : b;
    return head;
}

/* Merge sort of a list that uses the sorted runs it has. */
static uint32_t sort_list(struct tn__merge_entry *entries, uint32_t list) {
    uint32_t bins[32]; /* bin i holds about 2^i runs, as in a binary counter */
    memset(bins, 0xff, sizeof bins);
    while (list != TN__NIL) {
        uint32_t run = list, last = list;
        while (entries[last].next != TN__NIL && entries[entries[last].next].position >= entries[last].position)
            last = entries[last].next;
        list = entries[last].next;
        entries[last].next = TN__NIL;
        size_t bin = 0;
        for (; bin + 1 < TN__COUNT(bins) && bins[bin] != TN__NIL; bin++) {
            run = join_sorted(entries, bins[bin], run);
            bins[bin] = TN__NIL;
        }
        bins[bin] = bins[bin] == TN__NIL ? run : join_sorted(entries, bins[bin], run);
    }
    for (size_t i = 0; i < TN__COUNT(bins); i++) list = join_sorted(entries, bins[i], list);
    return list;
}

static tn_status push_rank(tn__merge_work *work, uint32_t rank) {
    TN_TRY(tn__grow((void **)&work->rank_heap, &work->rank_heap_capacity, work->rank_heap_count + 1, sizeof rank));
    uint32_t *heap = work->rank_heap;
    size_t i = work->rank_heap_count++;
    for (; i > 0 && heap[(i - 1) / 2] > rank; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = rank;
    return TN_OK;
}

static void pop_rank(tn__merge_work *work) {
    uint32_t *heap = work->rank_heap;
    size_t count = --work->rank_heap_count, i = 0;
    uint32_t moved = heap[count];
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= moved) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

static tn_status push_late(tn__merge_work *work, uint64_t key) {
    TN_TRY(tn__grow((void **)&work->late_heap, &work->late_heap_capacity, work->late_heap_count + 1, sizeof key));
    uint64_t *heap = work->late_heap;
    size_t i = work->late_heap_count++;
    for (; i > 0 && heap[(i - 1) / 2] > key; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = key;
    return TN_OK;
}

static void pop_late(tn__merge_work *work) {
    uint64_t *heap = work->late_heap;
    size_t count = --work->late_heap_count, i = 0;
    uint64_t moved = heap[count];
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= moved) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* ---- Long words ---- */

/* Queues the pair at `position`, which merges with this rank. */
static tn_status push_pair(tn__merge_work *work, uint32_t rank, uint32_t position) {
    struct tn__merge_bucket *bucket = &work->buckets[rank];
    if (bucket->epoch != work->epoch)
        *bucket = (struct tn__merge_bucket){.head = TN__NIL, .tail = TN__NIL, .epoch = work->epoch};
    if (bucket->opened) return push_late(work, (uint64_t)rank << 32 | position);
    uint32_t e = work->free_entry;
    if (e != TN__NIL) {
        work->free_entry = work->entries[e].next;
    } else {
        TN_TRY(
            tn__grow((void **)&work->entries, &work->entry_capacity, work->entry_count + 1, sizeof *work->entries));
        e = (uint32_t)work->entry_count++;
    }
    work->entries[e] = (struct tn__merge_entry){position, TN__NIL};
    if (bucket->tail == TN__NIL) {
        TN_TRY(push_rank(work, rank));
        bucket->head = e;
    } else {
        if (work->entries[bucket->tail].position > position) bucket->unsorted = true;
        work->entries[bucket->tail].next = e;
    }
    bucket->tail = e;
    return TN_OK;
}

/* Removes the pair that merges next; false if there is none. */
static bool pop_pair(tn__merge_work *work, uint32_t *rank, uint32_t *position) {
    uint64_t from_bucket = UINT64_MAX, from_late = work->late_heap_count ? work->late_heap[0] : UINT64_MAX;
    struct tn__merge_bucket *bucket = NULL;
    while (work->rank_heap_count) {
        uint32_t lowest = work->rank_heap[0];
        bucket = &work->buckets[lowest];
        if (!bucket->opened) {
            bucket->opened = true;
            if (bucket->unsorted) bucket->head = sort_list(work->entries, bucket->head);
        }
        if (bucket->head != TN__NIL) {
            from_bucket = (uint64_t)lowest << 32 | work->entries[bucket->head].position;
            break;
        }
        pop_rank(work);
    }
    uint64_t key = TN__MIN(from_bucket, from_late);
    if (key == UINT64_MAX) return false;
    if (key == from_late) {
        pop_late(work);
    } else {
        uint32_t e = bucket->head;
        bucket->head = work->entries[e].next;
        work->entries[e].next = work->free_entry;
        work->free_entry = e;
    }
    *rank = (uint32_t)(key >> 32);
    *position = (uint32_t)key;
    return true;
}

/* Looks up the pair that begins at `position` and queues it if it can merge. */
static tn_status update_pair(const tn__merges *merges, tn__merge_work *work, uint32_t position) {
    uint32_t right = work->next[position];
    uint32_t rank = TN__NIL;
    if (right != TN__NIL)
        rank = find_pair(merges, work->symbols[position], work->symbols[right], &work->results[position]);
    work->ranks[position] = rank;
    return rank == TN__NIL ? TN_OK : push_pair(work, rank, position);
}

static tn_status merge_long_word(const tn__merges *merges, tn__merge_work *work, size_t *count) {
    size_t n = *count;
    TN_TRY(reserve_long(work, n, merges->n_ranks));
    if (++work->epoch == 0) { /* the counter wrapped: old marks would look current */
        memset(work->buckets, 0, work->bucket_count * sizeof *work->buckets);
        work->epoch = 1;
    }
    work->entry_count = 0;
    work->free_entry = TN__NIL;
    work->rank_heap_count = work->late_heap_count = 0;
    uint32_t *symbols = work->symbols, *next = work->next, *prev = work->prev, *ranks = work->ranks;
    for (size_t i = 0; i < n; i++) {
        next[i] = i + 1 < n ? (uint32_t)i + 1 : TN__NIL;
        prev[i] = i > 0 ? (uint32_t)i - 1 : TN__NIL;
    }
    for (size_t i = 0; i < n; i++) TN_TRY(update_pair(merges, work, (uint32_t)i));
    uint32_t rank, at;
    while (pop_pair(work, &rank, &at)) {
        /* Queued entries are not removed. If the pair has changed since, its rank differs. */
        if (ranks[at] != rank) continue;
        uint32_t right = next[at];
        symbols[at] = work->results[at];
        ranks[right] = TN__NIL;
        next[at] = next[right];
        if (next[at] != TN__NIL) prev[next[at]] = at;
        if (prev[at] != TN__NIL) TN_TRY(update_pair(merges, work, prev[at]));
        TN_TRY(update_pair(merges, work, at));
    }
    size_t left = 0;
    for (uint32_t i = 0; i != TN__NIL; i = next[i], left++) {
        symbols[left] = symbols[i];
        work->starts[left] = i;
    }
    *count = left;
    return TN_OK;
}

tn_status tn__merge_run(const tn__merges *merges, tn__merge_work *work, size_t *count) {
    if (*count > SHORT_WORD) return merge_long_word(merges, work, count);
    *count = merge_short_word(merges, work, *count);
    return TN_OK;
}

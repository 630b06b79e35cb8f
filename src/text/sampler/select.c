/* Selecting and sorting candidate keys. */
#include "base/checked.h"
#include "base/hash.h"
#include "text/sampler/internal.h"

#include <math.h>
#include <string.h>

/* ---- Selection ---- */

static inline void swap_keys(tn__key *a, tn__key *b) {
    tn__key t = *a;
    *a = *b;
    *b = t;
}

/* The median of three keys. Their indices depend only on n, so that results are reproducible, and are hashed, so that
 * no usual order of the input is a bad case. */
static tn__key pick_pivot(const tn__key *keys, size_t n) {
    uint64_t h = tn__mix64(n + 0x9e3779b97f4a7c15u);
    tn__key a = keys[h % n], b = keys[(h >> 20) % n], c = keys[(h >> 40) % n];
    tn__key high = TN__MAX(a, b), low = TN__MIN(a, b);
    return TN__MAX(low, TN__MIN(high, c));
}

/* Moves keys >= pivot before the others and returns their number, at least 1, because the pivot is one of the keys.
 */
static size_t partition_keys(tn__key *keys, size_t n, tn__key pivot) {
    size_t front = 0;
    for (size_t i = 0; i < n; i++) {
        tn__key key = keys[i];
        keys[i] = keys[front];
        keys[front] = key;
        front += key >= pivot;
    }
    return front;
}

/* Splits n >= 2 keys into two smaller parts; returns the size of the front part, which has the larger keys. */
static size_t split_keys(tn__key *keys, size_t n) {
    tn__key pivot = pick_pivot(keys, n);
    size_t front = partition_keys(keys, n, pivot);
    if (front < n) return front;
    /* The pivot is the smallest key: the back part is the pivot alone. */
    for (size_t i = 0; i < n; i++)
        if (keys[i] == pivot) swap_keys(&keys[i], &keys[n - 1]);
    return n - 1;
}

void tn__keys_select(tn__key *keys, size_t n, size_t count) {
    while (count > 0 && count < n) {
        size_t front = split_keys(keys, n);
        if (front == count) return;
        if (front > count) {
            n = front;
        } else {
            keys += front;
            n -= front;
            count -= front;
        }
    }
}

size_t tn__keys_select_weight(tn__key *keys, size_t n, const float *weights, double target) {
    size_t taken = 0;
    double sum = 0;
    while (n > 1) {
        size_t front = split_keys(keys + taken, n);
        double part = 0;
        for (size_t i = 0; i < front; i++) part += weights[tn__key_token(keys[taken + i])];
        if (sum + part >= target) {
            n = front;
        } else {
            sum += part;
            taken += front;
            n -= front;
        }
    }
    return taken + n;
}

static void insertion_sort(tn__key *keys, size_t n) {
    for (size_t i = 1; i < n; i++) {
        tn__key key = keys[i];
        size_t j = i;
        for (; j > 0 && keys[j - 1] < key; j--) keys[j] = keys[j - 1];
        keys[j] = key;
    }
}

void tn__keys_sort(tn__key *keys, size_t n) {
    while (n > 24) {
        size_t front = split_keys(keys, n);
        /* Recursion into the smaller part keeps the depth logarithmic. */
        if (front < n - front) {
            tn__keys_sort(keys, front);
            keys += front;
            n -= front;
        } else {
            tn__keys_sort(keys + front, n - front);
            n = front;
        }
    }
    insertion_sort(keys, n);
}

/* Whether any of PROBE values is at least `least`. Nearly always none is, so a vector comparison skips them together.
 */
enum { PROBE = 16 };
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t four_truths __attribute__((vector_size(16)));
static bool any_from(const float *values, float least) {
    const four threshold = (four){0} + least;
    four_truths any = {0};
    for (int i = 0; i < PROBE; i += 4) any |= *(const four *)(values + i) >= threshold;
    uint64_t halves[2];
    memcpy(halves, &any, sizeof halves);
    return (halves[0] | halves[1]) != 0;
}

/* Collects keys of values that are at least `least` and above a threshold. Whenever `room` is full, the largest
 * `count` keys stay and the threshold rises to the smallest of them. Blocks whose maximum is below the threshold are
 * skipped. */
static size_t collect_keys(tn__key *room, const float *row, const float *block_max, size_t n, size_t count,
                           float least) {
    size_t capacity = tn__keys_room(n, count), kept = 0;
    tn__key threshold = tn__key_make(-INFINITY, 0); /* the largest key that -inf can make */
    for (size_t b = 0; b < tn__scan_blocks(n); b++) {
        if (block_max && (!(block_max[b] >= least) || tn__key_make(block_max[b], 0) <= threshold)) continue;
        size_t end = TN__MIN(n, (b + 1) * TN__SCAN_BLOCK);
        float threshold_value = TN__MAX(tn__key_value(threshold), least);
        for (size_t i = b * TN__SCAN_BLOCK; i < end; i++) {
            while (i % PROBE == 0 && i + PROBE <= end && !any_from(row + i, threshold_value)) i += PROBE;
            if (i >= end) break;
            if (!(row[i] >= threshold_value)) continue;
            tn__key key = tn__key_make(row[i], (tn_token)i);
            if (key <= threshold) continue;
            if (kept == capacity) {
                tn__keys_select(room, kept, count);
                kept = count;
                threshold = room[0];
                for (size_t j = 1; j < count; j++) threshold = TN__MIN(threshold, room[j]);
                threshold_value = tn__key_value(threshold);
                if (key <= threshold) continue;
            }
            room[kept++] = key;
        }
    }
    if (kept > count) {
        tn__keys_select(room, kept, count);
        kept = count;
    }
    return kept;
}

/* The search starts with the block maximum of rank `count` as the lower bound: at least `count` values reach it. With
 * fewer blocks than `count` the lower bound is the smallest block maximum; if too few values reach it, the search is
 * repeated without a bound. */
size_t tn__keys_from_row(tn__key *room, const float *row, const float *block_max, size_t n, size_t count) {
    const size_t n_blocks = tn__scan_blocks(n);
    if (count == 0) return 0;
    const size_t n_maxima = collect_keys(room, block_max, NULL, n_blocks, count, -INFINITY);
    float least = n_maxima < TN__MIN(count, n_blocks) ? -INFINITY : INFINITY;
    for (size_t i = 0; i < n_maxima; i++) least = TN__MIN(least, tn__key_value(room[i]));
    const size_t kept = collect_keys(room, row, block_max, n, count, least);
    return kept < count && least > -INFINITY ? collect_keys(room, row, block_max, n, count, -INFINITY) : kept;
}

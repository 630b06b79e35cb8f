/* Selection and sorting of candidate keys, and the random numbers that drawing needs. */
#include "base/checked.h"
#include "base/hash.h"
#include "text/sampler/internal.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

/* ---- Selection ---- */

static inline void swap_keys(tn__key *a, tn__key *b) {
    tn__key t = *a;
    *a = *b;
    *b = t;
}

/* The median of three keys at places that depend only on the range, so that results repeat, but that no natural order
 * of the input singles out. */
static tn__key pick_pivot(const tn__key *keys, size_t n) {
    uint64_t h = tn__mix64(n + 0x9e3779b97f4a7c15u);
    tn__key a = keys[h % n], b = keys[(h >> 20) % n], c = keys[(h >> 40) % n];
    tn__key high = TN__MAX(a, b), low = TN__MIN(a, b);
    return TN__MAX(low, TN__MIN(high, c));
}

/* Moves keys >= pivot before the others and returns how many there are; pivot is one of the keys, so at least 1. */
static size_t partition(tn__key *keys, size_t n, tn__key pivot) {
    size_t front = 0;
    for (size_t i = 0; i < n; i++) {
        tn__key key = keys[i];
        keys[i] = keys[front];
        keys[front] = key;
        front += key >= pivot;
    }
    return front;
}

/* Splits a range of n >= 2 keys in two parts that are both smaller; returns the size of the larger-valued one. */
static size_t split(tn__key *keys, size_t n) {
    tn__key pivot = pick_pivot(keys, n);
    size_t front = partition(keys, n, pivot);
    if (front < n) return front;
    /* The pivot was the smallest key: it alone is the back part. */
    for (size_t i = 0; i < n; i++)
        if (keys[i] == pivot) swap_keys(&keys[i], &keys[n - 1]);
    return n - 1;
}

void tn__keys_select(tn__key *keys, size_t n, size_t count) {
    while (count > 0 && count < n) {
        size_t front = split(keys, n);
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
        size_t front = split(keys + taken, n);
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
        size_t front = split(keys, n);
        /* Recurse into the smaller part: the depth stays logarithmic. */
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

/* Whether any of a few values is that high: nearly always none is, and vectors say so at a glance. */
enum { GLANCE = 16 };
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t four_truths __attribute__((vector_size(16)));
static bool any_from(const float *values, float least) {
    const four bar = (four){0} + least;
    four_truths any = {0};
    for (int i = 0; i < GLANCE; i += 4) any |= *(const four *)(values + i) >= bar;
    uint64_t halves[2];
    memcpy(halves, &any, sizeof halves);
    return (halves[0] | halves[1]) != 0;
}

/* Keys of values from `least` on and above a rising bar are collected; whenever the room is full, the best `count`
 * stay and the bar rises to the least of them. Blocks whose maximum does not clear the bar are stepped over. */
static size_t collect(tn__key *room, const float *row, const float *block_max, size_t n, size_t count, float least) {
    size_t capacity = tn__keys_room(n, count), kept = 0;
    tn__key bar = tn__key_make(-INFINITY, 0); /* the largest key that -inf can make */
    for (size_t b = 0; b < tn__scan_blocks(n); b++) {
        if (block_max && (!(block_max[b] >= least) || tn__key_make(block_max[b], 0) <= bar)) continue;
        size_t end = TN__MIN(n, (b + 1) * TN__SCAN_BLOCK);
        float bar_value = TN__MAX(tn__key_value(bar), least);
        for (size_t i = b * TN__SCAN_BLOCK; i < end; i++) {
            while (i % GLANCE == 0 && i + GLANCE <= end && !any_from(row + i, bar_value)) i += GLANCE;
            if (i >= end) break;
            if (!(row[i] >= bar_value)) continue;
            tn__key key = tn__key_make(row[i], (tn_token)i);
            if (key <= bar) continue;
            if (kept == capacity) {
                tn__keys_select(room, kept, count);
                kept = count;
                bar = room[0];
                for (size_t j = 1; j < count; j++) bar = TN__MIN(bar, room[j]);
                bar_value = tn__key_value(bar);
                if (key <= bar) continue;
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

/* The bar starts where it is likely to end: at the block maximum of rank `count`, above which there are that many.
 * With fewer blocks it starts at the least of them, above which there are some of each, and if those are too few
 * after all, it starts again from below. */
size_t tn__keys_from_row(tn__key *room, const float *row, const float *block_max, size_t n, size_t count) {
    const size_t n_blocks = tn__scan_blocks(n);
    if (count == 0) return 0;
    const size_t best = collect(room, block_max, NULL, n_blocks, count, -INFINITY);
    float least = best < TN__MIN(count, n_blocks) ? -INFINITY : INFINITY;
    for (size_t i = 0; i < best; i++) least = TN__MIN(least, tn__key_value(room[i]));
    const size_t kept = collect(room, row, block_max, n, count, least);
    return kept < count && least > -INFINITY ? collect(room, row, block_max, n, count, -INFINITY) : kept;
}

/* ---- Random numbers ---- */

static uint64_t rotate_left(uint64_t x, int by) { return x << by | x >> (64 - by); }

void tn__random_seed(tn__random *random, uint64_t seed) {
    for (int i = 0; i < 4; i++) { /* splitmix64 */
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        random->s[i] = z ^ z >> 31;
    }
}

double tn__random_unit(tn__random *random) { /* xoshiro256** */
    uint64_t *s = random->s, result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}

uint64_t tn__random_system_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) seed = tn__mix64(tn_time_ns());
    return seed >> 11; /* 53 bits: what every reader of JSON keeps, and no option takes for "a new one" */
}

/* Random items for the packer. */
#ifndef TN_TESTS_RANDOM_ITEMS_H
#define TN_TESTS_RANDOM_ITEMS_H

#include "support.h"
#include "tenon/pack.h"

typedef struct item_shape {
    size_t count;
    int64_t horizon, longest;
    size_t largest;
    bool aligned, zeros;
} item_shape;

static inline void random_items(rng *r, item_shape s, tn_pack_item *items) {
    for (size_t i = 0; i < s.count; i++) {
        int64_t start = (int64_t)rng_below(r, (uint64_t)s.horizon) - s.horizon / 2;
        items[i] = (tn_pack_item){.start = start,
                                  .end = start + (int64_t)rng_below(r, (uint64_t)s.longest) + !s.zeros,
                                  .size = rng_below(r, s.largest) + !s.zeros,
                                  .alignment = s.aligned ? (size_t)1 << rng_below(r, 9) : 0};
    }
}

#endif

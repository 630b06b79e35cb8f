/* Character classes as trees of UTF-8 byte ranges. */
#include "text/utf8.h"
#include "base/checked.h"
#include "text/grammar/internal.h"

/* A range of code points whose UTF-8 encodings are all combinations of up to four byte ranges. */
typedef struct byte_ranges {
    uint8_t low[4], high[4];
    int length;
} byte_ranges;

static int encoded_length(uint32_t code) { return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4; }

/* The largest such range that starts at `low` and ends at or before `high`: the end is moved down to the last code
 * point of the same encoded length, then, from the last byte on, to a boundary of 64^i unless the start is on one. */
static byte_ranges first_byte_ranges(uint32_t low, uint32_t high, uint32_t *end) {
    static const uint32_t length_end[] = {0, 0x7f, 0x7ff, 0xffff, 0x10ffff};
    int n = encoded_length(low);
    high = TN__MIN(high, length_end[n]);
    for (int i = 1; i < n; i++) {
        uint32_t mask = (1u << (6 * i)) - 1;
        if ((low & ~mask) == (high & ~mask)) continue;
        if (low & mask) {
            high = low | mask; /* to the end of the block that contains low */
        } else if ((high & mask) != mask) {
            high = (high & ~mask) - 1; /* the last, incomplete block belongs to the next range */
        }
    }
    byte_ranges bytes = {.length = n};
    tn__utf8_encode(low, (char *)bytes.low);
    tn__utf8_encode(high, (char *)bytes.high);
    *end = high;
    return bytes;
}

static tn_status add_class_node(tn__program *p, uint32_t *out) {
    TN_TRY(tn__grammar_grow(&p->class_nodes, &p->class_node_capacity, p->n_class_nodes + 1, sizeof *p->class_nodes));
    p->class_nodes[p->n_class_nodes] = (tn__class_node){0};
    *out = (uint32_t)p->n_class_nodes++;
    return TN_OK;
}

/* Builds the node for list[from…to), which agree in their first `level` bytes. Equal ranges at this level are
 * adjacent, because the list is in order. A node's edges must be contiguous, so they are added before its children.
 */
static tn_status build_class_node(tn__program *p, const byte_ranges *list, size_t from, size_t to, int level,
                                  uint32_t *out) {
    uint32_t node;
    TN_TRY(add_class_node(p, &node));
    size_t first = p->n_class_edges, count = 0;
    for (size_t i = from; i < to; i++) {
        if (i > from && list[i].low[level] == list[i - 1].low[level]) continue;
        TN_TRY(
            tn__grammar_grow(&p->class_edges, &p->class_edge_capacity, p->n_class_edges + 1, sizeof *p->class_edges));
        p->class_edges[p->n_class_edges++] = (tn__class_edge){.low = list[i].low[level], .high = list[i].high[level]};
        count++;
    }
    p->class_nodes[node] = (tn__class_node){(uint32_t)first, (uint32_t)count};
    size_t edge = first;
    for (size_t i = from; i < to; edge++) {
        size_t end = i + 1;
        while (end < to && list[end].low[level] == list[i].low[level]) end++;
        if (level < 3 && list[i].length > level + 1) {
            uint32_t child;
            TN_TRY(build_class_node(p, list, i, end, level + 1, &child));
            p->class_edges[edge].to = child;
        }
        i = end;
    }
    *out = node;
    return TN_OK;
}

tn_status tn__program_add_class(tn__program *p, const tn__code_range *ranges, size_t n, uint32_t *out) {
    byte_ranges *list = NULL;
    size_t n_ranges = 0, capacity = 0;
    tn_status status = TN_OK;
    uint32_t root;
    if (p->n_class_nodes == 0) TN_TRY(add_class_node(p, &root)); /* number 0 means that the character is complete */
    for (size_t i = 0; i < n; i++)
        for (uint32_t low = ranges[i].low, end; low <= ranges[i].high; low = end + 1) {
            TN_TRY_GOTO(tn__grammar_grow(&list, &capacity, n_ranges + 1, sizeof *list), status, out);
            list[n_ranges++] = first_byte_ranges(low, ranges[i].high, &end);
        }
    TN_TRY_GOTO(build_class_node(p, list, 0, n_ranges, 0, &root), status, out);
    TN_TRY_GOTO(tn__grammar_grow(&p->class_roots, &p->class_capacity, p->n_classes + 1, sizeof *p->class_roots),
                status, out);
    p->class_roots[p->n_classes] = root;
    *out = (uint32_t)p->n_classes++;
out:
    tn_free(list);
    return status;
}

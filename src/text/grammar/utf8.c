/* Character classes as trees of UTF-8 byte ranges. */
#include "base/checked.h"
#include "text/grammar/internal.h"

/* A run of code points whose UTF-8 forms are exactly the products of up to four byte ranges. */
typedef struct byte_product {
    uint8_t low[4], high[4];
    int length;
} byte_product;

static int encoded_length(uint32_t code) { return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4; }

static int encode(uint32_t code, uint8_t bytes[4]) {
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    int n = encoded_length(code);
    for (int i = n - 1; i > 0; i--, code >>= 6) bytes[i] = (uint8_t)(0x80 | (code & 0x3f));
    bytes[0] = (uint8_t)(lead[n] | code);
    return n;
}

/* The largest run that starts at `low`, ends at or before `high` and is a product: the end is pulled in to the end of
 * the encoded length, then, from the last byte on, to a boundary of 64^i wherever the start does not sit on one. */
static byte_product first_product(uint32_t low, uint32_t high, uint32_t *end) {
    static const uint32_t length_end[] = {0, 0x7f, 0x7ff, 0xffff, 0x10ffff};
    int n = encoded_length(low);
    high = TN__MIN(high, length_end[n]);
    for (int i = 1; i < n; i++) {
        uint32_t mask = (1u << (6 * i)) - 1;
        if ((low & ~mask) == (high & ~mask)) continue;
        if (low & mask) {
            high = low | mask; /* up to the end of the block that low is in the middle of */
        } else if ((high & mask) != mask) {
            high = (high & ~mask) - 1; /* leave the last, incomplete block to the next product */
        }
    }
    byte_product product = {.length = n};
    encode(low, product.low);
    encode(high, product.high);
    *end = high;
    return product;
}

static tn_status add_node(tn__program *p, uint32_t *out) {
    TN_TRY(tn__grammar_grow(&p->class_nodes, &p->class_node_capacity, p->n_class_nodes + 1, sizeof *p->class_nodes));
    p->class_nodes[p->n_class_nodes] = (tn__class_node){0};
    *out = (uint32_t)p->n_class_nodes++;
    return TN_OK;
}

/* Builds the node for products[from…to), which agree in their first `level` bytes; equal ranges at this level are
 * adjacent because the products are in order. A node's edges are contiguous, so they are placed before its children.
 */
static tn_status build(tn__program *p, const byte_product *products, size_t from, size_t to, int level,
                       uint32_t *out) {
    uint32_t node;
    TN_TRY(add_node(p, &node));
    size_t first = p->n_class_edges, count = 0;
    for (size_t i = from; i < to; i++) {
        if (i > from && products[i].low[level] == products[i - 1].low[level]) continue;
        TN_TRY(
            tn__grammar_grow(&p->class_edges, &p->class_edge_capacity, p->n_class_edges + 1, sizeof *p->class_edges));
        p->class_edges[p->n_class_edges++] =
            (tn__class_edge){.low = products[i].low[level], .high = products[i].high[level]};
        count++;
    }
    p->class_nodes[node] = (tn__class_node){(uint32_t)first, (uint32_t)count};
    size_t edge = first;
    for (size_t i = from; i < to; edge++) {
        size_t end = i + 1;
        while (end < to && products[end].low[level] == products[i].low[level]) end++;
        if (level < 3 && products[i].length > level + 1) {
            uint32_t child;
            TN_TRY(build(p, products, i, end, level + 1, &child));
            p->class_edges[edge].to = child;
        }
        i = end;
    }
    *out = node;
    return TN_OK;
}

tn_status tn__program_add_class(tn__program *p, const tn__code_range *ranges, size_t n, uint32_t *out) {
    byte_product *products = NULL;
    size_t n_products = 0, capacity = 0;
    tn_status status = TN_OK;
    uint32_t root;
    if (p->n_class_nodes == 0) TN_TRY(add_node(p, &root)); /* number 0 means "the character is complete" */
    for (size_t i = 0; i < n; i++)
        for (uint32_t low = ranges[i].low, end; low <= ranges[i].high; low = end + 1) {
            TN_TRY_GOTO(tn__grammar_grow(&products, &capacity, n_products + 1, sizeof *products), status, out);
            products[n_products++] = first_product(low, ranges[i].high, &end);
        }
    TN_TRY_GOTO(build(p, products, 0, n_products, 0, &root), status, out);
    TN_TRY_GOTO(tn__grammar_grow(&p->class_roots, &p->class_capacity, p->n_classes + 1, sizeof *p->class_roots),
                status, out);
    p->class_roots[p->n_classes] = root;
    *out = (uint32_t)p->n_classes++;
out:
    tn_free(products);
    return status;
}

/* A trie built from a sorted list, breadth first, so that the children of a node are adjacent in memory. */
#include "text/tokenizer/internal.h"

#include <string.h>

static int compare_items(const tn__trie_item *a, const tn__trie_item *b) {
    size_t common = TN__MIN(a->size, b->size);
    int order = common ? memcmp(a->data, b->data, common) : 0;
    if (order) return order;
    if (a->size != b->size) return a->size < b->size ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

/* Heap sort: no recursion, no memory, and n log n time for a hostile list too. */
static void sift_item_down(tn__trie_item *items, size_t root, size_t count) {
    tn__trie_item moved = items[root];
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && compare_items(&items[child], &items[child + 1]) < 0) child++;
        if (compare_items(&moved, &items[child]) >= 0) break;
        items[root] = items[child];
    }
    items[root] = moved;
}

static void sort_items(tn__trie_item *items, size_t count) {
    for (size_t i = count / 2; i-- > 0;) sift_item_down(items, i, count);
    for (size_t end = count; end-- > 1;) {
        tn__trie_item top = items[0];
        items[0] = items[end];
        items[end] = top;
        sift_item_down(items, 0, end);
    }
}

/* Items [low, high) share their first `depth` bytes, which lead to `node`. */
typedef struct item_range {
    uint32_t low, high, node;
    size_t depth;
} item_range;

tn_status tn__trie_build(tn__trie *trie, tn__trie_item *items, size_t count) {
    memset(trie, 0, sizeof *trie);
    for (int i = 0; i < 256; i++) trie->root[i] = TN__NIL;
    size_t bytes = 1;
    for (size_t i = 0; i < count; i++)
        if (!tn__add_size(bytes, items[i].size, &bytes)) return tn_fail(TN_E_OVERFLOW, "trie size overflows");
    if (bytes >= TN__NIL || count >= TN__NIL)
        return tn_fail(TN_E_LIMIT, "vocabulary of %zu bytes is too large for a trie", bytes);
    sort_items(items, count);

    /* There is one node per distinct prefix. Count them to allocate exactly. */
    size_t nodes = 1;
    for (size_t i = 0; i < count; i++) {
        size_t shared = 0;
        if (i > 0) {
            size_t common = TN__MIN(items[i - 1].size, items[i].size);
            while (shared < common && items[i - 1].data[shared] == items[i].data[shared]) shared++;
        }
        nodes += items[i].size - shared;
    }
    trie->nodes = tn_malloc(nodes * sizeof *trie->nodes);
    /* The queue of ranges to expand holds at most one range per distinct string. */
    size_t capacity = count + 1;
    item_range *queue = tn_malloc(capacity * sizeof *queue);
    if (!trie->nodes || !queue) {
        tn_free(queue);
        tn__trie_free(trie);
        return TN_E_NOMEM;
    }
    size_t head = 0, waiting = 0;
    uint32_t used = 1;
    trie->nodes[0] = (struct tn__trie_node){.token = TN__NIL};
    if (count) queue[waiting++] = (item_range){.high = (uint32_t)count};
    while (waiting) {
        item_range r = queue[head];
        head = (head + 1) % capacity;
        waiting--;
        struct tn__trie_node *node = &trie->nodes[r.node];
        uint32_t i = r.low;
        while (i < r.high && items[i].size == r.depth) { /* strings that end here, smallest token first */
            if (node->token == TN__NIL && r.depth > 0) node->token = items[i].token;
            i++;
        }
        node->first = used;
        while (i < r.high) {
            uint8_t label = (uint8_t)items[i].data[r.depth];
            uint32_t end = i + 1;
            while (end < r.high && (uint8_t)items[end].data[r.depth] == label) end++;
            trie->nodes[used] = (struct tn__trie_node){.token = TN__NIL, .label = label};
            if (r.node == 0) trie->root[label] = used;
            queue[(head + waiting++) % capacity] =
                (item_range){.low = i, .high = end, .node = used, .depth = r.depth + 1};
            node->children++;
            used++;
            i = end;
        }
    }
    tn_free(queue);
    return TN_OK;
}

void tn__trie_free(tn__trie *trie) {
    tn_free(trie->nodes);
    trie->nodes = NULL;
}

/* A group of consecutive ranks of another transport: its collectives are messages between its ranks, so that several
 * groups of one job can compute side by side. */
#include "net/transports.h"

#include "base/checked.h"

#include <string.h>

/* A piece is at most this large, and at most a message that the other transport sends without waiting: every rank
 * sends a piece before it receives one. */
enum { GROUP_PIECE = 256 << 10 };

typedef struct net_group {
    tn_net *parent;
    int first;
    size_t piece; /* bytes exchanged at once */
    char *pieces; /* one of every rank */
} net_group;

/* Sends this rank's piece to all others and receives theirs: in step s to the s-th rank after it, from the s-th
 * before it. sizes[r] bytes are rank r's; to[r]: where they go. */
static tn_status exchange_pieces(const tn_net *net, const void *own, const size_t *sizes, char *const *to) {
    const net_group *g = net->impl;
    for (int step = 1; step < net->size; step++) {
        const int next = (net->rank + step) % net->size, before = (net->rank + net->size - step) % net->size;
        if (sizes[net->rank]) TN_TRY(tn_net_send(g->parent, g->first + next, own, sizes[net->rank]));
        if (sizes[before]) TN_TRY(tn_net_receive(g->parent, g->first + before, to[before], sizes[before]));
    }
    return TN_OK;
}

static tn_status group_all_reduce(tn_net *net, const float *in, float *out, size_t n) {
    const net_group *g = net->impl;
    size_t sizes[TN_NET_RANKS_MOST];
    char *to[TN_NET_RANKS_MOST];
    for (int r = 0; r < net->size; r++) to[r] = g->pieces + (size_t)r * g->piece;
    for (size_t begin = 0; begin < n; begin += g->piece / sizeof *in) {
        const size_t count = TN__MIN(n - begin, g->piece / sizeof *in);
        for (int r = 0; r < net->size; r++) sizes[r] = count * sizeof *in;
        memcpy(to[net->rank], in + begin, sizes[0]);
        TN_TRY(exchange_pieces(net, to[net->rank], sizes, to));
        memcpy(out + begin, to[0], sizes[0]);
        for (int r = 1; r < net->size; r++) { /* in the order of ranks: all get the same bits */
            const float *addend = (const float *)(const void *)to[r];
            for (size_t i = 0; i < count; i++) out[begin + i] += addend[i];
        }
    }
    return TN_OK;
}

static tn_status group_all_gather(tn_net *net, const void *own, const size_t *sizes, void *out) {
    const net_group *g = net->impl;
    size_t longest = 0, starts[TN_NET_RANKS_MOST], at = 0, counts[TN_NET_RANKS_MOST];
    char *to[TN_NET_RANKS_MOST];
    for (int r = 0; r < net->size; at += sizes[r++]) {
        starts[r] = at;
        longest = TN__MAX(longest, sizes[r]);
    }
    for (size_t begin = 0; begin < longest; begin += g->piece) {
        for (int r = 0; r < net->size; r++) {
            counts[r] = sizes[r] > begin ? TN__MIN(sizes[r] - begin, g->piece) : 0;
            to[r] = (char *)out + starts[r] + begin;
        }
        TN_TRY(exchange_pieces(net, (const char *)own + begin, counts, to));
    }
    memmove((char *)out + starts[net->rank], own, sizes[net->rank]);
    return TN_OK;
}

static tn_status group_broadcast(tn_net *net, int root, void *data, size_t size, bool idle) {
    const net_group *g = net->impl;
    if (net->rank != root)
        return idle ? tn_net_wait(g->parent, g->first + root, data, size)
                    : tn_net_receive(g->parent, g->first + root, data, size);
    for (int r = 0; r < net->size; r++)
        if (r != root) TN_TRY(tn_net_send(g->parent, g->first + r, data, size));
    return TN_OK;
}

static tn_status group_send(tn_net *net, int to, const void *data, size_t size) {
    const net_group *g = net->impl;
    return tn_net_send(g->parent, g->first + to, data, size);
}
static tn_status group_receive(tn_net *net, int from, void *data, size_t size, bool idle) {
    const net_group *g = net->impl;
    return idle ? tn_net_wait(g->parent, g->first + from, data, size)
                : tn_net_receive(g->parent, g->first + from, data, size);
}
static void group_abort(tn_net *net, tn_status status, const char *text) {
    const net_group *g = net->impl;
    tn_net_abort(g->parent, status, text);
}
static size_t net_group_bytes(const tn_net *net) {
    const net_group *g = net->impl;
    return (size_t)net->size * g->piece;
}
static void group_free(tn_net *net) {
    net_group *g = net->impl;
    if (g) tn_free(g->pieces);
    tn_free(g);
}

static size_t piece_bytes(const tn_net *parent) {
    const size_t most = parent ? parent->message_bytes / sizeof(float) * sizeof(float) : GROUP_PIECE;
    return TN__MIN(most, (size_t)GROUP_PIECE);
}

size_t tn_net_group_bytes(const tn_net *parent, int n) {
    const tn_net like = {.size = n, .type = tn_net_get_type(parent)};
    return n > 0 ? (size_t)n * piece_bytes(parent) + tn__coded_bytes(&like) : 0;
}

tn_status tn_net_group(tn_net *parent, int first, int n, tn_net **out) {
    static const tn_net_ops ops = {.free = group_free,
                                   .all_reduce = group_all_reduce,
                                   .all_gather = group_all_gather,
                                   .broadcast = group_broadcast,
                                   .send = group_send,
                                   .receive = group_receive,
                                   .abort = group_abort,
                                   .bytes = net_group_bytes};
    if (!parent || !out) return tn_fail(TN_E_INVALID, "tn_net_group: NULL argument");
    *out = NULL;
    if (n < 1 || first < 0 || first > parent->size - n || parent->rank < first || parent->rank >= first + n)
        return tn_fail(TN_E_INVALID, "rank %d of %d cannot be in a group of %d ranks from rank %d on", parent->rank,
                       parent->size, n, first);
    if (parent->message_bytes < sizeof(float))
        return tn_fail(TN_E_INVALID, "a group needs messages of at least %zu bytes", sizeof(float));
    tn_net *net = tn_calloc(1, sizeof *net);
    net_group *g = tn_calloc(1, sizeof *g);
    if (net && g) {
        *net = (tn_net){.ops = &ops,
                        .name = "group",
                        .rank = parent->rank - first,
                        .size = n,
                        .timeout_ms = parent->timeout_ms,
                        .message_bytes = parent->message_bytes,
                        .impl = g};
        const size_t piece = piece_bytes(parent);
        *g = (net_group){.parent = parent, .first = first, .piece = piece, .pieces = tn_malloc((size_t)n * piece)};
        if (g->pieces && tn__coded_begin(net, parent->type) == TN_OK) {
            *out = net;
            return TN_OK;
        }
        tn_free(g->pieces);
    }
    tn_free(g);
    tn_free(net);
    return TN_E_NOMEM;
}

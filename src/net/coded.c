/* Messages of numbers in a smaller type than f32. Every rank adds the encoded addends of all ranks, including its
 * own, in the order of ranks, so that all have the same bits. */
#include "net/transports.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

enum {
    CODED_PIECE = 32 << 10, /* numbers encoded at once: a multiple of Q8_BLOCK */
    Q8_BLOCK = 32
};

typedef struct q8_block {
    float scale;
    int8_t values[Q8_BLOCK];
} q8_block;

static size_t coded_size(tn_net_type type, size_t n) {
    return type == TN_NET_BF16 ? n * sizeof(uint16_t) : (n + Q8_BLOCK - 1) / Q8_BLOCK * sizeof(q8_block);
}

static void encode_bf16(const float *in, uint16_t *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, in + i, sizeof bits);
        const bool nan = (bits & 0x7fffffff) > 0x7f800000; /* rounding up could make an infinity of it */
        out[i] = nan ? (uint16_t)(bits >> 16 | 0x40) : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}
static void decode_bf16(const uint16_t *in, float *out, size_t n, bool add) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)in[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        out[i] = add ? out[i] + value : value;
    }
}

/* A block with a non-finite value has a non-finite scale, so results that depend on it are not finite either. */
static void encode_q8(const float *in, q8_block *out, size_t n) {
    for (size_t begin = 0; begin < n; begin += Q8_BLOCK, out++) {
        const size_t count = TN__MIN(n - begin, (size_t)Q8_BLOCK);
        float most = 0;
        bool finite = true;
        for (size_t i = 0; i < count; i++) {
            most = fmaxf(most, fabsf(in[begin + i]));
            finite = finite && isfinite(in[begin + i]);
        }
        *out = (q8_block){.scale = finite ? most / 127 : NAN};
        const float inverse = finite && most > 0 ? 127 / most : 0;
        for (size_t i = 0; i < count && isfinite(inverse); i++)
            out->values[i] = (int8_t)lrintf(in[begin + i] * inverse);
    }
}
static void decode_q8(const q8_block *in, float *out, size_t n, bool add) {
    for (size_t i = 0; i < n; i++) {
        const float value = in[i / Q8_BLOCK].scale * in[i / Q8_BLOCK].values[i % Q8_BLOCK];
        out[i] = add ? out[i] + value : value;
    }
}

static void encode_values(tn_net_type type, const float *in, void *out, size_t n) {
    if (type == TN_NET_BF16)
        encode_bf16(in, out, n);
    else
        encode_q8(in, out, n);
}
static void decode_values(tn_net_type type, const void *in, float *out, size_t n, bool add) {
    if (type == TN_NET_BF16)
        decode_bf16(in, out, n, add);
    else
        decode_q8(in, out, n, add);
}

size_t tn__coded_bytes(const tn_net *net) {
    return net->type == TN_NET_F32 ? 0 : (size_t)(net->size + 1) * CODED_PIECE * sizeof(float);
}

tn_status tn__coded_begin(tn_net *net, tn_net_type type) {
    if (type != TN_NET_F32 && type != TN_NET_BF16 && type != TN_NET_Q8)
        return tn_fail(TN_E_INVALID, "unknown message type %d", (int)type);
    net->type = type;
    if (type == TN_NET_F32) return TN_OK;
    net->coded = tn_malloc(tn__coded_bytes(net));
    return net->coded ? TN_OK : TN_E_NOMEM;
}

tn_status tn__coded_reduce(tn_net *net, const float *in, float *out, size_t n) {
    size_t sizes[TN_NET_RANKS_MOST];
    char *own = net->coded, *all = own + CODED_PIECE * sizeof(float);
    for (size_t begin = 0; begin < n; begin += CODED_PIECE) {
        const size_t count = TN__MIN(n - begin, (size_t)CODED_PIECE), size = coded_size(net->type, count);
        encode_values(net->type, in + begin, own, count);
        for (int r = 0; r < net->size; r++) sizes[r] = size;
        TN_TRY(net->ops->all_gather(net, own, sizes, all));
        for (int r = 0; r < net->size; r++)
            decode_values(net->type, all + (size_t)r * size, out + begin, count, r > 0);
    }
    return TN_OK;
}

tn_status tn__coded_send(tn_net *net, int to, const float *values, size_t n) {
    for (size_t begin = 0; begin < n; begin += CODED_PIECE) {
        const size_t count = TN__MIN(n - begin, (size_t)CODED_PIECE);
        encode_values(net->type, values + begin, net->coded, count);
        TN_TRY(net->ops->send(net, to, net->coded, coded_size(net->type, count)));
    }
    return TN_OK;
}
tn_status tn__coded_receive(tn_net *net, int from, float *values, size_t n) {
    for (size_t begin = 0; begin < n; begin += CODED_PIECE) {
        const size_t count = TN__MIN(n - begin, (size_t)CODED_PIECE);
        TN_TRY(net->ops->receive(net, from, net->coded, coded_size(net->type, count), false));
        decode_values(net->type, net->coded, values + begin, count, false);
    }
    return TN_OK;
}

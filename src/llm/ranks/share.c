/* Sharing weights: rank 0 reads the file and answers the requests of the other ranks, one of each in turn.
 *
 * A request names a tensor of the file, the slice of it that the rank has, and bytes of that slice. The answer is
 * messages of at most PIECE bytes, and a checksum of them, which the other rank compares. No rank needs to know
 * another rank's division of the model or its devices. */
#include "llm/ranks/share.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/load.h"

#include <string.h>

enum { PIECE = 1 << 20 }; /* a message that transports buffer */

typedef struct share_request {
    uint64_t tensor, offset, size; /* no bytes: the rank has all its weights */
    tn__slice slice;
} share_request;

size_t tn__share_bytes(const tn_model *m) { return m->share.sends ? PIECE : 0; }

/* ---- Metadata ---- */

static tn_status send_head(const tn_model *m) {
    void *bytes;
    size_t size;
    TN_TRY(tn_gguf_head(m->file, &bytes, &size));
    uint64_t length = size;
    tn_status status = tn_net_note(m->params.net, &length, sizeof length);
    if (status == TN_OK) status = tn_net_broadcast(m->params.net, 0, bytes, size);
    tn_free(bytes);
    return status;
}

static tn_status receive_head(tn_model *m, const char *path) {
    uint64_t length;
    TN_TRY(tn_net_note(m->params.net, &length, sizeof length));
    void *bytes = tn_malloc((size_t)length);
    if (!bytes) return TN_E_NOMEM;
    tn_status status = tn_net_broadcast(m->params.net, 0, bytes, (size_t)length);
    if (status == TN_OK)
        status = tn_gguf_open_memory(bytes, (size_t)length, &(tn_gguf_params){.mode = TN_GGUF_META, .name = path},
                                     &m->file);
    tn_free(bytes); /* the metadata is copied */
    return status;
}

tn_status tn__share_open(tn_model *m, const char *path) {
    const tn_gguf_mode mode = m->params.no_mmap ? TN_GGUF_META : TN_GGUF_MAP;
    const int n_ranks = m->params.net ? tn_net_size(m->params.net) : m->params.n_ranks;
    const int rank = m->params.net ? tn_net_rank(m->params.net) : m->params.rank;
    if (m->params.share_weights && n_ranks > 1) {
        m->share = (tn__share){.sends = rank == 0, .receives = rank != 0};
        pthread_mutex_init(&m->share.lock, NULL);
    }
    if (m->share.receives && m->params.net) return receive_head(m, path);
    TN_TRY(tn_gguf_open(path, &(tn_gguf_params){.mode = mode}, &m->file));
    return m->share.sends && m->params.net ? send_head(m) : TN_OK;
}

void tn__share_end(tn__share *s) {
    if (s->sends || s->receives) pthread_mutex_destroy(&s->lock);
    *s = (tn__share){0};
}

/* ---- Receiving ---- */

tn_status tn__share_begin(const tn_model *m, size_t own, size_t *others) {
    uint64_t all[TN_NET_RANKS_MOST] = {0};
    size_t sizes[TN_NET_RANKS_MOST];
    const uint64_t mine = own;
    const int n_ranks = tn_net_size(m->params.net);
    *others = 0;
    for (int r = 0; r < n_ranks; r++) sizes[r] = sizeof mine;
    TN_TRY(tn_net_all_gather(m->params.net, &mine, sizes, all));
    for (int r = 1; r < n_ranks; r++)
        if (!tn__add_size(*others, (size_t)all[r], others))
            return tn_fail(TN_E_OVERFLOW, "the weights' sizes overflow");
    return TN_OK;
}

/* Rank 0 may still be loading its own weights, so the first answer has no timeout. */
static tn_status ask(tn_net *net, const share_request *request, const char *name, char *to) {
    uint64_t sum = 0, sent;
    TN_TRY(tn_net_send(net, 0, request, sizeof *request));
    for (size_t done = 0, n; done < request->size; done += n) {
        n = TN__MIN((size_t)request->size - done, (size_t)PIECE);
        TN_TRY(done ? tn_net_receive(net, 0, to + done, n) : tn_net_wait(net, 0, to, n));
        sum = tn__hash_bytes(to + done, n, sum);
    }
    TN_TRY(tn_net_receive(net, 0, &sent, sizeof sent));
    if (sent != sum)
        return tn_fail(TN_E_FORMAT,
                       "tensor '%s' has arrived damaged from rank 0: bytes %llu to %llu of this rank's slice have "
                       "another checksum",
                       name, (unsigned long long)request->offset,
                       (unsigned long long)(request->offset + request->size));
    return TN_OK;
}

tn_status tn__share_read(tn_model *m, const tn__weight *w, size_t offset, void *to, size_t size) {
    if (!size) return TN_OK;
    const share_request request = {
        .tensor = (uint64_t)(w - m->all), .offset = offset, .size = size, .slice = w->slice};
    pthread_mutex_lock(&m->share.lock);
    tn_status status = ask(m->params.net, &request, w->info->name, to);
    pthread_mutex_unlock(&m->share.lock);
    return status;
}

tn_status tn__share_done(const tn_model *m) {
    const share_request nothing = {.size = 0};
    return tn_net_send(m->params.net, 0, &nothing, sizeof nothing);
}

/* ---- Sending ---- */

/* Refuses requests for slices that the tensors do not allow. */
static tn_status check_request(const tn_model *m, const share_request *q, int rank) {
    bool good = q->tensor < m->n_all && q->slice.axis >= 0 && q->slice.axis < 4 && q->slice.n >= 0 &&
                q->slice.n <= TN__SLICE_RANGES;
    const tn_gguf_tensor *info = good ? m->all[q->tensor].info : NULL;
    const int64_t block = good && q->slice.axis == 0 ? tn_type_block(info->type) : 1;
    uint64_t bytes = good ? info->size : 0, length = 0;
    for (int i = 0; good && i < q->slice.n; i++) {
        const int64_t begin = q->slice.begin[i], end = q->slice.end[i];
        good = begin >= 0 && begin <= end && end <= info->ne[q->slice.axis] && begin % block == 0 && end % block == 0;
        length += (uint64_t)(end - begin);
    }
    if (good && q->slice.n) bytes = bytes / (uint64_t)info->ne[q->slice.axis] * length;
    good = good && q->offset <= bytes && q->size <= bytes - q->offset;
    return good ? TN_OK : tn_fail(TN_E_FORMAT, "rank %d requests weights that the file does not have", rank);
}

static tn_status answer_request(const tn_model *m, const tn__load *l, const share_request *q, int rank, void *piece) {
    const tn_gguf_tensor *info = m->all[q->tensor].info;
    uint64_t sum = 0;
    for (size_t done = 0, n; done < q->size; done += n) {
        n = TN__MIN((size_t)q->size - done, (size_t)PIECE);
        if (l->abort && l->abort(l->abort_user))
            return tn_fail(TN_E_ABORTED, "loading was stopped by the abort callback");
        TN_TRY(tn__slice_read(m->file, info, &q->slice, (size_t)q->offset + done, piece, n));
        sum = tn__hash_bytes(piece, n, sum);
        TN_TRY(tn_net_send(m->params.net, rank, piece, n));
    }
    return tn_net_send(m->params.net, rank, &sum, sizeof sum);
}

static tn_status serve_ranks(const tn_model *m, const tn__load *l, void *piece, size_t *done, size_t total) {
    bool served[TN_NET_RANKS_MOST] = {false};
    for (int left = tn_net_size(m->params.net) - 1; left;) {
        for (int r = 1; r < tn_net_size(m->params.net); r++) {
            share_request q;
            if (served[r]) continue;
            TN_TRY(tn_net_receive(m->params.net, r, &q, sizeof q));
            served[r] = !q.size;
            left -= served[r];
            if (served[r]) continue;
            TN_TRY(check_request(m, &q, r));
            TN_TRY(answer_request(m, l, &q, r, piece));
            *done = TN__MIN(*done + (size_t)q.size, total); /* check_weights reads twice */
            if (l->progress && !l->progress(l->progress_user, *done, total))
                return tn_fail(TN_E_ABORTED, "loading was cancelled");
        }
    }
    return TN_OK;
}

tn_status tn__share_serve(const tn_model *m, const tn__load *l, size_t *done, size_t total) {
    void *piece = tn_malloc(PIECE);
    if (!piece) return TN_E_NOMEM;
    tn_status status = serve_ranks(m, l, piece, done, total);
    tn_free(piece);
    return status;
}

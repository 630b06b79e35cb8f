/* Saving and loading the KV cache: one sequence or all, with checksum and the model's identity.
 *
 * Layout (native byte order, little-endian on every machine this runs on): a header; for each group in use the number
 * of cells and their metadata (position, sequence words); for each layer of the group the K rows, then the V rows;
 * at the end a checksum of everything before it. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct state_header {
    char magic[8];
    uint32_t version, n_layer;
    uint64_t identity;
    uint32_t type_k, type_v;
    int32_t seq; /* -1: all */
    uint32_t words;
    uint32_t counts[TN__CACHE_GROUPS];
    uint64_t size; /* of the whole state */
} state_header;
_Static_assert(sizeof(state_header) == 56, "no padding: the bytes are written as they are");

static const char state_magic[8] = "TNSTATE";
enum { STATE_VERSION = 1 };

/* Whether the state of `seq` (-1: of all) holds the cell. */
static bool in_state(const tn__cells *c, int32_t cell, int32_t seq) {
    return tn__cell_meta(c, cell)[0] >= 0 && (seq < 0 || tn__cell_has_seq(c, cell, seq));
}

/* Whether a cell becomes free when `seq` is replaced: cells that other sequences share stay. */
static bool becomes_free(const tn__cells *c, int32_t cell, int32_t seq) {
    if (!in_state(c, cell, seq) || seq < 0) return in_state(c, cell, seq);
    for (int32_t w = 0; w < c->words; w++)
        if ((uint32_t)tn__cell_meta(c, cell)[1 + w] & ~(w == seq / 32 ? 1u << (seq % 32) : 0u)) return false;
    return true;
}

static state_header header_for(const tn_session *s, int32_t seq) {
    state_header h = {.version = STATE_VERSION,
                      .n_layer = (uint32_t)s->plan->kv.n_layer,
                      .identity = s->plan->model->identity,
                      .type_k = (uint32_t)s->plan->params.cache_k,
                      .type_v = (uint32_t)s->plan->params.cache_v,
                      .seq = seq};
    memcpy(h.magic, state_magic, sizeof state_magic);
    h.words = (uint32_t)((s->plan->kv.n_seqs + 31) / 32);
    h.size = sizeof h + sizeof(uint64_t);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__cells *c = &s->plan->kv.groups[g];
        for (int32_t i = 0; c->n && i < c->end; i++) h.counts[g] += in_state(c, i, seq);
        h.size += (uint64_t)h.counts[g] * (1 + h.words) * sizeof(int32_t);
    }
    for (int32_t i = 0; i < s->plan->kv.n_layer; i++) {
        const tn__kv_layer *l = &s->plan->kv.layers[i];
        h.size += (uint64_t)h.counts[l->group] * (l->k->nb[1] + l->v->nb[1]);
    }
    return h;
}

static tn_status check_state_args(const tn_session *s, int32_t seq) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    if (seq < -1 || seq >= s->plan->kv.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    return TN_OK;
}

tn_status tn_session_state_size(tn_session *s, int32_t seq, size_t *size) {
    TN_TRY(check_state_args(s, seq));
    if (!size) return tn_fail(TN_E_INVALID, "tn_session_state_size: NULL argument");
    *size = (size_t)header_for(s, seq).size;
    return TN_OK;
}

/* Reads the rows of the state's cells from a cache tensor, adjacent ones together. */
static tn_status read_state_rows(const tn_tensor *t, const tn__cells *c, int32_t seq, char **to) {
    for (int32_t i = 0; i < c->end;) {
        int32_t end = i;
        while (end < c->end && in_state(c, end, seq)) end++;
        size_t bytes = (size_t)(end - i) * t->nb[1];
        if (bytes) TN_TRY(tn_tensor_get_at(t, *to, (size_t)i * t->nb[1], bytes));
        *to += bytes;
        i = end + 1;
    }
    return TN_OK;
}

tn_status tn_session_state_get(tn_session *s, int32_t seq, void *to, size_t size) {
    TN_TRY(check_state_args(s, seq));
    state_header h = header_for(s, seq);
    if (!to || size < h.size)
        return tn_fail(TN_E_INVALID, "the state needs %llu bytes, %zu were given", (unsigned long long)h.size, size);
    char *p = to;
    memcpy(p, &h, sizeof h);
    p += sizeof h;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__cells *c = &s->plan->kv.groups[g];
        size_t row = (1 + h.words) * sizeof(int32_t);
        for (int32_t i = 0; c->n && i < c->end; i++) {
            if (!in_state(c, i, seq)) continue;
            memcpy(p, tn__cell_meta(c, i), row);
            p += row;
        }
    }
    for (int32_t i = 0; i < s->plan->kv.n_layer; i++) {
        const tn__kv_layer *l = &s->plan->kv.layers[i];
        TN_TRY(read_state_rows(l->k, &s->plan->kv.groups[l->group], seq, &p));
        TN_TRY(read_state_rows(l->v, &s->plan->kv.groups[l->group], seq, &p));
    }
    uint64_t sum = tn__hash_bytes(to, (size_t)(p - (char *)to), 0);
    memcpy(p, &sum, sizeof sum);
    return TN_OK;
}

/* Whether a cell's sequence words name at least one sequence and none past the last. */
static bool known_owners(const char *words, uint32_t n_words, int32_t n_seqs) {
    bool any = false;
    for (uint32_t w = 0; w < n_words; w++) {
        uint32_t bits, known = n_seqs - (int32_t)(32 * w) >= 32 ? ~0u : (1u << (n_seqs % 32)) - 1;
        memcpy(&bits, words + w * sizeof bits, sizeof bits);
        if (bits & ~known) return false;
        any = any || bits;
    }
    return any;
}

/* Checks everything about a state before the cache changes. */
static tn_status check_state(const tn_session *s, int32_t seq, const char *from, size_t size, state_header *h) {
    if (size < sizeof *h + sizeof(uint64_t)) return tn_fail(TN_E_FORMAT, "a state of %zu bytes is too short", size);
    memcpy(h, from, sizeof *h);
    if (memcmp(h->magic, state_magic, sizeof state_magic) != 0) return tn_fail(TN_E_FORMAT, "not a session state");
    if (h->version != STATE_VERSION)
        return tn_fail(TN_E_VERSION, "the state has version %u, this program reads %d", h->version, STATE_VERSION);
    if (h->size != size)
        return tn_fail(TN_E_FORMAT, "the state says it has %llu bytes, there are %zu", (unsigned long long)h->size,
                       size);
    uint64_t sum;
    memcpy(&sum, from + size - sizeof sum, sizeof sum);
    if (sum != tn__hash_bytes(from, size - sizeof sum, 0))
        return tn_fail(TN_E_CHECKSUM, "the state is damaged: its checksum does not match");
    if (h->identity != s->plan->model->identity || h->n_layer != (uint32_t)s->plan->kv.n_layer)
        return tn_fail(TN_E_STATE, "the state belongs to another model");
    if (h->type_k != (uint32_t)s->plan->params.cache_k || h->type_v != (uint32_t)s->plan->params.cache_v)
        return tn_fail(TN_E_STATE, "the state's cache is %s/%s, the session's %s/%s",
                       tn_type_name((tn_type)h->type_k), tn_type_name((tn_type)h->type_v),
                       tn_type_name(s->plan->params.cache_k), tn_type_name(s->plan->params.cache_v));
    if ((seq < 0) != (h->seq < 0))
        return tn_fail(TN_E_STATE, "the state holds %s",
                       h->seq < 0 ? "all sequences: load it with sequence -1"
                                  : "one sequence: name the one to load it into");
    if (seq < 0 && h->words != (uint32_t)((s->plan->kv.n_seqs + 31) / 32))
        return tn_fail(TN_E_STATE, "the state has a different number of sequences");
    if (h->words == 0 || h->words > 1 << 16)
        return tn_fail(TN_E_FORMAT, "the state has %u words of sequences", h->words);
    uint64_t expected = sizeof *h + sizeof sum;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__cells *c = &s->plan->kv.groups[g];
        int32_t ours = 0;
        for (int32_t i = 0; c->n && i < c->end; i++) ours += becomes_free(c, i, seq);
        if (h->counts[g] && (!c->n || (int64_t)h->counts[g] > c->n - c->used + ours))
            return tn_fail(TN_E_FULL, "the state needs %u cells, %d are free", h->counts[g], c->n - c->used + ours);
        expected += (uint64_t)h->counts[g] * (1 + h->words) * sizeof(int32_t);
    }
    for (int32_t i = 0; i < s->plan->kv.n_layer; i++) {
        const tn__kv_layer *l = &s->plan->kv.layers[i];
        expected += (uint64_t)h->counts[l->group] * (l->k->nb[1] + l->v->nb[1]);
    }
    if (expected != size)
        return tn_fail(TN_E_FORMAT, "the state should have %llu bytes, it has %zu", (unsigned long long)expected,
                       size);
    const char *p = from + sizeof *h;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        for (uint32_t i = 0; i < h->counts[g]; i++, p += (1 + h->words) * sizeof(int32_t)) {
            int32_t position;
            memcpy(&position, p, sizeof position);
            if (position < 0) return tn_fail(TN_E_FORMAT, "the state has a cell at position %d", position);
            if (seq < 0 && !known_owners(p + sizeof position, h->words, s->plan->kv.n_seqs))
                return tn_fail(TN_E_FORMAT,
                               "the state has a cell without a sequence, or with one that the session does not have");
        }
    }
    return TN_OK;
}

static tn_status write_state_rows(tn_tensor *t, const int32_t *cells, uint32_t n, const char **from) {
    for (uint32_t i = 0; i < n;) {
        uint32_t end = i + 1;
        while (end < n && cells[end] == cells[end - 1] + 1) end++;
        size_t bytes = (size_t)(end - i) * t->nb[1];
        TN_TRY(tn_tensor_set_at(t, *from, (size_t)cells[i] * t->nb[1], bytes));
        *from += bytes;
        i = end;
    }
    return TN_OK;
}

tn_status tn_session_state_set(tn_session *s, int32_t seq, const void *from, size_t size) {
    TN_TRY(check_state_args(s, seq));
    if (!from) return tn_fail(TN_E_INVALID, "tn_session_state_set: NULL argument");
    state_header h;
    TN_TRY(check_state(s, seq, from, size, &h));
    uint32_t most = TN__MAX(h.counts[0], h.counts[1]);
    int32_t *cells = tn_malloc(TN__CACHE_GROUPS * (size_t)most * sizeof *cells + 1);
    if (!cells) return TN_E_NOMEM;
    tn__queued_step_cancel(s);
    tn_status status = tn_session_seq_remove(s, seq, 0, -1);
    const char *p = (const char *)from + sizeof h;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &s->plan->kv.groups[g];
        int32_t cell = 0;
        for (uint32_t i = 0; i < h.counts[g]; i++, cell++, p += (1 + h.words) * sizeof(int32_t)) {
            while (tn__cell_meta(c, cell)[0] >= 0) cell++;
            int32_t *meta = tn__cell_meta(c, cell);
            if (seq < 0) {
                memcpy(meta, p, (1 + h.words) * sizeof(int32_t));
            } else {
                memcpy(meta, p, sizeof(int32_t));
                meta[1 + seq / 32] |= (int32_t)(1u << (seq % 32));
            }
            cells[(size_t)g * most + i] = cell;
            c->used++;
            c->end = TN__MAX(c->end, cell + 1);
            tn__cells_touch(c, cell);
        }
    }
    for (int32_t i = 0; i < s->plan->kv.n_layer && status == TN_OK; i++) {
        const tn__kv_layer *l = &s->plan->kv.layers[i];
        const int32_t *list = cells + (size_t)l->group * most;
        status = write_state_rows(l->k, list, h.counts[l->group], &p);
        if (status == TN_OK) status = write_state_rows(l->v, list, h.counts[l->group], &p);
    }
    tn_free(cells);
    /* No part of a state stays. */
    if (status != TN_OK) (void)tn_session_seq_remove(s, seq, 0, -1);
    return status;
}

/* ---- Files ---- */

static tn_status write_state_file(int file, const char *bytes, size_t size, const char *path) {
    while (size) {
        ssize_t n = write(file, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return tn_fail(TN_E_IO, "%s cannot be written: %s", path, strerror(errno));
        bytes += n;
        size -= (size_t)n;
    }
    return TN_OK;
}

tn_status tn_session_save(tn_session *s, int32_t seq, const char *path) {
    size_t size;
    if (!path) return tn_fail(TN_E_INVALID, "tn_session_save: NULL argument");
    TN_TRY(tn_session_state_size(s, seq, &size));
    size_t length = strlen(path) + 32;
    char *bytes = tn_malloc(size), *temporary = tn_malloc(length);
    tn_status status = bytes && temporary ? tn_session_state_get(s, seq, bytes, size) : TN_E_NOMEM;
    if (status == TN_OK) {
        snprintf(temporary, length, "%s.%ld.partial", path, (long)getpid());
        int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (file < 0) {
            status = tn_fail(TN_E_IO, "%s cannot be made: %s", temporary, strerror(errno));
        } else {
            status = write_state_file(file, bytes, size, temporary);
            if (status == TN_OK && fsync(file) != 0)
                status = tn_fail(TN_E_IO, "%s cannot be written: %s", temporary, strerror(errno));
            if (close(file) != 0 && status == TN_OK)
                status = tn_fail(TN_E_IO, "%s cannot be written: %s", temporary, strerror(errno));
            if (status == TN_OK && rename(temporary, path) != 0)
                status = tn_fail(TN_E_IO, "%s cannot be renamed to %s: %s", temporary, path, strerror(errno));
            if (status != TN_OK) unlink(temporary);
        }
    }
    tn_free(temporary);
    tn_free(bytes);
    return status;
}

tn_status tn_session_load(tn_session *s, int32_t seq, const char *path) {
    if (!s || !path) return tn_fail(TN_E_INVALID, "tn_session_load: NULL argument");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return tn_fail(TN_E_IO, "%s cannot be opened: %s", path, strerror(errno));
    struct stat info;
    tn_status status = TN_OK;
    char *bytes = NULL;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode))
        status = tn_fail(TN_E_IO, "%s is not a regular file", path);
    size_t size = status == TN_OK ? (size_t)info.st_size : 0;
    if (status == TN_OK && !(bytes = tn_malloc(size))) status = TN_E_NOMEM;
    for (size_t done = 0; status == TN_OK && done < size;) {
        ssize_t n = read(file, bytes + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            status = tn_fail(TN_E_IO, "%s cannot be read: %s", path, n < 0 ? strerror(errno) : "it became shorter");
        else
            done += (size_t)n;
    }
    close(file);
    if (status == TN_OK) status = tn_session_state_set(s, seq, bytes, size);
    if (status != TN_OK) tn_fail_more(status, " (%s)", path);
    tn_free(bytes);
    return status;
}

/* Saving and loading the KV cache: one sequence or all, with checksum and the model's identity.
 *
 * Layout (native byte order, little-endian on every machine this runs on): a header; for each group and each saved
 * sequence the number of its runs and the runs, whose cells are numbered within the state; for each layer the K rows,
 * then the V rows of the group's cells; at the end a checksum of everything before it. A cell that several sequences
 * see is saved once. Page sizes may differ between the session that saves and the one that loads. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/output_path.h"

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
    uint32_t cache;     /* tn__cache_key */
    uint32_t recurrent; /* recurrent states */
    int32_t seq;        /* -1: all */
    int32_t n_seqs;     /* saved */
    uint32_t cells[TN__CACHE_GROUPS], runs[TN__CACHE_GROUPS];
    uint64_t size;     /* of the whole state */
    uint64_t adapters; /* of its sequences, and control vectors; 0: none */
} state_header;
_Static_assert(sizeof(state_header) == 72, "no padding: the bytes are written as they are");

static const char state_magic[8] = "TNSTATE";
enum { STATE_VERSION = 3 };

static tn_status check_state_args(const tn_session *s, int32_t seq) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    if (seq < -1 || seq >= s->plan->kv.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    if (s->notes.bytes)
        return tn_fail(TN_E_UNSUPPORTED,
                       "states of a session of several ranks cannot be saved or loaded: use one rank");
    return TN_OK;
}

/* ---- Cells of a state ---- */

/* Whether the state of `seq` (-1: of all) holds sequence i. */
static bool in_state(int32_t seq, int32_t i) { return seq < 0 || i == seq; }

static uint64_t layer_row_bytes(const tn_session *s, int32_t layer) {
    uint64_t bytes = 0;
    for (int i = 0; i < TN__CELL_TENSORS; i++) {
        const tn_tensor *t = tn__kv_layer_tensor(&s->plan->kv, layer, i);
        bytes += t ? t->nb[1] : 0;
    }
    return bytes;
}

/* A recurrent state in a saved state: its header, then its row of every layer. */
typedef struct saved_recurrence {
    int32_t seq, n; /* the sequence within the saved state, and the tokens covered */
} saved_recurrence;

static uint64_t recurrence_bytes(const tn_session *s) {
    uint64_t bytes = sizeof(saved_recurrence);
    for (int32_t layer = 0; layer < s->plan->kv.n_layer; layer++)
        for (int i = 0; i < TN__STATE_TENSORS; i++) {
            const tn_tensor *t = s->plan->kv.layers[layer].state[i];
            bytes += t ? t->nb[1] : 0;
        }
    return bytes;
}

/* The size that a state with these numbers of cells and runs has. */
static uint64_t state_bytes(const tn_session *s, const state_header *h) {
    uint64_t size = sizeof *h + sizeof(uint64_t);
    for (int g = 0; g < TN__CACHE_GROUPS; g++)
        size += (uint64_t)h->n_seqs * sizeof(uint32_t) + (uint64_t)h->runs[g] * sizeof(tn_page_run);
    for (int32_t i = 0; i < s->plan->kv.n_layer; i++)
        size += (uint64_t)h->cells[s->plan->kv.layers[i].group] * layer_row_bytes(s, i);
    return size + (uint64_t)h->recurrent * recurrence_bytes(s);
}

/* Identifies the adapters and control vectors that computed the cells. */
static uint64_t state_adapters(const tn_session *s, int32_t seq) {
    uint64_t h = tn__controls_hash(&s->plan->params);
    for (int32_t i = 0; i < s->plan->kv.n_seqs; i++) {
        const uint64_t adapters = in_state(seq, i) ? tn__sequence_adapters_hash(s, i) : 0;
        if (adapters) h = tn__hash_combine(h, seq < 0 ? adapters + (uint64_t)i : adapters);
    }
    return h;
}

/* Numbers the cells of the state: those that its sequences see. */
static state_header header_for(const tn_session *s, int32_t seq) {
    state_header header = {.version = STATE_VERSION,
                           .n_layer = (uint32_t)s->plan->kv.n_layer,
                           .identity = s->plan->model->identity,
                           .cache = tn__cache_key(&s->plan->params),
                           .adapters = state_adapters(s, seq),
                           .seq = seq,
                           .n_seqs = seq < 0 ? s->plan->kv.n_seqs : 1};
    memcpy(header.magic, state_magic, sizeof state_magic);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &s->plan->kv.groups[g];
        if (!t->n_pages) continue;
        header.cells[g] = (uint32_t)tn__pages_number(t, TN__MAX(seq, 0), seq < 0 ? t->n_seqs : seq + 1);
        for (int32_t i = 0; i < t->n_seqs; i++)
            if (in_state(seq, i)) header.runs[g] += (uint32_t)t->sequences[i].n;
    }
    for (int32_t i = 0; i < s->plan->kv.n_seqs; i++)
        header.recurrent += in_state(seq, i) && tn__recurrent_tokens(&s->plan->kv.states, i) > 0;
    header.size = state_bytes(s, &header);
    return header;
}

tn_status tn_session_state_size(tn_session *s, int32_t seq, size_t *size) {
    TN_TRY(check_state_args(s, seq));
    if (!size) return tn_fail(TN_E_INVALID, "tn_session_state_size: NULL argument");
    *size = (size_t)header_for(s, seq).size;
    return TN_OK;
}

/* ---- Saving ---- */

static char *put_runs(const tn_session *s, int group, int32_t seq, char *p) {
    const tn__page_table *t = &s->plan->kv.groups[group];
    for (int32_t i = 0; i < s->plan->kv.n_seqs; i++) {
        if (!in_state(seq, i)) continue;
        const uint32_t n = t->n_pages ? (uint32_t)t->sequences[i].n : 0;
        memcpy(p, &n, sizeof n);
        p += sizeof n;
        for (uint32_t k = 0; k < n; k++, p += sizeof(tn_page_run)) {
            tn_page_run run = tn__page_run_at(t, i, (int32_t)k);
            run.cell = t->numbers[run.cell]; /* a run's cells are adjacent in the state, too */
            memcpy(p, &run, sizeof run);
        }
    }
    return p;
}

/* Reads the rows of the state's cells from a cache tensor, adjacent ones together. */
static tn_status read_state_rows(tn_session *s, const tn_tensor *t, const int32_t *numbers, char **to) {
    const int32_t cells = (int32_t)t->ne[1];
    for (int32_t i = 0; i < cells;) {
        int32_t end = i;
        while (end < cells && numbers[end] >= 0) end++;
        size_t bytes = (size_t)(end - i) * t->nb[1];
        if (bytes) {
            TN_TRY(tn_sched_check_abort(s->plan->sched));
            TN_TRY(tn_tensor_get_at(t, *to, (size_t)i * t->nb[1], bytes));
        }
        *to += bytes;
        i = end + 1;
    }
    return TN_OK;
}

static tn_status read_recurrences(tn_session *s, int32_t seq, char **to) {
    const tn__kv *kv = &s->plan->kv;
    for (int32_t i = 0; kv->states.n_rows && i < kv->n_seqs; i++) {
        const saved_recurrence head = {seq < 0 ? i : 0, tn__recurrent_tokens(&kv->states, i)};
        if (!in_state(seq, i) || head.n <= 0) continue;
        memcpy(*to, &head, sizeof head);
        *to += sizeof head;
        for (int32_t k = 0; k < TN__STATE_TENSORS * kv->n_layer; k++) {
            const tn_tensor *t = kv->layers[k / TN__STATE_TENSORS].state[k % TN__STATE_TENSORS];
            if (!t) continue;
            TN_TRY(tn_sched_check_abort(s->plan->sched));
            TN_TRY(tn_tensor_get_at(t, *to, (size_t)kv->states.owners[i].row * t->nb[1], t->nb[1]));
            *to += t->nb[1];
        }
    }
    return TN_OK;
}

tn_status tn_session_state_get(tn_session *s, int32_t seq, void *to, size_t size) {
    TN_TRY(check_state_args(s, seq));
    const state_header h = header_for(s, seq);
    if (!to || size < h.size)
        return tn_fail(TN_E_INVALID, "the state needs %llu bytes, %zu were given", (unsigned long long)h.size, size);
    char *p = to;
    memcpy(p, &h, sizeof h);
    p += sizeof h;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) p = put_runs(s, g, seq, p);
    for (int32_t i = 0; i < s->plan->kv.n_layer; i++) {
        const tn__kv_layer *l = &s->plan->kv.layers[i];
        const int32_t *numbers = s->plan->kv.groups[l->group].numbers;
        for (int k = 0; k < TN__CELL_TENSORS; k++) {
            const tn_tensor *t = tn__kv_layer_tensor(&s->plan->kv, i, k);
            if (t) TN_TRY(read_state_rows(s, t, numbers, &p));
        }
    }
    TN_TRY(read_recurrences(s, seq, &p));
    uint64_t sum = tn__hash_bytes(to, (size_t)(p - (char *)to), 0);
    memcpy(p, &sum, sizeof sum);
    return TN_OK;
}

/* ---- Loading ---- */

static tn_status check_state_header(const tn_session *s, int32_t seq, const char *from, size_t size,
                                    state_header *h) {
    if (size < sizeof *h + sizeof(uint64_t)) return tn_fail(TN_E_FORMAT, "a state of %zu bytes is too short", size);
    memcpy(h, from, sizeof *h);
    if (memcmp(h->magic, state_magic, sizeof state_magic) != 0) return tn_fail(TN_E_FORMAT, "not a session state");
    if (h->version != STATE_VERSION)
        return tn_fail(TN_E_VERSION, "the state has version %u, this program reads %d", h->version, STATE_VERSION);
    if (h->size != size)
        return tn_fail(TN_E_FORMAT, "the state should have %llu bytes according to its header, it has %zu",
                       (unsigned long long)h->size, size);
    uint64_t sum;
    memcpy(&sum, from + size - sizeof sum, sizeof sum);
    if (sum != tn__hash_bytes(from, size - sizeof sum, 0))
        return tn_fail(TN_E_CHECKSUM, "the state is damaged: its checksum does not match");
    if (h->identity != s->plan->model->identity || h->n_layer != (uint32_t)s->plan->kv.n_layer)
        return tn_fail(TN_E_STATE, "the state belongs to another model");
    if (h->cache != tn__cache_key(&s->plan->params))
        return tn_fail(TN_E_STATE,
                       "the state's cache is %s/%s, the session's %s/%s, or layers with a window or the "
                       "rotation differ",
                       tn_type_name((tn_type)(h->cache & 127)), tn_type_name((tn_type)(h->cache >> 7 & 127)),
                       tn_type_name(s->plan->params.cache_k), tn_type_name(s->plan->params.cache_v));
    if ((seq < 0) == (h->seq < 0) && h->adapters != state_adapters(s, seq))
        return tn_fail(TN_E_STATE,
                       "the state was computed with other adapters, scales or control vectors than %s has",
                       seq < 0 ? "the session" : "the sequence");
    if ((seq < 0) != (h->seq < 0))
        return tn_fail(TN_E_STATE, "the state holds %s",
                       h->seq < 0 ? "all sequences: load it with sequence -1"
                                  : "one sequence: name the one to load it into");
    if (h->recurrent > (s->plan->kv.states.n_rows ? (uint32_t)h->n_seqs : 0))
        return tn_fail(TN_E_FORMAT, "the state has %u recurrent states for %d sequences", h->recurrent, h->n_seqs);
    if (h->n_seqs != (seq < 0 ? s->plan->kv.n_seqs : 1))
        return tn_fail(TN_E_STATE, "the state has %d sequences, the session %d", h->n_seqs, s->plan->kv.n_seqs);
    if (state_bytes(s, h) != size)
        return tn_fail(TN_E_FORMAT, "the state should have %llu bytes, it has %zu",
                       (unsigned long long)state_bytes(s, h), size);
    return TN_OK;
}

static tn_status check_state_run(const state_header *h, int group, tn_page_run run) {
    if (run.count < 1 || run.cell < 0 || (int64_t)run.cell + run.count > (int64_t)h->cells[group])
        return tn_fail(TN_E_FORMAT, "the state has a run of cells %d to %lld of %u", run.cell,
                       (long long)run.cell + run.count - 1, h->cells[group]);
    if (run.divisor < 1 || run.first < 0 || run.first > INT32_MAX - run.count)
        return tn_fail(TN_E_FORMAT, "the state has a run at position %d, divided by %d", run.first, run.divisor);
    return TN_OK;
}

/* Converts a saved run: it is cut at the boundaries of this session's pages. */
static int32_t parts_of_run(const tn__page_table *t, tn_page_run run) {
    return (run.cell + run.count - 1) / t->page - run.cell / t->page + 1;
}

/* Checks the runs of a state, and that there are pages for its cells. */
static tn_status check_state_runs(const tn_session *s, int32_t seq, const char *from, const state_header *h) {
    const char *p = from + sizeof *h;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &s->plan->kv.groups[g];
        uint32_t total = 0;
        if ((h->cells[g] || h->runs[g]) && !t->n_pages)
            return tn_fail(TN_E_STATE, "the state has %u cells in a group of layers that the session does not have",
                           h->cells[g]);
        for (int32_t i = 0; i < h->n_seqs; i++) {
            uint32_t n;
            int64_t parts = 0;
            memcpy(&n, p, sizeof n);
            p += sizeof n;
            if (n > h->runs[g] - total)
                return tn_fail(TN_E_FORMAT, "the state has more runs than its header says: %u of %u", n, h->runs[g]);
            total += n;
            for (uint32_t k = 0; k < n; k++, p += sizeof(tn_page_run)) {
                tn_page_run run;
                memcpy(&run, p, sizeof run);
                TN_TRY(check_state_run(h, g, run));
                parts += parts_of_run(t, run);
            }
            if (parts > t->max_runs)
                return tn_fail(TN_E_FULL, "a sequence of the state has %lld runs, the session has room for %d",
                               (long long)parts, t->max_runs);
        }
        if (total != h->runs[g])
            return tn_fail(TN_E_FORMAT, "the state has %u runs, its header says %u", total, h->runs[g]);
        if (!t->n_pages) continue;
        const int64_t pages = ((int64_t)h->cells[g] + t->page - 1) / t->page;
        const int32_t free = t->n_free + tn__pages_freed_by(t, TN__MAX(seq, 0), seq < 0 ? t->n_seqs : seq + 1);
        if (pages > free)
            return tn_fail(TN_E_FULL, "the state needs %lld pages of %d cells, %d are free", (long long)pages,
                           t->page, free);
    }
    return TN_OK;
}

/* Gives the runs to the sequences. *p: the runs of this group. */
static tn_status give_state_runs(tn_session *s, int group, int32_t seq, const state_header *h, int32_t *pages,
                                 const char **p) {
    tn__page_table *t = &s->plan->kv.groups[group];
    for (int32_t i = 0; i < h->n_seqs; i++) {
        uint32_t n;
        memcpy(&n, *p, sizeof n);
        *p += sizeof n;
        for (uint32_t k = 0; k < n; k++, *p += sizeof(tn_page_run)) {
            tn_page_run run;
            memcpy(&run, *p, sizeof run);
            while (run.count > 0) {
                const int32_t offset = run.cell % t->page, count = TN__MIN(run.count, t->page - offset);
                const tn_page_run part = {pages[run.cell / t->page] * t->page + offset, count, run.first,
                                          run.divisor};
                TN_TRY(tn__pages_append(t, seq < 0 ? i : seq, part));
                run.cell += count;
                run.first += count;
                run.count -= count;
            }
        }
    }
    return TN_OK;
}

static tn_status write_state_rows(tn_session *s, tn_tensor *t, int32_t page, const int32_t *pages, uint32_t n,
                                  const char **from) {
    for (uint32_t i = 0, count; i < n; i += count) {
        count = TN__MIN((uint32_t)page, n - i);
        const size_t cell = (size_t)pages[i / (uint32_t)page] * (size_t)page;
        TN_TRY(tn_sched_check_abort(s->plan->sched));
        TN_TRY(tn_tensor_set_at(t, *from, cell * t->nb[1], count * t->nb[1]));
        *from += count * t->nb[1];
    }
    return TN_OK;
}

static tn_status write_recurrences(tn_session *s, int32_t seq, const state_header *h, const char **from) {
    tn__kv *kv = &s->plan->kv;
    for (uint32_t i = 0; i < h->recurrent; i++) {
        saved_recurrence head;
        memcpy(&head, *from, sizeof head);
        *from += sizeof head;
        const int32_t target = seq < 0 ? head.seq : seq;
        if (head.seq < 0 || head.seq >= h->n_seqs || head.n != tn_session_seq_last(s, target) + 1)
            return tn_fail(TN_E_FORMAT, "the state has a recurrent state of %d tokens for sequence %d", head.n,
                           head.seq);
        int32_t row;
        while ((row = tn__recurrent_set(&kv->states, target, head.n)) < 0 && tn__prefixes_make_room(s)) {}
        if (row < 0) return tn_fail(TN_E_FULL, "all %d recurrent states are in use", kv->states.n_rows);
        for (int32_t k = 0; k < TN__STATE_TENSORS * kv->n_layer; k++) {
            tn_tensor *t = kv->layers[k / TN__STATE_TENSORS].state[k % TN__STATE_TENSORS];
            if (!t) continue;
            TN_TRY(tn_sched_check_abort(s->plan->sched));
            TN_TRY(tn_tensor_set_at(t, *from, (size_t)row * t->nb[1], t->nb[1]));
            *from += t->nb[1];
        }
    }
    return TN_OK;
}

tn_status tn_session_state_set(tn_session *s, int32_t seq, const void *from, size_t size) {
    TN_TRY(check_state_args(s, seq));
    if (!from) return tn_fail(TN_E_INVALID, "tn_session_state_set: NULL argument");
    state_header h;
    TN_TRY(check_state_header(s, seq, from, size, &h));
    tn_status status;
    do status = check_state_runs(s, seq, from, &h);
    while (status == TN_E_FULL && tn__prefixes_evict(s));
    TN_TRY(status);
    int32_t *pages[TN__CACHE_GROUPS] = {0};
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        pages[g] = tn_malloc(((size_t)s->plan->kv.groups[g].n_pages + 1) * sizeof *pages[g]);
        if (!pages[g]) status = TN_E_NOMEM;
    }
    const char *p = (const char *)from + sizeof h;
    if (status == TN_OK) {
        tn__queued_step_cancel(s);
        status = tn_session_seq_remove(s, seq, 0, -1);
        for (int g = 0; g < TN__CACHE_GROUPS && status == TN_OK; g++) {
            tn__page_table *t = &s->plan->kv.groups[g];
            const int32_t n = t->n_pages ? (int32_t)((h.cells[g] + (int64_t)t->page - 1) / t->page) : 0;
            for (int32_t i = 0; i < n; i++) pages[g][i] = tn__pages_new(t);
            status = give_state_runs(s, g, seq, &h, pages[g], &p);
            for (int32_t i = 0; i < n; i++)
                tn__pages_give_back(t, pages[g][i]); /* no sequence of the state sees it */
        }
        for (int32_t i = 0; i < s->plan->kv.n_layer && status == TN_OK; i++) {
            const tn__kv_layer *l = &s->plan->kv.layers[i];
            const int32_t page = s->plan->kv.groups[l->group].page;
            for (int k = 0; k < TN__CELL_TENSORS && status == TN_OK; k++) {
                tn_tensor *t = tn__kv_layer_tensor(&s->plan->kv, i, k);
                if (t) status = write_state_rows(s, t, page, pages[l->group], h.cells[l->group], &p);
            }
        }
        if (status == TN_OK) status = write_recurrences(s, seq, &h, &p);
        /* Removes a partly loaded state. */
        if (status != TN_OK) (void)tn_session_seq_remove(s, seq, 0, -1);
    }
    for (int g = 0; g < TN__CACHE_GROUPS; g++) tn_free(pages[g]);
    return status;
}

/* ---- Files ---- */

static tn_status write_state_file(int file, const char *bytes, size_t size, const char *path) {
    while (size) {
        ssize_t n = write(file, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return tn_fail(TN_E_IO, "cannot write %s: %s", path, strerror(errno));
        bytes += n;
        size -= (size_t)n;
    }
    return TN_OK;
}

tn_status tn_session_save(tn_session *s, int32_t seq, const char *name) {
    size_t size;
    char *path;
    if (!name) return tn_fail(TN_E_INVALID, "tn_session_save: NULL argument");
    TN_TRY(tn_session_state_size(s, seq, &size));
    TN_TRY(tn__output_path(name, &path));
    size_t length = strlen(path) + 32;
    char *bytes = tn_malloc(size), *temporary = tn_malloc(length);
    tn_status status = bytes && temporary ? tn_session_state_get(s, seq, bytes, size) : TN_E_NOMEM;
    if (status == TN_OK) {
        snprintf(temporary, length, "%s.%ld.partial", path, (long)getpid());
        int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (file < 0) {
            status = tn_fail(TN_E_IO, "cannot create %s: %s", temporary, strerror(errno));
        } else {
            status = write_state_file(file, bytes, size, temporary);
            if (status == TN_OK && fsync(file) != 0)
                status = tn_fail(TN_E_IO, "cannot write %s: %s", temporary, strerror(errno));
            if (close(file) != 0 && status == TN_OK)
                status = tn_fail(TN_E_IO, "cannot write %s: %s", temporary, strerror(errno));
            if (status == TN_OK && rename(temporary, path) != 0)
                status = tn_fail(TN_E_IO, "cannot rename %s to %s: %s", temporary, path, strerror(errno));
            if (status != TN_OK) unlink(temporary);
        }
    }
    tn_free(temporary);
    tn_free(bytes);
    tn_free(path);
    return status;
}

tn_status tn_session_load(tn_session *s, int32_t seq, const char *path) {
    if (!s || !path) return tn_fail(TN_E_INVALID, "tn_session_load: NULL argument");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return tn_fail(TN_E_IO, "cannot open %s: %s", path, strerror(errno));
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
            status = tn_fail(TN_E_IO, "cannot read %s: %s", path, n < 0 ? strerror(errno) : "it became shorter");
        else
            done += (size_t)n;
    }
    close(file);
    if (status == TN_OK) status = tn_session_state_set(s, seq, bytes, size);
    if (status != TN_OK) tn_fail_more(status, " (%s)", path);
    tn_free(bytes);
    return status;
}

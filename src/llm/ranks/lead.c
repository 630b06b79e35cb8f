/* Notes from rank 0 to the other ranks, each a list of records. */
#include "llm/ranks/lead.h"

#include "base/checked.h"
#include "llm/session_internal.h"

#include <string.h>

typedef enum record_kind { RECORD_TABLE = 1, RECORD_INPUT, RECORD_RUN, RECORD_END } record_kind;
typedef struct note_record {
    uint32_t kind, number, size; /* group of the table, or the input; bytes that follow */
    uint32_t pad;
    uint64_t offset;
} note_record;
/* A note begins with the bytes of its records. */
enum { NOTE_HEAD = 8 };

/* Ranks with whole layers lag behind rank 0: their notes are messages with the inputs of a micro-batch. */
enum { LONG_NOTE = 64 << 10 };
static size_t note_room(const tn_session_plan *p) { return p->model->division.by_layers ? LONG_NOTE : TN_NET_NOTE; }

size_t tn__notes_bytes(const tn_session_plan *p) { return p->model->division.n_ranks > 1 ? note_room(p) : 0; }

tn_status tn__notes_new(const tn_session_plan *p, tn__notes *n) {
    if (!p->model->division.net) return TN_OK;
    *n = (tn__notes){
        .net = p->model->division.net, .bytes = tn_calloc(1, note_room(p)), .room = note_room(p), .used = NOTE_HEAD};
    return n->bytes ? TN_OK : TN_E_NOMEM;
}

/* ---- Leading ---- */

static tn_status send_note(tn__notes *n) {
    const uint64_t used = n->used;
    memcpy(n->bytes, &used, sizeof used);
    n->used = NOTE_HEAD;
    if (n->room == TN_NET_NOTE) return tn_net_note(n->net, n->bytes, TN_NET_NOTE);
    for (int r = 1; r < tn_net_size(n->net); r++) {
        TN_TRY(tn_net_send(n->net, r, &used, sizeof used));
        TN_TRY(tn_net_send(n->net, r, n->bytes, (size_t)used));
    }
    return TN_OK;
}

static tn_status receive_note(const tn__notes *n, uint64_t *used) {
    if (n->room == TN_NET_NOTE) {
        TN_TRY(tn_net_note(n->net, n->bytes, TN_NET_NOTE));
        memcpy(used, n->bytes, sizeof *used);
    } else {
        TN_TRY(tn_net_wait(n->net, 0, used, sizeof *used));
        if (*used <= n->room) TN_TRY(tn_net_receive(n->net, 0, n->bytes, (size_t)*used));
    }
    return *used <= n->room ? TN_OK : tn_fail(TN_E_FORMAT, "a note of rank 0 is damaged");
}

static tn_status append_record(tn__notes *n, note_record r, const void *data) {
    do {
        if (n->used + sizeof r + 64 > n->room) TN_TRY(send_note(n));
        note_record piece = r;
        piece.size = (uint32_t)TN__MIN(r.size, n->room - n->used - sizeof r);
        memcpy(n->bytes + n->used, &piece, sizeof piece);
        if (piece.size) memcpy(n->bytes + n->used + sizeof piece, data, piece.size);
        n->used += tn__align_up(sizeof piece + piece.size, 8);
        data = (const char *)data + piece.size;
        r.offset += piece.size;
        r.size -= piece.size;
    } while (r.size);
    return TN_OK;
}

void tn__notes_free(tn__notes *n) {
    if (n->bytes && tn_net_rank(n->net) == 0 && tn_net_status(n->net) == TN_OK) {
        n->used = NOTE_HEAD;
        if (append_record(n, (note_record){.kind = RECORD_END}, NULL) == TN_OK) (void)!send_note(n);
    }
    tn_free(n->bytes);
    *n = (tn__notes){0};
}

tn_status tn__lead_table(tn__notes *n, int group, size_t offset, const void *data, size_t size) {
    if (!n || !n->bytes) return TN_OK;
    return append_record(
        n, (note_record){.kind = RECORD_TABLE, .number = (uint32_t)group, .size = (uint32_t)size, .offset = offset},
        data);
}

tn_status tn__lead_run(tn_session *s, const tn__graph_set *set, void *const *values) {
    tn__notes *n = &s->notes;
    if (!n->bytes) return TN_OK;
    const tn_session_params *p = &s->plan->params;
    if (p->abort && p->abort(p->user)) return tn_fail(TN_E_ABORTED, "stopped by the abort callback");
    for (size_t i = 0; i < set->inputs.n; i++) {
        const tn__graph_input *input = &set->inputs.list[i];
        TN_TRY(append_record(
            n, (note_record){.kind = RECORD_INPUT, .number = (uint32_t)input->source, .size = (uint32_t)input->bytes},
            values[input->source]));
    }
    TN_TRY(append_record(n, (note_record){.kind = RECORD_RUN, .size = sizeof set->shape}, &set->shape));
    return send_note(n);
}

tn_status tn__lead_check(const tn_session *s, tn_status status) {
    const tn_net *net = s->plan->model->division.net;
    return net && status == TN_OK ? tn_net_status(net) : status;
}

/* ---- Following ---- */

static tn_status follow_table(tn_session *s, const note_record *r, const void *data) {
    const tn__kv *kv = &s->plan->kv;
    for (size_t d = 0; d < kv->n_devices && r->number < TN__CACHE_GROUPS; d++) {
        tn_tensor *to = kv->tables[r->number * kv->n_devices + d];
        if (to) TN_TRY(tn_tensor_set_at(to, data, r->offset, r->size));
    }
    return TN_OK;
}

static tn_status follow_run(tn_session *s, const void *data, size_t size) {
    tn_session_plan *p = s->plan;
    tn__shape shape;
    tn__graph_set *set;
    if (size != sizeof shape) return tn_fail(TN_E_FORMAT, "rank 0 requests an unknown graph");
    memcpy(&shape, data, sizeof shape);
    TN_TRY(tn__graph_for(p, shape, &set));
    if (!set->graph) return TN_OK;
    TN_TRY(tn_sched_alloc(p->sched, set->graph));
    TN_TRY(tn__inputs_set(&set->inputs, s->staging.values));
    return tn_sched_run(p->sched, set->graph);
}

static tn_status follow_record(tn_session *s, const note_record *r, const void *data, bool *ended) {
    switch ((record_kind)r->kind) {
    case RECORD_TABLE: return follow_table(s, r, data);
    case RECORD_INPUT:
        if (r->number >= TN__INPUT_COUNT) break;
        memcpy((char *)s->staging.values[r->number] + r->offset, data, r->size);
        return TN_OK;
    case RECORD_RUN: return follow_run(s, data, r->size);
    case RECORD_END: *ended = true; return TN_OK;
    }
    return tn_fail(TN_E_FORMAT, "rank 0 sent an unknown record (%u, %u)", r->kind, r->number);
}

static tn_status follow_note(tn_session *s, bool *ended) {
    const tn__notes *n = &s->notes;
    uint64_t used;
    TN_TRY(receive_note(n, &used));
    for (size_t at = NOTE_HEAD; at + sizeof(note_record) <= used && !*ended;) {
        note_record r;
        memcpy(&r, n->bytes + at, sizeof r);
        if (r.size > used - at - sizeof r) return tn_fail(TN_E_FORMAT, "a note of rank 0 is damaged");
        TN_TRY(follow_record(s, &r, n->bytes + at + sizeof r, ended));
        at += tn__align_up(sizeof r + r.size, 8);
    }
    return tn_net_status(n->net);
}

tn_status tn_session_follow(tn_session *s) {
    if (!s || !s->notes.bytes || tn_net_rank(s->notes.net) == 0)
        return tn_fail(TN_E_STATE, "tn_session_follow needs a session of a rank other than 0");
    bool ended = false;
    tn_status status = TN_OK;
    while (status == TN_OK && !ended) status = follow_note(s, &ended);
    return tn__ranks_fail(s->plan->model, status);
}

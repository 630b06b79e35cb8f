/* Running scheduled graphs: each split's copies, its program, and several runs in flight.
 *
 * A stream executes its work in order, so consecutive runs on one device need no synchronization. Memory that is
 * filled from outside the stream does. With one run in flight a copy is queued in the reader's stream. With several,
 * the writer fills the copy target of the next run while the reader still computes: it first waits for the event that
 * the last run with that target is over, and the reader waits for an event of the writer. */
#include "runtime/sched_internal.h"

#include <string.h>

/* ---- Eval callback ---- */

/* Runs nodes of a split as one program in the reserved scratch. A part of a split may need more scratch than the
 * whole, where a backend computes nodes together: it is halved until it fits. */
static tn_status run_piece(tn_sched *s, int stream, tn_tensor **nodes, size_t n) {
    tn_program *program;
    TN_TRY(tn_program_new(s->core->streams[stream], nodes, n, &program));
    size_t needed = tn_program_scratch(program);
    const tn_buffer *there = s->core->scratch[stream];
    tn_status status = TN_OK;
    if (needed > (there ? tn_buffer_size(there) : 0)) {
        if (n > 1) {
            tn_program_free(program);
            TN_TRY(run_piece(s, stream, nodes, n / 2));
            return run_piece(s, stream, nodes + n / 2, n - n / 2);
        }
        status = tn__sched_grow_scratch(s, stream, needed, nodes[0]->name);
    }
    if (status == TN_OK) status = tn_program_run(program, s->core->scratch[stream]);
    if (status == TN_OK) status = tn_stream_synchronize(s->core->streams[stream]);
    tn_program_free(program);
    return status;
}

/* Runs a split in pieces, stopping after every node whose result the caller asked for. */
static tn_status run_with_eval(tn_sched *s, const tn__schedule *schedule, const tn__split *split) {
    tn_tensor **nodes = schedule->work + split->first_node;
    size_t begin = 0;
    for (size_t i = 0; i < split->n_nodes; i++) nodes[i]->flags |= TN_FLAG_KEPT; /* another piece may read it */
    for (size_t i = 0; i < split->n_nodes; i++) {
        bool wanted = s->eval(s->eval_user, nodes[i], true);
        if (!wanted && i + 1 < split->n_nodes) continue;
        TN_TRY(run_piece(s, split->stream, nodes + begin, i + 1 - begin));
        if (wanted && !s->eval(s->eval_user, nodes[i], false))
            return tn_fail(TN_E_ABORTED, "stopped by the eval callback at '%s'", nodes[i]->name);
        begin = i + 1;
    }
    return TN_OK;
}

/* ---- Experts ---- */

/* Marks the experts that the node's ids name. The op itself rejects ids that are out of range. Ids are read once per
 * run: reading them waits for the stream that computes them. */
static tn_status mark_experts(tn_sched *s, tn__schedule *schedule, const tn__copy *copy) {
    const tn_tensor *ids = copy->ids;
    int64_t n_experts = copy->source->ne[2];
    if (schedule->marked == ids && schedule->marked_run == schedule->runs) return TN_OK;
    schedule->marked = NULL;
    for (size_t b = 0; b < s->core->n_streams; b++)
        if (ids->buffer && tn_buffer_get_type(ids->buffer) == s->core->types[b])
            TN_TRY(tn_stream_synchronize(s->core->streams[b]));
    TN_TRY(tn_tensor_get(ids, schedule->ids));
    memset(schedule->wanted, 0, (size_t)n_experts);
    for (int64_t row = 0; row < tn_nrows(ids); row++) {
        const char *at = (const char *)schedule->ids + (size_t)(row % ids->ne[1]) * ids->nb[1] +
                         (size_t)(row / ids->ne[1] % ids->ne[2]) * ids->nb[2] +
                         (size_t)(row / ids->ne[1] / ids->ne[2]) * ids->nb[3];
        for (int64_t k = 0; k < ids->ne[0]; k++) {
            int32_t id;
            memcpy(&id, at + (size_t)k * ids->nb[0], sizeof id);
            if (id >= 0 && id < n_experts) schedule->wanted[id] = 1;
        }
    }
    schedule->marked = ids;
    schedule->marked_run = schedule->runs;
    return TN_OK;
}

/* Queues copies of the matrices in use, adjacent ones in one copy. */
static tn_status copy_experts(tn_sched *s, tn__schedule *schedule, tn_stream *stream, const tn__copy *copy) {
    TN_TRY(mark_experts(s, schedule, copy));
    size_t n_experts = (size_t)copy->source->ne[2], bytes = copy->source->nb[2];
    for (size_t e = 0; e < n_experts;) {
        size_t end = e;
        while (end < n_experts && schedule->wanted[end]) end++;
        if (end > e)
            TN_TRY(tn_stream_set_async(stream, copy->target, (const char *)copy->source->data + e * bytes, e * bytes,
                                       (end - e) * bytes));
        s->stats.bytes_copied += (end - e) * bytes;
        e = end > e ? end : e + 1;
    }
    return TN_OK;
}

/* ---- Copies ---- */

/* Queues a split's copies in its own stream. */
static tn_status copy_in_order(tn_sched *s, tn__schedule *schedule, const tn__split *split) {
    tn_stream *stream = s->core->streams[split->stream];
    bool from_host = false;
    for (size_t c = 0; c < split->n_copies; c++) {
        const tn__copy *copy = &schedule->copies[split->first_copy + c];
        if (copy->ids) {
            TN_TRY(copy_experts(s, schedule, stream, copy));
            continue;
        }
        from_host = from_host || !tn_device_get_caps(tn_stream_device(s->core->streams[copy->from])).async;
        TN_TRY(tn_stream_copy_async(s->core->streams[copy->from], stream, copy->source, copy->target));
        s->stats.bytes_copied += tn_nbytes(copy->source);
    }
    if (!from_host || !tn_device_get_caps(tn_stream_device(stream)).async) return TN_OK;
    s->core->reads_host[split->stream] = true;
    return s->core->host_read[split->stream] ? tn_event_record(s->core->host_read[split->stream], stream) : TN_OK;
}

/* Fills the copy targets of one of several runs in flight; earlier runs may still compute with the other targets. */
static tn_status copy_in_flight(tn_sched *s, tn__schedule *schedule, const tn__split *split, size_t run) {
    tn_event *is_free = schedule->run_done[split->first_program + run];
    tn_stream *stream = s->core->streams[split->stream];
    bool host_waited = false;
    int pushing = -1; /* the stream that the last copy was queued in */
    for (size_t c = 0; c < split->n_copies; c++) {
        const tn__copy *copy = &schedule->copies[split->first_copy + c];
        if (copy->ids) {
            TN_TRY(copy_experts(s, schedule, stream, copy));
            continue;
        }
        tn_tensor *target = schedule->targets[copy->first_target + run];
        s->stats.bytes_copied += tn_nbytes(copy->source);
        /* A device pushes its results into another's memory, in the order of its own stream. */
        bool push = s->core->async[copy->from] && s->core->pushed[copy->from];
        if (push && pushing != copy->from) {
            if (pushing >= 0) TN_TRY(tn_event_record(s->core->pushed[pushing], s->core->streams[pushing]));
            if (pushing >= 0) TN_TRY(tn_event_wait(s->core->pushed[pushing], stream));
            TN_TRY(tn_event_wait(is_free, s->core->streams[copy->from]));
            pushing = copy->from;
        }
        if (push) {
            TN_TRY(tn_stream_copy_async(s->core->streams[copy->from], s->core->streams[copy->from], copy->source,
                                        target));
            continue;
        }
        if (!host_waited) TN_TRY(tn_event_synchronize(is_free));
        host_waited = true;
        TN_TRY(tn_stream_synchronize(s->core->streams[copy->from]));
        TN_TRY(tn_tensor_copy(copy->source, target));
    }
    if (pushing < 0) return TN_OK;
    TN_TRY(tn_event_record(s->core->pushed[pushing], s->core->streams[pushing]));
    return tn_event_wait(s->core->pushed[pushing], stream);
}

/* Before the host's memory changes: waits for devices that still copy out of it. */
static tn_status wait_for_host_reads(tn_sched *s) {
    for (size_t b = 0; b < s->core->n_streams; b++) {
        if (!s->core->reads_host[b]) continue;
        TN_TRY(s->core->host_read[b] ? tn_event_synchronize(s->core->host_read[b])
                                     : tn_stream_synchronize(s->core->streams[b]));
        s->core->reads_host[b] = false;
    }
    return TN_OK;
}

/* ---- Runs ---- */

tn_status tn_sched_check_abort(const tn_sched *s) {
    if (!s) return tn_fail(TN_E_INVALID, "tn_sched_check_abort: NULL argument");
    if (!s->core->abort || !s->core->abort(s->core->abort_user)) return TN_OK;
    return tn_fail(TN_E_ABORTED, "stopped by the abort callback");
}

/* Asked before every run and between splits. Streams ask on their own as well, within a program. */
static tn_status check_abort(const tn_sched *s, const tn__schedule *schedule, size_t split) {
    if (!s->core->abort || !s->core->abort(s->core->abort_user)) return TN_OK;
    return tn_fail(TN_E_ABORTED, "stopped by the abort callback before split %zu of %zu", split, schedule->n_splits);
}

static tn_status run_split(tn_sched *s, tn__schedule *schedule, const tn__split *split) {
    tn_stream *stream = s->core->streams[split->stream];
    size_t run = s->eval ? 0 : schedule->runs % split->n_in_flight;
    tn_program *program = schedule->programs[split->first_program + run];
    if (!tn_device_get_caps(tn_stream_device(stream)).async) TN_TRY(wait_for_host_reads(s));
    TN_TRY(split->n_in_flight > 1 ? copy_in_flight(s, schedule, split, run) : copy_in_order(s, schedule, split));
    TN_TRY(tn__prefetch_before(s, split));
    if (program)
        TN_TRY(s->eval ? run_with_eval(s, schedule, split)
                       : tn_program_run(program, s->core->scratch[split->stream]));
    TN_TRY(tn__prefetch_after(s, schedule, split, copy_experts));
    return split->n_in_flight > 1 ? tn_event_record(schedule->run_done[split->first_program + run], stream) : TN_OK;
}

/* Waits for all streams even when one fails: nothing may be left running. */
static tn_status wait_for_all(tn_sched *s) {
    tn_status first = TN_OK;
    char text[512] = "";
    for (size_t k = 0; k < 2 * s->core->n_streams; k++) {
        const size_t i = k / 2;
        tn_stream *stream = k % 2 ? s->core->prefetch[i].stream : s->core->streams[i];
        if (!stream) continue;
        tn_status status = tn_stream_synchronize(stream);
        s->core->reads_host[i] = false;
        if (status == TN_OK || first != TN_OK) continue;
        first = status;
        strncpy(text, tn_error(), sizeof text - 1);
    }
    return first == TN_OK ? TN_OK : tn_fail(first, "%s", text);
}

/* Nothing may be left running. Streams that stopped as well report the same, once: that is this abort. */
static void wait_after_abort(tn_sched *s) {
    char text[512] = "";
    strncpy(text, tn_error(), sizeof text - 1);
    (void)wait_for_all(s);
    tn_fail(TN_E_ABORTED, "%s", text);
}

tn_status tn_sched_run_async(tn_sched *s, tn_graph *graph) {
    if (!s || !graph) return tn_fail(TN_E_INVALID, "tn_sched_run: NULL argument");
    tn__schedule *schedule;
    TN_TRY(tn__sched_ready(s, graph, &schedule));
    uint64_t begin = tn_time_ns();
    /* Copy targets are filled while other runs compute. Other schedules use the same memory for other tensors. */
    if (schedule->pipelined && s->core->last_run != schedule) TN_TRY(tn_sched_synchronize(s));
    s->core->last_run = schedule;
    s->stats.runs++;
    tn_status status = TN_OK;
    for (size_t i = 0; i < schedule->n_splits && status == TN_OK; i++) {
        status = check_abort(s, schedule, i);
        if (status == TN_OK) status = run_split(s, schedule, &schedule->splits[i]);
    }
    schedule->runs++;
    if (status == TN_E_ABORTED) wait_after_abort(s);
    s->stats.submit_ns += tn_time_ns() - begin;
    return status;
}

tn_status tn_sched_synchronize(tn_sched *s) {
    if (!s) return tn_fail(TN_E_INVALID, "tn_sched_synchronize: NULL argument");
    tn__sched_take_turn(s);
    tn_status status = wait_for_all(s);
    if (status != TN_OK || s->deferred == TN_OK) return status;
    status = s->deferred;
    s->deferred = TN_OK;
    return tn_fail(status, "%s", s->deferred_text);
}

/* Work that another scheduler queued may still use the memory they share. If it fails, the other scheduler reports
 * that at its next synchronization. */
void tn__sched_take_turn(tn_sched *s) {
    tn_sched *other = s->core->last_user;
    s->core->last_user = s;
    if (!other || other == s) return;
    tn_status status = wait_for_all(s);
    if (status == TN_OK || other->deferred != TN_OK) return;
    other->deferred = status;
    strncpy(other->deferred_text, tn_error(), sizeof other->deferred_text - 1);
    tn_error_clear();
}

tn_status tn_sched_run(tn_sched *s, tn_graph *graph) {
    tn_status status = tn_sched_run_async(s, graph);
    if (status == TN_OK || !s) return status == TN_OK ? tn_sched_synchronize(s) : status;
    /* Work that was queued before the failure may still read the caller's memory. */
    char text[512] = "";
    strncpy(text, tn_error(), sizeof text - 1);
    (void)tn_sched_synchronize(s);
    return tn_fail(status, "%s", text);
}

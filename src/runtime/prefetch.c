/* Copies for the next split, filled while a split computes.
 *
 * Weights of experts that stay in host memory are copied to the device for every matrix multiplication that uses
 * them. The multiplications of a layer have the same expert ids, so once these are known, the matrices of the next
 * one are copied in a second stream of the device. Its copies begin when all work queued before the running program
 * is over, because their memory may have been in use by it, and the next program waits for them. The targets are
 * placed in the graph's order before the running split, so that its plan keeps them apart from everything that split
 * uses. */
#include "runtime/sched_internal.h"

bool tn__prefetch_possible(const tn_sched *s, int stream) {
    return stream >= 0 && s->core->async[stream] && s->n_in_flight <= 1;
}

tn_status tn__prefetch_open(tn__sched_core *c, int stream) {
    tn__prefetch *a = &c->prefetch[stream];
    tn_device *device = tn_stream_device(c->streams[stream]);
    const tn_stream_params params = {.n_threads = 1, .abort = c->abort, .abort_user = c->abort_user};
    if (!a->may_fill) TN_TRY(tn_event_new(device, &a->may_fill));
    if (!a->filled) TN_TRY(tn_event_new(device, &a->filled));
    return a->stream ? TN_OK : tn_stream_new(device, &params, &a->stream);
}

void tn__prefetch_free(tn__prefetch *a) {
    if (a->stream) tn_stream_free(a->stream);
    tn_event_free(a->may_fill);
    tn_event_free(a->filled);
}

tn_status tn__prefetch_before(tn_sched *s, const tn__split *split) {
    const tn__prefetch *a = &s->core->prefetch[split->stream];
    tn_stream *stream = s->core->streams[split->stream];
    if (split->waits_prefetch) TN_TRY(tn_event_wait(a->filled, stream));
    return split->n_prefetches ? tn_event_record(a->may_fill, stream) : TN_OK;
}

tn_status tn__prefetch_after(tn_sched *s, tn__schedule *schedule, const tn__split *split, tn__prefetch_fill_fn fill) {
    const tn__prefetch *a = &s->core->prefetch[split->stream];
    if (!split->n_prefetches) return TN_OK;
    TN_TRY(tn_event_wait(a->may_fill, a->stream));
    for (size_t c = 0; c < split->n_prefetches; c++)
        TN_TRY(fill(s, schedule, a->stream, &schedule->copies[split->first_copy + split->n_copies + c]));
    return tn_event_record(a->filled, a->stream);
}

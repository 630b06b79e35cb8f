/* Printing what a scheduled graph launches, split by split. */
#include "runtime/sched_internal.h"

static tn_status print_split(tn_sched *s, const tn__schedule *schedule, const tn__split *split, FILE *out) {
    tn_program *program = schedule->programs[split->first_program];
    const char *device = tn_device_name(tn_stream_device(s->core->streams[split->stream]));
    fprintf(out, "%s: %zu nodes\n", device, split->n_nodes);
    if (!program) return TN_OK;
    tn_status status = tn_program_print(program, s->core->scratch[split->stream], out);
    if (status != TN_E_UNSUPPORTED) return status;
    fprintf(out, "%s\n", tn_error());
    tn_error_clear();
    return TN_OK;
}

tn_status tn_sched_print_programs(tn_sched *s, tn_graph *graph, FILE *out) {
    if (!s || !graph || !out) return tn_fail(TN_E_INVALID, "tn_sched_print_programs: NULL argument");
    tn__schedule *schedule;
    TN_TRY(tn__sched_ready(s, graph, &schedule));
    for (size_t i = 0; i < schedule->n_splits; i++) TN_TRY(print_split(s, schedule, &schedule->splits[i], out));
    return ferror(out) ? tn_fail(TN_E_IO, "the programs cannot be written") : TN_OK;
}

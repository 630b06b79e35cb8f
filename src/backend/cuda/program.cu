// Programs: nodes compiled to a launch list once their addresses are known, run, and captured into CUDA graphs.
#include "backend/cuda/compile.cuh"
#include "backend/cuda/profile.cuh"

struct cuda_program {
    tn_program base;
    tn_tensor **nodes;
    size_t n_nodes;
    compiler *source;
    scratch_needs needs;
    launch_list list;
    launch_segment *segments; // of the list; their graphs are captured at the second run with the same addresses
    size_t n_segments;
    bool captured;
    scratch_table table; // of the persistent decode kernel
    // The scratch that the list was compiled for.
    char *scratch;
    size_t scratch_bytes;
    int runs; // since the addresses last changed
};
static cuda_stream *program_stream(const tn_program *program) { return (cuda_stream *)program->stream->impl; }

static void forget_launches(cuda_program *p) {
    for (size_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].graph) cudaGraphExecDestroy(p->segments[i].graph);
    tn_free(p->segments);
    p->segments = NULL;
    p->n_segments = 0;
    p->captured = false;
    p->runs = 0;
}
static void cuda_program_release(cuda_program *p) {
    compiler_free(p->source);
    launch_list_free(&p->list);
    tn_free(p->segments);
    tn_free(p->nodes);
    tn_free(p);
}

void cuda_program_free(tn_program *program) {
    cuda_program *p = (cuda_program *)program;
    cuda_program_moved(program);
    cuda_program_release(p);
}
void cuda_program_moved(tn_program *program) {
    cuda_stream *s = program_stream(program);
    cudaSetDevice(s->device->ordinal);
    cudaStreamSynchronize(s->stream); // a running graph must not be destroyed
    forget_launches((cuda_program *)program);
}

static tn_status cuda_program_init(cuda_program *p, cuda_stream *s, tn_tensor *const *nodes, size_t n_nodes) {
    p->nodes = (tn_tensor **)tn_malloc(n_nodes * sizeof *p->nodes);
    if (!p->nodes) return TN_E_NOMEM;
    if (n_nodes) memcpy(p->nodes, nodes, n_nodes * sizeof *p->nodes);
    p->n_nodes = n_nodes;
    TN_TRY(compiler_new(p->nodes, n_nodes, &s->device->description, &p->source));
    p->needs = compiler_scratch(p->source);
    p->base.scratch = p->needs.total;
    return TN_OK;
}
tn_status cuda_program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes, tn_program **program) {
    cuda_program *p = (cuda_program *)tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->base.stream = stream;
    tn_status status = cuda_program_init(p, (cuda_stream *)stream->impl, nodes, n_nodes);
    if (status != TN_OK) {
        cuda_program_release(p);
        return status;
    }
    *program = &p->base;
    return TN_OK;
}

static tn_status compile_program(cuda_program *p, const tn_buffer *scratch) {
    cuda_stream *s = program_stream(&p->base);
    compile_params params = {scratch ? (char *)scratch->base : NULL, NULL, profile_is_single(s->profile)};
    if (p->needs.table && scratch) params.table = scratch_slot(scratch, p->needs);
    TN_TRY(compiler_run(p->source, params, &p->list));
    p->table = compiler_table(p->source);
    p->table.at = params.table;
    p->table.id = p->table.bytes ? scratch_new_id() : 0;
    p->scratch = params.scratch;
    p->scratch_bytes = scratch ? scratch->size : 0;
    return TN_OK;
}

static tn_status capture_segment(cuda_program *p, cuda_stream *s, launch_segment *segment) {
    cudaGraph_t graph = NULL;
    CUDA_TRY(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    tn_status status = launch_records_run(p->list, segment->begin, segment->end, {s->stream, s->blas, false});
    cudaError_t error = cudaStreamEndCapture(s->stream, &graph);
    if (status == TN_OK) status = cuda_check(error, "capturing the graph");
    if (status == TN_OK)
        status = cuda_check(cudaGraphInstantiate(&segment->graph, graph, 0), "instantiating the graph");
    if (graph) cudaGraphDestroy(graph);
    if (status != TN_OK) segment->graph = NULL;
    return status;
}
static tn_status capture_program(cuda_program *p, cuda_stream *s) {
    for (size_t i = 0; i < p->n_segments; i++)
        if (!p->segments[i].graph) TN_TRY(capture_segment(p, s, &p->segments[i]));
    p->captured = true;
    return TN_OK;
}
// Launches of one node are timed together.
static tn_status run_timed(cuda_program *p, cuda_stream *s) {
    const launch_list &l = p->list;
    for (size_t i = 0, end = 0; i < l.n_records; i = end) {
        int lead = l.records[i].lead;
        TN_TRY(segment_begin(s));
        profile_begin(s->profile, s->stream);
        for (; end < l.n_records && l.records[end].lead == lead; end++)
            TN_TRY(launch_record_run(l, l.records[end], {s->stream, s->blas, true}));
        if (p->runs) profile_end(s->profile, s->stream, p->nodes[lead]); // the first run loads kernels
    }
    return TN_OK;
}
static tn_status run_segment(cuda_program *p, cuda_stream *s, const launch_segment &segment) {
    TN_TRY(segment_begin(s));
    if (segment.graph)
        CUDA_TRY(cudaGraphLaunch(segment.graph, s->stream));
    else
        TN_TRY(launch_records_run(p->list, segment.begin, segment.end, {s->stream, s->blas, true}));
    return segment_end(s, segment.ns);
}

// The first run launches one by one, in strict order, which also lets kernels and libraries load. The second is
// captured; all later ones replay. A graph begins when everything before it has ended, inputs too, so kernels inside
// it may read inputs early. Positions and lengths are read from device memory, so a token loop replays one graph.
tn_status cuda_program_run(tn_program *program, tn_buffer *scratch) {
    cuda_program *p = (cuda_program *)program;
    cuda_stream *s = program_stream(program);
    if (p->needs.total && (!scratch || scratch->type->ops != &cuda_buffer_type_ops))
        return tn_fail(TN_E_INVALID, "%s: scratch must be a buffer of the device's own memory",
                       s->device->device.name);
    if (!p->needs.total) scratch = NULL;
    TN_TRY(cuda_stream_catch_up(s));
    if (p->runs && scratch && (p->scratch != scratch->base || p->scratch_bytes != scratch->size))
        cuda_program_moved(program);
    if (p->runs == 0) {
        forget_launches(p);
        TN_TRY(compile_program(p, scratch));
        TN_TRY(segments_of(p->list, p->nodes, s->device->description, s->segment_ns, &p->segments, &p->n_segments));
    }
    if (!p->captured && p->runs >= 1 && !profile_is_single(s->profile)) TN_TRY(capture_program(p, s));
    TN_TRY(scratch_prepare(s, scratch, p->needs, p->table));
    if (s->profile && p->captured) profile_begin(s->profile, s->stream);
    if (profile_is_single(s->profile)) TN_TRY(run_timed(p, s));
    for (size_t i = 0; i < p->n_segments && !profile_is_single(s->profile); i++)
        TN_TRY(run_segment(p, s, p->segments[i]));
    if (s->profile && p->captured) profile_end(s->profile, s->stream, p->nodes[0]);
    p->runs++; // not after an abort: the kernels of later segments may not be loaded yet
    return TN_OK;
}

tn_status cuda_program_print(tn_program *program, tn_buffer *scratch, FILE *out) {
    cuda_program *p = (cuda_program *)program;
    if (!p->runs) TN_TRY(compile_program(p, scratch));
    return launch_list_print(p->list, p->nodes, out);
}

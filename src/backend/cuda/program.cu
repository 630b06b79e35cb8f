// Programs: nodes compiled to a launch list once their addresses are known, run, and captured into a CUDA graph.
#include "backend/cuda/compile.cuh"
#include "backend/cuda/profile.cuh"

struct cuda_program {
    tn_program base;
    tn_tensor **nodes;
    size_t n_nodes;
    compiler *source;
    char *step_memory; // on the device, for the persistent decode kernel; NULL without one
    launch_list list;
    cudaGraphExec_t graph; // captured at the second run with the same addresses; NULL before
    void *scratch;         // that the list was compiled for
    int runs;              // since the addresses last changed
};
static cuda_stream *program_stream(const tn_program *program) { return (cuda_stream *)program->stream->impl; }

static void forget_launches(cuda_program *p) {
    if (p->graph) cudaGraphExecDestroy(p->graph);
    p->graph = NULL;
    p->runs = 0;
}
static void cuda_program_release(cuda_program *p) {
    if (p->step_memory) cudaFree(p->step_memory);
    compiler_free(p->source);
    launch_list_free(&p->list);
    tn_free(p->nodes);
    tn_free(p);
}

void cuda_program_free(tn_program *program) {
    cuda_program *p = (cuda_program *)program;
    cuda_stream *s = program_stream(program);
    cudaSetDevice(s->device->ordinal);
    cudaStreamSynchronize(s->stream);
    forget_launches(p);
    cuda_program_release(p);
}
void cuda_program_moved(tn_program *program) {
    cuda_program *p = (cuda_program *)program;
    cuda_stream *s = program_stream(program);
    cudaSetDevice(s->device->ordinal);
    cudaStreamSynchronize(s->stream); // a running graph must not be destroyed
    forget_launches(p);
}

static tn_status cuda_program_init(cuda_program *p, cuda_stream *s, tn_tensor *const *nodes, size_t n_nodes) {
    p->nodes = (tn_tensor **)tn_malloc(n_nodes * sizeof *p->nodes);
    if (!p->nodes) return TN_E_NOMEM;
    if (n_nodes) memcpy(p->nodes, nodes, n_nodes * sizeof *p->nodes);
    p->n_nodes = n_nodes;
    TN_TRY(compiler_new(p->nodes, n_nodes, &s->device->description, &p->source));
    p->base.scratch = compiler_scratch(p->source);
    size_t bytes = compiler_step_bytes(p->source);
    if (!bytes) return TN_OK;
    CUDA_TRY(cudaSetDevice(s->device->ordinal));
    TN_TRY(cuda_check(cudaMalloc(&p->step_memory, bytes), "allocating steps"));
    return clear_now(p->step_memory, bytes);
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

static tn_status compile_program(cuda_program *p, char *scratch) {
    cuda_stream *s = program_stream(&p->base);
    compile_params params = {scratch, p->step_memory, s->tickets, profile_is_single(s->profile)};
    TN_TRY(compiler_run(p->source, params, &p->list));
    p->scratch = scratch;
    return TN_OK;
}
// The steps' host memory changes with the next compilation, so the copy must have ended before that.
static tn_status upload_steps(cuda_program *p, cuda_stream *s) {
    size_t bytes;
    const void *steps = compiler_steps(p->source, &bytes);
    if (!bytes) return TN_OK;
    CUDA_TRY(cudaMemcpyAsync(p->step_memory, steps, bytes, cudaMemcpyHostToDevice, s->stream));
    CUDA_TRY(cudaStreamSynchronize(s->stream));
    return TN_OK;
}

static tn_status capture_program(cuda_program *p, cuda_stream *s) {
    cudaGraph_t graph = NULL;
    CUDA_TRY(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    tn_status status = launch_list_run(p->list, {s->stream, s->blas, false});
    cudaError_t error = cudaStreamEndCapture(s->stream, &graph);
    if (status == TN_OK) status = cuda_check(error, "capturing the graph");
    if (status == TN_OK) status = cuda_check(cudaGraphInstantiate(&p->graph, graph, 0), "instantiating the graph");
    if (graph) cudaGraphDestroy(graph);
    if (status != TN_OK) p->graph = NULL;
    return status;
}
// Launches of one node are timed together.
static tn_status run_timed(cuda_program *p, cuda_stream *s) {
    const launch_list &l = p->list;
    for (size_t i = 0, end = 0; i < l.n_records; i = end) {
        int lead = l.records[i].lead;
        profile_begin(s->profile, s->stream);
        for (; end < l.n_records && l.records[end].lead == lead; end++)
            TN_TRY(launch_record_run(l, l.records[end], {s->stream, s->blas, true}));
        profile_end(s->profile, s->stream, p->nodes[lead]);
    }
    return TN_OK;
}

// The first run launches one by one, in strict order, which also lets kernels and libraries load. The second is
// captured; all later ones replay. A graph begins when everything before it has ended, inputs too, so kernels inside
// it may read inputs early. Positions and lengths are read from device memory, so a token loop replays one graph.
tn_status cuda_program_run(tn_program *program, tn_buffer *scratch) {
    cuda_program *p = (cuda_program *)program;
    cuda_stream *s = program_stream(program);
    char *base = scratch ? (char *)scratch->base : NULL;
    if (p->base.scratch && (!scratch || scratch->size < p->base.scratch))
        return tn_fail(TN_E_STATE, "the program needs %zu bytes of scratch", p->base.scratch);
    TN_TRY(cuda_stream_catch_up(s));
    if (p->runs && p->scratch != base) cuda_program_moved(program);
    if (p->runs == 0) {
        TN_TRY(compile_program(p, base));
        TN_TRY(upload_steps(p, s));
    }
    if (!p->graph && p->runs >= 1 && !profile_is_single(s->profile)) TN_TRY(capture_program(p, s));
    p->runs++;
    if (profile_is_single(s->profile)) return run_timed(p, s);
    if (!p->graph) return launch_list_run(p->list, {s->stream, s->blas, true});
    if (s->profile) profile_begin(s->profile, s->stream);
    CUDA_TRY(cudaGraphLaunch(p->graph, s->stream));
    if (s->profile) profile_end(s->profile, s->stream, p->nodes[0]);
    return TN_OK;
}

tn_status cuda_program_print(tn_program *program, tn_buffer *scratch, FILE *out) {
    cuda_program *p = (cuda_program *)program;
    if (!p->runs) TN_TRY(compile_program(p, scratch ? (char *)scratch->base : NULL));
    return launch_list_print(p->list, p->nodes, out);
}

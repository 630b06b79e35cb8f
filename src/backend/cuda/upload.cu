// Uploads from ordinary memory: several threads copy pieces into pinned memory, each with two pieces, so that one is
// filled while the other is on its way. One thread cannot read memory as fast as the bus takes it.
#include "backend/cuda/cuda.cuh"

#include <atomic>
#include <pthread.h>

enum { PIECE = 4 << 20, WORKERS = 8, SMALL = 64 << 10 /* the driver copies such at once */ };

struct upload_worker {
    cudaStream_t stream;
    void *staging[2];
    cudaEvent_t staged[2];
};
struct upload_lanes {
    upload_worker workers[WORKERS];
};
struct upload_job {
    int ordinal;
    char *to;
    const char *from;
    size_t size;
    std::atomic<size_t> next; // offset of the piece nobody has taken yet
    std::atomic<int> error;
};
struct upload_task {
    upload_job *job;
    upload_worker *worker;
};

void upload_free(cuda_device *d) {
    upload_lanes *lanes = d->lanes;
    if (!lanes) return;
    for (int i = 0; i < WORKERS; i++) {
        upload_worker *w = &lanes->workers[i];
        if (w->stream) cudaStreamDestroy(w->stream);
        for (int k = 0; k < 2; k++) {
            if (w->staged[k]) cudaEventDestroy(w->staged[k]);
            if (w->staging[k]) cudaFreeHost(w->staging[k]);
        }
    }
    tn_free(lanes);
    d->lanes = NULL;
}
// Made at the first large upload and kept.
static tn_status make_lanes(cuda_device *d) {
    if (d->lanes) return TN_OK;
    d->lanes = (upload_lanes *)tn_calloc(1, sizeof *d->lanes);
    if (!d->lanes) return TN_E_NOMEM;
    tn_status status = TN_OK;
    for (int i = 0; i < WORKERS && status == TN_OK; i++) {
        upload_worker *w = &d->lanes->workers[i];
        status = cuda_check(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking), "cudaStreamCreate");
        for (int k = 0; k < 2 && status == TN_OK; k++) {
            status = cuda_check(cudaMallocHost(&w->staging[k], PIECE), "pinned memory for uploads");
            if (status == TN_OK)
                status =
                    cuda_check(cudaEventCreateWithFlags(&w->staged[k], cudaEventDisableTiming), "cudaEventCreate");
        }
    }
    if (status != TN_OK) upload_free(d);
    return status;
}

static void *upload_pieces(void *argument) {
    upload_task *task = (upload_task *)argument;
    upload_job *job = task->job;
    upload_worker *w = task->worker;
    cudaError_t error = cudaSetDevice(job->ordinal);
    for (int k = 0; error == cudaSuccess && !job->error.load(); k ^= 1) {
        size_t at = job->next.fetch_add(PIECE);
        if (at >= job->size) break;
        size_t n = job->size - at < PIECE ? job->size - at : (size_t)PIECE;
        error = cudaEventSynchronize(w->staged[k]);
        if (error != cudaSuccess) break;
        memcpy(w->staging[k], job->from + at, n);
        error = cudaMemcpyAsync(job->to + at, w->staging[k], n, cudaMemcpyHostToDevice, w->stream);
        if (error == cudaSuccess) error = cudaEventRecord(w->staged[k], w->stream);
    }
    cudaError_t finished = cudaStreamSynchronize(w->stream);
    if (error == cudaSuccess) error = finished;
    if (error != cudaSuccess) job->error.store((int)error);
    return NULL;
}

tn_status upload(cuda_device *d, char *to, const char *from, size_t size) {
    CUDA_TRY(cudaSetDevice(d->ordinal));
    if (size <= SMALL) {
        CUDA_TRY(cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, d->copy_stream));
        CUDA_TRY(cudaStreamSynchronize(d->copy_stream));
        return TN_OK;
    }
    TN_TRY(make_lanes(d));
    upload_job job;
    job.ordinal = d->ordinal;
    job.to = to;
    job.from = from;
    job.size = size;
    job.next = 0;
    job.error = 0;
    upload_task tasks[WORKERS];
    pthread_t threads[WORKERS];
    size_t pieces = (size + PIECE - 1) / PIECE;
    int helpers = 0;
    // Without a thread more the work is done by those there are.
    for (int i = 1; i < WORKERS && (size_t)i < pieces; i++) {
        tasks[helpers] = {&job, &d->lanes->workers[i]};
        if (pthread_create(&threads[helpers], NULL, upload_pieces, &tasks[helpers]) != 0) break;
        helpers++;
    }
    upload_task own = {&job, &d->lanes->workers[0]};
    upload_pieces(&own);
    for (int i = 0; i < helpers; i++) pthread_join(threads[i], NULL);
    return cuda_check((cudaError_t)job.error.load(), "uploading");
}

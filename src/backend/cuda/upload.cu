// Uploads from ordinary memory: several threads copy pieces into pinned memory, each with two pieces, so that one is
// filled while the other is on its way. One thread cannot read memory as fast as the bus takes it. Small ones, a
// token's inputs, go through pinned slots of their own. Nobody waits for the bus: the copy stream is behind all
// uploads, and other streams wait for it when they start something.
#include "backend/cuda/cuda.cuh"

#include <pthread.h>

enum { PIECE = 4 << 20, WORKERS = 8, LETTER = 4 << 10, LETTERS = 64 };

struct upload_worker {
    cudaStream_t stream;
    void *staging[2];
    cudaEvent_t staged[2], done;
};
struct upload_lanes {
    upload_worker workers[WORKERS];
    char *letters; // LETTERS places of LETTER bytes, pinned
    unsigned sent;
    cudaEvent_t behind; // of the copy stream
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all lanes
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

static void upload_free(cuda_device *d) {
    upload_lanes *lanes = d->lanes;
    if (!lanes) return;
    for (int i = 0; i < WORKERS; i++) {
        upload_worker *w = &lanes->workers[i];
        if (w->stream) cudaStreamDestroy(w->stream);
        if (w->done) cudaEventDestroy(w->done);
        for (int k = 0; k < 2; k++) {
            if (w->staged[k]) cudaEventDestroy(w->staged[k]);
            if (w->staging[k]) cudaFreeHost(w->staging[k]);
        }
    }
    if (lanes->letters) cudaFreeHost(lanes->letters);
    if (lanes->behind) cudaEventDestroy(lanes->behind);
    tn_free(lanes);
    d->lanes = NULL;
}
static tn_status new_event(cudaEvent_t *event) {
    return cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
}
// Made at the first upload and kept; the workers' at the first large one.
static tn_status make_lanes(cuda_device *d) {
    if (d->lanes) return TN_OK;
    d->lanes = (upload_lanes *)tn_calloc(1, sizeof *d->lanes);
    if (!d->lanes) return TN_E_NOMEM;
    tn_status status = new_event(&d->lanes->behind);
    if (status == TN_OK)
        status = cuda_check(cudaMallocHost(&d->lanes->letters, LETTERS * LETTER), "pinned memory for uploads");
    if (status != TN_OK) upload_free(d);
    return status;
}
static tn_status make_workers(cuda_device *d) {
    for (int i = 0; i < WORKERS; i++) {
        upload_worker *w = &d->lanes->workers[i];
        if (w->done) continue;
        if (!w->stream) CUDA_TRY(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
        for (int k = 0; k < 2; k++) {
            if (!w->staging[k])
                TN_TRY(cuda_check(cudaMallocHost(&w->staging[k], PIECE), "pinned memory for uploads"));
            if (!w->staged[k]) TN_TRY(new_event(&w->staged[k]));
        }
        TN_TRY(new_event(&w->done));
    }
    return TN_OK;
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
    cudaError_t recorded = cudaEventRecord(w->done, w->stream);
    if (error == cudaSuccess) error = recorded;
    if (error != cudaSuccess) job->error.store((int)error);
    return NULL;
}

// Places are used in turn; before the first is used again, all have gone.
static tn_status send_letter(cuda_device *d, char *to, const char *from, size_t size) {
    upload_lanes *lanes = d->lanes;
    unsigned place = lanes->sent++ % LETTERS;
    if (place == 0) CUDA_TRY(cudaStreamSynchronize(d->copy_stream));
    memcpy(lanes->letters + place * LETTER, from, size);
    CUDA_TRY(cudaMemcpyAsync(to, lanes->letters + place * LETTER, size, cudaMemcpyHostToDevice, d->copy_stream));
    return TN_OK;
}

static tn_status send_pieces(cuda_device *d, char *to, const char *from, size_t size) {
    TN_TRY(make_workers(d));
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
    // What the copy stream did with this memory before comes first.
    CUDA_TRY(cudaEventRecord(d->lanes->behind, d->copy_stream));
    for (int i = 0; i < WORKERS && (size_t)i < pieces; i++)
        CUDA_TRY(cudaStreamWaitEvent(d->lanes->workers[i].stream, d->lanes->behind, 0));
    // Without a thread more the work is done by those there are.
    for (int i = 1; i < WORKERS && (size_t)i < pieces; i++) {
        tasks[helpers] = {&job, &d->lanes->workers[i]};
        if (pthread_create(&threads[helpers], NULL, upload_pieces, &tasks[helpers]) != 0) break;
        helpers++;
    }
    upload_task own = {&job, &d->lanes->workers[0]};
    upload_pieces(&own);
    for (int i = 0; i < helpers; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i <= helpers; i++) CUDA_TRY(cudaStreamWaitEvent(d->copy_stream, d->lanes->workers[i].done, 0));
    return cuda_check((cudaError_t)job.error.load(), "uploading");
}

tn_status upload(cuda_device *d, char *to, const char *from, size_t size) {
    CUDA_TRY(cudaSetDevice(d->ordinal));
    pthread_mutex_lock(&lock);
    tn_status status = make_lanes(d);
    if (status == TN_OK) status = size <= LETTER ? send_letter(d, to, from, size) : send_pieces(d, to, from, size);
    d->writes++;
    pthread_mutex_unlock(&lock);
    return status;
}

tn_status upload_wait(cuda_device *d, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    tn_status status = TN_OK;
    if (d->lanes) {
        status = cuda_check(cudaEventRecord(d->lanes->behind, d->copy_stream), "cudaEventRecord");
        if (status == TN_OK)
            status = cuda_check(cudaStreamWaitEvent(stream, d->lanes->behind, 0), "cudaStreamWaitEvent");
    }
    pthread_mutex_unlock(&lock);
    return status;
}

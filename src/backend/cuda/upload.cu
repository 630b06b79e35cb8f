// Uploads from ordinary memory and from readers, by size. The host does not wait for transfers to the device: streams
// wait for uploads that were queued before their next work.
//
//   small   up to SMALL_BYTES, such as a token's inputs: collected, and written by one kernel in the stream that
//           needs them. A stream's own small uploads are kept apart: they must not overtake its earlier work.
//   plain   up to PLAIN_BYTES, such as a micro-batch's inputs: the driver keeps a copy until it is transferred
//   bulk    in pieces: several threads read them into pinned memory, since one thread cannot read as fast as the bus
//           transfers. Each thread fills one staging buffer while another is in flight. Many tensors form one job, so
//           that the threads meet once per job and not once per tensor.
//
// The copy stream orders plain and bulk uploads and everything else that changes buffers.
//
// The staging buffers are part of the plan (tn_buffer_type_load_bytes): the device has them while it has a buffer.
#include "backend/cuda/cuda.cuh"

#include <algorithm>
#include <pthread.h>
#include <unistd.h>

enum {
    MAX_SMALL = 24, // with SMALL_BYTES each they fit into the parameters of a launch
    PLAIN_BYTES = 64 << 10,
    PIECE = 1 << 20,
    STAGES = 3,
    WORKERS = 12,
    RECENT = 32,
};

struct small_uploads {
    int n;
    struct {
        char *to;
        int size;
    } to[MAX_SMALL];
    char data[MAX_SMALL][SMALL_BYTES];
};
struct byte_range {
    const char *begin, *end;
};
struct bulk_upload {
    device_rows to;
    size_t offset; // in `to`
    tn_read_fn read;
    void *user;
    size_t size;
};
struct upload_worker {
    pthread_t thread;
    cudaStream_t stream;
    cudaEvent_t staged[STAGES], done;
    bool took; // pieces of the current job
};
// `lock` protects all of it, except the job, which belongs to the holder of `bulk_lock`, and what is a worker's own.
struct uploader {
    small_uploads small;
    cudaEvent_t small_done;      // recorded after the last small uploads
    cudaStream_t small_stream;   // in which they ran, or NULL
    cudaEvent_t copies_recorded; // of the copy stream
    unsigned copies;             // uses of the copy stream so far
    // Since bulk uploads last waited for the copy stream, it has had work other than bulk uploads.
    bool must_follow;

    upload_worker workers[WORKERS];
    int n_workers;             // 0 before the first bulk upload; the first is the calling thread
    char *staging;             // upload_staging_bytes() of pinned memory
    unsigned n_buffers;        // device buffers: with the first one staging memory is taken, with the last given back
    byte_range recent[RECENT]; // memory that the copy stream may still be changing
    int n_recent;
    pthread_mutex_t bulk_lock; // taken before `lock`, which stays free while pieces are read
    pthread_cond_t job_added, job_ended;
    pthread_mutex_t job_lock;
    unsigned jobs, busy; // jobs so far; workers that have not finished the current one
    int ordinal;
    const tn_tensor_source *sources; // or NULL: `one`
    bulk_upload one;
    size_t n_bulk;
    std::atomic<size_t> next; // the next piece, counted over all bulk uploads of the job
    // The first failure, kept under job_lock: messages are per thread.
    std::atomic<bool> failed;
    tn_status status;
    char message[2048];
};
struct upload_task {
    uploader *up;
    upload_worker *worker;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all devices

static tn_status new_event(cudaEvent_t *event) {
    return cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
}
// Made with the first buffer; lives as long as the device.
static tn_status make_uploader(cuda_device *d) {
    if (d->uploader) return TN_OK;
    uploader *up = (uploader *)tn_calloc(1, sizeof *up);
    if (!up) return TN_E_NOMEM;
    tn_status status = new_event(&up->copies_recorded);
    if (status == TN_OK) status = new_event(&up->small_done);
    if (status != TN_OK) {
        if (up->copies_recorded) cudaEventDestroy(up->copies_recorded);
        if (up->small_done) cudaEventDestroy(up->small_done);
        tn_free(up);
        return status;
    }
    up->ordinal = d->ordinal;
    pthread_cond_init(&up->job_added, NULL);
    pthread_cond_init(&up->job_ended, NULL);
    pthread_mutex_init(&up->job_lock, NULL);
    pthread_mutex_init(&up->bulk_lock, NULL);
    d->uploader = up;
    return TN_OK;
}

// ---- Small uploads ----

__global__ static void small_upload_kernel(const __grid_constant__ small_uploads small) {
    int i = blockIdx.x;
    if ((int)threadIdx.x < small.to[i].size) small.to[i].to[threadIdx.x] = small.data[i][threadIdx.x];
}
static tn_status launch_small_uploads(small_uploads &small, cudaStream_t stream) {
    small_upload_kernel<<<(unsigned)small.n, SMALL_BYTES, 0, stream>>>(small);
    small.n = 0;
    return cuda_check(cudaGetLastError(), "small uploads");
}
static void append_small_upload(small_uploads &small, char *to, const char *from, size_t size) {
    memcpy(small.data[small.n], from, size);
    small.to[small.n].to = to;
    small.to[small.n++].size = (int)size;
}
static tn_status wait_for_small_uploads(const uploader *up, cudaStream_t stream) {
    if (up->small_stream && up->small_stream != stream) CUDA_TRY(cudaStreamWaitEvent(stream, up->small_done, 0));
    return TN_OK;
}
static tn_status flush_device_uploads(uploader *up, cudaStream_t stream) {
    if (!up->small.n) return TN_OK;
    CUDA_TRY(cudaSetDevice(up->ordinal));
    TN_TRY(wait_for_small_uploads(up, stream));
    TN_TRY(launch_small_uploads(up->small, stream));
    up->small_stream = stream;
    up->must_follow = true;
    return cuda_check(cudaEventRecord(up->small_done, stream), "cudaEventRecord");
}
// Orders all uploads so far before the copy stream's next work.
static tn_status order_copies(cuda_device *d) {
    TN_TRY(wait_for_small_uploads(d->uploader, d->copy_stream));
    return flush_device_uploads(d->uploader, d->copy_stream);
}
// One launch writes all of them in no particular order, so none may overlap.
static bool has_small_upload_at(const small_uploads &small, const char *to, size_t size) {
    for (int i = 0; i < small.n; i++)
        if (to < small.to[i].to + small.to[i].size && small.to[i].to < to + size) return true;
    return false;
}
static tn_status add_small_upload(cuda_device *d, char *to, const char *from, size_t size) {
    small_uploads &small = d->uploader->small;
    if (small.n == MAX_SMALL || has_small_upload_at(small, to, size)) {
        TN_TRY(order_copies(d));
        d->uploader->copies++;
    }
    append_small_upload(small, to, from, size);
    return TN_OK;
}

tn_status queue_small_upload(small_uploads **small, cudaStream_t stream, char *to, const void *from, size_t size) {
    if (!*small) *small = (small_uploads *)tn_calloc(1, sizeof **small);
    if (!*small) return TN_E_NOMEM;
    if ((*small)->n == MAX_SMALL || has_small_upload_at(**small, to, size))
        TN_TRY(launch_small_uploads(**small, stream));
    append_small_upload(**small, to, (const char *)from, size);
    return TN_OK;
}
tn_status flush_small_uploads(small_uploads *small, cudaStream_t stream) {
    return small && small->n ? launch_small_uploads(*small, stream) : TN_OK;
}

// ---- Staging memory ----

static int max_workers(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores < WORKERS ? (int)cores : (int)WORKERS;
}
// The same on every machine, so that plans are, too.
size_t upload_staging_bytes(void) { return (size_t)WORKERS * STAGES * PIECE; }

tn_status upload_take(cuda_device *d) {
    pthread_mutex_lock(&lock);
    tn_status status = make_uploader(d);
    if (status == TN_OK && !d->uploader->staging)
        status =
            cuda_check(cudaMallocHost(&d->uploader->staging, upload_staging_bytes()), "pinned memory for uploads");
    if (status == TN_OK) d->uploader->n_buffers++;
    pthread_mutex_unlock(&lock);
    return status;
}
// Buffers have waited for the copy stream, which waits for all transfers from staging memory.
static void free_unused_staging(cuda_device *d) {
    uploader *up = d->uploader;
    if (!up || up->n_buffers || d->n_streams || !up->staging) return;
    cudaFreeHost(up->staging);
    up->staging = NULL;
}
void upload_give_back(cuda_device *d) {
    pthread_mutex_lock(&lock);
    d->uploader->n_buffers--;
    free_unused_staging(d);
    pthread_mutex_unlock(&lock);
}
void upload_count_stream(cuda_device *d, int change) {
    pthread_mutex_lock(&lock);
    d->n_streams += change;
    free_unused_staging(d);
    pthread_mutex_unlock(&lock);
}

// ---- Plain and bulk uploads ----

// From ordinary memory: the driver has copied the data when the call returns. In pieces, because others wait for the
// lock meanwhile.
static tn_status upload_plain(cuda_device *d, const device_rows &to, size_t offset, const char *from, size_t size) {
    tn_status status = TN_OK;
    for (size_t at = 0, n; at < size && status == TN_OK; at += n) {
        n = std::min(size - at, (size_t)PIECE);
        pthread_mutex_lock(&lock);
        status = order_copies(d);
        d->uploader->must_follow = true;
        if (status == TN_OK)
            status = cuda_check(copy_to_rows(to, offset + at, from + at, n, cudaMemcpyHostToDevice, d->copy_stream),
                                "uploading a tensor");
        d->uploader->copies++;
        d->writes++;
        pthread_mutex_unlock(&lock);
    }
    return status;
}

static tn_status read_memory(void *from, size_t offset, void *to, size_t size) {
    memcpy(to, (const char *)from + offset, size);
    return TN_OK;
}
static bulk_upload bulk_at(const uploader *up, size_t i) {
    if (!up->sources) return up->one;
    const tn_tensor_source &s = up->sources[i];
    return {device_rows_of(s.tensor), 0, s.read, s.user, tn_nbytes(s.tensor)};
}
static tn_status upload_pieces(uploader *up, upload_worker *w) {
    bulk_upload p = bulk_at(up, 0);
    size_t i = 0, first = 0; // index of the bulk upload, and its first piece
    for (int k = 0; !up->failed.load(); k = (k + 1) % STAGES) {
        size_t piece = up->next.fetch_add(1), pieces;
        while (piece - first >= (pieces = (p.size + PIECE - 1) / PIECE)) {
            if (++i == up->n_bulk) return TN_OK;
            first += pieces;
            p = bulk_at(up, i);
        }
        size_t at = (piece - first) * PIECE, n = p.size - at < PIECE ? p.size - at : (size_t)PIECE;
        char *staging = up->staging + ((size_t)(w - up->workers) * STAGES + (size_t)k) * PIECE;
        CUDA_TRY(cudaEventSynchronize(w->staged[k]));
        TN_TRY(p.read(p.user, at, staging, n));
        CUDA_TRY(copy_to_rows(p.to, p.offset + at, staging, n, cudaMemcpyHostToDevice, w->stream));
        w->took = true;
        CUDA_TRY(cudaEventRecord(w->staged[k], w->stream));
    }
    return TN_OK;
}
static void keep_upload_failure(uploader *up, tn_status status) {
    if (status == TN_OK) return;
    pthread_mutex_lock(&up->job_lock);
    if (!up->failed.load()) {
        up->status = status;
        snprintf(up->message, sizeof up->message, "%s", tn_error());
        up->failed = true;
    }
    pthread_mutex_unlock(&up->job_lock);
}
// After a failure, too, `done` is recorded behind the pieces that were queued before it.
static void finish_pieces(uploader *up, upload_worker *w) {
    keep_upload_failure(up, upload_pieces(up, w));
    if (w->took) keep_upload_failure(up, cuda_check(cudaEventRecord(w->done, w->stream), "cudaEventRecord"));
}
static void *upload_worker_main(void *argument) {
    upload_task task = *(upload_task *)argument;
    tn_free(argument);
    uploader *up = task.up;
    bool ready = cudaSetDevice(up->ordinal) == cudaSuccess; // otherwise other workers take its pieces
    unsigned seen = 0;
    pthread_mutex_lock(&up->job_lock);
    for (;;) {
        while (up->jobs == seen) pthread_cond_wait(&up->job_added, &up->job_lock);
        seen = up->jobs;
        pthread_mutex_unlock(&up->job_lock);
        task.worker->took = false;
        if (ready) finish_pieces(up, task.worker);
        pthread_mutex_lock(&up->job_lock);
        if (--up->busy == 0) pthread_cond_signal(&up->job_ended);
    }
    return NULL;
}
static tn_status make_worker(uploader *up, upload_worker *w) {
    if (!w->stream) CUDA_TRY(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
    for (int k = 0; k < STAGES; k++)
        if (!w->staged[k]) TN_TRY(new_event(&w->staged[k]));
    if (!w->done) TN_TRY(new_event(&w->done));
    if (w == up->workers) return TN_OK;
    upload_task *task = (upload_task *)tn_malloc(sizeof *task);
    if (!task) return TN_E_NOMEM;
    *task = {up, w};
    if (pthread_create(&w->thread, NULL, upload_worker_main, task) == 0) return TN_OK;
    tn_free(task);
    return tn_fail(TN_E_NOMEM, "no thread for uploads");
}
// Fewer threads than planned are no failure; one is enough.
static tn_status make_workers(uploader *up) {
    if (up->n_workers) return TN_OK;
    for (int i = 0; i < max_workers(); i++) {
        tn_status status = make_worker(up, &up->workers[i]);
        if (status != TN_OK && i == 0) return status;
        if (status != TN_OK) break;
        up->n_workers = i + 1;
    }
    return TN_OK;
}

// The workers' streams wait for the copy stream only if it may still be changing the same memory.
static tn_status follow_copies(cuda_device *d, byte_range all) {
    uploader *up = d->uploader;
    bool follows = up->must_follow || up->n_recent == RECENT;
    for (int i = 0; i < up->n_recent && !follows; i++)
        follows = all.begin < up->recent[i].end && up->recent[i].begin < all.end;
    if (follows) {
        CUDA_TRY(cudaEventRecord(up->copies_recorded, d->copy_stream));
        for (int i = 0; i < up->n_workers; i++)
            CUDA_TRY(cudaStreamWaitEvent(up->workers[i].stream, up->copies_recorded, 0));
        up->n_recent = 0;
        up->must_follow = false;
    }
    up->recent[up->n_recent++] = all;
    return TN_OK;
}
// What an upload writes, with the gaps between rows.
static byte_range range_of(const bulk_upload &p) {
    if (p.to.bytes == p.to.stride) return {p.to.data + p.offset, p.to.data + p.offset + p.size};
    const size_t first = p.offset / p.to.bytes, end = (p.offset + p.size + p.to.bytes - 1) / p.to.bytes;
    return {p.to.data + first * p.to.stride, p.to.data + end * p.to.stride};
}
static tn_status begin_bulk(cuda_device *d) {
    uploader *up = d->uploader;
    byte_range all = range_of(bulk_at(up, 0));
    for (size_t i = 1; i < up->n_bulk; i++) {
        const byte_range one = range_of(bulk_at(up, i));
        all.begin = std::min(all.begin, one.begin);
        all.end = std::max(all.end, one.end);
    }
    TN_TRY(order_copies(d));
    TN_TRY(make_workers(up));
    return follow_copies(d, all);
}
static void run_bulk(uploader *up) {
    pthread_mutex_lock(&up->job_lock);
    up->next = 0;
    up->failed = false;
    up->busy = (unsigned)up->n_workers - 1;
    up->jobs++;
    pthread_cond_broadcast(&up->job_added);
    pthread_mutex_unlock(&up->job_lock);
    up->workers[0].took = false;
    finish_pieces(up, &up->workers[0]);
    pthread_mutex_lock(&up->job_lock);
    while (up->busy) pthread_cond_wait(&up->job_ended, &up->job_lock);
    pthread_mutex_unlock(&up->job_lock);
}
static tn_status end_bulk(cuda_device *d) {
    uploader *up = d->uploader;
    for (int i = 0; i < up->n_workers; i++)
        if (up->workers[i].took) CUDA_TRY(cudaStreamWaitEvent(d->copy_stream, up->workers[i].done, 0));
    return up->failed ? tn_fail(up->status, "%s", up->message) : TN_OK;
}
static tn_status upload_bulk(cuda_device *d, const tn_tensor_source *sources, const bulk_upload &one, size_t n) {
    tn_status status = cuda_check(cudaSetDevice(d->ordinal), "cudaSetDevice");
    if (status != TN_OK) return status;
    // Data in memory does not wait for a job that reads files.
    uploader *up = d->uploader;
    if (pthread_mutex_trylock(&up->bulk_lock) != 0) {
        if (!sources) return upload_plain(d, one.to, one.offset, (const char *)one.user, one.size);
        pthread_mutex_lock(&up->bulk_lock);
    }
    up->sources = sources;
    up->one = one;
    up->n_bulk = n;
    pthread_mutex_lock(&lock);
    status = begin_bulk(d);
    pthread_mutex_unlock(&lock);
    if (status == TN_OK) run_bulk(up);
    pthread_mutex_lock(&lock);
    if (status == TN_OK) status = end_bulk(d);
    up->copies++;
    d->writes++;
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&up->bulk_lock);
    return status;
}

// ---- All ----

tn_status upload_from(cuda_device *d, const tn_tensor_source *sources, size_t n) {
    return upload_bulk(d, sources, {}, n);
}
tn_status upload(cuda_device *d, const device_rows &to, size_t offset, const char *from, size_t size) {
    if (size > PLAIN_BYTES) return upload_bulk(d, NULL, {to, offset, read_memory, (void *)from, size}, 1);
    if (size > SMALL_BYTES || to.bytes != to.stride) {
        CUDA_TRY(cudaSetDevice(d->ordinal));
        return upload_plain(d, to, offset, from, size);
    }
    pthread_mutex_lock(&lock);
    tn_status status = add_small_upload(d, to.data + offset, from, size);
    d->writes++;
    pthread_mutex_unlock(&lock);
    return status;
}
tn_status upload_before(cuda_device *d) {
    pthread_mutex_lock(&lock);
    tn_status status = d->uploader ? order_copies(d) : TN_OK;
    if (d->uploader) d->uploader->must_follow = true;
    pthread_mutex_unlock(&lock);
    return status;
}
void upload_after(cuda_device *d) {
    pthread_mutex_lock(&lock);
    if (d->uploader) d->uploader->copies++;
    d->writes++;
    pthread_mutex_unlock(&lock);
}

tn_status upload_wait(cuda_device *d, cudaStream_t stream, unsigned *seen) {
    pthread_mutex_lock(&lock);
    tn_status status = TN_OK;
    uploader *up = d->uploader;
    if (up) status = wait_for_small_uploads(up, stream);
    if (up && *seen != up->copies) {
        if (status == TN_OK)
            status = cuda_check(cudaEventRecord(up->copies_recorded, d->copy_stream), "cudaEventRecord");
        if (status == TN_OK)
            status = cuda_check(cudaStreamWaitEvent(stream, up->copies_recorded, 0), "cudaStreamWaitEvent");
        if (status == TN_OK) *seen = up->copies;
    }
    if (up && status == TN_OK) status = flush_device_uploads(up, stream);
    pthread_mutex_unlock(&lock);
    return status;
}

// Uploads from ordinary memory and from readers, in three sizes. Nobody waits for the bus: streams wait for what was
// sent before they start something.
//
//   notes    a few bytes, a token's inputs: collected, and brought by one launch in the stream that needs them; those
//            of one stream's queue are kept apart, since they must not come before what that stream still does
//   letters  through pinned places that are used in turn
//   parcels  in pieces: several threads read them into pinned memory, each filling one place while another is on its
//            way, because one thread cannot read as fast as the bus takes it; many at a time, so that nobody waits
//            for the slowest thread after each
//
// Letters, parcels and whatever else changes buffers are ordered by the copy stream.
#include "backend/cuda/cuda.cuh"

#include <algorithm>
#include <pthread.h>
#include <unistd.h>

enum {
    NOTES = 24, // with NOTE bytes each they fit the parameters of a launch
    LETTER = 4 << 10,
    LETTERS = 64,
    PIECE = 1 << 20,
    STAGES = 3,
    WORKERS = 12,
    RECENT = 32,
};

struct notes {
    int n;
    struct {
        char *to;
        int size;
    } to[NOTES];
    char text[NOTES][NOTE];
};
struct range {
    const char *begin, *end;
};
struct parcel {
    char *to;
    tn_read_fn read;
    void *user;
    size_t size;
};
struct upload_worker {
    pthread_t thread;
    cudaStream_t stream;
    char *staging[STAGES];
    cudaEvent_t staged[STAGES], done;
    bool took; // pieces of the present job
};
// Everything under `lock`, but for the job, which is that of who has `parcels`, and what workers do with their own.
struct upload_lanes {
    notes mail;
    cudaEvent_t delivered; // behind the notes that were brought last
    cudaStream_t carrier;  // which brought them, or NULL
    char *letters;         // LETTERS places of LETTER bytes, pinned
    unsigned sent;
    cudaEvent_t behind; // of the copy stream
    unsigned copies;    // what the copy stream did so far
    bool mixed;         // not only parcels, and what belongs to them, since parcels last followed the copy stream

    upload_worker workers[WORKERS];
    int n_workers; // 0 before the first parcel; the first is whoever uploads
    char *staging;
    range recent[RECENT]; // what the copy stream may still be changing
    int n_recent;
    pthread_mutex_t parcels; // taken before `lock`, which others can have while pieces are read
    pthread_cond_t work, end;
    pthread_mutex_t job_lock;
    unsigned jobs, busy; // jobs so far; workers that have not ended the present one
    int ordinal;
    const tn_tensor_source *sources; // or NULL: the one parcel
    parcel one;
    size_t n_parcels;
    std::atomic<size_t> next; // the piece nobody has taken yet, counted over all parcels
    std::atomic<bool> failed; // the job: with what came first, under job_lock, since messages are per thread
    tn_status status;
    char text[2048];
};
struct upload_task {
    upload_lanes *lanes;
    upload_worker *worker;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all lanes

static tn_status new_event(cudaEvent_t *event) {
    return cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
}
// Made at the first upload and kept as long as the device.
static tn_status make_lanes(cuda_device *d) {
    if (d->lanes) return TN_OK;
    upload_lanes *lanes = (upload_lanes *)tn_calloc(1, sizeof *lanes);
    if (!lanes) return TN_E_NOMEM;
    tn_status status = new_event(&lanes->behind);
    if (status == TN_OK) status = new_event(&lanes->delivered);
    if (status == TN_OK)
        status = cuda_check(cudaMallocHost(&lanes->letters, LETTERS * LETTER), "pinned memory for uploads");
    if (status != TN_OK) {
        if (lanes->behind) cudaEventDestroy(lanes->behind);
        if (lanes->delivered) cudaEventDestroy(lanes->delivered);
        tn_free(lanes);
        return status;
    }
    lanes->ordinal = d->ordinal;
    pthread_cond_init(&lanes->work, NULL);
    pthread_cond_init(&lanes->end, NULL);
    pthread_mutex_init(&lanes->job_lock, NULL);
    pthread_mutex_init(&lanes->parcels, NULL);
    d->lanes = lanes;
    return TN_OK;
}

// ---- Notes ----

__global__ static void deliver_kernel(const __grid_constant__ notes mail) {
    int i = blockIdx.x;
    if ((int)threadIdx.x < mail.to[i].size) mail.to[i].to[threadIdx.x] = mail.text[i][threadIdx.x];
}
static tn_status bring(notes &mail, cudaStream_t stream) {
    deliver_kernel<<<(unsigned)mail.n, NOTE, 0, stream>>>(mail);
    mail.n = 0;
    return cuda_check(cudaGetLastError(), "bringing inputs");
}
static void add(notes &mail, char *to, const char *from, size_t size) {
    memcpy(mail.text[mail.n], from, size);
    mail.to[mail.n].to = to;
    mail.to[mail.n++].size = (int)size;
}
static tn_status follow_carrier(const upload_lanes *lanes, cudaStream_t stream) {
    if (lanes->carrier && lanes->carrier != stream) CUDA_TRY(cudaStreamWaitEvent(stream, lanes->delivered, 0));
    return TN_OK;
}
static tn_status deliver(upload_lanes *lanes, cudaStream_t stream) {
    if (!lanes->mail.n) return TN_OK;
    CUDA_TRY(cudaSetDevice(lanes->ordinal));
    TN_TRY(follow_carrier(lanes, stream));
    TN_TRY(bring(lanes->mail, stream));
    lanes->carrier = stream;
    lanes->mixed = true;
    return cuda_check(cudaEventRecord(lanes->delivered, stream), "cudaEventRecord");
}
// What was uploaded so far comes before what the copy stream does next.
static tn_status order_copies(cuda_device *d) {
    TN_TRY(follow_carrier(d->lanes, d->copy_stream));
    return deliver(d->lanes, d->copy_stream);
}
// Two notes to one place would be brought at once.
static bool has_note_at(const notes &mail, const char *to, size_t size) {
    for (int i = 0; i < mail.n; i++)
        if (to < mail.to[i].to + mail.to[i].size && mail.to[i].to < to + size) return true;
    return false;
}
static tn_status leave_note(cuda_device *d, char *to, const char *from, size_t size) {
    notes &mail = d->lanes->mail;
    if (mail.n == NOTES || has_note_at(mail, to, size)) {
        TN_TRY(order_copies(d));
        d->lanes->copies++;
    }
    add(mail, to, from, size);
    return TN_OK;
}

tn_status queue_note(notes **mail, cudaStream_t stream, char *to, const void *from, size_t size) {
    if (!*mail) *mail = (notes *)tn_calloc(1, sizeof **mail);
    if (!*mail) return TN_E_NOMEM;
    if ((*mail)->n == NOTES || has_note_at(**mail, to, size)) TN_TRY(bring(**mail, stream));
    add(**mail, to, (const char *)from, size);
    return TN_OK;
}
tn_status bring_notes(notes *mail, cudaStream_t stream) { return mail && mail->n ? bring(*mail, stream) : TN_OK; }

// ---- Letters and parcels ----

// Places are used in turn; before the first is used again, all have gone.
static tn_status send_letter(cuda_device *d, char *to, const char *from, size_t size) {
    upload_lanes *lanes = d->lanes;
    unsigned index = lanes->sent++ % LETTERS;
    if (index == 0) CUDA_TRY(cudaStreamSynchronize(d->copy_stream));
    memcpy(lanes->letters + index * LETTER, from, size);
    lanes->mixed = true;
    CUDA_TRY(cudaMemcpyAsync(to, lanes->letters + index * LETTER, size, cudaMemcpyHostToDevice, d->copy_stream));
    return TN_OK;
}

static tn_status send_letters(cuda_device *d, char *to, const char *from, size_t size) {
    tn_status status = TN_OK;
    for (size_t at = 0, part; at < size && status == TN_OK; at += part) {
        part = size - at < LETTER ? size - at : (size_t)LETTER;
        pthread_mutex_lock(&lock);
        status = order_copies(d);
        if (status == TN_OK) status = send_letter(d, to + at, from + at, part);
        d->lanes->copies++;
        d->writes++;
        pthread_mutex_unlock(&lock);
    }
    return status;
}

static tn_status read_memory(void *from, size_t offset, void *to, size_t size) {
    memcpy(to, (const char *)from + offset, size);
    return TN_OK;
}
static parcel parcel_at(const upload_lanes *lanes, size_t i) {
    if (!lanes->sources) return lanes->one;
    const tn_tensor_source &s = lanes->sources[i];
    return {(char *)s.tensor->data, s.read, s.user, tn_nbytes(s.tensor)};
}
static tn_status take_pieces(upload_lanes *lanes, upload_worker *w) {
    parcel p = parcel_at(lanes, 0);
    size_t i = 0, first = 0; // which parcel, and its first piece
    for (int k = 0; !lanes->failed.load(); k = (k + 1) % STAGES) {
        size_t piece = lanes->next.fetch_add(1), pieces;
        while (piece - first >= (pieces = (p.size + PIECE - 1) / PIECE)) {
            if (++i == lanes->n_parcels) return TN_OK;
            first += pieces;
            p = parcel_at(lanes, i);
        }
        size_t at = (piece - first) * PIECE, n = p.size - at < PIECE ? p.size - at : (size_t)PIECE;
        CUDA_TRY(cudaEventSynchronize(w->staged[k]));
        TN_TRY(p.read(p.user, at, w->staging[k], n));
        CUDA_TRY(cudaMemcpyAsync(p.to + at, w->staging[k], n, cudaMemcpyHostToDevice, w->stream));
        w->took = true;
        CUDA_TRY(cudaEventRecord(w->staged[k], w->stream));
    }
    return TN_OK;
}
static void keep_failure(upload_lanes *lanes, tn_status status) {
    if (status == TN_OK) return;
    pthread_mutex_lock(&lanes->job_lock);
    if (!lanes->failed.load()) {
        lanes->status = status;
        snprintf(lanes->text, sizeof lanes->text, "%s", tn_error());
        lanes->failed = true;
    }
    pthread_mutex_unlock(&lanes->job_lock);
}
// A worker that failed is done only when the pieces it sent before have arrived, as any other.
static void send_pieces(upload_lanes *lanes, upload_worker *w) {
    keep_failure(lanes, take_pieces(lanes, w));
    if (w->took) keep_failure(lanes, cuda_check(cudaEventRecord(w->done, w->stream), "cudaEventRecord"));
}
static void *work(void *argument) {
    upload_task task = *(upload_task *)argument;
    tn_free(argument);
    upload_lanes *lanes = task.lanes;
    bool ready = cudaSetDevice(lanes->ordinal) == cudaSuccess; // if not, others do the work
    unsigned seen = 0;
    pthread_mutex_lock(&lanes->job_lock);
    for (;;) {
        while (lanes->jobs == seen) pthread_cond_wait(&lanes->work, &lanes->job_lock);
        seen = lanes->jobs;
        pthread_mutex_unlock(&lanes->job_lock);
        task.worker->took = false;
        if (ready) send_pieces(lanes, task.worker);
        pthread_mutex_lock(&lanes->job_lock);
        if (--lanes->busy == 0) pthread_cond_signal(&lanes->end);
    }
    return NULL;
}
static tn_status make_worker(upload_lanes *lanes, upload_worker *w, char *staging) {
    if (!w->stream) CUDA_TRY(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
    for (int k = 0; k < STAGES; k++) {
        w->staging[k] = staging + k * PIECE;
        if (!w->staged[k]) TN_TRY(new_event(&w->staged[k]));
    }
    if (!w->done) TN_TRY(new_event(&w->done));
    if (w == lanes->workers) return TN_OK;
    upload_task *task = (upload_task *)tn_malloc(sizeof *task);
    if (!task) return TN_E_NOMEM;
    *task = {lanes, w};
    if (pthread_create(&w->thread, NULL, work, task) == 0) return TN_OK;
    tn_free(task);
    return tn_fail(TN_E_NOMEM, "no thread for uploads");
}
// Those there are do the work; one is enough.
static tn_status make_workers(upload_lanes *lanes) {
    if (lanes->n_workers) return TN_OK;
    if (!lanes->staging)
        TN_TRY(cuda_check(cudaMallocHost(&lanes->staging, (size_t)WORKERS * STAGES * PIECE),
                          "pinned memory for uploads"));
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 0; i < WORKERS && (i == 0 || i < cores); i++) {
        tn_status status = make_worker(lanes, &lanes->workers[i], lanes->staging + (size_t)i * STAGES * PIECE);
        if (status != TN_OK && i == 0) return status;
        if (status != TN_OK) break;
        lanes->n_workers = i + 1;
    }
    return TN_OK;
}

// The workers' streams follow the copy stream only where it may still be changing the same memory.
static tn_status follow_copies(cuda_device *d, range all) {
    upload_lanes *lanes = d->lanes;
    bool follows = lanes->mixed || lanes->n_recent == RECENT;
    for (int i = 0; i < lanes->n_recent && !follows; i++)
        follows = all.begin < lanes->recent[i].end && lanes->recent[i].begin < all.end;
    if (follows) {
        CUDA_TRY(cudaEventRecord(lanes->behind, d->copy_stream));
        for (int i = 0; i < lanes->n_workers; i++)
            CUDA_TRY(cudaStreamWaitEvent(lanes->workers[i].stream, lanes->behind, 0));
        lanes->n_recent = 0;
        lanes->mixed = false;
    }
    lanes->recent[lanes->n_recent++] = all;
    return TN_OK;
}
static tn_status begin_parcels(cuda_device *d) {
    upload_lanes *lanes = d->lanes;
    parcel p = parcel_at(lanes, 0);
    range all = {p.to, p.to + p.size};
    for (size_t i = 1; i < lanes->n_parcels; i++) {
        p = parcel_at(lanes, i);
        all.begin = std::min(all.begin, (const char *)p.to);
        all.end = std::max(all.end, (const char *)p.to + p.size);
    }
    TN_TRY(order_copies(d));
    TN_TRY(make_workers(lanes));
    return follow_copies(d, all);
}
static void read_parcels(upload_lanes *lanes) {
    pthread_mutex_lock(&lanes->job_lock);
    lanes->next = 0;
    lanes->failed = false;
    lanes->busy = (unsigned)lanes->n_workers - 1;
    lanes->jobs++;
    pthread_cond_broadcast(&lanes->work);
    pthread_mutex_unlock(&lanes->job_lock);
    lanes->workers[0].took = false;
    send_pieces(lanes, &lanes->workers[0]);
    pthread_mutex_lock(&lanes->job_lock);
    while (lanes->busy) pthread_cond_wait(&lanes->end, &lanes->job_lock);
    pthread_mutex_unlock(&lanes->job_lock);
}
static tn_status end_parcels(cuda_device *d) {
    upload_lanes *lanes = d->lanes;
    for (int i = 0; i < lanes->n_workers; i++)
        if (lanes->workers[i].took) CUDA_TRY(cudaStreamWaitEvent(d->copy_stream, lanes->workers[i].done, 0));
    return lanes->failed ? tn_fail(lanes->status, "%s", lanes->text) : TN_OK;
}
static tn_status send_parcels(cuda_device *d, const tn_tensor_source *sources, const parcel &one, size_t n) {
    pthread_mutex_lock(&lock);
    tn_status status = cuda_check(cudaSetDevice(d->ordinal), "cudaSetDevice");
    if (status == TN_OK) status = make_lanes(d);
    pthread_mutex_unlock(&lock);
    if (status != TN_OK) return status;
    // What is in memory does not wait for somebody's files.
    upload_lanes *lanes = d->lanes;
    if (pthread_mutex_trylock(&lanes->parcels) != 0) {
        if (!sources) return send_letters(d, one.to, (const char *)one.user, one.size);
        pthread_mutex_lock(&lanes->parcels);
    }
    lanes->sources = sources;
    lanes->one = one;
    lanes->n_parcels = n;
    pthread_mutex_lock(&lock);
    status = begin_parcels(d);
    pthread_mutex_unlock(&lock);
    if (status == TN_OK) read_parcels(lanes);
    pthread_mutex_lock(&lock);
    if (status == TN_OK) status = end_parcels(d);
    lanes->copies++;
    d->writes++;
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&lanes->parcels);
    return status;
}

// ---- All ----

tn_status upload_from(cuda_device *d, const tn_tensor_source *sources, size_t n) {
    return send_parcels(d, sources, {}, n);
}
tn_status upload(cuda_device *d, char *to, const char *from, size_t size) {
    if (size > LETTER) return send_parcels(d, NULL, {to, read_memory, (void *)from, size}, 1);
    pthread_mutex_lock(&lock);
    tn_status status = TN_OK;
    if (!d->lanes || size > NOTE) status = cuda_check(cudaSetDevice(d->ordinal), "cudaSetDevice");
    if (status == TN_OK) status = make_lanes(d);
    if (status == TN_OK && size <= NOTE) status = leave_note(d, to, from, size);
    d->writes++;
    pthread_mutex_unlock(&lock);
    return status == TN_OK && size > NOTE ? send_letters(d, to, from, size) : status;
}
tn_status upload_before(cuda_device *d) {
    pthread_mutex_lock(&lock);
    tn_status status = d->lanes ? order_copies(d) : TN_OK;
    if (d->lanes) d->lanes->mixed = true;
    pthread_mutex_unlock(&lock);
    return status;
}
void upload_after(cuda_device *d) {
    pthread_mutex_lock(&lock);
    if (d->lanes) d->lanes->copies++;
    d->writes++;
    pthread_mutex_unlock(&lock);
}

tn_status upload_wait(cuda_device *d, cudaStream_t stream, unsigned *seen) {
    pthread_mutex_lock(&lock);
    tn_status status = TN_OK;
    upload_lanes *lanes = d->lanes;
    if (lanes) status = follow_carrier(lanes, stream);
    if (lanes && *seen != lanes->copies) {
        if (status == TN_OK) status = cuda_check(cudaEventRecord(lanes->behind, d->copy_stream), "cudaEventRecord");
        if (status == TN_OK)
            status = cuda_check(cudaStreamWaitEvent(stream, lanes->behind, 0), "cudaStreamWaitEvent");
        if (status == TN_OK) *seen = lanes->copies;
    }
    if (lanes && status == TN_OK) status = deliver(lanes, stream);
    pthread_mutex_unlock(&lock);
    return status;
}

/* Writes the tensors of a file in order, from chunks that several threads fill. */
#include "files/tensor_writer.h"
#include "cli/cli.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* 1 MiB of floats: large enough for efficient writes, small enough for the caches. */
enum { CHUNK_ELEMENTS = 1 << 18 };

struct chunk {
    size_t tensor;
    int64_t first, count;
};

struct chunk_buffer {
    void *bytes;
    size_t size;
    bool ready;
};

struct write_work {
    const struct tensor_writer *task;
    struct chunk *chunks;
    uint64_t chunk_count;
    int64_t floats_needed; /* elements of the largest chunk */
    pthread_mutex_t lock;
    pthread_cond_t filled, written;
    uint64_t next;    /* the next chunk that a thread will fill */
    uint64_t done;    /* chunks written */
    int buffer_count; /* chunks between filling and writing */
    struct chunk_buffer *buffers;
    bool stop;
    tn_status status; /* of the first failure */
    char message[512];
};

/* The number of cores this process may use, unless the caller chose a number. */
static int writer_threads(int chosen) {
    if (chosen > 0) return chosen;
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return cores > 0 ? cores : 1;
}

static size_t chunk_bytes(const struct written_tensor *t, int64_t rows) {
    return (size_t)(t->columns / tn_type_block(t->type)) * tn_type_bytes(t->type) * (size_t)rows;
}

/* ---- Threads ---- */

/* Keeps the first failure of any thread. tn_error() is per thread, so its text is copied. */
static void stop_writing(struct write_work *work, tn_status status) {
    pthread_mutex_lock(&work->lock);
    if (!work->stop) {
        work->stop = true;
        work->status = status;
        snprintf(work->message, sizeof work->message, "%s", tn_error());
    }
    pthread_cond_broadcast(&work->filled);
    pthread_cond_broadcast(&work->written);
    pthread_mutex_unlock(&work->lock);
}

static tn_status check_chunk_finite(const struct written_tensor *t, const float *values, int64_t n) {
    /* x*0 is 0 for a finite x and NaN otherwise: one sum instead of a branch per element. */
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += values[i] * 0.0f;
    if (sum == 0) return TN_OK;
    return tn_fail(TN_E_FORMAT, "tensor \"%s\" holds values that are infinite or not a number", t->name);
}

static tn_status convert_chunk(const struct written_tensor *t, const struct chunk *p, const float *values,
                               void *out) {
    int64_t n = t->columns * p->count;
    if (!t->importance) return tn_type_from_f32(t->type, values, out, n, NULL);
    size_t row = chunk_bytes(t, 1);
    for (int64_t r = 0; r < p->count; r++) {
        const float *weights = t->importance + (p->first + r) / t->matrix_rows * t->columns;
        TN_TRY(
            tn_type_from_f32(t->type, values + r * t->columns, (char *)out + (size_t)r * row, t->columns, weights));
    }
    return TN_OK;
}

/* Adds the quantization error of one chunk when the caller collects it. */
static tn_status add_chunk_error(struct write_work *work, const struct chunk *p, const float *values,
                                 const void *bytes, float *back) {
    const struct tensor_writer *task = work->task;
    const struct written_tensor *t = &task->tensors[p->tensor];
    if (!task->squared_error) return TN_OK;
    int64_t n = t->columns * p->count;
    double error = 0, square = 0;
    TN_TRY(tn_type_to_f32(t->type, bytes, back, n));
    for (int64_t i = 0; i < n; i++) {
        double d = (double)values[i] - back[i];
        error += d * d;
        square += (double)values[i] * values[i];
    }
    pthread_mutex_lock(&work->lock);
    task->squared_error[p->tensor] += error;
    task->squared_values[p->tensor] += square;
    pthread_mutex_unlock(&work->lock);
    return TN_OK;
}

static tn_status make_chunk(struct write_work *work, const struct chunk *p, struct chunk_buffer *buffer,
                            float *values, float *back) {
    const struct tensor_writer *task = work->task;
    const struct written_tensor *t = &task->tensors[p->tensor];
    buffer->size = chunk_bytes(t, p->count);
    buffer->bytes = tn_malloc(buffer->size);
    if (!buffer->bytes) return TN_E_NOMEM;
    if (t->raw) return task->source(task->user, p->tensor, p->first, p->count, buffer->bytes);
    TN_TRY(task->source(task->user, p->tensor, p->first, p->count, values));
    TN_TRY(check_chunk_finite(t, values, t->columns * p->count));
    TN_TRY(convert_chunk(t, p, values, buffer->bytes));
    return add_chunk_error(work, p, values, buffer->bytes, back);
}

static void *fill_chunks(void *user) {
    struct write_work *work = user;
    size_t floats = (size_t)work->floats_needed * sizeof(float);
    float *values = tn_malloc(floats), *back = work->task->squared_error ? tn_malloc(floats) : NULL;
    if (!values || (work->task->squared_error && !back)) stop_writing(work, TN_E_NOMEM);
    for (;;) {
        pthread_mutex_lock(&work->lock);
        uint64_t mine = work->next;
        while (!work->stop && mine < work->chunk_count && mine >= work->done + (uint64_t)work->buffer_count) {
            pthread_cond_wait(&work->written, &work->lock);
            mine = work->next;
        }
        bool over = work->stop || mine >= work->chunk_count;
        if (!over) work->next++;
        pthread_mutex_unlock(&work->lock);
        if (over) break;
        struct chunk_buffer *buffer = &work->buffers[mine % (uint64_t)work->buffer_count];
        tn_status status = make_chunk(work, &work->chunks[mine], buffer, values, back);
        if (status != TN_OK) {
            stop_writing(work, status);
            break;
        }
        pthread_mutex_lock(&work->lock);
        buffer->ready = true;
        pthread_cond_signal(&work->filled);
        pthread_mutex_unlock(&work->lock);
    }
    tn_free(values);
    tn_free(back);
    return NULL;
}

/* ---- Writing ---- */

/* Writes the chunks in order as they become ready. */
static tn_status write_chunks(struct write_work *work, tn_gguf_writer *writer) {
    struct progress bar;
    uint64_t bytes = 0, total = 0;
    for (size_t i = 0; i < work->task->tensor_count; i++)
        total += chunk_bytes(&work->task->tensors[i], work->task->tensors[i].rows);
    progress_start(&bar, work->task->title, total, PROGRESS_BYTES);
    tn_status status = TN_OK;
    while (work->done < work->chunk_count && status == TN_OK) {
        struct chunk_buffer *buffer = &work->buffers[work->done % (uint64_t)work->buffer_count];
        pthread_mutex_lock(&work->lock);
        while (!buffer->ready && !work->stop) pthread_cond_wait(&work->filled, &work->lock);
        bool stop = work->stop;
        pthread_mutex_unlock(&work->lock);
        if (stop) break;
        status = interrupted() ? tn_fail(TN_E_ABORTED, "interrupted") : TN_OK;
        if (status == TN_OK) status = tn_gguf_writer_write(writer, buffer->bytes, buffer->size);
        bytes += buffer->size;
        pthread_mutex_lock(&work->lock);
        tn_free(buffer->bytes);
        *buffer = (struct chunk_buffer){0};
        work->done++;
        pthread_cond_broadcast(&work->written);
        pthread_mutex_unlock(&work->lock);
        progress_update(&bar, bytes);
    }
    progress_end(&bar);
    return status;
}

/* Cuts all tensors into chunks of whole rows: the first pass counts them, the second fills the list. */
static tn_status cut_into_chunks(struct write_work *work) {
    const struct tensor_writer *task = work->task;
    for (int pass = 0; pass < 2; pass++) {
        uint64_t n = 0;
        for (size_t i = 0; i < task->tensor_count; i++) {
            const struct written_tensor *t = &task->tensors[i];
            int64_t rows = t->columns < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / t->columns : 1;
            if (rows > t->rows) rows = t->rows;
            if (!t->raw && rows * t->columns > work->floats_needed) work->floats_needed = rows * t->columns;
            for (int64_t first = 0; first < t->rows; first += rows, n++)
                if (pass == 1)
                    work->chunks[n] = (struct chunk){i, first, t->rows - first < rows ? t->rows - first : rows};
        }
        if (pass == 0 && !(work->chunks = tn_calloc((size_t)n, sizeof *work->chunks))) return TN_E_NOMEM;
        work->chunk_count = n;
    }
    return TN_OK;
}

tn_status write_tensors(tn_gguf_writer *writer, const struct tensor_writer *task) {
    int threads = writer_threads(task->threads), started = 0;
    struct write_work work = {.task = task, .buffer_count = threads * 4};
    pthread_t *ids = tn_calloc((size_t)threads, sizeof *ids);
    work.buffers = tn_calloc((size_t)work.buffer_count, sizeof *work.buffers);
    tn_status status = ids && work.buffers ? cut_into_chunks(&work) : TN_E_NOMEM;
    pthread_mutex_init(&work.lock, NULL);
    pthread_cond_init(&work.filled, NULL);
    pthread_cond_init(&work.written, NULL);
    while (status == TN_OK && started < threads) {
        if (pthread_create(&ids[started], NULL, fill_chunks, &work) != 0) {
            if (started == 0) status = tn_fail(TN_E_NOMEM, "cannot start a thread");
            break;
        }
        started++;
    }
    if (status == TN_OK) status = write_chunks(&work, writer);
    if (status != TN_OK) stop_writing(&work, status);
    for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
    if (work.stop) status = tn_fail(work.status, "%s", work.message);
    for (int i = 0; work.buffers && i < work.buffer_count; i++) tn_free(work.buffers[i].bytes);
    pthread_mutex_destroy(&work.lock);
    pthread_cond_destroy(&work.filled);
    pthread_cond_destroy(&work.written);
    tn_free(work.buffers);
    tn_free(work.chunks);
    tn_free(ids);
    return status;
}

/* Makes the tensors of a file piece by piece on several threads and writes them in order. */
#include "files/tensor_writer.h"
#include "cli/cli.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_ELEMENTS = 1 << 18 }; /* 1 MiB of floats: large enough to write well, small enough for the caches */

struct piece {
    size_t tensor;
    int64_t first, count;
};

struct slot {
    void *bytes;
    size_t size;
    bool ready;
};

struct work {
    const struct stream *stream;
    struct piece *pieces;
    uint64_t piece_count;
    int64_t floats_needed; /* elements of the largest piece */
    pthread_mutex_t lock;
    pthread_cond_t filled, written;
    uint64_t next;  /* the next piece that a thread will take */
    uint64_t done;  /* pieces written */
    int slot_count; /* pieces in flight */
    struct slot *slots;
    bool stop;
    tn_status status; /* of the first failure */
    char message[512];
};

int stream_threads(int asked) {
    if (asked > 0) return asked;
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return cores > 0 ? cores : 1;
}

static size_t piece_bytes(const struct stream_tensor *t, int64_t rows) {
    return (size_t)(t->columns / tn_type_block(t->type)) * tn_type_bytes(t->type) * (size_t)rows;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------
 */

/* Keeps the first failure of any thread; the text has to move with it, because messages are per thread. */
static void give_up(struct work *work, tn_status status) {
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

static tn_status check_values(const struct stream_tensor *t, const float *values, int64_t n) {
    /* x*0 is 0 for a finite x and NaN otherwise: one sum instead of a branch per element. */
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += values[i] * 0.0f;
    if (sum == 0) return TN_OK;
    return tn_fail(TN_E_FORMAT, "tensor \"%s\" holds values that are infinite or not a number", t->name);
}

static tn_status convert(const struct stream_tensor *t, const struct piece *p, const float *values, void *out) {
    int64_t n = t->columns * p->count;
    if (!t->importance) return tn_type_from_f32(t->type, values, out, n, NULL);
    size_t row = piece_bytes(t, 1);
    for (int64_t r = 0; r < p->count; r++) {
        const float *weights = t->importance + (p->first + r) / t->matrix_rows * t->columns;
        TN_TRY(
            tn_type_from_f32(t->type, values + r * t->columns, (char *)out + (size_t)r * row, t->columns, weights));
    }
    return TN_OK;
}

/* Adds the error of one piece, if that is wanted. */
static tn_status measure(struct work *work, const struct piece *p, const float *values, const void *bytes,
                         float *back) {
    const struct stream *stream = work->stream;
    const struct stream_tensor *t = &stream->tensors[p->tensor];
    if (!stream->squared_error) return TN_OK;
    int64_t n = t->columns * p->count;
    double error = 0, square = 0;
    TN_TRY(tn_type_to_f32(t->type, bytes, back, n));
    for (int64_t i = 0; i < n; i++) {
        double d = (double)values[i] - back[i];
        error += d * d;
        square += (double)values[i] * values[i];
    }
    pthread_mutex_lock(&work->lock);
    stream->squared_error[p->tensor] += error;
    stream->squared_values[p->tensor] += square;
    pthread_mutex_unlock(&work->lock);
    return TN_OK;
}

static tn_status make_piece(struct work *work, const struct piece *p, struct slot *slot, float *values, float *back) {
    const struct stream *stream = work->stream;
    const struct stream_tensor *t = &stream->tensors[p->tensor];
    slot->size = piece_bytes(t, p->count);
    slot->bytes = tn_malloc(slot->size);
    if (!slot->bytes) return TN_E_NOMEM;
    if (t->raw) return stream->source(stream->user, p->tensor, p->first, p->count, slot->bytes);
    TN_TRY(stream->source(stream->user, p->tensor, p->first, p->count, values));
    TN_TRY(check_values(t, values, t->columns * p->count));
    TN_TRY(convert(t, p, values, slot->bytes));
    return measure(work, p, values, slot->bytes, back);
}

static void *worker(void *user) {
    struct work *work = user;
    size_t floats = (size_t)work->floats_needed * sizeof(float);
    float *values = tn_malloc(floats), *back = work->stream->squared_error ? tn_malloc(floats) : NULL;
    if (!values || (work->stream->squared_error && !back)) give_up(work, TN_E_NOMEM);
    for (;;) {
        pthread_mutex_lock(&work->lock);
        uint64_t mine = work->next;
        while (!work->stop && mine < work->piece_count && mine >= work->done + (uint64_t)work->slot_count) {
            pthread_cond_wait(&work->written, &work->lock);
            mine = work->next;
        }
        bool over = work->stop || mine >= work->piece_count;
        if (!over) work->next++;
        pthread_mutex_unlock(&work->lock);
        if (over) break;
        struct slot *slot = &work->slots[mine % (uint64_t)work->slot_count];
        tn_status status = make_piece(work, &work->pieces[mine], slot, values, back);
        if (status != TN_OK) {
            give_up(work, status);
            break;
        }
        pthread_mutex_lock(&work->lock);
        slot->ready = true;
        pthread_cond_signal(&work->filled);
        pthread_mutex_unlock(&work->lock);
    }
    tn_free(values);
    tn_free(back);
    return NULL;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------
 */

/* Writes pieces in order as they become ready. */
static tn_status write_pieces(struct work *work, tn_gguf_writer *writer) {
    struct progress bar;
    uint64_t bytes = 0, total = 0;
    for (size_t i = 0; i < work->stream->tensor_count; i++)
        total += piece_bytes(&work->stream->tensors[i], work->stream->tensors[i].rows);
    progress_start(&bar, work->stream->title, total, PROGRESS_BYTES);
    tn_status status = TN_OK;
    while (work->done < work->piece_count && status == TN_OK) {
        struct slot *slot = &work->slots[work->done % (uint64_t)work->slot_count];
        pthread_mutex_lock(&work->lock);
        while (!slot->ready && !work->stop) pthread_cond_wait(&work->filled, &work->lock);
        bool stop = work->stop;
        pthread_mutex_unlock(&work->lock);
        if (stop) break;
        status = interrupted() ? tn_fail(TN_E_ABORTED, "interrupted") : TN_OK;
        if (status == TN_OK) status = tn_gguf_writer_write(writer, slot->bytes, slot->size);
        bytes += slot->size;
        pthread_mutex_lock(&work->lock);
        tn_free(slot->bytes);
        *slot = (struct slot){0};
        work->done++;
        pthread_cond_broadcast(&work->written);
        pthread_mutex_unlock(&work->lock);
        progress_update(&bar, bytes);
    }
    progress_end(&bar);
    return status;
}

/* Cuts all tensors into pieces of whole rows. */
static tn_status cut(struct work *work) {
    const struct stream *stream = work->stream;
    for (int pass = 0; pass < 2; pass++) {
        uint64_t n = 0;
        for (size_t i = 0; i < stream->tensor_count; i++) {
            const struct stream_tensor *t = &stream->tensors[i];
            int64_t rows = t->columns < PIECE_ELEMENTS ? PIECE_ELEMENTS / t->columns : 1;
            if (rows > t->rows) rows = t->rows;
            if (!t->raw && rows * t->columns > work->floats_needed) work->floats_needed = rows * t->columns;
            for (int64_t first = 0; first < t->rows; first += rows, n++)
                if (pass == 1)
                    work->pieces[n] = (struct piece){i, first, t->rows - first < rows ? t->rows - first : rows};
        }
        if (pass == 0 && !(work->pieces = tn_calloc((size_t)n, sizeof *work->pieces))) return TN_E_NOMEM;
        work->piece_count = n;
    }
    return TN_OK;
}

tn_status stream_write(tn_gguf_writer *writer, const struct stream *stream) {
    int threads = stream_threads(stream->threads), started = 0;
    struct work work = {.stream = stream, .slot_count = threads * 4};
    pthread_t *ids = tn_calloc((size_t)threads, sizeof *ids);
    work.slots = tn_calloc((size_t)work.slot_count, sizeof *work.slots);
    tn_status status = ids && work.slots ? cut(&work) : TN_E_NOMEM;
    pthread_mutex_init(&work.lock, NULL);
    pthread_cond_init(&work.filled, NULL);
    pthread_cond_init(&work.written, NULL);
    while (status == TN_OK && started < threads) {
        if (pthread_create(&ids[started], NULL, worker, &work) != 0) {
            if (started == 0) status = tn_fail(TN_E_NOMEM, "cannot start a thread");
            break;
        }
        started++;
    }
    if (status == TN_OK) status = write_pieces(&work, writer);
    if (status != TN_OK) give_up(&work, status);
    for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
    if (work.stop) status = tn_fail(work.status, "%s", work.message);
    for (int i = 0; work.slots && i < work.slot_count; i++) tn_free(work.slots[i].bytes);
    pthread_mutex_destroy(&work.lock);
    pthread_cond_destroy(&work.filled);
    pthread_cond_destroy(&work.written);
    tn_free(work.slots);
    tn_free(work.pieces);
    tn_free(ids);
    return status;
}

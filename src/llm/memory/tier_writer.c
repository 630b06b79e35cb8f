/* The writer: a thread that copies blobs from host memory to disk during computation, the least recently used first,
 * so that their memory is free when it is needed. */
#include "llm/memory/tier.h"

#include "base/checked.h"

#include <stdlib.h>

/* Blobs are written when less than this part of host memory is unused. */
enum { UNUSED_SHARE = 4 };

/* Called with the mutex, which it releases while it writes. */
static void write_blob(tn__tiers *t, int32_t i) {
    tn__blob *b = &t->host.index.blobs[i];
    const tn__blob_content content = tn__host_tier_content(&t->host, i);
    const tn__blob_id id = {b->key, b->kind, b->from, b->n, b->tokens};
    b->pins++;
    pthread_mutex_unlock(&t->mutex);
    const tn_status status = tn__disk_tier_write(&t->disk, &t->mutex, &id, &content, b->bytes, b->sum);
    pthread_mutex_lock(&t->mutex);
    b->pins--;
    b->handled = true;
    *(status == TN_OK ? &t->counts.disk_stored : &t->counts.disk_failed) += 1;
}

/* The blob to write next, or -1. */
static int32_t next_to_write(const tn__tiers *t) {
    const tn__blob_index *x = &t->host.index;
    int32_t oldest = -1;
    if (t->wanted >= 0) return t->wanted;
    if (t->stopping || t->host.n_unused > t->host.n_units / UNUSED_SHARE) return -1;
    for (int32_t i = 0; i < x->capacity; i++) {
        const tn__blob *b = &x->blobs[i];
        if (x->used[i] && (oldest < 0 || x->used[i] < x->used[oldest]) && !b->pins && !b->handled && !b->resident)
            oldest = i;
    }
    return oldest;
}

static void *writer_main(void *user) {
    tn__tiers *t = user;
    pthread_mutex_lock(&t->mutex);
    for (;;) {
        const int32_t i = next_to_write(t);
        if (i >= 0) {
            write_blob(t, i);
        } else if (t->stopping) {
            break;
        } else {
            pthread_cond_wait(&t->work, &t->mutex);
            continue;
        }
        if (t->wanted != i) continue;
        t->wanted = -1;
        pthread_cond_signal(&t->done);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

tn_status tn__tier_writer_start(tn__tiers *t) {
    t->wanted = -1;
    if (pthread_create(&t->thread, NULL, writer_main, t) != 0)
        return tn_fail(TN_E_NOMEM, "cannot start the thread that writes kept prefixes to disk");
    t->has_thread = true;
    return TN_OK;
}

void tn__tier_writer_wake(tn__tiers *t) {
    if (t->has_thread) pthread_cond_signal(&t->work);
}

void tn__tier_writer_move(tn__tiers *t, int32_t blob) {
    t->wanted = blob;
    pthread_cond_signal(&t->work);
    while (t->wanted == blob) pthread_cond_wait(&t->done, &t->mutex);
}

typedef struct aged_blob {
    uint64_t used;
    int32_t blob;
} aged_blob;

static int compare_age(const void *a, const void *b) {
    const uint64_t x = ((const aged_blob *)a)->used, y = ((const aged_blob *)b)->used;
    return x < y ? -1 : x > y;
}

void tn__tier_writer_stop(tn__tiers *t) {
    const tn__blob_index *x = &t->host.index;
    if (!t->has_thread) return;
    pthread_mutex_lock(&t->mutex);
    t->stopping = true;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->mutex);
    pthread_join(t->thread, NULL);
    t->has_thread = false;
    /* The most recently used ones that fit the budget together, the oldest of them first. */
    aged_blob *list = tn_malloc((size_t)x->n * sizeof *list + 1);
    int32_t n = 0, first;
    uint64_t bytes = 0;
    for (int32_t i = 0; list && i < x->capacity; i++)
        if (x->used[i]) list[n++] = (aged_blob){x->used[i], i};
    if (n) qsort(list, (size_t)n, sizeof *list, compare_age);
    for (first = n; first > 0; first--) {
        bytes += x->blobs[list[first - 1].blob].bytes + sizeof(tn__blob_header);
        if (bytes > t->disk.budget) break;
    }
    pthread_mutex_lock(&t->mutex);
    for (int32_t i = first; i < n; i++) {
        const tn__blob *b = &x->blobs[list[i].blob];
        const tn__blob_id id = {b->key, b->kind, b->from, b->n, b->tokens};
        if (tn__blob_index_holds(&t->disk.index, &id) < 0) write_blob(t, list[i].blob);
    }
    pthread_mutex_unlock(&t->mutex);
    tn_free(list);
}

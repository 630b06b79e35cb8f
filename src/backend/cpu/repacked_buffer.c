/* The buffer type of repacked weights. Callers see the original bytes: set repacks, get restores. */
#include "backend/cpu/repacked_buffer.h"

#include "backend/cpu/host_buffer.h"
#include "backend/cpu/ops/ops.h"
#include "tenon/cpu.h"

#include <pthread.h>
#include <stdio.h>

static tn_buffer_type repacked_type;

/* Any table will do, because the layout is the same at every level. */
static const tn__cpu_kernels *kernels(void) { return tn__cpu_kernels_get(); }

static bool can_repack_tensor(const tn_tensor *t) {
    return !tn_is_empty(t) && tn_is_contiguous(t) && kernels()->can_repack(t->type, t->ne[1], t->ne[0]);
}
static const tn_tensor *root_of(const tn_tensor *t) { return t->view_src ? t->view_src : t; }

bool tn__is_repacked(const tn_tensor *t) {
    const tn_tensor *root = root_of(t);
    return tn_tensor_buffer_type(root) == &repacked_type && can_repack_tensor(root);
}
size_t tn__repacked_plane_bytes(const tn_tensor *t) { return kernels()->repacked_bytes(t->type, t->ne[1], t->ne[0]); }
const void *tn__repacked_plane(const tn_tensor *t, int64_t i2, int64_t i3) {
    return (const char *)t->data + (size_t)(i3 * t->ne[2] + i2) * tn__repacked_plane_bytes(t);
}

bool tn__supports_repacked_sources(const tn_tensor *node, char *reason, size_t size) {
    for (int i = 0; i < TN_MAX_SRC; i++) {
        const tn_tensor *x = node->src[i];
        if (!x || !tn__is_repacked(x)) continue;
        bool reads = node->op == TN_OP_MUL_MAT || node->op == TN_OP_MUL_MAT_ID || node->op == TN_OP_GET_ROWS;
        if (!reads || i != 0)
            return tn__refuse(reason, size, "%s does not read repacked weights", tn_op_name(node->op));
        if (x->view_src && (x->view_offset || !tn_same_layout(x, x->view_src)))
            return tn__refuse(reason, size, "%s: cannot read a part of repacked weights", tn_op_name(node->op));
    }
    return true;
}

/* ---- Sizes ---- */

static size_t repacked_tensor_size(tn_buffer_type *type, const tn_tensor *t) {
    size_t bytes;
    if (t->view_src || !can_repack_tensor(t)) return tn_nbytes(t);
    return tn__mul_size(tn__repacked_plane_bytes(t), (size_t)(t->ne[2] * t->ne[3]), &bytes) ? bytes : SIZE_MAX;
}

/* Whether repacking makes the mat-mul faster, or gives the same bits for few rows and for many:
 *
 *   q4_0, q4_K  unpacking rows takes longer than reading them from memory; repacked, decode is up to a third
 *               faster (bench/matmul only=gemv)
 *   q6_K        decodes of two sequences or more are up to twice as fast; one activation row is limited by memory
 *   q8_0        q8_0x16 is multiplied with several rows without a transposition; one row of a model in the
 *               last-level cache is a fifth faster, and is limited by memory otherwise
 *
 * With AMX, tiles of blocks can be built during multiplications only from repacked weights. Only repacked blocks are
 * added in the same order for one row and for several: a guess of several tokens is then verified with the bits of
 * decoding them one by one. `rows` does not matter. Other types gain nothing. */
static bool repacked_wants(tn_buffer_type *type, const tn_tensor *t, int64_t rows) {
    (void)type, (void)rows;
    const bool wanted = t->type == TN_Q4_0 || t->type == TN_Q4_K || t->type == TN_Q6_K || t->type == TN_Q8_0;
    return wanted && !t->view_src && can_repack_tensor(t);
}

/* ---- Data ---- */

enum { GROUP = 16 }; /* rows of a group */

/* The part of one group that a range of the tensor's original bytes covers. */
typedef struct group_piece {
    void *plane;
    int64_t group;
    size_t rows_at;     /* offset of the group in the original bytes */
    size_t rows_size;   /* its size there */
    size_t begin, size; /* the part in the range, relative to the group */
} group_piece;

static group_piece group_piece_at(const tn_tensor *t, size_t offset, size_t end) {
    const size_t row = t->nb[1], plane = t->nb[2];
    const int64_t index = (int64_t)(offset / plane), group = (int64_t)(offset % plane / (row * GROUP));
    group_piece p = {.group = group, .rows_at = (size_t)index * plane + (size_t)group * row * GROUP};
    p.plane = (char *)t->data + (size_t)index * tn__repacked_plane_bytes(t);
    p.rows_size = TN__MIN(row * GROUP, plane - (size_t)group * row * GROUP);
    p.begin = offset - p.rows_at;
    p.size = TN__MIN(end, p.rows_at + p.rows_size) - offset;
    return p;
}

static void restore_group(const tn_tensor *t, const group_piece *p, char *rows) {
    for (int64_t r = 0; (size_t)r * t->nb[1] < p->rows_size; r++)
        kernels()->repacked_read_row(t->type, t->ne[1], t->ne[0], p->plane, p->group * GROUP + r,
                                     rows + (size_t)r * t->nb[1]);
}
/* Repacks the group as a matrix of up to 16 rows. */
static void repack_group(const tn_tensor *t, const group_piece *p, const char *rows) {
    char *to = (char *)p->plane + (size_t)p->group * kernels()->repacked_bytes(t->type, GROUP, t->ne[0]);
    kernels()->repack(t->type, (int64_t)(p->rows_size / t->nb[1]), t->ne[0], rows, t->nb[1], to, 0, 1);
}

static tn_status no_views(const tn_tensor *t) {
    return t->view_src
               ? tn_fail(TN_E_UNSUPPORTED,
                         "'%s' is a view of repacked weights: access the data through its root tensor", t->name)
               : TN_OK;
}

/* Repacks whole groups on all processors: repacking a model takes seconds. */
typedef struct repack_job {
    const tn_tensor *tensor;
    const char *data; /* of `offset` */
    size_t offset, end;
    _Atomic size_t next;
} repack_job;
static void repack_groups(void *user, int index, int count) {
    repack_job *job = user;
    const size_t step = job->tensor->nb[1] * GROUP;
    for (size_t at;
         (at = job->offset + atomic_fetch_add_explicit(&job->next, step, memory_order_relaxed)) < job->end;) {
        const group_piece p = group_piece_at(job->tensor, at, job->end);
        repack_group(job->tensor, &p, job->data + (at - job->offset));
    }
}

enum { WORTH_THREADS = 1 << 20 };

/* NULL for small sizes, or without memory for a pool: the caller then works on its own thread. */
static tn_threadpool *pool_for(size_t size) {
    tn_threadpool *pool = NULL;
    tn_threadpool_params params = tn_threadpool_params_default(0);
    params.poll = 0;
    if (size >= WORTH_THREADS && tn_threadpool_new(&params, &pool) != TN_OK) tn_error_clear();
    return pool;
}

/* Repacks the whole groups of one plane at the start of the range; returns their bytes. */
static size_t set_groups(const tn_tensor *t, const char *data, size_t offset, size_t end) {
    const size_t step = t->nb[1] * GROUP, plane = t->nb[2], at = offset % plane;
    size_t size = TN__MIN(end - offset, plane - at);
    if (at % step) return 0;
    if (size < plane - at) size -= size % step; /* the last group of a plane may be short */
    if (size == 0) return 0;
    repack_job job = {.tensor = t, .data = data, .offset = offset, .end = offset + size};
    tn_threadpool *pool = pool_for(size);
    if (pool)
        tn_threadpool_run(pool, 0, repack_groups, &job);
    else
        repack_groups(&job, 0, 1);
    tn_threadpool_free(pool);
    return size;
}

static tn_status repacked_set(tn_buffer *buffer, tn_tensor *t, const void *data, size_t offset, size_t size) {
    if (!tn__is_repacked(t)) {
        memcpy((char *)t->data + offset, data, size);
        return TN_OK;
    }
    TN_TRY(no_views(t));
    char *rows = NULL;
    const size_t start = offset, end = offset + size;
    while (offset < end) {
        const char *from = (const char *)data + (offset - start);
        size_t done = set_groups(t, from, offset, end);
        if (!done) { /* part of a group: the rest is preserved */
            const group_piece p = group_piece_at(t, offset, end);
            if (!rows && !(rows = tn_malloc(t->nb[1] * GROUP))) return TN_E_NOMEM;
            restore_group(t, &p, rows);
            memcpy(rows + p.begin, from, p.size);
            repack_group(t, &p, rows);
            done = p.size;
        }
        offset += done;
    }
    tn_free(rows);
    return TN_OK;
}

/* ---- Loading through a reader ---- */

/* Threads take portions, which are whole groups of one plane. Each thread reads into its own buffer and repacks from
 * there. */
typedef struct load_job {
    tn_tensor_source source;
    char *buffers;
    size_t portion, per_plane, count; /* bytes of a portion, portions of a plane and of all planes */
    _Atomic size_t next;
    atomic_bool failed;
    pthread_mutex_t lock; /* of status and text, the first failure; error messages are per thread */
    tn_status status;
    char text[2048];
} load_job;

static void keep_first_failure(load_job *job, tn_status status) {
    pthread_mutex_lock(&job->lock);
    if (!atomic_exchange(&job->failed, true)) {
        job->status = status;
        snprintf(job->text, sizeof job->text, "%s", tn_error());
    }
    pthread_mutex_unlock(&job->lock);
}

static void load_portions(void *user, int index, int count) {
    load_job *job = user;
    const tn_tensor *t = job->source.tensor;
    char *rows = job->buffers + (size_t)index * job->portion;
    for (size_t i; !atomic_load(&job->failed) && (i = atomic_fetch_add(&job->next, 1)) < job->count;) {
        const size_t in_plane = i % job->per_plane * job->portion;
        const size_t at = i / job->per_plane * t->nb[2] + in_plane, size = TN__MIN(job->portion, t->nb[2] - in_plane);
        tn_status status = job->source.read(job->source.user, at, rows, size);
        if (status != TN_OK) return keep_first_failure(job, status);
        for (size_t done = 0; done < size;) {
            const group_piece p = group_piece_at(t, at + done, at + size);
            repack_group(t, &p, rows + done);
            done += p.size;
        }
    }
}

static tn_status load_tensor(const tn_tensor_source *source, tn_threadpool *pool) {
    enum { PORTION = 256 << 10 }; /* large enough to amortize a system call, small enough for a core's cache */
    const tn_tensor *t = source->tensor;
    if (!tn__is_repacked(t)) return source->read(source->user, 0, t->data, tn_nbytes(t));
    TN_TRY(no_views(t));
    const size_t group = t->nb[1] * GROUP, plane = t->nb[2], size = tn_nbytes(t);
    load_job job = {.source = *source};
    job.portion = TN__MIN(group * TN__MAX(PORTION / group, (size_t)1), plane);
    job.per_plane = (plane + job.portion - 1) / job.portion;
    job.count = size / plane * job.per_plane;
    const size_t threads = pool ? TN__MIN((size_t)tn_threadpool_size(pool), job.count) : 1;
    job.buffers = tn_malloc(threads * job.portion);
    if (!job.buffers) return TN_E_NOMEM;
    pthread_mutex_init(&job.lock, NULL);
    if (threads > 1)
        tn_threadpool_run(pool, (int)threads, load_portions, &job);
    else
        load_portions(&job, 0, 1);
    tn_free(job.buffers);
    pthread_mutex_destroy(&job.lock);
    return job.failed ? tn_fail(job.status, "%s", job.text) : TN_OK;
}

static tn_status repacked_load(tn_buffer *buffer, const tn_tensor_source *sources, size_t n) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++) size += tn_nbytes(sources[i].tensor);
    tn_threadpool *pool = pool_for(size);
    tn_status status = TN_OK;
    for (size_t i = 0; i < n && status == TN_OK; i++) status = load_tensor(&sources[i], pool);
    tn_threadpool_free(pool);
    return status;
}

static tn_status repacked_get(tn_buffer *buffer, const tn_tensor *t, void *data, size_t offset, size_t size) {
    if (!tn__is_repacked(t)) {
        memcpy(data, (const char *)t->data + offset, size);
        return TN_OK;
    }
    TN_TRY(no_views(t));
    const size_t row = t->nb[1];
    char *rest = NULL; /* a row of which only a part is read */
    for (size_t at = offset, end = offset + size; at < end;) {
        const size_t begin = at % row, part = TN__MIN(row - begin, end - at);
        char *to = (char *)data + (at - offset);
        if (part < row && !rest && !(rest = tn_malloc(row))) return TN_E_NOMEM;
        const int64_t index = (int64_t)(at / t->nb[2]), r = (int64_t)(at % t->nb[2] / row);
        kernels()->repacked_read_row(t->type, t->ne[1], t->ne[0],
                                     (char *)t->data + (size_t)index * tn__repacked_plane_bytes(t), r,
                                     part < row ? rest : to);
        if (part < row) memcpy(to, rest + begin, part);
        at += part;
    }
    tn_free(rest);
    return TN_OK;
}

static tn_status repacked_fill(tn_buffer *buffer, tn_tensor *t, uint8_t value, size_t offset, size_t size) {
    if (!tn__is_repacked(t)) {
        memset((char *)t->data + offset, value, size);
        return TN_OK;
    }
    const size_t most = t->nb[1] * GROUP;
    char *bytes = tn_malloc(most);
    if (!bytes) return TN_E_NOMEM;
    memset(bytes, value, most);
    tn_status status = TN_OK;
    for (size_t at = offset, end = offset + size; at < end && status == TN_OK;) {
        const group_piece p = group_piece_at(t, at, end);
        status = repacked_set(buffer, t, bytes, at, p.size);
        at += p.size;
    }
    tn_free(bytes);
    return status;
}

static tn_status repacked_clear(tn_buffer *buffer, uint8_t value) {
    memset(buffer->base, value, buffer->size);
    return TN_OK;
}

static const tn_buffer_ops repacked_ops = {.free = tn__host_buffer_free,
                                           .set = repacked_set,
                                           .get = repacked_get,
                                           .fill = repacked_fill,
                                           .clear = repacked_clear,
                                           .load = repacked_load};

static tn_status repacked_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    TN_TRY(tn__host_buffer_type_ops.buffer_new(type, size, out));
    (*out)->ops = &repacked_ops;
    return TN_OK;
}

static const tn_buffer_type_ops repacked_type_ops = {
    .buffer_new = repacked_buffer_new, .tensor_size = repacked_tensor_size, .wants = repacked_wants};

/* is_host is false: the bytes in memory are not the tensor's bytes. */
static tn_buffer_type repacked_type = {
    .ops = &repacked_type_ops,
    .name = "cpu-repacked",
    .alignment = TN__HOST_ALIGN,
    .max_size = PTRDIFF_MAX - 4096,
    .is_host = false,
};

tn_buffer_type *tn__repacked_buffer_type(void) { return &repacked_type; }
void tn__repacked_buffer_init(tn_device *device) { repacked_type.device = device; }

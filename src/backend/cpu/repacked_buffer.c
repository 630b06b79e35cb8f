/* The packed buffer type. Outside it weights have their usual bytes: set packs, get unpacks. */
#include "backend/cpu/repacked_buffer.h"

#include "backend/cpu/host_buffer.h"
#include "backend/cpu/ops/ops.h"
#include "tenon/cpu.h"

#include <pthread.h>
#include <stdio.h>

static tn_buffer_type packed_type;

/* The layout is the same at every level, so any table will do. */
static const tn__cpu_kernels *kernels(void) { return tn__cpu_kernels_get(); }

static bool packs(const tn_tensor *t) {
    return !tn_is_empty(t) && tn_is_contiguous(t) && kernels()->can_pack(t->type, t->ne[1], t->ne[0]);
}
static const tn_tensor *root_of(const tn_tensor *t) { return t->view_src ? t->view_src : t; }

bool tn__is_packed(const tn_tensor *t) {
    const tn_tensor *root = root_of(t);
    return root->buffer && root->buffer->type == &packed_type && packs(root);
}
size_t tn__packed_plane_bytes(const tn_tensor *t) { return kernels()->packed_bytes(t->type, t->ne[1], t->ne[0]); }
const void *tn__packed_plane(const tn_tensor *t, int64_t i2, int64_t i3) {
    return (const char *)t->data + (size_t)(i3 * t->ne[2] + i2) * tn__packed_plane_bytes(t);
}

bool tn__supports_packed_sources(const tn_tensor *node, char *reason, size_t size) {
    for (int i = 0; i < TN_MAX_SRC; i++) {
        const tn_tensor *x = node->src[i];
        if (!x || !tn__is_packed(x)) continue;
        bool reads = node->op == TN_OP_MUL_MAT || node->op == TN_OP_MUL_MAT_ID || node->op == TN_OP_GET_ROWS;
        if (!reads || i != 0)
            return tn__refuse(reason, size, "%s does not read packed weights", tn_op_name(node->op));
        if (x->view_src && (x->data != x->view_src->data || !tn_same_layout(x, x->view_src)))
            return tn__refuse(reason, size, "%s: a part of packed weights cannot be read", tn_op_name(node->op));
    }
    return true;
}

/* ---- Sizes --------------------------------------------------------------------------------------------------- */

static size_t tensor_size(tn_buffer_type *type, const tn_tensor *t) {
    size_t bytes;
    if (t->view_src || !packs(t)) return tn_nbytes(t);
    return tn__mul_size(tn__packed_plane_bytes(t), (size_t)(t->ne[2] * t->ne[3]), &bytes) ? bytes : SIZE_MAX;
}

/* Types whose rows take more instructions to unpack than memory takes to deliver them: decode is up to a third faster
 * packed (bench/matmul only=gemv). Tiles want all blocks packed: only then are they made while others are multiplied.
 * Packed q8_0 is multiplied with several rows as it lies, without being turned first; with as many rows as a prompt
 * has, turning costs next to nothing. The rest gains nothing. */
static bool wants(tn_buffer_type *type, const tn_tensor *t, int64_t rows) {
    enum { SEVERAL = 16 };
    const bool tiles = kernels()->level == TN__CPU_AMX && (t->type == TN_Q8_0 || t->type == TN_Q6_K);
    const bool several = t->type == TN_Q8_0 && rows >= SEVERAL;
    return (t->type == TN_Q4_0 || t->type == TN_Q4_K || tiles || several) && !t->view_src && packs(t);
}

/* ---- Data ---------------------------------------------------------------------------------------------------- */

enum { GROUP = 16 }; /* rows that are packed together */

/* A range of a tensor's usual bytes, group by group: what part of the group at `rows` it covers. */
typedef struct piece {
    void *plane;
    int64_t group;
    size_t rows_at;     /* where the group begins in the usual bytes */
    size_t rows_size;   /* and how long it is */
    size_t begin, size; /* the part that is in the range, from the group's beginning */
} piece;

static piece piece_at(const tn_tensor *t, size_t offset, size_t end) {
    const size_t row = t->nb[1], plane = t->nb[2];
    const int64_t index = (int64_t)(offset / plane), group = (int64_t)(offset % plane / (row * GROUP));
    piece p = {.group = group, .rows_at = (size_t)index * plane + (size_t)group * row * GROUP};
    p.plane = (char *)t->data + (size_t)index * tn__packed_plane_bytes(t);
    p.rows_size = TN__MIN(row * GROUP, plane - (size_t)group * row * GROUP);
    p.begin = offset - p.rows_at;
    p.size = TN__MIN(end, p.rows_at + p.rows_size) - offset;
    return p;
}

static void unpack_group(const tn_tensor *t, const piece *p, char *rows) {
    for (int64_t r = 0; (size_t)r * t->nb[1] < p->rows_size; r++)
        kernels()->unpack_row(t->type, t->ne[1], t->ne[0], p->plane, p->group * GROUP + r,
                              rows + (size_t)r * t->nb[1]);
}
/* The group as a matrix of its own. */
static void pack_group(const tn_tensor *t, const piece *p, const char *rows) {
    char *to = (char *)p->plane + (size_t)p->group * kernels()->packed_bytes(t->type, GROUP, t->ne[0]);
    kernels()->pack(t->type, (int64_t)(p->rows_size / t->nb[1]), t->ne[0], rows, t->nb[1], to, 0, 1);
}

static tn_status no_views(const tn_tensor *t) {
    return t->view_src
               ? tn_fail(TN_E_UNSUPPORTED, "'%s': the data of packed weights is reached through its root", t->name)
               : TN_OK;
}

/* Whole groups, by as many threads as there are processors: packing a model takes seconds. */
typedef struct pack_job {
    const tn_tensor *tensor;
    const char *data; /* of `offset` */
    size_t offset, end;
    _Atomic size_t next;
} pack_job;
static void pack_groups(void *user, int index, int count) {
    pack_job *job = user;
    const size_t step = job->tensor->nb[1] * GROUP;
    for (size_t at;
         (at = job->offset + atomic_fetch_add_explicit(&job->next, step, memory_order_relaxed)) < job->end;) {
        const piece p = piece_at(job->tensor, at, job->end);
        pack_group(job->tensor, &p, job->data + (at - job->offset));
    }
}

enum { WORTH_THREADS = 1 << 20 };

/* NULL where it is not worth it, or where there is no memory for one: the caller then does the work alone. */
static tn_threadpool *pool_for(size_t size) {
    tn_threadpool *pool = NULL;
    tn_threadpool_params params = tn_threadpool_params_default(0);
    params.poll = 0;
    if (size >= WORTH_THREADS && tn_threadpool_new(&params, &pool) != TN_OK) tn_error_clear();
    return pool;
}

/* Packs the whole groups of one plane at the start of the range; returns their bytes. */
static size_t set_groups(const tn_tensor *t, const char *data, size_t offset, size_t end) {
    const size_t step = t->nb[1] * GROUP, plane = t->nb[2], at = offset % plane;
    size_t size = TN__MIN(end - offset, plane - at);
    if (at % step) return 0;
    if (size < plane - at) size -= size % step; /* the last group of a plane may be short */
    if (size == 0) return 0;
    pack_job job = {.tensor = t, .data = data, .offset = offset, .end = offset + size};
    tn_threadpool *pool = pool_for(size);
    if (pool)
        tn_threadpool_run(pool, 0, pack_groups, &job);
    else
        pack_groups(&job, 0, 1);
    tn_threadpool_free(pool);
    return size;
}

static tn_status set(tn_buffer *buffer, tn_tensor *t, const void *data, size_t offset, size_t size) {
    if (!tn__is_packed(t)) {
        memcpy((char *)t->data + offset, data, size);
        return TN_OK;
    }
    TN_TRY(no_views(t));
    char *rows = NULL;
    const size_t start = offset, end = offset + size;
    while (offset < end) {
        const char *from = (const char *)data + (offset - start);
        size_t done = set_groups(t, from, offset, end);
        if (!done) { /* part of a group: the rest stays as it is */
            const piece p = piece_at(t, offset, end);
            if (!rows && !(rows = tn_malloc(t->nb[1] * GROUP))) return TN_E_NOMEM;
            unpack_group(t, &p, rows);
            memcpy(rows + p.begin, from, p.size);
            pack_group(t, &p, rows);
            done = p.size;
        }
        offset += done;
    }
    tn_free(rows);
    return TN_OK;
}

/* ---- From a reader ------------------------------------------------------------------------------------------- */

/* Threads take portions of whole groups of one plane in turn; each reads into a place of its own and packs from
 * there. */
typedef struct load_job {
    tn_tensor_source source;
    char *places;
    size_t portion, per_plane, count; /* bytes of a portion, portions of a plane and of all planes */
    _Atomic size_t next;
    atomic_bool failed;
    pthread_mutex_t lock; /* of the first failure, with its text: messages are per thread */
    tn_status status;
    char text[2048];
} load_job;

static void keep_failure(load_job *job, tn_status status) {
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
    char *rows = job->places + (size_t)index * job->portion;
    for (size_t i; !atomic_load(&job->failed) && (i = atomic_fetch_add(&job->next, 1)) < job->count;) {
        const size_t in_plane = i % job->per_plane * job->portion;
        const size_t at = i / job->per_plane * t->nb[2] + in_plane, size = TN__MIN(job->portion, t->nb[2] - in_plane);
        tn_status status = job->source.read(job->source.user, at, rows, size);
        if (status != TN_OK) return keep_failure(job, status);
        for (size_t done = 0; done < size;) {
            const piece p = piece_at(t, at + done, at + size);
            pack_group(t, &p, rows + done);
            done += p.size;
        }
    }
}

static tn_status load_tensor(const tn_tensor_source *source, tn_threadpool *pool) {
    enum { PORTION = 256 << 10 }; /* large enough for a call of the system, small enough for a core's cache */
    const tn_tensor *t = source->tensor;
    if (!tn__is_packed(t)) return source->read(source->user, 0, t->data, tn_nbytes(t));
    TN_TRY(no_views(t));
    const size_t group = t->nb[1] * GROUP, plane = t->nb[2], size = tn_nbytes(t);
    load_job job = {.source = *source};
    job.portion = TN__MIN(group * TN__MAX(PORTION / group, (size_t)1), plane);
    job.per_plane = (plane + job.portion - 1) / job.portion;
    job.count = size / plane * job.per_plane;
    const size_t threads = pool ? TN__MIN((size_t)tn_threadpool_size(pool), job.count) : 1;
    job.places = tn_malloc(threads * job.portion);
    if (!job.places) return TN_E_NOMEM;
    pthread_mutex_init(&job.lock, NULL);
    if (threads > 1)
        tn_threadpool_run(pool, (int)threads, load_portions, &job);
    else
        load_portions(&job, 0, 1);
    tn_free(job.places);
    pthread_mutex_destroy(&job.lock);
    return job.failed ? tn_fail(job.status, "%s", job.text) : TN_OK;
}

static tn_status load(tn_buffer *buffer, const tn_tensor_source *sources, size_t n) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++) size += tn_nbytes(sources[i].tensor);
    tn_threadpool *pool = pool_for(size);
    tn_status status = TN_OK;
    for (size_t i = 0; i < n && status == TN_OK; i++) status = load_tensor(&sources[i], pool);
    tn_threadpool_free(pool);
    return status;
}

static tn_status get(tn_buffer *buffer, const tn_tensor *t, void *data, size_t offset, size_t size) {
    if (!tn__is_packed(t)) {
        memcpy(data, (const char *)t->data + offset, size);
        return TN_OK;
    }
    TN_TRY(no_views(t));
    const size_t row = t->nb[1];
    char *rest = NULL; /* a row of which only a part is wanted */
    for (size_t at = offset, end = offset + size; at < end;) {
        const size_t begin = at % row, part = TN__MIN(row - begin, end - at);
        char *to = (char *)data + (at - offset);
        if (part < row && !rest && !(rest = tn_malloc(row))) return TN_E_NOMEM;
        const int64_t index = (int64_t)(at / t->nb[2]), r = (int64_t)(at % t->nb[2] / row);
        kernels()->unpack_row(t->type, t->ne[1], t->ne[0],
                              (char *)t->data + (size_t)index * tn__packed_plane_bytes(t), r, part < row ? rest : to);
        if (part < row) memcpy(to, rest + begin, part);
        at += part;
    }
    tn_free(rest);
    return TN_OK;
}

static tn_status fill(tn_buffer *buffer, tn_tensor *t, uint8_t value, size_t offset, size_t size) {
    if (!tn__is_packed(t)) {
        memset((char *)t->data + offset, value, size);
        return TN_OK;
    }
    const size_t most = t->nb[1] * GROUP;
    char *bytes = tn_malloc(most);
    if (!bytes) return TN_E_NOMEM;
    memset(bytes, value, most);
    tn_status status = TN_OK;
    for (size_t at = offset, end = offset + size; at < end && status == TN_OK;) {
        const piece p = piece_at(t, at, end);
        status = set(buffer, t, bytes, at, p.size);
        at += p.size;
    }
    tn_free(bytes);
    return status;
}

static tn_status clear(tn_buffer *buffer, uint8_t value) {
    memset(buffer->base, value, buffer->size);
    return TN_OK;
}

static const tn_buffer_ops packed_ops = {
    .free = tn__host_buffer_free, .set = set, .get = get, .fill = fill, .clear = clear, .load = load};

static tn_status buffer_new(tn_buffer_type *type, size_t size, tn_buffer **out) {
    TN_TRY(tn__host_buffer_type_ops.buffer_new(type, size, out));
    (*out)->ops = &packed_ops;
    return TN_OK;
}

static const tn_buffer_type_ops packed_type_ops = {
    .buffer_new = buffer_new, .tensor_size = tensor_size, .wants = wants};

/* Not host memory in the sense of the interface: its bytes are not the tensor's. */
static tn_buffer_type packed_type = {
    .ops = &packed_type_ops,
    .name = "cpu-packed",
    .alignment = TN__HOST_ALIGN,
    .max_size = PTRDIFF_MAX - 4096,
    .is_host = false,
};

tn_buffer_type *tn__packed_buffer_type(void) { return &packed_type; }
void tn__packed_buffer_init(tn_device *device) { packed_type.device = device; }

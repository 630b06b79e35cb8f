/* Loading weights: mapped where the device can compute on the file's pages, else read into its memory. */
#include "llm/load.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

static tn_status add_weight_buffer(tn_model *m, tn_buffer *buffer, bool mapped) {
    tn__weight_buffer *grown = tn_realloc(m->buffers, (m->n_buffers + 1) * sizeof *grown);
    if (!grown) {
        tn_buffer_free(buffer);
        return TN_E_NOMEM;
    }
    m->buffers = grown;
    tn_buffer_set_usage(buffer, TN_USAGE_WEIGHTS);
    m->buffers[m->n_buffers++] = (tn__weight_buffer){buffer, mapped};
    return TN_OK;
}

tn_buffer_type *tn__weight_memory(const tn__load *l, const tn__weight *w) {
    tn_buffer_type *plain = l->types[l->device_of(l->user, w)], *extra;
    if (!l->repack || !w->multiplied) return plain;
    for (size_t i = 0; (extra = tn_device_extra_buffer_type(tn_buffer_type_device(plain), i)); i++)
        if (tn_buffer_type_wants(extra, w->tensor, l->rows)) return extra;
    return plain;
}

/* Whether the device of this weight computes on the mapped file: in plain host memory, or in unified memory.
 * Unified memory requires GGUF's default alignment, for wide loads. */
static bool reads_the_map(tn_buffer_type *type, const void *data) {
    tn_device *device = tn_buffer_type_device(type);
    const tn_device_caps caps = tn_device_get_caps(device);
    if (!caps.wrap_host || type != tn_device_buffer_type(device)) return false;
    return tn_buffer_type_is_host(type) || (caps.unified && (uintptr_t)data % 32 == 0);
}
static bool can_map(const tn__load *l, const tn__weight *w) {
    return w->data && reads_the_map(tn__weight_memory(l, w), w->data);
}
/* For a file that was opened without its data; a session would map it. */
static bool would_map(const tn_model *m, const tn__weight *w, tn_buffer_type *type) {
    return !tn_gguf_has_data(w->file) && !m->share.receives && reads_the_map(type, NULL) &&
           tn__slice_start(w->info, &w->slice) != SIZE_MAX;
}

size_t tn__load_size(const tn_model *m, const tn__load *l, const tn__weight *w) {
    tn_buffer_type *type = tn__weight_memory(l, w);
    if (can_map(l, w) || would_map(m, w, type)) return 0;
    return tn__align_up(tn_buffer_type_tensor_size(type, w->tensor), tn_buffer_type_alignment(type));
}

tn_status tn__load_check(const tn_model *m, const tn__load *l) {
    for (size_t i = 0; i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (w->ignored) continue;
        tn_buffer_type *type = tn__weight_memory(l, w);
        size_t size = tn__load_size(m, l, w), most = tn_buffer_type_max_size(type);
        if (size > most)
            return tn_fail(TN_E_TOO_BIG,
                           "weight '%s' needs %zu bytes, the largest allocation in %s has %zu; to make it fit: a "
                           "smaller quantization, or this weight on another device (--override-tensor)",
                           w->info->name, size, tn_buffer_type_name(type), most);
    }
    return TN_OK;
}

tn_status tn__load_sizes(const tn_model *m, const tn__load *l, size_t *sizes, size_t *mapped) {
    memset(sizes, 0, l->n_types * sizeof *sizes);
    memset(mapped, 0, l->n_types * sizeof *mapped);
    for (size_t i = 0; i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (w->ignored) continue;
        size_t d = (size_t)l->device_of(l->user, w), size = tn__load_size(m, l, w);
        sizes[d] += size;
        if (!size) mapped[d] += w->size;
    }
    return TN_OK;
}

/* One buffer over the range of the map that a device's tensors of one file part span. */
static tn_status map_file_part(tn_model *m, const tn__load *l, tn_buffer_type *type, const tn_gguf *file, int part) {
    const char *low = NULL, *high = NULL;
    for (size_t i = 0; i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (w->ignored || w->file != file || w->info->part != part || tn__weight_memory(l, w) != type ||
            !can_map(l, w))
            continue;
        const char *data = w->data;
        if (!low || data < low) low = data;
        if (!high || data + w->size > high) high = data + w->size;
    }
    if (!low) return TN_OK;
    tn_buffer *buffer;
    tn_device *device = tn_buffer_type_device(type);
    TN_TRY(tn_device_wrap_host(device, (void *)(uintptr_t)low, (size_t)(high - low), &buffer));
    TN_TRY(add_weight_buffer(m, buffer, true));
    for (size_t i = 0; i < m->n_all; i++) {
        tn__weight *w = &m->all[i];
        if (w->ignored || w->file != file || w->info->part != part || tn__weight_memory(l, w) != type ||
            !can_map(l, w))
            continue;
        w->tensor->data = (void *)(uintptr_t)w->data;
        w->tensor->buffer = buffer;
    }
    return TN_OK;
}
static tn_status map_files(tn_model *m, const tn__load *l) {
    for (size_t d = 0; d < l->n_types; d++)
        for (int f = 0; f < 2 && (!f || m->params.target); f++) {
            const tn_gguf *file = f ? m->params.target->file : m->file;
            for (int part = 0; part < tn_gguf_part_count(file); part++)
                TN_TRY(map_file_part(m, l, l->types[d], file, part));
        }
    return TN_OK;
}

static tn_status ask_load_abort(const tn__load *l) {
    return l->abort && l->abort(l->abort_user) ? tn_fail(TN_E_ABORTED, "loading was stopped by the abort callback")
                                               : TN_OK;
}

typedef struct weight_source {
    const tn__load *load;
    tn_model *model;
    const tn__weight *weight;
} weight_source;
/* Reads the file even where it is mapped: page faults cost more than the copy, and a truncated file is an error
 * instead of a signal. */
static tn_status read_weight_part(tn_model *m, const tn__weight *w, size_t offset, void *to, size_t size) {
    if (m->share.receives) return tn__share_read(m, w, offset, to, size);
    return tn__slice_read(w->file, w->info, &w->slice, offset, to, size);
}
static tn_status read_weight(void *user, size_t offset, void *to, size_t size) {
    const weight_source *source = user;
    TN_TRY(ask_load_abort(source->load));
    return read_weight_part(source->model, source->weight, offset, to, size);
}

/* Reads bound weights in portions and reports progress after each. Portions are large, but every model has several.
 */
static tn_status read_weights(const tn__load *l, const tn_tensor_source *sources, size_t n, size_t *done,
                              size_t total) {
    const size_t portion = TN__MAX(total / 32, TN__MIN(total / 4 + 1, (size_t)64 << 20));
    for (size_t begin = 0, end; begin < n; begin = end) {
        size_t size = 0;
        for (end = begin; end < n && size < portion; end++) size += tn_nbytes(sources[end].tensor);
        TN_TRY(tn_tensors_load(sources + begin, end - begin));
        *done += size;
        if (l->progress && !l->progress(l->progress_user, *done, total))
            return tn_fail(TN_E_ABORTED, "loading was cancelled");
    }
    return TN_OK;
}

/* Weights that must be copied to one type of memory, in as few buffers as the largest allocation allows. `sources`
 * and `files` have one entry per weight of the model. */
static tn_status upload_weights(tn_model *m, const tn__load *l, tn_buffer_type *type, tn_tensor_source *sources,
                                weight_source *files, size_t *done, size_t total) {
    size_t align = tn_buffer_type_alignment(type), max = tn_buffer_type_max_size(type);
    for (size_t begin = 0; begin < m->n_all;) {
        size_t size = 0, end = begin, n = 0, offset = 0;
        for (; end < m->n_all; end++) {
            const tn__weight *w = &m->all[end];
            if (w->ignored || tn__weight_memory(l, w) != type || can_map(l, w)) continue;
            size_t need = tn__align_up(tn_buffer_type_tensor_size(type, w->tensor), align);
            if (size && need > max - size) break;
            size += need;
            files[n] = (weight_source){l, m, w};
            sources[n] = (tn_tensor_source){w->tensor, read_weight, &files[n]};
            n++;
        }
        if (n) {
            tn_buffer *buffer;
            TN_TRY(tn_buffer_new(type, size, &buffer));
            TN_TRY(add_weight_buffer(m, buffer, false));
            for (size_t i = 0; i < n; i++) {
                TN_TRY(tn_buffer_bind(buffer, sources[i].tensor, offset));
                offset += tn__align_up(tn_buffer_type_tensor_size(type, sources[i].tensor), align);
            }
            TN_TRY(read_weights(l, sources, n, done, total));
        }
        begin = end;
    }
    return TN_OK;
}
static tn_status upload_all(tn_model *m, const tn__load *l, size_t total) {
    size_t done = 0;
    tn_tensor_source *sources = tn_calloc(TN__MAX(m->n_all, (size_t)1), sizeof *sources);
    weight_source *files = tn_calloc(TN__MAX(m->n_all, (size_t)1), sizeof *files);
    tn_status status = sources && files ? TN_OK : TN_E_NOMEM;
    for (size_t d = 0; d < l->n_types && status == TN_OK; d++) {
        tn_buffer_type *type = l->types[d];
        for (size_t extra = 0; type && status == TN_OK; extra++) {
            status = upload_weights(m, l, type, sources, files, &done, total);
            type = tn_device_extra_buffer_type(tn_buffer_type_device(l->types[d]), extra);
        }
    }
    tn_free(sources);
    tn_free(files);
    return status;
}

/* Checks that every value of a weight is finite. */
static tn_status check_weight(tn_model *m, const tn__load *l, const tn__weight *w) {
    enum { PIECE = 8192 }; /* a multiple of every block */
    float numbers[PIECE];
    int64_t n = tn_nelements(w->tensor), block = tn_type_block(w->info->type);
    size_t block_bytes = tn_type_bytes(w->info->type);
    void *bytes = tn_malloc(PIECE / (size_t)block * block_bytes);
    if (!bytes) return TN_E_NOMEM;
    tn_status status = TN_OK;
    for (int64_t begin = 0; begin < n && status == TN_OK; begin += PIECE) {
        int64_t count = TN__MIN(n - begin, PIECE);
        size_t offset = (size_t)(begin / block) * block_bytes;
        status = ask_load_abort(l);
        if (status == TN_OK) status = read_weight_part(m, w, offset, bytes, (size_t)(count / block) * block_bytes);
        if (status == TN_OK) status = tn_type_to_f32(w->info->type, bytes, numbers, count);
        for (int64_t i = 0; i < count && status == TN_OK; i++)
            if (!isfinite(numbers[i]))
                status =
                    tn_fail(TN_E_FORMAT, "%s: tensor '%s' is damaged: element %lld is %s", tn_gguf_path(m->file),
                            w->info->name, (long long)(begin + i), isnan(numbers[i]) ? "not a number" : "infinite");
    }
    tn_free(bytes);
    return status;
}

static tn_status check_weights(tn_model *m, const tn__load *l, size_t total) {
    for (size_t i = 0; i < m->n_all; i++) {
        if (m->all[i].ignored || !tn_type_can_read(m->all[i].info->type)) continue;
        TN_TRY(check_weight(m, l, &m->all[i]));
        if (l->progress && !l->progress(l->progress_user, 0, total))
            return tn_fail(TN_E_ABORTED, "loading was cancelled");
    }
    return TN_OK;
}

/* Whether the weights' memory stores data: that of described devices does not. */
static bool needs_data(const tn_model *m, const tn__load *l) {
    for (size_t i = 0; i < m->n_all; i++) {
        if (m->all[i].ignored) continue;
        if (!tn_device_get_caps(tn_buffer_type_device(tn__weight_memory(l, &m->all[i]))).described) return true;
    }
    return false;
}

/* Among ranks that share one file, rank 0 loads its own part and sends the others theirs. */
static tn_status load_all(tn_model *m, const tn__load *l, size_t own) {
    const bool shares = m->share.sends || m->share.receives;
    size_t total = own, others = 0, done;
    if (shares) TN_TRY(tn__share_begin(m, own, &others));
    if (m->share.sends && !tn__add_size(own, others, &total))
        return tn_fail(TN_E_OVERFLOW, "the weights' sizes overflow");
    if (m->params.check_weights) TN_TRY(check_weights(m, l, total));
    TN_TRY(map_files(m, l));
    TN_TRY(upload_all(m, l, total));
    done = own;
    if (m->share.sends) TN_TRY(tn__share_serve(m, l, &done, total));
    if (m->share.receives) TN_TRY(tn__share_done(m));
    if (l->progress) l->progress(l->progress_user, total, total);
    return TN_OK;
}

tn_status tn__load_weights(tn_model *m, const tn__load *l) {
    if (m->loaded) return TN_OK;
    if (!tn_gguf_has_data(m->file) && !m->share.receives && needs_data(m, l))
        return tn_fail(TN_E_STATE, "%s has no weights; it can be planned but not run", tn_gguf_path(m->file));
    uint64_t begin = tn_time_ns();
    size_t own = 0;
    for (size_t i = 0; i < m->n_all; i++) own += m->all[i].ignored ? 0 : m->all[i].size;
    tn_status status = load_all(m, l, own);
    if (status != TN_OK) {
        for (size_t i = 0; i < m->n_buffers; i++) tn_buffer_free(m->buffers[i].buffer);
        m->n_buffers = 0;
        for (size_t i = 0; i < m->n_all; i++) {
            if (!m->all[i].tensor) continue;
            m->all[i].tensor->data = NULL;
            m->all[i].tensor->buffer = NULL;
        }
        return status;
    }
    m->loaded = true;
    m->load_ns = tn_time_ns() - begin;
    return TN_OK;
}

/* Tensors: creation, predicates, names. */
#include "base/checked.h"
#include "tensor/tensor_internal.h"

#include <stdio.h>
#include <string.h>

bool tn__set_strides(tn_type type, const int64_t *ne, size_t *nb) {
    size_t row;
    if (!tn_type_row_bytes(type, ne[0], &row)) return false;
    nb[0] = tn_type_bytes(type);
    nb[1] = row;
    for (int i = 2; i < TN_MAX_DIMS; i++)
        if (!tn__mul_size(nb[i - 1], (size_t)ne[i - 1], &nb[i])) return false;
    size_t total;
    return tn__mul_size(nb[3], (size_t)ne[3], &total) && total <= PTRDIFF_MAX;
}

/* Checks a shape and extends it to four dimensions. */
static tn_status check_new_shape(tn_type type, int n_dims, const int64_t *ne, int64_t *full) {
    if (!tn_type_valid(type)) return tn_fail(TN_E_TYPE, "unknown type id %d", (int)type);
    if (n_dims < 1 || n_dims > TN_MAX_DIMS || !ne)
        return tn_fail(TN_E_INVALID, "a tensor has 1 to %d dimensions, not %d", TN_MAX_DIMS, n_dims);
    int64_t elements = 1;
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        full[i] = i < n_dims ? ne[i] : 1;
        if (full[i] < 0) return tn_fail(TN_E_SHAPE, "dimension %d is negative: %lld", i, (long long)full[i]);
    }
    if (full[0] % tn_type_block(type))
        return tn_fail(TN_E_SHAPE, "a row of %lld elements does not fill whole %s blocks of %lld", (long long)full[0],
                       tn_type_name(type), (long long)tn_type_block(type));
    size_t nb[TN_MAX_DIMS];
    bool fits = tn__set_strides(type, full, nb);
    for (int i = 0; i < TN_MAX_DIMS; i++) fits = fits && tn__mul_i64(elements, full[i], &elements);
    if (!fits)
        return tn_fail(TN_E_OVERFLOW, "the size of %s[%lld,%lld,%lld,%lld] overflows", tn_type_name(type),
                       (long long)full[0], (long long)full[1], (long long)full[2], (long long)full[3]);
    return TN_OK;
}

/* Copies `proto` into the arena and allocates its data, unless it is a view or the arena has no_alloc. */
static tn_tensor *allocate_tensor(tn_arena *arena, const tn_tensor *proto) {
    size_t header = tn__align_up(sizeof(tn_tensor), TN__OBJECT_ALIGN), size = header;
    bool with_data = !arena->no_alloc && !proto->view_src;
    if (with_data && !tn__add_size(header, tn_nbytes(proto), &size)) {
        tn_fail(TN_E_OVERFLOW, "the size of a tensor overflows");
        return tn__arena_fail(arena, TN_E_OVERFLOW);
    }
    char *memory = tn__arena_object(arena, TN__OBJECT_TENSOR, size);
    if (!memory) return NULL;
    tn_tensor *t = (tn_tensor *)(void *)memory;
    *t = *proto;
    if (with_data) t->data = memory + header;
    if (t->view_src && t->view_src->data) {
        t->data = (char *)t->view_src->data + t->view_offset;
        t->buffer = t->view_src->buffer;
    }
    arena->n_tensors++;
    return t;
}

tn_tensor *tn_tensor_new(tn_arena *arena, tn_type type, int n_dims, const int64_t *ne) {
    if (!arena) {
        tn_fail(TN_E_INVALID, "the arena is NULL");
        return NULL;
    }
    if (arena->status != TN_OK) return NULL;
    tn_tensor t = {.type = type, .n_dims = n_dims};
    tn_status status = check_new_shape(type, n_dims, ne, t.ne);
    if (status != TN_OK) return tn__arena_fail(arena, status);
    tn__set_strides(type, t.ne, t.nb);
    return allocate_tensor(arena, &t);
}

tn_tensor *tn__op_new(tn_arena *arena, tn_op op, tn_tensor *const *src, int n_src, const tn_op_params *params,
                      const tn__wanted *wanted) {
    if (!arena) {
        tn_fail(TN_E_INVALID, "%s: the arena is NULL", tn_op_name(op));
        return NULL;
    }
    if (arena->status != TN_OK) return NULL; /* the first error is kept */

    tn_tensor t = {.op = op, .flags = arena->repeatable ? TN_FLAG_REPEATABLE : 0};
    if (params) t.params = *params;
    for (int i = 0; i < n_src; i++) t.src[i] = src[i];
    for (int i = 0; i < tn_op_min_sources(op); i++) {
        if (!t.src[i]) {
            tn_fail(TN_E_INVALID, "%s: source %d is NULL", tn_op_name(op), i);
            return tn__arena_fail(arena, TN_E_INVALID);
        }
    }
    if (wanted) {
        t.type = wanted->type;
        t.n_dims = wanted->n_dims;
        memcpy(t.ne, wanted->ne, sizeof t.ne);
        memcpy(t.nb, wanted->nb, sizeof t.nb);
        t.view_offset = wanted->offset;
    }
    tn_status status = tn__shape_rules[op](&t);
    if (status != TN_OK) return tn__arena_fail(arena, status);

    if (!t.view_src) {
        int64_t full[TN_MAX_DIMS];
        status = check_new_shape(t.type, TN_MAX_DIMS, t.ne, full);
        if (status != TN_OK) return tn__arena_fail(arena, tn__op_fail(&t, status, "%s", tn_error()));
        tn__set_strides(t.type, t.ne, t.nb);
    }
    if (t.n_dims == 0)
        for (t.n_dims = TN_MAX_DIMS; t.n_dims > 1 && t.ne[t.n_dims - 1] == 1;) t.n_dims--;
    return allocate_tensor(arena, &t);
}

tn_status tn__op_fail(const tn_tensor *t, tn_status status, const char *format, ...) {
    char reason[512], shape[128];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    tn_fail(status, "%s: %s; sources:", tn_op_name(t->op), reason);
    for (int i = 0; i < TN_MAX_SRC; i++) {
        if (!t->src[i]) continue;
        tn_fail_more(status, "%s %s%s%s%s", i ? "," : "", tn_shape_text(t->src[i], shape, sizeof shape),
                     t->src[i]->name[0] ? " '" : "", t->src[i]->name, t->src[i]->name[0] ? "'" : "");
    }
    return status;
}

tn_tensor *tn_mark(tn_tensor *tensor, uint32_t flags) {
    if (tensor) tensor->flags |= flags;
    return tensor;
}

tn_tensor *tn_name(tn_arena *arena, tn_tensor *tensor, const char *format, ...) {
    if (!tensor) return NULL;
    char text[256];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0 || length >= TN_MAX_NAME) {
        tn_fail(TN_E_INVALID, "the name '%s' is longer than %d bytes", text, TN_MAX_NAME - 1);
        return tn__arena_fail(arena, TN_E_INVALID);
    }
    memcpy(tensor->name, text, (size_t)length + 1);
    return tensor;
}

int64_t tn_nelements(const tn_tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
int64_t tn_nrows(const tn_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

size_t tn_nbytes(const tn_tensor *t) {
    if (tn_is_empty(t)) return 0;
    int64_t block = tn_type_block(t->type);
    size_t bytes = block > 1 ? (size_t)(t->ne[0] / block) * t->nb[0]
                             : tn_type_bytes(t->type) + (size_t)(t->ne[0] - 1) * t->nb[0];
    for (int i = 1; i < TN_MAX_DIMS; i++) bytes += (size_t)(t->ne[i] - 1) * t->nb[i];
    return bytes;
}

bool tn_is_empty(const tn_tensor *t) {
    for (int i = 0; i < TN_MAX_DIMS; i++)
        if (t->ne[i] == 0) return true;
    return false;
}
bool tn_is_view(const tn_tensor *t) { return t->view_src != NULL; }

bool tn_is_contiguous_from(const tn_tensor *t, int n) {
    int64_t block = tn_type_block(t->type);
    size_t next = tn_type_bytes(t->type);
    if (t->ne[0] != block && t->nb[0] != next) return false;
    next *= (size_t)(t->ne[0] / block);
    for (int i = 1; i < TN_MAX_DIMS; i++) {
        if (t->ne[i] == 1) continue;
        /* No gaps above dimension n; dimension n itself may have any stride. */
        if (i <= n)
            next = t->nb[i];
        else if (t->nb[i] != next)
            return false;
        next *= (size_t)t->ne[i];
    }
    return true;
}
bool tn_is_contiguous(const tn_tensor *t) { return tn_is_contiguous_from(t, 0); }
bool tn_is_contiguous_rows(const tn_tensor *t) {
    return t->ne[0] <= tn_type_block(t->type) || t->nb[0] == tn_type_bytes(t->type);
}
bool tn_is_transposed(const tn_tensor *t) { return t->nb[0] > t->nb[1]; }
bool tn_is_permuted(const tn_tensor *t) { return t->nb[0] > t->nb[1] || t->nb[1] > t->nb[2] || t->nb[2] > t->nb[3]; }
bool tn_is_scalar(const tn_tensor *t) { return t->ne[0] == 1 && tn_is_vector(t); }
bool tn_is_vector(const tn_tensor *t) { return t->ne[1] == 1 && tn_is_matrix(t); }
bool tn_is_matrix(const tn_tensor *t) { return t->ne[2] == 1 && t->ne[3] == 1; }
bool tn_same_shape(const tn_tensor *a, const tn_tensor *b) { return memcmp(a->ne, b->ne, sizeof a->ne) == 0; }
bool tn_same_layout(const tn_tensor *a, const tn_tensor *b) {
    return a->type == b->type && tn_same_shape(a, b) && memcmp(a->nb, b->nb, sizeof a->nb) == 0;
}
bool tn_can_repeat(const tn_tensor *small, const tn_tensor *large) {
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        if (small->ne[i] == 0 ? large->ne[i] != 0 : large->ne[i] % small->ne[i] != 0) return false;
    }
    return true;
}

const char *tn_shape_text(const tn_tensor *t, char *text, size_t size) {
    if (!t) {
        snprintf(text, size, "NULL");
        return text;
    }
    int n = TN_MAX_DIMS;
    while (n > 1 && n > t->n_dims && t->ne[n - 1] == 1) n--;
    int used = snprintf(text, size, "%s[%lld", tn_type_name(t->type), (long long)t->ne[0]);
    for (int i = 1; i < n && used >= 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, ",%lld", (long long)t->ne[i]);
    if (used >= 0 && (size_t)used < size) snprintf(text + used, size - (size_t)used, "]");
    return text;
}

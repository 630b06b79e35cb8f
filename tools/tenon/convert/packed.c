/* Weights that a folder stores in few bits, read as floats. */
#include "convert/packed.h"

#include "tenon/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum packed_kind {
    PACKED_AWQ,      /* quants [columns, rows·bits/32], zeros [groups, rows·bits/32], scales [groups, rows] */
    PACKED_GPTQ,     /* quants [columns·bits/32, rows], zeros and scales the same; maybe the group of every column */
    PACKED_INTEGERS, /* quants [rows, columns·bits/32], scales [rows, groups], maybe zeros [rows·bits/32, groups] */
    PACKED_NVFP4,    /* quants [rows, columns/2] bytes, scales [rows, columns/16] e4m3, one float for all */
    PACKED_MXFP4,    /* quants [rows, columns/2] bytes, scales [rows, columns/32], exponents of two */
    PACKED_SUM /* quants floats [rows, columns], plus factor × scales [rows, groups] × zeros [groups, columns] */
};

struct packed_weight {
    enum packed_kind kind;
    int bits;
    int64_t rows, columns, groups;
    struct safetensors_tensor quants, scales, zeros, order; /* copies; `zeros` and `order` without a name: none */
    int zero_offset;                                        /* added to stored zero points */
    float factor;                                           /* of all elements */
};

/* ---- Packed tensors in memory ---- */

/* What reading a row of AWQ or GPTQ needs: everything. */
struct unpacked {
    const struct packed_weight *weight; /* NULL: empty */
    int users;
    uint64_t last_used;
    uint32_t *quants;
    float *scales;  /* [groups, rows] */
    uint8_t *zeros; /* [groups, rows] */
    int32_t *order; /* group of each column */
};
enum { UNPACKED = 4 };
static struct {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint64_t clock;
    struct unpacked slots[UNPACKED];
} unpacked_cache = {.lock = PTHREAD_MUTEX_INITIALIZER, .freed = PTHREAD_COND_INITIALIZER};

static void empty_slot(struct unpacked *u) {
    tn_free(u->quants);
    tn_free(u->scales);
    tn_free(u->zeros);
    tn_free(u->order);
    *u = (struct unpacked){0};
}

/* The order of values in a word of AWQ: the value of row r % 8 is in this lane. */
static int awq_lane(int r) {
    static const int lane[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return lane[r];
}

static tn_status read_zeros(const struct safetensors *set, struct unpacked *u) {
    const struct packed_weight *p = u->weight;
    const int per_word = 32 / p->bits;
    const int64_t words = p->rows / per_word;
    uint32_t *packed = tn_malloc((size_t)(p->groups * words + 1) * sizeof *packed);
    if (!packed) return TN_E_NOMEM;
    tn_status status = safetensors_bytes(set, &p->zeros, 0, (size_t)(p->groups * words) * sizeof *packed, packed);
    for (int64_t i = 0; i < p->groups * p->rows && status == TN_OK; i++) {
        const int64_t g = i / p->rows, r = i % p->rows;
        const int lane = p->kind == PACKED_AWQ && per_word == 8 ? awq_lane((int)(r % 8)) : (int)(r % per_word);
        const uint32_t zero = packed[g * words + r / per_word] >> p->bits * lane & ((1u << p->bits) - 1);
        u->zeros[i] = (uint8_t)(zero + (uint32_t)p->zero_offset);
    }
    tn_free(packed);
    return status;
}

static tn_status fill_slot(const struct safetensors *set, struct unpacked *u, const struct packed_weight *p) {
    u->weight = p;
    u->quants = tn_malloc((size_t)p->quants.size + 4);
    u->scales = tn_malloc((size_t)(p->groups * p->rows + 1) * sizeof *u->scales);
    u->zeros = tn_malloc((size_t)(p->groups * p->rows + 1));
    u->order = tn_malloc((size_t)(p->columns + 1) * sizeof *u->order);
    if (!u->quants || !u->scales || !u->zeros || !u->order) return TN_E_NOMEM;
    TN_TRY(safetensors_bytes(set, &p->quants, 0, (size_t)p->quants.size, u->quants));
    TN_TRY(safetensors_floats(set, &p->scales, 0, p->groups * p->rows, u->scales));
    TN_TRY(read_zeros(set, u));
    const int64_t size = (p->columns + p->groups - 1) / p->groups;
    for (int64_t c = 0; c < p->columns; c++) u->order[c] = (int32_t)(c / size);
    if (!p->order.name) return TN_OK;
    TN_TRY(safetensors_bytes(set, &p->order, 0, (size_t)p->columns * sizeof *u->order, u->order));
    for (int64_t c = 0; c < p->columns; c++)
        if (u->order[c] < 0 || u->order[c] >= p->groups)
            return tn_fail(TN_E_FORMAT, "tensor \"%s\": group %" PRId32 " of %" PRId64, p->order.name, u->order[c],
                           p->groups);
    return TN_OK;
}

/* Waits for a slot, and fills it unless it has the tensor. */
static tn_status take_slot(const struct safetensors *set, const struct packed_weight *p, struct unpacked **out) {
    pthread_mutex_lock(&unpacked_cache.lock);
    struct unpacked *found = NULL;
    while (!found) {
        struct unpacked *oldest = NULL;
        for (int i = 0; i < UNPACKED && !found; i++) {
            struct unpacked *u = &unpacked_cache.slots[i];
            if (u->weight == p) found = u;
            if (!u->users && (!oldest || u->last_used < oldest->last_used)) oldest = u;
        }
        if (found) break;
        if (!oldest) {
            pthread_cond_wait(&unpacked_cache.freed, &unpacked_cache.lock);
            continue;
        }
        empty_slot(oldest);
        tn_status status = fill_slot(set, oldest, p);
        if (status != TN_OK) {
            empty_slot(oldest);
            pthread_cond_broadcast(&unpacked_cache.freed);
            pthread_mutex_unlock(&unpacked_cache.lock);
            return status;
        }
        found = oldest;
    }
    found->users++;
    found->last_used = ++unpacked_cache.clock;
    pthread_mutex_unlock(&unpacked_cache.lock);
    *out = found;
    return TN_OK;
}

static void give_slot(struct unpacked *u) {
    pthread_mutex_lock(&unpacked_cache.lock);
    u->users--;
    pthread_cond_broadcast(&unpacked_cache.freed);
    pthread_mutex_unlock(&unpacked_cache.lock);
}

void packed_free(struct packed_weight *p) {
    if (!p) return;
    for (int i = 0; i < UNPACKED; i++)
        if (unpacked_cache.slots[i].weight == p) empty_slot(&unpacked_cache.slots[i]);
    tn_free(p);
}

/* ---- Reading ---- */

/* Columns [first, first + count) of one row of AWQ or GPTQ. */
static void read_group_row(const struct unpacked *u, int64_t row, int64_t first, int64_t count, float *out) {
    const struct packed_weight *p = u->weight;
    const int per_word = 32 / p->bits;
    const uint32_t mask = (1u << p->bits) - 1;
    const int lane = per_word == 8 ? awq_lane((int)(row % 8)) : (int)(row % per_word);
    for (int64_t c = first; c < first + count; c++) {
        const uint32_t q = p->kind == PACKED_AWQ
                               ? u->quants[c * (p->rows / per_word) + row / per_word] >> p->bits * lane & mask
                               : u->quants[c / per_word * p->rows + row] >> p->bits * (c % per_word) & mask;
        const int64_t at = u->order[c] * p->rows + row;
        *out++ = (float)((int)q - (int)u->zeros[at]) * u->scales[at];
    }
}

/* The scales and zero points of one row of integers, then its columns. */
static tn_status read_integer_row(const struct safetensors *set, const struct packed_weight *p, int64_t row,
                                  int64_t first, int64_t count, float *out) {
    const int per_word = 32 / p->bits;
    const uint32_t mask = (1u << p->bits) - 1;
    const int64_t words = p->columns / per_word, from = first / per_word, last = (first + count - 1) / per_word;
    const int64_t size = p->columns / p->groups;
    uint32_t *quants = tn_malloc((size_t)(last - from + 1 + p->groups) * sizeof *quants);
    float *scales = tn_malloc((size_t)p->groups * sizeof *scales);
    tn_status status = quants && scales ? TN_OK : TN_E_NOMEM;
    uint32_t *zeros = quants ? quants + (last - from + 1) : NULL;
    if (status == TN_OK) status = safetensors_floats(set, &p->scales, row * p->groups, p->groups, scales);
    if (status == TN_OK)
        status = safetensors_bytes(set, &p->quants, (uint64_t)(row * words + from) * 4, (size_t)(last - from + 1) * 4,
                                   quants);
    if (status == TN_OK && p->zeros.name)
        status = safetensors_bytes(set, &p->zeros, (uint64_t)(row / per_word * p->groups) * 4, (size_t)p->groups * 4,
                                   zeros);
    for (int64_t c = first; c < first + count && status == TN_OK; c++) {
        const int64_t g = c / size;
        const uint32_t q = quants[c / per_word - from] >> p->bits * (c % per_word) & mask;
        const uint32_t zero = p->zeros.name ? zeros[g] >> p->bits * (row % per_word) & mask : 1u << (p->bits - 1);
        *out++ = (float)((int)q - (int)zero) * scales[g];
    }
    tn_free(quants);
    tn_free(scales);
    return status;
}

/* 4-bit floats: two in a byte, the first in its low half; a scale for every 16 or 32. */
static tn_status read_fp4_row(const struct safetensors *set, const struct packed_weight *p, int64_t row,
                              int64_t first, int64_t count, float *out) {
    static const float levels[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const int block = p->kind == PACKED_NVFP4 ? 16 : 32;
    const int64_t blocks = p->columns / block, from = first / block, last = (first + count - 1) / block;
    const int64_t n = last - from + 1;
    unsigned char *bytes = tn_malloc((size_t)(n * (block / 2 + 1)));
    float *scales = tn_malloc((size_t)n * sizeof *scales);
    tn_status status = bytes && scales ? TN_OK : TN_E_NOMEM;
    unsigned char *exponents = bytes ? bytes + n * (block / 2) : NULL;
    if (status == TN_OK)
        status = safetensors_bytes(set, &p->quants, (uint64_t)(row * blocks + from) * (uint64_t)(block / 2),
                                   (size_t)(n * (block / 2)), bytes);
    if (status == TN_OK)
        status = safetensors_bytes(set, &p->scales, (uint64_t)(row * blocks + from), (size_t)n, exponents);
    if (status == TN_OK && p->kind == PACKED_NVFP4) status = tn_type_to_f32(TN_FP8, exponents, scales, n);
    for (int64_t i = 0; i < n && status == TN_OK && p->kind == PACKED_MXFP4; i++)
        scales[i] = ldexpf(1, (int)exponents[i] - 127);
    for (int64_t c = first; c < first + count && status == TN_OK; c++) {
        const int64_t at = c - from * block;
        *out++ = levels[bytes[at / 2] >> 4 * (at % 2) & 15] * (scales[at / block] * p->factor);
    }
    tn_free(bytes);
    tn_free(scales);
    return status;
}

/* Floats, and the product of two thin matrices. */
static tn_status read_sum_row(const struct safetensors *set, const struct packed_weight *p, int64_t row,
                              int64_t first, int64_t count, float *out) {
    const int64_t task = p->zero_offset, rank = p->groups;
    float *left = tn_malloc((size_t)(rank + count) * sizeof *left), *right = left ? left + rank : NULL;
    tn_status status = left ? safetensors_floats(set, &p->quants, row * p->columns + first, count, out) : TN_E_NOMEM;
    if (status == TN_OK) status = safetensors_floats(set, &p->scales, (task * p->rows + row) * rank, rank, left);
    for (int64_t r = 0; r < rank && status == TN_OK; r++) {
        status = safetensors_floats(set, &p->zeros, (task * rank + r) * p->columns + first, count, right);
        for (int64_t c = 0; c < count && status == TN_OK; c++) out[c] += p->factor * left[r] * right[c];
    }
    tn_free(left);
    return status;
}

tn_status packed_floats(const struct safetensors *set, struct packed_weight *p, int64_t first, int64_t count,
                        float *out) {
    struct unpacked *u = NULL;
    tn_status status = TN_OK;
    if (p->kind == PACKED_AWQ || p->kind == PACKED_GPTQ) TN_TRY(take_slot(set, p, &u));
    while (count > 0 && status == TN_OK) {
        const int64_t row = first / p->columns, column = first % p->columns;
        const int64_t n = count < p->columns - column ? count : p->columns - column;
        if (u)
            read_group_row(u, row, column, n, out);
        else if (p->kind == PACKED_INTEGERS)
            status = read_integer_row(set, p, row, column, n, out);
        else if (p->kind == PACKED_SUM)
            status = read_sum_row(set, p, row, column, n, out);
        else
            status = read_fp4_row(set, p, row, column, n, out);
        out += n;
        first += n;
        count -= n;
    }
    if (u) give_slot(u);
    return status;
}

/* ---- Finding ---- */

struct packed_search {
    struct safetensors *set;
    const char *method; /* "awq", "gptq", … or "" */
    int bits;
    bool zeros_as_stored; /* version 2 of GPTQ; before it, zero points are stored less one */
};

static struct safetensors_tensor *sibling(const struct packed_search *s, const char *name, size_t stem,
                                          const char *ending) {
    char other[512];
    snprintf(other, sizeof other, "%.*s%s", (int)stem, name, ending);
    return safetensors_find(s->set, other);
}

static tn_status wrong_packed_shape(const struct safetensors_tensor *t) {
    char shape[128];
    return tn_fail(TN_E_SHAPE, "tensor \"%s\": the shape %s does not fit its scales and zero points", t->name,
                   safetensors_shape_text(t, shape, sizeof shape));
}

/* Whether `t` is a matrix [a, b] of the given type, maybe with more dimensions before, which count as rows. */
static bool is_matrix(const struct safetensors_tensor *t, enum safetensors_type type, int64_t a, int64_t b) {
    return t->type == type && t->n_dims >= 2 && t->shape[t->n_dims - 1] == b && t->count == a * b;
}
static bool is_float_tensor(const struct safetensors_tensor *t) { return t->type < ST_F8; }

/* "NAME.qweight" with scales and zero points. */
static tn_status find_grouped(const struct packed_search *s, const struct safetensors_tensor *t, size_t stem,
                              struct packed_weight *p) {
    const struct safetensors_tensor *scales = sibling(s, t->name, stem, "scales");
    const struct safetensors_tensor *zeros = sibling(s, t->name, stem, "qzeros");
    const struct safetensors_tensor *order = sibling(s, t->name, stem, "g_idx");
    if (!scales || !zeros)
        return tn_fail(TN_E_NOT_FOUND, "tensor \"%s\" has no scales or no qzeros beside it", t->name);
    if (t->n_dims != 2 || scales->n_dims != 2 || !is_float_tensor(scales)) return wrong_packed_shape(t);
    const int per_word = 32 / s->bits;
    *p = (struct packed_weight){.kind = strcmp(s->method, "awq") == 0 ? PACKED_AWQ : PACKED_GPTQ,
                                .bits = s->bits,
                                .rows = scales->shape[1],
                                .groups = scales->shape[0],
                                .quants = *t,
                                .scales = *scales,
                                .zeros = *zeros,
                                .factor = 1};
    const bool awq = p->kind == PACKED_AWQ;
    p->columns = awq ? t->shape[0] : t->shape[0] * per_word;
    p->zero_offset = awq || s->zeros_as_stored ? 0 : 1;
    if (order && !awq) p->order = *order;
    if (p->groups < 1 || p->rows % per_word || p->columns % p->groups ||
        !is_matrix(t, ST_I32, awq ? p->columns : p->columns / per_word, awq ? p->rows / per_word : p->rows) ||
        !is_matrix(zeros, ST_I32, p->groups, p->rows / per_word) ||
        (p->order.name && (p->order.type != ST_I32 || p->order.count != p->columns)))
        return wrong_packed_shape(t);
    return TN_OK;
}

/* "NAME.weight_packed" of compressed-tensors: integers in words, or 4-bit floats in bytes. */
static tn_status find_compressed(const struct packed_search *s, const struct safetensors_tensor *t, size_t stem,
                                 struct packed_weight *p) {
    const struct safetensors_tensor *scales = sibling(s, t->name, stem, "weight_scale");
    const struct safetensors_tensor *zeros = sibling(s, t->name, stem, "weight_zero_point");
    const struct safetensors_tensor *global = sibling(s, t->name, stem, "weight_global_scale");
    if (!scales || t->n_dims < 2) return tn_fail(TN_E_NOT_FOUND, "tensor \"%s\" has no weight_scale", t->name);
    const int64_t last = t->shape[t->n_dims - 1], per_word = 32 / s->bits;
    *p = (struct packed_weight){.bits = s->bits, .quants = *t, .scales = *scales, .factor = 1};
    if (last < 1) return wrong_packed_shape(t);
    p->rows = t->count / last;
    if (t->type == ST_I32) {
        p->kind = PACKED_INTEGERS;
        p->columns = last * per_word;
        p->groups = scales->n_dims ? scales->shape[scales->n_dims - 1] : 0;
        if (zeros) p->zeros = *zeros;
        if (p->groups < 1 || p->columns % p->groups || !is_float_tensor(scales) ||
            scales->count != p->rows * p->groups ||
            (zeros && (p->rows % per_word || !is_matrix(zeros, ST_I32, p->rows / per_word, p->groups))))
            return wrong_packed_shape(t);
        return TN_OK;
    }
    p->kind = global || scales->type == ST_F8 ? PACKED_NVFP4 : PACKED_MXFP4;
    p->columns = 2 * last;
    if (p->kind == PACKED_NVFP4) {
        float divisor = 1;
        if (global) TN_TRY(safetensors_floats(s->set, global, 0, 1, &divisor));
        p->factor = 1 / divisor;
    }
    const int block = p->kind == PACKED_NVFP4 ? 16 : 32;
    if (t->type != ST_U8 || p->columns % block ||
        !is_matrix(scales, p->kind == PACKED_NVFP4 ? ST_F8 : ST_U8, p->rows, p->columns / block))
        return wrong_packed_shape(t);
    return TN_OK;
}

/* "NAME.weight" in bytes with "NAME.weight_scale" and "NAME.weight_scale_2", as ModelOpt writes NVFP4. */
static tn_status find_modelopt(const struct packed_search *s, const struct safetensors_tensor *t, size_t stem,
                               struct packed_weight *p) {
    const struct safetensors_tensor *scales = sibling(s, t->name, stem, "weight_scale");
    const struct safetensors_tensor *second = sibling(s, t->name, stem, "weight_scale_2");
    const int64_t columns = 2 * t->shape[t->n_dims - 1];
    *p = (struct packed_weight){.kind = PACKED_NVFP4,
                                .bits = 4,
                                .columns = columns,
                                .rows = columns > 0 ? t->count * 2 / columns : 0,
                                .quants = *t,
                                .scales = *scales,
                                .factor = 1};
    if (columns % 16 || !is_matrix(scales, ST_F8, p->rows, columns / 16)) return wrong_packed_shape(t);
    return second ? safetensors_floats(s->set, second, 0, 1, &p->factor) : TN_OK;
}

static bool has_ending(const char *name, const char *ending, size_t *stem) {
    const size_t n = strlen(name), k = strlen(ending);
    if (n <= k || strcmp(name + n - k, ending) != 0) return false;
    *stem = n - k;
    return true;
}

static void mark_packed_used(const struct packed_search *s, const char *name, size_t stem) {
    static const char *const endings[] = {"qweight",
                                          "qzeros",
                                          "scales",
                                          "g_idx",
                                          "weight_packed",
                                          "weight_scale",
                                          "weight_shape",
                                          "weight_zero_point",
                                          "weight_global_scale",
                                          "weight_g_idx",
                                          "weight_scale_2",
                                          "input_scale",
                                          "k_scale",
                                          "v_scale",
                                          "input_global_scale"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        struct safetensors_tensor *t = sibling(s, name, stem, endings[i]);
        if (t) t->used = true;
    }
}

/* Adds "NAME.weight", or makes the tensor of that name the packed one. */
static tn_status add_packed(const struct packed_search *s, const char *name, size_t stem,
                            const struct packed_weight *found) {
    struct packed_weight *p = tn_malloc(sizeof *p);
    if (!p) return TN_E_NOMEM;
    *p = *found;
    char full[512];
    snprintf(full, sizeof full, "%.*sweight", (int)stem, name);
    mark_packed_used(s, name, stem);
    struct safetensors_tensor virtual = {.type = ST_PACKED, .n_dims = 2, .packed = p};
    const struct safetensors_tensor *q = &p->quants;
    virtual.n_dims = q->n_dims > 2 ? q->n_dims : 2;
    for (int i = 0; i + 2 < q->n_dims; i++) virtual.shape[i] = q->shape[i];
    int64_t outer = 1;
    for (int i = 0; i + 2 < virtual.n_dims; i++) outer *= virtual.shape[i];
    virtual.shape[virtual.n_dims - 2] = p->rows / outer;
    virtual.shape[virtual.n_dims - 1] = p->columns;
    virtual.count = p->rows * p->columns;
    tn_status status = safetensors_put(s->set, full, &virtual);
    if (status != TN_OK) tn_free(p);
    return status;
}

tn_status packed_weights_find(struct safetensors *set, const json_t *config) {
    const char *method = json_string_value(json_object_get(config, "quant_method"));
    const char *format = json_string_value(json_object_get(config, "checkpoint_format"));
    json_t *bits = json_object_get(config, "bits");
    if (!bits) bits = json_object_get(config, "w_bit");
    const json_t *groups = json_object_get(config, "config_groups"), *group;
    const char *key;
    if (!bits) json_object_foreach((json_t *)(uintptr_t)groups, key, group) {
            bits = json_object_get(json_object_get(group, "weights"), "num_bits");
            break;
        }
    struct packed_search s = {.set = set,
                              .method = method ? method : "",
                              .bits = bits ? (int)json_integer_value(bits) : 4,
                              .zeros_as_stored = format && strcmp(format, "gptq_v2") == 0};
    const size_t count = safetensors_count(set);
    for (size_t i = 0; i < count; i++) {
        struct safetensors_tensor t = *safetensors_at(set, i);
        struct packed_weight p;
        size_t stem;
        tn_status status = TN_OK;
        const bool grouped = has_ending(t.name, "qweight", &stem);
        const bool compressed = !grouped && has_ending(t.name, "weight_packed", &stem);
        if (grouped || (compressed && t.type == ST_I32)) {
            if (s.bits != 2 && s.bits != 4 && s.bits != 8)
                return tn_fail(TN_E_UNSUPPORTED, "tensor \"%s\": weights of %d bits; 2, 4 and 8 are supported",
                               t.name, s.bits);
        }
        if (grouped)
            status = find_grouped(&s, &t, stem, &p);
        else if (compressed)
            status = find_compressed(&s, &t, stem, &p);
        else if (t.type == ST_U8 && t.n_dims >= 2 && has_ending(t.name, "weight", &stem) &&
                 sibling(&s, t.name, stem, "weight_scale"))
            status = find_modelopt(&s, &t, stem, &p);
        else
            continue;
        if (status == TN_OK) status = add_packed(&s, t.name, stem, &p);
        if (status != TN_OK) return status;
    }
    safetensors_sort(set);
    return TN_OK;
}

tn_status packed_weights_add_sum(struct safetensors *set, const char *name, const struct safetensors_tensor *weight,
                                 const struct safetensors_tensor *left, const struct safetensors_tensor *right,
                                 int task, float factor) {
    const int64_t rows = weight->shape[0], columns = weight->shape[1];
    if (weight->n_dims != 2 || left->n_dims != 3 || right->n_dims != 3 || left->shape[1] != rows ||
        right->shape[2] != columns || left->shape[2] != right->shape[1] || task >= left->shape[0] ||
        task >= right->shape[0] || !is_float_tensor(weight) || !is_float_tensor(left) || !is_float_tensor(right))
        return wrong_packed_shape(weight);
    struct packed_weight *p = tn_malloc(sizeof *p);
    if (!p) return TN_E_NOMEM;
    *p = (struct packed_weight){.kind = PACKED_SUM,
                                .rows = rows,
                                .columns = columns,
                                .groups = left->shape[2],
                                .quants = *weight,
                                .scales = *left,
                                .zeros = *right,
                                .zero_offset = task,
                                .factor = factor};
    const struct safetensors_tensor sum = {
        .type = ST_PACKED, .n_dims = 2, .shape = {rows, columns}, .count = rows * columns, .packed = p};
    const tn_status status = safetensors_put(set, name, &sum);
    if (status != TN_OK) tn_free(p);
    return status;
}

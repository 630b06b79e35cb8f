/* Shape rules, one per op: check of the sources, and type and shape of the result. */
#include "tensor/shape_rules.h"
#include "base/checked.h"

#include <string.h>

static bool is_f32_f16_bf16(const tn_tensor *x) {
    return x->type == TN_F32 || x->type == TN_F16 || x->type == TN_BF16;
}

static void shape_of(tn_tensor *t, const tn_tensor *x) {
    t->n_dims = x->n_dims;
    memcpy(t->ne, x->ne, sizeof t->ne);
}
/* The result is a view of x. */
static void view_of(tn_tensor *t, tn_tensor *x, size_t offset) {
    t->type = x->type;
    t->view_src = x->view_src ? x->view_src : x;
    t->view_offset = x->view_src ? x->view_offset + offset : offset;
}
static tn_status same_as_source(tn_tensor *t) {
    t->type = t->src[0]->type;
    shape_of(t, t->src[0]);
    return TN_OK;
}

/* ---- Copies and views ---- */

/* Plain types convert to each other; block types convert to and from plain floats only. */
static bool convertible(tn_type from, tn_type to) {
    if (from == to) return true;
    if (!tn_type_can_read(from) || !tn_type_can_write(to)) return false;
    bool from_blocks = tn_type_is_quantized(from), to_blocks = tn_type_is_quantized(to);
    if (from_blocks && to_blocks) return false;
    if (from_blocks) return tn_type_is_float(to);
    if (to_blocks) return tn_type_is_float(from);
    return true;
}

static tn_status rule_none(tn_tensor *t) { REFUSE(TN_E_INVALID, "a leaf is made with tn_tensor_new"); }
static tn_status rule_dup(tn_tensor *t) { return same_as_source(t); }
static tn_status rule_cont(tn_tensor *t) { return same_as_source(t); }
static tn_status rule_cast(tn_tensor *t) {
    REQUIRE(tn_type_valid(t->type), TN_E_TYPE, "unknown type id %d", (int)t->type);
    REQUIRE(convertible(t->src[0]->type, t->type), TN_E_TYPE, "no conversion to %s", tn_type_name(t->type));
    shape_of(t, t->src[0]);
    return TN_OK;
}
static tn_status rule_cpy(tn_tensor *t) {
    tn_tensor *x = t->src[0], *y = t->src[1];
    REQUIRE(tn_nelements(x) == tn_nelements(y), TN_E_SHAPE, "numbers of elements differ");
    REQUIRE(convertible(x->type, y->type), TN_E_TYPE, "no conversion between these types");
    shape_of(t, y);
    memcpy(t->nb, y->nb, sizeof t->nb);
    view_of(t, y, 0);
    return TN_OK;
}

static tn_status rule_view(tn_tensor *t) {
    tn_tensor *x = t->src[0];
    const tn_tensor *root = x->view_src ? x->view_src : x;
    size_t offset = t->view_offset, span, end;
    REQUIRE(t->n_dims >= 1 && t->n_dims <= TN_MAX_DIMS, TN_E_INVALID, "1 to %d dimensions, not %d", TN_MAX_DIMS,
            t->n_dims);
    int64_t block = tn_type_block(x->type);
    for (int i = 0; i < TN_MAX_DIMS; i++)
        REQUIRE(t->ne[i] >= 0, TN_E_SHAPE, "dimension %d is negative: %lld", i, (long long)t->ne[i]);
    REQUIRE(t->ne[0] % block == 0, TN_E_SHAPE, "%lld elements do not fill whole blocks of %lld", (long long)t->ne[0],
            (long long)block);
    REQUIRE(t->nb[0] == tn_type_bytes(x->type), TN_E_INVALID, "the innermost stride of %s must be %zu, not %zu",
            tn_type_name(x->type), tn_type_bytes(x->type), t->nb[0]);
    REQUIRE(offset % tn_type_bytes(x->type) == 0, TN_E_INVALID, "offset %zu is not a multiple of %s's %zu bytes",
            offset, tn_type_name(x->type), tn_type_bytes(x->type));
    bool fits = tn__mul_size((size_t)(t->ne[0] / block), t->nb[0], &span), empty = t->ne[0] == 0;
    for (int i = 1; i < TN_MAX_DIMS; i++) {
        size_t step;
        empty = empty || t->ne[i] == 0;
        if (t->ne[i] > 0)
            fits = fits && tn__mul_size((size_t)(t->ne[i] - 1), t->nb[i], &step) && tn__add_size(span, step, &span);
    }
    if (empty) span = 0;
    fits =
        fits && tn__add_size(x->view_src ? x->view_offset : 0, offset, &offset) && tn__add_size(offset, span, &end);
    REQUIRE(fits, TN_E_OVERFLOW, "the view's extent overflows");
    REQUIRE(end <= tn_nbytes(root), TN_E_SHAPE, "the view ends at byte %zu, its root has %zu", end, tn_nbytes(root));
    t->type = x->type;
    t->view_src = x->view_src ? x->view_src : x;
    t->view_offset = offset;
    return TN_OK;
}
static tn_status rule_reshape(tn_tensor *t) {
    tn_tensor *x = t->src[0];
    REQUIRE(tn_is_contiguous(x), TN_E_SHAPE, "only a contiguous tensor can be reshaped; make it so with tn_cont");
    int64_t elements = 1;
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        REQUIRE(t->ne[i] >= 0 && tn__mul_i64(elements, t->ne[i], &elements), TN_E_SHAPE, "dimension %d: %lld", i,
                (long long)t->ne[i]);
    }
    REQUIRE(elements == tn_nelements(x), TN_E_SHAPE, "the new shape has %lld elements, the source %lld",
            (long long)elements, (long long)tn_nelements(x));
    REQUIRE(tn__set_strides(x->type, t->ne, t->nb), TN_E_SHAPE, "rows of %lld are not whole blocks of %s",
            (long long)t->ne[0], tn_type_name(x->type));
    view_of(t, x, 0);
    return TN_OK;
}
static tn_status rule_permute(tn_tensor *t) {
    tn_tensor *x = t->src[0];
    const int32_t *axis = t->params.permute.axis;
    int seen = 0;
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        REQUIRE(axis[i] >= 0 && axis[i] < TN_MAX_DIMS && !(seen >> axis[i] & 1), TN_E_INVALID,
                "(%d,%d,%d,%d) is not a permutation", axis[0], axis[1], axis[2], axis[3]);
        seen |= 1 << axis[i];
        t->ne[axis[i]] = x->ne[i];
        t->nb[axis[i]] = x->nb[i];
    }
    REQUIRE(!tn_type_is_quantized(x->type) || axis[0] == 0, TN_E_TYPE,
            "blocks of %s are along dimension 0, which cannot be permuted", tn_type_name(x->type));
    view_of(t, x, 0);
    return TN_OK;
}
static tn_status rule_transpose(tn_tensor *t) {
    static const int32_t swap[4] = {1, 0, 2, 3};
    memcpy(t->params.permute.axis, swap, sizeof swap);
    return rule_permute(t);
}

/* ---- Element-wise ---- */

static tn_status rule_unary(tn_tensor *t) {
    REQUIRE(is_f32_f16_bf16(t->src[0]), TN_E_TYPE, "f32, f16 or bf16 is needed");
    return same_as_source(t);
}
static tn_status rule_diag_mask(tn_tensor *t) {
    REQUIRE(t->src[0]->type == TN_F32, TN_E_TYPE, "f32 is needed");
    REQUIRE(t->params.diag_mask.n_past >= 0, TN_E_INVALID, "n_past is negative: %d", t->params.diag_mask.n_past);
    return same_as_source(t);
}
static tn_status rule_binary(tn_tensor *t) {
    REQUIRE(is_f32_f16_bf16(t->src[0]) && is_f32_f16_bf16(t->src[1]), TN_E_TYPE, "f32, f16 or bf16 is needed");
    REQUIRE(tn_can_repeat(t->src[1], t->src[0]), TN_E_SHAPE, "the second shape does not divide the first");
    return same_as_source(t);
}
static tn_status rule_add_id(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1], *ids = t->src[2];
    REQUIRE(x->type == TN_F32 && y->type == TN_F32 && is_index(ids), TN_E_TYPE, "f32, f32 and i32 are needed");
    REQUIRE(y->ne[0] == x->ne[0] && y->ne[2] == 1 && y->ne[3] == 1, TN_E_SHAPE, "biases must be [%lld, experts]",
            (long long)x->ne[0]);
    REQUIRE(ids->ne[0] == x->ne[1] && ids->ne[1] == x->ne[2] && x->ne[3] == 1, TN_E_SHAPE,
            "ids do not match x[d,k,t]");
    return same_as_source(t);
}
static tn_status rule_glu(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    REQUIRE(is_f32_f16_bf16(x), TN_E_TYPE, "f32, f16 or bf16 is needed");
    REQUIRE(tn_is_contiguous_rows(x), TN_E_SHAPE, "rows must be contiguous");
    t->type = x->type;
    shape_of(t, x);
    if (y) {
        REQUIRE(y->type == x->type && tn_same_shape(x, y), TN_E_SHAPE, "gate and up must have one type and shape");
        REQUIRE(tn_is_contiguous_rows(y), TN_E_SHAPE, "rows must be contiguous");
    } else {
        REQUIRE(x->ne[0] % 2 == 0, TN_E_SHAPE, "a row holds gate and up, so its length must be even");
        t->ne[0] = x->ne[0] / 2;
    }
    return TN_OK;
}

/* ---- Reductions ---- */

static tn_status rule_sum(tn_tensor *t) {
    REQUIRE(is_f32_f16_bf16(t->src[0]), TN_E_TYPE, "f32, f16 or bf16 is needed");
    t->type = TN_F32;
    has_shape(t, 1, 1, 1, 1);
    return TN_OK;
}
static tn_status rule_rows_to_one(tn_tensor *t) {
    REQUIRE(is_f32_f16_bf16(t->src[0]), TN_E_TYPE, "f32, f16 or bf16 is needed");
    shape_of(t, t->src[0]);
    t->type = TN_F32;
    t->ne[0] = 1;
    return TN_OK;
}
static tn_status rule_cumsum(tn_tensor *t) {
    REQUIRE(t->src[0]->type == TN_F32 && tn_is_contiguous_rows(t->src[0]), TN_E_TYPE,
            "f32 with contiguous rows is needed");
    return same_as_source(t);
}
static tn_status rule_argmax(tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    REQUIRE(x->type == TN_F32 && tn_is_contiguous_rows(x), TN_E_TYPE, "f32 with contiguous rows is needed");
    REQUIRE(x->ne[0] > 0 || tn_nrows(x) == 0, TN_E_SHAPE, "an empty row has no largest element");
    t->type = TN_I32;
    has_shape(t, x->ne[1], x->ne[2], x->ne[3], 1);
    return TN_OK;
}
static tn_status rule_argsort(tn_tensor *t) {
    REQUIRE(t->src[0]->type == TN_F32 && tn_is_contiguous_rows(t->src[0]), TN_E_TYPE,
            "f32 with contiguous rows is needed");
    REQUIRE(t->src[0]->ne[0] <= INT32_MAX, TN_E_SHAPE, "a row is too long for i32 indices");
    shape_of(t, t->src[0]);
    t->type = TN_I32;
    return TN_OK;
}
static tn_status rule_top_k(tn_tensor *t) {
    TN_TRY(rule_argsort(t));
    int64_t k = t->params.top_k.k;
    REQUIRE(k >= 1 && k <= t->src[0]->ne[0], TN_E_INVALID, "k is %lld; it must be 1 to %lld", (long long)k,
            (long long)t->src[0]->ne[0]);
    t->ne[0] = k;
    return TN_OK;
}
static tn_status rule_mix(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *w = t->src[1];
    REQUIRE(x->type == TN_F32 && w->type == TN_F32, TN_E_TYPE, "f32 is needed");
    REQUIRE(tn_is_contiguous_rows(x), TN_E_SHAPE, "rows must be contiguous");
    REQUIRE(w->ne[0] == x->ne[1] && w->ne[1] == x->ne[2] && x->ne[3] == 1 && tn_is_matrix(w), TN_E_SHAPE,
            "x[d,k,t] needs weights [k,t]");
    t->type = TN_F32;
    has_shape(t, x->ne[0], x->ne[2], 1, 1);
    return TN_OK;
}
static tn_status rule_cross_entropy(tn_tensor *t) {
    REQUIRE(t->src[0]->type == TN_F32 && t->src[1]->type == TN_F32, TN_E_TYPE, "f32 is needed");
    REQUIRE(tn_same_shape(t->src[0], t->src[1]), TN_E_SHAPE, "logits and labels must have one shape");
    REQUIRE(tn_is_contiguous_rows(t->src[0]) && tn_is_contiguous_rows(t->src[1]), TN_E_SHAPE,
            "rows must be contiguous");
    t->type = TN_F32;
    has_shape(t, 1, 1, 1, 1);
    return TN_OK;
}

/* ---- Data movement ---- */

static bool is_plain(const tn_tensor *x) { return !tn_type_is_quantized(x->type); }

static tn_status rule_concat(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    int dim = t->params.concat.dim;
    REQUIRE(dim >= 0 && dim < TN_MAX_DIMS, TN_E_INVALID, "dimension %d does not exist", dim);
    REQUIRE(x->type == y->type && is_plain(x), TN_E_TYPE, "one plain type is needed");
    for (int i = 0; i < TN_MAX_DIMS; i++)
        REQUIRE(i == dim || x->ne[i] == y->ne[i], TN_E_SHAPE, "dimension %d differs", i);
    t->type = x->type;
    memcpy(t->ne, x->ne, sizeof t->ne);
    REQUIRE(tn__add_i64(x->ne[dim], y->ne[dim], &t->ne[dim]), TN_E_OVERFLOW, "the length overflows");
    return TN_OK;
}
static tn_status rule_repeat(tn_tensor *t) {
    REQUIRE(is_plain(t->src[0]), TN_E_TYPE, "a plain type is needed");
    t->type = t->src[0]->type;
    REQUIRE(tn_can_repeat(t->src[0], t), TN_E_SHAPE, "the shape does not divide [%lld,%lld,%lld,%lld]",
            (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3]);
    return TN_OK;
}
static tn_status rule_pad(tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    REQUIRE(x->type == TN_F32, TN_E_TYPE, "f32 is needed");
    t->type = x->type;
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        int32_t before = t->params.pad.before[i], after = t->params.pad.after[i];
        REQUIRE(before >= 0 && after >= 0, TN_E_INVALID, "padding of dimension %d is negative", i);
        REQUIRE(tn__add_i64(x->ne[i], (int64_t)before + after, &t->ne[i]), TN_E_OVERFLOW, "dimension %d overflows",
                i);
    }
    return TN_OK;
}
static tn_status rule_roll(tn_tensor *t) {
    REQUIRE(t->src[0]->type == TN_F32, TN_E_TYPE, "f32 is needed");
    return same_as_source(t);
}
static tn_status rule_arange(tn_tensor *t) {
    double start = t->params.arange.start, stop = t->params.arange.stop, step = t->params.arange.step;
    REQUIRE(step != 0 && (stop - start) / step >= 0 && (stop - start) / step < 0x1p40, TN_E_INVALID,
            "invalid range from %g to %g with step %g", start, stop, step);
    double count = (stop - start) / step;
    int64_t n = (int64_t)count;
    t->type = TN_F32;
    has_shape(t, (double)n < count ? n + 1 : n, 1, 1, 1);
    return TN_OK;
}
static tn_status rule_get_rows(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *rows = t->src[1];
    REQUIRE(is_index(rows), TN_E_TYPE, "row numbers must be i32");
    REQUIRE(x->type == TN_I32 || tn_type_can_read(x->type), TN_E_TYPE, "%s cannot be read", tn_type_name(x->type));
    REQUIRE(tn_is_contiguous_rows(x), TN_E_SHAPE, "rows must be contiguous");
    REQUIRE(rows->ne[1] == x->ne[2] && rows->ne[2] == x->ne[3] && rows->ne[3] == 1, TN_E_SHAPE,
            "row numbers must be [r,%lld,%lld]", (long long)x->ne[2], (long long)x->ne[3]);
    t->type = x->type == TN_I32 ? TN_I32 : TN_F32;
    has_shape(t, x->ne[0], rows->ne[0], rows->ne[1], rows->ne[2]);
    return TN_OK;
}
static tn_status rule_set_rows(tn_tensor *t) {
    tn_tensor *x = t->src[0];
    const tn_tensor *y = t->src[1], *rows = t->src[2];
    REQUIRE(rows->type == TN_I32 || rows->type == TN_I64, TN_E_TYPE, "row numbers must be i32 or i64");
    REQUIRE(y->type == TN_F32, TN_E_TYPE, "the rows to write must be f32");
    REQUIRE(tn_type_can_write(x->type), TN_E_TYPE, "%s cannot be written", tn_type_name(x->type));
    REQUIRE(tn_is_contiguous_rows(x) && tn_is_contiguous_rows(y), TN_E_SHAPE, "rows must be contiguous");
    REQUIRE(x->ne[0] == y->ne[0] && x->ne[2] == y->ne[2] && x->ne[3] == y->ne[3], TN_E_SHAPE,
            "the shapes of x and y do not match");
    REQUIRE(rows->ne[0] == y->ne[1] && rows->ne[1] && rows->ne[2] && y->ne[2] % rows->ne[1] == 0 &&
                y->ne[3] % rows->ne[2] == 0 && rows->ne[3] == 1,
            TN_E_SHAPE, "one row number per row of y is needed");
    shape_of(t, x);
    memcpy(t->nb, x->nb, sizeof t->nb);
    view_of(t, x, 0);
    return TN_OK;
}
static tn_status rule_region(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    REQUIRE(x->type == TN_F32 && y->type == TN_F32, TN_E_TYPE, "f32 is needed");
    REQUIRE(tn_is_contiguous(x), TN_E_SHAPE, "the first source must be contiguous");
    const size_t nb[4] = {4, t->params.region.nb1, t->params.region.nb2, t->params.region.nb3};
    size_t end = t->params.region.offset + (tn_is_empty(y) ? 0 : 4), step;
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        if (tn_is_empty(y)) continue;
        REQUIRE(tn__mul_size((size_t)(y->ne[i] - 1), nb[i], &step) && tn__add_size(end, step, &end), TN_E_OVERFLOW,
                "the region's extent overflows");
    }
    for (int i = 1; i < TN_MAX_DIMS; i++)
        REQUIRE(nb[i] % 4 == 0, TN_E_INVALID, "stride %d is not a multiple of 4", i);
    REQUIRE(t->params.region.offset % 4 == 0, TN_E_INVALID, "the offset is not a multiple of 4");
    REQUIRE(end <= tn_nbytes(x), TN_E_SHAPE, "the region ends at byte %zu of %zu", end, tn_nbytes(x));
    return same_as_source(t);
}
static tn_status rule_upscale(tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    REQUIRE(x->type == TN_F32, TN_E_TYPE, "f32 is needed");
    REQUIRE(t->params.upscale.mode == TN_UPSCALE_NEAREST || t->params.upscale.mode == TN_UPSCALE_BILINEAR,
            TN_E_INVALID, "unknown mode %d", t->params.upscale.mode);
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        REQUIRE(t->ne[i] > 0 && x->ne[i] > 0, TN_E_SHAPE, "dimension %d is empty", i);
        REQUIRE(i < 2 || t->params.upscale.mode == TN_UPSCALE_NEAREST || t->ne[i] % x->ne[i] == 0, TN_E_SHAPE,
                "bilinear needs a whole multiple in dimension %d", i);
    }
    t->type = TN_F32;
    return TN_OK;
}
static tn_status rule_timestep(tn_tensor *t) {
    REQUIRE(t->src[0]->type == TN_F32 && tn_is_vector(t->src[0]), TN_E_TYPE, "an f32 vector is needed");
    REQUIRE(t->params.timestep.dim > 0 && t->params.timestep.max_period > 0, TN_E_INVALID,
            "dim and max_period must be positive");
    t->type = TN_F32;
    has_shape(t, t->params.timestep.dim, t->src[0]->ne[0], 1, 1);
    return TN_OK;
}
static tn_status rule_custom(tn_tensor *t) {
    REQUIRE(t->params.custom.fn, TN_E_INVALID, "the function is NULL");
    REQUIRE(t->params.custom.n_tasks >= 0, TN_E_INVALID, "the number of tasks is negative");
    return TN_OK;
}

/* ---- Norms, soft-max, rope ---- */

static tn_status check_rows_f32(tn_tensor *t) {
    REQUIRE(t->src[0]->type == TN_F32, TN_E_TYPE, "f32 is needed");
    REQUIRE(tn_is_contiguous_rows(t->src[0]), TN_E_SHAPE, "rows must be contiguous");
    return same_as_source(t);
}
static tn_status rule_norm(tn_tensor *t) {
    TN_TRY(check_rows_f32(t));
    REQUIRE(t->params.norm.eps >= 0, TN_E_INVALID, "eps is negative");
    for (int i = 1; i <= 2; i++) {
        const tn_tensor *w = t->src[i];
        if (!w) continue;
        REQUIRE(w->type == TN_F32 && tn_is_contiguous_rows(w), TN_E_TYPE, "weight and bias must be f32");
        REQUIRE(w->ne[0] == t->ne[0] && tn_can_repeat(w, t->src[0]), TN_E_SHAPE, "weight and bias must match a row");
    }
    return TN_OK;
}
static tn_status rule_hadamard(tn_tensor *t) {
    const int32_t block = t->params.hadamard.block;
    TN_TRY(check_rows_f32(t));
    REQUIRE(block > 0 && (block & (block - 1)) == 0, TN_E_INVALID, "blocks of %d are not a power of two", block);
    REQUIRE(t->ne[0] % block == 0, TN_E_SHAPE, "blocks of %d do not divide a row", block);
    return TN_OK;
}
static tn_status rule_group_norm(tn_tensor *t) {
    TN_TRY(check_rows_f32(t));
    int32_t groups = t->params.norm.groups;
    REQUIRE(groups > 0 && groups <= t->ne[2], TN_E_INVALID,
            "%d groups for %lld channels; there must be 1 to that many", groups, (long long)t->ne[2]);
    REQUIRE(tn_is_contiguous(t->src[0]), TN_E_SHAPE, "the source must be contiguous");
    return TN_OK;
}
tn_status tn__check_mask(tn_tensor *t, const tn_tensor *mask, int64_t columns, int64_t rows, int64_t n2, int64_t n3) {
    if (!mask) return TN_OK;
    REQUIRE(mask->type == TN_F32 || mask->type == TN_F16, TN_E_TYPE, "the mask must be f32 or f16");
    REQUIRE(tn_is_contiguous_rows(mask) && mask->ne[0] == columns && mask->ne[1] >= rows && mask->ne[2] > 0 &&
                mask->ne[3] > 0 && n2 % mask->ne[2] == 0 && n3 % mask->ne[3] == 0,
            TN_E_SHAPE, "the mask must be [%lld, ≥%lld, …]", (long long)columns, (long long)rows);
    return TN_OK;
}
tn_status tn__check_sinks(tn_tensor *t, const tn_tensor *sinks, int64_t heads) {
    if (!sinks) return TN_OK;
    REQUIRE(sinks->type == TN_F32 && sinks->ne[0] == heads && tn_is_vector(sinks) && tn_is_contiguous(sinks),
            TN_E_SHAPE, "sinks must be f32[%lld]", (long long)heads);
    return TN_OK;
}
static tn_status rule_soft_max(tn_tensor *t) {
    TN_TRY(check_rows_f32(t));
    const tn_tensor *x = t->src[0];
    TN_TRY(tn__check_mask(t, t->src[1], x->ne[0], x->ne[1], x->ne[2], x->ne[3]));
    TN_TRY(tn__check_sinks(t, t->src[2], x->ne[2]));
    REQUIRE(t->params.soft_max.max_bias <= 0 || t->src[1], TN_E_INVALID, "ALiBi needs a mask of distances");
    return TN_OK;
}
static tn_status rule_rope(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *pos = t->src[1], *factors = t->src[2];
    const tn_rope_params *p = &t->params.rope;
    bool multi = p->mode == TN_ROPE_MULTI || p->mode == TN_ROPE_VISION;
    REQUIRE(x->type == TN_F32 || x->type == TN_F16, TN_E_TYPE, "f32 or f16 is needed");
    REQUIRE(tn_is_contiguous_rows(x), TN_E_SHAPE, "rows must be contiguous");
    REQUIRE(p->mode >= TN_ROPE_NORMAL && p->mode <= TN_ROPE_VISION, TN_E_INVALID, "unknown mode %d", p->mode);
    REQUIRE(p->dims > 0 && p->dims % 2 == 0 && p->dims <= x->ne[0], TN_E_INVALID,
            "dims is %d; it must be positive, even and at most %lld", p->dims, (long long)x->ne[0]);
    REQUIRE(p->mode != TN_ROPE_VISION || p->dims * 2 == x->ne[0], TN_E_INVALID,
            "vision rope rotates half of the head per axis");
    REQUIRE(is_index(pos) && tn_is_vector(pos) && tn_is_contiguous(pos) && pos->ne[0] == x->ne[2] * (multi ? 4 : 1),
            TN_E_SHAPE, "positions must be i32[%lld]", (long long)(x->ne[2] * (multi ? 4 : 1)));
    if (factors)
        REQUIRE(factors->type == TN_F32 && factors->ne[0] >= p->dims / 2 && tn_is_contiguous_rows(factors),
                TN_E_SHAPE, "factors must be f32[%d]", p->dims / 2);
    REQUIRE(p->base > 0 && p->freq_scale > 0, TN_E_INVALID, "base and scale must be positive");
    return same_as_source(t);
}

/* ---- Matrix multiplication ---- */

static tn_status rule_mul_mat(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    REQUIRE(tn_type_can_read(x->type) && (is_f32_f16_bf16(x) || tn_type_is_quantized(x->type)), TN_E_TYPE,
            "%s cannot be multiplied", tn_type_name(x->type));
    REQUIRE(is_f32_f16_bf16(y), TN_E_TYPE, "the second source must be f32, f16 or bf16");
    REQUIRE(x->ne[0] == y->ne[0], TN_E_SHAPE, "inner dimensions differ: %lld and %lld", (long long)x->ne[0],
            (long long)y->ne[0]);
    REQUIRE(x->ne[2] && x->ne[3] && y->ne[2] % x->ne[2] == 0 && y->ne[3] % x->ne[3] == 0, TN_E_SHAPE,
            "outer dimensions of the first must divide the second's");
    REQUIRE(tn_is_contiguous_rows(x) && tn_is_contiguous_rows(y), TN_E_SHAPE, "rows must be contiguous");
    t->type = TN_F32;
    has_shape(t, x->ne[1], y->ne[1], y->ne[2], y->ne[3]);
    return TN_OK;
}
static tn_status rule_mul_mat_id(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1], *ids = t->src[2];
    REQUIRE(tn_type_can_read(x->type) && (is_f32_f16_bf16(x) || tn_type_is_quantized(x->type)), TN_E_TYPE,
            "%s cannot be multiplied", tn_type_name(x->type));
    REQUIRE(y->type == TN_F32 && is_index(ids), TN_E_TYPE, "f32 and i32 are needed");
    REQUIRE(x->ne[0] == y->ne[0], TN_E_SHAPE, "inner dimensions differ: %lld and %lld", (long long)x->ne[0],
            (long long)y->ne[0]);
    REQUIRE(x->ne[3] == 1 && y->ne[3] == 1 && tn_is_matrix(ids), TN_E_SHAPE,
            "x[k,m,experts], y[k,used,tokens], ids[used,tokens]");
    REQUIRE(ids->ne[1] == y->ne[2] && (y->ne[1] == 1 || y->ne[1] == ids->ne[0]), TN_E_SHAPE, "ids do not match y");
    REQUIRE(tn_is_contiguous_rows(x) && tn_is_contiguous_rows(y) && tn_is_contiguous_rows(ids), TN_E_SHAPE,
            "rows must be contiguous");
    t->type = TN_F32;
    has_shape(t, x->ne[1], ids->ne[0], ids->ne[1], 1);
    return TN_OK;
}
static tn_status rule_out_prod(tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    REQUIRE(x->type == TN_F32 && y->type == TN_F32, TN_E_TYPE, "f32 is needed");
    REQUIRE(x->ne[1] == y->ne[1], TN_E_SHAPE, "inner dimensions differ: %lld and %lld", (long long)x->ne[1],
            (long long)y->ne[1]);
    REQUIRE(x->ne[2] && x->ne[3] && y->ne[2] % x->ne[2] == 0 && y->ne[3] % x->ne[3] == 0, TN_E_SHAPE,
            "outer dimensions of the first must divide the second's");
    t->type = TN_F32;
    has_shape(t, x->ne[0], y->ne[0], y->ne[2], y->ne[3]);
    return TN_OK;
}

/* ---- Convolutions ---- */

/* Output length for a kernel of k (dilation d) over n elements with padding p on both sides and stride s; -1 if the
 * kernel does not fit. */
static int64_t slide(int64_t n, int64_t k, int64_t s, int64_t p, int64_t d) {
    int64_t room = n + 2 * p - d * (k - 1) - 1;
    return room < 0 ? -1 : room / s + 1;
}
static tn_status check_conv(tn_tensor *t, int n_spatial) {
    const tn_tensor *kernel = t->src[0], *x = t->src[1];
    const tn_conv_params *p = &t->params.conv;
    REQUIRE((kernel->type == TN_F32 || kernel->type == TN_F16) && x->type == TN_F32, TN_E_TYPE,
            "an f32 or f16 kernel and f32 data are needed");
    REQUIRE(tn_is_contiguous(kernel), TN_E_SHAPE, "the kernel must be contiguous");
    REQUIRE(!tn_is_empty(kernel), TN_E_SHAPE, "the kernel is empty");
    for (int i = 0; i < n_spatial; i++)
        REQUIRE(p->stride[i] > 0 && p->pad[i] >= 0 && p->dilation[i] > 0, TN_E_INVALID,
                "invalid stride %d, padding %d or dilation %d in dimension %d", p->stride[i], p->pad[i],
                p->dilation[i], i);
    REQUIRE(p->groups > 0, TN_E_INVALID, "invalid number of groups: %d", p->groups);
    return TN_OK;
}
static tn_status rule_im2col(tn_tensor *t) {
    const tn_tensor *kernel = t->src[0], *x = t->src[1];
    const tn_conv_params *p = &t->params.conv;
    int n = p->is_2d ? 2 : 1;
    TN_TRY(check_conv(t, n));
    REQUIRE(t->type == TN_F32 || t->type == TN_F16, TN_E_TYPE, "the result is f32 or f16");
    REQUIRE(kernel->ne[n] == x->ne[n], TN_E_SHAPE, "channels differ");
    int64_t ow = slide(x->ne[0], kernel->ne[0], p->stride[0], p->pad[0], p->dilation[0]);
    REQUIRE(ow >= 0, TN_E_SHAPE, "the kernel is wider than the padded data");
    if (!p->is_2d) {
        has_shape(t, kernel->ne[0] * kernel->ne[1], ow, x->ne[2], 1);
        return TN_OK;
    }
    int64_t oh = slide(x->ne[1], kernel->ne[1], p->stride[1], p->pad[1], p->dilation[1]);
    REQUIRE(oh >= 0, TN_E_SHAPE, "the kernel is higher than the padded data");
    has_shape(t, kernel->ne[0] * kernel->ne[1] * kernel->ne[2], ow, oh, x->ne[3]);
    return TN_OK;
}
static tn_status rule_conv(tn_tensor *t) {
    const tn_tensor *kernel = t->src[0], *x = t->src[1];
    const tn_conv_params *p = &t->params.conv;
    int n = t->op == TN_OP_CONV_2D ? 2 : 1;
    TN_TRY(check_conv(t, n));
    REQUIRE(x->ne[n] % p->groups == 0 && kernel->ne[n + 1] % p->groups == 0 && kernel->ne[n] == x->ne[n] / p->groups,
            TN_E_SHAPE, "channels do not match %d groups", p->groups);
    REQUIRE(n == 2 || (kernel->ne[3] == 1 && x->ne[3] == 1), TN_E_SHAPE, "too many dimensions");
    int64_t ow = slide(x->ne[0], kernel->ne[0], p->stride[0], p->pad[0], p->dilation[0]);
    int64_t oh = n == 2 ? slide(x->ne[1], kernel->ne[1], p->stride[1], p->pad[1], p->dilation[1]) : 0;
    REQUIRE(ow >= 0 && oh >= 0, TN_E_SHAPE, "the kernel is larger than the padded data");
    t->type = TN_F32;
    if (n == 2)
        has_shape(t, ow, oh, kernel->ne[3], x->ne[3]);
    else
        has_shape(t, ow, kernel->ne[2], x->ne[2], 1);
    return TN_OK;
}
static tn_status rule_conv_transpose(tn_tensor *t) {
    const tn_tensor *kernel = t->src[0], *x = t->src[1];
    int n = t->op == TN_OP_CONV_TRANSPOSE_2D ? 2 : 1, stride = t->params.conv.stride[0];
    TN_TRY(check_conv(t, n));
    REQUIRE(kernel->ne[n + 1] == x->ne[n], TN_E_SHAPE, "channels differ");
    REQUIRE(n == 2 || (kernel->ne[3] == 1 && x->ne[3] == 1), TN_E_SHAPE, "too many dimensions");
    REQUIRE(!tn_is_empty(x), TN_E_SHAPE, "the data is empty");
    t->type = TN_F32;
    if (n == 2)
        has_shape(t, (x->ne[0] - 1) * stride + kernel->ne[0], (x->ne[1] - 1) * stride + kernel->ne[1], kernel->ne[2],
                  x->ne[3]);
    else
        has_shape(t, (x->ne[0] - 1) * stride + kernel->ne[0], kernel->ne[1], x->ne[2], 1);
    return TN_OK;
}
static tn_status rule_pool(tn_tensor *t) {
    const tn_pool_params *p = &t->params.pool;
    int n = t->op == TN_OP_POOL_2D ? 2 : 1;
    REQUIRE(t->src[0]->type == TN_F32, TN_E_TYPE, "f32 is needed");
    REQUIRE(p->kind == TN_POOL_MAX || p->kind == TN_POOL_AVG, TN_E_INVALID, "unknown kind %d", p->kind);
    TN_TRY(same_as_source(t));
    for (int i = 0; i < n; i++) {
        REQUIRE(p->kernel[i] > 0 && p->stride[i] > 0 && p->pad[i] >= 0 && p->pad[i] < p->kernel[i], TN_E_INVALID,
                "invalid kernel %d, stride %d or padding %d in dimension %d", p->kernel[i], p->stride[i], p->pad[i],
                i);
        t->ne[i] = slide(t->ne[i], p->kernel[i], p->stride[i], p->pad[i], 1);
        REQUIRE(t->ne[i] >= 0, TN_E_SHAPE, "the window is larger than the padded data");
    }
    return TN_OK;
}

const tn__shape_rule tn__shape_rules[TN_OP_COUNT] = {
    [TN_OP_NONE] = rule_none,
    [TN_OP_DUP] = rule_dup,
    [TN_OP_CAST] = rule_cast,
    [TN_OP_CONT] = rule_cont,
    [TN_OP_CPY] = rule_cpy,
    [TN_OP_VIEW] = rule_view,
    [TN_OP_RESHAPE] = rule_reshape,
    [TN_OP_PERMUTE] = rule_permute,
    [TN_OP_TRANSPOSE] = rule_transpose,
    [TN_OP_ADD] = rule_binary,
    [TN_OP_SUB] = rule_binary,
    [TN_OP_MUL] = rule_binary,
    [TN_OP_DIV] = rule_binary,
    [TN_OP_ADD_ID] = rule_add_id,
    [TN_OP_SCALE] = rule_unary,
    [TN_OP_SQR] = rule_unary,
    [TN_OP_SQRT] = rule_unary,
    [TN_OP_LOG] = rule_unary,
    [TN_OP_EXP] = rule_unary,
    [TN_OP_SIN] = rule_unary,
    [TN_OP_COS] = rule_unary,
    [TN_OP_CLAMP] = rule_unary,
    [TN_OP_NEG] = rule_unary,
    [TN_OP_ABS] = rule_unary,
    [TN_OP_SGN] = rule_unary,
    [TN_OP_STEP] = rule_unary,
    [TN_OP_TANH] = rule_unary,
    [TN_OP_ELU] = rule_unary,
    [TN_OP_RELU] = rule_unary,
    [TN_OP_LEAKY_RELU] = rule_unary,
    [TN_OP_SIGMOID] = rule_unary,
    [TN_OP_GELU] = rule_unary,
    [TN_OP_GELU_QUICK] = rule_unary,
    [TN_OP_GELU_ERF] = rule_unary,
    [TN_OP_SILU] = rule_unary,
    [TN_OP_HARDSWISH] = rule_unary,
    [TN_OP_HARDSIGMOID] = rule_unary,
    [TN_OP_SOFTPLUS] = rule_unary,
    [TN_OP_REGLU] = rule_glu,
    [TN_OP_GEGLU] = rule_glu,
    [TN_OP_GEGLU_QUICK] = rule_glu,
    [TN_OP_GEGLU_ERF] = rule_glu,
    [TN_OP_SWIGLU] = rule_glu,
    [TN_OP_SWIGLU_OAI] = rule_glu,
    [TN_OP_SUM] = rule_sum,
    [TN_OP_SUM_ROWS] = rule_rows_to_one,
    [TN_OP_MEAN] = rule_rows_to_one,
    [TN_OP_CUMSUM] = rule_cumsum,
    [TN_OP_ARGMAX] = rule_argmax,
    [TN_OP_ARGSORT] = rule_argsort,
    [TN_OP_TOP_K] = rule_top_k,
    [TN_OP_CONCAT] = rule_concat,
    [TN_OP_REPEAT] = rule_repeat,
    [TN_OP_PAD] = rule_pad,
    [TN_OP_ROLL] = rule_roll,
    [TN_OP_ARANGE] = rule_arange,
    [TN_OP_GET_ROWS] = rule_get_rows,
    [TN_OP_SET_ROWS] = rule_set_rows,
    [TN_OP_ACC] = rule_region,
    [TN_OP_SET] = rule_region,
    [TN_OP_NORM] = rule_norm,
    [TN_OP_RMS_NORM] = rule_norm,
    [TN_OP_L2_NORM] = rule_norm,
    [TN_OP_GROUP_NORM] = rule_group_norm,
    [TN_OP_SOFT_MAX] = rule_soft_max,
    [TN_OP_DIAG_MASK_INF] = rule_diag_mask,
    [TN_OP_DIAG_MASK_ZERO] = rule_diag_mask,
    [TN_OP_ROPE] = rule_rope,
    [TN_OP_HADAMARD] = rule_hadamard,
    [TN_OP_MUL_MAT] = rule_mul_mat,
    [TN_OP_MUL_MAT_ID] = rule_mul_mat_id,
    [TN_OP_OUT_PROD] = rule_out_prod,
    [TN_OP_MIX] = rule_mix,
    [TN_OP_IM2COL] = rule_im2col,
    [TN_OP_CONV_1D] = rule_conv,
    [TN_OP_CONV_2D] = rule_conv,
    [TN_OP_CONV_TRANSPOSE_1D] = rule_conv_transpose,
    [TN_OP_CONV_TRANSPOSE_2D] = rule_conv_transpose,
    [TN_OP_POOL_1D] = rule_pool,
    [TN_OP_POOL_2D] = rule_pool,
    [TN_OP_UPSCALE] = rule_upscale,
    [TN_OP_ATTENTION] = tn__rule_attention,
    [TN_OP_SELECT_POSITIONS] = tn__rule_select_positions,
    [TN_OP_CAUSAL_CONV] = tn__rule_causal_conv,
    [TN_OP_LINEAR_ATTENTION] = tn__rule_linear_attention,
    [TN_OP_SELECTIVE_SCAN] = tn__rule_selective_scan,
    [TN_OP_RWKV7] = tn__rule_rwkv7,
    [TN_OP_CROSS_ENTROPY_LOSS] = rule_cross_entropy,
    [TN_OP_TIMESTEP_EMBEDDING] = rule_timestep,
    [TN_OP_CUSTOM] = rule_custom,
};

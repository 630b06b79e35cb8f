// The table of ops: what this backend runs, what scratch it needs, who launches it.
#include "backend/cuda/cuda.cuh"
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/weights.cuh"

static bool is_real(const tn_tensor *t) { return t->type == TN_F32 || t->type == TN_F16 || t->type == TN_BF16; }
static bool refuse(char *reason, size_t size, const char *text) {
    if (reason) snprintf(reason, size, "%s", text);
    return false;
}

// Whether all rearranged sources are read by who knows them, whole rows at a time.
static bool reads_soa(const tn_tensor *t) {
    for (int i = 0; i < TN_MAX_SRC; i++) {
        const tn_tensor *x = t->src[i], *root = x && x->view_src ? x->view_src : x;
        if (!x || !(kind_of(x) & SOA)) continue;
        bool known = i == 0 && (t->op == TN_OP_MUL_MAT || t->op == TN_OP_MUL_MAT_ID || t->op == TN_OP_GET_ROWS);
        size_t row = root->nb[1], unaligned = x->view_src ? x->view_offset % row : 0;
        for (int d = 1; d < TN_MAX_DIMS; d++) unaligned |= x->nb[d] % row;
        if (!known || unaligned || x->ne[0] != root->ne[0]) return false;
    }
    return true;
}

bool node_supported(const tn_tensor *t, char *reason, size_t size) {
    static const char too_many[] = "more rows than a grid has";
    if (tn_op_get_family(t->op) != TN_FAMILY_VIEW && !reads_soa(t))
        return refuse(reason, size, "weights that were rearranged are multiplied and taken by rows only");
    const tn_tensor *x = t->src[0], *y = t->src[1];
    switch (tn_op_get_family(t->op)) {
    case TN_FAMILY_VIEW: return true;
    case TN_FAMILY_UNARY:
        if (t->op == TN_OP_DIAG_MASK_INF || t->op == TN_OP_DIAG_MASK_ZERO)
            return refuse(reason, size, "not written for CUDA");
        return true;
    case TN_FAMILY_BINARY:
    case TN_FAMILY_GLU: return true;
    case TN_FAMILY_NORM:
        if (t->op == TN_OP_GROUP_NORM) return refuse(reason, size, "not written for CUDA");
        return true;
    case TN_FAMILY_ROPE: return true;
    case TN_FAMILY_ATTENTION: return attention_supported(t, reason, size);
    default: break;
    }
    switch (t->op) {
    case TN_OP_DUP:
    case TN_OP_CONT:
    case TN_OP_CAST:
    case TN_OP_CPY: {
        const tn_tensor *to = t->op == TN_OP_CPY ? y : t;
        if (x->type == to->type && tn_type_is_quantized(x->type))
            return tn_is_contiguous(x) && tn_is_contiguous(to)
                       ? true
                       : refuse(reason, size, "block types are copied whole only");
        bool plain = (is_real(x) || x->type == TN_I32) && (is_real(to) || to->type == TN_I32);
        return plain || x->type == to->type ? true : refuse(reason, size, "this conversion is not written for CUDA");
    }
    case TN_OP_CONCAT:
    case TN_OP_REPEAT:
    case TN_OP_ACC:
    case TN_OP_SET:
    case TN_OP_SUM_ROWS:
    case TN_OP_MEAN:
    case TN_OP_ARGMAX:
    case TN_OP_TOP_K: return true;
    case TN_OP_ADD_ID:
    case TN_OP_MIX: return x->ne[2] <= MOST_ROWS ? true : refuse(reason, size, too_many);
    case TN_OP_GET_ROWS:
        if (y->ne[1] * y->ne[2] > MOST_ROWS) return refuse(reason, size, too_many);
        return x->type == TN_I32 || (has_reader(x->type) && (!tn_type_is_quantized(x->type) || x->ne[0] % 8 == 0))
                   ? true
                   : refuse(reason, size, "this type is not read on CUDA");
    case TN_OP_SET_ROWS:
        if (y->ne[2] * y->ne[3] > MOST_ROWS) return refuse(reason, size, too_many);
        return is_real(x) || x->type == TN_Q8_0 || x->type == TN_Q4_0
                   ? true
                   : refuse(reason, size, "this type is not written on CUDA");
    case TN_OP_MUL_MAT:
    case TN_OP_MUL_MAT_ID:
        if (!has_reader(x->type)) return refuse(reason, size, "this weight type is not read on CUDA");
        if (y->type != TN_F32) return refuse(reason, size, "activations must be f32");
        if (x->ne[0] % 8 || !x->ne[0]) return refuse(reason, size, "rows must be a multiple of 8 elements");
        if (t->op == TN_OP_MUL_MAT && t->params.mul_mat.precise && x->type != TN_F32 &&
            !gemv_supports(t)) // those are multiplied as f16
            return refuse(reason, size, "precise products with many columns or batches need f32 weights");
        return true;
    default: return refuse(reason, size, "not written for CUDA");
    }
}

size_t node_scratch(const cuda_device *device, const tn_tensor *t) {
    if (tn_is_empty(t)) return 0;
    switch (t->op) {
    case TN_OP_MUL_MAT: return mul_mat_scratch(device, t);
    case TN_OP_MUL_MAT_ID: return mul_mat_id_scratch(device, t);
    case TN_OP_ATTENTION: return attention_scratch(device, t);
    case TN_OP_ARGMAX: return argmax_scratch(t);
    default: return 0;
    }
}

bool node_is_idle(const tn_tensor *t) {
    return tn_is_empty(t) || (t->op == TN_OP_SET_ROWS && tn_is_empty(t->src[1]));
}

tn_status node_launch(const launch &l, const tn_tensor *t) {
    if (node_is_idle(t)) return TN_OK;
    switch (tn_op_get_family(t->op)) {
    case TN_FAMILY_UNARY: return launch_unary(l, t);
    case TN_FAMILY_BINARY: return launch_binary(l, t);
    case TN_FAMILY_GLU: return launch_glu(l, t);
    case TN_FAMILY_ROPE: return launch_rope(l, t);
    case TN_FAMILY_ATTENTION: return launch_attention(l, t);
    default: break;
    }
    switch (t->op) {
    case TN_OP_DUP:
    case TN_OP_CONT:
    case TN_OP_CAST: return launch_copy(l, t->src[0], t);
    case TN_OP_CPY: return launch_copy(l, t->src[0], t->src[1]);
    case TN_OP_CONCAT: return launch_concat(l, t);
    case TN_OP_REPEAT: return launch_repeat(l, t);
    case TN_OP_ACC:
    case TN_OP_SET: return launch_region(l, t);
    case TN_OP_ADD_ID: return launch_add_id(l, t);
    case TN_OP_GET_ROWS: return launch_get_rows(l, t);
    case TN_OP_SET_ROWS: return launch_set_rows(l, t);
    case TN_OP_NORM:
    case TN_OP_RMS_NORM:
    case TN_OP_L2_NORM: return launch_norm(l, t);
    case TN_OP_SOFT_MAX: return launch_soft_max(l, t);
    case TN_OP_SUM_ROWS:
    case TN_OP_MEAN:
    case TN_OP_ARGMAX: return launch_row_reduce(l, t);
    case TN_OP_TOP_K: return launch_top_k(l, t);
    case TN_OP_MIX: return launch_mix(l, t);
    case TN_OP_MUL_MAT: return launch_mul_mat(l, t);
    case TN_OP_MUL_MAT_ID: return launch_mul_mat_id(l, t);
    default: return tn_fail(TN_E_UNSUPPORTED, "%s is not written for CUDA", tn_op_name(t->op));
    }
}

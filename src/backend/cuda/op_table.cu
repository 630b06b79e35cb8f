// The one table of ops on CUDA: one row each. An op without a row is not supported.
#include "backend/cuda/compile.cuh"
#include "backend/cuda/kernels/delta/delta_net.cuh"
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/kv_cache.cuh"
#include "backend/cuda/kernels/weights.cuh"

struct cuda_op {
    tn_status (*compile)(const compilation &c, const tn_tensor *node);
    // NULL: everything that the op's shape rule accepts. Otherwise false and a reason.
    bool (*supports)(const tn_tensor *node, char *reason, size_t reason_size);
    size_t (*scratch)(const device_description &device, const tn_tensor *node); // bytes; NULL: none
    bool (*is_idle)(const tn_tensor *node); // besides nodes without elements; NULL: never
};

static const char too_many_rows[] = "more rows than a grid has blocks in y";

static bool refuse_node(char *reason, size_t size, const char *text) {
    if (reason) snprintf(reason, size, "%s", text);
    return false;
}
static bool is_float_type(const tn_tensor *t) { return t->type == TN_F32 || t->type == TN_F16 || t->type == TN_BF16; }

// ---- What the ops support ----

static bool supports_copy_to(const tn_tensor *x, const tn_tensor *to, char *reason, size_t size) {
    if (x->type == to->type && tn_type_is_quantized(x->type))
        return (tn_is_contiguous(x) && tn_is_contiguous(to)) ||
               refuse_node(reason, size, "block types are copied as contiguous tensors only");
    auto is_plain = [](const tn_tensor *t) { return is_float_type(t) || t->type == TN_FP8 || t->type == TN_I32; };
    bool plain = is_plain(x) && is_plain(to);
    return plain || x->type == to->type || refuse_node(reason, size, "this conversion is not implemented for CUDA");
}
static bool supports_copy(const tn_tensor *t, char *reason, size_t size) {
    return supports_copy_to(t->src[0], t, reason, size);
}
static bool supports_cpy(const tn_tensor *t, char *reason, size_t size) {
    return supports_copy_to(t->src[0], t->src[1], reason, size);
}
// add_id and mix: a grid row per token.
static bool supports_token_rows(const tn_tensor *t, char *reason, size_t size) {
    return t->src[0]->ne[2] <= MOST_ROWS || refuse_node(reason, size, too_many_rows);
}
static bool supports_get_rows(const tn_tensor *t, char *reason, size_t size) {
    const tn_tensor *x = t->src[0], *rows = t->src[1];
    if (rows->ne[1] * rows->ne[2] > MOST_ROWS) return refuse_node(reason, size, too_many_rows);
    return x->type == TN_I32 || x->type == TN_FP8 ||
           (has_reader(x->type) && (!tn_type_is_quantized(x->type) || x->ne[0] % 8 == 0)) ||
           refuse_node(reason, size, "this type is not read on CUDA");
}
static bool supports_set_rows(const tn_tensor *t, char *reason, size_t size) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    if (y->ne[2] * y->ne[3] > MOST_ROWS) return refuse_node(reason, size, too_many_rows);
    return is_cache_type(x->type) || refuse_node(reason, size, "this type is not written on CUDA");
}
static bool supports_hadamard(const tn_tensor *t, char *reason, size_t size) {
    return t->params.hadamard.block <= 1024 || refuse_node(reason, size, "blocks of more than 1024 elements");
}
static bool supports_mul_mat_id(const tn_tensor *t, char *reason, size_t size) {
    const tn_tensor *x = t->src[0];
    if (!has_reader(x->type)) return refuse_node(reason, size, "this weight type is not read on CUDA");
    if (t->src[1]->type != TN_F32) return refuse_node(reason, size, "activations must be f32");
    return (x->ne[0] % 8 == 0 && x->ne[0]) || refuse_node(reason, size, "rows must be a multiple of 8 elements");
}
static bool supports_mul_mat(const tn_tensor *t, char *reason, size_t size) {
    if (!supports_mul_mat_id(t, reason, size)) return false;
    // cuBLASLt multiplies everything but f32 weights as f16 or bf16.
    return !t->params.mul_mat.precise || t->src[0]->type == TN_F32 || gemv_takes_shape(t) ||
           (t->flags & TN_FLAG_REPEATABLE) ||
           refuse_node(reason, size, "precise matrix multiplications with many columns or batches need f32 weights");
}

// ---- Rows ----

static bool has_no_rows(const tn_tensor *t) { return tn_is_empty(t->src[1]); }
static tn_status compile_copy_of(const compilation &c, const tn_tensor *t) { return compile_copy(c, t->src[0], t); }
static tn_status compile_cpy(const compilation &c, const tn_tensor *t) {
    return compile_copy(c, t->src[0], t->src[1]);
}
static tn_status compile_nothing(const compilation &, const tn_tensor *) { return TN_OK; }

struct op_table {
    cuda_op rows[TN_OP_COUNT] = {};
    constexpr op_table() {
        for (int op : {TN_OP_VIEW, TN_OP_RESHAPE, TN_OP_PERMUTE, TN_OP_TRANSPOSE}) rows[op] = {compile_nothing};
        for (int op : {TN_OP_DUP, TN_OP_CONT, TN_OP_CAST}) rows[op] = {compile_copy_of, supports_copy};
        rows[TN_OP_CPY] = {compile_cpy, supports_cpy};

        for (int op : {TN_OP_ADD, TN_OP_SUB, TN_OP_MUL, TN_OP_DIV}) rows[op] = {compile_binary};
        for (int op :
             {TN_OP_SCALE,      TN_OP_SQR,      TN_OP_SQRT, TN_OP_LOG,        TN_OP_EXP,         TN_OP_SIN,
              TN_OP_COS,        TN_OP_CLAMP,    TN_OP_NEG,  TN_OP_ABS,        TN_OP_SGN,         TN_OP_STEP,
              TN_OP_TANH,       TN_OP_ELU,      TN_OP_RELU, TN_OP_LEAKY_RELU, TN_OP_SIGMOID,     TN_OP_GELU,
              TN_OP_GELU_QUICK, TN_OP_GELU_ERF, TN_OP_SILU, TN_OP_HARDSWISH,  TN_OP_HARDSIGMOID, TN_OP_SOFTPLUS})
            rows[op] = {compile_unary};
        for (int op : {TN_OP_REGLU, TN_OP_GEGLU, TN_OP_GEGLU_QUICK, TN_OP_GEGLU_ERF, TN_OP_SWIGLU, TN_OP_SWIGLU_OAI})
            rows[op] = {compile_glu};

        rows[TN_OP_CONCAT] = {compile_concat};
        rows[TN_OP_REPEAT] = {compile_repeat};
        rows[TN_OP_ARANGE] = {compile_arange};
        rows[TN_OP_ACC] = {compile_region};
        rows[TN_OP_SET] = {compile_region};
        rows[TN_OP_GET_ROWS] = {compile_get_rows, supports_get_rows};
        rows[TN_OP_SET_ROWS] = {compile_set_rows, supports_set_rows, NULL, has_no_rows};
        rows[TN_OP_ADD_ID] = {compile_add_id, supports_token_rows};

        rows[TN_OP_SUM_ROWS] = {compile_row_reduce};
        rows[TN_OP_MEAN] = {compile_row_reduce};
        rows[TN_OP_ARGMAX] = {compile_row_reduce, NULL, argmax_scratch};
        rows[TN_OP_TOP_K] = {compile_top_k};
        rows[TN_OP_MIX] = {compile_mix, supports_token_rows};
        rows[TN_OP_NORM] = {compile_norm};
        rows[TN_OP_RMS_NORM] = {compile_norm};
        rows[TN_OP_L2_NORM] = {compile_norm};
        rows[TN_OP_SOFT_MAX] = {compile_soft_max};
        rows[TN_OP_ROPE] = {compile_rope};
        rows[TN_OP_HADAMARD] = {compile_hadamard, supports_hadamard};

        rows[TN_OP_MUL_MAT] = {compile_mul_mat, supports_mul_mat, mul_mat_scratch};
        rows[TN_OP_MUL_MAT_ID] = {compile_mul_mat_id, supports_mul_mat_id, mul_mat_id_scratch};
        rows[TN_OP_ATTENTION] = {compile_attention, attention_supported, attention_scratch};
        rows[TN_OP_SELECT_POSITIONS] = {compile_select_positions, select_supported, select_scratch};

        rows[TN_OP_CAUSAL_CONV] = {compile_causal_conv, recurrent_supported};
        rows[TN_OP_LINEAR_ATTENTION] = {compile_linear_attention, recurrent_supported, delta_net_scratch};
        rows[TN_OP_SELECTIVE_SCAN] = {compile_selective_scan, recurrent_supported};
        rows[TN_OP_RWKV7] = {compile_rwkv7, recurrent_supported};
    }
};
static constexpr op_table table;

// ---- Look-ups ----

static bool is_view_node(const tn_tensor *t) { return tn_op_get_family(t->op) == TN_FAMILY_VIEW; }

// Whether repacked sources are read only by ops that know their layout, whole rows at a time.
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
    const cuda_op &row = table.rows[t->op];
    if (!is_view_node(t) && !reads_soa(t))
        return refuse_node(reason, size, "repacked weights are read by matrix multiplications and get_rows only");
    if (!row.compile) return refuse_node(reason, size, "not implemented for CUDA");
    return !row.supports || row.supports(t, reason, size);
}
size_t node_scratch(const device_description &device, const tn_tensor *t) {
    const cuda_op &row = table.rows[t->op];
    return tn_is_empty(t) || !row.scratch ? 0 : row.scratch(device, t);
}
bool node_is_idle(const tn_tensor *t) {
    const cuda_op &row = table.rows[t->op];
    return tn_is_empty(t) || (row.is_idle && row.is_idle(t));
}
tn_status node_compile(const compilation &c, const tn_tensor *t) {
    const cuda_op &row = table.rows[t->op];
    if (node_is_idle(t)) return TN_OK;
    if (!row.compile) return tn_fail(TN_E_UNSUPPORTED, "%s is not implemented for CUDA", tn_op_name(t->op));
    return row.compile(c, t);
}

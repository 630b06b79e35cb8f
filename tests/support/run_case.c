/* Execution of one node on any stream, and comparison with the reference. */
#include "run_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROOTS = TN_MAX_SRC + 1 };

static tn_tensor *root_of(tn_tensor *t) { return t->view_src ? t->view_src : t; }

static void add_root(tn_tensor **roots, int *n, tn_tensor *t) {
    for (int i = 0; i < *n; i++)
        if (roots[i] == t) return;
    roots[(*n)++] = t;
}

bool can_run_in_place(tn_stream *stream, const tn_tensor *node, int source) {
    uint32_t mask = tn_device_inplace_mask(tn_stream_device(stream), node);
    const tn_tensor *x = node->src[source];
    if (!(mask >> source & 1) || !x || x->view_src || node->view_src || !tn_same_layout(x, node)) return false;
    for (int i = 0; i < TN_MAX_SRC; i++)
        if (i != source && node->src[i] && root_of(node->src[i]) == x) return false;
    return true;
}

static const tn_tensor *updated_source(const tn_tensor *node) {
    int source = tn_op_written_source(node->op);
    return source < 0 ? NULL : node->src[source];
}
size_t case_bytes(const tn_tensor *node) {
    const tn_tensor *state = updated_source(node);
    return tn_nbytes(node) + (state ? tn_nbytes(state) : 0);
}

/* A leaf that is bound to device memory for a run. */
typedef struct guest {
    tn_tensor *root;
    void *host, *extra;
    tn_buffer *buffer;
} guest;

static void move_in(guest *g, tn_tensor *root, tn_buffer_type *type, tn_buffer_usage usage, bool with_data) {
    *g = (guest){root, root->data, root->extra, NULL};
    assert_ok(tn_buffer_new(type, tn_buffer_type_tensor_size(type, root), &g->buffer));
    tn_buffer_set_usage(g->buffer, usage);
    assert_ok(tn_buffer_bind(g->buffer, root, 0));
    if (with_data) assert_ok(tn_tensor_set(root, g->host));
}
static void move_out(guest *g) {
    g->root->data = g->host;
    g->root->extra = g->extra;
    g->root->buffer = NULL;
    tn_buffer_free(g->buffer);
}
static void bind_views(tn_tensor *node) {
    for (int i = 0; i < TN_MAX_SRC; i++)
        if (node->src[i] && node->src[i]->view_src) assert_ok(tn_view_bind(node->src[i]));
}

static void *run(tn_stream *stream, tn_tensor *node, int in_place, tn_buffer_type *weights) {
    tn_device *device = tn_stream_device(stream);
    tn_buffer_type *type = tn_device_buffer_type(device);
    tn_tensor *roots[MAX_ROOTS];
    guest guests[MAX_ROOTS];
    int n = 0;
    for (int i = 0; i < TN_MAX_SRC; i++)
        if (node->src[i]) add_root(roots, &n, root_of(node->src[i]));
    if (in_place < 0) add_root(roots, &n, root_of(node));
    void *result_data = node->data, *bytes = NULL;
    for (int i = 0; i < n; i++) {
        bool are_weights = weights && roots[i] == node->src[0];
        move_in(&guests[i], roots[i], are_weights ? weights : type, are_weights ? TN_USAGE_WEIGHTS : TN_USAGE_ANY,
                roots[i] != node);
    }
    bind_views(node);
    if (in_place >= 0) {
        node->data = node->src[in_place]->data;
        node->buffer = node->src[in_place]->buffer;
    } else if (node->view_src) {
        assert_ok(tn_view_bind(node));
    }

    if (tn_device_supports_op(device, node, NULL, 0)) {
        tn_buffer *scratch = NULL;
        tn_program *program;
        assert_ok(tn_program_new(stream, &node, 1, &program));
        if (tn_program_scratch(program)) assert_ok(tn_buffer_new(type, tn_program_scratch(program), &scratch));
        assert_ok(tn_program_run(program, scratch));
        assert_ok(tn_stream_synchronize(stream));
        const tn_tensor *state = updated_source(node);
        bytes = malloc(case_bytes(node) + 1);
        if (!tn_is_empty(node)) assert_ok(tn_tensor_get(node, bytes));
        if (state && !tn_is_empty(state)) assert_ok(tn_tensor_get(state, (char *)bytes + tn_nbytes(node)));
        tn_program_free(program);
        tn_buffer_free(scratch);
    }
    for (int i = 0; i < n; i++) move_out(&guests[i]);
    bind_views(node);
    node->data = result_data;
    node->buffer = NULL;
    return bytes;
}

void *run_case(tn_stream *stream, tn_tensor *node, int in_place) { return run(stream, node, in_place, NULL); }
void *run_case_with_weights(tn_stream *stream, tn_tensor *node, tn_buffer_type *weights) {
    return run(stream, node, -1, weights);
}

const char *describe_case(const tn_tensor *node) {
    static char text[1024];
    char shape[96];
    size_t used = (size_t)snprintf(text, sizeof text, "%s → %s of", tn_op_name(node->op),
                                   tn_shape_text(node, shape, sizeof shape));
    for (int i = 0; i < TN_MAX_SRC && used < sizeof text; i++) {
        const tn_tensor *x = node->src[i];
        if (!x) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, " %s(%zu,%zu,%zu,%zu)",
                                 tn_shape_text(x, shape, sizeof shape), x->nb[0], x->nb[1], x->nb[2], x->nb[3]);
    }
    return text;
}

/* Tolerance for the arithmetic of an op, relative to the scale. Mat-mul and attention may round activations to eight
 * bits or bfloat16 if the weights are that coarse. */
double case_slack = 1;

static double tolerance_of_op(const tn_tensor *node) {
    switch (node->op) {
    case TN_OP_MUL_MAT:
        if (node->params.mul_mat.precise) return 2e-5;
        return node->src[0]->type == TN_F32 ? 2e-5 : 1.2e-2;
    case TN_OP_MUL_MAT_ID: return node->src[0]->type == TN_F32 ? 2e-5 : 1.2e-2;
    case TN_OP_ATTENTION:
        return node->src[TN_ATTN_K]->type == TN_F32 && node->src[TN_ATTN_V]->type == TN_F32 ? 1e-4 : 2e-2;
    case TN_OP_CAUSAL_CONV: return 2e-6;
    case TN_OP_LINEAR_ATTENTION:
    case TN_OP_SELECTIVE_SCAN:
    case TN_OP_RWKV7: return 1e-5;
    case TN_OP_OUT_PROD:
    case TN_OP_CONV_1D:
    case TN_OP_CONV_2D:
    case TN_OP_CONV_TRANSPOSE_1D:
    case TN_OP_CONV_TRANSPOSE_2D:
    case TN_OP_HADAMARD: return 1e-6;
    case TN_OP_NORM:
    case TN_OP_RMS_NORM:
    case TN_OP_L2_NORM:
    case TN_OP_GROUP_NORM:
    case TN_OP_SOFT_MAX: return 2e-5;
    default: return 0;
    }
}

/* Conversion to an integer: towards zero, saturated. */
static double to_integer(tn_type type, double v) {
    double high = type == TN_I8 ? INT8_MAX : type == TN_I16 ? INT16_MAX : type == TN_I32 ? INT32_MAX : 0x1p63;
    if (isnan(v)) return 0;
    v = trunc(v);
    return v > high ? high : v < -high - 1 ? -high - 1 : v;
}

/* The state after a recurrent op, which follows the result. Errors are relative to the largest value of the state. */
static void check_state(const tn_tensor *node, const void *bytes, const char *where) {
    tn_tensor state = *updated_source(node);
    double *expected = reference_state(node), *got, most = 0;
    state.data = (char *)(uintptr_t)bytes + tn_nbytes(node);
    got = reference_values(&state);
    for (int64_t i = 0; i < tn_nelements(&state); i++) most = fmax(most, fabs(expected[i]));
    for (int64_t i = 0; i < tn_nelements(&state); i++)
        if (!(fabs(got[i] - expected[i]) <= case_slack * tolerance_of_op(node) * most))
            fail_msg("%s: %s: element %lld of the state is %.9g, should be %.9g (largest %g)", where,
                     describe_case(node), (long long)i, got[i], expected[i], most);
    free(expected);
    free(got);
}

void check_case(const tn_tensor *node, const void *bytes, const char *where) {
    if (updated_source(node)) check_state(node, bytes, where);
    int64_t n = tn_nelements(node);
    double *expected = malloc(((size_t)n + 1) * sizeof *expected), *scale = malloc(((size_t)n + 1) * sizeof *scale);
    reference_run(node, expected, scale);
    tn_tensor result = *node;
    result.data = (void *)(uintptr_t)bytes;
    double *got = reference_values(&result);
    double tolerance = case_slack * fmax(tolerance_of_type(node->type), tolerance_of_op(node));
    bool product = node->op == TN_OP_MUL_MAT;
    int64_t block = tn_type_block(node->type);
    for (int64_t i = 0; i < n; i++) {
        double want = expected[i], allowed = scale[i] * tolerance + 1e-37;
        if (block > 1) { /* relative to the largest value of the block */
            double most = 0;
            for (int64_t j = i / block * block; j < (i / block + 1) * block; j++)
                most = fmax(most, fabs(expected[j]));
            allowed = most * tolerance;
        }
        if (node->type == TN_F16) {
            if (fabs(want) > 65519) want = copysign(INFINITY, want);
            allowed += 3e-8; /* half a step of the smallest numbers */
        }
        if (tn_type_block(node->type) == 1 && !tn_type_is_float(node->type) &&
            (tn_op_get_family(node->op) == TN_FAMILY_COPY || node->op == TN_OP_SET_ROWS))
            want = to_integer(node->type, want);
        bool right = isnan(want) ? isnan(got[i]) : got[i] == want || fabs(got[i] - want) <= allowed;
        if (product && !isfinite(want)) right = !isfinite(got[i]);
        if (!right)
            fail_msg("%s: %s: element %lld is %.9g, should be %.9g (off by %g, allowed %g)", where,
                     describe_case(node), (long long)i, got[i], want, fabs(got[i] - want), allowed);
    }
    free(expected);
    free(scale);
    free(got);
}

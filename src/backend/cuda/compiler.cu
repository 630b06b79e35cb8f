// The compiler: turns a program's nodes into a list of launches, several nodes in one launch where a token is
// decoded:
//
//   norm → matrix multiplications with the same input   one launch; the launch before it left the norm's input
//   matrix multiplications with more columns            one launch with the same input; with an addition
//   rope q, rope k, store k, store v, attention         one launch; with more tokens all but the attention
//   matrix multiplication → add → norm                  one launch
//   gate, up → gated activation                         one launch, with experts too
//   convolution … linear attention → gated norm         one launch: a gated delta net with one token
//   soft-max → top-k of the MoE router                  one launch
//   experts' weights → mix of results → add             one launch
//   sum and argmax of the logits                        one launch
//
// A node whose only readers take its result in another form is never stored. Which nodes fuse follows from the graph
// (which nodes read which) and from addresses: the plan reuses memory as if nodes ran one by one, so a node that runs
// later than planned must not find its sources overwritten. A node that matches no pattern gets launches of its own.
//
// Where the device has the persistent decode kernel, matrix multiplications with one column and attentions become its
// steps, and a run of them is one launch.
#include "backend/cuda/compiler.cuh"

#include "backend/cuda/kernels/small/small_ops.cuh"
#include "backend/cuda/kernels/tiles/few_columns.cuh"

#include <stdlib.h>

// ---- Nodes ----

static int compare_address(const void *a, const void *b) {
    const tn_tensor *x = ((const node_address *)a)->tensor, *y = ((const node_address *)b)->tensor;
    return x < y ? -1 : x > y;
}
const tn_tensor *without_views(const tn_tensor *t) {
    while (t && tn_op_get_family(t->op) == TN_FAMILY_VIEW && t->src[0]) t = t->src[0];
    return t;
}
bool is_matmul(const tn_tensor *t) { return t->op == TN_OP_MUL_MAT || t->op == TN_OP_MUL_MAT_ID; }
int index_of(const compiler *f, const tn_tensor *t) {
    node_address key = {without_views(t), 0};
    const node_address *entry =
        (const node_address *)bsearch(&key, f->order, (size_t)f->n, sizeof *f->order, compare_address);
    return entry ? entry->index : -1;
}
int index_of_whole(const compiler *f, const tn_tensor *t) {
    int i = index_of(f, t);
    const tn_tensor *node = i < 0 ? t : f->nodes[i];
    bool whole = t == node || (t->data == node->data && tn_is_contiguous(t) && tn_nelements(t) == tn_nelements(node));
    return whole ? i : -1;
}
bool overlap(const tn_tensor *a, const tn_tensor *b) {
    const char *x = (const char *)a->data, *y = (const char *)b->data;
    return x < y + tn_nbytes(b) && y < x + tn_nbytes(a);
}
bool survives_until(const compiler *f, const tn_tensor *t, int from, int to) {
    for (int m = from + 1; m < to; m++)
        if (!f->info[m].done && overlap(f->nodes[m], t)) return false;
    return true;
}
bool only_read_by(const compiler *f, int i, int readers) { return f->info[i].readers == readers && !f->info[i].kept; }
int next_node(const compiler *f, int i) {
    do i++;
    while (i < f->n && f->info[i].done);
    return i;
}
bool is_rows(const tn_tensor *t) {
    return t->type == TN_F32 && t->nb[0] == 4 && t->ne[2] == 1 && t->ne[3] == 1 && t->nb[1] % 4 == 0;
}

// ---- Set-up ----

// The number of steps that the persistent decode kernel may get. TENON_CUDA_PERSISTENT=0 turns it off.
static int count_steps(const compiler *f) {
    const char *wanted = getenv("TENON_CUDA_PERSISTENT");
    if (!persistent_supports(*f->device) || (wanted && strcmp(wanted, "0") == 0)) return 0;
    int steps = 0;
    for (int i = 0; i < f->n; i++) {
        const tn_tensor *t = f->nodes[i];
        if (t->op == TN_OP_MUL_MAT) steps += gemv_supports(*f->device, t) && t->ne[1] == 1;
        if (t->op == TN_OP_ATTENTION) steps += attention_is_step(*f->device, t);
    }
    return steps;
}
// Memory for the plans of attention: as many as there are different ones, within limits.
static void count_attention_plan(compiler *f, const tn_tensor *t) {
    attention_plan_key key;
    const size_t bytes = attention_plan_bytes(*f->device, t, &key);
    if (!bytes) return;
    if (bytes > f->plans.each) f->plans.each = bytes;
    for (int i = 0; i < f->plans.count; i++)
        if (memcmp(&f->plans.keys[i], &key, sizeof key) == 0) return;
    if (f->plans.count < MAX_ATTENTION_PLANS) f->plans.keys[f->plans.count++] = key;
}
static size_t all_plan_bytes(const compiler *f) {
    return f->subsequence_plan_bytes + (size_t)f->plans.count * f->plans.each;
}
static void count_node_readers(compiler *f) {
    for (int i = 0; i < f->n; i++) {
        const tn_tensor *t = f->nodes[i];
        for (const tn_tensor *source : t->src) {
            int s = source ? index_of(f, source) : -1;
            if (s >= 0) f->info[s].readers++;
        }
        if (is_matmul(t) && gemv_supports(*f->device, t) && gemv_scratch(t) > f->activation_buffer_bytes)
            f->activation_buffer_bytes = gemv_scratch(t);
        if (is_few_matmul(*f->device, t) && few_column_bytes(t) > f->activation_buffer_bytes)
            f->activation_buffer_bytes = few_column_bytes(t);
        if (tn_op_get_family(t->op) == TN_FAMILY_RECURRENT && !node_is_idle(t) &&
            subsequence_plan_bytes(t) > f->subsequence_plan_bytes)
            f->subsequence_plan_bytes = subsequence_plan_bytes(t);
        count_attention_plan(f, t);
    }
}

tn_status compiler_new(tn_tensor *const *nodes, size_t n_nodes, const device_description *device, compiler **out) {
    compiler *f = (compiler *)tn_calloc(1, sizeof *f);
    if (!f) return TN_E_NOMEM;
    f->nodes = nodes;
    f->n = (int)n_nodes;
    f->device = device;
    f->info = (compiler_node *)tn_calloc(n_nodes + 1, sizeof *f->info);
    f->order = (node_address *)tn_calloc(n_nodes + 1, sizeof *f->order);
    if (!f->info || !f->order) {
        compiler_free(f);
        return TN_E_NOMEM;
    }
    for (int i = 0; i < f->n; i++) f->order[i] = {nodes[i], i};
    qsort(f->order, n_nodes, sizeof *f->order, compare_address);
    count_node_readers(f);
    int steps = count_steps(f);
    tn_status status = steps ? persistent_new(*device, steps, &f->steps) : TN_OK;
    if (status != TN_OK) {
        compiler_free(f);
        return status;
    }
    *out = f;
    return TN_OK;
}
void compiler_free(compiler *f) {
    if (!f) return;
    persistent_free(f->steps);
    tn_free(f->info);
    tn_free(f->order);
    tn_free(f);
}

scratch_needs compiler_scratch(const compiler *f) {
    size_t most = 0;
    bool counts = false;
    for (int i = 0; i < f->n; i++) {
        size_t bytes = node_scratch(*f->device, f->nodes[i]);
        if (bytes > most) most = bytes;
        counts = counts || f->nodes[i]->op == TN_OP_ATTENTION || f->nodes[i]->op == TN_OP_ARGMAX ||
                 f->nodes[i]->op == TN_OP_TOP_K || f->nodes[i]->op == TN_OP_LINEAR_ATTENTION;
    }
    return scratch_needs_of(2 * f->activation_buffer_bytes + all_plan_bytes(f) + most,
                            f->steps ? persistent_memory_bytes(f->steps) : 0, counts);
}
scratch_table compiler_table(const compiler *f) {
    scratch_table table = {};
    int n = 0;
    if (!f->persistent) return table;
    table.data = persistent_all_steps(f->steps, &n);
    table.bytes = (size_t)n * sizeof(persistent_step);
    table.zeros_from = persistent_zeros_offset(f->steps);
    table.zeros_end = persistent_memory_bytes(f->steps);
    return table;
}

// ---- Launches ----

tn_status add_copy(const compilation &c, void *to, const void *from, size_t bytes) {
    launch_record r = {};
    r.kind = LAUNCH_COPY;
    r.copy_to = to;
    r.copy_from = from;
    r.copy_bytes = bytes;
    return launch_list_add(c.list, r, NULL, 0);
}
tn_status add_matmul(const compilation &c, const blas_matmul &m) {
    launch_record r = {};
    r.kind = LAUNCH_MATMUL;
    return launch_list_add(c.list, r, &m, sizeof m);
}

void fuse_node(compiler *f, int i) {
    f->info[i].done = true;
    if (f->n_fused < MAX_FUSED) f->fused[f->n_fused++] = i;
}
static tn_status add_fused(compiler *f, launch_list *list) {
    for (int i = 0; i < f->n_fused; i++) TN_TRY(launch_list_add_node(list, f->fused[i]));
    return TN_OK;
}
tn_status assign_nodes(compiler *f, const compilation &c) {
    launch_list *list = c.list;
    int first = (int)list->n_nodes;
    if (f->records_with_nodes == list->n_records) return TN_OK;
    TN_TRY(add_fused(f, list));
    for (; f->records_with_nodes < list->n_records; f->records_with_nodes++) {
        launch_record &r = list->records[f->records_with_nodes];
        if (r.n_steps) continue;
        r.lead = f->lead;
        r.first_node = first;
        r.n_nodes = f->n_fused;
    }
    f->n_fused = 0;
    return TN_OK;
}
tn_status assign_step(compiler *f, const compilation &c, const char *what) {
    launch_step step = {what, (int)c.list->n_nodes, f->n_fused};
    TN_TRY(add_fused(f, c.list));
    f->n_fused = 0;
    return launch_list_add_step(c.list, step);
}
tn_status launch_steps(compiler *f, const compilation &c) {
    launch_list *list = c.list;
    size_t before = list->n_records;
    if (f->persistent) TN_TRY(persistent_compile(f->steps, c));
    if (list->n_records == before) return TN_OK;
    list->records[before].first_step = (int)f->steps_launched;
    list->records[before].n_steps = (int)(list->n_steps - f->steps_launched);
    f->steps_launched = list->n_steps;
    f->records_with_nodes = list->n_records;
    return TN_OK;
}

// Small ops from node i on, each the next node, in one launch. Norms that a matmul takes over are left to it.
static tn_status fuse_small_ops(compiler *f, const compilation &c, int i, bool *matched) {
    const tn_tensor *nodes[SMALL_OPS];
    int n = 0;
    for (int k = i; k < f->n && n < SMALL_OPS && is_small_op(f->nodes[k]); k = next_node(f, k)) {
        if (k > i && (norm_is_fused(f, k) || has_normed_router(f, k) || is_narrowed(f, c, k))) break;
        nodes[n++] = f->nodes[k];
    }
    *matched = n > 1;
    if (!*matched) return TN_OK;
    f->pending = NULL;
    TN_TRY(launch_steps(f, c));
    for (int k = 0; k < n; k++) fuse_node(f, index_of(f, nodes[k]));
    return compile_small_ops(c, nodes, n);
}

static tn_status compile_one(compiler *f, const compilation &c, int i) {
    bool matched = false;
    f->lead = i;
    TN_TRY(fuse_norm(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_normed_router(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_matmuls(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_rotations(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_attention(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_delta_net(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_sum_argmax(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_moe_router(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_mix(f, c, i, &matched));
    if (matched || !is_matmul(f->nodes[i])) *c.converted = {};
    if (!matched) TN_TRY(fuse_tile_matmuls(f, c, i, &matched)); // these may share converted activations
    if (!matched) TN_TRY(fuse_blas_add(f, c, i, &matched));
    if (!matched) TN_TRY(fuse_small_ops(f, c, i, &matched));
    if (!matched) {
        f->pending = NULL;
        TN_TRY(launch_steps(f, c));
        TN_TRY(compile_narrowed(f, c, i));
    }
    return assign_nodes(f, c);
}

tn_status compiler_run(compiler *f, const compile_params &params, launch_list *out) {
    converted_activations converted = {};
    char *kernels = params.scratch ? params.scratch + COUNTER_BYTES : NULL;
    subsequence_plan subsequences = {kernels + 2 * f->activation_buffer_bytes, NULL, 0};
    compilation c = {f->device,
                     out,
                     kernels + 2 * f->activation_buffer_bytes + all_plan_bytes(f),
                     (unsigned *)params.scratch,
                     &converted,
                     NULL,
                     &subsequences,
                     &f->plans,
                     NULL};
    f->plans.memory = kernels + 2 * f->activation_buffer_bytes + f->subsequence_plan_bytes;
    f->plans.made = 0;
    launch_list_clear(out);
    f->activation_buffers = kernels;
    f->pending = NULL;
    f->next_buffer = f->n_fused = 0;
    f->records_with_nodes = f->steps_launched = 0;
    f->persistent = f->steps && !params.no_persistent;
    if (f->persistent) persistent_begin(f->steps, params.table);
    for (int i = 0; i < f->n; i++) {
        f->info[i].done = node_is_idle(f->nodes[i]);
        f->info[i].runs_extras = f->info[i].runs_norms = f->info[i].runs_delta_net = false;
        f->info[i].kept = (f->nodes[i]->flags & (TN_FLAG_OUTPUT | TN_FLAG_KEPT)) != 0 || !f->info[i].readers;
    }
    mark_attention_extras(f);
    mark_delta_nets(f);
    for (int i = 0; i < f->n; i++)
        if (!f->info[i].done) TN_TRY(compile_one(f, c, i));
    TN_TRY(launch_steps(f, c));
    return launch_list_check(*out, *f->device);
}

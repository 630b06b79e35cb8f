/* The compute plan of the CPU: which nodes run together in one step, on how many threads, with which scratch.
 *
 * A step ends with a barrier. Three kinds of steps save barriers:
 *
 *   serial      tiny nodes, run in order by one thread
 *   parallel    large nodes whose memory does not overlap, run side by side; a node may move ahead of nodes
 *               that it does not depend on
 *   row-local   nodes in which every thread processes its own rows, from node to node, as long as no thread
 *               touches memory of another thread
 *
 * Dependencies are decided by addresses, because the planner may have given two unrelated tensors the same memory.
 * Therefore steps are arranged at the first run and whenever addresses change. The size of the scratch is fixed
 * earlier, by an arrangement based on the graph's edges only; later arrangements stay within it. */
#include "backend/cpu/program.h"

#include "backend/cpu/ops/ops.h"
#include "backend/cpu/repacked_buffer.h"

enum {
    MAX_TOGETHER = 8,     /* nodes side by side in one step */
    SEARCH_DISTANCE = 16, /* maximum distance of a node that is moved ahead */
    MAX_ROW_LOCAL = 64,   /* nodes of a row-local step */
    /* Scratch of a row-local step, whose nodes need theirs at the same time. Independent of the number of rows, so
     * that the scratch for the maximum suffices for fewer. */
    ROW_LOCAL_SCRATCH = 1 << 20
};
/* Longest row-local step: for longer ones the cost of a barrier is negligible, and barriers keep threads together. */
static const double row_local_ns = 5e6;

typedef struct cpu_node {
    tn_tensor *node;
    const tn__cpu_op *op;
    size_t scratch;
    double cost;
    int phases;
    int by_rows; /* see tn__cpu_op */
    bool tiny;
    bool custom;
    uint8_t n_roots;
    uint32_t first_counter;
    const tn_tensor *root, *roots[TN_MAX_SRC]; /* of the node, and of its sources */
    const tn_tensor *state;                    /* the source that it updates, or NULL */
} cpu_node;

typedef struct step_task {
    uint32_t node;
    int16_t phase;
    bool shared;    /* uses the data prepared by an earlier task of the step */
    size_t scratch; /* offset */
} step_task;

typedef struct step {
    uint32_t first, count; /* tasks */
    bool serial;
} step;

#define NEVER UINT32_MAX
typedef struct cpu_program {
    tn_program base;
    int n_threads;
    bool arranged;
    uint32_t n_nodes, n_phases; /* nodes with work to do, and the sum of their phases */
    uint32_t n_steps, n_tasks;
    cpu_node *nodes;
    bool *arranged_nodes; /* while arranging */
    step_task *tasks;     /* n_phases of them */
    step *steps;          /* at most n_phases */
    _Atomic int32_t *counters;
    unsigned char *scratch;   /* of the current run */
    _Atomic uint32_t stop_at; /* the barrier at which all threads stop together; NEVER: none */
} cpu_program;

/* ---- Dependencies ---- */

typedef struct address_range {
    uintptr_t begin, end;
} address_range;
static address_range tensor_range(const tn_tensor *t) {
    uintptr_t begin = (uintptr_t)t->data;
    return (address_range){begin, begin + tn_nbytes(t)};
}
static const tn_tensor *root_of(const tn_tensor *t) { return t->view_src ? t->view_src : t; }
static bool overlap(const tn_tensor *a, const tn_tensor *b, bool by_address) {
    if (!by_address) return root_of(a) == root_of(b);
    address_range x = tensor_range(a), y = tensor_range(b);
    return x.begin < y.end && y.begin < x.end;
}
static bool reads(const tn_tensor *node, const tn_tensor *written) {
    for (int i = 0; i < TN_MAX_SRC; i++)
        if (node->src[i] && overlap(node->src[i], written, true)) return true;
    return false;
}
static bool reads_root(const cpu_node *a, const tn_tensor *root) {
    for (int i = 0; i < a->n_roots; i++)
        if (a->roots[i] == root) return true;
    return false;
}
/* Whether a updates memory that b reads or writes. */
static bool updates(const cpu_node *a, const cpu_node *b, bool by_address) {
    if (!a->state) return false;
    if (!by_address) return reads_root(b, root_of(a->state)) || b->root == root_of(a->state);
    return overlap(a->state, b->node, true) || reads(b->node, a->state);
}
/* Whether two nodes must keep their order. A custom op may have side effects, so it is never reordered. */
static bool ordered(const cpu_node *a, const cpu_node *b, bool by_address) {
    if (a->custom || b->custom) return true;
    if (!by_address)
        return a->root == b->root || reads_root(a, b->root) || reads_root(b, a->root) || updates(a, b, false) ||
               updates(b, a, false);
    return overlap(a->node, b->node, true) || reads(a->node, b->node) || reads(b->node, a->node) ||
           updates(a, b, true) || updates(b, a, true);
}

/* ---- Arranging ---- */

static const tn__cpu_kernels *kernels_of(const cpu_program *p) {
    return ((const tn__cpu_stream *)p->base.stream->impl)->kernels;
}

static void add_task(cpu_program *p, uint32_t node, int phase, size_t scratch, bool shared) {
    p->tasks[p->n_tasks++] = (step_task){node, (int16_t)phase, shared, scratch};
    p->steps[p->n_steps - 1].count++;
}
static void begin_step(cpu_program *p, bool serial) { p->steps[p->n_steps++] = (step){p->n_tasks, 0, serial}; }

/* Consecutive tiny nodes starting with `first`. */
static void arrange_serial(cpu_program *p, uint32_t first) {
    begin_step(p, true);
    for (uint32_t i = first; i < p->n_nodes; i++) {
        if (p->arranged_nodes[i]) continue;
        if (!p->nodes[i].tiny) break;
        for (int phase = 0; phase < p->nodes[i].phases; phase++) add_task(p, i, phase, 0, false);
        p->arranged_nodes[i] = true;
    }
}

typedef struct member {
    uint32_t node;
    size_t scratch;
    bool shared;
} member;

/* ---- Row-local steps ---- */

/* The memory of a tensor that thread i of n touches: the i-th part of its rows, or all of it. */
static address_range part_of(const tn_tensor *t, bool by_rows, int i, int n) {
    const int64_t rows = tn_nrows(t) / n;
    for (int d = 1; d + 1 < TN_MAX_DIMS; d++)
        if (t->ne[d + 1] > 1 && t->nb[d + 1] < t->nb[d] * (size_t)t->ne[d]) by_rows = false; /* not in order */
    if (!by_rows || rows == 0) return tensor_range(t);
    const uintptr_t last = (uintptr_t)tn__row(t, rows * (i + 1) - 1);
    return (address_range){(uintptr_t)tn__row(t, rows * i),
                           last + (size_t)(t->ne[0] / tn_type_block(t->type)) * t->nb[0]};
}

typedef struct node_access {
    const tn_tensor *t;
    bool by_rows, writes;
} node_access;
static int accesses_of(const cpu_node *info, node_access list[1 + TN_MAX_SRC]) {
    int n = 0;
    list[n++] = (node_access){info->node, !(info->by_rows & TN__SCATTERED), true};
    for (int s = 0; s < TN_MAX_SRC; s++)
        if (info->node->src[s]) list[n++] = (node_access){info->node->src[s], info->by_rows >> s & 1, false};
    return n;
}
/* Whether one thread's part of a overlaps another thread's part of b. */
static bool parts_meet(const node_access *a, const node_access *b, int n_threads) {
    if (!(a->writes || b->writes) || !overlap(a->t, b->t, true)) return false;
    for (int i = 0; i < n_threads; i++) {
        const address_range x = part_of(a->t, a->by_rows, i, n_threads);
        for (int j = 0; j < n_threads; j++) {
            const address_range y = part_of(b->t, b->by_rows, j, n_threads);
            if (i != j && x.begin < y.end && y.begin < x.end) return true;
        }
    }
    return false;
}
static bool threads_meet(const cpu_node *a, const cpu_node *b, int n_threads) {
    node_access of_a[1 + TN_MAX_SRC], of_b[1 + TN_MAX_SRC];
    const int n_a = accesses_of(a, of_a), n_b = accesses_of(b, of_b);
    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++)
            if (parts_meet(&of_a[i], &of_b[j], n_threads)) return true;
    return false;
}

/* Whether all tensors that are divided have equal parts. */
static bool parts_are_equal(const tn_tensor *node, int by_rows, int n_threads) {
    if (!(by_rows & TN__SCATTERED) && tn_nrows(node) % n_threads) return false;
    for (int s = 0; s < TN_MAX_SRC; s++)
        if (node->src[s] && by_rows >> s & 1 && tn_nrows(node->src[s]) % n_threads) return false;
    return true;
}

/* ---- Steps ---- */

/* Whether node i can run now, before or beside all earlier nodes that follow `first`. */
static bool free_to_move(const cpu_program *p, uint32_t first, uint32_t i, const member *members, uint32_t n,
                         bool by_address) {
    for (uint32_t j = first; j < i; j++) {
        bool together = false;
        for (uint32_t m = 0; m < n; m++) together |= members[m].node == j;
        if (p->arranged_nodes[j] && !together) continue;
        if (ordered(&p->nodes[j], &p->nodes[i], by_address)) return false;
    }
    return true;
}

/* The member whose prepared data node i can use, or NULL. */
static const member *leader_of(const cpu_program *p, uint32_t i, const member *members, uint32_t n) {
    const cpu_node *info = &p->nodes[i];
    for (uint32_t m = 0; m < n && info->op->shares; m++) {
        const cpu_node *other = &p->nodes[members[m].node];
        if (!members[m].shared && other->phases == info->phases &&
            info->op->shares(other->node, info->node, kernels_of(p)))
            return &members[m];
    }
    return NULL;
}

/* Arranges a row-local step starting with node `first`. Returns the number of its nodes; for fewer than two nothing
 * is arranged. */
static uint32_t arrange_row_local(cpu_program *p, uint32_t first, size_t scratch_limit) {
    member members[MAX_ROW_LOCAL];
    size_t used = 0;
    double cost = 0;
    uint32_t n = 0;
    for (uint32_t i = first; i < p->n_nodes && n < MAX_ROW_LOCAL; i++) {
        const cpu_node *info = &p->nodes[i];
        if (p->arranged_nodes[i]) continue;
        bool joins = info->by_rows != TN__NOT_BY_ROWS && info->phases == 1 && cost + info->cost <= row_local_ns;
        for (uint32_t m = 0; m < n && joins; m++)
            joins = !threads_meet(&p->nodes[members[m].node], info, p->n_threads);
        const member *leader = joins ? leader_of(p, i, members, n) : NULL;
        if (!joins || (!leader && used + info->scratch > scratch_limit)) break;
        members[n++] = (member){i, leader ? leader->scratch : used, leader != NULL};
        if (!leader) used += info->scratch;
        cost += info->cost;
    }
    if (n < 2) return n;
    begin_step(p, false);
    for (uint32_t m = 0; m < n; m++) {
        p->arranged_nodes[members[m].node] = true;
        add_task(p, members[m].node, 0, members[m].scratch, members[m].shared);
    }
    return n;
}

/* Arranges node `first` and large nodes after it that can run beside it. Returns the scratch they need. */
static size_t arrange_parallel(cpu_program *p, uint32_t first, bool by_address, size_t scratch_limit) {
    member members[MAX_TOGETHER];
    size_t used = 0;
    int phases = 0;
    uint32_t n = 0, end = (uint32_t)TN__MIN((uint64_t)first + SEARCH_DISTANCE, p->n_nodes);
    for (uint32_t i = first; i < end && n < MAX_TOGETHER; i++) {
        const cpu_node *info = &p->nodes[i];
        if (p->arranged_nodes[i] || (n > 0 && (info->tiny || !free_to_move(p, first, i, members, n, by_address))))
            continue;
        const member *leader = leader_of(p, i, members, n);
        if (!leader && n > 0 && used + info->scratch > scratch_limit) continue;
        members[n++] = (member){i, leader ? leader->scratch : used, leader != NULL};
        if (!leader) used += info->scratch;
        phases = TN__MAX(phases, info->phases);
        p->arranged_nodes[i] = true;
    }
    for (int phase = 0; phase < phases; phase++) {
        begin_step(p, false);
        for (uint32_t m = 0; m < n; m++) {
            const int own = p->nodes[members[m].node].phases;
            if (phase < own && (!members[m].shared || phase == own - 1))
                add_task(p, members[m].node, phase, members[m].scratch, members[m].shared);
        }
    }
    return used;
}

/* Returns the scratch the arrangement needs. */
static size_t arrange_steps(cpu_program *p, bool by_address, size_t scratch_limit) {
    size_t most = 0;
    p->n_steps = p->n_tasks = 0;
    for (uint32_t i = 0; i < p->n_nodes; i++) p->arranged_nodes[i] = false;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        if (p->arranged_nodes[i]) continue;
        if (p->nodes[i].tiny) {
            arrange_serial(p, i);
        } else if (!by_address || arrange_row_local(p, i, scratch_limit) < 2) {
            size_t used = arrange_parallel(p, i, by_address, scratch_limit);
            most = TN__MAX(most, used);
        }
    }
    for (uint32_t i = 0; i < p->n_nodes; i++) most = TN__MAX(most, p->nodes[i].scratch);
    return most;
}

/* ---- Creation ---- */

static bool is_work(const tn_tensor *node) {
    return node->op != TN_OP_NONE && tn_op_get_family(node->op) != TN_FAMILY_VIEW && !tn_is_empty(node);
}

static double cost_of(const tn_tensor *node, const tn__cpu_op *op) {
    return op->cost ? op->cost(node) : (double)tn_nelements(node) * 0.7;
}
static int64_t units_of(const tn_tensor *node, const tn__cpu_op *op) {
    return op->units ? op->units(node) : tn_nrows(node);
}

tn_status tn__cpu_program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes, tn_program **out) {
    const tn__cpu_stream *cpu = stream->impl;
    if (n_nodes > INT32_MAX / 8) return tn_fail(TN_E_OVERFLOW, "%zu nodes are too many for one program", n_nodes);
    for (size_t i = 0; i < n_nodes; i++) {
        char reason[256];
        if (!nodes[i]) return tn_fail(TN_E_INVALID, "node %zu of the program is NULL", i);
        if (is_work(nodes[i]) && !tn__cpu_supports(nodes[i], reason, sizeof reason))
            return tn_fail(TN_E_UNSUPPORTED, "cpu: node %zu '%s': %s", i, nodes[i]->name, reason);
    }
    cpu_program *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->base.stream = stream;
    p->nodes = tn_calloc(n_nodes, sizeof *p->nodes);
    p->arranged_nodes = tn_calloc(n_nodes, sizeof *p->arranged_nodes);
    if (!p->nodes || !p->arranged_nodes) goto out_of_memory;

    int64_t widest = 1, rows = 0; /* of matrix multiplications */
    size_t row_local = 0;
    for (size_t i = 0; i < n_nodes; i++) {
        if (!is_work(nodes[i])) continue;
        const tn__cpu_op *op = &tn__cpu_ops[nodes[i]->op];
        cpu_node *info = &p->nodes[p->n_nodes++];
        *info = (cpu_node){.node = nodes[i], .op = op, .custom = nodes[i]->op == TN_OP_CUSTOM};
        info->root = root_of(nodes[i]);
        const int written = tn_op_written_source(nodes[i]->op);
        if (written >= 0) info->state = nodes[i]->src[written];
        for (int s = 0; s < TN_MAX_SRC; s++)
            if (nodes[i]->src[s]) info->roots[info->n_roots++] = root_of(nodes[i]->src[s]);
        info->cost = cost_of(nodes[i], op);
        info->tiny = info->cost < cpu->tiny_ns || units_of(nodes[i], op) <= 1;
        if (!info->tiny) widest = TN__MAX(widest, units_of(nodes[i], op));
        if (nodes[i]->op == TN_OP_MUL_MAT) rows = TN__MAX(rows, tn_nrows(nodes[i]));
    }
    const int limit = rows == 1 ? TN__MIN(cpu->n_threads, tn_threadpool_decode_size(cpu->pool)) : cpu->n_threads;
    p->n_threads = (int)TN__MIN((int64_t)limit, widest);
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        cpu_node *info = &p->nodes[i];
        const int nth = info->tiny ? 1 : p->n_threads;
        info->phases = info->op->phases ? info->op->phases(info->node, cpu->kernels, nth) : 1;
        info->first_counter = p->n_phases;
        p->n_phases += (uint32_t)info->phases;
        if (info->op->scratch)
            info->scratch = tn__scratch_size(info->op->scratch(info->node, cpu->kernels, p->n_threads));
        info->by_rows = info->op->by_rows && p->n_threads > 1
                            ? info->op->by_rows(info->node, cpu->kernels, p->n_threads)
                            : TN__NOT_BY_ROWS;
        if (info->by_rows == TN__NOT_BY_ROWS) continue;
        row_local = TN__MIN(row_local + info->scratch, (size_t)ROW_LOCAL_SCRATCH);
        if (!parts_are_equal(info->node, info->by_rows, p->n_threads)) info->by_rows = TN__NOT_BY_ROWS;
    }
    p->tasks = tn_calloc(p->n_phases, sizeof *p->tasks);
    p->steps = tn_calloc(p->n_phases, sizeof *p->steps);
    p->counters = tn_calloc(p->n_phases, sizeof *p->counters);
    if (!p->tasks || !p->steps || !p->counters) goto out_of_memory;
    p->base.scratch = tn__scratch_size(TN__MAX(arrange_steps(p, false, SIZE_MAX / 2), row_local));
    *out = &p->base;
    return TN_OK;
out_of_memory:
    tn__cpu_program_free(&p->base);
    return TN_E_NOMEM;
}

void tn__cpu_program_free(tn_program *program) {
    cpu_program *p = (cpu_program *)program;
    tn_free(p->nodes);
    tn_free(p->arranged_nodes);
    tn_free(p->tasks);
    tn_free(p->steps);
    tn_free((void *)p->counters);
    tn_free(p);
}

void tn__cpu_program_moved(tn_program *program) { ((cpu_program *)program)->arranged = false; }
size_t tn__cpu_program_steps(const tn_program *program) { return ((const cpu_program *)program)->n_steps; }
int tn__cpu_program_threads(const tn_program *program) { return ((const cpu_program *)program)->n_threads; }

/* ---- Running ---- */

static void run_task(cpu_program *p, const step_task *t, int ith, int nth) {
    const cpu_node *info = &p->nodes[t->node];
    tn__task task = {.node = info->node,
                     .kernels = kernels_of(p),
                     .shared = t->shared,
                     .phase = t->phase,
                     .ith = ith,
                     .nth = nth,
                     .scratch = p->scratch + t->scratch,
                     .next = &p->counters[info->first_counter + (uint32_t)t->phase]};
    info->op->run(&task);
}

/* A stop takes effect at a barrier that no thread has left yet, identified by the step after it. A plain flag could
 * be seen by a thread that is still leaving the previous barrier: it would stop there, and the others would wait
 * forever. */
static bool stop_requested(cpu_program *p, uint32_t barrier) {
    const tn__cpu_stream *stream = p->base.stream->impl;
    if (!stream->abort || !stream->abort(stream->abort_user)) return false;
    atomic_store_explicit(&p->stop_at, barrier, memory_order_relaxed);
    return true;
}

/* A serial step, by one thread. */
typedef struct solo {
    cpu_program *program;
    const step *step;
    uint32_t barrier; /* the barrier before or at which it runs */
} solo;
static void run_solo(void *user) {
    const solo *job = user;
    cpu_program *p = job->program;
    for (uint32_t t = 0; t < job->step->count; t++) {
        if (t > 0 && p->tasks[job->step->first + t].phase == 0 && stop_requested(p, job->barrier)) return;
        run_task(p, &p->tasks[job->step->first + t], 0, 1);
    }
}

/* A serial step needs no barrier of its own: the last thread to arrive at the barrier before it runs the step. */
static void run_thread(void *user, int ith, int nth) {
    cpu_program *p = user;
    tn_threadpool *pool = ((const tn__cpu_stream *)p->base.stream->impl)->pool;
    for (uint32_t s = 0; s < p->n_steps;) {
        const step *st = &p->steps[s++];
        if (!st->serial) /* a stop within a step skips the rest of it */
            for (uint32_t t = 0; t < st->count; t++) {
                if (t > 0 && ith == 0) (void)stop_requested(p, s);
                if (t > 0 && atomic_load_explicit(&p->stop_at, memory_order_relaxed) <= s) break;
                run_task(p, &p->tasks[st->first + t], ith, nth);
            }
        else if (ith == 0)
            run_solo(&(solo){p, st, s});
        if (s == p->n_steps) return;
        if (ith == 0) (void)stop_requested(p, s);
        const uint32_t barrier = s;
        solo next = {p, &p->steps[s], barrier};
        const bool then_solo = next.step->serial;
        if (nth > 1)
            tn__threadpool_meet(pool, then_solo ? run_solo : NULL, &next);
        else if (then_solo)
            run_solo(&next);
        s += then_solo;
        if (atomic_load_explicit(&p->stop_at, memory_order_relaxed) <= barrier) return;
    }
}

static tn_status check_memory(const tn_tensor *node, const tn_tensor *t, const char *what) {
    if (!t->data && !tn_is_empty(t))
        return tn_fail(TN_E_STATE, "cpu: %s '%s' of '%s' (%s) has no memory", what, t->name, node->name,
                       tn_op_name(node->op));
    if (t->buffer && !t->buffer->type->is_host && t->buffer->type != tn__repacked_buffer_type())
        return tn_fail(TN_E_INVALID, "cpu: %s '%s' of '%s' (%s) is in %s, which the CPU cannot access", what, t->name,
                       node->name, tn_op_name(node->op), t->buffer->type->name);
    return TN_OK;
}

static tn_status check_bound(const cpu_program *p) {
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const tn_tensor *node = p->nodes[i].node;
        TN_TRY(check_memory(node, node, "result"));
        for (int j = 0; j < TN_MAX_SRC; j++)
            if (node->src[j]) TN_TRY(check_memory(node, node->src[j], "source"));
    }
    return TN_OK;
}

tn_status tn__cpu_program_run(tn_program *program, tn_buffer *scratch) {
    cpu_program *p = (cpu_program *)program;
    const tn__cpu_stream *stream = program->stream->impl;
    if (!p->arranged) {
        TN_TRY(check_bound(p));
        arrange_steps(p, true, p->base.scratch);
        p->arranged = true;
    }
    p->scratch = tn_buffer_base(scratch);
    for (uint32_t i = 0; i < p->n_phases; i++) atomic_store_explicit(&p->counters[i], 0, memory_order_relaxed);
    atomic_store_explicit(&p->stop_at, NEVER, memory_order_relaxed);
    if (!stop_requested(p, 0)) {
        if (p->n_threads > 1)
            tn_threadpool_run(stream->pool, p->n_threads, run_thread, p);
        else
            run_thread(p, 0, 1);
    }
    if (atomic_load_explicit(&p->stop_at, memory_order_relaxed) != NEVER)
        return tn_fail(TN_E_ABORTED, "cpu: the computation was stopped by the caller");
    return TN_OK;
}

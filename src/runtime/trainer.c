/* The trainer: graphs for loss and gradients, for the gradient norm, and for the update, on one scheduler. */
#include "tenon/train.h"

#include "base/checked.h"
#include "tenon/recompute.h"
#include "tenon/speed.h"
#include "tensor/graph_build.h"

#include <math.h>
#include <string.h>

/* Coefficients of the update graph. They change from update to update; as an input, the graph is planned once. */
enum { COEF_MEAN, COEF_FIRST, COEF_SECOND, COEF_RATE, COEF_KEEP, COEFS };

typedef struct learned {
    tn_tensor *value, *sum;    /* the parameter; the sum of its gradients since the last update */
    tn_tensor *first, *second; /* moments; NULL where the optimizer has none */
    bool owned;                /* its memory is the trainer's */
} learned;

struct tn_trainer {
    tn_trainer_params params;
    tn_sched *sched;
    tn_arena *arena;
    tn_tensor *loss, *step_loss; /* the second is that of the step, which may recompute */
    tn_graph *step, *evaluate, *measure, *update;
    learned *learned;
    size_t n_learned;
    tn_tensor **inputs; /* leaves that had no memory */
    size_t n_inputs;
    tn_buffer **buffers;
    size_t n_buffers;
    tn_tensor *coefs;
    tn_tensor *square; /* of the gradient norm */
    int32_t accumulated;
    float norm;
    uint64_t updates;
    tn_recomputation recomputation; /* of the step, to keep within the budget; empty: none */
    size_t saved;                   /* bytes of compute, by recomputation */
};

tn_trainer_params tn_trainer_params_default(void) {
    return (tn_trainer_params){.optimizer = TN_ADAMW,
                               .rate = 1e-3f,
                               .beta1 = 0.9f,
                               .beta2 = 0.999f,
                               .eps = 1e-8f,
                               .decay = 0.01f,
                               .clip = 1,
                               .accumulate = 1};
}

static tn_status check_trainer_params(const tn_trainer_params *p) {
    bool betas = p->beta1 >= 0 && p->beta1 < 1 && p->beta2 >= 0 && p->beta2 < 1 && p->eps > 0;
    if (p->optimizer != TN_ADAMW && p->optimizer != TN_SGD)
        return tn_fail(TN_E_INVALID, "there is no optimizer %d", (int)p->optimizer);
    if (p->optimizer == TN_ADAMW && !betas)
        return tn_fail(TN_E_INVALID, "betas %g and %g must be in [0, 1), eps %g above 0", (double)p->beta1,
                       (double)p->beta2, (double)p->eps);
    if (p->optimizer == TN_SGD && !(p->momentum >= 0 && p->momentum < 1))
        return tn_fail(TN_E_INVALID, "a momentum of %g is not in [0, 1)", (double)p->momentum);
    if (!isfinite(p->rate) || !(p->decay >= 0) || !(p->clip >= 0) || p->accumulate < 1)
        return tn_fail(TN_E_INVALID, "rate %g, decay %g, clip %g, %d steps per update: out of range", (double)p->rate,
                       (double)p->decay, (double)p->clip, p->accumulate);
    return TN_OK;
}

/* ---- Graphs ---- */

/* Counts the nodes and leaves that the loss depends on. */
static tn_status count_loss_tensors(tn_tensor *loss, size_t *nodes, size_t *leaves) {
    tn_status status = TN_E_FULL;
    for (size_t capacity = TN_GRAPH_DEFAULT_CAPACITY; status == TN_E_FULL && capacity < (size_t)1 << 28;
         capacity *= 4) {
        tn_arena *arena;
        tn_graph *graph;
        TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(0, capacity), .no_alloc = true}, &arena));
        status = tn_graph_new(arena, capacity, &graph);
        if (status == TN_OK) status = tn_graph_add(graph, loss);
        if (status == TN_OK) {
            *nodes = tn_graph_node_count(graph);
            *leaves = tn_graph_leaf_count(graph);
        }
        tn_arena_free(arena);
    }
    return status;
}

/* Divides the leaves into parameters and inputs that the caller sets. */
static tn_status sort_leaves(tn_trainer *t) {
    size_t n = tn_graph_leaf_count(t->evaluate);
    t->learned = tn_calloc(n, sizeof *t->learned);
    t->inputs = tn_calloc(n, sizeof(tn_tensor *));
    if (!t->learned || !t->inputs) return TN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        tn_tensor *leaf = tn_graph_leaf(t->evaluate, i);
        if (leaf->flags & TN_FLAG_PARAM) {
            if (leaf->type != TN_F32 || !tn_is_contiguous(leaf))
                return tn_fail(TN_E_TYPE, "parameter '%s' is %s; only f32 can be learned", leaf->name,
                               tn_type_name(leaf->type));
            t->learned[t->n_learned++] = (learned){.value = leaf, .owned = !leaf->data};
        } else if (!leaf->data) {
            t->inputs[t->n_inputs++] = leaf;
        }
    }
    return TN_OK;
}

static tn_tensor *new_state(tn_trainer *t, const tn_tensor *value, const char *what) {
    return tn_name(t->arena, tn_tensor_new(t->arena, TN_F32, TN_MAX_DIMS, value->ne), "%.40s.%s", value->name, what);
}
static tn_status make_state(tn_trainer *t) {
    const tn_trainer_params *p = &t->params;
    for (size_t i = 0; i < t->n_learned; i++) {
        learned *l = &t->learned[i];
        l->sum = new_state(t, l->value, "sum");
        if (p->optimizer == TN_ADAMW || p->momentum > 0) l->first = new_state(t, l->value, "first");
        if (p->optimizer == TN_ADAMW) l->second = new_state(t, l->value, "second");
    }
    t->coefs = tn_name(t->arena, tn_input(t->arena, TN_F32, COEFS), "coefficients");
    return tn_arena_status(t->arena);
}

/* Moves every sum to where its gradient is complete, so that no gradient stays in memory longer. The nodes from
 * `n_before` on are those of the sums; ends[i] is the end of the i-th. */
static tn_status sum_early(tn_trainer *t, size_t n_before, const size_t *ends) {
    const size_t n = tn_graph_node_count(t->step);
    uint32_t *order = tn_malloc(n * sizeof *order), *first = tn_malloc(n_before * sizeof *first),
             *next = tn_malloc(t->n_learned * sizeof *next);
    tn_status status = order && first && next ? TN_OK : TN_E_NOMEM;
    size_t at = 0;
    for (size_t i = 0; status == TN_OK && i < n_before; i++) first[i] = TN_GRAPH_NONE;
    for (size_t i = t->n_learned; status == TN_OK && i-- > 0;) {
        const uint32_t gradient = tn_graph_index(t->step, tn_graph_gradient(t->step, t->learned[i].value));
        const uint32_t where = gradient < n_before ? gradient : (uint32_t)n_before - 1;
        next[i] = first[where];
        first[where] = (uint32_t)i;
    }
    for (uint32_t i = 0; status == TN_OK && i < n_before; i++) {
        order[at++] = i;
        for (uint32_t l = first[i]; l != TN_GRAPH_NONE; l = next[l])
            for (size_t k = l ? ends[l - 1] : n_before; k < ends[l]; k++) order[at++] = (uint32_t)k;
    }
    if (status == TN_OK) tn__graph_permute(t->step, order);
    tn_free(order);
    tn_free(first);
    tn_free(next);
    return status;
}

/* Loss, gradients, and their sums since the last update. */
static tn_status make_step(tn_trainer *t) {
    TN_TRY(tn_graph_backward(t->arena, t->step, t->loss));
    const size_t n_before = tn_graph_node_count(t->step);
    size_t *ends = tn_malloc((t->n_learned + 1) * sizeof *ends);
    tn_status status = ends ? TN_OK : TN_E_NOMEM;
    for (size_t i = 0; i < t->n_learned && status == TN_OK; i++) {
        learned *l = &t->learned[i];
        tn_tensor *gradient = tn_graph_gradient(t->step, l->value);
        if (!gradient) {
            status = tn_fail(TN_E_INVALID, "no gradient reaches parameter '%s': the loss does not depend on it",
                             l->value->name);
            break;
        }
        /* The sum is computed in the gradient's memory, then copied to its own. */
        tn_tensor *sum = tn_cpy(t->arena, tn_add(t->arena, gradient, l->sum), l->sum);
        status = tn_arena_status(t->arena);
        if (status == TN_OK) status = tn_graph_add(t->step, sum);
        ends[i] = tn_graph_node_count(t->step);
    }
    if (status == TN_OK) status = sum_early(t, n_before, ends);
    tn_free(ends);
    return status;
}

static tn_status make_norm(tn_trainer *t) {
    tn_arena *a = t->arena;
    for (size_t i = 0; i < t->n_learned; i++) {
        tn_tensor *square = tn_sum(a, tn_sqr(a, t->learned[i].sum));
        t->square = t->square ? tn_add(a, t->square, square) : square;
    }
    t->square = tn_name(a, tn_output(t->square), "square");
    TN_TRY(tn_arena_status(a));
    return tn_graph_add(t->measure, t->square);
}

static tn_tensor *coefficient(const tn_trainer *t, int which) {
    return tn_view(t->arena, t->coefs, 1, (const int64_t[]){1}, NULL, (size_t)which * sizeof(float));
}
/* Adds a node that overwrites a parameter or moment with its new value. */
static tn_status add_write(const tn_trainer *t, tn_tensor *fresh, tn_tensor *kept) {
    tn_tensor *write = tn_cpy(t->arena, fresh, kept);
    TN_TRY(tn_arena_status(t->arena));
    return tn_graph_add(t->update, write);
}
/* first = β·first + by·gradient */
static tn_tensor *blend(tn_arena *a, tn_tensor *kept, float beta, tn_tensor *x, float by) {
    return tn_add(a, tn_scale(a, kept, beta, 0), by == 1 ? x : tn_scale(a, x, by, 0));
}
static tn_status make_update(tn_trainer *t) {
    tn_arena *a = t->arena;
    const tn_trainer_params *p = &t->params;
    for (size_t i = 0; i < t->n_learned; i++) {
        const learned *l = &t->learned[i];
        tn_tensor *direction = tn_mul(a, l->sum, coefficient(t, COEF_MEAN));
        if (p->optimizer == TN_ADAMW) {
            tn_tensor *first = blend(a, l->first, p->beta1, direction, 1 - p->beta1);
            tn_tensor *second = blend(a, l->second, p->beta2, tn_sqr(a, direction), 1 - p->beta2);
            TN_TRY(add_write(t, first, l->first));
            TN_TRY(add_write(t, second, l->second));
            tn_tensor *size = tn_sqrt(a, tn_mul(a, second, coefficient(t, COEF_SECOND)));
            direction = tn_div(a, tn_mul(a, first, coefficient(t, COEF_FIRST)), tn_scale(a, size, 1, p->eps));
        } else if (l->first) {
            direction = blend(a, l->first, p->momentum, direction, 1);
            TN_TRY(add_write(t, direction, l->first));
        }
        tn_tensor *value = l->value;
        if (p->decay > 0 && !tn_is_vector(value)) value = tn_mul(a, value, coefficient(t, COEF_KEEP));
        TN_TRY(add_write(t, tn_add(a, tn_mul(a, direction, coefficient(t, COEF_RATE)), value), l->value));
    }
    return TN_OK;
}

static tn_status make_graphs(tn_trainer *t) {
    size_t nodes = 0, leaves = 0;
    TN_TRY(count_loss_tensors(t->loss, &nodes, &leaves));
    /* The gradients; per leaf at most its state and some 25 nodes of the update; the rest is small. */
    size_t tensors = nodes * TN_BACKWARD_TENSORS + leaves * 32 + 64, capacity = nodes + leaves + tensors, update,
           size;
    update = leaves * 40 + 64;
    if (!tn__add_size(tn_arena_size_for(tensors, capacity), tn_graph_overhead(nodes + leaves + 1), &size) ||
        !tn__add_size(size, 2 * tn_graph_overhead(update) + (nodes + leaves + 64) * 64, &size))
        return tn_fail(TN_E_OVERFLOW, "the graph is too large to train");
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = size, .no_alloc = true}, &t->arena));
    TN_TRY(tn_graph_new(t->arena, nodes + leaves + 1, &t->evaluate));
    TN_TRY(tn_graph_new(t->arena, capacity, &t->step));
    TN_TRY(tn_graph_new(t->arena, update, &t->measure));
    TN_TRY(tn_graph_new(t->arena, update, &t->update));
    TN_TRY(tn_graph_add(t->evaluate, t->loss));
    TN_TRY(tn_graph_add(t->step, t->loss));
    TN_TRY(sort_leaves(t));
    TN_TRY(make_state(t));
    TN_TRY(make_step(t));
    TN_TRY(make_norm(t));
    return make_update(t);
}

/* ---- Memory ---- */

/* Allocates and clears memory for these tensors, in as few buffers as the largest allocation allows. */
static tn_status allocate_state(tn_trainer *t, tn_buffer_type *type, tn_tensor *const *tensors, size_t n) {
    const size_t alignment = tn_buffer_type_alignment(type), limit = tn_buffer_type_max_size(type);
    for (size_t begin = 0, end; begin < n; begin = end) {
        size_t size = 0;
        for (end = begin; end < n; end++) {
            size_t next = tn__align_up(size, alignment);
            if (!tn__add_size(next, tn_buffer_type_tensor_size(type, tensors[end]), &next))
                return tn_fail(TN_E_OVERFLOW, "the size of '%s' overflows", tensors[end]->name);
            if (next > limit && end > begin) break;
            size = next;
        }
        tn_buffer **buffers = tn_realloc(t->buffers, (t->n_buffers + 1) * sizeof(tn_buffer *));
        if (!buffers) return TN_E_NOMEM;
        t->buffers = buffers;
        TN_TRY(tn_buffer_new(type, size, &t->buffers[t->n_buffers]));
        tn_buffer *buffer = t->buffers[t->n_buffers++];
        TN_TRY(tn_buffer_clear(buffer, 0));
        size_t offset = 0;
        for (size_t i = begin; i < end; i++) {
            offset = tn__align_up(offset, alignment);
            TN_TRY(tn_buffer_bind(buffer, tensors[i], offset));
            offset += tn_buffer_type_tensor_size(type, tensors[i]);
        }
    }
    return TN_OK;
}

static tn_status take_trainer_memory(tn_trainer *t) {
    tn_device *device = tn_stream_device(tn_sched_stream(t->sched, 0));
    tn_device *host = tn_stream_device(tn_sched_stream(t->sched, tn_sched_stream_count(t->sched) - 1));
    tn_tensor **list = tn_malloc((4 * t->n_learned + t->n_inputs + 1) * sizeof(tn_tensor *));
    if (!list) return TN_E_NOMEM;
    size_t n = 0;
    for (size_t i = 0; i < t->n_learned; i++) {
        const learned *l = &t->learned[i];
        if (l->owned) list[n++] = l->value;
        list[n++] = l->sum;
        if (l->first) list[n++] = l->first;
        if (l->second) list[n++] = l->second;
    }
    tn_status status = allocate_state(t, tn_device_buffer_type(device), list, n);
    for (size_t i = 0; i < t->n_buffers; i++) tn_buffer_set_usage(t->buffers[i], TN_USAGE_WEIGHTS);
    n = 0;
    list[n++] = t->coefs;
    for (size_t i = 0; i < t->n_inputs; i++) list[n++] = t->inputs[i];
    if (status == TN_OK) status = allocate_state(t, tn_device_buffer_type(host), list, n);
    tn_free(list);
    TN_TRY(status);
    tn_graph *const graphs[] = {t->step, t->evaluate, t->measure, t->update};
    for (size_t i = 0; i < TN__COUNT(graphs); i++) tn_graph_touch(graphs[i]); /* leaves have memory now */
    return TN_OK;
}

static tn_status reserve_graphs(tn_trainer *t) {
    tn_graph *const graphs[] = {t->step, t->evaluate, t->measure, t->update};
    return tn_sched_reserve_many(t->sched, graphs, TN__COUNT(graphs));
}

/* ---- Budget ---- */

/* Compute and scratch of all graphs on the first device, with this graph of a step; NULL: of the others. */
static tn_status measure_graphs(tn_trainer *t, tn_graph *step, size_t *compute, size_t *scratch) {
    tn_graph *const graphs[] = {t->evaluate, t->measure, t->update, step};
    tn_sched_memory *memory = tn_calloc(tn_sched_stream_count(t->sched), sizeof *memory);
    if (!memory) return TN_E_NOMEM;
    tn_status status = tn_sched_measure(t->sched, graphs, TN__COUNT(graphs) - !step, memory);
    *compute = memory[0].compute;
    *scratch = memory[0].scratch;
    tn_free(memory);
    return status;
}

static size_t size_on_device(void *user, size_t memory, const tn_tensor *tensor) {
    return tn_buffer_type_tensor_size(tn_device_buffer_type(user), tensor);
}
static uint32_t mask_of_device(void *user, const tn_tensor *node, size_t index) {
    return tn_device_inplace_mask(user, node);
}
static double predicted_seconds(void *user, const tn_tensor *node) { return tn_predict_node(user, node); }

/* Replaces the step by one whose plan has at most this many bytes. */
static tn_status recompute_step(const tn_trainer *t, size_t bytes, tn_recomputation *r) {
    tn_device *device = tn_stream_device(tn_sched_stream(t->sched, 0));
    tn_buffer_type *type = tn_device_buffer_type(device);
    const tn_plan_memory memory = {tn_device_name(device), tn_buffer_type_alignment(type),
                                   tn_buffer_type_max_size(type)};
    const tn_plan_params plan = {.memories = &memory,
                                 .n_memories = 1,
                                 .tensor_size = size_on_device,
                                 .inplace_mask = mask_of_device,
                                 .user = device,
                                 .pack = {.effort = TN_PACK_BALANCED, .max_steps = 10000000}};
    tn_recompute_params params = {.plan = &plan, .budgets = &bytes};
    tn_device_speed speed;
    if (tn_device_get_speed(device, t->params.n_threads, &speed) == TN_OK) {
        params.seconds = predicted_seconds;
        params.user = &speed;
    }
    return tn_graph_recompute(t->step, &params, r);
}

static tn_status no_room(const tn_trainer *t, size_t fixed, size_t compute, size_t smallest) {
    return tn_fail(
        TN_E_TOO_BIG,
        "training needs %zu bytes on the first device, at least %zu with recomputation, and the budget has "
        "%zu: raise it, make the batch smaller, or use an optimizer with less state",
        fixed + compute, fixed + TN__MIN(smallest, compute), t->params.budget);
}

/* The scheduler's plan of all graphs may differ a little from that of the step alone: the step gets less until all of
 * them fit. */
static tn_status keep_within_budget(tn_trainer *t) {
    enum { ATTEMPTS = 4 };
    tn_device *device = tn_stream_device(tn_sched_stream(t->sched, 0));
    size_t state = 0, compute, scratch, least = SIZE_MAX, now, others;
    for (size_t i = 0; i < t->n_buffers; i++)
        if (tn_buffer_type_device(tn_buffer_get_type(t->buffers[i])) == device)
            state += tn_buffer_size(t->buffers[i]);
    TN_TRY(measure_graphs(t, t->step, &compute, &scratch));
    if (state + compute + scratch <= t->params.budget) return TN_OK;
    TN_TRY(measure_graphs(t, NULL, &others, &now));
    size_t bytes = t->params.budget > state + scratch ? t->params.budget - state - scratch : 0;
    for (int i = 0; i < ATTEMPTS; i++) {
        tn_recomputation r;
        tn_status status = recompute_step(t, bytes, &r);
        if (status == TN_E_TOO_BIG)
            return no_room(t, state + scratch, compute, TN__MAX(others, TN__MIN(least, r.smallest)));
        TN_TRY(status);
        size_t more_scratch;
        status = measure_graphs(t, r.graph, &now, &more_scratch);
        if (status == TN_OK && state + now + more_scratch <= t->params.budget) {
            t->step_loss = tn_recomputed(&r, t->step, t->loss);
            t->step = r.graph;
            t->recomputation = r;
            t->saved = compute - TN__MIN(compute, now);
            return TN_OK;
        }
        tn_recomputation_free(&r);
        TN_TRY(status);
        least = TN__MIN(least, now);
        const size_t over = state + now + more_scratch - t->params.budget;
        if (over >= bytes) break;
        bytes -= TN__MAX(over, bytes / 256);
    }
    return no_room(t, state + scratch, compute, least);
}

tn_status tn_trainer_new(tn_tensor *loss, const tn_trainer_params *params, tn_trainer **out) {
    if (!out) return tn_fail(TN_E_INVALID, "tn_trainer_new: NULL argument");
    *out = NULL;
    if (!loss) return tn_fail(TN_E_INVALID, "the loss is NULL: tn_arena_status says why");
    tn_trainer_params defaults = tn_trainer_params_default();
    if (!params) params = &defaults;
    TN_TRY(check_trainer_params(params));
    tn_trainer *t = tn_calloc(1, sizeof *t);
    if (!t) return TN_E_NOMEM;
    t->params = *params;
    t->loss = t->step_loss = tn_output(loss);
    tn_sched_params sp = {.n_threads = params->n_threads};
    memcpy(sp.devices, params->devices, sizeof sp.devices);
    tn_status status = tn_sched_new(&sp, &t->sched);
    if (status == TN_OK) status = make_graphs(t);
    if (status == TN_OK) status = take_trainer_memory(t);
    if (status == TN_OK && params->budget) status = keep_within_budget(t);
    if (status == TN_OK) status = reserve_graphs(t);
    if (status != TN_OK) {
        tn_trainer_free(t);
        return status;
    }
    *out = t;
    return TN_OK;
}

static void unbind_tensor(tn_tensor *tensor) {
    tensor->data = NULL;
    tensor->buffer = NULL;
}
void tn_trainer_free(tn_trainer *t) {
    if (!t) return;
    if (t->sched) (void)tn_sched_synchronize(t->sched);
    if (t->evaluate) tn_graph_reset(t->evaluate); /* the caller's nodes must not point into memory freed here */
    for (size_t i = 0; i < t->n_learned; i++)
        if (t->learned[i].owned) unbind_tensor(t->learned[i].value);
    for (size_t i = 0; i < t->n_inputs; i++) unbind_tensor(t->inputs[i]);
    tn_sched_free(t->sched);
    for (size_t i = 0; i < t->n_buffers; i++) tn_buffer_free(t->buffers[i]);
    tn_free(t->buffers);
    tn_free(t->learned);
    tn_free(t->inputs);
    tn_recomputation_free(&t->recomputation);
    tn_arena_free(t->arena);
    tn_free(t);
}

/* ---- Steps ---- */

static tn_status run_training_graph(tn_trainer *t, tn_graph *graph, const tn_tensor *result, float *value) {
    TN_TRY(tn_sched_run(t->sched, graph));
    return result ? tn_tensor_get(result, value) : TN_OK;
}

static tn_status clear_gradients(tn_trainer *t) {
    t->accumulated = 0;
    for (size_t i = 0; i < t->n_learned; i++) {
        tn_tensor *sum = t->learned[i].sum;
        TN_TRY(tn_tensor_fill(sum, 0, 0, tn_nbytes(sum)));
    }
    return TN_OK;
}
static tn_status drop_step(tn_trainer *t, const char *what, float value) {
    TN_TRY(clear_gradients(t));
    return tn_fail(TN_E_NOT_FINITE, "%s is %g after %llu updates: gradients were dropped, parameters kept", what,
                   (double)value, (unsigned long long)t->updates);
}

static tn_status update_parameters(tn_trainer *t) {
    const tn_trainer_params *p = &t->params;
    float square;
    TN_TRY(run_training_graph(t, t->measure, t->square, &square));
    float mean = 1 / (float)t->accumulated, norm = sqrtf(square) * mean;
    if (!isfinite(norm)) return drop_step(t, "the gradient norm", norm);
    t->norm = norm;
    if (p->clip > 0 && norm > p->clip) mean *= p->clip / norm;
    const double n = (double)t->updates + 1;
    const float coefs[COEFS] = {[COEF_MEAN] = mean,
                                [COEF_FIRST] = (float)(1 / (1 - pow(p->beta1, n))),
                                [COEF_SECOND] = (float)(1 / (1 - pow(p->beta2, n))),
                                [COEF_RATE] = -p->rate,
                                [COEF_KEEP] = 1 - p->rate * p->decay};
    TN_TRY(tn_tensor_set(t->coefs, coefs));
    TN_TRY(run_training_graph(t, t->update, NULL, NULL));
    t->updates++;
    return clear_gradients(t);
}

tn_status tn_trainer_step(tn_trainer *t, float *loss) {
    if (!t) return tn_fail(TN_E_INVALID, "tn_trainer_step: NULL argument");
    float value;
    TN_TRY(run_training_graph(t, t->step, t->step_loss, &value));
    if (loss) *loss = value;
    if (!isfinite(value)) return drop_step(t, "the loss", value);
    return ++t->accumulated < t->params.accumulate ? TN_OK : update_parameters(t);
}

tn_status tn_trainer_evaluate(tn_trainer *t, float *loss) {
    if (!t || !loss) return tn_fail(TN_E_INVALID, "tn_trainer_evaluate: NULL argument");
    return run_training_graph(t, t->evaluate, t->loss, loss);
}

void tn_trainer_set_rate(tn_trainer *t, float rate) { t->params.rate = rate; }
float tn_trainer_gradient_norm(const tn_trainer *t) { return t->norm; }
uint64_t tn_trainer_updates(const tn_trainer *t) { return t->updates; }

tn_trainer_memory tn_trainer_get_memory(const tn_trainer *t) {
    tn_trainer_memory m = {0};
    for (size_t i = 0; i < t->n_learned; i++) m.n_params += (size_t)tn_nelements(t->learned[i].value);
    for (size_t i = 0; i < t->n_buffers; i++) m.state += tn_buffer_size(t->buffers[i]);
    for (size_t b = 0; b < tn_sched_stream_count(t->sched); b++) {
        tn_sched_memory of = tn_sched_memory_of(t->sched, b);
        m.compute += of.compute;
        m.scratch += of.scratch;
    }
    m.saved = t->saved;
    m.n_recomputed = t->recomputation.n_recomputed;
    m.added_time = t->recomputation.seconds > 0 ? t->recomputation.added_seconds / t->recomputation.seconds : 0;
    return m;
}

/* The trainer: graphs for loss and gradients, for their length, and for the update, over one scheduler. */
#include "tenon/train.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

/* What changes from update to update comes in as numbers, so that its graph is planned once. */
enum { KNOB_SHARE, KNOB_FIRST, KNOB_SECOND, KNOB_RATE, KNOB_KEEP, KNOBS };

typedef struct learned {
    tn_tensor *value, *sum;    /* the parameter; its gradients since the last update */
    tn_tensor *first, *second; /* moments; NULL where the optimizer has none */
    bool placed;               /* its memory is the trainer's */
} learned;

struct tn_trainer {
    tn_trainer_params params;
    tn_sched *sched;
    tn_arena *arena;
    tn_tensor *loss;
    tn_graph *step, *evaluate, *measure, *update;
    learned *learned;
    size_t n_learned;
    tn_tensor **inputs; /* leaves that had no memory */
    size_t n_inputs;
    tn_buffer **buffers;
    size_t n_buffers;
    tn_tensor *knobs, *square; /* of the gradients' length */
    int32_t accumulated;
    float norm;
    uint64_t updates;
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

static tn_status check_params(const tn_trainer_params *p) {
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

/* ---- Graphs ---------------------------------------------------------------------------------------------------- */

/* How many nodes and leaves lead to the loss. */
static tn_status count_tensors(tn_tensor *loss, size_t *nodes, size_t *leaves) {
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

/* Sorts the leaves: what is learned, and what the caller sets. */
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
            t->learned[t->n_learned++] = (learned){.value = leaf, .placed = !leaf->data};
        } else if (!leaf->data) {
            t->inputs[t->n_inputs++] = leaf;
        }
    }
    return TN_OK;
}

static tn_tensor *state_like(tn_trainer *t, const tn_tensor *value, const char *what) {
    return tn_name(t->arena, tn_tensor_new(t->arena, TN_F32, TN_MAX_DIMS, value->ne), "%.40s.%s", value->name, what);
}
static tn_status make_state(tn_trainer *t) {
    const tn_trainer_params *p = &t->params;
    for (size_t i = 0; i < t->n_learned; i++) {
        learned *l = &t->learned[i];
        l->sum = state_like(t, l->value, "sum");
        if (p->optimizer == TN_ADAMW || p->momentum > 0) l->first = state_like(t, l->value, "first");
        if (p->optimizer == TN_ADAMW) l->second = state_like(t, l->value, "second");
    }
    t->knobs = tn_name(t->arena, tn_input(t->arena, TN_F32, KNOBS), "knobs");
    return tn_arena_status(t->arena);
}

/* Loss, gradients, and their sums since the last update. */
static tn_status make_step(tn_trainer *t) {
    TN_TRY(tn_graph_backward(t->arena, t->step, t->loss));
    for (size_t i = 0; i < t->n_learned; i++) {
        learned *l = &t->learned[i];
        tn_tensor *gradient = tn_graph_gradient(t->step, l->value);
        if (!gradient)
            return tn_fail(TN_E_INVALID, "no gradient reaches parameter '%s': the loss does not depend on it",
                           l->value->name);
        /* The sum takes the gradient's place, then goes home. */
        tn_tensor *sum = tn_cpy(t->arena, tn_add(t->arena, gradient, l->sum), l->sum);
        TN_TRY(tn_arena_status(t->arena));
        TN_TRY(tn_graph_add(t->step, sum));
    }
    return TN_OK;
}

static tn_status make_measure(tn_trainer *t) {
    tn_arena *a = t->arena;
    for (size_t i = 0; i < t->n_learned; i++) {
        tn_tensor *square = tn_sum(a, tn_sqr(a, t->learned[i].sum));
        t->square = t->square ? tn_add(a, t->square, square) : square;
    }
    t->square = tn_name(a, tn_output(t->square), "square");
    TN_TRY(tn_arena_status(a));
    return tn_graph_add(t->measure, t->square);
}

static tn_tensor *knob(const tn_trainer *t, int which) {
    return tn_view(t->arena, t->knobs, 1, (const int64_t[]){1}, NULL, (size_t)which * sizeof(float));
}
/* Writes what was computed over what is kept, as the next node. */
static tn_status keep(const tn_trainer *t, tn_tensor *fresh, tn_tensor *kept) {
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
        tn_tensor *direction = tn_mul(a, l->sum, knob(t, KNOB_SHARE));
        if (p->optimizer == TN_ADAMW) {
            tn_tensor *first = blend(a, l->first, p->beta1, direction, 1 - p->beta1);
            tn_tensor *second = blend(a, l->second, p->beta2, tn_sqr(a, direction), 1 - p->beta2);
            TN_TRY(keep(t, first, l->first));
            TN_TRY(keep(t, second, l->second));
            tn_tensor *size = tn_sqrt(a, tn_mul(a, second, knob(t, KNOB_SECOND)));
            direction = tn_div(a, tn_mul(a, first, knob(t, KNOB_FIRST)), tn_scale(a, size, 1, p->eps));
        } else if (l->first) {
            direction = blend(a, l->first, p->momentum, direction, 1);
            TN_TRY(keep(t, direction, l->first));
        }
        tn_tensor *value = l->value;
        if (p->decay > 0 && !tn_is_vector(value)) value = tn_mul(a, value, knob(t, KNOB_KEEP));
        TN_TRY(keep(t, tn_add(a, tn_mul(a, direction, knob(t, KNOB_RATE)), value), l->value));
    }
    return TN_OK;
}

static tn_status make_graphs(tn_trainer *t) {
    size_t nodes = 0, leaves = 0;
    TN_TRY(count_tensors(t->loss, &nodes, &leaves));
    /* Gradients; per leaf at most its state and some 25 nodes of an update; the rest is small. */
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
    TN_TRY(make_measure(t));
    return make_update(t);
}

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/* Takes memory of one type for these tensors, in as few buffers as its largest allocation allows, and clears it. */
static tn_status place(tn_trainer *t, tn_buffer_type *type, tn_tensor *const *tensors, size_t n) {
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

static tn_status take_memory(tn_trainer *t) {
    tn_device *device = tn_stream_device(tn_sched_stream(t->sched, 0));
    tn_device *host = tn_stream_device(tn_sched_stream(t->sched, tn_sched_stream_count(t->sched) - 1));
    tn_tensor **list = tn_malloc((4 * t->n_learned + t->n_inputs + 1) * sizeof(tn_tensor *));
    if (!list) return TN_E_NOMEM;
    size_t n = 0;
    for (size_t i = 0; i < t->n_learned; i++) {
        const learned *l = &t->learned[i];
        if (l->placed) list[n++] = l->value;
        list[n++] = l->sum;
        if (l->first) list[n++] = l->first;
        if (l->second) list[n++] = l->second;
    }
    tn_status status = place(t, tn_device_buffer_type(device), list, n);
    for (size_t i = 0; i < t->n_buffers; i++) tn_buffer_set_usage(t->buffers[i], TN_USAGE_WEIGHTS);
    n = 0;
    list[n++] = t->knobs;
    for (size_t i = 0; i < t->n_inputs; i++) list[n++] = t->inputs[i];
    if (status == TN_OK) status = place(t, tn_device_buffer_type(host), list, n);
    tn_free(list);
    TN_TRY(status);
    tn_graph *const graphs[] = {t->step, t->evaluate, t->measure, t->update};
    for (size_t i = 0; i < TN__COUNT(graphs); i++) tn_graph_touch(graphs[i]); /* leaves have their memory now */
    return tn_sched_reserve_many(t->sched, graphs, TN__COUNT(graphs));
}

tn_status tn_trainer_new(tn_tensor *loss, const tn_trainer_params *params, tn_trainer **out) {
    if (!out) return tn_fail(TN_E_INVALID, "tn_trainer_new: NULL argument");
    *out = NULL;
    if (!loss) return tn_fail(TN_E_INVALID, "the loss is NULL: tn_arena_status knows why");
    tn_trainer_params defaults = tn_trainer_params_default();
    if (!params) params = &defaults;
    TN_TRY(check_params(params));
    tn_trainer *t = tn_calloc(1, sizeof *t);
    if (!t) return TN_E_NOMEM;
    t->params = *params;
    t->loss = tn_output(loss);
    tn_sched_params sp = {.n_threads = params->n_threads};
    memcpy(sp.devices, params->devices, sizeof sp.devices);
    tn_status status = tn_sched_new(&sp, &t->sched);
    if (status == TN_OK) status = make_graphs(t);
    if (status == TN_OK) status = take_memory(t);
    if (status != TN_OK) {
        tn_trainer_free(t);
        return status;
    }
    *out = t;
    return TN_OK;
}

static void unplace(tn_tensor *tensor) {
    tensor->data = NULL;
    tensor->buffer = NULL;
}
void tn_trainer_free(tn_trainer *t) {
    if (!t) return;
    if (t->sched) (void)tn_sched_synchronize(t->sched);
    if (t->evaluate) tn_graph_reset(t->evaluate); /* the caller's nodes must not point into what is freed here */
    for (size_t i = 0; i < t->n_learned; i++)
        if (t->learned[i].placed) unplace(t->learned[i].value);
    for (size_t i = 0; i < t->n_inputs; i++) unplace(t->inputs[i]);
    tn_sched_free(t->sched);
    for (size_t i = 0; i < t->n_buffers; i++) tn_buffer_free(t->buffers[i]);
    tn_free(t->buffers);
    tn_free(t->learned);
    tn_free(t->inputs);
    tn_arena_free(t->arena);
    tn_free(t);
}

/* ---- Steps -------------------------------------------------------------------------------------------------------
 */

static tn_status run(tn_trainer *t, tn_graph *graph, const tn_tensor *result, float *value) {
    TN_TRY(tn_sched_run(t->sched, graph));
    return result ? tn_tensor_get(result, value) : TN_OK;
}

static tn_status forget_gradients(tn_trainer *t) {
    t->accumulated = 0;
    for (size_t i = 0; i < t->n_learned; i++) {
        tn_tensor *sum = t->learned[i].sum;
        TN_TRY(tn_tensor_fill(sum, 0, 0, tn_nbytes(sum)));
    }
    return TN_OK;
}
static tn_status drop(tn_trainer *t, const char *what, float value) {
    TN_TRY(forget_gradients(t));
    return tn_fail(TN_E_NOT_FINITE, "%s is %g after %llu updates: gradients were dropped, parameters kept", what,
                   (double)value, (unsigned long long)t->updates);
}

static tn_status update(tn_trainer *t) {
    const tn_trainer_params *p = &t->params;
    float square;
    TN_TRY(run(t, t->measure, t->square, &square));
    float share = 1 / (float)t->accumulated, norm = sqrtf(square) * share;
    if (!isfinite(norm)) return drop(t, "the gradients' length", norm);
    t->norm = norm;
    if (p->clip > 0 && norm > p->clip) share *= p->clip / norm;
    const double n = (double)t->updates + 1;
    const float knobs[KNOBS] = {[KNOB_SHARE] = share,
                                [KNOB_FIRST] = (float)(1 / (1 - pow(p->beta1, n))),
                                [KNOB_SECOND] = (float)(1 / (1 - pow(p->beta2, n))),
                                [KNOB_RATE] = -p->rate,
                                [KNOB_KEEP] = 1 - p->rate * p->decay};
    TN_TRY(tn_tensor_set(t->knobs, knobs));
    TN_TRY(run(t, t->update, NULL, NULL));
    t->updates++;
    return forget_gradients(t);
}

tn_status tn_trainer_step(tn_trainer *t, float *loss) {
    if (!t) return tn_fail(TN_E_INVALID, "tn_trainer_step: NULL argument");
    float value;
    TN_TRY(run(t, t->step, t->loss, &value));
    if (loss) *loss = value;
    if (!isfinite(value)) return drop(t, "the loss", value);
    return ++t->accumulated < t->params.accumulate ? TN_OK : update(t);
}

tn_status tn_trainer_evaluate(tn_trainer *t, float *loss) {
    if (!t || !loss) return tn_fail(TN_E_INVALID, "tn_trainer_evaluate: NULL argument");
    return run(t, t->evaluate, t->loss, loss);
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
    return m;
}

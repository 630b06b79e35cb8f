/* Sessions: creation with all reservations, decoding of batches, results. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "llm/load.h"

#include <string.h>

tn_session_params tn_session_params_default(void) {
    return (tn_session_params){
        .n_ctx = 4096,
        .n_batch = 2048,
        .n_ubatch = 512,
        .n_seqs = 1,
        .cache_k = TN_F16,
        .cache_v = TN_F16,
        .n_gpu_layers = -1,
        .pooling = TN_POOLING_MODEL,
    };
}

/* ---- Graphs --------------------------------------------------------------------------------------------------- */

void tn__graph_set_free(tn__graph_set *set) {
    if (!set) return;
    tn_arena_free(set->arena);
    tn_free(set);
}

/* Makes room for one more graph: forgets the one that was not used for longest. The reserved ones stay. */
static void forget_oldest_set(tn_session *s) {
    size_t oldest = s->n_sets, in_turn = 0;
    for (size_t i = 0; i < s->n_sets; i++) {
        bool reserved = false;
        for (size_t r = 0; r < s->n_reserved; r++) reserved = reserved || s->reserved[r] == s->sets[i];
        if (reserved) continue;
        in_turn++;
        if (oldest == s->n_sets || s->sets[i]->last_used < s->sets[oldest]->last_used) oldest = i;
    }
    if (in_turn < TN__GRAPHS_KEPT) return;
    tn__graph_set_free(s->sets[oldest]);
    s->sets[oldest] = s->sets[--s->n_sets];
}

static tn_status build_set(const tn_session *s, tn__shape shape, tn__graph_set *set) {
    bool moves = shape.kind == TN__GRAPH_SHIFT || shape.kind == TN__GRAPH_MOVE;
    return moves ? tn__build_move(s, shape, set) : tn__build_graph(s, shape, set);
}
/* Builds a graph twice: how much room it needs is known only when it is there, and what is remembered should take no
 * more than that. */
static tn_status build_exactly(const tn_session *s, tn__shape shape, tn__graph_set *set) {
    TN_TRY(build_set(s, shape, set));
    if (!set->graph) return TN_OK;
    tn__graph_set exact = {.n_tensors = tn_arena_tensor_count(set->arena)};
    exact.capacity = TN__MAX(tn_graph_node_count(set->graph), tn_graph_leaf_count(set->graph));
    tn_status status = build_set(s, shape, &exact);
    tn_arena_free(status == TN_OK ? set->arena : exact.arena);
    if (status == TN_OK) *set = exact;
    return status;
}

tn_status tn__graph_for(tn_session *s, tn__shape shape, tn__graph_set **out) {
    for (size_t i = 0; i < s->n_sets; i++) {
        tn__graph_set *set = s->sets[i];
        if (set->shape.kind == shape.kind && set->shape.n_tokens == shape.n_tokens &&
            set->shape.n_outputs == shape.n_outputs) {
            set->last_used = ++s->set_clock;
            *out = set;
            return TN_OK;
        }
    }
    forget_oldest_set(s);
    if (s->n_sets == s->cap_sets) {
        size_t capacity = s->cap_sets ? 2 * s->cap_sets : 8;
        tn__graph_set **grown = tn_realloc(s->sets, capacity * sizeof(tn__graph_set *));
        if (!grown) return TN_E_NOMEM;
        s->sets = grown;
        s->cap_sets = capacity;
    }
    tn__graph_set *set = tn_calloc(1, sizeof *set);
    if (!set) return TN_E_NOMEM;
    tn_status status = build_exactly(s, shape, set);
    if (status != TN_OK) {
        tn__graph_set_free(set);
        return status;
    }
    set->last_used = ++s->set_clock;
    s->sets[s->n_sets++] = set;
    *out = set;
    return TN_OK;
}

/* Sizes are rounded up so that a session meets a bounded number of graphs; the added rows are padding. */
int32_t tn__round_tokens(int32_t n, int32_t limit) {
    int64_t step = n <= 8 ? 1 : n <= 64 ? 8 : n <= 128 ? 16 : 32;
    int64_t rounded = (n + step - 1) / step * step;
    return rounded < limit ? (int32_t)rounded : limit;
}
/* One row, or as good as all: rows of logits cost little beside the layers, and every graph more costs memory. */
int32_t tn__round_outputs(int32_t n, int32_t limit) {
    int64_t rounded = n <= 1 ? 1 : 64;
    while (rounded < n) rounded *= 2;
    return rounded < limit ? (int32_t)rounded : limit;
}

/* ---- Runs in flight ------------------------------------------------------------------------------------------- */

/* Where the layers lie on several devices that queue, so that each can be at work on another part of the prompt. Not
 * where the host has layers, for which all would wait, or which bring their weights over; nor where cells change
 * hands on the way: those of windows are taken from what an earlier part may still have to read. */
static bool can_pipeline(const tn_session *s) {
    bool several = false;
    if (s->in_turn || s->params.n_pipeline == 1 || s->params.n_batch <= s->params.n_ubatch || !s->model->h.causal ||
        s->params.n_overrides || s->kv.groups[TN__CACHE_WINDOW].n)
        return false;
    for (int32_t i = 1; i < s->model->h.n_layer + 2; i++) {
        const int d = s->device_of_layer[i];
        const tn_device_caps caps = tn_device_get_caps(tn_stream_device(tn_sched_stream(s->sched, (size_t)d)));
        if (!caps.async || !caps.events || caps.shares_host) return false;
        several = several || d != s->device_of_layer[1];
    }
    return several;
}

/* Only full micro-batches follow each other. */
tn_status tn__schedule_set(tn_session *s, const tn__graph_set *set, bool *several) {
    const tn__graph_kind kind = set->shape.kind;
    *several = s->pipelined && set->shape.n_tokens == s->params.n_ubatch && kind != TN__GRAPH_SHIFT &&
               kind != TN__GRAPH_MOVE;
    if (!*several) return TN_OK;
    tn_sched_info info;
    TN_TRY(tn_sched_set_pipeline(s->sched, s->params.n_pipeline));
    tn_status status = tn_sched_describe(s->sched, set->graph, &info);
    tn_status back = tn_sched_set_pipeline(s->sched, 1);
    *several = status == TN_OK && info.in_flight > 1;
    return status == TN_OK ? back : status;
}

/* ---- Creation ------------------------------------------------------------------------------------------------- */

static tn_status fill_params(const tn_model *m, tn_session_params *p) {
    if (p->n_ctx == 0) p->n_ctx = m->h.n_ctx_train;
    if (p->n_seqs == 0) p->n_seqs = 1;
    if (p->n_batch == 0) p->n_batch = 2048;
    if (p->n_ubatch == 0) p->n_ubatch = 512;
    if (p->n_ctx < 1 || p->n_batch < 1 || p->n_ubatch < 1 || p->n_seqs < 1 || p->n_outputs < 0)
        return tn_fail(TN_E_INVALID,
                       "context %d, batch %d, micro-batch %d, %d sequences, %d outputs: all must be positive",
                       p->n_ctx, p->n_batch, p->n_ubatch, p->n_seqs, p->n_outputs);
    if (p->n_pipeline < 0 || p->n_pipeline > 64)
        return tn_fail(TN_E_INVALID, "%d micro-batches in flight; 0 to 64 are possible", p->n_pipeline);
    if (p->n_seqs > 65536) return tn_fail(TN_E_INVALID, "%d sequences; at most 65536 are possible", p->n_seqs);
    if (p->n_batch > p->n_ctx) p->n_batch = p->n_ctx;
    if (p->n_ubatch > p->n_batch) p->n_ubatch = p->n_batch;
    TN_TRY(tn__pool_params(m, p));
    if (p->n_outputs == 0) p->n_outputs = p->embeddings && p->pooling == TN_POOLING_NONE ? p->n_batch : p->n_seqs;
    if (p->n_outputs > p->n_batch) p->n_outputs = p->n_batch;
    static const tn_type allowed[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0, TN_Q4_0};
    bool k = false, v = false;
    for (size_t i = 0; i < TN__COUNT(allowed); i++) {
        k = k || p->cache_k == allowed[i];
        v = v || p->cache_v == allowed[i];
    }
    if (!k || !v)
        return tn_fail(TN_E_TYPE, "the KV cache can be f32, f16, bf16, q8_0 or q4_0, not %s and %s",
                       tn_type_name(p->cache_k), tn_type_name(p->cache_v));
    return TN_OK;
}

static int device_of_weight(const void *user, const tn__weight *w) { return tn__place_of_weight(user, w); }

enum { FOUND = 4 }; /* behind the logits and the best tokens: what steps of a greedy loop find, two values each */
static tn_status make_staging(tn_session *s) {
    size_t n = (size_t)s->params.n_ubatch, b = (size_t)s->params.n_batch;
    size_t cells = s->pipelined ? b + n : n; /* of all micro-batches, the last one padded */
    s->tokens = tn_calloc(n, sizeof *s->tokens);
    s->positions = tn_calloc(b, sizeof *s->positions);
    s->seqs = tn_calloc(b, sizeof *s->seqs);
    s->wanted = tn_calloc(b, sizeof *s->wanted);
    s->prompt_seqs = tn_calloc(b, sizeof *s->prompt_seqs);
    s->score_wanted = tn_calloc(b, sizeof *s->score_wanted);
    s->padded_positions = tn_calloc(n, sizeof *s->padded_positions);
    s->q_scale = tn_calloc(n, sizeof *s->q_scale);
    s->q_pos = tn_calloc(2 * n, sizeof *s->q_pos);
    s->out_rows = tn_calloc(n, sizeof *s->out_rows);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        s->rows[g] = tn_calloc(cells, sizeof *s->rows[g]);
        if (!s->rows[g]) return TN_E_NOMEM;
    }
    if (s->params.embeddings) TN_TRY(tn__pool_new(s));
    size_t count, rows = (size_t)s->params.n_outputs;
    if (!tn__mul_size(rows, (size_t)s->model->h.n_vocab + 2, &count) || !tn__add_size(count, FOUND, &count))
        return tn_fail(TN_E_OVERFLOW, "the logits' size overflows");
    if (s->params.embeddings) count = 2 * rows + FOUND;
    /* Memory that the first device can write to directly, where it offers such. */
    tn_buffer_type *pinned = tn_device_host_buffer_type(tn_stream_device(tn_sched_stream(s->sched, 0)));
    if (pinned) {
        TN_TRY(tn_buffer_new(pinned, count * sizeof *s->logits, &s->pinned_logits));
        TN_TRY(tn_buffer_clear(s->pinned_logits, 0));
        s->logits = tn_buffer_base(s->pinned_logits);
    } else {
        s->logits = tn_calloc(count, sizeof *s->logits);
    }
    if (s->logits) {
        s->best = (tn_token *)(void *)(s->logits + count - FOUND - 2 * rows);
        TN_TRY(tn__ahead_new(s, s->best + 2 * rows));
    }
    return s->tokens && s->positions && s->prompt_seqs && s->score_wanted && s->padded_positions && s->seqs &&
                   s->wanted && s->q_scale && s->q_pos && s->out_rows && s->logits
               ? TN_OK
               : TN_E_NOMEM;
}

/* Until weights and cache have memory they stand in a buffer that only says which kind of memory it will be, so that
 * graphs are scheduled and planned as they will run. */
enum { STAND_CACHE, STAND_WEIGHTS, STAND_PACKED, STANDS };
static void stand_in(tn_session *s, tn_tensor *t, int device, int kind, tn_buffer_type *type) {
    tn_buffer *b = &s->stand_ins[STANDS * device + kind];
    *b = (tn_buffer){.type = type,
                     .base = (void *)(uintptr_t)4096,
                     .size = SIZE_MAX / 2,
                     .usage = kind == STAND_CACHE ? TN_USAGE_ANY : TN_USAGE_WEIGHTS};
    t->buffer = b;
    t->data = b->base;
}

tn__load tn__session_load(const tn_session *s) {
    return (tn__load){.types = s->types,
                      .n_types = s->n_devices,
                      .pack = s->pack,
                      .rows = s->pack_rows,
                      .device_of = device_of_weight,
                      .user = s,
                      .progress = s->params.progress,
                      .progress_user = s->params.user};
}

static void stand_in_all(tn_session *s) {
    tn_model *m = s->model;
    const tn__load load = tn__session_load(s);
    for (size_t i = 0; !m->loaded && i < m->n_all; i++) {
        if (m->all[i].ignored) continue;
        int device = device_of_weight(s, &m->all[i]);
        tn_buffer_type *type = tn__weight_memory(&load, &m->all[i]);
        stand_in(s, m->all[i].tensor, device, type == s->types[device] ? STAND_WEIGHTS : STAND_PACKED, type);
    }
    for (int32_t i = 0; i < m->h.n_layer; i++) {
        int device = s->kv.layers[i].device;
        stand_in(s, s->kv.layers[i].k, device, STAND_CACHE, s->types[device]);
        stand_in(s, s->kv.layers[i].v, device, STAND_CACHE, s->types[device]);
    }
    for (size_t i = 0; i < TN__CACHE_GROUPS * s->n_devices; i++)
        if (s->kv.meta[i])
            stand_in(s, s->kv.meta[i], (int)(i % s->n_devices), STAND_CACHE, s->types[i % s->n_devices]);
    for (size_t d = 0; d < s->n_devices; d++)
        if (s->kv.factors[d]) stand_in(s, s->kv.factors[d], (int)d, STAND_CACHE, s->types[d]);
    stand_in(s, s->kv.found, s->kv.found_device, STAND_CACHE, s->types[s->kv.found_device]);
}

void tn__remove_stand_ins(tn_model *m) {
    for (size_t i = 0; !m->loaded && i < m->n_all; i++) {
        if (m->all[i].ignored) continue;
        m->all[i].tensor->buffer = NULL;
        m->all[i].tensor->data = NULL;
    }
}

tn_status tn__session_prepare(tn_session *s) {
    tn_model *m = s->model;
    TN_TRY(fill_params(m, &s->params));
    s->pack = m->loaded ? m->packed : !s->params.no_repack;
    s->pack_rows = m->loaded ? m->pack_rows : s->params.n_seqs;
    tn_sched_params sp = {.share = s->params.sched,
                          .exclusive = !s->params.sched,
                          .n_threads = s->params.n_threads,
                          .threads = s->params.threads,
                          .max_schedules = TN__GRAPHS_KEPT,
                          .abort = s->params.abort,
                          .abort_user = s->params.user};
    TN_TRY(tn__session_devices(s, &sp));
    TN_TRY(tn_sched_new(&sp, &s->sched));
    if (s->params.sched) s->params.sched = s->sched; /* the caller's may be freed */
    s->n_devices = tn_sched_stream_count(s->sched);
    /* From here on by name: a specification would make another device every time it is read. */
    for (size_t d = 0; !s->params.sched && d < s->n_devices && d < TN__COUNT(s->params.devices); d++)
        s->params.devices[d] = tn_device_name(tn_stream_device(tn_sched_stream(s->sched, d)));
    s->types = tn_calloc(s->n_devices, sizeof(tn_buffer_type *));
    s->stand_ins = tn_calloc(STANDS * s->n_devices, sizeof *s->stand_ins);
    s->planned = tn_calloc(s->n_devices, sizeof *s->planned);
    if (!s->types || !s->stand_ins || !s->planned) return TN_E_NOMEM;
    for (size_t d = 0; d < s->n_devices; d++)
        s->types[d] = tn_device_buffer_type(tn_stream_device(tn_sched_stream(s->sched, d)));
    return tn__place_new(s);
}

/* Everything a session will need, per device, for the present placement. Takes no device memory. */
tn_status tn__session_plan(tn_session *s) {
    tn_model *m = s->model;
    for (size_t i = 0; i < s->n_sets; i++) tn__graph_set_free(s->sets[i]);
    s->n_sets = s->n_reserved = 0;
    tn_sched_reset(s->sched);
    tn__kv_free(&s->kv);
    tn__kv_params kp = {
        .model = m,
        .n_ctx = m->h.causal ? s->params.n_ctx : s->params.n_ubatch, /* encoders keep nothing between micro-batches */
        .n_ubatch = s->params.n_ubatch,
        .n_seqs = s->params.n_seqs,
        .type_k = s->params.cache_k,
        .type_v = s->params.cache_v,
        .types = s->types,
        .device_of_layer = s->device_of_layer + 1,
        .n_devices = s->n_devices,
        .factors = tn__rope_factors(s),
        .found_device = s->device_of_layer[m->h.n_layer + 1],
    };
    for (size_t i = 0; kp.factors && i < m->n_all; i++)
        if (m->all[i].tensor == kp.factors) kp.factors_device = tn__place_of_weight(s, &m->all[i]);
    TN_TRY(tn__kv_new(&kp, &s->kv));
    stand_in_all(s);
    s->pipelined = can_pipeline(s);
    int32_t decode = tn__round_tokens(TN__MIN(s->params.n_seqs, s->params.n_ubatch), s->params.n_ubatch);
    tn__shape shapes[TN__COUNT(s->reserved)] = {
        {tn__session_kind(s), s->params.n_ubatch, tn__rows_out(s, s->params.n_ubatch)},
        {tn__session_kind(s), decode, tn__rows_out(s, decode)}};
    size_t n_shapes = 2;
    if (!s->params.embeddings) shapes[n_shapes++] = (tn__shape){TN__GRAPH_BEST, decode, tn__rows_out(s, decode)};
    /* Where all rows may be wanted the prefill graph need not choose rows; one that does needs a little more. */
    if (shapes[0].n_outputs == shapes[0].n_tokens && tn__outputs_for(s, 1, shapes[0].n_tokens) < shapes[0].n_outputs)
        shapes[n_shapes++] = (tn__shape){shapes[0].kind, shapes[0].n_tokens, shapes[0].n_outputs - 1};
    if (tn__ahead_possible(s)) shapes[n_shapes++] = (tn__shape){TN__GRAPH_NEXT, 1, 1};
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        if (!s->kv.groups[g].n) continue;
        shapes[n_shapes++] = (tn__shape){TN__GRAPH_SHIFT, TN__MOVE_CELLS, g};
        shapes[n_shapes++] = (tn__shape){TN__GRAPH_MOVE, TN__MOVE_CELLS, g};
    }
    tn_graph *graphs[TN__COUNT(s->reserved)];
    s->n_reserved = 0;
    for (size_t i = 0; i < n_shapes; i++) {
        tn__graph_set *set;
        TN_TRY(tn__graph_for(s, shapes[i], &set));
        if (!set->graph) continue;
        bool several;
        TN_TRY(tn__schedule_set(s, set, &several));
        s->reserved[s->n_reserved] = set;
        graphs[s->n_reserved++] = set->graph;
    }
    tn_sched_memory *memory = tn_calloc(s->n_devices, sizeof *memory);
    size_t *sizes = tn_calloc(3 * s->n_devices, sizeof *sizes);
    tn_status status = memory && sizes ? tn_sched_measure(s->sched, graphs, s->n_reserved, memory) : TN_E_NOMEM;
    if (status == TN_E_TOO_BIG) /* for a device that gives memory in pieces only */
        tn_fail_more(
            status, "; to make it fit: a smaller micro-batch than %d (--ubatch), or no layers there (--gpu-layers 0)",
            s->params.n_ubatch);
    const tn__load load = tn__session_load(s);
    if (status == TN_OK) status = tn__load_sizes(m, &load, sizes, sizes + s->n_devices);
    if (status == TN_OK) status = tn__kv_sizes(&s->kv, s->types, sizes + 2 * s->n_devices);
    for (size_t d = 0; status == TN_OK && d < s->n_devices; d++) {
        s->planned[d] = (tn__device_plan){.weights = sizes[d],
                                          .mapped = sizes[s->n_devices + d],
                                          .cache = sizes[2 * s->n_devices + d],
                                          .compute = memory[d].compute,
                                          .scratch = memory[d].scratch,
                                          .missing = memory[d].missing,
                                          .lower_bound = memory[d].lower_bound};
        for (int32_t i = 0; i < m->h.n_layer; i++) s->planned[d].n_layers += s->device_of_layer[i + 1] == (int)d;
    }
    tn_free(memory);
    tn_free(sizes);
    return status;
}

static tn_status create(tn_session *s) {
    tn_model *m = s->model;
    TN_TRY(tn__session_prepare(s));
    TN_TRY(tn__session_choose(s));
    if (!s->fits) return tn__session_too_big(s);
    const tn__load load = tn__session_load(s);
    TN_TRY(tn__load_weights(m, &load));
    m->packed = s->pack;
    m->pack_rows = s->pack_rows;
    TN_TRY(tn__kv_allocate(&s->kv, s->types));
    for (size_t i = 0; i < s->n_sets; i++) tn__place_found(s, s->sets[i]);
    TN_TRY(make_staging(s));
    tn_graph *graphs[TN__COUNT(s->reserved)];
    for (size_t i = 0; i < s->n_reserved; i++) {
        bool several;
        graphs[i] = s->reserved[i]->graph;
        TN_TRY(tn__schedule_set(s, s->reserved[i], &several));
    }
    return tn_sched_reserve_many(s->sched, graphs, s->n_reserved);
}

tn_status tn_session_new(tn_model *model, const tn_session_params *params, tn_session **out) {
    if (!model || !out) return tn_fail(TN_E_INVALID, "tn_session_new: NULL argument");
    *out = NULL;
    if (model->params.vocab_only) return tn_fail(TN_E_STATE, "the model was opened for its vocabulary only");
    tn_session *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->model = model;
    s->params = params ? *params : tn_session_params_default();
    tn_status status = create(s);
    if (status != TN_OK) {
        tn_session_free(s);
        return status;
    }
    *out = s;
    return TN_OK;
}

void tn__session_drop(tn_session *s) {
    /* A step that runs ahead may still be queued: it reads tensors and memory that go now. */
    if (s->sched) (void)tn_sched_synchronize(s->sched);
    tn__streams_free(s);
    for (size_t i = 0; i < s->n_sets; i++) tn__graph_set_free(s->sets[i]);
    tn_free(s->sets);
    tn__ahead_free(s);
    tn_sched_free(s->sched);
    tn__kv_free(&s->kv);
    tn__place_free(s);
    tn_free(s->types);
    tn_free(s->stand_ins);
    tn_free(s->planned);
    tn_free(s->tokens);
    tn_free(s->positions);
    tn_free(s->seqs);
    tn_free(s->wanted);
    tn_free(s->prompt_seqs);
    tn_free(s->score_wanted);
    tn_free(s->padded_positions);
    tn_free(s->q_pos);
    tn_free(s->q_scale);
    tn_free(s->out_rows);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) tn_free(s->rows[g]);
    if (!s->pinned_logits) tn_free(s->logits);
    tn_buffer_free(s->pinned_logits);
    tn__pool_free(s);
    if (s->model) tn__remove_stand_ins(s->model);
}

void tn_session_free(tn_session *s) {
    if (!s) return;
    tn__session_drop(s);
    tn_free(s);
}

tn_model *tn_session_model(const tn_session *s) { return s->model; }
tn_session_params tn_session_get_params(const tn_session *s) { return s->params; }
tn_sched *tn_session_sched(tn_session *s) { return s->sched; }

tn_status tn_session_dump_splits(tn_session *s, bool prefill, FILE *out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_session_dump_splits: NULL argument");
    return tn_sched_dump(s->sched, s->reserved[prefill ? 0 : 1]->graph, out);
}

/* Sessions: creation with all reservations, decoding of batches, results. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "llm/load.h"

#include <string.h>

tn_session_params tn_session_params_default(void) {
    return (tn_session_params){
        .n_ctx = 4096, .n_batch = 2048, .n_ubatch = 512, .n_seqs = 1, .cache_k = TN_F16, .cache_v = TN_F16, .n_gpu_layers = -1, .pooling = TN_POOLING_MODEL,
    };
}

/* ---- Graphs --------------------------------------------------------------------------------------------------- */

static void free_set(tn__graph_set *set) {
    if (!set) return;
    tn_arena_free(set->arena);
    tn_free(set);
}

/* The graph for a shape: remembered, or built and remembered. */
static tn_status graph_for(tn_session *s, tn__shape shape, tn__graph_set **out) {
    for (size_t i = 0; i < s->n_sets; i++) {
        tn__graph_set *set = s->sets[i];
        if (set->shape.kind == shape.kind && set->shape.n_tokens == shape.n_tokens && set->shape.n_outputs == shape.n_outputs) {
            *out = set;
            return TN_OK;
        }
    }
    if (s->n_sets == s->cap_sets) {
        size_t capacity = s->cap_sets ? 2 * s->cap_sets : 8;
        tn__graph_set **grown = tn_realloc(s->sets, capacity * sizeof(tn__graph_set *));
        if (!grown) return TN_E_NOMEM;
        s->sets = grown;
        s->cap_sets = capacity;
    }
    tn__graph_set *set = tn_calloc(1, sizeof *set);
    if (!set) return TN_E_NOMEM;
    tn_status status = tn__build_graph(s, shape, set);
    if (status != TN_OK) {
        free_set(set);
        return status;
    }
    s->sets[s->n_sets++] = set;
    *out = set;
    return TN_OK;
}

/* Sizes are rounded up so that a session meets a bounded number of graphs; the added rows are padding. */
static int32_t round_tokens(int32_t n, int32_t limit) {
    int32_t step = n <= 8 ? 1 : n <= 64 ? 8 : 32;
    int32_t rounded = (n + step - 1) / step * step;
    return rounded < limit ? rounded : limit;
}
static int32_t round_outputs(int32_t n, int32_t limit) {
    int32_t rounded = 1;
    while (rounded < n) rounded *= 2;
    return rounded < limit ? rounded : limit;
}

/* ---- Creation ------------------------------------------------------------------------------------------------- */

static tn_status fill_params(const tn_model *m, tn_session_params *p) {
    if (p->n_ctx == 0) p->n_ctx = m->h.n_ctx_train;
    if (p->n_seqs == 0) p->n_seqs = 1;
    if (p->n_batch == 0) p->n_batch = 2048;
    if (p->n_ubatch == 0) p->n_ubatch = 512;
    if (p->n_ctx < 1 || p->n_batch < 1 || p->n_ubatch < 1 || p->n_seqs < 1 || p->n_outputs < 0)
        return tn_fail(TN_E_INVALID, "context %d, batch %d, micro-batch %d, %d sequences, %d outputs: all must be positive", p->n_ctx, p->n_batch, p->n_ubatch,
                       p->n_seqs, p->n_outputs);
    if (p->n_batch > p->n_ctx) p->n_batch = p->n_ctx;
    if (p->n_ubatch > p->n_batch) p->n_ubatch = p->n_batch;
    if (p->n_outputs == 0) p->n_outputs = p->n_seqs;
    if (p->n_outputs > p->n_batch) p->n_outputs = p->n_batch;
    static const tn_type allowed[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0, TN_Q4_0};
    bool k = false, v = false;
    for (size_t i = 0; i < TN__COUNT(allowed); i++) {
        k = k || p->cache_k == allowed[i];
        v = v || p->cache_v == allowed[i];
    }
    if (!k || !v) return tn_fail(TN_E_TYPE, "the KV cache can be f32, f16, bf16, q8_0 or q4_0, not %s and %s", tn_type_name(p->cache_k), tn_type_name(p->cache_v));
    return TN_OK;
}

/* The last n_gpu_layers layers go to the devices before the CPU, by their shares; the output side follows when there
 * is one more. */
static void place_layers(tn_session *s) {
    int32_t n = s->model->h.n_layer, cpu = (int32_t)s->n_devices - 1;
    int32_t off_cpu = cpu == 0 ? 0 : s->params.n_gpu_layers < 0 ? n + 1 : TN__MIN(s->params.n_gpu_layers, n + 1);
    float total = 0;
    for (int32_t d = 0; d < cpu; d++) total += s->params.split[d];
    for (int32_t i = 0; i < n + 2; i++) {
        int32_t layer = i - 1, device = cpu;
        if (layer >= 0 && layer >= n - off_cpu + (off_cpu > n)) {
            /* Where this layer lies among those off the CPU, from 0 to 1. */
            int32_t first = TN__MAX(0, n - off_cpu + (off_cpu > n));
            float at = ((float)(layer - first) + 0.5f) / (float)(n + (off_cpu > n) - first), sum = 0;
            for (device = 0; device < cpu - 1; device++) {
                sum += total > 0 ? s->params.split[device] / total : 1.0f / (float)cpu;
                if (at < sum) break;
            }
            if (layer == n && off_cpu <= n) device = cpu;
        }
        s->device_of_layer[i] = device;
    }
}

static int device_of_weight(const void *user, const tn__weight *w) {
    const tn_session *s = user;
    return s->device_of_layer[w->layer + 1];
}

static tn_status make_staging(tn_session *s) {
    size_t n = (size_t)s->params.n_ubatch, b = (size_t)s->params.n_batch;
    s->tokens = tn_calloc(n, sizeof *s->tokens);
    s->positions = tn_calloc(b, sizeof *s->positions);
    s->seqs = tn_calloc(b, sizeof *s->seqs);
    s->wanted = tn_calloc(b, sizeof *s->wanted);
    s->prompt_seqs = tn_calloc(b, sizeof *s->prompt_seqs);
    s->score_wanted = tn_calloc(b, sizeof *s->score_wanted);
    s->padded_positions = tn_calloc(n, sizeof *s->padded_positions);
    s->q_pos = tn_calloc(2 * n, sizeof *s->q_pos);
    s->out_rows = tn_calloc(n, sizeof *s->out_rows);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        s->rows[g] = tn_calloc(n, sizeof *s->rows[g]);
        if (!s->rows[g]) return TN_E_NOMEM;
    }
    size_t count;
    if (!tn__mul_size((size_t)s->params.n_outputs, (size_t)s->model->h.n_vocab, &count)) return tn_fail(TN_E_OVERFLOW, "the logits' size overflows");
    s->logits = tn_calloc(count, sizeof *s->logits);
    return s->tokens && s->positions && s->prompt_seqs && s->score_wanted && s->padded_positions && s->seqs && s->wanted && s->q_pos && s->out_rows && s->logits ? TN_OK : TN_E_NOMEM;
}

static tn_status create(tn_session *s) {
    tn_model *m = s->model;
    TN_TRY(fill_params(m, &s->params));
    tn_sched_params sp = {.n_threads = s->params.n_threads, .abort = s->params.abort, .abort_user = s->params.user};
    memcpy(sp.devices, s->params.devices, sizeof sp.devices);
    TN_TRY(tn_sched_new(&sp, &s->sched));
    s->n_devices = tn_sched_backend_count(s->sched);
    s->device_of_layer = tn_calloc((size_t)m->h.n_layer + 2, sizeof *s->device_of_layer);
    tn_buffer_type **types = tn_calloc(s->n_devices, sizeof(tn_buffer_type *));
    tn_status status = TN_E_NOMEM;
    if (!s->device_of_layer || !types) goto out;
    for (size_t d = 0; d < s->n_devices; d++) types[d] = tn_device_buffer_type(tn_backend_device(tn_sched_backend(s->sched, d)));
    place_layers(s);
    tn__load load = {.types = types, .n_types = s->n_devices, .device_of = device_of_weight, .user = s, .progress = s->params.progress, .progress_user = s->params.user};
    TN_TRY_GOTO(tn__load_weights(m, &load), status, out);
    tn__kv_params kp = {
        .model = m, .n_ctx = s->params.n_ctx, .n_ubatch = s->params.n_ubatch, .n_seqs = s->params.n_seqs, .type_k = s->params.cache_k,
        .type_v = s->params.cache_v, .types = types, .device_of_layer = s->device_of_layer + 1, .n_devices = s->n_devices,
    };
    TN_TRY_GOTO(tn__kv_new(&kp, &s->kv), status, out);
    TN_TRY_GOTO(tn__kv_allocate(&s->kv, types), status, out);
    TN_TRY_GOTO(make_staging(s), status, out);

    tn__graph_set *prefill, *decode;
    int32_t decode_tokens = round_tokens(TN__MIN(s->params.n_seqs, s->params.n_ubatch), s->params.n_ubatch);
    TN_TRY_GOTO(graph_for(s, (tn__shape){TN__GRAPH_LOGITS, s->params.n_ubatch, round_outputs(TN__MIN(s->params.n_outputs, s->params.n_ubatch), s->params.n_outputs)}, &prefill), status, out);
    TN_TRY_GOTO(graph_for(s, (tn__shape){TN__GRAPH_LOGITS, decode_tokens, round_outputs(decode_tokens, TN__MIN(decode_tokens, s->params.n_outputs))}, &decode), status, out);
    tn_graph *graphs[] = {prefill->graph, decode->graph};
    status = tn_sched_reserve_many(s->sched, graphs, 2);
out:
    tn_free(types);
    return status;
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

void tn_session_free(tn_session *s) {
    if (!s) return;
    tn__streams_free(s);
    for (size_t i = 0; i < s->n_sets; i++) free_set(s->sets[i]);
    tn_free(s->sets);
    tn_sched_free(s->sched);
    tn__kv_free(&s->kv);
    tn_free(s->device_of_layer);
    tn_free(s->tokens);
    tn_free(s->positions);
    tn_free(s->seqs);
    tn_free(s->wanted);
    tn_free(s->prompt_seqs);
    tn_free(s->score_wanted);
    tn_free(s->padded_positions);
    tn_free(s->q_pos);
    tn_free(s->out_rows);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) tn_free(s->rows[g]);
    tn_free(s->logits);
    tn_free(s->embeddings);
    tn_free(s);
}

tn_model *tn_session_model(const tn_session *s) { return s->model; }
tn_session_params tn_session_get_params(const tn_session *s) { return s->params; }
tn_sched *tn_session_sched(tn_session *s) { return s->sched; }

/* ---- Decoding ------------------------------------------------------------------------------------------------- */

/* Fills positions, sequences and wanted rows of the whole batch, and refuses what makes no sense. */
static tn_status read_batch(tn_session *s, const tn_batch *b, int32_t *n_wanted) {
    if (b->n_tokens < 1 || b->n_tokens > s->params.n_batch || !b->tokens)
        return tn_fail(TN_E_INVALID, "a batch has 1 to %d tokens, not %d", s->params.n_batch, b->n_tokens);
    *n_wanted = 0;
    for (int32_t i = 0; i < b->n_tokens; i++) {
        int32_t seq = b->seqs ? b->seqs[i] : 0;
        if (seq < 0 || seq >= s->params.n_seqs) return tn_fail(TN_E_INVALID, "token %d belongs to sequence %d of %d", i, seq, s->params.n_seqs);
        if (b->tokens[i] < 0 || b->tokens[i] >= s->model->h.n_vocab)
            return tn_fail(TN_E_INVALID, "token %d is %d; the vocabulary has %d", i, b->tokens[i], s->model->h.n_vocab);
        s->seqs[i] = seq;
        if (b->positions) {
            if (b->positions[i] < 0) return tn_fail(TN_E_INVALID, "token %d has position %d", i, b->positions[i]);
            s->positions[i] = b->positions[i];
        } else {
            int32_t last = -1;
            for (int32_t k = i - 1; k >= 0 && last < 0; k--)
                if (s->seqs[k] == seq) last = s->positions[k];
            s->positions[i] = (last >= 0 ? last : tn_session_seq_last(s, seq)) + 1;
        }
        bool last_of_seq = true;
        for (int32_t k = i + 1; !b->outputs && k < b->n_tokens && last_of_seq; k++) last_of_seq = (b->seqs ? b->seqs[k] : 0) != seq;
        s->wanted[i] = b->outputs ? b->outputs[i] : last_of_seq;
        *n_wanted += s->wanted[i];
    }
    if (*n_wanted > s->params.n_outputs)
        return tn_fail(TN_E_INVALID, "%d rows of logits are wanted, the session keeps %d: raise n_outputs, or use tn_session_score", *n_wanted, s->params.n_outputs);
    return TN_OK;
}

/* An input that this architecture's graph does not use has no memory. */
static tn_status set_if_planned(tn_tensor *t, const void *data) { return t->data ? tn_tensor_set(t, data) : TN_OK; }

static tn_status run_ubatch(tn_session *s, const tn_batch *b, int32_t begin, int32_t n) {
    int32_t padded = round_tokens(n, s->params.n_ubatch), n_out = 0;
    for (int32_t i = 0; i < n; i++)
        if (s->wanted[begin + i]) s->out_rows[n_out++] = i;
    int32_t kept = n_out;
    /* A row of logits is always computed: a graph without output has no end. */
    int32_t outputs = round_outputs(TN__MAX(n_out, 1), TN__MIN(padded, s->params.n_outputs));
    for (; n_out < outputs; n_out++) s->out_rows[n_out] = n - 1;

    TN_TRY(tn__kv_take(&s->kv, n, s->positions + begin, s->seqs + begin, s->rows));
    TN_TRY(tn__kv_send_meta(&s->kv));
    for (int32_t i = 0; i < padded; i++) {
        bool real = i < n;
        s->tokens[i] = real ? b->tokens[begin + i] : 0;
        s->padded_positions[i] = s->q_pos[2 * i] = real ? s->positions[begin + i] : 0;
        s->q_pos[2 * i + 1] = real ? s->seqs[begin + i] : -1;
        for (int g = 0; !real && g < TN__CACHE_GROUPS; g++) s->rows[g][i] = -1;
    }
    tn__graph_set *set;
    TN_TRY(graph_for(s, (tn__shape){TN__GRAPH_LOGITS, padded, outputs}, &set));
    TN_TRY(tn_sched_alloc(s->sched, set->graph));
    TN_TRY(tn_tensor_set(set->tokens, s->tokens));
    TN_TRY(tn_tensor_set(set->q_pos, s->q_pos));
    TN_TRY(set_if_planned(set->positions, s->padded_positions));
    if (set->out_rows) TN_TRY(tn_tensor_set(set->out_rows, s->out_rows));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        if (!set->rows[g]) continue;
        int32_t range[2];
        tn__kv_range(&s->kv, g, range);
        TN_TRY(tn_tensor_set(set->rows[g], s->rows[g]));
        TN_TRY(tn_tensor_set(set->range[g], range));
    }
    TN_TRY(tn_sched_run(s->sched, set->graph));
    size_t row = (size_t)s->model->h.n_vocab;
    if (kept) TN_TRY(tn_tensor_get_at(set->result, s->logits + (size_t)s->n_results * row, 0, (size_t)kept * row * sizeof(float)));
    s->n_results += kept;
    return TN_OK;
}

tn_status tn_session_decode(tn_session *s, const tn_batch *b) {
    if (!s || !b) return tn_fail(TN_E_INVALID, "tn_session_decode: NULL argument");
    uint64_t begin = tn_time_ns();
    int32_t n_wanted;
    TN_TRY(read_batch(s, b, &n_wanted));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__cells *c = &s->kv.groups[g];
        if (c->n && !c->window && c->n - c->used < b->n_tokens)
            return tn_fail(TN_E_FULL, "the KV cache is full: %d tokens need a cell, %d of %d are free; shift, remove a sequence, or use a larger context", b->n_tokens,
                           c->n - c->used, c->n);
    }
    s->n_results = 0;
    for (int32_t i = 0; i < b->n_tokens; i += s->params.n_ubatch) TN_TRY(run_ubatch(s, b, i, TN__MIN(s->params.n_ubatch, b->n_tokens - i)));
    uint64_t ns = tn_time_ns() - begin;
    if (b->n_tokens > s->params.n_seqs) {
        s->stats.prompt_tokens += (uint64_t)b->n_tokens;
        s->stats.prompt_ns += ns;
    } else {
        s->stats.generated_tokens += (uint64_t)b->n_tokens;
        s->stats.generated_ns += ns;
    }
    return TN_OK;
}

int32_t tn_session_output_count(const tn_session *s) { return s->n_results; }
float *tn_session_logits(tn_session *s, int32_t i) {
    if (!s) return NULL;
    if (i < 0) i += s->n_results;
    return i >= 0 && i < s->n_results ? s->logits + (size_t)i * (size_t)s->model->h.n_vocab : NULL;
}

tn_session_stats tn_session_get_stats(const tn_session *s) {
    tn_session_stats stats = s->stats;
    stats.load_ns = s->model->load_ns;
    stats.sched = tn_sched_get_stats(s->sched);
    return stats;
}
void tn_session_reset_stats(tn_session *s) { memset(&s->stats, 0, sizeof s->stats); }

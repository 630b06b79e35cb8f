/* Planning a session: parameters, devices, and all bytes for one placement. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"
#include "llm/memory/cache_types.h"
#include "llm/memory/tier.h"
#include "llm/plan/cover.h"
#include "llm/ranks/lead.h"

#include <stddef.h>
#include <string.h>

tn_session_params tn_session_params_default(void) {
    return (tn_session_params){
        .n_ctx = 4096,
        .n_batch = 2048,
        .n_ubatch = 512,
        .n_seqs = 1,
        .cache_k = TN_F16,
        .cache_v = TN_F16,
        .cache_k_window = TN_TYPE_LIMIT,
        .cache_v_window = TN_TYPE_LIMIT,
        .n_gpu_layers = -1,
        .pooling = TN_POOLING_MODEL,
    };
}

/* Sequences whose guesses a batch can verify completely. With more sequences, wider batches gain little. */
enum { GUESSING_SEQS = 8 };

static tn_status fill_session_params(const tn_model *m, tn_session_params *p) {
    if (p->n_ctx == 0) p->n_ctx = m->h.n_ctx_train;
    if (p->n_seqs == 0) p->n_seqs = 1;
    if (p->n_batch == 0) p->n_batch = 2048;
    if (p->n_ubatch == 0) p->n_ubatch = 512;
    if (p->n_ctx < 1 || p->n_batch < 1 || p->n_ubatch < 1 || p->n_seqs < 1 || p->n_outputs < 0)
        return tn_fail(TN_E_INVALID,
                       "context %d, batch %d, micro-batch %d, %d sequences, %d outputs: all must be positive",
                       p->n_ctx, p->n_batch, p->n_ubatch, p->n_seqs, p->n_outputs);
    if (p->n_pipeline < 0 || p->n_pipeline > 64)
        return tn_fail(TN_E_INVALID, "%d micro-batches in flight; must be 0 to 64", p->n_pipeline);
    if (p->ffn_chunk && p->ffn_chunk < TN__MIN_FFN_CHUNK)
        return tn_fail(TN_E_INVALID, "feed-forward chunks of %d tokens; must be 0 or at least %d", p->ffn_chunk,
                       (int)TN__MIN_FFN_CHUNK);
    if (p->n_prefixes < 0 || p->n_prefixes > 65536)
        return tn_fail(TN_E_INVALID, "%d kept prefixes; must be 0 to 65536", p->n_prefixes);
    if (p->n_prefixes && !m->h.causal)
        return tn_fail(TN_E_UNSUPPORTED, "%s is an encoder: its sequences have no reusable prefixes",
                       m->arch->info.name);
    if ((p->cache_ram || p->cache_disk) && !p->n_prefixes)
        return tn_fail(TN_E_INVALID, "cache_ram or cache_disk is set, but no prefixes are kept: set n_prefixes");
    if (p->cache_disk && (!p->cache_disk[0] || !p->cache_disk_bytes))
        return tn_fail(TN_E_INVALID,
                       "kept prefixes on disk need a folder and a size: set cache_disk and cache_disk_bytes");
    if (m->division.n_ranks > 1 && (p->cache_ram || p->cache_disk || p->n_adapters || p->n_controls || p->sched))
        return tn_fail(TN_E_UNSUPPORTED, "several ranks have no tiers of kept prefixes, adapters, control vectors or "
                                         "shared schedulers: use one rank");
    if (m->division.by_layers && (p->embeddings || p->states))
        return tn_fail(
            TN_E_UNSUPPORTED,
            "embeddings and hidden states are not supported by ranks with whole layers: divide the model by rows");
    if (p->page < 0 || p->page > TN__MOVE_CELLS)
        return tn_fail(TN_E_INVALID, "pages have 1 to %d cells, not %d", TN__MOVE_CELLS, p->page);
    if (p->n_seqs > 65536) return tn_fail(TN_E_INVALID, "%d sequences; must be at most 65536", p->n_seqs);
    if (p->n_checkpoints < 0 || p->n_checkpoints > p->n_prefixes)
        return tn_fail(TN_E_INVALID, "%d checkpoints, but only %d kept prefixes", p->n_checkpoints, p->n_prefixes);
    if (p->checkpoint_every < -1)
        return tn_fail(TN_E_INVALID, "a checkpoint every %d tokens; must be -1 (none) or more", p->checkpoint_every);
    if (p->n_checkpoints == 0) p->n_checkpoints = TN__MIN(p->n_prefixes, p->n_seqs);
    if (p->page == 0) p->page = tn__page_size(p->n_ctx, p->n_seqs);
    if (p->n_batch > p->n_ctx) p->n_batch = p->n_ctx;
    if (p->n_ubatch > p->n_batch) p->n_ubatch = p->n_batch;
    TN_TRY(tn__pooling_params(m, p));
    if (p->n_guess < 0 || p->n_guess > TN_GUESS_MOST)
        return tn_fail(TN_E_INVALID, "%d guessed tokens; must be 0 to %d", p->n_guess, TN_GUESS_MOST);
    if (p->n_branches < 0 || p->n_branches > 1024)
        return tn_fail(TN_E_INVALID, "%d branches of guesses; must be 0 to 1024", p->n_branches);
    if (!p->n_guess) p->n_branches = 0;
    if (p->n_state_layers < 0 || p->n_state_layers > TN_STATE_LAYERS_MOST || (p->n_state_layers && !p->states))
        return tn_fail(TN_E_INVALID, "the states of %d layers; at most %d are possible, and `states` must be set",
                       p->n_state_layers, TN_STATE_LAYERS_MOST);
    for (int32_t i = 0; i < p->n_state_layers; i++)
        if (p->state_layers[i] < (i ? p->state_layers[i - 1] : 0) || p->state_layers[i] > m->h.n_layer)
            return tn_fail(TN_E_INVALID, "the state before layer %d of %d: layers must ascend from 0 to their number",
                           p->state_layers[i], m->h.n_layer);
    if (p->states && p->embeddings) return tn_fail(TN_E_INVALID, "`states` cannot be combined with `embeddings`");
    if (p->n_guess && (p->embeddings || !m->h.causal))
        return tn_fail(TN_E_UNSUPPORTED, "guessed tokens need a session that generates text");
    if (p->n_outputs == 0) /* every row of a verified guess has logits */
        p->n_outputs = p->embeddings && p->pooling == TN_POOLING_NONE
                           ? p->n_batch
                           : p->n_seqs + p->n_guess * TN__MIN(p->n_seqs, GUESSING_SEQS);
    if (p->n_outputs > p->n_batch) p->n_outputs = p->n_batch;
    if (p->n_candidates < 0 || p->n_candidates > 1024)
        return tn_fail(TN_E_INVALID, "%d candidates per row; must be 0 to 1024", p->n_candidates);
    if (p->n_candidates > m->h.n_vocab) p->n_candidates = m->h.n_vocab;
    return tn__cache_types_check(p);
}

/* ---- Devices ---- */

int32_t tn__plan_candidates(const tn_session_plan *p) {
    if (p->params.embeddings || p->params.sched || !p->params.n_candidates) return 0;
    const int device = p->placement.device_of_layer[p->model->h.n_layer + 1];
    const tn_buffer_type *type = tn_device_buffer_type(tn__plan_device(p, (size_t)device));
    return tn_buffer_type_is_host(type) ? 0 : p->params.n_candidates;
}

/* All GPUs, unless the caller names devices: the integrated ones last, because they are slower and their memory is
 * the host's. Simulated ones are used only by name. */
static void fill_devices(const tn_session_plan *p, tn_sched_params *params) {
    static const tn_device_kind kinds[] = {TN_DEVICE_GPU, TN_DEVICE_IGPU};
    memcpy(params->devices, p->params.devices, sizeof params->devices);
    if (params->devices[0] || params->share) return;
    size_t n = 0;
    for (size_t k = 0; k < TN__COUNT(kinds); k++)
        for (size_t i = 0; i < tn_device_count() && n < TN__COUNT(params->devices) - 1; i++) {
            tn_device *device = tn_device_get(i);
            if (tn_device_get_kind(device) == kinds[k] && strncmp(tn_device_description(device), "simulated", 9) != 0)
                params->devices[n++] = tn_device_name(device);
        }
}

tn_status tn__session_plan_prepare(tn_session_plan *p) {
    TN_TRY(fill_session_params(p->model, &p->params));
    tn_sched_params sp = {.share = p->params.sched,
                          .exclusive = !p->params.sched,
                          .n_threads = p->params.n_threads,
                          .threads = p->params.threads,
                          .max_schedules = TN__GRAPHS_KEPT,
                          .pack = p->params.pack,
                          /* Ranks stop only between graphs, all together. */
                          .abort = p->model->division.net ? NULL : p->params.abort,
                          .abort_user = p->params.user};
    fill_devices(p, &sp);
    TN_TRY(tn_sched_new(&sp, &p->sched));
    tn_sched_set_eval(p->sched, p->params.eval, p->params.eval_user);
    tn_sched_set_locations(p->sched, tn__location_of, &p->locations);
    if (p->params.sched) p->params.sched = p->sched; /* the caller's may be freed */
    size_t n_devices = tn_sched_stream_count(p->sched);
    p->devices = tn_calloc(n_devices, sizeof *p->devices);
    if (!p->devices) return TN_E_NOMEM;
    for (size_t d = 0; d < n_devices; d++) p->devices[d].device = tn_stream_device(tn_sched_stream(p->sched, d));
    for (size_t d = 0; p->params.repeatable && d < n_devices; d++)
        if (!tn_device_get_caps(p->devices[d].device).repeatable)
            return tn_fail(
                TN_E_UNSUPPORTED,
                "repeatable sessions are not supported on %s: its results depend on the batch; use the CPU alone "
                "(--device cpu)",
                tn_device_name(p->devices[d].device));
    TN_TRY(tn__placement_new(p));
    /* Uses names from here on: parsing a description again would create another device. */
    for (size_t d = 0; !p->params.sched && d < p->placement.n_devices && d < TN__COUNT(p->params.devices); d++)
        p->params.devices[d] = tn_device_name(tn__plan_device(p, d));
    return tn__session_adapters_new(p);
}

void tn__session_plan_end(tn_session_plan *p) {
    tn__graphs_free(&p->graphs);
    tn_sched_free(p->sched);
    p->sched = NULL;
    tn__kv_free(&p->kv);
    tn__session_adapters_end(&p->adapters);
    tn__locations_free(&p->locations);
    for (int i = 0; i < 2; i++) tn__layers_free(&p->layers[i]);
    p->ended = true;
}

void tn_session_plan_free(tn_session_plan *p) {
    if (!p || --p->n_users) return;
    tn__session_plan_end(p);
    tn__session_adapters_free(&p->adapters);
    tn__placement_free(&p->placement);
    tn_free(p->devices);
    tn_free(p->advice);
    tn_free(p->warning);
    tn_free(p->covered);
    tn_free(p->kept);
    tn_free(p);
}

tn_status tn__session_plan_with(tn_model *model, const tn_session_params *params, const tn__plan_source *source,
                                tn_status (*choose)(tn_session_plan *plan), tn_session_plan **out) {
    *out = NULL;
    if (model->params.vocab_only) return tn_fail(TN_E_STATE, "the model was opened for its vocabulary only");
    tn_session_plan *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->n_users = 1;
    p->model = model;
    p->loads = !model->loaded;
    p->saved = source ? source->saved : NULL;
    p->cache = source ? source->cache : NULL;
    p->params = params ? *params : tn_session_params_default();
    if (p->params.pack) {
        p->pack = *p->params.pack;
        p->params.pack = &p->pack;
    }
    tn_status status = tn__session_plan_prepare(p);
    if (status == TN_OK) status = choose(p);
    p->saved = NULL;
    p->cache = NULL;
    if (status != TN_OK)
        tn_session_plan_free(p);
    else
        *out = p;
    return status;
}

tn_status tn_session_plan_new(tn_model *model, const tn_session_params *params, tn_session_plan **out) {
    if (!model || !out) return tn_fail(TN_E_INVALID, "tn_session_plan_new: NULL argument");
    tn_session_params p = params ? *params : tn_session_params_default();
    *out = NULL;
    tn_status status = tn__context_choose(model, &p);
    if (status == TN_OK) status = tn__ranks_context(model, &p.n_ctx);
    if (status == TN_OK) status = tn__session_plan_with(model, &p, NULL, tn__session_plan_choose, out);
    return tn__ranks_fail(model, status);
}

bool tn__session_plan_would_fit(tn_model *model, const tn_session_params *params, bool exactly) {
    tn_session_plan *probe;
    bool fits = tn__session_plan_with(model, params, NULL,
                                      exactly ? tn__session_plan_choose : tn__session_plan_search, &probe) == TN_OK &&
                probe->fits;
    tn_session_plan_free(probe);
    return fits;
}

/* ---- One placement ---- */

static int device_of_weight(const void *user, const tn__weight *w) { return tn__placement_of_weight(user, w); }

/* The callback of a shared scheduler is not in the parameters. */
static bool load_aborts(void *plan) {
    return tn_sched_check_abort(((const tn_session_plan *)plan)->sched) == TN_E_ABORTED;
}

tn__load tn__session_plan_load(const tn_session_plan *p) {
    return (tn__load){.types = p->placement.types,
                      .n_types = p->placement.n_devices,
                      .repack = p->placement.repack,
                      .rows = p->placement.repack_rows,
                      .device_of = device_of_weight,
                      .user = p,
                      .progress = p->params.progress,
                      .progress_user = p->params.user,
                      .abort = load_aborts,
                      .abort_user = (void *)(uintptr_t)p};
}

/* The type of host memory that the device did not allocate, such as mapped weights. */
static tn_status find_mapped_type(tn_device *host, tn_buffer_type **type) {
    static max_align_t memory[4];
    tn_buffer *buffer;
    TN_TRY(tn_device_wrap_host(host, memory, sizeof memory, &buffer));
    *type = tn_buffer_get_type(buffer);
    tn_buffer_free(buffer);
    return TN_OK;
}

/* Declares the memory of weights and cache, so that graphs are scheduled and planned as they will run. */
static tn_status declare_locations(tn_session_plan *p) {
    const tn_model *m = p->model;
    const tn__load load = tn__session_plan_load(p);
    tn_device *host = tn__plan_device(p, p->placement.n_devices - 1);
    tn_buffer_type *mapped;
    TN_TRY(find_mapped_type(host, &mapped));
    tn__locations_clear(&p->locations);
    for (size_t i = 0; !m->loaded && i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (w->ignored) continue;
        tn_buffer_type *type = tn__weight_memory(&load, w);
        if (type == tn_device_buffer_type(host) && !tn__load_size(m, &load, w)) type = mapped;
        TN_TRY(tn__locations_add(&p->locations, w->tensor, type, TN_USAGE_WEIGHTS));
    }
    size_t device;
    for (size_t i = 0;; i++) {
        const tn_tensor *t = tn__adapter_tensor(p, i, &device);
        if (!t) break;
        TN_TRY(tn__locations_add(&p->locations, t, p->placement.types[device], TN_USAGE_WEIGHTS));
    }
    for (size_t d = 0; d < p->kv.n_devices; d++)
        for (size_t i = 0; i < tn__kv_tensor_count(&p->kv); i++) {
            const tn_tensor *t = tn__kv_tensor(&p->kv, d, i);
            if (t) TN_TRY(tn__locations_add(&p->locations, t, p->placement.types[d], TN_USAGE_ANY));
        }
    return TN_OK;
}

static tn_status plan_cache(tn_session_plan *p) {
    const tn_model *m = p->model;
    tn__kv_params params = {
        .model = m,
        .n_ctx = m->h.causal ? p->params.n_ctx : p->params.n_ubatch, /* encoders keep nothing between micro-batches */
        .n_ubatch = p->params.n_ubatch,
        .n_seqs = p->params.n_seqs,
        .page = p->params.page,
        .n_kept = p->params.n_prefixes,
        .n_checkpoints = p->params.n_checkpoints,
        .n_guess = p->params.n_guess,
        .n_branches = p->params.n_branches,
        .session = &p->params,
        .types = p->placement.types,
        .device_of_layer = p->placement.device_of_layer + 1,
        .n_devices = p->placement.n_devices,
        .factors = tn__rope_factors(p),
        .output_device = p->placement.device_of_layer[m->h.n_layer + 1],
        .n_candidates = tn__plan_candidates(p),
    };
    for (size_t i = 0; params.factors && i < m->n_all; i++)
        if (m->all[i].tensor == params.factors) params.factors_device = tn__placement_of_weight(p, &m->all[i]);
    return tn__kv_new(&params, &p->kv);
}

/* Whether several micro-batches of a prompt may be in flight: the layers are on several devices that queue, so that
 * each works on another micro-batch. Not where the host has layers: all devices would wait for it, or for its
 * weights. Nor with windows: a later micro-batch takes cells that an earlier one may still have to read. */
static bool can_pipeline(const tn_session_plan *p) {
    const int *device_of_layer = p->placement.device_of_layer;
    bool several = false;
    if (p->model->division.n_ranks > 1) return false;
    if (p->sequential || p->params.n_pipeline == 1 || p->params.n_batch <= p->params.n_ubatch ||
        !p->model->h.causal || p->params.states || p->params.n_overrides || p->kv.groups[TN__CACHE_WINDOW].n_pages)
        return false;
    for (int32_t i = 1; i < p->model->h.n_layer + 2; i++) {
        const tn_device_caps caps = tn_device_get_caps(tn__plan_device(p, (size_t)device_of_layer[i]));
        if (!caps.async || !caps.events || caps.unified) return false;
        several = several || device_of_layer[i] != device_of_layer[1];
    }
    return several;
}

/* Covers the shapes that the session may run, or only the largest while searching, and queries the needs. */
static tn_status plan_graphs(tn_session_plan *p, tn_sched_memory *memory) {
    TN_TRY(tn__adapters_check_applied(p));
    tn_status status = p->searching ? tn__cover_main(p) : tn__cover_all(p);
    if (status == TN_OK) status = tn_sched_needs(p->sched, memory);
    if (status == TN_E_TOO_BIG) /* one tensor is larger than the device's largest allocation */
        tn_fail_more(
            status, "; to make it fit: a smaller micro-batch than %d (--ubatch), or no layers there (--gpu-layers 0)",
            p->params.n_ubatch);
    return status;
}

tn_status tn__session_plan_refresh(tn_session_plan *p) {
    if (!p->params.sched) return TN_OK;
    tn_sched_memory *memory = tn_calloc(p->placement.n_devices, sizeof *memory);
    tn_status status = memory ? tn_sched_needs(p->sched, memory) : TN_E_NOMEM;
    for (size_t d = 0; d < p->placement.n_devices && status == TN_OK; d++) {
        p->devices[d].compute = memory[d].compute;
        p->devices[d].scratch = memory[d].scratch;
        p->devices[d].missing = memory[d].missing;
    }
    tn_free(memory);
    return status;
}

size_t tn__plan_upload_bytes(const tn_session_plan *p) {
    size_t bytes = 0;
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        const tn__device_plan *plan = &p->devices[d];
        if (plan->weights || plan->cache || plan->compute || plan->scratch)
            bytes += tn_buffer_type_load_bytes(p->placement.types[d]);
    }
    return bytes;
}

/* Host memory of the session besides tensors, without the graphs themselves. */
static tn_status plan_host(tn_session_plan *p) {
    tn__device_plan *host = &p->devices[p->placement.n_devices - 1];
    size_t results, embeddings, metadata, prefixes, tiers, *staging = &host->staging;
    TN_TRY(tn__results_bytes(p, &results));
    TN_TRY(tn__embeddings_bytes(p, &embeddings));
    TN_TRY(tn__kv_host_bytes(&p->kv, &metadata));
    TN_TRY(tn__prefixes_bytes(p, &prefixes));
    TN_TRY(tn__tiers_bytes(p, &host->tier, &tiers));
    const size_t parts[] = {results,
                            embeddings,
                            metadata,
                            prefixes,
                            tiers,
                            tn__staging_bytes(&p->params, p->pipelined, tn__states_width(&p->model->h)),
                            tn__notes_bytes(p),
                            p->loads ? tn__share_bytes(p->model) + tn__division_bytes(&p->model->division) : 0,
                            tn__plan_upload_bytes(p)};
    for (size_t i = 0; i < TN__COUNT(parts); i++)
        if (!tn__add_size(*staging, parts[i], staging)) return tn_fail(TN_E_OVERFLOW, "the session's size overflows");
    host->pinned = tn__plan_upload_bytes(p) + (tn__results_type(p) ? results : 0);
    /* The scheduler's memory on the host is pinned if a device can copy from such memory. */
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        if (!tn_device_host_buffer_type(tn__plan_device(p, d))) continue;
        host->pinned += host->compute + host->scratch;
        break;
    }
    return TN_OK;
}

tn_status tn__session_plan_make(tn_session_plan *p) {
    const size_t n = p->placement.n_devices;
    tn__graphs_clear(&p->graphs);
    tn_sched_reset(p->sched);
    tn__kv_free(&p->kv);
    TN_TRY(plan_cache(p));
    TN_TRY(declare_locations(p));
    p->pipelined = can_pipeline(p);
    tn_sched_memory *memory = tn_calloc(n, sizeof *memory);
    size_t *sizes = tn_calloc(4 * n, sizeof *sizes);
    tn_status status = memory && sizes ? plan_graphs(p, memory) : TN_E_NOMEM;
    const tn__load load = tn__session_plan_load(p);
    if (status == TN_OK) status = tn__load_sizes(p->model, &load, sizes, sizes + n);
    if (status == TN_OK) status = tn__kv_sizes(&p->kv, p->placement.types, sizes + 2 * n);
    if (status == TN_OK) status = tn__adapters_sizes(p, sizes + 3 * n);
    for (size_t d = 0; status == TN_OK && d < n; d++) {
        p->devices[d] = (tn__device_plan){.device = p->devices[d].device,
                                          .adapters = sizes[3 * n + d],
                                          .weights = sizes[d],
                                          .mapped = sizes[n + d],
                                          .cache = sizes[2 * n + d],
                                          .compute = memory[d].compute,
                                          .scratch = memory[d].scratch,
                                          .missing = memory[d].missing + (p->searching ? p->devices[d].margin : 0),
                                          .margin = p->devices[d].margin,
                                          .own = tn_stream_own_bytes(tn_sched_stream(p->sched, d)),
                                          .in_order = memory[d].in_order,
                                          .lower_bound = memory[d].lower_bound};
        for (int32_t i = 0; i < p->model->h.n_layer; i++)
            p->devices[d].n_layers +=
                tn__holds_layer(&p->model->division, i) && p->placement.device_of_layer[i + 1] == (int)d;
    }
    tn_free(memory);
    tn_free(sizes);
    return status == TN_OK ? plan_host(p) : status;
}

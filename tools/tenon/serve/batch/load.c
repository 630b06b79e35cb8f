/* Loading a model, the lifetime of its engine thread, and the queue of jobs. */
#include "engine/budget_options.h"
#include "engine/context_shift.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/serving_params.h"
#include "engine/speed_cache.h"
#include "ranks/ranks.h"
#include "serve/batch/batch.h"
#include "serve/http/http.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_EMBED_QUEUED = 4 * MAX_INPUTS, SHARED_CONTEXT = 4096 };

static bool continue_loading(void *user, size_t done, size_t total) {
    (void)done;
    (void)total;
    return atomic_load(&((struct engine *)user)->served->phase) == PHASE_LOADING;
}

/* ---- Memory ---- */

static size_t planned_bytes(const tn_fit *fit, bool with_weights) {
    size_t total = 0;
    for (size_t i = 0; i < fit->n_devices; i++) {
        const tn_fit_device *d = &fit->devices[i];
        total += d->cache + d->compute + d->scratch + (with_weights ? d->weights : 0);
    }
    return total;
}

/* Asks the HTTP thread to unload an idle model; false when there is none. */
static bool request_memory(struct served *served) {
    pthread_mutex_lock(&served->lock);
    served->memory = MEMORY_REQUESTED;
    event_active(served->outbox_ready, EV_READ, 0);
    while (served->memory == MEMORY_REQUESTED && atomic_load(&served->phase) == PHASE_LOADING)
        pthread_cond_wait(&served->wake, &served->lock);
    bool freed = served->memory == MEMORY_FREED;
    served->memory = MEMORY_NOT_REQUESTED;
    pthread_mutex_unlock(&served->lock);
    return freed;
}

/* Only one model is loaded at a time, so that meanwhile this can only shrink. */
static size_t planned_by_others(const struct served *served) {
    size_t total = 0;
    for (size_t i = 0; i < served->server->n_models; i++) {
        struct served *other = served->server->models[i];
        int phase = atomic_load(&other->phase);
        if (other != served && (phase == PHASE_READY || phase == PHASE_STOPPING))
            total += atomic_load(&other->planned_bytes);
    }
    return total;
}

/* Loads the plan that --plan names, or plans. With --budget the parameters are chosen, by the peaks that were
 * measured before. */
static tn_status plan_first_session(struct served *served, const tn_session_params *params, tn_session_plan **plan) {
    const struct server *server = served->server;
    if (!params->n_budgets || params->embeddings || args_text(server->args, "plan"))
        return session_plan_from(server->args, served->model, params, plan);
    tn_session_params p = *params;
    tn_budget_ladder ladder;
    if (!p.n_ctx) p.n_ctx = budget_context(&server->budget, served->info.n_ctx_train);
    TN_TRY(tn_session_plan_to_budget(served->model, &p, &server->budget, plan, &ladder));
    char text[256];
    describe_choice(&ladder.choices[0], text, sizeof text);
    tn_log(TN_LOG_INFO, "chosen for the budget: %s", text);
    tn_budget_ladder_free(&ladder);
    return TN_OK;
}

/* Plans the sessions; `plan` receives that of the first. The other may be NULL; both share the weights. */
static tn_status plan_sessions(struct served *served, const tn_session_params *first, const tn_session_params *other,
                               tn_session_plan **plan, size_t *bytes, char *advice, size_t advice_size) {
    tn_session_plan *second = NULL;
    tn_fit fit = {0}, second_fit = {0};
    *plan = NULL;
    tn_status status = plan_first_session(served, first, plan);
    if (status == TN_OK) status = tn_session_plan_fit(*plan, &fit);
    if (status == TN_OK && other) {
        status = tn_session_plan_new(served->model, other, &second);
        if (status == TN_OK) status = tn_session_plan_fit(second, &second_fit);
    }
    advice[0] = '\0';
    if (status == TN_OK) {
        *bytes = planned_bytes(&fit, true) + planned_bytes(&second_fit, false);
        tn_session_plan *short_of = !fit.fits ? *plan : second && !second_fit.fits ? second : NULL;
        if (short_of) snprintf(advice, advice_size, "%s", tn_session_plan_advice(short_of));
        const char *warning = short_of ? "" : tn_session_plan_warning(*plan);
        if (*warning) tn_log(TN_LOG_WARN, "%s: %s", served->path, warning);
        served->planned = fit;
    } else {
        tn_fit_free(&fit);
        tn_session_plan_free(*plan);
        *plan = NULL;
    }
    tn_fit_free(&second_fit);
    tn_session_plan_free(second);
    return status;
}

/* Plans until the sessions fit: idle models are unloaded one by one if necessary. */
static tn_status plan_memory(struct served *served, const tn_session_params *first, const tn_session_params *other,
                             tn_session_plan **plan) {
    size_t limit = served->server->memory_limit;
    for (;;) {
        size_t bytes;
        char advice[512];
        TN_TRY(plan_sessions(served, first, other, plan, &bytes, advice, sizeof advice));
        size_t others = planned_by_others(served);
        bool within = !limit || (bytes <= limit && others <= limit - bytes);
        if ((!*advice || served->server->net) && within) { /* ranks say together what each of them needs */
            atomic_store(&served->planned_bytes, bytes);
            return TN_OK;
        }
        tn_fit_free(&served->planned);
        tn_session_plan_free(*plan);
        *plan = NULL;
        if (request_memory(served)) continue;
        if (!within)
            return tn_fail(TN_E_TOO_BIG,
                           "it needs %zu MiB; %zu MiB are allowed for all models, of which %zu MiB are in use",
                           bytes >> 20, limit >> 20, others >> 20);
        return tn_fail(TN_E_TOO_BIG, "it does not fit: %s", advice);
    }
}

/* ---- Loading ---- */

/* The embedder computes whole texts and keeps nothing, so its cache holds one micro-batch. */
static tn_session_params embed_params(const struct served *served, const tn_session_params *main) {
    tn_session_params p = *main;
    p.embeddings = true;
    if (p.n_ubatch > served->info.n_ctx_train && served->info.n_ctx_train > 0) p.n_ubatch = served->info.n_ctx_train;
    p.n_ctx = p.n_batch = p.n_ubatch;
    if (p.n_seqs > p.n_batch) p.n_seqs = p.n_batch;
    p.n_outputs = p.pooling == TN_POOLING_NONE ? p.n_batch : p.n_seqs;
    p.n_prefixes = p.n_checkpoints = p.n_guess = p.n_branches = 0;
    p.cache_ram = 0;
    p.cache_disk = NULL;
    return p;
}

static tn_status check_embedder(struct served *served) {
    tn_session_params got = tn_session_get_params(served->embedder);
    served->ranks = got.pooling == TN_POOLING_RANK;
    served->per_token = got.pooling == TN_POOLING_NONE;
    served->n_embd = served->ranks ? 1 : tn_session_embedding_size(served->embedder);
    served->embed_limit = got.n_ubatch;
    return TN_OK;
}

/* Drawn once, here: only this thread may use the session. */
static void draw_session_plan(struct served *served, tn_session *session) {
    tn_fit fit;
    const tn_plan *plan;
    size_t device = 0, memory;
    if (tn_session_memory(session, &fit) != TN_OK) return;
    for (size_t d = 1; d < fit.n_devices; d++)
        if (fit.devices[d].compute > fit.devices[device].compute) device = d;
    tn_fit_free(&fit);
    if (tn_session_plan_graph(tn_session_get_plan(session), true, device, &plan, &memory) != TN_OK ||
        tn_plan_export(plan, TN_PLAN_SVG, memory, &served->plan_svg) != TN_OK)
        return;
    if (tn_plan_export(plan, TN_PLAN_JSON, memory, &served->plan_json) != TN_OK) served->plan_json = NULL;
}

static tn_status make_slots(struct served *served, struct engine *e, int32_t n_batch) {
    e->slots = tn_calloc((size_t)e->n_slots, sizeof *e->slots);
    e->tokens = tn_calloc((size_t)n_batch, sizeof *e->tokens);
    e->seqs = tn_calloc((size_t)n_batch, sizeof *e->seqs);
    e->positions = tn_calloc((size_t)n_batch, sizeof *e->positions);
    e->outputs = tn_calloc((size_t)n_batch, sizeof *e->outputs);
    e->checkpoints = tn_calloc((size_t)n_batch, sizeof *e->checkpoints);
    e->guessed = tn_calloc((size_t)n_batch, sizeof *e->guessed);
    e->parents = tn_calloc((size_t)n_batch, sizeof *e->parents);
    e->guesses = tn_calloc((size_t)e->n_slots, sizeof *e->guesses);
    e->rows = tn_calloc((size_t)e->n_slots, sizeof *e->rows);
    e->next_row = tn_calloc((size_t)tn_threadpool_size(e->threads), sizeof *e->next_row);
    const tn_cache_usage cache = tn_session_cache_usage(e->session ? e->session : served->embedder);
    served->view.map = tn_calloc((size_t)cache.cells, sizeof *served->view.map);
    served->view.slots = tn_calloc((size_t)e->n_slots, sizeof *served->view.slots);
    served->view.page_map = tn_calloc((size_t)cache.pages, sizeof *served->view.page_map);
    served->view.tree = tn_calloc(TREE_ENTRIES, sizeof *served->view.tree);
    bool enough = e->slots && e->tokens && e->seqs && e->positions && e->outputs && e->checkpoints && e->rows &&
                  e->guessed && e->parents && e->guesses && e->next_row && served->view.map && served->view.slots &&
                  served->view.page_map && served->view.tree;
    for (int i = 0; enough && i < e->n_slots; i++)
        enough = (e->slots[i].tokens = tn_calloc((size_t)served->n_ctx, sizeof(tn_token))) != NULL;
    return enough ? TN_OK : TN_E_NOMEM;
}

/* The part of the shared context that one request may use. */
static void limit_requests(struct served *served, int32_t n_ctx) {
    const struct server *server = served->server;
    const int32_t trained = served->info.n_ctx_train;
    served->n_pool = n_ctx;
    served->context_note[0] = '\0';
    if (!server->params.n_ctx && !server->params.n_budgets && !server->on_demand && served->session)
        describe_open_context(n_ctx, trained, served->context_note, sizeof served->context_note);
    served->n_ctx =
        server->unified || !served->session ? n_ctx : n_ctx / server->n_slots; /* encoders share no cells */
    if (served->n_ctx > trained && trained > 0) {
        if (args_given(server->args, "ctx"))
            warn("the context of %d tokens is longer than the %d that the model was trained with: a request uses at "
                 "most that many",
                 n_ctx, trained);
        served->n_ctx = trained;
    }
    served->shifts = served->session && context_shift_wanted(server->args, served->session);
}

static tn_status load_model(struct served *served, struct engine *e) {
    tn_session_params p = served->server->params, embed;
    int n_slots = served->server->n_slots;
    p.abort = engine_should_abort;
    p.progress = continue_loading;
    p.user = e;
    serving_params(&p, n_slots, served->server->args);
    uint64_t began = tn_time_ns();
    tn_model_params model_params = model_params_from(served->server->args);
    model_params.net = served->server->net;
    TN_TRY(tn_threadpool_new(&served->server->threads, &e->threads));
    if (served->server->net) {
        ranks_divide(served->server->args, tn_net_size(served->server->net), &p, &model_params);
        speed_cache_load();
        TN_TRY(ranks_balance(served->server->net, served->path, &p, tn_threadpool_size(e->threads), &model_params));
    }
    p.threads = e->threads;
    p.n_threads = tn_threadpool_size(e->threads);
    TN_TRY(tn_model_open(served->path, &model_params, &served->model));
    TN_TRY(adapters_open(served->server->args, served->model, &p, &served->adapters));
    for (size_t i = 0; i < p.n_adapters; i++) served->scales[i] = p.adapters[i].scale;
    served->info = tn_model_get_info(served->model);
    served->tokenizer = tn_model_tokenizer(served->model);
    if (!served->tokenizer) return tn_fail(TN_E_UNSUPPORTED, "the model has no tokenizer and cannot be served");
    if (!served->info.is_causal && !served->info.is_encoder)
        return tn_fail(TN_E_UNSUPPORTED, "generating text by diffusion is not supported");
    bool generates = !served->info.is_encoder,
         embeds = served->info.is_encoder || served->server->embeddings || served->info.pooling == TN_POOLING_RANK;
    /* Limited for models that are loaded on demand, so that several fit. */
    if (!p.n_ctx && !p.n_budgets && served->server->on_demand)
        p.n_ctx = served->info.n_ctx_train < SHARED_CONTEXT ? served->info.n_ctx_train : SHARED_CONTEXT;
    embed = embed_params(served, &p);
    tn_session_plan *plan;
    TN_TRY(plan_memory(served, generates ? &p : &embed, generates && embeds ? &embed : NULL, &plan));
    tn_status status = tn_session_new(plan, generates ? &served->session : &served->embedder);
    tn_session_plan_free(plan);
    TN_TRY(status);
    if (tn_net_rank(served->server->net) > 0)
        ranks_follow(served->server->net, generates ? served->session : served->embedder, served->model);
    if (generates && embeds) TN_TRY(tn_session_open(served->model, &embed, &served->embedder));
    if (embeds) TN_TRY(check_embedder(served));
    if (served->session)
        TN_TRY(speculation_start(served->server->args, served->session, e->threads, &e->speculation));
    atomic_fetch_add(&served->planned_bytes, e->speculation.planned_bytes);
    if (served->session) TN_TRY(tn_session_warm_up(served->session));
    if (served->embedder) TN_TRY(tn_session_warm_up(served->embedder));
    lock_memory(served->server->args);
    e->session = served->session;
    draw_session_plan(served, generates ? served->session : served->embedder);
    log_session(served->path, served->model, generates ? served->session : served->embedder, began);
    p = tn_session_get_params(generates ? served->session : served->embedder);
    limit_requests(served, p.n_ctx);
    served->used_params = p;
    e->keeps_prefixes = p.n_prefixes > 0;
    e->n_batch = p.n_batch;
    e->n_piece = p.n_ubatch;
    e->n_score = p.n_outputs - n_slots - p.n_guess * GUESSING_SLOTS(n_slots);
    if (generates && (e->n_score < 1 || served->n_ctx < 2))
        return tn_fail(TN_E_INVALID, "--ctx %d is too small for %d slots", p.n_ctx, n_slots);
    TN_TRY(tn_pieces_from_tokenizer(served->tokenizer, &served->pieces));
    const char *given = served->server->chat_template;
    if (given) {
        served->info.chat_template = given;
        TN_TRY(tn_chat_template_new(served->info.chat_template, &served->chat));
    } else if (tn_chat_template_new(served->info.chat_template, &served->chat) != TN_OK) {
        warn("cannot use the model's chat template (%s); using ChatML instead", tn_error());
        TN_TRY(tn_chat_template_new(NULL, &served->chat));
    }
    int32_t n_batch = embeds && embed.n_batch > e->n_batch ? embed.n_batch : e->n_batch;
    return make_slots(served, e, n_batch);
}

static void *engine_thread(void *user) {
    struct engine *e = user;
    struct served *served = e->served;
    int loading = PHASE_LOADING;
    tn_status status = served->status = load_model(served, e);
    if (status != TN_OK) {
        snprintf(served->error, sizeof served->error, "%s", tn_error());
        served->exit_code = fail_status(status, "%s", served->path);
        atomic_store(&served->phase, PHASE_FAILED);
    } else if (atomic_compare_exchange_strong(&served->phase, &loading, PHASE_READY)) {
        engine_publish_state(e, true);
        event_active(served->outbox_ready, EV_READ, 0);
        engine_run(e);
    }
    atomic_store(&served->ended, true);
    event_active(served->outbox_ready, EV_READ, 0);
    return NULL;
}

int engine_start(struct served *served) {
    struct engine *e = tn_calloc(1, sizeof *e);
    if (!e) return fail_status(TN_E_NOMEM, "engine");
    e->served = served;
    e->n_slots = served->server->n_slots;
    served->engine = e;
    served->exit_code = EXIT_OK;
    atomic_store(&served->ended, false);
    atomic_store(&served->phase, PHASE_LOADING);
    if (pthread_create(&served->thread, NULL, engine_thread, e) != 0) {
        tn_free(e);
        served->engine = NULL;
        atomic_store(&served->phase, PHASE_ABSENT);
        return fail("cannot start the engine thread");
    }
    served->has_thread = true;
    return EXIT_OK;
}

void engine_wake(struct served *served) {
    pthread_mutex_lock(&served->lock);
    pthread_cond_signal(&served->wake);
    pthread_mutex_unlock(&served->lock);
}

void engine_join(struct served *served) {
    struct engine *e = served->engine;
    if (!served->has_thread) return;
    frontier_forget(served);
    pthread_join(served->thread, NULL);
    served->has_thread = false;
    take_pieces(served); /* before their jobs' model is freed */
    for (int i = 0; e->slots && i < e->n_slots; i++) tn_free(e->slots[i].tokens);
    tn_free(e->slots);
    tn_free(e->tokens);
    tn_free(e->seqs);
    tn_free(e->positions);
    tn_free(e->outputs);
    tn_free(e->checkpoints);
    tn_free(e->guessed);
    tn_free(e->parents);
    tn_free(e->guesses);
    tn_free(e->rows);
    tn_free(e->next_row);
    tn_free(served->view.map);
    tn_free(served->view.slots);
    tn_free(served->view.page_map);
    tn_free(served->view.tree);
    tn_fit_free(&served->view.used);
    tn_fit_free(&served->planned);
    tn_chat_template_free(served->chat);
    tn_pieces_free(served->pieces);
    tn_session_free(served->embedder);
    speculation_close(&e->speculation);
    tn_session_free(served->session);
    tn_threadpool_free(e->threads);
    tn_free(e);
    adapters_close(&served->adapters);
    tn_model_close(served->model);
    tn_free(served->plan_svg);
    tn_free(served->plan_json);
    served->engine = NULL;
    /* Counters continue when the model is loaded again. */
    const struct engine_view seen = served->view;
    served->view = (struct engine_view){.n_prompt = seen.n_prompt,
                                        .n_prompt_cached = seen.n_prompt_cached,
                                        .n_predicted = seen.n_predicted,
                                        .n_decodes = seen.n_decodes,
                                        .n_busy_sum = seen.n_busy_sum,
                                        .n_tokens_max = seen.n_tokens_max,
                                        .n_stalls = seen.n_stalls,
                                        .n_shifts = seen.n_shifts,
                                        .prompt_seconds = seen.prompt_seconds,
                                        .predicted_seconds = seen.predicted_seconds};
    served->planned = (tn_fit){0};
    atomic_store(&served->planned_bytes, 0);
    served->n_embd = 0;
    served->chat = NULL;
    served->pieces = NULL;
    served->embedder = served->session = NULL;
    served->model = NULL;
    served->tokenizer = NULL;
    served->plan_svg = served->plan_json = NULL;
    atomic_store(&served->phase, PHASE_ABSENT);
}

/* A request for embeddings may bring many short texts. Such jobs have a queue limit of their own, which is larger
 * than the number of texts in one request. */
bool engine_submit(struct served *served, struct job *const *jobs, size_t count) {
    bool embed = jobs[0]->embed;
    pthread_mutex_lock(&served->lock);
    int idle = served->server->n_slots - (int)served->view.n_busy_slots;
    bool accepted = embed ? served->n_embed_queued + (int)count <= MAX_EMBED_QUEUED
                          : served->n_queued + (int)count <= served->server->queue_limit + (idle > 0 ? idle : 0);
    for (size_t i = 0; accepted && i < count; i++) {
        jobs[i]->next = NULL;
        *served->queue_end = jobs[i];
        served->queue_end = &jobs[i]->next;
        *(embed ? &served->n_embed_queued : &served->n_queued) += 1;
    }
    if (accepted) pthread_cond_signal(&served->wake);
    pthread_mutex_unlock(&served->lock);
    return accepted;
}

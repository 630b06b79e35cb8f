/* GET /metrics: counters and gauges in Prometheus' text format, under our names and under those of llama.cpp's
 * server. */
#include "serve/serve.h"

#include "engine/loaded_model.h"

#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>

/* A metric of every loaded model. With --models-dir a label names the model. */
enum metric_kind { COUNTER, GAUGE };
struct metric {
    const char *name;
    enum metric_kind kind;
    const char *help;
    double (*value)(const struct served *served);
    enum { OURS, BOTH, THEIRS } whose; /* tenon:NAME, llamacpp:NAME, or both */
};
static double rate_of(uint64_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }
#define VALUE(name, expression)                                                                                      \
    static double name(const struct served *m) {                                                                     \
        const struct engine_view *v = &m->view;                                                                      \
        (void)v;                                                                                                     \
        return (double)(expression);                                                                                 \
    }
VALUE(prompt_tokens, v->n_prompt)
VALUE(prompt_seconds, v->prompt_seconds)
VALUE(predicted_tokens, v->n_predicted)
VALUE(predicted_seconds, v->predicted_seconds)
VALUE(decodes, v->n_decodes)
VALUE(prompt_rate, rate_of(v->n_prompt, v->prompt_seconds))
VALUE(predicted_rate, rate_of(v->n_predicted, v->predicted_seconds))
VALUE(cache_ratio, v->cache.cells ? (double)v->cache.used / v->cache.cells : 0)
VALUE(cache_cells, v->cache.used)
VALUE(prefixes_kept, v->prefixes.kept)
VALUE(prefix_cells, v->prefixes.cells)
VALUE(prefix_asked, v->prefixes.asked)
VALUE(prefix_taken, v->prefixes.taken)
VALUE(prefixes_evicted, v->prefixes.evicted)
VALUE(tier_host_limit, v->tiers.host_limit)
VALUE(tier_host_bytes, v->tiers.host_bytes)
VALUE(tier_host_tokens, v->tiers.host_tokens)
VALUE(tier_host_stored, v->tiers.host_stored)
VALUE(tier_disk_limit, v->tiers.disk_limit)
VALUE(tier_disk_bytes, v->tiers.disk_bytes)
VALUE(tier_disk_tokens, v->tiers.disk_tokens)
VALUE(tier_disk_stored, v->tiers.disk_stored)
VALUE(tier_dropped, v->tiers.dropped)
VALUE(tier_disk_failed, v->tiers.disk_failed)
VALUE(prefix_hits, v->prefixes.hits)
VALUE(prefix_misses, v->prefixes.misses)
VALUE(stalls, v->n_stalls)
VALUE(shifts, v->n_shifts)
VALUE(requests, m->server->n_requests)
VALUE(processing, v->n_busy_slots)
VALUE(deferred, m->n_queued + m->n_embed_queued)
VALUE(plans_made, v->stats.sched.plans_made)
VALUE(plans_reused, v->stats.sched.plans_reused)
VALUE(prompt_cached, v->n_prompt_cached)
VALUE(tokens_max, v->n_tokens_max)
VALUE(busy_per_decode, v->n_decodes ? (double)v->n_busy_sum / (double)v->n_decodes : 0)
/* Since the last scrape. */
VALUE(recent_prompt_rate, rate_of(v->n_prompt - m->scraped.n_prompt, v->prompt_seconds - m->scraped.prompt_seconds))
VALUE(recent_predicted_rate,
      rate_of(v->n_predicted - m->scraped.n_predicted, v->predicted_seconds - m->scraped.predicted_seconds))
VALUE(guess_steps, v->guesses.guessed_steps)
VALUE(guessed, v->guesses.guessed)
VALUE(guesses_accepted, v->guesses.accepted)
VALUE(guess_seconds, (double)v->guesses.propose_ns * 1e-9)
VALUE(guess_saved, (double)v->guesses.saved_ns * 1e-9)
static const struct metric metrics[] = {
    {"prompt_tokens_total", COUNTER, "Prompt tokens computed.", prompt_tokens, BOTH},
    {"prompt_seconds_total", COUNTER, "Time spent on prompts.", prompt_seconds, BOTH},
    {"tokens_predicted_total", COUNTER, "Tokens generated.", predicted_tokens, BOTH},
    {"tokens_predicted_seconds_total", COUNTER, "Time spent generating.", predicted_seconds, BOTH},
    {"n_decode_total", COUNTER, "Batches computed.", decodes, BOTH},
    {"prompt_tokens_seconds", GAUGE, "Prompt tokens per second, on average.", prompt_rate, OURS},
    {"predicted_tokens_seconds", GAUGE, "Tokens generated per second and request, on average.", predicted_rate, OURS},
    {"kv_cache_usage_ratio", GAUGE, "Share of KV cache cells in use.", cache_ratio, BOTH},
    {"kv_cache_tokens", GAUGE, "KV cache cells in use.", cache_cells, BOTH},
    {"prefixes_kept", GAUGE, "Conversations kept for later requests.", prefixes_kept, OURS},
    {"prefix_cells", GAUGE, "KV cache cells that only kept conversations use.", prefix_cells, OURS},
    {"prefix_tokens_asked_total", COUNTER, "Prompt tokens looked up in the KV cache.", prefix_asked, OURS},
    {"prefix_tokens_taken_total", COUNTER, "Prompt tokens taken from the KV cache.", prefix_taken, OURS},
    {"prefixes_evicted_total", COUNTER, "Kept conversations evicted from the KV cache.", prefixes_evicted, OURS},
    {"cache_ram_limit_bytes", GAUGE, "Host memory for kept conversations.", tier_host_limit, OURS},
    {"cache_ram_bytes", GAUGE, "Host memory that kept conversations use.", tier_host_bytes, OURS},
    {"cache_ram_tokens_taken_total", COUNTER, "Prompt tokens taken from host memory.", tier_host_tokens, OURS},
    {"cache_ram_blocks_stored_total", COUNTER, "Blocks of 32 tokens moved to host memory.", tier_host_stored, OURS},
    {"cache_disk_limit_bytes", GAUGE, "Disk budget for kept conversations.", tier_disk_limit, OURS},
    {"cache_disk_bytes", GAUGE, "Bytes of kept conversations on disk.", tier_disk_bytes, OURS},
    {"cache_disk_tokens_taken_total", COUNTER, "Prompt tokens taken from disk.", tier_disk_tokens, OURS},
    {"cache_disk_blocks_stored_total", COUNTER, "Blocks of 32 tokens written to disk.", tier_disk_stored, OURS},
    {"cache_blocks_dropped_total", COUNTER, "Blocks that did not fit in any tier.", tier_dropped, OURS},
    {"cache_disk_failures_total", COUNTER, "Blocks that could not be written to disk.", tier_disk_failed, OURS},
    {"prefix_hits_total", COUNTER, "Prompts that began with cached tokens.", prefix_hits, OURS},
    {"prefix_misses_total", COUNTER, "Prompts that did not.", prefix_misses, OURS},
    {"requests_moved_aside_total", COUNTER, "Times that a request was preempted and resumed later.", stalls, OURS},
    {"context_shifts_total", COUNTER, "Context shifts of requests that filled their context.", shifts, OURS},
    {"requests_total", COUNTER, "Requests for text accepted.", requests, OURS},
    {"requests_processing", GAUGE, "Busy slots.", processing, BOTH},
    {"requests_deferred", GAUGE, "Requests waiting for a slot.", deferred, BOTH},
    {"prompt_tokens_cached_total", COUNTER, "Prompt tokens that were in the KV cache already.", prompt_cached, BOTH},
    {"n_tokens_max", COUNTER, "Most tokens that a request has had in the KV cache.", tokens_max, BOTH},
    {"n_busy_slots_per_decode", GAUGE, "Busy slots per batch, on average.", busy_per_decode, BOTH},
    {"prompt_tokens_seconds", GAUGE, "Prompt tokens per second since the last scrape.", recent_prompt_rate, THEIRS},
    {"predicted_tokens_seconds", GAUGE, "Tokens generated per second since the last scrape.", recent_predicted_rate,
     THEIRS},
    {"spec_decode_num_drafts_total", COUNTER, "Steps with guessed tokens.", guess_steps, BOTH},
    {"spec_decode_num_draft_tokens_total", COUNTER, "Guessed tokens that were verified.", guessed, BOTH},
    {"spec_decode_num_accepted_tokens_total", COUNTER, "Guessed tokens that were accepted.", guesses_accepted, BOTH},
    {"spec_decode_seconds_total", COUNTER, "Time spent guessing.", guess_seconds, OURS},
    {"spec_decode_saved_seconds", GAUGE, "Estimated time saved by guessed tokens.", guess_saved, OURS},
    {"plans_made_total", COUNTER, "Memory plans made.", plans_made, OURS},
    {"plans_reused_total", COUNTER, "Runs that reused a plan.", plans_reused, OURS},
};

static void device_metric(struct evbuffer *out, const struct served *served, const char *name, const tn_fit *fit) {
    for (size_t i = 0; i < fit->n_devices; i++) {
        evbuffer_add_printf(out, "tenon:%s{device=\"%s\"", name, fit->devices[i].name);
        if (served->server->on_demand) evbuffer_add_printf(out, ",model=\"%s\"", served->alias);
        evbuffer_add_printf(out, "} %zu\n", device_bytes(&fit->devices[i]));
    }
}

static bool next_loaded(struct server *server, size_t *at, struct served **served) {
    while (*at < server->n_models) {
        *served = server->models[(*at)++];
        if (atomic_load(&(*served)->phase) == PHASE_READY) return true;
    }
    return false;
}

/* Pages of the KV cache by owner: slots one by one, pages that several slots share, kept prefixes, free. */
static void page_metric(struct evbuffer *out, const struct served *served) {
    const struct engine_view *v = &served->view;
    const struct server *server = served->server;
    const struct {
        const char *owner;
        int32_t n;
    } rows[] = {{"shared", v->n_shared_pages}, {"prefixes", v->n_kept_pages}, {"free", v->n_free_pages}};
    const char *before = server->on_demand ? ",model=\"" : "", *model = server->on_demand ? served->alias : "";
    const char *after = server->on_demand ? "\"" : "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        evbuffer_add_printf(out, "tenon:kv_cache_pages{owner=\"%s\"%s%s%s} %d\n", rows[i].owner, before, model, after,
                            (int)rows[i].n);
    for (int i = 0; i < server->n_slots; i++)
        evbuffer_add_printf(out, "tenon:kv_cache_pages{owner=\"slot %d\"%s%s%s} %d\n", i, before, model, after,
                            (int)v->slots[i].n_pages);
}

/* One metric of all loaded models under one of the two prefixes. */
static void write_metric(struct server *server, struct evbuffer *out, const struct metric *m, const char *prefix) {
    struct served *served;
    evbuffer_add_printf(out, "# HELP %s:%s %s\n# TYPE %s:%s %s\n", prefix, m->name, m->help, prefix, m->name,
                        m->kind == COUNTER ? "counter" : "gauge");
    for (size_t k = 0; next_loaded(server, &k, &served);) {
        pthread_mutex_lock(&served->lock);
        evbuffer_add_printf(out, "%s:%s", prefix, m->name);
        if (server->on_demand) evbuffer_add_printf(out, "{model=\"%s\"}", served->alias);
        evbuffer_add_printf(out, " %.10g\n", m->value(served));
        pthread_mutex_unlock(&served->lock);
    }
}

static void write_metrics(struct server *server, struct evbuffer *out) {
    struct served *served;
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        if (metrics[i].whose != THEIRS) write_metric(server, out, &metrics[i], "tenon");
        if (metrics[i].whose != OURS) write_metric(server, out, &metrics[i], "llamacpp");
    }
    for (size_t k = 0; next_loaded(server, &k, &served);) {
        pthread_mutex_lock(&served->lock);
        served->scraped = (struct scraped_view){served->view.n_prompt, served->view.n_predicted,
                                                served->view.prompt_seconds, served->view.predicted_seconds};
        pthread_mutex_unlock(&served->lock);
    }
    evbuffer_add_printf(out, "# HELP tenon:kv_cache_pages Pages of the KV cache by owner.\n"
                             "# TYPE tenon:kv_cache_pages gauge\n");
    for (size_t k = 0; next_loaded(server, &k, &served);) {
        pthread_mutex_lock(&served->lock);
        page_metric(out, served);
        pthread_mutex_unlock(&served->lock);
    }
    for (int planned = 1; planned >= 0; planned--) {
        const char *name = planned ? "memory_planned_bytes" : "memory_used_bytes";
        evbuffer_add_printf(out, "# HELP tenon:%s %s\n# TYPE tenon:%s gauge\n", name,
                            planned ? "Bytes planned before loading." : "Bytes in use.", name);
        for (size_t k = 0; next_loaded(server, &k, &served);) {
            pthread_mutex_lock(&served->lock);
            device_metric(out, served, name, planned ? &served->planned : &served->view.used);
            pthread_mutex_unlock(&served->lock);
        }
    }
}

char *metrics_text(struct server *server) {
    struct evbuffer *out = evbuffer_new();
    char *text = NULL;
    if (!out) return NULL;
    write_metrics(server, out);
    const size_t length = evbuffer_get_length(out);
    if ((text = malloc(length + 1))) {
        evbuffer_copyout(out, text, length);
        text[length] = '\0';
    }
    evbuffer_free(out);
    return text;
}

void serve_metrics(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    struct server *server = served->server;
    char *text = NULL, started[32];
    (void)body;
    if (!server->show_metrics)
        problem_set(&problem, 501, "metrics are off; start the server with --metrics");
    else if (served->sleeping && !server->on_demand) {
        /* Metrics from before the model was unloaded for inactivity; rates are reported once. */
        text = served->last_metrics[0] ? served->last_metrics[0] : strdup(served->last_metrics[1]);
        served->last_metrics[0] = NULL;
    } else
        text = metrics_text(server);
    if (!text && !problem.code) problem_set(&problem, 500, "out of memory");
    if (problem.code) {
        reply_problem(server, http, &problem);
        return;
    }
    snprintf(started, sizeof started, "%lld", (long long)server->started);
    evhttp_add_header(evhttp_request_get_output_headers(http), "Process-Start-Time-Unix", started);
    reply_text(server, http, 200, "text/plain; version=0.0.4; charset=utf-8", text, strlen(text));
    free(text);
}

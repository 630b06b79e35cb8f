/* Information about the server: health, models, slots, metrics; and tokenizing. */
#include "serve.h"

#include "engine/loaded_model.h"

#include <event2/buffer.h>
#include <event2/keyvalq_struct.h>
#include <stdlib.h>
#include <string.h>

/* A text that may be invalid UTF-8, such as a file name or metadata. */
static json_t *text_json(const char *text) {
    json_t *string = text ? json_string(text) : json_null();
    return string ? string : json_string("?");
}

void serve_health(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    struct server *server = served->server;
    (void)body;
    if (!server->stopping && (server->on_demand || atomic_load(&served->phase) == PHASE_READY)) {
        reply_json(server, http, 200, json_pack("{s:s}", "status", "ok"));
        return;
    }
    problem_set(&problem, 503, server->stopping ? "the server is stopping" : "the model is being loaded");
    reply_problem(server, http, &problem);
}

static const char *vocab_type(const struct served *served) {
    switch (tn_tokenizer_get_kind(served->tokenizer)) {
#define TN_X(name, model, text)                                                                                      \
    case TN_TOKENIZER_##name: return model;
        TN_TOKENIZER_KIND_TABLE(TN_X)
#undef TN_X
    }
    return "";
}

static json_t *model_json(const struct served *served) {
    static const char *const states[] = {"unloaded", "loading", "loaded", "unloading", "failed"};
    int phase = atomic_load(&served->phase);
    json_t *model =
        json_pack("{s:s, s:s, s:I, s:s, s:{s:s}}", "id", served->alias, "object", "model", "created",
                  (json_int_t)served->server->started, "owned_by", "tenon", "status", "value", states[phase]);
    if (phase != PHASE_READY) return model;
    const tn_model_info *i = &served->info;
    json_object_set_new(model, "meta",
                        json_pack("{s:s, s:i, s:i, s:i, s:I, s:I}", "vocab_type", vocab_type(served), "n_vocab",
                                  (int)i->n_vocab, "n_ctx_train", (int)i->n_ctx_train, "n_embd", (int)i->n_embd,
                                  "n_params", (json_int_t)i->n_params, "size", (json_int_t)i->bytes));
    return model;
}

void serve_models(struct served *served, struct evhttp_request *http, json_t *body) {
    struct server *server = served->server;
    json_t *list = json_array();
    (void)body;
    for (size_t i = 0; i < server->n_models; i++) json_array_append_new(list, model_json(server->models[i]));
    reply_json(server, http, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

static json_t *special_json(struct served *served, tn_special role) {
    size_t length;
    return text_json(tn_token_text(served->tokenizer, tn_tokenizer_special(served->tokenizer, role), &length));
}

void serve_props(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    const tn_sampler_params *s = &served->server->sampling;
    json_t *params = sampling_json(s, s->seed, (int32_t)served->server->default_predict);
    json_t *settings = json_pack("{s:i, s:o}", "n_ctx", (int)served->n_ctx, "params", params);
    reply_json(served->server, http, 200,
               json_pack("{s:o, s:i, s:o, s:s, s:o, s:o, s:o, s:o}", "default_generation_settings", settings,
                         "total_slots", served->server->n_slots, "model_path", text_json(served->path), "model_alias",
                         served->alias, "chat_template", text_json(served->info.chat_template), "bos_token",
                         special_json(served, TN_SPECIAL_BOS), "eos_token", special_json(served, TN_SPECIAL_EOS),
                         "build_info", json_sprintf("tenon %s", tn_version())));
}

static bool query_is(struct evhttp_request *http, const char *name, const char *value) {
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(http));
    struct evkeyvalq values;
    bool same = false;
    if (!query || evhttp_parse_query_str(query, &values) != 0) return false;
    const char *given = evhttp_find_header(&values, name);
    same = given && strcmp(given, value) == 0;
    evhttp_clear_headers(&values);
    return same;
}

/* Parameters of the slot's request; for an idle slot the defaults. */
static json_t *slot_params(const struct served *served, const struct slot_view *s) {
    const struct server *server = served->server;
    if (s->busy) return sampling_json(&s->sampling, s->sampling.seed, s->n_predict);
    return sampling_json(&server->sampling, server->sampling.seed, (int32_t)server->default_predict);
}

void serve_slots(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    (void)body;
    if (!served->server->show_slots) {
        problem_set(&problem, 501, "slots are hidden; start the server without --no-slots");
        reply_problem(served->server, http, &problem);
        return;
    }
    json_t *list = json_array();
    int idle = 0;
    pthread_mutex_lock(&served->lock);
    for (int i = 0; i < served->server->n_slots; i++) {
        const struct slot_view *s = &served->view.slots[i];
        idle += !s->busy;
        json_array_append_new(
            list, json_pack("{s:i, s:I, s:i, s:b, s:b, s:i, s:i, s:i, s:i, s:{s:b, s:i, s:i}, s:o}", "id", i,
                            "id_task", (json_int_t)s->task, "n_ctx", (int)served->n_ctx, "is_processing",
                            (int)s->busy, "is_moved_aside", (int)s->stalled, "n_prompt_tokens", (int)s->n_prompt,
                            "n_cached_tokens", (int)s->n_cached, "n_cells", (int)s->n_done, "n_pages",
                            (int)s->n_pages, "next_token", "has_next_token", (int)s->busy, "n_decoded",
                            (int)s->n_predicted, "n_remain", (int)s->n_remaining, "params", slot_params(served, s)));
    }
    pthread_mutex_unlock(&served->lock);
    if (!idle && query_is(http, "fail_on_no_slot", "1")) {
        json_decref(list);
        problem_set(&problem, 503, "no slot is idle");
        reply_problem(served->server, http, &problem);
        return;
    }
    reply_json(served->server, http, 200, list);
}

/* ---- Metrics ---- */

/* A metric of every loaded model. With --models-dir a label names the model. */
enum metric_kind { COUNTER, GAUGE };
struct metric {
    const char *name;
    enum metric_kind kind;
    const char *help;
    double (*value)(const struct served *served);
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
static const struct metric metrics[] = {
    {"prompt_tokens_total", COUNTER, "Prompt tokens computed.", prompt_tokens},
    {"prompt_seconds_total", COUNTER, "Time spent on prompts.", prompt_seconds},
    {"tokens_predicted_total", COUNTER, "Tokens generated.", predicted_tokens},
    {"tokens_predicted_seconds_total", COUNTER, "Time spent generating.", predicted_seconds},
    {"n_decode_total", COUNTER, "Batches computed.", decodes},
    {"prompt_tokens_seconds", GAUGE, "Prompt tokens per second, on average.", prompt_rate},
    {"predicted_tokens_seconds", GAUGE, "Tokens generated per second and request, on average.", predicted_rate},
    {"kv_cache_usage_ratio", GAUGE, "Share of KV cache cells in use.", cache_ratio},
    {"kv_cache_tokens", GAUGE, "KV cache cells in use.", cache_cells},
    {"prefixes_kept", GAUGE, "Conversations kept for later requests.", prefixes_kept},
    {"prefix_cells", GAUGE, "KV cache cells that only kept conversations use.", prefix_cells},
    {"prefix_tokens_asked_total", COUNTER, "Prompt tokens looked for in the KV cache.", prefix_asked},
    {"prefix_tokens_taken_total", COUNTER, "Prompt tokens taken from the KV cache.", prefix_taken},
    {"prefixes_evicted_total", COUNTER, "Kept conversations that made room for others.", prefixes_evicted},
    {"cache_ram_limit_bytes", GAUGE, "Host memory for kept conversations.", tier_host_limit},
    {"cache_ram_bytes", GAUGE, "Host memory that kept conversations use.", tier_host_bytes},
    {"cache_ram_tokens_taken_total", COUNTER, "Prompt tokens taken from host memory.", tier_host_tokens},
    {"cache_ram_blocks_stored_total", COUNTER, "Blocks of 32 tokens moved to host memory.", tier_host_stored},
    {"cache_disk_limit_bytes", GAUGE, "Disk budget for kept conversations.", tier_disk_limit},
    {"cache_disk_bytes", GAUGE, "Bytes of kept conversations on disk.", tier_disk_bytes},
    {"cache_disk_tokens_taken_total", COUNTER, "Prompt tokens taken from disk.", tier_disk_tokens},
    {"cache_disk_blocks_stored_total", COUNTER, "Blocks of 32 tokens written to disk.", tier_disk_stored},
    {"cache_blocks_dropped_total", COUNTER, "Blocks that no tier had room for.", tier_dropped},
    {"cache_disk_failures_total", COUNTER, "Blocks that could not be written to disk.", tier_disk_failed},
    {"prefix_hits_total", COUNTER, "Prompts that began with cached tokens.", prefix_hits},
    {"prefix_misses_total", COUNTER, "Prompts that did not.", prefix_misses},
    {"requests_moved_aside_total", COUNTER, "Times that a request made room for others and went on later.", stalls},
    {"context_shifts_total", COUNTER, "Times that a request filled its context and went on.", shifts},
    {"requests_total", COUNTER, "Requests for text accepted.", requests},
    {"requests_processing", GAUGE, "Busy slots.", processing},
    {"requests_deferred", GAUGE, "Requests waiting for a slot.", deferred},
    {"plans_made_total", COUNTER, "Memory plans made.", plans_made},
    {"plans_reused_total", COUNTER, "Runs that reused a plan.", plans_reused},
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

static void write_metrics(struct server *server, struct evbuffer *out) {
    struct served *served;
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        const struct metric *m = &metrics[i];
        evbuffer_add_printf(out, "# HELP tenon:%s %s\n# TYPE tenon:%s %s\n", m->name, m->help, m->name,
                            m->kind == COUNTER ? "counter" : "gauge");
        for (size_t k = 0; next_loaded(server, &k, &served);) {
            pthread_mutex_lock(&served->lock);
            evbuffer_add_printf(out, "tenon:%s", m->name);
            if (server->on_demand) evbuffer_add_printf(out, "{model=\"%s\"}", served->alias);
            evbuffer_add_printf(out, " %.10g\n", m->value(served));
            pthread_mutex_unlock(&served->lock);
        }
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

void serve_metrics(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    (void)body;
    struct evbuffer *out = served->server->show_metrics ? evbuffer_new() : NULL;
    if (!out) {
        if (served->server->show_metrics)
            problem_set(&problem, 500, "out of memory");
        else
            problem_set(&problem, 501, "metrics are off; start the server with --metrics");
        reply_problem(served->server, http, &problem);
        return;
    }
    write_metrics(served->server, out);
    reply_text(served->server, http, 200, "text/plain; version=0.0.4; charset=utf-8", evbuffer_pullup(out, -1),
               evbuffer_get_length(out));
    evbuffer_free(out);
}

void serve_plan(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    (void)body;
    if (served->plan_svg) {
        reply_text(served->server, http, 200, "image/svg+xml", served->plan_svg, served->plan_svg_length);
        return;
    }
    problem_set(&problem, 404, "there is no picture of the memory plan");
    reply_problem(served->server, http, &problem);
}

/* ---- Tokens ---- */

void serve_tokenize(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    const char *text = NULL;
    bool special = false, parse = true, pieces = false;
    tn_tokens tokens = {0};
    bool fine = field_text(body, "prompt", &text, &problem) && field_text(body, "content", &text, &problem) &&
                field_bool(body, "add_special", &special, &problem) &&
                field_bool(body, "parse_special", &parse, &problem) &&
                field_bool(body, "with_pieces", &pieces, &problem);
    if (fine && !text) fine = problem_set(&problem, 400, "content is missing");
    if (fine && tn_tokenizer_encode(served->tokenizer, text, strlen(text),
                                    (special ? TN_ENCODE_ADD_SPECIAL : 0) | (parse ? TN_ENCODE_PARSE_SPECIAL : 0),
                                    &tokens) != TN_OK)
        fine = problem_status(&problem, TN_E_INVALID, "content");
    if (!fine) {
        reply_problem(served->server, http, &problem);
        return;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < tokens.count; i++) {
        tn_token t = tokens.ids[i];
        size_t length = 0;
        const char *piece = pieces ? tn_token_piece(served->tokenizer, t, &length) : NULL;
        json_t *shown = piece ? json_stringn(piece, length) : NULL;
        if (pieces)
            json_array_append_new(
                list, json_pack("{s:i, s:o}", "id", (int)t, "piece", shown ? shown : token_bytes_json(served, t)));
        else
            json_array_append_new(list, json_integer(t));
    }
    tn_tokens_free(&tokens);
    reply_json(served->server, http, 200, json_pack("{s:o}", "tokens", list));
}

void serve_detokenize(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    json_t *list = json_object_get(body, "tokens"), *item;
    tn_detokenizer *detokenizer = NULL;
    size_t i, length;
    bool fine = json_is_array(list) || problem_set(&problem, 400, "tokens must be a list of token ids");
    json_array_foreach(list, i, item) {
        json_int_t id = json_integer_value(item);
        if (fine && (!json_is_integer(item) || id < 0 || id >= served->info.n_vocab))
            fine = problem_set(&problem, 400, "tokens[%zu] is not a token id", i);
    }
    if (fine && tn_detokenizer_new(served->tokenizer, TN_DECODE_SPECIAL | TN_DECODE_CONTINUE, &detokenizer) != TN_OK)
        fine = problem_set(&problem, 500, "%s", tn_error());
    struct evbuffer *out = fine ? evbuffer_new() : NULL;
    if (fine && !out) fine = problem_set(&problem, 500, "out of memory");
    if (!fine) {
        tn_detokenizer_free(detokenizer);
        reply_problem(served->server, http, &problem);
        return;
    }
    json_array_foreach(list, i, item) {
        const char *text = tn_detokenizer_push(detokenizer, (tn_token)json_integer_value(item), &length);
        evbuffer_add(out, text, length);
    }
    const char *rest = tn_detokenizer_finish(detokenizer, &length);
    evbuffer_add(out, rest, length);
    length = evbuffer_get_length(out);
    const char *whole = length ? (const char *)evbuffer_pullup(out, -1) : "";
    json_t *content = json_stringn(whole ? whole : "", whole ? length : 0);
    reply_json(served->server, http, 200, json_pack("{s:o}", "content", content ? content : json_string("")));
    evbuffer_free(out);
    tn_detokenizer_free(detokenizer);
}

void serve_tokenizer_info(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    reply_json(served->server, http, 200,
               json_pack("{s:s, s:s, s:i, s:b, s:b, s:o, s:o, s:o}", "type", vocab_type(served), "pre",
                         tn_tokenizer_pre(served->tokenizer), "n_vocab", (int)tn_tokenizer_size(served->tokenizer),
                         "add_bos", (int)tn_tokenizer_adds_bos(served->tokenizer), "add_eos",
                         (int)tn_tokenizer_adds_eos(served->tokenizer), "bos_token",
                         special_json(served, TN_SPECIAL_BOS), "eos_token", special_json(served, TN_SPECIAL_EOS),
                         "chat_template", text_json(served->info.chat_template)));
}

/* Information about the server: health, models, slots, metrics; and tokenizing. */
#include "serve/serve.h"

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
    if (!server->stopping && (server->on_demand || served->sleeping || atomic_load(&served->phase) == PHASE_READY)) {
        reply_json(server, http, 200, json_pack("{s:s}", "status", "ok"));
        return;
    }
    problem_set(&problem, 503, server->stopping ? "the server is stopping" : "the model is being loaded");
    reply_problem(server, http, &problem);
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

static const char *vocab_type(const struct served *served) {
    switch (tn_tokenizer_get_kind(served->tokenizer)) {
#define TN_X(name, model, text)                                                                                      \
    case TN_TOKENIZER_##name: return model;
        TN_TOKENIZER_KIND_TABLE(TN_X)
#undef TN_X
    }
    return "";
}

/* "a,b": ["a", "b"]. */
static json_t *names_json(const char *names) {
    json_t *list = json_array();
    while (names && *names) {
        const size_t n = strcspn(names, ",");
        json_t *name = n ? json_stringn(names, n) : NULL;
        if (name) json_array_append_new(list, name);
        names += n + (names[n] == ',');
    }
    return list;
}

static json_t *model_json(const struct served *served) {
    static const char *const states[] = {"unloaded", "loading", "loaded", "unloading", "failed"};
    const struct server *server = served->server;
    int phase = atomic_load(&served->phase);
    const char *state = phase == PHASE_ABSENT && served->error[0] ? "failed"
                        : phase == PHASE_ABSENT && served->wanted ? "loading"
                                                                  : states[phase];
    json_t *model = json_pack("{s:s, s:s, s:I, s:s, s:{s:s}}", "id", served->alias, "object", "model", "created",
                              (json_int_t)server->started, "owned_by", "tenon", "status", "value", state);
    const char *names = server->on_demand ? served->alias : server->aliases;
    json_object_set_new(model, "aliases", names_json(names ? names : served->alias));
    json_object_set_new(model, "tags", names_json(server->on_demand ? NULL : server->tags));
    if (phase != PHASE_READY) return model;
    const tn_model_info *i = &served->info;
    json_object_set_new(model, "meta",
                        json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I}", "vocab_type", vocab_type(served), "n_vocab",
                                  (int)i->n_vocab, "n_ctx", (int)served->n_ctx, "n_ctx_train", (int)i->n_ctx_train,
                                  "n_embd", (int)i->n_embd, "n_params", (json_int_t)i->n_params, "size",
                                  (json_int_t)i->bytes));
    json_t *can = json_array();
    if (served->session) json_array_append_new(can, json_string("completion"));
    if (served->embedder) json_array_append_new(can, json_string(served->ranks ? "rerank" : "embedding"));
    json_object_set_new(model, "capabilities", can);
    return model;
}

void serve_models(struct served *served, struct evhttp_request *http, json_t *body) {
    struct server *server = served->server;
    json_t *list = json_array();
    (void)body;
    if (query_is(http, "reload", "1")) models_reload(server);
    for (size_t i = 0; i < server->n_models; i++)
        if (!server->models[i]->hidden) json_array_append_new(list, model_json(server->models[i]));
    /* "models" has the form of Ollama's list, which some clients expect here. */
    json_t *names = json_array(), *one;
    size_t i;
    json_array_foreach(list, i, one) json_array_append_new(
        names, json_pack("{s:O, s:O, s:O?}", "name", json_object_get(one, "id"), "model", json_object_get(one, "id"),
                         "capabilities", json_object_get(one, "capabilities")));
    reply_json(server, http, 200, json_pack("{s:s, s:o, s:o}", "object", "list", "data", list, "models", names));
}

void serve_model(struct served *served, struct evhttp_request *http, json_t *body) {
    struct server *server = served->server;
    struct problem problem = {0};
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(http)), *name = strstr(path, "/models/");
    size_t length = 0;
    char *id = evhttp_uridecode(name ? name + strlen("/models/") : "", 0, &length);
    struct served *found = id && *id ? models_find(server, id) : NULL;
    (void)body;
    free(id);
    if (found) {
        reply_json(server, http, 200, model_json(found));
        return;
    }
    problem_set(&problem, 404, "there is no model of this name; GET /v1/models lists them");
    problem.more = json_pack("{s:s}", "code", "model_not_found");
    reply_problem(server, http, &problem);
}

static json_t *special_json(struct served *served, tn_special role) {
    size_t length;
    return text_json(tn_token_text(served->tokenizer, tn_tokenizer_special(served->tokenizer, role), &length));
}

json_t *props_json(struct served *served) {
    const tn_sampler_params *s = &served->server->sampling;
    json_t *params = sampling_json(s, s->seed, (int32_t)served->server->default_predict);
    json_t *settings = json_pack("{s:i, s:o}", "n_ctx", (int)served->n_ctx, "params", params);
    return json_pack("{s:o, s:i, s:o, s:s, s:o, s:o, s:o, s:s, s:b, s:{s:b, s:b}}", "default_generation_settings",
                     settings, "total_slots", served->server->n_slots, "model_path", text_json(served->path),
                     "model_alias", served->alias, "chat_template", text_json(served->info.chat_template),
                     "bos_token", special_json(served, TN_SPECIAL_BOS), "eos_token",
                     special_json(served, TN_SPECIAL_EOS), "build_info", system_fingerprint(), "is_sleeping", 0,
                     "modalities", "vision", 0, "audio", 0);
}

void serve_props(struct served *served, struct evhttp_request *http, json_t *body) {
    struct server *server = served->server;
    struct problem problem = {0};
    (void)body;
    json_t *props = atomic_load(&served->phase) == PHASE_READY ? props_json(served)
                    : served->sleeping                         ? json_copy(served->props)
                                                               : NULL;
    if (!props && server->on_demand) props = json_object();
    if (props && server->on_demand) {
        json_object_set_new(props, "role", json_string("router"));
        json_object_set_new(props, "max_instances", json_integer(server->models_max));
        json_object_set_new(props, "models_autoload", json_boolean(server->autoload));
        json_object_set_new(props, "build_info", json_string(system_fingerprint()));
    }
    if (props) {
        reply_json(server, http, 200, props);
        return;
    }
    problem_set(&problem, 503, "the model is being loaded");
    reply_problem(server, http, &problem);
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
    served->state_wanted = true;
    for (int i = 0; i < served->server->n_slots; i++) {
        const struct slot_view *s = &served->view.slots[i];
        idle += !s->busy;
        json_array_append_new(
            list, json_pack("{s:i, s:I, s:i, s:b, s:b, s:i, s:i, s:i, s:i, s:[{s:b, s:i, s:i}], s:o*}", "id", i,
                            "id_task", (json_int_t)s->task, "n_ctx", (int)served->n_ctx, "is_processing",
                            (int)s->busy, "is_moved_aside", (int)s->stalled, "n_prompt_tokens", (int)s->n_prompt,
                            "n_cached_tokens", (int)s->n_cached, "n_cells", (int)s->n_done, "n_pages",
                            (int)s->n_pages, "next_token", "has_next_token", (int)s->busy, "n_decoded",
                            s->busy ? (int)s->n_predicted : 0, "n_remain", s->busy ? (int)s->n_remaining : -1,
                            "params", s->busy ? sampling_json(&s->sampling, s->sampling.seed, s->n_predict) : NULL));
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

static void reply_plan(struct served *served, struct evhttp_request *http, const char *type, const char *text) {
    struct problem problem = {0};
    if (text) {
        reply_text(served->server, http, 200, type, text, strlen(text));
        return;
    }
    problem_set(&problem, 404, "there is no picture of the memory plan");
    reply_problem(served->server, http, &problem);
}

void serve_plan(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    reply_plan(served, http, "image/svg+xml", served->plan_svg);
}

void serve_plan_list(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    reply_plan(served, http, "application/json; charset=utf-8", served->plan_json);
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

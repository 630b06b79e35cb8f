/* Ollama's API: /api/chat, /api/generate, /api/embed and the lists of models. Answers are lines of JSON. */
#include "serve/api/chat_request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- Requests ---- */

static const struct {
    const char *theirs, *ours;
} option_names[] = {{"num_predict", "max_tokens"},
                    {"num_keep", "n_keep"},
                    {"temperature", "temperature"},
                    {"top_k", "top_k"},
                    {"top_p", "top_p"},
                    {"min_p", "min_p"},
                    {"typical_p", "typical_p"},
                    {"seed", "seed"},
                    {"stop", "stop"},
                    {"repeat_penalty", "repeat_penalty"},
                    {"repeat_last_n", "repeat_last_n"},
                    {"presence_penalty", "presence_penalty"},
                    {"frequency_penalty", "frequency_penalty"},
                    {"mirostat", "mirostat"},
                    {"mirostat_tau", "mirostat_tau"},
                    {"mirostat_eta", "mirostat_eta"}};

/* Translates options, format and think to fields of a chat completion. */
static json_t *translate_options(json_t *body, struct problem *problem) {
    json_t *options = NULL, *tools = NULL, *format = json_object_get(body, "format");
    json_t *think = json_object_get(body, "think");
    if (!field_object(body, "options", &options, problem) || !field_list(body, "tools", &tools, problem)) return NULL;
    if ((format && !json_is_null(format) && !json_is_string(format) && !json_is_object(format)) ||
        (think && !json_is_null(think) && !json_is_string(think) && !json_is_boolean(think))) {
        problem_set(problem, 400, "format must be \"json\" or a schema, think true, false or a level");
        return NULL;
    }
    json_t *out = json_object();
    if (!out) {
        problem_set(problem, 500, "out of memory");
        return NULL;
    }
    for (size_t i = 0; i < sizeof option_names / sizeof *option_names; i++) {
        json_t *value = json_object_get(options, option_names[i].theirs);
        if (!value) continue;
        /* -1 and -2: up to the context. */
        if (i == 0 && json_is_integer(value) && json_integer_value(value) < 0) continue;
        json_object_set(out, option_names[i].ours, value);
    }
    if (json_is_string(format) && json_string_length(format))
        json_object_set_new(out, "response_format", json_pack("{s:s}", "type", "json_object"));
    if (json_is_object(format)) json_object_set(out, "json_schema", format);
    if (json_is_boolean(think)) json_object_set(out, "enable_thinking", think);
    if (json_is_string(think)) json_object_set(out, "reasoning_effort", think);
    if (tools) json_object_set(out, "tools", tools);
    return out;
}

/* Calls of earlier turns have no ids there. */
static bool translate_ollama_messages(json_t *out, json_t *messages, struct problem *problem) {
    json_t *list = json_array(), *message, *call;
    size_t i, k;
    json_array_foreach(messages, i, message) {
        json_t *copy = json_deep_copy(message);
        if (json_array_size(json_object_get(copy, "images"))) {
            json_decref(copy);
            json_decref(list);
            return problem_set(problem, 400, "image input is not supported by this model");
        }
        json_object_del(copy, "images");
        json_array_foreach(json_object_get(copy, "tool_calls"), k, call) {
            if (!json_object_get(call, "id")) json_object_set_new(call, "id", json_sprintf("call_%zu_%zu", i, k));
            if (!json_object_get(call, "type")) json_object_set_new(call, "type", json_string("function"));
        }
        json_t *thinking = json_object_get(copy, "thinking");
        if (json_is_string(thinking)) json_object_set(copy, "reasoning_content", thinking);
        json_array_append_new(list, copy);
    }
    json_object_set_new(out, "messages", list);
    return true;
}

/* ---- Responses ---- */

static json_t *time_json(time_t seconds) {
    char text[40] = "";
    struct tm utc;
    if (gmtime_r(&seconds, &utc)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.000000Z", &utc);
    return json_string(text);
}

static bool is_generate(const struct request *r) { return json_is_true(json_object_get(r->extra, "generate")); }

static json_t *ollama_line(const struct request *r, json_t *text, json_t *thinking, json_t *calls, bool done) {
    json_t *line = json_pack("{s:s, s:o}", "model", r->served->alias, "created_at", time_json(time(NULL)));
    json_t *to = line;
    if (!is_generate(r)) {
        to = json_pack("{s:s}", "role", "assistant");
        json_object_set_new(line, "message", to);
    }
    json_object_set_new(to, is_generate(r) ? "response" : "content", text);
    if (thinking) json_object_set_new(to, "thinking", thinking);
    if (calls) json_object_set_new(to, "tool_calls", calls);
    json_object_set_new(line, "done", json_boolean(done));
    return line;
}

static void send_line(struct request *r, json_t *line) {
    char *text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    if (text) stream_send_raw(r, text);
    if (text) stream_send_raw(r, "\n");
    free(text);
}

static tn_status send_ollama_event(void *user, const tn_chat_event *event) {
    struct request *r = user;
    if (event->kind != TN_CHAT_CONTENT && event->kind != TN_CHAT_REASONING) return TN_OK;
    json_t *text = json_stringn(event->text, event->length);
    if (!text) text = json_string("\xef\xbf\xbd");
    if (event->kind == TN_CHAT_CONTENT)
        send_line(r, ollama_line(r, text, NULL, NULL, false));
    else
        send_line(r, ollama_line(r, json_string(""), text, NULL, false));
    return TN_OK;
}

static void ollama_piece(struct request *r, struct job *job, const struct piece *p) {
    if (!chat_feed(job, p, r->stream ? send_ollama_event : NULL, r))
        snprintf(r->failed, sizeof r->failed, "%s", tn_error());
}

/* Calls without ids, their arguments as objects. */
static json_t *ollama_calls(json_t *calls) {
    json_t *list = json_array_size(calls) ? json_array() : NULL, *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        json_t *function = json_object_get(call, "function"), *text = json_object_get(function, "arguments");
        json_t *arguments = json_is_string(text) ? json_loads(json_string_value(text), 0, NULL) : NULL;
        json_array_append_new(list,
                              json_pack("{s:{s:O?, s:o}}", "function", "name", json_object_get(function, "name"),
                                        "arguments", arguments ? arguments : json_object()));
    }
    return list;
}

static void add_durations(const struct request *r, json_t *line) {
    const struct job *job = r->jobs[0];
    const struct job_stats *s = &job->stats;
    json_object_set_new(line, "done_reason", json_string(job->finish == FINISH_LIMIT ? "length" : "stop"));
    json_object_set_new(line, "total_duration", json_integer((json_int_t)(tn_time_ns() - r->begin)));
    json_object_set_new(line, "load_duration", json_integer(0));
    json_object_set_new(line, "prompt_eval_count", json_integer(s->n_prompt));
    json_object_set_new(line, "prompt_eval_duration", json_integer((json_int_t)(s->prompt_ms * 1e6)));
    json_object_set_new(line, "eval_count", json_integer(s->n_predicted));
    json_object_set_new(line, "eval_duration", json_integer((json_int_t)(s->predicted_ms * 1e6)));
}

static void ollama_end(struct request *r) {
    json_t *message = chat_message(r->jobs[0]), *text = json_object_get(message, "content");
    json_t *thought = json_object_get(message, "reasoning_content");
    json_t *calls = ollama_calls(json_object_get(message, "tool_calls"));
    if (r->stream && calls) send_line(r, ollama_line(r, json_string(""), NULL, json_incref(calls), false));
    json_t *last =
        r->stream ? ollama_line(r, json_string(""), NULL, NULL, true)
                  : ollama_line(r, json_is_string(text) ? json_incref(text) : json_string(""),
                                json_string_length(thought) ? json_incref(thought) : NULL, json_incref(calls), true);
    add_durations(r, last);
    json_decref(calls);
    json_decref(message);
    if (!r->stream) {
        reply_json(r->served->server, request_take(r), 200, last);
        return;
    }
    send_line(r, last);
    stream_end(r);
}

static const struct response_format ollama_format = {.piece = ollama_piece, .end = ollama_end};

static void serve_ollama(struct served *served, struct evhttp_request *http, json_t *body, json_t *messages,
                         bool generate) {
    struct problem problem = {0};
    struct request *r = request_new(served, http, &ollama_format, "ollama-");
    json_t *chat = r ? translate_options(body, &problem) : NULL;
    bool fine = chat || problem.code ? !problem.code : problem_set(&problem, 500, "out of memory");
    if (fine) {
        r->stream = r->lines = true;
        r->extra = json_pack("{s:b}", "generate", (int)generate);
        fine = field_bool(body, "stream", &r->stream, &problem) &&
               translate_ollama_messages(chat, messages, &problem) && chat_jobs(served, r, chat, 1, -1, &problem);
    }
    json_decref(chat);
    request_start(r, http, served, fine, &problem);
}

void serve_ollama_chat(struct served *served, struct evhttp_request *http, json_t *body) {
    serve_ollama(served, http, body, json_object_get(body, "messages"), false);
}

void serve_ollama_generate(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    const char *prompt = "", *system = "";
    json_t *images = NULL, *messages;
    if (!field_text(body, "prompt", &prompt, &problem) || !field_text(body, "system", &system, &problem) ||
        !field_list(body, "images", &images, &problem)) {
        reply_problem(served->server, http, &problem);
        return;
    }
    messages = json_array();
    if (*system) json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_t *user = json_pack("{s:s, s:s}", "role", "user", "content", prompt);
    if (images) json_object_set(user, "images", images);
    json_array_append_new(messages, user);
    serve_ollama(served, http, body, messages, true);
    json_decref(messages);
}

/* ---- Models ---- */

static json_t *ollama_model(const struct served *served) {
    const bool ready = atomic_load(&served->phase) == PHASE_READY;
    char size[32] = "";
    if (ready) snprintf(size, sizeof size, "%.1fM", (double)served->info.n_params / 1e6);
    return json_pack("{s:s, s:s, s:o, s:I, s:s, s:{s:s, s:s, s:s, s:s}}", "name", served->alias, "model",
                     served->alias, "modified_at", time_json(served->server->started), "size",
                     (json_int_t)(ready ? served->info.bytes : 0), "digest", "", "details", "format", "gguf",
                     "family", ready ? served->info.architecture : "", "parameter_size", size, "quantization_level",
                     "");
}

static void reply_ollama_models(struct served *served, struct evhttp_request *http, bool loaded) {
    struct server *server = served->server;
    json_t *list = json_array();
    for (size_t i = 0; i < server->n_models; i++)
        if (!server->models[i]->hidden && (!loaded || atomic_load(&server->models[i]->phase) == PHASE_READY))
            json_array_append_new(list, ollama_model(server->models[i]));
    reply_json(server, http, 200, json_pack("{s:o}", "models", list));
}

void serve_ollama_tags(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    reply_ollama_models(served, http, false);
}

void serve_ollama_running(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    reply_ollama_models(served, http, true);
}

void serve_ollama_version(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    reply_json(served->server, http, 200, json_pack("{s:s}", "version", tn_version()));
}

void serve_ollama_show(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    json_t *model = ollama_model(served), *can = json_array();
    const char *text = served->info.chat_template;
    json_t *template = json_string(text ? text : "");
    if (served->session) json_array_append_new(can, json_string("completion"));
    if (served->session && tn_chat_template_caps(served->chat)->tools)
        json_array_append_new(can, json_string("tools"));
    if (served->embedder) json_array_append_new(can, json_string("embedding"));
    reply_json(served->server, http, 200,
               json_pack("{s:s, s:s, s:o, s:O, s:{s:s, s:I, s:i, s:i}, s:o}", "modelfile", "", "parameters", "",
                         "template", template ? template : json_string(""), "details",
                         json_object_get(model, "details"), "model_info", "general.architecture",
                         served->info.architecture, "general.parameter_count", (json_int_t)served->info.n_params,
                         "context_length", (int)served->n_ctx, "embedding_length", (int)served->info.n_embd,
                         "capabilities", can));
    json_decref(model);
}

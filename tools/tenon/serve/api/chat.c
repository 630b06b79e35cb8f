/* POST /v1/chat/completions and /apply-template: chat with the model's own template. */
#include "serve/api/chat_request.h"

#include "cli/text_buffer.h"

#include <stdlib.h>
#include <string.h>

/* ---- From messages to jobs (shared with messages.c and responses.c) ---- */

/* Only text is supported. Other content is rejected, because ignoring it would lead to wrong answers. */
static bool check_chat_messages(json_t *messages, struct problem *problem) {
    json_t *message, *part;
    size_t i, k;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return problem_set(problem, 400, "messages must be a list of at least one message");
    json_array_foreach(messages, i, message) {
        json_t *content = json_object_get(message, "content");
        if (!json_is_object(message) || !json_is_string(json_object_get(message, "role")))
            return problem_set(problem, 400, "messages[%zu] must be an object with a role", i);
        if (content && !json_is_string(content) && !json_is_array(content) && !json_is_null(content))
            return problem_set(problem, 400, "messages[%zu].content must be a string or a list of parts", i);
        json_array_foreach(content, k, part) {
            const char *type = json_string_value(json_object_get(part, "type"));
            if (!type) return problem_set(problem, 400, "messages[%zu].content[%zu] needs a type", i, k);
            if (strcmp(type, "text") != 0)
                return problem_set(problem, 400, "%s is not supported by this model: content of type %.40s",
                                   strstr(type, "image") ? "image input" : "this input", type);
            if (!json_is_string(json_object_get(part, "text")))
                return problem_set(problem, 400, "messages[%zu].content[%zu].text must be a string", i, k);
        }
    }
    return true;
}

/* tool_choice of type allowed_tools: only those of the tools that it names. `tools` is borrowed, *out a new
 * reference. The Responses API has mode and tools in the choice itself, and names in the tools themselves. */
static bool read_allowed_tools(json_t *choice, json_t *tools, tn_chat_params *p, json_t **out,
                               struct problem *problem) {
    enum { MAX_ALLOWED = 256 }; /* each is compared with every tool */
    json_t *inner = json_object_get(choice, "allowed_tools"), *allowed = NULL, *tool, *entry;
    const char *mode = "auto";
    size_t i, k;
    if (!inner) inner = choice;
    if (!field_text(inner, "mode", &mode, problem) || !field_list(inner, "tools", &allowed, problem)) return false;
    if (json_array_size(allowed) > MAX_ALLOWED)
        return problem_set(problem, 400, "tool_choice: allowed_tools can list %d tools", MAX_ALLOWED);
    if (!allowed || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0))
        return problem_set(problem, 400,
                           "tool_choice: allowed_tools needs a list of tools, and mode auto or required");
    p->tool_choice = strcmp(mode, "required") == 0 ? TN_TOOLS_REQUIRED : TN_TOOLS_AUTO;
    *out = json_array();
    json_array_foreach(allowed, i, entry) {
        json_t *function = json_object_get(entry, "function");
        const char *name = json_string_value(json_object_get(function ? function : entry, "name"));
        const size_t before = json_array_size(*out);
        json_array_foreach(tools, k, tool) {
            const char *own = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
            if (name && own && strcmp(own, name) == 0) json_array_append(*out, tool);
        }
        if (json_array_size(*out) == before)
            return problem_set(problem, 400, "tool_choice: there is no tool named %.100s", name ? name : "?");
    }
    return true;
}

/* *tools is borrowed; *own, to be freed, replaces it where only some tools are allowed. */
static bool read_tool_choice(json_t *body, tn_chat_params *p, json_t **tools, json_t **own, struct problem *problem) {
    json_t *choice = json_object_get(body, "tool_choice");
    const char *word = json_string_value(choice), *type = json_string_value(json_object_get(choice, "type"));
    enum { MAX_TOOLS = 1024 }; /* the schema of each becomes a grammar */
    if (!field_list(body, "tools", tools, problem)) return false;
    if (json_array_size(*tools) > MAX_TOOLS) return problem_set(problem, 400, "tools: at most %d", MAX_TOOLS);
    if (type && strcmp(type, "allowed_tools") == 0) {
        if (!read_allowed_tools(choice, *tools, p, own, problem)) return false;
        *tools = *own;
    } else if (json_is_object(choice)) {
        const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
        if (!name) return problem_set(problem, 400, "tool_choice: function.name is missing");
        p->tool_choice = TN_TOOLS_REQUIRED;
        p->tool_name = name;
    } else if (word && strcmp(word, "none") == 0) {
        p->tool_choice = TN_TOOLS_NONE;
    } else if (word && strcmp(word, "required") == 0) {
        p->tool_choice = TN_TOOLS_REQUIRED;
    } else if (choice && !json_is_null(choice) && (!word || strcmp(word, "auto") != 0)) {
        return problem_set(problem, 400,
                           "tool_choice must be none, auto, required or an object that names a function");
    }
    return field_bool(body, "parallel_tool_calls", &p->parallel_calls, problem);
}

/* A last message of the assistant is the beginning of the answer, unless the request specifies otherwise. */
static bool read_prefill(const struct server *server, json_t *body, json_t *messages, tn_chat_params *p,
                         struct problem *problem) {
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    bool generation = false;
    if (!field_bool(body, "add_generation_prompt", &p->generation_prompt, problem) ||
        !field_bool(body, "add_generation_prompt", &generation, problem))
        return false;
    p->continue_final = server->continues_messages && strcmp(role, "assistant") == 0 &&
                        !json_object_get(last, "tool_calls") && !json_object_get(body, "add_generation_prompt");
    if (!field_bool(body, "continue_final_message", &p->continue_final, problem)) return false;
    return !(generation && p->continue_final) ||
           problem_set(problem, 400, "add_generation_prompt and continue_final_message cannot both be true");
}

/* Variables for the template, in increasing precedence: the server's, those from fields of the request, and the
 * request's own. */
static bool read_variables(struct served *served, json_t *body, tn_chat_params *p, json_t **out,
                           struct problem *problem) {
    json_t *own = NULL, *documents = NULL;
    const char *format = served->server->reasoning_format, *effort = NULL;
    int64_t budget = -1;
    bool thinks = true;
    json_t *all = json_copy(served->server->variables);
    *out = all;
    if (!field_object(body, "chat_template_kwargs", &own, problem) ||
        !field_list(body, "documents", &documents, problem) ||
        !field_bool(body, "enable_thinking", &thinks, problem) ||
        !field_text(body, "reasoning_format", &format, problem) ||
        !field_text(body, "reasoning_effort", &effort, problem) ||
        !field_int(body, "reasoning_budget", -1, INT32_MAX, &budget, problem) ||
        !field_int(body, "thinking_budget_tokens", -1, INT32_MAX, &budget, problem))
        return false;
    if (format && strcmp(format, "none") != 0 && strcmp(format, "deepseek") != 0 && strcmp(format, "auto") != 0 &&
        strcmp(format, "deepseek-legacy") != 0)
        return problem_set(problem, 400, "reasoning_format must be none, deepseek or auto");
    p->keep_reasoning = format && strcmp(format, "none") == 0;
    if (effort) json_object_set_new(all, "reasoning_effort", json_string(effort));
    if ((effort && strcmp(effort, "none") == 0) || budget == 0)
        json_object_set_new(all, "enable_thinking", json_false());
    if (documents) json_object_set(all, "documents", documents);
    if (json_is_boolean(json_object_get(body, "enable_thinking")))
        json_object_set_new(all, "enable_thinking", json_boolean(thinks));
    if (own) json_object_update(all, own);
    /* Some released templates treat an undefined variable as false. */
    if (!json_object_get(all, "enable_thinking")) json_object_set_new(all, "enable_thinking", json_true());
    return true;
}

/* A tool with "strict": true must have a schema that a grammar can express. */
static bool check_strict_tools(json_t *tools, struct problem *problem) {
    json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        json_t *function = json_object_get(tool, "function"), *parameters = json_object_get(function, "parameters");
        if (!json_is_true(json_object_get(function, "strict")) || !parameters) continue;
        char *text = json_dumps(parameters, JSON_COMPACT | JSON_ENCODE_ANY), *gbnf = NULL;
        const tn_status status = text ? tn_schema_to_grammar(text, &gbnf) : TN_E_NOMEM;
        free(text);
        tn_free(gbnf);
        if (status == TN_E_UNSUPPORTED) return problem_set(problem, 400, "tools[%zu] is strict: %s", i, tn_error());
    }
    return true;
}

bool chat_prompt(struct served *served, json_t *body, tn_chat_prompt **prompt, struct problem *problem) {
    json_t *messages = json_object_get(body, "messages"), *tools = NULL, *allowed = NULL, *variables = NULL;
    tn_chat_params p = tn_chat_params_default();
    size_t length;
    p.format = served->server->chat_format;
    if (!check_chat_messages(messages, problem) || !read_tool_choice(body, &p, &tools, &allowed, problem) ||
        !check_strict_tools(tools, problem) || !read_prefill(served->server, body, messages, &p, problem) ||
        !field_text(body, "chat_format", &p.format, problem) ||
        !read_variables(served, body, &p, &variables, problem)) {
        json_decref(allowed);
        json_decref(variables);
        return false;
    }
    char *messages_text = json_dumps(messages, JSON_COMPACT);
    const bool has_tools = json_array_size(tools) > 0, has_variables = json_object_size(variables);
    char *tools_text = has_tools ? json_dumps(tools, JSON_COMPACT) : NULL;
    char *variables_text = has_variables ? json_dumps(variables, JSON_COMPACT) : NULL;
    const bool dumped = messages_text && (tools_text || !has_tools) && (variables_text || !has_variables);
    json_decref(variables);
    json_decref(allowed);
    p.messages = messages_text;
    p.tools = tools_text;
    p.variables = variables_text;
    tn_token bos = tn_tokenizer_special(served->tokenizer, TN_SPECIAL_BOS);
    tn_token eos = tn_tokenizer_special(served->tokenizer, TN_SPECIAL_EOS);
    p.bos_token = tn_token_text(served->tokenizer, bos, &length);
    p.eos_token = tn_token_text(served->tokenizer, eos, &length);
    tn_status status = dumped ? tn_chat_prompt_new(served->chat, &p, prompt) : TN_E_NOMEM;
    free(messages_text);
    free(tools_text);
    free(variables_text);
    return status == TN_OK || problem_status(problem, status, "messages");
}

bool chat_tokens(struct served *served, const tn_chat_prompt *prompt, tn_tokens *tokens, struct problem *problem) {
    size_t length;
    const char *text = tn_chat_prompt_text(prompt, &length);
    unsigned flags = TN_ENCODE_PARSE_SPECIAL | (tn_chat_prompt_has_bos(prompt) ? 0 : TN_ENCODE_ADD_SPECIAL);
    tn_status status = tn_tokenizer_encode(served->tokenizer, text, length, flags, tokens);
    return status == TN_OK || problem_status(problem, status, "messages");
}

bool chat_jobs(struct served *served, struct request *r, json_t *body, int64_t n, int64_t n_top,
               struct problem *problem) {
    r->verbose = served->server->verbose;
    if (!field_bool(body, "verbose", &r->verbose, problem) || !chat_prompt(served, body, &r->prompt, problem))
        return false;
    for (int64_t i = 0; i < n; i++) {
        struct job *job = request_add_job(r);
        if (!job) return problem_set(problem, 500, "out of memory");
        const tn_tokens *first = &r->jobs[0]->prompt;
        if (i == 0 ? !chat_tokens(served, r->prompt, &job->prompt, problem)
                   : tokens_append(&job->prompt, first->ids, first->count) != TN_OK &&
                         !problem_set(problem, 500, "out of memory"))
            return false;
        job->n_top = (int32_t)n_top;
        if (!prompt_check(&job->prompt, served->n_ctx, problem) ||
            !job_read(served, job, body, tn_chat_prompt_grammar(r->prompt), tn_chat_prompt_trigger(r->prompt),
                      problem))
            return false;
        tn_status status = tn_chat_parser_new(r->prompt, &job->parser);
        if (status != TN_OK) return problem_status(problem, status, "");
    }
    return true;
}

bool chat_feed(struct job *job, const struct piece *p, tn_chat_event_fn on_event, void *user) {
    if (p->length && tn_chat_parser_feed(job->parser, p->text, p->length, on_event, user) != TN_OK) return false;
    return !p->finish || tn_chat_parser_finish(job->parser, on_event, user) == TN_OK;
}

/* ---- Chat completions ---- */

static json_t *chat_object(struct request *r, const char *object, json_t *choices) {
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", r->id, "object", object, "created",
                     (json_int_t)r->created, "model", r->served->alias, "system_fingerprint", system_fingerprint(),
                     "choices", choices);
}

static const char *chat_finish_reason(const struct job *job) {
    if (job->finish == FINISH_LIMIT) return "length";
    return tn_chat_parser_calls(job->parser) ? "tool_calls" : "stop";
}

static void send_chat_delta(struct request *r, struct job *job, json_t *delta, json_t *logprobs, bool last) {
    json_t *choice = json_pack("{s:I, s:o, s:o}", "index", (json_int_t)job->index, "delta", delta, "finish_reason",
                               last ? json_string(chat_finish_reason(job)) : json_null());
    if (logprobs) json_object_set_new(choice, "logprobs", json_pack("{s:[o]}", "content", logprobs));
    const char *note = last ? tn_chat_parser_note(job->parser) : NULL;
    if (note) json_object_set_new(choice, "note", json_string(note));
    json_t *chunk = chat_object(r, "chat.completion.chunk", json_pack("[o]", choice));
    if (last || (job->timings && job->announced)) json_object_set_new(chunk, "timings", timings_json(job));
    if (last) answer_note(r, chunk);
    stream_send(r, NULL, chunk);
}

/* The most frequent event is a short text; it is formatted without building a JSON tree. Returns false for text that
 * is long or needs more than simple escapes. */
static bool send_short_text(struct request *r, const struct job *job, const char *text, size_t length) {
    char json[2048];
    if (!r->head) {
        json_t *whole = chat_object(r, "chat.completion.chunk", json_array());
        r->head = json_dumps(whole, JSON_COMPACT);
        json_decref(whole);
        if (r->head) r->head[strlen(r->head) - 2] = '\0'; /* cuts the end of the list and of the object */
    }
    if (!r->head || length > 64) return false;
    int n = snprintf(json, sizeof json, "%s{\"index\":%zu,\"delta\":{\"content\":\"", r->head, job->index);
    static const char tail[] = "\"},\"finish_reason\":null}]}";
    if (n < 0 || (size_t)n + 2 * length + sizeof tail > sizeof json) return false;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if ((c < ' ' && c != '\n') || c > '~') return false;
        if (c == '"' || c == '\\' || c == '\n') json[n++] = '\\';
        json[n++] = c == '\n' ? 'n' : (char)c;
    }
    memcpy(json + n, tail, sizeof tail);
    stream_send_text(r, NULL, json, (size_t)n + sizeof tail - 1);
    return true;
}

struct delta_sender {
    struct request *request;
    struct job *job;
    json_t *logprobs; /* sent with the first delta */
};

static tn_status send_chat_event(void *user, const tn_chat_event *event) {
    struct delta_sender *sender = user;
    if (event->kind == TN_CHAT_CONTENT && event->text && !sender->logprobs && !sender->job->timings &&
        send_short_text(sender->request, sender->job, event->text, event->length))
        return TN_OK;
    json_t *delta = NULL, *text = json_stringn(event->text ? event->text : "", event->text ? event->length : 0);
    if (!text) text = json_string("\xef\xbf\xbd");
    switch (event->kind) {
    case TN_CHAT_CONTENT: delta = json_pack("{s:o}", "content", text); break;
    case TN_CHAT_REASONING: delta = json_pack("{s:o}", "reasoning_content", text); break;
    case TN_CHAT_CALL:
        delta = json_pack("{s:[{s:I, s:s, s:s, s:{s:o, s:s}}]}", "tool_calls", "index", (json_int_t)event->call, "id",
                          event->id, "type", "function", "function", "name", text, "arguments", "");
        break;
    case TN_CHAT_ARGUMENTS:
        delta = json_pack("{s:[{s:I, s:{s:o}}]}", "tool_calls", "index", (json_int_t)event->call, "function",
                          "arguments", text);
        break;
    default: json_decref(text); return TN_OK;
    }
    send_chat_delta(sender->request, sender->job, delta, sender->logprobs, false);
    sender->logprobs = NULL;
    return TN_OK;
}

static json_t *token_logprob(struct served *served, tn_token token, float logprob) {
    return json_pack("{s:o, s:f, s:o}", "token", token_text_json(served, token), "logprob",
                     logprob < -1e30f ? -1e30 : (double)logprob, "bytes", token_bytes_json(served, token));
}

static json_t *logprobs_of(struct served *served, const struct piece *p) {
    if (p->token < 0 || !p->has_logprob) return NULL;
    json_t *entry = token_logprob(served, p->token, p->logprob), *top = json_array();
    for (size_t i = 0; i < p->n_top; i++)
        if (p->top[i].token >= 0)
            json_array_append_new(top, token_logprob(served, p->top[i].token, p->top[i].logprob));
    json_object_set_new(entry, "top_logprobs", top);
    return entry;
}

/* The first event of a choice. */
static void announce_choice(struct request *r, struct job *job) {
    if (!job->announced)
        send_chat_delta(r, job, json_pack("{s:s, s:n}", "role", "assistant", "content"), NULL, false);
    job->announced = true;
}

static void chat_progress(struct request *r, struct job *job) {
    announce_choice(r, job);
    json_t *chunk =
        chat_object(r, "chat.completion.chunk",
                    json_pack("[{s:I, s:{}, s:n}]", "index", (json_int_t)job->index, "delta", "finish_reason"));
    json_object_set_new(chunk, "prompt_progress", progress_json(job));
    if (job->timings) json_object_set_new(chunk, "timings", timings_json(job));
    stream_send(r, NULL, chunk);
}

static void chat_piece(struct request *r, struct job *job, const struct piece *p) {
    json_t *logprobs = logprobs_of(r->served, p);
    if (r->verbose) text_append(&job->text, p->text, p->length);
    if (!r->stream) {
        if (logprobs) json_array_append_new(job->logprobs, logprobs);
        if (!chat_feed(job, p, NULL, NULL)) snprintf(r->failed, sizeof r->failed, "%s", tn_error());
        return;
    }
    announce_choice(r, job);
    struct delta_sender sender = {r, job, logprobs};
    if (!chat_feed(job, p, send_chat_event, &sender)) snprintf(r->failed, sizeof r->failed, "%s", tn_error());
    if (sender.logprobs) send_chat_delta(r, job, json_pack("{s:s}", "content", ""), sender.logprobs, false);
    if (p->finish && !r->failed[0]) send_chat_delta(r, job, json_object(), NULL, true);
}

json_t *chat_message(struct job *job) {
    char *text = NULL;
    json_t *message = tn_chat_parser_message(job->parser, &text) == TN_OK ? json_loads(text, 0, NULL) : NULL;
    tn_free(text);
    return message ? message : json_pack("{s:s, s:s}", "role", "assistant", "content", "");
}

static void chat_end(struct request *r) {
    if (r->stream) {
        if (r->include_usage) {
            json_t *last = chat_object(r, "chat.completion.chunk", json_array());
            json_object_set_new(last, "usage", usage_json(r));
            json_object_set_new(last, "timings", timings_json(r->jobs[0]));
            stream_send(r, NULL, last);
        }
        stream_send_raw(r, "data: [DONE]\n\n");
        stream_end(r);
        return;
    }
    json_t *choices = json_array();
    for (size_t i = 0; i < r->n_jobs; i++) {
        struct job *job = r->jobs[i];
        json_t *choice = json_pack("{s:I, s:o, s:s}", "index", (json_int_t)i, "message", chat_message(job),
                                   "finish_reason", chat_finish_reason(job));
        if (r->want_logprobs) json_object_set_new(choice, "logprobs", json_pack("{s:O}", "content", job->logprobs));
        json_array_append_new(choices, choice);
    }
    json_t *answer = chat_object(r, "chat.completion", choices);
    json_object_set_new(answer, "usage", usage_json(r));
    answer_slot(r, answer);
    json_object_set_new(answer, "timings", timings_json(r->jobs[0]));
    if (r->verbose) json_object_set_new(answer, "__verbose", native_json(r, r->jobs[0]));
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format chat_format = {.piece = chat_piece, .end = chat_end, .progress = chat_progress};

void serve_chat(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    int64_t n = 1, top = 0;
    bool fine;
    struct request *r = request_new(served, http, &chat_format, "chatcmpl-");
    fine = r ? field_int(body, "n", 1, MAX_CHOICES, &n, &problem) &&
                   field_bool(body, "stream", &r->stream, &problem) &&
                   field_bool(body, "logprobs", &r->want_logprobs, &problem) &&
                   field_int(body, "top_logprobs", 0, MAX_TOP, &top, &problem)
             : problem_set(&problem, 500, "out of memory");
    json_t *options = NULL;
    fine = fine && field_object(body, "stream_options", &options, &problem) &&
           (!options || field_bool(options, "include_usage", &r->include_usage, &problem));
    if (fine && top > 0 && !r->want_logprobs) fine = problem_set(&problem, 400, "top_logprobs needs logprobs: true");
    fine = fine && chat_jobs(served, r, body, n, r->want_logprobs ? top : -1, &problem);
    request_start(r, http, served, fine, &problem);
}

void serve_template(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    tn_chat_prompt *prompt = NULL;
    size_t length;
    if (!chat_prompt(served, body, &prompt, &problem)) {
        reply_problem(served->server, http, &problem);
        return;
    }
    const char *text = tn_chat_prompt_text(prompt, &length);
    reply_json(served->server, http, 200, json_pack("{s:s#}", "prompt", text, (int)length));
    tn_chat_prompt_free(prompt);
}

/* ---- Counting ---- */

void count_tokens(struct served *served, struct evhttp_request *http, json_t *body,
                  json_t *(*translate)(json_t *body, struct problem *problem), const char *object) {
    struct problem problem = {0};
    tn_chat_prompt *prompt = NULL;
    tn_tokens tokens = {0};
    json_t *chat = translate ? translate(body, &problem) : json_incref(body);
    bool fine =
        chat && chat_prompt(served, chat, &prompt, &problem) && chat_tokens(served, prompt, &tokens, &problem);
    if (fine) {
        json_t *answer = json_pack("{s:I}", "input_tokens", (json_int_t)tokens.count);
        if (object) json_object_set_new(answer, "object", json_string(object));
        reply_json(served->server, http, 200, answer);
    } else {
        reply_problem(served->server, http, &problem);
    }
    json_decref(chat);
    tn_chat_prompt_free(prompt);
    tn_tokens_free(&tokens);
}

void serve_chat_count(struct served *served, struct evhttp_request *http, json_t *body) {
    count_tokens(served, http, body, NULL, "response.input_tokens");
}

void serve_translated(struct served *served, struct evhttp_request *http, json_t *body,
                      json_t *(*translate)(json_t *body, struct problem *problem),
                      const struct response_format *format, const char *prefix) {
    struct problem problem = {0};
    struct request *r = request_new(served, http, format, prefix);
    json_t *chat = r ? translate(body, &problem) : NULL;
    if (!r) problem_set(&problem, 500, "out of memory");
    bool fine =
        chat && field_bool(body, "stream", &r->stream, &problem) && chat_jobs(served, r, chat, 1, -1, &problem);
    json_decref(chat);
    request_start(r, http, served, fine, &problem);
}

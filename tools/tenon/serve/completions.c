/* POST /v1/completions (OpenAI's form) and POST /completion (native form): continue a text. */
#include "serve.h"

#include "cli/text_buffer.h"

#include <string.h>

/* JSON has no minus infinity, the log-probability of a banned token. */
static json_t *logprob_number(double value) { return json_real(value < -1e30 ? -1e30 : value); }

/* ---- OpenAI ---- */

/* Appends to the four parallel lists of text_completion. `known`: the token has a probability. */
static void add_logprob(struct served *served, struct job *job, json_t *to, tn_token token, bool known,
                        const struct piece *p) {
    size_t length = 0;
    json_array_append_new(json_object_get(to, "tokens"), token_text_json(served, token));
    json_array_append_new(json_object_get(to, "token_logprobs"), known ? logprob_number(p->logprob) : json_null());
    json_array_append_new(json_object_get(to, "text_offset"), json_integer((json_int_t)job->text_offset));
    json_t *top = known ? json_object() : json_null();
    for (size_t i = 0; known && i < p->n_top; i++) {
        json_t *key = token_text_json(served, p->top[i].token);
        if (p->top[i].token >= 0 && !json_object_get(top, json_string_value(key)))
            json_object_set_new(top, json_string_value(key), logprob_number(p->top[i].logprob));
        json_decref(key);
    }
    json_array_append_new(json_object_get(to, "top_logprobs"), top);
    tn_token_piece(served->tokenizer, token, &length);
    if (tn_token_get_type(served->tokenizer, token) == TN_TOKEN_CONTROL) return;
    /* job->user counts bytes of the space that the tokenizer put in front: part of the token, not of the text. */
    size_t added = job->user < length ? job->user : length;
    job->user -= added;
    job->text_offset += length - added;
}

static json_t *empty_logprobs(void) {
    return json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
}

static const char *text_finish_reason(const struct job *job) {
    return job->finish == FINISH_LIMIT ? "length" : "stop";
}

static json_t *text_completion(struct request *r, json_t *choices) {
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", r->id, "object", "text_completion", "created",
                     (json_int_t)r->created, "model", r->served->alias, "system_fingerprint", tn_version(), "choices",
                     choices);
}

static void completions_piece(struct request *r, struct job *job, const struct piece *p) {
    json_t *logprobs = NULL;
    if (r->want_logprobs) {
        logprobs = r->stream ? empty_logprobs() : json_incref(json_array_get(job->logprobs, 0));
        if (r->echo && !job->announced) add_logprob(r->served, job, logprobs, job->prompt.ids[0], false, p);
        if (p->token >= 0) add_logprob(r->served, job, logprobs, p->token, p->has_logprob, p);
    }
    /* An event stream with echo starts with the prompt's text. */
    if (r->stream && r->echo && !job->announced)
        stream_send(r, NULL,
                    text_completion(r, json_pack("[{s:s#, s:I, s:n, s:n}]", "text",
                                                 job->text.bytes ? job->text.bytes : "", (int)job->text.length,
                                                 "index", (json_int_t)job->index, "logprobs", "finish_reason")));
    job->announced = true;
    if (r->stream && (p->length || p->finish || (logprobs && p->token >= 0))) {
        json_t *choice = json_pack("{s:s#, s:I, s:o, s:o}", "text", p->text, (int)p->length, "index",
                                   (json_int_t)job->index, "logprobs", logprobs ? logprobs : json_null(),
                                   "finish_reason", p->finish ? json_string(text_finish_reason(job)) : json_null());
        stream_send(r, NULL, text_completion(r, json_pack("[o]", choice)));
    } else {
        text_append(&job->text, p->text, p->length);
        json_decref(logprobs);
    }
}

static void completions_end(struct request *r) {
    if (r->stream) {
        if (r->include_usage) {
            json_t *last = text_completion(r, json_array());
            json_object_set_new(last, "usage", usage_json(r));
            stream_send(r, NULL, last);
        }
        stream_send_raw(r, "data: [DONE]\n\n");
        stream_end(r);
        return;
    }
    json_t *choices = json_array();
    for (size_t i = 0; i < r->n_jobs; i++) {
        struct job *job = r->jobs[i];
        json_t *text = json_stringn(job->text.bytes ? job->text.bytes : "", job->text.length);
        json_array_append_new(
            choices,
            json_pack("{s:o, s:I, s:o, s:s}", "text", text ? text : json_string(""), "index", (json_int_t)i,
                      "logprobs", r->want_logprobs ? json_incref(json_array_get(job->logprobs, 0)) : json_null(),
                      "finish_reason", text_finish_reason(job)));
    }
    json_t *answer = text_completion(r, choices);
    json_object_set_new(answer, "usage", usage_json(r));
    answer_slot(r, answer);
    json_object_set_new(answer, "timings", timings_json(r->jobs[0]));
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format completions_format = {completions_piece, completions_end};

/* Starts the job's text with the prompt, decoded from its tokens. */
static bool echo_prompt(struct served *served, struct job *job, struct problem *problem) {
    tn_text text = {0}, whole = {0};
    const tn_tokens *p = &job->prompt;
    tn_status status = tn_tokenizer_decode(served->tokenizer, p->ids, p->count, 0, &text);
    if (status == TN_OK)
        status = tn_tokenizer_decode(served->tokenizer, p->ids, p->count, TN_DECODE_CONTINUE, &whole);
    if (status == TN_OK) job->user = whole.length - text.length;
    tn_text_free(&whole);
    if (status != TN_OK) return problem_status(problem, status, "echo");
    status = text_append(&job->text, text.bytes, text.length);
    tn_text_free(&text);
    return status == TN_OK || problem_status(problem, status, "echo");
}

static bool read_completions(struct served *served, struct request *r, json_t *body, struct problem *problem) {
    static tn_tokens lists[MAX_CHOICES];
    int64_t n = 1, logprobs = -1;
    size_t count = 0;
    bool fine = field_int(body, "n", 1, MAX_CHOICES, &n, problem) &&
                field_bool(body, "stream", &r->stream, problem) && field_bool(body, "echo", &r->echo, problem);
    json_t *value = json_object_get(body, "logprobs");
    if (json_is_boolean(value))
        logprobs = json_is_true(value) ? 1 : -1;
    else
        fine = fine && field_int(body, "logprobs", 0, MAX_TOP, &logprobs, problem);
    json_t *options = json_object_get(body, "stream_options");
    if (json_is_object(options)) fine = fine && field_bool(options, "include_usage", &r->include_usage, problem);
    if (fine && json_is_string(json_object_get(body, "suffix")))
        fine = problem_set(problem, 501, "suffix (filling in the middle) is not supported");
    memset(lists, 0, sizeof lists);
    fine = fine &&
           prompts_read(served, json_object_get(body, "prompt"), lists, &count, MAX_CHOICES, served->n_ctx, problem);
    if (fine && count * (size_t)n > MAX_CHOICES)
        fine = problem_set(problem, 400, "at most %d completions per request", MAX_CHOICES);
    r->want_logprobs = logprobs >= 0;
    for (size_t i = 0; fine && i < count * (size_t)n; i++) {
        struct job *job = request_add_job(r);
        const tn_tokens *prompt = &lists[i / (size_t)n];
        if (!job || !(job->prompt.ids = tn_malloc(prompt->count * sizeof(tn_token)))) {
            fine = problem_set(problem, 500, "out of memory");
            break;
        }
        memcpy(job->prompt.ids, prompt->ids, prompt->count * sizeof(tn_token));
        job->prompt.count = job->prompt.capacity = prompt->count;
        job->n_top = (int32_t)logprobs;
        job->score_prompt = r->echo && r->want_logprobs;
        if (r->want_logprobs) json_array_append_new(job->logprobs, empty_logprobs());
        fine = job_read(served, job, body, NULL, NULL, problem) && (!r->echo || echo_prompt(served, job, problem));
        if (fine && !json_object_get(body, "max_tokens") && !json_object_get(body, "n_predict") &&
            served->server->default_predict < 0)
            job->n_predict = 16; /* OpenAI's default for this endpoint */
    }
    for (size_t i = 0; i < MAX_CHOICES; i++) tn_tokens_free(&lists[i]);
    return fine;
}

void serve_completions(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    struct request *r = request_new(served, http, &completions_format, "cmpl-");
    bool fine = r ? read_completions(served, r, body, &problem) : problem_set(&problem, 500, "out of memory");
    request_start(r, http, served, fine, &problem);
}

/* ---- Native ---- */

static json_t *native_probs(struct served *served, const struct piece *p) {
    json_t *top = json_array();
    for (size_t i = 0; i < p->n_top; i++)
        if (p->top[i].token >= 0)
            json_array_append_new(top, json_pack("{s:i, s:o, s:o, s:o}", "id", (int)p->top[i].token, "token",
                                                 token_text_json(served, p->top[i].token), "bytes",
                                                 token_bytes_json(served, p->top[i].token), "logprob",
                                                 logprob_number(p->top[i].logprob)));
    return json_pack("{s:i, s:o, s:o, s:o, s:o}", "id", (int)p->token, "token", token_text_json(served, p->token),
                     "bytes", token_bytes_json(served, p->token), "logprob", logprob_number(p->logprob),
                     "top_logprobs", top);
}

static json_t *native_end(struct request *r, struct job *job) {
    const char *type = job->finish == FINISH_EOS ? "eos" : job->finish == FINISH_WORD ? "word" : "limit";
    return json_pack("{s:I, s:s, s:I, s:s, s:i, s:i, s:b, s:b, s:s, s:s, s:o, s:o}", "index", (json_int_t)job->index,
                     "model", r->served->alias, "id_slot", (json_int_t)job->stats.id_slot, "object", "completion",
                     "tokens_predicted", (int)job->stats.n_predicted, "tokens_evaluated", (int)job->stats.n_prompt,
                     "stop", 1, "truncated", (int)job->stats.truncated, "stop_type", type, "stopping_word",
                     job->finish == FINISH_WORD ? job->stop_word : "", "timings", timings_json(job),
                     "generation_settings", sampling_json(&job->sampling, job->stats.seed, job->n_predict));
}

static void native_piece(struct request *r, struct job *job, const struct piece *p) {
    json_t *probs = p->token >= 0 && p->has_logprob ? native_probs(r->served, p) : NULL;
    text_append(&job->text, p->text, p->length);
    if (p->token >= 0) json_array_append_new(job->tokens, json_integer(p->token));
    if (r->stream && !p->finish && (p->length || probs)) {
        json_t *chunk = json_pack(
            "{s:I, s:s#, s:o, s:b, s:i, s:i}", "index", (json_int_t)job->index, "content", p->text, (int)p->length,
            "tokens", p->token >= 0 ? json_pack("[i]", (int)p->token) : json_array(), "stop", 0, "tokens_predicted",
            (int)json_array_size(job->tokens), "tokens_evaluated", (int)job->prompt.count);
        if (probs) json_object_set_new(chunk, "completion_probabilities", json_pack("[o]", probs));
        stream_send(r, NULL, chunk);
    } else if (probs) {
        json_array_append_new(job->logprobs, probs);
    }
    if (r->stream && p->finish) {
        json_t *last = native_end(r, job);
        json_object_set_new(last, "content", json_stringn(p->text, p->length));
        json_object_set_new(last, "tokens", json_array());
        stream_send(r, NULL, last);
    }
}

static void native_finish(struct request *r) {
    if (r->stream) {
        stream_end(r);
        return;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_jobs; i++) {
        struct job *job = r->jobs[i];
        json_t *one = native_end(r, job),
               *text = json_stringn(job->text.bytes ? job->text.bytes : "", job->text.length);
        json_object_set_new(one, "content", text ? text : json_string(""));
        json_object_set(one, "tokens", job->tokens);
        json_object_set_new(one, "tokens_cached", json_integer(job->stats.n_prompt + job->stats.n_predicted));
        if (job->n_top >= 0) json_object_set(one, "completion_probabilities", job->logprobs);
        json_array_append_new(list, one);
    }
    json_t *answer = r->n_jobs == 1 ? json_incref(json_array_get(list, 0)) : json_incref(list);
    json_decref(list);
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format native_format = {native_piece, native_finish};

void serve_native(struct served *served, struct evhttp_request *http, json_t *body) {
    static tn_tokens lists[MAX_CHOICES];
    struct problem problem = {0};
    size_t count = 0;
    int64_t n_probs = 0;
    struct request *r = request_new(served, http, &native_format, "cmpl-");
    memset(lists, 0, sizeof lists);
    bool fine = r ? field_bool(body, "stream", &r->stream, &problem) &&
                        field_int(body, "n_probs", 0, MAX_TOP, &n_probs, &problem)
                  : problem_set(&problem, 500, "out of memory");
    json_t *prompt = json_object_get(body, "prompt");
    fine = fine && prompts_read(served, prompt, lists, &count, MAX_CHOICES, served->n_ctx, &problem);
    for (size_t i = 0; fine && i < count; i++) {
        struct job *job = request_add_job(r);
        if (!job) {
            fine = problem_set(&problem, 500, "out of memory");
            break;
        }
        job->prompt = lists[i];
        lists[i] = (tn_tokens){0};
        job->n_top = n_probs > 0 ? (int32_t)n_probs : -1;
        fine = job_read(served, job, body, NULL, NULL, &problem);
    }
    for (size_t i = 0; i < MAX_CHOICES; i++) tn_tokens_free(&lists[i]);
    request_start(r, http, served, fine, &problem);
}

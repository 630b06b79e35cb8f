/* POST /v1/completions: OpenAI's form of continuing a text. */
#include "serve/serve.h"

#include "cli/text_buffer.h"

#include <string.h>

/* Appends to the four parallel lists of text_completion. `known`: the token has a probability. */
static void add_logprob(struct served *served, struct job *job, json_t *to, tn_token token, bool known,
                        const struct piece *p) {
    size_t length = 0;
    json_array_append_new(json_object_get(to, "tokens"), token_text_json(served, token));
    json_array_append_new(json_object_get(to, "token_logprobs"), known ? logprob_json(p->logprob) : json_null());
    json_array_append_new(json_object_get(to, "text_offset"), json_integer((json_int_t)job->text_offset));
    json_t *top = known ? json_object() : json_null();
    for (size_t i = 0; known && i < p->n_top; i++) {
        json_t *key = token_text_json(served, p->top[i].token);
        if (p->top[i].token >= 0 && !json_object_get(top, json_string_value(key)))
            json_object_set_new(top, json_string_value(key), logprob_json(p->top[i].logprob));
        json_decref(key);
    }
    json_array_append_new(json_object_get(to, "top_logprobs"), top);
    tn_token_piece(served->tokenizer, token, &length);
    if (tn_token_get_type(served->tokenizer, token) == TN_TOKEN_CONTROL) return;
    /* job->user counts bytes of a leading space that the tokenizer added: part of the token, not of the text. */
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
                     (json_int_t)r->created, "model", r->served->alias, "system_fingerprint", system_fingerprint(),
                     "choices", choices);
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
        json_t *chunk = text_completion(r, json_pack("[o]", choice));
        if (job->timings || p->finish) json_object_set_new(chunk, "timings", timings_json(job));
        stream_send(r, NULL, chunk);
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
    if (r->verbose) json_object_set_new(answer, "__verbose", native_json(r, r->jobs[0]));
    reply_json(r->served->server, request_take(r), 200, answer);
}

static void completions_progress(struct request *r, struct job *job) {
    json_t *chunk = text_completion(r, json_array());
    json_object_set_new(chunk, "prompt_progress", progress_json(job));
    stream_send(r, NULL, chunk);
}

static const struct response_format completions_format = {completions_piece, completions_end, completions_progress};

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

/* The prompt, a new reference. With a suffix, the text between prompt and suffix is generated. */
static json_t *prompt_with_suffix(struct served *served, json_t *body, struct problem *problem) {
    json_t *prompt = json_object_get(body, "prompt");
    const char *suffix = "";
    if (!field_text(body, "suffix", &suffix, problem)) return NULL;
    if (!*suffix) return prompt ? json_incref(prompt) : json_null();
    if (json_is_string(prompt)) return infill_prompt(served, NULL, json_string_value(prompt), suffix, "", problem);
    problem_set(problem, 400, "with a suffix the prompt must be a string");
    return NULL;
}

static bool read_completions(struct served *served, struct request *r, json_t *body, struct problem *problem) {
    tn_tokens lists[MAX_CHOICES] = {{0}};
    int64_t n = 1, logprobs = -1;
    size_t count = 0;
    bool fine = field_int(body, "n", 1, MAX_CHOICES, &n, problem) &&
                field_bool(body, "stream", &r->stream, problem) && field_bool(body, "echo", &r->echo, problem) &&
                field_bool(body, "verbose", &r->verbose, problem);
    json_t *value = json_object_get(body, "logprobs");
    if (json_is_boolean(value))
        logprobs = json_is_true(value) ? 1 : -1;
    else
        fine = fine && field_int(body, "logprobs", 0, MAX_TOP, &logprobs, problem);
    json_t *options = NULL;
    fine = fine && field_object(body, "stream_options", &options, problem) &&
           (!options || field_bool(options, "include_usage", &r->include_usage, problem));
    json_t *prompt = fine ? prompt_with_suffix(served, body, problem) : NULL;
    fine = fine && prompt && prompts_read(served, prompt, lists, &count, MAX_CHOICES, served->n_ctx, problem);
    json_decref(prompt);
    if (fine && count * (size_t)n > MAX_CHOICES)
        fine = problem_set(problem, 400, "at most %d completions per request", MAX_CHOICES);
    r->want_logprobs = logprobs >= 0;
    for (size_t i = 0; fine && i < count * (size_t)n; i++) {
        struct job *job = request_add_job(r);
        const tn_tokens *list = &lists[i / (size_t)n];
        if (!job || !(job->prompt.ids = tn_malloc(list->count * sizeof(tn_token)))) {
            fine = problem_set(problem, 500, "out of memory");
            break;
        }
        memcpy(job->prompt.ids, list->ids, list->count * sizeof(tn_token));
        job->prompt.count = job->prompt.capacity = list->count;
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

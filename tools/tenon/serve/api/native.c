/* POST /completion and /infill: continue a text, in the form of llama.cpp's server. */
#include "serve/serve.h"

#include "cli/text_buffer.h"

#include <math.h>
#include <string.h>

json_t *logprob_json(double value) { return json_real(value < -1e30 ? -1e30 : value); }

/* ---- Responses ---- */

static json_t *native_prob(struct served *served, const struct job *job, tn_token token, double logprob) {
    const bool sampled = job->sampled_probs;
    return json_pack("{s:i, s:o, s:o, s:o}", "id", (int)token, "token", token_text_json(served, token), "bytes",
                     token_bytes_json(served, token), sampled ? "prob" : "logprob",
                     sampled ? json_real(exp(logprob)) : logprob_json(logprob));
}

static json_t *native_probs(struct served *served, const struct job *job, const struct piece *p) {
    json_t *top = json_array(), *one = native_prob(served, job, p->token, p->logprob);
    for (size_t i = 0; i < p->n_top; i++)
        if (p->top[i].token >= 0 && (!job->sampled_probs || exp(p->top[i].logprob) > 0))
            json_array_append_new(top, native_prob(served, job, p->top[i].token, p->top[i].logprob));
    json_object_set_new(one, job->sampled_probs ? "top_probs" : "top_logprobs", top);
    return one;
}

/* The settings of a job under their names in requests. */
static json_t *job_settings(const struct request *r, const struct job *job) {
    json_t *all = sampling_json(&job->sampling, job->stats.seed, job->until_full ? -1 : job->n_predict);
    json_t *biases = json_array(), *stops = json_array(), *lora = json_array();
    for (size_t i = 0; i < job->n_biases; i++) {
        json_t *bias = json_real((double)job->biases[i].bias); /* NULL for minus infinity */
        json_array_append_new(biases, json_pack("{s:o, s:i, s:o}", "bias", bias ? bias : json_null(), "token",
                                                (int)job->biases[i].token, "text",
                                                token_text_json(r->served, job->biases[i].token)));
    }
    for (size_t i = 0; i < job->n_user_stops; i++) json_array_append_new(stops, json_string(job->stops[i]));
    for (size_t i = 0; i < r->served->adapters.n_adapters; i++)
        json_array_append_new(lora, json_pack("{s:i, s:f}", "id", (int)i, "scale", (double)job->scales[i]));
    json_object_set_new(all, "logit_bias", biases);
    json_object_set_new(all, "stop", stops);
    json_object_set_new(all, "lora", lora);
    json_object_set_new(all, "n_keep", json_integer(job->n_keep));
    json_object_set_new(all, "n_probs", json_integer(job->n_top > 0 ? job->n_top : 0));
    json_object_set_new(all, "ignore_eos", json_boolean(job->ignore_end));
    json_object_set_new(all, "stream", json_boolean(r->stream));
    json_object_set_new(all, "post_sampling_probs", json_boolean(job->sampled_probs));
    json_object_set_new(all, "timings_per_token", json_boolean(job->timings));
    json_object_set_new(all, "min_keep", json_integer((json_int_t)job->sampling.min_keep));
    return all;
}

/* The prompt as the model received it, with the texts of its special tokens. */
static json_t *prompt_json(const struct served *served, const struct job *job) {
    tn_text text = {0};
    json_t *json = NULL;
    if (tn_tokenizer_decode(served->tokenizer, job->prompt.ids, job->prompt.count,
                            TN_DECODE_SPECIAL | TN_DECODE_CONTINUE, &text) == TN_OK)
        json = json_stringn(text.bytes ? text.bytes : "", text.length);
    tn_text_free(&text);
    return json ? json : json_string("");
}

json_t *native_json(struct request *r, struct job *job) {
    const char *type = job->finish == FINISH_EOS ? "eos" : job->finish == FINISH_WORD ? "word" : "limit";
    json_t *text = json_stringn(job->text.bytes ? job->text.bytes : "", job->text.length);
    json_t *all = json_pack(
        "{s:I, s:s, s:I, s:s, s:i, s:i, s:i, s:b, s:b, s:b, s:s, s:s, s:o}", "index", (json_int_t)job->index, "model",
        r->served->alias, "id_slot", (json_int_t)job->stats.id_slot, "object", "completion", "tokens_predicted",
        (int)job->stats.n_predicted, "tokens_evaluated", (int)job->stats.n_prompt, "tokens_cached",
        (int)(job->stats.n_prompt + job->stats.n_predicted), "stop", 1, "truncated", (int)job->stats.truncated,
        "has_new_line", (int)job->has_new_line, "stop_type", type, "stopping_word",
        job->finish == FINISH_WORD ? job->stop_word : "", "timings", timings_json(job));
    json_object_set_new(all, "generation_settings", job_settings(r, job));
    json_object_set_new(all, "prompt", prompt_json(r->served, job));
    json_object_set_new(all, "content", text ? text : json_string(""));
    json_object_set(all, "tokens", job->tokens);
    if (job->n_top >= 0) json_object_set(all, "completion_probabilities", job->logprobs);
    answer_note(r, all);
    return all;
}

/* response_fields: only these fields, "a/b" for nested ones, under the requested names. */
static json_t *choose_fields(const struct request *r, json_t *all) {
    json_t *names = json_object_get(r->extra, "fields"), *name, *some;
    size_t i;
    if (json_array_size(names) == 0) return all;
    some = json_object();
    json_array_foreach(names, i, name) {
        const char *path = json_string_value(name);
        json_t *value = all;
        while (path && *path && value) {
            const size_t n = strcspn(path, "/");
            char part[128];
            snprintf(part, sizeof part, "%.*s", (int)(n < sizeof part ? n : sizeof part - 1), path);
            value = json_object_get(value, part);
            path += n + (path[n] == '/');
        }
        if (path && value) json_object_set(some, json_string_value(name), value);
    }
    json_decref(all);
    return some;
}

static json_t *native_chunk(struct job *job, const char *text, size_t length, tn_token token) {
    json_t *chunk = json_pack("{s:I, s:s#, s:o, s:b, s:i, s:i, s:I}", "index", (json_int_t)job->index, "content",
                              text, (int)length, "tokens", token >= 0 ? json_pack("[i]", (int)token) : json_array(),
                              "stop", 0, "tokens_predicted", (int)json_array_size(job->tokens), "tokens_evaluated",
                              (int)job->prompt.count, "id_slot", (json_int_t)job->slot);
    if (job->timings) json_object_set_new(chunk, "timings", timings_json(job));
    return chunk;
}

static void native_progress(struct request *r, struct job *job) {
    json_t *chunk = native_chunk(job, "", 0, TN_TOKEN_NONE);
    json_object_set_new(chunk, "prompt_progress", progress_json(job));
    stream_send(r, NULL, chunk);
}

static void native_piece(struct request *r, struct job *job, const struct piece *p) {
    json_t *probs = p->token >= 0 && p->has_logprob ? native_probs(r->served, job, p) : NULL;
    text_append(&job->text, p->text, p->length);
    job->has_new_line = job->has_new_line || memchr(p->text, '\n', p->length);
    if (p->token >= 0) json_array_append_new(job->tokens, json_integer(p->token));
    if (r->stream && !p->finish && (p->length || probs)) {
        json_t *chunk = native_chunk(job, p->text, p->length, p->token);
        if (probs) json_object_set_new(chunk, "completion_probabilities", json_pack("[o]", probs));
        stream_send(r, NULL, chunk);
    } else if (probs) {
        json_array_append_new(job->logprobs, probs);
    }
    if (r->stream && p->finish) {
        json_t *last = native_json(r, job);
        json_object_set_new(last, "content", json_stringn(p->text, p->length));
        json_object_set_new(last, "tokens", json_array());
        json_object_del(last, "completion_probabilities");
        stream_send(r, NULL, choose_fields(r, last));
    }
}

static void native_finish(struct request *r) {
    if (r->stream) {
        stream_end(r);
        return;
    }
    json_t *list = json_array();
    const bool tokens = !json_is_false(json_object_get(r->extra, "tokens"));
    for (size_t i = 0; i < r->n_jobs; i++) {
        json_t *one = native_json(r, r->jobs[i]);
        if (!tokens) json_object_set_new(one, "tokens", json_array());
        json_array_append_new(list, choose_fields(r, one));
    }
    json_t *answer = r->n_jobs == 1 ? json_incref(json_array_get(list, 0)) : json_incref(list);
    json_decref(list);
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format native_format = {native_piece, native_finish, native_progress};

/* ---- Requests ---- */

static bool read_native_fields(struct request *r, json_t *body, int64_t *n_probs, bool *sampled,
                               struct problem *problem) {
    bool tokens = true;
    json_t *fields = json_object_get(body, "response_fields"), *name;
    size_t i;
    if (!field_bool(body, "stream", &r->stream, problem) || !field_bool(body, "return_tokens", &tokens, problem) ||
        !field_bool(body, "post_sampling_probs", sampled, problem) ||
        !field_int(body, "n_probs", 0, MAX_TOP, n_probs, problem))
        return false;
    if (fields && !json_is_array(fields) && !json_is_null(fields))
        return problem_set(problem, 400, "response_fields must be a list of names");
    json_array_foreach(fields, i, name) if (!json_is_string(name) ||
                                            json_string_length(name) >
                                                200) return problem_set(problem, 400,
                                                                        "response_fields must be a list of names");
    r->extra = json_pack("{s:b, s:O?}", "tokens", (int)tokens, "fields", json_is_array(fields) ? fields : NULL);
    return true;
}

static void serve_native_prompt(struct served *served, struct evhttp_request *http, json_t *body, json_t *prompt,
                                struct problem *problem) {
    struct request *r = problem->code ? NULL : request_new(served, http, &native_format, "cmpl-");
    tn_tokens *lists = r ? tn_calloc(MAX_CHOICES, sizeof *lists) : NULL;
    size_t count = 0;
    int64_t n_probs = 0;
    bool sampled = false;
    bool fine = lists || problem->code ? !problem->code : problem_set(problem, 500, "out of memory");
    fine = fine && read_native_fields(r, body, &n_probs, &sampled, problem) &&
           prompts_read(served, prompt, lists, &count, MAX_CHOICES, served->n_ctx, problem);
    for (size_t i = 0; fine && i < count; i++) {
        struct job *job = request_add_job(r);
        if (!job) {
            fine = problem_set(problem, 500, "out of memory");
            break;
        }
        job->prompt = lists[i];
        lists[i] = (tn_tokens){0};
        job->n_top = n_probs > 0 ? (int32_t)n_probs : -1;
        job->sampled_probs = sampled;
        fine = job_read(served, job, body, NULL, NULL, problem);
    }
    for (size_t i = 0; lists && i < MAX_CHOICES; i++) tn_tokens_free(&lists[i]);
    tn_free(lists);
    request_start(r, http, served, fine, problem);
}

void serve_native(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    serve_native_prompt(served, http, body, json_object_get(body, "prompt"), &problem);
}

/* ---- Filling in the middle ---- */

/* The id of a special token that the model has, appended to the mixed prompt. */
static bool append_special(const struct served *served, json_t *prompt, tn_special role) {
    tn_token token = tn_tokenizer_special(served->tokenizer, role);
    if (token >= 0) json_array_append_new(prompt, json_integer(token));
    return token >= 0;
}

static bool append_files(const struct served *served, json_t *prompt, json_t *extra, struct problem *problem) {
    json_t *file;
    size_t i;
    if (extra && !json_is_null(extra) && !json_is_array(extra))
        return problem_set(problem, 400, "input_extra must be a list of {filename, text}");
    const bool repository = json_array_size(extra) > 0 && append_special(served, prompt, TN_SPECIAL_FIM_REP);
    if (repository) json_array_append_new(prompt, json_string("myproject\n"));
    json_array_foreach(extra, i, file) {
        json_t *name = json_object_get(file, "filename"), *text = json_object_get(file, "text");
        if (!json_is_string(text) || (name && !json_is_string(name)))
            return problem_set(problem, 400, "input_extra[%zu] must be {filename, text}, both texts", i);
        if (append_special(served, prompt, TN_SPECIAL_FIM_SEP))
            json_array_append_new(prompt, json_sprintf("%s\n", name ? json_string_value(name) : "tmp"));
        json_array_append(prompt, text);
    }
    if (repository && append_special(served, prompt, TN_SPECIAL_FIM_SEP))
        json_array_append_new(prompt, json_string("filename\n"));
    return true;
}

json_t *infill_prompt(const struct served *served, json_t *extra, const char *prefix, const char *suffix,
                      const char *begun, struct problem *problem) {
    const tn_tokenizer *t = served->tokenizer;
    if (tn_tokenizer_special(t, TN_SPECIAL_FIM_PRE) < 0 || tn_tokenizer_special(t, TN_SPECIAL_FIM_SUF) < 0 ||
        tn_tokenizer_special(t, TN_SPECIAL_FIM_MID) < 0) {
        problem_set(problem, 501, "this model has no tokens for filling in the middle");
        return NULL;
    }
    json_t *prompt = json_array();
    if (tn_tokenizer_adds_bos(t)) append_special(served, prompt, TN_SPECIAL_BOS);
    if (!append_files(served, prompt, extra, problem)) {
        json_decref(prompt);
        return NULL;
    }
    for (int part = 0; part < 2; part++) {
        if ((part == 0) == served->server->suffix_first) {
            append_special(served, prompt, TN_SPECIAL_FIM_SUF);
            json_array_append_new(prompt, json_string(suffix));
            continue;
        }
        append_special(served, prompt, TN_SPECIAL_FIM_PRE);
        json_array_append_new(prompt, json_string(prefix));
        if (*begun) json_array_append_new(prompt, json_string(begun));
    }
    append_special(served, prompt, TN_SPECIAL_FIM_MID);
    json_t *list = json_pack("[o]", prompt); /* a list of one prompt: its parts are not separate prompts */
    return list;
}

void serve_infill(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    const char *prefix = NULL, *suffix = NULL, *begun = "";
    json_t *prompt = NULL;
    if (field_text(body, "input_prefix", &prefix, &problem) && field_text(body, "input_suffix", &suffix, &problem) &&
        field_text(body, "prompt", &begun, &problem)) {
        if (!prefix || !suffix)
            problem_set(&problem, 400, "input_prefix and input_suffix are missing");
        else
            prompt = infill_prompt(served, json_object_get(body, "input_extra"), prefix, suffix, begun, &problem);
    }
    serve_native_prompt(served, http, body, prompt, &problem);
    json_decref(prompt);
}

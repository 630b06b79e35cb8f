/* Fields of requests: typed values, sampling, grammars and prompts; and JSON that all APIs share. */
#include "serve/serve.h"

#include "cli/text_buffer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *get_field(json_t *body, const char *name) {
    json_t *value = json_object_get(body, name);
    return json_is_null(value) ? NULL : value;
}

bool field_real(json_t *body, const char *name, double min, double max, double *out, struct problem *problem) {
    json_t *value = get_field(body, name);
    if (!value) return true;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= min && number <= max))
        return problem_set(problem, 400, "%s must be a number from %g to %g", name, min, max);
    *out = number;
    return true;
}

bool field_int(json_t *body, const char *name, int64_t min, int64_t max, int64_t *out, struct problem *problem) {
    json_t *value = get_field(body, name);
    if (!value) return true;
    double real = json_number_value(value);
    bool whole = json_is_integer(value) || (json_is_real(value) && real == floor(real) && fabs(real) < 9e15);
    int64_t number = !whole ? 0 : json_is_integer(value) ? json_integer_value(value) : (int64_t)real;
    if (!whole || number < min || number > max)
        return problem_set(problem, 400, "%s must be a whole number from %lld to %lld", name, (long long)min,
                           (long long)max);
    *out = number;
    return true;
}

bool field_bool(json_t *body, const char *name, bool *out, struct problem *problem) {
    json_t *value = get_field(body, name);
    if (!value) return true;
    if (!json_is_boolean(value)) return problem_set(problem, 400, "%s must be true or false", name);
    *out = json_is_true(value);
    return true;
}

bool field_text(json_t *body, const char *name, const char **out, struct problem *problem) {
    json_t *value = get_field(body, name);
    if (!value) return true;
    if (!json_is_string(value)) return problem_set(problem, 400, "%s must be a string", name);
    *out = json_string_value(value);
    return true;
}

bool field_object(json_t *body, const char *name, json_t **out, struct problem *problem) {
    json_t *value = get_field(body, name);
    if (!value) return true;
    if (!json_is_object(value)) return problem_set(problem, 400, "%s must be an object", name);
    *out = value;
    return true;
}

bool field_list(json_t *body, const char *name, json_t **out, struct problem *problem) {
    json_t *value = get_field(body, name);
    if (!value) return true;
    if (!json_is_array(value)) return problem_set(problem, 400, "%s must be a list", name);
    *out = value;
    return true;
}

/* ---- Sampling ---- */

struct real_field {
    const char *name;
    size_t offset;
    double min, max;
};
#define REAL(field, member, low, high)                                                                               \
    { field, offsetof(tn_sampler_params, member), low, high }
static const struct real_field real_fields[] = {
    REAL("temperature", temperature, 0, 100),
    REAL("top_p", top_p, 0, 1),
    REAL("min_p", min_p, 0, 1),
    REAL("typical_p", typical_p, 0, 1),
    REAL("top_n_sigma", top_n_sigma, -1, 1000),
    REAL("xtc_probability", xtc_probability, 0, 1),
    REAL("xtc_threshold", xtc_threshold, 0, 1),
    REAL("dynatemp_range", dynamic_range, 0, 100),
    REAL("dynatemp_exponent", dynamic_exponent, 0, 100),
    REAL("repeat_penalty", repeat_penalty, 0.01, 100),
    REAL("repetition_penalty", repeat_penalty, 0.01, 100),
    REAL("presence_penalty", presence_penalty, -100, 100),
    REAL("frequency_penalty", frequency_penalty, -100, 100),
    REAL("dry_multiplier", dry_multiplier, 0, 100),
    REAL("dry_base", dry_base, 1, 100),
    REAL("mirostat_tau", mirostat_tau, 0, 100),
    REAL("mirostat_eta", mirostat_eta, 0, 10),
};

static bool read_sampler_chain(json_t *body, tn_sampler_params *p, struct problem *problem) {
    json_t *list = get_field(body, "samplers"), *item;
    size_t i;
    if (!list) return true;
    if (!json_is_array(list)) return problem_set(problem, 400, "samplers must be a list of names");
    p->n_chain = 0;
    json_array_foreach(list, i, item) {
        const char *name = json_string_value(item);
        tn_sampler_kind kind;
        if (name && (strcmp(name, "typ_p") == 0 || strcmp(name, "typical_p") == 0)) name = "typical";
        if (name && strcmp(name, "temp") == 0) name = "temperature";
        if (!name || tn_sampler_kind_from_name(name, &kind) != TN_OK)
            return name ? problem_set(problem, 400, "samplers: %s", tn_error())
                        : problem_set(problem, 400, "samplers must be a list of names");
        for (size_t k = 0; k < p->n_chain; k++)
            if (p->chain[k] == kind) return problem_set(problem, 400, "samplers: %.40s is listed twice", name);
        p->chain[p->n_chain++] = kind;
    }
    return true;
}

enum { MAX_BIASES = 1024 };
struct bias_list {
    tn_logit_bias list[MAX_BIASES];
    size_t count;
};

static bool add_bias(const struct served *served, struct bias_list *biases, tn_token token, double bias,
                     struct problem *problem) {
    if (token < 0 || token >= served->info.n_vocab)
        return problem_set(problem, 400, "logit_bias: %d is not a token id", token);
    if (biases->count == MAX_BIASES) return problem_set(problem, 400, "logit_bias: more than %d tokens", MAX_BIASES);
    biases->list[biases->count++] = (tn_logit_bias){token, bias <= -100 ? -INFINITY : (float)bias};
    return true;
}

/* The bias of a text applies to all its tokens. */
static bool add_text_bias(struct served *served, struct bias_list *biases, const char *text, size_t length,
                          double bias, struct problem *problem) {
    tn_tokens tokens = {0};
    bool fine = tn_tokenizer_encode(served->tokenizer, text, length, TN_ENCODE_PARSE_SPECIAL | TN_ENCODE_CONTINUE,
                                    &tokens) == TN_OK;
    for (size_t k = 0; fine && k < tokens.count; k++) fine = add_bias(served, biases, tokens.ids[k], bias, problem);
    tn_tokens_free(&tokens);
    return fine || (problem->code ? false : problem_status(problem, TN_E_INVALID, "logit_bias"));
}

/* {"ID or text": bias}, as in the OpenAI API, or [[id or text, bias or false]]. */
static bool read_biases(struct served *served, json_t *body, struct bias_list *biases, struct problem *problem) {
    json_t *map = get_field(body, "logit_bias"), *value;
    const char *key;
    size_t i;
    if (!map) return true;
    if (json_is_object(map)) {
        json_object_foreach(map, key, value) {
            char *end;
            long token = strtol(key, &end, 10);
            const double bias = json_is_false(value) ? -INFINITY : json_number_value(value);
            if ((!json_is_number(value) && !json_is_false(value)) || token > INT32_MAX)
                return problem_set(problem, 400, "logit_bias must map token ids or texts to numbers");
            if (!(end == key || *end ? add_text_bias(served, biases, key, strlen(key), bias, problem)
                                     : add_bias(served, biases, (tn_token)token, bias, problem)))
                return false;
        }
        return true;
    }
    if (!json_is_array(map)) return problem_set(problem, 400, "logit_bias must be an object or a list of pairs");
    json_array_foreach(map, i, value) {
        json_t *what = json_array_get(value, 0), *bias = json_array_get(value, 1);
        double amount = json_is_false(bias) ? -INFINITY : json_number_value(bias);
        if (!json_is_false(bias) && !json_is_number(bias))
            return problem_set(problem, 400, "logit_bias: each pair must be [token, bias]");
        if (json_is_integer(what)) {
            int64_t token = json_integer_value(what);
            if (!add_bias(served, biases, token > INT32_MAX || token < 0 ? -1 : (tn_token)token, amount, problem))
                return false;
        } else if (json_is_string(what)) {
            if (!add_text_bias(served, biases, json_string_value(what), json_string_length(what), amount, problem))
                return false;
        } else {
            return problem_set(problem, 400, "logit_bias: each pair must be [token, bias]");
        }
    }
    return true;
}

/* The request's own stop words first, then, in a chat, the text that ends a turn. */
static bool read_stops(struct served *served, struct job *job, json_t *body, struct problem *problem) {
    json_t *stop = get_field(body, "stop");
    if (!stop) stop = get_field(body, "stop_sequences");
    size_t count = json_is_array(stop) ? json_array_size(stop) : stop ? 1 : 0;
    if (count > MAX_STOPS - 1) return problem_set(problem, 400, "stop: at most %d stop words", MAX_STOPS - 1);
    for (size_t i = 0; i < count; i++) {
        json_t *word = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!json_is_string(word)) return problem_set(problem, 400, "stop must be a string or a list of strings");
        size_t length = json_string_length(word);
        if (length > 500) return problem_set(problem, 400, "stop: stop words must not be longer than 500 bytes");
        if (length == 0) continue;
        if (!(job->stops[job->n_stops] = tn_strdup(json_string_value(word))))
            return problem_set(problem, 500, "out of memory");
        job->n_user_stops = ++job->n_stops;
    }
    const char *turn_end = job->request->prompt ? tn_chat_template_turn_end(served->chat) : "";
    if (*turn_end && strlen(turn_end) < 500 && (job->stops[job->n_stops] = tn_strdup(turn_end))) job->n_stops++;
    return true;
}

/* ---- Grammar ---- */

/* A strict schema must be followed as a whole; of others, keywords that no grammar can express are ignored. */
static bool schema_grammar(json_t *schema, bool strict, char **gbnf, char **notes, struct problem *problem) {
    char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return problem_set(problem, 500, "out of memory");
    enum { MAX_SCHEMA = 64 * 1024 };
    if (strlen(text) > MAX_SCHEMA) {
        problem_set(problem, 400, "the schema has %zu bytes; at most %d", strlen(text), (int)MAX_SCHEMA);
        free(text);
        return false;
    }
    tn_status status = strict ? tn_schema_to_grammar(text, gbnf) : tn_schema_to_grammar_relaxed(text, gbnf, notes);
    free(text);
    return status == TN_OK || problem_status(problem, status == TN_E_UNSUPPORTED ? TN_E_INVALID : status, "");
}

/* The grammar as GBNF, to be freed; NULL when the request has none. */
static bool read_grammar_fields(json_t *body, char **gbnf, char **notes, struct problem *problem) {
    const char *text = NULL, *type = NULL;
    bool strict = false;
    json_t *format = get_field(body, "response_format"), *schema = get_field(body, "json_schema");
    if (!field_text(body, "grammar", &text, problem)) return false;
    if (format) {
        if (!json_is_object(format)) return problem_set(problem, 400, "response_format must be an object");
        if (!field_text(format, "type", &type, problem)) return false;
        if (!type) return problem_set(problem, 400, "response_format needs a type");
        if (strcmp(type, "json_schema") == 0) {
            json_t *wrapped = get_field(format, "json_schema");
            schema = wrapped ? get_field(wrapped, "schema") : get_field(format, "schema");
            if (!field_bool(wrapped ? wrapped : format, "strict", &strict, problem)) return false;
            if (!schema) return problem_set(problem, 400, "response_format: json_schema.schema is missing");
        } else if (strcmp(type, "json_object") == 0) {
            schema = get_field(format, "schema");
            if (!schema) text = tn_grammar_json();
        } else if (strcmp(type, "text") != 0) {
            return problem_set(problem, 400, "response_format: type must be text, json_object or json_schema");
        }
    }
    if (schema) {
        if (text) return problem_set(problem, 400, "use either a grammar or a JSON schema, not both");
        return schema_grammar(schema, strict, gbnf, notes, problem);
    }
    if (text && *text && !(*gbnf = tn_strdup(text))) return problem_set(problem, 500, "out of memory");
    return true;
}

/* Grammars are compiled once per request; its jobs get copies. Their size is limited, because masks of a very
 * large grammar would delay all requests. */
static bool compile_grammar(struct served *served, struct request *r, const char *gbnf, const char *trigger,
                            struct problem *problem) {
    enum { MAX_GRAMMAR = 256 * 1024 };
    tn_grammar *grammar = NULL;
    if (strlen(gbnf) > MAX_GRAMMAR)
        return problem_set(problem, 400,
                           "the grammar of this schema has %zu bytes, more than %d: use fewer properties",
                           strlen(gbnf), (int)MAX_GRAMMAR);
    tn_status status = tn_grammar_new(gbnf, NULL, &grammar);
    if (status != TN_OK) return problem_status(problem, status, "grammar");
    tn_grammar_trigger start = {.text = trigger, .token = TN_TOKEN_NONE, .included = true};
    tn_grammar_state_params p = {.grammar = grammar,
                                 .pieces = served->pieces,
                                 .triggers = trigger ? &start : NULL,
                                 .n_triggers = trigger != NULL};
    status = tn_grammar_state_new(&p, &r->grammar);
    tn_grammar_free(grammar);
    return status == TN_OK || problem_status(problem, status, "grammar");
}

static bool set_grammar(struct served *served, struct job *job, json_t *body, const char *gbnf, const char *trigger,
                        struct problem *problem) {
    struct request *r = job->request;
    tn_grammar_state *state = NULL;
    char *own = NULL;
    bool fine = r->grammar_read || read_grammar_fields(body, &own, &r->schema_notes, problem);
    const char *text = own ? own : gbnf ? gbnf : served->server->grammar;
    if (fine && !r->grammar_read && text)
        fine = compile_grammar(served, r, text, text == gbnf ? trigger : NULL, problem);
    tn_free(own);
    r->grammar_read = true;
    if (!fine || !r->grammar) return fine;
    tn_status status = tn_grammar_state_clone(r->grammar, &state);
    if (status == TN_OK && (status = tn_sampler_set_grammar(job->sampler, state)) != TN_OK)
        tn_grammar_state_free(state);
    return status == TN_OK || problem_status(problem, status, "grammar");
}

/* ---- Jobs ---- */

static bool make_sampler(struct served *served, struct job *job, json_t *body, struct problem *problem) {
    tn_sampler_params p = served->server->sampling;
    job->ignore_end = served->server->ignore_end;
    int64_t seed = -1, top_k = p.top_k, window = p.penalty_window, mirostat = p.mirostat, min_keep = 0;
    int64_t dry_length = p.dry_allowed_length, dry_window = p.dry_window;
    double adaptive_target = -1;
    struct bias_list biases = {.count = 0};
    for (size_t i = 0; i < sizeof real_fields / sizeof *real_fields; i++) {
        const struct real_field *f = &real_fields[i];
        float *member = (float *)(void *)((char *)&p + f->offset);
        double value = *member;
        if (!field_real(body, f->name, f->min, f->max, &value, problem)) return false;
        *member = (float)value;
    }
    if (p.top_n_sigma < 0) p.top_n_sigma = 0;
    if (!field_int(body, "seed", INT64_MIN, INT64_MAX, &seed, problem) ||
        !field_int(body, "top_k", -1, INT32_MAX, &top_k, problem) ||
        !field_int(body, "repeat_last_n", -1, 1 << 20, &window, problem) ||
        !field_int(body, "mirostat", 0, 2, &mirostat, problem) ||
        !field_int(body, "min_keep", 0, 1 << 20, &min_keep, problem) ||
        !field_int(body, "dry_allowed_length", 0, 1 << 20, &dry_length, problem) ||
        !field_int(body, "dry_penalty_last_n", -1, 1 << 20, &dry_window, problem) ||
        !field_real(body, "adaptive_target", -1, 1, &adaptive_target, problem) ||
        !field_bool(body, "ignore_eos", &job->ignore_end, problem) || !read_sampler_chain(body, &p, problem) ||
        !read_biases(served, body, &biases, problem))
        return false;
    if (adaptive_target >= 0)
        return problem_set(problem, 400, "adaptive_target: there is no adaptive-p sampler; mirostat is related");
    if (get_field(body, "seed")) p.seed = seed < 0 ? TN_SEED_RANDOM : (uint64_t)seed;
    /* Several completions of one request should differ, but reproducibly. */
    if (p.seed != TN_SEED_RANDOM) p.seed += job->index;
    p.top_k = top_k < 0 ? 0 : (int32_t)top_k;
    p.penalty_window = window < 0 ? served->n_ctx : (int32_t)window;
    p.mirostat = (int32_t)mirostat;
    p.dry_allowed_length = (int32_t)dry_length;
    p.dry_window = dry_window < 0 ? served->n_ctx : (int32_t)dry_window;
    if (get_field(body, "min_keep")) p.min_keep = (size_t)min_keep;
    for (tn_token t = 0; job->ignore_end && t < served->info.n_vocab && biases.count < MAX_BIASES; t++)
        if (tn_token_is_end(served->tokenizer, t)) biases.list[biases.count++] = (tn_logit_bias){t, -INFINITY};
    for (size_t i = 0; i < served->server->sampling.n_logit_bias && biases.count < MAX_BIASES; i++)
        biases.list[biases.count++] = served->server->sampling.logit_bias[i];
    p.logit_bias = biases.list;
    p.n_logit_bias = biases.count;
    p.pieces = served->pieces;
    tn_status status = tn_sampler_new(&p, (size_t)served->info.n_vocab, &job->sampler);
    if (status != TN_OK) return problem_status(problem, status, "");
    job->sampling = p;
    job->sampling.logit_bias = NULL; /* the list is local to this function */
    job->sampling.n_logit_bias = 0;
    if (biases.count && !(job->biases = tn_malloc(biases.count * sizeof *job->biases)))
        return problem_set(problem, 500, "out of memory");
    if (biases.count) memcpy(job->biases, biases.list, biases.count * sizeof *job->biases);
    job->n_biases = biases.count;
    size_t from = 0, window_size = (size_t)(p.penalty_window > p.dry_window ? p.penalty_window : p.dry_window);
    if (job->prompt.count > window_size) from = job->prompt.count - window_size;
    for (; from < job->prompt.count && status == TN_OK; from++)
        status = tn_sampler_accept(job->sampler, job->prompt.ids[from]);
    return status == TN_OK || problem_status(problem, status, "prompt");
}

json_t *sampling_json(const tn_sampler_params *p, uint64_t seed, int32_t n_predict) {
    json_t *object =
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "n_predict", (int)n_predict, "max_tokens", (int)n_predict,
                  "top_k", (int)p->top_k, "repeat_last_n", (int)p->penalty_window, "dry_allowed_length",
                  (int)p->dry_allowed_length, "dry_penalty_last_n", (int)p->dry_window, "mirostat", (int)p->mirostat);
    for (size_t i = 0; i < sizeof real_fields / sizeof *real_fields; i++) {
        const float *member = (const float *)(const void *)((const char *)p + real_fields[i].offset);
        json_object_set_new(object, real_fields[i].name, json_real((double)*member));
    }
    json_object_del(object, "repetition_penalty"); /* an alias of repeat_penalty */
    /* llama.cpp's adaptive-p sampler, which is off there below 0. */
    json_object_set_new(object, "adaptive_target", json_real(-1));
    json_object_set_new(object, "adaptive_decay", json_real(0.9));
    json_t *chain = json_array();
    for (size_t i = 0; i < p->n_chain; i++)
        json_array_append_new(chain, json_string(tn_sampler_kind_name(p->chain[i])));
    json_object_set_new(object, "samplers", chain);
    /* -1 means a new seed for every request, as in requests. */
    json_object_set_new(object, "seed", json_integer(seed == TN_SEED_RANDOM ? -1 : (json_int_t)(seed & INT64_MAX)));
    return object;
}

bool job_read(struct served *served, struct job *job, json_t *body, const char *gbnf, const char *trigger,
              struct problem *problem) {
    int64_t limit = -1, slot = -1, keep = served->server->keep, guess_max = -1, guess_min = 0;
    double guess_p_min = 0;
    bool cache = true;
    static const char *const names[] = {"n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens"};
    limit = served->server->default_predict;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!field_int(body, names[i], -1, INT32_MAX, &limit, problem)) return false;
    if (!field_bool(body, "return_progress", &job->progress, problem) ||
        !field_bool(body, "timings_per_token", &job->timings, problem) ||
        !field_bool(body, "cache_prompt", &cache, problem) ||
        !field_int(body, "id_slot", -1, served->server->n_slots - 1, &slot, problem) ||
        !field_int(body, "n_keep", -1, INT32_MAX, &keep, problem) ||
        !field_int(body, "speculative.n_max", 0, TN_GUESS_MOST, &guess_max, problem) ||
        !field_int(body, "speculative.n_min", 0, TN_GUESS_MOST, &guess_min, problem) ||
        !field_real(body, "speculative.p_min", 0, 1, &guess_p_min, problem) ||
        !make_sampler(served, job, body, problem) ||
        !scales_read(served, json_object_get(body, "lora"), job->scales, problem) ||
        !read_stops(served, job, body, problem) || !set_grammar(served, job, body, gbnf, trigger, problem))
        return false;
    /* Without a limit, generation ends when the context is full, unless it is shifted. */
    const int32_t left = served->shifts ? INT32_MAX : served->n_ctx - (int32_t)job->prompt.count;
    job->n_predict = limit >= 0 ? (int32_t)limit : left > 0 ? left : 1;
    job->until_full = limit < 0;
    job->n_keep = (int32_t)keep;
    job->guess_max = (int32_t)guess_max;
    job->guess_min = (int32_t)guess_min;
    job->guess_p_min = (float)guess_p_min;
    job->no_cache = !cache;
    job->slot = (int)slot;
    const tn_generator_params p = {.sampler = job->sampler,
                                   .decode_flags =
                                       TN_DECODE_CONTINUE | (job->request->prompt ? TN_DECODE_SPECIAL : 0),
                                   .ignore_end = job->ignore_end,
                                   .stops = (const char *const *)job->stops,
                                   .n_stops = job->n_stops};
    tn_status status = tn_generator_new(served->tokenizer, &p, &job->generator);
    return status == TN_OK || problem_status(problem, status, "");
}

/* ---- Prompts ---- */

bool prompt_check(const tn_tokens *prompt, int32_t limit, struct problem *problem) {
    if (prompt->count == 0) return problem_set(problem, 400, "the prompt is empty");
    if (prompt->count < (size_t)limit) return true;
    problem_set(problem, 400, "the request (%zu tokens) exceeds the available context size (%d tokens)",
                prompt->count, limit);
    problem->type = "exceed_context_size_error";
    problem->more = json_pack("{s:I, s:i}", "n_prompt_tokens", (json_int_t)prompt->count, "n_ctx", (int)limit);
    return false;
}

static bool append_text(struct served *served, json_t *text, tn_tokens *out, struct problem *problem) {
    unsigned flags = TN_ENCODE_PARSE_SPECIAL | (out->count ? TN_ENCODE_CONTINUE : TN_ENCODE_ADD_SPECIAL);
    tn_status status =
        tn_tokenizer_encode(served->tokenizer, json_string_value(text), json_string_length(text), flags, out);
    return status == TN_OK || problem_status(problem, status, "prompt");
}

static bool append_id(struct served *served, json_t *id, tn_tokens *out, struct problem *problem) {
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value >= served->info.n_vocab)
        return problem_set(problem, 400, "prompt: a list must contain strings and token ids below %d",
                           served->info.n_vocab);
    tn_token token = (tn_token)value;
    return tokens_append(out, &token, 1) == TN_OK || problem_set(problem, 500, "out of memory");
}

static bool read_prompt_item(struct served *served, json_t *prompt, tn_tokens *out, struct problem *problem) {
    json_t *item;
    size_t i;
    if (json_is_object(prompt)) {
        json_t *media = json_object_get(prompt, "multimodal_data");
        if (media && !json_is_null(media) && !(json_is_array(media) && json_array_size(media) == 0))
            return problem_set(problem, 400, "prompt: this model reads texts only, no multimodal_data");
        prompt = json_object_get(prompt, "prompt_string");
    }
    if (json_is_string(prompt)) return append_text(served, prompt, out, problem);
    if (!json_is_array(prompt))
        return problem_set(problem, 400, "prompt must be a string, a list of tokens, or a list of these");
    json_array_foreach(prompt, i, item) if (!(json_is_string(item) ? append_text : append_id)(served, item, out,
                                                                                              problem)) return false;
    return true;
}

bool prompts_read(struct served *served, json_t *prompt, tn_tokens *lists, size_t *count, size_t capacity,
                  int32_t limit, struct problem *problem) {
    bool many = json_is_array(prompt) && json_array_size(prompt) > 0, nested = false;
    json_t *item;
    size_t i;
    json_array_foreach(prompt, i, item) {
        many = many && (json_is_string(item) || json_is_array(item) || json_is_object(item));
        nested = nested || json_is_array(item) || json_is_object(item);
    }
    if (!prompt || json_is_null(prompt)) return problem_set(problem, 400, "prompt is missing");
    if (nested && !many) return problem_set(problem, 400, "prompt mixes lists and token ids");
    size_t n = many ? json_array_size(prompt) : 1;
    if (n > capacity) return problem_set(problem, 400, "at most %zu prompts per request", capacity);
    for (i = 0; i < n; i++) {
        (*count)++;
        if (!read_prompt_item(served, many ? json_array_get(prompt, i) : prompt, &lists[i], problem) ||
            !prompt_check(&lists[i], limit, problem))
            return false;
    }
    return true;
}

/* ---- JSON shared by all APIs ---- */

json_t *token_text_json(struct served *served, tn_token token) {
    size_t length = 0;
    const char *piece = tn_token_piece(served->tokenizer, token, &length);
    json_t *text = piece ? json_stringn(piece, length) : NULL;
    return text ? text : json_string("\xef\xbf\xbd");
}

json_t *token_bytes_json(struct served *served, tn_token token) {
    size_t length = 0;
    const char *piece = tn_token_piece(served->tokenizer, token, &length);
    json_t *bytes = json_array();
    for (size_t i = 0; piece && i < length; i++) json_array_append_new(bytes, json_integer((unsigned char)piece[i]));
    return bytes;
}

json_t *usage_json(const struct request *request) {
    int64_t prompt = 0, predicted = 0, cached = 0;
    for (size_t i = 0; i < request->n_jobs; i++) {
        prompt += request->jobs[i]->stats.n_prompt;
        predicted += request->jobs[i]->stats.n_predicted;
        cached += request->jobs[i]->stats.n_cached;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)predicted, "total_tokens", (json_int_t)(prompt + predicted), "prompt_tokens_details",
                     "cached_tokens", (json_int_t)cached);
}

void answer_slot(const struct request *request, json_t *answer) {
    if (request->n_jobs && request->jobs[0]->slot >= 0)
        json_object_set_new(answer, "id_slot", json_integer(request->jobs[0]->stats.id_slot));
    answer_note(request, answer);
}

void answer_note(const struct request *request, json_t *answer) {
    if (request->schema_notes)
        json_object_set_new(answer, "note", json_sprintf("ignored in the schema: %s", request->schema_notes));
}

/* Tokens per second; 0 where nothing was measured. */
static double per_second(int n, double ms) { return n > 0 && ms > 0 ? n * 1e3 / ms : 0; }
static double ms_per_token(int n, double ms) { return n > 0 ? ms / n : 0; }

json_t *timings_json(const struct job *job) {
    const struct job_stats *s = &job->stats;
    /* The first token comes with the prompt and needs no step. */
    const int prompt = s->n_done - s->n_cached, steps = s->n_predicted - 1;
    json_t *all =
        json_pack("{s:i, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:f}", "cache_n", (int)s->n_cached, "prompt_n", prompt,
                  "prompt_ms", s->prompt_ms, "prompt_per_token_ms", ms_per_token(prompt, s->prompt_ms),
                  "prompt_per_second", per_second(prompt, s->prompt_ms), "predicted_n", (int)s->n_predicted,
                  "predicted_ms", s->predicted_ms, "predicted_per_token_ms", ms_per_token(steps, s->predicted_ms),
                  "predicted_per_second", per_second(steps, s->predicted_ms));
    if (!s->n_drafted) return all;
    json_object_set_new(all, "draft_n", json_integer(s->n_drafted));
    json_object_set_new(all, "draft_n_accepted", json_integer(s->n_accepted));
    return all;
}

json_t *progress_json(const struct job *job) {
    const struct job_stats *s = &job->stats;
    return json_pack("{s:i, s:i, s:i, s:I}", "total", (int)s->n_prompt, "cache", (int)s->n_cached, "processed",
                     (int)s->n_done, "time_ms", (json_int_t)s->prompt_ms);
}

const char *system_fingerprint(void) {
    static char text[64];
    if (!*text) snprintf(text, sizeof text, "b%s-tenon", tn_version());
    return text;
}

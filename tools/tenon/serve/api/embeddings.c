/* POST /v1/embeddings and /v1/rerank: embedding vectors of texts, and their relevance to a query. */
#include "serve/serve.h"

#include <stdlib.h>
#include <string.h>

/* The bytes of the floats (little-endian) in base64. */
static json_t *base64_floats(const float *vector, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t size = n * sizeof *vector, at = 0;
    const unsigned char *bytes = (const unsigned char *)vector;
    char *text = tn_malloc(size / 3 * 4 + 5);
    if (!text) return NULL;
    for (size_t i = 0; i < size; i += 3) {
        unsigned b = i + 1 < size ? bytes[i + 1] : 0, c = i + 2 < size ? bytes[i + 2] : 0;
        unsigned word = (unsigned)bytes[i] << 16 | b << 8 | c;
        text[at++] = digits[word >> 18];
        text[at++] = digits[word >> 12 & 63];
        text[at++] = i + 1 < size ? digits[word >> 6 & 63] : '=';
        text[at++] = i + 2 < size ? digits[word & 63] : '=';
    }
    json_t *json = json_stringn(text, at);
    tn_free(text);
    return json;
}

/* The vectors are in the last pieces, which the jobs keep. */
static void embed_piece(struct request *r, struct job *job, const struct piece *p) {
    (void)r;
    (void)job;
    (void)p;
}

static json_t *floats_json(const float *vector, size_t n) {
    json_t *list = json_array();
    for (size_t k = 0; k < n; k++) {
        json_t *number = json_real((double)vector[k]); /* NULL for NaN and infinity, which JSON lacks */
        json_array_append_new(list, number ? number : json_null());
    }
    return list;
}

/* /embedding: a list of {index, embedding}, where an embedding is a list of vectors: one, or one per token. */
static void embed_native_end(struct request *r) {
    json_t *list = json_array();
    int norm = (int)json_integer_value(json_object_get(r->extra, "norm"));
    const size_t size = (size_t)r->served->n_embd;
    for (size_t i = 0; i < r->n_jobs; i++) {
        struct job *job = r->jobs[i];
        json_t *vectors = json_array();
        for (size_t k = 0; k + size <= job->n_vector; k += size) {
            if (!r->served->per_token) tn_embedding_normalize(job->vector + k, (int32_t)size, norm);
            json_array_append_new(vectors, floats_json(job->vector + k, size));
        }
        json_array_append_new(list, json_pack("{s:I, s:o}", "index", (json_int_t)i, "embedding", vectors));
    }
    reply_json(r->served->server, request_take(r), 200, list);
}

static void embed_end(struct request *r) {
    json_t *data = json_array();
    json_int_t tokens = 0;
    int norm = (int)json_integer_value(json_object_get(r->extra, "norm"));
    bool encoded = json_is_true(json_object_get(r->extra, "base64"));
    for (size_t i = 0; i < r->n_jobs; i++) {
        struct job *job = r->jobs[i];
        json_t *vector = NULL;
        tokens += job->stats.n_prompt;
        tn_embedding_normalize(job->vector, (int32_t)job->n_vector, norm);
        vector = encoded ? base64_floats(job->vector, job->n_vector) : floats_json(job->vector, job->n_vector);
        json_array_append_new(data, json_pack("{s:s, s:I, s:o}", "object", "embedding", "index", (json_int_t)i,
                                              "embedding", vector ? vector : json_null()));
    }
    json_t *answer = json_pack("{s:s, s:s, s:o, s:{s:I, s:I}}", "object", "list", "model", r->served->alias, "data",
                               data, "usage", "prompt_tokens", tokens, "total_tokens", tokens);
    reply_json(r->served->server, request_take(r), 200, answer);
}

/* Ollama's forms: all vectors, or the one of /api/embeddings. */
static void embed_ollama_end(struct request *r) {
    json_t *list = json_array(), *answer;
    json_int_t tokens = 0;
    for (size_t i = 0; i < r->n_jobs; i++) {
        tokens += r->jobs[i]->stats.n_prompt;
        tn_embedding_normalize(r->jobs[i]->vector, (int32_t)r->jobs[i]->n_vector, 2);
        json_array_append_new(list, floats_json(r->jobs[i]->vector, r->jobs[i]->n_vector));
    }
    if (json_is_true(json_object_get(r->extra, "one")))
        answer = json_pack("{s:O}", "embedding", json_array_get(list, 0));
    else
        answer =
            json_pack("{s:s, s:O, s:I, s:i, s:I}", "model", r->served->alias, "embeddings", list, "total_duration",
                      (json_int_t)(tn_time_ns() - r->begin), "load_duration", 0, "prompt_eval_count", tokens);
    json_decref(list);
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format embed_ollama_format = {.piece = embed_piece, .end = embed_ollama_end};
static const struct response_format embed_native_format = {.piece = embed_piece, .end = embed_native_end};
static const struct response_format embed_format = {.piece = embed_piece, .end = embed_end};

/* A text is computed in one batch. */
static bool check_input(const struct served *served, const tn_tokens *prompt, struct problem *problem) {
    if (prompt->count <= (size_t)served->embed_limit) return true;
    problem_set(problem, 400, "the input (%zu tokens) is too large: at most %d tokens, as --ubatch says",
                prompt->count, (int)served->embed_limit);
    problem->type = "exceed_context_size_error";
    problem->more =
        json_pack("{s:I, s:i}", "n_prompt_tokens", (json_int_t)prompt->count, "n_ctx", (int)served->embed_limit);
    return false;
}

static bool read_embeddings(struct served *served, struct request *r, json_t *body, struct problem *problem) {
    const char *format = "float";
    int64_t norm = 2, size = served->n_embd;
    size_t count = 0, capacity = MAX_INPUTS;
    json_t *input = json_object_get(body, "input");
    if (!input) input = json_object_get(body, "content");
    const bool one = !input && json_is_string(json_object_get(body, "prompt")); /* Ollama's older form */
    if (!input) input = json_object_get(body, "prompt");
    if (!input) return problem_set(problem, 400, "input is missing");
    if (!field_text(body, "encoding_format", &format, problem) ||
        !field_int(body, "dimensions", 1, INT32_MAX, &size, problem) ||
        !field_int(body, "embd_normalize", -1, 100, &norm, problem))
        return false;
    if (strcmp(format, "float") != 0 && strcmp(format, "base64") != 0)
        return problem_set(problem, 400, "encoding_format must be float or base64");
    if (size != served->n_embd)
        return problem_set(problem, 400, "dimensions: this model's embeddings have %d dimensions", served->n_embd);
    r->extra = json_pack("{s:I, s:b, s:b}", "norm", (json_int_t)norm, "base64", (int)(strcmp(format, "base64") == 0),
                         "one", (int)one);
    tn_tokens *lists = tn_calloc(capacity, sizeof *lists);
    if (!lists) return problem_set(problem, 500, "out of memory");
    bool fine = prompts_read(served, input, lists, &count, capacity, INT32_MAX, problem);
    for (size_t i = 0; fine && i < count; i++) {
        struct job *job = request_add_job(r);
        if (!job) {
            fine = problem_set(problem, 500, "out of memory");
            break;
        }
        job->embed = true;
        job->prompt = lists[i];
        lists[i] = (tn_tokens){0};
        fine = check_input(served, &job->prompt, problem);
    }
    for (size_t i = 0; i < capacity; i++) tn_tokens_free(&lists[i]);
    tn_free(lists);
    return fine;
}

static void serve_vectors(struct served *served, struct evhttp_request *http, json_t *body,
                          const struct response_format *format) {
    struct problem problem = {0};
    if (!served->n_embd)
        problem_set(&problem, 501, "embeddings are off; start the server with --embedding");
    else if (served->ranks)
        problem_set(&problem, 501, "this model ranks texts and has no embeddings; use POST /v1/rerank");
    else if (served->per_token && format != &embed_native_format)
        problem_set(&problem, 400, "with --pooling none there is a vector per token; use POST /embeddings");
    if (problem.code) {
        reply_problem(served->server, http, &problem);
        return;
    }
    struct request *r = request_new(served, http, format, "embd-");
    bool fine = r ? read_embeddings(served, r, body, &problem) : problem_set(&problem, 500, "out of memory");
    request_start(r, http, served, fine, &problem);
}

void serve_embeddings(struct served *served, struct evhttp_request *http, json_t *body) {
    serve_vectors(served, http, body, &embed_format);
}

void serve_native_embeddings(struct served *served, struct evhttp_request *http, json_t *body) {
    serve_vectors(served, http, body, &embed_native_format);
}

void serve_ollama_embed(struct served *served, struct evhttp_request *http, json_t *body) {
    serve_vectors(served, http, body, &embed_ollama_format);
}

void serve_ollama_embeddings(struct served *served, struct evhttp_request *http, json_t *body) {
    serve_vectors(served, http, body, &embed_ollama_format);
}

/* ---- Ranking ---- */

struct ranked_document {
    size_t index;
    float score;
};

static int by_score(const void *a, const void *b) {
    const struct ranked_document *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static void rerank_end(struct request *r) {
    struct ranked_document *list = tn_calloc(r->n_jobs, sizeof *list);
    json_t *results = json_array(), *documents = json_object_get(r->extra, "documents");
    json_int_t tokens = 0;
    const bool tei = json_is_true(json_object_get(r->extra, "tei")); /* the form of text-embeddings-inference */
    size_t top = (size_t)json_integer_value(json_object_get(r->extra, "top_n"));
    for (size_t i = 0; i < r->n_jobs; i++) {
        tokens += r->jobs[i]->stats.n_prompt;
        if (list) list[i] = (struct ranked_document){i, r->jobs[i]->n_vector ? r->jobs[i]->vector[0] : 0};
    }
    if (list) qsort(list, r->n_jobs, sizeof *list, by_score);
    for (size_t i = 0; list && i < r->n_jobs && i < top; i++) {
        json_t *score = json_real((double)list[i].score); /* NULL for NaN and infinity, which JSON lacks */
        json_t *one = json_pack("{s:I, s:o}", "index", (json_int_t)list[i].index, tei ? "score" : "relevance_score",
                                score ? score : json_null());
        json_t *document = json_array_get(documents, list[i].index);
        if (document && tei) json_object_set(one, "text", document);
        if (document && !tei) json_object_set_new(one, "document", json_pack("{s:O}", "text", document));
        json_array_append_new(results, one);
    }
    tn_free(list);
    if (tei) {
        reply_json(r->served->server, request_take(r), 200, results);
        return;
    }
    /* Cohere's clients expect id and meta. */
    json_t *answer =
        json_pack("{s:s, s:s, s:s, s:{s:I, s:I}, s:{}, s:o}", "id", r->id, "model", r->served->alias, "object",
                  "list", "usage", "prompt_tokens", tokens, "total_tokens", tokens, "meta", "results", results);
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format rerank_format = {.piece = embed_piece, .end = rerank_end};

/* A document is a text, or an object with one. */
static json_t *document_text(json_t *document) {
    return json_is_object(document) ? json_object_get(document, "text") : document;
}

static bool read_rerank(struct served *served, struct request *r, json_t *body, struct problem *problem) {
    const char *query = NULL;
    json_t *documents = json_object_get(body, "documents"), *texts = json_array(), *document;
    int64_t top = (int64_t)json_array_size(documents);
    bool echo = false, tei = !documents && json_object_get(body, "texts");
    size_t i;
    if (tei) documents = json_object_get(body, "texts");
    if (!json_is_array(documents)) {
        json_decref(texts);
        return problem_set(problem, 400, "documents must be a list of texts");
    }
    top = (int64_t)json_array_size(documents);
    bool fine = field_text(body, "query", &query, problem) && field_int(body, "top_n", 1, INT32_MAX, &top, problem) &&
                field_bool(body, tei ? "return_text" : "return_documents", &echo, problem);
    if (fine && !query) fine = problem_set(problem, 400, "query is missing");
    if (fine && (!json_array_size(documents) || json_array_size(documents) > MAX_INPUTS))
        fine = problem_set(problem, 400, "documents must be 1 to %d texts", (int)MAX_INPUTS);
    json_array_foreach(documents, i, document) {
        json_t *text = document_text(document);
        if (fine && !json_is_string(text)) fine = problem_set(problem, 400, "document %zu is not a text", i);
        if (!fine) break;
        json_array_append(texts, text);
        struct job *job = request_add_job(r);
        if (!job) {
            fine = problem_set(problem, 500, "out of memory");
            break;
        }
        job->embed = true;
        tn_status status = tn_rank_tokens(served->model, query, strlen(query), json_string_value(text),
                                          json_string_length(text), &job->prompt);
        fine = status == TN_OK ? check_input(served, &job->prompt, problem)
                               : problem_status(problem, status, "documents");
    }
    r->extra = json_pack("{s:I, s:o, s:b}", "top_n", (json_int_t)top, "documents",
                         echo ? json_incref(texts) : json_null(), "tei", (int)tei);
    json_decref(texts);
    return fine;
}

void serve_rerank(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    if (!served->ranks) {
        problem_set(&problem, 501, "this server does not rank; start it with --rerank and a model with a classifier");
        reply_problem(served->server, http, &problem);
        return;
    }
    struct request *r = request_new(served, http, &rerank_format, "rank-");
    bool fine = r ? read_rerank(served, r, body, &problem) : problem_set(&problem, 500, "out of memory");
    request_start(r, http, served, fine, &problem);
}

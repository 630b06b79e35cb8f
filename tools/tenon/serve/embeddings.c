/* POST /v1/embeddings: embedding vectors of texts. */
#include "serve.h"

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
        if (encoded) {
            vector = base64_floats(job->vector, job->n_vector);
        } else {
            vector = json_array();
            for (size_t k = 0; k < job->n_vector; k++) {
                json_t *number = json_real((double)job->vector[k]); /* NULL for NaN and infinity, which JSON lacks */
                json_array_append_new(vector, number ? number : json_null());
            }
        }
        json_array_append_new(data, json_pack("{s:s, s:I, s:o}", "object", "embedding", "index", (json_int_t)i,
                                              "embedding", vector ? vector : json_null()));
    }
    json_t *answer = json_pack("{s:s, s:s, s:o, s:{s:I, s:I}}", "object", "list", "model", r->served->alias, "data",
                               data, "usage", "prompt_tokens", tokens, "total_tokens", tokens);
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format embed_format = {embed_piece, embed_end};

static bool read_embeddings(struct served *served, struct request *r, json_t *body, struct problem *problem) {
    const char *format = "float";
    int64_t norm = 2, size = served->n_embd;
    size_t count = 0, capacity = MAX_INPUTS;
    json_t *input = json_object_get(body, "input");
    if (!input) input = json_object_get(body, "content");
    if (!input) return problem_set(problem, 400, "input is missing");
    if (!field_text(body, "encoding_format", &format, problem) ||
        !field_int(body, "dimensions", 1, INT32_MAX, &size, problem) ||
        !field_int(body, "embd_normalize", -1, 100, &norm, problem))
        return false;
    if (strcmp(format, "float") != 0 && strcmp(format, "base64") != 0)
        return problem_set(problem, 400, "encoding_format must be float or base64");
    if (size != served->n_embd)
        return problem_set(problem, 400, "dimensions: this model's embeddings have %d dimensions", served->n_embd);
    r->extra = json_pack("{s:I, s:b}", "norm", (json_int_t)norm, "base64", (int)(strcmp(format, "base64") == 0));
    tn_tokens *lists = tn_calloc(capacity, sizeof *lists);
    if (!lists) return problem_set(problem, 500, "out of memory");
    bool fine = prompts_read(served, input, lists, &count, capacity, served->embed_limit + 1, problem);
    for (size_t i = 0; fine && i < count; i++) {
        struct job *job = request_add_job(r);
        if (!job) {
            fine = problem_set(problem, 500, "out of memory");
            break;
        }
        job->embed = true;
        job->prompt = lists[i];
        lists[i] = (tn_tokens){0};
    }
    for (size_t i = 0; i < capacity; i++) tn_tokens_free(&lists[i]);
    tn_free(lists);
    return fine;
}

void serve_embeddings(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    if (!served->n_embd) {
        problem_set(&problem, 501, "embeddings are off; start the server with --embedding");
        reply_problem(served->server, http, &problem);
        return;
    }
    struct request *r = request_new(served, http, &embed_format, "embd-");
    bool fine = r ? read_embeddings(served, r, body, &problem) : problem_set(&problem, 500, "out of memory");
    request_start(r, http, served, fine, &problem);
}

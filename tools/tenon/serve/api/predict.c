/* POST /predict: chats in the form of Google's prediction service, for servers that it starts (AIP_MODE). */
#include "serve/api/chat_request.h"

#include <stdlib.h>
#include <string.h>

static void predict_piece(struct request *r, struct job *job, const struct piece *p) {
    if (!chat_feed(job, p, NULL, NULL)) snprintf(r->failed, sizeof r->failed, "%s", tn_error());
}

static void predict_end(struct request *r) {
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_jobs; i++) {
        struct job *job = r->jobs[i];
        const bool calls = tn_chat_parser_calls(job->parser) > 0;
        json_t *choice = json_pack("{s:i, s:o, s:s}", "index", 0, "message", chat_message(job), "finish_reason",
                                   job->finish == FINISH_LIMIT ? "length"
                                   : calls                     ? "tool_calls"
                                                               : "stop");
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:I, s:s, s:[o], s:{s:i, s:i, s:i}}", "id", r->id, "object",
                                        "chat.completion", "created", (json_int_t)r->created, "model",
                                        r->served->alias, "choices", choice, "usage", "prompt_tokens",
                                        (int)job->stats.n_prompt, "completion_tokens", (int)job->stats.n_predicted,
                                        "total_tokens", (int)(job->stats.n_prompt + job->stats.n_predicted)));
    }
    reply_json(r->served->server, request_take(r), 200, json_pack("{s:o}", "predictions", list));
}

static const struct response_format predict_format = {.piece = predict_piece, .end = predict_end};

void serve_predict(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    json_t *instances = json_object_get(body, "instances"), *one;
    size_t i;
    struct request *r = request_new(served, http, &predict_format, "chatcmpl-");
    bool fine = r != NULL || problem_set(&problem, 500, "out of memory");
    if (fine && (!json_array_size(instances) || json_array_size(instances) > MAX_CHOICES))
        fine = problem_set(&problem, 400, "instances must be a list of 1 to %d requests", (int)MAX_CHOICES);
    json_array_foreach(instances, i, one) {
        const char *format = json_string_value(json_object_get(one, "@requestFormat"));
        if (fine && (!format || strcmp(format, "chatCompletions") != 0))
            fine = problem_set(&problem, 400, "instances[%zu]: @requestFormat must be chatCompletions", i);
        if (!fine) break;
        tn_chat_prompt_free(r->prompt);
        r->prompt = NULL;
        tn_grammar_state_free(r->grammar);
        r->grammar = NULL;
        r->grammar_read = false;
        fine = chat_jobs(served, r, one, 1, -1, &problem);
    }
    request_start(r, http, served, fine, &problem);
}

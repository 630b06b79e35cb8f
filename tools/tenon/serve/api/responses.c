/* POST /v1/responses: OpenAI's Responses API, without stored conversations. */
#include "serve/api/chat_request.h"

#include <stdlib.h>
#include <string.h>

/* ---- Requests ---- */

static bool add_input_item(json_t *messages, json_t *item, struct problem *problem) {
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content = json_object_get(item, "content"), *part, *parts;
    size_t i;
    if (type && strcmp(type, "function_call") == 0) {
        if (!json_is_string(json_object_get(item, "name")) || !json_is_string(json_object_get(item, "arguments")))
            return problem_set(problem, 400, "a function_call needs a name and arguments");
        json_t *function = json_pack("{s:O?, s:O?}", "name", json_object_get(item, "name"), "arguments",
                                     json_object_get(item, "arguments"));
        json_t *call = json_pack("{s:O?, s:s, s:o}", "id", json_object_get(item, "call_id"), "type", "function",
                                 "function", function);
        json_array_append_new(messages,
                              json_pack("{s:s, s:n, s:[o]}", "role", "assistant", "content", "tool_calls", call));
        return true;
    }
    if (type && strcmp(type, "function_call_output") == 0) {
        json_array_append_new(messages, json_pack("{s:s, s:O?, s:O?}", "role", "tool", "tool_call_id",
                                                  json_object_get(item, "call_id"), "content",
                                                  json_object_get(item, "output")));
        return true;
    }
    if (type && strcmp(type, "reasoning") == 0) return true;
    if (!role || (type && strcmp(type, "message") != 0))
        return type ? problem_set(problem, 400, "an input item of type %.40s is not supported", type)
                    : problem_set(problem, 400, "an input item needs a type or a role");
    if (strcmp(role, "developer") == 0) role = "system";
    if (json_is_string(content)) {
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", role, "content", content));
        return true;
    }
    if (!json_is_array(content))
        return problem_set(problem, 400, "an input item's content must be a string or a list of parts");
    parts = json_array();
    json_array_foreach(content, i, part) {
        const char *kind = json_string_value(json_object_get(part, "type"));
        bool text = kind && (strcmp(kind, "input_text") == 0 || strcmp(kind, "output_text") == 0 ||
                             strcmp(kind, "text") == 0);
        json_array_append_new(parts, json_pack("{s:s, s:O?}", "type",
                                               text   ? "text"
                                               : kind ? kind
                                                      : "?",
                                               "text", json_object_get(part, "text")));
    }
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", parts));
    return true;
}

static bool add_response_tools(json_t *out, json_t *body, struct problem *problem) {
    json_t *tools = NULL, *tool, *list, *choice = json_object_get(body, "tool_choice");
    size_t i;
    if (!field_list(body, "tools", &tools, problem)) return false;
    list = json_array();
    json_array_foreach(tools, i, tool) {
        json_t *function = json_object();
        json_object_set(function, "name", json_object_get(tool, "name"));
        json_object_set(function, "description", json_object_get(tool, "description"));
        json_object_set(function, "parameters", json_object_get(tool, "parameters"));
        json_array_append_new(list, json_pack("{s:s, s:o}", "type", "function", "function", function));
    }
    json_object_del(out, "tools");
    if (json_array_size(list)) json_object_set(out, "tools", list);
    json_decref(list);
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (json_is_object(choice) && !(type && strcmp(type, "allowed_tools") == 0))
        json_object_set_new(
            out, "tool_choice",
            json_pack("{s:s, s:{s:O?}}", "type", "function", "function", "name", json_object_get(choice, "name")));
    return true;
}

static json_t *translate_response(json_t *body, struct problem *problem) {
    json_t *input = json_object_get(body, "input"), *text = NULL, *format = NULL, *item;
    const char *instructions = NULL;
    const char *previous = json_string_value(json_object_get(body, "previous_response_id"));
    size_t i;
    if (previous) {
        problem_set(problem, 400,
                    "previous_response_id is not supported because nothing is stored; send the whole input");
        return NULL;
    }
    json_t *out = json_copy(body), *messages = json_array();
    bool fine = field_text(body, "instructions", &instructions, problem) &&
                field_object(body, "text", &text, problem) &&
                (!text || field_object(text, "format", &format, problem));
    if (instructions)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", instructions));
    if (json_is_string(input))
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", input));
    else if (fine && !json_is_array(input))
        fine = problem_set(problem, 400, "input must be a string or a list of items");
    else
        json_array_foreach(input, i, item) fine = fine && add_input_item(messages, item, problem);
    json_object_set_new(out, "messages", messages);
    fine = fine && add_response_tools(out, body, problem);
    if (format) json_object_set(out, "response_format", format);
    if (fine) return out;
    json_decref(out);
    return NULL;
}

/* ---- Responses ---- */

static json_t *text_part(json_t *text) { /* takes the reference */
    return json_pack("{s:s, s:o, s:[]}", "type", "output_text", "text", text, "annotations");
}

static json_t *message_item(struct request *r, const char *status, json_t *part) {
    return json_pack("{s:s, s:o, s:s, s:s, s:o}", "type", "message", "id", json_sprintf("msg_%s", r->id + 5),
                     "status", status, "role", "assistant", "content", part ? json_pack("[o]", part) : json_array());
}

static json_t *call_item(json_t *call, size_t index) {
    json_t *function = json_object_get(call, "function");
    return json_pack("{s:s, s:o, s:O?, s:O?, s:O?, s:s}", "type", "function_call", "id",
                     json_sprintf("fc_%zu", index), "call_id", json_object_get(call, "id"), "name",
                     json_object_get(function, "name"), "arguments", json_object_get(function, "arguments"), "status",
                     "completed");
}

static json_t *output_of(struct request *r) {
    json_t *message = chat_message(r->jobs[0]), *output = json_array(), *call;
    json_t *text = json_object_get(message, "content"), *calls = json_object_get(message, "tool_calls");
    size_t i;
    if (json_string_length(text) || !json_array_size(calls))
        json_array_append_new(
            output,
            message_item(r, "completed", text_part(json_is_string(text) ? json_incref(text) : json_string(""))));
    json_array_foreach(calls, i, call) json_array_append_new(output, call_item(call, i));
    json_decref(message);
    return output;
}

static json_t *response(struct request *r, const char *status, json_t *output) {
    struct job *job = r->jobs[0];
    bool cut = job->done && job->finish == FINISH_LIMIT;
    json_t *usage = json_null();
    if (job->done)
        usage = json_pack("{s:i, s:{s:i}, s:i, s:{s:i}, s:i}", "input_tokens", (int)job->stats.n_prompt,
                          "input_tokens_details", "cached_tokens", (int)job->stats.n_cached, "output_tokens",
                          (int)job->stats.n_predicted, "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
                          (int)(job->stats.n_prompt + job->stats.n_predicted));
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o, s:n, s:o, s:o, s:b, s:[], s:s}", "id", r->id, "object",
                     "response", "created_at", (json_int_t)r->created, "status", cut ? "incomplete" : status, "model",
                     r->served->alias, "output", output, "error", "incomplete_details",
                     cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "usage", usage, "store",
                     0, "tools", "tool_choice", "auto");
}

/* ---- Event streams ---- */

enum { ITEM_NONE, ITEM_TEXT, ITEM_CALL };

/* Adds type and sequence number to an event and sends it; takes the reference. */
static void send_event(struct request *r, const char *type, json_t *event) {
    if (!event) return;
    json_object_set_new(event, "type", json_string(type));
    json_object_set_new(event, "sequence_number", json_integer((json_int_t)r->jobs[0]->user++));
    stream_send(r, type, event);
}

/* r->extra is the item being sent: {"text": …} or {"id", "name", "arguments"}. */
static void append_item_text(struct request *r, const char *field, json_t *text) {
    json_t *so_far = json_object_get(r->extra, field);
    json_object_set_new(r->extra, field,
                        json_sprintf("%s%s", so_far ? json_string_value(so_far) : "", json_string_value(text)));
}

static json_t *open_call(struct request *r, struct job *job, const char *status) {
    return json_pack("{s:s, s:o, s:O?, s:O?, s:O, s:s}", "type", "function_call", "id",
                     json_sprintf("fc_%zu", job->n_blocks - 1), "call_id", json_object_get(r->extra, "id"), "name",
                     json_object_get(r->extra, "name"), "arguments", json_object_get(r->extra, "arguments"), "status",
                     status);
}

static void close_item(struct request *r, struct job *job) {
    json_int_t at = (json_int_t)job->n_blocks - 1;
    if (job->block_kind == ITEM_TEXT) {
        json_t *text = json_object_get(r->extra, "text");
        json_t *id = json_sprintf("msg_%s", r->id + 5);
        send_event(r, "response.output_text.done",
                   json_pack("{s:O, s:I, s:i, s:O, s:[]}", "item_id", id, "output_index", at, "content_index", 0,
                             "text", text, "logprobs"));
        send_event(r, "response.content_part.done",
                   json_pack("{s:o, s:I, s:i, s:o}", "item_id", id, "output_index", at, "content_index", 0, "part",
                             text_part(json_incref(text))));
        send_event(r, "response.output_item.done",
                   json_pack("{s:I, s:o}", "output_index", at, "item",
                             message_item(r, "completed", text_part(json_incref(text)))));
    } else if (job->block_kind == ITEM_CALL) {
        send_event(r, "response.function_call_arguments.done",
                   json_pack("{s:o, s:I, s:O}", "item_id", json_sprintf("fc_%zu", job->n_blocks - 1), "output_index",
                             at, "arguments", json_object_get(r->extra, "arguments")));
        send_event(r, "response.output_item.done",
                   json_pack("{s:I, s:o}", "output_index", at, "item", open_call(r, job, "completed")));
    }
    job->block_kind = ITEM_NONE;
}

static void open_text(struct request *r, struct job *job) {
    close_item(r, job);
    json_decref(r->extra);
    r->extra = json_pack("{s:s}", "text", "");
    job->block_kind = ITEM_TEXT;
    json_int_t at = (json_int_t)job->n_blocks++;
    send_event(r, "response.output_item.added",
               json_pack("{s:I, s:o}", "output_index", at, "item", message_item(r, "in_progress", NULL)));
    send_event(r, "response.content_part.added",
               json_pack("{s:o, s:I, s:i, s:o}", "item_id", json_sprintf("msg_%s", r->id + 5), "output_index", at,
                         "content_index", 0, "part", text_part(json_string(""))));
}

static tn_status send_response_event(void *user, const tn_chat_event *event) {
    struct job *job = user;
    struct request *r = job->request;
    json_t *text = json_stringn(event->text ? event->text : "", event->text ? event->length : 0);
    if (!text) text = json_string("\xef\xbf\xbd");
    switch (event->kind) {
    case TN_CHAT_CONTENT: {
        if (job->block_kind != ITEM_TEXT) open_text(r, job);
        append_item_text(r, "text", text);
        json_t *delta =
            json_pack("{s:o, s:I, s:i, s:O, s:[]}", "item_id", json_sprintf("msg_%s", r->id + 5), "output_index",
                      (json_int_t)job->n_blocks - 1, "content_index", 0, "delta", text, "logprobs");
        if (job->timings) json_object_set_new(delta, "timings", timings_json(job));
        send_event(r, "response.output_text.delta", delta);
        break;
    }
    case TN_CHAT_CALL:
        close_item(r, job);
        json_decref(r->extra);
        r->extra = json_pack("{s:s, s:O, s:s}", "id", event->id, "name", text, "arguments", "");
        job->block_kind = ITEM_CALL;
        job->n_blocks++;
        send_event(r, "response.output_item.added",
                   json_pack("{s:I, s:o}", "output_index", (json_int_t)job->n_blocks - 1, "item",
                             open_call(r, job, "in_progress")));
        break;
    case TN_CHAT_ARGUMENTS:
        append_item_text(r, "arguments", text);
        send_event(r, "response.function_call_arguments.delta",
                   json_pack("{s:o, s:I, s:O}", "item_id", json_sprintf("fc_%zu", job->n_blocks - 1), "output_index",
                             (json_int_t)job->n_blocks - 1, "delta", text));
        break;
    case TN_CHAT_CALL_END: close_item(r, job); break;
    case TN_CHAT_REASONING: break; /* not part of this API's events */
    }
    json_decref(text);
    return TN_OK;
}

static void announce_response(struct request *r, struct job *job) {
    if (r->stream && !job->announced) {
        send_event(r, "response.created", json_pack("{s:o}", "response", response(r, "in_progress", json_array())));
        send_event(r, "response.in_progress",
                   json_pack("{s:o}", "response", response(r, "in_progress", json_array())));
    }
    job->announced = true;
}

static void responses_progress(struct request *r, struct job *job) {
    announce_response(r, job);
    send_event(r, "response.in_progress",
               json_pack("{s:o, s:o}", "response", response(r, "in_progress", json_array()), "prompt_progress",
                         progress_json(job)));
}

static void responses_piece(struct request *r, struct job *job, const struct piece *p) {
    job->done = false; /* also a first piece that is the last is announced as in progress */
    announce_response(r, job);
    job->done = p->finish != FINISH_NONE;
    if (!chat_feed(job, p, r->stream ? send_response_event : NULL, job))
        snprintf(r->failed, sizeof r->failed, "%s", tn_error());
}

static void responses_end(struct request *r) {
    struct job *job = r->jobs[0];
    if (!r->stream) {
        json_t *answer = response(r, "completed", output_of(r));
        reply_json(r->served->server, request_take(r), 200, answer);
        return;
    }
    close_item(r, job);
    send_event(
        r, job->finish == FINISH_LIMIT ? "response.incomplete" : "response.completed",
        json_pack("{s:o, s:o}", "response", response(r, "completed", output_of(r)), "timings", timings_json(job)));
    stream_end(r);
}

static const struct response_format responses_format = {
    .piece = responses_piece, .end = responses_end, .progress = responses_progress};

void serve_responses(struct served *served, struct evhttp_request *http, json_t *body) {
    serve_translated(served, http, body, translate_response, &responses_format, "resp_");
}

void serve_response_count(struct served *served, struct evhttp_request *http, json_t *body) {
    count_tokens(served, http, body, translate_response, "response.input_tokens");
}

/* POST /v1/messages: Anthropic's chat API, translated to chat completions and back. */
#include "serve/api/chat_request.h"

#include "cli/text_buffer.h"

#include <stdlib.h>
#include <string.h>

/* ---- Requests ---- */

/* The text of a string or of a list of text parts; a new reference, NULL with the problem set. */
static json_t *plain_text(json_t *content, struct problem *problem) {
    json_t *part;
    size_t i;
    if (json_is_string(content)) return json_incref(content);
    if (json_is_null(content)) return json_string("");
    if (!json_is_array(content)) {
        problem_set(problem, 400, "a text must be a string or a list of parts");
        return NULL;
    }
    tn_text all = {0};
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const char *text = json_string_value(json_object_get(part, "text"));
        if (!type || strcmp(type, "text") != 0 || !text) {
            problem_set(problem, 400, "%s is not supported by this model: content of type %.40s",
                        type && strcmp(type, "image") == 0 ? "image input" : "this input", type ? type : "?");
            tn_text_free(&all);
            return NULL;
        }
        if (text_append(&all, text, strlen(text)) != TN_OK) {
            problem_set(problem, 500, "out of memory");
            tn_text_free(&all);
            return NULL;
        }
    }
    json_t *joined = json_stringn(all.bytes ? all.bytes : "", all.length);
    tn_text_free(&all);
    if (!joined) problem_set(problem, 500, "out of memory");
    return joined;
}

static bool add_tool_use(json_t *message, json_t *part, struct problem *problem) {
    json_t *calls = json_object_get(message, "tool_calls");
    const char *id = json_string_value(json_object_get(part, "id"));
    const char *name = json_string_value(json_object_get(part, "name"));
    char *input = json_dumps(json_object_get(part, "input"), JSON_COMPACT | JSON_ENCODE_ANY);
    if (!id || !name || !input) {
        free(input);
        return problem_set(problem, 400, "a tool_use part needs id, name and input");
    }
    if (!calls) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function", "function",
                                           "name", name, "arguments", input));
    free(input);
    return true;
}

/* One message may become several: in chat completions a tool result is a message of its own. */
static bool add_anthropic_message(json_t *out, json_t *in, struct problem *problem) {
    const char *role = json_string_value(json_object_get(in, "role"));
    json_t *content = json_object_get(in, "content"), *part, *texts = json_array();
    size_t i;
    bool fine = true;
    if (!role || (!json_is_string(content) && !json_is_array(content))) {
        json_decref(texts);
        return problem_set(problem, 400, "a message needs a role and content");
    }
    json_t *message = json_pack("{s:s}", "role", role);
    if (json_is_string(content))
        json_array_append_new(texts, json_pack("{s:s, s:O}", "type", "text", "text", content));
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && strcmp(type, "tool_use") == 0) {
            fine = fine && add_tool_use(message, part, problem);
        } else if (type && strcmp(type, "tool_result") == 0) {
            json_t *result = json_object_get(part, "content") ? plain_text(json_object_get(part, "content"), problem)
                                                              : json_string("");
            const char *id = json_string_value(json_object_get(part, "tool_use_id"));
            fine = fine && result;
            if (result)
                json_array_append_new(out, json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", id ? id : "",
                                                     "content", result));
        } else if (type && strcmp(type, "thinking") == 0) {
            json_t *thought = json_object_get(part, "thinking");
            if (json_string_length(thought)) json_object_set(message, "reasoning_content", thought);
        } else if (!type || strcmp(type, "redacted_thinking") != 0) {
            json_array_append(texts, part);
        }
    }
    json_t *text = fine ? plain_text(texts, problem) : NULL;
    fine = fine && text;
    bool has_text = text && json_string_length(text) > 0;
    if (fine) json_object_set(message, "content", has_text ? text : json_null());
    if (fine && (has_text || json_object_get(message, "tool_calls"))) json_array_append(out, message);
    json_decref(text);
    json_decref(texts);
    json_decref(message);
    return fine;
}

static bool add_anthropic_tools(json_t *out, json_t *body, struct problem *problem) {
    json_t *tools = NULL, *choice = NULL, *tool;
    size_t i;
    if (!field_list(body, "tools", &tools, problem) || !field_object(body, "tool_choice", &choice, problem))
        return false;
    const char *type = json_string_value(json_object_get(choice, "type"));
    json_t *list = json_array();
    json_array_foreach(tools, i, tool) {
        json_t *function = json_object();
        json_object_set(function, "name", json_object_get(tool, "name"));
        json_object_set(function, "description", json_object_get(tool, "description"));
        json_object_set(function, "parameters", json_object_get(tool, "input_schema"));
        json_array_append_new(list, json_pack("{s:s, s:o}", "type", "function", "function", function));
    }
    if (json_array_size(list)) json_object_set(out, "tools", list);
    json_decref(list);
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")))
        json_object_set_new(out, "parallel_tool_calls", json_false());
    if (type && strcmp(type, "any") == 0)
        json_object_set_new(out, "tool_choice", json_string("required"));
    else if (type && strcmp(type, "none") == 0)
        json_object_set_new(out, "tool_choice", json_string("none"));
    else if (type && strcmp(type, "tool") == 0)
        json_object_set_new(
            out, "tool_choice",
            json_pack("{s:s, s:{s:O?}}", "type", "function", "function", "name", json_object_get(choice, "name")));
    return true;
}

static json_t *translate_messages(json_t *body, struct problem *problem) {
    json_t *out = json_copy(body), *messages = json_array(), *message;
    json_t *system = json_object_get(body, "system"), *in = NULL;
    size_t i;
    bool fine = field_list(body, "messages", &in, problem);
    json_object_del(out, "tools");
    json_object_del(out, "tool_choice");
    if (fine && !in) fine = problem_set(problem, 400, "messages is missing");
    if (fine && system && !json_is_null(system)) {
        json_t *text = plain_text(system, problem);
        fine = text != NULL;
        if (fine) json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "system", "content", text));
    }
    json_array_foreach(in, i, message) fine = fine && add_anthropic_message(messages, message, problem);
    if (fine && json_array_size(in) == 0) /* the template begins it */
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", ""));
    json_object_set_new(out, "messages", messages);
    json_t *thinking = NULL;
    fine = fine && add_anthropic_tools(out, body, problem) && field_object(body, "thinking", &thinking, problem);
    json_t *budget = json_object_get(thinking, "budget_tokens");
    const char *mode = json_string_value(json_object_get(thinking, "type"));
    if (mode && strcmp(mode, "disabled") == 0) json_object_set_new(out, "enable_thinking", json_false());
    if (budget) json_object_set(out, "thinking_budget_tokens", budget);
    if (fine) return out;
    json_decref(out);
    return NULL;
}

/* ---- Responses ---- */

static const char *stop_reason(const struct job *job) {
    if (job->finish == FINISH_LIMIT) return "max_tokens";
    if (tn_chat_parser_calls(job->parser)) return "tool_use";
    return job->finish == FINISH_WORD ? "stop_sequence" : "end_turn";
}

static json_t *stop_sequence(const struct job *job) {
    return job->finish == FINISH_WORD ? json_string(job->stop_word) : json_null();
}

static json_t *message_usage(const struct job *job) {
    return json_pack("{s:i, s:i, s:i, s:i}", "input_tokens", (int)(job->stats.n_prompt - job->stats.n_cached),
                     "cache_read_input_tokens", (int)job->stats.n_cached, "cache_creation_input_tokens", 0,
                     "output_tokens", (int)job->stats.n_predicted);
}

enum { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL };

static void send_block_delta(struct request *r, struct job *job, const char *type, const char *field, json_t *text) {
    stream_send(r, "content_block_delta",
                json_pack("{s:s, s:I, s:{s:s, s:o}}", "type", "content_block_delta", "index",
                          (json_int_t)job->n_blocks - 1, "delta", "type", type, field, text));
}

static void close_block(struct request *r, struct job *job) {
    /* Clients send thinking back only with a signature, so an empty one is sent. */
    if (job->block_kind == BLOCK_THINKING) send_block_delta(r, job, "signature_delta", "signature", json_string(""));
    if (job->block_kind)
        stream_send(r, "content_block_stop",
                    json_pack("{s:s, s:I}", "type", "content_block_stop", "index", (json_int_t)job->n_blocks - 1));
    job->block_kind = BLOCK_NONE;
}

static void open_block(struct request *r, struct job *job, int kind, json_t *block) {
    close_block(r, job);
    job->block_kind = kind;
    stream_send(r, "content_block_start",
                json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index", (json_int_t)job->n_blocks++,
                          "content_block", block));
}

static tn_status send_message_event(void *user, const tn_chat_event *event) {
    struct job *job = user;
    struct request *r = job->request;
    json_t *text = json_stringn(event->text ? event->text : "", event->text ? event->length : 0);
    if (!text) text = json_string("\xef\xbf\xbd");
    switch (event->kind) {
    case TN_CHAT_CONTENT:
        if (job->block_kind != BLOCK_TEXT)
            open_block(r, job, BLOCK_TEXT, json_pack("{s:s, s:s}", "type", "text", "text", ""));
        send_block_delta(r, job, "text_delta", "text", text);
        return TN_OK;
    case TN_CHAT_REASONING:
        if (job->block_kind != BLOCK_THINKING)
            open_block(r, job, BLOCK_THINKING,
                       json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", ""));
        send_block_delta(r, job, "thinking_delta", "thinking", text);
        return TN_OK;
    case TN_CHAT_CALL:
        open_block(r, job, BLOCK_TOOL,
                   json_pack("{s:s, s:s, s:O, s:{}}", "type", "tool_use", "id", event->id, "name", text, "input"));
        break;
    case TN_CHAT_ARGUMENTS: send_block_delta(r, job, "input_json_delta", "partial_json", text); return TN_OK;
    case TN_CHAT_CALL_END: close_block(r, job); break;
    }
    json_decref(text);
    return TN_OK;
}

static void send_message_start(struct request *r, struct job *job) {
    json_t *message = json_pack("{s:s, s:s, s:s, s:s, s:[], s:n, s:n, s:{s:i, s:i}}", "id", r->id, "type", "message",
                                "role", "assistant", "model", r->served->alias, "content", "stop_reason",
                                "stop_sequence", "usage", "input_tokens", (int)job->prompt.count, "output_tokens", 0);
    stream_send(r, "message_start", json_pack("{s:s, s:o}", "type", "message_start", "message", message));
}

static void messages_piece(struct request *r, struct job *job, const struct piece *p) {
    if (r->stream && !job->announced) send_message_start(r, job);
    job->announced = true;
    if (!chat_feed(job, p, r->stream ? send_message_event : NULL, job))
        snprintf(r->failed, sizeof r->failed, "%s", tn_error());
}

static json_t *content_of(struct job *job) {
    json_t *message = chat_message(job), *content = json_array(), *call;
    json_t *text = json_object_get(message, "content"), *thought = json_object_get(message, "reasoning_content");
    size_t i;
    if (json_string_length(thought))
        json_array_append_new(content,
                              json_pack("{s:s, s:O, s:s}", "type", "thinking", "thinking", thought, "signature", ""));
    if (json_string_length(text))
        json_array_append_new(content, json_pack("{s:s, s:O}", "type", "text", "text", text));
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        json_t *input = json_is_string(arguments) ? json_loads(json_string_value(arguments), 0, NULL) : NULL;
        json_array_append_new(
            content, json_pack("{s:s, s:O?, s:O?, s:o}", "type", "tool_use", "id", json_object_get(call, "id"),
                               "name", json_object_get(function, "name"), "input", input ? input : json_object()));
    }
    json_decref(message);
    return content;
}

static void messages_end(struct request *r) {
    struct job *job = r->jobs[0];
    if (r->stream) {
        close_block(r, job);
        stream_send(r, "message_delta",
                    json_pack("{s:s, s:{s:s, s:o}, s:o}", "type", "message_delta", "delta", "stop_reason",
                              stop_reason(job), "stop_sequence", stop_sequence(job), "usage", message_usage(job)));
        stream_send(r, "message_stop", json_pack("{s:s}", "type", "message_stop"));
        stream_end(r);
        return;
    }
    json_t *answer = json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:o, s:o}", "id", r->id, "type", "message", "role",
                               "assistant", "model", r->served->alias, "content", content_of(job), "stop_reason",
                               stop_reason(job), "stop_sequence", stop_sequence(job), "usage", message_usage(job));
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format messages_format = {.piece = messages_piece, .end = messages_end};

void serve_messages(struct served *served, struct evhttp_request *http, json_t *body) {
    serve_translated(served, http, body, translate_messages, &messages_format, "msg_");
}

void serve_message_count(struct served *served, struct evhttp_request *http, json_t *body) {
    count_tokens(served, http, body, translate_messages, NULL);
}

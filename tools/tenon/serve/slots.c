/* POST /slots/ID?action=save|restore|erase: saves the cached tokens of a slot to a file, restores or erases them. */
#include "serve.h"

#include <event2/keyvalq_struct.h>
#include <stdlib.h>
#include <string.h>

static void slot_piece(struct request *request, struct job *job, const struct piece *piece) {
    (void)request;
    (void)job;
    (void)piece;
}

static void slot_end(struct request *r) {
    struct job *job = r->jobs[0];
    static const char *const counts[] = {"", "n_saved", "n_restored", "n_erased"};
    json_t *answer = json_pack("{s:i, s:i}", "id_slot", job->slot, counts[job->action], (int)job->stats.n_prompt);
    if (r->extra) json_object_set(answer, "filename", r->extra);
    reply_json(r->served->server, request_take(r), 200, answer);
}

static const struct response_format slot_format = {slot_piece, slot_end};

static enum slot_action read_action(struct evhttp_request *http) {
    static const char *const names[] = {"", "save", "restore", "erase"};
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(http));
    struct evkeyvalq values;
    enum slot_action action = SLOT_NOTHING;
    if (!query || evhttp_parse_query_str(query, &values) != 0) return SLOT_NOTHING;
    const char *name = evhttp_find_header(&values, "action");
    for (int i = SLOT_SAVE; name && i <= SLOT_ERASE; i++)
        if (strcmp(name, names[i]) == 0) action = (enum slot_action)i;
    evhttp_clear_headers(&values);
    return action;
}

/* Letters, digits, dot, dash and underscore, no leading dot: such a name stays inside the folder. */
static bool is_plain_name(const char *name) {
    size_t length = strlen(name);
    return length > 0 && length <= 128 && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == length;
}

static bool read_slot(struct served *served, struct request *r, struct evhttp_request *http, json_t *body,
                      struct problem *problem) {
    const char *digits = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(http)) + strlen("/slots/"), *name = NULL;
    char *end;
    long id = strtol(digits, &end, 10);
    if (end == digits || *end || id < 0 || id >= served->server->n_slots)
        return problem_set(problem, 404, "the slots are 0 to %d", served->server->n_slots - 1);
    struct job *job = request_add_job(r);
    if (!job) return problem_set(problem, 500, "out of memory");
    job->slot = (int)id;
    job->action = read_action(http);
    if (job->action == SLOT_NOTHING) return problem_set(problem, 400, "action must be save, restore or erase");
    if (job->action == SLOT_ERASE) return true;
    if (!served->server->slot_path)
        return problem_set(problem, 501, "start the server with --slot-save-path to keep slots");
    if (!field_text(body, "filename", &name, problem)) return false;
    if (!name || !is_plain_name(name))
        return problem_set(problem, 400, "filename must be a plain name of letters, digits, dots, dashes");
    size_t size = strlen(served->server->slot_path) + strlen(name) + 2;
    if (!(job->path = tn_malloc(size))) return problem_set(problem, 500, "out of memory");
    snprintf(job->path, size, "%s/%s", served->server->slot_path, name);
    r->extra = json_string(name);
    return true;
}

void serve_slot_action(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    struct request *r = request_new(served, http, &slot_format, "slot-");
    bool fine = r ? read_slot(served, r, http, body, &problem) : problem_set(&problem, 500, "out of memory");
    if (fine) {
        request_submit(r);
        return;
    }
    request_free(r);
    reply_problem(served->server, http, &problem);
}

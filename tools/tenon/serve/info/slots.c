/* State that clients can change: POST /slots/ID?action=save|restore|erase saves the cached tokens of a slot to a
 * file, restores or erases them; POST /lora-adapters sets the scales of adapters for later requests. */
#include "serve/serve.h"

#include <event2/keyvalq_struct.h>
#include <math.h>
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

static const struct response_format slot_format = {.piece = slot_piece, .end = slot_end};

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

/* ---- Adapters ---- */

bool scales_read(const struct served *served, json_t *list, float *scales, struct problem *problem) {
    const size_t n = served->adapters.n_adapters;
    size_t i;
    json_t *entry;
    if (!list || json_is_null(list)) return true;
    if (!json_is_array(list)) return problem_set(problem, 400, "lora must be a list of {id, scale}");
    float read[TN_ADAPTERS_MOST] = {0};
    json_array_foreach(list, i, entry) {
        int64_t id = -1;
        double scale = NAN;
        if (!json_is_object(entry)) return problem_set(problem, 400, "adapters are given as {id, scale}");
        if (!field_int(entry, "id", 0, INT32_MAX, &id, problem) ||
            !field_real(entry, "scale", -1e6, 1e6, &scale, problem))
            return false;
        if (id < 0 || isnan(scale)) return problem_set(problem, 400, "adapters are given as {id, scale}");
        if ((size_t)id >= n)
            return problem_set(problem, 400, "unknown adapter %lld; GET /lora-adapters lists them", (long long)id);
        read[id] = (float)scale;
    }
    memcpy(scales, read, sizeof read);
    return true;
}

void serve_adapters(struct served *served, struct evhttp_request *http, json_t *body) {
    (void)body;
    json_t *list = json_array();
    for (size_t i = 0; i < served->adapters.n_adapters; i++)
        json_array_append_new(list, json_pack("{s:i, s:s, s:f}", "id", (int)i, "path",
                                              tn_adapter_get_info(served->adapters.adapters[i].adapter).path, "scale",
                                              (double)served->scales[i]));
    reply_json(served->server, http, 200, list);
}

void serve_adapter_scales(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    if (scales_read(served, body, served->scales, &problem))
        reply_json(served->server, http, 200, json_pack("{s:b}", "success", 1));
    else
        reply_problem(served->server, http, &problem);
}
